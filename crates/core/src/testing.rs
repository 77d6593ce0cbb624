//! A state with something of everything in it, for tests that look inside.

use crate::{
    AclRef, ClusterId, Command, IdRef, Mode, NodeKind, Number, OwnerRef, Reply, Request, Secret,
    SessionId, Stamp, StateMachine, Token, TreeOp,
};

pub(crate) const A: SessionId = SessionId(0xa);
pub(crate) const B: SessionId = SessionId(0xb);

/// Two sessions; an exclusive lock held twice over and waited for, shared holds, permits, a
/// revoked hold, kept answers, labels and purposes.
pub(crate) fn busy_state() -> StateMachine {
    let mut state = StateMachine::default();
    let mut apply = |command: &Command<'_>| {
        let at = Stamp(1_000 + state.revision().0);
        state.apply(at, command, &mut Vec::new());
    };
    apply(&Command::FoundCluster { cluster: ClusterId(1 << 100) });
    for session in [A, B] {
        let labels = vec![("team", "blue"), ("zone", "")];
        let owner = OwnerRef { host: "alpha", pid: 7, user: "ünï", labels, ..Default::default() };
        let secret = Secret([session.0 as u8; 16]);
        apply(&Command::OpenSession { session, secret, ttl_ms: 10_000, owner });
    }
    let permits = Mode::Permits { take: 2, of: 3 };
    for (session, number, request) in [
        (A, 1, acquire("printer", Mode::Exclusive)),
        (B, 1, acquire("printer", Mode::Exclusive)),
        (A, 2, acquire("shared", Mode::Shared)),
        (B, 2, acquire("shared", Mode::Shared)),
        (A, 3, acquire("pool", permits)),
        (B, 3, acquire("pool", permits)),
        (A, 4, Request::Reenter { lock: "printer", token: Token(4) }),
        (A, 5, acquire("short", Mode::Exclusive)),
        (A, 6, Request::Release { acquire: Number(5) }),
        (B, 9, Request::Cancel { acquire: Number(8) }),
    ] {
        let number = Number(number);
        apply(&Command::Request { session, number, floor: Number(1), request });
    }
    apply(&Command::RevokeHold { lock: "shared", if_token: Token(6), now: false });
    grow_tree(&mut state);
    state
}

/// Ephemeral znodes of both sessions, a container, a time to live, an access list, null, a quota.
fn grow_tree(state: &mut StateMachine) {
    let mut apply = |command: &Command<'_>| {
        let at = Stamp(1_000 + state.revision().0);
        let reply = state.apply(at, command, &mut Vec::new());
        assert!(!matches!(reply, Reply::Refused(_)), "{command:?}: {reply:?}");
    };
    let secret = Secret([B.0 as u8; 16]);
    apply(&Command::ResumeSession { session: B, secret, ttl_ms: 20_000, connection: 7 });
    let open = AclRef { perms: 31, id: IdRef { scheme: "world", id: "anyone" } };
    let own = AclRef { perms: 31, id: IdRef { scheme: "digest", id: "jo:x" } };
    let data = Some(&b"text"[..]);
    let create = |path, data, acl: AclRef<'static>, kind, sequential| TreeOp::Create {
        path,
        data,
        acl: vec![acl],
        kind,
        sequential,
    };
    let tree = |session, connection, ops| Command::Tree {
        session,
        connection,
        ids: vec![own.id],
        enforce_quota: false,
        ops,
    };
    let limits = Some(&b"count=5,bytes=100"[..]);
    apply(&tree(
        A,
        0,
        vec![
            create("/queue", Some(&[]), open, NodeKind::Container, false),
            create("/queue/lock-", data, open, NodeKind::Ephemeral, true),
            create("/own", None, own, NodeKind::Persistent, false),
            create("/own/brief", data, own, NodeKind::Ttl { ms: 50 }, false),
            create("/zookeeper/quota/own", None, open, NodeKind::Persistent, false),
            create(
                "/zookeeper/quota/own/zookeeper_limits",
                limits,
                open,
                NodeKind::Persistent,
                false,
            ),
            create("/zookeeper/quota/own/zookeeper_stats", data, open, NodeKind::Persistent, false),
        ],
    ));
    apply(&tree(
        B,
        7,
        vec![
            create("/queue/lock-", data, own, NodeKind::Ephemeral, true),
            TreeOp::SetData { path: "/own", data, version: 0 },
        ],
    ));
}

fn acquire(lock: &str, mode: Mode) -> Request<'_> {
    Request::Acquire { lock, mode, wait: true, purpose: "for a test" }
}
