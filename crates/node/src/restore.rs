//! A new cluster out of a backup.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_core::ClusterId;
use openraft::impls::BasicNode;

use crate::codec::Meta;
use crate::identity::Identity;
use crate::raft::{Membership, StoredMembership, log_id};
use crate::snapshot::{SnapshotStore, read_image};
use crate::{Environment, NodeConfig, Start, StartError};

/// Makes a data directory for a new cluster out of a backup. Nothing may be in the directory. The
/// cluster has this one node; others are added to it.
///
/// Every session of the backup has ended, so nothing is held. Unless the clients are known to be
/// stopped, nothing is granted either until the longest lease has passed: somebody may still
/// believe in a lock that the backup doesn't know.
///
/// # Errors
///
/// [`StartError`].
pub fn restore(
    backup: &[u8],
    config: &NodeConfig,
    environment: &Environment,
    clients_are_stopped: bool,
) -> Result<ClusterId, StartError> {
    let directory = config.data_dir.display().to_string();
    let failed = |error: std::io::Error| StartError::Io(format!("restoring {directory}: {error}"));
    let (meta, state) = read_image(&mut &backup[..])
        .map_err(|error| StartError::Config(format!("this is no sound backup: {error}")))?;

    let disk = Arc::clone(&environment.disk);
    let taken = disk.take_dir(&config.data_dir).map_err(failed)?;
    let _guard = taken.ok_or_else(|| StartError::InUse(directory.clone()))?;
    let snapshots = config.data_dir.join("snapshots");
    for part in [snapshots.clone(), config.data_dir.join("log")] {
        if !disk.list(&part).map_err(failed)?.is_empty() {
            let reason = "it has data of another cluster; a restore needs an empty one".to_owned();
            return Err(StartError::ForeignDirectory { directory, reason });
        }
    }

    let random = &environment.random;
    let cluster = ClusterId(u128::from(random.next_u64()) << 64 | u128::from(random.next_u64()));
    let identity = Identity::open(&config.data_dir, config.id, Arc::clone(&disk), &**random)?;
    if identity.cluster().is_some() {
        let reason = "it belongs to a cluster already; a restore needs an empty one".to_owned();
        return Err(StartError::ForeignDirectory { directory, reason });
    }
    identity.set_cluster(cluster).map_err(failed)?;

    // Term 0 is before any election, so whatever comes is newer.
    let last = log_id(0, meta.index().max(1));
    let member = BasicNode::new(own_address(config));
    let members = Membership::new(vec![[config.id].into()], BTreeMap::from([(config.id, member)]))
        .map_err(|error| StartError::Config(error.to_string()))?;
    let meta = Meta::new(Some(last), &StoredMembership::new(Some(last), members));
    let mut state = state.restored(cluster, !clients_are_stopped);
    // Of those who were shown as members, none is one here.
    state.set_members(&[], &mut Vec::new());
    let store = SnapshotStore::new(snapshots.clone(), Arc::clone(&disk));
    disk.create_dir(&snapshots).map_err(failed)?;
    store.build(meta, &state, || true).map_err(failed)?;
    Ok(cluster)
}

/// Where peers will reach the node; empty if it stays alone.
fn own_address(config: &NodeConfig) -> String {
    let among = match &config.start {
        Start::Together(members) => members.iter().find(|member| member.id == config.id),
        Start::Single | Start::Join => None,
    };
    let configured = config.listen_peer.clone().unwrap_or_default();
    among.map_or(configured, |member| member.peer_address.clone())
}
