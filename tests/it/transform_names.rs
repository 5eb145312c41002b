//! `tensorserve transform` on objects whose names are hostile: none of them stops the others.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use crate::support::process::tensorserve;
use crate::support::project;

/// Names of files that are objects like others.
const USABLE: [&str; 10] =
    ["\n", "\r", "a\nb", "\x1b[31m", "-x", "--help", "a ", "%2F", "..a", "\u{85}\u{202e}"];

struct Job {
    _root: TempDir,
    input: PathBuf,
    output: PathBuf,
}

impl Job {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let (input, output) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir(&input).expect("a directory");
        Job { _root: root, input, output }
    }

    fn write(&self, name: impl AsRef<Path>, content: &str) {
        fs::write(self.input.join(name), content).expect("written");
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = tensorserve(&["transform"]);
        command.arg(project("models").join("half_plus_two"));
        command.arg("--input").arg(&self.input).arg("--output").arg(&self.output);
        command.args(["--content-type", "text/csv", "--split", "line"]);
        command.args(more).output().expect("the program runs")
    }

    fn output(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.output.join(format!("{name}.out"))).ok()
    }
}

/// What was printed, which must have no control characters but the ends of its lines.
fn text(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    let is_harmless = |c: char| c == '\n' || !c.is_control();
    assert!(text.chars().all(is_harmless), "{text:?}");
    text
}

fn not_utf8() -> &'static OsStr {
    OsStr::from_bytes(b"caf\xe9")
}

#[test]
fn names_with_control_characters_are_names_like_others() {
    let job = Job::new();
    for name in USABLE {
        job.write(name, "1\n2\n");
    }
    let done = job.run(&[]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    for name in USABLE {
        assert_eq!(job.output(name).as_deref(), Some("2.5\n3.0\n"), "{name:?}");
    }
    // The state says so, too.
    let again = job.run(&[]);
    assert!(text(&again).contains("nothing to do, "), "{}", text(&again));
    fs::remove_file(job.output.join("a\nb.out")).expect("removed");
    job.run(&[]);
    assert_eq!(job.output("a\nb").as_deref(), Some("2.5\n3.0\n"));
    job.write("a\nb", "3\n");
    let changed = job.run(&[]);
    assert_eq!(changed.status.code(), Some(3), "{}", text(&changed));
    assert!(text(&changed).contains("a\\nb: has changed"), "{}", text(&changed));
}

#[test]
fn an_object_whose_name_cannot_be_used_fails_alone() {
    let job = Job::new();
    job.write("a", "1\n");
    job.write(not_utf8(), "1\n");
    // Its output would have a longer name than the file system takes.
    let long = "l".repeat(254);
    job.write(&long, "1\n");
    // A path of more bytes than a key may have.
    let deep = ["d".repeat(200).as_str(); 6].join("/");
    fs::create_dir_all(job.input.join(&deep)).expect("directories");
    job.write(Path::new(&deep).join("x"), "1\n");
    for _ in 0..2 {
        let done = job.run(&[]);
        let said = text(&done);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert_eq!(job.output("a").as_deref(), Some("2.5\n"), "{said}");
        assert!(said.contains("3 objects failed"), "{said}");
        assert!(said.contains("caf\\xE9\": its name is not UTF-8"), "{said}");
        assert!(said.contains("longer than the 1024 bytes"), "{said}");
        assert!(said.contains(&long), "{said}");
    }
    let planned = job.run(&["--plan-only"]);
    assert_eq!(planned.status.code(), Some(0), "{}", text(&planned));
    assert!(text(&planned).contains("is not in the plan: its name is not UTF-8"));
    // One process says so.
    let shards = ["0/2", "1/2"].map(|shard| text(&job.run(&["--shard", shard])));
    let saying = shards.iter().filter(|said| said.contains("not UTF-8")).count();
    assert_eq!(saying, 1, "{shards:?}");
}

#[test]
fn a_job_of_nothing_but_names_that_cannot_be_used_says_so() {
    let job = Job::new();
    job.write(not_utf8(), "1\n");
    let refused = job.run(&[]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("not UTF-8; rename it"), "{}", text(&refused));
}

#[test]
fn bad_records_name_their_object_in_one_line() {
    let job = Job::new();
    job.write("a\nb", "1\nx\n");
    let done = job.run(&["--on-bad-record", "dead-letter"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let dead = fs::read_dir(job.output.join("_transform/dead")).expect("a directory");
    let letters: Vec<String> =
        dead.map(|file| fs::read_to_string(file.expect("a file").path()).expect("text")).collect();
    let [letters] = &letters[..] else { panic!("not one file: {letters:?}") };
    assert_eq!(letters.lines().count(), 1, "{letters}");
    assert!(letters.contains(r#""a\nb""#), "{letters}");
}
