//! From one decoded request to a command, a question or an answer.

use std::sync::Arc;

use lockkeeper_core::{
    self as core, Command, EndReason, LABEL_BYTES_MAX, LABELS_MAX, LOCK_NAME_BYTES_MAX, Limit,
    Number, OWNER_FIELD_BYTES_MAX, PURPOSE_BYTES_MAX, Secret, SessionId, Token,
};
use lockkeeper_node::{NodeHandle, Sink};
use lockkeeper_wire::native::{self as wire, request::Body as Asks, response::Body};

use super::outbox::{Asked, Outbox};
use super::{convert, operators, questions};
use crate::error::{self, No, Subject};
use crate::limits::{QUESTIONS_MAX, WATCHES_MAX};

/// One connection's way to the node. Cheap to clone: a question's task has one of its own.
#[derive(Clone)]
pub(super) struct Requests {
    pub(super) node: NodeHandle,
    pub(super) outbox: Arc<Outbox>,
    /// The outbox, as the node knows it.
    sink: Arc<dyn Sink>,
    ttl_ms_max: u32,
}

impl Requests {
    pub(super) fn new(node: NodeHandle, outbox: Arc<Outbox>, ttl_ms_max: u32) -> Self {
        let sink = Arc::clone(&outbox) as Arc<dyn Sink>;
        Self { node, outbox, sink, ttl_ms_max }
    }

    /// Takes one request. What is wrong with it is answered; nothing is ever an error here.
    pub(super) fn take(&self, request: wire::Request) {
        let wire::Request { id, floor, body } = request;
        let result = match body {
            _ if id == 0 => Err(no("a request's id must be 1 or more")),
            None => Err(no("the request says nothing that this version of the server knows")),
            Some(body) => self.dispatch(id, floor, body),
        };
        if let Err(body) = result {
            self.outbox.answer(id, *body);
        }
    }

    /// The connection is gone.
    pub(super) fn leave(&self) {
        self.outbox.shut();
        self.node.detach(&self.sink);
    }

    /// Frames of this connection's session were read: it lives.
    pub(super) fn heard(&self) {
        if let Some(session) = self.outbox.live_session() {
            self.node.heard(session);
        }
    }

    /// Takes back a watch that the outbox has ended.
    pub(super) fn forget_watch(&self, id: u64) {
        self.node.unwatch(id, &self.sink);
    }

    fn dispatch(&self, id: u64, floor: u64, body: Asks) -> Result<(), No> {
        match body {
            Asks::Acquire(acquire) => self.acquire(id, floor, &acquire),
            Asks::Release(wire::Release { acquire }) => {
                self.number(id, floor, core::Request::Release { acquire: Number(acquire) })
            }
            Asks::Heartbeat(_) => self.heartbeat(id),
            Asks::Reenter(wire::Reenter { lock, token }) => {
                check_name(&lock)?;
                let request = core::Request::Reenter { lock: &lock, token: Token(token) };
                self.number_lock(id, floor, &lock, request)
            }
            Asks::Cancel(wire::Cancel { acquire }) => {
                self.number(id, floor, core::Request::Cancel { acquire: Number(acquire) })
            }
            Asks::OpenSession(open) => self.open(id, &open),
            Asks::ResumeSession(resume) => self.resume(id, &resume),
            Asks::EndSession(end) => self.end(id, &end),

            Asks::Confirm(wire::Confirm { acquire }) => {
                let session = self.own_session()?;
                self.question(id, move |node| async move {
                    questions::confirm(&node, session, Number(acquire)).await
                })
            }
            Asks::GetLock(get) => self.question(id, |node| questions::get_lock(node, get)),
            Asks::ListLocks(list) => self.question(id, |node| questions::list_locks(node, list)),
            Asks::GetSession(get) => self.question(id, |node| questions::get_session(node, get)),
            Asks::ListSessions(list) => {
                self.question(id, |node| questions::list_sessions(node, list))
            }
            Asks::ClusterStatus(_) => {
                self.question(id, |node| async move { questions::cluster_status(&node) })
            }
            Asks::Watch(wire::Watch { prefix }) => self.watch(id, &prefix),
            Asks::StopWatch(wire::StopWatch { watch }) => self.stop_watch(id, watch),

            Asks::Revoke(revoke) => self.revoke(id, &revoke),
            Asks::RevokeSession(revoke) => self.revoke_session(id, &revoke),
            Asks::AddMember(add) => self.question(id, |node| operators::add_member(node, add)),
            Asks::RemoveMember(remove) => {
                self.question(id, |node| operators::remove_member(node, remove))
            }
            Asks::TransferLeadership(transfer) => {
                self.question(id, |node| operators::transfer_leadership(node, transfer))
            }
            Asks::TakeBackup(_) => {
                let outbox = Arc::clone(&self.outbox);
                self.question(id, move |node| operators::take_backup(node, outbox, id))
            }
        }
    }

    // ------------------------------------------------------------ numbered requests

    fn acquire(&self, id: u64, floor: u64, acquire: &wire::Acquire) -> Result<(), No> {
        let wire::Acquire { lock, mode, wait, purpose } = acquire;
        check_name(lock)?;
        let subject = Subject { lock: Some(lock), number: id, ..Subject::default() };
        check_bytes(purpose, PURPOSE_BYTES_MAX, Limit::PurposeBytes, subject)?;
        let mode = convert::mode(mode.as_ref());
        let request = core::Request::Acquire { lock, mode, wait: *wait, purpose };
        self.number_lock(id, floor, lock, request)
    }

    fn number_lock(
        &self,
        id: u64,
        floor: u64,
        lock: &str,
        request: core::Request<'_>,
    ) -> Result<(), No> {
        let session = self.own_session()?;
        let (number, floor) = (Number(id), Number(floor));
        let command = Command::Request { session, number, floor, request };
        self.propose(id, Asked::Lock(lock.to_owned()), &command)
    }

    fn number(&self, id: u64, floor: u64, request: core::Request<'_>) -> Result<(), No> {
        let session = self.own_session()?;
        let (number, floor) = (Number(id), Number(floor));
        let command = Command::Request { session, number, floor, request };
        self.propose(id, Asked::Session(session), &command)
    }

    fn own_session(&self) -> Result<SessionId, No> {
        self.outbox.session().ok_or_else(|| {
            no("this connection carries no session; open or resume one, and wait for its \
                SessionState before anything else is asked for it")
        })
    }

    fn propose(&self, id: u64, asked: Asked, command: &Command<'_>) -> Result<(), No> {
        if !self.outbox.ask(id, asked) {
            return Err(error::overloaded(
                "too many requests of this connection wait for the log; wait for answers first",
            ));
        }
        self.node.propose(command, id, &self.sink);
        Ok(())
    }

    // ------------------------------------------------------------ the session

    fn heartbeat(&self, id: u64) -> Result<(), No> {
        let session = self.own_session()?;
        self.node.heartbeat(session, id, &self.sink);
        Ok(())
    }

    fn open(&self, id: u64, open: &wire::OpenSession) -> Result<(), No> {
        let session = named_session(open.session)?;
        if let Some(other) = self.outbox.live_session().filter(|other| *other != session) {
            return Err(taken_by(other));
        }
        let secret = secret(&open.secret)?;
        let subject = Subject { session: Some(session), number: id, ..Subject::default() };
        if open.ttl_ms > self.ttl_ms_max {
            let max = u64::from(self.ttl_ms_max);
            return Err(error::beyond_limit(subject, Limit::TtlMax, max));
        }
        let owner = convert::owner_ref(open.owner.as_ref());
        check_owner(&owner, subject)?;
        let command = Command::OpenSession { session, secret, ttl_ms: open.ttl_ms, owner };
        self.propose(id, Asked::Open(session), &command)
    }

    fn resume(&self, id: u64, resume: &wire::ResumeSession) -> Result<(), No> {
        let session = named_session(resume.session)?;
        if let Some(other) = self.outbox.live_session().filter(|other| *other != session) {
            return Err(taken_by(other));
        }
        let secret = secret(&resume.secret)?;
        if !self.outbox.begin_resume() {
            return Err(no("this connection is resuming a session already; wait for its answer"));
        }
        let Self { node, outbox, sink, .. } = self.clone();
        tokio::spawn(async move {
            match node.attach(session, &secret, &sink).await {
                Ok(Ok(attached)) => {
                    outbox.finish_resume(id, &attached.session, attached.revision);
                }
                Ok(Err(refusal)) => {
                    outbox.abandon_resume(id, error::session_refused(&refusal, session));
                }
                Err(unavailable) => outbox.abandon_resume(id, error::unavailable(&unavailable)),
            }
        });
        Ok(())
    }

    fn end(&self, id: u64, end: &wire::EndSession) -> Result<(), No> {
        let own = self.outbox.session();
        if let Some(session) = own.filter(|own| end.session == 0 || end.session == own.0) {
            let command = Command::EndSession { session, reason: EndReason::Closed };
            return self.propose(id, Asked::Session(session), &command);
        }
        let session = named_session(end.session)?;
        let secret = secret(&end.secret)?;
        let this = self.clone();
        self.question_with(id, async move {
            questions::authenticate(&this.node, session, &secret).await?;
            let command = Command::EndSession { session, reason: EndReason::Closed };
            this.propose(id, Asked::Session(session), &command)
        })
    }

    // ------------------------------------------------------------ operators

    fn revoke(&self, id: u64, revoke: &wire::Revoke) -> Result<(), No> {
        let wire::Revoke { lock, if_token, now } = revoke;
        if lock.starts_with('/') {
            return Err(error::bad_request(format!(
                "lock {lock:?}: a path is a lock of ZooKeeper's clients, which can't be asked to \
                 give one back; end the holder's session"
            )));
        }
        check_name(lock)?;
        let command = Command::RevokeHold { lock, if_token: Token(*if_token), now: *now };
        self.propose(id, Asked::Lock(lock.clone()), &command)
    }

    fn revoke_session(&self, id: u64, revoke: &wire::RevokeSession) -> Result<(), No> {
        let session = named_session(revoke.session)?;
        let command = if revoke.now {
            Command::EndSession { session, reason: EndReason::Forced }
        } else {
            Command::RevokeSession { session }
        };
        self.propose(id, Asked::Session(session), &command)
    }

    // ------------------------------------------------------------ watches and questions

    fn watch(&self, id: u64, prefix: &str) -> Result<(), No> {
        if prefix.len() > LOCK_NAME_BYTES_MAX {
            return Err(too_long_a_name("prefix"));
        }
        if !self.outbox.begin_watch(id, WATCHES_MAX) {
            return Err(error::overloaded(format!(
                "this connection has {WATCHES_MAX} watches already, or one with the id {id}; stop \
                 one first"
            )));
        }
        // The answer first: every event follows it.
        self.outbox.answer(id, Body::Done(wire::Done {}));
        self.node.watch(prefix, id, &self.sink);
        Ok(())
    }

    fn stop_watch(&self, id: u64, watch: u64) -> Result<(), No> {
        if !self.outbox.end_watch(watch) {
            return Err(error::not_found(format!(
                "this connection has no watch with the id {watch}; it may have ended"
            )));
        }
        self.node.unwatch(watch, &self.sink);
        self.outbox.answer(id, Body::Done(wire::Done {}));
        Ok(())
    }

    /// Answers a question in a task of its own.
    fn question<F>(&self, id: u64, ask: impl FnOnce(NodeHandle) -> F) -> Result<(), No>
    where
        F: Future<Output = Result<Body, No>> + Send + 'static,
    {
        let answer = ask(self.node.clone());
        let outbox = Arc::clone(&self.outbox);
        self.question_with(id, async move {
            outbox.answer(id, answer.await?);
            Ok(())
        })
    }

    /// Runs a task that answers `id` itself if all goes well.
    fn question_with<F>(&self, id: u64, task: F) -> Result<(), No>
    where
        F: Future<Output = Result<(), No>> + Send + 'static,
    {
        if !self.outbox.begin_question(QUESTIONS_MAX) {
            return Err(error::overloaded(format!(
                "{QUESTIONS_MAX} questions of this connection are being worked on; wait for answers"
            )));
        }
        let outbox = Arc::clone(&self.outbox);
        tokio::spawn(async move {
            let result = tokio::select! {
                result = task => result,
                // Nobody is left to be told.
                () = outbox.is_closing() => return,
            };
            outbox.finish_question();
            if let Err(no) = result {
                outbox.answer(id, *no);
            }
        });
        Ok(())
    }
}

fn no(message: &str) -> No {
    error::bad_request(message)
}

fn taken_by(session: SessionId) -> No {
    no(&format!(
        "this connection carries session {session}; end that first, or use another connection"
    ))
}

fn too_long_a_name(what: &str) -> No {
    let mut no =
        error::beyond_limit(Subject::default(), Limit::LockNameBytes, LOCK_NAME_BYTES_MAX as u64);
    if let Body::Refused(refused) = &mut *no {
        refused.message =
            format!("the {what} is too long: {LOCK_NAME_BYTES_MAX} bytes are allowed");
    }
    no
}

/// Session 0 means "this connection's" where that is allowed, and is nobody's id.
fn named_session(id: u64) -> Result<SessionId, No> {
    if id == 0 {
        return Err(no("a session's id must be 64 random bits, and not 0"));
    }
    Ok(SessionId(id))
}

fn secret(bytes: &[u8]) -> Result<Secret, No> {
    let secret = bytes.try_into().map_err(|_| {
        let length = bytes.len();
        no(&format!("a session's secret has exactly 16 bytes, and not {length}"))
    })?;
    Ok(Secret(secret))
}

/// A name beyond the limit is refused here, so that it never reaches the log; what else makes a
/// name invalid is core's to say.
fn check_name(name: &str) -> Result<(), No> {
    if name.len() > LOCK_NAME_BYTES_MAX {
        return Err(too_long_a_name("lock's name"));
    }
    Ok(())
}

fn check_bytes(text: &str, bytes_max: usize, limit: Limit, subject: Subject<'_>) -> Result<(), No> {
    if text.len() > bytes_max {
        return Err(error::beyond_limit(subject, limit, bytes_max as u64));
    }
    Ok(())
}

fn check_owner(owner: &core::OwnerRef<'_>, subject: Subject<'_>) -> Result<(), No> {
    for field in [owner.host, owner.user, owner.program, owner.purpose] {
        check_bytes(field, OWNER_FIELD_BYTES_MAX, Limit::OwnerFieldBytes, subject)?;
    }
    if owner.labels.len() > LABELS_MAX {
        return Err(error::beyond_limit(subject, Limit::Labels, LABELS_MAX as u64));
    }
    for (key, value) in &owner.labels {
        check_bytes(key, LABEL_BYTES_MAX, Limit::LabelBytes, subject)?;
        check_bytes(value, LABEL_BYTES_MAX, Limit::LabelBytes, subject)?;
    }
    Ok(())
}
