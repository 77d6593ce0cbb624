//! `lockkeeper demo`: the story that Lockkeeper exists for, told in under a minute.
//!
//! Two data centres start the same nightly batch at 3:00, and the worst things happen, one after
//! the other. It is no script of prints: three real servers with their own disks and threads, real
//! clients, real connections on loopback. What is simulated is the cable between the data centres
//! ([`network`]), so that it can be cut. Each act checks what it tells, and the program ends with
//! an error if anything goes differently.

mod batch;
mod network;
mod story;
mod teller;

use crate::exit::Failure;

/// Tells the story.
pub(crate) async fn run() -> Result<u8, Failure> {
    story::tell().await?;
    Ok(0)
}
