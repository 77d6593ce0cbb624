//! Znodes and the sessions that they hang on, by the log alone.
//!
//! A znode is made where none is and deleted where one is; an ephemeral one is made by a session
//! that lives, and is gone before its session's end is told; a sequential one never gets the number
//! of one before it, as long as its parent lives.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{Event, NodeChange, SessionId};

use crate::History;
use crate::judge::Verdict;
use crate::judge::findings::Findings;

/// No ephemeral without its session, and no place in line twice.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("ephemerals");
    let mut tree = Tree::default();
    for transition in &history.log {
        for fault in tree.apply(&transition.event) {
            findings.add(|| format!("entry {}: {fault}", transition.index));
        }
    }
    findings.into_verdicts()
}

#[derive(Default)]
struct Tree<'a> {
    nodes: BTreeMap<&'a str, Option<SessionId>>,
    sessions: BTreeMap<SessionId, BTreeSet<&'a str>>,
    /// The highest number given out below each parent, by what the names begin with.
    numbers: BTreeMap<(&'a str, &'a str), u64>,
}

impl<'a> Tree<'a> {
    fn apply(&mut self, event: &'a Event) -> Vec<String> {
        match event {
            Event::SessionOpened { session } => {
                self.sessions.entry(*session).or_default();
                Vec::new()
            }
            Event::SessionEnded { session, .. } => {
                let left = self.sessions.remove(session).unwrap_or_default();
                let told = |path: &str| format!("{path} is left over from session {session}");
                left.into_iter().map(told).collect()
            }
            Event::Node { path, change, session, .. } => match change {
                NodeChange::Created => self.created(path, *session),
                NodeChange::Deleted => self.deleted(path, *session),
                NodeChange::DataChanged if self.nodes.contains_key(&**path) => Vec::new(),
                NodeChange::DataChanged => vec![format!("{path} is set, and not there")],
            },
            _ => Vec::new(),
        }
    }

    fn created(&mut self, path: &'a str, session: Option<SessionId>) -> Vec<String> {
        let mut faults = Vec::new();
        if self.nodes.insert(path, session).is_some() {
            faults.push(format!("{path} is made a second time"));
        }
        if let Some(session) = session {
            match self.sessions.get_mut(&session) {
                Some(paths) => {
                    paths.insert(path);
                }
                None => faults.push(format!("{path} is made for session {session}, which is over")),
            }
        }
        if let Some((parent, prefix, number)) = numbered(path) {
            let newest = self.numbers.insert((parent, prefix), number);
            if let Some(newest) = newest.filter(|newest| *newest >= number) {
                faults.push(format!("{path} comes after number {newest}"));
            }
        }
        faults
    }

    fn deleted(&mut self, path: &'a str, session: Option<SessionId>) -> Vec<String> {
        let mut faults = Vec::new();
        match self.nodes.remove(path) {
            None => faults.push(format!("{path} is deleted, and not there")),
            Some(owner) if owner != session => {
                faults
                    .push(format!("{path} is {owner:?}'s, and is said to have been {session:?}'s"));
            }
            Some(_) => {}
        }
        if let Some(paths) = session.and_then(|session| self.sessions.get_mut(&session)) {
            paths.remove(path);
        }
        self.numbers.retain(|(parent, _), _| *parent != path);
        faults
    }
}

/// A sequential znode: its parent, what its name begins with, and its number.
fn numbered(path: &str) -> Option<(&str, &str, u64)> {
    let (parent, name) = path.rsplit_once('/')?;
    let digits = name.len().checked_sub(10).filter(|&at| name.is_char_boundary(at))?;
    let (prefix, digits) = name.split_at(digits);
    let number = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))?;
    Some((parent, prefix, number))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::EndReason;

    use super::*;
    use crate::judge::testing::{Forge, assert_finds};

    use NodeChange::{Created, DataChanged, Deleted};

    fn forge() -> Forge {
        let mut forge = Forge::new(0);
        forge
            .opened(1, 1)
            .opened(2, 2)
            .node(3, "/q", Created, 0, 3)
            .node(4, "/q/n-0000000000", Created, 1, 4)
            .node(5, "/q/n-0000000001", Created, 2, 5);
        forge
    }

    #[test]
    fn what_goes_with_its_session_is_lawful() {
        let mut forge = forge();
        forge
            .node(6, "/q/n-0000000000", DataChanged, 1, 6)
            .node(7, "/q/n-0000000000", Deleted, 1, 7)
            .ended(7, 1, EndReason::Expired)
            .node(8, "/q/n-0000000001", Deleted, 2, 8)
            .ended(9, 2, EndReason::Closed)
            // With its parent the counter begins anew.
            .node(10, "/q", Deleted, 0, 10)
            .node(11, "/q", Created, 0, 11)
            .node(12, "/q/n-0000000000", Created, 0, 12);
        assert_eq!(check(&forge.history()), []);
    }

    #[test]
    fn what_outlives_or_repeats_is_found() {
        let found = |forge: &mut Forge, words: &[&str]| {
            assert_finds(&check(&forge.history()), words);
        };
        found(forge().ended(6, 1, EndReason::Expired), &["n-0000000000 is left over"]);
        let mut late = forge();
        late.node(6, "/q/n-0000000000", Deleted, 1, 6).ended(6, 1, EndReason::Closed);
        found(late.node(7, "/q/x", Created, 1, 7), &["/q/x is made for session", "over"]);
        found(forge().node(6, "/q/n-0000000001", Created, 2, 6), &["a second time"]);
        let mut again = forge();
        again.node(6, "/q/n-0000000001", Deleted, 2, 6);
        found(again.node(7, "/q/n-0000000001", Created, 2, 7), &["comes after number 1"]);
        found(forge().node(6, "/none", Deleted, 0, 6), &["deleted, and not there"]);
        found(forge().node(6, "/none", DataChanged, 0, 6), &["set, and not there"]);
        found(forge().node(6, "/q/n-0000000000", Deleted, 2, 6), &["said to have been"]);
    }
}
