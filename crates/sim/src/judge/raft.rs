//! What Raft promises: one leader a term, and a committed entry never changes.

use std::collections::BTreeMap;

use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::{Commit, History, Leadership};

/// At most one leader in each term, one committed entry at each index, and terms that never go
/// back from one committed entry to the next.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("raft");
    check_leaders(history, &mut findings);
    check_commits(history, &mut findings);
    findings.into_verdicts()
}

fn check_leaders(history: &History, findings: &mut Findings) {
    let mut first: BTreeMap<u64, Leadership> = BTreeMap::new();
    for leader in &history.leaders {
        let other = *first.entry(leader.term).or_insert(*leader);
        if other.node != leader.node {
            findings.add(|| {
                format!(
                    "term {} has two leaders: node {} (seen at {}) and node {} (seen at {})",
                    leader.term,
                    other.node,
                    At(other.at),
                    leader.node,
                    At(leader.at)
                )
            });
        }
    }
}

fn check_commits(history: &History, findings: &mut Findings) {
    let mut first: BTreeMap<u64, Commit> = BTreeMap::new();
    for entry in &history.commits {
        let other = *first.entry(entry.index).or_insert(*entry);
        if (other.term, other.digest) != (entry.term, entry.digest) {
            findings.add(|| {
                format!(
                    "the committed entry {} is of term {} and {:016x} at node {}, but of term {} \
                     and {:016x} at node {}",
                    entry.index,
                    entry.term,
                    entry.digest,
                    entry.node,
                    other.term,
                    other.digest,
                    other.node
                )
            });
        }
    }
    let mut before: Option<Commit> = None;
    for entry in first.into_values() {
        if let Some(before) = before.filter(|before| before.term > entry.term) {
            findings.add(|| {
                format!(
                    "the committed entry {} is of term {} (node {}), but entry {} before it of \
                     term {} (node {})",
                    entry.index, entry.term, entry.node, before.index, before.term, before.node
                )
            });
        }
        before = Some(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::assert_finds;

    fn leader(at: u64, node: u64, term: u64) -> Leadership {
        Leadership { at, node, term }
    }

    fn commit(node: u64, index: u64, term: u64, digest: u64) -> Commit {
        Commit { node, index, term, digest }
    }

    #[test]
    fn leaders_by_turns_are_lawful_and_two_of_one_term_are_found() {
        let leaders = vec![leader(1, 1, 1), leader(3, 2, 2), leader(5, 1, 3), leader(6, 1, 3)];
        let mut history = History { leaders, ..History::default() };
        assert_eq!(check(&history), []);
        history.leaders.push(leader(2_000_000_000, 3, 2));
        assert_finds(&check(&history), &["term 2", "node 2", "node 3", "2.000000 s"]);
    }

    #[test]
    fn a_committed_entry_that_changes_is_found() {
        let commits = vec![commit(1, 1, 1, 7), commit(2, 1, 1, 7), commit(1, 2, 3, 8)];
        let mut history = History { commits, ..History::default() };
        assert_eq!(check(&history), []);
        for changed in [commit(3, 2, 4, 8), commit(3, 2, 3, 9)] {
            history.commits.push(changed);
            assert_finds(&check(&history), &["entry 2", "node 3", "node 1"]);
            history.commits.pop();
        }
    }

    #[test]
    fn terms_that_go_back_in_the_log_are_found() {
        let commits = vec![commit(1, 3, 4, 7), commit(1, 5, 2, 7)];
        let history = History { commits, ..History::default() };
        assert_finds(&check(&history), &["entry 5", "term 2", "entry 3", "term 4"]);
    }
}
