//! `session ls`, `session show`, `session end`.

use lockkeeper::views::Session;
use lockkeeper::{Client, SessionId};

use crate::connect::Target;
use crate::exit::{Failure, Reason};
use crate::flags::{Consent, Global, Output, SessionCommand};
use crate::json;
use crate::output::{self, Rows};
use crate::text::{Printable, clock, count, local_time, mode, seconds};
use crate::unlock::agree;

/// Sessions fetched at once.
const PAGE: u32 = 1_000;

pub(crate) async fn run(global: &Global, command: SessionCommand) -> Result<u8, Failure> {
    let client = Target::of(global)?.connect(global).await?;
    match command {
        SessionCommand::Ls { max } => list(global, &client, max).await?,
        SessionCommand::Show { id } => show(global, &client, id).await?,
        SessionCommand::End { id, consent } => end(&client, id, consent).await?,
    }
    Ok(0)
}

async fn list(global: &Global, client: &Client, max: usize) -> Result<(), Failure> {
    let (mut sessions, mut more) = (Vec::new(), true);
    while more && sessions.len() < max {
        let after = sessions.last().map(|session: &Session| session.id);
        let page = client.admin().list_sessions(after, PAGE).await?;
        more = page.more && !page.items.is_empty();
        sessions.extend(page.items);
    }
    more |= sessions.len() > max;
    sessions.truncate(max);
    if global.output == Output::Json {
        let sessions = sessions.iter().map(Into::into).collect();
        return output::document(&json::Sessions { sessions, more });
    }
    if sessions.is_empty() {
        return if global.quiet { Ok(()) } else { output::line("there are no sessions") };
    }
    let mut rows = Rows::new(&["SESSION", "WHO", "PROGRAM", "SINCE", ">LEASE", ">LEFT", ">ITEMS"]);
    for session in &sessions {
        rows.add(vec![
            session.id.to_string(),
            session.owner.to_string(),
            Printable(&session.owner.program).to_string(),
            local_time(session.opened_stamp_ms),
            seconds(session.ttl),
            session.lease_left.map_or_else(|| "?".to_owned(), seconds),
            session.item_count.to_string(),
        ]);
    }
    rows.print("")?;
    if more {
        output::line(format!("… and more than these {max}: see --max"))?;
    }
    Ok(())
}

async fn show(global: &Global, client: &Client, id: SessionId) -> Result<(), Failure> {
    let session = find(client, id).await?;
    match global.output {
        Output::Json => output::document(&json::Session::from(&session)),
        Output::Table => people(&session),
    }
}

async fn find(client: &Client, id: SessionId) -> Result<Session, Failure> {
    client.admin().get_session(id).await?.ok_or_else(|| {
        Failure::new(Reason::NotFound, format!("there is no session {id}"))
            .advise("It may have ended. `lockkeeper session ls` lists those that live.")
    })
}

fn people(session: &Session) -> Result<(), Failure> {
    output::line(format!("session {} of {}", session.id, session.owner))?;
    let mut rows = Rows::new(&[]);
    let mut add = |what: &str, value: String| rows.add(vec![what.to_owned(), value]);
    if !session.owner.program.is_empty() {
        add("program", Printable(&session.owner.program).to_string());
    }
    add("since", local_time(session.opened_stamp_ms));
    let left = session.lease_left.map_or_else(|| "?".to_owned(), seconds);
    add("lease", format!("{left} of {} left", seconds(session.ttl)));
    if session.is_revoked {
        add("revoked", "an operator has asked it to end".to_owned());
    }
    rows.print("  ")?;
    items(session)
}

/// What it holds, and what it waits for.
fn items(session: &Session) -> Result<(), Failure> {
    if session.holds.is_empty() && session.waits.is_empty() {
        return output::line("it holds nothing, and waits for nothing");
    }
    let mut rows = Rows::new(&["LOCK", "MODE", "STATE", ">FOR"]);
    for hold in &session.holds {
        let state = format!("held, token {}", hold.token);
        let lock = Printable(&hold.lock).to_string();
        rows.add(vec![lock, mode(hold.mode), state, clock(hold.held)]);
    }
    for wait in &session.waits {
        let state = format!("waiting, place {}", wait.place);
        let lock = Printable(&wait.lock).to_string();
        rows.add(vec![lock, mode(wait.mode), state, clock(wait.waited)]);
    }
    rows.print("  ")?;
    let shown = session.holds.len() + session.waits.len();
    let all = usize::try_from(session.item_count).unwrap_or(usize::MAX);
    if all > shown { output::line(format!("  … and {} more", all - shown)) } else { Ok(()) }
}

async fn end(client: &Client, id: SessionId, consent: Consent) -> Result<(), Failure> {
    let session = find(client, id).await?;
    people(&session)?;
    let (held, ttl) = (count(session.holds.len() as u64, "lock"), seconds(session.ttl));
    output::line(if consent.now {
        format!(
            "It loses {held} at once. Exclusion isn't guaranteed for up to {ttl}: until then it \
             may not know."
        )
    } else {
        format!("It is asked to end. {held} pass on when it has, in {ttl} at the latest.")
    })?;
    if !agree(consent, "End it?")? {
        return Ok(());
    }
    client.admin().revoke_session(id, consent.now).await?;
    output::line(if consent.now { "ended" } else { "asked to end" })
}
