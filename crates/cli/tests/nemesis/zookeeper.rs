//! What a worker does that speaks ZooKeeper's protocol: the simulator's client, over real sockets
//! and by a real clock. And a look at the servers' trees when all is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::network::SystemNetwork;
use lockkeeper_core::{Mode, Token};
use lockkeeper_node::BoxFuture;
use lockkeeper_sim::workload::zookeeper::{Machine, Znode, run_on, survey};
use lockkeeper_sim::{Attempt, Chance, ClientId, Nanos, Seen};
use tokio::time::{Instant, sleep, timeout};

use crate::clock;
use crate::dice::Dice;
use crate::proxy::End;
use crate::servers::{FOUNDERS, health, status, zookeeper_listener};
use crate::worker::{Worker, tell};
use crate::world::World;

/// The servers that a URL names, if it is one for ZooKeeper's clients.
pub(crate) fn servers_of(url: &str) -> Option<Vec<(String, u16)>> {
    let server = |server: &str| {
        let (host, port) = server.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    };
    url.strip_prefix("zookeeper://")?.split(',').map(server).collect()
}

/// One session after another.
pub(crate) async fn live(worker: Arc<Worker>, servers: Vec<(String, u16)>, mut dice: Dice) {
    let chance = Chance::new(dice.below(u64::MAX));
    run_on(Arc::new(Process(worker)), Arc::new(SystemNetwork), servers, chance).await;
}

/// This process, as the client sees it.
struct Process(Arc<Worker>);

impl Machine for Process {
    fn local(&self) -> u64 {
        clock::now()
    }

    fn truth(&self, local: u64) -> Nanos {
        local
    }

    fn now(&self) -> Nanos {
        clock::now()
    }

    fn see(&self, at: Nanos, seen: Seen) {
        tell(at, &seen);
    }

    fn client(&self) -> ClientId {
        self.0.client_id()
    }

    fn is_over(&self) {}

    fn attempt(&self) -> Attempt {
        self.0.attempt()
    }

    fn write<'a>(&'a self, lock: &'a str, token: Token) -> BoxFuture<'a, ()> {
        // The register notes how it went.
        Box::pin(async move { _ = self.0.write(lock, Mode::Exclusive, token.0).await })
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

/// How long what killed workers left may stay, and a server may lag: much longer than a lease, as
/// the machine may be busy.
const SETTLING: Duration = Duration::from_secs(60);

/// When nobody is left: no ephemeral znode is, and all servers have the same tree. Says how many
/// znodes that are.
pub(crate) async fn compare_trees(world: &World) -> usize {
    let limit = Instant::now() + SETTLING;
    loop {
        let wrong = match trees(world).await {
            Ok(trees) => match wrong_of(&trees) {
                None => return trees.first().map_or(0, BTreeMap::len),
                Some(wrong) => wrong,
            },
            Err(wrong) => wrong,
        };
        if Instant::now() > limit {
            world.complain(wrong);
            return 0;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// How long one look at a server may take.
const LOOK: Duration = Duration::from_secs(15);

/// The tree of one server.
pub(crate) async fn tree_of(id: End) -> Option<BTreeMap<String, Znode>> {
    let at = zookeeper_listener(id);
    let surveying = survey(Arc::new(SystemNetwork), (at.ip().to_string(), at.port()));
    timeout(LOOK, surveying).await.ok().flatten()
}

async fn trees(world: &World) -> Result<Vec<BTreeMap<String, Znode>>, String> {
    let mut trees = Vec::new();
    for id in FOUNDERS {
        let Some(tree) = tree_of(id).await else {
            let process = world.servers.lock().process_state(id);
            let ready = timeout(LOOK, health(id, "/readyz")).await;
            let ready = ready.unwrap_or_else(|_| "no answer".to_owned());
            let own = status(id).await;
            return Err(format!(
                "the tree of server {id} can't be read: {process}; {ready}; {own:?}"
            ));
        };
        trees.push(tree);
    }
    Ok(trees)
}

fn wrong_of(trees: &[BTreeMap<String, Znode>]) -> Option<String> {
    let (first, others) = trees.split_first()?;
    let left = first.iter().find(|(_, znode)| znode.stat.ephemeral_owner != 0);
    if let Some((path, znode)) = left {
        return Some(format!("{path} outlives its session: {znode:?}"));
    }
    let other = others.iter().find(|other| *other != first)?;
    let differs = |path: &&String| first.get(*path) != other.get(*path);
    let path = first.keys().chain(other.keys()).find(differs)?;
    Some(format!("two servers' {path} differ: {:?} and {:?}", first.get(path), other.get(path)))
}
