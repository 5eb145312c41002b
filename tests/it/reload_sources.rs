//! A new list of models while the server runs, on the fake platform.

use std::fs;
use std::path::PathBuf;

use tensorserve::config::{Config, ModelSettings, SourceConfig};
use tensorserve_tensor::error::{Code, Result};

use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::server::{config, settings};
use crate::support::wait;

/// A server of the model `a` in `first/a`, which answers 1, and directories for new lists:
/// `second/a` answers 2, `first/b` answers 5 and 6, `broken/a` does not load.
fn place() -> Place {
    let models = [
        ("first/a/1", Model::constant(1.0)),
        ("second/a/1", Model::constant(2.0)),
        ("first/b/1", Model::constant(5.0)),
        ("first/b/2", Model::constant(6.0)),
        ("broken/a/1", Model { loading: Loading::Fails, ..Model::default() }),
    ];
    let place = Place::with(&models, |settings, root| {
        settings.models.push(model("a", root.join("first/a"), "latest"));
    });
    place.server.wait_until_started();
    place
}

fn model(name: &str, path: PathBuf, policy: &str) -> ModelSettings {
    let mut model =
        ModelSettings { name: Some(name.into()), path: Some(path), ..ModelSettings::default() };
    model.each.version_policy = Some(policy.into());
    model
}

/// Sources from the configuration: name, directory, version policy, label of version 1.
fn sources(place: &Place, models: &[(&str, &str, &str, Option<&str>)]) -> Vec<SourceConfig> {
    let mut settings = settings();
    for (name, path, policy, label) in models {
        let mut model = model(name, place.path(path), policy);
        model.labels.extend(label.map(|label| (label.to_owned(), 1)));
        settings.models.push(model);
    }
    let config: Config = config(settings);
    config.repository.sources
}

fn reload(place: &Place, models: &[(&str, &str, &str, Option<&str>)]) -> Result<()> {
    let sources = sources(place, models);
    wait(place.server.engine.reload(sources))
}

#[test]
fn models_come_and_go_with_the_list() {
    let place = place();
    reload(&place, &[("b", "first/b", "latest", None)]).expect("loads");
    assert_eq!(place.constant("b"), Some(6.0));
    place.server.wait_until("a is unloaded", |_| place.constant("a").is_none());
    reload(&place, &[]).expect("nothing to wait for");
    place.server.wait_until("b is unloaded", |_| place.constant("b").is_none());
    assert_eq!(place.server.get("/readyz").status, 200);
}

#[test]
fn policies_and_labels_follow_the_list() {
    let place = place();
    reload(&place, &[("b", "first/b", "specific:1", None)]).expect("loads");
    assert_eq!(place.constant("b"), Some(5.0));
    assert_eq!(place.server.get("/v1/models/b/labels/old").status, 200);
    let path = "/v1/models/b/labels/old:predict";
    assert_eq!(place.server.post(path, r#"{"instances": [[0]]}"#).status, 400);
    reload(&place, &[("b", "first/b", "all", Some("old"))]).expect("loads");
    assert_eq!(place.constant("b"), Some(6.0));
    let answer = place.server.post(path, r#"{"instances": [[0]]}"#);
    assert_eq!(answer.json()["predictions"][0], 5.0, "{}", answer.text());
}

#[test]
fn another_folder_takes_over_without_a_gap_also_with_the_same_version() {
    let place = place();
    for (folder, answer) in [("second/a", 2.0), ("first/a", 1.0), ("second/a", 2.0)] {
        let sources = sources(&place, &[("a", folder, "latest", None)]);
        let engine = place.server.engine.clone();
        let reload = std::thread::spawn(move || wait(engine.reload(sources)));
        while !reload.is_finished() {
            assert!(place.constant("a").is_some(), "a request failed");
        }
        reload.join().expect("no panic").expect("loads");
        assert_eq!(place.constant("a"), Some(answer));
    }
    // The new incarnation continues the metrics of version 1.
    let before = place.metric("tensorserve_model_bytes{model=\"a\",version=\"1\"}");
    assert!(before.is_some());
}

#[test]
fn what_cannot_be_loaded_from_there_leaves_what_serves() {
    let place = place();
    let error = reload(&place, &[("a", "broken/a", "latest", None)]).expect_err("fails");
    assert_eq!(error.code(), Code::Unknown);
    let message = error.message();
    let start = "1 model(s) did not become available: {{name: a version: 1} due to error: ";
    assert!(message.starts_with(start), "{message}");
    assert_eq!(place.constant("a"), Some(1.0));
    reload(&place, &[("a", "second/a", "latest", None)]).expect("loads");
    assert_eq!(place.constant("a"), Some(2.0));
}

#[test]
fn a_missing_folder_does_not_hold_up_the_others() {
    let place = place();
    let list = [("a", "nowhere", "latest", None), ("b", "first/b", "latest", None)];
    let error = reload(&place, &list).expect_err("a missing directory");
    assert!(error.message().contains("name: a}"), "{error}");
    assert!(!error.message().contains("name: b"), "{error}");
    assert_eq!(place.constant("b"), Some(6.0));
    // The old incarnation serves until the new one can take over.
    assert_eq!(place.constant("a"), Some(1.0));
    fs::create_dir_all(place.path("nowhere")).expect("directory");
    place.write("nowhere/3", &Model::constant(3.0));
    place.server.wait_until("version 3 serves", |_| place.constant("a") == Some(3.0));
    // A model that is no longer listed is unloaded, even while another directory is missing.
    fs::remove_dir_all(place.path("nowhere")).expect("removed");
    let _ = reload(&place, &[("a", "nowhere", "latest", None)]);
    place.server.wait_until("b is unloaded", |_| place.constant("b").is_none());
    assert_eq!(place.constant("a"), Some(3.0));
}
