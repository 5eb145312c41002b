//! `DictVectorizer`: a column for each key, or for each text of a key. The keys are the columns that the
//! model takes.

use std::collections::HashMap;

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::sparse::SparseMatrix;
use tensorserve_pickle::PickleValue;
use tensorserve_tensor::error::Result;

/// What a key makes columns of.
enum KeyColumns {
    /// The column of its numbers.
    Number(u32),
    /// The column of each text, by the number of the text.
    Texts(HashMap<u64, u32>),
    /// Both.
    Mixed,
}

struct DictVectorizer {
    keys: Vec<KeyColumns>,
    output: usize,
    is_sparse_there: bool,
}

impl DictVectorizer {
    /// Calls `put` with each column that is not 0.
    fn columns(&self, row: &[f64], mut put: impl FnMut(u32, f64)) {
        for (value, key) in row.iter().zip(&self.keys) {
            match key {
                // A key that is not there is missing.
                KeyColumns::Number(column) if !value.is_nan() => put(*column, *value),
                KeyColumns::Texts(columns) => {
                    if let Some(column) = columns.get(&value.to_bits()) {
                        put(*column, 1.0);
                    }
                }
                KeyColumns::Number(_) | KeyColumns::Mixed => {}
            }
        }
    }
}

impl Transformer for DictVectorizer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.keys.len()).accepting(AcceptedValues::Any)
    }

    fn output(&self) -> usize {
        self.output
    }

    fn uses(&self, _: &[ColumnUse]) -> Vec<ColumnUse> {
        let of_key = |key: &KeyColumns| match key {
            KeyColumns::Number(_) => ColumnUse::Number,
            KeyColumns::Texts(_) => ColumnUse::Category,
            KeyColumns::Mixed => ColumnUse::Mixed,
        };
        self.keys.iter().map(of_key).collect()
    }

    fn makes_sparse(&self, _: bool) -> bool {
        true
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        self.is_sparse_there
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.fill(0.0);
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output.max(1))) {
            self.columns(row, |column, value| {
                if let Some(to) = to.get_mut(column as usize) {
                    *to = value;
                }
            });
        }
        Ok(())
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut to = SparseMatrix::new(self.output);
        for row in rows.iter() {
            self.columns(row, |column, value| to.push(column, value));
            to.end_unordered_row();
        }
        Ok(to)
    }
}

/// A key with its columns, and the text that each of them stands for; `None` for a number.
type DictionaryKey<'a> = (&'a str, Vec<(u32, Option<&'a str>)>);

impl<'a> Estimator<'a> {
    /// The keys of a `DictVectorizer`: the part before the separator of each feature's name, in the order of
    /// the features; each with the rest of the names, which is `None` for a number.
    fn keys(&self) -> Result<Vec<DictionaryKey<'a>>> {
        let names = self.attribute(&["feature_names_"])?;
        let names = names.items().ok_or_else(|| self.damaged("feature_names_ is not a list"))?;
        let separator = self.text("separator")?;
        let mut keys: Vec<DictionaryKey> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (column, name) in (0..).zip(names) {
            let name = PickleValue::text(name)
                .ok_or_else(|| self.unsupported("a key that is not a text"))?;
            self.charge(1 + name.len() / size_of::<f64>())?;
            let (key, text) = match name.split_once(separator) {
                Some((key, text)) if !separator.is_empty() => (key, Some(text)),
                _ => (name, None),
            };
            let place = *places.entry(key).or_insert(keys.len());
            match keys.get_mut(place) {
                Some((_, columns)) => columns.push((column, text)),
                None => keys.push((key, vec![(column, text)])),
            }
        }
        Ok(keys)
    }

    /// The names of the columns that a `DictVectorizer` takes: the keys.
    pub(super) fn key_names(&self) -> Result<Vec<String>> {
        Ok(self.keys()?.into_iter().map(|(key, _)| key.to_owned()).collect())
    }
}

/// Reads a `DictVectorizer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let (mut keys, mut output) = (Vec::new(), 0);
    for (_, columns) in estimator.keys()? {
        output += columns.len();
        let has_number = columns.iter().any(|(_, text)| text.is_none());
        keys.push(match *columns {
            [(column, None)] => KeyColumns::Number(column),
            _ if has_number => KeyColumns::Mixed,
            _ => {
                let mut texts = HashMap::with_capacity(columns.len());
                for (column, text) in &columns {
                    let number = estimator.text_number(text.unwrap_or_default())?;
                    texts.insert(number.to_bits(), *column);
                }
                KeyColumns::Texts(texts)
            }
        });
    }
    if keys.is_empty() {
        return Err(estimator.damaged("it makes no columns"));
    }
    let is_sparse_there = estimator.flag("sparse", true)?;
    Ok(Box::new(DictVectorizer { keys, output, is_sparse_there }))
}
