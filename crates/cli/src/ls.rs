//! `ls`: locks in use.

use lockkeeper::views::{Lock, LockKind};

use crate::connect::Target;
use crate::exit::Failure;
use crate::flags::{Global, Ls, Output};
use crate::json;
use crate::output::{self, Rows};
use crate::text::{Printable, clock, count, mode, person};

/// Locks fetched at once.
const PAGE: usize = 1_000;

pub(crate) async fn run(global: &Global, flags: Ls) -> Result<u8, Failure> {
    let client = Target::of(global)?.connect(global).await?;
    let (mut locks, mut more) = (Vec::new(), true);
    let mut after: Option<String> = None;
    while more && locks.len() < flags.max {
        let page = client.admin().list_locks(&flags.prefix, after.as_deref(), PAGE as u32).await?;
        after = page.items.last().map(|lock| lock.name.clone());
        more = page.more && after.is_some();
        let wanted = |lock: &Lock| !flags.waiting || lock.waiter_count > 0;
        locks.extend(page.items.into_iter().filter(wanted));
    }
    more |= locks.len() > flags.max;
    locks.truncate(flags.max);
    match global.output {
        Output::Json => {
            output::document(&json::Locks { locks: locks.iter().map(Into::into).collect(), more })?;
        }
        Output::Table if locks.is_empty() => {
            if !global.quiet {
                output::line(nothing(&flags))?;
            }
        }
        Output::Table => {
            table(&locks)?;
            if more {
                output::line(format!("… and more than these {}: see --max", flags.max))?;
            }
        }
    }
    Ok(0)
}

fn nothing(flags: &Ls) -> String {
    let what = if flags.waiting { "nobody waits for a lock" } else { "no lock is in use" };
    if flags.prefix.is_empty() {
        what.to_owned()
    } else {
        format!("{what} whose name starts with {}", Printable(&flags.prefix))
    }
}

fn table(locks: &[Lock]) -> Result<(), Failure> {
    const HEADINGS: [&str; 7] = ["LOCK", "MODE", "HOLDER", ">TOKEN", ">HELD", ">WAITING", "KIND"];
    // Most know one kind.
    let kinds = usize::from(locks.iter().any(|lock| lock.kind != LockKind::Native));
    let mut rows = Rows::new(&HEADINGS[..6 + kinds]);
    let mut add = |mut cells: Vec<String>, kind: LockKind| {
        let kind = match kind {
            LockKind::Native => "native",
            LockKind::ZooKeeper => "zookeeper",
        };
        cells.extend([kind.to_owned()].into_iter().take(kinds));
        rows.add(cells);
    };
    for lock in locks {
        let name = Printable(&lock.name).to_string();
        let waiting = match lock.waiter_count {
            0 => String::new(),
            waiters => waiters.to_string(),
        };
        let Some(hold) = lock.holds.first() else {
            let nobody = "–".to_owned();
            let none = String::new();
            add(vec![name, none.clone(), nobody, none.clone(), none, waiting], lock.kind);
            continue;
        };
        let others = match lock.hold_count {
            0 | 1 => String::new(),
            holds => format!(" and {}", count(u64::from(holds) - 1, "other")),
        };
        let holder = format!("{}{others}", person(hold));
        let (token, held) = (hold.token.to_string(), clock(hold.held));
        add(vec![name, mode(hold.mode), holder, token, held, waiting], lock.kind);
    }
    rows.print("")
}
