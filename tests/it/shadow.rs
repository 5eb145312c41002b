//! Shadow versions: copies of requests run on them, and what they answer is compared.

use std::time::{Duration, Instant};

use serde_json::json;
use tensorserve::config::{ModelSettings, Settings};

use crate::support::client::Client;
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::server::{config, settings};
use crate::support::wait;

/// The model `m`, of which version 1 answers, and version 2 is the shadow.
fn model(root: &std::path::Path, shadow: Option<&str>) -> ModelSettings {
    let mut model = ModelSettings {
        name: Some("m".to_owned()),
        path: Some(root.join("models/m")),
        labels: [("canary".to_owned(), 2), ("stable".to_owned(), 1)].into(),
        split: [("stable".to_owned(), 1)].into(),
        shadow: shadow.map(str::to_owned),
        ..ModelSettings::default()
    };
    model.each.version_policy = Some("all".to_owned());
    model
}

fn serve_with(one: Model, two: Model, change: impl FnOnce(&mut Settings)) -> Place {
    let place = Place::with(&[("models/m/1", one), ("models/m/2", two)], |settings, root| {
        settings.models.push(model(root, Some("canary")));
        change(settings);
    });
    place.server.wait_until_started();
    place
}

fn serve(one: Model, two: Model) -> Place {
    serve_with(one, two, |_| ())
}

/// The shadow requests that were the same, different, failed and dropped.
fn counts(place: &Place) -> [f64; 4] {
    ["same", "different", "failed", "dropped"].map(|result| {
        let series =
            format!("tensorserve_shadow_requests_total{{model=\"m\",result=\"{result}\"}}");
        place.metric(&series).expect("a series from the start")
    })
}

fn wait_for(place: &Place, expected: [f64; 4]) {
    let start = Instant::now();
    while counts(place) != expected {
        assert!(start.elapsed() < Duration::from_secs(300), "{:?}", counts(place));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn answers_one(place: &Place, instances: &str) {
    let answer = place.predict("m", instances);
    assert_eq!(answer.json(), json!({"predictions": [1.0]}), "{}", answer.text());
}

#[test]
fn equal_and_different_answers_are_counted() {
    let place = serve(Model::constant(1.0), Model::constant(1.0));
    assert_eq!(counts(&place), [0.0; 4]);
    answers_one(&place, "[[0]]");
    wait_for(&place, [1.0, 0.0, 0.0, 0.0]);
    let place = serve(Model::constant(1.0), Model::constant(1.0001));
    answers_one(&place, "[[0]]");
    wait_for(&place, [1.0, 0.0, 0.0, 0.0]);
    let place = serve(Model::constant(1.0), Model::constant(1.01));
    answers_one(&place, "[[0]]");
    answers_one(&place, "[[1]]");
    wait_for(&place, [0.0, 2.0, 0.0, 0.0]);
    // Its runs are counted with its version; requests are those of clients.
    let of = |name: &str, version: u32, rest: &str| {
        let labels = format!("model=\"m\",version=\"{version}\",signature=\"serving_default\"");
        place.metric(&format!("tensorserve_{name}{{{labels}{rest}}}"))
    };
    let rest = ",protocol=\"tfs_rest\",method=\"predict\",code=\"OK\"";
    assert_eq!(of("requests_total", 1, rest), Some(2.0));
    assert_eq!(of("requests_total", 2, rest), None);
    assert_eq!(of("run_duration_seconds_count", 1, ""), Some(2.0));
    assert_eq!(of("run_duration_seconds_count", 2, ""), Some(2.0));
    assert_eq!(of("batch_rows_sum", 2, ""), Some(2.0));
}

#[test]
fn what_the_shadow_answers_itself_is_not_copied() {
    let place = serve(Model::constant(1.0), Model::constant(2.0));
    assert_eq!(place.constant("m/labels/canary"), Some(2.0));
    assert_eq!(place.constant("m/versions/2"), Some(2.0));
    assert_eq!(place.constant("m/versions/1"), Some(1.0));
    wait_for(&place, [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn signatures_are_found_by_name() {
    // Version 1 has two signatures before serving_default.
    let one = Model { takes_examples: true, ..Model::constant(1.0) };
    let place = serve(one, Model::constant(1.0));
    answers_one(&place, "[[0]]");
    wait_for(&place, [1.0, 0.0, 0.0, 0.0]);
    let body = r#"{"signature_name": "regress", "examples": [{"x": 1.0}]}"#;
    let answer = place.server.post("/v1/models/m:regress", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    wait_for(&place, [1.0, 0.0, 1.0, 0.0]);
}

#[test]
fn a_shadow_that_fails_or_panics_is_not_noticed_by_clients() {
    let two = Model { fails_on: Some(8.0), panics_on: Some(9.0), ..Model::constant(1.0) };
    let place = serve(Model::constant(1.0), two);
    for (instances, expected) in [
        ("[[8]]", [0.0, 0.0, 1.0, 0.0]),
        ("[[9]]", [0.0, 0.0, 2.0, 0.0]),
        ("[[7]]", [1.0, 0.0, 2.0, 0.0]),
    ] {
        answers_one(&place, instances);
        wait_for(&place, expected);
    }
    assert_eq!(place.metric("tensorserve_panics_total"), Some(1.0));
}

#[test]
fn requests_that_fail_are_not_copied() {
    let one = Model { fails_on: Some(8.0), ..Model::constant(1.0) };
    let place = serve(one, Model::constant(1.0));
    assert_eq!(place.predict("m", "[[8]]").status, 400);
    answers_one(&place, "[[0]]");
    wait_for(&place, [1.0, 0.0, 0.0, 0.0]);
    let runs = place.fake.runs();
    assert_eq!(runs.len(), 3, "{runs:?}");
    assert_eq!(runs.iter().filter(|run| run.thread == "shadow").count(), 1);
}

#[test]
fn a_shadow_that_hangs_delays_nobody_and_more_copies_are_dropped() {
    let two = Model { is_gated: true, ..Model::constant(1.0) };
    let place = serve_with(Model::constant(1.0), two, |settings| {
        settings.server.max_shadow_requests = Some(2);
        settings.server.num_batch_threads = Some(1);
        settings.server.http_threads = Some(1);
    });
    let mut client = Client::connect(place.server.address).expect("connects");
    for _ in 0..50 {
        let body = br#"{"instances": [[0.0]]}"#;
        let answer = client.request("POST", "/v1/models/m:predict", &[], body).expect("an answer");
        assert_eq!(answer.json(), json!({"predictions": [1.0]}));
    }
    wait_for(&place, [0.0, 0.0, 0.0, 48.0]);
    place.fake.runs_gate().open();
    wait_for(&place, [2.0, 0.0, 0.0, 48.0]);
    answers_one(&place, "[[0]]");
    wait_for(&place, [3.0, 0.0, 0.0, 48.0]);
}

#[test]
fn a_shadow_past_its_deadline_has_failed_or_was_not_run() {
    let two = Model { is_gated: true, ..Model::constant(1.0) };
    let place = serve_with(Model::constant(1.0), two, |settings| {
        settings.server.max_shadow_requests = Some(64);
        settings.server.request_timeout = Some("300ms".parse().expect("a duration"));
    });
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(64);
    (0..threads + 3).for_each(|_| answers_one(&place, "[[0]]"));
    place.wait_for_runs_at_gate(threads);
    std::thread::sleep(Duration::from_millis(400));
    place.fake.runs_gate().open();
    // The fake platform does not cancel runs; those that waited are not run any more.
    #[allow(clippy::cast_precision_loss)]
    wait_for(&place, [threads as f64, 0.0, 0.0, 3.0]);
}

#[test]
fn copies_have_a_limit_of_memory() {
    let echo = || Model { is_gated: false, ..Model::default() };
    let place = serve_with(echo(), echo(), |settings| {
        settings.server.max_request_memory = Some("16MiB".parse().expect("a size"));
    });
    // Copies may take 2 MiB: one of 1.2 MB with its response, twice, does not fit.
    let row = vec!["0.5"; 300_000].join(",");
    let answer = place.predict("m", &format!("[[{row}]]"));
    assert_eq!(answer.status, 200);
    wait_for(&place, [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(place.predict("m", "[[0.5]]").status, 200);
    wait_for(&place, [1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn a_shadow_that_may_change_its_state_is_run_too() {
    let two = Model { read_only: false, ..Model::constant(1.0) };
    let place = serve(Model::constant(1.0), two);
    answers_one(&place, "[[0]]");
    wait_for(&place, [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_shadow_follows_the_configuration_and_is_unloaded() {
    let place = serve(Model::constant(1.0), Model::constant(2.0));
    answers_one(&place, "[[0]]");
    wait_for(&place, [0.0, 1.0, 0.0, 0.0]);
    let reload = |shadow: Option<&str>, policy: &str| {
        let mut settings = settings();
        let mut model = model(&place.path(""), shadow);
        model.each.version_policy = Some(policy.to_owned());
        settings.models.push(model);
        wait(place.server.engine.reload(config(settings).repository.sources)).expect("reloads");
    };
    reload(None, "all");
    answers_one(&place, "[[0]]");
    reload(Some("canary"), "all");
    answers_one(&place, "[[0]]");
    wait_for(&place, [0.0, 2.0, 0.0, 0.0]);
    reload(Some("canary"), "specific:1");
    place.wait_for_state("m", 2, "END");
    assert_eq!(place.fake.alive(), 1);
    answers_one(&place, "[[0]]");
    assert_eq!(place.fake.runs().iter().filter(|run| run.thread == "shadow").count(), 2);
}
