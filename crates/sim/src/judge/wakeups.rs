//! No lost wake-up: a lock that is free for its head is not waited for.
//!
//! Every removal lets in whoever is next, in the same entry. So after each entry of the log there
//! is no lock whose head could go in; and no read may ever show waiters in front of a free lock,
//! except in the silence after a restore. What clients wait for without an end is judged by
//! [`liveness`](crate::judge::liveness).

use std::collections::BTreeSet;

use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::judge::ledger::{Ledger, Line, lock_of, modes_to_come};
use crate::judge::story::admits;
use crate::{Entry, History, Seen};

/// No lock is free for its head after an entry, and none in a read.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("wakeups");
    check_log(history, &mut findings);
    check_views(history, &mut findings);
    findings.into_verdicts()
}

fn check_log(history: &History, findings: &mut Findings) {
    let modes = modes_to_come(history);
    let mut ledger = Ledger::default();
    let mut asleep: BTreeSet<&str> = BTreeSet::new();
    let mut touched: BTreeSet<&str> = BTreeSet::new();
    for (at, transition) in history.log.iter().enumerate() {
        ledger.apply(&transition.event, modes[at]);
        touched.extend(lock_of(&transition.event));
        let index = transition.index;
        if history.log.get(at + 1).is_some_and(|next| next.index == index) {
            continue;
        }
        let is_silent = |from: u64, until: u64| (from..until).contains(&index);
        if history.silences.iter().any(|silence| is_silent(silence.from, silence.until)) {
            continue;
        }
        for lock in std::mem::take(&mut touched) {
            let Some(line) = ledger.line(lock).filter(|line| is_free_for_head(line)) else {
                asleep.remove(lock);
                continue;
            };
            // A lock that stays asleep is told once.
            if asleep.insert(lock) {
                findings.add(|| told(index, lock, line));
            }
        }
    }
}

/// Whether the head could go in. A head that is never granted doesn't say how it asks: then only a
/// lock that nobody holds is surely free for it.
fn is_free_for_head(line: &Line) -> bool {
    let Some(head) = line.queue.front() else { return false };
    match head.mode {
        None => line.holds.is_empty(),
        Some(mode) => admits(line.holds.iter().map(|hold| hold.mode), mode),
    }
}

fn told(index: u64, lock: &str, line: &Line) -> String {
    let waiting = line.queue.len();
    let held = line.holds.iter().map(|hold| format!("{} ({:?})", hold.token, hold.mode));
    let held: Vec<String> = held.take(4).collect();
    let head = line.queue.front();
    let head = head.map_or_else(String::new, |head| {
        format!("session {} number {} ({:?})", head.session, head.number.0, head.mode)
    });
    format!(
        "after entry {index} {lock:?} is free for its head, {head}, of {waiting} who wait; held \
         by tokens {held:?}"
    )
}

fn check_views(history: &History, findings: &mut Findings) {
    if !history.silences.is_empty() {
        return;
    }
    for Entry { at, seen } in &history.seen {
        if let Seen::Viewed { lock, asked, holders, waiters } = seen
            && holders.is_empty()
            && *waiters > 0
        {
            findings.add(|| {
                format!(
                    "a read of {lock:?} from {} to {} shows {waiters} who wait, and no holder",
                    At(*asked),
                    At(*at)
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silence;
    use crate::judge::testing::{Forge, S, assert_finds, permits};
    use lockkeeper_core::Mode::{self, Exclusive, Shared};

    /// Session 1 holds in one mode, 2 waits.
    fn line(mode: Mode) -> Forge {
        let mut forge = Forge::new(0);
        forge.opened(1, 1).opened(2, 2).opened(3, 3).granted(4, "a", 1, 1, 4, mode);
        forge.in_line(5, "a", 2, 1, 1);
        forge
    }

    #[test]
    fn a_log_that_wakes_everybody_is_lawful() {
        let mut forge = line(Exclusive);
        forge.in_line(6, "a", 3, 1, 2).released(7, "a", 1, 1, 4);
        forge.let_in(7, "a", 2, 1, 7, Shared).let_in(7, "a", 3, 1, 8, Shared);
        assert_eq!(check(&forge.history()), []);
    }

    #[test]
    fn a_free_lock_with_somebody_waiting_is_found() {
        let mut forge = line(Exclusive);
        forge.released(7, "a", 1, 1, 4);
        assert_finds(&check(&forge.history()), &["entry 7", "\"a\"", "0000000000000002"]);
    }

    #[test]
    fn a_wake_up_that_comes_an_entry_late_is_found() {
        let mut forge = line(Exclusive);
        forge.released(7, "a", 1, 1, 4).let_in(8, "a", 2, 1, 8, Exclusive);
        assert_finds(&check(&forge.history()), &["entry 7"]);
    }

    #[test]
    fn a_head_that_fits_beside_the_holders_is_found() {
        // The writer in front gives up, and the reader behind it isn't let in.
        let mut forge = line(Shared);
        forge.in_line(6, "a", 3, 1, 2).cancelled(7, "a", 2, 1);
        forge.released(8, "a", 1, 1, 4).let_in(8, "a", 3, 1, 8, Shared);
        assert_finds(&check(&forge.history()), &["entry 7", "0000000000000003", "Shared"]);
        let mut forge = line(permits(2, 3));
        forge.cancelled(6, "a", 2, 1).in_line(7, "a", 3, 1, 1);
        forge.let_in(8, "a", 3, 1, 8, permits(1, 3));
        assert_finds(&check(&forge.history()), &["entry 7", "Permits"]);
    }

    #[test]
    fn in_the_silence_after_a_restore_nobody_is_woken() {
        let mut forge = Forge::new(0);
        forge.opened(3, 1).in_line(4, "a", 1, 1, 1).let_in(6, "a", 1, 1, 6, Exclusive);
        let mut history = forge.history();
        history.silences = vec![Silence { from: 2, until: 6 }];
        assert_eq!(check(&history), []);
        history.silences[0].until = 4;
        assert_finds(&check(&history), &["entry 4"]);
    }

    #[test]
    fn a_read_of_a_free_lock_with_somebody_waiting_is_found() {
        let mut forge = Forge::new(0);
        forge.view_of("a", S, 2 * S, &[7], 3).view_of("b", S, 2 * S, &[], 0);
        assert_eq!(check(&forge.done()), []);
        forge.view_of("a", 3 * S, 4 * S, &[], 3);
        assert_finds(&check(&forge.done()), &["3 who wait", "3.000000 s"]);
    }
}
