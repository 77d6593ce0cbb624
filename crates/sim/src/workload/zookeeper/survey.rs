//! The whole tree as one server has it: to be compared with another's, and looked through for what
//! should be gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::network::Network;
use lockkeeper_wire::jute::{ErrorCode, Read, Reply, Request, Stat};

use super::client::{Client, Gone};
use super::machine::Nobody;
use crate::chance::Chance;

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
    let (nobody, timeout) = (Arc::new(Nobody), Duration::from_secs(10));
    let mut client = Client::open(nobody, network, vec![server], timeout, Chance::new(1)).await?;
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
