//! The workers as the nemesis sees them: processes that it starts, stops, kills, and hears.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use lockkeeper_sim::{Attempt, ClientId, GiveUp, Nanos, Seen};
use rustix::process::{Pid, Signal, kill_process};

use crate::clock;
use crate::history::{Recorder, of_line};
use crate::worker::Orders;

/// One worker process.
pub(crate) struct WorkerProcess {
    child: Child,
    hearing: JoinHandle<Open>,
    recorder: Recorder,
    /// Since when it has been stopped, if it is.
    paused: Option<Nanos>,
}

/// What a worker has told of that has not ended.
#[derive(Default)]
struct Open {
    clients: BTreeSet<ClientId>,
    /// Wishes, and whether they are held.
    attempts: BTreeMap<Attempt, bool>,
}

impl WorkerProcess {
    pub(crate) fn start(orders: &Orders, log: PathBuf, recorder: &Recorder) -> Self {
        let log = File::options().create(true).append(true).open(log).expect("a log file");
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .arg("--worker")
            .envs(orders.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("a worker starts");
        let said = child.stdout.take().expect("its output is a pipe");
        let own = recorder.clone();
        let hearing = std::thread::spawn(move || hear(said, &own));
        Self { child, hearing, recorder: recorder.clone(), paused: None }
    }

    pub(crate) fn pause(&mut self) {
        signal(&self.child, Signal::STOP);
        self.paused.get_or_insert_with(clock::now);
    }

    pub(crate) fn go_on(&mut self) {
        if self.paused.take().is_some() {
            signal(&self.child, Signal::CONT);
        }
    }

    /// `kill -9`. What it believed to hold ends with it, and nobody knows of its open wishes.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        let died = clock::now();
        // What was stopped has done nothing since.
        let until = self.paused.unwrap_or(died);
        let open = self.hearing.join().expect("the hearing thread doesn't panic");
        for (attempt, is_held) in open.attempts {
            self.recorder.see(
                died,
                match is_held {
                    true => Seen::Lost { attempt, since: until },
                    false => Seen::GaveUp { attempt, why: GiveUp::Unknown },
                },
            );
        }
        for client in open.clients {
            self.recorder.see(died, Seen::Ended { client });
        }
    }

    /// Lets it come to its end, in good order. Returns what is wrong with that.
    pub(crate) fn finish(mut self) -> Option<String> {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it ends");
        let open = self.hearing.join().expect("the hearing thread doesn't panic");
        if !status.success() {
            return Some(format!("a worker ended with {status}"));
        }
        let is_open = !open.attempts.is_empty() || !open.clients.is_empty();
        is_open.then(|| "a worker has left something open".to_owned())
    }

    /// It has ended although nobody asked it to.
    pub(crate) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().expect("its status")?;
        Some(format!("a worker ended with {status}"))
    }
}

fn hear(said: ChildStdout, recorder: &Recorder) -> Open {
    let mut open = Open::default();
    for line in BufReader::new(said).lines() {
        // A last line that is cut off, or none.
        let Some((at, seen)) = line.ok().as_deref().and_then(of_line) else { break };
        match &seen {
            Seen::Opened { client, .. } => drop(open.clients.insert(*client)),
            Seen::Ended { client } => drop(open.clients.remove(client)),
            Seen::Asked { attempt, .. } => drop(open.attempts.insert(*attempt, false)),
            Seen::Held { attempt, .. } => drop(open.attempts.insert(*attempt, true)),
            Seen::Releasing { attempt }
            | Seen::Lost { attempt, .. }
            | Seen::GaveUp { attempt, .. } => drop(open.attempts.remove(attempt)),
            _ => {}
        }
        recorder.see(at, seen);
    }
    open
}

/// Sends a signal to a child that hasn't been waited for.
pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process has an id");
    // It may have ended by itself; then its status tells.
    let _ = kill_process(pid, signal);
}
