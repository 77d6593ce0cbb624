//! A server on a thread of its own, and clients that speak raw bytes to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use lockkeeper_node::{Environment, Member, Start, Timers};
use lockkeeper_server::{Server, ServerConfig, StartError};
use lockkeeper_wire::native::{
    self as wire, Acquire, Frames, OpenSession, REQUEST_BYTES_MAX, Release, Request, Response,
    SessionState, request::Body as Asks, response::Body,
};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Longer than anything here takes, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The lease of sessions that aren't to end: nobody beats for them.
pub(crate) const LONG_TTL_MS: u32 = 600_000;

pub(crate) const SECRET: [u8; 16] = *b"sixteen letters!";

/// A single node with its front ends. Dropping it stops it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Of the listener for ZooKeeper's clients, if there is one.
    pub(crate) zookeeper: Option<SocketAddr>,
    /// Of the one for those that speak TLS.
    pub(crate) zookeeper_tls: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    data_dir: Option<TempDir>,
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts with what `change` makes of the defaults.
    pub(crate) fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), change)
    }

    pub(crate) fn start_in(data_dir: TempDir, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let mut config = ServerConfig::loopback(1, data_dir.path().to_owned());
        config.node.free_space_bytes_min = 0;
        // The clients here ask once. By the timers a node also knows how long it may wait for its
        // disk before it says that an outcome is unknown: ten seconds with these, one by default.
        config.node.timers = Timers::WAN;
        change(&mut config);
        let (started, has_started) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let server = Server::start(config, Environment::system()).await.unwrap();
                let zookeeper = (server.zookeeper_address(), server.zookeeper_tls_address());
                started.send((server.tcp_address(), zookeeper)).unwrap();
                let _ = stopped.await;
                server.stop().await;
            });
        });
        let (address, (zookeeper, zookeeper_tls)) =
            has_started.recv_timeout(PATIENCE).expect("the server starts");
        Self {
            zookeeper,
            zookeeper_tls,
            address: address.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
            stop: Some(stop),
            thread: Some(thread),
            data_dir: Some(data_dir),
        }
    }

    /// Stops in good order, and leaves the data.
    pub(crate) fn stop(mut self) -> TempDir {
        self.end();
        self.data_dir.take().unwrap()
    }

    pub(crate) fn data_dir(&self) -> &Path {
        self.data_dir.as_ref().unwrap().path()
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(self.connect_silently())
    }

    pub(crate) fn connect_silently(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Whatever somebody has done to this server: others are served.
    pub(crate) fn assert_serves(&self) {
        let mut client = self.connect();
        client.open(fresh_id());
        let token = client.acquire(2, "somebody-else");
        client.ask(3, Asks::Release(Release { acquire: 2 }));
        let released = client.answer(3);
        assert_eq!(released, Body::Released(wire::Released { token, remaining: 0 }));
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The members of a cluster, at addresses that nobody else has: every one of them must know all
/// before it starts, and a port alone may be given to another test until then.
pub(crate) struct Members(Vec<Member>);

impl Members {
    pub(crate) fn three() -> Self {
        let pid = std::process::id();
        let host = format!("127.{}.{}.{}", 1 + (pid >> 8) % 250, pid % 256, 1 + fresh_id() % 250);
        let bind = |id| (id, TcpListener::bind((host.as_str(), 0)).unwrap());
        let listeners: Vec<(u64, TcpListener)> = (1..=3).map(bind).collect();
        let members = listeners.iter().map(|(id, listener)| {
            let peer_address = listener.local_addr().unwrap().to_string();
            Member { id: *id, peer_address }
        });
        Self(members.collect())
    }

    /// Starts the member `id`, with what `change` makes of the defaults.
    pub(crate) fn start(&self, id: u64, change: impl FnOnce(&mut ServerConfig)) -> Running {
        let member = self.0.iter().find(|member| member.id == id).unwrap();
        Running::start_with(|config| {
            config.node.id = id;
            config.node.listen_peer = Some(member.peer_address.clone());
            config.node.start = Start::Together(self.0.clone());
            // A compromise: elections don't take long, and a busy machine seldom makes one.
            config.node.timers = Timers {
                heartbeat: Duration::from_millis(100),
                election_min: Duration::from_millis(500),
                election_max: Duration::from_secs(1),
            };
            change(config);
        })
    }
}

/// Starts a server that is expected not to start.
pub(crate) fn start_error(config: ServerConfig) -> StartError {
    runtime().block_on(async { Server::start(config, Environment::system()).await }).unwrap_err()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn fresh_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A client that does what it is told, and nothing by itself.
pub(crate) struct Client<S = TcpStream> {
    pub(crate) stream: S,
    frames: Frames<Response>,
    is_greeted: bool,
}

impl<S: Read + Write> Client<S> {
    /// Greets, and doesn't wait for an answer.
    pub(crate) fn new(mut stream: S) -> Self {
        let mut greeting = BytesMut::new();
        wire::greet(&mut greeting);
        stream.write_all(&greeting).unwrap();
        Self::after_greeting(stream)
    }

    /// For a connection on which something else was sent.
    pub(crate) fn after_greeting(stream: S) -> Self {
        Self { stream, frames: Frames::of_responses(BytesMut::new()), is_greeted: false }
    }

    pub(crate) fn ask(&mut self, id: u64, body: Asks) {
        self.send(&Request { id, floor: 1, body: Some(body) });
    }

    pub(crate) fn send(&mut self, request: &Request) {
        let mut bytes = BytesMut::new();
        wire::encode(request, REQUEST_BYTES_MAX, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next message; `None` when the server has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Response> {
        loop {
            if !self.is_greeted {
                let version = wire::take_greeting(self.frames.input()).unwrap();
                self.is_greeted = version.inspect(|v| assert_eq!(*v, wire::VERSION)).is_some();
            }
            if self.is_greeted
                && let Some(response) = self.frames.next_message().unwrap()
            {
                return Some(response);
            }
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.frames.input().put_slice(&bytes[..read]),
                // What the server closes while something is on its way to it is reset.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                // A read with a limit ends when the process is stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// The answer to the request `id`, which is expected next.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: u64) -> Body {
        let response = self.receive().expect("the connection is open");
        assert_eq!(response.id, id, "{response:?}");
        response.body.expect("a body")
    }

    /// Asks under the same number until it is served: a cluster whose leadership moves, or whose
    /// disks stand still, may say for a while that it can't, or that it doesn't know.
    pub(crate) fn insist(&mut self, id: u64, body: &Asks) -> Body {
        let mut served = None;
        eventually("it is served", || {
            self.ask(id, body.clone());
            served = Some(self.answer(id)).filter(|body| !matches!(body, Body::Unavailable(_)));
            served.is_some()
        });
        served.expect("it was served")
    }

    /// The refusal of the request `id`: its code and its words.
    #[track_caller]
    pub(crate) fn refusal(&mut self, id: u64) -> wire::Refused {
        match self.answer(id) {
            Body::Refused(refused) => refused,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// The farewell, after which nothing comes.
    #[track_caller]
    pub(crate) fn goodbye(&mut self) -> String {
        let Body::Goodbye(goodbye) = self.answer(0) else { panic!("no goodbye") };
        assert_eq!(self.receive(), None);
        goodbye.message
    }

    #[track_caller]
    pub(crate) fn open(&mut self, session: u64) -> SessionState {
        self.ask(1, open(session, LONG_TTL_MS));
        self.session_state(1)
    }

    #[track_caller]
    pub(crate) fn session_state(&mut self, id: u64) -> SessionState {
        match self.answer(id) {
            Body::SessionState(state) => state,
            other => panic!("no session: {other:?}"),
        }
    }

    /// Takes a lock that is free.
    #[track_caller]
    pub(crate) fn acquire(&mut self, id: u64, lock: &str) -> u64 {
        self.ask(id, acquire(lock));
        match self.answer(id) {
            Body::Granted(granted) => granted.token,
            other => panic!("{lock} isn't free: {other:?}"),
        }
    }
}

pub(crate) fn open(session: u64, ttl_ms: u32) -> Asks {
    let secret = SECRET.to_vec();
    Asks::OpenSession(OpenSession { session, secret, ttl_ms, owner: None })
}

pub(crate) fn resume(session: u64, secret: &[u8]) -> Asks {
    Asks::ResumeSession(wire::ResumeSession { session, secret: secret.to_vec() })
}

/// Asks for a lock, and to wait for it.
pub(crate) fn acquire(lock: &str) -> Asks {
    Asks::Acquire(Acquire { lock: lock.to_owned(), wait: true, ..Acquire::default() })
}

/// What an HTTP client sends and gets, on a connection of its own.
pub(crate) fn http(server: &Running, request: &str) -> String {
    let mut stream = server.connect_silently();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
