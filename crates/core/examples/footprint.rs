//! What the state costs: bytes a held lock and a znode, and time an operation. Run with
//! `--release`; with the argument `tree` it measures the tree alone.
//!
//! Counts what is asked of the allocator, not what it adds for itself (8 to 16 bytes an
//! allocation, of which a held lock has two and a share of some).

#![expect(unsafe_code, reason = "a counting allocator is an allocator")]
#![expect(clippy::print_stdout, reason = "its figures are its purpose")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AclRef, Command, EndReason, Event, IdRef, Mode, NodeKind, Number, OwnerRef, Request, Secret,
    SessionId, Stamp, StateMachine, TreeOp,
};

fn main() {
    if std::env::args().any(|word| word == "tree") {
        return measure_tree();
    }
    measure_size("names in order", 1);
    measure_size("names scattered", 700_001);
    measure_time();
    measure_tree();
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

fn measure_tree() {
    measure_znodes("znodes of one parent, in order", |i| format!("/bench/node-{i:09}"));
    measure_znodes("znodes of 1,000 parents, scattered", |i| {
        let i = i * 700_001 % ZNODE_COUNT;
        format!("/bench/{:03}/node-{i:06}", i % 1_000)
    });
    let data = [7; 100];
    let mut bench = Bench::new();
    bench.grow("/dir", None, NodeKind::Persistent, false);
    (0..100_000).for_each(|_| bench.grow("/dir/child-", Some(&data), NodeKind::Persistent, true));
    for round in ["", ", the first after it was frozen"] {
        let frozen = bench.machine.clone();
        let (mut spent, mut slowest) = ([Duration::ZERO; 2], Duration::ZERO);
        for _ in 0..ZNODE_COUNT / 10 {
            let began = Instant::now();
            bench.grow("/dir/lock-", Some(&data), NodeKind::Ephemeral, true);
            spent[0] += began.elapsed();
            slowest = slowest.max(began.elapsed());
            let path = bench.last_created();
            let began = Instant::now();
            bench.tree(TreeOp::Delete { path: &path, version: -1 });
            spent[1] += began.elapsed();
            slowest = slowest.max(began.elapsed());
        }
        let [create, delete] = spent.map(|spent| spent.as_nanos() / u128::from(ZNODE_COUNT / 10));
        println!("beside 100,000 others{round}: create {create} ns, delete {delete} ns");
        println!("  slowest of them: {slowest:?}");
        drop(frozen);
    }
    let began = Instant::now();
    let count = bench.machine.tree().children("/dir").map(str::len).filter(|len| *len > 0).count();
    println!("  listing {count} children: {:?}", began.elapsed());
    (0..100_000).for_each(|_| bench.grow("/dir/e-", None, NodeKind::Ephemeral, true));
    let began = Instant::now();
    bench.apply(&Command::EndSession { session: SessionId(1), reason: EndReason::Expired });
    println!("  ending a session of 100,000 ephemeral znodes: {:?}", began.elapsed());
}

/// Makes a million znodes of 100 bytes.
fn measure_znodes(label: &str, path: impl Fn(u64) -> String) {
    let data = [7; 100];
    let mut bench = Bench::new();
    bench.grow("/bench", None, NodeKind::Persistent, false);
    for parent in 0..1_000 {
        bench.grow(&format!("/bench/{parent:03}"), None, NodeKind::Persistent, false);
    }
    let before = BYTES.load(Relaxed);
    let began = Instant::now();
    (0..ZNODE_COUNT).for_each(|i| bench.grow(&path(i), Some(&data), NodeKind::Persistent, false));
    let took = began.elapsed() / u32::try_from(ZNODE_COUNT).unwrap_or(1);
    let bytes = (BYTES.load(Relaxed) - before) / ZNODE_COUNT as usize;
    println!("{label}: {bytes} bytes each, made in {took:?}");
    let began = Instant::now();
    let frozen = bench.machine.clone();
    println!("  freezing it: {:?}", began.elapsed());
    let began = Instant::now();
    let mut snapshot = Vec::new();
    frozen.write_snapshot(&mut snapshot).unwrap();
    println!("  writing it: {:?}, {} bytes", began.elapsed(), snapshot.len());
    let began = Instant::now();
    StateMachine::read_snapshot(&mut &snapshot[..]).unwrap();
    println!("  reading and checking it: {:?}", began.elapsed());
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

    /// Session 1 does one thing to the tree.
    fn tree(&mut self, op: TreeOp<'_>) {
        let ids = vec![IdRef { scheme: "ip", id: "127.0.0.1" }];
        let (session, connection, enforce_quota) = (SessionId(1), 0, false);
        let ops = vec![op];
        self.apply(&Command::Tree { session, connection, ids, enforce_quota, ops });
    }

    fn grow(&mut self, path: &str, data: Option<&[u8]>, kind: NodeKind, sequential: bool) {
        let acl = vec![AclRef { perms: 31, id: IdRef { scheme: "world", id: "anyone" } }];
        self.tree(TreeOp::Create { path, data, acl, kind, sequential });
        assert!(!self.events.is_empty(), "{path} was not made");
    }

    /// The path of the znode that was just made.
    fn last_created(&self) -> String {
        match self.events.last() {
            Some(Event::Node { path, .. }) => path.to_string(),
            _ => String::new(),
        }
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

const ZNODE_COUNT: u64 = 1_000_000;

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
