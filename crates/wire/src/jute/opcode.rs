//! The numbers of operations.

use std::fmt;

use bytes::BytesMut;

use super::{Input, Malformed, Record};

/// What a request asks for. Any number can be sent, so this is one, with names for those known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpCode(pub i32);

/// The constants, and the function that knows their names: one table.
macro_rules! opcodes {
    ($($constant:ident = $number:literal, $name:literal, $about:literal;)*) => {
        impl OpCode {
            $(#[doc = $about] pub const $constant: Self = Self($number);)*

            /// All that have a name.
            pub const ALL: &[Self] = &[$(Self::$constant),*];

            /// ZooKeeper's name for it; `None` if nobody knows the number.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    CREATE = 1, "create", "Create a znode; the reply is its path.";
    DELETE = 2, "delete", "Delete a znode.";
    EXISTS = 3, "exists", "The stat of a znode, and a watch also on one that isn't there.";
    GET_DATA = 4, "getData", "The data of a znode, and its stat.";
    SET_DATA = 5, "setData", "Set the data of a znode.";
    GET_ACL = 6, "getACL", "The ACL of a znode.";
    SET_ACL = 7, "setACL", "Set the ACL of a znode.";
    GET_CHILDREN = 8, "getChildren", "The names of the children.";
    SYNC = 9, "sync", "Wait for what the leader had committed.";
    PING = 11, "ping", "A sign of life.";
    GET_CHILDREN2 = 12, "getChildren2", "The names of the children, and the stat.";
    CHECK = 13, "check", "Compare a version; only within a multi.";
    MULTI = 14, "multi", "Several writes, all or none.";
    CREATE2 = 15, "create2", "Create a znode; the reply is its path and stat.";
    RECONFIG = 16, "reconfig", "Change the members of the cluster.";
    CHECK_WATCHES = 17, "checkWatches", "Whether there is such a watch.";
    REMOVE_WATCHES = 18, "removeWatches", "Remove such watches.";
    CREATE_CONTAINER = 19, "createContainer", "Create a znode that goes with its last child.";
    DELETE_CONTAINER = 20, "deleteContainer", "Never sent by a client.";
    CREATE_TTL = 21, "createTTL", "Create a znode that goes when it is left alone.";
    MULTI_READ = 22, "multiRead", "Several reads.";
    AUTH = 100, "auth", "Show credentials.";
    SET_WATCHES = 101, "setWatches", "Watches of a connection before, set anew.";
    SASL = 102, "sasl", "A step of a login.";
    GET_EPHEMERALS = 103, "getEphemerals", "The ephemeral znodes of this session.";
    GET_ALL_CHILDREN_NUMBER = 104, "getAllChildrenNumber", "How many descendants there are.";
    SET_WATCHES2 = 105, "setWatches2", "As setWatches, with persistent ones.";
    ADD_WATCH = 106, "addWatch", "A watch that stays.";
    WHO_AM_I = 107, "whoAmI", "What this connection has shown of itself.";
    CREATE_SESSION = -10, "createSession", "Never sent by a client.";
    CLOSE_SESSION = -11, "closeSession", "End the session.";
    ERROR = -1, "error", "A part of a multi that failed.";
}

impl fmt::Display for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "operation {}", self.0),
        }
    }
}

impl<'a> Record<'a> for OpCode {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        input.read().map(Self)
    }

    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
    }
}
