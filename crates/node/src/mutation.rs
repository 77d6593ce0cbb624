//! Known-bad versions of the replica: what tests the tests.
//!
//! A hunt that finds nothing proves nothing until it has found what was put there. Each mutation
//! breaks one promise in one place, marked where it stands. The feature `mutations` is for the
//! simulator's tests; without it, none of this is compiled, and no program of the product asks for
//! it. With it, nothing is broken until a thread chooses a mutation for itself.

use std::cell::Cell;

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The log says that a batch is durable, and has not synced it.
    AcknowledgeBeforeSync,
    /// A leader answers reads without asking whether it still leads.
    ReadWithoutQuorum,
    /// A leader judges sessions by what it heard in an earlier term, and proposes in any.
    ExpireInAnyTerm,
    /// A leader confirms heartbeats without asking whether it still leads.
    ConfirmWithoutQuorum,
    /// The first entry after a restart is applied twice.
    ApplyTwiceAfterRestart,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::AcknowledgeBeforeSync,
        Self::ReadWithoutQuorum,
        Self::ExpireInAnyTerm,
        Self::ConfirmWithoutQuorum,
        Self::ApplyTwiceAfterRestart,
    ];

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
