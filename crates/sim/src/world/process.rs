//! A machine and the process on it: a runtime whose time the world moves.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{advance, sleep};

use super::time::{MachineClock, TrueTime};
use crate::Nanos;
use crate::chance::Chance;

const MILLI: u64 = 1_000_000;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It runs.
    Running,
    /// It stands still, and doesn't know.
    Paused {
        /// Since then.
        since: Nanos,
        /// Until then.
        until: Nanos,
    },
    /// There is none; one is to be started then.
    Down(Nanos),
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) condition: Condition,
    pub(crate) wall_jump_ms: Arc<AtomicI64>,
    process: Option<Process>,
    /// What the machine's clock said when its last process ended, and when that was.
    stopped: (Nanos, u64),
    fast_ppm: i64,
    /// It is looked after at least this often, in milliseconds.
    stride_ms: u64,
    chance: Chance,
    truth: TrueTime,
}

struct Process {
    runtime: Runtime,
    clock: Arc<MachineClock>,
}

impl Machine {
    pub(crate) fn new(name: String, mut chance: Chance, truth: TrueTime) -> Self {
        // Quartz is off by less than 100 ppm; bad virtual machines by more.
        let fast_ppm = chance.below(10_001) as i64 - 5_000;
        let fast_ppm = if chance.one_in(2) { fast_ppm / 50 } else { fast_ppm };
        Self {
            name,
            condition: Condition::Down(0),
            wall_jump_ms: Arc::new(AtomicI64::new(0)),
            process: None,
            stopped: (0, 1_000_000_000 + chance.below(1 << 50)),
            fast_ppm,
            stride_ms: *chance.pick(&[1, 2, 3, 5]),
            chance,
            truth,
        }
    }

    /// Starts a process, whose first task is `main`.
    pub(crate) fn start<F, T>(&mut self, now: Nanos, main: F)
    where
        F: FnOnce(Arc<MachineClock>) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        let (stopped, local) = self.stopped;
        let local = local + (now - stopped);
        let seed = tokio::runtime::RngSeed::from_bytes(&self.chance.next_u64().to_le_bytes());
        let mut builder = Builder::new_current_thread();
        let builder = builder.enable_time().start_paused(true).rng_seed(seed);
        let runtime = builder.build().expect("a runtime without sockets or threads");
        let jump = Arc::clone(&self.wall_jump_ms);
        let (fast_ppm, truth) = (self.fast_ppm, self.truth.clone());
        let clock =
            runtime.block_on(async { MachineClock::new(now, local, fast_ppm, truth, jump) });
        let clock = Arc::new(clock);
        runtime.spawn(main(Arc::clone(&clock)));
        self.process = Some(Process { runtime, clock });
        self.condition = Condition::Running;
    }

    /// Runs a task in the process, if there is one.
    pub(crate) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(process) = &self.process {
            process.runtime.spawn(task);
        }
    }

    /// Lets the process work until `now`, if it is time, and nothing holds it.
    pub(crate) fn step(&mut self, now: Nanos, has_mail: bool) {
        if self.condition != Condition::Running {
            return;
        }
        let Some(Process { runtime, clock }) = &self.process else { return };
        let stride_ms = self.stride_ms;
        runtime.block_on(async {
            let behind = clock.local_at(now).saturating_sub(clock.local()) / MILLI;
            if behind >= stride_ms || (has_mail && behind > 0) {
                sleep(Duration::from_millis(behind)).await;
            } else if has_mail {
                tokio::task::yield_now().await;
            }
        });
    }

    /// The process goes on after a pause: its clock has gone on without it, and then everything
    /// that was due is due at once.
    pub(crate) fn resume(&mut self, now: Nanos) {
        self.condition = Condition::Running;
        let Some(Process { runtime, clock }) = &self.process else { return };
        runtime.block_on(async {
            let behind = clock.local_at(now).saturating_sub(clock.local()) / MILLI;
            if behind > 1 {
                advance(Duration::from_millis(behind - 1)).await;
            }
        });
    }

    /// Ends the process as `kill -9` does: nothing of it runs any more.
    pub(crate) fn kill(&mut self, now: Nanos, restart_at: Nanos) {
        self.condition = Condition::Down(restart_at);
        let Some(Process { runtime, clock }) = self.process.take() else { return };
        self.stopped = (now, clock.local_at(now));
        drop(runtime);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }
}
