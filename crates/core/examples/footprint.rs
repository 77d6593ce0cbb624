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
    Command, Mode, Number, OwnerRef, Request, Secret, SessionId, Stamp, StateMachine,
};

fn main() {
    let mut machine = StateMachine::default();
    let mut events = Vec::new();
    let mut apply = |machine: &mut StateMachine, command: &Command<'_>| {
        events.clear();
        machine.apply(Stamp(1_000), command, &mut events);
    };
    for session in 0..SESSION_COUNT {
        let owner = OwnerRef { host: "host", ..OwnerRef::default() };
        let secret = Secret([7; 16]);
        let session = SessionId(session);
        apply(&mut machine, &Command::OpenSession { session, secret, ttl_ms: 10_000, owner });
    }

    for (label, step) in [("names in order", 1), ("names scattered", 700_001)] {
        let mut machine = machine.clone();
        let before = BYTES.load(Relaxed);
        for i in 0..LOCK_COUNT {
            let name = name(i * step % LOCK_COUNT);
            apply(&mut machine, &acquire(i % SESSION_COUNT, i / SESSION_COUNT + 1, &name));
        }
        let bytes = BYTES.load(Relaxed) - before;
        println!("{label}: {} bytes a held lock", bytes / LOCK_COUNT as usize);
        machine.check().unwrap();

        let began = Instant::now();
        let frozen = machine.clone();
        println!("  clone: {:?}", began.elapsed());
        let mut longest = Duration::ZERO;
        let first = LOCK_COUNT / SESSION_COUNT + 1;
        for i in 0..100_000 {
            let began = Instant::now();
            let number = first + i / SESSION_COUNT;
            apply(&mut machine, &acquire(i % SESSION_COUNT, number, &format!("new/{i}")));
            longest = longest.max(began.elapsed());
        }
        println!("  longest acquire after the clone: {longest:?}");
        let began = Instant::now();
        let mut snapshot = Vec::new();
        frozen.write_snapshot(&mut snapshot).unwrap();
        println!("  snapshot: {:?}, {} bytes", began.elapsed(), snapshot.len());
        let began = Instant::now();
        StateMachine::read_snapshot(&mut &snapshot[..]).unwrap();
        println!("  reading and checking it: {:?}", began.elapsed());
    }

    for i in 0..100_000 {
        apply(&mut machine, &acquire(i % 900, i / 900 + 1, &name(i)));
    }
    let names: Vec<String> = (0..1_000).map(|i| format!("own/name/of/a/worker/{i:03}")).collect();
    let (mut acquiring, mut releasing) = (Duration::ZERO, Duration::ZERO);
    for round in 0..1_000_u64 {
        let began = Instant::now();
        for (i, name) in (0..).zip(&names) {
            apply(&mut machine, &acquire(900 + i % 100, 10_000 + round * 20 + i / 100, name));
        }
        acquiring += began.elapsed();
        let began = Instant::now();
        for i in 0..1_000 {
            let session = SessionId(900 + i % 100);
            let acquire = Number(10_000 + round * 20 + i / 100);
            let number = Number(acquire.0 + 10);
            let request = Request::Release { acquire };
            let command = Command::Request { session, number, floor: number, request };
            apply(&mut machine, &command);
        }
        releasing += began.elapsed();
    }
    assert_eq!(machine.counts().holds, 100_000);
    println!("with 100,000 locks: acquire {} ns, release {} ns", ns(acquiring), ns(releasing));
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
