//! `ColumnTransformer` and `FeatureUnion`: several transformers side by side.

use super::accepted::{AcceptedValues, ValueCheck};
use super::columns::ColumnUse;
use super::compile;
use super::estimator::Estimator;
use super::model::{
    FeatureMatrix, FeatureRows, StepFacts, Transformer, apply_steps, categories_before, uses_before,
};
use super::passthrough::Passthrough;
use super::sparse::SparseMatrix;
use tensorserve_pickle::{PickleNode, PickleValue};
use tensorserve_tensor::error::Result;

/// Columns, and the transformers that are applied to them in turn.
struct ColumnGroup {
    /// `None` for all columns.
    columns: Option<Vec<usize>>,
    steps: Vec<Box<dyn Transformer>>,
    output: usize,
    /// What the results are multiplied by.
    weight: Option<f64>,
}

impl ColumnGroup {
    /// The columns `columns`, in their order.
    fn select(columns: &[usize], rows: FeatureRows) -> Vec<f64> {
        let mut values = Vec::with_capacity(rows.len() * columns.len());
        for row in rows.iter() {
            for column in columns {
                values.push(row.get(*column).copied().unwrap_or(f64::NAN));
            }
        }
        values
    }

    /// Calls `take` with what the group makes of `rows`.
    fn transform<T>(
        &self,
        rows: FeatureRows,
        take: impl FnOnce(FeatureRows) -> Result<T>,
    ) -> Result<T> {
        let values;
        let rows = match &self.columns {
            None => rows,
            Some(columns) => {
                values = ColumnGroup::select(columns, rows);
                rows.with_dense(&values, columns.len())
            }
        };
        let mut made = apply_steps(&self.steps, rows, ValueCheck::Enabled)?;
        if let (Some(weight), Some(made)) = (self.weight, &mut made) {
            match &mut made.values {
                FeatureMatrix::Dense(values, _) => {
                    values.iter_mut().for_each(|value| *value *= weight);
                }
                FeatureMatrix::Sparse(matrix) => *matrix = matrix.mapped(|_, value| value * weight),
            }
        }
        take(made.as_ref().map_or(rows, |made| made.rows(rows)))
    }

    /// Whether it makes sparse rows.
    fn makes_sparse(&self, from_sparse: bool) -> bool {
        let given = from_sparse && self.columns.is_none();
        self.steps
            .iter()
            .fold(given, |given, step| step.makes_sparse(given && step.facts().takes_sparse))
    }

    /// As [`Transformer::is_sparse_there`].
    fn is_sparse_there(&self, from_sparse: bool) -> bool {
        self.steps.iter().fold(from_sparse, |given, step| step.is_sparse_there(given))
    }
}

/// The outputs of all groups side by side.
struct ColumnTransformer {
    input: usize,
    groups: Vec<ColumnGroup>,
    output: usize,
    /// Whether scikit-learn makes a sparse matrix; `None` if it does where one of the groups does.
    is_sparse_there: Option<bool>,
}

impl Transformer for ColumnTransformer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.input)
            .accepting(AcceptedValues::Any)
            .sparse_if(self.groups.iter().all(|group| group.columns.is_none()))
    }

    fn output(&self) -> usize {
        self.output
    }

    fn uses(&self, outputs: &[ColumnUse]) -> Vec<ColumnUse> {
        let mut uses = vec![ColumnUse::Unused; self.input];
        let mut start = 0;
        for group in &self.groups {
            let own = outputs.get(start..start + group.output).unwrap_or_default().to_vec();
            start += group.output;
            for (index, own) in uses_before(&group.steps, own).into_iter().enumerate() {
                let column = match &group.columns {
                    Some(columns) => columns.get(index).copied(),
                    None => Some(index),
                };
                if let Some(used) = column.and_then(|column| uses.get_mut(column)) {
                    used.add(own);
                }
            }
        }
        uses
    }

    fn categories(&self, outputs: &[Vec<String>]) -> Vec<Vec<String>> {
        let mut all = vec![Vec::new(); self.input];
        let mut start = 0;
        for group in &self.groups {
            let own = outputs.get(start..start + group.output).unwrap_or_default();
            start += group.output;
            for (index, own) in categories_before(&group.steps, own).into_iter().enumerate() {
                let column = match &group.columns {
                    Some(columns) => columns.get(index).copied(),
                    None => Some(index),
                };
                let Some(known) = column.and_then(|column| all.get_mut(column)) else {
                    continue;
                };
                if known.is_empty() {
                    *known = own;
                }
            }
        }
        all
    }

    fn makes_sparse(&self, from_sparse: bool) -> bool {
        self.groups.iter().any(|group| group.makes_sparse(from_sparse))
    }

    fn is_sparse_there(&self, from_sparse: bool) -> bool {
        let of_groups = || self.groups.iter().any(|group| group.is_sparse_there(from_sparse));
        self.is_sparse_there.unwrap_or_else(of_groups)
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let mut start = 0;
        for group in &self.groups {
            group.transform(rows, |made| {
                let to = to.chunks_exact_mut(self.output);
                for (to, made) in to.zip(made.iter()) {
                    if let Some(to) = to.get_mut(start..start + group.output) {
                        to.copy_from_slice(made);
                    }
                }
                Ok(())
            })?;
            start += group.output;
        }
        Ok(())
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut parts = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            parts.push(group.transform(rows, |made| Ok(made.to_sparse()))?);
        }
        let mut to = SparseMatrix::new(self.output);
        for row in 0..rows.len() {
            let mut start = 0u32;
            for part in &parts {
                for (column, value) in part.row(row) {
                    to.push(start.saturating_add(*column), *value);
                }
                start = start.saturating_add(u32::try_from(part.columns()).unwrap_or(u32::MAX));
            }
            to.end_row();
        }
        Ok(to)
    }
}

impl ColumnTransformer {
    /// Of these groups, which make at least one column.
    fn boxed(
        estimator: &Estimator,
        input: usize,
        groups: Vec<ColumnGroup>,
        is_sparse_there: Option<bool>,
    ) -> Result<Box<dyn Transformer>> {
        let output = groups.iter().map(|group| group.output).sum::<usize>();
        if output == 0 {
            return Err(estimator.damaged("it makes no columns"));
        }
        if u32::try_from(output).is_err() {
            return Err(estimator.damaged("it makes too many columns"));
        }
        Ok(Box::new(ColumnTransformer { input, groups, output, is_sparse_there }))
    }
}

/// Reads a `ColumnTransformer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let input = estimator.features().filter(|features| *features > 0);
    let input =
        input.ok_or_else(|| estimator.unsupported("one written by scikit-learn before 0.24"))?;
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
        let inner = (inner.text() != Some("passthrough")).then_some(inner);
        let (steps, output) = read_steps(estimator, inner, columns.len())?;
        let weight = read_weight(estimator, name)?;
        groups.push(ColumnGroup { columns: Some(columns), steps, output, weight });
    }
    let is_sparse_there = estimator.flag("sparse_output_", false)?;
    ColumnTransformer::boxed(estimator, input, groups, Some(is_sparse_there))
}

/// Reads a `FeatureUnion`, which is given `columns` columns, if their number is known.
pub(super) fn union(estimator: &Estimator, columns: Option<usize>) -> Result<Box<dyn Transformer>> {
    let mut input = columns;
    let mut groups = Vec::new();
    for transformer in estimator.children(&["transformer_list"])? {
        let wrong =
            || estimator.damaged("an element of transformer_list is not (name, transformer)");
        let items = transformer.value.items().ok_or_else(wrong)?;
        let [name, inner] = *items else { return Err(wrong()) };
        if inner.is_none() || inner.text() == Some("drop") {
            continue;
        }
        let is_passthrough = inner.text() == Some("passthrough");
        if is_passthrough && input.is_none() {
            return Err(estimator.unsupported("passthrough before all transformers"));
        }
        let mut steps: Vec<Box<dyn Transformer>> = Vec::new();
        match (is_passthrough, input) {
            (true, width) => steps.push(Box::new(Passthrough(width.unwrap_or(0)))),
            (false, Some(width)) => {
                steps = read_steps(estimator, Some(inner), width)?.0;
            }
            (false, None) => compile::add_transformer(&estimator.child(inner)?, &mut steps)?,
        }
        let width = steps.first().map(|step| step.facts().features).or(input);
        let width = width.ok_or_else(|| estimator.damaged("a part of it is empty"))?;
        let output = compile::output_width(estimator, width, &steps)?;
        input = Some(width);
        groups.push(ColumnGroup {
            columns: None,
            steps,
            output,
            weight: read_weight(estimator, name)?,
        });
    }
    let input = input.ok_or_else(|| estimator.damaged("it has no transformers"))?;
    let is_same = groups
        .iter()
        .all(|group| group.steps.first().is_none_or(|step| step.facts().features == input));
    if !is_same || input == 0 {
        return Err(estimator.damaged("its transformers take different numbers of columns"));
    }
    ColumnTransformer::boxed(estimator, input, groups, None)
}

/// The steps of a transformer that is given `columns` columns (`None` passes them through), and the
/// number of columns that they make.
fn read_steps(
    estimator: &Estimator,
    inner: Option<PickleValue>,
    columns: usize,
) -> Result<(Vec<Box<dyn Transformer>>, usize)> {
    // The first step informs the others of the number of columns; it is then removed.
    let mut steps: Vec<Box<dyn Transformer>> = vec![Box::new(Passthrough(columns))];
    if let Some(inner) = inner {
        compile::add_transformer(&estimator.child(inner)?, &mut steps)?;
    }
    steps.remove(0);
    let output = compile::output_width(estimator, columns, &steps)?;
    Ok((steps, output))
}

/// The weight of the transformer `name`, if it has one.
fn read_weight(estimator: &Estimator, name: PickleValue) -> Result<Option<f64>> {
    let weights = estimator.find(&["transformer_weights"]);
    let weight = weights.and_then(|weights| weights.get(name.text()?));
    let wrong = || estimator.damaged("a transformer's weight is not a number");
    weight.map(|weight| weight.float().ok_or_else(wrong)).transpose()
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
