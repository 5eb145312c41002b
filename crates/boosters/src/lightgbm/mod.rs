//! LightGBM models, evaluated without the library.
//!
//! * [`mod@format`] finds the file of a model and detects its format;
//! * [`text`] reads the format of `save_model`, [`json`] the one of `dump_model`, and [`pickle`] finds
//!   the text in a pickle; each makes [`tree`]s;
//! * [`forest`], [`objective`] and [`model`] evaluate a model; `estimator` is for those that are steps of
//!   scikit-learn's pipelines.

use std::mem;
use std::path::Path;

use tensorserve_platform::InputStyle;
use tensorserve_tabular::ComparedVersions;
use tensorserve_tabular::Evaluated;
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::error::Result;

pub mod estimator;
mod forest;
mod format;
mod json;
mod model;
mod objective;
mod pickle;
mod text;
mod tree;

/// The `lightgbm` platform.
pub const LIGHTGBM: FilePlatform = FilePlatform {
    name: "lightgbm",
    title: "LightGBM",
    description: "LightGBM (built-in evaluator)",
    input_style: InputStyle::Rows,
    has_folders: false,
    // Versions of the format: those of LightGBM 2.2 to 4.7.
    compared: Some(ComparedVersions {
        library: "LightGBM",
        oldest: (2, 0),
        newest: (4, 0),
        recorded: true,
    }),
    recognises: |place| format::FILES.recognises(place),
    check: |folder| format::FILES.check(folder),
    read,
};

/// The warning for JSON that may be of LightGBM 3.2, which does not write the coefficients of linear trees.
const LACKS_COEFFICIENTS: &str = "if the model has linear trees (linear_tree=true) and LightGBM 3.2 wrote this \
     JSON, its predictions are wrong: that version leaves out their coefficients, and nothing in the file says \
     so; serve what save_model writes";

fn read(path: &Path) -> Result<Evaluated> {
    Evaluated::read(&format::FILES.find(path)?, pickle::MAX_FILE_BYTES, |bytes| {
        let mut model = format::read_file(bytes)?;
        let written_by = mem::take(&mut model.written_by);
        let warnings = match model.may_lack_coefficients {
            true => vec![LACKS_COEFFICIENTS.to_owned()],
            false => Vec::new(),
        };
        Ok(Evaluated { warnings, ..Evaluated::new(model.signature(), model, written_by) })
    })
}

#[cfg(test)]
mod tests;
