//! Asking for a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::native::{self, Request, request, response};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::client::Client;
use crate::error::{Error, LossReason, RefusedCode};
use crate::guard::Guard;
use crate::requests::{Answer, unsent};
use crate::session::Session;
use crate::socket::check_length;
use crate::views::{Hold, Mode, QueueView};

/// Called with a request's place in line.
type OnWait = Arc<dyn Fn(&QueueView) + Send + Sync>;

/// How long a request that has timed out looks for its place and the holder, to tell its caller.
const LAST_LOOK_MAX: Duration = Duration::from_secs(1);
/// Waiters listed in that look; a place further back is the one that was told first.
const LAST_LOOK_WAITERS: u32 = 1_000;

/// A request for one lock, made with [`Client::lock`]. Nothing is sent before
/// [`LockRequest::acquire`] or [`LockRequest::try_acquire`].
#[derive(Clone)]
#[must_use = "nothing is asked for before `acquire` or `try_acquire`"]
pub struct LockRequest {
    client: Client,
    name: String,
    mode: Mode,
    purpose: String,
    wait_at_most: Option<Duration>,
    on_wait: Option<OnWait>,
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, mode, wait_at_most, .. } = self;
        write!(f, "LockRequest({name:?}, {mode:?}, wait_at_most: {wait_at_most:?})")
    }
}

impl LockRequest {
    pub(crate) const fn new(client: Client, name: String) -> Self {
        let mode = Mode::Exclusive;
        Self { client, name, mode, purpose: String::new(), wait_at_most: None, on_wait: None }
    }

    /// Together with other sharers, and with nobody who wants it alone. All stand in one line:
    /// sharers don't overtake somebody who waits to have it alone.
    pub const fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// `take` of `of` permits (a semaphore). `of` is fixed while the lock is in use: another
    /// number is refused with [`RefusedCode::ModeConflict`].
    pub const fn permits(mut self, take: u32, of: u32) -> Self {
        self.mode = Mode::Permits { take, of };
        self
    }

    /// What for, shown to those who wait: at most 256 bytes.
    pub fn purpose(mut self, purpose: impl Into<String>) -> Self {
        self.purpose = purpose.into();
        self
    }

    /// Gives up with [`Error::TimedOut`] if the lock isn't granted within `limit`, counted from
    /// the call of [`LockRequest::acquire`]. Without it, the request waits for as long as its
    /// session lives. Zero is the same as [`LockRequest::try_acquire`].
    ///
    /// The error comes when the place has been given up: two round trips after the limit, or up to
    /// `connect_timeout` later if no server can be reached just then.
    pub const fn wait_at_most(mut self, limit: Duration) -> Self {
        self.wait_at_most = Some(limit);
        self
    }

    /// Called when the request has to wait, with its place and the holder, and again when it
    /// learns its place anew after a reconnect. It is called by the task that waits.
    pub fn on_wait(mut self, on_wait: impl Fn(&QueueView) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(on_wait));
        self
    }

    /// Waits for the lock.
    ///
    /// Dropping the future leaves no trace: wherever the request has got to, it is cancelled in
    /// the background, and what it may have been granted is given back.
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`] after `wait_at_most`. The place has been given up by then. If the
    ///   grant came in before that, the guard is returned instead.
    /// - [`Error::NoQuorum`], [`Error::Unreachable`], [`Error::Unavailable`] if no server could
    ///   serve the request for `connect_timeout`. Nothing was acquired.
    /// - [`Error::Lost`] if the session's lease ran out while the request waited: its place is
    ///   gone; with [`LossReason::Forced`] if it was granted while no server could be heard, and an
    ///   operator passed it on meanwhile.
    /// - [`Error::Refused`], with the cluster's reason; [`Error::Config`], [`Error::Closed`].
    pub async fn acquire(self) -> Result<Guard, Error> {
        match self.wait_at_most {
            Some(Duration::ZERO) => self.try_acquire().await,
            _ => self.ask(true).await,
        }
    }

    /// Takes the lock if it is free now.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] with the holder if it isn't (or if somebody waits for it already);
    /// otherwise those of [`LockRequest::acquire`].
    pub async fn try_acquire(mut self) -> Result<Guard, Error> {
        self.wait_at_most = None;
        self.ask(false).await
    }

    async fn ask(self, wait: bool) -> Result<Guard, Error> {
        check_length("the lock's name", self.name.len())?;
        check_length("the purpose", self.purpose.len())?;
        let begun = Instant::now();
        // A limit beyond the clock's end is none.
        let until = self.wait_at_most.and_then(|limit| begun.checked_add(limit));
        let limit = until.map(|until| (until, self.name.clone()));
        let session = self.client.open_session()?;
        let acquire = unsent(request::Body::Acquire(native::Acquire {
            lock: self.name,
            mode: (self.mode != Mode::Exclusive).then(|| self.mode.into()),
            wait,
            purpose: self.purpose,
        }));
        let Some((until, name)) = limit else {
            return request(session, acquire, self.on_wait).await;
        };
        let sent = Pending::send(session, acquire, self.on_wait);
        let Ok(pending) = timeout_at(until, sent).await else {
            return Err(timed_out(name, begun, None, None));
        };
        let mut pending = pending?;
        match timeout_at(until, pending.granted()).await {
            Ok(guard) => guard,
            Err(_) => pending.give_up(name, begun).await,
        }
    }
}

/// Makes a request that is answered by a grant, and waits for that for as long as it takes.
pub(crate) async fn request(
    session: Arc<Session>,
    request: Box<Request>,
    on_wait: Option<OnWait>,
) -> Result<Guard, Error> {
    Pending::send(session, request, on_wait).await?.granted().await
}

/// A request that is repeated after a broken connection and finds nothing held was granted unheard,
/// and its hold taken away by an operator.
fn lost_unheard(error: Error) -> Error {
    match error {
        Error::Refused(no) if no.code == RefusedCode::NotHeld => Error::Lost(LossReason::Forced),
        error => error,
    }
}

fn timed_out(lock: String, begun: Instant, place: Option<u32>, holder: Option<Hold>) -> Error {
    Error::TimedOut { lock, waited: begun.elapsed(), place, holder: holder.map(Box::new) }
}

/// A request for a grant, under way. Dropped before it is settled, it is cancelled.
struct Pending {
    session: Arc<Session>,
    number: u64,
    reply: oneshot::Receiver<Result<Answer, Error>>,
    /// Where news of its place come in, and who is to hear them.
    news: Option<(watch::Receiver<Option<QueueView>>, OnWait)>,
    is_settled: bool,
}

impl Pending {
    /// Sends a request. Once this returns, dropping it settles the request.
    async fn send(
        session: Arc<Session>,
        request: Box<Request>,
        on_wait: Option<OnWait>,
    ) -> Result<Self, Error> {
        let (to, news) = match on_wait {
            None => (None, None),
            Some(on_wait) => {
                let (to, news) = watch::channel(None);
                (Some(to), Some((news, on_wait)))
            }
        };
        let (number, reply) = session.request(request, to).await?;
        Ok(Self { session, number, reply, news, is_settled: false })
    }

    /// Waits for the grant, and tells of the place meanwhile. Dropping the future loses nothing.
    async fn granted(&mut self) -> Result<Guard, Error> {
        let answer = loop {
            let Some((news, on_wait)) = &mut self.news else { break (&mut self.reply).await };
            tokio::select! {
                biased;
                answer = &mut self.reply => break answer,
                changed = news.changed() => {
                    let view = news.borrow_and_update().clone();
                    match view {
                        Some(view) if changed.is_ok() => on_wait(&view),
                        // It is granted or refused: the answer is on its way.
                        _ => self.news = None,
                    }
                }
            }
        };
        // Only the end of the session leaves a caller without an answer.
        self.take(answer.unwrap_or(Err(Error::Closed)))
    }

    /// The guard of what was granted.
    fn take(&mut self, answer: Result<Answer, Error>) -> Result<Guard, Error> {
        match answer.map_err(lost_unheard)? {
            Answer::Granted { token, lock } => {
                self.is_settled = true;
                Ok(Guard::new(Arc::clone(&self.session), self.number, token, lock))
            }
            Answer::Released { .. } | Answer::Done => {
                let message = "the server answered an acquire with something else".to_owned();
                Err(Error::Unknown { message })
            }
        }
    }

    /// The caller's time is over: the place is given up before the caller is told.
    async fn give_up(mut self, name: String, begun: Instant) -> Result<Guard, Error> {
        let view = timeout(LAST_LOOK_MAX, self.last_look(&name)).await.ok().flatten();
        let view = view.or_else(|| self.session.queue_view(self.number));
        if let Ok(answer) = self.reply.try_recv() {
            return self.take(answer);
        }
        let (place, holder) = view.map_or((None, None), |view| (Some(view.place), view.holder));
        let error = match self.session.trouble() {
            // It never got as far as a place, because nobody could be asked.
            Some(trouble) if place.is_none() => trouble,
            _ => timed_out(name, begun, place, holder),
        };
        // From here on a grant would be given back. Its outcome is known when this is answered (or
        // when the session is over, which gives it back as well).
        let (to, settled) = oneshot::channel();
        self.is_settled = true;
        self.session.abandon(self.number, Some(to));
        let _ = settled.await;
        Err(error)
    }

    /// Where the request stands now, and who holds the lock.
    async fn last_look(&self, name: &str) -> Option<QueueView> {
        // If it has no place, or no connection, there is nothing to see.
        self.session.queue_view(self.number)?;
        let question = native::GetLock { lock: name.to_owned(), list_max: LAST_LOOK_WAITERS };
        let answer = self.session.ask(request::Body::GetLock(question)).await.ok()?;
        let response::Body::Lock(lock) = answer else { return None };
        let id = self.session.id.0;
        let is_own = |w: &&native::Waiter| w.session == id && w.acquire == self.number;
        let place = lock.waiters.iter().find(is_own)?.place;
        let holder = lock.holds.into_iter().next().map(Into::into);
        Some(QueueView { lock: lock.name, place, holder, hold_count: lock.hold_count })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_settled {
            self.session.abandon(self.number, None);
        }
    }
}
