//! Files of a version that are deleted, replaced or moved while it loads: it does not serve what it has read of
//! them, its state names what has changed, and it is loaded again once they are whole.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::{get, post};
use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::{copy, pause_between_requests, project, wait_until};

/// A model whose load waits at the gate, with a file in a directory.
fn gated(answer: f32) -> Model {
    let files = vec!["labels".to_owned(), "part/weights".to_owned()];
    Model { loading: Loading::Gated, files, ..Model::constant(answer) }
}

/// Writes a gated model, and waits until it has been read.
fn begin_load(place: &Place, folder: &Path) {
    fs::create_dir_all(folder.join("part")).expect("a directory");
    for file in ["labels", "part/weights"] {
        fs::write(folder.join(file), "x").expect("written");
    }
    gated(2.0).write_marker(folder);
    place.wait_for_load_at_gate();
}

/// Why version 2 of the model `m` has failed, when it has. It may be in another state meanwhile.
fn failure(place: &Place) -> String {
    let failed = || {
        let model = place.server.get("/api/v1/models/m").json();
        let events = model["history"].as_array().expect("history").clone();
        let failed = events.into_iter().find(|it| it["version"] == 2 && it["what"] == "failed")?;
        Some(failed["error"].as_str().expect("a reason").to_owned())
    };
    place.server.wait_until("it has failed", |_| failed().is_some());
    failed().expect("a reason")
}

#[test]
fn a_version_whose_files_change_while_it_loads_does_not_serve() {
    type Change = fn(&Path);
    let changes: [(&str, &str, Change); 8] = [
        ("a file is deleted", "labels was removed", |folder| {
            fs::remove_file(folder.join("labels")).expect("removed");
        }),
        ("a file in a directory is deleted", "part/weights was removed", |folder| {
            fs::remove_file(folder.join("part/weights")).expect("removed");
        }),
        ("a file is written again", "labels was changed", |folder| {
            fs::write(folder.join("labels"), "y").expect("written");
        }),
        ("a file is cut", "weights was changed", |folder| {
            fs::write(folder.join("part/weights"), "").expect("written");
        }),
        ("a file is away for a moment", "labels was changed", |folder| {
            fs::rename(folder.join("labels"), folder.join("away")).expect("renamed");
            fs::rename(folder.join("away"), folder.join("labels")).expect("renamed");
        }),
        ("a directory is away for a moment", "part was moved", |folder| {
            fs::rename(folder.join("part"), folder.join("away")).expect("renamed");
            fs::rename(folder.join("away"), folder.join("part")).expect("renamed");
        }),
        ("the version is away for a moment", "2 was moved", |folder| {
            let away = folder.with_file_name("away");
            fs::rename(folder, &away).expect("renamed");
            fs::rename(&away, folder).expect("renamed");
        }),
        ("another version is in its place", "was changed", |folder| {
            let away = folder.with_file_name("away");
            fs::rename(folder, &away).expect("renamed");
            copy(&away, folder);
        }),
    ];
    for (what, why, change) in changes {
        let place = Place::of(&Model::constant(1.0), |_| ());
        let folder = place.path("models/m/2");
        begin_load(&place, &folder);
        change(&folder);
        place.fake.loads_gate().open();
        let error = failure(&place);
        assert!(error.contains("while it was loaded") && error.contains(why), "{what}: {error}");
        assert_eq!(place.constant("m"), Some(1.0), "{what}: the version before it serves");
        // As soon as it is whole, it is loaded.
        for file in ["labels", "part/weights"] {
            fs::write(folder.join(file), "x").expect("written");
        }
        place.server.wait_until("version 2 serves", |_| place.constant("m") == Some(2.0));
    }
}

#[test]
fn a_version_that_is_deleted_while_it_loads_never_serves() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let folder = place.path("models/m/2");
    begin_load(&place, &folder);
    fs::remove_dir_all(&folder).expect("removed");
    place.fake.loads_gate().open();
    place.wait_for_state("m", 2, "END");
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn a_link_that_leads_elsewhere_meanwhile_is_a_change() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let (real, other) = (place.path("real"), place.path("other"));
    for folder in [&real, &other] {
        fs::create_dir_all(folder.join("part")).expect("a directory");
        fs::write(folder.join("labels"), "x").expect("written");
        fs::write(folder.join("part/weights"), "x").expect("written");
        gated(2.0).write_marker(folder);
    }
    let link = place.path("models/m/2");
    symlink(&real, &link).expect("a link");
    place.wait_for_load_at_gate();
    fs::remove_file(&link).expect("removed");
    symlink(&other, &link).expect("a link");
    place.fake.loads_gate().open();
    assert!(failure(&place).contains("while it was loaded"));
    place.server.wait_until("version 2 serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn files_that_are_added_are_no_change() {
    // Python writes its caches beside the files that it reads.
    let place = Place::of(&Model::constant(1.0), |_| ());
    let folder = place.path("models/m/2");
    begin_load(&place, &folder);
    fs::create_dir(folder.join("__pycache__")).expect("a directory");
    fs::write(folder.join("part/cache"), "x").expect("written");
    place.fake.loads_gate().open();
    place.server.wait_until("version 2 serves", |_| place.constant("m") == Some(2.0));
    assert_eq!(place.fake.loads(&folder), 1);
}

/// The state of a version, and its error.
fn state(server: &Process, model: &str, version: u32) -> (String, String) {
    let status = get(server.address, &format!("/v1/models/{model}/versions/{version}")).json();
    let found = &status["model_version_status"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&found["state"]), text(&found["status"]["error_message"]))
}

/// Deletes `victim` of a version as soon as its load has begun and `delay` has passed, many times. Whenever the
/// version serves, its answers must be those of its variables.
fn delete_during_loads(options: &[&str], victims: &[&str]) {
    let root = tempfile::tempdir().expect("temporary directory");
    let models = root.path().join("models");
    for model in ["half_plus_two", "other"] {
        copy(&project("models/half_plus_two"), &models.join(model));
    }
    let cache = tempfile::tempdir().expect("temporary directory");
    let cache = cache.path().to_str().expect("UTF-8").to_owned();
    let mut all = vec!["--poll-interval", "100ms", "--load-probe-cache", &cache];
    all.extend(options);
    let server = Process::serve(&models, &all);
    let predict = |model: &str| {
        let path = format!("/v1/models/{model}:predict");
        post(server.address, &path, r#"{"instances": [1.0, 2.0]}"#)
    };
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let honest = scope.spawn(|| {
            while !stop.load(SeqCst) {
                assert_eq!(predict("other").json(), json!({"predictions": [2.5, 3.0]}));
                asked.fetch_add(1, SeqCst);
                pause_between_requests();
            }
        });
        let attack = scope.spawn(|| {
            for (round, version) in (2..26_u32).enumerate() {
                let folder = models.join(format!("half_plus_two/{version}"));
                let staged = root.path().join("staged");
                copy(&project("models/half_plus_two/1"), &staged);
                // Not known to an earlier probe.
                fs::write(staged.join("note"), version.to_string()).expect("written");
                fs::rename(&staged, &folder).expect("renamed");
                wait_until("its load begins", || {
                    let (state, _) = state(&server, "half_plus_two", version);
                    !matches!(state.as_str(), "" | "START")
                });
                let moment = Instant::now() + Duration::from_millis(8) * (round as u32 / 2 % 6);
                while Instant::now() < moment {
                    assert_eq!(predict("half_plus_two").json(), json!({"predictions": [2.5, 3.0]}));
                }
                let victim = match victims[round % victims.len()] {
                    "" => folder,
                    inside => folder.join(inside),
                };
                fs::rename(&victim, root.path().join(format!("gone-{version}"))).expect("renamed");
                wait_until("the load ends", || {
                    state(&server, "half_plus_two", version).0 != "LOADING"
                });
                for _ in 0..5 {
                    let answer = predict("half_plus_two");
                    assert_eq!(answer.status, 200, "round {round}: {}", answer.text());
                    assert_eq!(answer.json(), json!({"predictions": [2.5, 3.0]}));
                }
            }
        });
        let outcome = attack.join();
        stop.store(true, SeqCst);
        honest.join().expect("no request to the other model is lost");
        outcome.expect("no version serves without its variables");
    });
    assert!(asked.load(SeqCst) > 100, "{asked:?} requests");
}

#[test]
fn no_version_serves_whose_variables_are_deleted_while_it_loads() {
    delete_during_loads(&[], &["variables", ""]);
}

#[test]
fn nor_without_a_load_probe_and_a_warm_up() {
    delete_during_loads(&["--load-probe", "false", "--warm-up", "false"], &["variables", ""]);
}
