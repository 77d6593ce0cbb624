//! The native protocol's frames.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use bytes::{BufMut, BytesMut};
use lockkeeper_wire::native::{
    Acquire, FrameError, Frames, Granted, GrantedEvent, Heartbeat, HeartbeatConfirmed, Hold, Label,
    LostEvent, MAGIC, Mode, NotNative, OpenSession, Owner, Permits, Queued, REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX, Refused, Release, Released, Request, Response, SessionState, VERSION,
    encode, greet, mode, refused, request, response, take_greeting,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

proptest! {
    #[test]
    fn requests_survive_the_wire_however_they_are_chopped(
        requests in vec(any_request(), 0..20),
        chunk_bytes in 1_usize..300,
    ) {
        let mut stream = BytesMut::new();
        for request in &requests {
            encode(request, REQUEST_BYTES_MAX, &mut stream).unwrap();
        }
        let mut frames = Frames::of_requests(BytesMut::new());
        let mut received = Vec::new();
        for chunk in stream.chunks(chunk_bytes) {
            frames.input().put_slice(chunk);
            while let Some(request) = frames.next_message().unwrap() {
                received.push(request);
            }
        }
        prop_assert_eq!(received, requests);
        prop_assert!(frames.input().is_empty());
    }

    #[test]
    fn responses_survive_the_wire(responses in vec(any_response(), 0..20)) {
        let mut stream = BytesMut::new();
        for response in &responses {
            encode(response, RESPONSE_BYTES_MAX, &mut stream).unwrap();
        }
        let mut frames = Frames::of_responses(stream);
        for response in responses {
            prop_assert_eq!(frames.next_message().unwrap(), Some(response));
        }
        prop_assert_eq!(frames.next_message().unwrap(), None);
    }

    #[test]
    fn any_bytes_are_messages_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        drain(Frames::of_requests(BytesMut::from(&bytes[..])));
        // The same as one frame, so that they reach the protobuf decoder.
        let mut framed = BytesMut::new();
        framed.put_u32(u32::try_from(bytes.len()).unwrap());
        framed.put_slice(&bytes);
        drain(Frames::of_requests(framed));
    }
}

#[test]
fn a_frame_cut_anywhere_is_incomplete() {
    let whole = frame(&open_session());
    for cut in 0..whole.len() {
        let mut frames = Frames::of_requests(BytesMut::from(&whole[..cut]));
        assert_eq!(frames.next_message(), Ok(None), "cut at {cut}");
    }
}

#[test]
fn a_message_cut_anywhere_never_panics() {
    let whole = frame(&open_session());
    for cut in 4..whole.len() {
        let mut short = BytesMut::new();
        short.put_u32(u32::try_from(cut - 4).unwrap());
        short.put_slice(&whole[4..cut]);
        drain(Frames::of_requests(short));
    }
}

#[test]
fn a_hostile_length_is_refused_before_its_bytes_arrive() {
    for length in [REQUEST_BYTES_MAX + 1, 0x7fff_ffff, 0xffff_ffff] {
        let mut input = BytesMut::new();
        input.put_u32(u32::try_from(length).unwrap());
        let mut frames = Frames::of_requests(input);
        assert_eq!(
            frames.next_message(),
            Err(FrameError::TooLong { bytes: length, bytes_max: REQUEST_BYTES_MAX })
        );
        assert!(frames.input().capacity() < 1_024, "room was made for a stranger's promise");
    }
}

#[test]
fn a_hostile_length_inside_a_message_is_malformed() {
    // Field 10 (open_session), a promised length of 4 GiB - 1, and nothing.
    let mut input = BytesMut::new();
    input.put_u32(6);
    input.put_slice(&[0x52, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let error = Frames::of_requests(input).next_message().unwrap_err();
    assert!(matches!(error, FrameError::Malformed(_)), "{error}");
}

#[test]
fn text_that_is_not_utf8_is_malformed() {
    // Field 20 (acquire), in it field 1 (lock) with the bytes ff fe.
    let mut input = BytesMut::new();
    input.put_u32(7);
    input.put_slice(&[0xa2, 0x01, 0x04, 0x0a, 0x02, 0xff, 0xfe]);
    let error = Frames::of_requests(input).next_message().unwrap_err();
    assert!(matches!(error, FrameError::Malformed(_)), "{error}");
}

#[test]
fn a_message_beyond_the_limit_is_not_sent() {
    let mut out = BytesMut::from(&b"before"[..]);
    let long = acquire(1, &"x".repeat(REQUEST_BYTES_MAX));
    let error = encode(&long, REQUEST_BYTES_MAX, &mut out).unwrap_err();
    assert!(matches!(error, FrameError::TooLong { .. }), "{error}");
    assert_eq!(&out[..], b"before");
}

#[test]
fn the_greeting_is_known_byte_by_byte() {
    let mut greeting = BytesMut::new();
    greet(&mut greeting);
    assert_eq!(greeting[..8], MAGIC);
    let mut arrived = BytesMut::new();
    for (n, byte) in greeting.iter().enumerate() {
        assert_eq!(take_greeting(&mut arrived), Ok(None), "after {n} bytes");
        arrived.put_u8(*byte);
    }
    arrived.put_slice(b"more");
    assert_eq!(take_greeting(&mut arrived), Ok(Some(VERSION)));
    assert_eq!(&arrived[..], b"more");
}

#[test]
fn another_protocol_is_known_at_its_first_byte() {
    for other in [&b"G"[..], b"\x16\x03\x01", b"PRI * HTTP/2.0", b"\x89PNG"] {
        assert_eq!(take_greeting(&mut BytesMut::from(other)), Err(NotNative));
    }
}

/// `testdata/native.txt` holds one frame of each chief message as version 1 wrote it. It changes
/// only by additions: `UPDATE=1` rewrites it, and the diff is reviewed.
#[test]
fn captured_frames_are_still_what_we_write_and_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/native.txt");
    let written = captured_frames();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &written).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), written, "{}", path.display());
}

fn captured_frames() -> String {
    let mut text = "# Frames of the native protocol, version 1, in hexadecimal.\n".to_owned();
    let mut greeting = BytesMut::new();
    greet(&mut greeting);
    capture(&mut text, "greeting", &greeting);
    for (title, request) in example_requests() {
        let bytes = frame(&request);
        capture(&mut text, title, &bytes);
        assert_eq!(Frames::of_requests(bytes).next_message(), Ok(Some(request)));
    }
    for (title, response) in example_responses() {
        let mut bytes = BytesMut::new();
        encode(&response, RESPONSE_BYTES_MAX, &mut bytes).unwrap();
        capture(&mut text, title, &bytes);
        assert_eq!(Frames::of_responses(bytes).next_message(), Ok(Some(response)));
    }
    text
}

fn capture(text: &mut String, title: &str, bytes: &[u8]) {
    write!(text, "\n{title}\n").unwrap();
    for line in bytes.chunks(16) {
        let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "  {}", line.join(" ")).unwrap();
    }
}

/// The frames that `docs/protocol.md` explains byte by byte are the captured ones.
#[test]
fn the_documented_frames_are_the_captured_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/protocol.md")).unwrap();
    let captured = captured_frames();
    let mut examples = 0;
    for block in page.split("```hex ").skip(1) {
        let (title, rest) = block.split_once('\n').unwrap();
        let (lines, _) = rest.split_once("```").unwrap();
        let documented: String = lines.lines().map(before_comment).collect();
        let (_, frame) = captured.split_once(&format!("\n{title}\n")).expect(title);
        let frame: String = frame.lines().take_while(|line| line.starts_with("  ")).collect();
        assert_eq!(hex_digits(&documented), hex_digits(&frame), "{title}");
        examples += 1;
    }
    assert!(examples >= 3, "only {examples} examples");
}

fn before_comment(line: &str) -> &str {
    line.split_once('#').map_or(line, |(bytes, _)| bytes)
}

fn hex_digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_hexdigit).collect()
}

fn example_requests() -> Vec<(&'static str, Request)> {
    vec![
        ("request open_session", open_session()),
        ("request heartbeat", request(2, 0, request::Body::Heartbeat(Heartbeat {}))),
        ("request acquire", acquire(3, "deploy/prod")),
        ("request release", request(4, 4, request::Body::Release(Release { acquire: 3 }))),
    ]
}

fn example_responses() -> Vec<(&'static str, Response)> {
    let session = SessionState {
        session: 0x0123_4567_89ab_cdef,
        ttl_ms: 10_000,
        token_now: 41,
        ..SessionState::default()
    };
    vec![
        ("response session_state", response(1, response::Body::SessionState(session))),
        (
            "response heartbeat_confirmed",
            response(2, response::Body::HeartbeatConfirmed(HeartbeatConfirmed {})),
        ),
        ("response granted", response(3, response::Body::Granted(Granted { token: 42 }))),
        ("response queued", response(3, response::Body::Queued(queued()))),
        (
            "response granted_event",
            response(0, response::Body::GrantedEvent(GrantedEvent { acquire: 3, token: 43 })),
        ),
        (
            "response released",
            response(4, response::Body::Released(Released { token: 42, remaining: 0 })),
        ),
        (
            "response lost_event",
            response(
                0,
                response::Body::LostEvent(LostEvent { acquire: 3, reason: "expired".to_owned() }),
            ),
        ),
    ]
}

fn open_session() -> Request {
    let owner = Owner {
        host: "build-7".to_owned(),
        pid: 4_121,
        user: "alice".to_owned(),
        program: "lockkeeper".to_owned(),
        purpose: "release 8.2".to_owned(),
        labels: vec![Label { key: "dc".to_owned(), value: "eu".to_owned() }],
    };
    let open = OpenSession {
        session: 0x0123_4567_89ab_cdef,
        secret: (0..16).collect(),
        ttl_ms: 10_000,
        owner: Some(owner),
    };
    request(1, 0, request::Body::OpenSession(open))
}

fn acquire(id: u64, lock: &str) -> Request {
    let acquire = Acquire { lock: lock.to_owned(), wait: true, ..Acquire::default() };
    request(id, id, request::Body::Acquire(acquire))
}

fn queued() -> Queued {
    let holder = Hold {
        lock: "deploy/prod".to_owned(),
        session: 7,
        acquire: 1,
        token: 40,
        mode: Some(Mode { kind: Some(mode::Kind::Permits(Permits { take: 2, of: 3 })) }),
        ..Hold::default()
    };
    Queued { place: 2, holder: Some(holder), hold_count: 1 }
}

fn request(id: u64, floor: u64, body: request::Body) -> Request {
    Request { id, floor, body: Some(body) }
}

fn response(id: u64, body: response::Body) -> Response {
    Response { id, body: Some(body) }
}

fn frame(request: &Request) -> BytesMut {
    let mut bytes = BytesMut::new();
    encode(request, REQUEST_BYTES_MAX, &mut bytes).unwrap();
    bytes
}

/// Takes messages until there are none or the stream is broken.
fn drain(mut frames: Frames<Request>) {
    while let Ok(Some(_)) = frames.next_message() {}
}

fn any_request() -> impl Strategy<Value = Request> {
    let body = prop_oneof![
        (any::<String>(), option::of(any_mode()), any::<bool>(), any::<String>()).prop_map(
            |(lock, mode, wait, purpose)| {
                request::Body::Acquire(Acquire { lock, mode, wait, purpose })
            }
        ),
        any::<u64>().prop_map(|acquire| request::Body::Release(Release { acquire })),
        Just(request::Body::Heartbeat(Heartbeat {})),
        (any::<u64>(), vec(any::<u8>(), 0..20), any::<u32>(), option::of(any_owner())).prop_map(
            |(session, secret, ttl_ms, owner)| {
                request::Body::OpenSession(OpenSession { session, secret, ttl_ms, owner })
            }
        ),
    ];
    (any::<u64>(), any::<u64>(), option::of(body)).prop_map(|(id, floor, body)| Request {
        id,
        floor,
        body,
    })
}

fn any_response() -> impl Strategy<Value = Response> {
    let body = prop_oneof![
        any::<u64>().prop_map(|token| response::Body::Granted(Granted { token })),
        (any::<u32>(), option::of(any_hold()), any::<u32>()).prop_map(
            |(place, holder, hold_count)| {
                response::Body::Queued(Queued { place, holder, hold_count })
            }
        ),
        (any::<String>(), option::of(any_hold())).prop_map(|(message, holder)| {
            let code = refused::Code::Busy.into();
            response::Body::Refused(Refused { code, message, holder, ..Refused::default() })
        }),
    ];
    (any::<u64>(), option::of(body)).prop_map(|(id, body)| Response { id, body })
}

fn any_mode() -> impl Strategy<Value = Mode> {
    let kind = prop_oneof![
        Just(mode::Kind::Exclusive(true)),
        Just(mode::Kind::Shared(true)),
        (any::<u32>(), any::<u32>())
            .prop_map(|(take, of)| mode::Kind::Permits(Permits { take, of })),
    ];
    option::of(kind).prop_map(|kind| Mode { kind })
}

fn any_owner() -> impl Strategy<Value = Owner> {
    let label = (any::<String>(), any::<String>()).prop_map(|(key, value)| Label { key, value });
    (any::<String>(), any::<u32>(), any::<String>(), any::<String>(), vec(label, 0..3)).prop_map(
        |(host, pid, user, program, labels)| Owner {
            host,
            pid,
            user,
            program,
            purpose: String::new(),
            labels,
        },
    )
}

fn any_hold() -> impl Strategy<Value = Hold> {
    (
        any::<String>(),
        any::<u64>(),
        option::of(any_mode()),
        option::of(any_owner()),
        option::of(any::<u32>()),
    )
        .prop_map(|(lock, session, mode, owner, lease_left_ms)| Hold {
            lock,
            session,
            mode,
            owner,
            lease_left_ms,
            ..Hold::default()
        })
}
