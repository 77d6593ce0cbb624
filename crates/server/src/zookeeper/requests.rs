//! What a client asks for: to the log, into the line of reads, or answered on the spot.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::{Command, EndReason, IdRef};
use lockkeeper_node::{NodeHandle, Sink};
use lockkeeper_wire::jute::{
    Auth, ErrorCode, Hidden, Multi, Op, OpCode, Reply, Request, RequestHeader, Undecodable,
    decode_request,
};
use parking_lot::Mutex;

use super::ids::{Id, prove};
use super::outbox::{Outbox, Session};
use super::reconfig::{self, Wish};
use super::sasl::{DigestMd5, Step};
use super::writes::{self, Asked};
use super::{Front, counts};
use crate::limits::IDS_MAX;

/// The reading half's way to the node.
pub(super) struct Requests {
    front: Arc<Front>,
    outbox: Arc<Outbox>,
    sink: Arc<dyn Sink>,
    session: Session,
    syncs: Arc<Mutex<Syncs>>,
    held: Mutex<Held>,
    /// A login that isn't over.
    login: Mutex<Option<DigestMd5>>,
}

/// Syncs that wait for the next round, and whether somebody sees to it.
#[derive(Default)]
struct Syncs {
    waiting: Vec<u64>,
    is_running: bool,
}

/// Writes that wait for a change of the members: what is asked for behind it must not be done
/// before it, and unlike other requests it doesn't go to the log as it comes.
#[derive(Default)]
struct Held {
    /// The slot of the newest change of the members.
    newest: Option<u64>,
    /// Oldest first, each with the slot of the change that it waits for.
    writes: VecDeque<(u64, Write)>,
}

/// A write that stands in line, and isn't with the node.
#[derive(Debug)]
pub(super) struct Write {
    slot: u64,
    frame: Bytes,
    /// What the connection had proved when it came.
    ids: Arc<Vec<Id>>,
}

/// What has become of a request.
#[derive(Debug)]
pub(super) enum Taken {
    /// It will be answered, or was.
    Done,
    /// The node's queue has no room for this write: nothing was done.
    NoRoom(Write),
    /// The connection is to be closed.
    Close,
}

impl Requests {
    pub(super) fn new(
        front: &Arc<Front>,
        outbox: &Arc<Outbox>,
        sink: &Arc<dyn Sink>,
        session: Session,
    ) -> Self {
        Self {
            front: Arc::clone(front),
            outbox: Arc::clone(outbox),
            sink: Arc::clone(sink),
            session,
            syncs: Arc::default(),
            held: Mutex::default(),
            login: Mutex::default(),
        }
    }

    /// Takes a request.
    pub(super) fn take(&self, frame: &Bytes) -> Taken {
        let (header, request) = match decode_request(frame) {
            Ok(decoded) => decoded,
            Err(Undecodable::Body { header, why }) => {
                tracing::debug!(op = %header.op, %why, "a request that can't be read");
                self.outbox.fail(header.xid, header.op, ErrorCode::MARSHALLING_ERROR);
                return Taken::Done;
            }
            Err(Undecodable::Close(why)) => {
                tracing::debug!(%why, "a frame that is no request: the connection is closed");
                return Taken::Close;
            }
        };
        let RequestHeader { xid, op } = header;
        if !self.has_shown_enough(op) {
            tracing::info!(client = %self.outbox.address, "a client shows no credentials");
            let error = ErrorCode::SESSION_CLOSED_REQUIRE_SASL_AUTH;
            self.outbox.answer(xid, op, error, &Reply::Empty);
            return Taken::Close;
        }
        match &request {
            Request::Ping => return self.ping(),
            Request::Auth(auth) => return self.auth(xid, auth),
            Request::Sasl(token) => return self.log_in(xid, token.0.unwrap_or_default()),
            Request::Unimplemented(_) => self.outbox.unknown(xid, op),
            Request::Sync(_) | Request::Reconfig(_) if self.session.is_local => {
                self.outbox.fail(xid, op, ErrorCode::NOT_READ_ONLY);
            }
            Request::Sync(_) => self.sync(xid, frame),
            Request::GetAllChildrenNumber(path) => self.count(xid, frame, *path),
            Request::Reconfig(_) if !self.front.settings.reconfig => {
                self.outbox.fail(xid, op, ErrorCode::RECONFIG_DISABLED);
            }
            Request::Reconfig(asked) => self.reconfigure(xid, frame, Wish::from(asked)),
            Request::CloseSession if self.session.is_local => {
                self.outbox.reply_with(xid, op, &Reply::Empty);
            }
            Request::Create(_)
            | Request::Delete(_)
            | Request::SetData(_)
            | Request::SetAcl(_)
            | Request::Multi(_)
            | Request::CloseSession => return self.write(xid, op, frame, &request),
            _ => self.outbox.read(xid, op, frame.clone()),
        }
        Taken::Done
    }

    /// Proposes a write that stands in line: once more, or late.
    pub(super) fn take_late(&self, write: Write) -> Taken {
        let Write { slot, ref frame, ref ids } = write;
        let Ok((_, request)) = decode_request(frame) else { return Taken::Close };
        let parts = parts(&request);
        let is_proposed = match writes::ops(&request, &parts, ids, &self.front.settings) {
            None if matches!(request, Request::CloseSession) => {
                self.outbox.ask_late(slot, Asked::Close);
                self.propose_end(slot)
            }
            Some(Ok((ops, asked))) => {
                self.outbox.ask_late(slot, asked);
                self.propose(slot, ids, ops)
            }
            _ => return Taken::Close,
        };
        if is_proposed { Taken::Done } else { Taken::NoRoom(write) }
    }

    // ------------------------------------------------------------ behind a change of the members

    /// The next write whose wait is over.
    pub(super) fn next_released(&self) -> Option<Write> {
        let held = &mut *self.held.lock();
        let (change, _) = held.writes.front()?;
        if !self.outbox.has_answered(*change) {
            return None;
        }
        held.writes.pop_front().map(|(_, write)| write)
    }

    /// Whether writes wait.
    pub(super) fn holds(&self) -> bool {
        !self.held.lock().writes.is_empty()
    }

    /// The slot of the change that a new write has to wait for.
    fn change_before(&self) -> Option<u64> {
        let held = &mut *self.held.lock();
        let newest = held.newest?;
        if held.writes.is_empty() && self.outbox.has_answered(newest) {
            held.newest = None;
        }
        held.newest
    }

    // ------------------------------------------------------------ the log

    fn write(&self, xid: i32, op: OpCode, frame: &Bytes, request: &Request<'_>) -> Taken {
        if self.session.is_local {
            self.outbox.fail(xid, op, ErrorCode::NOT_READ_ONLY);
            return Taken::Done;
        }
        let ids = self.outbox.ids();
        let parts = parts(request);
        let (ops, asked) = match writes::ops(request, &parts, &ids, &self.front.settings) {
            Some(Ok((ops, _))) if ops.is_empty() => {
                self.outbox.reply_with(xid, op, &Reply::Multi(Multi::of([])));
                return Taken::Done;
            }
            Some(Ok((ops, asked))) => (Some(ops), asked),
            Some(Err(error)) => {
                self.outbox.fail(xid, op, error);
                return Taken::Done;
            }
            None => (None, Asked::Close),
        };
        let write = |slot| Write { slot, frame: frame.clone(), ids: Arc::clone(&ids) };
        if let Some(change) = self.change_before() {
            let slot = self.outbox.hold(xid, op, frame.len());
            self.held.lock().writes.push_back((change, write(slot)));
            return Taken::Done;
        }
        let slot = self.outbox.ask(xid, op, asked, frame.len());
        let is_proposed = match ops {
            Some(ops) => self.propose(slot, &ids, ops),
            None => self.propose_end(slot),
        };
        if is_proposed { Taken::Done } else { Taken::NoRoom(write(slot)) }
    }

    fn propose(&self, id: u64, ids: &[Id], ops: Vec<lockkeeper_core::TreeOp<'_>>) -> bool {
        let mut ids: Vec<IdRef<'_>> = ids.iter().map(Id::as_ref).collect();
        if self.front.settings.skip_acl {
            ids.push(IdRef { scheme: "super", id: "" });
        }
        let command = Command::Tree {
            session: self.session.id,
            connection: self.session.connection,
            ids,
            enforce_quota: self.front.settings.enforce_quota,
            ops,
        };
        self.hand_over(id, &command)
    }

    fn propose_end(&self, id: u64) -> bool {
        let (session, reason) = (self.session.id, EndReason::Closed);
        self.hand_over(id, &Command::EndSession { session, reason })
    }

    /// False if the node's queue has no room.
    fn hand_over(&self, id: u64, command: &Command<'_>) -> bool {
        self.front.node.propose(command, id, &self.sink);
        self.outbox.is_proposed()
    }

    /// The client has said something, so its session lives.
    pub(super) fn heard(&self) {
        let Session { id, is_local, .. } = self.session;
        if is_local {
            return;
        }
        match self.outbox.beat() {
            Some(beat) => self.front.node.heartbeat(id, beat, &self.sink),
            None => self.front.node.heard(id),
        }
    }

    // ------------------------------------------------------------ past the line

    fn ping(&self) -> Taken {
        let Some(id) = self.outbox.ping() else { return Taken::Close };
        if self.session.is_local {
            self.sink.confirmed(id);
            self.sink.flush();
        } else {
            self.front.node.heartbeat(self.session.id, id, &self.sink);
        }
        Taken::Done
    }

    fn auth(&self, xid: i32, auth: &Auth<'_>) -> Taken {
        let address = self.outbox.address.ip();
        let credentials = auth.credentials.0.unwrap_or_default();
        let super_digest = self.front.settings.super_digest.as_deref();
        let scheme = auth.scheme.unwrap_or("");
        let proved = prove(scheme, credentials, address, super_digest);
        let Some(proved) = proved.filter(|_| self.outbox.ids().len() < IDS_MAX) else {
            tracing::debug!(scheme = %scheme.escape_debug(), "credentials are refused");
            self.front.figures.authentication_failed();
            self.outbox.answer(xid, OpCode::AUTH, ErrorCode::AUTH_FAILED, &Reply::Empty);
            return Taken::Close;
        };
        self.outbox.prove(proved);
        self.outbox.answer(xid, OpCode::AUTH, ErrorCode::OK, &Reply::Empty);
        Taken::Done
    }

    /// A step of a login.
    fn log_in(&self, xid: i32, token: &[u8]) -> Taken {
        let answer = |error, token: Option<&[u8]>| {
            self.outbox.answer(xid, OpCode::SASL, error, &Reply::Token(Hidden(token)));
        };
        let login = &mut *self.login.lock();
        let step = self.front.settings.sasl_users.as_ref().map(|users| {
            let login = login.get_or_insert_with(|| {
                let random = &self.front.random;
                let bits = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
                DigestMd5::new(Arc::clone(users), bits.to_be_bytes())
            });
            login.step(token)
        });
        match step {
            Some(Step::Challenge(token)) => answer(ErrorCode::OK, Some(&token)),
            Some(Step::Done { token, user }) if self.outbox.ids().len() < IDS_MAX => {
                *login = None;
                let is_super = self.front.settings.sasl_super.as_ref() == Some(&user);
                let mut proved = vec![Id::new("sasl", &user)];
                proved.extend(is_super.then(|| Id::new("super", "")));
                self.outbox.prove(proved);
                answer(ErrorCode::OK, Some(&token));
            }
            // Wrong, or there are no such logins here.
            Some(Step::Done { .. } | Step::Failed) | None => {
                tracing::debug!(client = %self.outbox.address, "a login failed");
                self.front.figures.authentication_failed();
                let requires_sasl = self.required_schemes().iter().any(|it| it == "sasl");
                let error = if requires_sasl {
                    ErrorCode::SESSION_CLOSED_REQUIRE_SASL_AUTH
                } else {
                    ErrorCode::AUTH_FAILED
                };
                answer(error, None);
                return Taken::Close;
            }
        }
        Taken::Done
    }

    fn required_schemes(&self) -> &[String] {
        &self.front.settings.required_schemes
    }

    /// Whether the connection has shown what it must before `op` is looked at.
    fn has_shown_enough(&self, op: OpCode) -> bool {
        let required = self.required_schemes();
        required.is_empty()
            || matches!(op, OpCode::AUTH | OpCode::SASL)
            || self.outbox.ids().iter().any(|id| required.contains(&id.scheme))
    }

    /// One task for all syncs of the connection: those that come while a round runs take the next.
    fn sync(&self, xid: i32, frame: &Bytes) {
        let id = self.outbox.wait(xid, OpCode::SYNC, frame.clone());
        {
            let syncs = &mut *self.syncs.lock();
            syncs.waiting.push(id);
            if std::mem::replace(&mut syncs.is_running, true) {
                return;
            }
        }
        let (node, outbox) = (self.front.node.clone(), Arc::clone(&self.outbox));
        let syncs = Arc::clone(&self.syncs);
        tokio::spawn(async move {
            tokio::select! {
                () = run_syncs(&node, &outbox, &syncs) => {}
                // Nobody is left to be told.
                () = outbox.is_closing() => {}
            }
        });
    }

    /// It may be a long walk; what stands behind it in line waits.
    fn count(&self, xid: i32, frame: &Bytes, path: Option<&str>) {
        let id = self.outbox.wait(xid, OpCode::GET_ALL_CHILDREN_NUMBER, frame.clone());
        let (front, outbox) = (Arc::clone(&self.front), Arc::clone(&self.outbox));
        let (ids, path) = (outbox.ids(), path.map(str::to_owned));
        tokio::spawn(async move {
            tokio::select! {
                () = counts::run(&front, &outbox, &ids, (id, xid), path.as_deref()) => {}
                // Nobody is left to be told.
                () = outbox.is_closing() => {}
            }
        });
    }

    /// What it comes to takes its time; what stands behind it in line waits.
    fn reconfigure(&self, xid: i32, frame: &Bytes, wish: Wish) {
        let id = self.outbox.wait(xid, OpCode::RECONFIG, frame.clone());
        self.held.lock().newest = Some(id);
        let (front, outbox) = (Arc::clone(&self.front), Arc::clone(&self.outbox));
        let (session, ids) = (self.session, outbox.ids());
        tokio::spawn(async move {
            tokio::select! {
                () = reconfig::run(&front, &outbox, session, &ids, (id, wish)) => {}
                // Nobody is left to be told; what the leader has begun, it ends.
                () = outbox.is_closing() => {}
            }
        });
    }
}

async fn run_syncs(node: &NodeHandle, outbox: &Outbox, syncs: &Mutex<Syncs>) {
    loop {
        let waiting = {
            let syncs = &mut *syncs.lock();
            syncs.is_running = !syncs.waiting.is_empty();
            std::mem::take(&mut syncs.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        if node.read_index().await.is_err() {
            return outbox.finish();
        }
        outbox.synced(&waiting);
        node.query(|state, _| outbox.go_on(state));
    }
}

/// The parts of a multi, which its operations borrow from.
fn parts<'a>(request: &'a Request<'a>) -> Vec<Op<'a>> {
    match request {
        Request::Multi(multi) => multi.iter().collect(),
        _ => Vec::new(),
    }
}
