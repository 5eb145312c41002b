//! A fault in a batch fails only the request that caused it or, where the cause is unknown, only
//! that batch. No output depends on the other requests in the batch.

use std::thread;

use serde_json::json;
use tensorserve::config::Settings;
use tensorserve::config::units::CommaSeparated;
use tensorserve_tensor::error::Code;

use crate::support::client::Client;
use crate::support::fake::{Answer, Model, Rows};
use crate::support::place::{Pending, Place, values};
use crate::support::project;
use crate::support::server::{TestServer, settings};

/// One batch thread and no inline runs.
fn pooled(settings: &mut Settings, batching: &str) {
    settings.server.num_batch_threads = Some(1);
    settings.server.inline_budget_micros = Some(0);
    settings.each.warm_up = Some(false);
    settings.batching.batching = Some(batching.to_owned());
}

fn gated(model: Model, batching: &str) -> Place {
    // Long enough that batching always pays off and that a run gets all threads.
    let model = Model { is_gated: true, run_millis: 5, ..model };
    Place::of(&model, |settings| pooled(settings, batching))
}

/// A model without a graph, of which the operator says that its rows are independent.
fn claimed(model: Model) -> Place {
    let model = Model { is_gated: true, run_millis: 5, rows: Rows::NoGraph, ..model };
    Place::of(&model, |settings| {
        pooled(settings, "auto");
        settings.batching.rows = Some("independent".to_owned());
    })
}

/// Runs these rows as one batch of requests with one row each.
async fn run_together(
    place: &Place,
    rows: &[&[f32]],
) -> Vec<tensorserve_tensor::error::Result<Vec<f32>>> {
    place.fake.runs_gate().close();
    let mut first = place.enqueue(&[&[0.0, 0.0]]);
    place.wait_for_runs_at_gate(1);
    let waiting: Vec<Pending> = rows.iter().map(|&row| place.enqueue(&[row])).collect();
    place.fake.runs_gate().open();
    assert_eq!(values((&mut first).await), [0.0, 0.0]);
    let mut answers = Vec::new();
    for pending in waiting {
        answers.push(pending.await.map(|outputs| values(Ok(outputs))));
    }
    answers
}

#[tokio::test]
async fn a_request_that_fails_does_not_fail_its_batchmates() {
    let place = gated(Model { fails_on: Some(9.0), ..Model::default() }, "on");
    let answers = run_together(&place, &[&[1.0, 2.0], &[9.0, 9.0], &[3.0, 4.0]]).await;
    assert_eq!(answers[0].as_deref().expect("an answer"), [1.0, 2.0]);
    let error = answers[1].as_ref().expect_err("run must fail");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(error.message(), "this model fails on that value");
    assert_eq!(answers[2].as_deref().expect("an answer"), [3.0, 4.0]);
    // The batch fails, then each request runs alone.
    assert_eq!(place.fake.rows(), [1, 3, 1, 1, 1]);
}

#[tokio::test]
async fn a_failed_batch_that_may_have_changed_state_is_not_run_again() {
    let model = Model { fails_on: Some(9.0), read_only: false, ..Model::default() };
    let place = gated(model, "on");
    let answers = run_together(&place, &[&[1.0, 2.0], &[9.0, 9.0]]).await;
    for answer in answers {
        assert_eq!(answer.expect_err("run must fail").message(), "this model fails on that value");
    }
    assert_eq!(place.fake.rows(), [1, 2]);
}

#[tokio::test]
async fn a_panic_costs_its_own_batch_only() {
    let place = gated(Model { panics_on: Some(9.0), ..Model::default() }, "on");
    let answers = run_together(&place, &[&[1.0, 2.0], &[9.0, 9.0]]).await;
    for answer in answers {
        assert_eq!(answer.expect_err("run must fail").code(), Code::Internal);
    }
    let answer = place.predict("m", "[[9, 9]]");
    assert_eq!(answer.status, 500);
    assert!(!answer.error().is_empty());
    // The batch thread survives and may still use all cores.
    assert_eq!(place.predict("m", "[[1, 2]]").status, 200);
    let runs = place.fake.runs();
    let threads: Vec<usize> = runs.iter().map(|run| run.options.threads).collect();
    let cores = thread::available_parallelism().expect("core count").get();
    assert_eq!(threads.last(), Some(&cores), "{threads:?}");
    assert_eq!(place.metric("tensorserve_panics_total"), Some(2.0));
}

#[test]
fn a_panic_on_a_connections_thread_is_a_500_and_the_connection_serves_on() {
    let model = Model { panics_on: Some(9.0), ..Model::default() };
    let place = Place::of(&model, |settings| {
        settings.server.http_threads = Some(1);
        settings.server.inline_budget_micros = Some(60_000_000);
        settings.batching.batching = Some("off".to_owned());
    });
    let mut client = Client::connect(place.server.address).expect("connects");
    let mut predict = |number: u32| {
        let body = format!("{{\"instances\": [[{number}]]}}");
        client.request("POST", "/v1/models/m:predict", &[], body.as_bytes()).expect("an answer")
    };
    assert_eq!(predict(1).status, 200);
    let answer = predict(9);
    assert_eq!(answer.status, 500);
    assert!(!answer.error().is_empty());
    assert_eq!(predict(1).status, 200);
    let runs = place.fake.runs();
    assert!(runs.iter().all(|run| !run.is_on_batch_thread()), "{runs:?}");
    assert_eq!(place.metric("tensorserve_panics_total"), Some(1.0));
    assert_eq!(place.metric("tensorserve_in_flight_requests"), Some(1.0), "besides this one");
}

/// TensorFlow Serving's message.
const WRONG_ROWS: &str = "Batched output tensor's 0th dimension does not equal the sum of the \
                          0th dimension sizes of the input tensors";

fn one_row_too_many() -> Model {
    Model { answer: Answer::OneRowTooMany, ..Model::default() }
}

#[test]
fn an_output_that_cannot_be_cut_to_size_is_the_clients_to_know() {
    for sizes in [None, Some(CommaSeparated(vec![4]))] {
        let place = Place::of(&one_row_too_many(), |settings| {
            pooled(settings, "on");
            settings.batching.max_batch_size = Some(4);
            settings.batching.allowed_batch_sizes = sizes.clone();
        });
        let answer = place.predict("m", "[[1, 2]]");
        assert_eq!(answer.status, 400);
        assert_eq!(answer.error(), WRONG_ROWS);
    }
}

#[tokio::test]
async fn outputs_that_cannot_be_split_are_an_error_in_each_batch_and_alone() {
    for read_only in [true, false] {
        let place = gated(Model { read_only, ..one_row_too_many() }, "on");
        let first = place.enqueue(&[&[0.0]]);
        place.wait_for_runs_at_gate(1);
        let (a, b) = (place.enqueue(&[&[1.0]]), place.enqueue(&[&[2.0]]));
        place.fake.runs_gate().open();
        for pending in [first, a, b] {
            let error = pending.await.expect_err("outputs cannot be split");
            assert_eq!(error.code(), Code::FailedPrecondition);
            assert_eq!(error.message(), WRONG_ROWS);
        }
        assert_eq!(place.fake.rows(), [1, 2]);
    }
}

#[tokio::test]
async fn unasked_a_model_whose_outputs_cannot_be_split_is_not_batched() {
    let place = gated(one_row_too_many(), "auto");
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let (a, b) = (place.enqueue(&[&[1.0]]), place.enqueue(&[&[2.0]]));
    place.fake.runs_gate().open();
    // Each request runs again alone and gets the unchanged output.
    assert_eq!(values(first.await), [0.0, 0.0]);
    assert_eq!(values(a.await), [1.0, 1.0]);
    assert_eq!(values(b.await), [2.0, 2.0]);
    assert_eq!(place.fake.rows(), [1, 2, 1, 1]);
}

#[tokio::test]
async fn a_model_whose_answers_depend_on_batchmates_never_gives_a_wrong_one() {
    let place = claimed(Model { answer: Answer::Centred, ..Model::default() });
    let answers = run_together(&place, &[&[1.0, 3.0], &[10.0, 30.0], &[5.0, 5.0]]).await;
    let answers: Vec<Vec<f32>> = answers.into_iter().map(|a| a.expect("an answer")).collect();
    assert_eq!(answers, [[-1.0, 1.0], [-10.0, 10.0], [0.0, 0.0]]);
    // The first trial of a batch shows the dependence; no batch is formed after it.
    assert_eq!(place.fake.rows(), [1, 3, 1, 1, 1]);
    place.fake.forget_runs();
    let answers = run_together(&place, &[&[2.0, 4.0], &[20.0, 40.0]]).await;
    let answers: Vec<Vec<f32>> = answers.into_iter().map(|a| a.expect("an answer")).collect();
    assert_eq!(answers, [[-1.0, 1.0], [-10.0, 10.0]]);
    assert_eq!(place.fake.rows(), [1, 1, 1]);
}

#[tokio::test]
async fn what_is_proven_is_run_once_from_the_start() {
    let place = gated(Model::default(), "auto");
    let answers = run_together(&place, &[&[1.0, 2.0], &[3.0, 4.0]]).await;
    assert_eq!(answers[0].as_deref().expect("an answer"), [1.0, 2.0]);
    assert_eq!(answers[1].as_deref().expect("an answer"), [3.0, 4.0]);
    assert_eq!(place.fake.rows(), [1, 2]);
}

#[tokio::test]
async fn what_is_found_to_batch_well_is_run_once() {
    let place = claimed(Model::default());
    let tried = [1, 2, 1, 1];
    for want in [&tried[..], &tried, &tried, &[1, 2]] {
        place.fake.forget_runs();
        let answers = run_together(&place, &[&[1.0, 2.0], &[3.0, 4.0]]).await;
        assert_eq!(answers[0].as_deref().expect("an answer"), [1.0, 2.0]);
        assert_eq!(answers[1].as_deref().expect("an answer"), [3.0, 4.0]);
        assert_eq!(place.fake.rows(), want);
    }
}

#[tokio::test]
async fn what_changes_state_is_joined_only_when_asked_to() {
    for (batching, want) in [("auto", &[1, 1, 1][..]), ("off", &[1, 1, 1]), ("on", &[1, 2])] {
        let place = gated(Model { read_only: false, ..Model::default() }, batching);
        let answers = run_together(&place, &[&[1.0, 2.0], &[3.0, 4.0]]).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(place.fake.rows(), want, "{batching}");
    }
}

/// Requests that arrive on one thread form batches, which one of them leads: also if its client leaves then.
#[test]
fn clients_that_leave_under_load_stop_no_other() {
    const CLIENTS: usize = 32;
    let mut settings = settings();
    settings.paths.push(project("models/wide_mlp"));
    let server = TestServer::start(settings);
    server.wait_until_started();
    let body = json!({ "instances": [vec![0.5; 784]] }).to_string();
    let length = body.len();
    let request = format!(
        "POST /v1/models/wide_mlp:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let connected = || -> Vec<Client> {
        let mut clients: Vec<Client> =
            (0..CLIENTS).map(|_| Client::connect(server.address).expect("connects")).collect();
        clients.iter_mut().for_each(|client| client.send(request.as_bytes()).expect("sent"));
        clients
    };
    for round in 0..60 {
        let mut clients = connected();
        // As soon as one has its response, the others leave.
        let client = clients.get_mut(round % CLIENTS).expect("a client");
        assert_eq!(client.answer("POST").expect("an answer").status, 200);
    }
    for mut client in connected() {
        assert_eq!(client.answer("POST").expect("an answer").status, 200);
    }
}
