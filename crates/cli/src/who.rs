//! `who`: who holds a lock, and who waits for it.

use lockkeeper::views::{Hold, Lock};

use crate::connect::Target;
use crate::exit::Failure;
use crate::flags::{Global, Output, Who};
use crate::json;
use crate::output::{self, Rows};
use crate::text::{Printable, clock, count, local_time, mode, person, seconds, waiting_person};

pub(crate) async fn run(global: &Global, flags: Who) -> Result<u8, Failure> {
    let client = Target::of(global)?.connect(global).await?;
    let lock = client.admin().get_lock(&flags.name, flags.max).await?;
    match (global.output, &lock) {
        (Output::Json, Some(lock)) => output::document(&json::Lock::from(lock))?,
        (Output::Json, None) => output::document(&json::Lock::free(&flags.name))?,
        (Output::Table, Some(lock)) => people(lock)?,
        (Output::Table, None) => {
            output::line(format!("{} is free: nobody waits for it", Printable(&flags.name)))?;
        }
    }
    Ok(0)
}

fn people(lock: &Lock) -> Result<(), Failure> {
    let name = Printable(&lock.name);
    match (lock.hold_count, lock.holds.first()) {
        (_, None) => output::line(format!("{name} is held by nobody"))?,
        (1, Some(hold)) => {
            output::line(format!("{name} is held by {}", person(hold)))?;
            details(hold)?;
        }
        (holds, Some(_)) => {
            output::line(format!("{name} has {}", count(holds.into(), "holder")))?;
            holders(&lock.holds)?;
            rest(holds, lock.holds.len())?;
        }
    }
    match lock.waiter_count {
        0 => output::line("nobody waits for it")?,
        1 => output::line("1 waits for it")?,
        waiters => output::line(format!("{waiters} wait for it"))?,
    }
    let mut rows = Rows::new(&[">PLACE", "WHO", "MODE", ">WAITING", "SESSION"]);
    for waiter in &lock.waiters {
        rows.add(vec![
            waiter.place.to_string(),
            waiting_person(waiter),
            mode(waiter.mode),
            clock(waiter.waited),
            waiter.session.to_string(),
        ]);
    }
    if !lock.waiters.is_empty() {
        rows.print("  ")?;
    }
    rest(lock.waiter_count, lock.waiters.len())
}

fn details(hold: &Hold) -> Result<(), Failure> {
    let mut rows = Rows::new(&[]);
    let mut add = |what: &str, value: String| rows.add(vec![what.to_owned(), value]);
    add("since", format!("{} ({})", local_time(hold.since_stamp_ms), clock(hold.held)));
    add("token", hold.token.to_string());
    add("mode", mode(hold.mode));
    add("lease", lease(hold));
    if !hold.owner.program.is_empty() {
        add("program", Printable(&hold.owner.program).to_string());
    }
    add("session", hold.session.to_string());
    if hold.is_revoked {
        add("revoked", "an operator has asked for it back".to_owned());
    }
    rows.print("  ")
}

fn holders(holds: &[Hold]) -> Result<(), Failure> {
    let mut rows = Rows::new(&[">TOKEN", "WHO", "MODE", ">HELD", "LEASE LEFT", "SESSION"]);
    for hold in holds {
        rows.add(vec![
            hold.token.to_string(),
            person(hold),
            mode(hold.mode),
            clock(hold.held),
            lease(hold),
            hold.session.to_string(),
        ]);
    }
    rows.print("  ")
}

fn lease(hold: &Hold) -> String {
    let ttl = seconds(hold.ttl);
    match hold.lease_left {
        Some(left) => format!("{} of {ttl} left", seconds(left)),
        None => format!("{ttl} (what is left of it isn't known here)"),
    }
}

fn rest(all: u32, shown: usize) -> Result<(), Failure> {
    let shown = u32::try_from(shown).unwrap_or(u32::MAX);
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => output::line(format!("  … and {more} more: see --max")),
    }
}
