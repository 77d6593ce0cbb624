//! The log on disk: a segmented write-ahead log of our own.
