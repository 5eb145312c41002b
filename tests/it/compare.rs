//! `tensorserve compare`: versions that may take the place of another one, and those that may not.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::classifier::{
    Classifier, WEIGHTS, check_numerics, constant, of_float, record_requests, weights, with,
    with_cost, with_logarithm,
};
use crate::support::process::{Ended, run};
use crate::support::saved_model::{FLOAT, INT32, a_float_tensor, a_type, an_int_tensor, node};

/// The old version, and forty requests that it answers.
struct Trial {
    root: TempDir,
    requests: PathBuf,
}

impl Trial {
    fn new(old: &Classifier) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let requests = root.path().join("requests.tfrecord");
        let trial = Trial { root, requests };
        old.write(&trial.version(1));
        record_requests(&trial.version(1), 40, trial.root.path(), Some(&trial.requests));
        trial
    }

    fn version(&self, number: u32) -> PathBuf {
        self.root.path().join(format!("m/{number}"))
    }

    fn text(&self, number: u32) -> String {
        self.version(number).display().to_string()
    }

    /// Compares version 1 with `new`.
    fn compare(&self, new: &Classifier, options: &[&str]) -> Ended {
        let _ = fs::remove_dir_all(self.version(2));
        new.write(&self.version(2));
        let (old, new) = (self.text(1), self.text(2));
        let requests = self.requests.display().to_string();
        let mut words = vec!["compare", &old, &new, "--requests", &requests];
        if !options.contains(&"--max-slowdown") {
            // The times of graphs as small as these differ by chance.
            words.extend(["--max-slowdown", "20"]);
        }
        words.extend(options);
        run(&words)
    }

    fn accepts(&self, what: &str, new: &Classifier, options: &[&str]) -> Ended {
        let ended = self.compare(new, options);
        assert!(ended.status.success(), "{what}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains("accepted"), "{what}: {}", ended.stdout);
        ended
    }

    fn refuses(&self, what: &str, new: &Classifier, options: &[&str], why: &str) {
        let ended = self.compare(new, options);
        assert_eq!(ended.status.code(), Some(1), "{what}: {}{}", ended.stdout, ended.stderr);
        let refusal = ended.stdout.split_once("refused:").map_or("", |(_, refusal)| refusal);
        assert!(refusal.contains(why), "{what}: {}{}", ended.stdout, ended.stderr);
    }
}

#[test]
fn harmless_versions_are_accepted() {
    let trial = Trial::new(&Classifier::default());
    let same = trial.accepts("the same", &Classifier::default(), &["--tolerance", "0"]);
    assert!(same.stdout.contains("40 requests answered by both"), "{}", same.stdout);
    trial.accepts("rounded", &weights(|_, weight| weight * (1.0 + 1e-6)), &[]);
    let ranked = ["--top", "scores=1:1", "--max-ks", "0.5"];
    trial.accepts("the same ranks", &weights(|_, weight| weight * 1.1), &ranked);
    let more = Classifier { signatures: vec!["serving_default", "more"], ..Classifier::default() };
    let more = trial.accepts("another signature", &more, &[]);
    assert!(more.stdout.contains("signature \"more\" is new"), "{}", more.stdout);
    let json = trial.compare(&Classifier::default(), &["--json"]);
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json["accepted"], true);
    assert_eq!(json["outputs"]["scores"]["equal"], 40);
    assert_eq!(json["outputs"]["scores"]["ks"], 0.0);
}

#[test]
fn bad_versions_are_refused_with_the_reason() {
    let trial = Trial::new(&Classifier::default());
    let rounded = weights(|_, weight| weight * (1.0 + 1e-5));
    trial.refuses("rounded", &rounded, &["--tolerance", "0"], "differ by more than allowed");
    let scaled = weights(|_, weight| weight * 1.5);
    trial.refuses("scaled", &scaled, &[], "output \"scores\": values differ");
    trial.refuses("scaled", &scaled, &["--max-ks", "scores=0.05"], "Kolmogorov-Smirnov");
    let swapped = weights(|at, _| WEIGHTS[[1, 0, 2, 4, 3, 5][at]]);
    trial.refuses("swapped", &swapped, &["--top", "1:0.9"], "the first 1 are the same in");
    let renamed = Classifier { output: "probabilities", ..Classifier::default() };
    trial.refuses("renamed", &renamed, &[], "output \"scores\" is missing");
    trial.refuses("renamed", &renamed, &["--allow-changes"], "is missing in 40 requests");
    let wider = Classifier { features: 3, ..Classifier::default() };
    trial.refuses("wider", &wider, &[], "has the shape [?, 3] instead of [?, 2]");
    trial.refuses("wider", &wider, &[], "40 requests fail that the old version answers");
    trial.refuses("wider", &wider, &[], "no request was answered by both");
    let other = Classifier { signatures: vec!["other"], ..Classifier::default() };
    trial.refuses("another signature", &other, &[], "signature \"serving_default\" is missing");
    trial.refuses(
        "unknown",
        &Classifier::default(),
        &["--tolerance", "z=1"],
        "\"z\", for which there is a rule",
    );
}

#[test]
fn rare_failures_are_found() {
    let trial = Trial::new(&Classifier::default());
    let fails = with_logarithm(check_numerics());
    trial.refuses("fails", &fails, &[], "1 requests fail that the old version answers");
    trial.refuses("fails", &fails, &[], "record 40: ");
    let nan = with_logarithm(node("checked", "Identity", &["log"], &of_float()));
    trial.refuses("NaN", &nan, &[], "values differ in 1 of 40 requests, for example in request 40");
    trial.refuses("NaN", &nan, &["--top", "1:0.5"], "values are no longer finite");
    // The other way round it is mended.
    let trial = Trial::new(&nan);
    trial.refuses("no longer NaN", &Classifier::default(), &[], "in request 40");
}

#[test]
fn a_slower_version_is_refused() {
    let trial = Trial::new(&Classifier::default());
    let slow = with_cost();
    trial.accepts("slow", &slow, &["--max-slowdown", "1e9"]);
    trial.refuses("slow", &slow, &["--max-slowdown", "2"], "times as long, and may take 2 times");
}

#[test]
fn a_version_that_draws_numbers_may_differ_as_it_differs_from_itself() {
    let draws = |range: f32| {
        with(vec![
            constant("size", INT32, an_int_tensor(&[2, 3])),
            constant("range", FLOAT, a_float_tensor(&[], &[range])),
            node(
                "drawn",
                "RandomUniform",
                &["size"],
                &[("dtype", a_type(FLOAT)), ("T", a_type(INT32))],
            ),
            node("noise", "Mul", &["drawn", "range"], &of_float()),
            node("added", "AddV2", &["logits", "noise"], &of_float()),
        ])
    };
    let trial = Trial::new(&draws(0.1));
    let ended = trial.accepts("the same noise", &draws(0.1), &[]);
    assert!(
        ended.stdout.contains("differs between two runs of the old version"),
        "{}",
        ended.stdout
    );
    trial.refuses("more noise", &draws(4.0), &[], "differ by more than allowed");
}

#[test]
fn what_cannot_be_compared_is_refused_with_its_name() {
    let trial = Trial::new(&Classifier::default());
    let refused = |options: &[&str], part: &str| {
        let ended = trial.compare(&Classifier::default(), options);
        assert!(!ended.status.success() && ended.stderr.contains(part), "{part}: {}", ended.stderr);
    };
    refused(&["--tolerance", "much"], "--tolerance much: give a number from 0, such as 0.001");
    refused(&["--top", "scores=3"], "--top scores=3: give a number of places and a share");
    refused(&["--max-psi=-1"], "--max-psi -1");
    refused(&["--requests", "/nowhere"], "/nowhere: there is no such file");
    let damaged = trial.root.path().join("damaged");
    fs::write(&damaged, b"this is no record").expect("written");
    refused(&["--requests", &damaged.display().to_string()], "damaged");
    let (old, new) = (trial.text(1), trial.text(2));
    let ended = run(&["compare", &old, &new]);
    assert!(ended.stderr.contains("no recorded requests beside the versions"), "{}", ended.stderr);
    let ended = run(&["compare", &old, "/nowhere"]);
    assert!(ended.stderr.contains("/nowhere"), "{}", ended.stderr);
}
