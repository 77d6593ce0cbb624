//! First come, first served: one queue a lock, for all modes, and nobody overtakes.
//!
//! The log says who came first. Where there is none, real time does: who was told that it waits
//! before the other asked, came before the other.

use std::collections::BTreeMap;

use lockkeeper_core::{Event, Token};

use crate::judge::findings::{At, Findings};
use crate::judge::ledger::Ledger;
use crate::judge::story::{Story, Wish, excludes};
use crate::judge::{Verdict, liveness};
use crate::{History, Nanos, Transition};

/// Nobody is granted a lock before those who came before it and still wait.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("fifo");
    check_log(history, &mut findings);
    let story = Story::of(history);
    let bound = history.bound.unwrap_or(liveness::BOUND);
    for wishes in Story::by_lock(&story.wishes, |wish| wish.lock).into_values() {
        check_wishes(&story, &wishes, bound, &mut findings);
    }
    findings.into_verdicts()
}

fn check_log(history: &History, findings: &mut Findings) {
    let mut ledger = Ledger::default();
    for Transition { index, event } in &history.log {
        if let Some(fault) = fault_of(&ledger, event) {
            findings.add(|| format!("entry {index}: {fault}"));
        }
        ledger.apply(event, None);
    }
}

/// What is wrong with the next transition, as far as the order is concerned.
fn fault_of(ledger: &Ledger<'_>, event: &Event) -> Option<String> {
    match *event {
        Event::Granted { ref lock, session, number, token, waited_ms, .. } => {
            let line = ledger.line(lock);
            let head = line.and_then(|line| line.queue.front());
            let own = line.and_then(|line| line.place(session, number));
            let granted = format!(
                "{lock:?} is granted to session {session} number {} with token {token}",
                number.0
            );
            match (waited_ms, own, head) {
                (Some(_), Some(0), _) | (None, None, None) => None,
                (Some(_), None, _) => Some(format!("{granted} from a queue in which it isn't")),
                (_, _, Some(head)) => Some(format!(
                    "{granted}, before session {} number {}, which waits at the head",
                    head.session, head.number.0
                )),
                (_, Some(_), None) => None,
            }
        }
        Event::Queued { ref lock, session, number, place } => {
            let line = ledger.line(lock);
            let ahead = line.map_or(0, |line| line.queue.len());
            if line.is_some_and(|line| line.place(session, number).is_some()) {
                let number = number.0;
                return Some(format!("session {session} number {number} waits twice in {lock:?}"));
            }
            // Far back a place is no longer counted exactly.
            let is_exact = ahead < PLACES_EXACT_MAX;
            (is_exact && ahead + 1 != place as usize).then(|| {
                let number = number.0;
                format!(
                    "session {session} number {number} is told place {place} in {lock:?}, behind \
                     {ahead}"
                )
            })
        }
        _ => None,
    }
}

/// By real time alone. `wishes` are one lock's, as asked.
fn check_wishes(story: &Story<'_>, wishes: &[&Wish<'_>], bound: Nanos, findings: &mut Findings) {
    let mut waiting: Vec<_> =
        wishes.iter().filter_map(|&wish| Some((wish.queued?, wish))).collect();
    waiting.sort_by_key(|(queued, wish)| (*queued, wish.attempt));
    let mut waiting = waiting.into_iter().peekable();
    // Of those who were in line before: who was let in last, and who never was.
    let mut last_in: Option<(Token, &Wish<'_>)> = None;
    let mut never_in: BTreeMap<u64, &Wish<'_>> = BTreeMap::new();
    for wish in wishes {
        while let Some((_, other)) = waiting.next_if(|(queued, _)| *queued < wish.asked) {
            match other.held {
                Some((_, token)) if last_in.is_none_or(|(last, _)| last < token) => {
                    last_in = Some((token, other));
                }
                None if other.gave_up.is_none() => _ = never_in.insert(other.attempt.0, other),
                _ => {}
            }
        }
        let Some((at, token)) = wish.held.filter(|_| !wish.is_reentry) else { continue };
        if let Some((last, other)) = last_in
            && last > token
        {
            findings.add(|| overtaken(wish, at, token, other, &format!("got token {last}")));
        }
        let lived = |other: &&&Wish<'_>| {
            // The news of its own, earlier grant may be on its way to it, if both can hold.
            let is_late = story.over.saturating_sub(at) > bound;
            // Whoever couldn't hear of its grant may have lost it unheard.
            (is_late || excludes(wish.mode, other.mode))
                && story.lived_at(other.client, at, bound)
                && !story.forced_unseen(other, at)
        };
        if let Some(other) = never_in.values().find(lived) {
            findings.add(|| overtaken(wish, at, token, other, "still waits"));
        }
    }
}

fn overtaken(wish: &Wish<'_>, at: Nanos, token: Token, other: &Wish<'_>, became: &str) -> String {
    format!(
        "{} asked for {:?} at {} and holds it since {} with token {token} ({}), but {} had been \
         in line since {} and {became} ({})",
        wish.client,
        wish.lock,
        At(wish.asked),
        At(at),
        wish.attempt,
        other.client,
        At(other.queued.unwrap_or_default()),
        other.attempt
    )
}

/// So far back a place is counted exactly by the state machine.
const PLACES_EXACT_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::{Forge, S, assert_finds};
    use crate::{GiveUp, Seen};
    use lockkeeper_core::Mode::{Exclusive, Shared};

    /// Session 1 holds, 2 and 3 wait in this order.
    fn line() -> Forge {
        let mut forge = Forge::new(0);
        forge.opened(1, 1).opened(2, 2).opened(3, 3).granted(4, "a", 1, 1, 4, Exclusive);
        forge.in_line(5, "a", 2, 1, 1).in_line(6, "a", 3, 1, 2);
        forge
    }

    #[test]
    fn a_log_in_order_is_lawful() {
        let mut forge = line();
        forge.released(7, "a", 1, 1, 4).let_in(7, "a", 2, 1, 7, Exclusive);
        forge.cancelled(8, "a", 3, 1).released(9, "a", 2, 1, 7);
        forge.granted(10, "a", 3, 4, 10, Shared);
        assert_eq!(check(&forge.history()), []);
    }

    #[test]
    fn the_second_before_the_first_is_found() {
        let mut forge = line();
        forge.released(7, "a", 1, 1, 4).let_in(7, "a", 3, 1, 7, Exclusive);
        let words = ["entry 7", "0000000000000003", "0000000000000002", "head"];
        assert_finds(&check(&forge.history()), &words);
    }

    #[test]
    fn a_grant_past_the_queue_is_found() {
        let mut forge = line();
        forge.released(7, "a", 1, 1, 4).granted(8, "a", 1, 3, 8, Exclusive);
        assert_finds(&check(&forge.history()), &["entry 8", "0000000000000001", "head"]);
    }

    #[test]
    fn a_grant_from_nowhere_and_a_false_place_are_found() {
        let mut forge = line();
        forge.released(7, "a", 1, 1, 4).let_in(7, "a", 2, 9, 7, Exclusive);
        assert_finds(&check(&forge.history()), &["in which it isn't"]);
        let mut forge = line();
        forge.in_line(7, "a", 1, 3, 2);
        assert_finds(&check(&forge.history()), &["place 2", "behind 2"]);
        let mut forge = line();
        forge.in_line(7, "a", 2, 1, 3);
        assert_finds(&check(&forge.history()), &["waits twice"]);
    }

    /// Client 0 waits since 1 s, client 1 asks at 2 s.
    fn two() -> Forge {
        let mut forge = Forge::new(2);
        forge.ask((0, 1), "a", Exclusive, S / 2).queued(1, S);
        forge.ask((1, 2), "a", Exclusive, 2 * S);
        forge
    }

    #[test]
    fn clients_in_order_are_lawful() {
        let mut forge = two();
        forge.held(1, 10, 3 * S).release(1, 4 * S, 5 * S).held(2, 11, 5 * S);
        assert_eq!(check(&forge.done()), []);
        // Asked before the other knew that it waits: nobody can say who came first.
        let mut forge = Forge::new(2);
        forge.ask((0, 1), "a", Exclusive, S / 2).ask((1, 2), "a", Exclusive, S).queued(1, 2 * S);
        forge.held(2, 10, 3 * S).release(2, 4 * S, 5 * S).held(1, 11, 6 * S);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn who_gave_up_or_may_have_died_is_not_overtaken() {
        let mut forge = two();
        forge.give_up(1, 4 * S, GiveUp::Cancelled).held(2, 10, 3 * S);
        assert_eq!(check(&forge.done()), []);
        let mut forge = two();
        forge.held(2, 10, 3 * S).end(0, 6 * S);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn who_may_have_given_up_as_the_run_ended_is_not_overtaken() {
        let over_at = |over| {
            let mut forge = two();
            forge.see(2 * S, Seen::Calm).ask((0, 3), "b", Exclusive, 3 * S).held(2, 10, 60 * S);
            // The answer to what it asked before proves nothing.
            forge.held(3, 11, 60 * S + 1);
            check(&forge.done_at(over))
        };
        // The word that it may leave was on its way.
        assert_eq!(over_at(61 * S), []);
        assert_finds(&over_at(60 * S + liveness::BOUND + 1), &["client 0", "still waits"]);
    }

    #[test]
    fn who_asked_later_and_has_the_lower_token_is_found() {
        let mut forge = two();
        forge.held(2, 10, 3 * S).release(2, 4 * S, 5 * S).held(1, 11, 6 * S);
        let words = ["client 1", "token 10", "client 0", "1.000000 s", "token 11"];
        assert_finds(&check(&forge.done()), &words);
    }

    #[test]
    fn who_still_waits_while_another_was_let_in_is_found() {
        let mut forge = two();
        forge.held(2, 10, 3 * S);
        // It lives: it got another lock later.
        forge.take((0, 3), "b", Exclusive, 12, 6 * S);
        assert_finds(&check(&forge.done()), &["client 0", "still waits"]);
    }
}
