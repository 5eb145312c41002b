//! Real models, damaged ones, and hostile requests.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value as Json;

use super::format::read_file;
use super::model::dimension;
use super::*;
use tensorserve_platform::{
    Completeness, LoadOptions, Loaded, ModelLoader, ModelPath, Platforms, RunOptions,
};
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{Shape, Tensor, aligned_vec};
use tensorserve_testing::{Random, test_data};

const IRIS: &str = "simple-tensorflow-serving/models/xgboost_iris";

fn load(path: &Path) -> Loaded {
    XGBOOST.load(path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn tensor(shape: &[i64], values: &[f32]) -> Tensor {
    let mut aligned = aligned_vec(values.len());
    aligned.extend_from_slice(values);
    Tensor::from_vec(Shape::new(shape).expect("a shape"), aligned).expect("a tensor")
}

fn run(loaded: &Loaded, rows: usize, values: &[f32]) -> (Vec<i64>, Vec<f32>) {
    let columns = values.len() / rows.max(1);
    let input = tensor(&[dimension(rows), dimension(columns)], values);
    let outputs = loaded.executable.run(0, &[input], RunOptions::default()).expect("runs");
    let [output] = outputs.as_slice() else { panic!("one output") };
    (output.shape().dims().to_vec(), output.values::<f32>().expect("floats").to_vec())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Simple TensorFlow Serving's sample, with the predictions of xgboost 1.7.6.
#[test]
fn the_sample_of_simple_tensorflow_serving() {
    let rows = [1.0, 2.0, 3.0, 4.0, 5.1, 3.5, 1.4, 0.2, 6.0, 2.2, 4.0, 1.0, 6.3, 3.3, 6.0, 2.5];
    let expected = [1.877_554_9, 0.000_471_803_36, 0.999_494_85, 1.998_915_4];
    for file in [
        format!("{IRIS}/model.bst"),
        format!("{IRIS}/model.pkl"),
        format!("{IRIS}/model.joblib"),
        "simple-tensorflow-serving/converted/xgb_iris_converted.json".to_owned(),
    ] {
        let loaded = load(&test_data(&file));
        assert_eq!(run(&loaded, 4, &rows), (vec![4], expected.to_vec()), "{file}");
    }
}

/// With the predictions of xgboost 3.2.0, which wrote the files.
#[test]
fn several_classes_and_two() {
    let rows =
        [5.1, 3.5, 1.4, 0.2, 6.0, 2.9, 4.5, 1.5, 6.3, 3.3, 6.0, 2.5, 5.1, 3.5, f32::NAN, 0.2];
    let expected = [
        0.922_617_1,
        0.039_792_556,
        0.037_590_317, //
        0.039_080_724,
        0.921_488_34,
        0.039_430_87, //
        0.037_965_927,
        0.040_991_962,
        0.921_042_1, //
        0.074_869_86,
        0.211_203_37,
        0.713_926_75,
    ];
    for file in ["iris_softprob.json", "iris_softprob.ubj"] {
        let loaded = load(&test_data("platforms/xgboost").join(file));
        assert_eq!(run(&loaded, 4, &rows), (vec![4, 3], expected.to_vec()), "{file}");
        let inspection =
            XGBOOST.inspect(&test_data("platforms/xgboost").join(file), &LoadOptions::default());
        assert_eq!(inspection.expect("a model").written_by, "3.2.0");
    }
    let loaded = load(&test_data("platforms/xgboost/iris_virginica_binary.json"));
    let expected = vec![0.078_880_32, 0.078_880_32, 0.843_360_5];
    assert_eq!(run(&loaded, 3, &rows[..12]), (vec![3], expected));
}

#[derive(serde::Deserialize)]
struct Case {
    files: Vec<String>,
    rows: usize,
    /// Little-endian bytes, in hexadecimal.
    input: String,
    expected: String,
    shape: Vec<i64>,
    /// Whether predictions must agree bit for bit. (Until 1.2 the library added up the trees before
    /// it added the base score.)
    exact: bool,
}

fn floats(hex: &str) -> Vec<f32> {
    let digits = hex.as_bytes().as_chunks::<8>().0;
    digits.iter().map(float).collect()
}

fn float(digits: &[u8; 8]) -> f32 {
    let digits = std::str::from_utf8(digits).expect("text");
    f32::from_bits(u32::from_str_radix(digits, 16).expect("hexadecimal").swap_bytes())
}

/// Checks the predictions in `cases.json` of `folder`. `make_xgboost.py` made it and the models,
/// with several versions of the library, for random rows, some with missing values.
fn check_cases(folder: &Path) -> usize {
    let text = fs::read_to_string(folder.join("cases.json")).expect("cases");
    let cases: std::collections::BTreeMap<String, Case> =
        serde_json::from_str(&text).expect("cases");
    let mut checked = 0;
    let mut wrong = String::new();
    for (name, case) in &cases {
        let (input, expected) = (floats(&case.input), floats(&case.expected));
        for file in &case.files {
            let loaded = match XGBOOST.load(&folder.join(file), &LoadOptions::default()) {
                Ok(loaded) => loaded,
                Err(error) => {
                    let _ = writeln!(wrong, "{name}: {error}");
                    continue;
                }
            };
            let (shape, result) = run(&loaded, case.rows, &input);
            let mut wrong_pairs = result.iter().zip(&expected).filter(|(a, b)| match case.exact {
                true => a.to_bits() != b.to_bits(),
                false => (**a - **b).abs() > 2e-6 * b.abs().max(1.0),
            });
            let first = wrong_pairs.next();
            let differ = wrong_pairs.count() + usize::from(first.is_some());
            if shape != case.shape || result.len() != expected.len() || differ > 0 {
                let _ =
                    writeln!(wrong, "{name} {file}: {shape:?}, {differ} differ, first {first:?}");
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    checked
}

#[test]
fn answers_are_the_librarys_to_the_bit() {
    assert!(check_cases(&test_data("platforms/xgboost/made")) >= 10);
}

/// For directories that `make_xgboost.py` has filled with all models that a version can make.
#[test]
#[ignore = "needs folders of cases, in TENSORSERVE_XGBOOST_CASES when this is compiled"]
fn answers_in_other_folders() {
    let Some(folders) = option_env!("TENSORSERVE_XGBOOST_CASES") else { panic!("no directories") };
    for folder in folders.split(':').map(Path::new) {
        assert!(check_cases(folder) > 0);
    }
}

fn recognises(path: &Path) -> bool {
    XGBOOST.recognises(&ModelPath::new(path))
}

#[test]
fn models_are_recognised_by_ending_or_by_content() {
    assert!(recognises(&test_data("platforms/xgboost/iris_softprob.json")));
    assert!(recognises(&test_data("platforms/xgboost/iris_softprob.ubj")));
    assert!(recognises(&test_data(IRIS)), "its .bst file must be recognized");
    assert!(!recognises(&test_data(IRIS).join("model.pkl")), "scikitlearn serves it");
    assert!(!recognises(&test_data("simple-tensorflow-serving/models/tf2_two_signatures/1")));

    let folder = tempfile::tempdir().expect("temporary directory");
    let put = |name: &str, from: &str| {
        fs::copy(test_data(from), folder.path().join(name)).expect("copied");
    };
    fs::write(folder.path().join("config.json"), r#"{"a": 1}"#).expect("written");
    fs::write(folder.path().join("weights.bin"), [7; 1000]).expect("written");
    assert!(!recognises(folder.path()));
    let error = read(folder.path()).err().expect("no model").to_string();
    let endings = "no file *.ubj or *.bst or *.xgb or *.xgboost or *xgboost-model or *.pkl or *.pickle or *.joblib, and \
                   no file *.json or *.bin or *.model or *.deprecated with a model";
    assert!(error.ends_with(endings), "{error}");
    let missing = XGBOOST.check(folder.path());
    assert!(matches!(missing, Completeness::Missing(_)), "{missing:?}");
    put("model.bin", &format!("{IRIS}/model.bst"));
    assert!(recognises(folder.path()));
    assert!(matches!(XGBOOST.check(folder.path()), Completeness::Complete));
    assert_eq!(run(&load(folder.path()), 1, &[1.0, 2.0, 3.0, 4.0]).1, [1.877_554_9]);
    put("other.json", "platforms/xgboost/iris_softprob.json");
    assert!(matches!(XGBOOST.check(folder.path()), Completeness::Broken(_)), "two models");
    let platforms = Platforms::new(vec![XGBOOST.platform()]);
    assert!(platforms.of_folder(folder.path()).is_some());
}

#[test]
fn a_file_of_sagemakers_training_is_a_model_in_any_format() {
    for (from, first) in
        [(format!("{IRIS}/model.bst"), 1.877_554_9), (format!("{IRIS}/model.joblib"), 1.877_554_9)]
    {
        let folder = tempfile::tempdir().expect("temporary directory");
        fs::copy(test_data(&from), folder.path().join("xgboost-model")).expect("copied");
        assert!(recognises(folder.path()) && recognises(&folder.path().join("xgboost-model")));
        assert_eq!(run(&load(folder.path()), 1, &[1.0, 2.0, 3.0, 4.0]).1, [first], "{from}");
    }
}

#[test]
fn requests_of_another_shape_are_refused() {
    let loaded = load(&test_data(IRIS).join("model.joblib"));
    let fails = |shape: &[i64], count: usize| {
        let input = tensor(shape, &vec![0.0; count]);
        let error = loaded.executable.run(0, &[input], RunOptions::default()).expect_err("wrong");
        assert_eq!(error.code(), Code::InvalidArgument);
        error.message().to_owned()
    };
    assert_eq!(
        fails(&[2, 3], 6),
        "input \"data\" has 3 values in a row, and the model takes 4: f0, f1, f2, f3"
    );
    assert_eq!(fails(&[4], 4), "input \"data\" has the shape [4], and the model takes [rows, 4]");
    assert_eq!(fails(&[], 1), "input \"data\" has the shape [], and the model takes [rows, 4]");
    assert_eq!(
        fails(&[1, 4, 1], 4),
        "input \"data\" has the shape [1,4,1], and the model takes [rows, 4]"
    );
    // The most rows that a shape without elements may have.
    assert!(fails(&[1 << 32, 0], 0).contains("has 0 values in a row"));
    assert_eq!(run_empty(&loaded), [0]);
    assert_eq!(run_empty(&load(&test_data("platforms/xgboost/iris_softprob.ubj"))), [0, 3]);
}

fn run_empty(loaded: &Loaded) -> Vec<i64> {
    let input = tensor(&[0, 4], &[]);
    let outputs = loaded.executable.run(0, &[input], RunOptions::default()).expect("runs");
    outputs[0].shape().dims().to_vec()
}

#[test]
fn batches_of_any_size_are_like_single_rows() {
    let loaded = load(&test_data("platforms/xgboost/iris_softprob.json"));
    let rows: Vec<f32> = (0..4 * 200_u16).map(|i| f32::from(i % 71) / 10.0).collect();
    let (_, together) = run(&loaded, 200, &rows);
    let alone: Vec<f32> = rows.chunks(4).flat_map(|row| run(&loaded, 1, row).1).collect();
    assert_eq!(bits(&together), bits(&alone));
}

/// Reads `bytes` as a model; if it is one, it must run.
fn read_or_refuse(bytes: &[u8]) {
    let Ok(model) = read_file(bytes.to_vec()) else { return };
    let row = vec![0.5; model.features.min(1 << 20)];
    if row.len() == model.features {
        model.predict(&row, |_| {});
    }
}

const REAL: [&str; 6] = [
    "simple-tensorflow-serving/models/xgboost_iris/model.bst",
    "simple-tensorflow-serving/models/xgboost_iris/model.pkl",
    "simple-tensorflow-serving/models/xgboost_iris/model.joblib",
    "platforms/xgboost/iris_virginica_binary.json",
    "platforms/xgboost/iris_softprob.ubj",
    "platforms/xgboost/made/3.2_categories_mixed.ubj",
];

#[test]
fn files_cut_short_are_refused() {
    for file in REAL {
        let bytes = fs::read(test_data(file)).expect("a file");
        let step = if bytes.len() > 8192 { 7 } else { 1 };
        for end in (0..bytes.len()).step_by(step) {
            read_or_refuse(&bytes[..end]);
        }
        let error = read_file(bytes[..bytes.len() / 2].to_vec()).err().expect("an error");
        assert_eq!(error.code(), Code::DataLoss, "{file}: {error}");
    }
}

#[test]
fn damaged_files_are_refused_or_run() {
    let mut random = Random::seeded(1);
    for file in REAL {
        let bytes = fs::read(test_data(file)).expect("a file");
        for _ in 0..1500 {
            let mut damaged = bytes.clone();
            random.damage(&mut damaged, 3, None);
            read_or_refuse(&damaged);
        }
    }
}

/// The error for a model whose member at `path` is replaced by `value`.
fn refusal(path: &str, value: Json) -> String {
    let text = fs::read(test_data("platforms/xgboost/iris_virginica_binary.json")).expect("a file");
    let mut model: Json = serde_json::from_slice(&text).expect("JSON");
    *model.pointer_mut(path).expect("a member") = value;
    let error = read_file(model.to_string().into_bytes()).err().expect("refused");
    format!("{:?}: {error}", error.code())
}

/// The path of a member of tree 3.
fn in_tree(member: &str) -> String {
    format!("/learner/gradient_booster/model/trees/3/{member}")
}

#[test]
fn errors_name_the_faulty_member() {
    let name = refusal("/learner/objective/name", "reg:mine".into());
    assert!(
        name.starts_with("Unimplemented: the objective \"reg:mine\" is not supported"),
        "{name}"
    );
    let name = refusal("/learner/gradient_booster/name", "gbforest".into());
    assert!(name.starts_with("Unimplemented: the booster \"gbforest\" is not supported"), "{name}");
    for (path, value, says) in [
        (in_tree("left_children"), "[0,-1,-1]", "tree 3: \"right_children\" has"),
        (in_tree("left_children/0"), "0", "tree 3: the nodes form a cycle"),
        (in_tree("right_children/0"), "700", "tree 3: node 700 does not exist"),
        (in_tree("right_children/0"), "-1", "tree 3: node 0 has the children 1 and -1"),
        (
            in_tree("split_indices/0"),
            "4",
            "tree 3: feature 4 does not exist; the number of features is 4",
        ),
        (in_tree("id"), "4", "tree 3: \"id\" is 4, and must be 3"),
        (
            in_tree("split_conditions"),
            "{}",
            "tree 3: \"split_conditions\" is not an array of numbers",
        ),
        (
            "/learner/gradient_booster/model/tree_info/3".to_owned(),
            "1",
            "tree 3: output 1 does not exist",
        ),
        (
            "/learner/learner_model_param/num_feature".to_owned(),
            "\"x\"",
            "\"num_feature\" is \"x\"",
        ),
        ("/learner/learner_model_param/num_feature".to_owned(), "\"0\"", "\"num_feature\" is 0"),
        (
            "/learner/learner_model_param/base_score".to_owned(),
            "\"[]\"",
            "\"base_score\" is \"[]\"",
        ),
        ("/learner".to_owned(), "[]", "\"learner_model_param\" is missing"),
    ] {
        let said = refusal(&path, serde_json::from_str(value).expect("JSON"));
        assert!(said.starts_with(&format!("DataLoss: {says}")), "{path}: {said}");
    }
    let outputs = refusal("/learner/learner_model_param/num_class", "2000000000".into());
    assert!(outputs.starts_with("Unimplemented: the model has 2000000000 outputs"), "{outputs}");
    assert_eq!(
        read_file(b"PK\x03\x04".to_vec()).err().expect("no model").code(),
        Code::DataLoss,
        "no format"
    );
}
