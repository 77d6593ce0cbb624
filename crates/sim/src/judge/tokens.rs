//! Tokens grow, and keep out who is late.
//!
//! A grant comes after its wish was asked, and before its client believes in it. So of two grants
//! of one lock, the one that was believed before the other was even asked for has the lower token;
//! and of two that exclude each other, the one that was believed first. Anything else may cross on
//! the way to the clients.
//!
//! A resource that checks tokens is promised that the newest *exclusive* grant wins: sharers and
//! takers of permits are measured against it, and not against each other.

use std::collections::BTreeMap;

use lockkeeper_core::{Event, Mode, SessionId, Token};

use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::judge::story::{Hold, Story, Wish};
use crate::{Entry, History, Seen, Transition};

/// Tokens are unique, grow with each grant, and no write with a stale one was let in.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("tokens");
    check_log(history, &mut findings);
    check_writes(history, &mut findings);
    let story = Story::of(history);
    let held = story.wishes.iter().filter(|wish| wish.held.is_some());
    for wishes in Story::by_lock(held, |wish| wish.lock).into_values() {
        check_asked(&wishes, &mut findings);
    }
    for holds in Story::by_lock(story.holds(), |hold| hold.lock).into_values() {
        check_believed(&holds, &mut findings);
    }
    findings.into_verdicts()
}

fn check_log(history: &History, findings: &mut Findings) {
    let mut newest: BTreeMap<&str, (Token, u64, SessionId)> = BTreeMap::new();
    for Transition { index, event } in &history.log {
        let Event::Granted { lock, session, token, .. } = event else { continue };
        if let Some((last, at, to)) = newest.insert(lock, (*token, *index, *session))
            && last >= *token
        {
            findings.add(|| {
                format!(
                    "entry {index} grants {lock:?} to session {session} with token {token}, but \
                     entry {at} had granted it to session {to} with token {last}"
                )
            });
        }
    }
}

/// Whoever asked after a grant was known gets a newer token. `wishes` are one lock's, as asked.
fn check_asked(wishes: &[&Wish<'_>], findings: &mut Findings) {
    let mut grants: Vec<_> = wishes.iter().filter_map(|&wish| Some((wish.held?, wish))).collect();
    grants.sort_by_key(|((at, token), _)| (*at, *token));
    let mut grants = grants.into_iter().peekable();
    let mut newest: Option<(Token, &Wish<'_>)> = None;
    for wish in wishes {
        while let Some(((_, token), other)) = grants.next_if(|((at, _), _)| *at < wish.asked) {
            if newest.is_none_or(|(last, _)| last < token) {
                newest = Some((token, other));
            }
        }
        let Some(((at, token), (last, other))) = wish.held.zip(newest) else { continue };
        if last >= token && !wish.is_reentry {
            findings.add(|| {
                let asked = At(wish.asked);
                format!(
                    "{} asked for {:?} at {asked} and holds it since {} with token {token}, but \
                     {} had got token {last} by then ({}, {})",
                    wish.client,
                    wish.lock,
                    At(at),
                    other.client,
                    wish.attempt,
                    other.attempt
                )
            });
        }
    }
}

/// Of two that exclude each other, the later one has the newer token. `holds` are one lock's, in
/// the order in which they began.
fn check_believed(holds: &[Hold<'_>], findings: &mut Findings) {
    let mut newest: Option<&Hold<'_>> = None;
    let mut newest_exclusive: Option<&Hold<'_>> = None;
    for hold in holds {
        let is_exclusive = hold.mode == Mode::Exclusive;
        let before = if is_exclusive { newest } else { newest_exclusive };
        if let Some(before) = before
            && before.token > hold.token
        {
            findings.add(|| {
                format!(
                    "{} holds {:?} since {} with token {} ({:?}, {}), but {} had held it before, \
                     since {}, with token {} ({:?}, {})",
                    hold.client,
                    hold.lock,
                    At(hold.from),
                    hold.token,
                    hold.mode,
                    hold.attempt,
                    before.client,
                    At(before.from),
                    before.token,
                    before.mode,
                    before.attempt
                )
            });
        }
        let is_newer = |than: Option<&Hold<'_>>| than.is_none_or(|than| than.token < hold.token);
        if is_newer(newest) {
            newest = Some(hold);
        }
        if is_exclusive && is_newer(newest_exclusive) {
            newest_exclusive = Some(hold);
        }
    }
}

fn check_writes(history: &History, findings: &mut Findings) {
    let mut newest: BTreeMap<&str, (Token, u64)> = BTreeMap::new();
    for Entry { at, seen } in &history.seen {
        let Seen::Wrote { lock, mode, token, accepted: true } = seen else { continue };
        if let Some((last, when)) = newest.get(&**lock)
            && last > token
        {
            findings.add(|| {
                format!(
                    "at {} the resource of {lock:?} let in token {token} ({mode:?}), but had let \
                     in the exclusive token {last} at {}",
                    At(*at),
                    At(*when)
                )
            });
        } else if *mode == Mode::Exclusive {
            newest.insert(lock, (*token, *at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::{Forge, S, assert_finds};
    use lockkeeper_core::Mode::{Exclusive, Shared};

    #[test]
    fn growing_tokens_are_lawful() {
        let mut forge = Forge::new(3);
        forge.hold((0, 1), "a", Exclusive, 10, S..2 * S);
        forge.hold((1, 2), "a", Exclusive, 11, 3 * S..4 * S);
        // Another lock's tokens have nothing to do with these.
        forge.hold((1, 3), "b", Exclusive, 5, 5 * S..6 * S);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn readers_that_learn_of_their_grants_in_another_order_are_lawful() {
        let mut forge = Forge::new(2);
        forge.ask((0, 1), "a", Shared, S).ask((1, 2), "a", Shared, S);
        forge.held(2, 11, 2 * S).held(1, 10, 3 * S);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn a_token_that_goes_back_is_found() {
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Exclusive, 10, S..2 * S);
        forge.hold((1, 2), "a", Exclusive, 9, 3 * S..4 * S);
        let found = check(&forge.done());
        assert_finds(&found, &["client 1", "token 9", "client 0", "token 10", "2.500000 s"]);
    }

    #[test]
    fn a_token_granted_twice_is_found() {
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Shared, 10, S..2 * S);
        forge.hold((1, 2), "a", Shared, 10, 3 * S..4 * S);
        assert_finds(&check(&forge.done()), &["token 10", "client 1", "client 0"]);
    }

    #[test]
    fn a_late_belief_in_an_old_token_is_found_and_an_exempt_one_is_not() {
        for (is_forced, is_lawful) in [(true, true), (false, false)] {
            let mut forge = Forge::new(2);
            forge.ask((0, 1), "a", Exclusive, S).ask((1, 2), "a", Exclusive, S);
            forge.held(2, 11, 2 * S).release(2, 3 * S, 4 * S);
            // Its grant came first, but it was long over.
            forge.held(1, 10, 5 * S);
            if is_forced {
                forge.force("a", 10, S + S / 2);
            }
            let found = check(&forge.done());
            assert_eq!(found.is_empty(), is_lawful, "forced: {is_forced}");
        }
    }

    #[test]
    fn a_reader_that_is_older_than_the_writer_before_it_is_found() {
        let mut forge = Forge::new(2);
        forge.ask((0, 1), "a", Shared, S).ask((1, 2), "a", Exclusive, S);
        forge.held(2, 11, 2 * S).release(2, 3 * S, 4 * S).held(1, 10, 5 * S);
        assert_finds(&check(&forge.done()), &["Shared", "Exclusive", "token 11"]);
    }

    #[test]
    fn a_stale_write_that_is_let_in_is_found() {
        let mut forge = Forge::new(0);
        forge.wrote("a", Exclusive, 10, true, S).wrote("a", Exclusive, 12, true, 2 * S);
        forge.wrote("a", Exclusive, 10, false, 3 * S).wrote("b", Exclusive, 3, true, 3 * S);
        assert_eq!(check(&forge.done()), []);
        forge.wrote("a", Exclusive, 10, true, 4 * S);
        assert_finds(&check(&forge.done()), &["\"a\"", "token 10", "token 12", "4.000000 s"]);
    }

    #[test]
    fn readers_writes_are_measured_against_the_newest_writer_only() {
        let mut forge = Forge::new(0);
        forge.wrote("a", Shared, 10, true, S).wrote("a", Shared, 9, true, 2 * S);
        forge.wrote("a", Exclusive, 11, true, 3 * S);
        assert_eq!(check(&forge.done()), []);
        forge.wrote("a", Shared, 10, true, 4 * S);
        assert_finds(&check(&forge.done()), &["Shared", "token 11"]);
    }

    #[test]
    fn a_log_whose_tokens_go_back_or_stay_is_found() {
        for (token, is_lawful) in [(8, true), (7, false), (3, false)] {
            let mut forge = Forge::new(0);
            forge.opened(5, 1).granted(7, "a", 1, 1, 7, Exclusive).released(8, "a", 1, 1, 7);
            forge.granted(9, "a", 1, 3, token, Exclusive);
            assert_eq!(check(&forge.history()).is_empty(), is_lawful, "token {token}");
        }
    }
}
