//! Graphs that OpenVINO may run, and those that it may not; how it runs them is tested through the server.

use std::collections::BTreeMap;

use super::*;
use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::tensor_info::Encoding;
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{
    AttrValue, ConstantProto, GraphDef, NodeDef, SignatureDef, TensorInfo, TensorShapeProto,
};
use tensorserve_tensor::{Element, Shape, aligned_vec};

const FLOAT: i32 = 1;
const INT32: i32 = 3;
const INT64: i32 = 9;
const BOOL: i32 = 10;

fn shape(sizes: &[i64]) -> TensorShapeProto {
    let dim = sizes.iter().map(|size| Dim { size: *size, ..Dim::default() }).collect();
    TensorShapeProto { dim, unknown_rank: false }
}

fn node(name: &str, op: &str, inputs: &[&str], attributes: &[(&str, Value)]) -> NodeDef {
    let attr = attributes
        .iter()
        .map(|(name, value)| ((*name).to_owned(), AttrValue { value: Some(value.clone()) }));
    NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        attr: attr.collect(),
        ..NodeDef::default()
    }
}

fn tensor<T: Element>(values: &[T]) -> Tensor {
    let mut aligned = aligned_vec(values.len());
    aligned.extend_from_slice(values);
    let shape = Shape::new(&[values.len() as i64]).expect("a shape");
    Tensor::from_vec(shape, aligned).expect("a tensor")
}

fn placeholder(name: &str, dtype: i32) -> NodeDef {
    node(name, "Placeholder", &[], &[("dtype", Value::Type(dtype))])
}

fn number(name: &str, value: i64) -> NodeDef {
    let tensor = ConstantProto {
        dtype: INT64,
        tensor_shape: Some(shape(&[])),
        int64_val: vec![value],
        ..ConstantProto::default()
    };
    node(name, "Const", &[], &[("dtype", Value::Type(INT64)), ("value", Value::Tensor(tensor))])
}

/// A table of floats with so many rows.
fn table(name: &str, rows: i64) -> NodeDef {
    let tensor = ConstantProto {
        dtype: FLOAT,
        tensor_shape: Some(shape(&[rows, 4])),
        ..ConstantProto::default()
    };
    node(name, "Const", &[], &[("dtype", Value::Type(FLOAT)), ("value", Value::Tensor(tensor))])
}

fn info(name: &str, dtype: i32) -> TensorInfo {
    TensorInfo {
        encoding: Some(Encoding::Name(name.to_owned())),
        dtype,
        tensor_shape: Some(shape(&[-1])),
    }
}

/// A model with these inputs and the output `y`.
fn model(inputs: &[(&str, i32)], nodes: Vec<NodeDef>) -> MetaGraphDef {
    let named =
        inputs.iter().map(|(name, dtype)| ((*name).to_owned(), info(&format!("{name}:0"), *dtype)));
    let definition = SignatureDef {
        inputs: named.collect(),
        outputs: [("result".to_owned(), info("y:0", FLOAT))].into(),
        ..SignatureDef::default()
    };
    let placeholders = inputs.iter().map(|(name, dtype)| placeholder(name, *dtype));
    MetaGraphDef {
        graph_def: Some(GraphDef { node: placeholders.chain(nodes).collect(), library: None }),
        signature_def: BTreeMap::from([(SIGNATURE.to_owned(), definition)]).into_iter().collect(),
        ..MetaGraphDef::default()
    }
}

fn refusal(inputs: &[(&str, i32)], nodes: Vec<NodeDef>) -> String {
    check(&model(inputs, nodes)).expect_err("refused").message().to_owned()
}

#[test]
fn floats_may_be_computed_and_must_be_finite() {
    let nodes = vec![table("w", 4), node("y", "MatMul", &["x", "w"], &[("T", Value::Type(FLOAT))])];
    let (signature, guards) = check(&model(&[("x", FLOAT)], nodes)).expect("allowed");
    assert_eq!(signature.outputs[0].alias, "result");
    assert_eq!(guards, [InputGuard::Floats]);
}

#[test]
fn ids_are_looked_up_and_must_be_in_the_smallest_table() {
    let looked_up =
        |name: &str, of: &str, ids: &str| node(name, "GatherV2", &[of, ids, "axis"], &[]);
    let nodes = vec![
        table("large", 50),
        table("small", 20),
        number("axis", 0),
        number("rank", 1),
        node("wide", "Cast", &["ids"], &[("DstT", Value::Type(INT64))]),
        node("flat", "Reshape", &["wide", "rank"], &[]),
        looked_up("a", "large", "flat"),
        looked_up("b", "small", "ids"),
        node("y", "AddV2", &["a", "b"], &[]),
    ];
    let (_, guards) = check(&model(&[("ids", INT32)], nodes)).expect("allowed");
    assert_eq!(guards, [InputGuard::Below(20)]);
}

#[test]
fn a_mask_may_be_booleans_but_not_the_least_integer() {
    let mask = |op: &str| {
        vec![
            node("is_word", "Cast", &["mask"], &[("DstT", Value::Type(BOOL))]),
            node("y", op, &["is_word"], &[("DstT", Value::Type(FLOAT))]),
        ]
    };
    let (_, guards) = check(&model(&[("mask", INT32)], mask("Cast"))).expect("allowed");
    assert_eq!(guards, [InputGuard::Below(1 << 31)]);
    assert!(guards[0].admits(&tensor(&[0, 256])));
    assert!(!guards[0].admits(&tensor(&[i32::MIN])));
    assert!(refusal(&[("mask", INT32)], mask("Identity")).contains("not computed as floats"));
}

#[test]
fn floats_that_may_overflow_go_elsewhere() {
    for (value, is_taken) in
        [(0.0, true), (-1e12, true), (1e13, false), (f32::NAN, false), (f32::NEG_INFINITY, false)]
    {
        assert_eq!(InputGuard::Floats.admits(&tensor(&[1.0, value])), is_taken, "{value}");
    }
}

#[test]
fn ids_that_would_count_from_the_end_go_elsewhere() {
    let nodes = vec![
        table("rows", 20),
        number("axis", 0),
        number("zero", 0),
        number("count", 20),
        node("is_negative", "Less", &["ids", "zero"], &[]),
        node("from_end", "AddV2", &["ids", "count"], &[]),
        node("counted", "SelectV2", &["is_negative", "from_end", "ids"], &[]),
        node("y", "GatherV2", &["rows", "counted", "axis"], &[]),
    ];
    let (_, guards) = check(&model(&[("ids", INT64)], nodes)).expect("allowed");
    assert_eq!(guards, [InputGuard::Below(20)]);
}

#[test]
fn constants_in_place_of_ids_must_be_in_the_table() {
    let nodes = |other: i64| {
        vec![
            table("rows", 21),
            number("axis", 0),
            number("count", 20),
            number("other", other),
            node("is_known", "Less", &["ids", "count"], &[]),
            node("known", "SelectV2", &["is_known", "ids", "other"], &[]),
            node("y", "GatherV2", &["rows", "known", "axis"], &[]),
        ]
    };
    let (_, guards) = check(&model(&[("ids", INT64)], nodes(20))).expect("allowed");
    assert_eq!(guards, [InputGuard::Below(21)]);
    for outside in [21, -1] {
        let message = refusal(&[("ids", INT64)], nodes(outside));
        assert!(message.contains("looks up constants"), "{message}");
    }
}

#[test]
fn what_may_be_computed_differently_is_refused() {
    let ids = [("ids", INT64)];
    /// Inputs, nodes, and what the refusal says.
    type Case<'c> = (&'c [(&'c str, i32)], Vec<NodeDef>, &'c str);
    let cases: [Case; 9] = [
        (
            &ids,
            vec![
                number("one", 1),
                node("sum", "AddV2", &["ids", "one"], &[]),
                node("y", "Cast", &["sum"], &[("DstT", Value::Type(FLOAT))]),
            ],
            "converts to integers or booleans",
        ),
        (
            &[("x", FLOAT)],
            vec![node("y", "Sign", &["x"], &[])],
            "operation Sign (y) is not one that",
        ),
        (
            &[("x", FLOAT)],
            vec![node("y", "Identity", &["x", "^check"], &[]), node("check", "Assert", &[], &[])],
            "operation Assert (check)",
        ),
        (
            &[("x", FLOAT)],
            vec![
                node("z", "Greater", &["x", "x"], &[]),
                node("y", "SelectV2", &["z", "x", "x"], &[]),
            ],
            "compares floats",
        ),
        (
            &[("x", FLOAT)],
            vec![
                node("z", "Cast", &["x"], &[("DstT", Value::Type(INT32))]),
                node("y", "Cast", &["z"], &[("DstT", Value::Type(FLOAT))]),
            ],
            "converts to integers",
        ),
        (
            &[("x", FLOAT)],
            vec![node("y", "Relu", &["x"], &[("T", Value::Type(19))])],
            "has the type 19",
        ),
        (
            &[("x", FLOAT)],
            vec![node("y", "Relu", &["z"], &[]), node("z", "Relu", &["y"], &[])],
            "in a loop",
        ),
        (&[("x", 2)], vec![node("y", "Relu", &["x"], &[])], "has neither floats nor integers"),
        (
            &ids,
            vec![
                table("t", 3),
                number("axis", 1),
                node("y", "GatherV2", &["t", "ids", "axis"], &[]),
            ],
            "looks up rows by something else",
        ),
    ];
    for (inputs, nodes, expected) in cases {
        let message = refusal(inputs, nodes);
        assert!(message.contains(expected), "{message}, not {expected}");
    }
    let huge = vec![table("t", 3), number("n", 1 << 32), node("y", "Tile", &["t", "n"], &[])];
    assert!(refusal(&[("x", FLOAT)], huge).contains("more than 32 bits"));
    assert!(
        refusal(&ids, vec![node("y", "Identity", &["ids"], &[])])
            .contains("is not computed as floats")
    );
}

#[test]
fn an_input_that_another_output_of_its_node_could_pass_for_is_refused() {
    let mut meta = model(&[("x", FLOAT)], vec![node("y", "Relu", &["x:1"], &[])]);
    let definition = meta.signature_def.get_mut(SIGNATURE).expect("a signature");
    definition.inputs.insert("x".to_owned(), info("x:1", FLOAT));
    assert!(check(&meta).expect_err("refused").message().contains("is not the only output"));
}

#[test]
fn the_lists_of_operations_are_sorted() {
    assert!(ops::are_sorted());
}
