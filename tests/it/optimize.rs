//! Versions that run in another form after their load: what takes over must compute the same and take less CPU time,
//! and no request notices.

use std::path::Path;

use serde_json::Value;
use tensorserve::config::Settings;

use crate::support::fake::{Answer, Model, OtherForm};
use crate::support::place::Place;
use crate::support::server::TestServer;
use crate::support::{copy, project};

/// A model that takes a millisecond, and another form that takes a tenth.
fn with(other_form: OtherForm) -> Model {
    Model { cpu_micros: 1000, other_form: Some(other_form), ..Model::default() }
}

const QUICKER: OtherForm = OtherForm {
    answer: Answer::Echo,
    cpu_micros: 100,
    is_gated: false,
    fails_on: None,
    second_cpu_micros: None,
};

/// What the server says of the other form of version 1 of a model.
fn found(server: &TestServer, model: &str) -> Value {
    let shown = server.get(&format!("/api/v1/models/{model}")).json();
    shown["versions"][0]["optimization"].clone()
}

/// The same, once it is known.
fn decided(server: &TestServer, model: &str) -> Value {
    let is_known = |found: Value| found["state"] == "optimized" || found["state"] == "unchanged";
    server.wait_until("the other form is judged", |server| is_known(found(server, model)));
    found(server, model)
}

fn place(model: &Model) -> Place {
    Place::of(model, |settings| settings.each.optimize = Some("exact".to_owned()))
}

#[test]
fn a_form_that_computes_the_same_in_less_time_takes_over() {
    let place = place(&with(QUICKER));
    let found = decided(&place.server, "m");
    place.server.wait_until("nothing is left to do", |_| {
        place.metric("tensorserve_optimizing_versions") == Some(0.0)
    });
    assert_eq!((&found["state"], &found["text"]), (&"optimized".into(), &"another form".into()));
    let (cpu, compared) = (found["cpu"].as_f64(), found["compared"].as_u64());
    assert!(cpu.is_some_and(|cpu| cpu < 0.5), "{found}");
    assert!(compared.is_some_and(|compared| compared >= 30), "{found}");
    // The first form has left memory.
    place.server.wait_until("one form is left", |_| place.fake.alive() == 1);
    assert_eq!(place.predict("m", "[[7.0, 8.0]]").json()["predictions"][0][1], 8.0);
}

#[test]
fn of_the_forms_of_a_group_the_quickest_takes_over() {
    for (first, second, text) in
        [(600, 100, "a second form"), (100, 600, "another form"), (990, 100, "a second form")]
    {
        let forms = OtherForm { cpu_micros: first, second_cpu_micros: Some(second), ..QUICKER };
        let place = place(&with(forms));
        let found = decided(&place.server, "m");
        assert_eq!((&found["state"], &found["text"]), (&"optimized".into(), &text.into()));
        place.server.wait_until("one form is left", |_| place.fake.alive() == 1);
    }
}

#[test]
fn a_form_that_computes_something_else_does_not() {
    let different = [
        (Answer::Constant(1.0), "float[0] instead of float[0,1]) for no rows"),
        (Answer::SpreadsNan, "for 10 samples together"),
        (Answer::DoublesLastOf(32), "for irregular values in 32 rows"),
        (Answer::OneRowTooMany, "another output \"y\""),
        (Answer::ScalesBeyond(1000.0, 2.0), "for floats up to 4096 in 2 rows"),
    ];
    for (answer, why) in different {
        let place = place(&with(OtherForm { answer, ..QUICKER }));
        let found = decided(&place.server, "m");
        assert_eq!(found["state"], "unchanged", "{answer:?}");
        let text = found["text"].as_str().unwrap_or_default();
        assert!(text.starts_with("another form, but signature \"serving_default\" has"), "{text}");
        assert!(text.contains(why), "{answer:?}: {text}");
        place.server.wait_until("one form is left", |_| place.fake.alive() == 1);
        assert_eq!(place.predict("m", "[[7.0]]").json()["predictions"][0][0], 7.0);
    }
}

#[test]
fn a_form_that_may_round_runs_up_to_the_numbers_for_which_it_computes_the_same() {
    let model = with(OtherForm { answer: Answer::ScalesBeyond(1000.0, 2.0), ..QUICKER });
    let place = Place::of(&model, |settings| settings.each.optimize = Some("fast".to_owned()));
    let found = decided(&place.server, "m");
    let text = found["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("another form; requests with floats beyond 256 run"), "{found}");
    for value in ["7.0", "256.0", "257.0", "1500.0", "-1e9", "1e13"] {
        let expected: f64 = value.parse().expect("a number");
        let answer = place.predict("m", &format!("[[{value}]]")).json();
        assert_eq!(answer["predictions"][0][0].as_f64(), Some(expected), "{value}");
    }
}

#[test]
fn only_what_can_stay_beside_its_form_may_round() {
    let form = OtherForm { answer: Answer::ScalesBeyond(0.0, 1.0 + 1e-5), ..QUICKER };
    for (bytes, mode, state) in [
        (1 << 20, "fast", "optimized"),
        (1 << 20, "exact", "unchanged"),
        (64 << 20, "fast", "optimized"),
        ((64 << 20) + 1, "fast", "unchanged"),
    ] {
        let model = Model { bytes, ..with(form) };
        let place = Place::of(&model, |settings| settings.each.optimize = Some(mode.to_owned()));
        let found = decided(&place.server, "m");
        assert_eq!(found["state"], state, "{bytes} {mode}: {found}");
        let is_other = found["text"].to_string().contains("another output");
        assert_eq!(is_other, state == "unchanged", "{bytes} {mode}: {found}");
        assert_eq!(place.predict("m", "[[2e12]]").json()["predictions"][0][0], 2e12, "{mode}");
    }
}

#[test]
fn errors_must_be_the_same_too() {
    for (fails_on, other) in [(Some(-1.0), None), (None, Some(-1.0))] {
        let form = OtherForm { fails_on: other, ..QUICKER };
        let place = place(&Model { fails_on, ..with(form) });
        let found = decided(&place.server, "m");
        assert_eq!(found["state"], "unchanged");
        assert!(found["text"].to_string().contains("error"), "{found}");
    }
    let form = OtherForm { fails_on: Some(-1.0), ..QUICKER };
    let place = place(&Model { fails_on: Some(-1.0), ..with(form) });
    assert_eq!(decided(&place.server, "m")["state"], "optimized");
}

#[test]
fn a_form_that_takes_as_long_does_not_take_over() {
    let place = place(&with(OtherForm { cpu_micros: 1000, ..QUICKER }));
    let found = decided(&place.server, "m");
    assert_eq!(found["state"], "unchanged", "{found}");
    assert!(
        found["text"].to_string().contains("of the CPU time, and must take at most"),
        "{found}"
    );
}

#[test]
fn nothing_is_made_where_it_is_not_wanted() {
    let place = Place::of(&with(QUICKER), |_| ());
    assert_eq!(found(&place.server, "m")["text"], "optimize is off");
    assert!(place.fake.runs().is_empty());
    let cold = |settings: &mut Settings| {
        settings.each.optimize = Some("exact".to_owned());
        settings.each.warm_up = Some(false);
    };
    let place = Place::of(&with(QUICKER), cold);
    let found = decided(&place.server, "m");
    assert_eq!(found["text"], "it was not warmed up (warm_up is false)");
    assert!(place.fake.runs().is_empty());
}

#[test]
fn a_version_serves_and_is_unloaded_while_its_other_form_is_made() {
    let place = place(&with(OtherForm { is_gated: true, ..QUICKER }));
    place.wait_for_load_at_gate();
    assert_eq!(found(&place.server, "m")["state"], "running");
    assert_eq!(place.predict("m", "[[7.0]]").json()["predictions"][0][0], 7.0);
    place.write("models/m/2", &Model::constant(2.0));
    place.wait_for_state("m", 2, "AVAILABLE");
    place.wait_for_state("m", 1, "END");
    place.fake.loads_gate().open();
    place.server.wait_until("the second version is left", |_| place.fake.alive() == 1);
    assert_eq!(place.constant("m"), Some(2.0));
}

#[test]
fn other_batching_parameters_do_not_end_it() {
    let place = place(&with(OtherForm { is_gated: true, ..QUICKER }));
    place.wait_for_load_at_gate();
    let changed = place.server.post("/api/v1/models/m/batching", r#"{"max_batch_size": 7}"#);
    assert_eq!(changed.status, 200, "{}", changed.text());
    place.fake.loads_gate().open();
    assert_eq!(decided(&place.server, "m")["state"], "optimized");
}

/// The models of this project, in the form that the server finds for them.
#[test]
fn variables_of_saved_models_become_constants() {
    let root = tempfile::tempdir().expect("a directory");
    for model in ["half_plus_two", "recommender", "wide_mlp"] {
        copy(&project(&format!("models/{model}")), &root.path().join(model));
    }
    let server = |optimize: &str, path: &Path| {
        let optimize = Some(optimize.to_owned());
        let server = TestServer::with(path, |settings| settings.each.optimize = optimize);
        server.wait_until_started();
        server
    };
    let (as_it_is, optimized) = (server("off", root.path()), server("exact", root.path()));
    for model in ["half_plus_two", "recommender", "wide_mlp"] {
        let found = decided(&optimized, model);
        println!("{model}: {found}");
        let examples = optimized.get(&format!("/api/v1/models/{model}")).json();
        for signature in examples["versions"][0]["signatures"].as_array().expect("signatures") {
            let body = signature["example"]["data"].to_string();
            let path = format!("/v1/models/{model}:predict");
            let answers = [&as_it_is, &optimized].map(|server| server.post(&path, &body).text());
            assert_eq!(answers[0], answers[1], "{model}");
        }
    }
    // A ReLU that is fused with a product makes 0 of NaN, another one does not.
    for value in ["NaN", "-Infinity", "3.4e38", "1.1e12", "1e12"] {
        let features = [value; 13].join(", ");
        let body = format!(
            r#"{{"instances": [{{"user_id": 1, "item_id": 2, "features": [{features}]}}]}}"#
        );
        let path = "/v1/models/recommender:predict";
        let answers = [&as_it_is, &optimized].map(|server| server.post(path, &body));
        assert_eq!(answers[0].status, 200, "{value}: {}", answers[0].text());
        assert_eq!(answers[0].text(), answers[1].text(), "{value}");
    }
    // Nor is the order of sums the same with `fast`.
    let rounded = server("fast", root.path());
    decided(&rounded, "recommender");
    for values in ["NaN, 1", "Infinity, -Infinity", "3.4e38, -3.4e38", "1.1e12, 1"] {
        let features = [values; 6].join(", ");
        let body = format!(
            r#"{{"instances": [{{"user_id": 1, "item_id": 2, "features": [{features}, 0]}}]}}"#
        );
        let path = "/v1/models/recommender:predict";
        let answers = [&as_it_is, &rounded].map(|server| server.post(path, &body));
        assert_eq!(answers[0].status, 200, "{values}: {}", answers[0].text());
        assert_eq!(answers[0].text(), answers[1].text(), "{values}");
    }
    // It computes the same to the bit; whether it is quicker, a busy machine does not always show.
    let found = decided(&optimized, "recommender");
    assert!(found["text"].to_string().contains("8 reads of variables are constants"), "{found}");
    let is_judged_by_time = found["text"].to_string().contains("of the CPU time");
    assert!(found["state"] == "optimized" || is_judged_by_time, "{found}");
}
