//! Numbers, answers that get lost, and callers that go away.

use lockkeeper::{Error, LossReason, State};
use lockkeeper_wire::native::{self, request, response};

use crate::peer::{Link, Peer, acquire, granted, holder, soon};

#[tokio::test]
async fn a_lost_reply_is_asked_for_again_under_the_same_number() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let under_way = acquire(&client, "a");

    let mut link = peer.accept().await;
    let opened = link.let_in(native::SessionState::default()).await;
    let (number, _) = link.acquire().await;
    drop(link);

    let mut link = peer.accept().await;
    let resumed = link.let_in(native::SessionState::default()).await;
    let (Some(request::Body::OpenSession(open)), Some(request::Body::ResumeSession(resume))) =
        (opened.body, resumed.body)
    else {
        panic!("opened, then resumed");
    };
    assert_eq!((open.session, open.secret), (resume.session, resume.secret));
    let (again, request) = link.acquire().await;
    assert_eq!((again, request.lock.as_str()), (number, "a"));
    link.send_granted(again, 10).await;
    // The answer to the first copy comes in as well, and means nothing.
    link.send_granted(again, 10).await;
    let guard = granted(under_way).await;
    assert_eq!(guard.token(), 10);
    assert_eq!(guard.state(), State::Held);
}

#[tokio::test]
async fn what_was_granted_unheard_and_taken_away_is_lost_and_not_refused() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let under_way = acquire(&client, "a");
    let mut link = peer.accept_session().await;
    let (_, _) = link.acquire().await;
    drop(link);

    let mut link = peer.accept().await;
    link.let_in(native::SessionState::default()).await;
    let (again, _) = link.acquire().await;
    let code = native::refused::Code::NotHeld.into();
    let refused = native::Refused { code, message: "gone".into(), ..Default::default() };
    link.send(again, response::Body::Refused(refused)).await;
    let error = soon("the answer", under_way).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost(LossReason::Forced)), "{error}");
}

#[tokio::test]
async fn everything_unanswered_is_sent_again_in_order_with_the_floor_below_it() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let tasks: Vec<_> = ["a", "b", "c", "d"].map(|name| acquire(&client, name)).into();
    let mut link = peer.accept_session().await;
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(link.acquire().await);
    }
    // 1 and 3 are answered: the floor is 2.
    link.send_granted(1, 10).await;
    link.send_queued(3, 1).await;
    let mut tasks = tasks.into_iter();
    let first = granted(tasks.next().unwrap()).await;
    assert_eq!(first.name(), names[0].1.lock);
    drop(first);
    link.release().await;
    drop(link);

    let mut link = peer.accept().await;
    let waits = vec![native::WaitingItem { acquire: 3, lock: "c".into(), place: 1 }];
    link.let_in(native::SessionState { waits, ..Default::default() }).await;
    for expected in [2, 4, 5] {
        let request = link.next().await;
        assert_eq!((request.id, request.floor), (expected, 2));
    }
}

#[tokio::test]
async fn dropping_an_acquire_before_it_is_sent_sends_nothing() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let dropped = acquire(&client, "a");
    let mut link = peer.accept().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    link.let_in(native::SessionState::default()).await;
    let kept = acquire(&client, "b");
    let (number, request) = link.acquire().await;
    assert_eq!(request.lock, "b");
    link.send_granted(number, 10).await;
    drop(granted(kept).await);
}

#[tokio::test]
async fn dropping_an_acquire_that_was_sent_cancels_its_number() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let dropped = acquire(&client, "b");
    let (number, _) = link.acquire().await;
    dropped.abort();
    let (cancel, acquire) = link.cancel().await;
    assert_eq!(acquire, number);
    // The grant comes in before the cancel's answer; the guard must not come to life.
    link.send_granted(number, 11).await;
    link.send_released(cancel, 11).await;
    assert_idle(&client, &mut link).await;
}

#[tokio::test]
async fn dropping_an_acquire_that_waits_cancels_its_number_across_a_reconnect() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let (told, mut places) = tokio::sync::mpsc::unbounded_channel();
    let request = client.lock("b").on_wait(move |view| told.send(view.place).unwrap());
    let dropped = tokio::spawn(request.acquire());
    let (number, _) = link.acquire().await;
    link.send_queued(number, 3).await;
    assert_eq!(soon("its place", places.recv()).await, Some(3));
    dropped.abort();
    let (cancel, _) = link.cancel().await;
    drop(link);

    let mut link = peer.accept().await;
    link.let_in(held_and_waiting()).await;
    assert_eq!(link.cancel().await, (cancel, number));
    link.send_done(cancel).await;
    assert_idle(&client, &mut link).await;
}

#[tokio::test]
async fn a_grant_that_nobody_took_is_given_back() {
    let peer = Peer::listen().await;
    let (client, _guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let mut dropped = Box::pin(client.lock("b").acquire());
    // Polled once: it is on its way, and nobody looks at it again.
    assert!(futures_poll(dropped.as_mut()).await.is_none());
    let (number, _) = link.acquire().await;
    link.send_granted(number, 11).await;
    assert_served(&client, &mut link).await;
    drop(dropped);
    assert_eq!(link.cancel().await.1, number);
}

#[tokio::test]
async fn dropping_a_guard_releases_it_and_dropping_the_client_ends_the_session() {
    let peer = Peer::listen().await;
    let (client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let session = client.session().unwrap();
    drop(guard);
    let (release, acquire) = link.release().await;
    assert_eq!(acquire, 1);
    link.send_released(release, 10).await;
    drop(client);
    let request = link.next().await;
    let Some(request::Body::EndSession(end)) = request.body else { panic!("{request:?}") };
    assert_eq!((end.session, &end.secret[..]), (session.id.0, &session.secret[..]));
    link.send_done(request.id).await;
    assert!(soon("the end", link.try_next()).await.is_none());
}

#[tokio::test]
async fn close_loses_the_guards_at_once_and_waits_for_the_servers() {
    let peer = Peer::listen().await;
    let (client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    let request = link.next().await;
    assert!(matches!(request.body, Some(request::Body::EndSession(_))));
    assert_eq!(guard.state(), State::Lost(LossReason::Released));
    assert!(!closing.is_finished());
    link.send_done(request.id).await;
    soon("closed", closing).await.unwrap();
    assert!(matches!(client.lock("a").acquire().await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_release_tells_whether_it_was_still_held() {
    let peer = Peer::listen().await;
    let (_client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let releasing = tokio::spawn(guard.release());
    let (release, _) = link.release().await;
    let no = native::Refused { code: native::refused::Code::NotHeld.into(), ..Default::default() };
    link.send(release, response::Body::Refused(no)).await;
    let released = soon("the release", releasing).await.unwrap();
    assert!(matches!(released, Err(Error::Lost(LossReason::Forced))), "{released:?}");
}

#[tokio::test]
async fn entering_again_shares_the_token_and_what_happens_to_the_hold() {
    let peer = Peer::listen().await;
    let (_client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let answers = async {
        let request = link.next().await;
        let Some(request::Body::Reenter(reenter)) = request.body else { panic!("{request:?}") };
        assert_eq!((reenter.lock.as_str(), reenter.token), ("a", 10));
        link.send_granted(request.id, 10).await;
        let (release, acquire) = link.release().await;
        assert_eq!(acquire, 1);
        // What was sent before the release was applied names the hold by its lowest handle.
        link.send(0, response::Body::RevokedEvent(native::RevokedEvent { acquire: 1 })).await;
        let released = native::Released { token: 10, remaining: 1 };
        link.send(release, response::Body::Released(released)).await;
    };
    let calls = async {
        let inner = guard.reenter().await.unwrap();
        assert_eq!((inner.token(), inner.name()), (10, "a"));
        assert_eq!(guard.release().await.unwrap().remaining, 1);
        assert_eq!(inner.state(), State::Held);
        inner.revoked().await;
        inner
    };
    let ((), inner) = soon("both", async { tokio::join!(answers, calls) }).await;
    let lost = native::LostEvent { acquire: 2, reason: "forced".into() };
    link.send(0, response::Body::LostEvent(lost)).await;
    assert_eq!(soon("the loss", inner.lost()).await, LossReason::Forced);
}

#[tokio::test]
async fn more_requests_than_may_be_open_at_once_wait_for_room() {
    const COUNT: usize = 10_000;
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let tasks: Vec<_> = (0..COUNT).map(|i| acquire(&client, &format!("lock-{i}"))).collect();
    let mut link = peer.accept_session().await;
    // One that isn't answered keeps the floor where it is.
    let (first, _) = link.acquire().await;
    let mut last = first;
    for _ in 1..4_096 {
        let (number, _) = link.acquire().await;
        link.send_granted(number, number).await;
        last = number;
    }
    assert_eq!(last, 4_096);
    link.send_granted(first, first).await;
    let mut server = tokio::spawn(async move {
        while let Some(request) = link.try_next().await {
            match request.body {
                Some(request::Body::Acquire(_)) => link.send_granted(request.id, request.id).await,
                Some(request::Body::Release(_)) => link.send_released(request.id, 0).await,
                _ => return request,
            }
        }
        panic!("the connection ended");
    });
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(granted(task).await);
    }
    // More releases than may be open, at once, and without waiting.
    drop(guards);
    drop(client);
    let last = soon("the end of the session", &mut server).await.unwrap();
    assert!(matches!(last.body, Some(request::Body::EndSession(_))));
}

fn held_and_waiting() -> native::SessionState {
    let holds =
        vec![native::HeldItem { acquire: 1, lock: "a".into(), token: 10, is_revoked: false }];
    let waits = vec![native::WaitingItem { acquire: 2, lock: "b".into(), place: 2 }];
    native::SessionState { holds, waits, ..Default::default() }
}

/// The client asks for nothing but what it is told to ask for now.
async fn assert_idle(client: &lockkeeper::Client, link: &mut Link) {
    let probe = acquire(client, "probe");
    let (number, request) = link.acquire().await;
    assert_eq!(request.lock, "probe");
    link.send_granted(number, 99).await;
    let guard = granted(probe).await;
    let releasing = tokio::spawn(guard.release());
    let (release, acquire) = link.release().await;
    assert_eq!(acquire, number);
    link.send_released(release, 99).await;
    soon("the release", releasing).await.unwrap().unwrap();
}

/// The client has taken everything that was sent so far.
async fn assert_served(client: &lockkeeper::Client, link: &mut Link) {
    assert_idle(client, link).await;
}

async fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut future = Some(future);
    std::future::poll_fn(|cx| {
        let polled = future.take().expect("polled once").poll(cx);
        std::task::Poll::Ready(match polled {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
