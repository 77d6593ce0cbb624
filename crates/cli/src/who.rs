//! `who`: who holds a lock, and who waits for it.

use lockkeeper::Mode;
use lockkeeper::views::{Hold, Lock, LockKind};

use crate::connect::Target;
use crate::exit::Failure;
use crate::flags::{Global, Output, Who};
use crate::json;
use crate::output::{self, Rows};
use crate::text::{
    Printable, clock, count, local_time, mode, person, seconds, session, waiting_person,
};

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
    if lock.kind == LockKind::ZooKeeper {
        output::line(format!("{name} is a lock of ZooKeeper's clients"))?;
    }
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
    if lock.holds.iter().any(|hold| matches!(hold.mode, Mode::Permits { of: 0, .. })) {
        output::line(
            "  How many permits there are, only the clients know: the last may wait yet.",
        )?;
    }
    match lock.waiter_count {
        0 => output::line("nobody waits for it")?,
        1 => output::line("1 waits for it")?,
        waiters => output::line(format!("{waiters} wait for it"))?,
    }
    let znodes = usize::from(lock.kind == LockKind::ZooKeeper);
    let headings = [">PLACE", "WHO", "MODE", ">WAITING", "SESSION", "ZNODE"];
    let mut rows = Rows::new(&headings[..5 + znodes]);
    for waiter in &lock.waiters {
        let mut cells = vec![
            waiter.place.to_string(),
            waiting_person(waiter),
            mode(waiter.mode),
            clock(waiter.waited),
            session(waiter.session, waiter.znode.as_deref()),
        ];
        cells.extend(waiter.znode.as_ref().map(|znode| Printable(znode).to_string()));
        rows.add(cells);
    }
    if !lock.waiters.is_empty() {
        rows.print("  ")?;
    }
    rest(lock.waiter_count, lock.waiters.len())
}

fn details(hold: &Hold) -> Result<(), Failure> {
    let mut rows = Rows::new(&[]);
    let mut add = |what: &str, value: String| rows.add(vec![what.to_owned(), value]);
    // Whether a ZooKeeper client has waited before it held, nobody has written down.
    let since = if hold.znode.is_some() { "in line since" } else { "since" };
    add(since, format!("{} ({})", local_time(hold.since_stamp_ms), clock(hold.held)));
    add("token", hold.token.to_string());
    add("mode", mode(hold.mode));
    add("lease", lease(hold));
    if !hold.owner.program.is_empty() {
        add("program", Printable(&hold.owner.program).to_string());
    }
    add("session", session(hold.session, hold.znode.as_deref()));
    if let Some(znode) = &hold.znode {
        add("znode", Printable(znode).to_string());
    }
    if hold.is_revoked {
        add("revoked", "an operator has asked for it back".to_owned());
    }
    rows.print("  ")
}

fn holders(holds: &[Hold]) -> Result<(), Failure> {
    let znodes = usize::from(holds.iter().any(|hold| hold.znode.is_some()));
    let headings = [">TOKEN", "WHO", "MODE", ">HELD", "LEASE LEFT", "SESSION", "ZNODE"];
    let mut rows = Rows::new(&headings[..6 + znodes]);
    for hold in holds {
        let mut cells = vec![
            hold.token.to_string(),
            person(hold),
            mode(hold.mode),
            clock(hold.held),
            lease(hold),
            session(hold.session, hold.znode.as_deref()),
        ];
        cells.extend(hold.znode.as_ref().map(|znode| Printable(znode).to_string()));
        rows.add(cells);
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
