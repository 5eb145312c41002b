//! The models as Simple TensorFlow Serving describes them: the list, the detail of one, and a sample
//! request (`gen_json`).

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Value, json};

use super::html::escape;
use super::{SimpleApi, clients};
use crate::sample;
use tensorserve_auth::Permission;
use tensorserve_core::engine::{Engine, ModelHandle, ModelSpec, VersionSelector, VersionState};
use tensorserve_protocol::{Answer, JSON, Methods, Reply, RouteGroup, RoutedRequest};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, TensorSpec};

const TEXT: &str = "text/html; charset=utf-8";

/// Adds the routes below `/v1/models`, where TensorFlow Serving has its own: the list and the detail
/// of models only if this server `replaces_original`.
pub(super) fn add_routes(replaces_original: bool, group: &mut RouteGroup<'_, SimpleApi>) {
    if replaces_original {
        for path in ["/v1/models", "/v1/models/"] {
            group
                .immediate(Methods::Get, path, Permission::Read, |api, _| list(&api.engine))
                .cors()
                .simple_cors()
                .summary("Describe all models");
        }
        group
            .immediate(Methods::Get, "/v1/models/{model}", Permission::Read, |api, request| {
                detail(&api.engine, &request.params.decoded("model"))
            })
            .accepts(|params| !params.decoded("model").contains(':'))
            .cors()
            .simple_cors()
            .summary("Describe a model");
    }
    let gen_json = move |api: &SimpleApi, request: RoutedRequest<'_>| {
        gen_json(&api.engine, &request, replaces_original)
    };
    group
        .immediate(Methods::Get, "/v1/models/{model}/gen_json", Permission::Read, gen_json)
        .cors()
        .simple_cors()
        .query("signature", "The signature; the default is serving_default", text())
        .query("version", "The version; the default is the highest", integer())
        .summary("Return sample data that a signature accepts")
        .response(JSON, json!({ "type": "object", "required": ["data"] }));
    group
        .immediate(Methods::Get, "/v1/models/{model}/gen_client", Permission::Read, clients::route)
        .cors()
        .simple_cors()
        .query("language", "The programming language; the default is bash", text())
        .query("variant", "The variant; the default is the first of the language", text())
        .query("signature", "The signature; the default is serving_default", text())
        .query("version", "The version; the default is the highest", integer())
        .summary("Generate the source code of a client for a model")
        .response("text/plain; charset=utf-8", text());
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn integer() -> Value {
    json!({ "type": "integer", "format": "int64", "minimum": 0 })
}

fn list(engine: &Engine) -> Reply {
    let models = engine.repository().ready_models();
    let models: Vec<ModelHandle> = models.iter().filter_map(|name| latest(engine, name)).collect();
    let details: Vec<SimpleModelDetail> =
        models.iter().map(|handle| SimpleModelDetail::new(engine, handle)).collect();
    Reply::ok(JSON, spaced(&details))
}

fn detail(engine: &Engine, name: &str) -> Reply {
    match latest(engine, name) {
        Some(handle) => Reply::ok(JSON, spaced(&SimpleModelDetail::new(engine, &handle))),
        None => {
            // The original's message and content type, because clients compare them.
            let error = not_found(engine, name);
            let mut reply = Reply::ok(TEXT, escape(error.message())).with_status(404);
            reply.error = Some(error);
            reply
        }
    }
}

/// The error for a model that is not ready, with the state of its version if it has one.
fn not_found(engine: &Engine, name: &str) -> Error {
    let why = engine.repository().status(name).into_iter().next();
    let why = why.map_or(String::new(), |s| format!(" (version {}: {})", s.version, s.state));
    Error::not_found(format!("Model not found: {name}{why}"))
}

/// Sample data. A server that replaces the original writes that one's bytes, which have no image.
fn gen_json(engine: &Engine, request: &RoutedRequest<'_>, replaces_original: bool) -> Answer {
    let (head, name) = (&request.head, request.params.decoded("model"));
    let version = match head.query_value("version").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => match text.parse() {
            Ok(version) => Some(version),
            Err(_) => {
                let message = format!("Invalid model version: {text} is not a whole number");
                return Err(Error::invalid(message).into());
            }
        },
    };
    let choice = version.map_or(VersionSelector::Latest, VersionSelector::Version);
    let Ok(handle) = engine.repository().resolve(&ModelSpec { name: &name, choice }) else {
        return Err(not_found(engine, &name).into());
    };
    let wanted = head.query_value("signature").filter(|text| !text.is_empty());
    let signature = shown(&handle, wanted.as_deref())?;
    let data = match replaces_original {
        true => sample::data_as_original(signature)?,
        false => sample::data(signature)?,
    };
    Ok(Reply::ok(JSON, format!("{{\"data\": {data}}}")))
}

/// The signature `wanted`, or by default `serving_default`, `predict`, or the last one.
///
/// # Errors
/// If the model has no signature of that name, or none at all.
pub(super) fn shown<'a>(handle: &'a ModelHandle, wanted: Option<&str>) -> Result<&'a Signature> {
    let all = handle.signatures();
    let named = |name: &str| all.iter().find(|signature| signature.name == name);
    if let Some(wanted) = wanted {
        return named(wanted).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|signature| signature.name.as_str()).collect();
            Error::not_found(format!("signature {wanted:?} not found; available: {names:?}"))
        });
    }
    let shown = named("serving_default").or_else(|| named("predict")).or(all.last());
    shown.ok_or_else(|| Error::not_found(format!("model {} has no signature", handle.model())))
}

fn latest(engine: &Engine, name: &str) -> Option<ModelHandle> {
    engine.repository().resolve(&ModelSpec { name, choice: VersionSelector::Latest }).ok()
}

/// The detail of a model, in the order of the original.
#[derive(Serialize)]
struct SimpleModelDetail<'a> {
    model_name: &'a str,
    model_base_path: String,
    model_version_list: Vec<String>,
    model_signature: SimpleSignature,
    platform: &'a str,
    /// Not in the original: all signatures.
    model_signatures: std::collections::BTreeMap<&'a str, SimpleSignature>,
}

#[derive(Default, Serialize)]
struct SimpleSignature {
    inputs: Vec<SimpleTensor>,
    outputs: Vec<SimpleTensor>,
}

/// An input or output, with TensorFlow's number for its type.
#[derive(Serialize)]
struct SimpleTensor {
    name: String,
    dtype: i32,
    shape: Vec<i64>,
}

impl<'a> SimpleModelDetail<'a> {
    fn new(engine: &Engine, handle: &'a ModelHandle) -> Self {
        let model = handle.model();
        let statuses = engine.repository().status(model);
        let ready = statuses.iter().filter(|status| matches!(status.state, VersionState::Ready));
        let mut versions: Vec<i64> = ready.map(|status| status.version).collect();
        versions.sort_unstable();
        let signatures = handle.signatures().iter();
        SimpleModelDetail {
            model_name: model,
            model_base_path: base_path(handle),
            model_version_list: versions.iter().map(i64::to_string).collect(),
            model_signature: shown(handle, None).map(SimpleSignature::new).unwrap_or_default(),
            platform: handle.platform().title,
            model_signatures: signatures
                .map(|s| (s.name.as_str(), SimpleSignature::new(s)))
                .collect(),
        }
    }
}

impl SimpleSignature {
    fn new(signature: &Signature) -> Self {
        let inputs = signature.inputs.iter().flat_map(declared).collect();
        let outputs = signature.outputs.iter().flat_map(declared).collect();
        SimpleSignature { inputs, outputs }
    }
}

/// A tensor as the original lists it: a sparse tensor as three.
fn declared(spec: &TensorSpec) -> Vec<SimpleTensor> {
    let TensorSpec { alias, dtype_number: dtype, .. } = spec;
    if spec.sparse.is_some() {
        let parts = ["values", "indices", "shape"].map(|part| format!("{alias}_{part}"));
        return parts
            .into_iter()
            .map(|name| SimpleTensor { name, dtype: 0, shape: vec![] })
            .collect();
    }
    let shape = spec.shape.sizes().unwrap_or_default();
    vec![SimpleTensor { name: alias.clone(), dtype: *dtype, shape }]
}

/// The directory of a model's versions, or that of its only version.
fn base_path(handle: &ModelHandle) -> String {
    let folder = handle.folder();
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_version = name.parse() == Ok(handle.version());
    let path = folder.parent().filter(|_| is_version).unwrap_or(folder);
    path.display().to_string()
}

/// JSON as Python prints it: a space after each comma and colon.
fn spaced(value: &impl Serialize) -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut text, SpacedFormatter));
    text
}

struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W>(&mut self, writer: &mut W) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        writer.write_all(b": ")
    }
}
