//! What an operator sees of the locks of ZooKeeper's clients.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::Value;

use crate::home::{Ended, Home, PATIENCE, Running, wait_for};

/// A session with a server, in ZooKeeper's own words: as much of them as making a znode takes.
struct Session {
    stream: TcpStream,
    id: u64,
}

impl Session {
    /// `None` while there is no leader: the server sends clients on.
    fn open(address: &str) -> Option<Self> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        // Protocol, newest zxid seen, time-out, no session yet, a password of zeros, not read-only.
        let mut greeting = [[0; 12].as_slice(), &40_000_u32.to_be_bytes(), &[0; 8]].concat();
        greeting.extend([&16_u32.to_be_bytes()[..], &[0; 16], &[0]].concat());
        send(&mut stream, &greeting)?;
        let answer = receive(&mut stream)?;
        let id = u64::from_be_bytes(answer.get(8..16)?.try_into().ok()?);
        (id != 0).then_some(Self { stream, id })
    }

    /// Makes a znode open to all, and returns its path.
    fn create(&mut self, path: &str, flags: u32) -> String {
        const XID: u32 = 1;
        const CREATE: u32 = 1;
        let text = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        let number = |number: u32| number.to_be_bytes().to_vec();
        let request = [
            [number(XID), number(CREATE), text(path), text("")].concat(),
            [number(1), number(31), text("world"), text("anyone"), number(flags)].concat(),
        ];
        send(&mut self.stream, &request.concat()).expect("it is sent");
        let answer = receive(&mut self.stream).expect("an answer");
        assert_eq!(answer[12..16], [0; 4], "{path} isn't made");
        String::from_utf8(answer[20..].to_vec()).expect("a path")
    }
}

fn send(stream: &mut TcpStream, message: &[u8]) -> Option<()> {
    let length = u32::try_from(message.len()).ok()?.to_be_bytes();
    stream.write_all(&[&length, message].concat()).ok()
}

fn receive(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut message = vec![0; usize::try_from(u32::from_be_bytes(length)).ok()?];
    stream.read_exact(&mut message).ok()?;
    Some(message)
}

/// A server for both kinds of clients, its URL, and where ZooKeeper's go.
fn start(home: &Home) -> (Running, String, String) {
    let line = ["dev", "--listen", "127.0.0.1:0", "--zookeeper", "127.0.0.1:0"];
    let server = home.spawn(&line);
    let told = |start: &str| {
        wait_for(start, || {
            let said = server.said();
            let mut lines = said.lines().map(str::trim);
            lines.find_map(|line| line.strip_prefix(start)).map(str::to_owned)
        })
    };
    let (url, zookeeper) = (told("export LOCKKEEPER_URL="), told("For ZooKeeper clients: "));
    (server, url, zookeeper)
}

#[test]
fn locks_of_zookeepers_clients_are_shown_and_left_to_them() {
    let home = Home::new();
    let (mut server, url, zookeeper) = start(&home);
    let run = |line: &[&str]| Ended::run(home.command(line).args(["--url", &url]));
    let json = |line: &[&str]| -> Value {
        let ended = run(&[line, &["-o", "json"]].concat());
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("no JSON: {ended:?}"))
    };
    let mut first = wait_for("a session", || Session::open(&zookeeper));
    let mut second = Session::open(&zookeeper).expect("a session");
    first.create("/jobs", 0);
    first.create("/jobs/night\u{202e}ly", 0);
    let path = "/jobs/night\u{202e}ly";
    let held = first.create(&format!("{path}/_c_f00d-lock-"), 3);
    second.create(&format!("{path}/_c_beef-lock-"), 3);

    let who = json(&["who", path]);
    let (hold, waiter) = (&who["holders"][0], &who["waiters"][0]);
    assert_eq!((&who["kind"], &who["lock"]), (&"zookeeper".into(), &path.into()));
    assert_eq!(hold["session"], format!("{:016x}", first.id));
    assert_eq!(format!("{path}/{}", hold["znode"].as_str().unwrap()), held);
    assert_eq!(hold["owner"]["host"], "127.0.0.1");
    assert_eq!(waiter["session"], format!("{:016x}", second.id));
    let (holder, waits) = (format!("0x{:x}", first.id), format!("0x{:x}", second.id));
    let shown = run(&["who", path]).stdout;
    for part in [
        "/jobs/night\\u{202e}ly is a lock of ZooKeeper's clients\n",
        "is held by 127.0.0.1\n",
        "  in line since ",
        &format!("  token          {}\n", hold["token"]),
        "  mode           exclusive\n",
        &format!("  session        {holder}\n"),
        "  znode          _c_f00d-lock-0000000000\n",
        "1 waits for it\n",
        &format!("{waits}  _c_beef-lock-0000000001\n"),
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }

    let locks = json(&["ls"]);
    assert_eq!((&locks["locks"][0]["lock"], &locks["more"]), (&path.into(), &false.into()));
    let table = run(&["ls", "/jobs"]).stdout;
    let row = table.lines().nth(1).expect("a lock");
    assert!(row.starts_with("/jobs/night\\u{202e}ly") && row.ends_with("zookeeper"), "{table}");
    let shown = run(&["session", "show", &holder]).stdout;
    assert!(shown.contains("held, token"), "{shown}");

    let token = hold["token"].to_string();
    let end = format!("lockkeeper session end {holder}");
    let unlock = ["unlock", path, "--if-token", &token, "--yes"];
    run(&unlock).assert(64, &["can't be asked", &end, "[LK-USAGE]"]);
    run(&["session", "end", &holder, "--yes", "--now"]).assert(0, &[]);
    wait_for("the lock passes on", || {
        let lock = json(&["who", path]);
        (lock["holders"][0]["session"] == waiter["session"]).then_some(())
    });
    server.signal(Signal::TERM);
    server.assert(0, &[]);
}
