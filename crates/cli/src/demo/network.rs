//! The network between the three servers, with a cable between the data centres that can be cut.
//!
//! Servers are known by name. A listener takes whatever port of loopback is free, and the network
//! remembers which; so no two runs of the demo get into each other's way. Every connection is TCP,
//! carried by a relay that lets go of both ends when its cable is cut.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use lockkeeper_node::{BoxFuture, PeerStream, Transport, TransportListener};
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The whole network; cheap to clone.
#[derive(Clone)]
pub(crate) struct Network {
    /// Where each server listens.
    ports: Arc<Mutex<HashMap<String, std::net::SocketAddr>>>,
    /// The server that is cut off from all others; empty if none is.
    cut_off: watch::Sender<String>,
}

/// The network as one server sees it.
pub(crate) struct Uplink {
    network: Network,
    server: String,
}

impl Network {
    pub(crate) fn new() -> Self {
        Self { ports: Arc::default(), cut_off: watch::Sender::new(String::new()) }
    }

    /// The network as the server `name` sees it.
    pub(crate) fn uplink(&self, name: &str) -> Uplink {
        Uplink { network: self.clone(), server: name.to_owned() }
    }

    /// Cuts every cable of `server`: its connections to the others break, and no new ones are made.
    pub(crate) fn cut(&self, server: &str) {
        self.cut_off.send_replace(server.to_owned());
    }

    /// Mends all cables.
    pub(crate) fn mend(&self) {
        self.cut_off.send_replace(String::new());
    }
}

impl Transport for Uplink {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move {
            let is_cut = |cut: &String| *cut == self.server || cut == address;
            let mut cut_off = self.network.cut_off.subscribe();
            if is_cut(&cut_off.borrow_and_update()) {
                return Err(io::Error::new(io::ErrorKind::NetworkUnreachable, "the cable is cut"));
            }
            let port = self.network.ports.lock().get(address).copied();
            let port = port.ok_or(io::ErrorKind::ConnectionRefused)?;
            let mut far = TcpStream::connect(port).await?;
            far.set_nodelay(true)?;
            let (near, mut relayed) = tokio::io::duplex(1 << 20);
            let (server, peer) = (self.server.clone(), address.to_owned());
            tokio::spawn(async move {
                let cut = cut_off.wait_for(|cut| *cut == server || *cut == peer);
                tokio::select! {
                    _ = copy_bidirectional(&mut relayed, &mut far) => {}
                    _ = cut => {}
                }
            });
            Ok(Box::new(near) as Box<dyn PeerStream>)
        })
    }

    fn listen<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            self.network.ports.lock().insert(address.to_owned(), listener.local_addr()?);
            let listener = Listener { listener, address: address.to_owned() };
            Ok(Box::new(listener) as Box<dyn TransportListener>)
        })
    }
}

struct Listener {
    listener: TcpListener,
    address: String,
}

impl TransportListener for Listener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Box<dyn PeerStream>, String)>> {
        Box::pin(async move {
            let (stream, from) = self.listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok((Box::new(stream) as Box<dyn PeerStream>, from.to_string()))
        })
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }
}
