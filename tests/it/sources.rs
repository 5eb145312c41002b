//! Directories that change while the server runs: copies in progress, and models, versions and
//! whole sources that disappear.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tensorserve::config::{ModelSettings, Settings};

use crate::support::fake::Model;
use crate::support::place::Place;

fn in_parts() -> Model {
    Model { files: vec!["weights".to_owned(), "vocabulary".to_owned()], ..Model::constant(2.0) }
}

#[test]
fn a_half_copied_version_is_never_loaded() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let folder = place.path("models/m/2");
    // The worst order: the main file of the model first.
    in_parts().write_marker(&folder);
    for file in ["weights", "vocabulary"] {
        place.wait_for_looks("models");
        assert_eq!(place.state("m", 2).expect("a discovered version").0, "START");
        assert_eq!(place.fake.loads(&folder), 0, "{file} is missing");
        assert_eq!(place.constant("m"), Some(1.0));
        fs::write(folder.join(file), "x").expect("file");
    }
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_version_without_its_main_file_is_waited_for() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let folder = place.path("models/m/2");
    fs::create_dir(&folder).expect("directory");
    fs::write(folder.join("weights"), "x").expect("file");
    place.wait_for_looks("models");
    assert_eq!(place.state("m", 2).expect("a discovered version").0, "START");
    assert_eq!(place.constant("m"), Some(1.0));
    // The main file itself is incomplete.
    fs::write(folder.join("fake.json"), "{").expect("file");
    place.wait_for_state("m", 2, "END");
    assert_eq!(place.state("m", 2).expect("a discovered version").1, "a damaged marker");
    fs::write(folder.join("vocabulary"), "x").expect("file");
    in_parts().write_marker(&folder);
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn an_incomplete_model_is_not_ready_and_says_what_is_missing() {
    let place = Place::empty(|_, _| ());
    in_parts().write_marker(&place.path("models/m/1"));
    place.server.wait_until("the missing file is reported", |s| {
        s.get("/readyz").text().contains("model m: version 1: waiting (weights is missing)")
    });
    assert_eq!(place.server.get("/readyz").status, 503);
    assert_eq!(place.constant("m"), None);
}

#[test]
fn without_its_latest_version_the_one_before_serves_again() {
    let models = [("models/m/1", Model::constant(1.0)), ("models/m/2", Model::constant(2.0))];
    let place = Place::with(&models, |_, _| ());
    place.server.wait_until_started();
    assert_eq!(place.constant("m"), Some(2.0));
    fs::remove_dir_all(place.path("models/m/2")).expect("removed");
    place.server.wait_until("version 1 serves again", |_| place.constant("m") == Some(1.0));
    place.wait_for_state("m", 2, "END");
}

/// A source that is one model, with a name.
fn named(settings: &mut Settings, root: &Path) {
    settings.models.push(ModelSettings {
        name: Some("m".to_owned()),
        path: Some(root.join("m")),
        ..ModelSettings::default()
    });
}

#[test]
fn an_emptied_model_folder_looks_like_a_mistake_and_the_loaded_version_stays() {
    let place = Place::with(&[("m/1", Model::constant(1.0))], named);
    place.server.wait_until_started();
    fs::remove_dir_all(place.path("m/1")).expect("removed");
    place.wait_for_looks("m");
    assert_eq!(place.constant("m"), Some(1.0));
    assert_eq!(place.server.get("/readyz").status, 200);
    place.write("m/2", &Model::constant(2.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_source_that_goes_away_leaves_its_models_loaded() {
    let place = Place::with(&[("m/1", Model::constant(1.0))], named);
    place.server.wait_until_started();
    fs::rename(place.path("m"), place.path("away")).expect("renamed");
    place.wait_for_looks("m");
    assert_eq!(place.constant("m"), Some(1.0));
    assert_eq!(place.server.get("/readyz").status, 200);
    fs::rename(place.path("away"), place.path("m")).expect("renamed");
    place.write("m/2", &Model::constant(2.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_model_that_is_deleted_from_a_folder_of_models_is_unloaded() {
    let models = [("models/m/1", Model::constant(1.0)), ("models/other/1", Model::constant(5.0))];
    let place = Place::with(&models, |_, _| ());
    place.server.wait_until_started();
    fs::remove_dir_all(place.path("models/m")).expect("removed");
    place.server.wait_until("the model is unloaded", |s| s.get("/v1/models/m").status == 404);
    assert_eq!(place.constant("m"), None);
    assert_eq!(place.constant("other"), Some(5.0));
    assert_eq!(place.server.get("/readyz").status, 200);
    // The model may come back.
    fs::create_dir(place.path("models/m")).expect("directory");
    place.write("models/m/1", &Model::constant(2.0));
    place.server.wait_until("the model serves again", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_model_that_is_added_to_a_folder_of_models_is_loaded() {
    let place = Place::empty(|_, _| ());
    place.server.wait_until_started();
    assert!(place.server.get("/readyz").text().contains("no model found"));
    // A model without version directories, and a model with one.
    place.write("models/plain", &Model::constant(1.0));
    fs::create_dir(place.path("models/m")).expect("directory");
    place.write("models/m/7", &Model::constant(7.0));
    place.server.wait_until("both models are ready", |s| s.get("/readyz").status == 200);
    place.server.wait_until("both serve", |_| {
        place.constant("plain") == Some(1.0) && place.constant("m") == Some(7.0)
    });
}

#[test]
fn a_source_that_is_not_there_is_a_reason_not_to_be_ready() {
    // The name of the missing source is a prefix of its neighbour's name.
    let place = Place::with(&[("models-2/1", Model::constant(1.0))], |settings, root| {
        settings.paths = vec![root.join("models"), root.join("models-2")];
    });
    place.server.wait_until_started();
    place.wait_for_looks("models-2");
    assert_eq!(place.constant("models-2"), Some(1.0));
    let answer = place.server.get("/readyz");
    assert_eq!(answer.status, 503);
    let want = format!("{} cannot be read", place.path("models").display());
    assert!(answer.error().contains(&want), "{}", answer.error());
    fs::create_dir(place.path("models")).expect("directory");
    place.write("models/m", &Model::default());
    place.server.wait_until("the server is ready", |s| s.get("/readyz").status == 200);
}

/// Removes all permissions of `folder`; false if this process can still read it.
fn lock_up(folder: &Path) -> bool {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o000)).expect("permissions changed");
    if fs::read_dir(folder).is_ok() {
        println!("skipped: this user can read everything");
        return false;
    }
    true
}

fn unlock(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("permissions changed");
}

#[test]
fn an_unreadable_source_leaves_its_models_loaded() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let folder = place.path("models");
    if !lock_up(&folder) {
        return;
    }
    place.wait_for_looks("models");
    assert_eq!(place.constant("m"), Some(1.0));
    unlock(&folder);
    place.write("models/m/2", &Model::constant(2.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn an_unreadable_model_among_others_stays_loaded() {
    let models = [("models/m/1", Model::constant(1.0)), ("models/other/1", Model::constant(5.0))];
    let place = Place::with(&models, |_, _| ());
    place.server.wait_until_started();
    let folder = place.path("models/m");
    if !lock_up(&folder) {
        return;
    }
    place.write("models/other/2", &Model::constant(6.0));
    place.server.wait_until("the new version serves", |_| place.constant("other") == Some(6.0));
    place.wait_for_looks("models");
    assert_eq!(place.constant("m"), Some(1.0));
    unlock(&folder);
    place.write("models/m/2", &Model::constant(2.0));
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn an_unreadable_version_leaves_the_old_one_alone() {
    let place = Place::of(&Model::constant(1.0), |_| ());
    let folder = place.path("models/m/2");
    fs::create_dir(&folder).expect("directory");
    if !lock_up(&folder) {
        return;
    }
    place.wait_for_looks("models");
    assert_eq!(place.state("m", 2).expect("a discovered version").0, "START");
    assert_eq!(place.constant("m"), Some(1.0));
    unlock(&folder);
    Model::constant(2.0).write_marker(&folder);
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
}

#[test]
fn a_model_that_was_just_copied_does_not_wait_for_the_next_scan() {
    let place = Place::empty(|settings, folder| {
        settings.server.poll_interval = Some("1h".parse().expect("a duration"));
        Model::constant(3.0).write(&folder.join("models/m/1"));
    });
    place.server.wait_until("the model serves", |_| place.constant("m") == Some(3.0));
}
