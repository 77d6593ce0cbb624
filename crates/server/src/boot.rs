//! Which boot of the machine this is, and what that means for the sessions of an earlier one.
//!
//! Clients and server of an embedded node live and die with one machine. Sessions that an earlier
//! boot has left behind belong to nobody, so their locks pass on at once and not after a lease.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use lockkeeper_core::{Command, EndReason, Event, Reply, Stamp, StateMachine};
use lockkeeper_node::{NodeHandle, Sink, Unavailable, WatchId};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The file in the data directory that names the boot under which the node ran last.
const FILE: &str = "boot-id";

/// Sessions that are proposed for ending at a time.
const SESSIONS_AT_ONCE: usize = 1_000;

/// The id of this boot of the machine; empty if the system has none.
pub(crate) fn boot_id() -> &'static str {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    BOOT_ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        text.trim().to_owned()
    })
}

/// Ends every session that an earlier boot of this machine has left in the node's state, and
/// remembers this boot in `data_dir`. Returns how many there were.
///
/// # Errors
///
/// Those of the file, and [`Unavailable`] of the node.
pub(crate) async fn end_earlier_sessions(node: &NodeHandle, data_dir: &Path) -> io::Result<usize> {
    let path = data_dir.join(FILE);
    let remembered = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mut ended = 0;
    if remembered.is_some_and(|earlier| earlier.trim() != boot_id()) {
        ended = end_all(node).await.map_err(io::Error::other)?;
    }
    // Only now: a crash before this line does it all again, which ends nobody's session.
    std::fs::write(&path, boot_id())?;
    Ok(ended)
}

async fn end_all(node: &NodeHandle) -> Result<usize, Unavailable> {
    node.read_index().await?;
    let mut ended = 0;
    loop {
        let sessions = node.query(|state, _| state.sessions(None, SESSIONS_AT_ONCE));
        if sessions.is_empty() {
            return Ok(ended);
        }
        let endings = Arc::new(Endings::default());
        let sink = Arc::clone(&endings) as Arc<dyn Sink>;
        for (id, session) in (1..).zip(&sessions) {
            let reason = EndReason::Rebooted;
            node.propose(&Command::EndSession { session: session.id, reason }, id, &sink);
        }
        endings.all(sessions.len()).await?;
        node.detach(&sink);
        ended += sessions.len();
    }
}

/// Counts the answers to a number of endings.
#[derive(Default)]
struct Endings {
    answered: Mutex<Answered>,
    changed: Notify,
}

#[derive(Default)]
struct Answered {
    count: usize,
    failure: Option<Unavailable>,
}

impl Endings {
    async fn all(&self, count: usize) -> Result<(), Unavailable> {
        loop {
            {
                let answered = self.answered.lock();
                if let Some(failure) = &answered.failure {
                    return Err(failure.clone());
                }
                if answered.count == count {
                    return Ok(());
                }
            }
            self.changed.notified().await;
        }
    }
}

impl Sink for Endings {
    fn reply(&self, _: u64, reply: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {
        let mut answered = self.answered.lock();
        answered.count += 1;
        answered.failure = answered.failure.take().or_else(|| reply.err().cloned());
        drop(answered);
        self.changed.notify_one();
    }

    fn event(&self, _: Option<WatchId>, _: &Event, _: &StateMachine, _: Stamp) {}

    fn confirmed(&self, _: u64) {}

    fn flush(&self) {}

    fn close(&self, _: &'static str) {
        self.answered.lock().failure.get_or_insert(Unavailable::Stopping);
        self.changed.notify_one();
    }
}
