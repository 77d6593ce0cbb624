//! Listening sockets of either kind, and the first look at what a connection speaks.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::ready;

use bytes::BytesMut;
use lockkeeper_wire::native::MAGIC;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host};
use tokio::time::timeout;

use crate::limits::{FAREWELL_TIMEOUT, NOT_ACCEPTED_MAX, READ_BYTES};

/// Where clients are awaited.
#[derive(Debug)]
pub(crate) enum Listener {
    /// On the network.
    Tcp(TcpListener),
    /// On this machine, for whoever may open the path.
    Unix(UnixListener, PathBuf),
}

/// One accepted connection.
pub(crate) enum Socket {
    /// From the network, and whence.
    Tcp(TcpStream, SocketAddr),
    /// From this machine.
    Unix(UnixStream),
}

impl Listener {
    pub(crate) async fn tcp(address: &str) -> io::Result<Self> {
        let mut last = None;
        for address in lookup_host(address).await? {
            match listen(address) {
                Ok(listener) => return Ok(Self::Tcp(listener)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
    }

    /// Listens on a path. What a dead server has left there is removed; a live one keeps it.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        let bind = || UnixListener::bind(path);
        let listener = bind().or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse if is_left_over(path) => {
                std::fs::remove_file(path)?;
                bind()
            }
            _ => Err(error),
        })?;
        Ok(Self::Unix(listener, path.to_owned()))
    }

    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok(Socket::Tcp(stream, from))
            }
            Self::Unix(listener, _) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }

    /// The address that was bound, with the port that the system chose if it was asked to.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that is started again finds the port still tied to its old connections.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(NOT_ACCEPTED_MAX)
}

impl Drop for Listener {
    /// Takes the path away, so that the next client sees at once that nobody is there.
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.fmt(f),
                Err(error) => error.fmt(f),
            },
            Self::Unix(_, path) => write!(f, "unix:{}", path.display()),
        }
    }
}

fn is_left_over(path: &Path) -> bool {
    let connected = std::os::unix::net::UnixStream::connect(path);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Small answers leave at once, and a peer that has vanished is noticed within a minute.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    #[cfg(target_os = "linux")]
    {
        use std::time::Duration;
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
    }
    Ok(())
}

/// What a connection speaks, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The native protocol, or something that the native front end may refuse.
    Native,
    /// HTTP/1.
    Http,
    /// HTTP/2 with prior knowledge, as gRPC clients speak it.
    Http2,
}

/// What a connection speaks; `None` if these bytes don't tell yet.
pub(crate) fn protocol(first_bytes: &[u8]) -> Option<Protocol> {
    const METHODS: [&[u8]; 9] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"TRACE ",
        b"CONNECT ",
    ];
    const HTTP2: &[u8] = b"PRI * HTTP/2.0";

    let begins = |start: &[u8]| first_bytes.starts_with(start);
    let may_become = |start: &[u8]| start.starts_with(first_bytes);
    if begins(&MAGIC[..1]) {
        Some(Protocol::Native)
    } else if begins(HTTP2) {
        Some(Protocol::Http2)
    } else if METHODS.into_iter().any(begins) {
        Some(Protocol::Http)
    } else if may_become(HTTP2) || METHODS.into_iter().any(may_become) {
        None
    } else {
        Some(Protocol::Native)
    }
}

/// Reads what has arrived, up to [`READ_BYTES`], and appends it to `input`; 0 bytes mean the end.
///
/// The bytes pass through a buffer of the thread, so that a waiting connection has none.
pub(crate) async fn read_some(
    reader: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
) -> io::Result<usize> {
    thread_local! {
        static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
    }
    poll_fn(|context| {
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            ready!(Pin::new(&mut *reader).poll_read(context, &mut buffer))?;
            input.extend_from_slice(buffer.filled());
            Ok(buffer.filled().len()).into()
        })
    })
    .await
}

/// Reads what the client still sends until it hangs up: closing with bytes unread would reset the
/// connection, and the client might lose the last that it was told.
pub(crate) async fn linger(reader: &mut (impl AsyncRead + Unpin)) {
    let mut ignored = BytesMut::new();
    let drain = async {
        while read_some(reader, &mut ignored).await.is_ok_and(|read| read > 0) {
            ignored.clear();
        }
    };
    let _ = timeout(FAREWELL_TIMEOUT, drain).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody who finds no room would wait for good here, since nobody is accepted.
    #[tokio::test]
    async fn hundreds_may_come_before_the_first_is_accepted() {
        const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

        let listener = Listener::tcp("localhost:0").await.unwrap();
        let address = listener.tcp_address().unwrap();
        let waiting: Vec<_> = (0..500)
            .map(|_| std::net::TcpStream::connect_timeout(&address, PATIENCE).unwrap())
            .collect();
        assert_eq!(waiting.len(), 500);
    }

    #[test]
    fn the_first_bytes_tell() {
        let table: [(&[u8], Option<Protocol>); 10] = [
            (b"", None),
            (b"\x89", Some(Protocol::Native)),
            (b"\x89LOCKKPR\0\0\0\x01", Some(Protocol::Native)),
            (b"G", None),
            (b"GET /livez", Some(Protocol::Http)),
            (b"P", None),
            (b"POST /", Some(Protocol::Http)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Protocol::Http2)),
            (b"GEX", Some(Protocol::Native)),
            (b"\x16\x03\x01", Some(Protocol::Native)),
        ];
        for (bytes, expected) in table {
            assert_eq!(protocol(bytes), expected, "{}", bytes.escape_ascii());
        }
    }
}
