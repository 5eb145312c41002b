//! `tensorserve transform`: records of all formats, bad records, resuming after kills, shards.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::process::tensorserve;
use crate::support::project;
use crate::support::server::TestServer;

/// Runs `transform` with a sample model.
fn transform(model: &str, input: &Path, output: &Path, more: &[&str]) -> Output {
    let model = project("models").join(model);
    let mut command = tensorserve(&["transform"]);
    command.arg(model).arg("--input").arg(input).arg("--output").arg(output).args(more);
    command.output().expect("the program runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_done(output: &Output) {
    let said = stderr(output);
    assert_eq!(code(output), 0, "{said}");
    // libtensorflow says so whenever it is opened.
    assert!(!said.contains("oneDNN") && !said.contains("absl::"), "{said}");
}

/// All files below a directory, but for the state, with their content.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.ends_with("_transform") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).expect("below").to_owned();
            found.insert(name, fs::read(&path).expect("a file"));
        }
    }
    found
}

/// A directory `in` with this file.
fn with_file(name: &str, content: &[u8]) -> (TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().expect("a directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("a directory");
    fs::write(input.join(name), content).expect("written");
    (root, input, output)
}

fn numbers(count: usize) -> String {
    (0..count).map(|n| format!("{}\n", n as f64 / 4.0)).collect()
}

#[test]
fn each_record_has_an_output_in_its_place() {
    let (_root, input, output) = with_file("a.csv", numbers(5000).as_bytes());
    fs::create_dir(input.join("sub")).expect("a directory");
    fs::write(input.join("sub/b.jsonl"), "1\n\n2.0\r\n{\"x\": 6}").expect("written");
    assert_done(&transform("half_plus_two", &input.join("a.csv"), &output, &[]));
    assert_done(&transform("half_plus_two", &input.join("sub"), &output.join("lines"), &[]));
    let found = files(&output);
    let expected: String = (0..5000).map(|n| format!("{:?}\n", n as f64 / 8.0 + 2.0)).collect();
    assert_eq!(String::from_utf8_lossy(&found[Path::new("a.csv.out")]), expected);
    assert_eq!(String::from_utf8_lossy(&found[Path::new("lines/b.jsonl.out")]), "2.5\n3.0\n5.0\n");
    let report = fs::read_to_string(output.join("_transform/report.html")).expect("a report");
    assert!(report.contains("5000") && !report.contains("http"), "{report}");
}

/// Checks that the server and `transform` give the same bits for these lines, in batches of `rows`.
fn assert_same_bits(model: &str, text: &str, rows: usize) {
    let (_root, input, output) = with_file("rows.csv", text.as_bytes());
    assert_done(&transform(model, &input, &output, &["--batch-rows", &rows.to_string()]));
    let transformed = fs::read(output.join("rows.csv.out")).expect("an output");
    let server = TestServer::with(&project("models").join(model), |settings| {
        settings.server.sagemaker_compatibility = Some("extended".to_owned());
        settings.batching.batching = Some("off".to_owned());
    });
    let mut client = Client::connect(server.address).expect("connects");
    let headers = [("Content-Type", "text/csv"), ("Accept", "application/jsonlines")];
    let (mut served, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest.match_indices('\n').nth(rows - 1).map_or(rest.len(), |(at, _)| at + 1);
        let (batch, after) = rest.split_at(end);
        let answer = client.request("POST", "/invocations", &headers, batch.as_bytes());
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        served.extend_from_slice(&answer.body);
        rest = after;
    }
    assert!(transformed == served, "{model}: the outputs differ");
}

#[test]
fn outputs_are_those_of_the_server() {
    assert_same_bits("half_plus_two", &numbers(1_000_000), 1024);
    let line = |row: usize| {
        let row: Vec<String> =
            (0..784).map(|n| format!("{:.4}", ((row * 31 + n) % 97) as f64 / 97.0)).collect();
        row.join(",") + "\n"
    };
    assert_same_bits("wide_mlp", &(0..500).map(line).collect::<String>(), 64);
}

#[test]
fn images_are_batched_over_files_and_a_bad_one_fails_alone() {
    let root = tempfile::tempdir().expect("a directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("a directory");
    let samples = project("examples/images/digits");
    for entry in fs::read_dir(samples).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|kind| kind != "json") {
            fs::copy(&path, input.join(path.file_name().expect("a name"))).expect("copied");
        }
    }
    fs::write(input.join("3_bad.png"), b"no image").expect("written");
    let outcome = transform("digits", &input, &output, &[]);
    assert_eq!(code(&outcome), 1, "{}", stderr(&outcome));
    assert!(stderr(&outcome).contains("3_bad.png"), "{}", stderr(&outcome));
    let found = files(&output);
    assert_eq!(found.len(), 14, "{:?}", found.keys());
    for (name, text) in &found {
        let value: Value = serde_json::from_slice(text).expect("JSON");
        let digit = name.to_string_lossy().chars().next().and_then(|digit| digit.to_digit(10));
        assert_eq!(value["classes"].as_u64(), digit.map(u64::from), "{name:?}");
    }
    // All in one file, which is the same whatever was done before.
    let combined = root.path().join("combined");
    let more = ["--combine-outputs", "--on-bad-record", "null"];
    assert_done(&transform("digits", &input, &combined, &more));
    let text = fs::read_to_string(combined.join("part-000000000.jsonl")).expect("an output");
    assert_eq!((files(&combined).len(), text.lines().count()), (1, 15));
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let object = line["object"].as_str().expect("a name");
        match found.get(Path::new(&format!("{object}.out"))) {
            Some(own) => {
                assert_eq!(line["output"], serde_json::from_slice::<Value>(own).expect("JSON"))
            }
            None => assert!(object == "3_bad.png" && line["output"].is_null(), "{line}"),
        }
    }
    // The bad one is mended: only what is missing is published.
    let before = modified(&output);
    fs::copy(input.join("2_51.png"), input.join("3_bad.png")).expect("copied");
    let outcome = transform("digits", &input, &output, &[]);
    assert_eq!(code(&outcome), 3, "{}", stderr(&outcome));
    assert!(stderr(&outcome).contains("3_bad.png: has changed"), "{}", stderr(&outcome));
    assert_eq!(modified(&output), before);
    assert_done(&transform("digits", &input, &output, &["--overwrite"]));
    assert_eq!(files(&output).len(), 15);
}

fn modified(root: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let time = |path: &PathBuf| fs::metadata(root.join(path)).and_then(|meta| meta.modified());
    files(root).keys().map(|path| (path.clone(), time(path).expect("a time"))).collect()
}

#[test]
fn bad_records_are_named_and_treated_as_the_policy_says() {
    let (_root, input, output) = with_file("a.jsonl", b"1\n2\n\"three\"\n4\n");
    let run = |name: &str, more: &[&str]| {
        let place = output.join(name);
        let outcome = transform("half_plus_two", &input, &place, more);
        (code(&outcome), stderr(&outcome), place)
    };
    let read = |place: &Path| fs::read_to_string(place.join("a.jsonl.out")).ok();
    let (status, text, place) = run("fail", &[]);
    assert_eq!((status, read(&place)), (1, None), "{text}");
    assert!(text.contains("a.jsonl: line 3, byte 4: ") && text.contains("three"), "{text}");
    let (status, text, place) = run("null", &["--on-bad-record", "null"]);
    assert_eq!((status, read(&place).as_deref()), (0, Some("2.5\n3.0\nnull\n4.0\n")), "{text}");
    let (status, text, place) = run("skip", &["--on-bad-record", "skip"]);
    assert_eq!((status, read(&place).as_deref()), (0, Some("2.5\n3.0\n4.0\n")), "{text}");
    let (status, text, place) = run("dead", &["--on-bad-record", "dead-letter"]);
    assert_eq!((status, read(&place).as_deref()), (0, Some("2.5\n3.0\n4.0\n")), "{text}");
    let letters = fs::read_to_string(place.join("_transform/dead/000000000.jsonl"));
    let letter: Value = serde_json::from_str(&letters.expect("dead letters")).expect("JSON");
    assert_eq!(
        (&letter["object"], &letter["line"], &letter["byte"], &letter["record"]),
        (&json!("a.jsonl"), &json!(3), &json!(4), &json!("\"three\""))
    );
    let (status, text, _) = run("few", &["--on-bad-record", "skip", "--max-bad-records", "0"]);
    assert_eq!(status, 3, "{text}");
}

#[test]
fn records_are_filtered_joined_and_written_in_other_formats() {
    let (_root, input, output) = with_file("a.csv", b"id1,1\nid2,2\n");
    let join = ["--accept", "text/csv", "--input-filter", "$[1:]", "--join", "input"];
    assert_done(&transform("half_plus_two", &input, &output.join("csv"), &join));
    let text = fs::read_to_string(output.join("csv/a.csv.out")).expect("an output");
    assert_eq!(text, "id1,1,2.5\nid2,2,3.0\n");
    fs::write(input.join("a.csv"), numbers(10)).expect("written");
    for (format, magic) in [("npy", &b"\x93NUMPY"[..]), ("parquet", b"PAR1"), ("tfrecord", b"\x03")]
    {
        let place = output.join(format);
        assert_done(&transform("half_plus_two", &input, &place, &["--output-format", format]));
        let file = fs::read(place.join("a.csv.out")).expect("an output");
        assert!(file.starts_with(magic), "{format}: {file:?}");
    }
    // An array is an input again.
    let npy = output.join("npy/a.csv.out");
    let more = ["--content-type", "application/x-npy"];
    assert_done(&transform("half_plus_two", &npy, &output.join("again"), &more));
    let again = fs::read_to_string(output.join("again/a.csv.out.out")).expect("an output");
    assert_eq!(again.lines().nth(4), Some("3.25"));
    let table = output.join("parquet/a.csv.out");
    let more = ["--content-type", "application/jsonlines", "--split", "parquet"];
    let outcome = transform("half_plus_two", &table, &output.join("rows"), &more);
    assert_eq!(code(&outcome), 1, "a column that is no input: {}", stderr(&outcome));
}

#[test]
fn killed_runs_resume_to_the_same_bytes() {
    let root = tempfile::tempdir().expect("a directory");
    let (input, whole) = (root.path().join("in"), root.path().join("whole"));
    fs::create_dir(&input).expect("a directory");
    for index in 0..6 {
        let lines = if index == 0 { 400_000 } else { 20_000 };
        fs::write(input.join(format!("{index}.csv")), numbers(lines)).expect("written");
    }
    let more = ["--batch-rows", "512", "--range-mb", "1", "--progress", "none"];
    assert_done(&transform("half_plus_two", &input, &whole, &more));
    let expected = files(&whole);
    assert_eq!(expected.len(), 6);
    // TEST_KILLS=200 takes a bit more than a minute.
    let kills = std::env::var("TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let output = root.path().join("out");
    let mut published = BTreeMap::new();
    let mut seed = 7_u64;
    for _ in 0..kills {
        let model = project("models/half_plus_two");
        let mut command = tensorserve(&["transform"]);
        command.arg(model).arg("--input").arg(&input).arg("--output").arg(&output).args(more);
        let mut child = command.stderr(Stdio::null()).spawn().expect("the program runs");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(80 + (seed >> 33) % 500));
        let _ = child.kill();
        let _ = child.wait();
        if !output.exists() {
            continue;
        }
        for (name, time) in modified(&output) {
            let first = *published.entry(name.clone()).or_insert(time);
            assert_eq!(first, time, "{name:?} was published twice");
        }
        for (name, text) in files(&output) {
            assert!(expected[&name] == text, "{name:?} is not whole");
        }
        if published.len() == expected.len() {
            published.clear();
            fs::remove_dir_all(&output).expect("removed");
        }
    }
    assert_done(&transform("half_plus_two", &input, &output, &more));
    assert!(files(&output) == expected);
    let left = fs::read_dir(output.join("_transform/parts")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "parts are left");
}

#[test]
fn shards_share_the_work() {
    let root = tempfile::tempdir().expect("a directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("a directory");
    for index in 0..5 {
        fs::write(input.join(format!("{index}.csv")), numbers(200_000)).expect("written");
    }
    let more = ["--batch-rows", "512"];
    assert_done(&transform(
        "half_plus_two",
        &input,
        &output,
        &[&more[..], &["--shard", "0/3"]].concat(),
    ));
    let first = files(&output).len();
    assert!((1..5).contains(&first), "{first}");
    for shard in ["1/3", "2/3"] {
        assert_done(&transform(
            "half_plus_two",
            &input,
            &output,
            &[&more[..], &["--shard", shard]].concat(),
        ));
    }
    assert_eq!(files(&output).len(), 5);
}

#[test]
fn an_output_below_the_input_resumes() {
    let (_root, input, _) = with_file("a.csv", b"2\n4\n");
    let output = input.join("out");
    assert_done(&transform("half_plus_two", &input, &output, &[]));
    let again = transform("half_plus_two", &input, &output, &[]);
    assert_done(&again);
    assert!(stderr(&again).contains("nothing to do, "), "{}", stderr(&again));
    // Outputs of another job are inputs, but not its state.
    fs::remove_file(output.join("a.csv.out")).expect("removed");
    assert_done(&transform("half_plus_two", &input, &input.join("other"), &[]));
    assert_eq!(files(&input.join("other")).len(), 1);
    let inside = transform("half_plus_two", &input, &input.join("out"), &["--overwrite"]);
    assert_eq!(code(&inside), 0, "{}", stderr(&inside));
}

#[test]
fn wrong_options_and_other_jobs_are_refused() {
    let (_root, input, output) = with_file("a.csv", b"1\n");
    let refused = |output: &Path, more: &[&str], status, part: &str| {
        let outcome = transform("half_plus_two", &input, output, more);
        let text = stderr(&outcome);
        assert_eq!(code(&outcome), status, "{more:?}: {text}");
        assert!(text.contains(part), "{more:?}: {text}");
    };
    refused(&output, &["--split", "words"], 2, "--split words");
    refused(&output, &["--on-bad-record", "ignore"], 2, "--on-bad-record ignore");
    refused(&output, &["--input-filter", "$["], 2, "--input-filter");
    refused(&output, &["--batch-rows", "0"], 2, "--batch-rows 0");
    refused(&output, &["--shard", "3/3"], 2, "--shard 3/3");
    refused(&output, &["--join", "input"], 2, "--output-format csv");
    refused(&output, &["--combine-outputs"], 2, "--split none");
    assert!(!output.join("a.csv.out").exists());
    assert_done(&transform("half_plus_two", &input, &output, &[]));
    refused(&output, &["--output-format", "npy"], 3, "output format: was");
    let outcome = transform("wide_mlp", &input, &output, &[]);
    assert_eq!(code(&outcome), 3, "{}", stderr(&outcome));
    assert!(stderr(&outcome).contains("model: was"), "{}", stderr(&outcome));
    let outcome = transform("none", &input, &output, &[]);
    assert_eq!(code(&outcome), 2, "{}", stderr(&outcome));
    let outcome = transform("half_plus_two", Path::new("/none"), &output, &[]);
    assert_eq!(code(&outcome), 2, "{}", stderr(&outcome));
}

#[test]
fn models_of_one_file_signatures_and_variables_are_those_of_the_server() {
    let (_root, input, output) = with_file("a.csv", b"5.1,3.5,1.4,0.2\n6.7,3.0,5.2,2.3\n");
    for model in
        ["xgboost/iris_softprob.json", "onnx/iris_logreg.onnx", "sklearn/iris_logreg_pipeline.pkl"]
    {
        let path = project("tests/data/platforms").join(model);
        let place = output.join(model);
        assert_done(&transform(path.to_str().expect("text"), &input, &place, &[]));
        let text = fs::read_to_string(place.join("a.csv.out")).expect("an output");
        assert_eq!(text.lines().count(), 2, "{model}: {text}");
    }

    let (_root, input, output) = with_file("a.csv", b"2\n4\n");
    let model = "tests/data/tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu";
    let model = project(model);
    let model = model.to_str().expect("text");
    let more = ["--signature", "regress_x2_to_y3"];
    assert_done(&transform(model, &input, &output, &more));
    let text = fs::read_to_string(output.join("a.csv.out")).expect("an output");
    assert_eq!(text, "4.0\n5.0\n");
    let other = transform(model, &input, &output, &[]);
    assert!(code(&other) == 3 && stderr(&other).contains("signature: was"), "{}", stderr(&other));
    let more = ["--signature", "none"];
    let unknown = transform(model, &input, &output.join("none"), &more);
    assert!(code(&unknown) == 1 && stderr(&unknown).contains("\"none\""), "{}", stderr(&unknown));
}

/// A copy of a sample model in `root`, with this script as its `inference.py`.
fn with_handlers(root: &TempDir, script: &str) -> PathBuf {
    let model = root.path().join("model");
    fs::create_dir_all(model.join("code")).expect("a directory");
    fs::write(model.join("code/inference.py"), script).expect("written");
    let from = project("models/half_plus_two/1");
    let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(model.join("1")).status();
    assert!(copied.expect("cp").success());
    model
}

#[test]
fn quoted_line_breaks_change_nothing_for_other_records() {
    let (root, input, output) = with_file("a.csv", b"1\n\"2\n\"\n\n\"\r\n4\"\r\n6");
    for rows in ["1", "2", "3", "auto"] {
        let (place, more) = (output.join(rows), ["--split", "csv", "--batch-rows", rows]);
        assert_done(&transform("half_plus_two", &input, &place, &more));
        let text = fs::read_to_string(place.join("a.csv.out")).expect("an output");
        assert_eq!(text, "2.5\n3.0\n4.0\n5.0\n", "{rows}");
    }
    fs::write(input.join("a.csv"), "x\n1\n\"2\n\"\n").expect("written");
    let (place, more) = (output.join("names"), ["--split", "csv", "--header", "present"]);
    assert_done(&transform("half_plus_two", &input, &place, &more));
    let text = fs::read_to_string(place.join("a.csv.out")).expect("an output");
    assert_eq!(text, "2.5\n3.0\n");

    // Handlers get the records as they are.
    let script = "import json\n\
                  def handler(data, context):\n    \
                  text = data.read().decode()\n    \
                  return json.dumps([context.request_content_type, text]), 'application/json'\n";
    let model = with_handlers(&root, script);
    fs::write(input.join("a.csv"), "\"a\nb\",1\n").expect("written");
    let (place, more) = (output.join("handlers"), ["--split", "csv"]);
    assert_done(&transform(model.to_str().expect("text"), &input, &place, &more));
    let text = fs::read_to_string(place.join("a.csv.out")).expect("an output");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(found, json!(["text/csv", "\"a\nb\",1\n"]));
}

#[test]
fn handlers_get_the_variables_of_the_job() {
    let (root, input, output) = with_file("a.csv", b"1\n");
    let script = "import os\n\
                  def input_handler(data, context):\n    \
                  return '{\"instances\": [%s]}' % os.environ['STEP']\n\
                  def output_handler(response, context):\n    \
                  return os.environ['WORD'], 'text/plain'\n";
    let model = with_handlers(&root, script);
    let job = root.path().join("job.json");
    let text = json!({ "Environment": { "STEP": "4", "WORD": "job" } }).to_string();
    fs::write(&job, text).expect("written");
    let job = ["--job-file", job.to_str().expect("text"), "--env", "WORD=shell"];
    assert_done(&transform(model.to_str().expect("text"), &input, &output, &job));
    let text = fs::read_to_string(output.join("a.csv.out")).expect("an output");
    assert_eq!(text, "shell\n");
    let state = fs::read_to_string(output.join("_transform/job.json")).expect("the state");
    assert!(state.contains("STEP WORD") && !state.contains("shell"), "{state}");
    let wrong = transform("half_plus_two", &input, &output, &["--env", "=x"]);
    assert!(code(&wrong) == 2 && stderr(&wrong).contains("NAME=VALUE"), "{}", stderr(&wrong));
}

#[test]
fn a_dry_run_shows_records_tensors_and_outputs() {
    let (_root, input, output) = with_file("a.csv", b"1\n2\n");
    let outcome = transform("half_plus_two", &input, &output, &["--dry-run"]);
    assert_done(&outcome);
    let text = String::from_utf8_lossy(&outcome.stdout);
    for part in ["record 1: 1", "x: float", "output 1: 2.5"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!output.exists());
}
