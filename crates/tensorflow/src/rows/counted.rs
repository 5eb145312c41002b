//! Loops that count: the sizes of the inputs bound how often they run.
//!
//! `map_fn`, recurrent layers and `for` over the elements of a tensor become a `While` whose condition compares a
//! counter, which starts at a constant and to which each iteration adds 1, with a number that no iteration changes.

use std::collections::HashMap;

use tensorserve_proto::tensorflow::attr_value::Value as Attribute;
use tensorserve_proto::tensorflow::{FunctionDef, NodeDef};
use tensorserve_rows::{Size, Symbols, Value};

use super::call::constant;

/// The most operations that pass a tensor on or join conditions, one after the other.
const MOST_HOPS: usize = 64;

/// Whether the loop over `state`, which begins with `initial`, ends after a number of iterations that depends on
/// constants and on sizes of the inputs alone. No value of an input counts, however large it is.
pub(super) fn is_counted(condition: &FunctionDef, body: &FunctionDef, initial: &[Value]) -> bool {
    let (condition, body) = (Body::new(condition), Body::new(body));
    let is_counter = |index: usize| {
        let starts_at = initial.get(index).and_then(only_element).and_then(Size::as_number);
        starts_at.is_some() && body.adds_one(index)
    };
    let is_limit = |index: usize| {
        let limit = initial.get(index).and_then(only_element);
        let is_size = limit.is_some_and(|limit| limit.is_fixed() || limit.is_rows());
        is_size && body.returns_argument(index)
    };
    // The loop ends as soon as one of the conditions that it joins does not hold.
    condition.joined().into_iter().filter_map(|name| condition.node(name)).any(|node| {
        let [counter, limit] = &*node.input else { return false };
        let (counter, limit) = (condition.origin(counter), condition.origin(limit));
        node.op == "Less"
            && condition.argument(counter).is_some_and(is_counter)
            && (condition.constant(limit).is_some()
                || condition.argument(limit).is_some_and(is_limit))
    })
}

/// The only element of a tensor, if it is known.
fn only_element(value: &Value) -> Option<&Size> {
    match value.elements.as_deref()? {
        [only] => Some(only),
        _ => None,
    }
}

/// A function of a loop.
struct Body<'a> {
    function: &'a FunctionDef,
    nodes: HashMap<&'a str, &'a NodeDef>,
}

impl<'a> Body<'a> {
    fn new(function: &'a FunctionDef) -> Self {
        let nodes = function.node_def.iter().map(|node| (node.name.as_str(), node)).collect();
        Body { function, nodes }
    }

    fn node(&self, name: &str) -> Option<&'a NodeDef> {
        self.nodes.get(name).copied()
    }

    /// The number of the argument `name`.
    fn argument(&self, name: &str) -> Option<usize> {
        let arguments = &self.function.signature.as_ref()?.input_arg;
        arguments.iter().position(|argument| argument.name == name)
    }

    /// The tensor that result `index` is.
    fn result(&self, index: usize) -> Option<&'a str> {
        let output = self.function.signature.as_ref()?.output_arg.get(index)?;
        self.function.ret.get(&output.name).map(|name| self.origin(name))
    }

    /// The argument or the node that the tensor `name` comes from, if operations only pass it on.
    fn origin(&self, name: &'a str) -> &'a str {
        let mut name = root(name);
        for _ in 0..MOST_HOPS {
            let passed_on = self.node(name).filter(|node| node.op == "Identity");
            match passed_on.and_then(|node| node.input.first()) {
                Some(input) => name = root(input),
                None => break,
            }
        }
        name
    }

    /// The nodes of the conditions that all must hold for the first result to be true.
    fn joined(&self) -> Vec<&'a str> {
        let mut joined: Vec<&str> = self.result(0).into_iter().collect();
        let mut next = 0;
        while let Some(node) = joined.get(next).and_then(|name| self.node(name)) {
            match node.op == "LogicalAnd" && joined.len() < MOST_HOPS {
                true => {
                    joined.swap_remove(next);
                    joined.extend(node.input.iter().map(|input| self.origin(input)));
                }
                false => next += 1,
            }
        }
        joined
    }

    /// Whether result `index` is always the argument of that number.
    fn returns_argument(&self, index: usize) -> bool {
        self.result(index).and_then(|name| self.argument(name)) == Some(index)
    }

    /// Whether result `index` is always the argument of that number and 1. Such a counter does not overflow before it
    /// reaches a limit of its type.
    fn adds_one(&self, index: usize) -> bool {
        let sum = self.result(index).and_then(|name| self.node(name));
        let Some(sum) = sum.filter(|node| matches!(&*node.op, "AddV2" | "Add")) else {
            return false;
        };
        let [a, b] = &*sum.input else { return false };
        let (a, b) = (self.origin(a), self.origin(b));
        let is_sum =
            |counter, step| self.argument(counter) == Some(index) && self.constant(step) == Some(1);
        is_sum(a, b) || is_sum(b, a)
    }

    /// The integer that the node `name` is, if it is a constant.
    fn constant(&self, name: &str) -> Option<i64> {
        let node = self.node(name).filter(|node| node.op == "Const")?;
        let Attribute::Tensor(tensor) = node.attr.get("value")?.value.as_ref()? else {
            return None;
        };
        only_element(&constant(tensor, &Symbols::default()))?.as_number()
    }
}

/// The node or argument of an input (`node`, `node:1`, `node:output:1`).
fn root(input: &str) -> &str {
    input.split_once(':').map_or(input, |(name, _)| name)
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
