//! One connection: the handshake, frames out, frames in.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::jute::{In, Out};

/// How long an answer may take before it counts as none.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

pub struct Client {
    pub stream: TcpStream,
    input: Vec<u8>,
    /// What the server said of the session.
    pub session: Session,
    pub last_zxid: i64,
    next_xid: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    pub id: i64,
    pub password: Vec<u8>,
    pub timeout_ms: i32,
    /// The byte that tells a read-only server; `None` if the server sent none.
    pub read_only: Option<u8>,
}

/// What a handshake asks for.
#[derive(Clone, Debug)]
pub struct Greeting {
    pub last_zxid: i64,
    pub timeout_ms: i32,
    pub id: i64,
    pub password: Option<Vec<u8>>,
    /// `None`: the byte is left out, as old clients do.
    pub read_only: Option<bool>,
}

impl Default for Greeting {
    fn default() -> Self {
        let password = Some(vec![0; 16]);
        Self { last_zxid: 0, timeout_ms: 30_000, id: 0, password, read_only: Some(false) }
    }
}

/// What came instead of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    Closed,
    NoAnswer,
}

impl Client {
    pub fn connect(port: u16, greeting: &Greeting) -> Result<Self, Silence> {
        let mut client = Self::open(port).map_err(|_| Silence::Closed)?;
        let mut out = Out::default();
        out.i32(0).i64(greeting.last_zxid).i32(greeting.timeout_ms).i64(greeting.id);
        out.buffer(greeting.password.as_deref());
        if let Some(read_only) = greeting.read_only {
            out.bool(read_only);
        }
        client.send(&out.0);
        client.last_zxid = greeting.last_zxid;
        let frame = client.frame()?;
        let mut body = In(&frame);
        let _protocol = body.i32();
        client.session = Session {
            timeout_ms: body.i32().unwrap_or(-1),
            id: body.i64().unwrap_or(-1),
            password: body.buffer().flatten().unwrap_or_default().to_vec(),
            read_only: body.0.first().copied(),
        };
        Ok(client)
    }

    /// A connection on which nothing was said yet.
    pub fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self {
            stream,
            input: Vec::new(),
            session: Session::default(),
            last_zxid: 0,
            next_xid: 1,
        })
    }

    pub fn xid(&mut self) -> i32 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    /// Sends a frame. That the connection is closed shows when an answer is read.
    pub fn send(&mut self, body: &[u8]) {
        let mut frame = Vec::with_capacity(body.len() + 4);
        frame.extend_from_slice(&(body.len() as i32).to_be_bytes());
        frame.extend_from_slice(body);
        self.send_bytes(&frame);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next frame's body.
    pub fn frame(&mut self) -> Result<Vec<u8>, Silence> {
        let mut buffer = [0; 65536];
        loop {
            if let Some(length) = self.input.first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if self.input.len() >= 4 + length {
                    let frame = self.input[4..4 + length].to_vec();
                    self.input.drain(..4 + length);
                    return Ok(frame);
                }
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Silence::Closed),
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return Err(Silence::NoAnswer);
                }
                Err(_) => return Err(Silence::Closed),
            }
        }
    }

    /// Asks and waits for the answer, for what isn't compared.
    pub fn ask(&mut self, op: i32, body: &[u8]) -> Result<(i32, Vec<u8>), Silence> {
        let xid = self.xid();
        let mut out = Out::default();
        out.i32(xid).i32(op);
        out.0.extend_from_slice(body);
        self.send(&out.0);
        loop {
            let frame = self.frame()?;
            let mut input = In(&frame);
            let (answered, _zxid, code) = (input.i32(), input.i64(), input.i32());
            if answered == Some(xid) {
                return Ok((code.unwrap_or(-1), input.0.to_vec()));
            }
        }
    }
}
