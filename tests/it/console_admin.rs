//! Changes through the console during requests, and their entries in the audit log.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use serde_json::{Value, json};

use crate::support::client::{self, Answer};
use crate::support::fake::{Loading, Model};
use crate::support::pause_between_requests;
use crate::support::place::Place;

/// A server with versions 1 and 2 of the model `m`, and the model `other`.
fn place() -> Place {
    let models = [
        ("models/m/1", Model::constant(1.0)),
        ("models/m/2", Model::constant(2.0)),
        ("models/other/1", Model::constant(7.0)),
        ("elsewhere/secret/1", Model::constant(9.0)),
    ];
    let place = Place::with(&models, |settings, root| {
        settings.paths.push(root.join("models"));
        settings.each.version_policy = Some("all".to_owned());
    });
    place.server.wait_until_started();
    place
}

fn post(place: &Place, path: &str, body: &Value) -> Answer {
    place.server.post(&format!("/api/v1/{path}"), body.to_string())
}

fn assert_done(answer: &Answer) {
    assert_eq!((answer.status, answer.json()), (200, json!({ "ok": true })), "{}", answer.text());
}

fn model(place: &Place, name: &str) -> Value {
    let status = place.server.get("/api/v1/status").json();
    let models = status["models"].as_array().expect("models").clone();
    models.into_iter().find(|model| model["name"] == name).unwrap_or_default()
}

fn audit(place: &Place) -> Vec<Value> {
    let all = place.server.get("/api/v1/audit").json();
    all["entries"].as_array().expect("entries").clone()
}

#[test]
fn a_model_is_taken_out_of_service_and_put_back() {
    let place = place();
    assert_done(&post(&place, "models/m/unload", &json!({})));
    // The model is out of memory when the response arrives, and the next polls do not reload it.
    assert_eq!(place.fake.alive(), 1);
    assert_eq!(place.predict("m", "[[0]]").status, 404);
    place.wait_for_looks("models");
    assert_eq!(place.predict("m", "[[0]]").status, 404);
    assert_eq!(model(&place, "m")["offline"], true);
    // An offline model does not affect readiness.
    assert_eq!(place.server.get("/readyz").status, 200);
    // A new version on disk does not bring it back.
    place.write("models/m/3", &Model::constant(3.0));
    place.wait_for_looks("models");
    assert_eq!(place.predict("m", "[[0]]").status, 404);
    assert_done(&post(&place, "models/m/load", &json!({})));
    assert_eq!(place.constant("m"), Some(3.0));
    assert_eq!(model(&place, "m")["offline"], false);
    let again = post(&place, "models/m/load", &json!({}));
    again.assert_refused("twice", 409, "already");
    let entries = audit(&place);
    let brief: Vec<(&Value, &Value)> =
        entries.iter().map(|e| (&e["what"], &e["outcome"])).collect();
    assert_eq!(brief[..2], [(&json!("unload"), &json!("ok")), (&json!("load"), &json!("ok"))]);
    assert!(brief[2].1.as_str().unwrap().contains("already"));
    assert_eq!((&entries[0]["model"], &entries[0]["from"]), (&json!("m"), &json!("127.0.0.1")));
    let detail = place.server.get("/api/v1/models/m").json();
    let history = detail["history"].as_array().expect("history");
    let unloaded = history.iter().find(|h| h["what"] == "unload").expect("unloaded");
    assert_eq!((&unloaded["who"], &unloaded["version"]), (&json!("request"), &Value::Null));
}

#[test]
fn putting_back_what_does_not_load_says_why() {
    let place = place();
    assert_done(&post(&place, "models/other/unload", &json!({})));
    fs::remove_dir_all(place.path("models/other/1")).expect("removed");
    place.write("models/other/1", &Model { loading: Loading::Fails, ..Model::default() });
    let answer = post(&place, "models/other/load", &json!({}));
    assert_ne!(answer.status, 200);
    assert!(answer.error().contains("does not load"), "{}", answer.text());
}

#[test]
fn models_are_loaded_from_folders_that_are_served_and_no_others() {
    let place = place();
    let root = place.path("");
    let at = |path: &str| json!({ "path": root.join(path).to_str().expect("text") });
    assert_done(&post(&place, "models/copy/load", &at("models/m")));
    assert_eq!(place.constant("copy"), Some(2.0));
    assert_eq!(model(&place, "copy")["source"], "loaded");
    assert_done(&post(&place, "models/copy/unload", &json!({})));
    assert_eq!(model(&place, "copy"), Value::Null);
    symlink(place.path("elsewhere/secret"), place.path("models/.link")).expect("a link");
    let relative = json!({ "path": "models/m" });
    for bad in [
        at("elsewhere/secret"),
        at("models/../elsewhere/secret"),
        at("models/.link"),
        at("models/nothing"),
        at(""),
        json!({ "path": "/etc" }),
        json!({ "path": "/" }),
        json!({ "path": "" }),
        json!({ "path": "a\0b" }),
        relative,
    ] {
        let answer = post(&place, "models/new/load", &bad);
        answer.assert_refused(&bad.to_string(), 403, "not inside a directory");
    }
    assert_eq!(post(&place, "models/m/load", &at("models/other")).status, 409);
    for name in ["a%2Fb", "a%3Ab", "%2E%2E%2F..", "a%00b", &"x".repeat(300)] {
        let answer = post(&place, &format!("models/{name}/load"), &at("models/m"));
        answer.assert_refused(name, 400, "name");
    }
}

#[test]
fn labels_and_batching_change_while_requests_go_on() {
    let place = place();
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let answer = place.predict("m", "[[0]]");
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    answered.fetch_add(1, SeqCst);
                    pause_between_requests();
                }
            });
        }
        let labelled = |label: &str| {
            let path = format!("/v1/models/m/labels/{label}:predict");
            let answer = place.server.post(&path, r#"{"instances": [[0]]}"#);
            (answer.status == 200).then(|| answer.json()["predictions"][0].as_f64()).flatten()
        };
        assert_done(&post(&place, "models/m/versions/1/labels", &json!({ "label": "stable" })));
        assert_eq!(labelled("stable"), Some(1.0));
        assert_done(&post(&place, "models/m/versions/2/labels", &json!({ "label": "stable" })));
        assert_eq!(labelled("stable"), Some(2.0));
        place.wait_for_looks("models");
        assert_eq!(labelled("stable"), Some(2.0));
        assert_eq!(model(&place, "m")["labels"], json!({ "stable": 2 }));
        let remove = |version: u32| {
            let path = format!("/api/v1/models/m/versions/{version}/labels/stable");
            client::request(place.server.address, "DELETE", &path, &[], "")
        };
        assert_eq!(remove(1).status, 404);
        assert_done(&remove(2));
        assert_eq!(labelled("stable"), None);
        for number in [7, 50, 3] {
            let batching = json!({ "max_batch_size": number, "batching": "on" });
            assert_done(&post(&place, "models/m/batching", &batching));
            let detail = place.server.get("/api/v1/models/m").json();
            let now = &detail["versions"][0]["batching"];
            assert_eq!((&now["max_batch_size"], &now["batching"]), (&json!(number), &json!("on")));
            place.wait_for_looks("models");
        }
        let five = place.predict("m", "[[0], [0], [0], [0], [0]]");
        five.assert_refused("five rows", 400, "larger than maximum input batch size 3");
        stop.store(true, SeqCst);
    });
    assert!(answered.load(SeqCst) > 0);
    let actions: Vec<Value> = audit(&place).iter().map(|entry| entry["what"].clone()).collect();
    assert_eq!(actions[..4], ["set_label", "set_label", "remove_label", "remove_label"]);
    assert_eq!(audit(&place)[4]["details"], json!({ "batching": "on", "max_batch_size": 7 }));
}

#[test]
fn a_drained_server_is_not_ready_and_serves() {
    let place = place();
    assert_done(&post(&place, "drain", &json!({ "draining": true })));
    let ready = place.server.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("drain"), "{}", ready.text());
    assert_eq!(place.constant("m"), Some(2.0));
    let status = place.server.get("/api/v1/status").json();
    assert_eq!(
        (&status["server"]["draining"], &status["server"]["ready"]),
        (&json!(true), &json!(false))
    );
    assert_done(&post(&place, "drain", &json!({ "draining": false })));
    assert_eq!(place.server.get("/readyz").status, 200);
}

#[test]
fn what_is_not_as_it_should_be_changes_nothing() {
    let place = place();
    let raw = |path: &str, kind: Option<&str>, body: &str| {
        let headers: Vec<(&str, &str)> =
            kind.map(|kind| ("Content-Type", kind)).into_iter().collect();
        client::request(place.server.address, "POST", &format!("/api/v1/{path}"), &headers, body)
    };
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        let answer = raw("models/m/unload", kind, "{}");
        answer.assert_refused("another type", 400, "application/json");
    }
    let json = Some("application/json; charset=utf-8");
    let deep = "[".repeat(10_000);
    for (path, body) in [
        ("models/m/unload", ""),
        ("models/m/unload", "[]"),
        ("models/m/unload", "{\"force\": true}"),
        ("models/m/unload", deep.as_str()),
        ("models/m/load", "{\"path\": 7}"),
        ("models/m/load", "{\"paths\": \"x\"}"),
        ("models/m/versions/1/labels", "{}"),
        ("models/m/versions/1/labels", "{\"label\": \"\"}"),
        ("models/m/versions/1/labels", "{\"label\": \"a/b\"}"),
        ("models/m/versions/x/labels", "{\"label\": \"a\"}"),
        ("models/m/versions/-1/labels", "{\"label\": \"a\"}"),
        ("models/m/versions/9/labels", "{\"label\": \"a\"}"),
        ("models/m/batching", "{\"max_batch_size\": 0}"),
        ("models/m/batching", "{\"max_batch_size\": -1}"),
        ("models/m/batching", "{\"batching\": \"sometimes\"}"),
        ("models/m/batching", "{\"allowed_batch_sizes\": [4, 2]}"),
        ("models/m/batching", "{\"max_batch_siz\": 1}"),
        ("drain", "{\"draining\": \"yes\"}"),
        ("drain", "null"),
    ] {
        let answer = raw(path, json, body);
        answer.assert_refused(&format!("{path} {body:.40}"), 400, "");
    }
    for path in ["models/no/unload", "models/no/load", "models/no/batching"] {
        assert_eq!(raw(path, json, "{}").status, 404, "{path}");
    }
    let large = format!("{{\"path\": \"{}\"}}", "x".repeat(100_000));
    assert_eq!(raw("models/m/load", json, &large).status, 413);
    assert_eq!(place.constant("m"), Some(2.0));
    assert_eq!(place.server.get("/readyz").status, 200);
}
