//! A user of their own for each test: a home for the embedded node, and processes that end with
//! the test.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

/// The program under test.
pub(crate) const LOCKKEEPER: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// Longer than anything in these tests takes on a busy machine: a test fails rather than hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A user with a state directory of their own, and thus with a node of their own.
pub(crate) struct Home {
    directory: TempDir,
}

/// What a process said, and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: killed by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A process under way; killed at the latest with the test.
pub(crate) struct Running {
    child: Child,
    said: PathBuf,
}

impl Home {
    pub(crate) fn new() -> Self {
        heed_signals();
        Self { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    /// A file of this test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What is in a file of this test; nothing if it isn't there.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Makes an empty file, which a shell script may wait for.
    pub(crate) fn touch(&self, name: &str) {
        File::create(self.path(name)).expect("a file");
    }

    /// The program, run as this user, in the test's directory.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LOCKKEEPER);
        command
            .args(arguments)
            .env("XDG_STATE_HOME", self.directory.path())
            .env_remove("LOCKKEEPER_URL")
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program on the embedded node to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        let mut command = self.command(arguments);
        Ended::run(command.arg("--local"))
    }

    /// Runs a command under the lock `x` to its end; `options` stand before the command.
    pub(crate) fn lock(&self, options: &[&str], command: &[&str]) -> Ended {
        Ended::run(&mut self.command(&under_lock("lock", options, command)))
    }

    /// Starts a shell script under the lock `x`.
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Running {
        self.start_as("lock", options, script)
    }

    /// The same, with another command than `lock`.
    pub(crate) fn start_as(&self, command: &str, options: &[&str], script: &str) -> Running {
        self.spawn(&under_lock(command, options, &["sh", "-c", script]))
    }

    /// Starts the program.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Running {
        self.spawn_command(&mut self.command(arguments))
    }

    /// Starts the program as it was prepared.
    pub(crate) fn spawn_command(&self, command: &mut Command) -> Running {
        let said = tempfile::NamedTempFile::new_in(self.directory.path()).expect("a file");
        let (said, path) = said.keep().expect("a file");
        let child = command
            .stdout(said.try_clone().expect("a file"))
            .stderr(said)
            .spawn()
            .expect("the program starts");
        Running { child, said: path }
    }

    /// `who x`, for programs.
    pub(crate) fn who(&self) -> Value {
        let ended = self.run(&["who", "x", "-o", "json"]);
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("no JSON: {ended:?}"))
    }

    /// Waits until somebody holds `x`, and returns the token.
    pub(crate) fn wait_for_holder(&self) -> u64 {
        wait_for("somebody holds it", || self.who()["holders"][0]["token"].as_u64())
    }

    /// Waits until `count` wait for `x`.
    pub(crate) fn wait_for_waiters(&self, count: u64) {
        wait_for("somebody waits", || (self.who()["waiter_count"] == count).then_some(()));
    }

    /// Waits until nobody holds `x` or waits for it.
    pub(crate) fn wait_until_free(&self) {
        wait_for("it is free", || {
            let lock = self.who();
            (lock["holder_count"] == 0 && lock["waiter_count"] == 0).then_some(())
        });
    }

    /// Waits for a number (a process id, most often) in a file.
    pub(crate) fn wait_for_number(&self, name: &str) -> i32 {
        wait_for(&format!("a number in {name}"), || {
            let text = self.read(name);
            text.ends_with('\n').then(|| text.trim().parse().ok()).flatten()
        })
    }

    /// The embedded node's directory.
    pub(crate) fn node_directory(&self) -> Option<PathBuf> {
        fs::read_dir(self.path("lockkeeper")).ok()?.flatten().next().map(|entry| entry.path())
    }

    /// The embedded node's process, if it lives.
    pub(crate) fn node(&self) -> Option<i32> {
        let text = fs::read_to_string(self.node_directory()?.join("running")).ok()?;
        let pid = text.split_whitespace().next()?.parse().ok()?;
        is_this_program(pid).then_some(pid)
    }

    /// Waits for another node than `old`.
    pub(crate) fn wait_for_another_node(&self, old: i32) -> i32 {
        wait_for("another node", || self.node().filter(|pid| *pid != old))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(pid) = self.node() {
            kill(pid, Signal::KILL);
        }
    }
}

impl Ended {
    fn of(output: &std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs a command to its end.
    pub(crate) fn run(command: &mut Command) -> Self {
        Self::of(&command.output().expect("the program runs"))
    }

    /// Asserts the exit code, and that stderr has each of `parts`.
    pub(crate) fn assert(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
        }
    }
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// What it has said so far, on stdout and stderr.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Waits for its end: the exit code, or `None` if a signal killed it.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        wait_for("the program ends", || self.child.try_wait().expect("its status")).code()
    }

    /// Waits for its end, and asserts the exit code and what it said.
    pub(crate) fn assert(&mut self, code: i32, parts: &[&str]) {
        let ended = self.wait();
        let said = self.said();
        assert_eq!(ended, Some(code), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said:?}");
        }
    }

    /// The process id of its guardian.
    pub(crate) fn guardian(&self) -> i32 {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        wait_for("the guardian", || {
            let children = fs::read_to_string(&path).ok()?;
            children.split_whitespace().map(|pid| pid.parse().expect("a pid")).find(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.starts_with(b"lockkeeper-guardian")
            })
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- process {} said\n{}", self.pid(), self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has what is started from now on heed the signals that this process was started to ignore, as a
/// shell's background jobs and `nohup` are: the program keeps to that, and tests send them. A
/// signal that is caught here is a new program's own again.
fn heed_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").expect("the status of this process");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
        let ignored = u64::from_str_radix(mask.trim(), 16).expect("a mask is a number");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let _inside = runtime.enter();
        for kind in [SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup()] {
            if ignored & (1 << (kind.as_raw_value() - 1)) != 0 {
                // It stays caught when its stream is gone.
                drop(signal(kind).expect("the signal can be caught"));
            }
        }
    });
}

fn under_lock<'a>(name: &'a str, options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&[name, "x", "--local"], options, &["--"], command].concat()
}

/// Sends a signal to a process.
pub(crate) fn kill(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("a process id");
    // It may have ended a moment ago.
    let _ = kill_process(pid, signal);
}

/// Whether a process lives: one that is dead, but not yet reaped, doesn't.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state stands behind the name, which is in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits until a process is gone.
pub(crate) fn wait_until_dead(pid: i32) {
    wait_for(&format!("process {pid} ends"), || (!lives(pid)).then_some(()));
}

fn is_this_program(pid: i32) -> bool {
    let inode = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    let running = inode(Path::new(&format!("/proc/{pid}/exe")));
    lives(pid) && running.is_some() && running == inode(Path::new(LOCKKEEPER))
}

/// Asks `condition` until it says something, and fails after [`PATIENCE`] with `what` was wanted.
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = condition() {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
