//! The locks of ZooKeeper's clients, as far as their znodes tell.
//!
//! To a server they are directories. What makes one a lock is the recipe that its clients follow,
//! and which one that is shows in the names of the children that stand in line
//! ([`Tree::line`]):
//!
//! | the name, before its number | whose | who holds |
//! |---|---|---|
//! | ends in `__READ__`, `__rlock__` | Curator's and kazoo's readers | all up to a writer |
//! | ends in `-lease-` | Curator's semaphore | all |
//! | anything else | locks, writers, elections | the first |
//!
//! How many permits a semaphore has, its clients alone know; they take turns to come into the line,
//! so that all but the last hold one.
//!
//! A writer of Curator that reads on has a second child, with the number of the first.

use std::sync::Arc;

use lockkeeper_core::{Mode, Revision, SessionId, Stamp, Tree, sequence_number};

use super::hub::parent;
use crate::limits::{LINE_NAME_BYTES_MAX, LINE_PATH_BYTES_MAX, LINE_STEPS_MAX, LISTED_MAX};

/// Digits of a number.
const DIGITS: usize = 10;

/// One lock.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) path: &'a str,
    /// Those who hold it, first come first, at most as many as were asked for.
    pub(crate) holders: Vec<Contender<'a>>,
    pub(crate) holder_count: usize,
    /// Those behind them, likewise.
    pub(crate) waiters: Vec<Contender<'a>>,
    pub(crate) waiter_count: usize,
    /// How many children were looked at.
    pub(crate) steps: usize,
}

/// One who stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contender<'a> {
    /// The name of the child, cut off if it is very long.
    pub(crate) name: &'a str,
    pub(crate) session: SessionId,
    pub(crate) mode: Mode,
    /// The revision at which it was made: later holders have higher ones.
    pub(crate) token: Revision,
    pub(crate) since: Stamp,
}

/// Where a session stands in line.
#[derive(Debug)]
pub(crate) struct Standing<'a> {
    /// Of the lock.
    pub(crate) path: &'a str,
    pub(crate) who: Contender<'a>,
    /// 1 for the next; `None`: it holds the lock.
    pub(crate) place: Option<u32>,
}

/// The paths of locks that start with `prefix`, behind `after`, in order.
pub(crate) fn paths<'a>(
    tree: &'a Tree,
    prefix: &'a str,
    after: Option<&'a str>,
) -> impl Iterator<Item = &'a Arc<str>> {
    let from = after.filter(|after| *after > prefix).unwrap_or(prefix);
    let paths = tree.lines(from).map(|(path, _)| path);
    paths
        .take_while(move |path| path.starts_with(prefix))
        .filter(move |path| after.is_none_or(|after| &***path > after))
        .filter(|path| path.len() <= LINE_PATH_BYTES_MAX)
}

/// The lock at `path`, with `list_max` of its holders and waiters each; `None` if nobody stands in
/// line there.
pub(crate) fn line<'a>(tree: &'a Tree, path: &'a str, list_max: usize) -> Option<Line<'a>> {
    look(tree, path, (list_max.max(1), list_max))
}

/// The same, with the first holder and no waiter.
pub(crate) fn head<'a>(tree: &'a Tree, path: &'a str) -> Option<Line<'a>> {
    look(tree, path, (1, 0))
}

/// The children of a session that stand in line.
fn children(tree: &Tree, session: SessionId) -> impl Iterator<Item = &Arc<str>> {
    let paths = tree.ephemerals(session).take(LINE_STEPS_MAX);
    paths.filter(|path| sequence_number(path).is_some())
}

/// In how many lines a session stands.
pub(crate) fn count_of(tree: &Tree, session: SessionId) -> usize {
    children(tree, session).count()
}

/// Where a session stands in line, as far as that can be said with [`LINE_STEPS_MAX`] looks.
pub(crate) fn of_session<'a>(tree: &'a Tree, session: SessionId) -> Vec<Standing<'a>> {
    let mut steps = LINE_STEPS_MAX;
    let standing = |child: &'a Arc<str>| {
        if steps == 0 {
            return None;
        }
        let path = parent(child).filter(|path| path.len() <= LINE_PATH_BYTES_MAX)?;
        let holder_count = holders(tree, path, tree.line(path).next()?);
        let before = tree.line(path).take(steps).position(|other| **other == **child);
        steps = steps.saturating_sub(holder_count + before.unwrap_or(steps) + 1);
        let place = (before? + 1).saturating_sub(holder_count);
        let place = (place > 0).then(|| u32::try_from(place).unwrap_or(u32::MAX));
        Some(Standing { path, who: contender(tree, child)?, place })
    };
    let standings = children(tree, session).take(LISTED_MAX).filter_map(standing);
    let mut standings: Vec<_> = standings.collect();
    standings.sort_by_key(|standing| (standing.path, standing.who.token));
    standings
}

fn look<'a>(
    tree: &'a Tree,
    path: &'a str,
    (holders_max, waiters_max): (usize, usize),
) -> Option<Line<'a>> {
    if path.len() > LINE_PATH_BYTES_MAX {
        return None;
    }
    let all = tree.line_len(path);
    let first = tree.line(path).next()?;
    let holder_count = holders(tree, path, first);
    let contender = |path: &'a Arc<str>| contender(tree, path);
    let listed = holder_count.min(holders_max);
    let waiters = tree.line(path).skip(holder_count).take(waiters_max);
    Some(Line {
        path,
        holders: tree.line(path).take(listed).filter_map(contender).collect(),
        holder_count,
        waiters: waiters.filter_map(contender).collect(),
        waiter_count: all.saturating_sub(holder_count),
        steps: holder_count + 1,
    })
}

/// How many at the head of the line hold the lock.
fn holders(tree: &Tree, path: &str, first: &str) -> usize {
    let line = || tree.line(path).take(LINE_STEPS_MAX);
    let (_, number) = split(first);
    let is_abreast = |path: &&Arc<str>| split(path).1 == number;
    let mode = if line().take_while(is_abreast).any(|path| mode(path) == Mode::Exclusive) {
        Mode::Exclusive
    } else {
        mode(first)
    };
    match mode {
        Mode::Exclusive => line().take_while(is_abreast).count(),
        shared => line().take_while(|path| self::mode(path) == shared).count(),
    }
}

fn contender<'a>(tree: &'a Tree, path: &'a Arc<str>) -> Option<Contender<'a>> {
    let stat = tree.node(path)?.stat;
    let name = path.rsplit('/').next()?;
    Some(Contender {
        name: cut(name),
        session: stat.ephemeral_owner?,
        mode: mode(path),
        token: stat.czxid,
        since: stat.ctime,
    })
}

fn cut(name: &str) -> &str {
    let mut end = name.len().min(LINE_NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// What is before the number, and its digits.
fn split(path: &str) -> (&str, &str) {
    path.split_at_checked(path.len().saturating_sub(DIGITS)).unwrap_or((path, ""))
}

/// How one who stands in line wants the lock.
fn mode(path: &str) -> Mode {
    let (stem, _) = split(path);
    if stem.ends_with("__READ__") || stem.ends_with("__rlock__") {
        Mode::Shared
    } else if stem.ends_with("-lease-") {
        Mode::Permits { take: 1, of: 0 }
    } else {
        Mode::Exclusive
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{
        AclRef, Command, IdRef, NodeKind, OwnerRef, Reply, Secret, StateMachine, TreeOp, perms,
    };

    use super::*;

    /// Some recipe's name before the number.
    const UUID: &str = "0b13e0a1-4f3d-4e0a-9d52-3aab1cd2e34f";
    const HEX: &str = "0b13e0a14f3d4e0a9d523aab1cd2e34f";

    fn apply(state: &mut StateMachine, at: u64, command: &Command<'_>) {
        let reply = state.apply(Stamp(at), command, &mut Vec::new());
        assert!(matches!(reply, Reply::Done | Reply::Tree(_)), "{reply:?}");
    }

    fn create(state: &mut StateMachine, session: u64, path: &str, kind: NodeKind) {
        let session = SessionId(session);
        if state.lease(session).is_none() {
            let (secret, owner) = (Secret([1; 16]), OwnerRef::default());
            apply(state, 1, &Command::OpenSession { session, secret, ttl_ms: 5_000, owner });
        }
        let id = IdRef { scheme: "world", id: "anyone" };
        let acl = vec![AclRef { perms: perms::ALL, id }];
        let ops = vec![TreeOp::Create { path, data: None, acl, kind, sequential: false }];
        let (ids, at) = (Vec::new(), state.revision().0);
        let command = Command::Tree { session, connection: 0, ids, enforce_quota: false, ops };
        apply(state, at, &command);
    }

    /// A directory `/l` with these children, each of a session of its own: 1, 2 …
    fn directory(names: &[String]) -> StateMachine {
        let mut state = StateMachine::default();
        create(&mut state, 99, "/l", NodeKind::Persistent);
        for (name, session) in names.iter().zip(1..) {
            create(&mut state, session, &format!("/l/{name}"), NodeKind::Ephemeral);
        }
        state
    }

    /// The sessions of those who hold and who wait.
    fn shown(names: &[String]) -> (Vec<u64>, Vec<u64>) {
        let state = directory(names);
        let line = line(state.tree(), "/l", 100).unwrap();
        assert_eq!(
            (line.holders.len(), line.waiters.len()),
            (line.holder_count, line.waiter_count)
        );
        let sessions = |line: &[Contender<'_>]| line.iter().map(|who| who.session.0).collect();
        (sessions(&line.holders), sessions(&line.waiters))
    }

    fn named(stems: &[(&str, u32)]) -> Vec<String> {
        stems.iter().map(|(stem, number)| format!("{stem}{number:010}")).collect()
    }

    #[test]
    fn of_a_lock_the_first_holds() {
        let all: [String; 8] = [
            format!("_c_{UUID}-lock-"),
            format!("_c_{HEX}-lock-"),
            format!("{HEX}__lock__"),
            format!("_c_{UUID}-latch-"),
            "x-72057594037927937-".into(),
            "n_".into(),
            "n-".into(),
            String::new(),
        ];
        for stem in all {
            let names = named(&[(&stem, 12), (&stem, 3), (&stem, 2_147_483_647)]);
            assert_eq!(shown(&names), (vec![2], vec![1, 3]), "{names:?}");
        }
    }

    #[test]
    fn readers_hold_together_up_to_the_first_writer() {
        let curator = (format!("_c_{UUID}-__READ__"), format!("_c_{UUID}-__WRIT__"));
        let kazoo = (format!("{HEX}__rlock__"), format!("{HEX}__lock__"));
        for (read, write) in [curator, kazoo] {
            let line = |kinds: &str| {
                let stem = |kind| if kind == 'r' { &*read } else { &*write };
                let stems: Vec<_> = kinds.chars().map(stem).zip(1..).collect();
                shown(&named(&stems))
            };
            assert_eq!(line("rr"), (vec![1, 2], vec![]));
            assert_eq!(line("rrwr"), (vec![1, 2], vec![3, 4]));
            assert_eq!(line("wrr"), (vec![1], vec![2, 3]));
            assert_eq!(line("ww"), (vec![1], vec![2]));
        }
    }

    /// Curator's writer that takes the lock for reading, too: its second child isn't sequential,
    /// and is called after the first.
    #[test]
    fn a_writer_that_reads_on_holds_twice() {
        let (read, write) = ("_c_a-__READ__", "_c_b-__WRIT__");
        let stems = [(write, 4), (read, 4), (read, 5), (write, 6)];
        assert_eq!(shown(&named(&stems)), (vec![2, 1], vec![3, 4]));
        assert_eq!(shown(&named(&stems[1..])), (vec![1, 2], vec![3]), "the writer is gone");
    }

    #[test]
    fn of_a_semaphore_all_are_shown_as_holders() {
        let lease = format!("_c_{UUID}-lease-");
        let names = named(&[(&lease, 1), (&lease, 2), (&lease, 3)]);
        assert_eq!(shown(&names), (vec![1, 2, 3], vec![]));
        let state = directory(&names);
        let line = line(state.tree(), "/l", 1).unwrap();
        assert_eq!(line.holders[0].mode, Mode::Permits { take: 1, of: 0 });
        assert_eq!((line.holders.len(), line.holder_count), (1, 3));
    }

    #[test]
    fn who_stands_in_line_is_told_with_session_token_and_time() {
        let names = [format!("{}-0000000001", "ä".repeat(600)), "b-0000000002".to_owned()];
        let state = directory(&names);
        let line = line(state.tree(), "/l", 10).unwrap();
        let stat = state.tree().node(&format!("/l/{}", names[1])).unwrap().stat;
        let second = Contender {
            name: "b-0000000002",
            session: SessionId(2),
            mode: Mode::Exclusive,
            token: stat.czxid,
            since: stat.ctime,
        };
        assert_eq!(line.waiters, [second]);
        assert_eq!(line.holders[0].name.len(), LINE_NAME_BYTES_MAX, "it is cut off");
        assert!(line.holders[0].token < second.token);
    }

    #[test]
    fn directories_are_listed_by_path_and_prefix() {
        let mut state = directory(&named(&[("a-", 1)]));
        create(&mut state, 99, "/l2", NodeKind::Persistent);
        create(&mut state, 99, "/l2/config0000000001", NodeKind::Persistent);
        create(&mut state, 99, "/l2/member", NodeKind::Ephemeral);
        create(&mut state, 99, &format!("/l2/{UUID}"), NodeKind::Ephemeral);
        create(&mut state, 1, "/x0000000001", NodeKind::Ephemeral);
        let long = format!("/{}", "p".repeat(LINE_PATH_BYTES_MAX));
        create(&mut state, 99, &long, NodeKind::Persistent);
        create(&mut state, 1, &format!("{long}/x-0000000001"), NodeKind::Ephemeral);
        create(&mut state, 99, "/m", NodeKind::Persistent);
        create(&mut state, 2, "/m/x-0000000001", NodeKind::Ephemeral);
        let listed = |prefix, after| -> Vec<String> {
            paths(state.tree(), prefix, after).map(|path| path.to_string()).collect()
        };
        assert_eq!(listed("", None), ["/", "/l", "/m"]);
        assert_eq!(listed("/", Some("/")), ["/l", "/m"]);
        assert_eq!(listed("/", Some("/k")), ["/l", "/m"]);
        assert_eq!(listed("/l", None), ["/l"]);
        assert_eq!(listed("/l", Some("/l")), [""; 0]);
        assert_eq!(listed("/m", Some("/l")), ["/m"]);
        for none in ["/l2", "/none", "", "l", &long] {
            assert!(line(state.tree(), none, 1).is_none(), "{none}");
        }
        let of_first: Vec<_> = of_session(state.tree(), SessionId(1))
            .iter()
            .map(|standing| (standing.path, standing.place))
            .collect();
        assert_eq!(of_first, [("/", None), ("/l", None)]);
    }

    #[test]
    fn a_session_is_told_its_places() {
        let mut state = directory(&named(&[("a-", 5), ("a-", 4), ("a-", 3)]));
        create(&mut state, 1, "/r", NodeKind::Persistent);
        create(&mut state, 1, "/r/__READ__0000000001", NodeKind::Ephemeral);
        create(&mut state, 2, "/r/__READ__0000000002", NodeKind::Ephemeral);
        let places = |session| -> Vec<_> {
            let standings = of_session(state.tree(), SessionId(session));
            standings.iter().map(|standing| (standing.path, standing.place)).collect()
        };
        assert_eq!(places(1), [("/l", Some(2)), ("/r", None)]);
        assert_eq!(places(2), [("/l", Some(1)), ("/r", None)]);
        assert_eq!(places(3), [("/l", None)]);
        assert_eq!(count_of(state.tree(), SessionId(1)), 2);
    }
}
