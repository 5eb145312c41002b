//! The details of one model.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::status::{ModelTraffic, ModelView, VersionView, in_millis, millis};
use super::{ConsoleClient, ConsoleState, TrialView, add_read, no_model, reply, text};
use crate::sample::dims;
use tensorserve_auth::Permission;
use tensorserve_core::batch::Joining;
use tensorserve_core::config::{BatchConfig, BatchMode};
use tensorserve_core::engine::{
    Engine, LifecycleEvent, ModelHandle, OptimizationState, VersionStatus,
};
use tensorserve_mlflow::MlflowModel;
use tensorserve_mlflow::schema::InputSchema;
use tensorserve_protocol::RouteGroup;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, JsonKind, Signature, TensorSpec};

/// Adds the route.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    let (path, summary) =
        ("/api/v1/models/{model}", "Return the state, signatures and history of a model");
    add_read::<ModelDetail>(group, path, Permission::Read, summary, |state, request| {
        let name = request.params.decoded("model");
        reply(ModelDetail::of(state.engine(), &name, &state.client(&request)).map(|m| text(&m)))
    });
}

/// The most values of a sample.
const MOST_VALUES: usize = 4096;

/// The state of a model in detail.
#[derive(Serialize, JsonSchema)]
pub(super) struct ModelDetail {
    #[serde(flatten)]
    model: ModelView<VersionDetail>,
    /// What happened to its versions, the newest first.
    history: Vec<EventView>,
}

/// A version in detail.
#[derive(Serialize, JsonSchema)]
struct VersionDetail {
    #[serde(flatten)]
    version: VersionView,
    /// Its directory; only for admins.
    path: Option<String>,
    warm_up: Option<WarmUpView>,
    optimization: Option<OptimizationView>,
    /// The same in another engine, if the setting `engine` asks for one.
    other_engine: Option<OptimizationView>,
    batching: Option<BatchingView>,
    /// For a model of MLflow: the names of the columns that it declares, none if it declares no columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    mlflow_columns: Option<Vec<String>>,
    /// What its trial has shown, if its model's releases are gated.
    trial: Option<TrialView>,
    signatures: Vec<SignatureView>,
}

/// A change of a version's state.
#[derive(Serialize, JsonSchema)]
struct EventView {
    /// In milliseconds since 1970.
    at: u64,
    version: Option<i64>,
    /// What happened.
    what: &'static str,
    /// Its duration in milliseconds.
    ms: Option<f64>,
    /// The user that requested it, or another origin.
    who: String,
    error: Option<String>,
}

/// How a version was warmed up.
#[derive(Serialize, JsonSchema)]
struct WarmUpView {
    /// The number of recorded requests that were run.
    records: Option<u64>,
    /// Whether synthetic inputs were run.
    ran: bool,
    text: String,
}

/// Whether a version runs in another form that takes less CPU time.
#[derive(Serialize, JsonSchema)]
struct OptimizationView {
    /// `waiting`, `running`, `unchanged` or `optimized`.
    state: &'static str,
    /// What is different, or why nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The results that were compared and found to be the same; only where it is optimized.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<usize>,
    /// Its CPU time as a share of that of the form before; only where it is optimized.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<f64>,
}

/// The batching parameters of a version.
#[derive(Serialize, JsonSchema)]
struct BatchingView {
    /// `off`, `auto` or `on`.
    batching: &'static str,
    /// `auto`, or `independent` if the operator says so.
    rows: &'static str,
    max_batch_size: usize,
    batch_timeout_micros: u64,
    max_enqueued_batches: usize,
    allowed_batch_sizes: Vec<usize>,
    pad_variable_length_inputs: bool,
    enable_large_batch_splitting: bool,
    max_execution_batch_size: usize,
}

/// A signature.
#[derive(Serialize, JsonSchema)]
struct SignatureView {
    name: String,
    method: String,
    inputs: Vec<TensorView>,
    outputs: Vec<TensorView>,
    joining: Option<JoiningView>,
    /// A request that it accepts.
    example: Option<SampleView>,
}

/// Whether requests of a signature run together as a batch.
#[derive(Serialize, JsonSchema)]
struct JoiningView {
    /// Whether they may.
    joins: bool,
    /// The reason.
    why: String,
}

/// The data of a request.
#[derive(Serialize, JsonSchema)]
struct SampleView {
    data: Map<String, Value>,
}

/// An input or output of a signature.
#[derive(Serialize, JsonSchema)]
struct TensorView {
    name: String,
    tensor: String,
    /// NumPy's name of the type.
    dtype: String,
    /// Sizes of dimensions, -1 where any size is accepted; null for any rank.
    shape: Option<Vec<i64>>,
    /// `image`, `string`, `bool` or `number`; only for inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// Whether a value may be missing; only for inputs where it may.
    #[serde(skip_serializing_if = "Option::is_none")]
    may_be_missing: Option<bool>,
    /// The values that an encoder of the model knows; only for inputs with such values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<String>,
    /// The numbers that the integers of a quantised tensor stand for: `0.5 * (value - 3)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantization: Option<String>,
}

impl ModelDetail {
    /// The details of model `name` for `client`.
    ///
    /// # Errors
    /// If there is no such model.
    pub(super) fn of(engine: &Engine, name: &str, client: &ConsoleClient) -> Result<Self> {
        let state = engine.repository().model(name).ok_or_else(|| no_model(name))?;
        let traffic = ModelTraffic::of(engine);
        let detail = |version, status: &VersionStatus, handle: Option<&ModelHandle>| {
            let trial = status.trial.as_deref().map(TrialView::new);
            VersionDetail { trial, ..VersionDetail::new(version, handle, client.is_admin()) }
        };
        let model = ModelView::new(&state, &traffic, detail);
        Ok(ModelDetail {
            model,
            history: engine
                .repository()
                .lifecycle_events(name)
                .iter()
                .map(EventView::new)
                .collect(),
        })
    }
}

impl VersionDetail {
    fn new(version: VersionView, handle: Option<&ModelHandle>, is_admin: bool) -> Self {
        let Some(handle) = handle else {
            let signatures = Vec::new();
            return VersionDetail {
                version,
                path: None,
                warm_up: None,
                optimization: None,
                other_engine: None,
                batching: None,
                mlflow_columns: None,
                trial: None,
                signatures,
            };
        };
        let view = |(index, signature)| SignatureView::new(signature, handle.joining(index));
        VersionDetail {
            version,
            path: is_admin.then(|| handle.folder().to_string_lossy().into_owned()),
            warm_up: Some(WarmUpView::new(handle)),
            optimization: Some(OptimizationView::new(handle.optimization())),
            other_engine: handle.other_engine().map(OptimizationView::new),
            batching: Some(BatchingView::new(handle.batching())),
            mlflow_columns: handle.packaging::<MlflowModel>().map(|model| columns(&model)),
            trial: None,
            signatures: (0..).zip(handle.signatures()).map(view).collect(),
        }
    }
}

/// The names of the columns that a model of MLflow declares.
fn columns(model: &MlflowModel) -> Vec<String> {
    let columns = model.signature.inputs.as_ref().and_then(InputSchema::columns);
    columns.unwrap_or_default().iter().filter_map(|column| column.name.clone()).collect()
}

impl EventView {
    fn new(event: &LifecycleEvent) -> Self {
        let LifecycleEvent { at, version, what, took, who, error } = event;
        EventView {
            at: millis(*at),
            version: *version,
            what,
            ms: took.map(in_millis),
            who: who.to_string(),
            error: error.clone(),
        }
    }
}

impl WarmUpView {
    fn new(handle: &ModelHandle) -> Self {
        let recorded = handle.version_metrics().warm_up();
        let text = match (handle.is_warmed(), recorded) {
            (false, _) => "not warmed up (warm_up is false)".to_owned(),
            (true, None) => "ran synthetic inputs; there are no recorded requests".to_owned(),
            (true, Some(warm_up)) => {
                let ms = warm_up.time.as_millis();
                format!(
                    "ran synthetic inputs, and {} recorded requests in {ms} ms",
                    warm_up.records
                )
            }
        };
        WarmUpView {
            records: recorded.map(|warm_up| warm_up.records),
            ran: handle.is_warmed(),
            text,
        }
    }
}

impl OptimizationView {
    fn new(optimization: OptimizationState) -> Self {
        let plain = |state, text| OptimizationView { state, text, compared: None, cpu: None };
        match optimization {
            OptimizationState::Waiting => plain("waiting", None),
            OptimizationState::Running => plain("running", None),
            OptimizationState::Unchanged(why) => plain("unchanged", Some(why)),
            OptimizationState::Optimized(form) => OptimizationView {
                state: "optimized",
                text: Some(form.text()),
                compared: Some(form.compared),
                cpu: Some(form.cpu),
            },
        }
    }
}

impl BatchingView {
    fn new(config: &BatchConfig) -> Self {
        BatchingView {
            batching: match config.mode {
                BatchMode::Off => "off",
                BatchMode::Auto => "auto",
                BatchMode::On => "on",
            },
            rows: if config.independent_rows { "independent" } else { "auto" },
            max_batch_size: config.max_batch_size,
            batch_timeout_micros: u64::try_from(config.batch_timeout.as_micros())
                .unwrap_or(u64::MAX),
            max_enqueued_batches: config.max_enqueued_batches,
            allowed_batch_sizes: config.allowed_batch_sizes.clone(),
            pad_variable_length_inputs: config.pad_variable_length_inputs,
            enable_large_batch_splitting: config.enable_large_batch_splitting,
            max_execution_batch_size: config.max_execution_batch_size,
        }
    }
}

impl SignatureView {
    fn new(signature: &Signature, joining: Option<Joining>) -> Self {
        let mut inputs: Vec<TensorView> = signature.inputs.iter().map(TensorView::new).collect();
        for (view, spec) in inputs.iter_mut().zip(&signature.inputs) {
            view.categories = signature.categories_of(&spec.alias).to_vec();
            view.kind = Some(match spec.dtype().map(DType::json_kind) {
                Some(JsonKind::String) if signature.takes_images => "image",
                Some(JsonKind::String) => "string",
                Some(JsonKind::Bool) => "bool",
                Some(JsonKind::Number) | None => "number",
            });
        }
        SignatureView {
            name: signature.name.clone(),
            method: signature.method_name.clone(),
            inputs,
            outputs: signature.outputs.iter().map(TensorView::new).collect(),
            joining: joining.map(|Joining { joins, why }| JoiningView { joins, why }),
            example: sample(signature).map(|data| SampleView { data }),
        }
    }
}

impl TensorView {
    fn new(spec: &TensorSpec) -> Self {
        TensorView {
            name: spec.alias.clone(),
            tensor: spec.tensor_name.clone(),
            dtype: dtype(spec),
            shape: spec.shape.sizes(),
            kind: None,
            may_be_missing: spec.takes_missing.then_some(true),
            categories: Vec::new(),
            quantization: spec.quantization.map(|it| it.to_string()),
        }
    }
}

/// NumPy's name for the type of a tensor.
pub(super) fn dtype(spec: &TensorSpec) -> String {
    match spec.dtype() {
        Some(dtype) => dtype.python_name().to_owned(),
        None => format!("type {}", spec.dtype_number),
    }
}

/// A synthetic value for each input; `None` if clients cannot send them or they are too large.
pub(super) fn sample(signature: &Signature) -> Option<Map<String, Value>> {
    if signature.unsupported().is_some() {
        return None;
    }
    let mut members = Map::new();
    for spec in &signature.inputs {
        members.insert(spec.alias.clone(), sample_value(signature, spec)?);
    }
    Some(members)
}

fn sample_value(signature: &Signature, spec: &TensorSpec) -> Option<Value> {
    let one: Value = match spec.dtype()? {
        DType::Float | DType::Double | DType::Half | DType::BFloat16 => 1.0.into(),
        DType::Bool => true.into(),
        DType::String => "text".into(),
        DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64 => 1.into(),
        DType::Complex64 | DType::Complex128 => return None,
    };
    let dims: Vec<usize> = dims(signature, spec, 1).into_iter().map(|size| size.max(1)).collect();
    if dims.iter().fold(1, |product: usize, &size| product.saturating_mul(size)) > MOST_VALUES {
        return None;
    }
    Some(dims.iter().rev().fold(one, |inner, size| Value::Array(vec![inner; *size])))
}
