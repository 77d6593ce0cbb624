//! Random numbers that a seed repeats.

use std::time::Duration;

use lockkeeper_sim::Chance;

/// The simulator's generator, with the questions that a schedule of faults asks.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Chance);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Chance::new(seed))
    }

    /// Dice of their own for one part of the whole.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    /// From 0 to `end`, without it.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// True in `percent` of a hundred throws.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A span of `from` to `to` milliseconds.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }

    pub(crate) fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        self.0.pick(among)
    }

    /// All of them in another order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let at = usize::try_from(self.below(end as u64 + 1)).unwrap_or(0);
            items.swap(at, end);
        }
    }
}
