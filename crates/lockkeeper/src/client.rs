//! The client: where the servers are, and the session that its locks share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::admin::Admin;
use crate::clock::{Clock, SystemClock};
use crate::connection::Driver;
use crate::conversation::{Conversation, Conversations};
use crate::embedded::Starter;
use crate::error::Error;
use crate::lock::LockRequest;
use crate::network::{Network, SystemNetwork};
use crate::session::{Session, SessionInfo};
use crate::settings::{
    CONNECT_TIMEOUT_DEFAULT, CONNECT_TIMEOUT_MAX, Settings, TTL_DEFAULT, TTL_MAX, TTL_MIN,
};
use crate::socket::check_length;
use crate::url::Target;
use crate::views::{Owner, SessionId};

/// A client of one cluster. Cheap to clone; the clones share one session.
///
/// The session is opened by the first [`Client::lock`] and renewed by a task on the tokio runtime
/// that made it. If that runtime stands still (a `current_thread` one whose thread is blocked),
/// nothing is renewed, and what is held is lost in time. When a session is lost, the next `lock`
/// opens another one.
///
/// When the last clone and the last guard are dropped, the session is ended in the background;
/// [`Client::close`] waits for it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Arc<Settings>,
    conversations: Conversations,
    current: Mutex<Current>,
}

/// The session that the next lock is asked for under.
enum Current {
    None,
    Session(Arc<Session>),
    Closed,
}

/// What a client is told before it connects; made with [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `connect`"]
pub struct ClientBuilder {
    url: String,
    ttl: Duration,
    owner: Option<Owner>,
    connect_timeout: Duration,
    clock: Arc<dyn Clock>,
    network: Arc<dyn Network>,
    starter: Option<Arc<dyn Starter>>,
}

impl Client {
    /// Connects to `lockkeeper://host:port,…` (any of a cluster's servers), `unix:/path` or
    /// `embedded:` (this user's own node on this machine), with the defaults of
    /// [`Client::builder`].
    ///
    /// # Errors
    ///
    /// Those of [`ClientBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).connect().await
    }

    /// More to say than a URL.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            url: String::new(),
            ttl: TTL_DEFAULT,
            owner: None,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            clock: Arc::new(SystemClock),
            network: Arc::new(SystemNetwork),
            starter: None,
        }
    }

    /// Asks for the lock `name`: a path of 1 to 1,024 bytes, without empty segments or control
    /// characters. What is refused is refused by the servers, when the request is sent.
    pub fn lock(&self, name: impl Into<String>) -> LockRequest {
        LockRequest::new(self.clone(), name.into())
    }

    /// Questions about locks, sessions and the cluster, and the operator's requests. They need no
    /// session.
    #[must_use]
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(&self.inner.settings, &self.inner.conversations)
    }

    /// The session that the next lock would be asked for under; `None` before the first one, and
    /// after the session was lost.
    #[must_use]
    pub fn session(&self) -> Option<SessionInfo> {
        match &*self.inner.current.lock() {
            Current::Session(session) if session.is_usable() => Some(session.info()),
            Current::Session(_) | Current::None | Current::Closed => None,
        }
    }

    /// Ends the session, and with it everything that is held or waited for, and waits until the
    /// servers know (at most `connect_timeout`; then the lease runs out by itself). Guards are
    /// lost at once. Later locks fail with [`Error::Closed`].
    pub async fn close(&self) {
        let last = std::mem::replace(&mut *self.inner.current.lock(), Current::Closed);
        if let Current::Session(session) = last {
            session.close();
            session.closed().await;
        }
    }

    /// The session for a new request, made if there is none that could still hold anything.
    pub(crate) fn open_session(&self) -> Result<Arc<Session>, Error> {
        let mut current = self.inner.current.lock();
        match &*current {
            Current::Closed => return Err(Error::Closed),
            Current::Session(session) if session.is_usable() => return Ok(Arc::clone(session)),
            Current::Session(_) | Current::None => {}
        }
        self.inner.conversations.let_go();
        let (session, shared) = Session::new(&self.inner.settings)?;
        tokio::spawn(Driver::new(shared)?.run());
        let session = Arc::new(session);
        *current = Current::Session(Arc::clone(&session));
        Ok(session)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.inner.settings.url)
    }
}

impl ClientBuilder {
    /// Where the servers are: `lockkeeper://host:port,…`, `unix:/path` or `embedded:`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self
    }

    /// The lease: how long the cluster waits for a client that it doesn't hear before it passes
    /// its locks on. From 200 ms to 24 h, by default 10 s.
    ///
    /// A shorter lease passes locks on sooner after a crash, and is lost sooner in a bad moment:
    /// one that is shorter than the cluster's failover doesn't outlive a failover.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Who the session says it is; by default [`Owner::of_this_process`].
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// How long a call looks for a server that can serve it before it fails; by default 10 s, at
    /// most a day.
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Starts the node of an `embedded:` URL when nobody listens there.
    pub fn starter(mut self, starter: Arc<dyn Starter>) -> Self {
        self.starter = Some(starter);
        self
    }

    /// Another clock than the system's, for a simulator.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Another way to the servers than the system's, for a simulator.
    pub fn network(mut self, network: Arc<dyn Network>) -> Self {
        self.network = network;
        self
    }

    /// Reaches one of the servers. No session is opened yet.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL or a lease that can't be used; [`Error::Unreachable`] or
    /// [`Error::Protocol`] if no server answered within `connect_timeout`.
    pub async fn connect(self) -> Result<Client, Error> {
        let settings = Arc::new(self.settings()?);
        let conversations = Conversations::default();
        let first = Conversation::open(&settings, &conversations).await?;
        conversations.keep(first);
        let current = Mutex::new(Current::None);
        Ok(Client { inner: Arc::new(Inner { settings, conversations, current }) })
    }

    pub(crate) fn settings(self) -> Result<Settings, Error> {
        if self.ttl < TTL_MIN || self.ttl > TTL_MAX {
            let (asked, min, max) = (self.ttl, TTL_MIN, TTL_MAX.as_secs() / 3_600);
            return Err(Error::Config(format!(
                "a lease of {asked:?} can't be had; choose one from {min:?} to {max} h"
            )));
        }
        let owner = self.owner.unwrap_or_else(Owner::of_this_process);
        let fields = [&owner.host, &owner.user, &owner.program, &owner.purpose];
        let labels = owner.labels.iter().flat_map(|(key, value)| [key, value]);
        let owner_bytes = fields.into_iter().chain(labels).map(String::len).sum();
        check_length("the owner", owner_bytes)?;
        Ok(Settings {
            target: Target::parse(&self.url)?,
            url: self.url,
            ttl: self.ttl,
            owner,
            connect_timeout: self.connect_timeout.min(CONNECT_TIMEOUT_MAX),
            clock: self.clock,
            network: self.network,
            starter: self.starter,
        })
    }
}

/// Ends a session by its secret, without being its client: for a process that watches over the one
/// that held the locks. Everything under it passes on. It is no error if it has ended already.
///
/// # Errors
///
/// [`Error::Config`]; [`Error::Unreachable`], [`Error::NoQuorum`] or [`Error::Unavailable`] if it
/// couldn't be done within 10 s; [`Error::Refused`] for a wrong secret.
pub async fn end_session(url: &str, id: SessionId, secret: [u8; 16]) -> Result<(), Error> {
    let settings = Client::builder().url(url).settings()?;
    Admin::new(&Arc::new(settings), &Conversations::default()).end_session(id, secret).await
}
