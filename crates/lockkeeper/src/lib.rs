//! lockkeeper.
