//! Turns a checkpoint into an ONNX model.
//!
//! This file knows graphs: what is an input, a parameter, an output, and what each is called.
//! [`super::ops`] knows what each operation means.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;

use super::ops;
use super::params::Array;
use super::signature::{Declared, Tensor as DeclaredTensor};
use super::symbol::{Node, Port, Symbol};
use crate::graph::{self, integers, node};
use crate::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
};
use crate::types;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

/// The version of ONNX's operators that we write, and that of the format it came with.
const OPSET: i64 = 13;
const IR: i64 = 7;

/// The ONNX model of a checkpoint.
///
/// # Errors
/// [`Code::Unimplemented`] with the name of an operation that has no counterpart;
/// [`Code::DataLoss`] if symbol, parameters and signature do not fit together.
pub(super) fn convert(
    symbol: &Symbol,
    params: &HashMap<String, Array>,
    declared: Option<&Declared>,
) -> Result<ModelProto> {
    let floating =
        |array: &&Array| matches!(array.dtype, DType::Float | DType::Double | DType::Half);
    let mut converter = Converter {
        symbol,
        params,
        dtype: params.values().find(floating).map_or(DType::Float, |array| array.dtype),
        graph: GraphProto { name: "mxnet".to_owned(), ..GraphProto::default() },
        ranks: HashMap::new(),
        constants: BTreeSet::new(),
    };
    converter.take_inputs(declared)?;
    let needed = needed(symbol);
    for (index, node) in symbol.nodes.iter().enumerate() {
        if needed.contains(&index) && !node.is_variable() {
            ops::convert(&mut converter, node, &value_of(index, node))?;
        }
    }
    converter.give_outputs(declared)?;
    Ok(ModelProto {
        ir_version: IR,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        producer_name: "tensorserve".to_owned(),
        graph: Some(converter.graph),
        ..ModelProto::default()
    })
}

/// What is called in the ONNX graph what a node gives.
fn value_of(index: usize, node: &Node) -> String {
    if node.is_variable() { node.name.clone() } else { format!("{}/{index}", node.name) }
}

/// The nodes that the outputs come from, without those that only serve training: labels.
fn needed(symbol: &Symbol) -> BTreeSet<usize> {
    let mut needed: BTreeSet<usize> = symbol.heads.iter().map(|port| port.node).collect();
    // Each node comes after those that it takes from.
    for (index, node) in symbol.nodes.iter().enumerate().rev() {
        if needed.contains(&index) {
            needed.extend(ops::live_inputs(node).iter().map(|port| port.node));
        }
    }
    needed
}

/// A graph that is being made.
pub(super) struct Converter<'a> {
    symbol: &'a Symbol,
    params: &'a HashMap<String, Array>,
    /// That of the numbers that the model computes with.
    pub(super) dtype: DType,
    graph: GraphProto,
    /// Numbers of dimensions of what is known.
    ranks: HashMap<String, usize>,
    constants: BTreeSet<String>,
}

impl Converter<'_> {
    /// Makes inputs of the variables that have no parameters.
    fn take_inputs(&mut self, declared: Option<&Declared>) -> Result<()> {
        let needed = needed(self.symbol);
        let variables = self.symbol.nodes.iter().enumerate().filter(|(_, n)| n.is_variable());
        let mut left: Vec<&DeclaredTensor> = declared.iter().flat_map(|its| &its.inputs).collect();
        for (index, node) in variables {
            if self.params.contains_key(&node.name) {
                continue;
            }
            let known = left.iter().position(|its| its.name == node.name);
            let known = known.map(|place| left.remove(place));
            match (known, declared) {
                (Some(known), _) => {
                    let dims = known.dims();
                    self.ranks.insert(node.name.clone(), dims.len());
                    self.graph.input.push(graph::value(&node.name, self.dtype, &dims));
                }
                (None, Some(_)) if needed.contains(&index) => return Err(missing(&node.name)),
                (None, None) if needed.contains(&index) => self.take_undeclared(node)?,
                (None, _) => {}
            }
        }
        match left.first() {
            Some(stranger) => {
                let name = &stranger.name;
                let message = format!("its signature has an input {name:?}, its symbol has none");
                Err(Error::new(Code::DataLoss, message))
            }
            None => Ok(()),
        }
    }

    fn take_undeclared(&mut self, node: &Node) -> Result<()> {
        if ops::is_called_like_a_parameter(&node.name) {
            return Err(missing(&node.name));
        }
        let mut input = graph::value(&node.name, self.dtype, &[]);
        // Of any shape.
        open(&mut input);
        self.graph.input.push(input);
        Ok(())
    }

    /// Names what the graph gives as clients know it.
    fn give_outputs(&mut self, declared: Option<&Declared>) -> Result<()> {
        let names = declared.map_or(&[][..], |its| &its.outputs);
        if !names.is_empty() && names.len() != self.symbol.heads.len() {
            let message = format!(
                "its signature has {} outputs, its symbol has {}",
                names.len(),
                self.symbol.heads.len()
            );
            return Err(Error::new(Code::DataLoss, message));
        }
        for (index, &head) in self.symbol.heads.iter().enumerate() {
            let value = self.value(head)?;
            let declared = names.get(index);
            let name = match (declared, self.symbol.nodes.get(head.node)) {
                (Some(declared), _) => declared.name.clone(),
                (None, Some(node)) => format!("{}_output", node.name),
                (None, None) => return Err(Error::internal("an output of no node")),
            };
            self.graph.node.push(node("Identity", &[&value], &[&name]));
            let dims = declared.map(DeclaredTensor::dims).unwrap_or_default();
            let mut output = graph::value(&name, self.dtype, &dims);
            if dims.is_empty() {
                open(&mut output);
            }
            self.graph.output.push(output);
        }
        Ok(())
    }

    /// The name of what a port gives.
    fn value(&mut self, port: Port) -> Result<String> {
        let node = self.symbol.nodes.get(port.node);
        let node = node.ok_or_else(|| Error::internal("a port of no node"))?;
        if port.output > 0 {
            return Err(node.refused(&format!("its output number {} is used", port.output)));
        }
        if node.is_variable() {
            self.take_param(&node.name);
        }
        Ok(value_of(port.node, node))
    }

    /// Makes a constant of the parameter `name`, if there is such a one.
    pub(super) fn take_param(&mut self, name: &str) {
        let Some(array) = self.params.get(name).filter(|_| !self.constants.contains(name)) else {
            return;
        };
        self.constant(name, array.dtype, &array.dims, array.values.clone());
    }

    /// The shape of the parameter `name`.
    pub(super) fn dims_of(&self, name: &str) -> Option<&[i64]> {
        self.params.get(name).map(|array| &*array.dims)
    }

    /// The names of what `node` takes.
    pub(super) fn inputs(&mut self, node: &Node) -> Result<Vec<String>> {
        ops::live_inputs(node).iter().map(|&port| self.value(port)).collect()
    }

    /// Adds a constant.
    pub(super) fn constant(&mut self, name: &str, dtype: DType, dims: &[i64], values: Bytes) {
        self.constants.insert(name.to_owned());
        self.ranks.insert(name.to_owned(), dims.len());
        self.graph.initializer.push(TensorProto {
            name: name.to_owned(),
            dims: dims.to_vec(),
            data_type: types::number(dtype),
            raw_data: values,
            ..TensorProto::default()
        });
    }

    /// Adds a constant number of the model's type.
    pub(super) fn number(&mut self, name: &str, value: f64) {
        let bytes = number_bytes(self.dtype, value);
        self.constant(name, self.dtype, &[], bytes.into());
    }

    /// Adds a constant vector of ones.
    pub(super) fn ones(&mut self, name: &str, dtype: DType, count: i64) {
        let count_of = usize::try_from(count).unwrap_or(0);
        let bytes = number_bytes(dtype, 1.0).repeat(count_of);
        self.constant(name, dtype, &[count], bytes.into());
    }

    /// Adds a constant vector of integers.
    pub(super) fn integers(&mut self, name: &str, values: &[i64]) {
        self.graph.initializer.push(integers(name, values));
    }

    /// Adds an operation.
    pub(super) fn push(&mut self, node: NodeProto) {
        self.graph.node.push(node);
    }

    /// Adds an operation of `inputs` that gives `output`.
    pub(super) fn simple(&mut self, op: &str, inputs: &[&str], output: &str) {
        self.push(node(op, inputs, &[output]));
    }

    pub(super) fn rank(&self, value: &str) -> Option<usize> {
        self.ranks.get(value).copied()
    }

    /// What was thought of a value does not hold.
    pub(super) fn forget_rank(&mut self, value: &str) {
        self.ranks.remove(value);
    }

    pub(super) fn set_rank(&mut self, value: &str, rank: Option<usize>) {
        if let Some(rank) = rank {
            self.ranks.insert(value.to_owned(), rank);
        }
    }
}

/// Forgets what shapes the outputs are said to have.
pub(super) fn open_outputs(model: &mut ModelProto) {
    model.graph.iter_mut().flat_map(|graph| &mut graph.output).for_each(open);
}

fn open(info: &mut ValueInfoProto) {
    use crate::proto::type_proto::Value;
    if let Some(Value::TensorType(tensor)) = info.r#type.as_mut().and_then(|its| its.value.as_mut())
    {
        tensor.shape = None;
    }
}

fn missing(name: &str) -> Error {
    let message = format!("the parameters have no {name:?}, which the symbol takes");
    Error::new(Code::DataLoss, message)
}

/// A number as an array of the type has it.
#[allow(clippy::cast_possible_truncation)] // As Python's own conversion.
fn number_bytes(dtype: DType, value: f64) -> Vec<u8> {
    if dtype == DType::Double {
        return value.to_le_bytes().to_vec();
    }
    if dtype == DType::Half {
        return half::f16::from_f64(value).to_le_bytes().to_vec();
    }
    (value as f32).to_le_bytes().to_vec()
}
