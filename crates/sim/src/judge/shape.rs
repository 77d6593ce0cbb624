//! Is this a history at all?
//!
//! Every other judge passes over what it can't read. A mistake in what recorded the history would
//! then look like a faultless run: here it is a finding.

use crate::History;
use crate::judge::Verdict;
use crate::judge::findings::Findings;
use crate::judge::story::Story;

/// Time goes forward, each wish is asked once and before anything else becomes of it, each client
/// opened its session.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let mut findings = Findings::of("shape");
    let mut story = Story::of(history);
    for fault in std::mem::take(&mut story.faults) {
        findings.add(|| fault);
    }
    for client in story.unopened() {
        findings.add(|| format!("{client} asks for a lock, but never opened a session"));
    }
    let goes_back = history.log.windows(2).find(|pair| pair[0].index > pair[1].index);
    if let Some(pair) = goes_back {
        findings.add(|| format!("the log goes back from {} to {}", pair[0].index, pair[1].index));
    }
    findings.into_verdicts()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::{Forge, S, assert_finds};
    use crate::{Entry, Seen};
    use lockkeeper_core::Mode::Exclusive;

    fn lawful() -> Forge {
        let mut forge = Forge::new(1);
        forge.ask((0, 1), "a", Exclusive, S).queued(1, 2 * S).held(1, 10, 3 * S);
        forge.release(1, 4 * S, 5 * S).opened(3, 1).granted(4, "a", 1, 1, 10, Exclusive);
        forge
    }

    #[test]
    fn a_whole_story_is_lawful() {
        assert_eq!(check(&lawful().done()), []);
    }

    #[test]
    fn what_becomes_of_nothing_is_found() {
        assert_finds(&check(&lawful().held(2, 11, 6 * S).done()), &["attempt 2", "never asked"]);
        let found =
            check(&lawful().ask((0, 2), "b", Exclusive, 6 * S).release(2, 7 * S, 8 * S).done());
        assert_finds(&found, &["attempt 2", "7.000000 s", "never held"]);
        let found = check(&lawful().ask((7, 2), "b", Exclusive, 6 * S).done());
        assert_finds(&found, &["client 7", "never opened"]);
    }

    #[test]
    fn what_happens_twice_is_found() {
        assert_finds(&check(&lawful().held(1, 11, 6 * S).done()), &["attempt 1", "second time"]);
        let found = check(&lawful().ask((0, 1), "a", Exclusive, 6 * S).done());
        assert_finds(&found, &["attempt 1", "again"]);
    }

    #[test]
    fn time_that_goes_back_is_found() {
        let mut history = lawful().done();
        history.seen.push(Entry { at: S, seen: Seen::Calm });
        assert_finds(&check(&history), &["back to 1.000000 s"]);
        let found = check(&lawful().opened(2, 5).done());
        assert_finds(&found, &["from 4 to 2"]);
    }
}
