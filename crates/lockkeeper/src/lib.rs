//! Locks that hold: the client library of Lockkeeper.
//!
//! Three statements take a lock, do work under it, and give it back. If the lock is lost meanwhile
//! (the network is cut, the machine was suspended, an operator took it), the work is dropped where
//! it stands, and the error says why.
//!
//! ```no_run
//! # async fn deploy(token: u64) {}
//! # async fn example() -> Result<(), lockkeeper::Error> {
//! use lockkeeper::Client;
//!
//! let client = Client::connect("lockkeeper://db1,db2,db3").await?;
//! let guard = client.lock("deploy/prod").acquire().await?;
//! guard.run(|lease| deploy(lease.token())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What holds, and what doesn't
//!
//! - **Exclusion.** A guard is lost *here* before the cluster may grant the lock to anybody else:
//!   its deadline counts from the sending of the last heartbeat that a majority has confirmed, on
//!   a clock that goes on during suspend, and ends a margin early (a fiftieth of the lease and
//!   10 ms).
//! - **Order.** Requests are served in the order in which they reached the cluster. Nobody
//!   overtakes.
//! - **Once.** A request whose answer was lost is asked again under the same number. It neither
//!   takes a lock twice nor frees a newer hold.
//! - **No trace.** An acquire that is dropped, at any point, leaves the queue; a guard that is
//!   dropped gives its lock back.
//!
//! Not promised: that a process which was paused past its deadline does nothing in its first moment
//! awake, or that a write which was under way doesn't arrive late. That is what the
//! [token](Lease::token) is for: it grows with every grant, so whatever is written to under the
//! lock can refuse a token smaller than the greatest it has seen.
//!
//! # Waiting
//!
//! ```no_run
//! # async fn example(client: lockkeeper::Client) -> Result<(), lockkeeper::Error> {
//! use std::time::Duration;
//! use lockkeeper::Error;
//!
//! let request = client
//!     .lock("deploy/prod")
//!     .purpose("release 8.2")
//!     .wait_at_most(Duration::from_secs(30))
//!     .on_wait(|queue| println!("place {} in line", queue.place));
//! match request.acquire().await {
//!     Ok(guard) => { guard.release().await?; }
//!     Err(Error::TimedOut { holder: Some(holder), .. }) => println!("held by {}", holder.owner),
//!     Err(error) if error.is_retryable() => println!("try again later: {error}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`LockRequest::shared`] is a read lock and [`LockRequest::permits`] a semaphore; they stand in
//! the same line. [`LockRequest::try_acquire`] doesn't wait.
//!
//! # Without `run`
//!
//! A guard can be held by hand. Then it is up to its holder to ask: [`Lease::check`] in loops (no
//! I/O), [`Lease::lost`] beside other futures, [`Lease::confirm`] before something that must not
//! happen twice.
//!
//! ```no_run
//! # async fn step() -> bool { false }
//! # async fn example(guard: lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
//! loop {
//!     tokio::select! {
//!         reason = guard.lost() => return Err(lockkeeper::Error::Lost(reason)),
//!         () = guard.revoked() => break, // an operator asks for it back: come to an end
//!         more = step() => if !more { break },
//!     }
//! }
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Sessions and leases
//!
//! All locks of a [`Client`] (and of its clones) hang on one *session*, which it opens at the first
//! `lock` and renews with a heartbeat every third of its *lease* ([`ClientBuilder::ttl`], by
//! default 10 s). If the connection breaks, the client goes to the next server and resumes; what
//! is held stays held. If no heartbeat is confirmed for a whole lease, the session is lost with all
//! that hangs on it, and the next `lock` opens another. In between a guard is
//! [suspended](State::Suspended): nobody else has the lock, but it won't be renewed unless a
//! server is reached soon.
//!
//! Choose the lease longer than the cluster takes to elect a new leader (0.4 s in one data centre,
//! some seconds across several), or a failover will lose the locks that a longer one would have
//! kept.
//!
//! **Invariant.** The client never guesses an unknown outcome, and never holds past its own
//! deadline.

mod admin;
mod client;
pub mod clock;
mod connection;
mod conversation;
pub mod embedded;
mod error;
mod guard;
mod lease;
mod lock;
#[cfg(feature = "mutations")]
pub mod mutation;
pub mod network;
mod requests;
mod session;
mod settings;
mod socket;
mod url;
pub mod views;

pub use admin::{Admin, Page, Watch};
pub use client::{Client, ClientBuilder, end_session};
pub use embedded::Starter;
pub use error::{Error, LossReason, Refused, RefusedCode};
pub use guard::{Guard, Lease, Released};
pub use lease::State;
pub use lock::LockRequest;
pub use session::SessionInfo;
pub use views::{Mode, Owner, QueueView, SessionId};
