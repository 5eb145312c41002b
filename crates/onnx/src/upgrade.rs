//! Brings models for old operators to the oldest that ONNX Runtime runs.
//!
//! What changed from the first operators to those of version 7: numbers that were attributes became
//! inputs, attributes about memory and training went, and a second operand is spread over the first
//! from its last dimension, not from one that an attribute names.

use std::collections::{HashMap, HashSet};
use std::mem;

use super::graph::{floats, int, integers, ints, node};
use super::model::{broken, is_own, opset};
use crate::proto::attribute_proto::AttributeType;
use crate::proto::type_proto::Value as Type;
use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// The version of ONNX's own operators that what is older is brought to.
const TARGET: i64 = 7;

/// The version of the format from which on constants need not be inputs.
const CONSTANTS_APART: i64 = 4;

/// Operators that are the same in version 7, but for what goes from all.
const UNCHANGED: &[&str] = &[
    "Abs",
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "Ceil",
    "Clip",
    "Constant",
    "ConvTranspose",
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
    "Min",
    "Neg",
    "Not",
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
    "TopK",
    "Transpose",
    "Unsqueeze",
];

/// Brings `model` to operators that the runtime knows. Returns whether it had to.
///
/// # Errors
/// [`Code::Unimplemented`] with the name of what can not be brought there.
pub(super) fn upgrade(model: &mut ModelProto) -> Result<bool> {
    // The first two versions of the format did not name operators, of which there was one set.
    let first = if model.ir_version < 3 { Some(1) } else { None };
    let from = match opset(model).or(first) {
        Some(version) if version < TARGET => version.max(1),
        _ => return Ok(false),
    };
    separate_constants(model);
    let graph = model.graph.get_or_insert_default();
    let mut upgrade = Upgrade::of(graph, from);
    for node in mem::take(&mut graph.node) {
        upgrade.take(node)?;
    }
    graph.node = upgrade.nodes;
    graph.initializer.extend(upgrade.constants);
    model.opset_import.retain(|import| !is_own(&import.domain));
    model.opset_import.push(OperatorSetIdProto { domain: String::new(), version: TARGET });
    Ok(true)
}

/// Makes constants no inputs, as they had to be in old models.
pub(super) fn separate_constants(model: &mut ModelProto) {
    if model.ir_version >= CONSTANTS_APART {
        return;
    }
    model.ir_version = CONSTANTS_APART;
    let graph = model.graph.get_or_insert_default();
    let names: HashSet<&str> = graph.initializer.iter().map(|tensor| &*tensor.name).collect();
    graph.input.retain(|input| !names.contains(&*input.name));
}

struct Upgrade {
    from: i64,
    /// Numbers of dimensions of what is known.
    ranks: HashMap<String, usize>,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

impl Upgrade {
    fn of(graph: &GraphProto, from: i64) -> Self {
        let declared = |info: &ValueInfoProto| match &info.r#type.as_ref()?.value {
            Some(Type::TensorType(tensor)) => {
                Some((info.name.clone(), tensor.shape.as_ref()?.dim.len()))
            }
            _ => None,
        };
        let constant = |tensor: &TensorProto| (tensor.name.clone(), tensor.dims.len());
        let ranks = graph.input.iter().chain(&graph.value_info).filter_map(declared);
        let ranks = ranks.chain(graph.initializer.iter().map(constant)).collect();
        Upgrade { from, ranks, nodes: Vec::new(), constants: Vec::new() }
    }

    fn take(&mut self, mut node: NodeProto) -> Result<()> {
        if !is_own(&node.domain) {
            self.nodes.push(node);
            return Ok(());
        }
        node.attribute.iter_mut().for_each(name_kind);
        // What an operator may overwrite is the runtime's own affair now.
        node.take("consumed_inputs");
        let op = node.op_type.clone();
        match &*op {
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "And" | "Or" | "Xor" | "Greater" | "Less"
            | "Equal" => self.spread(&mut node)?,
            "PRelu" => self.spread_slope(&mut node)?,
            "Gemm" => drop(node.take("broadcast")),
            "Dropout" => drop(node.take("is_test")),
            "BatchNormalization" => {
                node.take("is_test");
                node.output.truncate(1); // The rest was for training.
            }
            "RNN" | "GRU" | "LSTM" => drop(node.take("output_sequence")),
            "Conv" | "MaxPool" | "AveragePool" | "ConvTranspose" => pad_both_ends(&mut node),
            "Reshape" if self.from < 5 => self.shape_as_input(&mut node)?,
            "Cast" if self.from < 6 => number_type(&mut node)?,
            "Concat" if self.from < 4 && node.int("axis").is_none() => {
                node.attribute.push(int("axis", 1));
            }
            "Pad" if self.from < 2 => rename(&mut node, "paddings", "pads"),
            "LpPool" | "GlobalLpPool" if self.from < 2 => whole_power(&mut node)?,
            "Upsample" => self.scales(&mut node)?,
            "Split" if node.input.len() < 2 => {}
            "Reshape" | "Cast" | "Concat" | "Pad" | "LpPool" | "GlobalLpPool" => {}
            "Tile" if self.from >= 6 => {}
            known if UNCHANGED.contains(&known) => {}
            _ => return Err(self.refused(&node, "it has no upgrade")),
        }
        self.note_rank(&node);
        self.nodes.push(node);
        Ok(())
    }

    fn refused(&self, node: &NodeProto, why: &str) -> Error {
        let (op, from) = (&node.op_type, self.from);
        Error::new(
            Code::Unimplemented,
            format!(
                "the model is for version {from} of ONNX's operators, which ONNX Runtime no longer \
                 has, and its operator {op} can not be brought to version {TARGET}: {why}. \
                 Export the model anew"
            ),
        )
    }

    /// Gives a second operand that begins at an axis of the first the dimensions behind it.
    fn spread(&mut self, node: &mut NodeProto) -> Result<()> {
        let is_spread = node.take("broadcast").and_then(|its| its.i).unwrap_or(0) != 0;
        let axis = node.take("axis").and_then(|its| its.i);
        let (true, Some(axis)) = (is_spread, axis) else {
            return Ok(());
        };
        let (Some(first), Some(second)) = (self.rank(node, 0), self.rank(node, 1)) else {
            return Err(self.refused(node, "the ranks of its inputs are not known"));
        };
        let axis = usize::try_from(axis).ok().or_else(|| {
            let behind = usize::try_from(axis.unsigned_abs()).ok()?;
            first.checked_sub(behind)
        });
        let end = axis.and_then(|axis| axis.checked_add(second));
        let Some(behind) = end.and_then(|end| first.checked_sub(end)) else {
            return Err(broken(format!("an operator {} has an axis out of range", node.op_type)));
        };
        self.append_dimensions(node, second, behind);
        Ok(())
    }

    /// A slope for each channel, which is the first dimension behind the batch.
    fn spread_slope(&mut self, node: &mut NodeProto) -> Result<()> {
        if self.rank(node, 1) != Some(1) {
            return Ok(());
        }
        let Some(rank) = self.rank(node, 0) else {
            return Err(self.refused(node, "the rank of its input is not known"));
        };
        self.append_dimensions(node, 1, rank.saturating_sub(2));
        Ok(())
    }

    /// Appends `count` dimensions to those of the second input, of which there are `rank`.
    fn append_dimensions(&mut self, to: &mut NodeProto, rank: usize, count: usize) {
        let Some(input) = to.input.get_mut(1).filter(|_| count > 0) else {
            return;
        };
        let spread = format!("{input}/spread{}", self.nodes.len());
        let axes = (rank..rank + count).map(|axis| i64::try_from(axis).unwrap_or(i64::MAX));
        let axes: Vec<i64> = axes.collect();
        self.nodes.push(node("Unsqueeze", &[input], &[&spread]).with(ints("axes", &axes)));
        *input = spread;
    }

    fn shape_as_input(&mut self, node: &mut NodeProto) -> Result<()> {
        let Some(shape) = node.take("shape") else {
            return Err(broken("an operator Reshape has no shape".to_owned()));
        };
        let name = self.constant("shape", &shape.ints);
        node.input.truncate(1);
        node.input.push(name);
        Ok(())
    }

    /// A new constant vector.
    fn constant(&mut self, what: &str, values: &[i64]) -> String {
        let name = format!("tensorserve/{what}{}", self.nodes.len());
        self.constants.push(integers(&name, values));
        name
    }

    fn scales(&self, node: &mut NodeProto) -> Result<()> {
        let taken = ["height_scale", "width_scale"].map(|name| node.take(name).and_then(|a| a.f));
        match taken {
            [Some(height), Some(width)] => {
                node.attribute.push(floats("scales", &[1.0, 1.0, height, width]));
                Ok(())
            }
            _ if node.get("scales").is_some() => Ok(()),
            _ => Err(self.refused(node, "it names no scales")),
        }
    }

    fn rank(&self, node: &NodeProto, input: usize) -> Option<usize> {
        self.ranks.get(node.input.get(input)?).copied()
    }

    /// Notes the number of dimensions of what an operator gives, as far as it can be told.
    fn note_rank(&mut self, node: &NodeProto) {
        let first = self.rank(node, 0);
        let axes = node.ints("axes").len();
        let rank = match &*node.op_type {
            "Reshape" => {
                let shape = self.constants.iter().find(|c| node.input.get(1) == Some(&c.name));
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
            "Squeeze" | "Gather" | "RNN" | "GRU" | "LSTM" => None,
            // All others give what has as many dimensions as their first input.
            _ => first,
        };
        for output in &node.output {
            match rank {
                Some(rank) => self.ranks.insert(output.clone(), rank),
                // What the model says of it.
                None => continue,
            };
        }
    }
}

/// Says of what kind an attribute is, which the first version of the format left open.
fn name_kind(attribute: &mut AttributeProto) {
    if attribute.r#type() != AttributeType::Undefined {
        return;
    }
    let kinds = [
        (attribute.f.is_some(), AttributeType::Float),
        (attribute.i.is_some(), AttributeType::Int),
        (attribute.s.is_some(), AttributeType::String),
        (attribute.t.is_some(), AttributeType::Tensor),
        (attribute.g.is_some(), AttributeType::Graph),
        (!attribute.floats.is_empty(), AttributeType::Floats),
        (!attribute.ints.is_empty(), AttributeType::Ints),
        (!attribute.strings.is_empty(), AttributeType::Strings),
    ];
    if let Some((_, kind)) = kinds.into_iter().find(|(is_set, _)| *is_set) {
        attribute.set_type(kind);
    }
}

fn rename(node: &mut NodeProto, from: &str, to: &str) {
    if let Some(mut attribute) = node.take(from) {
        to.clone_into(&mut attribute.name);
        node.attribute.push(attribute);
    }
}

/// PyTorch wrote a padding once for both ends.
fn pad_both_ends(node: &mut NodeProto) {
    let pads = node.ints("pads");
    if pads.is_empty() || pads.len() != node.ints("kernel_shape").len() {
        return;
    }
    let both = [pads, pads].concat();
    node.take("pads");
    node.attribute.push(ints("pads", &both));
}

/// The type to cast to, by number and not by name.
fn number_type(node: &mut NodeProto) -> Result<()> {
    let Some(name) = node.get("to").and_then(|its| its.s.clone()) else {
        return Ok(());
    };
    const NAMES: [&str; 16] = [
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
    let number = (0..).zip(NAMES).find(|(_, its)| name.eq_ignore_ascii_case(its.as_bytes()));
    let Some((number, _)) = number else {
        return Err(broken("an operator Cast names an unknown type".to_owned()));
    };
    node.take("to");
    node.attribute.push(int("to", number));
    Ok(())
}

/// The power of a norm, which became an integer.
fn whole_power(node: &mut NodeProto) -> Result<()> {
    let Some(power) = node.take("p").and_then(|its| its.f) else {
        return Ok(());
    };
    let whole = [1_i16, 2, 3, 4].into_iter().find(|&whole| f32::from(whole) == power);
    let Some(whole) = whole else {
        let message = format!("an operator {} has the power {power}", node.op_type);
        return Err(Error::new(Code::Unimplemented, message));
    };
    node.attribute.push(int("p", whole.into()));
    Ok(())
}
