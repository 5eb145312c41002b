//! The OpenAPI 3.1 description: every operation in the table of routes, and the inference of each ready
//! model with the schemas of its signatures.

use serde_json::{Map, Value, json};

use super::{ConsoleState, model, reply, text};
use tensorserve_auth::{Permission, Role, Roles};
use tensorserve_core::engine::{ModelHandle, ModelSpec, VersionSelector};
use tensorserve_protocol::url::percent_encoded;
use tensorserve_protocol::{JSON, Methods, Operation, QueryParameter, RouteGroup};
use tensorserve_tensor::{DType, Signature, TensorSpec};

/// The most models that are described, in the order of their names.
const MOST_MODELS: usize = 200;

/// The tag of operations of one model.
const MODELS: &str = "models";

/// Adds the route.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    group
        .immediate(Methods::Get, "/openapi.json", Permission::Read, |state, _| {
            reply(Ok(state.describe()))
        })
        .summary("Return this API description")
        .response(JSON, json!({ "type": "object", "description": "OpenAPI 3.1" }));
}

impl ConsoleState {
    /// The description.
    fn describe(&self) -> String {
        let mut paths = Map::new();
        let operations = self.host.operations.get().map_or(&[][..], Vec::as_slice);
        for operation in operations.iter().filter(|operation| !operation.hidden) {
            add_operation(&mut paths, operation);
        }
        for name in self.engine().repository().ready_models().iter().take(MOST_MODELS) {
            let spec = ModelSpec { name, choice: VersionSelector::Latest };
            if let Ok(handle) = self.engine().repository().resolve(&spec) {
                add_model(&mut paths, &handle);
                operations.iter().for_each(|own| add_for_model(&mut paths, own, &handle));
            }
        }
        let mut whole = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "tensorserve",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Inference, the state of models, and the console.",
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
        if self.host.listeners.auth
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

/// The path item of `path`, which is added if it is missing.
fn operations<'p>(paths: &'p mut Map<String, Value>, path: &str) -> &'p mut Value {
    paths.entry(path.to_owned()).or_insert_with(|| {
        let parameters: Vec<Value> = parameters(path).map(path_parameter).collect();
        match parameters.is_empty() {
            true => json!({}),
            false => json!({ "parameters": parameters }),
        }
    })
}

/// The names of the parameters in braces.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

fn query_parameter(parameter: &QueryParameter) -> Value {
    let QueryParameter { name, description, schema } = parameter;
    json!({ "name": name, "in": "query", "description": description, "schema": schema })
}

fn path_parameter(name: &str) -> Value {
    let schema = match name {
        "version" => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
        _ => json!({ "type": "string", "minLength": 1 }),
    };
    let description = match name {
        "model" => "The name of a model",
        "version" => "The number of a version",
        "label" => "A label of a version",
        "endpoint" => "The name of an endpoint",
        "file" => "The name of a file",
        "region" => "The name of a region of shared memory",
        other => other,
    };
    json!({
        "name": name,
        "in": "path",
        "required": true,
        "description": description,
        "schema": schema,
    })
}

/// Adds an operation. Of several with the same path and method, the first handles requests.
fn add_operation(paths: &mut Map<String, Value>, operation: &Operation) {
    let described = describe(operation);
    let Value::Object(all) = operations(paths, &operation.path) else {
        return;
    };
    // HEAD is implied by GET.
    let methods = operation.methods.iter().filter(|method| **method != "HEAD");
    for method in methods.map(|method| method.to_ascii_lowercase()) {
        let mut described = described.clone();
        if method == "post" {
            described.insert("requestBody".to_owned(), request_of(operation));
        }
        if let Some(own) = &operation.members {
            add_members(&mut described, own);
        }
        all.entry(method).or_insert(described.into());
    }
}

/// Adds an operation for one model, if its protocol describes it.
fn add_for_model(paths: &mut Map<String, Value>, operation: &Operation, handle: &ModelHandle) {
    let Some(own) = operation.of_model.and_then(|describe| describe(handle)) else {
        return;
    };
    let mut described = describe(operation);
    let summary = format!("Run model {} version {}", handle.model(), handle.version());
    described.insert("summary".to_owned(), summary.into());
    described.insert("tags".to_owned(), json!([MODELS]));
    add_members(&mut described, &own);
    // Encoded, because braces would be parameters.
    let path = operation.path.replace("{model}", &percent_encoded(handle.model()));
    paths.insert(path, json!({ "post": described }));
}

/// Adds members to an operation; responses to its responses.
fn add_members(described: &mut Map<String, Value>, own: &Value) {
    for (name, member) in own.as_object().into_iter().flatten() {
        match (described.get_mut(name), member) {
            (Some(Value::Object(responses)), Value::Object(more)) if name == "responses" => {
                responses.extend(more.clone());
                responses.retain(|_, response| !response.is_null());
            }
            (_, Value::Null) => drop(described.remove(name)),
            _ => drop(described.insert(name.clone(), member.clone())),
        }
    }
}

/// An operation without its request.
fn describe(operation: &Operation) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert("summary".to_owned(), operation.summary.into());
    members.insert("tags".to_owned(), json!([operation.tag]));
    let success = response_of(operation);
    let responses = match operation.errors {
        [] => responses(success),
        listed => listed_responses(success, listed),
    };
    members.insert("responses".to_owned(), responses);
    match operation.permission {
        Some(Permission::Public) | None => members.insert("security".to_owned(), json!([])),
        Some(permission) => members.insert("x-roles".to_owned(), json!(roles(permission))),
    };
    if !operation.query.is_empty() {
        let parameters: Vec<Value> = operation.query.iter().map(query_parameter).collect();
        members.insert("parameters".to_owned(), parameters.into());
    }
    members
}

/// The names of the roles that have a permission.
fn roles(permission: Permission) -> Vec<&'static str> {
    let allowed = Role::ALL.into_iter().filter(|role| permission.allows(Roles::of(&[*role])));
    allowed.map(Role::name).collect()
}

fn request_of(operation: &Operation) -> Value {
    let (media_type, schema) = match &operation.request {
        Some((media_type, schema)) => (*media_type, schema.clone()),
        None => (JSON, true.into()),
    };
    json!({ "content": { media_type: { "schema": schema } } })
}

fn response_of(operation: &Operation) -> Value {
    match &operation.response {
        Some((media_type, schema)) => {
            json!({ "description": "Success", "content": { *media_type: { "schema": schema } } })
        }
        None => json!({ "description": "Success" }),
    }
}

fn responses(success: Value) -> Value {
    json!({ "200": success, "default": error("Error") })
}

fn error(description: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": description, "content": { JSON: { "schema": schema } } })
}

/// The responses of an operation that lists the statuses of its errors.
fn listed_responses(success: Value, errors: &[u16]) -> Value {
    let mut all = Map::new();
    all.insert("200".to_owned(), success);
    for status in errors {
        let mut response = error(meaning_of(*status));
        if let (429 | 503, Value::Object(response)) = (status, &mut response) {
            let seconds = json!({ "type": "integer", "minimum": 0 });
            let retry = json!({ "description": "Seconds to wait", "schema": seconds });
            response.insert("headers".to_owned(), json!({ "Retry-After": retry }));
        }
        all.insert(status.to_string(), response);
    }
    Value::Object(all)
}

/// What a status says of a request.
fn meaning_of(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong",
        401 => "Credentials are missing or wrong",
        403 => "The client does not have the role that this request requires",
        404 => "There is nothing of that name",
        408 => "The body did not arrive in time",
        409 => "It exists already, or was changed at the same time",
        413 => "The request is too large",
        415 => "The encoding of the body is not supported",
        429 => "There are too many requests",
        500 => "The server or the model failed",
        501 => "This server does not have what the request asks for",
        503 => "The server or the model is not ready, or has no memory for the request now",
        504 => "The deadline of the request passed",
        _ => "Error",
    }
}

/// Describes the inference of one model.
fn add_model(paths: &mut Map<String, Value>, handle: &ModelHandle) {
    // Encoded, because braces would be parameters.
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
        let success = json!({
            "description": "Outputs, in the form of the inputs",
            "content": { "application/json": { "schema": { "anyOf": answers } } },
        });
        let operation = json!({
            "summary": format!("Run model {} version {}", handle.model(), handle.version()),
            "tags": [MODELS],
            "x-roles": roles(Permission::Infer),
            "requestBody": { "required": true, "content": { "application/json": content } },
            "responses": responses(success),
        });
        paths.insert(format!("/v1/models/{name}:{verb}"), json!({ "post": operation }));
    }
}

/// The verb in the path that calls a signature.
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

/// All inputs or all outputs, without their first `rows` dimensions. A single one needs no name.
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
            // NaN and infinities are not JSON numbers, so they are strings here.
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
        return json!({ "description": format!("{}, of any shape", model::dtype(spec)) });
    };
    let mut schema = sizes.iter().skip(rows).rev().fold(value, array);
    if let Value::Object(schema) = &mut schema {
        let description = format!("{} {}", model::dtype(spec), spec.shape);
        schema.insert("description".to_owned(), description.into());
        schema.insert("x-dtype".to_owned(), model::dtype(spec).into());
        schema.insert("x-shape".to_owned(), json!(sizes));
    }
    schema
}

/// The schema of an array with `size` items, or with any number if `size` is negative.
fn array(items: Value, size: &i64) -> Value {
    match u64::try_from(*size) {
        Ok(size) => json!({ "type": "array", "items": items, "minItems": size, "maxItems": size }),
        Err(_) => json!({ "type": "array", "items": items }),
    }
}

fn example(signature: &Signature, verb: &str) -> Option<Value> {
    // A sample string is not an image.
    if verb != "predict" || signature.takes_images {
        return None;
    }
    let inputs = model::sample(signature)?;
    Some(match signature.name.as_str() {
        "serving_default" => json!({ "inputs": inputs }),
        name => json!({ "signature_name": name, "inputs": inputs }),
    })
}
