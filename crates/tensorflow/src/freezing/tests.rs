//! Tests of what becomes of graphs, without the library.

use std::collections::{HashMap, HashSet};

use prost::Message;

use super::forms::{FrozenVariables, GraphRewrites, plans};
use super::rewrite::{FrozenCounts, FrozenGraph, frozen};
use super::{Edit, with_graph};
use crate::registry::tests::node;
use tensorserve_proto::tensorflow::attr_value::{ListValue, Value};
use tensorserve_proto::tensorflow::op_def::ArgDef;
use tensorserve_proto::tensorflow::{
    AttrValue, FunctionDef, FunctionDefLibrary, GraphDef, MetaGraphDef, NameAttrList, NodeDef,
    OpDef, SavedModel,
};
use tensorserve_tensor::{DType, Shape, Tensor};

const FLOAT: Value = Value::Type(1);
const INT32: Value = Value::Type(3);

fn with(node: NodeDef, name: &str, value: Value) -> NodeDef {
    let mut attr = node.attr;
    attr.insert(name.to_owned(), AttrValue { value: Some(value) });
    NodeDef { attr, ..node }
}

fn called(name: &str) -> NameAttrList {
    NameAttrList { name: name.to_owned(), ..NameAttrList::default() }
}

fn calling(name: &str, op: &str, inputs: &[&str], functions: &[(&str, &str)]) -> NodeDef {
    functions.iter().fold(node(name, op, inputs), |node, (attribute, function)| {
        with(node, attribute, Value::Func(called(function)))
    })
}

fn read(name: &str, handle: &str) -> NodeDef {
    with(node(name, "ReadVariableOp", &[handle]), "dtype", FLOAT)
}

fn variable(name: &str) -> NodeDef {
    with(node(name, "VarHandleOp", &[]), "dtype", FLOAT)
}

fn function(
    name: &str,
    arguments: &[&str],
    results: &[(&str, &str)],
    body: Vec<NodeDef>,
) -> FunctionDef {
    let argument = |name: &&str| ArgDef { name: (*name).to_owned(), ..ArgDef::default() };
    let result =
        |(name, _): &(&str, &str)| ArgDef { name: (*name).to_owned(), ..ArgDef::default() };
    FunctionDef {
        signature: Some(OpDef {
            name: name.to_owned(),
            input_arg: arguments.iter().map(argument).collect(),
            output_arg: results.iter().map(result).collect(),
            ..OpDef::default()
        }),
        node_def: body,
        ret: results.iter().map(|(name, from)| ((*name).to_owned(), (*from).to_owned())).collect(),
        ..FunctionDef::default()
    }
}

fn floats(values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    Tensor::from_bytes(DType::Float, Shape::vector(values.len()), bytes.into()).expect("valid")
}

/// Freezes a graph in which all nodes count, and `variables` have values.
fn freeze(graph: &GraphDef, variables: &[(&str, &Tensor)]) -> (GraphDef, FrozenCounts) {
    freeze_some(graph, variables, FrozenVariables::All)
}

fn freeze_some(
    graph: &GraphDef,
    variables: &[(&str, &Tensor)],
    which: FrozenVariables,
) -> (GraphDef, FrozenCounts) {
    let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
    let values: Vec<Tensor> = variables.iter().map(|(_, value)| (*value).clone()).collect();
    let handles: HashMap<&str, usize> = names.into_iter().zip(0..).collect();
    let reachable: HashSet<&str> = graph.node.iter().map(|node| node.name.as_str()).collect();
    let result = frozen((graph, &graph.encode_to_vec()), &reachable, handles, &values, which);
    let FrozenGraph { encoded, counts } = result.expect("frozen");
    (GraphDef::decode(encoded.as_slice()).expect("a graph"), counts)
}

fn graph(nodes: Vec<NodeDef>, functions: Vec<FunctionDef>) -> GraphDef {
    let library = Some(FunctionDefLibrary { function: functions });
    GraphDef { node: nodes, library }
}

fn node_of<'g>(nodes: &'g [NodeDef], name: &str) -> &'g NodeDef {
    nodes.iter().find(|node| node.name == name).expect("the node")
}

fn body_of<'g>(graph: &'g GraphDef, function: &str) -> &'g FunctionDef {
    let functions = &graph.library.as_ref().expect("functions").function;
    let named = |it: &&FunctionDef| it.signature.as_ref().is_some_and(|s| s.name == function);
    functions.iter().find(named).expect("the function")
}

fn function_of(node: &NodeDef, attribute: &str) -> String {
    match node.attr[attribute].value.as_ref() {
        Some(Value::Func(function)) => function.name.clone(),
        other => panic!("{other:?}"),
    }
}

/// The floats of a constant.
fn content(node: &NodeDef) -> Vec<f32> {
    assert_eq!(node.op, "Const");
    let Some(Value::Tensor(tensor)) = &node.attr["value"].value else { panic!("no value") };
    let bytes = tensor.tensor_content.as_chunks::<4>().0;
    bytes.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

#[test]
fn a_function_is_cloned_for_each_variable_that_it_is_called_with() {
    let body = vec![
        node("id", "Identity", &["w"]),
        read("read", "id:output:0"),
        node("sum", "AddV2", &["x", "read:value:0"]),
    ];
    let nodes = vec![
        variable("a"),
        variable("b"),
        calling("one", "StatefulPartitionedCall", &["in", "a"], &[("f", "layer")]),
        calling("two", "PartitionedCall", &["one", "b", "^one"], &[("f", "layer")]),
        calling("again", "PartitionedCall", &["two", "a"], &[("f", "layer")]),
    ];
    let layer = function("layer", &["x", "w"], &[("y", "sum:z:0"), ("r", "read:value:0")], body);
    let (a, b) = (floats(&[1.0, 2.0]), floats(&[3.0]));
    let (frozen, counts) = freeze(&graph(nodes, vec![layer.clone()]), &[("a", &a), ("b", &b)]);
    let want = FrozenCounts { constants: 2, constant_bytes: 12, has_variables: false };
    assert_eq!(counts, want);
    let names = ["one", "two", "again"].map(|name| function_of(node_of(&frozen.node, name), "f"));
    assert_eq!(names[0], names[2]);
    assert_ne!(names[0], names[1]);
    for (name, value) in [(&names[0], vec![1.0, 2.0]), (&names[1], vec![3.0])] {
        let clone = body_of(&frozen, name);
        assert_eq!(content(node_of(&clone.node_def, "read")), value);
        assert!(node_of(&clone.node_def, "read").input.is_empty());
        // Outputs of constants have another name; all others stay.
        assert_eq!(node_of(&clone.node_def, "sum").input, ["x", "read:output:0"]);
        assert_eq!(
            (clone.ret["y"].as_str(), clone.ret["r"].as_str()),
            ("sum:z:0", "read:output:0")
        );
        assert_eq!(clone.signature.as_ref().expect("one").input_arg.len(), 2);
    }
    assert_eq!(body_of(&frozen, "layer"), &layer, "the original stays");
    assert_eq!(node_of(&frozen.node, "two").input, ["one", "b", "^one"]);
}

#[test]
fn reads_of_the_graph_itself_keep_their_name_and_order() {
    let nodes = vec![variable("v"), node("before", "NoOp", &[]), {
        with(node("read", "ReadVariableOp", &["v", "^before"]), "dtype", FLOAT)
    }];
    let (frozen, counts) = freeze(&graph(nodes, Vec::new()), &[("v", &floats(&[5.0]))]);
    assert_eq!(content(node_of(&frozen.node, "read")), [5.0]);
    assert_eq!(node_of(&frozen.node, "read").input, ["^before"]);
    assert!(!counts.has_variables);
}

#[test]
fn lookups_of_rows_take_them_from_constants() {
    let lookup = node("rows", "ResourceGather", &["table", "ids", "^first"]);
    let lookup = with(with(lookup, "dtype", FLOAT), "Tindices", INT32);
    let body = vec![lookup.clone(), node("twice", "AddV2", &["rows:output:0", "rows:output:0"])];
    let lookups = function("lookups", &["table", "ids"], &[("y", "twice:z:0")], body);
    let nodes = vec![
        variable("v"),
        calling("call", "PartitionedCall", &["v", "in"], &[("f", "lookups")]),
        with(with(node("top", "ResourceGather", &["v", "in"]), "dtype", FLOAT), "Tindices", INT32),
    ];
    let (frozen, counts) =
        freeze(&graph(nodes, vec![lookups]), &[("v", &floats(&[1.0, 2.0, 3.0]))]);
    assert_eq!((counts.constants, counts.has_variables), (2, false));
    let top = node_of(&frozen.node, "top");
    assert_eq!((top.op.as_str(), top.attr["Taxis"].value.as_ref()), ("GatherV2", Some(&INT32)));
    assert_eq!(top.input, ["top/frozen_params", "in", "top/frozen_axis"]);
    assert_eq!(content(node_of(&frozen.node, "top/frozen_params")), [1.0, 2.0, 3.0]);
    let name = function_of(node_of(&frozen.node, "call"), "f");
    let clone = body_of(&frozen, &name);
    let inputs = ["rows/frozen_params:output:0", "ids", "rows/frozen_axis:output:0", "^first"];
    assert_eq!(node_of(&clone.node_def, "rows").input, inputs);
    assert_eq!(node_of(&clone.node_def, "twice").input, ["rows:output:0", "rows:output:0"]);
}

#[test]
fn weights_stay_variables_if_their_order_counts() {
    let zeros = |dims: &[i64]| {
        let bytes = vec![0; 4 * dims.iter().product::<i64>() as usize];
        Tensor::from_bytes(DType::Float, Shape::new(dims).expect("small"), bytes.into())
            .expect("valid")
    };
    let (filter, matrix, vector) = (zeros(&[1, 1, 2]), zeros(&[1, 2]), zeros(&[2]));
    let lookup = with(node("rows", "ResourceGather", &["w", "ids"]), "dtype", FLOAT);
    let nodes = vec![
        variable("f"),
        variable("w"),
        variable("b"),
        read("filters", "f"),
        read("weights", "w"),
        read("bias", "b"),
        with(lookup, "Tindices", INT32),
    ];
    let graph = graph(nodes, Vec::new());
    let run = |which| {
        let variables = [("f", &filter), ("w", &matrix), ("b", &vector)];
        let (frozen, counts) = freeze_some(&graph, &variables, which);
        let is_constant = |name| node_of(&frozen.node, name).op == "Const";
        assert_eq!(node_of(&frozen.node, "rows").op, "GatherV2");
        (["filters", "weights", "bias"].map(is_constant), counts.has_variables)
    };
    assert_eq!(run(FrozenVariables::All), ([true, true, true], false));
    assert_eq!(run(FrozenVariables::NoMatrices), ([true, false, true], true));
    assert_eq!(run(FrozenVariables::NoWeights), ([false, false, true], true));
    use FrozenVariables::{All, NoMatrices, NoWeights};
    for (values, forms) in [
        (vec![&vector], vec![All]),
        (vec![&vector, &matrix], vec![All, NoMatrices]),
        (vec![&filter], vec![All, NoWeights]),
        (vec![&filter, &matrix], vec![All, NoMatrices, NoWeights]),
    ] {
        let values: Vec<Tensor> = values.into_iter().cloned().collect();
        let sets: Vec<_> =
            plans(["Relu"].into_iter(), &values, true).iter().map(|plan| plan.variables).collect();
        assert_eq!(sets, forms.into_iter().map(Some).collect::<Vec<_>>());
    }
}

#[test]
fn models_with_products_have_copies_without_fused_operations() {
    use FrozenVariables::{All, NoMatrices};
    use GraphRewrites::{NoFolding, NoFusion};
    let vector = floats(&[1.0, 2.0]);
    let matrix = vector.reshaped(Shape::new(&[1, 2]).expect("a shape")).expect("a matrix");
    let of =
        |op: &str, values: &[&Tensor], may_stay| -> Vec<(CopyVariables, GraphRewrites, bool)> {
            let values: Vec<Tensor> = values.iter().map(|value| (*value).clone()).collect();
            let plans = plans([op].into_iter(), &values, may_stay);
            plans.iter().map(|it| (it.variables, it.rewrites, it.ends_group)).collect()
        };
    let unfused = (None, NoFusion, true);
    assert_eq!(of("Relu", &[], true), []);
    assert_eq!(of("Relu", &[&vector], true), [(Some(All), GraphRewrites::All, true)]);
    assert_eq!(of("MatMul", &[], true), [unfused]);
    assert_eq!(of("MatMul", &[&vector], false), [(Some(All), GraphRewrites::All, true)]);
    assert_eq!(
        of("MatMul", &[&vector, &matrix], true),
        [
            (Some(All), GraphRewrites::All, false),
            (Some(All), NoFusion, true),
            (Some(NoMatrices), GraphRewrites::All, false),
            (Some(All), NoFolding, true),
            unfused
        ]
    );
}

type CopyVariables = Option<FrozenVariables>;

#[test]
fn of_a_loop_only_what_no_round_replaces_is_known() {
    let condition = function("cond", &["i", "a", "b"], &[("go", "less:z:0")], vec![]);
    let body = |returned: (&'static str, &'static str)| {
        let results = [("i1", "next:z:0"), ("a1", returned.0), ("b1", returned.1)];
        let nodes = vec![
            read("of_a", "a"),
            read("of_b", "b"),
            node("kept", "Identity", &["a"]),
            node("next", "AddN", &["i", "of_a:value:0", "of_b:value:0"]),
        ];
        function("body", &["i", "a", "b"], &results, nodes)
    };
    let nodes = || {
        let functions = [("cond", "cond"), ("body", "body")];
        vec![variable("v"), variable("w"), calling("loop", "While", &["in", "v", "w"], &functions)]
    };
    let values = (floats(&[1.0]), floats(&[2.0]));
    let run = |returned| {
        let graph = graph(nodes(), vec![condition.clone(), body(returned)]);
        let (frozen, counts) = freeze(&graph, &[("v", &values.0), ("w", &values.1)]);
        let name = function_of(node_of(&frozen.node, "loop"), "body");
        let ops = ["of_a", "of_b"]
            .map(|read| node_of(&body_of(&frozen, &name).node_def, read).op.clone());
        (ops, counts.has_variables)
    };
    assert_eq!(run(("kept:output:0", "b")), (["Const", "Const"].map(str::to_owned), false));
    // The second handle becomes the first one after a round.
    let mixed = ["Const", "ReadVariableOp"].map(str::to_owned);
    assert_eq!(run(("a", "a")), (mixed, true));
    let swapped = ["ReadVariableOp", "ReadVariableOp"].map(str::to_owned);
    assert_eq!(run(("b", "a")), (swapped, true));
}

#[test]
fn branches_get_what_comes_behind_the_condition() {
    let branch =
        |name: &str| function(name, &["w"], &[("y", "read:value:0")], vec![read("read", "w")]);
    let branches =
        Value::List(ListValue { func: vec![called("one"), called("two")], ..ListValue::default() });
    let nodes = vec![
        variable("v"),
        with(node("case", "Case", &["which", "v"]), "branches", branches),
        calling(
            "if",
            "StatelessIf",
            &["which", "v"],
            &[("then_branch", "one"), ("else_branch", "two")],
        ),
    ];
    let graph = graph(nodes, vec![branch("one"), branch("two")]);
    let (frozen, counts) = freeze(&graph, &[("v", &floats(&[4.0]))]);
    assert_eq!((counts.constants, counts.has_variables), (2, false));
    let Some(Value::List(list)) = &node_of(&frozen.node, "case").attr["branches"].value else {
        panic!("no branches")
    };
    let of_case: Vec<&str> = list.func.iter().map(|it| it.name.as_str()).collect();
    let choose = node_of(&frozen.node, "if");
    assert_eq!(of_case, [function_of(choose, "then_branch"), function_of(choose, "else_branch")]);
    for name in of_case {
        assert_eq!(content(node_of(&body_of(&frozen, name).node_def, "read")), [4.0]);
    }
}

#[test]
fn whatever_may_need_a_variable_keeps_all_of_them() {
    let value = floats(&[1.0]);
    let has_variables = |nodes: Vec<NodeDef>, functions: Vec<FunctionDef>| {
        let nodes = [variable("v"), read("read", "v")].into_iter().chain(nodes).collect();
        freeze(&graph(nodes, functions), &[("v", &value)]).1.has_variables
    };
    let reading = || function("reads", &["w"], &[("y", "r:value:0")], vec![read("r", "w")]);
    assert!(!has_variables(vec![node("x", "Relu", &["read"])], vec![]));
    let suspects = [
        read("other", "unknown"),
        node("shape", "VariableShape", &["v"]),
        node("switch", "Switch", &["v", "condition"]),
        calling("map", "MapDataset", &["v"], &[("f", "reads")]),
        calling("map", "MapDataset", &["x"], &[("f", "reads")]),
        node("old", "reads", &["x"]),
        node("tf1", "VariableV2", &[]),
        calling("call", "PartitionedCall", &["x"], &[("f", "reads")]),
        with(node("wrong", "ReadVariableOp", &["v"]), "dtype", INT32),
    ];
    for suspect in suspects {
        assert!(has_variables(vec![suspect.clone()], vec![reading()]), "{suspect:?}");
    }
    let inner = function("inner", &[], &[], vec![variable("hidden")]);
    assert!(has_variables(vec![], vec![inner]));
}

#[test]
fn constants_have_a_limit() {
    let half = floats(&vec![0.5; 10 << 20]);
    let nodes = vec![variable("v"), read("one", "v"), read("two", "v")];
    let (frozen, counts) = freeze(&graph(nodes, Vec::new()), &[("v", &half)]);
    assert_eq!((counts.constants, counts.has_variables), (1, true));
    let ops = ["one", "two"].map(|name| node_of(&frozen.node, name).op.as_str());
    assert_eq!(ops, ["Const", "ReadVariableOp"]);
}

#[test]
fn calls_without_end_are_refused() {
    let chain = |number: usize| {
        let next = format!("f{}", number + 1);
        let nodes = vec![calling("call", "PartitionedCall", &["w"], &[("f", &next)])];
        function(&format!("f{number}"), &["w"], &[], nodes)
    };
    let functions: Vec<FunctionDef> = (0..1000).map(chain).collect();
    let nodes = vec![variable("v"), calling("call", "PartitionedCall", &["v"], &[("f", "f0")])];
    let graph = graph(nodes, functions);
    let reachable = graph.node.iter().map(|node| node.name.as_str()).collect();
    let handles = HashMap::from([("v", 0)]);
    let result = frozen(
        (&graph, &graph.encode_to_vec()),
        &reachable,
        handles,
        &[floats(&[1.0])],
        FrozenVariables::All,
    );
    assert!(result.is_err_and(|error| error.message().contains("call too many others")));
}

#[test]
fn only_one_part_of_a_model_changes() {
    let part = |name: &str| MetaGraphDef {
        graph_def: Some(graph(vec![node(name, "NoOp", &[])], Vec::new())),
        ..MetaGraphDef::default()
    };
    let model =
        SavedModel { saved_model_schema_version: 1, meta_graphs: vec![part("a"), part("b")] };
    let encoded = model.encode_to_vec();
    let other = graph(vec![node("c", "NoOp", &[])], Vec::new()).encode_to_vec();
    let copy = with_graph(&encoded, 1, |_| Ok(other.clone())).expect("valid");
    let copy = SavedModel::decode(copy.as_slice()).expect("a model");
    assert_eq!(copy, SavedModel { meta_graphs: vec![part("a"), part("c")], ..model });
    assert!(with_graph(&encoded, 2, |_| Ok(Vec::new())).is_err());
    let keep = super::edited(&encoded, |_, _| Ok(Edit::Keep)).expect("valid");
    assert_eq!(keep, encoded);
}
