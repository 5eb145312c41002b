//! SageMaker's multi-model endpoints: models that are loaded, invoked and unloaded on request.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tempfile::TempDir;
use tensorserve::config::MultiModelConfig;

use crate::sagemaker_cases::{Case, Part, Tally, cases_of, check};
use crate::support::client::{Answer, Client, request};
use crate::support::process::{Process, tensorserve};
use crate::support::server::{TestServer, config, settings};
use crate::support::{copy, data};

/// A multi-model endpoint that can load half_plus_two and half_plus_three.
struct Endpoint {
    server: TestServer,
    root: TempDir,
}

fn models() -> TempDir {
    let root = tempfile::tempdir().expect("temporary directory");
    let from = [("half_plus_two", "mme"), ("half_plus_three", "models")];
    for (name, folder) in from {
        copy(&data("sagemaker").join(folder).join(name), &root.path().join(name));
    }
    fs::create_dir_all(root.path().join("invalid_version/abcde")).expect("directories");
    root
}

impl Endpoint {
    fn start(configure: impl FnOnce(&mut MultiModelConfig)) -> Self {
        Endpoint::with_memory_limit(None, configure)
    }

    /// An endpoint whose models have at most `memory_limit` bytes, by estimate.
    fn with_memory_limit(
        memory_limit: Option<u64>,
        configure: impl FnOnce(&mut MultiModelConfig),
    ) -> Self {
        let root = models();
        let mut config = config(settings());
        let mut models = MultiModelConfig {
            root: root.path().to_owned(),
            common: config.repository.common.clone(),
            load_timeout: Duration::from_secs(60),
            ports: (8501, 9000),
            memory_limit: None,
            evict: false,
            load_on_use: false,
        };
        configure(&mut models);
        config.repository.memory_limit = memory_limit;
        config.protocols.sagemaker.is_container = true;
        config.protocols.sagemaker.multi_model = Some(models);
        let server = TestServer::start_configured(&config);
        server.wait_until_started();
        Endpoint { server, root }
    }

    fn call(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        let headers = [("content-type", "application/json")];
        request(self.server.address, method, path, &headers, body)
    }

    fn load(&self, name: &str, url: &str) -> Answer {
        self.call("POST", "/models", json!({"model_name": name, "url": url}).to_string())
    }

    fn invoke(&self, name: &str) -> Answer {
        self.call("POST", &format!("/models/{name}/invoke"), r#"{"instances": [1.0]}"#)
    }

    fn loaded(&self) -> BTreeSet<String> {
        let names = self.server.engine.repository().loaded_models().into_iter();
        names.map(|model| model.name).collect()
    }

    /// Unloads all models.
    fn clear(&self) {
        for name in self.loaded() {
            assert_eq!(self.call("DELETE", &format!("/models/{name}"), "").status, 200);
        }
    }
}

/// Cases with deliberately different responses. `docs/sagemaker.md` gives the reasons.
const OTHERWISE: [&str; 2] = [
    // Models do not use ports here.
    "mme-ports-exhausted",
    // The format of the 2.20 image's error.
    "mme-bad-body-g3",
];

/// Replaces `cifar`, the model of the cases: the test data do not contain its weights.
fn there(text: &str) -> String {
    text.replace("cifar", "half_plus_two")
}

/// Sends the request of a case, after the requests before it.
pub fn run(address: SocketAddr, case: &Case) -> Result<(), String> {
    for step in &case.steps_before {
        let headers: Vec<(&str, &str)> =
            step.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        request(address, &step.method, &there(&step.path), &headers, there(&step.body));
    }
    let headers: Vec<(&str, &str)> =
        case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let body = there(case.request_body.as_deref().unwrap_or_default());
    let path = there(&case.path);
    let mut answer = request(address, &case.method, &path, &headers, body);
    if case.id == "mme-load-twice" {
        answer.body = answer.text().replace("half_plus_two", "cifar").into_bytes();
    }
    check(case, &answer)
}

#[test]
fn every_case_passes() {
    let endpoint = Endpoint::start(|_| ());
    let mut tally = Tally::default();
    for case in cases_of(Part::MultiModel) {
        tally.note(&case, run(endpoint.server.address, &case), &OTHERWISE);
        endpoint.clear();
    }
    tally.assert(17, &OTHERWISE);
}

#[test]
fn nothing_is_ready_for_a_model_but_the_endpoint() {
    let endpoint = Endpoint::start(|_| ());
    assert_eq!(endpoint.call("GET", "/ping", "").status, 200);
    assert_eq!(endpoint.call("GET", "/models/", "").text(), "{}");
    endpoint.invoke("half_plus_two").assert_refused("invoke", 404, "is not loaded yet.");
    assert_eq!(endpoint.load("half_plus_two", "half_plus_two").status, 200);
    assert_eq!(endpoint.invoke("half_plus_two").json(), json!({"predictions": [2.5]}));
    // The other path of the operation.
    let answer = endpoint.call("POST", "/models/half_plus_two", r#"{"instances": [1.0]}"#);
    assert_eq!(answer.json(), json!({"predictions": [2.5]}));
    let shown = endpoint.call("GET", "/models/half_plus_two", "").json();
    assert_eq!(shown["model"]["model_version_status"][0]["state"], "AVAILABLE");
    let deleted = endpoint.call("DELETE", "/models/half_plus_two/invoke", "");
    assert_eq!(deleted.status, 200);
    assert!(endpoint.loaded().is_empty());
}

#[test]
fn pages_of_other_servers_change_nothing() {
    let endpoint = Endpoint::start(|_| ());
    let send = |method: &str, path: &str, origin: &str, body: &str| {
        let headers = [("content-type", "application/json"), ("origin", origin)];
        request(endpoint.server.address, method, path, &headers, body)
    };
    let body = json!({"model_name": "m", "url": "half_plus_two"}).to_string();
    for origin in ["http://evil.example", "null"] {
        send("POST", "/models", origin, &body).assert_refused(origin, 403, "Origin");
    }
    assert!(endpoint.loaded().is_empty());
    assert_eq!(endpoint.load("m", "half_plus_two").status, 200);
    send("DELETE", "/models/m", "http://evil.example", "").assert_refused("m", 403, "Origin");
    assert_eq!(endpoint.invoke("m").status, 200);
}

#[test]
fn what_cannot_be_loaded_leaves_nothing_behind() {
    let endpoint = Endpoint::start(|_| ());
    let broken = endpoint.root.path().join("broken/1");
    fs::create_dir_all(broken.join("variables")).expect("directories");
    fs::write(broken.join("saved_model.pb"), b"no model").expect("written");
    for url in ["/opt/ml/models/../../../etc", "/etc", "..", "/opt/ml/models", "invalid_version"] {
        let answer = endpoint.load("m", url);
        let text = format!("Could not find valid base path {url} for servable m");
        answer.assert_refused(url, 404, &text);
    }
    let answer = endpoint.load("m", "broken");
    assert!((400..600).contains(&answer.status), "{}", answer.text());
    assert!(answer.error().contains("Model m cannot be loaded"), "{}", answer.text());
    for body in ["", "{", "{}", r#"{"model_name": "m"}"#, r#"{"model_name": 1, "url": "m"}"#, "[]"]
    {
        endpoint.call("POST", "/models", body).assert_refused(body, 400, "model_name");
    }
    for (method, path) in [("PUT", "/models/m"), ("DELETE", "/models"), ("PATCH", "/models")] {
        endpoint.call(method, path, "").assert_refused(path, 405, "is not allowed");
    }
    assert_eq!(endpoint.call("GET", "/models", "").text(), "{}");
    // The name is free again.
    assert_eq!(endpoint.load("m", "half_plus_two").status, 200);
}

#[test]
fn the_list_comes_in_pages_where_they_are_asked_for() {
    let endpoint = Endpoint::start(|_| ());
    for name in ["a", "b", "c"] {
        assert_eq!(endpoint.load(name, "half_plus_two").status, 200);
    }
    let page = endpoint.call("GET", "/models?limit=2", "").json();
    let names = |page: &serde_json::Value| {
        let models = page["models"].as_array().expect("models").iter();
        models.map(|model| model["modelName"].as_str().expect("a name").to_owned()).collect()
    };
    let first: Vec<String> = names(&page);
    assert_eq!(first, ["a", "b"]);
    assert!(page["models"][0]["modelUrl"].as_str().expect("a url").ends_with("half_plus_two"));
    let token = page["nextPageToken"].as_str().expect("a token");
    let page = endpoint.call("GET", &format!("/models?limit=2&next_page_token={token}"), "").json();
    let second: Vec<String> = names(&page);
    assert_eq!(second, ["c"]);
    assert!(page.get("nextPageToken").is_none());
    endpoint.call("GET", "/models?limit=0", "").assert_refused("limit", 400, "limit must be");
}

#[test]
fn errors_name_the_archive_and_not_where_it_was_unpacked() {
    let endpoint = Endpoint::start(|_| ());
    let unpacked_below = std::env::temp_dir().join("tensorserve-");
    let file = |path: &str| (path.to_owned(), b"damaged".to_vec());
    let archives = [
        ("damaged", vec![file("1/saved_model.pb")]),
        ("two", vec![file("a/1/saved_model.pb"), file("b/1/saved_model.pb")]),
        ("twice", vec![file("a"), file("a/saved_model.pb")]),
    ];
    for (name, files) in archives {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, path, &*content).expect("written");
        }
        let packed = archive.into_inner().and_then(GzEncoder::finish).expect("finished");
        let url = format!("{name}.tar.gz");
        fs::write(endpoint.root.path().join(&url), packed).expect("written");
        let answer = endpoint.load(name, &url);
        assert_ne!(answer.status, 200, "{name}: {}", answer.text());
        let temporary = unpacked_below.display().to_string();
        assert!(!answer.text().contains(&temporary), "{name}: {}", answer.text());
        assert!(!answer.text().contains("partial-"), "{name}: {}", answer.text());
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused() {
    let endpoint = Endpoint::start(|models| models.memory_limit = Some(1 << 20));
    let answer = endpoint.load("m", "half_plus_two");
    answer.assert_refused("load", 507, "Memory exhausted: not enough memory to load the model m");
    assert!(endpoint.loaded().is_empty());
    assert_eq!(endpoint.call("GET", "/ping", "").status, 200);
}

#[test]
fn the_model_that_was_not_used_for_longest_makes_room() {
    let endpoint = Endpoint::start(|models| {
        models.memory_limit = Some(1 << 20);
        models.evict = true;
    });
    // Loaded without the limit: after their eviction, the next model still does not fit.
    let engine = endpoint.server.engine.clone();
    let folder = endpoint.root.path().join("half_plus_two");
    let common = config(settings()).repository.common;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for name in ["a", "b"] {
        let source = tensorserve::config::SourceConfig {
            path: folder.clone(),
            name: Some(name.to_owned()),
            model: common.clone(),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        runtime.block_on(engine.load_model(source, deadline)).expect("loaded");
    }
    assert_eq!(endpoint.invoke("a").status, 200);
    endpoint.load("c", "half_plus_two").assert_refused("load", 507, "Memory exhausted");
    assert!(endpoint.loaded().is_empty(), "the loaded models were not evicted");
}

#[test]
fn models_also_make_room_within_the_limit_of_all_models() {
    let endpoint = Endpoint::with_memory_limit(Some(300 << 10), |models| models.evict = true);
    // An estimate of 240 KiB.
    let folder = endpoint.root.path().join("half_plus_two");
    let version = fs::read_dir(&folder).expect("versions").flatten().map(|entry| entry.path());
    let version = version.filter(|path| path.join("saved_model.pb").exists()).last();
    fs::write(version.expect("a version").join("weights"), vec![0; 200 << 10]).expect("written");
    assert_eq!(endpoint.load("a", "half_plus_two").status, 200);
    let second = endpoint.load("b", "half_plus_two");
    assert_eq!(second.status, 200, "{}", second.text());
    assert_eq!(endpoint.loaded(), BTreeSet::from(["b".to_owned()]));
}

#[test]
fn a_model_is_loaded_when_it_is_used() {
    let endpoint = Endpoint::start(|models| models.load_on_use = true);
    assert_eq!(endpoint.invoke("half_plus_two").json(), json!({"predictions": [2.5]}));
    endpoint.invoke("nothing").assert_refused("unknown", 404, "is not loaded yet.");
    endpoint.invoke("..%2Fetc").assert_refused("outside", 404, "is not loaded yet.");
    // Clients of the service name models by their archives.
    let archive = endpoint.root.path().join("packed.tar.gz");
    let file = fs::File::create(archive).expect("a file");
    let mut builder = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
    builder.append_dir_all("1", data("sagemaker/mme/half_plus_two/00000123")).expect("packed");
    builder.into_inner().and_then(GzEncoder::finish).expect("finished");
    let headers = [("x-amzn-sagemaker-target-model", "packed.tar.gz")];
    let path = "/endpoints/e/invocations";
    let body = r#"{"instances": [1.0]}"#;
    let answer = request(endpoint.server.address, "POST", path, &headers, body);
    assert_eq!(answer.json(), json!({"predictions": [2.5]}));
    assert_eq!(endpoint.loaded(), BTreeSet::from(["half_plus_two".into(), "packed".into()]));
}

#[test]
fn many_at_once_ask_for_one_model() {
    let endpoint = Endpoint::start(|models| models.load_on_use = true);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(endpoint.invoke("half_plus_two").status, 200));
        }
    });
    endpoint.clear();
    let statuses: Vec<u16> = thread::scope(|scope| {
        let loads = (0..4).map(|_| scope.spawn(|| endpoint.load("m", "half_plus_two").status));
        let loads: Vec<_> = loads.collect();
        loads.into_iter().map(|load| load.join().expect("ends")).collect()
    });
    assert_eq!(statuses.iter().filter(|&&status| status == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|&&status| status == 409).count(), 3, "{statuses:?}");
}

/// The endpoint as a separate process.
pub fn process(root: &Path) -> Process {
    let mut command = tensorserve(&["serve", "--log-level", "error"]);
    command.env("SAGEMAKER_MULTI_MODEL", "true").env("SAGEMAKER_MODEL_DIR", root);
    command.env("SAGEMAKER_BIND_TO_PORT", "0").env("TENSORSERVE_GRPC_PORT", "0");
    Process::start(command)
}

fn send(client: &mut Client, method: &str, path: &str, body: &str) -> Answer {
    let headers = [("content-type", "application/json")];
    client.request(method, path, &headers, body.as_bytes()).expect("an answer")
}

/// Loads and unloads models while the loaded ones are invoked.
struct Churn {
    address: SocketAddr,
    loaded: RwLock<BTreeSet<String>>,
    times: Mutex<Vec<Duration>>,
    invocations: AtomicU64,
    ends: AtomicBool,
}

impl Churn {
    /// Loads and unloads the models `names` once.
    fn cycle(&self, names: &[String]) {
        let mut client = Client::connect(self.address).expect("connects");
        for name in names {
            let start = Instant::now();
            let load = json!({"model_name": name, "url": "/opt/ml/models/half_plus_three"});
            let answer = send(&mut client, "POST", "/models", &load.to_string());
            assert_eq!(answer.status, 200, "{}", answer.text());
            self.times.lock().expect("a lock").push(start.elapsed());
            self.loaded.write().expect("a lock").insert(name.clone());
        }
        for name in names {
            // The lock waits for invocations of the model, and prevents later ones.
            self.loaded.write().expect("a lock").remove(name);
            let answer = send(&mut client, "DELETE", &format!("/models/{name}"), "");
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }

    /// Invokes loaded models until `ends` is set.
    fn invoke(&self) {
        let mut client = Client::connect(self.address).expect("connects");
        let mut count = 0;
        while !self.ends.load(Relaxed) {
            let loaded = self.loaded.read().expect("a lock");
            let Some(name) = loaded.iter().nth(count % loaded.len().max(1)) else {
                drop(loaded);
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let path = format!("/models/{name}/invoke");
            let answer = send(&mut client, "POST", &path, r#"{"instances": [1.0]}"#);
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            drop(loaded);
            count += 1;
            self.invocations.fetch_add(1, Relaxed);
            // Leaves the lock to writers.
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The full test needs `TENSORSERVE_TEST_MODELS=200` and an idle machine.
#[test]
fn models_come_and_go_while_others_are_used() {
    let count = std::env::var("TENSORSERVE_TEST_MODELS").ok().and_then(|n| n.parse().ok());
    let count: usize = count.unwrap_or(20);
    let root = models();
    let process = process(root.path());
    let churn = Churn {
        address: process.address,
        loaded: RwLock::default(),
        times: Mutex::default(),
        invocations: AtomicU64::new(0),
        ends: AtomicBool::new(false),
    };
    let names: Vec<String> = (0..count).map(|number| format!("model-{number}")).collect();
    let (before, after) = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| churn.invoke());
        }
        // The first cycle allocates memory that the library and the allocator keep.
        churn.cycle(&names);
        let before = process.resident();
        for _ in 0..3 {
            churn.cycle(&names);
        }
        let after = process.resident();
        churn.ends.store(true, Relaxed);
        (before, after)
    });
    let mut times = churn.times.into_inner().expect("a lock");
    times.sort();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    let invocations = churn.invocations.into_inner();
    println!(
        "{} loads: median {median:?}, slowest {slowest:?}; {invocations} invocations; memory \
         {before} kB, {after} kB at the end",
        times.len()
    );
    assert!(invocations > 0);
    let most = before + before / 20;
    assert!(after <= most, "{before} kB became {after} kB");
    assert!(median < Duration::from_secs(20), "{median:?}");
}
