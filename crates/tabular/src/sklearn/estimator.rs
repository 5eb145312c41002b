//! An estimator as it was pickled: its class, and its attributes as the numbers they should be.

use std::cell::Cell;

use crate::pickle::{NumpyArray, Pickle, PickleNode, PickleValue, dtype_kind};
use tensorserve_tensor::error::{Code, Error, Result};

/// How deep estimators may hold estimators.
const MOST_DEPTH: usize = 16;

/// What is read of one pickle.
pub(super) struct Source {
    /// How many numbers may yet be taken out of it. Shared values can be taken many times, which
    /// would make gigabytes of a small file.
    left: Cell<usize>,
}

impl Source {
    pub(super) fn new(pickle: &Pickle) -> Self {
        let left = pickle.byte_len().saturating_mul(4).saturating_add(1 << 16);
        Source { left: Cell::new(left) }
    }
}

/// An estimator of scikit-learn's in a pickle.
#[derive(Clone, Copy)]
pub(super) struct Estimator<'a> {
    pub(super) value: PickleValue<'a>,
    source: &'a Source,
    depth: usize,
}

/// Numbers by rows.
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Vec<f64>,
    /// Whether it was a vector, which is read as one row.
    pub(super) is_vector: bool,
}

impl Matrix {
    /// The rows; none of a matrix without columns.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.columns.max(1))
    }
}

impl<'a> Estimator<'a> {
    pub(super) fn root(value: PickleValue<'a>, source: &'a Source) -> Self {
        Estimator { value, source, depth: 0 }
    }

    /// Its class without the module, which moved over time; of what is not scikit-learn's, the
    /// whole name, which is none that is known.
    pub(super) fn class(&self) -> &'a str {
        let class = self.value.class().unwrap_or("?");
        match class.strip_prefix("sklearn.") {
            Some(rest) => rest.rsplit_once('.').map_or(rest, |(_, name)| name),
            None => class,
        }
    }

    /// The estimator's file is damaged, or written by something else.
    pub(super) fn fault(&self, what: impl std::fmt::Display) -> Error {
        Error::new(Code::DataLoss, format!("{}: {what}", self.class()))
    }

    /// The estimator is sound, but this of it is not built.
    pub(super) fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        let class = self.class();
        let message = format!(
            "{class}: {what} is not supported; convert the model with skl2onnx and serve the ONNX \
             file"
        );
        Error::new(Code::Unimplemented, message)
    }

    /// Whether the scikit-learn that wrote it is older than `major.minor`; one that does not say
    /// is older than any.
    pub(super) fn is_older_than(&self, major: u32, minor: u32) -> bool {
        let version = self.value.attribute("_sklearn_version").and_then(PickleValue::text);
        let mut parts = version.unwrap_or("0").split('.').map(|part| part.parse().unwrap_or(0u32));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (major, minor)
    }

    /// The first of these attributes that it has and that is not `None`.
    pub(super) fn find(&self, names: &[&str]) -> Option<PickleValue<'a>> {
        let mut found = names.iter().filter_map(|name| self.value.attribute(name));
        found.find(|value| !value.is_none())
    }

    /// The first of these attributes that it has.
    pub(super) fn attribute(&self, names: &[&str]) -> Result<PickleValue<'a>> {
        self.find(names).ok_or_else(|| {
            let name = names.first().unwrap_or(&"?");
            self.fault(format_args!("it has no {name}: it has not been fitted, or is damaged"))
        })
    }

    fn wrong(&self, names: &[&str], value: PickleValue, wanted: &str) -> Error {
        let name = names.first().unwrap_or(&"?");
        self.fault(format_args!("{name} is {}, not {wanted}", value.type_name()))
    }

    /// A setting that is on or off.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.find(&[name]) {
            None => Ok(default),
            Some(value) => value.bool().ok_or_else(|| self.wrong(&[name], value, "a bool")),
        }
    }

    /// A setting that is text; empty if it is not there.
    pub(super) fn text(&self, name: &str) -> Result<&'a str> {
        match self.find(&[name]) {
            None => Ok(""),
            Some(value) => value.text().ok_or_else(|| self.wrong(&[name], value, "text")),
        }
    }

    pub(super) fn number(&self, names: &[&str]) -> Result<f64> {
        let value = self.attribute(names)?;
        value.float().ok_or_else(|| self.wrong(names, value, "a number"))
    }

    pub(super) fn count(&self, names: &[&str]) -> Result<usize> {
        let value = self.attribute(names)?;
        let count = value.int().and_then(|number| usize::try_from(number).ok());
        count.ok_or_else(|| self.wrong(names, value, "a whole number"))
    }

    /// Counts `amount` numbers as taken.
    pub(super) fn charge(&self, amount: usize) -> Result<()> {
        let left = self.source.left.get().checked_sub(amount);
        let left = left.ok_or_else(|| self.fault("it holds far more than its file"))?;
        self.source.left.set(left);
        Ok(())
    }

    /// Numbers of any shape, by rows.
    pub(super) fn numbers(&self, names: &[&str]) -> Result<(Vec<usize>, Vec<f64>)> {
        let value = self.attribute(names)?;
        let wrong = || self.wrong(names, value, "an array of numbers");
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

    /// Numbers in a row, or one number.
    pub(super) fn vector(&self, names: &[&str]) -> Result<Vec<f64>> {
        self.numbers(names).map(|(_, values)| values)
    }

    /// A vector of this length.
    pub(super) fn vector_of(&self, names: &[&str], length: usize) -> Result<Vec<f64>> {
        let vector = self.vector(names)?;
        if vector.len() != length {
            let (name, has) = (names.first().unwrap_or(&"?"), vector.len());
            return Err(self.fault(format_args!("{name} has {has} numbers, not {length}")));
        }
        Ok(vector)
    }

    /// Numbers by rows; a vector is one row.
    pub(super) fn matrix(&self, names: &[&str]) -> Result<Matrix> {
        let (shape, values) = self.numbers(names)?;
        let (rows, columns, is_vector) = match *shape {
            [] => (1, 1, true),
            [columns] => (1, columns, true),
            [rows, columns] => (rows, columns, false),
            _ => {
                let name = names.first().unwrap_or(&"?");
                return Err(self.fault(format_args!("{name} has more than two dimensions")));
            }
        };
        if columns == 0 {
            let name = names.first().unwrap_or(&"?");
            return Err(self.fault(format_args!("{name} has no column")));
        }
        Ok(Matrix { rows, columns, values, is_vector })
    }

    /// A matrix of `rows` rows and `columns` columns.
    pub(super) fn matrix_of(&self, names: &[&str], rows: usize, columns: usize) -> Result<Matrix> {
        let matrix = self.matrix(names)?;
        if (matrix.rows, matrix.columns) != (rows, columns) {
            let (name, is) = (names.first().unwrap_or(&"?"), (matrix.rows, matrix.columns));
            return Err(self.fault(format_args!("{name} is {is:?}, not {rows} by {columns}")));
        }
        Ok(matrix)
    }

    /// Another estimator, which this one holds.
    pub(super) fn child(&self, value: PickleValue<'a>) -> Result<Estimator<'a>> {
        let depth = self.depth + 1;
        if depth > MOST_DEPTH {
            return Err(self.fault(format_args!("estimators are nested deeper than {MOST_DEPTH}")));
        }
        // Its attributes are looked up one by one.
        let state = value.object().and_then(|object| object.state);
        let attributes = state.map_or(0, |state| value.other(state).entries().count());
        self.charge(1 + attributes / 8)?;
        Ok(Estimator { value, depth, ..*self })
    }

    /// The estimators of a list of them, or of an array.
    pub(super) fn children(&self, names: &[&str]) -> Result<Vec<Estimator<'a>>> {
        let value = self.attribute(names)?;
        let items = value.items().ok_or_else(|| self.wrong(names, value, "a list"))?;
        items.into_iter().map(|item| self.child(item)).collect()
    }

    /// How many columns it was fitted with, if it says so.
    pub(super) fn features(&self) -> Option<usize> {
        let value = self.find(&["n_features_in_", "n_features_", "n_features"])?;
        value.int().and_then(|count| usize::try_from(count).ok())
    }

    /// An array among its attributes as it is.
    pub(super) fn array(&self, names: &[&str]) -> Result<&'a NumpyArray> {
        let value = self.attribute(names)?;
        value.array().ok_or_else(|| self.wrong(names, value, "an array"))
    }

    /// The classes, in the order of probabilities.
    pub(super) fn labels(&self) -> Result<Labels> {
        // Some keep them in what makes numbers of labels.
        let binarizer = ["_label_binarizer", "label_binarizer_"];
        if self.find(&["classes_"]).is_none()
            && let Some(binarizer) = self.find(&binarizer)
        {
            return self.child(binarizer)?.labels();
        }
        let value = self.attribute(&["classes_"])?;
        self.labels_in(value)
    }

    #[allow(clippy::wildcard_enum_match_arm)] // Any other value is not what it should be.
    fn labels_in(&self, value: PickleValue<'a>) -> Result<Labels> {
        let wrong = || self.wrong(&["classes_"], value, "an array of numbers or text");
        let labels = match value.node() {
            PickleNode::Array(array) if array.kind() == dtype_kind::OBJECT => {
                return self.mixed_labels(&value.items().ok_or_else(wrong)?);
            }
            PickleNode::Array(array) => {
                self.charge(array.len())?;
                if array.shape().len() != 1 {
                    return Err(self.unsupported("a model of several outputs"));
                }
                match array.kind() {
                    dtype_kind::BOOL => Labels::Bools(array.i64s().ok_or_else(wrong)?),
                    dtype_kind::INT | dtype_kind::UINT => {
                        Labels::Ints(array.i64s().ok_or_else(wrong)?)
                    }
                    dtype_kind::FLOAT => Labels::Floats(array.f64s().ok_or_else(wrong)?),
                    _ => Labels::Texts(array.strings().ok_or_else(wrong)?),
                }
            }
            PickleNode::List(_) => {
                // One array of classes for each output, or a plain list.
                let items = value.items().ok_or_else(wrong)?;
                if items.iter().any(|item| item.array().is_some()) {
                    return Err(self.unsupported("a model of several outputs"));
                }
                return self.mixed_labels(&items);
            }
            _ => return Err(wrong()),
        };
        match labels.len() {
            0 => Err(self.fault("classes_ is empty")),
            _ => Ok(labels),
        }
    }

    fn mixed_labels(&self, items: &[PickleValue<'a>]) -> Result<Labels> {
        self.charge(items.len())?;
        let texts: Option<Vec<String>> =
            items.iter().map(|item| item.text().map(str::to_owned)).collect();
        if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
            let bytes = texts.iter().map(String::len).sum::<usize>();
            self.charge(bytes)?;
            return Ok(Labels::Texts(texts));
        }
        let ints: Option<Vec<i64>> = items.iter().map(|item| item.int()).collect();
        ints.filter(|ints| !ints.is_empty())
            .map(Labels::Ints)
            .ok_or_else(|| self.unsupported("a model whose classes are neither numbers nor text"))
    }
}

/// What the classes of a model are called.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Labels {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
    /// 0 or 1.
    Bools(Vec<i64>),
}

impl Labels {
    pub(super) fn len(&self) -> usize {
        match self {
            Labels::Ints(labels) | Labels::Bools(labels) => labels.len(),
            Labels::Floats(labels) => labels.len(),
            Labels::Texts(labels) => labels.len(),
        }
    }

    /// The first of them `count` whole numbers from 0 on.
    pub(super) fn counted(count: usize) -> Self {
        Labels::Ints((0..).take(count).collect())
    }
}
