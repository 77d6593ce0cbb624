//! Who is at the other end: the first two frames of every connection between peers.
//!
//! The side that connects sends [`MAGIC`] and its [`Hello`], the other one answers. Each checks
//! what the other says: that both mean the same cluster, that the one that was called is the one
//! that was meant, and that a node id comes with the directory that it had when it was first met. A
//! node that lost its directory has forgotten what it voted for, and is let in nowhere under its
//! old id.
//!
//! Not promised: secrecy, or that a peer doesn't lie. The peers' network must be trusted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::ClusterId;
use openraft::async_runtime::WatchReceiver;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::frame::{Connection, invalid, put_message};
use crate::codec;
use crate::inner::Inner;
use crate::{NodeId, PeerStream, address};

/// What tells this protocol from any other, and its version.
pub(crate) const MAGIC: [u8; 8] = *b"LKPEER\0\x01";

/// How long the other side may take for its part.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Between two attempts to meet members that could not be reached.
const MEET_PAUSE: Duration = Duration::from_secs(1);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    Append,
    Call,
    Snapshot,
    Forward,
    /// Only to see who is there.
    Probe,
}

/// Who connects.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    purpose: Purpose,
    from: Papers,
    /// Whom it wants to speak to.
    to: NodeId,
}

/// Who a node says it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Papers {
    node: NodeId,
    directory: u128,
    cluster: Option<ClusterId>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Welcome(Papers),
    Refused(String),
}

/// Connects to a peer and says hello.
///
/// # Errors
///
/// `PermissionDenied` with the reason if either side doesn't want to speak to the other; those of
/// the network.
pub(crate) async fn connect(
    inner: &Inner,
    peer: NodeId,
    address: &str,
    purpose: Purpose,
) -> io::Result<Connection> {
    let speak = async {
        let mut stream = inner.environment.transport.connect(address).await?;
        let mut out = MAGIC.to_vec();
        put_message(&mut out, &Hello { purpose, from: papers(inner), to: peer });
        stream.write_all(&out).await?;
        let mut connection = Connection::new(stream);
        let reply = connection.reader.next().await?;
        match codec::decode(&reply).ok_or_else(|| invalid("a peer's answer can't be read"))? {
            Reply::Refused(reason) => Err(denied(format!("node {peer} refuses: {reason}"))),
            Reply::Welcome(papers) => {
                check(inner, papers, peer).await?;
                connection.reader.trust();
                Ok(connection)
            }
        }
    };
    match timeout(TIMEOUT, speak).await {
        Ok(Ok(connection)) => {
            inner.hear(peer);
            Ok(connection)
        }
        Ok(Err(error)) => {
            complain(inner, peer, &error);
            Err(error)
        }
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Says once that a peer and this node don't fit together, however often it is tried.
fn complain(inner: &Inner, peer: NodeId, error: &io::Error) {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return;
    }
    let complaint = error.to_string();
    if inner.complaints.lock().insert(peer, complaint.clone()).as_ref() != Some(&complaint) {
        tracing::error!(peer, error = complaint, "a peer and this node don't fit together");
    }
}

/// Meets every member once: whoever has been met can't come back with another directory. Members
/// that never lead wouldn't meet otherwise, and one of them could vote for another twice.
pub(crate) async fn meet_members(inner: Arc<Inner>) {
    let mut metrics = inner.raft().server_metrics();
    loop {
        let strangers: Vec<(NodeId, String)> = {
            let metrics = metrics.borrow_watched();
            let members = metrics.membership_config.membership().nodes();
            let strangers = members.filter(|&(&id, node)| {
                id != inner.config.id
                    && !address::peer(node).is_empty()
                    && !inner.identity.has_met(id)
            });
            strangers.map(|(&id, node)| (id, address::peer(node).to_owned())).collect()
        };
        if strangers.is_empty() {
            if metrics.changed().await.is_err() {
                return;
            }
            continue;
        }
        for (id, address) in strangers {
            // It may not have started yet.
            let _ = connect(&inner, id, &address, Purpose::Probe).await;
        }
        sleep(MEET_PAUSE).await;
    }
}

/// Answers who has connected, and says what for.
///
/// # Errors
///
/// As [`connect`].
pub(crate) async fn accept(
    inner: &Arc<Inner>,
    mut stream: Box<dyn PeerStream>,
) -> io::Result<(NodeId, Purpose, Connection)> {
    let speak = async {
        let mut magic = [0; MAGIC.len()];
        stream.read_exact(&mut magic).await?;
        if magic != MAGIC {
            return Err(invalid("it doesn't speak the peers' protocol, or another version of it"));
        }
        let mut connection = Connection::new(stream);
        let hello = connection.reader.next().await?;
        let hello = codec::decode(&hello).ok_or_else(|| invalid("its hello can't be read"))?;
        let Hello { purpose, from, to } = hello;
        let checked = if to == inner.config.id {
            check(inner, from, from.node).await
        } else {
            Err(denied(format!("this is node {}, not node {to}", inner.config.id)))
        };
        match &checked {
            Ok(()) => connection.send(&Reply::Welcome(papers(inner))).await?,
            Err(error) => connection.send(&Reply::Refused(error.to_string())).await?,
        }
        checked?;
        connection.reader.trust();
        Ok((from.node, purpose, connection))
    };
    let accepted = timeout(TIMEOUT, speak).await;
    let accepted = accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    inner.hear(accepted.0);
    Ok(accepted)
}

fn papers(inner: &Inner) -> Papers {
    let Inner { config, identity, .. } = inner;
    Papers { node: config.id, directory: identity.uuid(), cluster: identity.cluster() }
}

async fn check(inner: &Inner, papers: Papers, expected: NodeId) -> io::Result<()> {
    let Papers { node, directory, cluster } = papers;
    if node != expected {
        return Err(denied(format!("node {node} answers where node {expected} should be")));
    }
    if node == inner.config.id && directory != inner.identity.uuid() {
        return Err(denied(format!("two nodes call themselves node {node}")));
    }
    if let (Some(theirs), Some(ours)) = (cluster, inner.identity.cluster())
        && theirs != ours
    {
        return Err(denied(format!("node {node} is of cluster {theirs}, this one of {ours}")));
    }
    if inner.identity.knows(node, directory) {
        return Ok(());
    }
    let identity = inner.identity.clone();
    if inner.run_held(move || identity.recognize(node, directory)).await? {
        Ok(())
    } else {
        Err(denied(format!(
            "node {node} had another data directory when it was first met. A node that lost its \
             data must not come back under its old id: remove it from the cluster, and add it \
             with a new id and an empty directory"
        )))
    }
}

/// Whether these bytes are a hello, or an answer to one.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn is_read(bytes: &[u8]) -> (bool, bool) {
    (codec::decode::<Hello>(bytes).is_some(), codec::decode::<Reply>(bytes).is_some())
}

fn denied(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
