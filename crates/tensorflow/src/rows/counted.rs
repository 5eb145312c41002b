//! Loops that count: the sizes of the inputs bound how often they run.
//!
//! `map_fn`, recurrent layers and `for` over the elements of a tensor become a loop whose condition compares a counter,
//! which starts at a constant and to which each iteration adds 1, with a number that no iteration changes. The loop is a
//! `While` with two functions, or in TensorFlow 1 a cycle of `Merge`, `Switch` and `NextIteration`, which a `LoopCond` ends.

use std::collections::{HashMap, HashSet};

use tensorserve_proto::tensorflow::attr_value::Value as Attribute;
use tensorserve_proto::tensorflow::{FunctionDef, NodeDef};
use tensorserve_rows::{Size, Symbols, Value};

use super::call::constant;
use crate::scope::{Scope, root};

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
    let is_limit =
        |index: usize| initial.get(index).is_some_and(is_size) && body.returns_argument(index);
    // The loop ends as soon as one of the conditions that it joins does not hold.
    joined_conditions(&condition, condition.result(0)).into_iter().any(|node| {
        let [counter, limit] = &*node.input else { return false };
        node.op == "Less"
            && condition.argument_behind(counter).is_some_and(is_counter)
            && (constant_behind(&condition, limit).is_some()
                || condition.argument_behind(limit).is_some_and(is_limit))
    })
}

/// The loops of TensorFlow 1 in a graph: each `NextIteration`, and whether its loop is counted, as [`is_counted`] says of
/// a `While`. `value_of` is what is known of a tensor.
pub(super) fn counted_iterations<'a>(
    scope: &Scope<'a>,
    value_of: impl Fn(&str) -> Value,
) -> Vec<(&'a NodeDef, bool)> {
    let frames = Frames::of(scope);
    let counted = |node: &&'a NodeDef| {
        let end = frames.merges.get(&*node.name).and_then(|merge| frames.ends.get(merge));
        let counts = |end: &&str| frames.is_counted(end, &value_of) && frames.is_ended(node, end);
        (*node, end.is_some_and(counts))
    };
    let all = scope.nodes.values().copied();
    let iterations: Vec<&NodeDef> = all.filter(|node| node.op == "NextIteration").collect();
    iterations.iter().map(counted).collect()
}

/// How the nodes of the loops of TensorFlow 1 belong together.
struct Frames<'s, 'a> {
    scope: &'s Scope<'a>,
    /// The `Merge` that a `NextIteration` leads to.
    merges: HashMap<&'a str, &'a str>,
    /// The `LoopCond` that ends the loop of a `Merge`.
    ends: HashMap<&'a str, &'a str>,
}

impl<'s, 'a> Frames<'s, 'a> {
    fn of(scope: &'s Scope<'a>) -> Self {
        let (mut merges, mut ends) = (HashMap::new(), HashMap::new());
        for node in scope.nodes.values() {
            match &*node.op {
                "Merge" => {
                    merges.extend(node.input.iter().map(|input| (root(input), node.name.as_str())))
                }
                "Switch" => {
                    let [value, condition] = &*node.input else { continue };
                    let merge = scope.nodes.get(root(value)).filter(|node| node.op == "Merge");
                    let end = scope.nodes.get(root(condition)).filter(|it| it.op == "LoopCond");
                    ends.extend(merge.zip(end).map(|(merge, end)| (&*merge.name, &*end.name)));
                }
                _ => {}
            }
        }
        Frames { scope, merges, ends }
    }

    /// Whether the loop that the `LoopCond` `end` ends is counted.
    fn is_counted(&self, end: &str, value_of: impl Fn(&str) -> Value) -> bool {
        let condition = self.scope.nodes.get(end).and_then(|node| node.input.first());
        let conditions = joined_conditions(self.scope, condition.map(String::as_str));
        conditions.into_iter().any(|node| {
            let [counter, limit] = &*node.input else { return false };
            node.op == "Less"
                && self.is_counter(counter, end)
                && (constant_behind(self.scope, limit).is_some()
                    || self.constant_input(limit).is_some_and(|name| is_size(&value_of(name))))
        })
    }

    /// Whether a next iteration needs a value that the `LoopCond` `end` lets pass.
    fn is_ended(&self, iteration: &'a NodeDef, end: &str) -> bool {
        let mut waiting = vec![iteration];
        let mut seen = HashSet::new();
        while let Some(node) = waiting.pop() {
            if node.op == "Switch" && node.input.get(1).is_some_and(|it| root(it) == end) {
                return true;
            }
            let before = node.input.iter().map(|input| input.trim_start_matches('^'));
            let before = before.filter_map(|input| self.scope.nodes.get(root(input)).copied());
            waiting.extend(before.filter(|node| node.op != "Merge" && seen.insert(&*node.name)));
        }
        false
    }

    /// Whether the tensor `name` is a counter of the loop that `end` ends: a constant at first, and 1 more each time.
    fn is_counter(&self, name: &str, end: &str) -> bool {
        let merge = self.scope.node_behind(name).filter(|node| node.op == "Merge");
        let Some((merge, [a, b])) = merge.map(|node| (node, &*node.input)) else { return false };
        let is_counter = |name: &str| {
            let switch = self.scope.node_behind(name).filter(|node| node.op == "Switch");
            let value = switch.and_then(|node| node.input.first());
            value.is_some_and(|value| root(value) == merge.name)
        };
        let input_of = |name: &str, op: &str| {
            let node = self.scope.nodes.get(root(name)).filter(|node| node.op == op);
            node.and_then(|node| node.input.first())
        };
        let (first, next) = (input_of(a, "Enter"), input_of(b, "NextIteration"));
        self.ends.get(&*merge.name) == Some(&end)
            && first.is_some_and(|first| constant_behind(self.scope, first).is_some())
            && next.is_some_and(|next| is_one_more(self.scope, next, is_counter))
    }

    /// The tensor that is the same in each iteration as the tensor `name`.
    fn constant_input(&self, name: &str) -> Option<&'a str> {
        let node = self.scope.node_behind(name).filter(|node| node.op == "Enter")?;
        let is_constant = node.attr.get("is_constant")?.value == Some(Attribute::B(true));
        is_constant.then(|| node.input.first().map(String::as_str))?
    }
}

/// Whether a tensor is a number that depends on the sizes of inputs alone.
fn is_size(value: &Value) -> bool {
    only_element(value).is_some_and(|size| size.is_fixed() || size.is_rows())
}

/// The only element of a tensor, if it is known.
fn only_element(value: &Value) -> Option<&Size> {
    match value.elements.as_deref()? {
        [only] => Some(only),
        _ => None,
    }
}

/// The nodes of the conditions that all must hold for the tensor `name` to be true.
fn joined_conditions<'a>(scope: &Scope<'a>, name: Option<&'a str>) -> Vec<&'a NodeDef> {
    let mut waiting: Vec<&str> = name.into_iter().collect();
    let mut found = Vec::new();
    for _ in 0..MOST_CONDITIONS {
        let Some(name) = waiting.pop() else { break };
        let Some(node) = scope.node_behind(name) else { continue };
        match &*node.op {
            "LogicalAnd" => waiting.extend(node.input.iter().map(String::as_str)),
            _ => found.push(node),
        }
    }
    found
}

/// Whether result `index` of a function is always the argument of that number and 1.
fn adds_one(body: &Scope, index: usize) -> bool {
    let is_counter = |name: &str| body.argument_behind(name) == Some(index);
    body.result(index).is_some_and(|sum| is_one_more(body, sum, is_counter))
}

/// Whether the tensor `sum` is a counter and 1. Such a counter does not overflow before it reaches a limit of its type.
fn is_one_more(scope: &Scope, sum: &str, is_counter: impl Fn(&str) -> bool) -> bool {
    let sum = scope.node_behind(sum).filter(|node| matches!(&*node.op, "AddV2" | "Add"));
    let Some([a, b]) = sum.map(|node| &*node.input) else { return false };
    let is_one = |name: &str| constant_behind(scope, name) == Some(1);
    (is_counter(a) && is_one(b)) || (is_counter(b) && is_one(a))
}

/// The integer that the tensor `name` is, if it is a constant.
fn constant_behind(scope: &Scope, name: &str) -> Option<i64> {
    let node = scope.node_behind(name).filter(|node| node.op == "Const")?;
    let Attribute::Tensor(tensor) = node.attr.get("value")?.value.as_ref()? else {
        return None;
    };
    only_element(&constant(tensor, &Symbols::default()))?.as_number()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::node;
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

    /// A loop of TensorFlow 1 over `i`, whose condition is `condition` and whose next counter is `next`.
    fn frame(limit: NodeDef, condition: NodeDef, next: NodeDef) -> Vec<NodeDef> {
        let is_constant = AttrValue { value: Some(Attribute::B(true)) };
        let attr = [("is_constant".to_owned(), is_constant)].into();
        vec![
            number("zero", 3, 0),
            number("one", 3, 1),
            limit,
            node("first", "Enter", &["zero"]),
            NodeDef { attr, ..node("n", "Enter", &["limit"]) },
            node("i", "Merge", &["first", "iteration"]),
            condition,
            node("end", "LoopCond", &["c"]),
            node("switch", "Switch", &["i", "end"]),
            node("body", "Identity", &["switch:1"]),
            next,
            node("iteration", "NextIteration", &["next"]),
        ]
    }

    fn is_counted_frame(nodes: &[NodeDef], limit: &Value) -> bool {
        let scope = Scope::of_nodes(nodes.iter().map(|node| (&*node.name, node)).collect());
        let found = counted_iterations(&scope, |name| {
            assert_eq!(name, "limit");
            limit.clone()
        });
        let [(node, is_counted)] = *found else { panic!("{} loops", found.len()) };
        assert_eq!(node.op, "NextIteration");
        is_counted
    }

    #[test]
    fn loops_of_tensorflow_1_that_go_up_to_a_size_are_counted() {
        let limit = || node("limit", "StridedSlice", &[]);
        let less = |inputs: &[&str]| node("c", "Less", inputs);
        let sum = |inputs: &[&str]| node("next", "Add", inputs);
        let (rows, value) = (Value::scalar(Size::rows()), over_rows().remove(2));
        let counted = frame(limit(), less(&["i", "n"]), sum(&["body", "one"]));
        assert!(is_counted_frame(&counted, &rows));
        assert!(!is_counted_frame(&counted, &value), "the limit is a value of an input");
        let constant = frame(number("limit", 3, 7), less(&["i", "limit"]), sum(&["one", "body"]));
        assert!(is_counted_frame(&constant, &value));
        for (condition, next) in [
            (less(&["n", "i"]), sum(&["body", "one"])),
            (less(&["i", "switch"]), sum(&["body", "one"])),
            (node("c", "LessEqual", &["i", "n"]), sum(&["body", "one"])),
            (less(&["i", "n"]), sum(&["body", "body"])),
            (less(&["i", "n"]), sum(&["zero", "one"])),
            (less(&["i", "n"]), sum(&["i", "one"])),
            (less(&["i", "n"]), node("next", "Sub", &["body", "one"])),
        ] {
            let other = frame(limit(), condition, next);
            assert!(!is_counted_frame(&other, &rows), "{other:?}");
        }
        let without_end: Vec<NodeDef> =
            counted.iter().filter(|node| node.op != "LoopCond").cloned().collect();
        assert!(!is_counted_frame(&without_end, &rows));
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
        // A list is several inputs, so that those behind it have other numbers.
        let mut with_list = below();
        let lists = with_list.signature.iter_mut().flat_map(|it| it.input_arg.last_mut());
        lists.for_each(|list| list.number_attr = "N".to_owned());
        assert!(!is_counted(&with_list, &one, &rows));
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
