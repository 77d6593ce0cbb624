//! The side of a connection that openraft calls: appends, heartbeats, votes, snapshots.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend};
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::frame::{self, Connection, FrameReader, FrameWriter, invalid};
use super::handshake::{self, Purpose};
use super::message::{Call, CallAnswer};
use super::snapshots;
use crate::codec::{self, Appended};
use crate::inner::Inner;
use crate::raft::{SnapshotOf, Types, VoteOf};
use crate::snapshot::SnapshotFile;
use crate::standing::VOTE_WAIT;
use crate::{Monotonic, NodeId, address};

/// Append messages on their way to one peer.
pub(super) const WINDOW: usize = 16;

/// After this long without an answer to anything a connection is given up: the other side's
/// machine may be gone without a word.
const SILENCE: Duration = Duration::from_secs(5);

/// Makes the connections to peers.
pub(crate) struct Network {
    pub(crate) inner: Arc<Inner>,
}

impl Network {
    fn peer(&self, id: NodeId, node: &BasicNode, is_heartbeat: bool) -> Peer {
        Peer {
            inner: Arc::clone(&self.inner),
            id,
            address: address::peer(node).to_owned(),
            is_heartbeat,
            append: None,
            line: Line::Down,
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> Peer {
        self.peer(target, node, false)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &BasicNode) -> Peer {
        self.peer(target, node, true)
    }
}

/// One of openraft's tasks and the peer that it speaks to.
pub(crate) struct Peer {
    inner: Arc<Inner>,
    id: NodeId,
    address: String,
    /// Its appends are heartbeats: single and urgent.
    is_heartbeat: bool,
    /// The append connection, kept from one of openraft's sessions to the next: it opens dozens a
    /// second.
    append: Option<Connection>,
    line: Line,
}

/// The calling connection.
enum Line {
    Down,
    /// Goes on when the call that began it has run out of time: a distant peer needs longer to
    /// connect than a heartbeat may take.
    Dialing(JoinHandle<io::Result<Connection>>),
    Up(Dialed),
}

struct Dialed {
    connection: Connection,
    /// The number of the newest call.
    number: u64,
    /// When the other side last said anything.
    heard: Monotonic,
    /// A call was cut off while it was being written: what follows would make no sense.
    is_torn: bool,
}

impl Peer {
    /// Calls the peer. It may be dropped at any point: a late answer is skipped by the next call.
    async fn call(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<CallAnswer> {
        let inner = Arc::clone(&self.inner);
        let (peer, is_heartbeat) = (self.id, self.is_heartbeat);
        let dialed = self.dialed().await?;
        dialed.number += 1;
        let number = dialed.number;
        let mut out = Vec::new();
        frame::put(&mut out, |out| {
            out.extend_from_slice(&number.to_le_bytes());
            write(out);
        });
        let asked = inner.now();
        dialed.is_torn = true;
        dialed.connection.writer.write_all(&out).await?;
        dialed.is_torn = false;
        let answer = loop {
            let frame = dialed.connection.reader.next().await?;
            let (&answered, rest) =
                frame.split_first_chunk().ok_or_else(|| invalid("an answer without a number"))?;
            if u64::from_le_bytes(answered) == number {
                break codec::decode(rest).ok_or_else(|| invalid("an answer can't be read"))?;
            }
        };
        dialed.heard = inner.now();
        if is_heartbeat {
            inner.round_trips.lock().insert(peer, dialed.heard.since(asked));
        }
        inner.hear(peer);
        Ok(answer)
    }

    /// The calling connection, dialed if need be.
    async fn dialed(&mut self) -> io::Result<&mut Dialed> {
        let now = self.inner.now();
        if let Line::Up(dialed) = &self.line
            && (dialed.is_torn || now.since(dialed.heard) > SILENCE)
        {
            self.line = Line::Down;
        }
        if let Line::Down = self.line {
            let (inner, id) = (Arc::clone(&self.inner), self.id);
            let address = self.address.clone();
            self.line = Line::Dialing(tokio::spawn(async move {
                handshake::connect(&inner, id, &address, Purpose::Call).await
            }));
        }
        if let Line::Dialing(dialing) = &mut self.line {
            let dialed = dialing.await.unwrap_or_else(|failed| Err(io::Error::other(failed)));
            self.line = match dialed {
                Err(error) => {
                    self.line = Line::Down;
                    return Err(error);
                }
                Ok(connection) => {
                    let heard = self.inner.now();
                    Line::Up(Dialed { connection, number: 0, heard, is_torn: false })
                }
            };
        }
        match &mut self.line {
            Line::Up(dialed) => Ok(dialed),
            Line::Down | Line::Dialing(_) => unreachable!("it was dialed just now"),
        }
    }

    /// Calls the peer, for as long as `option` says.
    async fn ask(
        &mut self,
        option: &RPCOption,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<CallAnswer, RPCError<Types>> {
        match timeout(option.hard_ttl(), self.call(write)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if !matches!(self.line, Line::Dialing(_)) {
                    self.line = Line::Down;
                }
                Err(unreachable(&error))
            }
            Err(_) => Err(unreachable(&io::Error::from(io::ErrorKind::TimedOut))),
        }
    }

    async fn ask_vote(
        &mut self,
        call: &Call,
        option: &RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(option, |out| put_call(call, out)).await? {
            CallAnswer::Voted(voted) => Ok(voted.into()),
            CallAnswer::Silent => Err(unreachable(&io::Error::other("it doesn't vote yet"))),
            CallAnswer::Appended(_) | CallAnswer::Transfer(_) => Err(strange()),
        }
    }

    /// The append connection, and its halves.
    async fn append_connection(&mut self) -> io::Result<Connection> {
        match self.append.take() {
            Some(connection) => Ok(connection),
            None => {
                let Self { inner, id, address, .. } = self;
                handshake::connect(inner, *id, address, Purpose::Append).await
            }
        }
    }
}

/// What a call's frame says after the number: whether it is an append, or a [`Call`].
pub(super) const APPEND: u8 = 0;
pub(super) const CALL: u8 = 1;

fn put_call(call: &Call, out: &mut Vec<u8>) {
    out.push(CALL);
    codec::encode_to(call, out);
}

fn unreachable(error: &io::Error) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::new(&AnyError::error(error)))
}

fn strange() -> RPCError<Types> {
    unreachable(&invalid("an answer to another question"))
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = SnapshotFile;

    /// A heartbeat. openraft would wait for its answer no longer than until the next one is due.
    /// But on the one connection that they take, what is late for one is late for all: where the
    /// answers take longer than that, be it for a distant or a busy machine, none would ever count.
    /// Whoever follows waits for longer than `election_min` before it elects somebody else.
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let option = RPCOption::new(self.inner.config.timers.election_min);
        let write = |out: &mut Vec<u8>| {
            out.push(APPEND);
            codec::encode_append(&request, out);
        };
        match self.ask(&option, write).await? {
            CallAnswer::Appended(appended) => Ok(appended.into()),
            CallAnswer::Voted(_) | CallAnswer::Transfer(_) | CallAnswer::Silent => Err(strange()),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Appends<'s>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        if self.is_heartbeat {
            return stream_append_sequential(self, input, option);
        }
        Box::pin(async move {
            let connected = self.append_connection().await;
            let Connection { reader, writer } = connected.map_err(|error| unreachable(&error))?;
            Ok(pipelined(self, reader, writer, input))
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(&Call::Vote(request.into()), &RPCOption::new(VOTE_WAIT)).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(&Call::PreVote(request.into()), &option).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let call = Call::TransferLeader(request.into());
        match self.ask(&option, |out| put_call(&call, out)).await? {
            CallAnswer::Transfer(None) => Ok(Ok(())),
            CallAnswer::Transfer(Some(why)) => Err(unreachable(&io::Error::other(why))),
            CallAnswer::Appended(_) | CallAnswer::Voted(_) | CallAnswer::Silent => Err(strange()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf,
        snapshot: SnapshotOf,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let Self { inner, id, address, .. } = self;
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = snapshots::send(inner, *id, address, vote, &snapshot.snapshot) => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(error) => {
                    tracing::warn!(peer = *id, %error, "a snapshot could not be sent");
                    Err(StreamingError::Unreachable(Unreachable::new(&AnyError::error(error))))
                }
            }
        }
    }
}

/// Acknowledgements in the order of the requests.
type Appends<'s> = BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>;

/// Requests are written as they come, up to [`WINDOW`] ahead of their acknowledgements. An empty
/// frame ends the session in both directions; then the connection is kept for the next one.
fn pipelined<'s, S>(
    peer: &'s mut Peer,
    reader: FrameReader,
    writer: FrameWriter,
    input: S,
) -> Appends<'s>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
{
    let window = Arc::new(Semaphore::new(WINDOW));
    let writing = Writing(tokio::spawn(write_appends(input, writer, Arc::clone(&window))));
    let session = Session { peer, reader, writing, window };
    stream::unfold(Some(session), |session| async move {
        let mut session = session?;
        match session.next().await {
            Ok(Some(appended)) => Some((Ok(appended.into()), Some(session))),
            Ok(None) => {
                session.keep().await;
                None
            }
            Err(error) => Some((Err(unreachable(&error)), None)),
        }
    })
    .boxed()
}

struct Session<'s> {
    peer: &'s mut Peer,
    reader: FrameReader,
    writing: Writing,
    window: Arc<Semaphore>,
}

impl Session<'_> {
    /// The next acknowledgement; `None` at the end of the session.
    async fn next(&mut self) -> io::Result<Option<Appended>> {
        let frame = loop {
            let is_idle = self.window.available_permits() == WINDOW;
            match timeout(SILENCE, self.reader.next()).await {
                Ok(frame) => break frame?,
                // Nothing was asked, so nothing is missing.
                Err(_) if is_idle => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        };
        self.peer.inner.hear(self.peer.id);
        if frame.is_empty() {
            return Ok(None);
        }
        self.window.add_permits(1);
        decode_appended(&frame).map(Some)
    }

    /// Keeps the connection for the next session, if it ended in good order.
    async fn keep(self) {
        let Self { peer, reader, mut writing, .. } = self;
        if let Ok(Some(writer)) = (&mut writing.0).await {
            peer.append = Some(Connection { reader, writer });
        }
    }
}

fn decode_appended(frame: &Bytes) -> io::Result<Appended> {
    codec::decode(frame).ok_or_else(|| invalid("an acknowledgement can't be read"))
}

/// The task that writes a session's requests; it ends with the session.
struct Writing(JoinHandle<Option<FrameWriter>>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn write_appends<S>(
    mut input: S,
    mut writer: FrameWriter,
    window: Arc<Semaphore>,
) -> Option<FrameWriter>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
{
    let mut out = Vec::new();
    while let Some(request) = input.next().await {
        window.acquire().await.ok()?.forget();
        out.clear();
        frame::put(&mut out, |out| codec::encode_append(&request, out));
        writer.write_all(&out).await.ok()?;
    }
    // The end wants an answer, too.
    window.acquire().await.ok()?.forget();
    out.clear();
    frame::put(&mut out, |_| ());
    writer.write_all(&out).await.ok()?;
    Some(writer)
}
