//! The log's side, read step by step: who holds each lock, and who waits for it in which order.

use std::collections::{BTreeMap, HashMap, VecDeque};

use lockkeeper_core::{Event, Mode, Number, SessionId, Token};

use crate::{History, Transition};

/// The locks as the log makes them. It believes what the log says, however wrong that is: the
/// judges look before they let it.
#[derive(Default)]
pub(super) struct Ledger<'a> {
    lines: BTreeMap<&'a str, Line>,
}

/// One lock.
#[derive(Default)]
pub(super) struct Line {
    pub(super) holds: Vec<Held>,
    pub(super) queue: VecDeque<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) session: SessionId,
    pub(super) number: Number,
    pub(super) token: Token,
    pub(super) mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) session: SessionId,
    pub(super) number: Number,
    /// How it asks, if the log tells later: when it is granted.
    pub(super) mode: Option<Mode>,
}

impl<'a> Ledger<'a> {
    pub(super) fn line(&self, lock: &str) -> Option<&Line> {
        self.lines.get(lock)
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = (&'a str, &Line)> {
        self.lines.iter().map(|(&name, line)| (name, line))
    }

    /// Takes one transition over. `mode` is how a place asks, if that is known.
    pub(super) fn apply(&mut self, event: &'a Event, mode: Option<Mode>) {
        match *event {
            Event::Queued { ref lock, session, number, .. } => {
                let line = self.lines.entry(lock).or_default();
                line.queue.push_back(Place { session, number, mode });
            }
            Event::Granted { ref lock, session, number, token, mode, .. } => {
                let line = self.lines.entry(lock).or_default();
                line.leave_queue(session, number);
                line.holds.push(Held { session, number, token, mode });
            }
            Event::Released { ref lock, token, .. } | Event::Lost { ref lock, token, .. } => {
                let line = self.lines.entry(lock).or_default();
                line.holds.retain(|hold| hold.token != token);
            }
            Event::Cancelled { ref lock, session, number, .. } => {
                self.lines.entry(lock).or_default().leave_queue(session, number);
            }
            Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::SessionRevoked { .. }
            | Event::SessionMoved { .. }
            | Event::Node { .. }
            | Event::Revoked { .. } => {}
        }
    }
}

impl Line {
    /// Where in the queue this acquire waits; 0 is the head.
    pub(super) fn place(&self, session: SessionId, number: Number) -> Option<usize> {
        self.queue.iter().position(|place| (place.session, place.number) == (session, number))
    }

    fn leave_queue(&mut self, session: SessionId, number: Number) {
        if let Some(at) = self.place(session, number) {
            self.queue.remove(at);
        }
    }
}

/// How each `Queued` of the log asks, as its grant will say; `None` for those that are never
/// granted, and for what is no `Queued`.
pub(super) fn modes_to_come(history: &History) -> Vec<Option<Mode>> {
    let mut to_come = HashMap::new();
    let mut modes = vec![None; history.log.len()];
    for (at, Transition { event, .. }) in history.log.iter().enumerate().rev() {
        match *event {
            Event::Granted { session, number, mode, .. } => {
                to_come.insert((session, number), mode);
            }
            Event::Cancelled { session, number, .. } => {
                to_come.remove(&(session, number));
            }
            Event::Queued { session, number, .. } => {
                modes[at] = to_come.remove(&(session, number));
            }
            _ => {}
        }
    }
    modes
}

/// The lock that a transition is about.
pub(super) fn lock_of(event: &Event) -> Option<&str> {
    match event {
        Event::Queued { lock, .. }
        | Event::Granted { lock, .. }
        | Event::Released { lock, .. }
        | Event::Cancelled { lock, .. }
        | Event::Revoked { lock, .. }
        | Event::Lost { lock, .. } => Some(lock),
        Event::SessionOpened { .. }
        | Event::SessionEnded { .. }
        | Event::SessionRevoked { .. }
        | Event::SessionMoved { .. }
        | Event::Node { .. } => None,
    }
}
