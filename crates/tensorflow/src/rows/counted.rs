//! Loops that count: the sizes of the inputs bound how often they run.
//!
//! `map_fn`, recurrent layers and `for` over the elements of a tensor become a `While` whose condition compares a
//! counter, which starts at a constant and to which each iteration adds 1, with a number that no iteration changes.

use tensorserve_proto::tensorflow::attr_value::Value as Attribute;
use tensorserve_proto::tensorflow::{FunctionDef, NodeDef};
use tensorserve_rows::{Size, Symbols, Value};

use super::call::constant;
use crate::scope::Scope;

/// The most conditions that are looked at, those that join others among them.
const MOST_CONDITIONS: usize = 64;

/// Whether the loop over `state`, which begins with `initial`, ends after a number of iterations that depends on
/// constants and on sizes of the inputs alone. No value of an input counts, however large it is.
pub(super) fn is_counted(condition: &FunctionDef, body: &FunctionDef, initial: &[Value]) -> bool {
    let (condition, body) = (Scope::of_function(condition, &[]), Scope::of_function(body, &[]));
    let is_counter = |index: usize| {
        let starts_at = initial.get(index).and_then(only_element).and_then(Size::as_number);
        starts_at.is_some() && adds_one(&body, index)
    };
    let is_limit = |index: usize| {
        let limit = initial.get(index).and_then(only_element);
        let is_size = limit.is_some_and(|limit| limit.is_fixed() || limit.is_rows());
        is_size && body.returns_argument(index)
    };
    // The loop ends as soon as one of the conditions that it joins does not hold.
    joined_conditions(&condition).into_iter().any(|node| {
        let [counter, limit] = &*node.input else { return false };
        node.op == "Less"
            && condition.argument_behind(counter).is_some_and(is_counter)
            && (constant_behind(&condition, limit).is_some()
                || condition.argument_behind(limit).is_some_and(is_limit))
    })
}

/// The only element of a tensor, if it is known.
fn only_element(value: &Value) -> Option<&Size> {
    match value.elements.as_deref()? {
        [only] => Some(only),
        _ => None,
    }
}

/// The nodes of the conditions that all must hold for the first result of a function to be true.
fn joined_conditions<'a>(function: &Scope<'a>) -> Vec<&'a NodeDef> {
    let mut waiting: Vec<&str> = function.result(0).into_iter().collect();
    let mut found = Vec::new();
    for _ in 0..MOST_CONDITIONS {
        let Some(name) = waiting.pop() else { break };
        let Some(&node) = function.nodes.get(name) else { continue };
        match &*node.op {
            "LogicalAnd" => {
                waiting.extend(node.input.iter().filter_map(|input| function.origin(input)));
            }
            _ => found.push(node),
        }
    }
    found
}

/// Whether result `index` of a function is always the argument of that number and 1. Such a counter does not overflow
/// before it reaches a limit of its type.
fn adds_one(body: &Scope, index: usize) -> bool {
    let sum = body.result(index).and_then(|name| body.nodes.get(name));
    let Some(sum) = sum.filter(|node| matches!(&*node.op, "AddV2" | "Add")) else {
        return false;
    };
    let [a, b] = &*sum.input else { return false };
    let is_counter = |name: &str| body.argument_behind(name) == Some(index);
    let is_one = |name: &str| constant_behind(body, name) == Some(1);
    (is_counter(a) && is_one(b)) || (is_counter(b) && is_one(a))
}

/// The integer that the tensor `name` is, if it is a constant.
fn constant_behind(function: &Scope, name: &str) -> Option<i64> {
    let node = function.nodes.get(function.origin(name)?).filter(|node| node.op == "Const")?;
    let Attribute::Tensor(tensor) = node.attr.get("value")?.value.as_ref()? else {
        return None;
    };
    only_element(&constant(tensor, &Symbols::default()))?.as_number()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::node;
    use tensorserve_proto::tensorflow::op_def::ArgDef;
    use tensorserve_proto::tensorflow::{AttrValue, ConstantProto, OpDef};
    use tensorserve_rows::Flow;

    /// A function of the arguments `i`, `n` and `other`.
    fn function(nodes: Vec<NodeDef>, results: &[&str]) -> FunctionDef {
        let arg = |name: &str| ArgDef { name: name.into(), ..ArgDef::default() };
        let names: Vec<String> = (0..results.len()).map(|index| format!("r{index}")).collect();
        FunctionDef {
            signature: Some(OpDef {
                input_arg: ["i", "n", "other"].map(arg).to_vec(),
                output_arg: names.iter().map(|name| arg(name)).collect(),
                ..OpDef::default()
            }),
            ret: names.into_iter().zip(results.iter().map(|&name| name.to_owned())).collect(),
            node_def: nodes,
            ..FunctionDef::default()
        }
    }

    fn number(name: &str, dtype: i32, value: i32) -> NodeDef {
        let tensor = ConstantProto { dtype, int_val: vec![value], ..ConstantProto::default() };
        let value = AttrValue { value: Some(Attribute::Tensor(tensor)) };
        let attr = [("value".to_owned(), value)].into();
        NodeDef { attr, ..node(name, "Const", &[]) }
    }

    /// `i < n and other < n`, as `map_fn` writes it.
    fn below() -> FunctionDef {
        let nodes = vec![
            node("a", "Less", &["i", "n"]),
            node("b", "Less", &["other", "n"]),
            node("both", "LogicalAnd", &["b:z:0", "a:z:0"]),
            node("all", "Identity", &["both:z:0"]),
        ];
        function(nodes, &["all:output:0"])
    }

    /// The condition that is one node.
    fn condition(node: NodeDef) -> FunctionDef {
        function(vec![node, number("five", 3, 5)], &["c:z:0"])
    }

    /// `i + step`, and `n` and `other` as results `n` and `other`.
    fn adding(step: NodeDef, results: [&str; 2]) -> FunctionDef {
        let nodes = vec![
            step,
            node("sum", "AddV2", &["step:output:0", "i"]),
            node("next", "Identity", &["sum:z:0"]),
            node("same", "Identity", &["n"]),
        ];
        function(nodes, &["next:output:0", results[0], results[1]])
    }

    fn one_more() -> FunctionDef {
        adding(number("step", 3, 1), ["same:output:0", "other"])
    }

    fn scalar(size: Size) -> Value {
        Value::of_elements(vec![size], Vec::new())
    }

    /// State of a counter that starts at 0 and a limit that is the number of rows.
    fn over_rows() -> Vec<Value> {
        let given = Value::new(Flow::Rows { axis: 0 }, None);
        vec![scalar(Size::number(0)), Value::scalar(Size::rows()), given]
    }

    #[test]
    fn a_counter_that_goes_up_to_a_size_is_counted() {
        let less = |inputs: &[&str]| condition(node("c", "Less", inputs));
        let length = [scalar(Size::number(-3)), scalar(Symbols::default().fresh())];
        let over_length = [&length[..], &over_rows()[2..]].concat();
        assert!(is_counted(&below(), &one_more(), &over_rows()));
        assert!(is_counted(&less(&["i", "n"]), &one_more(), &over_rows()));
        assert!(is_counted(&less(&["i", "n"]), &one_more(), &over_length));
        assert!(is_counted(&less(&["i", "five:output:0"]), &one_more(), &over_rows()));
    }

    #[test]
    fn loops_whose_end_an_input_or_the_body_decides_are_not_counted() {
        let (one, rows) = (one_more(), over_rows());
        for (op, inputs) in [
            ("LessEqual", ["i", "n"]),
            ("NotEqual", ["i", "n"]),
            ("Greater", ["i", "n"]),
            ("Less", ["n", "i"]),
            ("Less", ["i", "other"]),
            ("Less", ["other", "n"]),
            ("LogicalOr", ["i", "n"]),
        ] {
            assert!(
                !is_counted(&condition(node("c", op, &inputs)), &one, &rows),
                "{op} {inputs:?}"
            );
        }
        let either = vec![
            node("a", "Less", &["i", "n"]),
            node("b", "Less", &["other", "n"]),
            node("c", "LogicalOr", &["a:z:0", "b:z:0"]),
        ];
        assert!(!is_counted(&function(either, &["c:z:0"]), &one, &rows));
        let bodies = [
            adding(number("step", 3, 2), ["n", "other"]),
            adding(number("step", 3, 0), ["n", "other"]),
            adding(number("step", 1, 1), ["n", "other"]),
            adding(node("step", "Identity", &["other"]), ["n", "other"]),
            adding(number("step", 3, 1), ["next:output:0", "other"]),
            adding(number("step", 3, 1), ["other", "n"]),
            function(Vec::new(), &["i", "n", "other"]),
            function(Vec::new(), &[]),
        ];
        for body in bodies {
            assert!(!is_counted(&below(), &body, &rows), "{body:?}");
        }
        let given = rows[2].clone();
        let states = [
            vec![given.clone(), rows[1].clone(), given.clone()],
            vec![rows[0].clone(), given.clone(), given.clone()],
            vec![rows[0].clone(), scalar(Size::Other), given],
            Vec::new(),
        ];
        for state in states {
            assert!(!is_counted(&below(), &one, &state), "{state:?}");
        }
        let endless = function(vec![node("c", "LogicalAnd", &["c:z:0", "c:z:0"])], &["c:z:0"]);
        assert!(!is_counted(&endless, &one, &rows));
    }
}
