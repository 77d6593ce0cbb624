//! The short form of fuzzing: streams and messages made of any bytes.

use std::path::Path;

use crate::{jute_fuzz, wire};

#[test]
fn streams_from_strangers() {
    let corpora = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"));
    wire::WIRE.check_short(corpora, 20_000);
}

#[test]
fn streams_from_strangers_that_speak_zookeepers_language() {
    let corpora = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"));
    jute_fuzz::JUTE.check_short(corpora, 20_000);
}
