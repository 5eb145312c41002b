//! Models of tables and of texts, with the predictions of scikit-learn 1.9.1 and 1.2.2 for each row
//! (`tests/cases/sklearn_tables.py`).

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;
use serde_json::Value as Json;

use super::executable::aligned;
use super::read_model;
use super::served::ServedEstimator;
use super::tests::{compare_within, number};
use tensorserve_codec::base64;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, Shape, Signature, StringsBuilder, Tensor};
use tensorserve_testing::{Random, project};

/// A model, the values of each input, and the outputs for each row; `None` for a row that is refused.
#[derive(Deserialize)]
pub(super) struct TableCase {
    name: String,
    file: String,
    inputs: BTreeMap<String, Vec<Json>>,
    expected: Vec<Option<BTreeMap<String, Json>>>,
}

fn cases(name: &str) -> Vec<TableCase> {
    let path = project(&format!("tests/cases/sklearn-{name}.json.gz"));
    let file = flate2::read::GzDecoder::new(fs::File::open(path).expect("cases"));
    serde_json::from_reader(file).expect("cases")
}

fn model(case: &TableCase) -> ServedEstimator {
    let mut file = Vec::new();
    base64::decode(case.file.as_bytes(), base64::Alphabet::Standard, &mut file).expect("file");
    let read = read_model(file, 1 << 26);
    read.unwrap_or_else(|error| panic!("{}: {error}", case.name)).0
}

/// The signature with one input for each column, and its index.
fn by_columns(model: &ServedEstimator) -> (usize, Signature) {
    (0, model.signatures().swap_remove(0))
}

#[test]
fn the_categories_of_encoders_are_those_of_the_columns() {
    let path = project("tests/data/platforms/sklearn/passengers_logistic.pkl");
    let (model, _) = read_model(fs::read(path).expect("a file"), 1 << 26).expect("a model");
    let (_, signature) = by_columns(&model);
    // An imputer stands before the encoder.
    assert_eq!(signature.categories_of("Sex"), ["female", "male"]);
    assert_eq!(signature.categories_of("Embarked"), ["C", "Q", "S"]);
    assert!(signature.categories_of("Age").is_empty() && signature.categories_of("x").is_empty());
}

/// The inputs of `signature` for the rows `rows`.
fn tensors(signature: &Signature, case: &TableCase, rows: &[usize]) -> Vec<Tensor> {
    let shape = Shape::vector(rows.len());
    let input = |spec: &tensorserve_tensor::TensorSpec| {
        let missing = || panic!("{}: no column {}", case.name, spec.alias);
        // An estimator of a single feature may not record its name.
        let only = case.inputs.values().next().filter(|_| case.inputs.len() == 1);
        let column = case.inputs.get(&spec.alias).or(only).unwrap_or_else(missing);
        let values = rows.iter().map(|row| &column[*row]);
        if spec.dtype() != Some(DType::String) {
            let values: Vec<f64> = values.map(cell).collect();
            if spec.shape.sizes().map_or(0, |sizes| sizes.len()) == 2 {
                let shape = Shape::new(&[i64::try_from(rows.len()).expect("few"), 1]);
                return Tensor::from_vec(shape.expect("a shape"), aligned(&values));
            }
            return Tensor::from_vec(shape.clone(), aligned(&values));
        }
        let mut texts = StringsBuilder::with_capacity(rows.len(), 0);
        values.for_each(|value| texts.push(value.as_str().unwrap_or_default().as_bytes()));
        Tensor::from_strings(shape.clone(), texts)
    };
    signature.inputs.iter().map(|spec| input(spec).expect("a tensor")).collect()
}

/// A number, NaN if it is missing.
fn cell(value: &Json) -> f64 {
    match value {
        Json::Null => f64::NAN,
        Json::Bool(value) => f64::from(u8::from(*value)),
        Json::Number(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => number(value),
    }
}

fn run(case: &TableCase, model: &ServedEstimator, rows: &[usize]) -> Result<Vec<(String, Tensor)>> {
    let (index, signature) = by_columns(model);
    let inputs = tensors(&signature, case, rows);
    let outputs = model.run(index, &inputs, RunOptions::default())?;
    Ok(signature.outputs.into_iter().map(|spec| spec.alias).zip(outputs).collect())
}

/// How far a number may be from that of scikit-learn, relative to it.
fn tolerance(model: &str) -> f64 {
    // XGBoost predicts in single precision, in which scikit-learn goes on; the distances of `KNNImputer` are
    // differences of squares there; kernels may be divided by eigenvalues that are nearly 0.
    let is_rough = ["XGB", "KNNImputer(", "KernelPCA", "Nystroem"];
    if is_rough.iter().any(|part| model.contains(part)) { 2e-6 } else { 1e-9 }
}

fn check(name: &str, least_rows: usize) {
    let mut rows = 0;
    let mut failed = Vec::new();
    for case in cases(name) {
        rows += case.expected.len();
        if std::panic::catch_unwind(|| check_case(name, &case, &model(&case))).is_err() {
            failed.push(case.name);
        }
    }
    assert!(failed.is_empty(), "{name}: {} models differ: {failed:#?}", failed.len());
    assert!(rows >= least_rows, "{name}: rows are missing: {rows}");
}

/// Compares the predictions of `model` with those of `case`, of the file `name`.
pub(super) fn check_case(name: &str, case: &TableCase, model: &ServedEstimator) {
    let mut accepted = Vec::new();
    for (row, want) in case.expected.iter().enumerate() {
        let shown = format!("{name}: row {row} of {}", case.name);
        match (run(case, model, &[row]), want) {
            (Err(_), None) => {}
            (Ok(got), Some(want)) => {
                accepted.push(row);
                let names: Vec<&String> = got.iter().map(|(output, _)| output).collect();
                assert_eq!(names, want.keys().collect::<Vec<_>>(), "{shown}");
                for ((output, got), want) in got.iter().zip(want.values()) {
                    compare_within(tolerance(&case.name), &shown, output, got, want);
                }
            }
            (Ok(_), None) => panic!("{shown}: not refused"),
            (Err(error), Some(_)) => panic!("{shown}: {error}"),
        }
    }
    check_together(case, model, &accepted);
}

/// All rows in one run give what each gives alone.
fn check_together(case: &TableCase, model: &ServedEstimator, rows: &[usize]) {
    let outputs = run(case, model, rows).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    for (output, got) in outputs {
        for (place, row) in rows.iter().enumerate() {
            let want = case.expected[*row].as_ref().map(|want| &want[&output]);
            let got = got.slice_rows(place..place + 1);
            let want = want.expect("accepted");
            compare_within(tolerance(&case.name), &case.name, &output, &got, want);
        }
    }
}

#[test]
fn tables_are_predicted_as_by_a_new_version() {
    check("tables-1.9.1", 2000);
}

#[test]
fn tables_are_predicted_as_by_an_older_version() {
    check("tables-1.2.2", 1500);
}

#[test]
fn texts_are_predicted_as_by_a_new_version() {
    check("texts-1.9.1", 1500);
}

#[test]
fn texts_are_predicted_as_by_an_older_version() {
    check("texts-1.2.2", 1500);
}

#[test]
fn compositions_predict_as_in_a_new_version() {
    check("compositions-1.9.1", 3000);
}

#[test]
fn compositions_predict_as_in_an_older_version() {
    check("compositions-1.2.2", 3000);
}

#[test]
fn boosters_predict_as_in_a_new_version() {
    check("boosters-1.9.1", 3000);
}

#[test]
fn boosters_predict_as_in_an_older_version() {
    check("boosters-1.2.2", 3000);
}

#[test]
fn other_estimators_predict_as_in_a_new_version() {
    check("rest-1.9.1", 3000);
}

#[test]
fn other_estimators_predict_as_in_an_older_version() {
    check("rest-1.2.2", 3000);
}

/// A damaged file is refused, or is another model: nothing panics, and no run takes long.
#[test]
fn damaged_files_are_errors_or_models() {
    let mut random = Random::seeded(11);
    for name in
        ["tables-1.9.1", "texts-1.9.1", "compositions-1.9.1", "rest-1.9.1", "boosters-1.9.1"]
    {
        for case in cases(name) {
            let mut plain = Vec::new();
            let mut file = Vec::new();
            base64::decode(case.file.as_bytes(), base64::Alphabet::Standard, &mut file)
                .expect("file");
            let mut gzip = flate2::read::GzDecoder::new(&*file);
            std::io::Read::read_to_end(&mut gzip, &mut plain).expect("unpacked");
            for _ in 0..12 {
                let mut damaged = plain.clone();
                random.damage(&mut damaged, 3, None);
                let Ok((model, _)) = read_model(damaged, 1 << 26) else { continue };
                for (index, signature) in model.signatures().iter().enumerate() {
                    let known = |spec: &tensorserve_tensor::TensorSpec| {
                        case.inputs.contains_key(&spec.alias)
                    };
                    if signature.inputs.iter().all(known) {
                        let inputs = tensors(signature, &case, &[0, 1, 2]);
                        let _ = model.run(index, &inputs, RunOptions::default());
                    }
                }
            }
        }
    }
}
