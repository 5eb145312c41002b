//! K-means.
//!
//! Source: `KMeansMojoModel` and `GenModel.KMeans_distance` of h2o-genmodel 3.46.0.6.

use super::head::{MojoHead, MojoScorer};
use super::numeric::float;
use tensorserve_tensor::error::{Error, Result};

/// The centers of clusters.
pub(super) struct KMeans {
    /// How each column is prepared; empty if it is not.
    standards: Vec<Standard>,
    /// Whether each column has levels.
    is_level: Vec<bool>,
    /// Of one center after the other.
    centers: Vec<f64>,
}

enum Standard {
    /// The mean and one over the deviation.
    Number(f64, f64),
    /// The number that stands for a missing one.
    Mean(f64),
    /// The level that stands for a missing one.
    Level(f64),
}

impl KMeans {
    /// Reads the model.
    pub(super) fn read(head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let mut centers = Vec::new();
        for number in 0..info.size("center_num")? {
            let key = format!("center_{number}");
            let center = info.numbers(&key)?;
            if center.len() != head.features {
                return Err(Error::damaged(format!(
                    "model.ini: {key} has {} numbers, and the model has {} features",
                    center.len(),
                    head.features
                )));
            }
            centers.extend(center);
        }
        let mut standards = Vec::new();
        if info.flag_or("standardize", false)? {
            let modes = info.integers("standardize_modes")?;
            let means = info.numbers("standardize_means")?;
            let factors = info.optional_numbers("standardize_mults")?;
            for column in 0..head.features {
                let factor = factors.as_ref().map(|factors| factors.get(column).copied());
                standards.push(match (modes.get(column), means.get(column), factor) {
                    (Some(-1), Some(mean), Some(Some(factor))) => Standard::Number(*mean, factor),
                    (Some(-1), Some(mean), None) => Standard::Mean(*mean),
                    (Some(mode), ..) if *mode != -1 => Standard::Level(f64::from(*mode)),
                    _ => {
                        return Err(Error::damaged(
                            "model.ini: the standards of a column are missing",
                        ));
                    }
                });
            }
        }
        let is_level = head.features().map(|(_, levels)| levels.is_some()).collect();
        Ok(KMeans { standards, is_level, centers })
    }

    /// The square of the distance between a row and a center. A column whose value is missing counts
    /// as the others do on average.
    #[allow(clippy::float_cmp)] // Levels.
    fn distance(&self, center: &[f64], row: &[f64]) -> f64 {
        let mut sum = 0.0;
        let mut known = row.len();
        for ((x, center), is_level) in row.iter().zip(center).zip(&self.is_level) {
            if x.is_nan() {
                known -= 1;
            } else if *is_level {
                sum += f64::from(u8::from(x != center));
            } else {
                sum += (x - center) * (x - center);
            }
        }
        if known > 0 && known < row.len() {
            sum *= float(row.len()) / float(known);
        }
        sum
    }
}

impl MojoScorer for KMeans {
    fn score(&self, rows: &mut [f64], _: &[f64], predictions: &mut [f64]) {
        let columns = self.is_level.len().max(1);
        let width = self.centers.len() / columns + 1;
        for (row, prediction) in
            rows.chunks_exact_mut(columns).zip(predictions.chunks_exact_mut(width))
        {
            for (x, standard) in row.iter_mut().zip(&self.standards) {
                match standard {
                    Standard::Number(mean, factor) => {
                        *x = (if x.is_nan() { *mean } else { *x } - mean) * factor;
                    }
                    Standard::Mean(other) | Standard::Level(other) if x.is_nan() => *x = *other,
                    Standard::Mean(_) | Standard::Level(_) => {}
                }
            }
            let Some((cluster, distances)) = prediction.split_first_mut() else { continue };
            let mut best = (-1.0, f64::MAX);
            let centers = self.centers.chunks_exact(columns);
            for (index, (distance, center)) in distances.iter_mut().zip(centers).enumerate() {
                *distance = self.distance(center, row);
                if *distance < best.1 {
                    best = (float(index), *distance);
                }
            }
            *cluster = best.0;
        }
    }
}
