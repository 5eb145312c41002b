//! `OneHotEncoder` up to 0.19, and of 0.20 and 0.21 in their legacy mode: with `n_values` or
//! `categorical_features`, or of integers without any setting. Categories are the integers from 0 on, and
//! columns that are not selected follow those of the selected ones.

use super::columns::ColumnUse;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::passthrough::Passthrough;
use super::sparse::SparseMatrix;
use tensorserve_pickle::{PickleNode, PickleValue, dtype_kind};
use tensorserve_tensor::error::{Error, Result};

/// From here on, numbers are not integers of 64 bits: NumPy makes negative ones of them.
const LARGEST: f64 = 9_223_372_036_854_775_808.0;

/// A column that is encoded.
struct RangeColumn {
    /// Its index among all columns.
    column: usize,
    /// The number of categories: 0, 1, ….
    count: i64,
    /// The place of category 0 among those of all columns.
    start: usize,
}

/// Which columns are encoded.
enum Selected {
    All,
    Mask(Vec<bool>),
    Indices(Vec<i64>),
}

struct LegacyOneHot {
    encoded: Vec<RangeColumn>,
    selected: Vec<i64>,
    /// The places of the categories that get a column; `None` if all do.
    active: Option<Vec<usize>>,
    /// How many columns the categories get.
    width: usize,
    /// The columns that are passed on; `None` if their number is not known yet.
    rest: Option<Vec<usize>>,
    ignores_unknown: bool,
    /// Whether its rows are sparse here, and in scikit-learn.
    is_sparse: bool,
    is_sparse_there: bool,
}

impl LegacyOneHot {
    /// The column of the output for a value; `None` if it gets none.
    fn place(&self, range: &RangeColumn, value: f64, row: usize) -> Result<Option<usize>> {
        // As NumPy converts it.
        let category = if value.abs() < LARGEST { value.trunc() as i64 } else { -1 };
        if category < 0 || (category >= range.count && !self.ignores_unknown) {
            let (column, last) = (range.column, range.count - 1);
            return Err(Error::invalid(format!(
                "the value {value} in row {row} and column {column} of an encoder is not one of the categories that \
                 the model was fitted with: 0 to {last}"
            )));
        }
        if category >= range.count {
            return Ok(None);
        }
        let place = usize::try_from(category).ok().map(|category| range.start + category);
        Ok(match &self.active {
            None => place,
            Some(active) => place.and_then(|place| active.binary_search(&place).ok()),
        })
    }

    /// Gives the encoder `columns` columns, if it can take that many.
    fn set_columns(&mut self, columns: usize) {
        let mut is_selected = vec![false; columns];
        for index in &self.selected {
            let Some(place) = place_of(*index, columns) else { return };
            if let Some(selected) = is_selected.get_mut(place) {
                *selected = true;
            }
        }
        let places = |wanted: bool| {
            let all = is_selected.iter().enumerate();
            all.filter(move |(_, selected)| **selected == wanted).map(|(column, _)| column)
        };
        if places(true).count() != self.encoded.len() {
            return;
        }
        self.encoded.iter_mut().zip(places(true)).for_each(|(range, column)| range.column = column);
        self.rest = Some(places(false).collect());
    }

    fn rest(&self) -> &[usize] {
        self.rest.as_deref().unwrap_or_default()
    }
}

/// The place of a column, whose index may count from the end.
fn place_of(index: i64, columns: usize) -> Option<usize> {
    let size = i64::try_from(columns).ok()?;
    let index = if index < 0 { index.checked_add(size)? } else { index };
    usize::try_from(index).ok().filter(|place| *place < columns)
}

impl Transformer for LegacyOneHot {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.encoded.len() + self.rest().len())
    }

    fn output(&self) -> usize {
        self.width + self.rest().len()
    }

    fn is_open(&self) -> bool {
        self.rest.is_none()
    }

    fn set_output(&mut self, columns: usize) {
        if self.is_open()
            && let Some(rest) = columns.checked_sub(self.width)
        {
            self.set_columns(self.encoded.len() + rest);
        }
    }

    fn uses(&self, outputs: &[ColumnUse]) -> Vec<ColumnUse> {
        let mut uses = vec![ColumnUse::Number; self.facts().features];
        for (column, used) in self.rest().iter().zip(outputs.iter().skip(self.width)) {
            if let Some(to) = uses.get_mut(*column) {
                *to = *used;
            }
        }
        uses
    }

    fn makes_sparse(&self, _: bool) -> bool {
        self.is_sparse
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        self.is_sparse_there
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.fill(0.0);
        let width = self.output().max(1);
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(width)).enumerate() {
            for range in &self.encoded {
                let value = row.get(range.column).copied().unwrap_or(f64::NAN);
                let place = self.place(range, value, rows.first_row + number)?;
                if let Some(to) = place.and_then(|place| to.get_mut(place)) {
                    *to = 1.0;
                }
            }
            let passed = to.iter_mut().skip(self.width).zip(self.rest());
            passed.for_each(|(to, column)| *to = row.get(*column).copied().unwrap_or(f64::NAN));
        }
        Ok(())
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut to = SparseMatrix::new(self.output());
        let push = |to: &mut SparseMatrix, place: usize, value: f64| {
            if value != 0.0 {
                to.push(u32::try_from(place).unwrap_or(u32::MAX), value);
            }
        };
        for (number, row) in rows.iter().enumerate() {
            for range in &self.encoded {
                let value = row.get(range.column).copied().unwrap_or(f64::NAN);
                if let Some(place) = self.place(range, value, rows.first_row + number)? {
                    push(&mut to, place, 1.0);
                }
            }
            for (number, column) in self.rest().iter().enumerate() {
                let value = row.get(*column).copied().unwrap_or(f64::NAN);
                push(&mut to, self.width + number, value);
            }
            to.end_row();
        }
        Ok(to)
    }
}

/// Whether the encoder is of this kind.
pub(super) fn is_legacy(estimator: &Estimator) -> Result<bool> {
    let has_ranges = estimator.find(&["feature_indices_"]).is_some();
    Ok(estimator.flag("_legacy_mode", false)?
        || (has_ranges && estimator.find(&["categories_"]).is_none()))
}

/// Reads such an encoder, which is given `columns` columns, if their number is known. `sparse_factor` is how
/// many columns it makes of one before its rows are sparse.
pub(super) fn read(
    estimator: &Estimator,
    columns: Option<usize>,
    sparse_factor: usize,
) -> Result<Box<dyn Transformer>> {
    let ranges = ["_feature_indices_", "feature_indices_"];
    if estimator.find(&ranges).is_none() {
        // Without a selected column it passes all on.
        let columns = columns.ok_or_else(|| estimator.unsupported("an encoder of no columns"))?;
        return Ok(Box::new(Passthrough(columns)));
    }
    let wrong = || estimator.damaged("feature_indices_ does not fit n_values_");
    let counts = estimator.vector(&["_n_values_", "n_values_"])?;
    let starts = estimator.vector_of_len(&ranges, counts.len() + 1)?;
    if !starts.is_sorted() || starts.first().is_some_and(|start| *start < 0.0) {
        return Err(wrong());
    }
    let range = |(count, start): (&f64, &f64)| RangeColumn {
        column: 0,
        count: *count as i64,
        start: *start as usize,
    };
    let encoded: Vec<RangeColumn> = counts.iter().zip(&starts).map(range).collect();
    let all = starts.last().copied().unwrap_or(0.0) as usize;
    let active = read_active(estimator)?;
    let width = active.as_ref().map_or(all, Vec::len);
    // The columns take no room in the file.
    estimator.charge(width)?;
    if encoded.is_empty() || width == 0 {
        return Err(wrong());
    }
    let (selected, known) = match read_selected(estimator)? {
        Selected::All => ((0..).take(encoded.len()).collect(), Some(encoded.len())),
        Selected::Mask(mask) => {
            let places = (0..).zip(&mask).filter(|(_, selected)| **selected);
            (places.map(|(place, _)| place).collect(), Some(mask.len()))
        }
        Selected::Indices(indices) => (indices, columns),
    };
    let is_sparse_there = estimator.flag("sparse", true)?;
    let is_sparse = width > encoded.len().saturating_mul(sparse_factor);
    let ignores_unknown = estimator.text("handle_unknown")? == "ignore";
    let mut encoder = LegacyOneHot {
        encoded,
        selected,
        active,
        width,
        rest: None,
        ignores_unknown,
        is_sparse,
        is_sparse_there,
    };
    if let Some(columns) = known {
        encoder.set_columns(columns);
        if encoder.is_open() {
            return Err(estimator.damaged("categorical_features does not fit its columns"));
        }
    }
    Ok(Box::new(encoder))
}

/// The places of the categories that the training had, if only these get a column: `n_values="auto"`.
fn read_active(estimator: &Estimator) -> Result<Option<Vec<usize>>> {
    let setting = estimator.find(&["_n_values", "n_values"]);
    if setting.is_some_and(|setting| setting.text() != Some("auto")) {
        return Ok(None);
    }
    let places = estimator.vector(&["_active_features_", "active_features_"])?;
    match places.is_sorted() {
        true => Ok(Some(places.into_iter().map(|place| place as usize).collect())),
        false => Err(estimator.damaged("active_features_ is not in order")),
    }
}

/// Reads which columns are encoded.
fn read_selected(estimator: &Estimator) -> Result<Selected> {
    let names = ["_categorical_features", "categorical_features"];
    let Some(value) = estimator.find(&names).filter(|value| value.text() != Some("all")) else {
        return Ok(Selected::All);
    };
    let numbers: Vec<i64> =
        estimator.vector(&names)?.into_iter().map(|number| number as i64).collect();
    Ok(match is_mask(value) {
        true => Selected::Mask(numbers.into_iter().map(|number| number != 0).collect()),
        false => Selected::Indices(numbers),
    })
}

/// Whether it is an array or a list of bools.
fn is_mask(value: PickleValue) -> bool {
    if let Some(array) = value.array() {
        return array.kind() == dtype_kind::BOOL;
    }
    let items = value.items().unwrap_or_default();
    items.first().is_some_and(|item| matches!(item.node(), PickleNode::Bool(_)))
}
