//! LightGBM models, evaluated without the library.
//!
//! * [`mod@format`] finds the file of a model and detects its format;
//! * [`text`] reads the format of `save_model`, [`json`] the one of `dump_model`, and [`pickle`] finds
//!   the text in a pickle; each makes [`tree`]s;
//! * [`forest`], [`objective`] and [`model`] evaluate a model; `estimator` is for those that are steps of
//!   scikit-learn's pipelines.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use tensorserve_platform::{Completeness, Inspection, LoadOptions, Loaded, Place, Platform, files};
use tensorserve_tensor::error::{Code, Error, Result};

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
        match files::check(folder, &format::LIGHTGBM_ENDINGS) {
            Completeness::Missing(what) => match format::find(folder) {
                Ok(_) => Completeness::Complete,
                Err(error) if error.code() == Code::NotFound => Completeness::Missing(what),
                Err(error) => Completeness::Broken(error),
            },
            found @ (Completeness::Complete | Completeness::Broken(_)) => found,
        }
    }

    fn inspect(&self, folder: &Path, _options: &LoadOptions) -> Result<Inspection> {
        let (model, bytes) = format::read(folder)?;
        Ok(Inspection {
            signatures: vec![model.signature()],
            written_by: model.written_by,
            bytes,
            external_ops: Vec::new(),
        })
    }

    fn load(&self, folder: &Path, _options: &LoadOptions) -> Result<Loaded> {
        let (model, bytes) = format::read(folder)?;
        Ok(Loaded {
            signatures: vec![model.signature()],
            executable: Arc::new(model),
            bytes,
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

/// The error for a damaged file.
fn damaged(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Code::DataLoss, message)
}

/// The error for an intact model that cannot be evaluated.
fn unsupported(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Code::Unimplemented, message)
}

#[cfg(test)]
mod tests;
