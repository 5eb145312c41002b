//! Calls of a client of another HTTP/2 library: messages of all sizes, through windows of all sizes.
#![allow(missing_docs, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use tensorserve_http2::{Http2Options, RefusedCalls, RequestBody, serve};
use tokio::io::duplex;
use tokio::sync::Notify;

const OPTIONS: Http2Options = Http2Options {
    streams: 256,
    head: 16 << 10,
    stream_window: 1 << 20,
    connection_window: 8 << 20,
    frame: 256 << 10,
    preface_timeout: Duration::from_secs(60),
    ping_after: Duration::from_secs(60),
    ping_timeout: Duration::from_secs(20),
    write_timeout: Duration::from_secs(60),
    drain_pause: Duration::from_secs(2),
};

/// A response with these parts and trailers.
struct EchoedParts {
    parts: std::vec::IntoIter<Bytes>,
    trailers: Option<HeaderMap>,
    /// How many of the parts were asked for.
    asked: Arc<AtomicUsize>,
}

impl Body for EchoedParts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(part) = self.parts.next() {
            self.asked.fetch_add(1, SeqCst);
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        Poll::Ready(self.trailers.take().map(Frame::trailers).map(Ok))
    }
}

/// What the handler has seen.
#[derive(Clone, Default)]
struct SeenByHandler {
    asked: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
    begun: Arc<Notify>,
    go: Arc<Notify>,
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// `/echo` answers with the parts of the request and its trailers, `/parts` with 1000 parts of 10,000 bytes, `/wait` when
/// it is told to, `/empty` with a head alone, and `/panic` not at all.
async fn handle(request: Request<RequestBody>, seen: SeenByHandler) -> Response<EchoedParts> {
    let path = request.uri().path().to_owned();
    let (mut body, mut parts, mut trailers) = (Box::pin(request.into_body()), Vec::new(), None);
    if path == "/wait" {
        let _set = SetOnDrop(Arc::clone(&seen.dropped));
        seen.begun.notify_one();
        seen.go.notified().await;
    }
    assert_ne!(path, "/panic", "as it should");
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        match frame.expect("complete").into_data() {
            Ok(data) => parts.push(data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    if path == "/parts" {
        parts = vec![Bytes::from(vec![7; 10_000]); 1000];
    }
    if path == "/empty" {
        parts.clear();
    }
    Response::new(EchoedParts { parts: parts.into_iter(), trailers, asked: seen.asked })
}

struct Peer {
    client: SendRequest<Bytes>,
    seen: SeenByHandler,
    ending: Arc<(AtomicBool, Notify)>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// A client with windows of this size.
async fn peer(window: u32) -> Peer {
    let (client, server) = duplex(64 << 10);
    let (seen, ending) =
        (SeenByHandler::default(), Arc::new((AtomicBool::new(false), Notify::new())));
    let (of_handler, of_server) = (seen.clone(), Arc::clone(&ending));
    let served = tokio::spawn(async move {
        let handle = |request| handle(request, of_handler.clone());
        let until = async { of_server.1.notified().await };
        let ending = (until, || of_server.0.load(SeqCst));
        serve(server, OPTIONS, RefusedCalls::default(), ending, handle).await
    });
    let mut builder = Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(window.max(65_535));
    let (client, connection) = builder.handshake(client).await.expect("a handshake");
    tokio::spawn(connection);
    Peer { client, seen, ending, served }
}

fn request(path: &str) -> Request<()> {
    let request = Request::post(format!("http://server{path}")).header("te", "trailers");
    request.body(()).expect("a request")
}

/// The parts of a response, and its trailers.
async fn read(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.expect("data");
        body.flow_control().release_capacity(data.len()).expect("capacity");
        all.extend_from_slice(&data);
    }
    (all, body.trailers().await.expect("trailers"))
}

/// Sends these bytes, and returns what is echoed.
async fn echo(client: &SendRequest<Bytes>, bytes: Vec<u8>) -> (Vec<u8>, Option<HeaderMap>) {
    let mut client = client.clone().ready().await.expect("ready");
    let (response, mut stream) = client.send_request(request("/echo"), false).expect("sent");
    let mut trailers = HeaderMap::new();
    trailers.insert("sum", bytes.len().into());
    stream.send_data(Bytes::from(bytes), false).expect("sent");
    stream.send_trailers(trailers).expect("sent");
    let response = response.await.expect("a response");
    assert_eq!(response.status(), StatusCode::OK);
    read(response.into_body()).await
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(100), test).await.expect("in time");
    });
}

#[test]
fn messages_of_all_sizes_pass_windows_of_all_sizes() {
    run(async {
        for window in [1, 1000, 65_535, 1 << 20] {
            let peer = peer(window).await;
            let sizes: &[usize] = match window {
                1 => &[0, 1, 100],
                1000 => &[0, 999, 1000, 1001, 70_000],
                _ => &[0, 5, 16_384, 16_385, 262_144, 262_145, 3_000_000],
            };
            for size in sizes {
                let bytes: Vec<u8> = (0..*size).map(|n| n.to_le_bytes()[n % 3]).collect();
                let (echoed, trailers) = echo(&peer.client, bytes.clone()).await;
                assert!(echoed == bytes, "{size} bytes through a window of {window}");
                assert_eq!(trailers.expect("trailers")["sum"], bytes.len().to_string());
            }
        }
    });
}

#[test]
fn calls_of_a_connection_run_together() {
    run(async {
        let peer = peer(65_535).await;
        let calls = (0..1000_usize).map(|number| {
            let client = peer.client.clone();
            tokio::spawn(async move {
                let bytes = vec![number.to_le_bytes()[0]; number * 50];
                let (echoed, _) = echo(&client, bytes.clone()).await;
                assert!(echoed == bytes, "{number}");
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.expect("an answer");
        }
    });
}

#[test]
fn a_response_is_asked_for_as_its_client_takes_it() {
    run(async {
        let mut peer = peer(20_000).await;
        let (response, _) = peer.client.send_request(request("/parts"), true).expect("sent");
        let body = response.await.expect("a response").into_body();
        // What fits the window and the queue of the call, and one more.
        while peer.seen.asked.load(SeqCst) < 8 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let asked = peer.seen.asked.load(SeqCst);
        assert!(asked <= 10, "{asked} parts wait");
        // Others are answered meanwhile: the windows of calls are their own.
        let (all, _) = read(body).await;
        assert_eq!(all.len(), 10_000_000);
        assert_eq!(peer.seen.asked.load(SeqCst), 1000);
    });
}

#[test]
fn a_head_alone_is_an_answer() {
    run(async {
        let mut peer = peer(65_535).await;
        for _ in 0..3 {
            let (response, mut stream) =
                peer.client.send_request(request("/empty"), false).expect("sent");
            stream.send_data(Bytes::new(), true).expect("sent");
            let response = response.await.expect("a response");
            assert_eq!(read(response.into_body()).await, (Vec::new(), None));
        }
    });
}

#[test]
fn calls_are_answered_while_the_first_one_waits() {
    run(async {
        let mut peer = peer(65_535).await;
        // It is alone, and all of it is there: the connection itself answers it.
        let (first, _) = peer.client.send_request(request("/wait"), true).expect("sent");
        peer.seen.begun.notified().await;
        let (second, _) = peer.client.send_request(request("/wait"), true).expect("sent");
        peer.seen.begun.notified().await;
        for size in [0, 10, 100_000] {
            assert_eq!(echo(&peer.client, vec![1; size]).await.0.len(), size);
        }
        peer.seen.go.notify_one();
        peer.seen.go.notify_one();
        for response in [first, second] {
            assert_eq!(read(response.await.expect("a response").into_body()).await.0, b"");
        }
    });
}

#[test]
fn a_call_that_its_client_ends_is_dropped() {
    run(async {
        let mut peer = peer(65_535).await;
        let (response, mut stream) =
            peer.client.send_request(request("/wait"), false).expect("sent");
        peer.seen.begun.notified().await;
        stream.send_reset(Reason::CANCEL);
        drop(response);
        while !peer.seen.dropped.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        echo(&peer.client, vec![1; 10]).await;
        // So are all when the connection ends.
        let other = self::peer(65_535).await;
        let mut client = other.client.clone();
        let sent = client.send_request(request("/wait"), false).expect("sent");
        other.seen.begun.notified().await;
        drop((client, other.client, sent));
        while !other.seen.dropped.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _ = other.served.await.expect("no panic");
    });
}

#[test]
fn a_panic_ends_its_call() {
    run(async {
        let mut peer = peer(65_535).await;
        let (response, _) = peer.client.send_request(request("/panic"), true).expect("sent");
        let error = response.await.expect_err("an error");
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
        echo(&peer.client, vec![1; 10]).await;
    });
}

#[test]
fn at_the_end_calls_are_answered_and_no_new_ones_begin() {
    run(async {
        let mut peer = peer(65_535).await;
        let (response, mut stream) =
            peer.client.send_request(request("/wait"), false).expect("sent");
        peer.seen.begun.notified().await;
        peer.ending.0.store(true, SeqCst);
        peer.ending.1.notify_waiters();
        // The client learns of it, and makes no more.
        let mut others = peer.client.clone();
        while poll_fn(|context| others.poll_ready(context)).await.is_ok() {
            let Ok((response, _)) = others.send_request(request("/empty"), true) else { break };
            if response.await.is_err() {
                break;
            }
        }
        assert!(!peer.served.is_finished(), "a call is open");
        peer.seen.go.notify_one();
        stream.send_data(Bytes::from_static(b"last"), true).expect("sent");
        let response = response.await.expect("a response");
        assert_eq!(read(response.into_body()).await.0, b"last");
        // The client may close it first.
        let _ = peer.served.await.expect("no panic");
    });
}

#[test]
fn a_connection_without_calls_ends_at_once() {
    run(async {
        let peer = peer(65_535).await;
        echo(&peer.client, vec![1; 10]).await;
        peer.ending.0.store(true, SeqCst);
        peer.ending.1.notify_waiters();
        // The client may close it first.
        let _ = peer.served.await.expect("no panic");
    });
}
