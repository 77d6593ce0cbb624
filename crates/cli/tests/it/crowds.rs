//! A crowd that loses its server at one moment, and comes to the others within a second: each has
//! a session, a lock and a connection of its own.

#![expect(clippy::print_stdout, reason = "how fast it was: see docs/performance.md")]

use std::io::{BufRead, BufReader, Write};
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use lockkeeper::clock::{Alarm, Boottime, Clock, SystemClock};
use lockkeeper::{Client, Error, Guard};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};

use crate::home::{LOCKKEEPER, PATIENCE, wait_for};
use crate::servers::Servers;

/// The leases of those who are measured, so short that a heartbeat falls into the time that is
/// looked at. Elsewhere a lease lasts as long as everything else is waited for: on a busy machine a
/// thousand clients in one thread may not run for so long that they end theirs themselves.
const MEASURED_TTL: Duration = Duration::from_secs(20);

/// Whoever needs a lock that nobody else wants gets it in this time, half of the times, whatever
/// the machine does beside: a server that stands still would show, a slow one doesn't.
const TYPICAL_MAX: Duration = Duration::from_secs(2);

/// How many clients: `LOCKKEEPER_CROWD=10` (or more) for 10,000.
fn crowd() -> usize {
    let times = std::env::var("LOCKKEEPER_CROWD").map_or(1, |crowd| crowd.parse().expect("number"));
    (1_000 * times).clamp(1, 10_000)
}

/// Every client is a file here and one in a server, which keeps 1,024 back for itself.
fn provide_files(clients: usize) {
    let wanted = clients as u64 + 2_048;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.map_or(wanted, |current| current.max(wanted));
    let raised = Rlimit { current: Some(current), ..limit };
    assert!(
        limit.maximum.is_none_or(|maximum| maximum >= wanted) && {
            limit.current.is_none_or(|current| current >= wanted)
                || setrlimit(Resource::Nofile, raised).is_ok()
        },
        "{clients} clients need {wanted} open files, and {:?} are the most that may be had here: \
         raise the hard limit (`ulimit -Hn {wanted}` as root), or make LOCKKEEPER_CROWD smaller",
        limit.maximum
    );
}

/// The system's clock with alarms of the runtime's: a timer of the system is one more file for each
/// client, and nobody suspends this machine.
#[derive(Debug)]
struct WithoutFiles;

struct RuntimesAlarm {
    at: Boottime,
    timer: Pin<Box<Sleep>>,
}

impl Clock for WithoutFiles {
    fn boottime(&self) -> Boottime {
        SystemClock.boottime()
    }

    fn wall_nanos(&self) -> u64 {
        SystemClock.wall_nanos()
    }

    fn alarm(&self) -> std::io::Result<Box<dyn Alarm>> {
        let at = Boottime::default();
        Ok(Box::new(RuntimesAlarm { at, timer: Box::pin(sleep(Duration::ZERO)) }))
    }
}

impl Alarm for RuntimesAlarm {
    fn poll_at(&mut self, at: Boottime, cx: &mut Context<'_>) -> Poll<()> {
        /// Whoever waits for longer looks at the clock in between.
        const AT_MOST: Duration = Duration::from_secs(3_600);

        loop {
            let left = at.since(SystemClock.boottime());
            if left.is_zero() {
                return Poll::Ready(());
            }
            if self.at != at || self.timer.is_elapsed() {
                self.at = at;
                let until = tokio::time::Instant::now() + left.min(AT_MOST);
                self.timer.as_mut().reset(until);
            }
            std::task::ready!(self.timer.as_mut().poll(cx));
        }
    }
}

/// The process of `lockkeeper bench bystander`, which locks and unlocks a name of its own.
struct Bystander {
    process: Child,
    orders: ChildStdin,
    seen: BufReader<ChildStdout>,
}

/// What it saw, shortest first.
struct Seen(Vec<Duration>);

impl Bystander {
    fn start(url: &str, ttl: Duration) -> Self {
        let ttl = format!("{}s", ttl.as_secs());
        let mut process = Command::new(LOCKKEEPER)
            .args(["bench", "bystander", "--ttl", &ttl, "--url", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the bystander starts");
        let orders = process.stdin.take().expect("a pipe");
        let seen = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut bystander = Self { process, orders, seen };
        assert_eq!(bystander.line(), "ready");
        bystander
    }

    fn beside<T>(&mut self, work: impl FnOnce() -> T) -> (Seen, T) {
        self.orders.write_all(b"begin\n").expect("it lives");
        let done = work();
        self.orders.write_all(b"end\n").expect("it lives");
        let mut latencies = Vec::new();
        for word in self.line().split_whitespace() {
            let (nanos, count) = word.split_once(':').expect("a latency and a count");
            let latency = Duration::from_nanos(nanos.parse().expect("nanoseconds"));
            latencies.extend(vec![latency; count.parse().expect("a count")]);
        }
        assert!(!latencies.is_empty(), "it was never served");
        (Seen(latencies), done)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.seen.read_line(&mut line).expect("it says something");
        line.trim().to_owned()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Seen {
    fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort();
        Self(latencies)
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    fn report(&self, of: &str) {
        println!(
            "{of}: p50 {:.2?}, p99 {:.2?}, max {:.2?} of {}",
            self.percentile(50),
            self.percentile(99),
            self.percentile(100),
            self.0.len()
        );
    }
}

/// The lowest priority, as far as the system gives it: the crowd of a real cluster doesn't compute
/// on the servers' machines. For what is measured on an idle machine alone: beside six busy
/// processes the crowd's thread had a core for 0.5 s of 100, and its leases ran out.
fn step_back() {
    let _ = setpriority_process(None, 19);
}

/// Clients that hold a lock each, all connected to the first server of `urls`, and each with the
/// next of them as its way out.
fn gather(
    runtime: &Runtime,
    clients: usize,
    urls: &[String; 2],
    ttl: Duration,
) -> Vec<(Client, Guard)> {
    /// Who connects at once: the listener has a queue.
    const AT_ONCE: usize = 100;

    let mut gathered = Vec::with_capacity(clients);
    while gathered.len() < clients {
        let mut joining = JoinSet::new();
        let until = clients.min(gathered.len() + AT_ONCE);
        for number in gathered.len()..until {
            let url = urls[number % 2].clone();
            let client = Client::builder().url(url).ttl(ttl).connect_timeout(PATIENCE);
            let client = client.clock(Arc::new(WithoutFiles));
            joining.spawn_on(
                async move {
                    let client = client.connect().await.expect("it is connected");
                    let lock = client.lock(format!("crowd/{number}"));
                    let guard = lock.try_acquire().await.expect("nobody else wants it");
                    (client, guard)
                },
                runtime.handle(),
            );
        }
        gathered.extend(runtime.block_on(joining.join_all()));
    }
    gathered
}

/// Has everybody ask the cluster whether it holds its lock, and returns how long after `since` each
/// had its answer: it was on a connection that its session is tied to again.
fn wait_for_all(runtime: &Runtime, crowd: Vec<(Client, Guard)>, since: Instant) -> Back {
    let mut asking = JoinSet::new();
    for (client, guard) in crowd {
        asking.spawn_on(
            async move {
                while let Err(error) = guard.confirm().await {
                    let is_lost = matches!(error, Error::Lost(_)) || !error.is_retryable();
                    assert!(!is_lost, "{}: {error}", guard.name());
                    assert!(since.elapsed() < PATIENCE, "{}: {error}", guard.name());
                    sleep(Duration::from_millis(20)).await;
                }
                (since.elapsed(), (client, guard))
            },
            runtime.handle(),
        );
    }
    let all = async { tokio::time::timeout(2 * PATIENCE, asking.join_all()).await };
    let (after, crowd) = runtime.block_on(all).expect("everybody is back").into_iter().unzip();
    Back { after: Seen::of(after), crowd }
}

struct Back {
    after: Seen,
    crowd: Vec<(Client, Guard)>,
}

#[test]
fn a_crowd_whose_leader_is_killed_loses_nothing() {
    lose_a_server(Leader::TheirServer);
}

/// Without the time in which there is no leader: what the crowd alone costs the others.
#[test]
fn a_crowd_whose_server_is_killed_after_it_has_handed_over_loses_nothing() {
    lose_a_server(Leader::AnotherServer);
}

/// Who leads when the crowd's server is killed.
#[derive(Clone, Copy)]
enum Leader {
    TheirServer,
    AnotherServer,
}

impl Leader {
    /// Makes sure of it: on a busy machine leadership may have moved meanwhile.
    fn see_to_it(self, servers: &Servers, theirs: usize, other: usize) {
        let next = match self {
            Self::TheirServer => theirs,
            Self::AnotherServer => other,
        };
        wait_for("the one that is to lead does", || {
            if servers.wait_for_leader() == next {
                return Some(());
            }
            // A machine that stands still may have it fail, or elect another one.
            let member = (next + 1).to_string();
            let arguments = ["cluster", "transfer", &member, "--url", &servers.url()];
            Command::new(LOCKKEEPER).args(arguments).output().expect("the program runs");
            None
        });
    }
}

/// All clients are connected to one server, which is killed.
fn lose_a_server(leader: Leader) {
    let clients = crowd();
    provide_files(clients);
    // The defaults are for what is measured; a busy machine that runs all tests may be slower.
    let is_measured = std::env::var_os("LOCKKEEPER_CROWD").is_some();
    let mut servers = if is_measured { Servers::start_with_defaults() } else { Servers::start() };
    let ttl = if is_measured { MEASURED_TTL } else { PATIENCE };
    let (theirs, one, other) = (0, 1, 2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("crowd")
        .on_thread_start(move || {
            if is_measured {
                step_back();
            }
        })
        .enable_all()
        .build()
        .expect("a runtime");
    // It stays where it is, so what it notices is the servers' work for the others.
    let mut bystander = Bystander::start(&servers.url_of(&[one, other]), ttl);
    let urls = [[theirs, one, other], [theirs, other, one]].map(|ways| servers.url_of(&ways));
    let crowd = gather(&runtime, clients, &urls, ttl);
    leader.see_to_it(&servers, theirs, one);
    let mut tokens: Vec<u64> = crowd.iter().map(|(_, guard)| guard.token()).collect();
    // Long enough for a hundred locks and more on a slow disk.
    let (calm, ()) = bystander.beside(|| std::thread::sleep(Duration::from_secs(2)));

    let (during, back) = bystander.beside(|| {
        let killed = Instant::now();
        servers.kill(theirs);
        let back = wait_for_all(&runtime, crowd, killed);
        // However soon they are back: the bystander has a second to be served in.
        std::thread::sleep(Duration::from_secs(1).saturating_sub(killed.elapsed()));
        back
    });

    println!("{clients} clients lose their server at once");
    back.after.report("back, with the lock confirmed, after");
    calm.report("a lock and release of another name, calm");
    during.report("the same meanwhile");
    let status = wait_for("a status", || servers.status(one));
    println!("terms so far: {}", status["term"]);
    assert_eq!(back.crowd.len(), clients);
    assert!(back.crowd.iter().all(|(_, guard)| guard.state().is_held()), "somebody lost a lock");
    let mut kept: Vec<u64> = back.crowd.iter().map(|(_, guard)| guard.token()).collect();
    tokens.sort_unstable();
    kept.sort_unstable();
    assert_eq!(kept, tokens, "every hold is the one from before");
    let sessions = back.crowd.iter().map(|(_, guard)| guard.session().id);
    let sessions: std::collections::BTreeSet<_> = sessions.map(|id| id.to_string()).collect();
    assert_eq!(sessions.len(), clients);
    assert!(during.percentile(50) < TYPICAL_MAX, "a lock that nobody else wants takes too long");

    // They can go on: everybody gives back what it holds, and ends its session.
    let mut leaving = JoinSet::new();
    for (client, guard) in back.crowd {
        let leave = async move {
            guard.release().await.expect("it is given back");
            client.close().await;
        };
        leaving.spawn_on(leave, runtime.handle());
    }
    runtime.block_on(leaving.join_all());
}
