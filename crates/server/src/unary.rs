//! Plain unary calls: one message that is not compressed. Most calls are such, and need none of the layers that
//! find a service and decode streams of messages. Whatever else arrives goes to these layers as it arrived.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap, HeaderName, HeaderValue, Method};
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::{Request, Status};

use super::timed_body::TimedBody;
use tensorserve_protocol::grpc::{MESSAGE_HEAD, UnaryMethod};

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Room that a message gets before it has arrived; longer ones get more as they arrive.
const FIRST_ROOM: usize = 1 << 20;

/// Whether the head of a request says nothing that calls for more than its message.
pub(super) fn is_plain<B>(request: &http::Request<B>) -> bool {
    let headers = request.headers();
    request.method() == Method::POST
        && headers.get(http::header::CONTENT_TYPE) == Some(&GRPC_CONTENT_TYPE)
        && headers.get(ENCODING).is_none_or(|encoding| encoding == "identity")
}

/// A request whose head is plain, as far as its body has arrived.
pub(super) enum PlainOrOther {
    /// All of it: one message, here without its head.
    Plain(http::Request<Bytes>),
    /// With the body as it arrived.
    Other(http::Request<Body>),
}

/// Waits for the body of `request`, whose message may have up to `most` bytes.
pub(super) async fn arrived(request: http::Request<TimedBody>, most: usize) -> PlainOrOther {
    let (head, mut body) = request.into_parts();
    let mut start = BodyStart::default();
    let next = loop {
        match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            Some(Ok(frame)) if frame.is_data() => start.push(frame, most),
            next => break next,
        }
        if !start.may_be_plain(most) {
            let body = StartedBody { start: Some(start.bytes()), next: None, rest: Some(body) };
            return PlainOrOther::Other(http::Request::from_parts(head, Body::new(body)));
        }
    };
    if next.is_none() && start.is_complete() {
        let mut message = start.bytes();
        let _head = message.split_to(MESSAGE_HEAD);
        return PlainOrOther::Plain(http::Request::from_parts(head, message));
    }
    // Too short, or with trailers, or broken off.
    let rest = next.is_some().then_some(body);
    let body = StartedBody { start: Some(start.bytes()), next, rest };
    PlainOrOther::Other(http::Request::from_parts(head, Body::new(body)))
}

/// The response of `method` to a plain call.
pub(super) async fn respond(
    method: &UnaryMethod,
    request: http::Request<Bytes>,
) -> http::Response<Body> {
    match method.answer(Request::from_http(request)).await {
        Ok(response) => {
            let (metadata, message, extensions) = response.into_parts();
            let body = UnaryBody { message: Some(message), has_ended: false };
            let mut response = http::Response::new(Body::new(body));
            *response.headers_mut() = metadata.into_headers();
            response.headers_mut().insert(http::header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
            *response.extensions_mut() = extensions;
            response
        }
        Err(status) => status.into_http(),
    }
}

/// The part of a body that has arrived.
#[derive(Default)]
struct BodyStart {
    /// The only part, as it arrived; most messages have one.
    only: Bytes,
    /// All parts, if there are several: clients may send many of one byte.
    joined: BytesMut,
}

impl BodyStart {
    fn push(&mut self, frame: Frame<Bytes>, most: usize) {
        let Ok(part) = frame.into_data() else { return };
        if self.joined.is_empty() {
            if self.only.is_empty() {
                self.only = part;
                return;
            }
            self.joined
                .reserve(self.length().unwrap_or(0).min(most).min(FIRST_ROOM) + MESSAGE_HEAD);
            self.joined.extend_from_slice(&std::mem::take(&mut self.only));
        }
        self.joined.extend_from_slice(&part);
    }

    fn as_slice(&self) -> &[u8] {
        if self.joined.is_empty() { &self.only } else { &self.joined }
    }

    fn bytes(self) -> Bytes {
        if self.joined.is_empty() { self.only } else { self.joined.freeze() }
    }

    /// The length of the message, if its head has arrived and says that it is not compressed.
    fn length(&self) -> Option<usize> {
        match *self.as_slice() {
            [0, a, b, c, d, ..] => usize::try_from(u32::from_be_bytes([a, b, c, d])).ok(),
            _ => None,
        }
    }

    /// Whether this can be the start of one message of up to `most` bytes.
    fn may_be_plain(&self, most: usize) -> bool {
        let arrived = self.as_slice().len();
        match self.length() {
            Some(length) => length <= most && arrived <= length.saturating_add(MESSAGE_HEAD),
            None => arrived < MESSAGE_HEAD,
        }
    }

    fn is_complete(&self) -> bool {
        let arrived = self.as_slice().len();
        self.length().is_some_and(|length| arrived.checked_sub(MESSAGE_HEAD) == Some(length))
    }
}

type BodyFrame = Result<Frame<Bytes>, Status>;

/// A body of which a part has been read.
struct StartedBody {
    start: Option<Bytes>,
    /// What was read after the start.
    next: Option<BodyFrame>,
    /// What is still to be read.
    rest: Option<TimedBody>,
}

impl http_body::Body for StartedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<BodyFrame>> {
        let this = self.get_mut();
        if let Some(start) = this.start.take().filter(|start| !start.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(start))));
        }
        if let Some(next) = this.next.take() {
            return Poll::Ready(Some(next));
        }
        match &mut this.rest {
            Some(rest) => Pin::new(rest).poll_frame(context),
            None => Poll::Ready(None),
        }
    }
}

/// The body of a response: a message with its head, and the trailers of success.
struct UnaryBody {
    message: Option<Bytes>,
    has_ended: bool,
}

impl http_body::Body for UnaryBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<BodyFrame>> {
        let this = self.get_mut();
        if let Some(message) = this.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut this.has_ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }
}
