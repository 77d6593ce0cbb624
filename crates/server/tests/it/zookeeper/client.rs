//! A client that does what it is told, and nothing by itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use bytes::BytesMut;
use lockkeeper_wire::jute::{
    self, Acl, Acls, ConnectRequest, ConnectResponse, Create, CreateOp, Delete, ErrorCode,
    EventType, Frames, Hidden, Id, Input, OpCode, Read as Reads, Reply, Request, SetData, Stat,
    Strings, WatcherEvent, decode_reply, encode_request, perms, xids,
};

use crate::harness::{PATIENCE, Running};

/// The time-out of sessions that are to expire: longer than a machine stands still whose disk or
/// processors stall.
pub(crate) const SHORT_MS: i32 = 5_000;

/// More than any reply here.
const REPLY_BYTES_MAX: usize = 256 << 20;

/// A connection, with its session if it has one.
pub(crate) struct Zk {
    pub(crate) stream: TcpStream,
    frames: Frames,
    xid: i32,
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
    pub(crate) timeout_ms: i32,
    /// Events that came while an answer was waited for.
    told: Vec<String>,
}

/// What a server said at the first frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) timeout_ms: i32,
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
    pub(crate) read_only: Option<bool>,
}

/// One frame that a server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Reply {
        xid: i32,
        zxid: i64,
        err: ErrorCode,
        body: Vec<u8>,
    },
    Event {
        kind: EventType,
        path: String,
        zxid: i64,
    },
    /// The connection was closed.
    End,
}

/// The first frame of a client that has no session yet.
pub(crate) fn fresh() -> ConnectRequest<'static> {
    ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 30_000,
        session_id: 0,
        password: Hidden(Some(&[0; 16])),
        read_only: Some(false),
    }
}

impl Zk {
    /// With a new session.
    pub(crate) fn new(server: &Running) -> Self {
        Self::with_timeout(server, 30_000)
    }

    pub(crate) fn with_timeout(server: &Running, timeout_ms: i32) -> Self {
        let mut zk = Self::silent(server);
        zk.greet(&ConnectRequest { timeout_ms, ..fresh() }).expect("a session");
        zk
    }

    /// On which nothing was said yet.
    pub(crate) fn silent(server: &Running) -> Self {
        Self::at(server.zookeeper.expect("it listens"))
    }

    pub(crate) fn at(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            frames: Frames::new(REPLY_BYTES_MAX),
            xid: 0,
            session: 0,
            password: Vec::new(),
            timeout_ms: 0,
            told: Vec::new(),
        }
    }

    /// The first frames. `None`: the connection was closed without a word.
    pub(crate) fn greet(&mut self, request: &ConnectRequest<'_>) -> Option<Greeting> {
        let mut bytes = BytesMut::new();
        request.encode(&mut bytes).unwrap();
        self.write(&bytes);
        let greeting = self.greeting()?;
        self.session = greeting.session;
        self.password.clone_from(&greeting.password);
        self.timeout_ms = greeting.timeout_ms;
        Some(greeting)
    }

    pub(crate) fn greeting(&mut self) -> Option<Greeting> {
        let frame = self.frame()?;
        let response = ConnectResponse::decode(&frame).unwrap();
        assert_eq!(response.protocol_version, 0);
        Some(Greeting {
            timeout_ms: response.timeout_ms,
            session: response.session_id,
            password: response.password.0.unwrap().to_vec(),
            read_only: response.read_only,
        })
    }

    /// The session goes on over another connection.
    pub(crate) fn resumed(&self, address: SocketAddr) -> Option<Self> {
        let mut zk = Self::at(address);
        let greeting = zk.greet(&self.resuming())?;
        assert_eq!(greeting.session, self.session);
        Some(zk)
    }

    pub(crate) fn resuming(&self) -> ConnectRequest<'_> {
        ConnectRequest {
            session_id: self.session,
            password: Hidden(Some(&self.password)),
            timeout_ms: self.timeout_ms,
            ..fresh()
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Asks, and doesn't wait for the answer.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> i32 {
        self.xid += 1;
        let xid = self.xid;
        self.send_as(xid, request);
        xid
    }

    pub(crate) fn send_as(&mut self, xid: i32, request: &Request<'_>) {
        let mut bytes = BytesMut::new();
        encode_request(xid, request, &mut bytes).unwrap();
        self.write(&bytes);
    }

    fn frame(&mut self) -> Option<bytes::Bytes> {
        let mut chunk = [0; 64 << 10];
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return Some(frame);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(read) => self.frames.input().extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                // A read with a limit ends when the process is stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no frame: {error}"),
            }
        }
    }

    /// The next frame.
    pub(crate) fn hear(&mut self) -> Heard {
        let Some(frame) = self.frame() else { return Heard::End };
        let (header, mut rest) = decode_reply(&frame).unwrap();
        if header.xid == xids::NOTIFICATION {
            assert_eq!(header.err, ErrorCode::OK);
            let event: WatcherEvent<'_> = rest.read().unwrap();
            assert_eq!(event.state, WatcherEvent::CONNECTED);
            let path = event.path.unwrap().to_owned();
            return Heard::Event { kind: event.kind, path, zxid: header.zxid };
        }
        let body = rest.rest().to_vec();
        Heard::Reply { xid: header.xid, zxid: header.zxid, err: header.err, body }
    }

    /// The answer to a request, which must be the next one.
    pub(crate) fn reply(&mut self, of: i32) -> (ErrorCode, Vec<u8>) {
        loop {
            match self.hear() {
                Heard::Reply { xid, zxid, err, body } if xid == of => {
                    assert!(zxid > 0, "a reply of zxid {zxid}");
                    if err != ErrorCode::OK {
                        assert!(body.is_empty(), "{err} with a body");
                    }
                    return (err, body);
                }
                Heard::Event { kind, path, .. } => self.told.push(format!("{kind:?} {path}")),
                other => panic!("{other:?} instead of the reply to {of}"),
            }
        }
    }

    pub(crate) fn call(&mut self, request: &Request<'_>) -> (ErrorCode, Vec<u8>) {
        let xid = self.send(request);
        self.reply(xid)
    }

    /// Asks for what goes well.
    pub(crate) fn done(&mut self, request: &Request<'_>) -> Vec<u8> {
        let (err, body) = self.call(request);
        assert_eq!(err, ErrorCode::OK, "{request:?}");
        body
    }

    /// Asks for what fails.
    pub(crate) fn fails(&mut self, request: &Request<'_>) -> ErrorCode {
        let (err, body) = self.call(request);
        assert_ne!(err, ErrorCode::OK, "{request:?}");
        assert!(body.is_empty());
        err
    }

    /// The connection is closed, and nothing more was said.
    pub(crate) fn assert_closed(&mut self) {
        assert_eq!(self.hear(), Heard::End);
    }

    /// It is served, and was told nothing that it didn't ask for.
    pub(crate) fn assert_silent(&mut self) {
        assert_eq!(self.events(), [""; 0]);
    }

    /// The events that were told since the last look, as text.
    pub(crate) fn events(&mut self) -> Vec<String> {
        self.call(&exists("/", false));
        std::mem::take(&mut self.told)
    }

    // ------------------------------------------------------------ in short

    pub(crate) fn create(&mut self, path: &str, flags: i32) -> String {
        let body = self.done(&create(path, flags));
        text(&body)
    }

    pub(crate) fn delete(&mut self, path: &str) {
        self.done(&delete(path));
    }

    pub(crate) fn set(&mut self, path: &str, data: &str) -> Stat {
        let body = self.done(&set_data(path, Some(data.as_bytes()), -1));
        Input::new(&body).read().unwrap()
    }

    pub(crate) fn get(&mut self, path: &str) -> (Option<Vec<u8>>, Stat) {
        let body = self.done(&get_data(path, false));
        let mut input = Input::new(&body);
        let data: Option<&[u8]> = input.read().unwrap();
        (data.map(<[u8]>::to_vec), input.read().unwrap())
    }

    /// `None`: there is no such node.
    pub(crate) fn stat(&mut self, path: &str) -> Option<Stat> {
        let (err, body) = self.call(&exists(path, false));
        if err == ErrorCode::NO_NODE {
            return None;
        }
        assert_eq!(err, ErrorCode::OK);
        Some(Input::new(&body).read().unwrap())
    }

    pub(crate) fn children(&mut self, path: &str) -> Vec<String> {
        let body = self.done(&children(path, false));
        strings(&body)
    }

    pub(crate) fn sync(&mut self) {
        self.done(&Request::Sync(Some("/")));
    }

    pub(crate) fn auth(&mut self, scheme: &str, credentials: &str) -> ErrorCode {
        let credentials = Hidden(Some(credentials.as_bytes()));
        let auth = jute::Auth { kind: 0, scheme: Some(scheme), credentials };
        self.send_as(xids::AUTH, &Request::Auth(auth));
        match self.hear() {
            Heard::Reply { xid: xids::AUTH, zxid: 0, err, .. } => err,
            other => panic!("{other:?} instead of an answer to auth"),
        }
    }

    /// Ends the session.
    pub(crate) fn close(&mut self) {
        self.done(&Request::CloseSession);
        self.assert_closed();
    }
}

pub(crate) const OPEN: Acl<'_> =
    Acl { perms: perms::ALL, id: Id { scheme: Some("world"), id: Some("anyone") } };

pub(crate) fn create(path: &str, flags: i32) -> Request<'_> {
    Request::Create(new_node(CreateOp::Create, path, flags))
}

pub(crate) fn new_node(op: CreateOp, path: &str, flags: i32) -> Create<'_> {
    Create { op, path: Some(path), data: Some(b""), acl: Acls::of([OPEN]), flags, ttl_ms: -1 }
}

pub(crate) fn delete(path: &str) -> Request<'_> {
    Request::Delete(Delete { path: Some(path), version: -1 })
}

pub(crate) fn set_data<'a>(path: &'a str, data: Option<&'a [u8]>, version: i32) -> Request<'a> {
    Request::SetData(SetData { path: Some(path), data, version })
}

pub(crate) fn exists(path: &str, watch: bool) -> Request<'_> {
    Request::Exists(Reads { path: Some(path), watch })
}

pub(crate) fn get_data(path: &str, watch: bool) -> Request<'_> {
    Request::GetData(Reads { path: Some(path), watch })
}

pub(crate) fn children(path: &str, watch: bool) -> Request<'_> {
    Request::GetChildren(Reads { path: Some(path), watch })
}

pub(crate) fn text(body: &[u8]) -> String {
    let text: Option<&str> = Input::new(body).read().unwrap();
    text.unwrap().to_owned()
}

pub(crate) fn strings(body: &[u8]) -> Vec<String> {
    let list: Strings<'_> = Input::new(body).read().unwrap();
    list.iter().map(|text| text.unwrap().to_owned()).collect()
}

/// The results of a multi, as text: `create /a`, `error -103`.
pub(crate) fn results(body: &[u8]) -> Vec<String> {
    let header = jute::ReplyHeader { xid: 0, zxid: 1, err: ErrorCode::OK };
    let reply = Reply::decode(OpCode::MULTI, &header, Input::new(body)).unwrap();
    let Reply::Multi(results) = reply else { panic!("{reply:?}") };
    let text = |result| match result {
        jute::OpResult::Created { path } => format!("create {}", path.unwrap()),
        jute::OpResult::CreatedWithStat { path, stat } => {
            format!("create2 {} {}", path.unwrap(), stat.data_length)
        }
        jute::OpResult::Deleted => "delete".to_owned(),
        jute::OpResult::DataSet(stat) => format!("set {}", stat.version),
        jute::OpResult::Checked => "check".to_owned(),
        jute::OpResult::Children(names) => {
            let names: Vec<_> = names.iter().flatten().collect();
            format!("children {}", names.join(","))
        }
        jute::OpResult::Data { data, stat } => {
            let data = data.map_or_else(|| "null".into(), String::from_utf8_lossy);
            format!("data {data} {}", stat.version)
        }
        jute::OpResult::Failed(error) => format!("error {}", error.0),
    };
    results.iter().map(text).collect()
}
