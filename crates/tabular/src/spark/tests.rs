//! Models of every supported class, with Spark's predictions for some rows.
//!
//! `tests/data/platforms/spark/make.py` made most of them with Spark 3.5.8.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::classes::read_parameters;
use super::*;
use crate::testing::{Random, test_data};
use tensorserve_platform::RunOptions;
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

const SAMPLE: &str = "simple-tensorflow-serving/models/mllib_lr_model";

fn rows(rows: &[Vec<f64>]) -> Tensor {
    let width = rows.first().map_or(0, Vec::len);
    let mut values = aligned_vec(rows.len() * width);
    rows.iter().for_each(|row| values.extend_from_slice(row));
    let dims = [rows.len(), width].map(|size| i64::try_from(size).expect("a size"));
    Tensor::from_vec(Shape::new(&dims).expect("a shape"), values).expect("a tensor")
}

fn run(folder: &SparkModelFolder, input: Tensor) -> Result<BTreeMap<String, Vec<f64>>> {
    let outputs = folder.model.run(0, &[input], RunOptions::default())?;
    let mut named = BTreeMap::new();
    for (spec, tensor) in folder.signature.outputs.iter().zip(&outputs) {
        let values = tensor.values::<f64>().expect("doubles").to_vec();
        named.insert(spec.alias.clone(), values);
    }
    Ok(named)
}

fn close(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= 1e-9 * expected.abs().max(1e-6)
}

#[derive(Deserialize)]
struct Case {
    features: Vec<f64>,
    prediction: f64,
    probabilities: Vec<f64>,
}

#[test]
fn models_predict_what_spark_predicts() {
    let folder = test_data("platforms/spark");
    let text = fs::read_to_string(folder.join("expected.json")).expect("expected");
    let expected: BTreeMap<String, Vec<Case>> = serde_json::from_str(&text).expect("expected");
    assert_eq!(expected.len(), 12);
    for (name, cases) in expected {
        let model = SparkModelFolder::open(&folder.join(&name));
        let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
        let input: Vec<Vec<f64>> = cases.iter().map(|case| case.features.clone()).collect();
        let outputs = run(&model, rows(&input)).expect("outputs");
        for (row, case) in cases.iter().enumerate() {
            let got = outputs["prediction"][row];
            assert!(close(got, case.prediction), "{name} {row}: {got}, not {}", case.prediction);
            for (class, expected) in case.probabilities.iter().enumerate() {
                let got = outputs[&format!("probability_of_{class}")][row];
                assert!(close(got, *expected), "{name} {row} {class}: {got}, not {expected}");
            }
        }
    }
}

/// A row of 692 features, of which these are not 0.
fn sparse_row(entries: &[(usize, f64)]) -> Vec<f64> {
    let mut row = vec![0.0; 692];
    entries.iter().for_each(|(index, value)| row[*index] = *value);
    row
}

#[test]
fn the_sample_of_simple_tensorflow_serving_is_read() {
    let folder = test_data(SAMPLE);
    assert!(Spark.recognises(&Place::new(&folder)));
    assert!(matches!(Spark.check(&folder), Completeness::Complete));
    let model = SparkModelFolder::open(&folder).expect("a model");
    assert_eq!(model.written_by, "Spark 2.3.2");
    assert_eq!(model.signature.inputs[0].shape.sizes(), Some(vec![-1, 692]));

    // The expected probabilities were computed by hand, from the coefficients as pyarrow reads them.
    let input = [
        sparse_row(&[(128, 51.0), (129, 159.0), (130, 20.0)]),
        sparse_row(&[(300, 100.0), (301, 50.0), (244, 12.0), (568, 3.0)]),
    ];
    let outputs = run(&model, rows(&input)).expect("outputs");
    assert_eq!(outputs["prediction"], [1.0, 1.0]);
    for (row, expected) in [0.5559060484218078, 0.5501097228883852].into_iter().enumerate() {
        assert!(close(outputs["probability_of_1"][row], expected));
        assert!(close(outputs["probability_of_0"][row], 1.0 - expected));
    }
}

#[test]
fn inputs_of_any_shape_are_answered_or_refused() {
    let model = SparkModelFolder::open(&test_data(SAMPLE)).expect("a model");
    let none = Tensor::from_vec(Shape::new(&[0, 692]).expect("a shape"), aligned_vec::<f64>(0));
    assert_eq!(run(&model, none.expect("a tensor")).expect("no rows")["prediction"].len(), 0);
    let error = run(&model, rows(&[vec![0.0; 3]])).expect_err("too few").to_string();
    assert!(error.contains("[1,3]") && error.contains("[rows,692]"), "{error}");
    let mut values = aligned_vec::<f32>(692);
    values.resize(692, 0.0);
    let floats = Tensor::from_vec(Shape::new(&[1, 692]).expect("a shape"), values);
    let error = run(&model, floats.expect("a tensor")).expect_err("floats").to_string();
    assert!(error.contains("has the dtype float, and the model takes double"), "{error}");
}

#[test]
fn other_classes_are_refused_by_name() {
    let class = "org.apache.spark.ml.classification.GBTClassificationModel";
    let metadata = json!({ "class": class });
    let error = read_parameters(&metadata, &ParquetColumns::default()).err().expect("refused");
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains(class), "{error}");
}

#[test]
fn files_of_every_layout_hold_the_same() {
    let folder = test_data("platforms/spark/parquet");
    let values: Vec<f64> =
        std::iter::repeat_n(0.0, 900).chain((0..300).map(|index| f64::from(index % 7))).collect();
    let flags: Vec<f64> = (0..50).map(|index| f64::from(u8::from(index % 3 == 0))).collect();
    let kinds = ["plain_1", "packed_1", "plain_2", "packed_2"];
    for name in kinds.iter().flat_map(|kind| [format!("{kind}_dictionary"), (*kind).to_owned()]) {
        let bytes = fs::read(folder.join(format!("{name}.parquet"))).expect("a file");
        let columns =
            ParquetColumns::read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(columns.rows, 1);
        assert_eq!(columns.list("v.values"), values, "{name}");
        assert_eq!(columns.list("flags"), flags, "{name}");
        assert_eq!(columns.list("v.size"), [0.0; 0], "{name}");
        assert_eq!(columns.list("v.indices"), [0.0; 0], "{name}");
        assert_eq!(columns.number("yes"), Some(1.0), "{name}");
        assert_eq!(columns.number("half"), Some(0.5), "{name}");
        assert_eq!(columns.number("count"), Some(1_099_511_627_776.0), "{name}");
        assert!(columns.has("v") && !columns.has("w"), "{name}");
        for length in (0..bytes.len()).step_by(7) {
            assert!(ParquetColumns::read(&bytes[..length]).is_err(), "{name} cut at {length}");
        }
    }
    let gzip = fs::read(folder.join("gzip.parquet")).expect("a file");
    let error = ParquetColumns::read(&gzip).expect_err("refused");
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("a compression other than Snappy"), "{error}");
}

/// The only data file of a model.
fn data_file(folder: &str) -> Vec<u8> {
    let file = part_files(&test_data(folder).join(DATA), DATA_ENDING).remove(0);
    fs::read(file).expect("a file")
}

#[test]
fn files_cut_short_or_with_wrong_bytes_are_refused_or_read() {
    let mut random = Random::seeded(7);
    for folder in [SAMPLE, "platforms/spark/ml_multinomial", "platforms/spark/mllib_multinomial"] {
        let metadata = read_metadata(&test_data(folder).join(METADATA)).expect("metadata");
        let file = data_file(folder);
        for length in 0..file.len() {
            assert!(ParquetColumns::read(&file[..length]).is_err(), "{folder} cut at {length}");
        }
        for _ in 0..4_000 {
            let mut bytes = file.clone();
            random.damage(&mut bytes, 3, None);
            if let Ok(columns) = ParquetColumns::read(&bytes) {
                let _ = read_parameters(&metadata, &columns).and_then(SparkLinearModel::new);
            }
        }
    }
}
