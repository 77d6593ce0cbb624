//! The numbers of errors.

use std::fmt;

use bytes::BytesMut;

use super::{Input, Malformed, Record};

/// How a request went. Any number can be received, so this is one, with names for those known.
///
/// A server sends only those that [`ErrorCode::name`] knows and that the list below doesn't call
/// a client's own: an unknown one kills the connection of the Java client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub i32);

/// The constants, and the function that knows their names: one table.
macro_rules! error_codes {
    ($($constant:ident = $number:literal, $name:literal, $about:literal;)*) => {
        impl ErrorCode {
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

error_codes! {
    OK = 0, "OK", "It went well.";
    SYSTEM_ERROR = -1, "SYSTEMERROR", "Below are the server's and the connection's errors.";
    RUNTIME_INCONSISTENCY = -2, "RUNTIMEINCONSISTENCY", "A part of a multi behind the failed one.";
    DATA_INCONSISTENCY = -3, "DATAINCONSISTENCY", "Never sent.";
    CONNECTION_LOSS = -4, "CONNECTIONLOSS", "A client's own: never sent.";
    MARSHALLING_ERROR = -5, "MARSHALLINGERROR", "The body can't be decoded, or a choice is none.";
    UNIMPLEMENTED = -6, "UNIMPLEMENTED", "Nobody knows the operation, or it is switched off.";
    OPERATION_TIMEOUT = -7, "OPERATIONTIMEOUT", "A client's own: never sent.";
    BAD_ARGUMENTS = -8, "BADARGUMENTS", "A path, flag or time to live that can't be.";
    UNKNOWN_SESSION = -12, "UNKNOWNSESSION", "Never sent.";
    NEW_CONFIG_NO_QUORUM = -13, "NEWCONFIGNOQUORUM", "Too few of the new members are there.";
    RECONFIG_IN_PROGRESS = -14, "RECONFIGINPROGRESS", "Another change of members isn't over.";
    API_ERROR = -100, "APIERROR", "Below are the caller's errors.";
    NO_NODE = -101, "NONODE", "There is no such znode.";
    NO_AUTH = -102, "NOAUTH", "The ACL doesn't grant it.";
    BAD_VERSION = -103, "BADVERSION", "The version is another.";
    NO_CHILDREN_FOR_EPHEMERALS = -108, "NOCHILDRENFOREPHEMERALS", "An ephemeral has no children.";
    NODE_EXISTS = -110, "NODEEXISTS", "There is such a znode already.";
    NOT_EMPTY = -111, "NOTEMPTY", "It has children.";
    SESSION_EXPIRED = -112, "SESSIONEXPIRED", "The session is ending.";
    INVALID_CALLBACK = -113, "INVALIDCALLBACK", "Never sent.";
    INVALID_ACL = -114, "INVALIDACL", "The list of ACLs can't be.";
    AUTH_FAILED = -115, "AUTHFAILED", "The credentials are refused; the connection ends.";
    SESSION_MOVED = -118, "SESSIONMOVED", "Never sent: the connection ends instead.";
    NOT_READ_ONLY = -119, "NOTREADONLY", "This server only reads.";
    EPHEMERAL_ON_LOCAL_SESSION = -120, "EPHEMERALONLOCALSESSION", "A local session has none.";
    NO_WATCHER = -121, "NOWATCHER", "There is no such watch.";
    REQUEST_TIMEOUT = -122, "REQUESTTIMEOUT", "A client's own: never sent.";
    RECONFIG_DISABLED = -123, "RECONFIGDISABLED", "Members don't change this way.";
    SESSION_CLOSED_REQUIRE_SASL_AUTH = -124, "SESSIONCLOSEDREQUIRESASLAUTH",
        "The connection showed no credentials that it has to; it ends.";
    QUOTA_EXCEEDED = -125, "QUOTAEXCEEDED", "A hard quota says no.";
    THROTTLED_OP = -127, "THROTTLEDOP", "Shed: there is too much to do.";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl<'a> Record<'a> for ErrorCode {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        input.read().map(Self)
    }

    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
    }
}
