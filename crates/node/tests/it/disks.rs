//! Disks that fail or stand still: the node says why and stops, and the others go on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_node::{DirectoryGuard, Disk, DiskFile, Fault};
use parking_lot::{Condvar, Mutex};

use crate::client::Client;
use crate::cluster::{Cluster, eventually};

/// What is wrong with a node's disk, to be changed while it runs.
#[derive(Default)]
pub(crate) struct Trouble {
    kind: Mutex<Kind>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    None,
    /// Every fsync fails.
    Failing,
    /// No fsync returns.
    Stuck,
}

impl Trouble {
    fn set(&self, kind: Kind) {
        *self.kind.lock() = kind;
        self.changed.notify_all();
    }

    /// Where every fsync goes through.
    fn sync(&self) -> io::Result<()> {
        let mut kind = self.kind.lock();
        while *kind == Kind::Stuck {
            self.changed.wait(&mut kind);
        }
        match *kind {
            Kind::Failing => Err(io::Error::other("the platter has come off")),
            Kind::None | Kind::Stuck => Ok(()),
        }
    }
}

/// A real disk with trouble.
pub(crate) struct TroubledDisk {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) trouble: Arc<Trouble>,
}

impl Disk for TroubledDisk {
    fn open(&self, path: &Path, create: bool) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(path, create)?;
        Ok(Box::new(TroubledFile { file, trouble: Arc::clone(&self.trouble) }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        self.disk.list(directory)
    }

    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        self.disk.create_dir(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        self.disk.sync_dir(directory)
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        self.disk.free_bytes(directory)
    }

    fn take_dir(&self, directory: &Path) -> io::Result<Option<DirectoryGuard>> {
        self.disk.take_dir(directory)
    }
}

struct TroubledFile {
    file: Box<dyn DiskFile>,
    trouble: Arc<Trouble>,
}

impl DiskFile for TroubledFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.trouble.sync()?;
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

#[test]
fn a_leader_whose_disk_fails_says_so_and_the_others_go_on() {
    let cluster = Cluster::together(3);
    let leader = cluster.leader();
    let mut client = Client::open(cluster.node(cluster.followers()[0]));
    let (held, token) = client.take("kept");

    cluster.network.disk_trouble(leader).set(Kind::Failing);
    // Something to be written: what was asked is done by the others in the end.
    let (_, later) = client.take("later");
    assert!(later > token);
    let fault = cluster.nodes[&leader].run(async |node| node.fault().await);
    assert!(matches!(fault, Fault::Disk(_)), "{fault:?}");
    let said = fault.to_string();
    assert!(
        said.contains("the platter has come off") && said.contains("replace the disk"),
        "{said}"
    );
    assert_ne!(cluster.node(cluster_follower(&cluster, leader)).status().leader, Some(leader));
    client.release(held);
}

#[test]
fn a_leader_whose_disk_is_stuck_hands_over_and_then_gives_up() {
    let cluster = Cluster::together(3);
    let leader = cluster.leader();
    let mut client = Client::open(cluster.node(cluster.followers()[0]));
    client.take("kept");

    let trouble = cluster.network.disk_trouble(leader);
    trouble.set(Kind::Stuck);
    // Its heartbeats don't wait for the disk, and the others' disks are a majority.
    client.take("later");
    let other = cluster_follower(&cluster, leader);
    eventually("another node leads", || {
        cluster.node(other).status().leader.is_some_and(|now| now != leader)
    });
    let fault = cluster.nodes[&leader].run(async |node| node.fault().await);
    assert!(matches!(fault, Fault::StuckDisk { seconds } if seconds >= 5), "{fault:?}");
    client.take("afterwards");
    // Its log's thread can end now.
    trouble.set(Kind::None);
}

#[test]
fn a_node_that_is_alone_waits_for_its_disk() {
    let cluster = Cluster::single();
    let mut client = Client::open(cluster.node(1));
    let trouble = cluster.network.disk_trouble(1);
    trouble.set(Kind::Stuck);
    let handle = cluster.node(1).clone();
    let before = handle.status().fsyncs;
    let asking = std::thread::spawn(move || client.take("patience"));
    // There is nobody to go on without it: neither the one second nor the five end it.
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(!asking.is_finished(), "nothing is granted that isn't on the disk");
    assert_eq!(handle.status().fsyncs, before);
    trouble.set(Kind::None);
    asking.join().expect("the lock is granted once the disk is back");
}

/// A running node other than `leader`.
fn cluster_follower(cluster: &Cluster, leader: u64) -> u64 {
    *cluster.nodes.keys().find(|&&id| id != leader).expect("there are three")
}
