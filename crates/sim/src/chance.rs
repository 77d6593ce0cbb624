//! Chance that a seed decides: the same seed, the same choices, on every machine.

/// A generator of pseudo-random numbers (SplitMix64). It is small, fast and good enough to choose
/// schedules; nothing secret comes from it.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The generator that `seed` stands for. Neighbouring seeds have nothing in common.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, of all there are.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of the product: fairer than a remainder, and without a division.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` up to and including `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True once in `n` times on average; for `n` below 2 always.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        assert!(!choices.is_empty(), "nothing to choose from");
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// A generator of its own for a part of the world, so that what one part draws changes nothing
    /// for the others.
    pub fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_numbers() {
        // The reference values of SplitMix64 for the seed 1234567.
        let mut chance = Chance::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| chance.next_u64()).collect();
        let known =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(drawn, known);
    }

    #[test]
    fn choices_stay_within_their_bounds_and_reach_them() {
        let mut chance = Chance::new(7);
        let drawn: Vec<u64> = (0..1_000).map(|_| chance.between(3, 5)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&5)));
        assert!(chance.one_in(1) && chance.one_in(0));
        let hits = (0..10_000).filter(|_| chance.one_in(10)).count();
        assert!((800..1_200).contains(&hits), "{hits}");
    }

    #[test]
    fn a_fork_goes_its_own_way() {
        let mut chance = Chance::new(7);
        let mut fork = chance.fork();
        assert_ne!(fork.next_u64(), chance.next_u64());
    }
}
