//! `NormContinuous`: a piecewise linear function.

use super::field::MISSING;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// A piecewise linear function through points with ascending first coordinates.
#[derive(Debug)]
pub(super) struct NormContinuous {
    /// At least two.
    points: Box<[(f64, f64)]>,
    outliers: OutlierTreatment,
}

/// The result for a value before the first or behind the last point.
#[derive(Clone, Copy, Debug)]
enum OutlierTreatment {
    /// That of the nearest piece, extrapolated.
    Extrapolate,
    Missing,
    /// That of the nearest point.
    Clip,
}

impl NormContinuous {
    /// Reads the function that normalises a value.
    pub(super) fn read(element: XmlElement) -> Result<Self> {
        NormContinuous::through(element, read_points(element)?)
    }

    /// Reads the inverse function.
    pub(super) fn read_inverse(element: XmlElement) -> Result<Self> {
        let mut points: Vec<_> = read_points(element)?.into_iter().map(|(x, y)| (y, x)).collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        NormContinuous::through(element, points)
    }

    fn through(element: XmlElement, points: Vec<(f64, f64)>) -> Result<Self> {
        let is_ascending = points.windows(2).all(|pair| match pair {
            [(a, _), (b, _)] => a < b,
            _ => true,
        });
        if points.len() < 2 || !is_ascending {
            return Err(element.damaged("needs two or more LinearNorm with ascending orig"));
        }
        let outliers = match element.attribute("outliers").unwrap_or("asIs") {
            "asIs" => OutlierTreatment::Extrapolate,
            "asMissingValues" => OutlierTreatment::Missing,
            "asExtremeValues" => OutlierTreatment::Clip,
            other => return Err(element.damaged(format!("outliers={other:?} is not valid"))),
        };
        Ok(NormContinuous { points: points.into(), outliers })
    }

    /// The value of the function.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return MISSING;
        };
        if value < first.0 || value > last.0 {
            match self.outliers {
                OutlierTreatment::Extrapolate => {}
                OutlierTreatment::Missing => return MISSING,
                OutlierTreatment::Clip => return if value < first.0 { first.1 } else { last.1 },
            }
        }
        // The piece that ends at or behind the value; beyond the points, the first or the last piece.
        let end = self.points.partition_point(|(orig, _)| *orig < value);
        let end = end.clamp(1, self.points.len() - 1);
        match self.points.get(end - 1..=end) {
            Some([(x0, y0), (x1, y1)]) => y0 + (value - x0) / (x1 - x0) * (y1 - y0),
            _ => MISSING,
        }
    }
}

fn read_points(element: XmlElement) -> Result<Vec<(f64, f64)>> {
    let mut points = Vec::new();
    for point in element.children_named("LinearNorm") {
        points.push((point.required_number("orig")?, point.required_number("norm")?));
    }
    Ok(points)
}
