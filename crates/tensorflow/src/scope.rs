//! Names within a graph or the body of a function: where tensors come from, and what is known of the handles of
//! variables there.

use std::collections::HashMap;

use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::op_def::ArgDef;
use tensorserve_proto::tensorflow::{FunctionDef, NodeDef};

/// A variable whose value is known, by its number.
pub(super) type VariableNumber = usize;

/// The most operations that pass a handle on, one after the other.
const MOST_HOPS: usize = 64;

/// The nodes of a graph or of the body of a function.
pub(super) struct Scope<'a> {
    pub(super) nodes: HashMap<&'a str, &'a NodeDef>,
    /// What the handles that come from outside are: arguments of a function, handles of the graph.
    handles: HashMap<&'a str, VariableNumber>,
    /// `None` for the graph itself.
    function: Option<&'a FunctionDef>,
}

impl<'a> Scope<'a> {
    /// The graph, with the handles of known variables by the names of their nodes.
    pub(super) fn of_graph(
        nodes: &'a [NodeDef],
        handles: HashMap<&'a str, VariableNumber>,
    ) -> Self {
        Scope { nodes: by_name(nodes), handles, function: None }
    }

    /// Nodes of a graph, by their names.
    pub(super) fn of_nodes(nodes: HashMap<&'a str, &'a NodeDef>) -> Self {
        Scope { nodes, handles: HashMap::new(), function: None }
    }

    /// The body of `function`, with what is known of its arguments.
    pub(super) fn of_function(
        function: &'a FunctionDef,
        arguments: &[Option<VariableNumber>],
    ) -> Self {
        let names = argument_names(function).into_iter();
        let handles = names.zip(arguments).filter_map(|(name, known)| Some((name, (*known)?)));
        let (nodes, handles) = (by_name(&function.node_def), handles.collect());
        Scope { nodes, handles, function: Some(function) }
    }

    /// The variable whose handle the tensor `name` is.
    pub(super) fn variable(&self, name: &str) -> Option<VariableNumber> {
        self.handles.get(self.origin(name)?).copied()
    }

    /// Where the tensor `name` comes from, if operations only pass it on: an argument or a node.
    pub(super) fn origin<'n>(&self, name: &'n str) -> Option<&'n str>
    where
        'a: 'n,
    {
        let mut name = root(name);
        for _ in 0..MOST_HOPS {
            match self.nodes.get(name) {
                Some(node) if node.op == "Identity" => name = root(node.input.first()?),
                _ => return Some(name),
            }
        }
        None
    }

    /// The node that the tensor `name` comes from, if operations only pass it on.
    pub(super) fn node_behind(&self, name: &str) -> Option<&'a NodeDef> {
        self.nodes.get(self.origin(name)?).copied()
    }

    /// The number of the argument `name` of the function.
    fn argument(&self, name: &str) -> Option<usize> {
        argument_names(self.function?).into_iter().position(|argument| argument == name)
    }

    /// The number of the argument of the function that the tensor `name` comes from.
    pub(super) fn argument_behind(&self, name: &str) -> Option<usize> {
        self.argument(self.origin(name)?)
    }

    /// Where result number `index` of the function comes from.
    pub(super) fn result(&self, index: usize) -> Option<&'a str> {
        let function = self.function?;
        let outputs = single_names(&function.signature.as_ref()?.output_arg);
        self.origin(function.ret.get(*outputs.get(index)?)?)
    }

    /// Whether the result number `index` of the function is always its argument of that number.
    pub(super) fn returns_argument(&self, index: usize) -> bool {
        self.result(index).and_then(|name| self.argument(name)) == Some(index)
    }

    /// The tensor that output 0 of the new node `name` is, as inputs write it.
    pub(super) fn output_of(&self, name: &str) -> String {
        match self.function {
            Some(_) => format!("{name}:output:0"),
            None => name.to_owned(),
        }
    }
}

fn by_name(nodes: &[NodeDef]) -> HashMap<&str, &NodeDef> {
    nodes.iter().map(|node| (node.name.as_str(), node)).collect()
}

/// The names of the arguments of a function; none if one is a list, so that their numbers are not those of inputs.
pub(super) fn argument_names(function: &FunctionDef) -> Vec<&str> {
    single_names(function.signature.as_ref().map_or(&[][..], |it| &it.input_arg))
}

/// The names of arguments or results; none if one is a list.
fn single_names(all: &[ArgDef]) -> Vec<&str> {
    let is_list = |it: &ArgDef| !it.number_attr.is_empty() || !it.type_list_attr.is_empty();
    if all.iter().any(is_list) {
        return Vec::new();
    }
    all.iter().map(|it| it.name.as_str()).collect()
}

/// The node or argument of an input (`node`, `node:1`, `node:output:1`).
pub(super) fn root(input: &str) -> &str {
    input.split_once(':').map_or(input, |(name, _)| name)
}

/// Whether an input only says that another node comes first.
pub(super) fn is_control(input: &str) -> bool {
    input.starts_with('^')
}

/// An integer attribute of a node.
pub(super) fn integer(node: &NodeDef, name: &str) -> Option<i64> {
    let Value::I(value) = node.attr.get(name)?.value.as_ref()? else {
        return None;
    };
    Some(*value)
}

/// The number of a type that is an attribute of a node.
pub(super) fn dtype(node: &NodeDef, name: &str) -> Option<i32> {
    let Value::Type(number) = node.attr.get(name)?.value.as_ref()? else {
        return None;
    };
    Some(*number)
}
