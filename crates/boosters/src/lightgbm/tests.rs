//! Models of several versions, damaged ones, and hostile requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::format::read_file;
use super::*;
use tensorserve_platform::{
    Completeness, LoadOptions, Loaded, ModelLoader, ModelPath, Platforms, RunOptions,
};
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{DType, Shape, Tensor, aligned_vec};
use tensorserve_testing::{Random, test_data};

const FEATURES: usize = 8;

fn load(path: &Path) -> Loaded {
    LIGHTGBM.load(path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn made(file: &str) -> std::path::PathBuf {
    test_data("platforms/lightgbm/made").join(file)
}

fn tensor(shape: &[i64], values: &[f64]) -> Tensor {
    let mut aligned = aligned_vec(values.len());
    aligned.extend_from_slice(values);
    Tensor::from_vec(Shape::new(shape).expect("a shape"), aligned).expect("a tensor")
}

fn run(loaded: &Loaded, columns: usize, values: &[f64]) -> Vec<Tensor> {
    let shape = [values.len() / columns, columns].map(|size| i64::try_from(size).expect("small"));
    let input = tensor(&shape, values);
    loaded.executable.run(0, &[input], RunOptions::default()).expect("runs")
}

/// Predicts for `rows`, of [`FEATURES`] values each, which a model with more features takes several
/// times.
fn run_rows(loaded: &Loaded, rows: &[f64]) -> Vec<Tensor> {
    let sizes = loaded.signatures[0].inputs[0].shape.sizes().expect("a known shape");
    let columns = usize::try_from(sizes[1]).expect("features");
    let rows = rows.chunks_exact(FEATURES);
    let wide: Vec<f64> = rows.flat_map(|row| row.iter().copied().cycle().take(columns)).collect();
    run(loaded, columns, &wide)
}

fn doubles(file: &Path) -> Vec<f64> {
    let bytes = fs::read(file).expect("a file");
    bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

#[derive(serde::Deserialize)]
struct Case {
    /// Where the numbers begin in `expected.bin`.
    offset: usize,
    shape: Vec<i64>,
    /// The labels of a classifier, and for each row the digit of its label's index.
    labels: Option<Vec<String>>,
    predicted: Option<String>,
}

/// The text of a label as Python shows it.
fn shown(tensor: &Tensor, row: usize) -> String {
    #[allow(clippy::wildcard_enum_match_arm)]
    match tensor.dtype() {
        DType::String => {
            let strings: Vec<&[u8]> = tensor.strings().expect("strings").iter().collect();
            String::from_utf8_lossy(strings[row]).into_owned()
        }
        DType::Bool => ["False", "True"][usize::from(tensor.bytes()[row])].to_owned(),
        DType::Int64 => tensor.values::<i64>().expect("integers")[row].to_string(),
        other => panic!("{other}"),
    }
}

/// Checks the predictions in `cases.json` of `folder`. `make_lightgbm.py` made it and the models,
/// with several versions of the library, for rows with missing, extreme and unseen values. Returns
/// the number of cases, and the greatest relative difference.
fn check_cases(folder: &Path) -> (usize, f64) {
    let text = fs::read_to_string(folder.join("cases.json")).expect("cases");
    let cases: BTreeMap<String, Case> = serde_json::from_str(&text).expect("cases");
    let rows = doubles(&made("rows.bin"));
    let expected = doubles(&folder.join("expected.bin"));
    let (mut wrong, mut greatest) = (String::new(), 0.0_f64);
    for (name, case) in &cases {
        let loaded = match LIGHTGBM.load(&folder.join(name), &LoadOptions::default()) {
            Ok(loaded) => loaded,
            Err(error) => {
                let _ = writeln!(wrong, "{error}");
                continue;
            }
        };
        let outputs = run_rows(&loaded, &rows);
        let numbers = outputs.last().expect("an output");
        let result = numbers.values::<f64>().expect("doubles");
        let expected = &expected[case.offset..case.offset + result.len()];
        if numbers.shape().dims() != case.shape {
            let _ = writeln!(wrong, "{name}: {:?}", numbers.shape());
        }
        for (row, (a, b)) in result.iter().zip(expected).enumerate() {
            if a.to_bits() == b.to_bits() {
                continue;
            }
            let difference = (a - b).abs() / b.abs();
            greatest = greatest.max(difference);
            // The exponential of another C library, or on another processor, may differ.
            if difference.is_nan() || difference > 1e-15 {
                let _ = writeln!(wrong, "{name}: number {row} is {a:e}, not {b:e}");
                break;
            }
        }
        let (Some(labels), Some(predicted)) = (&case.labels, &case.predicted) else {
            assert_eq!(outputs.len(), 1, "{name}");
            continue;
        };
        for (row, digit) in predicted.bytes().enumerate() {
            let (label, has) = (&labels[usize::from(digit - b'0')], shown(&outputs[0], row));
            if *label != has {
                let _ = writeln!(wrong, "{name}: the label of row {row} is {has}, not {label}");
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    (cases.len(), greatest)
}

#[test]
fn answers_are_the_librarys() {
    for (folder, at_least) in [("made", 50), ("others", 1)] {
        let (cases, greatest) = check_cases(&test_data("platforms/lightgbm").join(folder));
        eprintln!("{folder}: {cases} cases, greatest relative difference {greatest:e}");
        assert!(cases >= at_least, "{cases}");
    }
}

/// For folders that `make_lightgbm.py` has filled with all models that a version can make.
#[test]
#[ignore = "needs folders of cases, in TENSORSERVE_LIGHTGBM_CASES"]
fn answers_in_other_folders() {
    let folders = std::env::var("TENSORSERVE_LIGHTGBM_CASES").expect("folders");
    for folder in folders.split(':').map(Path::new) {
        eprintln!("{}: {:?}", folder.display(), check_cases(folder));
    }
}

fn recognises(path: &Path) -> bool {
    LIGHTGBM.recognises(&ModelPath::new(path))
}

#[test]
fn models_are_recognised_by_ending_or_by_content() {
    for file in
        ["4.7_binary.txt", "4.7_linear.json", "4.7_classifier.pkl", "2.2_best_iteration.pkl"]
    {
        assert!(recognises(&made(file)), "{file}");
    }
    assert!(!recognises(&made("4.7_ranker.joblib")), "it is compressed");
    assert!(!recognises(&made("cases.json")));
    for other in [
        "simple-tensorflow-serving/models/xgboost_iris",
        "platforms/xgboost/iris_softprob.json",
        "simple-tensorflow-serving/models/tf2_two_signatures/1",
    ] {
        assert!(!recognises(&test_data(other)), "{other}");
    }
    let folder = tempfile::tempdir().expect("temporary directory");
    let put = |name: &str, from: &str| {
        fs::copy(made(from), folder.path().join(name)).expect("copied");
    };
    fs::write(folder.path().join("notes.txt"), "tree\nversion 4").expect("written");
    fs::write(folder.path().join("requirements.txt"), "lightgbm==4.7.0").expect("written");
    assert!(!recognises(folder.path()));
    assert!(matches!(LIGHTGBM.check(folder.path()), Completeness::Missing(_)));
    let error = read(folder.path()).err().expect("no model").to_string();
    let endings = "no file *.lgb or *.lightgbm, and no file *.txt or *.model or *.json or *.pkl or *.pickle or *.joblib \
                   with a model";
    assert!(error.ends_with(endings), "each ending once: {error}");
    put("model.txt", "4.7_binary.txt");
    assert!(recognises(folder.path()));
    assert!(matches!(LIGHTGBM.check(folder.path()), Completeness::Complete));
    assert_eq!(load(folder.path()).bytes, fs::metadata(made("4.7_binary.txt")).expect("it").len());
    let platforms = Platforms::new(vec![LIGHTGBM.platform()]);
    assert!(platforms.of_folder(folder.path()).is_some());
    put("other.pkl", "4.7_classifier.pkl");
    assert!(matches!(LIGHTGBM.check(folder.path()), Completeness::Broken(_)), "two models");
    put("model.lgb", "4.7_regression.txt");
    assert!(matches!(LIGHTGBM.check(folder.path()), Completeness::Complete), "its own ending");
    let inspection = LIGHTGBM.inspect(folder.path(), &LoadOptions::default()).expect("a model");
    assert_eq!(inspection.written_by, "LightGBM, format v4");
}

fn spec(signature: &tensorserve_tensor::Signature) -> String {
    let outputs = signature.outputs.iter().map(|output| {
        format!("{} {:?} {:?}", output.alias, output.dtype().expect("known"), output.shape.sizes())
    });
    outputs.collect::<Vec<_>>().join("; ")
}

#[test]
fn outputs_are_those_of_the_saved_object() {
    for (file, outputs) in [
        ("4.7_binary.txt", "result Double Some([-1])"),
        ("4.7_multiclass.txt", "result Double Some([-1, 3])"),
        ("4.7_regressor.pkl", "result Double Some([-1])"),
        ("4.7_ranker.joblib", "result Double Some([-1])"),
        ("4.7_classifier.pkl", "predict String Some([-1]); predict_proba Double Some([-1, 3])"),
        ("4.7_classifier_two.pkl", "predict Int64 Some([-1]); predict_proba Double Some([-1, 2])"),
        ("4.7_classifier_bool.pkl", "predict Bool Some([-1]); predict_proba Double Some([-1, 2])"),
    ] {
        let loaded = load(&made(file));
        assert_eq!(spec(&loaded.signatures[0]), outputs, "{file}");
        let input = &loaded.signatures[0].inputs[0];
        assert_eq!((&*input.alias, input.dtype()), ("data", Some(DType::Double)), "{file}");
        let none = run(&loaded, FEATURES, &[]);
        assert_eq!(none.len(), loaded.signatures[0].outputs.len(), "{file}");
        assert!(none.iter().all(|output| output.shape().dims()[0] == 0), "{file}");
    }
}

#[test]
fn requests_of_another_shape_are_refused() {
    let loaded = load(&test_data("platforms/lightgbm/others/iris_multiclass.txt"));
    let fails = |input: Tensor| {
        let error = loaded.executable.run(0, &[input], RunOptions::default()).expect_err("wrong");
        assert_eq!(error.code(), Code::InvalidArgument);
        error.message().to_owned()
    };
    assert_eq!(
        fails(tensor(&[2, 3], &[0.0; 6])),
        "input \"data\" has 3 values in a row, and the model takes 4: Column_0, Column_1, Column_2, \
         Column_3"
    );
    let shape = "input \"data\" has the shape [4], and the model takes [rows, 4]";
    assert_eq!(fails(tensor(&[4], &[0.0; 4])), shape);
    // The most rows that a shape without elements may have.
    assert!(fails(tensor(&[1 << 32, 0], &[])).contains("has 0 values in a row"));
    let mut floats = aligned_vec(4);
    floats.extend_from_slice(&[0.0_f32; 4]);
    let shape = Shape::new(&[1, 4]).expect("a shape");
    let said = fails(Tensor::from_vec(shape, floats).expect("a tensor"));
    assert_eq!(said, "input \"data\" has the dtype float, and the model takes double");
}

#[test]
fn batches_of_any_size_are_like_single_rows() {
    let rows = doubles(&made("rows.bin"));
    for file in ["4.7_categories.txt", "4.7_linear.json", "4.7_rf_multiclass.txt"] {
        let loaded = load(&made(file));
        let bits = |values: &[f64]| {
            let outputs = run(&loaded, FEATURES, values);
            let values = outputs[0].values::<f64>().expect("doubles");
            values.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let alone: Vec<u64> = rows.chunks(FEATURES).flat_map(bits).collect();
        assert_eq!(bits(&rows), alone, "{file}");
    }
}

/// Reads `bytes` as a model; if it is one, it must run.
fn read_or_refuse(bytes: &[u8]) {
    let Ok(model) = read_file(bytes.to_vec()) else { return };
    let sizes = model.signature().inputs[0].shape.sizes().expect("a known shape").to_vec();
    if sizes[1] < 1 << 20 {
        let row = vec![0.5; usize::try_from(sizes[1]).expect("small")];
        model.predict(&row, &mut aligned_vec(0));
    }
}

const REAL: [&str; 6] = [
    "4.7_categories.txt",
    "4.7_linear_binary.txt",
    "4.7_linear.json",
    "2.2_categories.json",
    "4.7_classifier.pkl",
    "4.7_ranker.joblib",
];

#[test]
fn files_cut_short_are_refused() {
    for file in REAL {
        let bytes = fs::read(made(file)).expect("a file");
        for end in (0..bytes.len()).step_by(7) {
            read_or_refuse(&bytes[..end]);
        }
        let error = read_file(bytes[..bytes.len() / 2].to_vec()).err().expect("an error");
        assert_eq!(error.code(), Code::DataLoss, "{file}: {error}");
    }
}

#[test]
fn a_text_without_its_last_trees_is_refused() {
    let text = fs::read_to_string(made("4.7_regression.txt")).expect("a file");
    let refused = |text: &str| {
        let error = read_file(text.as_bytes().to_vec()).err().expect("refused");
        assert_eq!(error.code(), Code::DataLoss);
        error.message().to_owned()
    };
    let (before, _) = text.split_once("Tree=4").expect("a tree");
    let said = "the file has 4 trees, and \"tree_sizes\" 6: it was cut short or changed";
    assert_eq!(refused(before), said);
    let (before, _) = text.split_once("end of trees").expect("an end");
    assert!(refused(before).contains("has no line \"end of trees\""));
    // Line ends of Windows, and what follows the trees, do not matter.
    let (before, _) = text.split_once("feature_importances").expect("more");
    assert!(read_file(before.replace('\n', "\r\n").into_bytes()).is_ok());
}

#[test]
fn damaged_files_are_refused_or_run() {
    let mut random = Random::seeded(1);
    for file in REAL {
        let bytes = fs::read(made(file)).expect("a file");
        for round in 0..600 {
            let mut damaged = bytes.clone();
            let alphabet: Option<&[u8]> = (round % 2 == 0).then_some(b"0123456789-.e {}[]\n=,\"");
            random.damage(&mut damaged, 3, alphabet);
            read_or_refuse(&damaged);
        }
    }
}

/// The error for a text in which the first `from` is replaced by `to`.
fn refusal(file: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(made(file)).expect("a file");
    assert!(text.contains(from), "{from}");
    let error = read_file(text.replacen(from, to, 1).into_bytes()).err().expect("refused");
    format!("{:?}: {error}", error.code())
}

#[test]
fn errors_name_the_faulty_part() {
    let text = "4.7_categories.txt";
    for (from, to, says) in [
        ("objective=regression", "objective=mine", "Unimplemented: the objective \"mine\" is not"),
        (
            "max_feature_idx=7",
            "max_feature_idx=8",
            "DataLoss: \"feature_names\" has 8 names and needs 9",
        ),
        ("num_class=1", "", "DataLoss: \"num_class\" is missing"),
        ("num_class=1", "num_class=x", "DataLoss: \"num_class\" has \"x\", which is not a valid"),
        (
            "num_tree_per_iteration=1",
            "num_tree_per_iteration=4000000000",
            "Unimplemented: the model has 4000000000 outputs",
        ),
        (
            "leaf_value=",
            "leaf_value=1 ",
            "DataLoss: tree 0: \"leaf_value\" has 8 values and needs 7",
        ),
        ("left_child=2", "left_child=0", "DataLoss: tree 0: the nodes form a cycle"),
        ("left_child=2", "left_child=70", "DataLoss: tree 0: node 70 does not exist; there are 6"),
        ("left_child=2", "left_child=-70", "DataLoss: tree 0: leaf 69 does not exist; there are 7"),
        (
            "cat_boundaries=0 1",
            "cat_boundaries=0 300",
            "DataLoss: tree 1: the categories of a node are",
        ),
        (
            "split_feature=0",
            "split_feature=8",
            "DataLoss: tree 0: feature 8 does not exist; the number",
        ),
        ("tree\nversion", "trees\nversion", "DataLoss: not a LightGBM model: neither text"),
    ] {
        let said = refusal(text, from, to);
        assert!(said.starts_with(says), "{from} -> {to}: {said}");
    }
    for (from, to, says) in [
        (
            "\"missing_type\": \"NaN\"",
            "\"missing_type\": \"x\"",
            "tree 0: \"missing_type\" is \"x\"",
        ),
        ("\"max_feature_idx\": 7", "\"max\": 7", "\"max_feature_idx\" is missing"),
        ("\"tree_structure\"", "\"structure\"", "tree 0: \"tree_structure\" is missing"),
        ("\"split_feature\"", "\"x\"", "tree 0: a node has no \"split_feature\""),
    ] {
        let said = refusal("4.7_regression.json", from, to);
        assert!(said.starts_with(&format!("DataLoss: {says}")), "{from} -> {to}: {said}");
    }
    let large =
        refusal("2.2_categories.json", "\"threshold\": \"", "\"threshold\": \"4000000000||");
    assert!(large.starts_with("Unimplemented: tree "), "{large}");
    assert!(large.ends_with(": the category sets of the model are too large"), "{large}");
}

/// A tree of a hundred thousand levels needs no recursion.
#[test]
fn deep_trees_are_read() {
    let depth = 100_000;
    let mut text = String::from(
        r#"{"name":"tree","num_class":1,"max_feature_idx":0,"tree_info":[{"tree_structure":"#,
    );
    for _ in 0..depth {
        text.push_str(
            r#"{"split_feature":0,"threshold":0,"left_child":{"leaf_value":1},"right_child":"#,
        );
    }
    text.push_str(r#"{"leaf_value":2}"#);
    text.push_str(&"}".repeat(depth));
    text.push_str("}]}");
    let model = read_file(text.into_bytes()).expect("a model");
    let mut result = aligned_vec(0);
    model.predict(&[1.0, -1.0], &mut result);
    assert_eq!(result.as_slice(), [2.0, 1.0]);
}

/// LightGBM 3.2 writes no coefficients of linear trees to JSON, and nothing else says that a tree is linear:
/// such a file is served as the constant leaves that it has, with a warning.
#[test]
fn json_that_may_lack_coefficients_is_warned_of() {
    let may_lack = |path: &Path| !read(path).unwrap_or_else(|e| panic!("{e}")).warnings.is_empty();
    let linear = test_data("reports/tabular-19-lightgbm-3.2-json-linear");
    assert!(may_lack(&linear));
    for file in fs::read_dir(made("")).expect("a folder") {
        let path = file.expect("a file").path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.ends_with(".json") && name.starts_with(char::is_numeric) {
            let text = fs::read_to_string(&path).expect("readable");
            let is_old = text.contains(r#""version": "v3""#) && !text.contains("leaf_const");
            assert_eq!(may_lack(&path), is_old, "{name}");
        }
    }
}
