//! The judges, judged by the history that they have just found faultless: what is forged into it
//! for a client of ZooKeeper's protocol must be found.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{Mode, Token};
use lockkeeper_sim::history::{Change, TreeSeen};
use lockkeeper_sim::judge::judge_all;
use lockkeeper_sim::{Attempt, ClientId, Entry, History, Nanos, Seen};

use crate::history::{of_line, to_line};
use crate::verdict::is_zookeepers;

/// Forges a second holder, a notification that never came, and a token that goes back.
///
/// # Panics
///
/// If a judge doesn't find it.
pub(crate) fn prove(history: &History) {
    let hold = held(history);
    let (at, attempt) = (hold.from, Attempt(u64::MAX));
    let asked = Seen::Asked {
        attempt,
        client: ClientId(u32::MAX),
        lock: hold.lock.clone(),
        mode: Mode::Exclusive,
        wait: true,
    };
    let opened = Seen::Opened { client: ClientId(u32::MAX), session: None };
    let second = Seen::Held { attempt, token: Token(hold.token.0 + 1) };
    let until = hold.from + (hold.until - hold.from) / 2;
    let forged = with(history, [(0, opened.clone()), (at, asked.clone()), (until, second)]);
    assert_found(&forged, "exclusion", &hold.lock);

    let late = Seen::Held { attempt, token: Token(hold.token.0 - 1) };
    let behind = hold.until + 1;
    let forged = with(history, [(0, opened), (behind, asked), (behind + 1, late)]);
    assert_found(&forged, "tokens", &hold.lock);

    let (missed, path) = missed(history);
    let mut forged = history.clone();
    forged.seen.remove(missed);
    assert_found(&forged, "watches", &path);
    println!("forged into this history, and found: a second holder, an old token, a missed watch");
}

/// What passed through the pipes, or a file: it says the same on the other side.
fn assert_found(forged: &History, judge: &str, about: &str) {
    let mut read = History { seen: Vec::new(), ..forged.clone() };
    for Entry { at, seen } in &forged.seen {
        let line = to_line(*at, seen);
        let (at, seen) = of_line(&line).unwrap_or_else(|| panic!("not understood: {line}"));
        read.see(at, seen);
    }
    assert_eq!(read.seen, forged.seen);
    let found = judge_all(&read);
    let is_it = found.iter().any(|found| found.judge == judge && found.what.contains(about));
    assert!(is_it, "what was forged for {about} was not found by {judge:?}: {found:?}");
}

fn with<const N: usize>(history: &History, forged: [(Nanos, Seen); N]) -> History {
    let mut history = history.clone();
    history.seen.extend(forged.map(|(at, seen)| Entry { at, seen }));
    history.seen.sort_by_key(|entry| entry.at);
    history
}

/// A hold of some length.
struct Hold {
    lock: String,
    token: Token,
    from: Nanos,
    until: Nanos,
}

/// The longest hold of ZooKeeper's recipe that was given back.
fn held(history: &History) -> Hold {
    let mut locks = BTreeMap::new();
    let mut held = BTreeMap::new();
    let mut longest: Option<Hold> = None;
    for Entry { at, seen } in &history.seen {
        match seen {
            Seen::Asked { attempt, lock, .. } if is_zookeepers(lock) => {
                locks.insert(*attempt, lock);
            }
            Seen::Held { attempt, token } => _ = held.insert(*attempt, (*at, *token)),
            Seen::Releasing { attempt } => {
                let Some(((from, token), lock)) = held.get(attempt).zip(locks.get(attempt)) else {
                    continue;
                };
                let hold = Hold { lock: (*lock).clone(), token: *token, from: *from, until: *at };
                if longest.as_ref().is_none_or(|other| at - from > other.until - other.from) {
                    longest = Some(hold);
                }
            }
            _ => {}
        }
    }
    longest.expect("some hold of ZooKeeper's recipe was given back")
}

/// The place of a notification after which its client was shown what is as new or newer, and of
/// which whoever made the change knows.
fn missed(history: &History) -> (usize, String) {
    let mut known: BTreeSet<(&str, u64)> = BTreeSet::new();
    for Entry { seen, .. } in &history.seen {
        if let Seen::Tree { told: TreeSeen::Changed { path, zxid, .. }, .. } = seen {
            known.insert((path, *zxid));
        }
    }
    let mut anew = BTreeSet::new();
    for (place, Entry { seen, .. }) in history.seen.iter().enumerate() {
        let Seen::Tree { client, told } = seen else { continue };
        match told {
            TreeSeen::Rewatching { .. } => _ = anew.insert(client),
            TreeSeen::Rewatched { .. } | TreeSeen::Connected { .. } => _ = anew.remove(client),
            TreeSeen::Notified { path, change, zxid }
                if *change != Change::ChildrenChanged
                    && !anew.contains(client)
                    && known.contains(&(path.as_str(), *zxid))
                    && next_told(history, place, *client) >= Some(*zxid) =>
            {
                return (place, path.clone());
            }
            _ => {}
        }
    }
    panic!("no notification came in order");
}

/// The revision that a client is shown next, if that is what it sees next.
fn next_told(history: &History, place: usize, by: ClientId) -> Option<u64> {
    let next = history.seen[place + 1..].iter().find_map(|entry| match &entry.seen {
        Seen::Tree { client, told } if *client == by => Some(told),
        _ => None,
    });
    match next? {
        TreeSeen::Told { zxid } => Some(*zxid),
        _ => None,
    }
}
