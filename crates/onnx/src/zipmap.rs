//! Class scores as one tensor.
//!
//! A classifier that skl2onnx writes ends in a `ZipMap`: for each row a map from class to score. No
//! protocol here can represent such maps, and building them costs more than the scores themselves.
//! The rewritten graph returns the tensor of scores instead, with its columns in the order of the
//! sorted classes.

use super::graph::{int, int64_vector, node, tensor_info};
use super::model::opset;
use super::upgrade::separate_initializers;
use crate::proto::type_proto::Value as Type;
use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

/// The version of the standard operators that is declared in a model that declares none.
const OPSET: i64 = 13;

/// Replaces each output that is a sequence of maps, or a map, with a tensor of scores. Returns
/// whether the model had such an output.
///
/// # Errors
/// [`Code::Unimplemented`] for such an output that is not the output of a `ZipMap`.
pub(super) fn replace_maps(model: &mut ModelProto) -> Result<bool> {
    let outputs = model.graph.iter().flat_map(|graph| &graph.output);
    let names: Vec<String> =
        outputs.filter(|output| is_map(output)).map(|output| output.name.clone()).collect();
    if names.is_empty() {
        return Ok(false);
    }
    separate_initializers(model);
    let graph = model.graph.get_or_insert_default();
    for name in &names {
        replace_map(graph, name)?;
    }
    if opset(model).is_none() {
        model.opset_import.push(OperatorSetIdProto { domain: String::new(), version: OPSET });
    }
    Ok(true)
}

fn is_map(output: &ValueInfoProto) -> bool {
    let value = output.r#type.as_ref().and_then(|its| its.value.as_ref());
    matches!(value, Some(Type::SequenceType(_) | Type::MapType(_)))
}

/// Replaces the `ZipMap` of the output `name` with an operator that returns its scores.
fn replace_map(graph: &mut GraphProto, name: &str) -> Result<()> {
    let is_producer = |node: &&mut NodeProto| {
        node.op_type == "ZipMap" && node.output.first().is_some_and(|output| output == name)
    };
    let Some(zip_map) = graph.node.iter_mut().find(is_producer) else {
        let message = format!(
            "output {name:?} is a sequence or a map that is not the output of a ZipMap, which is \
             not supported"
        );
        return Err(Error::new(Code::Unimplemented, message));
    };
    let columns = columns_of_sorted_classes(zip_map);
    let scores = zip_map.input.first().cloned().unwrap_or_default();
    let class_count = i64::try_from(columns.len()).unwrap_or(-1);
    if columns.is_sorted() {
        *zip_map = node("Identity", &[&scores], &[name]);
    } else {
        let indices = format!("{name}/columns");
        *zip_map = node("Gather", &[&scores, &indices], &[name]).with(int("axis", 1));
        graph.initializer.push(int64_vector(&indices, &columns));
    }
    if let Some(output) = graph.output.iter_mut().find(|output| output.name == name) {
        *output = tensor_info(name, DType::Float, &[-1, class_count]);
    }
    Ok(())
}

/// The column of each class, in the order of the sorted classes.
fn columns_of_sorted_classes(zip_map: &NodeProto) -> Vec<i64> {
    let numbers = zip_map.ints("classlabels_int64s");
    let strings = zip_map.get("classlabels_strings").map_or(&[][..], |its| &its.strings);
    let mut columns: Vec<usize> = (0..numbers.len().max(strings.len())).collect();
    columns.sort_by_key(|&column| (numbers.get(column), strings.get(column)));
    columns.into_iter().map(|column| i64::try_from(column).unwrap_or(i64::MAX)).collect()
}
