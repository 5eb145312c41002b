//! The read-only console API: status, models, the history of the last 15 minutes, the stream.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensorserve::config::Settings;

use crate::support::client::{self, Client};
use crate::support::events::Events;
use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::project;
use crate::support::server::TestServer;

fn no_change(_: &mut Settings, _: &std::path::Path) {}

fn status(server: &TestServer) -> Value {
    let answer = server.get("/api/v1/status");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    answer.json()
}

/// A version of the model `m` in the status.
fn version(server: &TestServer, number: i64) -> Value {
    let status = status(server);
    let models = status["models"].as_array().expect("models");
    let model = models.iter().find(|model| model["name"] == "m");
    let versions = model.and_then(|model| model["versions"].as_array());
    let mut found = versions.into_iter().flatten();
    found.find(|v| v["version"] == number).cloned().unwrap_or_default()
}

fn wait_for(server: &TestServer, number: i64, state: &str) -> Value {
    server.wait_until(&format!("version {number}: {state}"), |s| {
        version(s, number)["state"] == state
    });
    version(server, number)
}

/// The version and the kind of each lifecycle event of the model `m`.
fn lifecycle_events(server: &TestServer) -> Vec<(Value, String)> {
    let model = server.get("/api/v1/models/m").json();
    let history = model["history"].as_array().expect("history").iter();
    let brief = |h: &Value| (h["version"].clone(), h["what"].as_str().unwrap().to_owned());
    history.map(brief).collect()
}

#[test]
fn the_status_follows_versions_through_their_lives() {
    let gated = Model { loading: Loading::Gated, ..Model::default() };
    let place = Place::with(&[("models/m/1", gated)], no_change);
    let server = &place.server;
    place.wait_for_load_at_gate();
    let loading = wait_for(server, 1, "LOADING");
    assert_eq!((&loading["load_ms"], &loading["memory_bytes"]), (&Value::Null, &Value::Null));
    assert_eq!(status(server)["server"]["ready"], false);
    assert!(!status(server)["server"]["reasons"].as_array().unwrap().is_empty());
    place.fake.loads_gate().open();
    let live = wait_for(server, 1, "AVAILABLE");
    assert!(live["load_ms"].as_f64().unwrap() > 0.0, "{live}");
    assert_eq!(live["memory_bytes"], 1000);
    let now = status(server)["server"]["now"].as_u64().unwrap();
    assert!((now - 20_000..=now).contains(&live["since"].as_u64().unwrap()), "{live} at {now}");
    server.wait_until("the server is ready", |s| status(s)["server"]["ready"] == true);
    // A version that fails to load reports the reason, and the old version stays served.
    place.write("models/m/2", &Model { loading: Loading::Fails, ..Model::default() });
    let failed = wait_for(server, 2, "FAILED");
    assert_eq!(failed["error"], "this model does not load");
    assert_eq!(version(server, 1)["state"], "AVAILABLE");
    // An incomplete version waits for its files.
    let incomplete = Model { files: vec!["weights".into()], ..Model::default() };
    incomplete.write_marker(&place.path("models/m/3"));
    server.wait_until("the missing file is reported", |s| {
        version(s, 3)["error"].as_str().is_some_and(|error| error.contains("weights is missing"))
    });
    assert_eq!(version(server, 3)["state"], "FOUND");
    fs::write(place.path("models/m/3/weights"), "x").expect("written");
    wait_for(server, 3, "AVAILABLE");
    wait_for(server, 1, "END");
    let model = &status(server)["models"][0];
    assert_eq!((&model["platform"], &model["source"]), (&json!("fake"), &json!("configured")));
    let events = lifecycle_events(server);
    for (version, what) in
        [(1, "loading"), (1, "available"), (2, "failed"), (3, "available"), (1, "end")]
    {
        let event = (json!(version), what.to_owned());
        assert!(events.contains(&event), "{event:?} is not in {events:?}");
    }
}

#[test]
fn the_history_has_what_was_sent() {
    let model = Model { fails_on: Some(13.0), ..Model::default() };
    let place = Place::of(&model, |_| ());
    for _ in 0..7 {
        assert_eq!(place.predict("m", "[[1.0]]").status, 200);
    }
    for _ in 0..3 {
        assert_eq!(place.predict("m", "[[13.0]]").status, 400);
    }
    assert_eq!(place.predict("nobody", "[[1.0]]").status, 404);
    let sum = |path: &str, member: &str| -> u64 {
        let history = place.server.get(path).json();
        let points = history["points"].as_array().expect("points").clone();
        points.iter().map(|point| point[member].as_u64().unwrap()).sum()
    };
    let all = "/api/v1/history";
    place.server.wait_until("all are counted", |_| sum(all, "requests") >= 11);
    assert_eq!((sum(all, "requests"), sum(all, "errors")), (11, 4));
    let own = "/api/v1/history?model=m";
    assert_eq!((sum(own, "requests"), sum(own, "errors")), (10, 3));
    let points = place.server.get(own).json();
    assert_eq!(
        (&points["step_seconds"], points["points"].as_array().unwrap().len()),
        (&json!(15), 60)
    );
    let busy = points["points"].as_array().unwrap().iter().rev().find(|p| p["requests"] != 0);
    let busy = busy.expect("a point with requests");
    assert!(busy["errors_by_code"]["INVALID_ARGUMENT"].as_u64() > Some(0), "{busy}");
    assert!(busy["p50_ms"].as_f64() <= busy["p99_ms"].as_f64() && busy["p99_ms"].is_number());
    assert!(busy["batch_rows"]["1"].as_u64() > Some(0) && busy["batch_rows"]["more"] == 0);
    let last_used = version(&place.server, 1)["last_used"].as_u64();
    assert!(last_used.is_some());
    let coarse = place.server.get("/api/v1/history?step=5").json();
    assert_eq!(coarse["step_seconds"], 5);
    assert_eq!(sum("/api/v1/history?step=60", "requests"), 11);
    for (path, status) in
        [("?step=0", 400), ("?step=61", 400), ("?step=x", 400), ("?model=no", 404)]
    {
        assert_eq!(place.server.get(&format!("{all}{path}")).status, status, "{path}");
    }
}

#[test]
fn a_model_in_detail_has_its_signatures() {
    let server = TestServer::of(&project("models/half_plus_two"));
    let model = server.get("/api/v1/models/half_plus_two").json();
    let version = &model["versions"][0];
    assert_eq!((&version["state"], &version["version"]), (&json!("AVAILABLE"), &json!(1)));
    assert!(version["path"].as_str().unwrap().ends_with("half_plus_two/1"), "{version}");
    assert_eq!(version["warm_up"]["ran"], true);
    assert_eq!(version["batching"]["max_batch_size"], 64);
    let signatures = version["signatures"].as_array().expect("signatures");
    let default = signatures.iter().find(|s| s["name"] == "serving_default").expect("a signature");
    let input = &default["inputs"][0];
    assert_eq!((&input["dtype"], &input["kind"]), (&json!("float32"), &json!("number")));
    // The example is a valid request.
    let example = &default["example"]["data"];
    let body = json!({ "inputs": example }).to_string();
    let answer = server.post("/v1/models/half_plus_two:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let missing = server.get("/api/v1/models/nobody");
    missing.assert_refused("no model", 404, "nobody");
    assert!(status(&server)["server"]["runtimes"][0].as_str().unwrap().contains("tensorflow"));
}

#[test]
fn odd_names_come_out_as_json() {
    let names = ["<img onerror=alert(1) src=x>", "a\"b\\c", "line\nbreak", "100%41", "ünï €"];
    let models: Vec<(String, Model)> =
        names.iter().map(|name| (format!("models/{name}/1"), Model::default())).collect();
    let models: Vec<(&str, Model)> =
        models.iter().map(|(path, model)| (path.as_str(), model.clone())).collect();
    let place = Place::with(&models, no_change);
    place.server.wait_until_started();
    let all = status(&place.server);
    let shown: Vec<&str> =
        all["models"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    for name in names {
        assert!(shown.contains(&name), "{name} is not in {shown:?}");
        let path: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let model = place.server.get(&format!("/api/v1/models/{path}")).json();
        assert_eq!(model["name"], name);
        assert_eq!(place.server.get(&format!("/api/v1/history?model={path}")).status, 200);
    }
    let mut events = Events::listen(place.server.address, "/api/v1/stream");
    assert_eq!(events.next().expect("a status").1["models"], all["models"]);
    let long = "x".repeat(10_000);
    let answer = place.server.get(&format!("/api/v1/models/{long}"));
    answer.assert_refused("a long name", 404, "there is no model");
    let api = place.server.get("/openapi.json").json();
    assert!(api["paths"].as_object().unwrap().keys().any(|path| path.contains("%3Cimg")));
}

#[test]
fn the_stream_tells_every_second_and_ends_with_the_server() {
    let place = Place::of(&Model::default(), |_| ());
    let mut all: Vec<Events> =
        (0..20).map(|_| Events::listen(place.server.address, "/api/v1/stream")).collect();
    let events = &mut all[0];
    assert!(events.head.contains("text/event-stream"), "{}", events.head);
    let (name, first) = events.next().expect("an event");
    assert_eq!(name, "status");
    assert_eq!(first["models"][0]["name"], "m");
    assert_eq!(first["server"]["roles"], json!(["admin", "infer", "metrics"]));
    let start = Instant::now();
    for _ in 0..3 {
        let point = events.next_named("point").expect("a point");
        assert!(point["seconds"].as_f64().unwrap() < 10.0, "{point}");
    }
    assert!(start.elapsed() > Duration::from_secs(1), "the points came too fast");
    let connections = status(&place.server)["server"]["connections"].as_u64();
    assert!(connections >= Some(20), "{connections:?}");
    // A shutdown does not wait for the streams, and sends a last status to each.
    let (sender, receiver) = std::sync::mpsc::channel();
    let stop = thread::spawn(move || {
        let start = Instant::now();
        let Place { server, .. } = place;
        server.stop();
        sender.send(start.elapsed()).expect("sent");
    });
    for events in &mut all {
        let mut last = Value::Null;
        while let Some(status) = events.next_named("status") {
            last = status;
        }
        assert_eq!(last["server"]["stopping"], true);
        assert_eq!(last["server"]["ready"], false);
    }
    stop.join().expect("server stops");
    let took = receiver.recv().expect("shutdown time");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn no_more_listen_than_may() {
    let place = Place::of(&Model::default(), |_| ());
    let address = place.server.address;
    let all: Vec<Events> = (0..100).map(|_| Events::listen(address, "/api/v1/stream")).collect();
    let refused = place.server.get("/api/v1/stream");
    refused.assert_refused("one too many", 503, "connected to the stream");
    drop(all);
    place.server.wait_until("a stream is accepted", |_| {
        Events::listen(address, "/api/v1/stream").head.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn pages_of_other_hosts_cannot_read_without_authentication() {
    let place = Place::of(&Model::default(), |settings| {
        settings.server.console_hosts = Some("models.example".parse().expect("a list"));
    });
    let address = place.server.address;
    for path in [
        "/api/v1/status",
        "/api/v1/audit",
        "/api/v1/models/m",
        "/api/v1/history?model=m",
        "/api/v1/stream",
    ] {
        let ask = |host: &str, origin: &str| {
            let mut client = Client::connect(address).expect("connects");
            let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{origin}\r\n");
            client.send(head.as_bytes()).expect("sent");
            client.answer("HEAD").expect("an answer").status
        };
        assert_eq!(ask("evil.example:8500", ""), 403, "{path}");
        assert_eq!(ask("localhost", "Origin: http://evil.example\r\n"), 403, "{path}");
        for host in ["localhost:8500", "127.0.0.1", "models.example:8500"] {
            assert_eq!(ask(host, ""), 200, "{path} of {host}");
            assert_eq!(ask(host, &format!("Origin: http://{host}\r\n")), 200, "{path} of {host}");
        }
    }
}

#[test]
fn paths_and_methods_that_are_not_there() {
    let place = Place::of(&Model::default(), |_| ());
    place.server.get("/api/v1/nothing").assert_refused("no path", 404, "nothing");
    for (method, path, allowed) in [
        ("POST", "/api/v1/status", "GET, HEAD"),
        ("HEAD", "/api/v1/stream", "GET"),
        ("GET", "/api/v1/drain", "POST"),
        ("PUT", "/api/v1/models/m/load", "POST"),
        ("GET", "/api/v1/models/m/versions/1/labels/x", "DELETE"),
    ] {
        let answer = client::request(place.server.address, method, path, &[], "");
        assert_eq!(answer.status, 405, "{method} {path}");
        assert_eq!(answer.headers["allow"], allowed, "{method} {path}");
    }
    let mut client = Client::connect(place.server.address).expect("connects");
    for path in ["/api/v1/status", "/api/v1/history", "/api/v1/models/m", "/openapi.json"] {
        let answer = client.request("HEAD", path, &[], b"").expect("an answer");
        assert_eq!(answer.status, 200, "{path}");
    }
    let off = Place::of(&Model::default(), |settings| settings.server.console = Some(false));
    for path in ["/api/v1/status", "/api/v1/stream", "/openapi.json"] {
        assert_eq!(off.server.get(path).status, 404, "{path}");
    }
}

#[test]
fn a_thousand_models_are_told_of_quickly() {
    let paths: Vec<String> = (0..1000).map(|number| format!("models/m{number}/1")).collect();
    let models: Vec<(&str, Model)> =
        paths.iter().map(|path| (path.as_str(), Model::default())).collect();
    let place = Place::with(&models, |settings, _| {
        settings.each.warm_up = Some(false);
        settings.server.poll_interval = Some("2s".parse().expect("a duration"));
    });
    place.server.wait_until_started();
    let mut times: Vec<Duration> = (0..10)
        .map(|_| {
            let start = Instant::now();
            let status = status(&place.server);
            assert_eq!(status["models"].as_array().unwrap().len(), 1000);
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("the status of 1,000 models took {:?}", times[5]);
    // A debug build, with the client's parsing, on a busy machine.
    assert!(times[5] < Duration::from_secs(20), "{times:?}");
}

#[test]
fn requests_that_are_not_understood_count_for_the_model_of_their_url() {
    let broken = Model { loading: Loading::Fails, ..Model::default() };
    let models = [("models/m/1", Model::default()), ("models/b/3", broken)];
    let place = Place::with(&models, no_change);
    let server = &place.server;
    server.wait_until_started();
    for _ in 0..3 {
        assert_eq!(server.post("/v1/models/m:predict", "{").status, 400);
    }
    assert_eq!(server.post("/v1/models/m:regress", "{").status, 400);
    assert_eq!(server.post("/v2/models/m/infer", "[").status, 400);
    assert_eq!(server.post("/v1/models/m/versions/9:predict", "{\"instances\": [1]}").status, 404);
    assert_eq!(place.predict("b", "[1]").status, 404);
    assert_eq!(place.predict("invented", "[1]").status, 404);
    let counted = |model: &str, version: &str, rest: &str| {
        let labels = format!("model=\"{model}\",version=\"{version}\",signature=\"\",{rest}");
        place.metric(&format!("tensorserve_requests_total{{{labels}}}"))
    };
    let rest = |protocol: &str, method: &str, code: &str| {
        format!("protocol=\"{protocol}\",method=\"{method}\",code=\"{code}\"")
    };
    let wrong = rest("tfs_rest", "predict", "INVALID_ARGUMENT");
    assert_eq!(counted("m", "1", &wrong), Some(3.0));
    assert_eq!(counted("m", "1", &rest("tfs_rest", "regress", "INVALID_ARGUMENT")), Some(1.0));
    let v2 = server.get("/metrics").text();
    assert!(
        v2.contains("{model=\"m\",version=\"1\",signature=\"\",protocol=\"open_inference"),
        "{v2}"
    );
    let missing = rest("tfs_rest", "predict", "NOT_FOUND");
    for (model, count) in [("m", Some(1.0)), ("b", Some(1.0)), ("", Some(1.0)), ("invented", None)]
    {
        assert_eq!(counted(model, "", &missing), count, "{model}");
    }

    let model = |name: &str| {
        let status = status(server);
        let mut models = status["models"].as_array().expect("models").iter();
        models.find(|model| model["name"] == name).cloned().expect("the model")
    };
    server.wait_until("the rates", |_| {
        version(server, 1)["errors_per_second"].as_f64() > Some(0.0)
            && model("b")["unserved"]["errors_per_second"].as_f64() > Some(0.0)
    });
    let of_version = version(server, 1);
    assert_eq!(of_version["error_percent"], 100.0);
    assert!(of_version["last_used"].as_u64() > Some(0), "{of_version}");
    let of_broken = model("b");
    assert!(of_broken["unserved"]["last_used"].as_u64() > Some(0), "{of_broken}");
    assert_eq!(of_broken["last_error"]["code"], "NOT_FOUND");
    assert_eq!(place.predict("m", "[\"x\"]").status, 400);
    let last = model("m")["last_error"].clone();
    assert_eq!(last["code"], "INVALID_ARGUMENT", "{last}");
    assert_eq!(last["message"], place.predict("m", "[\"x\"]").error(), "{last}");
    assert!(last["at"].as_u64() > Some(1_600_000_000_000), "{last}");
    let detail = server.get("/api/v1/models/m").json();
    assert_eq!(detail["last_error"]["code"], "INVALID_ARGUMENT");
    // What a model had goes away with it.
    fs::remove_dir_all(place.path("models/b")).expect("removed");
    server.wait_until("the series go away", |s| {
        !s.get("/metrics").text().contains("model=\"b\",version=\"\"")
    });
}
