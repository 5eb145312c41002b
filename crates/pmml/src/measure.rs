//! Distances and similarities between a row and known points, for clusters and neighbors.

use super::context::ModelContext;
use super::field::{ValueKind, indicator};
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// A field of points.
pub(super) struct ComparisonField {
    pub(super) slot: u32,
    weight: f64,
    compare: CompareFunction,
}

/// How two values are compared: `compareFunction`.
#[derive(Clone, Copy, Debug)]
enum CompareFunction {
    AbsoluteDifference,
    /// With the factor of the square in the exponent.
    GaussianSimilarity(f64),
    Delta,
    Equal,
}

/// How the comparisons of all fields are combined.
#[derive(Clone, Copy, Debug)]
enum Combination {
    Euclidean,
    SquaredEuclidean,
    Chebychev,
    CityBlock,
    Minkowski(f64),
    /// The weights of both present, only the first, only the second, none; in the numerator and in the
    /// denominator.
    Binary([f64; 4], [f64; 4]),
}

/// `ComparisonMeasure`.
pub(super) struct ComparisonMeasure {
    combination: Combination,
    compare: Option<CompareFunction>,
    /// Whether a larger value is nearer.
    pub(super) is_similarity: bool,
}

impl CompareFunction {
    fn read(element: XmlElement, scale: Option<f64>) -> Result<Option<Self>> {
        Ok(match element.attribute("compareFunction") {
            None => None,
            Some("absDiff") => Some(CompareFunction::AbsoluteDifference),
            Some("delta") => Some(CompareFunction::Delta),
            Some("equal") => Some(CompareFunction::Equal),
            Some("gaussSim") => {
                let scale = scale.ok_or_else(|| {
                    element.unsupported("compareFunction=\"gaussSim\" without a similarityScale")
                })?;
                let factor = -std::f64::consts::LN_2 / (scale * scale);
                Some(CompareFunction::GaussianSimilarity(factor))
            }
            Some(other) => {
                return Err(element.unsupported(format!("compareFunction={other:?}")));
            }
        })
    }

    #[allow(clippy::float_cmp)] // Categories.
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            CompareFunction::AbsoluteDifference => (a - b).abs(),
            CompareFunction::GaussianSimilarity(factor) => (factor * (a - b) * (a - b)).exp(),
            CompareFunction::Delta => indicator(a != b),
            CompareFunction::Equal => indicator(a == b),
        }
    }
}

impl ComparisonMeasure {
    /// Reads the measure of a model.
    pub(super) fn read(model: XmlElement) -> Result<Self> {
        let element = model.required_child("ComparisonMeasure")?;
        let measure = element.children().next();
        let measure = measure.ok_or_else(|| element.damaged("has no measure"))?;
        let number = |name: &str| measure.required_number(name);
        let combination = match measure.name() {
            "euclidean" => Combination::Euclidean,
            "squaredEuclidean" => Combination::SquaredEuclidean,
            "chebychev" => Combination::Chebychev,
            "cityBlock" => Combination::CityBlock,
            "minkowski" => Combination::Minkowski(number("p-parameter")?),
            "simpleMatching" => Combination::Binary([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]),
            "jaccard" => Combination::Binary([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]),
            "tanimoto" => Combination::Binary([1.0, 0.0, 0.0, 1.0], [1.0, 2.0, 2.0, 1.0]),
            "binarySimilarity" => Combination::Binary(
                [
                    number("c11-parameter")?,
                    number("c10-parameter")?,
                    number("c01-parameter")?,
                    number("c00-parameter")?,
                ],
                [
                    number("d11-parameter")?,
                    number("d10-parameter")?,
                    number("d01-parameter")?,
                    number("d00-parameter")?,
                ],
            ),
            name => return Err(element.unsupported(format!("the measure {name:?}"))),
        };
        let is_similarity = match element.attribute("kind") {
            Some("similarity") => true,
            None | Some("distance") => matches!(combination, Combination::Binary(..)),
            Some(other) => return Err(element.damaged(format!("kind={other:?} is not valid"))),
        };
        let compare = CompareFunction::read(element, None).or_else(|error| {
            // Each field has its own scale.
            if element.attribute("compareFunction") == Some("gaussSim") {
                Ok(None)
            } else {
                Err(error)
            }
        })?;
        Ok(ComparisonMeasure { combination, compare, is_similarity })
    }

    /// Reads a field of the model: `element` names it in the attribute `attribute`.
    pub(super) fn read_field(
        &self,
        model: XmlElement,
        element: XmlElement,
        attribute: &str,
        context: &ModelContext,
    ) -> Result<ComparisonField> {
        let field = context.scope.field(element, attribute)?;
        let scale = element.number("similarityScale")?;
        let own = CompareFunction::read(element, scale)?;
        let measure = model.required_child("ComparisonMeasure")?;
        let compare = match own.or(self.compare) {
            Some(compare) => compare,
            None => match CompareFunction::read(measure, scale)? {
                Some(compare) => compare,
                None => CompareFunction::AbsoluteDifference,
            },
        };
        let is_number = matches!(field.data_type.kind, ValueKind::Number | ValueKind::Boolean);
        let needs_number = matches!(
            compare,
            CompareFunction::AbsoluteDifference | CompareFunction::GaussianSimilarity(_)
        );
        if needs_number && !is_number {
            return Err(element.unsupported("the difference of values that are not numbers"));
        }
        let weight = element.number_or("fieldWeight", 1.0)?;
        Ok(ComparisonField { slot: field.slot, weight, compare })
    }

    /// The distance or similarity of the row and a point, in the fields that neither is missing.
    /// `adjustment` makes up for the others.
    pub(super) fn compare(
        &self,
        fields: &[ComparisonField],
        row: &PmmlRow,
        point: &[f64],
        adjustment: f64,
    ) -> f64 {
        let pairs =
            fields.iter().zip(point).map(|(field, known)| (field, row.get(field.slot), *known));
        let present = pairs.filter(|(_, a, b)| !a.is_nan() && !b.is_nan());
        if let Combination::Binary(numerator, denominator) = &self.combination {
            return binary_similarity(present.map(|(_, a, b)| (a, b)), numerator, denominator);
        }
        let compared = present.map(|(field, a, b)| (field.weight, field.compare.apply(a, b)));
        match self.combination {
            Combination::Chebychev => {
                compared.map(|(weight, value)| weight * value).fold(0.0, f64::max) * adjustment
            }
            Combination::CityBlock => {
                compared.map(|(weight, value)| weight * value).sum::<f64>() * adjustment
            }
            Combination::Minkowski(p) => {
                let sum: f64 = compared.map(|(weight, value)| weight * value.powf(p)).sum();
                (sum * adjustment).powf(1.0 / p)
            }
            Combination::Euclidean | Combination::SquaredEuclidean | Combination::Binary(..) => {
                let sum: f64 = compared.map(|(weight, value)| weight * value * value).sum();
                let sum = sum * adjustment;
                if let Combination::Euclidean = self.combination { sum.sqrt() } else { sum }
            }
        }
    }

    /// Whether `a` is nearer than `b`.
    pub(super) fn is_nearer(&self, a: f64, b: f64) -> bool {
        if self.is_similarity { a > b } else { a < b }
    }

    /// The places of values, the nearest first; of equal ones, the first first.
    pub(super) fn ranking(&self, values: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..values.len()).collect();
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        order.sort_by(|a, b| match self.is_similarity {
            true => at(*b).total_cmp(&at(*a)),
            false => at(*a).total_cmp(&at(*b)),
        });
        order
    }
}

/// The similarity of two sets, whose members have a value other than 0.
fn binary_similarity(
    pairs: impl Iterator<Item = (f64, f64)>,
    numerator: &[f64; 4],
    denominator: &[f64; 4],
) -> f64 {
    let (mut above, mut below) = (0.0, 0.0);
    for (a, b) in pairs {
        let place = match (a != 0.0, b != 0.0) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 3,
        };
        above += numerator.get(place).copied().unwrap_or(0.0);
        below += denominator.get(place).copied().unwrap_or(0.0);
    }
    above / below
}
