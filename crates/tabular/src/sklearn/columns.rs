//! Categories as numbers, and different transformers for different columns.

use super::compile;
use super::estimator::Estimator;
use super::model::{Rows, Takes, Transform};
use crate::pickle::{PickleNode, PickleValue, dtype_kind};
use tensorserve_tensor::error::{Error, Result};

/// Keeps columns as they are.
pub(super) struct Same(pub(super) usize);

impl Transform for Same {
    fn input(&self) -> usize {
        self.0
    }

    fn output(&self) -> usize {
        self.0
    }

    fn takes(&self) -> Takes {
        Takes::Anything
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        to.copy_from_slice(rows.values);
        Ok(())
    }
}

/// The categories of a column, in order, NaN last.
struct Categories {
    numbers: Vec<f64>,
    /// How many come before NaN.
    ordered: usize,
}

impl Categories {
    fn find(&self, value: f64) -> Option<usize> {
        if value.is_nan() {
            return (self.ordered < self.numbers.len()).then_some(self.ordered);
        }
        let ordered = self.numbers.get(..self.ordered)?;
        let place = ordered.partition_point(|number| *number < value);
        (ordered.get(place) == Some(&value)).then_some(place)
    }
}

/// What an encoder makes of a value that is none of its categories.
#[derive(Clone, Copy)]
enum Unknown {
    Refused,
    /// No category.
    Ignored,
    Number(f64),
}

fn unknown_value(column: usize, value: f64, row: usize) -> Error {
    Error::invalid(format!(
        "input data: row {row} leads to {value} in column {column} of an encoder, which is none of \
         the categories that the model knows"
    ))
}

fn categories(of: &Estimator) -> Result<Vec<Categories>> {
    for setting in ["min_frequency", "max_categories"] {
        if of.find(&[setting]).is_some() {
            return Err(of.unsupported(format_args!("{setting}")));
        }
    }
    if of.find(&["categories_"]).is_none() {
        return Err(of.unsupported("one without categories_, of a scikit-learn before 0.20,"));
    }
    let mut all = Vec::new();
    for column in of.children(&["categories_"])? {
        let wrong = || of.unsupported("a column of categories that are no numbers");
        let array = column.value.array().ok_or_else(wrong)?;
        of.charge(array.len())?;
        let numbers: Option<Vec<f64>> = match array.kind() {
            dtype_kind::OBJECT => column
                .value
                .items()
                .and_then(|items| items.into_iter().map(PickleValue::float).collect()),
            _ => array.f64s(),
        };
        let numbers = numbers.ok_or_else(wrong)?;
        let ordered = numbers.iter().take_while(|number| !number.is_nan()).count();
        let sorted = numbers.get(..ordered).is_some_and(|numbers| numbers.is_sorted());
        if !sorted || numbers.len() > ordered + 1 {
            return Err(of.unsupported("a column of categories that are not in order"));
        }
        all.push(Categories { numbers, ordered });
    }
    if all.is_empty() {
        return Err(of.fault("categories_ is empty"));
    }
    Ok(all)
}

/// A column for each category: 1 where it is that.
struct OneHot {
    columns: Vec<Categories>,
    /// For each column, the category that has none.
    dropped: Vec<Option<usize>>,
    unknown: Unknown,
    output: usize,
}

impl Transform for OneHot {
    fn input(&self) -> usize {
        self.columns.len()
    }

    fn output(&self) -> usize {
        self.output
    }

    fn takes(&self) -> Takes {
        Takes::Missing
    }

    fn refuses(&self) -> bool {
        matches!(self.unknown, Unknown::Refused)
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        to.fill(0.0);
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(self.output)).enumerate() {
            let mut start = 0;
            let columns = row.iter().zip(&self.columns).zip(&self.dropped).enumerate();
            for (column, ((value, categories), dropped)) in columns {
                let place = categories.find(*value);
                if place.is_none() && self.refuses() {
                    return Err(unknown_value(column, *value, rows.first + number));
                }
                let place = place.filter(|place| Some(*place) != *dropped);
                let behind = |place: usize| dropped.is_some_and(|dropped| dropped < place);
                let place = place.map(|place| start + place - usize::from(behind(place)));
                if let Some(to) = place.and_then(|place| to.get_mut(place)) {
                    *to = 1.0;
                }
                start += categories.numbers.len() - usize::from(dropped.is_some());
            }
        }
        Ok(())
    }
}

fn one_hot(of: &Estimator) -> Result<OneHot> {
    let columns = categories(of)?;
    let unknown = match of.text("handle_unknown")? {
        "error" | "" => Unknown::Refused,
        _ => Unknown::Ignored,
    };
    let mut dropped = vec![None; columns.len()];
    if let Some(value) = of.find(&["drop_idx_"]) {
        let wrong = || of.fault("drop_idx_ is not one category for each column");
        let array = value.array().ok_or_else(wrong)?;
        of.charge(array.len())?;
        let indices: Vec<Option<i64>> = match value.items() {
            Some(items) => items.into_iter().map(PickleValue::int).collect(),
            None => array.i64s().ok_or_else(wrong)?.into_iter().map(Some).collect(),
        };
        if indices.len() != columns.len() {
            return Err(wrong());
        }
        for ((dropped, index), column) in dropped.iter_mut().zip(indices).zip(&columns) {
            let index =
                index.map(|index| usize::try_from(index).map_err(|_| wrong())).transpose()?;
            if index.is_some_and(|index| index >= column.numbers.len()) {
                return Err(wrong());
            }
            *dropped = index;
        }
    }
    let sizes = columns.iter().zip(&dropped);
    let output =
        sizes.map(|(column, dropped)| column.numbers.len() - usize::from(dropped.is_some()));
    let output = output.sum();
    if output == 0 {
        return Err(of.fault("it makes no column"));
    }
    Ok(OneHot { columns, dropped, unknown, output })
}

/// The number of the category.
struct Ordinal {
    columns: Vec<Categories>,
    unknown: Unknown,
    missing: f64,
}

impl Transform for Ordinal {
    fn input(&self) -> usize {
        self.columns.len()
    }

    fn output(&self) -> usize {
        self.columns.len()
    }

    fn takes(&self) -> Takes {
        Takes::Missing
    }

    fn refuses(&self) -> bool {
        matches!(self.unknown, Unknown::Refused)
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(rows.columns)).enumerate() {
            let columns = row.iter().zip(to).zip(&self.columns).enumerate();
            for (column, ((value, to), categories)) in columns {
                *to = match (categories.find(*value), self.unknown) {
                    (Some(place), _) if place == categories.ordered => self.missing,
                    (Some(place), _) => place as f64,
                    (None, Unknown::Number(number)) => number,
                    (None, Unknown::Refused | Unknown::Ignored) => {
                        return Err(unknown_value(column, *value, rows.first + number));
                    }
                };
            }
        }
        Ok(())
    }
}

fn ordinal(of: &Estimator) -> Result<Ordinal> {
    let number = |name: &str| of.find(&[name]).map(|_| of.number(&[name])).transpose();
    let unknown = match of.text("handle_unknown")? {
        "use_encoded_value" => Unknown::Number(number("unknown_value")?.unwrap_or(f64::NAN)),
        _ => Unknown::Refused,
    };
    let missing = number("encoded_missing_value")?.unwrap_or(f64::NAN);
    Ok(Ordinal { columns: categories(of)?, unknown, missing })
}

/// Some columns, and what is made of them.
struct Part {
    columns: Vec<usize>,
    steps: Vec<Box<dyn Transform>>,
    output: usize,
}

/// Different transformers for different columns, side by side.
struct Parts {
    input: usize,
    parts: Vec<Part>,
    output: usize,
}

impl Transform for Parts {
    fn input(&self) -> usize {
        self.input
    }

    fn output(&self) -> usize {
        self.output
    }

    fn takes(&self) -> Takes {
        Takes::Anything
    }

    fn refuses(&self) -> bool {
        self.parts.iter().any(|part| part.steps.iter().any(|step| step.refuses()))
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        let mut start = 0;
        for part in &self.parts {
            let pick = |row: &[f64], out: &mut Vec<f64>| {
                let value = |column: &usize| row.get(*column).copied().unwrap_or(f64::NAN);
                out.extend(part.columns.iter().map(value));
            };
            let mut values = Vec::with_capacity(rows.len() * part.columns.len());
            rows.iter().for_each(|row| pick(row, &mut values));
            let picked = Rows { values: &values, columns: part.columns.len(), ..rows };
            let made = super::model::through(&part.steps, picked, super::model::check)?;
            let made = made.as_deref().unwrap_or(&values);
            let to = to.chunks_exact_mut(self.output);
            for (to, made) in to.zip(made.chunks_exact(part.output)) {
                if let Some(to) = to.get_mut(start..start + part.output) {
                    to.copy_from_slice(made);
                }
            }
            start += part.output;
        }
        Ok(())
    }
}

fn column_transformer(of: &Estimator) -> Result<Parts> {
    let input = of.features().filter(|features| *features > 0);
    let input = input.ok_or_else(|| of.unsupported("one of a scikit-learn before 0.24"))?;
    if of.find(&["transformer_weights"]).is_some() {
        return Err(of.unsupported("transformer_weights"));
    }
    let mut parts = Vec::new();
    for transformer in of.children(&["transformers_"])? {
        let wrong = || of.fault("a transformer of it is no name, estimator and columns");
        let items = transformer.value.items().ok_or_else(wrong)?;
        let [name, estimator, columns] = *items else { return Err(wrong()) };
        if estimator.text() == Some("drop") {
            continue;
        }
        let columns = columns_of(of, input, name, columns)?;
        if columns.is_empty() {
            continue;
        }
        let mut steps: Vec<Box<dyn Transform>> = vec![Box::new(Same(columns.len()))];
        if estimator.text() != Some("passthrough") {
            compile::add(&of.child(estimator)?, &mut steps)?;
        }
        // It only told how many columns there are.
        steps.remove(0);
        let output = compile::connected(of, columns.len(), &steps)?;
        parts.push(Part { columns, steps, output });
    }
    let output = parts.iter().map(|part| part.output).sum();
    if output == 0 {
        return Err(of.fault("it makes no column"));
    }
    Ok(Parts { input, parts, output })
}

/// The columns that the transformer `name` takes: as the fitted estimator found them, or as they
/// were asked for.
fn columns_of(
    of: &Estimator,
    input: usize,
    name: PickleValue,
    asked: PickleValue,
) -> Result<Vec<usize>> {
    let wrong = || of.fault("the columns of a transformer of it are not there");
    let found = of.find(&["_transformer_to_input_indices"]);
    let found = found.and_then(|found| found.get(name.text()?));
    let asked = found.unwrap_or(asked);
    if asked.class() == Some("builtins.slice") || asked.class() == Some("__builtin__.slice") {
        return Err(of.unsupported("columns given as a slice, of a scikit-learn before 1.0,"));
    }
    let numbers: Option<Vec<i64>> = match asked.array() {
        Some(array) => array.i64s(),
        None => asked.items().and_then(|items| items.into_iter().map(PickleValue::int).collect()),
    };
    let unnamed = || of.unsupported("columns given by name, of a scikit-learn before 1.0,");
    let numbers = numbers.ok_or_else(unnamed)?;
    of.charge(numbers.len())?;
    let is_mask = found.is_none()
        && asked.items().is_some_and(|items| {
            matches!(items.first().map(|item| item.node()), Some(PickleNode::Bool(_)))
        });
    if is_mask {
        return Err(of.unsupported("columns given as bools, of a scikit-learn before 1.0,"));
    }
    let size = i64::try_from(input).map_err(|_| wrong())?;
    let column = |number: i64| {
        // Negative ones count from the end.
        let number = if number < 0 { number.saturating_add(size) } else { number };
        usize::try_from(number).ok().filter(|column| *column < input).ok_or_else(wrong)
    };
    numbers.into_iter().map(column).collect()
}

/// The transformer `of`, if it is one of these.
pub(super) fn read(of: &Estimator) -> Result<Option<Box<dyn Transform>>> {
    Ok(Some(match of.class() {
        "OneHotEncoder" => Box::new(one_hot(of)?),
        "OrdinalEncoder" => Box::new(ordinal(of)?),
        "ColumnTransformer" => Box::new(column_transformer(of)?),
        _ => return Ok(None),
    }))
}
