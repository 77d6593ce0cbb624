//! The state machine: commands as bytes, commands with absurd figures, and snapshots.

use lockkeeper_core::{
    AclRef, ClusterId, Command, EndReason, IdRef, Mode, NodeKind, Number, OwnerRef, Request,
    Secret, SessionId, Stamp, StateMachine, Token, TreeOp,
};

use crate::harness::Target;

/// Room for three states with next to nothing in them, and for a buffered snapshot of each.
const STATE_BYTES: usize = 768 << 10;

/// Commands as the log has them.
pub const COMMANDS: Target = Target {
    name: "commands",
    run: commands,
    seeds: command_seeds,
    bytes_flat: STATE_BYTES,
    bytes_each: 512,
};

/// Commands made of small choices, so that they meet each other, with absurd figures among them.
pub const APPLY: Target = Target {
    name: "apply",
    run: apply,
    seeds: apply_seeds,
    bytes_flat: STATE_BYTES,
    // The long names and owners take one byte to ask for.
    bytes_each: 8 << 10,
};

/// A snapshot, and commands on what was read from it. The first two bytes say how many of the
/// last ones are commands.
pub const STATE: Target = Target {
    name: "state",
    run: state,
    seeds: state_seeds,
    bytes_flat: STATE_BYTES,
    bytes_each: 8 << 10,
};

fn commands(bytes: &[u8]) {
    let mut state = StateMachine::default();
    let mut events = Vec::new();
    let mut rest = bytes;
    let mut at = 0;
    while let Some(decoded) = Command::decode(rest) {
        assert!(decoded.rest.len() < rest.len(), "a command takes at least a byte");
        rest = decoded.rest;
        at += 1;
        let mut encoded = Vec::new();
        decoded.command.encode(&mut encoded);
        let again = Command::decode(&encoded).expect("it was just encoded");
        assert_eq!((&again.command, again.rest), (&decoded.command, &[][..]));
        events.clear();
        state.apply(Stamp(at), &decoded.command, &mut events);
    }
    survives(&state);
}

fn apply(bytes: &[u8]) {
    let mut state = StateMachine::default();
    let mut choices = Choices(bytes);
    perform(&mut state, &mut choices);
    survives(&state);
}

fn state(bytes: &[u8]) {
    let Some((&count, bytes)) = bytes.split_first_chunk() else { return };
    let count = usize::from(u16::from_le_bytes(count)).min(bytes.len());
    let (image, choices) = bytes.split_at(bytes.len() - count);
    let mut input = image;
    let Ok(state) = StateMachine::read_snapshot(&mut input) else { return };
    survives(&state);
    let mut restored = state.restored(ClusterId(3), choices.len() % 2 == 0);
    let mut state = state;
    perform(&mut state, &mut Choices(choices));
    survives(&state);
    perform(&mut restored, &mut Choices(choices));
    survives(&restored);
}

/// Every invariant holds, and the state is the same again after it was written and read.
fn survives(state: &StateMachine) {
    assert_eq!(state.check(), Ok(()));
    let mut image = Vec::new();
    state.write_snapshot(&mut image).expect("memory takes everything");
    let again = StateMachine::read_snapshot(&mut &image[..]).expect("what was just written");
    let mut image_again = Vec::new();
    again.write_snapshot(&mut image_again).expect("memory takes everything");
    assert!(image == image_again, "what is read writes the same again");
}

/// Applies the commands that `choices` makes, and checks after each.
fn perform(state: &mut StateMachine, choices: &mut Choices<'_>) {
    let mut events = Vec::new();
    while let Some(kind) = choices.byte() {
        let revision = state.revision().0;
        let at = Stamp(choices.figure());
        let command = choices.command(kind, revision);
        events.clear();
        state.apply(at, &command, &mut events);
        assert!(state.revision().0 > revision, "every command has a revision");
        assert_eq!(state.check(), Ok(()), "after {command:?} at {at:?}");
    }
}

/// Bytes as decisions. When they have run out, every further one is 0.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte().unwrap_or(0)) % all.len()]
    }

    /// Mostly a small number, so that they meet; else one at the edge of something.
    fn figure(&mut self) -> u64 {
        const EDGES: [u64; 12] = [
            8_191,
            8_192,
            8_193,
            10_001,
            u32::MAX as u64,
            1 << 40,
            (1 << 62) - 1,
            1 << 62,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.byte().unwrap_or(0) {
            small @ 0..=239 => u64::from(small % 24),
            edge => EDGES[usize::from(edge - 240) % EDGES.len()],
        }
    }

    fn session(&mut self) -> SessionId {
        SessionId(self.pick(&[1, 2, 3, 1, 2, 0, u64::MAX]))
    }

    fn name(&mut self) -> &'static str {
        const LONG: &str = match std::str::from_utf8(&[b'n'; 1_024]) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        };
        const TOO_LONG: &str = match std::str::from_utf8(&[b'n'; 1_025]) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        };
        const ODD: [&str; 8] = ["", "/", "a//b", "a/../b", "a\0b", "Ünï", LONG, TOO_LONG];
        let choice = self.byte().unwrap_or(0);
        let usual = ["a", "b", "pool"];
        if choice < 240 {
            usual[usize::from(choice) % usual.len()]
        } else {
            ODD[usize::from(choice) % ODD.len()]
        }
    }

    fn mode(&mut self) -> Mode {
        let permits = |take, of| Mode::Permits { take, of };
        let (three, most) = (permits(2, 3), permits(u32::MAX, u32::MAX));
        self.pick(&[
            Mode::Exclusive,
            Mode::Shared,
            three,
            permits(1, 3),
            Mode::Exclusive,
            Mode::Shared,
            permits(1, 4),
            permits(0, 0),
            permits(0, 3),
            permits(4, 3),
            permits(1_000_000, 1_000_000),
            most,
        ])
    }

    fn token(&mut self, revision: u64) -> Token {
        let back = self.figure();
        Token(revision.wrapping_sub(back))
    }

    fn command(&mut self, kind: u8, revision: u64) -> Command<'static> {
        match kind % 16 {
            0..=9 => {
                let (session, number) = (self.session(), Number(self.figure()));
                let floor = Number(self.figure());
                let request = self.request(kind, revision);
                Command::Request { session, number, floor, request }
            }
            10 | 11 => {
                let session = self.session();
                let secret = Secret([self.byte().unwrap_or(0) % 2; 16]);
                let ttl_ms = self.pick(&[10_000, 200, 86_400_000, 0, 199, 86_400_001, u32::MAX]);
                let label = ("key", self.name());
                let labels = vec![label; usize::from(self.byte().unwrap_or(0) % 18)];
                let owner = OwnerRef { host: self.name(), labels, ..OwnerRef::default() };
                Command::OpenSession { session, secret, ttl_ms, owner }
            }
            12 => {
                let reasons = [EndReason::Closed, EndReason::Expired, EndReason::Revoked];
                Command::EndSession { session: self.session(), reason: self.pick(&reasons) }
            }
            13 => Command::RevokeSession { session: self.session() },
            14 => {
                let (lock, if_token) = (self.name(), self.token(revision));
                Command::RevokeHold { lock, if_token, now: self.pick(&[false, true]) }
            }
            15 if self.byte().unwrap_or(0) % 8 > 1 => self.tree_command(revision),
            _ => self
                .pick(
                    &[
                        Command::EndSilence,
                        Command::FoundCluster { cluster: ClusterId(1) },
                        Command::FoundCluster { cluster: ClusterId(u128::MAX) },
                    ]
                    .each_ref(),
                )
                .clone(),
        }
    }

    fn tree_command(&mut self, revision: u64) -> Command<'static> {
        let session = self.session();
        let connection = self.pick(&[0, 0, 0, 1, u64::MAX]);
        match self.byte().unwrap_or(0) % 16 {
            0 => {
                let secret = Secret([self.byte().unwrap_or(0) % 2; 16]);
                let ttl_ms = self.pick(&[10_000, 200, 0, u32::MAX]);
                Command::ResumeSession { session, secret, ttl_ms, connection }
            }
            1 => Command::CollectNode { path: self.path() },
            count => Command::Tree {
                session,
                connection,
                ids: vec![self.id(); usize::from(count % 3)],
                enforce_quota: revision.is_multiple_of(2),
                ops: (0..count / 4).map(|_| self.operation()).collect(),
            },
        }
    }

    fn operation(&mut self) -> TreeOp<'static> {
        let (path, version) = (self.path(), self.pick(&[-1, -1, 0, 1, i32::MIN, i32::MAX]));
        let data = self.pick(&[None, Some(&b"x"[..]), Some(b""), Some(b"countHardLimit=2")]);
        let entry = AclRef { perms: self.pick(&[31, 31, 1, 0, -1]), id: self.id() };
        let acl = vec![entry; self.pick(&[1, 1, 1, 2, 0])];
        match self.byte().unwrap_or(0) % 8 {
            0..=3 => {
                let ttl = NodeKind::Ttl { ms: self.figure() };
                let kind = self.pick(&[
                    NodeKind::Persistent,
                    NodeKind::Ephemeral,
                    NodeKind::Container,
                    ttl,
                ]);
                let sequential = self.pick(&[false, true]);
                TreeOp::Create { path, data, acl, kind, sequential }
            }
            4 => TreeOp::Delete { path, version },
            5 => TreeOp::SetData { path, data, version },
            6 => TreeOp::SetAcl { path, acl, version },
            _ => TreeOp::Check { path, version },
        }
    }

    fn path(&mut self) -> &'static str {
        self.pick(&[
            "/a",
            "/a/b",
            "/a/0000000000",
            "/a/",
            "/zookeeper/quota/a",
            "/zookeeper/quota/a/zookeeper_limits",
            "/zookeeper/quota/a/zookeeper_stats",
            "/",
            "",
            "a",
            "/a/\u{fffe}",
            "/a\0",
        ])
    }

    fn id(&mut self) -> IdRef<'static> {
        let (scheme, id) = self.pick(&[
            ("world", "anyone"),
            ("world", "anyone"),
            ("digest", "jo:x"),
            ("ip", "10.0.0.1/8"),
            ("super", ""),
            ("", "ü"),
        ]);
        IdRef { scheme, id }
    }

    fn request(&mut self, kind: u8, revision: u64) -> Request<'static> {
        match kind % 10 {
            0..=5 => Request::Acquire {
                lock: self.name(),
                mode: self.mode(),
                wait: self.pick(&[true, true, true, false]),
                purpose: self.pick(&["", "", "purpose"]),
            },
            6 => Request::Reenter { lock: self.name(), token: self.token(revision) },
            7 | 8 => Request::Release { acquire: Number(self.figure()) },
            _ => Request::Cancel { acquire: Number(self.figure()) },
        }
    }
}

fn command_seeds() -> Vec<Vec<u8>> {
    let mut choices = Choices(&BUSY);
    let mut encoded = Vec::new();
    while let Some(kind) = choices.byte() {
        choices.figure();
        choices.command(kind, 9).encode(&mut encoded);
    }
    vec![encoded]
}

fn apply_seeds() -> Vec<Vec<u8>> {
    vec![BUSY.to_vec()]
}

fn state_seeds() -> Vec<Vec<u8>> {
    let mut state = StateMachine::default();
    perform(&mut state, &mut Choices(&BUSY));
    let mut image = Vec::new();
    state.write_snapshot(&mut image).expect("memory takes everything");
    let alone = [&[0, 0][..], &image].concat();
    let count = u16::try_from(BUSY.len()).expect("it is short").to_le_bytes();
    let changed = [&count[..], &image, &BUSY].concat();
    vec![alone, changed]
}

/// Two sessions, and something of everything: kind, stamp, then the command's own choices.
const BUSY: [u8; 100] = [
    10, 1, 0, 0, 0, 0, 2, 0, // session 1, two labels
    11, 1, 1, 1, 0, 0, 0, 0, // session 2
    15, 1, 0, 1, // the cluster
    0, 2, 0, 1, 1, 0, 0, 0, 0, // 1 takes "a"
    0, 2, 1, 1, 1, 0, 0, 0, 0, // 2 waits for it
    1, 3, 0, 2, 1, 1, 1, 0, 2, // 1 shares "b", with a purpose
    2, 3, 1, 2, 1, 1, 1, 0, 0, // 2 too
    3, 3, 0, 3, 1, 2, 2, 0, 0, // 1 takes two of the pool
    4, 3, 1, 3, 1, 2, 2, 0, 0, // 2 waits for as many
    14, 4, 1, 4, 0, // a hold of "b" is asked back
    15, 5, 2, 0, 0, 8, // 1 does two things to the tree
    0, 0, 1, 0, 0, 0, 0, 0, 0, // it makes "/a", and
    1, 0, 1, 0, 0, 0, // "/a/b", ephemeral
];
