//! Requests of few bytes that ask for much memory: it is reserved before it is taken, so that a server
//! under `max_request_memory` takes little more than that.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tensorserve_proto::serving::{PredictRequest, PredictResponse};
use tokio::task::JoinHandle;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use crate::support::client::{Answer, get, post, request};
use crate::support::grpc::{Caller, PREDICT};
use crate::support::process::Process;
use crate::support::{data, project};

/// The memory for requests of each server here, and what one may take in all: freed memory is not all
/// returned to the system.
const REQUEST_MEMORY: &str = "64MiB";
const MOST_KIB: u64 = 160 << 10;

/// What a busy machine may take for what takes milliseconds.
const BUSY: Duration = Duration::from_secs(30);

const HEALTH: &str = "/grpc.health.v1.Health/Check";

fn serve(path: &Path) -> Process {
    Process::serve(path, &["--max-request-memory", REQUEST_MEMORY])
}

/// The answer to a request that takes no more memory than it may.
fn bounded(process: &Process, send: impl FnOnce(SocketAddr) -> Answer) -> Answer {
    process.forget_peak();
    let before = process.resident();
    let answer = send(process.address);
    let taken = process.peak().saturating_sub(before);
    assert!(taken < MOST_KIB, "{taken} KiB for a {}: {}", answer.status, answer.text());
    answer
}

#[test]
fn many_small_inputs_of_a_v2_request() {
    let process = serve(&project("models/half_plus_two"));
    for data in ["[1]", "[[1]]", "[]"] {
        let input =
            format!(r#"{{"name": "x", "datatype": "FP32", "shape": [1], "data": {data}}}, "#);
        let last = r#"{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}"#;
        let body = format!(r#"{{"inputs": [{}{last}]}}"#, input.repeat(12_000_000 / input.len()));
        let answer = bounded(&process, |address| {
            post(address, "/v2/models/half_plus_two/infer", body.as_bytes())
        });
        assert!([400, 413].contains(&answer.status), "{}", answer.text());
    }
}

/// A linear model of `count` columns, each of which may be missing.
fn wide_model(count: usize) -> TempDir {
    let (mut fields, mut mined, mut predictors) = (String::new(), String::new(), String::new());
    for index in 0..count {
        let _ =
            write!(fields, r#"<DataField name="x{index}" optype="continuous" dataType="double"/>"#);
        let _ = write!(mined, r#"<MiningField name="x{index}"/>"#);
        let _ = write!(predictors, r#"<NumericPredictor name="x{index}" coefficient="1"/>"#);
    }
    let pmml = format!(
        r#"<PMML xmlns="http://www.dmg.org/PMML-4_4" version="4.4"><Header/><DataDictionary>
        <DataField name="y" optype="continuous" dataType="double"/>{fields}</DataDictionary>
        <RegressionModel functionName="regression"><MiningSchema>
        <MiningField name="y" usageType="target"/>{mined}</MiningSchema>
        <RegressionTable intercept="1">{predictors}</RegressionTable></RegressionModel></PMML>"#
    );
    let folder = TempDir::new().expect("a folder");
    let version = folder.path().join("wide/1");
    fs::create_dir_all(&version).expect("created");
    fs::write(version.join("wide.pmml"), pmml).expect("written");
    folder
}

#[test]
fn rows_without_their_columns() {
    let folder = wide_model(5000);
    let process = serve(&folder.path().join("wide"));
    let predict = |rows: &str| {
        let body = format!(r#"{{"instances": [{rows}]}}"#);
        bounded(&process, |address| post(address, "/v1/models/wide:predict", body.as_bytes()))
    };
    let answer = predict(r#"{"x4999": 1}, {}, {"x1": 2}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rows = "{},".repeat(60_000);
    for last in ["{}", r#"{"x1": 1}"#, r#"{"x1": [1]}"#, "5"] {
        let answer = predict(&format!("{rows}{last}"));
        assert!([400, 413].contains(&answer.status), "{last}: {}", answer.text());
    }
    let answer = predict(&format!("{rows}{{}}"));
    answer.assert_refused("absent columns", 413, "max_request_memory");
    let body = format!(r#"{{"inputs": {{"x1": [{}1]}}}}"#, "1,".repeat(60_000));
    let answer =
        bounded(&process, |address| post(address, "/v1/models/wide:predict", body.as_bytes()));
    answer.assert_refused("absent columns", 413, "max_request_memory");
}

#[test]
fn the_text_of_rows_is_read_as_before() {
    let folder = wide_model(2);
    let process = serve(&folder.path().join("wide"));
    let predict = |rows: &str| {
        let body = format!(r#"{{"instances": [{rows}]}}"#);
        let headers = [("Content-Type", "application/json")];
        request(process.address, "POST", "/v1/models/wide:predict", &headers, body.as_bytes())
    };
    let answer = predict(r#"{"x0": 1, "x1": 2}, {}, {"x1": 5}, {"x0": null, "x1": 7}, {}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (rows, message) in [
        (r#"{"x0": [1]}, {}"#, "keys must be equal to: x0,x1"),
        (
            r#"{"x0": 1}, {"x0": 1, "x0": 1}"#,
            "Item 1 of 'instances' list has the named input: x0 twice",
        ),
        (r#"{}, {"x0": 1}, {"x0": [1]}"#, "Failed to process element: 2 key: x0"),
        (r#"{"x0": [1], "x1": 1}, {"x1": 1}"#, "Failed to process element: 1 of 'instances' list."),
    ] {
        predict(rows).assert_refused(rows, 400, message);
    }
}

/// A model folder of MLflow whose signature has this input.
fn mlflow_model(folder: &Path, inputs: &str) {
    let model = data("platforms/sklearn/iris_logreg_pipeline.pkl");
    fs::copy(model, folder.join("model.pkl")).expect("copied");
    let file = format!(
        "flavors:\n  python_function:\n    loader_module: mlflow.any\n    predict_fn: predict\n  \
         sklearn: {{pickled_model: model.pkl, serialization_format: pickle}}\n\
         mlflow_version: 3.17.2\nsignature:\n  inputs: '{inputs}'\n"
    );
    fs::write(folder.join("MLmodel"), file).expect("written");
}

#[test]
fn nested_and_wide_tables_for_models_of_mlflow() {
    let columns = r#"[{"type": "double", "name": "sepal length"}, {"type": "double", "name": "sepal width"}, {"type": "double", "name": "petal length"}, {"type": "double", "name": "petal width"}]"#;
    let root = TempDir::new().expect("a folder");
    let folder = root.path().join("iris");
    fs::create_dir_all(&folder).expect("created");
    mlflow_model(&folder, columns);
    let process = serve(&folder);
    for part in ["[1],", "[[]],", "1,", "[1,2,3,4,5],", r#"{"a": 1},"#] {
        let list =
            format!("{}{}", part.repeat(12_000_000 / part.len()), part.trim_end_matches(','));
        for body in [
            format!(r#"{{"instances": [{list}]}}"#),
            format!(r#"{{"inputs": [{list}]}}"#),
            format!(r#"{{"dataframe_records": [{list}]}}"#),
            format!(r#"{{"dataframe_split": {{"data": [[{list}]]}}}}"#),
        ] {
            let answer = bounded(&process, |address| {
                let kind = [("Content-Type", "application/json")];
                request(address, "POST", "/invocations", &kind, body.as_bytes())
            });
            assert!(answer.status >= 400, "{part}: {}", answer.text());
        }
    }
}

/// Begins `count` calls of a method, each of which sends nothing, on one connection.
async fn silent_calls(
    address: SocketAddr,
    method: &'static str,
    count: usize,
) -> Vec<JoinHandle<()>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channel = endpoint.connect().await.expect("connects");
    let call = |_| {
        let mut client = Grpc::new(channel.clone());
        tokio::spawn(async move {
            client.ready().await.expect("ready");
            let codec = ProstCodec::<PredictRequest, PredictResponse>::default();
            let path = PathAndQuery::from_static(method);
            let silent = Request::new(tokio_stream::pending());
            let response = client.streaming(silent, path, codec).await;
            if let Ok(response) = response {
                let _ = response.into_inner().message().await;
            }
        })
    };
    (0..count).map(call).collect()
}

#[test]
fn silent_calls_keep_nobody_out() {
    let path = project("models/half_plus_two");
    let process = Process::serve(&path, &["--max-request-memory", "1MiB"]);
    let caller = Caller::connect(process.grpc()).expect("connects");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let methods = ["/inference.GRPCInferenceService/ModelStreamInfer", PREDICT, HEALTH];
    // There is memory for 64 requests.
    let mut calls = Vec::new();
    for method in methods {
        calls.extend(runtime.block_on(silent_calls(process.grpc(), method, 100)));
    }
    let metrics = || get(process.address, "/metrics").text();
    let number = |name: &str| -> f64 {
        let metrics = metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().parse().expect("a number")
    };
    let start = Instant::now();
    // The calls that wait for their only message.
    while number("tensorserve_in_flight_requests ") < 200.0 {
        assert!(start.elapsed() < BUSY, "the calls do not arrive: {}", metrics());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(number("tensorserve_request_memory_bytes ") < 100_000.0, "{}", metrics());
    for _ in 0..100 {
        caller.half_plus_two().expect("a call is answered");
        let answer =
            post(process.address, "/v1/models/half_plus_two:predict", r#"{"inputs": [1]}"#);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    calls.iter().for_each(JoinHandle::abort);
}
