//! Whose data directory this is, and which directories the peers had when they were first met.
//!
//! The file `identity` is a small TOML-like text, so that an operator can read it; it is
//! replaced as a whole: written aside, synced, renamed, the directory synced.
//!
//! # Guarantees
//!
//! - A directory of another node, cluster or format is refused at the start, with what it says.
//! - A voter that comes back under its old id without its old directory is refused by every peer
//!   that has met it: it has forgotten what it voted for.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_core::ClusterId;
use parking_lot::Mutex;

use crate::{Disk, NodeId, Random, StartError};

const FORMAT: u64 = 1;
const FILE: &str = "identity";
const FILE_NEW: &str = "identity.new";
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The directory's identity; clones share it.
#[derive(Clone)]
pub(crate) struct Identity {
    directory: PathBuf,
    disk: Arc<dyn Disk>,
    record: Arc<Mutex<Record>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    node: NodeId,
    /// Made at random with the directory; never shared by two.
    uuid: u128,
    cluster: Option<ClusterId>,
    /// The directory of each peer when it was first met.
    peers: BTreeMap<NodeId, u128>,
}

impl Identity {
    /// Reads the directory's identity, or gives it one.
    ///
    /// # Errors
    ///
    /// [`StartError::ForeignDirectory`], [`StartError::Io`].
    pub(crate) fn open(
        directory: &Path,
        node: NodeId,
        disk: Arc<dyn Disk>,
        random: &dyn Random,
    ) -> Result<Self, StartError> {
        let foreign = |reason: String| StartError::ForeignDirectory {
            directory: directory.display().to_string(),
            reason,
        };
        let failed = |error: io::Error| {
            StartError::Io(format!("the data directory {}: {error}", directory.display()))
        };
        let found = read(directory, &*disk).map_err(failed)?;
        let record = match found {
            Some(text) => {
                let record = parse(&text).map_err(foreign)?;
                if record.node != node {
                    return Err(foreign(format!(
                        "it belongs to node {}, and this is started as node {node}; \
                         choose its own directory with --data-dir, or its id with --id",
                        record.node
                    )));
                }
                record
            }
            None => {
                let uuid = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
                Record { node, uuid, ..Record::default() }
            }
        };
        let identity = Self {
            directory: directory.to_owned(),
            disk,
            record: Arc::new(Mutex::new(record.clone())),
        };
        identity.write(&record).map_err(failed)?;
        Ok(identity)
    }

    pub(crate) fn uuid(&self) -> u128 {
        self.record.lock().uuid
    }

    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.record.lock().cluster
    }

    /// Remembers the cluster that this directory belongs to.
    ///
    /// # Errors
    ///
    /// Those of the disk.
    pub(crate) fn set_cluster(&self, cluster: ClusterId) -> io::Result<()> {
        self.change(|record| record.cluster = Some(cluster))
    }

    /// Whether any directory is known for that peer.
    pub(crate) fn has_met(&self, peer: NodeId) -> bool {
        self.record.lock().peers.contains_key(&peer)
    }

    /// Whether this very directory is known for that peer: no disk is touched.
    pub(crate) fn knows(&self, peer: NodeId, uuid: u128) -> bool {
        self.record.lock().peers.get(&peer) == Some(&uuid)
    }

    /// Whether a peer is who it was when it was first met; it is remembered if it is new.
    ///
    /// # Errors
    ///
    /// Those of the disk: a peer that can't be remembered isn't let in.
    pub(crate) fn recognize(&self, peer: NodeId, uuid: u128) -> io::Result<bool> {
        let known = self.record.lock().peers.get(&peer).copied();
        if let Some(known) = known {
            return Ok(known == uuid);
        }
        self.change(|record| {
            record.peers.insert(peer, uuid);
        })?;
        Ok(true)
    }

    fn change(&self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let mut record = self.record.lock();
        let mut changed = record.clone();
        change(&mut changed);
        if changed != *record {
            self.write(&changed)?;
            *record = changed;
        }
        Ok(())
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let (new, path) = (self.directory.join(FILE_NEW), self.directory.join(FILE));
        let file = self.disk.open(&new, true)?;
        let text = print(record);
        file.set_len(0)?;
        file.write_all_at(text.as_bytes(), 0)?;
        file.sync_data()?;
        self.disk.rename(&new, &path)?;
        self.disk.sync_dir(&self.directory)
    }
}

fn read(directory: &Path, disk: &dyn Disk) -> io::Result<Option<String>> {
    let file = match disk.open(&directory.join(FILE), false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.len()?.min(FILE_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn print(record: &Record) -> String {
    let mut text = String::from("# The identity of this data directory. Don't edit or copy it.\n");
    text.push_str(&format!("format = {FORMAT}\nnode = {}\n", record.node));
    text.push_str(&format!("directory = {:032x}\n", record.uuid));
    if let Some(cluster) = record.cluster {
        text.push_str(&format!("cluster = {cluster}\n"));
    }
    for (peer, uuid) in &record.peers {
        text.push_str(&format!("peer {peer} = {uuid:032x}\n"));
    }
    text
}

fn parse(text: &str) -> Result<Record, String> {
    let mut record = Record::default();
    let mut format = None;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let damaged = || format!("its file `identity` is damaged: {line:?}");
        let (key, value) = line.split_once('=').ok_or_else(damaged)?;
        let (key, value) = (key.trim(), value.trim());
        let hex = || u128::from_str_radix(value, 16).map_err(|_| damaged());
        match key {
            "format" => format = value.parse().ok(),
            "node" => record.node = value.parse().map_err(|_| damaged())?,
            "directory" => record.uuid = hex()?,
            "cluster" => record.cluster = Some(ClusterId(hex()?)),
            _ => {
                let peer = key.strip_prefix("peer ").ok_or_else(damaged)?;
                record.peers.insert(peer.parse().map_err(|_| damaged())?, hex()?);
            }
        }
    }
    match format {
        Some(FORMAT) if record.node > 0 && record.uuid > 0 => Ok(record),
        Some(FORMAT) | None => Err("its file `identity` is damaged".to_owned()),
        Some(other) => Err(format!("its format is {other}, and this program knows {FORMAT}")),
    }
}
