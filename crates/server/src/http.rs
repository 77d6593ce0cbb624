//! HTTP on the clients' port: health, readiness, metrics, version.
//!
//! It runs on a thread and a runtime of its own, so that whatever a scraper does, the node's thread
//! goes on. The node's side reads a connection's first bytes, and hands the socket over with them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use bytes::{Buf, BytesMut};
use lockkeeper_node::{NodeHandle, Unavailable};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, Sleep, sleep};

use crate::connections::Admission;
use crate::metrics::Metrics;
use crate::walks::Walks;
use crate::zookeeper::{Source, admin};

/// What a client hears that speaks HTTP/2 from its first byte, as gRPC does.
pub(crate) const NO_HTTP2: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\n\
    Content-Type: text/plain\r\nConnection: close\r\nContent-Length: 87\r\n\r\n\
    This server speaks HTTP/1.1 and Lockkeeper's native protocol here, not HTTP/2 or gRPC.\n";

/// Connections that wait to be taken over; more are dropped.
const WAITING_MAX: usize = 128;

/// How long an HTTP connection may be silent between two requests.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The way of a connection to the HTTP thread.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    sender: mpsc::Sender<HandedOver>,
}

impl Door {
    /// Gives a connection away, with what has been read of it.
    pub(crate) fn hand_over(&self, stream: TcpStream, read: BytesMut, admission: Admission) {
        let handed_over = stream.into_std().map(|stream| HandedOver { stream, read, admission });
        if let Ok(handed_over) = handed_over
            && self.sender.try_send(handed_over).is_err()
        {
            tracing::warn!("an HTTP connection was dropped: too many wait");
        }
    }
}

/// Starts the thread. A request that has begun has `request_timeout` to come, to be answered, and
/// its answer to be read. The thread ends with all its connections when `stopping` turns true or
/// can't any more. The receiver tells when it has, and holds the node no longer.
///
/// # Errors
///
/// The system has no thread left.
pub(crate) fn start(
    node: NodeHandle,
    metrics: Arc<Metrics>,
    zookeeper: Option<Arc<dyn Source>>,
    request_timeout: Duration,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<(Door, oneshot::Receiver<()>)> {
    let (ended, has_ended) = oneshot::channel();
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let router = router(Health { node, metrics, zookeeper, walks: Walks::default() });
    thread::Builder::new().name("http".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = axum::serve(Doorway { receiver, request_timeout }, router) => {}
                _ = stopping.wait_for(|is_stopping| *is_stopping) => {}
            }
        });
        drop(runtime);
        let _ = ended.send(());
    })?;
    Ok((Door { sender }, has_ended))
}

/// What the handlers look at.
#[derive(Clone)]
struct Health {
    node: NodeHandle,
    metrics: Arc<Metrics>,
    /// The ZooKeeper front end, if there is one.
    zookeeper: Option<Arc<dyn Source>>,
    /// Its commands, of which some have much to say. Nobody's health waits for them.
    walks: Walks,
}

fn router(health: Health) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/health", get(health_json))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .route("/commands", get(commands))
        .route("/commands/{command}", get(command))
        .fallback(not_found)
        .with_state(health)
}

/// What ZooKeeper's administrators ask for.
async fn commands(State(health): State<Health>) -> Response {
    match health.zookeeper {
        Some(_) => ([(header::CONTENT_TYPE, "text/html")], admin::index()).into_response(),
        None => not_found().await.into_response(),
    }
}

async fn command(State(health): State<Health>, UrlPath(name): UrlPath<String>) -> Response {
    match health.zookeeper {
        Some(source) => {
            let answer = health.walks.aside(move || admin::answer(&name, &*source));
            json(StatusCode::OK, answer.await)
        }
        None => not_found().await.into_response(),
    }
}

/// Whether clients can be served now: with what is the matter, if they can't.
async fn readyz(State(health): State<Health>) -> (StatusCode, String) {
    let status = health.node.status();
    if status.takes_locks() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    if let Some(refusal) = status.refusal {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n"));
    }
    let voters = status.members.iter().filter(|member| member.is_voter).count();
    let of = u32::try_from(voters).unwrap_or(u32::MAX);
    let reason = Unavailable::NoQuorum { reached: status.voters_reached, of };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
}

/// Readiness in the form that etcd's clients and load balancers know.
async fn health_json(State(health): State<Health>) -> Response {
    let is_ready = health.node.status().takes_locks();
    let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, format!("{{\"health\":\"{is_ready}\"}}\n"))
}

async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    json(StatusCode::OK, format!("{{\"lockkeeper\":\"{version}\"}}\n"))
}

async fn metrics(State(health): State<Health>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TEXT)], health.metrics.encode()).into_response()
}

async fn not_found() -> (StatusCode, &'static str) {
    const PATHS: &str = "here are /livez, /readyz, /health, /metrics and /version\n";
    (StatusCode::NOT_FOUND, PATHS)
}

fn json(code: StatusCode, text: String) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A connection on its way from the node's thread.
#[derive(Debug)]
struct HandedOver {
    stream: std::net::TcpStream,
    read: BytesMut,
    admission: Admission,
}

/// Where handed over connections arrive: a listener, as axum sees it.
struct Doorway {
    receiver: mpsc::Receiver<HandedOver>,
    request_timeout: Duration,
}

impl Listener for Doorway {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Some(HandedOver { stream, read, admission }) = self.receiver.recv().await else {
                return std::future::pending().await;
            };
            // A client that is gone already has no address.
            let Ok(address) = stream.peer_addr() else { continue };
            let Ok(stream) = TcpStream::from_std(stream) else { continue };
            let request_timeout = self.request_timeout;
            // A request has begun: its first bytes told that this is HTTP.
            let deadline = Box::pin(sleep(request_timeout));
            let connection = Connection {
                stream,
                read,
                request_timeout,
                deadline,
                is_asking: true,
                _admission: admission,
            };
            return (connection, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A handed over connection: first the bytes that were read, then the socket's.
///
/// It has one deadline. A request's runs from its first byte, and no further byte moves it, so that
/// nobody stays by dribbling; what is sent of the answer does. Then the next request may let wait.
struct Connection {
    stream: TcpStream,
    read: BytesMut,
    request_timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    /// A request has begun, and nothing of its answer has been sent.
    is_asking: bool,
    _admission: Admission,
}

impl Connection {
    fn end_in(&mut self, limit: Duration) {
        self.deadline.as_mut().reset(Instant::now() + limit);
    }

    fn is_late<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.has_remaining() {
            let count = self.read.len().min(buffer.remaining());
            buffer.put_slice(&self.read.split_to(count));
            return Poll::Ready(Ok(()));
        }
        // Asked first: somebody who always has another byte would never be found late.
        if self.is_asking
            && let Poll::Ready(late) = self.is_late(context)
        {
            return Poll::Ready(late);
        }
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            if !self.is_asking {
                self.is_asking = true;
                let limit = self.request_timeout;
                self.end_in(limit);
            }
            return Poll::Ready(result);
        }
        self.is_late(context)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_write(context, bytes) {
            self.is_asking = false;
            self.end_in(SILENCE_MAX);
            return Poll::Ready(result);
        }
        self.is_late(context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
