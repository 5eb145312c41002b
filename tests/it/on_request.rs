//! Models that are loaded and unloaded individually while the server runs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tensorserve::config::{ModelSettings, SourceConfig};
use tensorserve_core::engine::Engine;
use tensorserve_tensor::error::{Code, Result};

use crate::support::data;
use crate::support::fake::{Loading, Model, SLOW};
use crate::support::place::{Place, values};
use crate::support::server::{TestServer, config, settings};
use crate::support::wait;

fn source(name: &str, path: PathBuf, policy: &str) -> SourceConfig {
    let mut model =
        ModelSettings { name: Some(name.into()), path: Some(path), ..ModelSettings::default() };
    model.each.version_policy = Some(policy.into());
    let mut settings = settings();
    settings.models.push(model);
    config(settings).repository.sources.remove(0)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn load(place: &Place, name: &str, path: &str) -> Result<(), Code> {
    let source = source(name, place.path(path), "latest");
    wait(place.server.engine.load_model(source, soon())).map_err(|error| error.code())
}

fn unload(place: &Place, name: &str) -> Result<(), Code> {
    wait(place.server.engine.unload_model(name)).map_err(|error| error.code())
}

/// Starts a load on another thread.
fn begin_load(place: &Place, name: &str, path: &str, deadline: Instant) -> JoinHandle<Result<()>> {
    let (engine, source) = (place.server.engine.clone(), source(name, place.path(path), "latest"));
    thread::spawn(move || wait(engine.load_model(source, deadline)))
}

fn names(engine: &Engine) -> Vec<String> {
    engine.repository().loaded_models().into_iter().map(|model| model.name).collect()
}

/// A server with the model `s`, and directories of other models.
fn place(models: &[(&str, Model)]) -> Place {
    let own = [("models/s/1", Model::constant(7.0))];
    let place = Place::with(&[&own, models].concat(), |settings, root| {
        settings.paths.push(root.join("models"));
    });
    place.server.wait_until_started();
    place
}

#[test]
fn a_model_comes_and_goes() {
    let place = place(&[("other/a/1", Model::constant(1.0)), ("other/a/3", Model::constant(3.0))]);
    let engine = &place.server.engine;
    assert_eq!(load(&place, "a", "other/a"), Ok(()));
    assert_eq!(place.constant("a"), Some(3.0));
    assert_eq!(load(&place, "b", "other/a/1"), Ok(()));
    assert_eq!(place.constant("b"), Some(1.0));
    assert_eq!(names(engine), ["a", "b"]);
    assert_eq!(engine.repository().loaded_models()[0].path, place.path("other/a"));
    assert_eq!(load(&place, "a", "other/a"), Err(Code::AlreadyExists));
    assert_eq!(load(&place, "s", "other/a"), Err(Code::AlreadyExists));
    assert_eq!(unload(&place, "a"), Ok(()));
    assert_eq!(place.constant("a"), None);
    assert_eq!(engine.repository().status("a").len(), 0);
    assert_eq!((place.constant("b"), place.constant("s")), (Some(1.0), Some(7.0)));
    for name in ["a", "s", "nothing"] {
        assert_eq!(unload(&place, name), Err(Code::NotFound), "{name}");
    }
    assert_eq!(load(&place, "a", "other/a"), Ok(()));
    assert_eq!(place.constant("a"), Some(3.0));
}

#[test]
fn a_request_whose_files_do_not_respond_keeps_no_other_model_waiting() {
    let place = place(&[("other/a/1", Model::constant(1.0)), ("other/b/1", Model::constant(2.0))]);
    fs::write(place.path("other/a/1").join(SLOW), "").expect("written");
    let slow = begin_load(&place, "a", "other/a/1", soon() + Duration::from_secs(60));
    place.server.wait_until("its files are read", |_| place.fake.looks_gate().waiting() > 0);
    // Neither those of sources nor others that are requested.
    place.write("models/s/2", &Model::constant(8.0));
    place.server.wait_until("version 2 serves", |_| place.constant("s") == Some(8.0));
    assert_eq!(load(&place, "b", "other/b"), Ok(()));
    assert!(!slow.is_finished() && place.fake.looks_gate().waiting() > 0);
    place.fake.looks_gate().open();
    slow.join().expect("no panic").expect("it is loaded");
    assert_eq!(place.constant("a"), Some(1.0));
}

#[test]
fn a_requested_model_with_a_pipe_is_refused_and_others_are_loaded() {
    let place = place(&[("other/a/1", Model::constant(1.0)), ("other/b/1", Model::constant(2.0))]);
    let pipe = place.path("other/a/1/weights");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let source = source("a", place.path("other/a"), "latest");
    let refused = wait(place.server.engine.load_model(source, soon())).expect_err("refused");
    assert!(refused.message().contains("weights is a named pipe"), "{refused}");
    assert_eq!(load(&place, "b", "other/b"), Ok(()));
}

#[test]
fn what_was_loaded_stays_as_it_was() {
    let place = place(&[("other/a/1", Model::constant(1.0))]);
    assert_eq!(load(&place, "a", "other/a"), Ok(()));
    // Changes in its directory and other sources do not replace it.
    place.write("other/a/2", &Model::constant(2.0));
    fs::remove_dir_all(place.path("other/a/1")).expect("removed");
    fs::create_dir(place.path("models/a")).expect("directory");
    place.write("models/a/5", &Model::constant(5.0));
    place.wait_for_looks("models");
    assert_eq!(place.constant("a"), Some(1.0));
    let sources = vec![source("s", place.path("models/s"), "latest")];
    wait(place.server.engine.reload(sources)).expect("success");
    assert_eq!(place.constant("a"), Some(1.0));
    assert_eq!(names(&place.server.engine), ["a"]);
}

#[test]
fn of_a_load_that_fails_nothing_stays() {
    let broken = |loading| Model { loading, ..Model::default() };
    let place = place(&[
        ("other/fails/1", broken(Loading::Fails)),
        ("other/panics/1", broken(Loading::Panics)),
        ("other/broken/1", broken(Loading::Broken)),
        ("other/partly/1", Model { files: vec!["more".into()], ..Model::default() }),
        ("other/good/1", Model::constant(1.0)),
        ("other/good/2", broken(Loading::Fails)),
    ]);
    fs::remove_file(place.path("other/partly/1/more")).expect("removed");
    fs::create_dir(place.path("other/empty")).expect("directory");
    let cases = [
        ("fails", "latest", Code::DataLoss, "does not load"),
        ("panics", "latest", Code::Internal, "internal error during the load"),
        ("broken", "latest", Code::DataLoss, "no model"),
        ("partly", "latest", Code::FailedPrecondition, "more is missing"),
        ("empty", "latest", Code::NotFound, "no version in"),
        ("nowhere", "latest", Code::NotFound, "cannot be read"),
        ("good", "specific:1,4", Code::NotFound, "no version 4"),
        ("good", "all", Code::DataLoss, "does not load"),
    ];
    let engine = &place.server.engine;
    for (folder, policy, code, part) in cases {
        let source = source("m", place.path("other").join(folder), policy);
        let error = wait(engine.load_model(source, soon())).expect_err(folder);
        assert_eq!(error.code(), code, "{folder}: {error}");
        assert!(error.message().contains(part), "{folder}: {error}");
        assert_eq!(place.constant("m"), None, "{folder}");
        assert_eq!(engine.repository().status("m").len(), 0, "{folder}");
        assert_eq!(names(engine), [""; 0], "{folder}");
        assert_eq!(engine.repository().all_models(), ["s"], "{folder}");
    }
    let fixed = source("m", place.path("other/good"), "specific:1");
    wait(engine.load_model(fixed, soon())).expect("success");
    assert_eq!(place.constant("m"), Some(1.0));
}

#[test]
fn a_load_that_takes_too_long_is_given_up() {
    let slow = Model { loading: Loading::Gated, ..Model::constant(1.0) };
    let place = place(&[("other/a/1", slow)]);
    let start = Instant::now();
    let load = begin_load(&place, "a", "other/a", start + Duration::from_secs(2));
    place.server.wait_until("the load runs", |_| place.fake.loads_gate().waiting() == 1);
    let error = load.join().expect("no panic").expect_err("too late");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(start.elapsed() < Duration::from_secs(100));
    // The name is free, and the load that is still running does not bring the model back.
    Model::constant(2.0).write_marker(&place.path("other/a/1"));
    assert_eq!(self::load(&place, "a", "other/a"), Ok(()));
    place.fake.loads_gate().open();
    place.server.wait_until("the late load ends", |_| place.fake.loads_gate().waiting() == 0);
    assert_eq!(place.constant("a"), Some(2.0));
    assert_eq!(unload(&place, "a"), Ok(()));
    place.server.wait_until("the late load is dropped", |_| place.fake.alive() == 1);
}

#[test]
fn models_load_beside_each_other_and_disturb_nobody() {
    let slow = Model { loading: Loading::Gated, ..Model::constant(1.0) };
    let place = place(&[("other/a/1", slow), ("other/b/1", Model::constant(2.0))]);
    let loads = [0, 1].map(|n| begin_load(&place, &format!("a{n}"), "other/a", soon()));
    place.server.wait_until("both loads run", |_| place.fake.loads_gate().waiting() == 2);
    let taken = load(&place, "a1", "other/a");
    assert_eq!(taken, Err(Code::AlreadyExists));
    assert_eq!(place.server.get("/readyz").status, 200);
    assert_eq!(names(&place.server.engine), [""; 0]);
    assert_eq!(place.constant("s"), Some(7.0));
    // Only two threads load models.
    let third = begin_load(&place, "b", "other/b", soon());
    place.wait_for_looks("models");
    assert!(!third.is_finished());
    place.fake.loads_gate().open();
    for load in loads {
        load.join().expect("no panic").expect("success");
    }
    third.join().expect("no panic").expect("success");
    assert_eq!(names(&place.server.engine), ["a0", "a1", "b"]);
}

#[test]
fn a_model_can_be_unloaded_while_it_loads() {
    let slow = Model { loading: Loading::Gated, ..Model::constant(1.0) };
    let place = place(&[("other/a/1", slow)]);
    let load = begin_load(&place, "a", "other/a", soon());
    place.wait_for_load_at_gate();
    let engine = place.server.engine.clone();
    let unload = thread::spawn(move || wait(engine.unload_model("a")));
    let error = load.join().expect("no panic").expect_err("an aborted load");
    assert_eq!(error.code(), Code::Aborted, "{error}");
    place.wait_for_looks("models");
    assert!(!unload.is_finished(), "the load still holds memory");
    place.fake.loads_gate().open();
    unload.join().expect("no panic").expect("success");
    assert_eq!(place.fake.alive(), 1);
}

#[test]
fn unloading_waits_for_the_last_request() {
    let place = place(&[("other/m/1", Model::gated())]);
    assert_eq!(load(&place, "m", "other/m"), Ok(()));
    place.fake.runs_gate().open();
    let pending = place.ask(crate::support::place::matrix(&[&[4.0]]), soon());
    let mut unloading = Box::pin(place.server.engine.unload_model("m"));
    assert!((&mut unloading).now_or_never().is_none());
    place.server.wait_until("m is refused", |_| place.predict("m", "[[0]]").status == 404);
    place.wait_for_looks("models");
    assert!((&mut unloading).now_or_never().is_none());
    assert_eq!(place.fake.alive(), 2);
    assert_eq!(values(wait(pending)), [4.0]);
    wait(unloading).expect("success");
    assert_eq!(place.fake.alive(), 1);
}

#[test]
fn a_small_model_is_there_at_once() {
    let mut settings = settings();
    // What waits for the next poll takes an hour.
    settings.server.poll_interval = Some("1h".parse().expect("a duration"));
    settings.paths.push(data("tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu"));
    let server = TestServer::start(settings);
    server.wait_until_started();
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("m/1");
    let original =
        data("tensorflow-serving/upstream/testdata/saved_model_half_plus_three/00000123");
    copy(&original, &folder);
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let source = source("m", root.path().join("m"), "latest");
        wait(server.engine.load_model(source, soon())).expect("success");
        times.push(start.elapsed());
        let answer = server.post("/v1/models/m:predict", r#"{"instances": [2]}"#);
        assert_eq!(answer.json()["predictions"][0], 4.0, "{}", answer.text());
        let start = Instant::now();
        wait(server.engine.unload_model("m")).expect("success");
        times.push(start.elapsed());
    }
    // A busy machine slows all of them, but not to the time of a poll.
    assert!(times.iter().all(|time| *time < Duration::from_secs(600)), "{times:?}");
    println!("{times:?}");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).expect("directory");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("entry");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copies");
        }
    }
}
