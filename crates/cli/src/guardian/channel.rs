//! What the supervisor and its guardian say to each other, and the pipe between them.
//!
//! The pipe is a pair of connected sockets that keep messages whole. It is the guardian's standard
//! input: the command's real one travels through it, beside the first message, so that no file
//! descriptor has to be passed by number. When one side dies, however it dies, the other one reads
//! the end of the pipe.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::OnLost;

/// Longer than any message: the longest text in one is a URL.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// What the supervisor tells the guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The first one, with the command's standard input beside it: start the command.
    Begin(Begin),
    /// The lease was renewed: it is lost at this moment, in nanoseconds since boot.
    Deadline(u64),
    /// Send this signal to the command's process group.
    Signal(i32),
    /// Stop the command: first signal, grace, KILL.
    Stop,
    /// The session is ended: nothing is left to do.
    Done,
}

/// Everything a guardian must know. It comes through the pipe and not by arguments, because it
/// holds the session's secret.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) url: String,
    pub(crate) session: u64,
    pub(crate) secret: [u8; 16],
    /// Nanoseconds since boot.
    pub(crate) deadline_ns: u64,
    pub(crate) grace: Duration,
    /// The first signal, by its number.
    pub(crate) signal: i32,
    pub(crate) on_lost: OnLost,
}

/// What the guardian tells the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The command runs; its process id is its group's, too.
    Started(i32),
    /// The command can't be started.
    NotStarted {
        /// The system's number for why.
        errno: i32,
        message: String,
    },
    /// The command has ended, but processes that it started haven't.
    Lingers,
    /// The command and its group are gone.
    Ended(Ended),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// Its exit code, or 128 and the number of the signal that killed it.
    pub(crate) code: u8,
    /// How it was made to stop; `None` if it ended by itself.
    pub(crate) stopped: Option<Stopped>,
}

/// How a command was made to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stopped {
    pub(crate) why: Why,
    /// It, or something of it, outlived its grace.
    pub(crate) killed: bool,
    /// From the first signal to the end.
    pub(crate) took: Duration,
}

/// Why a command was made to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Why {
    /// The lease wasn't renewed.
    LeaseRanOut,
    /// The supervisor ordered it.
    Ordered,
    /// The supervisor is gone.
    Orphaned,
    /// A signal asked the guardian itself to end.
    Signalled,
}

/// One end of the pipe.
pub(crate) struct Channel {
    /// Not a stream, in fact; its readiness is the same.
    socket: UnixStream,
}

/// Makes a pipe: two ends, neither of which outlives an `exec` unless it is made to.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Channel {
    /// Takes an end of a pipe into the current runtime.
    pub(crate) fn new(end: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::from_std(end.into())? })
    }

    /// Sends a message, with a file descriptor beside it if one is given. Never waits: the pipe
    /// holds more than is ever under way, unless the other side has been stopped.
    pub(crate) fn send<T: Serialize>(
        &self,
        message: &T,
        descriptor: Option<&OwnedFd>,
    ) -> io::Result<()> {
        let message = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let descriptor = descriptor.map(|descriptor| [descriptor.as_fd()]);
        if let Some(descriptor) = &descriptor {
            beside.push(SendAncillaryMessage::ScmRights(descriptor));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&message)], &mut beside, flags)?;
        Ok(())
    }

    /// The next message and the file descriptor beside it; `None` when the other side is gone.
    /// Dropping the future loses nothing.
    pub(crate) async fn receive<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let (length, descriptor) = loop {
            self.socket.readable().await?;
            let receive = || receive_once(&self.socket, &mut buffer);
            match self.socket.try_io(Interest::READABLE, receive) {
                Ok(received) => break received,
                Err(error) => match error.kind() {
                    // The other side ended without having read everything. That is told once, and
                    // before what it has said itself.
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionReset => {}
                    _ => return Err(error),
                },
            }
        };
        if length == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&buffer[..length])?, descriptor)))
    }
}

fn receive_once(socket: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut beside, flags)?;
    let descriptor = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, descriptor))
}
