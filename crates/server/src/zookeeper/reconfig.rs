//! `reconfig`: what a client would have the members be, and how it comes to be so.
//!
//! Which members there are, Raft decides; here a client's words are read as ZooKeeper reads them,
//! against the members that it has seen, and become one change of all. What is wrong is told in
//! ZooKeeper's order, but that whoever may not do it hears so before anybody is looked for.

use std::collections::BTreeMap;

use lockkeeper_core::{ENSEMBLE_PATH, IdRef, Listing, perms};
use lockkeeper_node::{Ensemble, EnsembleMember, NodeId, ReconfigureError};
use lockkeeper_wire::jute::{ErrorCode, Reconfig};

use super::Front;
use super::ids::Id;
use super::outbox::{Outbox, Session};

/// How often a change is made out anew because the members have moved meanwhile.
const TRIES_MAX: usize = 5;

/// ZooKeeper, as it comes, wants so many of those who vote; but one alone may be followed.
const VOTERS_MIN: usize = 2;

/// What a client asks for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    joining: Option<String>,
    leaving: Option<String>,
    new_members: Option<String>,
    /// The version that the members must have; -1: any.
    base: i64,
}

impl From<&Reconfig<'_>> for Wish {
    fn from(asked: &Reconfig<'_>) -> Self {
        Self {
            joining: asked.joining.map(ToOwned::to_owned),
            leaving: asked.leaving.map(ToOwned::to_owned),
            new_members: asked.new_members.map(ToOwned::to_owned),
            base: asked.current_config,
        }
    }
}

/// Why there is no such change.
pub(super) enum No {
    /// What the client is answered.
    Answer(ErrorCode),
    /// Nobody knows what became of it, or the session isn't this connection's any more: the
    /// connection is to be closed.
    Close,
}

/// Makes the change that stands in line as `id`, once it has come to the front: earlier requests of
/// its connection are done then.
pub(super) async fn run(
    front: &Front,
    outbox: &Outbox,
    session: Session,
    ids: &[Id],
    (id, wish): (u64, Wish),
) {
    outbox.is_first(id).await;
    match change(front, session, ids, &wish).await {
        Ok(()) => outbox.synced(&[id]),
        Err(No::Answer(error)) => outbox.fail_waiting(id, error),
        Err(No::Close) => return outbox.finish(),
    }
    front.node.query(|state, _| outbox.go_on(state));
}

async fn change(front: &Front, session: Session, ids: &[Id], wish: &Wish) -> Result<(), No> {
    for _ in 0..TRIES_MAX {
        // What was done anywhere before is seen here.
        front.node.read_index().await.map_err(|_| No::Close)?;
        let now = front.node.ensemble();
        let members = wished(&now, wish).map_err(No::Answer)?;
        may(front, session, ids)?;
        match front.node.reconfigure(now.version, members).await {
            Ok(()) => return front.node.read_index().await.map_err(|_| No::Close),
            Err(ReconfigureError::Moved) => {}
            Err(ReconfigureError::InProgress) => {
                return Err(No::Answer(ErrorCode::RECONFIG_IN_PROGRESS));
            }
            Err(ReconfigureError::NoQuorum) => {
                return Err(No::Answer(ErrorCode::NEW_CONFIG_NO_QUORUM));
            }
            Err(ReconfigureError::Refused(why)) => {
                tracing::warn!(%why, "a change of the members that a ZooKeeper client wanted");
                return Err(No::Answer(ErrorCode::BAD_ARGUMENTS));
            }
            Err(ReconfigureError::Unknown) => return Err(No::Close),
        }
    }
    Err(No::Answer(ErrorCode::RECONFIG_IN_PROGRESS))
}

fn may(front: &Front, session: Session, ids: &[Id]) -> Result<(), No> {
    front.node.query(|state, _| {
        // It may have moved to another connection, or be over.
        if state.connection(session.id) != Some(session.connection) {
            return Err(No::Close);
        }
        let node = state.tree().node(ENSEMBLE_PATH);
        let node = node.ok_or(No::Answer(ErrorCode::NO_NODE))?;
        let ids: Vec<IdRef<'_>> = ids.iter().map(Id::as_ref).collect();
        if front.settings.skip_acl || node.acl.allows(&ids, perms::WRITE) {
            Ok(())
        } else {
            Err(No::Answer(ErrorCode::NO_AUTH))
        }
    })
}

/// The members that there would be.
fn wished(now: &Ensemble, wish: &Wish) -> Result<Vec<EnsembleMember>, ErrorCode> {
    let shown = now.members.iter().filter(|member| member.is_voter || member.listing.is_some());
    let shown: BTreeMap<NodeId, EnsembleMember> =
        shown.map(|member| (member.id, member.clone())).collect();
    // A server whose peers couldn't reach it has none: what ZooKeeper calls standalone.
    if shown.values().all(|member| member.peer_address.is_empty()) {
        return Err(ErrorCode::UNIMPLEMENTED);
    }
    if wish.base != -1 && wish.base != now.version.cast_signed() {
        return Err(ErrorCode::BAD_VERSION);
    }
    let voters = |members: &Members| members.values().filter(|member| member.is_voter).count();
    let voters_min = VOTERS_MIN.min(voters(&shown));
    let members = match &wish.new_members {
        Some(text) => all(text)?,
        None => {
            let joining = wish.joining.as_deref().unwrap_or_default();
            some(shown, joining, wish.leaving.as_deref().unwrap_or_default())?
        }
    };
    if voters(&members) < voters_min {
        return Err(ErrorCode::BAD_ARGUMENTS);
    }
    Ok(members.into_values().collect())
}

type Members = BTreeMap<NodeId, EnsembleMember>;

/// Those there are, without some and with others.
fn some(mut members: Members, joining: &str, leaving: &str) -> Result<Members, ErrorCode> {
    for id in items(leaving, &[',']) {
        members.remove(&number(id)?);
    }
    for item in items(joining, &[',']) {
        let mut sides = item.split('=');
        let (Some(name), Some(spec), None) = (sides.next(), sides.next(), sides.next()) else {
            return Err(ErrorCode::BAD_ARGUMENTS);
        };
        let id = number(name.rsplit('.').next().unwrap_or_default())?;
        let member = member(id, spec).ok_or(ErrorCode::BAD_ARGUMENTS)?;
        let serves = member.listing.as_ref().is_some_and(|listing| !listing.client.is_empty());
        let others = members.values().filter(|other| other.id != id);
        if !serves || others.into_iter().any(|other| collide(other, &member)) {
            return Err(ErrorCode::BAD_ARGUMENTS);
        }
        members.insert(id, member);
    }
    Ok(members)
}

/// These, and nobody else.
fn all(text: &str) -> Result<Members, ErrorCode> {
    let mut members = Members::new();
    for line in items(text, &[',', '\n', '\r']) {
        let (key, value) = line.split_once('=').ok_or(ErrorCode::BAD_ARGUMENTS)?;
        match key.trim().strip_prefix("server.") {
            Some(id) => {
                let id = number(id)?;
                let member = member(id, value.trim()).ok_or(ErrorCode::BAD_ARGUMENTS)?;
                members.insert(id, member);
            }
            None if key.trim() == "version" => {}
            // Quorums other than majorities: ZooKeeper stumbles over half of one, too.
            None if key.starts_with("group") || key.starts_with("weight") => {
                return Err(ErrorCode::MARSHALLING_ERROR);
            }
            None => return Err(ErrorCode::BAD_ARGUMENTS),
        }
    }
    Ok(members)
}

fn items<'a>(text: &'a str, ends: &'a [char]) -> impl Iterator<Item = &'a str> {
    text.split(ends).map(str::trim).filter(|item| !item.is_empty())
}

/// ZooKeeper stumbles over what is no number, and says what it says of any request it can't read.
fn number(text: &str) -> Result<NodeId, ErrorCode> {
    let id: i64 = text.parse().map_err(|_| ErrorCode::MARSHALLING_ERROR)?;
    NodeId::try_from(id).map_err(|_| ErrorCode::BAD_ARGUMENTS)
}

/// `host:port:port[:role][;[host:]port]`; `None` if it isn't that.
fn member(id: NodeId, spec: &str) -> Option<EnsembleMember> {
    let (server, client) = match spec.split_once(';') {
        Some((server, client)) => (server, Some(client)),
        None => (spec, None),
    };
    let (host, rest) = host(server)?;
    let mut rest = rest.split(':');
    let peer_port: u16 = rest.next()?.parse().ok()?;
    let election_port: u16 = rest.next()?.parse().ok()?;
    let role = rest.next().unwrap_or("participant").to_ascii_lowercase();
    let is_voter = match role.as_str() {
        "participant" => true,
        "observer" => false,
        _ => return None,
    };
    let client = match client {
        None | Some("") => String::new(),
        Some(port) if port.parse::<u16>().is_ok() => format!("0.0.0.0:{port}"),
        Some(client) => {
            let (host, port) = self::host(client)?;
            port.parse::<u16>().ok()?;
            format!("{host}:{port}")
        }
    };
    (id > 0 && rest.next().is_none() && peer_port != election_port).then(|| EnsembleMember {
        id,
        peer_address: format!("{host}:{peer_port}"),
        listing: Some(Listing { election_port, client }),
        is_voter,
    })
}

/// A host, which may be an address of IPv6 in brackets, and what stands behind its colon. Several
/// hosts of one server aren't for everybody's reading, nor are they ZooKeeper's unless it is told.
fn host(text: &str) -> Option<(&str, &str)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inner) => {
            let end = inner.find(']')?;
            (text.get(..end + 2)?, inner.get(end + 1..)?.strip_prefix(':')?)
        }
        None => text.split_once(':')?,
    };
    let is_sound = !host.is_empty()
        && host.chars().all(|c| c.is_ascii_alphanumeric() || "._-:[]%".contains(c));
    is_sound.then_some((host, rest))
}

/// Whether two members would share an address.
fn collide(one: &EnsembleMember, other: &EnsembleMember) -> bool {
    let of = |member: &EnsembleMember| -> Vec<String> {
        let listing = member.listing.as_ref();
        let host = member.peer_address.rsplit_once(':').map_or("", |(host, _)| host);
        let election = listing.map(|listing| format!("{host}:{}", listing.election_port));
        let client = listing.map(|listing| listing.client.clone());
        let addresses = [Some(member.peer_address.clone()), election, client];
        // What means any address of a machine, or the machine itself, may be said of many machines:
        // ZooKeeper doesn't compare it either.
        let many = ["0.0.0.0:", "[::]:", "127.", "[::1]:", "localhost:"];
        let is_one = |address: &String| {
            !address.is_empty() && !many.iter().any(|many| address.starts_with(many))
        };
        addresses.into_iter().flatten().filter(is_one).collect()
    };
    let others = of(other);
    of(one).iter().any(|address| others.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Ensemble {
        let member = |id| {
            let spec = format!("h{id}:2888:3888:participant;h{id}:2181");
            member(id, &spec).expect("it is one")
        };
        Ensemble { version: 0x10, members: (1..=3).map(member).collect() }
    }

    fn wish(joining: &str, leaving: &str, base: i64) -> Wish {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Wish { joining: given(joining), leaving: given(leaving), new_members: None, base }
    }

    fn ids(members: &[EnsembleMember]) -> Vec<(NodeId, bool)> {
        members.iter().map(|member| (member.id, member.is_voter)).collect()
    }

    #[test]
    fn members_are_read_as_zookeeper_reads_them() {
        let read = |spec| {
            member(7, spec).map(|member| {
                let listing = member.listing.expect("it has one");
                (member.peer_address, listing.election_port, member.is_voter, listing.client)
            })
        };
        let is = |peer: &str, election, votes, client: &str| {
            Some((peer.to_owned(), election, votes, client.to_owned()))
        };
        assert_eq!(read("a:1:2"), is("a:1", 2, true, ""));
        assert_eq!(read("a:1:2:observer;3456"), is("a:1", 2, false, "0.0.0.0:3456"));
        assert_eq!(read("a:1:2:PARTICIPANT;b:3"), is("a:1", 2, true, "b:3"));
        assert_eq!(read("[::1]:1:2;[::1]:3"), is("[::1]:1", 2, true, "[::1]:3"));
        for spec in [
            "",
            "a",
            "a:1",
            "a:1:1;3",
            "a:1:2:king;3",
            "a:1:2:observer:x;3",
            "a:x:2;3",
            "a:1:2;x",
            "a:1:2|b:1:2;3",
            "a:1:99999;3",
            ":1:2;3",
            "a:1:2;b:c",
            "a b:1:2;3",
        ] {
            assert_eq!(read(spec), None, "{spec}");
        }
    }

    #[test]
    fn some_come_and_some_go() {
        let now = three();
        let wished = |joining: &str, leaving: &str| wished(&now, &wish(joining, leaving, -1));
        let joined = wished("server.4=h4:2888:3888:observer;2181", "").unwrap();
        assert_eq!(ids(&joined), [(1, true), (2, true), (3, true), (4, false)]);
        let changed = wished("server.3=h3:2888:3888:observer;h3:2181", "2, 9").unwrap_err();
        assert_eq!(changed, ErrorCode::BAD_ARGUMENTS, "one alone would vote");
        let left = wished("", "3").unwrap();
        assert_eq!(ids(&left), [(1, true), (2, true)]);
        for (joining, leaving, error) in [
            ("some thing", "", ErrorCode::BAD_ARGUMENTS),
            ("some=thing", "", ErrorCode::MARSHALLING_ERROR),
            ("", "x", ErrorCode::MARSHALLING_ERROR),
            ("server.4=h4:2888:3888", "", ErrorCode::BAD_ARGUMENTS),
            ("server.4=h1:2888:3888;h4:2181", "", ErrorCode::BAD_ARGUMENTS),
            ("server.4=h4:2888:3888;h1:2181", "", ErrorCode::BAD_ARGUMENTS),
            ("", "1,2", ErrorCode::BAD_ARGUMENTS),
        ] {
            assert_eq!(wished(joining, leaving), Err(error), "{joining} {leaving}");
        }
    }

    #[test]
    fn the_version_is_looked_at_first() {
        let now = three();
        assert_eq!(wished(&now, &wish("some thing", "", 0x11)), Err(ErrorCode::BAD_VERSION));
        assert!(wished(&now, &wish("", "3", 0x10)).is_ok());
    }

    #[test]
    fn all_members_are_named_anew() {
        let now = three();
        let wished = |text: &str| {
            let new_members = Some(text.to_owned());
            wished(&now, &Wish { new_members, ..wish("", "", -1) })
        };
        let text = "server.1=h1:1:2;3,server.5=h5:1:2:participant;3\nserver.6=h6:1:2:observer;3\n\
                    version=10";
        assert_eq!(ids(&wished(text).unwrap()), [(1, true), (5, true), (6, false)]);
        assert_eq!(wished("group.1=1:2"), Err(ErrorCode::MARSHALLING_ERROR));
        for text in ["server.1=h1:1:2;3", "nonsense", ""] {
            assert_eq!(wished(text), Err(ErrorCode::BAD_ARGUMENTS), "{text}");
        }
    }

    #[test]
    fn a_server_without_peers_has_no_members_to_change() {
        let mut now = three();
        now.members.truncate(1);
        now.members[0].peer_address.clear();
        assert_eq!(wished(&now, &wish("", "", -1)), Err(ErrorCode::UNIMPLEMENTED));
    }
}
