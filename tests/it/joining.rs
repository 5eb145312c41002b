//! Which models have their requests joined unasked, and how samples of requests find those that must
//! not be, before a version is ready.

use std::path::Path;
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use tensorserve::config::Settings;

use crate::support::client::{Answer as HttpAnswer, post, request};
use crate::support::fake::{Answer, Model, Rows};
use crate::support::model_server;
use crate::support::place::{Place, values};
use crate::support::{copy, data};

/// What the server says of the signature of model `m`.
fn joining(place: &Place) -> (bool, String) {
    let shown = place.server.get("/api/v1/models/m").json();
    let joining = &shown["versions"][0]["signatures"][0]["joining"];
    let (joins, why) = (joining["joins"].as_bool(), joining["why"].as_str());
    (joins.expect("whether"), why.expect("why").to_owned())
}

/// A server with the model, whose samples end however little a busy machine leaves to them.
fn sampled(model: Model, configure: impl FnOnce(&mut Settings)) -> Place {
    let configure = |settings: &mut Settings, _: &Path| configure(settings);
    Place::configured(&[("models/m/1", model)], configure, |config| {
        config.repository.second_look = Duration::from_secs(60);
    })
}

fn with(answer: Answer) -> Model {
    Model { answer, ..Model::default() }
}

/// The rows of the runs for three requests of one row, two of which wait together.
async fn rows_of_runs(model: Model, rows: &str) -> Vec<i64> {
    let model = Model { is_gated: true, run_millis: 5, ..model };
    let place = Place::of(&model, |settings| {
        settings.server.num_batch_threads = Some(1);
        settings.server.inline_budget_micros = Some(0);
        settings.batching.rows = Some(rows.to_owned());
    });
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let waiting = [place.enqueue(&[&[1.0]]), place.enqueue(&[&[2.0]])];
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    for (pending, want) in waiting.into_iter().zip([1.0, 2.0]) {
        assert_eq!(values(pending.await), [want]);
    }
    place.fake.rows()
}

#[tokio::test]
async fn only_what_is_known_to_have_independent_rows_is_joined() {
    for (rows, runs) in
        [(Rows::Proven, &[1, 2][..]), (Rows::Mixed, &[1, 1, 1]), (Rows::NoGraph, &[1, 1, 1])]
    {
        let model = Model { rows, ..Model::default() };
        assert_eq!(rows_of_runs(model, "auto").await, runs, "{rows:?}");
    }
    // Tried request by request at first.
    for rows in [Rows::Mixed, Rows::NoGraph] {
        let model = Model { rows, ..Model::default() };
        assert_eq!(rows_of_runs(model, "independent").await, [1, 2, 1, 1], "{rows:?}");
    }
}

#[test]
fn the_page_says_why_requests_are_joined_or_not() {
    for (rows, want) in [
        (Rows::Proven, (true, "rows are independent, proven from the graph")),
        (Rows::Mixed, (false, "rows are mixed: node \"model/mean\" (Mean) adds up the rows")),
        (Rows::NoGraph, (false, "rows are unknown: the model has no graph that can be read")),
    ] {
        let place = Place::of(&Model { rows, ..Model::default() }, |_| ());
        assert_eq!(joining(&place), (want.0, want.1.to_owned()));
    }
}

#[test]
fn company_that_real_requests_seldom_have_refutes_a_proof_before_the_first_request() {
    for (answer, place) in [
        (Answer::Centred, "number 1; "),
        (Answer::SpreadsNan, "NaN"),
        (Answer::DoublesLastOf(3), ""),
        (Answer::DoublesLastOf(64), "(64 in all"),
    ] {
        let shown = sampled(with(answer), |_| ());
        let (joins, why) = joining(&shown);
        assert!(!joins, "{answer:?}: {why}");
        assert!(why.contains("depend on the other requests in the batch"), "{why}");
        assert!(why.contains(place), "{answer:?}: {why}");
        // All of it on a thread that no request waits for.
        assert!(!shown.fake.sample_runs().is_empty());
        assert!(shown.fake.runs().is_empty());
    }
}

#[test]
fn outputs_that_cannot_be_split_are_found_before_the_first_request() {
    let place = sampled(with(Answer::OneRowTooMany), |_| ());
    let why = "its outputs do not have the batch's 0-th dimension";
    assert_eq!(joining(&place), (false, why.to_owned()));
}

#[test]
fn errors_of_the_model_refute_nothing() {
    let model = Model { fails_on: Some(-1.0), ..Model::default() };
    let place = sampled(model, |_| ());
    assert!(joining(&place).0);
    assert!(place.fake.sample_runs().iter().any(|run| run.rows() == 64));
}

#[test]
fn samples_run_only_where_they_can_end_joining() {
    for (rows, batching) in [(Rows::NoGraph, "auto"), (Rows::Proven, "on"), (Rows::Proven, "off")] {
        let place = sampled(Model { rows, ..Model::default() }, |settings| {
            settings.batching.batching = Some(batching.to_owned());
        });
        assert!(place.fake.sample_runs().is_empty(), "{rows:?} {batching}");
    }
}

#[test]
fn what_samples_found_stays_found_under_other_parameters() {
    let place = sampled(with(Answer::Centred), |_| ());
    let (_, found) = joining(&place);
    let change = |body: &str| {
        let path = "/api/v1/models/m/batching";
        let headers = [("Content-Type", "application/json")];
        request(place.server.address, "POST", path, &headers, body.as_bytes())
    };
    let answer = change("{\"max_batch_size\": 7, \"rows\": \"independent\"}");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(joining(&place), (false, found));
    let answer = change("{\"rows\": \"dependent\"}");
    assert_eq!(
        (answer.status, answer.error()),
        (400, "rows: \"dependent\" is not auto or independent".into())
    );
}

/// `tensorflow_model_server --enable_batching` with a model whose output for one row is a scalar.
fn scalar_server() -> model_server::Place {
    let flags = ["--model_name=aocr", "--model_base_path=ROOT/aocr", "--enable_batching"];
    model_server::Place::start(&flags, |root: &Path| {
        copy(&data("reports/zero_d_output/aocr"), &root.join("aocr"));
    })
}

#[test]
fn a_scalar_output_is_an_error_with_batching_as_in_tensorflow_serving() {
    let place = scalar_server();
    let text =
        |length: usize| serde_json::json!({"b64": BASE64_STANDARD.encode("x".repeat(length))});
    let ask = |texts: &[usize]| -> HttpAnswer {
        let texts: Vec<Value> = texts.iter().map(|&length| text(length)).collect();
        let body = serde_json::json!({"inputs": {"input": texts}}).to_string();
        post(place.process.address, "/v1/models/aocr:predict", &body)
    };
    place.wait_until("the model serves", |_| ask(&[1, 2]).status == 200);
    thread::scope(|scope| {
        for client in 0..8 {
            let ask = &ask;
            scope.spawn(move || {
                for round in 0..50 {
                    let length = 1 + (client + round) % 9;
                    let alone = ask(&[length]);
                    let error = "Batched output tensor has 0 dimensions";
                    assert_eq!((alone.status, alone.error().as_str()), (400, error));
                    let two = ask(&[length, 3]);
                    assert_eq!(two.status, 200, "{}", two.text());
                    let want = serde_json::json!([format!("{length}-LAB"), "3-LAB"]);
                    assert_eq!(two.json()["outputs"]["output"], want);
                }
            });
        }
    });
}
