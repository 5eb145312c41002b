//! The current state of the server and its models.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{ConsoleClient, ConsoleState, add_read, reply, schema_of, text};
use tensorserve_auth::Permission;
use tensorserve_core::engine::{
    CustomOps, Engine, ExternalOp, Gpus, HistoryPoint, LastError, ModelHandle, ModelState, Rates,
    StoreReport, VersionState, VersionStatus,
};
use tensorserve_protocol::{JSON, RouteGroup, bounded};

/// Adds the routes.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    let summary = "Return the state of the server and of all models";
    add_read::<ConsoleStatus>(
        group,
        "/api/v1/status",
        Permission::Read,
        summary,
        |state, request| reply(Ok(state.status(&state.client(&request)))),
    )
    .response(JSON, status_schema());
}

/// The state of the server and of all models.
#[derive(Serialize, JsonSchema)]
struct ConsoleStatus {
    server: ServerView,
    models: Vec<ModelView<VersionView>>,
    /// The stores that models come from, by location.
    stores: Vec<StoreView>,
}

/// The state of a location in a store, such as `s3://bucket/models`.
#[derive(Serialize, JsonSchema)]
struct StoreView {
    location: String,
    /// Why it could not be listed the last time.
    error: Option<String>,
    /// When it was last listed, in milliseconds since 1970.
    listed_at: Option<u64>,
    /// What is served was downloaded by an earlier process; the store has not responded yet.
    offline: bool,
    objects: usize,
    /// Downloads under way.
    downloads: usize,
    downloaded_bytes: u64,
    /// The bytes of these downloads in all.
    download_bytes: u64,
}

impl StoreView {
    fn new(report: StoreReport) -> Self {
        StoreView {
            location: report.location,
            error: report.error,
            listed_at: report.listed_at.map(millis),
            offline: report.is_offline,
            objects: report.objects,
            downloads: report.downloads,
            downloaded_bytes: report.downloaded_bytes,
            download_bytes: report.download_bytes,
        }
    }
}

/// The schema of a status, with the client that [`beginning`] adds.
fn status_schema() -> Value {
    let mut schema = schema_of::<ConsoleStatus>();
    let server = schema.pointer_mut("/properties/server/properties");
    if let Some(Value::Object(server)) = server {
        let user = "The user or key that the request came from";
        server
            .insert("user".to_owned(), json!({ "type": ["string", "null"], "description": user }));
        let roles = json!({
            "type": "array",
            "items": { "type": "string" },
            "description": "The roles of the user, or all if the server does not authenticate",
        });
        server.insert("roles".to_owned(), roles);
    }
    schema
}

/// The state of the server.
#[derive(Serialize, JsonSchema)]
struct ServerView {
    name: &'static str,
    version: &'static str,
    /// The runtimes of the models that are ready, with their versions.
    runtimes: Vec<String>,
    /// In milliseconds since 1970.
    started_at: u64,
    /// In milliseconds since 1970.
    now: u64,
    uptime_seconds: f64,
    /// Every configured model has a ready version.
    ready: bool,
    /// Why the server is not ready.
    reasons: Vec<String>,
    /// The server is shutting down.
    stopping: bool,
    /// The server reports that it is not ready because of `/api/v1/drain`.
    draining: bool,
    /// Requests in flight.
    in_flight: i64,
    /// Requests in the batch queues.
    queued: usize,
    /// Memory that requests in flight hold: bodies, tensors and responses.
    request_memory_bytes: usize,
    /// The limit of it, `max_request_memory`.
    request_memory_limit_bytes: usize,
    /// Open HTTP connections.
    connections: usize,
    /// Resident memory of the process.
    memory_bytes: Option<u64>,
    /// The memory limit of the container.
    memory_limit_bytes: Option<u64>,
    machine_memory_bytes: Option<u64>,
    /// CPU use in the last second; 100 is one core.
    cpu_percent: Option<f64>,
    cores: usize,
    /// The names of the GPUs that libtensorflow uses.
    gpus: Vec<String>,
    /// Why a libtensorflow that is built for GPUs uses none.
    gpus_unavailable: Option<String>,
    grpc_port: Option<u16>,
    /// Clients must authenticate.
    auth: bool,
    /// Libraries of custom operations.
    custom_ops: Vec<CustomOpLibraryView>,
    requests_per_second: f64,
    errors_per_second: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    /// The share of each resource that is in use: `batch_threads`, `cpu`, `queue` and `request_memory`. The server
    /// has no capacity left when one of them is at 1.
    utilization: BTreeMap<&'static str, f64>,
}

/// A library of custom operations.
#[derive(Serialize, JsonSchema)]
struct CustomOpLibraryView {
    /// Its file name without the directory.
    path: String,
    ops: Vec<String>,
    /// Always null: a server does not start with a library that cannot be loaded.
    error: Option<String>,
}

impl CustomOpLibraryView {
    fn new(library: CustomOps) -> Self {
        let name = library.path.file_name().map(|name| name.to_string_lossy().into_owned());
        CustomOpLibraryView { path: name.unwrap_or_default(), ops: library.ops, error: None }
    }
}

/// The state of a model.
#[derive(Serialize, JsonSchema)]
pub(super) struct ModelView<V> {
    name: String,
    platform: Option<&'static str>,
    /// `configured`, or `loaded` by request.
    source: &'static str,
    /// Whether it was taken out of service.
    offline: bool,
    /// The version that each label stands for.
    labels: BTreeMap<String, i64>,
    /// The highest first.
    versions: Vec<V>,
    /// The requests that named the model, and no version that is served.
    unserved: UnservedView,
    /// The last request that failed, for any version.
    last_error: Option<LastErrorView>,
}

/// The traffic of requests without a version in the last seconds. All of them failed.
#[derive(Serialize, JsonSchema)]
struct UnservedView {
    requests_per_second: f64,
    errors_per_second: f64,
    error_percent: f64,
    /// When there was one, in milliseconds since 1970.
    last_used: Option<u64>,
}

impl UnservedView {
    fn new(rates: Rates) -> Self {
        UnservedView {
            requests_per_second: round(rates.requests_per_second),
            errors_per_second: round(rates.errors_per_second),
            error_percent: round(rates.error_percent),
            last_used: rates.last_used,
        }
    }
}

/// The last request of a model that failed.
#[derive(Serialize, JsonSchema)]
struct LastErrorView {
    /// In milliseconds since 1970.
    at: u64,
    /// The name of its code, such as `INVALID_ARGUMENT`.
    code: &'static str,
    message: String,
}

impl LastErrorView {
    fn new(error: &LastError) -> Self {
        let message = error.message.clone();
        LastErrorView { at: millis(error.at), code: error.code.name(), message }
    }
}

/// The state of a version, and its traffic in the last minute.
#[derive(Serialize, JsonSchema)]
pub(super) struct VersionView {
    version: i64,
    /// `FOUND`, `LOADING`, `WARMING`, `TRIAL`, `HELD`, `AVAILABLE`, `UNLOADING`, `END` or `FAILED`.
    state: &'static str,
    /// Why it failed, or what it waits for.
    error: Option<String>,
    /// When it entered this state, in milliseconds since 1970.
    since: u64,
    load_ms: Option<f64>,
    memory_bytes: Option<u64>,
    /// Its operations that access files, the network or Python, unless `allow_ops` has them.
    external_ops: Vec<ExternalOpView>,
    /// When it last ran, in milliseconds since 1970.
    last_used: Option<u64>,
    requests_per_second: f64,
    errors_per_second: f64,
    error_percent: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    /// Mean number of rows in a batch.
    rows_per_batch: Option<f64>,
}

/// An operation that reaches outside its model.
#[derive(Serialize, JsonSchema)]
struct ExternalOpView {
    op: String,
    /// What it does.
    access: &'static str,
    /// The first node with it.
    node: String,
    /// The function whose body contains the node; null for the graph itself.
    function: Option<String>,
}

impl ExternalOpView {
    fn new(external: &ExternalOp) -> Self {
        let ExternalOp { op, access, node } = external;
        ExternalOpView {
            op: op.clone(),
            access,
            node: bounded(&node.name).into_owned(),
            function: node.function.as_deref().map(|name| bounded(name).into_owned()),
        }
    }
}

/// What the metrics say of the models.
pub(super) struct ModelTraffic {
    versions: HashMap<(Arc<str>, i64), Rates>,
    unserved: HashMap<Arc<str>, Rates>,
    last_errors: HashMap<Arc<str>, LastError>,
}

impl ModelTraffic {
    pub(super) fn of(engine: &Engine) -> Self {
        let metrics = engine.metrics();
        ModelTraffic {
            versions: metrics.rates_of_versions(),
            unserved: metrics.rates_of_unserved(),
            last_errors: metrics.last_errors(),
        }
    }
}

impl ConsoleState {
    /// The status for `client`.
    fn status(&self, client: &ConsoleClient) -> String {
        format!("{}{}", beginning(client), self.status_for_all())
    }

    /// The status without its [`beginning`], the same for every client.
    pub(super) fn status_for_all(&self) -> String {
        let engine = self.engine();
        let (models, traffic) = (engine.repository().models(), ModelTraffic::of(engine));
        let server = self.server(&models);
        let view = |model: &ModelState| ModelView::new(model, &traffic, |version, _, _| version);
        let stores = engine.repository().stores().reports().into_iter();
        let status = ConsoleStatus {
            server,
            models: models.iter().map(view).collect(),
            stores: stores.map(StoreView::new).collect(),
        };
        let text = text(&status);
        text.strip_prefix(BEGINNING).unwrap_or_default().to_owned()
    }

    fn server(&self, models: &[ModelState]) -> ServerView {
        let engine = self.engine();
        let (facts, rates, reasons) = (engine.facts(), engine.metrics().rates(), engine.reasons());
        let load = engine.metrics().last_second().and_then(|point| point.server);
        let handles = models.iter().flat_map(|model| &model.versions);
        let queued = handles.filter_map(|(_, handle)| Some(handle.as_ref()?.present())).sum();
        let (gpus, gpus_unavailable) = match engine.repository().gpus() {
            Some(Gpus::Available(names)) => (names, None),
            Some(Gpus::Unavailable(why)) => (Vec::new(), Some(why)),
            Some(Gpus::NotSupported) | None => (Vec::new(), None),
        };
        let uptime = facts.started_at.elapsed().unwrap_or_default();
        ServerView {
            name: "tensorserve",
            version: env!("CARGO_PKG_VERSION"),
            runtimes: engine.repository().runtimes(),
            started_at: millis(facts.started_at),
            now: millis(SystemTime::now()),
            uptime_seconds: round(uptime.as_secs_f64()),
            ready: reasons.is_empty(),
            reasons: reasons.iter().map(|reason| bounded(reason).into_owned()).collect(),
            stopping: engine.is_stopping(),
            draining: engine.is_draining(),
            in_flight: engine.metrics().in_flight_count(),
            queued,
            request_memory_bytes: engine.request_memory().used(),
            request_memory_limit_bytes: engine.request_memory().limit(),
            connections: (self.host.connections)(),
            memory_bytes: load.map(|load| load.memory),
            memory_limit_bytes: facts.memory_limit,
            machine_memory_bytes: facts.machine_memory,
            cpu_percent: load.map(|load| round(load.cpu_percent)),
            cores: facts.cores,
            gpus,
            gpus_unavailable,
            grpc_port: engine.addresses().grpc_port,
            auth: self.host.listeners.auth,
            custom_ops: engine
                .repository()
                .custom_ops()
                .into_iter()
                .map(CustomOpLibraryView::new)
                .collect(),
            requests_per_second: round(rates.requests_per_second),
            errors_per_second: round(rates.errors_per_second),
            p50_ms: rates.p50_ms.map(round),
            p99_ms: rates.p99_ms.map(round),
            utilization: engine.utilization().map(|(name, share)| (name, round(share))).into(),
        }
    }
}

/// The start of every status, before what [`beginning`] adds.
const BEGINNING: &str = "{\"server\":{";

/// The start of a status with the client that requested it.
pub(super) fn beginning(client: &ConsoleClient) -> String {
    let (user, roles) = (text(&client.name), text(&client.roles));
    format!("{BEGINNING}\"user\":{user},\"roles\":{roles},")
}

impl<V> ModelView<V> {
    /// The state of a model; `of_version` converts each version.
    pub(super) fn new(
        model: &ModelState,
        traffic: &ModelTraffic,
        of_version: impl Fn(VersionView, &VersionStatus, Option<&ModelHandle>) -> V,
    ) -> Self {
        let name: Arc<str> = model.name.as_str().into();
        let platform = model.versions.iter().find_map(|(_, handle)| handle.as_ref());
        let mut versions = Vec::with_capacity(model.versions.len());
        for (status, handle) in &model.versions {
            let key = (Arc::clone(&name), status.version);
            let rates = traffic.versions.get(&key).copied().unwrap_or_default();
            let version = VersionView::new(status, handle.as_ref(), rates);
            versions.push(of_version(version, status, handle.as_ref()));
        }
        ModelView {
            platform: platform.map(|handle| handle.platform().name),
            source: if model.is_requested { "loaded" } else { "configured" },
            offline: model.is_out_of_service,
            labels: model.labels.clone(),
            versions,
            unserved: UnservedView::new(traffic.unserved.get(&name).copied().unwrap_or_default()),
            last_error: traffic.last_errors.get(&name).map(LastErrorView::new),
            name: model.name.clone(),
        }
    }
}

impl VersionView {
    fn new(status: &VersionStatus, handle: Option<&ModelHandle>, rates: Rates) -> Self {
        let (state, error) = state(status);
        VersionView {
            version: status.version,
            state,
            error,
            since: millis(status.since),
            load_ms: handle.map(|handle| in_millis(handle.load_time())),
            memory_bytes: handle.map(|handle| handle.bytes()),
            external_ops: handle
                .map_or(&[][..], |handle| handle.external_ops())
                .iter()
                .map(ExternalOpView::new)
                .collect(),
            last_used: rates.last_used,
            requests_per_second: round(rates.requests_per_second),
            errors_per_second: round(rates.errors_per_second),
            error_percent: round(rates.error_percent),
            p50_ms: rates.p50_ms.map(round),
            p99_ms: rates.p99_ms.map(round),
            rows_per_batch: rates.rows_per_batch.map(round),
        }
    }
}

/// The name of a state, and why it failed or refuses requests, or what it waits for.
fn state(status: &VersionStatus) -> (&'static str, Option<String>) {
    match &status.state {
        VersionState::Found(why) => {
            let name = if status.is_held_before { "HELD" } else { "FOUND" };
            (name, Some(bounded(why).into_owned()))
        }
        VersionState::Loading => ("LOADING", None),
        VersionState::Warming => ("WARMING", None),
        VersionState::Trial => ("TRIAL", None),
        VersionState::Held(why) => ("HELD", Some(bounded(why).into_owned())),
        VersionState::Ready => {
            let refusal = status.refusal();
            ("AVAILABLE", refusal.map(|error| bounded(error.message()).into_owned()))
        }
        VersionState::Draining => ("UNLOADING", None),
        VersionState::Unloaded => ("END", None),
        VersionState::Failed(error) => ("FAILED", Some(bounded(error.message()).into_owned())),
    }
}

/// The traffic of a time interval, and the load of the server at its end.
#[derive(Serialize, JsonSchema)]
pub(super) struct PointView {
    /// Its end, in milliseconds since 1970.
    at: u64,
    seconds: f64,
    requests: u64,
    errors: u64,
    errors_by_code: BTreeMap<&'static str, u32>,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    /// Mean queue delay.
    queue_ms: Option<f64>,
    /// Mean run time.
    compute_ms: Option<f64>,
    in_flight: Option<i64>,
    memory_bytes: Option<u64>,
    cpu_percent: Option<f64>,
    /// Batches by size; a key is the upper limit of a range of sizes, or `more`.
    batch_rows: BTreeMap<String, u32>,
}

impl PointView {
    pub(super) fn new(point: &HistoryPoint) -> Self {
        let HistoryPoint { span, tally, server } = point;
        let mut batch_rows = BTreeMap::new();
        for (most, count) in tally.batches() {
            let most = most.map_or("more".to_owned(), |most| most.to_string());
            batch_rows.insert(most, count);
        }
        PointView {
            at: span.at,
            seconds: round(span.seconds),
            requests: tally.requests(),
            errors: tally.errors(),
            errors_by_code: tally.errors_by_code().map(|(code, n)| (code.name(), n)).collect(),
            p50_ms: tally.quantile_ms(0.5).map(round),
            p95_ms: tally.quantile_ms(0.95).map(round),
            p99_ms: tally.quantile_ms(0.99).map(round),
            queue_ms: tally.queue_ms().map(round),
            compute_ms: tally.compute_ms().map(round),
            in_flight: server.map(|load| load.in_flight),
            memory_bytes: server.map(|load| load.memory),
            cpu_percent: server.map(|load| round(load.cpu_percent)),
            batch_rows,
        }
    }
}

/// Milliseconds since 1970.
pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn in_millis(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1000.0)
}

/// Rounded to three decimal places.
pub(super) fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
