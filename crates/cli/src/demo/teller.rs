//! How the story is told: a line at a time, each with the seconds since the beginning.

use std::time::Instant;

use anyhow::Result;

use crate::output;

/// How an error of printing is said.
fn said(result: Result<(), crate::exit::Failure>) -> Result<()> {
    result.map_err(|failure| anyhow::anyhow!(failure.to_string()))
}

/// Prints the story's lines.
#[derive(Clone, Copy)]
pub(crate) struct Teller {
    begun: Instant,
}

impl Teller {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now() }
    }

    /// The heading of an act.
    pub(crate) fn act(&self, heading: &str) -> Result<()> {
        said(output::line(format!("\n         {heading}")))
    }

    /// One thing that happened, and to whom.
    pub(crate) fn tell(&self, who: &str, what: &str) -> Result<()> {
        let seconds = self.begun.elapsed().as_secs_f64();
        said(output::line(format!("{seconds:6.2} s  {who:<9} {what}")))
    }
}
