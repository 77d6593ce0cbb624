//! What is no message, and is known to be none.

use bytes::{BufMut, BytesMut};
use lockkeeper_wire::jute::{
    ConnectRequest, ConnectResponse, FRAME_BYTES_MAX, Frames, Malformed, OpCode, Reply, Request,
    RequestHeader, Strings, Undecodable, WatcherEvent, decode_reply, decode_request,
    encode_request,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::hex;

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..300), op in any_op()) {
        read_as_everything(&bytes);
        // The same behind an operation that is known, so that they reach its decoder.
        let mut request = BytesMut::new();
        request.put_i32(1);
        request.put_i32(op.0);
        request.put_slice(&bytes);
        read_as_everything(&request);
    }
}

/// What reads them borrows from them, so there is nothing to allocate; `fuzz.rs` measures it.
fn read_as_everything(bytes: &[u8]) {
    let _ = ConnectRequest::decode(bytes);
    let _ = ConnectResponse::decode(bytes);
    let _ = decode_request(bytes);
    if let Ok((header, mut body)) = decode_reply(bytes) {
        for &op in OpCode::ALL {
            let _ = Reply::decode(op, &header, body);
        }
        let _ = body.read::<WatcherEvent<'_>>();
    }
}

fn any_op() -> impl Strategy<Value = OpCode> {
    (0..OpCode::ALL.len()).prop_map(|at| OpCode::ALL[at])
}

#[test]
fn a_length_that_is_none_is_known_before_its_bytes_arrive() {
    for (length, bytes_max) in [
        (-1, FRAME_BYTES_MAX),
        (i32::MIN, FRAME_BYTES_MAX),
        (i32::MAX, FRAME_BYTES_MAX),
        (0x10_0000, FRAME_BYTES_MAX),
        (11, 10),
    ] {
        let mut frames = Frames::new(bytes_max);
        frames.input().put_i32(length);
        let error = frames.next_frame().unwrap_err();
        assert_eq!((error.length, error.bytes_max), (length, bytes_max));
        assert!(frames.input().capacity() < 1_024, "room was made for a stranger's promise");
    }
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    frames.input().put_i32(0xf_ffff);
    assert_eq!(frames.next_frame(), Ok(None), "exactly the limit");
}

#[test]
fn frames_come_in_any_pieces() {
    let stream = hex("00000002 'ab' 00000000 00000001 'c' 0000");
    for piece in 1..stream.len() {
        let mut frames = Frames::new(10);
        let mut seen = Vec::new();
        for piece in stream.chunks(piece) {
            frames.input().put_slice(piece);
            while let Some(frame) = frames.next_frame().unwrap() {
                seen.push(frame);
            }
        }
        assert_eq!(seen, [&b"ab"[..], b"", b"c"], "in pieces of {piece}");
        assert_eq!(frames.input().len(), 2);
    }
}

#[test]
fn a_word_is_seen_and_stays() {
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    frames.input().put_slice(b"ruo");
    assert_eq!(frames.first_word(), None);
    frames.input().put_slice(b"k\n");
    assert_eq!(frames.first_word(), Some(*b"ruok"));
    assert_eq!(frames.next_frame().unwrap_err().length, 0x7275_6f6b, "it is no frame");
}

#[test]
fn a_header_or_credentials_that_cannot_be_read_close() {
    for text in ["", "00000001", "00000001 000000", "00000001 00000064", "00000001 00000066"] {
        let frame = hex(text);
        assert_eq!(decode_request(&frame), Err(Undecodable::Close(Malformed::Short)), "{text}");
    }
    let auth = hex("fffffffc 00000064 00000000 00000002 fffe 00000000");
    assert_eq!(decode_request(&auth), Err(Undecodable::Close(Malformed::Text)));
}

/// The answer to these is -5, so the header must have been understood.
#[test]
fn a_body_that_cannot_be_read_is_answered() {
    let bad = |op: i32, body: &str| {
        let mut frame = 9_i32.to_be_bytes().to_vec();
        frame.extend(op.to_be_bytes());
        frame.extend(hex(body));
        let header = RequestHeader { xid: 9, op: OpCode(op) };
        match decode_request(&frame) {
            Err(Undecodable::Body { header: of, why }) if of == header => why,
            other => panic!("{op} {body}: {other:?}"),
        }
    };
    let choice = |what, number| Malformed::Choice { what, number };
    assert_eq!(bad(4, ""), Malformed::Short);
    assert_eq!(bad(4, "00000005 '/a'"), Malformed::Short);
    assert_eq!(bad(4, "fffffffe '/a' 00"), Malformed::Length(-2));
    assert_eq!(bad(4, "7fffffff '/a' 00"), Malformed::Short);
    assert_eq!(bad(4, "00000002 c328 00"), Malformed::Text);
    assert_eq!(bad(18, "00000002 '/a' 00000006"), choice("the type of a watcher", 6));
    assert_eq!(bad(17, "00000002 '/a' 00000000"), choice("the type of a watcher", 0));
    assert_eq!(bad(106, "00000002 '/a' 00000002"), choice("the mode of a watch", 2));
    // A count of everything, and one element.
    assert_eq!(bad(1, "ffffffff ffffffff 7fffffff 00000001 ffffffff ffffffff"), Malformed::Short);
    assert_eq!(bad(21, "ffffffff ffffffff 00000000 00000005"), Malformed::Short);
}

#[test]
fn a_multi_with_one_bad_part_is_none() {
    let multi = |op: i32, parts: &str| {
        let mut frame = 9_i32.to_be_bytes().to_vec();
        frame.extend(op.to_be_bytes());
        frame.extend(hex(parts));
        match decode_request(&frame) {
            Err(Undecodable::Body { why, .. }) => Err(why),
            Err(other) => panic!("{other}"),
            Ok((_, request)) => match &request {
                Request::Multi(multi) => Ok(multi.iter().count()),
                Request::MultiRead(multi) => Ok(multi.iter().count()),
                other => panic!("{other:?}"),
            },
        }
    };
    let (delete, read) =
        ("00000002 00 ffffffff 00000002 '/a' ffffffff ", "00000004 00 ffffffff 00000002 '/a' 00 ");
    let create =
        |flags: &str| format!("00000001 00 ffffffff 00000002 '/a' 00000000 00000000 {flags} ");
    let end = "ffffffff 01 ffffffff";
    let part = |number| Malformed::Choice { what: "an operation of such a multi", number };
    assert_eq!(multi(14, &format!("{delete}{end}")), Ok(1));
    assert_eq!(multi(22, &format!("{read}{end}")), Ok(1));
    assert_eq!(multi(14, &format!("{delete}{read}{end}")), Err(part(4)), "reads among writes");
    assert_eq!(multi(22, &format!("{read}{delete}{end}")), Err(part(2)), "writes among reads");
    assert_eq!(multi(14, &format!("{delete}00000003 00 ffffffff {end}")), Err(part(3)));
    assert_eq!(multi(14, &format!("{delete}ffffffff 00 ffffffff {end}")), Err(part(-1)));
    assert_eq!(multi(14, delete), Err(Malformed::Short), "without an end");
    assert_eq!(multi(14, &format!("{}{end}", create("00000006"))), Ok(1));
    for (flags, number) in [("00000007", 7), ("ffffffff", -1)] {
        let expected = Malformed::Choice { what: "the flags of a create", number };
        assert_eq!(multi(14, &format!("{}{end}", create(flags))), Err(expected));
    }
    // Only `done` says where the end is, and what is behind it doesn't matter.
    assert_eq!(multi(14, &format!("{delete}00000002 01 00000000 'more'")), Ok(1));
}

#[test]
fn what_nobody_may_ask_for_keeps_its_number() {
    for op in [0, 10, 13, 20, 23, -1, -2, -10, -12, 99, 108, i32::MAX, i32::MIN] {
        for body in ["", "00000002 '/a' ffffffff"] {
            let mut frame = 9_i32.to_be_bytes().to_vec();
            frame.extend(op.to_be_bytes());
            frame.extend(hex(body));
            let header = RequestHeader { xid: 9, op: OpCode(op) };
            assert_eq!(decode_request(&frame), Ok((header, Request::Unimplemented(OpCode(op)))));
        }
    }
}

#[test]
fn what_follows_a_record_is_ignored() {
    let frame = hex("00000001 00000004 00000002 '/a' 01 'from a later version'");
    let (_, request) = decode_request(&frame).unwrap();
    assert!(matches!(request, Request::GetData(read) if read.path == Some("/a") && read.watch));
}

#[test]
fn a_negative_count_other_than_null_is_none() {
    let frame = hex("00000001 00000065 0000000000000000 fffffffe ffffffff 00000000");
    let (_, request) = decode_request(&frame).unwrap();
    let Request::SetWatches(watches) = &request else { panic!("{request:?}") };
    assert_eq!((watches.data.is_null(), watches.data.len()), (false, 0));
    assert!(watches.exist.is_null() && !watches.child.is_null());
}

#[test]
fn a_list_is_encoded_once() {
    let names: Strings<'static> = Strings::of([Some("a"), Some("b")]);
    let reply = Reply::Strings(names.shared());
    assert_eq!(reply, Reply::Strings(names.clone()));
    let mut out = BytesMut::new();
    encode_request(1, &Request::Ping, &mut out).unwrap();
    assert_eq!(out, hex("00000008 00000001 0000000b"));
}
