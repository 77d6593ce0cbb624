//! Who may do what.

use lockkeeper_wire::jute::{
    Acl, Acls, ClientInfos, CreateOp, ErrorCode, Id, Input, Request, SetAcl, perms,
};

use super::client::{OPEN, Zk, children, create, delete, exists, get_data, new_node, set_data};
use super::{start, start_with};

const JO: &str = "user:smGaoVKd/cQkjm7b88GyorAUz20=";

fn entry<'a>(perms: i32, scheme: &'a str, id: &'a str) -> Acl<'a> {
    Acl { perms, id: Id { scheme: Some(scheme), id: Some(id) } }
}

fn make(zk: &mut Zk, path: &str, acl: &[Acl<'_>]) -> ErrorCode {
    let mut new = new_node(CreateOp::Create, path, 0);
    new.acl = Acls::of(acl.iter().copied());
    zk.call(&Request::Create(new)).0
}

fn acl_of(zk: &mut Zk, path: &str) -> Vec<String> {
    let body = zk.done(&Request::GetAcl(Some(path)));
    let list: Acls<'_> = Input::new(&body).read().unwrap();
    let text =
        |acl: Acl<'_>| format!("{} {}:{}", acl.perms, acl.id.scheme.unwrap(), acl.id.id.unwrap());
    list.iter().map(text).collect()
}

#[test]
fn a_list_is_made_ready() {
    let server = start();
    let mut zk = Zk::new(&server);
    let auth = [entry(31, "auth", "ignored")];
    assert_eq!(make(&mut zk, "/none", &auth), ErrorCode::INVALID_ACL, "nobody is known yet");
    assert_eq!(zk.auth("digest", "user:pass"), ErrorCode::OK);
    assert_eq!(make(&mut zk, "/one", &auth), ErrorCode::OK);
    assert_eq!(acl_of(&mut zk, "/one"), [format!("31 digest:{JO}")]);
    assert_eq!(zk.auth("digest", "second"), ErrorCode::OK);
    // As kazoo has it: the id is null.
    let nobody = Acl { perms: 1, id: Id { scheme: Some("auth"), id: None } };
    assert_eq!(make(&mut zk, "/two", &[OPEN, nobody, OPEN, nobody]), ErrorCode::OK);
    let two = acl_of(&mut zk, "/two");
    assert_eq!(two[..2], ["31 world:anyone".to_owned(), format!("1 digest:{JO}")]);
    assert!(two[2].starts_with("1 digest:second:"));
    assert_eq!(two.len(), 3);
    for bad in [
        entry(31, "world", "somebody"),
        entry(31, "nothing", "x"),
        entry(31, "digest", "x"),
        entry(31, "digest", "x:"),
        entry(31, "digest", "x:y:z"),
        entry(31, "ip", "10.0.0.0/33"),
        entry(31, "super", ""),
        Acl { perms: 31, id: Id { scheme: None, id: Some("x") } },
        Acl { perms: 31, id: Id { scheme: Some("digest"), id: None } },
    ] {
        assert_eq!(make(&mut zk, "/bad", &[OPEN, bad]), ErrorCode::INVALID_ACL, "{bad:?}");
    }
    assert_eq!(make(&mut zk, "/bad", &[]), ErrorCode::INVALID_ACL);
}

#[test]
fn each_permission_allows_its_own() {
    let server = start();
    let mut jo = Zk::new(&server);
    assert_eq!(jo.auth("digest", "user:pass"), ErrorCode::OK);
    for bit in [perms::READ, perms::WRITE, perms::CREATE, perms::DELETE, perms::ADMIN] {
        let path = format!("/n{bit}");
        assert_eq!(
            make(&mut jo, &path, &[entry(31, "digest", JO), entry(bit, "world", "anyone")]),
            ErrorCode::OK
        );
        let child = format!("{path}/child");
        jo.create(&child, 0);
        let new = format!("{path}/new");
        let mut zk = Zk::new(&server);
        let mut allows = |request: &Request<'_>| zk.call(request).0 != ErrorCode::NO_AUTH;
        assert_eq!(allows(&get_data(&path, false)), bit == perms::READ);
        assert_eq!(allows(&children(&path, false)), bit == perms::READ);
        assert_eq!(allows(&exists(&path, false)), bit == perms::READ);
        assert_eq!(allows(&Request::GetAllChildrenNumber(Some(&path))), bit == perms::READ);
        assert_eq!(allows(&set_data(&path, None, -1)), bit == perms::WRITE);
        assert_eq!(allows(&create(&new, 0)), bit == perms::CREATE);
        assert_eq!(allows(&delete(&child)), bit == perms::DELETE);
        let set_acl = SetAcl { path: Some(&path), acl: Acls::of([OPEN]), version: 99 };
        assert_eq!(allows(&Request::SetAcl(set_acl)), bit == perms::ADMIN);
        let sees = matches!(bit, perms::READ | perms::ADMIN);
        assert_eq!(allows(&Request::GetAcl(Some(&path))), sees);
        if sees {
            let shown = acl_of(&mut zk, &path);
            let digest = if bit == perms::ADMIN { JO } else { "user:x" };
            assert_eq!(shown[0], format!("31 digest:{digest}"));
        }
    }
}

#[test]
fn ids_belong_to_the_connection() {
    let server = start();
    let mut zk = Zk::new(&server);
    assert_eq!(zk.auth("digest", "user:pass"), ErrorCode::OK);
    let who = |zk: &mut Zk| {
        let body = zk.done(&Request::WhoAmI);
        let list: ClientInfos<'_> = Input::new(&body).read().unwrap();
        let text = |info: lockkeeper_wire::jute::ClientInfo<'_>| {
            format!("{} {}", info.scheme.unwrap(), info.user.unwrap())
        };
        list.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(who(&mut zk), ["ip 127.0.0.1", "digest user"]);
    let mut again = zk.resumed(server.zookeeper.unwrap()).unwrap();
    assert_eq!(who(&mut again), ["ip 127.0.0.1"]);
    assert_eq!(make(&mut again, "/here", &[entry(31, "ip", "127.0.0.0/8")]), ErrorCode::OK);
    again.set("/here", "x");
    assert_eq!(make(&mut again, "/there", &[entry(31, "ip", "10.0.0.0/8")]), ErrorCode::OK);
    assert_eq!(again.fails(&set_data("/there", None, -1)), ErrorCode::NO_AUTH);
}

#[test]
fn an_unknown_scheme_is_told_and_ends_the_connection() {
    let server = start();
    for scheme in ["nothing", "world", "super", "x509", ""] {
        let mut zk = Zk::new(&server);
        assert_eq!(zk.auth(scheme, "user:pass"), ErrorCode::AUTH_FAILED);
        zk.assert_closed();
    }
}

#[test]
fn whoever_is_super_may_everything() {
    let server = start_with(|config| config.zookeeper.super_digest = Some(JO.to_owned()));
    let mut other = Zk::new(&server);
    assert_eq!(other.auth("digest", "other:pass"), ErrorCode::OK);
    let own = [Acl { perms: 31, id: Id { scheme: Some("auth"), id: Some("") } }];
    assert_eq!(make(&mut other, "/own", &own), ErrorCode::OK);
    let mut zk = Zk::new(&server);
    assert_eq!(zk.fails(&get_data("/own", false)), ErrorCode::NO_AUTH);
    assert_eq!(zk.auth("digest", "user:pass"), ErrorCode::OK);
    zk.get("/own");
    zk.set("/own", "x");
    zk.create("/own/child", 0);
    zk.delete("/own/child");
}

#[test]
fn lists_can_be_stored_and_not_looked_at() {
    let server = start_with(|config| config.zookeeper.skip_acl = true);
    let mut zk = Zk::new(&server);
    assert_eq!(make(&mut zk, "/own", &[entry(0, "world", "anyone")]), ErrorCode::OK);
    zk.set("/own", "x");
    zk.get("/own");
    assert_eq!(acl_of(&mut zk, "/own"), ["0 world:anyone"]);
}

#[test]
fn a_list_that_grows_beyond_measure_is_refused() {
    let server = start();
    let mut zk = Zk::new(&server);
    let name = "n".repeat(2_000);
    for at in 0..63 {
        assert_eq!(zk.auth("digest", &format!("{name}{at}:pass")), ErrorCode::OK);
    }
    let auth = |perms| entry(perms, "auth", "");
    assert_eq!(make(&mut zk, "/some", &[auth(1)]), ErrorCode::OK);
    let many: Vec<_> = (0..20_000).map(auth).collect();
    assert_eq!(make(&mut zk, "/many", &many), ErrorCode::INVALID_ACL);
    // The longest request that there can be, by the best known client.
    let mut new = new_node(CreateOp::Create, "/long", 0);
    let data = vec![0; 0xf_ffff - 100];
    new.data = Some(&data);
    zk.done(&Request::Create(new));
    assert_eq!(zk.auth("digest", &format!("{name}{name}:pass")), ErrorCode::AUTH_FAILED);
    zk.assert_closed();
}
