//! Models of scikit-learn 1.9.1 and 1.2.2 with its predictions (`tests/cases/sklearn_models.py`),
//! also for extreme values (`tests/cases/sklearn_extremes.py`), and existing model files.
#![allow(clippy::wildcard_enum_match_arm)] // Any other value fails the test.

use std::fs;

use serde::Deserialize;
use serde_json::Value as Json;

use super::executable::{aligned, matrix};
use super::*;
use tensorserve_codec::base64;
use tensorserve_platform::{
    Completeness, Executable, LoadOptions, Loaded, ModelLoader, Platforms, RunOptions,
};
use tensorserve_tensor::error::{Code, Error};
use tensorserve_tensor::{DType, Shape, Tensor, aligned_vec};
use tensorserve_testing::{Random, project, test_data};

#[derive(Deserialize)]
struct Case {
    name: String,
    file: String,
    rows: Vec<Vec<Json>>,
    expected: std::collections::BTreeMap<String, Json>,
}

fn cases(version: &str) -> Vec<(Case, Vec<u8>)> {
    let path = project(&format!("tests/cases/sklearn-{version}.json"));
    let cases: Vec<Case> =
        serde_json::from_str(&fs::read_to_string(path).expect("cases")).expect("cases");
    let decoded = cases.into_iter().map(|case| {
        let mut file = Vec::new();
        base64::decode(case.file.as_bytes(), base64::Alphabet::Standard, &mut file).expect("file");
        (case, file)
    });
    decoded.collect()
}

fn model(bytes: Vec<u8>) -> Result<ServedEstimator> {
    read_model(bytes, 1 << 24).map(|(model, _)| model)
}

pub(super) fn number(json: &Json) -> f64 {
    match json {
        Json::String(text) => text.parse().expect("a number"),
        other => other.as_f64().expect("a number"),
    }
}

fn input(rows: &[Vec<Json>]) -> Tensor {
    let columns = rows.first().map_or(1, Vec::len);
    let mut values = aligned_vec(rows.len() * columns);
    rows.iter().flatten().for_each(|value| values.push(number(value)));
    matrix(rows.len(), columns, values).expect("a matrix")
}

/// The outputs of a model, with their names.
fn predict(model: &ServedEstimator, data: Tensor) -> Result<Vec<(String, Tensor)>> {
    let outputs = model.run(0, &[data], RunOptions::default())?;
    let names = model.signatures().swap_remove(0).outputs.into_iter().map(|spec| spec.alias);
    Ok(names.zip(outputs).collect())
}

fn flat(json: &Json) -> Vec<&Json> {
    match json {
        Json::Array(items) => items.iter().flat_map(flat).collect(),
        other => vec![other],
    }
}

fn shape(json: &Json) -> Vec<i64> {
    let mut shape = Vec::new();
    let mut json = json;
    while let Json::Array(items) = json {
        shape.push(i64::try_from(items.len()).expect("small"));
        let Some(first) = items.first() else { break };
        json = first;
    }
    shape
}

/// How far a number may be from that of scikit-learn, relative to it.
const TOLERANCE: f64 = 1e-9;

fn compare(name: &str, output: &str, got: &Tensor, want: &Json) {
    compare_within(TOLERANCE, name, output, got, want);
}

pub(super) fn compare_within(tolerance: f64, name: &str, output: &str, got: &Tensor, want: &Json) {
    assert_eq!(got.shape().dims(), shape(want), "{name}: {output}");
    let want = flat(want);
    if let Some(strings) = got.strings() {
        let want: Vec<&[u8]> = want.iter().map(|w| w.as_str().expect("text").as_bytes()).collect();
        assert_eq!(strings.iter().collect::<Vec<_>>(), want, "{name}: {output}");
        return;
    }
    let got: Vec<f64> = match got.dtype() {
        DType::Int64 => got.values::<i64>().expect("i64").iter().map(|v| *v as f64).collect(),
        DType::Bool => got.bytes().iter().map(|v| f64::from(*v)).collect(),
        _ => got.values::<f64>().expect("f64").to_vec(),
    };
    for (got, want) in got.iter().zip(want) {
        let want = want.as_bool().map_or_else(|| number(want), |flag| f64::from(u8::from(flag)));
        let near = (got - want).abs() <= tolerance * want.abs().max(1e-3);
        let is_same = near || *got == want || (got.is_nan() && want.is_nan());
        assert!(is_same, "{name}: {output} is {got}, not {want}");
    }
}

fn check(version: &str, least: usize) {
    let cases = cases(version);
    assert!(cases.len() >= least, "cases are missing: {}", cases.len());
    for (case, file) in cases {
        let name = &case.name;
        let model = model(file).unwrap_or_else(|e| panic!("{name}: {e}"));
        let got = predict(&model, input(&case.rows)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let outputs: Vec<&str> = got.iter().map(|(output, _)| output.as_str()).collect();
        let expected: Vec<&str> = case.expected.keys().map(String::as_str).collect();
        assert_eq!(outputs, expected, "{name}");
        for ((output, got), want) in got.iter().zip(case.expected.values()) {
            compare(name, output, got, want);
        }
    }
}

#[test]
fn models_of_a_new_version_predict_what_they_do_there() {
    check("1.9.1", 150);
}

#[test]
fn models_of_an_older_version_predict_what_they_do_there() {
    check("1.2.2", 150);
}

/// Rows of extreme values, and what a model predicts for each; `None` for a row that scikit-learn
/// refuses.
#[derive(Deserialize)]
struct Extremes {
    name: String,
    rows: Vec<Vec<Json>>,
    expected: Vec<Option<std::collections::BTreeMap<String, Json>>>,
}

fn check_extremes(version: &str) {
    let path = project(&format!("tests/cases/sklearn-extremes-{version}.json.gz"));
    let file = flate2::read::GzDecoder::new(fs::File::open(path).expect("cases"));
    let all: Vec<Extremes> = serde_json::from_reader(file).expect("cases");
    let models = cases(version);
    assert_eq!(models.len(), all.len(), "rows for each model");
    for ((case, file), extremes) in models.into_iter().zip(all) {
        assert_eq!(case.name, extremes.name);
        let model = model(file).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (row, want) in extremes.rows.iter().zip(extremes.expected) {
            let name = format!("{version} {} of {row:?}", case.name);
            match (predict(&model, input(std::slice::from_ref(row))), want) {
                (Err(_), None) => {}
                (Ok(got), Some(want)) => {
                    for ((output, got), want) in got.iter().zip(want.values()) {
                        compare(&name, output, got, want);
                    }
                }
                (Ok(_), None) => panic!("{name}: not refused"),
                (Err(error), Some(_)) => panic!("{name}: {error}"),
            }
        }
    }
}

#[test]
fn extreme_values_are_predicted_as_by_a_new_version() {
    check_extremes("1.9.1");
}

#[test]
fn extreme_values_are_predicted_as_by_an_older_version() {
    check_extremes("1.2.2");
}

/// An encoder of one column with the categories 1 and 3.
#[test]
fn unknown_categories_are_refused() {
    let pickle = b"csklearn.pipeline\nPipeline\n)\x81}X\x05\0\0\0steps](N\
        csklearn.preprocessing\nOneHotEncoder\n)\x81}X\x0b\0\0\0categories_](\
        cnumpy.core.numeric\n_frombuffer\n(C\x02\x01\x03cnumpy\ndtype\n(X\x02\0\0\0u1\
        tRK\x02\x85X\x01\0\0\0CtResb\x86N\
        csklearn.linear_model\nRidge\n)\x81}(X\x05\0\0\0coef_(K\x05K\x07t\
        X\x0a\0\0\0intercept_K\x01ub\x86esb.";
    let run = |value: f64| {
        let model = model(pickle.to_vec()).unwrap_or_else(|e| panic!("{e}"));
        predict(&model, matrix(1, 1, aligned(&[value])).expect("a matrix"))
    };
    let outputs = run(3.0).expect("outputs");
    assert_eq!(outputs[0].1.values::<f64>(), Some(&[8.0][..]));
    let error = run(2.0).expect_err("refused");
    assert!(error.message().contains("not one of the categories"), "{error}");
    assert!(run(f64::NAN).is_err());
}

fn loaded(path: &str) -> Loaded {
    SCIKIT_LEARN.load(&test_data(path), &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// No current Python loads these two (scikit-learn 0.19.1, Python 2). The expected predictions were
/// computed from their trees by hand.
#[test]
fn models_of_scikit_learn_0_19_and_python_2_are_served() {
    for (file, shares) in [
        ("model.pkl", [0.0, 0.342_857_142_857_142_86, 0.657_142_857_142_857_1]),
        ("model.joblib", [0.0, 0.2, 0.8]),
    ] {
        let folder = "simple-tensorflow-serving/models/scikitlearn_iris";
        let loaded = loaded(&format!("{folder}/{file}"));
        let rows: Json = serde_json::json!([[1, 2, 3, 4]]);
        let rows: Vec<Vec<Json>> = serde_json::from_value(rows).expect("rows");
        let run = loaded.executable.run(0, &[input(&rows)], RunOptions::default());
        let [predict, logs, proba] = &run.expect("an answer")[..] else { panic!("three outputs") };
        assert_eq!(predict.values::<i64>(), Some(&[2][..]));
        for (got, want) in proba.values::<f64>().expect("doubles").iter().zip(shares) {
            assert!((got - want).abs() < 1e-15, "{got} is not {want}");
        }
        let logs = logs.values::<f64>().expect("doubles");
        assert_eq!(logs.first(), Some(&f64::NEG_INFINITY));
        assert!((logs[2] - shares[2].ln()).abs() < 1e-15);
    }
}

/// The expected probabilities are those of `predict_proba` of scikit-learn 1.9.1 for 64-bit floats.
#[test]
fn a_pipeline_is_served_from_either_kind_of_file() {
    for file in [
        "iris_logreg_pipeline.pkl",
        "iris_logreg_pipeline.joblib",
        "compressed/lz4.joblib",
        "compressed/zstd.joblib",
        "compressed/bz2.joblib",
        "compressed/xz.joblib",
        "compressed/lzma.joblib",
    ] {
        let loaded = loaded(&format!("platforms/sklearn/{file}"));
        let signature = &loaded.signatures[0];
        assert_eq!(signature.inputs[0].alias, "data");
        assert_eq!(signature.inputs[0].shape.sizes(), Some(vec![-1, 4]));
        assert!(signature.is_batchable());
        let rows = serde_json::json!([[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.5]]);
        let rows: Vec<Vec<Json>> = serde_json::from_value(rows).expect("rows");
        let run = loaded.executable.run(0, &[input(&rows)], RunOptions::default());
        let [predict, _, proba] = &run.expect("an answer")[..] else { panic!("three outputs") };
        assert_eq!(predict.values::<i64>(), Some(&[0, 1][..]));
        let proba = proba.values::<f64>().expect("doubles");
        assert!((proba[0] - 0.984_703_142_006_590_1).abs() < 1e-9, "{proba:?}");
    }
}

#[test]
fn damaged_compression_is_an_error() {
    let folder = test_data("platforms/sklearn/compressed");
    let mut random = Random::seeded(5);
    for file in ["lz4.joblib", "zstd.joblib", "bz2.joblib", "xz.joblib", "lzma.joblib"] {
        let whole = fs::read(folder.join(file)).expect("a file");
        assert!(read_model(whole.clone(), 100).is_err(), "{file}: too large");
        for length in (0..whole.len()).step_by(37) {
            assert!(model(whole[..length].to_vec()).is_err(), "{file} cut at {length}");
        }
        for _ in 0..200 {
            let mut damaged = whole.clone();
            random.damage(&mut damaged, 4, None);
            let _ = model(damaged);
        }
    }
}

#[test]
fn invalid_inputs_are_refused() {
    let loaded = loaded("platforms/sklearn/iris_logreg_pipeline.pkl");
    let run = |tensor: Tensor| loaded.executable.run(0, &[tensor], RunOptions::default());
    let doubles = |shape: &[i64], values: &[f64]| {
        Tensor::from_vec(Shape::new(shape).expect("shape"), aligned(values)).expect("tensor")
    };
    assert_eq!(run(doubles(&[0, 4], &[])).expect("no row")[0].shape().dims(), [0]);
    for (tensor, says) in [
        (doubles(&[4], &[1.0; 4]), "rows of 4 numbers"),
        (doubles(&[1, 3], &[1.0; 3]), "rows of 4 numbers"),
        (doubles(&[1, 2, 2], &[1.0; 4]), "rows of 4 numbers"),
        (doubles(&[1, 4], &[1.0, f64::INFINITY, 1.0, 1.0]), "column 1 of row 0 is infinite"),
        (doubles(&[2, 4], &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, f64::NAN, 1.0]), "NaN"),
    ] {
        let error = run(tensor).expect_err("refused");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains(says), "{error}");
    }
    // Many rows are evaluated in blocks.
    let mut many = vec![1.0; 4 << 16];
    let answer = run(doubles(&[1 << 16, 4], &many)).expect("an answer");
    assert_eq!(answer[2].shape().dims(), [1 << 16, 3]);
    many[4 * 50_000 + 3] = f64::NAN;
    let error = run(doubles(&[1 << 16, 4], &many)).expect_err("refused");
    assert!(error.message().contains("column 3 of row 50000 "), "{error}");
    // The first step makes these values infinite.
    let error = run(doubles(&[1, 4], &[f64::MAX; 4])).expect_err("refused");
    assert!(error.message().contains("in a step of the model"), "{error}");
}

fn refusal(pickle: &[u8]) -> Error {
    match model(pickle.to_vec()) {
        Ok(_) => panic!("not refused"),
        Err(error) => error,
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let error = refusal(b"csklearn.neural_network\nBernoulliRBM\n)\x81}b.");
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("BernoulliRBM"), "{error}");
    assert!(error.message().contains("skl2onnx"), "{error}");
    assert!(error.message().contains("runner = \"python\""), "{error}");
    let error = refusal(b"cxgboost.core\nBooster\n)\x81}b.");
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("xgboost.core.Booster"), "{error}");
    assert!(error.message().contains("--platform xgboost ("), "{error}");
    let error = refusal(b"clightgbm.sklearn\nLGBMRegressor\n)\x81}b.");
    assert!(error.message().contains("--platform lightgbm ("), "{error}");
    // A call is not executed.
    let error = refusal(b"cos\nsystem\n(S'echo harm'\ntR.");
    assert_eq!(error.code(), Code::Unimplemented);
    assert_eq!(refusal(b"]q\x00.").code(), Code::DataLoss);
    let error = refusal(b"csklearn.svm\nSVC\n)\x81}b.");
    assert_eq!(error.code(), Code::DataLoss);
    assert!(error.message().contains("classes_"), "{error}");
}

#[test]
fn a_pipeline_within_itself_is_an_error() {
    let circle =
        b"csklearn.pipeline\nPipeline\n)\x81q\x00}X\x05\x00\x00\x00steps](N\x68\x00\x86esb.";
    assert_eq!(refusal(circle).code(), Code::DataLoss);
}

#[test]
fn a_model_is_found_by_its_name() {
    let platforms = Platforms::new(vec![SCIKIT_LEARN.platform()]);
    let folder = test_data("platforms/sklearn");
    assert!(platforms.of_folder(&folder.join("iris_logreg_pipeline.pkl")).is_some());
    assert!(matches!(SCIKIT_LEARN.check(&folder), Completeness::Broken(_)));
    let inspected = SCIKIT_LEARN
        .inspect(&folder.join("iris_logreg_pipeline.joblib"), &LoadOptions::default())
        .expect("a model");
    assert_eq!(inspected.written_by, "scikit-learn 1.9.1");
}

#[test]
fn damaged_models_are_errors_or_models() {
    let folder = test_data("simple-tensorflow-serving/models/scikitlearn_iris");
    let real = fs::read(folder.join("model.joblib")).expect("file");
    for length in (0..real.len()).step_by(7) {
        assert!(model(real[..length].to_vec()).is_err(), "cut at {length}");
    }
    let mut random = Random::seeded(3);
    let mut all: Vec<(Tensor, Vec<u8>)> = Vec::new();
    for (case, file) in cases("1.9.1") {
        let mut plain = Vec::new();
        let mut gzip = flate2::read::GzDecoder::new(&*file);
        std::io::Read::read_to_end(&mut gzip, &mut plain).expect("unpacked");
        all.push((input(&case.rows), plain));
    }
    for (data, file) in all {
        for _ in 0..40 {
            let mut damaged = file.clone();
            random.damage(&mut damaged, 3, None);
            if let Ok(model) = model(damaged) {
                let _ = predict(&model, data.clone());
            }
        }
    }
}

/// The expected values are those of scikit-learn 1.9.1 (`tests/data/platforms/sklearn/skops/make.py`).
#[test]
fn files_of_skops_predict_as_their_models() {
    let folder = test_data("platforms/sklearn/skops");
    let expected = fs::read(folder.join("expected.json")).expect("a file");
    let expected: Json = serde_json::from_slice(&expected).expect("JSON");
    let rows: Vec<Vec<Json>> = serde_json::from_value(expected["rows"].clone()).expect("rows");
    for name in [
        "pipeline",
        "columns",
        "search",
        "forest",
        "boosted",
        "histogram",
        "votes",
        "neighbors",
        "network",
        "svc",
    ] {
        let loaded = loaded(&format!("platforms/sklearn/skops/{name}.skops"));
        let outputs = loaded.executable.run(0, &[input(&rows)], RunOptions::default());
        let outputs = outputs.unwrap_or_else(|error| panic!("{name}: {error}"));
        for (spec, output) in loaded.signatures[0].outputs.iter().zip(&outputs) {
            let Some(want) = expected[name].get(&spec.alias) else {
                continue;
            };
            let want: Vec<&Json> = match want[0].as_array() {
                Some(_) => want.as_array().expect("rows").iter().flat_map(values).collect(),
                None => values(want).collect(),
            };
            assert_eq!(output.shape().elements().expect("small"), want.len(), "{name}");
            for (index, want) in want.into_iter().enumerate() {
                let is_equal = match want {
                    Json::String(text) => {
                        output.strings().and_then(|all| all.iter().nth(index))
                            == Some(text.as_bytes())
                    }
                    Json::Number(number) if number.is_i64() => {
                        output.values::<i64>().map(|all| all[index]) == number.as_i64()
                    }
                    other => {
                        let got = output.values::<f64>().expect("doubles")[index];
                        (got - other.as_f64().expect("a number")).abs() < 1e-9
                    }
                };
                assert!(is_equal, "{name} {} {index}: {output:?} is not {want}", spec.alias);
            }
        }
    }
}

fn values(list: &Json) -> impl Iterator<Item = &Json> {
    list.as_array().expect("a list").iter()
}

#[test]
fn damaged_files_of_skops_are_refused() {
    let whole = fs::read(test_data("platforms/sklearn/skops/svc.skops")).expect("a file");
    let read = |bytes: &[u8]| read_model(bytes.to_vec(), 1 << 20).map(|_| ());
    read(&whole).expect("valid");
    assert!(read_model(whole.clone(), 100).is_err(), "too large");
    for length in (0..whole.len()).step_by(101) {
        read(&whole[..length]).expect_err("cut off");
    }
    let mut random = Random::seeded(7);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        random.damage(&mut bytes, 8, None);
        let _ = read(&bytes);
    }
}

#[test]
fn versions_that_were_never_compared_are_named() {
    let versions = SCIKIT_LEARN.compared.expect("the compared versions");
    for compared in ["0.19.2", "0.24.2", "1.0.dev0", "1.9.1"] {
        assert_eq!(versions.warning(&format!("scikit-learn {compared}")), None, "{compared}");
    }
    for (version, named) in [("0.18.1", "0.18.1"), ("1.10.0", "1.10.0"), ("2.0", "2.0")] {
        let warning = versions.warning(&format!("scikit-learn {version}")).expect("a warning");
        assert!(warning.contains(&format!("scikit-learn {named}")), "{warning}");
        assert!(warning.contains("0.19 to 1.9"), "{warning}");
    }
    assert!(versions.warning("").expect("a warning").contains("does not record"));
}
