//! Signatures, which models declare, and the specs of their inputs and outputs.

use std::fmt;

use super::error::{Error, Result};
use super::{
    AlignedVec, DType, RowDependence, Shape, StringsBuilder, Tensor, aligned_vec, budget, concat,
};

/// The declared shape of an input or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredShape {
    /// Not declared (a `TensorInfo` without `tensor_shape`).
    Missing,
    /// Declared with an unknown rank.
    UnknownRank,
    /// The size of each dimension, -1 if unknown, and its name, mostly empty.
    Dims(Vec<(i64, String)>),
}

impl DeclaredShape {
    /// The size of each dimension, -1 if unknown; `None` if the rank is unknown.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<i64>> {
        match self {
            DeclaredShape::Dims(dims) => Some(dims.iter().map(|(size, _)| *size).collect()),
            DeclaredShape::Missing | DeclaredShape::UnknownRank => None,
        }
    }

    /// Whether the size of the 0-th dimension is unknown, which marks a batch dimension.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        matches!(self, DeclaredShape::Dims(dims) if dims.first().is_some_and(|(size, _)| *size == -1))
    }
}

impl fmt::Display for DeclaredShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sizes() {
            None => f.write_str("any rank"),
            Some(sizes) => {
                let texts: Vec<String> = sizes
                    .iter()
                    .map(|&size| if size < 0 { "?".into() } else { size.to_string() })
                    .collect();
                write!(f, "[{}]", texts.join(", "))
            }
        }
    }
}

/// Names of the three tensors of a sparse tensor in coordinate format (COO).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CooSparse {
    /// The tensor of the values.
    pub values: String,
    /// The tensor of the values' coordinates.
    pub indices: String,
    /// The tensor of the dense shape.
    pub dense_shape: String,
}

/// One input or output of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// The name that clients use.
    pub alias: String,
    /// The tensor of the graph, for example `serving_default_x:0`; empty for a sparse or composite
    /// tensor, which has several.
    pub tensor_name: String,
    /// The declared type's number in TensorFlow's `DataType`; reference types are kept.
    pub dtype_number: i32,
    /// The declared shape: a hint, because real models declare wrong shapes, except where
    /// [`Signature::exact_shapes`] is set.
    pub shape: DeclaredShape,
    /// Set if the model declares a sparse tensor, which clients cannot send as one value.
    pub sparse: Option<CooSparse>,
    /// Whether a value of this input may be missing, as in tables: clients send `null` in JSON and an empty
    /// field in CSV, and the model gets NaN or the empty string.
    pub takes_missing: bool,
    /// The texts of numbers, if its texts may be sent as numbers.
    pub number_texts: Option<NumberTexts>,
    /// Which numbers its integers stand for, if the model is quantised.
    pub quantization: Option<Quantization>,
    /// The names of the columns of a matrix, in their order, with empty ones for those that the model does not
    /// know; no names if it knows none.
    pub column_names: Vec<String>,
}

/// How numbers are written where a model compares their texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberTexts {
    /// `1`: all of them are integers.
    Integers,
    /// `1.0`, `0.5`: as Java writes doubles.
    Doubles,
}

/// How integers stand for numbers: the number is `scale * (value - zero_point)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantization {
    /// The difference of the numbers of two integers that follow each other.
    pub scale: f32,
    /// The integer that is 0.
    pub zero_point: i64,
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.zero_point < 0 { '+' } else { '-' };
        write!(f, "{} * (value {sign} {})", self.scale, self.zero_point.unsigned_abs())
    }
}

impl TensorSpec {
    /// The spec of a model without a TensorFlow graph: its tensor has the name that clients use.
    /// -1 in `sizes` is a dimension of unknown size.
    #[must_use]
    pub fn new(alias: impl Into<String>, dtype: DType, sizes: &[i64]) -> Self {
        let alias = alias.into();
        TensorSpec {
            tensor_name: alias.clone(),
            alias,
            dtype_number: dtype.number(),
            shape: DeclaredShape::Dims(sizes.iter().map(|&size| (size, String::new())).collect()),
            sparse: None,
            takes_missing: false,
            number_texts: None,
            quantization: None,
            column_names: Vec::new(),
        }
    }

    /// This spec for an input whose values may be missing.
    #[must_use]
    pub fn with_missing_values(self) -> Self {
        TensorSpec { takes_missing: true, ..self }
    }

    /// This spec for a matrix whose columns have these names.
    #[must_use]
    pub fn with_column_names(self, names: &[String]) -> Self {
        TensorSpec { column_names: names.to_vec(), ..self }
    }

    /// This spec for a matrix whose columns have these names, unless a library has made up all of them: each is empty,
    /// or `prefix` and its number.
    #[must_use]
    pub fn with_given_column_names(self, names: &[String], prefix: &str) -> Self {
        let is_made_up = |(at, name): (usize, &String)| {
            name.is_empty() || name.strip_prefix(prefix) == Some(at.to_string().as_str())
        };
        match names.iter().enumerate().all(is_made_up) {
            true => self,
            false => self.with_column_names(names),
        }
    }

    /// Whether it is a column of a table: one value for each row.
    #[must_use]
    pub fn is_column(&self) -> bool {
        matches!(&self.shape, DeclaredShape::Dims(dims) if matches!(dims.as_slice(), [(-1, _)]))
    }

    /// A column of one row whose value is missing: NaN or the empty string; `None` for other types.
    fn missing_row(&self) -> Result<Option<Tensor>> {
        let row = Shape::vector(1);
        match self.dtype() {
            Some(DType::Float) => Tensor::from_vec(row, one(f32::NAN)).map(Some),
            Some(DType::Double) => Tensor::from_vec(row, one(f64::NAN)).map(Some),
            Some(DType::String) => {
                let mut text = StringsBuilder::default();
                text.push_missing();
                Tensor::from_strings(row, text).map(Some)
            }
            Some(
                DType::Half
                | DType::BFloat16
                | DType::Int8
                | DType::Int16
                | DType::Int32
                | DType::Int64
                | DType::UInt8
                | DType::UInt16
                | DType::UInt32
                | DType::UInt64
                | DType::Bool
                | DType::Complex64
                | DType::Complex128,
            )
            | None => Ok(None),
        }
    }

    /// Why requests and responses cannot contain it as one value; `None` if they can.
    #[must_use]
    pub fn unsupported(&self) -> Option<&'static str> {
        if self.sparse.is_some() {
            return Some("is a sparse tensor, which is not supported");
        }
        let is_composite = self.tensor_name.is_empty();
        is_composite
            .then_some("is a composite tensor, such as a ragged one, which is not supported")
    }

    /// The element type; `None` if requests and responses cannot hold it.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        DType::from_number(self.dtype_number)
    }
}

fn one<T>(value: T) -> AlignedVec<T> {
    let mut values = aligned_vec(1);
    values.push(value);
    values
}

/// How image files are encoded for a model whose only input is a string tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageEncoding {
    /// The file's bytes.
    Raw,
    /// The bytes as URL-safe base64, which the graph decodes.
    Base64Url,
}

/// A named function of a model: named inputs and named outputs.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The name that clients use, for example `serving_default`.
    pub name: String,
    /// `tensorflow/serving/predict`, `…/classify`, `…/regress` or another name that the model
    /// declares.
    pub method_name: String,
    /// Inputs, sorted by alias.
    pub inputs: Vec<TensorSpec>,
    /// Outputs, sorted by alias.
    pub outputs: Vec<TensorSpec>,
    /// Default values of optional inputs, by alias.
    pub defaults: Vec<(String, Tensor)>,
    /// How image uploads are encoded for its input.
    pub images: ImageEncoding,
    /// Whether its graph contains operations that decode images.
    pub takes_images: bool,
    /// Whether a run leaves the model's state unchanged, judging by its operations (no variable is
    /// assigned, no table or queue is written). Only such a signature is warmed up with synthetic
    /// inputs, batched by default, or run twice.
    pub read_only: bool,
    /// Whether a run gives the same outputs whenever it gets the same inputs, as long as no signature of
    /// the model changes its state: it draws no random numbers, and does not look at the time.
    pub repeatable: bool,
    /// Whether requests must have the declared ranks and sizes, and at least one row. Otherwise
    /// declared shapes are a hint. Set where the runtime would end the process for other shapes.
    pub exact_shapes: bool,
    /// The signature of the same model that takes each column of this one's matrix by its name, if there is
    /// one. Requests whose inputs have the names of columns are for that one.
    pub by_columns: Option<String>,
    /// Columns of the training data that the model does not use: requests may have them, and they are not
    /// read.
    pub unused_columns: Vec<String>,
    /// The values that an encoder of the model knows, by the alias of the input. It may refuse others.
    pub categories: Vec<(String, Vec<String>)>,
    /// Whether inputs that it does not declare are ignored where the reference servers ignore them, as they
    /// do for graphs of TensorFlow. Otherwise they are refused everywhere: a column with a mistake in its name
    /// must not count as one that is missing.
    pub ignores_unknown: bool,
    /// The shapes of inputs with which the model has run at its load, by alias, where its files do not declare
    /// them: a sample of a request has these.
    pub ran_with: Vec<(String, Vec<i64>)>,
    /// Whether each row of the outputs depends on the same row of the inputs alone.
    pub rows: RowDependence,
    /// Whether the sizes of the inputs bound the time of a run: what runs has no loop whose end depends on
    /// values, waits for nothing, and can be read. Any other run may never end.
    pub is_bounded: bool,
}

impl Signature {
    /// The only signature, `serving_default`, of a model without state. Nothing is said of its rows.
    #[must_use]
    pub fn only(mut inputs: Vec<TensorSpec>, mut outputs: Vec<TensorSpec>) -> Self {
        inputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        outputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        Signature {
            name: "serving_default".to_owned(),
            method_name: "tensorflow/serving/predict".to_owned(),
            inputs,
            outputs,
            defaults: Vec::new(),
            images: ImageEncoding::Raw,
            takes_images: false,
            read_only: true,
            repeatable: true,
            exact_shapes: false,
            by_columns: None,
            unused_columns: Vec::new(),
            categories: Vec::new(),
            ignores_unknown: false,
            ran_with: Vec::new(),
            rows: RowDependence::NoGraph,
            is_bounded: true,
        }
    }

    /// The shape of an input with which the model has run at its load, if that is known.
    #[must_use]
    pub fn shape_that_ran(&self, alias: &str) -> Option<&[i64]> {
        self.ran_with.iter().find(|(name, _)| name == alias).map(|(_, dims)| dims.as_slice())
    }

    /// The only signature of a model whose evaluator computes one row after the other.
    #[must_use]
    pub fn row_by_row(inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> Self {
        let rows = RowDependence::ByConstruction;
        Signature { rows, ..Signature::only(inputs, outputs) }
    }

    /// Whether a request may have an input `alias` that is not read.
    #[must_use]
    pub fn is_unused(&self, alias: &[u8]) -> bool {
        self.unused_columns.iter().any(|column| column.as_bytes() == alias)
    }

    /// The values that an encoder of the model knows for an input; none if any value is taken.
    #[must_use]
    pub fn categories_of(&self, alias: &str) -> &[String] {
        let found = self.categories.iter().find(|(name, _)| name == alias);
        found.map_or(&[], |(_, values)| values)
    }

    /// The value of an input that a request of `rows` rows does not have: its default, or missing values
    /// for a column of a table; `None` if the request must have it.
    ///
    /// # Errors
    /// If there is not enough memory for `rows` rows.
    pub fn absent_input(&self, spec: &TensorSpec, rows: usize) -> Result<Option<Tensor>> {
        let default = self.defaults.iter().find(|(alias, _)| *alias == spec.alias);
        let is_column = spec.takes_missing && spec.is_column();
        let value = match default {
            Some((_, value)) => Some(value.clone()),
            None if is_column => spec.missing_row()?,
            None => None,
        };
        let Some(value) = value.filter(|value| is_column && value.rows() == Some(1)) else {
            return Ok(default.map(|(_, value)| value.clone()));
        };
        match rows {
            0 => Ok(Some(value.slice_rows(0..0))),
            1 => Ok(Some(value)),
            _ => {
                budget::reserve(value.byte_len().saturating_mul(rows))?;
                concat(&[&value], rows).map(Some)
            }
        }
    }

    /// The index of the input with this alias.
    #[must_use]
    pub fn input(&self, alias: &str) -> Option<usize> {
        self.inputs.iter().position(|spec| spec.alias == alias)
    }

    /// Whether values of an input may be missing.
    #[must_use]
    pub fn takes_missing(&self) -> bool {
        self.inputs.iter().any(|spec| spec.takes_missing)
    }

    /// Checks the shapes of `inputs`, one for each input in order, if the signature insists on the
    /// declared ones.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::error::Code::InvalidArgument) for another rank, another size
    /// of a fixed dimension, or an input without rows.
    pub fn check_shapes(&self, inputs: &[Tensor]) -> Result<()> {
        if !self.exact_shapes {
            return Ok(());
        }
        for (spec, input) in self.inputs.iter().zip(inputs) {
            let Some(declared) = spec.shape.sizes() else {
                continue;
            };
            let (alias, shape, dims) = (&spec.alias, &spec.shape, input.shape().dims());
            let fits = |(size, dim): (&i64, &i64)| *size < 0 || size == dim;
            if declared.len() != dims.len() || !declared.iter().zip(dims).all(fits) {
                let given = input.shape();
                return Err(Error::invalid(format!(
                    "input {alias:?} must have the shape {shape}, not {given:?}"
                )));
            }
            if dims.contains(&0) && !declared.contains(&0) {
                let given = input.shape();
                return Err(Error::invalid(format!(
                    "input {alias:?} must not be empty: its shape is {given:?}; the model declares \
                     {shape}"
                )));
            }
        }
        Ok(())
    }

    /// Why the signature cannot be called: its first input or output that is not supported.
    #[must_use]
    pub fn unsupported(&self) -> Option<String> {
        let inputs = self.inputs.iter().map(|spec| ("input", spec));
        let mut all = inputs.chain(self.outputs.iter().map(|spec| ("output", spec)));
        all.find_map(|(kind, spec)| {
            Some(format!("{kind} {:?} {}", spec.alias, spec.unsupported()?))
        })
    }

    /// Whether every input and output declares a batch dimension, along which requests can be
    /// concatenated.
    #[must_use]
    pub fn is_batchable(&self) -> bool {
        let mut all = self.inputs.iter().chain(&self.outputs);
        !self.inputs.is_empty()
            && !self.outputs.is_empty()
            && all.all(|spec| spec.shape.is_batched() && spec.dtype().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, aligned_vec};

    fn zeros(dims: &[i64]) -> Tensor {
        let shape = Shape::new(dims).expect("valid");
        let mut zeros = aligned_vec::<f32>(0);
        zeros.resize(shape.elements().expect("small"), 0.0);
        Tensor::from_vec(shape, zeros).expect("a tensor")
    }

    #[test]
    fn shapes_are_checked_only_where_the_signature_insists_on_them() {
        let spec = TensorSpec::new("x", DType::Float, &[-1, 64, 1]);
        let mut signature = Signature::only(vec![spec], Vec::new());
        let wrong: [&[i64]; 6] = [&[], &[0], &[1, 64], &[1, 3], &[2, 63, 1], &[1, 64, 1, 1]];
        for dims in wrong {
            signature.exact_shapes = false;
            signature.check_shapes(&[zeros(dims)]).expect("a hint");
            signature.exact_shapes = true;
            let error = signature.check_shapes(&[zeros(dims)]).expect_err("refused");
            let given = Shape::new(dims).expect("valid");
            let message = format!("input \"x\" must have the shape [?, 64, 1], not {given:?}");
            assert_eq!(error.message(), message);
        }
        let error = signature.check_shapes(&[zeros(&[0, 64, 1])]).expect_err("refused");
        assert!(error.message().starts_with("input \"x\" must not be empty"), "{error}");
        signature.check_shapes(&[zeros(&[1, 64, 1])]).expect("as declared");
        signature.check_shapes(&[zeros(&[7, 64, 1])]).expect("as declared");
    }
}
