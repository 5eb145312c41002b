//! A pickled estimator: its class, and typed access to its attributes.

use std::cell::{Cell, RefCell};

use super::columns::TextTable;
use tensorserve_pickle::{NumpyArray, Pickle, PickleNode, PickleValue, dtype_kind};
pub(super) use tensorserve_tabular::labels::ClassLabels;
use tensorserve_tabular::version_numbers;
use tensorserve_tensor::error::{Error, Result};

/// How deep estimators may be nested.
const MAX_DEPTH: usize = 16;

/// How many numbers may be read for each byte of a pickle, and in addition to that.
const NUMBERS_PER_BYTE: usize = 4;
const MIN_NUMBERS: usize = 1 << 16;

/// Dictionary entries whose search costs as much as reading a number.
const ENTRIES_PER_NUMBER: usize = 8;

/// How many numbers may still be read from a pickle. Values that are shared can be read many times,
/// so a small file could expand to gigabytes.
pub(super) struct ReadBudget {
    left: Cell<usize>,
    /// The texts that are categories of the model.
    texts: RefCell<TextTable>,
}

impl ReadBudget {
    pub(super) fn new(pickle: &Pickle) -> Self {
        let left = pickle.byte_len().saturating_mul(NUMBERS_PER_BYTE).saturating_add(MIN_NUMBERS);
        ReadBudget { left: Cell::new(left), texts: RefCell::default() }
    }

    /// The texts that have been added.
    pub(super) fn into_texts(self) -> TextTable {
        self.texts.into_inner()
    }
}

/// An estimator in a pickle.
#[derive(Clone, Copy)]
pub(super) struct Estimator<'a> {
    pub(super) value: PickleValue<'a>,
    budget: &'a ReadBudget,
    depth: usize,
}

/// The first two numbers of a version, such as `1.9.1` or `1.10.dev0`.
/// A matrix attribute.
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// One row after the other.
    pub(super) values: Vec<f64>,
    /// Whether it is a vector, which is read as one row.
    pub(super) is_vector: bool,
}

impl Matrix {
    /// The rows; none if the matrix has no columns.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.columns.max(1))
    }
}

impl<'a> Estimator<'a> {
    pub(super) fn root(value: PickleValue<'a>, budget: &'a ReadBudget) -> Self {
        Estimator { value, budget, depth: 0 }
    }

    /// Its class without the module, which has changed between versions. For an object of another
    /// library, the full name, which matches no class of scikit-learn.
    pub(super) fn class(&self) -> &'a str {
        let class = self.value.class().unwrap_or("?");
        match class.strip_prefix("sklearn.") {
            Some(rest) => rest.rsplit_once('.').map_or(rest, |(_, name)| name),
            None => class,
        }
    }

    /// The error for an estimator that is damaged.
    pub(super) fn damaged(&self, what: impl std::fmt::Display) -> Error {
        Error::damaged(format!("{}: {what}", self.class()))
    }

    /// The error for a valid estimator of which `what` cannot be evaluated.
    pub(super) fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        let class = self.class();
        Error::unsupported(format!(
            "{class}: {what} is not supported; convert the model with skl2onnx and serve the ONNX \
             file, or run it in your own Python with runner = \"python\" (--runner python)"
        ))
    }

    /// Whether it was written by a scikit-learn older than `major.minor`. A version that is not
    /// recorded is older than any.
    pub(super) fn is_older_than(&self, major: u32, minor: u32) -> bool {
        let version = self.value.attribute("_sklearn_version").and_then(PickleValue::text);
        version_numbers(version.unwrap_or("0")) < (major, minor)
    }

    /// Whether it was written by this release of scikit-learn, such as `1.3.0`.
    pub(super) fn is_of_release(&self, release: &str) -> bool {
        let version = self.value.attribute("_sklearn_version").and_then(PickleValue::text);
        version == Some(release)
    }

    /// The first of the attributes `names` that is present and not `None`. Names differ between
    /// versions.
    pub(super) fn find(&self, names: &[&str]) -> Option<PickleValue<'a>> {
        let mut found = names.iter().filter_map(|name| self.value.attribute(name));
        found.find(|value| !value.is_none())
    }

    /// As [`Estimator::find`], for an attribute that must be present.
    pub(super) fn attribute(&self, names: &[&str]) -> Result<PickleValue<'a>> {
        self.find(names).ok_or_else(|| {
            let name = shown(names);
            self.damaged(format_args!(
                "{name} is missing: the estimator is not fitted, or is damaged"
            ))
        })
    }

    /// The error for an attribute that is not `expected`.
    fn wrong_type(&self, names: &[&str], value: PickleValue, expected: &str) -> Error {
        let (name, found) = (shown(names), value.type_name());
        self.damaged(format_args!("{name} is {found}, not {expected}"))
    }

    /// A boolean parameter.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.find(&[name]) {
            None => Ok(default),
            Some(value) => value.bool().ok_or_else(|| self.wrong_type(&[name], value, "a bool")),
        }
    }

    /// A text parameter; empty if it is not present.
    pub(super) fn text(&self, name: &str) -> Result<&'a str> {
        match self.find(&[name]) {
            None => Ok(""),
            Some(value) => value.text().ok_or_else(|| self.wrong_type(&[name], value, "a string")),
        }
    }

    /// A number.
    pub(super) fn number(&self, names: &[&str]) -> Result<f64> {
        let value = self.attribute(names)?;
        value.float().ok_or_else(|| self.wrong_type(names, value, "a number"))
    }

    /// A number that is a count.
    pub(super) fn count(&self, names: &[&str]) -> Result<usize> {
        let value = self.attribute(names)?;
        let count = value.int().and_then(|number| usize::try_from(number).ok());
        count.ok_or_else(|| self.wrong_type(names, value, "a count"))
    }

    /// A number; `None` if it is not present.
    pub(super) fn optional_number(&self, names: &[&str]) -> Result<Option<f64>> {
        self.find(names).map(|_| self.number(names)).transpose()
    }

    /// Takes `amount` numbers from the budget for reading.
    pub(super) fn charge(&self, amount: usize) -> Result<()> {
        let left = self.budget.left.get().checked_sub(amount);
        let left = left.ok_or_else(|| {
            self.damaged("the model expands to far more data than its file allows")
        })?;
        self.budget.left.set(left);
        Ok(())
    }

    /// The number that stands for `text` in a column of texts.
    pub(super) fn text_number(&self, text: &str) -> Result<f64> {
        self.charge(1 + text.len() / size_of::<f64>())?;
        Ok(self.budget.texts.borrow_mut().add(text))
    }

    /// Numbers of any shape: the shape, and the numbers in row-major order.
    pub(super) fn numbers(&self, names: &[&str]) -> Result<(Vec<usize>, Vec<f64>)> {
        let value = self.attribute(names)?;
        let wrong = || self.wrong_type(names, value, "an array of numbers");
        if let Some(array) = value.array().filter(|array| array.kind() != dtype_kind::OBJECT) {
            self.charge(array.len())?;
            return Ok((array.shape().to_vec(), array.f64s().ok_or_else(wrong)?));
        }
        if let Some(number) = value.float() {
            return Ok((Vec::new(), vec![number]));
        }
        let items = value.items().ok_or_else(wrong)?;
        self.charge(items.len())?;
        let numbers: Option<Vec<f64>> = items.into_iter().map(PickleValue::float).collect();
        let numbers = numbers.ok_or_else(wrong)?;
        Ok((vec![numbers.len()], numbers))
    }

    /// A vector; a single number is one of length 1.
    pub(super) fn vector(&self, names: &[&str]) -> Result<Vec<f64>> {
        self.numbers(names).map(|(_, values)| values)
    }

    /// A vector; `None` if it is not present.
    pub(super) fn optional_vector(&self, names: &[&str]) -> Result<Option<Vec<f64>>> {
        self.find(names).map(|_| self.vector(names)).transpose()
    }

    /// A vector of this length.
    pub(super) fn vector_of_len(&self, names: &[&str], length: usize) -> Result<Vec<f64>> {
        let vector = self.vector(names)?;
        if vector.len() != length {
            let (name, has) = (shown(names), vector.len());
            return Err(self.damaged(format_args!("{name} has {has} elements, not {length}")));
        }
        Ok(vector)
    }

    /// A matrix; a vector is one of a single row.
    pub(super) fn matrix(&self, names: &[&str]) -> Result<Matrix> {
        if self.has_sparse(names) {
            return self.dense_of_sparse(names);
        }
        let (shape, values) = self.numbers(names)?;
        let (rows, columns, is_vector) = match *shape {
            [] => (1, 1, true),
            [columns] => (1, columns, true),
            [rows, columns] => (rows, columns, false),
            _ => {
                let name = shown(names);
                return Err(self.damaged(format_args!("{name} has more than two dimensions")));
            }
        };
        if columns == 0 {
            return Err(self.damaged(format_args!("{} has no columns", shown(names))));
        }
        Ok(Matrix { rows, columns, values, is_vector })
    }

    /// A matrix of `rows` rows and `columns` columns.
    pub(super) fn matrix_of_shape(
        &self,
        names: &[&str],
        rows: usize,
        columns: usize,
    ) -> Result<Matrix> {
        let matrix = self.matrix(names)?;
        if (matrix.rows, matrix.columns) != (rows, columns) {
            let (name, has) = (shown(names), (matrix.rows, matrix.columns));
            return Err(
                self.damaged(format_args!("{name} has the shape {has:?}, not ({rows}, {columns})"))
            );
        }
        Ok(matrix)
    }

    /// An estimator that this one contains.
    pub(super) fn child(&self, value: PickleValue<'a>) -> Result<Estimator<'a>> {
        let depth = self.depth + 1;
        if depth > MAX_DEPTH {
            return Err(self
                .damaged(format_args!("estimators are nested more than {MAX_DEPTH} levels deep")));
        }
        // The search for an attribute takes time in proportion to their number.
        let state = value.object().and_then(|object| object.state);
        let attributes = state.map_or(0, |state| value.other(state).entries().count());
        self.charge(1 + attributes / ENTRIES_PER_NUMBER)?;
        Estimator { value, depth, ..*self }.unfrozen()
    }

    /// The estimator in a `FrozenEstimator`, which does what that one does; else itself.
    pub(super) fn unfrozen(self) -> Result<Self> {
        match self.class() {
            "FrozenEstimator" => self.child(self.attribute(&["estimator"])?),
            _ => Ok(self),
        }
    }

    /// The estimators in a list or an array.
    pub(super) fn children(&self, names: &[&str]) -> Result<Vec<Estimator<'a>>> {
        let value = self.attribute(names)?;
        let items = value.items().ok_or_else(|| self.wrong_type(names, value, "a list"))?;
        items.into_iter().map(|item| self.child(item)).collect()
    }

    /// The number of features that it was fitted with, if it is recorded.
    pub(super) fn features(&self) -> Option<usize> {
        let value = self.find(&["n_features_in_", "n_features_", "n_features"])?;
        value.int().and_then(|count| usize::try_from(count).ok())
    }

    /// The names of the features, if it was fitted on a data frame. A pipeline or a union has those of
    /// its first step, a search those of the best estimator.
    pub(super) fn feature_names(&self) -> Result<Option<Vec<String>>> {
        if let Some(value) = self.find(&["feature_names_in_"]) {
            return self.texts(value);
        }
        if self.class() == "DictVectorizer" {
            return self.key_names().map(Some);
        }
        if let Some(best) = self.find(&["best_estimator_"]) {
            return self.child(best)?.feature_names();
        }
        for list in ["steps", "transformer_list"] {
            let Some(steps) = self.find(&[list]).and_then(PickleValue::items) else { continue };
            for step in steps {
                let inner = step.items().and_then(|parts| parts.get(1).copied());
                let Some(inner) = inner.filter(|inner| inner.object().is_some()) else { continue };
                return self.child(inner)?.feature_names();
            }
        }
        Ok(None)
    }

    /// The texts of an array; `None` if they are not distinct texts.
    fn texts(&self, value: PickleValue<'a>) -> Result<Option<Vec<String>>> {
        let texts: Option<Vec<String>> = match value.array().map(NumpyArray::kind) {
            Some(dtype_kind::TEXT) => value.array().and_then(NumpyArray::strings),
            _ => value.items().and_then(|items| {
                items.into_iter().map(|item| item.text().map(str::to_owned)).collect()
            }),
        };
        let Some(texts) = texts else { return Ok(None) };
        self.charge(texts.iter().map(String::len).sum())?;
        let distinct: std::collections::HashSet<&String> = texts.iter().collect();
        let are_distinct = distinct.len() == texts.len();
        Ok(Some(texts).filter(|_| are_distinct))
    }

    /// A NumPy array.
    pub(super) fn array(&self, names: &[&str]) -> Result<&'a NumpyArray> {
        let value = self.attribute(names)?;
        value.array().ok_or_else(|| self.wrong_type(names, value, "an array"))
    }

    /// The labels of the classes, in the order of the scores.
    pub(super) fn labels(&self) -> Result<ClassLabels> {
        // Some estimators have them in a label binarizer.
        let binarizer = ["_label_binarizer", "label_binarizer_"];
        if self.find(&["classes_"]).is_none()
            && let Some(binarizer) = self.find(&binarizer)
        {
            return self.child(binarizer)?.labels();
        }
        let value = self.attribute(&["classes_"])?;
        self.labels_in(value)
    }

    /// The labels of the classes of each output; `None` if there is one output only.
    pub(super) fn labels_by_output(&self) -> Result<Option<Vec<ClassLabels>>> {
        let Some(value) = self.find(&["classes_"]) else { return Ok(None) };
        let PickleNode::List(_) = value.node() else { return Ok(None) };
        let items = value.items().unwrap_or_default();
        if !items.iter().any(|item| item.array().is_some()) {
            return Ok(None);
        }
        items.into_iter().map(|item| self.labels_in(item)).collect::<Result<_>>().map(Some)
    }

    /// Refuses labels of different types.
    pub(super) fn check_types(&self, labels: &[ClassLabels]) -> Result<()> {
        let mut types = labels.iter().map(ClassLabels::dtype);
        let first = types.next();
        match types.all(|dtype| Some(dtype) == first) {
            true => Ok(()),
            false => Err(self.unsupported("outputs whose classes differ in type")),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm)] // All other nodes are of a wrong type.
    fn labels_in(&self, value: PickleValue<'a>) -> Result<ClassLabels> {
        let wrong = || self.wrong_type(&["classes_"], value, "an array of numbers or strings");
        let labels = match value.node() {
            PickleNode::Array(array) if array.kind() == dtype_kind::OBJECT => {
                return self.object_labels(&value.items().ok_or_else(wrong)?);
            }
            PickleNode::Array(array) => {
                self.charge(array.len())?;
                if array.shape().len() != 1 {
                    return Err(self.unsupported("a classifier with several outputs"));
                }
                ClassLabels::of_array(array).ok_or_else(wrong)?
            }
            PickleNode::List(_) => {
                // An array for each of several outputs, or a list of labels.
                let items = value.items().ok_or_else(wrong)?;
                if items.iter().any(|item| item.array().is_some()) {
                    return Err(self.unsupported("a classifier with several outputs"));
                }
                return self.object_labels(&items);
            }
            _ => return Err(wrong()),
        };
        match labels.len() {
            0 => Err(self.damaged("classes_ is empty")),
            _ => Ok(labels),
        }
    }

    /// Labels that are Python objects.
    fn object_labels(&self, items: &[PickleValue<'a>]) -> Result<ClassLabels> {
        self.charge(items.len())?;
        let labels = ClassLabels::of_objects(items).ok_or_else(|| {
            self.unsupported("a classifier whose classes are neither numbers nor strings")
        })?;
        self.charge(labels.text_bytes())?;
        Ok(labels)
    }
}

/// The name of an attribute in an error: the first of its names, that of the latest version.
fn shown<'n>(names: &[&'n str]) -> &'n str {
    names.first().copied().unwrap_or("?")
}
