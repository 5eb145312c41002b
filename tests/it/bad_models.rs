//! Model directories that are empty, half copied, unreadable, damaged or deleted: `/readyz` reports
//! the reason, all other models stay served, and the process survives.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tensorserve::config::ModelSettings;

use crate::support::project;
use crate::support::server::{TestServer, settings};

const HALF: &str = "models/half_plus_two/1";
const INDEX: &str = "variables/variables.index";
const DATA: &str = "variables/variables.data-00000-of-00001";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// A directory with one valid model, `half_plus_two`.
fn place() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("temporary directory");
    copy(&project(HALF), &root.path().join("half_plus_two/1"));
    root
}

/// Serves the models `names` in `root` as separate sources, so that `/readyz` reports each one
/// without a version.
fn serve(root: &Path, names: &[&str]) -> TestServer {
    let mut settings = settings();
    for name in names {
        settings.models.push(ModelSettings {
            name: Some((*name).to_owned()),
            path: Some(root.join(name)),
            ..ModelSettings::default()
        });
    }
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

/// The reason that `/readyz` reports.
fn obstacle(server: &TestServer) -> String {
    let answer = server.get("/readyz");
    assert_eq!(answer.status, 503, "{}", answer.text());
    answer.error()
}

#[test]
fn folders_without_a_good_model() {
    let root = place();
    let at = |path: &str| root.path().join(path);
    let half = project(HALF);
    fs::create_dir(at("empty")).expect("a directory");
    fs::create_dir_all(at("no_files/1")).expect("a directory");
    fs::create_dir_all(at("no_numbers/latest")).expect("a directory");
    copy(&half, &at("no_numbers/latest"));
    copy(&half, &at("no_variables/1"));
    fs::remove_dir_all(at("no_variables/1/variables")).expect("removed");
    copy(&half, &at("no_index/1"));
    fs::remove_file(at("no_index/1").join(INDEX)).expect("removed");
    copy(&half, &at("no_data/1"));
    fs::remove_file(at("no_data/1").join(DATA)).expect("removed");
    copy(&half, &at("short_data/1"));
    fs::write(at("short_data/1").join(DATA), "x").expect("written");
    copy(&half, &at("short_index/1"));
    let index = fs::read(at("short_index/1").join(INDEX)).expect("read");
    fs::write(at("short_index/1").join(INDEX), &index[..index.len() / 2]).expect("written");
    for (name, content) in
        [("no_model", &b"PK\x03\x04 this is no SavedModel"[..]), ("empty_file", b"")]
    {
        fs::create_dir_all(at(name).join("1")).expect("a directory");
        fs::write(at(name).join("1/saved_model.pb"), content).expect("written");
    }
    copy(&half, &at("cut/1"));
    let whole = fs::read(at("cut/1/saved_model.pb")).expect("read");
    fs::write(at("cut/1/saved_model.pb"), &whole[..whole.len() / 2]).expect("written");
    fs::write(at("a_file"), "x").expect("written");

    // The model's name and a part of the expected reason.
    let cases = [
        ("empty", "no model found"),
        ("no_files", "a model file of a supported platform (such as saved_model.pb) is missing"),
        ("no_numbers", "no model found"),
        ("no_variables", &format!("{INDEX} is missing")),
        ("no_index", &format!("{INDEX} is missing")),
        ("no_data", &format!("{DATA} is missing")),
        ("short_data", &format!("{DATA} (1 of")),
        ("short_index", &format!("{INDEX} (the existing file is truncated or damaged) is missing")),
        ("no_model", "saved_model.pb is not a SavedModel"),
        ("empty_file", "saved_model.pb has no graph"),
        ("cut", "saved_model.pb is not a SavedModel"),
        ("a_file", "cannot be read"),
        ("nowhere", "cannot be read"),
    ];
    for (name, why) in cases {
        let server = serve(root.path(), &[name, "half_plus_two"]);
        let obstacle = obstacle(&server);
        assert!(obstacle.contains(why), "{name}: {why:?} is not in {obstacle:?}");
        assert!(obstacle.contains(name), "{name} is not in {obstacle:?}");
        let path = format!("/v1/models/{name}:predict");
        server.post(&path, r#"{"inputs": [1]}"#).assert_refused(name, 404, "not found");
        server.assert_serves(name);
    }
}

#[test]
fn an_unreadable_folder() {
    let root = place();
    let folder = root.path().join("locked");
    copy(&project(HALF), &folder.join("1"));
    for locked in [folder.join("1/saved_model.pb"), folder.join("1"), folder] {
        let original = fs::metadata(&locked).expect("metadata").permissions();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).expect("permissions set");
        let readable = fs::read_dir(&locked).is_ok() || fs::read(&locked).is_ok();
        if readable {
            println!("skipped: the user of the tests can read files without permission (root?)");
        } else {
            let server = serve(root.path(), &["locked", "half_plus_two"]);
            let obstacle = obstacle(&server);
            assert!(obstacle.contains("locked"), "{obstacle}");
            server.assert_serves("an unreadable directory");
        }
        fs::set_permissions(&locked, original).expect("permissions restored");
    }
}

#[test]
fn a_model_that_is_mended_is_loaded() {
    let root = place();
    let folder = root.path().join("mended/1");
    copy(&project(HALF), &folder);
    let data = folder.join(DATA);
    let whole = fs::read(&data).expect("read");
    fs::remove_file(&data).expect("removed");
    let server = serve(root.path(), &["mended", "half_plus_two"]);
    assert!(obstacle(&server).contains("is missing"), "{}", obstacle(&server));
    fs::write(&data, whole).expect("written");
    server.wait_until("the model is loaded", |server| server.get("/readyz").status == 200);
    let answer = server.post("/v1/models/mended:predict", r#"{"inputs": [2]}"#);
    assert_eq!(answer.json(), serde_json::json!({"outputs": [3.0]}));
    server.stop();
}

#[test]
fn a_version_that_is_deleted_or_overwritten_serves_on() {
    // Configured by name, and discovered in a directory of models.
    for by_name in [true, false] {
        let root = place();
        let folder = root.path().join("doomed");
        copy(&project(HALF), &folder.join("1"));
        let server = match by_name {
            true => serve(root.path(), &["doomed", "half_plus_two"]),
            false => TestServer::of(root.path()),
        };
        // Truncation would crash a process that had mapped the files.
        for file in ["saved_model.pb", DATA, INDEX] {
            let file = fs::File::options().write(true).open(folder.join("1").join(file));
            file.and_then(|file| file.set_len(0)).expect("truncated");
            assert_eq!(doomed(&server), 200);
        }
        fs::remove_dir_all(folder.join("1")).expect("removed");
        // The version stays served over several polls of the directory.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            assert_eq!(doomed(&server), 200);
        }
        assert_eq!(server.get("/readyz").text(), "ok\n");
        server.assert_serves("a deleted version");
        // The next version replaces it without a gap.
        copy(&project(HALF), &folder.join("2"));
        server.wait_until("version 2 is served", |server| {
            assert_eq!(doomed(server), 200);
            server.get("/v1/models/doomed/versions/2").text().contains("AVAILABLE")
        });
        // A discovered model is unloaded when its directory is deleted.
        fs::remove_dir_all(&folder).expect("removed");
        if by_name {
            assert_eq!(doomed(&server), 200);
        } else {
            server.wait_until("the model is unloaded", |server| doomed(server) == 404);
            server.wait_until("the server is ready", |server| server.get("/readyz").status == 200);
        }
        server.assert_serves("a deleted model");
    }
}

fn doomed(server: &TestServer) -> u16 {
    let answer = server.post("/v1/models/doomed:predict", r#"{"inputs": [2]}"#);
    if answer.status == 200 {
        assert_eq!(answer.json(), serde_json::json!({"outputs": [3.0]}));
    }
    answer.status
}

/// A pseudo-random number; the sequence is the same in every run.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).expect("in range")
}

/// A model with a changed byte either loads or fails with a message, and the process survives its
/// runs.
#[test]
fn flipped_bytes_end_in_an_error_or_a_model() {
    const FLIPS: usize = 50;
    let root = place();
    let files =
        ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"];
    let mut state = 0x2545_f491_4f6c_dd1d;
    let mut names = Vec::new();
    for flip in 0..FLIPS {
        // Most faults are possible in the graph.
        let file = files[if flip % 5 < 3 { 0 } else { flip % 5 - 2 }];
        let name = format!("flipped_{flip:02}");
        let folder = root.path().join(&name).join("1");
        copy(&project(HALF), &folder);
        let mut bytes = fs::read(folder.join(file)).expect("read");
        let at = random(&mut state) % bytes.len();
        bytes[at] ^= u8::try_from(1 + random(&mut state) % 255).expect("a byte");
        fs::write(folder.join(file), bytes).expect("written");
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let server = serve(root.path(), &[&names[..], &["half_plus_two"]].concat());
    let (mut answered, mut refused, mut failed) = (0, 0, 0);
    for name in &names {
        let status = server.engine.repository().status(name);
        let state = status.first().map(|status| status.state.to_string()).unwrap_or_default();
        let path = format!("/v1/models/{name}:predict");
        let answer = server.post(&path, r#"{"inputs": [1]}"#);
        match (state.as_str(), answer.status) {
            ("ready", 200) => answered += 1,
            ("ready", _) => {
                assert!(!answer.error().is_empty(), "{name}");
                refused += 1;
            }
            (why, status) => {
                assert_eq!(status, 404, "{name}: {}", answer.text());
                let is_reason = why.starts_with("failed: ") || why.contains("is missing");
                assert!(is_reason && why.len() > 20, "{name}: {why:?}");
                failed += 1;
            }
        }
    }
    println!("{answered} predicted, {refused} returned an error, {failed} did not load");
    assert_eq!(answered + refused + failed, FLIPS);
    assert!(failed > 5 && answered > 5, "{answered} predicted, {failed} did not load");
    let text = server.get("/metrics").text();
    assert!(text.contains("tensorserve_panics_total 0"), "a panic was caught");
    server.assert_serves("flipped bytes");
}
