//! No lost lock: what was granted stays until it is given back, or its session ends.
//!
//! A client that has been told that it holds a lock, and whose session lives, holds it. The log
//! has the grant, and no end of it that nobody asked for; every read in between shows it; a hold
//! ends once, and nothing remains of a session that has ended.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{EndReason, Event, LossReason, Mode, Number, SessionId, Token};

use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::judge::ledger::Ledger;
use crate::judge::story::{Hold, Story, Wish};
use crate::{Entry, History, Nanos, Seen, Transition};

/// Nothing that was granted is lost, in the log, in the clients' beliefs, and in reads.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("kept");
    check_log(history, &mut findings);
    let story = Story::of(history);
    if !history.log.is_empty() {
        check_beliefs(history, &story, &mut findings);
    }
    check_views(history, &story, &mut findings);
    findings.into_verdicts()
}

// ------------------------------------------------------------------------------- the log by itself

fn check_log(history: &History, findings: &mut Findings) {
    let mut ledger = Ledger::default();
    let mut living: BTreeSet<SessionId> = BTreeSet::new();
    for (at, Transition { index, event }) in history.log.iter().enumerate() {
        match *event {
            Event::SessionOpened { session } => {
                if !living.insert(session) {
                    findings.add(|| format!("entry {index} opens session {session} again"));
                }
            }
            Event::SessionEnded { session, .. } => {
                check_ending(&ledger, *index, session, &mut living, findings);
            }
            Event::Granted { session, .. } | Event::Queued { session, .. }
                if !living.contains(&session) =>
            {
                findings
                    .add(|| format!("entry {index} serves a session that is no more: {event:?}"));
            }
            Event::Released { ref lock, session, token, .. }
            | Event::Revoked { ref lock, session, token, .. }
            | Event::Lost { ref lock, session, token, .. } => {
                let holds = ledger.line(lock).map_or(&[][..], |line| &line.holds);
                let is_held =
                    holds.iter().any(|hold| (hold.token, hold.session) == (token, session));
                if !is_held {
                    findings.add(|| {
                        format!("entry {index} is about a hold that there isn't: {event:?}")
                    });
                }
                if matches!(event, Event::Lost { .. }) && !is_reason_told(history, at) {
                    findings.add(|| {
                        format!("entry {index} takes a hold, but its session lives: {event:?}")
                    });
                }
            }
            Event::Cancelled { ref lock, session, number, .. } => {
                if ledger.line(lock).and_then(|line| line.place(session, number)).is_none() {
                    findings.add(|| {
                        format!("entry {index} is about a place that there isn't: {event:?}")
                    });
                }
            }
            Event::Granted { .. }
            | Event::Queued { .. }
            | Event::SessionRevoked { .. }
            | Event::SessionMoved { .. }
            | Event::Node { .. } => {}
        }
        ledger.apply(event, None);
    }
}

/// A session ends once, and when it has ended nothing of it is left.
fn check_ending(
    ledger: &Ledger<'_>,
    index: u64,
    session: SessionId,
    living: &mut BTreeSet<SessionId>,
    findings: &mut Findings,
) {
    if !living.remove(&session) {
        findings.add(|| format!("entry {index} ends session {session}, which isn't alive"));
    }
    for (lock, line) in ledger.lines() {
        let hold = line.holds.iter().find(|hold| hold.session == session);
        if let Some(hold) = hold {
            let (token, number) = (hold.token, hold.number.0);
            findings.add(|| {
                format!(
                    "entry {index} ends session {session}, but leaves its hold of {lock:?} \
                     (number {number}, token {token})"
                )
            });
        }
        if line.queue.iter().any(|place| place.session == session) {
            findings.add(|| {
                format!("entry {index} ends session {session}, but leaves its place in {lock:?}")
            });
        }
    }
}

/// Whether the loss at `at` says that its session ends, and it does in the same entry; or that an
/// operator forced it.
fn is_reason_told(history: &History, at: usize) -> bool {
    let Transition { index, event } = &history.log[at];
    let Event::Lost { session: lost, reason: LossReason::SessionEnded(why), .. } = event else {
        return true;
    };
    let same_entry = history.log[at..].iter().take_while(|other| other.index == *index);
    let mut endings = same_entry.map(|other| &other.event);
    endings.any(|event| {
        matches!(event, Event::SessionEnded { session, reason } if session == lost && reason == why)
    })
}

// --------------------------------------------------------------------- what clients believe of it

/// What the log knows of one token of one lock.
struct Fate {
    index: u64,
    session: SessionId,
    number: Number,
    mode: Mode,
    /// The entry that ended it, and by what.
    end: Option<(u64, End)>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Released,
    Lost(LossReason),
}

fn check_beliefs(history: &History, story: &Story<'_>, findings: &mut Findings) {
    let fates = fates_of(history);
    for wish in &story.wishes {
        let Some((at, token)) = wish.held else { continue };
        let Some(fate) = fates.get(&(wish.lock, token)) else {
            findings.add(|| {
                let told = told(wish, at, token);
                format!("{told}, but the log has never granted it")
            });
            continue;
        };
        let known = story.session(wish.client).filter(|&session| session != fate.session);
        if known.is_some() || fate.mode != wish.mode {
            findings.add(|| {
                format!(
                    "{}, but entry {} granted it as {:?} to session {} number {}",
                    told(wish, at, token),
                    fate.index,
                    fate.mode,
                    fate.session,
                    fate.number.0
                )
            });
        }
        match fate.end {
            Some((index, end)) if wish.belief_ended().is_none() && !is_own_risk(end) => {
                findings.add(|| {
                    let told = told(wish, at, token);
                    format!("{told}, still at the end, but entry {index} ended it: {end:?}")
                });
            }
            None if wish.released.is_some() && !has_another_handle(story, wish, token) => {
                findings.add(|| {
                    let told = told(wish, at, token);
                    format!("{told}, and its release was acknowledged, but isn't in the log")
                });
            }
            _ => {}
        }
    }
}

/// An operator who ends a session at once takes the same risk as one who forces a hold; and after
/// a boot there is nobody left who could believe anything.
fn is_own_risk(end: End) -> bool {
    let LossReason::SessionEnded(reason) = (match end {
        End::Released => return false,
        End::Lost(reason) => reason,
    }) else {
        return false;
    };
    matches!(reason, EndReason::Forced | EndReason::Rebooted)
}

/// A hold that was entered again lasts until its last handle is released.
fn has_another_handle(story: &Story<'_>, wish: &Wish<'_>, token: Token) -> bool {
    story.wishes.iter().any(|other| {
        let is_same = other.lock == wish.lock && other.held.is_some_and(|(_, own)| own == token);
        is_same && other.attempt != wish.attempt
    })
}

fn fates_of(history: &History) -> BTreeMap<(&str, Token), Fate> {
    let mut fates = BTreeMap::new();
    for Transition { index, event } in &history.log {
        let index = *index;
        let (lock, token, end) = match *event {
            Event::Granted { ref lock, session, number, token, mode, .. } => {
                let fate = Fate { index, session, number, mode, end: None };
                fates.insert((&**lock, token), fate);
                continue;
            }
            Event::Released { ref lock, token, .. } => (lock, token, End::Released),
            Event::Lost { ref lock, token, reason, .. } => (lock, token, End::Lost(reason)),
            _ => continue,
        };
        if let Some(fate) = fates.get_mut(&(&**lock, token)) {
            fate.end.get_or_insert((index, end));
        }
    }
    fates
}

fn told(wish: &Wish<'_>, at: Nanos, token: Token) -> String {
    let Wish { client, lock, mode, attempt, .. } = wish;
    format!("{client} holds {lock:?} as {mode:?} since {} (token {token}, {attempt})", At(at))
}

// ------------------------------------------------------------------------------------------ reads

/// A read that lies within a hold shows it.
fn check_views(history: &History, story: &Story<'_>, findings: &mut Findings) {
    let views = history.seen.iter().filter_map(View::of);
    let mut views = Story::by_lock(views, |view| view.lock);
    for (lock, holds) in Story::by_lock(story.holds(), |hold| hold.lock) {
        let Some(views) = views.get_mut(lock) else { continue };
        views.sort_by_key(|view| view.asked);
        let known = Known::of(holds.iter().map(|hold| (hold.token, hold.from)), views);
        let mut holds: Vec<_> = holds
            .into_iter()
            .map(|hold| (known.since(hold.token).unwrap_or(hold.from), hold))
            .collect();
        holds.sort_by_key(|(since, hold)| (*since, hold.attempt));
        let mut holds = holds.into_iter().peekable();
        let mut open: Vec<(Nanos, Hold<'_>)> = Vec::new();
        for view in views {
            while let Some(hold) = holds.next_if(|(since, _)| *since < view.asked) {
                open.push(hold);
            }
            open.retain(|(_, hold)| hold.until > view.asked);
            for (since, hold) in &open {
                if hold.until > view.answered && !view.holders.contains(&hold.token) {
                    findings.add(|| unseen(*since, hold, view));
                }
            }
        }
    }
}

fn unseen(since: Nanos, hold: &Hold<'_>, view: &View<'_>) -> String {
    format!(
        "{} holds {:?} from {} to {} with token {} ({}), which was granted by {}, but a read from \
         {} to {} shows {:?}",
        hold.client,
        hold.lock,
        At(hold.from),
        At(hold.until),
        hold.token,
        hold.attempt,
        At(since),
        At(view.asked),
        At(view.answered),
        view.holders
    )
}

/// By when each token of a lock had been granted, at the latest.
///
/// Tokens order the grants. So a token had been granted when it, or any newer one, was held or
/// shown.
pub(super) struct Known {
    /// In the order of tokens.
    by_token: Vec<(Token, Nanos)>,
}

impl Known {
    pub(super) fn of(held: impl IntoIterator<Item = (Token, Nanos)>, views: &[View<'_>]) -> Self {
        let shown =
            views.iter().flat_map(|view| view.holders.iter().map(|&token| (token, view.answered)));
        let mut by_token: Vec<_> = held.into_iter().chain(shown).collect();
        by_token.sort_unstable();
        by_token.dedup_by_key(|(token, _)| *token);
        let mut earliest = Nanos::MAX;
        for (_, since) in by_token.iter_mut().rev() {
            earliest = earliest.min(*since);
            *since = earliest;
        }
        Self { by_token }
    }

    /// `None` if the token was neither held nor shown.
    pub(super) fn since(&self, token: Token) -> Option<Nanos> {
        let at = self.by_token.binary_search_by_key(&token, |(token, _)| *token).ok()?;
        Some(self.by_token[at].1)
    }
}

/// A linearizable read of one lock.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) lock: &'a str,
    pub(super) asked: Nanos,
    pub(super) answered: Nanos,
    pub(super) holders: &'a [Token],
}

impl<'a> View<'a> {
    pub(super) fn of(entry: &'a Entry) -> Option<Self> {
        let Seen::Viewed { lock, asked, holders, .. } = &entry.seen else { return None };
        Some(Self { lock, asked: *asked, answered: entry.at, holders })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::{Forge, S, assert_finds};
    use lockkeeper_core::Mode::Exclusive;

    /// Client 0 (session 1) holds from 1 s, by the log too.
    fn kept() -> Forge {
        let mut forge = Forge::new(2);
        forge.opened(1, 1).opened(2, 2).granted(3, "a", 1, 1, 3, Exclusive);
        forge.take((0, 1), "a", Exclusive, 3, S);
        forge
    }

    const EXPIRED: LossReason = LossReason::SessionEnded(EndReason::Expired);

    #[test]
    fn what_stays_or_is_given_back_is_lawful() {
        let mut forge = kept();
        forge.view("a", 2 * S, &[3]);
        assert_eq!(check(&forge.done()), []);
        forge.release(1, 4 * S, 5 * S).released(4, "a", 1, 1, 3).view("a", 6 * S, &[]);
        assert_eq!(check(&forge.done()), []);
        let mut forge = kept();
        forge.taken(4, "a", 1, 1, 3, EXPIRED).ended(4, 1, EndReason::Expired);
        forge.lose(1, 5 * S, 3 * S).end(0, 5 * S).view("a", 4 * S, &[]);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn a_hold_that_the_log_ended_under_a_living_client_is_found() {
        let mut forge = kept();
        forge.released(4, "a", 1, 1, 3);
        let words = ["client 0", "token 3", "entry 4", "Released", "\"a\""];
        assert_finds(&check(&forge.done()), &words);
        let mut forge = kept();
        forge.taken(4, "a", 1, 1, 3, EXPIRED).ended(4, 1, EndReason::Expired);
        assert_finds(&check(&forge.done()), &["client 0", "entry 4", "Expired"]);
    }

    #[test]
    fn a_loss_without_an_ending_is_found() {
        let mut forge = kept();
        forge.taken(4, "a", 1, 1, 3, EXPIRED).lose(1, 4 * S, 4 * S);
        assert_finds(&check(&forge.done()), &["entry 4", "its session lives"]);
    }

    #[test]
    fn an_acknowledged_grant_or_release_that_the_log_lacks_is_found() {
        let mut forge = kept();
        forge.take((1, 2), "b", Exclusive, 9, 2 * S);
        assert_finds(&check(&forge.done()), &["client 1", "\"b\"", "token 9", "never granted"]);
        let mut forge = kept();
        forge.release(1, 4 * S, 5 * S);
        assert_finds(&check(&forge.done()), &["acknowledged", "isn't in the log"]);
    }

    #[test]
    fn a_grant_that_was_somebody_elses_is_found() {
        let mut forge = kept();
        forge.granted(4, "b", 1, 2, 4, Exclusive).take((1, 2), "b", Exclusive, 4, 2 * S);
        assert_finds(&check(&forge.done()), &["client 1", "session 0000000000000001"]);
    }

    #[test]
    fn a_read_without_a_holder_is_found() {
        let mut forge = kept();
        forge.release(1, 9 * S, 10 * S).released(4, "a", 1, 1, 3).view("a", 5 * S, &[]);
        assert_finds(&check(&forge.done()), &["client 0", "token 3", "5.000000 s"]);
        // One that ends after the release may show it or not.
        let mut forge = kept();
        forge.release(1, 9 * S, 10 * S).released(4, "a", 1, 1, 3);
        forge.view_of("a", 8 * S, 11 * S, &[], 0);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn a_hold_that_ends_twice_is_found() {
        let mut forge = kept();
        forge.release(1, 4 * S, 5 * S).released(4, "a", 1, 1, 3).released(5, "a", 1, 1, 3);
        assert_finds(&check(&forge.done()), &["entry 5", "a hold that there isn't"]);
    }

    #[test]
    fn what_a_dead_session_leaves_or_gets_is_found() {
        let mut forge = kept();
        forge.ended(4, 1, EndReason::Closed).end(0, 4 * S);
        assert_finds(&check(&forge.done()), &["entry 4", "leaves its hold", "token 3"]);
        let mut forge = kept();
        forge.ended(4, 2, EndReason::Closed).in_line(5, "a", 2, 1, 1);
        assert_finds(&check(&forge.done()), &["entry 5", "no more"]);
    }
}
