//! What the state costs: bytes a held lock, and time an operation. Run with `--release`.
//!
//! Counts what is asked of the allocator, not what it adds for itself (8 to 16 bytes an
//! allocation, of which a held lock has two and a share of some).

#![expect(unsafe_code, reason = "a counting allocator is an allocator")]
#![expect(clippy::print_stdout, reason = "its figures are its purpose")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockkeeper_core::{
    Command, EndReason, Event, Mode, Number, OwnerRef, Request, Secret, SessionId, Stamp,
    StateMachine,
};

fn main() {
    measure_size("names in order", 1);
    measure_size("names scattered", 700_001);
    measure_time();
}

/// Takes a million locks, their names `step` apart.
fn measure_size(label: &str, step: u64) {
    let mut bench = Bench::new();
    let before = BYTES.load(Relaxed);
    for i in 0..LOCK_COUNT {
        let name = name(i * step % LOCK_COUNT);
        bench.apply(&acquire(i % SESSION_COUNT, i / SESSION_COUNT + 1, &name));
    }
    let bytes = BYTES.load(Relaxed) - before;
    println!("{label}: {} bytes a held lock", bytes / LOCK_COUNT as usize);

    let began = Instant::now();
    let page = bench.machine.locks("bench/", Some("bench/hold/lock-005"), 100);
    println!("  a page of {} locks: {:?}", page.len(), began.elapsed());

    let began = Instant::now();
    let frozen = bench.machine.clone();
    println!("  freezing it: {:?}", began.elapsed());
    let began = Instant::now();
    let session = SessionId(0);
    bench.apply(&Command::EndSession { session, reason: EndReason::Expired });
    println!("  ending a session of 1,000 locks then: {:?}", began.elapsed());
    let first = LOCK_COUNT / SESSION_COUNT + 1;
    let longest = (0..100_000).map(|i| {
        let name = format!("new/{i}");
        let command = acquire(1 + i % (SESSION_COUNT - 1), first + i / SESSION_COUNT, &name);
        let began = Instant::now();
        bench.apply(&command);
        began.elapsed()
    });
    println!("  longest acquire after that: {:?}", longest.max().unwrap_or_default());

    let began = Instant::now();
    let mut snapshot = Vec::new();
    frozen.write_snapshot(&mut snapshot).unwrap();
    println!("  writing it: {:?}, {} bytes", began.elapsed(), snapshot.len());
    let began = Instant::now();
    StateMachine::read_snapshot(&mut &snapshot[..]).unwrap();
    println!("  reading and checking it: {:?}", began.elapsed());
}

/// A million pairs on names of their own, beside 100,000 held locks.
fn measure_time() {
    let mut bench = Bench::new();
    for i in 0..100_000 {
        bench.apply(&acquire(i % 900, i / 900 + 1, &name(i)));
    }
    let names: Vec<String> = (0..1_000).map(|i| format!("own/name/of/a/worker/{i:03}")).collect();
    let (mut acquiring, mut releasing) = (Duration::ZERO, Duration::ZERO);
    for round in 0..1_000 {
        // A hundred sessions, ten names each.
        let asks = || (0..1_000_u64).map(|i| (900 + i % 100, 1 + round * 20 + i / 100));
        let began = Instant::now();
        for ((session, number), name) in asks().zip(&names) {
            bench.apply(&acquire(session, number, name));
        }
        acquiring += began.elapsed();
        let began = Instant::now();
        for (session, acquire) in asks() {
            let (session, number) = (SessionId(session), Number(acquire + 10));
            let request = Request::Release { acquire: Number(acquire) };
            bench.apply(&Command::Request { session, number, floor: number, request });
        }
        releasing += began.elapsed();
    }
    assert_eq!(bench.machine.counts().holds, 100_000);
    println!("beside 100,000 locks: acquire {} ns, release {} ns", ns(acquiring), ns(releasing));
}

/// A machine with its sessions, and a place for events.
struct Bench {
    machine: StateMachine,
    events: Vec<Event>,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self { machine: StateMachine::default(), events: Vec::new() };
        for session in 0..SESSION_COUNT {
            let owner = OwnerRef { host: "host", ..OwnerRef::default() };
            let (session, secret) = (SessionId(session), Secret([7; 16]));
            bench.apply(&Command::OpenSession { session, secret, ttl_ms: 10_000, owner });
        }
        bench
    }

    fn apply(&mut self, command: &Command<'_>) {
        self.events.clear();
        self.machine.apply(Stamp(1_000), command, &mut self.events);
    }
}

fn acquire(session: u64, number: u64, lock: &str) -> Command<'_> {
    let request = Request::Acquire { lock, mode: Mode::Exclusive, wait: true, purpose: "" };
    let (session, number) = (SessionId(session), Number(number));
    Command::Request { session, number, floor: number, request }
}

/// 24 bytes long.
fn name(i: u64) -> String {
    format!("bench/hold/lock-{i:08}")
}

fn ns(of_a_million: Duration) -> u128 {
    of_a_million.as_nanos() / 1_000_000
}

const SESSION_COUNT: u64 = 1_000;

const LOCK_COUNT: u64 = 1_000_000;

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all is passed on to the system's allocator; only sizes are summed up beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}
