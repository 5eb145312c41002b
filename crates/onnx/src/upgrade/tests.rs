//! Operators that were once refused. The expected numbers are calculated by hand.

use super::*;
use crate::graph::{float, tensor_info};
use crate::tests::{close, compute, constant as tensor, floats_of, load, run, save};
use tensorserve_tensor::{DType, Tensor};

/// Numbers of `Shape` and of constants are floats where version 1 wanted the type of the input.
fn number(name: &str, value: f32) -> TensorProto {
    tensor(name, &[1], &[value])
}

fn x() -> Tensor {
    floats_of(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0])
}

#[test]
fn a_tile_along_one_axis_lists_the_repeats_of_all() {
    let tile = || vec![node("Tile", &["x", "count", "axis"], &["y"])];
    let constants = vec![number("count", 2.0), number("axis", 1.0)];
    let tiled = compute(1, tile(), constants, &x());
    close(&tiled, &[1, 4, 2], &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    // A number that is computed.
    let computed = vec![
        node("ReduceMax", &["x"], &["count"]).with(int("keepdims", 0)),
        node("Tile", &["x", "count", "axis"], &["y"]),
    ];
    let tiled = compute(1, computed, vec![number("axis", 2.0)], &x());
    assert_eq!(tiled.shape().dims(), [1, 2, 8]);
    let error = {
        let constants = vec![number("count", 2.0), number("axis", 3.0)];
        let mut model = crate::tests::model(1, tile(), &[("x", DType::Float, &[1, 2, 2])]);
        model.graph.as_mut().expect("a graph").initializer = constants;
        let (_folder, file) = save(&model);
        load(&file).err().expect("out of range")
    };
    assert_eq!(error.code(), Code::DataLoss, "{error}");
}

#[test]
fn the_sizes_of_a_split_become_an_attribute() {
    let nodes = vec![
        node("Split", &["x", "sizes"], &["a", "b"]).with(int("axis", 1)),
        node("Concat", &["b", "a"], &["y"]).with(int("axis", 1)),
    ];
    let x = floats_of(&[1, 3], &[1.0, 2.0, 3.0]);
    let got = compute(1, nodes, vec![tensor("sizes", &[2], &[1.0, 2.0])], &x);
    close(&got, &[1, 3], &[2.0, 3.0, 1.0]);
}

/// The graph of a branch, which takes values of the graph around it.
fn branch(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
    let mut output = tensor_info(output, DType::Float, &[]);
    output.r#type = None;
    GraphProto {
        name: "branch".to_owned(),
        node: nodes,
        output: vec![output],
        ..GraphProto::default()
    }
}

fn graph_attribute(name: &str, graph: GraphProto) -> AttributeProto {
    let mut attribute = int(name, 0);
    attribute.i = None;
    attribute.g = Some(graph);
    attribute.set_type(AttributeType::Graph);
    attribute
}

#[test]
fn branches_and_loops_are_upgraded_inside() {
    let add = |from: &str, to: &str| {
        node("Add", &[from, "b"], &[to]).with(int("broadcast", 1)).with(int("axis", 1))
    };
    let zero = node("Cast", &["x"], &["whole"]).with(int("to", 9));
    let first = node("ReduceMax", &["x"], &["most"]).with(int("keepdims", 0));
    let is_large = vec![first, node("Greater", &["most", "limit"], &["large"])];
    let mut nodes = is_large;
    nodes.push(
        node("If", &["large"], &["y"])
            .with(graph_attribute("then_branch", branch(vec![add("x", "then")], "then")))
            .with(graph_attribute(
                "else_branch",
                branch(vec![zero, node("Neg", &["x"], &["else"])], "else"),
            )),
    );
    let b = || tensor("b", &[2], &[10.0, 20.0]);
    let limit = |value: f32| tensor("limit", &[], &[value]);
    let large = compute(6, nodes.clone(), vec![b(), limit(3.0)], &x());
    close(&large, &[1, 2, 2], &[11.0, 12.0, 23.0, 24.0]);
    let small = compute(6, nodes, vec![b(), limit(5.0)], &x());
    close(&small, &[1, 2, 2], &[-1.0, -2.0, -3.0, -4.0]);

    let mut body =
        branch(vec![node("Identity", &["go"], &["go on"]), add("before", "after")], "after");
    body.input = vec![
        tensor_info("round", DType::Int64, &[]),
        tensor_info("go", DType::Bool, &[]),
        tensor_info("before", DType::Float, &[1, 2, 2]),
    ];
    body.output = vec![
        tensor_info("go on", DType::Bool, &[]),
        tensor_info("after", DType::Float, &[1, 2, 2]),
    ];
    let repeat = node("Loop", &["rounds", "", "x"], &["y"]).with(graph_attribute("body", body));
    let mut model = crate::tests::model(1, vec![repeat], &[("x", DType::Float, &[1, 2, 2])]);
    let graph = model.graph.as_mut().expect("a graph");
    graph.initializer = vec![b(), TensorProto { dims: vec![], ..int64_vector("rounds", &[2]) }];
    graph.output = vec![tensor_info("y", DType::Float, &[1, 2, 2])];
    let (_folder, file) = save(&model);
    let got = run(&load(&file).expect("loads"), &[x()]).expect("runs");
    close(&got[0], &[1, 2, 2], &[21.0, 22.0, 43.0, 44.0]);
}

#[test]
fn experimental_operators_are_run() {
    let image = floats_of(&[1, 2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let one = |node: NodeProto| compute(1, vec![node], Vec::new(), &image);
    let op = |name: &str| node(name, &["x"], &["y"]);
    let scaled =
        one(op("ImageScaler").with(float("scale", 2.0)).with(floats("bias", &[1.0, -1.0])));
    close(&scaled, &[1, 2, 1, 2], &[3.0, 5.0, 5.0, 7.0]);
    let affine = one(op("Affine").with(float("alpha", 2.0)).with(float("beta", 1.0)));
    close(&affine, &[1, 2, 1, 2], &[3.0, 5.0, 7.0, 9.0]);
    close(&one(op("Scale").with(float("scale", 0.5))), &[1, 2, 1, 2], &[0.5, 1.0, 1.5, 2.0]);
    let tanh = one(op("ScaledTanh").with(float("alpha", 2.0)).with(float("beta", 0.0)));
    close(&tanh, &[1, 2, 1, 2], &[0.0; 4]);
    let softplus = one(op("ParametricSoftplus").with(float("alpha", 1.0)).with(float("beta", 0.0)));
    close(&softplus, &[1, 2, 1, 2], &[2.0_f32.ln(); 4]);
    let above = one(op("ThresholdedRelu").with(float("alpha", 2.5)));
    close(&above, &[1, 2, 1, 2], &[0.0, 0.0, 3.0, 4.0]);
    let cropped = one(op("Crop").with(ints("border", &[1, 0, 0, 0])));
    close(&cropped, &[1, 2, 1, 1], &[2.0, 4.0]);
}

#[test]
fn operators_that_write_constants_become_constants() {
    let filled = |fill: NodeProto| vec![fill, node("Add", &["x", "c"], &["y"])];
    let row = floats_of(&[2], &[1.0, 2.0]);
    let fill =
        node("ConstantFill", &[], &["c"]).with(ints("shape", &[2])).with(float("value", 3.0));
    close(&compute(1, filled(fill), Vec::new(), &row), &[2], &[4.0, 5.0]);
    let given = node("GivenTensorFill", &[], &["c"]).with(ints("shape", &[2]));
    let given = given.with(floats("values", &[5.0, 7.0]));
    close(&compute(1, filled(given), Vec::new(), &row), &[2], &[6.0, 9.0]);
    let huge = node("ConstantFill", &[], &["c"]).with(ints("shape", &[1 << 40, 1 << 40]));
    let (_folder, file) = save(&crate::tests::model(1, filled(huge), &[("x", DType::Float, &[2])]));
    assert_eq!(load(&file).err().expect("too large").code(), Code::Unimplemented);
}
