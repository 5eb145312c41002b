//! `tensorserve transform` on a state, inputs or outputs that have changed since the job began.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use crate::support::process::tensorserve;
use crate::support::project;

/// A finished job over three small files, or with one large one in ranges.
struct Job {
    _root: TempDir,
    input: PathBuf,
    output: PathBuf,
    more: &'static [&'static str],
}

impl Job {
    fn new(more: &'static [&'static str]) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let (input, output) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir(&input).expect("a directory");
        let large: String = (0..150_000).map(|n| format!("{n}.25\n")).collect();
        fs::write(input.join("a.csv"), "1\n2\n").expect("written");
        fs::write(input.join("b.csv"), "3\n4\n").expect("written");
        fs::write(input.join("c.csv"), large).expect("written");
        Job { _root: root, input, output, more }
    }

    fn done(more: &'static [&'static str]) -> Self {
        let job = Job::new(more);
        let done = job.run(&[]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        job
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = tensorserve(&["transform"]);
        command.arg(project("models").join("half_plus_two"));
        command.arg("--input").arg(&self.input).arg("--output").arg(&self.output);
        command.args(self.more).args(more).output().expect("the program runs")
    }

    fn outputs(&self) -> Vec<Option<Vec<u8>>> {
        let of = |name| fs::read(self.output.join(name)).ok();
        ["a.csv.out", "b.csv.out", "c.csv.out"].map(of).into()
    }

    /// The only file of the state whose name begins so.
    fn state(&self, folder: &str, begin: &str) -> PathBuf {
        let folder = self.output.join("_transform").join(folder);
        let mut names: Vec<PathBuf> = fs::read_dir(&folder)
            .expect("a directory")
            .map(|f| f.expect("a file").path())
            .collect();
        names.sort();
        let is_it = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
        };
        names.into_iter().find(is_it).expect("a file of the state")
    }

    /// Checks that the next run makes the outputs as they were.
    fn assert_restored(&self, before: &[Option<Vec<u8>>], what: &str) {
        let again = self.run(&[]);
        assert_eq!(again.status.code(), Some(0), "{what}: {}", text(&again));
        assert!(self.outputs() == before, "{what}: other outputs; {}", text(&again));
        assert!(text(&again).contains("it is done again"), "{what}: {}", text(&again));
        let last = text(&self.run(&[]));
        assert!(last.contains("done: 0 objects"), "{what}: {last}");
    }

    fn assert_refused(&self, part: &str) {
        let refused = self.run(&[]);
        assert_ne!(refused.status.code(), Some(0), "{}", text(&refused));
        assert!(text(&refused).contains(part), "{}", text(&refused));
        assert!(text(&refused).contains("--overwrite"), "{}", text(&refused));
        let before = self.outputs();
        let again = self.run(&["--overwrite"]);
        assert_eq!(again.status.code(), Some(0), "{}", text(&again));
        assert_eq!(before.len(), self.outputs().iter().flatten().count());
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const RANGES: &[&str] = &["--range-mb", "1"];

type Damage = (&'static str, fn(&Path));

/// What can become of a file.
const DAMAGES: [Damage; 4] = [
    ("deleted", |path| fs::remove_file(path).expect("removed")),
    ("emptied", |path| fs::write(path, b"").expect("written")),
    ("cut", |path| {
        let content = fs::read(path).expect("read");
        fs::write(path, &content[..content.len() / 2]).expect("written");
    }),
    ("changed in a byte", |path| {
        let mut content = fs::read(path).expect("read");
        let middle = content.len() / 2;
        content[middle] ^= 1;
        fs::write(path, content).expect("written");
    }),
];

#[test]
fn a_finished_job_with_changed_inputs_is_refused() {
    for (what, damage) in DAMAGES {
        let job = Job::done(&[]);
        damage(&job.input.join("b.csv"));
        let refused = job.run(&[]);
        assert_ne!(refused.status.code(), Some(0), "{what}: {}", text(&refused));
        assert!(text(&refused).contains("b.csv: has "), "{what}: {}", text(&refused));
    }
}

#[test]
fn outputs_that_are_not_what_was_written_are_written_again() {
    // In ranges, `c.csv.out` is joined of parts.
    for more in [&[], RANGES] {
        let job = Job::done(more);
        let before = job.outputs();
        for name in ["a.csv.out", "c.csv.out"] {
            for (what, damage) in DAMAGES {
                damage(&job.output.join(name));
                job.assert_restored(&before, &format!("{name} {what}, {more:?}"));
            }
        }
    }
}

#[test]
fn damaged_markers_do_not_count_as_done() {
    let job = Job::done(RANGES);
    let before = job.outputs();
    for (what, damage) in DAMAGES.into_iter().skip(1) {
        damage(&job.state("done", ""));
        job.assert_restored(&before, &format!("marker {what}"));
    }
    let other = Job::done(&["--batch-rows", "7"]);
    fs::copy(other.state("done", ""), job.state("done", "")).expect("copied");
    job.assert_restored(&before, "marker of another job");
}

#[test]
fn damaged_plans_and_jobs_are_refused() {
    for begin in ["plan-", "job.json"] {
        for (what, damage) in DAMAGES {
            if (what, begin) == ("deleted", "job.json") {
                continue;
            }
            let job = Job::done(&[]);
            damage(&job.state("", begin));
            job.assert_refused("is damaged");
        }
    }
}

#[test]
fn a_state_of_another_version_is_refused_with_its_reason() {
    let job = Job::done(&[]);
    let old = r#"{"job":{"state_version":1,"model":"m"},"plan":"_transform/plan-0-0.jsonl"}"#;
    fs::write(job.state("", "job.json"), old).expect("written");
    job.assert_refused("another version of tensorserve (format 1");
}

#[test]
fn a_damaged_object_that_sorts_first_does_not_stop_the_others() {
    let damages: [(&str, &[u8]); 3] = [
        ("0.csv.gz", b"this is not gzip"),
        ("0.csv.zst", b"nor is this zstd"),
        ("0.csv", b"\xff\xfe\x00\x80,,\"\n"),
    ];
    for (name, content) in damages {
        for policy in ["skip", "fail"] {
            let job = Job::new(&[]);
            fs::write(job.input.join(name), content).expect("written");
            let run = job.run(&["--on-bad-record", policy]);
            assert!(matches!(run.status.code(), Some(0 | 1)), "{name} {policy}: {}", text(&run));
            assert_eq!(job.outputs().iter().flatten().count(), 3, "{name}: {}", text(&run));
        }
    }
}
