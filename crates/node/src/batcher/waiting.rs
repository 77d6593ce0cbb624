//! What waits for a batch: a line for each sink, served in turn.
//!
//! Turns alone don't help who asks little beside those who flood: all that is in flight before his
//! request is applied before it, too. So while he is there, little is in flight, and the rest waits
//! here, where his turn is the next. Batches are smaller then, and a saturated node does a third
//! less. Among equals nothing is held back: there is nobody to be gained for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Command, SessionId};

use crate::entry::{self, BATCH_BYTES, COMMAND_BYTES_MAX, ENTRY_BYTES_MAX};
use crate::{Monotonic, Sink};

/// Batches of one node in flight: four keep log, network and apply all busy.
const FLIGHTS_MAX: usize = 4;

/// While somebody asks little, commands in a batch, and how many may be in flight when the next one
/// leaves. A node that is never idle applies these in a few tenths of a millisecond.
const BATCH_MAX_SHELTERED: usize = 64;
const IN_FLIGHT_SHELTERED: usize = 128;

/// Who holds at most this part of what a sink holds on the average asks little.
const LITTLE: usize = 16;

/// For how long who asks little is still thought of when nothing comes from him.
const SHELTER: Duration = Duration::from_secs(10);

/// What a sink may put into a batch before it is the next one's turn; the command that uses it up
/// may go beyond. A batch has room for many turns, and a turn for more than most sinks ever have.
const TURN_BYTES: usize = 1 << 10;

/// Endings of sessions in one batch, and the items that they may free together; one alone may free
/// more. An ending is a few bytes and may free thousands of items, so that bytes alone don't bound
/// for how long the batch keeps the node's thread from everybody else.
pub(super) const ENDINGS_MAX: usize = 128;
pub(super) const ENDING_ITEMS_MAX: usize = 1_000;

/// Subtrees that the commands of one batch may have counted; a command that wants more is the only
/// one that has any. One of 200,000 znodes takes 7 ms, and a batch has room for hundreds: these
/// would keep the node's thread from everybody for seconds.
pub(super) const COUNTS_MAX: usize = 4;

/// What an idle line keeps for the sink that uses it next.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// What nobody has proposed yet: a line for each sink, served in turn. And how much of each is on
/// its way, which says who asks little.
///
/// A turn goes to the lines as they joined, never by anything that differs from run to run. Those
/// who had nothing waiting go first, which is who asks little: they have half of each batch.
#[derive(Default)]
pub(super) struct Waiting {
    lines: Vec<Line>,
    /// Lines that no sink has now.
    free: Vec<usize>,
    /// The line of each sink that has something waiting or in flight, by its address: only ever
    /// looked up.
    of_sink: HashMap<usize, usize>,
    /// Lines that had nothing waiting when their first command came, and have had no turn since.
    fresh: VecDeque<usize>,
    /// Lines that wait for a turn.
    ring: VecDeque<usize>,
    /// Lines whose first command ends a session.
    ending: VecDeque<usize>,
    /// Commands in all lines, and those that have left and not landed.
    waiting: usize,
    in_flight: usize,
    /// Until when little is in flight.
    sheltered_until: Option<Monotonic>,
}

/// What one sink wants, in its order.
#[derive(Default)]
struct Line {
    /// Whose it is; `None`: nobody's now.
    sink: Option<Arc<dyn Sink>>,
    asks: VecDeque<Ask>,
    /// The commands of `asks` end to end, behind those that have left.
    commands: Vec<u8>,
    left: usize,
    /// Commands that have left and not landed.
    in_flight: usize,
}

struct Ask {
    id: u64,
    bytes: usize,
    ends: Option<SessionId>,
    /// Subtrees that it wants counted.
    counts: usize,
    since: Monotonic,
}

pub(super) struct Batch {
    pub commands: Vec<u8>,
    pub asks: Asks,
    /// Subtrees that its commands want counted.
    counts: usize,
    pub since: Monotonic,
    /// Commands after which it is full.
    commands_max: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.is_filled_to(1)
    }

    /// Whether the `part`th part of it is taken.
    fn is_filled_to(&self, part: usize) -> bool {
        self.commands.len() >= BATCH_BYTES / part || self.asks.ids.len() >= self.commands_max / part
    }

    /// Whether it may take a command, by the subtrees that it wants counted.
    fn may_count(&self, ask: &Ask) -> bool {
        ask.counts == 0 || self.counts == 0 || self.counts + ask.counts <= COUNTS_MAX
    }
}

impl Line {
    fn ends(&self) -> Option<SessionId> {
        self.asks.front()?.ends
    }

    /// Whether its turn can go on in this batch.
    fn goes_on(&self, batch: &Batch) -> bool {
        self.asks.front().is_some_and(|ask| ask.ends.is_none() && batch.may_count(ask))
    }

    /// Moves the first command into a batch, or out of the world.
    fn pop(&mut self, into: Option<&mut Vec<u8>>) -> Option<Ask> {
        let ask = self.asks.pop_front()?;
        let end = self.left + ask.bytes;
        if let Some(into) = into {
            into.extend_from_slice(&self.commands[self.left..end]);
        }
        self.left = end;
        // Each byte is moved once at most, on the average.
        if self.left * 2 >= self.commands.len() {
            self.commands.drain(..self.left);
            self.left = 0;
        }
        Some(ask)
    }
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether a batch may leave beside so many in flight.
    pub(super) fn may_leave(&self, flights: usize, now: Monotonic) -> bool {
        let is_little = self.in_flight < IN_FLIGHT_SHELTERED || !self.is_sheltered(now);
        flights < FLIGHTS_MAX && is_little
    }

    fn is_sheltered(&self, now: Monotonic) -> bool {
        self.sheltered_until.is_some_and(|until| now < until)
    }

    /// Whether the sink of a line asks little, beside what others do.
    fn asks_little(&self, place: usize) -> bool {
        let Line { asks, in_flight, .. } = &self.lines[place];
        let held = asks.len() + in_flight;
        held * self.of_sink.len() * LITTLE <= self.waiting + self.in_flight
    }

    /// Commands that had left are applied, or will never be waited for again.
    pub(super) fn landed(&mut self, asks: &Asks) {
        for (sink, count) in &asks.runs {
            if let Some(&place) = self.of_sink.get(&address(sink)) {
                let line = &mut self.lines[place];
                line.in_flight -= count;
                if line.asks.is_empty() && line.in_flight == 0 {
                    self.leave(place);
                }
            }
        }
        self.in_flight -= asks.ids.len();
    }

    /// Appends a command to its sink's line, and says how many bytes it has.
    ///
    /// # Errors
    ///
    /// How many it has, if it is too long: then nothing was appended.
    pub(super) fn push(
        &mut self,
        command: &Command<'_>,
        id: u64,
        sink: &Arc<dyn Sink>,
        since: Monotonic,
    ) -> Result<usize, usize> {
        let address = address(sink);
        let place = match self.of_sink.get(&address) {
            Some(&place) => place,
            None => self.join(address, sink),
        };
        let line = &mut self.lines[place];
        let before = line.commands.len();
        command.encode(&mut line.commands);
        let bytes = line.commands.len() - before;
        let is_first = line.asks.is_empty();
        if bytes > COMMAND_BYTES_MAX {
            line.commands.truncate(before);
            if is_first && line.in_flight == 0 {
                self.leave(place);
            }
            return Err(bytes);
        }
        let ends = match command {
            Command::EndSession { session, .. } => Some(*session),
            _ => None,
        };
        let counts = command.counts_subtrees();
        line.asks.push_back(Ask { id, bytes, ends, counts, since });
        self.waiting += 1;
        match ends {
            None if is_first => self.fresh.push_back(place),
            Some(_) if is_first => self.ending.push_back(place),
            _ => {}
        }
        Ok(bytes)
    }

    fn join(&mut self, address: usize, sink: &Arc<dyn Sink>) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.lines.push(Line::default());
            self.lines.len() - 1
        });
        self.lines[place].sink = Some(Arc::clone(sink));
        self.of_sink.insert(address, place);
        place
    }

    /// A line has nothing any more, neither waiting nor in flight.
    fn leave(&mut self, place: usize) {
        let line = &mut self.lines[place];
        if let Some(sink) = line.sink.take() {
            self.of_sink.remove(&address(&sink));
        }
        line.commands.clear();
        line.left = 0;
        if line.commands.capacity() > KEPT_BYTES_MAX {
            *line = Line::default();
        }
        self.free.push(place);
    }

    /// Puts a line where it is to wait, or away if it has nothing.
    fn wait(&mut self, place: usize) {
        let line = &self.lines[place];
        match line.asks.front() {
            None if line.in_flight > 0 => {}
            None => self.leave(place),
            Some(ask) if ask.ends.is_some() => self.ending.push_back(place),
            Some(_) => self.ring.push_back(place),
        }
    }

    /// The next batch: from every line its share until the batch is full, and some endings, which
    /// have room of their own. `items` tells how many a session's end would free.
    pub(super) fn fill(
        &mut self,
        items: impl Fn(SessionId) -> usize,
        now: Monotonic,
    ) -> Option<Batch> {
        let mut batch = self.begin(now)?;
        let mut held = Vec::new();
        while !batch.is_full()
            && let Some(place) = self.next(&batch)
        {
            let asks_little = self.asks_little(place);
            if self.lines[place].goes_on(&batch) {
                self.take_turn(place, &mut batch);
            } else {
                held.push(place);
            }
            if asks_little {
                self.sheltered_until = Some(now.plus(SHELTER));
                batch.commands_max = BATCH_MAX_SHELTERED;
            }
        }
        // The next batch begins with those that this one could take nothing more from.
        held.into_iter().rev().for_each(|place| self.ring.push_front(place));
        let (mut endings, mut freed) = (0, 0);
        while endings < ENDINGS_MAX
            && let Some(&place) = self.ending.front()
            && let Some(session) = self.lines[place].ends()
        {
            freed += 1 + items(session);
            let has_room =
                batch.commands.len() + self.lines[place].asks[0].bytes <= ENTRY_BYTES_MAX;
            // The first is never too much: others may come for ever.
            if (endings > 0 && freed > ENDING_ITEMS_MAX) || !has_room {
                break;
            }
            self.ending.pop_front();
            self.take_one(place, &mut batch);
            self.wait(place);
            endings += 1;
        }
        Some(batch)
    }

    /// An empty batch, if anything waits.
    fn begin(&self, now: Monotonic) -> Option<Batch> {
        let first =
            *[&self.fresh, &self.ring, &self.ending].into_iter().find_map(VecDeque::front)?;
        Some(Batch {
            commands: entry::begin(),
            asks: Asks::default(),
            counts: 0,
            since: self.lines[first].asks.front()?.since,
            commands_max: if self.is_sheltered(now) { BATCH_MAX_SHELTERED } else { usize::MAX },
        })
    }

    /// The line whose turn is next.
    fn next(&mut self, batch: &Batch) -> Option<usize> {
        if self.ring.is_empty() || !batch.is_filled_to(2) {
            self.fresh.pop_front().or_else(|| self.ring.pop_front())
        } else {
            self.ring.pop_front()
        }
    }

    fn take_turn(&mut self, place: usize, batch: &mut Batch) {
        let end = batch.commands.len() + TURN_BYTES;
        while batch.commands.len() < end
            && !batch.is_full()
            && self.lines[place].goes_on(batch)
            && self.take_one(place, batch)
        {}
        self.wait(place);
    }

    /// Moves a line's first command into the batch; false if it has none.
    fn take_one(&mut self, place: usize, batch: &mut Batch) -> bool {
        let line = &mut self.lines[place];
        let Some(ask) = line.pop(Some(&mut batch.commands)) else { return false };
        let Some(sink) = &line.sink else { return false };
        line.in_flight += 1;
        self.waiting -= 1;
        self.in_flight += 1;
        batch.asks.push(sink, ask.id);
        batch.counts += ask.counts;
        batch.since = batch.since.min(ask.since);
        true
    }

    /// Takes away what the predicate says, always the oldest of a line first, and says how many
    /// bytes that was.
    pub(super) fn remove(&mut self, is_late: impl Fn(Monotonic) -> bool) -> (Asks, usize) {
        let (mut asks, mut bytes) = (Asks::default(), 0);
        let places = [&mut self.fresh, &mut self.ring, &mut self.ending].map(std::mem::take);
        for place in places.into_iter().flatten() {
            let line = &mut self.lines[place];
            while line.asks.front().is_some_and(|ask| is_late(ask.since))
                && let Some(ask) = line.pop(None)
                && let Some(sink) = &line.sink
            {
                asks.push(sink, ask.id);
                bytes += ask.bytes;
                self.waiting -= 1;
            }
            self.wait(place);
        }
        (asks, bytes)
    }
}

/// Which sink it is: no other can have this address while its line is held.
fn address(sink: &Arc<dyn Sink>) -> usize {
    Arc::as_ptr(sink).cast::<()>().addr()
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
