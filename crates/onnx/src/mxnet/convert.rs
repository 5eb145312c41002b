//! Converts a checkpoint into an ONNX model: [`Converter`] builds the graph, [`ops`] converts each
//! operation.

use std::collections::{BTreeSet, HashMap};

use super::converter::{Converter, clear_shape, output_name};
use super::ops;
use super::params::ParamArray;
use super::signature::CheckpointSignature;
use super::symbol::{Symbol, inference_inputs};
use crate::proto::{ModelProto, OperatorSetIdProto};
use tensorserve_tensor::error::Result;

/// The operator set of the ONNX model, and the IR version that introduced it.
const OPSET: i64 = 13;
const IR_VERSION: i64 = 7;

/// Converts a checkpoint into an ONNX model.
///
/// # Errors
/// `Code::Unimplemented`, with the name of the operation, if one has no equivalent in ONNX;
/// `Code::DataLoss` if symbol, parameters and signature contradict each other.
pub(super) fn convert(
    symbol: &Symbol,
    params: &HashMap<String, ParamArray>,
    declared: Option<&CheckpointSignature>,
) -> Result<ModelProto> {
    let mut converter = Converter::new(symbol, params);
    let needed = nodes_for_outputs(symbol);
    converter.add_inputs(declared, &needed)?;
    for (index, node) in symbol.nodes.iter().enumerate() {
        if needed.contains(&index) && !node.is_variable() {
            ops::convert(&mut converter, node, &output_name(index, node))?;
        }
    }
    converter.add_outputs(declared)?;
    Ok(ModelProto {
        ir_version: IR_VERSION,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        producer_name: "tensorserve".to_owned(),
        graph: Some(converter.into_graph()),
        ..ModelProto::default()
    })
}

/// The nodes that the outputs depend on. Labels, which only training uses, are not among them.
fn nodes_for_outputs(symbol: &Symbol) -> BTreeSet<usize> {
    let mut needed: BTreeSet<usize> = symbol.outputs.iter().map(|output| output.node).collect();
    // In reverse order each node comes before the nodes that it takes inputs from.
    for (index, node) in symbol.nodes.iter().enumerate().rev() {
        if needed.contains(&index) {
            needed.extend(inference_inputs(node).iter().map(|input| input.node));
        }
    }
    needed
}

/// Makes the shapes of all outputs unknown.
pub(super) fn clear_output_shapes(model: &mut ModelProto) {
    model.graph.iter_mut().flat_map(|graph| &mut graph.output).for_each(clear_shape);
}
