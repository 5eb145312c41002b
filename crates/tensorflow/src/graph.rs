//! Analyzes a graph without running it: whether a signature can change the model's state, whether it
//! decodes images or base64, and whether the graph has variables.

use std::collections::{HashMap, HashSet};

use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::op_def::ArgDef;
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

    /// Whether the graph has variables, whose values come from files.
    pub(super) fn has_variables(&self) -> bool {
        let mut ops = self.nodes.values().map(|node| &*node.op);
        ops.any(|op| matches!(op, "Variable" | "VariableV2" | "VarHandleOp"))
    }

    /// The operations of `nodes`.
    pub(super) fn operations(
        &self,
        nodes: impl IntoIterator<Item = PlacedNode<'a>>,
    ) -> HashSet<&'a str> {
        let ops = nodes.into_iter().map(|placed| placed.node.op.as_str());
        // In TensorFlow 1 the name of a function serves as an operation that calls it.
        ops.filter(|op| !self.functions.contains_key(op)).collect()
    }

    /// The nodes that compute the tensors `outputs`: all that they depend on, and those of the bodies
    /// of all functions that these call.
    pub(super) fn nodes_of<'b>(
        &self,
        outputs: impl Iterator<Item = &'b str>,
    ) -> Vec<PlacedNode<'a>> {
        let mut waiting: Vec<&'a NodeDef> = outputs.filter_map(|name| self.node(name)).collect();
        let mut seen: HashSet<&str> = waiting.iter().map(|n| n.name.as_str()).collect();
        let mut called: HashSet<&'a str> = HashSet::new();
        let mut bodies: Vec<&'a str> = Vec::new();
        let mut found = Vec::new();
        loop {
            // A body counts as a whole: its side effects happen even if its results are not used.
            while let Some(function) = bodies.pop() {
                for node in self.functions.get(function).copied().unwrap_or_default() {
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
    pub(super) fn all_nodes(&self) -> impl Iterator<Item = PlacedNode<'a>> {
        let mut functions: Vec<&'a str> = self.functions.keys().copied().collect();
        functions.sort_unstable();
        let mut all: Vec<PlacedNode> =
            self.nodes.values().map(|&node| PlacedNode { node, function: None }).collect();
        all.sort_unstable_by_key(|placed| placed.node.name.as_str());
        for function in functions {
            let body = self.functions.get(function).copied().unwrap_or_default();
            all.extend(body.iter().map(|node| PlacedNode { node, function: Some(function) }));
        }
        all.into_iter()
    }

    /// The node that produces the tensor `name` (`node`, `node:1` or, for control inputs, `^node`).
    fn node(&self, name: &str) -> Option<&'a NodeDef> {
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
    pub(super) fn is_recursive<'b>(&self, outputs: impl Iterator<Item = &'b str>) -> bool {
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
pub(super) fn called_functions(node: &NodeDef) -> impl Iterator<Item = (&str, usize, &str)> {
    node.attr.iter().flat_map(|(attribute, value)| {
        let functions = match &value.value {
            Some(Value::Func(function)) => std::slice::from_ref(function),
            Some(Value::List(list)) => list.func.as_slice(),
            Some(
                Value::S(_)
                | Value::I(_)
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
pub(super) struct PlacedNode<'a> {
    pub(super) node: &'a NodeDef,
    /// `None` for a node of the graph itself.
    pub(super) function: Option<&'a str>,
}

/// What the library's registry of operations says, custom operations included.
pub(super) struct OpRegistry {
    /// The operations that cannot change state beyond a run.
    stateless: HashSet<String>,
    outputs: HashMap<String, Vec<ArgDef>>,
}

impl OpRegistry {
    /// Reads the registry. An operation may change state if it is marked stateful or has a reference
    /// to a variable as input, unless it is one of [`READ_ONLY_OPS`].
    pub(super) fn new(registry: &OpList) -> Self {
        let stateless = registry.op.iter().filter(|op| !may_change_state(op));
        let outputs = registry.op.iter().map(|op| (op.name.clone(), op.output_arg.clone()));
        OpRegistry {
            stateless: stateless.map(|op| op.name.clone()).collect(),
            outputs: outputs.collect(),
        }
    }

    /// Whether all of `ops` are stateless. Operations that are not in the registry are not.
    pub(super) fn contains_only_stateless(&self, ops: &HashSet<&str>) -> bool {
        ops.iter().all(|&op| self.stateless.contains(op))
    }

    /// The number of the first tensor of the output `name` among all outputs of `node`: an output may
    /// be a list of tensors.
    pub(super) fn first_output(&self, node: &NodeDef, name: &str) -> Option<usize> {
        let mut first = 0usize;
        for output in self.outputs.get(&node.op)? {
            if output.name == name {
                return Some(first);
            }
            first = first.checked_add(output_length(node, output)?)?;
        }
        None
    }
}

/// How many tensors an output has.
fn output_length(node: &NodeDef, output: &ArgDef) -> Option<usize> {
    let attribute = |name: &str| node.attr.get(name)?.value.as_ref();
    if !output.number_attr.is_empty() {
        let Value::I(number) = attribute(&output.number_attr)? else { return None };
        return usize::try_from(*number).ok();
    }
    if !output.type_list_attr.is_empty() {
        let Value::List(list) = attribute(&output.type_list_attr)? else { return None };
        return Some(list.r#type.len());
    }
    Some(1)
}

fn may_change_state(op: &OpDef) -> bool {
    let is_suspect = op.is_stateful || op.input_arg.iter().any(|arg| arg.is_ref);
    is_suspect && READ_ONLY_OPS.binary_search(&op.name.as_str()).is_err()
}

/// Operations that TensorFlow marks as stateful although a run of them changes nothing: they read or
/// name a variable or table, their state lives for one run (tensor arrays, stacks), they call
/// functions (whose bodies are analyzed themselves), or they draw random numbers. Sorted.
const READ_ONLY_OPS: [&str; 75] = [
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

/// Whether `ops`, which change no state, give the same outputs whenever they get the same inputs.
pub(super) fn are_repeatable(ops: &HashSet<&str>) -> bool {
    !ops.iter().any(|op| UNREPEATABLE_OPS.binary_search(op).is_ok())
}

/// The operations among [`READ_ONLY_OPS`] that draw random numbers, or may do so, and those that tell the
/// time. Sorted.
const UNREPEATABLE_OPS: [&str; 14] = [
    "CudnnRNN",
    "CudnnRNNV2",
    "CudnnRNNV3",
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "Timestamp",
    "TruncatedNormal",
];

/// Whether the sizes of the inputs bound the time that `ops` take.
pub(super) fn are_bounded(ops: &HashSet<&str>) -> bool {
    let is_unbounded = |op: &&str| {
        UNBOUNDED_OPS.contains(op) || UNBOUNDED_KINDS.iter().any(|kind| op.contains(kind))
    };
    !ops.iter().any(is_unbounded)
}

/// Parts of the names of operations that repeat others until a condition holds, or wait for another run, a
/// thread or another machine.
const UNBOUNDED_KINDS: [&str; 16] = [
    "Accumulator",
    "Barrier",
    "Collective",
    "Dataset",
    "Iterator",
    "MapPeek",
    "MutexLock",
    "Nccl",
    "NextIteration",
    "PyFunc",
    "Queue",
    "Reader",
    "Rpc",
    "Stage",
    "Unstage",
    "While",
];

/// Other such operations by their whole names, and those whose programs are not read.
const UNBOUNDED_OPS: [&str; 9] = [
    "Batch",
    "BatchFunction",
    "For",
    "ReadFile",
    "Recv",
    "RemoteCall",
    "Unbatch",
    "XlaCallModule",
    "XlaLaunch",
];

/// Whether `ops` contain one that ends the process for inputs of another rank, instead of returning an
/// error.
pub(super) fn need_exact_shapes(ops: &HashSet<&str>) -> bool {
    ops.iter().any(|op| SHAPE_SENSITIVE_OPS.binary_search(op).is_ok())
}

/// Operations whose kernels read a dimension of their input before they check its rank
/// (`tensor_format.h`: "Check failed: … Invalid index from the dimension"), tried on libtensorflow
/// 2.21 with oneDNN, and those that they are fused into. Sorted.
const SHAPE_SENSITIVE_OPS: [&str; 7] = [
    "Conv2D",
    "Conv3D",
    "DepthwiseConv2dNative",
    "MaxPool3D",
    "_FusedConv2D",
    "_FusedConv3D",
    "_FusedDepthwiseConv2dNative",
];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tensorserve_proto::tensorflow::{AttrValue, FunctionDef, FunctionDefLibrary, NameAttrList};

    pub(crate) fn node(name: &str, op: &str, input: &[&str]) -> NodeDef {
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

    #[test]
    fn an_unknown_or_writing_operation_may_change_state() {
        let op =
            |name: &str, is_stateful| OpDef { name: name.into(), is_stateful, ..OpDef::default() };
        let registry = OpList {
            op: vec![op("Add", false), op("AssignVariableOp", true), op("VarHandleOp", true)],
        };
        let stateless = OpRegistry::new(&registry);
        assert!(stateless.contains_only_stateless(&HashSet::from(["Add", "VarHandleOp"])));
        assert!(!stateless.contains_only_stateless(&HashSet::from(["Add", "AssignVariableOp"])));
        assert!(!stateless.contains_only_stateless(&HashSet::from(["SomeCustomOp"])));
    }

    #[test]
    fn the_lists_of_operations_are_sorted() {
        assert!(READ_ONLY_OPS.is_sorted());
        assert!(SHAPE_SENSITIVE_OPS.is_sorted());
        assert!(UNREPEATABLE_OPS.is_sorted());
        assert!(UNREPEATABLE_OPS.iter().all(|op| READ_ONLY_OPS.contains(op)));
    }

    #[test]
    fn loops_and_waits_are_not_bounded() {
        let bounded =
            ["MatMul", "If", "BatchMatMulV2", "TensorListPushBackBatch", "Enter", "Range"];
        assert!(are_bounded(&HashSet::from(bounded)));
        for op in ["While", "StatelessWhile", "NextIteration", "RefNextIteration", "For", "Batch"] {
            assert!(!are_bounded(&HashSet::from(["Add", op])), "{op}");
        }
        for op in ["QueueDequeueV2", "IteratorGetNext", "ReduceDataset", "XlaCallModule"] {
            assert!(!are_bounded(&HashSet::from(["Add", op])), "{op}");
        }
    }

    #[test]
    fn random_numbers_and_the_time_are_not_repeatable() {
        assert!(are_repeatable(&HashSet::from(["Add", "ReadVariableOp", "LookupTableFindV2"])));
        assert!(!are_repeatable(&HashSet::from(["Add", "RandomUniform"])));
        assert!(!are_repeatable(&HashSet::from(["Timestamp"])));
    }
}
