//! The ways in which a node says no, sorted by what the caller can do.

use crate::NodeId;

/// This node is unfit: it says why and stops; the quorum carries on. Never retried in place.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// The log's disk failed a write or an fsync; what was acknowledged is safe on the others.
    #[error(
        "the log's disk failed: {0}. This node stops; replace the disk, then restart it or \
         re-seed it from its peers"
    )]
    Disk(String),
    /// An fsync didn't return within the watchdog's limit.
    #[error(
        "an fsync of the log has not returned for {seconds} s; this node stops so that its \
         peers can go on without it. Check the disk"
    )]
    StuckDisk {
        /// How long.
        seconds: u64,
    },
    /// Bytes of the log or a snapshot are not what was written.
    #[error(
        "{what} is corrupted: {detail}. This node must not go on with it: remove it from the \
         cluster, and add a new member with a new id and an empty directory"
    )]
    Corrupted {
        /// Which file.
        what: String,
        /// Where, and what was expected.
        detail: String,
    },
    /// A fault in Lockkeeper itself.
    #[error("internal fault: {0}")]
    Internal(String),
}

/// Why a node didn't start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process runs on the data directory.
    #[error(
        "the data directory {0} is in use by another lockkeeper process; stop it, or choose \
         another directory with --data-dir"
    )]
    InUse(String),
    /// The directory belongs to another node, cluster or version.
    #[error("the data directory {directory} is not this node's: {reason}")]
    ForeignDirectory {
        /// Its path.
        directory: String,
        /// What it says, and what was expected.
        reason: String,
    },
    /// The peer listener can't be had.
    #[error("can't listen for peers on {address}: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// The system's words.
        reason: String,
    },
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The data directory can't be made, read or written.
    #[error("{0}")]
    Io(String),
    /// The node is unfit.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// This node can't serve a request now; another one may, or this one later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// No leader with a majority is known, so nothing was proposed: nothing happened. That a
    /// majority is reached all the same means that it hasn't elected one yet.
    #[error("{}", without_leader(*.reached, *.of))]
    NoQuorum {
        /// Voters that this node hears, itself included.
        reached: u32,
        /// Voters there are.
        of: u32,
    },
    /// It was proposed, but what became of it can't be known here any more.
    #[error("the outcome is unknown: ask again with the same number")]
    Unknown,
    /// Too much waits for the log: nothing happened, try again.
    #[error(
        "overloaded: {queued_bytes} bytes of commands wait for the log; nothing was done. Try \
         again after 200 ms, and after twice as long each further time; releases and endings are \
         still served"
    )]
    Overloaded {
        /// What waits.
        queued_bytes: usize,
    },
    /// A disk is nearly full: nothing happened. Releases and endings are still served.
    #[error(
        "the disk of node {node}'s log is nearly full ({free_bytes} bytes free): new work is \
         refused until there is room"
    )]
    DiskFull {
        /// Whose disk it is: this node's, the leader's, or one of too many voters'.
        node: NodeId,
        /// What is free.
        free_bytes: u64,
    },
    /// The node is stopping.
    #[error("this node is stopping")]
    Stopping,
}

/// Why a change of members or leadership wasn't made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The change makes no sense now: it says why.
    #[error("{0}")]
    Refused(String),
    /// There is no leader with a majority.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The member can't be reached, or refuses.
    #[error("node {node} at {address} can't be added: {reason}")]
    Unreachable {
        /// Which.
        node: NodeId,
        /// Where.
        address: String,
        /// Why.
        reason: String,
    },
}

/// Why the members weren't changed all at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReconfigureError {
    /// The members aren't those any more to which the change was to be made. Nothing happened;
    /// whoever looks at them anew may try again.
    #[error("the members have changed meanwhile")]
    Moved,
    /// Another change is under way. Nothing happened; it may be tried again.
    #[error("another change of the members is under way")]
    InProgress,
    /// Too few of those who would vote can be reached. Nothing happened.
    #[error("too few of those who would vote can be reached and have caught up with the log")]
    NoQuorum,
    /// The change makes no sense: it says why. Nothing happened.
    #[error("{0}")]
    Refused(String),
    /// It may have been made, and may still be.
    #[error("the outcome of the change is unknown")]
    Unknown,
}

/// Why there is no leader: the operator looks after the missing voters, or waits a moment.
fn without_leader(reached: u32, of: u32) -> String {
    // Rounded down, so that a majority is more than it.
    if reached > of / 2 {
        format!(
            "no leader yet: {reached} of {of} voters answer, an election is under way; try again"
        )
    } else {
        format!("no majority: this node reaches {reached} of {of} voters")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_without_a_leader_is_not_called_no_majority() {
        let said = |reached, of| Unavailable::NoQuorum { reached, of }.to_string();
        let election = "no leader yet: 3 of 4 voters answer, an election is under way; try again";
        assert_eq!(said(3, 4), election);
        assert!(said(2, 3).starts_with("no leader yet: 2 of 3 "));
        for (reached, of) in [(2, 4), (1, 3), (0, 0)] {
            let cut_off = format!("no majority: this node reaches {reached} of {of} voters");
            assert_eq!(said(reached, of), cut_off);
        }
    }
}
