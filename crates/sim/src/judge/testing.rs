//! Histories made by hand: lawful ones, and forged ones.

use std::ops::Range;

use lockkeeper_core::{
    EndReason, Event, LossReason, Mode, NodeAcl, NodeChange, Number, Revision, SessionId, Token,
};

use crate::history::TreeSeen;

use crate::judge::Verdict;
use crate::{Attempt, ClientId, Entry, GiveUp, History, Nanos, Seen, Transition};

/// One second.
pub(super) const S: Nanos = 1_000_000_000;

/// Writes a history in any order of time.
pub(super) struct Forge(History);

impl Forge {
    /// With so many clients, each with a session from the start.
    pub(super) fn new(clients: u32) -> Self {
        let mut forge = Self(History::default());
        for client in 0..clients {
            let session = Some(SessionId(u64::from(client) + 1));
            forge.see(0, Seen::Opened { client: ClientId(client), session });
        }
        forge
    }

    pub(super) fn see(&mut self, at: Nanos, seen: Seen) -> &mut Self {
        self.0.see(at, seen);
        self
    }

    /// Asks half a second before, holds, and gives back; each end takes a tenth of a second.
    pub(super) fn hold(
        &mut self,
        (client, attempt): (u32, u64),
        lock: &str,
        mode: Mode,
        token: u64,
        span: Range<Nanos>,
    ) -> &mut Self {
        self.take((client, attempt), lock, mode, token, span.start);
        self.release(attempt, span.end, span.end + S / 10)
    }

    /// Asks half a second before, and holds.
    pub(super) fn take(
        &mut self,
        (client, attempt): (u32, u64),
        lock: &str,
        mode: Mode,
        token: u64,
        from: Nanos,
    ) -> &mut Self {
        self.ask((client, attempt), lock, mode, from - S / 2).held(attempt, token, from)
    }

    pub(super) fn ask(
        &mut self,
        (client, attempt): (u32, u64),
        lock: &str,
        mode: Mode,
        at: Nanos,
    ) -> &mut Self {
        let (attempt, client, lock) = (Attempt(attempt), ClientId(client), lock.to_owned());
        self.see(at, Seen::Asked { attempt, client, lock, mode, wait: true })
    }

    pub(super) fn queued(&mut self, attempt: u64, at: Nanos) -> &mut Self {
        self.see(at, Seen::Queued { attempt: Attempt(attempt) })
    }

    pub(super) fn held(&mut self, attempt: u64, token: u64, at: Nanos) -> &mut Self {
        self.see(at, Seen::Held { attempt: Attempt(attempt), token: Token(token) })
    }

    pub(super) fn release(&mut self, attempt: u64, sent: Nanos, answered: Nanos) -> &mut Self {
        let attempt = Attempt(attempt);
        self.see(sent, Seen::Releasing { attempt }).see(answered, Seen::Released { attempt })
    }

    pub(super) fn lose(&mut self, attempt: u64, at: Nanos, since: Nanos) -> &mut Self {
        self.see(at, Seen::Lost { attempt: Attempt(attempt), since })
    }

    pub(super) fn give_up(&mut self, attempt: u64, at: Nanos, why: GiveUp) -> &mut Self {
        self.see(at, Seen::GaveUp { attempt: Attempt(attempt), why })
    }

    pub(super) fn end(&mut self, client: u32, at: Nanos) -> &mut Self {
        self.see(at, Seen::Ended { client: ClientId(client) })
    }

    pub(super) fn force(&mut self, lock: &str, token: u64, at: Nanos) -> &mut Self {
        self.see(at, Seen::Forced { lock: lock.to_owned(), token: Token(token) })
    }

    pub(super) fn wrote(
        &mut self,
        lock: &str,
        mode: Mode,
        token: u64,
        accepted: bool,
        at: Nanos,
    ) -> &mut Self {
        let (lock, token) = (lock.to_owned(), Token(token));
        self.see(at, Seen::Wrote { lock, mode, token, accepted })
    }

    /// A read that took a tenth of a second.
    pub(super) fn view(&mut self, lock: &str, asked: Nanos, holders: &[u64]) -> &mut Self {
        self.view_of(lock, asked, asked + S / 10, holders, 0)
    }

    pub(super) fn view_of(
        &mut self,
        lock: &str,
        asked: Nanos,
        at: Nanos,
        holders: &[u64],
        waiters: usize,
    ) -> &mut Self {
        let holders = holders.iter().map(|&token| Token(token)).collect();
        self.see(at, Seen::Viewed { lock: lock.to_owned(), asked, holders, waiters })
    }

    pub(super) fn log(&mut self, index: u64, event: Event) -> &mut Self {
        self.0.log.push(Transition { index, event });
        self
    }

    pub(super) fn opened(&mut self, index: u64, session: u64) -> &mut Self {
        self.log(index, Event::SessionOpened { session: SessionId(session) })
    }

    pub(super) fn ended(&mut self, index: u64, session: u64, reason: EndReason) -> &mut Self {
        self.log(index, Event::SessionEnded { session: SessionId(session), reason })
    }

    /// Granted at once.
    pub(super) fn granted(
        &mut self,
        index: u64,
        lock: &str,
        session: u64,
        number: u64,
        token: u64,
        mode: Mode,
    ) -> &mut Self {
        self.grant(index, lock, (session, number), token, mode, None)
    }

    /// Granted from the queue.
    pub(super) fn let_in(
        &mut self,
        index: u64,
        lock: &str,
        session: u64,
        number: u64,
        token: u64,
        mode: Mode,
    ) -> &mut Self {
        self.grant(index, lock, (session, number), token, mode, Some(5))
    }

    fn grant(
        &mut self,
        index: u64,
        lock: &str,
        (session, number): (u64, u64),
        token: u64,
        mode: Mode,
        waited_ms: Option<u64>,
    ) -> &mut Self {
        let (session, number, token) = (SessionId(session), Number(number), Token(token));
        let lock = lock.into();
        self.log(index, Event::Granted { lock, session, number, token, mode, waited_ms })
    }

    pub(super) fn in_line(
        &mut self,
        index: u64,
        lock: &str,
        session: u64,
        number: u64,
        place: u32,
    ) -> &mut Self {
        let (session, number) = (SessionId(session), Number(number));
        self.log(index, Event::Queued { lock: lock.into(), session, number, place })
    }

    pub(super) fn released(
        &mut self,
        index: u64,
        lock: &str,
        session: u64,
        number: u64,
        token: u64,
    ) -> &mut Self {
        let (session, number, token) = (SessionId(session), Number(number), Token(token));
        let lock = lock.into();
        self.log(index, Event::Released { lock, session, number, token, held_ms: 5 })
    }

    pub(super) fn taken(
        &mut self,
        index: u64,
        lock: &str,
        session: u64,
        number: u64,
        token: u64,
        reason: LossReason,
    ) -> &mut Self {
        let (session, number, token) = (SessionId(session), Number(number), Token(token));
        let lock = lock.into();
        self.log(index, Event::Lost { lock, session, number, token, held_ms: 5, reason })
    }

    pub(super) fn cancelled(
        &mut self,
        index: u64,
        lock: &str,
        session: u64,
        number: u64,
    ) -> &mut Self {
        let (session, number) = (SessionId(session), Number(number));
        self.log(
            index,
            Event::Cancelled { lock: lock.into(), session, number, ended: None, waited_ms: 0 },
        )
    }

    /// A znode changes; `session` is the one that it hangs on, 0 for none.
    pub(super) fn node(
        &mut self,
        index: u64,
        path: &str,
        change: NodeChange,
        session: u64,
        zxid: u64,
    ) -> &mut Self {
        let session = (session != 0).then_some(SessionId(session));
        let (path, zxid, acl) = (path.into(), Revision(zxid), NodeAcl::default());
        self.log(index, Event::Node { path, change, session, zxid, acl, acl_above: None })
    }

    /// Client 1 is told something over its connection.
    pub(super) fn told(&mut self, at: Nanos, told: TreeSeen) -> &mut Self {
        self.see(at, Seen::Tree { client: ClientId(1), told })
    }

    /// The history so far, put in the order of time, over at 20 s.
    pub(super) fn done(&mut self) -> History {
        self.done_at(20 * S)
    }

    pub(super) fn done_at(&mut self, over: Nanos) -> History {
        let mut history = self.0.clone();
        history.seen.push(Entry { at: over, seen: Seen::Over });
        history.seen.sort_by_key(|entry| entry.at);
        history
    }

    /// The log alone.
    pub(super) fn history(&mut self) -> History {
        History { seen: Vec::new(), ..self.0.clone() }
    }
}

pub(super) fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// Something was found, and the first verdict has all these words.
#[track_caller]
pub(super) fn assert_finds(found: &[Verdict], words: &[&str]) {
    let first = found.first().expect("nothing was found");
    for word in words {
        assert!(first.what.contains(word), "no {word:?} in: {first}");
    }
}
