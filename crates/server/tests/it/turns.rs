//! Who floods a connection holds up himself: everybody else's turn comes between his requests.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_node::{Environment, NodeHandle};
use lockkeeper_server::{Native, ServerConfig};
use lockkeeper_wire::native::{
    self as wire, Frames, REQUEST_BYTES_MAX, Release, Request, Response, request::Body as Asks,
    take_greeting,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};

/// Requests that one client sends without waiting for an answer.
const FLOOD: u64 = 100_000;

/// The client's end of a connection.
struct Peer {
    stream: DuplexStream,
    frames: Frames<Response>,
}

impl Peer {
    /// Connects, and is greeted.
    async fn connect(native: &Arc<Native>) -> Self {
        let (mut stream, served) = duplex(16 << 20);
        let native = Arc::clone(native);
        tokio::spawn(async move { native.serve(served).await });
        let mut greeting = BytesMut::new();
        wire::greet(&mut greeting);
        stream.write_all(&greeting).await.unwrap();
        let mut input = BytesMut::new();
        while take_greeting(&mut input).unwrap().is_none() {
            stream.read_buf(&mut input).await.unwrap();
        }
        Self { stream, frames: Frames::of_responses(input) }
    }

    /// Sends requests that are answered at once, since the connection has no session.
    async fn ask(&mut self, ids: std::ops::RangeInclusive<u64>) {
        let mut requests = BytesMut::new();
        for id in ids {
            let body = Some(Asks::Release(Release { acquire: 1 }));
            let request = Request { id, floor: 0, body };
            wire::encode(&request, REQUEST_BYTES_MAX, &mut requests).unwrap();
        }
        self.stream.write_all(&requests).await.unwrap();
    }

    async fn answer(&mut self) -> u64 {
        loop {
            if let Some(response) = self.frames.next_message().unwrap() {
                return response.id;
            }
            assert!(self.stream.read_buf(self.frames.input()).await.unwrap() > 0);
        }
    }

    /// How many answers are there already.
    async fn answered(&mut self) -> u64 {
        let mut bytes = vec![0; 1 << 20];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|context| {
            let _ = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            Poll::Ready(())
        })
        .await;
        self.frames.input().extend_from_slice(buffer.filled());
        let answers = std::iter::from_fn(|| self.frames.next_message().unwrap());
        answers.map(|response| response.id).max().unwrap_or(0)
    }
}

#[tokio::test]
async fn a_flooded_connection_does_not_hold_up_anothers_turn() {
    // A task among the others: what the runtime itself waits for is looked at less often.
    tokio::spawn(flood_one_and_ask_another()).await.unwrap();
}

async fn flood_one_and_ask_another() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut config = ServerConfig::loopback(1, data_dir.path().to_owned()).node;
    config.free_space_bytes_min = 0;
    let node = NodeHandle::start(config, Environment::system()).await.unwrap();
    let native = Arc::new(Native::new(node.clone(), Duration::from_secs(60)));
    let mut flooding = Peer::connect(&native).await;
    let mut other = Peer::connect(&native).await;
    flooding.ask(1..=FLOOD).await;
    other.ask(1..=1).await;
    assert_eq!(other.answer().await, 1);
    let before = flooding.answered().await;
    assert!(before < 2_000, "{before} of the flood were answered before one of somebody else");
    for id in before + 1..=FLOOD {
        assert_eq!(flooding.answer().await, id);
    }
    node.stop().await;
}
