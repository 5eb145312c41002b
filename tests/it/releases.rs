//! Gated releases: a new version takes traffic only if it answers recorded requests as the one before does.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensorserve::config::Settings;

use crate::support::client::{self, Answer};
use crate::support::fake::Answer::{Echo, Spreads};
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::saved_model::{
    FLOAT, SavedModel, a_float_tensor, a_type, node, placeholder, signature, tensor,
};
use crate::support::{pause_between_requests, wait_until};

/// The gated model `m` with version 1, whose requests are logged.
fn serve_with(one: &Model, change: impl FnOnce(&mut Settings)) -> Place {
    let place = Place::with(&[("models/m/1", one.clone())], |settings, root| {
        settings.paths.push(root.join("models"));
        settings.each.release = Some("gated".to_owned());
        settings.each.release_watch = Some("0s".parse().expect("a duration"));
        // Runs of fake models take microseconds, whose ratio is chance.
        settings.each.release_max_slowdown = Some(1000.0);
        settings.each.request_log = Some(root.join("log/"));
        settings.server.release_state = Some(root.join("held"));
        change(settings);
    });
    place.server.wait_until_started();
    place
}

fn serve(one: &Model) -> Place {
    let place = serve_with(one, |_| ());
    send(&place, 1..=40);
    place
}

/// Requests with these values, which must succeed.
fn send(place: &Place, values: impl IntoIterator<Item = u32>) {
    for value in values {
        let answer = place.predict("m", &format!("[[{value}]]"));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

fn version(place: &Place, number: i64) -> Value {
    client::version(place.server.address, "m", number)
}

/// Waits until the version is in this state.
fn wait_for(place: &Place, number: i64, state: &str) -> Value {
    let mut found = Value::Null;
    wait_until(&format!("version {number} is {state}"), || {
        found = version(place, number);
        found["state"] == state
    });
    found
}

/// A new version is held, for a reason that contains `why`, and version 1 answers.
fn is_held(place: &Place, number: i64, why: &str) {
    let held = wait_for(place, number, "HELD");
    let error = held["error"].as_str().unwrap_or_default();
    assert!(error.contains(why), "{held}");
    assert_eq!(held["trial"]["accepted"], false);
    assert_eq!(version(place, 1)["state"], "AVAILABLE");
}

fn post(place: &Place, path: &str) -> Answer {
    place.server.post(&format!("/api/v1/models/m/versions/{path}"), "{}")
}

#[test]
fn a_version_that_answers_alike_takes_traffic() {
    let place = serve(&Model::constant(1.0));
    place.write("models/m/2", &Model::constant(1.0001));
    let released = wait_for(&place, 2, "AVAILABLE");
    assert_eq!(released["trial"]["accepted"], true);
    assert_eq!(released["trial"]["requests"], 40);
    wait_until("version 1 is unloaded", || version(&place, 1)["state"] == "END");
    assert_eq!(place.constant("m"), Some(1.0001));
}

#[test]
fn a_version_with_other_values_is_held_and_can_be_released() {
    let place = serve(&Model::constant(1.0));
    place.write("models/m/2", &Model::constant(1.5));
    is_held(&place, 2, "values differ by more than allowed in 40 of 40 requests");
    assert_eq!(place.constant("m"), Some(1.0));
    assert_eq!(place.predict("m/versions/2", "[[1]]").status, 404);
    // It is told where clients and operators look.
    let status = place.server.get("/v1/models/m").json();
    let told = status["model_version_status"].as_array().expect("versions");
    let two = told.iter().find(|it| it["version"] == "2").expect("version 2");
    assert_eq!(two["state"], "LOADING");
    assert!(two["status"]["error_message"].as_str().expect("text").starts_with("held: "));
    let series = "tensorserve_model_versions{model=\"m\",state=\"held\"}";
    assert_eq!(place.metric(series), Some(1.0));
    // The server serves what it is to serve.
    assert_eq!(place.server.get("/readyz").status, 200);
    let refused = post(&place, "1/release");
    refused.assert_refused("it serves", 400, "version 1 of model m is not held: it is ready");
    post(&place, "7/release").assert_refused("unknown", 404, "model m has no version 7");
    assert_eq!(post(&place, "2/release").status, 200);
    wait_for(&place, 2, "AVAILABLE");
    assert_eq!(place.constant("m"), Some(1.5));
    wait_until("version 1 is unloaded", || version(&place, 1)["state"] == "END");
    let audit = place.server.get("/api/v1/audit").json();
    let outcomes: Vec<&str> = audit["entries"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|it| it["outcome"].as_str())
        .collect();
    assert_eq!(outcomes.iter().filter(|it| **it == "ok").count(), 1, "{audit}");
    let history = place.server.get("/api/v1/models/m").json()["history"].clone();
    let told: Vec<&str> =
        history.as_array().expect("a list").iter().filter_map(|it| it["what"].as_str()).collect();
    assert!(
        told.contains(&"held") && told.contains(&"release") && told.contains(&"trial"),
        "{told:?}"
    );
}

#[test]
fn a_held_version_can_be_dropped() {
    let place = serve(&Model::constant(1.0));
    place.write("models/m/2", &Model::constant(1.5));
    is_held(&place, 2, "values differ");
    assert_eq!(post(&place, "2/drop").status, 200);
    wait_for(&place, 2, "END");
    place.wait_for_looks("models");
    assert_eq!(
        (version(&place, 2)["state"].clone(), place.constant("m")),
        (json!("END"), Some(1.0))
    );
    assert_eq!(place.fake.alive(), 1);
    // The next version is tried as any other.
    place.write("models/m/3", &Model::constant(1.0));
    wait_for(&place, 3, "AVAILABLE");
    wait_for(&place, 1, "END");
}

#[test]
fn a_version_that_is_removed_or_replaced_while_it_is_held_goes() {
    let place = serve(&Model::constant(1.0));
    place.write("models/m/2", &Model::constant(1.5));
    is_held(&place, 2, "values differ");
    place.write("models/m/3", &Model::constant(1.6));
    is_held(&place, 3, "values differ");
    wait_for(&place, 2, "END");
    // Without version 3 it would be the latest again, and tried again.
    fs::remove_dir_all(place.path("models/m/2")).expect("removed");
    fs::remove_dir_all(place.path("models/m/3")).expect("removed");
    wait_for(&place, 3, "END");
    wait_for(&place, 1, "AVAILABLE");
    assert_eq!(place.constant("m"), Some(1.0));
    wait_until("the others leave memory", || place.fake.alive() == 1);
}

#[test]
fn a_version_that_fails_on_one_input_is_held() {
    let place = serve(&Model::constant(1.0));
    place.write("models/m/2", &Model { fails_on: Some(17.0), ..Model::constant(1.0) });
    is_held(&place, 2, "1 requests fail that the old version answers");
    place.write("models/m/3", &Model { panics_on: Some(17.0), ..Model::constant(1.0) });
    is_held(&place, 3, "1 requests fail that the old version answers");
}

#[test]
fn a_slower_version_is_held() {
    let slow = |millis| Model { run_millis: millis, ..Model::constant(1.0) };
    let place = serve_with(&slow(2), |settings| {
        settings.each.release_max_slowdown = Some(3.0);
    });
    send(&place, 1..=40);
    place.write("models/m/2", &slow(40));
    is_held(&place, 2, "times as long, and may take 3 times");
}

#[test]
fn a_missing_signature_is_held_unless_changes_are_allowed() {
    let one = Model { takes_examples: true, ..Model::constant(1.0) };
    let place = serve(&one);
    place.write("models/m/2", &Model::constant(1.0));
    is_held(&place, 2, "signature \"regress\" is missing");
    let place = serve_with(&one, |settings| settings.each.release_allow_changes = Some(true));
    send(&place, 1..=5);
    place.write("models/m/2", &Model::constant(1.0));
    wait_for(&place, 2, "AVAILABLE");
}

#[test]
fn without_recorded_requests_a_version_is_held() {
    let place = serve_with(&Model::constant(1.0), |settings| settings.each.request_log = None);
    send(&place, [1]);
    place.write("models/m/2", &Model::constant(1.0));
    is_held(&place, 2, "there are no recorded requests to try it with: set request_log");
}

#[test]
fn a_damaged_log_is_told_and_what_is_whole_counts() {
    let place = serve(&Model::constant(1.0));
    wait_until("the log is written", || {
        fs::read_dir(place.path("log")).is_ok_and(|it| it.count() == 1)
    });
    fs::write(place.path("log/m-99999999999-0001.tfrecord"), b"no records at all, but many bytes")
        .expect("written");
    place.write("models/m/2", &Model::constant(1.0));
    let released = wait_for(&place, 2, "AVAILABLE");
    let notes = released["trial"]["notes"][0].as_str().unwrap_or_default().to_owned();
    assert!(notes.contains("m-99999999999-0001.tfrecord: the rest is left out: "), "{released}");
    assert_eq!(released["trial"]["requests"], 40);
}

#[test]
fn a_damaged_file_of_recorded_requests_holds_its_version() {
    let place = serve(&Model::constant(1.0));
    let staged = place.path("staged");
    Model::constant(1.0).write(&staged);
    fs::create_dir_all(staged.join("assets.extra")).expect("a directory");
    let path = staged.join("assets.extra/tf_serving_warmup_requests");
    fs::write(path, b"no records at all, but many bytes").expect("written");
    fs::rename(&staged, place.path("models/m/2")).expect("renamed");
    // The warm-up refuses it before any trial.
    let failed = wait_for(&place, 2, "FAILED");
    assert!(failed["error"].as_str().expect("text").contains("TFRecord"), "{failed}");
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn rules_allow_what_they_say() {
    let place = serve_with(&Model::constant(1.0), |settings| {
        settings.each.release_tolerance = Some("y=0.6".parse().expect("a list"));
    });
    send(&place, 1..=5);
    place.write("models/m/2", &Model::constant(1.5));
    wait_for(&place, 2, "AVAILABLE");
    wait_for(&place, 1, "END");
    place.write("models/m/3", &Model::constant(3.0));
    let held = wait_for(&place, 3, "HELD");
    assert_eq!(version(&place, 2)["state"], "AVAILABLE", "{held}");
}

#[test]
fn going_back_needs_no_trial() {
    let place = serve(&Model::constant(1.0));
    place.write("models/m/2", &Model::constant(1.0));
    wait_for(&place, 2, "AVAILABLE");
    wait_for(&place, 1, "END");
    fs::remove_dir_all(place.path("models/m/1")).expect("removed");
    place.write("models/m/1", &Model::constant(9.0));
    fs::remove_dir_all(place.path("models/m/2")).expect("removed");
    wait_until("version 1 serves", || place.constant("m") == Some(9.0));
}

#[test]
fn a_run_that_hangs_ends_the_trial_of_nobody_else() {
    let place = serve(&Model::constant(1.0));
    place.write("models/other/1", &Model::constant(7.0));
    wait_until("the other model serves", || place.constant("other") == Some(7.0));
    // Its runs wait at a gate.
    place.write("models/m/2", &Model { is_gated: true, ..Model::constant(1.0) });
    wait_until("the trial runs", || place.fake.runs_gate().waiting() > 0);
    let answer = place.predict("m", "[[1]]");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!((place.constant("m"), place.constant("other")), (Some(1.0), Some(7.0)));
    assert_eq!(version(&place, 2)["state"], "TRIAL");
    // It is no longer wanted: its trial is given up, and it is unloaded.
    assert_eq!(post(&place, "2/drop").status, 200);
    place.fake.runs_gate().open();
    wait_for(&place, 2, "END");
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn live_errors_after_the_switch_bring_the_old_version_back() {
    let place = serve_with(&Model::constant(1.0), |settings| {
        settings.each.release_watch = Some("10m".parse().expect("a duration"));
    });
    send(&place, 1..=40);
    // No recorded request has the value that it fails on.
    place.write("models/m/2", &Model { fails_on: Some(99.0), ..Model::constant(1.0001) });
    wait_for(&place, 2, "AVAILABLE");
    assert_eq!(place.constant("m"), Some(1.0001));
    assert_eq!(
        version(&place, 1)["state"],
        "AVAILABLE",
        "it stays while the new version is watched"
    );
    let mut failed = 0;
    let sent = Instant::now();
    wait_until("version 1 serves again", || {
        let status = place.predict("m", "[[99]]").status;
        failed += u32::from(status != 200);
        assert!(status == 200 || status == 400, "{status}");
        status == 200
    });
    assert!(failed >= 5, "{failed}");
    assert!(sent.elapsed() < Duration::from_secs(10), "{:?}", sent.elapsed());
    let held = wait_for(&place, 2, "HELD");
    assert!(held["error"].as_str().expect("text").contains("live requests failed"), "{held}");
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn live_values_after_the_switch_bring_the_old_version_back() {
    let echo = Model { answer: Echo, ..Model::default() };
    let place = serve_with(&echo, |settings| {
        settings.each.release_watch = Some("10m".parse().expect("a duration"));
    });
    send(&place, 1..=40);
    // No recorded request has the value that it answers wrongly.
    place.write("models/m/2", &Model { answer: Spreads(99.0), ..Model::default() });
    wait_for(&place, 2, "AVAILABLE");
    let sent = Instant::now();
    let right = json!({"predictions": [[1.0], [99.0]]});
    wait_until("version 1 serves again", || {
        let answer = place.predict("m", "[[1], [99]]");
        assert_eq!(answer.status, 200, "{}", answer.text());
        pause_between_requests();
        answer.json() == right
    });
    assert!(sent.elapsed() < Duration::from_secs(10), "{:?}", sent.elapsed());
    let held = wait_for(&place, 2, "HELD");
    let error = held["error"].as_str().expect("text");
    assert!(error.contains("live requests: output \"y\": values differ by more"), "{held}");
}

#[test]
fn live_requests_that_change_something_run_once() {
    let place = serve_with(&Model { read_only: false, ..Model::default() }, |settings| {
        settings.each.release_watch = Some("10m".parse().expect("a duration"));
    });
    send(&place, 1..=40);
    place.write("models/m/2", &Model { read_only: false, ..Model::default() });
    wait_for(&place, 2, "AVAILABLE");
    let before = place.fake.runs().len();
    send(&place, 50..=60);
    thread::sleep(Duration::from_millis(300));
    send(&place, 61..=61);
    assert_eq!(place.fake.runs().len() - before, 12);
}

#[test]
fn a_watch_that_ends_well_unloads_the_old_version() {
    let place = serve_with(&Model::constant(1.0), |settings| {
        settings.each.release_watch = Some("300ms".parse().expect("a duration"));
    });
    send(&place, 1..=10);
    place.write("models/m/2", &Model::constant(1.0));
    wait_for(&place, 2, "AVAILABLE");
    wait_for(&place, 1, "END");
}

#[test]
fn no_request_is_lost_during_a_trial_and_a_switch() {
    let place = serve(&Model::constant(1.0));
    let stop = AtomicBool::new(false);
    let answered = thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut answered = 0u32;
                    while !stop.load(Relaxed) {
                        let answer = place.predict("m", "[[3]]");
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        answered += 1;
                        pause_between_requests();
                    }
                    answered
                })
            })
            .collect();
        place.write("models/m/2", &Model::constant(1.5));
        is_held(&place, 2, "values differ");
        place.write("models/m/3", &Model::constant(1.0));
        wait_for(&place, 3, "AVAILABLE");
        wait_for(&place, 1, "END");
        stop.store(true, Relaxed);
        clients.into_iter().map(|it| it.join().expect("a client")).sum::<u32>()
    });
    assert!(answered > 0);
}

/// `y = x * factor`.
fn write_product(folder: &Path, factor: f32) {
    let x = tensor("x:0", FLOAT, &[-1]);
    let signature = signature(&[("x", x)], &[("y", tensor("y:0", FLOAT, &[-1]))]);
    let of_float = [("T", a_type(FLOAT))];
    let constant = [("dtype", a_type(FLOAT)), ("value", a_float_tensor(&[], &[factor]))];
    let nodes = vec![
        placeholder("x", FLOAT, &[-1]),
        node("factor", "Const", &[], &constant),
        node("y", "Mul", &["x", "factor"], &of_float),
    ];
    let signatures = vec![("serving_default", signature)];
    SavedModel { nodes, signatures, ..SavedModel::default() }.write(folder);
}

#[test]
fn a_held_version_is_held_after_a_restart() {
    let root = tempfile::tempdir().expect("temporary directory");
    let at = |path: &str| root.path().join(path);
    let (models, log, state) = (at("m"), at("log/"), at("held"));
    write_product(&at("m/1"), 2.0);
    let words: Vec<String> = [
        "--release",
        "gated",
        "--request-log",
        &log.display().to_string(),
        "--release-state",
        &state.display().to_string(),
        "--release-watch",
        "0s",
        "--poll-interval",
        "50ms",
    ]
    .map(str::to_owned)
    .to_vec();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = |server: &Process| {
        let body = br#"{"instances": [1.0, 3.0]}"#;
        client::post(server.address, "/v1/models/m:predict", body).json()
    };
    let error_of = |server: &Process, number: i64| {
        let found = client::version(server.address, "m", number);
        found["error"].as_str().unwrap_or_default().to_owned()
    };
    let server = Process::serve(&models, &words);
    assert_eq!(answer(&server), json!({"predictions": [2.0, 6.0]}));
    write_product(&at("staged"), 5.0);
    fs::rename(at("staged"), at("m/2")).expect("renamed");
    wait_until("version 2 is held", || error_of(&server, 2).contains("values differ"));
    assert_eq!(answer(&server), json!({"predictions": [2.0, 6.0]}));
    drop(server);

    let server = Process::serve(&models, &words);
    assert_eq!(answer(&server), json!({"predictions": [2.0, 6.0]}));
    let states =
        client::get(server.address, "/api/v1/status").json()["models"][0]["versions"].clone();
    assert_eq!(states[0]["state"], "HELD", "{states}");
    let error = error_of(&server, 2);
    assert!(
        error.contains("held before the server was started: ") && error.contains("values differ"),
        "{error}"
    );
    let released = client::post(server.address, "/api/v1/models/m/versions/2/release", "{}");
    assert_eq!(released.status, 200, "{}", released.text());
    wait_until("version 2 serves", || answer(&server) == json!({"predictions": [5.0, 15.0]}));
    drop(server);

    let server = Process::serve(&models, &words);
    assert_eq!(answer(&server), json!({"predictions": [5.0, 15.0]}));
}
