//! ZooKeeper's protocol, both directions: a stream in pieces, and bare messages.

use bytes::{BufMut, BytesMut};
use lockkeeper_wire::jute::{
    Acl, Acls, AddWatchMode, Auth, Check, ConnectRequest, ConnectResponse, Create, CreateOp,
    ErrorCode, EventType, Frames, Hidden, Id, Input, List, Multi, Op, OpCode, OpResult, Read,
    ReadOp, Reply, ReplyHeader, Request, SetWatches, Stat, Strings, WatcherEvent, WatcherType,
    decode_reply, decode_request, encode_notification, encode_reply, encode_request,
};

use crate::harness::Target;

/// Frames, as a socket brings them. The first byte says in pieces of which size.
pub const JUTE: Target = Target {
    name: "jute",
    run: stream,
    seeds,
    bytes_flat: 16 << 10,
    // What was read is written again, and read again; nothing grows by being decoded.
    bytes_each: 16,
};

/// What a server takes here: small, so that a fuzzer finds the limit.
const FRAME_BYTES_MAX: usize = 4 << 10;

fn stream(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else { return };
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    'stream: for piece in bytes.chunks(usize::from(piece) + 1) {
        frames.input().put_slice(piece);
        let _ = frames.first_word();
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => message(&frame),
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
        assert!(frames.input().len() < FRAME_BYTES_MAX + 4, "at most one incomplete frame");
    }
    message(bytes);
}

/// Whatever it is, it is read as everything that it could be.
fn message(frame: &[u8]) {
    if let Ok(request) = ConnectRequest::decode(frame) {
        let mut out = BytesMut::new();
        request.encode(&mut out).expect("it was in a frame");
        assert_eq!(ConnectRequest::decode(&out[4..]), Ok(request));
    }
    if let Ok(response) = ConnectResponse::decode(frame) {
        let mut out = BytesMut::new();
        response.encode(&mut out).expect("it was in a frame");
        assert_eq!(ConnectResponse::decode(&out[4..]), Ok(response));
    }
    if let Ok((header, request)) = decode_request(frame) {
        every_part(&request);
        let mut out = BytesMut::new();
        encode_request(header.xid, &request, &mut out).expect("it was in a frame");
        assert_eq!(decode_request(&out[4..]), Ok((header, request)));
    }
    let Ok((header, body)) = decode_reply(frame) else { return };
    for &op in OpCode::ALL {
        reply(op, &header, body);
    }
    if let Ok(event) = body.clone().read::<WatcherEvent<'_>>() {
        let mut out = BytesMut::new();
        encode_notification(header.zxid, &event, &mut out).expect("it was in a frame");
        let (_, mut again) = decode_reply(&out[4..]).expect("it was just encoded");
        assert_eq!(again.read(), Ok(event));
    }
}

fn reply(op: OpCode, header: &ReplyHeader, body: Input<'_>) {
    let Ok(reply) = Reply::decode(op, header, body) else { return };
    let mut out = BytesMut::new();
    encode_reply(header, &reply, &mut out).expect("it was in a frame");
    let (header_again, body) = decode_reply(&out[4..]).expect("it was just encoded");
    assert_eq!(header_again, *header);
    assert_eq!(Reply::decode(op, header, body), Ok(reply));
}

/// As many elements as were counted can be read.
fn every_part(request: &Request<'_>) {
    match request {
        Request::Multi(multi) => assert_eq!(multi.iter().count(), multi.len()),
        Request::MultiRead(multi) => assert_eq!(multi.iter().count(), multi.len()),
        Request::Create(create) => assert_eq!(create.acl.iter().count(), create.acl.len()),
        Request::SetWatches(watches) => {
            assert_eq!(watches.child.iter().count(), watches.child.len());
        }
        _ => {}
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = request_seeds();
    seeds.extend(reply_seeds());
    let hello = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 30_000,
        session_id: 0,
        password: Hidden(Some(&[0; 16])),
        read_only: Some(false),
    };
    for read_only in [None, Some(true)] {
        let mut out = BytesMut::new();
        ConnectRequest { read_only, ..hello }.encode(&mut out).expect("it is short");
        ConnectResponse::refusal(read_only).encode(&mut out).expect("it is short");
        seeds.extend(streamed_and_bare(&out));
    }
    seeds.extend([&b"\0ruok"[..], b"\0srvr\n"].map(<[u8]>::to_vec));
    // Case LI-1: lengths of -1, 0, 2^31 - 1, and nothing behind them.
    seeds.extend([u32::MAX, 0, 0x7fff_ffff].map(|it| [&[0][..], &it.to_be_bytes()].concat()));
    // A promise of as many ACLs as fit in a count.
    let mut promise = b"\x07\0\0\0\x01\0\0\0\x07\0\0\0\x02/a".to_vec();
    promise.extend([0x7f, 0xff, 0xff, 0xff]);
    seeds.push(promise);
    seeds
}

fn request_seeds() -> Vec<Vec<u8>> {
    let path = Some("/a/b-");
    let acl = || Acls::of([Acl { perms: 31, id: Id { scheme: Some("world"), id: None } }]);
    let create =
        |op, flags, ttl_ms| Create { op, path, data: Some(b"x"), acl: acl(), flags, ttl_ms };
    let paths = || Strings::of([path, None, Some("")]);
    let watches =
        || SetWatches { relative_zxid: 7, data: paths(), exist: List::NULL, child: List::EMPTY };
    let read = Read { path, watch: true };
    let requests = [
        Request::Create(create(CreateOp::Create, 3, -1)),
        Request::Create(create(CreateOp::Ttl, 5, 1_000)),
        Request::GetChildren2(read),
        Request::Multi(Multi::of([
            Op::Check(Check { path, version: 3 }),
            Op::Create(create(CreateOp::Create2, 1, -1)),
        ])),
        Request::MultiRead(Multi::of([ReadOp::GetData(read), ReadOp::GetChildren(read)])),
        Request::Auth(Auth { kind: 0, scheme: Some("digest"), credentials: Hidden(Some(b"a:b")) }),
        Request::SetWatches2 {
            watches: watches(),
            persistent: paths(),
            persistent_recursive: paths(),
        },
        Request::AddWatch(path, AddWatchMode::PersistentRecursive),
        Request::RemoveWatches(path, WatcherType::Any),
        Request::CloseSession,
    ];
    requests
        .iter()
        .flat_map(|request| {
            let mut out = BytesMut::new();
            encode_request(5, request, &mut out).expect("it is short");
            streamed_and_bare(&out)
        })
        .collect()
}

fn reply_seeds() -> Vec<Vec<u8>> {
    let stat = Stat { czxid: 9, mzxid: 9, ctime: 1, mtime: 1, num_children: 2, ..Stat::default() };
    let names = || Strings::of([Some("a"), Some("b")]);
    let header = ReplyHeader { xid: 5, zxid: 9, err: ErrorCode::OK };
    let replies = [
        Reply::StringsStat(names(), stat),
        Reply::DataStat(None, stat),
        Reply::Multi(Multi::of([
            OpResult::Created { path: Some("/a") },
            OpResult::Data { data: Some(b""), stat },
            OpResult::Failed(ErrorCode::NO_NODE),
        ])),
    ];
    let event = WatcherEvent {
        kind: EventType::NodeDeleted,
        state: WatcherEvent::CONNECTED,
        path: Some("/a"),
    };
    let mut told = BytesMut::new();
    encode_notification(9, &event, &mut told).expect("it is short");
    let mut seeds: Vec<_> = streamed_and_bare(&told).into();
    for reply in &replies {
        let mut out = BytesMut::new();
        encode_reply(&header, reply, &mut out).expect("it is short");
        seeds.extend(streamed_and_bare(&out));
    }
    seeds
}

/// In pieces of a few bytes as a socket brings it, and without the length.
fn streamed_and_bare(frames: &[u8]) -> [Vec<u8>; 2] {
    [[&[4][..], frames].concat(), [&[255][..], &frames[4..]].concat()]
}
