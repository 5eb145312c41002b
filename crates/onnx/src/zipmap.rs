//! Scores of classes as one tensor.
//!
//! What skl2onnx writes ends in a `ZipMap`: a map from class to score for each row, which no
//! protocol of ours can carry and which costs more to make than the scores. The tensor before it
//! is served instead, its columns in the order of the sorted classes.

use super::graph::{int, integers, node, value};
use crate::proto::type_proto::Value as Type;
use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

use super::model::opset;
use super::upgrade::separate_constants;

/// The version of ONNX's own operators that a model without any is given.
const OPSET: i64 = 13;

/// Puts a tensor in the place of each output that is a sequence of maps. Returns whether there
/// was one.
///
/// # Errors
/// [`Code::Unimplemented`] for one that comes from elsewhere.
pub(super) fn replace(model: &mut ModelProto) -> Result<bool> {
    let is_map = |output: &&ValueInfoProto| {
        matches!(
            output.r#type.as_ref().and_then(|its| its.value.as_ref()),
            Some(Type::SequenceType(_) | Type::MapType(_))
        )
    };
    let outputs = model.graph.iter().flat_map(|graph| &graph.output);
    let names: Vec<String> = outputs.filter(is_map).map(|output| output.name.clone()).collect();
    if names.is_empty() {
        return Ok(false);
    }
    separate_constants(model);
    let graph = model.graph.get_or_insert_default();
    for name in &names {
        replace_one(graph, name)?;
    }
    if opset(model).is_none() {
        model.opset_import.push(OperatorSetIdProto { domain: String::new(), version: OPSET });
    }
    Ok(true)
}

fn replace_one(graph: &mut GraphProto, name: &str) -> Result<()> {
    let is_source = |node: &&mut NodeProto| {
        node.op_type == "ZipMap" && node.output.first().is_some_and(|output| output == name)
    };
    let Some(source) = graph.node.iter_mut().find(is_source) else {
        let message = format!(
            "output {name:?} is a sequence or a map that no ZipMap made, which can not be served"
        );
        return Err(Error::new(Code::Unimplemented, message));
    };
    let order = sorted_classes(source);
    let is_sorted = order.is_sorted();
    let scores = source.input.first().cloned().unwrap_or_default();
    let places = format!("{name}/columns");
    *source = if is_sorted {
        node("Identity", &[&scores], &[name])
    } else {
        node("Gather", &[&scores, &places], &[name]).with(int("axis", 1))
    };
    let count = i64::try_from(order.len()).unwrap_or(-1);
    if !is_sorted {
        graph.initializer.push(integers(&places, &order));
    }
    if let Some(output) = graph.output.iter_mut().find(|output| output.name == name) {
        *output = value(name, DType::Float, &[-1, count]);
    }
    Ok(())
}

/// For each class in sorted order, its column.
fn sorted_classes(zip_map: &NodeProto) -> Vec<i64> {
    let numbers = zip_map.ints("classlabels_int64s");
    let strings = zip_map.get("classlabels_strings").map_or(&[][..], |its| &its.strings);
    let mut columns: Vec<usize> = (0..numbers.len().max(strings.len())).collect();
    columns.sort_by_key(|&column| (numbers.get(column), strings.get(column)));
    columns.into_iter().map(|column| i64::try_from(column).unwrap_or(i64::MAX)).collect()
}
