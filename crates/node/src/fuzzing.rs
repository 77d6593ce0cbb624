//! The door through which `fuzz/` reaches this package's decoders, and the short form of its runs.
//!
//! Each target takes any bytes. Bytes behind a checksum are also given one that holds, because no
//! fuzzer finds a CRC by chance and a peer has no trouble making one.

use bytes::Bytes;
use lockkeeper_core::{ClusterId, Command, OwnerRef, Secret, SessionId, Stamp, StateMachine};
use openraft::raft::VoteRequest;

use crate::codec::{self, Appended, AppendedOnce, Ballot, Id, Meta, Transfer, VoteAsked, Voted};
use crate::entry::{self, BatchId};
use crate::log;
use crate::peer::frame::{self, Frames};
use crate::peer::handshake;
use crate::peer::message::{Call, CallAnswer, FromLeader, SnapshotAnswer, SnapshotHead, ToLeader};
use crate::raft::Types;
use crate::snapshot::{read_image, write_image};

/// What is fuzzed: as `Target` in `fuzz/src/harness.rs`.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each field is explained at its twin in fuzz/src/harness.rs")]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
    pub bytes_flat: usize,
    pub bytes_each: usize,
}

/// Frames as a socket brings them. The first byte says in pieces of which size.
pub const FRAMES: Target = Target {
    name: "frames",
    run: frames,
    seeds: frame_seeds,
    // One frame that was promised by somebody who is trusted.
    bytes_flat: frame::FRAME_BYTES_MAX + (64 << 10),
    bytes_each: 16,
};

/// Handshake, calls, appends, forwarding and entries: what is in a frame.
pub const MESSAGES: Target = Target {
    name: "messages",
    run: messages,
    seeds: message_seeds,
    // A state with next to nothing in it, and room for its entry.
    bytes_flat: 256 << 10,
    bytes_each: 512,
};

/// Snapshots as a file or a peer brings them.
pub const IMAGE: Target = Target {
    name: "image",
    run: image,
    seeds: image_seeds,
    // One block, and the shards of a state.
    bytes_flat: (1 << 20) + (768 << 10),
    bytes_each: 512,
};

/// The log's directory as a crash, a disk or a stranger may leave it.
pub const LOG: Target = Target {
    name: "log",
    run: log::fuzzing::recover,
    seeds: log::fuzzing::seeds,
    // What is read at once, twice: the log is opened again after it was repaired.
    bytes_flat: 4 << 20,
    bytes_each: 4 << 10,
};

// -------------------------------------------------------------------------------------- frames

fn frames(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let piece = usize::from(how) + 1;
    read_frames(Frames::of_a_stranger(), bytes, piece);
    let mut trusted = Frames::of_a_stranger();
    trusted.trust();
    read_frames(trusted, bytes, piece);
    // The same as one frame whose checksum holds.
    let mut sound = Vec::new();
    frame::put(&mut sound, |out| out.extend_from_slice(bytes));
    let mut trusted = Frames::of_a_stranger();
    trusted.trust();
    trusted.input.extend_from_slice(&sound);
    let payload = trusted.next().expect("a sound frame").expect("a whole frame");
    assert_eq!(payload, bytes);
}

fn read_frames(mut frames: Frames, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        frames.input.extend_from_slice(piece);
        loop {
            match frames.next() {
                Ok(Some(payload)) => drop(payload),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let mut sound = vec![7];
    for payload in [&b""[..], b"1", &[9; 100]] {
        frame::put(&mut sound, |out| out.extend_from_slice(payload));
    }
    let lengths = [u32::MAX, 0, 0x7fff_ffff, 4 << 20, (4 << 20) + 1];
    let lengths = lengths.map(|length| [&[0][..], &length.to_le_bytes(), &[0; 4]].concat());
    std::iter::once(sound).chain(lengths).collect()
}

// ------------------------------------------------------------------------------------ messages

/// Reads the bytes as each of the messages there are, and does with what was read what its
/// receiver does first.
fn messages(bytes: &[u8]) {
    let shared = Bytes::copy_from_slice(bytes);
    handshake::is_read(bytes);
    if let Some(request) = codec::decode_append(&shared) {
        let mut out = Vec::new();
        codec::encode_append(&request, &mut out);
        let again = codec::decode_append(&out.into()).expect("it was just encoded");
        assert_eq!(format!("{again:?}"), format!("{request:?}"));
    }
    if let Some(entry) = codec::decode_entry(&shared) {
        assert_eq!(codec::decode_entry(&codec::encode_entry(&entry)).as_ref(), Some(&entry));
        if let openraft::EntryPayload::Normal(batch) = &entry.payload {
            commands(&batch.0);
        }
    }
    commands(bytes);
    if let Ok(ToLeader::Batch { bytes, .. }) = postcard::from_bytes(bytes) {
        commands(bytes);
    }
    let _ = codec::decode::<FromLeader>(bytes);
    match codec::decode::<Call>(bytes) {
        Some(Call::Vote(asked) | Call::PreVote(asked)) => {
            let request = VoteRequest::<Types>::from(asked);
            assert_eq!(VoteRequest::from(VoteAsked::from(request.clone())), request);
        }
        Some(Call::TransferLeader(transfer)) => {
            let request = openraft::raft::TransferLeaderRequest::<Types>::from(transfer);
            let _ = Transfer::from(request);
        }
        None => {}
    }
    let _ = codec::decode::<CallAnswer>(bytes);
    let _ = codec::decode::<Appended>(bytes);
    let _ = codec::decode::<AppendedOnce>(bytes);
    let _ = codec::decode::<Voted>(bytes);
    let _ = codec::decode::<Ballot>(bytes);
    let _ = codec::decode::<Id>(bytes);
    let _ = codec::decode::<SnapshotAnswer>(bytes);
    if let Some(SnapshotHead { meta, .. }) = codec::decode(bytes) {
        let _ = meta.to_snapshot_meta();
    }
    if let Some(meta) = codec::decode::<Meta>(bytes)
        && let Some(raft_meta) = meta.to_snapshot_meta()
    {
        let again = Meta::from(&raft_meta).to_snapshot_meta();
        assert_eq!(again.as_ref(), Some(&raft_meta));
    }
}

/// Applies the commands of an entry, as every replica does.
fn commands(bytes: &[u8]) {
    let Some(view) = entry::decode(bytes) else { return };
    let mut state = StateMachine::default();
    let mut rest = view.commands;
    while let Some(decoded) = Command::decode(rest) {
        rest = decoded.rest;
        state.apply(view.stamp, &decoded.command, &mut Vec::new());
    }
    assert_eq!(state.check(), Ok(()));
}

fn message_seeds() -> Vec<Vec<u8>> {
    let owner = OwnerRef { labels: vec![("team", "blue")], ..OwnerRef::default() };
    let session = SessionId(9);
    let open = Command::OpenSession { session, secret: Secret([7; 16]), ttl_ms: 10_000, owner };
    let mut batch = entry::begin();
    open.encode(&mut batch);
    let batch = entry::seal(batch, BatchId { origin: 3, incarnation: 7, number: 11 });
    let batch = entry::stamp(batch, Stamp(42));
    let samples = codec::samples(&batch);
    let asks = ToLeader::Ask { id: 3, question: crate::peer::message::Question::ReadIndex };
    let living = ToLeader::Living { term: 1, number: 2, sessions: vec![session; 3] };
    let ours = [&asks, &living].map(codec::encode);
    samples.into_iter().chain(ours).chain([batch.to_vec()]).collect()
}

// -------------------------------------------------------------------------------------- images

/// The first byte: whether the rest is an image as it is, or the bytes of its blocks, the length of
/// each (u16) before it.
fn image(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let image = if how % 2 == 0 { bytes.to_vec() } else { with_checksums(bytes) };
    let Ok((meta, state)) = read_image(&mut &image[..]) else { return };
    assert_eq!(state.check(), Ok(()));
    assert!(meta.to_snapshot_meta().is_some());
    let mut again = Vec::new();
    write_image(&mut again, &meta, &state).expect("memory takes everything");
    let (meta_again, state_again) = read_image(&mut &again[..]).expect("just written");
    assert_eq!((meta_again, state_again.counts()), (meta, state.counts()));
}

fn with_checksums(mut blocks: &[u8]) -> Vec<u8> {
    let mut image = b"LKIMAGE\n\x01".to_vec();
    let mut check = 0;
    while let Some((length, rest)) = blocks.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (block, rest) = rest.split_at(length);
        check = crc32c::crc32c_append(check, block);
        image.extend_from_slice(&(length as u32).to_le_bytes());
        image.extend_from_slice(&check.to_le_bytes());
        image.extend_from_slice(block);
        blocks = rest;
    }
    image
}

fn image_seeds() -> Vec<Vec<u8>> {
    let mut state = StateMachine::default();
    let owner = OwnerRef::default();
    let session = SessionId(9);
    let open = Command::OpenSession { session, secret: Secret([7; 16]), ttl_ms: 10_000, owner };
    for command in [Command::FoundCluster { cluster: ClusterId(7) }, open] {
        state.apply(Stamp(1), &command, &mut Vec::new());
    }
    let mut whole = vec![0];
    write_image(&mut whole, &Meta::default(), &state).expect("memory takes everything");
    let mut written = Vec::new();
    state.write_snapshot(&mut written).expect("memory takes everything");
    let mut blocks = vec![1];
    for block in [&codec::encode(&Meta::default())[..], &written, &[]] {
        blocks.extend_from_slice(&(block.len() as u16).to_le_bytes());
        blocks.extend_from_slice(block);
    }
    vec![whole, blocks]
}

#[cfg(test)]
#[path = "../../../fuzz/src/harness.rs"]
#[expect(unreachable_pub, reason = "`fuzz/` exports it")]
mod harness;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn check(target: Target, rounds: usize) {
        let Target { name, run, seeds, bytes_flat, bytes_each } = target;
        let target = harness::Target { name, run, seeds, bytes_flat, bytes_each };
        let corpora = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
        target.check_short(Path::new(corpora), rounds);
    }

    #[test]
    fn frames_from_strangers() {
        check(FRAMES, 20_000);
    }

    #[test]
    fn messages_from_strangers() {
        check(MESSAGES, 10_000);
    }

    #[test]
    fn images_from_strangers() {
        check(IMAGE, 5_000);
    }

    #[test]
    fn logs_from_strangers() {
        check(LOG, 5_000);
    }
}
