//! A connection speaks for its session only while that was confirmed lately.

use std::io::ErrorKind;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper_wire::jute::{ErrorCode, EventType};

use super::client::{Heard, SHORT_MS, Zk, exists};
use super::{connect, start};

/// Sessions end when nothing was heard of them for this long: the tests are in its last third.
const TIMEOUT: Duration = Duration::from_millis(SHORT_MS.unsigned_abs() as u64);

/// The time that a test is about: nothing else ends a lease.
fn be_silent_for_more_than_two_thirds(since: Instant) {
    sleep((since + TIMEOUT * 3 / 4).saturating_duration_since(Instant::now()));
}

#[test]
fn whoever_was_silent_for_long_is_answered_once_its_session_is_confirmed() {
    let server = start();
    // A machine that stood still meanwhile may have let the session end.
    let is_answered = (0..5).any(|_| {
        let mut client = Zk::with_timeout(&server, SHORT_MS);
        be_silent_for_more_than_two_thirds(Instant::now());
        let asked = client.send(&exists("/", false));
        let again = client.send(&exists("/", false));
        [asked, again].into_iter().all(|of| {
            let heard = client.hear();
            matches!(heard, Heard::Reply { xid, err: ErrorCode::OK, .. } if xid == of)
        })
    });
    assert!(is_answered);
}

#[test]
fn whoever_was_silent_for_long_hears_an_event_once_its_session_is_confirmed() {
    let server = start();
    let mut other = connect(&server);
    // A machine that stood still meanwhile may have let the session end.
    let is_told = (0..5).any(|number| {
        let path = format!("/sudden-{number}");
        let mut client = Zk::with_timeout(&server, SHORT_MS);
        client.fails(&exists(&path, true));
        be_silent_for_more_than_two_thirds(Instant::now());
        other.create(&path, 0);
        (0..10).for_each(|_| other.sync());
        client.stream.set_nonblocking(true).unwrap();
        let kind = client.stream.peek(&mut [0]).map_err(|error| error.kind());
        client.stream.set_nonblocking(false).unwrap();
        if kind == Ok(0) {
            return false;
        }
        assert_eq!(kind, Err(ErrorKind::WouldBlock), "nobody has confirmed its session");
        let asked = client.send(&exists("/", false));
        let event = match client.hear() {
            Heard::Event { kind, path, .. } => (kind, path),
            Heard::End => return false,
            other @ Heard::Reply { .. } => panic!("{other:?} before the event"),
        };
        assert_eq!(event, (EventType::NodeCreated, path));
        client.reply(asked).0 == ErrorCode::OK
    });
    assert!(is_told);
}

#[test]
fn whoever_speaks_now_and_then_hears_its_events() {
    let server = start();
    let mut other = connect(&server);
    let mut client = Zk::with_timeout(&server, SHORT_MS);
    client.fails(&exists("/expected", true));
    let since = Instant::now();
    while since.elapsed() < TIMEOUT * 3 / 2 {
        client.call(&exists("/", false));
        sleep(TIMEOUT / 10);
    }
    other.create("/expected", 0);
    let heard = client.hear();
    let Heard::Event { kind, path, .. } = heard else { panic!("{heard:?}") };
    assert_eq!((kind, &*path), (EventType::NodeCreated, "/expected"));
}
