//! Models of every kind, damaged ones, and hostile requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::format::read_file;
use super::*;
use tensorserve_platform::{
    Completeness, Executable, LoadOptions, Loaded, ModelLoader, ModelPath, RunOptions,
};
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor, aligned_vec};
use tensorserve_testing::{Random, test_data};

/// The numbers of a row; its categories are in a file of their own.
const NUMBERS: usize = 4;

/// Rows that are predicted together.
const ROWS: usize = 1000;

fn made(file: &str) -> std::path::PathBuf {
    test_data("platforms/catboost/made").join(file)
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
    /// The labels of a classifier as Python shows them, and for each row the digit of its label's index.
    labels: Option<Vec<String>>,
    /// Whether the numbers are probabilities.
    is_classifier: bool,
    predicted: Option<String>,
}

/// The inputs of a model for rows `first` to `end`.
fn inputs(
    loaded: &Loaded,
    rows: &[f64],
    texts: &[Vec<String>],
    first: usize,
    end: usize,
) -> Vec<Tensor> {
    let count = end - first;
    let rows = &rows[first * NUMBERS..end * NUMBERS];
    let specs = &loaded.signatures[0].inputs;
    let mut tensors = Vec::new();
    for spec in specs {
        if spec.alias == "data" {
            let mut all = aligned_vec(rows.len());
            all.extend_from_slice(rows);
            let shape = Shape::new(&[count as i64, NUMBERS as i64]).expect("a shape");
            tensors.push(Tensor::from_vec(shape, all).expect("a tensor"));
            continue;
        }
        // The names are n0, n1, …, c0, c1, …
        let column: usize = spec.alias[1..].parse().expect("a number");
        if spec.alias.starts_with('n') {
            let mut all = aligned_vec(count);
            rows.chunks_exact(NUMBERS).for_each(|row| all.push(row[column]));
            tensors.push(Tensor::from_vec(Shape::vector(count), all).expect("a tensor"));
        } else {
            let mut all = StringsBuilder::default();
            texts[first..end].iter().for_each(|row| all.push(row[column].as_bytes()));
            tensors.push(Tensor::from_strings(Shape::vector(count), all).expect("a tensor"));
        }
    }
    tensors
}

fn run(loaded: &Loaded, inputs: &[Tensor]) -> Vec<Tensor> {
    loaded.executable.run(0, inputs, RunOptions::default()).expect("runs")
}

/// The text of a label as Python shows it.
#[allow(clippy::wildcard_enum_match_arm)]
fn shown(tensor: &Tensor, row: usize) -> String {
    match tensor.dtype() {
        DType::String => {
            let strings: Vec<&[u8]> = tensor.strings().expect("strings").iter().collect();
            String::from_utf8_lossy(strings[row]).into_owned()
        }
        DType::Bool => ["False", "True"][usize::from(tensor.bytes()[row])].to_owned(),
        DType::Double => format!("{:?}", tensor.values::<f64>().expect("doubles")[row]),
        DType::Int64 => tensor.values::<i64>().expect("integers")[row].to_string(),
        other => panic!("{other}"),
    }
}

/// Checks the predictions in `cases.json` of `folder`, which `make_catboost.py` made. Returns the number
/// of cases, and the greatest relative difference.
fn check_cases(folder: &Path) -> (usize, f64) {
    let text = fs::read_to_string(folder.join("cases.json")).expect("cases");
    let cases: BTreeMap<String, Case> = serde_json::from_str(&text).expect("cases");
    let texts = fs::read_to_string(folder.join("texts.json")).expect("texts");
    let texts: Vec<Vec<String>> = serde_json::from_str(&texts).expect("texts");
    let (rows, expected) =
        (doubles(&folder.join("rows.bin")), doubles(&folder.join("expected.bin")));
    let (mut wrong, mut greatest) = (String::new(), 0.0_f64);
    for (name, case) in &cases {
        let loaded = match CATBOOST.load(&folder.join(name), &LoadOptions::default()) {
            Ok(loaded) => loaded,
            Err(error) => {
                let _ = writeln!(wrong, "{error}");
                continue;
            }
        };
        let outputs = run(&loaded, &inputs(&loaded, &rows, &texts, 0, ROWS));
        let numbers = outputs.last().expect("an output");
        let result = numbers.values::<f64>().expect("doubles");
        if numbers.shape().dims() != case.shape {
            let _ = writeln!(wrong, "{name}: {:?}, not {:?}", numbers.shape(), case.shape);
            continue;
        }
        let expected = &expected[case.offset..case.offset + result.len()];
        let mut worst = (0.0_f64, 0);
        for (place, (a, b)) in result.iter().zip(expected).enumerate() {
            let difference = if a.to_bits() == b.to_bits() { 0.0 } else { (a - b).abs() / b.abs() };
            if difference.is_nan() || difference > worst.0 {
                worst = (difference, place);
            }
        }
        greatest = greatest.max(worst.0);
        // The exponential is CatBoost's own, or that of another C library.
        let has_exponential =
            ["poisson", "tweedie", "uncertainty"].contains(&&name[..name.len() - 4]);
        let most = if case.is_classifier || has_exponential { 1e-15 } else { 0.0 };
        if worst.0.is_nan() || worst.0 > most {
            let (a, b) = (result[worst.1], expected[worst.1]);
            let _ =
                writeln!(wrong, "{name}: number {} is {a:e}, not {b:e}: {:e}", worst.1, worst.0);
        }
        let (Some(labels), Some(predicted)) = (&case.labels, &case.predicted) else { continue };
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
    let (cases, greatest) = check_cases(&made(""));
    eprintln!("{cases} cases, greatest relative difference {greatest:e}");
    assert!(cases >= 20, "{cases}");
}

fn data() -> (Vec<f64>, Vec<Vec<String>>) {
    let texts = fs::read_to_string(made("texts.json")).expect("texts");
    (doubles(&made("rows.bin")), serde_json::from_str(&texts).expect("texts"))
}

fn load(path: &Path) -> Loaded {
    CATBOOST.load(path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn batches_of_any_size_are_like_single_rows() {
    let (rows, texts) = data();
    for file in ["ctr_one_hot.cbm", "ctr_depthwise.cbm", "deep.cbm", "multiclass.cbm"] {
        let loaded = load(&made(file));
        let bits = |first: usize, end: usize| {
            let outputs = run(&loaded, &inputs(&loaded, &rows, &texts, first, end));
            let values = outputs.last().expect("an output").values::<f64>().expect("doubles");
            values.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let together = bits(0, ROWS);
        let alone: Vec<u64> = (0..ROWS).flat_map(|row| bits(row, row + 1)).collect();
        assert_eq!(together, alone, "{file}");
        assert_eq!(bits(7, 70), alone[7 * alone.len() / ROWS..70 * alone.len() / ROWS], "{file}");
        assert!(bits(0, 0).is_empty(), "{file}");
    }
}

#[test]
fn models_are_recognised_by_ending_or_by_content() {
    let recognises = |path: &Path| CATBOOST.recognises(&ModelPath::new(path));
    assert!(recognises(&made("rmse.cbm")) && recognises(&made("rmse.json")));
    assert!(recognises(&made("ctr_regression.json")));
    assert!(!recognises(&made("cases.json")));
    assert!(!recognises(&test_data("platforms/xgboost/iris_softprob.json")));
    let folder = tempfile::tempdir().expect("temporary directory");
    assert!(matches!(CATBOOST.check(folder.path()), Completeness::Missing(_)));
    fs::copy(made("rmse.cbm"), folder.path().join("model.bin")).expect("copied");
    assert!(recognises(folder.path()));
    let inspection = CATBOOST.inspect(folder.path(), &LoadOptions::default()).expect("a model");
    assert_eq!(inspection.written_by, "CatBoost 1.2.10");
}

#[test]
fn inputs_and_outputs() {
    let shown = |file: &str| {
        let loaded = load(&made(file));
        let signature = &loaded.signatures[0];
        let all = signature.inputs.iter().chain(&signature.outputs);
        let all = all.map(|spec| {
            let dtype = spec.dtype().expect("known");
            format!("{} {dtype} {:?}", spec.alias, spec.shape.sizes().expect("known"))
        });
        all.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(shown("rmse.cbm"), "data double [-1, 4], predict double [-1]");
    assert_eq!(shown("quantile.cbm"), "data double [-1, 4], predict double [-1, 3]");
    assert_eq!(
        shown("multiclass.json"),
        "data double [-1, 4], predict string [-1], predict_proba double [-1, 3]"
    );
    assert_eq!(
        shown("ctr.cbm"),
        "c0 string [-1], c1 string [-1], c2 string [-1], n0 double [-1], n1 double [-1], n2 double \
         [-1], n3 double [-1], predict int64 [-1], predict_proba double [-1, 2]"
    );
    let signature = &load(&made("ctr.cbm")).signatures[0];
    let names: Vec<&str> = signature.defaults.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["n0", "n1", "n2", "n3"], "a missing number has a default");
}

#[test]
fn requests_of_another_shape_are_refused() {
    let (rows, texts) = data();
    let loaded = load(&made("rmse.cbm"));
    let fails = |loaded: &Loaded, inputs: &[Tensor]| {
        let error = loaded.executable.run(0, inputs, RunOptions::default()).expect_err("wrong");
        assert_eq!(error.code(), Code::InvalidArgument);
        error.message().to_owned()
    };
    let mut short = aligned_vec(3);
    short.extend_from_slice(&[0.0_f64; 3]);
    let short = Tensor::from_vec(Shape::new(&[1, 3]).expect("a shape"), short).expect("a tensor");
    let said = fails(&loaded, &[short]);
    assert_eq!(said, "input \"data\" has 3 values in a row, and the model takes 4");
    let loaded = load(&made("ctr.cbm"));
    let mut uneven = inputs(&loaded, &rows, &texts, 0, 5);
    uneven[1] = inputs(&loaded, &rows, &texts, 0, 4)[1].clone();
    let said = fails(&loaded, &uneven);
    assert_eq!(said, "input \"c1\" has 4 values where another has 5: send one value for each row");
}

/// Reads `bytes` as a model; if it is one, it must run.
fn read_or_refuse(bytes: &[u8]) {
    let Ok(model) = read_file(bytes) else { return };
    let Ok(signature) = model.signature() else { return };
    let mut tensors = Vec::new();
    for spec in &signature.inputs {
        let columns = spec.shape.sizes().and_then(|sizes| sizes.get(1).copied()).unwrap_or(1);
        if columns > 1 << 16 {
            return;
        }
        let dims = if spec.shape.sizes().is_some_and(|s| s.len() == 2) {
            vec![2, columns]
        } else {
            vec![2]
        };
        let shape = Shape::new(&dims).expect("a shape");
        tensors.push(match spec.dtype() {
            Some(DType::String) => {
                let mut texts = StringsBuilder::default();
                texts.push(b"a");
                texts.push(b"");
                Tensor::from_strings(shape, texts).expect("a tensor")
            }
            _ => {
                let mut zeros = aligned_vec(0);
                zeros.resize(2 * usize::try_from(columns).expect("small"), 0.0_f64);
                Tensor::from_vec(shape, zeros).expect("a tensor")
            }
        });
    }
    let _ = model.run(0, &tensors, RunOptions::default());
}

const REAL: [&str; 5] =
    ["ctr.cbm", "lossguide.cbm", "multiclass.cbm", "ctr_regression.json", "lossguide.json"];

#[test]
fn files_cut_short_are_refused() {
    for file in REAL {
        let bytes = fs::read(made(file)).expect("a file");
        for end in (0..bytes.len()).step_by(97) {
            read_or_refuse(&bytes[..end]);
        }
        let error = read_file(&bytes[..bytes.len() / 2]).err().expect("an error");
        assert_eq!(error.code(), Code::DataLoss, "{file}: {error}");
    }
}

#[test]
fn damaged_files_are_refused_or_run() {
    let mut random = Random::seeded(1);
    for file in REAL {
        let bytes = fs::read(made(file)).expect("a file");
        for _ in 0..500 {
            let mut damaged = bytes.clone();
            random.damage(&mut damaged, 3, None);
            read_or_refuse(&damaged);
        }
    }
}

/// The error for a JSON model in which the first `from` is replaced by `to`.
fn refusal(file: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(made(file)).expect("a file");
    assert!(text.contains(from), "{from}");
    let error = read_file(text.replacen(from, to, 1).as_bytes()).err().expect("refused");
    format!("{:?}: {error}", error.code())
}

#[test]
fn errors_name_the_faulty_part() {
    for (file, from, to, says) in [
        ("rmse.json", "\"features_info\"", "\"x\"", "DataLoss: \"features_info\" is missing"),
        ("rmse.json", "\"split_index\":", "\"split_index\":9", "DataLoss: split 9"),
        (
            "rmse.json",
            "\"float_features\"",
            "\"text_features\":[1],\"float_features\"",
            "Unimplemented: the model has \"text_features\", which are not supported",
        ),
        (
            "ctr_regression.json",
            "\"ctr_type\":\"Borders\"",
            "\"ctr_type\":\"x\"",
            "Unimplemented: stat",
        ),
    ] {
        let said = refusal(file, from, to);
        assert!(said.starts_with(says), "{file}: {from} -> {to}: {said}");
    }
    let error = read_file(b"CBM2").err().expect("no model");
    assert_eq!(error.message(), "not a CatBoost model: neither CBM1 nor JSON");
}
