//! The ONNX graph under construction: its inputs, initializers and outputs, and their names.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;

use super::params::ParamArray;
use super::signature::{CheckpointSignature, DeclaredTensor};
use super::symbol::{NodeOutput, Symbol, SymbolNode, inference_inputs, is_parameter_name};
use crate::graph::{self, int64_vector, node};
use crate::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};
use crate::types;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

/// The dtype that a checkpoint computes in: that of a parameter of floating-point numbers.
fn compute_dtype(params: &HashMap<String, ParamArray>) -> DType {
    let mut dtypes = params.values().map(|array| array.dtype);
    dtypes.find(|dtype| is_computed_in(*dtype)).unwrap_or(DType::Float)
}

/// Whether models compute in a dtype.
fn is_computed_in(dtype: DType) -> bool {
    match dtype {
        DType::Float | DType::Double | DType::Half => true,
        DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128
        | DType::String => false,
    }
}

/// The name of a node's output in the ONNX graph.
pub(super) fn output_name(index: usize, node: &SymbolNode) -> String {
    if node.is_variable() { node.name.clone() } else { format!("{}/{index}", node.name) }
}

/// An ONNX graph under construction.
pub(super) struct Converter<'a> {
    symbol: &'a Symbol,
    params: &'a HashMap<String, ParamArray>,
    /// The dtype that the model computes in.
    pub(super) dtype: DType,
    graph: GraphProto,
    /// The known ranks of values, by name.
    ranks: HashMap<String, usize>,
    /// The names of the initializers added so far.
    constants: BTreeSet<String>,
}

impl<'a> Converter<'a> {
    /// An empty graph for a checkpoint.
    pub(super) fn new(symbol: &'a Symbol, params: &'a HashMap<String, ParamArray>) -> Self {
        Converter {
            symbol,
            params,
            dtype: compute_dtype(params),
            graph: GraphProto { name: "mxnet".to_owned(), ..GraphProto::default() },
            ranks: HashMap::new(),
            constants: BTreeSet::new(),
        }
    }

    /// The finished graph.
    pub(super) fn into_graph(self) -> GraphProto {
        self.graph
    }
}

impl Converter<'_> {
    /// Adds an input for each variable that has no parameter.
    pub(super) fn add_inputs(
        &mut self,
        declared: Option<&CheckpointSignature>,
        needed: &BTreeSet<usize>,
    ) -> Result<()> {
        let mut unused: Vec<&DeclaredTensor> =
            declared.iter().flat_map(|its| &its.inputs).collect();
        for (index, node) in self.symbol.nodes.iter().enumerate() {
            if !node.is_variable() || self.params.contains_key(&node.name) {
                continue;
            }
            if let Some(position) = unused.iter().position(|its| its.name == node.name) {
                let dims = unused.remove(position).dims();
                self.ranks.insert(node.name.clone(), dims.len());
                self.graph.input.push(graph::tensor_info(&node.name, self.dtype, &dims));
            } else if needed.contains(&index) {
                // A signature declares all inputs. Without one, the name of the variable decides.
                if declared.is_some() || is_parameter_name(&node.name) {
                    return Err(missing_param(&node.name));
                }
                let mut input = graph::tensor_info(&node.name, self.dtype, &[]);
                clear_shape(&mut input);
                self.graph.input.push(input);
            }
        }
        match unused.first() {
            Some(input) => {
                let name = &input.name;
                let message = format!(
                    "the signature declares an input {name:?} that the symbol does not have"
                );
                Err(Error::new(Code::DataLoss, message))
            }
            None => Ok(()),
        }
    }

    /// Adds the outputs under the names that the signature declares, or else under MXNet's.
    pub(super) fn add_outputs(&mut self, declared: Option<&CheckpointSignature>) -> Result<()> {
        let declared = declared.map_or(&[][..], |its| &its.outputs);
        if !declared.is_empty() && declared.len() != self.symbol.outputs.len() {
            let message = format!(
                "the signature declares {} outputs, and the symbol has {}",
                declared.len(),
                self.symbol.outputs.len()
            );
            return Err(Error::new(Code::DataLoss, message));
        }
        for (index, &output) in self.symbol.outputs.iter().enumerate() {
            let value = self.value(output)?;
            let declared = declared.get(index);
            let name = match (declared, self.symbol.nodes.get(output.node)) {
                (Some(declared), _) => declared.name.clone(),
                (None, Some(node)) => format!("{}_output", node.name),
                (None, None) => return Err(Error::internal("an output of no node")),
            };
            self.graph.node.push(node("Identity", &[&value], &[&name]));
            let dims = declared.map(DeclaredTensor::dims).unwrap_or_default();
            let mut output = graph::tensor_info(&name, self.dtype, &dims);
            if dims.is_empty() {
                clear_shape(&mut output);
            }
            self.graph.output.push(output);
        }
        Ok(())
    }

    /// The name of a node's output, whose parameter is added if it is a variable.
    fn value(&mut self, of: NodeOutput) -> Result<String> {
        let node = self.symbol.nodes.get(of.node);
        let node = node.ok_or_else(|| Error::internal("a reference to no node"))?;
        if of.output > 0 {
            return Err(node.unsupported(&format!("its output number {} is used", of.output)));
        }
        if node.is_variable() {
            self.add_param(&node.name);
        }
        Ok(output_name(of.node, node))
    }

    /// Adds the parameter `name` as an initializer, if it exists.
    pub(super) fn add_param(&mut self, name: &str) {
        let Some(array) = self.params.get(name).filter(|_| !self.constants.contains(name)) else {
            return;
        };
        self.constant(name, array.dtype, &array.dims, array.values.clone());
    }

    /// The shape of the parameter `name`.
    pub(super) fn param_dims(&self, name: &str) -> Option<&[i64]> {
        self.params.get(name).map(|array| &*array.dims)
    }

    /// The names of the values that `node` takes.
    pub(super) fn inputs(&mut self, node: &SymbolNode) -> Result<Vec<String>> {
        inference_inputs(node).iter().map(|&input| self.value(input)).collect()
    }

    /// Adds an initializer, whose values are little-endian.
    pub(super) fn constant(&mut self, name: &str, dtype: DType, dims: &[i64], values: Bytes) {
        self.constants.insert(name.to_owned());
        self.ranks.insert(name.to_owned(), dims.len());
        self.graph.initializer.push(TensorProto {
            name: name.to_owned(),
            dims: dims.to_vec(),
            data_type: types::element_type(dtype),
            raw_data: values,
            ..TensorProto::default()
        });
    }

    /// Adds a scalar of the dtype that the model computes in.
    pub(super) fn scalar(&mut self, name: &str, value: f64) {
        let bytes = scalar_bytes(self.dtype, value);
        self.constant(name, self.dtype, &[], bytes.into());
    }

    /// Adds a vector of ones.
    pub(super) fn ones(&mut self, name: &str, dtype: DType, count: i64) {
        let length = usize::try_from(count).unwrap_or(0);
        let bytes = scalar_bytes(dtype, 1.0).repeat(length);
        self.constant(name, dtype, &[count], bytes.into());
    }

    /// Adds a vector of int64.
    pub(super) fn int64_vector(&mut self, name: &str, values: &[i64]) {
        self.graph.initializer.push(int64_vector(name, values));
    }

    /// Adds a node.
    pub(super) fn push(&mut self, node: NodeProto) {
        self.graph.node.push(node);
    }

    /// Adds a node without attributes and with one output.
    pub(super) fn push_op(&mut self, op: &str, inputs: &[&str], output: &str) {
        self.push(node(op, inputs, &[output]));
    }

    /// The rank of a value, if it is known.
    pub(super) fn rank(&self, value: &str) -> Option<usize> {
        self.ranks.get(value).copied()
    }

    /// Sets or, with `None`, clears the rank of a value.
    pub(super) fn set_rank(&mut self, value: &str, rank: Option<usize>) {
        match rank {
            Some(rank) => self.ranks.insert(value.to_owned(), rank),
            None => self.ranks.remove(value),
        };
    }
}

/// Makes the shape of an input or output unknown.
pub(super) fn clear_shape(info: &mut ValueInfoProto) {
    use crate::proto::type_proto::Value;
    if let Some(Value::TensorType(tensor)) = info.r#type.as_mut().and_then(|its| its.value.as_mut())
    {
        tensor.shape = None;
    }
}

fn missing_param(name: &str) -> Error {
    let message = format!("the parameters do not have {name:?}, which the symbol refers to");
    Error::new(Code::DataLoss, message)
}

/// The little-endian bytes of a number in a dtype.
#[allow(clippy::cast_possible_truncation)] // Rounds to the nearest, as numpy does.
fn scalar_bytes(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Double => value.to_le_bytes().to_vec(),
        DType::Half => half::f16::from_f64(value).to_le_bytes().to_vec(),
        // The type of the model, or one that no model computes in.
        DType::Float
        | DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128
        | DType::String => (value as f32).to_le_bytes().to_vec(),
    }
}
