//! TensorFlow Serving's metrics: names, labels, format and values.

use std::time::Instant;

use tensorserve_core::engine::{EntryPoint, Method};
use tensorserve_proto::Form;
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{TensorProto, TensorShapeProto};
use tensorserve_protocols::tfs;

use crate::support::client::request;
use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::wait;

const PATH: &str = "/monitoring/prometheus/metrics";

/// The page of metrics.
struct Page(String);

impl Page {
    fn of(place: &Place) -> Self {
        let answer = place.server.get(PATH);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.headers["content-type"], "text/plain");
        Page(answer.text())
    }

    /// The value of a series, named without its prefix `:tensorflow:`.
    fn value(&self, series: &str) -> Option<f64> {
        let series = format!(":tensorflow:{series} ");
        self.0.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    }
}

/// Calls `PredictionService.Predict` of the model `name`, counted as by the listener.
fn grpc_predict(place: &Place, name: &str) -> bool {
    let spec = ModelSpec { name: name.to_owned(), ..ModelSpec::default() };
    let dims = [1, 1].map(|size| Dim { size, name: String::new() }).to_vec();
    let input = TensorProto {
        dtype: 1,
        tensor_shape: Some(TensorShapeProto { dim: dims, unknown_rank: false }),
        float_val: vec![2.0],
        ..TensorProto::default()
    };
    let inputs = [("x".to_owned(), input)].into();
    let request = PredictRequest { model_spec: Some(spec), inputs, ..PredictRequest::default() };
    let engine = &place.server.engine;
    let entry = EntryPoint { protocol: tfs::GRPC, method: Method::Predict };
    let call = engine.call(entry, Instant::now());
    wait(tfs::grpc::predict(engine, request, Form::Values, call)).is_ok()
}

#[test]
fn requests_and_runs_are_counted_by_model() {
    let model = Model { run_millis: 2, fails_on: Some(9.0), ..Model::default() };
    let models = [("models/m/1", model.clone()), ("models/n/1", Model::default())];
    let place = Place::with(&models, |settings, _| {
        settings.server.inline_budget_micros = Some(1_000_000);
    });
    place.server.wait_until_started();
    let before = Page::of(&place);
    assert_eq!(before.value("serving:request_count{model_name=\"m\",status=\"OK\"}"), None);
    for _ in 0..3 {
        assert_eq!(place.predict("m", "[[1]]").status, 200);
    }
    assert_eq!(place.predict("m", "[[9]]").status, 400);
    assert_eq!(place.predict("m", "[[1").status, 400);
    assert_eq!(place.server.post("/v1/models/m:classify", "{").status, 400);
    assert_eq!(place.predict("made_up", "[[1]]").status, 404);
    assert_eq!(place.server.get("/v1/models/m").status, 200);
    assert_eq!(place.server.get("/v1/models/m/metadata").status, 200);
    assert_eq!(place.server.get("/v1/models/made_up").status, 404);
    assert!(grpc_predict(&place, "m"));
    let page = Page::of(&place);
    let requests = |model: &str, status: &str| {
        let labels = format!("model_name=\"{model}\",status=\"{status}\"");
        page.value(&format!("serving:request_count{{{labels}}}"))
    };
    // Three predictions, two status requests, and one prediction over gRPC.
    assert_eq!(requests("m", "OK"), Some(6.0));
    assert_eq!(requests("m", "INVALID_ARGUMENT"), Some(3.0));
    // Names that clients invent do not become labels.
    assert_eq!(requests("", "NOT_FOUND"), Some(2.0));
    assert!(!page.0.contains("made_up"), "{}", page.0);
    assert_eq!(requests("n", "OK"), None);
    let latency = |part: &str, api: &str, entry: &str, le: &str| {
        let labels = format!("model_name=\"m\",API=\"{api}\",entrypoint=\"{entry}\"{le}");
        page.value(&format!("serving:request_latency{part}{{{labels}}}"))
    };
    assert_eq!(latency("_count", "predict", "REST", ""), Some(3.0));
    assert_eq!(latency("_count", "", "REST", ""), Some(2.0));
    assert_eq!(latency("_count", "Predict", "GRPC", ""), Some(1.0));
    assert_eq!(latency("_count", "classify", "REST", ""), None);
    // A run takes 2 ms, so the bucket up to 1983.59 µs stays empty.
    let sum = latency("_sum", "predict", "REST", "").expect("a sum");
    assert!((6_000.0..6e6).contains(&sum), "{sum}");
    assert_eq!(latency("_bucket", "predict", "REST", ",le=\"1983.59\""), Some(0.0));
    assert_eq!(latency("_bucket", "predict", "REST", ",le=\"+Inf\""), Some(3.0));
    assert_eq!(latency("_bucket", "Predict", "GRPC", ",le=\"1983.59\""), Some(0.0));
    assert_eq!(latency("_bucket", "Predict", "GRPC", ",le=\"+Inf\""), Some(1.0));
    let runtime = "model_name=\"m\",API=\"Predict\",runtime=\"TF1\"";
    assert_eq!(page.value(&format!("serving:runtime_latency_count{{{runtime}}}")), Some(4.0));
    let sum = page.value(&format!("serving:runtime_latency_sum{{{runtime}}}")).expect("a sum");
    assert!(sum >= 8_000.0, "{sum}");
    assert_eq!(page.value("core:graph_runs{}"), Some(4.0));
    assert_eq!(page.value("core:graph_run_time_usecs_histogram_count{}"), Some(4.0));
    assert!(page.value("core:graph_run_time_usecs{}").is_some_and(|sum| sum >= 8_000.0));
    assert_eq!(page.value("serving:batching_session:wrapped_run_count{}"), Some(4.0));
    assert_eq!(page.value("serving:batching_session:processed_batch_size{}"), Some(1.0));
    // The server's own metrics keep their names and their page.
    let ours = place.server.get("/metrics").text();
    assert!(ours.contains("tensorserve_requests_total") && !ours.contains(":tensorflow:"));
}

#[test]
fn waits_sizes_and_padding_of_batches() {
    let place = Place::of(&Model::default(), |settings| {
        settings.server.inline_budget_micros = Some(0);
        settings.batching.batching = Some("on".to_owned());
        settings.batching.max_batch_size = Some(8);
        settings.batching.allowed_batch_sizes = Some("4,8".parse().expect("a list"));
    });
    assert_eq!(place.predict("m", "[[1], [2], [3]]").status, 200);
    let page = Page::of(&place);
    let batching = |series: &str| page.value(&format!("serving:batching_session:{series}"));
    assert_eq!(batching("input_batch_size{}"), Some(3.0));
    assert_eq!(batching("processed_batch_size{}"), Some(4.0));
    assert_eq!(batching("padding_size{execution_batch_size=\"4\"}"), Some(1.0));
    assert_eq!(batching("queuing_latency_count{thread_pool_name=\"\"}"), Some(1.0));
}

#[test]
fn loads_are_counted_by_folder() {
    let broken = Model { loading: Loading::FailsOnce, ..Model::default() };
    let place = Place::with(&[("models/m/1", broken)], |settings, _| {
        settings.server.load_retry_interval = Some("10ms".parse().expect("a duration"));
    });
    place.wait_for_state("m", 1, "AVAILABLE");
    let page = Page::of(&place);
    let folder = place.path("models/m/1").canonicalize().expect("a directory");
    let path = format!("model_path=\"{}\"", folder.display());
    let attempts = |status: &str| {
        page.value(&format!("cc:saved_model:load_attempt_count{{{path},status=\"{status}\"}}"))
    };
    assert_eq!((attempts("fail"), attempts("success")), (Some(1.0), Some(1.0)), "{}", page.0);
    assert!(page.value(&format!("cc:saved_model:load_latency{{{path}}}")) > Some(0.0));
}

#[test]
fn the_page_is_in_order_and_counters_stay() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    assert_eq!(place.constant("m"), Some(1.0));
    let page = Page::of(&place);
    let types = page.0.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<&str> = types.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.is_sorted(), "{names:?}");
    for metric in [
        ":tensorflow:serving:mlmd_map gauge",
        ":tensorflow:serving:model_warmup_latency histogram",
        ":tensorflow:serving:request_log_count counter",
        ":tensorflow:serving:request_example_count_total counter",
        ":tensorflow:core:direct_session_runs counter",
    ] {
        assert!(page.0.lines().any(|line| line == format!("# TYPE {metric}")), "{metric}");
    }
    assert!(page.0.ends_with('\n') && !page.0.contains("\n\n"));
    // A metric without values has only that line.
    assert!(!page.0.lines().any(|line| line.starts_with(":tensorflow:serving:mlmd_map")));
    let ok = "serving:request_count{model_name=\"m\",status=\"OK\"}";
    assert_eq!(page.value(ok), Some(1.0));
    place.write("models/m/2", &Model::constant(2.0));
    place.wait_for_state("m", 1, "END");
    assert_eq!(place.constant("m"), Some(2.0));
    assert!(Page::of(&place).value(ok) >= Some(2.0));
}

#[test]
fn any_method_gets_them_and_a_query_only_under_our_name() {
    let ours = Place::of(&Model::default(), |_| ());
    let there = Place::configured(
        &[],
        |_, _| (),
        |config| {
            config.answer_as_tfs();
            config.protocols.tfs.metrics_path = Some("/m".to_owned());
        },
    );
    for method in ["GET", "POST", "PUT", "DELETE"] {
        let answer = request(ours.server.address, method, PATH, &[], "x");
        assert_eq!(answer.status, 200, "{method}");
        let answer = request(there.server.address, method, "/m", &[], "x");
        assert_eq!(answer.status, 200, "{method}");
    }
    assert_eq!(ours.server.get(&format!("{PATH}?x=1")).status, 200);
    let answer = there.server.get("/m?x=1");
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (400, "text/plain"));
    assert_eq!(answer.text(), "Unexpected path: /m?x=1. Should be /m");
    // A configured path replaces the default path.
    assert_eq!(there.server.get(PATH).status, 404);
}
