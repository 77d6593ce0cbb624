//! True time, and what the machines' clocks make of it.
//!
//! Each process runs on a tokio runtime whose clock is paused and moved by the world alone. A
//! machine's clock counts that runtime's time from where it stood when the process began, at the
//! machine's own rate; so timers, deadlines and leases of one machine agree with each other, and
//! with no other machine's.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper::clock::{Alarm, Boottime};
use lockkeeper_node::Monotonic;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

use crate::Nanos;

const MILLI: u64 = 1_000_000;

/// The wall clocks begin here, in milliseconds since the Unix epoch: 3:00 on some night.
const WALL_MS: i64 = 1_700_000_000_000;

/// True time, as the world moves it. Clones show the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrueTime(Arc<AtomicU64>);

impl TrueTime {
    pub(crate) fn now(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: Nanos) {
        self.0.store(now, Ordering::Relaxed);
    }
}

/// One machine's clock during one process's life.
#[derive(Debug)]
pub struct MachineClock {
    /// True time when the process began, and the machine's own at that moment.
    began: Nanos,
    began_local: u64,
    /// The runtime's clock at that moment.
    started: Instant,
    /// Parts per million by which this machine's clock is fast.
    fast_ppm: i64,
    /// True time at this turn of the world.
    truth: TrueTime,
    /// By how much its wall clock has been put forward, in milliseconds. Outlives the process.
    wall_jump_ms: Arc<AtomicI64>,
}

impl MachineClock {
    pub(crate) fn new(
        began: Nanos,
        began_local: u64,
        fast_ppm: i64,
        truth: TrueTime,
        wall_jump_ms: Arc<AtomicI64>,
    ) -> Self {
        let started = Instant::now();
        Self { began, began_local, started, fast_ppm, truth, wall_jump_ms }
    }

    /// Nanoseconds on the machine's clock. Only inside its process.
    pub(crate) fn local(&self) -> u64 {
        debug_assert!(Handle::try_current().is_ok(), "a clock is read by its own process");
        let since = Instant::now().duration_since(self.started);
        self.began_local + since.as_nanos() as u64
    }

    /// What the machine's clock says when it is `at` in truth.
    pub(crate) fn local_at(&self, at: Nanos) -> u64 {
        let since = i128::from(at.saturating_sub(self.began));
        let local = since + since * i128::from(self.fast_ppm) / 1_000_000;
        self.began_local + local as u64
    }

    /// When the machine's clock says `local`, in truth.
    pub(crate) fn truth(&self, local: u64) -> Nanos {
        let since = i128::from(local) - i128::from(self.began_local);
        let true_since = since * 1_000_000 / (1_000_000 + i128::from(self.fast_ppm));
        (i128::from(self.began) + true_since).max(0) as Nanos
    }

    /// True time now: that of the turn in which the process works, whatever its clock says.
    pub(crate) fn now(&self) -> Nanos {
        self.truth.now()
    }

    fn wall_ms_now(&self) -> u64 {
        let jump = self.wall_jump_ms.load(Ordering::Relaxed);
        let wall = WALL_MS + (self.local() / MILLI) as i64 + jump;
        wall.max(0) as u64
    }
}

impl lockkeeper_node::Clock for MachineClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic(self.local())
    }

    fn wall_ms(&self) -> u64 {
        self.wall_ms_now()
    }
}

/// The machine's clock as a client reads it.
#[derive(Clone, Debug)]
pub struct ClientClock(pub Arc<MachineClock>);

impl lockkeeper::clock::Clock for ClientClock {
    fn boottime(&self) -> Boottime {
        Boottime::from_nanos(self.0.local())
    }

    fn wall_nanos(&self) -> u64 {
        self.0.wall_ms_now() * MILLI
    }

    fn alarm(&self) -> io::Result<Box<dyn Alarm>> {
        Ok(Box::new(ClientAlarm { clock: Arc::clone(&self.0), sleep: None }))
    }
}

struct ClientAlarm {
    clock: Arc<MachineClock>,
    sleep: Option<(Boottime, Pin<Box<Sleep>>)>,
}

impl Alarm for ClientAlarm {
    fn poll_at(&mut self, at: Boottime, cx: &mut Context<'_>) -> Poll<()> {
        let now = Boottime::from_nanos(self.clock.local());
        if now >= at {
            return Poll::Ready(());
        }
        let far = Duration::from_secs(3_600);
        if self.sleep.as_ref().is_none_or(|(armed, _)| *armed != at) {
            let sleep = tokio::time::sleep(at.since(now).min(far));
            self.sleep = Some((at, Box::pin(sleep)));
        }
        match &mut self.sleep {
            Some((_, sleep)) => sleep.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}
