//! The columns of the rows of a request, while the stages of a pipeline add to them.

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;

use tensorserve_tensor::error::{Error, Result};

/// What the way on is for a value that a stage with `handleInvalid="error"` refuses.
const WAY_ON: &str = "as Spark does with handleInvalid=\"error\"; save the model with \"keep\" or \"skip\" to have it answered";

/// The values of a column, one for each row.
#[derive(Debug)]
pub(super) enum SparkColumn<'t> {
    /// A missing number is NaN.
    Numbers(Cow<'t, [f64]>),
    /// A missing text is empty.
    Texts(Vec<Cow<'t, str>>),
    Words(WordLists),
    Vectors(Vectors<'t>),
}

/// A list of words for each row.
#[derive(Clone, Debug, Default)]
pub(super) struct WordLists {
    /// The words of all rows, one after the other.
    pub(super) text: Rc<String>,
    /// Where each word is in the text.
    pub(super) words: Vec<Range<usize>>,
    /// Where the words of each row end.
    pub(super) ends: Vec<usize>,
}

impl WordLists {
    /// The words of each row.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[Range<usize>]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let words = self.words.get(start..*end).unwrap_or_default();
            start = *end;
            words
        })
    }

    pub(super) fn word(&self, range: &Range<usize>) -> &str {
        self.text.get(range.clone()).unwrap_or_default()
    }
}

/// A vector of the same size for each row.
#[derive(Debug)]
pub(super) struct Vectors<'t> {
    pub(super) width: usize,
    pub(super) rows: VectorRows<'t>,
}

/// The rows of vectors: dense, or sparse as texts make them.
#[derive(Debug)]
pub(super) enum VectorRows<'t> {
    /// One row after the other.
    Dense(Cow<'t, [f64]>),
    Sparse(SparseVectorRows),
}

/// Rows of the elements that are not 0: of each row, their positions in ascending order and their values.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseVectorRows {
    pub(super) entries: Vec<(u32, f64)>,
    /// Where the entries of each row end.
    pub(super) ends: Vec<usize>,
}

impl SparseVectorRows {
    /// The entries of row `row`.
    pub(super) fn row(&self, row: usize) -> &[(u32, f64)] {
        let start = row.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
        let end = self.ends.get(row).copied().unwrap_or(0);
        self.entries.get(start.unwrap_or(0)..end).unwrap_or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[(u32, f64)]> {
        (0..self.ends.len()).map(|row| self.row(row))
    }

    /// Ends a row, whose entries need not be in order, nor be of different positions: those of the same
    /// position are added up.
    pub(super) fn end_unordered_row(&mut self) {
        let start = self.ends.last().copied().unwrap_or(0);
        let mut row = self.entries.split_off(start.min(self.entries.len()));
        row.sort_unstable_by_key(|(position, _)| *position);
        for (position, value) in row {
            let is_first = self.entries.len() == start;
            match self.entries.last_mut() {
                Some(last) if !is_first && last.0 == position => last.1 += value,
                _ => self.entries.push((position, value)),
            }
        }
        self.ends.push(self.entries.len());
    }
}

impl SparseVectorRows {
    /// Leaves out the entries of the last row whose values are not to be kept.
    pub(super) fn filter_last_row(&mut self, keeps: impl Fn(f64) -> bool) {
        let start = self.ends.len().checked_sub(2).and_then(|before| self.ends.get(before));
        let start = start.copied().unwrap_or(0).min(self.entries.len());
        let row = self.entries.split_off(start);
        self.entries.extend(row.into_iter().filter(|(_, value)| keeps(*value)));
        if let Some(end) = self.ends.last_mut() {
            *end = self.entries.len();
        }
    }
}

/// A row of a vector column.
#[derive(Clone, Copy, Debug)]
pub(super) enum VectorRow<'a> {
    Dense(&'a [f64]),
    Sparse(&'a [(u32, f64)]),
}

impl VectorRow<'_> {
    /// The sum of its elements, each multiplied by that of `weights`.
    pub(super) fn dot(self, weights: &[f64]) -> f64 {
        match self {
            VectorRow::Dense(values) => dot(weights, values),
            VectorRow::Sparse(entries) => {
                let weight = |position: u32| weights.get(position as usize).copied();
                entries.iter().map(|(at, value)| value * weight(*at).unwrap_or(0.0)).sum()
            }
        }
    }

    /// Its elements, those of a sparse one without the zeros.
    pub(super) fn values(self) -> impl Iterator<Item = f64> {
        let (dense, sparse): (&[f64], &[(u32, f64)]) = match self {
            VectorRow::Dense(values) => (values, &[]),
            VectorRow::Sparse(entries) => (&[], entries),
        };
        dense.iter().copied().chain(sparse.iter().map(|(_, value)| *value))
    }
}

/// The dot product, as four partial sums, which a processor adds in parallel.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (left, left_rest) = a.as_chunks::<4>();
    let (right, right_rest) = b.as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (a, b) in left.iter().zip(right) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

impl<'t> Vectors<'t> {
    pub(super) fn dense(width: usize, values: Vec<f64>) -> Self {
        Vectors { width, rows: VectorRows::Dense(Cow::Owned(values)) }
    }

    pub(super) fn sparse(width: usize, rows: SparseVectorRows) -> Self {
        Vectors { width, rows: VectorRows::Sparse(rows) }
    }

    /// Row `row`.
    pub(super) fn row(&self, row: usize) -> VectorRow<'_> {
        match &self.rows {
            VectorRows::Dense(values) => {
                let start = row.saturating_mul(self.width);
                let range = start..start.saturating_add(self.width);
                VectorRow::Dense(values.get(range).unwrap_or_default())
            }
            VectorRows::Sparse(rows) => VectorRow::Sparse(rows.row(row)),
        }
    }

    /// Calls `take` with the first `count` rows, each as a dense one.
    pub(super) fn for_dense_rows(
        &self,
        count: usize,
        mut take: impl FnMut(usize, &[f64]) -> Result<()>,
    ) -> Result<()> {
        let mut scratch = Vec::new();
        for row in 0..count {
            match self.row(row) {
                VectorRow::Dense(values) => take(row, values)?,
                VectorRow::Sparse(entries) => {
                    scratch.resize(self.width, 0.0);
                    put_all(&mut scratch, entries, |value| value);
                    take(row, &scratch)?;
                    put_all(&mut scratch, entries, |_| 0.0);
                }
            }
        }
        Ok(())
    }

    /// The same vectors, with each element replaced by `map` of its position and value. Zeros of sparse
    /// rows stay.
    pub(super) fn mapped(&self, map: impl Fn(usize, f64) -> f64) -> Vectors<'static> {
        let width = self.width;
        match &self.rows {
            VectorRows::Dense(values) => {
                let mut mapped = Vec::with_capacity(values.len());
                for row in values.chunks_exact(width.max(1)) {
                    mapped.extend(row.iter().enumerate().map(|(at, value)| map(at, *value)));
                }
                Vectors::dense(width, mapped)
            }
            VectorRows::Sparse(rows) => {
                let entries =
                    rows.entries.iter().map(|(at, value)| (*at, map(*at as usize, *value)));
                let rows = SparseVectorRows { entries: entries.collect(), ends: rows.ends.clone() };
                Vectors::sparse(width, rows)
            }
        }
    }
}

fn put_all(row: &mut [f64], entries: &[(u32, f64)], map: impl Fn(f64) -> f64) {
    for (position, value) in entries {
        if let Some(element) = row.get_mut(*position as usize) {
            *element = map(*value);
        }
    }
}

/// Some rows of a request, and what the stages made of them.
#[derive(Debug)]
pub(super) struct SparkTable<'t> {
    pub(super) rows: usize,
    /// The index of the first row in the request.
    pub(super) first: usize,
    /// The columns by their numbers; those that no stage has made yet are missing.
    pub(super) columns: Vec<Option<SparkColumn<'t>>>,
    /// Which rows a stage has dropped, as `handleInvalid="skip"` says; empty for none.
    skipped: Vec<bool>,
}

impl<'t> SparkTable<'t> {
    pub(super) fn new(rows: usize, first: usize, columns: usize) -> Self {
        let columns = (0..columns).map(|_| None).collect();
        SparkTable { rows, first, columns, skipped: Vec::new() }
    }

    /// Whether a stage has dropped row `row`.
    pub(super) fn is_skipped(&self, row: usize) -> bool {
        self.skipped.get(row).copied().unwrap_or(false)
    }

    /// Drops row `row`: it is computed further, but has no prediction.
    pub(super) fn skip(&mut self, row: usize) {
        self.skipped.resize(self.rows, false);
        if let Some(skipped) = self.skipped.get_mut(row) {
            *skipped = true;
        }
    }

    pub(super) fn put(&mut self, number: usize, column: SparkColumn<'t>) {
        if let Some(slot) = self.columns.get_mut(number) {
            *slot = Some(column);
        }
    }

    fn get(&self, number: usize) -> Result<&SparkColumn<'t>> {
        let column = self.columns.get(number).and_then(Option::as_ref);
        column.ok_or_else(|| Error::internal("a column of the pipeline is missing"))
    }

    pub(super) fn numbers(&self, number: usize) -> Result<&[f64]> {
        match self.get(number)? {
            SparkColumn::Numbers(values) => Ok(values),
            SparkColumn::Texts(_) | SparkColumn::Words(_) | SparkColumn::Vectors(_) => {
                Err(Error::internal("a column of the pipeline does not hold numbers"))
            }
        }
    }

    pub(super) fn texts(&self, number: usize) -> Result<&[Cow<'t, str>]> {
        match self.get(number)? {
            SparkColumn::Texts(values) => Ok(values),
            SparkColumn::Numbers(_) | SparkColumn::Words(_) | SparkColumn::Vectors(_) => {
                Err(Error::internal("a column of the pipeline does not hold texts"))
            }
        }
    }

    pub(super) fn words(&self, number: usize) -> Result<&WordLists> {
        match self.get(number)? {
            SparkColumn::Words(values) => Ok(values),
            SparkColumn::Numbers(_) | SparkColumn::Texts(_) | SparkColumn::Vectors(_) => {
                Err(Error::internal("a column of the pipeline does not hold words"))
            }
        }
    }

    pub(super) fn vectors(&self, number: usize) -> Result<&Vectors<'t>> {
        match self.get(number)? {
            SparkColumn::Vectors(values) => Ok(values),
            SparkColumn::Numbers(_) | SparkColumn::Texts(_) | SparkColumn::Words(_) => {
                Err(Error::internal("a column of the pipeline does not hold vectors"))
            }
        }
    }

    /// The column, of whatever type.
    pub(super) fn column(&self, number: usize) -> Result<&SparkColumn<'t>> {
        self.get(number)
    }

    /// The error for a value that a stage refuses.
    pub(super) fn refusal(&self, row: usize, column: &str, reason: &str) -> Error {
        let row = self.first.saturating_add(row);
        Error::invalid(format!("row {row}: column {column:?} {reason}, {WAY_ON}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_row_are_sorted_and_added_up() {
        let mut rows = SparseVectorRows::default();
        rows.entries.extend([(3, 1.0), (1, 2.0), (3, 4.0)]);
        rows.end_unordered_row();
        rows.end_unordered_row();
        rows.entries.extend([(3, 8.0)]);
        rows.end_unordered_row();
        assert_eq!(rows.row(0), [(1, 2.0), (3, 5.0)]);
        assert_eq!(rows.row(1), []);
        assert_eq!(rows.row(2), [(3, 8.0)]);
        assert_eq!(VectorRow::Sparse(rows.row(0)).dot(&[1.0, 1.0, 1.0, 2.0]), 12.0);
    }
}
