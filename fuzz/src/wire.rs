//! The native protocol, both directions: a stream in pieces, and bare messages.

use std::fmt::Debug;

use bytes::{BufMut, BytesMut};
use lockkeeper_wire::native::{
    Acquire, Frames, HeldItem, Label, Mode, OpenSession, Owner, Permits, REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX, Request, Response, SessionState, encode, greet, mode, request, response,
    take_greeting,
};
use prost::Message;

use crate::harness::Target;

/// Greeting and frames, as a socket brings them. The first byte says in pieces of which size.
pub const WIRE: Target = Target {
    name: "wire",
    run: stream,
    seeds,
    bytes_flat: 16 << 10,
    // An empty element of a list is two bytes on the wire, and some hundred in memory.
    bytes_each: 512,
};

fn stream(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else { return };
    let piece = usize::from(piece) + 1;
    let mut greeting = BytesMut::new();
    for piece in bytes.chunks(piece) {
        greeting.put_slice(piece);
        if !matches!(take_greeting(&mut greeting), Ok(None)) {
            break;
        }
    }
    read(Frames::of_requests(BytesMut::new()), bytes, piece);
    read(Frames::of_responses(BytesMut::new()), bytes, piece);
    same_again(&Request::decode(bytes));
    same_again(&Response::decode(bytes));
}

fn read<M: Message + Default + PartialEq + Debug>(
    mut frames: Frames<M>,
    bytes: &[u8],
    piece: usize,
) {
    for piece in bytes.chunks(piece) {
        frames.input().put_slice(piece);
        loop {
            match frames.next_message() {
                Ok(Some(message)) => same_again(&Ok(message)),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// What was read is written, and read again the same.
fn same_again<M: Message + Default + PartialEq + Debug>(message: &Result<M, prost::DecodeError>) {
    if let Ok(message) = message {
        let again = M::decode(&message.encode_to_vec()[..]);
        assert_eq!(again.as_ref(), Ok(message));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let label = Label { key: "team".to_owned(), value: "blue".to_owned() };
    let owner = Owner { host: "alpha".to_owned(), pid: 7, labels: vec![label], ..Owner::default() };
    let open = OpenSession { session: 9, secret: vec![7; 16], ttl_ms: 10_000, owner: Some(owner) };
    let kind = Some(mode::Kind::Permits(Permits { take: 2, of: 3 }));
    let mode = Some(Mode { kind });
    let acquire = Acquire { lock: "a/b".to_owned(), mode, wait: true, ..Acquire::default() };
    let request = |body| Request { id: 3, floor: 1, body: Some(body) };
    let requests =
        [request(request::Body::OpenSession(open)), request(request::Body::Acquire(acquire))];
    let held = HeldItem { lock: "a/b".to_owned(), token: 5, ..HeldItem::default() };
    let state = SessionState { session: 9, holds: vec![held], ..SessionState::default() };
    let state = Response { id: 3, body: Some(response::Body::SessionState(state)) };

    let mut greeting = BytesMut::from(&[0][..]);
    greet(&mut greeting);
    let mut asked = BytesMut::from(&[5][..]);
    for request in &requests {
        encode(request, REQUEST_BYTES_MAX, &mut asked).expect("it is short");
    }
    let mut answered = BytesMut::from(&[200][..]);
    encode(&state, RESPONSE_BYTES_MAX, &mut answered).expect("it is short");
    let bare = [&[0][..], &requests[0].encode_to_vec()].concat();
    // Case LI-1: lengths of -1, 0, 2^31 - 1, and nothing behind them.
    let lengths =
        [u32::MAX, 0, 0x7fff_ffff].map(|length| [&[0][..], &length.to_be_bytes()].concat());
    let mut seeds = vec![greeting.to_vec(), asked.to_vec(), answered.to_vec(), bare];
    seeds.extend(lengths);
    seeds
}
