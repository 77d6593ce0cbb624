//! Linearizability of a lock's history, in linear time.
//!
//! Each grant, each end of a hold and each read happened at one moment between its question and
//! its answer, and all of them in one order. To find such an order is hard in general; here the
//! tokens give away the order of the grants, and a read names the tokens that it saw. What is left
//! are questions about one token at a time. This judge asks those about what a read must *not*
//! show; what it must show is asked by [`kept`](crate::judge::kept), whether grants come in their
//! order by [`tokens`](crate::judge::tokens), and whether they exclude each other by
//! [`exclusion`](crate::judge::exclusion).
//!
//! A test compares the four with a search through all orders, on short histories: they never accuse
//! a lawful one, and pass over one unlawful one in some four hundred, where it takes three
//! overlapping reads to make the contradiction.

use std::collections::BTreeMap;

use lockkeeper_core::{Mode, Token};

use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::judge::kept::{Known, View};
use crate::judge::story::{Story, Wish, excludes};
use crate::{History, Nanos};

/// Every read of a lock shows one moment between its question and its answer, and none shows an
/// earlier one than a read that was answered before it was asked.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("linear");
    let story = Story::of(history);
    let hidden = story.hidden_since();
    let wishes = Story::by_lock(&story.wishes, |wish| wish.lock);
    let views = history.seen.iter().filter_map(View::of);
    for (lock, mut views) in Story::by_lock(views, |view| view.lock) {
        views.sort_by_key(|view| view.answered);
        let wishes = wishes.get(lock).map_or(&[][..], |wishes| wishes);
        let grants = grants_of(wishes);
        let hidden = hidden.get(lock).copied();
        for view in &views {
            check_moment(view, &grants, hidden, &mut findings);
        }
        check_stale(wishes, &views, &grants, &mut findings);
        check_order(wishes, &views, &mut findings);
    }
    findings.into_verdicts()
}

/// What is known of one token.
struct Grant {
    mode: Mode,
    asked: Nanos,
    /// When the last of its handles was given back, if all have been.
    released: Option<Nanos>,
}

fn grants_of(wishes: &[&Wish<'_>]) -> BTreeMap<Token, Grant> {
    let mut grants: BTreeMap<Token, Grant> = BTreeMap::new();
    for wish in wishes {
        let Some((_, token)) = wish.held else { continue };
        let Wish { mode, asked, released, .. } = **wish;
        let grant = grants.entry(token).or_insert(Grant { mode, asked, released });
        grant.released = grant.released.zip(released).map(|(one, other)| one.max(other));
    }
    grants
}

/// What one read shows could have been so at one moment.
fn check_moment(
    view: &View<'_>,
    grants: &BTreeMap<Token, Grant>,
    hidden_since: Option<Nanos>,
    findings: &mut Findings,
) {
    if !view.holders.is_sorted_by(|a, b| a < b) {
        findings.add(|| format!("{} in no order of tokens", told(view)));
    }
    let mut before: Option<(Token, Mode)> = None;
    for &token in view.holders {
        let Some(grant) = grants.get(&token) else {
            // Somebody may have been granted it without ever learning of it.
            if hidden_since.is_none_or(|since| since > view.answered) {
                findings.add(|| format!("{}; token {token} is nobody's", told(view)));
            }
            continue;
        };
        if grant.asked > view.answered {
            findings.add(|| {
                let asked = At(grant.asked);
                format!("{}; token {token} was asked for only at {asked}", told(view))
            });
        }
        if let Some(released) = grant.released.filter(|released| *released < view.asked) {
            findings.add(|| {
                format!("{}; token {token} was given back by {}", told(view), At(released))
            });
        }
        if let Some((other, mode)) = before.filter(|(_, mode)| excludes(*mode, grant.mode)) {
            findings.add(|| {
                format!(
                    "{}; token {other} ({mode:?}) excludes token {token} ({:?})",
                    told(view),
                    grant.mode
                )
            });
        }
        before = Some((token, grant.mode));
    }
}

/// No read shows a hold that must have ended before a grant that was known when it was asked.
fn check_stale(
    wishes: &[&Wish<'_>],
    views: &[View<'_>],
    grants: &BTreeMap<Token, Grant>,
    findings: &mut Findings,
) {
    let held = wishes.iter().filter_map(|wish| Some((wish.held?, wish.mode)));
    let mut held: Vec<_> = held.map(|((at, token), mode)| (at, token, mode)).collect();
    held.sort_by_key(|(at, token, _)| (*at, *token));
    let mut held = held.into_iter().peekable();
    let mut by_asked: Vec<&View<'_>> = views.iter().collect();
    by_asked.sort_by_key(|view| view.asked);
    let mut newest: Option<Token> = None;
    let mut newest_exclusive: Option<Token> = None;
    for view in by_asked {
        while let Some((_, token, mode)) = held.next_if(|(at, _, _)| *at < view.asked) {
            newest = newest.max(Some(token));
            if mode == Mode::Exclusive {
                newest_exclusive = newest_exclusive.max(Some(token));
            }
        }
        for &token in view.holders {
            let is_exclusive =
                grants.get(&token).is_some_and(|grant| grant.mode == Mode::Exclusive);
            let over = if is_exclusive { newest } else { newest_exclusive };
            if let Some(over) = over.filter(|over| *over > token) {
                findings.add(|| {
                    format!(
                        "{}; token {token} had to end before token {over} was granted, which was \
                         held already",
                        told(view)
                    )
                });
            }
        }
    }
}

/// No read shows what an earlier one shows to be over. `views` are in the order of their answers.
///
/// In a lawful history every read between the grant of a token and the last read that shows it
/// shows it too: what is walked here is little more than what the reads have shown.
fn check_order(wishes: &[&Wish<'_>], views: &[View<'_>], findings: &mut Findings) {
    let known = Known::of(wishes.iter().filter_map(|wish| wish.held).map(|(at, t)| (t, at)), views);
    let mut last_shown: BTreeMap<Token, &View<'_>> = BTreeMap::new();
    for view in views {
        for &token in view.holders {
            let last = last_shown.entry(token).or_insert(view);
            if last.asked < view.asked {
                *last = view;
            }
        }
    }
    for (token, last) in last_shown {
        let Some(since) = known.since(token) else { continue };
        let start = views.partition_point(|view| view.answered < since);
        let between = views[start..].iter().take_while(|view| view.answered < last.asked);
        let mut lacking = between.filter(|view| !view.holders.contains(&token));
        let is_later = |view: &&View<'_>| {
            view.asked > since || view.holders.iter().any(|&shown| shown > token)
        };
        if let Some(earlier) = lacking.find(is_later) {
            findings.add(|| {
                format!(
                    "{}; but token {token}, which was granted by {}, was over before: {}",
                    told(last),
                    At(since),
                    told(earlier)
                )
            });
        }
    }
}

fn told(view: &View<'_>) -> String {
    let tokens: Vec<String> = view.holders.iter().map(Token::to_string).collect();
    let (asked, answered) = (At(view.asked), At(view.answered));
    format!("a read of {:?} from {asked} to {answered} shows tokens {tokens:?}", view.lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GiveUp;
    use crate::judge::testing::{Forge, S, assert_finds};
    use lockkeeper_core::Mode::{Exclusive, Shared};

    /// Held with token 10 from 1 s to 4 s, with token 11 from 6 s to 8 s.
    fn turns() -> Forge {
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Exclusive, 10, S..4 * S);
        forge.hold((1, 2), "a", Exclusive, 11, 6 * S..8 * S);
        forge
    }

    #[test]
    fn reads_of_what_was_so_are_lawful() {
        let mut forge = turns();
        forge.view("a", S / 4, &[]).view("a", 2 * S, &[10]).view("a", 5 * S, &[]);
        forge.view("a", 7 * S, &[11]).view("a", 9 * S, &[]);
        // Asked before the release, answered after it: both are lawful.
        forge.view_of("a", 3 * S, 4 * S + S / 2, &[], 0);
        forge.view_of("a", 3 * S, 4 * S + S / 2, &[10], 0);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn a_read_of_what_was_given_back_is_found() {
        let mut forge = turns();
        forge.view("a", 5 * S, &[10]);
        assert_finds(&check(&forge.done()), &["\"a\"", "5.000000 s", "token 10", "4.100000 s"]);
    }

    #[test]
    fn a_read_of_what_nobody_has_asked_for_is_found() {
        let mut forge = turns();
        forge.view("a", 5 * S, &[11]);
        assert_finds(&check(&forge.done()), &["token 11", "asked for only at 5.500000 s"]);
        let mut forge = turns();
        forge.view("a", 5 * S, &[99]);
        assert_finds(&check(&forge.done()), &["token 99 is nobody's"]);
        // Unless somebody may have got it and never learnt of it.
        forge.ask((0, 3), "a", Exclusive, 4 * S).give_up(3, 5 * S, GiveUp::Unknown);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn a_read_of_two_that_exclude_each_other_is_found() {
        let mut forge = Forge::new(2);
        forge.take((0, 1), "a", Exclusive, 10, S).take((1, 2), "a", Shared, 11, S);
        forge.view("a", S / 2, &[10, 11]);
        assert_finds(&check(&forge.done()), &["token 10", "excludes token 11"]);
        let mut forge = Forge::new(2);
        forge.take((0, 1), "a", Shared, 10, S).take((1, 2), "a", Shared, 11, S);
        forge.view("a", 2 * S, &[11, 10]);
        assert_finds(&check(&forge.done()), &["no order"]);
    }

    #[test]
    fn a_read_of_what_had_to_end_before_is_found() {
        let mut forge = Forge::new(2);
        forge.take((0, 1), "a", Shared, 10, S).lose(1, 2 * S, 2 * S);
        forge.take((1, 2), "a", Exclusive, 11, 3 * S);
        forge.view("a", 4 * S, &[10]);
        assert_finds(&check(&forge.done()), &["token 10 had to end", "token 11"]);
    }

    #[test]
    fn reads_that_go_back_in_time_are_found() {
        let mut forge = Forge::new(2);
        forge.take((0, 1), "a", Shared, 10, S).take((1, 2), "a", Shared, 11, S);
        // Its end is nowhere to be seen, but one read knew of it.
        forge.end(0, 3 * S).view("a", 5 * S, &[11]).view("a", 6 * S, &[10, 11]);
        let words = ["6.000000 s", "token 10", "was over before", "5.000000 s"];
        assert_finds(&check(&forge.done()), &words);
        // Overlapping reads may differ.
        let mut forge = Forge::new(2);
        forge.take((0, 1), "a", Shared, 10, S).end(0, 3 * S);
        forge.view_of("a", 5 * S, 7 * S, &[], 0).view_of("a", 6 * S, 8 * S, &[10], 0);
        assert_eq!(check(&forge.done()), []);
    }
}
