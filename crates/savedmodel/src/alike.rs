//! Signatures that compute the same. Keras exports each model under two names, `serve` and `serving_default`, with a wrapper
//! function for each.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use crate::graph::Graph;
use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::{AttrValue, GraphDef, NameAttrList, NodeDef};
use tensorserve_tensor::{Signature, TensorSpec};

/// The signature of requests that name none.
const DEFAULT: &str = "serving_default";

/// The most pairs of signatures and of nodes that are compared: about as many as are read in a tenth of a second.
const MOST_PAIRS: usize = 1_000_000;

/// For each signature the number of one that computes the same outputs of the same inputs, by their names: of `serving_default`,
/// which most clients call, or else of the first. Its own number, if there is none, or that cannot be told from the graph,
/// or not soon.
#[must_use]
pub fn alike(graph: &GraphDef, signatures: &[Signature]) -> Vec<usize> {
    alike_within(MOST_PAIRS, graph, signatures)
}

fn alike_within(pairs: usize, graph: &GraphDef, signatures: &[Signature]) -> Vec<usize> {
    let graph = AlikeParts { graph: Graph::new(graph), pairs_left: Cell::new(pairs) };
    let first = |(number, signature): (usize, &Signature)| {
        let before = signatures.iter().take(number);
        before.into_iter().position(|it| graph.are_alike(it, signature)).unwrap_or(number)
    };
    let mut alike: Vec<usize> = signatures.iter().enumerate().map(first).collect();
    let default = signatures.iter().position(|it| it.name == DEFAULT);
    if let Some((default, class)) = default.and_then(|it| Some((it, *alike.get(it)?))) {
        alike.iter_mut().filter(|it| **it == class).for_each(|it| *it = default);
    }
    alike
}

type AttributeMap = BTreeMap<String, AttrValue>;

/// Compares parts of a graph.
struct AlikeParts<'g> {
    graph: Graph<'g>,
    pairs_left: Cell<usize>,
}

impl AlikeParts<'_> {
    /// Whether so many more pairs may be compared.
    fn may_compare(&self, pairs: usize) -> bool {
        let left = self.pairs_left.get().checked_sub(pairs);
        self.pairs_left.set(left.unwrap_or(0));
        left.is_some()
    }

    fn are_alike(&self, one: &Signature, other: &Signature) -> bool {
        let is_pure = |it: &Signature| it.read_only && it.repeatable && !it.inputs.is_empty();
        let declares = |a: &[TensorSpec], b: &[TensorSpec]| {
            let same = |(a, b): (&TensorSpec, &TensorSpec)| {
                let is_dense = a.sparse.is_none() && b.sparse.is_none();
                is_dense && a.alias == b.alias && a.dtype() == b.dtype() && a.dtype().is_some()
            };
            a.len() == b.len() && a.iter().zip(b).all(same)
        };
        self.may_compare(1)
            && is_pure(one)
            && is_pure(other)
            && declares(&one.inputs, &other.inputs)
            && declares(&one.outputs, &other.outputs)
            && self.computes_the_same(one, other)
    }

    /// Whether the outputs of both come from nodes that are the same or do the same, from the inputs of both and from the same
    /// variables, constants and tables.
    fn computes_the_same(&self, one: &Signature, other: &Signature) -> bool {
        let names = |specs: &[TensorSpec]| -> Vec<String> {
            specs.iter().map(|spec| without_port_0(&spec.tensor_name).to_owned()).collect()
        };
        let (fed, fed_to_other) = (names(&one.inputs), names(&other.inputs));
        let (outputs, of_other) = (names(&one.outputs), names(&other.outputs));
        let mut waiting: Vec<(&str, &str)> = Vec::new();
        waiting.extend(outputs.iter().map(String::as_str).zip(of_other.iter().map(String::as_str)));
        let mut seen: HashSet<(&str, &str)> = HashSet::new();
        while let Some((tensor, other)) = waiting.pop() {
            let (tensor, other) = (without_port_0(tensor), without_port_0(other));
            let place = |fed: &[String], name: &str| fed.iter().position(|it| it == name);
            let (input, input_of_other) = (place(&fed, tensor), place(&fed_to_other, other));
            if input != input_of_other {
                return false;
            }
            let ((name, port), (other_name, other_port)) = (parts(tensor), parts(other));
            if port != other_port {
                return false;
            }
            if input.is_some() || !seen.insert((name, other_name)) {
                continue;
            }
            if !self.may_compare(1) {
                return false;
            }
            let (Some(node), Some(other)) = (self.graph.node(name), self.graph.node(other_name))
            else {
                return false;
            };
            if name != other_name && !self.does_the_same(node, other) {
                return false;
            }
            let inputs = node.input.iter().map(String::as_str);
            waiting.extend(inputs.zip(other.input.iter().map(String::as_str)));
        }
        true
    }

    /// Whether two nodes do the same with as many inputs. Nodes without inputs are variables, constants, tables and the like,
    /// of which each is one of its own.
    fn does_the_same(&self, node: &NodeDef, other: &NodeDef) -> bool {
        let is_same = |value: &AttrValue, other: &AttrValue| match (&value.value, &other.value) {
            (Some(Value::Func(function)), Some(Value::Func(other))) => {
                function == other || self.functions_do_the_same(function, other)
            }
            _ => are_equal(value, other),
        };
        !node.input.is_empty()
            && node.input.len() == other.input.len()
            && node.op == other.op
            && node.device == other.device
            && node.attr.keys().eq(other.attr.keys())
            && node.attr.values().zip(other.attr.values()).all(|(a, b)| is_same(a, b))
    }

    /// Whether two functions have the same body but for their names, and call the same functions.
    fn functions_do_the_same(&self, one: &NameAttrList, other: &NameAttrList) -> bool {
        let named = |function: &NameAttrList| self.graph.function(&function.name);
        let (Some(body), Some(of_other)) = (named(one), named(other)) else {
            return false;
        };
        let (Some(declared), Some(by_other)) = (&body.signature, &of_other.signature) else {
            return false;
        };
        let is_same_node = |(a, b): (&NodeDef, &NodeDef)| {
            (&a.name, &a.op, &a.input, &a.device) == (&b.name, &b.op, &b.input, &b.device)
                && are_all_equal(&a.attr, &b.attr)
        };
        are_all_equal(&one.attr, &other.attr)
            && are_all_equal(&body.attr, &of_other.attr)
            && declared.input_arg == by_other.input_arg
            && declared.output_arg == by_other.output_arg
            && declared.is_stateful == by_other.is_stateful
            && (&body.ret, &body.control_ret) == (&of_other.ret, &of_other.control_ret)
            && body.node_def.len() == of_other.node_def.len()
            && self.may_compare(body.node_def.len())
            && body.node_def.iter().zip(&of_other.node_def).all(is_same_node)
    }
}

fn are_all_equal(one: &AttributeMap, other: &AttributeMap) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((key, it), (name, b))| key == name && are_equal(it, b))
}

/// Whether two attributes are equal. Of tensors, and of what is not known, not all is read.
fn are_equal(value: &AttrValue, other: &AttrValue) -> bool {
    match &value.value {
        None | Some(Value::Tensor(_)) => false,
        Some(Value::List(list)) if !list.tensor.is_empty() => false,
        Some(_) => value == other,
    }
}

/// A tensor's name as nodes write it.
fn without_port_0(tensor: &str) -> &str {
    tensor.strip_suffix(":0").unwrap_or(tensor)
}

/// The node of a tensor, and which of its outputs it is; for a node that only has to run before, `^`.
fn parts(tensor: &str) -> (&str, &str) {
    match tensor.strip_prefix('^') {
        Some(node) => (node, "^"),
        None => tensor.split_once(':').unwrap_or((tensor, "0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_proto::tensorflow::{FunctionDef, FunctionDefLibrary, OpDef};
    use tensorserve_tensor::DType;

    fn signature(name: &str, input: &str, output: &str) -> Signature {
        let spec = |alias: &str, tensor: &str| TensorSpec {
            tensor_name: tensor.to_owned(),
            ..TensorSpec::new(alias, DType::Float, &[-1])
        };
        let only = Signature::only(vec![spec("x", input)], vec![spec("y", output)]);
        Signature { name: name.to_owned(), read_only: true, repeatable: true, ..only }
    }

    fn node(name: &str, op: &str, inputs: &[&str], attr: &[(&str, Value)]) -> NodeDef {
        let attr = attr
            .iter()
            .map(|(key, value)| ((*key).to_owned(), AttrValue { value: Some(value.clone()) }));
        NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            input: inputs.iter().map(|it| (*it).to_owned()).collect(),
            attr: attr.collect(),
            ..NodeDef::default()
        }
    }

    fn call(name: &str, input: &str, function: &str) -> NodeDef {
        let f = Value::Func(NameAttrList { name: function.to_owned(), ..Default::default() });
        node(name, "StatefulPartitionedCall", &[input, "v"], &[("f", f)])
    }

    fn wrapper(name: &str, called: &str) -> FunctionDef {
        FunctionDef {
            signature: Some(OpDef { name: name.to_owned(), ..OpDef::default() }),
            node_def: vec![call("call", "x", called)],
            ..FunctionDef::default()
        }
    }

    /// An export of Keras: `a` and `b` call `inner`, by wrappers.
    fn export() -> GraphDef {
        let nodes = vec![
            node("in_a", "Placeholder", &[], &[]),
            node("in_b", "Placeholder", &[], &[]),
            node("v", "VarHandleOp", &[], &[]),
            node("w", "VarHandleOp", &[], &[]),
            call("call_a", "in_a", "wrapper_a"),
            call("call_b", "in_b", "wrapper_b"),
        ];
        let function = vec![wrapper("wrapper_a", "inner"), wrapper("wrapper_b", "inner")];
        GraphDef { node: nodes, library: Some(FunctionDefLibrary { function }) }
    }

    fn of(graph: &GraphDef) -> Vec<usize> {
        let signatures = [
            signature("first", "in_a:0", "call_a:0"),
            signature("second", "in_b:0", "call_b:0"),
            signature("third", "in_a:0", "call_a:0"),
        ];
        alike(graph, &signatures)
    }

    #[test]
    fn the_same_model_under_two_names_is_found() {
        assert_eq!(of(&export()), [0, 0, 0]);
        let named = |name| signature(name, "in_b:0", "call_b:0");
        let signatures = [signature("serve", "in_a:0", "call_a:0"), named("serving_default")];
        assert_eq!(alike(&export(), &signatures), [1, 1]);
    }

    #[test]
    fn what_takes_too_long_is_not_the_same() {
        let named = |name| signature(name, "in_b:0", "call_b:0");
        let signatures = [signature("serve", "in_a:0", "call_a:0"), named("serving_default")];
        // The signatures, their calls, the bodies of the wrappers, and the variable; inputs are known by their place.
        for (pairs, found) in [(0, [0, 1]), (1, [0, 1]), (2, [0, 1]), (4, [1, 1])] {
            assert_eq!(alike_within(pairs, &export(), &signatures), found, "{pairs}");
        }
    }

    #[test]
    fn what_may_differ_is_not_the_same() {
        let changed = |change: fn(&mut GraphDef)| {
            let mut graph = export();
            change(&mut graph);
            assert_eq!(of(&graph), [0, 1, 0]);
        };
        changed(|graph| graph.node[5].input[1] = "w".to_owned());
        changed(|graph| graph.node[5].input[0] = "in_a".to_owned());
        changed(|graph| graph.node[5].input.push("^w".to_owned()));
        changed(|graph| graph.node[5].op = "PartitionedCall".to_owned());
        changed(|graph| graph.node[5].device = "/GPU:0".to_owned());
        changed(|graph| {
            let rate = AttrValue { value: Some(Value::F(0.5)) };
            graph.node[5].attr.insert("rate".to_owned(), rate);
        });
        changed(|graph| {
            let library = graph.library.as_mut().expect("functions");
            library.function[1] = wrapper("wrapper_b", "other");
        });
        changed(|graph| {
            let library = graph.library.as_mut().expect("functions");
            let constant = Value::Tensor(Default::default());
            let constant = node("c", "Const", &[], &[("value", constant)]);
            library.function.iter_mut().for_each(|it| it.node_def.push(constant.clone()));
        });
        changed(|graph| {
            let library = graph.library.as_mut().expect("functions");
            let compiled = AttrValue { value: Some(Value::B(true)) };
            library.function[1].attr.insert("_XlaMustCompile".to_owned(), compiled);
        });
    }

    #[test]
    fn what_draws_numbers_or_changes_the_model_is_not_compared() {
        let graph = export();
        let first = signature("first", "in_a:0", "call_a:0");
        for (read_only, repeatable) in [(false, true), (true, false)] {
            let second =
                Signature { read_only, repeatable, ..signature("s", "in_b:0", "call_b:0") };
            assert_eq!(alike(&graph, &[first.clone(), second]), [0, 1]);
        }
    }
}
