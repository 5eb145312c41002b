//! Models in a store: versions that go live, a store that fails, restarts, and every place where a
//! location can be written.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tensorserve::config::{ModelSettings, Settings};

use crate::support::fake::Model;
use crate::support::model_server;
use crate::support::place::Place;
use crate::support::process::{Process, ended, tensorserve};
use crate::support::store::{Fault, StoreServer};
use crate::support::{client, data, project};

/// Writes a fake model to the store.
pub fn put(store: &StoreServer, key: &str, model: &Model) {
    let folder = tempfile::tempdir().expect("a directory");
    model.write(&folder.path().join("model"));
    store.put_folder(key, &folder.path().join("model"));
}

/// A server for `s3://b/models`, with the cache in `cache` below its root.
pub fn place_of(store: &StoreServer, configure: impl FnOnce(&mut Settings, &Path)) -> Place {
    Place::empty(|settings, root| {
        store.configure(settings, &root.join("cache"));
        configure(settings, root);
        if settings.models.is_empty() && settings.paths.is_empty() {
            settings.paths.push("s3://b/models".into());
        }
    })
}

fn status(place: &Place) -> serde_json::Value {
    place.server.get("/api/v1/status").json()["stores"][0].clone()
}

#[test]
fn versions_go_live_while_clients_send() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    put(&store, "models/other/7", &Model::constant(7.0));
    let place = place_of(&store, |_, _| ());
    place.server.wait_until_started();
    assert_eq!((place.constant("m"), place.constant("other")), (Some(1.0), Some(7.0)));
    let (stop, sent, failed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    sent.fetch_add(1, Relaxed);
                    failed.fetch_add(usize::from(place.constant("m").is_none()), Relaxed);
                }
            });
        }
        for version in 2..6_u8 {
            put(&store, &format!("models/m/{version}"), &Model::constant(f32::from(version)));
            let want = Some(f64::from(version));
            place.server.wait_until("the new version serves", |_| place.constant("m") == want);
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(failed.load(Relaxed), 0, "of {} requests", sent.load(Relaxed));
    // Only what is served was downloaded, each once.
    let reads = store.reads();
    let of = |version: u8| {
        let key = format!("models/m/{version}/fake.json");
        reads.iter().filter(|read| **read == key).count()
    };
    assert_eq!((1..6).map(of).collect::<Vec<_>>(), [1; 5], "{reads:?}");
}

#[test]
fn only_the_aspired_version_is_downloaded() {
    let store = StoreServer::start();
    for version in 1..4_u8 {
        put(&store, &format!("models/m/{version}"), &Model::constant(f32::from(version)));
    }
    let place = place_of(&store, |_, _| ());
    place.server.wait_until_started();
    assert_eq!(place.constant("m"), Some(3.0));
    assert_eq!(store.reads(), ["models/m/3/fake.json"]);
    // A version that is withdrawn makes room for the one before.
    store.remove("models/m/3/");
    place.server.wait_until("version 2 serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_store_that_is_down_leaves_what_is_served_alone_and_shows() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    let place = place_of(&store, |_, _| ());
    place.server.wait_until_started();
    assert_eq!(status(&place)["error"], json!(null));
    let up = "tensorserve_store_up{location=\"s3://b/models\"}";
    assert_eq!(place.metric(up), Some(1.0));
    store.fault(|_| Fault::Status(503, "SlowDown"));
    place.server.wait_until("the failure shows", |_| {
        status(&place)["error"].as_str().is_some_and(|error| error.contains("503, SlowDown"))
    });
    assert_eq!((place.metric(up), place.constant("m")), (Some(0.0), Some(1.0)));
    assert_eq!(place.server.get("/readyz").status, 200, "the model is served");
    put(&store, "models/m/2", &Model::constant(2.0));
    store.fault(|_| Fault::None);
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
    assert_eq!((place.metric(up), status(&place)["error"].clone()), (Some(1.0), json!(null)));
}

#[test]
fn everything_that_disappears_stays_served() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    let place = place_of(&store, |_, _| ());
    place.server.wait_until_started();
    store.remove("models/");
    place.server.wait_until("the failure shows", |_| {
        status(&place)["error"].as_str().is_some_and(|error| error.contains("there is no object"))
    });
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn a_restart_without_network_serves_from_the_cache() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    put(&store, "models/m/2", &Model::constant(2.0));
    let cache = tempfile::tempdir().expect("a directory");
    let start = || {
        Place::empty(|settings, _| {
            store.configure(settings, &cache.path().join("cache"));
            settings.paths.push("s3://b/models".into());
        })
    };
    let place = start();
    place.server.wait_until_started();
    assert_eq!(place.constant("m"), Some(2.0));
    drop(place);
    // Not in the cache.
    put(&store, "models/m/3", &Model::constant(3.0));
    store.set_down(true);
    let place = start();
    place.server.wait_until("the cache serves", |_| place.constant("m") == Some(2.0));
    assert_eq!(status(&place)["offline"], json!(true));
    store.set_down(false);
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(3.0));
    assert_eq!(status(&place)["offline"], json!(false));
}

#[test]
fn a_version_that_was_withdrawn_does_not_come_back_offline() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    put(&store, "models/m/2", &Model::constant(2.0));
    let cache = tempfile::tempdir().expect("a directory");
    let start = || {
        Place::empty(|settings, _| {
            store.configure(settings, &cache.path().join("cache"));
            settings.paths.push("s3://b/models".into());
        })
    };
    let place = start();
    place.server.wait_until_started();
    store.remove("models/m/2/");
    place.server.wait_until("version 1 serves", |_| place.constant("m") == Some(1.0));
    drop(place);
    store.set_down(true);
    let place = start();
    place.server.wait_until("the cache serves", |_| place.constant("m").is_some());
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn a_half_uploaded_version_is_not_loaded() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    let place = place_of(&store, |_, _| ());
    place.server.wait_until_started();
    let whole = Model { files: vec!["weights".to_owned()], ..Model::constant(2.0) };
    let folder = tempfile::tempdir().expect("a directory");
    whole.write_marker(folder.path());
    // The worst order: the main file of the model first, a moment ago.
    let marker = fs::read(folder.path().join("fake.json")).expect("a marker");
    store.put_at("models/m/2/fake.json", marker, SystemTime::now());
    let waits = || place.state("m", 2).map(|(state, _)| state == "START");
    place.server.wait_until("it is found", |_| waits() == Some(true));
    let reads = store.reads().len();
    thread::sleep(Duration::from_secs(1));
    assert_eq!((store.reads().len(), place.constant("m")), (reads, Some(1.0)), "still settling");
    store.put_at("models/m/2/weights", "x", SystemTime::now());
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
    // Without its other file, a version that has settled is downloaded, and waits.
    let folder = tempfile::tempdir().expect("a directory");
    Model { answer: Model::constant(3.0).answer, ..whole }.write_marker(folder.path());
    store.put_folder("models/m/3", folder.path());
    let missing = || place.state("m", 3).is_some_and(|(state, _)| state == "START");
    place.server.wait_until("it is found", |_| missing());
    thread::sleep(Duration::from_millis(300));
    assert_eq!(place.constant("m"), Some(2.0));
    store.put("models/m/3/weights", "x");
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(3.0));
}

#[test]
fn two_servers_with_one_cache_download_once() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    store.put("models/m/1/weights", vec![7; 40 << 20]);
    let cache = tempfile::tempdir().expect("a directory");
    let start = || {
        Place::empty(|settings, _| {
            store.configure(settings, &cache.path().join("cache"));
            settings.paths.push("s3://b/models".into());
        })
    };
    let (one, two) = (start(), start());
    for place in [&one, &two] {
        place.server.wait_until("it serves", |_| place.constant("m") == Some(1.0));
    }
    let reads = store.reads();
    // In parts of 16 MiB.
    let parts = reads.iter().filter(|key| key.ends_with("weights")).count();
    assert_eq!((parts, reads.len()), (3, 4), "{reads:?}");
}

#[test]
fn the_cache_stays_within_its_limit() {
    let store = StoreServer::start();
    let put = |version: u8| {
        put(&store, &format!("models/m/{version}"), &Model::constant(f32::from(version)));
        store.put(&format!("models/m/{version}/weights"), vec![version; 1 << 20]);
    };
    put(1);
    let place = place_of(&store, |settings, _| {
        settings.server.model_cache_bytes = Some("2500KiB".parse().expect("a size"));
    });
    place.server.wait_until_started();
    let bytes = || place.metric("tensorserve_model_cache_bytes").expect("a size");
    for version in 2..6_u8 {
        // As if what is there had been used an hour ago.
        for lock in fs::read_dir(place.path("cache/locks")).expect("locks").flatten() {
            let lock = fs::File::open(lock.path()).expect("a lock");
            lock.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("set");
        }
        put(version);
        let want = Some(f64::from(version));
        place.server.wait_until("the new version serves", |_| place.constant("m") == want);
        assert!(bytes() <= 2500.0 * 1024.0, "{}", bytes());
    }
    // What does not fit beside what is in use is refused, with a reason.
    store.put("models/m/6/weights", vec![6; 2 << 20]);
    place.server.wait_until("it is refused", |_| {
        let state = place.state("m", 6);
        state.is_some_and(|(_, error)| error.contains("raise model_cache_bytes"))
    });
    assert_eq!(place.constant("m"), Some(5.0));
}

#[test]
fn an_archive_of_a_web_server_is_a_model() {
    let store = StoreServer::start();
    let folder = tempfile::tempdir().expect("a directory");
    Model::constant(4.0).write(&folder.path().join("model"));
    store.put("ranker.tar.gz", archive(&[("ranker/4", &folder.path().join("model"))]));
    let url = format!("http://{}/b/ranker.tar.gz", store.address);
    let place = place_of(&store, |settings, _| settings.paths.push(url.as_str().into()));
    place.server.wait_until_started();
    assert_eq!(place.constant("ranker"), Some(4.0));
    assert_eq!(status(&place)["location"], json!(url));
}

#[test]
fn an_archive_that_leads_out_of_its_directory_is_refused() {
    let store = StoreServer::start();
    let mut header = tar::Header::new_gnu();
    let name = b"../../evil";
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_size(1);
    header.set_mode(0o644);
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, &b"x"[..]).expect("packed");
    store.put("bad.tar", builder.into_inner().expect("packed"));
    let url = format!("http://{}/b/bad.tar", store.address);
    let place = place_of(&store, |settings, _| settings.paths.push(url.as_str().into()));
    place.server.wait_until("it is refused", |s| {
        s.get("/readyz").text().contains("leads out of the archive")
    });
    assert!(!place.path("cache/units/evil").exists() && !place.path("cache/evil").exists());
}

/// A gzipped archive of directories, under these names.
fn archive(folders: &[(&str, &Path)]) -> Vec<u8> {
    let packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut builder = tar::Builder::new(packed);
    for (name, folder) in folders {
        builder.append_dir_all(name, folder).expect("packed");
    }
    builder.into_inner().and_then(flate2::write::GzEncoder::finish).expect("packed")
}

#[test]
fn a_file_url_is_a_directory() {
    let folder = tempfile::tempdir().expect("a directory");
    Model::constant(1.0).write(&folder.path().join("m/1"));
    let url = format!("file://{}", folder.path().display());
    let place = Place::empty(|settings, _| settings.paths.push(url.into()));
    place.server.wait_until_started();
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn operators_load_models_from_below_a_configured_location() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    put(&store, "models/spare/new/1", &Model::constant(8.0));
    put(&store, "secret/m/1", &Model::constant(9.0));
    let place = place_of(&store, |_, _| ());
    place.server.wait_until_started();
    let load = |path: &str| {
        let body = json!({ "path": path }).to_string();
        let json = [("Content-Type", "application/json")];
        client::request(place.server.address, "POST", "/api/v1/models/extra/load", &json, body)
    };
    let refused = "not inside a directory that this server may load models from";
    for path in
        ["s3://b/secret/m", "s3://other/models/m", "s3://b/models/../secret/m", "https://h/m.tgz"]
    {
        load(path).assert_refused(path, 403, refused);
    }
    load("s3://b/models/nothing").assert_refused("nothing", 404, "there is no object");
    let answer = load("s3://b/models/spare/new");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(place.constant("extra"), Some(8.0));
}

#[test]
fn a_toml_file_names_a_model_of_a_store() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    put(&store, "models/m/2", &Model::constant(2.0));
    let place = place_of(&store, |settings, _| {
        settings.models.push(ModelSettings {
            name: Some("named".to_owned()),
            path: Some("s3://b/models/m".into()),
            each: tensorserve::config::EachModelSettings {
                version_policy: Some("specific:1".to_owned()),
                ..Default::default()
            },
            ..ModelSettings::default()
        });
    });
    place.server.wait_until_started();
    assert_eq!(place.constant("named"), Some(1.0));
}

/// Lets `command` reach this store, with its cache in `cache`.
fn with_store(command: &mut Command, store: &StoreServer, cache: &Path) {
    command.env("AWS_ENDPOINT_URL", format!("http://{}", store.address));
    command.env("AWS_SKIP_SIGNATURE", "true");
    command.env("AWS_REGION", "us-east-1");
    command.env("TENSORSERVE_MODEL_CACHE_DIR", cache);
}

/// The command `arguments` of tensorserve with this store.
fn command(store: &StoreServer, cache: &Path, arguments: &[&str]) -> Command {
    let mut command = tensorserve(arguments);
    with_store(&mut command, store, cache);
    command
}

const SERVE: [&str; 7] = ["serve", "--http-port", "0", "--grpc-port", "0", "--log-level", "info"];

#[test]
fn a_server_that_is_killed_in_any_phase_of_a_download_starts_again() {
    let store = StoreServer::start();
    store.put_folder("models/half_plus_two/1", &project("models/half_plus_two/1"));
    // A download of several seconds, in parts that arrive one after the other.
    for index in 0..3 {
        store.put(&format!("models/half_plus_two/1/assets/{index}"), vec![index; 20 << 20]);
    }
    let cache = tempfile::tempdir().expect("a directory");
    let slow = store.clone();
    slow.fault(|request| {
        let is_asset = request.key.as_deref().is_some_and(|key| key.contains("/assets/"));
        Fault::Stall(Duration::from_millis(if is_asset { 400 } else { 40 }))
    });
    for after in [60, 120, 300, 500, 700, 900, 1100, 1400] {
        let mut command = command(&store, cache.path(), &SERVE);
        command.arg("s3://b/models").stdout(std::process::Stdio::null());
        let mut child = command.stderr(std::process::Stdio::null()).spawn().expect("started");
        thread::sleep(Duration::from_millis(after));
        child.kill().expect("killed");
        child.wait().expect("ended");
        for unit in fs::read_dir(cache.path().join("units")).into_iter().flatten().flatten() {
            // What has its final name is whole.
            let is_partial = unit.file_name().to_string_lossy().contains('.');
            assert!(is_partial || unit.path().join("unit.json").exists(), "{:?}", unit.path());
        }
    }
    let mut command = command(&store, cache.path(), &SERVE);
    command.arg("s3://b/models");
    let process = Process::start(command);
    let answer = client::post(
        process.address,
        "/v1/models/half_plus_two:predict",
        r#"{"instances": [1.0, 2.0, 5.0]}"#,
    );
    assert_eq!(answer.json(), json!({ "predictions": [2.5, 3.0, 4.5] }));
    let unit = fs::read_dir(cache.path().join("units")).expect("units").flatten().next();
    let files = unit.expect("one unit").path().join("files/1/assets");
    for index in 0..3_u8 {
        let bytes = fs::read(files.join(index.to_string())).expect("a file");
        assert!(bytes.len() == 20 << 20 && bytes.iter().all(|byte| *byte == index));
    }
}

#[test]
fn tensorflow_servings_list_of_models_names_locations() {
    let store = StoreServer::start();
    store.put_folder("models/half_plus_two/1", &project("models/half_plus_two/1"));
    let root = tempfile::tempdir().expect("a directory");
    let config = root.path().join("models.config");
    let model = "config: { name: 'half', base_path: 's3://b/models/half_plus_two', \
                 model_platform: 'tensorflow' }";
    fs::write(&config, format!("model_config_list: {{ {model} }}")).expect("written");
    let by_list = format!("--model_config_file={}", config.display());
    let by_flags = ["--model_name=half", "--model_base_path=s3://b/models/half_plus_two"];
    for flags in [&[by_list.as_str()][..], &by_flags] {
        let mut command = model_server::command(flags);
        with_store(&mut command, &store, &root.path().join("cache"));
        command.env("TENSORSERVE_HTTP_PORT", "0").env("TENSORSERVE_GRPC_PORT", "0");
        let process = Process::start(command);
        let body = r#"{"instances": [1.0]}"#;
        let answer = client::post(process.address, "/v1/models/half:predict", body);
        assert_eq!(answer.json(), json!({ "predictions": [2.5] }));
    }
}

#[test]
fn inspect_shows_a_model_of_a_store() {
    let store = StoreServer::start();
    store.put_folder("models/half_plus_two/1", &project("models/half_plus_two/1"));
    let cache = tempfile::tempdir().expect("a directory");
    let inspect = |target: &str| ended(&mut command(&store, cache.path(), &["inspect", target]));
    let shown = inspect("s3://b/models");
    assert!(shown.status.success(), "{}", shown.stderr);
    assert!(shown.stdout.contains("half_plus_two: ") && shown.stdout.contains("serving_default"));
    let missing = inspect("s3://b/nothing");
    assert!(
        missing.stderr.contains("s3://b/nothing: there is no object at this path"),
        "{}",
        missing.stderr
    );
    let wrong = inspect("s3:///x");
    assert!(wrong.stderr.contains("is not the name of a bucket"), "{}", wrong.stderr);
}

#[test]
fn a_location_that_cannot_be_one_is_refused_at_the_start() {
    for (path, why) in [
        ("s3://b/../etc", "contains an empty part"),
        ("s3://", "is not the name of a bucket"),
        ("https://example.com", "name one file or archive"),
    ] {
        let refused = ended(&mut tensorserve(&["serve", path]));
        assert!(!refused.status.success());
        assert!(refused.stderr.contains(why), "{path}: {}", refused.stderr);
    }
}

#[test]
fn a_model_over_plain_http_from_another_machine_is_refused() {
    let store = StoreServer::start();
    let place = place_of(&store, |settings, _| {
        settings.paths.push("http://192.0.2.1/model.tar.gz".into());
    });
    place.server.wait_until("it is refused", |s| {
        s.get("/readyz").text().contains("set store_allow_http to trust the network")
    });
}

#[test]
fn a_multi_model_endpoint_loads_from_a_prefix() {
    let store = StoreServer::start();
    let version = data("sagemaker/mme/half_plus_two/00000123");
    store.put("models/packed.tar.gz", archive(&[("1", &version)]));
    store.put_folder("models/plain/1", &version);
    let cache = tempfile::tempdir().expect("a directory");
    let arguments = ["serve", "--sagemaker", "--model-dir", "s3://b/models"];
    let mut command = command(&store, cache.path(), &arguments);
    command.args(["--http-port", "0", "--grpc-port", "0"]).env("SAGEMAKER_MULTI_MODEL", "true");
    command.env("SAGEMAKER_BIND_TO_PORT", "0");
    let process = Process::start(command);
    let load = |name: &str, url: &str| {
        let body = json!({ "model_name": name, "url": url }).to_string();
        client::post(process.address, "/models", body)
    };
    for (name, url) in [("a", "s3://b/models/packed.tar.gz"), ("b", "/opt/ml/models/plain")] {
        let answer = load(name, url);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let path = format!("/models/{name}/invoke");
        let answer = client::post(process.address, &path, r#"{"instances": [1.0]}"#);
        assert_eq!(answer.json(), json!({ "predictions": [2.5] }));
    }
    assert_eq!(load("c", "s3://b/other").status, 404);
    assert_eq!(load("d", "s3://b/models/none").status, 404);
}

#[test]
fn sagemakers_container_serves_an_archive_of_a_store() {
    let store = StoreServer::start();
    let version = data("sagemaker/mme/half_plus_two/00000123");
    store.put("job/output/model.tar.gz", archive(&[("export/Servo/1", &version)]));
    let cache = tempfile::tempdir().expect("a directory");
    let mut command = command(&store, cache.path(), &["serve", "--sagemaker"]);
    command.env("SAGEMAKER_MODEL_DIR", "s3://b/job/output/model.tar.gz");
    command.env("SAGEMAKER_BIND_TO_PORT", "0").env("TENSORSERVE_GRPC_PORT", "0");
    let process = Process::start(command);
    let json = [("Content-Type", "application/json")];
    let body = r#"{"instances": [1.0]}"#;
    let answer = client::request(process.address, "POST", "/invocations", &json, body);
    assert_eq!(answer.json(), json!({ "predictions": [2.5] }));
}

#[test]
fn vertex_ais_container_serves_a_model_of_a_store() {
    let store = StoreServer::start();
    store.put_folder("artifacts", &data("sagemaker/mme/half_plus_two/00000123"));
    let cache = tempfile::tempdir().expect("a directory");
    let mut command = command(&store, cache.path(), &["container"]);
    command.env("AIP_STORAGE_URI", "s3://b/artifacts").env("AIP_HTTP_PORT", "0");
    command.env("TENSORSERVE_GRPC_PORT", "0");
    let process = Process::start(command);
    let answer = client::post(process.address, "/predict", r#"{"instances": [1.0]}"#);
    assert_eq!(answer.json()["predictions"], json!([2.5]), "{}", answer.text());
}

#[test]
fn a_long_download_shows_how_far_it_is() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    store.put("models/m/1/weights", vec![1; 64 << 20]);
    store.fault(|request| match request.key {
        Some(_) => Fault::Stall(Duration::from_millis(1500)),
        None => Fault::None,
    });
    let began = Instant::now();
    let place = place_of(&store, |_, _| ());
    place.server.wait_until("the progress shows", |s| {
        s.get("/readyz").text().contains("waiting (downloading, ")
    });
    assert!(place.metric("tensorserve_store_downloads{location=\"s3://b/models\"}") == Some(1.0));
    place.server.wait_until("it serves", |_| place.constant("m") == Some(1.0));
    assert!(began.elapsed() < Duration::from_secs(100));
}
