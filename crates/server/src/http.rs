//! One request: route, gate, payload, handler, response.
//!
//! Routing uses [`tensorserve_protocol::RouteTable`] and not the HTTP library's router: TensorFlow
//! Serving's paths are case-insensitive, may include the query, and have their own errors.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::dev::Payload;
use actix_web::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use futures_util::{FutureExt, future};

use super::body::{self, BodyError, BodyLimits};
use super::connection::RequestProgress;
use super::direct::ConnectionWriter;
use super::gate::{Gate, hushed};
use super::recorded::RecordedRequest;
use super::trace::Tracing;
use super::{builtin, cors, form, held, priority};
use crate::api::ServedApi;
use crate::config::{Cors, ServerConfig};
use crate::drain::ListenerActivity;
use tensorserve_auth::Permission;
use tensorserve_protocol::{
    Body, BodyKind, CorsScope, Headers, NoRoute, PathParams, Reply, RequestHead, Route, RouteMatch,
    RoutedRequest,
};
use tensorserve_tensor::budget::{Budgeted, RequestBudget};
use tensorserve_tensor::error::Error;
use tensorserve_trace::{RequestTrace, Traced};

/// The header as the HTTP library looks it up without reading it again.
const PRIORITY: HeaderName = HeaderName::from_static(priority::PRIORITY);

/// The state that all requests share. Cheap to clone.
#[derive(Clone)]
pub(super) struct HttpState {
    api: ServedApi,
    /// The limits of bodies: their size, and how long they may take to arrive.
    body_limits: (usize, Duration),
    cors: Cors,
    tracing: Tracing,
    gate: Gate,
    is_encrypted: bool,
}

/// The HTTP library's headers, for protocols.
struct HeadersOf<'a>(&'a HeaderMap);

impl Headers for HeadersOf<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        // The names of a request are few: comparing them costs less than a hash.
        let (_, value) = self.0.iter().find(|(known, _)| known.as_str() == name)?;
        value.to_str().ok()
    }
}

impl HttpState {
    pub(super) fn new(config: &ServerConfig, api: ServedApi, gate: Gate) -> Self {
        let body_limits = (config.http.max_body_bytes, config.http.body_timeout);
        let (cors, tracing) = (config.http.cors, Tracing::new(&config.http));
        let is_encrypted = config.http.tls.is_some();
        HttpState { api, body_limits, cors, tracing, gate, is_encrypted }
    }

    pub(super) fn activity(&self) -> &ListenerActivity {
        self.api.activity()
    }
}

/// A response, and which settings let pages of other origins call its route.
struct RoutedReply {
    reply: Reply,
    cors: CorsScope,
    /// The memory of the request, until the response is sent.
    budget: Option<RequestBudget>,
}

impl RoutedReply {
    fn new(reply: Reply, cors: CorsScope) -> Self {
        RoutedReply { reply, cors, budget: None }
    }
}

/// Seconds after which a client may repeat a request for which there was no memory.
const RETRY_AFTER: &str = "1";

/// Answers a request.
pub(super) async fn dispatch(
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<HttpState>,
) -> HttpResponse {
    let start = Instant::now();
    let mut recorded =
        RecordedRequest::begin(state.api.observer(), &request, start, state.is_encrypted);
    let mut trace = state.tracing.of(request.headers());
    let activity = state.activity();
    activity.step();
    let serving = request.conn_data::<Rc<RequestProgress>>().map(RequestProgress::serve);
    let in_flight = state.api.engine().metrics().in_flight();
    let record = recorded.as_ref().map(RecordedRequest::trace);
    let answering = answer(&request, payload.into_inner(), &state, start, record);
    let answering = AssertUnwindSafe(answering);
    let RoutedReply { mut reply, cors: scope, budget } =
        answering.catch_unwind().await.unwrap_or_else(|_| {
            state.api.engine().metrics().panicked();
            let error = Error::internal("internal error; see the server log");
            RoutedReply::new(Reply::error(error, 500), CorsScope::default())
        });
    drop(in_flight);
    trace.agree(&mut reply.headers);
    log_failure(&request, trace.id(), &reply);
    if reply.error.as_ref().is_some_and(Error::is_overload) {
        reply.headers.push(("retry-after", RETRY_AFTER.to_owned()));
    }
    if let Some(background) = reply.background.take() {
        // A graceful shutdown waits for it as for a connection.
        let open = activity.connection();
        actix_web::rt::spawn(background.map(|()| drop(open)));
    }
    activity.step();
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(status);
    response.insert_header((CONTENT_TYPE, reply.content_type.as_ref()));
    for (name, value) in &reply.headers {
        response.insert_header((*name, value.as_str()));
    }
    if let Some(recorded) = &mut recorded {
        recorded.answered(reply.status, trace.id());
        recorded.sent(reply.body.len() + reply.parts.iter().map(Bytes::len).sum::<usize>());
    }
    trace.report(&mut response, start, reply.timing);
    cors::allow(state.cors, &request, scope, state.gate.is_shut(), &mut response);
    if activity.is_closing() {
        response.force_close();
    }
    let Some(more) = reply.more else {
        let writer = request.conn_data::<ConnectionWriter>();
        let writer = writer.filter(|_| request.method() != Method::HEAD);
        return held::respond(&mut response, reply.body, reply.parts, budget, writer);
    };
    // The request is being served until the last piece.
    let pieces = stream::once(future::ready(reply.body)).chain(more);
    let mut is_first = true;
    response.streaming(pieces.map(move |piece| {
        let _ = (&serving, &budget);
        // The first piece has been counted.
        if let Some(recorded) = recorded.as_mut().filter(|_| !std::mem::take(&mut is_first)) {
            recorded.sent(piece.len());
        }
        Ok::<_, Infallible>(piece)
    }))
}

async fn answer(
    request: &HttpRequest,
    payload: Payload,
    state: &HttpState,
    start: Instant,
    trace: Option<&Arc<RequestTrace>>,
) -> RoutedReply {
    let (headers, uri) = (HeadersOf(request.headers()), request.uri());
    let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
    let head = RequestHead { method: request.method().as_str(), target, headers: &headers };
    // A preflight request has no credentials.
    if let Some(preflight) = cors::Preflight::of(state.cors, request) {
        let head = RequestHead { method: preflight.method(), ..head };
        let cors = match state.api.table().find(&head) {
            RouteMatch::Route(route, _) => route.allowed_cors(),
            RouteMatch::NoRoute(scope, _) => scope.allowed_cors(),
            RouteMatch::Nothing => CorsScope::default(),
        };
        if cors.simple {
            return RoutedReply::new(preflight.answer(), cors);
        }
    }
    match state.api.table().find(&head) {
        RouteMatch::Route(route, params) => {
            if let Some(trace) = trace {
                trace.note(|facts| facts.route = Some(route.path().to_owned()));
            }
            answer_route(route, params, head, request, payload, state, (start, trace)).await
        }
        RouteMatch::NoRoute(scope, missing) => {
            let permission = scope.permission_for(head.method);
            let refuse = |error, status| scope.refuse(error, status);
            let admitted = state.gate.admit(permission, false, request, refuse).await;
            let reply = match admitted {
                Ok(_) => scope.answer(&head, &missing),
                Err(refusal) => refusal,
            };
            RoutedReply::new(reply, scope.allowed_cors())
        }
        RouteMatch::Nothing => {
            let reply = builtin::not_found(&head, &NoRoute::Path);
            RoutedReply::new(reply, CorsScope::default())
        }
    }
}

/// Answers a request that matches a route.
async fn answer_route<'r>(
    route: &'r Route,
    params: PathParams<'r>,
    head: RequestHead<'r>,
    request: &HttpRequest,
    payload: Payload,
    state: &HttpState,
    (start, trace): (Instant, Option<&Arc<RequestTrace>>),
) -> RoutedReply {
    let permission = route.permission();
    let refuse = |error, status| route.refuse(error, status);
    let refused = |reply| RoutedReply::new(reply, route.allowed_cors());
    let admitted = state.gate.admit(permission, route.has_own_host(), request, refuse).await;
    let identity = match admitted {
        Ok(identity) => identity,
        Err(refusal) => return refused(refusal),
    };
    let budget = state.api.silent_budget();
    let asked = request.headers().get(PRIORITY).map(HeaderValue::as_bytes);
    priority::grant(&budget, &identity, asked);
    let (most, time) = state.body_limits;
    let limits = BodyLimits::new(most, time).over(state.activity(), request.conn_data());
    let read = read_body(route, &head, request.headers(), payload, limits, &budget);
    let body = match read.await {
        Ok(body) => body,
        Err(BodyError { status, error }) => {
            // A client that sends its body too slowly is not shed.
            if error.is_overload() {
                state.api.engine().metrics().count_shed(&error);
            }
            return refused(route.refuse(error, status));
        }
    };
    let begun = budget.begin_for(permission == Permission::Public);
    let head_bytes = head.target.len().saturating_add(size_of(request.headers()));
    if let Err(error) = begun.and_then(|()| budget.expect(body::head_memory(head_bytes))) {
        state.api.engine().metrics().count_shed(&error);
        return refused(refuse_overload(route, error));
    }
    let peer = request.peer_addr().map(|address| address.ip());
    let http_headers = request.headers();
    let request = RoutedRequest { head, params, body, start, identity, peer };
    if let Some(trace) = trace {
        note_payload(trace, &request.body);
    }
    let answering = Traced::new(trace.cloned(), route.answer(request));
    let mut reply = Budgeted::new(budget.clone(), answering).await;
    if permission != Permission::Public {
        reply.more = reply.more.map(|more| state.gate.until_revoked(http_headers, more));
    }
    let is_hushed = permission == Permission::Public && state.gate.is_shut();
    let reply = if is_hushed { hushed(reply) } else { reply };
    RoutedReply { reply, cors: route.allowed_cors(), budget: Some(budget) }
}

/// The bytes of the names and values of headers.
fn size_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// Records that the payload of a request has arrived.
fn note_payload(trace: &RequestTrace, body: &Body) {
    if trace.is_recording() {
        trace.add(trace.child("receive", trace.start(), Instant::now()));
    }
    if let Body::Bytes(bytes) = body {
        let bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        trace.note(|facts| facts.request_bytes = bytes);
    }
}

fn refuse_overload(route: &Route, error: Error) -> Reply {
    let status = error.http_status();
    route.refuse(error, status)
}

async fn read_body(
    route: &Route,
    head: &RequestHead<'_>,
    headers: &HeaderMap,
    mut payload: Payload,
    limits: BodyLimits<'_>,
    budget: &RequestBudget,
) -> Result<Body, BodyError> {
    let limits = limits.with_bytes(route.max_body_bytes(limits.bytes()));
    let tensors_at = || route.where_tensors_begin(head);
    match route.body_kind(head) {
        BodyKind::Bytes => {
            body::read(headers, &mut payload, limits, budget, tensors_at).await.map(Body::Bytes)
        }
        // Boxed: it would make the future of every request larger.
        BodyKind::Form => {
            Box::pin(form::read(headers, payload, limits, budget)).await.map(Body::Form)
        }
        BodyKind::Ignored => {
            let skipped = body::skip(headers, payload, limits).await;
            skipped.map(|()| Body::Bytes(Bytes::new()))
        }
    }
}

/// Logs the server's own errors with their cause; errors of clients only at debug level.
fn log_failure(request: &HttpRequest, id: &str, reply: &Reply) {
    let Some(error) = &reply.error else {
        return;
    };
    let (method, path, status) = (request.method(), request.uri().path(), reply.status);
    let cause = std::error::Error::source(error).map_or(String::new(), |e| format!(" ({e})"));
    let id = if id.is_empty() { String::new() } else { format!(" [{id}]") };
    if error.code().is_servers_fault() {
        log::error!("{method} {path:?} {status}{id}: {error}{cause}");
    } else {
        log::debug!("{method} {path:?} {status}{id}: {error}{cause}");
    }
}
