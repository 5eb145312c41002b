//! The Open Inference Protocol, version 2, which KServe, Triton and others have in common, over REST and
//! gRPC, with extensions of Triton's: binary tensor data, model repository, model configuration,
//! statistics, system shared memory, streams, and settings of traces and logs, which are read only.
//!
//! Sources: the specification at github.com/kserve/open-inference-protocol, and where it leaves a
//! choice, what Triton's and KServe's clients rely on.

use std::sync::Arc;

use tensorserve_auth::Permission;
use tensorserve_core::engine::{Engine, EntryPoint, Method, REQUEST, Resolver};
use tensorserve_protocol::grpc::{GrpcLimits, GrpcServices};
use tensorserve_protocol::{
    ALLOW, Answer, Failure, Host, JSON, Methods, NoRoute, Protocol, Reply, RequestHead, RouteGroup,
    RoutedRequest, Routes, inferred,
};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::Error;

pub use self::datatype::name_of as datatype_name;
use self::describe::ModelMetadata;
use self::model_config::TritonModelConfig;
use self::repository::IndexEntry;
use self::request::{NamedModel, signature_of};
use self::response::Encoded;
use self::shared_memory::{Region, Regions};
use self::statistics::ModelStatistics;

mod body;
mod datatype;
mod describe;
mod description;
pub mod grpc;
mod load_report;
mod model_config;
mod raw;
mod raw_body;
mod repository;
mod request;
mod response;
mod service;
mod settings;
pub mod shared_memory;
mod statistics;
mod stream;

/// The name of the protocol over REST in metrics.
pub const REST: &str = "open_inference_rest";

/// The name of the protocol over gRPC in metrics.
pub const GRPC: &str = "open_inference_grpc";

const TAG: &str = "Open Inference Protocol";

/// The media type of a body with raw bytes.
const BINARY: &str = "application/octet-stream";

/// The most bytes of a request that is not for inference.
const SMALL_BODY: usize = 1 << 20;

/// The configuration of the Open Inference Protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenInferenceConfig {
    /// Clients that no one has authenticated may load and unload models over gRPC, as far as others could
    /// do it over HTTP.
    pub admin: bool,
    /// Clients may register shared memory of this machine.
    pub shared_memory: bool,
}

/// The Open Inference Protocol.
pub struct OpenInference {
    config: OpenInferenceConfig,
    regions: Arc<Regions>,
}

impl OpenInference {
    /// The protocol with this configuration.
    #[must_use]
    pub fn new(config: OpenInferenceConfig) -> Self {
        OpenInference { config, regions: Arc::new(Regions::new(config.shared_memory)) }
    }
}

impl Protocol for OpenInference {
    fn name(&self) -> &'static str {
        "open_inference"
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let regions = Arc::clone(&self.regions);
        let api = Arc::new(RestApi { engine: host.engine.clone(), regions });
        let mut group = routes.group(TAG, &api, Reply::error);
        for (path, summary) in [
            ("/v2/health/live", "Check that the process is alive"),
            ("/v2/health/ready", "Check that every configured model has a ready version"),
        ] {
            let member = path.rsplit('/').next().unwrap_or_default();
            group
                .immediate(Methods::Get, path, Permission::Public, RestApi::health)
                .summary(summary)
                .response(JSON, description::yes(member))
                .errors(description::PROBE_ERRORS);
        }
        for path in ["/v2", "/v2/"] {
            let server = group.immediate(Methods::Get, path, Permission::Read, |_, _| server());
            server
                .summary("Return the name, the version and the extensions of the server")
                .response(JSON, description::server())
                .errors(description::READ_ERRORS);
            if path.ends_with('/') {
                server.hidden();
            }
        }
        group
            .immediate(Methods::Get, "/v2/models", Permission::Read, |api, _| api.list())
            .summary("List the models that are ready")
            .response(JSON, description::models())
            .errors(description::READ_ERRORS);
        add_models(&mut group);
        add_repository(&mut group);
        add_shared_memory(&mut group);
        add_settings(&mut group);
        group.scope("/v2", |_, head, missing| not_found(head, missing));
    }

    fn grpc(&self, host: &Host, limits: GrpcLimits, services: &mut GrpcServices) {
        service::add(&host.engine, self.config.admin, &self.regions, limits, services);
    }
}

/// Adds the routes of models.
fn add_models(group: &mut RouteGroup<'_, RestApi>) {
    use description::{INFER_ERRORS, NAMED_ERRORS};
    for version in ["", "/versions/{version}"] {
        let path = |rest: &str| format!("/v2/models/{{model}}{version}{rest}");
        let mut read = |rest: &str, function: Read, summary: &'static str, response| {
            group
                .immediate(Methods::Get, path(rest), Permission::Read, function)
                .summary(summary)
                .response(JSON, response)
                .errors(NAMED_ERRORS)
                .members(description::path_parameters(version));
        };
        let summary = "Return the inputs and outputs of a model";
        read("", RestApi::metadata, summary, description::metadata());
        let ready = description::model_and_yes("ready");
        read("/ready", RestApi::ready, "Check that a model is ready", ready);
        let summary = "Return the configuration of a model, as Triton describes it";
        read("/config", RestApi::config, summary, description::config());
        let summary = "Return how many requests a model has had, and their times";
        read("/stats", RestApi::statistics, summary, description::statistics());
        let infer = group
            .route(Methods::Post, path("/infer"), Permission::Infer, |api, request| {
                Box::pin(api.infer(request))
            })
            .summary("Run a model on tensors, as JSON or as raw bytes")
            .errors(INFER_ERRORS)
            .tensors_at(raw_part)
            .members(description::infer(version));
        if version.is_empty() {
            infer.of_model(description::infer_model);
        }
    }
    group
        .immediate(Methods::Get, "/v2/models/stats", Permission::Read, RestApi::statistics)
        .summary("Return how many requests all models have had, and their times")
        .response(JSON, description::statistics())
        .errors(description::READ_ERRORS);
}

/// Adds the routes of the model repository extension.
fn add_repository(group: &mut RouteGroup<'_, RestApi>) {
    group
        .immediate(Methods::Post, "/v2/repository/index", Permission::Read, RestApi::index)
        .body_limit(SMALL_BODY)
        .summary("List all versions of all models with their states")
        .request(JSON, description::index_request())
        .response(JSON, description::index())
        .errors(description::QUERY_ERRORS);
    for (verb, summary, request) in [
        ("load", "Load a model that was unloaded", description::load_request()),
        ("unload", "Unload a model, and keep it unloaded", description::unload_request()),
    ] {
        let path = format!("/v2/repository/models/{{model}}/{verb}");
        group
            .route(Methods::Post, path, Permission::ConsoleAdmin, |api, request| {
                Box::pin(api.change(request))
            })
            .body_limit(SMALL_BODY)
            .summary(summary)
            .request(JSON, request)
            .response(JSON, description::model_and_yes(verb))
            .errors(description::CHANGE_ERRORS);
    }
}

/// Adds the routes of the settings of traces and logs.
fn add_settings(group: &mut RouteGroup<'_, RestApi>) {
    for path in ["/v2/trace/setting", "/v2/models/{model}/trace/setting", "/v2/logging"] {
        let (settings, errors) = match path {
            "/v2/logging" => (description::log_settings(), description::READ_ERRORS),
            "/v2/trace/setting" => (description::trace_settings(), description::READ_ERRORS),
            _ => (description::trace_settings(), description::NAMED_ERRORS),
        };
        group
            .immediate(Methods::Get, path, Permission::Read, RestApi::settings)
            .summary("Return the settings of traces or logs, as Triton has them")
            .response(JSON, settings)
            .errors(errors);
        group
            .immediate(Methods::Post, path, Permission::Read, |_, _| {
                Failure::from(settings::refusal())
            })
            .without_body()
            .summary("Change the settings of traces or logs, which this server refuses")
            .errors(description::REFUSED)
            .members(serde_json::json!({ "requestBody": null, "responses": { "200": null } }));
    }
}

/// Adds the routes of the shared memory extensions.
fn add_shared_memory(group: &mut RouteGroup<'_, RestApi>) {
    const SYSTEM: &str = "/v2/systemsharedmemory";
    const CUDA: &str = "/v2/cudasharedmemory";
    for path in [format!("{SYSTEM}/status"), format!("{SYSTEM}/region/{{region}}/status")] {
        group
            .immediate(Methods::Get, path, Permission::Read, RestApi::regions)
            .summary("List the registered regions of shared memory")
            .response(JSON, description::regions())
            .errors(description::NAMED_ERRORS);
    }
    group
        .immediate(
            Methods::Post,
            format!("{SYSTEM}/region/{{region}}/register"),
            Permission::ConsoleAdmin,
            RestApi::register,
        )
        .body_limit(SMALL_BODY)
        .summary("Register a region of shared memory")
        .request(JSON, description::region_request())
        .response(JSON, serde_json::json!({ "type": "object" }))
        .errors(description::CHANGE_ERRORS);
    for path in [format!("{SYSTEM}/unregister"), format!("{SYSTEM}/region/{{region}}/unregister")] {
        group
            .immediate(Methods::Post, path, Permission::ConsoleAdmin, RestApi::unregister)
            .without_body()
            .summary("Forget a region of shared memory, or all")
            .response(JSON, serde_json::json!({ "type": "object" }))
            .errors(description::CHANGE_ERRORS)
            .members(serde_json::json!({ "requestBody": null }));
    }
    // There is no CUDA memory. Clients that use none ask for it to be forgotten before they begin.
    for path in [format!("{CUDA}/status"), format!("{CUDA}/region/{{region}}/status")] {
        let none = |_: &RestApi, _: RoutedRequest<'_>| Reply::ok(JSON, &b"[]"[..]);
        group.immediate(Methods::Get, path, Permission::Read, none).hidden();
    }
    for path in [format!("{CUDA}/unregister"), format!("{CUDA}/region/{{region}}/unregister")] {
        let none = |_: &RestApi, _: RoutedRequest<'_>| Reply::ok(JSON, &b"{}"[..]);
        group.immediate(Methods::Post, path, Permission::Read, none).without_body().hidden();
    }
}

/// The body of a registration.
#[derive(serde::Deserialize)]
struct RegisterBody {
    key: String,
    #[serde(default)]
    offset: u64,
    byte_size: u64,
}

/// A handler that reads something.
type Read = for<'a> fn(&'a RestApi, RoutedRequest<'a>) -> Answer;

struct RestApi {
    engine: Engine,
    regions: Arc<Regions>,
}

fn server() -> Reply {
    let (name, version, extensions) = (describe::NAME, describe::VERSION, describe::EXTENSIONS);
    json(&serde_json::json!({ "name": name, "version": version, "extensions": extensions }))
}

fn json(value: &serde_json::Value) -> Reply {
    Reply::ok(JSON, value.to_string())
}

/// The model and version in a path.
fn named(request: &RoutedRequest<'_>) -> NamedModel {
    let params = &request.params;
    NamedModel { name: params.decoded("model"), version: params.decoded("version") }
}

impl RestApi {
    fn health(&self, request: RoutedRequest<'_>) -> Answer {
        if request.head.path().ends_with("/live") {
            return Ok(json(&serde_json::json!({ "live": true })));
        }
        self.engine.readiness()?;
        Ok(json(&serde_json::json!({ "ready": true })))
    }

    fn list(&self) -> Reply {
        json(&serde_json::json!({ "models": self.engine.repository().ready_models() }))
    }

    fn ready(&self, request: RoutedRequest<'_>) -> Answer {
        let named = named(&request);
        describe::ready_version(&self.engine, &named)?;
        Ok(json(&serde_json::json!({ "name": named.name, "ready": true })))
    }

    fn metadata(&self, request: RoutedRequest<'_>) -> Answer {
        Ok(json(&ModelMetadata::of(&self.engine, &named(&request))?.json()))
    }

    fn config(&self, request: RoutedRequest<'_>) -> Answer {
        Ok(json(&TritonModelConfig::of(&self.engine, &named(&request))?.json()))
    }

    fn statistics(&self, request: RoutedRequest<'_>) -> Answer {
        let models = statistics::of(&self.engine, &named(&request))?;
        let models: Vec<_> = models.iter().map(ModelStatistics::json).collect();
        Ok(json(&serde_json::json!({ "model_stats": models })))
    }

    fn index(&self, mut request: RoutedRequest<'_>) -> Answer {
        let is_ready_only = repository::read_index(&request.take_bytes())?;
        let entry = |entry: &IndexEntry| {
            let IndexEntry { name, version, state, reason } = entry;
            serde_json::json!({ "name": name, "version": version, "state": state, "reason": reason })
        };
        let all = repository::index(&self.engine, is_ready_only);
        Ok(json(&all.iter().map(entry).collect()))
    }

    /// Loads or unloads a model. The responses are KServe's; Triton's are empty.
    async fn change(&self, mut request: RoutedRequest<'_>) -> Answer {
        let (name, body) = (request.params.decoded("model"), request.take_bytes());
        let by = request.identity.name().unwrap_or(REQUEST).to_owned();
        if request.head.path().ends_with("/load") {
            repository::check_load(&body)?;
            repository::load(&self.engine, &name, &by).await?;
            return Ok(json(&serde_json::json!({ "name": name, "load": true })));
        }
        repository::check_unload(&body)?;
        repository::unload(&self.engine, &name, &by).await?;
        Ok(json(&serde_json::json!({ "name": name, "unload": true })))
    }

    fn settings(&self, request: RoutedRequest<'_>) -> Answer {
        if request.head.path().ends_with("/logging") {
            return Ok(json(&settings::log()));
        }
        settings::check_model(&self.engine, &request.params.decoded("model"))?;
        Ok(json(&settings::trace()))
    }

    fn regions(&self, request: RoutedRequest<'_>) -> Answer {
        let region = |region: &Arc<Region>| {
            let Region { name, key, offset, byte_size, .. } = &**region;
            serde_json::json!({ "name": name, "key": key, "offset": offset, "byte_size": byte_size })
        };
        let regions = self.regions.status(&request.params.decoded("region"))?;
        Ok(json(&regions.iter().map(region).collect()))
    }

    fn register(&self, mut request: RoutedRequest<'_>) -> Answer {
        let body = serde_json::from_slice(&request.take_bytes());
        let RegisterBody { key, offset, byte_size } = body.map_err(|error| {
            Error::invalid(format!(
                "the body is not of the form {{\"key\": NAME, \"offset\": BYTES, \"byte_size\": BYTES}}: \
                 {error}"
            ))
        })?;
        self.regions.register(&request.params.decoded("region"), &key, offset, byte_size)?;
        Ok(Reply::ok(JSON, &b"{}"[..]))
    }

    fn unregister(&self, request: RoutedRequest<'_>) -> Answer {
        self.regions.unregister(&request.params.decoded("region"))?;
        Ok(Reply::ok(JSON, &b"{}"[..]))
    }

    async fn infer(&self, mut request: RoutedRequest<'_>) -> Answer {
        let named = named(&request);
        let length = body::header_length(request.head.header(body::HEADER_LENGTH))?;
        let body = request.take_bytes();
        let (max_bytes, regions) = (self.engine.max_tensor_bytes(), Arc::clone(&self.regions));
        let entry = EntryPoint { protocol: REST, method: Method::Predict };
        let call = self.engine.call(entry, request.start);
        let decode = move |resolver: &mut Resolver<'_>| {
            let version = named.resolve(resolver)?;
            let given = match length {
                Some(0) => raw_body::read(body, signature_of(&version, None)?.1)?,
                _ => {
                    let nulls = version.signatures().iter().any(Signature::takes_missing);
                    body::read(body, length, nulls, max_bytes, &regions)?
                }
            };
            given.into_run(version, resolver)
        };
        let outcome = self.engine.infer(call, decode, response::encode).await;
        let answer = inferred(outcome, |Encoded { body, parts, document }| match document {
            None => Reply::ok(JSON, body),
            Some(document) => {
                let reply = Reply { parts, ..Reply::ok(BINARY, body) };
                reply.with_header(body::HEADER_LENGTH, document.to_string())
            }
        });
        let report = request.head.header(load_report::FORMAT);
        let report = report.and_then(|format| load_report::written(&self.engine, format));
        match (report, answer) {
            (None, answer) => answer,
            (Some(report), Ok(reply)) => Ok(reply.with_header(load_report::REPORT, report)),
            (Some(report), Err(failure)) => Err(failure.with_header(load_report::REPORT, report)),
        }
    }
}

/// Where the raw bytes of a payload begin.
fn raw_part(head: &RequestHead<'_>) -> usize {
    // A malformed header is an error of the handler.
    body::header_length(head.header(body::HEADER_LENGTH)).ok().flatten().unwrap_or(0)
}

/// Why there is nothing at a path, or not with this method.
fn not_found(head: &RequestHead<'_>, missing: &NoRoute) -> Failure {
    let path = head.path();
    match missing {
        NoRoute::Path => {
            let message =
                format!("there is nothing at {path}; models are at /v2/models/NAME/infer");
            Error::not_found(message).into()
        }
        NoRoute::Method(allowed) => {
            let allowed = allowed.join(", ");
            let message = format!("{} is not allowed for {path}; use {allowed}", head.method);
            Failure::new(Error::invalid(message), 405).with_header(ALLOW, allowed)
        }
    }
}
