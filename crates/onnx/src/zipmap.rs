//! Class scores as one tensor.
//!
//! A classifier that skl2onnx writes ends in a `ZipMap`: for each row a map from class to score. No
//! protocol here can represent such maps, and building them costs more than the scores themselves.
//! The rewritten graph returns the tensor of scores instead, with its columns in the order of the
//! sorted classes. [`ClassNames`] are the classes of the columns.

use super::graph::{int, int64_vector, node, tensor_info};
use super::model::opset;
use super::upgrade::separate_initializers;
use crate::proto::type_proto::Value as Type;
use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use bytes::Bytes;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{
    DType, DeclaredShape, Shape, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// The version of the standard operators that is declared in a model that declares none.
const OPSET: i64 = 13;

/// The classes of the columns of an output of scores. They are an output of their own, a row of names for each
/// row of scores, as the signatures for classification of TensorFlow have it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClassNames {
    /// The output of scores.
    pub(super) scores: String,
    labels: Labels,
}

/// Sorted.
#[derive(Clone, Debug, PartialEq)]
enum Labels {
    Numbers(Vec<i64>),
    Texts(Vec<Bytes>),
}

impl ClassNames {
    /// The classes of a `ZipMap`; `None` if they are the numbers of the columns.
    fn of(zip_map: &NodeProto, scores: &str) -> Option<Self> {
        let texts = zip_map.get("classlabels_strings").map_or(&[][..], |its| &its.strings);
        let numbers = zip_map.ints("classlabels_int64s");
        let labels = if texts.is_empty() {
            let mut numbers = numbers.to_vec();
            numbers.sort_unstable();
            if (0..).zip(&numbers).all(|(column, number)| column == *number) {
                return None;
            }
            Labels::Numbers(numbers)
        } else {
            let mut texts = texts.to_vec();
            texts.sort();
            Labels::Texts(texts)
        };
        Some(ClassNames { scores: scores.to_owned(), labels })
    }

    /// Their number.
    fn len(&self) -> usize {
        match &self.labels {
            Labels::Numbers(numbers) => numbers.len(),
            Labels::Texts(texts) => texts.len(),
        }
    }

    /// The name of their output.
    pub(super) fn alias(&self) -> String {
        format!("{}_classes", self.scores)
    }

    /// The spec of their output.
    pub(super) fn spec(&self) -> TensorSpec {
        let dtype = match self.labels {
            Labels::Numbers(_) => DType::Int64,
            Labels::Texts(_) => DType::String,
        };
        let count = i64::try_from(self.len()).unwrap_or(-1);
        TensorSpec::new(self.alias(), dtype, &[-1, count])
    }

    /// The classes, once for each row of `scores`.
    ///
    /// # Errors
    /// If they are too large.
    pub(super) fn for_rows_of(&self, scores: &Tensor) -> Result<Tensor> {
        let rows = scores.shape().dims().first().copied().unwrap_or(1);
        let shape = Shape::new(&[rows, i64::try_from(self.len()).unwrap_or(i64::MAX)])?;
        let rows = usize::try_from(rows).unwrap_or(0);
        match &self.labels {
            Labels::Numbers(numbers) => {
                let mut values = aligned_vec(rows.saturating_mul(numbers.len()));
                (0..rows).for_each(|_| values.extend_from_slice(numbers));
                Tensor::from_vec(shape, values)
            }
            Labels::Texts(texts) => {
                let bytes: usize = texts.iter().map(Bytes::len).sum();
                let count = rows.saturating_mul(texts.len());
                let mut values = StringsBuilder::with_capacity(count, rows.saturating_mul(bytes));
                for text in (0..rows).flat_map(|_| texts) {
                    values.push(text);
                }
                Tensor::from_strings(shape, values)
            }
        }
    }

    /// Whether `spec` is the output of the classes.
    pub(super) fn is(&self, spec: &TensorSpec) -> bool {
        spec.alias == self.alias() && matches!(spec.shape, DeclaredShape::Dims(_))
    }
}

/// Replaces each output that is a sequence of maps, or a map, with a tensor of scores. Returns the classes of
/// those whose classes are not the numbers of the columns; `None` if the model has no such output.
///
/// # Errors
/// [`Code::Unimplemented`] for such an output that is not the output of a
/// `ZipMap`.
pub(super) fn replace_maps(model: &mut ModelProto) -> Result<Option<Vec<ClassNames>>> {
    let outputs = model.graph.iter().flat_map(|graph| &graph.output);
    let names: Vec<String> =
        outputs.filter(|output| is_map(output)).map(|output| output.name.clone()).collect();
    if names.is_empty() {
        return Ok(None);
    }
    separate_initializers(model);
    let graph = model.graph.get_or_insert_default();
    let mut classes = Vec::new();
    for name in &names {
        classes.extend(replace_map(graph, name)?);
    }
    let has = |name: &str| graph.output.iter().any(|output| output.name == name);
    classes.retain(|classes: &ClassNames| !has(&classes.alias()));
    if opset(model).is_none() {
        model.opset_import.push(OperatorSetIdProto { domain: String::new(), version: OPSET });
    }
    Ok(Some(classes))
}

/// Whether an output is a map, or a sequence of maps.
fn is_map(output: &ValueInfoProto) -> bool {
    let value = output.r#type.as_ref().and_then(|its| its.value.as_ref());
    match value {
        Some(Type::MapType(_)) => true,
        Some(Type::SequenceType(sequence)) => {
            let element = sequence.elem_type.as_ref().and_then(|its| its.value.as_ref());
            !matches!(element, Some(Type::TensorType(_)))
        }
        _ => false,
    }
}

/// Replaces the `ZipMap` of the output `name` with an operator that returns its scores.
fn replace_map(graph: &mut GraphProto, name: &str) -> Result<Option<ClassNames>> {
    let is_producer = |node: &&mut NodeProto| {
        node.op_type == "ZipMap" && node.output.first().is_some_and(|output| output == name)
    };
    let Some(zip_map) = graph.node.iter_mut().find(is_producer) else {
        let message = format!(
            "output {name:?} has maps that are not made by a ZipMap, which is not supported: export the model so \
             that it returns tensors (with skl2onnx, `options={{'zipmap': False}}`)"
        );
        return Err(Error::new(Code::Unimplemented, message));
    };
    let columns = columns_of_sorted_classes(zip_map);
    let classes = ClassNames::of(zip_map, name);
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
    Ok(classes)
}

/// The column of each class, in the order of the sorted classes.
fn columns_of_sorted_classes(zip_map: &NodeProto) -> Vec<i64> {
    let numbers = zip_map.ints("classlabels_int64s");
    let strings = zip_map.get("classlabels_strings").map_or(&[][..], |its| &its.strings);
    let mut columns: Vec<usize> = (0..numbers.len().max(strings.len())).collect();
    columns.sort_by_key(|&column| (numbers.get(column), strings.get(column)));
    columns.into_iter().map(|column| i64::try_from(column).unwrap_or(i64::MAX)).collect()
}
