//! Exactly once, as a client can tell: a request that comes again does nothing, and hears what it
//! heard before, or what has become of it since.

use std::collections::BTreeMap;

use lockkeeper_core::{Command, Event, Number, Refusal, Reply, Request, SessionId};

/// What every living session has been answered.
#[derive(Default)]
pub(super) struct Answers {
    sessions: BTreeMap<SessionId, Session>,
}

#[derive(Default)]
struct Session {
    floor: Number,
    last: BTreeMap<Number, Reply>,
}

impl Answers {
    pub(super) fn living(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// Takes in one command, what it was answered and what happened. Whether it had been executed
    /// before; or what is wrong with that.
    pub(super) fn take(
        &mut self,
        command: &Command<'_>,
        reply: &Reply,
        events: &[Event],
    ) -> Result<bool, String> {
        if matches!(reply, Reply::Refused(_)) && !events.is_empty() {
            return Err(format!("it was refused ({reply:?}), but: {events:?}"));
        }
        let judged = match command {
            Command::Request { session, number, floor, request } => {
                self.take_request((*session, *number, *floor), request, reply, events)
            }
            Command::OpenSession { session, .. } => Ok(self.sessions.contains_key(session)),
            _ => Ok(false),
        };
        for event in events {
            match event {
                Event::SessionOpened { session } => {
                    self.sessions.insert(*session, Session::default());
                }
                Event::SessionEnded { session, .. } => _ = self.sessions.remove(session),
                _ => {}
            }
        }
        judged
    }

    fn take_request(
        &mut self,
        (session, number, floor): (SessionId, Number, Number),
        request: &Request<'_>,
        reply: &Reply,
        events: &[Event],
    ) -> Result<bool, String> {
        let Some(known) = self.sessions.get_mut(&session) else {
            let is_right = *reply == Reply::Refused(Refusal::UnknownSession);
            return if is_right { Ok(false) } else { Err("a dead session is served".to_owned()) };
        };
        known.floor = known.floor.max(floor);
        if number < known.floor {
            let is_right = *reply == Reply::Refused(Refusal::TooOld);
            return if is_right { Ok(true) } else { Err("it is below its floor".to_owned()) };
        }
        let Some(before) = known.last.insert(number, reply.clone()) else {
            known.last.retain(|number, _| *number >= known.floor);
            return if is_told(request, number, reply, events) {
                Ok(false)
            } else {
                Err(format!("the answer is {reply:?}, but what happened is {events:?}"))
            };
        };
        if !events.is_empty() {
            return Err(format!("it was answered {before:?}, and now happens again: {events:?}"));
        }
        if !may_follow(&before, reply) {
            return Err(format!("it was answered {before:?}, and now {reply:?}"));
        }
        Ok(true)
    }
}

/// Whether the answer to a new request tells what happened.
fn is_told(request: &Request<'_>, number: Number, reply: &Reply, events: &[Event]) -> bool {
    let is_entry = matches!(request, Request::Acquire { .. });
    match (reply, events.first()) {
        (Reply::Refused(_), first) => first.is_none(),
        (Reply::Granted { token }, Some(Event::Granted { token: granted, number: own, .. })) => {
            is_entry && token == granted && *own == number && events.len() == 1
        }
        (Reply::Granted { .. }, None) => matches!(request, Request::Reenter { .. }),
        (Reply::Queued { place }, Some(Event::Queued { place: told, number: own, .. })) => {
            is_entry && place == told && *own == number && events.len() == 1
        }
        (Reply::Released { token, remaining: 0 }, Some(Event::Released { token: told, .. })) => {
            token == told
        }
        (Reply::Released { remaining, .. }, None) => *remaining > 0,
        (Reply::Done, first) => match first {
            None => matches!(request, Request::Cancel { .. }),
            Some(Event::Cancelled { .. }) => true,
            Some(_) => false,
        },
        _ => false,
    }
}

/// Whether a repetition may hear `now` after it had heard `before`.
fn may_follow(before: &Reply, now: &Reply) -> bool {
    let is_over =
        |now: &Reply| matches!(now, Reply::Refused(Refusal::NotHeld | Refusal::AlreadyCancelled));
    match (before, now) {
        (Reply::Queued { place }, Reply::Queued { place: later }) => later <= place,
        (Reply::Queued { .. }, Reply::Granted { .. }) => true,
        (Reply::Queued { .. } | Reply::Granted { .. }, now) if is_over(now) => true,
        (before, now) => before == now,
    }
}
