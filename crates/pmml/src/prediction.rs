//! What a model predicts for a row.

use super::field::MISSING;

/// The prediction of a model for a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct PmmlPrediction {
    /// The number, or the class as a value of the target; missing if there is no prediction.
    pub(super) value: f64,
    /// The index of the class; [`NO_CLASS`] if it is not a class.
    pub(super) class: u32,
    /// The code of the id of the node, segment or cluster that determined the prediction.
    pub(super) entity: f64,
    /// The index of the cluster; 0 if it is none.
    pub(super) index: u32,
}

/// The index in place of a class's.
pub(super) const NO_CLASS: u32 = u32::MAX;

impl PmmlPrediction {
    /// No prediction.
    pub(super) const MISSING: PmmlPrediction =
        PmmlPrediction { value: MISSING, class: NO_CLASS, entity: MISSING, index: 0 };

    /// The prediction of a number.
    pub(super) fn number(value: f64) -> Self {
        PmmlPrediction { value, ..PmmlPrediction::MISSING }
    }

    pub(super) fn is_missing(&self) -> bool {
        self.value.is_nan()
    }
}
