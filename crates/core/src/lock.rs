//! One named lock: who holds it, who waits, and in which order they are served.
//!
//! A [`Lock`] is a value, not a service. It reads no clock and wakes nobody: tokens and moments
//! come in as arguments, and whoever is let in is returned.
//!
//! # Guarantees
//!
//! - **Exclusion.** An exclusive hold is alone; shared holds are beside shared ones only; permits
//!   in use never exceed those there are.
//! - **Order.** One queue serves all modes, strictly first come, first served: [`Lock::admit_head`]
//!   looks at the head and at nobody else. A writer behind readers holds back later readers, and a
//!   request for many permits at the head holds back later ones for few.
//!
//! Not promised: that the head has been let in. Whoever removes a hold or a place must call
//! [`Lock::admit_head`] until it returns `None`; only the state machine knows whether grants are
//! withheld, and which token comes next.
//!
//! # Size
//!
//! Most locks have one hold and no queue, and there may be millions of them: that case is stored
//! in one small allocation. Places are kept in the order of their tickets, so that one in the
//! middle of a queue of [`WAITERS_PER_LOCK_MAX`](crate::WAITERS_PER_LOCK_MAX) is removed without
//! walking the others.

use std::collections::BTreeMap;
use std::iter;

#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::{HOLDS_PER_LOCK_MAX, Mode, Number, Revision, SessionId, Stamp, Token};

/// The lock of one name. The default value is free, and nobody waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lock {
    /// The oldest hold. While it is `None` there is no other.
    first: Option<Hold>,
    /// `None` while there is neither a second hold nor a queue.
    more: Option<Box<More>>,
}

impl Lock {
    /// Whether nobody holds it or waits for it: then it is to be forgotten.
    pub(crate) fn is_unused(&self) -> bool {
        self.first.is_none() && self.more.is_none()
    }

    /// The mode that decides which others are refused; `None` if the lock is unused.
    pub(crate) fn current_mode(&self) -> Option<Mode> {
        let first = self.first.as_ref().map(|hold| hold.mode);
        first.or_else(|| self.head().map(|(_, waiter)| waiter.mode))
    }

    /// Whether a hold in `mode` could join the present ones, were there no queue.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        let Some(first) = &self.first else { return true };
        match (first.mode, mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits { of, .. }, Mode::Permits { take, of: other }) => {
                of == other && self.permits_taken() + u64::from(take) <= u64::from(of)
            }
            (Mode::Exclusive | Mode::Shared | Mode::Permits { .. }, _) => false,
        }
    }

    /// Adds a hold, whose token is greater than every earlier one.
    ///
    /// The caller has asked [`Lock::admits`]; to go on without it would void exclusion.
    pub(crate) fn enter(&mut self, hold: Hold) {
        assert!(self.admits(hold.mode), "a hold joins others that exclude it");
        if self.first.is_none() {
            self.first = Some(hold);
            return;
        }
        let more = self.more.get_or_insert_default();
        more.permits_taken += u64::from(hold.mode.permits());
        more.holds.insert(hold.token, hold);
    }

    /// Takes a hold out.
    pub(crate) fn leave(&mut self, token: Token) -> Option<Hold> {
        let left = if self.first.as_ref().is_some_and(|hold| hold.token == token) {
            let next = self.more.as_mut().and_then(|more| more.take_hold(None));
            std::mem::replace(&mut self.first, next)
        } else {
            self.more.as_mut().and_then(|more| more.take_hold(Some(token)))
        };
        self.drop_empty();
        left
    }

    /// Puts a request at the end of the line; its ticket is greater than every earlier one.
    pub(crate) fn queue(&mut self, ticket: Ticket, waiter: Waiter) {
        self.more.get_or_insert_default().queue.insert(ticket, waiter);
    }

    /// Gives up a place, wherever in the line it is.
    pub(crate) fn unqueue(&mut self, ticket: Ticket) -> Option<Waiter> {
        let left = self.more.as_mut()?.queue.remove(&ticket);
        self.drop_empty();
        left
    }

    /// Takes the head out of the line if it can go in now. The caller lets it [`Lock::enter`].
    pub(crate) fn admit_head(&mut self) -> Option<Waiter> {
        let (ticket, waiter) = self.head()?;
        #[cfg(feature = "mutations")]
        let (ticket, waiter) = match self.waiters().nth(1) {
            Some(second) if mutated(Mutation::SkipWaiter) => second,
            _ => (ticket, waiter),
        };
        let has_room = self.hold_count() < HOLDS_PER_LOCK_MAX && self.admits(waiter.mode);
        if has_room { self.unqueue(ticket) } else { None }
    }

    /// The place behind `ticket`: 1 for the next in line.
    ///
    /// Exact for the first [`PLACES_WALKED_MAX`]; further back, where counting would cost too
    /// long a walk, the length of the line, which no place exceeds.
    pub(crate) fn place(&self, ticket: Ticket) -> u32 {
        let Some(more) = &self.more else { return 0 };
        let ahead = more.queue.range(..ticket).take(PLACES_WALKED_MAX).count();
        let place = if ahead < PLACES_WALKED_MAX { ahead + 1 } else { more.queue.len() };
        u32::try_from(place).expect("a queue's limit is far below")
    }

    pub(crate) fn hold(&self, token: Token) -> Option<&Hold> {
        let first = self.first.as_ref().filter(|hold| hold.token == token);
        first.or_else(|| self.more.as_ref()?.holds.get(&token))
    }

    pub(crate) fn hold_mut(&mut self, token: Token) -> Option<&mut Hold> {
        let first = self.first.as_mut().filter(|hold| hold.token == token);
        first.or_else(|| self.more.as_mut()?.holds.get_mut(&token))
    }

    pub(crate) fn waiter(&self, ticket: Ticket) -> Option<&Waiter> {
        self.more.as_ref()?.queue.get(&ticket)
    }

    /// The holds, oldest first: in the order of their tokens.
    pub(crate) fn holds(&self) -> impl DoubleEndedIterator<Item = &Hold> {
        let later = self.more.iter().flat_map(|more| more.holds.values());
        self.first.iter().chain(later)
    }

    /// The queue from the head.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        let places = self.more.iter().flat_map(|more| more.queue.iter());
        places.map(|(&ticket, waiter)| (ticket, waiter))
    }

    pub(crate) fn hold_count(&self) -> usize {
        let later = self.more.as_ref().map_or(0, |more| more.holds.len());
        usize::from(self.first.is_some()) + later
    }

    pub(crate) fn waiter_count(&self) -> usize {
        self.more.as_ref().map_or(0, |more| more.queue.len())
    }

    /// Permits that the holds have, at constant cost; 0 in the other family.
    pub(crate) fn permits_taken(&self) -> u64 {
        let first = self.first.as_ref().map_or(0, |hold| u64::from(hold.mode.permits()));
        first + self.more.as_ref().map_or(0, |more| more.permits_taken)
    }

    fn head(&self) -> Option<(Ticket, &Waiter)> {
        self.waiters().next()
    }

    fn drop_empty(&mut self) {
        if self.more.as_ref().is_some_and(|more| more.holds.is_empty() && more.queue.is_empty()) {
            self.more = None;
        }
    }
}

/// What a lock has beyond one hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct More {
    /// All holds but the oldest.
    holds: BTreeMap<Token, Hold>,
    /// The permits of `holds`.
    permits_taken: u64,
    /// Who waits.
    queue: BTreeMap<Ticket, Waiter>,
}

impl More {
    /// Takes out the hold with `token`, or else the oldest.
    fn take_hold(&mut self, token: Option<Token>) -> Option<Hold> {
        let hold = match token {
            Some(token) => self.holds.remove(&token),
            None => self.holds.pop_first().map(|(_, hold)| hold),
        }?;
        self.permits_taken -= u64::from(hold.mode.permits());
        Some(hold)
    }
}

/// One session's hold. It lasts until its last handle is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) session: SessionId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) since: Stamp,
    /// An operator has asked for it back.
    pub(crate) is_revoked: bool,
    /// The lowest of its handles' numbers.
    number: Number,
    /// What few holds have; `None` if this one has nothing of it.
    extra: Option<Box<HoldExtra>>,
}

impl Hold {
    pub(crate) fn new(
        session: SessionId,
        number: Number,
        token: Token,
        mode: Mode,
        since: Stamp,
    ) -> Self {
        Self { session, token, mode, since, is_revoked: false, number, extra: None }
    }

    pub(crate) fn with_purpose(mut self, purpose: Box<str>) -> Self {
        if !purpose.is_empty() {
            self.extra.get_or_insert_default().purpose = purpose;
        }
        self
    }

    /// Which of its handles' numbers names it: the lowest.
    pub(crate) fn number(&self) -> Number {
        self.number
    }

    /// What for; empty if not said.
    pub(crate) fn purpose(&self) -> &str {
        self.extra.as_ref().map_or("", |extra| &extra.purpose)
    }

    /// The numbers of its handles, ascending.
    pub(crate) fn handles(&self) -> impl Iterator<Item = Number> {
        let further = self.extra.iter().flat_map(|extra| extra.further_handles.iter().copied());
        iter::once(self.number).chain(further)
    }

    pub(crate) fn has_handle(&self, number: Number) -> bool {
        let further = self.extra.as_ref().map(|extra| &extra.further_handles);
        self.number == number || further.is_some_and(|list| list.binary_search(&number).is_ok())
    }

    /// One more handle: the session entered again.
    pub(crate) fn add_handle(&mut self, number: Number) {
        // Numbers mostly grow, but requests sent together may arrive in any order.
        let other = self.number.max(number);
        self.number = self.number.min(number);
        let further = &mut self.extra.get_or_insert_default().further_handles;
        let at = further.partition_point(|&handle| handle < other);
        further.insert(at, other);
    }

    /// One handle less. Returns how many remain; at 0 the caller ends the hold.
    pub(crate) fn drop_handle(&mut self, number: Number) -> usize {
        let Some(extra) = &mut self.extra else { return 0 };
        let further = &mut extra.further_handles;
        if further.is_empty() {
            return 0;
        }
        if number == self.number {
            self.number = further.remove(0);
        } else if let Ok(at) = further.binary_search(&number) {
            further.remove(at);
        }
        let remaining = 1 + further.len();
        if extra.further_handles.is_empty() && extra.purpose.is_empty() {
            self.extra = None;
        }
        remaining
    }
}

/// What few holds have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HoldExtra {
    purpose: Box<str>,
    /// The handles' numbers after the lowest, ascending.
    further_handles: Vec<Number>,
}

/// One place in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) session: SessionId,
    pub(crate) number: Number,
    pub(crate) mode: Mode,
    pub(crate) since: Stamp,
    /// What for; empty if not said.
    pub(crate) purpose: Box<str>,
}

/// A place's rank in its queue: the revision of the acquire that took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

impl From<Revision> for Ticket {
    fn from(revision: Revision) -> Self {
        Self(revision.0)
    }
}

impl Mode {
    /// Whether both can be used on one lock at a time: exclusive and shared are one family,
    /// permits of each total another.
    pub(crate) fn is_family_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Permits { of, .. }, Self::Permits { of: others, .. }) => of == others,
            (Self::Permits { .. }, _) | (_, Self::Permits { .. }) => false,
            (Self::Exclusive | Self::Shared, Self::Exclusive | Self::Shared) => true,
        }
    }

    /// The permits that a hold in this mode has; 0 in the other family.
    pub(crate) fn permits(self) -> u32 {
        match self {
            Self::Exclusive | Self::Shared => 0,
            Self::Permits { take, .. } => take,
        }
    }
}

/// How far a place is counted: a walk of some microseconds.
const PLACES_WALKED_MAX: usize = 1_000;
