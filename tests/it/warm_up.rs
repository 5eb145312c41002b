//! Warm-up with recorded requests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost::Message;
use tensorserve_codec::tfrecord;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{PredictLog, PredictRequest, PredictionLog};
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_protocols::tfs::warm_up::file_of;

use crate::support::client::get;
use crate::support::fake::{Model, tensor};
use crate::support::model_server::{self, HALF_PLUS_TWO, list, listed, write_list};
use crate::support::place::Place;
use crate::support::{data, link};

/// Writes the warm-up file of the version in `folder`.
fn write_file(folder: &Path, records: &[u8]) {
    let path = file_of(folder);
    fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
    fs::write(path, records).expect("written");
}

/// A framed record of a Predict call for the fake model.
fn record(value: f32) -> Vec<u8> {
    let input = tensor_to_proto(&tensor(&[1, 1], [value]).expect("a matrix"), Form::Values);
    let inputs = BTreeMap::from([("x".to_owned(), input)]);
    let request = Some(PredictRequest { inputs, ..PredictRequest::default() });
    let log = LogType::PredictLog(PredictLog { request, response: None });
    let log = PredictionLog { log_type: Some(log), log_metadata: None };
    let mut framed = Vec::new();
    tfrecord::append(&log.encode_to_vec(), &mut framed);
    framed
}

/// A server of one fake model with a recorded request for each value.
fn place(model: &Model, values: &[f32], warm_up: bool, iterations: usize) -> Place {
    Place::empty(|settings, root| {
        let folder = root.join("models/m/1");
        model.write_marker(&folder);
        let records: Vec<u8> = values.iter().flat_map(|&value| record(value)).collect();
        write_file(&folder, &records);
        settings.each.warm_up = Some(warm_up);
        settings.each.warm_up_iterations = Some(iterations);
    })
}

#[test]
fn each_record_is_run_as_often_as_told_before_the_version_is_ready() {
    let place = place(&Model::constant(1.0), &[7.0, 8.0], true, 3);
    place.server.wait_until_started();
    assert_eq!(place.constant("m"), Some(1.0), "not served: {:?}", place.state("m", 1));
    let shown = place.server.get("/api/v1/models/m").json();
    let warm_up = &shown["versions"][0]["warm_up"];
    assert!(warm_up["ran"] == true && warm_up["records"].as_u64() > Some(0), "{warm_up}");
    let loads = place.fake.loads(&place.path("models/m/1"));
    let runs = place.fake.warm_runs();
    let recorded: Vec<f32> =
        runs.iter().map(|run| run.values[0]).filter(|value| *value > 1.0).collect();
    // Once for each load: the second load uses another number of threads.
    assert_eq!(recorded, [7.0, 7.0, 7.0, 8.0, 8.0, 8.0].repeat(loads));
    let page = place.server.get("/monitoring/prometheus/metrics").text();
    let of = |name: &str, count: usize| {
        let start = format!(":tensorflow:serving:{name}{{model_path=");
        let end = format!("models/m/1\",status=\"OK\"}} {count}");
        page.lines().any(|line| line.starts_with(&start) && line.ends_with(&end))
    };
    assert!(of("model_warmup_records_read", 2 * loads), "{page}");
    assert!(of("model_warmup_latency_count", loads), "{page}");
    // All before the first request, on the loading thread.
    assert_eq!(place.fake.rows(), [1]);
}

#[test]
fn records_can_be_left_out() {
    let model = Model { fails_on: Some(7.0), ..Model::constant(1.0) };
    let place = place(&model, &[7.0], false, 1);
    place.server.wait_until_started();
    assert_eq!(place.constant("m"), Some(1.0));
    assert!(place.fake.warm_runs().is_empty());
}

#[test]
fn a_record_that_fails_leaves_the_old_version_alone_until_it_is_mended() {
    let place = Place::of(&Model::constant(1.0), |settings| {
        settings.server.max_load_retries = Some(0);
    });
    let folder = place.path("models/m/2");
    write_file(&folder, &[record(3.0), record(7.0)].concat());
    Model { fails_on: Some(7.0), ..Model::constant(2.0) }.write_marker(&folder);
    place.wait_for_state("m", 2, "END");
    let (_, error) = place.state("m", 2).expect("known");
    assert_eq!(error, "warm-up record 2: this model fails on that value");
    assert_eq!(place.constant("m"), Some(1.0));
    write_file(&folder, &record(3.0));
    place.server.wait_until("version 2 serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_panic_on_a_record_is_a_failed_load() {
    let model = Model { panics_on: Some(7.0), ..Model::default() };
    let place = place(&model, &[7.0], true, 1);
    place.server.wait_until_started();
    let (state, error) = place.state("m", 1).expect("known");
    assert_eq!(
        (state.as_str(), error.as_str()),
        ("END", "internal error during the load; see the server log")
    );
}

/// The bytes of a warm-up file of TensorFlow Serving's test models.
fn given(name: &str) -> Vec<u8> {
    let folder = "tensorflow-serving/generated/half_plus_two_warmup_";
    fs::read(file_of(&data(&format!("{folder}{name}/00000123")))).expect(name)
}

/// A complete half_plus_two with these records at `folder`.
fn half_plus_two(folder: &Path, records: Option<&[u8]>) {
    let model = data(HALF_PLUS_TWO).join("00000123");
    for part in ["saved_model.pb", "variables", "assets"] {
        link(&model.join(part), &folder.join(part));
    }
    if let Some(records) = records {
        write_file(folder, records);
    }
}

const WRONG: [(&str, &str, &str); 5] = [
    ("failing_request", "FAILED_PRECONDITION", "Serving signature key \"no_such\" not found."),
    (
        "not_tfrecord",
        "DATA_LOSS",
        "corrupted record at 0 (Is this even a TFRecord file?). Please verify your warmup data is \
         in TFRecord format.",
    ),
    (
        "unparsable_record",
        "INVALID_ARGUMENT",
        "Failed to parse warmup record: \\x0b\\xff\\xffnot a proto",
    ),
    ("unsupported_type", "UNIMPLEMENTED", "Unsupported log_type for warmup: 5"),
    ("records_1001", "INVALID_ARGUMENT", "Number of warmup records exceeds the maximum (1000) at "),
];

/// Writes a model for each warm-up file of TensorFlow Serving's tests, with its name.
fn write_models(root: &Path) {
    let many = |count: usize| {
        let one = given("ok").get(..79).expect("the first record").to_vec();
        one.repeat(count)
    };
    let mut models = vec![
        ("none", None),
        ("empty", Some(Vec::new())),
        ("ok", Some(given("ok"))),
        ("records_1000", Some(many(1000))),
        ("records_1001", Some(many(1001))),
    ];
    let wrong = WRONG.iter().map(|(name, ..)| *name).filter(|name| *name != "records_1001");
    models.extend(wrong.map(|name| (name, Some(given(name)))));
    let entries = models.iter().map(|(name, records)| {
        let folder = root.join(name);
        half_plus_two(&folder.join("123"), records.as_deref());
        listed(name, &folder, "")
    });
    let entries: Vec<String> = entries.collect();
    write_list(root, &list(&entries));
}

#[test]
fn good_files_warm_and_bad_ones_fail_the_load_as_there() {
    let flags = [
        "--model_config_file=ROOT/models.config",
        "--max_num_load_retries=0",
        "--num_request_iterations_for_warmup=2",
    ];
    let place = model_server::Place::start(&flags, write_models);
    for name in ["none", "empty", "ok", "records_1000"] {
        assert_eq!(place.value(name), Some(2.5), "{name}: {}", place.log());
    }
    assert!(place.log().contains("ok version 123: warmed up with 4 recorded requests"));
    for (name, code, part) in WRONG {
        assert_eq!(place.value(name), None, "{name}");
        let status = get(place.process.address, &format!("/v1/models/{name}")).json();
        let version = &status["model_version_status"][0];
        assert_eq!(version["state"], "END", "{name}: {version}");
        assert_eq!(version["status"]["error_code"], code, "{name}: {version}");
        let message = version["status"]["error_message"].as_str().expect("a message");
        assert!(message.contains(part), "{name}: {part:?} is not in {message:?}");
    }
    assert_eq!(get(place.process.address, "/readyz").status, 503);
}

#[test]
fn without_warm_up_no_record_is_looked_at() {
    let flags = ["--model_config_file=ROOT/models.config", "--enable_model_warmup=false"];
    let place = model_server::Place::start(&flags, write_models);
    for (name, ..) in WRONG {
        assert_eq!(place.value(name), Some(2.5), "{name}: {}", place.log());
    }
}

#[test]
fn a_failed_warm_up_is_tried_again() {
    let flags = ["--model_base_path=ROOT/m", "--load_retry_interval_micros=100000"];
    let place = model_server::Place::start(&flags, |root| {
        half_plus_two(&root.join("m/123"), Some(&given("failing_request")));
    });
    let tries = |log: &str| log.matches("default version 123: could not be loaded").count();
    place.wait_until("three attempts", |place| tries(&place.log()) >= 3);
    fs::remove_file(file_of(&place.root.path().join("m/123"))).expect("removed");
    place.wait_until("the model serves", |place| place.value("default") == Some(2.5));
}
