//! `ClusteringModel`: the cluster with the nearest center.

use super::builder::PmmlBuilder;
use super::context::ModelContext;
use super::field::{PmmlRow, ValueKind};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct ClusteringModel {
    fields: Box<[ClusterField]>,
    /// The centers: for each cluster in turn, a number for each field.
    centers: Box<[f64]>,
    /// The codes of the ids of the clusters.
    ids: Box<[f64]>,
    measure: DistanceMeasure,
}

struct ClusterField {
    slot: u32,
    weight: f64,
}

#[derive(Clone, Copy, Debug)]
enum DistanceMeasure {
    SquaredEuclidean,
    CityBlock,
    Chebychev,
}

impl ClusteringModel {
    /// The id of the nearest cluster; of equally near ones, of the first.
    pub(super) fn score(&self, row: &PmmlRow) -> PmmlPrediction {
        if self.fields.iter().all(|field| row.get(field.slot).is_nan()) {
            return PmmlPrediction::MISSING;
        }
        let mut nearest: Option<(f64, f64)> = None;
        let centers = self.centers.chunks_exact(self.fields.len().max(1));
        for (center, id) in centers.zip(&self.ids) {
            let distance = self.distance(center, row);
            if nearest.is_none_or(|(smallest, _)| distance < smallest) {
                nearest = Some((distance, *id));
            }
        }
        nearest.map_or(PmmlPrediction::MISSING, |(_, id)| PmmlPrediction {
            value: id,
            class: NO_CLASS,
            entity: id,
        })
    }

    /// The distance in the fields that are not missing. The standard adjusts it for those that are by a
    /// factor that is the same for all clusters.
    fn distance(&self, center: &[f64], row: &PmmlRow) -> f64 {
        let mut distance = 0.0;
        for (field, center) in self.fields.iter().zip(center) {
            let difference = (row.get(field.slot) - center).abs();
            if difference.is_nan() {
                continue;
            }
            match self.measure {
                DistanceMeasure::SquaredEuclidean => {
                    distance += field.weight * difference * difference;
                }
                DistanceMeasure::CityBlock => distance += field.weight * difference,
                DistanceMeasure::Chebychev => {
                    distance = f64::max(distance, field.weight * difference);
                }
            }
        }
        distance
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        if element.attribute("modelClass") == Some("distributionBased") {
            return Err(element.unsupported("modelClass=\"distributionBased\""));
        }
        let measure = read_measure(element)?;
        let fields = read_fields(element, context)?;
        let (mut centers, mut ids) = (Vec::new(), Vec::new());
        for (index, cluster) in element.children_named("Cluster").enumerate() {
            let center = cluster.numbers()?;
            if center.len() != fields.len() {
                let (have, need) = (center.len(), fields.len());
                return Err(cluster.damaged(format!("has {have} numbers for {need} fields")));
            }
            centers.extend(center);
            let default = (index + 1).to_string();
            ids.push(builder.strings.intern(cluster.attribute("id").unwrap_or(&default)));
        }
        if ids.is_empty() {
            return Err(element.damaged("has no Cluster"));
        }
        Ok(ClusteringModel { fields, centers: centers.into(), ids: ids.into(), measure })
    }
}

fn read_fields(element: XmlElement, context: &ModelContext) -> Result<Box<[ClusterField]>> {
    let mut fields = Vec::new();
    for clustering_field in element.children_named("ClusteringField") {
        if clustering_field.attribute("isCenterField") == Some("false") {
            continue;
        }
        check_compare_function(clustering_field)?;
        let field = context.scope.field(clustering_field, "field")?;
        if field.data_type.kind == ValueKind::Text {
            return Err(clustering_field.unsupported("a clustering field of strings"));
        }
        let weight = clustering_field.number_or("fieldWeight", 1.0)?;
        fields.push(ClusterField { slot: field.slot, weight });
    }
    match fields.is_empty() {
        true => Err(element.damaged("has no ClusteringField")),
        false => Ok(fields.into()),
    }
}

fn read_measure(element: XmlElement) -> Result<DistanceMeasure> {
    let comparison = element.required_child("ComparisonMeasure")?;
    check_compare_function(comparison)?;
    match comparison.children().next().map_or("", XmlElement::name) {
        // The square does not change which cluster is nearest.
        "euclidean" | "squaredEuclidean" => Ok(DistanceMeasure::SquaredEuclidean),
        "cityBlock" => Ok(DistanceMeasure::CityBlock),
        "chebychev" => Ok(DistanceMeasure::Chebychev),
        name => Err(comparison.unsupported(format!("the measure {name:?}"))),
    }
}

fn check_compare_function(element: XmlElement) -> Result<()> {
    match element.attribute("compareFunction") {
        None | Some("absDiff") => Ok(()),
        Some(other) => Err(element.unsupported(format!("compareFunction={other:?}"))),
    }
}
