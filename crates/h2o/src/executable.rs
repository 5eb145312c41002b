//! Scores the rows of a request: tensors are checked, read block by block, and written.

use super::inputs::{InputTarget, MojoInput};
use super::model::{MojoModel, MojoOutput, OutputValue};
use super::numeric::java_int;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tabular::wrong_input_count;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// Rows that are evaluated together: enough to reuse a tree while it is in the cache, few enough
/// that their features stay there, too.
const ROWS_PER_BLOCK: usize = 64;

/// The most features or predicted numbers of such rows, unless one row has more.
const MAX_BLOCK: usize = 1 << 16;

impl MojoModel {
    /// The inputs and outputs, each with a value for each row: columns of numbers are double, all
    /// others string. Missing values are NaN and the empty string; they are the defaults.
    pub(super) fn signature(&self) -> Result<Signature> {
        let inputs = self.inputs.iter();
        let inputs = inputs
            .map(|input| TensorSpec::new(&*input.name, input.dtype(), &[-1]).with_missing_values());
        let outputs = self.outputs.iter().map(MojoOutput::spec);
        let mut signature = Signature::row_by_row(inputs.collect(), outputs.collect());
        for input in &self.inputs {
            signature.defaults.push((input.name.clone(), input.missing()?));
        }
        Ok(signature)
    }

    /// The number of rows: the length of all columns.
    fn count_rows(&self, columns: &[MojoInputColumn]) -> Result<usize> {
        let count = columns.first().map_or(0, MojoInputColumn::len);
        for (input, column) in self.inputs.iter().zip(columns) {
            let (name, len) = (&input.name, column.len());
            if len != count {
                return Err(Error::invalid(format!(
                    "input {name:?} has {len} values where another has {count}: send one value \
                     for each row"
                )));
            }
        }
        Ok(count)
    }

    /// Writes the features of the rows from `first` on.
    fn fill(
        &self,
        columns: &[MojoInputColumn],
        first: usize,
        rows: &mut [f64],
        offsets: &mut [f64],
    ) {
        for (input, column) in self.inputs.iter().zip(columns) {
            match (&input.target, column) {
                (InputTarget::Offset, MojoInputColumn::Numbers(numbers)) => {
                    for (row, offset) in (first..).zip(offsets.iter_mut()) {
                        let given = numbers.get(row).copied().filter(|offset| !offset.is_nan());
                        *offset = given.unwrap_or(0.0);
                    }
                }
                (InputTarget::Number(feature), MojoInputColumn::Numbers(numbers)) => {
                    for (row, features) in (first..).zip(rows.chunks_exact_mut(self.features)) {
                        let number = numbers.get(row).copied().unwrap_or(f64::NAN);
                        put(features, *feature, number);
                    }
                }
                (InputTarget::Levels(feature, levels), column) => {
                    let texts = column.texts();
                    for (row, features) in (first..).zip(rows.chunks_exact_mut(self.features)) {
                        let text = texts.get(row).copied().unwrap_or_default();
                        put(features, *feature, levels.number(text));
                    }
                }
                (InputTarget::OneHot(feature, levels), column) => {
                    let texts = column.texts();
                    for (row, features) in (first..).zip(rows.chunks_exact_mut(self.features)) {
                        let text = texts.get(row).copied().unwrap_or_default();
                        let number = levels.number(text);
                        let hot = usize::try_from(java_int(number)).unwrap_or(0);
                        let hot = if number.is_nan() { levels.count() } else { hot };
                        for index in 0..=levels.count() {
                            put(features, feature + index, f64::from(u8::from(index == hot)));
                        }
                    }
                }
                // The dtype of a column is that of its input.
                (_, MojoInputColumn::Text(_) | MojoInputColumn::Texts(_)) => {}
            }
        }
    }
}

fn put(features: &mut [f64], index: usize, value: f64) {
    if let Some(feature) = features.get_mut(index) {
        *feature = value;
    }
}

impl MojoInput {
    fn dtype(&self) -> DType {
        match self.target {
            InputTarget::Number(_) | InputTarget::Offset => DType::Double,
            InputTarget::Levels(..) | InputTarget::OneHot(..) => DType::String,
        }
    }

    /// A missing value; of an offset, 0.
    fn missing(&self) -> Result<Tensor> {
        if self.dtype() == DType::String {
            let mut values = StringsBuilder::default();
            values.push(b"");
            return Tensor::from_strings(Shape::vector(1), values);
        }
        let is_offset = matches!(self.target, InputTarget::Offset);
        let mut values = aligned_vec(1);
        values.push(if is_offset { 0.0 } else { f64::NAN });
        Tensor::from_vec(Shape::vector(1), values)
    }
}

impl MojoOutput {
    fn spec(&self) -> TensorSpec {
        let (dtype, shape): (DType, &[i64]) = match self.value {
            OutputValue::Label => (DType::String, &[-1]),
            OutputValue::Integer => (DType::Int64, &[-1]),
            OutputValue::Number(_) | OutputValue::Calibrated(_) => (DType::Double, &[-1]),
            OutputValue::Numbers(_, count) => {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                return TensorSpec::new(&*self.name, DType::Double, &[-1, count]);
            }
        };
        TensorSpec::new(&*self.name, dtype, shape)
    }
}

/// The values of an input.
enum MojoInputColumn<'t> {
    Numbers(&'t [f64]),
    /// A single text, which needs no list.
    Text([&'t [u8]; 1]),
    Texts(Vec<&'t [u8]>),
}

impl<'t> MojoInputColumn<'t> {
    /// Reads the values of `input`, one for each row.
    fn read(input: &MojoInput, tensor: &'t Tensor) -> Result<Self> {
        let (name, shape) = (&input.name, tensor.shape());
        if !shape.row_dims().iter().all(|dim| *dim == 1) {
            return Err(Error::invalid(format!(
                "input {name:?} has the shape {shape:?}: send one value for each row"
            )));
        }
        let dtype = input.dtype();
        let column = if dtype == DType::String {
            tensor.strings().map(|strings| match (strings.len(), strings.iter().next()) {
                (1, Some(text)) => MojoInputColumn::Text([text]),
                _ => MojoInputColumn::Texts(strings.iter().collect()),
            })
        } else {
            tensor.values().map(MojoInputColumn::Numbers)
        };
        column.ok_or_else(|| {
            let has = tensor.dtype();
            Error::invalid(format!(
                "input {name:?} has the dtype {has}, and the model takes {dtype}"
            ))
        })
    }

    fn len(&self) -> usize {
        match self {
            MojoInputColumn::Numbers(values) => values.len(),
            MojoInputColumn::Text(values) => values.len(),
            MojoInputColumn::Texts(values) => values.len(),
        }
    }

    /// The texts; none of a column of numbers.
    fn texts(&self) -> &[&'t [u8]] {
        match self {
            MojoInputColumn::Numbers(_) => &[],
            MojoInputColumn::Text(values) => values,
            MojoInputColumn::Texts(values) => values,
        }
    }
}

/// The values of an output, while rows are scored.
enum MojoOutputColumn {
    Numbers(AlignedVec<f64>),
    Integers(AlignedVec<i64>),
    Texts(StringsBuilder),
}

impl MojoOutputColumn {
    fn new(output: &MojoOutput, rows: usize) -> Self {
        match output.value {
            OutputValue::Label => MojoOutputColumn::Texts(StringsBuilder::with_capacity(rows, 0)),
            OutputValue::Integer => MojoOutputColumn::Integers(aligned_vec(rows)),
            OutputValue::Number(_) | OutputValue::Calibrated(_) => {
                MojoOutputColumn::Numbers(aligned_vec(rows))
            }
            OutputValue::Numbers(_, count) => {
                MojoOutputColumn::Numbers(aligned_vec(rows.saturating_mul(count)))
            }
        }
    }

    /// Adds the values of `predictions`, of the model's width each.
    fn add(&mut self, value: OutputValue, model: &MojoModel, predictions: &[f64]) {
        for prediction in predictions.chunks_exact(model.width) {
            let at = |index: usize| prediction.get(index).copied().unwrap_or(f64::NAN);
            match (&mut *self, value) {
                (MojoOutputColumn::Texts(texts), _) => {
                    let label = usize::try_from(java_int(at(0))).ok();
                    let label = label.and_then(|label| model.labels.get(label));
                    texts.push(label.map_or(b"", |label| label.as_bytes()));
                }
                (MojoOutputColumn::Integers(integers), _) => integers.push(java_int(at(0)).into()),
                (MojoOutputColumn::Numbers(numbers), OutputValue::Numbers(first, count)) => {
                    let end = first.saturating_add(count);
                    numbers.extend_from_slice(prediction.get(first..end).unwrap_or_default());
                }
                (MojoOutputColumn::Numbers(numbers), OutputValue::Calibrated(class)) => {
                    let second = match &model.calibration {
                        Some(calibration) => calibration.second(at(1), at(2)),
                        None => at(2),
                    };
                    numbers.push(if class == 0 { 1.0 - second } else { second });
                }
                (MojoOutputColumn::Numbers(numbers), OutputValue::Number(index)) => {
                    numbers.push(at(index));
                }
                (MojoOutputColumn::Numbers(_), OutputValue::Label | OutputValue::Integer) => {}
            }
        }
    }

    fn into_tensor(self, value: OutputValue, rows: usize) -> Result<Tensor> {
        match self {
            MojoOutputColumn::Texts(values) => Tensor::from_strings(Shape::vector(rows), values),
            MojoOutputColumn::Integers(values) => Tensor::from_vec(Shape::vector(rows), values),
            MojoOutputColumn::Numbers(values) => {
                let OutputValue::Numbers(_, count) = value else {
                    return Tensor::from_vec(Shape::vector(rows), values);
                };
                let dim = |size| i64::try_from(size).unwrap_or(i64::MAX);
                Tensor::from_vec(Shape::new(&[dim(rows), dim(count)])?, values)
            }
        }
    }
}

impl Executable for MojoModel {
    fn run(&self, _: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs.len() {
            return Err(wrong_input_count(self.inputs.len(), inputs.len()));
        }
        let pairs = self.inputs.iter().zip(inputs);
        let columns: Vec<MojoInputColumn> = pairs
            .map(|(input, tensor)| MojoInputColumn::read(input, tensor))
            .collect::<Result<_>>()?;
        let count = self.count_rows(&columns)?;
        let mut outputs: Vec<MojoOutputColumn> = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            outputs.push(MojoOutputColumn::new(output, count));
        }
        let widest = self.features.max(self.width);
        let block = ROWS_PER_BLOCK.min(MAX_BLOCK / widest).clamp(1, count.max(1));
        let mut rows = vec![f64::NAN; block * self.features];
        let mut offsets = vec![0.0; block];
        let mut predictions = vec![0.0; block * self.width];
        for first in (0..count).step_by(block) {
            let len = block.min(count - first);
            let rows = rows.get_mut(..len * self.features).unwrap_or_default();
            let offsets = offsets.get_mut(..len).unwrap_or_default();
            let predictions = predictions.get_mut(..len * self.width).unwrap_or_default();
            self.fill(&columns, first, rows, offsets);
            self.scorer.score(rows, offsets, predictions);
            for (output, column) in self.outputs.iter().zip(&mut outputs) {
                column.add(output.value, self, predictions);
            }
        }
        let pairs = outputs.into_iter().zip(&self.outputs);
        pairs.map(|(column, output)| column.into_tensor(output.value, count)).collect()
    }
}
