//! XGBoost models, evaluated without the library.
//!
//! * [`mod@format`] finds the file of a model and detects its format;
//! * [`json`] and [`ubjson`] read documents into [`document`] values, and [`learner`] reads the
//!   model in them; [`binary`] reads the binary format, and [`pickle`] finds any of them in a pickle;
//! * [`forest`], [`objective`] and [`model`] evaluate a model; `embedded` is for those inside the models of
//!   other platforms, and `estimator` for those that are steps of scikit-learn's pipelines.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use crate::compared::ComparedVersions;
use crate::evaluated::{self, Evaluated};
use crate::refusal::{damaged, unsupported};
use tensorserve_platform::{Completeness, Inspection, LoadOptions, Loaded, Place, Platform};
use tensorserve_tensor::error::Result;

mod binary;
mod document;
#[cfg(feature = "h2o")]
pub(crate) mod embedded;
mod encoding;
#[cfg(feature = "sklearn")]
pub(crate) mod estimator;
mod forest;
mod format;
mod json;
mod learner;
mod model;
mod objective;
mod pickle;
mod reader;
mod ubjson;

/// The `xgboost` platform.
pub struct XGBoost;

/// The oldest and the newest XGBoost whose predictions were compared with those of this evaluator.
const COMPARED: ComparedVersions =
    ComparedVersions { library: "XGBoost", oldest: (0, 90), newest: (3, 4) };

/// Which boosting rounds take part in a prediction, where the file records the best one (early
/// stopping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundSelection {
    /// As the program that wrote the file: the scikit-learn wrappers stop at the best round, the
    /// library itself does not.
    AsWritten,
    /// Up to the best: the pickle of a wrapper.
    UpToBest,
    /// All: the pickle of a booster.
    All,
}

impl Platform for XGBoost {
    fn name(&self) -> &'static str {
        "xgboost"
    }

    fn title(&self) -> &'static str {
        "XGBoost"
    }

    fn describe(&self) -> Result<String> {
        Ok("XGBoost, built-in evaluator".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&format::XGBOOST_ENDINGS) || !format::find_by_content(place).is_empty()
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, folder: &Path) -> Completeness {
        evaluated::check(folder, &format::XGBOOST_ENDINGS, format::find)
    }

    fn inspect(&self, folder: &Path, _options: &LoadOptions) -> Result<Inspection> {
        Ok(read(folder)?.inspection())
    }

    fn load(&self, folder: &Path, _options: &LoadOptions) -> Result<Loaded> {
        let model = read(folder)?;
        // Files of versions before 1.0 do not record theirs.
        Ok(match model.written_by.is_empty() {
            true => model.loaded(),
            false => model.loaded_from(folder, &COMPARED),
        })
    }
}

fn read(folder: &Path) -> Result<Evaluated> {
    let (mut model, bytes) = format::read(folder)?;
    Ok(Evaluated {
        signatures: vec![model.signature()],
        written_by: mem::take(&mut model.written_by),
        executable: Arc::new(model),
        bytes,
    })
}

#[cfg(test)]
mod tests;
