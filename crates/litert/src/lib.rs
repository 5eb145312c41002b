//! TensorFlow Lite models, run by LiteRT in this process.
//!
//! * [`model`] reads a model without the library, by the numbers of [`schema`];
//! * [`rewrite`] changes its outputs so that the library returns all of them, [`outputs`] reads these;
//! * `ffi` wraps the library's C API in safe types, [`strings`] converts its string tensors;
//! * [`executable`] runs a model's interpreters;
//! * this file finds and loads models ([`ModelLoader`]), and opens the library ([`RuntimeLibrary`]).
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use self::executable::LiteRtExecutable;
use self::ffi::{Interpreter, LiteRtApi, LiteRtModel};
use self::model::{TfliteFile, TfliteModel};
use tensorserve_platform::library::{LazyLibrary, Library, RuntimeConfig};
use tensorserve_platform::pool::InstancePool;
use tensorserve_platform::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath, Platform,
    PlatformInfo, RuntimeLibrary, files,
};
use tensorserve_tensor::error::Result;

mod executable;
mod ffi;
mod model;
mod outputs;
mod rewrite;
mod rows;
mod schema;
mod strings;

/// The library's file in Google's Python wheel.
const LIBRARY: Library = Library {
    name: "liblitert",
    files: &["libLiteRt.so"],
    package: "ai_edge_litert",
    extra: "tflite",
    runtime: "litert",
};

/// The `tflite` platform.
pub struct LiteRt {
    config: RuntimeConfig,
    runtime: LazyLibrary<Arc<LiteRtApi>>,
}

impl LiteRt {
    /// The platform with these settings. The library is not opened yet.
    #[must_use]
    pub fn new(config: RuntimeConfig) -> Self {
        LiteRt { config, runtime: LazyLibrary::default() }
    }

    /// The library, which is opened on first use.
    fn runtime(&self) -> Result<Arc<LiteRtApi>> {
        self.runtime.get_or_open(|| self.config.open(&LIBRARY, LiteRtApi::open))
    }
}

impl LiteRt {
    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: "tflite",
            title: "TensorFlow Lite",
            input_style: InputStyle::Rows,
            takes_threads: self.config.intra_op_threads == 0,
            must_be_named: false,
            is_isolated: false,
        };
        Platform::new(info, self)
    }
}

impl RuntimeLibrary for LiteRt {
    fn describe(&self) -> Result<String> {
        self.runtime()?;
        let version = self.library().and_then(|file| LIBRARY.version_of(&file));
        Ok(version.map_or_else(|| "LiteRT".to_owned(), |version| format!("LiteRT {version}")))
    }

    fn library(&self) -> Option<PathBuf> {
        self.runtime.file()
    }
}

impl ModelLoader for LiteRt {
    fn recognises(&self, place: &ModelPath) -> bool {
        place.has_file(&model::EXTENSIONS)
    }

    fn check(&self, path: &Path) -> Completeness {
        let file = files::check(path, &model::EXTENSIONS);
        if !matches!(file, Completeness::Complete) {
            return file;
        }
        match TfliteFile::read(path).and_then(|file| file.model()) {
            Ok(_) => Completeness::Complete,
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        let file = TfliteFile::read(path)?;
        let model = file.model()?;
        Ok(Inspection {
            signatures: executable::signatures(&model, &file.bytes),
            bytes: size_of(&file),
            written_by: model.written_by,
            external_ops: Vec::new(),
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let file = TfliteFile::read(path)?;
        let model = file.model()?;
        let bytes = size_of(&file);
        let rewritten = rewrite::rewrite(&file.bytes, &model)?;
        let signatures = executable::signatures(&model, &file.bytes);
        drop(file);
        let runtime = self.runtime()?;
        let library_model = Arc::new(LiteRtModel::new(&runtime, rewritten)?);
        let functions = model.functions.len();
        // LiteRT's own default is one.
        let threads = self.config.threads(options).max(1);
        let pool = InstancePool::new(most_runs(&model), move || {
            Interpreter::new(&library_model, functions, threads)
        })?;
        Ok(Loaded {
            executable: Arc::new(LiteRtExecutable::new(model, &signatures, pool)),
            signatures,
            bytes,
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

/// The most runs at a time. An interpreter has the variables of its model.
fn most_runs(model: &TfliteModel) -> usize {
    match model.has_state {
        true => 1,
        false => available_parallelism().map_or(1, std::num::NonZero::get),
    }
}

fn size_of(file: &TfliteFile) -> u64 {
    u64::try_from(file.bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
