//! The network between machines: streams over links that can be slow, swallow, or break.
//!
//! A connection is two *pipes*, one in each direction, and each pipe keeps its bytes in order, as
//! TCP does; everything else has its own pace. A link is directed. While it swallows, what travels
//! on it is held, as a sender's kernel holds and repeats it; when it is whole again that arrives
//! late, or the connection is found to have died. What is never delivered twice here is delivered
//! twice by those above: they send again after a reset that came behind a delivery.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_node::{BoxFuture, PeerStream, Transport, TransportListener};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Nanos;
use crate::chance::Chance;

const MILLI: u64 = 1_000_000;

/// Bytes on their way or unread in one pipe, before its writer has to wait.
const WINDOW_BYTES: usize = 64 << 10;

/// A machine, by its place in the world.
pub(crate) type MachineId = usize;

/// The network. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Net {
    state: Arc<Mutex<State>>,
}

struct State {
    now: Nanos,
    chance: Chance,
    names: BTreeMap<String, MachineId>,
    machines: BTreeMap<MachineId, Port>,
    links: BTreeMap<(MachineId, MachineId), Link>,
    pipes: BTreeMap<PipeId, Pipe>,
    next_pipe: PipeId,
    next_life: u64,
    /// What travels, by the time of its arrival.
    travelling: BTreeMap<(Nanos, u64), (MachineId, MachineId, Cargo)>,
    sequence: u64,
    /// Machines for which something has come since they were last asked.
    mail: BTreeSet<MachineId>,
    /// Bytes delivered so far, for the trace.
    delivered: u64,
}

/// Where a machine's process can be reached.
#[derive(Default)]
struct Port {
    /// The process that runs now; connections of an earlier one are dead.
    life: u64,
    is_up: bool,
    /// The whole machine is gone: nobody is told that nobody is there.
    is_silent: bool,
    listeners: BTreeMap<u16, Backlog>,
}

#[derive(Default)]
struct Backlog {
    waiting: VecDeque<(Stream, String)>,
    waker: Option<Waker>,
}

/// The condition of one direction between two machines.
#[derive(Debug, Default)]
struct Link {
    /// Nothing arrives.
    swallows: bool,
    /// Added to what each message takes anyway.
    slow: Duration,
    held: Vec<Cargo>,
}

type PipeId = u64;

/// One direction of a connection.
struct Pipe {
    from: MachineId,
    to: MachineId,
    /// The other direction.
    back: PipeId,
    inbox: VecDeque<u8>,
    on_the_way: usize,
    /// When the last of what travels arrives: the next can't come before it.
    last_arrival: Nanos,
    end: Option<End>,
    /// The reader is gone: what still comes is answered with a reset.
    is_unread: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nothing more comes.
    Closed,
    /// The connection is dead.
    Reset,
}

#[derive(Debug)]
enum Cargo {
    Bytes(PipeId, Vec<u8>),
    End(PipeId, End),
    /// A wish to connect to a port; the pipes are made, the second leads back.
    Connect {
        port: u16,
        there: PipeId,
        caller: Arc<Call>,
    },
    /// The wish was granted, or not.
    Answer {
        caller: Arc<Call>,
        is_accepted: bool,
    },
}

/// Somebody who waits for a connection.
#[derive(Debug, Default)]
struct Call {
    answer: Mutex<(Option<bool>, Option<Waker>)>,
}

impl Net {
    pub(crate) fn new(chance: Chance) -> Self {
        let state = State {
            now: 0,
            chance,
            names: BTreeMap::new(),
            machines: BTreeMap::new(),
            links: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next_pipe: 1,
            next_life: 1,
            travelling: BTreeMap::new(),
            sequence: 0,
            mail: BTreeSet::new(),
            delivered: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Gives a machine its name.
    pub(crate) fn name(&self, machine: MachineId, name: &str) {
        let mut state = self.state.lock();
        state.names.insert(name.to_owned(), machine);
        state.machines.insert(machine, Port::default());
    }

    /// A process starts on the machine. What it does goes through the returned socket layer.
    pub(crate) fn boot(&self, machine: MachineId) -> Sockets {
        let mut state = self.state.lock();
        let life = state.next_life;
        state.next_life += 1;
        let port = state.machines.entry(machine).or_default();
        *port = Port { life, is_up: true, is_silent: false, listeners: BTreeMap::new() };
        Sockets { net: self.clone(), machine, life }
    }

    /// The machine's process is gone. `is_silent`: so is the machine, and nobody is told.
    pub(crate) fn halt(&self, machine: MachineId, is_silent: bool) {
        let mut wake = Vec::new();
        let mut state = self.state.lock();
        let port = state.machines.entry(machine).or_default();
        port.is_up = false;
        port.is_silent = is_silent;
        let listeners = std::mem::take(&mut port.listeners);
        let of_it: Vec<PipeId> = state
            .pipes
            .iter()
            .filter(|(_, pipe)| pipe.from == machine)
            .map(|(&id, _)| id)
            .collect();
        for id in of_it {
            let Some(pipe) = state.pipes.get_mut(&id) else { continue };
            let back = pipe.back;
            if let Some(back) = state.pipes.get_mut(&back) {
                back.is_unread = true;
            }
            if !is_silent {
                state.end(id, End::Reset, &mut wake);
            }
        }
        drop(state);
        // Streams in it lock the network as they go.
        drop(listeners);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Moves time on, and delivers what has arrived by then.
    pub(crate) fn advance(&self, now: Nanos) {
        let mut wake = Vec::new();
        {
            let mut state = self.state.lock();
            state.now = now;
            while let Some(entry) = state.travelling.first_entry()
                && entry.key().0 <= now
            {
                let (from, to, cargo) = entry.remove();
                if state.links.get(&(from, to)).is_some_and(|link| link.swallows) {
                    state.links.entry((from, to)).or_default().held.push(cargo);
                } else {
                    state.deliver((from, to), cargo, &mut wake, self);
                }
            }
        }
        wake.into_iter().for_each(Waker::wake);
    }

    /// Whether something has come for the machine since the last time.
    pub(crate) fn take_mail(&self, machine: MachineId) -> bool {
        self.state.lock().mail.remove(&machine)
    }

    /// Changes the condition of a link. What was held arrives, before everything that was sent
    /// after it, unless the connection is found to have died meanwhile: chance decides.
    pub(crate) fn set_link(&self, from: MachineId, to: MachineId, swallows: bool, slow: Duration) {
        let mut wake = Vec::new();
        let mut state = self.state.lock();
        let link = state.links.entry((from, to)).or_default();
        link.slow = slow;
        link.swallows = swallows;
        let held = if swallows { Vec::new() } else { std::mem::take(&mut link.held) };
        let mut dead = BTreeMap::new();
        for cargo in held {
            if let Cargo::Bytes(pipe, _) | Cargo::End(pipe, _) = cargo {
                let chance = &mut state.chance;
                if *dead.entry(pipe).or_insert_with(|| chance.one_in(2)) {
                    state.kill(pipe, &mut wake);
                    continue;
                }
            }
            // With a pace of its own it would be overtaken by what is on its way already.
            let now = state.now;
            state.put(now, from, to, cargo);
        }
        drop(state);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Kills every connection between two machines; both sides hear of it.
    pub(crate) fn reset(&self, one: MachineId, other: MachineId) {
        let mut wake = Vec::new();
        let mut state = self.state.lock();
        let between: Vec<PipeId> = state
            .pipes
            .iter()
            .filter(|(_, pipe)| (pipe.from, pipe.to) == (one, other))
            .map(|(&id, _)| id)
            .collect();
        for id in between {
            state.kill(id, &mut wake);
        }
        drop(state);
        wake.into_iter().for_each(Waker::wake);
    }

    /// With whom a machine has its newest connection.
    pub(crate) fn reached_by(&self, machine: MachineId) -> Option<MachineId> {
        let state = self.state.lock();
        let mut open = state.pipes.values().rev().filter(|pipe| pipe.end.is_none());
        open.find(|pipe| pipe.from == machine).map(|pipe| pipe.to)
    }

    /// Every link is whole and fast.
    pub(crate) fn heal(&self) {
        let links: Vec<_> = self.state.lock().links.keys().copied().collect();
        for (from, to) in links {
            self.set_link(from, to, false, Duration::ZERO);
        }
    }

    /// Bytes delivered so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.state.lock().delivered
    }
}

impl State {
    /// Puts something on its way. `pipe` keeps its order.
    fn send(&mut self, from: MachineId, to: MachineId, cargo: Cargo, pipe: Option<PipeId>) {
        let slow = self.links.get(&(from, to)).map_or(Duration::ZERO, |link| link.slow);
        let usual = if from == to { 0 } else { MILLI / 2 + self.chance.below(2 * MILLI) };
        // Now and then a packet is lost, and repeated after a while.
        let lost = if from != to && self.chance.one_in(500) { 200 * MILLI } else { 0 };
        let extra = self.chance.below(slow.as_nanos() as u64 + 1) + slow.as_nanos() as u64 / 2;
        let mut arrival = self.now + usual + lost + extra;
        if let Some(pipe) = pipe.and_then(|id| self.pipes.get_mut(&id)) {
            arrival = arrival.max(pipe.last_arrival);
            pipe.last_arrival = arrival;
        }
        self.put(arrival, from, to, cargo);
    }

    /// Has something arrive at `arrival`, behind what arrives then already.
    fn put(&mut self, arrival: Nanos, from: MachineId, to: MachineId, cargo: Cargo) {
        self.sequence += 1;
        self.travelling.insert((arrival, self.sequence), (from, to, cargo));
    }

    /// A connection, named by one of its pipes, is dead from now on, and both sides hear of it.
    fn kill(&mut self, id: PipeId, wake: &mut Vec<Waker>) {
        let Some(back) = self.pipes.get(&id).map(|pipe| pipe.back) else { return };
        for id in [id, back] {
            let Some(pipe) = self.pipes.get_mut(&id) else { continue };
            pipe.end = Some(End::Reset);
            wake.extend(pipe.reader.take());
            wake.extend(pipe.writer.take());
            self.mail.insert(pipe.to);
        }
    }

    /// The writer of a pipe ends it: its reader hears of it when that arrives.
    fn end(&mut self, id: PipeId, end: End, wake: &mut Vec<Waker>) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        wake.extend(pipe.writer.take());
        let (from, to) = (pipe.from, pipe.to);
        self.send(from, to, Cargo::End(id, end), Some(id));
    }

    fn deliver(
        &mut self,
        (from, to): (MachineId, MachineId),
        cargo: Cargo,
        wake: &mut Vec<Waker>,
        net: &Net,
    ) {
        if self.machines.get(&to).is_some_and(|machine| machine.is_silent) {
            return;
        }
        self.mail.insert(to);
        match cargo {
            Cargo::Bytes(id, bytes) => {
                let Some(pipe) = self.pipes.get_mut(&id) else { return };
                pipe.on_the_way = pipe.on_the_way.saturating_sub(bytes.len());
                if pipe.is_unread {
                    let back = pipe.back;
                    return self.end(back, End::Reset, wake);
                }
                if pipe.end.is_none() {
                    self.delivered += bytes.len() as u64;
                    pipe.inbox.extend(bytes);
                    wake.extend(pipe.reader.take());
                }
            }
            Cargo::End(id, end) => {
                let Some(pipe) = self.pipes.get_mut(&id) else { return };
                pipe.end = Some(pipe.end.unwrap_or(end));
                wake.extend(pipe.reader.take());
                if end == End::Reset {
                    let back = pipe.back;
                    if let Some(back) = self.pipes.get_mut(&back) {
                        back.end = Some(End::Reset);
                        wake.extend(back.writer.take());
                    }
                }
            }
            Cargo::Connect { port, there, caller } => {
                let machine = self.machines.entry(to).or_default();
                let back = self.pipes.get(&there).map_or(0, |pipe| pipe.back);
                let life = machine.life;
                let backlog = machine.listeners.get_mut(&port).filter(|_| machine.is_up);
                let is_accepted = backlog.is_some();
                if let Some(backlog) = backlog {
                    let stream =
                        Stream { net: net.clone(), machine: to, life, read: there, write: back };
                    backlog.waiting.push_back((stream, format!("machine {from}")));
                    wake.extend(backlog.waker.take());
                }
                self.send(to, from, Cargo::Answer { caller, is_accepted }, Some(back));
            }
            Cargo::Answer { caller, is_accepted } => {
                let mut answer = caller.answer.lock();
                answer.0 = Some(is_accepted);
                wake.extend(answer.1.take());
            }
        }
    }

    /// Forgets pipes that nobody has an end of.
    fn forget(&mut self, id: PipeId) {
        let Some(pipe) = self.pipes.get(&id) else { return };
        let back = pipe.back;
        let is_over = |pipe: Option<&Pipe>| pipe.is_none_or(|pipe| pipe.is_unread);
        if is_over(self.pipes.get(&id)) && is_over(self.pipes.get(&back)) {
            self.pipes.remove(&id);
            self.pipes.remove(&back);
        }
    }
}

/// The sockets of one process.
#[derive(Clone)]
pub(crate) struct Sockets {
    net: Net,
    machine: MachineId,
    life: u64,
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sockets of machine {}", self.machine)
    }
}

impl Sockets {
    /// Connects to `host` at `port`.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> io::Result<Stream> {
        let caller = Arc::new(Call::default());
        let stream = {
            let mut state = self.net.state.lock();
            let Some(&to) = state.names.get(host) else {
                return Err(io::Error::new(io::ErrorKind::NotFound, format!("no host {host}")));
            };
            let (there, back) = (state.next_pipe, state.next_pipe + 1);
            state.next_pipe += 2;
            let from = self.machine;
            state.pipes.insert(there, Pipe::new(from, to, back));
            state.pipes.insert(back, Pipe::new(to, from, there));
            let cargo = Cargo::Connect { port, there, caller: Arc::clone(&caller) };
            state.send(from, to, cargo, Some(there));
            let net = self.net.clone();
            Stream { net, machine: from, life: self.life, read: back, write: there }
        };
        let answered = std::future::poll_fn(|cx| {
            let mut answer = caller.answer.lock();
            match answer.0 {
                Some(is_accepted) => Poll::Ready(is_accepted),
                None => {
                    answer.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        });
        if answered.await { Ok(stream) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    /// Listens on a port of this machine.
    pub(crate) fn bind(&self, port: u16) -> io::Result<Accept> {
        let mut state = self.net.state.lock();
        let machine = state.machines.entry(self.machine).or_default();
        if machine.life != self.life || machine.listeners.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        machine.listeners.insert(port, Backlog::default());
        Ok(Accept { sockets: self.clone(), port })
    }
}

/// A listener.
pub(crate) struct Accept {
    sockets: Sockets,
    port: u16,
}

impl Accept {
    /// The next connection, and who it is from.
    pub(crate) async fn next(&mut self) -> io::Result<(Stream, String)> {
        std::future::poll_fn(|cx| {
            let mut state = self.sockets.net.state.lock();
            let machine = state.machines.entry(self.sockets.machine).or_default();
            let Some(backlog) = machine.listeners.get_mut(&self.port) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if let Some(came) = backlog.waiting.pop_front() {
                return Poll::Ready(Ok(came));
            }
            backlog.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Accept {
    fn drop(&mut self) {
        let backlog = {
            let mut state = self.sockets.net.state.lock();
            let life = self.sockets.life;
            let machine = state.machines.entry(self.sockets.machine).or_default();
            if machine.life == life { machine.listeners.remove(&self.port) } else { None }
        };
        // Streams in it lock the network as they go.
        drop(backlog);
    }
}

/// One end of a connection.
pub(crate) struct Stream {
    net: Net,
    machine: MachineId,
    life: u64,
    read: PipeId,
    write: PipeId,
}

impl Pipe {
    fn new(from: MachineId, to: MachineId, back: PipeId) -> Self {
        Self {
            from,
            to,
            back,
            inbox: VecDeque::new(),
            on_the_way: 0,
            last_arrival: 0,
            end: None,
            is_unread: false,
            reader: None,
            writer: None,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.net.state.lock();
        let Some(pipe) = state.pipes.get_mut(&self.read) else { return Poll::Ready(Ok(())) };
        if pipe.end == Some(End::Reset) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if pipe.inbox.is_empty() {
            if pipe.end.is_some() {
                return Poll::Ready(Ok(()));
            }
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = pipe.inbox.len().min(buffer.remaining());
        let (front, back) = pipe.inbox.as_slices();
        let from_front = front.len().min(count);
        buffer.put_slice(&front[..from_front]);
        buffer.put_slice(&back[..count - from_front]);
        pipe.inbox.drain(..count);
        let (writer, from) = (pipe.writer.take(), pipe.from);
        if writer.is_some() {
            state.mail.insert(from);
        }
        drop(state);
        writer.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.net.state.lock();
        let Some(pipe) = state.pipes.get_mut(&self.write) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if pipe.end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let room = WINDOW_BYTES.saturating_sub(pipe.on_the_way + pipe.inbox.len());
        if room == 0 {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        pipe.on_the_way += count;
        let (from, to) = (pipe.from, pipe.to);
        let cargo = Cargo::Bytes(self.write, bytes[..count].to_vec());
        state.send(from, to, cargo, Some(self.write));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wake = Vec::new();
        let mut state = self.net.state.lock();
        state.end(self.write, End::Closed, &mut wake);
        drop(state);
        wake.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    /// Hangs up, unless the process is dead: then whoever killed it has said what there is to say.
    fn drop(&mut self) {
        let mut wake = Vec::new();
        let mut state = self.net.state.lock();
        let is_alive = state
            .machines
            .get(&self.machine)
            .is_some_and(|machine| machine.is_up && machine.life == self.life);
        if let Some(pipe) = state.pipes.get_mut(&self.read) {
            pipe.is_unread = true;
            pipe.inbox.clear();
        }
        if is_alive {
            state.end(self.write, End::Closed, &mut wake);
        }
        state.forget(self.read);
        drop(state);
        wake.into_iter().for_each(Waker::wake);
    }
}

/// The peers' side of a process's sockets.
pub(crate) struct Peers(pub(crate) Sockets);

impl Transport for Peers {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move {
            let (host, port) = split(address)?;
            let stream = self.0.connect(host, port).await?;
            Ok(Box::new(stream) as Box<dyn PeerStream>)
        })
    }

    fn listen<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let (_, port) = split(address)?;
            let accept = self.0.bind(port)?;
            let address = address.to_owned();
            Ok(Box::new(PeerListener { accept, address }) as Box<dyn TransportListener>)
        })
    }
}

fn split(address: &str) -> io::Result<(&str, u16)> {
    let parts = address.split_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    parts.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

struct PeerListener {
    accept: Accept,
    address: String,
}

impl TransportListener for PeerListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Box<dyn PeerStream>, String)>> {
        Box::pin(async move {
            let (stream, from) = self.accept.next().await?;
            Ok((Box::new(stream) as Box<dyn PeerStream>, from))
        })
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: MachineId = 1;
    const SERVER: MachineId = 2;

    /// What is read is what was written, from the first byte on without a gap, whatever becomes
    /// of the link: the connection lasts and all of it comes, or it dies somewhere.
    #[test]
    fn a_stream_keeps_its_bytes_in_order() {
        let (mut whole, mut broken) = (0, 0);
        for seed in 0..500 {
            let mut chance = Chance::new(seed);
            let net = Net::new(chance.fork());
            let (mut client, mut server) = connected(&net);
            let (mut written, mut read) = (Vec::new(), Vec::new());
            let mut is_dead = false;
            for step in 1..=200_u64 {
                match chance.below(32) {
                    0 => net.set_link(CLIENT, SERVER, true, Duration::ZERO),
                    1 => net.set_link(CLIENT, SERVER, false, Duration::from_millis(5)),
                    2 | 3 => net.set_link(CLIENT, SERVER, false, Duration::ZERO),
                    _ => {
                        let bytes = [written.len() as u8, step as u8, 7];
                        let wrote = now(Pin::new(&mut client).poll_write(&mut cx(), &bytes));
                        written.extend(&bytes[..wrote.and_then(Result::ok).unwrap_or(0)]);
                    }
                }
                net.advance(SECOND + step * MILLI / 2);
                is_dead |= !read_all(&mut server, &mut read);
            }
            net.heal();
            net.advance(SECOND * 10);
            is_dead |= !read_all(&mut server, &mut read);
            assert!(written.starts_with(&read), "seed {seed}: {read:?} of {written:?}");
            assert!(is_dead || read == written, "seed {seed}: {read:?} of {written:?}");
            *if is_dead { &mut broken } else { &mut whole } += 1;
        }
        assert!(whole > 50 && broken > 50, "{whole} whole, {broken} broken");
    }

    #[test]
    fn both_sides_of_a_dead_connection_hear_of_it() {
        let net = Net::new(Chance::new(1));
        let (mut client, mut server) = connected(&net);
        assert!(read_all(&mut client, &mut Vec::new()) && read_all(&mut server, &mut Vec::new()));
        while net.take_mail(CLIENT) || net.take_mail(SERVER) {}
        net.reset(CLIENT, SERVER);
        assert!(net.take_mail(CLIENT) && net.take_mail(SERVER));
        assert!(!read_all(&mut client, &mut Vec::new()));
        assert!(!read_all(&mut server, &mut Vec::new()));
    }

    const SECOND: Nanos = 1_000 * MILLI;

    fn connected(net: &Net) -> (Stream, Stream) {
        net.name(CLIENT, "client");
        net.name(SERVER, "server");
        let (client, server) = (net.boot(CLIENT), net.boot(SERVER));
        let mut accept = server.bind(1).unwrap();
        let mut connecting = std::pin::pin!(client.connect("server", 1));
        assert!(connecting.as_mut().poll(&mut cx()).is_pending());
        net.advance(SECOND / 2);
        let accepted = now(std::pin::pin!(accept.next()).poll(&mut cx()));
        net.advance(SECOND);
        let connected = now(connecting.as_mut().poll(&mut cx()));
        (connected.unwrap().unwrap(), accepted.unwrap().unwrap().0)
    }

    /// Reads what has come; false if the connection is dead.
    fn read_all(stream: &mut Stream, into: &mut Vec<u8>) -> bool {
        loop {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(&mut cx(), &mut buffer) {
                Poll::Ready(Ok(())) => into.extend(buffer.filled()),
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => return true,
            }
        }
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn now<T>(poll: Poll<T>) -> Option<T> {
        match poll {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}
