//! Thousands of strangers at once: they are dropped by deadline, and nobody else notices.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_wire::native::{self as wire, Release, request::Body as Asks};

use crate::harness::{Client, Running, acquire, fresh_id, open};

/// Longer than anything here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a stranger says at first; the dribbling ones go on with one byte after the other.
struct Stranger {
    stream: TcpStream,
    dribbles: bool,
}

fn strangers(server: &Running, count: usize, first: &[u8], dribbles: bool) -> Vec<Stranger> {
    let connect = |_| {
        let mut stream = server.connect_silently();
        stream.write_all(first).unwrap();
        stream.set_nonblocking(true).unwrap();
        Stranger { stream, dribbles }
    };
    (0..count).map(connect).collect()
}

impl Stranger {
    /// Dribbles on, and tells whether the server has hung up.
    fn is_dropped(&mut self) -> bool {
        if self.dribbles && self.stream.write_all(b"x").is_err() {
            return true;
        }
        let mut said = [0; 1_024];
        loop {
            match self.stream.read(&mut said) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
    }
}

fn greeting() -> Vec<u8> {
    let mut greeting = BytesMut::new();
    wire::greet(&mut greeting);
    greeting.to_vec()
}

/// The middle and the 99th of a hundred latencies of a lock and its release.
fn latencies(client: &mut Client, mut id: u64) -> [Duration; 2] {
    let mut pairs: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        let asked = Instant::now();
        client.acquire(id, "unaffected");
        client.ask(id + 1, Asks::Release(Release { acquire: id }));
        client.answer(id + 1);
        pairs.push(asked.elapsed());
        id += 2;
    }
    pairs.sort();
    [pairs[pairs.len() / 2], pairs[pairs.len() * 99 / 100]]
}

#[test]
#[expect(clippy::print_stdout, reason = "how fast it was is for people: see docs/performance.md")]
fn half_open_and_silent_strangers_are_dropped_by_deadline() {
    let server = Running::start_with(|config| {
        config.handshake_timeout = Duration::from_secs(4);
        config.frame_timeout = Duration::from_secs(4);
        config.idle_timeout = Duration::from_secs(8);
    });
    let mut client = server.connect();
    client.ask(1, open(fresh_id(), 60_000));
    client.session_state(1);
    let mut watcher = server.connect();
    watcher.ask(1, Asks::Watch(wire::Watch { prefix: "unaffected".to_owned() }));
    watcher.answer(1);
    let calm = latencies(&mut client, 1_000);

    let greeted = greeting();
    let half_a_frame = [&greeted[..], &[0, 0, 0xff, 0, 1, 2, 3]].concat();
    let half_a_request = b"GET /livez HTTP/1.1\r\nHost: a";
    let mut crowd = strangers(&server, 1_500, b"", false);
    crowd.extend(strangers(&server, 500, &greeted, false));
    crowd.extend(strangers(&server, 500, &greeted[..5], false));
    crowd.extend(strangers(&server, 500, &half_a_frame, false));
    crowd.extend(strangers(&server, 500, &half_a_frame, true));
    crowd.extend(strangers(&server, 500, half_a_request, true));
    let during = latencies(&mut client, 2_000);
    let until = Instant::now() + PATIENCE;
    while !crowd.is_empty() {
        assert!(Instant::now() < until, "{} strangers were not dropped", crowd.len());
        crowd.retain_mut(|stranger| !stranger.is_dropped());
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("lock and release, p50 and p99: calm {calm:?}, beside 4,000 strangers {during:?}");

    // Those who had a session or a watch were not cut.
    client.acquire(3_000, "still-here");
    client.ask(3_001, acquire("unaffected"));
    client.answer(3_001);
    while watcher.receive().expect("the watch goes on").id != 1 {}
    server.assert_serves();
}

#[test]
fn a_second_http_request_may_not_dribble_either() {
    let server = Running::start_with(|config| config.frame_timeout = Duration::from_millis(300));
    // The answer to the first request goes; the second one never ends, and its bytes keep coming.
    let mut stream = server.connect_silently();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /metrics HTTP/1.1\r\n").unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut stranger = Stranger { stream, dribbles: true };
    let until = Instant::now() + PATIENCE;
    while !stranger.is_dropped() {
        assert!(Instant::now() < until, "it was not dropped");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.assert_serves();
}
