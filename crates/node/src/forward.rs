//! Where a node's commands go: to its own log if it leads, to the leader's if it doesn't.
//!
//! A follower keeps one connection to the leader for it, the *link*. Batches travel on it in order,
//! each named with the term under which it may be proposed; the leader proposes it in that term or
//! not at all. When the link breaks, the follower sends again what it has not seen applied, and the
//! leader drops what it has proposed already. So within a term every batch is proposed at most once
//! and in order, and across terms `batcher.rs` says when it is safe to propose again.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::ForwardReason;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::sleep;

use crate::entry::{self, BatchId};
use crate::inner::{Inner, Leadership, Route};
use crate::peer::frame::{self, Connection, FrameReader, FrameWriter, invalid};
use crate::peer::handshake::{self, Purpose};
use crate::peer::message::{Answer, FromLeader, Question, ToLeader};
use crate::{NodeId, codec, living, membership, reads, space};

/// The pause before the link is tried again.
const LINK_PAUSE: Duration = Duration::from_millis(50);

/// Questions of one peer that the leader works on at a time; more wait in the connection.
const QUESTIONS_MAX: usize = 64;

/// Refused batches of one run of a node that are remembered: more than it has in flight.
const REFUSED_KEPT: u64 = 64;

/// Sends what this node's clients want to wherever it belongs, for as long as the node lives.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut metrics = inner.raft().server_metrics();
    loop {
        let leadership = inner.leadership();
        let changed = async {
            while inner.leadership() == leadership {
                if metrics.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::select! {
            () = changed => {}
            () = serve_reign(&inner, leadership) => {}
        }
        inner.route.send_replace(Route::Nowhere);
        inner.link.close();
        inner.living.reopen();
        let now = inner.leadership();
        if now.term != leadership.term && now.leader.is_some() {
            inner.leader_changes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

async fn serve_reign(inner: &Arc<Inner>, Leadership { leader, term }: Leadership) {
    match leader {
        None => std::future::pending().await,
        Some(leader) if leader == inner.config.id => {
            tracing::info!(term, "this node leads");
            inner.lease.renew();
            inner.begin_reign();
            space::note_leader(inner, None);
            inner.route.send_replace(Route::Here(term));
            propose(inner, term).await;
        }
        Some(leader) => {
            tracing::info!(term, leader, "another node leads");
            inner.deadlines.end();
            loop {
                if let Err(error) = keep_link(inner, leader, term).await {
                    tracing::debug!(leader, %error, "the link to the leader is down");
                }
                inner.route.send_replace(Route::Nowhere);
                inner.link.close();
                inner.living.reopen();
                sleep(LINK_PAUSE).await;
            }
        }
    }
}

/// As the leader of `term`: proposes this node's own batches.
async fn propose(inner: &Arc<Inner>, term: u64) {
    loop {
        inner.await_majority().await;
        let Some(batch) = inner.next_batch(term) else {
            inner.batcher.ready.notified().await;
            continue;
        };
        let refusing = Arc::clone(inner);
        let number = entry::decode(&batch).map_or(0, |view| view.id.number);
        let refused = move |reason| refuse(&refusing, number, reason);
        inner.propose(term, batch, refused).await;
    }
}

/// A leader did not propose a batch of this node. Without a quorum it could only have kept it
/// waiting; if it leads no longer, or is handing over, the next leader gets it.
fn refuse(inner: &Inner, number: u64, reason: ForwardReason) {
    if reason == ForwardReason::LeaseExpired
        && let Some(asks) = inner.batcher.refused(number)
    {
        inner.answer_all(&[asks], &inner.no_quorum());
    }
}

// ------------------------------------------------------------------------- the follower's side

/// The follower's end of the connection to the leader.
#[derive(Default)]
pub(crate) struct Link {
    state: Mutex<LinkState>,
    /// There is something to write.
    filled: Notify,
}

#[derive(Default)]
struct LinkState {
    is_up: bool,
    output: Vec<u8>,
    /// Who waits for which answer.
    questions: BTreeMap<u64, oneshot::Sender<Answer>>,
    question: u64,
}

impl Link {
    fn open(&self) {
        self.state.lock().is_up = true;
    }

    /// Whoever waits for an answer is told that there is none, by the end of its channel.
    fn close(&self) {
        *self.state.lock() = LinkState::default();
    }

    /// Sends a message, if the link is up.
    pub(crate) fn send(&self, message: &ToLeader<'_>) {
        let mut state = self.state.lock();
        if state.is_up {
            frame::put_message(&mut state.output, message);
            self.filled.notify_one();
        }
    }

    /// Asks the leader; `None` if the link is down or breaks.
    async fn ask(&self, question: Question) -> Option<Answer> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if !state.is_up {
                return None;
            }
            state.question += 1;
            let id = state.question;
            state.questions.insert(id, sender);
            frame::put_message(&mut state.output, &ToLeader::Ask { id, question });
            self.filled.notify_one();
        }
        receiver.await.ok()
    }

    fn answered(&self, id: u64, answer: Answer) {
        if let Some(waiting) = self.state.lock().questions.remove(&id) {
            // It may have given up waiting.
            let _ = waiting.send(answer);
        }
    }

    fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.lock().output)
    }
}

/// Asks whoever leads, if that is known and can be reached now.
pub(crate) async fn ask_leader(inner: &Arc<Inner>, question: Question) -> Option<Answer> {
    let route = *inner.route.borrow();
    match route {
        Route::Nowhere => None,
        Route::Here(_) => Some(answer(inner, question).await),
        Route::There(_) => inner.link.ask(question).await,
    }
}

/// Connects to the leader of `term` and serves the link until it breaks.
async fn keep_link(inner: &Arc<Inner>, leader: NodeId, term: u64) -> io::Result<()> {
    let address = membership::address(inner, leader)
        .ok_or_else(|| io::Error::other("the leader's address isn't known"))?;
    let connection = handshake::connect(inner, leader, &address, Purpose::Forward).await?;
    let Connection { reader, writer } = connection;
    inner.link.open();
    inner.batcher.resend(term);
    inner.route.send_replace(Route::There(term));
    tokio::select! {
        result = hear_leader(inner, leader, reader) => result,
        result = tell_leader(inner, term, writer) => result,
        never = tell_leader_of_space(inner) => match never {},
    }
}

/// Tells the leader of the room on this node's disk, at once and whenever it changes.
async fn tell_leader_of_space(inner: &Inner) -> Infallible {
    let mut own = inner.space.own();
    loop {
        let free_bytes = own.borrow_and_update().map(|shortage| shortage.free_bytes);
        inner.link.send(&ToLeader::Space { free_bytes });
        if own.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn tell_leader(inner: &Inner, term: u64, mut writer: FrameWriter) -> io::Result<()> {
    loop {
        let mut output = inner.link.take_output();
        while let Some(batch) = inner.next_batch(term) {
            frame::put_message(&mut output, &ToLeader::Batch { term, bytes: &batch });
        }
        if output.is_empty() {
            tokio::select! {
                () = inner.batcher.ready.notified() => {}
                () = inner.link.filled.notified() => {}
            }
        } else {
            writer.write_all(&output).await?;
        }
    }
}

async fn hear_leader(
    inner: &Arc<Inner>,
    leader: NodeId,
    mut reader: FrameReader,
) -> io::Result<()> {
    loop {
        let frame = reader.next().await?;
        inner.hear(leader);
        let message = codec::decode(&frame);
        match message.ok_or_else(|| invalid("the leader's message can't be read"))? {
            FromLeader::Refused { number } => refuse(inner, number, ForwardReason::LeaseExpired),
            FromLeader::Confirmed { number, mut except } => {
                except.sort_unstable();
                inner.living.settle(number, Some(&except));
            }
            FromLeader::Unconfirmed { number } => inner.living.settle(number, None),
            FromLeader::Answer { id, answer } => inner.link.answered(id, answer),
            FromLeader::Space(shortage) => space::note_leader(inner, shortage),
        }
    }
}

// --------------------------------------------------------------------------- the leader's side

/// Which batches have been proposed in the newest term.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    term: u64,
    /// The highest number of each run of each node.
    newest: BTreeMap<(NodeId, u64), u64>,
    /// The newest of those that were refused: the word of it may have been lost with its link.
    refused: BTreeSet<(NodeId, u64, u64)>,
}

/// What becomes of a batch at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    New,
    /// It was refused before: never proposed, and never will be in this term.
    Refused,
    /// It is proposed, or of a term that is over.
    Known,
}

impl Gate {
    /// Whether a batch may be proposed in `term`: it never was, and the term isn't over.
    fn admits(&mut self, term: u64, id: BatchId) -> Passage {
        if term > self.term {
            *self = Self { term, ..Self::default() };
        }
        let newest = self.newest.entry((id.origin, id.incarnation)).or_default();
        if term != self.term {
            return Passage::Known;
        }
        if id.number > *newest {
            *newest = id.number;
            return Passage::New;
        }
        match self.refused.contains(&(id.origin, id.incarnation, id.number)) {
            true => Passage::Refused,
            false => Passage::Known,
        }
    }

    /// A batch was refused in `term`.
    fn refuse(&mut self, term: u64, id: BatchId) {
        if term == self.term {
            let oldest = id.number.saturating_sub(REFUSED_KEPT);
            let of_run = |&(origin, incarnation, _): &(NodeId, u64, u64)| {
                (origin, incarnation) == (id.origin, id.incarnation)
            };
            self.refused.retain(|batch| !of_run(batch) || batch.2 > oldest);
            self.refused.insert((id.origin, id.incarnation, id.number));
        }
    }
}

/// What is to be written to one follower.
#[derive(Default)]
struct Outbox {
    output: Mutex<Vec<u8>>,
    filled: Notify,
}

impl Outbox {
    fn send(&self, message: &FromLeader) {
        frame::put_message(&mut self.output.lock(), message);
        self.filled.notify_one();
    }

    async fn write(&self, mut writer: FrameWriter) -> io::Result<()> {
        loop {
            let output = std::mem::take(&mut *self.output.lock());
            if output.is_empty() {
                self.filled.notified().await;
            } else {
                writer.write_all(&output).await?;
            }
        }
    }
}

/// Serves a follower's link, until it breaks.
pub(crate) async fn serve(
    inner: &Arc<Inner>,
    origin: NodeId,
    connection: Connection,
) -> io::Result<()> {
    let Connection { reader, writer } = connection;
    let outbox = Arc::new(Outbox::default());
    tokio::select! {
        result = hear_follower(inner, origin, reader, &outbox) => result,
        result = outbox.write(writer) => result,
        never = tell_follower_of_space(inner, &outbox) => match never {},
    }
}

async fn hear_follower(
    inner: &Arc<Inner>,
    origin: NodeId,
    mut reader: FrameReader,
    outbox: &Arc<Outbox>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(QUESTIONS_MAX));
    loop {
        let frame = reader.next().await?;
        inner.hear(origin);
        let (message, rest) = postcard::take_from_bytes::<ToLeader<'_>>(&frame)
            .map_err(|_| invalid("a follower's message can't be read"))?;
        if !rest.is_empty() {
            return Err(invalid("a follower's message is too long"));
        }
        match message {
            ToLeader::Batch { term, bytes } => {
                // Before it goes through the gate: the link may break meanwhile.
                inner.await_majority().await;
                propose_for(inner, origin, term, frame.slice_ref(bytes), outbox).await?;
            }
            ToLeader::Living { term, number, sessions } => {
                note_living(inner, term, number, sessions, outbox);
            }
            ToLeader::Space { free_bytes } => space::note_follower(inner, origin, free_bytes),
            ToLeader::Ask { id, question } => {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { continue };
                let (answering, outbox) = (Arc::clone(inner), Arc::clone(outbox));
                inner.spawn(async move {
                    let answer = answer(&answering, question).await;
                    outbox.send(&FromLeader::Answer { id, answer });
                    drop(place);
                });
            }
        }
    }
}

/// Tells a follower why it is to refuse new work, if it is, at once and whenever it changes.
async fn tell_follower_of_space(inner: &Inner, outbox: &Outbox) -> Infallible {
    let mut reason = inner.space.reason();
    loop {
        let shortage = *reason.borrow_and_update();
        outbox.send(&FromLeader::Space(shortage));
        if reason.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn propose_for(
    inner: &Arc<Inner>,
    origin: NodeId,
    term: u64,
    bytes: Bytes,
    outbox: &Arc<Outbox>,
) -> io::Result<()> {
    let id = entry::decode(&bytes)
        .map(|view| view.id)
        .filter(|id| id.origin == origin)
        .ok_or_else(|| invalid("a batch can't be read, or is another node's"))?;
    match inner.gate.lock().admits(term, id) {
        Passage::New => {}
        Passage::Known => return Ok(()),
        Passage::Refused => {
            outbox.send(&FromLeader::Refused { number: id.number });
            return Ok(());
        }
    }
    let (outbox, gate) = (Arc::clone(outbox), Arc::clone(inner));
    let refused = move |reason| {
        if reason == ForwardReason::LeaseExpired {
            gate.gate.lock().refuse(term, id);
            outbox.send(&FromLeader::Refused { number: id.number });
        }
    };
    inner.propose(term, bytes, refused).await;
    Ok(())
}

fn note_living(
    inner: &Arc<Inner>,
    term: u64,
    number: u64,
    sessions: Vec<lockkeeper_core::SessionId>,
    outbox: &Arc<Outbox>,
) {
    if inner.leading() != Some(term) {
        outbox.send(&FromLeader::Unconfirmed { number });
        return;
    }
    inner.deadlines.heard(&sessions, inner.now());
    let (confirming, outbox) = (Arc::clone(inner), Arc::clone(outbox));
    inner.spawn(async move {
        let message = match living::confirm(&confirming, &sessions).await {
            Some(except) => FromLeader::Confirmed { number, except },
            None => FromLeader::Unconfirmed { number },
        };
        outbox.send(&message);
    });
}

/// As the leader, or whoever is taken for it: answers a question.
async fn answer(inner: &Arc<Inner>, question: Question) -> Answer {
    match question {
        Question::ReadIndex => Answer::ReadIndex(reads::index(inner).await),
        Question::Leases(sessions) => {
            Answer::Leases(inner.deadlines.left_ms(&sessions, inner.now()))
        }
        Question::AddMember { .. }
        | Question::RemoveMember { .. }
        | Question::TransferLeadership { .. }
        | Question::Reconfigure { .. }
        | Question::List { .. }
        | Question::AddLearner { .. } => Answer::Change(membership::change(inner, question).await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_passes_once_a_term_and_none_after_a_later_one() {
        let mut gate = Gate::default();
        let id = |number| BatchId { origin: 2, incarnation: 9, number };
        assert_eq!(gate.admits(3, id(4)), Passage::New);
        assert_eq!(gate.admits(3, id(4)), Passage::Known, "a repeated one");
        assert_eq!(gate.admits(3, id(3)), Passage::Known, "one that was overtaken");
        assert_eq!(gate.admits(3, id(5)), Passage::New);
        gate.refuse(3, id(5));
        assert_eq!(gate.admits(3, id(5)), Passage::Refused, "its refusal may have been lost");
        assert_eq!(gate.admits(3, id(4)), Passage::Known);
        assert_eq!(gate.admits(3, BatchId { incarnation: 10, ..id(1) }), Passage::New, "a new run");
        assert_eq!(gate.admits(2, id(6)), Passage::Known, "of a term that is over");
        assert_eq!(gate.admits(4, id(4)), Passage::New, "again in a new term");
        assert_eq!(gate.admits(4, id(5)), Passage::New);
    }
}
