//! The invariants of the state, all in one place.

use crate::lock::Lock;
use crate::session::Session;
use crate::{
    Counts, HOLDS_PER_LOCK_MAX, ITEMS_PER_SESSION_MAX, LockName, Mode, SESSIONS_MAX, SessionId,
    StateMachine, WAITERS_PER_LOCK_MAX, check_lock_name,
};

impl StateMachine {
    /// Walks all invariants. Linear in the state: for tests, the simulator, and after a snapshot
    /// was read.
    ///
    /// # Errors
    ///
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut counted = Counts::default();
        for (name, lock) in self.locks.iter() {
            self.check_lock(name, lock).map_err(|broken| format!("lock {name:?}: {broken}"))?;
            counted.locks += 1;
            counted.holds += lock.hold_count();
            counted.waiters += lock.waiter_count();
        }
        for (&id, session) in self.sessions.iter() {
            self.check_session(id, session).map_err(|broken| format!("session {id}: {broken}"))?;
            counted.sessions += 1;
        }
        self.tree.check(self.revision, self.stamp)?;
        for (session, _) in self.tree.owners() {
            let is_alive = self.sessions.get(&session).is_some();
            ensure(is_alive, "an ephemeral znode hangs on nobody alive")?;
        }
        ensure(counted == self.counts(), "sessions, locks, holds or waiters are miscounted")?;
        ensure(counted.sessions <= SESSIONS_MAX, "more sessions than allowed")?;
        let is_still = !self.is_silent || counted.holds == 0;
        ensure(is_still, "something is held in the silence after a restore")
    }

    fn check_lock(&self, name: &LockName, lock: &Lock) -> Result<(), String> {
        ensure(check_lock_name(name).is_ok(), "the name is none")?;
        ensure(self.locks.get(&**name).is_some(), "it is in the wrong shard")?;
        ensure(!lock.is_unused(), "nobody holds it or waits for it, but it is kept")?;
        ensure(lock.hold_count() <= HOLDS_PER_LOCK_MAX, "more holds than allowed")?;
        ensure(lock.waiter_count() <= WAITERS_PER_LOCK_MAX, "more waiters than allowed")?;
        check_exclusion(lock)?;
        self.check_holds(lock)?;
        self.check_queue(lock)
    }

    fn check_holds(&self, lock: &Lock) -> Result<(), String> {
        let mut newest = None;
        for hold in lock.holds() {
            let token = hold.token;
            ensure(newest < Some(token), "holds are not in the order of their tokens")?;
            newest = Some(token);
            ensure(token.0 <= self.revision.0, "a token is ahead of the revision")?;
            ensure(hold.since <= self.stamp, "a hold began after the newest stamp")?;
            let session = self.sessions.get(&hold.session);
            let session =
                session.ok_or_else(|| format!("token {token} is held by nobody alive"))?;
            let mut previous = None;
            for number in hold.handles() {
                ensure(previous < Some(number), "a hold's handles are not in order")?;
                previous = Some(number);
                let handle = session.handles.get(&number);
                let is_known = handle.is_some_and(|handle| handle.token == token);
                ensure(is_known, "a session doesn't know a handle of its hold")?;
            }
        }
        Ok(())
    }

    fn check_queue(&self, lock: &Lock) -> Result<(), String> {
        let current = lock.current_mode();
        for (ticket, waiter) in lock.waiters() {
            ensure(ticket.0 <= self.revision.0, "a ticket is ahead of the revision")?;
            ensure(waiter.since <= self.stamp, "a wait began after the newest stamp")?;
            let is_of_family = current.is_some_and(|mode| mode.is_family_of(waiter.mode));
            ensure(is_of_family, "a waiter is of another family of modes")?;
            ensure(is_mode(waiter.mode), "a waiter asks for impossible permits")?;
            let session = self.sessions.get(&waiter.session).ok_or("nobody alive waits")?;
            let place = session.places.get(&waiter.number);
            let is_known = place.is_some_and(|place| place.ticket == ticket);
            ensure(is_known, "a session doesn't know its place")?;
        }
        let Some((_, head)) = lock.waiters().next() else { return Ok(()) };
        let has_room = lock.hold_count() < HOLDS_PER_LOCK_MAX && lock.admits(head.mode);
        ensure(self.is_silent || !has_room, "the head of the line could go in, but waits")
    }

    fn check_session(&self, id: SessionId, session: &Session) -> Result<(), String> {
        ensure(self.sessions.get(&id).is_some(), "it is in the wrong shard")?;
        ensure(session.item_count() <= ITEMS_PER_SESSION_MAX, "more items than allowed")?;
        ensure(session.opened <= self.stamp, "it was opened after the newest stamp")?;
        let mut revoked_hold_count = 0;
        for (&number, handle) in &session.handles {
            let lock = self.locks.get(&*handle.lock);
            let hold = lock.and_then(|lock| lock.hold(handle.token));
            let hold = hold.ok_or_else(|| format!("handle {} has no hold", number.0))?;
            ensure(hold.session == id, "a handle is on somebody else's hold")?;
            ensure(hold.has_handle(number), "a hold misses a handle")?;
            // Each hold once, at its lowest handle.
            revoked_hold_count += usize::from(hold.is_revoked && hold.number() == number);
            ensure(!session.places.contains_key(&number), "a number both holds and waits")?;
        }
        ensure(session.revoked_hold_count == revoked_hold_count, "revoked holds are miscounted")?;
        for (number, place) in &session.places {
            let lock = self.locks.get(&*place.lock);
            let waiter = lock.and_then(|lock| lock.waiter(place.ticket));
            let waiter = waiter.ok_or_else(|| format!("place {} is in no queue", number.0))?;
            let is_own = waiter.session == id && waiter.number == *number;
            ensure(is_own, "a place is somebody else's")?;
        }
        for (number, _) in session.answers.iter() {
            ensure(session.answers.admit(number).is_ok(), "an answer is outside the window")?;
            let is_live =
                session.handles.contains_key(&number) || session.places.contains_key(&number);
            ensure(!is_live, "a number is answered, but still holds or waits")?;
        }
        Ok(())
    }
}

/// Exclusive holds are alone, shared ones among themselves, permits within their number.
fn check_exclusion(lock: &Lock) -> Result<(), String> {
    let Some(first) = lock.holds().next() else { return Ok(()) };
    let mut permits_taken = 0;
    for hold in lock.holds() {
        ensure(is_mode(hold.mode), "a hold has impossible permits")?;
        ensure(hold.mode.is_family_of(first.mode), "holds are of different families of modes")?;
        let is_alone = lock.hold_count() == 1;
        ensure(is_alone || hold.mode != Mode::Exclusive, "an exclusive hold isn't alone")?;
        permits_taken += u64::from(hold.mode.permits());
    }
    ensure(permits_taken == lock.permits_taken(), "permits are miscounted")?;
    match first.mode {
        Mode::Permits { of, .. } => {
            ensure(permits_taken <= u64::from(of), "more permits are taken than there are")
        }
        Mode::Exclusive | Mode::Shared => Ok(()),
    }
}

fn is_mode(mode: Mode) -> bool {
    match mode {
        Mode::Permits { take, of } => (1..=of).contains(&take),
        Mode::Exclusive | Mode::Shared => true,
    }
}

fn ensure(holds: bool, broken: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedup::{Answers, Asked};
    use crate::lock::{Ticket, Waiter};
    use crate::testing::{A, B, busy_state};
    use crate::{Command, EndReason, Number, Reply, Stamp, Token};

    #[test]
    fn a_forged_violation_is_named() {
        busy_state().check().unwrap();
        for (forge, named) in FORGERIES {
            let mut state = busy_state();
            forge(&mut state);
            let broken = state.check().expect_err(named);
            assert!(broken.contains(named), "forged {named:?}, found {broken:?}");
        }
    }

    type Forgery = (fn(&mut StateMachine), &'static str);

    /// A way to break each invariant, and the words in which it is found.
    const FORGERIES: &[Forgery] = &[
        (|state| state.hold_count += 1, "miscounted"),
        (|state| state.waiter_count -= 1, "miscounted"),
        (|state| state.revision.0 = 3, "ahead of the revision"),
        (|state| state.stamp = Stamp(0), "after the newest stamp"),
        (|state| drop(state.sessions.remove(&A)), "held by nobody alive"),
        (|state| drop(state.locks.remove("shared")), "has no hold"),
        (|state| _ = state.locks.insert("empty".into(), Lock::default()), "nobody holds it"),
        (|state| _ = state.locks.insert("a//b".into(), Lock::default()), "the name is none"),
        (|state| session(state, A).revoked_hold_count += 1, "revoked holds are miscounted"),
        (|state| drop(session(state, A).handles.remove(&Number(1))), "a handle of its hold"),
        (|state| drop(session(state, B).places.remove(&Number(1))), "doesn't know its place"),
        (answer_a_live_number, "answered, but still holds or waits"),
        (keep_an_answer_below_the_floor, "outside the window"),
        (|state| state.is_silent = true, "in the silence"),
        (hold_exclusively_twice, "isn't alone"),
        (take_more_than_there_is, "impossible permits"),
        (share_and_take_permits, "different families"),
        (take_what_is_waited_for, "could go in, but waits"),
        (|state| lock(state, "printer").queue(Ticket(1), stranger()), "another family"),
        (lose_an_owner, "an ephemeral znode hangs on nobody alive"),
    ];

    const ONE: Mode = Mode::Permits { take: 1, of: 3 };

    fn session(state: &mut StateMachine, id: SessionId) -> &mut Session {
        state.sessions.get_mut(&id).unwrap()
    }

    fn lock<'a>(state: &'a mut StateMachine, name: &str) -> &'a mut Lock {
        state.locks.get_mut(name).unwrap()
    }

    fn answer_a_live_number(state: &mut StateMachine) {
        session(state, A).answers.keep(Number(1), Asked::Entry, Reply::Done);
    }

    fn keep_an_answer_below_the_floor(state: &mut StateMachine) {
        let mut answers = Answers::new(Number(1));
        answers.keep(Number(90_000), Asked::Entry, Reply::Done);
        session(state, A).answers = answers;
    }

    /// Two sharers turn exclusive: no call would let them.
    fn hold_exclusively_twice(state: &mut StateMachine) {
        let tokens: Vec<Token> = lock(state, "shared").holds().map(|hold| hold.token).collect();
        for token in tokens {
            lock(state, "shared").hold_mut(token).unwrap().mode = Mode::Exclusive;
        }
    }

    fn take_more_than_there_is(state: &mut StateMachine) {
        let token = lock(state, "pool").holds().next().unwrap().token;
        lock(state, "pool").hold_mut(token).unwrap().mode = Mode::Permits { take: 4, of: 3 };
    }

    fn share_and_take_permits(state: &mut StateMachine) {
        let token = lock(state, "shared").holds().next_back().unwrap().token;
        lock(state, "shared").hold_mut(token).unwrap().mode = ONE;
    }

    /// The holder goes without anybody being let in.
    fn take_what_is_waited_for(state: &mut StateMachine) {
        let hold = lock(state, "printer").holds().next().unwrap().clone();
        lock(state, "printer").leave(hold.token);
        session(state, hold.session).handles.remove(&hold.number());
        state.hold_count -= 1;
    }

    /// Its znodes stay behind, which no ending lets happen.
    fn lose_an_owner(state: &mut StateMachine) {
        let tree = state.tree.clone();
        let end = Command::EndSession { session: B, reason: EndReason::Closed };
        state.apply(state.stamp, &end, &mut Vec::new());
        state.tree = tree;
    }

    fn stranger() -> Waiter {
        let (number, purpose) = (Number(70), "".into());
        Waiter { session: B, number, mode: ONE, since: Stamp(0), purpose }
    }
}
