//! The runs: the nemesis, and the loop of crashes.

use std::fs;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::dice::Dice;
use crate::faults::Fault;
use crate::proxy::{End, WORKERS, ZOOKEEPER_WORKERS};
use crate::servers::FOUNDERS;
use crate::sites::Sites;
use crate::verdict;
use crate::world::World;
use crate::zookeeper;

/// What a run is told by a variable, if it is told.
fn told(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number")))
}

/// A seed of its own for each run, unless one is given.
fn seed() -> u64 {
    let fresh = || crate::clock::now() ^ (u64::from(std::process::id()) << 40);
    let seed = told("NEMESIS_SEED").unwrap_or_else(fresh);
    println!("NEMESIS_SEED={seed}");
    seed
}

/// Worker processes: three with two sessions of two tasks each, and two with two sessions of
/// ZooKeeper's protocol.
const ALL: [End; 5] = [WORKERS, WORKERS + 1, WORKERS + 2, ZOOKEEPER_WORKERS, ZOOKEEPER_WORKERS + 1];

/// How long the run goes on after the last fault: longer than what is owed then may take.
const CALM: Duration = Duration::from_secs(15);

/// Faults that are under way at once.
const FAULTS_AT_ONCE: usize = 3;

/// Random faults under load.
pub(crate) async fn nemesis() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    let world = World::start("nemesis", &ALL, &mut dice).await;
    attack(&world, 45, &mut dice).await;
    end(&world, seed).await;
}

/// The same across three data centres, with the packets between them dropped as well.
pub(crate) async fn datacentres() {
    let sites = match Sites::new() {
        Ok(sites) => sites,
        Err(error) if std::env::var_os("CI").is_some() => {
            panic!("data centres can't be built: {error}")
        }
        Err(error) => {
            println!("NOT RUN: data centres can't be built: {error}");
            return;
        }
    };
    let seed = seed();
    let mut dice = Dice::new(seed);
    let world = World::start_in("datacentres", &ALL, Some(&sites), &mut dice).await;
    attack(&world, 20, &mut dice).await;
    end(&world, seed).await;
    world.stop_servers();
}

/// Inflicts one fault after another, for so many seconds unless a variable says otherwise.
async fn attack(world: &Arc<World>, seconds: u64, dice: &mut Dice) {
    let length = Duration::from_secs(told("NEMESIS_SECONDS").unwrap_or(seconds));
    // The workers have begun by then: faults without load show little.
    sleep(Duration::from_secs(1)).await;
    let until = Instant::now() + length;
    let mut faults = JoinSet::new();
    while Instant::now() < until {
        if faults.len() < FAULTS_AT_ONCE {
            let fault = Fault::draw(dice, world);
            faults.spawn(fault.inflict(Arc::clone(world), dice.fork()));
        }
        // Mostly one alone, now and then several together.
        let pause = if dice.chance(30) { dice.millis(0, 200) } else { dice.millis(300, 2_000) };
        sleep(pause).await;
        while let Some(ended) = faults.try_join_next() {
            ended.expect("a fault doesn't panic");
        }
    }
    while let Some(ended) = faults.join_next().await {
        ended.expect("a fault doesn't panic");
    }
}

/// One `kill -9` after another, under load.
pub(crate) async fn crash_loop() {
    let seed = seed();
    let kills = told("NEMESIS_KILLS").unwrap_or(15);
    let mut dice = Dice::new(seed);
    let world = World::start("crash-loop", &ALL, &mut dice).await;
    for kill in 1..=kills {
        sleep(dice.millis(50, 900)).await;
        let mut victims = FOUNDERS;
        dice.shuffle(&mut victims);
        // Mostly one, but a majority or all of them as well: what was acknowledged is on disk.
        let count = match dice.below(10) {
            0..=6 => 1,
            7..=8 => 2,
            _ => 3,
        };
        world.say(&format!("kill {kill} of {kills}: {:?}", &victims[..count]));
        for &victim in &victims[..count] {
            world.servers.lock().kill(victim);
            world.count("kill -9 of a server");
        }
        for &victim in &victims[..count] {
            sleep(dice.millis(0, 400)).await;
            world.servers.lock().start(victim);
        }
    }
    end(&world, seed).await;
}

/// Lets what is owed come, and judges.
pub(crate) async fn end(world: &World, seed: u64) {
    world.say("calm");
    world.calm().await;
    let stalls = stay_calm(world).await;
    world.finish();
    let znodes = zookeeper::compare_trees(world).await;
    verdict::judge(world, znodes, seed, stalls);
}

/// Lets [`CALM`] pass, and as much more as the machine itself stood still meanwhile, its processors
/// or its disk: no server can do anything about that, and so nothing is owed for as long.
async fn stay_calm(world: &World) -> Duration {
    const STALL: Duration = Duration::from_millis(500);
    const STALLS_MAX: Duration = Duration::from_secs(60);

    let probe = world.directory.join("probe");
    let mut stalls = Duration::ZERO;
    let begun = Instant::now();
    while begun.elapsed() < CALM + stalls {
        let looked = Instant::now();
        let path = probe.clone();
        let synced = tokio::task::spawn_blocking(move || {
            let mut file = fs::File::create(path)?;
            file.write_all(b"whether the disk answers")?;
            file.sync_data()
        });
        synced.await.expect("it doesn't panic").expect("the run's own directory can be written");
        sleep(Duration::from_millis(100)).await;
        if looked.elapsed() > STALL {
            stalls = (stalls + looked.elapsed()).min(STALLS_MAX);
        }
    }
    if !stalls.is_zero() {
        world.say(&format!("the machine itself stood still for {stalls:.1?} of the calm"));
    }
    stalls
}
