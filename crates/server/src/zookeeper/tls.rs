//! ZooKeeper's clients within TLS, and what their certificates prove.
//!
//! Handshakes cost a thousand times what a request does, so all of it runs on a thread and a
//! runtime of its own; the node's thread only accepts the sockets.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::names::subject;
use super::{Client, ZooKeeper};
use crate::connections::Admission;
use crate::limits::ZOOKEEPER_HANDSHAKE_TIMEOUT;

/// Connections that wait to be taken over; more are dropped.
const WAITING_MAX: usize = 1_024;

/// Between two looks at the files.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// What a listener for TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// A PEM file with the server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// A PEM file with its key; it may be the same.
    pub key: PathBuf,
    /// A PEM file with the authorities whose certificates clients may show.
    pub authorities: Option<PathBuf>,
    /// Whether clients are to show one.
    pub client_auth: ClientAuth,
    /// Files that have changed are read again, for clients that come then.
    pub reload: bool,
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// They aren't asked.
    None,
    /// They are asked, and may have none. One that isn't right is refused.
    Want,
    /// Without one there is no connection.
    Need,
}

/// Files for TLS that can't be used. The operator caused it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read, or doesn't have what it should.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// They are each right, and not together.
    #[error("the certificate and the key for TLS can't be used: {0}")]
    Refused(String),
}

impl TlsSettings {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`TlsError`], with the file.
    pub(crate) fn load(&self) -> Result<Acceptor, TlsError> {
        let read = Read { stamps: self.stamps(), since: Instant::now(), acceptor: self.read()? };
        Ok(Acceptor(Arc::new(Source { settings: self.clone(), read: Mutex::new(read) })))
    }

    /// What tells that a file was changed.
    fn stamps(&self) -> Vec<Option<(SystemTime, u64)>> {
        let files = [Some(&self.certificate), Some(&self.key), self.authorities.as_ref()];
        let stamp = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        files.into_iter().flatten().map(stamp).collect()
    }

    fn read(&self) -> Result<TlsAcceptor, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| file(&self.key, &format!("no private key ({error})")))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Refused(error.to_string()))?;
        let builder = match (&self.authorities, self.client_auth) {
            (Some(path), ClientAuth::Want | ClientAuth::Need) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| file(path, &error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match self.client_auth {
                    ClientAuth::Want => verifier.allow_unauthenticated(),
                    ClientAuth::None | ClientAuth::Need => verifier,
                };
                let verifier =
                    verifier.build().map_err(|error| TlsError::Refused(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| TlsError::Refused(error.to_string()))?;
        // A handshake that is cut short would prove nothing about the client anew.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path)
        .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>());
    match read {
        Ok(found) if found.is_empty() => Err(file(path, "no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(file(path, &error.to_string())),
    }
}

fn file(path: &Path, reason: &str) -> TlsError {
    TlsError::File { path: path.to_owned(), reason: reason.to_owned() }
}

/// Takes connections into TLS.
#[derive(Clone)]
pub(crate) struct Acceptor(Arc<Source>);

struct Source {
    settings: TlsSettings,
    read: Mutex<Read>,
}

/// What was read last.
struct Read {
    stamps: Vec<Option<(SystemTime, u64)>>,
    since: Instant,
    acceptor: TlsAcceptor,
}

impl Acceptor {
    /// For a client that has come. Files are looked at when one comes, and once a second at most;
    /// while they can't be used, those before are.
    fn now(&self) -> TlsAcceptor {
        let Source { settings, read } = &*self.0;
        let read = &mut *read.lock();
        if settings.reload && read.since.elapsed() >= RELOAD_PAUSE {
            read.since = Instant::now();
            let stamps = settings.stamps();
            if stamps != read.stamps {
                match settings.read() {
                    Ok(acceptor) => {
                        read.acceptor = acceptor;
                        tracing::info!("the files for TLS have changed: they were read again");
                    }
                    Err(error) => {
                        tracing::error!(%error, "the files for TLS have changed, and are not used");
                    }
                }
                read.stamps = stamps;
            }
        }
        read.acceptor.clone()
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

/// The way of a connection to the thread for TLS.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    sender: mpsc::Sender<HandedOver>,
}

#[derive(Debug)]
struct HandedOver {
    stream: std::net::TcpStream,
    address: SocketAddr,
    admission: Admission,
}

impl Door {
    /// Gives a new connection away.
    pub(crate) fn hand_over(&self, stream: TcpStream, address: SocketAddr, admission: Admission) {
        let handed_over = stream.into_std().map(|stream| HandedOver { stream, address, admission });
        if let Ok(handed_over) = handed_over
            && self.sender.try_send(handed_over).is_err()
        {
            tracing::warn!(%address, "a TLS connection was dropped: too many wait");
        }
    }
}

/// Starts the thread, which ends with its connections when `stopping` turns true or can't any more.
/// They are told by the front end before that. The receiver tells when it has.
///
/// # Errors
///
/// The system has no thread left.
pub(crate) fn start(
    acceptor: Acceptor,
    front: ZooKeeper,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<(Door, oneshot::Receiver<()>)> {
    let (ended, has_ended) = oneshot::channel();
    let (sender, mut receiver) = mpsc::channel(WAITING_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("zookeeper-tls".to_owned()).spawn(move || {
        let accept = async {
            while let Some(handed_over) = receiver.recv().await {
                tokio::spawn(serve(acceptor.clone(), front.clone(), handed_over));
            }
        };
        runtime.block_on(async {
            tokio::select! {
                () = accept => {}
                _ = stopping.wait_for(|is_stopping| *is_stopping) => {}
            }
        });
        drop(runtime);
        drop(front);
        let _ = ended.send(());
    })?;
    Ok((Door { sender }, has_ended))
}

async fn serve(acceptor: Acceptor, front: ZooKeeper, handed_over: HandedOver) {
    let HandedOver { stream, address, admission } = handed_over;
    // A client that is gone already has no socket.
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let under_way = front.front.figures.shakes_hands();
    let shaken = timeout(ZOOKEEPER_HANDSHAKE_TIMEOUT, acceptor.now().accept(stream)).await;
    drop(under_way);
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::info!(%address, %error, "no TLS with a client"),
        Err(_) => return tracing::debug!(%address, "a client's TLS handshake took too long"),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let mut ids = Vec::new();
    if let Some(shown) = shown {
        let Some(name) = subject(shown) else {
            return tracing::info!(%address, "a client's certificate has no subject to be read");
        };
        ids.push(("x509".to_owned(), name));
    }
    front.serve_secured(stream, Client { address, ids }).await;
    drop(admission);
}
