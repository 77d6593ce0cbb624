//! Clients of the native protocol: the real client library, used as programs use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::{Client, Error, Guard, LockRequest, LossReason, Owner};
use lockkeeper_core::{Mode, Token};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Surroundings;
use crate::chance::Chance;
use crate::recorder::Recorder;
use crate::world::{ClientClock, MachineClock};
use crate::{Attempt, ClientId, GiveUp, Nanos, Seen};

/// The locks that everybody wants: exclusive or shared, and one of permits.
const LOCKS: [&str; 3] = ["batch/nightly", "report", "a"];
const PERMITS: &str = "pool";
const PERMITS_OF: u32 = 3;

/// Runs one client's process: a session after the other, each with a few workers.
pub async fn run(around: Surroundings) {
    let Surroundings { clock, network, recorder, mut chance, host, servers, current, .. } = around;
    let network = Arc::new(network);
    loop {
        let id = recorder.client();
        *current.lock() = Some(id);
        let owner = Owner { host: host.clone(), ..Owner::default() };
        let ttl = *chance.pick(&[500, 1_000, 1_000, 2_000, 3_000]);
        let client = Client::builder()
            .url(format!("lockkeeper://{servers}"))
            .ttl(Duration::from_millis(ttl))
            .owner(owner)
            .clock(Arc::new(ClientClock(Arc::clone(&clock))))
            .network(Arc::clone(&network) as _)
            .connect_timeout(Duration::from_millis(chance.between(500, 5_000)))
            .connect()
            .await;
        let Ok(client) = client else {
            sleep(Duration::from_millis(chance.between(10, 300))).await;
            continue;
        };
        recorder.see(clock.now(), Seen::Opened { client: id, session: None });
        let session = Session {
            id,
            client,
            clock: Arc::clone(&clock),
            recorder: recorder.clone(),
            is_over: Arc::new(AtomicBool::new(false)),
            holds_long: chance.one_in(3),
        };
        let mut workers = JoinSet::new();
        for _ in 0..if session.holds_long { 1 } else { chance.between(1, 3) } {
            workers.spawn(session.clone().work(chance.fork()));
        }
        if chance.one_in(2) {
            workers.spawn(session.clone().look_around(chance.fork()));
        }
        if chance.one_in(4) {
            let life = Duration::from_millis(chance.between(1_000, 15_000));
            workers.spawn(session.clone().close_after(life));
        }
        // The first one to end found the session over, and the others find out.
        while workers.join_next().await.is_some() {}
        session.end();
        *current.lock() = None;
        sleep(Duration::from_millis(chance.below(300))).await;
    }
}

/// One session, and what its workers share.
#[derive(Clone)]
struct Session {
    id: ClientId,
    client: Client,
    clock: Arc<MachineClock>,
    recorder: Recorder,
    is_over: Arc<AtomicBool>,
    /// It works long under one lock and says nothing meanwhile, so that only heartbeats keep it.
    holds_long: bool,
}

/// A wish, and what it is for.
struct Wish {
    attempt: Attempt,
    lock: String,
    mode: Mode,
}

impl Session {
    fn see(&self, seen: Seen) {
        self.recorder.see(self.clock.now(), seen);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn end(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.see(Seen::Ended { client: self.id });
        }
    }

    /// Takes locks and gives them back, until the session is over.
    async fn work(self, mut chance: Chance) {
        while !self.is_over() {
            sleep(Duration::from_millis(chance.below(400))).await;
            if self.is_over() {
                return;
            }
            let (lock, mode) = choose(&mut chance);
            let wish = Wish { attempt: self.recorder.attempt(), lock, mode };
            if let Some(guard) = self.acquire(&wish, &mut chance).await {
                self.hold(&wish, guard, &mut chance).await;
            }
        }
    }

    async fn acquire(&self, wish: &Wish, chance: &mut Chance) -> Option<Guard> {
        let Wish { attempt, lock, mode } = wish;
        let attempt = *attempt;
        let wait = !chance.one_in(5);
        let (client, lock, mode) = (self.id, lock.clone(), *mode);
        self.see(Seen::Asked { attempt, client, lock: lock.clone(), mode, wait });
        let request = with_mode(self.client.lock(lock), mode);
        if !wait {
            return self.outcome(attempt, request.try_acquire().await);
        }
        let request = self.telling_of_its_place(attempt, request);
        match chance.below(6) {
            // In a hurry.
            0 | 1 => {
                let limit = Duration::from_millis(chance.between(5, 2_000));
                self.outcome(attempt, request.wait_at_most(limit).acquire().await)
            }
            // Loses interest: the future is dropped wherever it is.
            2 => {
                let patience = Duration::from_millis(chance.between(0, 1_000));
                match tokio::time::timeout(patience, request.acquire()).await {
                    Ok(outcome) => self.outcome(attempt, outcome),
                    Err(_) => {
                        self.see(Seen::GaveUp { attempt, why: GiveUp::Unknown });
                        None
                    }
                }
            }
            _ => self.outcome(attempt, request.acquire().await),
        }
    }

    fn telling_of_its_place(&self, attempt: Attempt, request: LockRequest) -> LockRequest {
        let (clock, recorder) = (Arc::clone(&self.clock), self.recorder.clone());
        let is_told = Mutex::new(false);
        request.on_wait(move |_| {
            if !std::mem::replace(&mut *is_told.lock(), true) {
                recorder.see(clock.now(), Seen::Queued { attempt });
            }
        })
    }

    /// Notes what has become of a wish.
    fn outcome(&self, attempt: Attempt, outcome: Result<Guard, Error>) -> Option<Guard> {
        let why = match outcome {
            Ok(guard) if guard.state().is_held() => {
                let token = Token(guard.token());
                self.see(Seen::Held { attempt, token });
                return Some(guard);
            }
            Ok(_) => {
                self.end();
                GiveUp::SessionEnded
            }
            Err(Error::Busy { .. } | Error::Refused(_)) => GiveUp::Refused,
            Err(Error::TimedOut { .. }) => GiveUp::Cancelled,
            // It was granted unheard, and forced away.
            Err(Error::Lost(reason)) if !ends_session(reason) => GiveUp::Unknown,
            Err(Error::Lost(_) | Error::Closed) => {
                self.end();
                GiveUp::SessionEnded
            }
            Err(_) => GiveUp::Unknown,
        };
        self.see(Seen::GaveUp { attempt, why });
        None
    }

    /// Works under the lock: step by step, and each step writes to what the lock protects without
    /// looking at the guard first, as programs do.
    async fn hold(&self, wish: &Wish, guard: Guard, chance: &mut Chance) {
        let attempt = wish.attempt;
        let steps = chance.below(6);
        let lengths: &[u64] = if self.holds_long { &[500, 1_000] } else { &[0, 5, 40, 200, 500] };
        let length = *chance.pick(lengths);
        let heeds_revocation = chance.one_in(2);
        for _ in 0..steps {
            let step = sleep(Duration::from_millis(length));
            let is_asked_back = tokio::select! {
                biased;
                reason = guard.lost() => return self.lost(attempt, &guard, reason),
                () = guard.revoked(), if heeds_revocation => true,
                () = step => false,
            };
            self.write(wish, &guard);
            if is_asked_back {
                break;
            }
        }
        if chance.one_in(10)
            && let Ok(again) = guard.reenter().await
        {
            tokio::select! {
                biased;
                reason = guard.lost() => return self.lost(attempt, &guard, reason),
                () = sleep(Duration::from_millis(length)) => {}
            }
            // The hold lasts until the other guard goes.
            let _ = again.release().await;
        }
        if let lockkeeper::State::Lost(reason) = guard.state() {
            return self.lost(attempt, &guard, reason);
        }
        self.see(Seen::Releasing { attempt });
        let releasing = self.clock.now();
        match guard.release().await {
            Ok(_) => self.see(Seen::Released { attempt }),
            // Lost while the release was on its way, or nobody knows: it counts on it no more.
            Err(error) => {
                self.see(Seen::Lost { attempt, since: releasing });
                if matches!(error, Error::Lost(reason) if ends_session(reason)) {
                    self.end();
                }
            }
        }
    }

    fn write(&self, wish: &Wish, guard: &Guard) {
        let Wish { lock, mode, .. } = wish;
        let token = Token(guard.token());
        let accepted = self.recorder.write_fenced(lock, token, *mode == Mode::Exclusive);
        self.see(Seen::Wrote { lock: lock.clone(), mode: *mode, token, accepted });
    }

    fn lost(&self, attempt: Attempt, guard: &Guard, reason: LossReason) {
        let since = self.believed_until(guard, reason);
        self.see(Seen::Lost { attempt, since });
        self.recorder.note(self.clock.now(), &format!("{attempt:?} was lost: {reason}"));
        if ends_session(reason) {
            self.end();
        }
    }

    /// Until when the holder counted on the lock: the client's own deadline, if that passed before
    /// it was told.
    fn believed_until(&self, guard: &Guard, reason: LossReason) -> Nanos {
        let deadline = self.clock.truth(guard.deadline_boottime_ns());
        match reason {
            LossReason::Expired { .. } => deadline.min(self.clock.now()),
            _ => self.clock.now().min(deadline),
        }
    }

    /// Looks at locks, and now and then asks for one back, as operators do.
    async fn look_around(self, mut chance: Chance) {
        while !self.is_over() {
            sleep(Duration::from_millis(chance.between(50, 1_500))).await;
            let (lock, _) = choose(&mut chance);
            let asked = self.clock.now();
            let Ok(view) = self.client.admin().get_lock(&lock, 1_000).await else { continue };
            let holders: Vec<Token> =
                view.iter().flat_map(|lock| &lock.holds).map(|hold| Token(hold.token)).collect();
            let waiters = view.map_or(0, |lock| lock.waiter_count as usize);
            let oldest = holders.first().copied();
            self.see(Seen::Viewed { lock: lock.clone(), asked, holders, waiters });
            let Some(token) = oldest.filter(|_| chance.one_in(6)) else { continue };
            let now = chance.one_in(3);
            if now {
                self.see(Seen::Forced { lock: lock.clone(), token });
            }
            // It may be gone, or nobody may know; either is fine.
            let _ = self.client.admin().revoke(&lock, token.0, now).await;
        }
    }

    /// Closes the session in the middle of everything.
    async fn close_after(self, life: Duration) {
        let until = tokio::time::Instant::now() + life;
        while tokio::time::Instant::now() < until {
            if self.is_over() {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        self.end();
        self.client.close().await;
    }
}

/// Whether a loss is of the whole session, and not of one hold.
fn ends_session(reason: LossReason) -> bool {
    !matches!(reason, LossReason::Forced | LossReason::Released)
}

fn choose(chance: &mut Chance) -> (String, Mode) {
    if chance.one_in(4) {
        let take = chance.between(1, u64::from(PERMITS_OF)) as u32;
        return (PERMITS.to_owned(), Mode::Permits { take, of: PERMITS_OF });
    }
    let mode = if chance.one_in(3) { Mode::Shared } else { Mode::Exclusive };
    ((*chance.pick(&LOCKS)).to_owned(), mode)
}

fn with_mode(request: LockRequest, mode: Mode) -> LockRequest {
    match mode {
        Mode::Exclusive => request,
        Mode::Shared => request.shared(),
        Mode::Permits { take, of } => request.permits(take, of),
    }
}
