//! Scores of existing and synthetic files.
//!
//! `tests/data/platforms/pmml/make.py` made most files, scored random rows with pypmml 1.5.8, some
//! with missing values, and wrote the results to `expected.json`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor, TensorSpec, aligned_vec};
use tensorserve_testing::{Random, test_data};

const IRIS: &str = "simple-tensorflow-serving/models/pmml_iris/DecisionTreeIris.pmml";

fn text(name: &str) -> String {
    std::fs::read_to_string(test_data("platforms/pmml").join(name)).expect(name)
}

fn doubles(values: &[f64]) -> Tensor {
    let mut all = aligned_vec(values.len());
    all.extend_from_slice(values);
    Tensor::from_vec(Shape::vector(values.len()), all).expect("a tensor")
}

fn strings(values: &[&str]) -> Tensor {
    let mut all = StringsBuilder::default();
    values.iter().for_each(|value| all.push(value.as_bytes()));
    Tensor::from_strings(Shape::vector(values.len()), all).expect("a tensor")
}

type Row = serde_json::Map<String, Value>;

/// The input `spec` of these rows: all of its values.
fn column(spec: &TensorSpec, rows: &[&Row]) -> Tensor {
    let values = rows.iter().map(|row| row.get(&spec.alias));
    if spec.dtype() == Some(DType::String) {
        let texts: Vec<&str> =
            values.map(|value| value.and_then(Value::as_str).unwrap_or_default()).collect();
        return strings(&texts);
    }
    let numbers: Vec<f64> =
        values.map(|value| value.and_then(Value::as_f64).unwrap_or(f64::NAN)).collect();
    doubles(&numbers)
}

/// Value number `row` of an output, missing ones as null.
fn value(tensor: &Tensor, row: usize) -> Value {
    match tensor.strings() {
        Some(strings) => match strings.iter().nth(row).expect("a row") {
            b"" => Value::Null,
            text => Value::from(String::from_utf8_lossy(text).into_owned()),
        },
        None => Value::from(tensor.values::<f64>().expect("doubles")[row]),
    }
}

pub(super) fn same(got: &Value, expected: &Value) -> bool {
    match (got.as_f64(), expected.as_f64()) {
        (Some(got), Some(expected)) => {
            (got - expected).abs() <= 1e-9 * expected.abs().max(1e-3)
                || got.to_bits() == expected.to_bits()
        }
        _ => got == expected,
    }
}

#[test]
fn rows_score_as_the_reference_scores_them() {
    let expected = text("expected.json");
    let expected: BTreeMap<String, Vec<(Row, Row)>> =
        serde_json::from_str(&expected).expect("the expected scores");
    let mut faults = Vec::new();
    for (name, cases) in &expected {
        let CompiledPmml { signature, scorer, .. } = match compile(&text(&format!("{name}.pmml"))) {
            Ok(file) => file,
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        let rows: Vec<&Row> = cases.iter().map(|(row, _)| row).collect();
        let inputs: Vec<Tensor> = signature.inputs.iter().map(|spec| column(spec, &rows)).collect();
        let outputs = scorer.run(0, &inputs, RunOptions::default()).expect("scores");
        let (mut wrong, mut compared) = (0, BTreeSet::new());
        for (index, (row, answer)) in cases.iter().enumerate() {
            for (alias, wanted) in answer {
                let at = signature.outputs.iter().position(|spec| spec.alias == *alias);
                // pypmml adds outputs that the file does not declare.
                let Some(at) = at else { continue };
                compared.insert(alias);
                let got = value(&outputs[at], index);
                if !same(&got, wanted) {
                    wrong += 1;
                    if wrong < 8 {
                        faults.push(format!("{name} {row:?}: {alias} is {got}, not {wanted}"));
                    }
                }
            }
        }
        assert!(compared.len() + 1 >= signature.outputs.len(), "{name}: {compared:?}");
    }
    assert!(faults.is_empty(), "{}\n{}", faults.len(), faults.join("\n"));
}

/// The outputs for one row of `inputs`, by name.
pub(super) fn predict(file: &str, inputs: &[(&str, Value)]) -> BTreeMap<String, Value> {
    let CompiledPmml { signature, scorer, .. } =
        compile(file).unwrap_or_else(|error| panic!("{error}"));
    let row: Row = inputs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let tensors: Vec<Tensor> = signature.inputs.iter().map(|spec| column(spec, &[&row])).collect();
    let outputs = scorer.run(0, &tensors, RunOptions::default()).expect("scores");
    let named = signature.outputs.iter().zip(&outputs);
    named.map(|(spec, tensor)| (spec.alias.clone(), value(tensor, 0))).collect()
}

fn iris(values: [f64; 4]) -> [(&'static str, Value); 4] {
    let names = ["sepal_length", "sepal_width", "petal_length", "petal_width"];
    std::array::from_fn(|at| (names[at], Value::from(values[at])))
}

#[test]
fn an_output_without_a_model_of_its_own_is_the_target() {
    let file = std::fs::read_to_string(test_data(IRIS)).expect("the file");
    let names = ["Sepal_Length", "Sepal_Width", "Petal_Length", "Petal_Width"];
    let row = |values: [f64; 4]| -> Vec<(&str, Value)> {
        names.iter().zip(values).map(|(name, value)| (*name, Value::from(value))).collect()
    };
    let all = predict(&file, &row([5.1, 3.5, 1.4, 0.2]));
    assert_eq!(all["Species"], "setosa");
    assert_eq!(all["Probability_setosa"], 1.0);
    assert_eq!(all["Probability_versicolor"], 0.0);
    assert_eq!(all["Node_Id"], "2");
    assert_eq!(all.len(), 5);

    // Outside of the interval that the data dictionary allows: no prediction.
    let all = predict(&file, &row([50.0, 3.5, 1.4, 0.2]));
    assert_eq!((&all["Species"], &all["Probability_setosa"]), (&Value::Null, &Value::Null));
}

#[test]
fn the_samples_score_as_pypmml_scored_them() {
    // The predictions of pypmml 1.5.8 for the two hand-written files.
    let rows = [[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.5], [6.3, 3.3, 6.0, 2.5]];
    let tree = [
        ("setosa", [1.0, 0.0, 0.0]),
        ("versicolor", [0.0, 0.9074074074074074, 0.09259259259259259]),
        ("virginica", [0.0, 0.021739130434782608, 0.9782608695652174]),
    ];
    let softmax = [
        ("setosa", [0.982084291157315, 0.017915694938530225, 1.3904154756845337e-08]),
        ("versicolor", [0.005530108568606273, 0.8199205521979231, 0.17454933923347069]),
        ("virginica", [9.55331400216048e-07, 0.0041977460994355046, 0.9958012985691642]),
    ];
    let files = [
        ("iris_tree.pmml", "predicted_species", tree),
        ("iris_softmax_regression.pmml", "species", softmax),
    ];
    for (name, target, expected) in files {
        for (row, (class, probabilities)) in rows.into_iter().zip(expected) {
            let all = predict(&text(name), &iris(row));
            assert_eq!(all[target], class);
            assert_eq!(all["species"], class);
            for (class, expected) in ["setosa", "versicolor", "virginica"].iter().zip(probabilities)
            {
                let got = &all[&format!("probability_{class}")];
                assert!(same(got, &Value::from(expected)), "{name} {class}: {got} {expected}");
            }
        }
    }
}

/// A file with a tree of one predicate, which predicts 1 where it is true, 0 where it is false, and
/// nothing where it is unknown.
pub(super) fn of_predicate(predicate: &str) -> String {
    format!(
        r#"<PMML version="4.4"><DataDictionary>
        <DataField name="x" optype="continuous" dataType="double"/>
        <DataField name="z" optype="continuous" dataType="double"/>
        <DataField name="c" optype="categorical" dataType="string"/>
        <DataField name="b" optype="categorical" dataType="boolean"/></DataDictionary>
        <TreeModel functionName="regression" missingValueStrategy="nullPrediction"><MiningSchema>
        <MiningField name="x"/><MiningField name="z"/><MiningField name="c"/><MiningField name="b"/>
        </MiningSchema><Node><True/><Node score="1">{predicate}</Node>
        <Node score="0"><True/></Node></Node></TreeModel></PMML>"#
    )
}

/// Checks the truth value of a predicate for one row.
pub(super) fn assert_truth(predicate: &str, inputs: &[(&str, Value)], expected: &Value) {
    let all = predict(&of_predicate(predicate), inputs);
    assert_eq!(&all["predicted"], expected, "{predicate} {inputs:?}");
}

fn x(value: f64) -> [(&'static str, Value); 2] {
    [("x", Value::from(value)), ("c", Value::from("odd"))]
}

fn x_and_z(x: f64, z: f64) -> [(&'static str, Value); 2] {
    [("x", Value::from(x)), ("z", Value::from(z))]
}

/// A predicate that combines x > 1 with z > 1.
fn compound(operator: &str) -> String {
    format!(
        r#"<CompoundPredicate booleanOperator="{operator}">
        <SimplePredicate field="x" operator="greaterThan" value="1"/>
        <SimplePredicate field="z" operator="greaterThan" value="1"/></CompoundPredicate>"#
    )
}

fn in_set(operator: &str) -> String {
    format!(
        r#"<SimpleSetPredicate field="c" booleanOperator="{operator}"><Array type="string" n="2">"a b" odd</Array></SimpleSetPredicate>"#
    )
}

#[test]
fn predicates_have_three_truth_values() {
    let (yes, no, unknown) = (Value::from(1.0), Value::from(0.0), Value::Null);
    assert_truth(&compound("xor"), &x_and_z(2.0, 2.0), &no);
    assert_truth(&compound("xor"), &x_and_z(2.0, 0.0), &yes);
    assert_truth(&compound("xor"), &x(2.0), &unknown);
    assert_truth(&compound("and"), &x(2.0), &unknown);
    assert_truth(&compound("and"), &x(0.0), &no);
    assert_truth(&compound("or"), &x(2.0), &yes);
    assert_truth(&compound("or"), &x(0.0), &unknown);
    assert_truth(&compound("surrogate"), &[("z", Value::from(2.0))], &yes);
    assert_truth(&compound("surrogate"), &[], &unknown);
    assert_truth(&in_set("isIn"), &x(0.0), &yes);
    assert_truth(&in_set("isNotIn"), &x(0.0), &no);
    assert_truth(&in_set("isNotIn"), &[("c", Value::from("other"))], &yes);
    assert_truth(&in_set("isIn"), &[("c", Value::from("a b"))], &yes);
    assert_truth(&in_set("isIn"), &[], &unknown);
    let flag = r#"<SimplePredicate field="b" operator="equal" value="true"/>"#;
    assert_truth(flag, &[("b", Value::from("true"))], &yes);
    assert_truth(flag, &[("b", Value::from("false"))], &no);
    // A value that is neither of the two is invalid, and has no prediction.
    assert_truth(flag, &[("b", Value::from("maybe"))], &unknown);
    let missing = r#"<SimplePredicate field="x" operator="isMissing"/>"#;
    assert_truth(missing, &[], &yes);
    assert_truth(missing, &x(1.0), &no);
}

#[test]
fn a_general_model_of_two_classes_links_its_sum_to_one_of_them() {
    // A logistic regression as R exports it.
    let file = r#"<PMML version="4.4"><DataDictionary>
        <DataField name="x" optype="continuous" dataType="double"/>
        <DataField name="y" optype="categorical" dataType="integer"/></DataDictionary>
        <GeneralRegressionModel functionName="classification" modelType="generalizedLinear"
        linkFunction="logit" targetReferenceCategory="0"><MiningSchema><MiningField name="x"/>
        <MiningField name="y" usageType="target"/></MiningSchema><ParameterList>
        <Parameter name="p0"/><Parameter name="p1"/></ParameterList><CovariateList>
        <Predictor name="x"/></CovariateList><PPMatrix>
        <PPCell value="1" predictorName="x" parameterName="p1"/></PPMatrix><ParamMatrix>
        <PCell targetCategory="1" parameterName="p0" beta="0.5"/>
        <PCell targetCategory="1" parameterName="p1" beta="-2"/></ParamMatrix>
        </GeneralRegressionModel></PMML>"#;
    let all = predict(file, &[("x", Value::from(1.0))]);
    let expected = 1.0 / (1.0 + 1.5f64.exp());
    assert!(same(&all["probability_1"], &Value::from(expected)), "{all:?}");
    assert!(same(&all["probability_0"], &Value::from(1.0 - expected)), "{all:?}");
    assert_eq!(all["y"], 0.0);
    assert_eq!(predict(file, &[("x", Value::from(0.0))])["y"], 1.0);
    assert_eq!(predict(file, &[])["y"], Value::Null);
}

#[test]
fn inputs_of_any_shape_are_answered_or_refused() {
    let CompiledPmml { signature, scorer, .. } = compile(&text("tree_none.pmml")).expect("a model");
    let run = |inputs: &[Tensor]| scorer.run(0, inputs, RunOptions::default());
    let names: Vec<&str> = signature.inputs.iter().map(|spec| spec.alias.as_str()).collect();
    assert_eq!(names, ["colour", "n", "size", "x", "z"]);
    let defaults: Vec<Tensor> = signature.defaults.iter().map(|(_, t)| t.clone()).collect();
    assert_eq!(run(&defaults).expect("a row")[0].rows(), Some(1));

    // Defaults stand for any number of rows, also for none.
    for count in [0, 1, 3] {
        let mut inputs = defaults.clone();
        inputs[3] = doubles(&vec![0.5; count]);
        assert_eq!(run(&inputs).expect("rows")[0].rows(), Some(count));
    }
    let with = |at: usize, tensor: Tensor| {
        let mut inputs = vec![
            strings(&["red", "red"]),
            doubles(&[1.0, 2.0]),
            strings(&["big", "big"]),
            doubles(&[1.0, 2.0]),
            doubles(&[1.0, 2.0]),
        ];
        inputs[at] = tensor;
        run(&inputs)
    };
    let two = Shape::new(&[2, 1]).expect("a shape");
    let mut values = aligned_vec(2);
    values.extend_from_slice(&[0.5, 0.5]);
    let column = Tensor::from_vec(two, values).expect("a tensor");
    assert_eq!(with(3, column).expect("rows")[0].rows(), Some(2));
    let error = with(3, doubles(&[1.0; 3])).expect_err("three rows").to_string();
    assert!(error.contains("\"x\" has 3 values where another has 2"), "{error}");
    // A value of its own does not stand for other rows.
    let error = with(3, doubles(&[1.0])).expect_err("one row").to_string();
    assert!(error.contains("\"x\" has 1 values where another has 2"), "{error}");
    assert_eq!(with(3, doubles(&[f64::NAN])).expect("rows")[0].rows(), Some(2));
    let error = with(3, strings(&["1", "2"])).expect_err("strings").to_string();
    assert!(error.contains("\"x\" has the dtype string, and the model takes double"), "{error}");
    let mut values = aligned_vec(4);
    values.extend_from_slice(&[0.5; 4]);
    let square = Tensor::from_vec(Shape::new(&[2, 2]).expect("a shape"), values);
    let error = with(3, square.expect("a tensor")).expect_err("a square").to_string();
    assert!(error.contains("shape [2,2]"), "{error}");
}

/// Checks that a file is refused as not supported, with `text` in the error.
fn assert_unsupported(file: &str, text: &str) {
    let error = compile(file).err().expect("refused");
    assert_eq!(error.code(), Code::Unimplemented, "{error}");
    assert!(error.message().contains(text), "{error}");
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for kind in [
        "AssociationModel",
        "BaselineModel",
        "BayesianNetworkModel",
        "GaussianProcessModel",
        "SequenceModel",
        "TextModel",
        "TimeSeriesModel",
    ] {
        let file = format!(
            r#"<PMML version="4.2"><DataDictionary/><{kind} functionName="regression"><MiningSchema/></{kind}></PMML>"#
        );
        assert_unsupported(&file, &format!("a model of the kind {kind}"));
        let file = file.replace("\"regression\"", "\"associationRules\"");
        assert_unsupported(&file, &format!("a model of the kind {kind}"));
    }
    let tree = text("tree_none.pmml");
    let strategy = text("tree_number.pmml").replace("\"defaultChild\"", "\"weightedConfidence\"");
    assert_unsupported(&strategy, "this missingValueStrategy for numbers");
    assert_unsupported(&tree.replace("version=\"4.4\"", "version=\"2.1\""), "version \"2.1\"");
    let chain = text("chain.pmml");
    assert_unsupported(
        &chain.replace("modelChain", "selectAll"),
        "multipleModelMethod=\"selectAll\"",
    );
    let functions = text("transformations.pmml");
    assert_unsupported(&functions.replace("\"avg\"", "\"soundex\""), "function=\"soundex\"");
}

/// `inner` within `depth` pairs of `start` and `end`.
fn nested(depth: usize, start: &str, inner: &str, end: &str) -> String {
    format!("{}{inner}{}", start.repeat(depth), end.repeat(depth))
}

#[test]
fn what_is_nested_too_deeply_is_refused() {
    let and = r#"<CompoundPredicate booleanOperator="and">"#;
    let predicates = |depth| of_predicate(&nested(depth, and, "<True/>", "</CompoundPredicate>"));
    let head = r#"<PMML version="4.4"><DataDictionary>
        <DataField name="x" optype="continuous" dataType="double"/></DataDictionary>"#;
    let schema = r#"<MiningSchema><MiningField name="x"/></MiningSchema>"#;
    let table = r#"<RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/></RegressionTable>"#;
    let leaf = |name: &str, local: &str| {
        let table = table.replace("\"x\"", &format!("{name:?}"));
        format!(
            r#"<RegressionModel functionName="regression">{schema}{local}{table}</RegressionModel>"#
        )
    };
    let layer = format!(
        r#"<MiningModel functionName="regression">{schema}<Segmentation multipleModelMethod="sum"><Segment><True/>"#
    );
    let end = "</Segment></Segmentation></MiningModel>";
    let models = |depth| format!("{head}{}</PMML>", nested(depth, &layer, &leaf("x", ""), end));
    let functions = |depth| {
        let field = r#"<FieldRef field="x"/>"#;
        let calls = nested(depth, r#"<Apply function="sqrt">"#, field, "</Apply>");
        let derived = format!(
            r#"<LocalTransformations><DerivedField name="d" dataType="double">{calls}</DerivedField></LocalTransformations>"#
        );
        format!("{head}{}</PMML>", leaf("d", &derived))
    };
    let one = [("x", Value::from(1.0)), ("z", Value::from(1.0))];
    for (fine, expected) in [(predicates(40), 1.0), (models(40), 3.0), (functions(40), 3.0)] {
        assert_eq!(predict(&fine, &one)["predicted"], expected);
    }
    for deep in [predicates(5000), models(5000), functions(5000)] {
        let error = compile(&deep).err().expect("refused");
        assert!(error.message().contains("is nested too deeply"), "{error}");
    }
}

#[test]
fn files_cut_short_or_with_wrong_bytes_are_refused_or_read() {
    let names = [
        "transformations",
        "chain",
        "first",
        "scorecard",
        "treatments",
        "boosted",
        "bayes",
        "functions",
        "general_cox",
        "ordinal_logit",
        "vectors_pairs",
        "vectors_coefficients",
        "nearest_weightedMajorityVote",
        "rules_weightedSum",
        "clusters_affinity",
        "reasons_pointsAbove",
        "anomaly_iforest",
        "anomaly_clusters",
    ];
    let mut random = Random::seeded(7);
    let file = std::fs::read_to_string(test_data(IRIS)).expect("the file");
    for length in 0..file.trim_end().len() {
        assert!(compile(&file[..length]).is_err(), "cut at {length}");
    }
    for name in names {
        let file = text(&format!("{name}.pmml"));
        for length in (0..file.len()).step_by(19) {
            assert!(compile(&file[..length]).is_err(), "{name} cut at {length}");
        }
        for _ in 0..150 {
            let mut bytes = file.clone().into_bytes();
            random.damage(&mut bytes, 3, Some(b" \"<>/=0129azAZ-."));
            let text = String::from_utf8(bytes).expect("text");
            let Ok(CompiledPmml { signature, scorer, .. }) = compile(&text) else { continue };
            let inputs = signature.inputs.iter().map(|spec| match spec.dtype() {
                Some(DType::String) => strings(&["red"]),
                _ => doubles(&[0.5]),
            });
            let inputs: Vec<Tensor> = inputs.collect();
            assert!(scorer.run(0, &inputs, RunOptions::default()).is_ok());
        }
    }
}

/// Names, and a column of values for each.
type Columns = BTreeMap<String, Vec<Value>>;

/// What an evaluator made of rows.
#[derive(serde::Deserialize)]
struct Golden {
    inputs: Columns,
    outputs: Columns,
}

/// The rows of a file of goldens, by the name of the model.
fn goldens(name: &str) -> BTreeMap<String, Golden> {
    let file = test_data("platforms/pmml").join(name);
    let file = flate2::read::GzDecoder::new(std::fs::File::open(file).expect("the file"));
    serde_json::from_reader(file).expect("JSON")
}

/// `tests/data/platforms/pmml/make_more.py` made files, scored 1,000 rows of each with JPMML or
/// PMML4S, and wrote the results to `goldens.json.gz`.
#[test]
fn more_rows_score_as_the_references_score_them() {
    assert_golden(&goldens("goldens.json.gz"));
}

/// `tests/data/platforms/pmml/make_sklearn.py` had sklearn2pmml write files, and scikit-learn predict
/// 1,000 rows of each model.
#[test]
fn models_of_scikit_learn_score_as_scikit_learn_predicts() {
    assert_golden(&goldens("sklearn.json.gz"));
}

fn assert_golden(goldens: &BTreeMap<String, Golden>) {
    let mut faults = Vec::new();
    for (name, golden) in goldens {
        let CompiledPmml { signature, scorer, warnings, .. } =
            compile(&text(&format!("{name}.pmml")))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
        let count = golden.inputs.values().next().map_or(0, Vec::len);
        assert!(count >= 1000, "{name}");
        let rows: Vec<Row> = (0..count)
            .map(|row| golden.inputs.iter().map(|(k, all)| (k.clone(), all[row].clone())).collect())
            .collect();
        let rows: Vec<&Row> = rows.iter().collect();
        let tensors: Vec<Tensor> =
            signature.inputs.iter().map(|spec| column(spec, &rows)).collect();
        let outputs = scorer.run(0, &tensors, RunOptions::default()).expect("scores");
        let before = faults.len();
        for (output, expected) in &golden.outputs {
            let at = signature.outputs.iter().position(|spec| spec.alias == *output);
            let tensor = &outputs[at.unwrap_or_else(|| panic!("{name} has no output {output}"))];
            for (row, expected) in expected.iter().enumerate() {
                let got = value(tensor, row);
                if !near(&got, expected) {
                    faults
                        .push(format!("{name} {:?}: {output} is {got}, not {expected}", rows[row]));
                }
            }
        }
        faults.truncate(before + 3);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether two values are the same, numbers to nine digits.
fn near(got: &Value, expected: &Value) -> bool {
    match (got.as_f64(), expected.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * b.abs().max(1e-6),
        _ => match expected.as_bool() {
            Some(expected) => got.as_str() == Some(if expected { "true" } else { "false" }),
            None => got == expected,
        },
    }
}
