//! A server that says exactly what a test tells it to: the network, not the lock manager.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper::clock::{Alarm, Boottime, Clock, SystemClock};
use lockkeeper::{Client, ClientBuilder, Error, Guard};
use lockkeeper_wire::native::{self, Frames, Request, Response, request, response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a test waits for what must come. It says "never" in a message, not in a measurement.
pub(crate) const GENEROUS: Duration = Duration::from_secs(60);

/// The lease of clients that aren't to lose it.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(60);

/// Waits for something that must happen.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(GENEROUS, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: it didn't happen within {GENEROUS:?}"),
    }
}

/// A listener on loopback.
pub(crate) struct Peer {
    listener: TcpListener,
    pub(crate) address: String,
}

/// One accepted connection.
pub(crate) struct Link {
    stream: TcpStream,
    frames: Frames<Request>,
    /// Answers heartbeats by itself; otherwise it swallows them.
    pub(crate) confirms: bool,
    /// Requests that were read while another was looked for.
    put_back: VecDeque<Request>,
}

impl Peer {
    pub(crate) async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Self { listener, address }
    }

    /// A builder for clients of these peers.
    pub(crate) fn builder(peers: &[&Self]) -> ClientBuilder {
        let addresses: Vec<_> = peers.iter().map(|peer| peer.address.as_str()).collect();
        Client::builder().url(format!("lockkeeper://{}", addresses.join(","))).ttl(LONG_TTL)
    }

    /// A client of these peers that has been let in by the first one.
    pub(crate) async fn client(peers: &[&Self], builder: ClientBuilder) -> Client {
        let (client, link) = tokio::join!(builder.connect(), peers[0].accept());
        drop(link);
        client.unwrap()
    }

    /// The next connection, greeted.
    pub(crate) async fn accept(&self) -> Link {
        let accepted = soon("a connection", self.listener.accept()).await;
        let mut stream = accepted.unwrap().0;
        stream.set_nodelay(true).unwrap();
        let mut greeting = BytesMut::new();
        native::greet(&mut greeting);
        stream.write_all(&greeting).await.unwrap();
        let mut input = BytesMut::new();
        while native::take_greeting(&mut input).unwrap().is_none() {
            assert!(stream.read_buf(&mut input).await.unwrap() > 0, "closed before its greeting");
        }
        let frames = Frames::of_requests(input);
        Link { stream, frames, confirms: true, put_back: VecDeque::new() }
    }

    /// The next connection, whose session it opens or resumes with nothing to tell.
    pub(crate) async fn accept_session(&self) -> Link {
        let mut link = self.accept().await;
        link.let_in(native::SessionState::default()).await;
        link
    }
}

impl Link {
    /// The next request that isn't a heartbeat; `None` at the end of the connection.
    pub(crate) async fn try_next(&mut self) -> Option<Request> {
        if let Some(request) = self.put_back.pop_front() {
            return Some(request);
        }
        loop {
            while let Some(request) = self.frames.next_message().unwrap() {
                match request.body {
                    Some(request::Body::Heartbeat(_)) if self.confirms => {
                        let confirmed = native::HeartbeatConfirmed {};
                        self.send(request.id, response::Body::HeartbeatConfirmed(confirmed)).await;
                    }
                    Some(request::Body::Heartbeat(_)) => {}
                    _ => return Some(request),
                }
            }
            match self.stream.read_buf(self.frames.input()).await {
                Ok(bytes) if bytes > 0 => {}
                _ => return None,
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Request {
        soon("a request", self.try_next()).await.expect("a request, not the end")
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub(crate) fn put_back(&mut self, request: Request) {
        self.put_back.push_back(request);
    }

    /// The id of the next heartbeat, which the test answers.
    pub(crate) async fn heartbeat(&mut self) -> u64 {
        let read = async {
            loop {
                while let Some(request) = self.frames.next_message().unwrap() {
                    match request.body {
                        Some(request::Body::Heartbeat(_)) => return request.id,
                        _ => self.put_back.push_back(request),
                    }
                }
                let read = self.stream.read_buf(self.frames.input()).await;
                assert!(matches!(read, Ok(1..)), "a heartbeat, not the end");
            }
        };
        soon("a heartbeat", read).await
    }

    /// Answers the handshake.
    pub(crate) async fn let_in(&mut self, mut state: native::SessionState) -> Request {
        let handshake = self.next().await;
        state.session = match &handshake.body {
            Some(request::Body::OpenSession(open)) => open.session,
            Some(request::Body::ResumeSession(resume)) => resume.session,
            other => panic!("no handshake: {other:?}"),
        };
        self.send(handshake.id, response::Body::SessionState(state)).await;
        handshake
    }

    pub(crate) async fn acquire(&mut self) -> (u64, native::Acquire) {
        let request = self.next().await;
        match request.body {
            Some(request::Body::Acquire(acquire)) => (request.id, acquire),
            other => panic!("no acquire: {other:?}"),
        }
    }

    pub(crate) async fn cancel(&mut self) -> (u64, u64) {
        let request = self.next().await;
        match request.body {
            Some(request::Body::Cancel(cancel)) => (request.id, cancel.acquire),
            other => panic!("no cancel: {other:?}"),
        }
    }

    pub(crate) async fn release(&mut self) -> (u64, u64) {
        let request = self.next().await;
        match request.body {
            Some(request::Body::Release(release)) => (request.id, release.acquire),
            other => panic!("no release: {other:?}"),
        }
    }

    pub(crate) async fn send(&mut self, id: u64, body: response::Body) {
        self.stream.write_all(&frame(id, body)).await.unwrap();
    }

    pub(crate) async fn send_granted(&mut self, id: u64, token: u64) {
        self.send(id, response::Body::Granted(native::Granted { token })).await;
    }

    pub(crate) async fn send_queued(&mut self, id: u64, place: u32) {
        let owner =
            native::Owner { user: "alice".into(), host: "build-7".into(), ..Default::default() };
        let holder = native::Hold { token: 7, owner: Some(owner), ..Default::default() };
        let queued = native::Queued { place, holder: Some(holder), hold_count: 1 };
        self.send(id, response::Body::Queued(queued)).await;
    }

    pub(crate) async fn send_done(&mut self, id: u64) {
        self.send(id, response::Body::Done(native::Done {})).await;
    }

    pub(crate) async fn send_released(&mut self, id: u64, token: u64) {
        let released = native::Released { token, remaining: 0 };
        self.send(id, response::Body::Released(released)).await;
    }

    /// Goes on reading in a task of its own, and answers heartbeats while the flag is set, those
    /// before it included; and nothing else.
    pub(crate) fn keep_alive_while(self, confirms: bool) -> watch::Sender<bool> {
        let (flag, mut is_set) = watch::channel(confirms);
        let Self { mut stream, mut frames, .. } = self;
        tokio::spawn(async move {
            let mut unconfirmed = None;
            loop {
                while let Some(request) = frames.next_message().unwrap() {
                    if let Some(request::Body::Heartbeat(_)) = request.body {
                        unconfirmed = Some(request.id);
                    }
                }
                if *is_set.borrow()
                    && let Some(id) = unconfirmed.take()
                {
                    let body = response::Body::HeartbeatConfirmed(native::HeartbeatConfirmed {});
                    let _ = stream.write_all(&frame(id, body)).await;
                }
                tokio::select! {
                    read = stream.read_buf(frames.input()) => match read {
                        Ok(1..) => {}
                        _ => return,
                    },
                    Ok(()) = is_set.changed() => {}
                }
            }
        });
        flag
    }
}

fn frame(id: u64, body: response::Body) -> BytesMut {
    let mut frame = BytesMut::new();
    let response = Response { id, body: Some(body) };
    native::encode(&response, native::RESPONSE_BYTES_MAX, &mut frame).unwrap();
    frame
}

/// An acquire of `name` under way in a task of its own.
pub(crate) fn acquire(client: &Client, name: &str) -> JoinHandle<Result<Guard, Error>> {
    tokio::spawn(client.lock(name).acquire())
}

/// The guard of an acquire under way.
pub(crate) async fn granted(acquire: JoinHandle<Result<Guard, Error>>) -> Guard {
    soon("the grant", acquire).await.unwrap().unwrap()
}

/// A client with one guard (number 1, token 10) on one open connection to `peers[0]`.
pub(crate) async fn holder(peers: &[&Peer], builder: ClientBuilder) -> (Client, Guard, Link) {
    let client = Peer::client(peers, builder).await;
    let under_way = acquire(&client, "a");
    let mut link = peers[0].accept_session().await;
    let (number, _) = link.acquire().await;
    assert_eq!(number, 1);
    link.send_granted(number, 10).await;
    (client, granted(under_way).await, link)
}

/// A clock that a test can push ahead, as a suspend does.
#[derive(Debug, Default)]
pub(crate) struct PushedClock {
    ahead_nanos: AtomicU64,
    wall_ahead_nanos: AtomicU64,
}

impl PushedClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Time goes by on all clocks, and nothing runs meanwhile.
    pub(crate) fn push(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap();
        self.ahead_nanos.fetch_add(nanos, Ordering::SeqCst);
        self.push_wall(by);
    }

    /// Only the wall clock goes ahead.
    pub(crate) fn push_wall(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap();
        self.wall_ahead_nanos.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for PushedClock {
    fn boottime(&self) -> Boottime {
        SystemClock.boottime() + Duration::from_nanos(self.ahead_nanos.load(Ordering::SeqCst))
    }

    fn wall_nanos(&self) -> u64 {
        SystemClock.wall_nanos() + self.wall_ahead_nanos.load(Ordering::SeqCst)
    }

    /// The system's alarm: it doesn't hear that the clock was pushed, as a sleeper doesn't.
    fn alarm(&self) -> io::Result<Box<dyn Alarm>> {
        SystemClock.alarm()
    }
}
