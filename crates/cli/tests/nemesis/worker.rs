//! A worker: a real client process with several sessions, which takes locks, writes under them,
//! gives up, and tells what it believes, line by line on its standard output.
//!
//! Each line is written at once, so that a worker which is killed has told all it believed. It ends
//! when its standard input does.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{Client, Error, Guard, Lease};
use lockkeeper_core::{Mode, SessionId, Token};
use lockkeeper_sim::{Attempt, ClientId, GiveUp, Nanos, Seen};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::clock;
use crate::dice::Dice;
use crate::history::{mode_text, to_line};
use crate::zookeeper;

/// Locks that are held alone or shared.
pub(crate) const EXCLUSIVE: [&str; 3] = ["work/a", "work/b", "work/c"];
/// Semaphores of [`PERMITS`].
pub(crate) const SEMAPHORES: [&str; 2] = ["pool/a", "pool/b"];
/// Permits of each semaphore.
pub(crate) const PERMITS: u32 = 3;

/// Sessions of one worker.
const SESSIONS: u32 = 2;
/// Tasks under one session.
const TASKS: u32 = 2;
/// Ids that one worker may use up.
pub(crate) const IDS: u32 = 100_000;

/// What the nemesis tells a worker, in its environment.
pub(crate) struct Orders {
    /// Distinct for each process.
    pub(crate) number: u32,
    pub(crate) url: String,
    pub(crate) register: PathBuf,
    pub(crate) seed: u64,
    /// By how much its leases are longer than they would be.
    pub(crate) patience: u64,
}

impl Orders {
    /// As variables.
    pub(crate) fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("NEMESIS_WORKER", self.number.to_string()),
            ("NEMESIS_URL", self.url.clone()),
            ("NEMESIS_REGISTER", self.register.display().to_string()),
            ("NEMESIS_SEED", self.seed.to_string()),
            ("NEMESIS_PATIENCE", self.patience.to_string()),
        ]
    }

    fn of_variables() -> Option<Self> {
        let variable = |name| std::env::var(name).ok();
        Some(Self {
            number: variable("NEMESIS_WORKER")?.parse().ok()?,
            url: variable("NEMESIS_URL")?,
            register: variable("NEMESIS_REGISTER")?.into(),
            seed: variable("NEMESIS_SEED")?.parse().ok()?,
            patience: variable("NEMESIS_PATIENCE")?.parse().ok()?,
        })
    }
}

/// Works until standard input ends.
pub(crate) fn run() {
    let orders = Orders::of_variables().expect("a worker is started by the nemesis");
    let mut builder = match orders.number % 2 {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut dice = Dice::new(orders.seed);
        let (stop, stopped) = watch::channel(false);
        let worker = Arc::new(Worker::new(orders, stopped).await);
        let mut sessions = JoinSet::new();
        for _ in 0..SESSIONS {
            let (worker, dice) = (Arc::clone(&worker), dice.fork());
            sessions.spawn(async move { worker.live(dice).await });
        }
        let mut ignored = Vec::new();
        // Whatever it ends with, it has ended.
        let _ = tokio::io::stdin().read_to_end(&mut ignored).await;
        stop.send_replace(true);
        while let Some(ended) = sessions.join_next().await {
            ended.expect("a session's task doesn't panic");
        }
    });
}

pub(crate) struct Worker {
    orders: Orders,
    stopped: watch::Receiver<bool>,
    register: Mutex<BufReader<UnixStream>>,
    next_client: AtomicU32,
    next_attempt: AtomicU64,
}

/// One session's life, shared by its tasks.
struct Life {
    worker: Arc<Worker>,
    client: Client,
    id: AtomicU32,
    session: SessionId,
    /// Held for as long as the session lives: by it the worker knows whether it does.
    keeper: Lease,
    ended: AtomicBool,
    /// It is to come to its end.
    leaving: watch::Receiver<bool>,
}

pub(crate) fn tell(at: Nanos, seen: &Seen) {
    let mut line = to_line(at, seen);
    line.push('\n');
    // One write: the line is in the pipe or isn't. If nobody reads, the nemesis has gone.
    if std::io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(1);
    }
}

impl Worker {
    async fn new(orders: Orders, stopped: watch::Receiver<bool>) -> Self {
        let register = UnixStream::connect(&orders.register).await.expect("the register serves");
        let first = orders.number * IDS;
        Self {
            orders,
            stopped,
            register: Mutex::new(BufReader::new(register)),
            next_client: AtomicU32::new(first),
            next_attempt: AtomicU64::new(u64::from(first)),
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    pub(crate) fn client_id(&self) -> ClientId {
        ClientId(self.next_client.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn attempt(&self) -> Attempt {
        Attempt(self.next_attempt.fetch_add(1, Ordering::Relaxed))
    }

    /// One session after another.
    async fn live(self: Arc<Self>, mut dice: Dice) {
        if let Some(servers) = zookeeper::servers_of(&self.orders.url) {
            return zookeeper::live(self, servers, dice).await;
        }
        while !self.is_stopped() {
            let begun = Arc::clone(&self).begin(&mut dice).await;
            match begun {
                Ok((life, leave, keeper)) => life.spend(leave, keeper, dice.fork()).await,
                Err(error) => {
                    eprintln!("no session: {error}");
                    sleep(dice.millis(20, 300)).await;
                }
            }
        }
    }

    async fn begin(
        self: Arc<Self>,
        dice: &mut Dice,
    ) -> Result<(Arc<Life>, watch::Sender<bool>, Guard), Error> {
        let ttl = *dice.pick(&[1_500, 2_000, 3_000]) * self.orders.patience;
        let client = Client::builder()
            .url(self.orders.url.as_str())
            .ttl(Duration::from_millis(ttl))
            .connect_timeout(Duration::from_secs(3));
        let client = client.connect().await?;
        let id = self.client_id();
        let keeper = client.lock(format!("keep/{}", id.0)).acquire().await?;
        let session = keeper.session().id;
        let session = SessionId(session.0);
        tell(clock::now(), &Seen::Opened { client: id, session: Some(session) });
        let (leave, leaving) = watch::channel(false);
        let life = Life {
            worker: self,
            client,
            id: AtomicU32::new(id.0),
            session,
            keeper: keeper.lease(),
            ended: AtomicBool::new(false),
            leaving,
        };
        Ok((Arc::new(life), leave, keeper))
    }

    /// Writes to the register; whether it was let in.
    pub(crate) async fn write(&self, lock: &str, mode: Mode, token: u64) -> bool {
        let mut register = self.register.lock().await;
        let line = format!("{lock} {} {token}\n", mode_text(mode));
        let mut answer = String::new();
        let written = async {
            register.get_mut().write_all(line.as_bytes()).await?;
            register.read_line(&mut answer).await
        };
        if written.await.is_err() {
            std::process::exit(1);
        }
        answer.starts_with('1')
    }
}

impl Life {
    async fn spend(self: Arc<Self>, leave: watch::Sender<bool>, keeper: Guard, mut dice: Dice) {
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (life, dice) = (Arc::clone(&self), dice.fork());
            tasks.spawn(async move { life.work(dice).await });
        }
        let (life, looker) = (Arc::clone(&self), dice.fork());
        let looking = tokio::spawn(async move { life.look(looker).await });
        // Some sessions are given up on purpose.
        let length = if dice.chance(30) { dice.millis(500, 8_000) } else { Duration::MAX };
        let mut stopped = self.worker.stopped.clone();
        tokio::select! {
            _ = keeper.lost() => self.end(),
            () = sleep(length) => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        leave.send_replace(true);
        let mut left = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            left.extend(ended.expect("a worker's task doesn't panic"));
        }
        looking.abort();
        let now = clock::now();
        for (attempt, guard) in &left {
            tell(now, &Seen::Lost { attempt: *attempt, since: now.min(deadline(guard)) });
        }
        self.end();
        self.client.close().await;
    }

    fn id(&self) -> ClientId {
        ClientId(self.id.load(Ordering::Relaxed))
    }

    /// The session is over, or is about to be closed.
    fn end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            let at = clock::now().min(deadline(&self.keeper));
            tell(at, &Seen::Ended { client: self.id() });
        }
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || *self.leaving.borrow() || self.keeper.check().is_err()
    }

    /// One wish after another. What it held at the end is returned, unless it was given back.
    async fn work(&self, mut dice: Dice) -> Option<(Attempt, Guard)> {
        while !self.is_over() {
            let (lock, mode) = self.choose(&mut dice);
            let attempt = self.worker.attempt();
            if let Some(guard) = self.ask(attempt, lock, mode, &mut dice).await
                && let Some(left) = self.hold(attempt, guard, lock, mode, &mut dice).await
            {
                return Some((attempt, left));
            }
            sleep(dice.millis(0, 60)).await;
        }
        None
    }

    fn choose(&self, dice: &mut Dice) -> (&'static str, Mode) {
        match dice.below(10) {
            0..=4 => (*dice.pick(&EXCLUSIVE), Mode::Exclusive),
            5..=6 => (*dice.pick(&EXCLUSIVE), Mode::Shared),
            _ => {
                let take = if dice.chance(75) { 1 } else { 2 };
                (*dice.pick(&SEMAPHORES), Mode::Permits { take, of: PERMITS })
            }
        }
    }

    async fn ask(
        &self,
        attempt: Attempt,
        lock: &'static str,
        mode: Mode,
        dice: &mut Dice,
    ) -> Option<Guard> {
        let wait = dice.chance(85);
        let request = self.client.lock(lock).purpose(attempt.0.to_string());
        let mut request = match mode {
            Mode::Exclusive => request,
            Mode::Shared => request.shared(),
            Mode::Permits { take, of } => request.permits(take, of),
        };
        if wait && dice.chance(40) {
            request = request.wait_at_most(dice.millis(20, 1_500));
        }
        let queued = AtomicBool::new(false);
        request = request.on_wait(move |_| {
            if !queued.swap(true, Ordering::Relaxed) {
                tell(clock::now(), &Seen::Queued { attempt });
            }
        });
        // Some futures are dropped at any moment, as a `select!` would.
        let patience = if dice.chance(12) { dice.millis(0, 200) } else { Duration::MAX };
        let mut leaving = self.leaving.clone();
        let asked = clock::now();
        let lock = lock.to_owned();
        let ask = Seen::Asked { attempt, client: self.id(), lock, mode, wait };
        tell(asked, &ask);
        let answer =
            async { if wait { request.acquire().await } else { request.try_acquire().await } };
        let why = tokio::select! {
            answer = answer => match answer {
                Ok(guard) => return self.granted(attempt, guard, asked, ask),
                Err(error) => reason(&error),
            },
            () = sleep(patience) => GiveUp::Unknown,
            _ = leaving.wait_for(|leaving| *leaving) => GiveUp::Unknown,
        };
        tell(clock::now(), &Seen::GaveUp { attempt, why });
        None
    }

    /// The guard, unless it belongs to another session than this one: the client opens a new one
    /// by itself if the old was lost just when it was asked. Such a guard is told of as what it
    /// is, another client's, and given back.
    fn granted(
        &self,
        attempt: Attempt,
        guard: Guard,
        asked: Nanos,
        mut ask: Seen,
    ) -> Option<Guard> {
        let session = SessionId(guard.session().id.0);
        let token = Token(guard.token());
        let now = clock::now();
        if session == self.session {
            tell(now, &Seen::Held { attempt, token });
            return Some(guard);
        }
        self.end();
        tell(now, &Seen::GaveUp { attempt, why: GiveUp::SessionEnded });
        let (client, attempt) = (self.worker.client_id(), self.worker.attempt());
        if let Seen::Asked { attempt: of, client: by, .. } = &mut ask {
            (*of, *by) = (attempt, client);
        }
        tell(asked, &Seen::Opened { client, session: Some(session) });
        tell(asked, &ask);
        tell(now, &Seen::Held { attempt, token });
        let now = clock::now();
        tell(now, &Seen::Lost { attempt, since: now.min(deadline(&guard)) });
        tell(now, &Seen::Ended { client });
        None
    }

    /// Works under the lock and gives it back, one way or another. A guard that is to go with the
    /// session is returned.
    async fn hold(
        &self,
        attempt: Attempt,
        guard: Guard,
        lock: &str,
        mode: Mode,
        dice: &mut Dice,
    ) -> Option<Guard> {
        let length = match dice.below(100) {
            0..=69 => dice.millis(0, 15),
            70..=94 => dice.millis(15, 250),
            _ => dice.millis(500, 2_500),
        };
        let until = tokio::time::Instant::now() + length;
        let listens = dice.chance(80);
        loop {
            if guard.check().is_err() {
                let now = clock::now();
                tell(now, &Seen::Lost { attempt, since: now.min(deadline(&guard)) });
                if dice.chance(50) {
                    // As if it had been under way already.
                    self.worker.write(lock, mode, guard.token()).await;
                }
                return None;
            }
            // A write that comes late is the register's business, which compares tokens.
            self.worker.write(lock, mode, guard.token()).await;
            if tokio::time::Instant::now() >= until || *self.leaving.borrow() {
                break;
            }
            tokio::select! {
                _ = guard.lost() => {}
                () = guard.revoked(), if listens => break,
                () = sleep(dice.millis(1, 40)) => {}
            }
        }
        if *self.leaving.borrow() && dice.chance(40) {
            return Some(guard);
        }
        if dice.chance(5) {
            // Again with the same token; giving one of the two back keeps the lock.
            if let Ok(again) = guard.reenter().await {
                drop(again.release().await);
            }
        }
        if dice.chance(5) {
            // Its answer is the client's business; the clock is asked below.
            drop(guard.confirm().await);
        }
        let now = clock::now();
        if guard.check().is_err() {
            tell(now, &Seen::Lost { attempt, since: now.min(deadline(&guard)) });
            return None;
        }
        if dice.chance(15) {
            // Given back in the background, and nobody hears when that is done.
            tell(now, &Seen::Lost { attempt, since: now });
            return None;
        }
        tell(now, &Seen::Releasing { attempt });
        let end = match guard.release().await {
            Ok(_) => Seen::Released { attempt },
            Err(_) => Seen::Lost { attempt, since: now },
        };
        tell(clock::now(), &end);
        None
    }

    /// Looks at locks, as an operator would.
    async fn look(&self, mut dice: Dice) {
        loop {
            sleep(dice.millis(100, 600)).await;
            let lock = match dice.below(2) {
                0 => *dice.pick(&EXCLUSIVE),
                _ => *dice.pick(&SEMAPHORES),
            };
            let asked = clock::now();
            // A look that fails shows nothing.
            let Ok(view) = self.client.admin().get_lock(lock, 1_000).await else { continue };
            let (holders, waiters) = view.map_or((Vec::new(), 0), |view| {
                let holders = view.holds.iter().map(|hold| Token(hold.token)).collect();
                (holders, usize::try_from(view.waiter_count).unwrap_or(usize::MAX))
            });
            let lock = lock.to_owned();
            tell(clock::now(), &Seen::Viewed { lock, asked, holders, waiters });
        }
    }
}

/// When a holder stops counting on its lease, unless it is renewed.
fn deadline(lease: &Lease) -> Nanos {
    clock::of_boottime(lease.deadline_boottime_ns())
}

const fn reason(error: &Error) -> GiveUp {
    match error {
        Error::TimedOut { .. } => GiveUp::Cancelled,
        Error::Busy { .. } | Error::Refused(_) => GiveUp::Refused,
        Error::Lost(_) => GiveUp::SessionEnded,
        // The library gives back what it might still get, in its own time.
        _ => GiveUp::Unknown,
    }
}
