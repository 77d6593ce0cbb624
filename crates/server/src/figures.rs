//! What is counted of locks, by class.
//!
//! A lock counts for the class of its name, which is the first segment, and only the first
//! [`CLASSES_MAX`] classes are told apart. All of it is counted on the node's thread, under one
//! mutex that only a scrape ever contends for, and shortly.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{EndReason, Event, LossReason, Stamp, StateMachine};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::histogram::{COMMITS, Histogram, LEASES, WAITS};
use crate::limits::CLASSES_MAX;
use crate::native::loss_reason;
use crate::unread::Unread;

/// The class of every lock whose own isn't told apart.
const OTHER: &str = "other";

/// The figures of one server.
pub(crate) struct Figures {
    table: Mutex<Table>,
    acquire_seconds: Family<AcquireLabels, Histogram, fn() -> Histogram>,
    hold_seconds: Family<ClassLabel, Histogram, fn() -> Histogram>,
    handover_seconds: Family<HandoverLabels, Histogram, fn() -> Histogram>,
    lost: Family<LossLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    commit_seconds: Histogram,
    ttl_seconds: Histogram,
    /// What all connections have to send together.
    pub(crate) unread: Arc<Unread>,
}

#[derive(Default)]
struct Table {
    classes: HashMap<Box<str>, Class>,
    /// How often the queues were counted anew: a count of an earlier state doesn't belong here.
    epoch: u64,
    turn: Turn,
}

/// The figures of one class, found without making labels anew for each event.
struct Class {
    name: String,
    acquire_seconds: [Option<Histogram>; 4],
    hold_seconds: Option<Histogram>,
    handover_seconds: [Option<Histogram>; 4],
    queues: Queues,
}

/// Who waits in one class: how many since which stamp. A place that is counted out before it was
/// counted in is a debt for a while.
#[derive(Default)]
struct Queues {
    since: BTreeMap<u64, i64>,
    length: i64,
}

/// The batch whose events come now.
#[derive(Default)]
struct Turn {
    /// How long ago it was given to this node, if it was.
    took: Option<Duration>,
    /// Why the newest hold that is gone went: whoever is let in next follows it.
    cause: Option<Cause>,
}

/// How a request for a lock went.
#[derive(Clone, Copy)]
enum Outcome {
    Granted,
    /// The client gave the place up: most often its patience was at an end.
    Cancelled,
    /// The session ended while it waited.
    Ended,
    /// It was not to wait, and the lock wasn't free.
    Busy,
}

/// Why a hold went before the next one came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Release,
    /// Its session ended because its client said so.
    Disconnect,
    Expiry,
    Revoke,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AcquireLabels {
    class: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandoverLabels {
    class: String,
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LossLabels {
    class: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    code: &'static str,
}

/// The queues of one class at the moment of a scrape.
pub(crate) struct QueuesNow {
    pub(crate) class: String,
    pub(crate) length: u64,
    /// Since when the oldest waits, by the log's stamps.
    pub(crate) oldest: Option<Stamp>,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            acquire_seconds: Family::new_with_constructor(waits),
            hold_seconds: Family::new_with_constructor(waits),
            handover_seconds: Family::new_with_constructor(commits),
            lost: Family::default(),
            refused: Family::default(),
            commit_seconds: commits(),
            ttl_seconds: Histogram::new(LEASES),
            unread: Arc::default(),
        }
    }
}

fn waits() -> Histogram {
    Histogram::new(WAITS)
}

fn commits() -> Histogram {
    Histogram::new(COMMITS)
}

impl Figures {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "acquire_seconds",
            "From request to grant, or to where it ended else, by the log's stamps",
            self.acquire_seconds.clone(),
        );
        registry.register(
            "hold_seconds",
            "From grant to release or loss, by the log's stamps",
            self.hold_seconds.clone(),
        );
        registry.register(
            "handover_seconds",
            "From what ended a hold to the grant to the next in line; counted on one node each",
            self.handover_seconds.clone(),
        );
        registry.register("lost", "Holds that were taken away", self.lost.clone());
        registry.register("refused", "Requests of this node's clients", self.refused.clone());
        registry.register(
            "raft_commit_seconds",
            "From a batch's first command, given to this node, to its application here",
            self.commit_seconds.clone(),
        );
        registry.register("ttl_seconds", "Leases of opened sessions", self.ttl_seconds.clone());
    }

    /// A batch's events come now.
    pub(crate) fn batch(&self, took: Option<Duration>) {
        if let Some(took) = took {
            self.commit_seconds.observe(took);
        }
        self.table.lock().turn = Turn { took, cause: None };
    }

    /// Counts one event. `state` is the state after its command, at `now`; `took_leader` says how
    /// long the leader's own command has been on its way, if this node is the leader.
    pub(crate) fn count(
        &self,
        event: &Event,
        state: &StateMachine,
        now: Stamp,
        took_leader: impl FnOnce() -> Option<Duration>,
    ) {
        let table = &mut *self.table.lock();
        match event {
            Event::Queued { lock, .. } => self.class(table, lock).queues.add(now.0, 1),
            Event::Granted { lock, waited_ms, .. } => {
                let cause = table.turn.cause;
                let took = table.turn.took.or_else(|| {
                    let is_leaders = cause.is_some_and(Cause::is_leaders);
                    if is_leaders { took_leader() } else { None }
                });
                let class = self.class(table, lock);
                self.acquired(class, Outcome::Granted, waited_ms.unwrap_or(0));
                let Some(waited_ms) = waited_ms else { return };
                class.queues.add(now.0.saturating_sub(*waited_ms), -1);
                if let (Some(cause), Some(took)) = (cause, took) {
                    self.handed_over(class, cause, took);
                }
            }
            Event::Cancelled { lock, waited_ms, ended, .. } => {
                table.turn.cause = None;
                let class = self.class(table, lock);
                class.queues.add(now.0.saturating_sub(*waited_ms), -1);
                let is_own = ended.is_none();
                let outcome = if is_own { Outcome::Cancelled } else { Outcome::Ended };
                self.acquired(class, outcome, *waited_ms);
            }
            Event::Released { lock, held_ms, .. } => {
                table.turn.cause = Some(Cause::Release);
                self.held(self.class(table, lock), *held_ms);
            }
            Event::Lost { lock, held_ms, reason, .. } => {
                table.turn.cause = Some(Cause::of(*reason));
                let class = self.class(table, lock);
                self.held(class, *held_ms);
                let labels = LossLabels { class: class.name.clone(), reason: loss_reason(*reason) };
                self.lost.get_or_create(&labels).inc();
            }
            Event::SessionOpened { session } => {
                if let Some(lease) = state.lease(*session) {
                    self.ttl_seconds.observe(Duration::from_millis(lease.ttl_ms.into()));
                }
            }
            Event::Revoked { .. }
            | Event::SessionEnded { .. }
            | Event::SessionRevoked { .. }
            | Event::SessionMoved { .. }
            | Event::Node { .. } => {}
        }
    }

    /// A client was told no. `code` is one of the protocol's.
    pub(crate) fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&RefusalLabels { code }).inc();
    }

    /// A lock wasn't free for somebody who was not to wait.
    pub(crate) fn busy(&self, lock: &str) {
        let table = &mut *self.table.lock();
        self.acquired(self.class(table, lock), Outcome::Busy, 0);
    }

    /// Forgets who waits: what follows is of another state. What [`Figures::add_queues`] finds in
    /// that one is to be handed in with the returned number.
    pub(crate) fn forget_queues(&self) -> u64 {
        let table = &mut *self.table.lock();
        table.classes.values_mut().for_each(|class| class.queues = Queues::default());
        table.epoch += 1;
        table.epoch
    }

    /// Counts who waits in a state that was frozen while [`Figures::forget_queues`] was called, in
    /// small steps, so that the node's thread goes on meanwhile.
    pub(crate) fn add_queues(&self, epoch: u64, state: &StateMachine) {
        const PAGE: usize = 1_000;

        let mut after: Option<String> = None;
        let mut left = state.counts().waiters;
        while left > 0 {
            let page = state.locks("", after.as_deref(), PAGE);
            let Some(last) = page.last() else { return };
            for view in page.iter().filter(|view| view.waiter_count > 0) {
                let Some(view) = state.lock(&view.name, usize::MAX) else { continue };
                left = left.saturating_sub(view.waiters.len());
                for waiters in view.waiters.chunks(PAGE) {
                    let table = &mut *self.table.lock();
                    if table.epoch != epoch {
                        return;
                    }
                    let queues = &mut self.class(table, &view.name).queues;
                    waiters.iter().for_each(|waiter| queues.add(waiter.since.0, 1));
                }
            }
            after = Some(last.name.to_string());
        }
    }

    /// Who waits now, by class.
    pub(crate) fn queues(&self) -> Vec<QueuesNow> {
        let table = self.table.lock();
        let mut queues: Vec<QueuesNow> = table
            .classes
            .values()
            .map(|class| QueuesNow {
                class: class.name.clone(),
                length: u64::try_from(class.queues.length).unwrap_or(0),
                oldest: class.queues.oldest(),
            })
            .collect();
        drop(table);
        // Two names beyond the limit may share a class, never two entries.
        queues.sort_unstable_by(|one, other| one.class.cmp(&other.class));
        queues
    }

    fn class<'a>(&self, table: &'a mut Table, lock: &str) -> &'a mut Class {
        let Table { classes, .. } = table;
        let name = lock.split_once('/').map_or(lock, |(class, _)| class);
        let is_told_apart = classes.contains_key(name) || classes.len() < CLASSES_MAX;
        let name = if is_told_apart { name } else { OTHER };
        if !classes.contains_key(name) {
            classes.insert(name.into(), Class::new(name));
        }
        classes.get_mut(name).expect("it was inserted just above")
    }

    fn acquired(&self, class: &mut Class, outcome: Outcome, waited_ms: u64) {
        let name = &class.name;
        let histogram = class.acquire_seconds[outcome as usize].get_or_insert_with(|| {
            let labels = AcquireLabels { class: name.clone(), outcome: outcome.label() };
            self.acquire_seconds.get_or_create_owned(&labels)
        });
        histogram.observe(Duration::from_millis(waited_ms));
    }

    fn held(&self, class: &mut Class, held_ms: u64) {
        let name = &class.name;
        let histogram = class.hold_seconds.get_or_insert_with(|| {
            self.hold_seconds.get_or_create_owned(&ClassLabel { class: name.clone() })
        });
        histogram.observe(Duration::from_millis(held_ms));
    }

    fn handed_over(&self, class: &mut Class, cause: Cause, took: Duration) {
        let name = &class.name;
        let histogram = class.handover_seconds[cause as usize].get_or_insert_with(|| {
            let labels = HandoverLabels { class: name.clone(), cause: cause.label() };
            self.handover_seconds.get_or_create_owned(&labels)
        });
        histogram.observe(took);
    }
}

impl Class {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            acquire_seconds: [const { None }; 4],
            hold_seconds: None,
            handover_seconds: [const { None }; 4],
            queues: Queues::default(),
        }
    }
}

impl Queues {
    fn add(&mut self, since: u64, count: i64) {
        let waiting = self.since.entry(since).or_default();
        *waiting += count;
        if *waiting == 0 {
            self.since.remove(&since);
        }
        self.length += count;
    }

    fn oldest(&self) -> Option<Stamp> {
        let mut waiting = self.since.iter().filter(|(_, count)| **count > 0);
        waiting.next().map(|(&since, _)| Stamp(since))
    }
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Cancelled => "cancelled",
            Self::Ended => "ended",
            Self::Busy => "busy",
        }
    }
}

impl Cause {
    fn of(reason: LossReason) -> Self {
        match reason {
            LossReason::SessionEnded(EndReason::Closed | EndReason::Rebooted) => Self::Disconnect,
            LossReason::SessionEnded(EndReason::Expired) => Self::Expiry,
            LossReason::SessionEnded(EndReason::Revoked | EndReason::Forced)
            | LossReason::Forced => Self::Revoke,
        }
    }

    /// Whether the leader may have proposed it for nobody.
    fn is_leaders(self) -> bool {
        matches!(self, Self::Expiry | Self::Revoke)
    }

    fn label(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Disconnect => "disconnect",
            Self::Expiry => "expiry",
            Self::Revoke => "revoke",
        }
    }
}
