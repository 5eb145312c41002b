//! Models that are Python objects: pickles of scikit-learn, XGBoost, LightGBM or of the operator's own
//! classes, and models of CatBoost, loaded and called in worker processes of the operator's Python.
//!
//! Loading a pickle runs code that it contains. So [`Python`] loads only models for which the operator's
//! own configuration chooses it (`runner = "python"`), and nothing in a model's directory can.
//!
//! * `description` is what a process reports of the model that it has loaded: its signatures;
//! * `tensors` are the tensors of a call and a reply;
//! * `model` starts the processes, and calls them ([`Executable`](tensorserve_platform::Executable)).
//!
//! The other side is `python/models.py`, `python/arrays.py` and `python/columns.py`.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::model::PythonModel;
use tensorserve_platform::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath, Platform,
    PlatformInfo, RuntimeLibrary, files,
};
use tensorserve_preprocessing::declared_signature;
use tensorserve_tensor::error::Result;
use tensorserve_workers::Workers;

mod description;
mod model;
mod tensors;

/// The name of the platform.
pub const NAME: &str = "python";

/// The endings of model files.
const ENDINGS: [&str; 5] = [".pkl", ".pickle", ".joblib", ".skops", ".cbm"];

/// The directory beside a model with modules that its classes come from.
const CODE: &str = "code";

/// The platform of models that run in Python.
pub struct Python {
    workers: Workers,
}

impl Python {
    /// The platform, whose processes `workers` supervises.
    #[must_use]
    pub fn new(workers: Workers) -> Self {
        Python { workers }
    }

    /// Starts processes for the model of a version, `count` if that is given.
    fn start(
        &self,
        folder: &Path,
        options: &LoadOptions,
        count: Option<usize>,
    ) -> Result<(PythonModel, u64)> {
        let file = files::find(folder, &ENDINGS)?;
        let bytes = fs::metadata(&file).map_or(0, |metadata| metadata.len());
        let declared = declared_signature(folder)?.unwrap_or_default();
        let mut runner = options.runner.clone();
        runner.workers = count.unwrap_or(runner.workers);
        let model = PythonModel::start(&self.workers, &file, &code_of(folder), &declared, &runner)
            .map_err(|error| error.context(file.display()))?;
        Ok((model, bytes))
    }
}

/// The directories with modules of the model at `path`: beside its file, and beside its versions.
fn code_of(path: &Path) -> Vec<PathBuf> {
    let around = [Some(path), path.parent()].into_iter().flatten();
    around.map(|folder| folder.join(CODE)).filter(|code| code.is_dir()).collect()
}

impl Python {
    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: NAME,
            title: "Python",
            input_style: InputStyle::Rows,
            takes_threads: false,
            must_be_named: true,
            is_isolated: false,
        };
        Platform::new(info, self)
    }
}

impl RuntimeLibrary for Python {
    fn describe(&self) -> Result<String> {
        let python = self.workers.config().python.display();
        Ok(format!("models in Python ({python}), where runner = \"python\""))
    }

    fn stop(&self, timeout: Duration) {
        self.workers.stop(timeout);
    }
}

impl ModelLoader for Python {
    fn recognises(&self, place: &ModelPath) -> bool {
        place.has_file(&ENDINGS)
    }

    fn check(&self, folder: &Path) -> Completeness {
        files::check(folder, &ENDINGS)
    }

    fn inspect(&self, folder: &Path, options: &LoadOptions) -> Result<Inspection> {
        let (model, bytes) = self.start(folder, options, Some(1))?;
        let (signatures, written_by) = model.into_description();
        Ok(Inspection { signatures, written_by, bytes, external_ops: Vec::new() })
    }

    fn load(&self, folder: &Path, options: &LoadOptions) -> Result<Loaded> {
        let (model, bytes) = self.start(folder, options, None)?;
        let copies = options.runner.workers as u64;
        Ok(Loaded {
            signatures: model.signatures(),
            executable: Arc::new(model),
            bytes: bytes.saturating_mul(copies),
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests;
