//! Clustering by distance from centres: the nearest cluster wins.

use super::field::{Kind, Row};
use super::model::{NO_CLASS, Place, Verdict};
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

pub(super) struct Clustering {
    fields: Box<[ClusterField]>,
    /// Of one cluster after the other, a number for each field.
    centres: Box<[f64]>,
    /// The codes of the names of clusters.
    names: Box<[f64]>,
    measure: Measure,
}

struct ClusterField {
    slot: u32,
    weight: f64,
}

#[derive(Clone, Copy, Debug)]
enum Measure {
    SquaredEuclidean,
    CityBlock,
    Chebychev,
}

impl Clustering {
    /// The number of the nearest cluster, of several the first, and its name.
    pub(super) fn score(&self, row: &Row) -> Verdict {
        if self.fields.iter().all(|field| row.get(field.slot).is_nan()) {
            return Verdict::MISSING;
        }
        let mut nearest: Option<(f64, f64)> = None;
        let centres = self.centres.chunks_exact(self.fields.len().max(1));
        for (centre, name) in centres.zip(&self.names) {
            let distance = self.distance(centre, row);
            if nearest.is_none_or(|(least, _)| distance < least) {
                nearest = Some((distance, *name));
            }
        }
        nearest.map_or(Verdict::MISSING, |(_, name)| Verdict {
            value: name,
            class: NO_CLASS,
            entity: name,
        })
    }

    /// The distance in the fields that are there. What the standard then multiplies it by is the same
    /// for every cluster.
    fn distance(&self, centre: &[f64], row: &Row) -> f64 {
        let mut distance = 0.0;
        for (field, centre) in self.fields.iter().zip(centre) {
            let off = (row.get(field.slot) - centre).abs();
            if off.is_nan() {
                continue;
            }
            match self.measure {
                Measure::SquaredEuclidean => distance += field.weight * off * off,
                Measure::CityBlock => distance += field.weight * off,
                Measure::Chebychev => distance = f64::max(distance, field.weight * off),
            }
        }
        distance
    }

    pub(super) fn read<'d>(
        builder: &mut Builder<'d>,
        element: Element<'d>,
        place: &Place,
    ) -> Result<Self> {
        if element.attribute("modelClass") == Some("distributionBased") {
            return Err(element.unsupported("modelClass=\"distributionBased\""));
        }
        let measure = measure(element)?;
        let mut fields = Vec::new();
        for field in element.all("ClusteringField") {
            if field.attribute("isCenterField") == Some("false") {
                continue;
            }
            if !matches!(field.attribute("compareFunction"), None | Some("absDiff")) {
                return Err(field.unsupported("another compareFunction than absDiff"));
            }
            let known = place.scope.field(field, "field")?;
            if known.kind == Kind::Text {
                return Err(field.unsupported("a clustering field of strings"));
            }
            let weight = field.number_or("fieldWeight", 1.0)?;
            fields.push(ClusterField { slot: known.slot, weight });
        }
        if fields.is_empty() {
            return Err(element.damaged("has no ClusteringField"));
        }
        let (mut centres, mut names) = (Vec::new(), Vec::new());
        for (index, cluster) in element.all("Cluster").enumerate() {
            let numbers = cluster.numbers()?;
            if numbers.len() != fields.len() {
                return Err(cluster.damaged("has not one number for each ClusteringField"));
            }
            centres.extend(numbers);
            let number = (index + 1).to_string();
            names.push(builder.symbols.intern(cluster.attribute("id").unwrap_or(&number)));
        }
        if names.is_empty() {
            return Err(element.damaged("has no Cluster"));
        }
        Ok(Clustering {
            fields: fields.into(),
            centres: centres.into(),
            names: names.into(),
            measure,
        })
    }
}

fn measure(element: Element) -> Result<Measure> {
    let comparison = element.need_child("ComparisonMeasure")?;
    if !matches!(comparison.attribute("compareFunction"), None | Some("absDiff")) {
        return Err(comparison.unsupported("another compareFunction than absDiff"));
    }
    let name = comparison.children().next().map_or("", Element::name);
    match name {
        // The nearest by the square is the nearest.
        "euclidean" | "squaredEuclidean" => Ok(Measure::SquaredEuclidean),
        "cityBlock" => Ok(Measure::CityBlock),
        "chebychev" => Ok(Measure::Chebychev),
        _ => Err(comparison.unsupported(format!("the measure {name:?}"))),
    }
}
