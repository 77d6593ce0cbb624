//! Writes down what happens in a world: the history for the judges, and a trace that tells one run
//! from another.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;

use lockkeeper_core::{Event, StateMachine, Token};
use lockkeeper_node::{Applied, Observer};
use parking_lot::Mutex;

use crate::history::{Commit, Digest, Leadership};
use crate::world::MachineClock;
use crate::{Attempt, ClientId, History, Nanos, Seen, Transition, recipe};

/// A replica's whole state is digested at each of these indexes.
const DIGEST_EVERY: u64 = 16;

/// Everything that is written down. Clones write into the same book.
#[derive(Clone, Default)]
pub struct Recorder {
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    history: History,
    log: BTreeMap<u64, Vec<Event>>,
    /// What replicas said differently of one entry.
    contradictions: Vec<String>,
    trace: DefaultHasher,
    /// The trace in words, if somebody wants to read it.
    words: Option<String>,
    clients: u32,
    attempts: u64,
    registers: BTreeMap<String, Token>,
}

/// What a run left behind.
#[derive(Debug)]
pub struct Record {
    /// For the judges.
    pub history: History,
    /// What replicas said differently of one entry.
    pub contradictions: Vec<String>,
    /// A digest of everything that happened, in order.
    pub trace: u64,
    /// The same in words, if it was asked for.
    pub words: Option<String>,
}

impl Recorder {
    /// A recorder that also keeps the words.
    #[must_use]
    pub fn verbose() -> Self {
        let recorder = Self::default();
        recorder.book.lock().words = Some(String::new());
        recorder
    }

    /// Notes an observation of the clients' side.
    pub fn see(&self, at: Nanos, seen: Seen) {
        let mut book = self.book.lock();
        book.say(at, &seen);
        book.history.see(at, seen);
    }

    /// Notes something that isn't judged: a fault, or its end.
    pub fn note(&self, at: Nanos, what: &str) {
        self.book.lock().say(at, &what);
    }

    /// A client's name that nobody had.
    #[must_use]
    pub fn client(&self) -> ClientId {
        let mut book = self.book.lock();
        book.clients += 1;
        ClientId(book.clients)
    }

    /// An attempt's name that nobody had.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        let mut book = self.book.lock();
        book.attempts += 1;
        Attempt(book.attempts)
    }

    /// A resource behind a lock that checks tokens: lets a write in unless it comes with an older
    /// token than that of the newest exclusive write.
    #[must_use]
    pub fn write_fenced(&self, lock: &str, token: Token, is_exclusive: bool) -> bool {
        let mut book = self.book.lock();
        let newest = book.registers.entry(lock.to_owned()).or_insert(Token(0));
        let accepted = token >= *newest;
        if accepted && is_exclusive {
            *newest = token;
        }
        accepted
    }

    /// Looks on at one node.
    #[must_use]
    pub fn at_node(&self, node: u64, clock: Arc<MachineClock>) -> Arc<dyn Observer> {
        Arc::new(AtNode { recorder: self.clone(), node, clock })
    }

    /// Ends the book.
    #[must_use]
    pub fn finish(&self) -> Record {
        let mut book = std::mem::take(&mut *self.book.lock());
        for (index, events) in book.log {
            let transitions = events.into_iter().map(|event| Transition { index, event });
            book.history.log.extend(transitions);
        }
        book.history.log = recipe::read(&book.history.log);
        // Processes take turns, so that what they saw isn't quite in the order of time.
        book.history.seen.sort_by_key(|entry| entry.at);
        Record {
            history: book.history,
            contradictions: book.contradictions,
            trace: book.trace.finish(),
            words: book.words,
        }
    }
}

impl Book {
    fn say(&mut self, at: Nanos, what: &impl std::fmt::Debug) {
        let line = format!("{at} {what:?}");
        line.hash(&mut self.trace);
        if let Some(words) = &mut self.words {
            let _ = writeln!(words, "{:>10.3} s  {what:?}", at as f64 / 1e9);
        }
    }
}

struct AtNode {
    recorder: Recorder,
    node: u64,
    clock: Arc<MachineClock>,
}

impl Observer for AtNode {
    fn applied(&self, entry: Applied<'_>) {
        let Applied { index, term, bytes, events, state } = entry;
        let node = self.node;
        let mut book = self.recorder.book.lock();
        book.say(self.clock.now(), &(node, index, term, events));
        book.history.commits.push(Commit { node, index, term, digest: digest_of(bytes) });
        if index.is_multiple_of(DIGEST_EVERY) {
            let digest = digest_of_state(state);
            book.history.digests.push(Digest { node, index, digest });
        }
        match book.log.get(&index) {
            None => {
                book.log.insert(index, events.to_vec());
            }
            Some(known) if known == events => {}
            Some(known) => {
                let what = format!("entry {index}: node {node} saw {events:?}, another {known:?}");
                book.contradictions.push(what);
            }
        }
    }

    fn leads(&self, term: u64) {
        let at = self.clock.now();
        let node = self.node;
        let mut book = self.recorder.book.lock();
        book.say(at, &format_args!("node {node} leads in term {term}"));
        book.history.leaders.push(Leadership { at, node, term });
    }
}

fn digest_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn digest_of_state(state: &StateMachine) -> u64 {
    struct Sum(DefaultHasher);
    impl io::Write for Sum {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sum = Sum(DefaultHasher::new());
    state.write_snapshot(&mut sum).expect("a hasher takes everything");
    sum.0.finish()
}
