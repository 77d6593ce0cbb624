//! Who the members are, as ZooKeeper's clients see and change it.

use lockkeeper_wire::jute::{ErrorCode, Reconfig, Request};

use super::client::{Zk, create, get_data};
use super::{connect, start, start_with};
use crate::harness::{Members, Running, eventually};

const CONFIG: &str = "/zookeeper/config";

/// Nobody is there, and nobody need be.
const OBSERVER: &str = "server.100=0.0.0.0:4001:4002:observer;0.0.0.0:4003";

/// Of the user `super` with the password `test`.
const SUPER: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

fn reconfig<'a>(joining: Option<&'a str>, leaving: Option<&'a str>) -> Reconfig<'a> {
    Reconfig { joining, leaving, new_members: None, current_config: -1 }
}

fn fails(zk: &mut Zk, asked: Reconfig<'_>) -> ErrorCode {
    zk.fails(&Request::Reconfig(asked))
}

/// The lines that the change is answered with, but for the last: that is the version.
fn done(zk: &mut Zk, asked: Reconfig<'_>) -> (Vec<String>, i64) {
    let body = zk.done(&Request::Reconfig(asked));
    lines_of(&body)
}

fn lines_of(body: &[u8]) -> (Vec<String>, i64) {
    let length = usize::try_from(i32::from_be_bytes(body[..4].try_into().unwrap())).unwrap();
    lines(&body[4..4 + length])
}

fn lines(data: &[u8]) -> (Vec<String>, i64) {
    let text = String::from_utf8(data.to_vec()).unwrap();
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    let version = lines.pop().expect("it isn't empty");
    let version = version.strip_prefix("version=").expect("the version is the last line");
    (lines, i64::from_str_radix(version, 16).unwrap())
}

fn shown(zk: &mut Zk) -> (Vec<String>, i64) {
    let (data, stat) = zk.get(CONFIG);
    let (lines, version) = lines(&data.unwrap());
    assert_eq!((stat.mzxid, stat.version), (version, -1));
    (lines, version)
}

/// Three servers whose members may be changed, and who say where they serve clients.
fn three() -> Vec<Running> {
    let members = Members::three();
    let servers: Vec<Running> = (1..=3)
        .map(|id| {
            members.start(id, |config| {
                config.zookeeper_listen = Some("127.0.0.1:0".to_owned());
                config.zookeeper.reconfig = true;
                config.zookeeper.super_digest = Some(SUPER.to_owned());
            })
        })
        .collect();
    for server in &servers {
        let mut zk = connect(server);
        eventually("all are shown", || {
            let (data, _) = zk.get(CONFIG);
            let text = String::from_utf8(data.unwrap()).unwrap();
            servers.iter().all(|server| {
                text.contains(&format!(":participant;{}\n", server.zookeeper.unwrap()))
            })
        });
        zk.close();
    }
    servers
}

fn as_super(server: &Running) -> Zk {
    let mut zk = connect(server);
    assert_eq!(zk.auth("digest", "super:test"), ErrorCode::OK);
    zk
}

#[test]
fn members_change_only_where_that_is_turned_on() {
    let server = start();
    let mut zk = Zk::new(&server);
    assert_eq!(zk.get(CONFIG).0.unwrap(), b"", "a server alone lists nobody");
    assert_eq!(fails(&mut zk, reconfig(None, Some("2"))), ErrorCode::RECONFIG_DISABLED);
    let server = start_with(|config| config.zookeeper.reconfig = true);
    let mut zk = Zk::new(&server);
    let without_peers = fails(&mut zk, reconfig(None, Some("2")));
    assert_eq!(without_peers, ErrorCode::UNIMPLEMENTED, "nobody could reach it");
}

#[test]
fn members_are_changed_and_shown_everywhere() {
    let servers = three();
    let mut watching = connect(&servers[1]);
    watching.done(&get_data(CONFIG, true));
    let mut zk = as_super(&servers[0]);
    let (before, version) = shown(&mut zk);
    assert_eq!(before.len(), 3);

    let (joined, joined_version) = done(&mut zk, reconfig(Some(OBSERVER), None));
    assert!(joined_version > version);
    assert_eq!(joined[..3], before);
    assert_eq!(joined[3], OBSERVER);
    assert_eq!(shown(&mut zk), (joined.clone(), joined_version));
    eventually("the watch is told", || {
        watching.sync();
        watching.events() == ["NodeDataChanged /zookeeper/config"]
    });
    assert_eq!(shown(&mut watching), (joined, joined_version));

    // What was based on what is gone is refused, and so is what makes no sense; each in turn.
    let late = Reconfig { current_config: version, ..reconfig(None, Some("100")) };
    assert_eq!(fails(&mut zk, late), ErrorCode::BAD_VERSION);
    assert_eq!(fails(&mut zk, reconfig(Some("some thing"), None)), ErrorCode::BAD_ARGUMENTS);
    assert_eq!(fails(&mut zk, reconfig(None, Some("1,2"))), ErrorCode::BAD_ARGUMENTS);
    let absent = "server.4=127.0.0.1:1:2;3,server.5=127.0.0.1:4:5;6,server.6=127.0.0.1:7:8;9,\
                  server.7=127.0.0.1:10:11;12";
    assert_eq!(fails(&mut zk, reconfig(Some(absent), None)), ErrorCode::NEW_CONFIG_NO_QUORUM);
    assert_eq!(fails(&mut watching, reconfig(None, Some("100"))), ErrorCode::NO_AUTH);
    assert_eq!(shown(&mut zk).1, joined_version, "nothing has changed");

    // Requests behind it in line see what it did.
    let based = Reconfig { current_config: joined_version, ..reconfig(None, Some("100")) };
    let asked = zk.send(&Request::Reconfig(based));
    let read = zk.send(&get_data(CONFIG, false));
    let (error, body) = zk.reply(asked);
    assert_eq!(error, ErrorCode::OK);
    let (error, same) = zk.reply(read);
    assert_eq!((error, body), (ErrorCode::OK, same));
    assert_eq!(shown(&mut zk).0, before);

    // A voter goes, whoever leads.
    let (left, _) = done(&mut zk, reconfig(None, Some("3")));
    assert_eq!(left, before[..2]);
    zk.create("/with-two", 0);
}

/// In their order, though nobody waited for an answer.
#[test]
fn writes_behind_a_change_of_the_members_are_done_behind_it() {
    let servers = three();
    let mut zk = as_super(&servers[0]);
    let joins = zk.send(&Request::Reconfig(reconfig(Some(OBSERVER), None)));
    let makes = ["/behind", "/behind/1", "/behind/2"].map(|path| zk.send(&create(path, 0)));
    let leaves = zk.send(&Request::Reconfig(reconfig(None, Some("100"))));
    let last = zk.send(&create("/last", 0));
    let (error, body) = zk.reply(joins);
    assert_eq!(error, ErrorCode::OK);
    let joined_version = lines_of(&body).1;
    for made in makes {
        assert_eq!(zk.reply(made).0, ErrorCode::OK);
    }
    let (error, body) = zk.reply(leaves);
    assert_eq!(error, ErrorCode::OK);
    let left_version = lines_of(&body).1;
    assert_eq!(zk.reply(last).0, ErrorCode::OK);
    let mut made = |path| zk.stat(path).unwrap().czxid;
    let order = [
        joined_version,
        made("/behind"),
        made("/behind/1"),
        made("/behind/2"),
        left_version,
        made("/last"),
    ];
    assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");

    // So is the end of the session.
    let mut brief = as_super(&servers[0]);
    let joins = brief.send(&Request::Reconfig(reconfig(Some(OBSERVER), None)));
    let ends = brief.send(&Request::CloseSession);
    assert_eq!(brief.reply(joins).0, ErrorCode::OK);
    assert_eq!(brief.reply(ends).0, ErrorCode::OK);
    brief.assert_closed();
}
