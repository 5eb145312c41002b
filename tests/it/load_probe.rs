//! The load probe: versions that crash, hang or exhaust the memory fail in a child process, and
//! versions that die of other shapes than the declared ones get none. `tests/data/probe` describes
//! the models.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::json;
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};
use tonic::Code;

use crate::support::client::{Answer, get, post, request};
use crate::support::grpc::{Caller, PREDICT};
use crate::support::process::{Process, tensorserve};
use crate::support::server::TestServer;
use crate::support::{copy, data, pause_between_requests, project};

/// A directory with `half_plus_two` and these models of the test data.
fn place(models: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("temporary directory");
    copy(&project("models/half_plus_two"), &root.path().join("half_plus_two"));
    for model in models {
        copy(&data("probe").join(model), &root.path().join(model));
    }
    root
}

/// A server that remembers no earlier probe, and its log on stderr.
struct Probing {
    server: Process,
    log: std::path::PathBuf,
}

impl Probing {
    fn serve(root: &Path, cache: &Path, options: &[&str]) -> Self {
        let log = cache.join(format!("log-{}", fs::read_dir(cache).map_or(0, Iterator::count)));
        let ports = ["serve", "--http-port", "0", "--grpc-port", "0", "--poll-interval", "100ms"];
        let mut command = tensorserve(&ports);
        command.args(options).arg(root).env("TENSORSERVE_LOAD_PROBE_CACHE", cache);
        command.stderr(fs::File::create(&log).expect("a file"));
        Probing { server: Process::start(command), log }
    }

    /// The lines of the log that contain `text`.
    fn logged(&self, text: &str) -> Vec<String> {
        let log = fs::read_to_string(&self.log).expect("the log");
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        post(self.server.address, path, body)
    }

    fn status(&self, model: &str) -> String {
        get(self.server.address, &format!("/v1/models/{model}")).text()
    }

    fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            assert!(start.elapsed() < Duration::from_secs(600), "not reached: {what}\n{log}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn versions_that_crash_or_exhaust_the_memory_fail_alone() {
    // A busy machine may take its time to get as far as the crash.
    let options = ["--load-probe-timeout", "10m", "--load-probe-memory", "512MiB"];
    fail_alone(
        &options,
        &[
            ("aborts", &["SIGABRT", "serving_default", "this model aborts"]),
            ("fails_check", &["SIGABRT", "serving_default", "Check failed"]),
            ("takes_memory", &["more than the 512 MiB of load_probe_memory"]),
            ("overflows", &["while loading it", "overflowed its stack"]),
        ],
    );
}

#[test]
fn versions_that_hang_fail_alone() {
    fail_alone(
        &["--load-probe-timeout", "30s"],
        &[
            ("loops_in_load", &["did not end within 30s", "while loading it"]),
            ("loops_in_run", &["did not end within 30s", "serving_default"]),
        ],
    );
}

/// Loads models of `data/probe` at once beside one that serves, each with what its error contains.
fn fail_alone(options: &[&str], bad: &[(&str, &[&str])]) {
    let root = place(&[]);
    let cache = tempfile::tempdir().expect("temporary directory");
    let options = [options, &["--load-threads", "6"]].concat();
    let probing = Probing::serve(root.path(), cache.path(), &options);
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                let answer = probing
                    .post("/v1/models/half_plus_two:predict", r#"{"instances": [1.0, 2.0]}"#);
                assert_eq!(answer.status, 200, "{}", answer.text());
                assert_eq!(answer.json(), json!({"predictions": [2.5, 3.0]}));
                asked.fetch_add(1, SeqCst);
                pause_between_requests();
            }
        });
        // Also if an assertion below fails.
        let _stop = StopOnDrop(&stop);
        for (model, _) in bad {
            copy(&data("probe").join(model), &root.path().join(model));
        }
        for (model, reasons) in bad {
            probing.wait_until(model, || probing.status(model).contains("\"END\""));
            let status = probing.status(model);
            for reason in *reasons {
                assert!(status.contains(reason), "{model}: {reason:?} is not in {status}");
            }
        }
    });
    assert!(asked.load(SeqCst) > 100, "{asked:?} requests");
    // Nothing of them is remembered as passed.
    let files = fs::read_dir(cache.path()).expect("a directory").flatten();
    let files: Vec<_> = files.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    let verdicts: Vec<_> = files.iter().filter_map(|it| it.strip_suffix(".json")).collect();
    assert_eq!(verdicts.len(), 1, "{files:?}");
    // Besides, there are notes on the version that has passed, and the log.
    let others = files.iter().filter(|it| !it.starts_with(verdicts[0]));
    assert_eq!(others.count(), 1, "{files:?}");
    // A crash is final, as long as the files stay the same.
    let first = bad[0].0;
    assert_eq!(probing.logged(&format!("{first} version 1: could not be loaded")).len(), 1);
}

#[test]
fn convolutions_take_the_declared_shapes_only() {
    let root = place(&["conv1d", "conv2d"]);
    let cache = tempfile::tempdir().expect("temporary directory");
    // Without a probe, the list of operations has the same effect.
    for options in [&[][..], &["--load-probe", "false"]] {
        let probing = Probing::serve(root.path(), cache.path(), options);
        let address = probing.server.address;
        let row = json!(vec![[1.0]; 64]);
        let pixel = json!([1.0, 2.0, 3.0]);
        let declared = json!({"inputs": [vec![vec![pixel.clone(); 8]; 8]]});
        let wrong_size = json!({"inputs": [vec![vec![pixel; 5]; 3]]});
        let cases = [
            ("conv1d", r#"{"instances": [[1,2,3]]}"#.to_owned(), "[?, 64, 1], not [1,3]"),
            ("conv1d", r#"{"inputs": []}"#.to_owned(), "[?, 64, 1], not [0]"),
            ("conv1d", json!({"inputs": [vec![1.0; 64]]}).to_string(), "not [1,64]"),
            ("conv2d", r#"{"instances": [[1,2,3]]}"#.to_owned(), "[?, 8, 8, 3], not [1,3]"),
            ("conv2d", r#"{"inputs": 1}"#.to_owned(), "[?, 8, 8, 3], not []"),
            ("conv2d", wrong_size.to_string(), "[?, 8, 8, 3], not [1,3,5,3]"),
        ];
        for (model, body, message) in cases {
            let answer = probing.post(&format!("/v1/models/{model}:predict"), &body);
            answer.assert_refused(model, 400, message);
            assert!(answer.error().starts_with("input \"x\" must have the shape"), "{model}");
            let headers = [
                ("Content-Type", "application/json"),
                ("X-Amzn-SageMaker-Custom-Attributes", &*format!("tfs-model-name={model}")),
            ];
            let answer = request(address, "POST", "/invocations", &headers, &body);
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(answer.text().contains(message), "{}", answer.text());
        }
        let caller = Caller::connect(probing.server.grpc()).expect("connects");
        for dims in [&[1, 64][..], &[], &[0], &[0, 64, 1], &[1, 64, 1, 1]] {
            let status = caller.call(PREDICT, conv1d(dims)).expect_err("refused");
            assert_eq!(status.code(), Code::InvalidArgument, "{dims:?}: {status}");
            assert!(status.message().contains("[?, 64, 1]"), "{dims:?}: {status}");
        }
        caller.call(PREDICT, conv1d(&[2, 64, 1])).expect("the declared shape");
        let answer =
            probing.post("/v1/models/conv1d:predict", &json!({"instances": [row]}).to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = probing.post("/v1/models/conv2d:predict", &declared.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        // Declared as [?], and as lenient as in TensorFlow Serving.
        let answer = probing.post("/v1/models/half_plus_two:predict", r#"{"inputs": [[1], [2]]}"#);
        assert_eq!(answer.json(), json!({"outputs": [[2.5], [3.0]]}));
    }
}

/// A request of zeros for the model `conv1d`.
fn conv1d(dims: &[i64]) -> Vec<u8> {
    let shape = Shape::new(dims).expect("valid");
    let mut zeros = aligned_vec::<f32>(0);
    zeros.resize(shape.elements().expect("small"), 0.0);
    let x = Tensor::from_vec(shape, zeros).expect("a tensor");
    let request = PredictRequest {
        model_spec: Some(ModelSpec { name: "conv1d".to_owned(), ..ModelSpec::default() }),
        inputs: [("x".to_owned(), tensor_to_proto(&x, Form::Content))].into(),
        output_filter: Vec::new(),
    };
    request.encode_to_vec()
}

#[test]
fn servers_without_a_probe_know_operations_that_need_exact_shapes() {
    let server = TestServer::of(&data("probe/conv1d"));
    let answer = server.post("/v1/models/conv1d:predict", r#"{"instances": [[1,2,3]]}"#);
    answer.assert_refused("conv1d", 400, "[?, 64, 1], not [1,3]");
}

#[test]
fn other_forms_are_probed_and_remembered_too() {
    let root = place(&[]);
    let cache = tempfile::tempdir().expect("temporary directory");
    let judged = || {
        let probing = Probing::serve(root.path(), cache.path(), &["--optimize", "exact"]);
        let found = || {
            let shown = get(probing.server.address, "/api/v1/models/half_plus_two").json();
            shown["versions"][0]["optimization"].clone()
        };
        // Whether it is quicker, a busy machine does not always show.
        probing.wait_until("the other form is judged", || {
            found()["state"] == "optimized" || found()["state"] == "unchanged"
        });
        (found(), probing)
    };
    let files = |ending: &str| -> Vec<std::path::PathBuf> {
        let files = fs::read_dir(cache.path()).expect("a directory").flatten();
        files.map(|it| it.path()).filter(|it| it.to_string_lossy().ends_with(ending)).collect()
    };
    let (first, _) = judged();
    let note = files("-form-exact.txt").pop();
    assert_eq!(note.is_some(), first["state"] == "optimized", "{first}");
    let (again, probing) = judged();
    assert!(probing.logged("load probe in").is_empty());
    assert_eq!(files(".json").len(), 2);
    let Some(note) = note else {
        return;
    };
    // To the last digit of what was measured then.
    assert_eq!(again, first);
    let written = fs::read_to_string(&note).expect("a note");
    let (processor, form) = written.split_once('\n').expect("two lines");
    let (_, what) = form.split_once('\n').expect("a line of numbers");
    for other in [
        String::new(),
        "\u{1f}".repeat(100),
        format!("another processor\n{form}"),
        format!("{processor}\n99 48 0.125\n{what}"),
        format!("{processor}\n0 48 0.125\nother constants"),
    ] {
        fs::write(&note, &other).expect("written");
        let (found, _) = judged();
        assert_ne!(found["cpu"], 0.125, "{other:?}: {found}");
        assert!(found["text"].to_string().contains("constants"), "{other:?}: {found}");
    }
}

#[test]
fn a_shape_that_ends_the_probe_is_refused_and_remembered() {
    let root = place(&["aborts_when_empty"]);
    let cache = tempfile::tempdir().expect("temporary directory");
    for probes in [2, 0] {
        let probing = Probing::serve(root.path(), cache.path(), &[]);
        assert_eq!(probing.logged("passed the load probe").len(), probes);
        let because = probing.logged("requests must have the declared shapes");
        assert_eq!(because.len(), probes / 2, "{because:?}");
        let ask = |body| probing.post("/v1/models/aborts_when_empty:predict", body);
        ask(r#"{"inputs": []}"#).assert_refused("no rows", 400, "input \"x\" must not be empty");
        ask(r#"{"inputs": [[1]]}"#).assert_refused("rank 2", 400, "must have the shape [?]");
        assert_eq!(ask(r#"{"inputs": [1]}"#).json(), json!({"outputs": [2.0]}));
    }
    // A changed file is another version.
    fs::write(root.path().join("aborts_when_empty/1/note.txt"), "changed").expect("written");
    let probing = Probing::serve(root.path(), cache.path(), &[]);
    assert_eq!(probing.logged("passed the load probe").len(), 1);
}

/// Replaces `half_plus_two` a few times. Returns how long the probe, load and warm-up of each version
/// took, in milliseconds.
fn replacements(options: &[&str]) -> Vec<u64> {
    let root = place(&[]);
    let cache = tempfile::tempdir().expect("temporary directory");
    let probing = Probing::serve(root.path(), cache.path(), options);
    let mut times = Vec::new();
    for version in 2..6 {
        // Not known from an earlier probe.
        let staged = root.path().join(format!("staged-{version}"));
        copy(&project("models/half_plus_two/1"), &staged);
        fs::write(staged.join("note.txt"), version.to_string()).expect("written");
        let folder = root.path().join(format!("half_plus_two/{version}"));
        fs::rename(staged, folder).expect("renamed");
        let ready = format!("half_plus_two version {version}: ready after ");
        probing.wait_until(&ready, || !probing.logged(&ready).is_empty());
        let line = probing.logged(&ready).remove(0);
        let time = line.split(&ready).nth(1).and_then(|rest| rest.split(' ').next());
        times.push(time.and_then(|time| time.parse().ok()).expect("milliseconds"));
    }
    let probes = if options.is_empty() { 5 } else { 0 };
    assert_eq!(probing.logged("passed the load probe").len(), probes);
    times
}

#[test]
fn a_version_replaces_another_within_a_second() {
    let shortest = |options: &[&str]| replacements(options).into_iter().min().expect("times");
    let (without, with) = (shortest(&["--load-probe", "false"]), shortest(&[]));
    let load = fs::read_to_string("/proc/loadavg").expect("the load of the machine");
    let running: f64 = load.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    // On a machine with more to do than cores, the probe gets a tenth of a core: it has low priority.
    let is_busy = running > thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let limit = if is_busy { 1000 + 10 * without } else { 1000 };
    let figures = format!("{without} ms without a probe, {with} ms with one, load {running}");
    println!("{figures}");
    assert!(with < limit, "{figures}");
}

#[cfg(feature = "onnx")]
#[test]
fn onnx_models_are_probed() {
    let root = place(&[]);
    let folder = root.path().join("numbers/1");
    fs::create_dir_all(&folder).expect("a directory");
    let model = data("platforms/onnx/half_plus_two.onnx");
    fs::copy(model, folder.join("model.onnx")).expect("copied");
    let cache = tempfile::tempdir().expect("temporary directory");
    let probing = Probing::serve(root.path(), cache.path(), &[]);
    assert_eq!(probing.logged("without a probe"), [""; 0]);
    assert_eq!(probing.logged("numbers/1: passed the load probe").len(), 1);
    assert_eq!(probing.logged("half_plus_two/1: passed the load probe").len(), 1);
}

#[test]
fn the_probe_host_ends_with_the_server() {
    let root = place(&[]);
    let cache = tempfile::tempdir().expect("temporary directory");
    let mut probing = Probing::serve(root.path(), cache.path(), &[]);
    let id = probing.server.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("children");
    let children: Vec<&str> = children.split_whitespace().collect();
    let [host] = children.as_slice() else { panic!("not one child: {children:?}") };
    assert_eq!(fs::read_dir(format!("/proc/{host}/task")).expect("threads").count(), 1);
    probing.server.signal("KILL");
    probing.server.wait();
    let start = Instant::now();
    while Path::new(&format!("/proc/{host}/status")).exists() {
        let status = fs::read_to_string(format!("/proc/{host}/status")).unwrap_or_default();
        if status.contains("State:\tZ") {
            break; // Whoever adopted it has not waited for it yet.
        }
        assert!(start.elapsed() < Duration::from_secs(300), "the probe host runs on");
        thread::sleep(Duration::from_millis(10));
    }
}
