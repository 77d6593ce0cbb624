//! The history as it is gathered: observations as lines of text, so that workers can send them
//! through a pipe and a bad run can be kept in a file.

use std::fmt::Write;
use std::sync::Arc;

use lockkeeper_core::{Mode, SessionId, Token};
use lockkeeper_sim::history::{Change, TreeSeen, Watch};
use lockkeeper_sim::{Attempt, ClientId, GiveUp, History, Nanos, Seen};
use parking_lot::Mutex;

/// Where all observations of a run go, from any thread.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<(Nanos, Seen)>>>);

impl Recorder {
    /// Adds an observation; they may come in any order.
    pub(crate) fn see(&self, at: Nanos, seen: Seen) {
        self.0.lock().push((at, seen));
    }

    /// All of them in the order of time, counted from `begun`.
    pub(crate) fn history(&self, begun: Nanos) -> History {
        let mut seen = self.0.lock().clone();
        seen.sort_by_key(|(at, _)| *at);
        let mut history = History::default();
        for (at, mut seen) in seen {
            match &mut seen {
                Seen::Lost { since, .. } => *since = since.saturating_sub(begun),
                Seen::Viewed { asked, .. } => *asked = asked.saturating_sub(begun),
                _ => {}
            }
            history.see(at.saturating_sub(begun), seen);
        }
        history
    }
}

/// One observation as a line without its end.
pub(crate) fn to_line(at: Nanos, seen: &Seen) -> String {
    let mut line = format!("{at} ");
    let written = match seen {
        Seen::Opened { client, session } => {
            write!(line, "opened {} {}", client.0, session.map_or(0, |session| session.0))
        }
        Seen::Ended { client } => write!(line, "ended {}", client.0),
        Seen::Asked { attempt, client, lock, mode, wait } => {
            let (mode, wait) = (mode_text(*mode), u8::from(*wait));
            write!(line, "asked {} {} {lock} {mode} {wait}", attempt.0, client.0)
        }
        Seen::Queued { attempt } => write!(line, "queued {}", attempt.0),
        Seen::Held { attempt, token } => write!(line, "held {} {token}", attempt.0),
        Seen::Releasing { attempt } => write!(line, "releasing {}", attempt.0),
        Seen::Released { attempt } => write!(line, "released {}", attempt.0),
        Seen::Lost { attempt, since } => write!(line, "lost {} {since}", attempt.0),
        Seen::GaveUp { attempt, why } => write!(line, "gave-up {} {}", attempt.0, why_text(*why)),
        Seen::Forced { lock, token } => write!(line, "forced {lock} {token}"),
        Seen::Wrote { lock, mode, token, accepted } => {
            let (mode, accepted) = (mode_text(*mode), u8::from(*accepted));
            write!(line, "wrote {lock} {mode} {token} {accepted}")
        }
        Seen::Viewed { lock, asked, holders, waiters } => {
            let holders: Vec<_> = holders.iter().map(ToString::to_string).collect();
            write!(line, "viewed {lock} {asked} {waiters} {}", holders.join(","))
        }
        Seen::Tree { client, told } => write!(line, "tree {} {}", client.0, tree_text(told)),
        Seen::Calm => write!(line, "calm"),
        Seen::Over => write!(line, "over"),
    };
    written.expect("a string takes everything");
    line
}

/// The observation that a line tells; `None` if it is none, or cut off.
pub(crate) fn of_line(line: &str) -> Option<(Nanos, Seen)> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let kind = words.next()?;
    let words: Vec<&str> = words.collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let attempt = || number(0).map(Attempt);
    let client = |at| Some(ClientId(u32::try_from(number(at)?).ok()?));
    let token = |at| number(at).map(Token);
    let mode = |at: usize| of_mode_text(words.get(at)?);
    let lock = |at: usize| words.get(at).map(|&lock| lock.to_owned());
    let seen = match kind {
        "opened" => {
            let session = Some(SessionId(number(1)?)).filter(|session| session.0 != 0);
            Seen::Opened { client: client(0)?, session }
        }
        "ended" => Seen::Ended { client: client(0)? },
        "asked" => Seen::Asked {
            attempt: attempt()?,
            client: client(1)?,
            lock: lock(2)?,
            mode: mode(3)?,
            wait: number(4)? == 1,
        },
        "queued" => Seen::Queued { attempt: attempt()? },
        "held" => Seen::Held { attempt: attempt()?, token: token(1)? },
        "releasing" => Seen::Releasing { attempt: attempt()? },
        "released" => Seen::Released { attempt: attempt()? },
        "lost" => Seen::Lost { attempt: attempt()?, since: number(1)? },
        "gave-up" => Seen::GaveUp { attempt: attempt()?, why: of_why_text(words.get(1)?)? },
        "forced" => Seen::Forced { lock: lock(0)?, token: token(1)? },
        "wrote" => Seen::Wrote {
            lock: lock(0)?,
            mode: mode(1)?,
            token: token(2)?,
            accepted: number(3)? == 1,
        },
        "viewed" => Seen::Viewed {
            lock: lock(0)?,
            asked: number(1)?,
            waiters: usize::try_from(number(2)?).ok()?,
            holders: words
                .get(3)?
                .split(',')
                .filter_map(|token| token.parse().ok())
                .map(Token)
                .collect(),
        },
        "tree" => Seen::Tree { client: client(0)?, told: of_tree_words(words.get(1..)?)? },
        "calm" => Seen::Calm,
        "over" => Seen::Over,
        _ => return None,
    };
    Some((at, seen))
}

/// `x`, `s`, or permits as `take/of`.
pub(crate) fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".to_owned(),
        Mode::Shared => "s".to_owned(),
        Mode::Permits { take, of } => format!("{take}/{of}"),
    }
}

pub(crate) fn of_mode_text(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => {
            let (take, of) = text.split_once('/')?;
            Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
        }
    }
}

const fn why_text(why: GiveUp) -> &'static str {
    match why {
        GiveUp::Refused => "refused",
        GiveUp::Cancelled => "cancelled",
        GiveUp::SessionEnded => "session-ended",
        GiveUp::Unknown => "unknown",
    }
}

fn of_why_text(text: &str) -> Option<GiveUp> {
    [GiveUp::Refused, GiveUp::Cancelled, GiveUp::SessionEnded, GiveUp::Unknown]
        .into_iter()
        .find(|why| why_text(*why) == text)
}

/// What was told of a tree, in words; no path of a worker's has a space, a colon or a comma.
fn tree_text(told: &TreeSeen) -> String {
    match told {
        TreeSeen::Connected { zxid } => format!("connected {zxid}"),
        TreeSeen::Told { zxid } => format!("told {zxid}"),
        TreeSeen::Watching { path, watch, zxid } => {
            format!("watching {path} {} {zxid}", watch_text(*watch))
        }
        TreeSeen::Rewatching { since, watches } => {
            let watches = watches.iter();
            let watches: Vec<_> =
                watches.map(|(path, watch)| format!("{path}:{}", watch_text(*watch))).collect();
            format!("rewatching {since} {}", watches.join(","))
        }
        TreeSeen::Rewatched { zxid } => format!("rewatched {zxid}"),
        TreeSeen::Notified { path, change, zxid } => {
            format!("notified {path} {} {zxid}", change_text(*change))
        }
        TreeSeen::Changed { path, change, zxid } => {
            format!("changed {path} {} {zxid}", change_text(*change))
        }
        TreeSeen::Nonsense { what } => format!("nonsense {what}"),
    }
}

fn of_tree_words(words: &[&str]) -> Option<TreeSeen> {
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let path = || words.get(1).map(|&path| path.to_owned());
    let change = || of_change_text(words.get(2)?);
    Some(match *words.first()? {
        "connected" => TreeSeen::Connected { zxid: number(1)? },
        "told" => TreeSeen::Told { zxid: number(1)? },
        "watching" => TreeSeen::Watching {
            path: path()?,
            watch: of_watch_text(words.get(2)?)?,
            zxid: number(3)?,
        },
        "rewatching" => {
            let watches = words.get(2)?.split(',').map(|watch| {
                let (path, watch) = watch.split_once(':')?;
                Some((path.to_owned(), of_watch_text(watch)?))
            });
            TreeSeen::Rewatching { since: number(1)?, watches: watches.collect::<Option<_>>()? }
        }
        "rewatched" => TreeSeen::Rewatched { zxid: number(1)? },
        "notified" => TreeSeen::Notified { path: path()?, change: change()?, zxid: number(3)? },
        "changed" => TreeSeen::Changed { path: path()?, change: change()?, zxid: number(3)? },
        "nonsense" => TreeSeen::Nonsense { what: words.get(1..)?.join(" ") },
        _ => return None,
    })
}

const fn watch_text(watch: Watch) -> &'static str {
    match watch {
        Watch::Exists => "exists",
        Watch::Data => "data",
        Watch::Children => "children",
    }
}

fn of_watch_text(text: &str) -> Option<Watch> {
    [Watch::Exists, Watch::Data, Watch::Children]
        .into_iter()
        .find(|watch| watch_text(*watch) == text)
}

const fn change_text(change: Change) -> &'static str {
    match change {
        Change::Created => "created",
        Change::Deleted => "deleted",
        Change::DataChanged => "set",
        Change::ChildrenChanged => "children",
    }
}

fn of_change_text(text: &str) -> Option<Change> {
    [Change::Created, Change::Deleted, Change::DataChanged, Change::ChildrenChanged]
        .into_iter()
        .find(|change| change_text(*change) == text)
}
