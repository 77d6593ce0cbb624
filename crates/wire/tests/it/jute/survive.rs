//! Whatever is said arrives as it was, and a message that is cut is none.

use bytes::BytesMut;
use lockkeeper_wire::jute::{
    Acl, Acls, AddWatchMode, Auth, Check, ClientInfo, ClientInfos, ConnectRequest, ConnectResponse,
    Create, CreateOp, Delete, ErrorCode, Hidden, Id, List, Malformed, Multi, Op, OpCode, OpResult,
    Read, ReadOp, Reconfig, Reply, ReplyHeader, Request, SetAcl, SetData, SetWatches, Stat,
    Strings, Undecodable, WatcherType, decode_reply, decode_request, encode_reply, encode_request,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

proptest! {
    #[test]
    fn requests(stuff in any_stuff(), xid in any::<i32>()) {
        for request in stuff.requests() {
            let mut out = BytesMut::new();
            encode_request(xid, &request, &mut out).unwrap();
            let (header, again) = decode_request(&out[4..]).unwrap();
            prop_assert_eq!((header.xid, header.op), (xid, request.op()));
            prop_assert_eq!(again, request);
        }
    }

    #[test]
    fn replies(stuff in any_stuff(), xid in any::<i32>()) {
        let header = ReplyHeader { xid, zxid: stuff.long, err: ErrorCode::OK };
        for (op, reply) in stuff.replies() {
            let mut out = BytesMut::new();
            encode_reply(&header, &reply, &mut out).unwrap();
            let (header_again, body) = decode_reply(&out[4..]).unwrap();
            prop_assert_eq!(header_again, header);
            prop_assert_eq!(Reply::decode(op, &header, body), Ok(reply));
        }
    }

    #[test]
    fn greetings(stuff in any_stuff(), read_only in option::of(any::<bool>())) {
        let password = Hidden(stuff.data.as_deref());
        let (timeout_ms, session_id) = (stuff.int, stuff.long);
        let request = ConnectRequest {
            protocol_version: 0, last_zxid_seen: stuff.long, timeout_ms, session_id, password,
            read_only,
        };
        let mut out = BytesMut::new();
        request.encode(&mut out).unwrap();
        prop_assert_eq!(ConnectRequest::decode(&out[4..]), Ok(request));
        let response =
            ConnectResponse { protocol_version: 0, timeout_ms, session_id, password, read_only };
        let mut out = BytesMut::new();
        response.encode(&mut out).unwrap();
        prop_assert_eq!(ConnectResponse::decode(&out[4..]), Ok(response));
    }
}

/// Every field of these is needed: cut anywhere, each of them is known to be incomplete.
#[test]
fn requests_cut_anywhere() {
    for request in whole_stuff().requests() {
        let mut out = BytesMut::new();
        encode_request(7, &request, &mut out).unwrap();
        for cut in 4..out.len() {
            let short = decode_request(&out[4..cut]);
            let closes = cut < 12 || matches!(request, Request::Auth(_) | Request::Sasl(_));
            match short {
                Err(Undecodable::Close(Malformed::Short)) if closes => {}
                Err(Undecodable::Body { why: Malformed::Short, .. }) if !closes => {}
                other => panic!("{request:?} cut at {cut}: {other:?}"),
            }
        }
    }
}

#[test]
fn replies_cut_anywhere() {
    let header = ReplyHeader { xid: 7, zxid: 8, err: ErrorCode::OK };
    for (op, reply) in whole_stuff().replies() {
        let mut out = BytesMut::new();
        encode_reply(&header, &reply, &mut out).unwrap();
        for cut in 4..out.len() {
            let short = decode_reply(&out[4..cut])
                .and_then(|(header, body)| Reply::decode(op, &header, body));
            assert_eq!(short, Err(Malformed::Short), "{reply:?} cut at {cut}");
        }
    }
}

/// What all messages are made of here.
#[derive(Clone, Debug)]
struct Stuff {
    path: Option<String>,
    text: Option<String>,
    data: Option<Vec<u8>>,
    paths: Option<Vec<Option<String>>>,
    int: i32,
    long: i64,
    flag: bool,
}

impl Stuff {
    fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    fn data(&self) -> Option<&[u8]> {
        self.data.as_deref()
    }

    fn paths(&self) -> Strings<'_> {
        match &self.paths {
            None => List::NULL,
            Some(paths) => Strings::of(paths.iter().map(Option::as_deref)),
        }
    }

    fn acl(&self) -> Acls<'_> {
        let id = Id { scheme: self.text.as_deref(), id: self.path() };
        let acl = Acl { perms: self.int, id };
        self.paths.as_ref().map_or(List::NULL, |some| Acls::of(some.iter().map(|_| acl)))
    }

    fn stat(&self) -> Stat {
        Stat { czxid: self.long, version: self.int, pzxid: !self.long, ..Stat::default() }
    }

    fn create(&self, op: CreateOp) -> Create<'_> {
        Create {
            op,
            path: self.path(),
            data: self.data(),
            acl: self.acl(),
            flags: self.int.rem_euclid(7),
            ttl_ms: if op == CreateOp::Ttl { self.long } else { -1 },
        }
    }

    /// One of each.
    fn requests(&self) -> Vec<Request<'_>> {
        // A table.
        let (path, version, read) =
            (self.path(), self.int, Read { path: self.path(), watch: self.flag });
        let delete = Delete { path, version };
        let set = SetData { path, data: self.data(), version };
        let watches = || SetWatches {
            relative_zxid: self.long,
            data: self.paths(),
            exist: List::EMPTY,
            child: self.paths(),
        };
        let mut requests: Vec<Request<'_>> =
            WAYS.map(|op| Request::Create(Create { flags: self.int, ..self.create(op) })).into();
        let mut parts: Vec<Op<'_>> = WAYS.map(|op| Op::Create(self.create(op))).into();
        parts.extend([Op::Delete(delete), Op::SetData(set), Op::Check(Check { path, version })]);
        requests.extend([
            Request::Delete(delete),
            Request::Exists(read),
            Request::GetData(read),
            Request::SetData(set),
            Request::GetAcl(path),
            Request::SetAcl(SetAcl { path, acl: self.acl(), version }),
            Request::GetChildren(read),
            Request::Sync(path),
            Request::Ping,
            Request::GetChildren2(read),
            Request::Multi(Multi::of(parts)),
            Request::Multi(Multi::of([])),
            Request::Reconfig(Reconfig {
                joining: path,
                leaving: self.text.as_deref(),
                new_members: path,
                current_config: self.long,
            }),
            Request::CheckWatches(path, WatcherType::Persistent),
            Request::RemoveWatches(path, WatcherType::PersistentRecursive),
            Request::MultiRead(Multi::of([ReadOp::GetData(read), ReadOp::GetChildren(read)])),
            Request::Auth(Auth {
                kind: self.int,
                scheme: self.text.as_deref(),
                credentials: Hidden(self.data()),
            }),
            Request::SetWatches(watches()),
            Request::Sasl(Hidden(self.data())),
            Request::GetEphemerals(path),
            Request::GetAllChildrenNumber(path),
            Request::SetWatches2 {
                watches: watches(),
                persistent: self.paths(),
                persistent_recursive: self.paths(),
            },
            Request::AddWatch(path, AddWatchMode::Persistent),
            Request::WhoAmI,
            Request::CloseSession,
        ]);
        requests
    }

    /// One of each, and what it answers.
    fn replies(&self) -> Vec<(OpCode, Reply<'_>)> {
        let (path, stat, data) = (self.path(), self.stat(), self.data());
        let parts = [
            OpResult::Created { path },
            OpResult::CreatedWithStat { path, stat },
            OpResult::Deleted,
            OpResult::DataSet(stat),
            OpResult::Checked,
            OpResult::Children(self.paths()),
            OpResult::Data { data, stat },
            OpResult::Failed(ErrorCode(self.int)),
        ];
        let infos = ClientInfos::of([ClientInfo { scheme: self.text.as_deref(), user: path }]);
        vec![
            (OpCode::DELETE, Reply::Empty),
            (OpCode::CREATE, Reply::Path(path)),
            (OpCode::CREATE_TTL, Reply::PathStat(path, stat)),
            (OpCode::EXISTS, Reply::Stat(stat)),
            (OpCode::GET_DATA, Reply::DataStat(data, stat)),
            (OpCode::GET_ACL, Reply::AclStat(self.acl(), stat)),
            (OpCode::GET_EPHEMERALS, Reply::Strings(self.paths())),
            (OpCode::GET_CHILDREN2, Reply::StringsStat(self.paths(), stat)),
            (OpCode::GET_ALL_CHILDREN_NUMBER, Reply::Count(self.int)),
            (OpCode::MULTI, Reply::Multi(Multi::of(parts))),
            (OpCode::SASL, Reply::Token(Hidden(data))),
            (OpCode::ADD_WATCH, Reply::WatchAdded(ErrorCode::OK)),
            (OpCode::WHO_AM_I, Reply::ClientInfos(infos)),
        ]
    }
}

fn any_stuff() -> impl Strategy<Value = Stuff> {
    let text = || option::of("\\PC{0,12}");
    let paths = option::of(vec(text(), 0..5));
    let data = option::of(vec(any::<u8>(), 0..40));
    (text(), text(), data, paths, any::<i32>(), any::<i64>(), any::<bool>()).prop_map(
        |(path, text, data, paths, int, long, flag)| Stuff {
            path,
            text,
            data,
            paths,
            int,
            long,
            flag,
        },
    )
}

fn whole_stuff() -> Stuff {
    Stuff {
        path: Some("/a".to_owned()),
        text: Some("digest".to_owned()),
        data: Some(b"xyz".to_vec()),
        paths: Some(vec![Some("/a".to_owned()), None, Some(String::new())]),
        int: 5,
        long: 6,
        flag: true,
    }
}

const WAYS: [CreateOp; 4] =
    [CreateOp::Create, CreateOp::Create2, CreateOp::Container, CreateOp::Ttl];
