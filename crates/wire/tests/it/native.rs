//! The native protocol's frames.
