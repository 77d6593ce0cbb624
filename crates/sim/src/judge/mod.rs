//! The judges: each reads a whole history, and says what is wrong with it.
//!
//! A judge answers one question and stands in one file. It takes linear time, or nearly so, needs
//! nothing but the [`History`], and stays silent where that doesn't tell: what a client can't know
//! is never counted against the locks. Each is proved by histories that were forged to break what
//! it judges.
//!
//! | judge | what it asks |
//! |---|---|
//! | [`shape`] | is this a history at all? |
//! | [`exclusion`] | do two ever hold what excludes the other? |
//! | [`tokens`] | do tokens grow, and keep out who is late? |
//! | [`fifo`] | does anybody overtake? |
//! | [`wakeups`] | is a lock free while its head waits? |
//! | [`kept`] | is anything lost that was granted? |
//! | [`linear`] | does each read show one moment, and time never go back? |
//! | [`liveness`] | once all is calm, does what is owed come in time? |
//! | [`replicas`] | are replicas of one index equal? |
//! | [`watches`] | is what was watched told, once and in time? |
//! | [`ephemerals`] | do znodes go with their sessions? |
//! | [`raft`] | has each term one leader, and each index one entry? |

use std::fmt;

use crate::History;

pub mod ephemerals;
pub mod exclusion;
pub mod fifo;
mod findings;
pub mod kept;
mod ledger;
pub mod linear;
pub mod liveness;
pub mod raft;
pub mod replicas;
#[cfg(test)]
mod search;
pub mod shape;
mod story;
#[cfg(test)]
mod testing;
pub mod tokens;
pub mod wakeups;
pub mod watches;

/// What a judge found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which judge.
    pub judge: &'static str,
    /// What is wrong, with the times, tokens and names that show it.
    pub what: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.judge, self.what)
    }
}

/// Asks every judge. Empty if nothing is wrong.
///
/// Each judge's verdicts are few: the first of them, and how many more there are.
#[must_use]
pub fn judge_all(history: &History) -> Vec<Verdict> {
    JUDGES.iter().flat_map(|check| check(history)).collect()
}

/// Asks the judges that need nothing but the log.
#[must_use]
pub fn judge_log(history: &History) -> Vec<Verdict> {
    let judges = [exclusion::check, tokens::check, fifo::check, wakeups::check, kept::check];
    judges.iter().flat_map(|check| check(history)).collect()
}

const JUDGES: [fn(&History) -> Vec<Verdict>; 12] = [
    shape::check,
    exclusion::check,
    tokens::check,
    fifo::check,
    wakeups::check,
    kept::check,
    linear::check,
    liveness::check,
    watches::check,
    ephemerals::check,
    replicas::check,
    raft::check,
];
