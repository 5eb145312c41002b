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

use tensorserve_trace::{
    Observer, RequestFacts, RequestTrace, Span, TRACEPARENT, TRACESTATE, Value,
};

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

/// An HTTP request that is recorded. Its record ends when this is dropped: with the response, with the
/// last piece of a response in pieces, or when the client has left.
pub(super) struct RecordedRequest {
    trace: Arc<RequestTrace>,
    method: String,
    path: String,
    query: String,
    scheme: &'static str,
    host: String,
    version: &'static str,
    user_agent: Option<String>,
    client: Option<IpAddr>,
    /// The status of the response; 0 before there is one.
    status: u16,
    response_bytes: u64,
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
        Some(RecordedRequest {
            trace,
            method: shortened(request.method().as_str()).into_owned(),
            path: shortened(request.uri().path()).into_owned(),
            query: shortened(request.uri().query().unwrap_or_default()).into_owned(),
            scheme: if is_encrypted { "https" } else { "http" },
            host: shortened(text("host").unwrap_or_default()).into_owned(),
            version: match request.version() {
                Version::HTTP_10 => "1.0",
                _ => "1.1",
            },
            user_agent: text("user-agent").map(|agent| shortened(agent).into_owned()),
            client: request.peer_addr().map(|address| address.ip()),
            status: 0,
            response_bytes: 0,
            request_id: String::new(),
        })
    }

    pub(super) fn trace(&self) -> &Arc<RequestTrace> {
        &self.trace
    }

    /// Records the response.
    pub(super) fn answered(&mut self, status: u16, request_id: &str) {
        self.status = status;
        request_id.clone_into(&mut self.request_id);
    }

    /// Counts bytes of the response's body.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.response_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
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
        let mut span = Span { name: name.into(), ..span };
        let mut add = |name, value: Option<Value>| {
            if let Some(value) = value {
                span.attributes.push((name, value));
            }
        };
        if self.is_known() {
            add("http.request.method", Some(self.method.clone().into()));
        } else {
            add("http.request.method", Some("_OTHER".into()));
            add("http.request.method_original", Some(self.method.clone().into()));
        }
        add("url.path", Some(self.path.clone().into()));
        add("url.query", Some(redacted(&self.query)).filter(|q| !q.is_empty()).map(Into::into));
        add("url.scheme", Some(self.scheme.into()));
        add("http.route", facts.route.clone().map(Into::into));
        let (address, port) = host_and_port(&self.host);
        add("server.address", Some(address).filter(|a| !a.is_empty()).map(|a| a.to_owned().into()));
        add("server.port", port.map(Into::into));
        add("client.address", self.client.map(|client| client.to_string().into()));
        add("network.protocol.version", Some(self.version.into()));
        add("user_agent.original", self.user_agent.clone().map(Into::into));
        let status = Some(i64::from(self.status)).filter(|status| *status > 0);
        add("http.response.status_code", status.map(Into::into));
        let error = match self.status {
            0 => Some(Cow::Borrowed("cancelled")),
            500.. => Some(Cow::Owned(self.status.to_string())),
            _ => None,
        };
        add("error.type", error.clone().map(Value::Text));
        with_facts(span, facts).failed(error)
    }
}

impl Drop for RecordedRequest {
    fn drop(&mut self) {
        self.trace.finish(|span, facts| self.describe(span, facts));
        if self.trace.is_logged() {
            let facts = self.trace.facts();
            AccessLine {
                protocol: "http",
                method: &self.method,
                path: &self.path,
                status: (self.status > 0).then(|| self.status.to_string()).as_deref(),
                request_id: &self.request_id,
                client: self.client,
                response_bytes: self.response_bytes,
                time: self.trace.start().elapsed(),
                trace: self.trace.has_trace().then(|| self.trace.context()),
                facts: &facts,
            }
            .write();
        }
    }
}

/// A gRPC call that is recorded. Its record ends when this is dropped: with the end of its response.
pub(super) struct RecordedCall {
    trace: Arc<RequestTrace>,
    path: String,
    host: String,
    client: Option<IpAddr>,
    /// The status of the response, once it is known.
    status: Option<Code>,
    response_bytes: u64,
}

impl RecordedCall {
    /// The record of a call that began now, if it is recorded.
    pub(super) fn begin(
        observer: &Observer,
        request: &http::Request<Body>,
        client: Option<IpAddr>,
    ) -> Option<Self> {
        let headers = request.headers();
        let value = |name: &http::HeaderName| headers.get(name).map(http::HeaderValue::as_bytes);
        let (parent, state) = (|| value(&GRPC_PARENT), || value(&GRPC_STATE));
        let trace = observer.begin(Instant::now(), parent, state)?;
        let host = request.uri().authority().map_or("", |authority| authority.as_str());
        Some(RecordedCall {
            trace,
            path: shortened(request.uri().path()).into_owned(),
            host: shortened(host).into_owned(),
            client,
            status: None,
            response_bytes: 0,
        })
    }

    pub(super) fn trace(&self) -> &Arc<RequestTrace> {
        &self.trace
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
        let mut span = Span { name: method.to_owned().into(), ..span };
        let (address, port) = host_and_port(&self.host);
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
        let mut add = |name, value: Option<Value>| {
            if let Some(value) = value {
                span.attributes.push((name, value));
            }
        };
        add("rpc.system.name", Some("grpc".into()));
        add("rpc.method", Some(method.to_owned().into()));
        if facts.route.is_none() {
            let original = self.path.strip_prefix('/').unwrap_or(&self.path);
            add("rpc.method_original", Some(original.to_owned().into()));
        }
        add("rpc.response.status_code", Some(name(status).into()));
        add("server.address", Some(address).filter(|a| !a.is_empty()).map(|a| a.to_owned().into()));
        add("server.port", port.map(Into::into));
        add("client.address", self.client.map(|client| client.to_string().into()));
        add("error.type", error.clone().map(Value::Text));
        with_facts(span, facts).failed(error)
    }
}

impl Drop for RecordedCall {
    fn drop(&mut self) {
        self.trace.finish(|span, facts| self.describe(span, facts));
        if self.trace.is_logged() {
            let facts = self.trace.facts();
            AccessLine {
                protocol: "grpc",
                method: "POST",
                path: &self.path,
                status: Some(name(self.status.unwrap_or(Code::Cancelled))),
                request_id: "",
                client: self.client,
                response_bytes: self.response_bytes,
                time: self.trace.start().elapsed(),
                trace: self.trace.has_trace().then(|| self.trace.context()),
                facts: &facts,
            }
            .write();
        }
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
                let bytes = u64::try_from(data.remaining()).unwrap_or(u64::MAX);
                self.call.response_bytes += bytes;
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

/// What both kinds of requests have in common.
fn with_facts(mut span: Span, facts: &RequestFacts) -> Span {
    if let Some(model) = &facts.model {
        span = span.with("tensorserve.model.name", model.to_string());
    }
    if let Some(version) = facts.version {
        span = span.with("tensorserve.model.version", version);
    }
    if let Some(signature) = &facts.signature {
        span = span.with("tensorserve.signature.name", signature.clone());
    }
    span
}

/// The name of a status, as in gRPC's specification.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// At most [`LONGEST_TEXT`] bytes of `text`.
fn shortened(text: &str) -> Cow<'_, str> {
    let ends = (0..=text.len().min(LONGEST_TEXT)).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    Cow::Borrowed(text.get(..end).unwrap_or_default())
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

/// The query with the values of all parameters but those that the server's own routes have replaced:
/// clients put credentials there.
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
        assert_eq!(shortened("a").as_ref(), "a");
        assert_eq!(shortened(&"é".repeat(1000)).len(), 1024);
        assert_eq!(shortened(&format!("a{}", "é".repeat(1000))).len(), 1023);
    }
}
