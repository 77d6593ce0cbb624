//! Questions: each is answered from the applied state, behind a linearizable read.

use std::collections::BTreeMap;

use lockkeeper_core::{Number, Refusal, Secret, SessionId, Stamp, StateMachine};
use lockkeeper_node::NodeHandle;
use lockkeeper_wire::native::{self as wire, response::Body};

use super::convert::{self, Room};
use crate::error::{self, No, Subject};
use crate::limits::{LINE_STEPS_MAX, LISTED_DEFAULT, LISTED_MAX, PAGE_DEFAULT, PAGE_MAX};
use crate::zookeeper::lines;

type Answer = Result<Body, No>;

/// Whether a session holds what its acquire asked for, now.
pub(super) async fn confirm(node: &NodeHandle, session: SessionId, acquire: Number) -> Answer {
    match read(node, |state, _| state.token(session, acquire)).await? {
        Some(token) => Ok(Body::Granted(wire::Granted { token: token.0 })),
        None => {
            let subject =
                Subject { session: Some(session), number: acquire.0, ..Subject::default() };
            Err(error::not_held(subject))
        }
    }
}

/// Whether `secret` is the session's.
pub(super) async fn authenticate(
    node: &NodeHandle,
    session: SessionId,
    secret: &Secret,
) -> Result<(), No> {
    let refusal = match read(node, |state, _| state.authenticate(session, secret)).await? {
        Some(true) => return Ok(()),
        Some(false) => Refusal::WrongSecret,
        None => Refusal::UnknownSession,
    };
    Err(error::session_refused(&refusal, session))
}

pub(super) async fn get_lock(node: NodeHandle, get: wire::GetLock) -> Answer {
    let list_max = within(get.list_max, LISTED_DEFAULT, LISTED_MAX);
    let found = read(&node, |state, now| {
        if let Some(view) = state.lock(&get.lock, list_max) {
            return Some(convert::lock(&view, list_max, &mut Room::default(), state, now));
        }
        // No native lock's name is a path.
        let line = lines::line(state.tree(), &get.lock, list_max)?;
        Some(convert::line(&line, &mut Room::default(), state, now))
    });
    // A lock that nobody uses is a lock all the same: free.
    let mut lock =
        found.await?.unwrap_or_else(|| wire::Lock { name: get.lock, ..Default::default() });
    add_leases(&node, lock.holds.iter_mut().collect()).await;
    Ok(Body::Lock(lock))
}

pub(super) async fn list_locks(node: NodeHandle, list: wire::ListLocks) -> Answer {
    let count_max = within(list.count_max, PAGE_DEFAULT, PAGE_MAX);
    let mut page = read(&node, |state, now| page_of_locks(state, now, &list, count_max)).await?;
    add_leases(&node, page.locks.iter_mut().flat_map(|lock| &mut lock.holds).collect()).await;
    Ok(Body::Locks(page))
}

/// Locks of both kinds, by name: no native lock is called as a ZooKeeper lock is.
fn page_of_locks(
    state: &StateMachine,
    now: Stamp,
    list: &wire::ListLocks,
    count_max: usize,
) -> wire::Locks {
    let after = (!list.after.is_empty()).then_some(list.after.as_str());
    let mut natives = state.locks(&list.prefix, after, count_max + 1).into_iter().peekable();
    let mut paths = lines::paths(state.tree(), &list.prefix, after).peekable();
    let (mut locks, mut room, mut steps) = (Vec::new(), Room::default(), LINE_STEPS_MAX);
    loop {
        let is_native = match (natives.peek(), paths.peek()) {
            (None, None) => return wire::Locks { locks, more: false },
            (Some(native), Some(path)) => *native.name < ***path,
            (native, _) => native.is_some(),
        };
        if locks.len() == count_max || steps == 0 {
            return wire::Locks { locks, more: true };
        }
        let mut of_one = Room::default();
        let native = natives.next_if(|_| is_native);
        let lock =
            native.map(|view| convert::lock(&view, 1, &mut of_one, state, now)).or_else(|| {
                let line = lines::head(state.tree(), paths.next()?)?;
                steps = steps.saturating_sub(line.steps);
                Some(convert::line(&line, &mut of_one, state, now))
            });
        let Some(lock) = lock else { continue };
        if !room.takes(&lock) {
            return wire::Locks { locks, more: true };
        }
        locks.push(lock);
    }
}

pub(super) async fn get_session(node: NodeHandle, get: wire::GetSession) -> Answer {
    let id = SessionId(get.session);
    let found = read(&node, |state, now| {
        let mut room = Room::default();
        let mut session = convert::session(&state.session(id)?, &mut room, state, now);
        convert::add_lines(&mut session, &mut room, state, now);
        Some(session)
    });
    let Some(mut session) = found.await? else {
        return Err(error::not_found(format!(
            "session {id}: there is none; it has ended, or never was"
        )));
    };
    session.lease_left_ms = node.leases_left(&[id]).await.first().copied().flatten();
    Ok(Body::Session(session))
}

pub(super) async fn list_sessions(node: NodeHandle, list: wire::ListSessions) -> Answer {
    let count_max = within(list.count_max, PAGE_DEFAULT, PAGE_MAX);
    let after = (list.after != 0).then_some(SessionId(list.after));
    let mut page = read(&node, |state, now| {
        let found = state.sessions(after, count_max + 1);
        let mut room = Room::default();
        let listed = found
            .iter()
            .take(count_max)
            .map(|view| convert::session(view, &mut Room::default(), state, now));
        let sessions: Vec<_> = listed.take_while(|session| room.takes(session)).collect();
        wire::Sessions { more: sessions.len() < found.len(), sessions }
    })
    .await?;
    let ids: Vec<_> = page.sessions.iter().map(|session| SessionId(session.session)).collect();
    for (session, left_ms) in page.sessions.iter_mut().zip(node.leases_left(&ids).await) {
        session.lease_left_ms = left_ms;
    }
    Ok(Body::Sessions(page))
}

/// What this node knows without asking anybody: the one question that is answered without a
/// majority, because that is when it is asked.
pub(super) fn cluster_status(node: &NodeHandle) -> Answer {
    let status = node.status();
    let member = |member: &lockkeeper_node::MemberStatus| wire::Member {
        node: member.member.id,
        peer_address: member.member.peer_address.clone(),
        is_voter: member.is_voter,
        is_leader: status.leader == Some(member.member.id),
        heard_ms_ago: member.heard_ms_ago,
        matched_index: member.matched_index,
    };
    let of_state = node.query(|state, _| {
        let counts = state.counts();
        wire::Cluster {
            cluster_id: state.cluster().map(|id| id.to_string()).unwrap_or_default(),
            revision: state.revision().0,
            session_count: counts.sessions as u64,
            lock_count: counts.locks as u64,
            hold_count: counts.holds as u64,
            waiter_count: counts.waiters as u64,
            is_silent: state.is_silent(),
            ..wire::Cluster::default()
        }
    });
    Ok(Body::Cluster(wire::Cluster {
        node: status.id,
        leader: status.leader.unwrap_or(0),
        term: status.term,
        members: status.members.iter().map(member).collect(),
        applied_index: status.applied_index,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..of_state
    }))
}

/// Looks at a state that has everything which was committed before the question came.
async fn read<R>(node: &NodeHandle, look: impl FnOnce(&StateMachine, Stamp) -> R) -> Result<R, No> {
    node.read_index().await.map_err(|error| error::unavailable(&error))?;
    Ok(node.query(look))
}

/// Fills in what only the leader knows: how much of each holder's lease is left.
async fn add_leases(node: &NodeHandle, holds: Vec<&mut wire::Hold>) {
    let sessions: Vec<_> = holds.iter().map(|hold| SessionId(hold.session)).collect();
    let known = node.leases_left(&sessions).await;
    let left: BTreeMap<_, _> = sessions.into_iter().zip(known).collect();
    for hold in holds {
        hold.lease_left_ms = left.get(&SessionId(hold.session)).copied().flatten();
    }
}

/// The number asked for, where 0 means the default, cut to what is allowed.
fn within(asked: u32, default: usize, max: usize) -> usize {
    if asked == 0 { default } else { usize::try_from(asked).map_or(max, |asked| asked.min(max)) }
}
