//! Random commands, against a twin so naive that it is plainly right.
//!
//! The twin keeps one list of holds and one list of waiters for all locks together, and finds
//! everything by walking them. After every command the two must agree on the reply, the events,
//! and what every query shows.

mod twin;

use lockkeeper_core::{
    AclRef, Command, EndReason, Event, IdRef, Mode, NodeAcl, NodeKind, Number, OwnerRef, Request,
    Secret, SessionId, Stamp, StateMachine, Token, TreeError, TreeOp,
};
use proptest::prelude::*;

use crate::twin::Twin;

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_its_twin(
        steps in prop::collection::vec(step(), 1..120),
        silent in prop::bool::weighted(0.3),
    ) {
        let mut pair = Pair::new(silent);
        for step in &steps {
            pair.take(step);
        }
        pair.compare_bytes();
    }
}

/// The machine, its twin, a second replica, and clones taken on the way.
struct Pair {
    machine: StateMachine,
    replica: StateMachine,
    twin: Twin,
    /// Clones, with what they wrote when they were taken.
    frozen: Vec<(StateMachine, Vec<u8>)>,
    now_ms: u64,
    /// By session: the newest number used.
    numbers: [u64; SESSIONS.len()],
    /// By session: the newest connection.
    connections: [u64; SESSIONS.len()],
}

impl Pair {
    fn new(silent: bool) -> Self {
        let cluster = lockkeeper_core::ClusterId(7);
        let start = StateMachine::default().restored(cluster, silent);
        let mut pair = Self {
            replica: start.clone(),
            twin: Twin::new(start.revision().0, silent),
            machine: start,
            frozen: Vec::new(),
            now_ms: 1_000,
            numbers: [0; SESSIONS.len()],
            connections: [0; SESSIONS.len()],
        };
        for session in 0..SESSIONS.len() {
            pair.apply(&open(session, 1));
        }
        pair
    }

    fn take(&mut self, step: &Step) {
        self.now_ms += 7;
        match step {
            Step::Ask { session, back, lag, ask } => {
                let newest = &mut self.numbers[*session];
                let number = match back {
                    None => {
                        *newest += 1;
                        *newest
                    }
                    Some(back) => newest.saturating_sub(*back),
                };
                let (newest, floor) = (*newest, number.saturating_sub(*lag));
                let target = |back: u64| Number(newest.saturating_sub(back));
                let request = match *ask {
                    Ask::Acquire { lock, mode, wait } => {
                        Request::Acquire { lock: LOCKS[lock], mode, wait, purpose: "test" }
                    }
                    Ask::Reenter { lock, nth } => {
                        Request::Reenter { lock: LOCKS[lock], token: self.token(lock, nth) }
                    }
                    Ask::Release(back) => Request::Release { acquire: target(back) },
                    Ask::Cancel(back) => Request::Cancel { acquire: target(back) },
                };
                let session = SESSIONS[*session];
                let floor = Number(floor);
                self.apply(&Command::Request { session, number: Number(number), floor, request });
            }
            Step::Open { session, secret } => self.apply(&open(*session, *secret)),
            Step::End { session } => {
                let session_id = SESSIONS[*session];
                let reason = EndReason::Expired;
                self.apply(&Command::EndSession { session: session_id, reason });
                self.numbers[*session] = 0;
                self.connections[*session] = 0;
                self.apply(&open(*session, 1));
            }
            Step::RevokeSession { session } => {
                self.apply(&Command::RevokeSession { session: SESSIONS[*session] });
            }
            Step::RevokeHold { lock, nth, now } => {
                let if_token = self.token(*lock, *nth);
                self.apply(&Command::RevokeHold { lock: LOCKS[*lock], if_token, now: *now });
            }
            Step::Tree { session, late, as_jo, enforce_quota, ops } => {
                let connection = self.connections[*session].saturating_sub(u64::from(*late));
                self.apply(&Command::Tree {
                    session: SESSIONS[*session],
                    connection,
                    ids: if *as_jo { vec![JO] } else { Vec::new() },
                    enforce_quota: *enforce_quota,
                    ops: ops.clone(),
                });
            }
            Step::Resume { session, secret } => self.resume(*session, *secret),
            Step::Collect { path } => self.apply(&Command::CollectNode { path }),
            Step::EndSilence => self.apply(&Command::EndSilence),
            Step::Freeze => self.frozen.push((self.machine.clone(), written(&self.machine))),
            Step::Reload => {
                let bytes = written(&self.machine);
                assert_eq!(bytes, written(&self.replica), "the replicas differ");
                self.machine = StateMachine::read_snapshot(&mut &bytes[..]).unwrap();
                assert_eq!(bytes, written(&self.machine), "reading changed the state");
            }
        }
    }

    fn resume(&mut self, session: usize, secret: u8) {
        let connection = self.connections[session] + 1;
        let (id, ttl_ms, secret) = (SESSIONS[session], 2_000, Secret([secret; 16]));
        if self.machine.authenticate(id, &secret) == Some(true) {
            self.connections[session] = connection;
        }
        self.apply(&Command::ResumeSession { session: id, secret, ttl_ms, connection });
    }

    fn apply(&mut self, command: &Command<'_>) {
        let at = Stamp(self.now_ms);
        let (mut events, mut replicas_events) = (Vec::new(), Vec::new());
        let reply = self.machine.apply(at, command, &mut events);
        let (twins_reply, twins_events) = self.twin.apply(at, command);
        assert_eq!(reply, twins_reply, "reply to {command:?}");
        assert_eq!(without_lists(&events), twins_events, "events of {command:?}");
        self.machine.check().unwrap_or_else(|broken| panic!("after {command:?}: {broken}"));
        self.compare_views();

        assert_eq!(self.replica.apply(at, command, &mut replicas_events), reply);
        assert_eq!(replicas_events, events);
    }

    fn compare_views(&self) {
        let now = self.machine.stamp();
        self.twin.tree.compare(self.machine.tree(), &SESSIONS, now);
        assert_eq!(self.machine.revision().0, self.twin.revision);
        assert_eq!(self.machine.counts(), self.twin.counts());
        for name in LOCKS {
            assert_eq!(self.machine.lock(name, usize::MAX), self.twin.lock(name));
        }
        let in_use = LOCKS.iter().filter_map(|name| self.twin.lock(name)).map(|lock| lock.name);
        let listed = self.machine.locks("", None, usize::MAX);
        assert!(listed.iter().map(|lock| &lock.name).eq(in_use.collect::<Vec<_>>().iter()));
        for id in SESSIONS {
            assert_eq!(self.machine.session(id), self.twin.session(id));
            assert_eq!(self.machine.lease(id), self.twin.lease(id));
        }
    }

    /// The token of some hold of the lock, so that commands which name one often hit.
    fn token(&self, lock: usize, nth: usize) -> Token {
        let view = self.machine.lock(LOCKS[lock], usize::MAX);
        let tokens = view.iter().flat_map(|view| view.holds.iter().map(|hold| hold.token));
        tokens.chain([Token(3)]).nth(nth).unwrap_or(Token(4))
    }

    /// Replicas write the same bytes, and what was cloned is as it was, whatever came later.
    fn compare_bytes(&self) {
        assert_eq!(written(&self.replica), written(&self.machine), "the replicas differ");
        for (clone, bytes) in &self.frozen {
            assert_eq!(&written(clone), bytes, "a clone changed");
            clone.check().unwrap();
        }
    }
}

/// The twin's events are told without access lists.
fn without_lists(events: &[Event]) -> Vec<Event> {
    let mut events = events.to_vec();
    for event in &mut events {
        if let Event::Node { acl, acl_above, .. } = event {
            (*acl, *acl_above) = (NodeAcl::default(), None);
        }
    }
    events
}

fn written(machine: &StateMachine) -> Vec<u8> {
    let mut bytes = Vec::new();
    machine.write_snapshot(&mut bytes).unwrap();
    bytes
}

fn open(session: usize, secret: u8) -> Command<'static> {
    let owner = OwnerRef { host: "here", pid: 1, ..OwnerRef::default() };
    let secret = Secret([secret; 16]);
    Command::OpenSession { session: SESSIONS[session], secret, ttl_ms: 1_000, owner }
}

#[derive(Clone, Debug)]
enum Step {
    /// `back`: repeat a number so far behind the newest, else take a new one. `lag`: how far the
    /// floor is below the number.
    Ask {
        session: usize,
        back: Option<u64>,
        lag: u64,
        ask: Ask,
    },
    Open {
        session: usize,
        secret: u8,
    },
    End {
        session: usize,
    },
    RevokeSession {
        session: usize,
    },
    RevokeHold {
        lock: usize,
        nth: usize,
        now: bool,
    },
    /// `late`: over the connection before the newest.
    Tree {
        session: usize,
        late: bool,
        as_jo: bool,
        enforce_quota: bool,
        ops: Vec<TreeOp<'static>>,
    },
    Resume {
        session: usize,
        secret: u8,
    },
    Collect {
        path: &'static str,
    },
    EndSilence,
    Freeze,
    Reload,
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Acquire {
        lock: usize,
        mode: Mode,
        wait: bool,
    },
    Reenter {
        lock: usize,
        nth: usize,
    },
    /// The acquire so far behind the newest number.
    Release(u64),
    Cancel(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let session = 0..SESSIONS.len();
    let lock = 0..LOCKS.len();
    let back = prop_oneof![6 => Just(None), 1 => (0..5_u64).prop_map(Some)];
    let ask_step = (session.clone(), back, 0..8_u64, ask())
        .prop_map(|(session, back, lag, ask)| Step::Ask { session, back, lag, ask });
    let open_step =
        (session.clone(), 1..3_u8).prop_map(|(session, secret)| Step::Open { session, secret });
    let revoke = (lock, 0..3_usize, any::<bool>()).prop_map(|(lock, nth, now)| Step::RevokeHold {
        lock,
        nth,
        now,
    });
    let resume =
        (session.clone(), 1..3_u8).prop_map(|(session, secret)| Step::Resume { session, secret });
    prop_oneof![
        60 => ask_step,
        60 => tree_step(),
        2 => resume,
        2 => prop::sample::select(&PATHS[..]).prop_map(|path| Step::Collect { path }),
        1 => open_step,
        3 => session.clone().prop_map(|session| Step::End { session }),
        1 => session.prop_map(|session| Step::RevokeSession { session }),
        3 => revoke,
        1 => Just(Step::EndSilence),
        1 => Just(Step::Freeze),
        1 => Just(Step::Reload),
    ]
}

fn tree_step() -> impl Strategy<Value = Step> {
    let count = prop_oneof![3 => Just(1_usize), 1 => 2..5_usize];
    let ops = count.prop_flat_map(|count| prop::collection::vec(operation(), count));
    let flags = (prop::bool::weighted(0.05), prop::bool::weighted(0.3), any::<bool>());
    (0..SESSIONS.len(), flags, ops).prop_map(|(session, (late, as_jo, enforce_quota), ops)| {
        Step::Tree { session, late, as_jo, enforce_quota, ops }
    })
}

fn operation() -> impl Strategy<Value = TreeOp<'static>> {
    let path = || prop::sample::select(&PATHS[..]);
    let data = || prop::sample::select(&DATA[..]);
    let version = || prop_oneof![4 => Just(-1), 2 => Just(0), 1 => Just(1)];
    let kinds = [
        NodeKind::Persistent,
        NodeKind::Ephemeral,
        NodeKind::Ephemeral,
        NodeKind::Container,
        NodeKind::Ttl { ms: 30 },
        NodeKind::Ttl { ms: 0 },
    ];
    let kind = prop::sample::select(kinds.to_vec());
    let create = (path(), data(), acl(), kind, prop::bool::weighted(0.3)).prop_map(
        |(path, data, acl, kind, sequential)| TreeOp::Create { path, data, acl, kind, sequential },
    );
    let set_data = (path(), data(), version()).prop_map(|(path, data, version)| TreeOp::SetData {
        path,
        data,
        version,
    });
    let set_acl = (path(), acl(), version()).prop_map(|(path, acl, version)| TreeOp::SetAcl {
        path,
        acl,
        version,
    });
    prop_oneof![
        16 => create,
        8 => (path(), version()).prop_map(|(path, version)| TreeOp::Delete { path, version }),
        4 => set_data,
        2 => set_acl,
        2 => (path(), version()).prop_map(|(path, version)| TreeOp::Check { path, version }),
        2 => prop::sample::select(&QUOTA[..]).prop_map(limit),
        1 => Just(TreeOp::Fail(TreeError::Unimplemented)),
    ]
}

/// A part of the quota on `/q`.
fn limit(path: &'static str) -> TreeOp<'static> {
    let data = Some(&b"count=1,bytes=1=;byteHardLimit=20;countHardLimit=4"[..]);
    TreeOp::Create { path, data, acl: vec![OPEN], kind: NodeKind::Persistent, sequential: false }
}

fn acl() -> impl Strategy<Value = Vec<AclRef<'static>>> {
    prop_oneof![
        12 => Just(vec![OPEN]),
        1 => Just(vec![AclRef { perms: 1, ..OPEN }, AclRef { perms: 30, id: JO }]),
        1 => Just(vec![AclRef { perms: 31, id: JO }]),
        1 => Just(Vec::new()),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let lock = 0..LOCKS.len();
    let acquire = (lock.clone(), mode(), prop::bool::weighted(0.8))
        .prop_map(|(lock, mode, wait)| Ask::Acquire { lock, mode, wait });
    prop_oneof![
        6 => acquire,
        1 => (lock, 0..3_usize).prop_map(|(lock, nth)| Ask::Reenter { lock, nth }),
        4 => (0..9_u64).prop_map(Ask::Release),
        2 => (0..6_u64).prop_map(Ask::Cancel),
    ]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        4 => (0..4_u32).prop_map(|take| Mode::Permits { take, of: 3 }),
        1 => Just(Mode::Permits { take: 1, of: 2 }),
    ]
}

const OPEN: AclRef<'static> = AclRef { perms: 31, id: IdRef { scheme: "world", id: "anyone" } };

const JO: IdRef<'static> = IdRef { scheme: "digest", id: "jo:x" };

/// Some are what sequential znodes are called, and some can be none.
const PATHS: [&str; 12] = [
    "/a",
    "/a",
    "/a/n-",
    "/a/n-0000000000",
    "/a/n-0000000001",
    "/a/b",
    "/q",
    "/q/x",
    "/q/x/y",
    "/a/",
    "/",
    "odd",
];

const DATA: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"text"), Some(b"long text")];

const QUOTA: [&str; 3] = [
    "/zookeeper/quota/q",
    "/zookeeper/quota/q/zookeeper_limits",
    "/zookeeper/quota/q/zookeeper_stats",
];

/// Sorted, as listings are.
const LOCKS: [&str; 3] = ["batch/daily", "batch/nightly", "printer"];

const SESSIONS: [SessionId; 3] = [SessionId(0xa), SessionId(0xb), SessionId(0xc)];
