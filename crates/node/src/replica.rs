//! The state of one replica, and how an entry of the log becomes part of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::{Command, EndReason, Event, Reply, SessionId, StateMachine};
use tokio::sync::oneshot;

use crate::batcher::Batcher;
use crate::codec::Meta;
use crate::deadlines::Deadlines;
use crate::entry;
use crate::raft::{LogId, StoredMembership};
use crate::watch::{Listeners, Told};
use crate::{EnsembleMember, Fault, Monotonic, Sink, Unavailable, address};

/// The state, and who is told of its changes. Locked for one entry at a time, and by queries.
#[derive(Default)]
pub(crate) struct Replica {
    pub(crate) state: StateMachine,
    /// The newest entry in the state; `None`: none yet.
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
    pub(crate) listeners: Listeners,
    /// Who waits until an index is applied.
    waiting: BTreeMap<u64, Vec<oneshot::Sender<()>>>,
    told: Told,
}

/// What an entry meets on its way into the state.
pub(crate) struct Surroundings<'a> {
    pub(crate) batcher: &'a Batcher,
    pub(crate) deadlines: &'a Deadlines,
    pub(crate) now: Monotonic,
    /// Whether somebody wants to hear of all events.
    pub(crate) is_observed: bool,
}

impl Replica {
    /// Applies a batch: every command in order, each with its news first and its answer then.
    /// Returns all events if it is observed, and else none.
    ///
    /// # Errors
    ///
    /// [`Fault::Internal`] if the bytes are no batch: a committed entry that this program can't
    /// read must not be skipped.
    pub(crate) fn apply(
        &mut self,
        bytes: &Bytes,
        around: &Surroundings<'_>,
    ) -> Result<Vec<Event>, Fault> {
        let unreadable = || {
            Fault::Internal("a committed entry can't be read: is this an older version?".to_owned())
        };
        let batch = entry::decode(bytes).ok_or_else(unreadable)?;
        let (asks, since) = around.batcher.applied(batch.id).unzip();
        let mut asks = asks.iter().flat_map(|asks| asks.iter());
        let Self { state, listeners, told, .. } = self;
        listeners.begin(since.map(|since| around.now.since(since)));
        let mut events = Vec::new();
        let mut observed = Vec::new();
        let mut rest = batch.commands;
        while !rest.is_empty() {
            let decoded = Command::decode(rest).ok_or_else(unreadable)?;
            rest = decoded.rest;
            events.clear();
            let reply = state.apply(batch.stamp, &decoded.command, &mut events);
            let now = state.stamp();
            for event in &events {
                listeners.tell(event, state, now, told);
            }
            around.deadlines.follow(&events, state, around.now);
            if around.is_observed {
                observed.extend_from_slice(&events);
            }
            if let Some((sink, id)) = asks.next() {
                if let (
                    Command::OpenSession { session, .. } | Command::ResumeSession { session, .. },
                    Reply::Done,
                ) = (&decoded.command, &reply)
                {
                    listeners.attach(*session, sink);
                }
                sink.reply(id, Ok(&reply), state, now);
                told.add(sink);
            }
        }
        told.flush();
        Ok(observed)
    }

    /// The members are others: whoever looks at them through ZooKeeper's eyes is told, if that
    /// shows. Returns all events if it is observed, and else none.
    pub(crate) fn show_members(&mut self, around: &Surroundings<'_>) -> Vec<Event> {
        let Self { state, listeners, told, membership, .. } = self;
        let members = address::members(membership.membership());
        let members: Vec<_> = members.iter().map(EnsembleMember::listed).collect();
        let mut events = Vec::new();
        state.set_members(&members, &mut events);
        if !events.is_empty() {
            listeners.begin(None);
            let now = state.stamp();
            for event in &events {
                listeners.tell(event, state, now, told);
            }
            told.flush();
        }
        if !around.is_observed {
            events.clear();
        }
        events
    }

    /// An entry is in the state: whoever waits for it may go on.
    pub(crate) fn advance(&mut self, id: LogId) {
        self.applied = Some(id);
        while let Some(entry) = self.waiting.first_entry()
            && *entry.key() <= id.index
        {
            for waiter in entry.remove() {
                // It may have given up waiting.
                let _ = waiter.send(());
            }
        }
    }

    /// Completes once `index` is applied; at once if it is.
    pub(crate) fn wait(&mut self, index: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        if self.applied.is_some_and(|applied| applied.index >= index) {
            // The receiver is right here.
            let _ = sender.send(());
        } else {
            self.waiting.entry(index).or_default().push(sender);
        }
        receiver
    }

    /// A snapshot takes the place of the state. What was pending here is unknown from now on, and
    /// no subscriber's story goes on where it stopped.
    pub(crate) fn replace(&mut self, state: StateMachine, meta: &Meta, batcher: &Batcher) {
        self.state = state;
        for asks in batcher.forget_flights() {
            for (sink, id) in asks.iter() {
                self.answer(sink, id, &Unavailable::Unknown);
            }
        }
        self.told.flush();
        self.listeners.close_all("this node was brought up to date by a snapshot: resume anew");
        self.membership = meta.stored_membership().unwrap_or_default();
        if let Some(id) = meta.last_log_id() {
            self.advance(id);
        }
    }

    /// Answers a request that never made it into the state here.
    pub(crate) fn answer(&mut self, sink: &Arc<dyn Sink>, id: u64, why: &Unavailable) {
        sink.reply(id, Err(why), &self.state, self.state.stamp());
        self.told.add(sink);
    }

    /// Flushes whoever was answered by [`Replica::answer`].
    pub(crate) fn flush(&mut self) {
        self.told.flush();
    }

    /// What a snapshot of this moment stands for.
    pub(crate) fn meta(&self) -> Meta {
        Meta::new(self.applied, &self.membership)
    }

    /// How many of the first of these endings fit into one entry that walks `items_max` items;
    /// never less than one.
    pub(crate) fn fitting(&self, endings: &[(SessionId, EndReason)], items_max: usize) -> usize {
        let mut items = 0;
        let fits = |(session, _): &&(SessionId, EndReason)| {
            let lease = self.state.lease(*session);
            items += 1 + lease.map_or(0, |lease| lease.item_count);
            items <= items_max
        };
        endings.iter().take_while(fits).count().max(1)
    }
}
