//! The inputs of a model: one matrix if all features are numbers, else one input for each feature.

use super::document::CatboostDocument;
use super::hash;
use super::rows::RowBlock;
use tensorserve_tabular::matrix::count_rows;
use tensorserve_tabular::wrong_input_count;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape, Signature, Tensor, TensorSpec, aligned_vec};

/// The name of the matrix.
const DATA: &str = "data";

/// The most features.
const MAX_FEATURES: i32 = 1 << 24;

/// The inputs of a model.
pub(super) enum ModelInputs {
    /// The columns of the matrix that are features, the number of its columns, and their names, which are empty
    /// where the model does not know them.
    Matrix { columns: Vec<usize>, width: usize, names: Vec<String> },
    /// In the order of the signature.
    Features(Vec<FeatureInput>),
}

/// The input of a feature.
pub(super) struct FeatureInput {
    name: String,
    kind: FeatureKind,
}

/// Where the values of a feature go.
#[derive(Clone, Copy)]
pub(super) enum FeatureKind {
    /// To this column of numbers.
    Number(usize),
    /// To this column of categories.
    Category(usize),
}

/// The values of all inputs of a request.
pub(super) enum InputValues<'t> {
    Matrix { values: &'t [f64], columns: &'t [usize], width: usize },
    Features(Vec<(FeatureKind, CatboostInput<'t>)>),
}

/// The values of an input; a single one is that of every row.
pub(super) enum CatboostInput<'t> {
    Numbers(&'t [f64]),
    Texts(Vec<&'t [u8]>),
}

impl ModelInputs {
    pub(super) fn new(document: &CatboostDocument) -> Result<Self> {
        let flats = document.floats.iter().map(|feature| feature.flat);
        let largest = flats.clone().chain(document.categories.iter().map(|feature| feature.flat));
        let largest =
            largest.max().ok_or_else(|| Error::unsupported("the model has no features"))?;
        if largest > MAX_FEATURES || flats.clone().any(|flat| flat < 0) {
            return Err(Error::damaged("the index of a feature is out of range"));
        }
        if document.categories.is_empty() {
            let columns: Vec<usize> =
                flats.map(|flat| usize::try_from(flat).unwrap_or(0)).collect();
            let width = usize::try_from(largest).unwrap_or(0) + 1;
            let mut names = vec![String::new(); width];
            for (feature, column) in document.floats.iter().zip(&columns) {
                if let Some(name) = names.get_mut(*column) {
                    name.clone_from(&feature.name);
                }
            }
            if names.iter().all(String::is_empty) {
                names.clear();
            }
            return Ok(ModelInputs::Matrix { columns, width, names });
        }
        let numbers = document.floats.iter().map(|feature| (&feature.name, feature.flat));
        let categories = document.categories.iter().map(|feature| (&feature.name, feature.flat));
        let kinds = (0..document.floats.len()).map(FeatureKind::Number);
        let kinds = kinds.chain((0..document.categories.len()).map(FeatureKind::Category));
        let mut inputs = Vec::new();
        for ((name, flat), kind) in numbers.chain(categories).zip(kinds) {
            let name = if name.is_empty() { flat.to_string() } else { name.clone() };
            inputs.push(FeatureInput { name, kind });
        }
        inputs.sort_by(|a, b| a.name.cmp(&b.name));
        let mut pairs = inputs.iter().zip(inputs.iter().skip(1));
        if let Some((one, _)) = pairs.find(|(one, next)| one.name == next.name) {
            return Err(Error::unsupported(format!("two features have the name {:?}", one.name)));
        }
        Ok(ModelInputs::Features(inputs))
    }

    /// The signature with these outputs.
    pub(super) fn signature(&self, outputs: Vec<TensorSpec>) -> Result<Signature> {
        let features = match self {
            ModelInputs::Matrix { width, names, .. } => {
                let shape = [-1, i64::try_from(*width).unwrap_or(i64::MAX)];
                let data = TensorSpec::new(DATA, DType::Double, &shape).with_missing_values();
                return Ok(Signature::row_by_row(
                    vec![data.with_given_column_names(names, "")],
                    outputs,
                ));
            }
            ModelInputs::Features(features) => features,
        };
        let specs = features.iter().map(|feature| {
            let dtype = feature.kind.dtype();
            let spec = TensorSpec::new(&feature.name, dtype, &[-1]);
            // CatBoost refuses missing categories.
            if dtype == DType::Double { spec.with_missing_values() } else { spec }
        });
        let mut signature = Signature::row_by_row(specs.collect(), outputs);
        for feature in features.iter().filter(|feature| feature.kind.dtype() == DType::Double) {
            let mut missing = aligned_vec(1);
            missing.push(f64::NAN);
            let missing = Tensor::from_vec(Shape::vector(1), missing)?;
            signature.defaults.push((feature.name.clone(), missing));
        }
        Ok(signature)
    }

    /// The values of a request, and the number of its rows.
    pub(super) fn read<'t>(&'t self, inputs: &'t [Tensor]) -> Result<(InputValues<'t>, usize)> {
        match self {
            ModelInputs::Matrix { columns, width, names } => {
                let data = inputs.first().ok_or_else(|| Error::internal("no input"))?;
                let rows = count_rows(DATA, data, *width, names)?;
                let values = data.values().ok_or_else(|| wrong_dtype(DATA, data, DType::Double))?;
                Ok((InputValues::Matrix { values, columns, width: *width }, rows))
            }
            ModelInputs::Features(features) => read_features(features, inputs),
        }
    }
}

impl FeatureKind {
    fn dtype(self) -> DType {
        match self {
            FeatureKind::Number(_) => DType::Double,
            FeatureKind::Category(_) => DType::String,
        }
    }
}

fn wrong_dtype(name: &str, input: &Tensor, takes: DType) -> Error {
    let has = input.dtype();
    Error::invalid(format!("input {name:?} has the dtype {has}, and the model takes {takes}"))
}

fn read_features<'t>(
    features: &[FeatureInput],
    inputs: &'t [Tensor],
) -> Result<(InputValues<'t>, usize)> {
    if inputs.len() != features.len() {
        return Err(wrong_input_count(features.len(), inputs.len()));
    }
    let mut all = Vec::with_capacity(features.len());
    let mut count: Option<usize> = None;
    for (feature, input) in features.iter().zip(inputs) {
        let (name, shape) = (&feature.name, input.shape());
        if shape.rank() == 0 || !shape.row_dims().iter().all(|dim| *dim == 1) {
            return Err(Error::invalid(format!(
                "input {name:?} has the shape {shape:?}: send one value for each row"
            )));
        }
        let values = match feature.kind {
            FeatureKind::Number(_) => input.values().map(CatboostInput::Numbers),
            FeatureKind::Category(_) => {
                input.strings().map(|texts| CatboostInput::Texts(texts.iter().collect()))
            }
        };
        let values = values.ok_or_else(|| wrong_dtype(name, input, feature.kind.dtype()))?;
        let len = match &values {
            CatboostInput::Numbers(numbers) => numbers.len(),
            CatboostInput::Texts(texts) => texts.len(),
        };
        match count {
            None => count = Some(len),
            Some(rows) if len != rows => {
                return Err(Error::invalid(format!(
                    "input {name:?} has {len} values where another has {rows}: send one value for \
                     each row"
                )));
            }
            Some(_) => {}
        }
        all.push((feature.kind, values));
    }
    Ok((InputValues::Features(all), count.unwrap_or(0)))
}

impl InputValues<'_> {
    /// Writes `block.rows` rows from `first` on to `block`.
    #[allow(clippy::cast_possible_truncation)] // CatBoost's numbers are in single precision.
    pub(super) fn fill(&self, first: usize, block: &mut RowBlock) {
        let rows = block.rows;
        match self {
            InputValues::Matrix { values, columns, width } => {
                let values = values.get(first * width..).unwrap_or_default();
                for (to, from) in block.floats.chunks_exact_mut(rows).zip(columns.iter()) {
                    for (to, row) in to.iter_mut().zip(values.chunks_exact(*width)) {
                        *to = row.get(*from).copied().unwrap_or(f64::NAN) as f32;
                    }
                }
            }
            InputValues::Features(features) => {
                for (kind, values) in features {
                    match (kind, values) {
                        (FeatureKind::Number(column), CatboostInput::Numbers(numbers)) => {
                            let to = block.floats.get_mut(column * rows..).unwrap_or_default();
                            for (row, to) in to.iter_mut().take(rows).enumerate() {
                                *to = numbers.get(first + row).copied().unwrap_or(f64::NAN) as f32;
                            }
                        }
                        (FeatureKind::Category(column), CatboostInput::Texts(texts)) => {
                            let to = block.categories.get_mut(column * rows..).unwrap_or_default();
                            for (row, to) in to.iter_mut().take(rows).enumerate() {
                                *to =
                                    hash::category(texts.get(first + row).copied().unwrap_or(b""));
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}
