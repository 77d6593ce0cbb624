//! Servers that can't be reached, can't serve, or are something else, and patience that ends.

use std::time::Duration;

use lockkeeper::{Client, Error, RefusedCode};
use lockkeeper_wire::native::{self, refused, request, response, unavailable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::peer::{Peer, acquire, granted, holder, soon};

/// Patience that ends: not before something was heard of the server, however busy the machine is.
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(3_600);

fn no_majority(outcome: unavailable::Outcome) -> response::Body {
    let message = "only 1 of 3".to_owned();
    let outcome = outcome.into();
    response::Body::Unavailable(native::Unavailable { outcome, message, reached: 1, of: 3 })
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let peer = Peer::listen().await;
    let address = peer.address.clone();
    drop(peer);
    let url = format!("lockkeeper://{address}");
    let error = Client::builder().url(url).connect_timeout(SHORT).connect().await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { endpoints, .. } if *endpoints == [address.as_str()])
    );
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.is_retryable() && !error.outcome_is_unknown());
}

#[tokio::test]
async fn another_program_on_the_port_is_recognized() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let url = format!("lockkeeper://{address}");
    // It doesn't take `connect_timeout`.
    let error = soon("the error", Client::builder().url(url).connect_timeout(LONG).connect());
    let error = error.await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn settings_that_cannot_be_used_say_why() {
    let connect = |ttl| Client::builder().url("lockkeeper://a").ttl(ttl).connect();
    let error = connect(Duration::from_millis(199)).await.unwrap_err().to_string();
    assert_eq!(error, "a lease of 199ms can't be had; choose one from 200ms to 24 h");
    assert!(matches!(connect(Duration::from_secs(86_401)).await, Err(Error::Config(_))));
    let error = Client::connect("localhost").await.unwrap_err().to_string();
    assert!(error.contains("did you mean lockkeeper://localhost ?"), "{error}");
}

#[tokio::test]
async fn what_a_server_cannot_serve_is_asked_again_under_the_same_number() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let under_way = acquire(&client, "b");
    for outcome in [unavailable::Outcome::NotDone, unavailable::Outcome::Unknown] {
        let (number, _) = link.acquire().await;
        assert_eq!(number, 2);
        link.send(number, no_majority(outcome)).await;
    }
    let (number, _) = link.acquire().await;
    assert_eq!(number, 2);
    let code = refused::Code::Overloaded.into();
    let overloaded = native::Refused { code, ..Default::default() };
    link.send(number, response::Body::Refused(overloaded)).await;
    let (number, _) = link.acquire().await;
    link.send_granted(number, 11).await;
    assert_eq!(granted(under_way).await.token(), 11);
}

#[tokio::test]
async fn a_server_without_a_majority_is_left_for_another() {
    let (one, two) = (Peer::listen().await, Peer::listen().await);
    let builder = Peer::builder(&[&one, &two]);
    let (client, guard, mut link) = holder(&[&one, &two], builder).await;
    let under_way = acquire(&client, "b");
    let (number, _) = link.acquire().await;
    link.send(number, no_majority(unavailable::Outcome::NotDone)).await;
    let mut link = two.accept().await;
    let lock = "a".to_owned();
    let holds = vec![native::HeldItem { acquire: 1, lock, token: 10, is_revoked: false }];
    link.let_in(native::SessionState { holds, ..Default::default() }).await;
    let (again, _) = link.acquire().await;
    assert_eq!(again, number);
    link.send_granted(again, 11).await;
    drop(granted(under_way).await);
    assert!(guard.state().is_held());
}

#[tokio::test]
async fn a_call_that_is_served_by_nobody_fails_after_connect_timeout_and_is_cancelled() {
    let peer = Peer::listen().await;
    let builder = Peer::builder(&[&peer]).connect_timeout(SHORT);
    let (client, _guard, mut link) = holder(&[&peer], builder).await;
    let under_way = acquire(&client, "b");
    let cancelled = async {
        loop {
            let request = link.next().await;
            match request.body {
                Some(request::Body::Acquire(_)) => {
                    link.send(request.id, no_majority(unavailable::Outcome::Unknown)).await;
                }
                Some(request::Body::Cancel(cancel)) => break cancel.acquire,
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(soon("the cancel", cancelled).await, 2);
    let error = soon("the error", under_way).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoQuorum { reached: 1, of: 3 }), "{error:?}");
    let text = "no majority: the server reaches 1 of 3. Nothing was acquired";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn an_election_is_not_called_a_missing_majority() {
    let peer = Peer::listen().await;
    let builder = Peer::builder(&[&peer]).connect_timeout(SHORT);
    let (client, _guard, mut link) = holder(&[&peer], builder).await;
    let under_way = acquire(&client, "b");
    let electing = async {
        loop {
            let request = link.next().await;
            if matches!(request.body, Some(request::Body::Cancel(_))) {
                break;
            }
            let body = native::Unavailable {
                outcome: unavailable::Outcome::NotDone.into(),
                message: "no leader yet: 3 of 4 voters answer".to_owned(),
                reached: 3,
                of: 4,
            };
            link.send(request.id, response::Body::Unavailable(body)).await;
        }
    };
    soon("the cancel", electing).await;
    let error = soon("the error", under_way).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = "the server can't do it now: no leader yet: 3 of 4 voters answer";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn a_session_that_cannot_be_opened_fails_its_callers_and_the_next_one_starts_afresh() {
    let peer = Peer::listen().await;
    let builder = Peer::builder(&[&peer]).connect_timeout(SHORT);
    let client = Peer::client(&[&peer], builder).await;
    let mut under_way = acquire(&client, "a");
    let error = loop {
        tokio::select! {
            done = &mut under_way => break done.unwrap().unwrap_err(),
            mut link = peer.accept() => {
                if let Some(request) = link.try_next().await {
                    link.send(request.id, no_majority(unavailable::Outcome::NotDone)).await;
                }
            }
        }
    };
    assert!(matches!(error, Error::NoQuorum { .. }), "{error:?}");
    let under_way = acquire(&client, "a");
    let mut link = peer.accept().await;
    // A connection of the first attempt may still be in the listener's queue.
    while link.try_next().await.is_none_or(|request| {
        let is_open = matches!(request.body, Some(request::Body::OpenSession(_)));
        link.put_back(request);
        !is_open
    }) {
        link = peer.accept().await;
    }
    link.let_in(native::SessionState::default()).await;
    let (number, _) = link.acquire().await;
    link.send_granted(number, 10).await;
    drop(granted(under_way).await);
}

#[tokio::test]
async fn timing_out_gives_the_place_up_and_tells_it_with_the_holder() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let session = client.session().unwrap().id.0;
    let under_way = tokio::spawn(client.lock("b").wait_at_most(SHORT).acquire());
    let (number, _) = link.acquire().await;
    link.send_queued(number, 3).await;

    let question = link.next().await;
    let Some(request::Body::GetLock(get)) = &question.body else { panic!("{question:?}") };
    assert_eq!(get.lock, "b");
    let owner = native::Owner { user: "bob".into(), host: "ci-3".into(), ..Default::default() };
    let hold = native::Hold { token: 8, owner: Some(owner), ..Default::default() };
    let waiter = native::Waiter { session, acquire: number, place: 2, ..Default::default() };
    let lock = native::Lock {
        name: "b".into(),
        holds: vec![hold],
        hold_count: 1,
        waiters: vec![waiter],
        waiter_count: 2,
        ..Default::default()
    };
    link.send(question.id, response::Body::Lock(lock)).await;
    let (cancel, cancelled) = link.cancel().await;
    assert_eq!(cancelled, number);
    assert!(!under_way.is_finished(), "the caller is told when the place is given up");
    link.send_done(cancel).await;
    let error = soon("the timeout", under_way).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::TimedOut { place: Some(2), holder: Some(_), .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.ends_with("(place 2 in line); it is held by bob@ci-3"), "{text}");
}

#[tokio::test]
async fn a_grant_at_the_last_moment_is_returned() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let under_way = tokio::spawn(client.lock("b").wait_at_most(SHORT).acquire());
    let (acquire, _) = link.acquire().await;
    link.send_queued(acquire, 1).await;
    let question = link.next().await;
    let event = native::GrantedEvent { acquire, token: 12 };
    link.send(0, response::Body::GrantedEvent(event)).await;
    link.send(question.id, response::Body::Lock(native::Lock::default())).await;
    assert_eq!(granted(under_way).await.token(), 12);
}

#[tokio::test]
async fn a_lock_that_is_held_is_busy_for_who_does_not_wait() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    for request in [client.lock("b").try_acquire(), client.lock("b").try_acquire()] {
        let under_way = tokio::spawn(request);
        let (number, acquire) = link.acquire().await;
        assert!(!acquire.wait);
        let owner = native::Owner { host: "ci-3".into(), pid: 7, ..Default::default() };
        let holder = Some(native::Hold { owner: Some(owner), ..Default::default() });
        let code = refused::Code::Busy.into();
        let no = native::Refused { code, holder, ..Default::default() };
        link.send(number, response::Body::Refused(no)).await;
        let error = soon("busy", under_way).await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "b is held by ci-3 (pid 7)");
    }
}

#[tokio::test]
async fn a_refusal_carries_the_servers_words() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let under_way = tokio::spawn(client.lock("b").permits(9, 3).acquire());
    let (number, acquire) = link.acquire().await;
    let permits = native::Permits { take: 9, of: 3 };
    assert_eq!(acquire.mode.unwrap().kind, Some(native::mode::Kind::Permits(permits)));
    let message = "9 of 3 permits can't be had".to_owned();
    let code = refused::Code::BadPermits.into();
    let no = native::Refused { code, message, ..Default::default() };
    link.send(number, response::Body::Refused(no)).await;
    let error = soon("the refusal", under_way).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Refused(no) if no.code == RefusedCode::BadPermits));
    assert_eq!(error.to_string(), "refused: 9 of 3 permits can't be had");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_silent_server_is_left_for_another() {
    let (one, two) = (Peer::listen().await, Peer::listen().await);
    let ttl = Duration::from_secs(6);
    let builder = Peer::builder(&[&one, &two]).ttl(ttl);
    let (_client, guard, link) = holder(&[&one, &two], builder).await;
    // The connection stays open, and nothing is confirmed on it.
    let _silent = link.keep_alive_while(false);
    let mut link = two.accept().await;
    let lock = "a".to_owned();
    let holds = vec![native::HeldItem { acquire: 1, lock, token: 10, is_revoked: false }];
    link.let_in(native::SessionState { holds, ..Default::default() }).await;
    let before = guard.deadline_boottime_ns();
    let _alive = link.keep_alive_while(true);
    let mut deadlines = guard.watch_deadline();
    soon("a renewal", deadlines.wait_for(|next| next.as_nanos() > before)).await.unwrap();
    assert!(guard.state().is_held());
}

#[tokio::test]
async fn a_malformed_frame_ends_the_connection_and_not_the_session() {
    let peer = Peer::listen().await;
    let (_client, guard, link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let mut stream = link.into_stream();
    stream.write_all(&[0xff; 64]).await.unwrap();
    let mut rest = Vec::new();
    let _ = soon("the end", stream.read_to_end(&mut rest)).await;
    let mut link = peer.accept().await;
    let request = link.next().await;
    assert!(matches!(request.body, Some(request::Body::ResumeSession(_))));
    assert!(guard.state().is_held());
}
