//! Requests that name no version, split between versions by weight.

use std::collections::BTreeMap;

use serde_json::json;
use tensorserve::config::{ModelSettings, Settings, SourceConfig};

use crate::support::client::Client;
use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::server::{config, settings};
use crate::support::wait;

/// The model `m` with all its versions, and these labels and weights.
fn model(place: &std::path::Path, labels: &[(&str, i64)], split: &[(&str, i64)]) -> ModelSettings {
    let own = |entries: &[(&str, i64)]| {
        entries.iter().map(|&(label, number)| (label.to_owned(), number)).collect()
    };
    let mut model = ModelSettings {
        name: Some("m".to_owned()),
        path: Some(place.join("models/m")),
        labels: own(labels),
        split: own(split),
        ..ModelSettings::default()
    };
    model.each.version_policy = Some("all".to_owned());
    model
}

/// A server of the model `m`, whose versions answer their numbers.
fn serve(versions: &[i64], labels: &[(&str, i64)], split: &[(&str, i64)]) -> Place {
    #[allow(clippy::cast_precision_loss)]
    let versions: Vec<(String, Model)> = versions
        .iter()
        .map(|version| (format!("models/m/{version}"), Model::constant(*version as f32)))
        .collect();
    let versions: Vec<(&str, Model)> =
        versions.iter().map(|(path, model)| (path.as_str(), model.clone())).collect();
    let place = Place::with(&versions, |settings: &mut Settings, root| {
        settings.server.max_load_retries = Some(0);
        settings.models.push(model(root, labels, split));
    });
    place.server.wait_until_started();
    place
}

/// Which versions answer `count` requests to this path, and how many each.
fn answers(place: &Place, path: &str, count: usize) -> BTreeMap<String, usize> {
    let mut client = Client::connect(place.server.address).expect("connects");
    let mut answers = BTreeMap::new();
    for _ in 0..count {
        let body = br#"{"instances": [[0.0]]}"#;
        let answer = client.request("POST", path, &[], body).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        *answers.entry(answer.json()["predictions"][0].to_string()).or_default() += 1;
    }
    answers
}

fn only(version: &str, count: usize) -> BTreeMap<String, usize> {
    [(version.to_owned(), count)].into()
}

const PREDICT: &str = "/v1/models/m:predict";

const LABELS: [(&str, i64); 2] = [("canary", 2), ("stable", 1)];

#[test]
fn requests_are_split_by_weight_and_named_versions_are_not() {
    let place = serve(&[1, 2], &LABELS, &[("canary", 1), ("stable", 3)]);
    let all = answers(&place, PREDICT, 600);
    // 150 are expected, with a standard deviation of 11.
    assert!((50..250).contains(&all["2.0"]), "{all:?}");
    assert_eq!(all["1.0"] + all["2.0"], 600);
    for (path, version) in [
        ("/v1/models/m/versions/1:predict", "1.0"),
        ("/v1/models/m/versions/2:predict", "2.0"),
        ("/v1/models/m/labels/stable:predict", "1.0"),
        ("/v1/models/m/labels/canary:predict", "2.0"),
    ] {
        assert_eq!(answers(&place, path, 20), only(version, 20), "{path}");
    }
    // Each version counts the requests that it has answered.
    let counted = |version: u32| {
        place.metric(&format!(
            "tensorserve_requests_total{{model=\"m\",version=\"{version}\",\
             signature=\"serving_default\",protocol=\"tfs_rest\",method=\"predict\",code=\"OK\"}}"
        ))
    };
    assert_eq!(counted(1).zip(counted(2)).map(|(one, two)| one + two), Some(680.0));
}

#[test]
fn what_is_not_an_inference_means_the_latest_version() {
    let place = serve(&[1, 2], &LABELS, &[("stable", 1)]);
    assert_eq!(answers(&place, PREDICT, 20), only("1.0", 20));
    let metadata = place.server.get("/v1/models/m/metadata").json();
    assert_eq!(metadata["model_spec"]["version"], "2");
    let metadata = place.server.get("/v2/models/m").json();
    assert_eq!(metadata["versions"], json!(["1", "2"]));
}

#[test]
fn a_response_names_the_version_that_has_answered() {
    let place = serve(&[1, 2], &LABELS, &[("canary", 1), ("stable", 1)]);
    let mut seen = BTreeMap::<String, usize>::new();
    for _ in 0..60 {
        let input = json!({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]});
        let body = json!({ "inputs": [input] }).to_string();
        let answer = place.server.post("/v2/models/m/infer", body).json();
        let version = answer["model_version"].as_str().expect("a version").to_owned();
        let value = answer["outputs"][0]["data"][0].as_f64().expect("a number");
        assert_eq!(version, format!("{value:.0}"));
        *seen.entry(version).or_default() += 1;
    }
    // The probability that one of them gets nothing is 2^-59.
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[test]
fn a_version_that_is_not_ready_leaves_its_share_to_the_others() {
    let labels = [("a", 1), ("b", 2), ("c", 3)];
    let models = [
        ("models/m/1", Model::constant(1.0)),
        ("models/m/2", Model::constant(2.0)),
        ("models/m/3", Model { loading: Loading::Fails, ..Model::default() }),
    ];
    let place = Place::with(&models, |settings, root| {
        settings.server.max_load_retries = Some(0);
        settings.models.push(model(root, &labels, &[("a", 1), ("c", 1000)]));
    });
    place.server.wait_until_started();
    assert_eq!(answers(&place, PREDICT, 40), only("1.0", 40));
    // It gets its share when it is ready.
    std::fs::remove_dir_all(place.path("models/m/3")).expect("removed");
    place.wait_for_looks("models/m");
    place.write("models/m/3", &Model::constant(3.0));
    place.wait_for_state("m", 3, "AVAILABLE");
    let all = answers(&place, PREDICT, 40);
    assert!(all.get("3.0").is_some_and(|count| *count > 30), "{all:?}");
}

#[test]
fn without_a_ready_version_in_the_split_the_latest_answers() {
    let place = serve(&[1, 2], &[("a", 7), ("b", 8)], &[("a", 1), ("b", 1)]);
    assert_eq!(answers(&place, PREDICT, 20), only("2.0", 20));
}

fn sources(place: &Place, labels: &[(&str, i64)], split: &[(&str, i64)]) -> Vec<SourceConfig> {
    let mut settings = settings();
    settings.models.push(model(&place.path(""), labels, split));
    config(settings).repository.sources
}

#[test]
fn the_split_follows_the_configuration_and_the_labels() {
    let place = serve(&[1, 2], &LABELS, &[("stable", 1)]);
    let reload = |labels: &[(&str, i64)], split: &[(&str, i64)]| {
        wait(place.server.engine.reload(sources(&place, labels, split))).expect("reloads");
    };
    assert_eq!(answers(&place, PREDICT, 20), only("1.0", 20));
    reload(&LABELS, &[("canary", 1)]);
    assert_eq!(answers(&place, PREDICT, 20), only("2.0", 20));
    reload(&LABELS, &[("stable", 1)]);
    assert_eq!(answers(&place, PREDICT, 20), only("1.0", 20));
    // An operator moves the label, and its share with it.
    let path = "/api/v1/models/m/versions/2/labels";
    let answer = place.server.post(path, r#"{"label": "stable"}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answers(&place, PREDICT, 20), only("2.0", 20));
    reload(&[("canary", 2), ("stable", 1)], &[]);
    assert_eq!(answers(&place, PREDICT, 20), only("2.0", 20));
}
