//! The response cache: which requests it answers, and which it must not.

use prost::Message;
use serde_json::json;
use tensorserve::config::{ModelSettings, Settings};
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_to_proto};

use crate::support::data;
use crate::support::fake::Model;
use crate::support::grpc::Caller;
use crate::support::place::{Place, matrix};
use crate::support::server::{TestServer, config, settings};
use crate::support::wait;

fn cached(settings: &mut Settings) {
    settings.server.response_cache_bytes = Some("1MiB".parse().expect("a size"));
    settings.each.response_cache = Some(true);
}

fn lookups(place: &Place) -> [Option<f64>; 2] {
    ["hit", "miss"].map(|result| {
        place.metric(&format!(
            "tensorserve_response_cache_lookups_total{{model=\"m\",result=\"{result}\"}}"
        ))
    })
}

fn cache(place: &Place, what: &str) -> f64 {
    place.metric(&format!("tensorserve_response_cache_{what}")).expect(what)
}

#[test]
fn equal_requests_are_run_once() {
    let place = Place::of(&Model::default(), cached);
    assert_eq!(lookups(&place), [Some(0.0), Some(0.0)]);
    let first = place.predict("m", "[[1, 2]]");
    let second = place.predict("m", "[[1.0,  2e0]]");
    assert_eq!(first.json(), json!({"predictions": [[1.0, 2.0]]}));
    assert_eq!(first.text(), second.text());
    assert_eq!(place.fake.runs().len(), 1);
    assert_eq!(lookups(&place), [Some(1.0), Some(1.0)]);
    // Other protocols have the same inputs.
    let input = json!({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]});
    let body = json!({ "inputs": [input] }).to_string();
    let answer = place.server.post("/v2/models/m/infer", body);
    assert_eq!(answer.json()["outputs"][0]["data"], json!([1.0, 2.0]), "{}", answer.text());
    let spec = Some(ModelSpec { name: "m".to_owned(), ..ModelSpec::default() });
    let x = tensor_to_proto(&matrix(&[&[1.0, 2.0]]), Form::Content);
    let request = PredictRequest {
        model_spec: spec,
        inputs: [("x".to_owned(), x)].into(),
        output_filter: vec!["y".to_owned()],
    };
    let caller = Caller::connect(place.server.grpc_address()).expect("connects");
    let path = "/tensorflow.serving.PredictionService/Predict";
    caller.call(path, request.encode_to_vec()).expect("an answer");
    assert_eq!(place.fake.runs().len(), 1);
    assert_eq!(lookups(&place), [Some(3.0), Some(1.0)]);
    // Other values, and other shapes.
    for instances in ["[[1, 3]]", "[[1], [2]]", "[[1, 2], [1, 2]]"] {
        assert_eq!(place.predict("m", instances).status, 200);
    }
    assert_eq!(place.fake.runs().len(), 4);
    assert_eq!(cache(&place, "entries"), 4.0);
    assert!(cache(&place, "bytes") > 4.0 * 256.0);
    assert_eq!(cache(&place, "limit_bytes"), f64::from(1 << 20));
    // Each was a request that was answered.
    let labels = "model=\"m\",version=\"1\",signature=\"serving_default\",\
                  protocol=\"tfs_rest\",method=\"predict\",code=\"OK\"";
    let requests = place.metric(&format!("tensorserve_requests_total{{{labels}}}"));
    assert_eq!(requests, Some(5.0));
}

#[test]
fn it_is_off_unless_a_model_wants_it() {
    for change in [(|_| ()) as fn(&mut Settings), |settings| {
        settings.server.response_cache_bytes = Some("1MiB".parse().expect("a size"));
    }] {
        let place = Place::of(&Model::default(), change);
        (0..2).for_each(|_| assert_eq!(place.predict("m", "[[1]]").status, 200));
        assert_eq!(place.fake.runs().len(), 2);
        assert_eq!(lookups(&place), [None, None]);
        assert_eq!(cache(&place, "entries"), 0.0);
    }
}

#[test]
fn models_with_state_or_random_numbers_are_always_run() {
    for model in [
        Model { read_only: false, ..Model::default() },
        Model { repeatable: false, ..Model::default() },
    ] {
        let place = Place::of(&model, cached);
        (0..3).for_each(|_| assert_eq!(place.predict("m", "[[1]]").status, 200));
        assert_eq!(place.fake.runs().len(), 3, "{model:?}");
        assert_eq!(lookups(&place), [None, None]);
    }
}

#[test]
fn errors_are_not_kept() {
    let place = Place::of(&Model { fails_on: Some(9.0), ..Model::default() }, cached);
    (0..2).for_each(|_| assert_eq!(place.predict("m", "[[9]]").status, 400));
    assert_eq!(place.fake.runs().len(), 2);
    assert_eq!(lookups(&place), [Some(0.0), Some(2.0)]);
    assert_eq!(cache(&place, "entries"), 0.0);
}

#[test]
fn another_version_has_responses_of_its_own() {
    let place = Place::of(&Model::constant(1.0), cached);
    (0..2).for_each(|_| assert_eq!(place.constant("m"), Some(1.0)));
    place.write("models/m/2", &Model::constant(2.0));
    place.wait_for_state("m", 1, "END");
    assert_eq!(cache(&place, "entries"), 0.0);
    (0..2).for_each(|_| assert_eq!(place.constant("m"), Some(2.0)));
    assert_eq!(cache(&place, "entries"), 1.0);
}

#[test]
fn the_same_version_from_another_place_has_responses_of_its_own() {
    let models = [("a/m/1", Model::constant(1.0)), ("b/m/1", Model::constant(2.0))];
    let model = |root: &std::path::Path, folder: &str| ModelSettings {
        name: Some("m".to_owned()),
        path: Some(root.join(folder).join("m")),
        ..ModelSettings::default()
    };
    let place = Place::with(&models, |settings, root| {
        cached(settings);
        settings.models.push(model(root, "a"));
    });
    place.server.wait_until_started();
    (0..2).for_each(|_| assert_eq!(place.constant("m"), Some(1.0)));
    let reload = |folder: &str, is_cached: bool| {
        let mut settings = settings();
        cached(&mut settings);
        settings.each.response_cache = Some(is_cached);
        settings.models.push(model(&place.path(""), folder));
        wait(place.server.engine.reload(config(settings).repository.sources)).expect("reloads");
    };
    reload("b", true);
    (0..2).for_each(|_| assert_eq!(place.constant("m"), Some(2.0)));
    assert_eq!(lookups(&place), [Some(2.0), Some(2.0)]);
    // It can be switched off while the server runs.
    reload("b", false);
    let runs = place.fake.runs().len();
    (0..2).for_each(|_| assert_eq!(place.constant("m"), Some(2.0)));
    assert_eq!(place.fake.runs().len(), runs + 2);
    assert_eq!(lookups(&place), [Some(2.0), Some(2.0)]);
}

#[test]
fn memory_is_bounded_and_large_requests_pass_it_by() {
    let place = Place::of(&Model::default(), cached);
    for number in 0..300 {
        let row = vec![number.to_string(); 1000].join(",");
        assert_eq!(place.predict("m", &format!("[[{row}]]")).status, 200);
        assert!(cache(&place, "bytes") <= f64::from(1 << 20));
    }
    assert!(cache(&place, "evictions_total") > 100.0);
    assert!(cache(&place, "bytes") > f64::from(1 << 19));
    let (entries, lookups_before) = (cache(&place, "entries"), lookups(&place));
    let row = vec!["1"; 20_000].join(",");
    (0..2).for_each(|_| assert_eq!(place.predict("m", &format!("[[{row}]]")).status, 200));
    assert_eq!((cache(&place, "entries"), lookups(&place)), (entries, lookups_before));
}

#[test]
fn what_a_shadow_answers_is_not_taken_from_it() {
    let models = [("models/m/1", Model::constant(1.0)), ("models/m/2", Model::constant(1.0))];
    let place = Place::with(&models, |settings, root| {
        cached(settings);
        let mut model = ModelSettings {
            name: Some("m".to_owned()),
            path: Some(root.join("models/m")),
            labels: [("canary".to_owned(), 1)].into(),
            shadow: Some("canary".to_owned()),
            ..ModelSettings::default()
        };
        model.each.version_policy = Some("all".to_owned());
        settings.models.push(model);
    });
    place.server.wait_until_started();
    (0..3).for_each(|_| assert_eq!(place.constant("m"), Some(1.0)));
    let same = "tensorserve_shadow_requests_total{model=\"m\",result=\"same\"}";
    place.server.wait_until("3 shadow requests", |_| place.metric(same) == Some(3.0));
    assert_eq!(place.fake.runs().len(), 4);
}

#[test]
fn a_real_model_is_cached() {
    let path = data("tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu");
    let server = TestServer::with(&path, |settings| {
        settings.server.model_name = Some("half_plus_two".to_owned());
        cached(settings);
    });
    (0..3).for_each(|_| server.assert_serves("a response was kept"));
    let text = server.get("/metrics").text();
    let line = "tensorserve_response_cache_lookups_total{model=\"half_plus_two\",result=\"hit\"} 2";
    assert!(text.contains(line), "{text}");
}
