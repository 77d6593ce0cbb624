//! Disks that fail or stand still: the node says why and stops, and the others go on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{Command, EndReason, Number, Reply};
use lockkeeper_node::{
    DirectoryGuard, Disk, DiskFile, Fault, NodeId, StartError, Timers, Unavailable,
};
use parking_lot::{Condvar, Mutex};

use crate::client::{Client, acquire};
use crate::cluster::{Cluster, eventually};

/// What is wrong with a node's disk, to be changed while it runs.
#[derive(Default)]
pub(crate) struct Trouble {
    kind: Mutex<Kind>,
    changed: Condvar,
    /// How many fsyncs don't return just now.
    stuck: AtomicUsize,
    is_full: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    None,
    /// Every fsync fails.
    Failing,
    /// Every fsync but for the next few.
    FailingAfter(u32),
    /// No fsync returns.
    Stuck,
    /// Every fsync takes this long.
    Slow(Duration),
}

impl Trouble {
    fn set(&self, kind: Kind) {
        *self.kind.lock() = kind;
        self.changed.notify_all();
    }

    /// Whether there is no room left, says the disk; it takes writes nevertheless.
    fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Where every fsync goes through.
    fn sync(&self) -> io::Result<()> {
        let mut kind = self.kind.lock();
        self.stuck.fetch_add(1, Ordering::Relaxed);
        while *kind == Kind::Stuck {
            self.changed.wait(&mut kind);
        }
        self.stuck.fetch_sub(1, Ordering::Relaxed);
        match &mut *kind {
            Kind::FailingAfter(left) if *left > 0 => {
                *left -= 1;
                Ok(())
            }
            Kind::Failing | Kind::FailingAfter(_) => {
                Err(io::Error::other("the platter has come off"))
            }
            &mut Kind::Slow(duration) => {
                drop(kind);
                std::thread::sleep(duration);
                Ok(())
            }
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
        let is_full = self.trouble.is_full.load(Ordering::Relaxed);
        if is_full { Ok(0) } else { self.disk.free_bytes(directory) }
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
    let other = cluster_follower(&cluster, leader);
    // The grant may have been committed by the others' disks before this one failed.
    eventually("another node leads", || {
        cluster.node(other).status().leader.is_some_and(|now| now != leader)
    });
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
fn disks_that_are_slower_than_elections_elect_a_leader_nevertheless() {
    let mut cluster = Cluster::together(3);
    let (leader, survivors) = (cluster.leader(), cluster.followers());
    let mut client = Client::open(cluster.node(survivors[0]));
    let (held, _) = client.take("kept");
    // Nobody else can stand in for a vote that comes late, and all of them do.
    let slowness = Timers::RELAXED.election_max;
    for &id in cluster.nodes.keys() {
        cluster.network.disk_trouble(id).set(Kind::Slow(slowness));
    }
    cluster.kill(leader);
    let mut next = Client::open(cluster.node(survivors[1]));
    next.take("afterwards");
    client.release(held);
    for &id in &survivors {
        cluster.network.disk_trouble(id).set(Kind::None);
    }
}

#[test]
fn a_leader_goes_on_where_the_others_disks_are_as_slow() {
    let cluster = Cluster::together(3);
    let reign = cluster.reign();
    let mut client = Client::open(cluster.node(reign.0));
    let slow = |slowness| {
        for &id in cluster.nodes.keys() {
            cluster.network.disk_trouble(id).set(slowness);
        }
    };
    // Longer than what makes a leader with better ones around it hand over.
    slow(Kind::Slow(Duration::from_millis(1_300)));
    for lock in ["a", "b", "c"] {
        client.take(lock);
    }
    assert_eq!(cluster.reign(), reign);
    slow(Kind::None);
}

#[test]
fn an_outcome_that_is_slow_is_waited_for_as_long_as_a_majority_answers() {
    let cluster = Cluster::together(3);
    let mut client = Client::open(cluster.node(cluster.leader()));
    // Longer than anybody waits for a leader, and not so long that the disk passes for stuck.
    let slowness = 5 * Timers::RELAXED.election_max + Duration::from_millis(600);
    let followers = cluster.followers().into_iter();
    let troubles: Vec<_> = followers.map(|id| cluster.network.disk_trouble(id)).collect();
    troubles.iter().for_each(|trouble| trouble.set(Kind::Slow(slowness)));
    // Where the machine stands still it may look as if nobody answered.
    eventually("a slow outcome", || {
        let (session, floor, number) = (client.session, Number(1), Number(client.next_number()));
        let request = acquire("slow");
        let began = Instant::now();
        let reply = client.try_ask(&Command::Request { session, number, floor, request });
        reply.is_ok() && began.elapsed() >= slowness
    });
    troubles.iter().for_each(|trouble| trouble.set(Kind::None));
}

#[test]
fn followers_whose_disks_stand_still_say_nevertheless_whom_they_follow() {
    let cluster = Cluster::together(3);
    let (leader, followers) = (cluster.leader(), cluster.followers());
    let mut client = Client::open(cluster.node(leader));
    let sessions = Client::open(cluster.node(followers[0]));
    let troubles = followers.iter().map(|&id| cluster.network.disk_trouble(id));
    let troubles: Vec<_> = troubles.collect();
    troubles.iter().for_each(|trouble| trouble.set(Kind::Stuck));
    let asking = std::thread::spawn(move || client.take("on two disks"));
    eventually("the followers write it down", || {
        troubles.iter().all(|trouble| trouble.stuck.load(Ordering::Relaxed) > 0)
    });

    let read = cluster.nodes[&leader].run(async |node| node.read_index().await);
    assert!(read.is_ok(), "{read:?}");
    sessions.beat_until_confirmed();
    assert!(!asking.is_finished(), "nothing is granted that a majority doesn't have");
    assert!(cluster.node(leader).status().is_ready);

    troubles.iter().for_each(|trouble| trouble.set(Kind::None));
    asking.join().expect("the lock is granted once the disks are back");
}

#[test]
fn a_disk_that_fails_while_the_node_starts_is_not_taken_for_damage() {
    let mut cluster = Cluster::single();
    let mut client = Client::open(cluster.node(1));
    for lock in ["a", "b", "c"] {
        client.take(lock);
    }
    client.leave();
    let trouble = cluster.network.disk_trouble(1);
    let mut failures = 0;
    cluster.kill(1);
    for works in 0.. {
        trouble.set(Kind::FailingAfter(works));
        match cluster.try_start(cluster.config(1)) {
            // What comes later it says as any running node does.
            Ok(node) => {
                cluster.nodes.insert(1, node);
                cluster.kill(1);
                break;
            }
            Err(StartError::Io(said) | StartError::Fault(Fault::Disk(said))) => {
                assert!(said.contains("the platter has come off"), "{said}");
                failures += 1;
            }
            Err(other) => panic!("after {works} fsyncs: {other}"),
        }
    }
    assert!(failures > 0, "it starts without an fsync");
    trouble.set(Kind::None);
    cluster.start(1);
    client.go_to(cluster.node(1));
    client.take("d");
}

#[test]
fn a_directory_is_nobody_elses_while_a_thread_works_there() {
    let mut cluster = Cluster::single();
    let client = Client::open(cluster.node(1));
    let trouble = cluster.network.disk_trouble(1);
    trouble.set(Kind::Stuck);
    let (session, reason) = (client.session, EndReason::Closed);
    client.node().propose(&Command::EndSession { session, reason }, 0, &client.sink());
    eventually("it is written down", || trouble.stuck.load(Ordering::Relaxed) > 0);
    // Nobody stops it: it is dropped, with its runtime.
    drop(client);
    cluster.nodes.remove(&1);
    let taken = cluster.try_start(cluster.config(1)).map(|_| ());
    assert!(matches!(taken, Err(StartError::InUse(_))), "{taken:?}");
    trouble.set(Kind::None);
    eventually("its threads have ended", || match cluster.try_start(cluster.config(1)) {
        Err(StartError::InUse(_)) => false,
        Err(other) => panic!("{other}"),
        Ok(node) => node.handle().status().members.len() == 1,
    });
}

#[test]
fn a_node_that_is_alone_waits_for_its_disk() {
    let cluster = Cluster::single();
    let mut client = Client::open(cluster.node(1));
    let trouble = cluster.network.disk_trouble(1);
    trouble.set(Kind::Stuck);
    let handle = cluster.node(1).clone();
    let asking = std::thread::spawn(move || client.take("patience"));
    eventually("it is written down", || trouble.stuck.load(Ordering::Relaxed) > 0);
    let before = handle.status().fsyncs;
    // There is nobody to go on without it: neither the one second nor the five end it.
    std::thread::sleep(Duration::from_secs(6));
    assert!(!asking.is_finished(), "nothing is granted that isn't on the disk");
    assert_eq!(handle.status().fsyncs, before);
    trouble.set(Kind::None);
    asking.join().expect("the lock is granted once the disk is back");
}

#[test]
fn a_leader_without_room_has_new_work_refused_at_every_door() {
    let cluster = Cluster::together(3);
    let mut doors: Vec<Client> =
        cluster.nodes.values().map(|node| Client::open(node.handle())).collect();
    let (held, _) = doors[0].take("held");

    let mut full = None;
    // Where the machine stands still somebody else may lead meanwhile, and then it proves nothing.
    eventually("one node leads all the while", || {
        full = fill_the_leaders_disk(&cluster, &mut doors);
        full.is_some()
    });
    let (leader, after) = full.expect("it was found");
    // It can't say that it is ready for work.
    eventually("it has a majority, and takes no locks", || {
        let status = cluster.node(leader).status();
        assert!(!status.takes_locks());
        status.is_ready
    });
    // Nothing of it was done, and what frees is still served at the same door.
    assert!(matches!(doors[0].release(held), Reply::Released { .. }));
    // Whoever answered the release may have applied it before the leader has.
    eventually("the leader has applied what was committed", || {
        cluster.nodes[&leader].run(async |node| node.read_index().await).is_ok()
    });
    let is_known = |lock| cluster.node(leader).query(|state, _| state.lock(lock, 0).is_some());
    assert!(!is_known(&after) && !is_known("held"));

    cluster.network.disk_trouble(leader).set_full(false);
    for client in &mut doors {
        eventually("there is room again", || short_of_room(client, "later").is_none());
    }
    eventually("it takes locks again", || cluster.node(leader).status().takes_locks());
    assert_eq!(doors[0].end(), Reply::Done);
}

/// Fills the leader's disk alone, waits until new work is refused at every door, and asks for
/// another lock there. Returns the leader and that lock, or `None` if nobody led all the while.
fn fill_the_leaders_disk(cluster: &Cluster, doors: &mut [Client]) -> Option<(NodeId, String)> {
    let reign = cluster.reign();
    let (leader, term) = reign;
    for &id in cluster.nodes.keys() {
        cluster.network.disk_trouble(id).set_full(id == leader);
    }
    let (before, after) = (format!("before-{term}"), format!("after-{term}"));
    let mut refused = Vec::new();
    for client in doors {
        eventually("new work is refused", || {
            short_of_room(client, &before) == Some(leader) || cluster.reign() != reign
        });
        refused.push(short_of_room(client, &after));
    }
    if cluster.reign() != reign {
        return None;
    }
    assert_eq!(refused, [Some(leader); 3]);
    Some((leader, after))
}

#[test]
fn followers_without_room_matter_once_the_others_are_no_majority() {
    let cluster = Cluster::together(3);
    let leader = cluster.leader();
    let mut client = Client::open(cluster.node(leader));
    let &[first, second] = &cluster.followers()[..] else { panic!("there are three") };
    let mut near_first = Client::open(cluster.node(first));

    cluster.network.disk_trouble(first).set_full(true);
    eventually("its own door is shut", || short_of_room(&mut near_first, "a") == Some(first));
    // What frees goes the same way as the word of it, and the leader's door stays open.
    assert_eq!(near_first.end(), Reply::Done);
    // (On a slow disk the full one may lead for a moment.)
    eventually("the leader's door is open", || short_of_room(&mut client, "b").is_none());

    cluster.network.disk_trouble(second).set_full(true);
    eventually("the leader's is too", || short_of_room(&mut client, "d").is_some());
    cluster.network.disk_trouble(first).set_full(false);
    eventually("one with room will do", || short_of_room(&mut client, "e").is_none());
}

/// Asks for a lock, and for want of room on whose disk it was refused.
fn short_of_room(client: &mut Client, lock: &str) -> Option<NodeId> {
    let number = Number(client.next_number());
    let mut refused = None;
    // Without a leader, or without its word in time, it is asked again.
    eventually("an answer", || {
        let request = acquire(lock);
        let command = Command::Request { session: client.session, number, floor: number, request };
        match client.try_ask(&command) {
            Ok(Reply::Granted { .. } | Reply::Queued { .. } | Reply::Refused(_)) => true,
            Err(Unavailable::DiskFull { node, .. }) => {
                refused = Some(node);
                true
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => false,
        }
    });
    refused
}

/// A running node other than `leader`.
fn cluster_follower(cluster: &Cluster, leader: u64) -> u64 {
    *cluster.nodes.keys().find(|&&id| id != leader).expect("there are three")
}
