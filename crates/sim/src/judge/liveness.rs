//! Once all is calm, what is owed comes within a bound.
//!
//! Three things are owed to a client whose session lives: the first answer to a wish, the answer
//! to a release, and a lock that is free and that it waits for. The bound counts from the end of
//! all faults, or from the moment at which the thing became due if that is later. It is longer
//! than the longest lease: what a dead session holds or waits in front of is free only when its
//! lease has run out, and nobody at the clients' side sees that.

use std::collections::BTreeMap;

use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::judge::story::{Story, Wish};
use crate::{Attempt, GiveUp, History, Nanos};

/// The bound, where the history names none: an election on a slow network, and a lease.
pub const BOUND: Nanos = 30_000_000_000;

/// Nothing that is owed takes longer than the history's bound, or [`BOUND`].
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    check_within(history, history.bound.unwrap_or(BOUND))
}

/// Nothing that is owed takes longer than `bound`.
#[must_use]
pub fn check_within(history: &History, bound: Nanos) -> Vec<Verdict> {
    let mut findings = Findings::of("liveness");
    let story = Story::of(history);
    let Some(calm) = story.calm else { return Vec::new() };
    let late = Late { calm, bound };
    for wish in &story.wishes {
        check_answers(wish, story.over, &late, &mut findings);
    }
    if history.silences.is_empty() {
        for wishes in Story::by_lock(&story.wishes, |wish| wish.lock).into_values() {
            check_free(&wishes, story.over, &late, &mut findings);
        }
    }
    findings.into_verdicts()
}

/// What is too late.
struct Late {
    calm: Nanos,
    bound: Nanos,
}

impl Late {
    /// How long too long it took from `due` to `done`, if it did.
    fn by(&self, due: Nanos, done: Nanos) -> Option<Nanos> {
        let took = done.saturating_sub(due.max(self.calm));
        (took > self.bound).then_some(took)
    }
}

fn check_answers(wish: &Wish<'_>, over: Nanos, late: &Late, findings: &mut Findings) {
    let Wish { client, lock, attempt, .. } = wish;
    if let Some(took) = late.by(wish.asked, wish.answered().unwrap_or(over)) {
        findings.add(|| {
            format!(
                "{client} asked for {lock:?} at {} ({attempt}) and had no answer for {} of calm",
                At(wish.asked),
                At(took)
            )
        });
    }
    let Some(releasing) = wish.releasing else { return };
    let ends = [wish.released, wish.lost, wish.ended].into_iter().flatten();
    if let Some(took) = late.by(releasing, ends.min().unwrap_or(over)) {
        findings.add(|| {
            format!(
                "{client} released {lock:?} at {} ({attempt}) and had no answer for {} of calm",
                At(releasing),
                At(took)
            )
        });
    }
}

/// What becomes of one lock, as far as clients can tell.
enum Change {
    /// Somebody may hold it from now on.
    Taken,
    /// One of those doesn't any more.
    Freed,
    /// Somebody waits.
    Waits(Attempt),
    /// And waits no more.
    Left(Attempt),
    /// Something moved, though nobody can tell what: a hold or a place that its client never saw.
    Moved,
}

/// A lock that nobody can hold isn't waited for. `wishes` are one lock's.
fn check_free(wishes: &[&Wish<'_>], over: Nanos, late: &Late, findings: &mut Findings) {
    let mut changes: Vec<(Nanos, Change)> = Vec::new();
    for wish in wishes {
        changes_of(wish, over, &mut changes);
    }
    changes.sort_by_key(|(at, _)| *at);
    changes.push((over, Change::Moved));

    let by_attempt: BTreeMap<_, _> = wishes.iter().map(|wish| (wish.attempt, wish)).collect();
    let mut takers = 0_usize;
    let mut waiting: BTreeMap<Attempt, Nanos> = BTreeMap::new();
    let mut free_since = 0;
    for (at, change) in changes {
        let first = waiting.iter().min_by_key(|(_, since)| **since);
        if let Some((attempt, &since)) = first
            && takers == 0
            && let Some(took) = late.by(free_since.max(since), at)
        {
            let Wish { client, lock, mode, .. } = by_attempt[attempt];
            findings.add(|| {
                format!(
                    "{client} waits for {lock:?} as {mode:?} since {} ({attempt}), and nobody has \
                     held it from {} to {}: {} of calm",
                    At(since),
                    At(free_since),
                    At(at),
                    At(took)
                )
            });
        }
        match change {
            Change::Taken => takers += 1,
            Change::Freed => takers -= 1,
            Change::Waits(attempt) => {
                waiting.insert(attempt, at);
                continue;
            }
            Change::Left(attempt) => _ = waiting.remove(&attempt),
            Change::Moved => {}
        }
        free_since = at;
    }
}

fn changes_of(wish: &Wish<'_>, over: Nanos, changes: &mut Vec<(Nanos, Change)>) {
    let gave_up = wish.gave_up.map(|(at, _)| at);
    if let Some((held, _)) = wish.held {
        let ends = [wish.released, wish.lost, wish.ended, wish.forced, gave_up];
        let until = ends.into_iter().flatten().min();
        if until.is_none_or(|until| until > held) {
            changes.push((held, Change::Taken));
            changes.extend(until.map(|until| (until, Change::Freed)));
        }
    }
    // Nobody knows what became of it: until its session ends it may hold.
    if let (None, Some((at, GiveUp::Unknown))) = (wish.held, wish.gave_up)
        && wish.ended.is_none_or(|ended| ended > at)
    {
        changes.push((at, Change::Taken));
        changes.extend(wish.ended.map(|ended| (ended, Change::Freed)));
    }
    changes.extend(wish.ended.map(|ended| (ended, Change::Moved)));
    changes.extend(gave_up.map(|at| (at, Change::Moved)));

    let Some(queued) = wish.queued.filter(|_| wish.wait) else { return };
    let held = wish.held.map(|(at, _)| at);
    let left = [held, gave_up, wish.ended].into_iter().flatten().min().unwrap_or(over);
    if left > queued {
        changes.push((queued, Change::Waits(wish.attempt)));
        changes.push((left, Change::Left(wish.attempt)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seen;
    use crate::judge::testing::{Forge, S, assert_finds};
    use lockkeeper_core::Mode::Exclusive;

    fn judged(forge: &mut Forge) -> Vec<Verdict> {
        forge.see(10 * S, Seen::Calm);
        check_within(&forge.done_at(60 * S), 5 * S)
    }

    #[test]
    fn what_comes_in_time_is_lawful() {
        let mut forge = Forge::new(2);
        // Slow while there are faults, quick afterwards.
        forge.hold((0, 1), "a", Exclusive, 10, S..9 * S);
        forge.ask((1, 2), "a", Exclusive, 2 * S).queued(2, 3 * S).held(2, 11, 14 * S);
        assert_eq!(judged(&mut forge), []);
        // Who holds until the end may be waited for until the end.
        forge.ask((0, 3), "a", Exclusive, 15 * S).queued(3, 16 * S);
        assert_eq!(judged(&mut forge), []);
    }

    #[test]
    fn without_a_calm_nothing_is_owed() {
        let mut forge = Forge::new(1);
        forge.ask((0, 1), "a", Exclusive, S);
        assert_eq!(check_within(&forge.done_at(60 * S), 5 * S), []);
    }

    #[test]
    fn a_wish_without_an_answer_is_found() {
        let mut forge = Forge::new(2);
        forge.ask((0, 1), "a", Exclusive, 12 * S).give_up(1, 18 * S, GiveUp::Unknown);
        assert_finds(&judged(&mut forge), &["client 0", "\"a\"", "12.000000 s", "6.000000 s"]);
        let mut forge = Forge::new(2);
        forge.ask((0, 1), "a", Exclusive, S);
        assert_finds(&judged(&mut forge), &["client 0", "50.000000 s"]);
        forge.end(0, 14 * S);
        assert_eq!(judged(&mut forge), []);
    }

    #[test]
    fn a_release_without_an_answer_is_found() {
        let mut forge = Forge::new(1);
        forge.hold((0, 1), "a", Exclusive, 10, S..2 * S);
        forge.take((0, 2), "b", Exclusive, 11, 11 * S);
        forge.see(12 * S, Seen::Releasing { attempt: Attempt(2) });
        assert_finds(&judged(&mut forge), &["released \"b\"", "48.000000 s"]);
    }

    #[test]
    fn a_free_lock_that_is_waited_for_is_found() {
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Exclusive, 10, S..20 * S);
        forge.ask((1, 2), "a", Exclusive, 2 * S).queued(2, 3 * S).held(2, 11, 26 * S);
        let words = ["client 1", "waits for \"a\"", "20.100000 s", "26.000000 s"];
        assert_finds(&judged(&mut forge), &words);
        // Or until the end.
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Exclusive, 10, S..2 * S);
        forge.ask((1, 2), "a", Exclusive, S).queued(2, 2 * S);
        assert_finds(&judged(&mut forge), &["client 1", "60.000000 s"]);
    }

    #[test]
    fn who_may_hold_it_unseen_is_waited_for_until_its_session_ends() {
        let mut forge = Forge::new(2);
        forge.ask((0, 1), "a", Exclusive, S).give_up(1, 2 * S, GiveUp::Unknown);
        forge.ask((1, 2), "a", Exclusive, 3 * S).queued(2, 4 * S);
        assert_eq!(judged(&mut forge), []);
        forge.end(0, 12 * S);
        assert_finds(&judged(&mut forge), &["client 1", "from 12.000000 s"]);
    }
}
