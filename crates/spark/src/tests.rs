//! Models of every supported class, with Spark's predictions for some rows.
//!
//! `tests/data/platforms/spark/make.py` made most of the linear ones with Spark 3.5.8, and `make_pipelines.py`
//! the pipelines with Spark 4.1.

use serde::Deserialize;
use serde_json::{Value, json};

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;

use super::folder::DATA_ENDING;
use super::parquet::ParquetColumns;
use super::*;
use tensorserve_platform::{ModelLoader, RunOptions};
use tensorserve_tensor::{DType, Shape, Signature, StringsBuilder, Tensor, aligned_vec};
use tensorserve_testing::{Random, test_data};

const SAMPLE: &str = "simple-tensorflow-serving/models/mllib_lr_model";

fn rows(rows: &[Vec<f64>]) -> Tensor {
    let width = rows.first().map_or(0, Vec::len);
    let mut values = aligned_vec(rows.len() * width);
    rows.iter().for_each(|row| values.extend_from_slice(row));
    let dims = [rows.len(), width].map(|size| i64::try_from(size).expect("a size"));
    Tensor::from_vec(Shape::new(&dims).expect("a shape"), values).expect("a tensor")
}

fn run(folder: &Evaluated, input: Tensor) -> Result<BTreeMap<String, Vec<f64>>> {
    let outputs = folder.executable.run(0, &[input], RunOptions::default())?;
    let mut named = BTreeMap::new();
    for (spec, tensor) in folder.signatures[0].outputs.iter().zip(&outputs) {
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
        let model = open(&folder.join(&name));
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
    assert!(SPARK.recognises(&ModelPath::new(&folder)));
    assert!(matches!(SPARK.check(&folder), Completeness::Complete));
    let model = open(&folder).expect("a model");
    assert_eq!(model.written_by, "Spark 2.3.2");
    assert_eq!(model.signatures[0].inputs[0].shape.sizes(), Some(vec![-1, 692]));

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
    let model = open(&test_data(SAMPLE)).expect("a model");
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

/// Writes the files of a model, whose paths are relative to its folder.
fn write_model(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (path, content) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, content).expect("written");
    }
}

/// A model of these stages, each with its metadata; they have no tables.
fn pipeline_of(folder: &Path, stages: &[Value]) {
    let mut files = BTreeMap::new();
    let class = "org.apache.spark.ml.PipelineModel";
    files.insert("metadata/part-00000".to_owned(), json!({ "class": class }).to_string());
    for (at, stage) in stages.iter().enumerate() {
        files.insert(format!("stages/{at}_s/metadata/part-00000"), stage.to_string());
    }
    let files = files.into_iter().map(|(path, text)| (path, text.into_bytes()));
    write_model(folder, &files.collect());
}

fn stage(class: &str, parameters: &Value) -> Value {
    json!({ "class": format!("org.apache.spark.ml.{class}"), "paramMap": parameters })
}

/// The error for a pipeline of these stages.
fn refusal(stages: &[Value]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    pipeline_of(folder.path(), stages);
    open(folder.path()).err().expect("refused").to_string()
}

#[test]
fn what_is_not_supported_is_refused_by_name_with_the_way_on() {
    let sql = stage("feature.SQLTransformer", &json!({ "statement": "SELECT 1" }));
    let error = refusal(&[sql]);
    assert!(error.contains("org.apache.spark.ml.feature.SQLTransformer"), "{error}");
    assert!(error.contains("compute these columns before the request"), "{error}");
    let foreign = json!({ "class": "ml.dmlc.xgboost4j.scala.spark.XGBoostClassificationModel" });
    assert!(refusal(&[foreign]).contains("export its model in the format of its library"));
    let pattern = json!({ "inputCol": "t", "outputCol": "w", "pattern": "(?<=a)b" });
    let error = refusal(&[stage("feature.RegexTokenizer", &pattern)]);
    assert!(error.contains("\"(?<=a)b\"") && error.contains("look-around"), "{error}");
    let columns = json!({ "inputCol": "words", "outputCol": "counts" });
    let error = refusal(&[stage("feature.HashingTF", &columns)]);
    assert!(error.contains("put the tokenizer into the pipeline"), "{error}");
    let encoder = stage("feature.OneHotEncoder", &json!({ "inputCol": "i", "outputCol": "v" }));
    assert!(refusal(&[encoder]).contains("Spark 2's OneHotEncoder of column \"i\""));
    let columns = json!({ "inputCol": "v", "outputCol": "n" });
    let error = refusal(&[stage("feature.Normalizer", &columns)]);
    assert!(error.contains("put a VectorSizeHint into the pipeline"), "{error}");
}

/// The JSON in a compressed file.
fn gzip_json(name: &str) -> Value {
    let file = fs::File::open(test_data("platforms/spark").join(name)).expect("a file");
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("text");
    serde_json::from_str(&text).expect("JSON")
}

/// The files of a model, whose bytes are the characters of texts.
fn files_of(model: &Value) -> BTreeMap<String, Vec<u8>> {
    let bytes = |text: &Value| {
        let text = text.as_str().expect("a text");
        text.chars().map(|c| u8::try_from(u32::from(c)).expect("a byte")).collect()
    };
    let files = model.as_object().expect("files").iter();
    files.map(|(path, content)| (path.clone(), bytes(content))).collect()
}

/// The models of `pipelines.json.gz`.
fn pipelines() -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
    let models = gzip_json("pipelines.json.gz");
    let models = models.as_object().expect("models").iter();
    models.map(|(name, files)| (name.clone(), files_of(files))).collect()
}

fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().expect("a number"),
        other @ Value::Null
        | other @ Value::Bool(_)
        | other @ Value::Number(_)
        | other @ Value::Array(_)
        | other @ Value::Object(_) => other.as_f64().unwrap_or(f64::NAN),
    }
}

/// The column `name` of rows, for an input of this dtype.
fn input_of(columns: &Value, name: &str, dtype: DType) -> Tensor {
    let column = columns[name].as_array().unwrap_or_else(|| panic!("no column {name}"));
    if dtype == DType::String {
        let mut values = StringsBuilder::default();
        for value in column {
            // The texts of numbers are those of Java, where Spark takes them for categories.
            let text = match (value.as_f64(), value.as_str()) {
                (Some(number), _) => format!("{number:?}"),
                (None, Some("nan")) | (None, None) => String::new(),
                (None, Some(text)) => text.to_owned(),
            };
            values.push(text.as_bytes());
        }
        return Tensor::from_strings(Shape::vector(column.len()), values).expect("a tensor");
    }
    let mut values = aligned_vec(column.len());
    let mut width = None;
    for value in column {
        match value.as_array() {
            None => values.push(number(value)),
            Some(elements) => {
                width = Some(elements.len());
                elements.iter().for_each(|element| values.push(number(element)));
            }
        }
    }
    let dims: Vec<i64> = std::iter::once(column.len())
        .chain(width)
        .map(|size| i64::try_from(size).expect("a size"))
        .collect();
    Tensor::from_vec(Shape::new(&dims).expect("a shape"), values).expect("a tensor")
}

/// The values of an output as JSON, of each row one.
fn output_of(tensor: &Tensor) -> Vec<Value> {
    let rows = tensor.rows().expect("rows");
    if let Some(strings) = tensor.strings() {
        return strings.iter().map(|text| json!(String::from_utf8_lossy(text))).collect();
    }
    if let Some(integers) = tensor.values::<i32>() {
        return integers.iter().map(|integer| json!(f64::from(*integer))).collect();
    }
    let values = tensor.values::<f64>().expect("doubles");
    let width = values.len() / rows.max(1);
    let as_json = |value: &f64| match value.is_finite() {
        true => json!(value),
        false => json!(value.to_string()),
    };
    let row = |row: &[f64]| match tensor.shape().dims().len() {
        1 => as_json(&row[0]),
        _ => row.iter().map(as_json).collect(),
    };
    values.chunks_exact(width).map(row).collect()
}

/// The greatest difference of a value from the expected one, relative to that. Rows that Spark drops have
/// no prediction.
fn difference(got: &Value, expected: &Value) -> f64 {
    match expected {
        Value::Null => match got {
            Value::String(text) if text.is_empty() || text == "NaN" => 0.0,
            Value::Array(values) if values.iter().all(|value| value == "NaN") => 0.0,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => f64::INFINITY,
        },
        Value::Array(values) => {
            let got = got.as_array().expect("a list");
            assert_eq!(got.len(), values.len());
            got.iter().zip(values).map(|(got, value)| difference(got, value)).fold(0.0, f64::max)
        }
        Value::String(text) if text.parse::<f64>().is_err() => {
            if got == expected {
                0.0
            } else {
                f64::INFINITY
            }
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            let (got, expected) = (number(got), number(expected));
            let is_same = got == expected || got.is_nan() && expected.is_nan();
            let difference = (got - expected).abs() / expected.abs().max(1e-9);
            match is_same {
                true => 0.0,
                false if difference.is_nan() => f64::INFINITY,
                false => difference,
            }
        }
    }
}

/// How far models may be from Spark: exponentials, and sums in another order.
const TOLERANCE: f64 = 1e-12;

/// Loads a model, runs it on rows, and compares its outputs with the expected ones; what differs, in
/// words.
fn compare(
    files: &BTreeMap<String, Vec<u8>>,
    columns: &Value,
    expected: &Value,
) -> Result<Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    write_model(folder.path(), files);
    assert!(SPARK.recognises(&ModelPath::new(folder.path())));
    assert!(matches!(SPARK.check(folder.path()), Completeness::Complete));
    let model = open(folder.path())?;
    let signature = &model.signatures[0];
    let inputs = signature.inputs.iter();
    let inputs: Vec<Tensor> =
        inputs.map(|spec| input_of(columns, &spec.alias, spec.dtype().expect("a dtype"))).collect();
    let outputs = model.executable.run(0, &inputs, RunOptions::default())?;
    let names = signature.outputs.iter().map(|spec| &*spec.alias);
    let outputs: HashMap<&str, Vec<Value>> = names.zip(outputs.iter().map(output_of)).collect();
    let mut failed = Vec::new();
    for (column, expected) in expected.as_object().expect("outputs") {
        let Some(got) = outputs.get(&**column) else {
            failed.push(format!("no output {column}"));
            continue;
        };
        for (row, expected) in expected.as_array().expect("rows").iter().enumerate() {
            let (got, difference) = (&got[row], difference(&got[row], expected));
            if difference > TOLERANCE {
                failed.push(format!("{column} row {row}: {got}, not {expected}: {difference:.1e}"));
                break;
            }
        }
    }
    Ok(failed)
}

/// The failures of models, in words.
fn all_failures<'m>(
    models: impl Iterator<Item = (&'m String, BTreeMap<String, Vec<u8>>, &'m Value, &'m Value)>,
) -> String {
    let mut failed = Vec::new();
    for (name, files, columns, expected) in models {
        match compare(&files, columns, expected) {
            Ok(differences) => {
                failed.extend(differences.iter().map(|text| format!("{name}: {text}")));
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    failed.join("\n")
}

#[test]
fn pipelines_predict_what_spark_predicts() {
    let (rows, expected) = (gzip_json("rows.json.gz"), gzip_json("expected_pipelines.json.gz"));
    let models = pipelines();
    assert_eq!(models.len(), 37);
    let cases = models.iter().map(|(name, files)| {
        let case = &expected[name];
        let columns = &rows[case["rows"].as_str().expect("rows")];
        (name, files.clone(), columns, &case["outputs"])
    });
    assert_eq!(all_failures(cases), "");
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
            ParquetColumns::read(bytes.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(columns.rows, 1);
        assert_eq!(columns.list("v.values"), values, "{name}");
        assert_eq!(columns.list("flags"), flags, "{name}");
        assert_eq!(columns.number("v.size"), None, "{name}");
        assert_eq!(columns.list("v.indices"), [0.0; 0], "{name}");
        assert_eq!(columns.number("yes"), Some(1.0), "{name}");
        assert_eq!(columns.number("half"), Some(0.5), "{name}");
        assert_eq!(columns.number("count"), Some(1_099_511_627_776.0), "{name}");
        assert!(columns.has("v") && !columns.has("w"), "{name}");
        for length in (0..bytes.len()).step_by(7) {
            assert!(
                ParquetColumns::read(bytes[..length].to_vec()).is_err(),
                "{name} cut at {length}"
            );
        }
    }
    let gzip = fs::read(folder.join("gzip.parquet")).expect("a file");
    let columns = ParquetColumns::read(gzip.clone()).expect("read");
    assert_eq!(columns.rows, 1);
    for length in (0..gzip.len()).step_by(7) {
        assert!(ParquetColumns::read(gzip[..length].to_vec()).is_err(), "gzip cut at {length}");
    }
}

#[test]
fn texts_count_wherever_a_column_has_them() {
    // 200 texts of a million letters, of which the file has one: a model would have 200 MB.
    let folder = test_data("platforms/spark/parquet");
    let bytes = fs::read(folder.join("long_texts.parquet")).expect("a file");
    assert!(bytes.len() < 1000, "{}", bytes.len());
    let error = ParquetColumns::read(bytes).expect_err("too large");
    assert!(error.message().contains("more values than a model may have"), "{error}");
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
        let file = data_file(folder);
        for length in 0..file.len() {
            assert!(
                ParquetColumns::read(file[..length].to_vec()).is_err(),
                "{folder} cut at {length}"
            );
        }
        for _ in 0..4_000 {
            let mut bytes = file.clone();
            random.damage(&mut bytes, 3, None);
            drop(ParquetColumns::read(bytes));
        }
    }
}

/// Zeros for each input, two rows.
fn zeros(signature: &Signature) -> Vec<Tensor> {
    let inputs = signature.inputs.iter().map(|spec| {
        if spec.dtype() == Some(DType::String) {
            let mut values = StringsBuilder::default();
            values.push(b"a b");
            values.push(b"");
            return Tensor::from_strings(Shape::vector(2), values).expect("a tensor");
        }
        let sizes = spec.shape.sizes().expect("sizes");
        let dims: Vec<i64> = sizes.iter().map(|size| if *size < 0 { 2 } else { *size }).collect();
        let shape = Shape::new(&dims).expect("a shape");
        let mut values = aligned_vec(shape.elements().expect("few"));
        values.resize(shape.elements().expect("few"), 0.0);
        Tensor::from_vec(shape, values).expect("a tensor")
    });
    inputs.collect()
}

#[test]
fn damaged_pipelines_are_refused_or_answer() {
    let mut random = Random::seeded(11);
    for (name, files) in pipelines() {
        let folder = tempfile::tempdir().expect("a folder");
        write_model(folder.path(), &files);
        // Some files of a formula hold nothing but names.
        let is_used =
            |path: &&String| name != "formula" || path.contains("lr_") || path.contains("Logistic");
        let paths: Vec<&String> = files.keys().filter(is_used).collect();
        for round in 0..120 {
            let path = paths[random.below(paths.len())];
            let mut bytes = files[path].clone();
            match round % 4 {
                0 => bytes.truncate(random.below(bytes.len())),
                _ => random.damage(&mut bytes, 3, None),
            }
            fs::write(folder.path().join(path), &bytes).expect("written");
            let is_cut = bytes.len() < files[path].len();
            match open(folder.path()) {
                Ok(model) => {
                    assert!(!is_cut || !path.ends_with(".parquet"), "{name}: {path} cut");
                    let inputs = zeros(&model.signatures[0]);
                    drop(model.executable.run(0, &inputs, RunOptions::default()));
                }
                Err(error) => assert!(!error.message().is_empty()),
            }
            fs::write(folder.path().join(path), &files[path]).expect("written");
        }
        let path = paths[random.below(paths.len())];
        fs::remove_file(folder.path().join(path)).expect("removed");
        // It may still be written.
        let check = SPARK.check(folder.path());
        assert!(!matches!(check, Completeness::Broken(_)), "{name} without {path}");
        assert!(open(folder.path()).is_err(), "{name} without {path}");
    }
}

#[test]
fn invalid_values_are_refused_with_their_column_and_row() {
    let models = pipelines();
    let folder = tempfile::tempdir().expect("a folder");
    write_model(folder.path(), &models["poisson_robust"]);
    let model = open(folder.path()).expect("a model");
    let rows = gzip_json("rows.json.gz");
    let run = |rows: &Value| {
        let inputs = model.signatures[0].inputs.iter();
        let inputs: Vec<Tensor> =
            inputs.map(|spec| input_of(rows, &spec.alias, DType::Double)).collect();
        model.executable.run(0, &inputs, RunOptions::default())
    };
    run(&rows["clean"]).expect("predictions");
    let mut with_missing = rows["clean"].clone();
    with_missing["n"][500] = json!("NaN");
    let error = run(&with_missing).expect_err("refused");
    assert_eq!(error.code(), Code::InvalidArgument);
    let message = error.to_string();
    assert!(message.contains("row 500: column \"n\" is missing or NaN"), "{message}");
    assert!(message.contains("handleInvalid=\"error\""), "{message}");
}
