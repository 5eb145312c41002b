//! Upgrades models for operator sets 1 to 6 to operator set 7, the oldest that ONNX Runtime
//! supports.
//!
//! What changed between them: some attributes became inputs, attributes for memory reuse and
//! training were removed, and the second operand is broadcast from the last dimension, not from the
//! dimension that an attribute names. Of the experimental operators of version 1, ONNX Runtime still has some;
//! those that write constants become constants.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::mem;

use super::graph::{constant, floats, int, int64_vector, integers, ints, node};
use super::model::{invalid_model, is_standard_domain, opset};
use crate::proto::attribute_proto::AttributeType;
use crate::proto::type_proto::Value as Type;
use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// The operator set that older models are upgraded to.
const TARGET_OPSET: i64 = 7;

/// The first IR version in which initializers need not be inputs.
const IR_WITH_SEPARATE_INITIALIZERS: i64 = 4;

/// The first IR version in which a model declares its operator sets. Earlier ones use set 1.
const IR_WITH_OPSETS: i64 = 3;

/// Operators whose upgrade is only what all operators have in common.
const UNCHANGED: &[&str] = &[
    "Abs",
    "Affine",
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "Ceil",
    "Clip",
    "Constant",
    "ConvTranspose",
    "Crop",
    "DepthToSpace",
    "Elu",
    "Exp",
    "Flatten",
    "Floor",
    "Gather",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "Hardmax",
    "Identity",
    "ImageScaler",
    "InstanceNormalization",
    "LRN",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "MatMul",
    "Max",
    "MaxPool",
    "MaxRoiPool",
    "Mean",
    "MeanVarianceNormalization",
    "Min",
    "Neg",
    "Not",
    "ParametricSoftplus",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Scale",
    "ScaledTanh",
    "Selu",
    "Shape",
    "Sigmoid",
    "Size",
    "Slice",
    "Softmax",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Sqrt",
    "Squeeze",
    "Sum",
    "Tanh",
    "ThresholdedRelu",
    "TopK",
    "Transpose",
    "Unsqueeze",
];

/// Upgrades `model` to [`TARGET_OPSET`] if it uses an older operator set. Returns whether it did.
///
/// # Errors
/// [`Code::Unimplemented`], with the name of the operator, if one cannot be upgraded;
/// [`Code::DataLoss`] if an operator is invalid.
pub(super) fn upgrade(model: &mut ModelProto) -> Result<bool> {
    let implied = if model.ir_version < IR_WITH_OPSETS { Some(1) } else { None };
    let from = match opset(model).or(implied) {
        Some(version) if version < TARGET_OPSET => version.max(1),
        _ => return Ok(false),
    };
    separate_initializers(model);
    let names = Cell::new(0);
    Upgrader::upgrade_graph(model.graph.get_or_insert_default(), from, None, &names)?;
    model.opset_import.retain(|import| !is_standard_domain(&import.domain));
    model.opset_import.push(OperatorSetIdProto { domain: String::new(), version: TARGET_OPSET });
    Ok(true)
}

/// Removes the initializers of an old model from its inputs, where its IR version required them.
pub(super) fn separate_initializers(model: &mut ModelProto) {
    if model.ir_version >= IR_WITH_SEPARATE_INITIALIZERS {
        return;
    }
    model.ir_version = IR_WITH_SEPARATE_INITIALIZERS;
    let graph = model.graph.get_or_insert_default();
    let names: HashSet<&str> = graph.initializer.iter().map(|tensor| &*tensor.name).collect();
    graph.input.retain(|input| !names.contains(&*input.name));
}

/// The upgrade of one graph, node by node.
struct Upgrader<'a> {
    /// The operator set that the model uses.
    from: i64,
    /// The upgrade of the graph around a loop's or a branch's.
    outer: Option<&'a Upgrader<'a>>,
    /// The number of names that were made.
    names: &'a Cell<usize>,
    /// The known ranks of values, by name.
    ranks: HashMap<String, usize>,
    /// The values of small constants that are whole numbers, by name.
    constants: HashMap<String, Vec<i64>>,
    /// The upgraded nodes.
    nodes: Vec<NodeProto>,
    /// Initializers that the upgraded nodes need.
    initializers: Vec<TensorProto>,
}

impl<'a> Upgrader<'a> {
    /// Upgrades a graph, within that of `outer`.
    fn upgrade_graph(
        graph: &mut GraphProto,
        from: i64,
        outer: Option<&'a Upgrader<'a>>,
        names: &'a Cell<usize>,
    ) -> Result<()> {
        let mut upgrader = Upgrader::new(graph, from, outer, names);
        for node in mem::take(&mut graph.node) {
            upgrader.upgrade_node(node)?;
        }
        graph.node = upgrader.nodes;
        graph.initializer.extend(upgrader.initializers);
        Ok(())
    }

    fn new(
        graph: &GraphProto,
        from: i64,
        outer: Option<&'a Upgrader<'a>>,
        names: &'a Cell<usize>,
    ) -> Self {
        let declared = graph.input.iter().chain(&graph.value_info);
        let mut ranks: HashMap<String, usize> =
            declared.filter_map(|info| Some((info.name.clone(), declared_rank(info)?))).collect();
        let mut constants = HashMap::new();
        for tensor in &graph.initializer {
            ranks.insert(tensor.name.clone(), tensor.dims.len());
            constants.extend(integers(tensor).map(|values| (tensor.name.clone(), values)));
        }
        let (nodes, initializers) = (Vec::new(), Vec::new());
        Upgrader { from, outer, names, ranks, constants, nodes, initializers }
    }

    /// A name that no value has.
    fn new_name(&self, kind: &str) -> String {
        let number = self.names.get();
        self.names.set(number + 1);
        format!("tensorserve/{kind}{number}")
    }

    fn upgrade_node(&mut self, mut node: NodeProto) -> Result<()> {
        if !is_standard_domain(&node.domain) {
            self.nodes.push(node);
            return Ok(());
        }
        node.attribute.iter_mut().for_each(set_attribute_type);
        // The runtime now decides itself which inputs an operator may overwrite.
        node.take("consumed_inputs");
        let op = node.op_type.clone();
        match &*op {
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "And" | "Or" | "Xor" | "Greater" | "Less"
            | "Equal" => self.broadcast_from_axis(&mut node)?,
            "PRelu" => self.broadcast_slope(&mut node)?,
            "Gemm" => drop(node.take("broadcast")),
            "Dropout" => drop(node.take("is_test")),
            "BatchNormalization" => {
                node.take("is_test");
                node.output.truncate(1); // The other outputs were for training.
            }
            "RNN" | "GRU" | "LSTM" => drop(node.take("output_sequence")),
            "Conv" | "MaxPool" | "AveragePool" | "ConvTranspose" => pad_both_ends(&mut node),
            "Reshape" if self.from < 5 => self.move_shape_to_input(&mut node)?,
            "Cast" if self.from < 6 => number_cast_type(&mut node)?,
            "Concat" if self.from < 4 && node.int("axis").is_none() => {
                node.attribute.push(int("axis", 1));
            }
            "Pad" if self.from < 2 => rename_attribute(&mut node, "paddings", "pads"),
            "LpPool" | "GlobalLpPool" if self.from < 2 => integer_norm_order(&mut node)?,
            "Upsample" => self.merge_scales(&mut node)?,
            "Split" if node.input.len() >= 2 => self.move_sizes_to_attribute(&mut node)?,
            "If" | "Loop" => self.upgrade_subgraphs(&mut node)?,
            "Tile" if self.from < 6 => self.list_repeats(&mut node)?,
            "ConstantFill" | "GivenTensorFill" => node = self.fill_constant(&node)?,
            "Reshape" | "Cast" | "Concat" | "Pad" | "LpPool" | "GlobalLpPool" | "Split"
            | "Tile" => {}
            op if UNCHANGED.contains(&op) => {}
            _ => return Err(self.unsupported(&node, "it has no equivalent there")),
        }
        self.record_output_ranks(&node);
        self.nodes.push(node);
        Ok(())
    }

    /// The error for an operator that cannot be upgraded.
    fn unsupported(&self, node: &NodeProto, reason: &str) -> Error {
        let (op, from) = (&node.op_type, self.from);
        Error::new(
            Code::Unimplemented,
            format!(
                "the model uses version {from} of ONNX's operators, which ONNX Runtime no longer \
                 supports, and its operator {op} cannot be upgraded to version {TARGET_OPSET}: \
                 {reason}. Export the model with a current version of its framework"
            ),
        )
    }

    /// Appends dimensions to a second operand that is aligned with an axis of the first operand, so
    /// that it is aligned with the last dimension.
    fn broadcast_from_axis(&mut self, node: &mut NodeProto) -> Result<()> {
        let is_broadcast = node.take("broadcast").and_then(|its| its.i).unwrap_or(0) != 0;
        let axis = node.take("axis").and_then(|its| its.i);
        let (true, Some(axis)) = (is_broadcast, axis) else {
            return Ok(());
        };
        let (Some(first), Some(second)) = (self.rank(node, 0), self.rank(node, 1)) else {
            return Err(self.unsupported(node, "the ranks of its inputs are unknown"));
        };
        let axis = usize::try_from(axis).ok().or_else(|| {
            let from_end = usize::try_from(axis.unsigned_abs()).ok()?;
            first.checked_sub(from_end)
        });
        let end = axis.and_then(|axis| axis.checked_add(second));
        let Some(trailing) = end.and_then(|end| first.checked_sub(end)) else {
            let message = format!("an operator {} has an axis out of range", node.op_type);
            return Err(invalid_model(message));
        };
        self.append_dimensions(node, second, trailing);
        Ok(())
    }

    /// Aligns a vector of slopes with the channels, which are the dimension after the batch.
    fn broadcast_slope(&mut self, node: &mut NodeProto) -> Result<()> {
        if self.rank(node, 1) != Some(1) {
            return Ok(());
        }
        let Some(rank) = self.rank(node, 0) else {
            return Err(self.unsupported(node, "the rank of its input is unknown"));
        };
        self.append_dimensions(node, 1, rank.saturating_sub(2));
        Ok(())
    }

    /// Appends `count` dimensions of size 1 to the second input, whose rank is `rank`.
    fn append_dimensions(&mut self, to: &mut NodeProto, rank: usize, count: usize) {
        let Some(input) = to.input.get_mut(1).filter(|_| count > 0) else {
            return;
        };
        let number = self.names.get();
        self.names.set(number + 1);
        let unsqueezed = format!("{input}/unsqueezed{number}");
        let axes = (rank..rank + count).map(|axis| i64::try_from(axis).unwrap_or(i64::MAX));
        let axes: Vec<i64> = axes.collect();
        self.nodes.push(node("Unsqueeze", &[input], &[&unsqueezed]).with(ints("axes", &axes)));
        *input = unsqueezed;
    }

    fn move_shape_to_input(&mut self, node: &mut NodeProto) -> Result<()> {
        let Some(shape) = node.take("shape") else {
            return Err(invalid_model("an operator Reshape has no shape".to_owned()));
        };
        let name = self.new_name("shape");
        self.initializers.push(int64_vector(&name, &shape.ints));
        node.input.truncate(1);
        node.input.push(name);
        Ok(())
    }

    fn merge_scales(&self, node: &mut NodeProto) -> Result<()> {
        let scales = ["height_scale", "width_scale"].map(|name| node.take(name).and_then(|a| a.f));
        match scales {
            [Some(height), Some(width)] => {
                node.attribute.push(floats("scales", &[1.0, 1.0, height, width]));
                Ok(())
            }
            _ if node.get("scales").is_some() => Ok(()),
            _ => Err(self.unsupported(node, "it has no scales")),
        }
    }

    fn upgrade_subgraphs(&self, node: &mut NodeProto) -> Result<()> {
        for graph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()) {
            Upgrader::upgrade_graph(graph, self.from, Some(self), self.names)?;
        }
        Ok(())
    }

    /// Makes the second input of a Split, the sizes of its parts, an attribute.
    fn move_sizes_to_attribute(&self, node: &mut NodeProto) -> Result<()> {
        let Some(sizes) = self.constant(node, 1) else {
            return Err(self.unsupported(node, "the sizes of the parts are computed in the graph"));
        };
        node.take("split");
        node.attribute.push(ints("split", &sizes));
        node.input.truncate(1);
        Ok(())
    }

    /// Makes the inputs of a Tile, a number of repeats and the axis, a list of the repeats along each axis.
    fn list_repeats(&mut self, node: &mut NodeProto) -> Result<()> {
        let Some(rank) = self.rank(node, 0) else {
            return Err(self.unsupported(node, "the rank of its input is unknown"));
        };
        let Some([axis]) =
            self.constant(node, 2).as_deref().and_then(|axis| axis.first_chunk()).copied()
        else {
            return Err(self.unsupported(node, "its axis is computed in the graph"));
        };
        let Some(axis) = usize::try_from(axis).ok().filter(|axis| *axis < rank) else {
            return Err(invalid_model("an operator Tile has an axis out of range".to_owned()));
        };
        let repeats = self.new_name("repeats");
        match self.constant(node, 1).as_deref() {
            Some([count, ..]) => {
                let mut all = vec![1; rank];
                all.iter_mut().skip(axis).take(1).for_each(|at| *at = *count);
                self.initializers.push(int64_vector(&repeats, &all));
            }
            _ => self.join_repeats(node, &repeats, axis, rank),
        }
        node.input.truncate(1);
        node.input.push(repeats);
        Ok(())
    }

    /// Computes `repeats`, which is 1 for each axis but `axis`, and there the second input of `tile`.
    fn join_repeats(&mut self, tile: &NodeProto, repeats: &str, axis: usize, rank: usize) {
        let [shape, number, count] = ["shape", "number", "count"].map(|kind| self.new_name(kind));
        let [before, after] = ["before", "after"].map(|kind| self.new_name(kind));
        self.initializers.push(int64_vector(&shape, &[1]));
        self.initializers.push(int64_vector(&before, &vec![1; axis]));
        self.initializers.push(int64_vector(&after, &vec![1; rank - axis - 1]));
        let given = tile.input.get(1).map_or("", String::as_str);
        self.nodes.push(node("Cast", &[given], &[&number]).with(int("to", INT64)));
        self.nodes.push(node("Reshape", &[&number, &shape], &[&count]));
        let parts: [&str; 3] = [&before, &count, &after];
        self.nodes.push(node("Concat", &parts, &[repeats]).with(int("axis", 0)));
    }

    /// The constant that an experimental operator without inputs writes.
    fn fill_constant(&self, node: &NodeProto) -> Result<NodeProto> {
        let shape = node.ints("shape");
        let count = shape.iter().try_fold(1_i64, |count, size| count.checked_mul(*size));
        let count = count.and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| *count <= MAX_FILLED);
        let (Some(count), true) = (count, node.input.is_empty()) else {
            return Err(self.unsupported(node, "the shape of its output is computed in the graph"));
        };
        let values = match node.get("values") {
            Some(values) if values.floats.len() == count => values.floats.clone(),
            Some(_) => {
                let message = format!("an operator {} has too few values", node.op_type);
                return Err(invalid_model(message));
            }
            None if node.int("dtype").is_none_or(|dtype| dtype == FLOAT) => {
                let value = node.get("value").and_then(|value| value.f).unwrap_or(0.0);
                vec![value; count]
            }
            None => return Err(self.unsupported(node, "it is not of floats")),
        };
        let output = node.output.first().map_or("", String::as_str);
        Ok(constant(output, shape, &values))
    }

    /// The rank of an input of a node, if it is known.
    fn rank(&self, node: &NodeProto, input: usize) -> Option<usize> {
        let name = node.input.get(input)?;
        let mut scopes = std::iter::successors(Some(self), |scope| scope.outer);
        scopes.find_map(|scope| scope.ranks.get(name)).copied()
    }

    /// The whole numbers of an input of a node, if it is a small constant.
    fn constant(&self, node: &NodeProto, input: usize) -> Option<Vec<i64>> {
        let name = node.input.get(input)?;
        let mut scopes = std::iter::successors(Some(self), |scope| scope.outer);
        scopes.find_map(|scope| scope.constants.get(name)).cloned()
    }

    /// Records the rank of an operator's outputs where the ranks of its inputs determine it.
    fn record_output_ranks(&mut self, node: &NodeProto) {
        if let ("Constant", Some(output)) = (&*node.op_type, node.output.first()) {
            let value = node.get("value").and_then(|its| its.t.as_ref());
            let values = value.and_then(integers);
            self.constants.extend(values.map(|values| (output.clone(), values)));
        }
        // Otherwise the rank that the model declares for an output stays.
        let Some(rank) = self.output_rank(node) else {
            return;
        };
        for output in &node.output {
            self.ranks.insert(output.clone(), rank);
        }
    }

    fn output_rank(&self, node: &NodeProto) -> Option<usize> {
        let first = self.rank(node, 0);
        let axes = node.ints("axes").len();
        match &*node.op_type {
            "Reshape" => {
                let mut initializers = self.initializers.iter();
                let shape = initializers.find(|its| node.input.get(1) == Some(&its.name));
                shape.map(|shape| shape.int64_data.len())
            }
            "Flatten" | "Gemm" => Some(2),
            "Shape" => Some(1),
            "Size" => Some(0),
            "Constant" => {
                node.get("value").and_then(|its| its.t.as_ref()).map(|value| value.dims.len())
            }
            "Unsqueeze" => first.map(|rank| rank + axes),
            "Squeeze" if axes > 0 => first.and_then(|rank| rank.checked_sub(axes)),
            "ArgMax" | "ArgMin" if node.int("keepdims") == Some(0) => {
                first.and_then(|rank| rank.checked_sub(1))
            }
            op if op.starts_with("Reduce") && node.int("keepdims") == Some(0) => {
                first.map(|rank| if axes == 0 { 0 } else { rank.saturating_sub(axes) })
            }
            "MatMul" => first.filter(|rank| *rank >= 2 && self.rank(node, 1) <= Some(*rank)),
            "Squeeze" | "Gather" | "RNN" | "GRU" | "LSTM" | "If" | "Loop" => None,
            // The output of every other operator has the rank of the first input.
            _ => first,
        }
    }
}

/// The most values of a constant that an experimental operator writes.
const MAX_FILLED: usize = 1 << 20;

/// `TensorProto.DataType.FLOAT`.
const FLOAT: i64 = 1;

/// `TensorProto.DataType.INT64`.
const INT64: i64 = 7;

/// The rank that a model declares for a value.
fn declared_rank(info: &ValueInfoProto) -> Option<usize> {
    match &info.r#type.as_ref()?.value {
        Some(Type::TensorType(tensor)) => Some(tensor.shape.as_ref()?.dim.len()),
        _ => None,
    }
}

/// Sets an attribute's type, which is missing in the first IR version.
fn set_attribute_type(attribute: &mut AttributeProto) {
    if attribute.r#type() != AttributeType::Undefined {
        return;
    }
    let types = [
        (attribute.f.is_some(), AttributeType::Float),
        (attribute.i.is_some(), AttributeType::Int),
        (attribute.s.is_some(), AttributeType::String),
        (attribute.t.is_some(), AttributeType::Tensor),
        (attribute.g.is_some(), AttributeType::Graph),
        (!attribute.floats.is_empty(), AttributeType::Floats),
        (!attribute.ints.is_empty(), AttributeType::Ints),
        (!attribute.strings.is_empty(), AttributeType::Strings),
    ];
    if let Some((_, its_type)) = types.into_iter().find(|(is_set, _)| *is_set) {
        attribute.set_type(its_type);
    }
}

fn rename_attribute(node: &mut NodeProto, from: &str, to: &str) {
    if let Some(mut attribute) = node.take(from) {
        to.clone_into(&mut attribute.name);
        node.attribute.push(attribute);
    }
}

/// Repeats a padding that is given once for both ends, as old versions of PyTorch did.
fn pad_both_ends(node: &mut NodeProto) {
    let pads = node.ints("pads");
    if pads.is_empty() || pads.len() != node.ints("kernel_shape").len() {
        return;
    }
    let both = [pads, pads].concat();
    node.take("pads");
    node.attribute.push(ints("pads", &both));
}

/// The names of `TensorProto.DataType` in the order of their numbers.
const ELEMENT_TYPE_NAMES: [&str; 16] = [
    "UNDEFINED",
    "FLOAT",
    "UINT8",
    "INT8",
    "UINT16",
    "INT16",
    "INT32",
    "INT64",
    "STRING",
    "BOOL",
    "FLOAT16",
    "DOUBLE",
    "UINT32",
    "UINT64",
    "COMPLEX64",
    "COMPLEX128",
];

/// Replaces the name of the type that a Cast casts to with its number.
fn number_cast_type(node: &mut NodeProto) -> Result<()> {
    let Some(name) = node.get("to").and_then(|its| its.s.clone()) else {
        return Ok(());
    };
    let mut types = (0..).zip(ELEMENT_TYPE_NAMES);
    let Some((number, _)) = types.find(|(_, its)| name.eq_ignore_ascii_case(its.as_bytes())) else {
        return Err(invalid_model("an operator Cast names an unknown type".to_owned()));
    };
    node.take("to");
    node.attribute.push(int("to", number));
    Ok(())
}

/// The highest order of a norm that is upgraded.
const MAX_NORM_ORDER: i16 = 4;

/// Makes the order `p` of a norm, which was a float, an integer.
fn integer_norm_order(node: &mut NodeProto) -> Result<()> {
    let Some(order) = node.take("p").and_then(|its| its.f) else {
        return Ok(());
    };
    let Some(integer) = (1..=MAX_NORM_ORDER).find(|&integer| f32::from(integer) == order) else {
        let message = format!(
            "an operator {} has the norm order p = {order}; only the integers from 1 to \
             {MAX_NORM_ORDER} are supported",
            node.op_type
        );
        return Err(Error::new(Code::Unimplemented, message));
    };
    node.attribute.push(int("p", integer.into()));
    Ok(())
}

#[cfg(test)]
mod tests;
