//! The front end of ZooKeeper's client protocol.
//!
//! A ZooKeeper session is one of core's sessions, its tree is core's tree, and a zxid is core's
//! revision; what is kept here is what a connection loses when it breaks: watches, the ids that it
//! has proved, and requests on their way.
//!
//! # Guarantees
//!
//! - Replies of one connection come in the order of its requests, and a notification comes before
//!   any reply that shows the change.
//! - What became of a request is never guessed: if it can't be known, the connection is closed.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use lockkeeper_node::{Clock, NodeHandle, Random, Sink};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::limits::ZOOKEEPER_FRAME_BYTES_MAX;
use crate::unread::Unread;
use crate::walks::Walks;

pub(crate) mod admin;
mod connection;
mod counts;
mod facts;
mod handshake;
mod hub;
mod ids;
mod journal;
mod lease;
pub(crate) mod lines;
mod listings;
mod metrics;
mod names;
mod outbox;
mod reads;
mod reconfig;
mod requests;
mod sasl;
mod settings;
mod source;
pub(crate) mod tls;
mod traffic;
mod upkeep;
mod words;
mod writes;

pub(crate) use facts::Source;
use hub::Hub;
use journal::Journal;
pub(crate) use metrics::Collected;
use metrics::Figures;
pub use sasl::Users;
pub use settings::ZooKeeperSettings;
pub(crate) use source::Place;
pub use tls::{ClientAuth, TlsError, TlsSettings};
use traffic::Latency;
pub use words::Whitelist;

/// The front end without its listeners: serves connections that somebody else has accepted.
///
/// Cheap to clone.
#[derive(Clone)]
pub struct ZooKeeper {
    front: Arc<Front>,
    /// Dropped with the last of these, and never by the node's thread.
    _registration: Arc<Registration>,
}

/// The hub's place at the node, which knows it as it knows the node.
struct Registration {
    node: NodeHandle,
    hub_sink: Arc<dyn Sink>,
}

/// What all connections share.
struct Front {
    node: NodeHandle,
    settings: ZooKeeperSettings,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    hub: Arc<Hub>,
    /// The same, as the node knows it.
    hub_sink: Arc<dyn Sink>,
    /// There has been no majority for so long that who wants to may read without one.
    is_reading_only: AtomicBool,
    stopping: watch::Sender<bool>,
    unread: Arc<Unread>,
    walks: Walks,
    /// Of all requests together.
    latency: Mutex<Latency>,
    figures: Arc<Figures>,
    started: Instant,
    /// Where it is, once that is known.
    place: OnceLock<Place>,
}

/// Who has connected, as far as the transport knows.
#[derive(Clone, Debug)]
pub struct Client {
    /// Whence.
    pub address: SocketAddr,
    /// What the transport has proved of it, as scheme and id: `x509` and a subject's name.
    pub ids: Vec<(String, String)>,
}

impl ZooKeeper {
    /// The front end of a node, to be made on the node's runtime, with the clock and the chance of
    /// the node's environment.
    #[must_use]
    pub fn new(
        node: NodeHandle,
        settings: ZooKeeperSettings,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Self {
        Self::beside(node, settings, clock, random, Arc::default())
    }

    /// The same, beside other front ends: what waits for all their clients is counted together.
    pub(crate) fn beside(
        node: NodeHandle,
        mut settings: ZooKeeperSettings,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        unread: Arc<Unread>,
    ) -> Self {
        settings.frame_bytes_max = settings.frame_bytes_max.min(ZOOKEEPER_FRAME_BYTES_MAX);
        let figures = Arc::new(Figures::default());
        let hub = Arc::new(Hub::new(Journal::new(node.clone()), Arc::clone(&figures)));
        let hub_sink: Arc<dyn Sink> = hub.clone();
        let front = Arc::new(Front {
            node,
            settings,
            clock,
            random,
            hub,
            hub_sink,
            is_reading_only: AtomicBool::new(false),
            stopping: watch::Sender::new(false),
            unread,
            walks: Walks::default(),
            latency: Mutex::default(),
            figures,
            started: Instant::now(),
            place: OnceLock::new(),
        });
        tokio::spawn(upkeep::watch_quorum(Arc::downgrade(&front), front.node.serving()));
        tokio::spawn(upkeep::collect(Arc::downgrade(&front)));
        let registration =
            Registration { node: front.node.clone(), hub_sink: Arc::clone(&front.hub_sink) };
        Self { front, _registration: Arc::new(registration) }
    }

    /// Serves one client from its first byte to its end. Dropping the future is hanging up.
    pub async fn serve<S>(&self, stream: S, client: Client)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        connection::serve(&self.front, stream, client, false).await;
    }

    /// The same, for a stream that is within TLS.
    pub(crate) async fn serve_secured<S>(&self, stream: S, client: Client)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        connection::serve(&self.front, stream, client, true).await;
    }

    /// Says where it is, for operators, and for those who ask any server for all of them.
    pub(crate) fn place(&self, place: Place) {
        if let Some(client) = place.client_address {
            self.front.node.keep_listed(client.to_string(), self.front.settings.reconfig);
        }
        // It is said once.
        let _ = self.front.place.set(place);
    }

    /// What operators are told of it.
    pub(crate) fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.front) as Arc<dyn Source>
    }

    /// What Prometheus is told of it.
    pub(crate) fn collected(&self) -> Collected {
        Collected::new(Arc::clone(&self.front.figures), self.source())
    }

    /// Closes every connection: clients go on with another server.
    pub fn stop(&self) {
        self.front.stopping.send_replace(true);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.node.detach(&self.hub_sink);
    }
}

impl std::fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ZooKeeper")
    }
}
