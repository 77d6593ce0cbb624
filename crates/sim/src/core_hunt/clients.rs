//! What clients and operators do: the next command for the log.

use lockkeeper_core::{
    Command, EndReason, Mode, Number, OwnerRef, Request, Secret, SessionId, StateMachine, Token,
};

use super::tree;
use crate::Chance;

/// Everybody who sends commands.
pub(super) struct Clients {
    clients: Vec<Client>,
    sessions_opened: u64,
    locks: &'static [&'static str],
    /// The mode that each lock is usually asked for in: a family, and the permits there are.
    families: Vec<u64>,
    weights: [u64; KINDS],
}

/// One client in one session.
struct Client {
    session: SessionId,
    next: u64,
    /// Sent, and not yet answered as far as it knows.
    unanswered: Vec<Command<'static>>,
    /// Sent, and still on its way.
    late: Vec<Command<'static>>,
    /// Numbers of what it asked for, and the lock.
    acquires: Vec<(Number, &'static str)>,
    secret: Secret,
    /// The connection that it speaks over to the tree.
    connection: u64,
}

const KINDS: usize = 16;

impl Clients {
    pub(super) fn new(chance: &mut Chance) -> Self {
        let locks = &NAMES[..chance.between(1, NAMES.len() as u64) as usize];
        let families = locks.iter().map(|_| chance.below(4)).collect();
        let weights = std::array::from_fn(|kind| USUAL[kind] * *chance.pick(&[0, 1, 1, 2, 6]));
        Self { clients: Vec::new(), sessions_opened: 0, locks, families, weights }
    }

    /// The clients whose sessions are over, as far as anybody knows, go.
    pub(super) fn forget_all(&mut self) {
        self.clients.clear();
    }

    /// The next command. `state` is looked at where a client or an operator would know.
    pub(super) fn next(&mut self, chance: &mut Chance, state: &StateMachine) -> Command<'static> {
        if self.clients.len() < 2 {
            return self.open(chance);
        }
        let total: u64 = self.weights.iter().sum();
        let mut drawn = chance.below(total.max(1));
        let kind = self.weights.iter().position(|&weight| {
            let is_it = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            is_it
        });
        match kind.unwrap_or(0) {
            5 => self.come_again(chance),
            6 if self.clients.len() < CLIENTS_MAX => self.open(chance),
            7 => self.end(chance),
            8 => Command::RevokeSession { session: self.any(chance).session },
            9 | 10 => self.revoke_hold(chance, state),
            11 => self.late(chance),
            12 | 13 => tree::command(self.any(chance).speaker(chance, state), chance, state),
            14 => self.any(chance).resume(chance),
            15 => tree::collect(chance, state),
            kind => self.request(kind, chance, state),
        }
    }

    fn any(&mut self, chance: &mut Chance) -> &mut Client {
        let at = chance.below(self.clients.len() as u64) as usize;
        &mut self.clients[at]
    }

    fn open(&mut self, chance: &mut Chance) -> Command<'static> {
        self.sessions_opened += 1;
        let session = SessionId(chance.next_u64());
        let secret = Secret([self.sessions_opened as u8; 16]);
        self.clients.push(Client {
            session,
            next: 1,
            unanswered: Vec::new(),
            late: Vec::new(),
            acquires: Vec::new(),
            secret,
            connection: 0,
        });
        let owner = OwnerRef { host: "here", pid: 7, ..OwnerRef::default() };
        Command::OpenSession { session, secret, ttl_ms: 10_000, owner }
    }

    fn end(&mut self, chance: &mut Chance) -> Command<'static> {
        let at = chance.below(self.clients.len() as u64) as usize;
        let session = self.clients.swap_remove(at).session;
        let reasons =
            [EndReason::Closed, EndReason::Expired, EndReason::Revoked, EndReason::Forced];
        Command::EndSession { session, reason: *chance.pick(&reasons) }
    }

    fn revoke_hold(&mut self, chance: &mut Chance, state: &StateMachine) -> Command<'static> {
        let lock = *chance.pick(self.locks);
        let view = state.lock(lock, 0);
        let holds = view.map_or_else(Vec::new, |view| view.holds);
        let if_token = match holds.is_empty() || chance.one_in(8) {
            true => Token(chance.below(20)),
            false => chance.pick(&holds).token,
        };
        Command::RevokeHold { lock, if_token, now: chance.one_in(2) }
    }

    /// A new request: it arrives, or it stays on its way for a while.
    fn request(
        &mut self,
        kind: usize,
        chance: &mut Chance,
        state: &StateMachine,
    ) -> Command<'static> {
        let at = chance.below(self.locks.len() as u64) as usize;
        let (lock, mode) = (self.locks[at], mode(self.families[at], chance));
        let client = self.any(chance);
        let number = Number(client.next);
        client.next += 1;
        // Mostly a client knows what it holds.
        let is_held = |(number, _): &&(Number, _)| state.token(client.session, *number).is_some();
        let held = client.acquires.iter().rev().find(is_held).copied();
        let acquire = match (kind, held) {
            (2 | 4, Some(held)) if !chance.one_in(6) => Some(held),
            _ => client.some_acquire(chance),
        };
        let request = match (kind, acquire) {
            (2, Some((acquire, _))) => Request::Release { acquire },
            // Some cancel what they will ask for in a moment.
            (3, _) if chance.one_in(10) => Request::Cancel { acquire: Number(number.0 + 1) },
            (3, Some((acquire, _))) => Request::Cancel { acquire },
            (4, Some((acquire, lock))) => {
                let token = state.token(client.session, acquire).unwrap_or(Token(1));
                client.acquires.push((number, lock));
                Request::Reenter { lock, token }
            }
            _ => {
                let lock = if chance.one_in(60) { "no//name" } else { lock };
                client.acquires.push((number, lock));
                let purpose = if chance.one_in(4) { "nightly" } else { "" };
                Request::Acquire { lock, mode, wait: kind != 1, purpose }
            }
        };
        let floor = client.floor(number);
        let command = Command::Request { session: client.session, number, floor, request };
        if chance.one_in(12) && client.late.len() < LATE_MAX {
            client.late.push(command);
            return self.late(chance);
        }
        if chance.one_in(4) {
            client.unanswered.push(command.clone());
        }
        command
    }

    /// Something that was on its way arrives, if there is anything.
    fn late(&mut self, chance: &mut Chance) -> Command<'static> {
        let client = self.any(chance);
        match client.late.is_empty() {
            true => self.come_again(chance),
            false => {
                let at = chance.below(client.late.len() as u64) as usize;
                client.late.swap_remove(at)
            }
        }
    }

    /// A client that has no answer asks again.
    fn come_again(&mut self, chance: &mut Chance) -> Command<'static> {
        let client = self.any(chance);
        if client.unanswered.is_empty() {
            let (number, session) = (Number(client.next), client.session);
            client.next += 1;
            let request = Request::Cancel { acquire: Number(number.0.saturating_sub(1).max(1)) };
            let floor = client.floor(number);
            // Number 1 would cancel itself: that is refused, and stays so.
            return Command::Request { session, number, floor, request };
        }
        let at = chance.below(client.unanswered.len() as u64) as usize;
        if chance.one_in(2) {
            return client.unanswered.swap_remove(at);
        }
        client.unanswered[at].clone()
    }
}

impl Client {
    /// Its session and connection, which now and then is one that it has left.
    fn speaker(&self, chance: &mut Chance, state: &StateMachine) -> (SessionId, u64) {
        let connection = state.connection(self.session).unwrap_or(self.connection);
        (self.session, connection.saturating_sub(u64::from(chance.one_in(20))))
    }

    /// Over the next connection, or the same again.
    fn resume(&mut self, chance: &mut Chance) -> Command<'static> {
        self.connection += u64::from(!chance.one_in(5));
        Command::ResumeSession {
            session: self.session,
            secret: if chance.one_in(10) { Secret([255; 16]) } else { self.secret },
            ttl_ms: *chance.pick(&[10_000, 10_000, 30_000, 1]),
            connection: self.connection,
        }
    }

    /// Mostly one of the last things that it asked for.
    fn some_acquire(&self, chance: &mut Chance) -> Option<(Number, &'static str)> {
        let count = self.acquires.len() as u64;
        let among = if chance.one_in(5) { count } else { count.min(4) };
        let back = chance.below(among);
        let at = count.checked_sub(1 + back)?;
        self.acquires.get(at as usize).copied()
    }

    /// The lowest number that it has no answer to, if it sends `number` now.
    fn floor(&self, number: Number) -> Number {
        let open = self.unanswered.iter().chain(&self.late).filter_map(|command| match command {
            Command::Request { number, .. } => Some(*number),
            _ => None,
        });
        open.min().unwrap_or(number).min(number)
    }
}

fn mode(family: u64, chance: &mut Chance) -> Mode {
    let family = if chance.one_in(20) { chance.below(4) } else { family };
    // One family of permits, and another number of them.
    let of = if family == 3 { 5 } else { *chance.pick(&[2, 2, 3]) };
    match family {
        0 => Mode::Exclusive,
        1 if !chance.one_in(3) => Mode::Shared,
        1 => Mode::Exclusive,
        // Now and then more than there are, or none.
        _ if chance.one_in(15) => Mode::Permits { take: *chance.pick(&[0, 9]), of },
        _ => Mode::Permits { take: chance.between(1, of.into()) as u32, of },
    }
}

/// How often each kind of command is usually sent: acquire, try, release, cancel, re-enter, ask
/// again, open, end, revoke a session, revoke a hold (twice), arrive late, work on the tree
/// (twice), resume over another connection, collect.
const USUAL: [u64; KINDS] = [40, 8, 24, 12, 5, 10, 3, 3, 1, 2, 2, 6, 30, 20, 2, 2];

const NAMES: [&str; 3] = ["a", "batch/nightly", "ü"];

const CLIENTS_MAX: usize = 6;

const LATE_MAX: usize = 4;
