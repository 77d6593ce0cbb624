//! Two replicas of one log. The first applies each command as it comes; the second reads the
//! log's bytes, when it gets to it.

use lockkeeper_core::{Command, Event, Reply, Stamp, StateMachine};

use super::trace::digest_of;

#[derive(Default)]
pub(super) struct Replicas {
    pub(super) first: StateMachine,
    second: StateMachine,
    /// What the second has still to apply.
    log: Vec<Logged>,
    applied_by_second: usize,
}

struct Logged {
    at: Stamp,
    bytes: Vec<u8>,
    /// What the first one said, and what happened there.
    reply: Reply,
    events: Vec<Event>,
}

impl Replicas {
    pub(super) fn apply(&mut self, at: Stamp, command: &Command<'_>) -> (Reply, Vec<Event>) {
        let mut events = Vec::new();
        let reply = self.first.apply(at, command, &mut events);
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        self.log.push(Logged { at, bytes, reply: reply.clone(), events: events.clone() });
        (reply, events)
    }

    /// The second applies so many commands, if there are as many.
    pub(super) fn catch_up(&mut self, count: usize) -> Result<(), String> {
        let until = self.log.len().min(self.applied_by_second.saturating_add(count));
        let mut events = Vec::new();
        for logged in &self.log[self.applied_by_second..until] {
            let decoded = Command::decode(&logged.bytes).ok_or("a command can't be decoded")?;
            events.clear();
            let reply = self.second.apply(logged.at, &decoded.command, &mut events);
            if (&reply, &events) != (&logged.reply, &logged.events) {
                return Err(format!(
                    "two replicas differ on {:?}: {:?} and {:?}, but {reply:?} and {events:?}",
                    decoded.command, logged.reply, logged.events
                ));
            }
        }
        self.applied_by_second = until;
        if until == self.log.len() {
            self.log.clear();
            self.applied_by_second = 0;
        }
        Ok(())
    }

    /// The log is purged. If the second one needed it still, it gets a snapshot of the first.
    pub(super) fn purge(&mut self) -> Result<bool, String> {
        if self.log.is_empty() {
            return Ok(false);
        }
        self.log.clear();
        self.applied_by_second = 0;
        self.second = reload(&self.first)?;
        Ok(true)
    }

    /// The first one starts anew, from its snapshot.
    pub(super) fn restart(&mut self) -> Result<(), String> {
        self.first = reload(&self.first)?;
        Ok(())
    }

    /// Both start anew from a backup of what they agree on.
    pub(super) fn restore(
        &mut self,
        restored: impl Fn(&StateMachine) -> StateMachine,
    ) -> Result<(), String> {
        self.catch_up(usize::MAX)?;
        self.first = restored(&self.first);
        self.second = restored(&self.second);
        Ok(())
    }

    /// The digests of both, when the second has caught up.
    pub(super) fn digests(&mut self) -> Result<[u64; 2], String> {
        self.catch_up(usize::MAX)?;
        Ok([digest_of(&bytes_of(&self.first)), digest_of(&bytes_of(&self.second))])
    }
}

/// The state that a snapshot of `state` makes. It must write the same bytes again.
fn reload(state: &StateMachine) -> Result<StateMachine, String> {
    let bytes = bytes_of(state);
    let read = StateMachine::read_snapshot(&mut &bytes[..]);
    let read = read.map_err(|error| format!("a snapshot can't be read: {error}"))?;
    if bytes_of(&read) != bytes {
        return Err("a snapshot that was read writes other bytes".to_owned());
    }
    Ok(read)
}

fn bytes_of(state: &StateMachine) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.write_snapshot(&mut bytes).expect("memory takes all");
    bytes
}
