//! What servers tell about locks, sessions and the cluster, in the client's own words.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper_wire::native::{self, mode, refused};

use crate::error::{Error, LossReason, Refused, RefusedCode};

/// A session's id: sixteen hexadecimal digits to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = Error;

    /// With `0x` before it or not: ZooKeeper's tools write one so.
    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_id = !digits.is_empty() && digits.len() <= 16;
        let id = is_id.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        id.map(Self).ok_or_else(|| {
            Error::Config(format!("{text:?} is no session id (up to 16 hexadecimal digits)"))
        })
    }
}

/// How a lock is asked for. A lock in use serves one family: exclusive and shared, or permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with other sharers.
    Shared,
    /// `take` of `of` permits.
    Permits {
        /// How many this hold takes, from 1 to `of`.
        take: u32,
        /// How many there are; fixed while the lock is in use. 0 where servers don't know, which is
        /// of [`LockKind::ZooKeeper`] alone.
        of: u32,
    },
}

/// Who a client says it is. Shown to others, never trusted. Empty fields are "not said".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Host name.
    pub host: String,
    /// Process id, 0 if not said.
    pub pid: u32,
    /// User name.
    pub user: String,
    /// Program or command line.
    pub program: String,
    /// What the session is for.
    pub purpose: String,
    /// Free labels: at most 16, keys and values of at most 128 bytes.
    pub labels: Vec<(String, String)>,
}

impl Owner {
    /// This process, as far as it can be told: host, process id, user and program.
    #[must_use]
    pub fn of_this_process() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = std::path::Path::new(&program).file_name().unwrap_or_default();
        Self {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            user: std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default(),
            program: program.to_string_lossy().into_owned(),
            purpose: String::new(),
            labels: Vec::new(),
        }
    }
}

impl fmt::Display for Owner {
    /// `alice@build-7 (pid 4121, "release 8.2")`, leaving out what isn't said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.user.is_empty(), self.host.is_empty()) {
            (false, false) => write!(f, "{}@{}", Printable(&self.user), Printable(&self.host))?,
            (false, true) => write!(f, "{}", Printable(&self.user))?,
            (true, false) => write!(f, "{}", Printable(&self.host))?,
            (true, true) => f.write_str("somebody")?,
        }
        match (self.pid, self.purpose.is_empty()) {
            (0, true) => Ok(()),
            (0, false) => write!(f, " ({:?})", self.purpose),
            (pid, true) => write!(f, " (pid {pid})"),
            (pid, false) => write!(f, " (pid {pid}, {:?})", self.purpose),
        }
    }
}

/// Text from elsewhere, with control characters escaped so that it can't play with a terminal.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?
            } else {
                fmt::Write::write_char(f, c)?
            }
        }
        Ok(())
    }
}

/// A place in line, as last told by a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Which lock.
    pub lock: String,
    /// 1 for the next in line.
    pub place: u32,
    /// The oldest hold.
    pub holder: Option<Hold>,
    /// How many hold it.
    pub hold_count: u32,
}

/// Whose lock it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockKind {
    /// Granted by the cluster to clients like this one.
    #[default]
    Native,
    /// A directory in which ZooKeeper's clients stand in line; its name is the directory's path.
    /// Who holds it is read from the names of its children, as the clients' recipes have it.
    ZooKeeper,
}

/// Somebody holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which lock.
    pub lock: String,
    /// The holder's session.
    pub session: SessionId,
    /// The number of its acquire.
    pub acquire: u64,
    /// The fencing token.
    pub token: u64,
    /// How.
    pub mode: Mode,
    /// Milliseconds since the Unix epoch, by the leader's clock, for display.
    pub since_stamp_ms: u64,
    /// How long it has been held.
    pub held: Duration,
    /// What for; empty if not said.
    pub purpose: String,
    /// An operator has asked for it back.
    pub is_revoked: bool,
    /// Who says so.
    pub owner: Owner,
    /// The lease of its session.
    pub ttl: Duration,
    /// What is left of that lease, as the leader knows it; `None` if it couldn't be asked.
    pub lease_left: Option<Duration>,
    /// Of a ZooKeeper lock: the name of the holder's child. Then the token is its czxid, the times
    /// are those since it was made, and there is no number of an acquire.
    pub znode: Option<String>,
}

/// Somebody waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Which lock.
    pub lock: String,
    /// The waiter's session.
    pub session: SessionId,
    /// The number of its acquire.
    pub acquire: u64,
    /// How it wants the lock.
    pub mode: Mode,
    /// Milliseconds since the Unix epoch, by the leader's clock, for display.
    pub since_stamp_ms: u64,
    /// How long it has been waiting.
    pub waited: Duration,
    /// What for; empty if not said.
    pub purpose: String,
    /// 1 for the next in line.
    pub place: u32,
    /// Who says so.
    pub owner: Owner,
    /// Of a ZooKeeper lock: the name of the waiter's child.
    pub znode: Option<String>,
}

/// A lock in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Who holds it, oldest first, as many as were asked for.
    pub holds: Vec<Hold>,
    /// How many hold it.
    pub hold_count: u32,
    /// Who waits, next in line first, as many as were asked for.
    pub waiters: Vec<Waiter>,
    /// How many wait.
    pub waiter_count: u32,
    /// Whose lock it is.
    pub kind: LockKind,
}

/// A live session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Its lease.
    pub ttl: Duration,
    /// Who it says it is.
    pub owner: Owner,
    /// Milliseconds since the Unix epoch, by the leader's clock, for display.
    pub opened_stamp_ms: u64,
    /// An operator has asked it to end.
    pub is_revoked: bool,
    /// What it holds (not in lists).
    pub holds: Vec<Hold>,
    /// What it waits for (not in lists).
    pub waits: Vec<Waiter>,
    /// How many holds and places it has.
    pub item_count: u32,
    /// What is left of its lease, as the leader knows it; `None` if it couldn't be asked.
    pub lease_left: Option<Duration>,
}

/// The cluster, as one server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// 32 hexadecimal digits.
    pub cluster_id: String,
    /// Who answers.
    pub node: u64,
    /// The leader, if one is known.
    pub leader: Option<u64>,
    /// The term of its election.
    pub term: u64,
    /// Everybody, in order of id.
    pub members: Vec<Member>,
    /// The last log index that the answering node has applied.
    pub applied_index: u64,
    /// Its revision: above every token granted so far.
    pub revision: u64,
    /// Live sessions.
    pub session_count: u64,
    /// Locks in use.
    pub lock_count: u64,
    /// Holds.
    pub hold_count: u64,
    /// Waiters.
    pub waiter_count: u64,
    /// The answering node's version.
    pub version: String,
    /// Nothing is granted yet, after a restore.
    pub is_silent: bool,
}

/// One server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub node: u64,
    /// Where its peers reach it.
    pub peer_address: String,
    /// It votes (a learner doesn't, yet).
    pub is_voter: bool,
    /// It leads.
    pub is_leader: bool,
    /// How long ago the answering node heard from it; `None`: never.
    pub heard_ago: Option<Duration>,
    /// What is known to be on its disk: the leader's view.
    pub matched_index: Option<u64>,
}

/// A transition of a lock, as a watch reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockEvent {
    /// `queued`, `granted`, `released`, `cancelled`, `revoked` or `lost`.
    pub event: String,
    /// Which lock.
    pub lock: String,
    /// Whose.
    pub session: SessionId,
    /// The number of the acquire.
    pub acquire: u64,
    /// The token, where there is one.
    pub token: Option<u64>,
    /// Milliseconds since the Unix epoch, by the leader's clock, for display.
    pub stamp_ms: u64,
    /// How long it waited.
    pub waited: Duration,
    /// How long it was held.
    pub held: Duration,
    /// Its place in line (`queued`), 1 for the next; 0 otherwise.
    pub place: u32,
    /// Why it was lost or cancelled; empty otherwise.
    pub reason: String,
    /// Who.
    pub owner: Owner,
}

// ------------------------------------------------------------------ from and to the wire

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl From<Mode> for native::Mode {
    fn from(mode: Mode) -> Self {
        let kind = match mode {
            Mode::Exclusive => mode::Kind::Exclusive(true),
            Mode::Shared => mode::Kind::Shared(true),
            Mode::Permits { take, of } => mode::Kind::Permits(native::Permits { take, of }),
        };
        Self { kind: Some(kind) }
    }
}

impl From<native::Mode> for Mode {
    fn from(mode: native::Mode) -> Self {
        match mode.kind {
            None | Some(mode::Kind::Exclusive(_)) => Self::Exclusive,
            Some(mode::Kind::Shared(_)) => Self::Shared,
            Some(mode::Kind::Permits(permits)) => {
                Self::Permits { take: permits.take, of: permits.of }
            }
        }
    }
}

impl From<Owner> for native::Owner {
    fn from(owner: Owner) -> Self {
        let Owner { host, pid, user, program, purpose, labels } = owner;
        let label = |(key, value)| native::Label { key, value };
        let labels = labels.into_iter().map(label).collect();
        Self { host, pid, user, program, purpose, labels }
    }
}

impl From<native::Owner> for Owner {
    fn from(owner: native::Owner) -> Self {
        let native::Owner { host, pid, user, program, purpose, labels } = owner;
        let labels = labels.into_iter().map(|label| (label.key, label.value)).collect();
        Self { host, pid, user, program, purpose, labels }
    }
}

impl From<native::Hold> for Hold {
    fn from(hold: native::Hold) -> Self {
        Self {
            lock: hold.lock,
            session: SessionId(hold.session),
            acquire: hold.acquire,
            token: hold.token,
            mode: hold.mode.unwrap_or_default().into(),
            since_stamp_ms: hold.since_stamp_ms,
            held: ms(hold.held_ms),
            purpose: hold.purpose,
            is_revoked: hold.is_revoked,
            owner: hold.owner.unwrap_or_default().into(),
            ttl: ms(hold.ttl_ms.into()),
            lease_left: hold.lease_left_ms.map(|left| ms(left.into())),
            znode: Some(hold.znode).filter(|name| !name.is_empty()),
        }
    }
}

impl From<native::Waiter> for Waiter {
    fn from(waiter: native::Waiter) -> Self {
        Self {
            lock: waiter.lock,
            session: SessionId(waiter.session),
            acquire: waiter.acquire,
            mode: waiter.mode.unwrap_or_default().into(),
            since_stamp_ms: waiter.since_stamp_ms,
            waited: ms(waiter.waited_ms),
            purpose: waiter.purpose,
            place: waiter.place,
            owner: waiter.owner.unwrap_or_default().into(),
            znode: Some(waiter.znode).filter(|name| !name.is_empty()),
        }
    }
}

impl From<native::Lock> for Lock {
    fn from(lock: native::Lock) -> Self {
        let kind = match lock.kind() {
            native::lock::Kind::Native => LockKind::Native,
            native::lock::Kind::Zookeeper => LockKind::ZooKeeper,
        };
        Self {
            kind,
            name: lock.name,
            holds: lock.holds.into_iter().map(Into::into).collect(),
            hold_count: lock.hold_count,
            waiters: lock.waiters.into_iter().map(Into::into).collect(),
            waiter_count: lock.waiter_count,
        }
    }
}

impl From<native::Session> for Session {
    fn from(session: native::Session) -> Self {
        Self {
            id: SessionId(session.session),
            ttl: ms(session.ttl_ms.into()),
            owner: session.owner.unwrap_or_default().into(),
            opened_stamp_ms: session.opened_stamp_ms,
            is_revoked: session.is_revoked,
            holds: session.holds.into_iter().map(Into::into).collect(),
            waits: session.waits.into_iter().map(Into::into).collect(),
            item_count: session.item_count,
            lease_left: session.lease_left_ms.map(|left| ms(left.into())),
        }
    }
}

impl From<native::Cluster> for Cluster {
    fn from(cluster: native::Cluster) -> Self {
        Self {
            cluster_id: cluster.cluster_id,
            node: cluster.node,
            leader: Some(cluster.leader).filter(|leader| *leader != 0),
            term: cluster.term,
            members: cluster.members.into_iter().map(Into::into).collect(),
            applied_index: cluster.applied_index,
            revision: cluster.revision,
            session_count: cluster.session_count,
            lock_count: cluster.lock_count,
            hold_count: cluster.hold_count,
            waiter_count: cluster.waiter_count,
            version: cluster.version,
            is_silent: cluster.is_silent,
        }
    }
}

impl From<native::Member> for Member {
    fn from(member: native::Member) -> Self {
        Self {
            node: member.node,
            peer_address: member.peer_address,
            is_voter: member.is_voter,
            is_leader: member.is_leader,
            heard_ago: member.heard_ms_ago.map(ms),
            matched_index: member.matched_index,
        }
    }
}

impl From<native::WatchEvent> for LockEvent {
    fn from(event: native::WatchEvent) -> Self {
        Self {
            event: event.event,
            lock: event.lock,
            session: SessionId(event.session),
            acquire: event.acquire,
            token: Some(event.token).filter(|token| *token != 0),
            stamp_ms: event.stamp_ms,
            waited: ms(event.waited_ms),
            held: ms(event.held_ms),
            place: event.place,
            reason: event.reason,
            owner: event.owner.unwrap_or_default().into(),
        }
    }
}

/// A refusal as the caller's error. `lock` is the one that was asked for, if any.
pub(crate) fn refused(refused: native::Refused, lock: String) -> Error {
    let code = match refused.code() {
        refused::Code::Busy => {
            let holder = refused.holder.map(|hold| Box::new(hold.into()));
            return Error::Busy { lock, holder };
        }
        refused::Code::Overloaded => return Error::Unavailable { message: refused.message },
        refused::Code::UnknownSession => RefusedCode::UnknownSession,
        refused::Code::WrongSecret => RefusedCode::WrongSecret,
        refused::Code::InvalidName => RefusedCode::InvalidName,
        refused::Code::LimitReached => RefusedCode::LimitReached,
        refused::Code::ModeConflict => RefusedCode::ModeConflict,
        refused::Code::BadPermits => RefusedCode::BadPermits,
        refused::Code::NotHeld => RefusedCode::NotHeld,
        refused::Code::StaleToken => RefusedCode::StaleToken,
        refused::Code::Revoked => RefusedCode::Revoked,
        refused::Code::BadRequest => RefusedCode::BadRequest,
        refused::Code::NotFound => RefusedCode::NotFound,
        refused::Code::Membership => RefusedCode::Membership,
        refused::Code::Unspecified
        | refused::Code::TooOld
        | refused::Code::NumberReused
        | refused::Code::AlreadyCancelled => RefusedCode::Other,
    };
    let has_limit = code == RefusedCode::LimitReached;
    Error::Refused(Box::new(Refused {
        code,
        message: refused.message,
        current_token: Some(refused.current_token).filter(|token| *token != 0),
        limit: has_limit.then_some((refused.limit, refused.limit_max)),
        current_mode: refused.current_mode.map(Into::into),
    }))
}

/// A server's "not now" as the caller's error.
pub(crate) fn unavailable(why: &native::Unavailable) -> Error {
    let (reached, of) = (why.reached, why.of);
    // Rounded down, so that a majority is more than it.
    if of > 0 && reached <= of / 2 {
        Error::NoQuorum { reached, of }
    } else {
        Error::Unavailable { message: why.message.clone() }
    }
}

/// Why a server says that something was taken away.
pub(crate) fn loss_reason(reason: &str, since_last_renewal: Duration) -> LossReason {
    match reason {
        "revoked" => LossReason::Revoked,
        "forced" => LossReason::Forced,
        "rebooted" => LossReason::Rebooted,
        "closed" => LossReason::Released,
        _ => LossReason::SessionEnded { since_last_renewal },
    }
}
