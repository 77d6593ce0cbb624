//! The same random steps for two servers; everything that comes back must be equal.
//!
//! [`steps`] says what can be asked, [`play`] asks it of one server and writes down what comes back,
//! with what differs between any two servers masked: times, passwords, session ids (by whose they
//! are), and zxids, of which only the order counts. Lists that ZooKeeper takes from hash tables are
//! sorted. A difference is cut down by proptest to the steps that matter.

mod play;
mod steps;

use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::Flags;
use crate::servers::Servers;
use play::{Trace, play};
use steps::Step;

pub fn run(flags: &Flags) -> Result<bool, String> {
    let reference = std::env::var("REFERENCE_CMD").map_err(|_| "REFERENCE_CMD names no server")?;
    let command = std::env::var("ZK_SERVER_CMD").map_err(|_| "ZK_SERVER_CMD names no server")?;
    let cases = flags.number("cases", 200)? as u32;
    let most = flags.number("steps", 30)? as usize;
    let seed = flags.number("seed", 1)?;
    let limit = flags.number("seconds", 0)?;
    let left = Servers::start(&reference, 1, "reference")?;
    let right = Servers::start(&command, 1, "tested")?;
    let ports = (left.ports()[0], right.ports()[0]);

    let begin = Instant::now();
    let mut rng = [0; 32];
    rng[..8].copy_from_slice(&seed.to_le_bytes());
    let config =
        Config { cases, max_shrink_iters: 300, failure_persistence: None, ..Config::default() };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &rng));
    let count = std::cell::Cell::new(0_u64);
    let asked = std::cell::Cell::new(0_u64);
    let once = std::cell::Cell::new(0_u64);
    // The last play that showed a difference: shrinking ends with the smallest.
    let last = std::cell::RefCell::new(None);
    let without = flags.texts("without");
    let result = runner.run(&steps::script(most), |mut script| {
        script.retain(|step| {
            let told = format!("{step:?}");
            !without.iter().any(|text| told.contains(text))
        });
        if limit > 0 && begin.elapsed() > Duration::from_secs(limit) {
            return Ok(());
        }
        count.set(count.get() + 1);
        asked.set(asked.get() + script.len() as u64);
        let traces = both(ports, count.get(), &script);
        match traces.0.parts_from(&traces.1) {
            None => Ok(()),
            // Neither server is in a hurry on a busy machine: what doesn't show again is counted.
            Some(_) if agrees(ports, &count, &script) => {
                once.set(once.get() + 1);
                Ok(())
            }
            Some(at) => {
                last.replace(Some((script, traces, at)));
                Err(TestCaseError::fail(format!("step {at}")))
            }
        }
    });
    let (count, asked, once) = (count.get(), asked.get(), once.get());
    let mut line = format!("{count} scripts, {asked} steps, seed {seed}");
    if once > 0 {
        line += &format!(", {once} differences that didn't show again");
    }
    match result {
        Ok(()) => {
            println!("{line}: no difference\nPASSED {count} FAILED 0 SKIPPED 0");
            Ok(true)
        }
        Err(TestError::Fail(..)) => {
            if let Some((script, traces, at)) = last.take() {
                tell(&script, &traces, at);
            }
            println!("{line}\nPASSED {} FAILED 1 SKIPPED 0", count.saturating_sub(1));
            Ok(false)
        }
        Err(TestError::Abort(reason)) => Err(reason.to_string()),
    }
}

fn agrees(ports: (u16, u16), count: &std::cell::Cell<u64>, script: &[Step]) -> bool {
    count.set(count.get() + 1);
    let (left, right) = both(ports, count.get(), script);
    left.parts_from(&right).is_none()
}

fn both(ports: (u16, u16), number: u64, script: &[Step]) -> (Trace, Trace) {
    let root = format!("/case{number}");
    std::thread::scope(|scope| {
        let left = scope.spawn(|| play(ports.0, &root, script));
        let right = play(ports.1, &root, script);
        (left.join().expect("the player doesn't panic"), right)
    })
}

fn tell(script: &[Step], (left, right): &(Trace, Trace), at: usize) {
    println!("the smallest script found that shows a difference, at step {at}:");
    for (index, step) in script.iter().enumerate().take(at + 1) {
        println!("{index:>3}. {step:?}");
        if left.of_step(index) == right.of_step(index) {
            println!("      both:      {}", left.of_step(index));
        } else {
            println!("      reference: {}", left.of_step(index));
            println!("      tested:    {}", right.of_step(index));
        }
    }
    if left.of_step(at) == right.of_step(at) {
        println!("the zxids, whose order is another one:");
        for index in 0..=at {
            println!("{index:>3}. {:x?} {:x?}", left.zxids(index), right.zxids(index));
        }
    }
}
