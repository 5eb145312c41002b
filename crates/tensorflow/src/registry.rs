//! What libtensorflow's registry says about operations: whether a signature can change the model's state, give other
//! outputs another time, run without an end, or end the process.

use std::collections::{HashMap, HashSet};

use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::op_def::ArgDef;
use tensorserve_proto::tensorflow::{NodeDef, OpDef, OpList};

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

    pub(crate) fn node(name: &str, op: &str, input: &[&str]) -> NodeDef {
        NodeDef {
            name: name.into(),
            op: op.into(),
            input: input.iter().map(|&i| i.into()).collect(),
            ..NodeDef::default()
        }
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
