//! The real thing, under attack: server processes of this very binary behind proxies of ours, real
//! clients, and a nemesis that kills, stops, cuts and fills whatever it can. All that the clients
//! saw goes to the judges of `lockkeeper-sim`.
//!
//! ```text
//! cargo test -p lockkeeper-cli --test nemesis            # all runs, in their short form
//! NEMESIS_SECONDS=1800 cargo test … -- nemesis           # a long one (make chaos MINUTES=30)
//! NEMESIS_SEED=… cargo test … -- nemesis                 # the same schedule of faults again
//! cargo test … -- --judge DIRECTORY/history              # a kept history, judged again
//! ```
//!
//! It has a `main` of its own, since the workers are processes of this same program.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what a run has to tell")]

mod cases;
mod clock;
mod dice;
mod faults;
mod forged;
mod history;
mod proxy;
mod register;
mod runs;
mod servers;
mod sites;
mod verdict;
mod worker;
mod workers;
mod world;
mod zookeeper;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

type Run = fn() -> Pin<Box<dyn Future<Output = ()>>>;

/// Makes a run of an async function.
macro_rules! run {
    ($run:path) => {
        || Box::pin($run())
    };
}

/// What can be run, by name; they run one after another.
const RUNS: [(&str, Run); 18] = [
    ("nemesis", run!(runs::nemesis)),
    ("crash_loop", run!(runs::crash_loop)),
    ("datacentres", run!(runs::datacentres)),
    ("me_1_a_waiter_whose_lease_ran_out_is_passed_over", run!(cases::me_1)),
    ("me_2_candidates_that_reconnect_in_any_order_never_both_lead", run!(cases::me_2)),
    ("me_7_a_late_grant_counts_from_its_request", run!(cases::me_7)),
    ("st_2_a_try_without_an_answer_leaves_nothing", run!(cases::st_2)),
    ("st_4_a_swallowed_release_is_made_good", run!(cases::st_4)),
    ("st_5_st_6_dropped_futures_leave_nothing", run!(cases::st_5_and_st_6)),
    ("wk_1_nobody_sleeps_while_the_lock_is_free", run!(cases::wk_1)),
    ("wk_5_a_waiter_leaves_a_server_that_stands_still", run!(cases::wk_5)),
    ("fa_1_dead_waiters_cost_one_lease", run!(cases::fa_1)),
    ("se_8_what_ends_amid_restarts_is_gone_on_all_servers", run!(cases::se_8)),
    ("rc_2_a_server_that_lags_does_not_show_the_past", run!(cases::rc_2)),
    ("lc_2_an_old_leader_does_not_answer_from_the_past", run!(cases::lc_2)),
    ("lc_4_what_was_acknowledged_outlives_everybody", run!(cases::lc_4)),
    ("di_4_a_killed_first_start_is_followed_by_another", run!(cases::di_4)),
    ("op_1_a_minority_is_alive_and_not_ready", run!(cases::op_1)),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [flag] if flag == "--worker" => worker::run(),
        [flag, path] if flag == "--judge" => verdict::judge_file(Path::new(path)),
        _ => return run_all(&arguments),
    }
    ExitCode::SUCCESS
}

/// Runs what the arguments name, or everything, as the ordinary test program does.
fn run_all(arguments: &[String]) -> ExitCode {
    let names: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_exact = arguments.iter().any(|argument| argument == "--exact");
    let is_meant = |run: &str| {
        names.is_empty()
            || names.iter().any(|name| run == *name || !is_exact && run.contains(name.as_str()))
    };
    let meant = RUNS.iter().filter(|(name, _)| is_meant(name));
    if arguments.iter().any(|argument| argument == "--list") {
        meant.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        servers::KEEP.store(true, Ordering::Relaxed);
        report(panic);
    }));
    let mut failed = Vec::new();
    for (name, run) in meant {
        println!("=== {name}");
        servers::KEEP.store(false, Ordering::Relaxed);
        let ran = std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
            runtime.block_on(run());
        });
        let is_ok = ran.join().is_ok();
        println!("=== {name}: {}", if is_ok { "ok" } else { "FAILED" });
        if !is_ok {
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    ExitCode::FAILURE
}
