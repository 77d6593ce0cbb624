//! Quotas: what clients write below `/zookeeper/quota`, and what is counted there for them.
//!
//! A quota on `/a` is the znode `/zookeeper/quota/a/zookeeper_limits`, with the limits as text.
//! Beside it, `zookeeper_stats` is kept up to date, as data that changes without a version, a zxid
//! or an event. The nearest quota above a znode counts; one on the root doesn't.

use std::sync::Arc;

use super::Tree;
use super::path::parent;
use super::terms::TreeError;

const QUOTAS: &str = "/zookeeper/quota";
const LIMITS: &str = "/zookeeper_limits";
const STATS: &str = "/zookeeper_stats";

/// On which path the znode at `path` sets limits, if it does.
pub(crate) fn path_of_limits(path: &str) -> Option<&str> {
    quoted(path, LIMITS)
}

/// What the znode at `path` counts, if it does.
pub(crate) fn path_of_stats(path: &str) -> Option<&str> {
    quoted(path, STATS)
}

/// Where the stats of a quota are.
pub(crate) fn stats(of: &str) -> String {
    format!("{QUOTAS}{of}{STATS}")
}

fn quoted<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let of = path.strip_prefix(QUOTAS)?.strip_suffix(name)?;
    of.starts_with('/').then_some(of)
}

/// Figures in the text of a quota; -1: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) count: i64,
    pub(crate) bytes: i64,
    pub(crate) count_hard: i64,
    pub(crate) bytes_hard: i64,
}

impl Figures {
    /// Reads `count=1,bytes=2=;byteHardLimit=3;countHardLimit=4`, in any order. What can't be read
    /// is no limit.
    pub(crate) fn read(text: Option<&[u8]>) -> Self {
        let mut figures = Self { count: -1, bytes: -1, count_hard: -1, bytes_hard: -1 };
        let text = std::str::from_utf8(text.unwrap_or_default()).unwrap_or_default();
        for pair in text.split([',', ';']) {
            let mut parts = pair.split('=');
            let (key, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let value = value.parse().unwrap_or(-1);
            match key {
                "count" => figures.count = value,
                "bytes" => figures.bytes = value,
                "countHardLimit" => figures.count_hard = value,
                "byteHardLimit" => figures.bytes_hard = value,
                _ => {}
            }
        }
        figures
    }

    /// The stats' text.
    pub(crate) fn text(count: i64, bytes: i64) -> Arc<[u8]> {
        format!("count={count},bytes={bytes}").into_bytes().into()
    }
}

impl Tree {
    /// The nearest path with a quota, at or above `path`.
    pub(crate) fn quota_above(&self, path: &str) -> Option<&Arc<str>> {
        if self.quotas.is_empty() {
            return None;
        }
        let mut at = Some(path);
        while let Some(path) = at {
            if let Some((of, ())) = self.quotas.get(super::path_order(path)) {
                return Some(of);
            }
            at = parent(path);
        }
        None
    }

    /// Whether the hard limits above `path` leave room for so much more.
    ///
    /// # Errors
    ///
    /// [`TreeError::QuotaExceeded`].
    pub(crate) fn check_quota(&self, path: &str, count: i64, bytes: i64) -> Result<(), TreeError> {
        let Some(of) = self.quota_above(path) else { return Ok(()) };
        let figures = |name| {
            let node = self.node(&format!("{QUOTAS}{of}{name}"))?;
            Some(Figures::read(node.data))
        };
        let (Some(limits), Some(now)) = (figures(LIMITS), figures(STATS)) else { return Ok(()) };
        let passes = |now: i64, more: i64, limit: i64| {
            more > 0 && limit > -1 && now.saturating_add(more) > limit
        };
        if passes(now.count, count, limits.count_hard)
            || passes(now.bytes, bytes, limits.bytes_hard)
        {
            return Err(TreeError::QuotaExceeded);
        }
        Ok(())
    }

    /// The znode at `path` and all below it: how many, and the bytes of their data. Linear in them.
    pub(crate) fn sum_below(&self, path: &str) -> (i64, i64) {
        self.walk(path)
            .fold((0, 0), |(count, bytes), (_, node)| (count + 1, bytes + node.data_len() as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_clients_write_them() {
        let read = |text: &str| {
            let Figures { count, bytes, count_hard, bytes_hard } =
                Figures::read(Some(text.as_bytes()));
            (count, bytes, count_hard, bytes_hard)
        };
        assert_eq!(read("count=5,bytes=10"), (5, 10, -1, -1));
        assert_eq!(read("count=-1,bytes=-1=;byteHardLimit=30;countHardLimit=4"), (-1, -1, 4, 30));
        assert_eq!(read("countHardLimit=,,;bytes=x;count"), (-1, -1, -1, -1));
        assert_eq!(read(""), (-1, -1, -1, -1));
        assert_eq!(Figures::read(None), Figures::read(Some(b"\xff")));
        assert_eq!(&*Figures::text(3, 12), b"count=3,bytes=12");
    }

    #[test]
    fn quotas_name_their_path() {
        assert_eq!(path_of_limits("/zookeeper/quota/a/b/zookeeper_limits"), Some("/a/b"));
        assert_eq!(path_of_limits("/zookeeper/quota/zookeeper_limits"), None, "of the root");
        assert_eq!(path_of_limits("/zookeeper/quotas/a/zookeeper_limits"), None);
        assert_eq!(path_of_stats("/zookeeper/quota/a/zookeeper_stats"), Some("/a"));
        assert_eq!(path_of_stats(&stats("/a")), Some("/a"));
    }
}
