//! Each record and each message, byte for byte, derived by hand from the description.

use std::fmt::Debug;

use bytes::BytesMut;
use lockkeeper_wire::jute::{
    Acl, Acls, AddWatchMode, Auth, Check, ClientInfo, ClientInfos, ConnectRequest, ConnectResponse,
    Create, CreateOp, Delete, ErrorCode, EventType, Hidden, Id, Input, List, Multi, MultiHeader,
    Op, OpCode, OpResult, Read, ReadOp, Reconfig, Record, Reply, ReplyHeader, Request,
    RequestHeader, STAT_BYTES, SetAcl, SetData, SetWatches, Stat, Strings, WatcherEvent,
    WatcherType, decode_reply, decode_request, encode_notification, encode_reply, encode_request,
    xids,
};

use super::{hex, written};

/// These bytes are this record, both ways.
#[track_caller]
fn same(record: &(impl for<'a> Record<'a> + PartialEq + Debug), bytes: &str) {
    let bytes = hex(bytes);
    assert_eq!(written(record), bytes);
    assert_eq!(Input::new(&bytes).read().as_ref(), Ok(record));
}

/// This request, with the number 3, is a frame with this body.
#[track_caller]
fn asked(request: &Request<'_>, op: i32, body: &str) {
    let content = [&[0, 0, 0, 3], &op.to_be_bytes()[..], &hex(body)].concat();
    let mut frame = BytesMut::new();
    encode_request(3, request, &mut frame).unwrap();
    assert_eq!(frame[4..], content);
    assert_eq!(frame[..4], u32::try_from(content.len()).unwrap().to_be_bytes());
    let (header, again) = decode_request(&content).unwrap();
    assert_eq!(header, RequestHeader { xid: 3, op: OpCode(op) });
    assert_eq!(&again, request);
}

/// This reply to the request with the number 3 is a frame with this body.
#[track_caller]
fn answered(op: OpCode, err: ErrorCode, reply: &Reply<'_>, body: &str) {
    let header = ReplyHeader { xid: 3, zxid: 0x1_0000_0005, err };
    let head = hex("00000003 0000000100000005");
    let content = [&head[..], &err.0.to_be_bytes(), &hex(body)].concat();
    let mut frame = BytesMut::new();
    encode_reply(&header, reply, &mut frame).unwrap();
    assert_eq!(frame[4..], content);
    assert_eq!(frame[..4], u32::try_from(content.len()).unwrap().to_be_bytes());
    let (header_again, body) = decode_reply(&content).unwrap();
    assert_eq!(header_again, header);
    assert_eq!(Reply::decode(op, &header, body).as_ref(), Ok(reply));
}

#[test]
fn fields() {
    same(&true, "01");
    same(&false, "00");
    assert_eq!(Input::new(&[7]).read(), Ok(true), "whatever isn't 0 is true");
    same(&-2, "ff ff ff fe");
    same(&i64::MIN, "80 00 00 00 00 00 00 00");
    assert_eq!(written(&None::<&str>), hex("ffffffff"));
    assert_eq!(written(&Some("")), hex("00000000"));
    assert_eq!(written(&Some("é")), hex("00000002 c3a9"));
    assert_eq!(written(&None::<&[u8]>), hex("ffffffff"));
    assert_eq!(written(&Some(&[][..])), hex("00000000"));
    assert_eq!(written(&Some(&[1, 0][..])), hex("00000002 01 00"));
    assert_eq!(written(&Strings::NULL), hex("ffffffff"));
    assert_eq!(written(&Strings::EMPTY), hex("00000000"));
    let strings = Strings::of([Some("a"), None, Some("")]);
    assert_eq!(written(&strings), hex("00000003 00000001 'a' ffffffff 00000000"));
}

#[test]
fn records() {
    same(&STAT, STAT_TEXT);
    assert_eq!(written(&STAT).len(), STAT_BYTES);
    same(&RequestHeader { xid: 3, op: OpCode::GET_DATA }, "00000003 00000004");
    same(&RequestHeader { xid: -4, op: OpCode(77) }, "fffffffc 0000004d");
    let header = ReplyHeader { xid: 3, zxid: 0x1_0000_0005, err: ErrorCode::NO_NODE };
    same(&header, "00000003 0000000100000005 ffffff9b");
    same(&MultiHeader { op: OpCode::ERROR, done: true, err: -1 }, "ffffffff 01 ffffffff");
    let id = Id { scheme: Some("world"), id: Some("anyone") };
    assert_eq!(written(&id), hex("00000005 'world' 00000006 'anyone'"));
    let kazoo = Acl { perms: 31, id: Id { scheme: Some("auth"), id: None } };
    assert_eq!(written(&kazoo), hex("0000001f 00000004 'auth' ffffffff"));
    let info = ClientInfo { scheme: Some("ip"), user: Some("::1") };
    assert_eq!(written(&info), hex("00000002 'ip' 00000003 '::1'"));
}

#[test]
fn connecting() {
    let new = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 30_000,
        session_id: 0,
        password: Hidden(Some(&[0; 16])),
        read_only: Some(false),
    };
    let zeros = "00000000000000000000000000000000";
    let fields = format!("00000000 0000000000000000 00007530 0000000000000000 00000010 {zeros}");
    for (read_only, length, end) in
        [(Some(false), "0000002d", "00"), (Some(true), "0000002d", "01"), (None, "0000002c", "")]
    {
        let request = ConnectRequest { read_only, ..new };
        let frame = hex(&format!("{length} {fields} {end}"));
        let mut out = BytesMut::new();
        request.encode(&mut out).unwrap();
        assert_eq!(out, frame);
        assert_eq!(ConnectRequest::decode(&frame[4..]), Ok(request));
    }
    let resumed = hex(
        "00000000 0000000100000005 00001388 0100000000000007 ffffffff 00 'and what is to come'",
    );
    let resume = ConnectRequest {
        last_zxid_seen: 0x1_0000_0005,
        timeout_ms: 5_000,
        session_id: 0x0100_0000_0000_0007,
        password: Hidden(None),
        ..new
    };
    assert_eq!(ConnectRequest::decode(&resumed), Ok(resume));

    for (read_only, frame) in [
        (Some(true), format!("00000025 00000000 00000000 0000000000000000 00000010 {zeros} 00")),
        (None, format!("00000024 00000000 00000000 0000000000000000 00000010 {zeros}")),
    ] {
        let refusal = ConnectResponse::refusal(read_only);
        let mut out = BytesMut::new();
        refusal.encode(&mut out).unwrap();
        assert_eq!(out, hex(&frame));
        assert_eq!(ConnectResponse::decode(&out[4..]), Ok(refusal));
    }
}

#[test]
fn creating() {
    let open = "00000001 0000001f 00000005 'world' 00000006 'anyone'";
    let create = |op, data, flags, ttl_ms| {
        Request::Create(Create { op, path: Some("/a"), data, acl: open_acl(), flags, ttl_ms })
    };
    let data = Some(&b"xy"[..]);
    let body = format!("00000002 '/a' 00000002 'xy' {open} 00000003");
    asked(&create(CreateOp::Create, data, 3, -1), 1, &body);
    let body = format!("00000002 '/a' ffffffff {open} 00000001");
    asked(&create(CreateOp::Create2, None, 1, -1), 15, &body);
    let body = format!("00000002 '/a' 00000000 {open} 00000004");
    asked(&create(CreateOp::Container, Some(&[]), 4, -1), 19, &body);
    let body = format!("00000002 '/a' ffffffff {open} 00000005 0000000000002710");
    asked(&create(CreateOp::Ttl, None, 5, 10_000), 21, &body);
    // What isn't a kind of znode is for whoever answers.
    let body = format!("00000002 '/a' ffffffff {open} 00000063");
    asked(&create(CreateOp::Create, None, 99, -1), 1, &body);
    let nothing = Create {
        op: CreateOp::Create,
        path: None,
        data: None,
        acl: List::NULL,
        flags: 0,
        ttl_ms: -1,
    };
    asked(&Request::Create(nothing), 1, "ffffffff ffffffff ffffffff 00000000");
}

#[test]
fn changing() {
    let path = Some("/a");
    asked(&Request::Delete(Delete { path, version: -1 }), 2, "00000002 '/a' ffffffff");
    let set = SetData { path, data: Some(b"x"), version: 7 };
    asked(&Request::SetData(set), 5, "00000002 '/a' 00000001 'x' 00000007");
    let set = SetData { path, data: None, version: 7 };
    asked(&Request::SetData(set), 5, "00000002 '/a' ffffffff 00000007");
    asked(
        &Request::SetAcl(SetAcl { path, acl: open_acl(), version: 2 }),
        7,
        "00000002 '/a' 00000001 0000001f 00000005 'world' 00000006 'anyone' 00000002",
    );
    let reconfig = Reconfig {
        joining: Some("server.4=x:1:2"),
        leaving: None,
        new_members: None,
        current_config: -1,
    };
    let body = "0000000e 'server.4=x:1:2' ffffffff ffffffff ffffffffffffffff";
    asked(&Request::Reconfig(reconfig), 16, body);
    asked(&Request::CloseSession, -11, "");
}

#[test]
fn reading() {
    let path = Some("/a");
    let read = |watch| Read { path, watch };
    asked(&Request::Exists(read(true)), 3, "00000002 '/a' 01");
    asked(&Request::GetData(read(false)), 4, "00000002 '/a' 00");
    asked(&Request::GetAcl(path), 6, "00000002 '/a'");
    asked(&Request::GetChildren(read(true)), 8, "00000002 '/a' 01");
    asked(&Request::Sync(None), 9, "ffffffff");
    asked(&Request::Ping, 11, "");
    asked(&Request::GetChildren2(read(false)), 12, "00000002 '/a' 00");
    asked(&Request::GetEphemerals(Some("")), 103, "00000000");
    asked(&Request::GetAllChildrenNumber(path), 104, "00000002 '/a'");
    asked(&Request::WhoAmI, 107, "");
}

#[test]
fn watching() {
    let path = Some("/a");
    asked(&Request::CheckWatches(path, WatcherType::Children), 17, "00000002 '/a' 00000001");
    asked(&Request::RemoveWatches(path, WatcherType::Any), 18, "00000002 '/a' 00000003");
    asked(&Request::AddWatch(path, AddWatchMode::Persistent), 106, "00000002 '/a' 00000000");
    let mode = AddWatchMode::PersistentRecursive;
    asked(&Request::AddWatch(path, mode), 106, "00000002 '/a' 00000001");
    let watches = || SetWatches {
        relative_zxid: 9,
        data: Strings::of([Some("/a")]),
        exist: List::EMPTY,
        child: List::NULL,
    };
    let body = "0000000000000009 00000001 00000002 '/a' 00000000 ffffffff";
    asked(&Request::SetWatches(watches()), 101, body);
    let all = Request::SetWatches2 {
        watches: watches(),
        persistent: Strings::of([Some("/p")]),
        persistent_recursive: Strings::of([Some("/r")]),
    };
    let body = format!("{body} 00000001 00000002 '/p' 00000001 00000002 '/r'");
    asked(&all, 105, &body);
}

#[test]
fn showing_who_one_is() {
    let credentials = Hidden(Some(b"user:pass"));
    let auth = Auth { kind: 0, scheme: Some("digest"), credentials };
    asked(&Request::Auth(auth), 100, "00000000 00000006 'digest' 00000009 'user:pass'");
    assert!(!format!("{auth:?}").contains("117"), "no password, in no form, in a log");
    asked(&Request::Sasl(Hidden(Some(b""))), 102, "00000000");
    asked(&Request::Sasl(Hidden(None)), 102, "ffffffff");
}

#[test]
fn several_at_once() {
    let path = Some("/a");
    let create = Op::Create(Create {
        op: CreateOp::Create2,
        path,
        data: None,
        acl: List::EMPTY,
        flags: 0,
        ttl_ms: -1,
    });
    let multi = Multi::of([
        Op::Check(Check { path, version: 4 }),
        create,
        Op::Delete(Delete { path, version: -1 }),
        Op::SetData(SetData { path, data: None, version: 0 }),
    ]);
    let end = "ffffffff 01 ffffffff";
    let body = format!(
        "0000000d 00 ffffffff 00000002 '/a' 00000004 \
         0000000f 00 ffffffff 00000002 '/a' ffffffff 00000000 00000000 \
         00000002 00 ffffffff 00000002 '/a' ffffffff \
         00000005 00 ffffffff 00000002 '/a' ffffffff 00000000 {end}"
    );
    asked(&Request::Multi(multi), 14, &body);
    asked(&Request::Multi(Multi::of([])), 14, end);
    let read = Read { path, watch: false };
    let reads = Multi::of([ReadOp::GetChildren(read), ReadOp::GetData(read)]);
    let body = format!(
        "00000008 00 ffffffff 00000002 '/a' 00 00000004 00 ffffffff 00000002 '/a' 00 {end}"
    );
    asked(&Request::MultiRead(reads), 22, &body);
}

#[test]
fn replies() {
    let (path, ok) = (Some("/a"), ErrorCode::OK);
    let children = || Strings::of([Some("x"), Some("y")]);
    let names = "00000002 00000001 'x' 00000001 'y'";
    answered(OpCode::CREATE, ok, &Reply::Path(path), "00000002 '/a'");
    answered(OpCode::SYNC, ok, &Reply::Path(None), "ffffffff");
    for op in [OpCode::CREATE2, OpCode::CREATE_CONTAINER, OpCode::CREATE_TTL] {
        let body = format!("00000002 '/a' {STAT_TEXT}");
        answered(op, ok, &Reply::PathStat(path, STAT), &body);
    }
    for op in [OpCode::EXISTS, OpCode::SET_DATA, OpCode::SET_ACL] {
        answered(op, ok, &Reply::Stat(STAT), STAT_TEXT);
    }
    let null = Reply::DataStat(None, STAT);
    answered(OpCode::GET_DATA, ok, &null, &format!("ffffffff {STAT_TEXT}"));
    let empty = Reply::DataStat(Some(&[]), STAT);
    answered(OpCode::GET_DATA, ok, &empty, &format!("00000000 {STAT_TEXT}"));
    let acl = Reply::AclStat(open_acl(), STAT);
    let body = format!("00000001 0000001f 00000005 'world' 00000006 'anyone' {STAT_TEXT}");
    answered(OpCode::GET_ACL, ok, &acl, &body);
    answered(OpCode::GET_CHILDREN, ok, &Reply::Strings(children()), names);
    let listed = Reply::StringsStat(children(), STAT);
    answered(OpCode::GET_CHILDREN2, ok, &listed, &format!("{names} {STAT_TEXT}"));
    answered(OpCode::GET_ALL_CHILDREN_NUMBER, ok, &Reply::Count(3), "00000003");
    answered(OpCode::ADD_WATCH, ok, &Reply::WatchAdded(ok), "00000000");
    let infos = ClientInfos::of([ClientInfo { scheme: Some("ip"), user: Some("::1") }]);
    let body = "00000001 00000002 'ip' 00000003 '::1'";
    answered(OpCode::WHO_AM_I, ok, &Reply::ClientInfos(infos), body);
    for op in [OpCode::DELETE, OpCode::AUTH, OpCode::SET_WATCHES2, OpCode::CLOSE_SESSION] {
        answered(op, ok, &Reply::Empty, "");
    }
    answered(OpCode::SASL, ok, &Reply::Token(Hidden(Some(b"t"))), "00000001 't'");
}

#[test]
fn failures_have_no_body() {
    for op in [OpCode::EXISTS, OpCode::GET_DATA, OpCode::MULTI, OpCode::ADD_WATCH, OpCode::SASL] {
        answered(op, ErrorCode::NO_NODE, &Reply::Empty, "");
    }
    answered(OpCode::SASL, ErrorCode::AUTH_FAILED, &Reply::Token(Hidden(None)), "ffffffff");
}

#[test]
fn how_several_went() {
    let path = Some("/a");
    let went = Multi::of([
        OpResult::Created { path },
        OpResult::CreatedWithStat { path, stat: STAT },
        OpResult::Deleted,
        OpResult::DataSet(STAT),
        OpResult::Checked,
        OpResult::Children(List::EMPTY),
        OpResult::Data { data: None, stat: STAT },
    ]);
    let end = "ffffffff 01 ffffffff";
    let body = format!(
        "00000001 00 00000000 00000002 '/a' \
         0000000f 00 00000000 00000002 '/a' {STAT_TEXT} \
         00000002 00 00000000 \
         00000005 00 00000000 {STAT_TEXT} \
         0000000d 00 00000000 \
         00000008 00 00000000 00000000 \
         00000004 00 00000000 ffffffff {STAT_TEXT} {end}"
    );
    answered(OpCode::MULTI, ErrorCode::OK, &Reply::Multi(went), &body);
    // One write failed, so all did; the header of the reply says nothing of it.
    let failed = Multi::of([
        OpResult::Failed(ErrorCode::OK),
        OpResult::Failed(ErrorCode::BAD_VERSION),
        OpResult::Failed(ErrorCode::RUNTIME_INCONSISTENCY),
    ]);
    let body = format!(
        "ffffffff 00 00000000 00000000 ffffffff 00 ffffff99 ffffff99 \
         ffffffff 00 fffffffe fffffffe {end}"
    );
    answered(OpCode::MULTI, ErrorCode::OK, &Reply::Multi(failed), &body);
    answered(OpCode::MULTI_READ, ErrorCode::OK, &Reply::Multi(Multi::of([])), end);
}

#[test]
fn notifications() {
    let event = WatcherEvent {
        kind: EventType::NodeDataChanged,
        state: WatcherEvent::CONNECTED,
        path: Some("/a"),
    };
    let mut out = BytesMut::new();
    encode_notification(0x1_0000_0005, &event, &mut out).unwrap();
    let frame = "0000001e ffffffff 0000000100000005 00000000 00000003 00000003 00000002 2f61";
    assert_eq!(out, hex(frame));
    let (header, mut body) = decode_reply(&out[4..]).unwrap();
    assert_eq!(header.xid, xids::NOTIFICATION);
    assert_eq!(body.read(), Ok(event));
}

#[test]
fn names() {
    assert_eq!(OpCode(19).name(), Some("createContainer"));
    assert_eq!((OpCode(10).name(), OpCode(10).to_string().as_str()), (None, "operation 10"));
    assert_eq!(ErrorCode(-101).name(), Some("NONODE"));
    assert_eq!(
        (ErrorCode(-126).name(), ErrorCode(-126).to_string().as_str()),
        (None, "error -126")
    );
    let known: Vec<i32> = ErrorCode::ALL.iter().map(|code| code.0).collect();
    let described = [
        0, -1, -2, -3, -4, -5, -6, -7, -8, -12, -13, -14, -100, -101, -102, -103, -108, -110, -111,
        -112, -113, -114, -115, -118, -119, -120, -121, -122, -123, -124, -125, -127,
    ];
    assert_eq!(known, described);
}

fn open_acl() -> Acls<'static> {
    Acls::of([Acl { perms: 31, id: Id { scheme: Some("world"), id: Some("anyone") } }])
}

const STAT: Stat = Stat {
    czxid: 0x1_0000_0001,
    mzxid: 0x1_0000_0002,
    ctime: 0x191_0000_0003,
    mtime: 0x191_0000_0004,
    version: 5,
    cversion: -6,
    aversion: 7,
    ephemeral_owner: 0x0100_0000_0000_0008,
    data_length: 9,
    num_children: 10,
    pzxid: 0x1_0000_000b,
};

const STAT_TEXT: &str = "0000000100000001 0000000100000002 0000019100000003 0000019100000004 \
                         00000005 fffffffa 00000007 0100000000000008 00000009 0000000a \
                         000000010000000b";
