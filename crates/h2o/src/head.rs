//! What all models say of themselves in `model.ini`, and what they compute.

use super::files::MojoFiles;
use super::info::MojoInfo;
use tensorserve_tensor::error::{Error, Result};

/// The most columns of a model: each row of a request takes a number in memory for each.
const MAX_FEATURES: usize = 1 << 17;

/// The most numbers of a prediction.
pub(super) const MAX_WIDTH: usize = 1 << 16;

/// The only order of bytes that is read: that of the machines that models are written on.
const LITTLE_ENDIAN: &str = "LITTLE_ENDIAN";

/// What computes predictions.
pub(super) trait MojoScorer: Send + Sync {
    /// Predicts for `rows`, one after the other, with a number for each feature, and NaN for a missing
    /// one; they may be changed. `offsets` has a number for each row. Writes to `predictions`, which
    /// has the same length for each row, what H2O's `score0` writes.
    fn score(&self, rows: &mut [f64], offsets: &[f64], predictions: &mut [f64]);
}

/// What all models say of themselves.
pub(super) struct MojoHead {
    pub(super) info: MojoInfo,
    /// The number of features: the first columns.
    pub(super) features: usize,
    /// The number of classes; 1 for a model that predicts a number.
    pub(super) classes: usize,
    /// What kind of predictions it makes.
    pub(super) category: String,
}

impl MojoHead {
    /// Reads `model.ini`.
    pub(super) fn read(files: &MojoFiles) -> Result<Self> {
        let info = MojoInfo::read(files)?;
        if let Some(order) = info.text("endianness").filter(|order| *order != LITTLE_ENDIAN) {
            return Err(Error::unsupported(format!(
                "a MOJO of the byte order {order} is not supported"
            )));
        }
        let features = info.size("n_features")?;
        if features == 0 || features > info.columns.len() || features > MAX_FEATURES {
            return Err(Error::damaged(format!(
                "model.ini: n_features is {features}, and there are {} columns",
                info.columns.len()
            )));
        }
        let classes = info.size("n_classes")?.max(1);
        if classes >= MAX_WIDTH {
            return Err(Error::unsupported(format!(
                "the model has {classes} classes; fewer than {MAX_WIDTH} are supported"
            )));
        }
        let category = info.required("category")?.to_owned();
        Ok(MojoHead { info, features, classes, category })
    }

    /// The algorithm, by its short name.
    pub(super) fn algorithm(&self) -> Result<&str> {
        if let Some(short) = self.info.text("algo") {
            return Ok(short);
        }
        // Before 3.12 the file has the long one only.
        let long = self.info.required("algorithm")?;
        Ok(match long {
            "Gradient Boosting Machine" | "Gradient Boosting Method" => "gbm",
            "Distributed Random Forest" => "drf",
            "Generalized Linear Model" | "Generalized Linear Modeling" => "glm",
            "K-means" => "kmeans",
            "Deep Learning" => "deeplearning",
            other => other,
        })
    }

    /// Refuses MOJOs of a newer format than H2O 3.46 writes.
    pub(super) fn check_version(&self, algorithm: &str) -> Result<()> {
        let newest = match algorithm {
            "gbm" | "drf" | "isolationforest" => 1.4,
            "deeplearning" | "xgboost" => 1.1,
            "stackedensemble" => 1.01,
            _ => 1.0,
        };
        let version = self.info.number("mojo_version")?;
        if version > newest {
            return Err(Error::unsupported(format!(
                "MOJO version {version} of {algorithm} is not supported, only up to {newest}"
            )));
        }
        Ok(())
    }

    /// How many trees a group has if the file does not say: before MOJO 1.1.
    pub(super) fn default_trees(&self, info: &MojoInfo) -> Result<usize> {
        let is_single = self.classes == 2 && !info.flag_or("binomial_double_trees", false)?;
        Ok(if is_single { 1 } else { self.classes })
    }

    /// Whether the model predicts classes.
    pub(super) fn is_classifier(&self) -> bool {
        matches!(&*self.category, "Binomial" | "Multinomial" | "Ordinal")
    }

    /// The classes; `None` if the file does not name them.
    pub(super) fn response(&self) -> Option<&[String]> {
        self.info.domains.last().and_then(Option::as_deref)
    }

    /// The features and their levels.
    pub(super) fn features(&self) -> impl Iterator<Item = (&str, Option<&[String]>)> {
        let columns = self.info.columns.iter().map(String::as_str);
        let domains = self.info.domains.iter().map(Option::as_deref);
        columns.zip(domains).take(self.features)
    }

    /// The name of the column of offsets.
    pub(super) fn offset_column(&self) -> Option<&str> {
        self.info.text("offset_column")
    }
}
