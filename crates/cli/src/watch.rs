//! `watch`: every transition of locks, as it happens.

use lockkeeper::views::LockEvent;

use crate::connect::Target;
use crate::exit::Failure;
use crate::flags::{Global, Output, Watch};
use crate::signals::Signals;
use crate::text::{Printable, clock, local_time};
use crate::{json, output};

/// Runs until a signal.
pub(crate) async fn run(global: &Global, flags: Watch) -> Result<u8, Failure> {
    let mut signals = Signals::of_the_supervisor()?;
    let client = Target::of(global)?.connect(global).await?;
    let mut events = client.admin().watch(&flags.prefix).await?;
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            _ = signals.next_end() => return Ok(0),
        };
        match global.output {
            Output::Json => output::object(&json::Event::from(&event))?,
            Output::Table => output::line(sentence(&event))?,
        }
    }
}

fn sentence(event: &LockEvent) -> String {
    let (time, lock) = (local_time(event.stamp_ms), Printable(&event.lock));
    let mut line = format!("{time}  {:<9}  {lock}  {}", event.event, event.owner);
    let token = event.token.map_or_else(String::new, |token| format!(", token {token}"));
    let told = match event.event.as_str() {
        "queued" => format!("place {}", event.place),
        "granted" => format!("after {}{token}", clock(event.waited)),
        "released" => format!("held for {}{token}", clock(event.held)),
        "lost" => format!("{}; held for {}{token}", event.reason, clock(event.held)),
        "cancelled" => format!("waited for {}", clock(event.waited)),
        _ => token.trim_start_matches(", ").to_owned(),
    };
    if !told.is_empty() {
        line.push_str(&format!("  ({told})"));
    }
    line
}
