//! The console: a JSON API for operators below `/api/v1/`, and the dashboard.
//!
//! [`status`] reports the state of the server and its models, [`history`] their metrics, and [`stream`]
//! both once a second. [`admin`] changes what is served, and [`audit`] records the changes. [`openapi`]
//! describes every route, and [`assets`] has the files of the dashboard. `docs/console.md` is the user
//! documentation.
//!
//! Text from clients is used as a path only in [`Engine::source_at`], which checks it.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

use self::audit::Audit;
use self::stream::Streams;
use tensorserve_auth::{Identity, Permission};
use tensorserve_core::engine::Engine;
use tensorserve_protocol::{
    ALLOW, Answer, Failure, Host, JSON, Methods, NoRoute, Protocol, Reply, RequestHead, Route,
    RouteGroup, RoutedRequest, Routes, bounded,
};
use tensorserve_tensor::error::{Code, Error, Result};

mod admin;
mod assets;
mod audit;
mod history;
mod model;
mod openapi;
mod status;
mod stream;
mod trial;

pub use self::trial::{OutputView, TrialView};

/// The most bytes of a payload.
const LARGEST_BODY: usize = 64 << 10;

const TAG: &str = "console";

/// The configuration of the console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsoleConfig {
    /// Admins may change what is served.
    pub admin: bool,
    /// `GET /` returns the dashboard to every client, and not only to browsers.
    pub is_root: bool,
}

/// The console.
pub struct Console {
    config: ConsoleConfig,
}

impl Console {
    /// The console with this configuration.
    #[must_use]
    pub fn new(config: ConsoleConfig) -> Self {
        Console { config }
    }
}

impl Protocol for Console {
    fn name(&self) -> &'static str {
        "console"
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let state = Arc::new(ConsoleState {
            config: self.config,
            host: host.clone(),
            audit: Audit::default(),
            streams: Streams::default(),
        });
        let weak = Arc::downgrade(&state);
        host.engine.each_second(move || {
            if let Some(state) = weak.upgrade() {
                state.update_streams();
            }
        });
        let mut group = routes.group(TAG, &state, refuse).on_reply(|reply| {
            reply.headers.push(("cache-control", "no-store".to_owned()));
            reply.headers.push(("x-content-type-options", "nosniff".to_owned()));
        });
        status::add_routes(&mut group);
        model::add_routes(&mut group);
        history::add_routes(&mut group);
        stream::add_routes(&mut group);
        audit::add_routes(&mut group);
        admin::add_routes(&mut group);
        openapi::add_routes(&mut group);
        group.scope("/api/v1", |_, head, missing| not_found(head, missing));
        assets::add_routes(&mut routes.group(TAG, &state, Reply::error));
    }
}

/// What the handlers of the console share.
struct ConsoleState {
    config: ConsoleConfig,
    host: Host,
    audit: Audit,
    streams: Streams,
}

impl ConsoleState {
    fn engine(&self) -> &Engine {
        &self.host.engine
    }

    fn client(&self, request: &RoutedRequest<'_>) -> ConsoleClient {
        ConsoleClient::new(&request.identity, request.peer, self.config.admin)
    }
}

/// The client that sent a request, as far as it is known.
#[derive(Clone, Debug)]
struct ConsoleClient {
    /// The name of the user or key, if the server authenticates.
    name: Option<String>,
    /// The roles that apply to the console.
    roles: Vec<&'static str>,
    /// The address that the request came from.
    from: Option<IpAddr>,
}

impl ConsoleClient {
    fn new(identity: &Identity, from: Option<IpAddr>, has_admin: bool) -> Self {
        let mut roles = identity.roles().names();
        roles.retain(|role| has_admin || *role != "admin");
        ConsoleClient { name: identity.name().map(str::to_owned), roles, from }
    }

    fn is_admin(&self) -> bool {
        self.roles.contains(&"admin")
    }
}

/// Adds a route that reads something. The type of the response describes it.
fn add_read<'g, T: JsonSchema>(
    group: &'g mut RouteGroup<'_, ConsoleState>,
    path: &'static str,
    permission: Permission,
    summary: &'static str,
    function: for<'a> fn(&'a ConsoleState, RoutedRequest<'a>) -> Answer,
) -> &'g mut Route {
    let route = group.immediate(Methods::Get, path, permission, function);
    route.own_host().summary(summary).response(JSON, schema_of::<T>())
}

/// The JSON Schema of `T`, with all subschemas inlined.
fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// A JSON response of the console, or an error.
fn reply(outcome: Result<impl Into<Bytes>>) -> Answer {
    Ok(Reply::ok(JSON, outcome?))
}

/// A value as JSON.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The response for an error.
fn refuse(error: Error, status: u16) -> Reply {
    let body = text(&serde_json::json!({ "error": bounded(error.message()) }));
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}

/// Why there is nothing at a path of the console, or not with this method.
fn not_found(head: &RequestHead<'_>, missing: &NoRoute) -> Failure {
    let path = head.path();
    match missing {
        NoRoute::Path => {
            let message = format!("the console has no path {path}; see /openapi.json");
            Error::not_found(message).into()
        }
        NoRoute::Method(allowed) => {
            let message = format!("{} is not allowed for {path}", head.method);
            Failure::new(Error::invalid(message), 405).with_header(ALLOW, allowed.join(", "))
        }
    }
}

/// The error for an unknown model.
fn no_model(name: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no model {name:?}"))
}
