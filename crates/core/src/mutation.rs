//! Known-bad versions of the state machine: what tests the tests.
//!
//! A hunt that finds nothing proves nothing until it has found what was put there. Each mutation
//! breaks one promise in one line, marked where it stands. The feature `mutations` is for the
//! simulator's tests; without it, none of this is compiled, and no program of the product asks for
//! it. With it, nothing is broken until a thread chooses a mutation for itself.

use std::cell::Cell;

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A lock that was forgotten, and is made anew, starts again with an old token.
    ReuseTokens,
    /// The second in line is let in before the head.
    SkipWaiter,
    /// A place that is given up lets nobody in, though the next could go in now.
    LoseWakeUp,
    /// A repeated request finds no answer, and is executed again.
    ForgetAnswers,
    /// A snapshot has no answers: what was done before it is done again after a restart.
    LoseAnswersInSnapshot,
    /// A sequential number counts the children that there are.
    ReuseNumbers,
    /// One ephemeral znode stays when its session ends.
    KeepEphemeral,
    /// What was done before an operation that fails stays done.
    KeepHalfOfMulti,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::ReuseTokens,
        Self::SkipWaiter,
        Self::LoseWakeUp,
        Self::ForgetAnswers,
        Self::LoseAnswersInSnapshot,
        Self::ReuseNumbers,
        Self::KeepEphemeral,
        Self::KeepHalfOfMulti,
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
