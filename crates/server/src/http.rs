//! One request: route, body, protocol, answer.
//!
//! Routes are ours ([`super::route`]) and not the HTTP library's router: TensorFlow Serving's
//! paths match in any case, keep their query, and have errors of their own.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderMap, ORIGIN};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use futures_util::{FutureExt, future};

use super::body::{self, BodyError, Limits};
use super::connection::Progress;
use super::drain::Activity;
use super::gate::{Gate, hushed};
use super::route::{self, Registered, Route, is_below_v1};
use super::trace::Tracing;
use super::{cors, form};
use crate::config::{Cors, ServerConfig};
use tensorserve_auth::{Access, Identity};
use tensorserve_core::engine::Engine;
use tensorserve_core::metrics::{CONTENT_TYPE as CONTENT_TYPE_OF_METRICS, TFS_CONTENT_TYPE};
use tensorserve_protocol::{ALLOW, Head, Headers, JSON, Reply};
use tensorserve_protocols::console::openapi::Way;
use tensorserve_protocols::console::{self, Asker, Console, assets};
use tensorserve_protocols::sagemaker::{self, Sagemaker};
use tensorserve_protocols::simple::clients;
use tensorserve_protocols::{simple, tfs};
use tensorserve_tensor::error::{Code, Error};

/// What every request needs. Cheap to clone.
#[derive(Clone)]
pub(super) struct State {
    engine: Engine,
    limits: Limits,
    activity: Activity,
    cors: Cors,
    /// Where paths are shared, they are Simple TensorFlow Serving's.
    is_simple: bool,
    /// Where TensorFlow Serving's own metrics are.
    metrics_path: Option<Arc<str>>,
    exact: bool,
    listener: clients::Listener,
    sagemaker: Sagemaker,
    /// And whether it may change what is served.
    console: Option<(Console, bool)>,
    tracing: Tracing,
    gate: Gate,
}

/// The HTTP library's headers as protocols ask for them.
struct HeadersOf<'a>(&'a HeaderMap);

impl Headers for HeadersOf<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str().ok()
    }
}

impl State {
    pub(super) fn new(
        config: &ServerConfig,
        engine: Engine,
        activity: Activity,
        gate: Gate,
    ) -> Self {
        let limits = Limits { bytes: config.http.max_body_bytes, time: config.http.body_timeout };
        let metrics_path = config.http.metrics_path.as_deref().map(Arc::from);
        let (cors, is_simple, exact) = (config.http.cors, config.http.is_simple, config.http.exact);
        let tracing = Tracing::new(&config.http);
        let sagemaker = Sagemaker::new(engine.clone(), config.http.sagemaker.clone());
        let console = config.http.console.enabled.then(|| console(&engine, &activity, &gate));
        let console = console.map(|console| (console, config.http.console.admin));
        let (https, grpc_tls) = (config.http.tls.is_some(), config.grpc.tls.is_some());
        let listener = clients::Listener { https, grpc_tls, auth: gate.is_shut() };
        State {
            engine,
            limits,
            activity,
            cors,
            is_simple,
            metrics_path,
            exact,
            listener,
            sagemaker,
            console,
            tracing,
            gate,
        }
    }

    /// Whether browsers get the dashboard, which shows what the console tells.
    fn has_page(&self) -> bool {
        self.console.is_some()
    }

    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }
}

fn console(engine: &Engine, activity: &Activity, gate: &Gate) -> Console {
    let activity = activity.clone();
    let options = console::Options {
        connections: Box::new(move || activity.connections()),
        auth: gate.is_shut(),
        ways: route::REGISTERED.iter().flat_map(ways).collect(),
    };
    Console::new(engine.clone(), options)
}

/// The ways to a route, for the description of all; those that lead nowhere are not described.
fn ways(entry: &Registered) -> impl Iterator<Item = Way> {
    let access = match entry.route.access() {
        Access::Open => "open",
        Access::Look => "look",
        Access::Infer => "infer",
        Access::Metrics => "metrics",
        Access::Admin | Access::Console => "admin",
    };
    let leads = !matches!(
        entry.route,
        Route::OtherMethod
            | Route::Nowhere
            | Route::Console(console::Route::Otherwise)
            | Route::Sagemaker(sagemaker::Route::ModelsOtherwise)
    );
    let ways = leads.then(|| entry.each()).into_iter().flatten();
    ways.map(move |(method, path)| Way { method, path, access })
}

/// Answers a request.
pub(super) async fn dispatch(
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<State>,
) -> HttpResponse {
    let start = Instant::now();
    let mut trace = state.tracing.of(request.headers());
    state.activity.step();
    let serving = request.conn_data::<Rc<Progress>>().map(Progress::serve);
    let in_flight = state.engine.in_flight();
    let answering = AssertUnwindSafe(answer(&request, payload.into_inner(), &state, start));
    let mut reply = answering.catch_unwind().await.unwrap_or_else(|_| {
        state.engine.panicked();
        plain(500, "a bug in the server; its log says more")
    });
    drop(in_flight);
    if let Some(served) = &reply.served {
        state.engine.count(served, start.elapsed());
    }
    trace.agree(&mut reply.headers);
    log_failure(&request, trace.id(), &reply);
    state.activity.step();
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(status);
    response.insert_header((CONTENT_TYPE, reply.content_type.as_ref()));
    for (name, value) in &reply.headers {
        response.insert_header((*name, value.as_str()));
    }
    trace.tell(&mut response, start, reply.served.and_then(|served| served.times));
    let is_rest = is_below_v1(request.uri().path());
    cors::allow(state.cors, &request, is_rest, state.gate.is_shut(), &mut response);
    if state.activity.is_closing() {
        response.force_close();
    }
    let Some(more) = reply.more else {
        return response.body(reply.body);
    };
    // As long as pieces come the request is being served.
    let pieces = stream::once(future::ready(reply.body)).chain(more);
    response.streaming(pieces.map(move |piece| {
        let _ = &serving;
        Ok::<_, Infallible>(piece)
    }))
}

async fn answer(request: &HttpRequest, payload: Payload, state: &State, start: Instant) -> Reply {
    let (method, path) = (request.method().as_str(), request.uri().path());
    // Asked without credentials, and about no path in particular.
    if let Some(reply) = cors::preflight(state.cors, request) {
        return reply;
    }
    let route = Route::of(method, path, state.metrics_path.as_deref());
    let who = match state.gate.admit(route, request.headers()).await {
        Ok(who) => who,
        Err(refusal) => return refusal,
    };
    let reply = answer_admitted(route, &who, request, payload, state, start).await;
    if route.access() == Access::Open && state.gate.is_shut() { hushed(reply) } else { reply }
}

/// Answers a request that `who` may make.
async fn answer_admitted(
    route: Route,
    who: &Identity,
    request: &HttpRequest,
    payload: Payload,
    state: &State,
    start: Instant,
) -> Reply {
    let (method, path) = (request.method().as_str(), request.uri().path());
    match route {
        // As TensorFlow Serving's it is a malformed path.
        Route::Client if state.exact => tfs_request(request, payload, state, start).await,
        Route::Client => {
            clients::source(&state.engine, &asked(request, state).head(), state.listener)
        }
        Route::Clients => clients::list(),
        Route::TfsLook => {
            let shown = simple::describe::look(
                &state.engine,
                &asked(request, state).head(),
                state.is_simple,
            );
            match shown {
                Some(reply) => reply,
                None => tfs_request(request, payload, state, start).await,
            }
        }
        Route::TfsInfer => tfs_request(request, payload, state, start).await,
        Route::TfsOptions => tfs_options(request.headers()),
        Route::Simple => simple_request(request.headers(), payload, state, start).await,
        // In a box: its many ways would make the future of every request as large as theirs.
        Route::Page(page) => Box::pin(simple_page(page, request, payload, state, start)).await,
        Route::Sagemaker(route) => {
            Box::pin(sagemaker_request(route, request, payload, state, start)).await
        }
        Route::Console(part) => match &state.console {
            Some(console) => {
                Box::pin(console_request(console, part, who, request, payload, state)).await
            }
            None => nowhere(path, state),
        },
        Route::Alive => root(&asked(request, state).head(), state),
        Route::PageFile if state.has_page() => assets::asset(&asked(request, state).head()),
        Route::Reference if state.has_page() => assets::reference(&asked(request, state).head()),
        Route::Live => Reply::ok("text/plain; charset=utf-8", &b"ok\n"[..]),
        Route::Health => Reply::ok("text/html; charset=utf-8", &b"healthy"[..]),
        Route::Ready => readiness(&state.engine),
        Route::Metrics => metrics(&state.engine),
        Route::TfsMetrics => tfs_metrics(request, state),
        Route::OtherMethod => plain(405, &format!("{method} is not allowed for {path}"))
            .with_header(ALLOW, route::allowed(path)),
        Route::PageFile | Route::Reference | Route::Nowhere => nowhere(path, state),
    }
}

/// The page for a browser; a sign of life for everyone else.
fn root(head: &Head, state: &State) -> Reply {
    if state.has_page() && (state.is_simple || assets::wants_page(head)) {
        return assets::page(head);
    }
    let reply = Reply::ok(JSON, &b"{\"status\":\"alive\"}"[..]);
    if state.has_page() { reply.with_header("vary", "Accept") } else { reply }
}

fn nowhere(path: &str, state: &State) -> Reply {
    if state.sagemaker.options().is_container {
        return sagemaker::not_found();
    }
    let message =
        format!("there is nothing at {path}; models are at /v1/models/NAME:predict and POST /");
    plain(404, &message)
}

async fn tfs_request(
    request: &HttpRequest,
    mut payload: Payload,
    state: &State,
    start: Instant,
) -> Reply {
    match body::read(request.headers(), &mut payload, state.limits).await {
        Ok(body) => tfs::handle(&state.engine, &asked(request, state).head(), body, start).await,
        Err(BodyError { status, error }) => tfs::refuse(error, status),
    }
}

async fn console_request(
    (console, may_change): &(Console, bool),
    route: console::Route,
    who: &Identity,
    request: &HttpRequest,
    mut payload: Payload,
    state: &State,
) -> Reply {
    let limits = Limits { bytes: console::LARGEST_BODY, ..state.limits };
    match body::read(request.headers(), &mut payload, limits).await {
        Ok(body) => {
            let from = request.peer_addr().map(|address| address.ip());
            let mut roles = who.roles().names();
            roles.retain(|role| *may_change || *role != "admin");
            let asker = Asker { name: who.name().map(str::to_owned), roles, from };
            console.handle(route, &asked(request, state).head(), body, &asker).await
        }
        Err(BodyError { status, error }) => console::refuse(error).with_status(status),
    }
}

async fn sagemaker_request(
    route: sagemaker::Route,
    request: &HttpRequest,
    mut payload: Payload,
    state: &State,
    start: Instant,
) -> Reply {
    match body::read(request.headers(), &mut payload, state.limits).await {
        Ok(body) => {
            let asked = asked(request, state);
            let (reply, later) = state.sagemaker.handle(route, &asked.head(), body, start).await;
            if let Some(later) = later {
                // A stop waits for it as for a connection.
                let open = state.activity.connection();
                actix_web::rt::spawn(later.run().map(|()| drop(open)));
            }
            reply
        }
        Err(BodyError { status, error }) => sagemaker::refuse_body(route, error, status),
    }
}

/// What a request says before its body, as protocols take it.
struct Asked<'r> {
    request: &'r HttpRequest,
    headers: HeadersOf<'r>,
    exact: bool,
}

impl Asked<'_> {
    fn head(&self) -> Head<'_> {
        let (method, uri) = (self.request.method().as_str(), self.request.uri());
        let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
        Head { method, target, headers: &self.headers, exact: self.exact }
    }
}

fn asked<'r>(request: &'r HttpRequest, state: &State) -> Asked<'r> {
    Asked { request, headers: HeadersOf(request.headers()), exact: state.exact }
}

/// A browser's question before a request to another origin. TensorFlow Serving answers it with
/// an empty body either way.
fn tfs_options(headers: &HeaderMap) -> Reply {
    let origin = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok());
    let is_web = origin.is_some_and(|o| o.contains("http://") || o.contains("https://"));
    Reply::ok(JSON, Bytes::new()).with_status(if is_web { 200 } else { 400 })
}

async fn simple_request(
    headers: &HeaderMap,
    mut payload: Payload,
    state: &State,
    start: Instant,
) -> Reply {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = content_type.unwrap_or(JSON).to_ascii_lowercase();
    let refuse = |BodyError { status, error }| simple::refuse(error, status);
    let unsupported = || simple::refuse(Error::invalid("Error, unsupported content type"), 400);
    if kind.starts_with("multipart/form-data") {
        return match form::read(headers, payload, state.limits).await {
            Ok(form) => simple::images(&state.engine, form, start).await,
            Err(error) => refuse(error),
        };
    }
    // What `curl -d` calls its body, whatever it is.
    let is_anything = kind.starts_with("application/x-www-form-urlencoded");
    if !is_anything && !kind.starts_with(JSON) {
        return unsupported();
    }
    match body::read(headers, &mut payload, state.limits).await {
        Ok(body) if is_anything && !body.trim_ascii_start().starts_with(b"{") => unsupported(),
        Ok(body) => simple::json(&state.engine, &body, start).await,
        Err(error) => refuse(error),
    }
}

/// A page of Simple TensorFlow Serving, or what its form is sent to.
async fn simple_page(
    page: simple::Page,
    request: &HttpRequest,
    mut payload: Payload,
    state: &State,
    start: Instant,
) -> Reply {
    let (path, headers) = (request.uri().path(), request.headers());
    let (engine, limits) = (&state.engine, state.limits);
    let refuse = |BodyError { status, error }| simple::refuse(error, status);
    match page {
        simple::Page::JsonForm => simple::pages::json_form(engine),
        simple::Page::ClientForm => simple::pages::client_form(engine),
        simple::Page::RunClient => match body::read(headers, &mut payload, limits).await {
            Ok(form) => {
                let asked = asked(request, state);
                simple::pages::run_client(engine, &asked.head(), &form, state.listener)
            }
            Err(error) => refuse(error),
        },
        simple::Page::ImageForm => simple::pages::image_form(engine),
        simple::Page::RunJson => match body::read(headers, &mut payload, limits).await {
            Ok(form) => simple::pages::run_json(engine, &form, start).await,
            Err(error) => refuse(error),
        },
        simple::Page::RunImage => match form::read(headers, payload, limits).await {
            Ok(form) => simple::pages::run_image(engine, form, start).await,
            Err(error) => refuse(error),
        },
        simple::Page::Asset => simple::pages::asset(path)
            .unwrap_or_else(|| plain(404, &format!("there is nothing at {path}"))),
    }
}

fn metrics(engine: &Engine) -> Reply {
    match engine.metrics_text() {
        Ok(text) => Reply::ok(CONTENT_TYPE_OF_METRICS, text),
        Err(error) => simple::refuse(error, 500),
    }
}

/// TensorFlow Serving's own metrics, whatever the method, as there.
fn tfs_metrics(request: &HttpRequest, state: &State) -> Reply {
    let path = request.uri().path();
    match request.uri().query().filter(|_| state.exact) {
        None => Reply::ok(TFS_CONTENT_TYPE, state.engine.tfs_metrics_text()),
        Some(query) => {
            let message = format!("Unexpected path: {path}?{query}. Should be {path}");
            Reply::ok(TFS_CONTENT_TYPE, message).with_status(400)
        }
    }
}

fn readiness(engine: &Engine) -> Reply {
    match engine.readiness() {
        Ok(()) => Reply::ok("text/plain; charset=utf-8", &b"ok\n"[..]),
        Err(error) => simple::refuse(error, 503),
    }
}

/// An answer outside any protocol.
fn plain(status: u16, message: &str) -> Reply {
    let code = if status == 500 { Code::Internal } else { Code::InvalidArgument };
    simple::refuse(Error::new(code, message.to_owned()), status)
}

/// Failures that are ours go to the log, once, with their cause; clients' own only on demand.
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
