//! Watches: what was watched is told, once, in time, and nothing else is.
//!
//! The log says what happened to each znode, and at which revision. Where there is none, the
//! clients' own writes and all that anybody was told do: not everything that happened, but nothing
//! that didn't. A watch that was left by a
//! reply at revision *z* is due at the first change after *z* that concerns it. It must be told
//! with that change's revision, before anything that comes over the same connection and shows
//! something newer; and once. A new connection has none of the watches of the last, unless they are
//! set anew: then what happened since the client's last word is told at once.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{Event, NodeChange};

use crate::history::{Change, TreeSeen, Watch};
use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::{ClientId, History, Nanos, Seen};

/// Nothing is missed, doubled, late or made up.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("watches");
    let changes = Changes::of(history);
    let mut clients: BTreeMap<ClientId, Connection> = BTreeMap::new();
    for entry in &history.seen {
        if let Seen::Tree { client, told } = &entry.seen {
            let connection = clients.entry(*client).or_default();
            for fault in connection.read(told, &changes) {
                findings.add(|| told_by(*client, entry.at, &fault));
            }
        }
    }
    findings.into_verdicts()
}

fn told_by(client: ClientId, at: Nanos, fault: &str) -> String {
    format!("{client} at {}: {fault}", At(at))
}

/// What is known to have happened, by path and in order.
#[derive(Default)]
struct Changes<'a> {
    to_node: BTreeMap<&'a str, Vec<(u64, Change)>>,
    to_children: BTreeMap<&'a str, Vec<(u64, Change)>>,
    /// This is everything.
    is_complete: bool,
}

impl<'a> Changes<'a> {
    fn of(history: &'a History) -> Self {
        let mut changes = Self { is_complete: !history.log.is_empty(), ..Self::default() };
        for transition in &history.log {
            let Event::Node { path, change, zxid, .. } = &transition.event else { continue };
            let change = match change {
                NodeChange::Created => Change::Created,
                NodeChange::Deleted => Change::Deleted,
                NodeChange::DataChanged => Change::DataChanged,
            };
            changes.add(path, change, zxid.0);
        }
        if !changes.is_complete {
            changes.gather(history);
        }
        changes
    }

    /// Takes what clients were told.
    fn gather(&mut self, history: &'a History) {
        let mut anew: BTreeSet<ClientId> = BTreeSet::new();
        for entry in &history.seen {
            let Seen::Tree { client, told } = &entry.seen else { continue };
            match told {
                TreeSeen::Rewatching { .. } => _ = anew.insert(*client),
                TreeSeen::Rewatched { .. } | TreeSeen::Connected { .. } => {
                    anew.remove(client);
                }
                // Meanwhile it is told how things are, and not when they became so.
                TreeSeen::Notified { .. } if anew.contains(client) => {}
                TreeSeen::Notified { path, change, zxid }
                | TreeSeen::Changed { path, change, zxid } => self.add(path, *change, *zxid),
                _ => {}
            }
        }
        for known in self.to_node.values_mut().chain(self.to_children.values_mut()) {
            known.sort_by_key(|(zxid, _)| *zxid);
            known.dedup();
        }
    }

    fn add(&mut self, path: &'a str, change: Change, zxid: u64) {
        if change == Change::ChildrenChanged {
            self.to_children.entry(path).or_default().push((zxid, change));
            return;
        }
        self.to_node.entry(path).or_default().push((zxid, change));
        if change == Change::DataChanged {
            return;
        }
        if change == Change::Deleted {
            self.to_children.entry(path).or_default().push((zxid, change));
        }
        let (parent, _) = path.rsplit_once('/').unwrap_or_default();
        let parent = if parent.is_empty() { "/" } else { parent };
        self.to_children.entry(parent).or_default().push((zxid, Change::ChildrenChanged));
    }

    /// The first change after `zxid` that a watch tells.
    fn first_after(&self, path: &str, watch: Watch, zxid: u64) -> Option<(u64, Change)> {
        let changes = match watch {
            Watch::Data | Watch::Exists => self.to_node.get(path)?,
            Watch::Children => self.to_children.get(path)?,
        };
        let at = changes.partition_point(|&(at, _)| at <= zxid);
        changes.get(at).copied()
    }

    /// Whether this happened at this revision.
    fn is_so(&self, path: &str, change: Change, zxid: u64) -> bool {
        let changes = match change {
            Change::ChildrenChanged => self.to_children.get(path),
            Change::Created | Change::Deleted | Change::DataChanged => self.to_node.get(path),
        };
        changes.is_some_and(|changes| changes.contains(&(zxid, change)))
    }
}

/// What one client has over its present connection.
#[derive(Default)]
struct Connection {
    /// Since when each watch is there, by the revision of the reply that left it.
    watches: BTreeMap<(String, Watch), u64>,
    /// Watches being set anew: what was told of them hasn't come behind the answer yet.
    anew: BTreeSet<(String, Watch)>,
    since: u64,
    /// The newest revision that it has been shown, over any connection.
    seen: u64,
}

impl Connection {
    fn read(&mut self, told: &TreeSeen, changes: &Changes<'_>) -> Vec<String> {
        let mut faults = Vec::new();
        match told {
            TreeSeen::Connected { .. } => {
                self.watches.clear();
                self.anew.clear();
            }
            TreeSeen::Told { zxid } => {
                if *zxid < self.seen {
                    faults.push(format!("back to revision {zxid} from {}", self.seen));
                }
                self.shown(*zxid, changes, &mut faults);
            }
            TreeSeen::Watching { path, watch, zxid } => {
                let key = (path.clone(), watch.table());
                self.watches.entry(key).or_insert(*zxid);
            }
            TreeSeen::Rewatching { since, watches } => {
                self.since = *since;
                self.anew = watches.iter().cloned().collect();
            }
            TreeSeen::Rewatched { zxid } => self.rewatched(*zxid, changes, &mut faults),
            TreeSeen::Notified { path, change, zxid } => {
                self.notified(path, *change, *zxid, changes, &mut faults);
            }
            TreeSeen::Changed { path, change, zxid } => {
                if !changes.is_so(path, *change, *zxid) {
                    faults.push(format!("{change:?} of {path} at revision {zxid} never happened"));
                }
            }
            TreeSeen::Nonsense { what } => faults.push(what.clone()),
        }
        faults
    }

    /// Something showed revision `zxid`: what is due by then must have been told.
    fn shown(&mut self, zxid: u64, changes: &Changes<'_>, faults: &mut Vec<String>) {
        self.seen = self.seen.max(zxid);
        self.watches.retain(|(path, watch), since| {
            let due = changes.first_after(path, *watch, *since);
            let Some((at, change)) = due.filter(|(at, _)| *at <= zxid) else { return true };
            faults.push(format!(
                "{change:?} of {path} at revision {at} was watched since {since} ({watch:?}) and \
                 not told before revision {zxid} was shown"
            ));
            false
        });
    }

    fn rewatched(&mut self, zxid: u64, changes: &Changes<'_>, faults: &mut Vec<String>) {
        for (path, watch) in std::mem::take(&mut self.anew) {
            let due = changes.first_after(&path, watch.table(), self.since);
            // What came and went again while nobody looked isn't told to who waits for it to come.
            if let Some((at, change)) = due.filter(|(at, _)| *at <= zxid)
                && watch != Watch::Exists
            {
                faults.push(format!(
                    "{change:?} of {path} at revision {at} was missed: the watch ({watch:?}) was \
                     set anew for what came after {}",
                    self.since
                ));
                continue;
            }
            self.watches.entry((path, watch.table())).or_insert(zxid);
        }
    }

    /// Whether watches were being set anew of which this is told.
    fn told_anew(&mut self, path: &str, tables: &[Watch]) -> bool {
        let before = self.anew.len();
        self.anew.retain(|(of, watch)| of != path || !tables.contains(watch));
        self.anew.len() < before
    }

    fn notified(
        &mut self,
        path: &str,
        change: Change,
        zxid: u64,
        changes: &Changes<'_>,
        faults: &mut Vec<String>,
    ) {
        let of = |watch: Watch| (path.to_owned(), watch);
        let tables: &[Watch] = match change {
            Change::Created | Change::DataChanged => &[Watch::Exists, Watch::Data],
            Change::Deleted => &[Watch::Exists, Watch::Data, Watch::Children],
            Change::ChildrenChanged => &[Watch::Children],
        };
        // While watches are set anew, what is told is how it is now, whatever happened between; and
        // each of the two tables tells for itself: a deletion is told twice to who had both.
        let is_anew = match change {
            Change::Deleted => {
                self.told_anew(path, &[Watch::Exists, Watch::Data])
                    || self.told_anew(path, &[Watch::Children])
            }
            _ => self.told_anew(path, tables),
        };
        if is_anew {
            return;
        }
        let mut is_due = false;
        for &table in tables {
            let Some(&since) = self.watches.get(&of(table)) else { continue };
            let due = changes.first_after(path, table, since);
            if due.is_some_and(|(at, _)| at == zxid) {
                self.watches.remove(&of(table));
                is_due = true;
            }
        }
        if !is_due {
            faults.push(format!("{change:?} of {path} at revision {zxid} was told unasked"));
        } else if !changes.is_so(path, change, zxid) {
            faults.push(format!("{change:?} of {path} at revision {zxid} never happened"));
        }
        // Earlier changes come first.
        self.shown(zxid.saturating_sub(1), changes, faults);
    }
}

impl Watch {
    /// Watches of data and of existence are one to the server.
    fn table(self) -> Self {
        match self {
            Self::Exists | Self::Data => Self::Data,
            Self::Children => Self::Children,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::{Forge, S, assert_finds};

    const AT: &str = "/a";

    /// `/a` is made at 10, set at 20 and 30, a child comes at 40 and goes at 50, `/a` goes at 60.
    fn forge() -> Forge {
        let mut forge = Forge::new(2);
        forge
            .node(1, AT, NodeChange::Created, 0, 10)
            .node(2, AT, NodeChange::DataChanged, 0, 20)
            .node(3, AT, NodeChange::DataChanged, 0, 30)
            .node(4, "/a/b", NodeChange::Created, 0, 40)
            .node(5, "/a/b", NodeChange::Deleted, 0, 50)
            .node(6, AT, NodeChange::Deleted, 0, 60)
            .told(S, TreeSeen::Connected { zxid: 0 });
        forge
    }

    fn watching(watch: Watch, zxid: u64) -> TreeSeen {
        TreeSeen::Watching { path: AT.to_owned(), watch, zxid }
    }

    fn notified(change: Change, zxid: u64) -> TreeSeen {
        TreeSeen::Notified { path: AT.to_owned(), change, zxid }
    }

    fn told(zxid: u64) -> TreeSeen {
        TreeSeen::Told { zxid }
    }

    fn rewatching(watch: Watch, since: u64) -> TreeSeen {
        TreeSeen::Rewatching { since, watches: vec![(AT.to_owned(), watch)] }
    }

    /// Of data and of children.
    fn rewatching_both(since: u64) -> TreeSeen {
        let watches = [Watch::Data, Watch::Children].map(|watch| (AT.to_owned(), watch));
        TreeSeen::Rewatching { since, watches: watches.to_vec() }
    }

    #[track_caller]
    fn found(told: &[TreeSeen]) -> Vec<Verdict> {
        let mut forge = forge();
        for (at, told) in told.iter().enumerate() {
            forge.told(S * 2 + at as u64, told.clone());
        }
        check(&forge.done())
    }

    #[test]
    fn what_is_told_in_time_and_once_is_lawful() {
        let lawful: &[&[TreeSeen]] = &[
            &[told(5), watching(Watch::Exists, 5), notified(Change::Created, 10), told(15)],
            &[told(20), watching(Watch::Data, 20), notified(Change::DataChanged, 30), told(55)],
            &[watching(Watch::Children, 45), notified(Change::ChildrenChanged, 50), told(70)],
            // One deletion is told once, whoever watches.
            &[
                told(55),
                watching(Watch::Children, 55),
                watching(Watch::Data, 55),
                notified(Change::Deleted, 60),
                told(60),
            ],
            // Nothing is due before it is shown.
            &[told(20), watching(Watch::Data, 20), told(29)],
            // A connection that is gone owes nothing.
            &[watching(Watch::Data, 20), TreeSeen::Connected { zxid: 20 }, told(60)],
            &[
                watching(Watch::Data, 10),
                TreeSeen::Connected { zxid: 10 },
                rewatching(Watch::Data, 10),
                notified(Change::DataChanged, 35),
                TreeSeen::Rewatched { zxid: 35 },
                told(60),
            ],
            &[
                TreeSeen::Connected { zxid: 30 },
                rewatching(Watch::Data, 30),
                TreeSeen::Rewatched { zxid: 35 },
                notified(Change::Deleted, 60),
            ],
            // What is told of watches that are set anew has no revision.
            &[
                TreeSeen::Connected { zxid: 55 },
                rewatching_both(55),
                notified(Change::Deleted, u64::MAX),
                notified(Change::Deleted, u64::MAX),
                TreeSeen::Rewatched { zxid: 65 },
                told(65),
            ],
        ];
        for told in lawful {
            assert_eq!(found(told), [], "{told:?}");
        }
    }

    #[test]
    fn what_is_missed_doubled_late_or_made_up_is_found() {
        let forged: &[(&[TreeSeen], &[&str])] = &[
            (&[watching(Watch::Data, 20), told(30)], &["revision 30", "not told before"]),
            (
                &[watching(Watch::Data, 20), told(40), notified(Change::DataChanged, 30)],
                &["not told before revision 40"],
            ),
            (
                &[
                    watching(Watch::Data, 10),
                    notified(Change::DataChanged, 20),
                    notified(Change::DataChanged, 30),
                ],
                &["revision 30", "unasked"],
            ),
            (&[notified(Change::DataChanged, 20)], &["unasked"]),
            (&[watching(Watch::Data, 10), notified(Change::DataChanged, 30)], &["unasked"]),
            (&[watching(Watch::Data, 10), notified(Change::Created, 20)], &["never happened"]),
            (
                &[
                    watching(Watch::Data, 20),
                    watching(Watch::Children, 20),
                    notified(Change::ChildrenChanged, 40),
                ],
                &["revision 30", "not told before"],
            ),
            (
                &[
                    TreeSeen::Connected { zxid: 10 },
                    rewatching(Watch::Data, 10),
                    TreeSeen::Rewatched { zxid: 35 },
                ],
                &["missed", "set anew"],
            ),
            (
                &[
                    TreeSeen::Connected { zxid: 30 },
                    rewatching(Watch::Data, 30),
                    TreeSeen::Rewatched { zxid: 35 },
                    told(60),
                ],
                &["revision 60", "not told before"],
            ),
            (
                &[
                    TreeSeen::Connected { zxid: 55 },
                    rewatching(Watch::Data, 55),
                    notified(Change::Deleted, u64::MAX),
                    notified(Change::Deleted, u64::MAX),
                ],
                &["unasked"],
            ),
            (&[told(20), TreeSeen::Connected { zxid: 20 }, told(19)], &["back to revision 19"]),
            (&[TreeSeen::Nonsense { what: "an odd frame".to_owned() }], &["an odd frame"]),
        ];
        for (told, words) in forged {
            assert_finds(&found(told), words);
        }
    }

    /// The same without a log: what client 1 is told, while client 2 makes `/a` at 10 and sets it
    /// at 20 and 30, and hears of its deletion at 60.
    fn found_unlogged(told: &[TreeSeen]) -> Vec<Verdict> {
        let mut forge = Forge::new(3);
        let changed = |change, zxid| TreeSeen::Changed { path: AT.to_owned(), change, zxid };
        let by_two = [
            changed(Change::Created, 10),
            changed(Change::DataChanged, 20),
            changed(Change::DataChanged, 30),
            watching(Watch::Data, 50),
            notified(Change::Deleted, 60),
        ];
        for told in by_two {
            forge.see(S, Seen::Tree { client: ClientId(2), told });
        }
        forge.told(S, TreeSeen::Connected { zxid: 0 });
        for (at, told) in told.iter().enumerate() {
            forge.told(S * 2 + at as u64, told.clone());
        }
        check(&forge.done())
    }

    #[test]
    fn without_a_log_what_others_saw_counts() {
        let lawful: &[&[TreeSeen]] = &[
            &[watching(Watch::Data, 20), notified(Change::DataChanged, 30), told(70)],
            &[watching(Watch::Children, 30), notified(Change::Deleted, 60), told(60)],
            // Nobody but this one saw it.
            &[watching(Watch::Data, 30), notified(Change::DataChanged, 40), told(50)],
            // How it is now, told while watches are set anew, says nothing of when it became so.
            &[
                TreeSeen::Connected { zxid: 10 },
                rewatching(Watch::Data, 10),
                notified(Change::DataChanged, 35),
                TreeSeen::Rewatched { zxid: 35 },
                watching(Watch::Data, 31),
                told(50),
            ],
        ];
        for told in lawful {
            assert_eq!(found_unlogged(told), [], "{told:?}");
        }
        let forged: &[(&[TreeSeen], &[&str])] = &[
            (&[watching(Watch::Data, 20), told(30)], &["revision 30", "not told before"]),
            (
                &[watching(Watch::Data, 10), notified(Change::DataChanged, 30)],
                &["revision 30", "unasked"],
            ),
            (&[watching(Watch::Children, 30), told(60)], &["revision 60", "not told before"]),
            (&[notified(Change::DataChanged, 20)], &["unasked"]),
            (
                &[
                    TreeSeen::Connected { zxid: 10 },
                    rewatching(Watch::Data, 10),
                    TreeSeen::Rewatched { zxid: 35 },
                ],
                &["missed", "set anew"],
            ),
        ];
        for (told, words) in forged {
            assert_finds(&found_unlogged(told), words);
        }
    }

    #[test]
    fn a_write_that_the_log_does_not_know_is_found() {
        let path = AT.to_owned();
        let made_up = TreeSeen::Changed { path, change: Change::DataChanged, zxid: 25 };
        assert_finds(&found(&[made_up]), &["revision 25", "never happened"]);
    }
}
