//! The naive twin of the tree: one list of znodes, copied for each command and put back if that
//! fails.

use lockkeeper_core::{
    AclRef, Event, IdRef, NodeAcl, NodeChange, NodeKind, Refusal, Reply, Revision, SessionId,
    Stamp, Stat, StateMachine, Tree, TreeError, TreeOp, TreeReply, check_znode_path,
    sequence_number,
};

pub(crate) struct TreeTwin {
    /// In any order.
    nodes: Vec<Node>,
    /// What the stats of the quota on `/q` say, while they are there.
    counted: (i64, i64),
}

#[derive(Clone)]
struct Node {
    path: String,
    data: Option<Vec<u8>>,
    acl: Vec<(i32, String, String)>,
    kind: NodeKind,
    owner: Option<SessionId>,
    children_made: u64,
    children_removed: u64,
    stat: Stat,
}

/// Who asks what, and when.
pub(crate) struct Asked<'a> {
    pub(crate) session: SessionId,
    pub(crate) ids: &'a [IdRef<'a>],
    pub(crate) enforce_quota: bool,
    pub(crate) zxid: u64,
    pub(crate) at: Stamp,
}

type Done = Result<TreeReply, TreeError>;

const LIMITS: &str = "/zookeeper/quota/q/zookeeper_limits";
const STATS: &str = "/zookeeper/quota/q/zookeeper_stats";

impl TreeTwin {
    /// Whatever a new cluster has.
    pub(crate) fn new() -> Self {
        let new = StateMachine::default();
        let paths = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];
        let nodes = paths.map(|path| {
            let view = new.tree().node(path).unwrap();
            Node {
                path: path.to_owned(),
                data: view.data.map(<[u8]>::to_vec),
                acl: owned(view.acl.iter()),
                kind: view.kind,
                owner: None,
                children_made: 0,
                children_removed: 0,
                stat: view.stat,
            }
        });
        Self { nodes: nodes.into(), counted: (0, 0) }
    }

    pub(crate) fn run(
        &mut self,
        asked: &Asked<'_>,
        ops: &[TreeOp<'_>],
        events: &mut Vec<Event>,
    ) -> Reply {
        let before = (self.nodes.clone(), self.counted);
        let told = events.len();
        let mut replies = Vec::new();
        for (index, op) in (0..).zip(ops) {
            let sums = self.sums();
            match self.execute(asked, op, events) {
                Ok(reply) => replies.push(reply),
                Err(error) => {
                    (self.nodes, self.counted) = before;
                    events.truncate(told);
                    return Reply::Refused(Refusal::Tree { index, error });
                }
            }
            self.recount(sums);
        }
        Reply::Tree(replies)
    }

    pub(crate) fn end_session(
        &mut self,
        session: SessionId,
        asked: &Asked<'_>,
        events: &mut Vec<Event>,
    ) {
        let sums = self.sums();
        let mut own = self.ephemerals(session);
        own.sort_unstable();
        for path in own {
            self.remove(asked, &path, events);
        }
        self.recount(sums);
    }

    pub(crate) fn collect(
        &mut self,
        path: &str,
        asked: &Asked<'_>,
        events: &mut Vec<Event>,
    ) -> Reply {
        let error = match self.find(path) {
            Err(error) => Some(error),
            Ok(_) if self.children(path).next().is_some() => Some(TreeError::NotEmpty),
            Ok(node) => {
                let is_due = match node.kind {
                    NodeKind::Container => node.children_made > 0,
                    NodeKind::Ttl { ms } => asked.at.0 > node.stat.mtime.0 + ms,
                    NodeKind::Persistent | NodeKind::Ephemeral => false,
                };
                (!is_due).then_some(TreeError::BadVersion)
            }
        };
        if let Some(error) = error {
            return Reply::Refused(Refusal::Tree { index: 0, error });
        }
        let sums = self.sums();
        self.remove(asked, path, events);
        self.recount(sums);
        Reply::Done
    }

    pub(crate) fn ephemerals(&self, session: SessionId) -> Vec<String> {
        let own = self.nodes.iter().filter(|node| node.owner == Some(session));
        own.map(|node| node.path.clone()).collect()
    }

    /// Whatever a query shows must be the same here.
    pub(crate) fn compare(&self, tree: &Tree, sessions: &[SessionId], now: Stamp) {
        assert_eq!(tree.len(), self.nodes.len());
        let bytes = |node: &Node| node.path.len() + node.data.as_ref().map_or(0, Vec::len);
        assert_eq!(tree.data_bytes(), self.nodes.iter().map(bytes).sum::<usize>() as u64);
        for node in &self.nodes {
            let path = node.path.as_str();
            let view = tree.node(path).unwrap_or_else(|| panic!("{path} is missing"));
            assert_eq!(&**view.path, path);
            assert_eq!(view.data, node.data.as_deref(), "data of {path}");
            assert_eq!(owned(view.acl.iter()), node.acl, "list of {path}");
            assert_eq!((view.kind, view.stat), (node.kind, self.stat(node)), "{path}");
            let mut names: Vec<_> = self.children(path).map(name_of).collect();
            names.sort_unstable();
            let mut own: Vec<_> = tree.children(path).collect();
            own.sort_unstable();
            assert_eq!(own, names, "children of {path}");
            assert_eq!(tree.line(path).map(|path| &**path).collect::<Vec<_>>(), self.line(path));
            assert_eq!(tree.line_len(path), self.line(path).len(), "line of {path}");
            let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
            let below = |other: &&Node| other.path.len() > 1 && other.path.starts_with(&prefix);
            let below = self.nodes.iter().filter(below);
            assert_eq!(tree.descendants(path).count(), below.count(), "below {path}");
        }
        for &session in sessions {
            let mut own = self.ephemerals(session);
            own.sort_unstable();
            let listed = tree.ephemerals(session).map(|path| path.to_string());
            let mut listed: Vec<_> = listed.collect();
            listed.sort_unstable();
            assert_eq!(listed, own);
            assert_eq!(tree.ephemeral_count_of(session), own.len());
        }
        let due = self.nodes.iter().filter(|node| match node.kind {
            _ if self.children(&node.path).next().is_some() => false,
            NodeKind::Container => node.children_made > 0,
            NodeKind::Ttl { ms } => now.0 > node.stat.mtime.0 + ms,
            NodeKind::Persistent | NodeKind::Ephemeral => false,
        });
        let mut due: Vec<_> = due.map(|node| node.path.clone()).collect();
        due.sort_unstable();
        let listed = tree.collectable(now, usize::MAX);
        assert_eq!(listed.iter().map(|path| path.to_string()).collect::<Vec<_>>(), due);
    }

    fn execute(&mut self, asked: &Asked<'_>, op: &TreeOp<'_>, events: &mut Vec<Event>) -> Done {
        match *op {
            TreeOp::Create { path, data, ref acl, kind, sequential } => {
                self.create(asked, (path, data), acl, kind, sequential, events)
            }
            TreeOp::Delete { path, version } => self.delete(asked, path, version, events),
            TreeOp::SetData { path, data, version } => {
                self.set_data(asked, path, data, version, events)
            }
            TreeOp::SetAcl { path, ref acl, version } => {
                check_znode_path(path)?;
                ensure(!acl.is_empty(), TreeError::InvalidAcl)?;
                let node = self.find(path)?;
                ensure(node.allows(asked.ids, 16), TreeError::NoAuth)?;
                ensure([-1, node.stat.aversion].contains(&version), TreeError::BadVersion)?;
                let node = self.find_mut(path);
                node.acl = owned(acl.iter().copied());
                node.stat.aversion += 1;
                let stat = self.stat(self.find(path)?);
                Ok(TreeReply::AclSet { stat })
            }
            TreeOp::Check { path, version } => {
                check_znode_path(path)?;
                let node = self.find(path)?;
                ensure(node.allows(asked.ids, 1), TreeError::NoAuth)?;
                ensure([-1, node.stat.version].contains(&version), TreeError::BadVersion)?;
                Ok(TreeReply::Checked)
            }
            TreeOp::Fail(error) => Err(error),
        }
    }

    fn create(
        &mut self,
        asked: &Asked<'_>,
        (path, data): (&str, Option<&[u8]>),
        acl: &[AclRef<'_>],
        kind: NodeKind,
        sequential: bool,
        events: &mut Vec<Event>,
    ) -> Done {
        ensure(kind != NodeKind::Ttl { ms: 0 }, TreeError::BadArguments)?;
        ensure(path.contains('/'), TreeError::BadArguments)?;
        ensure(!acl.is_empty(), TreeError::InvalidAcl)?;
        let above = parent_of(path);
        let parent = self.find(&above)?.clone();
        ensure(parent.allows(asked.ids, 4), TreeError::NoAuth)?;
        let mut path = path.to_owned();
        if sequential {
            path += &format!("{:010}", parent.children_made);
        }
        check_znode_path(&path)?;
        ensure(self.find(&path).is_err(), TreeError::NodeExists)?;
        ensure(parent.owner.is_none(), TreeError::NoChildrenForEphemerals)?;
        let length = data.map_or(0, <[u8]>::len);
        self.check_quota(asked, &path, 1, length as i64)?;

        let (at, zxid) = (asked.at, Revision(asked.zxid));
        let stat =
            Stat { czxid: zxid, mzxid: zxid, pzxid: zxid, ctime: at, mtime: at, ..Stat::default() };
        let node = Node {
            path: path.clone(),
            data: data.map(<[u8]>::to_vec),
            acl: owned(acl.iter().copied()),
            kind,
            owner: (kind == NodeKind::Ephemeral).then_some(asked.session),
            children_made: 0,
            children_removed: 0,
            stat,
        };
        tell(&node, NodeChange::Created, zxid, events);
        let stat = self.stat(&node);
        self.nodes.push(node);
        let parent = self.find_mut(&above);
        parent.children_made += 1;
        parent.stat.pzxid = zxid;
        Ok(TreeReply::Created { path: path.into(), stat })
    }

    fn delete(
        &mut self,
        asked: &Asked<'_>,
        path: &str,
        version: i32,
        events: &mut Vec<Event>,
    ) -> Done {
        ensure(path.contains('/'), TreeError::BadArguments)?;
        let fixed = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];
        ensure(!fixed.contains(&path), TreeError::BadArguments)?;
        let parent = self.find(&parent_of(path))?;
        ensure(parent.allows(asked.ids, 8), TreeError::NoAuth)?;
        let node = self.find(path)?;
        ensure([-1, node.stat.version].contains(&version), TreeError::BadVersion)?;
        ensure(self.children(path).next().is_none(), TreeError::NotEmpty)?;
        self.remove(asked, path, events);
        Ok(TreeReply::Deleted)
    }

    fn set_data(
        &mut self,
        asked: &Asked<'_>,
        path: &str,
        data: Option<&[u8]>,
        version: i32,
        events: &mut Vec<Event>,
    ) -> Done {
        check_znode_path(path)?;
        let node = self.find(path)?;
        ensure(node.allows(asked.ids, 2), TreeError::NoAuth)?;
        let length = |data: Option<&[u8]>| data.map_or(0, <[u8]>::len) as i64;
        self.check_quota(asked, path, 0, length(data) - length(node.data.as_deref()))?;
        ensure([-1, node.stat.version].contains(&version), TreeError::BadVersion)?;
        let node = self.find_mut(path);
        node.data = data.map(<[u8]>::to_vec);
        node.stat.version += 1;
        node.stat.mzxid = Revision(asked.zxid);
        node.stat.mtime = asked.at;
        let node = self.find(path)?;
        tell(node, NodeChange::DataChanged, Revision(asked.zxid), events);
        Ok(TreeReply::DataSet { stat: self.stat(node) })
    }

    fn remove(&mut self, asked: &Asked<'_>, path: &str, events: &mut Vec<Event>) {
        let at = self.nodes.iter().position(|node| node.path == path).unwrap();
        let node = self.nodes.remove(at);
        tell(&node, NodeChange::Deleted, Revision(asked.zxid), events);
        let parent = self.find_mut(&parent_of(path));
        parent.children_removed += 1;
        parent.stat.pzxid = Revision(asked.zxid);
    }

    /// The one quota that the model makes is on `/q`: whatever lies there is counted.
    fn sums(&self) -> (i64, i64) {
        let own = self.nodes.iter().filter(|node| is_of_quota(&node.path));
        let bytes = |node: &Node| node.data.as_ref().map_or(0, Vec::len) as i64;
        own.map(bytes).fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
    }

    /// After something has happened. What happens while there are no limits isn't counted.
    fn recount(&mut self, before: (i64, i64)) {
        let now = self.sums();
        if self.find(STATS).is_err() {
            self.counted = now;
            return;
        }
        if self.find(LIMITS).is_ok() {
            self.counted.0 += now.0 - before.0;
            self.counted.1 += now.1 - before.1;
        }
        if self.find(STATS).is_ok() {
            let (count, bytes) = self.counted;
            let text = format!("count={count},bytes={bytes}");
            self.find_mut(STATS).data = Some(text.into_bytes());
        }
    }

    fn check_quota(
        &self,
        asked: &Asked<'_>,
        path: &str,
        count: i64,
        bytes: i64,
    ) -> Result<(), TreeError> {
        let is_there = self.find(LIMITS).is_ok() && self.find(STATS).is_ok();
        if !asked.enforce_quota || !is_of_quota(path) || !is_there {
            return Ok(());
        }
        let (count_now, bytes_now) = self.counted;
        let is_exceeded =
            (count > 0 && count_now + count > 4) || (bytes > 0 && bytes_now + bytes > 20);
        ensure(!is_exceeded, TreeError::QuotaExceeded)
    }

    fn find(&self, path: &str) -> Result<&Node, TreeError> {
        self.nodes.iter().find(|node| node.path == path).ok_or(TreeError::NoNode)
    }

    fn find_mut(&mut self, path: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.path == path).unwrap()
    }

    fn line<'a>(&'a self, path: &'a str) -> Vec<&'a str> {
        let is_ephemeral = |path: &&str| self.find(path).is_ok_and(|node| node.owner.is_some());
        let ephemeral = self.children(path).filter(is_ephemeral);
        let mut line: Vec<_> =
            ephemeral.filter_map(|path| Some((sequence_number(path)?, path))).collect();
        line.sort_unstable();
        line.into_iter().map(|(_, path)| path).collect()
    }

    fn children<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let paths = self.nodes.iter().map(|node| node.path.as_str());
        paths.filter(move |other| *other != "/" && parent_of(other) == path)
    }

    fn stat(&self, node: &Node) -> Stat {
        Stat {
            // What was there from the beginning was not made.
            cversion: (node.children_made + node.children_removed) as i32
                + match &*node.path {
                    "/" => -1,
                    "/zookeeper" => -2,
                    _ => 0,
                },
            data_length: node.data.as_ref().map_or(0, Vec::len) as i32,
            num_children: self.children(&node.path).count() as i32,
            ephemeral_owner: node.owner,
            ..node.stat
        }
    }
}

impl Node {
    fn allows(&self, ids: &[IdRef<'_>], perms: i32) -> bool {
        let is_for = |scheme: &str, id: &str| {
            scheme == "world" || ids.iter().any(|own| own.scheme == scheme && own.id == id)
        };
        ids.iter().any(|id| id.scheme == "super")
            || self.acl.iter().any(|(bits, scheme, id)| bits & perms != 0 && is_for(scheme, id))
    }
}

fn is_of_quota(path: &str) -> bool {
    path == "/q" || path.starts_with("/q/")
}

/// Without lists: those of events are not compared.
fn tell(node: &Node, change: NodeChange, zxid: Revision, events: &mut Vec<Event>) {
    let (path, acl) = (node.path.as_str().into(), NodeAcl::default());
    events.push(Event::Node { path, change, session: node.owner, zxid, acl, acl_above: None });
}

fn owned<'a>(list: impl Iterator<Item = AclRef<'a>>) -> Vec<(i32, String, String)> {
    list.map(|entry| (entry.perms, entry.id.scheme.to_owned(), entry.id.id.to_owned())).collect()
}

fn parent_of(path: &str) -> String {
    match path.rsplit_once('/').unwrap().0 {
        "" => "/".to_owned(),
        parent => parent.to_owned(),
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit_once('/').unwrap().1
}

fn ensure(holds: bool, error: TreeError) -> Result<(), TreeError> {
    if holds { Ok(()) } else { Err(error) }
}
