//! Walks a graph, without running it, to learn what a signature does: whether it can change the
//! model's state, whether it decodes base64 itself, whether its values must come from files.

use std::collections::{HashMap, HashSet};

use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::{GraphDef, NodeDef, OpDef, OpList};

/// An index of a graph's nodes and functions by name.
pub(super) struct Graph<'a> {
    nodes: HashMap<&'a str, &'a NodeDef>,
    functions: HashMap<&'a str, &'a [NodeDef]>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(graph: &'a GraphDef) -> Self {
        let functions = graph.library.iter().flat_map(|library| &library.function);
        Graph {
            nodes: graph.node.iter().map(|n| (n.name.as_str(), n)).collect(),
            functions: functions
                .filter_map(|f| Some((f.signature.as_ref()?.name.as_str(), f.node_def.as_slice())))
                .collect(),
        }
    }

    /// Whether the graph holds variables, whose values must then come from files.
    pub(super) fn has_variables(&self) -> bool {
        let variable = |op: &str| matches!(op, "Variable" | "VariableV2" | "VarHandleOp");
        self.nodes.values().any(|node| variable(&node.op))
    }

    /// The kinds of operation that compute the tensors `outputs`: those of every node they lead
    /// back to, and of the bodies of all functions called on the way.
    pub(super) fn operations_behind<'b>(
        &self,
        outputs: impl Iterator<Item = &'b str>,
    ) -> HashSet<&'a str> {
        let mut operations = HashSet::new();
        let mut nodes: Vec<&'a NodeDef> = outputs.filter_map(|name| self.node(name)).collect();
        let mut seen: HashSet<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
        let mut calls: HashSet<&'a str> = HashSet::new();
        let mut bodies: Vec<&'a [NodeDef]> = Vec::new();
        loop {
            // A body counts as a whole: its side effects happen whether or not its results are
            // used.
            while let Some(body) = bodies.pop() {
                for node in body {
                    self.visit(node, &mut operations, &mut calls, &mut bodies);
                }
            }
            let Some(node) = nodes.pop() else {
                return operations;
            };
            self.visit(node, &mut operations, &mut calls, &mut bodies);
            for input in &node.input {
                if let Some(input) = self.node(input)
                    && seen.insert(&input.name)
                {
                    nodes.push(input);
                }
            }
        }
    }

    /// The node that makes the tensor `name` (`node`, `node:1` or, for control, `^node`).
    fn node(&self, name: &str) -> Option<&'a NodeDef> {
        let name = name.strip_prefix('^').unwrap_or(name);
        let name = name.split_once(':').map_or(name, |(node, _)| node);
        self.nodes.get(name).copied()
    }

    /// Notes what `node` does, and adds the bodies of the functions it calls, each once.
    fn visit(
        &self,
        node: &'a NodeDef,
        operations: &mut HashSet<&'a str>,
        calls: &mut HashSet<&'a str>,
        bodies: &mut Vec<&'a [NodeDef]>,
    ) {
        // TensorFlow 1 calls a function by using its name as an operation.
        if let Some(body) = self.functions.get(node.op.as_str()) {
            if calls.insert(&node.op) {
                bodies.push(body);
            }
            return;
        }
        operations.insert(&node.op);
        for value in node.attr.values().filter_map(|a| a.value.as_ref()) {
            let called = match value {
                Value::Func(function) => std::slice::from_ref(function),
                Value::List(list) => list.func.as_slice(),
            };
            for name in called.iter().map(|function| function.name.as_str()) {
                if let Some(body) = self.functions.get(name)
                    && calls.insert(name)
                {
                    bodies.push(body);
                }
            }
        }
    }
}

/// Which operations may change something that outlives a run, as the library's own registry
/// (custom operations included) tells it.
pub(super) struct StateChanging {
    suspects: HashSet<String>,
    known: HashSet<String>,
}

impl StateChanging {
    /// Reads the registry: an operation is suspect if it is marked stateful or takes a reference
    /// to a variable, and is not one of [`HARMLESS`].
    pub(super) fn new(registry: &OpList) -> Self {
        let suspect = |op: &&OpDef| {
            (op.is_stateful || op.input_arg.iter().any(|arg| arg.is_ref))
                && HARMLESS.binary_search(&op.name.as_str()).is_err()
        };
        let names = |op: &OpDef| op.name.clone();
        StateChanging {
            suspects: registry.op.iter().filter(suspect).map(names).collect(),
            known: registry.op.iter().map(names).collect(),
        }
    }

    /// Whether none of `ops` can change state. An operation the library does not know might.
    pub(super) fn none_in(&self, ops: &HashSet<&str>) -> bool {
        ops.iter().all(|&op| self.known.contains(op) && !self.suspects.contains(op))
    }
}

/// Operations that TensorFlow marks stateful though running them leaves no trace: they read or
/// name a variable or table, live for one run (tensor arrays, stacks), call functions (whose
/// bodies are looked at themselves), or draw random numbers. Sorted.
const HARMLESS: [&str; 75] = [
    "Assert",
    "BoostedTreesEnsembleResourceHandleOp",
    "BoostedTreesPredict",
    "Case",
    "CheckNumerics",
    "CheckNumericsV2",
    "CudnnRNN",
    "CudnnRNNV2",
    "CudnnRNNV3",
    "DeepCopy",
    "DisableCopyOnRead",
    "Empty",
    "GuaranteeConst",
    "HashTable",
    "HashTableV2",
    "If",
    "IsVariableInitialized",
    "LookupTableExport",
    "LookupTableExportV2",
    "LookupTableFind",
    "LookupTableFindV2",
    "LookupTableSize",
    "LookupTableSizeV2",
    "Multinomial",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "MutableHashTable",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableHashTableV2",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "ReadVariableOp",
    "RefEnter",
    "RefExit",
    "RefIdentity",
    "RefMerge",
    "RefNextIteration",
    "RefSelect",
    "RefSwitch",
    "ResourceGather",
    "ResourceGatherNd",
    "StackCloseV2",
    "StackPopV2",
    "StackPushV2",
    "StackV2",
    "StatefulPartitionedCall",
    "StatelessRandomGetAlg",
    "TensorArrayCloseV3",
    "TensorArrayConcatV3",
    "TensorArrayGatherV3",
    "TensorArrayGradV3",
    "TensorArrayGradWithShape",
    "TensorArrayReadV3",
    "TensorArrayScatterV3",
    "TensorArraySizeV3",
    "TensorArraySplitV3",
    "TensorArrayV2",
    "TensorArrayV3",
    "TensorArrayWriteV3",
    "Timestamp",
    "TruncatedNormal",
    "VarHandleOp",
    "VarIsInitializedOp",
    "Variable",
    "VariableShape",
    "VariableV2",
    "While",
    "XlaCallModule",
];

#[cfg(test)]
mod tests {
    use super::*;
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
        let value = Value::Func(NameAttrList { name: function.into() });
        let attr = [("f".to_owned(), AttrValue { value: Some(value) })];
        NodeDef { attr: attr.into(), ..node(name, "StatefulPartitionedCall", input) }
    }

    fn function(name: &str, node_def: Vec<NodeDef>) -> FunctionDef {
        FunctionDef { signature: Some(OpDef { name: name.into(), ..OpDef::default() }), node_def }
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
        let behind = |name| graph.operations_behind([name].into_iter());
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
        let behind = Graph::new(&graph).operations_behind(["y:0"].into_iter());
        assert_eq!(behind, HashSet::from(["StatefulPartitionedCall", "DecodeBase64"]));
    }

    #[test]
    fn a_cycle_ends() {
        let graph = GraphDef {
            node: vec![node("a", "Merge", &["b"]), node("b", "NextIteration", &["a"])],
            library: None,
        };
        assert_eq!(Graph::new(&graph).operations_behind(["a"].into_iter()).len(), 2);
    }

    #[test]
    fn an_unknown_or_writing_operation_may_change_state() {
        let op =
            |name: &str, is_stateful| OpDef { name: name.into(), is_stateful, ..OpDef::default() };
        let registry = OpList {
            op: vec![op("Add", false), op("AssignVariableOp", true), op("VarHandleOp", true)],
        };
        let state = StateChanging::new(&registry);
        assert!(state.none_in(&HashSet::from(["Add", "VarHandleOp"])));
        assert!(!state.none_in(&HashSet::from(["Add", "AssignVariableOp"])));
        assert!(!state.none_in(&HashSet::from(["SomeCustomOp"])));
    }

    #[test]
    fn the_harmless_list_is_sorted() {
        assert!(HARMLESS.is_sorted());
    }
}
