//! Questions outside a session, each with a connection to itself.
//!
//! What is asked here may be answered by a list of ten thousand locks, a backup of a gigabyte or a
//! watch that nobody reads; none of that may delay a heartbeat, so it doesn't share the session's
//! connection. One idle connection is kept for the next question.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_wire::native::{self, Request, request, response, unavailable};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::error::Error;
use crate::settings::Settings;
use crate::socket::{Input, Socket, try_write_frame};
use crate::url::Endpoint;
use crate::views;

/// How long a change may take once it was sent: a new member has to catch up first.
const CHANGE_MAX: Duration = Duration::from_secs(600);

/// How long one server may take to answer a question before another is asked.
const TRY_MAX: Duration = Duration::from_secs(3);

/// What a client keeps between questions.
#[derive(Default)]
pub(crate) struct Conversations {
    /// The endpoint to try next.
    endpoint: AtomicUsize,
    idle: Mutex<Option<Conversation>>,
}

/// Whether a request may be repeated when its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It changes nothing, or nothing more when it is done twice.
    Repeatable,
    /// Its outcome is unknown without an answer.
    Change,
}

/// A connection without a session. One question at a time.
pub(crate) struct Conversation {
    socket: Socket,
    input: Input,
    endpoint: String,
    last_id: u64,
}

impl Conversations {
    /// Keeps a connection on which nothing is under way.
    pub(crate) fn keep(&self, conversation: Conversation) {
        *self.idle.lock() = Some(conversation);
    }

    /// Lets go of the kept connection: most clients ask no questions beside their locks, and a
    /// server of ten thousand of them shouldn't hold twenty thousand connections.
    pub(crate) fn let_go(&self) {
        self.idle.lock().take();
    }

    /// Asks until there is an answer: at the next endpoint, after a pause, for `connect_timeout`.
    pub(crate) async fn ask(
        &self,
        settings: &Arc<Settings>,
        body: request::Body,
        kind: Kind,
    ) -> Result<(response::Body, Conversation), Error> {
        let until = Instant::now() + settings.connect_timeout;
        // A kept connection may have been closed meanwhile, which looks like a lost answer.
        let idle = self.idle.lock().take().filter(|_| kind == Kind::Repeatable);
        let mut next = idle;
        let mut round = 0;
        loop {
            let mut conversation = match next.take() {
                Some(conversation) => conversation,
                None => Conversation::open_until(settings, self, until).await?,
            };
            let answer = conversation.ask_once(body.clone(), kind, until).await;
            match answer {
                Ok(answer) => return Ok((answer, conversation)),
                Err(Failed::ForGood(error)) => return Err(error),
                Err(Failed::ForNow(error)) => {
                    round += 1;
                    let again = Instant::now() + settings.pause(round);
                    if again >= until {
                        return Err(error);
                    }
                    self.endpoint.fetch_add(1, Ordering::Relaxed);
                    sleep_until(again).await;
                }
            }
        }
    }
}

/// Why a question has no answer.
enum Failed {
    /// Another try may help.
    ForNow(Error),
    ForGood(Error),
}

impl Conversation {
    /// Connects to the first endpoint that can be reached within `connect_timeout`.
    pub(crate) async fn open(
        settings: &Arc<Settings>,
        conversations: &Conversations,
    ) -> Result<Self, Error> {
        Self::open_until(settings, conversations, Instant::now() + settings.connect_timeout).await
    }

    async fn open_until(
        settings: &Arc<Settings>,
        conversations: &Conversations,
        until: Instant,
    ) -> Result<Self, Error> {
        let endpoints = &settings.target.endpoints;
        let mut tries = 0;
        loop {
            let index = conversations.endpoint.load(Ordering::Relaxed) % endpoints.len();
            let left = until.saturating_duration_since(Instant::now());
            let limit = settings.dial_limit().min(left.max(Duration::from_millis(1)));
            match Self::greet(settings, &endpoints[index], limit).await {
                Ok(conversation) => return Ok(conversation),
                Err(error) => {
                    conversations.endpoint.fetch_add(1, Ordering::Relaxed);
                    tries += 1;
                    let round = u32::try_from(tries / endpoints.len()).unwrap_or(u32::MAX);
                    let pause = if round == 0 { Duration::ZERO } else { settings.pause(round) };
                    // Waiting doesn't turn another program into a server.
                    let is_hopeless = round > 0 && matches!(error, Error::Protocol { .. });
                    if is_hopeless || Instant::now() + pause >= until {
                        return Err(error);
                    }
                    sleep(pause).await;
                }
            }
        }
    }

    /// Connects, and exchanges greetings: what answers there speaks the protocol.
    async fn greet(
        settings: &Arc<Settings>,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<Self, Error> {
        let socket = Socket::dial(settings, endpoint, limit).await;
        let socket = socket.map_err(|why| settings.unreachable(why))?;
        let endpoint = endpoint.to_string();
        let mut conversation = Self { socket, input: Input::new(), endpoint, last_id: 0 };
        let mut greeting = BytesMut::new();
        native::greet(&mut greeting);
        let greeted = async {
            conversation.write(&greeting).await?;
            while !conversation.input.is_greeted().map_err(|why| conversation.protocol(why))? {
                conversation.read().await?;
            }
            Ok(())
        };
        match timeout(limit, greeted).await {
            Ok(Ok(())) => Ok(conversation),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(settings.unreachable(format!("{}: it is silent", conversation.endpoint))),
        }
    }

    async fn ask_once(
        &mut self,
        body: request::Body,
        kind: Kind,
        until: Instant,
    ) -> Result<response::Body, Failed> {
        let until = match kind {
            Kind::Repeatable => until.min(Instant::now() + TRY_MAX),
            Kind::Change => Instant::now() + CHANGE_MAX,
        };
        let lost = |error: Error| match kind {
            Kind::Repeatable => Failed::ForNow(error),
            Kind::Change => Failed::ForGood(Error::Unknown { message: error.to_string() }),
        };
        self.send(body).await.map_err(|error| match error {
            Error::Config(_) => Failed::ForGood(error),
            error => lost(error),
        })?;
        let answer = match timeout_at(until, self.receive()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error @ Error::Protocol { .. })) => return Err(Failed::ForGood(error)),
            Ok(Err(error)) => return Err(lost(error)),
            Err(_) => return Err(lost(self.broken("no answer came in time"))),
        };
        match answer {
            response::Body::Unavailable(why) => {
                let error = views::unavailable(&why);
                Err(match why.outcome() {
                    unavailable::Outcome::NotDone => Failed::ForNow(error),
                    unavailable::Outcome::Unknown | unavailable::Outcome::Unspecified => {
                        lost(error)
                    }
                })
            }
            response::Body::Refused(no) => match views::refused(no, String::new()) {
                error @ Error::Unavailable { .. } => Err(Failed::ForNow(error)),
                error => Err(Failed::ForGood(error)),
            },
            answer => Ok(answer),
        }
    }

    /// Sends one request.
    async fn send(&mut self, body: request::Body) -> Result<(), Error> {
        self.last_id += 1;
        let mut frame = BytesMut::new();
        let request = Request { id: self.last_id, floor: 0, body: Some(body) };
        try_write_frame(&request, &mut frame)?;
        self.write(&frame).await
    }

    /// The next thing that the server says about the last request.
    pub(crate) async fn receive(&mut self) -> Result<response::Body, Error> {
        loop {
            match self.input.next_response().map_err(|why| self.protocol(why))? {
                None => self.read().await?,
                Some(response) => match response.body {
                    Some(response::Body::Goodbye(goodbye)) => {
                        return Err(self.broken(&goodbye.message));
                    }
                    Some(body) if response.id == self.last_id => return Ok(body),
                    _ => {}
                },
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.socket.writer.write_all(bytes).await;
        written.map_err(|error| self.broken(&error.to_string()))
    }

    async fn read(&mut self) -> Result<(), Error> {
        match self.socket.reader.read_buf(self.input.room()).await {
            Ok(0) => Err(self.broken("the server closed the connection")),
            Ok(_) => Ok(()),
            Err(error) => Err(self.broken(&error.to_string())),
        }
    }

    fn protocol(&self, message: String) -> Error {
        Error::Protocol { endpoint: self.endpoint.clone(), message }
    }

    fn broken(&self, why: &str) -> Error {
        let endpoint = self.endpoint.clone();
        Error::Unreachable { last: format!("{endpoint}: {why}"), endpoints: vec![endpoint] }
    }
}
