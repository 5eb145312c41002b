//! `AnomalyDetectionModel`: how far a row is from those of the training, by an isolation forest, a
//! one-class support vector machine, or clusters.

use super::builder::PmmlBuilder;
use super::context::ModelContext;
use super::features::ModelFeatures;
use super::model::{self, MiningFunction, PmmlModel};
use super::prediction::PmmlPrediction;
use super::row::PmmlRow;
use super::schema;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct AnomalyModel {
    model: Box<PmmlModel>,
    score: AnomalyScore,
}

enum AnomalyScore {
    /// The mean depth of the leaves in the trees, relative to this one.
    Forest { depth: f64 },
    /// The prediction of the model.
    Prediction,
    /// The distance to the nearest cluster, relative to the mean one of each cluster.
    Clusters { affinities: Vec<u32>, means: Box<[f64]> },
}

const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

/// The mean depth of an unsuccessful search in a binary search tree of `size` keys.
fn mean_depth(size: f64) -> f64 {
    let harmonic = (size - 1.0).ln() + EULER_GAMMA;
    2.0 * harmonic - 2.0 * (size - 1.0) / size
}

impl AnomalyModel {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        let prediction = self.model.score(row);
        if prediction.is_missing() {
            return prediction;
        }
        let value = match &self.score {
            AnomalyScore::Forest { depth } => (-prediction.value / depth).exp2(),
            AnomalyScore::Prediction => prediction.value,
            AnomalyScore::Clusters { affinities, means } => {
                let index = prediction.index as usize;
                let distance = affinities.get(index).map_or(f64::NAN, |slot| row.get(*slot));
                distance / means.get(index).copied().unwrap_or(f64::NAN)
            }
        };
        PmmlPrediction::number(value)
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let inner = schema::find_model(element).ok_or_else(|| element.damaged("has no model"))?;
        let inside = ModelContext {
            classes: None,
            has_outputs: false,
            depth: context.depth + 1,
            ..context.clone()
        };
        let (model, _) = model::read_inner(builder, inner, &inside)?;
        let algorithm = element.required("algorithmType")?;
        if (algorithm == "clusterMeanDist") != (model.function == MiningFunction::Clustering) {
            return Err(inner.damaged(format!("is no model for algorithmType={algorithm:?}")));
        }
        let score = match algorithm {
            "iforest" => {
                let size = element.required_number("sampleDataSize")?;
                if size.is_nan() || size < 2.0 {
                    return Err(element.damaged("sampleDataSize is less than 2"));
                }
                AnomalyScore::Forest { depth: mean_depth(size) }
            }
            "ocsvm" | "other" => AnomalyScore::Prediction,
            "clusterMeanDist" => read_clusters(element, &model.features())?,
            other => return Err(element.unsupported(format!("algorithmType={other:?}"))),
        };
        if model.classes.is_some() {
            return Err(inner.unsupported("an anomaly model that predicts classes"));
        }
        Ok(AnomalyModel { model: Box::new(model), score })
    }
}

fn read_clusters(element: XmlElement, features: &ModelFeatures) -> Result<AnomalyScore> {
    let distances = element.required_child("MeanClusterDistances")?;
    let means = distances.numbers()?;
    if means.len() != features.affinity_of.len() {
        return Err(distances.damaged("needs a number for each cluster"));
    }
    let affinities = features.affinity_of.iter().map(|(_, slot)| *slot).collect();
    Ok(AnomalyScore::Clusters { affinities, means: means.into() })
}
