//! Locks that hold: the client library of Lockkeeper.
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
