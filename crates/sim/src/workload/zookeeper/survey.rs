//! The whole tree as one server has it: to be compared with another's, and looked through for what
//! should be gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper::network::Network;
use lockkeeper_core::Token;
use lockkeeper_node::BoxFuture;
use lockkeeper_wire::jute::{ErrorCode, Read, Reply, Request, Stat};

use super::client::{Client, Gone};
use super::machine::Machine;
use crate::chance::Chance;
use crate::{Attempt, ClientId, Nanos, Seen};

/// What each server tells of itself.
const OWN: &str = "/zookeeper";

/// A znode as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    /// Its data.
    pub data: Vec<u8>,
    /// And everything else.
    pub stat: Stat,
}

/// Reads every znode of a server, behind a sync; but for what servers tell of themselves. `None` if
/// it can't be had, or changes meanwhile.
pub async fn survey(
    network: Arc<dyn Network>,
    server: (String, u16),
) -> Option<BTreeMap<String, Znode>> {
    let chance = Chance::new(1);
    let mut client = Client::open(Arc::new(Nobody), network, vec![server], chance).await?;
    let tree = read(&mut client).await.ok().flatten();
    client.close().await;
    tree
}

async fn read(client: &mut Client) -> Result<Option<BTreeMap<String, Znode>>, Gone> {
    let mut tree = BTreeMap::new();
    client.call(Request::Sync(Some("/"))).await?;
    let mut left = vec!["/".to_owned()];
    while let Some(path) = left.pop() {
        let read = Read { path: Some(&path), watch: false };
        let answer = client.call(Request::GetData(read)).await?;
        let Some(Reply::DataStat(data, stat)) = answer.reply(Request::GetData(read).op()) else {
            return Ok(None);
        };
        let data = data.unwrap_or_default().to_vec();
        let answer = client.call(Request::GetChildren(read)).await?;
        let Some(Reply::Strings(names)) = answer.reply(Request::GetChildren(read).op()) else {
            return Ok(None);
        };
        let parent = if path == "/" { "" } else { &path };
        let children = names.iter().flatten().map(|name| format!("{parent}/{name}"));
        left.extend(children.filter(|path| path != OWN));
        tree.insert(path, Znode { data, stat });
    }
    let last = client.call(Request::Sync(Some("/"))).await?;
    Ok((last.header.err == ErrorCode::OK).then_some(tree))
}

/// Nobody writes down what a survey sees, and it has all the time.
struct Nobody;

impl Machine for Nobody {
    fn local(&self) -> u64 {
        0
    }

    fn truth(&self, local: u64) -> Nanos {
        local
    }

    fn now(&self) -> Nanos {
        0
    }

    fn see(&self, _: Nanos, _: Seen) {}

    fn client(&self) -> ClientId {
        ClientId(0)
    }

    fn is_over(&self) {}

    fn attempt(&self) -> Attempt {
        Attempt(0)
    }

    fn write<'a>(&'a self, _: &'a str, _: Token) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn is_stopped(&self) -> bool {
        false
    }
}
