//! Runs a pipeline on the rows of a request.

use std::borrow::Cow;

use super::pipeline::{InputKind, OutputKind, PipelineInput, PipelineOutput, SparkPipeline};
use super::table::{SparkColumn, SparkTable, VectorRow, VectorRows, Vectors};
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tabular::wrong_input_count;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// Rows that go through the stages together, and the most numbers of their vectors.
const ROWS_PER_BLOCK: usize = 256;
const MAX_BLOCK: usize = 1 << 18;

impl SparkPipeline {
    /// The inputs and outputs: columns of numbers are double, those of texts string, vectors have a
    /// dimension more. Missing values are NaN and the empty string; they are the defaults.
    pub(super) fn signature(&self) -> Result<Signature> {
        let inputs = self.inputs.iter().map(|input| {
            let spec = match input.kind {
                InputKind::Number => TensorSpec::new(&*input.name, DType::Double, &[-1]),
                InputKind::Text => TensorSpec {
                    number_texts: input.number_texts,
                    ..TensorSpec::new(&*input.name, DType::String, &[-1])
                },
                InputKind::Vector(size) => {
                    return TensorSpec::new(&*input.name, DType::Double, &[-1, dimension(size)]);
                }
            };
            spec.with_missing_values()
        });
        let outputs = self.outputs.iter().map(|output| {
            let name = &*output.name;
            match output.kind {
                OutputKind::Number | OutputKind::Element(_) => {
                    TensorSpec::new(name, DType::Double, &[-1])
                }
                OutputKind::Integer => TensorSpec::new(name, DType::Int32, &[-1]),
                OutputKind::Text => TensorSpec::new(name, DType::String, &[-1]),
                OutputKind::Vector(size) => {
                    TensorSpec::new(name, DType::Double, &[-1, dimension(size)])
                }
            }
        });
        let mut signature = Signature::row_by_row(inputs.collect(), outputs.collect());
        for input in &self.inputs {
            let missing = match input.kind {
                InputKind::Number => {
                    let mut values = aligned_vec(1);
                    values.push(f64::NAN);
                    Tensor::from_vec(Shape::vector(1), values)?
                }
                InputKind::Text => {
                    let mut values = StringsBuilder::default();
                    values.push(b"");
                    Tensor::from_strings(Shape::vector(1), values)?
                }
                InputKind::Vector(_) => continue,
            };
            signature.defaults.push((input.name.clone(), missing));
        }
        Ok(signature)
    }
}

fn dimension(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// The values of an input.
enum SparkInputColumn<'t> {
    Numbers(&'t [f64]),
    Texts(Vec<&'t [u8]>),
}

impl<'t> SparkInputColumn<'t> {
    /// Reads the values of `input`; also returns the number of rows.
    fn read(input: &PipelineInput, tensor: &'t Tensor) -> Result<(Self, usize)> {
        let (name, shape) = (&input.name, tensor.shape());
        let width = match input.kind {
            InputKind::Vector(size) => size,
            InputKind::Number | InputKind::Text => 1,
        };
        let fits = match input.kind {
            InputKind::Vector(size) => shape.row_dims() == [dimension(size)],
            InputKind::Number | InputKind::Text => shape.row_dims().iter().all(|dim| *dim == 1),
        };
        if !fits || shape.dims().is_empty() {
            let wanted = match input.kind {
                InputKind::Vector(size) => format!("[rows,{size}]"),
                InputKind::Number | InputKind::Text => "[rows]".to_owned(),
            };
            return Err(Error::invalid(format!(
                "input {name:?} has the shape {shape:?}, and the model takes {wanted}"
            )));
        }
        let (column, wanted) = match input.kind {
            InputKind::Text => {
                let strings = tensor.strings();
                (strings.map(|all| SparkInputColumn::Texts(all.iter().collect())), DType::String)
            }
            InputKind::Number | InputKind::Vector(_) => {
                (tensor.values().map(SparkInputColumn::Numbers), DType::Double)
            }
        };
        let column = column.ok_or_else(|| {
            let has = tensor.dtype();
            Error::invalid(format!(
                "input {name:?} has the dtype {has}, and the model takes {wanted}"
            ))
        })?;
        let len = match &column {
            SparkInputColumn::Numbers(values) => values.len() / width,
            SparkInputColumn::Texts(values) => values.len(),
        };
        Ok((column, len))
    }

    /// The rows from `first` on, as a column of a table.
    fn part(&self, kind: InputKind, first: usize, rows: usize) -> SparkColumn<'t> {
        match (self, kind) {
            (SparkInputColumn::Numbers(values), InputKind::Vector(width)) => {
                let range = first * width..(first + rows) * width;
                let values = values.get(range).unwrap_or_default();
                SparkColumn::Vectors(Vectors {
                    width,
                    rows: VectorRows::Dense(Cow::Borrowed(values)),
                })
            }
            (SparkInputColumn::Numbers(values), _) => {
                let values = values.get(first..first + rows).unwrap_or_default();
                SparkColumn::Numbers(Cow::Borrowed(values))
            }
            (SparkInputColumn::Texts(values), _) => {
                let values = values.get(first..first + rows).unwrap_or_default();
                let texts = values.iter().map(|text| String::from_utf8_lossy(text));
                SparkColumn::Texts(texts.collect())
            }
        }
    }
}

/// The values of an output, while blocks of rows are computed.
enum SparkOutputColumn {
    Numbers(AlignedVec<f64>),
    Integers(AlignedVec<i32>),
    Texts(StringsBuilder),
}

impl SparkOutputColumn {
    fn new(kind: OutputKind, rows: usize) -> Self {
        match kind {
            OutputKind::Number | OutputKind::Element(_) => {
                SparkOutputColumn::Numbers(aligned_vec(rows))
            }
            OutputKind::Vector(size) => {
                SparkOutputColumn::Numbers(aligned_vec(rows.saturating_mul(size)))
            }
            OutputKind::Integer => SparkOutputColumn::Integers(aligned_vec(rows)),
            OutputKind::Text => SparkOutputColumn::Texts(StringsBuilder::with_capacity(rows, 0)),
        }
    }

    /// Adds the rows of a table. Those that a stage has dropped have no value.
    #[allow(clippy::cast_possible_truncation)] // Numbers of clusters.
    fn add(&mut self, output: &PipelineOutput, table: &SparkTable<'_>) -> Result<()> {
        match (self, output.kind) {
            (SparkOutputColumn::Texts(texts), _) => {
                for (row, text) in table.texts(output.column)?.iter().enumerate() {
                    let is_skipped = table.is_skipped(row);
                    texts.push(if is_skipped { b"" } else { text.as_bytes() });
                }
            }
            (SparkOutputColumn::Integers(integers), _) => {
                for (row, number) in table.numbers(output.column)?.iter().enumerate() {
                    integers.push(if table.is_skipped(row) { -1 } else { *number as i32 });
                }
            }
            (SparkOutputColumn::Numbers(numbers), OutputKind::Vector(size)) => {
                table.vectors(output.column)?.for_dense_rows(table.rows, |row, values| {
                    match table.is_skipped(row) {
                        true => (0..size).for_each(|_| numbers.push(f64::NAN)),
                        false => numbers.extend_from_slice(values),
                    }
                    Ok(())
                })?;
            }
            (SparkOutputColumn::Numbers(numbers), OutputKind::Element(at)) => {
                let vectors = table.vectors(output.column)?;
                for row in 0..table.rows {
                    let value = match vectors.row(row) {
                        VectorRow::Dense(values) if !table.is_skipped(row) => values.get(at),
                        VectorRow::Dense(_) | VectorRow::Sparse(_) => None,
                    };
                    numbers.push(value.copied().unwrap_or(f64::NAN));
                }
            }
            (SparkOutputColumn::Numbers(numbers), _) => {
                for (row, number) in table.numbers(output.column)?.iter().enumerate() {
                    numbers.push(if table.is_skipped(row) { f64::NAN } else { *number });
                }
            }
        }
        Ok(())
    }

    fn into_tensor(self, kind: OutputKind, rows: usize) -> Result<Tensor> {
        let shape = match kind {
            OutputKind::Vector(size) => Shape::new(&[dimension(rows), dimension(size)])?,
            OutputKind::Number
            | OutputKind::Integer
            | OutputKind::Text
            | OutputKind::Element(_) => Shape::vector(rows),
        };
        match self {
            SparkOutputColumn::Numbers(values) => Tensor::from_vec(shape, values),
            SparkOutputColumn::Integers(values) => Tensor::from_vec(shape, values),
            SparkOutputColumn::Texts(values) => Tensor::from_strings(shape, values),
        }
    }
}

impl Executable for SparkPipeline {
    fn run(&self, _: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs.len() {
            return Err(wrong_input_count(self.inputs.len(), inputs.len()));
        }
        let mut columns = Vec::with_capacity(inputs.len());
        let mut count = None;
        for (input, tensor) in self.inputs.iter().zip(inputs) {
            let (column, rows) = SparkInputColumn::read(input, tensor)?;
            let first = *count.get_or_insert(rows);
            if rows != first {
                let name = &input.name;
                return Err(Error::invalid(format!(
                    "input {name:?} has {rows} values where another has {first}: send one value \
                     for each row"
                )));
            }
            columns.push(column);
        }
        let count = count.unwrap_or(0);
        let outputs = self.outputs.iter();
        let mut outputs: Vec<SparkOutputColumn> =
            outputs.map(|output| SparkOutputColumn::new(output.kind, count)).collect();
        let block = (MAX_BLOCK / self.width.max(1)).clamp(1, ROWS_PER_BLOCK);
        for first in (0..count).step_by(block) {
            let rows = block.min(count - first);
            let mut table = SparkTable::new(rows, first, self.columns);
            for (input, column) in self.inputs.iter().zip(&columns) {
                table.put(input.column, column.part(input.kind, first, rows));
            }
            self.stages.iter().try_for_each(|stage| stage.run(&mut table))?;
            for (column, output) in outputs.iter_mut().zip(&self.outputs) {
                column.add(output, &table)?;
            }
        }
        let pairs = outputs.into_iter().zip(&self.outputs);
        pairs.map(|(column, output)| column.into_tensor(output.kind, count)).collect()
    }
}
