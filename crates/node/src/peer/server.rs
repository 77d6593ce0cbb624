//! The side of a connection between peers that was called.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, Semaphore, oneshot};
use tokio::time::sleep;

use super::frame::{self, Connection, FrameReader, invalid};
use super::handshake::{self, Purpose};
use super::message::{Call, CallAnswer};
use super::network::{APPEND, CALL, WINDOW};
use super::snapshots;
use crate::codec::{self, Appended, AppendedOnce};
use crate::inner::Inner;
use crate::raft::Types;
use crate::{NodeId, PeerStream, TransportListener, forward};

/// Connections of peers at a time: several for each of some dozens. More is an attack or a fault.
const CONNECTIONS_MAX: usize = 512;

/// Connections at a time that have not said yet who they are. One more takes the place of the
/// oldest: a peer needs its place for milliseconds, a stranger would keep it for seconds.
const STRANGERS_MAX: usize = 128;

/// How long to wait before accepting again when the system has nothing left to accept with.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts peers, for as long as this node lives.
pub(crate) async fn run(inner: Arc<Inner>, mut listener: Box<dyn TransportListener>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut strangers = Strangers::default();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let (serving, places) = (Arc::clone(&inner), Arc::clone(&places));
                let shown_out = strangers.let_in();
                inner.spawn(async move {
                    if let Err(error) = serve(&serving, stream, shown_out, &places).await {
                        tracing::debug!(from, %error, "a peer's connection has ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a peer's connection can't be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Those who have not said who they are, oldest first.
#[derive(Default)]
struct Strangers {
    inside: VecDeque<oneshot::Sender<Infallible>>,
}

impl Strangers {
    /// One more. It is shown out, by the end of what is returned, when its place is needed; who
    /// drops that before has left by itself.
    fn let_in(&mut self) -> oneshot::Receiver<Infallible> {
        self.inside.retain(|stranger| !stranger.is_closed());
        if self.inside.len() >= STRANGERS_MAX {
            self.inside.pop_front();
        }
        let (stranger, shown_out) = oneshot::channel();
        self.inside.push_back(stranger);
        shown_out
    }
}

async fn serve(
    inner: &Arc<Inner>,
    stream: Box<dyn PeerStream>,
    shown_out: oneshot::Receiver<Infallible>,
    places: &Semaphore,
) -> io::Result<()> {
    let (peer, purpose, connection) = tokio::select! {
        accepted = handshake::accept(inner, stream) => accepted?,
        _ = shown_out => return Err(io::Error::other("others needed its place before it spoke")),
    };
    let Ok(_place) = places.try_acquire() else {
        return Err(io::Error::other("there are too many connections of peers already"));
    };
    match purpose {
        Purpose::Append => serve_appends(inner, peer, connection).await,
        Purpose::Call => serve_calls(inner, peer, connection).await,
        Purpose::Snapshot => snapshots::receive(inner, peer, connection).await,
        Purpose::Forward => forward::serve(inner, peer, connection).await,
        Purpose::Probe => Ok(()),
    }
}

/// Session after session of pipelined appends.
async fn serve_appends(inner: &Arc<Inner>, peer: NodeId, connection: Connection) -> io::Result<()> {
    let Connection { reader, mut writer } = connection;
    let requests = Arc::new(Mutex::new(Requests { inner: Arc::clone(inner), peer, reader }));
    loop {
        // openraft reads ahead of what it answers, on a task of its own.
        let session = Arc::clone(&requests).lock_owned().await;
        let (ended, end) = oneshot::channel();
        let input = stream::unfold((session, Some(ended)), |(mut session, ended)| async move {
            match session.next().await {
                Ok(Some(request)) => Some((request, (session, ended))),
                Ok(None) => {
                    // The other end waits for it, or is gone with the connection.
                    let _ = ended.map(|ended| ended.send(()));
                    None
                }
                Err(error) => {
                    tracing::debug!(peer = session.peer, %error, "no more appends");
                    None
                }
            }
        });
        let answers = inner.raft().stream_append(input).map_err(|fatal| {
            inner.fail_raft(&fatal);
            io::Error::other("this node has stopped")
        });
        if !acknowledge(answers, &mut writer).await? {
            return Ok(());
        }
        if end.await.is_err() {
            return Ok(());
        }
        let mut out = Vec::new();
        frame::put(&mut out, |_| ());
        writer.write_all(&out).await?;
    }
}

/// Writes the answers to appends as they come, those that are there already at one go: under load
/// one fdatasync answers several. False if the last of them ends the connection.
async fn acknowledge(
    answers: impl Stream<Item = io::Result<StreamAppendResult<Types>>>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<bool> {
    let mut out = Vec::new();
    let mut ready = pin!(answers.ready_chunks(WINDOW));
    while let Some(answers) = ready.next().await {
        out.clear();
        let mut goes_on = true;
        for answer in answers {
            let answer = answer?;
            goes_on = answer.is_ok();
            frame::put_message(&mut out, &Appended::from(answer));
        }
        writer.write_all(&out).await?;
        if !goes_on {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Requests {
    inner: Arc<Inner>,
    peer: NodeId,
    reader: FrameReader,
}

impl Requests {
    /// The next append of the session; `None` at its end.
    async fn next(&mut self) -> io::Result<Option<AppendEntriesRequest<Types>>> {
        let frame = self.reader.next().await?;
        self.inner.hear(self.peer);
        if frame.is_empty() {
            return Ok(None);
        }
        let request = codec::decode_append(&frame);
        request.map(Some).ok_or_else(|| invalid("an append can't be read"))
    }
}

/// One call after the other.
async fn serve_calls(
    inner: &Arc<Inner>,
    peer: NodeId,
    mut connection: Connection,
) -> io::Result<()> {
    let mut out = Vec::new();
    loop {
        let frame = connection.reader.next().await?;
        inner.hear(peer);
        let (number, answer) = answer_call(inner, &frame).await?;
        out.clear();
        frame::put(&mut out, |out| {
            out.extend_from_slice(&number);
            codec::encode_to(&answer, out);
        });
        connection.writer.write_all(&out).await?;
    }
}

async fn answer_call(inner: &Inner, frame: &Bytes) -> io::Result<([u8; 8], CallAnswer)> {
    let unreadable = || invalid("a call can't be read");
    let (&number, rest) = frame.split_first_chunk().ok_or_else(unreadable)?;
    let (&kind, rest) = rest.split_first().ok_or_else(unreadable)?;
    let answer = match kind {
        APPEND => {
            let request = codec::decode_append(&frame.slice_ref(rest)).ok_or_else(unreadable)?;
            CallAnswer::Appended(answer_beat(inner, request).await?)
        }
        CALL => match codec::decode(rest).ok_or_else(unreadable)? {
            Call::Vote(_) | Call::PreVote(_) if is_silent(inner) => CallAnswer::Silent,
            Call::Vote(asked) => {
                let response = inner.raft().vote(asked.into()).await;
                CallAnswer::Voted(response.map_err(stopped)?.into())
            }
            Call::PreVote(asked) => {
                let response = inner.raft().pre_vote(asked.into()).await;
                CallAnswer::Voted(response.map_err(stopped)?.into())
            }
            Call::TransferLeader(transfer) => {
                let heard = inner.raft().handle_transfer_leader(transfer.into()).await;
                CallAnswer::Transfer(heard.map_err(stopped)?.err().map(|why| why.to_string()))
            }
        },
        _ => return Err(unreadable()),
    };
    Ok((number, answer))
}

/// Answers an append that came as a call: a heartbeat.
///
/// openraft answers once all that it took before is on the disk, and its leader waits for that no
/// longer than until the next heartbeat is due. But who only asks whether he is followed doesn't
/// ask for a disk: what this node has promised to him, it has promised when it takes the heartbeat,
/// and without a word of what the log has. So whoever follows says so at once; then a leader whose
/// followers' disks are slow can confirm sessions and serve reads as fast as ever. A heartbeat that
/// is refused, openraft answers first.
async fn answer_beat(
    inner: &Inner,
    request: AppendEntriesRequest<Types>,
) -> io::Result<AppendedOnce> {
    let raft = inner.raft();
    let (leader, is_beat) = (request.vote, request.entries.is_empty());
    let mut appending = pin!(raft.append_entries(request));
    // openraft takes one thing after the other, so this sees what has become of the heartbeat.
    let following = raft.with_raft_state(move |state| *state.vote_ref() == leader);
    tokio::select! {
        biased;
        answered = &mut appending => return Ok(answered.map_err(stopped)?.into()),
        follows = following, if is_beat => if follows.map_err(stopped)? {
            return Ok(AppendedOnce::Partial(None));
        }
    }
    Ok(appending.await.map_err(stopped)?.into())
}

fn stopped<E>(_: E) -> io::Error {
    io::Error::other("this node has stopped")
}

/// Whether this node has started so lately that a leader may still count on a promise that its
/// last run gave.
fn is_silent(inner: &Inner) -> bool {
    inner.quiet_until.get().is_none_or(|until| inner.now() < *until)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use openraft::raft::StreamAppendError;
    use tokio::task::yield_now;

    use super::*;
    use crate::peer::frame::Frames;
    use crate::raft::log_id;

    /// Keeps what each write brought.
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl AsyncWrite for Writes {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// The answers in each write.
    fn read(writes: Writes) -> Vec<Vec<Appended>> {
        let read = |bytes: Vec<u8>| {
            let mut frames = Frames::of_a_stranger();
            frames.input.extend_from_slice(&bytes);
            let mut answers = Vec::new();
            while let Some(frame) = frames.next().expect("the frames are sound") {
                answers.push(codec::decode(&frame).expect("it is an answer"));
            }
            answers
        };
        writes.0.into_iter().map(read).collect()
    }

    #[tokio::test]
    async fn answers_that_are_ready_together_leave_with_one_write() {
        let matching = |index| Ok(Some(log_id(1, index)));
        let told = |range: Range<u64>| range.map(|index| matching(index).into()).collect();
        let last = 4 + WINDOW as u64;
        // Between the two, there is nothing for a moment.
        let rest = stream::once(yield_now()).flat_map(|()| stream::iter(4..=last));
        let answers = stream::iter(1..4).chain(rest).map(matching).map(Ok);
        let mut writes = Writes::default();
        assert!(acknowledge(answers, &mut writes).await.unwrap());
        let expected: [Vec<Appended>; 3] = [told(1..4), told(4..last), told(last..last + 1)];
        assert_eq!(read(writes), expected);

        // What ends the connection is still said, behind what went before.
        let mut writes = Writes::default();
        let conflict = StreamAppendError::Conflict(log_id(1, 2));
        let refused = stream::iter([Ok(matching(1)), Ok(Err(conflict.clone()))]);
        assert!(!acknowledge(refused, &mut writes).await.unwrap());
        assert_eq!(read(writes), [[Appended::from(matching(1)), Appended::from(Err(conflict))]]);
    }

    #[test]
    fn the_oldest_stranger_makes_room_for_the_next() {
        let mut strangers = Strangers::default();
        let mut inside: Vec<_> = (0..STRANGERS_MAX).map(|_| strangers.let_in()).collect();
        let is_out = |stranger: &mut oneshot::Receiver<Infallible>| {
            stranger.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        assert!(!inside.iter_mut().any(is_out));
        // Whoever has left by itself makes room, too.
        drop(inside.remove(5));
        inside.push(strangers.let_in());
        assert!(!inside.iter_mut().any(is_out));
        inside.push(strangers.let_in());
        assert!(is_out(&mut inside[0]) && !inside[1..].iter_mut().any(is_out));
    }
}
