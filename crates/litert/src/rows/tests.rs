//! Verdicts on models of the repository; those that are proven are run alone and in company.

use std::fs;
use std::path::{Path, PathBuf};

use tensorserve_platform::{LoadOptions, Loaded, ModelLoader, RunOptions, synthetic_samples};
use tensorserve_tensor::{RowDependence, Tensor, concat};

use crate::executable::signatures;
use crate::model::TfliteFile;
use crate::tests::litert;

fn models(folder: &str) -> Vec<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/platforms/tflite")
        .join(folder);
    let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("entry").path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "tflite")).collect();
    found.sort();
    assert!(!found.is_empty(), "{folder}");
    found
}

/// What is found for the functions of a model: name and verdict.
fn verdicts(path: &Path) -> Vec<(String, RowDependence)> {
    let file = TfliteFile::read(path).expect("a model");
    let model = file.model().expect("a model");
    let all = signatures(&model, &file.bytes).into_iter();
    all.map(|signature| (signature.name, signature.rows)).collect()
}

#[test]
fn models_that_keep_rows_apart_are_proven() {
    for path in [models("made"), models("others")].concat() {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        // One selects rows; the other's output declares no dimension for rows.
        let is_mixed = ["by_values", "strings"].contains(&name.as_str());
        for (signature, rows) in verdicts(&path) {
            assert_eq!(rows.is_independent(), !is_mixed, "{name} {signature}: {rows}");
        }
    }
}

/// Models of `tests/data/rows/mixing` that TensorFlow Lite has the operators for.
#[test]
fn models_that_mix_rows_are_not() {
    let all = models("mixing");
    assert!(all.len() >= 20, "{}", all.len());
    for path in all {
        for (signature, rows) in verdicts(&path) {
            let is_named = matches!(rows, RowDependence::Mixed(_) | RowDependence::Unknown(_));
            assert!(is_named, "{} {signature}: {rows}", path.display());
        }
    }
}

#[test]
fn proven_models_give_the_same_in_company() {
    let mut compared = 0;
    for path in models("made") {
        let Loaded { signatures, executable, .. } =
            litert().load(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        let run = |index: usize, inputs: &[Tensor]| {
            executable.run(index, inputs, RunOptions::default()).ok()
        };
        for (index, signature) in signatures.iter().enumerate() {
            if !signature.rows.is_independent() {
                continue;
            }
            let samples = synthetic_samples(signature);
            for (a, b) in samples.iter().zip(samples.iter().skip(1)) {
                let joined: Option<Vec<Tensor>> =
                    a.inputs.iter().zip(&b.inputs).map(|(a, b)| concat(&[a, b], 0).ok()).collect();
                let Some(joined) = joined.filter(|_| a.is_tame) else { continue };
                let (Some(alone), Some(both)) = (run(index, &a.inputs), run(index, &joined)) else {
                    continue;
                };
                for (alone, both) in alone.iter().zip(&both) {
                    let rows = alone.rows().expect("rows");
                    let part = both.slice_rows(0..rows);
                    assert!(are_alike(alone, &part), "{}: {}", path.display(), signature.name);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 50, "{compared}");
}

fn are_alike(a: &Tensor, b: &Tensor) -> bool {
    let (Some(x), Some(y)) = (a.values::<f32>(), b.values::<f32>()) else {
        return a.strings().is_some() || a.bytes() == b.bytes();
    };
    let scale = x.iter().fold(0f32, |most, value| most.max(value.abs()));
    let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-5 * scale || x.to_bits() == y.to_bits();
    x.len() == y.len() && x.iter().zip(y).all(near)
}
