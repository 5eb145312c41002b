//! The signals for autoscalers in the metrics: what runs and waits, how busy the server is, what it
//! sheds; and the metrics under the names of other servers.

use std::time::{Duration, Instant};

use tensorserve::config::Settings;
use tensorserve_tensor::error::Code;

use crate::support::fake::{Loading, Model};
use crate::support::grpc::Caller;
use crate::support::place::{Place, values};

const LABELS: &str = "model=\"m\",version=\"1\",signature=\"serving_default\"";

/// One batch thread, no inline runs, batching on.
fn pooled(settings: &mut Settings) {
    settings.server.num_batch_threads = Some(1);
    settings.server.inline_budget_micros = Some(0);
    settings.each.warm_up = Some(false);
    settings.batching.batching = Some("on".to_owned());
}

fn gated(configure: impl FnOnce(&mut Settings)) -> Place {
    Place::of(&Model::gated(), |settings| {
        pooled(settings);
        configure(settings);
    })
}

fn signal(place: &Place, name: &str) -> f64 {
    place.metric(&format!("tensorserve_{name}{{{LABELS}}}")).expect(name)
}

fn utilization(place: &Place, resource: &str) -> f64 {
    let series = format!("tensorserve_utilization_ratio{{resource=\"{resource}\"}}");
    place.metric(&series).expect(resource)
}

/// How many requests were shed for each of these reasons.
fn shed<const N: usize>(place: &Place, reasons: [&str; N]) -> [f64; N] {
    let count = |reason| {
        let series = format!("tensorserve_shed_requests_total{{reason=\"{reason}\"}}");
        place.metric(&series).expect("a series from the start")
    };
    reasons.map(count)
}

#[tokio::test]
async fn what_runs_and_what_waits() {
    let place = gated(|settings| {
        settings.batching.max_batch_size = Some(4);
        settings.batching.max_enqueued_batches = Some(2);
    });
    let names = ["requests_running", "requests_queued", "oldest_queued_seconds", "busy_ratio"];
    assert_eq!(names.map(|name| signal(&place, name)), [0.0; 4]);
    assert_eq!(place.metric("tensorserve_batch_threads"), Some(1.0));
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let began = Instant::now();
    let second = place.enqueue(&[&[1.0], &[2.0]]);
    std::thread::sleep(Duration::from_millis(300));
    let third = place.enqueue(&[&[3.0]]);
    // The client of this one leaves.
    drop(place.enqueue(&[&[4.0]]));
    assert_eq!(signal(&place, "requests_running"), 1.0);
    assert_eq!(signal(&place, "requests_queued"), 2.0);
    let (oldest, passed) = (signal(&place, "oldest_queued_seconds"), began.elapsed());
    assert!((0.3..=passed.as_secs_f64()).contains(&oldest), "{oldest} of {passed:?}");
    // Three rows, of two batches of four: the client that has left takes no place.
    assert_eq!(signal(&place, "queue_fill_ratio"), 0.375);
    assert_eq!(utilization(&place, "queue"), 0.375);
    // The run has not ended, and counts all the same.
    let busy = signal(&place, "busy_ratio");
    assert!(busy > 0.0 && busy <= 1.0, "{busy}");
    assert!(place.metric("tensorserve_saturation").expect("saturation") >= 0.375);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(second.await), [1.0, 2.0]);
    assert_eq!(values(third.await), [3.0]);
    assert_eq!(names[..3].iter().map(|name| signal(&place, name)).sum::<f64>(), 0.0);
    assert_eq!(utilization(&place, "queue"), 0.0);
}

#[tokio::test]
async fn the_busy_ratio_is_the_time_of_runs_per_thread() {
    let place = gated(|settings| settings.server.num_batch_threads = Some(2));
    let started = Instant::now();
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    std::thread::sleep(Duration::from_millis(1500));
    let (before, busy) = (started.elapsed(), signal(&place, "busy_ratio"));
    // One of two threads has run for nearly all of the time since the model was loaded.
    assert!((0.3..=0.5).contains(&busy), "{busy}");
    let total = utilization(&place, "batch_threads");
    assert!((total - busy).abs() < 0.1, "{total} is not {busy}");
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    std::thread::sleep(before);
    let after = signal(&place, "busy_ratio");
    assert!(after < busy * 0.75, "{after} after {busy}");
}

#[test]
fn runs_that_fail_or_panic_are_over() {
    let model = Model { fails_on: Some(1.0), panics_on: Some(2.0), ..Model::default() };
    let place = Place::of(&model, pooled);
    assert_eq!(place.predict("m", "[[1]]").status, 400);
    assert_eq!(place.predict("m", "[[2]]").status, 500);
    assert_eq!(place.predict("m", "[[3]]").status, 200);
    assert_eq!(signal(&place, "requests_running"), 0.0);
    let busy = signal(&place, "busy_ratio");
    std::thread::sleep(Duration::from_millis(500));
    // A run that were still counted would make it grow.
    assert!(signal(&place, "busy_ratio") <= busy);
}

#[tokio::test]
async fn pieces_of_a_large_request_count_one_by_one() {
    let place = gated(|settings| {
        settings.batching.max_batch_size = Some(8);
        settings.batching.max_execution_batch_size = Some(2);
        settings.batching.enable_large_batch_splitting = Some(true);
    });
    let large = place.enqueue(&[&[1.0], &[2.0], &[3.0], &[4.0], &[5.0]]);
    place.wait_for_runs_at_gate(1);
    assert_eq!(signal(&place, "requests_running"), 1.0);
    assert_eq!(signal(&place, "requests_queued"), 2.0);
    place.fake.runs_gate().open();
    assert_eq!(values(large.await), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(signal(&place, "requests_running"), 0.0);
}

#[tokio::test]
async fn what_is_shed_is_counted_by_reason() {
    let place = gated(|settings| {
        settings.batching.max_batch_size = Some(2);
        settings.batching.max_enqueued_batches = Some(1);
    });
    let reasons = ["queue_full", "deadline_in_queue", "deadline", "memory"];
    assert_eq!(shed(&place, reasons), [0.0; 4]);
    let soon = Instant::now() + Duration::from_millis(100);
    let running = place.enqueue_until(&[&[0.0]], soon);
    place.wait_for_runs_at_gate(1);
    let waiting = place.enqueue_until(&[&[1.0]], soon);
    let other = place.enqueue(&[&[2.0]]);
    assert_eq!(place.predict("m", "[[3]]").status, 503);
    assert_eq!(shed(&place, reasons), [1.0, 0.0, 0.0, 0.0]);
    let error = waiting.await.expect_err("its deadline has passed");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(shed(&place, reasons), [1.0, 1.0, 0.0, 0.0]);
    let error = running.await.expect_err("its deadline has passed");
    assert!(error.message().contains("while its batch ran"), "{}", error.message());
    assert_eq!(shed(&place, reasons), [1.0, 1.0, 1.0, 0.0]);
    place.fake.runs_gate().open();
    assert_eq!(values(other.await), [2.0]);
    // What is wrong with a request itself is not load.
    assert_eq!(place.predict("m", "[[1], [2], [3]]").status, 400);
    assert_eq!(place.predict("unknown", "[[1]]").status, 404);
    assert_eq!(shed(&place, reasons), [1.0, 1.0, 1.0, 0.0]);
}

#[test]
fn requests_for_which_there_is_no_memory_are_shed() {
    const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";
    let place = Place::of(&Model::default(), |settings| {
        settings.server.max_request_memory = Some("8MiB".parse().expect("a size"));
        settings.server.inline_budget_micros = Some(1_000_000);
    });
    let caller = Caller::connect(place.server.grpc_address()).expect("connected");
    let used = || utilization(&place, "request_memory");
    assert!(used() < 0.1, "{}", used());
    let memory = place.server.engine.request_memory();
    // Other requests use all of it.
    let mut held: Vec<_> = std::iter::from_fn(|| memory.request().ok()).collect();
    assert_eq!(place.predict("m", "[[3]]").status, 503);
    let error = caller.call(PREDICT, Vec::new()).expect_err("there is no memory");
    assert_eq!(error.code(), tonic::Code::ResourceExhausted);
    // There is enough to begin a request, and not for what it contains.
    held.truncate(held.len() - 2);
    assert!(used() > 0.9, "{}", used());
    let message = vec![0; 1 << 20];
    let error = caller.call(PREDICT, message.clone()).expect_err("there is no memory");
    assert_eq!(error.code(), tonic::Code::ResourceExhausted);
    assert_eq!(place.server.post("/v1/models/m:predict", message).status, 503);
    drop(held);
    assert_eq!(shed(&place, ["memory"]), [4.0]);
    // It does not fit into any memory.
    let status = place.server.post("/v1/models/m:predict", vec![b' '; 8 << 20]).status;
    assert_eq!(status, 413);
    assert_eq!(shed(&place, ["memory"]), [4.0]);
}

#[test]
fn versions_are_counted_by_state() {
    let failing = Model { loading: Loading::Fails, ..Model::default() };
    let models = [
        ("models/m/1", Model::default()),
        ("models/m/2", failing),
        ("models/n/1", Model::default()),
    ];
    let place = Place::with(&models, |settings, _| {
        settings.server.max_load_retries = Some(0);
    });
    place.server.wait_until_started();
    let count = |model: &str, state: &str| {
        let labels = format!("model=\"{model}\",state=\"{state}\"");
        place.metric(&format!("tensorserve_model_versions{{{labels}}}"))
    };
    assert_eq!(count("m", "failed"), Some(1.0));
    assert_eq!(count("n", "ready"), Some(1.0));
    assert_eq!(count("n", "failed"), Some(0.0));
    std::fs::remove_dir_all(place.path("models/n")).expect("removed");
    place.server.wait_until("it is unloaded", |_| count("n", "ready") != Some(1.0));
}

fn with_aliases(aliases: &str) -> Place {
    let model = Model { fails_on: Some(9.0), ..Model::default() };
    Place::of(&model, |settings| {
        pooled(settings);
        settings.server.metrics_aliases = Some(aliases.parse().expect("a list"));
    })
}

#[test]
fn triton_s_names_have_our_counts() {
    let place = with_aliases("triton");
    assert_eq!(place.predict("m", "[[1], [2], [3]]").status, 200);
    assert_eq!(place.predict("m", "[[1]]").status, 200);
    assert_eq!(place.predict("m", "[[9]]").status, 400);
    let triton = |name: &str, more: &str| {
        place.metric(&format!("nv_inference_{name}{{model=\"m\",version=\"1\"{more}}}"))
    };
    assert_eq!(triton("request_success", ""), Some(2.0));
    assert_eq!(triton("count", ""), Some(4.0));
    assert_eq!(triton("exec_count", ""), Some(2.0));
    assert_eq!(triton("pending_request_count", ""), Some(0.0));
    let failures = ["REJECTED", "CANCELED", "BACKEND", "OTHER"]
        .map(|reason| triton("request_failure", &format!(",reason=\"{reason}\"")).expect(reason));
    assert_eq!(failures, [0.0, 0.0, 0.0, 1.0]);
    let micros = |name| triton(name, "").expect("a sum");
    let (all, queue, run) = (
        micros("request_duration_us"),
        micros("queue_duration_us"),
        micros("compute_infer_duration_us"),
    );
    assert!(all > 0.0 && all >= run && all < 60e6 && queue < 60e6, "{all} {queue} {run}");
    let text = place.server.get("/metrics").text();
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    assert!(!text.contains(":tensorflow:"));
}

#[test]
fn tensorflow_serving_s_names_may_be_on_our_page() {
    let place = with_aliases("tfs,triton");
    assert_eq!(place.predict("m", "[[1]]").status, 200);
    let series = ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"}";
    assert_eq!(place.metric(series), Some(1.0));
    let text = place.server.get("/metrics").text();
    assert!(text.contains("# TYPE :tensorflow:serving:request_count unknown\n"), "{text}");
    assert!(text.contains("nv_inference_request_success{model=\"m\",version=\"1\"} 1\n"), "{text}");
    let plain = Place::of(&Model::default(), |_| ());
    assert!(!plain.server.get("/metrics").text().contains("nv_inference"));
}
