//! A column of a file: its values, and which of them belong to which row and list.

use std::ops::Range;
use std::sync::Arc;

use super::leaf::LeafColumn;

/// The values of a column, of all rows. Nulls are NaN or `None`.
#[derive(Debug)]
enum ColumnValues {
    Numbers(Vec<f64>),
    Texts(Vec<Option<Arc<str>>>),
}

/// The levels of the values of a page, nulls included.
pub(super) struct PageLevels<'l> {
    pub(super) leaf: &'l LeafColumn,
    pub(super) repetition: &'l [i16],
    pub(super) definition: &'l [i16],
}

/// A column of values, which may be in lists, and in lists of lists.
#[derive(Debug)]
pub(in super::super) struct NestedColumn {
    values: ColumnValues,
    /// Where the elements of each row start, then where those of each element of a row start, and so on:
    /// one list for each level of nesting.
    starts: Vec<Vec<usize>>,
}

impl NestedColumn {
    /// A column without rows, which holds texts or numbers.
    pub(super) fn new(depth: usize, is_text: bool) -> Self {
        let values = match is_text {
            true => ColumnValues::Texts(Vec::new()),
            false => ColumnValues::Numbers(Vec::new()),
        };
        NestedColumn { values, starts: vec![Vec::new(); depth] }
    }

    /// The number of values.
    fn len(&self) -> usize {
        match &self.values {
            ColumnValues::Numbers(values) => values.len(),
            ColumnValues::Texts(values) => values.len(),
        }
    }

    /// How deep its values are in lists: 0 for one value for each row.
    pub(in super::super) fn depth(&self) -> usize {
        self.starts.len()
    }

    /// The number of rows.
    pub(in super::super) fn rows(&self) -> usize {
        self.starts.first().map_or(self.len(), Vec::len)
    }

    /// The values as numbers; none of a column of texts.
    pub(in super::super) fn numbers(&self) -> &[f64] {
        match &self.values {
            ColumnValues::Numbers(values) => values,
            ColumnValues::Texts(_) => &[],
        }
    }

    /// The values as texts; none of a column of numbers.
    pub(in super::super) fn texts(&self) -> &[Option<Arc<str>>] {
        match &self.values {
            ColumnValues::Numbers(_) => &[],
            ColumnValues::Texts(values) => values,
        }
    }

    /// Which elements of the next level belong to the element `index` of `level`, of which 0 are the rows.
    /// The elements of the last level are the values.
    pub(in super::super) fn range(&self, level: usize, index: usize) -> Range<usize> {
        let Some(starts) = self.starts.get(level) else {
            return index.min(self.len())..index.saturating_add(1).min(self.len());
        };
        let end = self.starts.get(level + 1).map_or(self.len(), Vec::len);
        let start = starts.get(index).copied().unwrap_or(end);
        let next = index.checked_add(1).and_then(|next| starts.get(next));
        start..next.copied().unwrap_or(end).max(start)
    }

    /// The numbers of row `row`, in a list.
    pub(in super::super) fn row(&self, row: usize) -> &[f64] {
        let range = match self.depth() {
            0 | 1 => self.range(0, row),
            _ => return &[],
        };
        self.numbers().get(range).unwrap_or_default()
    }

    /// Adds the numbers of a page; `None` if they do not fit their levels, or the column is one of texts.
    pub(super) fn extend_numbers(
        &mut self,
        levels: &PageLevels,
        mut numbers: impl Iterator<Item = f64>,
    ) -> Option<()> {
        self.extend_with(levels, |values, is_present| {
            let ColumnValues::Numbers(values) = values else { return None };
            values.push(if is_present { numbers.next()? } else { f64::NAN });
            Some(())
        })
    }

    /// Adds the texts of a page; `None` if they do not fit their levels, or the column is one of numbers.
    pub(super) fn extend_texts(
        &mut self,
        levels: &PageLevels,
        mut texts: impl Iterator<Item = Arc<str>>,
    ) -> Option<()> {
        self.extend_with(levels, |values, is_present| {
            let ColumnValues::Texts(values) = values else { return None };
            values.push(if is_present { Some(texts.next()?) } else { None });
            Some(())
        })
    }

    fn extend_with(
        &mut self,
        levels: &PageLevels,
        mut push: impl FnMut(&mut ColumnValues, bool) -> Option<()>,
    ) -> Option<()> {
        let PageLevels { leaf, repetition, definition } = levels;
        for (repetition, definition) in repetition.iter().zip(*definition) {
            let first = usize::try_from(*repetition).ok()?;
            if first > leaf.depth() || *definition > leaf.max_definition() {
                return None;
            }
            if first > 0 && self.starts.first().is_none_or(Vec::is_empty) {
                return None;
            }
            let mut is_there = true;
            for level in first..self.starts.len() {
                let next = self.starts.get(level + 1).map_or(self.len(), Vec::len);
                self.starts.get_mut(level)?.push(next);
                is_there = leaf.repeated.get(level).is_none_or(|from| definition >= from);
                if !is_there {
                    break;
                }
            }
            if is_there {
                push(&mut self.values, *definition >= leaf.max_definition())?;
            }
        }
        Some(())
    }

    /// Adds the rows of the same column of another file; `None` if they differ in type.
    pub(super) fn append(&mut self, other: NestedColumn) -> Option<()> {
        if self.depth() != other.depth() {
            return None;
        }
        for (level, starts) in other.starts.into_iter().enumerate() {
            let before = self.starts.get(level + 1).map_or(self.len(), Vec::len);
            self.starts.get_mut(level)?.extend(starts.iter().map(|start| start + before));
        }
        match (&mut self.values, other.values) {
            (ColumnValues::Numbers(all), ColumnValues::Numbers(more)) => all.extend(more),
            (ColumnValues::Texts(all), ColumnValues::Texts(more)) => all.extend(more),
            _ => return None,
        }
        Some(())
    }
}
