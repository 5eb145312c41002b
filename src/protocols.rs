//! The protocols that are built in, and the engine that serves them.

use std::sync::Arc;

use crate::config::Config;
use crate::stores;
use tensorserve_core::engine::{Engine, RequestLogFormat};
use tensorserve_core::metrics::Metrics;
use tensorserve_core::repository::{HeldLoads, NoFormats, Repository, VersionFiles};
use tensorserve_platform::Platforms;
use tensorserve_protocol::Protocol;
use tensorserve_protocols::console::{Console, ConsoleConfig};
use tensorserve_protocols::mlflow::Mlflow;
use tensorserve_protocols::open_inference::{OpenInference, OpenInferenceConfig};
use tensorserve_protocols::sagemaker::Sagemaker;
use tensorserve_protocols::simple::{SimpleConfig, SimpleTensorFlowServing};
use tensorserve_protocols::tfs::TensorFlowServing;
use tensorserve_protocols::vertex::Vertex;
use tensorserve_tensor::error::Result;

/// The protocols of `config`. Where two have the same route, the first one is used.
#[must_use]
pub fn built_in(config: &Config) -> Vec<Arc<dyn Protocol>> {
    let protocols = &config.protocols;
    let replaces_original = protocols.replaces_simple;
    let simple = SimpleConfig { replaces_original, exact_tfs: protocols.tfs.exact };
    let open_inference = OpenInferenceConfig {
        admin: config.http.admin.allowed,
        shared_memory: protocols.shared_memory,
    };
    let mut all: Vec<Arc<dyn Protocol>> = Vec::new();
    // First, because whoever deploys the model chooses its routes.
    if let Some(routes) = &protocols.vertex {
        all.push(Arc::new(Vertex::new(routes.clone())));
    }
    all.push(Arc::new(SimpleTensorFlowServing::new(simple)));
    all.push(Arc::new(TensorFlowServing::new(protocols.tfs.clone(), config.max_tensor_bytes())));
    all.push(Arc::new(OpenInference::new(open_inference)));
    all.push(Arc::new(Sagemaker::new(protocols.sagemaker.clone())));
    if serves_mlflow(config) {
        // Before the server's own `/health`.
        all.push(Arc::new(Mlflow::new(protocols.sagemaker.default_model.clone())));
    }
    if protocols.console {
        let admin = config.http.admin.allowed;
        all.push(Arc::new(Console::new(ConsoleConfig { admin, is_root: replaces_original })));
    }
    all
}

/// Whether a configured path is a model folder of MLflow, or a directory of versions of one.
fn serves_mlflow(config: &Config) -> bool {
    let sources = config.repository.sources.iter();
    sources.map(|source| &source.path).any(|path| tensorserve_mlflow::is_served(path))
}

/// The engine for `config`, with the metrics and the file formats of `protocols`. Models are loaded
/// in the background, as soon as the [`HeldLoads`] are dropped.
///
/// # Errors
/// If a thread cannot be started.
pub fn engine(
    config: &Config,
    platforms: Platforms,
    protocols: &[Arc<dyn Protocol>],
) -> Result<(Engine, HeldLoads)> {
    let exporters = protocols.iter().filter_map(|protocol| protocol.exporter()).collect();
    let files = protocols.iter().find_map(|protocol| protocol.version_files());
    let files = files.unwrap_or_else(|| Arc::new(NoFormats) as Arc<dyn VersionFiles>);
    let records = protocols.iter().find_map(|protocol| protocol.request_log_format());
    let records = records.unwrap_or_else(|| Arc::new(NoFormats) as Arc<dyn RequestLogFormat>);
    let stores = stores::built_in(config);
    let (core, metrics) =
        (config.engine(), Metrics::new(exporters, config.protocols.metrics_aliases.clone()));
    let (repository, held) =
        Repository::start(&core, platforms, metrics.clone(), files, records, stores)?;
    Ok((Engine::new(&core, repository, metrics), held))
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::config::environment::Environment;
    use crate::config::{Settings, VertexConfig};
    use tensorserve_protocol::{
        Host, Listeners, NoHeaders, NoRoute, RequestHead, RouteMatch, RouteTable, Routes,
    };
    use tensorserve_protocols::tfs::config::METRICS_PATH;

    /// The table of all built-in protocols, as `change` configures them.
    fn table(change: impl Fn(&mut Config)) -> RouteTable {
        let mut config = Config::new(Settings::default(), &Environment::default()).expect("valid");
        change(&mut config);
        let host = Host {
            engine: Engine::without_models().expect("an engine"),
            listeners: Listeners::default(),
            connections: Arc::new(|| 0),
            operations: Arc::new(OnceLock::new()),
        };
        let mut routes = Routes::default();
        for protocol in built_in(&config) {
            protocol.routes(&host, &mut routes);
        }
        RouteTable::new(routes).expect("no two paths differ only in a parameter's name")
    }

    /// The path pattern of the route for a request; else the methods of its path, or "none".
    fn found(table: &RouteTable, method: &str, path: &str) -> String {
        let head = RequestHead { method, target: path, headers: &NoHeaders };
        match table.find(&head) {
            RouteMatch::Route(route, _) => route.path().to_owned(),
            RouteMatch::NoRoute(_, NoRoute::Method(methods)) => methods.join(", "),
            RouteMatch::NoRoute(_, NoRoute::Path) | RouteMatch::Nothing => "none".to_owned(),
        }
    }

    /// Requests, and what [`found`] returns for them.
    const REQUESTS: &[(&str, &str, &str)] = &[
        ("GET", "/ping", "/ping"),
        ("GET", "/pingxyz", "/ping{*rest}"),
        ("GET", "/invocations/", "/invocations{*rest}"),
        ("POST", "/invocations", "/invocations"),
        ("GET", "/tfs/v1/models/m", "/tfs/v1/models/{model}"),
        ("POST", "/tfs/v1/models/m", "GET, HEAD"),
        ("POST", "/tfs/v1/models/m:predict", "/tfs/v1/models/{model}:predict"),
        ("GET", "/models", "/models"),
        ("GET", "/models/", "/models/"),
        ("GET", "/models/m", "/models/{model}"),
        ("POST", "/models", "/models"),
        ("POST", "/models/m", "/models/{model}"),
        ("POST", "/models/m/invoke", "/models/{model}/invoke"),
        ("POST", "/models/invoke", "/models/{model}"),
        ("DELETE", "/models/m", "/models/{model}"),
        ("DELETE", "/models/m/invoke", "/models/{model}/invoke"),
        ("DELETE", "/models", "GET, POST"),
        ("GET", "/models/m/invoke", "DELETE, POST"),
        ("HEAD", "/models/m", "DELETE, GET, POST"),
        ("POST", "/endpoints/e/invocations", "/endpoints/{endpoint}/invocations"),
        ("POST", "/endpoints//invocations", "/endpoints//invocations"),
        (
            "POST",
            "/endpoints/a%2Fb/invocations-response-stream",
            "/endpoints/{endpoint}/invocations-response-stream",
        ),
        ("POST", "/endpoints/e/async-invocations", "/endpoints/{endpoint}/async-invocations"),
        ("POST", "/endpoints/", "none"),
        ("POST", "/endpoints/e", "none"),
        ("POST", "/endpoints/e/", "none"),
        ("POST", "/endpoints/e/invocations/", "none"),
        ("POST", "/endpoints/e/f/invocations", "none"),
        ("POST", "/endpoints/e/Invocations", "none"),
        ("GET", "/modelsx", "none"),
        ("GET", "/tfs", "none"),
        ("GET", "/PING", "none"),
        ("GET", "/v1/models/ping", "/v1/models/{model}"),
        ("GET", "/nope", "none"),
        ("GET", "/execution-parameters", "none"),
        ("GET", "/api/v1/models/m", "/api/v1/models/{model}"),
        ("POST", "/api/v1/models/m", "GET, HEAD"),
        (
            "DELETE",
            "/api/v1/models/m/versions/1/labels/stable",
            "/api/v1/models/{model}/versions/{version}/labels/{label}",
        ),
        ("GET", "/api/v1/models/m/versions/1/labels/stable", "DELETE"),
        ("POST", "/api/v1/status", "GET, HEAD"),
        ("GET", "/api/v1/", "none"),
        ("GET", "/api/v1/models/a/b/c/d/e/f/g/h/i", "none"),
        ("GET", "/api/v2/status", "none"),
        ("GET", "/api/v1", "none"),
        ("HEAD", "/json_inference", "/json_inference"),
        ("POST", "/run_image_inference", "/run_image_inference"),
        ("GET", "/static/../secret", "none"),
        ("GET", "/", "/"),
        ("GET", "/V1/models/m", "/v1/models/{model}"),
        ("POST", "/V1/Models/m:predict", "/v1/models/{model}:predict"),
        ("PUT", "/v1/models/m", "GET, HEAD"),
        ("GET", "/v1", "none"),
        ("GET", "/v2/models", "/v2/models"),
        ("GET", "/v2/models/m/versions/1/ready", "/v2/models/{model}/versions/{version}/ready"),
        ("GET", "/v2/models/m/infer", "POST"),
        ("GET", "/v2/nothing", "none"),
    ];

    #[test]
    fn requests_find_their_routes() {
        let table = table(|_| ());
        for (method, path, expected) in REQUESTS {
            assert_eq!(found(&table, method, path), *expected, "{method} {path}");
        }
    }
    #[test]
    fn routes_of_vertex_precede_all_others() {
        let with = |predict: &str, health: &str| {
            let routes =
                VertexConfig { predict_route: predict.to_owned(), health_route: health.to_owned() };
            let table = table(|config| config.protocols.vertex = Some(routes.clone()));
            for (method, path) in [("POST", predict), ("GET", health)] {
                assert_eq!(found(&table, method, path), path);
            }
            table
        };
        let all = with("/v1/models/m:predict", "/v1/models/m");
        assert_eq!(found(&all, "POST", "/v1/models/n:predict"), "/v1/models/{model}:predict");
        assert_eq!(found(&all, "GET", "/v1/models/m/metadata"), "/v1/models/{model}/metadata");
        assert_eq!(found(&all, "POST", "/v1/models/m:classify"), "/v1/models/{model}:classify");
        with("/", "/readyz");
        with("/invocations", "/ping");
        with("/v1/endpoints/1/deployedModels/2:predict", "/v1/endpoints/1/deployedModels/2");
    }

    #[test]
    fn metrics_of_tensorflow_serving_have_the_configured_path() {
        let with = |path: Option<&str>| {
            table(|config| config.protocols.tfs.metrics_path = path.map(str::to_owned))
        };
        assert_eq!(found(&with(Some("/v1/metrics")), "GET", "/v1/metrics"), "/v1/metrics");
        assert_eq!(found(&with(None), "GET", METRICS_PATH), "none");
    }
}
