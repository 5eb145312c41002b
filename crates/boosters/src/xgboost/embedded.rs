//! Boosters inside the models of other platforms, which add and transform the sums themselves.

use super::RoundSelection;
use super::encoding::read_bytes;
use super::model::XgboostModel;
use super::objective::{LibraryVersion, PredictionTransform};
use tensorserve_tensor::error::Result;

/// The first version whose sums start from the `base_score`. Before, it is added to them.
const FIRST_WITH_BASE_BEFORE_TREES: LibraryVersion = (1, 3);

/// A booster.
pub struct EmbeddedBooster(XgboostModel);

/// How a sum becomes a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddedTransform {
    /// The sum is the prediction.
    None,
    /// The logistic function of the sum.
    Sigmoid,
    /// The exponential of the sum.
    Exponential,
    /// The softmax of the sums of a row.
    Softmax,
}

impl EmbeddedBooster {
    /// Reads a booster in one of the library's formats. All rounds are used.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        read_bytes(bytes, RoundSelection::All).map(EmbeddedBooster)
    }

    /// The number of values of a row.
    pub fn features(&self) -> usize {
        self.0.features
    }

    /// The number of sums of a row.
    pub fn outputs(&self) -> usize {
        self.0.base().len()
    }

    /// The transform of its objective, if it is one of those that are known here.
    pub fn transform(&self) -> Option<EmbeddedTransform> {
        match self.0.transform() {
            PredictionTransform::Identity => Some(EmbeddedTransform::None),
            PredictionTransform::Sigmoid => Some(EmbeddedTransform::Sigmoid),
            PredictionTransform::Exponential => Some(EmbeddedTransform::Exponential),
            PredictionTransform::Softmax => Some(EmbeddedTransform::Softmax),
            PredictionTransform::HardThreshold
            | PredictionTransform::ArgMax
            | PredictionTransform::SortedQuantiles => None,
        }
    }

    /// Writes the sums of `rows` to `sums`. They start from `start(row)` where it is a number, and else
    /// from the `base_score`.
    pub fn sums(&self, rows: &[f32], sums: &mut [f32], start: impl Fn(usize) -> Option<f32>) {
        let outputs = self.outputs().max(1);
        let starts_first = self.0.version() >= FIRST_WITH_BASE_BEFORE_TREES;
        let add_start = |sums: &mut [f32]| {
            for (row, sums) in sums.chunks_exact_mut(outputs).enumerate() {
                let start = start(row);
                for (sum, base) in sums.iter_mut().zip(self.0.base()) {
                    *sum += start.unwrap_or(*base);
                }
            }
        };
        sums.fill(0.0);
        if starts_first {
            add_start(sums);
        }
        self.0.add_to(sums, rows);
        if !starts_first {
            add_start(sums);
        }
    }
}
