//! Frames that clients may not send, written by hand: each ends its call or its connection for the right reason.
#![allow(missing_docs, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tensorserve_http2::{Http2Options, RefusedCalls, RequestBody, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const OPTIONS: Http2Options = Http2Options {
    streams: 4,
    head: 1000,
    stream_window: 100_000,
    connection_window: 200_000,
    frame: 16_384,
    preface_timeout: Duration::from_secs(1),
    ping_after: Duration::from_secs(60),
    ping_timeout: Duration::from_secs(20),
    write_timeout: Duration::from_secs(30),
    drain_pause: Duration::from_secs(2),
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A body of one part.
struct Text(Option<Bytes>);

impl Body for Text {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(Frame::data).map(Ok))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// `/wait` has no answer, `/ignore` one of 5 bytes at once; others wait for the whole request.
async fn handle(request: Request<RequestBody>) -> Response<Text> {
    let path = request.uri().path().to_owned();
    let mut body = Box::pin(request.into_body());
    if path == "/wait" {
        pending::<()>().await;
    }
    if path != "/ignore" {
        while std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await.is_some() {}
    }
    Response::new(Text(Some(Bytes::from_static(b"hello"))))
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).expect("short").to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn field(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0, u8::try_from(name.len()).expect("short")];
    block.extend_from_slice(name.as_bytes());
    block.push(u8::try_from(value.len()).expect("short"));
    block.extend_from_slice(value.as_bytes());
    block
}

/// A POST to `path`.
fn head(path: &str) -> Vec<u8> {
    [vec![0x83, 0x86], field(":path", path)].concat()
}

fn call(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head(path))
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &payload)
}

struct Client(DuplexStream);

#[derive(Debug)]
struct FoundFrame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl FoundFrame {
    /// The number at the end of a RST_STREAM or GOAWAY frame.
    fn reason(&self) -> u32 {
        let end = self.payload.last_chunk().expect("four bytes");
        u32::from_be_bytes(*end)
    }
}

impl Client {
    /// A client that has sent nothing.
    fn new() -> Self {
        let (client, server) = duplex(1 << 20);
        let ending = (pending::<()>(), || false);
        tokio::spawn(serve(server, OPTIONS, RefusedCalls::default(), ending, handle));
        Client(client)
    }

    async fn begin() -> Self {
        let mut client = Client::new();
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        client.send(&frame(SETTINGS, 0, 0, &[])).await;
        client
    }

    async fn send(&mut self, bytes: &[u8]) {
        // The server may have closed.
        let _ = self.0.write_all(bytes).await;
    }

    async fn next(&mut self) -> Option<FoundFrame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).expect("small")];
        self.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(FoundFrame { kind: head[3], stream, payload })
    }

    /// The next frame of this type.
    async fn find(&mut self, kind: u8) -> Option<FoundFrame> {
        loop {
            let found = self.next().await?;
            if found.kind == kind {
                return Some(found);
            }
        }
    }

    /// Whether the connection works: a ping comes back.
    async fn is_well(&mut self) -> bool {
        self.send(&frame(PING, 0, 0, b"12345678")).await;
        self.find(PING).await.is_some_and(|pong| pong.payload == b"12345678")
    }
}

/// Time stands still unless all wait.
fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().expect("a runtime").block_on(test);
}

#[test]
fn frames_that_break_the_protocol_end_the_connection() {
    let wait = || call(1, "/wait");
    let after = |more: Vec<u8>| [wait(), more].concat();
    let long = frame(HEADERS, END_HEADERS | PADDED, 1, &[&[200][..], &head("/wait")].concat());
    let open = frame(HEADERS, 0, 1, &head("/wait"));
    let cases: Vec<(&str, Vec<u8>, u32)> = vec![
        ("data on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL),
        ("data on an idle stream", frame(DATA, 0, 1, b"x"), PROTOCOL),
        ("a head on stream 0", call(0, "/wait"), PROTOCOL),
        ("a head on an even stream", call(2, "/wait"), PROTOCOL),
        ("a frame of 16 KiB and a byte", frame(DATA, 0, 1, &[0; 16_385]), FRAME_SIZE),
        ("half a setting", frame(SETTINGS, 0, 0, &[0; 5]), FRAME_SIZE),
        ("an acknowledgement with settings", frame(SETTINGS, 1, 0, &[0; 6]), FRAME_SIZE),
        ("settings of a stream", frame(SETTINGS, 0, 1, &[]), PROTOCOL),
        ("a window of 2^31", setting(4, 1 << 31), FLOW_CONTROL),
        ("small frames only", setting(5, 100), PROTOCOL),
        ("push, twice", setting(2, 2), PROTOCOL),
        ("a short ping", frame(PING, 0, 0, &[0; 7]), FRAME_SIZE),
        ("the ping of a stream", frame(PING, 0, 1, &[0; 8]), PROTOCOL),
        ("a short window", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), FRAME_SIZE),
        ("a window of 0", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), PROTOCOL),
        ("too large a window", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255]), FLOW_CONTROL),
        ("the window of an idle stream", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), PROTOCOL),
        ("the end of an idle stream", frame(RESET, 0, 1, &[0; 4]), PROTOCOL),
        ("a short end", after(frame(RESET, 0, 1, &[0; 3])), FRAME_SIZE),
        ("a promise", after(frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])), PROTOCOL),
        ("a short priority", after(frame(PRIORITY, 0, 1, &[0; 4])), FRAME_SIZE),
        ("a continuation of nothing", after(frame(CONTINUATION, 0, 1, &[])), PROTOCOL),
        ("a frame within a head", [open.clone(), frame(PING, 0, 0, &[0; 8])].concat(), PROTOCOL),
        ("another head within a head", [open.clone(), call(3, "/wait")].concat(), PROTOCOL),
        (
            "a head without end",
            [open, frame(CONTINUATION, 0, 1, &[]).repeat(40)].concat(),
            ENHANCE_YOUR_CALM,
        ),
        (
            "a head of thousands of fields",
            frame(HEADERS, END_HEADERS, 1, &[0x82; 2001]),
            ENHANCE_YOUR_CALM,
        ),
        ("more padding than there is", long, PROTOCOL),
        ("a damaged block", frame(HEADERS, END_HEADERS, 1, &[0x80]), COMPRESSION),
        ("GOAWAY of a stream", frame(GO_AWAY, 0, 1, &[0; 8]), PROTOCOL),
    ];
    run(async {
        for (what, bytes, reason) in cases {
            let mut client = Client::begin().await;
            client.send(&bytes).await;
            let found = client.find(GO_AWAY).await.expect(what);
            assert_eq!(found.reason(), reason, "{what}");
            assert!(client.next().await.is_none(), "{what}: the connection is closed");
        }
        for wrong in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"] {
            let mut client = Client::new();
            client.send(wrong).await;
            assert_eq!(client.find(GO_AWAY).await.expect("a GOAWAY").reason(), PROTOCOL);
        }
        let mut client = Client::new();
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        client.send(&call(1, "/wait")).await;
        let found = client.find(GO_AWAY).await.expect("settings come first");
        assert_eq!(found.reason(), PROTOCOL);
    });
}

#[test]
fn calls_that_break_the_protocol_end_and_no_others() {
    let with = |path: &str, name: &str, value: &str| [head(path), field(name, value)].concat();
    let headers = |block: Vec<u8>| frame(HEADERS, END_HEADERS, 1, &block);
    let after = |more: Vec<u8>| [call(1, "/wait"), more].concat();
    let sized = |length: &str, data: &[u8]| {
        [headers(with("/wait", "content-length", length)), frame(DATA, END_STREAM, 1, data)]
            .concat()
    };
    let ended = frame(HEADERS, END_HEADERS | END_STREAM, 1, &head("/wait"));
    let cases: Vec<(&str, Vec<u8>, u32)> = vec![
        ("capitals", headers(with("/wait", "A", "b")), PROTOCOL),
        ("no path", headers(vec![0x83, 0x86]), PROTOCOL),
        ("a header of a connection", headers(with("/wait", "connection", "close")), PROTOCOL),
        ("a window of 0", after(frame(WINDOW_UPDATE, 0, 1, &[0; 4])), PROTOCOL),
        (
            "too large a window",
            after(frame(WINDOW_UPDATE, 0, 1, &[0x7f, 255, 255, 255])),
            FLOW_CONTROL,
        ),
        ("less than declared", sized("3", b"ab"), PROTOCOL),
        ("more than declared", sized("1", b"ab"), PROTOCOL),
        ("data after the end", [ended.clone(), frame(DATA, 0, 1, b"x")].concat(), STREAM_CLOSED),
        ("trailers after the end", [ended, call(1, "/wait")].concat(), STREAM_CLOSED),
        ("trailers that are not the end", after(call(1, "/wait")), PROTOCOL),
    ];
    run(async {
        for (what, bytes, reason) in cases {
            let mut client = Client::begin().await;
            client.send(&bytes).await;
            let found = client.find(RESET).await.expect(what);
            assert_eq!((found.stream, found.reason()), (1, reason), "{what}");
            client.send(&call(3, "/ignore")).await;
            let answer = client.find(HEADERS).await.expect(what);
            assert_eq!(answer.stream, 3, "{what}: the next call is answered");
        }
    });
}

#[test]
fn heads_have_a_limit() {
    run(async {
        let mut client = Client::begin().await;
        let large: Vec<u8> = (0..10).flat_map(|_| field("a", &"x".repeat(100))).collect();
        client.send(&frame(HEADERS, END_HEADERS, 1, &[head("/wait"), large].concat())).await;
        let answer = client.find(HEADERS).await.expect("an answer");
        assert_eq!(answer.payload, [&[8, 3][..], b"431"].concat());
        assert!(client.is_well().await);
    });
}

#[test]
fn calls_have_a_limit() {
    run(async {
        let mut client = Client::begin().await;
        for stream in [1, 3, 5, 7, 9] {
            client.send(&call(stream, "/wait")).await;
        }
        let refused = client.find(RESET).await.expect("the fifth is refused");
        assert_eq!((refused.stream, refused.reason()), (9, REFUSED_STREAM));
        // One is taken back.
        client.send(&frame(RESET, 0, 3, &[0, 0, 0, 8])).await;
        client.send(&call(11, "/ignore")).await;
        assert_eq!(client.find(HEADERS).await.expect("an answer").stream, 11);
        // A client that does not stop is sent away.
        for stream in (13..4000).step_by(2) {
            client.send(&call(stream, "/wait")).await;
        }
        let found = client.find(GO_AWAY).await.expect("a GOAWAY");
        assert_eq!(found.reason(), ENHANCE_YOUR_CALM);
    });
}

#[test]
fn calls_that_are_taken_back_have_a_limit() {
    run(async {
        // Together, and one by one.
        for at_once in [true, false] {
            let mut client = Client::begin().await;
            for stream in (1..3000).step_by(2) {
                let back = frame(RESET, 0, stream, &[0, 0, 0, 8]);
                client.send(&[call(stream, "/wait"), back].concat()).await;
                if !at_once {
                    tokio::task::yield_now().await;
                }
            }
            let found = client.find(GO_AWAY).await.expect("a GOAWAY");
            assert_eq!(found.reason(), ENHANCE_YOUR_CALM);
        }
        // A client whose calls are answered in between may take back as many as it likes.
        let mut client = Client::begin().await;
        for stream in (1..8000).step_by(4) {
            client.send(&call(stream, "/wait")).await;
            tokio::task::yield_now().await;
            client.send(&frame(RESET, 0, stream, &[0, 0, 0, 8])).await;
            client.send(&call(stream + 2, "/ignore")).await;
            assert_eq!(client.find(HEADERS).await.expect("an answer").stream, stream + 2);
        }
    });
}

#[test]
fn data_has_a_limit_until_it_is_read() {
    run(async {
        // More than the window of a call.
        let mut client = Client::begin().await;
        client.send(&call(1, "/wait")).await;
        let data = frame(DATA, 0, 1, &[0; 16_000]);
        client.send(&data.repeat(7)).await;
        let found = client.find(RESET).await.expect("an end");
        assert_eq!(found.reason(), FLOW_CONTROL);
        // What is not read any more counts no longer.
        assert!(client.is_well().await);
        // More than that of the connection.
        let mut client = Client::begin().await;
        for stream in [1, 3, 5] {
            client.send(&call(stream, "/wait")).await;
            client.send(&frame(DATA, 0, stream, &[0; 16_000]).repeat(6)).await;
        }
        let found = client.find(GO_AWAY).await.expect("a GOAWAY");
        assert_eq!(found.reason(), FLOW_CONTROL);
        // What is read may be any number of bytes, if the client waits for its windows.
        let mut client = Client::begin().await;
        client.send(&call(1, "/read")).await;
        for _ in 0..100 {
            client.send(&data).await;
            tokio::task::yield_now().await;
        }
        client.send(&frame(DATA, END_STREAM, 1, &[])).await;
        assert_eq!(client.find(HEADERS).await.expect("an answer").stream, 1);
    });
}

#[test]
fn responses_wait_for_the_windows_of_their_client() {
    run(async {
        let mut client = Client::begin().await;
        client.send(&setting(4, 2)).await;
        client.send(&call(1, "/ignore")).await;
        let first = client.find(DATA).await.expect("two bytes");
        assert_eq!(first.payload, b"he");
        client.send(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).await;
        assert_eq!(client.find(DATA).await.expect("a byte").payload, b"l");
        client.send(&setting(4, 100)).await;
        let last = client.next().await.expect("the rest");
        let last =
            if last.kind == SETTINGS { client.next().await.expect("the rest") } else { last };
        assert_eq!((last.kind, &last.payload[..]), (DATA, &b"lo"[..]));
        // Negative windows have to be filled first.
        client.send(&call(3, "/ignore")).await;
        assert_eq!(client.find(DATA).await.expect("all").payload, b"hello");
    });
}

#[test]
fn clients_that_grant_no_window_or_fall_silent_are_closed() {
    run(async {
        let start = tokio::time::Instant::now();
        let mut client = Client::begin().await;
        client.send(&setting(4, 0)).await;
        client.send(&call(1, "/ignore")).await;
        // It answers pings.
        while let Some(found) = client.next().await {
            if found.kind == PING {
                client.send(&frame(PING, 1, 0, &found.payload)).await;
            }
        }
        let took = start.elapsed();
        assert!(took >= OPTIONS.write_timeout && took < OPTIONS.write_timeout * 2, "{took:?}");
        // Silence is answered with a ping, and then with the end.
        let start = tokio::time::Instant::now();
        let mut client = Client::begin().await;
        client.find(PING).await.expect("a ping");
        assert!(client.next().await.is_none());
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(80) && took < Duration::from_secs(120), "{took:?}");
        // A client that sends half a preface.
        let start = tokio::time::Instant::now();
        let mut client = Client::new();
        client.send(b"PRI * HTTP").await;
        while client.next().await.is_some() {}
        assert!(start.elapsed() < Duration::from_secs(2));
    });
}
