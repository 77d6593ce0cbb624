//! A session: whose life everything hangs on that a client holds, waits for, or has asked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dedup::Answers;
use crate::lock::Ticket;
use crate::{
    ITEMS_PER_SESSION_MAX, LABEL_BYTES_MAX, LABELS_MAX, Limit, LockName, Number,
    OWNER_FIELD_BYTES_MAX, OwnerRef, Refusal, Secret, Stamp, TTL_MS_MAX, TTL_MS_MIN, Token,
};

/// One live session. Its deadline is not here: the leader keeps it, and ends the session by a
/// command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) secret: Secret,
    /// The lease in milliseconds.
    pub(crate) ttl_ms: u32,
    pub(crate) owner: Owner,
    pub(crate) opened: Stamp,
    /// The newest of its connections to the tree: what comes over another is refused. The one that
    /// opened it is 0.
    pub(crate) connection: u64,
    /// An operator has asked it to end: it takes nothing new.
    pub(crate) is_revoked: bool,
    /// How many of its holds an operator has asked back.
    pub(crate) revoked_hold_count: usize,
    pub(crate) answers: Answers,
    /// Its handles, by the number of the acquire or re-entry that made each. Two handles of one
    /// hold have the same token.
    pub(crate) handles: BTreeMap<Number, Handle>,
    /// Its places in queues, by the number of the acquire. No number is also among `handles` or
    /// in `answers`.
    pub(crate) places: BTreeMap<Number, Place>,
}

impl Session {
    /// A session that holds nothing yet.
    ///
    /// # Errors
    ///
    /// [`Refusal::LimitReached`] for the lease and the owner's fields.
    pub(crate) fn open(
        secret: Secret,
        ttl_ms: u32,
        owner: &OwnerRef<'_>,
        opened: Stamp,
    ) -> Result<Self, Refusal> {
        check_ttl(ttl_ms)?;
        Ok(Self {
            secret,
            ttl_ms,
            owner: Owner::from_client(owner)?,
            opened,
            connection: 0,
            is_revoked: false,
            revoked_hold_count: 0,
            answers: Answers::new(Number(1)),
            handles: BTreeMap::new(),
            places: BTreeMap::new(),
        })
    }

    /// What hangs on the acquire or re-entry with this number; `None` if nothing does (any more).
    pub(crate) fn live(&self, number: Number) -> Option<Live> {
        let place = || self.places.get(&number).cloned().map(Live::Waits);
        self.handles.get(&number).cloned().map(Live::Holds).or_else(place)
    }

    /// Handles and places: what its end has to walk.
    pub(crate) fn item_count(&self) -> usize {
        self.handles.len() + self.places.len()
    }

    /// Whether it may take one more lock, place or handle.
    ///
    /// # Errors
    ///
    /// [`Refusal::Revoked`], and [`Refusal::LimitReached`] with [`Limit::ItemsPerSession`].
    pub(crate) fn admit_item(&self) -> Result<(), Refusal> {
        if self.is_revoked {
            return Err(Refusal::Revoked);
        }
        if self.item_count() >= ITEMS_PER_SESSION_MAX {
            return Err(Refusal::limit(Limit::ItemsPerSession));
        }
        Ok(())
    }

    /// Whether the leader is to let its lease run out: it, or one of its holds, is revoked.
    pub(crate) fn is_to_lapse(&self) -> bool {
        self.is_revoked || self.revoked_hold_count > 0
    }

    /// Whether `secret` is this session's. Takes the same time wherever the two differ, so that
    /// guessing byte by byte doesn't pay.
    pub(crate) fn is_secret(&self, secret: &Secret) -> bool {
        let differing = self.secret.0.iter().zip(&secret.0).fold(0, |bits, (a, b)| bits | (a ^ b));
        differing == 0
    }
}

/// Whether a lease can be so long.
///
/// # Errors
///
/// [`Refusal::LimitReached`].
pub(crate) fn check_ttl(ttl_ms: u32) -> Result<(), Refusal> {
    match ttl_ms {
        ..TTL_MS_MIN => Err(Refusal::limit(Limit::TtlMin)),
        TTL_MS_MIN..=TTL_MS_MAX => Ok(()),
        _ => Err(Refusal::limit(Limit::TtlMax)),
    }
}

/// What an acquire or a re-entry is now.
pub(crate) enum Live {
    Holds(Handle),
    Waits(Place),
}

/// One handle on a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) lock: LockName,
    /// Names the hold among those of the lock.
    pub(crate) token: Token,
}

/// One place in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) lock: LockName,
    /// Names the place among those of the lock.
    pub(crate) ticket: Ticket,
}

/// Who a session's client says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Host name; empty if not said.
    pub host: String,
    /// Process id; 0 if not said.
    pub pid: u32,
    /// User name; empty if not said.
    pub user: String,
    /// Program or command line; empty if not said.
    pub program: String,
    /// What the session is for; empty if not said.
    pub purpose: String,
    /// Free labels, in the order given.
    pub labels: Vec<(String, String)>,
}

impl Owner {
    /// Takes over what a client says of itself.
    fn from_client(said: &OwnerRef<'_>) -> Result<Self, Refusal> {
        let fields = [said.host, said.user, said.program, said.purpose];
        if fields.iter().any(|field| field.len() > OWNER_FIELD_BYTES_MAX) {
            return Err(Refusal::limit(Limit::OwnerFieldBytes));
        }
        if said.labels.len() > LABELS_MAX {
            return Err(Refusal::limit(Limit::Labels));
        }
        let is_long = |text: &str| text.len() > LABEL_BYTES_MAX;
        if said.labels.iter().any(|(key, value)| is_long(key) || is_long(value)) {
            return Err(Refusal::limit(Limit::LabelBytes));
        }
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Ok(Self {
            host: said.host.to_owned(),
            pid: said.pid,
            user: said.user.to_owned(),
            program: said.program.to_owned(),
            purpose: said.purpose.to_owned(),
            labels: said.labels.iter().map(own).collect(),
        })
    }

    /// The same, borrowed.
    pub(crate) fn as_ref(&self) -> OwnerRef<'_> {
        OwnerRef {
            host: &self.host,
            pid: self.pid,
            user: &self.user,
            program: &self.program,
            purpose: &self.purpose,
            labels: self.labels.iter().map(|(key, value)| (&**key, &**value)).collect(),
        }
    }
}
