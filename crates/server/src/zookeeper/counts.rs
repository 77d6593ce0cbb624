//! How many znodes there are below one: counted in a frozen tree, a stretch at a time, so that
//! nobody else waits for a walk through a million of them.

use std::sync::Arc;

use lockkeeper_core::Tree;
use lockkeeper_wire::jute::Reply;
use tokio::task::yield_now;

use super::Front;
use super::ids::Id;
use super::outbox::Outbox;
use super::reads::{Failed, NULL_PATH, Reader, or_root};

/// Znodes that are counted before others have their turn: some tenths of a millisecond.
pub(super) const STRETCH: usize = if cfg!(test) { 64 } else { 4_096 };

/// Answers the request of the slot `id` once it has come to its turn. Of all that are asked for,
/// one is counted at a time.
pub(super) async fn run(
    front: &Arc<Front>,
    outbox: &Outbox,
    ids: &[Id],
    (id, xid): (u64, i32),
    path: Option<&str>,
) {
    outbox.is_first(id).await;
    let _turn = front.walks.turn().await;
    match freeze(front, outbox, ids, path) {
        Ok((path, tree)) => {
            let count = i32::try_from(count(&tree, path).await).unwrap_or(i32::MAX);
            outbox.answer_waiting(id, xid, &Reply::Count(count));
        }
        Err(error) => outbox.fail_waiting(id, error),
    }
    front.node.query(|state, _| outbox.go_on(state));
}

fn freeze<'a>(
    front: &Front,
    outbox: &Outbox,
    ids: &[Id],
    path: Option<&'a str>,
) -> Result<(&'a str, Tree), Failed> {
    let path = path.ok_or(NULL_PATH)?;
    let (watcher, session) = (outbox.watcher(), None);
    let tree = front
        .node
        .query(|machine, _| Reader { front, watcher, session, ids, machine }.to_be_counted(path))?;
    Ok((path, tree))
}

async fn count(tree: &Tree, path: &str) -> usize {
    // By its other name, ZooKeeper counts the root itself.
    if or_root(path) == "/" {
        return tree.len() - usize::from(!path.is_empty());
    }
    let mut below = tree.descendants(path);
    let mut count = 0;
    loop {
        let stretch = below.by_ref().take(STRETCH).count();
        count += stretch;
        if stretch < STRETCH {
            return count;
        }
        yield_now().await;
    }
}
