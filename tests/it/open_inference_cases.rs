//! The REST cases of the Open Inference Protocol (`tests/cases/open-inference.json`): health,
//! metadata, inference in JSON and in binary, errors, and Triton's and KServe's additions.
//!
//! A case is sent as `request_body` (text), `request_json`, or `request_body_parts`. A part is an
//! object with one member: `text`, `json`, `hex`, `repeat` (a text and how often), `bytes` (texts, each
//! after its length), or a datatype in lower case with its values. In a value of `headers`, `{json}` is
//! the length of the first part, and `{body}` the one of all parts, before compression.
//!
//! Some strings of `expect_json` stand for values: `<string>` for any text that is not empty,
//! `<text>`, `<number>` and `<list>` for any such value. An object with a member `<more>` may have
//! other members; a list that starts with `<contains>` has all its other values in any order. An
//! integer must be an integer; other numbers may differ in the seventh digit. The first of
//! `expect_body_parts` is such JSON, too; those after it are compared to the byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use serde::Deserialize;
use serde_json::Value;
use tensorserve::config::ModelSettings;
use tensorserve_proto::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use tensorserve_proto::inference::{ModelInferRequest, ModelInferResponse};

use crate::support::client::{Answer, request};
use crate::support::grpc::Caller;
use crate::support::server::{TestServer, settings};
use crate::support::{data, project};

const MODELS: &str = "open_inference/models";
const LENGTH: &str = "inference-header-content-length";
const BINARY: &str = "application/octet-stream";
const JSON: &str = "application/json";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    /// Where the expectation comes from.
    source: String,
    #[serde(rename = "model")]
    _model: String,
    #[serde(default, rename = "note")]
    _note: String,
    /// `unready` is a server with a model that does not load.
    #[serde(default)]
    server: String,
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    request_body: Option<String>,
    request_json: Option<Value>,
    request_body_parts: Option<Vec<Part>>,
    #[serde(default)]
    gzip: bool,
    expect_status: u16,
    /// Each of the values, separated by commas, must be there.
    #[serde(default)]
    expect_headers: BTreeMap<String, String>,
    expect_json: Option<Value>,
    expect_error_contains: Option<String>,
    expect_text_contains: Option<String>,
    expect_body_parts: Option<Vec<Part>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    Text(String),
    Json(Value),
    Hex(String),
    Repeat(String, usize),
    Bytes(Vec<String>),
    Bool(Vec<bool>),
    Uint8(Vec<u8>),
    Uint16(Vec<u16>),
    Uint32(Vec<u32>),
    Uint64(Vec<u64>),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Fp32(Vec<f32>),
    Fp64(Vec<f64>),
}

impl Part {
    fn encode(&self) -> Vec<u8> {
        macro_rules! little_endian {
            ($values:expr) => {
                $values.iter().flat_map(|value| value.to_le_bytes()).collect()
            };
        }
        match self {
            Part::Text(text) => text.clone().into_bytes(),
            Part::Json(value) => value.to_string().into_bytes(),
            Part::Hex(digits) => {
                let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
                (0..digits.len()).step_by(2).map(byte).collect()
            }
            Part::Repeat(text, times) => text.repeat(*times).into_bytes(),
            Part::Bytes(texts) => {
                let length = |text: &str| u32::try_from(text.len()).expect("short").to_le_bytes();
                texts
                    .iter()
                    .flat_map(|text| [&length(text)[..], text.as_bytes()].concat())
                    .collect()
            }
            Part::Bool(values) => values.iter().map(|value| u8::from(*value)).collect(),
            Part::Uint8(values) => values.clone(),
            Part::Uint16(values) => little_endian!(values),
            Part::Uint32(values) => little_endian!(values),
            Part::Uint64(values) => little_endian!(values),
            Part::Int8(values) => little_endian!(values),
            Part::Int16(values) => little_endian!(values),
            Part::Int32(values) => little_endian!(values),
            Part::Int64(values) => little_endian!(values),
            Part::Fp32(values) => little_endian!(values),
            Part::Fp64(values) => little_endian!(values),
        }
    }
}

/// A server of models at paths in the test data, all of their versions.
fn serve(models: Vec<(String, String)>) -> TestServer {
    let mut settings = settings();
    for (name, path) in models {
        let mut model =
            ModelSettings { path: Some(data(&path)), name: Some(name), ..ModelSettings::default() };
        model.each.version_policy = Some("all".to_owned());
        settings.models.push(model);
    }
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

/// The models of the cases: those by their own names, one for each datatype, and one whose name
/// needs escapes in a path.
fn ready_models() -> Vec<(String, String)> {
    let names = |folder: &str| {
        let entries = fs::read_dir(data(folder)).expect("models");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
    };
    let own = names(MODELS).filter(|name| name != "types");
    let mut models: Vec<_> = own.map(|name| (name.clone(), format!("{MODELS}/{name}"))).collect();
    let types = names(&format!("{MODELS}/types"));
    models.extend(types.map(|name| (format!("echo_{name}"), format!("{MODELS}/types/{name}"))));
    models.push(("two wörds".to_owned(), format!("{MODELS}/raw_fp32")));
    models
}

fn unready_models() -> Vec<(String, String)> {
    let broken = "tensorflow-serving/generated/broken_model".to_owned();
    vec![("simple".to_owned(), format!("{MODELS}/simple")), ("broken".to_owned(), broken)]
}

#[test]
fn every_open_inference_case_passes() {
    let (ready, unready) = (serve(ready_models()), serve(unready_models()));
    let path = "tests/cases/open-inference.json";
    let text = fs::read_to_string(project(path)).expect(path);
    let cases: Vec<Case> = serde_json::from_str(&text).expect(path);
    let mut failures = Vec::new();
    for case in &cases {
        let server = match case.server.as_str() {
            "" => &ready,
            "unready" => &unready,
            other => panic!("{}: there is no server {other}", case.id),
        };
        if let Err(why) = check(case, &send(server, case)) {
            let Case { id, source, method, path, .. } = case;
            failures.push(format!("{id} ({source})\n  {method} {path}\n  {why}"));
        }
    }
    let (count, failed) = (cases.len(), failures.len());
    assert!(failures.is_empty(), "{failed} of {count} failed:\n\n{}", failures.join("\n\n"));
    assert!(count >= 140, "cases are missing: {count}");
    for server in [ready, unready] {
        assert_eq!(server.get("/v2/health/live").status, 200);
    }
}

fn send(server: &TestServer, case: &Case) -> Answer {
    let parts: Vec<_> = case.request_body_parts.iter().flatten().map(Part::encode).collect();
    let mut body = match (&case.request_body, &case.request_json) {
        (Some(text), None) => text.clone().into_bytes(),
        (None, Some(value)) => value.to_string().into_bytes(),
        (None, None) => parts.concat(),
        (Some(_), Some(_)) => panic!("{}: two bodies", case.id),
    };
    let json = parts.first().map_or(body.len(), Vec::len).to_string();
    let fill =
        |value: &String| value.replace("{json}", &json).replace("{body}", &body.len().to_string());
    let mut headers: Vec<_> =
        case.headers.iter().map(|(name, value)| (name.as_str(), fill(value))).collect();
    if case.gzip {
        headers.push(("Content-Encoding", "gzip".to_owned()));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&body).expect("compressed");
        body = encoder.finish().expect("compressed");
    }
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    request(server.address, &case.method, &case.path, &headers, &body)
}

fn check(case: &Case, answer: &Answer) -> Result<(), String> {
    let got = || shorten(&answer.text());
    if answer.status != case.expect_status {
        return Err(format!("status {}, not {}: {}", answer.status, case.expect_status, got()));
    }
    let header = |name: &str| answer.headers.get(name).map_or("", String::as_str);
    for (name, want) in &case.expect_headers {
        let there: Vec<_> = header(name).split(',').map(str::trim).collect();
        if !want.split(',').all(|value| there.contains(&value.trim())) {
            return Err(format!("{name}: {:?}, not {want:?}", header(name)));
        }
    }
    if case.method == "HEAD" {
        return Ok(());
    }
    if case.expect_status >= 400 {
        let part = case.expect_error_contains.as_ref().ok_or("the case expects no error")?;
        return check_error(part, header("content-type"), answer);
    }
    if let Some(part) = &case.expect_text_contains
        && !answer.text().contains(part)
    {
        return Err(format!("{part:?} is not in {}", got()));
    }
    if let Some(want) = &case.expect_json {
        if header("content-type") != JSON || answer.headers.contains_key(LENGTH) {
            return Err(format!("not labelled as JSON: {:?}", answer.headers));
        }
        let parsed = serde_json::from_slice(&answer.body);
        alike("", &parsed.map_err(|e| format!("not JSON ({e}): {}", got()))?, want)?;
    }
    if let Some(want) = &case.expect_body_parts {
        check_binary(want, header("content-type"), header(LENGTH), &answer.body)?;
    }
    Ok(())
}

/// Checks that the body is `{"error": "…"}`, short, and that `part` is in its text.
fn check_error(part: &str, kind: &str, answer: &Answer) -> Result<(), String> {
    let text = shorten(&answer.text());
    if kind != JSON {
        return Err(format!("an error of type {kind:?}: {text}"));
    }
    let body: Value = serde_json::from_slice(&answer.body).map_err(|e| format!("{e}: {text}"))?;
    let members = body.as_object().map_or(0, serde_json::Map::len);
    match body["error"].as_str() {
        Some(error) if members == 1 && !error.is_empty() && error.len() < 10_000 => {
            let found = error.contains(part);
            if found { Ok(()) } else { Err(format!("{part:?} is not in {text}")) }
        }
        _ => Err(format!("not an object with an error alone: {text}")),
    }
}

fn check_binary(want: &[Part], kind: &str, length: &str, body: &[u8]) -> Result<(), String> {
    let Some((Part::Json(json), tensors)) = want.split_first() else {
        return Err("the first part is not JSON".to_owned());
    };
    let text = String::from_utf8_lossy(body);
    if kind != BINARY {
        return Err(format!("of type {kind:?}, not {BINARY}: {}", shorten(&text)));
    }
    let length = length.parse().map_err(|_| format!("{LENGTH}: {length:?}"))?;
    let (head, rest) = body
        .split_at_checked(length)
        .ok_or_else(|| format!("{LENGTH} is {length}, of {} bytes", body.len()))?;
    let head = serde_json::from_slice(head)
        .map_err(|e| format!("the first {length} bytes are not JSON ({e}): {}", shorten(&text)))?;
    alike("", &head, json)?;
    let tensors: Vec<u8> = tensors.iter().flat_map(Part::encode).collect();
    if rest == tensors { Ok(()) } else { Err(format!("got   {rest:?}\n  not   {tensors:?}")) }
}

/// An error with the path to the first difference, if a value is not as expected.
fn alike(path: &str, got: &Value, want: &Value) -> Result<(), String> {
    let differs = || {
        let path = if path.is_empty() { "the body" } else { path };
        let (got, want) = (shorten(&got.to_string()), shorten(&want.to_string()));
        Err(format!("{path}:\n  got   {got}\n  not   {want}"))
    };
    let same = match (got, want) {
        (Value::String(got), Value::String(want)) if want == "<string>" => !got.is_empty(),
        (got, Value::String(want)) if want == "<text>" => got.is_string(),
        (got, Value::String(want)) if want == "<number>" => got.is_number(),
        (got, Value::String(want)) if want == "<list>" => got.is_array(),
        (Value::Number(got), Value::Number(want)) if want.is_f64() => {
            let (got, want) = (got.as_f64().unwrap_or(f64::NAN), want.as_f64().unwrap_or(0.0));
            (got - want).abs() <= 1e-6 * want.abs()
        }
        (Value::Array(got), Value::Array(want)) => match want.split_first() {
            Some((Value::String(first), want)) if first == "<contains>" => {
                for want in want {
                    contains(path, got, want)?;
                }
                true
            }
            _ if got.len() == want.len() => {
                for (at, (got, want)) in got.iter().zip(want).enumerate() {
                    alike(&format!("{path}[{at}]"), got, want)?;
                }
                true
            }
            _ => false,
        },
        (Value::Object(got), Value::Object(want)) => {
            for (key, want) in want.iter().filter(|(key, _)| *key != "<more>") {
                let Some(got) = got.get(key) else { return differs() };
                alike(&format!("{path}.{key}"), got, want)?;
            }
            want.contains_key("<more>") || got.len() == want.len()
        }
        _ => got == want,
    };
    if same { Ok(()) } else { differs() }
}

/// An error if no value of the list is as expected: the difference of the one with the same name
/// and version, if there is one.
fn contains(path: &str, list: &[Value], want: &Value) -> Result<(), String> {
    if list.iter().any(|got| alike(path, got, want).is_ok()) {
        return Ok(());
    }
    let same = |got: &&Value| got["name"] == want["name"] && got["version"] == want["version"];
    if let Some(got) = list.iter().find(same).filter(|_| want.is_object()) {
        return alike(path, got, want);
    }
    let list = shorten(&Value::from(list.to_vec()).to_string());
    Err(format!("{path}: {want} is not in {list}"))
}

fn shorten(text: &str) -> String {
    let mut text = text.to_owned();
    if let Some((end, _)) = text.char_indices().nth(1000) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Large outputs are sent from the memory of their tensors, and small ones and strings with the document
/// or between them: the order is that of the request.
#[test]
fn raw_outputs_of_any_size_come_in_their_order() {
    let server = serve(ready_models());
    let metadata = request(server.address, "GET", "/v2/models/all_types", &[], "");
    let metadata: Value = serde_json::from_slice(&metadata.body).expect("metadata");
    let named = |key: &str| metadata[key].as_array().expect("a list").clone();
    // Every second input is large.
    let rows = |at: usize| if at.is_multiple_of(2) { 20_000_usize } else { 2 };
    let (mut inputs, mut raw, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for (at, input) in named("inputs").iter().enumerate() {
        let datatype = input["datatype"].as_str().expect("text");
        let size = match datatype {
            "BYTES" => 7,
            "BOOL" => 1,
            other => {
                let digits = other.trim_start_matches(|c: char| !c.is_ascii_digit());
                digits.parse::<usize>().expect("bits") / 8
            }
        };
        let mut content = Vec::new();
        for element in 0..rows(at) {
            match datatype {
                "BYTES" => content.extend_from_slice(b"\x03\0\0\0abc"),
                "BOOL" => content.push(u8::from(element % 3 == 0)),
                _ => content.extend(
                    (0..size).map(|byte| u8::try_from((element + byte) % 50).expect("small")),
                ),
            }
        }
        inputs.push(serde_json::json!({
            "name": input["name"], "datatype": datatype, "shape": [rows(at), 1],
            "parameters": {"binary_data_size": content.len()},
        }));
        let name = input["name"].as_str().expect("text").replace("in_", "out_");
        expected.push((name, content.clone()));
        raw.extend(content);
    }
    for order in [false, true] {
        if order {
            expected.reverse();
        }
        let outputs: Vec<Value> =
            expected.iter().map(|(name, _)| serde_json::json!({"name": name})).collect();
        let document = serde_json::json!({
            "inputs": inputs, "outputs": outputs, "parameters": {"binary_data_output": true},
        });
        let document = document.to_string();
        let length = document.len().to_string();
        let headers = [("Inference-Header-Content-Length", length.as_str())];
        let body = [document.as_bytes(), &raw].concat();
        let path = "/v2/models/all_types/infer";
        let answer = request(server.address, "POST", path, &headers, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let head: usize = answer.headers[LENGTH].parse().expect("a number");
        let found: Value = serde_json::from_slice(&answer.body[..head]).expect("JSON");
        let names = found["outputs"].as_array().expect("a list").iter();
        assert!(names.map(|o| &o["name"]).eq(expected.iter().map(|(name, _)| name)), "{found}");
        let contents: Vec<u8> = expected.iter().flat_map(|(_, content)| content.clone()).collect();
        assert!(answer.body[head..] == contents, "other bytes");
        check_over_grpc(&server, &inputs, &raw, &expected);
    }
}

/// Sends the request over gRPC, where large outputs follow the message.
fn check_over_grpc(
    server: &TestServer,
    inputs: &[Value],
    mut raw: &[u8],
    expected: &[(String, Vec<u8>)],
) {
    let mut message = ModelInferRequest { model_name: "all_types".to_owned(), ..<_>::default() };
    for input in inputs {
        let text = |key: &str| input[key].as_str().expect("text").to_owned();
        let rows = input["shape"][0].as_i64().expect("a number");
        message.inputs.push(InferInputTensor {
            name: text("name"),
            datatype: text("datatype"),
            shape: vec![rows, 1],
            ..InferInputTensor::default()
        });
        let size = input["parameters"]["binary_data_size"].as_u64().expect("a number");
        let (content, rest) = raw.split_at(usize::try_from(size).expect("fits"));
        message.raw_input_contents.push(Bytes::copy_from_slice(content));
        raw = rest;
    }
    for (name, _) in expected {
        let output = InferRequestedOutputTensor { name: name.clone(), ..<_>::default() };
        message.outputs.push(output);
    }
    let caller = Caller::connect(server.grpc_address()).expect("connects");
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let answer = caller.call(path, message.encode_to_vec()).expect("a response");
    let answer = ModelInferResponse::decode(&answer[..]).expect("a message");
    let names = answer.outputs.iter().map(|output| &output.name);
    assert!(names.eq(expected.iter().map(|(name, _)| name)));
    assert!(answer.outputs.iter().all(|output| output.contents.is_none()));
    let contents = expected.iter().map(|(_, content)| content);
    assert!(answer.raw_output_contents.iter().eq(contents), "other bytes");
}
