//! Exactly once: the answers kept for requests that may be repeated.
//!
//! A client that lost a reply asks again, with the same number, at any node. What a number has
//! been answered is kept until the client says, by its *floor*, that it has the answer: the record
//! is a set of numbers at or above the floor, not a high-water mark, because requests of one
//! session may arrive in any order.
//!
//! ```text
//!        floor                          floor + OPEN_REQUESTS_MAX
//!   ───────┼───────────────────────────────────┼──────────────▶ numbers
//!   too old│ answered, live, or new            │ limit reached
//! ```
//!
//! An acquire that holds or waits needs no record: it is answered from what it is *now*, so that a
//! repeated acquire whose place was granted meanwhile hears of the grant. When the hold or the
//! place ends, what a late repetition is to hear takes its place here. In a quiet session nothing
//! is kept at all.
//!
//! Not promised: that a client which uses one number for two different requests is told. It is
//! where the record tells them apart; otherwise it gets the answer to the first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::{Limit, Number, OPEN_REQUESTS_MAX, Refusal, Reply, Request};

/// The answers of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    /// The lowest number that the client has no answer to yet. It never goes back.
    floor: Number,
    /// By number, all at or above `floor`.
    kept: BTreeMap<Number, Answer>,
}

impl Answers {
    pub(crate) fn new(floor: Number) -> Self {
        Self { floor, kept: BTreeMap::new() }
    }

    pub(crate) fn floor(&self) -> Number {
        self.floor
    }

    /// Forgets what the client has answers to. Each answer is forgotten once, so the cost of a
    /// call is constant on average.
    pub(crate) fn raise_floor(&mut self, floor: Number) {
        self.floor = self.floor.max(floor);
        while self.kept.first_key_value().is_some_and(|(&number, _)| number < self.floor) {
            self.kept.pop_first();
        }
    }

    /// Whether `number` lies in the window in which a number can be answered.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooOld`], and [`Refusal::LimitReached`] with [`Limit::OpenRequests`].
    pub(crate) fn admit(&self, number: Number) -> Result<(), Refusal> {
        match number.0.checked_sub(self.floor.0) {
            None => Err(Refusal::TooOld),
            Some(OPEN_REQUESTS_MAX..) => Err(Refusal::limit(Limit::OpenRequests)),
            Some(_) => Ok(()),
        }
    }

    /// What `number` has been answered; `None` if it is new, or still holds or waits.
    pub(crate) fn get(&self, number: Number) -> Option<&Answer> {
        #[cfg(feature = "mutations")]
        if mutated(Mutation::ForgetAnswers) {
            return None;
        }
        self.kept.get(&number)
    }

    /// Keeps an answer, unless the client has said that it needs none.
    pub(crate) fn keep(&mut self, number: Number, asked: Asked, reply: Reply) {
        if number >= self.floor {
            self.kept.insert(number, Answer { asked, reply });
        }
    }

    /// Keeps what a late repetition of an acquire (or re-entry) is to hear, now that it neither
    /// holds nor waits.
    pub(crate) fn settle(&mut self, acquire: Number, refusal: Refusal) {
        self.keep(acquire, Asked::Entry, Reply::Refused(refusal));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Number, &Answer)> {
        self.kept.iter().map(|(&number, answer)| (number, answer))
    }
}

/// What one number was for, and what it was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) asked: Asked,
    pub(crate) reply: Reply,
}

/// What a number was used for, as far as telling a repetition from a mistake needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Asked {
    /// An acquire or a re-entry: what can hold or wait.
    Entry,
    /// The release of an acquire.
    Release(Number),
    /// The cancel of an acquire.
    Cancel(Number),
}

impl From<&Request<'_>> for Asked {
    fn from(request: &Request<'_>) -> Self {
        match *request {
            Request::Acquire { .. } | Request::Reenter { .. } => Self::Entry,
            Request::Release { acquire } => Self::Release(acquire),
            Request::Cancel { acquire } => Self::Cancel(acquire),
        }
    }
}
