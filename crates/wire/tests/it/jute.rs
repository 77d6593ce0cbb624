//! ZooKeeper's protocol: bytes as the reference has them, round trips, and what strangers send.

mod bytes_of_records;
mod strangers;
mod survive;

use bytes::BytesMut;
use lockkeeper_wire::jute::Record;

/// The bytes that are written so: two hexadecimal digits each, with spaces wherever they help, and
/// text in apostrophes as itself.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, piece) in text.split('\'').enumerate() {
        if at % 2 == 1 {
            bytes.extend(piece.as_bytes());
            continue;
        }
        let digits: Vec<u8> = piece.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        assert!(digits.len().is_multiple_of(2), "half a byte in {piece}");
        bytes.extend(
            digits
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()),
        );
    }
    bytes
}

fn written<'a>(record: &impl Record<'a>) -> Vec<u8> {
    let mut out = BytesMut::new();
    record.write(&mut out);
    out.to_vec()
}
