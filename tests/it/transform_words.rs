//! What `tensorserve transform` says, and what it does at a first try: a table with a header, a folder with other
//! files beside images, options with mistakes in them, a job that is done.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::tensorserve;
use crate::support::{data, project};

/// A job on this input.
struct Job {
    _root: TempDir,
    model: PathBuf,
    input: PathBuf,
    output: PathBuf,
}

impl Job {
    /// A job on a folder with these files.
    fn new(model: PathBuf, files: &[(&str, &[u8])]) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let (input, output) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir(&input).expect("a directory");
        for (name, content) in files {
            fs::write(input.join(name), content).expect("written");
        }
        Job { _root: root, model, input, output }
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = tensorserve(&["transform"]);
        command.arg(&self.model).arg("--input").arg(&self.input).arg("--output").arg(&self.output);
        command.args(more).output().expect("the program runs")
    }

    /// Runs it. Returns what it has printed on stderr.
    #[track_caller]
    fn says(&self, more: &[&str], status: i32) -> String {
        let ended = self.run(more);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(status), "{said}");
        said
    }

    fn output(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.output.join(format!("{name}.out"))).ok()
    }

    fn report(&self) -> String {
        fs::read_to_string(self.output.join("_transform/report.html")).expect("a report")
    }
}

fn half_plus_two() -> PathBuf {
    project("models/half_plus_two")
}

/// `transform titanic.pkl --input titanic.csv`, with all columns of the data frame, in another order.
#[test]
fn a_table_in_a_file_is_read_by_the_names_of_its_columns() {
    let golden = fs::read(data("platforms/sklearn/passengers_boosted.json")).expect("readable");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    let rows = golden["rows"].as_array().expect("rows");
    let mut columns: Vec<&String> = rows[0].as_object().expect("a row").keys().collect();
    columns.reverse();
    let field = |value: &Value| if value.is_null() { String::new() } else { value.to_string() };
    let line = |row: &Value| {
        let fields: Vec<String> = columns.iter().map(|column| field(&row[*column])).collect();
        fields.join(",") + "\n"
    };
    let names: Vec<&str> = columns.iter().map(|name| name.as_str()).collect();
    let text = names.join(",") + "\n" + &rows.iter().map(line).collect::<String>();
    let model = data("platforms/sklearn/passengers_boosted.pkl");
    let job = Job::new(model, &[("titanic.csv", text.as_bytes())]);
    let job = Job { input: job.input.join("titanic.csv"), ..job };
    let said = job.says(&[], 0);
    assert!(said.contains(&format!("done: 1 object, {} records in", rows.len())), "{said}");
    let found = job.output("titanic.csv").expect("an output");
    let expected = golden["outputs"]["predict"].as_array().expect("predictions");
    let found: Vec<Value> = found
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["predict"].clone())
        .collect();
    assert_eq!(&found, expected);
}

#[test]
fn what_is_no_image_is_skipped_and_named() {
    let samples = project("examples/images/digits");
    let image = fs::read(samples.join("3_45.png")).expect("an image");
    let job = Job::new(
        project("models/digits"),
        &[
            ("3.png", &image),
            ("by_look", &image),
            ("expected.json", b"{\"3.png\": 3}"),
            ("README", b"What is here"),
        ],
    );
    // The names say that these are images, even if that of the first file does not.
    for more in [&["--content-type", "application/x-image"][..], &[]] {
        let said = job.says(&[more, &["--overwrite"]].concat(), 0);
        assert!(said.contains("done: 2 objects, 2 records in"), "{said}");
        assert!(said.contains("2 objects skipped"), "{said}");
        for name in ["README", "expected.json"] {
            let line = format!("  {name}: neither its name nor its content is that of an image");
            assert!(said.contains(&line), "{said}");
            assert_eq!(job.output(name), None);
        }
        assert!(job.output("3.png").is_some() && job.output("by_look").is_some());
        assert!(job.report().contains("skipped objects"), "{}", job.report());
    }
    assert!(job.says(&[], 0).contains("nothing to do, 4 of 4 objects done"));
    // A file that is named as an image fails, with what was wrong with it and not what the graph calls it.
    let bad = Job::new(project("models/digits"), &[("1.png", &image), ("2.png", b"no image")]);
    let said = bad.says(&[], 1);
    assert!(said.contains("1 object failed\n"), "{said}");
    assert!(said.contains("  2.png: Unknown image file format."), "{said}");
    assert!(!said.contains("{{") && !said.contains("line 1"), "{said}");
    let none = Job::new(project("models/digits"), &[("a.txt", b"text"), ("b.csv", b"1,2\n")]);
    let said = none.says(&["--content-type", "application/x-image"], 2);
    assert!(said.contains("no object is an image"), "{said}");
}

#[test]
fn names_of_several_types_need_a_choice() {
    let job = Job::new(half_plus_two(), &[("a.csv", b"1\n"), ("b.json", b"{\"instances\": [1]}")]);
    let said = job.says(&[], 2);
    for part in ["1 object of text/csv (\"a.csv\")", "1 object of application/json (\"b.json\")"] {
        assert!(said.contains(part), "{said}");
    }
    job.says(&["--content-type", "text/csv"], 1);
}

#[test]
fn a_media_type_that_nothing_takes_is_refused_at_the_start() {
    let job = Job::new(half_plus_two(), &[("a.csv", b"1\n")]);
    for wrong in ["csv", "application/pdf", "image"] {
        let said = job.says(&["--content-type", wrong], 2);
        assert!(said.contains(&format!("--content-type {wrong}: use text/csv, ")), "{said}");
        assert!(!job.output.join("_transform").exists(), "{wrong}: a job has begun");
    }
    job.says(&["--content-type", "Text/CSV; charset=utf-8"], 0);
}

#[test]
fn an_explanation_does_nothing_else() {
    let job = Job::new(half_plus_two(), &[("a.csv", b"1\n2\n")]);
    let said = job.says(&["--explain"], 0);
    assert!(said.contains("1 object, 4 B, in 1 entry; 0 done, 1 to do here"), "{said}");
    assert!(!said.contains("0 of them") && !said.contains("report:"), "{said}");
    assert!(!job.output.join("_transform").exists(), "a job has begun");
    assert_eq!(job.output("a.csv"), None);
    job.says(&[], 0);
    let report = job.report();
    let said = job.says(&["--explain"], 0);
    assert!(said.contains("in 1 entry; 1 done, 0 to do here"), "{said}");
    let said = job.says(&["--explain", "--overwrite"], 0);
    assert!(said.contains("in 1 entry; 0 done, 1 to do here"), "{said}");
    assert_eq!(job.output("a.csv").as_deref(), Some("2.5\n3.0\n"));
    assert_eq!(job.report(), report);
    // Beside a plan, it goes to stderr.
    let planned = job.run(&["--plan-only", "--explain"]);
    assert!(planned.status.success() && planned.stdout.starts_with(b"{"));
}

#[test]
fn a_job_that_is_done_keeps_its_report() {
    for more in [&[][..], &["--range-mb", "1"]] {
        let large: String = (0..200_000).map(|n| format!("{n}.5\n")).collect();
        let files: &[(&str, &[u8])] = &[("a.csv", b"1\n"), ("b.csv", large.as_bytes())];
        let job = Job::new(half_plus_two(), files);
        let said = job.says(more, 0);
        assert!(said.contains("done: 2 objects, 200001 records in"), "{said}");
        let report = job.report();
        let said = job.says(more, 0);
        assert!(said.contains("nothing to do, 2 of 2 objects done"), "{said}");
        assert!(said.contains("_transform/report.html"), "{said}");
        assert_eq!(job.report(), report);
    }
}

#[test]
fn one_is_not_several() {
    let job = Job::new(half_plus_two(), &[("a.jsonl", b"\"x\"\n")]);
    let said = job.says(&["--progress", "lines"], 1);
    assert!(said.contains("1 object failed: 0 objects, 0 records in"), "{said}");
    assert!(said.contains("1 object failed\n") && !said.contains("bad record"), "{said}");
    let report = job.report();
    assert!(report.contains("<b>1</b>failed object<") && !report.contains("The first"), "{report}");
    let said = job.says(&["--overwrite", "--on-bad-record", "skip"], 0);
    assert!(said.contains("done: 1 object, 1 record in"), "{said}");
    assert!(said.contains("\n1 bad record\n"), "{said}");
    // The inputs change.
    fs::write(job.input.join("a.jsonl"), "1\n2\n").expect("written");
    fs::write(job.input.join("b.jsonl"), "1\n").expect("written");
    let said = job.says(&["--on-bad-record", "skip"], 3);
    assert!(said.contains("note: 1 object is new since the job began"), "{said}");
    assert!(said.contains("1 input object is not what it was when the job began"), "{said}");
    let said = Job::new(half_plus_two(), &[]).says(&[], 2);
    assert!(said.contains("in: no file or object was found"), "{said}");
}
