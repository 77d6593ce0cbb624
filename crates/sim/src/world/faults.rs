//! What goes wrong in a world, and when.
//!
//! One fault after the other begins after a pause that chance decides, and most of them end after
//! another one; several may be under way at a time. Each is of a kind that has a name, by which it
//! is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_node::{DiskStep, NodeId};

use super::network::MachineId;
use super::process::Condition;
use super::{Counts, MILLI, NODES_MAX, SECOND, World, server};
use crate::chance::Chance;
use crate::{History, Nanos, Seen};

/// The errors of a disk, as the system numbers them.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The schedule.
pub(crate) struct Faults {
    chance: Chance,
    next: Nanos,
    /// How long the pauses between two faults are at most in this world.
    pause_max: Nanos,
    /// What is to be mended, and when.
    ends: BTreeMap<(Nanos, u64), Mend>,
    begun: u64,
    counts: BTreeMap<&'static str, u64>,
    /// Members that were to be removed: an id is never used again.
    removed: BTreeSet<NodeId>,
}

/// How a fault ends.
#[derive(Clone, Debug)]
enum Mend {
    /// Then the client that heard late hears nothing, or stands still.
    LateNews(MachineId),
    Links(Vec<(MachineId, MachineId)>),
    Stall(NodeId),
    Room(NodeId),
}

/// Every kind of fault, and how often it comes compared with the others.
const KINDS: [(&str, u64); 22] = [
    ("kill-node", 10),
    ("power-loss", 8),
    ("power-loss-everywhere", 2),
    ("stop-node", 4),
    ("pause-node", 8),
    ("swallow-one-way", 8),
    ("swallow-link", 6),
    ("isolate", 8),
    ("split", 4),
    ("split-leader", 8),
    ("reset", 6),
    ("slow-link", 6),
    ("slow-disk", 5),
    ("stuck-disk", 3),
    ("failing-disk", 3),
    ("full-disk", 4),
    ("pause-client", 8),
    ("late-news", 6),
    ("kill-client", 5),
    ("clock-jump", 4),
    ("transfer", 5),
    ("snapshot", 5),
];

/// One kind more where there is a client that only reads.
const PEERS_ONE_WAY: (&str, u64) = ("peers-one-way", 30);

impl Faults {
    pub(crate) fn new(mut chance: Chance) -> Self {
        let pause_max = *chance.pick(&[500, 1_500, 4_000, 10_000]) * MILLI;
        // The cluster comes into being first.
        let next = 2 * SECOND + chance.below(2 * SECOND);
        Self {
            chance,
            next,
            pause_max,
            ends: BTreeMap::new(),
            begun: 0,
            counts: BTreeMap::new(),
            removed: BTreeSet::new(),
        }
    }

    pub(crate) fn end_all(&mut self) {
        self.ends.clear();
    }

    fn until(&mut self, at: Nanos, mend: Mend) {
        self.begun += 1;
        self.ends.insert((at, self.begun), mend);
    }

    pub(super) fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    /// What happened, in numbers.
    pub(crate) fn counts(&self, history: &History, simulated: Nanos) -> Counts {
        let count = |is: fn(&Seen) -> bool| {
            history.seen.iter().filter(|entry| is(&entry.seen)).count() as u64
        };
        let terms: BTreeSet<u64> = history.leaders.iter().map(|leader| leader.term).collect();
        Counts {
            simulated: Duration::from_nanos(simulated),
            faults: self.counts.clone(),
            held: count(|seen| matches!(seen, Seen::Held { .. })),
            lost: count(|seen| matches!(seen, Seen::Lost { .. })),
            entries: history.commits.iter().map(|commit| commit.index).max().unwrap_or(0),
            terms: terms.len() as u64,
        }
    }
}

impl World {
    /// Begins and ends what is due.
    pub(super) fn trouble(&mut self) {
        while let Some(entry) = self.faults.ends.first_entry()
            && entry.key().0 <= self.now
        {
            let mend = entry.remove();
            self.mend(&mend);
        }
        if self.now < self.faults.next {
            return;
        }
        let pause_max = self.faults.pause_max;
        self.faults.next = self.now + self.faults.chance.below(pause_max);
        let has_reader = self.clients.iter().any(|client| client.only_reads);
        let kinds = KINDS.into_iter().chain(has_reader.then_some(PEERS_ONE_WAY));
        let all: u64 = kinds.clone().map(|(_, weight)| weight).sum::<u64>() + MEMBERSHIP_WEIGHT;
        let mut drawn = self.faults.chance.below(all);
        for (kind, weight) in kinds {
            if drawn < weight {
                return self.begin(kind);
            }
            drawn -= weight;
        }
        self.change_members();
    }

    fn mend(&mut self, mend: &Mend) {
        self.recorder.note(self.now, &format!("ends: {mend:?}"));
        match mend {
            Mend::LateNews(client) => {
                let until = self.now + self.faults.chance.between(1_000, 5_000) * MILLI;
                let links = self.links_of(*client);
                let is_cut_off = self.faults.chance.one_in(2);
                for &(from, to) in &links {
                    self.net.set_link(from, to, is_cut_off, Duration::ZERO);
                }
                if is_cut_off {
                    self.faults.until(until, Mend::Links(links));
                } else {
                    self.pause(*client, until);
                }
            }
            Mend::Links(links) => {
                for &(from, to) in links {
                    self.net.set_link(from, to, false, Duration::ZERO);
                }
            }
            Mend::Stall(node) => self.server(*node).disk.stall(Duration::ZERO),
            Mend::Room(node) => self.server(*node).disk.leave_room(None),
        }
    }

    fn server(&mut self, node: NodeId) -> &mut server::Server {
        &mut self.servers[node as usize - 1]
    }

    /// A node that is wanted: now and then the leader on purpose.
    fn some_node(&mut self) -> NodeId {
        if self.faults.chance.one_in(3)
            && let Some(leader) = self.servers.iter().find(|server| server.leads())
        {
            return leader.node;
        }
        let wanted: Vec<NodeId> =
            self.servers.iter().filter(|s| s.is_wanted()).map(|server| server.node).collect();
        *self.faults.chance.pick(&wanted)
    }

    fn some_client(&mut self) -> MachineId {
        let index = self.faults.chance.below(self.clients.len() as u64) as usize;
        self.clients[index].machine
    }

    fn machine_of(&mut self, node: NodeId) -> MachineId {
        self.server(node).machine
    }

    /// How long a fault lasts: mostly about an election or a lease, now and then long.
    fn length(&mut self) -> Nanos {
        let most = *self.faults.chance.pick(&[200, 1_000, 1_000, 4_000, 8_000]);
        self.faults.chance.between(10, most) * MILLI
    }

    fn begin(&mut self, kind: &'static str) {
        self.faults.count(kind);
        let length = self.length();
        let at = self.now + length;
        match kind {
            "kill-node" | "power-loss" => {
                let node = self.some_node();
                self.take_down(node, kind == "power-loss", length);
            }
            "power-loss-everywhere" => {
                self.recorder.note(self.now, "power loss everywhere");
                for node in 1..=NODES_MAX as NodeId {
                    let rest = length + self.faults.chance.below(SECOND);
                    self.take_down(node, true, rest);
                }
            }
            "stop-node" => {
                let node = self.some_node();
                self.recorder.note(self.now, &format!("stop node {node}"));
                let machine = self.machine_of(node);
                let stopping = self.server(node).stopping();
                self.machines[machine].run(stopping);
            }
            "pause-node" => {
                let node = self.some_node();
                let machine = self.machine_of(node);
                self.pause(machine, at);
            }
            "pause-client" => {
                let machine = self.some_client();
                self.pause(machine, at);
            }
            "late-news" => {
                let client = self.some_client();
                let late = Duration::from_millis(self.faults.chance.between(30, 400));
                let what = format!("news for machine {client} is {late:?} late");
                self.recorder.note(self.now, &what);
                for &(from, to) in self.links_of(client).iter().filter(|link| link.1 == client) {
                    self.net.set_link(from, to, false, late);
                }
                self.faults.until(at, Mend::LateNews(client));
            }
            "kill-client" => {
                let machine = self.some_client();
                self.recorder.note(self.now, &format!("kill client on machine {machine}"));
                let is_silent = self.faults.chance.one_in(2);
                self.kill(machine, is_silent, length);
            }
            "clock-jump" => self.jump_clock(),
            "transfer" | "snapshot" => self.order(kind),
            "peers-one-way" => self.cut_peers_one_way(),
            kind if kind.ends_with("disk") => self.trouble_disk(kind, at),
            kind => self.trouble_links(kind, at),
        }
    }

    fn take_down(&mut self, node: NodeId, loses_power: bool, rest: Nanos) {
        let machine = self.machine_of(node);
        if !self.machines[machine].is_up() {
            return;
        }
        let is_silent = loses_power && self.faults.chance.one_in(2);
        self.recorder.note(
            self.now,
            &format!("node {node} dies, loses power: {loses_power}, silent: {is_silent}"),
        );
        self.kill(machine, is_silent, rest);
        if loses_power {
            self.server(node).disk.lose_power();
        }
    }

    fn pause(&mut self, machine: MachineId, until: Nanos) {
        let machine = &mut self.machines[machine];
        if machine.condition == Condition::Running {
            machine.condition = Condition::Paused { since: self.now, until };
            let what = format!("{} stands still until {until}", machine.name);
            self.recorder.note(self.now, &what);
        }
    }

    fn jump_clock(&mut self) {
        let id = self.faults.chance.below(self.machines.len() as u64) as usize;
        let far = *self.faults.chance.pick(&[1_000, 60_000, 31_536_000_000]);
        let by = self.faults.chance.below(2 * far) as i64 - far as i64;
        self.machines[id].wall_jump_ms.fetch_add(by, Ordering::Relaxed);
        self.recorder.note(self.now, &format!("the wall clock of machine {id} jumps {by} ms"));
    }

    /// An order to a node: hand leadership over, or take a snapshot.
    fn order(&mut self, kind: &str) {
        let node = self.some_node();
        let other = self.some_node();
        self.recorder.note(self.now, &format!("order to node {node}: {kind} ({other})"));
        let machine = self.machine_of(node);
        let Some(handle) = self.server(node).handle() else { return };
        let is_transfer = kind == "transfer";
        self.machines[machine].run(async move {
            // It may be refused, and the node may be anything by now.
            if is_transfer {
                let _ = handle.transfer_leadership(Some(other)).await;
            } else {
                let _ = handle.snapshot().await;
            }
        });
    }

    fn trouble_disk(&mut self, kind: &str, at: Nanos) {
        let node = self.some_node();
        self.recorder.note(self.now, &format!("{kind} at node {node}"));
        let chance = &mut self.faults.chance;
        match kind {
            "slow-disk" => {
                let stall = Duration::from_millis(chance.between(20, 400));
                self.server(node).disk.stall(stall);
                self.faults.until(at, Mend::Stall(node));
            }
            "stuck-disk" => {
                let stall = Duration::from_millis(chance.between(1_000, 7_000));
                let server = self.server(node);
                server.disk.stall(stall);
                server.may_fail = true;
                self.faults.until(at, Mend::Stall(node));
            }
            "failing-disk" => {
                let step = *chance.pick(&[DiskStep::LogWrite, DiskStep::LogSync]);
                let error = *chance.pick(&[EIO, ENOSPC]);
                let server = self.server(node);
                server.disk.fail_next(step, error);
                server.may_fail = true;
            }
            _ => {
                let free = chance.below(256 << 10);
                let server = self.server(node);
                server.disk.leave_room(Some(free));
                server.may_fail = true;
                self.faults.until(at, Mend::Room(node));
            }
        }
    }

    /// All links of a machine, in both directions.
    fn links_of(&self, machine: MachineId) -> Vec<(MachineId, MachineId)> {
        let others = (0..self.machines.len()).filter(|&other| other != machine);
        others.flat_map(|other| [(machine, other), (other, machine)]).collect()
    }

    fn trouble_links(&mut self, kind: &str, at: Nanos) {
        let node = self.some_node();
        let one = self.machine_of(node);
        let others: Vec<MachineId> =
            (0..self.machines.len()).filter(|&machine| machine != one).collect();
        let other = *self.faults.chance.pick(&others);
        self.recorder.note(self.now, &format!("{kind} at node {node}, machine {other}"));
        let links = match kind {
            "swallow-one-way" => vec![(one, other)],
            "swallow-link" | "slow-link" => vec![(one, other), (other, one)],
            "isolate" => self.links_of(one),
            "split" => self.split(),
            "split-leader" => self.split_leader(),
            _ => {
                self.net.reset(one, other);
                return;
            }
        };
        let slow = match kind {
            "slow-link" => Duration::from_millis(self.faults.chance.between(10, 400)),
            _ => Duration::ZERO,
        };
        for &(from, to) in &links {
            self.net.set_link(from, to, kind != "slow-link", slow);
        }
        self.faults.until(at, Mend::Links(links));
    }

    /// The server of a client that only reads can't be heard by the other nodes any more, or can't
    /// hear them, for longer than many a session lasts. Its clients know nothing of it.
    fn cut_peers_one_way(&mut self) {
        let reader = self.clients.iter().find(|client| client.only_reads);
        let Some(one) = reader.and_then(|client| self.net.reached_by(client.machine)) else {
            return;
        };
        if !self.servers.iter().any(|server| server.machine == one && server.is_wanted()) {
            return;
        }
        let is_mute = !self.faults.chance.one_in(3);
        let machines = self.servers.iter().map(|server| server.machine);
        let others = machines.filter(|&machine| machine != one);
        let links: Vec<_> =
            others.map(|other| if is_mute { (one, other) } else { (other, one) }).collect();
        self.recorder.note(self.now, &format!("no links for a while: {links:?}"));
        for &(from, to) in &links {
            self.net.set_link(from, to, true, Duration::ZERO);
        }
        let at = self.now + self.faults.chance.between(500, 5_000) * MILLI;
        self.faults.until(at, Mend::Links(links));
    }

    /// The links between two halves of the world.
    fn split(&mut self) -> Vec<(MachineId, MachineId)> {
        let chance = &mut self.faults.chance;
        let sides: Vec<bool> = (0..self.machines.len()).map(|_| chance.one_in(2)).collect();
        between(&sides)
    }

    /// The links between the leader with some of the clients, and all others.
    fn split_leader(&mut self) -> Vec<(MachineId, MachineId)> {
        let leader = self.servers.iter().find(|server| server.leads());
        let Some(leader) = leader.map(|server| server.machine) else { return self.split() };
        let chance = &mut self.faults.chance;
        let clients = &self.clients;
        let sides: Vec<bool> = (0..self.machines.len())
            .map(|machine| {
                let is_client = clients.iter().any(|client| client.machine == machine);
                machine == leader || (is_client && chance.one_in(2))
            })
            .collect();
        between(&sides)
    }

    /// Adds a member, or removes one that may be missed.
    fn change_members(&mut self) {
        self.faults.count("change-members");
        let wanted = self.servers.iter().filter(|server| server.is_wanted()).count();
        let spare = self
            .servers
            .iter()
            .find(|server| !server.is_wanted() && !self.faults.removed.contains(&server.node));
        let spare = spare.map(|server| server.node);
        let Some(asked) = self.servers.iter().find(|server| server.handle().is_some()) else {
            return;
        };
        let Some(handle) = asked.handle() else { return };
        let machine = asked.machine;
        if let Some(node) = spare.filter(|_| wanted <= 3 || self.faults.chance.one_in(2)) {
            self.recorder.note(self.now, &format!("node {node} is to be a member"));
            let newcomer = self.machine_of(node);
            self.server(node).want();
            self.machines[newcomer].condition = Condition::Down(self.now);
            self.machines[machine].run(async move {
                // It may not come to pass; then the machine waits for ever, which is harmless.
                let _ = handle.add_member(server::member(node)).await;
            });
            return;
        }
        if wanted <= 3 {
            return;
        }
        let node = self.some_node();
        self.recorder.note(self.now, &format!("node {node} is to be a member no more"));
        let server = self.server(node);
        let gone = server.removal();
        self.faults.removed.insert(node);
        self.machines[machine].run(async move {
            if handle.remove_member(node).await.is_ok() {
                gone();
            }
        });
    }
}

/// The links between two sides.
fn between(sides: &[bool]) -> Vec<(MachineId, MachineId)> {
    let pairs = (0..sides.len()).flat_map(|from| (0..sides.len()).map(move |to| (from, to)));
    pairs.filter(|&(from, to)| sides[from] != sides[to]).collect()
}

/// How often the members change, compared with [`KINDS`].
const MEMBERSHIP_WEIGHT: u64 = 5;
