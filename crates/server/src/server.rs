//! A node and its listeners, from start to stop.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_node::{Environment, Fault, NodeHandle};
use lockkeeper_wire::native::{self as wire, RESPONSE_BYTES_MAX, response::Body};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::config::{ConfigError, ServerConfig};
use crate::connections::{Admission, Connections, PerAddress};
use crate::limits::{FAREWELL_TIMEOUT, HANDOVER_TIMEOUT};
use crate::metrics::Metrics;
use crate::socket::{Listener, Protocol, Socket, prepare, protocol, read_some};
use crate::zookeeper::tls::{self, Acceptor};
use crate::zookeeper::{Place, TlsError, TlsSettings};
use crate::{Native, ZooKeeper, ZooKeeperClient, boot, files, http, transitions};

/// A running node with its front ends.
///
/// It lives on the tokio runtime on which it was started, which should be a `current_thread` one of
/// its own. Dropping it without [`Server::stop`] is like a crash: safe, and unfriendly.
pub struct Server {
    front: Arc<Front>,
    accepting: Mutex<Vec<JoinHandle<()>>>,
    http_ended: Mutex<Option<oneshot::Receiver<()>>>,
    tls_ended: Mutex<Option<TlsThread>>,
    addresses: Addresses,
    ends_when_idle_for: Option<Duration>,
}

/// Whom a listener is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    /// Clients of the native protocol and of HTTP.
    Native,
    /// ZooKeeper's.
    ZooKeeper,
    /// The same, within TLS.
    ZooKeeperTls,
}

/// The thread for TLS: how it is told to end, and how it tells that it has.
struct TlsThread {
    stopping: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

/// What all connections share.
struct Front {
    native: Native,
    zookeeper: ZooKeeper,
    /// The way to the thread for TLS, if there is one.
    zookeeper_tls: Option<tls::Door>,
    handshake_timeout: Duration,
    accepting: watch::Sender<bool>,
    connections: Arc<Connections>,
    /// Those of ZooKeeper's clients.
    per_address: PerAddress,
    http: http::Door,
}

impl Server {
    /// Binds the listeners, starts the node, then accepts clients.
    ///
    /// # Errors
    ///
    /// [`StartError`]: each says what to do. Nothing keeps running then.
    pub async fn start(config: ServerConfig, environment: Environment) -> Result<Self, StartError> {
        config.check()?;
        let acceptor = config.zookeeper_tls.as_ref().map(TlsSettings::load).transpose()?;
        let listeners = Listeners::bind(&config).await?;
        let addresses = listeners.addresses();
        let data_dir = config.node.data_dir.clone();
        let ttl_max = config.node.ttl_max;
        // As long as a node waits for another's word before it counts as gone.
        let silence = 2 * config.node.timers.election_max;
        let clock = Arc::clone(&environment.clock);
        let random = Arc::clone(&environment.random);
        let node = NodeHandle::start(config.node, environment).await?;
        if config.ends_sessions_of_earlier_boots {
            end_earlier_sessions(&node, &data_dir).await?;
        }
        let connections = Arc::new(Connections::new(room_for(config.connections_max)));
        let native = Native {
            idle_timeout: config.idle_timeout,
            frame_timeout: config.frame_timeout,
            ..Native::new(node.clone(), ttl_max)
        };
        let figures = Arc::clone(&native.figures);
        let unread = Arc::clone(&figures.unread);
        let per_address = PerAddress::new(config.zookeeper.client_connections_max);
        let (own_clock, settings) = (Arc::clone(&clock), config.zookeeper);
        let zookeeper = ZooKeeper::beside(node.clone(), settings, own_clock, random, unread);
        zookeeper.place(Place {
            client_address: addresses.zookeeper,
            secure_client_port: addresses.zookeeper_tls.map(|address| address.port()),
            data_dir: data_dir.display().to_string(),
            silence,
        });
        let serves_zookeeper = addresses.zookeeper.or(addresses.zookeeper_tls).is_some();
        transitions::follow(&node, &figures, &clock, native.stopping.subscribe());
        let collected = serves_zookeeper.then(|| zookeeper.collected());
        let metrics =
            Metrics::new(node.clone(), Arc::clone(&connections), figures, clock, collected);
        let stopping = native.stopping.subscribe();
        let source = serves_zookeeper.then(|| zookeeper.source());
        let metrics = Arc::new(metrics);
        let http = http::start(node.clone(), metrics, source, config.frame_timeout, stopping);
        let (http, http_ended) = http.map_err(StartError::Http)?;
        let (zookeeper_tls, tls_ended) = start_tls(acceptor, &zookeeper)?.unzip();
        let front = Arc::new(Front {
            native,
            zookeeper,
            zookeeper_tls,
            handshake_timeout: config.handshake_timeout,
            accepting: watch::Sender::new(true),
            connections,
            per_address,
            http,
        });
        tracing::info!(node = front.native.node.status().id, %addresses, "serving clients");
        let accepting = listeners.doors().map(|(listener, door)| {
            let front = Arc::clone(&front);
            tokio::spawn(accept(listener, door, front))
        });
        Ok(Self {
            addresses,
            ends_when_idle_for: config.ends_when_idle_for,
            http_ended: Mutex::new(Some(http_ended)),
            tls_ended: Mutex::new(tls_ended),
            accepting: Mutex::new(accepting.collect()),
            front,
        })
    }

    /// The node behind the front ends.
    #[must_use]
    pub fn node(&self) -> &NodeHandle {
        &self.front.native.node
    }

    /// Where clients are awaited: `host:port`, or `unix:` and a path.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses.native
    }

    /// The address of the TCP listener, with the port that the system chose if it was asked to;
    /// `None` if there is none.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.addresses.tcp
    }

    /// The address of the listener for ZooKeeper's clients, likewise.
    #[must_use]
    pub fn zookeeper_address(&self) -> Option<SocketAddr> {
        self.addresses.zookeeper
    }

    /// The address of the listener for those of them that speak TLS, likewise.
    #[must_use]
    pub fn zookeeper_tls_address(&self) -> Option<SocketAddr> {
        self.addresses.zookeeper_tls
    }

    /// Completes when the node has become unfit; the process should say why and exit.
    pub async fn fault(&self) -> Fault {
        self.front.native.node.fault().await
    }

    /// Completes when there has been no connection for the configured time, and no session is
    /// left. Never, if the server isn't to end when it is idle.
    pub async fn idle(&self) {
        let Some(idle_for) = self.ends_when_idle_for else { return std::future::pending().await };
        let mut open = self.front.connections.watch();
        loop {
            let _ = open.wait_for(|count| *count == 0).await;
            tokio::select! {
                _ = open.wait_for(|count| *count > 0) => {}
                () = sleep(idle_for) => {
                    // A session without a connection waits for its client or its lease's end.
                    let sessions = self.front.native.node.query(|state, _| state.counts().sessions);
                    if sessions == 0 {
                        return;
                    }
                }
            }
        }
    }

    /// Ends in good order: accepts nobody, hands leadership over, lets what is in flight be
    /// answered, and says goodbye, so that clients go on elsewhere with their locks. Takes some
    /// seconds at most.
    pub async fn stop(&self) {
        let front = &self.front;
        front.accepting.send_replace(false);
        let accepting = std::mem::take(&mut *self.accepting.lock());
        for task in accepting {
            let _ = task.await;
        }
        let status = front.native.node.status();
        let voters = status.members.iter().filter(|member| member.is_voter).count();
        if status.leader == Some(status.id) && voters > 1 {
            match timeout(HANDOVER_TIMEOUT, front.native.node.transfer_leadership(None)).await {
                Ok(Ok(to)) => tracing::info!(to, "handed leadership over"),
                Ok(Err(error)) => tracing::warn!(%error, "leadership was not handed over"),
                Err(_) => tracing::warn!("leadership was not handed over in time"),
            }
        }
        front.native.node.stop().await;
        front.native.stopping.send_replace(true);
        front.zookeeper.stop();
        let mut open = front.connections.watch();
        let _ = timeout(2 * FAREWELL_TIMEOUT, open.wait_for(|count| *count == 0)).await;
        let tls_ended = self.tls_ended.lock().take();
        if let Some(TlsThread { stopping, ended }) = tls_ended {
            stopping.send_replace(true);
            let _ = ended.await;
        }
        let http_ended = self.http_ended.lock().take();
        if let Some(http_ended) = http_ended {
            let _ = http_ended.await;
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses.native).finish_non_exhaustive()
    }
}

/// How many connections there may be, for want of files.
fn room_for(wanted: usize) -> usize {
    let connections_max = files::room_for(wanted);
    if connections_max < wanted {
        tracing::warn!(
            connections_max,
            wanted,
            "this process may not have as many files open as connections_max asks for: raise its \
             limit (ulimit -n, LimitNOFILE=)"
        );
    }
    connections_max
}

/// Where clients have been told to come, as the system has it.
struct Addresses {
    /// `host:port`, or `unix:` and a path.
    native: Vec<String>,
    /// The first of them that is one.
    tcp: Option<SocketAddr>,
    zookeeper: Option<SocketAddr>,
    zookeeper_tls: Option<SocketAddr>,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.native.join(", "))?;
        for (language, address) in
            [("ZooKeeper", self.zookeeper), ("ZooKeeper in TLS", self.zookeeper_tls)]
        {
            if let Some(address) = address {
                write!(f, ", {address} ({language})")?;
            }
        }
        Ok(())
    }
}

async fn end_earlier_sessions(node: &NodeHandle, data_dir: &Path) -> Result<(), StartError> {
    let ended = boot::end_earlier_sessions(node, data_dir).await;
    let ended = ended.map_err(|error| StartError::Boot(error.to_string()))?;
    if ended > 0 {
        tracing::info!(ended, "ended the sessions of an earlier boot of this machine");
    }
    Ok(())
}

/// Where clients are awaited.
struct Listeners {
    native: Vec<Listener>,
    zookeeper: Option<Listener>,
    zookeeper_tls: Option<Listener>,
}

impl Listeners {
    async fn bind(config: &ServerConfig) -> Result<Self, StartError> {
        let mut native = Vec::from_iter(bind_tcp(config.listen.as_deref(), "listen").await?);
        if let Some(path) = &config.listen_unix {
            let listener = Listener::unix(path);
            let address = format!("unix:{}", path.display());
            native.push(
                listener.map_err(|reason| StartError::listen(&address, "listen_unix", reason))?,
            );
        }
        Ok(Self {
            native,
            zookeeper: bind_tcp(config.zookeeper_listen.as_deref(), "zookeeper_listen").await?,
            zookeeper_tls: bind_tcp(config.zookeeper_tls_listen.as_deref(), "zookeeper_tls_listen")
                .await?,
        })
    }

    fn addresses(&self) -> Addresses {
        let of = |listener: &Option<Listener>| listener.as_ref().and_then(Listener::tcp_address);
        Addresses {
            native: self.native.iter().map(ToString::to_string).collect(),
            tcp: self.native.iter().find_map(Listener::tcp_address),
            zookeeper: of(&self.zookeeper),
            zookeeper_tls: of(&self.zookeeper_tls),
        }
    }

    /// Each, and whom it is for.
    fn doors(self) -> impl Iterator<Item = (Listener, Door)> {
        let native = self.native.into_iter().map(|listener| (listener, Door::Native));
        let zookeeper = self.zookeeper.map(|listener| (listener, Door::ZooKeeper));
        let tls = self.zookeeper_tls.map(|listener| (listener, Door::ZooKeeperTls));
        native.chain(zookeeper).chain(tls)
    }
}

async fn bind_tcp(
    address: Option<&str>,
    setting: &'static str,
) -> Result<Option<Listener>, StartError> {
    let Some(address) = address else { return Ok(None) };
    let listener = Listener::tcp(address).await;
    listener.map(Some).map_err(|reason| StartError::listen(address, setting, reason))
}

fn start_tls(
    acceptor: Option<Acceptor>,
    zookeeper: &ZooKeeper,
) -> Result<Option<(tls::Door, TlsThread)>, StartError> {
    let Some(acceptor) = acceptor else { return Ok(None) };
    let stopping = watch::Sender::new(false);
    let started = tls::start(acceptor, zookeeper.clone(), stopping.subscribe());
    let (door, ended) = started.map_err(StartError::TlsThread)?;
    Ok(Some((door, TlsThread { stopping, ended })))
}

async fn accept(listener: Listener, door: Door, front: Arc<Front>) {
    /// When the system has no descriptors or memory left, asking again at once would only spin.
    const PAUSE: Duration = Duration::from_millis(100);

    let mut accepting = front.accepting.subscribe();
    loop {
        let accepted = tokio::select! {
            _ = accepting.wait_for(|is_accepting| !is_accepting) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(socket) => match (front.connections.admit(), door) {
                (Some(admission), Door::Native) => {
                    tokio::spawn(greet(socket, admission, Arc::clone(&front)));
                }
                (Some(admission), Door::ZooKeeper | Door::ZooKeeperTls) => {
                    let Some(admission) = seat(&socket, admission, &front) else { continue };
                    if door == Door::ZooKeeper {
                        tokio::spawn(serve_zookeeper(socket, admission, Arc::clone(&front)));
                    } else {
                        hand_to_tls(socket, admission, &front);
                    }
                }
                (None, Door::Native) => turn_away(socket, front.connections.max()),
                // Its clients know no word for this.
                (None, Door::ZooKeeper | Door::ZooKeeperTls) => drop(socket),
            },
            Err(error) => {
                tracing::warn!(%listener, %error, "a connection could not be accepted");
                sleep(PAUSE).await;
            }
        }
    }
}

/// A place for one more of ZooKeeper's clients from the same address. `None`: it is to be closed
/// without a word, as ZooKeeper does.
fn seat(socket: &Socket, admission: Admission, front: &Front) -> Option<Admission> {
    let Socket::Tcp(_, address) = socket else { return Some(admission) };
    let seat = front.per_address.sit(address.ip());
    if seat.is_none() {
        tracing::warn!(
            %address,
            "a ZooKeeper client has `zookeeper_max_client_connections` connections already: one \
             more was closed"
        );
    }
    seat.map(|seat| admission.with(seat))
}

/// Finds out what a new connection speaks, and gives it to the front end of that language.
async fn greet(socket: Socket, admission: Admission, front: Arc<Front>) {
    let deadline = Instant::now() + front.handshake_timeout;
    let (mut stream, from) = match socket {
        Socket::Tcp(stream, from) => (stream, from),
        Socket::Unix(stream) => {
            return front.native.serve_greeted(stream, BytesMut::new(), deadline).await;
        }
    };
    if let Err(error) = prepare(&stream) {
        return tracing::debug!(%from, %error, "a connection was gone before it was served");
    }
    let mut input = BytesMut::new();
    let spoken = loop {
        if let Some(spoken) = protocol(&input) {
            break spoken;
        }
        match timeout_at(deadline, read_some(&mut stream, &mut input)).await {
            Ok(Ok(read)) if read > 0 => {}
            _ => {
                tracing::debug!(%from, "a connection said nothing");
                return;
            }
        }
    };
    match spoken {
        Protocol::Native => front.native.serve_greeted(stream, input, deadline).await,
        Protocol::Http => front.http.hand_over(stream, input, admission),
        Protocol::Http2 => {
            if let Ok(stream) = stream.into_std() {
                let _ = (&stream).write(http::NO_HTTP2);
            }
        }
    }
}

fn hand_to_tls(socket: Socket, admission: Admission, front: &Front) {
    let (Socket::Tcp(stream, address), Some(door)) = (socket, &front.zookeeper_tls) else { return };
    if let Err(error) = prepare(&stream) {
        return tracing::debug!(%address, %error, "a connection was gone before it was served");
    }
    door.hand_over(stream, address, admission);
}

async fn serve_zookeeper(socket: Socket, admission: Admission, front: Arc<Front>) {
    let Socket::Tcp(stream, address) = socket else { return };
    if let Err(error) = prepare(&stream) {
        return tracing::debug!(%address, %error, "a connection was gone before it was served");
    }
    front.zookeeper.serve(stream, ZooKeeperClient { address, ids: Vec::new() }).await;
    drop(admission);
}

/// Says why there is no room. Nothing is waited for: whoever floods the listener gets no more.
fn turn_away(socket: Socket, max: usize) {
    let message = format!("this server has {max} connections already; try another one, or later");
    let goodbye = wire::Response { id: 0, body: Some(Body::Goodbye(wire::Goodbye { message })) };
    let mut bytes = BytesMut::new();
    wire::greet(&mut bytes);
    wire::encode(&goodbye, RESPONSE_BYTES_MAX, &mut bytes).expect("a goodbye is short");
    // A socket that is new has room for this, and one that hasn't is not worth waiting for.
    let _ = match socket {
        Socket::Tcp(stream, _) => stream.into_std().and_then(|mut stream| stream.write(&bytes)),
        Socket::Unix(stream) => stream.into_std().and_then(|mut stream| stream.write(&bytes)),
    };
}

/// Why a server didn't start. Trying again helps only after something was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener can't be had: most often another process has the port.
    #[error("can't listen for clients on {address}: {reason}; {advice}")]
    Listen {
        /// Where.
        address: String,
        /// The system's words.
        reason: io::Error,
        /// What to do.
        advice: String,
    },
    /// The files for TLS can't be used.
    #[error("zookeeper_tls: {0}")]
    Tls(#[from] TlsError),
    /// The thread for TLS could not be started.
    #[error("can't start the thread that serves TLS: {0}")]
    TlsThread(io::Error),
    /// The node didn't start.
    #[error(transparent)]
    Node(#[from] lockkeeper_node::StartError),
    /// The sessions of an earlier boot could not be ended.
    #[error("can't end the sessions that an earlier boot of this machine has left: {0}")]
    Boot(String),
    /// The thread for HTTP could not be started.
    #[error("can't start the thread that serves HTTP: {0}")]
    Http(io::Error),
}

impl StartError {
    fn listen(address: &str, setting: &str, reason: io::Error) -> Self {
        let flag = match setting {
            "listen" => " (--listen)",
            "zookeeper_listen" => " (--zookeeper)",
            _ => "",
        };
        let elsewhere = format!("choose another address as `{setting}`{flag}");
        let advice = match reason.kind() {
            io::ErrorKind::AddrInUse => {
                format!("another process has it, perhaps another server: stop that, or {elsewhere}")
            }
            io::ErrorKind::AddrNotAvailable => {
                format!("this machine has no such address; {elsewhere}")
            }
            io::ErrorKind::PermissionDenied => format!("this user may not; {elsewhere}"),
            _ => elsewhere,
        };
        Self::Listen { address: address.to_owned(), reason, advice }
    }
}
