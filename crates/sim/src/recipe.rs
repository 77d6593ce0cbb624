//! The lock recipe of ZooKeeper's clients, read as a lock.
//!
//! A directory below [`LOCKS_DIRECTORY`] is a lock; each ephemeral sequential child is a place in
//! its line, and the lowest holds it. What the log says of znodes is told once more in the words
//! of locks, so that the judges of locks judge the recipe, too: the token of a hold is the change
//! that made its znode.

use std::collections::BTreeMap;

use lockkeeper_core::{
    EndReason, Event, LossReason, Mode, NodeChange, Number, Revision, SessionId, Token,
};

use crate::Transition;

/// Where the locks' directories are.
pub const LOCKS_DIRECTORY: &str = "/locks";

/// The directory of a lock.
#[must_use]
pub fn directory(lock: &str) -> String {
    format!("{LOCKS_DIRECTORY}/{lock}")
}

/// A lock's name in histories, which no native lock has.
#[must_use]
pub fn lock_name(lock: &str) -> String {
    format!("zookeeper:{lock}")
}

/// The place in line of a sequential child.
#[must_use]
pub fn sequence(name: &str) -> u64 {
    name.rsplit_once('-').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(u64::MAX)
}

/// Adds to a log what its znodes mean as locks.
#[must_use]
pub fn read(log: &[Transition]) -> Vec<Transition> {
    let mut lines: BTreeMap<String, BTreeMap<u64, Place>> = BTreeMap::new();
    let mut told = Vec::with_capacity(log.len());
    for (at, transition) in log.iter().enumerate() {
        let index = transition.index;
        let mut tell = |event| told.push(Transition { index, event });
        if let Event::Node { path, change, session: Some(session), zxid, .. } = &transition.event
            && let Some((lock, name)) = place(path)
        {
            let line = lines.entry(lock.to_owned()).or_default();
            let lock = lock_name(lock);
            match change {
                NodeChange::Created => {
                    let place = Place { session: *session, zxid: *zxid };
                    line.insert(sequence(name), place);
                    match line.len() {
                        1 => tell(place.granted(&lock, false)),
                        others => tell(place.queued(&lock, others - 1)),
                    }
                }
                NodeChange::Deleted => {
                    let was_first = line.first_key_value().map(|(&first, _)| first);
                    if let Some(place) = line.remove(&sequence(name)) {
                        let ended = ending(&log[at..], *session);
                        let held = was_first == Some(sequence(name));
                        tell(place.gone(&lock, held, ended));
                        if held && let Some((_, next)) = line.first_key_value() {
                            tell(next.granted(&lock, true));
                        }
                    }
                }
                NodeChange::DataChanged => {}
            }
        }
        tell(transition.event.clone());
    }
    told
}

/// Why the session of a znode that is being deleted ends in the same entry, if it does.
fn ending(rest: &[Transition], session: SessionId) -> Option<EndReason> {
    let index = rest.first()?.index;
    let mut entry = rest.iter().take_while(|transition| transition.index == index);
    entry.find_map(|transition| match transition.event {
        Event::SessionEnded { session: ended, reason } if ended == session => Some(reason),
        _ => None,
    })
}

fn place(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(LOCKS_DIRECTORY)?.strip_prefix('/')?.split_once('/')
}

/// A znode in a lock's directory.
#[derive(Clone, Copy)]
struct Place {
    session: SessionId,
    zxid: Revision,
}

impl Place {
    fn number(self) -> Number {
        Number(self.zxid.0)
    }

    fn token(self) -> Token {
        Token(self.zxid.0)
    }

    fn queued(self, lock: &str, place: usize) -> Event {
        let (lock, session, number) = (lock.into(), self.session, self.number());
        Event::Queued { lock, session, number, place: place as u32 }
    }

    fn granted(self, lock: &str, has_waited: bool) -> Event {
        let (session, number, token) = (self.session, self.number(), self.token());
        let waited_ms = has_waited.then_some(0);
        let lock = lock.into();
        Event::Granted { lock, session, number, token, mode: Mode::Exclusive, waited_ms }
    }

    fn gone(self, lock: &str, held: bool, ended: Option<EndReason>) -> Event {
        let (session, number, token) = (self.session, self.number(), self.token());
        let lock = lock.into();
        match (held, ended) {
            (false, ended) => Event::Cancelled { lock, session, number, waited_ms: 0, ended },
            (true, None) => Event::Released { lock, session, number, token, held_ms: 0 },
            (true, Some(reason)) => {
                let reason = LossReason::SessionEnded(reason);
                Event::Lost { lock, session, number, token, held_ms: 0, reason }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_read_as_a_lock() {
        let node = |name: &str, change, session, zxid| Event::Node {
            path: format!("/locks/a/{name}").into(),
            change,
            session: Some(SessionId(session)),
            zxid: Revision(zxid),
            acl: Default::default(),
            acl_above: None,
        };
        let ended = |session, reason| Event::SessionEnded { session: SessionId(session), reason };
        let log = [
            (1, node("7-lock-0000000000", NodeChange::Created, 1, 10)),
            (2, node("8-lock-0000000001", NodeChange::Created, 2, 20)),
            (3, node("9-lock-0000000002", NodeChange::Created, 3, 30)),
            // The head's session ends, and with it a lock is passed on.
            (4, node("7-lock-0000000000", NodeChange::Deleted, 1, 40)),
            (4, ended(1, EndReason::Expired)),
            (5, node("9-lock-0000000002", NodeChange::Deleted, 3, 50)),
            (6, node("8-lock-0000000001", NodeChange::Deleted, 2, 60)),
        ];
        let log: Vec<Transition> =
            log.into_iter().map(|(index, event)| Transition { index, event }).collect();
        let told: Vec<(u64, Event)> = read(&log)
            .into_iter()
            .filter(|t| !matches!(t.event, Event::Node { .. } | Event::SessionEnded { .. }))
            .map(|transition| (transition.index, transition.event))
            .collect();
        let lock = || std::sync::Arc::from("zookeeper:a");
        let place = |session, zxid| Place { session: SessionId(session), zxid: Revision(zxid) };
        let expected = [
            (1, place(1, 10).granted(&lock(), false)),
            (2, place(2, 20).queued(&lock(), 1)),
            (3, place(3, 30).queued(&lock(), 2)),
            (4, place(1, 10).gone(&lock(), true, Some(EndReason::Expired))),
            (4, place(2, 20).granted(&lock(), true)),
            (5, place(3, 30).gone(&lock(), false, None)),
            (6, place(2, 20).gone(&lock(), true, None)),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_number_is_the_last_of_a_name() {
        assert_eq!(sequence("17-lock-0000000042"), 42);
        assert_eq!(sequence("nothing"), u64::MAX);
    }
}
