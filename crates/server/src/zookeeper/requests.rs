//! What a client asks for: to the log, into the line of reads, or answered on the spot.

use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::{Command, EndReason, IdRef};
use lockkeeper_node::{NodeHandle, Sink};
use lockkeeper_wire::jute::{
    Auth, ErrorCode, Hidden, Multi, Op, OpCode, Reply, Request, RequestHeader, Undecodable,
    decode_request,
};
use parking_lot::Mutex;

use super::Front;
use super::ids::{Id, prove};
use super::outbox::{Outbox, Session};
use super::reconfig::{self, Wish};
use super::sasl::{DigestMd5, Step};
use super::writes::{self, Asked};
use crate::limits::IDS_MAX;

/// The reading half's way to the node.
pub(super) struct Requests {
    front: Arc<Front>,
    outbox: Arc<Outbox>,
    sink: Arc<dyn Sink>,
    session: Session,
    syncs: Arc<Mutex<Syncs>>,
    /// A login that isn't over.
    login: Mutex<Option<DigestMd5>>,
}

/// Syncs that wait for the next round, and whether somebody sees to it.
#[derive(Default)]
struct Syncs {
    waiting: Vec<u64>,
    is_running: bool,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It will be answered, or was.
    Done,
    /// The node's queue has no room for the write of this slot: nothing was done.
    NoRoom(u64),
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
            Request::Reconfig(_) if !self.front.settings.reconfig => {
                self.outbox.fail(xid, op, ErrorCode::RECONFIG_DISABLED);
            }
            Request::Reconfig(asked) => self.reconfigure(xid, frame, Wish::from(asked)),
            Request::CloseSession if self.session.is_local => {
                self.outbox.reply_with(xid, op, &Reply::Empty);
            }
            Request::CloseSession => {
                let id = self.outbox.ask(xid, op, Asked::Close, frame.len());
                return self.propose_end(id);
            }
            Request::Create(_)
            | Request::Delete(_)
            | Request::SetData(_)
            | Request::SetAcl(_)
            | Request::Multi(_) => return self.write(xid, op, frame, &request),
            _ => self.outbox.read(xid, op, frame.clone()),
        }
        Taken::Done
    }

    /// Tries once more what there was no room for.
    pub(super) fn take_again(&self, id: u64, frame: &Bytes) -> Taken {
        let Ok((_, request)) = decode_request(frame) else { return Taken::Close };
        self.outbox.ask_again(id);
        if matches!(request, Request::CloseSession) {
            return self.propose_end(id);
        }
        let ids = self.outbox.ids();
        let parts = parts(&request);
        match writes::ops(&request, &parts, &ids, &self.front.settings) {
            Some(Ok((ops, _))) => self.propose(id, &ids, ops),
            _ => Taken::Close,
        }
    }

    // ------------------------------------------------------------ the log

    fn write(&self, xid: i32, op: OpCode, frame: &Bytes, request: &Request<'_>) -> Taken {
        if self.session.is_local {
            self.outbox.fail(xid, op, ErrorCode::NOT_READ_ONLY);
            return Taken::Done;
        }
        let ids = self.outbox.ids();
        let parts = parts(request);
        match writes::ops(request, &parts, &ids, &self.front.settings) {
            Some(Ok((ops, _))) if ops.is_empty() => {
                self.outbox.reply_with(xid, op, &Reply::Multi(Multi::of([])));
                Taken::Done
            }
            Some(Ok((ops, asked))) => {
                let id = self.outbox.ask(xid, op, asked, frame.len());
                self.propose(id, &ids, ops)
            }
            Some(Err(error)) => {
                self.outbox.fail(xid, op, error);
                Taken::Done
            }
            None => Taken::Close,
        }
    }

    fn propose(&self, id: u64, ids: &[Id], ops: Vec<lockkeeper_core::TreeOp<'_>>) -> Taken {
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

    fn propose_end(&self, id: u64) -> Taken {
        let (session, reason) = (self.session.id, EndReason::Closed);
        self.hand_over(id, &Command::EndSession { session, reason })
    }

    fn hand_over(&self, id: u64, command: &Command<'_>) -> Taken {
        self.front.node.propose(command, id, &self.sink);
        if self.outbox.is_proposed() { Taken::Done } else { Taken::NoRoom(id) }
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

    /// What it comes to takes its time; what stands behind it in line waits.
    fn reconfigure(&self, xid: i32, frame: &Bytes, wish: Wish) {
        let id = self.outbox.wait(xid, OpCode::RECONFIG, frame.clone());
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
