//! Model status and metadata as TensorFlow Serving writes them: protocol buffers as JSON, indented by
//! one space, default values included.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use serde_json::ser::{PrettyFormatter, Serializer};

use tensorserve_core::engine::{Engine, ModelHandle, VersionState, VersionStatus};
use tensorserve_proto::serving::model_version_status::State as StateProto;
use tensorserve_protocol::{JSON, Reply};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Data, DeclaredShape, Signature, Tensor, TensorSpec};

/// The response to `GET /v1/models/NAME[/versions/VERSION]`. With `kserve`, also in the terms of KServe's
/// protocol v1: with `name` and `ready`, and status 503 if no version is ready.
pub(super) fn status(
    engine: &Engine,
    name: &str,
    version: Option<i64>,
    kserve: bool,
) -> Result<Reply> {
    let versions = match versions(engine, name, version) {
        // It has no version yet.
        Err(_) if kserve && version.is_none() && is_known(engine, name) => Vec::new(),
        versions => versions?,
    };
    let is_ready = versions.iter().any(|version| matches!(version.state, VersionState::Ready));
    let all = ModelStatusJson {
        model_version_status: versions.iter().map(VersionStatusJson::of).collect(),
        name: kserve.then(|| name.to_owned()),
        ready: kserve.then_some(is_ready),
    };
    let status = if kserve && !is_ready { 503 } else { 200 };
    Ok(Reply::ok(JSON, pretty(&all)).with_status(status))
}

/// Whether the server has a model of this name, or is configured to have one.
fn is_known(engine: &Engine, name: &str) -> bool {
    let mut sources = engine.repository_config().sources.iter();
    engine.repository().model(name).is_some()
        || sources.any(|source| source.name.as_deref() == Some(name))
}

/// The response to `GET /v1/models`, which the reference does not have: the names of all models, as in
/// KServe's protocol, and the status of each.
pub(super) fn list(engine: &Engine) -> Reply {
    let models = engine.repository().all_models();
    let status = |name: &String| {
        let versions = engine.repository().status(name);
        let all = ModelStatusJson {
            model_version_status: versions.iter().map(VersionStatusJson::of).collect(),
            name: None,
            ready: None,
        };
        (name.clone(), all)
    };
    let status = models.iter().map(status).collect();
    Reply::ok(JSON, pretty(&ModelListJson { models, status }))
}

/// The status of a model's versions, or of one of them.
pub(super) fn versions(
    engine: &Engine,
    name: &str,
    version: Option<i64>,
) -> Result<Vec<VersionStatus>> {
    let mut versions = engine.repository().status(name);
    if let Some(version) = version {
        versions.retain(|status| status.version == version);
    }
    match (versions.is_empty(), version) {
        (true, Some(version)) => {
            Err(Error::not_found(format!("Could not find version {version} of model {name}")))
        }
        (true, None) => {
            Err(Error::not_found(format!("Could not find any versions of model {name}")))
        }
        (false, _) => Ok(versions),
    }
}

// serde writes members in the order of declaration, which is that of the protocol buffers.
#[derive(Serialize)]
struct ModelListJson {
    models: Vec<String>,
    status: BTreeMap<String, ModelStatusJson>,
}

#[derive(Serialize)]
struct ModelStatusJson {
    model_version_status: Vec<VersionStatusJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
}

#[derive(Serialize)]
struct VersionStatusJson {
    version: String,
    state: &'static str,
    status: StatusJson,
}

#[derive(Serialize)]
struct StatusJson {
    error_code: &'static str,
    error_message: String,
}

impl VersionStatusJson {
    fn of(status: &VersionStatus) -> Self {
        let (state, error) = state_of(status);
        VersionStatusJson {
            version: status.version.to_string(),
            state: state.as_str_name(),
            status: StatusJson {
                error_code: error.as_ref().map_or("OK", |error| error.code().name()),
                error_message: error.map_or(String::new(), |error| error.message().to_owned()),
            },
        }
    }
}

/// The reference's name for a version's state, and the error if it failed or refuses requests.
pub(super) fn state_of(status: &VersionStatus) -> (StateProto, Option<Error>) {
    match &status.state {
        VersionState::Found(_) => (StateProto::Start, None),
        VersionState::Loading | VersionState::Warming | VersionState::Trial => {
            (StateProto::Loading, None)
        }
        // It is loaded and not available, for which TensorFlow Serving has no state.
        VersionState::Held(_) => {
            (StateProto::Loading, Some(Error::precondition(status.state.to_string())))
        }
        VersionState::Ready => (StateProto::Available, status.refusal()),
        VersionState::Draining => (StateProto::Unloading, None),
        VersionState::Unloaded => (StateProto::End, None),
        VersionState::Failed(error) => (StateProto::End, Some(error.duplicate())),
    }
}

/// The response to `GET …/metadata`.
pub(super) fn metadata(handle: &ModelHandle) -> String {
    let spec = pretty(&ModelSpecJson {
        name: handle.model(),
        signature_name: "",
        version: handle.version().to_string(),
    });
    let signatures = handle.signatures().iter();
    let map: serde_json::Map<String, serde_json::Value> =
        signatures.map(|signature| (signature.name.clone(), signature_def(signature))).collect();
    let map = pretty(&json!({ "signature_def": map }));
    format!("{{\n\"model_spec\":{spec},\n\"metadata\": {{\"signature_def\": {map}}}\n}}\n")
}

#[derive(Serialize)]
struct ModelSpecJson<'a> {
    name: &'a str,
    signature_name: &'a str,
    version: String,
}

fn signature_def(signature: &Signature) -> serde_json::Value {
    let defaults = signature.defaults.iter();
    let defaults: serde_json::Map<String, serde_json::Value> =
        defaults.map(|(alias, tensor)| (alias.clone(), tensor_proto(tensor))).collect();
    json!({
        "inputs": tensor_infos(&signature.inputs),
        "outputs": tensor_infos(&signature.outputs),
        "method_name": signature.method_name,
        "defaults": defaults,
    })
}

fn tensor_infos(specs: &[TensorSpec]) -> serde_json::Map<String, serde_json::Value> {
    specs.iter().map(|spec| (spec.alias.clone(), tensor_info(spec))).collect()
}

fn tensor_info(spec: &TensorSpec) -> serde_json::Value {
    let mut info = serde_json::Map::new();
    info.insert("dtype".into(), dtype_name(spec.dtype_number));
    let shape = match &spec.shape {
        // The reference does not print messages that are not set.
        DeclaredShape::Missing => None,
        DeclaredShape::UnknownRank => Some(json!({ "dim": [], "unknown_rank": true })),
        DeclaredShape::Dims(dims) => {
            let dim =
                |(size, name): &(i64, String)| json!({ "size": size.to_string(), "name": name });
            let dims: Vec<_> = dims.iter().map(dim).collect();
            Some(json!({ "dim": dims, "unknown_rank": false }))
        }
    };
    if let Some(shape) = shape {
        info.insert("tensor_shape".into(), shape);
    }
    match &spec.sparse {
        None => info.insert("name".into(), spec.tensor_name.clone().into()),
        Some(sparse) => info.insert(
            "coo_sparse".into(),
            json!({
                "values_tensor_name": sparse.values,
                "indices_tensor_name": sparse.indices,
                "dense_shape_tensor_name": sparse.dense_shape,
            }),
        ),
    };
    info.into()
}

/// `DT_FLOAT`, `DT_FLOAT_REF`, …; the number for an unknown type.
fn dtype_name(number: i32) -> serde_json::Value {
    let name = super::fault::type_name(number).to_ascii_uppercase();
    if name.contains(' ') {
        return number.into();
    }
    format!("DT_{name}").into()
}

/// A tensor as the reference prints a `TensorProto`: every repeated field, most of them empty.
fn tensor_proto(tensor: &Tensor) -> serde_json::Value {
    let shape = tensor.shape().dims().iter();
    let dims: Vec<_> = shape.map(|size| json!({ "size": size.to_string(), "name": "" })).collect();
    let mut proto = json!({
        "dtype": dtype_name(tensor.dtype().number()),
        "tensor_shape": { "dim": dims, "unknown_rank": false },
        "version_number": 0,
        "tensor_content": "",
        "half_val": [], "float_val": [], "double_val": [], "int_val": [], "string_val": [],
        "scomplex_val": [], "int64_val": [], "bool_val": [], "dcomplex_val": [],
        "resource_handle_val": [], "variant_val": [], "uint32_val": [], "uint64_val": [],
        "float8_val": "",
    });
    let (field, values) = typed_values(tensor);
    if let Some(slot) = proto.get_mut(field) {
        *slot = values;
    }
    proto
}

fn base64_text(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    tensorserve_codec::base64::encode(bytes, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

fn typed_values(tensor: &Tensor) -> (&'static str, serde_json::Value) {
    if let Data::Strings(strings) = tensor.data() {
        return ("string_val", strings.iter().map(base64_text).collect::<Vec<_>>().into());
    }
    match tensor.dtype() {
        DType::Float => ("float_val", json!(tensor.values::<f32>().unwrap_or_default())),
        DType::Double => ("double_val", json!(tensor.values::<f64>().unwrap_or_default())),
        DType::Int32 => ("int_val", json!(tensor.values::<i32>().unwrap_or_default())),
        DType::Int16 => ("int_val", json!(tensor.values::<i16>().unwrap_or_default())),
        DType::UInt16 => ("int_val", json!(tensor.values::<u16>().unwrap_or_default())),
        DType::Int8 => ("int_val", json!(tensor.values::<i8>().unwrap_or_default())),
        DType::UInt8 => ("int_val", json!(tensor.values::<u8>().unwrap_or_default())),
        DType::UInt32 => ("uint32_val", json!(tensor.values::<u32>().unwrap_or_default())),
        // The JSON mapping of protocol buffers writes 64-bit integers as strings.
        DType::Int64 => {
            let values = tensor.values::<i64>().unwrap_or_default().iter();
            ("int64_val", values.map(|n| serde_json::Value::from(n.to_string())).collect())
        }
        DType::UInt64 => {
            let values = tensor.values::<u64>().unwrap_or_default().iter();
            ("uint64_val", values.map(|n| serde_json::Value::from(n.to_string())).collect())
        }
        DType::Bool => {
            let values = tensor.bytes().iter().map(|&byte| byte != 0);
            ("bool_val", values.collect())
        }
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 | DType::String => {
            ("tensor_content", base64_text(tensor.bytes()).into())
        }
    }
}

/// JSON as the protocol buffer library prints it: indented by one space, with a final line break.
fn pretty(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b" "));
    if value.serialize(&mut serializer).is_err() {
        return String::new();
    }
    out.push(b'\n');
    String::from_utf8(out).unwrap_or_default()
}
