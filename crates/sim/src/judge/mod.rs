//! The judges: each reads a whole history, and says what is wrong with it.

use std::fmt;

use crate::History;

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
#[must_use]
pub fn judge_all(_history: &History) -> Vec<Verdict> {
    Vec::new()
}
