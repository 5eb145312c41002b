//! The interface that protocols implement.
//!
//! A protocol turns bytes into an [`InferRequest`](tensorserve_core::engine::InferRequest) and an
//! [`InferResponse`](tensorserve_core::engine::InferResponse) into bytes; [`Engine::infer`] does the
//! rest. It adds [`Routes`], each with the required permission and a description, and optionally gRPC
//! services, metrics under its own names, and file formats.
//!
//! A protocol does not see a socket or the HTTP library: it receives a [`RoutedRequest`] and returns
//! a [`Reply`] or an error, which the group of the route writes in the protocol's format. A program that
//! embeds the server can add protocols of its own.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::sync::{Arc, OnceLock};

use tensorserve_core::engine::{Engine, RequestLogFormat};
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
pub use self::reply::{
    ALLOW, Answer, AnswerStyle, Background, Chunks, ErrorEncoder, Failure, JSON, LONGEST_ERROR,
    NPY, Reply, bounded, inferred,
};
pub use self::request::{
    Body, Headers, MultipartForm, NoHeaders, PathParams, RequestHead, RoutedRequest,
};
pub use self::route::{
    AnswerFuture, BodyKind, CorsScope, DescribeModel, Handler, Methods, NoRoute, Operation,
    QueryParameter, Route, RouteScope,
};
pub use self::table::{RouteGroup, RouteMatch, RouteTable, Routes};

/// A protocol. The program adds each one where it starts the server.
pub trait Protocol: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &'static str;

    /// Adds its routes.
    fn routes(&self, host: &Host, routes: &mut Routes);

    /// Adds its gRPC services; most protocols have none.
    fn grpc(&self, _host: &Host, _limits: grpc::GrpcLimits, _services: &mut grpc::GrpcServices) {}

    /// Exports metrics under its own names.
    fn exporter(&self) -> Option<Arc<dyn MetricsExporter>> {
        None
    }

    /// Reads files in a version's directory: recorded requests, batching parameters.
    fn version_files(&self) -> Option<Arc<dyn VersionFiles>> {
        None
    }

    /// The format in which it writes the request log.
    fn request_log_format(&self) -> Option<Arc<dyn RequestLogFormat>> {
        None
    }
}

/// The server that a protocol is part of.
#[derive(Clone)]
pub struct Host {
    /// The core.
    pub engine: Engine,
    /// How clients reach the server.
    pub listeners: Listeners,
    /// The number of open HTTP connections.
    pub connections: Arc<dyn Fn() -> usize + Send + Sync>,
    /// The descriptions of all routes, set once every protocol has added its own.
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
