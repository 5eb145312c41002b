//! `ClusteringModel`: the cluster with the nearest center.

use super::builder::PmmlBuilder;
use super::context::ModelContext;
use super::features::{ModelFeatures, SlotRange};
use super::field::MISSING;
use super::measure::{ComparisonField, ComparisonMeasure};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct ClusteringModel {
    fields: Box<[ComparisonField]>,
    /// The weight of each field where values are missing: `MissingValueWeights`.
    missing_weights: Box<[f64]>,
    /// The centers: for each cluster in turn, a number for each field.
    centers: Box<[f64]>,
    /// The ids of the clusters, and their codes.
    ids: Box<[(String, f64)]>,
    measure: ComparisonMeasure,
    /// The distance of each cluster.
    affinities: SlotRange,
    /// The ids and the distances of the clusters, the nearest first; only if an output needs them.
    ranked: Option<(SlotRange, SlotRange)>,
}

impl ClusteringModel {
    /// The id of the nearest cluster; of equally near ones, of the first.
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        if self.fields.iter().all(|field| row.get(field.slot).is_nan()) {
            return PmmlPrediction::MISSING;
        }
        let adjustment = self.adjustment(row);
        let mut nearest: Option<(f64, u32, f64)> = None;
        let centers = self.centers.chunks_exact(self.fields.len().max(1));
        for ((index, center), (_, id)) in (0u32..).zip(centers).zip(&self.ids) {
            let distance = self.measure.compare(&self.fields, row, center, adjustment);
            row.set(self.affinities.first.saturating_add(index), distance);
            if nearest.is_none_or(|(best, ..)| self.measure.is_nearer(distance, best)) {
                nearest = Some((distance, index, *id));
            }
        }
        if let Some((ids, affinities)) = self.ranked {
            self.rank(row, ids, affinities);
        }
        nearest.map_or(PmmlPrediction::MISSING, |(_, index, id)| PmmlPrediction {
            value: id,
            class: NO_CLASS,
            entity: id,
            index,
        })
    }

    fn rank(&self, row: &mut PmmlRow, ids: SlotRange, affinities: SlotRange) {
        let values = row.range(self.affinities.first, self.ids.len()).to_vec();
        for (rank, place) in (0u32..).zip(self.measure.ranking(&values)) {
            let id = self.ids.get(place).map_or(MISSING, |(_, id)| *id);
            row.set(ids.first.saturating_add(rank), id);
            let affinity = values.get(place).copied().unwrap_or(MISSING);
            row.set(affinities.first.saturating_add(rank), affinity);
        }
    }

    /// The factor that makes up for the fields that are missing.
    fn adjustment(&self, row: &PmmlRow) -> f64 {
        let (mut all, mut present) = (0.0, 0.0);
        for (field, weight) in self.fields.iter().zip(&self.missing_weights) {
            all += weight;
            if !row.get(field.slot).is_nan() {
                present += weight;
            }
        }
        if present > 0.0 { all / present } else { 1.0 }
    }

    pub(super) fn features(&self) -> ModelFeatures {
        let slots = self.affinities.first..;
        ModelFeatures {
            entities: self.ranked.map(|(ids, _)| ids),
            affinities: self.ranked.map(|(_, affinities)| affinities),
            affinity_of: self
                .ids
                .iter()
                .zip(slots)
                .map(|((id, _), slot)| (id.clone(), slot))
                .collect(),
            ..ModelFeatures::default()
        }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        if element.attribute("modelClass") == Some("distributionBased") {
            return Err(element.unsupported("modelClass=\"distributionBased\""));
        }
        let measure = ComparisonMeasure::read(element)?;
        let mut fields = Vec::new();
        for field in element.children_named("ClusteringField") {
            if field.attribute("isCenterField") != Some("false") {
                fields.push(measure.read_field(element, field, "field", context)?);
            }
        }
        if fields.is_empty() {
            return Err(element.damaged("has no ClusteringField"));
        }
        let missing_weights = match element.child("MissingValueWeights") {
            Some(weights) => weights.numbers()?,
            None => vec![1.0; fields.len()],
        };
        if missing_weights.len() != fields.len() {
            return Err(element.damaged("needs a MissingValueWeight for each field"));
        }
        let (mut centers, mut ids) = (Vec::new(), Vec::new());
        for (index, cluster) in element.children_named("Cluster").enumerate() {
            let center = cluster.numbers()?;
            if center.len() != fields.len() {
                let (have, need) = (center.len(), fields.len());
                return Err(cluster.damaged(format!("has {have} numbers for {need} fields")));
            }
            centers.extend(center);
            let default = (index + 1).to_string();
            let id = cluster.attribute("id").unwrap_or(&default);
            ids.push((id.to_owned(), builder.strings.intern(id)));
        }
        if ids.is_empty() {
            return Err(element.damaged("has no Cluster"));
        }
        let affinities = builder.allocate_range(element, ids.len())?;
        let ranked = match builder.needs_ranking {
            true => Some((
                builder.allocate_range(element, ids.len())?,
                builder.allocate_range(element, ids.len())?,
            )),
            false => None,
        };
        Ok(ClusteringModel {
            fields: fields.into(),
            missing_weights: missing_weights.into(),
            centers: centers.into(),
            ids: ids.into(),
            measure,
            affinities,
            ranked,
        })
    }
}
