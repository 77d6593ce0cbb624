//! Replicas that have applied the same log are bit-identical.

use std::collections::BTreeMap;

use crate::judge::Verdict;
use crate::judge::findings::Findings;
use crate::{Digest, History};

/// All digests of one index are equal.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("replicas");
    let mut first: BTreeMap<u64, Digest> = BTreeMap::new();
    for state in &history.digests {
        let other = *first.entry(state.index).or_insert(*state);
        if other.digest != state.digest {
            findings.add(|| {
                format!(
                    "at index {} node {} is {:016x}, but node {} is {:016x}",
                    state.index, state.node, state.digest, other.node, other.digest
                )
            });
        }
    }
    findings.into_verdicts()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::assert_finds;

    #[test]
    fn equal_replicas_are_lawful_and_others_are_found() {
        let state = |node, index, digest| Digest { node, index, digest };
        let digests = vec![state(1, 10, 7), state(2, 11, 8), state(2, 10, 7), state(3, 11, 8)];
        let mut history = History { digests, ..History::default() };
        assert_eq!(check(&history), []);
        history.digests.push(state(3, 10, 9));
        assert_finds(&check(&history), &["index 10", "node 3", "node 1"]);
        // A node can contradict itself: it was restored from something else.
        history.digests = vec![state(1, 10, 7), state(1, 10, 8)];
        assert_finds(&check(&history), &["index 10", "node 1"]);
    }
}
