//! What a client of gRPC sends: the frames of an HTTP/2 connection.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use tensorserve_http2::{Http2Options, RefusedCalls, RequestBody, serve};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::target::selected;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const OPTIONS: Http2Options = Http2Options {
    streams: 8,
    head: 4096,
    stream_window: 65_535,
    connection_window: 100_000,
    frame: 16_384,
    preface_timeout: Duration::from_secs(60),
    ping_after: Duration::from_secs(60),
    ping_timeout: Duration::from_secs(20),
    write_timeout: Duration::from_secs(60),
    drain_pause: Duration::from_secs(2),
};

/// A connection: its preface is there, and the input is what follows. It arrives in pieces; the first byte has their size.
/// What the server writes are frames.
pub fn http2(input: &[u8]) {
    let Some((first, rest)) = selected(input) else { return };
    let sent = [PREFACE, rest].concat();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let client =
        Client { sent, at: 0, step: 1 + first * first, has_waited: false, written: Vec::new() };
    let mut client = client;
    runtime.expect("a runtime").block_on(async {
        let ending = (pending::<()>(), || false);
        let served = serve(&mut client, OPTIONS, RefusedCalls::default(), ending, echo).await;
        assert!(served.is_ok(), "{served:?}");
    });
    // The connection ends with the client, maybe within a frame.
    client.check();
}

/// Answers with what arrives.
async fn echo(request: Request<RequestBody>) -> Response<Echoed> {
    assert!(request.uri().path().starts_with('/') || request.uri().path() == "*");
    let mut parts = Vec::new();
    let mut body = pin!(request.into_body());
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let Ok(frame) = frame else { break };
        parts.push(frame);
    }
    Response::new(Echoed(parts.into_iter()))
}

struct Echoed(std::vec::IntoIter<Frame<Bytes>>);

impl Body for Echoed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

struct Client {
    sent: Vec<u8>,
    at: usize,
    step: usize,
    has_waited: bool,
    /// What is not checked yet.
    written: Vec<u8>,
}

impl Client {
    /// Takes complete frames from what the server has written.
    fn check(&mut self) {
        while let Some(&[a, b, c, kind, _, d, ..]) = self.written.first_chunk::<9>() {
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            assert!(kind <= 9 && kind != 5, "a frame of type {kind}");
            assert!(d & 0x80 == 0 && length <= 1 << 24, "{length}");
            if self.written.len() < 9 + length {
                return;
            }
            self.written.drain(..9 + length);
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Calls have their turn between two pieces.
        if !std::mem::replace(&mut self.has_waited, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_waited = false;
        let rest = self.sent.get(self.at..).unwrap_or_default();
        let count = self.step.min(rest.len()).min(buffer.remaining());
        buffer.put_slice(rest.get(..count).unwrap_or_default());
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        self.check();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
