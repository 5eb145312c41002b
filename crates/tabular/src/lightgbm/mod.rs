//! LightGBM models, evaluated without the library.
//!
//! * [`mod@format`] finds the file of a model and detects its format;
//! * [`text`] reads the format of `save_model`, [`json`] the one of `dump_model`, and [`pickle`] finds
//!   the text in a pickle; each makes [`tree`]s;
//! * [`forest`], [`objective`] and [`model`] evaluate a model; `estimator` is for those that are steps of
//!   scikit-learn's pipelines.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use crate::compared::ComparedVersions;
use crate::evaluated::{self, Evaluated};
use crate::refusal::{damaged, unsupported};
use tensorserve_platform::{Completeness, Inspection, LoadOptions, Loaded, Place, Platform};
use tensorserve_tensor::error::Result;

#[cfg(feature = "sklearn")]
pub(crate) mod estimator;
mod forest;
mod format;
mod json;
mod model;
mod objective;
mod pickle;
mod text;
mod tree;

/// The `lightgbm` platform.
pub struct LightGBM;

impl Platform for LightGBM {
    fn name(&self) -> &'static str {
        "lightgbm"
    }

    fn title(&self) -> &'static str {
        "LightGBM"
    }

    fn describe(&self) -> Result<String> {
        Ok("LightGBM, built-in evaluator".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&format::LIGHTGBM_ENDINGS) || !format::find_by_content(place).is_empty()
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, folder: &Path) -> Completeness {
        evaluated::check(folder, &format::LIGHTGBM_ENDINGS, format::find)
    }

    fn inspect(&self, folder: &Path, _options: &LoadOptions) -> Result<Inspection> {
        Ok(read(folder)?.0.inspection())
    }

    fn load(&self, folder: &Path, _options: &LoadOptions) -> Result<Loaded> {
        let (model, may_lack_coefficients) = read(folder)?;
        if may_lack_coefficients {
            log::warn!("{}: {}", folder.display(), LACKS_COEFFICIENTS);
        }
        Ok(model.loaded_from(folder, &COMPARED))
    }
}

/// The oldest and the newest format whose predictions were compared with those of this evaluator: of LightGBM 2.2 to
/// 4.7.
const COMPARED: ComparedVersions =
    ComparedVersions { library: "LightGBM", oldest: (2, 0), newest: (4, 0) };

/// The warning for JSON that may be of LightGBM 3.2, which does not write the coefficients of linear trees.
const LACKS_COEFFICIENTS: &str = "if the model has linear trees (linear_tree=true) and LightGBM 3.2 wrote this \
     JSON, its predictions are wrong: that version leaves out their coefficients, and nothing in the file says \
     so; serve what save_model writes";

/// Reads the model in `folder`. Also returns whether it may lack the coefficients of linear trees.
fn read(folder: &Path) -> Result<(Evaluated, bool)> {
    let (mut model, bytes) = format::read(folder)?;
    let may_lack_coefficients = model.may_lack_coefficients;
    let model = Evaluated {
        signatures: vec![model.signature()],
        written_by: mem::take(&mut model.written_by),
        executable: Arc::new(model),
        bytes,
    };
    Ok((model, may_lack_coefficients))
}

#[cfg(test)]
mod tests;
