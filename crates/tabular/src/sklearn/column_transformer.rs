//! `ColumnTransformer`: different transformers for different columns.

use super::accepted::{AcceptedValues, ValueCheck};
use super::compile;
use super::estimator::Estimator;
use super::model::{FeatureRows, Transformer, apply_steps};
use super::passthrough::Passthrough;
use crate::pickle::{PickleNode, PickleValue};
use tensorserve_tensor::error::Result;

/// Columns, and the transformers that are applied to them in turn.
struct ColumnGroup {
    columns: Vec<usize>,
    steps: Vec<Box<dyn Transformer>>,
    output: usize,
}

impl ColumnGroup {
    /// The columns of the group, in its order.
    fn select(&self, rows: FeatureRows) -> Vec<f64> {
        let mut values = Vec::with_capacity(rows.len() * self.columns.len());
        for row in rows.iter() {
            for column in &self.columns {
                values.push(row.get(*column).copied().unwrap_or(f64::NAN));
            }
        }
        values
    }
}

/// The outputs of all groups side by side.
struct ColumnTransformer {
    input: usize,
    groups: Vec<ColumnGroup>,
    output: usize,
}

impl Transformer for ColumnTransformer {
    fn input(&self) -> usize {
        self.input
    }

    fn output(&self) -> usize {
        self.output
    }

    fn accepts(&self) -> AcceptedValues {
        AcceptedValues::Any
    }

    fn can_fail(&self) -> bool {
        self.groups.iter().any(|group| group.steps.iter().any(|step| step.can_fail()))
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let mut start = 0;
        for group in &self.groups {
            let values = group.select(rows);
            let selected = FeatureRows { values: &values, columns: group.columns.len(), ..rows };
            let transformed = apply_steps(&group.steps, selected, ValueCheck::Enabled)?;
            let transformed = transformed.as_deref().unwrap_or(&values);
            let to = to.chunks_exact_mut(self.output);
            for (to, transformed) in to.zip(transformed.chunks_exact(group.output)) {
                if let Some(to) = to.get_mut(start..start + group.output) {
                    to.copy_from_slice(transformed);
                }
            }
            start += group.output;
        }
        Ok(())
    }
}

/// Reads a `ColumnTransformer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let input = estimator.features().filter(|features| *features > 0);
    let input =
        input.ok_or_else(|| estimator.unsupported("one written by scikit-learn before 0.24"))?;
    if estimator.find(&["transformer_weights"]).is_some() {
        return Err(estimator.unsupported("transformer_weights"));
    }
    let mut groups = Vec::new();
    for transformer in estimator.children(&["transformers_"])? {
        let wrong =
            || estimator.damaged("an element of transformers_ is not (name, transformer, columns)");
        let items = transformer.value.items().ok_or_else(wrong)?;
        let [name, inner, columns] = *items else { return Err(wrong()) };
        if inner.text() == Some("drop") {
            continue;
        }
        let columns = read_columns(estimator, input, name, columns)?;
        if columns.is_empty() {
            continue;
        }
        // The first step informs the others of the number of columns; it is then removed.
        let mut steps: Vec<Box<dyn Transformer>> = vec![Box::new(Passthrough(columns.len()))];
        if inner.text() != Some("passthrough") {
            compile::add_transformer(&estimator.child(inner)?, &mut steps)?;
        }
        steps.remove(0);
        let output = compile::output_width(estimator, columns.len(), &steps)?;
        groups.push(ColumnGroup { columns, steps, output });
    }
    let output = groups.iter().map(|group| group.output).sum();
    if output == 0 {
        return Err(estimator.damaged("it makes no columns"));
    }
    Ok(Box::new(ColumnTransformer { input, groups, output }))
}

/// The columns of the transformer `name`: those that fitting resolved, or else the `declared` ones.
fn read_columns(
    estimator: &Estimator,
    input: usize,
    name: PickleValue,
    declared: PickleValue,
) -> Result<Vec<usize>> {
    let resolved = estimator.find(&["_transformer_to_input_indices"]);
    let resolved = resolved.and_then(|resolved| resolved.get(name.text()?));
    let columns = resolved.unwrap_or(declared);
    if matches!(columns.class(), Some("builtins.slice" | "__builtin__.slice")) {
        return Err(estimator.unsupported("columns as a slice, of scikit-learn before 1.0,"));
    }
    let numbers: Option<Vec<i64>> = match columns.array() {
        Some(array) => array.i64s(),
        None => columns.items().and_then(|items| items.into_iter().map(PickleValue::int).collect()),
    };
    let numbers = numbers.ok_or_else(|| {
        estimator.unsupported("columns given by name, of scikit-learn before 1.0,")
    })?;
    estimator.charge(numbers.len())?;
    if resolved.is_none() && is_mask(columns) {
        return Err(estimator.unsupported("columns as a mask, of scikit-learn before 1.0,"));
    }
    numbers.into_iter().map(|number| column_index(estimator, number, input)).collect()
}

/// Whether a list starts with a bool.
fn is_mask(columns: PickleValue) -> bool {
    let items = columns.items().unwrap_or_default();
    matches!(items.first().map(|item| item.node()), Some(PickleNode::Bool(_)))
}

/// The index of column `number` of `count`; a negative one counts from the end.
fn column_index(estimator: &Estimator, number: i64, count: usize) -> Result<usize> {
    let missing = || estimator.damaged(format_args!("it has no column {number}"));
    let size = i64::try_from(count).map_err(|_| missing())?;
    let number = if number < 0 { number.saturating_add(size) } else { number };
    usize::try_from(number).ok().filter(|column| *column < count).ok_or_else(missing)
}
