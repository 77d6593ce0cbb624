//! One connection: its first bytes, its two halves, and its end.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_node::Sink;
use lockkeeper_wire::jute::{ConnectRequest, Frames};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::ids::Id;
use super::outbox::{Outbox, Session, Turn};
use super::requests::{Requests, Taken, Write};
use super::words::{MASK_BYTES, Word};
use super::{Client, Front, handshake, words};
use crate::limits::{
    FAREWELL_TIMEOUT, FRAME_TIMEOUT, ROOM_PAUSE, ROOM_TIMEOUT, WRITE_TIMEOUT,
    ZOOKEEPER_HANDSHAKE_TIMEOUT,
};
use crate::socket::{linger, read_some};

/// Serves one client from its first byte to its end.
pub(super) async fn serve<S>(front: &Arc<Front>, socket: S, client: Client, is_secure: bool)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut reader, mut writer) = tokio::io::split(socket);
    let mut frames = Frames::new(front.settings.frame_bytes_max);
    let deadline = Instant::now() + ZOOKEEPER_HANDSHAKE_TIMEOUT;
    let word = timeout_at(deadline, first_word(&mut reader, &mut frames)).await;
    let Ok(Ok(word)) = word else { return };
    if let Some(word) = Word::of(word) {
        let mask = timeout_at(deadline, mask(word, &mut reader, &mut frames)).await;
        let Ok(Ok(mask)) = mask else { return };
        let answer = answer(front, word, mask, client.address).await;
        // At one go: clients read it so.
        let answered = async {
            writer.write_all(answer.as_bytes()).await?;
            writer.shutdown().await
        };
        if timeout(WRITE_TIMEOUT, answered).await.is_ok_and(|answered| answered.is_ok()) {
            linger(&mut reader).await;
        }
        return;
    }
    let first = timeout_at(deadline, first_frame(&mut reader, &mut frames)).await;
    let Ok(Some(first)) = first else { return };
    let Ok(request) = ConnectRequest::decode(&first) else { return };
    let connection = Connection::join(front, client, is_secure);
    let Connection { outbox, sink, .. } = &connection;
    let reading = async {
        let session = handshake::shake(front, outbox, sink, &request).await;
        if let Some(session) = session {
            let requests = Requests::new(front, outbox, sink, session);
            // A session that was resumed has to be confirmed before its client hears of it.
            requests.heard();
            read(&mut reader, &mut frames, front, &requests, outbox, session).await;
        }
        outbox.finish();
        std::future::pending::<std::convert::Infallible>().await
    };
    let cut_off = async {
        outbox.is_closing().await;
        sleep(FAREWELL_TIMEOUT).await;
    };
    let has_heard_all = tokio::select! {
        never = reading => match never {},
        () = cut_off => false,
        // An error means that the client is gone, which needs no words.
        written = write(&mut writer, front, outbox) => written.is_ok(),
    };
    drop(connection);
    if has_heard_all {
        linger(&mut reader).await;
    }
}

/// The answer to a word. One that walks through all of something is made on a thread of its own, so
/// that nobody waits for it but those who want another such.
async fn answer(
    front: &Arc<Front>,
    word: Word,
    mask: [u8; MASK_BYTES],
    address: SocketAddr,
) -> String {
    let Front { settings, walks, .. } = &**front;
    if !word.walks() || !settings.words.has(word, settings.read_only) {
        return words::answer(word, mask, address, &**front);
    }
    let source = Arc::clone(front);
    walks.aside(move || words::answer(word, mask, address, &*source)).await
}

/// A connection among those that the node and the hub know. They forget it when it is dropped,
/// however it ends.
struct Connection {
    front: Arc<Front>,
    outbox: Arc<Outbox>,
    sink: Arc<dyn Sink>,
}

impl Connection {
    fn join(front: &Arc<Front>, client: Client, is_secure: bool) -> Self {
        let Client { address, ids } = client;
        let mut own = vec![Id::new("ip", &address.ip().to_canonical().to_string())];
        for (scheme, id) in &ids {
            if scheme == "x509" && front.settings.x509_super.as_ref() == Some(id) {
                own.push(Id::new("super", ""));
            }
            own.push(Id::new(scheme, id));
        }
        front.hub.subscribe(&front.node, &front.hub_sink);
        let outbox = Outbox::new(front, address, is_secure, own);
        let sink: Arc<dyn Sink> = outbox.clone();
        Self { front: Arc::clone(front), outbox, sink }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.outbox.shut();
        self.front.node.detach(&self.sink);
        let hub = Arc::clone(&self.front.hub);
        let mut leaving = hub.leave(self.outbox.watcher());
        if hub.forget(&mut leaving) {
            tokio::spawn(async move {
                while hub.forget(&mut leaving) {
                    yield_now().await;
                }
            });
        }
    }
}

async fn first_word(
    reader: &mut (impl AsyncRead + Unpin),
    frames: &mut Frames,
) -> io::Result<[u8; 4]> {
    loop {
        if let Some(word) = frames.first_word() {
            return Ok(word);
        }
        if read_some(reader, frames.input()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// What belongs to a word.
async fn mask(
    word: Word,
    reader: &mut (impl AsyncRead + Unpin),
    frames: &mut Frames,
) -> io::Result<[u8; MASK_BYTES]> {
    if word != Word::Stmk {
        return Ok([0; MASK_BYTES]);
    }
    loop {
        if let Some(mask) = frames.input().get(4..).and_then(<[u8]>::first_chunk) {
            return Ok(*mask);
        }
        if read_some(reader, frames.input()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn first_frame(reader: &mut (impl AsyncRead + Unpin), frames: &mut Frames) -> Option<Bytes> {
    loop {
        match frames.next_frame() {
            Ok(Some(frame)) => return Some(frame),
            Ok(None) if read_some(reader, frames.input()).await.unwrap_or(0) > 0 => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

/// The reading half: takes requests until the client is gone, or is to be told to go. What is read
/// behind a request that has to wait stays where it is, and the client waits with it.
async fn read(
    reader: &mut (impl AsyncRead + Unpin),
    frames: &mut Frames,
    front: &Front,
    requests: &Requests,
    outbox: &Outbox,
    session: Session,
) {
    let mut stopping = front.stopping.subscribe();
    let mut stopped = pin!(stopping.wait_for(|is_stopping| *is_stopping));
    let mut silent = pin!(sleep(session.timeout));
    let mut late = pin!(sleep(FRAME_TIMEOUT));
    let mut forsaken = pin!(sleep(session.timeout));
    let mut is_inside = false;
    let mut is_waiting = false;
    loop {
        let drained = drain(frames, front, requests, outbox, session).await;
        let Some(Drained { taken, is_full }) = drained else { return };
        if taken {
            silent.as_mut().reset(Instant::now() + session.timeout);
        }
        let has_begun = !is_full && !frames.input().is_empty();
        // The deadline is that of the frame's first byte: dribbling doesn't move it.
        if has_begun && (taken || !is_inside) {
            late.as_mut().reset(Instant::now() + FRAME_TIMEOUT);
        }
        is_inside = has_begun;
        let unconfirmed = outbox.is_unconfirmed();
        if let Some(patience) = unconfirmed.filter(|_| !is_waiting || forsaken.is_elapsed()) {
            forsaken.as_mut().reset(Instant::now() + patience);
        }
        is_waiting = unconfirmed.is_some();
        tokio::select! {
            read = read_some(reader, frames.input()), if !is_full => {
                if read.unwrap_or(0) == 0 {
                    return;
                }
            }
            () = outbox.change(), if is_full || requests.holds() => {
                if is_full {
                    silent.as_mut().reset(Instant::now() + session.timeout);
                }
            }
            _ = &mut stopped => return,
            () = &mut late, if is_inside => return,
            () = &mut forsaken, if unconfirmed.is_some() => {
                if outbox.is_forsaken() {
                    tracing::warn!(session = %session.id, "nobody confirms a session any more: \
                        its client is sent elsewhere");
                    return;
                }
            }
            () = &mut silent, if !is_full => {
                tracing::debug!(session = %session.id, "a client was silent for its time-out");
                return;
            }
        }
    }
}

/// How far the frames that have come were taken.
struct Drained {
    /// At least one was.
    taken: bool,
    /// There may be more, for which there is no room yet.
    is_full: bool,
}

/// Takes every frame that has come, as long as there is room. `None`: the connection is to be
/// closed.
async fn drain(
    frames: &mut Frames,
    front: &Front,
    requests: &Requests,
    outbox: &Outbox,
    session: Session,
) -> Option<Drained> {
    while let Some(write) = requests.next_released() {
        match requests.take_late(write) {
            Taken::Done => {}
            Taken::NoRoom(write) => wait_for_room(requests, write).await?,
            Taken::Close => return None,
        }
    }
    let mut taken = false;
    let mut is_full = false;
    loop {
        if !outbox.has_room() {
            is_full = true;
            break;
        }
        let frame = match frames.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(bad) => {
                tracing::warn!(session = %session.id, client = %outbox.address, %bad,
                    "a frame that is too long: its connection is closed");
                return None;
            }
        };
        taken = true;
        match requests.take(&frame) {
            Taken::Done => {}
            Taken::NoRoom(write) => {
                // It was heard, however long it waits now.
                requests.heard();
                wait_for_room(requests, write).await?;
            }
            Taken::Close => return None,
        }
    }
    if taken {
        requests.heard();
    }
    if outbox.is_runnable() {
        front.node.query(|state, _| outbox.go_on(state));
    }
    Some(Drained { taken, is_full })
}

/// The node's queue is full. Nothing was done, and nothing behind this request was taken yet, so
/// it waits for room: ZooKeeper's clients know no answer that would make them ask again later, and
/// reconnecting would only make more to do.
async fn wait_for_room(requests: &Requests, mut write: Write) -> Option<()> {
    let deadline = Instant::now() + ROOM_TIMEOUT;
    let mut pause = ROOM_PAUSE;
    while Instant::now() < deadline {
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
        write = match requests.take_late(write) {
            Taken::Done => return Some(()),
            Taken::NoRoom(write) => write,
            Taken::Close => return None,
        };
    }
    None
}

/// The writing half: one write for all that has come together since the last one.
async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    front: &Front,
    outbox: &Outbox,
) -> io::Result<()> {
    /// What an idle connection may keep for its next answers.
    const KEPT_BYTES_MAX: usize = 64 << 10;

    let mut buffer = BytesMut::new();
    let go_on = || front.node.query(|state, _| outbox.go_on(state));
    loop {
        let turn = outbox.take(&mut buffer, &front.unread).await;
        if matches!(turn, Turn::GoOn) {
            go_on();
            front.unread.pass_on();
            continue;
        }
        let sent = async {
            writer.write_all(&buffer).await?;
            // TLS keeps the end of what it took while the client is slow to read.
            writer.flush().await
        };
        timeout(WRITE_TIMEOUT, sent).await??;
        match turn {
            Turn::Farewell => return writer.shutdown().await,
            _ if buffer.capacity() <= KEPT_BYTES_MAX => buffer.clear(),
            _ => buffer = BytesMut::new(),
        }
        // What waited for the client to read may be answered now.
        if outbox.is_runnable() {
            yield_now().await;
            go_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use lockkeeper_core::{
        AclRef, Command, IdRef, NodeKind, OwnerRef, Reply, Secret, SessionId, Stamp, StateMachine,
        TreeOp, TreeReply, perms,
    };
    use lockkeeper_node::{
        Clock, Environment, Monotonic, NodeConfig, NodeHandle, Unavailable, WatchId,
    };
    use lockkeeper_wire::jute::{ErrorCode, Hidden, OpCode, Read, Request, encode_request};
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::sync::Notify;

    use super::super::outbox::{HANDSHAKE, OPENING, Offer};
    use super::super::writes::Asked;
    use super::super::{Client, Whitelist, ZooKeeper, ZooKeeperSettings, counts, hub};
    use super::*;
    use crate::unread::Unread;

    const LONG: usize = 300_000;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Runs a test's steps on one thread, with a directory of its own.
    fn run(steps: impl AsyncFnOnce(&Path)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let data_dir = tempfile::tempdir().unwrap();
        runtime.block_on(async { timeout(PATIENCE, steps(data_dir.path())).await.unwrap() });
    }

    /// Waits for one answer after the other.
    #[derive(Default)]
    struct Asking(Notify);

    impl Sink for Asking {
        fn reply(&self, _: u64, _: Result<&Reply, &Unavailable>, _: &StateMachine, _: Stamp) {
            self.0.notify_one();
        }
        fn event(
            &self,
            _: Option<WatchId>,
            _: &lockkeeper_core::Event,
            _: &StateMachine,
            _: Stamp,
        ) {
        }
        fn confirmed(&self, _: u64) {}
        fn flush(&self) {}
        fn close(&self, _: &'static str) {}
    }

    const SESSION: SessionId = SessionId(1);

    fn create<'a>(path: &'a str, data: Option<&'a [u8]>) -> TreeOp<'a> {
        let anyone = IdRef { scheme: "world", id: "anyone" };
        let acl = vec![AclRef { perms: perms::ALL, id: anyone }];
        TreeOp::Create { path, data, acl, kind: NodeKind::Persistent, sequential: false }
    }

    async fn change(node: &NodeHandle, ops: Vec<TreeOp<'_>>) {
        let (session, ids) = (SESSION, Vec::new());
        propose(node, &Command::Tree { session, connection: 0, ids, enforce_quota: false, ops })
            .await;
    }

    async fn propose(node: &NodeHandle, command: &Command<'_>) {
        let asking = Arc::new(Asking::default());
        let sink: Arc<dyn Sink> = asking.clone();
        node.propose(command, 0, &sink);
        asking.0.notified().await;
    }

    /// A node with long data at `/long` and little at `/`.
    async fn node(environment: Environment, data_dir: &Path) -> NodeHandle {
        let mut config = NodeConfig::new(1, data_dir.to_owned());
        config.free_space_bytes_min = 0;
        let node = NodeHandle::start(config, environment).await.unwrap();
        node.serving().wait_for(|serving| serving.is_ready).await.unwrap();
        let (session, secret) = (SESSION, Secret([1; 16]));
        let owner = OwnerRef::default();
        propose(&node, &Command::OpenSession { session, secret, ttl_ms: 60_000, owner }).await;
        change(&node, vec![create("/long", Some(&[7; LONG]))]).await;
        assert!(node.query(|state, _| state.tree().node("/long").is_some()));
        node
    }

    /// The same, and its front end.
    async fn front(data_dir: &Path, unread: &Arc<Unread>) -> (NodeHandle, ZooKeeper) {
        let settings = ZooKeeperSettings { words: Whitelist::All, ..ZooKeeperSettings::default() };
        let environment = Environment::system();
        let (clock, random) = (Arc::clone(&environment.clock), Arc::clone(&environment.random));
        let node = node(environment, data_dir).await;
        let unread = Arc::clone(unread);
        let zookeeper = ZooKeeper::beside(node.clone(), settings, clock, random, unread);
        (node, zookeeper)
    }

    /// Whoever connects, and has said nothing.
    fn connect(zookeeper: &ZooKeeper) -> DuplexStream {
        let (stream, other) = duplex(1_024);
        let address: SocketAddr = ([127, 0, 0, 1], 1).into();
        let zookeeper = zookeeper.clone();
        let client = Client { address, ids: Vec::new() };
        tokio::spawn(async move { zookeeper.serve(other, client).await });
        stream
    }

    /// A client with a session.
    async fn join(zookeeper: &ZooKeeper) -> DuplexStream {
        let mut stream = connect(zookeeper);
        let mut bytes = BytesMut::new();
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: 60_000,
            session_id: 0,
            password: Hidden(None),
            read_only: None,
        };
        request.encode(&mut bytes).unwrap();
        stream.write_all(&bytes).await.unwrap();
        frame(&mut stream).await;
        stream
    }

    async fn send(stream: &mut DuplexStream, request: &Request<'_>) {
        let mut bytes = BytesMut::new();
        encode_request(1, request, &mut bytes).unwrap();
        stream.write_all(&bytes).await.unwrap();
    }

    /// A client that has asked for these data, and has read nothing of them.
    async fn ask(zookeeper: &ZooKeeper, path: &str) -> DuplexStream {
        let mut stream = join(zookeeper).await;
        send(&mut stream, &Request::GetData(Read { path: Some(path), watch: false })).await;
        stream
    }

    async fn frame(stream: &mut DuplexStream) -> usize {
        let length = usize::try_from(stream.read_i32().await.unwrap()).unwrap();
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await.unwrap();
        length
    }

    /// A clock that only suspensions move.
    #[derive(Default)]
    struct Suspended(AtomicU64);

    impl Suspended {
        fn pass(&self, time: Duration) {
            self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
        }
    }

    impl Clock for Suspended {
        fn monotonic(&self) -> Monotonic {
            Monotonic(self.0.load(Ordering::Relaxed))
        }
        fn wall_ms(&self) -> u64 {
            0
        }
    }

    #[test]
    fn whoever_was_suspended_for_longer_than_a_lease_asks_before_it_answers() {
        const TIMEOUT: Duration = Duration::from_secs(6);

        run(async |data_dir| {
            let environment = Environment::system();
            let random = Arc::clone(&environment.random);
            let node = node(environment, data_dir).await;
            let clock = Arc::new(Suspended::default());
            let (settings, own) = (ZooKeeperSettings::default(), clock.clone());
            let zookeeper = ZooKeeper::new(node.clone(), settings, own, random);
            let outbox =
                Outbox::new(&zookeeper.front, ([127, 0, 0, 1], 1).into(), false, Vec::new());
            let (id, password) = (SessionId(2), [1; 16]);
            let session = Session { id, timeout: TIMEOUT, connection: OPENING, is_local: false };
            outbox.begin(Offer { session, password, read_only: None });
            node.query(|state, _| outbox.reply(HANDSHAKE, Ok(&Reply::Done), state, Stamp(0)));
            let unread = Unread::default();
            // Whether what there is to be sent may be.
            let sends = || async {
                let mut buffer = BytesMut::new();
                tokio::select! {
                    biased;
                    _ = outbox.take(&mut buffer, &unread) => !buffer.is_empty(),
                    () = std::future::ready(()) => false,
                }
            };
            let answer = || outbox.fail(1, OpCode::EXISTS, ErrorCode::NO_NODE);
            let go_on = || node.query(|state, _| outbox.go_on(state));
            assert!(sends().await, "the session");
            answer();
            go_on();
            assert!(sends().await, "the lease is fresh");

            let beat = outbox.beat();
            assert_eq!(beat, None, "nobody has to be asked yet");
            clock.pass(TIMEOUT);
            answer();
            go_on();
            assert!(!sends().await && outbox.is_unconfirmed().is_some(), "it may be over");
            assert!(!outbox.is_forsaken(), "nobody was asked");
            let write = outbox.ask(2, OpCode::DELETE, Asked::One(OpCode::DELETE), 0);
            let deleted = Reply::Tree(vec![TreeReply::Deleted]);
            node.query(|state, _| outbox.reply(write, Ok(&deleted), state, Stamp(0)));
            assert!(!sends().await, "the leader counts by heartbeats alone");
            let beat = outbox.beat().unwrap();
            // What was asked for before another suspension says nothing of the time after it.
            clock.pass(TIMEOUT);
            outbox.confirmed(beat);
            assert!(!sends().await);
            let (lost, beat) = (outbox.beat().unwrap(), outbox.beat());
            assert_eq!(beat, None, "one is under way");
            clock.pass(TIMEOUT);
            assert!(outbox.is_forsaken(), "it was asked for in vain");
            outbox.confirmed(lost);
            assert!(!sends().await);
            let beat = outbox.beat().unwrap();
            outbox.confirmed(beat);
            assert!(sends().await && !outbox.is_forsaken());
            drop(zookeeper);
            node.stop().await;
        });
    }

    #[test]
    fn long_replies_wait_while_others_are_not_read() {
        run(async |data_dir| {
            let unread = Arc::new(Unread::new(2 * LONG));
            let (node, zookeeper) = front(data_dir, &unread).await;
            let mut crowd = Vec::new();
            for _ in 0..10 {
                crowd.push(ask(&zookeeper, "/long").await);
            }
            // Whoever asks for little is answered, and by then the others have been looked at.
            let mut modest = ask(&zookeeper, "/").await;
            assert!(frame(&mut modest).await < 200);
            assert!(!unread.has_room(), "some have their replies");
            assert!(unread.bytes() < 3 * LONG + 10_000, "{} bytes wait", unread.bytes());
            // Those who were first hang up or read, and the others are next.
            drop(crowd.remove(0));
            for stream in &mut crowd {
                assert!(frame(stream).await > LONG);
            }
            drop((crowd, modest, zookeeper));
            node.stop().await;
        });
    }

    #[test]
    fn nobody_waits_for_a_long_count() {
        const BELOW: usize = 20 * counts::STRETCH;

        run(async |data_dir| {
            let (node, zookeeper) = front(data_dir, &Arc::default()).await;
            let paths: Vec<_> = (0..BELOW).map(|at| format!("/long/{at}")).collect();
            let ops = paths.iter().map(|path| create(path, None)).collect();
            change(&node, ops).await;
            let (mut counting, mut other) = (join(&zookeeper).await, join(&zookeeper).await);
            send(&mut counting, &Request::GetAllChildrenNumber(Some("/long"))).await;
            send(&mut other, &Request::WhoAmI).await;
            tokio::select! {
                biased;
                _ = frame(&mut counting) => panic!("the count goes first"),
                _ = frame(&mut other) => {}
            }
            assert_eq!(counting.read_i32().await.unwrap(), 20);
            let mut reply = [0; 20];
            counting.read_exact(&mut reply).await.unwrap();
            assert_eq!(reply[16..], i32::try_from(BELOW).unwrap().to_be_bytes());
            drop((counting, other, zookeeper));
            node.stop().await;
        });
    }

    #[test]
    fn nobody_waits_for_what_a_client_that_goes_has_watched() {
        const WATCHED: usize = 20 * hub::STRETCH;

        run(async |data_dir| {
            let (node, zookeeper) = front(data_dir, &Arc::default()).await;
            let (mut watching, mut other) = (join(&zookeeper).await, join(&zookeeper).await);
            for at in 0..WATCHED {
                let path = format!("/absent-{at}");
                for stream in [&mut watching, &mut other] {
                    send(stream, &Request::Exists(Read { path: Some(&path), watch: true })).await;
                    frame(stream).await;
                }
            }
            let hub = &zookeeper.front.hub;
            let watches = || hub.watch_counts().data;
            assert_eq!(watches(), 2 * WATCHED);
            let of = |outbox: &Arc<Outbox>| hub.data_watches(outbox.watcher()).len();
            let by_connection = || hub.connections().iter().map(of).collect::<Vec<_>>();
            assert_eq!(by_connection(), [WATCHED, WATCHED]);
            drop(watching);
            // How many there are whenever it is this task's turn.
            let mut seen = BTreeSet::new();
            while watches() > WATCHED {
                seen.insert(watches());
                yield_now().await;
            }
            assert!(seen.len() > 10, "{seen:?}");
            // What others watch, they watch on.
            assert_eq!(by_connection(), [WATCHED]);
            change(&node, vec![create("/absent-7", None)]).await;
            frame(&mut other).await;
            assert_eq!(watches(), WATCHED - 1);
            drop((other, zookeeper));
            node.stop().await;
        });
    }

    #[test]
    fn whoever_walks_through_all_keeps_only_his_like_waiting() {
        run(async |data_dir| {
            let (node, zookeeper) = front(data_dir, &Arc::default()).await;
            let ask = async |word: &[u8]| {
                let mut stream = connect(&zookeeper);
                stream.write_all(word).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                answer
            };
            let turn = zookeeper.front.walks.turn().await;
            tokio::select! {
                biased;
                _ = ask(b"stat") => panic!("another one walks"),
                answer = ask(b"srvr") => assert!(answer.contains("Mode: standalone"), "{answer}"),
            }
            drop(turn);
            let answer = ask(b"stat").await;
            assert!(answer.contains("Clients:\n"), "{answer}");
            drop(zookeeper);
            node.stop().await;
        });
    }
}
