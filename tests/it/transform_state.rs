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
        assert!(last.contains("nothing to do, "), "{what}: {last}");
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

/// An array of .npy with these bytes.
fn array(dtype: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{text:<117}\n");
    let length = u16::try_from(header.len()).expect("short").to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), bytes].concat()
}

#[test]
fn an_object_that_sorts_first_and_cannot_be_run_does_not_stop_the_others() {
    let numbers = [1.0_f32, 5.0].map(f32::to_le_bytes).concat();
    let firsts = [
        array("<U1", "(2,)", &[b'a', 0, 0, 0, b'b', 0, 0, 0]),
        array("<f4", "(0, 3)", b""),
        array("<f4", "(2, 1", &numbers),
    ];
    for first in firsts {
        let job = Job::new(&["--split", "npy", "--content-type", "application/x-npy"]);
        for name in ["a.csv", "b.csv", "c.csv"] {
            fs::write(job.input.join(name), array("<f4", "(2,)", &numbers)).expect("written");
        }
        fs::write(job.input.join("0.npy"), &first).expect("written");
        let run = job.run(&["--batch-rows", "auto"]);
        assert!(matches!(run.status.code(), Some(0 | 1)), "{first:?}: {}", text(&run));
        assert_eq!(job.outputs().iter().flatten().count(), 3, "{first:?}: {}", text(&run));
    }
}

/// Runs two shards at the same time. Returns what they printed.
fn run_shards(job: &Job) -> [String; 2] {
    let run = |shard: &'static str| {
        let ended = job.run(&["--shard", shard]);
        assert_eq!(ended.status.code(), Some(0), "{shard}: {}", text(&ended));
        text(&ended)
    };
    std::thread::scope(|scope| {
        let shards = ["0/2", "1/2"].map(|shard| scope.spawn(move || run(shard)));
        shards.map(|shard| shard.join().expect("it ended"))
    })
}

#[test]
fn of_several_processes_the_one_does_again_what_is_damaged() {
    let job = Job::new(RANGES);
    run_shards(&job);
    let before = job.outputs();
    assert_eq!(before.iter().flatten().count(), 3);
    for (what, damage) in DAMAGES {
        for path in [job.output.join("a.csv.out"), job.state("done", "")] {
            damage(&path);
            let said = run_shards(&job);
            assert!(job.outputs() == before, "{path:?} {what}: {said:?}");
            let again = said.iter().filter(|said| !said.contains("nothing to do, ")).count();
            assert_eq!(again, 1, "{path:?} {what}: {said:?}");
        }
        assert!(run_shards(&job).iter().all(|said| said.contains("nothing to do, ")), "{what}");
    }
    // What they share is read by each.
    damage_plan(&job);
    for shard in ["0/2", "1/2"] {
        let refused = job.run(&["--shard", shard]);
        assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
        assert!(text(&refused).contains("is damaged"), "{}", text(&refused));
    }
}

fn damage_plan(job: &Job) {
    let path = job.state("", "plan-");
    let content = fs::read(&path).expect("read");
    fs::write(&path, &content[..content.len() / 2]).expect("written");
}

/// What `--plan-only` says: the entries that are done, and those that are to be done.
fn planned(job: &Job) -> (usize, usize) {
    let planned = job.run(&["--plan-only"]);
    assert_eq!(planned.status.code(), Some(0), "{}", text(&planned));
    let plan: serde_json::Value = serde_json::from_slice(&planned.stdout).expect("JSON");
    let count = |name: &str| plan[name].as_array().expect("a list").len();
    (count("done"), count("pending"))
}

#[test]
fn a_plan_of_a_damaged_state_has_what_is_damaged_to_be_done() {
    let job = Job::done(RANGES);
    let before = job.outputs();
    let (all, pending) = planned(&job);
    assert!(all > 2 && pending == 0, "{all} done, {pending} pending");
    for (what, damage) in DAMAGES {
        for path in [job.output.join("a.csv.out"), job.state("done", "")] {
            damage(&path);
            assert_eq!(planned(&job), (all - 1, 1), "{path:?} {what}");
            let again = job.run(&[]);
            assert_eq!(again.status.code(), Some(0), "{path:?} {what}: {}", text(&again));
            assert!(job.outputs() == before, "{path:?} {what}");
            assert_eq!(planned(&job), (all, 0), "{path:?} {what}");
        }
    }
    let saved = fs::read(job.state("", "plan-")).expect("read");
    damage_plan(&job);
    let refused = job.run(&["--plan-only"]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
    assert!(text(&refused).contains("is damaged"), "{}", text(&refused));
    fs::write(job.state("", "plan-"), saved).expect("written");
    fs::write(job.input.join("b.csv"), "9\n").expect("written");
    let refused = job.run(&["--plan-only"]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
    assert!(text(&refused).contains("b.csv: has changed"), "{}", text(&refused));
}

/// A finished job whose objects share an output.
struct Combined {
    _root: TempDir,
    input: PathBuf,
    output: PathBuf,
}

impl Combined {
    fn done() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let (input, output) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir(&input).expect("a directory");
        for name in ["0_78.png", "1_21.png", "2_51.png"] {
            let image = project("examples/images/digits").join(name);
            fs::copy(image, input.join(name)).expect("copied");
        }
        let job = Combined { _root: root, input, output };
        let done = job.run(&[]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        job
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = tensorserve(&["transform"]);
        command.arg(project("models").join("digits")).arg("--combine-outputs");
        command.arg("--input").arg(&self.input).arg("--output").arg(&self.output);
        command.args(more).output().expect("the program runs")
    }
}

#[test]
fn an_output_of_several_objects_is_made_again_as_a_whole() {
    let job = Combined::done();
    let part = job.output.join("part-000000000.jsonl");
    let before = fs::read(&part).expect("an output");
    assert_eq!(before.iter().filter(|byte| **byte == b'\n').count(), 3);
    let marker = fs::read_dir(job.output.join("_transform/done")).expect("a directory");
    let marker = marker.map(|file| file.expect("a file").path()).next().expect("a marker");
    for (what, damage) in DAMAGES {
        for path in [&part, &marker] {
            damage(path);
            let again = job.run(&[]);
            assert_eq!(again.status.code(), Some(0), "{path:?} {what}: {}", text(&again));
            assert!(fs::read(&part).expect("an output") == before, "{path:?} {what}");
            assert!(text(&again).contains("done: 3 objects"), "{path:?} {what}: {}", text(&again));
            assert!(text(&job.run(&[])).contains("nothing to do, "), "{path:?} {what}");
        }
    }
    fs::copy(job.input.join("0_78.png"), job.input.join("1_21.png")).expect("copied");
    let refused = job.run(&[]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
    assert!(text(&refused).contains("1_21.png: has changed"), "{}", text(&refused));
    assert!(fs::read(&part).expect("an output") == before, "it is as it was");
}

#[cfg(feature = "stores")]
mod in_a_store {
    use super::*;
    use crate::support::store::StoreServer;

    /// A finished job whose output and state are in a store.
    fn done() -> (StoreServer, Job) {
        let (store, job) = (StoreServer::start(), Job::new(&[]));
        fs::remove_file(job.input.join("c.csv")).expect("removed");
        let done = run(&store, &job, &[]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        (store, job)
    }

    fn run(store: &StoreServer, job: &Job, more: &[&str]) -> Output {
        let mut command = tensorserve(&["transform"]);
        command.env("AWS_ENDPOINT_URL", format!("http://{}", store.address));
        command.envs([("AWS_SKIP_SIGNATURE", "true"), ("AWS_REGION", "us-east-1")]);
        command.arg(project("models").join("half_plus_two"));
        command.arg("--input").arg(&job.input).args(["--output", "s3://b/out"]);
        command.args(more).output().expect("the program runs")
    }

    /// The key in the store that begins so.
    fn key(store: &StoreServer, prefix: &str) -> String {
        store.objects(prefix).into_keys().next().expect("an object")
    }

    /// Damages an object, as [`DAMAGES`] do files.
    fn damage(store: &StoreServer, key: &str, what: &str) {
        let content = store.objects(key).remove(key).expect("an object");
        match what {
            "deleted" => store.remove(key),
            "emptied" => store.put(key, b""),
            "cut" => store.put(key, &content[..content.len() / 2]),
            _ => {
                let mut content = content;
                let middle = content.len() / 2;
                content[middle] ^= 1;
                store.put(key, content);
            }
        }
    }

    fn outputs(store: &StoreServer) -> Vec<Option<Vec<u8>>> {
        let mut all = store.objects("out/");
        ["out/a.csv.out", "out/b.csv.out"].map(|key| all.remove(key)).into()
    }

    #[test]
    fn what_is_damaged_is_done_again() {
        let (store, job) = done();
        let before = outputs(&store);
        assert!(before.iter().all(Option::is_some));
        for (what, _) in DAMAGES {
            for prefix in ["out/a.csv.out", "out/_transform/done/"] {
                damage(&store, &key(&store, prefix), what);
                let again = run(&store, &job, &[]);
                assert_eq!(again.status.code(), Some(0), "{prefix} {what}: {}", text(&again));
                assert!(outputs(&store) == before, "{prefix} {what}: {}", text(&again));
                let last = text(&run(&store, &job, &[]));
                assert!(last.contains("nothing to do, "), "{prefix} {what}: {last}");
            }
        }
    }

    #[test]
    fn damaged_plans_and_changed_inputs_are_refused() {
        for (what, _) in DAMAGES {
            for prefix in ["out/_transform/plan-", "out/_transform/job.json"] {
                if (what, prefix) == ("deleted", "out/_transform/job.json") {
                    continue;
                }
                let (store, job) = done();
                damage(&store, &key(&store, prefix), what);
                let refused = run(&store, &job, &[]);
                assert_eq!(refused.status.code(), Some(3), "{prefix} {what}: {}", text(&refused));
                assert!(text(&refused).contains("is damaged"), "{prefix}: {}", text(&refused));
                let again = run(&store, &job, &["--overwrite"]);
                assert_eq!(again.status.code(), Some(0), "{prefix} {what}: {}", text(&again));
            }
        }
        let (store, job) = done();
        fs::write(job.input.join("a.csv"), "7\n").expect("written");
        let refused = run(&store, &job, &[]);
        assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
        assert!(text(&refused).contains("a.csv: has changed"), "{}", text(&refused));
    }
}
