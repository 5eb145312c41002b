//! `OneHotEncoder` and `OrdinalEncoder`, of categories that are numbers.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::model::{FeatureRows, Transformer};
use crate::pickle::{PickleValue, dtype_kind};
use tensorserve_tensor::error::{Error, Result};

/// The categories of a column in ascending order, NaN last.
struct Categories {
    numbers: Vec<f64>,
    /// How many there are before NaN.
    ordered: usize,
}

impl Categories {
    /// The index of the category `value`.
    fn find(&self, value: f64) -> Option<usize> {
        if value.is_nan() {
            return (self.ordered < self.numbers.len()).then_some(self.ordered);
        }
        let ordered = self.numbers.get(..self.ordered)?;
        let index = ordered.partition_point(|number| *number < value);
        (ordered.get(index) == Some(&value)).then_some(index)
    }
}

/// What an encoder does with a value that is not one of its categories.
#[derive(Clone, Copy)]
enum UnknownCategory {
    Refuse,
    /// Encodes it as all zeros.
    Ignore,
    EncodeAs(f64),
}

fn unknown_category(column: usize, value: f64, row: usize) -> Error {
    Error::invalid(format!(
        "input \"data\": the value {value}, in row {row} and column {column} of an encoder, is not \
         one of the categories that the model was fitted with"
    ))
}

fn read_categories(estimator: &Estimator) -> Result<Vec<Categories>> {
    for setting in ["min_frequency", "max_categories"] {
        if estimator.find(&[setting]).is_some() {
            return Err(estimator.unsupported(format_args!("{setting}")));
        }
    }
    if estimator.find(&["categories_"]).is_none() {
        return Err(estimator.unsupported("one written by scikit-learn before 0.20"));
    }
    let mut all = Vec::new();
    for column in estimator.children(&["categories_"])? {
        all.push(read_column(estimator, column.value)?);
    }
    if all.is_empty() {
        return Err(estimator.damaged("categories_ is empty"));
    }
    Ok(all)
}

/// The categories of one column.
fn read_column(estimator: &Estimator, column: PickleValue) -> Result<Categories> {
    let wrong = || estimator.unsupported("a column of categories that are not numbers");
    let array = column.array().ok_or_else(wrong)?;
    estimator.charge(array.len())?;
    let numbers: Option<Vec<f64>> = match array.kind() {
        dtype_kind::OBJECT => {
            column.items().and_then(|items| items.into_iter().map(PickleValue::float).collect())
        }
        _ => array.f64s(),
    };
    let numbers = numbers.ok_or_else(wrong)?;
    let ordered = numbers.iter().take_while(|number| !number.is_nan()).count();
    let is_sorted = numbers.get(..ordered).is_some_and(|numbers| numbers.is_sorted());
    if !is_sorted || numbers.len() > ordered + 1 {
        return Err(estimator.unsupported("a column of categories that are not sorted"));
    }
    Ok(Categories { numbers, ordered })
}

/// Makes a column of each category: 1 where the value is that category, else 0.
struct OneHotEncoder {
    columns: Vec<Categories>,
    /// For each column, the category that gets no column.
    dropped: Vec<Option<usize>>,
    unknown: UnknownCategory,
    output: usize,
}

impl Transformer for OneHotEncoder {
    fn input(&self) -> usize {
        self.columns.len()
    }

    fn output(&self) -> usize {
        self.output
    }

    fn accepts(&self) -> AcceptedValues {
        AcceptedValues::FiniteOrNan
    }

    fn can_fail(&self) -> bool {
        matches!(self.unknown, UnknownCategory::Refuse)
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.fill(0.0);
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(self.output)).enumerate() {
            let mut start = 0;
            let columns = row.iter().zip(&self.columns).zip(&self.dropped).enumerate();
            for (column, ((value, categories), dropped)) in columns {
                let index = categories.find(*value);
                if index.is_none() && self.can_fail() {
                    return Err(unknown_category(column, *value, rows.first_row + number));
                }
                let index = index.filter(|index| Some(*index) != *dropped);
                let index = index.map(|index| {
                    let is_behind = dropped.is_some_and(|dropped| dropped < index);
                    start + index - usize::from(is_behind)
                });
                if let Some(to) = index.and_then(|index| to.get_mut(index)) {
                    *to = 1.0;
                }
                start += categories.numbers.len() - usize::from(dropped.is_some());
            }
        }
        Ok(())
    }
}

/// Reads a `OneHotEncoder`.
pub(super) fn one_hot(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let columns = read_categories(estimator)?;
    let unknown = match estimator.text("handle_unknown")? {
        "error" | "" => UnknownCategory::Refuse,
        _ => UnknownCategory::Ignore,
    };
    let dropped = match estimator.find(&["drop_idx_"]) {
        None => vec![None; columns.len()],
        Some(value) => read_dropped(estimator, value, &columns)?,
    };
    let output = columns
        .iter()
        .zip(&dropped)
        .map(|(column, dropped)| column.numbers.len() - usize::from(dropped.is_some()))
        .sum();
    if output == 0 {
        return Err(estimator.damaged("it makes no columns"));
    }
    Ok(Box::new(OneHotEncoder { columns, dropped, unknown, output }))
}

/// The category of each column that gets no column.
fn read_dropped(
    estimator: &Estimator,
    value: PickleValue,
    columns: &[Categories],
) -> Result<Vec<Option<usize>>> {
    let wrong = || estimator.damaged("drop_idx_ is not one category for each column");
    let array = value.array().ok_or_else(wrong)?;
    estimator.charge(array.len())?;
    let indices: Vec<Option<i64>> = match value.items() {
        Some(items) => items.into_iter().map(PickleValue::int).collect(),
        None => array.i64s().ok_or_else(wrong)?.into_iter().map(Some).collect(),
    };
    if indices.len() != columns.len() {
        return Err(wrong());
    }
    let mut dropped = Vec::with_capacity(columns.len());
    for (index, column) in indices.into_iter().zip(columns) {
        let index = index.map(|index| usize::try_from(index).map_err(|_| wrong())).transpose()?;
        if index.is_some_and(|index| index >= column.numbers.len()) {
            return Err(wrong());
        }
        dropped.push(index);
    }
    Ok(dropped)
}

/// Replaces each value by the index of its category.
struct OrdinalEncoder {
    columns: Vec<Categories>,
    unknown: UnknownCategory,
    /// The code of NaN.
    missing: f64,
}

impl Transformer for OrdinalEncoder {
    fn input(&self) -> usize {
        self.columns.len()
    }

    fn output(&self) -> usize {
        self.columns.len()
    }

    fn accepts(&self) -> AcceptedValues {
        AcceptedValues::FiniteOrNan
    }

    fn can_fail(&self) -> bool {
        matches!(self.unknown, UnknownCategory::Refuse)
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(rows.columns)).enumerate() {
            let columns = row.iter().zip(to).zip(&self.columns).enumerate();
            for (column, ((value, to), categories)) in columns {
                *to = match (categories.find(*value), self.unknown) {
                    (Some(index), _) if index == categories.ordered => self.missing,
                    (Some(index), _) => index as f64,
                    (None, UnknownCategory::EncodeAs(code)) => code,
                    (None, UnknownCategory::Refuse | UnknownCategory::Ignore) => {
                        return Err(unknown_category(column, *value, rows.first_row + number));
                    }
                };
            }
        }
        Ok(())
    }
}

/// Reads an `OrdinalEncoder`.
pub(super) fn ordinal(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let unknown = match estimator.text("handle_unknown")? {
        "use_encoded_value" => UnknownCategory::EncodeAs(code(estimator, "unknown_value")?),
        _ => UnknownCategory::Refuse,
    };
    let missing = code(estimator, "encoded_missing_value")?;
    let columns = read_categories(estimator)?;
    Ok(Box::new(OrdinalEncoder { columns, unknown, missing }))
}

/// The parameter `name`; NaN if it is not set.
fn code(estimator: &Estimator, name: &str) -> Result<f64> {
    Ok(estimator.optional_number(&[name])?.unwrap_or(f64::NAN))
}
