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
/// then.
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

/// Bytes of one read: what a connection's frames are drained with.
pub(crate) const READ_BYTES: usize = 64 << 10;

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
