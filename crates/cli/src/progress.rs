//! How waiting looks, on stderr: one line that is redrawn on a terminal; otherwise a line at the
//! start, at each change, and then ever more rarely; or JSON, one object a line.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use lockkeeper::views::{Hold, QueueView};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::flags::{Global, ProgressForm};
use crate::json;
use crate::text::{self, Printable, clock, person};

/// When a plain line is due although nothing has changed, since the start; later every 5 minutes.
const PLAIN_LINES: [Duration; 3] =
    [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(300)];

/// Tells people on stderr how it goes with one lock.
pub(crate) struct Progress {
    form: Form,
    is_quiet: bool,
    is_verbose: bool,
    /// The lock's name as it is, and as it can be printed.
    name: String,
    lock: String,
    begun: Instant,
    /// What was last known of the place, and when.
    place: Option<(Place, Instant)>,
    /// When the next line is due.
    due: Option<Instant>,
    /// The terminal's last line is ours, without an end.
    is_drawn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Terminal,
    Plain,
    Json,
    Silent,
}

/// A place in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// 1 for the next.
    pub(crate) place: u32,
    /// How many wait; `None` if that isn't known.
    pub(crate) waiters: Option<u32>,
    /// The oldest hold.
    pub(crate) holder: Option<Hold>,
    /// How many hold it.
    pub(crate) hold_count: u32,
}

impl From<QueueView> for Place {
    fn from(view: QueueView) -> Self {
        let QueueView { place, holder, hold_count, .. } = view;
        Self { place, waiters: None, holder, hold_count }
    }
}

impl Progress {
    pub(crate) fn new(form: ProgressForm, global: &Global, lock: &str) -> Self {
        let form = match form {
            ProgressForm::Auto | ProgressForm::Plain | ProgressForm::None if global.quiet => {
                Form::Silent
            }
            ProgressForm::Auto if io::stderr().is_terminal() => Form::Terminal,
            ProgressForm::Auto | ProgressForm::Plain => Form::Plain,
            ProgressForm::Json => Form::Json,
            ProgressForm::None => Form::Silent,
        };
        Self {
            form,
            is_quiet: global.quiet,
            is_verbose: global.verbose,
            name: lock.to_owned(),
            lock: Printable(lock).to_string(),
            begun: Instant::now(),
            place: None,
            due: None,
            is_drawn: false,
        }
    }

    /// Whether anybody wants to know the place.
    pub(crate) fn is_shown(&self) -> bool {
        self.form != Form::Silent
    }

    /// It waits, or its place has changed.
    pub(crate) fn waits(&mut self, place: Place) {
        let is_news = self.place.as_ref().is_none_or(|(known, _)| {
            let holder = |place: &Place| place.holder.as_ref().map(|hold| hold.token);
            known.place != place.place || holder(known) != holder(&place)
        });
        self.place = Some((place, Instant::now()));
        match self.form {
            Form::Terminal => self.show(),
            Form::Plain | Form::Json if is_news => self.show(),
            Form::Plain | Form::Json | Form::Silent => {}
        }
    }

    /// Completes when the line is due to be shown again: [`Progress::show`].
    pub(crate) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Shows the place.
    pub(crate) fn show(&mut self) {
        let Some((place, seen)) = &self.place else { return };
        let now = Instant::now();
        let waited = now - self.begun;
        match self.form {
            Form::Terminal => {
                let line = format!("⏳ {}", self.sentence(place, waited, now - *seen));
                self.draw(&line);
                self.due = Some(now + Duration::from_secs(1));
            }
            Form::Plain => {
                let line = self.sentence(place, waited, now - *seen);
                say(&format!("lockkeeper: {line}"));
                self.due = Some(self.begun + next_plain_line(waited));
            }
            Form::Json => {
                let mut event = self.event("waiting");
                event["place"] = json!(place.place);
                event["waiter_count"] = json!(place.waiters);
                event["holder"] = json!(place.holder.as_ref().map(json::Holder::from));
                event["waited_ms"] = json!(json::ms(waited));
                say(&event.to_string());
                self.due = Some(self.begun + next_plain_line(waited));
            }
            Form::Silent => {}
        }
    }

    fn sentence(&self, place: &Place, waited: Duration, since_seen: Duration) -> String {
        let mut line = format!("{}: place {}", self.lock, place.place);
        if let Some(waiters) = place.waiters {
            line.push_str(&format!(" of {waiters}"));
        }
        if waited >= Duration::from_secs(1) {
            line.push_str(&format!(", {} so far", clock(waited)));
        }
        if let Some(hold) = &place.holder {
            let held = clock(hold.held + since_seen);
            line.push_str(&format!("; held by {} for {held}", person(hold)));
            if place.hold_count > 1 {
                line.push_str(&format!(" and {} more", place.hold_count - 1));
            }
            if hold.is_revoked {
                line.push_str(", who was asked to give it up");
            }
        }
        line
    }

    /// The lock is held. Only worth a word after a wait, or to those who want more.
    pub(crate) fn acquired(&mut self, token: u64) {
        let waited = self.begun.elapsed();
        let has_waited = self.place.take().is_some();
        self.due = None;
        let after = if has_waited { format!(" after {}", clock(waited)) } else { String::new() };
        let sentence = format!("{}: yours{after} (token {token})", self.lock);
        match self.form {
            Form::Json => {
                let mut event = self.event("acquired");
                event["token"] = json!(token);
                event["waited_ms"] = json!(json::ms(waited));
                say(&event.to_string());
            }
            Form::Terminal if has_waited => {
                self.erase();
                say(&format!("✔ {sentence}"));
            }
            Form::Plain if has_waited => say(&format!("lockkeeper: {sentence}")),
            _ => self.detail(&sentence),
        }
    }

    /// The lock was given back.
    pub(crate) fn released(&mut self, held: Duration) {
        if self.form == Form::Json {
            let mut event = self.event("released");
            event["held_ms"] = json!(json::ms(held));
            say(&event.to_string());
        } else {
            self.detail(&format!("{}: released after {}", self.lock, clock(held)));
        }
    }

    /// Something that must be known whatever the form: the lock is lost, and the command runs on.
    pub(crate) fn warn(&mut self, what: &str) {
        self.erase();
        if self.form == Form::Json {
            let mut event = self.event("warning");
            event["message"] = json!(what);
            say(&event.to_string());
        } else {
            say(&format!("lockkeeper: {}: {what}.", self.lock));
        }
    }

    /// Something worth knowing.
    pub(crate) fn note(&mut self, what: &str) {
        if !self.is_quiet && self.form != Form::Json {
            say(&format!("lockkeeper: {}: {what}.", self.lock));
        }
    }

    /// Something for those who want to know more.
    fn detail(&self, what: &str) {
        if self.is_verbose {
            say(&format!("lockkeeper: {what}"));
        }
    }

    fn event(&self, event: &str) -> Value {
        json!({ "event": event, "lock": self.name, "time": text::now_rfc3339() })
    }

    fn draw(&mut self, line: &str) {
        let line = fitted(line, columns());
        let _ = write!(io::stderr(), "\r\x1b[2K{line}");
        self.is_drawn = true;
    }

    /// Takes the redrawn line away.
    pub(crate) fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}

/// Nobody can be told that stderr is gone.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn next_plain_line(waited: Duration) -> Duration {
    let often = PLAIN_LINES[2];
    PLAIN_LINES.into_iter().find(|line| *line > waited).unwrap_or_else(|| {
        let rounds = waited.as_secs() / often.as_secs();
        often * u32::try_from(rounds + 1).unwrap_or(u32::MAX)
    })
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.map_or(80, |size| usize::from(size.ws_col)).max(20)
}

/// Cut to less than `columns`, so that a redrawn line never wraps.
fn fitted(line: &str, columns: usize) -> String {
    if line.chars().count() < columns {
        return line.to_owned();
    }
    let mut line: String = line.chars().take(columns.saturating_sub(2)).collect();
    line.push('…');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_come_ever_more_rarely() {
        let next = |seconds| next_plain_line(Duration::from_secs(seconds)).as_secs();
        assert_eq!([next(0), next(9), next(10), next(59), next(60)], [10, 10, 60, 60, 300]);
        assert_eq!([next(300), next(599), next(600)], [600, 600, 900]);
    }

    #[test]
    fn a_redrawn_line_never_wraps() {
        assert_eq!(fitted("short", 20), "short");
        assert_eq!(fitted("exactly twenty chars", 20), "exactly twenty cha…");
    }
}
