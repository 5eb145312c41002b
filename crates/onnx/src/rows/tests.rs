//! Small graphs of which each operator keeps rows apart or mixes them.

use bytes::Bytes;
use prost::Message;
use tensorserve_tensor::{DType, RowDependence};

use crate::graph::{int, int64_vector, ints, node, string, tensor_info};
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto,
};

/// A model from `x` of this shape to `y`, with these operators and the initializers of [`weights`].
fn model(shape: &[i64], opset: i64, nodes: Vec<NodeProto>) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        input: vec![tensor_info("x", DType::Float, shape)],
        output: vec![tensor_info("y", DType::Float, &[-1, -1])],
        initializer: weights(),
        ..GraphProto::default()
    };
    let domains = [("", opset), ("ai.onnx.ml", 3), ("com.microsoft", 1), ("own", 1)];
    let import =
        |(domain, version): (&str, i64)| OperatorSetIdProto { domain: domain.to_owned(), version };
    ModelProto {
        graph: Some(graph),
        opset_import: domains.map(import).to_vec(),
        ..ModelProto::default()
    }
}

fn weights() -> Vec<TensorProto> {
    let floats = |name: &str, dims: &[i64]| TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: 1,
        ..TensorProto::default()
    };
    let mut all = vec![
        floats("w4", &[4]),
        floats("w44", &[4, 4]),
        floats("w34", &[3, 4]),
        floats("w14", &[1, 4]),
        floats("kernel", &[8, 3, 3, 3]),
        floats("c3", &[3]),
        floats("lstm_w", &[1, 20, 4]),
        floats("lstm_r", &[1, 20, 5]),
        floats("scale", &[]),
    ];
    let vectors: [(&str, &[i64]); 17] = [
        ("i0", &[0]),
        ("i1", &[1]),
        ("i_1", &[-1]),
        ("i2", &[2]),
        ("big", &[i64::MAX]),
        ("to_rows_4", &[-1, 4]),
        ("to_0_2_2", &[0, 2, 2]),
        ("to_2_all", &[2, -1]),
        ("to_4_all", &[4, -1]),
        ("pads_inner", &[0, 1, 0, 1]),
        ("pads_rows", &[1, 0, 0, 0]),
        ("times_inner", &[1, 3]),
        ("times_rows", &[2, 1]),
        ("to_5_4", &[5, 4]),
        ("ints4", &[0, 1, 1, 0]),
        ("starts", &[0, 1]),
        ("ends", &[2, 3]),
    ];
    all.extend(vectors.iter().map(|(name, values)| int64_vector(name, values)));
    let scalar =
        |name: &str, value: i64| TensorProto { dims: Vec::new(), ..int64_vector(name, &[value]) };
    all.extend([scalar("s0", 0), scalar("s1", 1), scalar("s4", 4)]);
    all
}

fn verdict(model: &ModelProto) -> RowDependence {
    crate::signature(model).expect("a signature").rows
}

fn of(shape: &[i64], opset: i64, nodes: &[NodeProto]) -> RowDependence {
    verdict(&model(shape, opset, nodes.to_vec()))
}

fn of_one(shape: &[i64], opset: i64, node: NodeProto) -> RowDependence {
    of(shape, opset, &[node])
}

/// `node` from `x` and other inputs to `y`.
fn to_y(op: &str, inputs: &[&str]) -> NodeProto {
    node(op, inputs, &["y"])
}

fn learned(op: &str, inputs: &[&str]) -> NodeProto {
    NodeProto { domain: "ai.onnx.ml".to_owned(), ..to_y(op, inputs) }
}

fn fused(op: &str, inputs: &[&str]) -> NodeProto {
    NodeProto { domain: "com.microsoft".to_owned(), ..to_y(op, inputs) }
}

fn is_mixed(verdict: &RowDependence) -> bool {
    matches!(verdict, RowDependence::Mixed(_))
}

const MATRIX: [i64; 2] = [-1, 4];
const IMAGES: [i64; 4] = [-1, 3, 8, 8];
const SEQUENCES: [i64; 3] = [-1, -1, 4];

#[test]
fn operators_keep_rows_apart() {
    let x = ["x"];
    let cases = [
        (&MATRIX[..], 13, to_y("Relu", &x)),
        (&MATRIX, 13, to_y("Add", &["x", "w4"])),
        (&MATRIX, 13, to_y("Mul", &["w14", "x"])),
        (&MATRIX, 13, to_y("Gemm", &["x", "w44", "w4"])),
        (&MATRIX, 13, to_y("MatMul", &["x", "w44"])),
        (&SEQUENCES, 13, to_y("MatMul", &["x", "w44"])),
        (&MATRIX, 13, to_y("Softmax", &x)),
        (&MATRIX, 13, to_y("Softmax", &x).with(int("axis", 1))),
        (&SEQUENCES, 11, to_y("Softmax", &x)),
        (&MATRIX, 13, to_y("ReduceMean", &x).with(ints("axes", &[-1]))),
        (&MATRIX, 13, to_y("ReduceSum", &["x", "i1"])),
        (&SEQUENCES, 13, to_y("ArgMax", &x).with(int("axis", 1)).with(int("keepdims", 0))),
        (&MATRIX, 13, to_y("CumSum", &["x", "s1"])),
        (&MATRIX, 13, to_y("TopK", &["x", "i2"])),
        (&MATRIX, 13, to_y("Reshape", &["x", "to_0_2_2"])),
        (&SEQUENCES, 13, to_y("Flatten", &x)),
        (&MATRIX, 13, to_y("Unsqueeze", &["x", "i_1"])),
        (&[-1, 1, 4], 11, to_y("Squeeze", &x).with(ints("axes", &[1]))),
        (&MATRIX, 13, to_y("Slice", &["x", "i1", "big", "i1"])),
        (&MATRIX, 13, to_y("Slice", &["x", "i0", "big", "i0"])),
        (&MATRIX, 13, to_y("Pad", &["x", "pads_inner"])),
        (&MATRIX, 13, to_y("Tile", &["x", "times_inner"])),
        (&MATRIX, 13, to_y("Concat", &["x", "x"]).with(int("axis", -1))),
        (&MATRIX, 13, to_y("Gather", &["x", "i1"]).with(int("axis", 1))),
        (&MATRIX, 13, to_y("Expand", &["x", "i1"])),
        (&SEQUENCES, 13, to_y("Trilu", &["x"]).with(int("upper", 0))),
        (&IMAGES, 13, to_y("Conv", &["x", "kernel"])),
        (&IMAGES, 13, to_y("MaxPool", &x).with(ints("kernel_shape", &[2, 2]))),
        (&IMAGES, 13, to_y("GlobalAveragePool", &x)),
        (&IMAGES, 13, to_y("BatchNormalization", &["x", "c3", "c3", "c3", "c3"])),
        (&IMAGES, 15, to_y("BatchNormalization", &["x", "c3", "c3", "c3", "c3"])),
        (&IMAGES, 13, to_y("InstanceNormalization", &["x", "c3", "c3"])),
        (&IMAGES, 13, to_y("DepthToSpace", &x).with(int("blocksize", 1))),
        (&MATRIX, 17, to_y("LayerNormalization", &["x", "w4", "w4"])),
        (&MATRIX, 13, to_y("Dropout", &x)),
        (&MATRIX, 13, to_y("QuantizeLinear", &["x", "scale"])),
        (&MATRIX, 13, to_y("DequantizeLinear", &["x", "w4"]).with(int("axis", 1))),
        (&MATRIX, 13, to_y("Einsum", &["x", "w44"]).with(string("equation", "bi,ij->bj"))),
        (&MATRIX, 13, to_y("OneHot", &["x", "s4", "i2"])),
        (&MATRIX, 13, learned("Scaler", &x)),
        (&MATRIX, 13, learned("Normalizer", &x)),
        (&MATRIX, 13, learned("TreeEnsembleRegressor", &x)),
        (&MATRIX, 13, learned("LinearClassifier", &x)),
        (&MATRIX, 13, learned("ArrayFeatureExtractor", &["x", "i1"])),
        (&MATRIX, 13, learned("OneHotEncoder", &x).with(ints("cats_int64s", &[1, 2]))),
        (&MATRIX, 13, fused("QuickGelu", &x)),
        (&MATRIX, 13, fused("FusedMatMul", &["x", "w44"])),
    ];
    for (shape, opset, node) in cases {
        let op = node.op_type.clone();
        assert_eq!(of_one(shape, opset, node), RowDependence::Proven, "{op} of {shape:?}");
    }
}

#[test]
fn operators_mix_rows() {
    let x = ["x"];
    let cases = [
        (&MATRIX[..], 13, to_y("Softmax", &x).with(int("axis", 0))),
        (&MATRIX, 13, to_y("Softmax", &x).with(int("axis", -2))),
        (&MATRIX, 11, to_y("Softmax", &x).with(int("axis", 0))),
        (&MATRIX, 13, to_y("Add", &["x", "w34"])),
        (&MATRIX, 13, to_y("CumSum", &["x", "s0"])),
        (&MATRIX, 13, to_y("TopK", &["x", "i1"]).with(int("axis", 0))),
        (&MATRIX, 13, to_y("ReduceMean", &x)),
        (&MATRIX, 13, to_y("ReduceMean", &x).with(ints("axes", &[-2]))),
        (&MATRIX, 13, to_y("ReduceSum", &["x", "i0"])),
        (&MATRIX, 13, to_y("ArgMax", &x)),
        (&MATRIX, 13, to_y("NonZero", &x)),
        (&MATRIX, 13, to_y("Unique", &x)),
        (&MATRIX, 13, to_y("RandomNormalLike", &x)),
        (&MATRIX, 13, to_y("Bernoulli", &x)),
        (&MATRIX, 13, to_y("DynamicQuantizeLinear", &x)),
        (&MATRIX, 13, to_y("EyeLike", &x)),
        (&MATRIX, 13, to_y("Trilu", &x)),
        (&MATRIX, 13, to_y("Transpose", &x)),
        (&MATRIX, 13, to_y("Reshape", &["x", "to_2_all"])),
        (&MATRIX, 13, to_y("Reshape", &["x", "to_4_all"])),
        (&MATRIX, 13, to_y("Slice", &["x", "i1", "big", "i0"])),
        (&MATRIX, 13, to_y("Slice", &["x", "i0", "i_1", "i0"])),
        (&MATRIX, 13, to_y("Slice", &["x", "starts", "ends"])),
        (&MATRIX, 13, to_y("Pad", &["x", "pads_rows"])),
        (&MATRIX, 13, to_y("Tile", &["x", "times_rows"])),
        (&MATRIX, 13, to_y("Concat", &["x", "x"]).with(int("axis", 0))),
        (&MATRIX, 13, to_y("Concat", &["x", "w34"]).with(int("axis", 1))),
        (&MATRIX, 13, to_y("Gather", &["x", "i1"])),
        (&MATRIX, 13, to_y("Gather", &["x", "i_1"]).with(int("axis", -2))),
        (&MATRIX, 13, to_y("Expand", &["x", "to_5_4"])),
        (&MATRIX, 13, to_y("Compress", &["x", "ints4"])),
        (&MATRIX, 13, to_y("Compress", &["x", "ints4"]).with(int("axis", 0))),
        (&MATRIX, 13, to_y("Squeeze", &x)),
        (&SEQUENCES, 13, to_y("Flatten", &x).with(int("axis", 0))),
        (&MATRIX, 13, to_y("Split", &x).with(int("axis", 0))),
        (&MATRIX, 13, to_y("GatherElements", &["x", "x"])),
        (&MATRIX, 13, to_y("ScatterND", &["x", "i1", "x"])),
        (&MATRIX, 13, to_y("Einsum", &["x", "x"]).with(string("equation", "bi,ci->bc"))),
        (&MATRIX, 13, to_y("Einsum", &["x", "w44"]).with(string("equation", "bi,ij->j"))),
        (&MATRIX, 13, to_y("Gemm", &["x", "w34"]).with(int("transA", 1))),
        (
            &IMAGES,
            15,
            to_y("BatchNormalization", &["x", "c3", "c3", "c3", "c3"])
                .with(int("training_mode", 1)),
        ),
        (&IMAGES, 13, to_y("MeanVarianceNormalization", &x)),
        (&MATRIX, 17, to_y("LayerNormalization", &["x", "w4"]).with(int("axis", 0))),
        (&MATRIX, 13, to_y("QuantizeLinear", &["x", "w4"]).with(int("axis", 0))),
        (
            &SEQUENCES,
            13,
            to_y("ReverseSequence", &["x", "i1"])
                .with(int("batch_axis", 0))
                .with(int("time_axis", 1)),
        ),
        (&SEQUENCES, 13, to_y("LSTM", &["x", "lstm_w", "lstm_r"])),
        (&MATRIX, 13, fused("DynamicQuantizeMatMul", &["x", "w44"])),
        (&IMAGES, 13, to_y("NonMaxSuppression", &["x", "x"])),
        (&IMAGES, 13, to_y("RoiAlign", &["x", "w44", "ints4"])),
        (&MATRIX, 13, node("Identity", &["w44"], &["y"])),
        (&MATRIX, 13, node("Shape", &["x"], &["y"])),
    ];
    for (shape, opset, node) in cases {
        let op = node.op_type.clone();
        let found = of_one(shape, opset, node);
        assert!(is_mixed(&found), "{op} of {shape:?}: {found}");
    }
}

#[test]
fn what_is_not_known_is_not_proven() {
    let cases = [
        (&MATRIX[..], 13, to_y("Frobnicate", &["x"])),
        (&MATRIX, 13, NodeProto { domain: "own".to_owned(), ..to_y("Relu", &["x"]) }),
        (&MATRIX, 13, to_y("Relu", &["nowhere"])),
        (&MATRIX, 6, to_y("Add", &["x", "w4"]).with(int("axis", 0))),
        (&[-1], 13, learned("Scaler", &["x"])),
        (&MATRIX, 13, to_y("Einsum", &["x"]).with(string("equation", "ii->i"))),
    ];
    for (shape, opset, node) in cases {
        let op = node.op_type.clone();
        let found = of_one(shape, opset, node);
        assert!(matches!(found, RowDependence::Unknown(_)), "{op}: {found}");
    }
    for shape in [&[1, 4][..], &[]] {
        assert!(is_mixed(&of_one(shape, 13, to_y("Relu", &["x"]))), "{shape:?}");
    }
}

#[test]
fn several_operators_keep_rows_apart_or_mix_them() {
    // Each row is multiplied with all rows.
    let with_all = [
        node("Transpose", &["x"], &["t"]).with(ints("perm", &[1, 0])),
        node("MatMul", &["x", "t"], &["y"]),
    ];
    assert!(is_mixed(&of(&MATRIX, 13, &with_all)));
    // It is divided by the number of rows.
    let mean = [
        node("Shape", &["x"], &["shape"]),
        node("Gather", &["shape", "s0"], &["count"]),
        node("Cast", &["count"], &["float"]).with(int("to", 1)),
        node("Div", &["x", "float"], &["y"]),
    ];
    assert!(is_mixed(&of(&MATRIX, 13, &mean)));
    // A shape that is computed from that of the input, as PyTorch exports it.
    let view = |name: &str| {
        [
            node("Shape", &["x"], &["shape"]),
            node("Gather", &["shape", name], &["rows"]),
            node("Unsqueeze", &["rows", "i0"], &["vector"]),
            node("Concat", &["vector", "i_1"], &["new"]).with(int("axis", 0)),
            node("Reshape", &["x", "new"], &["y"]),
        ]
    };
    assert_eq!(of(&SEQUENCES, 13, &view("s0")), RowDependence::Proven);
    assert!(is_mixed(&of(&SEQUENCES, 13, &view("s1"))));
    // A recurrent layer whose batch is the second dimension.
    let recurrent = [
        node("Transpose", &["x"], &["t"]).with(ints("perm", &[1, 0, 2])),
        node("LSTM", &["t", "lstm_w", "lstm_r"], &["all"]).with(int("hidden_size", 5)),
        node("Squeeze", &["all", "i1"], &["squeezed"]),
        node("Transpose", &["squeezed"], &["y"]).with(ints("perm", &[1, 0, 2])),
    ];
    assert_eq!(of(&SEQUENCES, 13, &recurrent), RowDependence::Proven);
    // Attention within each row.
    let attention = [
        node("Transpose", &["x"], &["t"]).with(ints("perm", &[0, 2, 1])),
        node("MatMul", &["x", "t"], &["scores"]),
        node("Softmax", &["scores"], &["weights"]).with(int("axis", -1)),
        node("MatMul", &["weights", "x"], &["y"]),
    ];
    assert_eq!(of(&SEQUENCES, 13, &attention), RowDependence::Proven);
    // The classes of the greatest scores, as skl2onnx writes it.
    let classes = [
        node("ArgMax", &["x"], &["best"]).with(int("axis", 1)),
        NodeProto {
            domain: "ai.onnx.ml".to_owned(),
            ..node("ArrayFeatureExtractor", &["w4", "best"], &["row"])
        },
        node("Reshape", &["row", "i_1"], &["y"]),
    ];
    assert_eq!(of(&MATRIX, 13, &classes), RowDependence::Proven);
}

fn graph_of(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        g: Some(graph),
        r#type: AttributeType::Graph.into(),
        ..AttributeProto::default()
    }
}

fn subgraph(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let info = |name: &&str| tensor_info(name, DType::Float, &[]);
    GraphProto {
        node: nodes,
        input: inputs.iter().map(info).collect(),
        output: outputs.iter().map(info).collect(),
        ..GraphProto::default()
    }
}

#[test]
fn loops_over_rows_must_not_carry_anything() {
    let row = || node("Gather", &["x", "i"], &["row"]);
    let keep = || node("Identity", &["cond"], &["go"]);
    let repeat = |body: GraphProto, inputs: &[&str], outputs: &[&str]| {
        [
            node("Shape", &["x"], &["shape"]),
            node("Gather", &["shape", "s0"], &["count"]),
            node("Loop", inputs, outputs).with(graph_of("body", body)),
        ]
    };
    let each =
        subgraph(&["i", "cond"], vec![row(), node("Relu", &["row"], &["z"]), keep()], &["go", "z"]);
    assert_eq!(of(&MATRIX, 13, &repeat(each, &["count", ""], &["y"])), RowDependence::Proven);
    let sums = subgraph(
        &["i", "cond", "sum"],
        vec![
            row(),
            node("Add", &["row", "sum"], &["next"]),
            keep(),
            node("Identity", &["next"], &["z"]),
        ],
        &["go", "next", "z"],
    );
    assert!(is_mixed(&of(&MATRIX, 13, &repeat(sums, &["count", "", "w4"], &["last", "y"]))));
    let numbers = subgraph(
        &["i", "cond"],
        vec![
            row(),
            node("Less", &["i", "s4"], &["few"]),
            node("Where", &["few", "row", "w4"], &["z"]),
            keep(),
        ],
        &["go", "z"],
    );
    assert!(is_mixed(&of(&MATRIX, 13, &repeat(numbers, &["count", ""], &["y"]))));
    // Equally often for every batch.
    let powers = subgraph(
        &["i", "cond", "state"],
        vec![node("Mul", &["state", "w4"], &["next"]), keep()],
        &["go", "next"],
    );
    let fixed = node("Loop", &["s4", "", "x"], &["y"]).with(graph_of("body", powers));
    assert_eq!(of_one(&MATRIX, 13, fixed), RowDependence::Proven);
    // Until a condition on all rows holds.
    let until = subgraph(
        &["i", "cond", "state"],
        vec![
            node("ReduceSum", &["state"], &["sum"]).with(int("keepdims", 0)),
            node("Greater", &["sum", "scale"], &["go"]),
            node("Identity", &["state"], &["next"]),
        ],
        &["go", "next"],
    );
    let until = node("Loop", &["s4", "", "x"], &["y"]).with(graph_of("body", until));
    assert!(is_mixed(&of_one(&MATRIX, 13, until)));
    // The state of an inner loop becomes a value of the graph around it.
    let inner = subgraph(
        &["i", "cond", "state"],
        vec![node("Identity", &["outer"], &["next"]), keep()],
        &["go", "next"],
    );
    let nested = subgraph(
        &["j", "cond", "outer"],
        vec![
            node("Loop", &["s4", "", "w4"], &["z"]).with(graph_of("body", inner)),
            node("Identity", &["z"], &["out"]),
            node("Identity", &["outer"], &["same"]),
            keep(),
        ],
        &["go", "same", "out"],
    );
    let nested = node("Loop", &["s4", "", "x"], &["last", "y"]).with(graph_of("body", nested));
    assert_ne!(of_one(&MATRIX, 13, nested), RowDependence::Proven);
}

#[test]
fn scans_over_rows_must_not_carry_anything() {
    let scan = |body: GraphProto, inputs: &[&str], outputs: &[&str], axis: i64| {
        node("Scan", inputs, outputs)
            .with(graph_of("body", body))
            .with(int("num_scan_inputs", 1))
            .with(ints("scan_input_axes", &[axis]))
            .with(ints("scan_output_axes", &[axis]))
    };
    let each = subgraph(&["row"], vec![node("Relu", &["row"], &["z"])], &["z"]);
    assert_eq!(of_one(&MATRIX, 13, scan(each, &["x"], &["y"], 0)), RowDependence::Proven);
    let sums = || {
        let nodes =
            vec![node("Add", &["row", "sum"], &["next"]), node("Identity", &["next"], &["z"])];
        subgraph(&["sum", "row"], nodes, &["next", "z"])
    };
    assert!(is_mixed(&of_one(&MATRIX, 13, scan(sums(), &["w4", "x"], &["last", "y"], 0))));
    let steps = [
        node("ReduceSum", &["x", "i1"], &["first"]).with(int("keepdims", 0)),
        scan(sums(), &["first", "x"], &["last", "y"], 1),
    ];
    assert_eq!(of(&SEQUENCES, 13, &steps), RowDependence::Proven);
    let backwards = subgraph(&["row"], vec![node("Relu", &["row"], &["z"])], &["z"]);
    let backwards = scan(backwards, &["x"], &["y"], 0).with(ints("scan_output_directions", &[1]));
    assert!(is_mixed(&of_one(&MATRIX, 13, backwards)));
}

#[test]
fn branches_are_followed() {
    let branch = |nodes| subgraph(&[], nodes, &["z"]);
    let choice = |condition: &str, one: Vec<NodeProto>, other: Vec<NodeProto>| {
        node("If", &[condition], &["y"])
            .with(graph_of("then_branch", branch(one)))
            .with(graph_of("else_branch", branch(other)))
    };
    let relu = || vec![node("Relu", &["x"], &["z"])];
    let cumulates = || vec![node("CumSum", &["x", "s0"], &["z"])];
    let size = |index: &str| {
        [
            node("Shape", &["x"], &["shape"]),
            node("Gather", &["shape", index], &["size"]),
            node("Equal", &["size", "s1"], &["is_one"]),
        ]
    };
    let with = |mut nodes: Vec<NodeProto>, last: NodeProto| {
        nodes.push(last);
        nodes
    };
    // The second size is 4.
    let known = with(size("s1").to_vec(), choice("is_one", cumulates(), relu()));
    assert_eq!(of(&MATRIX, 13, &known), RowDependence::Proven);
    // It is not known: both branches may be taken.
    let either = with(size("s1").to_vec(), choice("is_one", relu(), relu()));
    assert_eq!(of(&SEQUENCES, 13, &either), RowDependence::Proven);
    let either = with(size("s1").to_vec(), choice("is_one", cumulates(), relu()));
    assert!(is_mixed(&of(&SEQUENCES, 13, &either)));
    let by_rows = with(size("s0").to_vec(), choice("is_one", relu(), relu()));
    assert!(is_mixed(&of(&MATRIX, 13, &by_rows)));
}

#[test]
fn functions_of_a_model_are_followed() {
    let function = |name: &str, nodes: Vec<NodeProto>| FunctionProto {
        name: name.to_owned(),
        domain: "own".to_owned(),
        input: vec!["a".to_owned()],
        output: vec!["b".to_owned()],
        attribute: vec!["along".to_owned()],
        node: nodes,
        opset_import: vec![
            OperatorSetIdProto { domain: String::new(), version: 13 },
            OperatorSetIdProto { domain: "own".to_owned(), version: 1 },
        ],
        ..FunctionProto::default()
    };
    let own = |op: &str, input: &str, output: &str| NodeProto {
        domain: "own".to_owned(),
        ..node(op, &[input], &[output])
    };
    let axis = AttributeProto { ref_attr_name: "along".to_owned(), ..int("axis", 7) };
    let softmax =
        || function("Normalize", vec![node("Softmax", &["a"], &["b"]).with(axis.clone())]);
    let of_functions = |functions: &[FunctionProto], node: NodeProto| {
        let encoded = functions.iter().map(|its| Bytes::from(its.encode_to_vec())).collect();
        verdict(&ModelProto { functions: encoded, ..model(&MATRIX, 13, vec![node]) })
    };
    let along = |axis: i64| own("Normalize", "x", "y").with(int("along", axis));
    assert_eq!(of_functions(&[softmax()], along(1)), RowDependence::Proven);
    let mixed = of_functions(&[softmax()], NodeProto { name: "n".to_owned(), ..along(0) });
    let RowDependence::Mixed(finding) = mixed else { panic!("{mixed}") };
    assert_eq!((finding.node.as_str(), finding.op.as_str()), ("n/b", "Softmax"));
    // One that calls itself ends.
    let endless =
        function("Normalize", vec![own("Normalize", "a", "b"), own("Normalize", "a", "b")]);
    assert!(matches!(of_functions(&[endless], along(1)), RowDependence::Unknown(_)));
}

#[test]
fn hostile_graphs_end_soon() {
    let started = std::time::Instant::now();
    let mut doubles = vec![node("Shape", &["x"], &["s0_"])];
    for index in 0..200 {
        let (from, to) = (format!("s{index}_"), format!("s{}_", index + 1));
        doubles.push(node("Mul", &[&from, &from], &[&to]));
        doubles
            .push(node("Concat", &[&to, &to, &to], &[&format!("c{index}")]).with(int("axis", 0)));
    }
    doubles.push(node("Expand", &["x", "s200_"], &["y"]));
    assert_ne!(of(&[-1, -1], 13, &doubles), RowDependence::Proven);
    let mut ranks = vec![node("Relu", &["x"], &["r0"])];
    for index in 0..2000 {
        let (from, to) = (format!("r{index}"), format!("r{}", index + 1));
        ranks.push(node("Unsqueeze", &[&from, "i_1"], &[&to]));
    }
    ranks.push(node("Relu", &["r2000"], &["y"]));
    assert_ne!(of(&MATRIX, 13, &ranks), RowDependence::Proven);
    let mut graph =
        subgraph(&["i", "cond", "s"], vec![node("Identity", &["s"], &["t"])], &["cond", "t"]);
    for _ in 0..20 {
        let inner = node("Loop", &["s4", "", "s"], &["t"]).with(graph_of("body", graph));
        graph = subgraph(&["i", "cond", "s"], vec![inner], &["cond", "t"]);
    }
    let nested = node("Loop", &["s4", "", "x"], &["y"]).with(graph_of("body", graph));
    of_one(&MATRIX, 13, nested);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
