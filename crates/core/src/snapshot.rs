//! The state as bytes, and back. Also the format of backups.
//!
//! ```text
//! snapshot = magic (8 bytes) · version (1 byte) · record*
//! record   = length · one Record in postcard
//! length   = u16, little endian; if that is 65535, a u32 follows, and is it
//! ```
//!
//! The records come in a fixed order, so that equal states write equal bytes:
//!
//! ```text
//! Head · (Session · Connection? · Answer*)* · (Lock · (Hold · Handle*)* · Waiter*)* · Znode+ · End
//! ```
//!
//! What can be derived is not written: a session's handles and places are those of the holds and
//! waiters that name it, and its ephemeral znodes name it as their owner. A name is written once,
//! however many wait for it. Znodes come parents first, and number their children themselves.
//!
//! Version 1 knew neither the tree nor long records: there are no znodes in it, and the tree that
//! is read from it is that of a new cluster.
//!
//! Reading believes nothing. A record is at most 4 MiB, memory grows only with records that were
//! read, contradictions are errors, and the result has passed
//! [`StateMachine::check`]. Not here: a checksum. Whoever stores or sends a snapshot adds one; this
//! layer would notice most damage, but not a flipped bit in an owner's name.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::dedup::{Answer, Answers};
use crate::lock::{Hold, Lock, Ticket, Waiter};
#[cfg(feature = "mutations")]
use crate::mutation::{Mutation, mutated};
use crate::session::{Handle, Owner, Place, Session};
use crate::tree::{Kind, ZnodeRecord};
use crate::{
    ClusterId, LockName, Mode, Number, Revision, Secret, SessionId, Stamp, StateMachine, Token,
    Tree,
};

impl StateMachine {
    /// Writes the state: equal states write equal bytes, about 45 of them for a held lock
    /// with a short name.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_snapshot(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&[VERSION])?;
        let mut writer = RecordWriter { out, buffer: Vec::new() };
        writer.write(&Record::Head(Head {
            revision: self.revision,
            stamp: self.stamp,
            cluster: self.cluster,
            is_silent: self.is_silent,
        }))?;
        for (&id, session) in self.sessions.iter() {
            writer.write_session(id, session)?;
        }
        for (name, lock) in self.locks.iter() {
            writer.write_lock(name, lock)?;
        }
        for (path, node) in self.tree.iter() {
            writer.write(&Record::Znode(node.record(path)))?;
        }
        writer.write(&Record::End)?;
        writer.flush()
    }

    /// Reads a state written by [`StateMachine::write_snapshot`], and not a byte more.
    ///
    /// Reads record by record: give it a buffered `input`.
    ///
    /// # Errors
    ///
    /// `InvalidData`, with what is wrong, if the bytes are no snapshot of a known version or no
    /// state that can be; `UnexpectedEof` if they end early; and the errors of `input`.
    pub fn read_snapshot(input: &mut impl Read) -> io::Result<Self> {
        let mut opening = [0; MAGIC.len() + 1];
        input.read_exact(&mut opening)?;
        let [magic @ .., version] = &opening;
        if magic != MAGIC {
            return Err(invalid("these bytes are no snapshot of a lock state"));
        }
        if !(1..=VERSION).contains(version) {
            let known = format!("this program reads versions up to {VERSION}");
            return Err(invalid(format!("snapshot version {version}; {known}")));
        }
        let mut reader = Reader { has_tree: *version > 1, ..Reader::default() };
        let mut buffer = Vec::new();
        loop {
            let length = read_length(input)?;
            buffer.resize(length, 0);
            input.read_exact(&mut buffer)?;
            // One large record is no reason to keep its room for all that follow.
            buffer.shrink_to(WRITE_BYTES);
            let (record, rest) = postcard::take_from_bytes(&buffer)
                .map_err(|error| invalid(format!("a record can't be read: {error}")))?;
            if !rest.is_empty() {
                return Err(invalid("a record is longer than what is in it"));
            }
            if record == Record::End {
                return reader.finish().map_err(invalid);
            }
            reader.add(record).map_err(invalid)?;
        }
    }

    /// The state that a restore from backup starts with: a new cluster, no sessions, the revision
    /// far ahead, silent unless the clients are known to be stopped.
    ///
    /// Of the tree everything stays but the ephemeral znodes, which went with their sessions.
    ///
    /// The leap keeps tokens growing although the backup doesn't know those granted since it was
    /// taken: at 300,000 grants a second, that is forty days of them.
    #[must_use]
    pub fn restored(&self, cluster: ClusterId, silent: bool) -> Self {
        let revision = Revision(self.revision.0 + RESTORE_LEAP);
        Self {
            revision,
            stamp: self.stamp,
            cluster: Some(cluster),
            is_silent: silent,
            tree: self.tree.without_ephemerals(revision, self.stamp),
            ..Self::default()
        }
    }
}

/// One record. Variants and fields are fixed within a version.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Record<'a> {
    /// The first record.
    Head(Head),
    /// A session.
    Session(SessionRecord),
    /// An answer kept for the session before.
    Answer(Number, Answer),
    /// A lock, by its name.
    Lock(&'a str),
    /// A hold of the lock before, with its lowest handle.
    #[serde(borrow)]
    Hold(HoldRecord<'a>),
    /// A further handle on the hold before.
    Handle(Number),
    /// A place in the queue of the lock before.
    #[serde(borrow)]
    Waiter(WaiterRecord<'a>),
    /// The last record: the snapshot is whole.
    End,
    /// The newest connection of the session before, if it isn't 0.
    Connection(u64),
    /// A znode.
    #[serde(borrow)]
    Znode(ZnodeRecord<'a>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    revision: Revision,
    stamp: Stamp,
    cluster: Option<ClusterId>,
    is_silent: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct SessionRecord {
    id: SessionId,
    secret: Secret,
    ttl_ms: u32,
    owner: Owner,
    opened: Stamp,
    is_revoked: bool,
    floor: Number,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct HoldRecord<'a> {
    session: SessionId,
    number: Number,
    token: Token,
    mode: Mode,
    since: Stamp,
    purpose: &'a str,
    is_revoked: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct WaiterRecord<'a> {
    ticket: u64,
    session: SessionId,
    number: Number,
    mode: Mode,
    since: Stamp,
    purpose: &'a str,
}

/// Frames records, many to a write.
struct RecordWriter<'a, W> {
    out: &'a mut W,
    buffer: Vec<u8>,
}

impl<W: Write> RecordWriter<'_, W> {
    fn write_session(&mut self, id: SessionId, session: &Session) -> io::Result<()> {
        self.write(&Record::Session(SessionRecord {
            id,
            secret: session.secret,
            ttl_ms: session.ttl_ms,
            owner: session.owner.clone(),
            opened: session.opened,
            is_revoked: session.is_revoked,
            floor: session.answers.floor(),
        }))?;
        if session.connection != 0 {
            self.write(&Record::Connection(session.connection))?;
        }
        #[cfg(feature = "mutations")]
        if mutated(Mutation::LoseAnswersInSnapshot) {
            return Ok(());
        }
        for (number, answer) in session.answers.iter() {
            self.write(&Record::Answer(number, answer.clone()))?;
        }
        Ok(())
    }

    fn write_lock(&mut self, name: &str, lock: &Lock) -> io::Result<()> {
        self.write(&Record::Lock(name))?;
        for hold in lock.holds() {
            self.write(&Record::Hold(HoldRecord {
                session: hold.session,
                number: hold.number(),
                token: hold.token,
                mode: hold.mode,
                since: hold.since,
                purpose: hold.purpose(),
                is_revoked: hold.is_revoked,
            }))?;
            for number in hold.handles().skip(1) {
                self.write(&Record::Handle(number))?;
            }
        }
        for (Ticket(ticket), waiter) in lock.waiters() {
            let Waiter { session, number, mode, since, ref purpose } = *waiter;
            let place = WaiterRecord { ticket, session, number, mode, since, purpose };
            self.write(&Record::Waiter(place))?;
        }
        Ok(())
    }

    fn write(&mut self, record: &Record<'_>) -> io::Result<()> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 2]);
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = postcard::to_extend(record, buffer).map_err(io::Error::other)?;
        let length = self.buffer.len() - start - 2;
        match u16::try_from(length) {
            Ok(length) if length < LONG => {
                self.buffer[start..start + 2].copy_from_slice(&length.to_le_bytes());
            }
            _ => {
                let length = u32::try_from(length).expect("limits keep every record below 4 MiB");
                self.buffer[start..start + 2].copy_from_slice(&LONG.to_le_bytes());
                self.buffer.splice(start + 2..start + 2, length.to_le_bytes());
            }
        }
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Builds the state, record by record. Each error is a contradiction, in words.
#[derive(Default)]
struct Reader {
    state: StateMachine,
    has_head: bool,
    /// Of a version that has znodes.
    has_tree: bool,
    has_znodes: bool,
    /// The lock that the next holds and waiters belong to.
    lock: Option<(LockName, Lock)>,
    /// The hold that the next handles belong to.
    hold: Option<(SessionId, Token)>,
    /// The session that the next answers belong to.
    session: Option<SessionId>,
}

impl Reader {
    fn add(&mut self, record: Record<'_>) -> Result<(), String> {
        if self.has_head == matches!(record, Record::Head(_)) {
            return Err("the head is not the one first record".to_owned());
        }
        match record {
            Record::Head(head) => self.add_head(&head),
            Record::Session(session) => self.add_session(session),
            Record::Answer(number, answer) => self.add_answer(number, answer),
            Record::Lock(name) => self.add_lock(name),
            Record::Hold(hold) => self.add_hold(&hold),
            Record::Handle(number) => self.add_further_handle(number),
            Record::Waiter(waiter) => self.add_waiter(&waiter),
            Record::Connection(connection) => self.add_connection(connection),
            Record::Znode(node) => self.add_znode(&node),
            Record::End => Ok(()),
        }
    }

    fn add_head(&mut self, head: &Head) -> Result<(), String> {
        let Head { revision, stamp, cluster, is_silent } = *head;
        if revision.0 > REVISION_MAX {
            return Err(format!("revision {} is out of range", revision.0));
        }
        self.has_head = true;
        self.state = StateMachine { revision, stamp, cluster, is_silent, ..Default::default() };
        Ok(())
    }

    fn add_session(&mut self, record: SessionRecord) -> Result<(), String> {
        let SessionRecord { id, secret, ttl_ms, owner, opened, is_revoked, floor } = record;
        let session = Session::open(secret, ttl_ms, &owner.as_ref(), opened);
        let mut session = session.map_err(|refusal| format!("session {id}: {refusal:?}"))?;
        session.is_revoked = is_revoked;
        session.answers = Answers::new(floor);
        self.session = Some(id);
        if self.state.sessions.insert(id, session) {
            Ok(())
        } else {
            Err(format!("session {id} is there twice"))
        }
    }

    fn add_connection(&mut self, connection: u64) -> Result<(), String> {
        let session = self.session.ok_or("a connection belongs to no session")?;
        self.session_mut(session)?.connection = connection;
        Ok(())
    }

    fn add_answer(&mut self, number: Number, answer: Answer) -> Result<(), String> {
        let session = self.session.ok_or("an answer belongs to no session")?;
        let session = self.session_mut(session)?;
        session.answers.admit(number).map_err(|_| "an answer is outside the window")?;
        session.answers.keep(number, answer.asked, answer.reply);
        Ok(())
    }

    fn add_lock(&mut self, name: &str) -> Result<(), String> {
        self.end_lock()?;
        self.lock = Some((name.into(), Lock::default()));
        Ok(())
    }

    fn end_lock(&mut self) -> Result<(), String> {
        let Some((name, lock)) = self.lock.take() else { return Ok(()) };
        if self.state.locks.insert(name, lock) {
            Ok(())
        } else {
            Err("a lock is there twice".to_owned())
        }
    }

    fn add_hold(&mut self, record: &HoldRecord<'_>) -> Result<(), String> {
        let HoldRecord { session, number, token, mode, since, purpose, is_revoked } = *record;
        let (name, lock) = self.lock.as_mut().ok_or("a hold belongs to no lock")?;
        if !lock.admits(mode) || lock.holds().next_back().is_some_and(|last| last.token >= token) {
            return Err(format!("lock {name:?}: token {token} can't be held beside the others"));
        }
        let mut hold = Hold::new(session, number, token, mode, since).with_purpose(purpose.into());
        hold.is_revoked = is_revoked;
        lock.enter(hold);
        self.hold = Some((session, token));
        self.state.hold_count += 1;
        let name = name.clone();
        let client = self.session_mut(session)?;
        client.revoked_hold_count += usize::from(is_revoked);
        ensure_new(client.handles.insert(number, Handle { lock: name, token }).as_ref())
    }

    fn add_further_handle(&mut self, number: Number) -> Result<(), String> {
        let (session, token) = self.hold.ok_or("a handle belongs to no hold")?;
        let (name, lock) = self.lock.as_mut().ok_or("a handle belongs to no lock")?;
        lock.hold_mut(token).ok_or("a handle belongs to another lock's hold")?.add_handle(number);
        let name = name.clone();
        let handles = &mut self.session_mut(session)?.handles;
        ensure_new(handles.insert(number, Handle { lock: name, token }).as_ref())
    }

    fn add_waiter(&mut self, record: &WaiterRecord<'_>) -> Result<(), String> {
        let WaiterRecord { ticket, session, number, mode, since, purpose } = *record;
        let (name, lock) = self.lock.as_mut().ok_or("a waiter belongs to no lock")?;
        let ticket = Ticket(ticket);
        if lock.waiter(ticket).is_some() {
            return Err(format!("lock {name:?}: two waiters have one ticket"));
        }
        lock.queue(ticket, Waiter { session, number, mode, since, purpose: purpose.into() });
        self.state.waiter_count += 1;
        let place = Place { lock: name.clone(), ticket };
        ensure_new(self.session_mut(session)?.places.insert(number, place).as_ref())
    }

    fn add_znode(&mut self, record: &ZnodeRecord<'_>) -> Result<(), String> {
        if !std::mem::replace(&mut self.has_znodes, true) {
            self.state.tree = Tree::void();
        }
        if let Kind::Ephemeral(session) = record.kind {
            self.session_mut(session)?;
        }
        self.state.tree.add_record(record)
    }

    fn session_mut(&mut self, id: SessionId) -> Result<&mut Session, String> {
        let session = self.state.sessions.get_mut(&id);
        session.ok_or_else(|| format!("session {id} is named but not there"))
    }

    fn finish(mut self) -> Result<StateMachine, String> {
        if !self.has_head {
            return Err("there is no head".to_owned());
        }
        self.end_lock()?;
        if self.has_tree != self.has_znodes {
            return Err("the tree is missing, or of another version".to_owned());
        }
        self.state.check()?;
        Ok(self.state)
    }
}

fn read_length(input: &mut impl Read) -> io::Result<usize> {
    let mut short = [0; 2];
    input.read_exact(&mut short)?;
    let short = u16::from_le_bytes(short);
    if short < LONG {
        return Ok(short.into());
    }
    let mut long = [0; 4];
    input.read_exact(&mut long)?;
    let long = u32::from_le_bytes(long) as usize;
    if long > RECORD_BYTES_MAX {
        return Err(invalid("a record's length is out of range"));
    }
    Ok(long)
}

fn ensure_new<V>(old: Option<&V>) -> Result<(), String> {
    match old {
        None => Ok(()),
        Some(_) => Err("a session's number is used twice".to_owned()),
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

const MAGIC: &[u8; 8] = b"LKSTATE\n";

const VERSION: u8 = 2;

/// In place of a length: a longer one follows.
const LONG: u16 = u16::MAX;

/// Bytes of a record: a znode's path, data and access list have their limits, of 1 MiB each.
const RECORD_BYTES_MAX: usize = 4 << 20;

/// How far a restore moves the revision ahead.
const RESTORE_LEAP: u64 = 1 << 40;

/// A revision beyond this is damage: no cluster lives to see it, and counting on from it must not
/// overflow.
const REVISION_MAX: u64 = 1 << 62;

/// Bytes collected before they are written.
const WRITE_BYTES: usize = 64 * 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{A, B, busy_state};
    use crate::{
        AclRef, Command, EndReason, IdRef, NodeKind, Refusal, Reply, TreeError, TreeOp,
        ZNODE_ACL_BYTES_MAX, ZNODE_DATA_BYTES_MAX, ZNODE_PATH_BYTES_MAX,
    };

    #[test]
    fn what_is_read_writes_the_same_again() {
        for state in
            [StateMachine::default(), busy_state(), busy_state().restored(ClusterId(9), true)]
        {
            let bytes = written(&state);
            let read = StateMachine::read_snapshot(&mut &bytes[..]).unwrap();
            assert_eq!(written(&read), bytes);
            assert_eq!(read.counts(), state.counts());
            assert_eq!(read.session(A), state.session(A));
            assert_eq!(read.lock("printer", 9), state.lock("printer", 9));
        }
    }

    /// Path, data and access list at their limits make one record.
    #[test]
    fn the_largest_znode_is_written_and_read() {
        let mut state = busy_state();
        let path = format!("/{}", "p".repeat(ZNODE_PATH_BYTES_MAX - 1));
        let data = vec![b'd'; ZNODE_DATA_BYTES_MAX];
        let short = AclRef { perms: i32::MIN, id: IdRef { scheme: "", id: "" } };
        let acl = vec![short; ZNODE_ACL_BYTES_MAX / 16];
        let create = |acl: &[AclRef<'static>]| Command::Tree {
            session: A,
            connection: 0,
            ids: Vec::new(),
            enforce_quota: false,
            ops: vec![TreeOp::Create {
                path: &path,
                data: Some(&data),
                acl: acl.to_vec(),
                kind: NodeKind::Persistent,
                sequential: false,
            }],
        };
        let stamp = state.stamp();
        let reply = state.apply(stamp, &create(&[short].repeat(acl.len() + 1)), &mut Vec::new());
        let error = TreeError::InvalidAcl;
        assert_eq!(reply, Reply::Refused(Refusal::Tree { index: 0, error }));
        let reply = state.apply(stamp, &create(&acl), &mut Vec::new());
        assert!(matches!(reply, Reply::Tree(_)), "{reply:?}");
        let bytes = written(&state);
        let read = StateMachine::read_snapshot(&mut &bytes[..]).unwrap();
        assert_eq!(written(&read), bytes);
        assert_eq!(read.tree().node(&path).unwrap().data, Some(&data[..]));
        // What says to be longer still is not believed.
        let at = bytes.windows(2).position(|pair| pair == LONG.to_le_bytes()).unwrap();
        let mut longer = bytes[..at + 2].to_vec();
        longer.extend_from_slice(&(RECORD_BYTES_MAX as u32 + 1).to_le_bytes());
        let error = StateMachine::read_snapshot(&mut &longer[..]).unwrap_err();
        assert_eq!(error.to_string(), "a record's length is out of range");
    }

    /// The state of `busy_state` as the first version wrote it, but for the tree.
    #[test]
    fn version_1_is_read_with_the_tree_of_a_new_cluster() {
        let mut state = busy_state();
        state.tree = Tree::default();
        state.sessions.get_mut(&B).unwrap().connection = 0;
        let bytes = written(&state);
        let znodes = state.tree.iter().map(|(path, node)| {
            let record = Record::Znode(node.record(path));
            2 + postcard::to_extend(&record, Vec::new()).unwrap().len()
        });
        let mut first = bytes[..bytes.len() - 3 - znodes.sum::<usize>()].to_vec();
        first.extend_from_slice(&bytes[bytes.len() - 3..]);
        first[MAGIC.len()] = 1;
        let read = StateMachine::read_snapshot(&mut &first[..]).unwrap();
        assert_eq!(written(&read), bytes);
        first[MAGIC.len()] = 2;
        let error = StateMachine::read_snapshot(&mut &first[..]).unwrap_err();
        assert!(error.to_string().starts_with("the tree is missing"), "{error}");
    }

    #[test]
    fn reading_stops_at_the_end() {
        let mut bytes = written(&busy_state());
        bytes.extend(b"what follows");
        let mut input = &bytes[..];
        StateMachine::read_snapshot(&mut input).unwrap();
        assert_eq!(input, b"what follows");
    }

    #[test]
    fn a_cut_anywhere_is_an_error() {
        let bytes = written(&busy_state());
        for length in 0..bytes.len() {
            let error = StateMachine::read_snapshot(&mut &bytes[..length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {length}: {error}");
        }
    }

    /// A flipped bit may make another state that can be, but never a panic: not in reading, and
    /// not in what is done with the state.
    #[test]
    fn a_flipped_bit_never_panics() {
        let bytes = written(&busy_state());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(mut state) = StateMachine::read_snapshot(&mut &flipped[..]) else { continue };
            for session in [A, B] {
                let command = Command::EndSession { session, reason: EndReason::Closed };
                state.apply(Stamp(0), &command, &mut Vec::new());
                state.check().unwrap_or_else(|broken| panic!("bit {bit}: {broken}"));
            }
        }
    }

    #[test]
    fn foreign_bytes_are_named() {
        let mut bytes = written(&StateMachine::default());
        bytes[MAGIC.len()] = 3;
        let error = StateMachine::read_snapshot(&mut &bytes[..]).unwrap_err();
        assert_eq!(error.to_string(), "snapshot version 3; this program reads versions up to 2");
        let error = StateMachine::read_snapshot(&mut &b"<!doctype html>"[..]).unwrap_err();
        assert_eq!(error.to_string(), "these bytes are no snapshot of a lock state");
    }

    fn written(state: &StateMachine) -> Vec<u8> {
        let mut bytes = Vec::new();
        state.write_snapshot(&mut bytes).unwrap();
        bytes
    }
}
