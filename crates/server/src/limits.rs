//! Every limit of the front ends, with its unit and its reason.

use std::time::Duration;

/// Bytes of answers that may wait for one client to read them. A client that falls this far behind
/// is cut off: it would rather reconnect than learn everything late.
pub(crate) const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Bytes of answers that may wait for all clients together to read them. One connection may hold
/// no more than is left of it, so that who holds most is cut off first.
pub(crate) const UNREAD_BYTES_MAX: usize = 256 << 20;

/// Bytes of answers that may always wait for one client, whatever others hold: hundreds of answers
/// and events, so that a client that reads keeps its session. A long list may cost it its place
/// then, or to a ZooKeeper client time.
pub(crate) const UNREAD_BYTES_FREE: usize = 16 << 10;

/// Bytes of waiting output beyond which a watch of that connection is ended. Well below
/// [`OUTPUT_BYTES_MAX`], so that a slow watch costs its client the watch and not the session.
pub(crate) const WATCH_BACKLOG_BYTES_MAX: usize = 1 << 20;

/// Bytes of waiting output beyond which the next chunk of a backup waits.
pub(crate) const BACKUP_BACKLOG_BYTES_MAX: usize = 512 << 10;

/// Bytes of one chunk of a backup.
pub(crate) const BACKUP_CHUNK_BYTES: usize = 256 << 10;

/// Requests of one connection that wait for the log. As many as two windows of a session.
pub(crate) const REQUESTS_WAITING_MAX: usize = 2 * lockkeeper_core::OPEN_REQUESTS_MAX as usize;

/// Questions and operators' requests of one connection that are being worked on: each is a task.
pub(crate) const QUESTIONS_MAX: usize = 64;

/// Watches of one connection: each costs a comparison for every event.
pub(crate) const WATCHES_MAX: usize = 64;

/// Holds and waiters that one answer about a lock lists, each, unless it is asked for more or less.
pub(crate) const LISTED_DEFAULT: usize = 100;

/// The most holds and waiters, each, that one answer about a lock lists.
pub(crate) const LISTED_MAX: usize = 1_000;

/// Locks or sessions in one page of a list, unless it is asked for more or less.
pub(crate) const PAGE_DEFAULT: usize = 1_000;

/// The most locks or sessions in one page of a list.
pub(crate) const PAGE_MAX: usize = 10_000;

/// Connections that the system has made and this server has not yet accepted. Thousands of clients
/// that lost another server come at one moment, and who finds no room is told nothing: it tries
/// again after a second. Linux cuts this to `net.core.somaxconn`, which is the same by default.
pub(crate) const NOT_ACCEPTED_MAX: u32 = 4_096;

/// Bytes of one read: what a connection's frames are drained with.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// Requests of one connection that are taken before others have their turn: a read may bring
/// thousands. So few that a turn is over in some ten microseconds: whoever asks little beside many
/// who flood waits for a turn of each.
pub(crate) const REQUESTS_OF_TURN_MAX: usize = 32;

/// How long a client has for its greeting, unless the configuration says otherwise.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a frame that has begun may take to come, or an HTTP request to come and be answered:
/// 64 KiB over the slowest line worth serving. Half a frame must not hold a place for ever, however
/// its bytes dribble in.
pub(crate) const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may carry neither session nor request, likewise.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The shortest interval of heartbeats: below it a node does little else.
pub(crate) const HEARTBEAT_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The longest election time-out: a request waits for up to five of them.
pub(crate) const ELECTION_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Simultaneous connections, likewise; fewer if the process may not have as many files.
pub(crate) const CONNECTIONS_MAX: usize = 20_000;

/// How long a client may take to read what one write sends it. Slower ones hold memory, and perhaps
/// the turn for a backup, that others wait for.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection that is being closed may take to read its last answers.
pub(crate) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a stop waits for leadership to be handed over.
pub(crate) const HANDOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// Classes of lock names that the metrics tell apart; the others are counted as one.
pub(crate) const CLASSES_MAX: usize = 32;

/// Requests of one ZooKeeper connection that are not answered: its socket isn't read meanwhile.
/// ZooKeeper's own limit, there for all connections of a server together.
pub(crate) const PIPELINE_MAX: usize = 1_000;

/// Bytes of those requests, and of the replies to those among them that are done and wait for their
/// turn: a client that doesn't read must not have the replies to a thousand multis kept for it.
pub(crate) const PIPELINE_BYTES_MAX: usize = 4 << 20;

/// Bytes of answers to pings and credentials that may wait to be read before nothing more is taken:
/// these stand in no line that could be full.
pub(crate) const ASIDE_BYTES_MAX: usize = 64 << 10;

/// Bytes of output beyond which the next reply to a ZooKeeper client is not made yet: it is told
/// what it asked for as fast as it reads.
pub(crate) const REPLIES_WAITING_BYTES: usize = 1 << 20;

/// Bytes of the reply to one multiRead, which may ask for the same megabyte again and again.
pub(crate) const REPLY_BYTES_MAX: usize = 16 << 20;

/// Requests of one connection that are answered before others get their turn.
pub(crate) const TURN_REQUESTS_MAX: usize = 128;

/// For how many of them a request counts that may have to walk through much of the tree.
pub(crate) const LONG_REQUEST: usize = 32;

/// Bytes of one frame of a ZooKeeper client, whatever the configuration says: with what is added
/// below it must be a command that the log takes.
pub(crate) const ZOOKEEPER_FRAME_BYTES_MAX: usize = 1 << 20;

/// Bytes of the credentials that one id is made of. With [`IDS_MAX`] such ids a frame is still a
/// command that the log takes.
pub(crate) const CREDENTIALS_BYTES_MAX: usize = 2 << 10;

/// Quotas' counts that one multi may make: each is a walk through all that the quota is about, and
/// none of a multi's is over before all are.
pub(crate) const COUNTS_OF_MULTI_MAX: usize = 16;

/// Bytes that the scheme `auth` may add to the lists of ACLs of one request.
pub(crate) const EXPANDED_BYTES_MAX: usize = 256 << 10;

/// Pings of one ZooKeeper connection without an answer; a client with more has lost its patience
/// long ago.
pub(crate) const PINGS_WAITING_MAX: u64 = 1_000;

/// Paths that one ZooKeeper connection may watch.
pub(crate) const WATCHED_PATHS_MAX: usize = 1_000_000;

/// Bytes of these paths: nothing need be there, so a path may be as long as a request.
pub(crate) const WATCHED_BYTES_MAX: usize = 128 << 20;

/// Ids that one ZooKeeper connection may prove: each goes into the log with each of its writes.
pub(crate) const IDS_MAX: usize = 64;

/// How long a request waits for room in the node's queue before its connection is closed.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// How often it is tried meanwhile.
pub(crate) const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Bytes of lists of children that are kept encoded.
pub(crate) const LISTINGS_BYTES_MAX: usize = 64 << 20;

/// Bytes of a kept list up to which it is mended when a child comes or goes, a walk through all of
/// it: eighty thousand waiters. A longer one is made anew for whoever asks next, so that no change
/// pays for it.
pub(crate) const LISTING_MENDED_BYTES_MAX: usize = 4 << 20;

/// Changes that a kept list is mended by between two that read it. To mend one costs a thousandth
/// of making it anew, so that who changes pays a fraction of what the next reader would.
pub(crate) const LISTING_UNREAD_CHANGES_MAX: usize = 128;

/// Children from which on a list is worth keeping.
pub(crate) const LISTING_CHILDREN_MIN: usize = 64;

/// Children of ZooKeeper locks that the journal keeps in order, all locks together. Who acquires a
/// lock beyond is not told.
pub(crate) const JOURNAL_CHILDREN_MAX: usize = 200_000;

/// Children of ZooKeeper locks that are looked at for one answer about them. Of a lock that more
/// share, the others are taken for waiters.
pub(crate) const LINE_STEPS_MAX: usize = 100_000;

/// Bytes of the path of a ZooKeeper lock that is shown, so that it fits into an answer.
pub(crate) const LINE_PATH_BYTES_MAX: usize = 4 << 10;

/// Bytes that are shown of the name of a ZooKeeper lock's child. The metrics tell nothing apart by
/// a longer one.
pub(crate) const LINE_NAME_BYTES_MAX: usize = 1 << 10;

/// How long a ZooKeeper client has for its first frame; ZooKeeper's own.
pub(crate) const ZOOKEEPER_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
