//! The words of four letters that a connection may be, instead of a client's.
//!
//! Scripts, probes and clients parse what is answered, so every line has ZooKeeper's form. What an
//! answer says comes from a [`Source`]; here is only the form, and which words are answered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use super::facts::{
    BUILT, ConnectionFacts, Facts, Mode, SessionFacts, Sessions, Source, VERSION, monitored,
    short_name,
};

/// Bytes that `stmk` takes behind itself.
pub(super) const MASK_BYTES: usize = 8;

/// The trace mask that ZooKeeper starts with. Nothing is traced here.
const TRACE_MASK: i64 = 306;

/// Which words are answered; the others are told that they aren't.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whitelist {
    /// All of them.
    All,
    /// These.
    Only(Vec<String>),
}

impl Default for Whitelist {
    fn default() -> Self {
        Self::Only(vec!["srvr".to_owned()])
    }
}

impl Whitelist {
    /// From a list with commas, or `*`.
    ///
    /// # Errors
    ///
    /// The word that is none, and those there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<String> = text
            .split(',')
            .map(|word| word.trim().to_owned())
            .filter(|it| !it.is_empty())
            .collect();
        if words.iter().any(|word| word == "*") {
            return Ok(Self::All);
        }
        match words.iter().find(|word| Word::of_name(word).is_none()) {
            None => Ok(Self::Only(words)),
            Some(word) => {
                let names: Vec<&str> = Word::ALL.iter().map(|(_, name)| *name).collect();
                let names = names.join(", ");
                Err(format!("there is no word {word:?}; write \"*\" for all, or some of {names}"))
            }
        }
    }

    pub(super) fn has(&self, word: Word, reads_only: bool) -> bool {
        match self {
            Self::All => true,
            Self::Only(words) => {
                // Clients that look for a server with a majority ask so.
                word == Word::Isro && reads_only || words.iter().any(|it| it == word.name())
            }
        }
    }
}

/// The table of words: each with its letters.
macro_rules! words {
    ($($word:ident = $name:literal,)*) => {
        /// What can be asked without being a client.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Word { $($word,)* }

        impl Word {
            const ALL: &[(Self, &str)] = &[$((Self::$word, $name),)*];
        }
    };
}

words! {
    Conf = "conf", Cons = "cons", Crst = "crst", Dirs = "dirs", Dump = "dump", Envi = "envi",
    Gtmk = "gtmk", Hash = "hash", Isro = "isro", Mntr = "mntr", Ruok = "ruok", Srst = "srst",
    Srvr = "srvr", Stat = "stat", Stmk = "stmk", Wchc = "wchc", Wchp = "wchp", Wchs = "wchs",
}

impl Word {
    /// The word that a connection's first bytes are, if they are one.
    pub(super) fn of(first: [u8; 4]) -> Option<Self> {
        std::str::from_utf8(&first).ok().and_then(Self::of_name)
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(word, _)| *word)
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(word, _)| *word == self).map_or("", |(_, name)| name)
    }

    /// Whether its answer is as long as what there is of connections, sessions, watches or files.
    pub(super) fn walks(self) -> bool {
        matches!(
            self,
            Self::Stat
                | Self::Cons
                | Self::Crst
                | Self::Conf
                | Self::Dirs
                | Self::Dump
                | Self::Wchs
                | Self::Wchc
                | Self::Wchp
        )
    }

    /// Whether it is answered whatever state the server is in.
    fn needs_no_majority(self) -> bool {
        matches!(self, Self::Ruok | Self::Envi | Self::Gtmk | Self::Stmk | Self::Isro)
    }
}

/// What is answered to a word, to whoever asks from this address. `mask` is what came behind a
/// `stmk`.
pub(super) fn answer(
    word: Word,
    mask: [u8; MASK_BYTES],
    own: SocketAddr,
    source: &dyn Source,
) -> String {
    let mut facts = source.facts();
    // The one that asks is among them.
    facts.connections += 1;
    let connections = || {
        let mut connections = source.connections();
        connections.push(asking(own));
        connections
    };
    let settings = &facts.settings;
    if !settings.words.has(word, settings.read_only) {
        let name = word.name();
        return format!("{name} is not executed because it is not in the whitelist.\n");
    }
    if facts.mode.is_none() && !word.needs_no_majority() {
        return format!("{NOT_SERVING}\n");
    }
    // A table.
    match word {
        Word::Ruok => "imok".to_owned(),
        Word::Isro => isro(&facts).to_owned(),
        Word::Srvr => format!("{}{}", head(&facts), server(&facts)),
        Word::Stat => stat(&facts, &connections()),
        Word::Mntr => mntr(&facts, source.files()),
        Word::Cons => cons(&connections()),
        Word::Crst => {
            source.reset_connections();
            "Connection stats reset.\n".to_owned()
        }
        Word::Srst => {
            source.reset_server();
            "Server stats reset.\n".to_owned()
        }
        Word::Conf => conf(&facts, source.disk_bytes()),
        Word::Envi => envi(),
        Word::Dump => dump(&facts, &source.sessions(), &source.connections()),
        Word::Wchs => wchs(&source.watches()),
        Word::Wchc => wchc(&source.watches()),
        Word::Wchp => wchp(&source.watches()),
        Word::Dirs => {
            format!("datadir_size: {0}\nlogdir_size: {0}\n", source.disk_bytes())
        }
        Word::Gtmk => TRACE_MASK.to_string(),
        Word::Stmk => i64::from_be_bytes(mask).to_string(),
        // There is no digest of the tree.
        Word::Hash => String::new(),
    }
}

/// A connection that has said one word.
fn asking(address: SocketAddr) -> ConnectionFacts {
    let (outstanding, received, sent) = (0, 1, 0);
    ConnectionFacts { address, is_secure: false, outstanding, received, sent, session: None }
}

/// What everybody hears from a server that has no majority.
pub(super) const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

fn isro(facts: &Facts) -> &'static str {
    match facts.mode {
        None => "null",
        Some(Mode::ReadOnly) => "ro",
        Some(_) => "rw",
    }
}

fn head(facts: &Facts) -> String {
    let note = if facts.mode == Some(Mode::ReadOnly) {
        "READ-ONLY mode; serving only read-only clients\n"
    } else {
        ""
    };
    format!("Zookeeper version: {VERSION}, built on {BUILT}\n{note}")
}

/// The part that `srvr` and `stat` have in common. The average is a whole number, which every
/// parser takes.
fn server(facts: &Facts) -> String {
    let mode = facts.mode.map_or("", Mode::name);
    let latency = facts.latency_ms;
    let mut text = format!(
        "Latency min/avg/max: {}/{}/{}\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: {}\n\
         Zxid: 0x{:x}\nMode: {mode}\nNode count: {}\n",
        latency.min,
        latency.avg,
        latency.max,
        facts.received,
        facts.sent,
        facts.connections,
        facts.outstanding,
        facts.zxid,
        facts.nodes,
    );
    if facts.mode == Some(Mode::Leader) {
        text.push_str("Proposal sizes last/min/max: -1/-1/-1\n");
    }
    text
}

fn stat(facts: &Facts, connections: &[ConnectionFacts]) -> String {
    let mut text = head(facts);
    text.push_str("Clients:\n");
    for connection in connections {
        text.push_str(&brief(connection));
        text.push_str(")\n");
    }
    text.push('\n');
    text.push_str(&server(facts));
    text
}

fn cons(connections: &[ConnectionFacts]) -> String {
    let mut text = String::new();
    for connection in connections {
        text.push_str(&brief(connection));
        if let Some(session) = &connection.session {
            text.push_str(&of_session(session));
        }
        text.push_str(")\n");
    }
    text.push('\n');
    text
}

/// A connection's line, without its end.
fn brief(connection: &ConnectionFacts) -> String {
    let ConnectionFacts { address, outstanding, received, sent, .. } = connection;
    let interest = u8::from(connection.session.is_some());
    format!(" /{address}[{interest}](queued={outstanding},recved={received},sent={sent}")
}

fn of_session(session: &SessionFacts) -> String {
    let SessionFacts { id, timeout_ms, since_ms, last_zxid, last_reply_ms, .. } = session;
    let op = short_name(session.last_op);
    let mut text = format!(",sid=0x{id:x},lop={op},est={since_ms},to={timeout_ms}");
    if session.last_xid >= 0 {
        let _ = write!(text, ",lcxid=0x{:x}", session.last_xid);
    }
    let (latency, last) = (session.latency_ms, session.last_latency_ms);
    let _ = write!(
        text,
        ",lzxid=0x{last_zxid:x},lresp={last_reply_ms},llat={last},minlat={},avglat={},maxlat={}",
        latency.min, latency.avg, latency.max
    );
    text
}

fn mntr(facts: &Facts, files: (u64, u64)) -> String {
    let mode = facts.mode.map_or("", Mode::name);
    let mut text = format!("zk_version\t{VERSION}, built on {BUILT}\nzk_server_state\t{mode}\n");
    let peer = match facts.mode {
        Some(Mode::Leader) => Some("leading - broadcast"),
        Some(Mode::Follower) => Some("following - broadcast"),
        Some(Mode::Observer) => Some("observing - broadcast"),
        Some(Mode::Standalone | Mode::ReadOnly) | None => None,
    };
    if let Some(peer) = peer {
        let _ = writeln!(text, "zk_peer_state\t{peer}");
    }
    for (name, figure) in monitored(facts, files) {
        let _ = writeln!(text, "zk_{name}\t{figure}");
    }
    text
}

/// `-1` where there is no such port.
pub(super) fn port(port: Option<u16>) -> i64 {
    port.map_or(-1, i64::from)
}

fn conf(facts: &Facts, bytes: u64) -> String {
    let settings = &facts.settings;
    let directory = &facts.data_dir;
    let (plain, secure) = (port(facts.client_port), port(facts.secure_client_port));
    let (tick, id) = (settings.tick.as_millis(), facts.server_id);
    let connections = settings.client_connections_max;
    let least = settings.session_timeout_min.as_millis();
    let most = settings.session_timeout_max.as_millis();
    let mut text = format!(
        "clientPort={plain}\nsecureClientPort={secure}\ndataDir={directory}\n\
         dataDirSize={bytes}\ndataLogDir={directory}\ndataLogSize={bytes}\ntickTime={tick}\n\
         maxClientCnxns={connections}\nminSessionTimeout={least}\nmaxSessionTimeout={most}\n\
         clientPortListenBacklog=-1\nserverId={id}\n"
    );
    if facts.voters > 1 {
        text.push_str("initLimit=0\nsyncLimit=0\nelectionAlg=3\nelectionPort=-1\nquorumPort=-1\n");
        let peer = u8::from(facts.mode == Some(Mode::Observer));
        let _ = write!(text, "peerType={peer}\nmembership: \n{}", facts.members);
    }
    text
}

/// What ZooKeeper's environment has; there is no Java here.
pub(super) fn environment() -> Vec<(&'static str, String)> {
    let of = |variable: &str| std::env::var(variable).unwrap_or_else(|_| NOT_KNOWN.to_owned());
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let directory = std::env::current_dir();
    let directory = directory.map_or_else(|_| NOT_KNOWN.to_owned(), |it| it.display().to_string());
    let unknown = || NOT_KNOWN.to_owned();
    vec![
        ("zookeeper.version", format!("{VERSION}, built on {BUILT}")),
        ("host.name", text(system.nodename())),
        ("java.version", unknown()),
        ("java.vendor", unknown()),
        ("java.home", unknown()),
        ("java.class.path", unknown()),
        ("java.library.path", unknown()),
        ("java.io.tmpdir", std::env::temp_dir().display().to_string()),
        ("java.compiler", unknown()),
        ("os.name", text(system.sysname())),
        ("os.arch", text(system.machine())),
        ("os.version", text(system.release())),
        ("user.name", of("USER")),
        ("user.home", of("HOME")),
        ("user.dir", directory),
        ("os.memory.free", unknown()),
        ("os.memory.max", unknown()),
        ("os.memory.total", unknown()),
    ]
}

/// As ZooKeeper has it for what can't be known.
const NOT_KNOWN: &str = "<NA>";

fn envi() -> String {
    let mut text = "Environment:\n".to_owned();
    for (key, value) in environment() {
        let _ = writeln!(text, "{key}={value}");
    }
    text
}

fn dump(facts: &Facts, sessions: &Sessions, connections: &[ConnectionFacts]) -> String {
    let tick_ms = u64::try_from(facts.settings.tick.as_millis()).unwrap_or(1).max(1);
    // Deadlines are told by the tick, as ZooKeeper keeps them.
    let bucket = |at_ms: u64| (at_ms / tick_ms + 1) * tick_ms;
    let mut sets: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for &(session, at_ms) in &sessions.expiries {
        sets.entry(bucket(at_ms)).or_default().push(session);
    }
    let count = sessions.expiries.len();
    let mut text = format!("SessionTracker dump:\nSession Sets ({})/({count}):\n", sets.len());
    for (at_ms, sessions) in &sets {
        let _ = writeln!(text, "{} expire at {}:", sessions.len(), date(*at_ms));
        for session in sessions {
            let _ = writeln!(text, "\t0x{session:x}");
        }
    }
    let _ = writeln!(
        text,
        "ephemeral nodes dump:\nSessions with Ephemerals ({}):",
        sessions.ephemerals.len()
    );
    for (session, paths) in &sessions.ephemerals {
        let _ = writeln!(text, "0x{session:x}:");
        for path in paths {
            let _ = writeln!(text, "\t{path}");
        }
    }
    let mut sets: BTreeMap<u64, Vec<&ConnectionFacts>> = BTreeMap::new();
    for connection in connections {
        let timeout_ms = connection.session.as_ref().map_or(0, |session| session.timeout_ms);
        sets.entry(bucket(facts.now_ms + timeout_ms)).or_default().push(connection);
    }
    let count = connections.len();
    let _ = writeln!(text, "Connections dump:\nConnections Sets ({})/({count}):", sets.len());
    for (at_ms, connections) in &sets {
        let _ = writeln!(text, "{} expire at {}:", connections.len(), date(*at_ms));
        for connection in connections {
            let id = connection.session.as_ref().map_or(0, |session| session.id);
            let _ = writeln!(text, "\tip: /{} sessionId: 0x{id:x}", connection.address);
        }
    }
    text
}

/// As Java prints a date in Greenwich: `Tue Nov 14 22:13:20 UTC 2023`.
fn date(ms: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

    let seconds = ms / 1_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the day that is sometimes missing is the last one.
    let from_march = days + 719_468;
    let era = from_march / 146_097;
    let day_of_era = from_march % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = year_of_era + era * 400 + u64::from(month < 2);
    let name = |names: &[&'static str], at: u64| {
        usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or("")
    };
    let (weekday, month) = (name(&DAYS, days % 7), name(&MONTHS, month));
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{weekday} {month} {day:02} {hour:02}:{minute:02}:{second:02} UTC {year}")
}

/// The sessions that watch, with their paths.
pub(super) fn by_session(watches: &[(String, Vec<u64>)]) -> BTreeMap<u64, Vec<&str>> {
    let mut by_session: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (path, sessions) in watches {
        for session in sessions {
            by_session.entry(*session).or_default().push(path);
        }
    }
    by_session
}

fn wchs(watches: &[(String, Vec<u64>)]) -> String {
    let total: usize = watches.iter().map(|(_, sessions)| sessions.len()).sum();
    let (connections, paths) = (by_session(watches).len(), watches.len());
    format!("{connections} connections watching {paths} paths\nTotal watches:{total}\n")
}

fn wchc(watches: &[(String, Vec<u64>)]) -> String {
    let mut text = String::new();
    for (session, paths) in by_session(watches) {
        let _ = writeln!(text, "0x{session:x}");
        for path in paths {
            let _ = writeln!(text, "\t{path}");
        }
    }
    text.push('\n');
    text
}

fn wchp(watches: &[(String, Vec<u64>)]) -> String {
    let mut text = String::new();
    for (path, sessions) in watches {
        let _ = writeln!(text, "{path}");
        for session in sessions {
            let _ = writeln!(text, "\t0x{session:x}");
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::super::facts::testing::{Fixed, facts};
    use super::*;

    fn open() -> Fixed {
        let mut facts = facts();
        facts.settings.words = Whitelist::All;
        Fixed(facts)
    }

    fn ask(word: &str, source: &Fixed) -> String {
        let word = Word::of(word.as_bytes().try_into().unwrap()).unwrap();
        let own = "127.0.0.1:40002".parse().unwrap();
        answer(word, [0, 0, 0, 0, 0, 0, 1, 2], own, source)
    }

    #[test]
    fn only_words_of_the_list_are_answered() {
        let source = Fixed(facts());
        assert!(ask("srvr", &source).starts_with("Zookeeper version: 3.9.5-lockkeeper-"));
        for word in ["ruok", "mntr", "isro", "stat"] {
            let told = format!("{word} is not executed because it is not in the whitelist.\n");
            assert_eq!(ask(word, &source), told);
        }
        let mut facts = facts();
        facts.settings.read_only = true;
        assert_eq!(ask("isro", &Fixed(facts)), "rw");
        assert_eq!(Whitelist::parse("*"), Ok(Whitelist::All));
        let two = Whitelist::Only(vec!["ruok".to_owned(), "mntr".to_owned()]);
        assert_eq!(Whitelist::parse("ruok, mntr"), Ok(two));
        assert!(Whitelist::parse("ruok,rock").unwrap_err().contains("\"rock\""));
    }

    #[test]
    fn what_is_no_word_is_a_length() {
        assert_eq!(Word::of(*b"ruok"), Some(Word::Ruok));
        for other in [*b"lsnr", *b"\0\0\0\x2d", *b"RUOK", [0xff, 0xf4, 0xff, 0xfd]] {
            assert_eq!(Word::of(other), None);
        }
    }

    #[test]
    fn without_a_majority() {
        let mut source = open();
        source.0.mode = None;
        assert_eq!(ask("ruok", &source), "imok");
        assert_eq!(ask("isro", &source), "null");
        assert!(ask("envi", &source).starts_with("Environment:\nzookeeper.version=3.9.5"));
        for word in ["srvr", "stat", "mntr", "cons", "dump", "conf", "wchs"] {
            let told = "This ZooKeeper instance is not currently serving requests\n";
            assert_eq!(ask(word, &source), told);
        }
        source.0.mode = Some(Mode::ReadOnly);
        assert_eq!(ask("isro", &source), "ro");
        let told = ask("srvr", &source);
        assert!(told.contains("\nREAD-ONLY mode; serving only read-only clients\nLatency"));
        assert!(told.contains("\nMode: read-only\n"), "{told}");
    }

    #[test]
    fn the_server() {
        let mut source = open();
        let version = format!("Zookeeper version: {VERSION}, built on 11/29/2026 00:00 GMT\n");
        let rest = "Latency min/avg/max: 0/2/31\nReceived: 101\nSent: 102\nConnections: 3\n\
                    Outstanding: 3\nZxid: 0x1f\nMode: standalone\nNode count: 5\n";
        assert_eq!(ask("srvr", &source), format!("{version}{rest}"));
        let clients = "Clients:\n /127.0.0.1:40000[0](queued=0,recved=0,sent=0)\n \
                       /127.0.0.1:40001[1](queued=2,recved=14,sent=15)\n \
                       /127.0.0.1:40002[0](queued=0,recved=1,sent=0)\n\n";
        assert_eq!(ask("stat", &source), format!("{version}{clients}{rest}"));
        source.0.mode = Some(Mode::Leader);
        let told = ask("srvr", &source);
        assert!(told.ends_with("Node count: 5\nProposal sizes last/min/max: -1/-1/-1\n"));
    }

    #[test]
    fn connections() {
        let expected = " /127.0.0.1:40000[0](queued=0,recved=0,sent=0)\n \
            /127.0.0.1:40001[1](queued=2,recved=14,sent=15,sid=0x1000000000000ab,lop=PING,\
            est=1700000000000,to=30000,lcxid=0xc,lzxid=0xffffffffffffffff,lresp=1700000000123,\
            llat=1,minlat=0,avglat=1,maxlat=9)\n \
            /127.0.0.1:40002[0](queued=0,recved=1,sent=0)\n\n";
        assert_eq!(ask("cons", &open()), expected);
        assert_eq!(ask("crst", &open()), "Connection stats reset.\n");
        assert_eq!(ask("srst", &open()), "Server stats reset.\n");
    }

    #[test]
    fn figures() {
        let mut source = open();
        let told = ask("mntr", &source);
        assert!(told.starts_with("zk_version\t3.9.5-lockkeeper-"), "{told}");
        assert!(told.lines().all(|line| line.matches('\t').count() == 1), "{told}");
        assert!(told.contains("\nzk_server_state\tstandalone\nzk_avg_latency\t2\n"), "{told}");
        assert!(!told.contains("zk_followers") && !told.contains("zk_peer_state"));
        source.0.mode = Some(Mode::Leader);
        (source.0.voters, source.0.voters_reached) = (3, 3);
        let told = ask("mntr", &source);
        for line in [
            "zk_peer_state\tleading - broadcast",
            "zk_synced_followers\t2",
            "zk_followers\t2",
            "zk_quorum_size\t3",
            "zk_znode_count\t5",
            "zk_max_client_response_size\t900",
            "zk_outstanding_tls_handshake\t0",
        ] {
            assert!(told.lines().any(|it| it == line), "{line} in {told}");
        }
    }

    #[test]
    fn configuration() {
        let mut source = open();
        let told = ask("conf", &source);
        assert!(told.starts_with("clientPort=2181\nsecureClientPort=-1\ndataDir=/var/lib/"));
        assert!(told.contains("\nminSessionTimeout=6000\nmaxSessionTimeout=60000\n"), "{told}");
        assert!(told.ends_with("\nserverId=1\n"), "{told}");
        source.0.voters = 3;
        source.0.members = "server.1=a:1:2:participant\nversion=0".to_owned();
        let told = ask("conf", &source);
        assert!(told.ends_with("peerType=0\nmembership: \nserver.1=a:1:2:participant\nversion=0"));
    }

    #[test]
    fn watches() {
        let source = open();
        let told = "2 connections watching 2 paths\nTotal watches:3\n";
        assert_eq!(ask("wchs", &source), told);
        assert_eq!(ask("wchc", &source), "0xab\n\t/a\n\t/b\n0xac\n\t/a\n\n");
        assert_eq!(ask("wchp", &source), "/a\n\t0xab\n\t0xac\n/b\n\t0xab\n\n");
    }

    #[test]
    fn sessions() {
        let told = ask("dump", &open());
        let expected = "SessionTracker dump:\nSession Sets (2)/(3):\n\
            2 expire at Tue Nov 14 22:13:21 UTC 2023:\n\t0xab\n\t0xac\n\
            1 expire at Tue Nov 14 22:13:27 UTC 2023:\n\t0xad\n\
            ephemeral nodes dump:\nSessions with Ephemerals (1):\n0xab:\n\t/a/b\n\t/a/c\n\
            Connections dump:\nConnections Sets (2)/(2):\n\
            1 expire at Tue Nov 14 22:13:21 UTC 2023:\n\
            \tip: /127.0.0.1:40000 sessionId: 0x0\n\
            1 expire at Tue Nov 14 22:13:51 UTC 2023:\n\
            \tip: /127.0.0.1:40001 sessionId: 0x1000000000000ab\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn the_rest() {
        let source = open();
        assert_eq!(ask("dirs", &source), "datadir_size: 4096\nlogdir_size: 4096\n");
        assert_eq!((ask("gtmk", &source), ask("stmk", &source)), ("306".into(), "258".into()));
        assert_eq!(ask("hash", &source), "");
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "Thu Jan 01 00:00:00 UTC 1970");
        assert_eq!(date(951_782_400_000), "Tue Feb 29 00:00:00 UTC 2000");
        assert_eq!(date(1_735_689_599_000), "Tue Dec 31 23:59:59 UTC 2024");
    }
}
