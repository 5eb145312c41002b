//! TensorFlow Serving's REST and gRPC APIs, as in `tensorflow_model_server` 2.20: routes, order of
//! checks, messages, format of numbers and white space. Unless [`TfsConfig::exact`] is set, the REST
//! API also supports formats that the reference lacks ([`binary`], JSON of half precision).
//!
//! Sources: `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc`,
//! `util/json_tensor.cc`, `servables/tensorflow` of github.com/tensorflow/serving.

use std::sync::Arc;
use std::time::Instant;

use tensorserve_auth::Permission;
use tensorserve_codec::json::write;
use tensorserve_core::engine::{
    Engine, Method, ModelHandle, ModelSpec, RequestLogFormat, Resolver, Unresolved, VersionSelector,
};
use tensorserve_core::metrics::MetricsExporter;
use tensorserve_core::repository::VersionFiles;
use tensorserve_protocol::grpc::{GrpcLimits, GrpcServices};
use tensorserve_protocol::{
    ALLOW, Answer, Failure, Host, JSON, Methods, NoRoute, PathParams, Protocol, Reply, RequestHead,
    Route, RoutedRequest, Routes, bounded,
};
use tensorserve_tensor::error::{Code, Error, Result};

use self::files::TfsFiles;
use self::metrics::TfsMetrics;
use self::prediction_log::PredictionLogs;
use self::rest::RestCall;

pub(crate) use self::answer::TfsAnswer;
pub(crate) use self::encode::TfsFormat;

mod answer;
mod binary;
pub mod classify;
pub mod config;
mod describe;
mod encode;
mod examples;
mod fault;
mod files;
pub mod grpc;
pub mod inference;
mod metrics;
mod outline;
mod predict;
mod prediction_log;
pub mod record;
pub mod recorded;
mod reload;
pub(crate) mod rest;
mod service;
pub mod warm_up;

pub use self::config::TfsConfig;

/// The name of the protocol over REST in metrics.
pub const REST: &str = "tfs_rest";
/// The name of the protocol over gRPC in metrics.
pub const GRPC: &str = "tfs_grpc";

/// The signature of a request that does not name one.
pub(crate) const DEFAULT_SIGNATURE: &str = "serving_default";

/// TensorFlow Serving's protocols.
pub struct TensorFlowServing {
    config: TfsConfig,
    max_tensor_bytes: usize,
    metrics: Arc<TfsMetrics>,
}

impl TensorFlowServing {
    /// The protocols with this configuration. An input of a recorded request may take at most
    /// `max_tensor_bytes` of memory.
    #[must_use]
    pub fn new(config: TfsConfig, max_tensor_bytes: usize) -> Self {
        TensorFlowServing { config, max_tensor_bytes, metrics: Arc::default() }
    }
}

impl Protocol for TensorFlowServing {
    fn name(&self) -> &'static str {
        "tfs"
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let api = Arc::new(RestApi {
            engine: host.engine.clone(),
            exact: self.config.exact,
            kserve: self.config.kserve,
            prefix: "",
            metrics: Arc::clone(&self.metrics),
        });
        if let Some(path) = &self.config.metrics_path {
            let mut group = routes.group(TAG, &api, failure_with_status);
            group
                .immediate(Methods::Any, path.clone(), Permission::Metrics, RestApi::metrics)
                .without_body()
                .summary("Return metrics under the names of TensorFlow Serving");
        }
        add_routes(&api, routes);
        // SageMaker's container has the same API below this prefix.
        let below_tfs = Arc::new(RestApi { prefix: "/tfs", ..RestApi::clone(&api) });
        add_routes(&below_tfs, routes);
    }

    fn grpc(&self, host: &Host, limits: GrpcLimits, services: &mut GrpcServices) {
        service::add(&self.config, &host.engine, limits, services);
    }

    fn exporter(&self) -> Option<Arc<dyn MetricsExporter>> {
        Some(Arc::clone(&self.metrics) as Arc<dyn MetricsExporter>)
    }

    fn version_files(&self) -> Option<Arc<dyn VersionFiles>> {
        Some(Arc::new(TfsFiles { max_tensor_bytes: self.max_tensor_bytes }))
    }

    fn request_log_format(&self) -> Option<Arc<dyn RequestLogFormat>> {
        Some(Arc::new(PredictionLogs))
    }
}

const TAG: &str = "TensorFlow Serving";

/// The REST API, below a path prefix.
#[derive(Clone)]
struct RestApi {
    engine: Engine,
    /// Support only the formats of the reference.
    exact: bool,
    /// The state of a model is also as KServe's protocol v1 has it.
    kserve: bool,
    /// The path prefix before `/v1/`.
    prefix: &'static str,
    metrics: Arc<TfsMetrics>,
}

/// The path segments that can select a version after a model's name.
const VERSIONS: [&str; 3] = ["", "/versions/{version}", "/labels/{label}"];

/// Adds the REST API's routes. The reference matches regular expressions, case-insensitively and as
/// a whole: `POST /v1/models/NAME[/versions/DIGITS|/labels/LABEL]:(classify|regress|predict)` and
/// `GET /v1/models[/NAME][/versions/DIGITS|/labels/LABEL][/metadata]`, where NAME and LABEL are
/// anything but `/` and `:`.
fn add_routes(api: &Arc<RestApi>, routes: &mut Routes) {
    let mut group = routes.group(TAG, api, failure_with_status);
    let get = if api.exact { Methods::GetOnly } else { Methods::Get };
    let path = |rest: &str| format!("{}/v1/models{rest}", api.prefix);
    let common = |route: &mut Route, summary| {
        route.any_case().accepts(are_names_and_numbers).summary(summary);
        if api.prefix.is_empty() {
            route.cors();
        }
    };
    let all = group.immediate(get, path(""), Permission::Read, RestApi::list);
    common(all, "List all models with the status of their versions");
    for version in VERSIONS {
        let model = format!("/{{model}}{version}");
        let status = group.immediate(get, path(&model), Permission::Read, RestApi::status);
        common(status, "Return the status of a model's versions");
        let metadata = path(&format!("{model}/metadata"));
        let metadata = group.immediate(get, metadata, Permission::Read, RestApi::metadata);
        common(metadata, "Return the signatures of a model");
        let predict = path(&format!("{model}:predict"));
        let predict = group.route(Methods::Post, predict, Permission::Infer, |api, request| {
            Box::pin(api.infer(Method::Predict, request))
        });
        common(predict, "Run a signature on tensors");
        let classify = path(&format!("{model}:classify"));
        let classify = group.route(Methods::Post, classify, Permission::Infer, |api, request| {
            Box::pin(api.infer(Method::Classify, request))
        });
        common(classify, "Classify examples");
        let regress = path(&format!("{model}:regress"));
        let regress = group.route(Methods::Post, regress, Permission::Infer, |api, request| {
            Box::pin(api.infer(Method::Regress, request))
        });
        common(regress, "Regress examples");
    }
    if api.kserve {
        let explain = path("/{model}:explain");
        let explain = group.immediate(Methods::Post, explain, Permission::Infer, |_, _| {
            let message = "this server does not explain predictions";
            Failure::from(Error::new(Code::Unimplemented, message))
        });
        explain.hidden();
    }
    let prefix = if api.prefix.is_empty() { "/v1/" } else { "/tfs/" };
    let scope = group.scope(prefix, |api, head, missing| api.missing(head, missing));
    scope.permission(|method| match method {
        "GET" | "HEAD" => Permission::Read,
        // Browsers send preflight requests without credentials; the response reveals no model.
        "OPTIONS" => Permission::Public,
        _ => Permission::Infer,
    });
    if api.prefix.is_empty() {
        scope.any_case().cors();
    }
    if api.exact {
        scope.with_query();
    }
}

/// Whether the parameters are valid names and version numbers.
fn are_names_and_numbers(params: &PathParams<'_>) -> bool {
    params.iter().all(|(name, value)| match name {
        "version" => value.bytes().all(|byte| byte.is_ascii_digit()),
        _ => !value.contains(':'),
    })
}

/// The model version that a request names.
#[derive(Debug)]
pub(crate) struct OwnedModelSpec {
    pub(crate) name: String,
    pub(crate) version: Option<i64>,
    pub(crate) label: Option<String>,
}

impl OwnedModelSpec {
    /// Reads the parameters of a path; `None` if the version does not fit 64 bits.
    fn of(params: &PathParams<'_>) -> Option<Self> {
        let (version, label) = (params.raw("version"), params.raw("label"));
        let version = if version.is_empty() { None } else { Some(version.parse().ok()?) };
        let label = (!label.is_empty()).then(|| params.decoded("label"));
        Some(OwnedModelSpec { name: params.decoded("model"), version, label })
    }

    pub(crate) fn spec(&self) -> ModelSpec<'_> {
        let choice = match (self.version, &self.label) {
            (Some(version), _) => VersionSelector::Version(version),
            (None, Some(label)) => VersionSelector::Label(label),
            (None, None) => VersionSelector::Latest,
        };
        ModelSpec { name: &self.name, choice }
    }

    /// The version that is served.
    pub(crate) fn resolve(&self, resolver: &mut Resolver<'_>) -> Result<ModelHandle> {
        let spec = self.spec();
        resolver.resolve(&spec).map_err(|unresolved| not_served(unresolved, &spec))
    }
}

impl RestApi {
    /// Handles `GET /v1/models`, which the reference does not have.
    fn list(&self, request: RoutedRequest<'_>) -> Answer {
        if self.exact {
            return self.described("", Err(missing_name()), request.start);
        }
        self.described("", Ok(describe::list(&self.engine)), request.start)
    }

    fn status(&self, request: RoutedRequest<'_>) -> Answer {
        let Some(spec) = OwnedModelSpec::of(&request.params) else {
            return self.version_too_large(&request.head);
        };
        let status = describe::status(&self.engine, &spec.name, spec.version, self.kserve);
        self.described(&spec.name, status, request.start)
    }

    fn metadata(&self, request: RoutedRequest<'_>) -> Answer {
        // As in the reference, the word matches in any case, but only lower case selects the metadata.
        if !request.head.path().ends_with("/metadata") {
            return self.status(request);
        }
        let Some(spec) = OwnedModelSpec::of(&request.params) else {
            return self.version_too_large(&request.head);
        };
        let found = self.engine.repository().resolve(&spec.spec());
        let found = found.map_err(|unresolved| not_served(unresolved, &spec.spec()));
        let metadata = found.map(|version| Reply::ok(JSON, describe::metadata(&version)));
        self.described(&spec.name, metadata, request.start)
    }

    /// Counts a request for a status or for metadata, and returns its response.
    fn described(&self, model: &str, outcome: Result<Reply>, start: Instant) -> Answer {
        let is_served = !model.is_empty()
            && self
                .engine
                .repository()
                .resolve(&ModelSpec { name: model, choice: VersionSelector::Latest })
                .is_ok();
        let code = outcome.as_ref().err().map(Error::code);
        self.metrics.described(is_served.then_some(model), code, start.elapsed());
        Ok(outcome?)
    }

    async fn infer(&self, method: Method, mut request: RoutedRequest<'_>) -> Answer {
        let Some(spec) = OwnedModelSpec::of(&request.params) else {
            return self.version_too_large(&request.head);
        };
        let body = request.take_bytes();
        let call = RestCall {
            spec,
            method,
            signature: DEFAULT_SIGNATURE.into(),
            exact: self.exact,
            max_bytes: self.engine.max_tensor_bytes(),
        };
        rest::answer(&self.engine, call, &request.head, body, request.start).await
    }

    /// The reference's metrics, for any method, as in the reference.
    fn metrics(&self, request: RoutedRequest<'_>) -> Reply {
        let path = request.head.path();
        match request.head.target.split_once('?').filter(|_| self.exact) {
            None => Reply::ok(metrics::CONTENT_TYPE, self.metrics.text()),
            Some((_, query)) => {
                let message = format!("Unexpected path: {path}?{query}. Should be {path}");
                Reply::ok(metrics::CONTENT_TYPE, message).with_status(400)
            }
        }
    }

    /// The response to a version that is not a 64-bit number. The response of the reference has no
    /// body.
    fn version_too_large(&self, head: &RequestHead<'_>) -> Answer {
        self.metrics.described(None, Some(Code::InvalidArgument), Default::default());
        if self.exact {
            return Ok(Reply::ok(JSON, "").with_status(400));
        }
        let message = format!("the version in {} does not fit 64 bits", head.path());
        Err(Error::invalid(message).into())
    }

    /// The response to a path that the API does not have, or not with this method. The reference does
    /// not distinguish the two.
    fn missing(&self, head: &RequestHead<'_>, missing: &NoRoute) -> Answer {
        let method = head.method;
        if method == "OPTIONS" && self.prefix.is_empty() {
            return Ok(options(head));
        }
        self.metrics.described(None, Some(Code::InvalidArgument), Default::default());
        let target = if self.exact { head.target } else { head.path() };
        let target = target.strip_prefix(self.prefix).unwrap_or(target);
        if method == "GET" && names_no_model(target) {
            return Err(missing_name().into());
        }
        let NoRoute::Method(allowed) = missing else {
            return Err(malformed(method, target).into());
        };
        if self.exact {
            return Err(malformed(method, target).into());
        }
        let allowed = allowed.join(", ");
        let message = format!("{method} is not allowed for {target}; use {allowed}");
        Err(Failure::new(Error::invalid(message), 405).with_header(ALLOW, allowed))
    }
}

fn malformed(method: &str, target: &str) -> Error {
    Error::invalid(format!("Malformed request: {method} {target}"))
}

fn missing_name() -> Error {
    Error::invalid("Missing model name in request.")
}

/// Whether the reference's regular expression matches the path with an empty model name, as in
/// `/v1/models/versions/1`.
fn names_no_model(target: &str) -> bool {
    let lower = target.to_ascii_lowercase();
    let Some(rest) = lower.strip_prefix("/v1/models/") else {
        return false;
    };
    let mut parts = rest.strip_suffix("/metadata").unwrap_or(rest).split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("versions"), Some(digits), None) => {
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        }
        (Some("labels"), Some(label), None) => !label.is_empty() && !label.contains(':'),
        _ => false,
    }
}

/// The response to a CORS preflight request. Its body is empty in the reference, too.
fn options(head: &RequestHead<'_>) -> Reply {
    let origin = head.header("origin");
    let is_web = origin.is_some_and(|o| o.contains("http://") || o.contains("https://"));
    Reply::ok(JSON, "").with_status(if is_web { 200 } else { 400 })
}

/// The response to `GET /v1/models/NAME`.
pub(crate) fn status(engine: &Engine, name: &str) -> Reply {
    describe::status(engine, name, None, false).unwrap_or_else(failure)
}

/// The error for a version that is not served.
fn not_served(unresolved: Unresolved, spec: &ModelSpec<'_>) -> Error {
    let name = spec.name;
    match (unresolved, spec.choice) {
        (Unresolved::Label, VersionSelector::Label(label)) => {
            Error::invalid(format!("Unrecognized servable version label: {label}"))
        }
        (Unresolved::Version(version), _) | (_, VersionSelector::Version(version)) => {
            Error::not_found(format!("Servable not found for request: Specific({name}, {version})"))
        }
        _ => Error::not_found(format!("Servable not found for request: Latest({name})")),
    }
}

/// The response for an error, with the HTTP status of its code.
pub(crate) fn failure(error: Error) -> Reply {
    let status = error.http_status();
    failure_with_status(error, status)
}

/// The response for an error, with this HTTP status.
pub(crate) fn failure_with_status(error: Error, status: u16) -> Reply {
    let mut body = b"{\n    \"error\": ".to_vec();
    write::string(bounded(error.message()).as_bytes(), &mut body);
    body.extend_from_slice(b"\n}");
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}

#[cfg(test)]
mod tests;
