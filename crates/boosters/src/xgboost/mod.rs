//! XGBoost models, evaluated without the library.
//!
//! * [`mod@format`] finds the file of a model and detects its format;
//! * [`json`] and [`ubjson`] read documents into [`document`] values, and [`learner`] reads the
//!   model in them; [`binary`] reads the binary format, and [`pickle`] finds any of them in a pickle;
//! * [`forest`], [`objective`] and [`model`] evaluate a model; `embedded` is for those inside the models of
//!   other platforms, and `estimator` for those that are steps of scikit-learn's pipelines.

use std::mem;
use std::path::Path;

use tensorserve_platform::InputStyle;
use tensorserve_tabular::ComparedVersions;
use tensorserve_tabular::Evaluated;
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::error::Result;

mod binary;
mod document;
pub mod embedded;
mod encoding;
pub mod estimator;
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
pub const XGBOOST: FilePlatform = FilePlatform {
    name: "xgboost",
    title: "XGBoost",
    description: "XGBoost (built-in evaluator)",
    input_style: InputStyle::Rows,
    has_folders: false,
    compared: Some(ComparedVersions {
        library: "XGBoost",
        oldest: (0, 90),
        newest: (3, 4),
        // Since 1.0.
        recorded: false,
    }),
    recognises: |place| format::FILES.recognises(place),
    check: |folder| format::FILES.check(folder),
    read,
};

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

fn read(path: &Path) -> Result<Evaluated> {
    Evaluated::read(&format::FILES.find(path)?, encoding::MAX_FILE_BYTES, |bytes| {
        let mut model = format::read_file(bytes)?;
        let written_by = mem::take(&mut model.written_by);
        Ok(Evaluated::new(model.signature(), model, written_by))
    })
}

#[cfg(test)]
mod tests;
