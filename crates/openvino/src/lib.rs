//! Models in OpenVINO's own format (`.xml` and `.bin`), run by its C library.
//!
//! * [`model`] reads a model without the library, [`types`] has its types;
//! * `ffi` wraps the library's C API in safe types;
//! * [`executable`] runs requests, and [`fixed`] has copies of models for their shapes;
//! * [`saved_model`] says which SavedModels the library may run in place of libtensorflow;
//! * this file finds and loads models ([`ModelLoader`]), and opens the library ([`RuntimeLibrary`]).
//!
//! The library trusts what it reads: on strange graphs and inputs it has ended the process. Its models are therefore
//! always in a process of their own ([`PlatformInfo::is_isolated`]).
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::executable::OpenVinoExecutable;
use self::ffi::{CompiledModel, ModelGraph, OpenVinoApi, OvCore};
use self::fixed::CopySource;
use self::model::IrFiles;
use self::saved_model::SavedModelPlan;
use tensorserve_platform::library::{LazyLibrary, Library, RuntimeConfig};
use tensorserve_platform::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath, Platform,
    PlatformInfo, RuntimeLibrary, files,
};
use tensorserve_savedmodel as savedmodel;
use tensorserve_tensor::error::{Code, Error, Result};

mod executable;
mod ffi;
mod fixed;
mod model;
mod requests;
pub mod saved_model;
mod types;

/// The library's file in Intel's Python wheel, and in the archives of OpenVINO.
const LIBRARY: Library = Library {
    name: "libopenvino",
    files: &["libopenvino_c.so"],
    package: "openvino/libs",
    extra: "openvino",
    runtime: "openvino",
};

/// The first version whose C API has the numbers of types that are used here.
const OLDEST: u32 = 2026;

/// The `openvino` platform.
pub struct OpenVino {
    config: RuntimeConfig,
    runtime: LazyLibrary<Arc<OpenVinoApi>>,
}

impl OpenVino {
    /// The platform with these settings. The library is not opened yet.
    #[must_use]
    pub fn new(config: RuntimeConfig) -> Self {
        OpenVino { config, runtime: LazyLibrary::default() }
    }

    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: "openvino",
            title: "OpenVINO",
            input_style: InputStyle::Rows,
            takes_threads: self.config.intra_op_threads == 0,
            must_be_named: false,
            is_isolated: true,
        };
        Platform::new(info, self)
    }

    /// The library, which is opened on first use.
    fn runtime(&self) -> Result<Arc<OpenVinoApi>> {
        self.runtime.get_or_open(|| self.open())
    }

    fn open(&self) -> Result<(Arc<OpenVinoApi>, PathBuf)> {
        let (api, file) = self.config.open(&LIBRARY, OpenVinoApi::open)?;
        let version = api.version();
        let year = version.split('.').next().and_then(|year| year.parse::<u32>().ok());
        if year.is_none_or(|year| year < OLDEST) {
            return Err(Error::unavailable(format!(
                "{} is OpenVINO {version}, and models need OpenVINO {OLDEST}.0 or later: install one with \
                 `tensorserve fetch {}`",
                file.display(),
                LIBRARY.runtime
            )));
        }
        api.check_types()?;
        Ok((api, file))
    }
}

impl RuntimeLibrary for OpenVino {
    fn describe(&self) -> Result<String> {
        Ok(format!("OpenVINO {}", self.runtime()?.version()))
    }

    fn library(&self) -> Option<PathBuf> {
        self.runtime.file()
    }
}

impl ModelLoader for OpenVino {
    fn recognises(&self, place: &ModelPath) -> bool {
        let is_graph = |file: &PathBuf| {
            files::head(file, model::HEAD).is_ok_and(|head| model::is_graph(&head))
        };
        place.files(&model::EXTENSIONS).any(is_graph)
    }

    fn check(&self, path: &Path) -> Completeness {
        let file = files::check(path, &model::EXTENSIONS);
        if !matches!(file, Completeness::Complete) {
            return file;
        }
        match IrFiles::read(path).and_then(|files| files.model()) {
            Ok(_) => Completeness::Complete,
            Err(error) => match missing_weights(path) {
                Some(name) if error.code() == Code::DataLoss => {
                    Completeness::Missing(format!("the file {name}, which has the constants"))
                }
                _ => Completeness::Broken(error),
            },
        }
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        let files = IrFiles::read(path)?;
        let model = files.model()?;
        Ok(Inspection {
            signatures: vec![model.signature()],
            bytes: files.bytes(),
            written_by: model.written_by,
            external_ops: Vec::new(),
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let (core, threads) = (OvCore::new(&self.runtime()?)?, self.config.threads(options).max(1));
        let (signature, bytes, executable) = if options.as_other_engine {
            let plan = SavedModelPlan::read(path, &options.tags)?;
            let (signature, bytes) = (plan.ports(), savedmodel::size_of_files(&plan.folder));
            let graph = ModelGraph::SavedModel(&plan.folder);
            let compiled = CompiledModel::new(&core, graph, Vec::new(), 1, &[])?;
            let executable = OpenVinoExecutable::new(&signature, compiled)?;
            let (folder, copied) = (plan.folder, signature.clone());
            let source = CopySource { core, folder, signature: copied, threads, bytes };
            (signature, bytes, executable.with_copies(source))
        } else {
            let files = IrFiles::read(path)?;
            let model = files.model()?;
            let (signature, bytes) = (model.signature(), files.bytes());
            let graph = ModelGraph::Text(&model.graph);
            let compiled = CompiledModel::new(&core, graph, files.weights()?, threads, &[])?;
            let executable = OpenVinoExecutable::new(&signature, compiled)?;
            (signature, bytes, executable)
        };
        Ok(Loaded {
            executable: Arc::new(executable),
            signatures: vec![signature],
            bytes,
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

/// The name of the file of the weights, if it does not exist (yet).
fn missing_weights(path: &Path) -> Option<String> {
    let weights = model::weights_of(&files::find(path, &model::EXTENSIONS).ok()?);
    let name = weights.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (!weights.exists()).then_some(name)
}

#[cfg(test)]
mod tests;
