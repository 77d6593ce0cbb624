//! One seed's life.

use lockkeeper_core::{ClusterId, Command, EndReason, Event, LossReason, Reply, Stamp};

use super::answers::Answers;
use super::clients::Clients;
use super::replicas::Replicas;
use super::tree::Book;
use super::{Tally, Trace};
use crate::judge::{judge_log, replicas};
use crate::{Chance, Digest, History, Silence, Transition};

pub(super) struct World {
    chance: Chance,
    clients: Clients,
    answers: Answers,
    book: Book,
    replicas: Replicas,
    history: History,
    tally: Tally,
    /// The index of the entry that is being written.
    index: u64,
    stamp: u64,
    /// Commands that the network may deliver once more.
    delivered: Vec<Command<'static>>,
    /// How often the second replica applies, the log is purged, a replica restarts: once in so
    /// many commands.
    rates: [u64; 3],
}

type Outcome<T> = Result<T, Vec<String>>;

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let clients = Clients::new(&mut chance.fork());
        let rates = [[1, 4, 16, 60], [20, 60, 200, 500], [20, 60, 200, 500]]
            .map(|rates| *chance.pick(&rates));
        Self {
            chance,
            clients,
            answers: Answers::default(),
            book: Book::default(),
            replicas: Replicas::default(),
            history: History::default(),
            tally: Tally { seeds: 1, ..Tally::default() },
            index: 0,
            stamp: 1_000,
            delivered: Vec::new(),
            rates,
        }
    }

    pub(super) fn live(mut self, trace: &mut Trace) -> Outcome<Tally> {
        self.apply(&Command::FoundCluster { cluster: ClusterId(7) }, trace)?;
        for _ in 0..self.chance.between(COMMANDS_MIN, COMMANDS_MAX) {
            if self.chance.one_in(RESTORE_ONE_IN) {
                self.restore(trace)?;
            }
            let command = self.next();
            self.apply(&command, trace)?;
            self.upkeep().map_err(|fault| vec![fault])?;
        }
        self.note_digests().map_err(|fault| vec![fault])?;
        for state in &self.history.digests {
            trace.take(format_args!("{state:?}"));
        }
        self.replicas.first.check().map_err(|broken| vec![broken])?;
        self.book.compare(self.replicas.first.tree()).map_err(|fault| vec![fault])?;
        let mut verdicts = judge_log(&self.history);
        verdicts.extend(replicas::check(&self.history));
        if verdicts.is_empty() {
            Ok(self.tally)
        } else {
            Err(verdicts.iter().map(ToString::to_string).collect())
        }
    }

    fn next(&mut self) -> Command<'static> {
        if self.replicas.first.is_silent() && self.chance.one_in(20) {
            return Command::EndSilence;
        }
        if !self.delivered.is_empty() && self.chance.one_in(15) {
            self.tally.repeated += 1;
            return self.chance.pick(&self.delivered).clone();
        }
        self.clients.next(&mut self.chance, &self.replicas.first)
    }

    /// One more command: in the entry before it, or in one of its own.
    fn apply(&mut self, command: &Command<'static>, trace: &mut Trace) -> Outcome<()> {
        if !self.chance.one_in(3) {
            self.index += 1;
        }
        // A new leader's clock may be behind.
        let at = Stamp((self.stamp + self.chance.below(60)).saturating_sub(20));
        self.stamp = self.stamp.max(at.0);
        let was_silent = self.replicas.first.is_silent();
        let (reply, events) = self.replicas.apply(at, command);
        trace.take(format_args!("{} {command:?} -> {reply:?} {events:?}", self.index));

        self.tally.commands += 1;
        self.tally.refused += u64::from(matches!(reply, Reply::Refused(_)));
        for event in &events {
            self.tally.count(event);
        }
        let judged = self.answers.take(command, &reply, &events);
        let is_repeated =
            judged.map_err(|fault| vec![format!("entry {}, {command:?}: {fault}", self.index)])?;
        self.tally.repeated += u64::from(is_repeated);
        let kept = self.book.take(command, &reply, &events, self.replicas.first.tree());
        kept.map_err(|fault| vec![format!("entry {}, {command:?}: {fault}", self.index)])?;
        if was_silent && !self.replicas.first.is_silent() {
            self.end_silence();
        }
        let index = self.index;
        self.history.log.extend(events.into_iter().map(|event| Transition { index, event }));
        if self.delivered.len() < DELIVERED_MAX {
            self.delivered.push(command.clone());
        } else {
            *self.pick_delivered() = command.clone();
        }
        Ok(())
    }

    fn pick_delivered(&mut self) -> &mut Command<'static> {
        let at = self.chance.below(self.delivered.len() as u64) as usize;
        &mut self.delivered[at]
    }

    fn end_silence(&mut self) {
        if let Some(silence) = self.history.silences.last_mut() {
            silence.until = self.index;
        }
    }

    /// What goes on beside the commands.
    fn upkeep(&mut self) -> Result<(), String> {
        let [applies, purges, restarts] = self.rates;
        if self.chance.one_in(applies) {
            let count = self.chance.between(1, 2 * applies) as usize;
            self.replicas.catch_up(count)?;
        }
        if self.chance.one_in(purges) && self.replicas.purge()? {
            self.tally.purges += 1;
            self.tally.snapshots += 1;
        }
        if self.chance.one_in(restarts) {
            self.replicas.restart()?;
            self.tally.snapshots += 1;
        }
        if self.chance.one_in(CHECK_ONE_IN) {
            self.replicas.first.check()?;
            self.book.compare(self.replicas.first.tree())?;
            self.note_digests()?;
        }
        Ok(())
    }

    fn note_digests(&mut self) -> Result<(), String> {
        // Several commands may stand in one entry: what is compared is the state after a command.
        let index = self.tally.commands;
        for (node, digest) in (1..).zip(self.replicas.digests()?) {
            self.history.digests.push(Digest { node, index, digest });
        }
        Ok(())
    }

    /// A backup is restored: a new cluster, in which every session is over. For the judges, they
    /// end in an entry of their own.
    fn restore(&mut self, trace: &mut Trace) -> Outcome<()> {
        self.tally.restores += 1;
        self.end_silence_if_open();
        self.index += 1;
        let living: Vec<_> = self.answers.living().collect();
        let reason = EndReason::Forced;
        for session in living {
            let Some(view) = self.replicas.first.session(session) else { continue };
            let mut events: Vec<Event> = Vec::new();
            for waiter in view.waits {
                let (lock, number) = (waiter.lock, waiter.number);
                events.push(Event::Cancelled {
                    lock,
                    session,
                    number,
                    ended: Some(reason),
                    waited_ms: 0,
                });
            }
            for (number, hold) in view.holds.into_iter().filter(|(own, hold)| *own == hold.number) {
                let (lock, token, reason) =
                    (hold.lock, hold.token, LossReason::SessionEnded(reason));
                events.push(Event::Lost { lock, session, number, token, held_ms: 0, reason });
            }
            events.push(Event::SessionEnded { session, reason });
            let index = self.index;
            self.history.log.extend(events.into_iter().map(|event| Transition { index, event }));
        }
        self.answers = Answers::default();
        self.book.restore();
        self.clients.forget_all();
        let (cluster, silent) = (ClusterId(self.chance.next_u64().into()), self.chance.one_in(2));
        trace.take(format_args!("{} restore {cluster:?} silent: {silent}", self.index));
        let restored = self.replicas.restore(|state| state.restored(cluster, silent));
        restored.map_err(|fault| vec![fault])?;
        if silent {
            self.index += 1;
            self.history.silences.push(Silence { from: self.index, until: u64::MAX });
        }
        // Nothing of the new cluster stands in the entry of the restore.
        self.index += 1;
        Ok(())
    }

    fn end_silence_if_open(&mut self) {
        if self.replicas.first.is_silent() {
            self.index += 1;
            self.end_silence();
        }
    }
}

const COMMANDS_MIN: u64 = 60;
const COMMANDS_MAX: u64 = 240;
const RESTORE_ONE_IN: u64 = 2_000;
const CHECK_ONE_IN: u64 = 100;
const DELIVERED_MAX: usize = 24;
