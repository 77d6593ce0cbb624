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

/// How many times the short form: `LOCKKEEPER_CROWD=100` for 20,000 sessions and 100,000 waiters.
fn crowd() -> u64 {
    std::env::var("LOCKKEEPER_CROWD").map_or(1, |crowd| crowd.parse().expect("a number"))
}

/// Sessions of clients that go away without a word, each with what `asks` wants.
fn gone(server: &Running, count: u64, ttl_ms: u32, asks: impl Fn(u64) -> Vec<Asks>) {
    for number in 0..count {
        let mut client = server.connect();
        client.ask(1, open(fresh_id(), ttl_ms));
        client.session_state(1);
        let asks = asks(number);
        let last = asks.len() as u64 + 1;
        for (id, asks) in (2..).zip(asks) {
            client.ask(id, asks);
        }
        for id in 2..=last {
            let answer = client.answer(id);
            assert!(
                matches!(
                    answer,
                    wire::response::Body::Granted(_) | wire::response::Body::Queued(_)
                ),
                "{answer:?}"
            );
        }
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "how fast it was is for people: see docs/performance.md")]
fn sessions_that_expire_together_free_what_they_held_and_waited_for() {
    let server = Running::start();
    let (sessions, waiting) = (200 * crowd(), 10 * crowd());
    // Long enough for all to be there before the first one ends.
    let ttl_ms = u32::try_from(6_000 + 1_000 * crowd()).unwrap();
    let mut client = server.connect();
    client.ask(1, open(fresh_id(), 600_000));
    client.session_state(1);
    client.acquire(2, "queue");
    let calm = latencies(&mut client, 1_000);
    gone(&server, sessions, ttl_ms, |number| vec![acquire(&format!("held/{number}"))]);
    gone(&server, waiting, ttl_ms, |_| vec![acquire("queue"); 100]);
    let held = Instant::now();

    // Whoever waits for the first and for the last of them gets both, and only by their end.
    let mut heir = server.connect();
    heir.ask(1, open(fresh_id(), 600_000));
    heir.session_state(1);
    heir.ask(2, acquire(&format!("held/{}", sessions - 1)));
    let answer = heir.answer(2);
    let mut granted = matches!(answer, wire::response::Body::Granted(_));
    heir.stream.set_nonblocking(true).unwrap();
    let mut during = Vec::new();
    let mut id = 2_000;
    while !granted || during.is_empty() {
        assert!(held.elapsed() < 10 * PATIENCE, "the sessions don't end");
        let asked = Instant::now();
        // It may take many: the floor goes with them.
        let mut ask = |id, floor, body| {
            client.send(&wire::Request { id, floor, body: Some(body) });
            client.answer(id);
        };
        ask(id, id, acquire("unaffected"));
        ask(id + 1, id + 1, Asks::Release(Release { acquire: id }));
        during.push(asked.elapsed());
        id += 2;
        granted = granted || heir.stream.read(&mut [0; 64]).is_ok_and(|read| read > 0);
    }
    // The waiters' sessions are the newest: the line ends with them.
    let queue = Asks::Acquire(wire::Acquire { lock: "queue".to_owned(), ..Default::default() });
    client.send(&wire::Request {
        id,
        floor: id,
        body: Some(Asks::Release(Release { acquire: 2 })),
    });
    client.answer(id);
    let mut next = server.connect();
    next.ask(1, open(fresh_id(), 600_000));
    next.session_state(1);
    let until = Instant::now() + PATIENCE;
    for id in 2.. {
        assert!(Instant::now() < until, "the dead still stand in line");
        next.ask(id, queue.clone());
        match next.answer(id) {
            wire::response::Body::Granted(_) => break,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    during.sort();
    let last = during.len() - 1;
    println!(
        "lock and release, p50 and p99: calm {calm:?}, beside {sessions} sessions and {} waiters \
         that expire [{:?}, {:?}], at most {:?}",
        100 * waiting,
        during[last / 2],
        during[last * 99 / 100],
        during[last]
    );
    server.assert_serves();
}

#[test]
fn a_full_queue_refuses_what_takes_and_takes_what_frees() {
    let server = Running::start_with(|config| config.node.queue_bytes_max = 16 << 10);
    let mut client = server.connect();
    client.ask(1, open(fresh_id(), 60_000));
    client.session_state(1);
    client.acquire(2, "held");
    client.ask(3, acquire("held"));
    client.answer(3);
    // In one piece, so that the queue is full before anything is applied.
    let mut burst = BytesMut::new();
    let mut say = |id, body| {
        let request = wire::Request { id, floor: 1, body: Some(body) };
        wire::encode(&request, wire::REQUEST_BYTES_MAX, &mut burst).unwrap();
    };
    let takes = 10..50;
    takes.clone().for_each(|id| say(id, acquire(&format!("{}/{id}", "x".repeat(1_000)))));
    say(50, Asks::Cancel(wire::Cancel { acquire: 3 }));
    say(51, Asks::Release(Release { acquire: 2 }));
    client.stream.write_all(&burst).unwrap();

    let (mut granted, mut refused, mut freed) = (0, Vec::new(), 0);
    for _ in 10..=51 {
        let response = client.receive().expect("the connection is open");
        match response.body.unwrap() {
            wire::response::Body::Granted(_) => granted += 1,
            wire::response::Body::Done(_) | wire::response::Body::Released(_) => freed += 1,
            wire::response::Body::Refused(no) => {
                assert_eq!(no.code(), wire::refused::Code::Overloaded, "{}", no.message);
                assert!(no.message.contains("Try again after"), "{}", no.message);
                refused.push(response.id);
            }
            other => panic!("{}: {other:?}", response.id),
        }
    }
    assert_eq!(freed, 2, "the cancel and the release went through");
    assert!(granted > 0 && !refused.is_empty(), "{granted} granted, refused {refused:?}");
    assert!(refused.iter().all(|id| takes.contains(id)), "{refused:?}");
    // Nothing was done of what was refused: the same numbers are taken once there is room.
    for id in refused {
        client.acquire(id, &format!("{}/{id}", "x".repeat(1_000)));
    }
    client.ask(60, Asks::EndSession(wire::EndSession { session: 0, secret: Vec::new() }));
    // News of what it held comes first.
    while client.receive().expect("the end is answered").id != 60 {}
    server.assert_serves();
}

#[test]
fn a_watch_that_nobody_reads_ends_and_its_connection_stays() {
    let server = Running::start();
    let mut watcher = server.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&watcher.stream, 64 << 10).unwrap();
    watcher.ask(1, open(fresh_id(), 600_000));
    watcher.session_state(1);
    watcher.ask(7, Asks::Watch(wire::Watch { prefix: String::new() }));
    watcher.answer(7);
    // Each event is a kilobyte; the sockets take some megabytes, and the server one more.
    let name = "w".repeat(1_000);
    let mut busy = server.connect();
    busy.ask(1, open(fresh_id(), 600_000));
    busy.session_state(1);
    let mut id = 10;
    for _ in 0..40 {
        let first = id;
        for _ in 0..100 {
            busy.ask(id, acquire(&name));
            busy.ask(id + 1, Asks::Release(Release { acquire: id }));
            id += 2;
        }
        (first..id).for_each(|id| drop(busy.answer(id)));
    }
    // It reads at last. What it had been sent is still there, and then why there is no more.
    let last_word = loop {
        let response = watcher.receive().expect("its connection stays");
        if let (7, wire::response::Body::Unavailable(why)) = (response.id, response.body.unwrap()) {
            break why.message;
        }
    };
    assert!(last_word.contains("watch"), "{last_word}");
    watcher.acquire(20, "still-here");
    server.assert_serves();
}
