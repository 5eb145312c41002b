//! Operation of the server: health, readiness, metrics, and shutdown.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::support::client;
use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::server::TestServer;

#[test]
fn ready_is_when_every_model_is_and_healthy_is_always() {
    let slow = Model { loading: Loading::Gated, ..Model::default() };
    let models = [("models/quick/1", Model::default()), ("models/slow/1", slow)];
    let place = Place::with(&models, |_, _| ());
    place.wait_for_load_at_gate();
    place
        .server
        .wait_until("model quick serves", |_| place.predict("quick", "[[1]]").status == 200);
    let answer = place.server.get("/readyz");
    assert_eq!(answer.status, 503);
    let reasons = "models are being discovered and loaded; model slow: version 1: loading";
    assert_eq!(answer.error(), reasons);
    assert_eq!(place.server.get("/healthz").text(), "ok\n");
    assert_eq!(place.metric("tensorserve_ready"), Some(0.0));
    place.fake.loads_gate().open();
    place.server.wait_until_started();
    let answer = place.server.get("/readyz");
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"));
    assert_eq!(place.server.get("/healthz").status, 200);
    assert_eq!(place.metric("tensorserve_ready"), Some(1.0));
}

#[test]
fn a_model_without_a_version_that_serves_is_the_reason_not_to_be_ready() {
    let broken = Model { loading: Loading::Fails, ..Model::default() };
    let models = [("models/a/1", Model::default()), ("models/b/3", broken)];
    let place = Place::with(&models, |_, _| ());
    place.server.wait_until_started();
    let answer = place.server.get("/readyz");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.error(), "model b: version 3: failed: this model does not load");
    assert_eq!(place.server.get("/healthz").status, 200);
    assert_eq!(place.predict("a", "[[1]]").status, 200);
    // One version that serves is enough.
    place.write("models/b/4", &Model::default());
    place.server.wait_until("the server is ready", |s| s.get("/readyz").status == 200);
}

const SIGNATURE: &str = "model=\"m\",version=\"1\",signature=\"serving_default\"";

#[test]
fn metrics_tell_what_was_asked_run_and_loaded() {
    let model = Model { fails_on: Some(9.0), ..Model::default() };
    let place = Place::of(&model, |settings| {
        // Batch threads have a queue, so queue delays are counted.
        settings.server.inline_budget_micros = Some(0);
        settings.batching.batching = Some("on".to_owned());
    });
    assert_eq!(place.predict("m", "[[1], [2], [3]]").status, 200);
    assert_eq!(place.predict("m", "[[1]]").status, 200);
    assert_eq!(place.predict("m", "[[9]]").status, 400);
    assert_eq!(place.predict("unknown", "[[1]]").status, 404);
    let requests = |code: &str| {
        let series = format!(
            "tensorserve_requests_total{{{SIGNATURE},protocol=\"tfs_rest\",method=\"predict\",code=\"{code}\"}}"
        );
        place.metric(&series)
    };
    assert_eq!(requests("OK"), Some(2.0));
    assert_eq!(requests("INVALID_ARGUMENT"), Some(1.0));
    let of_signature = |name: &str| place.metric(&format!("tensorserve_{name}{{{SIGNATURE}}}"));
    // Neither warm-up runs nor failed runs are counted here.
    assert_eq!(of_signature("batch_rows_count"), Some(2.0));
    assert_eq!(of_signature("batch_rows_sum"), Some(4.0));
    assert_eq!(of_signature("run_duration_seconds_count"), Some(2.0));
    assert_eq!(of_signature("queue_duration_seconds_count"), Some(3.0));
    let latency = "tensorserve_request_duration_seconds_count";
    let ok =
        format!("{latency}{{{SIGNATURE},protocol=\"tfs_rest\",method=\"predict\",code=\"OK\"}}");
    assert_eq!(place.metric(&ok), Some(2.0));
    // Names that clients invent do not become labels.
    let nothing = "model=\"\",version=\"\",signature=\"\",protocol=\"tfs_rest\",method=\"predict\",code=\"NOT_FOUND\"";
    assert_eq!(place.metric(&format!("tensorserve_requests_total{{{nothing}}}")), Some(1.0));
    let of_version =
        |name: &str| place.metric(&format!("tensorserve_{name}{{model=\"m\",version=\"1\"}}"));
    assert_eq!(of_version("load_duration_seconds_count"), Some(1.0));
    assert_eq!(of_version("model_bytes"), Some(1000.0));
    let loads = place.metric("tensorserve_loads_total{model=\"m\",result=\"ok\"}");
    assert_eq!(loads, Some(1.0));
    assert_eq!(place.metric("tensorserve_panics_total"), Some(0.0));
}

#[test]
fn metrics_come_in_the_format_that_the_client_prefers() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    assert_eq!(place.constant("m"), Some(1.0));
    let ask = |accept: &str| {
        let headers = [("Accept", accept)];
        client::request(place.server.address, "GET", "/metrics", &headers, "")
    };
    for accept in [
        "*/*",
        "application/openmetrics-text",
        // Prometheus 3.
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.3,*/*;q=0.2",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    ] {
        let answer = ask(accept);
        assert!(answer.headers["content-type"].starts_with("application/openmetrics-text"));
        assert!(answer.text().ends_with("# EOF\n"), "{accept}");
    }
    for accept in ["text/plain", "text/plain;version=0.0.4;q=0.9,*/*;q=0.1", "text/*"] {
        let answer = ask(accept);
        let kind = &answer.headers["content-type"];
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8", "{accept}");
        let text = answer.text();
        assert!(text.contains("# TYPE tensorserve_requests_total counter\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }
}

#[test]
fn the_series_of_a_version_go_away_with_it() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    assert_eq!(place.constant("m"), Some(1.0));
    assert_eq!(place.predict("m", "[[\"x\"]]").status, 400);
    assert!(place.server.get("/metrics").text().contains("version=\"1\""));
    place.write("models/m/2", &Model::constant(2.0));
    place.wait_for_state("m", 1, "END");
    let text = place.server.get("/metrics").text();
    assert!(!text.contains("version=\"1\""), "{text}");
    assert!(text.contains("version=\"2\""), "{text}");
    let loads = place.metric("tensorserve_loads_total{model=\"m\",result=\"ok\"}");
    assert_eq!(loads, Some(2.0));
}

#[test]
fn requests_in_flight_are_counted() {
    let place = Place::of(&Model::gated(), |settings| {
        settings.server.inline_budget_micros = Some(0);
    });
    // The request for the metrics is in flight itself.
    let in_flight = || place.metric("tensorserve_in_flight_requests");
    assert_eq!(in_flight(), Some(1.0));
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(place.predict("m", "[[1]]").status, 200));
        place.wait_for_runs_at_gate(1);
        assert_eq!(in_flight(), Some(2.0));
        place.fake.runs_gate().open();
    });
    assert_eq!(in_flight(), Some(1.0));
}

fn can_connect(server: &std::net::SocketAddr) -> bool {
    TcpStream::connect_timeout(server, Duration::from_millis(200)).is_ok()
}

#[test]
fn a_server_that_stops_finishes_what_is_under_way_and_takes_nothing_new() {
    let place = Place::of(&Model::gated(), |settings| {
        settings.server.inline_budget_micros = Some(0);
        settings.server.num_batch_threads = Some(2);
        settings.server.shutdown_delay = Some("1s".parse().expect("a duration"));
    });
    let Place { server, fake, .. } = place;
    let address = server.address;
    let predict = move || {
        let body = "{\"instances\": [[1]]}";
        client::post(address, "/v1/models/m:predict", body)
    };
    let slow = thread::spawn(predict);
    TestServer::wait_until(&server, "the request runs", |_| fake.runs_gate().waiting() == 1);
    let stopping = thread::spawn(move || server.stop());
    // First it only reports not ready, and still serves clients that have not noticed.
    loop {
        let answer = client::get(address, "/readyz");
        if answer.status == 503 {
            assert_eq!(answer.error(), "the server is stopping");
            break;
        }
    }
    let answer = client::get(address, "/healthz");
    assert_eq!(answer.status, 200);
    assert!(answer.closes(), "{:?}", answer.headers);
    let meanwhile = client::get(address, "/v1/models/m");
    assert_eq!(meanwhile.status, 200);
    // Then it refuses new connections, …
    while can_connect(&address) {
        thread::sleep(Duration::from_millis(10));
    }
    // … waits for requests in flight, even after the listener has ended, …
    thread::sleep(Duration::from_millis(2500));
    assert!(!slow.is_finished() && !stopping.is_finished());
    fake.runs_gate().open();
    // … and answers them.
    let answer = slow.join().expect("no panic");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.closes(), "{:?}", answer.headers);
    stopping.join().expect("no panic");
    assert!(!can_connect(&address));
}

#[test]
fn a_server_stops_while_a_model_loads() {
    let place = Place::with(
        &[("models/m/1", Model { loading: Loading::Gated, ..Model::default() })],
        |_, _| (),
    );
    place.wait_for_load_at_gate();
    let Place { server, fake, .. } = place;
    server.stop();
    fake.loads_gate().open();
}
