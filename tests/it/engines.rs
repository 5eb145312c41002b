//! SavedModels in another engine: what takes over must compute the same, requests never notice, and the first difference
//! ends it.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::fake::{Answer, Model, OtherForm};
use crate::support::place::Place;
use crate::support::process::{
    Process, is_running, kill, model_processes, run, signal, tensorserve,
};
use crate::support::server::TestServer;
use crate::support::{client, copy, project, wait_until};

const OTHER: OtherForm = OtherForm {
    answer: Answer::Echo,
    cpu_micros: 100,
    is_gated: false,
    fails_on: None,
    second_cpu_micros: None,
};

/// A model with this form in another engine.
fn place(other_form: OtherForm, engine: &str) -> Place {
    let model = Model { cpu_micros: 1000, other_form: Some(other_form), ..Model::default() };
    Place::of(&model, |settings| settings.each.engine = Some(engine.to_owned()))
}

fn is_known(found: &Value) -> bool {
    found["state"] == "optimized" || found["state"] == "unchanged"
}

fn found(server: &TestServer) -> Value {
    server.get("/api/v1/models/m").json()["versions"][0]["other_engine"].clone()
}

fn decided(server: &TestServer) -> Value {
    server.wait_until("the engine is judged", |server| is_known(&found(server)));
    found(server)
}

fn predicted(place: &Place, value: &str) -> Value {
    place.predict("m", &format!("[[{value}]]")).json()["predictions"][0][0].clone()
}

#[test]
fn an_engine_takes_over_if_it_is_wanted_or_worth_it() {
    let slow = OtherForm { cpu_micros: 1000, ..OTHER };
    assert_eq!(found(&place(OTHER, "tensorflow").server), Value::Null);
    let cases = [
        (OTHER, "auto", "optimized", "another form"),
        (slow, "auto", "unchanged", "must take at most 0.85"),
        (slow, "openvino", "optimized", "another form"),
    ];
    for (form, engine, state, text) in cases {
        let place = place(form, engine);
        let found = decided(&place.server);
        assert_eq!(found["state"], state, "{engine}: {found}");
        assert!(found["text"].to_string().contains(text), "{engine}: {found}");
        assert_eq!(predicted(&place, "7.0"), 7.0);
    }
}

#[test]
fn an_engine_that_computes_something_else_does_not_take_over() {
    for answer in [Answer::Constant(1.0), Answer::SpreadsNan, Answer::OneRowTooMany] {
        let place = place(OtherForm { answer, ..OTHER }, "openvino");
        let found = decided(&place.server);
        assert_eq!(found["state"], "unchanged", "{answer:?}: {found}");
        assert_eq!(predicted(&place, "7.0"), 7.0);
    }
}

#[test]
fn an_engine_runs_up_to_the_numbers_for_which_it_computes_the_same() {
    let answer = Answer::ScalesBeyond(1000.0, 2.0);
    let place = place(OtherForm { answer, ..OTHER }, "openvino");
    let found = decided(&place.server);
    assert_eq!(found["state"], "optimized", "{found}");
    assert!(found["text"].to_string().contains("floats beyond 256 run without it"), "{found}");
    for value in ["7.0", "256.0", "257.0", "1500.0", "-1e9", "1e13"] {
        let expected: f64 = value.parse().expect("a number");
        assert_eq!(predicted(&place, value).as_f64(), Some(expected), "{value}");
    }
    let state = self::found(&place.server);
    assert_eq!(state["state"], "optimized", "it was not asked about larger ones: {state}");
}

#[test]
fn the_first_difference_in_production_ends_it_without_a_wrong_answer() {
    // No input of the comparison has this value.
    let place = place(OtherForm { answer: Answer::Spreads(1234.5), ..OTHER }, "openvino");
    assert_eq!(decided(&place.server)["state"], "optimized");
    let second = || place.predict("m", "[[1234.5, 2.0]]").json()["predictions"][0][1].clone();
    assert_eq!(second(), 2.0, "the first request is compared");
    let found = found(&place.server);
    assert_eq!(found["state"], "unchanged", "{found}");
    assert!(found["text"].to_string().contains("something else for a request"), "{found}");
    place.server.wait_until("one form is left", |_| place.fake.alive() == 1);
    assert_eq!(second(), 2.0);
    for result in ["took_over", "differed"] {
        let series = format!(
            "tensorserve_other_forms_total{{model=\"m\",kind=\"other_engine\",result=\"{result}\"}}"
        );
        assert_eq!(place.metric(&series), Some(1.0), "{series}");
    }
}

/// A server of these models of this project, on OpenVINO.
fn serve(root: &Path) -> Process {
    let mut command = tensorserve(&["serve", "--engine", "openvino", "--log-level", "off"]);
    command.args(["--http-port", "0", "--grpc-port", "0"]).arg(root);
    Process::start(command)
}

fn state(server: &Process, model: &str) -> Value {
    let shown = client::get(server.address, &format!("/api/v1/models/{model}")).json();
    shown["versions"][0]["other_engine"].clone()
}

fn predict(server: &Process, model: &str, body: &Value) -> client::Answer {
    client::post(server.address, &format!("/v1/models/{model}:predict"), body.to_string())
}

#[test]
fn openvino_runs_saved_models_and_its_end_fails_no_request() {
    let root = tempfile::tempdir().expect("a directory");
    for model in ["half_plus_two", "recommender", "text_normalizer"] {
        copy(&project(&format!("models/{model}")), &root.path().join(model));
    }
    let server = serve(root.path());
    for (model, expected, text) in [
        ("half_plus_two", "optimized", "OpenVINO runs signature"),
        ("recommender", "optimized", "OpenVINO runs signature"),
        ("text_normalizer", "unchanged", "neither floats nor integers"),
    ] {
        wait_until("the engine is judged", || is_known(&state(&server, model)));
        let found = state(&server, model);
        assert_eq!(found["state"], expected, "{model}: {found}");
        assert!(found["text"].to_string().contains(text), "{model}: {found}");
    }
    let half = |values: Value| predict(&server, "half_plus_two", &json!({"instances": values}));
    let expected = json!({"predictions": [2.5, 3.0, 4.5]});
    assert_eq!(half(json!([1.0, 2.0, 5.0])).json(), expected);
    // A shape that comes often gets a copy of the model.
    for _ in 0..60 {
        assert_eq!(half(json!([1.0, 2.0, 5.0])).json(), expected);
    }
    // What OpenVINO may compute differently runs in libtensorflow.
    let none = predict(&server, "half_plus_two", &json!({"inputs": []}));
    assert_eq!(none.json(), json!({"outputs": []}));
    let ids = |user: i64, item: i64| {
        let body =
            json!({"inputs": {"user_id": [user], "item_id": [item], "features": [vec![0.5; 13]]}});
        predict(&server, "recommender", &body)
    };
    let (known, unknown, negative) = (ids(3, 5), ids(1 << 40, 5), ids(-1, 5));
    for answer in [&known, &unknown, &negative] {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(unknown.json(), negative.json(), "both are out of the vocabulary");
    assert_ne!(known.json(), unknown.json());

    let processes = model_processes(&server);
    assert_eq!(processes.len(), 2, "one for each model that OpenVINO runs");
    for process in &processes {
        kill(*process);
    }
    for _ in 0..20 {
        let answer = half(json!([1.0, 2.0, 5.0]));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json(), expected);
    }
    wait_until("they have ended", || !processes.iter().any(|process| is_running(*process)));
    wait_until("others run", || model_processes(&server).len() == 2);
    for process in model_processes(&server) {
        signal(process, "STOP");
    }
    let answer = half(json!([1.0, 2.0, 5.0]));
    assert_eq!((answer.status, answer.json()), (200, expected), "a stopped process");
}

#[test]
fn inspect_says_what_other_forms_gain() {
    let ended =
        run(&["inspect", "--measure", &project("models/half_plus_two").display().to_string()]);
    assert!(ended.status.success(), "{}", ended.stderr);
    for part in [
        "OpenVINO may run signature",
        "measured on this machine",
        "optimization  ",
        "other engine  ",
    ] {
        assert!(ended.stdout.contains(part), "{part} is not in: {}", ended.stdout);
    }
    let refused = run(&["inspect", "--measure", "http://127.0.0.1:1/v1/models/m"]);
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("--measure loads models"), "{}", refused.stderr);
}
