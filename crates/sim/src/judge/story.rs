//! The clients' side, told by wish instead of by time.
//!
//! What a client believes, it believes *from* the moment at which it acts on it *until* the first
//! of: its release is about to be sent, its own deadline has passed, its session is over for it,
//! an operator took the risk of passing the lock on.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{Mode, SessionId, Token};

use crate::judge::findings::At;
use crate::{Attempt, ClientId, GiveUp, History, Nanos, Seen};

pub(super) struct Story<'a> {
    /// In the order in which they were asked.
    pub(super) wishes: Vec<Wish<'a>>,
    /// When all faults had ended, if they did.
    pub(super) calm: Option<Nanos>,
    /// When the run was over.
    pub(super) over: Nanos,
    clients: BTreeMap<ClientId, Client>,
    forced: BTreeMap<(&'a str, Token), Nanos>,
    /// What can't be in a history.
    pub(super) faults: Vec<String>,
}

/// One wish from beginning to end.
pub(super) struct Wish<'a> {
    pub(super) attempt: Attempt,
    pub(super) client: ClientId,
    pub(super) lock: &'a str,
    pub(super) mode: Mode,
    pub(super) wait: bool,
    pub(super) asked: Nanos,
    pub(super) queued: Option<Nanos>,
    pub(super) held: Option<(Nanos, Token)>,
    pub(super) releasing: Option<Nanos>,
    pub(super) released: Option<Nanos>,
    /// Since when it was lost.
    pub(super) lost: Option<Nanos>,
    pub(super) gave_up: Option<(Nanos, GiveUp)>,
    /// When its client knew that the session was over.
    pub(super) ended: Option<Nanos>,
    /// When an operator passed the hold on at once.
    pub(super) forced: Option<Nanos>,
    /// It is one more handle on a hold that its client has already: nothing was granted anew.
    pub(super) is_reentry: bool,
}

/// What one client believed to hold, and when: `from..until`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold<'a> {
    pub(super) attempt: Attempt,
    pub(super) client: ClientId,
    pub(super) lock: &'a str,
    pub(super) mode: Mode,
    pub(super) token: Token,
    pub(super) from: Nanos,
    pub(super) until: Nanos,
}

#[derive(Default)]
struct Client {
    session: Option<SessionId>,
    ended: Option<Nanos>,
    /// When it asked the newest of those questions that it has the answer to.
    last_answered: Nanos,
}

impl<'a> Story<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let over = history.seen.last().map_or(0, |entry| entry.at);
        let mut story = Self {
            wishes: Vec::new(),
            calm: None,
            over,
            clients: BTreeMap::new(),
            forced: BTreeMap::new(),
            faults: Vec::new(),
        };
        let mut by_attempt = BTreeMap::new();
        let mut last = 0;
        for entry in &history.seen {
            if entry.at < last {
                story.faults.push(format!("time goes back to {} from {}", At(entry.at), At(last)));
            }
            last = last.max(entry.at);
            story.read(entry.at, &entry.seen, &mut by_attempt);
        }
        let mut holders = BTreeSet::new();
        for wish in &mut story.wishes {
            if let Some((_, token)) = wish.held {
                wish.is_reentry = !holders.insert((wish.client, wish.lock, token));
            }
            wish.ended = story.clients.get(&wish.client).and_then(|client| client.ended);
            let token = wish.held.map(|(_, token)| token);
            wish.forced = token.and_then(|token| story.forced.get(&(wish.lock, token)).copied());
        }
        story
    }

    fn read(&mut self, at: Nanos, seen: &'a Seen, by_attempt: &mut BTreeMap<Attempt, usize>) {
        match *seen {
            Seen::Opened { client, session } => {
                let known = Client { session, ended: None, last_answered: at };
                if self.clients.insert(client, known).is_some() {
                    self.faults.push(format!("{client} opens a second session at {}", At(at)));
                }
            }
            Seen::Ended { client } => {
                self.clients.entry(client).or_default().ended.get_or_insert(at);
            }
            Seen::Asked { attempt, client, ref lock, mode, wait } => {
                if by_attempt.insert(attempt, self.wishes.len()).is_some() {
                    self.faults.push(format!("{attempt} is asked for again at {}", At(at)));
                }
                self.wishes.push(Wish::new(attempt, client, lock, mode, wait, at));
            }
            Seen::Queued { attempt }
            | Seen::Held { attempt, .. }
            | Seen::Releasing { attempt }
            | Seen::Released { attempt }
            | Seen::Lost { attempt, .. }
            | Seen::GaveUp { attempt, .. } => {
                let Some(&index) = by_attempt.get(&attempt) else {
                    self.faults.push(format!("{attempt} was never asked for: {seen:?}"));
                    return;
                };
                let wish = &mut self.wishes[index];
                // Whoever loses or gives up may have heard nothing; a refusal is an answer.
                let asked = match seen {
                    Seen::Queued { .. }
                    | Seen::Held { .. }
                    | Seen::GaveUp { why: GiveUp::Refused, .. } => Some(wish.asked),
                    Seen::Released { .. } => wish.releasing,
                    _ => None,
                };
                if let Err(fault) = wish.read(at, seen) {
                    self.faults.push(format!("{attempt} at {}: {fault}", At(at)));
                }
                let known = self.clients.entry(wish.client).or_default();
                known.last_answered = known.last_answered.max(asked.unwrap_or_default());
            }
            Seen::Forced { ref lock, token } => {
                self.forced.entry((lock, token)).or_insert(at);
            }
            Seen::Calm => self.calm = Some(at),
            Seen::Over => self.over = at,
            Seen::Wrote { .. } | Seen::Viewed { .. } | Seen::Tree { .. } => {}
        }
    }

    /// What was believed to be held, in the order of time. Beliefs that ended before they began
    /// aren't among them.
    pub(super) fn holds(&self) -> Vec<Hold<'a>> {
        let mut holds: Vec<Hold<'a>> =
            self.wishes.iter().filter_map(|wish| wish.hold(self.over)).collect();
        holds.sort_by_key(|hold| (hold.from, hold.attempt));
        holds
    }

    /// The names of all locks, each with what `items` are of it.
    pub(super) fn by_lock<T>(
        items: impl IntoIterator<Item = T>,
        lock: impl Fn(&T) -> &'a str,
    ) -> BTreeMap<&'a str, Vec<T>> {
        let mut sorted: BTreeMap<&'a str, Vec<T>> = BTreeMap::new();
        for item in items {
            sorted.entry(lock(&item)).or_default().push(item);
        }
        sorted
    }

    /// The client's session in the log, where it is known.
    pub(super) fn session(&self, client: ClientId) -> Option<SessionId> {
        self.clients.get(&client)?.session
    }

    /// Whether an operator took a hold of this wish's lock away, after it was asked for and before
    /// `at`, of which no client ever knew: it may have been this one's.
    pub(super) fn forced_unseen(&self, wish: &Wish<'_>, at: Nanos) -> bool {
        let mut forced = self.forced.iter().filter(|((lock, _), forced)| {
            *lock == wish.lock && (wish.asked..=at).contains(*forced)
        });
        forced.any(|((lock, token), _)| {
            let is_it = |other: &Wish<'_>| {
                other.lock == *lock && other.held.is_some_and(|(_, held)| held == *token)
            };
            !self.wishes.iter().any(is_it)
        })
    }

    /// Whether the client's session certainly lived at `at`, and the history has all that the
    /// client heard of what had become of its wishes until then: it has the answer to what it asked
    /// later, which came behind that; or all went on to be calm for `bound` after it.
    pub(super) fn lived_at(&self, client: ClientId, at: Nanos, bound: Nanos) -> bool {
        let Some(known) = self.clients.get(&client) else { return false };
        let is_settled =
            self.calm.is_some_and(|calm| self.over > calm.max(at).saturating_add(bound));
        match known.ended {
            None => known.last_answered > at || is_settled,
            Some(ended) => known.last_answered.min(ended) > at,
        }
    }

    /// Tokens that were granted to somebody who never learnt of it may be these wishes': by lock,
    /// when the first of them was asked for.
    pub(super) fn hidden_since(&self) -> BTreeMap<&'a str, Nanos> {
        let mut since = BTreeMap::new();
        let hidden = self.wishes.iter().filter(|wish| wish.may_have_held_unseen());
        for wish in hidden {
            since.entry(wish.lock).or_insert(wish.asked);
        }
        since
    }

    /// The names of clients that took part, for the judge of shapes.
    pub(super) fn unopened(&self) -> BTreeSet<ClientId> {
        let is_unknown = |wish: &&Wish<'_>| !self.clients.contains_key(&wish.client);
        self.wishes.iter().filter(is_unknown).map(|wish| wish.client).collect()
    }
}

impl<'a> Wish<'a> {
    fn new(
        attempt: Attempt,
        client: ClientId,
        lock: &'a str,
        mode: Mode,
        wait: bool,
        asked: Nanos,
    ) -> Self {
        Self {
            attempt,
            client,
            lock,
            mode,
            wait,
            asked,
            queued: None,
            held: None,
            releasing: None,
            released: None,
            lost: None,
            gave_up: None,
            ended: None,
            forced: None,
            is_reentry: false,
        }
    }

    fn read(&mut self, at: Nanos, seen: &Seen) -> Result<(), &'static str> {
        match *seen {
            // Said again after a reconnection: the first one counts.
            Seen::Queued { .. } => _ = self.queued.get_or_insert(at),
            Seen::Held { token, .. } => {
                if self.held.is_some() {
                    return Err("it is held a second time");
                }
                if self.gave_up.is_some() {
                    return Err("it is held after it had come to nothing");
                }
                self.held = Some((at, token));
            }
            Seen::Releasing { .. } => {
                if self.held.is_none() {
                    return Err("it is released, but was never held");
                }
                self.releasing.get_or_insert(at);
            }
            Seen::Released { .. } => {
                if self.releasing.is_none() {
                    return Err("a release is acknowledged that was never sent");
                }
                self.released.get_or_insert(at);
            }
            Seen::Lost { since, .. } => {
                if self.held.is_none() {
                    return Err("it is lost, but was never held");
                }
                if since > at {
                    return Err("it is lost since a time to come");
                }
                self.lost.get_or_insert(since);
            }
            Seen::GaveUp { why, .. } => _ = self.gave_up.get_or_insert((at, why)),
            _ => {}
        }
        Ok(())
    }

    /// Until when the client believed that it held: the end of the run if it still does.
    pub(super) fn until(&self, over: Nanos) -> Nanos {
        self.belief_ended().unwrap_or(over)
    }

    /// The first reason why it believes no more.
    pub(super) fn belief_ended(&self) -> Option<Nanos> {
        let gave_up = self.gave_up.map(|(at, _)| at);
        let ends = [self.releasing, self.lost, self.ended, self.forced, gave_up];
        ends.into_iter().flatten().min()
    }

    fn hold(&self, over: Nanos) -> Option<Hold<'a>> {
        let (from, token) = self.held?;
        let until = self.until(over);
        let Self { attempt, client, lock, mode, .. } = *self;
        (from < until).then_some(Hold { attempt, client, lock, mode, token, from, until })
    }

    /// When it was first answered, or nobody was left to answer; `None` if it still waits for that.
    pub(super) fn answered(&self) -> Option<Nanos> {
        let held = self.held.map(|(at, _)| at);
        let gave_up = self.gave_up.map(|(at, _)| at);
        [self.queued, held, gave_up, self.ended].into_iter().flatten().min()
    }

    /// Whether it may have been granted without its client ever having learnt the token.
    pub(super) fn may_have_held_unseen(&self) -> bool {
        let is_refused = matches!(self.gave_up, Some((_, GiveUp::Refused)));
        self.held.is_none() && !is_refused
    }
}

/// Whether the two can't be held at one time.
pub(super) fn excludes(a: Mode, b: Mode) -> bool {
    match (a, b) {
        (Mode::Shared, Mode::Shared) => false,
        (Mode::Permits { take: a, of }, Mode::Permits { take: b, of: other }) => {
            of != other || u64::from(a) + u64::from(b) > u64::from(of)
        }
        (Mode::Exclusive | Mode::Shared | Mode::Permits { .. }, _) => true,
    }
}

/// Whether `mode` can join what is held.
pub(super) fn admits(held: impl Iterator<Item = Mode>, mode: Mode) -> bool {
    let mut permits = 0;
    for other in held {
        if excludes(other, mode) {
            return false;
        }
        if let Mode::Permits { take, .. } = other {
            permits += u64::from(take);
        }
    }
    match mode {
        Mode::Permits { take, of } => permits + u64::from(take) <= u64::from(of),
        Mode::Exclusive | Mode::Shared => true,
    }
}
