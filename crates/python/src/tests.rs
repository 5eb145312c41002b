//! Models of plain Python, which need no packages.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Code, Error};
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor, aligned_vec};
use tensorserve_workers::WorkersConfig;

/// A module whose classes models are of.
const MODULE: &str = r#"
import os, sys, time

class Sums:
    n_features_in_ = 2

    def predict(self, rows):
        return [float(sum(row)) for row in rows]

class Names:
    """Says hello to names; some of them are commands."""

    def predict(self, names):
        names = [name for name in names if name != "drop"]
        return {"length": [len(name) for name in names], "text": [self.text(name) for name in names]}

    def text(self, name):
        if name == "refuse":
            raise ValueError("no such name")
        if name == "fail":
            raise KeyError("missing")
        if name == "exit":
            os._exit(3)
        if name == "hang":
            time.sleep(60)
        if name == "pid":
            return str(os.getpid())
        return "hello " + name

class Broken:
    def __setstate__(self, state):
        raise RuntimeError("not today")

class Nothing:
    pass
"#;

const NAMES: &str = "[[signature.inputs]]\nname = \"name\"\ndtype = \"string\"\nshape = [-1]\n\
                     [[signature.outputs]]\nname = \"length\"\ndtype = \"int64\"\nshape = [-1]\n\
                     [[signature.outputs]]\nname = \"text\"\ndtype = \"string\"\nshape = [-1]\n";

/// A version of a model: a pickle of an object of `class`, with its module beside it.
struct ModelPath {
    folder: tempfile::TempDir,
    workers: Workers,
}

impl ModelPath {
    fn of(class: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let code = folder.path().join("code");
        fs::create_dir(&code).expect("created");
        fs::write(code.join("mine.py"), MODULE).expect("written");
        let file = folder.path().join("model.pkl");
        let script = format!(
            "import sys, pickle; sys.path.insert(0, sys.argv[1]); import mine\n\
             value = mine.{class}.__new__(mine.{class}); value.a = 1\n\
             pickle.dump(value, open(sys.argv[2], 'wb'))"
        );
        let status = Command::new("python3").args(["-c", &script]).args([&code, &file]).status();
        assert!(status.expect("Python runs").success());
        ModelPath { folder, workers: Workers::new(WorkersConfig::default()) }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn declare(self, text: &str) -> Self {
        fs::write(self.path().join("tensorserve.toml"), text).expect("written");
        self
    }

    fn load(&self, change: impl FnOnce(&mut LoadOptions)) -> Result<Loaded> {
        let mut options = LoadOptions::default();
        options.runner.workers = 1;
        change(&mut options);
        Python::new(self.workers.clone()).load(self.path(), &options)
    }

    fn loaded(&self) -> Loaded {
        self.load(|_| ()).expect("loads")
    }

    fn refused(&self) -> Error {
        let Err(error) = self.load(|_| ()) else { panic!("loaded") };
        error
    }
}

impl Drop for ModelPath {
    fn drop(&mut self) {
        self.workers.stop(Duration::from_secs(2));
    }
}

fn matrix(rows: &[[f64; 2]]) -> Tensor {
    let mut values = aligned_vec(rows.len() * 2);
    values.extend_from_slice(rows.as_flattened());
    Tensor::from_vec(Shape::new(&[rows.len() as i64, 2]).expect("a shape"), values).expect("fits")
}

fn texts(values: &[&str]) -> Tensor {
    let mut builder = StringsBuilder::default();
    values.iter().for_each(|value| builder.push(value.as_bytes()));
    Tensor::from_strings(Shape::vector(values.len()), builder).expect("fits")
}

fn run(loaded: &Loaded, input: Tensor, timeout: Option<Duration>) -> Result<Vec<Tensor>> {
    loaded.executable.run(0, &[input], RunOptions { threads: 1, timeout })
}

/// The text that the model of [`NAMES`] returns.
fn says(executable: &dyn Executable, name: &str) -> Result<String> {
    let options = RunOptions { threads: 1, timeout: Some(Duration::from_secs(20)) };
    let outputs = executable.run(0, &[texts(&[name])], options)?;
    let text = outputs[1].strings().expect("texts").iter().next().expect("one").to_vec();
    Ok(String::from_utf8(text).expect("UTF-8"))
}

#[test]
fn an_object_predicts_with_inputs_and_outputs_that_follow_from_it() {
    let place = ModelPath::of("Sums");
    let loaded = place.loaded();
    let [signature] = &loaded.signatures[..] else { panic!("one") };
    assert_eq!(signature.name, "serving_default");
    assert_eq!(signature.inputs[0].alias, "data");
    assert_eq!(signature.inputs[0].shape.sizes(), Some(vec![-1, 2]));
    assert!(signature.takes_missing() && signature.is_batchable());
    let outputs: Vec<&str> = signature.outputs.iter().map(|spec| &*spec.alias).collect();
    assert_eq!((outputs, signature.outputs[0].dtype()), (vec!["predict"], Some(DType::Double)));
    let outputs = run(&loaded, matrix(&[[1.0, 2.5], [-1.0, f64::INFINITY]]), None).expect("runs");
    assert_eq!(outputs[0].values::<f64>(), Some(&[3.5, f64::INFINITY][..]));
    // More than fits into a frame, in both directions.
    let many: Vec<[f64; 2]> = (0..100_000).map(|i| [f64::from(i), 0.5]).collect();
    let outputs = run(&loaded, matrix(&many), None).expect("runs");
    assert_eq!(outputs[0].values::<f64>().expect("numbers")[99_999], 99_999.5);
    let inspected = Python::new(place.workers.clone());
    let inspected = inspected.inspect(place.path(), &LoadOptions::default()).expect("inspected");
    assert_eq!(inspected.signatures[0].outputs, signature.outputs);
}

#[test]
fn inputs_and_outputs_are_those_that_are_declared() {
    let place = ModelPath::of("Names").declare(NAMES);
    let loaded = place.loaded();
    let outputs = run(&loaded, texts(&["Ada", "", "\u{e9}"]), None).expect("runs");
    assert_eq!(outputs[0].values::<i64>(), Some(&[3, 0, 1][..]));
    let said: Vec<&[u8]> = outputs[1].strings().expect("texts").iter().collect();
    assert_eq!(said, ["hello Ada".as_bytes(), b"hello ", "hello \u{e9}".as_bytes()]);
    let other = NAMES.replace("int64", "string").replace("\"length\"", "\"size\"");
    let place = ModelPath::of("Names").declare(&other);
    let error = run(&place.loaded(), texts(&["x"]), None).expect_err("no such output");
    assert!(error.message().contains("returned no size, but length, text"), "{error}");
}

#[test]
fn outputs_have_a_row_for_each_row_of_the_inputs() {
    let place = ModelPath::of("Names").declare(NAMES);
    let loaded = place.loaded();
    for names in [&["Ada", "drop", "Grace"][..], &["drop", "Ada"]] {
        let error = run(&loaded, texts(names), None).expect_err("a row is missing");
        assert_eq!(error.code(), Code::Internal);
        let (rows, left) = (names.len(), names.len() - 1);
        let message = format!(
            "the Python model was called with {rows} rows, and has returned the output \"length\" of the \
             shape [{left}]: it must have as many rows"
        );
        assert_eq!(error.message(), message);
    }
    run(&loaded, texts(&["Ada"]), None).expect("runs");
}

#[test]
fn what_the_model_raises_is_the_requests_fault_or_its_own() {
    let place = ModelPath::of("Names").declare(NAMES);
    let loaded = place.loaded();
    let error = says(&*loaded.executable, "refuse").expect_err("refused");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(error.message(), "ValueError: no such name");
    let error = says(&*loaded.executable, "fail").expect_err("fails");
    assert_eq!((error.code(), error.message()), (Code::Internal, "KeyError: 'missing'"));
    assert_eq!(says(&*loaded.executable, "Ada").expect("goes on"), "hello Ada");
}

#[test]
fn a_process_that_ends_fails_only_its_run_and_is_started_again() {
    let place = ModelPath::of("Names").declare(NAMES);
    let loaded = place.load(|options| options.runner.workers = 2).expect("loads");
    let error = says(&*loaded.executable, "exit").expect_err("ends");
    assert_eq!(error.code(), Code::Unavailable);
    let part = "the process of the Python model exited with status 3";
    assert!(error.message().starts_with(part), "{error}");
    for _ in 0..4 {
        assert_eq!(says(&*loaded.executable, "Ada").expect("the other one"), "hello Ada");
    }
    says(&*loaded.executable, "exit").expect_err("ends, too");
    assert_eq!(says(&*loaded.executable, "Ada").expect("started again"), "hello Ada");
}

#[test]
fn a_run_ends_at_its_deadline_and_its_process_when_it_takes_too_long() {
    let place = ModelPath::of("Names").declare(NAMES);
    let limit = Duration::from_millis(600);
    let loaded = place.load(|options| options.runner.timeout = limit).expect("loads");
    let before = says(&*loaded.executable, "pid").expect("an id");
    let started = Instant::now();
    let error = run(&loaded, texts(&["hang"]), Some(Duration::from_millis(50)));
    let error = error.expect_err("hangs");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.message().contains("the deadline passed before the Python model replied"));
    assert!(started.elapsed() < limit, "{:?}", started.elapsed());
    // The next run waits for the process that takes its place.
    assert_ne!(says(&*loaded.executable, "pid").expect("an id"), before);
    let error = run(&loaded, texts(&["hang"]), None).expect_err("hangs");
    let text = error.message();
    assert!(text.contains("was stopped: no reply after 0.6 s"), "{error}");
}

#[test]
fn what_cannot_be_loaded_is_explained_by_its_traceback() {
    let error = ModelPath::of("Broken").refused();
    let text = error.message();
    assert!(text.contains("model.pkl: RuntimeError: not today\n"), "{text}");
    assert!(text.contains("in __setstate__"), "{text}");
    let error = ModelPath::of("Nothing").refused();
    assert!(error.message().contains("an object of the class Nothing, which has none of predict"));

    let place = ModelPath::of("Sums");
    fs::remove_dir_all(place.path().join("code")).expect("removed");
    let text = place.refused().message().to_owned();
    assert!(
        text.contains("ModuleNotFoundError: No module named 'mine'; install it into"),
        "{text}"
    );
    fs::write(place.path().join("model.pkl"), b"\x80\x04nonsense").expect("written");
    assert!(place.refused().message().contains("UnpicklingError"));
    let Err(error) = place.load(|options| options.runner.python = Some("/nowhere/python".into()))
    else {
        panic!("loaded")
    };
    let text = error.message();
    assert!(text.contains("/nowhere/python cannot be started") && text.contains("runner_python"));
}

#[test]
fn no_file_chooses_the_platform() {
    let place = ModelPath::of("Sums");
    let python = Arc::new(Python::new(place.workers.clone())).platform();
    let platforms = tensorserve_platform::Platforms::new(vec![python]);
    assert!(platforms.of_folder(place.path()).is_none());
    assert!(!platforms.is_model(place.path(), None));
    let named = platforms.of_version(place.path(), Some(NAME)).expect("named");
    assert_eq!(named.info.name, NAME);
    assert!(platforms.is_model(place.path(), Some(NAME)));
}
