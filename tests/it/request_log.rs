//! Sampled requests that are written to log files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve_codec::tfrecord::TfRecordReader;
use tensorserve_core::engine::{EntryPoint, Method};
use tensorserve_proto::serving::input::Kind;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{
    ExampleList, InferenceTask, Input, ModelSpec, MultiInferenceRequest, PredictRequest,
    PredictionLog,
};
use tensorserve_proto::{Example, Form, tensor_from_proto, tensor_to_proto};
use tensorserve_protocols::tfs;

use crate::support::client::{Client, post};
use crate::support::fake::{Model, tensor};
use crate::support::model_server::{self, HALF_PLUS_TWO, list, listed, write_list};
use crate::support::place::Place;
use crate::support::server::{TestServer, settings};
use crate::support::{data, link};

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).map(|all| all.map(|e| e.expect("an entry").path()));
    let mut files: Vec<PathBuf> = entries.map(Iterator::collect).unwrap_or_default();
    files.sort();
    files
}

/// All records of the files in a directory.
fn records(folder: &Path) -> Vec<PredictionLog> {
    let mut records = Vec::new();
    for file in files(folder) {
        let bytes = fs::read(file).expect("readable");
        let (mut reader, mut record) = (TfRecordReader::new(bytes.as_slice(), 1 << 20), Vec::new());
        while reader.next(&mut record).expect("complete records") {
            records.push(PredictionLog::decode(record.as_slice()).expect("a PredictionLog"));
        }
    }
    records
}

fn kind(record: &PredictionLog) -> &'static str {
    match record.log_type.as_ref().expect("a log type") {
        LogType::PredictLog(_) => "predict",
        LogType::ClassifyLog(_) => "classify",
        LogType::RegressLog(_) => "regress",
        LogType::MultiInferenceLog(_) => "multi_inference",
        LogType::SessionRunLog(_) | LogType::PredictStreamedLog(_) => "none of ours",
    }
}

#[test]
fn a_log_of_one_version_warms_up_the_next() {
    let log = "logging_config { sampling_config { sampling_rate: 1 } \
               log_collector_config { type: 'file' filename_prefix: 'ROOT/logs/' } }";
    let write = |root: &Path| {
        let log = log.replace("ROOT", &root.display().to_string());
        write_list(root, &list(&[listed("m", &root.join("m"), &log)]));
    };
    let mut place =
        model_server::Place::start(&["--model_config_file=ROOT/models.config"], |root| {
            link(&data(HALF_PLUS_TWO).join("00000123"), &root.join("m/123"));
            write(root);
        });
    let address = place.process.address;
    let ask = |call: &str, body: &str| {
        let answer = post(address, &format!("/v1/models/m:{call}"), body);
        (answer.status, answer.text())
    };
    assert_eq!(ask("predict", r#"{"instances": [1.0, 2.0]}"#).0, 200);
    let regress = r#"{"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]}"#;
    assert_eq!(ask("regress", regress).0, 200);
    let classify = r#"{"signature_name": "classify_x_to_y", "context": {"x": 4.0},
                       "examples": [{}, {"x": 2.0}]}"#;
    assert_eq!(ask("classify", classify).0, 200);
    // A failed request is not logged: it would fail the next version's warm-up.
    assert_eq!(ask("predict", r#"{"signature_name": "none", "instances": [1.0]}"#).0, 400);
    place.process.signal("TERM");
    assert!(place.process.wait().success());

    let folder = place.root.path().join("logs");
    let [file] = &files(&folder)[..] else { panic!("not one file: {:?}", files(&folder)) };
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("m-") && name.ends_with(".tfrecord"), "{name}");
    let records = records(&folder);
    assert_eq!(records.iter().map(kind).collect::<Vec<_>>(), ["predict", "regress", "classify"]);
    for record in &records {
        let metadata = record.log_metadata.as_ref().expect("metadata");
        let spec = metadata.model_spec.as_ref().expect("a spec");
        let choice = tensorserve_proto::serving::model_spec::VersionChoice::Version(123);
        assert_eq!((spec.name.as_str(), &spec.version_choice), ("m", &Some(choice)));
        assert_eq!(metadata.sampling_config.as_ref().map(|c| c.sampling_rate), Some(1.0));
        assert!(metadata.timestamp_secs > 1_700_000_000);
    }
    let Some(LogType::PredictLog(predict)) = &records[0].log_type else { panic!("not predict") };
    let request = predict.request.as_ref().expect("a request");
    let input = tensor_from_proto(&request.inputs["x"]).expect("a tensor");
    assert_eq!(input.values::<f32>(), Some(&[1.0, 2.0][..]));
    let response = predict.response.as_ref().expect("a response");
    let output = tensor_from_proto(&response.outputs["y"]).expect("a tensor");
    assert_eq!(output.values::<f32>(), Some(&[2.5, 3.0][..]));
    let Some(LogType::ClassifyLog(classify)) = &records[2].log_type else { panic!("not classify") };
    let result = classify.response.as_ref().and_then(|r| r.result.as_ref()).expect("a result");
    assert_eq!(result.classifications.len(), 2);

    // The log as the warm-up file of another version.
    let next = model_server::Place::start(&["--model_base_path=ROOT/m"], |root| {
        let version = root.join("m/124");
        let model = data(HALF_PLUS_TWO).join("00000123");
        for part in ["saved_model.pb", "variables", "assets"] {
            link(&model.join(part), &version.join(part));
        }
        link(file, &tfs::warm_up::file_of(&version));
    });
    assert_eq!(next.value("default"), Some(2.5), "{}", next.log());
    let line = "default version 124: warmed up with 3 recorded requests";
    assert!(next.log().contains(line), "{}", next.log());
}

#[tokio::test]
async fn calls_over_grpc_are_logged_as_those_over_http() {
    let root = tempfile::tempdir().expect("temporary directory");
    let mut settings = settings();
    let mut model = ModelSettings {
        name: Some("m".to_owned()),
        path: Some(data(HALF_PLUS_TWO)),
        ..ModelSettings::default()
    };
    model.each.request_log = Some(root.path().to_owned());
    settings.models.push(model);
    let server = TestServer::start(settings);
    server.wait_until_started();
    let call =
        |method| server.engine.call(EntryPoint { protocol: tfs::GRPC, method }, Instant::now());
    let spec = |signature: &str| {
        let (name, signature_name) = ("m".to_owned(), signature.to_owned());
        Some(ModelSpec { name, signature_name, version_choice: None })
    };
    let input = tensor(&[2, 1], [2.0, 4.0]).expect("a matrix");
    let request = PredictRequest {
        model_spec: spec(""),
        inputs: [("x".to_owned(), tensor_to_proto(&input, Form::Values))].into(),
        output_filter: vec!["y".to_owned()],
    };
    let predict = call(Method::Predict);
    let answer = tfs::grpc::predict(&server.engine, request.clone(), Form::Values, predict).await;
    answer.expect("an answer");
    let example = b"\x0a\x0f\x0a\x0d\x0a\x01x\x12\x08\x12\x06\x0a\x04\x00\x00\x20\x40";
    let examples = vec![Example::decode(&example[..]).expect("an example")];
    let task = |signature: &str, method: &str| InferenceTask {
        model_spec: spec(signature),
        method_name: format!("tensorflow/serving/{method}"),
    };
    let tasks = MultiInferenceRequest {
        tasks: vec![task("regress_x_to_y", "regress"), task("classify_x_to_y", "classify")],
        input: Some(Input { kind: Some(Kind::ExampleList(ExampleList { examples })) }),
    };
    let multi_inference = call(Method::MultiInference);
    let answer =
        tfs::inference::multi_inference(&server.engine, tasks.clone(), multi_inference).await;
    let answer = answer.expect("an answer");
    server.stop();
    let records = records(root.path());
    assert_eq!(records.iter().map(kind).collect::<Vec<_>>(), ["predict", "multi_inference"]);
    let Some(LogType::PredictLog(log)) = &records[0].log_type else { panic!("not predict") };
    let logged = log.request.as_ref().expect("a request");
    assert_eq!(logged.output_filter, ["y"]);
    let logged = tensor_from_proto(&logged.inputs["x"]).expect("a tensor");
    assert_eq!((logged.shape().dims(), logged.bytes()), (input.shape().dims(), input.bytes()));
    let Some(LogType::MultiInferenceLog(log)) = &records[1].log_type else { panic!("not tasks") };
    assert_eq!((log.request.as_ref(), log.response.as_ref()), (Some(&tasks), Some(&answer)));
}

#[test]
fn a_part_of_the_requests_is_logged_into_files_of_a_size() {
    let place = Place::empty(|settings, root| {
        Model::constant(1.0).write_marker(&root.join("models/m/1"));
        settings.each.request_log = Some(root.join("logs/"));
        settings.each.request_log_sampling_rate = Some(0.5);
        settings.each.request_log_file_bytes = Some("4KiB".parse().expect("a size"));
    });
    place.server.wait_until_started();
    let mut client = Client::connect(place.server.address).expect("connects");
    for _ in 0..400 {
        let body = br#"{"instances": [[1.0]]}"#;
        let answer = client.request("POST", "/v1/models/m:predict", &[], body).expect("an answer");
        assert_eq!(answer.json(), json!({"predictions": [1.0]}));
    }
    let series = "tensorserve_logged_requests_total{model=\"m\",result=\"written\"}";
    let logs = place.path("logs");
    place.server.engine.flush_logs(Duration::from_secs(20));
    let written = place.metric(series).expect("a series");
    let sampled = records(&logs).len();
    assert!((120..280).contains(&sampled), "{sampled}");
    #[allow(clippy::cast_precision_loss)]
    let logged = sampled as f64;
    assert_eq!(logged, written);
    let sizes = files(&logs).into_iter().map(|file| file.metadata().expect("a file").len());
    let sizes: Vec<u64> = sizes.collect();
    assert!(sizes.len() > 1 && sizes.iter().all(|size| *size <= 4096), "{sizes:?}");
}

#[test]
fn nothing_is_written_unless_asked_for() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    assert_eq!(place.constant("m"), Some(1.0));
    assert!(!place.server.get("/metrics").text().contains("logged_requests_total{"));
}
