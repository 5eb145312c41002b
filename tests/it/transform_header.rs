//! `tensorserve transform` of CSV whose first line has the names of columns.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::tensorserve;
use crate::support::{data, project};

/// A linear regression of a data frame with the columns income, age and debt.
fn frame() -> PathBuf {
    data("reports/tabular-03-csv-order/frame.pkl")
}

fn transform(model: &Path, input: &Path, output: &Path, more: &[&str]) -> Output {
    let mut command = tensorserve(&["transform"]);
    command.arg(model).arg("--input").arg(input).arg("--output").arg(output).args(more);
    command.output().expect("the program runs")
}

#[track_caller]
fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the model on one file, and returns the numbers of its output.
#[track_caller]
fn numbers(model: &Path, name: &str, content: &[u8], more: &[&str]) -> Vec<f64> {
    let root = tempfile::tempdir().expect("a directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("a directory");
    fs::write(input.join(name), content).expect("written");
    assert_done(&transform(model, &input, &output, more));
    let text = fs::read_to_string(output.join(format!("{name}.out"))).expect("an output");
    let number = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let first = value.get(0).unwrap_or(&value);
        first.as_f64().unwrap_or_else(|| panic!("no number: {line}"))
    };
    text.lines().map(number).collect()
}

/// Income, age and debt of a row.
fn row(index: usize) -> [f64; 3] {
    let part = |step: usize| ((index * step) % 1009) as f64 / 64.0;
    [part(7), part(11), part(13)]
}

/// `rows` rows of these columns, 0 for income, 1 for age, 2 for debt.
fn table(header: &str, columns: &[usize], rows: usize) -> String {
    let line = |index: usize| {
        let values = row(index);
        let fields: Vec<String> =
            columns.iter().map(|&column| values[column].to_string()).collect();
        fields.join(",") + "\n"
    };
    header.to_owned() + &(0..rows).map(line).collect::<String>()
}

#[track_caller]
fn assert_right(found: &[f64], rows: usize) {
    assert_eq!(found.len(), rows);
    for (index, found) in found.iter().enumerate() {
        let [income, age, debt] = row(index);
        let right = 10.0 * income + age - 3.0 * debt;
        assert!((found - right).abs() < 1e-6, "row {index}: {found}, not {right}");
    }
}

#[test]
fn columns_are_read_by_their_names() {
    let model = frame();
    let shuffled = table("debt,age,income\n", &[2, 1, 0], 1000);
    for more in [&[][..], &["--split", "csv"], &["--header", "present"], &["--batch-rows", "7"]] {
        assert_right(&numbers(&model, "a.csv", shuffled.as_bytes(), more), 1000);
    }
    // In the order of the model, with quotes and a byte order mark; and without names.
    let quoted = table("\u{feff}\"income\",\"age\",\"debt\"\r\n", &[0, 1, 2], 100);
    assert_right(&numbers(&model, "a.csv", quoted.as_bytes(), &[]), 100);
    let plain = table("", &[0, 1, 2], 100);
    for more in [&[][..], &["--header", "absent"]] {
        assert_right(&numbers(&model, "a.csv", plain.as_bytes(), more), 100);
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(shuffled.as_bytes()).expect("packed");
    let packed = packed.finish().expect("packed");
    assert_right(&numbers(&model, "a.csv.gz", &packed, &[]), 1000);
}

#[test]
fn each_range_of_a_large_object_knows_its_names() {
    let rows = 150_000;
    let text = table("age,debt,income\n", &[1, 2, 0], rows);
    assert!(text.len() > 3 << 20, "{}", text.len());
    assert_right(&numbers(&frame(), "large.csv", text.as_bytes(), &["--range-mb", "1"]), rows);
}

#[test]
fn a_wrong_name_fails_its_object_and_is_named() {
    let root = tempfile::tempdir().expect("a directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("a directory");
    fs::write(input.join("a.csv"), table("debt,age,incme\n", &[2, 1, 0], 10)).expect("written");
    let failed = transform(&frame(), &input, &output, &[]);
    let error = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success(), "{error}");
    assert!(error.contains("\"incme\"") && error.contains("\"income\""), "{error}");
}

#[test]
fn names_are_skipped_for_models_that_know_none() {
    let model = project("models/half_plus_two");
    let text = "x\n1\n2\n5\n";
    let found = numbers(&model, "a.csv", text.as_bytes(), &["--header", "present"]);
    assert_eq!(found, [2.5, 3.0, 4.5]);
}

#[test]
fn models_of_mlflow_get_the_names_with_each_batch() {
    let model = data("reports/04-mlflow-csv-text-column/zip");
    let text = "n,zip\n1,10115\n1,01067\n1,10115\n1,01067\n1,10115\n";
    let found = numbers(&model, "a.csv", text.as_bytes(), &["--batch-rows", "2"]);
    let (one, other) = (0.999_999_999_999_996_4, 2.999_999_999_999_999);
    assert_eq!(found.len(), 5);
    for (found, right) in found.iter().zip([one, other, one, other, one]) {
        assert!((found - right).abs() < 1e-9, "{found}, not {right}");
    }
    let root: TempDir = tempfile::tempdir().expect("a directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("a directory");
    fs::write(input.join("a.csv"), text).expect("written");
    let refused = transform(&model, &input, &output, &["--header", "absent"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("--header absent"), "{error}");
    let wrong = transform(&model, &input, &output, &["--header", "maybe"]);
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && error.contains("auto, present or absent"), "{error}");
}
