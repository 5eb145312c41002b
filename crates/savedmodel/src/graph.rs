//! The nodes and functions of a graph, and which of them compute an output.

use std::collections::{HashMap, HashSet};

use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::{FunctionDef, GraphDef, NodeDef};

/// An index of a graph's nodes and functions by name.
pub struct Graph<'a> {
    nodes: HashMap<&'a str, &'a NodeDef>,
    functions: HashMap<&'a str, &'a FunctionDef>,
}

impl<'a> Graph<'a> {
    /// The index of `graph`.
    #[must_use]
    pub fn new(graph: &'a GraphDef) -> Self {
        let functions = graph.library.iter().flat_map(|library| &library.function);
        Graph {
            nodes: graph.node.iter().map(|n| (n.name.as_str(), n)).collect(),
            functions: functions
                .filter_map(|f| Some((f.signature.as_ref()?.name.as_str(), f)))
                .collect(),
        }
    }

    /// The function of this name.
    pub(crate) fn function(&self, name: &str) -> Option<&'a FunctionDef> {
        self.functions.get(name).copied()
    }

    /// The nodes of a function.
    fn body(&self, function: &str) -> &'a [NodeDef] {
        self.function(function).map_or(&[], |function| function.node_def.as_slice())
    }

    /// Whether the graph has variables, whose values come from files.
    #[must_use]
    pub fn has_variables(&self) -> bool {
        let mut ops = self.nodes.values().map(|node| &*node.op);
        ops.any(|op| matches!(op, "Variable" | "VariableV2" | "VarHandleOp"))
    }

    /// The operations of `nodes`.
    #[must_use]
    pub fn operations(&self, nodes: impl IntoIterator<Item = PlacedNode<'a>>) -> HashSet<&'a str> {
        let ops = nodes.into_iter().map(|placed| placed.node.op.as_str());
        // In TensorFlow 1 the name of a function serves as an operation that calls it.
        ops.filter(|op| !self.functions.contains_key(op)).collect()
    }

    /// The nodes that compute the tensors `outputs`: all that they depend on, and those of the bodies
    /// of all functions that these call.
    #[must_use]
    pub fn nodes_of<'b>(&self, outputs: impl Iterator<Item = &'b str>) -> Vec<PlacedNode<'a>> {
        let mut waiting: Vec<&'a NodeDef> = outputs.filter_map(|name| self.node(name)).collect();
        let mut seen: HashSet<&str> = waiting.iter().map(|n| n.name.as_str()).collect();
        let mut called: HashSet<&'a str> = HashSet::new();
        let mut bodies: Vec<&'a str> = Vec::new();
        let mut found = Vec::new();
        loop {
            // A body counts as a whole: its side effects happen even if its results are not used.
            while let Some(function) = bodies.pop() {
                for node in self.body(function) {
                    found.push(PlacedNode { node, function: Some(function) });
                    self.add_calls(node, &mut called, &mut bodies);
                }
            }
            let Some(node) = waiting.pop() else {
                return found;
            };
            found.push(PlacedNode { node, function: None });
            self.add_calls(node, &mut called, &mut bodies);
            for input in &node.input {
                if let Some(input) = self.node(input)
                    && seen.insert(&input.name)
                {
                    waiting.push(input);
                }
            }
        }
    }

    /// All nodes of the graph and of its functions, sorted by the names of the functions.
    pub fn all_nodes(&self) -> impl Iterator<Item = PlacedNode<'a>> {
        let mut functions: Vec<&'a str> = self.functions.keys().copied().collect();
        functions.sort_unstable();
        let mut all: Vec<PlacedNode> =
            self.nodes.values().map(|&node| PlacedNode { node, function: None }).collect();
        all.sort_unstable_by_key(|placed| placed.node.name.as_str());
        for function in functions {
            let body = self.body(function);
            all.extend(body.iter().map(|node| PlacedNode { node, function: Some(function) }));
        }
        all.into_iter()
    }

    /// The node that produces the tensor `name` (`node`, `node:1` or, for control inputs, `^node`).
    pub(crate) fn node(&self, name: &str) -> Option<&'a NodeDef> {
        let name = name.strip_prefix('^').unwrap_or(name);
        let name = name.split_once(':').map_or(name, |(node, _)| node);
        self.nodes.get(name).copied()
    }

    /// Adds the functions that `node` calls, each once.
    fn add_calls(
        &self,
        node: &'a NodeDef,
        called: &mut HashSet<&'a str>,
        bodies: &mut Vec<&'a str>,
    ) {
        bodies.extend(self.called_by(node).filter(|name| called.insert(name)));
    }

    /// The functions of the graph that a node calls.
    fn called_by(&self, node: &'a NodeDef) -> impl Iterator<Item = &'a str> {
        let by_attribute = called_functions(node).map(|(_, _, name)| name);
        let names = by_attribute.chain([node.op.as_str()]);
        names.filter(|name| self.functions.contains_key(name))
    }

    /// Whether a function on which the tensors `outputs` depend calls itself, also through others.
    #[must_use]
    pub fn is_recursive<'b>(&self, outputs: impl Iterator<Item = &'b str>) -> bool {
        let mut calls: HashMap<&'a str, HashSet<&'a str>> = HashMap::new();
        for PlacedNode { node, function } in self.nodes_of(outputs) {
            if let Some(caller) = function {
                calls.entry(caller).or_default().extend(self.called_by(node));
            }
        }
        let mut callers: HashMap<&str, Vec<&str>> = HashMap::new();
        let mut left = HashMap::new();
        for (&caller, callees) in &calls {
            // Functions without a node call nothing.
            let callees = callees.iter().filter(|callee| calls.contains_key(*callee));
            left.insert(caller, callees.clone().count());
            callees.for_each(|callee| callers.entry(callee).or_default().push(caller));
        }
        // A function ends if all that it calls do.
        let mut ending: Vec<&str> =
            left.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
        let mut ended = 0;
        while let Some(name) = ending.pop() {
            ended += 1;
            for caller in callers.get(name).into_iter().flatten().copied() {
                let Some(count) = left.get_mut(caller) else { continue };
                *count -= 1;
                if *count == 0 {
                    ending.push(caller);
                }
            }
        }
        ended < calls.len()
    }
}

/// The functions that the attributes of a node name, each with the attribute and its place there.
pub fn called_functions(node: &NodeDef) -> impl Iterator<Item = (&str, usize, &str)> {
    node.attr.iter().flat_map(|(attribute, value)| {
        let functions = match &value.value {
            Some(Value::Func(function)) => std::slice::from_ref(function),
            Some(Value::List(list)) => list.func.as_slice(),
            Some(
                Value::S(_)
                | Value::I(_)
                | Value::F(_)
                | Value::Placeholder(_)
                | Value::B(_)
                | Value::Type(_)
                | Value::Shape(_)
                | Value::Tensor(_),
            )
            | None => &[],
        };
        let functions = functions.iter().enumerate();
        functions.map(move |(place, it)| (attribute.as_str(), place, it.name.as_str()))
    })
}

/// A node, and the function whose body it is in.
#[derive(Clone, Copy)]
pub struct PlacedNode<'a> {
    /// The node.
    pub node: &'a NodeDef,
    /// `None` for a node of the graph itself.
    pub function: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_proto::tensorflow::OpDef;
    use tensorserve_proto::tensorflow::{AttrValue, FunctionDef, FunctionDefLibrary, NameAttrList};

    fn node(name: &str, op: &str, input: &[&str]) -> NodeDef {
        NodeDef {
            name: name.into(),
            op: op.into(),
            input: input.iter().map(|&i| i.into()).collect(),
            ..NodeDef::default()
        }
    }

    fn call(name: &str, function: &str, input: &[&str]) -> NodeDef {
        let value = Value::Func(NameAttrList { name: function.into(), ..NameAttrList::default() });
        let attr = [("f".to_owned(), AttrValue { value: Some(value) })];
        NodeDef { attr: attr.into(), ..node(name, "StatefulPartitionedCall", input) }
    }

    fn function(name: &str, node_def: Vec<NodeDef>) -> FunctionDef {
        FunctionDef {
            signature: Some(OpDef { name: name.into(), ..OpDef::default() }),
            node_def,
            ..FunctionDef::default()
        }
    }

    #[test]
    fn only_what_an_output_needs_counts() {
        let graph = GraphDef {
            node: vec![
                node("x", "Placeholder", &[]),
                node("read", "Identity", &["x:0"]),
                node("write", "AssignAdd", &["x"]),
                node("both", "Identity", &["read", "^write"]),
            ],
            library: None,
        };
        let graph = Graph::new(&graph);
        let behind = |name| graph.operations(graph.nodes_of([name].into_iter()));
        assert_eq!(behind("read:0"), HashSet::from(["Placeholder", "Identity"]));
        assert!(behind("both:0").contains("AssignAdd"));
    }

    #[test]
    fn functions_are_followed_also_when_they_call_themselves() {
        let graph = GraphDef {
            node: vec![call("y", "outer", &[])],
            library: Some(FunctionDefLibrary {
                function: vec![
                    function("outer", vec![call("a", "inner", &[]), call("b", "outer", &[])]),
                    function("inner", vec![node("d", "DecodeBase64", &[])]),
                ],
            }),
        };
        let graph = Graph::new(&graph);
        let behind = graph.operations(graph.nodes_of(["y:0"].into_iter()));
        assert_eq!(behind, HashSet::from(["StatefulPartitionedCall", "DecodeBase64"]));
    }

    #[test]
    fn functions_that_call_themselves_are_recursive() {
        let recursive = |functions: Vec<FunctionDef>| {
            let library = Some(FunctionDefLibrary { function: functions });
            let graph = GraphDef { node: vec![call("y", "a", &[])], library };
            Graph::new(&graph).is_recursive(["y:0"].into_iter())
        };
        let calls = |name, callees: &[&str]| {
            function(name, callees.iter().map(|callee| call(callee, callee, &[])).collect())
        };
        let leaf = || function("d", vec![node("x", "Add", &[])]);
        assert!(!recursive(vec![
            calls("a", &["b", "c"]),
            calls("b", &["c", "d"]),
            calls("c", &["d"]),
            leaf()
        ]));
        assert!(!recursive(vec![calls("a", &["b"]), calls("b", &[]), calls("e", &["e"])]));
        assert!(recursive(vec![calls("a", &["a"])]));
        assert!(recursive(vec![
            calls("a", &["b", "d"]),
            calls("b", &["c"]),
            calls("c", &["b"]),
            leaf()
        ]));
        // The name of a function may serve as an operation, and a branch of an If is one.
        assert!(recursive(vec![function("a", vec![node("x", "a", &[])])]));
        let branch = NodeDef { op: "If".into(), ..call("x", "a", &[]) };
        assert!(recursive(vec![function("a", vec![branch])]));
    }

    #[test]
    fn a_cycle_ends() {
        let graph = GraphDef {
            node: vec![node("a", "Merge", &["b"]), node("b", "NextIteration", &["a"])],
            library: None,
        };
        let graph = Graph::new(&graph);
        assert_eq!(graph.operations(graph.nodes_of(["a"].into_iter())).len(), 2);
    }
}
