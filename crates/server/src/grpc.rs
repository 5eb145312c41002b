//! The gRPC listener: services, limits, encryption, drain. What calls mean is in
//! [`tfs::grpc`]; here they are unwrapped, made, and wrapped.
//!
//! It has a runtime of its own, because the HTTP library brings another, and clients of gRPC
//! send all their calls over one connection, which must not keep them on one thread.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;
use tower_layer::{Identity as NoLayer, Stack};

use super::calls::GateLayer;
use super::deadline::Deadline;
use super::drain::Activity;
use super::gate::Gate;
use super::health::Health;
use super::incoming::{self, Patience};
use super::local::{Frames, LocalConnection};
use super::tls::Certificates;
use super::{bind, drain};
use crate::config::ServerConfig;
use tensorserve_auth::Authenticator;
use tensorserve_core::config::{ModelConfig, RepositoryConfig, SourceConfig};
use tensorserve_core::engine::{Engine, Served};
use tensorserve_proto::serving::model_service_server::{ModelService, ModelServiceServer};
use tensorserve_proto::serving::prediction_service_server::{
    PredictionService, PredictionServiceServer,
};
use tensorserve_proto::serving::{
    ClassificationRequest, ClassificationResponse, GetModelMetadataRequest,
    GetModelMetadataResponse, GetModelStatusRequest, GetModelStatusResponse, ModelServerConfig,
    MultiInferenceRequest, MultiInferenceResponse, PredictRequest, PredictResponse,
    RegressionRequest, RegressionResponse, ReloadConfigRequest, ReloadConfigResponse, StatusProto,
};
use tensorserve_proto::{DESCRIPTORS, Form};
use tensorserve_protocols::tfs::{self, config::models};
use tensorserve_tensor::error::{Code, Error, Result};

/// Calls that a client may have under way on one connection.
const STREAMS: u32 = 1024;

/// How much a client may send ahead: a picture's worth for a call, a few for its connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The most memory that the heads of a call may take.
const HEADERS: u32 = 16 << 10;

/// Calls that a client may begin and take back before they are looked at, and faults of its own
/// that are kept in mind; more of either, and its connection ends.
const TAKEN_BACK: usize = 20;
const FAULTS: usize = 1024;

/// A client that does not answer is asked whether it is there, and then let go.
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// A client that was asked whether it is there, and is, has been heard within this time.
const SILENCE: Duration = Duration::from_secs(100);

/// A running gRPC listener.
pub struct GrpcListener {
    address: Option<SocketAddr>,
    socket: Option<TcpListener>,
    path: Option<PathBuf>,
    activity: Activity,
    certificates: Option<Certificates>,
    ending: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl GrpcListener {
    /// Binds and starts to serve `engine`; `None` if the configuration has no gRPC.
    ///
    /// # Errors
    /// If port or socket can not be bound, the certificates are none, or threads not be started.
    pub fn start(
        config: &ServerConfig,
        engine: &Engine,
        authenticator: Option<&Authenticator>,
    ) -> Result<Option<Self>> {
        let grpc = &config.grpc;
        if grpc.port.is_none() && grpc.socket_path.is_none() {
            return Ok(None);
        }
        let socket = grpc.port.map(|port| bind(grpc.host, port, "--grpc-port")).transpose()?;
        let failed = |e| failed("can not be started", e);
        let clone = socket.as_ref().map(TcpListener::try_clone).transpose().map_err(failed)?;
        let address = socket.as_ref().map(TcpListener::local_addr).transpose().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.http.threads)
            .thread_name("grpc")
            .enable_all()
            .build()
            .map_err(failed)?;
        let (ending, ends) = watch::channel(false);
        let activity = Activity::default();
        let gate = Gate::new(authenticator.cloned(), &config.http.console);
        let certificates =
            grpc.tls.as_ref().map(|tls| Certificates::new(tls, b"h2")).transpose()?;
        let port = socket.map(|socket| (socket, certificates.clone()));
        let serving = serving(&runtime, config, engine, port, &activity, &ends, gate)?;
        let thread = thread::Builder::new().name("grpc-main".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(serving);
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        let (thread, path) = (thread.map_err(failed)?, grpc.socket_path.clone());
        let socket = clone;
        Ok(Some(GrpcListener { address, socket, path, activity, certificates, ending, thread }))
    }

    /// What connections are encrypted with.
    pub(super) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The address that is listened on, with the port that was picked; `None` with a socket only.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Serves on for `delay`, then takes no new calls, lets those under way finish for at most
    /// `timeout`, and ends. Blocks until then.
    pub fn stop(self, delay: Duration, timeout: Duration) {
        thread::sleep(delay);
        let end = Instant::now() + timeout;
        self.activity.close_connections();
        if let Some(socket) = self.socket {
            // Who is connected already, or about to be, may have sent a call.
            drain::refuse_connections(&socket);
            self.activity.wait_until_accepted(end);
        }
        // Clients are told to go, and which of their calls still count. The socket is closed, so
        // that those who come now are refused at once.
        let _ = self.ending.send(true);
        while !self.thread.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        if !self.thread.is_finished() {
            log::warn!("gRPC calls were still under way after the time to stop");
        }
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Everything that has to run for the listener, bound and checked.
fn serving(
    runtime: &Runtime,
    config: &ServerConfig,
    engine: &Engine,
    port: Option<(TcpListener, Option<Certificates>)>,
    activity: &Activity,
    ends: &watch::Receiver<bool>,
    gate: Gate,
) -> Result<impl Future<Output = ()> + use<>> {
    let _inside = runtime.enter();
    let grpc = &config.grpc;
    let mut routes = services(config, engine)?;
    if grpc.health_service {
        let health = Health { engine: engine.clone(), ends: ends.clone() };
        routes = routes.add_service(HealthServer::new(health));
    }
    let layer = GateLayer { gate, body_timeout: config.http.body_timeout };
    let mut listeners = Vec::new();
    if let Some((socket, certificates)) = port {
        let socket = tokio::net::TcpListener::from_std(socket);
        let socket = socket.map_err(|e| failed("can not listen", e))?;
        let http = &config.http;
        let patience = Patience { preface: http.header_timeout, silence: SILENCE };
        let router = router(routes.clone(), layer.clone());
        let (most, activity) = (http.max_connections, activity.clone());
        let incoming = incoming::connections(socket, most, patience, activity, certificates);
        let served = router.serve_with_incoming_shutdown(incoming, ended(ends.clone()));
        listeners.push(served.boxed());
    }
    if let Some(path) = &grpc.socket_path {
        let incoming = UnixListenerStream::new(bind_path(path)?);
        let incoming = incoming
            .map(|accepted| accepted.map(|stream| LocalConnection::new(stream, Frames::new())));
        // Who may connect is up to the file's permissions; what they may do is not.
        let router = router(routes, layer);
        let served = router.serve_with_incoming_shutdown(incoming, ended(ends.clone()));
        listeners.push(served.boxed());
    }
    Ok(async move {
        for ended in futures_util::future::join_all(listeners).await {
            if let Err(error) = ended {
                log::error!("the gRPC listener ended: {error}");
            }
        }
    })
}

async fn ended(mut ends: watch::Receiver<bool>) {
    let _ = ends.wait_for(|ends| *ends).await;
}

/// The services that are always there.
fn services(config: &ServerConfig, engine: &Engine) -> Result<Routes> {
    let grpc = &config.grpc;
    let most = grpc.max_message_bytes;
    let form = if grpc.tensor_content { Form::Content } else { Form::Values };
    let reload = grpc.reload.then(|| Arc::new(Reload::new(engine.repository_config())));
    let service = Service { engine: engine.clone(), form, reload };
    let predictions = PredictionServiceServer::new(service.clone())
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(most)
        .max_encoding_message_size(most);
    let models = ModelServiceServer::new(service)
        .max_decoding_message_size(most)
        .max_encoding_message_size(most);
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure();
        builder
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |e| Error::internal("the service descriptions are damaged").with_source(e);
    Ok(Routes::new(predictions)
        .add_service(models)
        .add_service(reflection().build_v1().map_err(broken)?)
        .add_service(reflection().build_v1alpha().map_err(broken)?))
}

/// Services behind the gate.
type GatedRouter = Router<Stack<GateLayer, NoLayer>>;

fn router(routes: Routes, layer: GateLayer) -> GatedRouter {
    tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADERS)
        .http2_max_pending_accept_reset_streams(Some(TAKEN_BACK))
        .http2_max_local_error_reset_streams(Some(FAULTS))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .layer(layer)
        .add_routes(routes)
}

/// Binds a UNIX socket, over one that nobody listens on any more.
fn bind_path(path: &Path) -> Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|e| {
        let message = format!("{} can not be bound: {e}", path.display());
        Error::new(Code::Unavailable, message).with_source(e)
    })
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::unavailable(format!("the gRPC listener {what}: {error}")).with_source(error)
}

/// All services of TensorFlow Serving.
#[derive(Clone)]
struct Service {
    engine: Engine,
    form: Form,
    /// What models have in common that clients name, if they may.
    reload: Option<Arc<Reload>>,
}

/// What clients can not choose of the models that they name.
struct Reload {
    common: ModelConfig,
    /// Places for logs that the server's own configuration names.
    logs: BTreeSet<PathBuf>,
}

impl Reload {
    fn new(config: &RepositoryConfig) -> Self {
        let models = config.sources.iter().map(|source| &source.model);
        let prefixes = models.chain([&config.common]).filter_map(|model| model.log.prefix.clone());
        Reload { common: config.common.clone(), logs: prefixes.collect() }
    }

    /// Checks that a client does not make the server write files where it likes.
    fn check_log(&self, source: &SourceConfig) -> Result<()> {
        match &source.model.log.prefix {
            Some(prefix) if !self.logs.contains(prefix) => {
                let name = source.name.as_deref().unwrap_or_default();
                Err(Error::new(
                    Code::PermissionDenied,
                    format!(
                        "model {name}: a client can not choose where requests are logged; name a \
                         filename_prefix of the server's own --model_config_file"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Service {
    /// When a call must be answered: the earlier of the client's time and ours.
    fn deadline(&self, theirs: Option<&Deadline>, start: Instant) -> Instant {
        let ours = self.engine.deadline(start);
        theirs.map_or(ours, |Deadline(theirs)| ours.min(*theirs))
    }

    /// Serves the models of `config` instead of those before.
    async fn change_models(&self, config: Option<&ModelServerConfig>) -> Result<()> {
        let Some(reload) = &self.reload else {
            return Err(Error::new(
                Code::PermissionDenied,
                "this server does not let clients choose its models: it was not started as \
                 tensorflow_model_server",
            ));
        };
        let list = match config {
            Some(config) => models::list(config, &reload.common)?,
            None => None,
        };
        let list = list.ok_or_else(|| {
            Error::invalid(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. Only \
                 ModelConfigList is currently supported",
            )
        })?;
        list.sources.iter().try_for_each(|source| reload.check_log(source))?;
        list.notes.iter().for_each(|note| log::warn!("{note}"));
        self.engine.reload(list.sources).await
    }

    /// Makes an inference call: counted, and with a bug in it kept to itself.
    async fn infer<Q, A>(
        &self,
        name: &str,
        request: Request<Q>,
        call: impl AsyncFnOnce(Q, Instant) -> (Result<A>, Served),
    ) -> Result<Response<A>, Status> {
        let start = Instant::now();
        let deadline = self.deadline(request.extensions().get(), start);
        let in_flight = self.engine.in_flight();
        let calling = AssertUnwindSafe(call(request.into_inner(), deadline));
        let answer = calling.catch_unwind().await;
        drop(in_flight);
        let Ok((answer, served)) = answer else {
            self.engine.panicked();
            return Err(status(name, &Error::internal("a bug in the server; its log says more")));
        };
        self.engine.count(&served, start.elapsed());
        answer.map(Response::new).map_err(|error| status(name, &error))
    }
}

/// The most bytes of an error's text, which travels in a header; as the reference cuts it.
const LONGEST_MESSAGE: usize = 1024;

/// An error as gRPC has it. The log is told of what is our own fault.
fn status(call: &str, error: &Error) -> Status {
    let cause = std::error::Error::source(error).map_or(String::new(), |e| format!(" ({e})"));
    if error.code().is_servers_fault() {
        log::error!("{call}: {error}{cause}");
    } else {
        log::debug!("{call}: {error}{cause}");
    }
    let message = error.message();
    let mut text = message.to_owned();
    if message.len() > LONGEST_MESSAGE {
        let end = (0..=LONGEST_MESSAGE).rev().find(|at| message.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str("...TRUNCATED");
    }
    Status::new(tonic::Code::from(i32::from(error.code().grpc())), text)
}

#[tonic::async_trait]
impl PredictionService for Service {
    async fn predict(
        &self,
        request: Request<PredictRequest>,
    ) -> Result<Response<PredictResponse>, Status> {
        let call = async |request, deadline| {
            tfs::grpc::predict(&self.engine, request, self.form, deadline).await
        };
        self.infer("Predict", request, call).await
    }

    async fn classify(
        &self,
        request: Request<ClassificationRequest>,
    ) -> Result<Response<ClassificationResponse>, Status> {
        let call = async |request, deadline| {
            tfs::inference::classify(&self.engine, request, deadline).await
        };
        self.infer("Classify", request, call).await
    }

    async fn regress(
        &self,
        request: Request<RegressionRequest>,
    ) -> Result<Response<RegressionResponse>, Status> {
        let call = async |request, deadline| {
            tfs::inference::regress(&self.engine, request, deadline).await
        };
        self.infer("Regress", request, call).await
    }

    async fn multi_inference(
        &self,
        request: Request<MultiInferenceRequest>,
    ) -> Result<Response<MultiInferenceResponse>, Status> {
        let call = async |request, deadline| {
            tfs::inference::multi_inference(&self.engine, request, deadline).await
        };
        self.infer("MultiInference", request, call).await
    }

    async fn get_model_metadata(
        &self,
        request: Request<GetModelMetadataRequest>,
    ) -> Result<Response<GetModelMetadataResponse>, Status> {
        let answer = tfs::grpc::metadata(&self.engine, request.get_ref());
        answer.map(Response::new).map_err(|error| status("GetModelMetadata", &error))
    }
}

#[tonic::async_trait]
impl ModelService for Service {
    async fn get_model_status(
        &self,
        request: Request<GetModelStatusRequest>,
    ) -> Result<Response<GetModelStatusResponse>, Status> {
        let answer = tfs::grpc::status(&self.engine, request.get_ref());
        answer.map(Response::new).map_err(|error| status("GetModelStatus", &error))
    }

    /// Returns when the models are there. Metrics are not reported on.
    async fn handle_reload_config_request(
        &self,
        request: Request<ReloadConfigRequest>,
    ) -> Result<Response<ReloadConfigResponse>, Status> {
        let changed = self.change_models(request.get_ref().config.as_ref()).await;
        changed.map_err(|error| status("HandleReloadConfigRequest", &error))?;
        let ok = StatusProto { error_code: 0, error_message: String::new() };
        Ok(Response::new(ReloadConfigResponse { status: Some(ok), metric: Vec::new() }))
    }
}
