//! The layer around all gRPC services in which a panic ends its call only, with an error: while a service
//! takes a call, answers it, or writes the messages of its response.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Service, http};

use tensorserve_core::metrics::Metrics;
use tensorserve_protocol::grpc::status;
use tensorserve_tensor::error::Error;

/// Services whose panics are caught.
#[derive(Clone)]
pub(super) struct CaughtService<S> {
    inner: S,
    metrics: Metrics,
}

impl<S> CaughtService<S> {
    pub(super) fn new(inner: S, metrics: Metrics) -> Self {
        CaughtService { inner, metrics }
    }
}

impl<S> Service<http::Request<Body>> for CaughtService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = CaughtCall {
            path: request.uri().path_and_query().cloned(),
            metrics: self.metrics.clone(),
        };
        let begun = catch_unwind(AssertUnwindSafe(|| self.inner.call(request)));
        Box::pin(async move {
            let answered = match begun {
                Ok(answering) => AssertUnwindSafe(answering).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            match answered {
                Ok(Ok(response)) if response.body().is_end_stream() => Ok(response),
                Ok(Ok(response)) => Ok(response.map(|body| Body::new(CaughtBody::new(body, call)))),
                Err(_) => Ok(call.panicked().into_http()),
            }
        })
    }
}

/// A call whose panics are caught.
struct CaughtCall {
    path: Option<PathAndQuery>,
    metrics: Metrics,
}

impl CaughtCall {
    /// Counts and logs that it panicked. Returns its status.
    fn panicked(&self) -> Status {
        self.metrics.panicked();
        let path = self.path.as_ref().map_or("", PathAndQuery::path);
        status(path, &Error::internal("internal error; see the server log"))
    }
}

/// The body of a response, which ends with an error when it panics.
struct CaughtBody {
    /// `None` after a panic.
    body: Option<Body>,
    call: CaughtCall,
}

impl CaughtBody {
    fn new(body: Body, call: CaughtCall) -> Self {
        CaughtBody { body: Some(body), call }
    }
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
            let status = this.call.panicked();
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
