//! The network between the processes: every connection passes a proxy of ours, which can be told
//! to spoil it, for each pair of ends and each direction alone.
//!
//! There are two kinds of trouble. A [`Flow`] is what becomes of the bytes that one end sends to
//! another, whoever has connected: so a network that is cut one way can be had. A [`Link`] is what
//! becomes of the connections that one end makes to another.
//!
//! The members of a cluster have one address each, which all others share; so the proxy before a
//! member tells by the greeting who it is that connects.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// One end of a link: a server by its id, or a worker from [`WORKERS`] on.
pub(crate) type End = u32;

/// The first worker's number as an end.
pub(crate) const WORKERS: End = 1_000;

/// From here on workers speak ZooKeeper's protocol.
pub(crate) const ZOOKEEPER_WORKERS: End = 1_500;

/// What becomes of the bytes that one end sends to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flow {
    Pass,
    /// Nothing arrives, and nobody is told. What was sent meanwhile comes afterwards, as TCP's
    /// repeated packets would.
    Hold,
    /// Nothing arrives, and nobody is told. When it is over the connections are reset, as bytes of
    /// theirs are missing.
    Swallow,
    /// Everything comes later.
    Delay(Duration),
    /// So many bytes pass a second.
    Limit(u32),
}

/// What becomes of the connections that one end makes to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Link {
    Open,
    /// Open ones are reset, and new ones as well.
    Cut,
    /// What is asked arrives; the answers don't.
    NoReplies,
}

/// Bytes that a proxy reads at once.
const CHUNK: usize = 16 << 10;

/// Chunks on their way in one direction: the buffers of the machines between.
const CHUNKS_UNDER_WAY: usize = 64;

/// Bytes that pass at once where they are counted.
const LIMITED_CHUNK: usize = 512;

/// All proxies, and what they have been told.
#[derive(Default)]
pub(crate) struct Net {
    flows: Mutex<HashMap<(End, End), watch::Sender<Flow>>>,
    links: Mutex<HashMap<(End, End), watch::Sender<Link>>>,
    /// How long everything takes, on top of all trouble.
    distances: Mutex<HashMap<(End, End), Duration>>,
}

impl Net {
    /// Sets what becomes of the bytes from one end to another.
    pub(crate) fn set_flow(&self, from: End, to: End, flow: Flow) {
        let mut flows = self.flows.lock();
        let sender = flows.entry((from, to)).or_insert_with(|| watch::Sender::new(Flow::Pass));
        sender.send_replace(flow);
    }

    /// Sets what becomes of the connections that `from` makes to `to`.
    pub(crate) fn set_link(&self, from: End, to: End, link: Link) {
        let mut links = self.links.lock();
        let sender = links.entry((from, to)).or_insert_with(|| watch::Sender::new(Link::Open));
        sender.send_replace(link);
    }

    /// Sets how far it is from one end to another, for connections made from now on. It is no
    /// trouble, and stays.
    pub(crate) fn set_distance(&self, from: End, to: End, distance: Duration) {
        self.distances.lock().insert((from, to), distance);
    }

    /// Ends all trouble.
    pub(crate) fn heal(&self) {
        for flow in self.flows.lock().values() {
            flow.send_replace(Flow::Pass);
        }
        for link in self.links.lock().values() {
            link.send_replace(Link::Open);
        }
    }

    fn distance(&self, from: End, to: End) -> Duration {
        self.distances.lock().get(&(from, to)).copied().unwrap_or_default()
    }

    fn flow(&self, from: End, to: End) -> watch::Receiver<Flow> {
        let mut flows = self.flows.lock();
        flows.entry((from, to)).or_insert_with(|| watch::Sender::new(Flow::Pass)).subscribe()
    }

    fn link(&self, from: End, to: End) -> watch::Receiver<Link> {
        let mut links = self.links.lock();
        links.entry((from, to)).or_insert_with(|| watch::Sender::new(Link::Open)).subscribe()
    }

    /// A proxy for what one client connects to one server.
    pub(crate) async fn client(
        self: &Arc<Self>,
        at: SocketAddr,
        from: End,
        to: End,
        target: SocketAddr,
    ) -> io::Result<()> {
        self.serve(TcpListener::bind(at).await?, Some(from), to, target);
        Ok(())
    }

    /// A proxy for what a server's peers connect to it.
    pub(crate) async fn peers(
        self: &Arc<Self>,
        at: SocketAddr,
        to: End,
        target: SocketAddr,
    ) -> io::Result<()> {
        self.serve(TcpListener::bind(at).await?, None, to, target);
        Ok(())
    }

    fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        from: Option<End>,
        to: End,
        target: SocketAddr,
    ) {
        let net = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                // Whatever it fails with is trouble of the two ends, and they are told by the end
                // of the connection.
                let net = Arc::clone(&net);
                tokio::spawn(async move { drop(net.carry(near, from, to, target).await) });
            }
        });
    }

    async fn carry(
        &self,
        mut near: TcpStream,
        from: Option<End>,
        to: End,
        target: SocketAddr,
    ) -> io::Result<()> {
        let (from, greeting) = match from {
            Some(from) => (from, Vec::new()),
            None => greeted(&mut near).await?,
        };
        let mut link = self.link(from, to);
        if *link.borrow() == Link::Cut {
            return near.set_zero_linger();
        }
        let Ok(far) = TcpStream::connect(target).await else { return near.set_zero_linger() };
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (near_reader, near_writer) = near.into_split();
        let (far_reader, far_writer) = far.into_split();
        let (distance, flow) = (self.distance(from, to), self.flow(from, to));
        let forth = Weather { distance, flow, link: None };
        let (distance, flow) = (self.distance(to, from), self.flow(to, from));
        let back = Weather { distance, flow, link: Some(self.link(from, to)) };
        let mut forth = Pipe { reader: near_reader, writer: far_writer, weather: forth, greeting };
        let mut back =
            Pipe { reader: far_reader, writer: near_writer, weather: back, greeting: Vec::new() };
        let is_whole = tokio::select! {
            // What breaks one way breaks both.
            broken = async { tokio::try_join!(forth.carry(), back.carry()) } => broken.is_ok(),
            _ = link.wait_for(|link| *link == Link::Cut) => false,
        };
        if !is_whole {
            forth.writer.as_ref().set_zero_linger()?;
            back.writer.as_ref().set_zero_linger()?;
        }
        Ok(())
    }
}

/// Reads who it is that connects to a member: `LKPEER`, version, length and checksum of the first
/// frame, its purpose, and the id as a varint (of one byte here).
async fn greeted(near: &mut TcpStream) -> io::Result<(End, Vec<u8>)> {
    let mut greeting = vec![0; 18];
    timeout(Duration::from_secs(10), near.read_exact(&mut greeting)).await??;
    if !greeting.starts_with(b"LKPEER\0") || greeting[17] >= 0x80 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((End::from(greeting[17]), greeting))
}

/// What a direction of one connection meets.
struct Weather {
    distance: Duration,
    flow: watch::Receiver<Flow>,
    /// For the way back only.
    link: Option<watch::Receiver<Link>>,
}

impl Weather {
    fn now(&mut self) -> Flow {
        let link = self.link.as_mut().map(|link| *link.borrow_and_update());
        let flow = *self.flow.borrow_and_update();
        if link == Some(Link::NoReplies) { Flow::Swallow } else { flow }
    }

    async fn changed(&mut self) {
        let link = async {
            match &mut self.link {
                Some(link) => link.changed().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.flow.changed() => {}
            _ = link => {}
        }
    }
}

/// One direction of one connection.
struct Pipe {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    weather: Weather,
    /// Bytes that were read already.
    greeting: Vec<u8>,
}

impl Pipe {
    /// Carries until the sender's end.
    ///
    /// # Errors
    ///
    /// If the connection must be reset.
    async fn carry(&mut self) -> io::Result<()> {
        let Self { reader, writer, weather, greeting } = self;
        let (to, chunks) = mpsc::channel(CHUNKS_UNDER_WAY);
        let distance = weather.distance;
        let mut ahead = Weather { distance, flow: weather.flow.clone(), link: None };
        let first = std::mem::take(greeting);
        let read = async move {
            if !first.is_empty() && to.send((Instant::now(), first)).await.is_err() {
                return;
            }
            let mut buffer = vec![0; CHUNK];
            while let Ok(length @ 1..) = reader.read(&mut buffer).await {
                let delay = match ahead.now() {
                    Flow::Delay(delay) => delay,
                    _ => Duration::ZERO,
                };
                let chunk = buffer[..length].to_vec();
                let delay = delay + ahead.distance;
                if to.send((Instant::now() + delay, chunk)).await.is_err() {
                    return;
                }
            }
        };
        // The reader's end closes the channel, which is the writer's.
        tokio::select! {
            written = write(chunks, writer, weather) => written,
            never = async {
                read.await;
                pending().await
            } => never,
        }
    }
}

async fn write(
    mut chunks: mpsc::Receiver<(Instant, Vec<u8>)>,
    writer: &mut OwnedWriteHalf,
    weather: &mut Weather,
) -> io::Result<()> {
    let gap = || io::Error::from(io::ErrorKind::ConnectionReset);
    let mut has_gap = false;
    loop {
        let (due, chunk) = loop {
            if has_gap && weather.now() != Flow::Swallow {
                return Err(gap());
            }
            tokio::select! {
                chunk = chunks.recv() => match chunk {
                    Some(chunk) => break chunk,
                    None => return writer.shutdown().await,
                },
                () = weather.changed(), if has_gap => {}
            }
        };
        sleep_until(due).await;
        while weather.now() == Flow::Hold {
            weather.changed().await;
        }
        match weather.now() {
            Flow::Swallow => {
                has_gap = true;
                continue;
            }
            _ if has_gap => return Err(gap()),
            Flow::Limit(rate) => write_slowly(writer, &chunk, rate).await?,
            Flow::Pass | Flow::Hold | Flow::Delay(_) => writer.write_all(&chunk).await?,
        }
    }
}

async fn write_slowly(writer: &mut OwnedWriteHalf, bytes: &[u8], rate: u32) -> io::Result<()> {
    for part in bytes.chunks(LIMITED_CHUNK) {
        writer.write_all(part).await?;
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        sleep(Duration::from_secs(1) * length / rate).await;
    }
    Ok(())
}
