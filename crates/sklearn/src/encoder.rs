//! `OneHotEncoder` and `OrdinalEncoder`.

use super::accepted::AcceptedValues;
use super::categories::Categories;
use super::columns::ColumnUse;
use super::estimator::Estimator;
use super::legacy_one_hot;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::sparse::SparseMatrix;
use tensorserve_pickle::PickleValue;
use tensorserve_tensor::error::Result;

/// The column that stands for no column.
const NOWHERE: u32 = u32::MAX;

/// A column that is encoded as one column for each category.
struct OneHotColumn {
    categories: Categories,
    /// For each category, the column of the output; [`NOWHERE`] for one that was dropped.
    places: Vec<u32>,
    /// The column of the output for other values; `None` if these are refused.
    unknown: Option<u32>,
}

impl OneHotColumn {
    /// The column of the output for a value; [`NOWHERE`] if there is none.
    fn place(&self, column: usize, value: f64, row: usize) -> Result<u32> {
        match self.categories.find(value) {
            Some(category) => Ok(self.places.get(category).copied().unwrap_or(NOWHERE)),
            None => self.unknown.ok_or_else(|| self.categories.unknown(column, value, row)),
        }
    }
}

/// Makes a column of each category: 1 where the value is that category, else 0.
struct OneHotEncoder {
    columns: Vec<OneHotColumn>,
    output: usize,
    /// Whether its rows are sparse: if it makes far more columns than it takes.
    is_sparse: bool,
    /// Whether those of scikit-learn are.
    is_sparse_there: bool,
    /// Missing values are accepted since 0.24.
    accepts: AcceptedValues,
}

/// How many columns an encoder makes of one before its rows are sparse.
const SPARSE_FACTOR: usize = 256;

impl Transformer for OneHotEncoder {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns.len()).accepting(self.accepts)
    }

    fn output(&self) -> usize {
        self.output
    }

    fn uses(&self, _: &[ColumnUse]) -> Vec<ColumnUse> {
        self.columns.iter().map(|column| column.categories.column_use()).collect()
    }

    fn categories(&self, _: &[Vec<String>]) -> Vec<Vec<String>> {
        self.columns.iter().map(|column| column.categories.offered()).collect()
    }

    fn makes_sparse(&self, _: bool) -> bool {
        self.is_sparse
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        self.is_sparse_there
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.fill(0.0);
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(self.output)).enumerate() {
            for (index, (value, column)) in row.iter().zip(&self.columns).enumerate() {
                let place = column.place(index, *value, rows.first_row + number)?;
                if let Some(to) = to.get_mut(place as usize) {
                    *to = 1.0;
                }
            }
        }
        Ok(())
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut to = SparseMatrix::new(self.output);
        for (number, row) in rows.iter().enumerate() {
            for (index, (value, column)) in row.iter().zip(&self.columns).enumerate() {
                let place = column.place(index, *value, rows.first_row + number)?;
                if place != NOWHERE {
                    to.push(place, 1.0);
                }
            }
            to.end_row();
        }
        Ok(to)
    }
}

/// Reads a `OneHotEncoder`, which is given `columns` columns, if their number is known.
pub(super) fn one_hot(
    estimator: &Estimator,
    columns: Option<usize>,
) -> Result<Box<dyn Transformer>> {
    if legacy_one_hot::is_legacy(estimator)? {
        return legacy_one_hot::read(estimator, columns, SPARSE_FACTOR);
    }
    let all = Categories::read_all(estimator)?;
    let groups = read_infrequent(estimator, &all)?;
    // Since 1.1 there are both: the second counts infrequent categories as one.
    let dropped = match estimator.find(&["_drop_idx_after_grouping", "drop_idx_"]) {
        None => vec![None; all.len()],
        Some(value) => read_dropped(estimator, value, &all)?,
    };
    let handling = estimator.text("handle_unknown")?;
    let (mut columns, mut output) = (Vec::with_capacity(all.len()), 0);
    for ((categories, group), dropped) in all.into_iter().zip(groups).zip(dropped) {
        let width = group.width;
        if dropped.is_some_and(|dropped| dropped >= width) {
            return Err(estimator.damaged("drop_idx_ is not one category for each column"));
        }
        let place = |code: usize| {
            let is_behind = dropped.is_some_and(|dropped| dropped < code);
            match Some(code) == dropped {
                true => NOWHERE,
                false => u32::try_from(output + code - usize::from(is_behind)).unwrap_or(NOWHERE),
            }
        };
        let places = group.codes.iter().map(|code| place(*code)).collect();
        let unknown = match handling {
            "error" | "" => None,
            "infrequent_if_exist" | "warn" => Some(group.infrequent.map_or(NOWHERE, place)),
            _ => Some(NOWHERE),
        };
        output += width - usize::from(dropped.is_some());
        columns.push(OneHotColumn { categories, places, unknown });
    }
    if output == 0 {
        return Err(estimator.damaged("it makes no columns"));
    }
    let is_sparse = output > columns.len().saturating_mul(SPARSE_FACTOR);
    // Its name until 1.1 is `sparse`; 1.2 and 1.3 have both.
    let setting = estimator.find(&["sparse_output", "sparse"]).and_then(PickleValue::bool);
    let is_sparse_there = setting.unwrap_or(true);
    let accepts = AcceptedValues::missing_since(estimator, 0, 24);
    Ok(Box::new(OneHotEncoder { columns, output, is_sparse, is_sparse_there, accepts }))
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
    let index = |index: i64| usize::try_from(index).map_err(|_| wrong());
    indices.into_iter().map(|number| number.map(index).transpose()).collect()
}

/// How the categories of a column are grouped.
struct CategoryGroups {
    /// The code of each category.
    codes: Vec<usize>,
    /// The code of infrequent categories.
    infrequent: Option<usize>,
    /// The number of codes.
    width: usize,
}

/// Reads which categories of each column are infrequent, and share a code (`min_frequency` and
/// `max_categories`).
fn read_infrequent(estimator: &Estimator, columns: &[Categories]) -> Result<Vec<CategoryGroups>> {
    let name = "_default_to_infrequent_mappings";
    let mappings = match estimator.flag("_infrequent_enabled", false)? {
        true => {
            let value = estimator.attribute(&[name])?;
            value.items().ok_or_else(|| estimator.damaged(format_args!("{name} is not a list")))?
        }
        false => Vec::new(),
    };
    let mut all = Vec::with_capacity(columns.len());
    for (index, column) in columns.iter().enumerate() {
        let Some(mapping) = mappings.get(index).filter(|mapping| !mapping.is_none()) else {
            let codes = (0..column.len()).collect();
            all.push(CategoryGroups { codes, infrequent: None, width: column.len() });
            continue;
        };
        let wrong = || estimator.damaged(format_args!("{name} does not fit categories_"));
        let codes = mapping.array().and_then(|array| array.i64s()).ok_or_else(wrong)?;
        estimator.charge(codes.len())?;
        let codes: Option<Vec<usize>> =
            codes.into_iter().map(|code| usize::try_from(code).ok()).collect();
        // A missing value of an `OrdinalEncoder` is not part of it.
        let mut codes = codes.filter(|codes| codes.len() <= column.len()).ok_or_else(wrong)?;
        let infrequent = codes.iter().copied().max().filter(|code| *code < column.len());
        let infrequent = infrequent.ok_or_else(wrong)?;
        codes.resize(column.len(), infrequent);
        all.push(CategoryGroups { codes, infrequent: Some(infrequent), width: infrequent + 1 });
    }
    Ok(all)
}

/// A column whose values are replaced by codes.
struct OrdinalColumn {
    categories: Categories,
    codes: Vec<f64>,
}

/// Replaces each value by the code of its category.
struct OrdinalEncoder {
    columns: Vec<OrdinalColumn>,
    /// The code of other values; `None` if these are refused.
    unknown: Option<f64>,
    /// Missing values are accepted since 1.0.
    accepts: AcceptedValues,
}

impl Transformer for OrdinalEncoder {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns.len()).accepting(self.accepts)
    }

    fn output(&self) -> usize {
        self.columns.len()
    }

    fn uses(&self, _: &[ColumnUse]) -> Vec<ColumnUse> {
        self.columns.iter().map(|column| column.categories.column_use()).collect()
    }

    fn categories(&self, _: &[Vec<String>]) -> Vec<Vec<String>> {
        self.columns.iter().map(|column| column.categories.offered()).collect()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(rows.columns)).enumerate() {
            let columns = row.iter().zip(to).zip(&self.columns).enumerate();
            for (index, ((value, to), column)) in columns {
                let code = column.categories.find(*value);
                let code = code.and_then(|place| column.codes.get(place)).copied();
                *to = code.or(self.unknown).ok_or_else(|| {
                    column.categories.unknown(index, *value, rows.first_row + number)
                })?;
            }
        }
        Ok(())
    }
}

/// Reads an `OrdinalEncoder`.
pub(super) fn ordinal(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let unknown = match estimator.text("handle_unknown")? {
        "use_encoded_value" => Some(code(estimator, "unknown_value")?),
        _ => None,
    };
    let missing = code(estimator, "encoded_missing_value")?;
    let all = Categories::read_all(estimator)?;
    let groups = read_infrequent(estimator, &all)?;
    let mut columns = Vec::with_capacity(all.len());
    for (categories, group) in all.into_iter().zip(groups) {
        let mut codes: Vec<f64> = group.codes.into_iter().map(|code| code as f64).collect();
        if let Some(code) = categories.nan().and_then(|place| codes.get_mut(place)) {
            *code = missing;
        }
        columns.push(OrdinalColumn { categories, codes });
    }
    let accepts = AcceptedValues::missing_since(estimator, 1, 0);
    Ok(Box::new(OrdinalEncoder { columns, unknown, accepts }))
}

/// The parameter `name`; NaN if it is not set.
fn code(estimator: &Estimator, name: &str) -> Result<f64> {
    Ok(estimator.optional_number(&[name])?.unwrap_or(f64::NAN))
}
