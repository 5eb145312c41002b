//! One request: route, admission, payload, handler, response.
//!
//! Routing uses [`tensorserve_protocol::RouteTable`] and not the HTTP library's router: TensorFlow
//! Serving's paths are case-insensitive, may include the query, and have their own errors.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::dev::Payload;
use actix_web::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use futures_util::{FutureExt, future};

use super::admission::{self, Admission, AdmissionRefusal, Admitted, ArrivedRequest, Asked};
use super::body::{self, BodyError, BodyLimits};
use super::connection::RequestProgress;
use super::direct::ConnectionWriter;
use super::gate::{Gate, hushed, turn_away};
use super::recorded::RecordedRequest;
use super::trace::Tracing;
use super::{builtin, cors, form, held, priority, receipt};
use crate::api::ServedApi;
use crate::config::{Cors, ServerConfig};
use crate::drain::ListenerActivity;
use tensorserve_auth::Permission;
use tensorserve_protocol::{
    Answer, AnswerStyle, Body, BodyKind, CorsScope, Failure, Headers, NoRoute, PathParams, Reply,
    RequestHead, Route, RouteMatch, RouteScope, RoutedRequest,
};
use tensorserve_tensor::budget::RequestBudget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_trace::{Observer, RequestTrace};

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
    admission: Admission,
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
        let admission = Admission::new(gate, &api);
        HttpState { api, body_limits, cors, tracing, admission, is_encrypted }
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

/// What the responses of a group of routes have in common, whoever gives them.
#[derive(Clone, Copy)]
struct ReplyGroup {
    style: AnswerStyle,
    cors: CorsScope,
}

impl ReplyGroup {
    /// That of responses which belong to no group.
    const NONE: ReplyGroup = ReplyGroup {
        style: AnswerStyle::new(Reply::error),
        cors: CorsScope { rest_api: false, simple: false },
    };

    /// The response for an answer.
    fn reply(self, answer: impl Into<Answer>) -> RoutedReply {
        self.finished(self.style.render(answer.into()))
    }

    /// The response for an error.
    fn refusal(self, error: Error, status: u16) -> RoutedReply {
        self.reply(Failure::new(error, status))
    }

    /// This response, with what all of the group have.
    fn finished(self, mut reply: Reply) -> RoutedReply {
        self.style.finish(&mut reply);
        RoutedReply { reply, cors: self.cors, budget: None }
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
    let mut trace = state.tracing.of(request.headers());
    let activity = state.activity();
    activity.step();
    let serving = request.conn_data::<Rc<RequestProgress>>().map(RequestProgress::serve);
    let headers = HeadersOf(request.headers());
    let mut arrived = HttpArrival::new(&request, &headers, payload.into_inner(), &state, start);
    let (mut recorded, answer) = state.admission.pass(&mut arrived).await;
    let RoutedReply { mut reply, cors: scope, budget } = answer.unwrap_or_else(|_| {
        let error = Error::internal("internal error; see the server log");
        arrived.group.refusal(error, 500)
    });
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
    cors::allow(state.cors, &request, scope, state.admission.gate().is_shut(), &mut response);
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

/// A request that has arrived, and what answers it.
struct HttpArrival<'r> {
    request: &'r HttpRequest,
    head: RequestHead<'r>,
    payload: Payload,
    state: &'r HttpState,
    start: Instant,
    target: Target<'r>,
    /// The group of the target.
    group: ReplyGroup,
}

/// What answers a request.
enum Target<'r> {
    Route(&'r Route, PathParams<'r>),
    NoRoute(&'r RouteScope, NoRoute),
    Nothing,
    /// The settings for another request, which a browser asks about.
    Preflight(cors::Preflight<'r>, CorsScope),
}

impl Target<'_> {
    fn group(&self) -> ReplyGroup {
        match self {
            Target::Route(route, _) => {
                ReplyGroup { style: route.style(), cors: route.allowed_cors() }
            }
            Target::NoRoute(scope, _) => {
                ReplyGroup { style: scope.style(), cors: scope.allowed_cors() }
            }
            Target::Preflight(_, cors) => ReplyGroup { cors: *cors, ..ReplyGroup::NONE },
            Target::Nothing => ReplyGroup::NONE,
        }
    }
}

impl<'r> HttpArrival<'r> {
    fn new(
        request: &'r HttpRequest,
        headers: &'r HeadersOf<'r>,
        payload: Payload,
        state: &'r HttpState,
        start: Instant,
    ) -> Self {
        let uri = request.uri();
        let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
        let head = RequestHead { method: request.method().as_str(), target, headers };
        let (target, group) = (Target::Nothing, ReplyGroup::NONE);
        HttpArrival { request, head, payload, state, start, target, group }
    }

    fn find(&self) -> Target<'r> {
        let (state, table) = (self.state, self.state.api.table());
        if let Some(preflight) = cors::Preflight::of(state.cors, self.request) {
            let head = RequestHead { method: preflight.method(), ..self.head };
            let cors = match table.find(&head) {
                RouteMatch::Route(route, _) => route.allowed_cors(),
                RouteMatch::NoRoute(scope, _) => scope.allowed_cors(),
                RouteMatch::Nothing => CorsScope::default(),
            };
            if cors.simple {
                return Target::Preflight(preflight, cors);
            }
        }
        match table.find(&self.head) {
            RouteMatch::Route(route, params) => Target::Route(route, params),
            RouteMatch::NoRoute(scope, missing) => Target::NoRoute(scope, missing),
            RouteMatch::Nothing => Target::Nothing,
        }
    }
}

impl ArrivedRequest for HttpArrival<'_> {
    type Record = RecordedRequest;
    type Answer = RoutedReply;

    fn record(&mut self, observer: &Observer) -> Option<RecordedRequest> {
        RecordedRequest::begin(observer, self.request, self.start, self.state.is_encrypted)
    }

    fn trace(record: &RecordedRequest) -> &Arc<RequestTrace> {
        record.trace()
    }

    fn ask(&mut self, gate: &Gate, trace: Option<&Arc<RequestTrace>>) -> Result<Asked<'_>> {
        self.target = self.find();
        self.group = self.target.group();
        let (permission, is_own) = match &self.target {
            Target::Route(route, _) => {
                if let Some(trace) = trace {
                    trace.note(|facts| facts.route = Some(route.path().to_owned()));
                }
                (route.permission(), route.has_own_host())
            }
            Target::NoRoute(scope, _) => (scope.permission_for(self.head.method), false),
            // A preflight request has no credentials. Neither response says anything about models.
            Target::Nothing | Target::Preflight(..) => (Permission::Public, false),
        };
        let headers = self.request.headers();
        gate.check(permission, is_own, headers)?;
        Ok(Asked {
            permission,
            authorization: headers.get(AUTHORIZATION).map(HeaderValue::as_bytes),
            address: self.request.peer_addr().map(|address| address.ip()),
            priority: headers.get(PRIORITY).map(HeaderValue::as_bytes),
        })
    }

    fn refuse(&mut self, refusal: AdmissionRefusal) -> RoutedReply {
        self.group.reply(match refusal {
            AdmissionRefusal::Request(error) => Failure::from(error),
            AdmissionRefusal::Client(refusal) => turn_away(refusal, self.request.headers()),
        })
    }

    async fn handle(&mut self, admitted: Admitted<'_>) -> RoutedReply {
        match std::mem::replace(&mut self.target, Target::Nothing) {
            Target::Route(route, params) => self.answer_route(route, params, admitted).await,
            Target::NoRoute(scope, missing) => self.group.reply(scope.answer(&self.head, &missing)),
            Target::Nothing => self.group.reply(builtin::not_found(&self.head, &NoRoute::Path)),
            Target::Preflight(preflight, _) => self.group.reply(preflight.answer()),
        }
    }
}

impl<'r> HttpArrival<'r> {
    /// Answers a request that matches a route.
    async fn answer_route(
        &mut self,
        route: &'r Route,
        params: PathParams<'r>,
        admitted: Admitted<'_>,
    ) -> RoutedReply {
        let HttpArrival { request, head, state, start, group, .. } = *self;
        let Admitted { client: identity, budget, trace } = admitted;
        let (headers, is_public) = (request.headers(), route.permission() == Permission::Public);
        let (most, time) = state.body_limits;
        let limits = BodyLimits::new(most, time).over(state.activity(), request.conn_data());
        let payload = std::mem::replace(&mut self.payload, Payload::None);
        let body = match read_body(route, &head, headers, payload, limits, &budget).await {
            Ok(body) => body,
            Err(BodyError { status, error }) => {
                // A client that sends its body too slowly is not shed.
                if error.is_overload() {
                    state.api.engine().metrics().count_shed(&error);
                }
                return group.refusal(error, status);
            }
        };
        let begun = budget.begin_for(is_public);
        let head_bytes = head.target.len().saturating_add(size_of(headers));
        if let Err(error) = begun.and_then(|()| budget.expect(body::head_memory(head_bytes))) {
            state.api.engine().metrics().count_shed(&error);
            return group.reply(Failure::from(error));
        }
        if let Some(trace) = trace {
            note_payload(trace, &body);
        }
        let peer = request.peer_addr().map(|address| address.ip());
        let routed = RoutedRequest { head, params, body, start, identity, peer };
        let mut reply =
            group.style.render(admission::run(&budget, trace, route.answer(routed)).await);
        receipt::add_to_reply(&mut reply, &budget);
        let gate = state.admission.gate();
        if !is_public {
            reply.more = reply.more.map(|more| gate.until_revoked(headers, more));
        }
        let reply = if is_public && gate.is_shut() { hushed(reply) } else { reply };
        RoutedReply { budget: Some(budget), ..group.finished(reply) }
    }
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
