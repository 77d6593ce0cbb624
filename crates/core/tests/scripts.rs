//! Golden scripts: what the state machine does, told in the words of locks and sessions.
//!
//! A script in `testdata` is a list of blocks. Each has commands, a line `---`, and what came of
//! them; a blank line ends it. The answer to a command stands first, and what happened besides is
//! indented below it. `UPDATE=1 cargo test -p lockkeeper-core --test scripts` writes the outcomes
//! anew; the difference is then read as carefully as code.
//!
//! ```text
//! @250                                     from here on the stamp is 250 ms
//! session a opens [secret=1] [ttl=10000] [host=… user=… program=… purpose=… labels=COUNT]
//! session a ends [closed|expired|revoked|forced|rebooted]
//! session a is revoked
//! a#1 acquires NAME [shared|permits=2/5] [nowait] [for=…] [floor=1]
//! a acquires NAME …                        as every request: without #1, the next number
//! a#2 reenters NAME token=1
//! a#2 releases 1
//! a#2 cancels 1
//! NAME is revoked token=1 [now]
//! session a resumes connection=7 [secret=1] [ttl=10000]
//! a does OP [; OP]… [as=jo] [connection=7] [enforce]
//!   create PATH [data=…] [null] [seq] [ephemeral] [container] [ttl=5] [acl=cdrwa@jo+r@anyone]
//!   delete PATH [version=1] | set PATH … | acl PATH … | check PATH … | fail ERROR
//! collect PATH
//! silence ends
//! restore [silent]
//! reload                                   through a snapshot
//! show node PATH | children PATH | ephemerals a | collectable | tree
//! show NAME | session a | locks [PREFIX] [after=NAME] [max=10] | sessions | counts
//! repeat 10 COMMAND                        with {i} = 1, 2, …; tells only of the last
//! ```
//!
//! A word with odd characters stands in quotes, with Rust's escapes; `"x"*1025` repeats it. A floor
//! that isn't given is 1: every answer is kept.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

use lockkeeper_core::{
    AclRef, ClusterId, Command, EndReason, Event, IdRef, Mode, NodeAcl, NodeKind, Number, OwnerRef,
    Refusal, Reply, Request, Secret, SessionId, Stamp, Stat, StateMachine, Token, TreeError,
    TreeOp, TreeReply,
};

#[test]
fn every_script_tells_what_happens() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let scripts = scripts_below(&root);
    assert!(!scripts.is_empty(), "no scripts in {}", root.display());
    let is_update = env::var_os("UPDATE").is_some();
    let mut differing = Vec::new();
    for path in scripts {
        let text = fs::read_to_string(&path).unwrap();
        let told = Stage::default().play(&text);
        if told == text {
            continue;
        }
        if is_update {
            fs::write(&path, &told).unwrap();
        }
        let line = text.lines().zip(told.lines()).take_while(|(was, is)| was == is).count() + 1;
        let happened = told.lines().nth(line - 1).unwrap_or("(the end)").to_owned();
        differing.push(format!("{}:{line}: happened: {happened}", path.display()));
    }
    assert!(is_update || differing.is_empty(), "UPDATE=1 accepts:\n{}", differing.join("\n"));
}

fn scripts_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(scripts_below(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Where a script is played.
#[derive(Default)]
struct Stage {
    machine: StateMachine,
    now_ms: u64,
    /// By session: the newest number used.
    numbers: BTreeMap<char, u64>,
}

impl Stage {
    /// The script again, with what really happened behind each `---`.
    fn play(&mut self, script: &str) -> String {
        let mut told = String::new();
        for block in script.split("\n\n") {
            let block = block.trim_matches('\n');
            let (commands, has_outcome) = match block.split_once("\n---") {
                Some((commands, _)) => (commands, true),
                None => (block, false),
            };
            if !told.is_empty() {
                told.push('\n');
            }
            let mut outcome = String::new();
            for line in commands.lines() {
                writeln!(told, "{line}").unwrap();
                if !line.starts_with('#') {
                    outcome += &self.perform(line);
                    self.machine.check().unwrap_or_else(|broken| panic!("{line}: {broken}"));
                }
            }
            if has_outcome {
                write!(told, "---\n{outcome}").unwrap();
            } else {
                assert_eq!(outcome, "", "a block with an outcome needs a `---`: {block}");
            }
        }
        told
    }

    fn perform(&mut self, line: &str) -> String {
        let words = words_of(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            [at] if at.starts_with('@') => {
                self.now_ms = at[1..].parse().expect("milliseconds");
                String::new()
            }
            ["repeat", count, ..] => {
                let command = line.splitn(3, ' ').nth(2).unwrap();
                let count: usize = count.parse().unwrap();
                let each =
                    (1..=count).map(|i| self.perform(&command.replace("{i}", &i.to_string())));
                each.last().unwrap_or_default()
            }
            ["reload"] => {
                let mut bytes = Vec::new();
                self.machine.write_snapshot(&mut bytes).unwrap();
                self.machine = StateMachine::read_snapshot(&mut &bytes[..]).unwrap();
                String::new()
            }
            ["restore", ref how @ ..] => {
                self.machine = self.machine.restored(ClusterId(2), how == ["silent"]);
                format!("revision {}\n", self.machine.revision().0)
            }
            ["show", ref what @ ..] => self.show(what),
            ["collect", path] => self.apply(path, &Command::CollectNode { path }),
            [who, "does", ref ops @ ..] => self.tree_command(letter(who), ops),
            ["silence", "ends"] => self.apply("silence", &Command::EndSilence),
            ["session", name, ref what @ ..] => self.session_command(letter(name), what),
            [name, "is", "revoked", ref how @ ..] => {
                let if_token = Token(option(how, "token").expect("token=").parse().unwrap());
                let now = how.contains(&"now");
                self.apply(name, &Command::RevokeHold { lock: name, if_token, now })
            }
            [who, verb, what, ref how @ ..] => self.request(who, verb, what, how),
            _ => panic!("no command: {line}"),
        }
    }

    fn session_command(&mut self, name: char, what: &[&str]) -> String {
        let session = id(name);
        let label = format!("session {name}");
        match what {
            ["opens", how @ ..] => {
                self.numbers.remove(&name);
                let secret = option(how, "secret").unwrap_or("1").parse().unwrap();
                let ttl_ms = option(how, "ttl").unwrap_or("10000").parse().unwrap();
                let label_count: usize = option(how, "labels").unwrap_or("0").parse().unwrap();
                let owner = OwnerRef {
                    host: option(how, "host").unwrap_or_default(),
                    pid: 0,
                    user: option(how, "user").unwrap_or_default(),
                    program: option(how, "program").unwrap_or_default(),
                    purpose: option(how, "purpose").unwrap_or_default(),
                    labels: vec![("team", option(how, "team").unwrap_or("blue")); label_count],
                };
                let secret = Secret([secret; 16]);
                self.apply(&label, &Command::OpenSession { session, secret, ttl_ms, owner })
            }
            ["ends", how @ ..] => {
                let reason = match how {
                    [] | ["closed"] => EndReason::Closed,
                    ["expired"] => EndReason::Expired,
                    ["revoked"] => EndReason::Revoked,
                    ["forced"] => EndReason::Forced,
                    ["rebooted"] => EndReason::Rebooted,
                    _ => panic!("no reason: {how:?}"),
                };
                self.apply(&label, &Command::EndSession { session, reason })
            }
            ["resumes", how @ ..] => {
                let connection = option(how, "connection").unwrap().parse().unwrap();
                let secret = option(how, "secret").unwrap_or("1").parse().unwrap();
                let ttl_ms = option(how, "ttl").unwrap_or("10000").parse().unwrap();
                let secret = Secret([secret; 16]);
                let resume = Command::ResumeSession { session, secret, ttl_ms, connection };
                self.apply(&label, &resume)
            }
            ["is", "revoked"] => self.apply(&label, &Command::RevokeSession { session }),
            _ => panic!("no command for a session: {what:?}"),
        }
    }

    fn tree_command(&mut self, name: char, words: &[&str]) -> String {
        let anyone = option(words, "as").map(|id| IdRef { scheme: "digest", id });
        let ops = words.split(|word| *word == ";").map(tree_op).collect();
        let command = Command::Tree {
            session: id(name),
            connection: option(words, "connection").unwrap_or("0").parse().unwrap(),
            ids: anyone.into_iter().collect(),
            enforce_quota: words.contains(&"enforce"),
            ops,
        };
        self.apply(&name.to_string(), &command)
    }

    fn request(&mut self, who: &str, verb: &str, what: &str, how: &[&str]) -> String {
        let (name, number) = match who.split_once('#') {
            Some((name, number)) => (letter(name), Some(number.parse().unwrap())),
            None => (letter(who), None),
        };
        let newest = self.numbers.entry(name).or_default();
        let number = number.unwrap_or(*newest + 1);
        *newest = number.max(*newest);
        let acquire = || Number(what.parse().expect("the number of an acquire"));
        let request = match verb {
            "acquires" => Request::Acquire {
                lock: what,
                mode: mode(how),
                wait: !how.contains(&"nowait"),
                purpose: option(how, "for").unwrap_or_default(),
            },
            "reenters" => {
                let token = Token(option(how, "token").expect("token=").parse().unwrap());
                Request::Reenter { lock: what, token }
            }
            "releases" => Request::Release { acquire: acquire() },
            "cancels" => Request::Cancel { acquire: acquire() },
            _ => panic!("no request: {verb}"),
        };
        let floor = Number(option(how, "floor").unwrap_or("1").parse().unwrap());
        let (session, number) = (id(name), Number(number));
        let label = format!("{name}#{}", number.0);
        self.apply(&label, &Command::Request { session, number, floor, request })
    }

    /// Applies a command, as the log carries it, and tells what happened.
    fn apply(&mut self, label: &str, command: &Command<'_>) -> String {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let decoded = Command::decode(&bytes).unwrap();
        assert_eq!(
            (&decoded.command, decoded.rest),
            (command, &[][..]),
            "the log tells another tale"
        );

        let mut events = Vec::new();
        let reply = self.machine.apply(Stamp(self.now_ms), command, &mut events);
        let mut told = format!("{}: {}\n", label.escape_debug(), reply_told(&reply));
        for event in events.iter().take(EVENTS_TOLD_MAX) {
            writeln!(told, "  {}", shortened(&event_told(event))).unwrap();
        }
        if events.len() > EVENTS_TOLD_MAX {
            writeln!(told, "  … {} more", events.len() - EVENTS_TOLD_MAX).unwrap();
        }
        told
    }

    /// `None` if this isn't of the tree.
    fn show_tree(&self, what: &[&str]) -> Option<String> {
        let mut told = String::new();
        match what {
            ["node", path] => {
                let Some(view) = self.machine.tree().node(path) else {
                    return Some(format!("no znode {path}\n"));
                };
                let data = view.data.map(|data| String::from_utf8_lossy(data).into_owned());
                let acl: Vec<_> = view.acl.iter().map(acl_told).collect();
                let kind = snake_case(&view.kind);
                writeln!(told, "{} {data:?} {kind} {}", view.path, acl.join("+")).unwrap();
                writeln!(told, " {}", stat_told(&view.stat)).unwrap();
            }
            ["children", path] => {
                let mut names: Vec<_> = self.machine.tree().children(path).collect();
                names.sort_unstable();
                writeln!(told, "{}", names.join(" ")).unwrap();
            }
            ["ephemerals", name] => {
                for path in self.machine.tree().ephemerals(id(letter(name))) {
                    writeln!(told, "{path}").unwrap();
                }
            }
            ["collectable"] => {
                for path in self.machine.tree().collectable(Stamp(self.now_ms), 10) {
                    writeln!(told, "{path}").unwrap();
                }
            }
            ["tree"] => {
                let tree = self.machine.tree();
                let (all, below) = (tree.len(), tree.descendants("/zookeeper").count());
                let (ephemeral, bytes) = (tree.ephemeral_count(), tree.data_bytes());
                writeln!(told, "{all} znodes, {ephemeral} ephemeral, {bytes} bytes; {below}")
                    .unwrap();
            }
            _ => return None,
        }
        Some(told)
    }

    fn show(&self, what: &[&str]) -> String {
        if let Some(told) = self.show_tree(what) {
            return told;
        }
        let mut told = String::new();
        match what {
            ["counts"] => {
                let counts = self.machine.counts();
                writeln!(told, "{counts:?}").unwrap();
            }
            ["sessions"] => {
                for view in self.machine.sessions(None, 100) {
                    writeln!(told, "session {} items={}", who(view.id), view.item_count).unwrap();
                }
            }
            ["session", name] => {
                let Some(view) = self.machine.session(id(letter(name))) else {
                    return format!("no session {name}\n");
                };
                let lease = self.machine.lease(view.id).unwrap();
                writeln!(told, "session {name} ttl={}ms lapsing={}", view.ttl_ms, lease.is_revoked)
                    .unwrap();
                for (number, hold) in &view.holds {
                    let mark = if hold.is_revoked { " revoked" } else { "" };
                    let (lock, token) = (&hold.lock, hold.token);
                    writeln!(told, "  #{} holds {lock} token={token}{mark}", number.0).unwrap();
                }
                for waiter in &view.waits {
                    let (number, lock, place) = (waiter.number.0, &waiter.lock, waiter.place);
                    writeln!(told, "  #{number} waits for {lock} place={place}").unwrap();
                }
            }
            ["locks", how @ ..] => {
                let prefix = how.first().filter(|word| !word.contains('=')).unwrap_or(&"");
                let max = option(how, "max").unwrap_or("10").parse().unwrap();
                for view in self.machine.locks(prefix, option(how, "after"), max) {
                    let (holds, waiters) = (view.hold_count, view.waiter_count);
                    writeln!(told, "{} holds={holds} waiters={waiters}", view.name).unwrap();
                }
            }
            [name] => {
                let Some(view) = self.machine.lock(name, 100) else {
                    return format!("{name} is free\n");
                };
                for hold in &view.holds {
                    let (holder, number) = (who(hold.session), hold.number.0);
                    let (mode, token) = (mode_told(hold.mode), hold.token);
                    let since = hold.since.0;
                    let purpose = purpose_told(&hold.purpose);
                    writeln!(
                        told,
                        "{holder}#{number} holds {mode} token={token} since={since}ms{purpose}"
                    )
                    .unwrap();
                }
                for waiter in &view.waiters {
                    let (holder, number, place) =
                        (who(waiter.session), waiter.number.0, waiter.place);
                    let mode = mode_told(waiter.mode);
                    let purpose = purpose_told(&waiter.purpose);
                    writeln!(told, "{holder}#{number} waits {mode} place={place}{purpose}")
                        .unwrap();
                }
            }
            _ => panic!("nothing to show: {what:?}"),
        }
        told
    }
}

fn reply_told(reply: &Reply) -> String {
    match reply {
        Reply::Done => "done".to_owned(),
        Reply::Granted { token } => format!("granted token={token}"),
        Reply::Queued { place } => format!("queued place={place}"),
        Reply::Released { token, remaining: 0 } => format!("released token={token}"),
        Reply::Released { token, remaining } => {
            format!("released token={token}, {remaining} remaining")
        }
        Reply::Refused(Refusal::Tree { index, error }) => {
            format!("refused #{index}: {}", snake_case(error))
        }
        Reply::Refused(refusal) => format!("refused {}", snake_case(refusal)),
        Reply::Tree(replies) => replies.iter().map(tree_reply_told).collect::<Vec<_>>().join("; "),
    }
}

fn event_told(event: &Event) -> String {
    match event {
        Event::SessionOpened { session } => format!("session {} opened", who(*session)),
        Event::SessionEnded { session, reason } => {
            format!("session {} ended: {}", who(*session), snake_case(reason))
        }
        Event::SessionRevoked { session } => format!("session {} asked to end", who(*session)),
        Event::Queued { lock, session, number, place } => {
            format!("{lock} queued {}#{} place={place}", who(*session), number.0)
        }
        Event::Granted { lock, session, number, token, mode, waited_ms } => {
            let waited = waited_ms.map(|waited| format!(" waited={waited}ms")).unwrap_or_default();
            let mode = mode_told(*mode);
            format!("{lock} granted {}#{} {mode} token={token}{waited}", who(*session), number.0)
        }
        Event::Released { lock, session, number, token, held_ms } => {
            format!("{lock} released {}#{} token={token} held={held_ms}ms", who(*session), number.0)
        }
        Event::Cancelled { lock, session, number, ended, waited_ms: _ } => {
            let ended = ended.map(|ended| format!(": {}", snake_case(&ended))).unwrap_or_default();
            format!("{lock} cancelled {}#{}{ended}", who(*session), number.0)
        }
        Event::Revoked { lock, session, number, token } => {
            format!("{lock} asked back from {}#{} token={token}", who(*session), number.0)
        }
        Event::Lost { lock, session, number, token, held_ms, reason } => {
            let (who, number, reason) = (who(*session), number.0, snake_case(reason));
            format!("{lock} lost {who}#{number} token={token} held={held_ms}ms: {reason}")
        }
        Event::SessionMoved { session, connection } => {
            format!("session {} moved to connection {connection}", who(*session))
        }
        Event::Node { path, change, session, zxid, acl, acl_above } => {
            let owner = session.map(|owner| format!(" of {}", who(owner))).unwrap_or_default();
            let lists = list_told("acl", Some(acl)) + &list_told("above", acl_above.as_ref());
            format!("{path} {}{owner} zxid={}{lists}", snake_case(change), zxid.0)
        }
    }
}

fn tree_reply_told(reply: &TreeReply) -> String {
    match reply {
        TreeReply::Created { path, stat } => format!("created {path}{}", stat_told(stat)),
        TreeReply::Deleted => "deleted".to_owned(),
        TreeReply::DataSet { stat } => format!("set{}", stat_told(stat)),
        TreeReply::AclSet { stat } => format!("acl set{}", stat_told(stat)),
        TreeReply::Checked => "checked".to_owned(),
    }
}

/// All that isn't 0.
fn stat_told(stat: &Stat) -> String {
    let mut told = String::new();
    let mut figure = |name: &str, value: i128| {
        if value != 0 {
            write!(told, " {name}={value}").unwrap();
        }
    };
    figure("czxid", stat.czxid.0.into());
    figure("mzxid", stat.mzxid.0.into());
    figure("pzxid", stat.pzxid.0.into());
    figure("ctime", stat.ctime.0.into());
    figure("mtime", stat.mtime.0.into());
    figure("version", stat.version.into());
    figure("cversion", stat.cversion.into());
    figure("aversion", stat.aversion.into());
    figure("length", stat.data_length.into());
    figure("children", stat.num_children.into());
    if let Some(owner) = stat.ephemeral_owner {
        write!(told, " owner={}", who(owner)).unwrap();
    }
    told
}

/// Without the middle of what is very long.
fn shortened(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= 120 {
        return text.to_owned();
    }
    letters[..20].iter().chain(&['…']).chain(&letters[letters.len() - 60..]).collect()
}

fn mode_told(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits { take, of } => format!("permits={take}/{of}"),
    }
}

fn purpose_told(purpose: &str) -> String {
    if purpose.is_empty() { String::new() } else { format!(" for {purpose:?}") }
}

/// `StaleToken { current: Some(Token(3)) }` as `stale_token { current: some(token(3)) }`.
fn snake_case(value: &impl Debug) -> String {
    let mut told = String::new();
    let mut previous = ' ';
    for letter in format!("{value:?}").chars() {
        if letter.is_ascii_uppercase() && previous.is_ascii_lowercase() {
            told.push('_');
        }
        told.push(letter.to_ascii_lowercase());
        previous = letter;
    }
    told
}

fn tree_op<'a>(words: &[&'a str]) -> TreeOp<'a> {
    let [verb, path, how @ ..] = words else { panic!("no operation: {words:?}") };
    let version = option(how, "version").unwrap_or("-1").parse().unwrap();
    let data = Some(option(how, "data").unwrap_or_default().as_bytes());
    let data = data.filter(|_| !how.contains(&"null"));
    let acl = acl(option(how, "acl").unwrap_or("cdrwa@anyone"));
    match *verb {
        "create" => {
            let ttl = option(how, "ttl").map(|ms| NodeKind::Ttl { ms: ms.parse().unwrap() });
            let named = |word, kind| how.contains(&word).then_some(kind);
            let kind = ttl.or_else(|| named("ephemeral", NodeKind::Ephemeral));
            let kind = kind.or_else(|| named("container", NodeKind::Container));
            let kind = kind.unwrap_or(NodeKind::Persistent);
            TreeOp::Create { path, data, acl, kind, sequential: how.contains(&"seq") }
        }
        "delete" => TreeOp::Delete { path, version },
        "set" => TreeOp::SetData { path, data, version },
        "acl" => TreeOp::SetAcl { path, acl, version },
        "check" => TreeOp::Check { path, version },
        "fail" => TreeOp::Fail(match *path {
            "bad_arguments" => TreeError::BadArguments,
            "unimplemented" => TreeError::Unimplemented,
            _ => panic!("no error: {path}"),
        }),
        _ => panic!("no operation: {verb}"),
    }
}

/// `none`, or entries such as `r@anyone` and `cdrwa@jo`, who is known by digest.
fn acl(list: &str) -> Vec<AclRef<'_>> {
    let entry = |entry: &'_ str| -> (i32, usize) {
        let (letters, _) = entry.split_once('@').expect("PERMS@WHO");
        let bit = |letter| 1 << "rwcda".find(letter).expect("one of rwcda");
        (letters.chars().map(bit).sum(), letters.len() + 1)
    };
    let entries = list.split('+').filter(|entry| *entry != "none");
    let refs = entries.map(|text| {
        let (perms, at) = entry(text);
        let id = match &text[at..] {
            "anyone" => IdRef { scheme: "world", id: "anyone" },
            id => IdRef { scheme: "digest", id },
        };
        AclRef { perms, id }
    });
    refs.collect()
}

/// Unless it lets anyone do everything.
fn list_told(name: &str, acl: Option<&NodeAcl>) -> String {
    let Some(acl) = acl.filter(|acl| !acl.is_open()) else { return String::new() };
    let entries: Vec<_> = acl.iter().map(acl_told).collect();
    format!(" {name}={}", entries.join("+"))
}

fn acl_told(entry: AclRef<'_>) -> String {
    let letters: String = "rwcda"
        .chars()
        .enumerate()
        .filter(|(bit, _)| entry.perms >> bit & 1 == 1)
        .map(|(_, c)| c)
        .collect();
    format!("{letters}@{}", entry.id.id)
}

fn mode(how: &[&str]) -> Mode {
    if let Some(permits) = option(how, "permits") {
        let (take, of) = permits.split_once('/').expect("permits=TAKE/OF");
        return Mode::Permits { take: take.parse().unwrap(), of: of.parse().unwrap() };
    }
    if how.contains(&"shared") { Mode::Shared } else { Mode::Exclusive }
}

fn option<'a>(how: &[&'a str], key: &str) -> Option<&'a str> {
    how.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn letter(name: &str) -> char {
    name.parse().expect("a session's name is one letter")
}

fn id(name: char) -> SessionId {
    SessionId(u64::from(u32::from(name)))
}

fn who(id: SessionId) -> char {
    u32::try_from(id.0).ok().and_then(char::from_u32).expect("sessions are letters")
}

/// Splits at spaces outside quotes, and resolves quotes, escapes and repetitions.
fn words_of(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let mut is_quoted = false;
        let end = rest.find(|letter| {
            is_quoted ^= letter == '"';
            letter == ' ' && !is_quoted
        });
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        words.push(unquoted(word));
        rest = after.trim_start();
    }
    words
}

fn unquoted(word: &str) -> String {
    let Some((before, quoted)) = word.split_once('"') else { return word.to_owned() };
    let (inside, after) = quoted.rsplit_once('"').expect("quotes come in pairs");
    let count = after.strip_prefix('*').map_or(1, |count| count.parse().unwrap());
    let mut text = String::new();
    let mut letters = inside.chars();
    while let Some(letter) = letters.next() {
        text.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some('u') => {
                    let digits: String =
                        letters.by_ref().skip(1).take_while(|d| *d != '}').collect();
                    char::from_u32(u32::from_str_radix(&digits, 16).unwrap()).unwrap()
                }
                other => panic!("no escape: {other:?}"),
            },
            plain => plain,
        });
    }
    format!("{before}{}", text.repeat(count))
}

/// Of one command.
const EVENTS_TOLD_MAX: usize = 8;
