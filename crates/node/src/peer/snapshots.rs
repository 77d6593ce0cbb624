//! One snapshot, from the leader to a peer that has fallen behind the log.
//!
//! The image travels as it is in the file, in frames of 256 KiB; its own checks are verified, and
//! the state read from it, before anything at the receiver changes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::storage::Snapshot;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::frame::{self, Connection, invalid};
use super::handshake::{self, Purpose};
use super::message::{SnapshotAnswer, SnapshotHead};
use crate::inner::Inner;
use crate::raft::VoteOf;
use crate::snapshot::{FileReader, SnapshotFile, read_image};
use crate::{DiskFile, NodeId, codec};

const PIECE_BYTES: usize = 256 << 10;

/// How long the next piece may take.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the receiver may take to check and to install it.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Sends a snapshot, and returns the receiver's vote.
pub(super) async fn send(
    inner: &Inner,
    peer: NodeId,
    address: &str,
    vote: VoteOf,
    snapshot: &SnapshotFile,
) -> io::Result<VoteOf> {
    let mut connection = handshake::connect(inner, peer, address, Purpose::Snapshot).await?;
    let SnapshotFile { meta, file, len, .. } = snapshot;
    let head = SnapshotHead { vote: vote.into(), meta: meta.clone(), len: *len };
    connection.send(&head).await?;
    let mut offset = 0;
    let mut out = Vec::new();
    while offset < *len {
        let file = Arc::clone(file);
        let piece = inner.environment.run(move || read_piece(&*file, offset)).await?;
        offset += piece.len() as u64;
        out.clear();
        frame::put(&mut out, |out| out.extend_from_slice(&piece));
        within(PIECE_TIMEOUT, connection.writer.write_all(&out)).await?;
    }
    let answer = within(INSTALL_TIMEOUT, connection.reader.next()).await?;
    inner.hear(peer);
    match codec::decode(&answer).ok_or_else(|| invalid("the answer can't be read"))? {
        SnapshotAnswer::Vote(vote) => Ok(vote.into()),
        SnapshotAnswer::Refused(why) => Err(io::Error::other(why)),
    }
}

fn read_piece(file: &dyn DiskFile, offset: u64) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; PIECE_BYTES];
    let count = file.read_at(&mut piece, offset)?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    piece.truncate(count);
    Ok(piece)
}

/// Receives a snapshot, checks it, and hands it to openraft.
pub(super) async fn receive(
    inner: &Arc<Inner>,
    peer: NodeId,
    mut connection: Connection,
) -> io::Result<()> {
    let answer = match receive_and_install(inner, peer, &mut connection).await {
        Ok(vote) => SnapshotAnswer::Vote(vote.into()),
        Err(error) => {
            tracing::warn!(peer, %error, "a snapshot could not be received");
            SnapshotAnswer::Refused(error.to_string())
        }
    };
    connection.send(&answer).await
}

async fn receive_and_install(
    inner: &Arc<Inner>,
    peer: NodeId,
    connection: &mut Connection,
) -> io::Result<VoteOf> {
    // One at a time: they would share the disk and the memory, and only the newest counts.
    let Ok(_turn) = inner.receiving.try_lock() else {
        return Err(io::Error::other("it receives another snapshot already"));
    };
    let head = within(PIECE_TIMEOUT, connection.reader.next()).await?;
    let head = codec::decode(&head).ok_or_else(|| invalid("a snapshot's head can't be read"))?;
    let SnapshotHead { vote, meta, len } = head;
    let Some(openraft_meta) = meta.to_snapshot_meta() else {
        return Err(invalid("a snapshot's members contradict themselves"));
    };
    let store = inner.snapshots.store.clone();
    let free_bytes = inner.space.free_bytes();
    if len > free_bytes {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "there is no room for it"));
    }
    let path = store.receiving(peer);
    let made = path.clone();
    let file = inner.run_held(move || store.create(&made)).await?;
    let mut offset = 0;
    while offset < len {
        let piece = within(PIECE_TIMEOUT, connection.reader.next()).await?;
        inner.hear(peer);
        if piece.is_empty() || piece.len() as u64 > len - offset {
            return Err(invalid("a snapshot's pieces don't add up"));
        }
        let (file, count) = (Arc::clone(&file), piece.len() as u64);
        inner.run_held(move || file.write_all_at(&piece, offset)).await?;
        offset += count;
    }
    let checked = Arc::clone(&file);
    let (read_meta, state) =
        inner.environment.run(move || read_image(&mut FileReader::new(&*checked))).await?;
    if read_meta != meta {
        return Err(invalid("a snapshot's head isn't that of its image"));
    }
    let snapshot = SnapshotFile { meta, path, file, len, state: Some(state) };
    let snapshot = Snapshot { meta: openraft_meta, snapshot };
    let installed = inner.raft().install_full_snapshot(vote.into(), snapshot).await;
    installed.map(|response| response.vote).map_err(|fatal| {
        inner.fail_raft(&fatal);
        io::Error::other("this node has stopped")
    })
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
