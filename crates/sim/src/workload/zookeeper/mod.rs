//! Clients of ZooKeeper's protocol: the lock recipe that programs build on it, and reads, writes
//! and watches between.
//!
//! The recipe is the classic one: an ephemeral sequential znode in the lock's directory; whoever
//! has the lowest holds the lock, and everybody else watches the one before. What the log says of
//! such a directory is read as the log of a lock ([`recipe`]), so that the judges of
//! locks judge it.

mod client;
mod machine;
mod survey;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::network::Network;
use lockkeeper_core::{Mode, Token};
use lockkeeper_node::BoxFuture;
use lockkeeper_wire::jute::{
    Acl, Acls, Create, CreateOp, Delete, ErrorCode, Id, Multi, Op, OpCode, Read, Reply,
    ReplyHeader, Request, SetData, decode_reply, perms,
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

pub use self::client::{Answer, Client, Gone};
pub use self::machine::{Machine, Nobody};
pub use self::survey::{Znode, survey};
use super::Surroundings;
use crate::chance::Chance;
use crate::history::Watch;
use crate::recipe::{self, LOCKS_DIRECTORY};
use crate::recorder::Recorder;
use crate::world::MachineClock;
use crate::{Attempt, ClientId, GiveUp, Nanos, Seen};

/// The locks that everybody wants.
const LOCKS: [&str; 2] = ["a", "batch"];
/// Where clients read, write and watch.
const GROUND: &str = "/ground";
const NODES: [&str; 3] = ["/ground/x", "/ground/y", "/ground/x/z"];

/// Runs one client's process in a simulated world.
pub async fn run(around: Surroundings) {
    let Surroundings { clock, network, recorder, chance, zookeepers, current, only_reads, .. } =
        around;
    let machine = Arc::new(Simulated { clock, recorder, current, only_reads });
    run_on(machine, Arc::new(network), zookeepers, chance).await;
}

/// Runs one client on any machine until that is stopped: a session after the other.
pub async fn run_on(
    machine: Arc<dyn Machine>,
    network: Arc<dyn Network>,
    servers: Vec<(String, u16)>,
    mut chance: Chance,
) {
    while !machine.is_stopped() {
        let mut own = chance.fork();
        let timeouts = match machine.only_reads() {
            true => [500, 500, 500, 1_000, 1_000],
            false => [500, 1_000, 1_000, 2_000, 3_000],
        };
        let timeout = Duration::from_millis(*own.pick(&timeouts));
        let (ground, network) = (Arc::clone(&machine), Arc::clone(&network));
        let opened = Client::open(ground, network, servers.clone(), timeout, own);
        if let Some(mut client) = opened.await {
            let life = chance.between(2_000, 25_000);
            match live(&mut client, life, &mut chance).await {
                Ok(()) => client.close().await,
                Err(_) => client.see(Seen::Ended { client: client.id() }),
            }
        }
        machine.is_over();
        sleep(Duration::from_millis(chance.below(300))).await;
    }
}

/// A machine of a simulated world.
struct Simulated {
    clock: Arc<MachineClock>,
    recorder: Recorder,
    /// Which session the process has now, for whoever kills it.
    current: Arc<Mutex<Option<ClientId>>>,
    only_reads: bool,
}

impl Machine for Simulated {
    fn local(&self) -> u64 {
        self.clock.local()
    }

    fn truth(&self, local: u64) -> Nanos {
        self.clock.truth(local)
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn see(&self, at: Nanos, seen: Seen) {
        self.recorder.see(at, seen);
    }

    fn client(&self) -> ClientId {
        let id = self.recorder.client();
        *self.current.lock() = Some(id);
        id
    }

    fn is_over(&self) {
        *self.current.lock() = None;
    }

    fn attempt(&self) -> Attempt {
        self.recorder.attempt()
    }

    fn write<'a>(&'a self, lock: &'a str, token: Token) -> BoxFuture<'a, ()> {
        let (lock, mode) = (lock.to_owned(), Mode::Exclusive);
        let accepted = self.recorder.write_fenced(&lock, token, true);
        self.see(self.now(), Seen::Wrote { lock, mode, token, accepted });
        Box::pin(std::future::ready(()))
    }

    fn is_stopped(&self) -> bool {
        false
    }

    fn only_reads(&self) -> bool {
        self.only_reads
    }
}

/// One session, for about `life` milliseconds. An error: it is over.
async fn live(client: &mut Client, life: u64, chance: &mut Chance) -> Result<(), Gone> {
    let over = tokio::time::Instant::now() + Duration::from_millis(life);
    for path in [LOCKS_DIRECTORY.to_owned(), GROUND.to_owned()] {
        ensure(client, &path).await?;
    }
    for lock in LOCKS {
        ensure(client, &recipe::directory(lock)).await?;
    }
    while tokio::time::Instant::now() < over && !client.machine.is_stopped() {
        client.pass(Duration::from_millis(chance.below(300)), false).await?;
        if chance.one_in(2) {
            lock(client, chance).await?;
        } else {
            match play(client, chance).await {
                Err(Gone::Session) => return Err(Gone::Session),
                Ok(()) | Err(Gone::Link) => {}
            }
        }
    }
    Ok(())
}

/// Makes a znode that stays, however often that takes.
async fn ensure(client: &mut Client, path: &str) -> Result<(), Gone> {
    loop {
        match client.call(create(path, CreateOp::Create, PERSISTENT)).await {
            Err(Gone::Session) => return Err(Gone::Session),
            Ok(answer) if is_one_of(&answer, &[ErrorCode::OK, ErrorCode::NODE_EXISTS]) => {
                return Ok(());
            }
            Ok(_) | Err(Gone::Link) => client.pass(Duration::from_millis(50), false).await?,
        }
    }
}

// ------------------------------------------------------------------------------------ the recipe

/// A place in line.
struct Place {
    directory: String,
    /// The znode's name within it.
    name: String,
}

/// Waits for a lock, works under it, and gives it back. An error: the session is over.
async fn lock(client: &mut Client, chance: &mut Chance) -> Result<(), Gone> {
    let lock = *chance.pick(&LOCKS);
    let attempt = client.machine.attempt();
    let asked = recipe::lock_name(lock);
    let (id, mode) = (client.id(), Mode::Exclusive);
    client.see(Seen::Asked { attempt, client: id, lock: asked.clone(), mode, wait: true });
    let place = match stand_in_line(client, lock, attempt).await {
        Ok(place) => place,
        Err(gone) => {
            client.see(Seen::GaveUp { attempt, why: GiveUp::SessionEnded });
            return Err(gone);
        }
    };
    let patience = if chance.one_in(4) { chance.between(5, 1_500) } else { u64::MAX };
    match wait(client, &place, attempt, patience).await {
        Err(gone) => {
            client.see(Seen::GaveUp { attempt, why: GiveUp::SessionEnded });
            Err(gone)
        }
        Ok(None) => {
            let left = leave(client, &place).await;
            let why = if left.is_ok() { GiveUp::Cancelled } else { GiveUp::SessionEnded };
            client.see(Seen::GaveUp { attempt, why });
            left
        }
        Ok(Some(token)) => {
            client.see(Seen::Held { attempt, token });
            hold(client, &asked, token, chance).await;
            // Before the look at the deadline: a real process may stand still behind it.
            let releasing = client.machine.now();
            if !client.is_sure() {
                let since = client.believes_until().min(releasing);
                client.see(Seen::Lost { attempt, since });
                return leave(client, &place).await;
            }
            client.machine.see(releasing, Seen::Releasing { attempt });
            let left = leave(client, &place).await;
            client.see(match left {
                Ok(()) => Seen::Released { attempt },
                Err(_) => Seen::Lost { attempt, since: releasing },
            });
            left
        }
    }
}

/// Makes the znode. If the answer is lost, it is looked for: its name tells whose it is.
async fn stand_in_line(
    client: &mut Client,
    lock: &str,
    Attempt(attempt): Attempt,
) -> Result<Place, Gone> {
    let directory = recipe::directory(lock);
    let prefix = format!("{attempt}-lock-");
    let path = format!("{directory}/{prefix}");
    loop {
        match client.call(create(&path, CreateOp::Create2, EPHEMERAL_SEQUENTIAL)).await {
            Err(Gone::Session) => return Err(Gone::Session),
            Ok(answer) => {
                if let Some(Reply::PathStat(Some(path), _)) = answer.reply(CreateOp::Create2.code())
                    && let Some((_, name)) = path.rsplit_once('/')
                {
                    return Ok(Place { directory, name: name.to_owned() });
                }
            }
            Err(Gone::Link) => {
                // Nothing is known before the children have been listed.
                loop {
                    match children(client, &directory).await {
                        Err(Gone::Session) => return Err(Gone::Session),
                        Err(Gone::Link) => {}
                        Ok(names) => {
                            let own = names.into_iter().find(|name| name.starts_with(&prefix));
                            if let Some(name) = own {
                                return Ok(Place { directory, name });
                            }
                            break;
                        }
                    }
                }
            }
        }
        client.pass(Duration::from_millis(20), false).await?;
    }
}

/// Waits until nobody is before; `None` if that takes longer than `patience` milliseconds.
async fn wait(
    client: &mut Client,
    place: &Place,
    attempt: Attempt,
    patience: u64,
) -> Result<Option<Token>, Gone> {
    let Place { directory, name } = place;
    let began = tokio::time::Instant::now();
    let patience = Duration::from_millis(patience.min(3_600_000));
    let mut is_told = false;
    loop {
        let Some(left) = patience.checked_sub(began.elapsed()) else { return Ok(None) };
        if client.machine.is_stopped() {
            return Ok(None);
        }
        client.has_news = false;
        let looked = look(client, directory, name).await;
        match looked {
            Err(Gone::Session) => return Err(Gone::Session),
            Err(Gone::Link) => {}
            // It went with a session that this client still takes for its own.
            Ok(Looked::NotThere) => return Err(Gone::Session),
            Ok(Looked::First(token)) if client.is_sure() => return Ok(Some(token)),
            Ok(Looked::First(_)) => client.pass(Duration::from_millis(20), true).await.or_link()?,
            Ok(Looked::Behind(before)) => {
                if !std::mem::replace(&mut is_told, true) {
                    client.see(Seen::Queued { attempt });
                }
                let path = format!("{directory}/{before}");
                match client.watch(&path, Watch::Exists).await {
                    Err(Gone::Session) => return Err(Gone::Session),
                    // Gone meanwhile: whoever is first now is to be seen.
                    Ok(answer) if answer.header.err == ErrorCode::NO_NODE => continue,
                    Ok(_) => client.pass(left, true).await.or_link()?,
                    Err(Gone::Link) => {}
                }
            }
        }
    }
}

/// What a look at the directory says of one's own place.
enum Looked {
    First(Token),
    Behind(String),
    NotThere,
}

async fn look(client: &mut Client, directory: &str, name: &str) -> Result<Looked, Gone> {
    let mut names = children(client, directory).await?;
    names.sort_by_key(|name| recipe::sequence(name));
    let Some(own) = names.iter().position(|other| other == name) else {
        return Ok(Looked::NotThere);
    };
    if own > 0 {
        return Ok(Looked::Behind(names.swap_remove(own - 1)));
    }
    // The token is the change that made the znode.
    let path = format!("{directory}/{name}");
    let request = Request::Exists(Read { path: Some(&path), watch: false });
    let code = request.op();
    let answer = client.call(request).await?;
    Ok(match answer.reply(code) {
        Some(Reply::Stat(stat)) => Looked::First(Token(stat.czxid as u64)),
        _ => Looked::NotThere,
    })
}

async fn children(client: &mut Client, directory: &str) -> Result<Vec<String>, Gone> {
    let request = Request::GetChildren(Read { path: Some(directory), watch: false });
    let code = request.op();
    let answer = client.call(request).await?;
    let Some(Reply::Strings(names)) = answer.reply(code) else { return Err(Gone::Link) };
    Ok(names.iter().flatten().map(str::to_owned).collect())
}

/// Works under the lock, for as long as the client may count on it.
async fn hold(client: &mut Client, lock: &str, token: Token, chance: &mut Chance) {
    // Who only reads is looked at for as long as a session takes to end elsewhere.
    let steps_max = if client.machine.only_reads() { 60 } else { 5 };
    for _ in 0..chance.below(steps_max) {
        let step = Duration::from_millis(*chance.pick(&[0, 5, 40, 200, 600]));
        let until = tokio::time::Instant::now() + step;
        loop {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            let sure = client.sure_for();
            if sure.is_zero() {
                return;
            }
            // Answers to reads come all the time, and each puts the end off a little.
            let part = if client.machine.only_reads() { left.min(sure / 2) } else { left };
            match timeout(sure, client.pass(part, false)).await {
                Ok(Ok(())) if part < left => {}
                Ok(Ok(())) => break,
                Ok(Err(_)) => return,
                // In the middle of something; and there may be news of the session meanwhile.
                Err(_) => client.drop_link(),
            }
        }
        client.machine.write(lock, token).await;
    }
}

/// Removes one's own znode, however often that takes.
async fn leave(client: &mut Client, place: &Place) -> Result<(), Gone> {
    let path = format!("{}/{}", place.directory, place.name);
    loop {
        match client.call(Request::Delete(Delete { path: Some(&path), version: -1 })).await {
            Err(Gone::Session) => return Err(Gone::Session),
            Ok(answer) if is_one_of(&answer, &[ErrorCode::OK, ErrorCode::NO_NODE]) => {
                return Ok(());
            }
            Ok(_) | Err(Gone::Link) => client.pass(Duration::from_millis(20), false).await?,
        }
    }
}

// ------------------------------------------------------------------ reads, writes, watches

/// One thing that programs do with a tree.
async fn play(client: &mut Client, chance: &mut Chance) -> Result<(), Gone> {
    let path = *chance.pick(&NODES);
    match chance.below(9) {
        0 => drop(client.call(create(path, CreateOp::Create, PERSISTENT)).await?),
        1 => drop(client.call(create(path, CreateOp::Create, EPHEMERAL)).await?),
        2 => {
            let path = format!("{GROUND}/s-");
            let flags = if chance.one_in(2) { EPHEMERAL_SEQUENTIAL } else { SEQUENTIAL };
            drop(client.call(create(&path, CreateOp::Create, flags)).await?);
        }
        3 => drop(client.call(Request::Delete(Delete { path: Some(path), version: -1 })).await?),
        4 => {
            let data: &[u8] = &chance.next_u64().to_le_bytes();
            let set = SetData { path: Some(path), data: Some(data), version: -1 };
            drop(client.call(Request::SetData(set)).await?);
        }
        5 => {
            let other = *chance.pick(&NODES);
            let set = SetData { path: Some(other), data: None, version: -1 };
            let parts = [
                Op::Create(create_part(path, CreateOp::Create, PERSISTENT)),
                Op::SetData(set),
                Op::Delete(Delete { path: Some(path), version: -1 }),
            ];
            let kept = chance.between(1, 3) as usize;
            let multi = Multi::of(parts.into_iter().take(kept));
            drop(client.call(Request::Multi(multi)).await?);
        }
        6 => drop(client.call(Request::Sync(Some(path))).await?),
        _ => {
            let watch = *chance.pick(&[Watch::Data, Watch::Exists, Watch::Children]);
            let path = if chance.one_in(3) { GROUND } else { path };
            drop(client.watch(path, watch).await?);
        }
    }
    Ok(())
}

/// A znode that stays.
pub const PERSISTENT: i32 = 0;
/// A znode that goes with its session.
pub const EPHEMERAL: i32 = 1;
const SEQUENTIAL: i32 = 2;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

/// A znode that is open to everybody.
#[must_use]
pub fn create(path: &str, op: CreateOp, flags: i32) -> Request<'_> {
    Request::Create(create_part(path, op, flags))
}

fn create_part(path: &str, op: CreateOp, flags: i32) -> Create<'_> {
    let id = Id { scheme: Some("world"), id: Some("anyone") };
    let acl = Acls::of([Acl { perms: perms::ALL, id }]);
    Create { op, path: Some(path), data: Some(b"1"), acl, flags, ttl_ms: -1 }
}

fn is_one_of(answer: &Answer, codes: &[ErrorCode]) -> bool {
    codes.contains(&answer.header.err)
}

impl Answer {
    /// The body, if the request went well.
    #[must_use]
    pub fn reply(&self, op: OpCode) -> Option<Reply<'_>> {
        let (header, body): (ReplyHeader, _) = decode_reply(&self.frame).ok()?;
        Reply::decode(op, &header, body).ok().filter(|_| header.err == ErrorCode::OK)
    }
}

trait OrLink {
    /// The loss of a connection is no error here: whoever waited looks again.
    fn or_link(self) -> Result<(), Gone>;
}

impl OrLink for Result<(), Gone> {
    fn or_link(self) -> Result<(), Gone> {
        match self {
            Err(Gone::Link) => Ok(()),
            other => other,
        }
    }
}
