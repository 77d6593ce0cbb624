//! A connection to one listener, and frames on it.

use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_wire::native::{self, Frames, Request, Response};
use tokio::net::UnixStream;

use crate::embedded;
use crate::error::Error;
use crate::network::Connection;
use crate::settings::Settings;
use crate::url::Endpoint;

/// Room made for each read: many small replies, or most of a large one.
const READ_BYTES: usize = 64 << 10;

/// Bytes of one text in a request: room for any that a server would take, and little enough that
/// the request fits into a frame.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// A connection on which the protocol is spoken.
pub(crate) type Socket = Connection;

impl Socket {
    /// Connects to one endpoint within `limit`; starts the embedded node if that is what lacks.
    ///
    /// # Errors
    ///
    /// What went wrong, for people.
    pub(crate) async fn dial(
        settings: &Settings,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<Self, String> {
        let first = Self::connect(settings, endpoint, limit).await;
        match (first, &settings.starter) {
            (Err(_), Some(starter)) if settings.target.is_embedded => {
                starter.start().await?;
                Self::connect(settings, endpoint, limit).await
            }
            (Err(why), None) if settings.target.is_embedded => Err(format!(
                "{why} (the embedded node isn't running; the program `lockkeeper` starts it)"
            )),
            (first, _) => first,
        }
    }

    async fn connect(
        settings: &Settings,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<Self, String> {
        let attempt = async {
            match endpoint {
                Endpoint::Tcp(host, port) => {
                    let network = &settings.network;
                    network.connect(host, *port).await.map_err(|e| e.to_string())
                }
                Endpoint::Unix(path) => {
                    if settings.target.is_embedded {
                        embedded::check_owner(path)?;
                    }
                    let stream = UnixStream::connect(path).await.map_err(|e| e.to_string())?;
                    let (reader, writer) = stream.into_split();
                    Ok(Self { reader: Box::new(reader), writer: Box::new(writer) })
                }
            }
        };
        match tokio::time::timeout(limit, attempt).await {
            Ok(done) => done.map_err(|why| format!("{endpoint}: {why}")),
            Err(_) => Err(format!("{endpoint}: no answer within {} ms", limit.as_millis())),
        }
    }
}

/// Appends a request as one frame, if it isn't too long for one.
///
/// # Errors
///
/// [`Error::Config`], with the length.
pub(crate) fn try_write_frame(request: &Request, out: &mut BytesMut) -> Result<(), Error> {
    native::encode(request, native::REQUEST_BYTES_MAX, out)
        .map_err(|error| Error::Config(format!("the request is too long: {error}")))
}

/// Appends a request as one frame. Whoever made it has checked its texts with [`check_length`].
pub(crate) fn write_frame(request: &Request, out: &mut BytesMut) {
    if let Err(error) = try_write_frame(request, out) {
        // Sending the others is better than giving up all of them.
        tracing::error!(%error, id = request.id, "a request can't be sent");
    }
}

/// Whether text given by the caller fits into a request; what the servers refuse is less than this.
pub(crate) fn check_length(what: &str, bytes: usize) -> Result<(), Error> {
    if bytes <= TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(Error::Config(format!("{what} has {bytes} bytes; at most {TEXT_BYTES_MAX} can be sent")))
}

/// What was read and not yet decoded: the server's greeting, then responses.
pub(crate) struct Input {
    frames: Frames<Response>,
    is_greeted: bool,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { frames: Frames::of_responses(BytesMut::new()), is_greeted: false }
    }

    /// The buffer to read into, with room in it.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        let input = self.frames.input();
        input.reserve(READ_BYTES);
        input
    }

    /// Whether the server has said that it speaks this protocol.
    ///
    /// # Errors
    ///
    /// It doesn't, or another version; for people.
    pub(crate) fn is_greeted(&mut self) -> Result<bool, String> {
        if self.is_greeted {
            return Ok(true);
        }
        match native::take_greeting(self.frames.input()).map_err(|error| error.to_string())? {
            None => {}
            Some(native::VERSION) => self.is_greeted = true,
            Some(version) => {
                let ours = native::VERSION;
                return Err(format!("it speaks version {version}, this client version {ours}"));
            }
        }
        Ok(self.is_greeted)
    }

    /// The next complete response.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes, for people. The connection is of no use then.
    pub(crate) fn next_response(&mut self) -> Result<Option<Response>, String> {
        if !self.is_greeted()? {
            return Ok(None);
        }
        self.frames.next_message().map_err(|error| error.to_string())
    }
}
