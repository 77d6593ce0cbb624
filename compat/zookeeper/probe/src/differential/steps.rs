//! What can be asked, and how it is chosen.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The longest time to live, in ms.
const TTL_MAX: i64 = 0x00ff_ffff_ffff;

/// How many clients a script has, each with a session.
pub const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
pub struct Step {
    pub client: usize,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    One(Op),
    Multi(Vec<Op>),
    MultiRead(Vec<Op>),
    /// closeSession, and then another session.
    CloseSession,
    /// The connection is cut, and the session resumed on another one.
    Reconnect {
        password: bool,
        ahead: bool,
        read_only: Option<bool>,
        timeout_ms: i32,
    },
    /// A request whose body may make no sense.
    Raw {
        op: i32,
        body: Vec<u8>,
    },
}

/// Data that a node is given; long ones are told by their length.
#[derive(Clone)]
pub struct Data(pub Option<Vec<u8>>);

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(bytes) if bytes.len() > 16 => write!(f, "{} bytes", bytes.len()),
            data => write!(f, "{data:?}"),
        }
    }
}

/// A path of the script's own tree, or one that is wrong.
#[derive(Clone, Debug)]
pub enum Path {
    Own(&'static str),
    Absolute(&'static str),
    Null,
}

#[derive(Clone, Copy, Debug)]
pub enum Acl {
    Open,
    Creator,
    Reader,
    Digest,
    Address,
    OpenAndDigest,
    Unknown,
    BadDigest,
    Empty,
    Null,
}

#[derive(Clone, Debug)]
pub enum Op {
    Create {
        op: i32,
        path: Path,
        data: Data,
        acl: Acl,
        flags: i32,
        ttl: i64,
    },
    Delete {
        path: Path,
        version: i32,
    },
    Exists {
        path: Path,
        watch: bool,
    },
    GetData {
        path: Path,
        watch: bool,
    },
    SetData {
        path: Path,
        data: Data,
        version: i32,
    },
    GetAcl {
        path: Path,
    },
    SetAcl {
        path: Path,
        acl: Acl,
        version: i32,
    },
    Children {
        path: Path,
        watch: bool,
        stat: bool,
    },
    Sync {
        path: Path,
    },
    Check {
        path: Path,
        version: i32,
    },
    Ephemerals {
        prefix: Path,
    },
    Count {
        path: Path,
    },
    AddWatch {
        path: Path,
        mode: i32,
    },
    CheckWatches {
        remove: bool,
        path: Path,
        kind: i32,
    },
    /// `since`: how many steps ago the client saw the state it has.
    SetWatches {
        two: bool,
        since: usize,
        lists: Vec<Vec<Path>>,
    },
    Auth {
        scheme: &'static str,
        auth: &'static str,
    },
    WhoAmI,
    Ping,
}

pub fn script(most: usize) -> impl Strategy<Value = Vec<Step>> {
    vec((0..CLIENTS, what()).prop_map(|(client, what)| Step { client, what }), 1..=most)
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        60 => op().prop_map(What::One),
        8 => vec(write(), 0..4).prop_map(What::Multi),
        1 => vec(op(), 1..4).prop_map(What::Multi),
        3 => vec(read(), 0..4).prop_map(What::MultiRead),
        2 => Just(What::CloseSession),
        3 => reconnect(),
        1 => raw(),
    ]
}

fn reconnect() -> impl Strategy<Value = What> {
    (
        prop::bool::weighted(0.85),
        prop::bool::weighted(0.1),
        prop_oneof![4 => Just(Some(false)), 1 => Just(None), 1 => Just(Some(true))],
        prop_oneof![4 => Just(30_000), 1 => Just(1), 1 => Just(1_000_000), 1 => Just(0),
            1 => Just(-5)],
    )
        .prop_map(|(password, ahead, read_only, timeout_ms)| What::Reconnect {
            password,
            ahead,
            read_only,
            timeout_ms,
        })
}

fn raw() -> impl Strategy<Value = What> {
    let ops = prop_oneof![
        4 => 0..=25_i32,
        2 => 99..=108_i32,
        1 => prop_oneof![Just(-1), Just(1000), Just(i32::MAX), Just(200)],
    ];
    let bodies = prop_oneof![
        Just(vec![]),
        Just(vec![0xff; 4]),
        Just(vec![0, 0, 0, 2, b'/', b'a']),
        Just(vec![0x7f, 0xff, 0xff, 0xff]),
        Just(vec![0, 0, 0, 1, b'/', 1, 0, 0]),
        Just(vec![0xff, 0xff, 0xff, 0xfe, 0]),
    ];
    // On purpose different: a login where nobody can log in (ZooKeeper lets it begin), and its own
    // removal of containers asked for by a client.
    let ops = ops.prop_filter("what differs on purpose", |op| !matches!(op, 20 | 102));
    (ops, bodies).prop_map(|(op, body)| What::Raw { op, body })
}

fn path() -> impl Strategy<Value = Path> {
    prop_oneof![
        20 => prop::sample::select(vec!["", "/a", "/a/b", "/a/b/c", "/d", "/d/e"])
            .prop_map(Path::Own),
        4 => prop::sample::select(vec![
            "/a/s0000000000", "/a/s0000000001", "/a/s0000000002", "/s0000000001",
            "/d/0000000000", "/a/\u{e9}\u{20ac}",
        ])
        .prop_map(Path::Own),
        1 => prop::sample::select(vec![
            "/a/", "/a//b", "/a/./b", "/a/../b", "/a/.", "/..", "/\u{0}", "/a\u{1}b", "/\u{7f}",
            "/\u{fff0}", "/\u{e000}", "/\u{f8ff}x",
            "/a/...", "/ ",
        ])
        .prop_map(Path::Own),
        1 => prop::sample::select(vec![
            "/", "", "a", "a/b", "//", "/zookeeper", "/zookeeper/config", "/zookeeper/quota",
        ])
        .prop_map(Path::Absolute),
        1 => Just(Path::Null),
    ]
}

/// Where something may be made: like `path`, with names that a number is put behind.
fn created() -> impl Strategy<Value = Path> {
    prop_oneof![
        6 => path(),
        2 => prop::sample::select(vec!["/a/s", "/s", "/d/", "/a/b/c/s"]).prop_map(Path::Own),
    ]
}

fn data() -> impl Strategy<Value = Data> {
    option::weighted(0.9, prop_oneof![3 => vec(any::<u8>(), 0..6), 1 => Just(vec![7; 3000])])
        .prop_map(Data)
}

fn acl() -> impl Strategy<Value = Acl> {
    prop_oneof![
        20 => Just(Acl::Open),
        2 => Just(Acl::Creator),
        2 => Just(Acl::Reader),
        1 => Just(Acl::Digest),
        1 => Just(Acl::Address),
        1 => Just(Acl::OpenAndDigest),
        1 => prop::sample::select(vec![Acl::Unknown, Acl::BadDigest, Acl::Empty, Acl::Null]),
    ]
}

fn version() -> impl Strategy<Value = i32> {
    prop_oneof![6 => Just(-1), 4 => 0..4_i32, 1 => Just(-2), 1 => Just(i32::MIN)]
}

fn create() -> impl Strategy<Value = Op> {
    let kinds = prop_oneof![
        10 => (prop::sample::select(vec![1, 15]),
            prop_oneof![4 => Just(0), 4 => Just(1), 3 => Just(2), 3 => Just(3)], Just(0_i64)),
        2 => (Just(19), Just(4), Just(0_i64)),
        2 => (Just(21), prop::sample::select(vec![5, 6]), prop::sample::select(vec![1_000_000_000_i64])),
        1 => (prop::sample::select(vec![1, 15, 19, 21]), -1..8_i32,
            prop::sample::select(vec![0, -1, 1_000_000, i64::MAX, TTL_MAX])),
    ];
    (kinds, created(), data(), acl()).prop_map(|((op, flags, ttl), path, data, acl)| {
        // ZooKeeper 3.9.5 takes any time for a node that isn't to have one, ends when it applies
        // that, and doesn't start again with such an entry in its log.
        let ends_it = op == 21 && !matches!(flags, 5 | 6) && !(1..=TTL_MAX).contains(&ttl);
        let ttl = if ends_it { TTL_MAX } else { ttl };
        Op::Create { op, path, data, acl, flags, ttl }
    })
}

fn write() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => create(),
        3 => (path(), version()).prop_map(|(path, version)| Op::Delete { path, version }),
        3 => (path(), data(), version())
            .prop_map(|(path, data, version)| Op::SetData { path, data, version }),
        1 => (path(), version()).prop_map(|(path, version)| Op::Check { path, version }),
    ]
}

fn read() -> impl Strategy<Value = Op> {
    prop_oneof![
        (path(), any::<bool>()).prop_map(|(path, watch)| Op::GetData { path, watch }),
        (path(), any::<bool>()).prop_map(|(path, watch)| Op::Children { path, watch, stat: false }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        24 => create(),
        12 => (path(), version()).prop_map(|(path, version)| Op::Delete { path, version }),
        10 => (path(), data(), version())
            .prop_map(|(path, data, version)| Op::SetData { path, data, version }),
        8 => (path(), any::<bool>()).prop_map(|(path, watch)| Op::Exists { path, watch }),
        8 => (path(), any::<bool>()).prop_map(|(path, watch)| Op::GetData { path, watch }),
        8 => (path(), any::<bool>(), any::<bool>())
            .prop_map(|(path, watch, stat)| Op::Children { path, watch, stat }),
        2 => path().prop_map(|path| Op::GetAcl { path }),
        3 => (path(), acl(), version())
            .prop_map(|(path, acl, version)| Op::SetAcl { path, acl, version }),
        2 => path().prop_map(|path| Op::Sync { path }),
        1 => (path(), version()).prop_map(|(path, version)| Op::Check { path, version }),
        2 => path().prop_map(|prefix| Op::Ephemerals { prefix }),
        2 => path().prop_map(|path| Op::Count { path }),
        6 => watches(),
        2 => auth(),
        1 => Just(Op::WhoAmI),
        1 => Just(Op::Ping),
    ]
}

fn watches() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (path(), prop_oneof![8 => 0..2_i32, 1 => -1..4_i32])
            .prop_map(|(path, mode)| Op::AddWatch { path, mode }),
        2 => (any::<bool>(), path(), prop_oneof![8 => 1..6_i32, 1 => 0..8_i32])
            .prop_map(|(remove, path, kind)| Op::CheckWatches { remove, path, kind }),
        1 => (any::<bool>(), 0..8_usize, vec(vec(path(), 0..3), 5))
            .prop_map(|(two, since, lists)| Op::SetWatches { two, since, lists }),
    ]
}

fn auth() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Auth { scheme: "digest", auth: "u:p" }),
        2 => Just(Op::Auth { scheme: "digest", auth: "v:p" }),
        1 => Just(Op::Auth { scheme: "digest", auth: "super:test" }),
        1 => Just(Op::Auth { scheme: "ip", auth: "" }),
        1 => Just(Op::Auth { scheme: "world", auth: "anyone" }),
        1 => Just(Op::Auth { scheme: "nothing", auth: "x" }),
        1 => Just(Op::Auth { scheme: "digest", auth: "" }),
    ]
}
