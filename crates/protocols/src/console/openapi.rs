//! A description of every route, as OpenAPI 3.1: those that are the same for all models, and
//! inference of each model that is ready, with what its signatures take and give.

use serde_json::{Map, Value, json};

use super::{Shared, status, text};
use tensorserve_core::engine::{Choice, ModelHandle, ModelSpec};
use tensorserve_protocol::percent_encoded;
use tensorserve_tensor::{DType, Signature, TensorSpec};

/// Models that are described one by one; of more, the first in the order of their names.
const MOST_MODELS: usize = 200;

/// A method, a path with its parameters in braces, what it is for, and the role it takes.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The method, in capitals; `*` for all.
    pub method: &'static str,
    /// The path.
    pub path: &'static str,
    /// What whoever asks must be: `open`, `look`, `infer`, `metrics` or `admin`.
    pub access: &'static str,
}

impl Shared {
    /// The description.
    pub(super) fn describe(&self) -> String {
        let mut paths = Map::new();
        for way in &self.options.ways {
            add_way(&mut paths, *way);
        }
        for name in self.engine.ready_models().iter().take(MOST_MODELS) {
            let spec = ModelSpec { name, choice: Choice::Latest };
            if let Ok(handle) = self.engine.resolve(&spec) {
                add_model(&mut paths, &handle);
            }
        }
        let mut whole = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "tensorserve",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Inference, the state of models, and the console of this server.",
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "servers": [{ "url": "/" }],
            "paths": paths,
            "components": {
                "schemas": { "Error": {
                    "type": "object",
                    "properties": { "error": { "type": "string" } },
                    "required": ["error"],
                }},
            },
        });
        if self.options.auth
            && let Value::Object(whole) = &mut whole
        {
            whole.insert("security".to_owned(), json!([{ "basic": [] }, { "bearer": [] }]));
            let schemes = json!({
                "basic": { "type": "http", "scheme": "basic" },
                "bearer": { "type": "http", "scheme": "bearer" },
            });
            if let Some(Value::Object(components)) = whole.get_mut("components") {
                components.insert("securitySchemes".to_owned(), schemes);
            }
        }
        text(&whole)
    }
}

/// The operations of a path; it is added if it is not there.
fn operations<'p>(paths: &'p mut Map<String, Value>, path: &str) -> &'p mut Value {
    paths.entry(path.to_owned()).or_insert_with(|| {
        let parameters: Vec<Value> = parameters(path).map(parameter).collect();
        match parameters.is_empty() {
            true => json!({}),
            false => json!({ "parameters": parameters }),
        }
    })
}

/// The names in braces.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

fn parameter(name: &str) -> Value {
    let schema = match name {
        "version" => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
        _ => json!({ "type": "string" }),
    };
    json!({ "name": name, "in": "path", "required": true, "schema": schema })
}

fn add_way(paths: &mut Map<String, Value>, way: Way) {
    let Way { method, path, access } = way;
    // One that takes every method is shown by those that make sense.
    let methods = match method {
        "*" => &["get", "post"][..],
        "GET" => &["get"],
        "HEAD" => &["head"],
        "POST" => &["post"],
        "PUT" => &["put"],
        "DELETE" => &["delete"],
        "OPTIONS" => &["options"],
        _ => &[],
    };
    let all = operations(paths, path);
    for method in methods {
        let mut operation = json!({
            "summary": summary(path),
            "tags": [tag(path)],
            "x-role": access,
            "responses": responses(json!({ "description": "The answer." })),
        });
        if *method == "post"
            && let Value::Object(operation) = &mut operation
        {
            let content = json!({ "application/json": { "schema": true } });
            operation.insert("requestBody".to_owned(), json!({ "content": content }));
        }
        if let Value::Object(all) = all {
            all.insert((*method).to_owned(), operation);
        }
    }
}

fn responses(well: Value) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    let content = json!({ "application/json": { "schema": schema } });
    json!({ "200": well, "default": { "description": "What is wrong.", "content": content } })
}

fn tag(path: &str) -> &'static str {
    if path.starts_with("/api/") || path.starts_with("/console") || path == "/openapi.json" {
        "console"
    } else if path.starts_with("/v1/") {
        "TensorFlow Serving"
    } else if path == "/" {
        "Simple TensorFlow Serving"
    } else if ["/invocations", "/models", "/endpoints", "/tfs", "/ping"]
        .iter()
        .any(|start| path.starts_with(start))
    {
        "SageMaker"
    } else {
        "server"
    }
}

fn summary(path: &str) -> &'static str {
    const SUMMARIES: &[(&str, &str)] = &[
        ("/", "Inference as Simple TensorFlow Serving has it"),
        ("/healthz", "Whether the process lives"),
        ("/readyz", "Whether every model can be used"),
        ("/metrics", "Metrics for Prometheus"),
        ("/openapi.json", "This description"),
        ("/v1/models", "All models"),
        ("/v1/models/{model}", "The versions of a model"),
        ("/api/v1/status", "The server and all models"),
        ("/api/v1/history", "The last fifteen minutes"),
        ("/api/v1/stream", "Status and history once a second, as events"),
        ("/api/v1/audit", "Who changed what"),
        ("/api/v1/drain", "Say that the server is not ready, or no longer do"),
        ("/api/v1/models/{model}", "One model in detail"),
        ("/api/v1/models/{model}/load", "Load a model, or put one back into service"),
        ("/api/v1/models/{model}/unload", "Take a model out of service"),
        ("/api/v1/models/{model}/batching", "Change how requests are joined"),
        ("/api/v1/models/{model}/versions/{version}/labels", "Give a label to a version"),
        ("/api/v1/models/{model}/versions/{version}/labels/{label}", "Take a label away"),
    ];
    const ENDS: &[(&str, &str)] = &[
        (":predict", "Inference"),
        (":classify", "Classification of examples"),
        (":regress", "Regression of examples"),
        ("/metadata", "The signatures of a model"),
        ("invocations", "Inference as SageMaker has it"),
    ];
    let known = SUMMARIES.iter().find(|(known, _)| *known == path);
    let known = known.or_else(|| ENDS.iter().find(|(end, _)| path.ends_with(end)));
    known.map_or("See docs/http.md", |(_, summary)| summary)
}

/// Describes how one model is asked.
fn add_model(paths: &mut Map<String, Value>, handle: &ModelHandle) {
    // Braces would be parameters.
    let name = percent_encoded(handle.model());
    let verbs = handle.signatures().iter().filter_map(verb);
    let mut verbs: Vec<&str> = verbs.collect();
    verbs.sort_unstable();
    verbs.dedup();
    for verb in verbs {
        let own: Vec<&Signature> =
            handle.signatures().iter().filter(|s| self::verb(s) == Some(verb)).collect();
        let requests: Vec<Value> = own.iter().map(|signature| request(signature, verb)).collect();
        let answers: Vec<Value> = own.iter().map(|signature| response(signature, verb)).collect();
        let mut content = json!({ "schema": { "anyOf": requests } });
        let example = own.iter().find_map(|signature| example(signature, verb));
        if let (Some(example), Value::Object(content)) = (example, &mut content) {
            content.insert("example".to_owned(), example);
        }
        let well = json!({
            "description": "Outputs, in the form of the inputs.",
            "content": { "application/json": { "schema": { "anyOf": answers } } },
        });
        let operation = json!({
            "summary": format!("{} version {}", handle.model(), handle.version()),
            "tags": ["models"],
            "x-role": "infer",
            "requestBody": { "required": true, "content": { "application/json": content } },
            "responses": responses(well),
        });
        paths.insert(format!("/v1/models/{name}:{verb}"), json!({ "post": operation }));
    }
}

/// What a signature is called with.
fn verb(signature: &Signature) -> Option<&'static str> {
    match signature.method_name.as_str() {
        "tensorflow/serving/classify" => Some("classify"),
        "tensorflow/serving/regress" => Some("regress"),
        _ if signature.inputs.is_empty() => None,
        _ => Some("predict"),
    }
}

fn object(members: &[(&str, Value)], required: &[&str]) -> Value {
    let members: Map<String, Value> =
        members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": members, "required": required })
}

fn request(signature: &Signature, verb: &str) -> Value {
    let name = json!({ "const": signature.name });
    let is_default = signature.name == "serving_default";
    let named: &[&str] = if is_default { &[] } else { &["signature_name"] };
    if verb != "predict" {
        let examples = json!({ "type": "array", "items": { "type": "object" } });
        let members = [("signature_name", name), ("examples", examples)];
        return object(&members, &[named, &["examples"]].concat());
    }
    let column = tensors(&signature.inputs, 0);
    let row = json!({ "type": "array", "items": tensors(&signature.inputs, 1) });
    let by_column = [("signature_name", name.clone()), ("inputs", column)];
    let by_row = [("signature_name", name), ("instances", row)];
    json!({
        "title": signature.name,
        "anyOf": [
            object(&by_row, &[named, &["instances"]].concat()),
            object(&by_column, &[named, &["inputs"]].concat()),
        ],
    })
}

fn response(signature: &Signature, verb: &str) -> Value {
    if verb != "predict" {
        return object(&[("results", json!({ "type": "array" }))], &["results"]);
    }
    let row = json!({ "type": "array", "items": tensors(&signature.outputs, 1) });
    let column = tensors(&signature.outputs, 0);
    json!({
        "title": signature.name,
        "anyOf": [
            object(&[("predictions", row)], &["predictions"]),
            object(&[("outputs", column)], &["outputs"]),
        ],
    })
}

/// All tensors of one side, without their first `rows` dimensions: one may stand alone.
fn tensors(specs: &[TensorSpec], rows: usize) -> Value {
    let members: Vec<(&str, Value)> =
        specs.iter().map(|spec| (spec.alias.as_str(), tensor(spec, rows))).collect();
    match members.as_slice() {
        [(_, only)] => json!({ "anyOf": [only, object(&members, &[])] }),
        _ => object(&members, &[]),
    }
}

fn tensor(spec: &TensorSpec, rows: usize) -> Value {
    let text = json!({
        "anyOf": [
            { "type": "string" },
            { "type": "object", "properties": { "b64": { "type": "string" } }, "required": ["b64"] },
        ],
    });
    let value = match spec.dtype() {
        Some(DType::String) => text,
        Some(DType::Bool) => json!({ "type": "boolean" }),
        Some(DType::Float | DType::Double | DType::Half | DType::BFloat16) => {
            // NaN and infinities are words there, or strings here.
            json!({ "type": ["number", "string"] })
        }
        Some(
            DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64,
        ) => json!({ "type": "integer" }),
        Some(DType::Complex64 | DType::Complex128) | None => json!({}),
    };
    let Some(sizes) = spec.shape.sizes() else {
        return json!({ "description": format!("{}, of any shape", status::dtype(spec)) });
    };
    let nest = |inner: Value, size: &i64| match u64::try_from(*size) {
        Ok(size) => json!({ "type": "array", "items": inner, "minItems": size, "maxItems": size }),
        Err(_) => json!({ "type": "array", "items": inner }),
    };
    let mut schema = sizes.iter().skip(rows).rev().fold(value, nest);
    if let Value::Object(schema) = &mut schema {
        let description = format!("{} {}", status::dtype(spec), spec.shape);
        schema.insert("description".to_owned(), description.into());
        schema.insert("x-dtype".to_owned(), status::dtype(spec).into());
        schema.insert("x-shape".to_owned(), json!(sizes));
    }
    schema
}

fn example(signature: &Signature, verb: &str) -> Option<Value> {
    // An image can not be made up of words.
    if verb != "predict" || signature.takes_images {
        return None;
    }
    let inputs = status::example(signature)?;
    Some(match signature.name.as_str() {
        "serving_default" => json!({ "inputs": inputs }),
        name => json!({ "signature_name": name, "inputs": inputs }),
    })
}
