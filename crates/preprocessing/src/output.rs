//! Post-processing steps: `top_k`, `labels`, and `scale` of an output.

use std::cmp::Ordering;
use std::sync::Arc;

use super::file::StepTable;
use super::numbers::{FloatValues, ScaleStep};
use super::specs::{check_names, check_real, dtype_name, position};
use tensorserve_codec::cast::cast;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    Buffer, DType, DeclaredShape, Shape, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// The labels' average size for which memory is reserved, in bytes.
const EXPECTED_LABEL_BYTES: usize = 16;

/// One post-processing step of an output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OutputStep {
    /// The output's index among those of the previous step.
    index: usize,
    /// The output's name before this step.
    alias: String,
    operation: OutputOperation,
}

#[derive(Clone, Debug, PartialEq)]
enum OutputOperation {
    Scale(ScaleStep),
    /// Replaces an output by its `k` largest values, and appends an output with their indices.
    TopK(usize),
    Labels(LabelsStep),
}

/// The labels of classes.
#[derive(Clone, Debug, PartialEq)]
struct LabelsStep {
    /// By the number of the class.
    labels: Vec<String>,
    /// The label of all other classes; without it, their number.
    unknown: Option<String>,
}

impl OutputStep {
    /// Reads a step, and rewrites `outputs`, the outputs of the previous step, to those of this one.
    pub(super) fn read(table: &mut StepTable, outputs: &mut Vec<TensorSpec>) -> Result<Self> {
        let index = position(table.text("output")?, outputs, table.location())?;
        let new_name = table.text("name")?;
        let Some(spec) = outputs.get_mut(index) else {
            return Err(table.error("the output was not found"));
        };
        let alias = spec.alias.clone();
        let mut new_output = None;
        let operation = match table.kind.as_str() {
            "scale" => OutputOperation::Scale(ScaleStep::read_for(table, spec)?),
            "top_k" => {
                let (k, indices) = read_top_k(table, spec)?;
                new_output = Some(indices);
                OutputOperation::TopK(k)
            }
            "labels" => OutputOperation::Labels(read_labels(table, spec)?),
            other => {
                return Err(table.error(format_args!(
                    "{other:?} is not a post-processing step; these are scale, top_k, labels"
                )));
            }
        };
        table.finish()?;
        if let Some(name) = new_name {
            spec.alias = name;
        }
        outputs.extend(new_output);
        check_names(outputs, table.location())?;
        Ok(OutputStep { index, alias, operation })
    }

    /// Applies the step to the outputs of the previous step.
    ///
    /// # Errors
    /// If the output differs from what the model declares.
    pub(super) fn apply(&self, outputs: &mut Vec<Tensor>) -> Result<()> {
        let Some(output) = outputs.get_mut(self.index) else {
            return Err(Error::internal("an output is missing"));
        };
        match self.operation.apply(output) {
            Ok(new_output) => outputs.extend(new_output),
            Err(error) => {
                return Err(error.context(format_args!("the model's output {:?}", self.alias)));
            }
        }
        Ok(())
    }

    /// The estimated cost of [`OutputStep::apply`], in processed numbers.
    pub(super) fn cost(&self, outputs: &[Tensor]) -> usize {
        outputs.get(self.index).map_or(0, |output| output.shape().elements().unwrap_or(0))
    }
}

impl OutputOperation {
    /// Replaces `output`, and returns the output that is new.
    fn apply(&self, output: &mut Tensor) -> Result<Option<Tensor>> {
        match self {
            OutputOperation::Scale(scale) => {
                let dtype = output.dtype();
                let mut floats = FloatValues::of(output).ok_or_else(|| not_numeric(output))?;
                scale.apply(&mut floats)?;
                *output = floats.into_tensor(dtype)?;
                Ok(None)
            }
            OutputOperation::TopK(k) => {
                let (values, indices) = top_k(output, *k)?;
                *output = values;
                Ok(Some(indices))
            }
            OutputOperation::Labels(labels) => {
                *output = labels.of(output)?;
                Ok(None)
            }
        }
    }
}

/// Reads `k`, rewrites `spec` to the largest values, and returns it with the spec of their indices.
fn read_top_k(table: &mut StepTable, spec: &mut TensorSpec) -> Result<(usize, TensorSpec)> {
    let k = table.count("k")?;
    let k = k.ok_or_else(|| table.error("a step \"top_k\" needs k, the number of values"))?;
    check_real(spec, table.location(), "only real numbers have largest values")?;
    let alias = &spec.alias;
    let indices = table.text("indices")?.unwrap_or_else(|| format!("{alias}_indices"));
    if let DeclaredShape::Dims(dims) = &mut spec.shape {
        let Some((last, _)) = dims.last_mut() else {
            return Err(table.error(format_args!("{alias:?} is a scalar: it has no top k")));
        };
        if *last >= 0 && usize::try_from(*last).is_ok_and(|classes| classes < k) {
            return Err(
                table.error(format_args!("{alias:?} has {last} values, fewer than k = {k}"))
            );
        }
        *last = i64::try_from(k).unwrap_or(i64::MAX);
    }
    let indices = TensorSpec {
        alias: indices,
        tensor_name: format!("tensorserve/top_k/{}", spec.tensor_name),
        dtype_number: DType::Int32.number(),
        shape: spec.shape.clone(),
        sparse: None,
        takes_missing: false,
        number_texts: None,
        quantization: None,
        column_names: Vec::new(),
    };
    Ok((k, indices))
}

fn read_labels(table: &mut StepTable, spec: &mut TensorSpec) -> Result<LabelsStep> {
    let labels = table.lines("file")?;
    let labels = labels.ok_or_else(|| {
        table.error("a step \"labels\" needs file, a file with one label per line")
    })?;
    let unknown = table.text("unknown")?;
    if !spec.dtype().is_some_and(is_integer) {
        let (alias, dtype) = (&spec.alias, dtype_name(spec));
        return Err(table.error(format_args!(
            "{alias:?} is of type {dtype}, but labels are for integers, such as the indices of a \
             top_k before this step"
        )));
    }
    spec.dtype_number = DType::String.number();
    Ok(LabelsStep { labels, unknown })
}

fn is_integer(dtype: DType) -> bool {
    match dtype {
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => true,
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => true,
        DType::Float | DType::Double | DType::Half | DType::BFloat16 => false,
        DType::String | DType::Bool | DType::Complex64 | DType::Complex128 => false,
    }
}

impl LabelsStep {
    /// The label of each class of a tensor.
    fn of(&self, classes: &Tensor) -> Result<Tensor> {
        let numbers = cast(classes, DType::Int64).ok_or_else(|| not_numeric(classes))?;
        let numbers = numbers.values::<i64>().unwrap_or_default();
        let mut labels =
            StringsBuilder::with_capacity(numbers.len(), numbers.len() * EXPECTED_LABEL_BYTES);
        for number in numbers {
            let label = usize::try_from(*number).ok().and_then(|class| self.labels.get(class));
            match label.or(self.unknown.as_ref()) {
                Some(label) => labels.push(label.as_bytes()),
                None => labels.push(number.to_string().as_bytes()),
            }
        }
        Tensor::from_strings(classes.shape().clone(), labels)
    }
}

fn not_numeric(tensor: &Tensor) -> Error {
    let dtype = tensor.dtype();
    Error::precondition(format!("it is of type {dtype}, which differs from the signature"))
}

/// The `k` largest values along the last dimension, largest first, and their indices. Equal values
/// keep their order; NaN comes last.
fn top_k(tensor: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    let mut dims = tensor.shape().dims().to_vec();
    let classes = dims.last().and_then(|&last| usize::try_from(last).ok()).unwrap_or(0);
    let scores = cast(tensor, DType::Double).ok_or_else(|| not_numeric(tensor))?;
    if classes < k {
        let shape = tensor.shape();
        return Err(Error::precondition(format!(
            "its shape is {shape:?}, which has fewer values than k = {k}"
        )));
    }
    if let Some(last) = dims.last_mut() {
        *last = i64::try_from(k).unwrap_or(i64::MAX);
    }
    let shape = Shape::new(&dims)?;
    let count = shape.elements()?;
    let size = tensor.dtype().size().unwrap_or(1);
    let mut values = aligned_vec::<u8>(count * size);
    let mut indices = aligned_vec::<i32>(count);
    let mut order: Vec<(f64, i32)> = Vec::with_capacity(classes);
    let rows = scores.values::<f64>().unwrap_or_default().chunks_exact(classes.max(1));
    for (row, bytes) in rows.zip(tensor.bytes().chunks_exact((classes * size).max(1))) {
        order.clear();
        order.extend(row.iter().copied().zip(0..));
        if k < classes {
            order.select_nth_unstable_by(k, by_descending_score);
            order.truncate(k);
        }
        order.sort_unstable_by(by_descending_score);
        for (_, index) in &order {
            let at = usize::try_from(*index).unwrap_or(0) * size;
            values.extend_from_slice(bytes.get(at..at + size).unwrap_or_default());
            indices.push(*index);
        }
    }
    let values = Tensor::numeric(tensor.dtype(), shape.clone(), Buffer::new(Arc::new(values)))?;
    Ok((values, Tensor::from_vec(shape, indices)?))
}

/// Compares pairs of score and index: the highest score first, NaN last, and equal scores by index.
fn by_descending_score(a: &(f64, i32), b: &(f64, i32)) -> Ordering {
    let nan_last = a.0.is_nan().cmp(&b.0.is_nan());
    let descending = b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal);
    nan_last.then(descending).then(a.1.cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{AlignedVec, Element};

    fn tensor<T: Element>(dims: &[i64], values: &[T]) -> Tensor {
        let shape = Shape::new(dims).expect("a shape");
        Tensor::from_vec(shape, AlignedVec::from_slice(0, values)).expect("a tensor")
    }

    #[test]
    fn the_largest_come_first_and_equal_ones_in_their_order() {
        let scores =
            tensor(&[2, 4], &[0.5f32, 2.0, 2.0, -1.0, 0.0, -0.0, f32::NAN, f32::NEG_INFINITY]);
        let (values, indices) = top_k(&scores, 3).expect("three");
        assert_eq!(values.shape().dims(), [2, 3]);
        assert_eq!(indices.values::<i32>(), Some(&[1, 2, 0, 0, 1, 3][..]));
        assert_eq!(
            values.values::<f32>(),
            Some(&[2.0, 2.0, 0.5, 0.0, -0.0, f32::NEG_INFINITY][..])
        );
        let (values, indices) = top_k(&tensor(&[3], &[7i64, 9, 8]), 3).expect("all");
        assert_eq!(values.values::<i64>(), Some(&[9, 8, 7][..]));
        assert_eq!(indices.values::<i32>(), Some(&[1, 2, 0][..]));
        assert!(top_k(&scores, 5).is_err());
        let none = tensor::<f32>(&[0, 4], &[]);
        assert_eq!(top_k(&none, 2).expect("none").1.shape().dims(), [0, 2]);
    }

    #[test]
    fn classes_without_a_label_keep_their_number() {
        let names = vec!["no".to_owned(), "yes".to_owned()];
        let text = |labels: &LabelsStep, classes: &Tensor| -> Vec<String> {
            let tensor = labels.of(classes).expect("labels");
            let strings = tensor.strings().expect("strings").iter();
            strings.map(|label| String::from_utf8_lossy(label).into_owned()).collect()
        };
        let labels = LabelsStep { labels: names.clone(), unknown: None };
        assert_eq!(text(&labels, &tensor(&[2, 2], &[1i32, 0, 2, -1])), ["yes", "no", "2", "-1"]);
        let labels = LabelsStep { labels: names, unknown: Some("?".to_owned()) };
        assert_eq!(text(&labels, &tensor(&[2], &[1u8, 200])), ["yes", "?"]);
        assert!(labels.of(&tensor(&[1], &[1.0f32])).is_err());
    }
}
