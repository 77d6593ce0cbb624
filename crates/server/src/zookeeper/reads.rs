//! Requests that read: answered from the state that is locked while they are, with the watches
//! that they set.

use bytes::{BufMut, BytesMut};
use lockkeeper_core::{
    self as core, ENSEMBLE_PATH, IdRef, NodeAcl, NodeView, SessionId, StateMachine, Tree, perms,
};
use lockkeeper_wire::jute::{
    self, Acl, Acls, AddWatchMode, ClientInfo, ClientInfos, ErrorCode, EventType, Multi, OpResult,
    Read, ReadOp, Record, Reply, ReplyHeader, Request, SetWatches, Strings, decode_request,
    encode_reply,
};

use super::Front;
use super::hub::{Table, WatcherId, mode, notification};
use super::ids::{Id, masked};
use crate::limits::{REPLY_BYTES_MAX, WATCHED_PATHS_MAX};

/// What a notification says of its zxid when it tells what happened while nobody watched.
const NO_ZXID: i64 = -1;

/// What ZooKeeper answers where there is no path at all.
pub(super) const NULL_PATH: ErrorCode = ErrorCode::MARSHALLING_ERROR;

/// One read of one connection.
pub(super) struct Reader<'a> {
    pub(super) front: &'a Front,
    pub(super) watcher: WatcherId,
    pub(super) session: Option<SessionId>,
    pub(super) ids: &'a [Id],
    pub(super) machine: &'a StateMachine,
}

/// What is wrong with a request.
pub(super) type Failed = ErrorCode;

impl Reader<'_> {
    /// Appends the reply to the request in `frame`, and before it whatever the request lets its
    /// client know otherwise. False if there is no reply: the connection is to be closed.
    pub(super) fn answer(&self, frame: &[u8], out: &mut BytesMut) -> bool {
        let Ok((header, request)) = decode_request(frame) else { return false };
        if self.is_full(&request, frame.len()) {
            tracing::warn!(WATCHED_PATHS_MAX, "a client watches too many paths: it is cut off");
            return false;
        }
        let zxid = self.machine.revision().0.cast_signed();
        let ok = ReplyHeader { xid: header.xid, zxid, err: ErrorCode::OK };
        let answered = match &request {
            Request::GetChildren(read) => self.get_children(*read, &ok, false, out),
            Request::GetChildren2(read) => self.get_children(*read, &ok, true, out),
            Request::MultiRead(parts) => {
                let Some((err, results)) = self.multi_read(parts) else { return false };
                send(&ReplyHeader { err, ..ok }, &Reply::Multi(Multi::of(results)), out)
            }
            Request::SetWatches(watches) => self.set_watches(watches, &ok, None, out),
            Request::SetWatches2 { watches, persistent, persistent_recursive } => {
                let lasting = Some((persistent, persistent_recursive));
                self.set_watches(watches, &ok, lasting, out)
            }
            Request::GetAcl(path) => self.get_acl(*path, &ok, out),
            Request::GetEphemerals(prefix) => self.get_ephemerals(*prefix, &ok, out),
            Request::WhoAmI => self.who_am_i(&ok, out),
            other => self.short(other).and_then(|reply| send(&ok, &reply, out)),
        };
        match answered {
            Ok(()) => true,
            Err(err) => send(&ReplyHeader { err, ..ok }, &Reply::Empty, out).is_ok(),
        }
    }

    /// Those whose answer borrows from the state, or is a number.
    fn short<'b>(&'b self, request: &Request<'b>) -> Result<Reply<'b>, Failed> {
        match request {
            Request::Sync(path) => Ok(Reply::Path(*path)),
            // It has been done: these are the members now.
            Request::Reconfig(_) => {
                let node = self.node(ENSEMBLE_PATH)?;
                Ok(Reply::DataStat(node.data, stat(&node.stat)))
            }
            Request::Exists(read) => self.exists(*read).map(Reply::Stat),
            Request::GetData(read) => self.get_data(*read),
            // A watch may be anywhere, and so nowhere: nothing ever happens at an empty path.
            Request::AddWatch(path, kind) => {
                self.add_watch(path.unwrap_or_default(), *kind);
                Ok(Reply::WatchAdded(ErrorCode::OK))
            }
            Request::CheckWatches(path, kind) => {
                let hub = &self.front.hub;
                if !hub.is_watched(self.watcher, path.unwrap_or_default(), *kind) {
                    return Err(ErrorCode::NO_WATCHER);
                }
                Ok(Reply::Empty)
            }
            Request::RemoveWatches(path, kind) => {
                if !self.front.hub.unwatch(self.watcher, path.unwrap_or_default(), *kind) {
                    return Err(ErrorCode::NO_WATCHER);
                }
                Ok(Reply::Empty)
            }
            _ => Err(ErrorCode::MARSHALLING_ERROR),
        }
    }

    // ------------------------------------------------------------ nodes

    fn node(&self, path: &str) -> Result<NodeView<'_>, Failed> {
        self.machine.tree().node(or_root(path)).ok_or(ErrorCode::NO_NODE)
    }

    fn readable(&self, path: &str) -> Result<NodeView<'_>, Failed> {
        let node = self.node(path)?;
        self.check(node.acl, perms::READ)?;
        Ok(node)
    }

    fn check(&self, acl: &NodeAcl, perms: i32) -> Result<(), Failed> {
        if self.may(acl, perms) { Ok(()) } else { Err(ErrorCode::NO_AUTH) }
    }

    fn may(&self, acl: &NodeAcl, perms: i32) -> bool {
        self.front.settings.skip_acl || acl.is_open() || {
            let ids: Vec<IdRef<'_>> = self.ids.iter().map(Id::as_ref).collect();
            acl.allows(&ids, perms)
        }
    }

    fn exists(&self, read: Read<'_>) -> Result<jute::Stat, Failed> {
        let path = read.path.ok_or(NULL_PATH)?;
        if path.contains('\0') {
            return Err(ErrorCode::BAD_ARGUMENTS);
        }
        let node = self.node(path);
        if let Ok(node) = &node {
            self.check(node.acl, perms::READ)?;
        }
        if read.watch {
            self.watch(path, Table::Data, mode::STANDARD);
        }
        Ok(stat(&node?.stat))
    }

    fn get_data(&self, read: Read<'_>) -> Result<Reply<'_>, Failed> {
        let path = read.path.ok_or(NULL_PATH)?;
        let node = self.readable(path)?;
        if read.watch {
            self.watch(path, Table::Data, mode::STANDARD);
        }
        Ok(Reply::DataStat(node.data, stat(&node.stat)))
    }

    fn get_children(
        &self,
        read: Read<'_>,
        header: &ReplyHeader,
        with_stat: bool,
        out: &mut BytesMut,
    ) -> Result<(), Failed> {
        let path = read.path.ok_or(NULL_PATH)?;
        let node = self.readable(path)?;
        if read.watch {
            self.watch(path, Table::Child, mode::STANDARD);
        }
        let stat = stat(&node.stat);
        let start = out.len();
        out.put_i32(0);
        header.write(out);
        self.front.hub.listings.write(or_root(path), stat.pzxid, self.machine, out);
        if with_stat {
            stat.write(out);
        }
        let length = out.len() - start - size_of::<i32>();
        let Ok(length) = i32::try_from(length) else {
            out.truncate(start);
            return Err(ErrorCode::MARSHALLING_ERROR);
        };
        out[start..start + size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// The tree as it is now, for whoever counts what is below `path` in it.
    pub(super) fn to_be_counted(&self, path: &str) -> Result<Tree, Failed> {
        self.readable(path)?;
        Ok(self.machine.tree().clone())
    }

    fn get_acl(
        &self,
        path: Option<&str>,
        header: &ReplyHeader,
        out: &mut BytesMut,
    ) -> Result<(), Failed> {
        let node = self.node(path.ok_or(NULL_PATH)?)?;
        self.check(node.acl, perms::READ | perms::ADMIN)?;
        let is_masked = !self.may(node.acl, perms::ADMIN);
        let masks: Vec<Option<String>> =
            node.acl.iter().map(|entry| masked(entry.id).filter(|_| is_masked)).collect();
        let entries = node.acl.iter().zip(&masks).map(|(entry, mask)| Acl {
            perms: entry.perms,
            id: jute::Id {
                scheme: Some(entry.id.scheme),
                id: Some(mask.as_deref().unwrap_or(entry.id.id)),
            },
        });
        send(header, &Reply::AclStat(Acls::of(entries), stat(&node.stat)), out)
    }

    fn get_ephemerals(
        &self,
        prefix: Option<&str>,
        header: &ReplyHeader,
        out: &mut BytesMut,
    ) -> Result<(), Failed> {
        let prefix = prefix.filter(|prefix| !prefix.trim().is_empty()).unwrap_or("/");
        let tree = self.machine.tree();
        let own = self.session.into_iter().flat_map(|session| tree.ephemerals(session));
        let own = own.filter(|path| path.starts_with(prefix));
        send(header, &Reply::Strings(Strings::of(own.map(|path| Some(&**path)))), out)
    }

    fn who_am_i(&self, header: &ReplyHeader, out: &mut BytesMut) -> Result<(), Failed> {
        let own = self.ids.iter();
        let own = own.map(|id| ClientInfo { scheme: Some(&id.scheme), user: Some(id.user()) });
        send(header, &Reply::ClientInfos(ClientInfos::of(own)), out)
    }

    /// Each part by itself, all of one state; one without a path ends it. `None` if the reply would
    /// be too long.
    fn multi_read<'b>(
        &'b self,
        parts: &'b Multi<'b, ReadOp<'b>>,
    ) -> Option<(ErrorCode, Vec<OpResult<'b>>)> {
        let mut bytes = 0;
        let mut results = Vec::new();
        for part in parts.iter() {
            let (ReadOp::GetData(read) | ReadOp::GetChildren(read)) = &part;
            if read.path.is_none() {
                return Some((NULL_PATH, results));
            }
            let result = match part {
                ReadOp::GetData(read) => self.read_data(read.path),
                ReadOp::GetChildren(read) => self.read_children(read.path),
            };
            let result = result.unwrap_or_else(OpResult::Failed);
            bytes += match &result {
                OpResult::Data { data, .. } => data.map_or(0, <[u8]>::len),
                OpResult::Children(names) => names.iter().flatten().map(|n| n.len() + 4).sum(),
                _ => 0,
            } + jute::STAT_BYTES;
            if bytes > REPLY_BYTES_MAX {
                tracing::warn!(REPLY_BYTES_MAX, "a multiRead asks for too much: it is cut off");
                return None;
            }
            results.push(result);
        }
        Some((ErrorCode::OK, results))
    }

    fn read_data(&self, path: Option<&str>) -> Result<OpResult<'_>, Failed> {
        let path = path.ok_or(NULL_PATH)?;
        let node = self.readable(path)?;
        Ok(OpResult::Data { data: node.data, stat: stat(&node.stat) })
    }

    fn read_children<'b>(&'b self, path: Option<&'b str>) -> Result<OpResult<'b>, Failed> {
        let path = path.ok_or(NULL_PATH)?;
        self.readable(path)?;
        let names = self.machine.tree().children(or_root(path));
        Ok(OpResult::Children(Strings::of(names.map(Some))))
    }

    // ------------------------------------------------------------ watches

    /// Whether the request, of so many bytes, would set a watch, and there are too many.
    fn is_full(&self, request: &Request<'_>, bytes: usize) -> bool {
        let once = |watches: &SetWatches<'_>| {
            watches.data.len() + watches.exist.len() + watches.child.len()
        };
        let more = match request {
            Request::Exists(read)
            | Request::GetData(read)
            | Request::GetChildren(read)
            | Request::GetChildren2(read) => usize::from(read.watch),
            Request::AddWatch(..) => 1,
            Request::SetWatches(watches) => once(watches),
            Request::SetWatches2 { watches, persistent, persistent_recursive } => {
                once(watches) + persistent.len() + persistent_recursive.len()
            }
            _ => 0,
        };
        more > 0 && !self.front.hub.has_room(self.watcher, more, bytes)
    }

    fn watch(&self, path: &str, table: Table, mode: u8) {
        self.front.hub.watch(self.watcher, path, table, mode);
    }

    fn add_watch(&self, path: &str, kind: AddWatchMode) {
        match kind {
            AddWatchMode::Persistent => {
                self.watch(path, Table::Data, mode::PERSISTENT);
                self.watch(path, Table::Child, mode::PERSISTENT);
            }
            AddWatchMode::PersistentRecursive => self.watch(path, Table::Data, mode::RECURSIVE),
        }
    }

    /// Sets watches of a connection before, or tells at once what they would have told meanwhile.
    fn set_watches(
        &self,
        watches: &SetWatches<'_>,
        header: &ReplyHeader,
        lasting: Option<(&Strings<'_>, &Strings<'_>)>,
        out: &mut BytesMut,
    ) -> Result<(), Failed> {
        let seen = watches.relative_zxid;
        let stat_at = |path| self.node(path).ok().map(|node| stat(&node.stat));
        let mut tell = |kind, path: &str| out.extend_from_slice(&notification(NO_ZXID, kind, path));
        for path in watches.data.iter() {
            let path = path.ok_or(NULL_PATH)?;
            match stat_at(path) {
                None => tell(EventType::NodeDeleted, path),
                Some(stat) if stat.mzxid > seen => tell(EventType::NodeDataChanged, path),
                Some(_) => self.watch(path, Table::Data, mode::STANDARD),
            }
        }
        for path in watches.exist.iter() {
            let path = path.ok_or(NULL_PATH)?;
            match stat_at(path) {
                None => self.watch(path, Table::Data, mode::STANDARD),
                Some(_) => tell(EventType::NodeCreated, path),
            }
        }
        for path in watches.child.iter() {
            let path = path.ok_or(NULL_PATH)?;
            match stat_at(path) {
                None => tell(EventType::NodeDeleted, path),
                Some(stat) if stat.pzxid > seen => tell(EventType::NodeChildrenChanged, path),
                Some(_) => self.watch(path, Table::Child, mode::STANDARD),
            }
        }
        if let Some((persistent, recursive)) = lasting {
            for path in persistent.iter().flatten() {
                self.add_watch(path, AddWatchMode::Persistent);
            }
            for path in recursive.iter().flatten() {
                self.add_watch(path, AddWatchMode::PersistentRecursive);
            }
        }
        send(header, &Reply::Empty, out)
    }
}

/// About how long the reply to the read in `frame` is, if it is long.
pub(super) fn reply_bytes(frame: &[u8], machine: &StateMachine) -> usize {
    /// A short name, and its length.
    const NAME_BYTES: usize = 16;

    let tree = machine.tree();
    let node = |path: Option<&str>| tree.node(or_root(path?));
    let data = |read: &Read<'_>| node(read.path).and_then(|node| node.data).map_or(0, <[u8]>::len);
    let names = |read: &Read<'_>| {
        let count = node(read.path).map_or(0, |node| node.stat.num_children);
        usize::try_from(count).unwrap_or(0) * NAME_BYTES
    };
    match decode_request(frame) {
        Ok((_, Request::GetData(read))) => data(&read),
        Ok((_, Request::GetChildren(read) | Request::GetChildren2(read))) => names(&read),
        Ok((_, Request::MultiRead(parts))) => parts
            .iter()
            .map(|part| match part {
                ReadOp::GetData(read) => data(&read),
                ReadOp::GetChildren(read) => names(&read),
            })
            .sum(),
        // What was missed is told path by path.
        _ => frame.len(),
    }
}

/// To ZooKeeper, the empty path is another name of the root.
pub(super) fn or_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// Only what doesn't fit into 2 GiB can't be sent.
fn send(header: &ReplyHeader, reply: &Reply<'_>, out: &mut BytesMut) -> Result<(), Failed> {
    encode_reply(header, reply, out).map_err(|_| ErrorCode::MARSHALLING_ERROR)
}

/// A stat as it is sent.
pub(super) fn stat(stat: &core::Stat) -> jute::Stat {
    jute::Stat {
        czxid: stat.czxid.0.cast_signed(),
        mzxid: stat.mzxid.0.cast_signed(),
        ctime: stat.ctime.0.cast_signed(),
        mtime: stat.mtime.0.cast_signed(),
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        ephemeral_owner: stat.ephemeral_owner.map_or(0, |session| session.0.cast_signed()),
        data_length: stat.data_length,
        num_children: stat.num_children,
        pzxid: stat.pzxid.0.cast_signed(),
    }
}
