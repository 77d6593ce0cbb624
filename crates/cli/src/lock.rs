//! `lock`, `try`, `sem` and `rw`: wait for a lock, run a command under it, give it back.

use std::ffi::OsString;
use std::time::Duration;

use lockkeeper::views::Owner;
use lockkeeper::{Client, ClientBuilder, Error, Guard, LossReason, Mode, SessionId, State};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::connect::Target;
use crate::exit::{Failure, Reason};
use crate::flags::{self, Global, Holding, Output};
use crate::progress::{Place, Progress};
use crate::signals::Signals;
use crate::supervisor::{self, Job};
use crate::{output, text};

/// The longest grace by default.
const GRACE_MAX: Duration = Duration::from_secs(5);
/// The grace is at most this part of a lease. A lease in good health has more than a half left, so
/// a command is never stopped without need.
const GRACE_PER_TTL: u32 = 4;
/// What the cluster takes of a command line, in bytes.
const PROGRAM_BYTES_MAX: usize = 256;
/// A place is asked for again, after something has changed in the queue, not sooner than this:
/// a second for each place before it, so that many who look on don't make much work.
const LOOK_PAUSE_PER_PLACE: Duration = Duration::from_secs(1);
const LOOK_PLACES_MAX: u32 = 60;

/// What one of the four commands asks for.
#[derive(Debug)]
pub(crate) struct Wanted {
    name: String,
    mode: Mode,
    /// The longest wait; `None` for as long as it takes.
    wait: Option<Duration>,
    holding: Holding,
}

impl From<flags::Lock> for Wanted {
    fn from(lock: flags::Lock) -> Self {
        let wait = lock.waiting.limit();
        Self { name: lock.name, mode: shared(lock.shared), wait, holding: lock.holding }
    }
}

impl From<flags::Try> for Wanted {
    fn from(lock: flags::Try) -> Self {
        let wait = Some(Duration::ZERO);
        Self { name: lock.name, mode: shared(lock.shared), wait, holding: lock.holding }
    }
}

impl From<flags::Sem> for Wanted {
    fn from(sem: flags::Sem) -> Self {
        let mode = Mode::Permits { take: sem.take, of: sem.permits };
        Self { name: sem.name, mode, wait: sem.waiting.limit(), holding: sem.holding }
    }
}

impl From<flags::Rw> for Wanted {
    fn from(rw: flags::Rw) -> Self {
        Self { name: rw.name, mode: shared(rw.read), wait: rw.waiting.limit(), holding: rw.holding }
    }
}

const fn shared(shared: bool) -> Mode {
    if shared { Mode::Shared } else { Mode::Exclusive }
}

/// Does it all; returns the exit code of the command.
pub(crate) async fn run(global: &Global, wanted: Wanted) -> Result<u8, Failure> {
    let grace = grace(&wanted.holding)?;
    check_permits(wanted.mode)?;
    let mut signals = Signals::of_the_supervisor()?;
    let target = Target::of(global)?;
    let owner = owner(&wanted.holding);
    let with_lease = |client: ClientBuilder| client.ttl(wanted.holding.ttl).owner(owner.clone());
    let client = target.connect_as(global, with_lease).await?;
    target.say_if_implicit(global);

    let mut progress = Progress::new(wanted.holding.progress, global, &wanted.name);
    let begun = Instant::now();
    let waited = tokio::select! {
        waited = wait(&client, &wanted, &mut progress) => {
            waited.map_err(|error| not_acquired(error, &wanted))
        }
        signal = signals.next_end() => Err(interrupted(signal, &wanted)),
    };
    let guard = match waited {
        Ok(guard) => guard,
        Err(failure) => {
            progress.erase();
            client.close().await;
            return Err(failure);
        }
    };
    let acquired = Acquired { waited: begun.elapsed(), at: text::now_rfc3339(), url: target.url() };
    progress.acquired(guard.token());
    let ended = if wanted.holding.command.is_empty() {
        hold(global, &wanted, &guard, &mut signals).await
    } else {
        let job = Job {
            command: &wanted.holding.command,
            variables: variables(&guard, &owner, &acquired),
            grace,
            signal: wanted.holding.signal,
            on_lost: wanted.holding.on_lost.clone(),
            max_hold: wanted.holding.max_hold,
        };
        supervisor::run(&job, &guard, &mut signals, &mut progress).await
    };
    give_back(&client, guard, begun.elapsed() - acquired.waited, &mut progress).await;
    ended.map_err(|failure| failure.about(&wanted.name))
}

/// The grace for this lease.
///
/// # Errors
///
/// A grace that doesn't fit into the lease, with the numbers.
fn grace(holding: &Holding) -> Result<Duration, Failure> {
    let most = holding.ttl / GRACE_PER_TTL;
    match holding.grace {
        None => Ok(GRACE_MAX.min(most)),
        Some(grace) if grace <= most => Ok(grace),
        Some(grace) => {
            let (ttl, needed) = (holding.ttl, grace.saturating_mul(GRACE_PER_TTL));
            let [grace, ttl, most, needed] =
                [grace, ttl, most, needed].map(humantime::format_duration);
            let what = format!(
                "--grace {grace} doesn't fit into a lease of {ttl}: the command must be stopped \
                 before the lease may pass on, so at most a quarter of it ({most}) is for that"
            );
            let advice = format!("Use --ttl {needed} or more, or --grace {most} or less.");
            Err(Failure::new(Reason::Usage, what).advise(advice))
        }
    }
}

/// The cluster would refuse it, too; but this needs no cluster.
fn check_permits(mode: Mode) -> Result<(), Failure> {
    match mode {
        Mode::Permits { take, of } if take > of => {
            let what = format!("--take {take} can never be had: there are --permits {of}");
            Err(Failure::new(Reason::Usage, what))
        }
        Mode::Permits { .. } | Mode::Exclusive | Mode::Shared => Ok(()),
    }
}

/// Who this is: the process, the command that it runs, and what for.
fn owner(holding: &Holding) -> Owner {
    let mut owner = Owner::of_this_process();
    if owner.user.is_empty() {
        owner.user = format!("uid {}", rustix::process::getuid().as_raw());
    }
    owner.purpose.clone_from(&holding.purpose);
    if !holding.command.is_empty() {
        owner.program = program(&holding.command);
    }
    owner
}

/// A command line as one text that the cluster takes.
fn program(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut line = words.join(" ");
    if line.len() > PROGRAM_BYTES_MAX {
        let room = PROGRAM_BYTES_MAX - '…'.len_utf8();
        let whole = line.char_indices().map(|(at, c)| at + c.len_utf8());
        let end = whole.take_while(|end| *end <= room).last().unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

// ------------------------------------------------------------------ waiting

async fn wait(client: &Client, wanted: &Wanted, progress: &mut Progress) -> Result<Guard, Error> {
    let (tell, mut places) = watch::channel(None);
    let mut request = client.lock(&wanted.name).purpose(&wanted.holding.purpose);
    request = match wanted.mode {
        Mode::Exclusive => request,
        Mode::Shared => request.shared(),
        Mode::Permits { take, of } => request.permits(take, of),
    };
    if let Some(limit) = wanted.wait {
        request = request.wait_at_most(limit);
    }
    if progress.is_shown() {
        let tell = tell.clone();
        request = request.on_wait(move |view| {
            tell.send_replace(Some(Place::from(view.clone())));
        });
    }
    let mut acquiring = std::pin::pin!(request.acquire());
    let mut following = std::pin::pin!(follow(client, &wanted.name, &tell));
    let mut is_followed = progress.is_shown();
    loop {
        tokio::select! {
            biased;
            acquired = &mut acquiring => return acquired,
            _ = places.changed() => {
                if let Some(place) = places.borrow_and_update().clone() {
                    progress.waits(place);
                }
            }
            // For the eyes only: if it fails, the place that was known last stays.
            _ = &mut following, if is_followed => is_followed = false,
            () = progress.due() => progress.show(),
        }
    }
}

/// Why the wait was in vain.
fn not_acquired(error: Error, wanted: &Wanted) -> Failure {
    if let Error::Lost(reason) = error {
        let lock = text::Printable(&wanted.name);
        let what = format!("not acquired: the place in line for {lock} is lost: {reason}");
        return Failure::new(Reason::PlaceLost, what);
    }
    // The cluster's own words name the lock already.
    let is_named = matches!(error, Error::Refused(_));
    let failure = Failure::from(error);
    if failure.is_conflict() {
        failure.with_exit_code(wanted.holding.conflict_exit_code)
    } else if is_named {
        failure
    } else {
        failure.about(&wanted.name)
    }
}

/// Somebody has lost patience.
fn interrupted(signal: Signal, wanted: &Wanted) -> Failure {
    let number = u8::try_from(signal.as_raw()).unwrap_or(0);
    let what = format!("interrupted while waiting for {}", text::Printable(&wanted.name));
    Failure::new(Reason::Interrupted(number), what).advise("The place in line is given up.")
}

/// Follows the queue after the first place was told, and tells each change of it.
async fn follow(
    client: &Client,
    name: &str,
    places: &watch::Sender<Option<Place>>,
) -> Result<(), Error> {
    let _ = places.subscribe().wait_for(Option::is_some).await;
    let mut changes = client.admin().watch(name).await?;
    let mut looked = None;
    loop {
        if let Some(place) = look(client, name).await? {
            looked = Some((place.place, Instant::now()));
            places.send_replace(Some(place));
        }
        loop {
            let change = changes.next().await?;
            if change.lock == name && change.event != "queued" {
                break;
            }
        }
        if let Some((place, at)) = looked {
            let pause = LOOK_PAUSE_PER_PLACE * place.clamp(1, LOOK_PLACES_MAX);
            sleep_until(at + pause).await;
        }
    }
}

/// Where this client stands now; `None` if it doesn't wait any more.
async fn look(client: &Client, name: &str) -> Result<Option<Place>, Error> {
    let Some(session) = client.session() else { return Ok(None) };
    let Some(lock) = client.admin().get_lock(name, 1).await? else { return Ok(None) };
    let Some(session) = client.admin().get_session(session.id).await? else { return Ok(None) };
    let Some(own) = session.waits.into_iter().find(|wait| wait.lock == name) else {
        return Ok(None);
    };
    let waiters = Some(lock.waiter_count);
    let (holder, hold_count) = (lock.holds.into_iter().next(), lock.hold_count);
    Ok(Some(Place { place: own.place, waiters, holder, hold_count }))
}

// ------------------------------------------------------------------ holding

/// How the lock was acquired, for the command.
struct Acquired {
    waited: Duration,
    at: String,
    url: String,
}

/// What the command finds in its environment.
fn variables(guard: &Guard, owner: &Owner, acquired: &Acquired) -> Vec<(&'static str, String)> {
    let session = guard.session();
    vec![
        ("LOCKKEEPER_LOCK", guard.name().to_owned()),
        ("LOCKKEEPER_TOKEN", guard.token().to_string()),
        ("LOCKKEEPER_SESSION", SessionId::to_string(&session.id)),
        ("LOCKKEEPER_OWNER", owner.to_string()),
        ("LOCKKEEPER_ACQUIRED_AT", acquired.at.clone()),
        ("LOCKKEEPER_WAITED_MS", acquired.waited.as_millis().to_string()),
        ("LOCKKEEPER_TTL_MS", session.ttl.as_millis().to_string()),
        ("LOCKKEEPER_URL", acquired.url.clone()),
    ]
}

/// Without a command: prints the token, and holds until a signal.
async fn hold(
    global: &Global,
    wanted: &Wanted,
    guard: &Guard,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    match global.output {
        Output::Table => output::line(guard.token())?,
        Output::Json => output::line(json!({
            "lock": guard.name(),
            "token": guard.token(),
            "session": guard.session().id.to_string(),
        }))?,
    }
    let max_hold = async {
        match wanted.holding.max_hold {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signals.next_end() => Ok(0),
        reason = guard.lost() => Err(lost(reason)),
        () = guard.revoked() => Err(match guard.state() {
            State::Lost(reason) => lost(reason),
            State::Held | State::Suspended { .. } => {
                let what = "REVOKED: an operator asked for it back, and it was given back";
                Failure::new(Reason::Revoked, what)
            }
        }),
        () = max_hold => Ok(0),
    }
}

fn lost(reason: LossReason) -> Failure {
    Failure::new(Reason::Lost, format!("LOST: {reason}"))
        .advise("Whoever holds the lock next has a greater token.")
}

/// Gives the lock back and ends the session. What the command did under the lock is done, so this
/// changes nothing about how the program ends.
async fn give_back(client: &Client, guard: Guard, held: Duration, progress: &mut Progress) {
    let left = guard.remaining();
    match guard.release().await {
        Ok(_) => progress.released(held),
        Err(Error::Lost(_)) => {}
        Err(error) => {
            let left = text::seconds(left);
            progress.note(&format!("can't be given back ({error}); it passes on within {left}"));
        }
    }
    client.close().await;
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn holding(options: &[&str]) -> Holding {
        let line = ["lockkeeper", "lock", "x"].iter().chain(options);
        match flags::Cli::parse_from(line).command {
            flags::Command::Lock(lock) => lock.holding,
            _ => panic!("lock"),
        }
    }

    #[test]
    fn grace_is_a_quarter_of_the_lease_and_at_most_five_seconds_unless_given() {
        let grace = |options: &[&str]| grace(&holding(options)).map_err(|error| error.to_string());
        assert_eq!(grace(&[]), Ok(Duration::from_secs(5)));
        assert_eq!(grace(&["--ttl", "2s"]), Ok(Duration::from_millis(500)));
        assert_eq!(grace(&["--ttl", "5min"]), Ok(Duration::from_secs(5)));
        assert_eq!(grace(&["--ttl", "60s", "--grace", "15s"]), Ok(Duration::from_secs(15)));
        let refusal = grace(&["--grace", "6s"]).unwrap_err();
        for part in ["--grace 6s", "lease of 20s", "(5s)", "--ttl 24s", "[LK-USAGE]"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
    }

    #[test]
    fn a_long_command_line_is_cut_between_characters() {
        let long = program(&["échos".repeat(100).into()]);
        assert!(long.len() <= PROGRAM_BYTES_MAX && long.ends_with('…'), "{long}");
        assert_eq!(program(&["a".into(), "b c".into()]), "a b c");
    }
}
