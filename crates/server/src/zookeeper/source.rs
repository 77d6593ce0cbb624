//! The facts of this server, gathered when somebody asks. What is long is gathered from a frozen
//! state, or a connection at a time, so that nobody who works waits for somebody who looks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{ENSEMBLE_PATH, Lease, Tree};
use lockkeeper_node::Status;
use rustix::process::{Resource, getrlimit};

use super::Front;
use super::facts::{
    ConnectionFacts, Facts, MinAvgMax, Mode, SessionFacts, Sessions, Source, millis,
};
use super::traffic::{ConnectionView, Latency};
use crate::limits::LINE_NAME_BYTES_MAX;

/// Children of one prefix that are counted by themselves.
const CHILDREN_MAX: usize = 100;

/// Znodes that are looked at for one prefix, at most, by one scrape.
const LOOKED_AT_MAX: usize = 20_000;

/// Where a server is, and what its process knows beside the node.
pub(crate) struct Place {
    pub(crate) client_address: Option<SocketAddr>,
    pub(crate) secure_client_port: Option<u16>,
    pub(crate) data_dir: String,
    /// After this long without a word from the others they count as gone.
    pub(crate) silence: Duration,
}

impl Front {
    fn mode(&self, status: &Status) -> Option<Mode> {
        let voters = status.members.iter().filter(|member| member.is_voter).count();
        let is_voter =
            status.members.iter().any(|member| member.member.id == status.id && member.is_voter);
        match (status.is_ready, is_voter) {
            (false, _) => self.is_reading_only.load(Ordering::Relaxed).then_some(Mode::ReadOnly),
            (true, true) if voters == 1 => Some(Mode::Standalone),
            (true, _) if status.leader == Some(status.id) => Some(Mode::Leader),
            (true, true) => Some(Mode::Follower),
            (true, false) => Some(Mode::Observer),
        }
    }
}

impl Source for Front {
    fn facts(&self) -> Facts {
        let status = self.node.status();
        let voters = status.members.iter().filter(|member| member.is_voter).count();
        let observers = status.members.len() - voters;
        let views: Vec<ConnectionView> =
            self.hub.connections().iter().map(|outbox| outbox.view()).collect();
        let watches = self.hub.watch_counts();
        let (received, sent) = self.figures.traffic();
        let latency = *self.latency.lock();
        let place = self.place.get();
        let (counts, zxid, nodes, ephemerals, data_bytes, members) = self.node.query(|state, _| {
            let tree = state.tree();
            let (nodes, ephemerals) = (tree.len(), tree.ephemeral_count());
            let members = tree.node(ENSEMBLE_PATH).and_then(|node| node.data).unwrap_or_default();
            let members = String::from_utf8_lossy(members).into_owned();
            let revision = state.revision().0;
            (state.counts(), revision, nodes, ephemerals, tree.data_bytes(), members)
        });
        Facts {
            mode: self.mode(&status),
            server_id: status.id,
            leader_id: status.leader,
            term: status.term,
            voters: u32::try_from(voters).unwrap_or(u32::MAX),
            voters_reached: status.voters_reached,
            observers: u32::try_from(observers).unwrap_or(u32::MAX),
            uptime: self.started.elapsed(),
            now_ms: self.clock.wall_ms(),
            zxid,
            latency_ms: summary(&latency),
            latency_avg_ms: average_ms(&latency),
            reply_bytes: self.figures.reply_bytes(),
            received,
            sent,
            outstanding: views.iter().map(|view| view.queued as u64).sum(),
            connections: views.len() as u64,
            // ZooKeeper counts the root twice.
            nodes: nodes as u64 + 1,
            ephemerals: ephemerals as u64,
            data_bytes,
            sessions: counts.sessions as u64,
            local_sessions: views.iter().filter(|view| view.is_local).count() as u64,
            watches: (watches.data + watches.child) as u64,
            authentications_failed: self.figures.authentications_failed(),
            handshakes: self.figures.handshakes(),
            client_port: place.and_then(|place| place.client_address).map(|address| address.port()),
            secure_client_port: place.and_then(|place| place.secure_client_port),
            data_dir: place.map(|place| place.data_dir.clone()).unwrap_or_default(),
            members,
            settings: self.settings.clone(),
        }
    }

    fn files(&self) -> (u64, u64) {
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        (open as u64, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn disk_bytes(&self) -> u64 {
        self.place.get().map_or(0, |place| bytes_below(Path::new(&place.data_dir)))
    }

    fn connections(&self) -> Vec<ConnectionFacts> {
        let now_ms = self.clock.wall_ms();
        let connections = self.hub.connections();
        connections.iter().map(|outbox| connection(&outbox.view(), now_ms)).collect()
    }

    fn sessions(&self) -> Sessions {
        let now_ms = self.clock.wall_ms();
        let frozen = self.node.query(|state, _| state.clone());
        let tree = frozen.tree();
        let paths = |session| tree.ephemerals(session).map(ToString::to_string).collect();
        // When one was last heard only its own server knows, and the leader.
        let expires = |lease: Lease| (lease.session.0, now_ms + u64::from(lease.ttl_ms));
        Sessions {
            expiries: frozen.leases().map(expires).collect(),
            ephemerals: tree.owners().map(|(session, _)| (session.0, paths(session))).collect(),
        }
    }

    fn watches(&self) -> Vec<(String, Vec<u64>)> {
        let mut by_path: BTreeMap<Arc<str>, Vec<u64>> = BTreeMap::new();
        for outbox in self.hub.connections() {
            let Some(session) = outbox.view().session else { continue };
            for path in self.hub.data_watches(outbox.watcher()) {
                by_path.entry(path).or_default().push(session.0);
            }
        }
        by_path.values_mut().for_each(|sessions| sessions.sort_unstable());
        by_path.into_iter().map(|(path, sessions)| (path.to_string(), sessions)).collect()
    }

    fn ephemerals_below(&self, prefix: &str) -> Vec<(String, u64)> {
        ephemerals_below(&self.node.query(|state, _| state.tree().clone()), prefix)
    }

    fn reset_server(&self) {
        self.figures.reset_traffic();
        *self.latency.lock() = Latency::default();
    }

    fn reset_connections(&self) {
        self.hub.connections().iter().for_each(|outbox| outbox.reset_traffic());
    }
}

fn ephemerals_below(tree: &Tree, prefix: &str) -> Vec<(String, u64)> {
    let below = |parent: &str, name: &str| {
        if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
    };
    let mut left = LOOKED_AT_MAX;
    let mut counted = Vec::new();
    let names = tree.children(prefix).filter(|name| name.len() <= LINE_NAME_BYTES_MAX);
    for name in names.take(CHILDREN_MAX) {
        let path = below(prefix, name);
        let looked_at = tree.children(&path).take(left);
        let mut count = 0;
        for name in looked_at {
            left -= 1;
            let node = tree.node(&below(&path, name));
            count += u64::from(node.is_some_and(|node| node.stat.ephemeral_owner.is_some()));
        }
        counted.push((path, count));
    }
    counted
}

fn connection(view: &ConnectionView, now_ms: u64) -> ConnectionFacts {
    let since_ms = now_ms.saturating_sub(millis(view.age));
    let traffic = &view.traffic;
    let last_reply_ms =
        traffic.last_reply.map_or(0, |at| now_ms.saturating_sub(millis(at.elapsed())));
    let session = view.session.map(|session| SessionFacts {
        id: session.0,
        timeout_ms: millis(view.timeout),
        since_ms,
        last_op: traffic.last_op,
        last_xid: traffic.last_xid,
        last_zxid: traffic.last_zxid,
        last_reply_ms,
        last_latency_ms: millis(traffic.latency.last),
        latency_ms: summary(&traffic.latency),
    });
    ConnectionFacts {
        address: view.address,
        is_secure: view.is_secure,
        outstanding: view.queued as u64,
        received: traffic.received,
        sent: traffic.sent,
        session,
    }
}

fn summary(latency: &Latency) -> MinAvgMax {
    let count = u32::try_from(latency.count).unwrap_or(u32::MAX).max(1);
    let Latency { min, max, total, .. } = *latency;
    let avg: Duration = total / count;
    MinAvgMax { min: millis(min), avg: millis(avg), max: millis(max) }
}

/// With the four digits that ZooKeeper has.
fn average_ms(latency: &Latency) -> f64 {
    let count = u32::try_from(latency.count).unwrap_or(u32::MAX).max(1);
    let micros = (latency.total / count).as_micros();
    f64::from(u32::try_from(micros / 100).unwrap_or(u32::MAX)) / 10.0
}

/// Bytes of the files in a directory, which has directories in it, but not deep.
fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let sizes = entries.filter_map(Result::ok).filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() { bytes_below(&entry.path()) } else { metadata.len() })
    });
    sizes.sum()
}
