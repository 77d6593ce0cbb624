//! The command and every process that comes of it.
//!
//! The command leads a process group of its own, which gets the signals. A process that leaves the
//! group stays a descendant: because the guardian is a subreaper, it becomes the guardian's own
//! child when its parent dies, and is found there. So [`Family::kill`], repeated after each death,
//! reaches everything that was ever started.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait, waitpgid,
};

/// The processes of one command. Only [`Family::reap`] notices their ends.
#[derive(Debug)]
pub(crate) struct Family {
    /// The command, and its group.
    leader: Pid,
    leader_status: Option<WaitStatus>,
    group_is_empty: bool,
    /// Nothing is left of anything, in the group or out of it.
    is_extinct: bool,
}

impl Family {
    /// Starts the command as the leader of a new process group.
    ///
    /// # Errors
    ///
    /// Those of the system, with their numbers: not found, not executable.
    pub(crate) fn start(command: &[OsString], stdin: OwnedFd) -> io::Result<Self> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let child = Command::new(program).args(arguments).stdin(stdin).process_group(0).spawn()?;
        let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = leader.ok_or_else(|| io::Error::other("the command has no process id"))?;
        Ok(Self { leader, leader_status: None, group_is_empty: false, is_extinct: false })
    }

    /// The command's process id.
    pub(crate) const fn leader(&self) -> Pid {
        self.leader
    }

    /// The command's end: its exit code, or 128 and the signal that killed it. `None` while it
    /// runs.
    pub(crate) fn leader_code(&self) -> Option<u8> {
        let status = self.leader_status?;
        let killed = || status.terminating_signal().map(|signal| 128 + signal);
        status.exit_status().or_else(killed).and_then(|code| u8::try_from(code).ok())
    }

    /// Nobody is left in the group.
    pub(crate) const fn group_is_empty(&self) -> bool {
        self.group_is_empty
    }

    /// Nobody is left at all.
    pub(crate) const fn is_extinct(&self) -> bool {
        self.is_extinct
    }

    /// Sends a signal to the group.
    pub(crate) fn signal(&self, signal: Signal) {
        // The number of an empty group may be somebody else's by now.
        if !self.group_is_empty {
            let _ = kill_process_group(self.leader, signal);
        }
    }

    /// Asks everybody to end, in the group and out of it, and wakes the stopped ones to hear it.
    pub(crate) fn ask_to_end(&self, signal: Signal) {
        for signal in [signal, Signal::CONT] {
            self.signal(signal);
            for child in children() {
                let _ = kill_process(child, signal);
            }
        }
    }

    /// Kills everybody within reach. Those that are orphaned by it come within reach then: repeat
    /// it after each [`Family::reap`].
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        for child in children() {
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// Takes note of every process that has ended.
    pub(crate) fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.note(pid, status),
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_no_child) => {
                    (self.group_is_empty, self.is_extinct) = (true, true);
                    return;
                }
            }
        }
        while !self.group_is_empty {
            match waitpgid(self.leader, WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.note(pid, status),
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_no_child_in_it) => self.group_is_empty = true,
            }
        }
    }

    fn note(&mut self, pid: Pid, status: WaitStatus) {
        if pid == self.leader {
            self.leader_status = Some(status);
        }
    }
}

/// Kills a group whose processes have fallen to this one by their parent's death, and waits for
/// the last one's end.
pub(crate) fn kill_orphaned_group(group: Pid) {
    loop {
        let _ = kill_process_group(group, Signal::KILL);
        match waitpgid(group, WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_no_child_in_it) => return,
        }
    }
}

/// This process's children. None of them can have become somebody else's process meanwhile: their
/// numbers are theirs until they are reaped.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<i32>>()
    });
    numbers.filter_map(Pid::from_raw).collect()
}
