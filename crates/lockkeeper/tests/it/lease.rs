//! What a guard tells its holder, and when.

use std::time::Duration;

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{Error, LossReason, State};
use lockkeeper_wire::native::{self, request, response};

use crate::peer::{LONG_TTL, Peer, PushedClock, acquire, granted, holder, soon};

/// Of the guards here, which may have to outlast a machine that stands still for some seconds.
const TTL: Duration = Duration::from_secs(5);
const MARGIN: Duration = Duration::from_millis(110);

#[tokio::test]
async fn a_guard_is_lost_a_margin_before_its_lease_ends_when_the_network_swallows_everything() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer]).ttl(TTL)).await;
    let under_way = acquire(&client, "a");
    let mut link = peer.accept().await;
    link.confirms = false;
    link.let_in(native::SessionState::default()).await;
    // A server that counts from the earliest moment it may: when it read the request to open.
    let server_counts_from = SystemClock.boottime();
    let (number, _) = link.acquire().await;
    link.send_granted(number, 10).await;
    let guard = granted(under_way).await;
    let promised = guard.deadline_boottime_ns();
    assert!(promised <= (server_counts_from + (TTL - MARGIN)).as_nanos());

    let reason = soon("the loss", guard.lost()).await;
    assert!(matches!(reason, LossReason::Expired { .. }), "{reason:?}");
    assert!(SystemClock.boottime().as_nanos() >= promised);
    assert_eq!(guard.state(), State::Lost(reason));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(matches!(guard.check(), Err(Error::Lost(_))));
}

#[tokio::test]
async fn a_confirmed_heartbeat_moves_the_deadline_and_an_overdue_one_suspends() {
    let peer = Peer::listen().await;
    let builder = Peer::builder(&[&peer]).ttl(TTL);
    let (_client, guard, link) = holder(&[&peer], builder).await;
    let mut deadlines = guard.watch_deadline();
    let first = *deadlines.borrow_and_update();
    let confirms = link.keep_alive_while(true);
    soon("a later deadline", deadlines.wait_for(|next| *next > first)).await.unwrap();

    let mut states = guard.watch_state();
    confirms.send_replace(false);
    // It leaves the silent connection for another, which is as silent until the suspension shows.
    let link = peer.accept_with_hold().await;
    let confirms = link.keep_alive_while(false);
    let suspended = |state: &State| matches!(state, State::Suspended { .. });
    soon("a suspension", states.wait_for(suspended)).await.unwrap();
    assert!(guard.remaining() > Duration::ZERO);
    // One confirmation, of the heartbeat that was sent when it came.
    confirms.send_replace(true);
    soon("held again", states.wait_for(|state| *state == State::Held)).await.unwrap();
}

#[tokio::test]
async fn a_late_confirmation_counts_from_the_sending_of_its_heartbeat() {
    const DELAY: Duration = Duration::from_millis(300);
    let peer = Peer::listen().await;
    let (_client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer]).ttl(TTL)).await;
    let mut deadlines = guard.watch_deadline();
    let before = *deadlines.borrow_and_update();
    let heartbeat = link.heartbeat().await;
    let sent_before = SystemClock.boottime();
    // The answer is on its way for so long, which is what is tested.
    tokio::time::sleep(DELAY).await;
    let confirmed = native::HeartbeatConfirmed {};
    link.send(heartbeat, response::Body::HeartbeatConfirmed(confirmed)).await;
    let renewed = soon("a renewal", deadlines.wait_for(|next| *next > before)).await.unwrap();
    assert!(*renewed < sent_before + TTL, "it would outlast the servers' lease");
}

#[tokio::test]
async fn after_a_suspend_longer_than_the_lease_the_clock_has_the_first_word() {
    let peer = Peer::listen().await;
    let clock = PushedClock::new();
    let builder = Peer::builder(&[&peer]).clock(clock.clone());
    let (_client, guard, _link) = holder(&[&peer], builder).await;
    assert_eq!(guard.state(), State::Held);
    clock.push(LONG_TTL);
    assert!(matches!(guard.state(), State::Lost(LossReason::Expired { .. })));
}

#[tokio::test]
async fn after_a_shorter_suspend_it_is_suspended_until_one_confirmation() {
    let peer = Peer::listen().await;
    let clock = PushedClock::new();
    let builder = Peer::builder(&[&peer]).clock(clock.clone());
    let (client, guard, mut link) = holder(&[&peer], builder).await;
    let mut states = guard.watch_state();
    link.confirms = false;
    // A hypervisor's pause: only the wall clock has seen it.
    clock.push_wall(Duration::from_secs(5));
    assert!(matches!(guard.state(), State::Suspended { .. }));
    // Whatever wakes the task makes it send a heartbeat at once, long before the next is due.
    let _under_way = acquire(&client, "b");
    link.confirms = true;
    link.acquire().await;
    let _alive = link.keep_alive_while(true);
    soon("held again", states.wait_for(|state| *state == State::Held)).await.unwrap();
    assert_eq!(guard.state(), State::Held);
}

#[tokio::test]
async fn run_drops_the_work_where_it_stands_when_the_lock_is_lost() {
    struct Flag(std::sync::Arc<std::sync::atomic::AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let peer = Peer::listen().await;
    let (_client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let dropped = std::sync::Arc::default();
    let flag = Flag(std::sync::Arc::clone(&dropped));
    let running = tokio::spawn(guard.run(async move |lease| {
        let _flag = flag;
        assert_eq!(lease.token(), 10);
        std::future::pending::<()>().await;
    }));
    let lost = native::LostEvent { acquire: 1, reason: "forced".into() };
    link.send(0, response::Body::LostEvent(lost)).await;
    let result = soon("the loss", running).await.unwrap();
    assert!(matches!(result, Err(Error::Lost(LossReason::Forced))), "{result:?}");
    assert!(dropped.load(std::sync::atomic::Ordering::SeqCst));
}

#[tokio::test]
async fn run_takes_not_one_more_step_after_a_suspend() {
    let peer = Peer::listen().await;
    let clock = PushedClock::new();
    let builder = Peer::builder(&[&peer]).clock(clock.clone());
    let (_client, guard, _link) = holder(&[&peer], builder).await;
    let (wake, woken) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(guard.run(async move |_| {
        woken.await.unwrap();
        panic!("one more step");
    }));
    tokio::task::yield_now().await;
    clock.push(LONG_TTL);
    let _ = wake.send(());
    let result: Result<(), _> = soon("the loss", running).await.unwrap();
    assert!(matches!(result, Err(Error::Lost(LossReason::Expired { .. }))));
}

#[tokio::test]
async fn run_gives_the_lock_back_and_returns_what_the_work_returned() {
    let peer = Peer::listen().await;
    let (_client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let running = tokio::spawn(guard.run(|lease| async move { lease.token() + 1 }));
    let (release, acquire) = link.release().await;
    assert_eq!(acquire, 1);
    link.send_released(release, 10).await;
    assert_eq!(soon("the work", running).await.unwrap().unwrap(), 11);
}

#[tokio::test]
async fn an_operators_request_is_told_and_is_the_reason_if_the_lease_then_runs_out() {
    let peer = Peer::listen().await;
    let builder = Peer::builder(&[&peer]).ttl(TTL);
    let (_client, guard, mut link) = holder(&[&peer], builder).await;
    link.send(0, response::Body::RevokedEvent(native::RevokedEvent { acquire: 1 })).await;
    soon("the request", guard.revoked()).await;
    assert!(guard.state().is_held());
    let _silent = link.keep_alive_while(false);
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Revoked);
}

#[tokio::test]
async fn confirm_asks_the_cluster() {
    let peer = Peer::listen().await;
    let (_client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let answers = async {
        let request = link.next().await;
        assert!(matches!(request.body, Some(request::Body::Confirm(c)) if c.acquire == 1));
        link.send_granted(request.id, 10).await;
        let request = link.next().await;
        let code = native::refused::Code::NotHeld.into();
        let no = native::Refused { code, ..Default::default() };
        link.send(request.id, response::Body::Refused(no)).await;
    };
    let calls = async {
        guard.confirm().await.unwrap();
        assert!(matches!(guard.confirm().await, Err(Error::Lost(_))));
    };
    soon("both", async { tokio::join!(answers, calls) }).await;
}

#[tokio::test]
async fn what_happened_while_the_connection_was_gone_shows_after_resuming_elsewhere() {
    let (one, two) = (Peer::listen().await, Peer::listen().await);
    let builder = Peer::builder(&[&one, &two]);
    let (client, guard, mut link) = holder(&[&one, &two], builder).await;
    let waiting = acquire(&client, "b");
    let (number, _) = link.acquire().await;
    link.send_queued(number, 1).await;
    let kept = acquire(&client, "c");
    let (third, _) = link.acquire().await;
    link.send_granted(third, 11).await;
    let kept = granted(kept).await;
    drop(link);

    // The second server: `a` was passed on by force, `b` was granted, `c` is as it was.
    let mut link = two.accept().await;
    let item = |acquire, lock: &str, token| native::HeldItem {
        acquire,
        lock: lock.into(),
        token,
        is_revoked: false,
    };
    // A long answer comes in parts.
    let resume = link.next().await;
    for (hold, more) in [(item(number, "b", 12), true), (item(third, "c", 11), false)] {
        let part = native::SessionState { holds: vec![hold], more, ..Default::default() };
        link.send(resume.id, response::Body::SessionState(part)).await;
    }
    assert_eq!(granted(waiting).await.token(), 12);
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Forced);
    assert_eq!(kept.state(), State::Held);
}

#[tokio::test]
async fn a_lost_session_loses_everything_and_the_next_lock_opens_another() {
    let peer = Peer::listen().await;
    let (client, guard, mut link) = holder(&[&peer], Peer::builder(&[&peer])).await;
    let first = client.session().unwrap().id;
    let waiting = acquire(&client, "b");
    let (number, _) = link.acquire().await;
    link.send_queued(number, 1).await;
    let ended = native::SessionEndedEvent { reason: "expired".into() };
    link.send(0, response::Body::SessionEndedEvent(ended)).await;
    let waited = soon("the loss", waiting).await.unwrap();
    assert!(matches!(waited, Err(Error::Lost(LossReason::SessionEnded { .. }))), "{waited:?}");
    assert!(!guard.state().is_held());

    let under_way = acquire(&client, "a");
    let mut link = peer.accept_session().await;
    let (number, _) = link.acquire().await;
    link.send_granted(number, 13).await;
    let guard = granted(under_way).await;
    assert_eq!(guard.state(), State::Held);
    assert_ne!(guard.session().id, first);
}

impl Peer {
    /// Accepts a connection that resumes the session of [`holder`].
    async fn accept_with_hold(&self) -> crate::peer::Link {
        let mut link = self.accept().await;
        let lock = "a".to_owned();
        let holds = vec![native::HeldItem { acquire: 1, lock, token: 10, is_revoked: false }];
        link.let_in(native::SessionState { holds, ..Default::default() }).await;
        link
    }
}
