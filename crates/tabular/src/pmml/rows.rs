//! Between tensors and rows: requests are checked, read row by row, scored, and answered.

use super::field::{Kind, MISSING, Row, Strangers, Symbols, rounded};
use super::model::{Model, Verdict, Whole};
use super::schema::{Builder, Input};
use super::xml::parse_flag;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// A model, and how it reads requests and writes answers.
pub(super) struct Scorer {
    model: Model,
    symbols: Symbols,
    slots: usize,
    /// In the order of the signature.
    inputs: Vec<Input>,
    /// In the order of the signature.
    results: Vec<Answer>,
}

/// A result, and what it is.
struct Answer {
    name: String,
    source: Source,
    kind: Kind,
}

/// Where a result is when a row is scored.
#[derive(Clone, Copy)]
enum Source {
    /// The prediction itself.
    Prediction,
    /// In this place, if there is a prediction.
    Probability(u32),
    Slot(u32),
}

/// A value of a flag's field that is neither true nor false, and so never valid.
const NO_FLAG: f64 = 2.0;

/// What a model without a name for its target calls its prediction.
const PREDICTED: &str = "predicted";

/// The signature of a model, and what runs it.
pub(super) fn prepare(builder: Builder, whole: Whole) -> Result<(Signature, Scorer)> {
    let Whole { model, mut inputs, shown, target, kind } = whole;
    let is_shown = shown.iter().any(|one| one.is_final);
    let mut results: Vec<Answer> = Vec::new();
    for one in shown.into_iter().filter(|one| one.is_final) {
        let source = Source::Slot(one.field.slot);
        results.push(Answer { name: one.name, source, kind: one.field.kind });
    }
    let target = target.unwrap_or_else(|| PREDICTED.to_owned());
    if !results.iter().any(|one| one.name == target) {
        results.push(Answer { name: target, source: Source::Prediction, kind });
    }
    if let Some(classes) = model.classes.as_ref().filter(|_| !is_shown) {
        for (slot, name) in (classes.slot..).zip(classes.names.iter()) {
            let (name, source) = (format!("probability_{name}"), Source::Probability(slot));
            results.push(Answer { name, source, kind: Kind::Number });
        }
    }
    inputs.sort_by(|a, b| a.name.cmp(&b.name));
    results.sort_by(|a, b| a.name.cmp(&b.name));
    if inputs.is_empty() {
        return Err(Error::new(
            tensorserve_tensor::error::Code::Unimplemented,
            "the model reads no field",
        ));
    }
    if results.windows(2).any(|pair| matches!(pair, [a, b] if a.name == b.name)) {
        let message = "two results of the model have the same name";
        return Err(Error::new(tensorserve_tensor::error::Code::DataLoss, message));
    }
    let spec = |name: &str, kind| TensorSpec::new(name, dtype(kind), &[-1]);
    let mut signature = Signature::only(
        inputs.iter().map(|input| spec(&input.name, input.field.kind)).collect(),
        results.iter().map(|answer| spec(&answer.name, answer.kind)).collect(),
    );
    for input in &inputs {
        signature.defaults.push((input.name.clone(), missing(input.field.kind)?));
    }
    let slots = builder.slots as usize;
    Ok((signature, Scorer { model, symbols: builder.symbols, slots, inputs, results }))
}

fn dtype(kind: Kind) -> DType {
    match kind {
        Kind::Number => DType::Double,
        Kind::Text | Kind::Flag => DType::String,
    }
}

/// The input of one row that is missing; it stands for any number of rows.
fn missing(kind: Kind) -> Result<Tensor> {
    if kind == Kind::Number {
        let mut values = aligned_vec(1);
        values.push(MISSING);
        return Tensor::from_vec(Shape::vector(1), values);
    }
    let mut values = StringsBuilder::default();
    values.push(b"");
    Tensor::from_strings(Shape::vector(1), values)
}

/// The values of one input.
enum Column<'t> {
    Numbers(&'t [f64]),
    Texts(Vec<&'t [u8]>),
}

impl Column<'_> {
    fn len(&self) -> usize {
        match self {
            Column::Numbers(values) => values.len(),
            Column::Texts(values) => values.len(),
        }
    }
}

/// A value of row `row`; a single one is that of every row.
fn pick<T: Copy>(values: &[T], row: usize) -> Option<T> {
    if values.len() == 1 { values.first().copied() } else { values.get(row).copied() }
}

/// The texts of a row's strings that the model does not know.
struct Unknown<'c, 't> {
    columns: &'c [Column<'t>],
    row: usize,
    /// The code of an unknown string of the first column.
    first: f64,
}

impl Strangers for Unknown<'_, '_> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It was an index.
    fn text(&self, code: f64) -> Option<&[u8]> {
        if code < self.first {
            return None;
        }
        match self.columns.get((code - self.first) as usize) {
            Some(Column::Texts(values)) => pick(values, self.row),
            Some(Column::Numbers(_)) | None => None,
        }
    }
}

/// The values of one output, as they come.
enum Filling {
    Numbers(AlignedVec<f64>),
    Texts(StringsBuilder),
}

impl Executable for Scorer {
    fn run(&self, _: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let columns = self.columns(inputs)?;
        let count = self.count(&columns)?;
        let filling = |answer: &Answer| match answer.kind {
            Kind::Number => Filling::Numbers(aligned_vec(count)),
            Kind::Text | Kind::Flag => Filling::Texts(StringsBuilder::with_capacity(count, 0)),
        };
        let mut fillings: Vec<Filling> = self.results.iter().map(filling).collect();
        let mut values = vec![MISSING; self.slots];
        for row in 0..count {
            values.fill(MISSING);
            let strangers = Unknown { columns: &columns, row, first: self.symbols.end() };
            self.fill(&mut values, &columns, row);
            let mut row = Row { values: &mut values, strangers: &strangers };
            let verdict = self.model.score(&mut row);
            for (answer, filling) in self.results.iter().zip(&mut fillings) {
                self.push(answer, filling, verdict, &row);
            }
        }
        let tensor = |filling| match filling {
            Filling::Numbers(values) => Tensor::from_vec(Shape::vector(count), values),
            Filling::Texts(values) => Tensor::from_strings(Shape::vector(count), values),
        };
        fillings.into_iter().map(tensor).collect()
    }
}

impl Scorer {
    fn columns<'t>(&self, inputs: &'t [Tensor]) -> Result<Vec<Column<'t>>> {
        if inputs.len() != self.inputs.len() {
            return Err(Error::internal("another number of inputs than the signature has"));
        }
        let pairs = self.inputs.iter().zip(inputs);
        pairs.map(|(input, tensor)| column(input, tensor)).collect()
    }

    /// How many rows there are.
    fn count(&self, columns: &[Column]) -> Result<usize> {
        let Some(count) = columns.iter().map(Column::len).find(|len| *len != 1) else {
            return Ok(1);
        };
        let fits = |column: &Column| column.len() == count || column.len() == 1;
        match columns.iter().position(|column| !fits(column)) {
            None => Ok(count),
            Some(at) => {
                let name = self.inputs.get(at).map_or("", |input| &input.name);
                let len = columns.get(at).map_or(0, Column::len);
                Err(Error::invalid(format!(
                    "input {name:?} has {len} values where another has {count}: give each as many \
                     as there are rows"
                )))
            }
        }
    }

    fn fill(&self, values: &mut [f64], columns: &[Column], row: usize) {
        let mut stranger = self.symbols.end();
        for (input, column) in self.inputs.iter().zip(columns) {
            let value = match column {
                Column::Numbers(numbers) => {
                    let number = pick(numbers, row).unwrap_or(MISSING);
                    rounded(number, input.field.single)
                }
                Column::Texts(texts) => {
                    let text = pick(texts, row).unwrap_or_default();
                    self.code(text, input.field.kind, stranger)
                }
            };
            stranger += 1.0;
            if let Some(place) = values.get_mut(input.field.slot as usize) {
                *place = value;
            }
        }
    }

    /// The value that a string is; `stranger` for one that the model does not know.
    fn code(&self, text: &[u8], kind: Kind, stranger: f64) -> f64 {
        if text.is_empty() {
            return MISSING;
        }
        if kind == Kind::Text {
            return self.symbols.code(text).unwrap_or(stranger);
        }
        let flag = std::str::from_utf8(text).ok().and_then(parse_flag);
        flag.map_or(NO_FLAG, |flag| f64::from(u8::from(flag)))
    }

    fn push(&self, answer: &Answer, filling: &mut Filling, verdict: Verdict, row: &Row) {
        let value = match answer.source {
            Source::Prediction => verdict.value,
            Source::Probability(_) if verdict.is_missing() => MISSING,
            Source::Probability(slot) | Source::Slot(slot) => row.get(slot),
        };
        match filling {
            Filling::Numbers(values) => values.push(value),
            Filling::Texts(texts) => texts.push(self.text(value, answer.kind, row)),
        }
    }

    fn text<'a>(&'a self, value: f64, kind: Kind, row: &'a Row) -> &'a [u8] {
        match kind {
            _ if value.is_nan() => b"",
            Kind::Flag if value > 0.5 => b"true",
            Kind::Flag => b"false",
            Kind::Text | Kind::Number => match self.symbols.text(value) {
                Some(text) => text.as_bytes(),
                None => row.strangers.text(value).unwrap_or_default(),
            },
        }
    }
}

/// The values of `input`: one for each row.
fn column<'t>(input: &Input, tensor: &'t Tensor) -> Result<Column<'t>> {
    let shape = tensor.shape();
    if !shape.row_dims().iter().all(|dim| *dim == 1) {
        return Err(Error::invalid(format!(
            "input {:?} has the shape {shape:?}: give one value for each row",
            input.name
        )));
    }
    let found = match input.field.kind {
        Kind::Number => tensor.values().map(Column::Numbers),
        Kind::Text | Kind::Flag => tensor.strings().map(|s| Column::Texts(s.iter().collect())),
    };
    found.ok_or_else(|| {
        let (dtype, wanted) = (tensor.dtype(), dtype(input.field.kind));
        Error::invalid(format!("input {:?} is {dtype} and should be {wanted}", input.name))
    })
}
