//! The bytes of a segment: its header, and the records behind it. `docs/log-format.md` draws them.
//!
//! This file turns bytes into [`Header`]s and back and does nothing else: no I/O, no allocation by
//! a length that it has read. Bytes that are not exactly what [`encode`] makes are `None`.

use crc32c::crc32c;

/// The first byte of a segment.
pub(super) const VERSION: u8 = 1;

/// Bytes of a segment before its first record: a sector of its own, so that no later write of a
/// record touches it.
pub(super) const SEGMENT_HEADER_BYTES: u64 = 512;

/// Bytes of a record before its body.
pub(super) const RECORD_HEADER_BYTES: usize = 40;

/// The longest body, in bytes. A batch of commands has 64 KiB; the rest is room for one oversized
/// membership or marker. What claims to be longer was not written by us.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;

/// Records begin at multiples of this, which is what makes looking for them behind damage cheap.
pub(super) const ALIGNMENT: usize = 8;

const MAGIC: [u8; 7] = *b"lk-log\n";

/// What a segment says of itself, in its first sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Its place in the log; also its file's name.
    pub number: u64,
    /// What its records repeat. Files are used again, and records of an earlier use have another.
    pub epoch: u64,
    /// How long the file was made before its first use. A shorter one has lost something.
    pub bytes: u64,
}

impl SegmentHeader {
    /// Its sector.
    pub(super) fn encode(self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut sector = [0; SEGMENT_HEADER_BYTES as usize];
        sector[0] = VERSION;
        sector[1..8].copy_from_slice(&MAGIC);
        sector[8..16].copy_from_slice(&self.number.to_le_bytes());
        sector[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        sector[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        let checksum = crc32c(&sector[..508]);
        sector[508..].copy_from_slice(&checksum.to_le_bytes());
        sector
    }

    /// Reads a sector; the error says what is wrong with it.
    pub(super) fn decode(sector: &[u8; SEGMENT_HEADER_BYTES as usize]) -> Result<Self, String> {
        if sector[0] != VERSION {
            return Err(format!(
                "its first byte says format version {}, and this program reads version {VERSION}",
                sector[0]
            ));
        }
        if crc32c(&sector[..508]) != u32_at(sector, 508) || sector[1..8] != MAGIC {
            return Err("the checksum of the segment's header does not match".to_owned());
        }
        Ok(Self { number: u64_at(sector, 8), epoch: u64_at(sector, 16), bytes: u64_at(sector, 24) })
    }
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An entry of the replicated log.
    Entry,
    /// The vote, in the adapter's encoding; the newest one counts.
    Vote,
    /// How far the log is known to be committed: `index`, and the adapter's encoding of it.
    Committed,
    /// Entries from `index` on are void.
    Truncate,
    /// Entries up to and with `index` are given up, being in a snapshot.
    Purge,
    /// Nothing. The log was closed in good order, and this vouches for the batch before it.
    Closed,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Entry,
            2 => Self::Vote,
            3 => Self::Committed,
            4 => Self::Truncate,
            5 => Self::Purge,
            6 => Self::Closed,
            _ => return None,
        })
    }

    fn to_byte(self) -> u8 {
        match self {
            Self::Entry => 1,
            Self::Vote => 2,
            Self::Committed => 3,
            Self::Truncate => 4,
            Self::Purge => 5,
            Self::Closed => 6,
        }
    }
}

/// A record without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// What the record is about.
    pub kind: Kind,
    /// The entry's index, or the one that the kind speaks of; 0 if it speaks of none.
    pub index: u64,
    /// The epoch of its segment.
    pub epoch: u64,
    /// The write that it came with: one more for each group of records made durable together.
    pub batch: u64,
    /// Whether it is the last of its batch, which counts whole or not at all.
    pub ends_batch: bool,
    /// Bytes of its body, without padding. At most [`BODY_BYTES_MAX`].
    pub body_bytes: u32,
    body_checksum: u32,
}

impl Header {
    /// Reads a header; `None` unless every bit of it is as it was written.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        if crc32c(&bytes[4..]) != u32_at(bytes, 0) {
            return None;
        }
        let header = Self {
            kind: Kind::from_byte(bytes[36])?,
            index: u64_at(bytes, 24),
            epoch: u64_at(bytes, 8),
            batch: u64_at(bytes, 16),
            ends_batch: match bytes[37] {
                0 => false,
                1 => true,
                _ => return None,
            },
            body_bytes: u32_at(bytes, 4),
            body_checksum: u32_at(bytes, 32),
        };
        (header.body_bytes as usize <= BODY_BYTES_MAX).then_some(header)
    }

    /// Whether the bytes at `bytes` may begin a record of this epoch: cheap, and wrong only
    /// in one direction.
    pub(super) fn may_begin(bytes: &[u8], epoch: u64) -> bool {
        bytes.len() >= RECORD_HEADER_BYTES && u64_at(bytes, 8) == epoch
    }

    /// Bytes of the whole record: header, body and padding.
    pub(super) fn record_bytes(&self) -> usize {
        record_bytes(self.body_bytes as usize)
    }

    /// Whether `padded` (body and padding) is what was written.
    pub(super) fn owns(&self, padded: &[u8]) -> bool {
        padded.len() == self.record_bytes() - RECORD_HEADER_BYTES
            && crc32c(padded) == self.body_checksum
    }
}

/// Bytes of a record whose body has `body_bytes`.
pub(super) fn record_bytes(body_bytes: usize) -> usize {
    RECORD_HEADER_BYTES + body_bytes.next_multiple_of(ALIGNMENT)
}

/// Appends a record to `buffer`. The last of a batch is marked later, by [`end_batch`].
pub(super) fn encode(
    buffer: &mut Vec<u8>,
    (kind, index): (Kind, u64),
    (epoch, batch): (u64, u64),
    body: &[u8],
) {
    debug_assert!(body.len() <= BODY_BYTES_MAX, "checked where the body came in");
    let start = buffer.len();
    let end = start + record_bytes(body.len());
    buffer.resize(start + RECORD_HEADER_BYTES, 0);
    buffer.extend_from_slice(body);
    buffer.resize(end, 0);
    let (header, padded) = buffer[start..].split_at_mut(RECORD_HEADER_BYTES);
    header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&epoch.to_le_bytes());
    header[16..24].copy_from_slice(&batch.to_le_bytes());
    header[24..32].copy_from_slice(&index.to_le_bytes());
    header[32..36].copy_from_slice(&crc32c(padded).to_le_bytes());
    header[36] = kind.to_byte();
    seal(header);
}

/// Marks the record that begins at `record[0]` as the last of its batch.
pub(super) fn end_batch(record: &mut [u8]) {
    record[37] = 1;
    seal(&mut record[..RECORD_HEADER_BYTES]);
}

fn seal(header: &mut [u8]) {
    let checksum = crc32c(&header[4..]);
    header[..4].copy_from_slice(&checksum.to_le_bytes());
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What version 1 looks like, for ever: a change to these bytes is a new version.
    #[test]
    fn the_bytes_of_version_1() {
        let mut buffer = Vec::new();
        encode(&mut buffer, (Kind::Entry, 7), (0x0102_0304_0000_0005, 9), b"lock!");
        end_batch(&mut buffer);
        let hex: String = buffer.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "941e096a",         // checksum of the header
            "05000000",         // bytes of the body
            "0500000004030201", // epoch
            "0900000000000000", // batch
            "0700000000000000", // index
            "980fabf8",         // checksum of body and padding
            "01",               // kind: an entry
            "01",               // the last of its batch
            "0000",             // nothing
            "6c6f636b21",       // body
            "000000",           // padding
        ];
        assert_eq!(hex, expected.concat());

        let header = SegmentHeader { number: 3, epoch: 5, bytes: 4_096 }.encode();
        let hex: String = header[..32].iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "016c6b2d6c6f670a030000000000000005000000000000000010000000000000";
        assert_eq!(hex, expected);
        assert!(header[32..508].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        for kind in [Kind::Entry, Kind::Vote, Kind::Committed, Kind::Truncate, Kind::Purge] {
            for body in [&b""[..], b"1", b"12345678", &[0xff; 100]] {
                let mut record = Vec::new();
                encode(&mut record, (kind, u64::MAX), (1, 2), body);
                let header = Header::decode(&record).expect("just written");
                assert_eq!((header.kind, header.index, header.batch), (kind, u64::MAX, 2));
                assert!(header.owns(&record[RECORD_HEADER_BYTES..]) && !header.ends_batch);
                assert_eq!(header.record_bytes(), record.len());
                for short in 0..RECORD_HEADER_BYTES {
                    assert_eq!(Header::decode(&record[..short]), None);
                }
            }
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_no_header_even_with_its_checksum() {
        let mut record = Vec::new();
        encode(&mut record, (Kind::Entry, 1), (1, 1), b"x");
        record[4..8].copy_from_slice(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
        seal(&mut record[..RECORD_HEADER_BYTES]);
        assert_eq!(Header::decode(&record), None);
    }
}
