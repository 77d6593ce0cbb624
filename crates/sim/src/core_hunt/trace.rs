//! What a seed did, as one number or as text.

use std::fmt::{self, Write};

/// Takes in each step of a seed.
#[derive(Debug)]
pub struct Trace {
    hash: Option<u64>,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Takes in nothing, at no cost.
    #[must_use]
    pub fn off() -> Self {
        Self { hash: None, lines: None }
    }

    /// Keeps one number for all.
    #[must_use]
    pub fn digest() -> Self {
        Self { hash: Some(FNV_OFFSET), lines: None }
    }

    /// Keeps the number and each step in words.
    #[must_use]
    pub fn text() -> Self {
        Self { lines: Some(Vec::new()), ..Self::digest() }
    }

    /// The number for all that was taken in.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.hash.unwrap_or(FNV_OFFSET)
    }

    /// The steps in words.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    pub(super) fn take(&mut self, step: fmt::Arguments<'_>) {
        if let Some(hash) = &mut self.hash {
            // A digest takes all there is.
            _ = Fnv(hash).write_fmt(step);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(step.to_string());
        }
    }
}

/// FNV-1a: small, and the same everywhere.
struct Fnv<'a>(&'a mut u64);

impl Write for Fnv<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        *self.0 = fnv(*self.0, text.as_bytes());
        Ok(())
    }
}

/// The digest of a state's bytes.
pub(super) fn digest_of(bytes: &[u8]) -> u64 {
    fnv(FNV_OFFSET, bytes)
}

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
