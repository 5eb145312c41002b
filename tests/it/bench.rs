//! `tensorserve bench` against this server.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;

use crate::https::Authority;
use crate::support::process::{Ended, Process, ended, run, tensorserve};
use crate::support::project;

/// The figures of a run of half a second.
fn figures(target: &str, options: &[&str]) -> (Ended, Value) {
    figures_with(&[], target, options)
}

/// The figures with these variables.
fn figures_with(variables: &[(&str, &Path)], target: &str, options: &[&str]) -> (Ended, Value) {
    let quick = ["--duration", "500ms", "--warm-up", "100ms", "--connections", "4", "--json"];
    let mut command = tensorserve(&[&["bench", target][..], &quick, options].concat());
    let ended = ended(command.envs(variables.iter().copied()));
    let value = serde_json::from_str(&ended.stdout).unwrap_or_default();
    (ended, value)
}

fn number(figures: &Value, pointer: &str) -> f64 {
    figures
        .pointer(pointer)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("{pointer}: {figures}"))
}

#[test]
fn every_protocol_of_http_is_measured() {
    let server = Process::serve(&project("models"), &[]);
    let url = format!("http://{}/v1/models/half_plus_two", server.address);
    for protocol in ["v1", "npy", "protobuf", "simple", "invocations", "v2", "v2-raw"] {
        let (ended, figures) = figures(&url, &["--protocol", protocol]);
        assert!(ended.status.success(), "{protocol}: {} {}", ended.stdout, ended.stderr);
        assert_eq!(number(&figures, "/failed"), 0.0, "{protocol}: {figures}");
        assert!(number(&figures, "/succeeded") > 20.0, "{protocol}: {figures}");
        assert!(number(&figures, "/latency_ms/p50") > 0.0, "{protocol}: {figures}");
        // The server's own times are part of the latency.
        let run = number(&figures, "/server_timing_ms/run/p50");
        assert!(run > 0.0 && run < number(&figures, "/latency_ms/p50"), "{protocol}: {figures}");
        assert!(number(&figures, "/server/rows_per_batch") >= 1.0, "{protocol}: {figures}");
    }
    let rows = ["--rows", "32", "--rate", "100", "--arrivals", "fixed", "--protocol", "v2-raw"];
    let (ended, figures) = figures(&url, &rows);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(figures.pointer("/setting/arrivals").and_then(Value::as_str), Some("fixed"));
    let due = number(&figures, "/succeeded") + number(&figures, "/unsent");
    assert!((due - 50.0).abs() < 2.0, "{figures}");
    assert!(number(&figures, "/server/rows_per_batch") >= 32.0, "{figures}");
}

#[test]
fn calls_of_grpc_are_measured() {
    let server = Process::serve(&project("models"), &[]);
    let url = format!("http://{}/v1/models/half_plus_two", server.address);
    let grpc = server.grpc().to_string();
    for protocol in ["grpc", "v2-grpc"] {
        let (ended, figures) = figures(&url, &["--protocol", protocol, "--grpc", &grpc]);
        assert!(ended.status.success(), "{protocol}: {} {}", ended.stdout, ended.stderr);
        assert_eq!(number(&figures, "/failed"), 0.0, "{protocol}: {figures}");
        assert!(number(&figures, "/statuses/0") > 20.0, "{protocol}: {figures}");
    }
    // Larger than the windows of HTTP/2.
    let large = ["--protocol", "grpc", "--grpc", &grpc, "--rows", "200000"];
    let (ended, large) = figures(&url, &large);
    assert!(ended.status.success(), "{} {}", ended.stdout, ended.stderr);
    assert_eq!(number(&large, "/failed"), 0.0, "{large}");
    assert!(
        number(&large, "/bytes_received") > 800_000.0 * number(&large, "/succeeded"),
        "{large}"
    );

    let missing = format!("{url}/versions/77");
    let body = ["--protocol", "grpc", "--grpc", &grpc, "--data", ""];
    let (ended, failed) = figures(&missing, &body);
    assert_eq!(ended.status.code(), Some(1), "{} {}", ended.stdout, ended.stderr);
    assert_eq!(number(&failed, "/succeeded"), 0.0, "{failed}");
    assert!(number(&failed, "/first_failure/status") > 0.0, "{failed}");
    // HTTP/1.1 on the port.
    let wrong = server.address.to_string();
    let (ended, failed) = figures(&url, &["--protocol", "grpc", "--grpc", &wrong]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let text = failed.pointer("/first_failure/text").and_then(Value::as_str).expect("a text");
    assert!(text.contains("not HTTP/2") || text.contains("closed"), "{text}");
}

#[test]
fn servers_with_tls_are_measured() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (certificate, key) = authority.sign("localhost");
    let files = [("server.crt", &certificate), ("server.key", &key), ("ca.crt", &authority.root)];
    let [certificate, key, ca] = files.map(|(name, text)| authority.file(name, text));
    let [certificate, key] = [&certificate, &key].map(|file| file.display().to_string());
    let options = ["--tls-certificate", &certificate, "--tls-key", &key];
    let server = Process::serve(&project("models"), &options);
    let (port, grpc) = (server.address.port(), server.grpc().to_string());
    // Not verified on a loopback address. The last two are larger than what is encrypted at once.
    let url = format!("https://127.0.0.1:{port}/v1/models/half_plus_two");
    for (protocol, rows) in [("v1", "1"), ("grpc", "1"), ("v2-raw", "200000"), ("grpc", "200000")] {
        let mut options = vec!["--protocol", protocol, "--rows", rows];
        if protocol == "grpc" {
            options.extend(["--grpc", &grpc]);
        }
        let (ended, figures) = figures(&url, &options);
        assert!(ended.status.success(), "{protocol}: {} {}", ended.stdout, ended.stderr);
        assert_eq!(number(&figures, "/failed"), 0.0, "{protocol}: {figures}");
        assert!(number(&figures, "/succeeded") > 5.0, "{protocol}: {figures}");
    }

    let url = format!("https://localhost:{port}/v1/models/half_plus_two");
    let (ended, figures) = figures_with(&[("TENSORSERVE_CA", &ca)], &url, &[]);
    assert!(ended.status.success(), "{} {}", ended.stdout, ended.stderr);
    assert!(number(&figures, "/succeeded") > 20.0, "{figures}");
    let wrong = other.file("other.crt", &other.root);
    let (ended, _) = figures_with(&[("TENSORSERVE_CA", &wrong)], &url, &[]);
    assert!(!ended.status.success() && ended.stderr.contains("certificate"), "{}", ended.stderr);
    // A port without TLS.
    let plain = Process::serve(&project("models/half_plus_two"), &[]);
    let url = format!("https://{}/v1/models/half_plus_two", plain.address);
    let (ended, _) = figures_with(&[], &url, &["--data", r#"{"instances": [1.0]}"#]);
    assert!(!ended.status.success() && ended.stderr.contains("TLS handshake"), "{}", ended.stderr);
}

#[test]
fn connections_with_tls_are_opened_again() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let files = [("server.crt", &certificate), ("server.key", &key)];
    let [certificate, key] =
        files.map(|(name, text)| authority.file(name, text).display().to_string());
    let options = ["--tls-certificate", &certificate, "--tls-key", &key];
    let server = Process::serve(&project("models"), &options);
    let url = format!("https://{}/v1/models/half_plus_two", server.address);
    let (ended, figures) = figures(&url, &["--header", "Connection: close"]);
    assert!(ended.status.success(), "{} {}", ended.stdout, ended.stderr);
    assert_eq!(number(&figures, "/failed"), 0.0, "{figures}");
    assert!(number(&figures, "/succeeded") > 10.0, "{figures}");
}

#[test]
fn a_log_is_replayed_with_its_spacing() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let log = format!("{}/", folder.path().display());
    let logging = ["--request-log", &log, "--request-log-sampling-rate", "1"];
    let mut server = Process::serve(&project("models/half_plus_two"), &logging);
    let url = format!("http://{}/v1/models/half_plus_two", server.address);
    let (ended, first) = figures(&url, &["--rate", "200"]);
    assert!(ended.status.success(), "{}", ended.stderr);
    server.signal("TERM");
    server.wait();
    let files = fs::read_dir(folder.path()).expect("a directory");
    let file = files.map(|entry| entry.expect("an entry").path()).next().expect("a log");

    let server = Process::serve(&project("models/half_plus_two"), &[]);
    let url = format!("http://{}/v1/models/half_plus_two", server.address);
    let (file, grpc) = (file.display().to_string(), server.grpc().to_string());
    for protocol in ["v1", "protobuf", "simple", "v2", "v2-raw", "grpc", "v2-grpc"] {
        let mut words = vec!["bench", &url, "--protocol", protocol, "--json"];
        words.extend(["--replay", &file, "--speed", "10"]);
        if protocol.ends_with("grpc") {
            words.extend(["--grpc", &grpc]);
        }
        let ended = run(&words);
        assert!(ended.status.success(), "{protocol}: {} {}", ended.stdout, ended.stderr);
        let replayed: Value = serde_json::from_str(&ended.stdout).expect("figures");
        assert_eq!(number(&replayed, "/failed"), 0.0, "{protocol}: {replayed}");
        // All that was logged, with the warm-up.
        assert!(number(&replayed, "/succeeded") >= number(&first, "/succeeded"), "{replayed}");
        assert!(number(&replayed, "/seconds") < 0.5, "{replayed}");
    }
    let ended = run(&["bench", &url, "--replay", "/nowhere"]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("/nowhere"), "{}", ended.stderr);
}

#[test]
fn runs_are_compared_and_reported() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (before, report) = (place("before.json"), place("report.html"));
    let server = Process::serve(&project("models/half_plus_two"), &[]);
    let url = format!("http://{}/v1/models/half_plus_two", server.address);
    let (ended, figures_before) = figures(&url, &["--rate", "100", "--save", &before]);
    assert!(ended.status.success(), "{}", ended.stderr);
    let saved: Value = serde_json::from_slice(&fs::read(&before).expect("saved")).expect("figures");
    assert_eq!(saved, figures_before);
    // Ten times the latency is worse than any tolerance of this test, a thousandth is not.
    let altered = |factor: f64| {
        let mut altered = saved.clone();
        for window in altered["windows_ns"].as_array_mut().expect("windows") {
            for pair in window.as_array_mut().expect("pairs") {
                let nanoseconds = pair[0].as_f64().expect("a number") * factor;
                pair[0] = Value::from(nanoseconds as u64 + 1);
            }
        }
        let path = place("altered.json");
        fs::write(&path, altered.to_string()).expect("written");
        path
    };
    let compared = |path: &str| {
        let words =
            ["--rate", "100", "--compare", path, "--tolerance", "100%", "--report", &report];
        figures(&url, &words)
    };
    let (ended, worse) = compared(&altered(0.001));
    assert_eq!(ended.status.code(), Some(1), "{worse}");
    assert_eq!(worse.pointer("/comparison/is_worse"), Some(&Value::Bool(true)), "{worse}");
    let page = fs::read_to_string(&report).expect("a report");
    assert!(page.contains("Compared with the earlier run") && page.contains("<svg"), "{page}");
    assert!(!page.contains("<script") && !page.contains("src="), "{page}");
    let (ended, better) = compared(&altered(1000.0));
    assert_eq!(
        better.pointer("/comparison/figures/0/verdict"),
        Some(&Value::from("better")),
        "{better}"
    );
    // On a busy machine requests can be due that are never sent, which is worse.
    let is_worse = better.pointer("/comparison/is_worse") == Some(&Value::Bool(true));
    let share =
        better.pointer("/comparison/figures").and_then(Value::as_array).and_then(|it| it.last());
    let fails_more =
        share.is_some_and(|it| it["name"] == "failed_share" && it["verdict"] == "worse");
    assert_eq!((is_worse, ended.status.success()), (fails_more, !fails_more), "{better}");

    let ramp = run(&[
        "bench",
        &url,
        "--ramp",
        "50..200:3",
        "--duration",
        "300ms",
        "--warm-up",
        "0",
        "--report",
        &report,
    ]);
    assert!(ramp.status.success(), "{}", ramp.stderr);
    for part in ["rate", "50.0", "125.0", "200.0", "knee"] {
        assert!(ramp.stdout.contains(part), "{part}: {}", ramp.stdout);
    }
    assert!(fs::read_to_string(&report).expect("a report").contains("Latency by rate"));
    for (words, part) in [
        (vec!["--compare", "/nowhere"], "/nowhere"),
        (vec!["--compare", &report], "not the figures of a run"),
        (vec!["--ramp", "5..1"], "100..2000:8"),
        (vec!["--compare", &before, "--tolerance", "x"], "5% or 0.05"),
    ] {
        let ended = run(&[&["bench", &url][..], &words].concat());
        assert!(!ended.status.success() && ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[test]
fn figures_are_printed_for_people() {
    let server = Process::serve(&project("models/half_plus_two"), &[]);
    let url = format!("http://{}", server.address);
    let ended = run(&[
        "bench",
        &url,
        "--duration",
        "300ms",
        "--warm-up",
        "0",
        "--data",
        "{\"instances\": [1]}",
    ]);
    assert!(ended.status.success(), "{}", ended.stderr);
    for part in [
        "half_plus_two on http://",
        "v1 JSON, a given body of 18 bytes",
        "closed loop",
        "requests/s",
        "p99.9",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    assert!(
        ended.stdout.contains("run in the server") && ended.stdout.contains("µs of CPU"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_path_is_served_for_the_run() {
    let path = project("models/half_plus_two").display().to_string();
    let (ended, figures) = figures(&path, &[]);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(number(&figures, "/failed"), 0.0, "{figures}");
    assert!(number(&figures, "/server/cpu_us_per_request") > 0.0, "{figures}");
    let ended = run(&["bench", &project("docs").display().to_string()]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("no model found") || ended.stderr.contains("did not become ready"),
        "{}",
        ended.stderr
    );
}

#[test]
fn what_fails_is_shown() {
    let server = Process::serve(&project("models"), &[]);
    let url = format!("http://{}/v1/models/half_plus_two", server.address);
    let (ended, figures) = figures(&url, &["--data", "{\"instances\": \"x\"}"]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert_eq!(number(&figures, "/succeeded"), 0.0);
    assert_eq!(number(&figures, "/first_failure/status"), 400.0, "{figures}");
    let text = figures.pointer("/first_failure/text").and_then(Value::as_str).expect("a text");
    assert!(text.contains("error"), "{text}");

    let nobody =
        TcpListener::bind(("127.0.0.1", 0)).expect("binds").local_addr().expect("an address");
    let nobody = format!("http://{nobody}/v1/models/m");
    let several = format!("http://{}", server.address);
    let missing = format!("http://{}/v1/models/missing", server.address);
    for (words, status, parts) in [
        (vec!["bench"], 2, vec!["<URL|PATH>"]),
        (vec!["bench", &url, "--rat", "1"], 2, vec!["--rat", "--rate"]),
        (vec!["bench", &url, "--rate", "0"], 1, vec!["rate"]),
        (vec!["bench", &url, "--arrivals", "fixed"], 1, vec!["--rate"]),
        (vec!["bench", &url, "--grpc", "h:1"], 1, vec!["--grpc"]),
        (vec!["bench", &url, "--speed", "2"], 2, vec!["--replay"]),
        (vec!["bench", &url, "--tolerance", "2%"], 2, vec!["--compare"]),
        (vec!["bench", &url, "--signature", "nope"], 1, vec!["nope", "serving_default"]),
        (vec!["bench", &url, "--data", "@/nowhere"], 1, vec!["/nowhere"]),
        (vec!["bench", &url, "--header", "x"], 1, vec!["NAME: VALUE"]),
        (vec!["bench", &several], 1, vec!["name a model", "half_plus_two"]),
        (vec!["bench", &missing], 1, vec!["missing"]),
        (vec!["bench", "https://192.0.2.1/v1/models/m"], 1, vec!["TENSORSERVE_CA"]),
        (vec!["bench", &nobody], 1, vec!["refused"]),
        (vec!["bench", &nobody, "--data", "{}"], 1, vec!["refused"]),
    ] {
        let ended = run(&words);
        assert_eq!(ended.status.code(), Some(status), "{words:?}: {}", ended.stderr);
        for part in parts {
            assert!(ended.stderr.contains(part), "{words:?}: {part}: {}", ended.stderr);
        }
    }
}
