//! The API that the listeners serve: the routes and gRPC services of all protocols, and the
//! server's own.

use std::sync::{Arc, OnceLock};

use tonic::service::RoutesBuilder;

use crate::builtin::BuiltinProtocol;
use crate::config::ServerConfig;
use crate::drain::ListenerActivity;
use tensorserve_auth::Permission;
use tensorserve_core::engine::Engine;
use tensorserve_protocol::grpc::{GrpcLimits, GrpcServices, UnaryMethod};
use tensorserve_protocol::{Host, Listeners, Protocol, RouteTable, Routes};
use tensorserve_tensor::error::Result;
use tensorserve_trace::Observer;

/// All routes and gRPC services. Cheap to clone.
#[derive(Clone)]
pub struct ServedApi(Arc<ServedApiInner>);

struct ServedApiInner {
    engine: Engine,
    /// Connections and requests of the HTTP listener.
    activity: ListenerActivity,
    routes: RouteTable,
    grpc: GrpcServices,
    observer: Observer,
}

/// The gRPC methods of the server itself.
pub(crate) const OWN_METHODS: [(&str, Permission); 4] = [
    // For probes, which have no credentials. They report the readiness of the whole server.
    ("/grpc.health.v1.Health/Check", Permission::Public),
    ("/grpc.health.v1.Health/Watch", Permission::Public),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Permission::Read),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Permission::Read),
];

impl ServedApi {
    /// The API of these protocols for `engine`. If two have the same route, the first one is used;
    /// the server's own routes come last. `observer` decides which requests are recorded.
    ///
    /// # Errors
    /// If two paths differ only in the name of a parameter.
    pub fn new(
        config: &ServerConfig,
        engine: &Engine,
        protocols: &[Arc<dyn Protocol>],
        observer: Observer,
    ) -> Result<Self> {
        let activity = ListenerActivity::default();
        let (connections, operations) = (activity.clone(), Arc::new(OnceLock::new()));
        let listeners = Listeners {
            https: config.http.tls.is_some(),
            grpc_tls: config.grpc.tls.is_some(),
            auth: config.auth.is_some(),
        };
        let host = Host {
            engine: engine.clone(),
            listeners,
            connections: Arc::new(move || connections.connections()),
            operations: Arc::clone(&operations),
        };
        let limits = GrpcLimits { max_message_bytes: config.grpc.max_message_bytes };
        let (mut routes, mut grpc) = (Routes::default(), GrpcServices::default());
        for protocol in protocols {
            protocol.routes(&host, &mut routes);
            protocol.grpc(&host, limits, &mut grpc);
        }
        BuiltinProtocol.routes(&host, &mut routes);
        let routes = RouteTable::new(routes)?;
        let _ = operations.set(routes.operations().cloned().collect());
        let engine = engine.clone();
        Ok(ServedApi(Arc::new(ServedApiInner { engine, activity, routes, grpc, observer })))
    }

    /// Every route: its methods, its path with parameters in braces, and the permission that it
    /// requires.
    pub fn routes(&self) -> impl Iterator<Item = (&'static [&'static str], &str, Permission)> {
        self.0.routes.permissions()
    }

    /// Every gRPC method, and the permission that it requires.
    pub fn grpc_methods(&self) -> impl Iterator<Item = (&'static str, Permission)> {
        self.0.grpc.methods.iter().copied().chain(OWN_METHODS)
    }

    /// From now on every HTTP response closes its connection.
    pub fn close_connections(&self) {
        self.0.activity.close_connections();
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.0.observer
    }

    pub(crate) fn activity(&self) -> &ListenerActivity {
        &self.0.activity
    }

    pub(crate) fn table(&self) -> &RouteTable {
        &self.0.routes
    }

    /// The methods of the protocols.
    pub(crate) fn protocol_methods(&self) -> &[(&'static str, Permission)] {
        &self.0.grpc.methods
    }

    /// The full name of the method at `path`, if there is one.
    pub(crate) fn method_name(&self, path: &str) -> Option<&'static str> {
        let mut methods = self.0.grpc.methods.iter().chain(&OWN_METHODS);
        let (method, _) = methods.find(|(method, _)| *method == path)?;
        Some(method.trim_start_matches('/'))
    }

    /// Whether clients of this method send streams of messages.
    pub(crate) fn takes_stream(&self, path: &str) -> bool {
        self.0.grpc.streams.contains(&path)
    }

    /// The method at `path`, if its plain calls need no service around them.
    pub(crate) fn unary_method(&self, path: &str) -> Option<&UnaryMethod> {
        self.0.grpc.unary.iter().find(|method| method.path == path)
    }

    pub(crate) fn services(&self) -> RoutesBuilder {
        self.0.grpc.services.clone()
    }

    /// The descriptions of the services, as encoded `FileDescriptorSet`s.
    pub(crate) fn descriptors(&self) -> &[&'static [u8]] {
        &self.0.grpc.descriptors
    }
}
