//! Operators' requests that the node itself carries out.

use std::sync::Arc;

use lockkeeper_node::{Member, NodeHandle};
use lockkeeper_wire::native::{self as wire, response::Body};
use tokio::sync::Semaphore;

use super::outbox::Outbox;
use crate::error::{self, No};
use crate::limits::{BACKUP_BACKLOG_BYTES_MAX, BACKUP_CHUNK_BYTES};

type Answer = Result<Body, No>;

pub(super) async fn add_member(node: NodeHandle, add: wire::AddMember) -> Answer {
    if add.node == 0 || add.peer_address.is_empty() {
        return Err(error::bad_request(
            "a new member needs an id of 1 or more, and the host:port of its peer listener",
        ));
    }
    let member = Member { id: add.node, peer_address: add.peer_address };
    let added = match add.learner {
        true => node.add_learner(member).await,
        false => node.add_member(member).await,
    };
    match added {
        Ok(()) => Ok(Body::Done(wire::Done {})),
        Err(error) => Err(error::membership(&error)),
    }
}

pub(super) async fn remove_member(node: NodeHandle, remove: wire::RemoveMember) -> Answer {
    match node.remove_member(remove.node).await {
        Ok(()) => Ok(Body::Done(wire::Done {})),
        Err(error) => Err(error::membership(&error)),
    }
}

pub(super) async fn transfer_leadership(
    node: NodeHandle,
    transfer: wire::TransferLeadership,
) -> Answer {
    let to = (transfer.to != 0).then_some(transfer.to);
    match node.transfer_leadership(to).await {
        Ok(_) => Ok(Body::Done(wire::Done {})),
        Err(error) => Err(error::membership(&error)),
    }
}

/// One backup is in memory at a time: each is as large as the state.
static BACKUP: Semaphore = Semaphore::const_new(1);

/// Sends a backup in chunks, as fast as its client reads them. The last one is the answer.
pub(super) async fn take_backup(node: NodeHandle, outbox: Arc<Outbox>, id: u64) -> Answer {
    let _turn = BACKUP.acquire().await;
    let backup = node.backup().await.map_err(|error| error::unavailable(&error))?;
    let mut rest = backup.as_slice();
    while rest.len() > BACKUP_CHUNK_BYTES {
        let (chunk, later) = rest.split_at(BACKUP_CHUNK_BYTES);
        rest = later;
        if !outbox.has_room(BACKUP_BACKLOG_BYTES_MAX).await {
            break;
        }
        outbox.answer(id, chunk_of(chunk, false));
    }
    Ok(chunk_of(rest, true))
}

fn chunk_of(data: &[u8], last: bool) -> Body {
    Body::BackupChunk(wire::BackupChunk { data: data.to_vec(), last })
}
