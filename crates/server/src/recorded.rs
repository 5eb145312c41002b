//! Requests that are recorded: their server spans, and their lines in the access log.
//!
//! The names of attributes and of spans are those of OpenTelemetry's semantic conventions 1.45
//! (HTTP and RPC, both stable), and `tensorserve.*` for what these have no name for.

use std::borrow::Cow;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use actix_web::HttpRequest;
use actix_web::http::Version;
use actix_web::http::header::{HeaderName, HeaderValue};
use bytes::{Buf, Bytes};
use http_body::{Body as _, Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Code, Status};

use tensorserve_tensor::error::Code as ErrorCode;
use tensorserve_tensor::names::beginning;
use tensorserve_trace::{Observer, RequestFacts, RequestTrace, Span, TRACEPARENT, TRACESTATE};

use crate::access_log::AccessLine;

/// The longest text of a client in an attribute or a log line, in bytes.
const LONGEST_TEXT: usize = 1024;

/// The headers of the caller's span, for the library of each protocol.
const PARENT: HeaderName = HeaderName::from_static(TRACEPARENT);
const STATE: HeaderName = HeaderName::from_static(TRACESTATE);
const GRPC_PARENT: http::HeaderName = http::HeaderName::from_static(TRACEPARENT);
const GRPC_STATE: http::HeaderName = http::HeaderName::from_static(TRACESTATE);

/// Methods that become part of a span's name: clients can invent others.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// What requests of HTTP and calls of gRPC have in common.
struct Exchange {
    trace: Arc<RequestTrace>,
    path: String,
    /// The `Host` header, or the authority.
    host: String,
    client: Option<IpAddr>,
    response_bytes: u64,
}

impl Exchange {
    fn new(trace: Arc<RequestTrace>, path: &str, host: &str, client: Option<IpAddr>) -> Self {
        let (path, host) = (shortened(path).to_owned(), shortened(host).to_owned());
        Exchange { trace, path, host, client, response_bytes: 0 }
    }

    /// Counts bytes of the response's body.
    fn sent(&mut self, bytes: usize) {
        self.response_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    /// The server span, with what both kinds say, and what went wrong.
    fn describe(&self, span: Span, facts: &RequestFacts, error: Option<Cow<'static, str>>) -> Span {
        let (address, port) = host_and_port(&self.host);
        span.with_any("server.address", (!address.is_empty()).then(|| address.to_owned()))
            .with_any("server.port", port)
            .with_any("client.address", self.client.map(|client| client.to_string()))
            .with_any("error.type", error.clone())
            .with_any("tensorserve.model.name", facts.model.as_deref().map(str::to_owned))
            .with_any("tensorserve.model.version", facts.version)
            .with_any("tensorserve.signature.name", facts.signature.clone())
            .failed(error)
    }

    /// Writes the line of the access log, if it belongs there.
    fn log(&self, protocol: &'static str, method: &str, status: Option<&str>, request_id: &str) {
        let trace = &self.trace;
        if !trace.is_logged() {
            return;
        }
        AccessLine {
            protocol,
            method,
            path: &self.path,
            status,
            request_id,
            client: self.client,
            response_bytes: self.response_bytes,
            time: trace.start().elapsed(),
            trace: trace.has_trace().then(|| trace.context()),
            facts: &trace.facts(),
        }
        .write();
    }
}

/// An HTTP request that is recorded. Its record ends when this is dropped: with the response, with the
/// last piece of a response in pieces, or when the client has left.
pub(super) struct RecordedRequest {
    exchange: Exchange,
    method: String,
    query: String,
    scheme: &'static str,
    version: &'static str,
    user_agent: Option<String>,
    /// The status of the response; 0 before there is one.
    status: u16,
    request_id: String,
}

impl RecordedRequest {
    /// The record of a request that began at `start`, if it is recorded.
    pub(super) fn begin(
        observer: &Observer,
        request: &HttpRequest,
        start: Instant,
        is_encrypted: bool,
    ) -> Option<Self> {
        let headers = request.headers();
        let value = |name: &HeaderName| headers.get(name).map(HeaderValue::as_bytes);
        let trace = observer.begin(start, || value(&PARENT), || value(&STATE))?;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let client = request.peer_addr().map(|address| address.ip());
        let host = text("host").unwrap_or_default();
        Some(RecordedRequest {
            exchange: Exchange::new(trace, request.uri().path(), host, client),
            method: shortened(request.method().as_str()).to_owned(),
            query: shortened(request.uri().query().unwrap_or_default()).to_owned(),
            scheme: if is_encrypted { "https" } else { "http" },
            version: match request.version() {
                Version::HTTP_10 => "1.0",
                _ => "1.1",
            },
            user_agent: text("user-agent").map(|agent| shortened(agent).to_owned()),
            status: 0,
            request_id: String::new(),
        })
    }

    pub(super) fn trace(&self) -> &Arc<RequestTrace> {
        &self.exchange.trace
    }

    /// Records the response.
    pub(super) fn answered(&mut self, status: u16, request_id: &str) {
        self.status = status;
        request_id.clone_into(&mut self.request_id);
    }

    /// Counts bytes of the response's body.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.exchange.sent(bytes);
    }

    fn is_known(&self) -> bool {
        METHODS.contains(&self.method.as_str())
    }

    fn describe(&self, span: Span, facts: &RequestFacts) -> Span {
        let method = if self.is_known() { self.method.as_str() } else { "HTTP" };
        let name = match &facts.route {
            Some(route) => format!("{method} {route}"),
            None => method.to_owned(),
        };
        let original = (!self.is_known()).then(|| self.method.clone());
        let known = if self.is_known() { self.method.clone() } else { "_OTHER".to_owned() };
        let status = Some(i64::from(self.status)).filter(|status| *status > 0);
        let error = match self.status {
            0 => Some(Cow::Borrowed("cancelled")),
            500.. => Some(Cow::Owned(self.status.to_string())),
            _ => None,
        };
        let span = Span { name: name.into(), ..span }
            .with("http.request.method", known)
            .with_any("http.request.method_original", original)
            .with("url.path", self.exchange.path.clone())
            .with_any("url.query", Some(redacted(&self.query)).filter(|query| !query.is_empty()))
            .with("url.scheme", self.scheme)
            .with_any("http.route", facts.route.clone())
            .with("network.protocol.version", self.version)
            .with_any("user_agent.original", self.user_agent.clone())
            .with_any("http.response.status_code", status);
        self.exchange.describe(span, facts, error)
    }
}

impl Drop for RecordedRequest {
    fn drop(&mut self) {
        self.exchange.trace.finish(|span, facts| self.describe(span, facts));
        let status = (self.status > 0).then(|| self.status.to_string());
        self.exchange.log("http", &self.method, status.as_deref(), &self.request_id);
    }
}

/// A gRPC call that is recorded. Its record ends when this is dropped: with the end of its response.
pub(super) struct RecordedCall {
    exchange: Exchange,
    /// The status of the response, once it is known.
    status: Option<Code>,
}

impl RecordedCall {
    /// The record of a call that began now, if it is recorded.
    pub(super) fn begin(
        observer: &Observer,
        request: &http::Request<()>,
        client: Option<IpAddr>,
    ) -> Option<Self> {
        let headers = request.headers();
        let value = |name: &http::HeaderName| headers.get(name).map(http::HeaderValue::as_bytes);
        let (parent, state) = (|| value(&GRPC_PARENT), || value(&GRPC_STATE));
        let trace = observer.begin(Instant::now(), parent, state)?;
        let host = request.headers().get(http::header::HOST).and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default();
        let exchange = Exchange::new(trace, request.uri().path(), host, client);
        Some(RecordedCall { exchange, status: None })
    }

    pub(super) fn trace(&self) -> &Arc<RequestTrace> {
        &self.exchange.trace
    }

    /// Records the end of the response from the headers that can have its status.
    fn look_for_status(&mut self, headers: &http::HeaderMap) {
        if self.status.is_none() {
            self.status = Status::from_header_map(headers).map(|status| status.code());
        }
    }

    /// The response, whose end is the end of the record.
    pub(super) fn answered(mut self, response: http::Response<Body>) -> http::Response<Body> {
        self.look_for_status(response.headers());
        if self.status.is_some() || response.body().is_end_stream() {
            return response;
        }
        response.map(|body| Body::new(RecordedBody { body, call: self }))
    }

    fn describe(&self, span: Span, facts: &RequestFacts) -> Span {
        // Names that clients invent would be as many as they like.
        let method = facts.route.as_deref().unwrap_or("_OTHER");
        let status = self.status.unwrap_or(Code::Cancelled);
        let is_servers = matches!(
            status,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        );
        let error = is_servers.then_some(Cow::Borrowed(name(status)));
        let path = &self.exchange.path;
        let original = path.strip_prefix('/').unwrap_or(path).to_owned();
        let span = Span { name: method.to_owned().into(), ..span }
            .with("rpc.system.name", "grpc")
            .with("rpc.method", method.to_owned())
            .with_any("rpc.method_original", facts.route.is_none().then_some(original))
            .with("rpc.response.status_code", name(status));
        self.exchange.describe(span, facts, error)
    }
}

impl Drop for RecordedCall {
    fn drop(&mut self) {
        self.exchange.trace.finish(|span, facts| self.describe(span, facts));
        let status = name(self.status.unwrap_or(Code::Cancelled));
        self.exchange.log("grpc", "POST", Some(status), "");
    }
}

/// The body of a response to a recorded call.
struct RecordedBody {
    body: Body,
    call: RecordedCall,
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // Calls of streams are answered here.
        let trace = Arc::clone(self.call.trace());
        let frame = trace.enter(|| Pin::new(&mut self.body).poll_frame(context));
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            if let Some(data) = frame.data_ref() {
                let bytes = data.remaining();
                self.call.exchange.sent(bytes);
            }
            if let Some(trailers) = frame.trailers_ref() {
                self.call.look_for_status(trailers);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The name of a status, as in gRPC's specification.
fn name(code: Code) -> &'static str {
    ErrorCode::status_name(code.into())
}

/// At most [`LONGEST_TEXT`] bytes of `text`.
fn shortened(text: &str) -> &str {
    beginning(text, LONGEST_TEXT)
}

/// The host and the port of a `Host` header or of an authority.
fn host_and_port(host: &str) -> (&str, Option<i64>) {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    match host.rsplit_once(':') {
        Some((address, port)) if !port.contains(']') => {
            (address, port.parse::<u16>().ok().map(i64::from))
        }
        _ => (host, None),
    }
}

/// The query, in which the values of all parameters that are not [`HARMLESS`] are replaced: clients put
/// credentials there.
fn redacted(query: &str) -> String {
    let parts = query.split('&').filter(|part| !part.is_empty());
    let redact = |part: &str| match part.split_once('=') {
        Some((name, value)) if HARMLESS.contains(&name) => format!("{name}={value}"),
        Some((name, _)) => format!("{name}=REDACTED"),
        None => part.to_owned(),
    };
    parts.map(redact).collect::<Vec<_>>().join("&")
}

/// Parameters of the server's routes. None of them is a secret.
const HARMLESS: [&str; 6] = ["timeout", "format", "model", "version", "minutes", "sequence"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports() {
        assert_eq!(host_and_port("example.com:8500"), ("example.com", Some(8500)));
        assert_eq!(host_and_port("example.com"), ("example.com", None));
        assert_eq!(host_and_port("[::1]:8500"), ("[::1]", Some(8500)));
        assert_eq!(host_and_port("[::1]"), ("[::1]", None));
        assert_eq!(host_and_port("user:word@h:1"), ("h", Some(1)));
        assert_eq!(host_and_port("h:99999"), ("h", None));
        assert_eq!(host_and_port(""), ("", None));
    }

    #[test]
    fn values_in_queries_are_redacted() {
        assert_eq!(redacted("token=abc&timeout=5&x"), "token=REDACTED&timeout=5&x");
        assert_eq!(redacted(""), "");
    }

    #[test]
    fn texts_of_clients_are_short() {
        assert_eq!(shortened("a"), "a");
        assert_eq!(shortened(&"é".repeat(1000)).len(), 1024);
        assert_eq!(shortened(&format!("a{}", "é".repeat(1000))).len(), 1023);
    }
}
