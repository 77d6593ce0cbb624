//! What one judge found, bounded: a history that is wrong once is often wrong a thousand times.

use std::fmt;

use crate::Nanos;
use crate::judge::Verdict;

/// The verdicts of one judge.
pub(super) struct Findings {
    judge: &'static str,
    told: Vec<Verdict>,
    untold: usize,
}

impl Findings {
    pub(super) fn of(judge: &'static str) -> Self {
        Self { judge, told: Vec::new(), untold: 0 }
    }

    /// Adds one. The words are put together only if there is room for them.
    pub(super) fn add(&mut self, what: impl FnOnce() -> String) {
        if self.told.len() < TOLD_MAX {
            self.told.push(Verdict { judge: self.judge, what: what() });
        } else {
            self.untold += 1;
        }
    }

    pub(super) fn into_verdicts(mut self) -> Vec<Verdict> {
        if self.untold > 0 {
            let what = format!("and {} more", self.untold);
            self.told.push(Verdict { judge: self.judge, what });
        }
        self.told
    }
}

/// Verdicts that are spelled out.
const TOLD_MAX: usize = 8;

/// A time as people read it: seconds, to the microsecond.
pub(super) struct At(pub(super) Nanos);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1_000;
        write!(f, "{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
    }
}
