//! Names of inputs that a model does not have. In every protocol and on every platform a request with one name
//! changed is refused, with the wrong name, the inputs and the nearest one; the unchanged request is served.

use std::collections::BTreeSet;
use std::fmt;
use std::thread;

use prost::Message;
use serde_json::{Map, Value, json};
use tensorserve::config::{ModelSettings, VertexConfig};
use tensorserve_core::engine::{ModelSpec as Named, VersionSelector};
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::{ModelInferRequest, ModelStreamInferResponse};
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_tensor::{
    DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

use crate::support::client::request;
use crate::support::grpc::{Caller, PREDICT};
use crate::support::server::{TestServer, config, settings};
use crate::support::{data, project};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
const PAGE: &str = "/run_json_inference";
const JSON: &str = "application/json";

/// A model of each platform that has names, and a text that it accepts.
const MODELS: [(&str, &str, &str); 12] = [
    ("xgboost", "platforms/xgboost/iris_softprob.json", ""),
    ("lightgbm", "platforms/lightgbm/made/4.7_binary.txt", ""),
    ("catboost", "platforms/catboost/made/rmse.cbm", "a"),
    ("catboost_texts", "platforms/catboost/made/ctr.cbm", "a"),
    ("sklearn_texts", "platforms/sklearn/passengers_boosted.pkl", "male"),
    ("sklearn_columns", "platforms/sklearn/iris_frame.pkl", ""),
    ("sklearn_frame", "reports/tabular-02-misspelt-column/model.pkl", ""),
    ("pmml", "platforms/pmml/iris_tree.pmml", ""),
    ("spark", "platforms/spark/ml_binary", ""),
    ("h2o", "platforms/h2o/iris_gbm.zip", ""),
    ("onnx", "platforms/onnx/iris_logreg.onnx", ""),
    ("tflite", "platforms/tflite/made/dense.tflite", ""),
];

/// Where a request may have a name of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    TfsColumns,
    TfsRows,
    TfsProtobuf,
    TfsGrpc,
    V2Json,
    V2Binary,
    V2Grpc,
    V2Stream,
    Simple,
    SimpleForm,
    SagemakerColumns,
    SagemakerRow,
    SagemakerCsv,
    VertexColumns,
}

const PROTOCOLS: [Protocol; 14] = [
    Protocol::TfsColumns,
    Protocol::TfsRows,
    Protocol::TfsProtobuf,
    Protocol::TfsGrpc,
    Protocol::V2Json,
    Protocol::V2Binary,
    Protocol::V2Grpc,
    Protocol::V2Stream,
    Protocol::Simple,
    Protocol::SimpleForm,
    Protocol::SagemakerColumns,
    Protocol::SagemakerRow,
    Protocol::SagemakerCsv,
    Protocol::VertexColumns,
];

/// A value of one row for an input.
#[derive(Clone)]
struct Given {
    name: String,
    spec: TensorSpec,
    text: &'static str,
}

impl Given {
    fn dims(&self) -> Vec<i64> {
        let sizes = self.spec.shape.sizes().unwrap_or_else(|| vec![-1, 2]);
        sizes.into_iter().map(|size| if size < 0 { 1 } else { size }).collect()
    }

    fn count(&self) -> usize {
        self.dims().iter().product::<i64>() as usize
    }

    fn is_text(&self) -> bool {
        self.spec.dtype() == Some(DType::String)
    }

    fn json(&self, dims: &[i64]) -> Value {
        let one = if self.is_text() { json!(self.text) } else { json!(1) };
        dims.iter().rev().fold(one, |inner, size| Value::Array(vec![inner; *size as usize]))
    }

    fn column(&self) -> Value {
        self.json(&self.dims())
    }

    fn row(&self) -> Value {
        self.json(&self.dims()[1..])
    }

    fn datatype(&self) -> &'static str {
        match self.spec.dtype() {
            Some(DType::Float) => "FP32",
            Some(DType::Double) => "FP64",
            Some(DType::Int64) => "INT64",
            Some(DType::String) => "BYTES",
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// The bytes of a raw tensor.
    fn raw(&self) -> Vec<u8> {
        let one = match self.spec.dtype() {
            Some(DType::Float) => 1_f32.to_le_bytes().to_vec(),
            Some(DType::Double) => 1_f64.to_le_bytes().to_vec(),
            Some(DType::Int64) => 1_i64.to_le_bytes().to_vec(),
            _ => [&(self.text.len() as u32).to_le_bytes()[..], self.text.as_bytes()].concat(),
        };
        one.repeat(self.count())
    }

    fn tensor(&self) -> Tensor {
        let (shape, count) = (Shape::new(&self.dims()).expect("a shape"), self.count());
        if self.is_text() {
            let mut texts = StringsBuilder::default();
            (0..count).for_each(|_| texts.push(self.text.as_bytes()));
            return Tensor::from_strings(shape, texts).expect("a tensor");
        }
        macro_rules! ones {
            ($one:expr) => {{
                let mut values = aligned_vec(count);
                values.resize(count, $one);
                Tensor::from_vec(shape, values).expect("a tensor")
            }};
        }
        match self.spec.dtype() {
            Some(DType::Float) => ones!(1_f32),
            Some(DType::Int64) => ones!(1_i64),
            _ => ones!(1_f64),
        }
    }
}

/// What a server says to a request.
#[derive(Debug, PartialEq)]
enum Said {
    Served,
    /// As the client's mistake, for this reason.
    Refused(String),
    Failed(String),
}

struct Place {
    server: TestServer,
    grpc: Caller,
}

impl Place {
    /// A server for one model, as the routes of some protocols do not name a model.
    fn of(path: &str) -> Self {
        let mut settings = settings();
        settings.models.push(ModelSettings {
            path: Some(data(path)),
            name: Some("m".to_owned()),
            ..ModelSettings::default()
        });
        let mut config = config(settings);
        config.protocols.vertex = Some(VertexConfig {
            predict_route: "/vertex/predict".to_owned(),
            health_route: "/vertex/health".to_owned(),
        });
        let server = TestServer::start_configured(&config);
        server.wait_until_started();
        let grpc = Caller::connect(server.grpc_address()).expect("connects");
        Place { server, grpc }
    }

    fn signatures(&self) -> Vec<Signature> {
        let spec = Named { name: "m", choice: VersionSelector::Latest };
        let version = self.server.engine.repository().resolve(&spec).expect("it is served");
        version.signatures().to_vec()
    }

    fn http(&self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Said {
        let answer = request(self.server.address, "POST", path, headers, body);
        let said = if path == PAGE { shown_on(&answer.text()) } else { answer.body.clone() };
        let said: Value = serde_json::from_slice(&said).unwrap_or_default();
        let reason = said["error"].as_str().map(str::to_owned);
        match answer.status {
            200 if path == PAGE && reason.is_some() => Said::Refused(reason.unwrap_or_default()),
            200 => Said::Served,
            400 => Said::Refused(reason.unwrap_or_default()),
            status => Said::Failed(format!("{status} {}", answer.text())),
        }
    }

    fn call(&self, path: &'static str, message: Vec<u8>) -> Said {
        let answer = match path {
            STREAM => self.grpc.first(path, message),
            _ => self.grpc.call(path, message),
        };
        match answer {
            Ok(message) if path == STREAM => {
                let answer = ModelStreamInferResponse::decode(&message[..]).expect("a message");
                match answer.error_message.is_empty() {
                    true => Said::Served,
                    false => Said::Refused(answer.error_message),
                }
            }
            Ok(_) => Said::Served,
            Err(status) if status.code() == tonic::Code::InvalidArgument => {
                Said::Refused(status.message().to_owned())
            }
            Err(status) => Said::Failed(status.to_string()),
        }
    }

    fn send(&self, protocol: Protocol, inputs: &[Given]) -> Said {
        let columns: Map<String, Value> =
            inputs.iter().map(|input| (input.name.clone(), input.column())).collect();
        let row = || -> Map<String, Value> {
            inputs.iter().map(|input| (input.name.clone(), input.row())).collect()
        };
        let json = ("Content-Type", JSON);
        match protocol {
            Protocol::TfsColumns => {
                self.http("/v1/models/m:predict", &[json], json!({"inputs": columns}).to_string())
            }
            Protocol::TfsRows => self.http(
                "/v1/models/m:predict",
                &[json],
                json!({"instances": [row()]}).to_string(),
            ),
            Protocol::TfsProtobuf => {
                let kind = ("Content-Type", "application/x-protobuf");
                self.http("/v1/models/m:predict", &[kind], predict_request(inputs).encode_to_vec())
            }
            Protocol::TfsGrpc => self.call(PREDICT, predict_request(inputs).encode_to_vec()),
            Protocol::V2Json => {
                let input = |input: &Given| {
                    json!({"name": input.name, "shape": input.dims(), "datatype": input.datatype(),
                           "data": input.column()})
                };
                let inputs: Vec<Value> = inputs.iter().map(input).collect();
                self.http("/v2/models/m/infer", &[json], json!({"inputs": inputs}).to_string())
            }
            Protocol::V2Binary => self.v2_binary(inputs),
            Protocol::V2Grpc => self.call(INFER, infer_request(inputs).encode_to_vec()),
            Protocol::V2Stream => self.call(STREAM, infer_request(inputs).encode_to_vec()),
            Protocol::Simple => self.http("/", &[json], json!({"data": columns}).to_string()),
            Protocol::SimpleForm => {
                let data = Value::Object(columns).to_string();
                let data: String = data.bytes().map(|byte| format!("%{byte:02X}")).collect();
                let kind = ("Content-Type", "application/x-www-form-urlencoded");
                let form = format!("model_name=m&json_data={data}");
                self.http(PAGE, &[kind], form)
            }
            Protocol::SagemakerColumns => {
                self.http("/invocations", &[json], json!({"inputs": columns}).to_string())
            }
            Protocol::SagemakerRow => {
                self.http("/invocations", &[json], Value::Object(row()).to_string())
            }
            Protocol::SagemakerCsv => {
                let names: Vec<String> = inputs.iter().map(|i| format!("{:?}", i.name)).collect();
                let value = |input: &Given| if input.is_text() { input.text } else { "1" };
                let values: Vec<&str> = inputs.iter().map(value).collect();
                let csv = format!("{}\n{}\n", names.join(","), values.join(","));
                self.http("/invocations", &[("Content-Type", "text/csv")], csv)
            }
            Protocol::VertexColumns => {
                self.http("/vertex/predict", &[json], json!({"inputs": columns}).to_string())
            }
        }
    }

    fn v2_binary(&self, inputs: &[Given]) -> Said {
        let mut tail = Vec::new();
        let mut heads = Vec::new();
        for input in inputs {
            let raw = input.raw();
            heads.push(
                json!({"name": input.name, "shape": input.dims(), "datatype": input.datatype(),
                              "parameters": {"binary_data_size": raw.len()}}),
            );
            tail.extend(raw);
        }
        let head = json!({"inputs": heads}).to_string();
        let length = head.len().to_string();
        let headers = [("Inference-Header-Content-Length", length.as_str())];
        self.http("/v2/models/m/infer", &headers, [head.as_bytes(), &tail].concat())
    }
}

/// The response that a page shows.
fn shown_on(page: &str) -> Vec<u8> {
    let (_, rest) = page.split_once("<pre>").expect("a response in the page");
    let (shown, _) = rest.split_once("</pre>").expect("a response in the page");
    let marks = [("&quot;", "\""), ("&#34;", "\""), ("&#39;", "'"), ("&lt;", "<"), ("&gt;", ">")];
    let text = marks.iter().fold(shown.to_owned(), |text, (mark, sign)| text.replace(mark, sign));
    text.replace("&amp;", "&").into_bytes()
}

fn predict_request(inputs: &[Given]) -> PredictRequest {
    let tensors = inputs
        .iter()
        .map(|input| (input.name.clone(), tensor_to_proto(&input.tensor(), Form::Content)));
    PredictRequest {
        model_spec: Some(ModelSpec { name: "m".to_owned(), ..ModelSpec::default() }),
        inputs: tensors.collect(),
        output_filter: Vec::new(),
    }
}

fn infer_request(inputs: &[Given]) -> ModelInferRequest {
    let tensors = inputs.iter().map(|input| InferInputTensor {
        name: input.name.clone(),
        datatype: input.datatype().to_owned(),
        shape: input.dims(),
        ..InferInputTensor::default()
    });
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs: tensors.collect(),
        raw_input_contents: inputs.iter().map(|input| input.raw().into()).collect(),
        ..ModelInferRequest::default()
    }
}

/// The name with small mistakes; none of them is in `names`.
fn mistakes(name: &str, names: &BTreeSet<String>) -> BTreeSet<String> {
    let mut letters: Vec<char> = name.chars().collect();
    if let Some(last) = letters.last_mut() {
        *last = if *last == 'q' { 'w' } else { 'q' };
    }
    let swapped = |c: char| {
        if c.is_lowercase() { c.to_uppercase().to_string() } else { c.to_lowercase().to_string() }
    };
    let all = [
        letters.into_iter().collect(),
        name.chars().map(swapped).collect(),
        format!("{name}s"),
        format!("{name} "),
    ];
    all.into_iter().filter(|wrong| !names.contains(wrong)).collect()
}

/// Whether the protocol can say these names, and says them to the letter.
fn applies(protocol: Protocol, inputs: &[Given], wrong: Option<&str>) -> bool {
    let are_columns = inputs.iter().all(|input| input.spec.is_column());
    // The names in a table are those of columns, without the blanks around them.
    protocol != Protocol::SagemakerCsv
        || (are_columns && wrong.is_none_or(|name| name.trim() == name))
}

struct Case<'c> {
    platform: &'c str,
    protocol: Protocol,
    wrong: &'c str,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.platform, self.protocol, self.wrong)
    }
}

/// Checks one model in all protocols. Returns how many requests were refused.
fn check(platform: &str, path: &str, text: &'static str) -> usize {
    let place = Place::of(path);
    let mut refused = 0;
    for signature in place.signatures() {
        assert!(!signature.ignores_unknown, "{platform}");
        let given =
            |spec: &TensorSpec| Given { name: spec.alias.clone(), spec: spec.clone(), text };
        let inputs: Vec<Given> = signature.inputs.iter().map(given).collect();
        let names: BTreeSet<String> = inputs.iter().map(|input| input.name.clone()).collect();
        for protocol in PROTOCOLS {
            if !applies(protocol, &inputs, None) {
                continue;
            }
            let right = place.send(protocol, &inputs);
            assert_eq!(right, Said::Served, "{platform} {protocol:?}");
            for (at, input) in inputs.iter().enumerate().take(3) {
                for wrong in mistakes(&input.name, &names) {
                    if !applies(protocol, &inputs, Some(&wrong)) {
                        continue;
                    }
                    let mut changed = inputs.clone();
                    changed[at].name = wrong.clone();
                    let case = Case { platform, protocol, wrong: &wrong };
                    check_refusal(&case, &place.send(protocol, &changed), &inputs);
                    refused += 1;
                }
            }
            // One that nobody asked for, beside all that are needed.
            let mut more = inputs.clone();
            more.push(Given { name: "surplus".to_owned(), ..inputs[0].clone() });
            let case = Case { platform, protocol, wrong: "surplus" };
            check_refusal(&case, &place.send(protocol, &more), &inputs);
        }
    }
    refused
}

fn check_refusal(case: &Case<'_>, said: &Said, inputs: &[Given]) {
    let Said::Refused(reason) = said else {
        panic!("{case}: {said:?}");
    };
    assert!(reason.contains(case.wrong), "{case}: {reason}");
    assert!(reason.contains("its inputs are "), "{case}: {reason}");
    for input in inputs.iter().take(50) {
        assert!(reason.contains(&format!("{:?}", input.name)), "{case} {}: {reason}", input.name);
    }
    let has_near = case.wrong != "surplus";
    assert!(!has_near || reason.contains("did you mean"), "{case}: {reason}");
}

#[test]
fn a_request_with_one_name_changed_is_refused() {
    thread::scope(|scope| {
        for (platform, path, text) in MODELS {
            scope.spawn(move || {
                let refused = check(platform, path, text);
                println!("{platform}: {refused} requests");
                assert!(refused >= 3 * PROTOCOLS.len(), "{platform}: {refused}");
            });
        }
    });
}

/// The report: `Age` was ignored, and `age` counted as missing.
#[test]
fn the_misspelt_column_of_the_report_is_refused() {
    let folder = "reports/tabular-02-misspelt-column";
    let place = Place::of(&format!("{folder}/model.pkl"));
    let text = std::fs::read_to_string(data(folder).join("request.json")).expect("a request");
    let wrong: Value = serde_json::from_str(&text).expect("JSON");
    let simple = json!({"data": wrong["inputs"]}).to_string();
    for (path, body) in [("/v1/models/m:predict", text.as_str()), ("/", &simple)] {
        let Said::Refused(reason) = place.http(path, &[("Content-Type", JSON)], body) else {
            panic!("{path} serves {body}");
        };
        let near = r#"its inputs are "age", "debt", "income"; did you mean "age"?"#;
        assert!(reason.contains(r#""Age""#) && reason.contains(near), "{path}: {reason}");
        let right = body.replace("Age", "age");
        assert_eq!(place.http(path, &[("Content-Type", JSON)], &right), Said::Served, "{path}");
    }
}

/// Servers of TensorFlow's models ignore other names where the reference servers do.
#[test]
fn graphs_of_tensorflow_ignore_what_their_references_ignore() {
    let server = TestServer::of(&project("models/half_plus_two"));
    let columns = json!({"inputs": {"x": [1.0], "X": [2.0]}});
    let answer = server.post("/v1/models/half_plus_two:predict", columns.to_string());
    assert_eq!(answer.json(), json!({"outputs": [2.5]}));
    let answer = server.post("/", json!({"data": {"x": [1.0], "X": [2.0]}}).to_string());
    assert_eq!(answer.json(), json!({"y": [2.5]}));
    let rows = json!({"instances": [{"x": 1.0, "X": 2.0}]}).to_string();
    let answer = server.post("/v1/models/half_plus_two:predict", rows);
    answer.assert_refused("a row", 400, "JSON object: does not have named input: X");
    assert!(answer.text().contains("named input: X\""), "{}", answer.text());
}
