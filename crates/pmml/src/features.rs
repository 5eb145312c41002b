//! What a model computes besides its prediction, for outputs.

/// Adjacent values of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRange {
    pub(super) first: u32,
    pub(super) len: u32,
}

impl SlotRange {
    /// The slot of value number `rank`, from 1; `None` if there are fewer.
    pub(super) fn at(self, rank: u32) -> Option<u32> {
        let is_valid = (1..=self.len).contains(&rank);
        is_valid.then(|| self.first.saturating_add(rank - 1))
    }
}

/// What a model computes besides its prediction. The values are missing unless a row has them.
#[derive(Default)]
pub(super) struct ModelFeatures {
    /// The codes of reasons, the most important first.
    pub(super) reason_codes: Option<SlotRange>,
    /// The ids of clusters or neighbors, the nearest first.
    pub(super) entities: Option<SlotRange>,
    /// Their distances or similarities.
    pub(super) affinities: Option<SlotRange>,
    /// The distance or similarity of each cluster, by its id.
    pub(super) affinity_of: Vec<(String, u32)>,
    /// The slot of the confidence in the first class; those of the others follow.
    pub(super) class_confidences: Option<u32>,
    /// The slot of the confidence in the prediction.
    pub(super) confidence: Option<u32>,
}
