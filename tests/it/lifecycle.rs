//! Versions load, replace each other, fail and unload while clients send requests.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tensorserve::config::{ModelSettings, Settings};

use crate::support::client::Client;
use crate::support::fake::{Fake, Loading, Model};
use crate::support::place::Place;

fn state(state: &str, error: &str) -> Option<(String, String)> {
    Some((state.to_owned(), error.to_owned()))
}

fn serving(policy: &str) -> impl FnOnce(&mut Settings) {
    let policy = policy.to_owned();
    move |settings| settings.each.version_policy = Some(policy)
}

#[test]
fn a_new_version_loads_beside_the_old_one_and_takes_over() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    place.write("models/m/2", &Model { loading: Loading::Gated, ..Model::constant(2.0) });
    place.wait_for_load_at_gate();
    assert_eq!(place.constant("m"), Some(1.0));
    assert_eq!(place.state("m", 2), state("LOADING", ""));
    assert_eq!(place.state("m", 1), state("AVAILABLE", ""));
    assert_eq!(place.server.get("/readyz").status, 200);
    place.fake.loads_gate().open();
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
    place.wait_for_state("m", 1, "END");
    assert_eq!(place.state("m", 1), state("END", ""));
    assert_eq!(place.state("m", 2), state("AVAILABLE", ""));
}

#[test]
fn requests_under_way_finish_on_the_old_version() {
    let model = Model { is_gated: true, ..Model::constant(1.0) };
    let place = Place::of(&model, |settings| {
        // Waiting runs must not block the connection threads.
        settings.server.inline_budget_micros = Some(0);
        settings.server.num_batch_threads = Some(4);
    });
    thread::scope(|scope| {
        let old = scope.spawn(|| place.constant("m"));
        place.wait_for_runs_at_gate(1);
        place.write("models/m/2", &Model::constant(2.0));
        // An earlier request would run on version 1 and wait at the gate.
        place.wait_for_state("m", 2, "AVAILABLE");
        assert_eq!(place.constant("m"), Some(2.0));
        place.wait_for_state("m", 1, "UNLOADING");
        place.wait_for_looks("models");
        assert_eq!(place.state("m", 1), state("UNLOADING", ""));
        let answer = place.server.post("/v1/models/m/versions/1:predict", "{\"instances\": [[0]]}");
        assert_eq!(answer.status, 404);
        assert_eq!(answer.error(), "Servable not found for request: Specific(m, 1)");
        place.fake.runs_gate().open();
        assert_eq!(old.join().expect("no panic"), Some(1.0));
    });
    place.wait_for_state("m", 1, "END");
}

#[test]
fn no_request_fails_and_none_goes_back_while_versions_change() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = Client::connect(place.server.address).expect("connects");
                let mut latest = 0.0;
                while !is_done.load(Relaxed) {
                    let (path, body) = ("/v1/models/m:predict", b"{\"instances\": [[0]]}");
                    let answer = client.request("POST", path, &[], body).expect("an answer");
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    let number = answer.json()["predictions"][0].as_f64().expect("a number");
                    assert!(number >= latest, "{number} after {latest}");
                    latest = number;
                }
            });
        }
        for number in 2..=6u8 {
            place.write(&format!("models/m/{number}"), &Model::constant(f32::from(number)));
            place.wait_for_state("m", u32::from(number), "AVAILABLE");
            place.wait_for_state("m", u32::from(number) - 1, "END");
        }
        is_done.store(true, Relaxed);
    });
}

#[test]
fn the_version_policy_chooses_what_is_served() {
    let all = [1u8, 2, 3];
    for (policy, want) in [
        ("latest", &[3][..]),
        ("latest:2", &[2, 3]),
        ("all", &[1, 2, 3]),
        ("specific:1,3", &[1, 3]),
    ] {
        let path = |number| format!("models/m/{number}");
        let models = all.map(|n| (path(n), Model::constant(f32::from(n))));
        let models: Vec<_> = models.iter().map(|(p, m)| (p.as_str(), m.clone())).collect();
        let place = Place::with(&models, |settings, _| serving(policy)(settings));
        place.server.wait_until_started();
        for number in all {
            let path = format!("/v1/models/m/versions/{number}:predict");
            let answer = place.server.post(&path, "{\"instances\": [[0]]}");
            if want.contains(&number) {
                assert_eq!(answer.json()["predictions"][0], f64::from(number), "{policy}");
            } else {
                assert_eq!(answer.status, 404, "{policy}: {number}");
                assert_eq!(place.state("m", u32::from(number)), None, "{policy}: {number}");
            }
        }
        assert_eq!(place.constant("m"), want.last().map(|&n| f64::from(n)), "{policy}");
    }
}

#[test]
fn a_new_version_pushes_the_oldest_out_of_latest_2() {
    let place = Place::of(&Model::constant(1.0), serving("latest:2"));
    place.write("models/m/2", &Model::constant(2.0));
    place.wait_for_state("m", 2, "AVAILABLE");
    assert_eq!(place.state("m", 1), state("AVAILABLE", ""));
    place.write("models/m/3", &Model::constant(3.0));
    place.wait_for_state("m", 3, "AVAILABLE");
    place.wait_for_state("m", 1, "END");
    assert_eq!(place.state("m", 2), state("AVAILABLE", ""));
}

#[test]
fn a_version_that_fails_to_load_leaves_the_old_one_alone() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    place.write("models/m/2", &Model { loading: Loading::Fails, ..Model::constant(2.0) });
    place.wait_for_state("m", 2, "END");
    assert_eq!(place.state("m", 2), state("END", "this model does not load"));
    assert_eq!(place.state("m", 1), state("AVAILABLE", ""));
    assert_eq!(place.constant("m"), Some(1.0));
    assert_eq!(place.server.get("/readyz").status, 200);
    assert_eq!(place.metric("tensorserve_loads_total{model=\"m\",result=\"error\"}"), Some(1.0));
    // The next version is not affected.
    place.write("models/m/3", &Model::constant(3.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(3.0));
}

#[test]
fn a_load_that_panics_has_failed_and_the_server_goes_on() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    place.write("models/m/2", &Model { loading: Loading::Panics, ..Model::default() });
    place.wait_for_state("m", 2, "END");
    assert_eq!(
        place.state("m", 2),
        state("END", "internal error during the load; see the server log")
    );
    assert_eq!(place.metric("tensorserve_panics_total"), Some(1.0));
    assert_eq!(place.constant("m"), Some(1.0));
    place.write("models/m/3", &Model::constant(3.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(3.0));
}

#[test]
fn a_failed_load_is_tried_again_when_the_files_change() {
    let place = Place::of(&Model { loading: Loading::Fails, ..Model::default() }, |settings| {
        // No retries after a delay.
        settings.server.max_load_retries = Some(0);
    });
    let folder = place.path("models/m/1");
    assert_eq!(place.state("m", 1), state("END", "this model does not load"));
    assert_eq!(place.constant("m"), None);
    place.wait_for_looks("models");
    assert_eq!(place.fake.loads(&folder), 1, "a load without a change of the files");
    Model::constant(1.0).write_marker(&folder);
    // It serves a moment before its state says so.
    place.wait_for_state("m", 1, "AVAILABLE");
    assert_eq!(place.state("m", 1), state("AVAILABLE", ""));
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn files_that_are_no_model_are_looked_at_again_when_they_change() {
    let place = Place::of(&Model { loading: Loading::Broken, ..Model::default() }, |_| ());
    let folder = place.path("models/m/1");
    assert_eq!(place.state("m", 1), state("END", "its files are no model"));
    assert_eq!(place.fake.loads(&folder), 0);
    Model::constant(1.0).write_marker(&folder);
    place.server.wait_until("the model is loaded", |_| place.constant("m") == Some(1.0));
}

#[test]
fn a_failed_load_is_tried_again_after_a_while() {
    let place = Place::of(&Model { loading: Loading::FailsOnce, ..Model::constant(1.0) }, |_| ());
    assert_eq!(place.state("m", 1), state("END", "this model does not load yet"));
    place.server.wait_until("the model is loaded", |_| place.constant("m") == Some(1.0));
    assert_eq!(place.server.get("/readyz").status, 200);
}

#[test]
fn a_slow_load_holds_up_no_other_model() {
    let place = Place::with(&[("models/a/1", Model::constant(1.0))], |_, _| ());
    place.server.wait_until_started();
    place.write("models/b/1", &Model { loading: Loading::Gated, ..Model::constant(5.0) });
    place.wait_for_load_at_gate();
    assert_eq!(place.constant("a"), Some(1.0));
    place.write("models/a/2", &Model::constant(2.0));
    place.server.wait_until("a serves version 2", |_| place.constant("a") == Some(2.0));
    place.wait_for_state("a", 1, "END");
    assert_eq!(place.state("b", 1), state("LOADING", ""));
    assert_eq!(place.constant("b"), None);
    place.fake.loads_gate().open();
    place.server.wait_until("the model is loaded", |_| place.constant("b") == Some(5.0));
}

#[test]
fn no_more_loads_at_once_than_load_threads() {
    let slow = Model { loading: Loading::Gated, ..Model::default() };
    let models = ["models/a/1", "models/b/1", "models/c/1"].map(|path| (path, slow.clone()));
    let place = Place::with(&models, |settings, _| settings.server.load_threads = Some(2));
    place.server.wait_until("two loads at the gate", |_| place.fake.loads_gate().waiting() == 2);
    place.wait_for_looks("models");
    assert_eq!(place.fake.loads_gate().waiting(), 2);
    place.fake.loads_gate().open();
    place.server.wait_until("all are ready", |s| s.get("/readyz").status == 200);
}

#[test]
fn a_small_model_is_loaded_again_only_where_threads_make_a_difference() {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for (fake, loads) in [(Fake::default(), cores.min(2)), (Fake::without_threads(), 1)] {
        let place = Place::of_fake(fake);
        place.write("models/m/1", &Model::constant(1.0));
        place.server.wait_until("the model is ready", |_| place.constant("m") == Some(1.0));
        assert_eq!(place.fake.loads(&place.path("models/m/1")), loads);
    }
}

#[test]
fn other_files_in_the_folder_of_a_serving_version_change_nothing() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let folder = place.path("models/m/1");
    let loads = place.fake.loads(&folder);
    fs::rename(&folder, place.path("old")).expect("renamed");
    place.write("models/m/1", &Model::constant(10.0));
    place.wait_for_looks("models");
    // As in TensorFlow Serving, a loaded version does not change: other files need another number.
    assert_eq!(place.constant("m"), Some(1.0));
    assert_eq!(place.fake.loads(&folder), loads);
    place.write("models/m/2", &Model::constant(2.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_version_that_comes_back_is_loaded_as_it_is_then() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    place.write("models/m/2", &Model::constant(2.0));
    place.wait_for_state("m", 1, "END");
    fs::remove_dir_all(place.path("models/m/2")).expect("removed");
    place.server.wait_until("version 1 serves again", |_| place.constant("m") == Some(1.0));
    place.wait_for_state("m", 2, "END");
    place.write("models/m/2", &Model::constant(20.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(20.0));
}

#[test]
fn a_version_that_is_deleted_while_it_loads_does_not_stay() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    place.write("models/m/2", &Model { loading: Loading::Gated, ..Model::constant(2.0) });
    place.wait_for_load_at_gate();
    fs::remove_dir_all(place.path("models/m/2")).expect("removed");
    place.wait_for_looks("models");
    place.fake.loads_gate().open();
    place.wait_for_state("m", 2, "END");
    assert_eq!(place.constant("m"), Some(1.0));
}

/// A client cannot see which version a label has, so the error says which one is not there.
#[test]
fn the_error_for_a_label_names_its_version_that_is_not_loaded() {
    let place = Place::configured(
        &[("models/m/1", Model::constant(1.0))],
        |settings, root| {
            settings.models.push(ModelSettings {
                name: Some("m".to_owned()),
                path: Some(root.join("models/m")),
                labels: [("stable".to_owned(), 1), ("next".to_owned(), 2)].into(),
                ..ModelSettings::default()
            });
        },
        |_| (),
    );
    place.server.wait_until_started();
    let rows = r#"{"instances": [[1.0]]}"#;
    assert_eq!(place.server.post("/v1/models/m/labels/stable:predict", rows).status, 200);
    let answer = place.server.post("/v1/models/m/labels/next:predict", rows);
    answer.assert_refused("a label", 404, "Servable not found for request: Specific(m, 2)");
    let input = r#"{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}"#;
    let answer = place.server.post("/v2/models/m/versions/next/infer", input);
    let message = "'m' version 2, which has the label next, is not found";
    answer.assert_refused("a label", 404, message);
    let answer = place.server.post("/v2/models/m/versions/3/infer", input);
    answer.assert_refused("a version", 404, "'m' version 3 is not found");
}
