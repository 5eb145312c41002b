//! Files of a model's folder that are no files, are endless, or are links to files of others: such a model is
//! refused, soon, and the others are loaded.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::fake::{Loading, Model};
use crate::support::place::Place;

const LABELS: &str = r#"
[[postprocess]]
step = "top_k"
output = "y"
k = 1

[[postprocess]]
step = "labels"
output = "y_indices"
file = "labels.txt"
"#;

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

/// Why version 1 of the model `bad` failed to load, when it has.
fn refusal(place: &Place) -> String {
    let start = Instant::now();
    place.wait_for_state("bad", 1, "END");
    assert!(start.elapsed() < Duration::from_secs(100), "it took {:?}", start.elapsed());
    let (_, why) = place.state("bad", 1).expect("known");
    why
}

/// A server to which a model `bad`, whose folder `damage` changes, and then a good one were added.
fn with_bad_model(damage: impl FnOnce(&Path)) -> Place {
    let place = Place::empty(|settings, _| settings.server.load_threads = Some(1));
    let elsewhere = place.path("elsewhere");
    Model::default().write(&elsewhere);
    damage(&elsewhere);
    fs::create_dir(place.path("models/bad")).expect("a directory");
    fs::rename(&elsewhere, place.path("models/bad/1")).expect("renamed");
    let _ = refusal(&place);
    place.write("models/good", &Model::constant(2.0));
    place.server.wait_until("the good model serves", |_| place.constant("good") == Some(2.0));
    place
}

#[test]
fn labels_are_regular_files_of_the_models_folder() {
    let secret = tempfile::NamedTempFile::new().expect("a file");
    fs::write(secret.path(), "do not tell\n").expect("written");
    for (target, why) in [
        (secret.path(), "outside of the model's folder"),
        (Path::new("/dev/zero"), "a device"),
        (Path::new("/proc/self/environ"), "outside of the model's folder"),
        (Path::new("/etc/passwd"), "outside of the model's folder"),
        (Path::new("nothing"), "No such file"),
    ] {
        let place = with_bad_model(|folder| {
            fs::write(folder.join("tensorserve.toml"), LABELS).expect("written");
            symlink(target, folder.join("labels.txt")).expect("a link");
        });
        let message = refusal(&place);
        assert!(message.contains("labels.txt") && message.contains(why), "{target:?}: {message}");
        assert!(!message.contains("do not tell") && !message.contains("root:"), "{message}");
    }
}

#[test]
fn a_pipe_in_the_folder_keeps_no_model_waiting() {
    for name in
        ["labels.txt", "tensorserve.toml", "variables", "assets.extra/tf_serving_warmup_requests"]
    {
        let place = with_bad_model(|folder| {
            if name == "labels.txt" {
                fs::write(folder.join("tensorserve.toml"), LABELS).expect("written");
            }
            fs::create_dir_all(folder.join(name).parent().expect("a folder")).expect("directories");
            pipe(&folder.join(name));
        });
        let message = refusal(&place);
        assert!(message.contains(name) && message.contains("a named pipe"), "{name}: {message}");
    }
}

#[test]
fn the_file_of_steps_is_one_of_the_model() {
    let other = tempfile::NamedTempFile::new().expect("a file");
    fs::write(other.path(), "key = \"a secret that an error would quote\"\n").expect("written");
    for (target, why) in
        [(other.path(), "outside of the model's folder"), (Path::new("nothing"), "No such file")]
    {
        let place = with_bad_model(|folder| {
            symlink(target, folder.join("tensorserve.toml")).expect("a link");
        });
        let message = refusal(&place);
        assert!(message.contains("tensorserve.toml") && message.contains(why), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn links_within_the_models_folder_are_followed() {
    let place = Place::empty(|_, _| ());
    // As Kubernetes mounts a ConfigMap, beside versions that are links.
    let model = place.path("stored");
    fs::create_dir_all(model.join("..2026_01_01")).expect("directories");
    fs::write(model.join("..2026_01_01/labels.txt"), "no\nyes\n").expect("written");
    fs::write(model.join("..2026_01_01/tensorserve.toml"), LABELS).expect("written");
    symlink("..2026_01_01", model.join("..data")).expect("a link");
    for file in ["labels.txt", "tensorserve.toml"] {
        symlink(Path::new("..data").join(file), model.join(file)).expect("a link");
    }
    Model::default().write(&model.join("v1"));
    symlink("v1", model.join("1")).expect("a link");
    symlink(&model, place.path("models/m")).expect("a link");
    place.server.wait_until("the model serves", |_| place.predict("m", "[[0, 1]]").status == 200);
    let predicted = json!({"predictions": [{"y": [1.0], "y_indices": ["yes"]}]});
    assert_eq!(place.predict("m", "[[0, 1]]").json(), predicted);
}

#[test]
fn loads_that_hang_keep_no_other_waiting() {
    let gated = Model { loading: Loading::Gated, ..Model::default() };
    let models = [("models/a/1", gated.clone()), ("models/b/1", gated)];
    let place = Place::adjusted_with(
        &models,
        |settings, _| settings.server.load_threads = Some(2),
        |config| config.repository.longest_turn = Duration::from_millis(300),
    );
    place.server.wait_until("two loads hang", |_| place.fake.loads_gate().waiting() == 2);
    place.write("models/good", &Model::constant(2.0));
    place.server.wait_until("the good model serves", |_| place.constant("good") == Some(2.0));
    assert_eq!(place.fake.loads_gate().waiting(), 2);
    place.fake.loads_gate().open();
    place.server.wait_until("all are ready", |server| server.get("/readyz").status == 200);
}
