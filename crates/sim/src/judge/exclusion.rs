//! Mutual exclusion, as the holders see it.
//!
//! What counts is not what the log says, but when each client works under its lock: from `Held`
//! until it stops. A guard must be lost before the next grant is believed by anybody. Where there
//! is a log, its own holds must exclude each other as well, and nothing is granted in the silence
//! after a restore, when nobody knows who still believes in an earlier grant.

use std::collections::BTreeMap;

use lockkeeper_core::{Event, Mode, Token};

use crate::judge::Verdict;
use crate::judge::findings::{At, Findings};
use crate::judge::ledger::Ledger;
use crate::judge::story::{Hold, Story, admits, excludes};
use crate::{History, Silence, Transition};

/// No two that exclude each other are held at one time, and permits never exceed those there are.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("exclusion");
    check_log(history, &mut findings);
    let story = Story::of(history);
    for holds in Story::by_lock(story.holds(), |hold| hold.lock).into_values() {
        check_holds(holds, &mut findings);
    }
    findings.into_verdicts()
}

/// One lock's holds, in the order in which they began.
fn check_holds(holds: Vec<Hold<'_>>, findings: &mut Findings) {
    // A re-entry is one more handle on a hold: the same client, the same token.
    let mut open: BTreeMap<Token, Hold<'_>> = BTreeMap::new();
    for hold in holds {
        open.retain(|_, other| other.until > hold.from);
        if let Some(same) = open.get_mut(&hold.token)
            && same.client == hold.client
        {
            same.until = same.until.max(hold.until);
            continue;
        }
        if let Some(other) = open.values().find(|other| excludes(other.mode, hold.mode)) {
            findings.add(|| {
                let until = other.until.min(hold.until);
                format!("{}, and {} too, until {}", Told(other), Told(&hold), At(until))
            });
        } else if !admits(open.values().map(|other| other.mode), hold.mode) {
            let taken: u64 = open.values().map(|other| permits(other.mode)).sum();
            findings.add(|| format!("{} while {taken} permits are taken", Told(&hold)));
        }
        let other = open.insert(hold.token, hold);
        if let Some(other) = other.filter(|other| other.client != hold.client) {
            findings.add(|| format!("{}, and {} by the same token", Told(&other), Told(&hold)));
        }
    }
}

fn check_log(history: &History, findings: &mut Findings) {
    let mut ledger = Ledger::default();
    for Transition { index, event } in &history.log {
        if let Event::Granted { lock, session, token, mode, .. } = event
            && let Some(line) = ledger.line(lock)
            && !admits(line.holds.iter().map(|hold| hold.mode), *mode)
        {
            findings.add(|| {
                format!(
                    "entry {index} grants {lock:?} as {mode:?} with token {token} to session \
                     {session}, while these hold it: {:?}",
                    line.holds
                )
            });
        }
        let is_silent = |silence: &Silence| (silence.from..silence.until).contains(index);
        if let Event::Granted { lock, session, token, .. } = event
            && history.silences.iter().any(is_silent)
        {
            findings.add(|| {
                format!(
                    "entry {index} grants {lock:?} with token {token} to session {session} in the \
                     silence after a restore"
                )
            });
        }
        ledger.apply(event, None);
    }
}

fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { take, .. } => u64::from(take),
        Mode::Exclusive | Mode::Shared => 0,
    }
}

/// A hold in words.
struct Told<'a>(&'a Hold<'a>);

impl std::fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Hold { attempt, client, lock, mode, token, from, .. } = self.0;
        write!(f, "{client} holds {lock:?} as {mode:?} since {} ", At(*from))?;
        write!(f, "(token {token}, {attempt})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::{Forge, S, assert_finds, permits};
    use lockkeeper_core::Mode::{Exclusive, Shared};

    #[test]
    fn holds_that_take_turns_are_lawful() {
        let mut forge = Forge::new(3);
        forge.hold((0, 1), "a", Exclusive, 10, S..2 * S);
        forge.hold((1, 2), "a", Exclusive, 11, 2 * S..3 * S);
        // Readers together, and another lock at any time.
        forge.hold((1, 3), "b", Shared, 12, S..4 * S);
        forge.hold((2, 4), "b", Shared, 13, 2 * S..3 * S);
        forge.hold((0, 5), "c", permits(2, 3), 14, S..4 * S);
        forge.hold((1, 6), "c", permits(1, 3), 15, 2 * S..3 * S);
        assert_eq!(check(&forge.done()), []);
    }

    #[test]
    fn two_writers_at_once_are_found() {
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Exclusive, 10, S..3 * S);
        forge.hold((1, 2), "a", Exclusive, 11, 2 * S..4 * S);
        let found = check(&forge.done());
        assert_finds(&found, &["client 0", "client 1", "\"a\"", "token 10", "2.000000 s"]);
    }

    #[test]
    fn a_reader_beside_a_writer_is_found() {
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Shared, 10, S..3 * S);
        forge.hold((1, 2), "a", Exclusive, 11, 2 * S..4 * S);
        assert_finds(&check(&forge.done()), &["Shared", "Exclusive"]);
    }

    #[test]
    fn permits_beyond_those_there_are_are_found() {
        let mut forge = Forge::new(3);
        for (client, attempt) in [(0, 1), (1, 2), (2, 3)] {
            let from = 1 + u64::from(client);
            forge.hold((client, attempt), "p", permits(1, 2), 10 + attempt, from * S..9 * S);
        }
        assert_finds(&check(&forge.done()), &["2 permits are taken", "client 2"]);
    }

    #[test]
    fn a_hold_that_nobody_gave_back_lasts_until_the_end() {
        let mut forge = Forge::new(2);
        forge.take((0, 1), "a", Exclusive, 10, S);
        forge.hold((1, 2), "a", Exclusive, 11, 8 * S..9 * S);
        assert_finds(&check(&forge.done()), &["client 0", "8.000000 s"]);
    }

    #[test]
    fn what_is_lost_in_time_is_lawful_and_too_late_is_not() {
        for (since, is_lawful) in [(2, true), (3, false)] {
            let mut forge = Forge::new(2);
            forge.take((0, 1), "a", Exclusive, 10, S);
            // It learns of it late, but had stopped counting on it.
            forge.lose(1, 5 * S, since * S);
            forge.hold((1, 2), "a", Exclusive, 11, 2 * S..4 * S);
            assert_eq!(check(&forge.done()).is_empty(), is_lawful, "lost since {since} s");
        }
    }

    #[test]
    fn the_end_of_a_session_ends_its_holds() {
        for (ended, is_lawful) in [(2, true), (3, false)] {
            let mut forge = Forge::new(2);
            forge.take((0, 1), "a", Exclusive, 10, S);
            forge.end(0, ended * S);
            forge.hold((1, 2), "a", Exclusive, 11, 2 * S..4 * S);
            assert_eq!(check(&forge.done()).is_empty(), is_lawful, "ended at {ended} s");
        }
    }

    #[test]
    fn what_an_operator_passed_on_is_exempt_from_then_on() {
        for (token, is_lawful) in [(10, true), (9, false)] {
            let mut forge = Forge::new(2);
            forge.take((0, 1), "a", Exclusive, 10, S);
            forge.force("a", token, 2 * S);
            forge.hold((1, 2), "a", Exclusive, 11, 3 * S..4 * S);
            assert_eq!(check(&forge.done()).is_empty(), is_lawful, "forced token {token}");
        }
    }

    #[test]
    fn one_token_for_two_clients_is_found_and_a_reentry_is_lawful() {
        let mut forge = Forge::new(2);
        forge.hold((0, 1), "a", Exclusive, 10, S..3 * S);
        forge.hold((0, 2), "a", Exclusive, 10, 2 * S..4 * S);
        assert_eq!(check(&forge.done()), []);
        forge.hold((1, 3), "a", Shared, 10, 3 * S..4 * S);
        assert_finds(&check(&forge.done()), &["client 0", "client 1"]);
    }

    #[test]
    fn a_grant_in_the_silence_after_a_restore_is_found() {
        for (until, is_lawful) in [(6, true), (7, false)] {
            let mut forge = Forge::new(0);
            forge.opened(5, 1).granted(6, "a", 1, 1, 6, Exclusive);
            let mut history = forge.history();
            history.silences = vec![Silence { from: 3, until }];
            assert_eq!(check(&history).is_empty(), is_lawful, "until {until}");
        }
    }

    #[test]
    fn a_log_that_grants_what_is_held_is_found() {
        let mut forge = Forge::new(0);
        forge.opened(5, 1).opened(5, 2).granted(6, "a", 1, 1, 6, Exclusive);
        assert_eq!(check(&forge.history()), []);
        forge.granted(7, "a", 2, 1, 7, Shared);
        assert_finds(&check(&forge.history()), &["entry 7", "\"a\"", "token 7"]);
    }
}
