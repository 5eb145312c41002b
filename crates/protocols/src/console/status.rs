//! How the server and its models are now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};

use super::{Asker, Shared, no_model, text};
use crate::simple::example::dims;
use tensorserve_core::config::{BatchConfig, BatchMode};
use tensorserve_core::engine::{
    CustomOps, Engine, Happening, ModelHandle, ModelState, Point, Rates, State, VersionStatus,
};
use tensorserve_protocol::bounded;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, Signature, TensorSpec};

/// More values than an example should have.
const MOST_VALUES: usize = 4096;

#[derive(Serialize)]
struct Server {
    name: &'static str,
    version: &'static str,
    runtimes: Vec<String>,
    started_at: u64,
    now: u64,
    uptime_seconds: f64,
    ready: bool,
    reasons: Vec<String>,
    stopping: bool,
    draining: bool,
    in_flight: i64,
    queued: usize,
    connections: usize,
    memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    machine_memory_bytes: Option<u64>,
    cpu_percent: Option<f64>,
    cores: usize,
    gpus: [(); 0],
    grpc_port: Option<u16>,
    auth: bool,
    custom_ops: Vec<Library>,
    requests_per_second: f64,
    errors_per_second: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
}

/// A library of operations that the user has added.
#[derive(Serialize)]
struct Library {
    /// Its file, without the folders: who looks need not know these.
    path: String,
    ops: Vec<String>,
    /// None ever: a server does not start with one that can not be loaded.
    error: Option<String>,
}

impl Library {
    fn new(library: CustomOps) -> Self {
        let name = library.path.file_name().map(|name| name.to_string_lossy().into_owned());
        Library { path: name.unwrap_or_default(), ops: library.ops, error: None }
    }
}

#[derive(Serialize)]
struct Model {
    name: String,
    platform: Option<&'static str>,
    source: &'static str,
    offline: bool,
    labels: BTreeMap<String, i64>,
    versions: Vec<Version>,
}

#[derive(Serialize)]
struct Version {
    version: i64,
    state: &'static str,
    error: Option<String>,
    since: u64,
    load_ms: Option<f64>,
    memory_bytes: Option<u64>,
    last_used: Option<u64>,
    requests_per_second: f64,
    errors_per_second: f64,
    error_percent: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    rows_per_batch: Option<f64>,
}

type AllRates = HashMap<(Arc<str>, i64), Rates>;

impl Shared {
    /// The status as `asker` gets it.
    pub(super) fn status(&self, asker: &Asker) -> String {
        format!("{}{}", beginning(asker), self.status_for_all())
    }

    /// What [`beginning`] leaves of the status, which is the same for everyone.
    pub(super) fn status_for_all(&self) -> String {
        let engine = &self.engine;
        let models = engine.models();
        let server = text(&self.server(&models));
        let rates = engine.rates_of_versions();
        let models: Vec<Model> = models.iter().map(|model| shown(model, &rates)).collect();
        let server = server.strip_prefix('{').unwrap_or_default();
        format!("{server},\"models\":{}}}", text(&models))
    }

    fn server(&self, models: &[ModelState]) -> Server {
        let engine = &self.engine;
        let (facts, rates, reasons) = (engine.facts(), engine.rates(), engine.reasons());
        let load = engine.last_second().and_then(|point| point.server);
        let handles = models.iter().flat_map(|model| &model.versions);
        let queued = handles.filter_map(|(_, handle)| Some(handle.as_ref()?.present())).sum();
        let uptime = facts.started_at.elapsed().unwrap_or_default();
        Server {
            name: "tensorserve",
            version: env!("CARGO_PKG_VERSION"),
            runtimes: engine.runtimes(),
            started_at: millis(facts.started_at),
            now: millis(SystemTime::now()),
            uptime_seconds: round(uptime.as_secs_f64()),
            ready: reasons.is_empty(),
            reasons: reasons.iter().map(|reason| bounded(reason).into_owned()).collect(),
            stopping: engine.is_stopping(),
            draining: engine.is_draining(),
            in_flight: engine.in_flight_count(),
            queued,
            connections: (self.options.connections)(),
            memory_bytes: load.map(|load| load.memory),
            memory_limit_bytes: facts.memory_limit,
            machine_memory_bytes: facts.machine_memory,
            cpu_percent: load.map(|load| round(load.cpu_percent)),
            cores: facts.cores,
            gpus: [],
            grpc_port: engine.addresses().grpc_port,
            auth: self.options.auth,
            custom_ops: engine.custom_ops().into_iter().map(Library::new).collect(),
            requests_per_second: round(rates.requests_per_second),
            errors_per_second: round(rates.errors_per_second),
            p50_ms: rates.p50_ms.map(round),
            p99_ms: rates.p99_ms.map(round),
        }
    }
}

/// The start of a status: who asks for it.
pub(super) fn beginning(asker: &Asker) -> String {
    let (user, roles) = (text(&asker.name), text(&asker.roles));
    format!("{{\"server\":{{\"user\":{user},\"roles\":{roles},")
}

fn shown(model: &ModelState, rates: &AllRates) -> Model {
    let name: Arc<str> = model.name.as_str().into();
    let version = |(status, handle): &(VersionStatus, Option<ModelHandle>)| {
        let rates = rates.get(&(Arc::clone(&name), status.version)).copied().unwrap_or_default();
        let (state, error) = state(&status.state);
        let handle = handle.as_ref();
        Version {
            version: status.version,
            state,
            error,
            since: millis(status.since),
            load_ms: handle.map(|handle| in_millis(handle.load_time())),
            memory_bytes: handle.map(ModelHandle::bytes),
            last_used: rates.last_used,
            requests_per_second: round(rates.requests_per_second),
            errors_per_second: round(rates.errors_per_second),
            error_percent: round(rates.error_percent),
            p50_ms: rates.p50_ms.map(round),
            p99_ms: rates.p99_ms.map(round),
            rows_per_batch: rates.rows_per_batch.map(round),
        }
    };
    let platform = model.versions.iter().find_map(|(_, handle)| Some(handle.as_ref()?.platform()));
    Model {
        platform,
        source: if model.is_asked_for { "loaded" } else { "configured" },
        offline: model.is_offline,
        labels: model.labels.clone(),
        versions: model.versions.iter().map(version).collect(),
        name: model.name.clone(),
    }
}

/// A state in a word, and why it failed or what it waits for.
fn state(state: &State) -> (&'static str, Option<String>) {
    match state {
        State::Found(waits_for) => ("FOUND", Some(bounded(waits_for).into_owned())),
        State::Loading => ("LOADING", None),
        State::Warming => ("WARMING", None),
        State::Ready => ("AVAILABLE", None),
        State::Draining => ("UNLOADING", None),
        State::Gone => ("END", None),
        State::Failed(error) => ("FAILED", Some(bounded(error.message()).into_owned())),
    }
}

/// One model in detail.
///
/// # Errors
/// If there is none.
pub(super) fn model(engine: &Engine, name: &str, asker: &Asker) -> Result<String> {
    let model = engine.model(name).ok_or_else(|| no_model(name))?;
    let mut shown = json!(shown(&model, &engine.rates_of_versions()));
    let versions = shown.get_mut("versions").and_then(Value::as_array_mut);
    for (version, (_, handle)) in versions.into_iter().flatten().zip(&model.versions) {
        if let (Value::Object(version), Value::Object(more)) =
            (version, detail(handle.as_ref(), asker))
        {
            version.extend(more);
        }
    }
    if let Value::Object(shown) = &mut shown {
        let happenings: Vec<Value> = engine.happenings(name).iter().map(happening).collect();
        shown.insert("history".to_owned(), happenings.into());
    }
    Ok(text(&shown))
}

fn happening(happening: &Happening) -> Value {
    let Happening { at, version, what, took, who, error } = happening;
    json!({
        "at": millis(*at),
        "version": version,
        "what": what,
        "ms": took.map(in_millis),
        "who": &**who,
        "error": error,
    })
}

/// What is told of a version only in detail.
fn detail(handle: Option<&ModelHandle>, asker: &Asker) -> Value {
    let Some(handle) = handle else {
        let none: [Value; 0] = [];
        return json!({ "signatures": none, "batching": null, "path": null, "warm_up": null });
    };
    let path = asker.is_admin().then(|| handle.folder().to_string_lossy().into_owned());
    json!({
        "path": path,
        "warm_up": warm_up(handle),
        "batching": batching(handle.batching()),
        "signatures": handle.signatures().iter().map(signature).collect::<Vec<_>>(),
    })
}

fn warm_up(handle: &ModelHandle) -> Value {
    let recorded = handle.version_metrics().warm_up();
    let text = match (handle.is_warmed(), recorded) {
        (false, _) => "not warmed up (warm_up is false)".to_owned(),
        (true, None) => "ran made-up inputs; it has no recorded requests".to_owned(),
        (true, Some(warm_up)) => {
            let ms = warm_up.time.as_millis();
            format!("ran made-up inputs, and {} recorded requests in {ms} ms", warm_up.records)
        }
    };
    let records = recorded.map(|warm_up| warm_up.records);
    json!({ "records": records, "ran": handle.is_warmed(), "text": text })
}

fn batching(config: &BatchConfig) -> Value {
    let mode = match config.mode {
        BatchMode::Off => "off",
        BatchMode::Auto => "auto",
        BatchMode::On => "on",
    };
    json!({
        "batching": mode,
        "max_batch_size": config.max_batch_size,
        "batch_timeout_micros": u64::try_from(config.timeout.as_micros()).unwrap_or(u64::MAX),
        "max_enqueued_batches": config.max_enqueued_batches,
        "allowed_batch_sizes": config.allowed_batch_sizes,
        "pad_variable_length_inputs": config.pad_variable_length_inputs,
        "enable_large_batch_splitting": config.enable_large_batch_splitting,
        "max_execution_batch_size": config.max_execution_batch_size,
    })
}

fn signature(signature: &Signature) -> Value {
    let kind = |spec: &TensorSpec| match spec.dtype() {
        Some(DType::String) if signature.takes_images => "image",
        Some(DType::String) => "string",
        Some(DType::Bool) => "bool",
        _ => "number",
    };
    let input = |spec: &TensorSpec| {
        let mut shown = tensor(spec);
        if let Value::Object(shown) = &mut shown {
            shown.insert("kind".to_owned(), kind(spec).into());
        }
        shown
    };
    json!({
        "name": signature.name,
        "method": signature.method_name,
        "inputs": signature.inputs.iter().map(input).collect::<Vec<_>>(),
        "outputs": signature.outputs.iter().map(tensor).collect::<Vec<_>>(),
        "example": example(signature).map(|data| json!({ "data": data })),
    })
}

fn tensor(spec: &TensorSpec) -> Value {
    json!({
        "name": spec.alias,
        "tensor": spec.tensor_name,
        "dtype": dtype(spec),
        "shape": spec.shape.sizes(),
    })
}

/// The name that NumPy has for the type of a tensor.
pub(super) fn dtype(spec: &TensorSpec) -> String {
    match spec.dtype() {
        Some(dtype) => dtype.python_name().to_owned(),
        None => format!("type {}", spec.dtype_number),
    }
}

/// A value for each input that the signature takes, if they can be sent and are not too large.
pub(super) fn example(signature: &Signature) -> Option<Value> {
    let value = |spec: &TensorSpec| Some((spec.alias.clone(), made_up(spec)?));
    let members = signature.inputs.iter().map(value).collect::<Option<serde_json::Map<_, _>>>()?;
    Some(members.into())
}

fn made_up(spec: &TensorSpec) -> Option<Value> {
    let one = match spec.dtype()? {
        DType::Float | DType::Double | DType::Half | DType::BFloat16 => json!(1.0),
        DType::Bool => json!(true),
        DType::String => json!("text"),
        DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64 => json!(1),
        DType::Complex64 | DType::Complex128 => return None,
    };
    let dims: Vec<usize> = dims(spec, 1).into_iter().map(|size| size.max(1)).collect();
    if dims.iter().fold(1, |product: usize, &size| product.saturating_mul(size)) > MOST_VALUES {
        return None;
    }
    let nest = |inner: Value, &size: &usize| Value::Array(vec![inner; size]);
    Some(dims.iter().rev().fold(one, nest))
}

/// Milliseconds since 1970.
pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn in_millis(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1000.0)
}

/// To three places behind the point: more is noise.
pub(super) fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// A point of the past.
pub(super) fn point(point: &Point) -> Value {
    let Point { span, tally, server } = point;
    let errors: BTreeMap<&str, u32> = tally.errors_by_code().collect();
    let rows: serde_json::Map<String, Value> = tally
        .batches()
        .map(|(most, count)| {
            (most.map_or("more".to_owned(), |most| most.to_string()), count.into())
        })
        .collect();
    json!({
        "at": span.at,
        "seconds": round(span.seconds),
        "requests": tally.requests(),
        "errors": tally.errors(),
        "errors_by_code": errors,
        "p50_ms": tally.quantile_ms(0.5).map(round),
        "p95_ms": tally.quantile_ms(0.95).map(round),
        "p99_ms": tally.quantile_ms(0.99).map(round),
        "queue_ms": tally.queue_ms().map(round),
        "compute_ms": tally.compute_ms().map(round),
        "in_flight": server.map(|load| load.in_flight),
        "memory_bytes": server.map(|load| load.memory),
        "cpu_percent": server.map(|load| round(load.cpu_percent)),
        "batch_rows": rows,
    })
}
