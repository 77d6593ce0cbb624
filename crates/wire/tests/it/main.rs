//! The languages as bytes: round trips, captured frames, and what strangers may send.

mod codegen;
mod native;
