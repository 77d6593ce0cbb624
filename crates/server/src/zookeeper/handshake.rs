//! The first frame of a connection: which session it gets, or goes on with.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{Command, OwnerRef, Refusal, Secret, SessionId, TTL_MS_MAX, TTL_MS_MIN};
use lockkeeper_node::Sink;
use lockkeeper_wire::jute::{ConnectRequest, PASSWORD_BYTES};

use super::Front;
use super::outbox::{HANDSHAKE, OPENING, Offer, Outbox, Session};

/// Ids are drawn anew this often if they are taken, which chance alone doesn't bring about.
const DRAWS_MAX: usize = 3;

/// Decides on a client's first frame, in the order in which ZooKeeper does. `None`: there is no
/// session, and the connection is to be closed; if the client is to know why, it was told.
pub(super) async fn shake(
    front: &Front,
    outbox: &Arc<Outbox>,
    sink: &Arc<dyn Sink>,
    request: &ConnectRequest<'_>,
) -> Option<Session> {
    let timeout = clamp(front, request.timeout_ms);
    // By the same word by which connections are let go of: none is missed.
    if !front.node.serving().borrow().is_ready {
        return local(front, outbox, request, timeout);
    }
    if is_ahead(front, request.last_zxid_seen) {
        // Perhaps this server only lags.
        front.node.read_index().await.ok()?;
        if is_ahead(front, request.last_zxid_seen) {
            let seen = format_args!("0x{:x}", request.last_zxid_seen).to_string();
            tracing::info!(client = %outbox.address, seen, "a client has seen what isn't here");
            return None;
        }
    }
    if request.session_id == 0 {
        open(front, outbox, sink, request, timeout).await
    } else {
        resume(front, outbox, sink, request, timeout).await
    }
}

fn is_ahead(front: &Front, last_zxid_seen: i64) -> bool {
    front.node.query(|state, _| last_zxid_seen > state.revision().0.cast_signed())
}

/// What is granted of the time-out that a client would like.
fn clamp(front: &Front, timeout_ms: i32) -> Duration {
    let lease_min = Duration::from_millis(TTL_MS_MIN.into());
    let lease_max = Duration::from_millis(TTL_MS_MAX.into());
    let max = front.settings.session_timeout_max.min(lease_max);
    let min = front.settings.session_timeout_min.max(lease_min).min(max);
    let asked = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    asked.clamp(min, max)
}

fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)
}

/// Random, and neither negative nor of the few that mean something: the first byte is 1 to 127.
fn draw_session(front: &Front) -> SessionId {
    let bits = front.random.next_u64();
    let first = bits >> 56 & 0x7f;
    SessionId(bits & (u64::MAX >> 8) | first.max(1) << 56)
}

fn draw_password(front: &Front) -> [u8; PASSWORD_BYTES] {
    let bits = u128::from(front.random.next_u64()) << 64 | u128::from(front.random.next_u64());
    bits.to_be_bytes()
}

async fn open(
    front: &Front,
    outbox: &Outbox,
    sink: &Arc<dyn Sink>,
    request: &ConnectRequest<'_>,
    timeout: Duration,
) -> Option<Session> {
    let host = outbox.address.ip().to_string();
    for _ in 0..DRAWS_MAX {
        let (id, password) = (draw_session(front), draw_password(front));
        let session = Session { id, timeout, connection: OPENING, is_local: false };
        outbox.begin(Offer { session, password, read_only: request.read_only });
        let owner = OwnerRef { host: &host, program: "zookeeper", ..OwnerRef::default() };
        let (secret, ttl_ms) = (Secret(password), milliseconds(timeout));
        let command = Command::OpenSession { session: id, secret, ttl_ms, owner };
        front.node.propose(&command, HANDSHAKE, sink);
        match outbox.handshake().await? {
            Ok(session) => return Some(session),
            // The id is taken.
            Err(Refusal::WrongSecret) => {}
            Err(refusal) => {
                tracing::warn!(?refusal, "a session for a ZooKeeper client is refused");
                return None;
            }
        }
    }
    None
}

async fn resume(
    front: &Front,
    outbox: &Outbox,
    sink: &Arc<dyn Sink>,
    request: &ConnectRequest<'_>,
    timeout: Duration,
) -> Option<Session> {
    let read_only = request.read_only;
    let Some(password) = request.password.0.and_then(|bytes| bytes.try_into().ok()) else {
        outbox.refuse_session(read_only);
        return None;
    };
    let id = SessionId(request.session_id.cast_unsigned());
    // Never that of the connection that opened the session.
    let connection = front.random.next_u64() | 1;
    let session = Session { id, timeout, connection, is_local: false };
    outbox.begin(Offer { session, password, read_only });
    let (secret, ttl_ms) = (Secret(password), milliseconds(timeout));
    let command = Command::ResumeSession { session: id, secret, ttl_ms, connection };
    front.node.propose(&command, HANDSHAKE, sink);
    match outbox.handshake().await? {
        Ok(session) => Some(session),
        Err(Refusal::UnknownSession | Refusal::WrongSecret) => {
            outbox.refuse_session(read_only);
            None
        }
        Err(refusal) => {
            tracing::warn!(?refusal, session = %id, "a ZooKeeper session isn't resumed");
            None
        }
    }
}

/// Without a majority: a session of this server's own, for a client that is content to read.
fn local(
    front: &Front,
    outbox: &Outbox,
    request: &ConnectRequest<'_>,
    timeout: Duration,
) -> Option<Session> {
    let is_reading_only = front.is_reading_only.load(Ordering::Relaxed);
    if !is_reading_only || request.read_only != Some(true) {
        return None;
    }
    let asked = SessionId(request.session_id.cast_unsigned());
    let (zxid, is_global) = front
        .node
        .query(|state, _| (state.revision().0.cast_signed(), state.lease(asked).is_some()));
    // A session of the cluster's goes on where there is a majority.
    if request.last_zxid_seen > zxid || is_global {
        return None;
    }
    if request.session_id != 0 {
        outbox.refuse_session(request.read_only);
        return None;
    }
    let (id, password) = (draw_session(front), draw_password(front));
    let session = Session { id, timeout, connection: OPENING, is_local: true };
    outbox.grant_local(&Offer { session, password, read_only: request.read_only }, zxid);
    Some(session)
}
