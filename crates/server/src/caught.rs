//! gRPC calls whose panics are caught ([`admission`](super::admission) catches those before there is a response): one
//! while the messages of a response are written ends that call only, with an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;

use tensorserve_core::metrics::Metrics;
use tensorserve_protocol::grpc::status;
use tensorserve_tensor::error::Error;

/// A call whose panics are caught.
#[derive(Clone)]
pub(super) struct CaughtCall {
    path: Option<PathAndQuery>,
    metrics: Metrics,
}

impl CaughtCall {
    pub(super) fn new(path: Option<PathAndQuery>, metrics: Metrics) -> Self {
        CaughtCall { path, metrics }
    }

    /// Logs that it panicked. Returns its status.
    pub(super) fn status(&self) -> Status {
        let path = self.path.as_ref().map_or("", PathAndQuery::path);
        status(path, &Error::internal("internal error; see the server log"))
    }

    /// Its response, which ends with an error when it panics.
    pub(super) fn within(&self, response: http::Response<Body>) -> http::Response<Body> {
        if response.body().is_end_stream() {
            return response;
        }
        response.map(|body| Body::new(CaughtBody { body: Some(body), call: self.clone() }))
    }
}

/// The body of a response, which ends with an error when it panics.
struct CaughtBody {
    /// `None` after a panic.
    body: Option<Body>,
    call: CaughtCall,
}

impl http_body::Body for CaughtBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(context)));
        polled.unwrap_or_else(|_| {
            this.body = None;
            this.call.metrics.panicked();
            let status = this.call.status();
            let mut trailers = http::HeaderMap::new();
            Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
