//! What an operator asks and does.
//!
//! Answers about locks and sessions are linearizable: they show everything that was done before
//! the question was asked. They cost a round trip, and one among the servers.

use std::fmt;
use std::sync::Arc;

use lockkeeper_wire::native::{self, request, response};

use crate::conversation::{Conversation, Conversations, Kind};
use crate::error::{Error, RefusedCode};
use crate::settings::Settings;
use crate::views::{Cluster, Lock, LockEvent, Session, SessionId};

/// Questions and requests of an operator, made with [`Client::admin`](crate::Client::admin).
///
/// Questions are asked again, at every endpoint, for `connect_timeout`. Requests that change
/// something fail with [`Error::Unknown`] if their answer is lost; look before repeating them.
/// Every call may fail with [`Error::Unreachable`], [`Error::NoQuorum`] or [`Error::Unavailable`].
#[derive(Clone, Copy)]
pub struct Admin<'a> {
    settings: &'a Arc<Settings>,
    conversations: &'a Conversations,
}

/// Part of a list that is too long for one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// In order.
    pub items: Vec<T>,
    /// There is more behind the last one: ask again with it as `after`.
    pub more: bool,
}

/// The transitions of locks whose name starts with a prefix, from [`Admin::watch`].
pub struct Watch {
    conversation: Conversation,
}

impl<'a> Admin<'a> {
    pub(crate) const fn new(settings: &'a Arc<Settings>, conversations: &'a Conversations) -> Self {
        Self { settings, conversations }
    }

    /// One lock, with at most `list_max` of its holds and of its waiters (0: 100; at most 1,000);
    /// `None` if nobody holds it or waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for a name that is none.
    pub async fn get_lock(&self, name: &str, list_max: u32) -> Result<Option<Lock>, Error> {
        let lock = name.to_owned();
        let question = request::Body::GetLock(native::GetLock { lock, list_max });
        match found(self.ask(question, Kind::Repeatable).await)? {
            None => Ok(None),
            Some(response::Body::Lock(lock)) => {
                let is_in_use = lock.hold_count > 0 || lock.waiter_count > 0;
                Ok(is_in_use.then(|| lock.into()))
            }
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// Locks in use whose name starts with `prefix`, by name, behind the name `after`; at most
    /// `count_max` (0: 1,000; at most 10,000).
    ///
    /// # Errors
    ///
    /// Those of every call.
    pub async fn list_locks(
        &self,
        prefix: &str,
        after: Option<&str>,
        count_max: u32,
    ) -> Result<Page<Lock>, Error> {
        let (prefix, after) = (prefix.to_owned(), after.unwrap_or_default().to_owned());
        let question = native::ListLocks { prefix, after, count_max };
        match self.ask(request::Body::ListLocks(question), Kind::Repeatable).await? {
            response::Body::Locks(locks) => Ok(Page {
                items: locks.locks.into_iter().map(Into::into).collect(),
                more: locks.more,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// One live session with what it holds and waits for; `None` if it has ended.
    ///
    /// # Errors
    ///
    /// Those of every call.
    pub async fn get_session(&self, id: SessionId) -> Result<Option<Session>, Error> {
        let question = request::Body::GetSession(native::GetSession { session: id.0 });
        match found(self.ask(question, Kind::Repeatable).await)? {
            None => Ok(None),
            Some(response::Body::Session(session)) => Ok(Some(session.into())),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// Live sessions by id, behind `after`, without what they hold; at most `count_max` (0: as
    /// many as the server likes).
    ///
    /// # Errors
    ///
    /// Those of every call.
    pub async fn list_sessions(
        &self,
        after: Option<SessionId>,
        count_max: u32,
    ) -> Result<Page<Session>, Error> {
        let after = after.map_or(0, |id| id.0);
        let question = request::Body::ListSessions(native::ListSessions { after, count_max });
        match self.ask(question, Kind::Repeatable).await? {
            response::Body::Sessions(sessions) => Ok(Page {
                items: sessions.sessions.into_iter().map(Into::into).collect(),
                more: sessions.more,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// The cluster, as the server that answers sees it.
    ///
    /// # Errors
    ///
    /// Those of every call.
    pub async fn cluster_status(&self) -> Result<Cluster, Error> {
        let question = request::Body::ClusterStatus(native::ClusterStatus {});
        match self.ask(question, Kind::Repeatable).await? {
            response::Body::Cluster(cluster) => Ok(cluster.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Every transition of the locks whose name starts with `prefix`, from now on.
    ///
    /// # Errors
    ///
    /// Those of every call.
    pub async fn watch(&self, prefix: &str) -> Result<Watch, Error> {
        let question = request::Body::Watch(native::Watch { prefix: prefix.to_owned() });
        let asked = self.conversations.ask(self.settings, question, Kind::Repeatable).await;
        match asked? {
            (response::Body::Done(_), conversation) => Ok(Watch { conversation }),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Asks the holder to give up `lock`, if its hold has the token `if_token`. It passes on when
    /// the holder releases it, or a full lease after this.
    ///
    /// With `now` it passes on at once, and exclusion isn't guaranteed for up to the holder's
    /// lease: it may not know yet.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`RefusedCode::StaleToken`] if that hold is gone;
    /// [`Error::Unknown`].
    pub async fn revoke(&self, lock: &str, if_token: u64, now: bool) -> Result<(), Error> {
        let lock = lock.to_owned();
        self.change(request::Body::Revoke(native::Revoke { lock, if_token, now })).await
    }

    /// Asks a session to end, or with `now` ends it at once, as [`Admin::revoke`] does for a lock.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`RefusedCode::UnknownSession`]; [`Error::Unknown`].
    pub async fn revoke_session(&self, id: SessionId, now: bool) -> Result<(), Error> {
        let session = id.0;
        self.change(request::Body::RevokeSession(native::RevokeSession { session, now })).await
    }

    /// Adds a server that was started to join; returns when it has caught up and votes.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`RefusedCode::Membership`]; [`Error::Unknown`].
    pub async fn add_member(&self, node: u64, peer_address: &str) -> Result<(), Error> {
        self.add(node, peer_address, false).await
    }

    /// Adds such a server as one that follows without a vote; returns when it has caught up.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`RefusedCode::Membership`]; [`Error::Unknown`].
    pub async fn add_learner(&self, node: u64, peer_address: &str) -> Result<(), Error> {
        self.add(node, peer_address, true).await
    }

    async fn add(&self, node: u64, peer_address: &str, learner: bool) -> Result<(), Error> {
        let peer_address = peer_address.to_owned();
        let add = native::AddMember { node, peer_address, learner };
        self.change(request::Body::AddMember(add)).await
    }

    /// Removes a server. A leader hands over first.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`RefusedCode::Membership`]; [`Error::Unknown`].
    pub async fn remove_member(&self, node: u64) -> Result<(), Error> {
        self.change(request::Body::RemoveMember(native::RemoveMember { node })).await
    }

    /// Hands leadership to `to`, or to the best server for it.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`RefusedCode::Membership`]; [`Error::Unknown`].
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<(), Error> {
        let to = to.unwrap_or(0);
        let body = request::Body::TransferLeadership(native::TransferLeadership { to });
        self.change(body).await
    }

    /// A backup of one moment, as the bytes of a file for `cluster restore`. All of it is in
    /// memory: about as much as the servers use for the same locks.
    ///
    /// # Errors
    ///
    /// Those of every call.
    pub async fn backup(&self) -> Result<Vec<u8>, Error> {
        let question = request::Body::TakeBackup(native::TakeBackup {});
        let asked = self.conversations.ask(self.settings, question, Kind::Repeatable).await;
        let (mut answer, mut conversation) = asked?;
        let mut backup = Vec::new();
        loop {
            match answer {
                response::Body::BackupChunk(chunk) => {
                    backup.extend_from_slice(&chunk.data);
                    if chunk.last {
                        self.conversations.keep(conversation);
                        return Ok(backup);
                    }
                }
                other => return Err(unexpected(&other)),
            }
            answer = conversation.receive().await?;
        }
    }

    pub(crate) async fn end_session(&self, id: SessionId, secret: [u8; 16]) -> Result<(), Error> {
        let (session, secret) = (id.0, secret.to_vec());
        let body = request::Body::EndSession(native::EndSession { session, secret });
        match self.ask(body, Kind::Repeatable).await {
            Ok(_) => Ok(()),
            // Asked twice, or its lease was over.
            Err(Error::Refused(no)) if no.code == RefusedCode::UnknownSession => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn change(&self, body: request::Body) -> Result<(), Error> {
        match self.ask(body, Kind::Change).await? {
            response::Body::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&self, body: request::Body, kind: Kind) -> Result<response::Body, Error> {
        let (answer, conversation) = self.conversations.ask(self.settings, body, kind).await?;
        self.conversations.keep(conversation);
        Ok(answer)
    }
}

impl Watch {
    /// The next transition. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// When the connection breaks or the server ends a watch that reads too slowly. What happened
    /// meanwhile isn't told by another watch: look at the locks again after starting it.
    pub async fn next(&mut self) -> Result<LockEvent, Error> {
        match self.conversation.receive().await? {
            response::Body::WatchEvent(event) => Ok(event.into()),
            response::Body::Unavailable(why) => Err(Error::Unavailable { message: why.message }),
            other => Err(unexpected(&other)),
        }
    }
}

impl fmt::Debug for Admin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Admin({})", self.settings.url)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// "There is none" as an answer.
fn found(answer: Result<response::Body, Error>) -> Result<Option<response::Body>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Refused(no))
            if matches!(no.code, RefusedCode::NotFound | RefusedCode::UnknownSession) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn unexpected(answer: &response::Body) -> Error {
    Error::Unknown { message: format!("the server answered with something else: {answer:?}") }
}
