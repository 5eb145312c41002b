//! Linear models: a sum for each class, or one, and what Spark makes of it.

use super::parquet::Columns;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, Shape, Signature, Tensor, TensorSpec, aligned_vec};

/// The most classes: each has an output of its own.
const MAX_CLASSES: usize = 4096;

/// The most coefficients (512 MiB of memory).
const MAX_COEFFICIENTS: usize = 1 << 26;

/// What clients call the features.
const FEATURES: &str = "features";

/// A model, ready to run.
pub(super) struct Linear {
    /// How many numbers a row has.
    features: usize,
    /// Of one sum after the other.
    coefficients: Box<[f64]>,
    intercepts: Box<[f64]>,
    answer: Answer,
    /// Where the prediction is among the outputs.
    prediction: usize,
    /// Where the probability of each class is.
    probabilities: Box<[usize]>,
}

/// What the sums mean.
#[derive(Debug)]
pub(super) enum Answer {
    /// The one sum is the prediction.
    Number,
    /// It is 1 where the sum is above this, else 0.
    Above(f64),
    /// Two classes, by one sum, which must be above this for the second.
    Binary { above: Binary },
    /// One sum for each class.
    Softmax {
        /// What each probability is divided by before they are compared; none for nothing.
        thresholds: Vec<f64>,
    },
    /// One sum for each class but the first, which has 0.
    Pivot,
}

/// When the second of two classes is predicted.
#[derive(Debug)]
pub(super) enum Binary {
    /// When the sum is above this.
    Sum(f64),
    /// When its probability is above this.
    Probability(f64),
    /// Never: the probability itself is the prediction.
    Never,
}

/// The parts of a model, as they were saved.
pub(super) struct Parts {
    pub(super) features: usize,
    pub(super) coefficients: Vec<f64>,
    pub(super) intercepts: Vec<f64>,
    pub(super) answer: Answer,
}

pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Code::DataLoss, format!("the model is damaged: {what}"))
}

impl Linear {
    /// The model of these parts, and its signature.
    pub(super) fn new(parts: Parts) -> Result<(Signature, Self)> {
        let Parts { features, coefficients, intercepts, answer } = parts;
        let sums = intercepts.len();
        if features == 0 || sums == 0 || sums.checked_mul(features) != Some(coefficients.len()) {
            return Err(damaged("it has not as many coefficients as it should"));
        }
        let classes = match &answer {
            Answer::Number | Answer::Above(_) => 0,
            Answer::Binary { .. } => 2,
            Answer::Softmax { .. } => sums,
            Answer::Pivot => sums + 1,
        };
        let fits = match &answer {
            Answer::Number | Answer::Above(_) | Answer::Binary { .. } => sums == 1,
            Answer::Softmax { thresholds } => {
                sums > 1 && (thresholds.is_empty() || thresholds.len() == sums)
            }
            Answer::Pivot => true,
        };
        if !fits {
            return Err(damaged("it has not as many sums as classes"));
        }
        if classes > MAX_CLASSES {
            let message = format!("it has {classes} classes, which is more than {MAX_CLASSES}");
            return Err(Error::new(Code::Unimplemented, message));
        }
        let width = i64::try_from(features).unwrap_or(i64::MAX);
        let name = |class: usize| format!("probability_of_{class}");
        let mut outputs = vec![TensorSpec::new("prediction", DType::Double, &[-1])];
        outputs.extend((0..classes).map(|k| TensorSpec::new(name(k), DType::Double, &[-1])));
        let inputs = vec![TensorSpec::new(FEATURES, DType::Double, &[-1, width])];
        let signature = Signature::only(inputs, outputs);
        let place = |alias: &str| {
            let found = signature.outputs.binary_search_by(|spec| spec.alias.as_str().cmp(alias));
            found.map_err(|_| Error::internal("an output has no place"))
        };
        let model = Linear {
            features,
            coefficients: coefficients.into(),
            intercepts: intercepts.into(),
            answer,
            prediction: place("prediction")?,
            probabilities: (0..classes).map(|k| place(&name(k))).collect::<Result<_>>()?,
        };
        Ok((signature, model))
    }

    /// The sums of a row.
    fn sums(&self, row: &[f64], sums: &mut [f64]) {
        let rows = self.coefficients.chunks_exact(self.features);
        for ((sum, coefficients), intercept) in sums.iter_mut().zip(rows).zip(&self.intercepts) {
            *sum = dot(coefficients, row) + intercept;
        }
    }
}

/// The sum of products, in four lanes that the processor adds side by side.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (fours, rest) = a.as_chunks::<4>();
    let (others, last) = b.as_chunks::<4>();
    let mut lanes = [0.0; 4];
    for (x, y) in fours.iter().zip(others) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += x * y;
        }
    }
    let rest: f64 = rest.iter().zip(last).map(|(x, y)| x * y).sum();
    lanes.iter().sum::<f64>() + rest
}

impl Answer {
    /// Makes the probabilities of the sums in `classes` (which has room for all of them; a pivot's
    /// sums come second), and the prediction.
    fn of(&self, sums: &[f64], classes: &mut [f64]) -> f64 {
        let sum = sums.first().copied().unwrap_or(f64::NAN);
        match self {
            Answer::Number => sum,
            Answer::Above(threshold) => f64::from(u8::from(sum > *threshold)),
            Answer::Binary { above } => {
                let second = 1.0 / (1.0 + (-sum).exp());
                if let [first, other] = classes {
                    *first = 1.0 / (1.0 + sum.exp());
                    *other = second;
                }
                match above {
                    Binary::Sum(threshold) => f64::from(u8::from(sum > *threshold)),
                    Binary::Probability(threshold) => f64::from(u8::from(second > *threshold)),
                    Binary::Never => second,
                }
            }
            Answer::Softmax { thresholds } => {
                classes.copy_from_slice(sums);
                let most = largest(classes.iter().copied());
                softmax(classes);
                if thresholds.is_empty() {
                    return most;
                }
                largest(classes.iter().zip(thresholds).map(|(p, t)| p / t))
            }
            Answer::Pivot => {
                if let Some((first, others)) = classes.split_first_mut() {
                    *first = 0.0;
                    others.copy_from_slice(sums);
                }
                let most = largest(classes.iter().copied());
                softmax(classes);
                most
            }
        }
    }
}

/// The number of the largest value, of several the first.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    let (mut best, mut most) = (0u32, f64::NEG_INFINITY);
    for (index, value) in (0u32..).zip(values) {
        if value > most {
            (best, most) = (index, value);
        }
    }
    f64::from(best)
}

/// Without a power that overflows.
fn softmax(values: &mut [f64]) {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::INFINITY {
        values.iter_mut().for_each(|value| *value = f64::from(u8::from(*value == most)));
    } else {
        values.iter_mut().for_each(|value| *value = (*value - most).exp());
    }
    let total: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= total);
}

impl Executable for Linear {
    fn run(&self, _: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let (values, count) = self.rows(inputs)?;
        let classes = self.probabilities.len();
        let mut outputs = vec![aligned_vec::<f64>(count); classes + 1];
        let mut sums = vec![0.0; self.intercepts.len()];
        let mut probabilities = vec![0.0; classes];
        for row in values.chunks_exact(self.features) {
            self.sums(row, &mut sums);
            let prediction = self.answer.of(&sums, &mut probabilities);
            if let Some(output) = outputs.get_mut(self.prediction) {
                output.push(prediction);
            }
            for (place, probability) in self.probabilities.iter().zip(&probabilities) {
                if let Some(output) = outputs.get_mut(*place) {
                    output.push(*probability);
                }
            }
        }
        outputs.into_iter().map(|o| Tensor::from_vec(Shape::vector(count), o)).collect()
    }
}

impl Linear {
    /// The rows of a request end to end, and how many there are.
    fn rows<'t>(&self, inputs: &'t [Tensor]) -> Result<(&'t [f64], usize)> {
        let [input] = inputs else {
            return Err(Error::internal("another number of inputs than the signature has"));
        };
        let Some(values) = input.values::<f64>() else {
            let dtype = input.dtype();
            let message = format!("input {FEATURES:?} is {dtype} and should be double");
            return Err(Error::invalid(message));
        };
        match input.shape().dims() {
            [rows, width] if usize::try_from(*width).is_ok_and(|width| width == self.features) => {
                Ok((values, usize::try_from(*rows).unwrap_or(0)))
            }
            _ => Err(Error::invalid(format!(
                "input {FEATURES:?} has the shape {:?} and should have [rows,{}]: one number for \
                 each feature",
                input.shape(),
                self.features
            ))),
        }
    }
}

/// The vector in the columns `path.…`, as long as it says.
pub(super) fn vector(columns: &Columns, path: &str) -> Result<Vec<f64>> {
    let column = |name: &str| format!("{path}.{name}");
    let values = columns.list(&column("values"));
    match columns.number(&column("type")) {
        Some(1.0) => Ok(values.to_vec()),
        Some(0.0) => {
            let size = size(columns, &column("size"))?;
            let mut dense = zeros(size, path)?;
            fill(&mut dense, columns.list(&column("indices")), values, path)?;
            Ok(dense)
        }
        _ => Err(damaged(format!("{path} is no vector"))),
    }
}

/// The matrix in the columns `path.…`, row by row, and how many rows and columns it has.
pub(super) fn matrix(columns: &Columns, path: &str) -> Result<(Vec<f64>, usize, usize)> {
    let column = |name: &str| format!("{path}.{name}");
    let rows = size(columns, &column("numRows"))?;
    let width = size(columns, &column("numCols"))?;
    let total = rows.checked_mul(width).ok_or_else(|| damaged(format!("{path} is too large")))?;
    let mut dense = zeros(total, path)?;
    let values = columns.list(&column("values"));
    // Column by column, unless it says that rows and columns change places.
    let is_by_row = columns.number(&column("isTransposed")) == Some(1.0);
    let (lines, length) = if is_by_row { (rows, width) } else { (width, rows) };
    let mut put = |line: usize, at: usize, value: f64| {
        let place = if is_by_row { line * width + at } else { at * width + line };
        if let Some(slot) = dense.get_mut(place) {
            *slot = value;
        }
    };
    match columns.number(&column("type")) {
        Some(1.0) if values.len() == total => {
            for (index, value) in values.iter().enumerate() {
                put(index / length.max(1), index % length.max(1), *value);
            }
        }
        Some(0.0) => {
            let pointers = columns.list(&column("colPtrs"));
            let indices = columns.list(&column("rowIndices"));
            if pointers.len() != lines + 1 || indices.len() != values.len() {
                return Err(damaged(format!("{path} has not as many parts as it says")));
            }
            for (line, ends) in pointers.windows(2).enumerate() {
                let [start, end] = ends else { continue };
                let range = index(*start)..index(*end);
                let entries = indices.get(range.clone()).zip(values.get(range));
                let (indices, values) =
                    entries.ok_or_else(|| damaged(format!("{path} points outside")))?;
                for (at, value) in indices.iter().zip(values) {
                    let at = index(*at);
                    if at >= length {
                        return Err(damaged(format!("{path} points outside")));
                    }
                    put(line, at, *value);
                }
            }
        }
        _ => return Err(damaged(format!("{path} is no matrix"))),
    }
    Ok((dense, rows, width))
}

fn fill(dense: &mut [f64], indices: &[f64], values: &[f64], path: &str) -> Result<()> {
    if indices.len() != values.len() {
        return Err(damaged(format!("{path} has not as many values as indices")));
    }
    for (at, value) in indices.iter().zip(values) {
        match dense.get_mut(index(*at)) {
            Some(slot) => *slot = *value,
            None => return Err(damaged(format!("{path} points outside"))),
        }
    }
    Ok(())
}

/// An index that was a 32-bit integer; beyond everything if it was negative.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn index(number: f64) -> usize {
    if number >= 0.0 { number as usize } else { usize::MAX }
}

/// A number of things that a column says.
pub(super) fn size(columns: &Columns, path: &str) -> Result<usize> {
    let size = columns.number(path).map(index).filter(|size| *size <= MAX_COEFFICIENTS);
    size.ok_or_else(|| damaged(format!("{path} is no size")))
}

fn zeros(count: usize, path: &str) -> Result<Vec<f64>> {
    if count > MAX_COEFFICIENTS {
        let message = format!("{path} has {count} numbers, more than {MAX_COEFFICIENTS}");
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(vec![0.0; count])
}
