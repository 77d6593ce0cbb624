//! Wire types to core's and back. Nothing here decides anything.

use lockkeeper_core::{
    EndReason, Event, HoldView, LockView, LossReason, Mode, Number, Owner, OwnerRef, SessionId,
    SessionView, Stamp, StateMachine, WaiterView,
};
use lockkeeper_wire::native as wire;
use prost::Message;

use crate::zookeeper::lines::{self, Contender, Line};

/// Bytes that the lists of one answer may take: what a frame holds, less room for the rest of it.
const LISTS_BYTES_MAX: usize = wire::RESPONSE_BYTES_MAX - (64 << 10);

/// How a lock is asked for; not said means alone.
pub(super) fn mode(mode: Option<&wire::Mode>) -> Mode {
    match mode.and_then(|mode| mode.kind.as_ref()) {
        None | Some(wire::mode::Kind::Exclusive(_)) => Mode::Exclusive,
        Some(wire::mode::Kind::Shared(_)) => Mode::Shared,
        Some(&wire::mode::Kind::Permits(wire::Permits { take, of })) => Mode::Permits { take, of },
    }
}

pub(super) fn owner_ref(owner: Option<&wire::Owner>) -> OwnerRef<'_> {
    let Some(owner) = owner else { return OwnerRef::default() };
    OwnerRef {
        host: &owner.host,
        pid: owner.pid,
        user: &owner.user,
        program: &owner.program,
        purpose: &owner.purpose,
        labels: owner.labels.iter().map(|l| (l.key.as_str(), l.value.as_str())).collect(),
    }
}

pub(crate) fn wire_mode(mode: Mode) -> wire::Mode {
    let kind = match mode {
        Mode::Exclusive => wire::mode::Kind::Exclusive(true),
        Mode::Shared => wire::mode::Kind::Shared(true),
        Mode::Permits { take, of } => wire::mode::Kind::Permits(wire::Permits { take, of }),
    };
    wire::Mode { kind: Some(kind) }
}

pub(crate) fn end_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Closed => "closed",
        EndReason::Expired => "expired",
        EndReason::Revoked => "revoked",
        EndReason::Forced => "forced",
        EndReason::Rebooted => "rebooted",
    }
}

pub(crate) fn loss_reason(reason: LossReason) -> &'static str {
    match reason {
        LossReason::SessionEnded(reason) => end_reason(reason),
        LossReason::Forced => "forced",
    }
}

/// What a session holds and waits for, in as many answers as that takes: most often one.
pub(super) fn session_state(session: &SessionView, revision: u64) -> Vec<wire::SessionState> {
    let empty = wire::SessionState {
        session: session.id.0,
        ttl_ms: session.ttl_ms,
        boot_id: crate::boot::boot_id().to_owned(),
        token_now: revision,
        is_revoked: session.is_revoked,
        ..wire::SessionState::default()
    };
    let mut parts = vec![empty.clone()];
    let mut room = Room::default();
    for (number, hold) in &session.holds {
        let item = held_item(*number, hold);
        if !room.takes(&item) {
            parts.push(empty.clone());
            room = Room::default();
        }
        parts.last_mut().expect("never empty").holds.push(item);
    }
    for waiter in &session.waits {
        let item = waiting_item(waiter);
        if !room.takes(&item) {
            parts.push(empty.clone());
            room = Room::default();
        }
        parts.last_mut().expect("never empty").waits.push(item);
    }
    let last = parts.len() - 1;
    parts[..last].iter_mut().for_each(|part| part.more = true);
    parts
}

fn held_item(number: Number, hold: &HoldView) -> wire::HeldItem {
    wire::HeldItem {
        acquire: number.0,
        lock: hold.lock.to_string(),
        token: hold.token.0,
        is_revoked: hold.is_revoked,
    }
}

fn waiting_item(waiter: &WaiterView) -> wire::WaitingItem {
    wire::WaitingItem {
        acquire: waiter.number.0,
        lock: waiter.lock.to_string(),
        place: waiter.place,
    }
}

/// The answer of a request that waits for `lock`, with the hold that it waits for first.
pub(super) fn queued(
    place: u32,
    lock: Option<&str>,
    state: &StateMachine,
    now: Stamp,
) -> wire::Queued {
    let lock = lock.and_then(|name| state.lock(name, 1));
    wire::Queued {
        place,
        hold_count: lock.as_ref().map_or(0, |lock| count(lock.hold_count)),
        holder: lock.and_then(|lock| Some(hold(lock.holds.first()?, state, now))),
    }
}

/// A hold and whose it is.
pub(crate) fn hold(hold: &HoldView, state: &StateMachine, now: Stamp) -> wire::Hold {
    wire::Hold {
        lock: hold.lock.to_string(),
        session: hold.session.0,
        acquire: hold.number.0,
        token: hold.token.0,
        mode: Some(wire_mode(hold.mode)),
        since_stamp_ms: hold.since.0,
        held_ms: now.0.saturating_sub(hold.since.0),
        purpose: hold.purpose.clone(),
        is_revoked: hold.is_revoked,
        owner: owner_of(state, hold.session),
        ttl_ms: state.lease(hold.session).map_or(0, |lease| lease.ttl_ms),
        lease_left_ms: None,
        znode: String::new(),
    }
}

fn waiter(waiter: &WaiterView, state: &StateMachine, now: Stamp) -> wire::Waiter {
    wire::Waiter {
        lock: waiter.lock.to_string(),
        session: waiter.session.0,
        acquire: waiter.number.0,
        mode: Some(wire_mode(waiter.mode)),
        since_stamp_ms: waiter.since.0,
        waited_ms: now.0.saturating_sub(waiter.since.0),
        purpose: waiter.purpose.clone(),
        place: waiter.place,
        owner: owner_of(state, waiter.session),
        znode: String::new(),
    }
}

/// A lock with as many of its holds and waiters, `list_max` of each, as `room` takes.
pub(super) fn lock(
    view: &LockView,
    list_max: usize,
    room: &mut Room,
    state: &StateMachine,
    now: Stamp,
) -> wire::Lock {
    let holds = view.holds.iter().take(list_max).map(|view| hold(view, state, now));
    let holds = holds.take_while(|hold| room.takes(hold)).collect();
    let waiters = view.waiters.iter().take(list_max).map(|view| waiter(view, state, now));
    wire::Lock {
        name: view.name.to_string(),
        holds,
        hold_count: count(view.hold_count),
        waiters: waiters.take_while(|waiter| room.takes(waiter)).collect(),
        waiter_count: count(view.waiter_count),
        kind: wire::lock::Kind::Native.into(),
    }
}

/// A lock of ZooKeeper's clients, likewise.
pub(super) fn line(
    line: &Line<'_>,
    room: &mut Room,
    state: &StateMachine,
    now: Stamp,
) -> wire::Lock {
    let holds = line.holders.iter().map(|who| znode_hold(line.path, who, state, now));
    let holds = holds.take_while(|hold| room.takes(hold)).collect();
    let places = line.waiters.iter().zip(1..);
    let waiters = places.map(|(who, place)| znode_waiter(line.path, who, place, state, now));
    wire::Lock {
        name: line.path.to_owned(),
        holds,
        hold_count: count(line.holder_count),
        waiters: waiters.take_while(|waiter| room.takes(waiter)).collect(),
        waiter_count: count(line.waiter_count),
        kind: wire::lock::Kind::Zookeeper.into(),
    }
}

/// The znode that makes its session a holder. Since when it is one, nobody has written down: what
/// is told is since when it stands in line.
fn znode_hold(path: &str, who: &Contender<'_>, state: &StateMachine, now: Stamp) -> wire::Hold {
    wire::Hold {
        lock: path.to_owned(),
        session: who.session.0,
        token: who.token.0,
        mode: Some(wire_mode(who.mode)),
        since_stamp_ms: who.since.0,
        held_ms: now.0.saturating_sub(who.since.0),
        owner: owner_of(state, who.session),
        ttl_ms: state.lease(who.session).map_or(0, |lease| lease.ttl_ms),
        is_revoked: state.lease(who.session).is_some_and(|lease| lease.is_revoked),
        znode: who.name.to_owned(),
        ..wire::Hold::default()
    }
}

fn znode_waiter(
    path: &str,
    who: &Contender<'_>,
    place: u32,
    state: &StateMachine,
    now: Stamp,
) -> wire::Waiter {
    wire::Waiter {
        lock: path.to_owned(),
        session: who.session.0,
        mode: Some(wire_mode(who.mode)),
        since_stamp_ms: who.since.0,
        waited_ms: now.0.saturating_sub(who.since.0),
        place,
        owner: owner_of(state, who.session),
        znode: who.name.to_owned(),
        ..wire::Waiter::default()
    }
}

/// A session with as many of its holds and places as `room` takes.
pub(super) fn session(
    view: &SessionView,
    room: &mut Room,
    state: &StateMachine,
    now: Stamp,
) -> wire::Session {
    let holds = view.holds.iter().map(|(_, view)| hold(view, state, now));
    let holds = holds.take_while(|hold| room.takes(hold)).collect();
    let waits = view.waits.iter().map(|view| waiter(view, state, now));
    wire::Session {
        session: view.id.0,
        ttl_ms: view.ttl_ms,
        owner: Some(owner(&view.owner)),
        opened_stamp_ms: view.opened.0,
        is_revoked: view.is_revoked,
        holds,
        waits: waits.take_while(|waiter| room.takes(waiter)).collect(),
        item_count: count(view.item_count + lines::count_of(state.tree(), view.id)),
        lease_left_ms: None,
    }
}

/// Adds the locks of ZooKeeper's clients that a session holds or waits for.
pub(super) fn add_lines(
    session: &mut wire::Session,
    room: &mut Room,
    state: &StateMachine,
    now: Stamp,
) {
    for lines::Standing { path, who, place } in
        lines::of_session(state.tree(), SessionId(session.session))
    {
        match place {
            None => {
                let hold = znode_hold(path, &who, state, now);
                session.holds.extend(room.takes(&hold).then_some(hold));
            }
            Some(place) => {
                let waiter = znode_waiter(path, &who, place, state, now);
                session.waits.extend(room.takes(&waiter).then_some(waiter));
            }
        }
    }
}

/// One transition of a lock, as a watch shows it; `None` for what concerns sessions alone.
pub(super) fn watch_event(
    event: &Event,
    state: &StateMachine,
    now: Stamp,
) -> Option<wire::WatchEvent> {
    let mut shown = wire::WatchEvent { stamp_ms: now.0, ..wire::WatchEvent::default() };
    let (kind, lock, session, number) = match event {
        Event::Queued { lock, session, number, place } => {
            shown.place = *place;
            ("queued", lock, session, number)
        }
        Event::Granted { lock, session, number, token, waited_ms, mode: _ } => {
            shown.token = token.0;
            shown.waited_ms = waited_ms.unwrap_or(0);
            ("granted", lock, session, number)
        }
        Event::Released { lock, session, number, token, held_ms } => {
            shown.token = token.0;
            shown.held_ms = *held_ms;
            ("released", lock, session, number)
        }
        Event::Cancelled { lock, session, number, waited_ms, ended } => {
            shown.waited_ms = *waited_ms;
            shown.reason = ended.map_or("", end_reason).to_owned();
            ("cancelled", lock, session, number)
        }
        Event::Revoked { lock, session, number, token } => {
            shown.token = token.0;
            ("revoked", lock, session, number)
        }
        Event::Lost { lock, session, number, token, held_ms, reason } => {
            shown.token = token.0;
            shown.held_ms = *held_ms;
            shown.reason = loss_reason(*reason).to_owned();
            ("lost", lock, session, number)
        }
        Event::SessionOpened { .. }
        | Event::SessionEnded { .. }
        | Event::SessionRevoked { .. }
        | Event::SessionMoved { .. }
        | Event::Node { .. } => return None,
    };
    shown.event = kind.to_owned();
    shown.lock = lock.to_string();
    shown.session = session.0;
    shown.acquire = number.0;
    shown.owner = owner_of(state, *session);
    Some(shown)
}

fn owner_of(state: &StateMachine, session: SessionId) -> Option<wire::Owner> {
    state.owner(session).map(owner)
}

fn owner(owner: &Owner) -> wire::Owner {
    let label =
        |(key, value): &(String, String)| wire::Label { key: key.clone(), value: value.clone() };
    wire::Owner {
        host: owner.host.clone(),
        pid: owner.pid,
        user: owner.user.clone(),
        program: owner.program.clone(),
        purpose: owner.purpose.clone(),
        labels: owner.labels.iter().map(label).collect(),
    }
}

/// A count for the wire. Core's limits keep it far below the greatest `u32`.
pub(super) fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// What is left of one answer for the items of its lists.
pub(super) struct Room {
    bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: LISTS_BYTES_MAX }
    }
}

impl Room {
    /// Whether `item` still fits; if so its room is taken, and if not there is none for others.
    pub(super) fn takes(&mut self, item: &impl Message) -> bool {
        // Tag and length of the item in its list.
        const AROUND_BYTES: usize = 8;
        let left = self.bytes.checked_sub(item.encoded_len() + AROUND_BYTES);
        self.bytes = left.unwrap_or(0);
        left.is_some()
    }
}
