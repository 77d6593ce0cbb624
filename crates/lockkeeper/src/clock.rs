//! The clock that leases are counted on.
//!
//! A lease must run out while its holder sleeps, so it is counted on a clock that goes on during
//! suspend: `CLOCK_BOOTTIME` on Linux, which is also the servers' clock. Alarms are timers of that
//! same clock, so that a machine which wakes from suspend finds its lease over at once and not
//! after the rest of a timer that slept with it.
//!
//! The wall clock is only compared with it: a virtual machine that was paused by its hypervisor
//! may see no time pass on any clock but the wall's, once that is set right again.
//!
//! Patience (`wait_at_most`) isn't a matter of safety and is tokio's business, not this module's.
//!
//! Not promised: elsewhere than on Linux an alarm is a tokio timer, which may ring late after a
//! suspend; whoever asks for the state of a guard is still told by the clock.

use std::fmt;
use std::io;
use std::ops::Add;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// A moment on the clock that counts suspend, in nanoseconds since this machine was booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boottime(u64);

impl Boottime {
    /// Later than every other: never.
    pub(crate) const MAX: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot: what `clock_gettime(CLOCK_BOOTTIME)` gives in this machine's other
    /// processes.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero if it isn't earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Boottime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// One look at both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What leases are counted on.
    pub boottime: Boottime,
    /// Nanoseconds since the Unix epoch, only to be compared with `boottime`.
    pub wall_nanos: u64,
}

/// Time, as a client takes it from the world. A simulator brings its own.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Now, on the clock that leases are counted on. It is asked with every request, so it must be
    /// cheap.
    fn boottime(&self) -> Boottime;

    /// Nanoseconds since the Unix epoch.
    fn wall_nanos(&self) -> u64;

    /// One look at both.
    fn now(&self) -> Moment {
        Moment { boottime: self.boottime(), wall_nanos: self.wall_nanos() }
    }

    /// Which boot of which machine this clock counts from. A server that names the same one reads
    /// the same clock; empty if that can't be known.
    fn boot_id(&self) -> String {
        String::new()
    }

    /// A new alarm of this clock, made inside the runtime that will poll it.
    ///
    /// # Errors
    ///
    /// The system's, if it has no timer to give.
    fn alarm(&self) -> io::Result<Box<dyn Alarm>>;
}

/// A timer of a [`Clock`].
pub trait Alarm: Send + 'static {
    /// Ready once the clock has reached `at`. Until then the task of `cx` is woken when it does;
    /// only the newest `at` counts.
    fn poll_at(&mut self, at: Boottime, cx: &mut Context<'_>) -> Poll<()>;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boottime(&self) -> Boottime {
        system::boottime()
    }

    fn wall_nanos(&self) -> u64 {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
    }

    fn boot_id(&self) -> String {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    }

    fn alarm(&self) -> io::Result<Box<dyn Alarm>> {
        Ok(Box::new(system::SystemAlarm::new()?))
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll, ready};

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
    };
    use tokio::io::unix::AsyncFd;

    use super::{Alarm, Boottime};

    const NANOS_PER_SECOND: u64 = 1_000_000_000;

    pub(super) fn boottime() -> Boottime {
        let now = rustix::time::clock_gettime(ClockId::Boottime);
        Boottime(now.tv_sec.unsigned_abs() * NANOS_PER_SECOND + now.tv_nsec.unsigned_abs())
    }

    /// A `timerfd` of the boot-time clock: it expires at once when a suspended machine wakes late.
    pub(super) struct SystemAlarm {
        timer: AsyncFd<OwnedFd>,
        armed: Option<Boottime>,
    }

    impl SystemAlarm {
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?;
            #[expect(
                deprecated,
                reason = "unsound only for a type whose descriptor can change under it, and its \
                          successor is `unsafe`, which this workspace denies"
            )]
            let timer = AsyncFd::new(timer)?;
            Ok(Self { timer, armed: None })
        }

        fn arm(&mut self, at: Boottime) -> io::Result<()> {
            let value = Timespec {
                tv_sec: i64::try_from(at.0 / NANOS_PER_SECOND).unwrap_or(i64::MAX),
                // Below 10⁹, so it fits; and not all zeros, which would disarm the timer.
                tv_nsec: (at.0 % NANOS_PER_SECOND).max(1).cast_signed(),
            };
            let once =
                Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
            self.armed = Some(at);
            Ok(())
        }
    }

    impl Alarm for SystemAlarm {
        fn poll_at(&mut self, at: Boottime, cx: &mut Context<'_>) -> Poll<()> {
            if boottime() >= at {
                return Poll::Ready(());
            }
            // A timer that can't be set rings at once: looking at the clock too often is harmless,
            // sleeping past a deadline isn't.
            if self.armed != Some(at) && self.arm(at).is_err() {
                return Poll::Ready(());
            }
            loop {
                let Ok(mut expired) = ready!(self.timer.poll_read_ready(cx)) else {
                    return Poll::Ready(());
                };
                // The readiness may be an earlier setting's; reading tells, and clears it.
                let mut expirations = [0; 8];
                match expired.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?)) {
                    Ok(_) => {
                        self.armed = None;
                        return Poll::Ready(());
                    }
                    Err(_not_yet) => {}
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::future::Future;
    use std::io;
    use std::pin::Pin;
    use std::sync::OnceLock;
    use std::task::{Context, Poll};
    use std::time::Instant;

    use tokio::time::Sleep;

    use super::{Alarm, Boottime};

    /// The clock behind `Instant`, which counts suspend on some systems and not on others; rebased
    /// so that it has a number.
    pub(super) fn boottime() -> Boottime {
        static START: OnceLock<Instant> = OnceLock::new();
        Boottime::default() + START.get_or_init(Instant::now).elapsed()
    }

    pub(super) struct SystemAlarm {
        sleep: Option<(Boottime, Pin<Box<Sleep>>)>,
    }

    impl SystemAlarm {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self { sleep: None })
        }
    }

    impl Alarm for SystemAlarm {
        fn poll_at(&mut self, at: Boottime, cx: &mut Context<'_>) -> Poll<()> {
            let now = boottime();
            if now >= at {
                return Poll::Ready(());
            }
            if self.sleep.as_ref().is_none_or(|(armed, _)| *armed != at) {
                self.sleep = Some((at, Box::pin(tokio::time::sleep(at.since(now)))));
            }
            match &mut self.sleep {
                Some((_, sleep)) => sleep.as_mut().poll(cx),
                None => Poll::Ready(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn an_alarm_rings_at_its_moment_and_not_before() {
        let mut alarm = SystemClock.alarm().unwrap();
        for _ in 0..3 {
            let at = SystemClock.boottime() + Duration::from_millis(20);
            poll_fn(|cx| alarm.poll_at(at, cx)).await;
            assert!(SystemClock.boottime() >= at);
        }
    }

    #[tokio::test]
    async fn only_the_newest_setting_of_an_alarm_counts() {
        let mut alarm = SystemClock.alarm().unwrap();
        let far = SystemClock.boottime() + Duration::from_secs(3_600);
        let near = SystemClock.boottime() + Duration::from_millis(20);
        poll_fn(|cx| {
            assert!(alarm.poll_at(far, cx).is_pending());
            alarm.poll_at(near, cx)
        })
        .await;
        assert!(SystemClock.boottime() >= near);
    }
}
