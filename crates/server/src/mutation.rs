//! Known-bad versions of the front ends: what tests the tests.
//!
//! A hunt that finds nothing proves nothing until it has found what was put there. Each mutation
//! breaks one promise in one place, marked where it stands. The feature `mutations` is for the
//! simulator's tests; without it, none of this is compiled, and no program of the product asks for
//! it. With it, nothing is broken until a thread chooses a mutation for itself.

use std::cell::Cell;

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// ZooKeeper's clients are answered however long ago their session was confirmed.
    AnswerUnconfirmed,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::AnswerUnconfirmed];

    /// Runs `work` with this mutation, on this thread alone.
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Mutation>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _restore = Restore(CHOSEN.replace(Some(self)));
        work()
    }
}

/// Whether this thread has chosen `mutation`.
pub(crate) fn mutated(mutation: Mutation) -> bool {
    CHOSEN.get() == Some(mutation)
}

thread_local! {
    static CHOSEN: Cell<Option<Mutation>> = const { Cell::new(None) };
}
