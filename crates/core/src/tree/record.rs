//! A znode in a snapshot.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Tree;
use super::acl::NodeAcl;
use super::line::{LineHead, stands_in_line};
use super::node::{Kind, Znode};
use super::path::{Key, Place};
use super::terms::{AclRef, octets};
use crate::{Revision, Stamp};

/// All of a znode but the number of its children.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ZnodeRecord<'a> {
    path: &'a str,
    #[serde(borrow, with = "octets")]
    data: Option<&'a [u8]>,
    /// Empty: open.
    #[serde(borrow)]
    acl: Vec<AclRef<'a>>,
    pub(crate) kind: Kind,
    czxid: Revision,
    mzxid: Revision,
    pzxid: Revision,
    ctime: Stamp,
    mtime: Stamp,
    created: u64,
    version: i32,
    aversion: i32,
}

impl Znode {
    pub(crate) fn record<'a>(&'a self, path: &'a str) -> ZnodeRecord<'a> {
        ZnodeRecord {
            path,
            data: self.data.as_deref(),
            acl: if self.acl.is_open() { Vec::new() } else { self.acl.iter().collect() },
            kind: self.kind,
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            created: self.created,
            version: self.version,
            aversion: self.aversion,
        }
    }
}

impl Tree {
    /// Adds a znode behind its parent.
    ///
    /// # Errors
    ///
    /// What can't be, in words.
    pub(crate) fn add_record(&mut self, record: &ZnodeRecord<'_>) -> Result<(), String> {
        let path: Arc<str> = record.path.into();
        let named = |what: &str| format!("znode {path:?}: {what}");
        let place = Place::of(&path).ok_or_else(|| named("the path is none"))?;
        if self.at(place).is_some() {
            return Err(named("it is there twice"));
        }
        let above = place.above().filter(|_| !place.is_root());
        let mut like = NodeAcl::default();
        if let Some(above) = above {
            let parent = self.at(above).ok_or_else(|| named("its parent is missing"))?;
            like = parent.acl.clone();
        } else if self.len() > 0 {
            return Err(named("the root is not the first"));
        }
        let acl = if record.acl.is_empty() {
            NodeAcl::default()
        } else {
            NodeAcl::new(&record.acl, &like).map_err(|_| named("the access list is too long"))?
        };
        if acl.is_open() != record.acl.is_empty() {
            return Err(named("an open access list is written out"));
        }
        let node = Znode {
            data: record.data.map(Into::into),
            acl,
            kind: record.kind,
            czxid: record.czxid,
            mzxid: record.mzxid,
            pzxid: record.pzxid,
            ctime: record.ctime,
            mtime: record.mtime,
            created: record.created,
            child_count: 0,
            line: LineHead::default(),
            version: record.version,
            aversion: record.aversion,
        };
        let key = Key::new(path.clone()).ok_or_else(|| named("the path is none"))?;
        let stands = stands_in_line(key.name(), &node);
        self.put(key, Arc::new(node));
        if let Some(above) = above {
            self.change(above, |parent| {
                parent.child_count += 1;
                parent.line.join(stands);
            });
        }
        Ok(())
    }
}
