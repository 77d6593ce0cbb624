//! `unlock`: takes a lock away from its holder, after showing who loses it and who gets it.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use lockkeeper::views::{Hold, Lock, LockKind};
use lockkeeper::{Client, Error};
use tokio::time::timeout;

use crate::connect::Target;
use crate::exit::{Failure, Reason};
use crate::flags::{Consent, Global, Unlock};
use crate::output;
use crate::text::{Printable, clock, person, seconds, session, waiting_person};

/// How much longer than the lease the passing on is waited for: the cluster ends a session a
/// little after its lease.
const PATIENCE: Duration = Duration::from_secs(5);

/// Holds and waiters that the preview looks at.
const LOOK_MAX: u32 = 1_000;

pub(crate) async fn run(global: &Global, flags: Unlock) -> Result<u8, Failure> {
    let client = Target::of(global)?.connect(global).await?;
    let lock = client.admin().get_lock(&flags.name, LOOK_MAX).await?;
    let hold = choose(&flags, lock.as_ref())?;
    preview(lock.as_ref(), hold, flags.consent)?;
    if agree(flags.consent, "Take it away?")? {
        revoke(&client, hold, flags.consent.now).await?;
    }
    Ok(0)
}

/// The hold that is meant.
fn choose<'a>(flags: &Unlock, lock: Option<&'a Lock>) -> Result<&'a Hold, Failure> {
    let name = Printable(&flags.name);
    let holds = lock.map_or(&[][..], |lock| &lock.holds);
    let Some(oldest) = holds.first() else {
        let what = format!("{name} isn't held by anybody");
        return Err(Failure::new(Reason::StaleToken, what));
    };
    if lock.is_some_and(|lock| lock.kind == LockKind::ZooKeeper) {
        let what = format!("{name} is a lock of ZooKeeper's clients: they can't be asked for it");
        let advice = format!(
            "Nothing was changed. Ending the holder's session passes the lock on: \
             `lockkeeper session end {}`.",
            session(oldest.session, oldest.znode.as_deref())
        );
        return Err(Failure::new(Reason::Usage, what).advise(advice));
    }
    let by = format!("it is held by {}, token {}", person(oldest), oldest.token);
    let Some(token) = flags.if_token else {
        let what = format!("which hold of {name} is meant? {by}");
        let advice = format!(
            "Say it by its token, so that a newer hold is left alone: \
             `lockkeeper unlock {name} --if-token {}`.",
            oldest.token
        );
        return Err(Failure::new(Reason::Usage, what).advise(advice));
    };
    holds.iter().find(|hold| hold.token == token).ok_or_else(|| {
        let what = format!("no hold of {name} has token {token} (any more): {by}");
        Failure::new(Reason::StaleToken, what).advise("Nothing was changed.")
    })
}

fn preview(lock: Option<&Lock>, hold: &Hold, consent: Consent) -> Result<(), Failure> {
    let (name, ttl) = (Printable(&hold.lock), seconds(hold.ttl));
    let left = hold.lease_left.map_or_else(String::new, |left| format!(", {} left", seconds(left)));
    output::line(format!(
        "{name} is held by {} for {}, token {} (lease {ttl}{left})",
        person(hold),
        clock(hold.held),
        hold.token
    ))?;
    output::line(if consent.now {
        format!(
            "  It loses the lock at once. Exclusion isn't guaranteed for up to {ttl}: until then \
             it may not know."
        )
    } else {
        format!(
            "  It is asked to give the lock back. The lock passes on when it has, in {ttl} at the \
             latest."
        )
    })?;
    let waiters = lock.map_or(&[][..], |lock| &lock.waiters);
    output::line(match waiters.first() {
        Some(next) => {
            format!("  Next in line: {}, for {}", waiting_person(next), clock(next.waited))
        }
        None => "  Nobody waits for it: it will be free.".to_owned(),
    })
}

/// Whether it is to be done: by `--yes`, or by a person's answer.
///
/// # Errors
///
/// [`Reason::Usage`] if nobody can be asked.
pub(crate) fn agree(consent: Consent, question: &str) -> Result<bool, Failure> {
    if consent.dry_run {
        output::line("  Nothing was changed (--dry-run).")?;
        return Ok(false);
    }
    if consent.yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::new(Reason::Usage, "nobody can be asked: this is no terminal")
            .advise("Nothing was changed. Say --yes if this is meant."));
    }
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let is_agreed = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if !is_agreed {
        output::line("Nothing was changed.")?;
    }
    Ok(is_agreed)
}

/// Takes it away, and waits until it has passed on.
async fn revoke(client: &Client, hold: &Hold, now: bool) -> Result<(), Failure> {
    // Before the request, so that nothing is missed.
    let mut events = client.admin().watch(&hold.lock).await?;
    client.admin().revoke(&hold.lock, hold.token, now).await?;
    let passed_on = async {
        loop {
            let event = events.next().await?;
            if event.token == Some(hold.token)
                && matches!(event.event.as_str(), "released" | "lost")
            {
                return Ok::<_, Error>(event);
            }
        }
    };
    let name = Printable(&hold.lock);
    match timeout(hold.ttl + PATIENCE, passed_on).await {
        Ok(Ok(event)) if event.event == "released" => {
            output::line(format!("{name}: given back by its holder"))
        }
        Ok(Ok(event)) => output::line(format!("{name}: taken away ({})", event.reason)),
        Ok(Err(_)) | Err(_) => output::line(format!(
            "{name}: asked for; it hasn't passed on yet (see `lockkeeper who {name}`)"
        )),
    }
}
