//! The protocol's part of `/openapi.json`: its requests and responses as JSON Schemas.
//!
//! The schemas say what the server accepts, no more and no less, as far as JSON Schema can say it: that the
//! product of a shape is the number of its elements, or that nested lists are not ragged, it cannot.

use serde_json::{Map, Value, json};

use super::request::signature_of;
use super::{BINARY, datatype};
use tensorserve_core::engine::ModelHandle;
use tensorserve_protocol::JSON;
use tensorserve_tensor::{DType, JsonKind, Signature, TensorSpec};

/// The statuses of a probe, which needs no credentials.
pub(super) const PROBE_ERRORS: &[u16] = &[408, 503];

/// The statuses of a request that reads the state of the server.
pub(super) const READ_ERRORS: &[u16] = &[401, 403, 408, 429, 503];

/// The statuses of a request that reads the state of something that it names.
pub(super) const NAMED_ERRORS: &[u16] = &[400, 401, 403, 404, 408, 429, 503];

/// The statuses of a request with a body that reads the state of the server.
pub(super) const QUERY_ERRORS: &[u16] = &[400, 401, 403, 408, 413, 415, 429, 503];

/// The statuses of a request that changes something.
pub(super) const CHANGE_ERRORS: &[u16] =
    &[400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 501, 503, 504];

/// The statuses of a request to run a model.
pub(super) const INFER_ERRORS: &[u16] =
    &[400, 401, 403, 404, 408, 413, 415, 429, 500, 501, 503, 504];

/// The statuses of a request for what the server does not have.
pub(super) const REFUSED: &[u16] = &[401, 403, 408, 429, 501, 503];

/// An object with these members, all of which it has.
pub(super) fn object(members: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    json!({ "type": "object", "properties": properties(members), "required": names })
}

fn properties(members: &[(&str, Value)]) -> Value {
    let members = members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone()));
    Value::Object(members.collect::<Map<_, _>>())
}

/// A list of such items.
pub(super) fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn boolean() -> Value {
    json!({ "type": "boolean" })
}

fn number_of(what: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX, "description": what })
}

/// `{"NAME": true}`.
pub(super) fn yes(name: &str) -> Value {
    object(&[(name, json!({ "const": true }))])
}

/// A model's name, and `{"NAME": true}`.
pub(super) fn model_and_yes(name: &str) -> Value {
    object(&[("name", text()), (name, json!({ "const": true }))])
}

/// The response with the name, the version and the extensions of the server.
pub(super) fn server() -> Value {
    object(&[("name", text()), ("version", text()), ("extensions", list(text()))])
}

/// The response with the names of the models.
pub(super) fn models() -> Value {
    object(&[("models", list(text()))])
}

/// The response with the inputs and outputs of a model.
pub(super) fn metadata() -> Value {
    let size = json!({ "type": "integer", "minimum": -1, "description": "-1 if it varies" });
    let tensor = object(&[("name", text()), ("datatype", text()), ("shape", list(size))]);
    object(&[
        ("name", text()),
        ("versions", list(text())),
        ("platform", text()),
        ("inputs", list(tensor.clone())),
        ("outputs", list(tensor)),
    ])
}

/// The response with the configuration of a model.
pub(super) fn config() -> Value {
    let size = json!({ "type": "integer", "minimum": -1 });
    let data_type = json!({ "type": "string", "pattern": "^TYPE_[A-Z0-9]+$" });
    let tensor = object(&[("name", text()), ("data_type", data_type), ("dims", list(size))]);
    object(&[
        ("name", text()),
        ("platform", text()),
        ("backend", text()),
        ("max_batch_size", number_of("The most rows of a batch; 0 if the model is not batched")),
        ("input", list(tensor.clone())),
        ("output", list(tensor)),
    ])
}

/// The response with the totals of models.
pub(super) fn statistics() -> Value {
    let total = || {
        object(&[("count", number_of("How many")), ("ns", number_of("Nanoseconds of all of them"))])
    };
    let inference_stats = object(&[
        ("success", total()),
        ("fail", total()),
        ("queue", total()),
        ("compute_input", total()),
        ("compute_infer", total()),
        ("compute_output", total()),
        ("cache_hit", total()),
        ("cache_miss", total()),
    ]);
    let model = object(&[
        ("name", text()),
        ("version", text()),
        ("last_inference", number_of("Milliseconds since 1970")),
        ("inference_count", number_of("Rows that were run")),
        ("execution_count", number_of("Runs")),
        ("inference_stats", inference_stats),
        ("batch_stats", list(json!({ "type": "object" }))),
        ("response_stats", json!({ "type": "object" })),
        ("memory_usage", list(json!({ "type": "object" }))),
    ]);
    object(&[("model_stats", list(model))])
}

/// The request for the index of the repository.
pub(super) fn index_request() -> Value {
    let ready = json!({ "type": ["boolean", "null"], "description": "Only those that are ready" });
    json!({ "type": "object", "properties": { "ready": ready } })
}

/// The index of the repository.
pub(super) fn index() -> Value {
    let states = json!({ "enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING"] });
    let entry =
        object(&[("name", text()), ("version", text()), ("state", states), ("reason", text())]);
    list(entry)
}

/// The request to load a model.
pub(super) fn load_request() -> Value {
    let parameters = json!({
        "type": ["object", "null"],
        "description": "No \"config\" and no \"file:…\": only what the server's sources have is loaded",
        "properties": { "config": false },
        "patternProperties": { "^file:": false },
    });
    json!({ "type": "object", "properties": { "parameters": parameters } })
}

/// The request to unload a model.
pub(super) fn unload_request() -> Value {
    json!({ "type": "object", "properties": { "parameters": { "type": ["object", "null"] } } })
}

/// The request to register a region of shared memory.
pub(super) fn region_request() -> Value {
    let mut schema = object(&[
        (
            "key",
            json!({ "type": "string", "description": "The name of the object, such as \"/x\"" }),
        ),
        ("byte_size", number_of("Bytes of the region")),
    ]);
    if let Some(Value::Object(members)) = schema.get_mut("properties") {
        members.insert("offset".to_owned(), number_of("Where the region begins in the object"));
    }
    schema
}

/// The registered regions of shared memory.
pub(super) fn regions() -> Value {
    list(object(&[
        ("name", text()),
        ("key", text()),
        ("offset", number_of("Where the region begins in the object")),
        ("byte_size", number_of("Its bytes")),
    ]))
}

/// The settings of traces.
pub(super) fn trace_settings() -> Value {
    object(&[
        ("trace_level", list(text())),
        ("trace_rate", text()),
        ("trace_count", text()),
        ("log_frequency", text()),
        ("trace_file", text()),
        ("trace_mode", text()),
    ])
}

/// The settings of logs.
pub(super) fn log_settings() -> Value {
    object(&[
        ("log_file", text()),
        ("log_info", boolean()),
        ("log_warning", boolean()),
        ("log_error", boolean()),
        ("log_verbose_level", number_of("0 to 2")),
        ("log_format", text()),
    ])
}

/// The parameters of a path whose version is that in `path`, if there is one.
pub(super) fn path_parameters(path: &str) -> Value {
    if path.is_empty() {
        return json!({});
    }
    json!({ "parameters": [{
        "name": "version",
        "in": "path",
        "required": true,
        "description": "The number or a label of a version",
        "schema": { "type": "string", "minLength": 1 },
    }] })
}

/// A request to run any model at a path with this version, and its response.
pub(super) fn infer(version: &str) -> Value {
    let inputs = list(json!({ "anyOf": [shared_input(), any_input()] }));
    let output = output_request(&text());
    let given = json!({ "anyOf": ELEMENTS.map(|dtype| output_response(text(), dtype)) });
    let mut members = infer_members(request(inputs, output, text()), &given, None);
    let path = path_parameters(version).get("parameters").and_then(Value::as_array).cloned();
    if let Some(Value::Array(parameters)) = members.get_mut("parameters") {
        parameters.extend(path.unwrap_or_default());
    }
    members
}

/// A request to run one model, and its response; `None` if it has no form in JSON.
pub(super) fn infer_model(handle: &ModelHandle) -> Option<Value> {
    let (_, signature) = signature_of(handle, None).ok()?;
    let all: Option<Vec<Value>> = signature.inputs.iter().map(input_of).collect();
    let mut inputs = list(json!({ "anyOf": all? }));
    if let Value::Object(inputs) = &mut inputs {
        let required = signature.inputs.iter().filter(|spec| !has_default(signature, spec));
        inputs.insert("minItems".to_owned(), required.clone().count().into());
        inputs.insert("maxItems".to_owned(), signature.inputs.len().into());
        let each = required.filter(|_| signature.inputs.len() > 1).map(|spec| {
            let named = json!({ "properties": { "name": { "const": spec.alias } } });
            json!({ "contains": named, "maxContains": 1 })
        });
        let each: Vec<Value> = each.collect();
        if !each.is_empty() {
            inputs.insert("allOf".to_owned(), each.into());
        }
    }
    let outputs: Vec<&str> = signature.outputs.iter().map(|spec| spec.alias.as_str()).collect();
    let output = output_request(&json!({ "enum": outputs }));
    let given = signature.outputs.iter().map(|spec| {
        let name = json!({ "const": spec.alias });
        spec.dtype().map_or(json!({}), |dtype| output_response(name, dtype))
    });
    let given = json!({ "anyOf": given.collect::<Vec<_>>() });
    let named = json!({ "const": signature.name });
    Some(infer_members(request(inputs, output, named), &given, example(signature)))
}

fn has_default(signature: &Signature, spec: &TensorSpec) -> bool {
    signature.defaults.iter().any(|(alias, _)| *alias == spec.alias)
}

/// The members of the operation that differ between models.
fn infer_members(request: Value, output: &Value, example: Option<Value>) -> Value {
    let mut given = json!({ "schema": request });
    if let (Value::Object(given), Some(example)) = (&mut given, example) {
        given.insert("example".to_owned(), example);
    }
    let response = object(&[
        ("model_name", text()),
        ("model_version", text()),
        ("id", text()),
        ("outputs", list(output.clone())),
    ]);
    let raw = json!({
        "type": "string",
        "format": "binary",
        "description": "The JSON document, and behind it the raw bytes of the tensors that have \
                        \"binary_data_size\" in place of \"data\"",
    });
    let header = |what: &str, schema: &Value| json!({ "description": what, "schema": schema });
    json!({
        "parameters": [
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "description": "The bytes of the JSON document, if raw bytes follow it; 0 if the body is \
                                the raw bytes of the one input of the model",
                "schema": { "type": "integer", "minimum": 0 },
            },
            {
                "name": "endpoint-load-metrics-format",
                "in": "header",
                "description": "json or text: report the load of the server in the response (ORCA)",
                "schema": text(),
            },
        ],
        "requestBody": {
            "required": true,
            "content": { JSON: given, BINARY: { "schema": raw } },
        },
        "responses": {
            "200": {
                "description": "The outputs",
                "headers": {
                    "Inference-Header-Content-Length": header(
                        "The bytes of the JSON document, if raw bytes follow it",
                        &json!({ "type": "integer", "minimum": 1 }),
                    ),
                    "endpoint-load-metrics": header("The load of the server", &text()),
                },
                "content": { JSON: { "schema": response }, BINARY: { "schema": raw } },
            },
        },
    })
}

fn request(inputs: Value, output: Value, mut signature: Value) -> Value {
    if let Value::Object(signature) = &mut signature {
        signature.insert("description".to_owned(), "The signature to run".into());
    }
    let mut outputs = list(output);
    if let Value::Object(outputs) = &mut outputs {
        outputs.insert("type".to_owned(), json!(["array", "null"]));
        outputs.insert("description".to_owned(), "All outputs by default".into());
    }
    json!({
        "type": "object",
        "properties": {
            "id": { "type": ["string", "null"], "description": "Repeated in the response" },
            "parameters": parameters(&[
                ("binary_data_output", boolean()),
                ("timeout", number_of("Microseconds after which the response is of no use; 0 for no limit")),
                ("signature_name", signature),
                ("headers", true.into()),
            ]),
            "inputs": inputs,
            "outputs": outputs,
        },
        "required": ["inputs"],
    })
}

/// An object of parameters: those with these schemas, and any others.
fn parameters(known: &[(&str, Value)]) -> Value {
    json!({
        "type": ["object", "null"],
        "properties": properties(known),
        "additionalProperties": { "type": ["string", "number", "boolean"] },
    })
}

fn shared_parameters() -> [(&'static str, Value); 3] {
    [
        ("shared_memory_region", text()),
        ("shared_memory_offset", number_of("From the start of the region")),
        ("shared_memory_byte_size", number_of("Bytes in the region")),
    ]
}

fn sizes() -> Value {
    list(json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }))
}

/// The types of elements that have a form in JSON, in the order of the document.
const ELEMENTS: [DType; 12] = [
    DType::Bool,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::Float,
    DType::Double,
    DType::String,
];

/// The schema of an element; `None` for types without a form in JSON.
fn element(dtype: DType) -> Option<Value> {
    let integer = |least: i64, most: u64| {
        Some(json!({ "type": "integer", "minimum": least, "maximum": most }))
    };
    match dtype {
        DType::Bool => Some(boolean()),
        DType::UInt8 => integer(0, 0xff),
        DType::UInt16 => integer(0, 0xffff),
        DType::UInt32 => integer(0, 0xffff_ffff),
        DType::UInt64 => integer(0, 0xffff_ffff_ffff_ffff),
        DType::Int8 => integer(-0x80, 0x7f),
        DType::Int16 => integer(-0x8000, 0x7fff),
        DType::Int32 => integer(-0x8000_0000, 0x7fff_ffff),
        DType::Int64 => integer(-0x8000_0000_0000_0000, 0x7fff_ffff_ffff_ffff),
        DType::Float | DType::Double => Some(json!({ "type": "number" })),
        DType::String => {
            let b64 = json!({ "type": "string", "contentEncoding": "base64" });
            let object = json!({
                "type": "object",
                "properties": { "b64": b64 },
                "required": ["b64"],
                "additionalProperties": false,
            });
            Some(json!({ "anyOf": [text(), object] }))
        }
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => None,
    }
}

/// An input with its data, of one type.
fn typed_input(name: Value, dtype: DType) -> Option<Value> {
    let element = element(dtype)?;
    let mut data = list(json!({ "anyOf": [element, { "type": "array" }] }));
    if let Value::Object(data) = &mut data {
        let what = "The elements, flat or nested: as many as the product of the shape";
        data.insert("description".to_owned(), what.into());
    }
    let [_, offset, byte_size] = shared_parameters();
    let elsewhere = [("shared_memory_region", false.into()), ("binary_data_size", false.into())];
    let mut input = object(&[
        ("name", name),
        ("datatype", json!({ "const": datatype::name_of(dtype) })),
        ("shape", sizes()),
        ("data", data),
    ]);
    if let Some(Value::Object(members)) = input.get_mut("properties") {
        let known = [&elsewhere[..], &[offset, byte_size]].concat();
        members.insert("parameters".to_owned(), parameters(&known));
    }
    Some(input)
}

/// An input of any model, with its data.
fn any_input() -> Value {
    let typed: Vec<Value> =
        ELEMENTS.iter().filter_map(|dtype| typed_input(text(), *dtype)).collect();
    json!({ "anyOf": typed })
}

/// An input whose data is in shared memory.
fn shared_input() -> Value {
    let mut place = parameters(&shared_parameters());
    if let Value::Object(place) = &mut place {
        place.insert("type".to_owned(), "object".into());
        let required = json!(["shared_memory_region", "shared_memory_byte_size"]);
        place.insert("required".to_owned(), required);
    }
    let names: Vec<&str> = DType::ALL.into_iter().map(datatype::name_of).collect();
    let names: Vec<&str> =
        names.into_iter().filter(|name| datatype::of_name(name).is_some()).collect();
    object(&[
        ("name", text()),
        ("datatype", json!({ "enum": names })),
        ("shape", sizes()),
        ("parameters", place),
    ])
}

/// An input of one model; `None` for types without a form in JSON.
fn input_of(spec: &TensorSpec) -> Option<Value> {
    let dtype = spec.dtype()?;
    let mut input = typed_input(json!({ "const": spec.alias }), dtype)?;
    if let Some(shape) = input.pointer_mut("/properties/shape").and_then(Value::as_object_mut) {
        let declared = spec.shape.sizes();
        let what = format!("Declared: {} {}", datatype::name_of(dtype), spec.shape);
        shape.insert("description".to_owned(), what.into());
        shape.insert("x-shape".to_owned(), json!(declared));
    }
    Some(input)
}

fn output_request(name: &Value) -> Value {
    let [region, offset, byte_size] = shared_parameters();
    let known = [
        ("binary_data", boolean()),
        // It is not supported.
        ("classification", false.into()),
        region,
        offset,
        byte_size,
    ];
    let mut parameters = parameters(&known);
    if let Value::Object(parameters) = &mut parameters {
        let needs = json!({ "shared_memory_region": ["shared_memory_byte_size"] });
        parameters.insert("dependentRequired".to_owned(), needs);
    }
    json!({
        "type": "object",
        "properties": { "name": name, "parameters": parameters },
        "required": ["name"],
    })
}

/// An output in a response: with its data, or with the place of its data.
fn output_response(name: Value, dtype: DType) -> Value {
    let element = if dtype == DType::String { Some(text()) } else { element(dtype) };
    let element = element.unwrap_or(true.into());
    let members = [
        ("name", name),
        ("datatype", json!({ "const": datatype::name_of(dtype) })),
        ("shape", sizes()),
    ];
    let parameters = json!({ "type": "object" });
    let mut output = object(&members);
    if let Value::Object(schema) = &mut output {
        let properties = [&members[..], &[("data", list(element)), ("parameters", parameters)]];
        schema.insert("properties".to_owned(), self::properties(&properties.concat()));
        let either = json!([{ "required": ["data"] }, { "required": ["parameters"] }]);
        schema.insert("oneOf".to_owned(), either);
    }
    output
}

/// A request with the same value everywhere, of one row.
fn example(signature: &Signature) -> Option<Value> {
    /// The most elements of an example.
    const MOST: u64 = 64;
    if signature.takes_images {
        return None;
    }
    let mut inputs = Vec::new();
    for spec in &signature.inputs {
        let shape: Vec<u64> =
            spec.shape.sizes()?.iter().map(|size| u64::try_from(*size).unwrap_or(1)).collect();
        let count = shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size))?;
        let dtype = spec.dtype()?;
        let value = match dtype.json_kind() {
            JsonKind::Bool => json!(true),
            JsonKind::String => json!("text"),
            JsonKind::Number => json!(1),
        };
        let data = vec![value; usize::try_from(count).ok().filter(|_| count <= MOST)?];
        let dtype = datatype::name_of(dtype);
        inputs.push(json!({ "name": spec.alias, "shape": shape, "datatype": dtype, "data": data }));
    }
    Some(json!({ "inputs": inputs }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_with_a_form_in_json_is_listed_once() {
        for dtype in DType::ALL {
            let listed = ELEMENTS.iter().filter(|listed| **listed == dtype).count();
            assert_eq!(listed, usize::from(element(dtype).is_some()), "{dtype}");
            assert_eq!(element(dtype).is_none(), datatype::is_raw_only(dtype), "{dtype}");
        }
    }
}
