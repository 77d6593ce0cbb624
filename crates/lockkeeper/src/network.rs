//! Connections and chance, as a client takes them from the world. A simulator brings its own.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The two halves of a connection to a server. What it is made of is decided once per connection.
pub struct Connection {
    /// What the server says.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What the server is told.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// A connection that is being made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + 'a>>;

/// The way to servers by host and port, and random bits.
pub trait Network: Send + Sync + fmt::Debug + 'static {
    /// Connects. Dropping the future gives up; how long it may take is the caller's business.
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a>;

    /// 64 random bits: ids and secrets are made of them, and pauses varied by them.
    ///
    /// # Errors
    ///
    /// There are none to be had.
    fn random(&self) -> io::Result<u64>;
}

/// TCP, and the operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemNetwork;

impl Network for SystemNetwork {
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(async move {
            let stream = TcpStream::connect((host, port)).await?;
            // Requests are gathered here already; the kernel must not wait for more of them.
            stream.set_nodelay(true)?;
            let (reader, writer) = stream.into_split();
            Ok(Connection { reader: Box::new(reader), writer: Box::new(writer) })
        })
    }

    fn random(&self) -> io::Result<u64> {
        getrandom::u64().map_err(io::Error::other)
    }
}
