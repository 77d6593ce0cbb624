//! Commands on their way into the log: gathered into batches here, at the node whose clients gave
//! them, and kept here until this node applies them.
//!
//! A batch is made when there is room for it in the log, not by a timer: while fewer than four
//! batches of this node are in flight, whatever waits becomes the next one. So a lone command
//! leaves at once, and under load the batches grow. While somebody asks little beside those who
//! flood, less is in flight ([`waiting`]).
//!
//! When more waits than a batch holds, every sink (a connection) gets its share of it in turn: what
//! one of them floods the queue with delays its own requests, and not everybody's. Endings of
//! sessions are dear, and nobody waits for them but those who go; a batch takes a bounded number
//! beside the rest. New quotas are dear, too, since what is below them is counted; a batch takes a
//! few.
//!
//! # Guarantees
//!
//! - **Order.** Batches leave and are applied in the order of their numbers, and the commands of
//!   one sink in the order in which they came.
//! - **At most once a term.** A batch that was handed to a leader is proposed again only to a
//!   leader of a newer term, and only when this node has applied an entry of a newer term: by then
//!   the earlier proposal has either been applied here, or never will be anywhere.
//! - **Every request is answered**, if only by [`Unavailable`].

mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::{Command, SessionId};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use self::waiting::Asks;
use self::waiting::{Batch, Waiting};
use crate::entry::{self, BatchId, HEADER_BYTES};
use crate::{Monotonic, NodeId, Sink, Unavailable};

/// Which part of the queue's limit is kept for commands that free something, beyond it.
const RESERVE_SHARE: usize = 8;

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
    waiting: Waiting,
    /// What was proposed, or is to be again, and has not been applied; oldest first.
    flights: VecDeque<Flight>,
    bytes: usize,
}

struct Flight {
    number: u64,
    /// To the leader of which term it was handed; `None`: it is to be proposed again.
    term: Option<u64>,
    bytes: Bytes,
    asks: Asks,
    since: Monotonic,
}

impl Batcher {
    pub(crate) fn new(origin: NodeId, incarnation: u64, bytes_max: usize) -> Self {
        let queue = Queue {
            origin,
            incarnation,
            number: 0,
            waiting: Waiting::default(),
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
        let is_first = queue.waiting.is_empty();
        let pushed = queue.waiting.push(command, id, sink, now);
        queue.bytes += pushed.map_err(|bytes| Unavailable::Overloaded { queued_bytes: bytes })?;
        // Later ones find it waiting, or in flight, and leave once there is room.
        if is_first && queue.waiting.may_leave(queue.flights.len(), now) {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// The next batch for the leader of `term`, if there is one and there is room for it. `items`
    /// tells how many items a session's end would free.
    pub(crate) fn take(
        &self,
        term: u64,
        items: impl Fn(SessionId) -> usize,
        now: Monotonic,
    ) -> Option<Bytes> {
        let queue = &mut *self.queue.lock();
        if let Some(flight) = queue.flights.iter_mut().find(|flight| flight.term.is_none()) {
            flight.term = Some(term);
            return Some(flight.bytes.clone());
        }
        if !queue.waiting.may_leave(queue.flights.len(), now) {
            return None;
        }
        let Batch { commands, asks, since, .. } = queue.waiting.fill(items, now)?;
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
        let (unproposed, bytes) = queue.waiting.remove(is_late);
        queue.bytes -= bytes;
        let late = queue.flights.iter_mut().filter(|flight| is_late(flight.since));
        let unknown: Vec<_> = late.map(|flight| std::mem::take(&mut flight.asks)).collect();
        unknown.iter().for_each(|asks| queue.waiting.landed(asks));
        self.ready.notify_one();
        let unproposed = Some(unproposed).filter(|asks| !asks.is_empty());
        (
            unproposed.into_iter().collect(),
            unknown.into_iter().filter(|asks| !asks.is_empty()).collect(),
        )
    }

    /// The node is stopping: what nobody has proposed never will be.
    pub(crate) fn forget_waiting(&self) -> Vec<Asks> {
        let queue = &mut *self.queue.lock();
        let (asks, bytes) = queue.waiting.remove(|_| true);
        queue.bytes -= bytes;
        Some(asks).filter(|asks| !asks.is_empty()).into_iter().collect()
    }

    /// A snapshot has replaced the state: nobody can say any more what became of what was in
    /// flight.
    pub(crate) fn forget_flights(&self) -> Vec<Asks> {
        let queue = &mut *self.queue.lock();
        let flights = std::mem::take(&mut queue.flights);
        queue.bytes -=
            flights.iter().map(|flight| flight.bytes.len() - HEADER_BYTES).sum::<usize>();
        flights.iter().for_each(|flight| queue.waiting.landed(&flight.asks));
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
        self.waiting.landed(&flight.asks);
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
        EndReason, Event, NodeKind, Number, OwnerRef, Reply, Request, Secret, SessionId, Stamp,
        StateMachine, TreeOp,
    };

    use super::waiting::{COUNTS_MAX, ENDING_ITEMS_MAX, ENDINGS_MAX};
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
        while batcher.take(1, |_| 1, Monotonic(0)).is_some() {}
        assert!(push(&open, false).is_err(), "what is in flight counts");
        batcher.forget_flights();
        push(&open, false).unwrap();
    }

    fn sinks<const N: usize>() -> [Arc<dyn Sink>; N] {
        std::array::from_fn(|_| Arc::new(Nobody) as Arc<dyn Sink>)
    }

    fn ending(session: u64) -> Command<'static> {
        Command::EndSession { session: SessionId(session), reason: EndReason::Closed }
    }

    fn release(number: u64) -> Command<'static> {
        let request = Request::Release { acquire: Number(number) };
        Command::Request {
            session: SessionId(9),
            number: Number(number),
            floor: Number(1),
            request,
        }
    }

    /// Makes so many quotas, each of which counts what is below it.
    fn quotas(count: usize) -> Command<'static> {
        let op = TreeOp::Create {
            path: "/zookeeper/quota/a/zookeeper_stats",
            data: None,
            acl: Vec::new(),
            kind: NodeKind::Persistent,
            sequential: false,
        };
        let (session, ops) = (SessionId(9), vec![op; count]);
        Command::Tree { session, connection: 0, ids: Vec::new(), enforce_quota: false, ops }
    }

    /// Takes a batch, and says whose commands it has: the ids in their order.
    fn take(batcher: &Batcher, items: usize) -> Vec<u64> {
        let Some(bytes) = batcher.take(1, |_| items, Monotonic(0)) else { return Vec::new() };
        let id = entry::decode(&bytes).unwrap().id;
        batcher.applied(id).unwrap().0.iter().map(|(_, id)| id).collect()
    }

    #[test]
    fn endings_are_spread_over_batches() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let [sink] = sinks();
        for session in 1..=300 {
            batcher.push(&ending(session), session, &sink, Monotonic(0), true).unwrap();
        }
        let sizes = [(); 3].map(|()| take(&batcher, 1).len());
        assert_eq!(sizes, [ENDINGS_MAX, ENDINGS_MAX, 300 - 2 * ENDINGS_MAX]);
        // By what they free, if that is much; one is never too much.
        for session in 1..=4 {
            batcher.push(&ending(session), session, &sink, Monotonic(0), true).unwrap();
        }
        assert_eq!(take(&batcher, ENDING_ITEMS_MAX / 2 - 1), [1, 2]);
        assert_eq!(take(&batcher, ENDING_ITEMS_MAX), [3]);
        assert_eq!(take(&batcher, ENDING_ITEMS_MAX), [4]);
        assert_eq!(batcher.queued_bytes(), 0);
    }

    #[test]
    fn a_great_ending_waits_for_no_idle_moment() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let [one, busy] = sinks();
        for session in 1..=2 {
            batcher.push(&ending(session), session, &one, Monotonic(0), true).unwrap();
        }
        for id in 1..=2 {
            batcher.push(&release(id), u64::MAX, &busy, Monotonic(0), true).unwrap();
            assert_eq!(take(&batcher, ENDING_ITEMS_MAX), [u64::MAX, id]);
        }
    }

    #[test]
    fn whoever_floods_the_queue_delays_nobody_else() {
        let batcher = Batcher::new(1, 1, 8 << 20);
        let [flooder, newcomer] = sinks();
        for number in 0..100_000 {
            batcher.push(&release(number), number, &flooder, Monotonic(0), true).unwrap();
        }
        assert!(take(&batcher, 1).len() > 1_000, "a batch is filled if nobody else wants it");
        batcher.push(&release(1), u64::MAX, &newcomer, Monotonic(1), true).unwrap();
        let ids = take(&batcher, 1);
        let own: Vec<_> = ids.iter().filter(|id| **id != u64::MAX).collect();
        assert_eq!(own.len() + 1, ids.len(), "the newcomer is in the very next batch");
        assert!(own.is_sorted(), "and the flooder's order is kept");
    }

    /// Sixteen sinks that have 6,000 commands waiting each, numbered from 0, and one that has none.
    fn flooded() -> (Batcher, Arc<dyn Sink>) {
        let batcher = Batcher::new(1, 1, 8 << 20);
        let (crowd, [onlooker]) = (sinks::<16>(), sinks());
        for id in 0..6_000 {
            for sink in &crowd {
                batcher.push(&release(id), id, sink, Monotonic(0), true).unwrap();
            }
        }
        (batcher, onlooker)
    }

    /// Lets batches leave until no more may, and says which commands are in each.
    fn leave(batcher: &Batcher, now: Monotonic) -> Vec<Vec<u64>> {
        let mut batches = Vec::new();
        while batcher.take(1, |_| 1, now).is_some() {
            let queue = batcher.queue.lock();
            batches.push(queue.flights.back().unwrap().asks.iter().map(|(_, id)| id).collect());
        }
        batches
    }

    fn land(batcher: &Batcher) {
        let flying = |queue: &Queue| queue.flights.iter().map(|flight| flight.number).collect();
        let flights: Vec<u64> = flying(&batcher.queue.lock());
        flights.into_iter().for_each(|number| drop(batcher.refused(number).unwrap()));
    }

    #[test]
    fn while_somebody_asks_little_little_is_in_flight() {
        let (batcher, onlooker) = flooded();
        let ask = |now| batcher.push(&release(1), u64::MAX, &onlooker, now, true).unwrap();
        let sizes = |batches: &[Vec<u64>]| batches.iter().map(Vec::len).collect::<Vec<_>>();
        // Equals don't hold each other back.
        let batches = leave(&batcher, Monotonic(1));
        assert!(batches.len() == 4 && batches.iter().all(|batch| batch.len() > 1_000));
        land(&batcher);

        ask(Monotonic(2));
        let batches = leave(&batcher, Monotonic(2));
        assert_eq!(sizes(&batches), [64, 64]);
        assert_eq!(batches[0][0], u64::MAX, "he goes first");
        land(&batcher);
        // He is still thought of.
        assert_eq!(sizes(&leave(&batcher, Monotonic(9_000_000_000))), [64, 64]);
        land(&batcher);
        let batches = leave(&batcher, Monotonic(11_000_000_000));
        assert!(batches.len() == 4 && batches.iter().all(|batch| batch.len() > 1_000));
    }

    #[test]
    fn who_is_one_of_many_equals_holds_nobody_back() {
        let batcher = Batcher::new(1, 1, 8 << 20);
        for sink in &sinks::<5_000>() {
            batcher.push(&release(1), 1, sink, Monotonic(0), true).unwrap();
        }
        assert!(take(&batcher, 1).len() > 1_000);
    }

    #[test]
    fn newcomers_leave_the_others_half() {
        let (batcher, onlooker) = flooded();
        batcher.push(&release(1), u64::MAX, &onlooker, Monotonic(0), true).unwrap();
        assert_eq!(take(&batcher, 1).last(), Some(&u64::MAX), "a batch ends with who asks little");
        for _ in 0..3 {
            let newcomers = sinks::<100>();
            for sink in &newcomers {
                batcher.push(&release(1), u64::MAX, sink, Monotonic(0), true).unwrap();
            }
            let ids = take(&batcher, 1);
            assert_eq!(ids.iter().filter(|id| **id == u64::MAX).count(), 32);
            assert_eq!(ids.len(), 64);
        }
    }

    #[test]
    fn a_crowd_that_ends_delays_nobody_else() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let crowd = sinks::<1_000>();
        let [newcomer] = sinks();
        for (session, sink) in (0..).zip(&crowd) {
            batcher.push(&ending(session), session, sink, Monotonic(0), true).unwrap();
        }
        batcher.push(&release(1), u64::MAX, &newcomer, Monotonic(1), true).unwrap();
        let ids = take(&batcher, 1);
        assert_eq!(ids.first(), Some(&u64::MAX));
        assert_eq!(ids.len(), 1 + ENDINGS_MAX);
        // Others that keep the batches full don't keep them from ending.
        for number in 0..20_000 {
            batcher.push(&release(number), u64::MAX, &newcomer, Monotonic(1), true).unwrap();
        }
        let ids = take(&batcher, 1);
        assert_eq!(ids.iter().filter(|id| **id != u64::MAX).count(), ENDINGS_MAX);
    }

    #[test]
    fn what_is_dear_overtakes_nothing_of_its_own_sink() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let sinks = sinks::<3>();
        for id in 0..3_000 {
            let command = match id % 7 {
                3 => ending(id),
                5 => quotas(usize::try_from(id % 6).unwrap()),
                _ => release(id),
            };
            let sink = &sinks[usize::try_from(id % 3).unwrap()];
            batcher.push(&command, id, sink, Monotonic(id), true).unwrap();
        }
        let mut all = Vec::new();
        while batcher.queued_bytes() > 0 {
            all.extend(take(&batcher, 3));
        }
        for sink in 0..3 {
            let own: Vec<_> = all.iter().filter(|id| **id % 3 == sink).collect();
            assert_eq!(own.len(), 1_000);
            assert!(own.is_sorted());
        }
    }

    #[test]
    fn what_counts_subtrees_is_spread_over_batches() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let [counter, other, newcomer] = sinks();
        let push = |sink, command: &Command<'_>, id| {
            batcher.push(command, id, sink, Monotonic(0), true).unwrap();
        };
        // Twice what a batch takes, then a multi that is too much for any; a release behind it.
        let most = COUNTS_MAX as u64;
        (1..=2 * most).for_each(|id| push(&counter, &quotas(1), id));
        push(&counter, &quotas(4 * COUNTS_MAX), 100);
        push(&counter, &release(1), 101);
        push(&other, &quotas(1), 200);
        push(&other, &release(1), 201);
        push(&newcomer, &release(1), 300);
        // Who counts waits in its order, and nobody else for it. The next batch begins with who had
        // nothing waiting, and then with those who waited and had nothing in this one.
        assert_eq!(take(&batcher, 1), [1, 2, 3, 4, 300]);
        push(&newcomer, &release(2), 301);
        assert_eq!(take(&batcher, 1), [301, 200, 201, 5, 6, 7]);
        assert_eq!(take(&batcher, 1), [8]);
        assert_eq!(take(&batcher, 1), [100, 101]);
        assert_eq!(batcher.queued_bytes(), 0);
    }

    #[test]
    fn a_crowd_that_counts_delays_nobody_else_and_goes_on_in_order() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let crowd = sinks::<20>();
        let [newcomer] = sinks();
        for (id, sink) in (0..).zip(&crowd) {
            batcher.push(&quotas(1), id, sink, Monotonic(0), true).unwrap();
        }
        let mut counted = Vec::new();
        while counted.len() < crowd.len() {
            // More than a batch holds, all the time.
            for number in 0..10_000 {
                batcher.push(&release(number), u64::MAX, &newcomer, Monotonic(0), true).unwrap();
            }
            let ids = take(&batcher, 1);
            assert!(ids.contains(&u64::MAX));
            let news: Vec<_> = ids.into_iter().filter(|id| *id != u64::MAX).collect();
            assert_eq!(news.len(), COUNTS_MAX);
            counted.extend(news);
        }
        assert!(counted.is_sorted(), "{counted:?}");
    }

    /// The bytes of every batch depend on what was pushed in which order, and on nothing else.
    #[test]
    fn the_same_pushes_make_the_same_batches() {
        let batches = || {
            let batcher = Batcher::new(1, 1, 1 << 20);
            let sinks = sinks::<64>();
            let mut batches = Vec::new();
            for id in 0..10_000_u64 {
                let command = match id % 11 {
                    5 => ending(id),
                    7 => quotas(1),
                    _ => release(id),
                };
                let sink = &sinks[usize::try_from(id * id % 64).unwrap()];
                batcher.push(&command, id, sink, Monotonic(id), true).unwrap();
                if id % 1_000 == 999 {
                    batches.extend(batcher.take(
                        1,
                        |session| session.0 as usize % 5,
                        Monotonic(id),
                    ));
                    batcher.forget_flights();
                }
            }
            batches
        };
        assert_eq!(batches(), batches());
    }

    #[test]
    fn what_is_late_is_given_up_and_the_rest_waits_on() {
        let batcher = Batcher::new(1, 1, 1 << 20);
        let [one, other] = sinks();
        for (id, sink) in [(0, &one), (1, &other), (2, &one), (3, &other)] {
            batcher.push(&release(id), id, sink, Monotonic(id * 1_000_000_000), true).unwrap();
        }
        let (unproposed, unknown) =
            batcher.give_up(Monotonic(4_000_000_000), Duration::from_millis(2_500));
        let given_up: Vec<_> = unproposed.iter().flat_map(Asks::iter).map(|(_, id)| id).collect();
        assert_eq!(given_up, [0, 1]);
        assert!(unknown.is_empty());
        assert_eq!(take(&batcher, 1), [2, 3]);
        assert_eq!(batcher.queued_bytes(), 0);
    }
}
