//! Commands on their way into the log: gathered into batches here, at the node whose clients gave
//! them, and kept here until this node applies them.
//!
//! A batch closes when there is room for it in the log, not by a timer: while fewer than
//! [`FLIGHTS_MAX`] batches of this node are in flight, whatever waits becomes the next one. So a
//! lone command leaves at once, and under load the batches grow.
//!
//! # Guarantees
//!
//! - **Order.** Batches leave and are applied in the order of their numbers.
//! - **At most once a term.** A batch that was handed to a leader is proposed again only to a
//!   leader of a newer term, and only when this node has applied an entry of a newer term: by then
//!   the earlier proposal has either been applied here, or never will be anywhere.
//! - **Every request is answered**, if only by [`Unavailable`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::Command;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::entry::{self, BATCH_BYTES, BatchId, COMMAND_BYTES_MAX, HEADER_BYTES};
use crate::{Monotonic, NodeId, Sink, Unavailable};

/// Batches of one node in flight: four keep log, network and apply all busy.
const FLIGHTS_MAX: usize = 4;

/// Which part of the queue's limit is kept for commands that free something, beyond it.
const RESERVE_SHARE: usize = 8;

/// Endings of sessions in one batch. Each is a few bytes and may free thousands of items, so that
/// bytes alone don't bound for how long the batch keeps the node's thread from everybody else.
const ENDINGS_MAX: usize = 128;

/// The queue of one node.
pub(crate) struct Batcher {
    queue: Mutex<Queue>,
    /// There may be something to propose.
    pub(crate) ready: Notify,
    bytes_max: usize,
}

struct Queue {
    origin: NodeId,
    incarnation: u64,
    /// The number of the newest batch that left.
    number: u64,
    /// What nobody has proposed yet, oldest first; the last one may still grow.
    waiting: VecDeque<Batch>,
    /// What was proposed, or is to be again, and has not been applied; oldest first.
    flights: VecDeque<Flight>,
    bytes: usize,
}

struct Batch {
    commands: Vec<u8>,
    asks: Asks,
    /// How many of the commands end a session.
    endings: usize,
    since: Monotonic,
}

impl Batch {
    fn new(since: Monotonic) -> Self {
        Self { commands: entry::begin(), asks: Asks::default(), endings: 0, since }
    }

    fn is_full(&self) -> bool {
        self.commands.len() >= BATCH_BYTES || self.endings >= ENDINGS_MAX
    }
}

struct Flight {
    number: u64,
    /// To the leader of which term it was handed; `None`: it is to be proposed again.
    term: Option<u64>,
    bytes: Bytes,
    asks: Asks,
    since: Monotonic,
}

/// Who asked, command by command. Commands of one connection come in runs.
#[derive(Default)]
pub(crate) struct Asks {
    runs: Vec<(Arc<dyn Sink>, usize)>,
    ids: Vec<u64>,
}

impl Asks {
    fn push(&mut self, sink: &Arc<dyn Sink>, id: u64) {
        self.ids.push(id);
        match self.runs.last_mut() {
            Some((last, count)) if Arc::ptr_eq(last, sink) => *count += 1,
            _ => self.runs.push((Arc::clone(sink), 1)),
        }
    }

    /// Each ask in the order of the commands.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<dyn Sink>, u64)> {
        let sinks = self.runs.iter().flat_map(|(sink, count)| std::iter::repeat_n(sink, *count));
        sinks.zip(self.ids.iter().copied())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

impl Batcher {
    pub(crate) fn new(origin: NodeId, incarnation: u64, bytes_max: usize) -> Self {
        let queue = Queue {
            origin,
            incarnation,
            number: 0,
            waiting: VecDeque::new(),
            flights: VecDeque::new(),
            bytes: 0,
        };
        Self { queue: Mutex::new(queue), ready: Notify::new(), bytes_max }
    }

    /// Queues a command. One that `frees` something is still taken when others are refused, up to
    /// an eighth beyond the limit.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Overloaded`]: nothing was queued.
    pub(crate) fn push(
        &self,
        command: &Command<'_>,
        id: u64,
        sink: &Arc<dyn Sink>,
        now: Monotonic,
        frees: bool,
    ) -> Result<(), Unavailable> {
        let queue = &mut *self.queue.lock();
        // What frees has room of its own: an overload must not keep itself up.
        let reserve = if frees { self.bytes_max / RESERVE_SHARE } else { 0 };
        if queue.bytes >= self.bytes_max + reserve {
            return Err(Unavailable::Overloaded { queued_bytes: queue.bytes });
        }
        if queue.waiting.back().is_none_or(Batch::is_full) {
            queue.waiting.push_back(Batch::new(now));
        }
        let batch = queue.waiting.back_mut().expect("a batch was opened above");
        let before = batch.commands.len();
        command.encode(&mut batch.commands);
        let bytes = batch.commands.len() - before;
        if bytes > COMMAND_BYTES_MAX {
            batch.commands.truncate(before);
            return Err(Unavailable::Overloaded { queued_bytes: bytes });
        }
        batch.asks.push(sink, id);
        batch.endings += usize::from(matches!(command, Command::EndSession { .. }));
        queue.bytes += bytes;
        let is_first = queue.waiting.len() == 1 && before == HEADER_BYTES;
        // Later ones find it waiting, or in flight, and leave once there is room.
        if is_first && queue.flights.len() < FLIGHTS_MAX {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// The next batch for the leader of `term`, if there is one and there is room for it.
    pub(crate) fn take(&self, term: u64) -> Option<Bytes> {
        let queue = &mut *self.queue.lock();
        if let Some(flight) = queue.flights.iter_mut().find(|flight| flight.term.is_none()) {
            flight.term = Some(term);
            return Some(flight.bytes.clone());
        }
        if queue.flights.len() >= FLIGHTS_MAX {
            return None;
        }
        let Batch { commands, asks, since, .. } = queue.waiting.pop_front()?;
        if asks.is_empty() {
            return None;
        }
        queue.number += 1;
        let Queue { origin, incarnation, number, .. } = *queue;
        let bytes = entry::seal(commands, BatchId { origin, incarnation, number });
        let flight = Flight { number, term: Some(term), bytes: bytes.clone(), asks, since };
        queue.flights.push_back(flight);
        Some(bytes)
    }

    /// The connection to the leader of `term` is new: what it was told on an earlier one is told
    /// again. It drops what it has proposed already.
    pub(crate) fn resend(&self, term: u64) {
        let flights = &mut self.queue.lock().flights;
        flights.iter_mut().filter(|flight| flight.term == Some(term)).for_each(|f| f.term = None);
    }

    /// This node has applied the first entry of `term`: what it handed to leaders of older terms
    /// and has not applied is dead, and may be proposed again.
    pub(crate) fn revive(&self, term: u64) {
        let flights = &mut self.queue.lock().flights;
        let is_dead = |flight: &Flight| flight.term.is_some_and(|sent| sent < term);
        // Nobody waits for these any more; doing them later would surprise.
        flights.retain(|flight| !(is_dead(flight) && flight.asks.is_empty()));
        flights.iter_mut().filter(|flight| is_dead(flight)).for_each(|flight| flight.term = None);
        self.ready.notify_one();
    }

    /// An entry is being applied: who waits for its answers, and since when the oldest of them, if
    /// it is a batch of this process.
    pub(crate) fn applied(&self, id: BatchId) -> Option<(Asks, Monotonic)> {
        let queue = &mut *self.queue.lock();
        if (id.origin, id.incarnation) != (queue.origin, queue.incarnation) {
            return None;
        }
        let flight = queue.land(id.number, &self.ready)?;
        Some((flight.asks, flight.since))
    }

    /// The leader says that it did not propose a batch, and never will.
    pub(crate) fn refused(&self, number: u64) -> Option<Asks> {
        Some(self.queue.lock().land(number, &self.ready)?.asks)
    }

    /// Who has waited for longer than `patience`: first those whose commands nobody has proposed,
    /// then those whose outcome isn't known.
    pub(crate) fn give_up(&self, now: Monotonic, patience: Duration) -> (Vec<Asks>, Vec<Asks>) {
        let queue = &mut *self.queue.lock();
        let is_late = |since: Monotonic| now.since(since) > patience;
        let mut unproposed = Vec::new();
        while queue.waiting.front().is_some_and(|batch| is_late(batch.since)) {
            let Some(batch) = queue.waiting.pop_front() else { break };
            queue.bytes -= batch.commands.len() - HEADER_BYTES;
            unproposed.push(batch.asks);
        }
        let late = queue.flights.iter_mut().filter(|flight| is_late(flight.since));
        let unknown = late.map(|flight| std::mem::take(&mut flight.asks));
        (unproposed, unknown.filter(|asks| !asks.is_empty()).collect())
    }

    /// The node is stopping: what nobody has proposed never will be.
    pub(crate) fn forget_waiting(&self) -> Vec<Asks> {
        let queue = &mut *self.queue.lock();
        let waiting = std::mem::take(&mut queue.waiting);
        queue.bytes -=
            waiting.iter().map(|batch| batch.commands.len() - HEADER_BYTES).sum::<usize>();
        waiting.into_iter().map(|batch| batch.asks).collect()
    }

    /// A snapshot has replaced the state: nobody can say any more what became of what was in
    /// flight.
    pub(crate) fn forget_flights(&self) -> Vec<Asks> {
        let queue = &mut *self.queue.lock();
        let flights = std::mem::take(&mut queue.flights);
        queue.bytes -=
            flights.iter().map(|flight| flight.bytes.len() - HEADER_BYTES).sum::<usize>();
        self.ready.notify_one();
        flights.into_iter().map(|flight| flight.asks).collect()
    }

    /// Bytes of commands that wait or are in flight.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queue.lock().bytes
    }
}

impl Queue {
    fn land(&mut self, number: u64, ready: &Notify) -> Option<Flight> {
        let place = self.flights.iter().position(|flight| flight.number == number)?;
        let flight = self.flights.remove(place)?;
        self.bytes -= flight.bytes.len() - HEADER_BYTES;
        if !self.waiting.is_empty() {
            ready.notify_one();
        }
        Some(flight)
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{
        EndReason, Event, Number, OwnerRef, Reply, Request, Secret, SessionId, Stamp, StateMachine,
    };

    use super::*;
    use crate::WatchId;

    struct Nobody;

    impl Sink for Nobody {
        fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {}
        fn event(&self, _: Option<WatchId>, _: &Event, _: &StateMachine, _: Stamp) {}
        fn confirmed(&self, _: u64) {}
        fn flush(&self) {}
        fn close(&self, _: &'static str) {}
    }

    #[test]
    fn what_frees_is_taken_when_the_queue_is_full() {
        let batcher = Batcher::new(1, 1, 4_096);
        let sink: Arc<dyn Sink> = Arc::new(Nobody);
        let session = SessionId(7);
        let owner = OwnerRef::default();
        let open = Command::OpenSession { session, secret: Secret([7; 16]), ttl_ms: 1_000, owner };
        let push =
            |command: &Command<'_>, frees| batcher.push(command, 1, &sink, Monotonic(0), frees);
        while push(&open, false).is_ok() {}
        let full = batcher.queued_bytes();
        assert!((4_096..4_200).contains(&full), "{full} bytes are queued");
        let release = Command::Request {
            session,
            number: Number(3),
            floor: Number(1),
            request: Request::Release { acquire: Number(2) },
        };
        push(&release, true).unwrap();
        push(&Command::EndSession { session, reason: EndReason::Closed }, true).unwrap();
        // Those are bounded, too.
        while push(&release, true).is_ok() {}
        assert!(batcher.queued_bytes() < full + 4_096 / RESERVE_SHARE + 100);
        // Once there is room, everything is taken again.
        while batcher.take(1).is_some() {}
        assert!(push(&open, false).is_err(), "what is in flight counts");
        batcher.forget_flights();
        push(&open, false).unwrap();
    }

    #[test]
    fn endings_are_spread_over_batches() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let sink: Arc<dyn Sink> = Arc::new(Nobody);
        for session in 1..=300 {
            let command =
                Command::EndSession { session: SessionId(session), reason: EndReason::Closed };
            batcher.push(&command, session, &sink, Monotonic(0), true).unwrap();
        }
        let sizes = std::iter::from_fn(|| batcher.take(1)).map(|bytes| {
            let id = entry::decode(&bytes).unwrap().id;
            batcher.applied(id).unwrap().0.iter().count()
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [ENDINGS_MAX, ENDINGS_MAX, 300 - 2 * ENDINGS_MAX]);
    }
}
