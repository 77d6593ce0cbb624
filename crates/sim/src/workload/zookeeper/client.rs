//! A client of ZooKeeper's protocol as programs have them: one session over one connection at a
//! time, pings, reconnects, one-shot watches that are set anew or forgotten.
//!
//! It does one thing at a time. Whatever waits (for a reply, for a notification, for time) reads
//! frames and sends pings meanwhile. A client that only reads sends reads instead, and the answers
//! are all that it knows of its session, as with programs that are never idle.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper::network::{Connection, Network};
use lockkeeper_core::SessionId;
use lockkeeper_wire::jute::{
    ConnectRequest, ConnectResponse, ErrorCode, EventType, FRAME_BYTES_MAX, Frames, Hidden, Op,
    OpResult, Read, Reply, ReplyHeader, Request, SetWatches, Strings, WatcherEvent, decode_reply,
    encode_request, xids,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use super::machine::Machine;
use crate::chance::Chance;
use crate::history::{Change, TreeSeen, Watch};
use crate::{ClientId, Nanos, Seen};

/// How long a client goes on looking for a server before it gives its session up.
const PATIENCE: Duration = Duration::from_secs(12);

/// How often a client that waits looks whether it is to stop.
const STOP_LOOK: Duration = Duration::from_secs(1);

/// One session.
pub struct Client {
    id: ClientId,
    pub(super) machine: Arc<dyn Machine>,
    chance: Chance,
    network: Arc<dyn Network>,
    servers: Vec<(String, u16)>,
    session: i64,
    password: Vec<u8>,
    timeout: Duration,
    last_zxid: i64,
    /// The session lives for a time-out from then on, on the machine's clock: when the newest ping
    /// was sent of which an answer has come. A server that answers a read had the session confirmed
    /// within the last two thirds of the time-out, so that only the third is left then.
    proven: u64,
    link: Option<Link>,
    watches: BTreeMap<(String, Watch), bool>,
    /// Something that was watched has happened since this was last put back.
    pub(super) has_news: bool,
}

struct Link {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    frames: Frames,
    next_xid: i32,
    /// Pings without an answer, or the reads in their place: their xids, and when they were sent on
    /// the machine's clock.
    pings: VecDeque<(i32, u64)>,
    ping_at: Instant,
    heard: Instant,
}

/// Why something didn't come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The connection: whether the request was executed, nobody knows.
    Link,
    /// The session.
    Session,
}

/// The reply to a request.
pub struct Answer {
    /// How it went, and at which revision.
    pub header: ReplyHeader,
    pub(super) frame: Bytes,
}

/// A frame that isn't for the client itself.
enum Came {
    Reply(Answer),
    News,
}

impl Client {
    /// Opens a session at one of the servers, if one can be had soon. The server may give it
    /// another time-out.
    pub async fn open(
        machine: Arc<dyn Machine>,
        network: Arc<dyn Network>,
        servers: Vec<(String, u16)>,
        timeout: Duration,
        chance: Chance,
    ) -> Option<Self> {
        let (id, proven) = (machine.client(), machine.local());
        let mut client = Self {
            id,
            machine,
            chance,
            network,
            servers,
            session: 0,
            password: vec![0; 16],
            timeout,
            last_zxid: 0,
            proven,
            link: None,
            watches: BTreeMap::new(),
            has_news: false,
        };
        client.connect().await.ok()?;
        Some(client)
    }

    pub(super) fn see(&self, seen: Seen) {
        self.machine.see(self.machine.now(), seen);
    }

    fn saw(&self, told: TreeSeen) {
        self.see(Seen::Tree { client: self.id, told });
    }

    pub(super) fn id(&self) -> ClientId {
        self.id
    }

    /// When the session may be over for all that this client knows, on its machine's clock. Less
    /// than the time-out by what a bad clock may be off.
    fn deadline(&self) -> u64 {
        let lease = self.timeout - self.timeout / 50 - Duration::from_millis(10);
        self.proven + lease.as_nanos() as u64
    }

    /// The same in truth.
    pub(super) fn believes_until(&self) -> Nanos {
        self.machine.truth(self.deadline())
    }

    pub(super) fn is_sure(&self) -> bool {
        self.machine.local() < self.deadline()
    }

    /// Until the deadline, as it is now.
    pub(super) fn sure_for(&self) -> Duration {
        Duration::from_nanos(self.deadline().saturating_sub(self.machine.local()))
    }

    /// Hangs up, without a word.
    pub fn drop_link(&mut self) {
        self.link = None;
    }

    // ------------------------------------------------------------------------ what programs ask

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    ///
    /// Without an answer.
    pub async fn call(&mut self, request: Request<'_>) -> Result<Answer, Gone> {
        if self.link.is_none() {
            self.connect().await?;
        }
        self.ask(&request).await
    }

    /// Reads with a watch.
    pub(super) async fn watch(&mut self, path: &str, watch: Watch) -> Result<Answer, Gone> {
        let read = Read { path: Some(path), watch: true };
        let request = match watch {
            Watch::Data => Request::GetData(read),
            Watch::Exists => Request::Exists(read),
            Watch::Children => Request::GetChildren(read),
        };
        self.call(request).await
    }

    /// Lets time pass, until there are news if `for_news`.
    ///
    /// # Errors
    ///
    /// The session is over; or the connection, if there can be no news without it.
    pub async fn pass(&mut self, time: Duration, for_news: bool) -> Result<(), Gone> {
        let until = Instant::now() + time;
        loop {
            let now = Instant::now();
            let is_news = for_news && (self.has_news || self.machine.is_stopped());
            if now >= until || is_news {
                return Ok(());
            }
            if self.link.is_none() {
                self.connect().await?;
            }
            // Nobody wakes whoever is to stop.
            if let Err(gone) = self.pump(until.min(now + STOP_LOOK)).await
                && (gone == Gone::Session || for_news)
            {
                return Err(gone);
            }
        }
    }

    /// Ends the session, as far as that can be done.
    pub async fn close(mut self) {
        self.see(Seen::Ended { client: self.id });
        if self.link.is_some() {
            let _ = timeout(self.timeout, self.ask(&Request::CloseSession)).await;
        }
    }

    // ------------------------------------------------------------------------- over a connection

    async fn ask(&mut self, request: &Request<'_>) -> Result<Answer, Gone> {
        let Some(link) = &mut self.link else { return Err(Gone::Link) };
        let xid = link.next_xid;
        link.next_xid += 1;
        let watch = watched(request);
        self.send(xid, request).await?;
        loop {
            let far = Instant::now() + Duration::from_secs(3_600);
            let Some(Came::Reply(answer)) = self.pump(far).await? else { continue };
            if answer.header.xid != xid {
                self.complain(format_args!("reply {} instead of {xid}", answer.header.xid));
                self.link = None;
                return Err(Gone::Link);
            }
            if let Some((path, watch)) = watch {
                self.watching(path, watch, answer.header);
            }
            let zxid = answer.header.zxid as u64;
            for (path, change) in changed(request, &answer) {
                self.saw(TreeSeen::Changed { path, change, zxid });
            }
            return Ok(answer);
        }
    }

    fn watching(&mut self, path: &str, watch: Watch, header: ReplyHeader) {
        let exists = header.err == ErrorCode::OK;
        let watch = match (watch, exists) {
            (Watch::Exists, false) => Watch::Exists,
            (Watch::Exists | Watch::Data, true) => Watch::Data,
            (Watch::Children, true) => Watch::Children,
            (Watch::Data | Watch::Children, false) => return,
        };
        self.watches.insert((path.to_owned(), watch), true);
        let path = path.to_owned();
        self.saw(TreeSeen::Watching { path, watch, zxid: header.zxid as u64 });
    }

    async fn send(&mut self, xid: i32, request: &Request<'_>) -> Result<(), Gone> {
        let mut out = BytesMut::new();
        encode_request(xid, request, &mut out).expect("a request is short");
        let Some(link) = &mut self.link else { return Err(Gone::Link) };
        if link.writer.write_all(&out).await.is_err() {
            self.link = None;
            return Err(Gone::Link);
        }
        Ok(())
    }

    /// Reads the next frame, if one comes before `until`, and pings when it is time.
    async fn pump(&mut self, until: Instant) -> Result<Option<Came>, Gone> {
        loop {
            let silence = self.timeout * 2 / 3;
            let Some(link) = &mut self.link else { return Err(Gone::Link) };
            match link.frames.next_frame() {
                Ok(None) => {}
                Ok(Some(frame)) => match self.take(frame) {
                    Some(came) => return Ok(Some(came)),
                    None => continue,
                },
                Err(_) => {
                    self.complain(format_args!("a frame of an impossible length"));
                    self.link = None;
                    return Err(Gone::Link);
                }
            }
            let Some(link) = &mut self.link else { return Err(Gone::Link) };
            let (ping_at, silent_at) = (link.ping_at, link.heard + silence);
            let mut buffer = [0; 4_096];
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(silent_at) => {
                    self.link = None;
                    return Err(Gone::Link);
                }
                read = link.reader.read(&mut buffer) => match read {
                    Ok(count) if count > 0 => {
                        link.frames.input().extend_from_slice(&buffer[..count]);
                        link.heard = Instant::now();
                    }
                    _ => {
                        self.link = None;
                        return Err(Gone::Link);
                    }
                },
                () = tokio::time::sleep_until(ping_at) => self.ping().await?,
                () = tokio::time::sleep_until(until) => return Ok(None),
            }
        }
    }

    async fn ping(&mut self) -> Result<(), Gone> {
        let (now, only_reads) = (self.machine.local(), self.machine.only_reads());
        let Some(link) = &mut self.link else { return Err(Gone::Link) };
        let (xid, request, interval) = if only_reads {
            link.next_xid += 1;
            let read = Read { path: Some("/"), watch: false };
            (link.next_xid - 1, Request::Exists(read), self.timeout / 10)
        } else {
            (xids::PING, Request::Ping, self.timeout / 3)
        };
        link.pings.push_back((xid, now));
        link.ping_at = Instant::now() + interval;
        self.send(xid, &request).await
    }

    /// Takes one frame.
    fn take(&mut self, frame: Bytes) -> Option<Came> {
        let Ok((header, mut body)) = decode_reply(&frame) else {
            self.complain(format_args!("a frame without a header"));
            self.link = None;
            return None;
        };
        if header.xid == xids::NOTIFICATION {
            let Ok(event) = body.read::<WatcherEvent<'_>>() else {
                self.complain(format_args!("a notification that isn't one"));
                self.link = None;
                return None;
            };
            self.notified(&event, header.zxid);
            return Some(Came::News);
        }
        self.told(header.zxid);
        let is_ping = header.xid == xids::PING;
        let pings = &mut self.link.as_mut()?.pings;
        if let Some((_, sent)) = pings.pop_front_if(|(xid, _)| *xid == header.xid) {
            let before = if is_ping { Duration::ZERO } else { self.timeout * 2 / 3 };
            self.proven = self.proven.max(sent.saturating_sub(before.as_nanos() as u64));
            return None;
        }
        if is_ping {
            self.complain(format_args!("a ping's answer too many"));
            return None;
        }
        Some(Came::Reply(Answer { header, frame }))
    }

    fn told(&mut self, zxid: i64) {
        self.last_zxid = self.last_zxid.max(zxid);
        self.saw(TreeSeen::Told { zxid: zxid as u64 });
    }

    fn notified(&mut self, event: &WatcherEvent<'_>, zxid: i64) {
        let path = event.path.unwrap_or_default().to_owned();
        let (change, gone): (_, &[Watch]) = match event.kind {
            EventType::NodeCreated => (Change::Created, &[Watch::Exists, Watch::Data]),
            EventType::NodeDeleted => {
                (Change::Deleted, &[Watch::Exists, Watch::Data, Watch::Children])
            }
            EventType::NodeDataChanged => (Change::DataChanged, &[Watch::Exists, Watch::Data]),
            EventType::NodeChildrenChanged => (Change::ChildrenChanged, &[Watch::Children]),
        };
        for &watch in gone {
            self.watches.remove(&(path.clone(), watch));
        }
        self.has_news = true;
        self.last_zxid = self.last_zxid.max(zxid);
        self.saw(TreeSeen::Notified { path, change, zxid: zxid as u64 });
    }

    /// Something that no server may do.
    fn complain(&self, what: std::fmt::Arguments<'_>) {
        self.saw(TreeSeen::Nonsense { what: what.to_string() });
    }

    // ------------------------------------------------------------------------- to the next server

    /// Finds a server, and goes on with the session there.
    async fn connect(&mut self) -> Result<(), Gone> {
        let began = Instant::now();
        loop {
            let server = self.chance.below(self.servers.len() as u64) as usize;
            let (host, port) = self.servers[server].clone();
            let limit = (self.timeout / 3).max(Duration::from_millis(200));
            if let Ok(Some(link)) = timeout(limit, self.shake_hands(&host, port)).await {
                self.link = Some(link?);
                // A watch that isn't set anew is gone.
                if self.chance.one_in(2) {
                    self.watches.clear();
                    self.has_news = true;
                }
                if self.watches.is_empty() || self.watch_anew().await.is_ok() {
                    return Ok(());
                }
                continue;
            }
            if began.elapsed() > PATIENCE {
                return Err(Gone::Session);
            }
            let pause = self.chance.between(5, 100);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn shake_hands(&mut self, host: &str, port: u16) -> Option<Result<Link, Gone>> {
        let Connection { mut reader, mut writer } = self.network.connect(host, port).await.ok()?;
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.last_zxid,
            timeout_ms: self.timeout.as_millis() as i32,
            session_id: self.session,
            password: Hidden(Some(&self.password)),
            read_only: Some(false),
        };
        let mut out = BytesMut::new();
        request.encode(&mut out).ok()?;
        let sent = self.machine.local();
        writer.write_all(&out).await.ok()?;
        let mut frames = Frames::new(FRAME_BYTES_MAX);
        let frame = loop {
            if let Some(frame) = frames.next_frame().ok()? {
                break frame;
            }
            if reader.read_buf(frames.input()).await.ok()? == 0 {
                return None;
            }
        };
        let response = ConnectResponse::decode(&frame).ok()?;
        if response.session_id == 0 || response.timeout_ms <= 0 {
            return (self.session != 0).then_some(Err(Gone::Session));
        }
        if self.session == 0 {
            self.session = response.session_id;
            self.proven = sent;
            let session = Some(SessionId(response.session_id as u64));
            self.see(Seen::Opened { client: self.id, session });
        } else if self.session != response.session_id {
            self.complain(format_args!("another session than the one that was asked for"));
            return Some(Err(Gone::Session));
        }
        self.password = response.password.0.unwrap_or_default().to_vec();
        self.timeout = Duration::from_millis(response.timeout_ms as u64);
        self.saw(TreeSeen::Connected { zxid: self.last_zxid as u64 });
        let now = Instant::now();
        let pings = VecDeque::new();
        Some(Ok(Link { reader, writer, frames, next_xid: 1, pings, ping_at: now, heard: now }))
    }

    /// Sets the watches of the last connection on this one.
    async fn watch_anew(&mut self) -> Result<(), Gone> {
        let since = self.last_zxid as u64;
        let watches: Vec<(String, Watch)> = self.watches.keys().cloned().collect();
        let of = |kind: Watch| {
            let paths = watches.iter().filter(move |(_, watch)| *watch == kind);
            Strings::of(paths.map(|(path, _)| Some(path.as_str())))
        };
        let request = Request::SetWatches(SetWatches {
            relative_zxid: self.last_zxid,
            data: of(Watch::Data),
            exist: of(Watch::Exists),
            child: of(Watch::Children),
        });
        self.saw(TreeSeen::Rewatching { since, watches: watches.clone() });
        let answer = self.ask(&request).await?;
        if answer.header.err != ErrorCode::OK {
            self.complain(format_args!("setWatches is refused: {:?}", answer.header.err));
        }
        self.saw(TreeSeen::Rewatched { zxid: answer.header.zxid as u64 });
        Ok(())
    }
}

/// The path and the watch that a read leaves.
fn watched<'a>(request: &Request<'a>) -> Option<(&'a str, Watch)> {
    let (read, watch) = match request {
        Request::GetData(read) => (read, Watch::Data),
        Request::Exists(read) => (read, Watch::Exists),
        Request::GetChildren(read) => (read, Watch::Children),
        _ => return None,
    };
    read.path.filter(|_| read.watch).map(|path| (path, watch))
}

/// What a request has changed, by its answer.
fn changed(request: &Request<'_>, answer: &Answer) -> Vec<(String, Change)> {
    let Some(reply) = answer.reply(request.op()) else { return Vec::new() };
    let one = |path: Option<&str>, change| {
        path.map(|path| (path.to_owned(), change)).into_iter().collect()
    };
    match (request, reply) {
        (Request::Create(_), Reply::Path(path) | Reply::PathStat(path, _)) => {
            one(path, Change::Created)
        }
        (Request::Delete(delete), _) => one(delete.path, Change::Deleted),
        (Request::SetData(set), _) => one(set.path, Change::DataChanged),
        (Request::Multi(parts), Reply::Multi(results)) => {
            let of = |(part, result)| match (part, result) {
                (
                    Op::Create(_),
                    OpResult::Created { path } | OpResult::CreatedWithStat { path, .. },
                ) => Some((path?.to_owned(), Change::Created)),
                (Op::Delete(delete), OpResult::Deleted) => {
                    Some((delete.path?.to_owned(), Change::Deleted))
                }
                (Op::SetData(set), OpResult::DataSet(_)) => {
                    Some((set.path?.to_owned(), Change::DataChanged))
                }
                _ => None,
            };
            parts.iter().zip(results.iter()).filter_map(of).collect()
        }
        _ => Vec::new(),
    }
}
