//! The order in which waiting requests run, which of them a full queue refuses, and how many
//! requests of a model may be in progress.
//!
//! A gated model blocks the only batch thread while a test fills the queue.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;
use tensorserve::config::units::CommaSeparated;
use tensorserve::config::{ModelSettings, Settings, SourceConfig};
use tensorserve_auth::Role;
use tensorserve_auth::file::add_key;
use tensorserve_proto::inference::infer_parameter::ParameterChoice;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use tensorserve_tensor::error::{Code, Error, Shed};
use tensorserve_tensor::priority::Priority::{High, Low, Normal};

use crate::support::client::{Answer, request};
use crate::support::fake::Model;
use crate::support::grpc::Caller;
use crate::support::place::{Pending, Place, matrix, queued, values};
use crate::support::server::{config, settings};
use crate::support::wait;

/// One batch thread, no inline runs, one request in each batch.
fn one_by_one(settings: &mut Settings) {
    settings.server.num_batch_threads = Some(1);
    settings.server.inline_budget_micros = Some(0);
    settings.each.warm_up = Some(false);
    settings.batching.batching = Some("on".to_owned());
    settings.batching.max_batch_size = Some(1);
}

/// A place whose batch thread waits at the gate with the request 0.
fn blocked(configure: impl FnOnce(&mut Settings)) -> (Place, Pending) {
    let place = Place::of(&Model::gated(), |settings| {
        one_by_one(settings);
        configure(settings);
    });
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    (place, first)
}

/// The first value of each run.
fn order(place: &Place) -> Vec<f32> {
    place.fake.runs().iter().map(|run| run.values[0]).collect()
}

async fn assert_shed(pending: Pending, reason: Shed) -> Error {
    let error = pending.await.expect_err("refused");
    assert_eq!((error.code(), error.shed()), (Code::Unavailable, Some(reason)), "{error}");
    error
}

fn shed(place: &Place, reason: &str) -> f64 {
    let series = format!("tensorserve_shed_requests_total{{reason=\"{reason}\"}}");
    place.metric(&series).expect("a series from the start")
}

/// A metric of high, normal and low requests.
fn by_priority(place: &Place, name: &str) -> [f64; 3] {
    ["high", "normal", "low"].map(|priority| {
        let series = format!("tensorserve_{name}{{priority=\"{priority}\"}}");
        place.metric(&series).expect("a series")
    })
}

#[tokio::test]
async fn higher_priorities_run_first_and_equal_ones_in_their_order() {
    let (place, first) = blocked(|_| ());
    let arrivals = [(Low, 1.0), (Normal, 2.0), (High, 3.0), (Low, 4.0), (High, 5.0), (Normal, 6.0)];
    let waiting: Vec<_> =
        arrivals.iter().map(|(priority, n)| place.enqueue_as(*priority, &[&[*n]])).collect();
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    for ((_, number), pending) in arrivals.iter().zip(waiting) {
        assert_eq!(values(pending.await), [*number]);
    }
    assert_eq!(order(&place), [0.0, 3.0, 5.0, 2.0, 6.0, 1.0, 4.0]);
}

#[tokio::test]
async fn a_batch_is_filled_with_lower_priorities() {
    let (place, first) = blocked(|settings| settings.batching.max_batch_size = Some(3));
    let waiting = [(Low, 1.0), (Normal, 2.0), (High, 3.0), (Low, 4.0)]
        .map(|(priority, number)| place.enqueue_as(priority, &[&[number]]));
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    for (pending, number) in waiting.into_iter().zip([1.0, 2.0, 3.0, 4.0]) {
        assert_eq!(values(pending.await), [number]);
    }
    let batches: Vec<_> = place.fake.runs().into_iter().map(|run| run.values).collect();
    assert_eq!(batches, [vec![0.0], vec![3.0, 2.0, 1.0], vec![4.0]]);
}

#[tokio::test]
async fn a_full_queue_refuses_the_newest_request_of_the_lowest_priority() {
    let (place, first) = blocked(|settings| settings.batching.max_enqueued_batches = Some(3));
    let older = place.enqueue_as(Low, &[&[1.0]]);
    let normal = place.enqueue_as(Normal, &[&[2.0]]);
    let newer = place.enqueue_as(Low, &[&[3.0]]);
    assert_shed(place.ask_as(Some(Low), "m", matrix(&[&[9.0]]), later()), Shed::QueueFull).await;
    let high = [4.0, 5.0, 6.0].map(|number| place.enqueue_as(High, &[&[number]]));
    // They are answered at once: the gate is still shut.
    for displaced in [newer, older, normal] {
        let error = assert_shed(displaced, Shed::QueueFull).await;
        assert!(error.message().contains("max_enqueued_batches is 3"), "{error}");
    }
    // Nothing of a lower priority waits any more.
    assert_shed(place.ask_as(Some(High), "m", matrix(&[&[9.0]]), later()), Shed::QueueFull).await;
    assert_eq!(shed(&place, "queue_full"), 5.0);
    assert_eq!(by_priority(&place, "priority_shed_requests_total"), [1.0, 1.0, 3.0]);
    assert_eq!(by_priority(&place, "priority_requests_queued"), [3.0, 0.0, 0.0]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    for (pending, number) in high.into_iter().zip([4.0, 5.0, 6.0]) {
        assert_eq!(values(pending.await), [number]);
    }
    assert_eq!(order(&place), [0.0, 4.0, 5.0, 6.0]);
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[tokio::test]
async fn nothing_is_displaced_by_a_request_that_would_not_fit_in_its_place() {
    let (place, first) = blocked(|settings| {
        settings.batching.max_batch_size = Some(4);
        settings.batching.max_enqueued_batches = Some(1);
    });
    let high = place.enqueue_as(High, &[&[1.0], &[2.0], &[3.0]]);
    let low = place.enqueue_as(Low, &[&[4.0]]);
    let two = matrix(&[&[5.0], &[6.0]]);
    assert_shed(place.ask_as(Some(High), "m", two, later()), Shed::QueueFull).await;
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(high.await), [1.0, 2.0, 3.0]);
    assert_eq!(values(low.await), [4.0]);
}

#[tokio::test]
async fn a_request_that_makes_room_may_be_a_part_of_another() {
    let (place, first) = blocked(|settings| {
        settings.batching.max_batch_size = Some(4);
        settings.batching.max_execution_batch_size = Some(2);
        settings.batching.enable_large_batch_splitting = Some(true);
        settings.batching.allowed_batch_sizes = Some(CommaSeparated(vec![2]));
        settings.batching.max_enqueued_batches = Some(2);
    });
    let pieces = place.enqueue_as(Low, &[&[1.0], &[2.0], &[3.0], &[4.0]]);
    let high = place.enqueue_as(High, &[&[5.0], &[6.0]]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(high.await), [5.0, 6.0]);
    assert_shed(pieces, Shed::QueueFull).await;
}

#[tokio::test]
async fn the_queue_of_another_model_waits_for_higher_priorities() {
    let models = [("models/m/1", Model::gated()), ("models/n/1", Model::gated())];
    let place = Place::with(&models, |settings, _| one_by_one(settings));
    place.server.wait_until_started();
    let ask = |priority, model, number: f32| {
        queued(place.ask_as(Some(priority), model, matrix(&[&[number]]), later()))
    };
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let waiting = [
        ask(Low, "m", 1.0),
        ask(Normal, "n", 2.0),
        ask(Normal, "n", 3.0),
        ask(High, "m", 4.0),
        ask(Normal, "m", 5.0),
        ask(High, "n", 6.0),
    ];
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    for pending in waiting {
        pending.await.expect("an answer");
    }
    // Queues take turns with requests of the same priority.
    assert_eq!(order(&place), [0.0, 4.0, 6.0, 5.0, 2.0, 3.0, 1.0]);
}

#[tokio::test]
async fn no_more_requests_of_a_model_are_in_progress_than_allowed() {
    let (place, first) = blocked(|settings| settings.each.max_concurrent_requests = Some(3));
    let ask = |priority| place.ask_as(Some(priority), "m", matrix(&[&[9.0]]), later());
    let normal = place.enqueue_as(Normal, &[&[1.0]]);
    let low = place.enqueue_as(Low, &[&[2.0]]);
    let error = assert_shed(ask(Low), Shed::ConcurrencyLimit).await;
    assert!(error.message().contains("max_concurrent_requests"), "{error}");
    // Requests that wait make room, the lowest first; those that run do not.
    let high = [3.0, 4.0].map(|number| place.enqueue_as(High, &[&[number]]));
    assert_shed(low, Shed::ConcurrencyLimit).await;
    assert_shed(normal, Shed::ConcurrencyLimit).await;
    assert_shed(ask(High), Shed::ConcurrencyLimit).await;
    assert_eq!(shed(&place, "concurrency_limit"), 4.0);
    assert_eq!(place.predict("m", "[[9.0]]").status, 503);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    for (pending, number) in high.into_iter().zip([3.0, 4.0]) {
        assert_eq!(values(pending.await), [number]);
    }
    assert_eq!(place.predict("m", "[[5.0]]").status, 200);
    assert_eq!(order(&place), [0.0, 3.0, 4.0, 5.0]);
}

#[tokio::test]
async fn requests_whose_clients_leave_do_not_count_any_more() {
    let (place, first) = blocked(|settings| settings.each.max_concurrent_requests = Some(2));
    for _ in 0..3 {
        drop(place.enqueue(&[&[1.0]]));
    }
    // A request that has left makes no room: it holds none.
    drop(place.enqueue_as(Low, &[&[1.0]]));
    let normal = place.enqueue(&[&[2.0]]);
    let high = place.enqueue_as(High, &[&[3.0]]);
    assert_shed(normal, Shed::ConcurrencyLimit).await;
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(high.await), [3.0]);
    assert_eq!(order(&place), [0.0, 3.0]);
}

/// The model `m` with this limit.
fn sources(place: &Place, limit: Option<usize>) -> Vec<SourceConfig> {
    let mut settings = settings();
    one_by_one(&mut settings);
    settings.each.max_concurrent_requests = limit;
    let (name, path) = (Some("m".to_owned()), Some(place.path("models/m")));
    settings.models.push(ModelSettings { name, path, ..ModelSettings::default() });
    config(settings).repository.sources
}

#[test]
fn a_limit_changes_without_a_load() {
    let place = Place::with(&[("models/m/1", Model::gated())], |settings, root| {
        one_by_one(settings);
        let (name, path) = (Some("m".to_owned()), Some(root.join("models/m")));
        settings.models.push(ModelSettings { name, path, ..ModelSettings::default() });
    });
    place.server.wait_until_started();
    let loads = place.fake.loads(&place.path("models/m/1"));
    let in_progress = |count| {
        place.server.wait_until("they wait", |s| s.engine.metrics().in_flight_count() == count);
        thread::sleep(Duration::from_millis(50));
    };
    let reload = |limit| {
        wait(place.server.engine.reload(sources(&place, limit))).expect("reload succeeds");
    };
    thread::scope(|scope| {
        let place = &place;
        let predict =
            |number: i32| scope.spawn(move || place.predict("m", &format!("[[{number}]]")).status);
        reload(Some(2));
        let pending = [predict(1), predict(2)];
        in_progress(2);
        assert_eq!(place.predict("m", "[[3]]").status, 503);
        reload(Some(3));
        let third = predict(4);
        in_progress(3);
        assert_eq!(place.predict("m", "[[5]]").status, 503);
        reload(None);
        let fourth = predict(6);
        in_progress(4);
        place.fake.runs_gate().open();
        for request in pending.into_iter().chain([third, fourth]) {
            assert_eq!(request.join().expect("no panic"), 200);
        }
    });
    assert_eq!(place.fake.loads(&place.path("models/m/1")), loads);
}

fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut all = vec![("Content-Type", "application/json")];
    all.extend_from_slice(headers);
    request(address, "POST", path, &all, body)
}

/// A path, headers and a body.
type HttpRequest<'a> = (&'a str, Vec<(&'a str, &'a str)>, String);

/// Sends the requests one after the other while the batch thread waits, and returns the order in
/// which they ran.
fn order_over_http(place: &Place, requests: &[HttpRequest<'_>]) -> Vec<f32> {
    let address = place.server.address;
    thread::scope(|scope| {
        for (number, (path, headers, body)) in requests.iter().enumerate() {
            scope.spawn(move || {
                let answer = post(address, path, headers, body);
                assert_eq!(answer.status, 200, "{body}: {}", answer.text());
            });
            let queued = || {
                let labels = "model=\"m\",version=\"1\",signature=\"serving_default\"";
                place.metric(&format!("tensorserve_requests_queued{{{labels}}}"))
            };
            place.server.wait_until("it waits", |_| queued() == Some((number + 1) as f64));
        }
        place.fake.runs_gate().open();
    });
    order(place)
}

const PREDICT: &str = "/v1/models/m:predict";

fn rest(number: u32) -> String {
    format!("{{\"instances\": [[{number}]]}}")
}

fn infer(number: u32, parameters: &str) -> String {
    format!(
        "{{\"parameters\": {{{parameters}}}, \"inputs\": [{{\"name\": \"x\", \"shape\": [1, 1], \
         \"datatype\": \"FP32\", \"data\": [{number}]}}]}}"
    )
}

#[tokio::test]
async fn headers_and_parameters_name_the_priority() {
    let (place, _first) = blocked(|_| ());
    let header = |value| vec![("X-Request-Priority", value)];
    let v2 = "/v2/models/m/infer";
    let requests = [
        (PREDICT, header("low"), rest(1)),
        (PREDICT, vec![], rest(2)),
        // No priority: ignored.
        (PREDICT, header("urgent"), rest(3)),
        (PREDICT, header("high"), rest(4)),
        (v2, vec![], infer(5, "\"priority\": 3")),
        (v2, vec![], infer(6, "\"priority\": 2")),
        (v2, vec![], infer(7, "\"priority\": 0")),
        (v2, vec![], infer(8, "\"priority\": 1")),
        // The body is more exact than the header.
        (v2, header("high"), infer(9, "\"priority\": 18446744073709551615")),
        (v2, header("high"), infer(10, "\"priority\": 0")),
    ];
    let order = order_over_http(&place, &requests);
    assert_eq!(order, [0.0, 4.0, 8.0, 10.0, 2.0, 3.0, 6.0, 7.0, 1.0, 5.0, 9.0]);
    for wrong in ["-1", "1.5", "\"high\"", "true", "18446744073709551616"] {
        let answer =
            post(place.server.address, v2, &[], &infer(1, &format!("\"priority\": {wrong}")));
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text());
    }
}

#[tokio::test]
async fn accounts_bound_the_priority() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("auth.toml");
    for key in ["plain", "low", "normal", "high"] {
        add_key(&file, key, &format!("key-of-{key}"), &[Role::Infer, Role::Metrics])
            .expect("a key");
    }
    let mut text = fs::read_to_string(&file).expect("text");
    for priority in ["low", "normal", "high"] {
        let table = format!("[keys.{priority}]\n");
        text = text.replace(&table, &format!("{table}priority = \"{priority}\"\n"));
    }
    fs::write(&file, &text).expect("written");
    let (place, _first) = blocked(|settings| settings.server.auth_file = Some(file.clone()));
    let address = place.server.address;
    let headers = |key: &'static str, asked: Option<&'static str>| {
        let mut headers = vec![("Authorization", key)];
        headers.extend(asked.map(|asked| ("X-Request-Priority", asked)));
        headers
    };
    let (plain, low) = ("Bearer key-of-plain", "Bearer key-of-low");
    let (normal, high) = ("Bearer key-of-normal", "Bearer key-of-high");
    let requests = [
        (headers(low, None), ""),
        (headers(low, Some("high")), ""),
        (headers(low, None), "\"priority\": 1"),
        (headers(plain, None), ""),
        (headers(plain, Some("high")), ""),
        (headers(normal, None), "\"priority\": 1"),
        (headers(high, Some("low")), ""),
        (headers(high, Some("normal")), ""),
        (headers(high, None), ""),
        (headers(high, Some("low")), "\"priority\": 1"),
    ];
    thread::scope(|scope| {
        for (number, (headers, parameters)) in requests.iter().enumerate() {
            let body = infer(u32::try_from(number).expect("few") + 1, parameters);
            scope.spawn(move || {
                let answer = post(address, "/v2/models/m/infer", headers, &body);
                assert_eq!(answer.status, 200, "{}", answer.text());
            });
            thread::sleep(Duration::from_millis(100));
        }
        place.fake.runs_gate().open();
    });
    assert_eq!(order(&place), [0.0, 9.0, 10.0, 4.0, 5.0, 6.0, 8.0, 1.0, 2.0, 3.0, 7.0]);
    fs::write(&file, text.replace("\"high\"", "\"highest\"")).expect("written");
    let error = tensorserve_auth::file::list(&file).err().expect("refused").to_string();
    assert!(error.contains("line ") && error.contains("low, normal, high"), "{error}");
}

#[tokio::test]
async fn metadata_and_parameters_of_grpc_name_the_priority() {
    let (place, _first) = blocked(|_| ());
    let message = |number: f32, priority: Option<ParameterChoice>| {
        let contents = InferTensorContents { fp32_contents: vec![number], ..Default::default() };
        let input = InferInputTensor {
            name: "x".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, 1],
            contents: Some(contents),
            ..InferInputTensor::default()
        };
        let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
        let parameters = priority.map(|choice| ("priority".to_owned(), parameter(choice)));
        let request = ModelInferRequest {
            model_name: "m".to_owned(),
            parameters: parameters.into_iter().collect(),
            inputs: vec![input],
            ..ModelInferRequest::default()
        };
        request.encode_to_vec()
    };
    let (int, uint) = (ParameterChoice::Int64Param, ParameterChoice::Uint64Param);
    let requests = [
        (message(1.0, None), Some("low")),
        (message(2.0, None), None),
        (message(3.0, None), Some("high")),
        (message(4.0, Some(uint(3))), Some("high")),
        (message(5.0, Some(int(1))), Some("low")),
        (message(6.0, Some(uint(0))), Some("high")),
    ];
    let address = place.server.grpc_address();
    let caller = || Caller::connect(address).expect("connects");
    thread::scope(|scope| {
        for (message, metadata) in requests {
            scope.spawn(move || {
                let metadata = metadata.map(|value| ("x-request-priority", value));
                let answer = caller().call_with(INFER, message, metadata);
                assert!(answer.is_ok(), "{answer:?}");
            });
            thread::sleep(Duration::from_millis(100));
        }
        place.fake.runs_gate().open();
    });
    assert_eq!(order(&place), [0.0, 3.0, 5.0, 6.0, 2.0, 1.0, 4.0]);
    for wrong in [int(-1), ParameterChoice::StringParam("1".to_owned())] {
        let message = message(9.0, Some(wrong));
        // The client has a runtime of its own.
        let refused = thread::spawn(move || refused(address, message)).join().expect("no panic");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    }
}

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The status of a call that is refused.
fn refused(address: SocketAddr, message: Vec<u8>) -> tonic::Status {
    let caller = Caller::connect(address).expect("connects");
    caller.call(INFER, message).expect_err("refused")
}
