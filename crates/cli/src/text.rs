//! Words and figures for people.

use std::fmt::{self, Write as _};
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use lockkeeper::views::{Hold, Owner, Waiter};
use lockkeeper::{Mode, SessionId};

/// Text from elsewhere, with everything escaped that could play with a terminal: control
/// characters, and those that change the direction of writing.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() || turns_direction(c) {
                write!(f, "{}", c.escape_default())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

const fn turns_direction(c: char) -> bool {
    matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `alice@build-7 (pid 4121, "release 8.2")`: who holds, and what for.
pub(crate) fn person(hold: &Hold) -> String {
    owner_for(&hold.owner, &hold.purpose)
}

/// The same of somebody who waits.
pub(crate) fn waiting_person(waiter: &Waiter) -> String {
    owner_for(&waiter.owner, &waiter.purpose)
}

/// An owner with the purpose of one request, which says more than the session's.
fn owner_for(owner: &Owner, purpose: &str) -> String {
    let mut owner = owner.clone();
    if !purpose.is_empty() {
        purpose.clone_into(&mut owner.purpose);
    }
    owner.to_string()
}

/// `exclusive`, `shared`, `2 of 5`.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        // How many there are, only ZooKeeper's clients themselves know.
        Mode::Permits { take, of: 0 } => count(take.into(), "permit"),
        Mode::Permits { take, of } => format!("{take} of {of}"),
    }
}

/// A session as those call it who opened it: ZooKeeper's clients write `0x`.
pub(crate) fn session(id: SessionId, znode: Option<&str>) -> String {
    if znode.is_some() { format!("0x{:x}", id.0) } else { id.to_string() }
}

/// A time that runs: `0:41`, `3:10`, `1:02:03`, `2d 3:04:05`.
pub(crate) fn clock(duration: Duration) -> String {
    let all = duration.as_secs();
    let (seconds, minutes, hours) = (all % 60, all / 60 % 60, all / 3_600 % 24);
    match (all / 86_400, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        (days, _) => format!("{days}d {hours}:{minutes:02}:{seconds:02}"),
    }
}

/// A short span: `40 ms`, `0.4 s`, `3 s`, `14 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms < 100 && ms > 0 {
        format!("{ms} ms")
    } else if ms >= 10_000 || ms.is_multiple_of(1_000) {
        format!("{} s", duration.as_secs())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// To whole seconds if there are some, or milliseconds.
pub(crate) fn rounded(duration: Duration) -> Duration {
    let whole = Duration::from_secs(duration.as_secs());
    if whole.is_zero() {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    } else {
        whole
    }
}

/// A stamp of the cluster, in RFC 3339 and UTC, for programs.
pub(crate) fn rfc3339(stamp_ms: u64) -> String {
    timestamp(stamp_ms).to_string()
}

/// This moment, by this machine's clock, in the same form.
pub(crate) fn now_rfc3339() -> String {
    format!("{:.3}", Timestamp::now())
}

/// A stamp of the cluster in the time zone of whoever reads it: `14:02:11`, with the date before
/// it unless that is today's.
pub(crate) fn local_time(stamp_ms: u64) -> String {
    let zone = TimeZone::system();
    let time = timestamp(stamp_ms).to_zoned(zone.clone());
    let today = Zoned::new(Timestamp::now(), zone).date();
    let form = if time.date() == today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.strftime(form).to_string()
}

fn timestamp(stamp_ms: u64) -> Timestamp {
    let ms = i64::try_from(stamp_ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}

/// `1 lock`, `2 locks`.
pub(crate) fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_with_the_terminal() {
        assert_eq!(Printable("a/b\u{1b}[2J\n\u{202e}c").to_string(), "a/b\\u{1b}[2J\\n\\u{202e}c");
        assert_eq!(Printable("täglich/批").to_string(), "täglich/批");
    }

    #[test]
    fn times_read_like_a_clock() {
        let text = |s| clock(Duration::from_secs(s));
        assert_eq!([text(41), text(190), text(3_723)], ["0:41", "3:10", "1:02:03"]);
        assert_eq!(text(2 * 86_400 + 61), "2d 0:01:01");
        let text = |ms| seconds(Duration::from_millis(ms));
        assert_eq!([text(8_940), text(14_400), text(3_000)], ["8.9 s", "14 s", "3 s"]);
        assert_eq!([text(0), text(7), text(430)], ["0 s", "7 ms", "0.4 s"]);
    }

    #[test]
    fn stamps_are_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_500), "1970-01-01T00:00:01.5Z");
    }
}
