//! Small graphs, one for each kind of operation, and the models of the repository.

use tensorserve_platform::{LoadOptions, ModelLoader};
use tensorserve_proto::tensorflow::attr_value::Value as Attribute;
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{
    AttrValue, ConstantProto, GraphDef, NodeDef, OpList, TensorShapeProto,
};
use tensorserve_tensor::{DType, RowDependence, Signature, TensorSpec};

use super::findings;
use crate::registry::OpRegistry;
use crate::registry::tests::node;

/// A node with attributes.
trait With {
    fn with(self, name: &str, value: Attribute) -> Self;
}

impl With for NodeDef {
    fn with(mut self, name: &str, value: Attribute) -> Self {
        self.attr.insert(name.to_owned(), AttrValue { value: Some(value) });
        self
    }
}

/// A constant vector of integers; a scalar if there is one.
fn ints(name: &str, values: &[i64]) -> NodeDef {
    shaped(name, values, if values.len() == 1 { vec![] } else { vec![values.len()] })
}

/// A constant vector of one integer.
fn one(name: &str, value: i64) -> NodeDef {
    shaped(name, &[value], vec![1])
}

fn shaped(name: &str, values: &[i64], dims: Vec<usize>) -> NodeDef {
    let dim = dims.into_iter().map(|size| Dim { size: size as i64, name: String::new() }).collect();
    let tensor = ConstantProto {
        dtype: 9,
        tensor_shape: Some(TensorShapeProto { dim, unknown_rank: false }),
        int64_val: values.to_vec(),
        ..ConstantProto::default()
    };
    node(name, "Const", &[]).with("value", Attribute::Tensor(tensor))
}

/// A variable of this shape.
fn weights(name: &str, sizes: &[i64]) -> NodeDef {
    let dim = sizes.iter().map(|&size| Dim { size, name: String::new() }).collect();
    let shape = TensorShapeProto { dim, unknown_rank: false };
    node(name, "VariableV2", &[]).with("shape", Attribute::Shape(shape))
}

/// What is found for the tensor `y` of a graph whose input `x` has the shape `[rows] + sizes`.
fn verdict(sizes: &[i64], nodes: Vec<NodeDef>) -> RowDependence {
    let dims = [&[-1], sizes].concat();
    let input = TensorSpec::new("x", DType::Float, &dims);
    let output = TensorSpec::new("y", DType::Float, &[-1]);
    let signature = Signature::only(vec![input], vec![output]);
    let mut all = vec![node("x", "Placeholder", &[])];
    all.extend(nodes);
    let graph = GraphDef { node: all, library: None };
    findings(&signature, &graph, &OpRegistry::new(&OpList::default())).rows
}

#[track_caller]
fn proven(sizes: &[i64], nodes: Vec<NodeDef>) {
    assert_eq!(verdict(sizes, nodes), RowDependence::Proven);
}

#[track_caller]
fn mixed(sizes: &[i64], nodes: Vec<NodeDef>, why: &str) {
    let found = verdict(sizes, nodes);
    let RowDependence::Mixed(finding) = &found else { panic!("{found}") };
    assert!(finding.why.contains(why), "{found}");
}

#[track_caller]
fn unknown(sizes: &[i64], nodes: Vec<NodeDef>) {
    let found = verdict(sizes, nodes);
    assert!(matches!(found, RowDependence::Unknown(_)), "{found}");
}

#[test]
fn elements_stay_in_their_rows() {
    proven(&[4], vec![node("y", "Relu", &["x"])]);
    proven(&[4], vec![weights("b", &[4]), node("y", "AddV2", &["x", "b"])]);
    proven(&[4], vec![node("y", "Mul", &["x", "x"])]);
    // A constant with elements of its own for each row.
    mixed(&[4], vec![weights("b", &[3, 4]), node("y", "AddV2", &["x", "b"])], "constant");
    // A row for each element: x[rows, 1] + x^T[1, rows].
    let transposed = vec![
        ints("perm", &[1, 0]),
        node("t", "Transpose", &["x", "perm"]),
        node("y", "AddV2", &["x", "t"]),
    ];
    mixed(&[1], transposed, "other rows");
}

#[test]
fn an_operation_without_a_rule_is_unknown_and_named() {
    let found = verdict(&[4], vec![node("y", "MyCompany>Op", &["x"])]);
    let RowDependence::Unknown(finding) = found else { panic!("{found}") };
    assert_eq!((finding.node.as_str(), finding.op.as_str()), ("y", "MyCompany>Op"));
}

#[test]
fn reductions_over_the_rows_mix_them() {
    for op in ["Mean", "Sum", "Max", "All"] {
        proven(&[4], vec![ints("axis", &[1]), node("y", op, &["x", "axis"])]);
        proven(&[4, 3], vec![ints("axis", &[-1]), node("y", op, &["x", "axis"])]);
        mixed(&[4], vec![ints("axis", &[0]), node("y", op, &["x", "axis"])], "all rows");
        mixed(&[4], vec![ints("axis", &[-2]), node("y", op, &["x", "axis"])], "all rows");
        mixed(&[4], vec![ints("axis", &[0, 1]), node("y", op, &["x", "axis"])], "all rows");
    }
    mixed(&[], vec![node("y", "Softmax", &["x"])], "normalizes");
    proven(&[5], vec![node("y", "Softmax", &["x"])]);
    mixed(&[5], vec![ints("axis", &[0]), node("y", "Cumsum", &["x", "axis"])], "sums up");
    proven(&[5], vec![ints("axis", &[1]), node("y", "Cumsum", &["x", "axis"])]);
    mixed(&[], vec![ints("k", &[2]), node("y", "TopKV2", &["x", "k"])], "compares");
    mixed(&[5], vec![node("y", "L2Loss", &["x"])], "adds up");
}

#[test]
fn products_may_not_sum_over_rows() {
    proven(&[4], vec![weights("w", &[4, 2]), node("y", "MatMul", &["x", "w"])]);
    let by_rows = |name: &str| Attribute::B(!name.is_empty());
    let transposed = node("y", "MatMul", &["x", "w"]).with("transpose_a", by_rows("a"));
    mixed(&[4], vec![weights("w", &[4, 2]), transposed], "products");
    let pairs = node("y", "MatMul", &["x", "x"]).with("transpose_b", by_rows("b"));
    mixed(&[4], vec![pairs], "each row");
    proven(&[5, 4], vec![node("y", "BatchMatMulV2", &["x", "x"]).with("adj_y", by_rows("y"))]);
    let equation = |text: &'static str| Attribute::S(bytes::Bytes::from_static(text.as_bytes()));
    let einsum =
        |inputs: &[&str], text| node("y", "Einsum", inputs).with("equation", equation(text));
    proven(&[5, 4], vec![einsum(&["x", "x"], "bij,bkj->bik")]);
    proven(&[5, 4], vec![weights("w", &[4, 2, 3]), einsum(&["x", "w"], "...j,jkl->...kl")]);
    mixed(&[5, 4], vec![einsum(&["x", "x"], "aij,bij->ab")], "each row");
    mixed(&[5, 4], vec![einsum(&["x"], "bij->ij")], "products");
}

#[test]
fn shapes_are_computed_with_the_number_of_rows() {
    // [rows, 6, 4] -> [rows * 6, 4] -> [rows, 6, 2], as a dense layer on a sequence does.
    let dense = vec![
        ints("flat", &[-1, 4]),
        node("a", "Reshape", &["x", "flat"]),
        weights("w", &[4, 2]),
        node("b", "MatMul", &["a", "w"]),
        node("s", "Shape", &["x"]),
        one("0", 0),
        one("1", 1),
        node("n", "StridedSlice", &["s", "0", "1", "1"]).with("shrink_axis_mask", Attribute::I(1)),
        ints("6", &[6]),
        ints("2", &[2]),
        node("to", "Pack", &["n", "6", "2"]),
        node("y", "Reshape", &["b", "to"]),
    ];
    proven(&[6, 4], dense);
    // A row of three in parts of two.
    unknown(&[3], vec![ints("to", &[-1, 2]), node("y", "Reshape", &["x", "to"])]);
    // Of unknown length in parts of two.
    unknown(&[-1], vec![ints("to", &[-1, 2]), node("y", "Reshape", &["x", "to"])]);
    mixed(&[4], vec![ints("to", &[2, -1]), node("y", "Reshape", &["x", "to"])], "rows");
    mixed(&[4], vec![ints("to", &[8, 4]), node("y", "Reshape", &["x", "to"])], "fixed size");
    // Two rows for each row are no row for each.
    mixed(&[4], vec![ints("to", &[-1, 2]), node("y", "Reshape", &["x", "to"])], "a row for each");
    mixed(&[4], vec![node("y", "Squeeze", &["x"])], "one row");
    mixed(&[4], vec![ints("m", &[2, 1]), node("y", "Tile", &["x", "m"])], "repeats");
    mixed(&[4], vec![ints("axis", &[0]), node("y", "ConcatV2", &["x", "x", "axis"])], "behind");
    proven(&[4], vec![ints("axis", &[1]), node("y", "ConcatV2", &["x", "x", "axis"])]);
    mixed(
        &[4],
        vec![shaped("p", &[0, 1, 0, 0], vec![2, 2]), node("y", "Pad", &["x", "p"])],
        "adds rows",
    );
    proven(&[4], vec![shaped("p", &[0, 0, 0, 1], vec![2, 2]), node("y", "Pad", &["x", "p"])]);
}

#[test]
fn the_number_of_rows_may_not_become_a_value() {
    let rows = || vec![node("s", "Shape", &["x"]), node("n", "Cast", &["s"])];
    let mut scaled = rows();
    scaled.push(node("y", "RealDiv", &["x", "n"]));
    mixed(&[2], scaled, "number of rows");
    let mut counted = rows();
    counted.push(node("y", "Identity", &["n"]));
    mixed(&[2], counted, "a row for each");
    // Zeros for each row are the same for each.
    let zeros = vec![
        node("s", "Shape", &["x"]),
        ints("0", &[0]),
        node("z", "Fill", &["s", "0"]),
        node("y", "AddV2", &["x", "z"]),
    ];
    proven(&[2], zeros);
}

#[test]
fn rows_are_not_picked_by_their_number() {
    let slice = |mask: i64| {
        vec![
            ints("b", &[1, 0]),
            ints("e", &[2, 0]),
            ints("s", &[1, 1]),
            node("y", "StridedSlice", &["x", "b", "e", "s"])
                .with("begin_mask", Attribute::I(mask))
                .with("end_mask", Attribute::I(mask)),
        ]
    };
    mixed(&[4], slice(2), "by their number");
    proven(&[4], slice(1));
    let reversed = |axis| vec![one("a", axis), node("y", "ReverseV2", &["x", "a"])];
    mixed(&[4], reversed(0), "order");
    proven(&[4], reversed(1));
    let gather = |axis| {
        vec![ints("i", &[0, 1]), ints("a", &[axis]), node("y", "GatherV2", &["x", "i", "a"])]
    };
    mixed(&[4], gather(0), "by their number");
    proven(&[4], gather(1));
    let embedding =
        vec![weights("w", &[9, 3]), ints("a", &[0]), node("y", "GatherV2", &["w", "x", "a"])];
    proven(&[4], embedding);
    mixed(&[4], vec![node("y", "Where", &["x"])], "number of elements");
    mixed(&[], vec![node("y", "Unique", &["x"])], "number of elements");
    mixed(&[4], vec![node("s", "Shape", &["x"]), node("y", "RandomUniform", &["s"])], "random");
}

#[test]
fn batch_normalization_mixes_rows_while_it_trains() {
    let norm = |trains: Option<bool>| {
        let mut y = node("y", "FusedBatchNormV3", &["x", "w", "w", "w", "w"]);
        if let Some(trains) = trains {
            y = y.with("is_training", Attribute::B(trains));
        }
        vec![weights("w", &[3]), y]
    };
    proven(&[8, 8, 3], norm(Some(false)));
    mixed(&[8, 8, 3], norm(Some(true)), "mean");
    mixed(&[8, 8, 3], norm(None), "mean");
}

#[test]
fn a_branch_that_a_constant_takes_is_the_one_that_counts() {
    // TensorFlow 1: the mean over the rows while it trains, which it does not.
    let branches = |trains: i64| {
        vec![
            ints("t", &[trains]),
            node("train", "PlaceholderWithDefault", &["t"]),
            node("s", "Switch", &["x", "train"]),
            ints("a", &[0]),
            node("mean", "Mean", &["s:1", "a"]),
            node("sub", "Sub", &["s:1", "mean"]),
            node("y", "Merge", &["s", "sub"]),
        ]
    };
    proven(&[4], branches(0));
    mixed(&[4], branches(1), "all rows");
    let by_rows = vec![
        ints("a", &[0, 1]),
        node("sum", "Sum", &["x", "a"]),
        ints("0", &[0]),
        node("c", "Greater", &["sum", "0"]),
        node("s", "Switch", &["x", "c"]),
        node("y", "Merge", &["s", "s:1"]),
    ];
    mixed(&[4], by_rows, "all rows");
}

#[test]
fn a_loop_without_end_in_the_graph_ends_here() {
    let loops = vec![
        node("e", "Enter", &["x"]),
        node("m", "Merge", &["e", "next"]),
        ints("true", &[1]),
        node("c", "LoopCond", &["true"]),
        node("s", "Switch", &["m", "c"]),
        node("b", "Tanh", &["s:1"]),
        node("next", "NextIteration", &["b"]),
        node("y", "Identity", &["s:1"]),
    ];
    proven(&[4], loops);
    let cycle =
        vec![node("a", "AddV2", &["x", "b"]), node("b", "Relu", &["a"]), node("y", "Relu", &["a"])];
    unknown(&[4], cycle);
}

/// The signatures of a model.
fn signatures_of(folder: &str) -> Vec<Signature> {
    let platform = crate::remote::tests::tensorflow(String::new());
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    platform.inspect(&path, &LoadOptions::default()).expect("a model").signatures
}

/// What is found for every signature of a model that has a dimension for rows.
fn of_model(folder: &str) -> Vec<(String, RowDependence)> {
    let signatures = signatures_of(folder).into_iter().filter(Signature::is_batchable);
    signatures.map(|signature| (signature.name, signature.rows)).collect()
}

/// `map_fn` over images goes up to the number of rows; the other loop ends when an input says so.
#[test]
fn loops_over_rows_are_bounded_and_those_up_to_a_value_are_not() {
    for folder in ["models/digits/1", "models/digits/2"] {
        let signatures = signatures_of(folder);
        assert!(!signatures.is_empty() && signatures.iter().all(|it| it.is_bounded), "{folder}");
    }
    let endless = signatures_of("tests/data/platforms/endless/saved_model");
    let is_looping = |it: &&Signature| it.inputs.iter().any(|input| input.alias == "n");
    let looping: Vec<_> = endless.iter().filter(is_looping).collect();
    assert!(!looping.is_empty() && looping.iter().all(|it| !it.is_bounded), "{endless:?}");
}

#[test]
fn models_of_the_repository_are_independent() {
    let upstream = "tests/data/tensorflow-serving/upstream";
    let folders = [
        "models/half_plus_two/1".to_owned(),
        "models/digits/1".to_owned(),
        "models/digits/2".to_owned(),
        "models/recommender/1".to_owned(),
        "models/text_normalizer/1".to_owned(),
        "models/wide_mlp/1".to_owned(),
        format!("{upstream}/testdata/saved_model_half_plus_two_cpu/00000123"),
        format!("{upstream}/testdata/saved_model_half_plus_two_tf2_cpu/00000123"),
        format!("{upstream}/batching/matrix_half_plus_two/1"),
    ];
    for folder in &folders {
        let verdicts = of_model(folder);
        assert!(!verdicts.is_empty(), "{folder}");
        for (name, rows) in verdicts {
            assert_eq!(rows, RowDependence::Proven, "{folder} {name}: {rows}");
        }
    }
}

#[test]
fn texts_that_are_filled_up_to_the_longest_one_are_not() {
    let verdicts = of_model("tests/data/reports/01-text-model-batched-by-default/texts/1");
    assert!(!verdicts.is_empty());
    for (name, rows) in verdicts {
        let RowDependence::Mixed(finding) = &rows else { panic!("{name}: {rows}") };
        assert_eq!(finding.op, "RaggedTensorToTensor");
        assert!(finding.why.contains("the longest one of the batch"), "{rows}");
    }
}

/// The models that `tests/data/rows/make_rows.py` makes: all but one mix rows, each in another way.
#[test]
fn models_that_mix_rows_are_not_proven() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/rows");
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut names: Vec<String> = paths
        .filter(|path| path.join("1").is_dir())
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() > 25, "{names:?}");
    for model in names {
        let verdicts = of_model(&format!("tests/data/rows/{model}/1"));
        assert!(!verdicts.is_empty(), "{model}");
        for (name, rows) in verdicts {
            let is_proven = rows == RowDependence::Proven;
            assert_eq!(is_proven, model == "text_of_length", "{model} {name}: {rows}");
        }
    }
}
