//! One connection: its greeting, its two halves, and its end.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::BytesMut;
use lockkeeper_wire::native::{Frames, VERSION, take_greeting};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Native;
use super::outbox::{Outbox, Turn};
use super::requests::Requests;
use crate::limits::{FAREWELL_TIMEOUT, REQUESTS_OF_TURN_MAX, WRITE_TIMEOUT};
use crate::socket::{linger, read_some};

impl Native {
    /// Serves one client from its greeting, of which `input` was read already, to its end. The
    /// greeting must be complete at `deadline`.
    pub(crate) async fn serve_greeted<S>(&self, socket: S, mut input: BytesMut, deadline: Instant)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (mut reader, mut writer) = tokio::io::split(socket);
        let greeting = timeout_at(deadline, read_greeting(&mut reader, &mut input)).await;
        let Ok(Ok(greeting)) = greeting else {
            // Silent, half-open or gone: there is nobody to talk to.
            return;
        };
        let outbox = Arc::new(Outbox::greeting(&self.figures));
        let requests = Requests::new(self.node.clone(), Arc::clone(&outbox), self.ttl_ms_max);
        let reading = async {
            let farewell = match refuse(greeting) {
                None => read(&mut reader, input, &requests, self).await,
                refused => refused,
            };
            outbox.finish(farewell.as_deref());
            std::future::pending::<Infallible>().await
        };
        let cut_off = async {
            outbox.is_closing().await;
            sleep(FAREWELL_TIMEOUT).await;
        };
        let has_heard_all = tokio::select! {
            never = reading => match never {},
            () = cut_off => false,
            // An error means that the client is gone, which needs no words.
            written = write(&mut writer, &requests) => written.is_ok(),
        };
        requests.leave();
        if has_heard_all {
            linger(&mut reader).await;
        }
    }
}

/// What the client said first: its version, or that it speaks something else.
async fn read_greeting(
    reader: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
) -> io::Result<Option<u32>> {
    loop {
        match take_greeting(input) {
            Ok(None) => {
                if read_some(reader, input).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok(Some(version)) => return Ok(Some(version)),
            Err(_) => return Ok(None),
        }
    }
}

fn refuse(greeting: Option<u32>) -> Option<String> {
    match greeting {
        Some(VERSION) => None,
        Some(version) => Some(format!(
            "this server speaks version {VERSION} of the native protocol, and not {version}; use a \
             client of its release"
        )),
        None => Some(
            "these bytes are neither Lockkeeper's native protocol nor HTTP; check which port the \
             client means"
                .to_owned(),
        ),
    }
}

/// The reading half: takes requests until the client is gone, or is to be told to go.
async fn read(
    reader: &mut (impl AsyncRead + Unpin),
    input: BytesMut,
    requests: &Requests,
    native: &Native,
) -> Option<String> {
    let mut frames = Frames::of_requests(input);
    let mut stopping = native.stopping.subscribe();
    let mut stopped = pin!(stopping.wait_for(|is_stopping| *is_stopping));
    let mut idle = pin!(sleep(native.idle_timeout));
    let mut was_idle = true;
    let mut late = pin!(sleep(native.frame_timeout));
    let mut is_inside = false;
    loop {
        let mut taken = 0;
        while taken < REQUESTS_OF_TURN_MAX {
            match frames.next_message() {
                Ok(Some(request)) => {
                    requests.take(request);
                    taken += 1;
                }
                Ok(None) => break,
                Err(error) => return Some(error.to_string()),
            }
        }
        if taken > 0 {
            requests.heard();
            was_idle = false;
        }
        if taken == REQUESTS_OF_TURN_MAX {
            // There may be more; whoever else has something to say comes first.
            is_inside = false;
            yield_now().await;
            continue;
        }
        let taken = taken > 0;
        // The deadline is that of the frame's first byte: dribbling doesn't move it.
        let has_begun = !frames.input().is_empty() && (taken || !is_inside);
        if has_begun {
            late.as_mut().reset(Instant::now() + native.frame_timeout);
        }
        is_inside = !frames.input().is_empty();
        tokio::select! {
            read = read_some(reader, frames.input()) => {
                if read.unwrap_or(0) == 0 {
                    return None;
                }
            }
            _ = &mut stopped => {
                return Some("this server is stopping; go on with another one".to_owned());
            }
            () = &mut late, if is_inside => {
                let limit = native.frame_timeout;
                return Some(format!("a request took longer than {limit:?} to come"));
            }
            () = &mut idle => {
                if was_idle && requests.outbox.is_idle() {
                    return Some("neither session nor request for a while".to_owned());
                }
                was_idle = true;
                idle.as_mut().reset(Instant::now() + native.idle_timeout);
            }
        }
    }
}

/// The writing half: one write for all that has come together since the last one.
async fn write(writer: &mut (impl AsyncWrite + Unpin), requests: &Requests) -> io::Result<()> {
    /// What an idle connection may keep for its next answers.
    const KEPT_BYTES_MAX: usize = 64 << 10;

    let mut buffer = BytesMut::new();
    let mut lagging = Vec::new();
    loop {
        let turn = requests.outbox.take(&mut buffer, &mut lagging).await;
        lagging.drain(..).for_each(|watch| requests.forget_watch(watch));
        timeout(WRITE_TIMEOUT, writer.write_all(&buffer)).await??;
        match turn {
            Turn::Send if buffer.capacity() <= KEPT_BYTES_MAX => buffer.clear(),
            Turn::Send => buffer = BytesMut::new(),
            Turn::Farewell => return writer.shutdown().await,
        }
    }
}
