//! `MapValues`: a table from the values of fields to a result.

use std::cmp::Ordering;

use super::field::{FieldScope, PmmlField, PmmlType};
use super::row::PmmlRow;
use super::strings::StringTable;
use tensorserve_codec::xml::{XmlElement, local_name};
use tensorserve_tensor::error::Result;

/// Rows of keys with a result each, sorted by their keys.
#[derive(Debug)]
pub(super) struct MapValues {
    /// The fields that are the keys.
    slots: Box<[u32]>,
    /// The keys of one row after the other.
    keys: Box<[f64]>,
    results: Box<[f64]>,
}

impl MapValues {
    /// Whether no key of `row` is missing.
    pub(super) fn has_keys(&self, row: &PmmlRow) -> bool {
        !self.slots.iter().any(|slot| row.get(*slot).is_nan())
    }

    /// The result for the keys of `row`, none of them missing.
    pub(super) fn find(&self, row: &PmmlRow) -> Option<f64> {
        let (mut low, mut high) = (0, self.results.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.compare(middle, row).is_lt() { low = middle + 1 } else { high = middle }
        }
        let is_found = low < self.results.len() && self.compare(low, row).is_eq();
        self.results.get(low).copied().filter(|_| is_found)
    }

    /// Compares the keys number `index` of the table with those of `row`.
    fn compare(&self, index: usize, row: &PmmlRow) -> Ordering {
        let width = self.slots.len();
        let keys = self.keys.get(index * width..(index + 1) * width).unwrap_or_default();
        compare_keys(keys.iter().copied(), self.slots.iter().map(|slot| key(row.get(*slot))))
    }

    /// Reads the inline table of `element`, whose results are of type `data_type`.
    pub(super) fn read(
        element: XmlElement,
        data_type: PmmlType,
        scope: &FieldScope,
        strings: &mut StringTable,
    ) -> Result<Self> {
        let mut columns: Vec<(PmmlField, &str)> = Vec::new();
        for pair in element.children_named("FieldColumnPair") {
            columns.push((scope.field(pair, "field")?, pair.required("column")?));
        }
        if columns.is_empty() {
            return Err(element.damaged("has no FieldColumnPair"));
        }
        let output = element.required("outputColumn")?;
        let Some(inline) = element.child("InlineTable") else {
            return Err(element.unsupported("a table outside of the file"));
        };
        let mut rows = Vec::new();
        for row in inline.children_named("row") {
            let mut keys = Vec::with_capacity(columns.len());
            for (field, column) in &columns {
                keys.push(key(strings.constant(row, field.data_type, cell(row, column)?)?));
            }
            rows.push((keys, strings.constant(row, data_type, cell(row, output)?)?));
        }
        // A stable sort: of several rows with the same keys, the first is found.
        rows.sort_by(|(a, _), (b, _)| compare_keys(a.iter().copied(), b.iter().copied()));
        Ok(MapValues {
            slots: columns.iter().map(|(field, _)| field.slot).collect(),
            keys: rows.iter().flat_map(|(keys, _)| keys.iter().copied()).collect(),
            results: rows.iter().map(|(_, result)| *result).collect(),
        })
    }
}

/// A value as a key: negative zero, which is another one in the total order, becomes zero.
fn key(value: f64) -> f64 {
    value + 0.0
}

fn compare_keys(a: impl Iterator<Item = f64>, b: impl Iterator<Item = f64>) -> Ordering {
    let mut orders = a.zip(b).map(|(a, b)| a.total_cmp(&b));
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// The text of the cell in `column` of a table's row.
fn cell<'d>(row: XmlElement<'d>, column: &str) -> Result<&'d str> {
    let mut cells = row.children();
    let cell = cells.find(|cell| local_name(cell.name()) == local_name(column));
    cell.map(XmlElement::text).ok_or_else(|| row.damaged(format!("has no column {column:?}")))
}
