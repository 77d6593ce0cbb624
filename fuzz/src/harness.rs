//! One input under measurement, and the short form of a fuzz run: the corpus and seeds, each as it
//! is and mutated in a fixed random order.
//!
//! This file stands alone: the packages' tests take it in by its path, so that the ordinary test
//! run needs neither a fuzzing engine nor another package.
//!
//! The property, of every target: whatever the bytes, it returns (no panic, no endless loop), and
//! what it allocates is bounded by the input's length. A length that is merely promised buys
//! nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

/// What is fuzzed.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of its corpus's directory.
    pub name: &'static str,
    /// Takes any bytes; panics if something doesn't hold.
    pub run: fn(&[u8]),
    /// Inputs that reach deep, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Bytes that may be allocated at one time, whatever the input.
    pub bytes_flat: usize,
    /// Bytes that may be allocated beyond, for each byte of input.
    pub bytes_each: usize,
}

impl Target {
    /// Runs one input, and checks what it took.
    pub fn check(&self, input: &[u8]) {
        let peak = peak_of(|| (self.run)(input));
        let allowed = self.bytes_flat + self.bytes_each * input.len();
        let (name, length) = (self.name, input.len());
        assert!(peak <= allowed, "{name}: {length} bytes of input took {peak} bytes of memory");
    }

    /// The short form: each seed and each file of `corpora`, then `rounds` mutations of them, the
    /// same ones each time.
    pub fn check_short(&self, corpora: &Path, rounds: usize) {
        let mut inputs = (self.seeds)();
        let directory = corpora.join(self.name);
        let mut files: Vec<_> = match fs::read_dir(&directory) {
            Ok(entries) => entries.map(|entry| entry.expect("a corpus").path()).collect(),
            Err(error) => panic!("{}: {error}", directory.display()),
        };
        files.sort();
        inputs.extend(files.iter().map(|file| fs::read(file).expect("a corpus")));
        inputs.iter().for_each(|input| self.check_aloud(input));
        let mut chance = Chance(0x5eed_0f10_cc0f_f5e7);
        for _ in 0..rounds {
            self.check_aloud(&chance.mutate(&inputs));
        }
    }

    fn check_aloud(&self, input: &[u8]) {
        let said = Said(self.name, input);
        self.check(input);
        std::mem::forget(said);
    }
}

/// Prints the input if the check panics, so that it can go to the corpus.
struct Said<'a>(&'static str, &'a [u8]);

impl Drop for Said<'_> {
    #[expect(clippy::print_stderr, reason = "a test that fails says with what")]
    fn drop(&mut self) {
        let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("{}: the input was {hex}", self.0);
    }
}

/// A small generator of random numbers (xorshift64*), the same on every machine.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() >> 33) as usize % end }
    }

    /// One of `inputs`, with one to four changes.
    fn mutate(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, inputs);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        const TELLING: [u64; 8] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
        let at = self.below(bytes.len() + 1);
        let count = self.below(16).min(bytes.len() - at);
        match self.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + count)),
            4 => {
                let again = bytes[at..at + count].to_vec();
                bytes.splice(at..at, again);
            }
            5 => {
                let width = [1, 2, 4, 8][self.below(4)];
                let number = TELLING[self.below(TELLING.len())];
                let number = if self.below(2) == 0 {
                    number.to_le_bytes()[..width].to_vec()
                } else {
                    number.to_be_bytes()[8 - width..].to_vec()
                };
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, number);
            }
            6 => {
                let other = &inputs[self.below(inputs.len())];
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let other = &inputs[self.below(inputs.len())];
                let from = self.below(other.len() + 1);
                let to = (from + self.below(64)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
}

/// The system's allocator, with a count for each thread.
struct Meter;

#[global_allocator]
static METER: Meter = Meter;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The most bytes that `work` had allocated at one time on this thread.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    usize::try_from(PEAK.get() - before).unwrap_or(0)
}

fn count(bytes: isize) {
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

#[expect(unsafe_code, reason = "an allocator can't be had without; it only counts and passes on")]
// SAFETY: every call is the system allocator's, with the caller's own arguments; counting touches
// only cells of this thread, which need neither allocation nor destructor.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the trait says of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the trait says of this call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the trait says of this call.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as the trait says of this call.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
