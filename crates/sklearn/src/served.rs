//! A model as it is served: its signatures, and the tensors of a request as rows of features.

use super::columns::{ColumnUse, TextTable};
use super::estimator::Estimator;
use super::executable::dimension;
use super::model::{FeatureRows, SklearnModel};
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Signature, Strings, Tensor, TensorSpec};

/// The name of the input that has all columns.
const DATA: &str = "data";

/// The name of the signature with one input for each column, if there is also one with a matrix.
const COLUMNS: &str = "columns";

/// One input of the signature that has an input for each column.
struct ColumnInput {
    name: String,
    /// The index of the feature.
    feature: usize,
    used: ColumnUse,
}

impl ColumnInput {
    fn dtype(&self) -> DType {
        match self.used {
            ColumnUse::Category | ColumnUse::Document => DType::String,
            ColumnUse::Unused | ColumnUse::Either | ColumnUse::Number | ColumnUse::Mixed => {
                DType::Double
            }
        }
    }
}

/// The inputs of a signature.
enum SignatureInputs {
    /// One matrix of numbers.
    Matrix,
    /// One input for each column that is used, sorted by name.
    Columns(Vec<ColumnInput>),
}

/// A model with its signatures.
pub(super) struct ServedEstimator {
    model: SklearnModel,
    texts: TextTable,
    /// The inputs of each signature, in the order of their names.
    inputs: Vec<SignatureInputs>,
    /// The names of all columns, in the order of the matrix; none if the model does not know them.
    names: Vec<String>,
    /// The names of columns that are not used.
    unused: Vec<String>,
}

impl ServedEstimator {
    /// Determines the signatures of the model of the estimator `root`.
    pub(super) fn new(root: &Estimator, model: SklearnModel) -> Result<Self> {
        let uses = model.uses();
        if uses.contains(&ColumnUse::Mixed) {
            return Err(root.unsupported("a column that is used both as a text and as a number"));
        }
        let names = root.feature_names()?.filter(|names| names.len() == uses.len());
        let has_texts =
            uses.iter().any(|used| matches!(used, ColumnUse::Category | ColumnUse::Document));
        let columns = || ColumnInput::all(names.as_deref(), &uses);
        let inputs = match (has_texts, &names) {
            (false, None) => vec![SignatureInputs::Matrix],
            (false, Some(_)) => vec![SignatureInputs::Columns(columns()), SignatureInputs::Matrix],
            (true, _) => vec![SignatureInputs::Columns(columns())],
        };
        let named = names.iter().flatten().zip(&uses);
        let unused = named.filter(|(_, used)| **used == ColumnUse::Unused);
        let unused = unused.map(|(name, _)| name.clone()).collect();
        let names = names.unwrap_or_default();
        Ok(ServedEstimator { model, texts: TextTable::default(), inputs, names, unused })
    }

    /// With the texts that the model knows.
    pub(super) fn with_texts(self, texts: TextTable) -> Self {
        ServedEstimator { texts, ..self }
    }

    /// The signatures, sorted by name. All have the same outputs.
    pub(super) fn signatures(&self) -> Vec<Signature> {
        let mut signatures = Vec::new();
        for inputs in &self.inputs {
            let specs = match inputs {
                SignatureInputs::Matrix => {
                    let shape = [-1, dimension(self.model.features())];
                    let data = TensorSpec::new(DATA, DType::Double, &shape).with_missing_values();
                    vec![data.with_column_names(&self.names)]
                }
                SignatureInputs::Columns(columns) => {
                    let spec = |column: &ColumnInput| {
                        TensorSpec::new(&*column.name, column.dtype(), &[-1]).with_missing_values()
                    };
                    columns.iter().map(spec).collect()
                }
            };
            let mut signature = Signature::row_by_row(specs, self.model.outputs());
            match inputs {
                SignatureInputs::Matrix if self.inputs.len() > 1 => {
                    signature.by_columns = Some(COLUMNS.to_owned());
                }
                SignatureInputs::Matrix => {}
                SignatureInputs::Columns(columns) => {
                    signature.unused_columns.clone_from(&self.unused);
                    signature.categories = self.categories(columns);
                    if self.inputs.len() > 1 {
                        COLUMNS.clone_into(&mut signature.name);
                    }
                }
            }
            signatures.push(signature);
        }
        signatures
    }

    /// The values that encoders know, by the name of the column.
    fn categories(&self, columns: &[ColumnInput]) -> Vec<(String, Vec<String>)> {
        let all = self.model.categories();
        let known = columns.iter().filter_map(|column| {
            let values = all.get(column.feature).filter(|values| !values.is_empty())?;
            Some((column.name.clone(), values.clone()))
        });
        known.collect()
    }

    /// Runs on a matrix of numbers.
    fn run_matrix(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let features = self.model.features();
        let [data] = inputs else {
            return Err(Error::invalid(format!("the model takes one input, {DATA:?}")));
        };
        let values = numbers(data, DATA)?;
        if data.shape().rank() != 2 || data.shape().row_dims() != [features as i64] {
            return Err(Error::invalid(format!(
                "input {DATA:?} has the shape {:?}, and the model takes rows of {features} numbers: \
                 [-1,{features}]",
                data.shape()
            )));
        }
        let rows = FeatureRows::dense(values, features);
        let predictions = self
            .model
            .predict(rows)
            .map_err(|error| error.context(format_args!("input {DATA:?}")))?;
        self.model.tensors(rows.len(), predictions)
    }

    /// Runs on one input for each of `columns`.
    fn run_columns(&self, columns: &[ColumnInput], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        if columns.len() != inputs.len() {
            let (have, need) = (inputs.len(), columns.len());
            return Err(Error::invalid(format!("the model takes {need} inputs, not {have}")));
        }
        let rows = count_rows(columns, inputs)?;
        let features = self.model.features();
        let mut values = vec![0.0; rows * features];
        let mut documents: Vec<&[u8]> = Vec::new();
        for (column, input) in columns.iter().zip(inputs) {
            let to = values.iter_mut().skip(column.feature).step_by(features.max(1));
            match column.used {
                ColumnUse::Document => {
                    for (to, text) in to.zip(texts(input, &column.name)?.iter()) {
                        *to = documents.len() as f64;
                        documents.push(text);
                    }
                }
                ColumnUse::Category => {
                    for (to, text) in to.zip(texts(input, &column.name)?.optional()) {
                        *to = text.map_or(f64::NAN, |text| self.texts.number(text));
                    }
                }
                ColumnUse::Unused | ColumnUse::Either | ColumnUse::Number | ColumnUse::Mixed => {
                    for (to, number) in to.zip(numbers(input, &column.name)?) {
                        *to = *number;
                    }
                }
            }
        }
        let rows = FeatureRows { documents: &documents, ..FeatureRows::dense(&values, features) };
        let predictions = self.model.predict(rows)?;
        self.model.tensors(rows.len(), predictions)
    }
}

impl ColumnInput {
    /// The columns that are used, sorted by name. Without names, they are called `x0`, `x1`, …, as
    /// scikit-learn calls them; a single one has the name of a matrix.
    fn all(names: Option<&[String]>, uses: &[ColumnUse]) -> Vec<ColumnInput> {
        let used = uses.iter().copied().enumerate();
        let mut columns: Vec<ColumnInput> = used
            .filter(|(_, used)| *used != ColumnUse::Unused)
            .map(|(feature, used)| {
                let name = names.and_then(|names| names.get(feature)).cloned();
                let name = name.unwrap_or_else(|| match uses.len() {
                    1 => DATA.to_owned(),
                    _ => format!("x{feature}"),
                });
                ColumnInput { name, feature, used }
            })
            .collect();
        columns.sort_by(|a, b| a.name.cmp(&b.name));
        columns
    }
}

/// The number of rows, which all inputs have.
fn count_rows(columns: &[ColumnInput], inputs: &[Tensor]) -> Result<usize> {
    let mut rows = None;
    for (column, input) in columns.iter().zip(inputs) {
        let name = &column.name;
        // A table of one column may come as a matrix.
        let ([count] | [count, 1]) = *input.shape().dims() else {
            return Err(Error::invalid(format!(
                "input {name:?} has the shape {:?}, and the model takes one value for each row: [-1]",
                input.shape()
            )));
        };
        if *rows.get_or_insert(count) != count {
            let first = columns.first().map_or("", |first| &first.name);
            return Err(Error::invalid(format!(
                "input {name:?} has {count} rows, and input {first:?} has {}",
                rows.unwrap_or(0)
            )));
        }
    }
    Ok(usize::try_from(rows.unwrap_or(0)).unwrap_or(0))
}

fn numbers<'t>(input: &'t Tensor, name: &str) -> Result<&'t [f64]> {
    input.values::<f64>().ok_or_else(|| wrong_dtype(input, name, DType::Double))
}

fn texts<'t>(input: &'t Tensor, name: &str) -> Result<&'t Strings> {
    input.strings().ok_or_else(|| wrong_dtype(input, name, DType::String))
}

fn wrong_dtype(input: &Tensor, name: &str, takes: DType) -> Error {
    let dtype = input.dtype();
    Error::invalid(format!("input {name:?} has the dtype {dtype}, and the model takes {takes}"))
}

impl Executable for ServedEstimator {
    fn run(&self, signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        match self.inputs.get(signature) {
            Some(SignatureInputs::Matrix) => self.run_matrix(inputs),
            Some(SignatureInputs::Columns(columns)) => self.run_columns(columns, inputs),
            None => Err(Error::internal(format!("the model has no signature number {signature}"))),
        }
    }
}
