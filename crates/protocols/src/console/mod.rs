//! The console: what people who operate the server see and change, as JSON below `/api/v1/`.
//!
//! [`status`] tells how the server and its models are, [`past`] how they were in the last fifteen
//! minutes, [`stream`] both, once a second. [`admin`] changes things, and [`audit`] remembers who
//! did. [`openapi`] describes every route, and [`assets`] is the page that shows it all.
//! `docs/console.md` is for those who use it.
//!
//! Whether someone may ask is decided before a request comes here. Text that clients send becomes a
//! path only in [`Engine::source_at`], which checks it.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use smallvec::SmallVec;

use self::audit::Audit;
use self::stream::Streams;
use tensorserve_core::engine::Engine;
use tensorserve_protocol::{ALLOW, Head, JSON, Reply, bounded, percent_decoded};
use tensorserve_tensor::error::{Code, Error};

mod admin;
pub mod assets;
mod audit;
pub mod openapi;
mod past;
mod status;
mod stream;

/// The largest body that the console takes: nothing that is said to it is long.
pub const LARGEST_BODY: usize = 64 << 10;

/// A part of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The server and all models.
    Status,
    /// One model in detail.
    Model,
    /// The last fifteen minutes.
    History,
    /// Status and history as they come, once a second.
    Stream,
    /// Who changed what.
    Audit,
    /// Loads a model, or puts one back into service.
    Load,
    /// Takes a model out of service.
    Unload,
    /// Gives a label to a version.
    SetLabel,
    /// Takes a label away.
    RemoveLabel,
    /// Changes how requests are joined.
    Batching,
    /// Says that the server is not ready, or no longer does.
    Drain,
    /// The description of every route.
    OpenApi,
    /// A path of the console that has other methods, or none.
    Otherwise,
}

/// The part that answers a request, if one does.
#[must_use]
pub fn route(method: &str, path: &str) -> Option<Route> {
    let parts = match path {
        "/openapi.json" => SmallVec::from_slice(&["openapi.json"]),
        _ => parts(path)?,
    };
    let reads = matches!(method, "GET" | "HEAD");
    let (posts, deletes) = (method == "POST", method == "DELETE");
    Some(match parts.as_slice() {
        ["status"] if reads => Route::Status,
        ["models", _] if reads => Route::Model,
        ["history"] if reads => Route::History,
        ["stream"] if method == "GET" => Route::Stream,
        ["audit"] if reads => Route::Audit,
        ["models", _, "load"] if posts => Route::Load,
        ["models", _, "unload"] if posts => Route::Unload,
        ["models", _, "versions", _, "labels"] if posts => Route::SetLabel,
        ["models", _, "versions", _, "labels", _] if deletes => Route::RemoveLabel,
        ["models", _, "batching"] if posts => Route::Batching,
        ["drain"] if posts => Route::Drain,
        ["openapi.json"] if reads => Route::OpenApi,
        _ => Route::Otherwise,
    })
}

/// What is below `/api/v1/`, between slashes.
fn parts(path: &str) -> Option<SmallVec<[&str; 8]>> {
    Some(path.strip_prefix("/api/v1/")?.splitn(8, '/').collect())
}

/// Who asks, as far as is known.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The user's name, if the server knows users.
    pub name: Option<String>,
    /// What they may do.
    pub roles: Vec<&'static str>,
    /// The address that the request came from.
    pub from: Option<IpAddr>,
}

impl Asker {
    fn is_admin(&self) -> bool {
        self.roles.contains(&"admin")
    }
}

/// How the console is set up.
pub struct Options {
    /// How many connections are open.
    pub connections: Box<dyn Fn() -> usize + Send + Sync>,
    /// Whether the server asks who somebody is.
    pub auth: bool,
    /// Every way to a route of the server.
    pub ways: Vec<openapi::Way>,
}

/// The console. Cheap to clone.
#[derive(Clone)]
pub struct Console(Arc<Shared>);

struct Shared {
    engine: Engine,
    options: Options,
    audit: Audit,
    streams: Streams,
}

impl Console {
    /// The console of `engine`.
    #[must_use]
    pub fn new(engine: Engine, options: Options) -> Self {
        let (audit, streams) = (Audit::default(), Streams::default());
        let shared = Arc::new(Shared { engine, options, audit, streams });
        let weak = Arc::downgrade(&shared);
        shared.engine.each_second(move || {
            if let Some(shared) = weak.upgrade() {
                shared.tell_streams();
            }
        });
        Console(shared)
    }

    /// Answers a request for a part of [`route`].
    pub async fn handle(&self, route: Route, head: &Head<'_>, body: Bytes, asker: &Asker) -> Reply {
        let shared = &*self.0;
        let answer = match route {
            Route::Status => Ok(json(shared.status(asker))),
            Route::Model => status::model(&shared.engine, &target(head).model, asker).map(json),
            Route::History => past::history(&shared.engine, head).map(json),
            Route::Stream => shared.stream(asker),
            Route::Audit => Ok(json(shared.audit.list())),
            Route::OpenApi => Ok(json(shared.describe())),
            Route::Otherwise => Err(otherwise(head)),
            Route::Load
            | Route::Unload
            | Route::SetLabel
            | Route::RemoveLabel
            | Route::Batching
            | Route::Drain => shared.change(route, head, &body, asker).await,
        };
        let reply = answer.unwrap_or_else(refuse);
        let reply =
            if route == Route::Otherwise { with_methods(reply, head.path()) } else { reply };
        reply
            .with_header("cache-control", "no-store")
            .with_header("x-content-type-options", "nosniff")
    }
}

/// What a path names, percent-decoded.
#[derive(Debug, Default)]
struct Target {
    model: String,
    version: String,
    label: String,
}

fn target(head: &Head<'_>) -> Target {
    let parts = parts(head.path()).unwrap_or_default();
    let part = |index: usize| percent_decoded(parts.get(index).copied().unwrap_or_default());
    Target { model: part(1), version: part(3), label: part(5) }
}

fn json(text: impl Into<Bytes>) -> Reply {
    Reply::ok(JSON, text)
}

/// A value as JSON.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The answer that tells of a failure.
pub fn refuse(error: Error) -> Reply {
    let body = text(&serde_json::json!({ "error": bounded(error.message()) }));
    let mut reply = json(body).with_status(error.code().http());
    reply.error = Some(error);
    reply
}

fn otherwise(head: &Head<'_>) -> Error {
    if methods(head.path()).is_empty() {
        let path = head.path();
        return Error::not_found(format!("the console has nothing at {path}; see /openapi.json"));
    }
    Error::invalid(format!("{} is not allowed for {}", head.method, head.path()))
}

/// The methods that a path takes.
fn methods(path: &str) -> Vec<&'static str> {
    let all = ["GET", "HEAD", "POST", "DELETE"].into_iter();
    all.filter(|method| route(method, path).is_some_and(|found| found != Route::Otherwise))
        .collect()
}

fn with_methods(reply: Reply, path: &str) -> Reply {
    let methods = methods(path);
    if methods.is_empty() {
        return reply;
    }
    reply.with_status(405).with_header(ALLOW, methods.join(", "))
}

/// The model is not there.
fn no_model(name: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no model {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_their_route_and_have_methods() {
        assert_eq!(route("GET", "/api/v1/models/m"), Some(Route::Model));
        assert_eq!(route("POST", "/api/v1/models/m"), Some(Route::Otherwise));
        let label = "/api/v1/models/m/versions/1/labels/stable";
        assert_eq!(route("DELETE", label), Some(Route::RemoveLabel));
        assert_eq!(methods(label), ["DELETE"]);
        assert_eq!(methods("/api/v1/status"), ["GET", "HEAD"]);
        assert_eq!(route("GET", "/api/v1/"), Some(Route::Otherwise));
        assert_eq!(route("GET", "/api/v1/models/a/b/c/d/e/f/g/h/i"), Some(Route::Otherwise));
        assert_eq!(route("GET", "/api/v2/status"), None);
        assert_eq!(route("GET", "/api/v1"), None);
    }
}
