//! Scores the rows of a request: tensors are checked, read row by row, and written.

use super::builder::PmmlBuilder;
use super::field::{MISSING, PmmlType, ValueKind, indicator, rounded};
use super::model::{PmmlModel, RootModel};
use super::prediction::PmmlPrediction;
use super::row::PmmlRow;
use super::schema::PmmlInput;
use super::strings::{RowStrings, StringTable, UnknownStrings};
use super::temporal;
use super::value::text_of;
use tensorserve_codec::xml::parse_boolean;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tabular::wrong_input_count;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// A model with its inputs and outputs.
pub(super) struct Scorer {
    model: PmmlModel,
    strings: StringTable,
    /// The number of values of a row.
    slots: usize,
    /// In the order of the signature.
    inputs: Vec<PmmlInput>,
    /// In the order of the signature.
    outputs: Vec<ScorerOutput>,
}

/// An output of the signature.
struct ScorerOutput {
    name: String,
    source: OutputSource,
    kind: ValueKind,
}

/// Where the value of an output is when a row is scored.
#[derive(Clone, Copy)]
enum OutputSource {
    Prediction,
    /// In this slot, unless the prediction is missing.
    Probability(u32),
    Slot(u32),
}

/// The value of a string that is not a boolean, for a field of booleans, or not a date, for a field of
/// dates. It is never valid.
const NOT_A_VALUE: f64 = f64::INFINITY;

/// The name of the prediction of a model whose target has none.
const DEFAULT_TARGET: &str = "predicted";

impl Scorer {
    /// The scorer of a model, with its signature.
    pub(super) fn new(builder: PmmlBuilder, root: RootModel) -> Result<(Signature, Scorer)> {
        let RootModel { model, mut inputs, outputs: exposed, target, data_type } = root;
        let mut outputs: Vec<ScorerOutput> = Vec::new();
        for output in exposed.into_iter().filter(|output| output.is_final) {
            let source = OutputSource::Slot(output.field.slot);
            let kind = output.field.data_type.kind;
            outputs.push(ScorerOutput { name: output.name, source, kind });
        }
        let declares_outputs = !outputs.is_empty();
        let target = target.unwrap_or_else(|| DEFAULT_TARGET.to_owned());
        if !outputs.iter().any(|output| output.name == target) {
            outputs.push(ScorerOutput {
                name: target,
                source: OutputSource::Prediction,
                kind: data_type.kind,
            });
        }
        if let Some(classes) = model.classes.as_ref().filter(|_| !declares_outputs) {
            for (slot, name) in (classes.slot..).zip(classes.names.iter()) {
                let name = format!("probability_{name}");
                let source = OutputSource::Probability(slot);
                outputs.push(ScorerOutput { name, source, kind: ValueKind::Number });
            }
        }
        inputs.sort_by(|a, b| a.name.cmp(&b.name));
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        if inputs.is_empty() {
            return Err(Error::unsupported("a model without inputs is not supported"));
        }
        if outputs.windows(2).any(|pair| matches!(pair, [a, b] if a.name == b.name)) {
            return Err(Error::damaged("two outputs of the model have the same name"));
        }
        let mut signature = Signature::row_by_row(
            inputs
                .iter()
                .map(|input| spec(&input.name, input.field.data_type.kind).with_missing_values())
                .collect(),
            outputs.iter().map(|output| spec(&output.name, output.kind)).collect(),
        );
        for input in &inputs {
            let default = missing_tensor(input.field.data_type.kind)?;
            signature.defaults.push((input.name.clone(), default));
        }
        let slots = builder.slot_count();
        Ok((signature, Scorer { model, strings: builder.strings, slots, inputs, outputs }))
    }
}

fn spec(name: &str, kind: ValueKind) -> TensorSpec {
    TensorSpec::new(name, dtype(kind), &[-1])
}

fn dtype(kind: ValueKind) -> DType {
    match kind {
        ValueKind::Number => DType::Double,
        ValueKind::Text
        | ValueKind::Boolean
        | ValueKind::Date
        | ValueKind::Time
        | ValueKind::DateTime => DType::String,
    }
}

/// An input with a single missing value, which stands for any number of rows.
fn missing_tensor(kind: ValueKind) -> Result<Tensor> {
    if kind == ValueKind::Number {
        let mut values = aligned_vec(1);
        values.push(MISSING);
        return Tensor::from_vec(Shape::vector(1), values);
    }
    let mut values = StringsBuilder::default();
    values.push(b"");
    Tensor::from_strings(Shape::vector(1), values)
}

/// The values of an input.
enum PmmlInputColumn<'t> {
    Numbers(&'t [f64]),
    Texts(Vec<&'t [u8]>),
}

impl<'t> PmmlInputColumn<'t> {
    /// Reads the values of `input`, one for each row.
    fn read(input: &PmmlInput, tensor: &'t Tensor) -> Result<Self> {
        let (name, shape) = (&input.name, tensor.shape());
        if !shape.row_dims().iter().all(|dim| *dim == 1) {
            return Err(Error::invalid(format!(
                "input {name:?} has the shape {shape:?}: send one value for each row"
            )));
        }
        let kind = input.field.data_type.kind;
        let column = match kind == ValueKind::Number {
            true => tensor.values().map(PmmlInputColumn::Numbers),
            false => {
                tensor.strings().map(|strings| PmmlInputColumn::Texts(strings.iter().collect()))
            }
        };
        column.ok_or_else(|| {
            let (has, takes) = (tensor.dtype(), dtype(kind));
            Error::invalid(format!(
                "input {name:?} has the dtype {has}, and the model takes {takes}"
            ))
        })
    }

    /// Whether it is a single missing value.
    fn is_default(&self) -> bool {
        match self {
            PmmlInputColumn::Numbers(values) => matches!(values, [value] if value.is_nan()),
            PmmlInputColumn::Texts(values) => matches!(&**values, [b""]),
        }
    }

    fn len(&self) -> usize {
        match self {
            PmmlInputColumn::Numbers(values) => values.len(),
            PmmlInputColumn::Texts(values) => values.len(),
        }
    }
}

/// The value for row `row`; a single value is that of every row.
fn value_of_row<T: Copy>(values: &[T], row: usize) -> Option<T> {
    if values.len() == 1 { values.first().copied() } else { values.get(row).copied() }
}

/// The strings of a row that do not occur in the model.
struct RequestStrings<'c, 't> {
    columns: &'c [PmmlInputColumn<'t>],
    row: usize,
    /// The code of an unknown string in the first column.
    first_code: f64,
}

impl UnknownStrings for RequestStrings<'_, '_> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // An index.
    fn text(&self, code: f64) -> Option<&[u8]> {
        if code < self.first_code {
            return None;
        }
        match self.columns.get((code - self.first_code) as usize) {
            Some(PmmlInputColumn::Texts(values)) => value_of_row(values, self.row),
            Some(PmmlInputColumn::Numbers(_)) | None => None,
        }
    }

    #[allow(clippy::cast_precision_loss)] // Far fewer than 2^53.
    fn end(&self) -> f64 {
        self.first_code + self.columns.len() as f64
    }
}

/// The values of an output, while rows are scored.
enum PmmlOutputColumn {
    Numbers(AlignedVec<f64>),
    Texts(StringsBuilder),
}

impl PmmlOutputColumn {
    fn with_capacity(kind: ValueKind, rows: usize) -> Self {
        match kind == ValueKind::Number {
            true => PmmlOutputColumn::Numbers(aligned_vec(rows)),
            false => PmmlOutputColumn::Texts(StringsBuilder::with_capacity(rows, 0)),
        }
    }

    fn into_tensor(self, rows: usize) -> Result<Tensor> {
        match self {
            PmmlOutputColumn::Numbers(values) => Tensor::from_vec(Shape::vector(rows), values),
            PmmlOutputColumn::Texts(values) => Tensor::from_strings(Shape::vector(rows), values),
        }
    }
}

impl Executable for Scorer {
    fn run(&self, _: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let columns = self.read_columns(inputs)?;
        let count = self.count_rows(&columns)?;
        let mut outputs: Vec<PmmlOutputColumn> = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            outputs.push(PmmlOutputColumn::with_capacity(output.kind, count));
        }
        let mut values = vec![MISSING; self.slots];
        for row in 0..count {
            values.fill(MISSING);
            let unknown = RequestStrings { columns: &columns, row, first_code: self.strings.end() };
            let strings = RowStrings::new(&self.strings, &unknown);
            self.fill(&mut values, &columns, row);
            let mut row = PmmlRow { values: &mut values, strings: &strings };
            let prediction = self.model.score(&mut row);
            for (output, column) in self.outputs.iter().zip(&mut outputs) {
                self.write(output, column, prediction, &row);
            }
        }
        outputs.into_iter().map(|column| column.into_tensor(count)).collect()
    }
}

impl Scorer {
    fn read_columns<'t>(&self, inputs: &'t [Tensor]) -> Result<Vec<PmmlInputColumn<'t>>> {
        if inputs.len() != self.inputs.len() {
            return Err(wrong_input_count(self.inputs.len(), inputs.len()));
        }
        let pairs = self.inputs.iter().zip(inputs);
        pairs.map(|(input, tensor)| PmmlInputColumn::read(input, tensor)).collect()
    }

    /// The number of rows: the length of all columns but those with a single missing value, the
    /// default of inputs that are left out.
    fn count_rows(&self, columns: &[PmmlInputColumn]) -> Result<usize> {
        let Some(count) = columns.iter().map(PmmlInputColumn::len).find(|len| *len != 1) else {
            return Ok(1);
        };
        for (input, column) in self.inputs.iter().zip(columns) {
            let (name, len) = (&input.name, column.len());
            if len != count && !column.is_default() {
                return Err(Error::invalid(format!(
                    "input {name:?} has {len} values where another has {count}: send one value \
                     for each row"
                )));
            }
        }
        Ok(count)
    }

    /// Writes the inputs of row number `row` to their slots.
    fn fill(&self, values: &mut [f64], columns: &[PmmlInputColumn], row: usize) {
        let mut unknown_code = self.strings.end();
        for (input, column) in self.inputs.iter().zip(columns) {
            let data_type = input.field.data_type;
            let value = match column {
                PmmlInputColumn::Numbers(numbers) => {
                    let number = value_of_row(numbers, row).unwrap_or(MISSING);
                    rounded(number, data_type.is_single())
                }
                PmmlInputColumn::Texts(texts) => {
                    let text = value_of_row(texts, row).unwrap_or_default();
                    self.parse(text, data_type.kind, unknown_code)
                }
            };
            unknown_code += 1.0;
            if let Some(slot) = values.get_mut(input.field.slot as usize) {
                *slot = value;
            }
        }
    }

    /// The value of a string of a request; `unknown_code` if it does not occur in the model.
    fn parse(&self, text: &[u8], kind: ValueKind, unknown_code: f64) -> f64 {
        if text.is_empty() {
            return MISSING;
        }
        if kind == ValueKind::Text {
            return self.strings.code(text).unwrap_or(unknown_code);
        }
        let text = std::str::from_utf8(text).unwrap_or_default();
        let value = match kind.is_temporal() {
            true => temporal::parse(text, kind),
            false => parse_boolean(text).map(indicator),
        };
        value.unwrap_or(NOT_A_VALUE)
    }

    fn write(
        &self,
        output: &ScorerOutput,
        column: &mut PmmlOutputColumn,
        prediction: PmmlPrediction,
        row: &PmmlRow,
    ) {
        let value = match output.source {
            OutputSource::Prediction => prediction.value,
            OutputSource::Probability(_) if prediction.is_missing() => MISSING,
            OutputSource::Probability(slot) | OutputSource::Slot(slot) => row.get(slot),
        };
        match column {
            PmmlOutputColumn::Numbers(values) => values.push(value),
            PmmlOutputColumn::Texts(texts) if value.is_nan() => texts.push(b""),
            PmmlOutputColumn::Texts(texts) if output.kind == ValueKind::Text => {
                texts.push(&row.strings.bytes(value));
            }
            PmmlOutputColumn::Texts(texts) => {
                let data_type = PmmlType::of_kind(output.kind);
                texts.push(text_of(value, data_type, row.strings).as_bytes());
            }
        }
    }
}
