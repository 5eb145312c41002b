//! The memory limit: models that do not fit are not loaded, and old versions can be unloaded before
//! new ones are loaded.

use std::fs;
use std::time::{Duration, Instant};

use tensorserve::config::units::Amount;
use tensorserve_tensor::error::{Code, Error, Result};

use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::server::{config, settings};
use crate::support::wait;

/// Adds a file to a model, so that its estimated memory is a little more than `kib` KiB.
fn add_weights(place: &Place, path: &str, kib: usize) {
    let folder = place.path(path);
    fs::write(folder.join("weights"), vec![0; kib * 1024 * 10 / 12]).expect("written");
}

/// A server with a memory limit of `kib` KiB and no loaded models.
fn place(kib: usize, models: &[(&str, Model)]) -> Place {
    Place::with(models, |settings, root| {
        settings.server.memory_limit = Some(Amount::Bytes(kib * 1024));
        fs::create_dir_all(root.join("models")).expect("directory");
        settings.paths.push(root.join("models"));
    })
}

fn load(place: &Place, name: &str, path: &str) -> Result<()> {
    let mut settings = settings();
    let mut model = tensorserve::config::ModelSettings::default();
    (model.name, model.path) = (Some(name.to_owned()), Some(place.path(path)));
    settings.models.push(model);
    let source = config(settings).repository.sources.remove(0);
    let deadline = Instant::now() + Duration::from_secs(20);
    wait(place.server.engine.load_model(source, deadline))
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_read() {
    let models = ["a", "b"].map(|name| (format!("other/{name}/1"), Model::constant(1.0)));
    let models = models.each_ref().map(|(path, model)| (path.as_str(), model.clone()));
    let place = place(300, &models);
    add_weights(&place, "other/a/1", 200);
    add_weights(&place, "other/b/1", 200);
    load(&place, "a", "other/a").expect("model fits");
    let error = load(&place, "b", "other/b").expect_err("model does not fit");
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    for part in ["201 KiB", "300 KiB", "memory_limit", "model b version 1"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert_eq!(place.fake.loads(&place.path("other/b/1")), 0);
    assert_eq!((place.constant("a"), place.constant("b")), (Some(1.0), None));
    // The memory of an unloaded model is available at once.
    wait(place.server.engine.unload_model("a")).expect("unloaded");
    load(&place, "b", "other/b").expect("model fits");
    assert_eq!(place.constant("b"), Some(1.0));
}

#[test]
fn loads_under_way_count() {
    let slow = Model { loading: Loading::Gated, ..Model::constant(1.0) };
    let place = place(300, &[("other/a/1", slow), ("other/b/1", Model::constant(2.0))]);
    add_weights(&place, "other/a/1", 200);
    add_weights(&place, "other/b/1", 200);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| load(&place, "a", "other/a"));
        place.wait_for_load_at_gate();
        let error = load(&place, "b", "other/b").expect_err("model does not fit");
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        place.fake.loads_gate().open();
        first.join().expect("no panic").expect("model fits");
    });
}

#[test]
fn a_load_that_failed_takes_no_memory() {
    let broken = Model { loading: Loading::Fails, ..Model::default() };
    let place = place(300, &[("other/a/1", broken), ("other/b/1", Model::constant(2.0))]);
    add_weights(&place, "other/a/1", 200);
    add_weights(&place, "other/b/1", 200);
    assert_eq!(load(&place, "a", "other/a").as_ref().map_err(Error::code), Err(Code::DataLoss));
    load(&place, "b", "other/b").expect("model fits");
}

#[test]
fn a_version_of_a_source_that_does_not_fit_comes_when_there_is_room() {
    let place = place(300, &[("other/a/1", Model::constant(1.0))]);
    place.server.wait_until_started();
    add_weights(&place, "other/a/1", 200);
    load(&place, "a", "other/a").expect("model fits");
    let big = Model { files: vec!["weights".into()], ..Model::constant(5.0) };
    big.write_marker(&place.path("staged"));
    add_weights(&place, "staged", 200);
    fs::create_dir(place.path("models/s")).expect("directory");
    fs::rename(place.path("staged"), place.path("models/s/1")).expect("renamed");
    place.wait_for_state("s", 1, "END");
    let why = place.state("s", 1).expect("a known version").1;
    assert!(why.contains("201 KiB"), "{why}");
    wait(place.server.engine.unload_model("a")).expect("unloaded");
    place.server.wait_until("the model is loaded", |_| place.constant("s") == Some(5.0));
}

#[test]
fn to_save_memory_the_old_version_goes_before_the_new_one_comes() {
    let place = Place::of(&Model::constant(1.0), |settings| {
        settings.each.version_transition = Some("resource_preserving".into());
    });
    // The old version stays served while the new one is incomplete.
    let partial =
        Model { files: vec!["more".into()], loading: Loading::Gated, ..Model::constant(2.0) };
    partial.write_marker(&place.path("models/m/2"));
    place.server.wait_until("version 2 is found", |_| place.state("m", 2).is_some());
    place.wait_for_looks("models");
    assert_eq!(place.constant("m"), Some(1.0));
    fs::write(place.path("models/m/2/more"), "x").expect("written");
    place.wait_for_load_at_gate();
    assert_eq!(place.fake.alive(), 0, "the old version is still in memory");
    assert_eq!(place.constant("m"), None);
    place.fake.loads_gate().open();
    place.server.wait_until("version 2 serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn to_save_memory_what_came_from_another_folder_goes_first() {
    let slow = Model { loading: Loading::Gated, ..Model::constant(2.0) };
    let models = [("first/1", Model::constant(1.0)), ("second/1", slow)];
    let model = |path| {
        let (name, path) = (Some("m".to_owned()), Some(path));
        tensorserve::config::ModelSettings { name, path, ..Default::default() }
    };
    let place = Place::with(&models, |settings, root| {
        settings.each.version_transition = Some("resource_preserving".into());
        settings.models.push(model(root.join("first")));
    });
    place.server.wait_until_started();
    assert_eq!(place.constant("m"), Some(1.0));
    let mut settings = settings();
    settings.each.version_transition = Some("resource_preserving".into());
    settings.models.push(model(place.path("second")));
    let sources = config(settings).repository.sources;
    std::thread::scope(|scope| {
        let reload = scope.spawn(|| wait(place.server.engine.reload(sources)));
        place.wait_for_load_at_gate();
        assert_eq!(place.fake.alive(), 0, "the old version is still in memory");
        place.fake.loads_gate().open();
        reload.join().expect("no panic").expect("reload succeeds");
    });
    assert_eq!(place.constant("m"), Some(2.0));
}
