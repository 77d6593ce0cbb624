//! What programs get from `-o json`: one documented shape for each thing.
//!
//! Field names are promises: fields are added, never renamed. Moments are RFC 3339 in UTC, by the
//! leader's clock; lengths of time are milliseconds (`_ms`); a session is sixteen hexadecimal
//! digits; a token is a number that fits into 64 bits without a sign. Lists are never cut without
//! their `_count` or `more` saying so.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::Mode;
use lockkeeper::views;
use serde::Serialize;

use crate::text::rfc3339;

/// Milliseconds, cut off.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Who somebody says they are. Nothing of it is checked by anybody.
#[derive(Debug, Serialize)]
pub(crate) struct Owner {
    host: String,
    pid: u32,
    user: String,
    program: String,
    purpose: String,
    labels: BTreeMap<String, String>,
}

/// `exclusive`, `shared` or `permits`, the last with both numbers.
///
/// Of a ZooKeeper lock it isn't known how many permits there are: `of` is 0.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum HowHeld {
    Exclusive,
    Shared,
    Permits { take: u32, of: u32 },
}

/// One of those who hold a lock.
#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    lock: String,
    token: u64,
    session: String,
    mode: HowHeld,
    owner: Owner,
    /// What this hold is for.
    purpose: String,
    since: String,
    held_ms: u64,
    ttl_ms: u64,
    /// What is left of the lease; null if the leader couldn't be asked.
    lease_left_ms: Option<u64>,
    /// An operator has asked for it back.
    is_revoked: bool,
    /// The name of the holder's child, if the lock's kind is `zookeeper`; otherwise null.
    znode: Option<String>,
}

/// One of those who wait.
#[derive(Debug, Serialize)]
pub(crate) struct Waiter {
    lock: String,
    place: u32,
    session: String,
    mode: HowHeld,
    owner: Owner,
    purpose: String,
    since: String,
    waited_ms: u64,
    /// As a holder has it.
    znode: Option<String>,
}

/// `native`, or `zookeeper`: then the lock is a directory's path, a token is a czxid, and `since`
/// is when the child was made.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    #[default]
    Native,
    ZooKeeper,
}

/// `who`, and each of `ls`. In `ls`, `holders` and `waiters` may be the first few only.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Lock {
    lock: String,
    holders: Vec<Holder>,
    holder_count: u32,
    waiters: Vec<Waiter>,
    waiter_count: u32,
    kind: Kind,
}

/// `ls`.
#[derive(Debug, Serialize)]
pub(crate) struct Locks {
    pub(crate) locks: Vec<Lock>,
    /// There are more than were asked for.
    pub(crate) more: bool,
}

/// `session show`, and each of `session ls`, which leaves `holds` and `waits` empty.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    session: String,
    owner: Owner,
    opened: String,
    ttl_ms: u64,
    lease_left_ms: Option<u64>,
    is_revoked: bool,
    item_count: u32,
    holds: Vec<Holder>,
    waits: Vec<Waiter>,
}

/// `session ls`.
#[derive(Debug, Serialize)]
pub(crate) struct Sessions {
    pub(crate) sessions: Vec<Session>,
    /// There are more than were asked for.
    pub(crate) more: bool,
}

/// `watch`: one object a line.
#[derive(Debug, Serialize)]
pub(crate) struct Event {
    /// `queued`, `granted`, `released`, `cancelled`, `revoked` or `lost`.
    event: String,
    time: String,
    lock: String,
    session: String,
    /// Null where there is none.
    token: Option<u64>,
    owner: Owner,
    waited_ms: u64,
    held_ms: u64,
    /// Of `queued`; otherwise 0.
    place: u32,
    /// Why it was lost or cancelled.
    reason: String,
}

/// `cluster status` and `status`.
#[derive(Debug, Serialize)]
pub(crate) struct Cluster {
    cluster_id: String,
    /// Who answers.
    node: u64,
    /// 0 if none is known.
    leader: u64,
    term: u64,
    version: String,
    applied_index: u64,
    revision: u64,
    session_count: u64,
    lock_count: u64,
    hold_count: u64,
    waiter_count: u64,
    /// Nothing is granted yet, after a restore.
    is_silent: bool,
    members: Vec<Member>,
}

/// One server.
#[derive(Debug, Serialize)]
pub(crate) struct Member {
    node: u64,
    peer_address: String,
    is_voter: bool,
    is_leader: bool,
    /// Null: never.
    heard_ms_ago: Option<u64>,
    /// What is known to be on its disk, as the leader knows it; null elsewhere.
    matched_index: Option<u64>,
}

impl From<&views::Owner> for Owner {
    fn from(owner: &views::Owner) -> Self {
        let views::Owner { host, pid, user, program, purpose, labels } = owner.clone();
        Self { host, pid, user, program, purpose, labels: labels.into_iter().collect() }
    }
}

impl From<Mode> for HowHeld {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permits { take, of } => Self::Permits { take, of },
        }
    }
}

impl From<&views::Hold> for Holder {
    fn from(hold: &views::Hold) -> Self {
        Self {
            lock: hold.lock.clone(),
            token: hold.token,
            session: hold.session.to_string(),
            mode: hold.mode.into(),
            owner: (&hold.owner).into(),
            purpose: hold.purpose.clone(),
            since: rfc3339(hold.since_stamp_ms),
            held_ms: ms(hold.held),
            ttl_ms: ms(hold.ttl),
            lease_left_ms: hold.lease_left.map(ms),
            is_revoked: hold.is_revoked,
            znode: hold.znode.clone(),
        }
    }
}

impl From<&views::Waiter> for Waiter {
    fn from(waiter: &views::Waiter) -> Self {
        Self {
            lock: waiter.lock.clone(),
            place: waiter.place,
            session: waiter.session.to_string(),
            mode: waiter.mode.into(),
            owner: (&waiter.owner).into(),
            purpose: waiter.purpose.clone(),
            since: rfc3339(waiter.since_stamp_ms),
            waited_ms: ms(waiter.waited),
            znode: waiter.znode.clone(),
        }
    }
}

impl From<&views::Lock> for Lock {
    fn from(lock: &views::Lock) -> Self {
        Self {
            lock: lock.name.clone(),
            holders: lock.holds.iter().map(Into::into).collect(),
            holder_count: lock.hold_count,
            waiters: lock.waiters.iter().map(Into::into).collect(),
            waiter_count: lock.waiter_count,
            kind: match lock.kind {
                views::LockKind::Native => Kind::Native,
                views::LockKind::ZooKeeper => Kind::ZooKeeper,
            },
        }
    }
}

impl Lock {
    /// A lock that nobody holds or waits for.
    pub(crate) fn free(lock: &str) -> Self {
        Self { lock: lock.to_owned(), ..Self::default() }
    }
}

impl From<&views::Session> for Session {
    fn from(session: &views::Session) -> Self {
        Self {
            session: session.id.to_string(),
            owner: (&session.owner).into(),
            opened: rfc3339(session.opened_stamp_ms),
            ttl_ms: ms(session.ttl),
            lease_left_ms: session.lease_left.map(ms),
            is_revoked: session.is_revoked,
            item_count: session.item_count,
            holds: session.holds.iter().map(Into::into).collect(),
            waits: session.waits.iter().map(Into::into).collect(),
        }
    }
}

impl From<&views::LockEvent> for Event {
    fn from(event: &views::LockEvent) -> Self {
        Self {
            event: event.event.clone(),
            time: rfc3339(event.stamp_ms),
            lock: event.lock.clone(),
            session: event.session.to_string(),
            token: event.token,
            owner: (&event.owner).into(),
            waited_ms: ms(event.waited),
            held_ms: ms(event.held),
            place: event.place,
            reason: event.reason.clone(),
        }
    }
}

impl From<&views::Cluster> for Cluster {
    fn from(cluster: &views::Cluster) -> Self {
        Self {
            cluster_id: cluster.cluster_id.clone(),
            node: cluster.node,
            leader: cluster.leader.unwrap_or(0),
            term: cluster.term,
            version: cluster.version.clone(),
            applied_index: cluster.applied_index,
            revision: cluster.revision,
            session_count: cluster.session_count,
            lock_count: cluster.lock_count,
            hold_count: cluster.hold_count,
            waiter_count: cluster.waiter_count,
            is_silent: cluster.is_silent,
            members: cluster.members.iter().map(Into::into).collect(),
        }
    }
}

impl From<&views::Member> for Member {
    fn from(member: &views::Member) -> Self {
        Self {
            node: member.node,
            peer_address: member.peer_address.clone(),
            is_voter: member.is_voter,
            is_leader: member.is_leader,
            heard_ms_ago: member.heard_ago.map(ms),
            matched_index: member.matched_index,
        }
    }
}
