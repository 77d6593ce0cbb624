//! openraft's idea of a state machine, over our [`Replica`](crate::replica::Replica).

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use futures_util::{Stream, TryStreamExt};
use lockkeeper_core::StateMachine;
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::{EntryPayload, OptionalSend};

use crate::codec::Meta;
use crate::inner::Inner;
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::raft::{
    Batch, EntryOf, LogId, SnapshotMeta, SnapshotOf, StoredMembership, Types, term_of,
};
use crate::snapshot::{FileReader, SnapshotFile, SnapshotStore, read_image};
use crate::{Applied, Fault, standing};

/// Applies what is committed. All of it happens on the node's thread, but for the snapshots' files.
pub(crate) struct Applier {
    inner: Arc<Inner>,
    /// The newest term of which an entry was applied.
    term: u64,
    /// The data directory says which cluster it belongs to.
    is_marked: bool,
    #[cfg(feature = "mutations")]
    is_restarted: bool,
}

impl Applier {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let term = inner.replica.lock().applied.map_or(0, |id| term_of(&id));
        Self {
            inner,
            term,
            is_marked: false,
            #[cfg(feature = "mutations")]
            is_restarted: term > 0,
        }
    }

    /// Writes into the data directory which cluster it belongs to, once that is known.
    async fn mark(&mut self) -> io::Result<()> {
        let Some(cluster) = self.inner.replica.lock().state.cluster() else { return Ok(()) };
        let identity = self.inner.identity.clone();
        if identity.cluster().is_some_and(|known| known != cluster) {
            let detail = format!("it holds the state of cluster {cluster}");
            let what = "the data directory".to_owned();
            self.inner.fail(Fault::Corrupted { what, detail: detail.clone() });
            return Err(io::Error::new(io::ErrorKind::InvalidData, detail));
        }
        self.inner.run_held(move || identity.set_cluster(cluster)).await?;
        self.is_marked = true;
        Ok(())
    }

    fn apply_entry(&mut self, entry: &EntryOf) -> io::Result<()> {
        let id = entry.log_id();
        let inner = &*self.inner;
        let mut replica = inner.replica.lock();
        let (mut applied, mut events): (&[u8], _) = (&[], Vec::new());
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(Batch(bytes)) => {
                #[cfg(feature = "mutations")]
                if std::mem::take(&mut self.is_restarted)
                    && mutated(Mutation::ApplyTwiceAfterRestart)
                {
                    let _ = replica.apply(bytes, &inner.surroundings());
                }
                events = replica.apply(bytes, &inner.surroundings()).map_err(|fault| {
                    inner.fail(fault.clone());
                    io::Error::new(io::ErrorKind::InvalidData, fault.to_string())
                })?;
                inner.snapshots.count(bytes.len());
                applied = bytes;
            }
            EntryPayload::Membership(members) => {
                replica.membership = StoredMembership::new(Some(id), members.clone());
                // Half of a change is shown to nobody.
                if members.get_joint_config().len() == 1 {
                    events = replica.show_members(&inner.surroundings());
                }
            }
        }
        replica.advance(id);
        if let Some(observer) = &inner.environment.observer {
            let (index, term) = (id.index(), term_of(&id));
            let (bytes, state) = (applied, &replica.state);
            observer.applied(Applied { index, term, bytes, events: &events, state });
        }
        drop(replica);
        if term_of(&id) > self.term {
            self.term = term_of(&id);
            inner.term_began(self.term);
        }
        Ok(())
    }
}

impl RaftStateMachine<Types> for Applier {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let replica = self.inner.replica.lock();
        Ok((replica.applied, replica.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        // Whoever follows is told of what is committed first, so that work that is long is done
        // everywhere at the same time: a turn for the task that hears of it, one for that which
        // writes.
        turn().await;
        turn().await;
        while let Some((entry, responder)) = entries.try_next().await? {
            let begun = self.inner.now();
            self.apply_entry(&entry)?;
            standing::note_apply(&self.inner, self.inner.now().since(begun));
            if !self.is_marked {
                self.mark().await?;
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let replica = self.inner.replica.lock();
        Builder {
            meta: replica.meta(),
            state: replica.state.clone(),
            store: self.inner.snapshots.store.clone(),
            inner: Arc::clone(&self.inner),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        mut snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        let state = match snapshot.state.take() {
            // It was read, and so checked, when it was received.
            Some(state) => state,
            None => {
                let file = Arc::clone(&snapshot.file);
                let read = move || read_image(&mut FileReader::new(&*file));
                self.inner.environment.run(read).await?.1
            }
        };
        let store = self.inner.snapshots.store.clone();
        let kept = self.inner.run_held(move || store.keep(snapshot)).await?;
        self.inner.snapshots.set(kept);
        let meta = Meta::from(meta);
        self.inner.replica.lock().replace(state, &meta, &self.inner.batcher);
        if let Some(id) = meta.last_log_id() {
            self.term = self.term.max(term_of(&id));
            self.inner.term_began(self.term);
        }
        self.mark().await?;
        tracing::info!(index = meta.index(), "installed a snapshot that the leader sent");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf>, io::Error> {
        let Some(snapshot) = self.inner.snapshots.newest() else { return Ok(None) };
        let meta = snapshot.meta.to_snapshot_meta();
        let meta = meta.ok_or_else(|| io::Error::other("the snapshot's members were checked"))?;
        Ok(Some(Snapshot { meta, snapshot }))
    }
}

/// Lets the tasks go first that are ready now. Unlike tokio's `yield_now`, it doesn't ask the
/// system for more of them, which would be a call for each entry.
async fn turn() {
    let mut is_over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Writes a snapshot of a frozen state, on a thread of its own.
pub(crate) struct Builder {
    meta: Meta,
    state: StateMachine,
    store: SnapshotStore,
    inner: Arc<Inner>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf, io::Error> {
        let (store, meta) = (self.store.clone(), self.meta.clone());
        // Taken, so that the frozen state is let go as soon as it is written.
        let state = std::mem::take(&mut self.state);
        let inner = Arc::clone(&self.inner);
        let build = move || store.build(meta, &state, || !inner.hold.is_released());
        let snapshot = self.inner.run_held_behind("snapshot", build).await?;
        self.inner.snapshots.set(snapshot.clone());
        tracing::info!(index = snapshot.meta.index(), bytes = snapshot.len, "took a snapshot");
        let meta = snapshot.meta.to_snapshot_meta();
        let meta = meta.ok_or_else(|| io::Error::other("the members in the state are sound"))?;
        Ok(Snapshot { meta, snapshot })
    }
}
