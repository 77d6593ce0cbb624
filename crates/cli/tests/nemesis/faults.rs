//! What the nemesis does to servers, workers and the network between them.
//!
//! Each fault begins, lasts, and ends by itself; several may be under way at once. How it is done
//! is drawn from dice of its own, so that a seed means one schedule (how the processes answer it is
//! up to the machine).

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Token;
use lockkeeper_sim::Seen;
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use crate::clock;
use crate::dice::Dice;
use crate::proxy::{End, Flow, Link};
use crate::servers::{FAKE_CLOCK, FOUNDERS, SMALL_DISK, operator};
use crate::sites::{self, Cut};
use crate::worker::{EXCLUSIVE, SEMAPHORES};
use crate::workers::signal;
use crate::world::World;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillServer,
    KillAll,
    PauseServer,
    RestartServer,
    PauseWorker,
    KillWorker,
    IsolateLeader,
    IsolateServer,
    OneWay,
    OneLink,
    Bridge,
    SlowNetwork,
    NarrowNetwork,
    LostReplies,
    CutClients,
    HoldClients,
    Flapping,
    FullDisk,
    FsyncError,
    FsyncDelay,
    ClockJump,
    Transfer,
    Membership,
    Revoke,
    Force,
    SiteMute,
    SiteApart,
}

/// Each kind, how often it comes among the others, and its name in the summary.
const KINDS: [(Fault, u64, &str); 27] = [
    (Fault::KillServer, 10, "kill -9 of a server"),
    (Fault::KillAll, 2, "kill -9 of all servers"),
    (Fault::PauseServer, 8, "SIGSTOP of a server"),
    (Fault::RestartServer, 4, "graceful restart"),
    (Fault::PauseWorker, 8, "SIGSTOP of a worker"),
    (Fault::KillWorker, 6, "kill -9 of a worker"),
    (Fault::IsolateLeader, 6, "leader isolated from its peers"),
    (Fault::IsolateServer, 4, "server isolated from everybody"),
    (Fault::OneWay, 6, "flows stopped one way"),
    (Fault::OneLink, 4, "one directed link reset"),
    (Fault::Bridge, 4, "one pair of servers cut apart"),
    (Fault::SlowNetwork, 5, "delays"),
    (Fault::NarrowNetwork, 3, "limited bandwidth"),
    (Fault::LostReplies, 6, "replies swallowed"),
    (Fault::CutClients, 5, "clients' connections reset"),
    (Fault::HoldClients, 6, "client black-holed"),
    (Fault::Flapping, 3, "network flapping"),
    (Fault::FullDisk, 3, "full disk"),
    (Fault::FsyncError, 3, "fdatasync fails with EIO"),
    (Fault::FsyncDelay, 3, "fdatasync takes long"),
    (Fault::ClockJump, 4, "wall clock jumps"),
    (Fault::Transfer, 5, "leadership transferred"),
    (Fault::Membership, 4, "member added and removed"),
    (Fault::Revoke, 5, "unlock --if-token"),
    (Fault::Force, 3, "unlock --if-token --now"),
    (Fault::SiteMute, 20, "a site's packets dropped"),
    (Fault::SiteApart, 20, "packets between two sites dropped"),
];

impl Fault {
    /// One of those that can be had here.
    pub(crate) fn draw(dice: &mut Dice, world: &World) -> Self {
        let (small_disk, fake_clock) = {
            let servers = world.servers.lock();
            (servers.has_small_disk(), servers.has_fake_clock())
        };
        let can = |fault| match fault {
            Self::FullDisk => small_disk,
            Self::ClockJump => fake_clock,
            Self::Membership => !sites::are_used(),
            Self::SiteMute | Self::SiteApart => sites::are_used(),
            Self::FsyncError | Self::FsyncDelay => has_strace(),
            _ => true,
        };
        let weights = KINDS.iter().map(|&(fault, weight, _)| (fault, weight));
        let among: Vec<_> = weights.filter(|&(fault, _)| can(fault)).collect();
        let mut throw = dice.below(among.iter().map(|(_, weight)| weight).sum());
        for (fault, weight) in among {
            if throw < weight {
                return fault;
            }
            throw -= weight;
        }
        Self::KillServer
    }

    fn name(self) -> &'static str {
        KINDS.iter().find(|(fault, ..)| *fault == self).map_or("", |(_, _, name)| name)
    }

    /// Does it, and takes it back.
    pub(crate) async fn inflict(self, world: Arc<World>, mut dice: Dice) {
        let (world, dice) = (&*world, &mut dice);
        world.say(self.name());
        world.count(self.name());
        match self {
            Self::KillServer => kill_server(world, dice).await,
            Self::KillAll => kill_all(world, dice).await,
            Self::PauseServer => pause_server(world, dice).await,
            Self::RestartServer => restart_server(world, dice).await,
            Self::PauseWorker => pause_worker(world, dice).await,
            Self::KillWorker => kill_worker(world, dice).await,
            Self::IsolateLeader => isolate_leader(world, dice).await,
            Self::IsolateServer => isolate_server(world, dice).await,
            Self::OneWay => one_way(world, dice).await,
            Self::OneLink => one_link(world, dice).await,
            Self::Bridge => bridge(world, dice).await,
            Self::SlowNetwork => slow_network(world, dice).await,
            Self::NarrowNetwork => narrow_network(world, dice).await,
            Self::LostReplies => lost_replies(world, dice).await,
            Self::CutClients => cut_clients(world, dice).await,
            Self::HoldClients => hold_clients(world, dice).await,
            Self::Flapping => flapping(world, dice).await,
            Self::FullDisk => full_disk(world, dice).await,
            Self::FsyncError => fsync_error(world, dice).await,
            Self::FsyncDelay => fsync_delay(world, dice).await,
            Self::ClockJump => clock_jump(world, dice).await,
            Self::Transfer => transfer(world, dice).await,
            Self::Membership => membership(world, dice).await,
            Self::Revoke => revoke(world, dice, false).await,
            Self::Force => revoke(world, dice, true).await,
            Self::SiteMute => site_mute(world, dice).await,
            Self::SiteApart => site_apart(world, dice).await,
        }
    }
}

// ------------------------------------------------------------------ processes

/// A server that takes part from the beginning.
fn founder(dice: &mut Dice) -> End {
    *dice.pick(&FOUNDERS)
}

async fn kill_server(world: &World, dice: &mut Dice) {
    let id = founder(dice);
    world.servers.lock().kill(id);
    sleep(dice.millis(0, 4_000)).await;
    world.servers.lock().start(id);
}

async fn kill_all(world: &World, dice: &mut Dice) {
    for id in FOUNDERS {
        world.servers.lock().kill(id);
        sleep(dice.millis(0, 30)).await;
    }
    for id in FOUNDERS {
        sleep(dice.millis(0, 700)).await;
        world.servers.lock().start(id);
    }
}

async fn pause_server(world: &World, dice: &mut Dice) {
    let id = founder(dice);
    world.servers.lock().pause(id);
    sleep(if dice.chance(30) { dice.millis(3_000, 8_000) } else { dice.millis(50, 3_000) }).await;
    world.servers.lock().go_on(id);
}

async fn restart_server(world: &World, dice: &mut Dice) {
    let id = founder(dice);
    // Long enough for everything that a server does at its end; then it is no graceful one.
    let limit = Instant::now() + Duration::from_secs(15);
    while !world.servers.lock().stop(id) {
        if Instant::now() > limit {
            world.servers.lock().go_on(id);
            world.servers.lock().kill(id);
        }
        sleep(Duration::from_millis(100)).await;
    }
    sleep(dice.millis(0, 1_000)).await;
    world.servers.lock().start(id);
}

async fn pause_worker(world: &World, dice: &mut Dice) {
    let end = *dice.pick(&world.worker_ends());
    if let Some(worker) = world.workers.lock().get_mut(&end) {
        worker.pause();
    }
    // Leases are 1.5 to 3 seconds.
    sleep(dice.millis(200, 7_000)).await;
    if let Some(worker) = world.workers.lock().get_mut(&end) {
        worker.go_on();
    }
}

async fn kill_worker(world: &World, dice: &mut Dice) {
    let end = *dice.pick(&world.worker_ends());
    let worker = world.workers.lock().remove(&end);
    if let Some(worker) = worker {
        worker.kill();
        sleep(dice.millis(0, 2_000)).await;
        world.start_worker(end, dice).await;
    }
}

// ------------------------------------------------------------------ networks

/// How long trouble of the network lasts: shorter than a lease, and much longer.
fn spell(dice: &mut Dice) -> Duration {
    if dice.chance(60) { dice.millis(100, 2_000) } else { dice.millis(2_000, 9_000) }
}

/// How nothing arrives.
fn silence(dice: &mut Dice) -> Flow {
    if dice.chance(60) { Flow::Hold } else { Flow::Swallow }
}

/// Sets flows for a while.
async fn stop_flows(world: &World, pairs: &[(End, End)], flow: Flow, dice: &mut Dice) {
    pairs.iter().for_each(|&(from, to)| world.net.set_flow(from, to, flow));
    sleep(spell(dice)).await;
    pairs.iter().for_each(|&(from, to)| world.net.set_flow(from, to, Flow::Pass));
}

/// Sets links for a while.
async fn break_links(world: &World, pairs: &[(End, End)], link: Link, dice: &mut Dice) {
    pairs.iter().for_each(|&(from, to)| world.net.set_link(from, to, link));
    sleep(spell(dice)).await;
    pairs.iter().for_each(|&(from, to)| world.net.set_link(from, to, Link::Open));
}

fn both_ways(pairs: &[(End, End)]) -> Vec<(End, End)> {
    pairs.iter().flat_map(|&(from, to)| [(from, to), (to, from)]).collect()
}

/// A server and each other end of `others`.
fn around(id: End, others: &[End]) -> Vec<(End, End)> {
    others.iter().filter(|&&other| other != id).map(|&other| (id, other)).collect()
}

/// Every pair of different ends that a connection joins: two servers, or a worker and a server.
fn all_links(world: &World) -> Vec<(End, End)> {
    let servers = world.server_ids();
    let ends = servers.iter().copied().chain(world.worker_ends());
    ends.flat_map(|from| around(from, &servers)).collect()
}

fn some(mut pairs: Vec<(End, End)>, dice: &mut Dice) -> Vec<(End, End)> {
    dice.shuffle(&mut pairs);
    let count = 1 + dice.below(pairs.len() as u64);
    pairs.truncate(usize::try_from(count).unwrap_or(1));
    pairs
}

/// RC-6, OP-2: a leader that its clients reach, and nobody else.
async fn isolate_leader(world: &World, dice: &mut Dice) {
    let servers = world.server_ids();
    let Some(leader) = crate::servers::leader(&servers).await else { return };
    let pairs = both_ways(&around(leader, &servers));
    stop_flows(world, &pairs, silence(dice), dice).await;
}

async fn isolate_server(world: &World, dice: &mut Dice) {
    let id = founder(dice);
    let mut others = world.server_ids();
    others.extend(world.worker_ends());
    let pairs = both_ways(&around(id, &others));
    stop_flows(world, &pairs, silence(dice), dice).await;
}

/// PA-1: what one server sends doesn't arrive (or what is sent to it), and the other way is free.
async fn one_way(world: &World, dice: &mut Dice) {
    let id = founder(dice);
    let mut pairs = around(id, &world.server_ids());
    if dice.chance(40) {
        pairs.truncate(1);
    }
    if dice.chance(50) {
        pairs.iter_mut().for_each(|pair| *pair = (pair.1, pair.0));
    }
    stop_flows(world, &pairs, silence(dice), dice).await;
}

async fn one_link(world: &World, dice: &mut Dice) {
    let (from, to) = (founder(dice), founder(dice));
    break_links(world, &[(from, to)], Link::Cut, dice).await;
}

/// Two servers that don't reach each other, and both the third.
async fn bridge(world: &World, dice: &mut Dice) {
    let mut ids = FOUNDERS;
    dice.shuffle(&mut ids);
    let pairs = both_ways(&[(ids[0], ids[1])]);
    match dice.chance(50) {
        true => break_links(world, &pairs, Link::Cut, dice).await,
        false => stop_flows(world, &pairs, silence(dice), dice).await,
    }
}

async fn slow_network(world: &World, dice: &mut Dice) {
    let pairs = some(both_ways(&all_links(world)), dice);
    let flow = Flow::Delay(dice.millis(2, 150));
    stop_flows(world, &pairs, flow, dice).await;
}

async fn narrow_network(world: &World, dice: &mut Dice) {
    let pairs = some(both_ways(&all_links(world)), dice);
    let rate = u32::try_from(2_000 + dice.below(40_000)).unwrap_or(2_000);
    stop_flows(world, &pairs, Flow::Limit(rate), dice).await;
}

/// ST-1: requests arrive, and their answers don't.
async fn lost_replies(world: &World, dice: &mut Dice) {
    let pairs = some(all_links(world), dice);
    break_links(world, &pairs, Link::NoReplies, dice).await;
}

/// ME-2: some clients are cut off some servers.
async fn cut_clients(world: &World, dice: &mut Dice) {
    let workers = world.worker_ends();
    let pairs = workers.iter().flat_map(|&worker| around(worker, &FOUNDERS)).collect();
    break_links(world, &some(pairs, dice), Link::Cut, dice).await;
}

/// ME-4: one client is cut off everybody without a word.
async fn hold_clients(world: &World, dice: &mut Dice) {
    let worker = *dice.pick(&world.worker_ends());
    let pairs = around(worker, &FOUNDERS);
    let pairs = if dice.chance(70) { both_ways(&pairs) } else { pairs };
    stop_flows(world, &pairs, silence(dice), dice).await;
}

async fn flapping(world: &World, dice: &mut Dice) {
    let pairs = some(all_links(world), dice);
    for _ in 0..10 {
        for link in [Link::Cut, Link::Open] {
            pairs.iter().for_each(|&(from, to)| world.net.set_link(from, to, link));
            sleep(dice.millis(5, 200)).await;
        }
    }
}

/// A data centre that hears the others and isn't heard.
async fn site_mute(world: &World, dice: &mut Dice) {
    drop_packets(world, &[Cut::From(founder(dice))], dice).await;
}

/// Two data centres that don't reach each other, and both the third.
async fn site_apart(world: &World, dice: &mut Dice) {
    let mut ids = FOUNDERS;
    dice.shuffle(&mut ids);
    drop_packets(world, &[Cut::Between(ids[0], ids[1]), Cut::Between(ids[1], ids[0])], dice).await;
}

async fn drop_packets(world: &World, cuts: &[Cut], dice: &mut Dice) {
    let cut = cuts.iter().try_for_each(sites::cut);
    sleep(spell(dice)).await;
    // Another one's cut ends as well, if there is one.
    if let Err(error) = cut.and_then(|()| sites::mend()) {
        world.complain(error);
    }
}

// ------------------------------------------------------------------ disks and clocks

/// DI-2, DI-3.
async fn full_disk(world: &World, dice: &mut Dice) {
    if world.servers.lock().fill_disk(true).is_err() {
        return;
    }
    if dice.chance(30) {
        world.servers.lock().kill(SMALL_DISK);
        world.servers.lock().start(SMALL_DISK);
    }
    sleep(dice.millis(500, 5_000)).await;
    // Another one under way at the same time may have freed it.
    drop(world.servers.lock().fill_disk(false));
}

/// Whether system calls can be made to fail here.
pub(crate) fn has_strace() -> bool {
    crate::servers::run("strace", &["-e", "trace=fdatasync", "true"]).is_ok()
}

fn strace(pid: u32, injection: &str) -> Option<Child> {
    let injection = format!("inject=fdatasync:{injection}");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string()]);
    command.args(["-e", "trace=fdatasync", "-e", &injection]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

async fn end_strace(mut tracer: Child) {
    signal(&tracer, Signal::INT);
    for _ in 0..100 {
        if tracer.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    drop(tracer.kill());
    drop(tracer.wait());
}

/// DI-1: the first error is final; the server ends, and is started again.
async fn fsync_error(world: &World, dice: &mut Dice) {
    let pid = world.servers.lock().pid(founder(dice));
    let Some(tracer) = pid.and_then(|pid| strace(pid, "error=EIO:when=1")) else { return };
    sleep(dice.millis(500, 2_000)).await;
    end_strace(tracer).await;
}

async fn fsync_delay(world: &World, dice: &mut Dice) {
    let pid = world.servers.lock().pid(founder(dice));
    let delay = format!("delay_enter={}", 1_000 * (20 + dice.below(500)));
    let Some(tracer) = pid.and_then(|pid| strace(pid, &delay)) else { return };
    sleep(spell(dice)).await;
    end_strace(tracer).await;
}

/// CL-1: no decision rests on the wall clock.
async fn clock_jump(world: &World, dice: &mut Dice) {
    let offset = *dice.pick(&["+3600", "-3600", "+31536000", "-86400", "+5", "-5"]);
    for offset in [offset, "+0"] {
        if let Err(error) = world.servers.lock().set_clock(offset) {
            world.complain(format!("the clock of server {FAKE_CLOCK}: {error}"));
        }
        sleep(dice.millis(200, 4_000)).await;
    }
}

// ------------------------------------------------------------------ operators

/// What an operator's request may take while everything is broken.
const PATIENCE: Duration = Duration::from_secs(8);

async fn transfer(world: &World, dice: &mut Dice) {
    let Some(client) = operator(&FOUNDERS).await else { return };
    let to = dice.chance(50).then(|| u64::from(founder(dice)));
    // It is refused when nothing fits; that is all right.
    let done = timeout(PATIENCE, client.admin().transfer_leadership(to)).await;
    world.say(&format!("leadership transferred: {done:?}"));
}

/// MB-1 to MB-3: another server joins, and goes again, in the middle of everything.
async fn membership(world: &World, dice: &mut Dice) {
    let id = world.next_server();
    if let Err(error) = world.add_server(id).await {
        world.complain(format!("server {id} can't be started: {error}"));
        return;
    }
    let address = crate::servers::peer_proxy(id).to_string();
    for _ in 0..3 {
        let Some(client) = operator(&FOUNDERS).await else { continue };
        let asked = timeout(PATIENCE, client.admin().add_member(u64::from(id), &address)).await;
        world.say(&format!("server {id} added: {asked:?}"));
        if matches!(asked, Ok(Ok(()))) {
            break;
        }
    }
    sleep(dice.millis(0, 4_000)).await;
    if dice.chance(30) {
        world.servers.lock().kill(id);
    }
    remove(world, id).await;
}

/// Removes a member for good: it has two minutes, since nothing is right meanwhile.
async fn remove(world: &World, id: End) {
    let limit = Instant::now() + Duration::from_secs(120);
    while Instant::now() < limit {
        let Some(client) = operator(&FOUNDERS).await else { continue };
        let asked = timeout(PATIENCE, client.admin().remove_member(u64::from(id))).await;
        world.say(&format!("server {id} removed: {asked:?}"));
        let members = client.admin().cluster_status().await;
        let is_gone = members
            .is_ok_and(|cluster| cluster.members.iter().all(|member| member.node != u64::from(id)));
        if is_gone {
            world.servers.lock().forget(id);
            return;
        }
        sleep(Duration::from_millis(500)).await;
    }
    world.complain(format!("server {id} could not be removed within two minutes"));
}

async fn revoke(world: &World, dice: &mut Dice, now: bool) {
    let names: Vec<_> = EXCLUSIVE.into_iter().chain(SEMAPHORES).collect();
    let Some(client) = operator(&FOUNDERS).await else { return };
    for _ in 0..20 {
        let lock = *dice.pick(&names);
        let Ok(Ok(Some(view))) = timeout(PATIENCE, client.admin().get_lock(lock, 10)).await else {
            continue;
        };
        let Some(hold) = view.holds.first() else { continue };
        if now {
            let (lock, token) = (lock.to_owned(), Token(hold.token));
            world.recorder.see(clock::now(), Seen::Forced { lock, token });
        }
        // That hold may be gone by now, which is refused.
        let asked = timeout(PATIENCE, client.admin().revoke(lock, hold.token, now)).await;
        if matches!(asked, Ok(Ok(()))) {
            return;
        }
    }
}
