//! What a protocol is made of.
//!
//! A protocol turns bytes into an [`InferRequest`](tensorserve_core::engine::InferRequest) and an
//! [`InferResponse`](tensorserve_core::engine::InferResponse) into bytes; everything between is
//! [`Engine::infer`]. It brings [`Routes`], each with what a client must be allowed to and how it is
//! described, and perhaps gRPC services, metrics under names of its own, and formats of files.
//!
//! No protocol sees a socket or the HTTP library: a request comes in as a [`Request`] and goes out as
//! a [`Reply`]. A protocol need not be part of this program: whoever embeds the server adds it where
//! the server is put together.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::sync::{Arc, OnceLock};

use tensorserve_core::engine::{Engine, RecordFormat};
use tensorserve_core::metrics::MetricsExporter;
use tensorserve_core::repository::VersionFiles;

pub mod grpc;
mod media;
mod reply;
mod request;
mod route;
mod table;
pub mod url;

pub use self::media::{first_choice, media_type};
pub use self::reply::{ALLOW, Background, Chunks, JSON, LONGEST_ERROR, NPY, Reply, bounded};
pub use self::request::{Body, Form, Headers, NoHeaders, Params, Request, RequestHead};
pub use self::route::{
    Answer, BodyKind, Envelope, Handler, Methods, Missing, Operation, Route, Scope,
};
pub use self::table::{Group, Match, RouteTable, Routes};

/// A protocol. Where the server is put together, one line adds it.
pub trait Protocol: Send + Sync {
    /// Its name, as metrics have it.
    fn name(&self) -> &'static str;

    /// Adds its routes.
    fn routes(&self, host: &Host, routes: &mut Routes);

    /// Adds its gRPC services; most protocols have none.
    fn grpc(&self, _host: &Host, _limits: grpc::GrpcLimits, _services: &mut grpc::GrpcServices) {}

    /// Metrics under names of its own.
    fn exporter(&self) -> Option<Arc<dyn MetricsExporter>> {
        None
    }

    /// Files in a version's folder that it knows: recorded requests, batching parameters.
    fn version_files(&self) -> Option<Arc<dyn VersionFiles>> {
        None
    }

    /// How it writes the request log.
    fn record_format(&self) -> Option<Arc<dyn RecordFormat>> {
        None
    }
}

/// What a protocol is served by.
#[derive(Clone)]
pub struct Host {
    /// The core.
    pub engine: Engine,
    /// How clients reach the server.
    pub listeners: Listeners,
    /// How many HTTP connections are open.
    pub connections: Arc<dyn Fn() -> usize + Send + Sync>,
    /// How every route of the server is described, once all protocols have added theirs.
    pub operations: Arc<OnceLock<Vec<Operation>>>,
}

/// How clients reach the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// HTTP is encrypted.
    pub https: bool,
    /// gRPC is encrypted.
    pub grpc_tls: bool,
    /// Clients must authenticate.
    pub auth: bool,
}
