//! A search through all orders (after Wing and Gong), and what it says of the judges that need
//! none. It takes exponential time: twelve operations are its limit, and it lives in tests only.

use std::collections::BTreeSet;

use lockkeeper_core::{Mode, Token};

use crate::judge::kept::View;
use crate::judge::story::{Story, admits};
use crate::judge::{exclusion, kept, linear, tokens};
use crate::{Chance, History, Nanos};

/// One operation: it happened at one moment from `start` to `end`, or never if it needn't.
struct Operation {
    start: Nanos,
    end: Nanos,
    does: Does,
}

enum Does {
    Grant(Token, Mode),
    End(Token),
    Show(Vec<Token>),
}

/// Whether the operations of the one lock of this history can be put in an order.
fn is_linearizable(history: &History) -> bool {
    let story = Story::of(history);
    let mut operations = Vec::new();
    for wish in &story.wishes {
        let Some((held, token)) = wish.held else { continue };
        let does = Does::Grant(token, wish.mode);
        operations.push(Operation { start: wish.asked, end: held, does });
        if let Some(start) = wish.releasing {
            let end = wish.released.unwrap_or(Nanos::MAX);
            operations.push(Operation { start, end, does: Does::End(token) });
        }
    }
    for View { asked, answered, holders, .. } in history.seen.iter().filter_map(View::of) {
        let does = Does::Show(holders.to_vec());
        operations.push(Operation { start: asked, end: answered, does });
    }
    assert!(operations.len() <= 16, "too many for a search");
    search(&operations, 0, &mut BTreeSet::new())
}

/// Whether the rest can be put in an order, when those in the set `done` have happened. Which those
/// are decides the state, so a set that was a dead end once always is.
fn search(operations: &[Operation], done: u32, dead_ends: &mut BTreeSet<u32>) -> bool {
    let open = || (0..operations.len()).filter(|at| done & (1 << at) == 0);
    let first_end = open().map(|at| operations[at].end).min().unwrap_or(Nanos::MAX);
    if first_end == Nanos::MAX {
        return true;
    }
    if dead_ends.contains(&done) {
        return false;
    }
    let found = open().any(|at| {
        operations[at].start <= first_end
            && is_possible(operations, done, &operations[at].does)
            && search(operations, done | (1 << at), dead_ends)
    });
    if !found {
        dead_ends.insert(done);
    }
    found
}

fn is_possible(operations: &[Operation], done: u32, does: &Does) -> bool {
    let happened = || (0..operations.len()).filter(|at| done & (1 << at) != 0);
    let has_ended = |token: Token| {
        happened().any(|at| matches!(operations[at].does, Does::End(ended) if ended == token))
    };
    let granted = happened().filter_map(|at| match operations[at].does {
        Does::Grant(token, mode) => Some((token, mode)),
        _ => None,
    });
    let granted: Vec<(Token, Mode)> = granted.collect();
    let mut held: Vec<_> = granted.iter().filter(|(token, _)| !has_ended(*token)).collect();
    held.sort_by_key(|(token, _)| *token);
    match does {
        Does::Grant(token, mode) => {
            granted.iter().all(|(other, _)| other < token)
                && admits(held.iter().map(|(_, mode)| *mode), *mode)
        }
        Does::End(token) => held.iter().any(|(other, _)| other == token),
        Does::Show(holders) => held.iter().map(|(token, _)| token).eq(holders),
    }
}

fn is_found_by_judges(history: &History) -> bool {
    let judges = [exclusion::check, tokens::check, kept::check, linear::check];
    judges.iter().any(|check| !check(history).is_empty())
}

mod tests {
    use super::*;
    use crate::judge::testing::Forge;
    use lockkeeper_core::Mode::{Exclusive, Shared};

    /// What really happened, one after the other, and then what is told of it.
    fn random_history(chance: &mut Chance) -> History {
        let mut forge = Forge::new(4);
        let spread = 1 + chance.below(40);
        let around = |chance: &mut Chance, at: u64| {
            (at - chance.below(spread), at + 1 + chance.below(spread))
        };
        let mut held: Vec<(u64, Mode)> = Vec::new();
        let (mut now, mut token, mut operations) = (1_000, 10, 0);
        let mut spans = std::collections::BTreeMap::new();
        while operations < 9 {
            now += 1 + chance.below(20);
            let mode = if chance.one_in(2) { Exclusive } else { Shared };
            let (start, end) = around(chance, now);
            match chance.below(3) {
                0 if admits(held.iter().map(|(_, mode)| *mode), mode) => {
                    token += 1 + chance.below(2);
                    held.push((token, mode));
                    let client = chance.below(4) as u32;
                    forge.ask((client, token), "a", mode, start).held(token, token, end);
                    spans.insert(token, end);
                    operations += 1;
                }
                1 if !held.is_empty() => {
                    let (token, _) = held.remove(chance.below(held.len() as u64) as usize);
                    // A client gives back what it knows it has.
                    let start = start.max(spans[&token] + 1);
                    now = now.max(start);
                    forge.release(token, start, end.max(start + 1));
                    operations += 1;
                }
                _ => {
                    let mut shown: Vec<u64> = held.iter().map(|(token, _)| *token).collect();
                    corrupt(chance, &mut shown, token);
                    forge.view_of("a", start, end, &shown, 0);
                    operations += 1;
                }
            }
        }
        forge.done_at(now + 1_000)
    }

    /// Sometimes a read is wrong about one token.
    fn corrupt(chance: &mut Chance, shown: &mut Vec<u64>, newest: u64) {
        if !chance.one_in(6) {
            return;
        }
        if chance.one_in(2) && !shown.is_empty() {
            shown.remove(chance.below(shown.len() as u64) as usize);
        } else {
            let token = 11 + chance.below(newest - 9);
            if !shown.contains(&token) {
                shown.push(token);
                shown.sort_unstable();
            }
        }
    }

    #[test]
    fn the_judges_agree_with_a_search_through_all_orders() {
        let mut chance = Chance::new(1);
        let (mut lawful, mut found, mut missed) = (0, 0, 0);
        for round in 0..20_000 {
            let history = random_history(&mut chance);
            match (is_linearizable(&history), is_found_by_judges(&history)) {
                (true, true) => {
                    let verdicts = [exclusion::check, tokens::check, kept::check, linear::check]
                        .map(|check| check(&history));
                    panic!("round {round}: wrongly accused: {verdicts:#?}\n{history:#?}");
                }
                (true, false) => lawful += 1,
                (false, true) => found += 1,
                (false, false) => missed += 1,
            }
        }
        assert!(lawful > 5_000 && found > 5_000, "lawful {lawful}, found {found}");
        // What takes three overlapping reads to contradict each other is left to the search.
        assert!(missed * 200 < found, "found {found}, missed {missed}");
    }
}
