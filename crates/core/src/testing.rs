//! A state with something of everything in it, for tests that look inside.

use crate::{
    ClusterId, Command, Mode, Number, OwnerRef, Request, Secret, SessionId, Stamp, StateMachine,
    Token,
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
    state
}

fn acquire(lock: &str, mode: Mode) -> Request<'_> {
    Request::Acquire { lock, mode, wait: true, purpose: "for a test" }
}
