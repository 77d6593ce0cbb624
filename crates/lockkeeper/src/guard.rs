//! A lock that is held, and what its holder may believe.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_wire::native::{self, request, response};
use tokio::sync::{oneshot, watch};

use crate::clock::Boottime;
use crate::error::{Error, LossReason, RefusedCode};
use crate::lease::State;
use crate::lock;
use crate::requests::{Answer, unsent};
use crate::session::{Session, SessionInfo, Shared};
use crate::views;

/// What a hold tells about itself. Cheap to clone; it keeps neither the lock nor the session, as
/// its [`Guard`] does.
#[derive(Clone)]
pub struct Lease {
    session: Arc<Shared>,
    acquire: u64,
    token: u64,
    name: Arc<str>,
}

/// A lock that is held. Dropping it gives the lock back in the background.
///
/// Everything that can be asked of a [`Lease`] can be asked of its guard.
#[must_use = "dropping a guard gives its lock back"]
pub struct Guard {
    lease: Lease,
    /// Keeps the session open.
    session: Arc<Session>,
    is_released: bool,
}

/// A lock was given back, and was still held then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Its token.
    pub token: u64,
    /// Other guards of this session that hold it still, through [`Guard::reenter`].
    pub remaining: u32,
}

impl Lease {
    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fencing token: greater than that of every earlier grant of this lock. Show it to
    /// whatever is written under the lock, and let that refuse smaller ones than it has seen.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// What the holder may believe now, by the clock. No I/O.
    #[must_use]
    pub fn state(&self) -> State {
        self.session.state_of(self.acquire)
    }

    /// A cheap test for loops. No I/O.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        match self.state() {
            State::Held | State::Suspended { .. } => Ok(()),
            State::Lost(reason) => Err(Error::Lost(reason)),
        }
    }

    /// The state, and its changes from now on.
    #[must_use]
    pub fn watch_state(&self) -> watch::Receiver<State> {
        self.session.watch(self.acquire)
    }

    /// Completes when the lock is lost (or released). Dropping the future is harmless, and any
    /// number may wait.
    pub async fn lost(&self) -> LossReason {
        let mut states = self.watch_state();
        loop {
            if let State::Lost(reason) = *states.borrow_and_update() {
                return reason;
            }
            // The sender goes with the hold: the state says what has become of it.
            if states.changed().await.is_err()
                && let State::Lost(reason) = self.state()
            {
                return reason;
            }
        }
    }

    /// Completes when an operator asks for the lock back. Finish, and release it: from then on
    /// the session's lease isn't renewed any more, and when it is over everything under it is lost
    /// ([`LossReason::Revoked`]). Who doesn't listen just loses it then.
    ///
    /// It completes when the lock is lost, too.
    pub async fn revoked(&self) {
        let news = &self.session.revocations;
        loop {
            let mut next = pin!(news.notified());
            next.as_mut().enable();
            if self.session.is_revoked(self.acquire) || !self.state().is_held() {
                return;
            }
            next.await;
        }
    }

    /// How long the lock is held for sure if nothing is renewed any more; zero if it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.state().is_held() {
            return Duration::ZERO;
        }
        let session = &self.session;
        session.deadline.borrow().since(session.settings.clock.boottime())
    }

    /// When the session's lease is lost unless it is renewed, in nanoseconds since boot
    /// (`CLOCK_BOOTTIME`): for another process of this machine that watches over this one.
    #[must_use]
    pub fn deadline_boottime_ns(&self) -> u64 {
        self.session.deadline.borrow().as_nanos()
    }

    /// That deadline, and its changes from now on. When the lock is lost it simply stays.
    #[must_use]
    pub fn watch_deadline(&self) -> watch::Receiver<Boottime> {
        self.session.deadline.subscribe()
    }

    /// Asks the cluster: "do I hold it now?" One round trip, and one among the servers.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if not; [`Error::Unavailable`] or [`Error::NoQuorum`] if it can't be said
    /// now.
    pub async fn confirm(&self) -> Result<(), Error> {
        self.check()?;
        let acquire = self.acquire;
        match self.session.ask(request::Body::Confirm(native::Confirm { acquire })).await? {
            // The answer may have been long under way: the clock has the last word.
            response::Body::Granted(_) => self.check(),
            response::Body::Unavailable(why) => Err(views::unavailable(&why)),
            response::Body::Refused(no) => match views::refused(no, self.name().to_owned()) {
                Error::Refused(no) if no.code == RefusedCode::NotHeld => {
                    Err(Error::Lost(self.session.not_held(self.acquire)))
                }
                error => Err(error),
            },
            other => Err(Error::Unknown { message: format!("unexpected answer: {other:?}") }),
        }
    }

    /// The session that holds it.
    #[must_use]
    pub fn session(&self) -> SessionInfo {
        self.session.info()
    }
}

impl Guard {
    pub(crate) fn new(session: Arc<Session>, acquire: u64, token: u64, name: String) -> Self {
        let lease = Lease { session: session.share(), acquire, token, name: name.into() };
        Self { lease, session, is_released: false }
    }

    /// What this guard tells, for other tasks; it doesn't keep the lock.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Does `work` under the lock and gives it back at the end.
    ///
    /// The lease is looked at before every step of the work. When the lock is lost, the work is
    /// dropped where it stands, and never goes on. Work that blocks its thread can't be dropped:
    /// let it ask [`Lease::check`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost before the work was done. If only the giving back can't
    /// be confirmed, the work was done under the lock all the same, and its result is returned.
    pub async fn run<T, F>(self, work: impl FnOnce(Lease) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let done = {
            let mut work = pin!(work(self.lease()));
            let mut lost = pin!(self.lost());
            poll_fn(|cx| {
                // The clock first: after a pause the work must not take one more step.
                if let Err(error) = self.check() {
                    return Poll::Ready(Err(error));
                }
                if let Poll::Ready(reason) = lost.as_mut().poll(cx) {
                    return Poll::Ready(Err(Error::Lost(reason)));
                }
                work.as_mut().poll(cx).map(Ok)
            })
            .await?
        };
        // The work is done, and by the clock it was done under the lock; unless the cluster says
        // that it had been passed on.
        self.check()?;
        match self.release().await {
            Err(error @ Error::Lost(LossReason::Forced)) => Err(error),
            Ok(_) | Err(_) => Ok(done),
        }
    }

    /// Enters the lock once more: another guard on the same hold, with the same token, which ends
    /// when the last of them is released. The right way to hand a held lock to a callee that takes
    /// a guard; a second `lock(name)` would queue behind the first.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], and those of [`LockRequest::acquire`](crate::LockRequest::acquire).
    pub async fn reenter(&self) -> Result<Self, Error> {
        let (name, token) = (self.name().to_owned(), self.token);
        let request = unsent(request::Body::Reenter(native::Reenter { lock: name, token }));
        lock::request(Arc::clone(&self.session), request, None).await
    }

    /// Gives the lock back, and waits until the cluster has it. Dropping the future doesn't keep
    /// the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it wasn't held any more; [`Error::Unknown`] if no answer came within
    /// `connect_timeout`: it is then still tried in the background, for as long as the lease lasts.
    pub async fn release(mut self) -> Result<Released, Error> {
        self.is_released = true;
        let (to, reply) = oneshot::channel();
        self.session.release(self.acquire, Some(to)).map_err(Error::Lost)?;
        match reply.await {
            Ok(Ok(Answer::Released { remaining })) => Ok(Released { token: self.token, remaining }),
            Ok(Ok(Answer::Granted { .. } | Answer::Done)) => {
                let message = "the server answered a release with something else".to_owned();
                Err(Error::Unknown { message })
            }
            Ok(Err(Error::Refused(no))) if no.code == RefusedCode::NotHeld => {
                Err(Error::Lost(LossReason::Forced))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Closed),
        }
    }
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            // If it is lost, there is nothing to give back.
            let _ = self.session.release(self.acquire, None);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?}, token {}, {:?})", self.name(), self.token, self.state())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?}, token {}, {:?})", self.name(), self.token, self.state())
    }
}
