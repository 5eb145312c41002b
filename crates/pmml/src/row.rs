//! The values of a row while it is scored.

use super::field::MISSING;
use super::strings::RowStrings;

/// The values of one row.
pub(super) struct PmmlRow<'r> {
    pub(super) values: &'r mut [f64],
    pub(super) strings: &'r RowStrings<'r>,
}

impl PmmlRow<'_> {
    #[inline]
    pub(super) fn get(&self, slot: u32) -> f64 {
        self.values.get(slot as usize).copied().unwrap_or(MISSING)
    }

    #[inline]
    pub(super) fn set(&mut self, slot: u32, value: f64) {
        if let Some(place) = self.values.get_mut(slot as usize) {
            *place = value;
        }
    }

    /// The `count` values from `slot` on.
    pub(super) fn range(&mut self, slot: u32, count: usize) -> &mut [f64] {
        let start = slot as usize;
        self.values.get_mut(start..start.saturating_add(count)).unwrap_or_default()
    }

    /// Whether two strings, neither of them missing, are equal.
    pub(super) fn same_text(&self, a: f64, b: f64) -> bool {
        self.strings.same(a, b)
    }
}
