//! ONNX models, run by ONNX Runtime in this process.
//!
//! * `ffi` is the library's C API behind safe types, [`watchdog`] ends runs that take too long;
//! * [`model`] reads a model without the library, [`types`] and [`graph`] know its parts;
//! * [`upgrade`] and [`zipmap`] rewrite what the library, or a protocol, does not take;
//! * this file ties them together as a [`Platform`].
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prost::Message;

use self::ffi::{Api, Names, RunOptions as FfiOptions, Session, Source};
use self::model::Model;
use self::watchdog::Watchdog;
use crate::proto::ModelProto;
use tensorserve_platform::library::Library;
use tensorserve_platform::{
    Completeness, Executable, Inspection, LoadOptions, Loaded, Place, Platform, RunOptions, files,
};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor};

pub use self::config::OnnxConfig;

mod config;
mod ffi;
mod graph;
mod model;
#[cfg(feature = "mxnet")]
pub mod mxnet;
mod proto;
mod types;
mod upgrade;
mod watchdog;
mod zipmap;

/// In Python's wheels, and in Microsoft's own archive.
const LIBRARY: Library = Library {
    name: "libonnxruntime",
    files: &["libonnxruntime.so.1", "libonnxruntime.so"],
    package: "onnxruntime/capi",
    remedy: "pip install onnxruntime",
};

/// The `onnx` platform.
pub struct Onnx {
    config: OnnxConfig,
    /// Opened by the first model that needs it.
    runtime: Mutex<Option<Arc<Api>>>,
    watchdog: Arc<Watchdog>,
}

impl Onnx {
    /// The platform with these settings. Opens nothing yet.
    #[must_use]
    pub fn new(config: OnnxConfig) -> Self {
        Onnx { config, runtime: Mutex::new(None), watchdog: Arc::default() }
    }

    fn runtime(&self) -> Result<Arc<Api>> {
        let mut slot = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(api) = &*slot {
            return Ok(Arc::clone(api));
        }
        let api = LIBRARY.open(self.config.library.as_deref(), &self.config.search, Api::open)?;
        *slot = Some(Arc::clone(&api));
        Ok(api)
    }

    /// Loads a model that was made in memory, of files of `bytes` bytes in `folder`.
    pub(crate) fn load_made(
        &self,
        proto: &ModelProto,
        signature: Signature,
        bytes: u64,
        folder: &Path,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        let encoded = proto.encode_to_vec();
        self.load_source(signature, &Source::Bytes(&encoded, folder), bytes, options)
    }

    fn load_source(
        &self,
        signature: Signature,
        source: &Source,
        bytes: u64,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        let api = self.runtime()?;
        let threads = match usize::try_from(self.config.intra_op_threads) {
            Ok(set @ 1..) => set,
            _ => options.threads,
        };
        let model = Runnable {
            session: Session::load(&api, source, threads)?,
            inputs: Names::new(signature.inputs.iter().map(|spec| &*spec.alias))?,
            outputs: Names::new(signature.outputs.iter().map(|spec| &*spec.alias))?,
            signature: signature.clone(),
            api,
            watchdog: Arc::clone(&self.watchdog),
        };
        Ok(Loaded {
            signatures: vec![signature],
            executable: Arc::new(model),
            bytes,
            marshalled_hooks: false,
        })
    }
}

/// The one function of a model.
pub(crate) fn signature(proto: &ModelProto) -> Result<Signature> {
    let graph = proto.graph.as_ref();
    model::signature(graph.ok_or_else(|| model::broken("the model holds no graph".to_owned()))?)
}

impl Platform for Onnx {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn title(&self) -> &'static str {
        "ONNX"
    }

    fn describe(&self) -> Result<String> {
        Ok(format!("ONNX Runtime {}", self.runtime()?.version()))
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&model::ENDINGS)
    }

    fn takes_threads(&self) -> bool {
        self.config.intra_op_threads == 0
    }

    fn check(&self, path: &Path) -> Completeness {
        let one_file = files::check(path, &model::ENDINGS);
        if !matches!(one_file, Completeness::Complete) {
            return one_file;
        }
        match Model::read(path) {
            Ok(_) => Completeness::Complete,
            Err(error) if error.code() == Code::NotFound => {
                Completeness::Missing(error.message().to_owned())
            }
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        let mut model = Model::read(path)?;
        zipmap::replace(&mut model.proto)?;
        Ok(Inspection {
            written_by: model.written_by(),
            signatures: vec![signature(&model.proto)?],
            bytes: model.bytes,
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let mut model = Model::read(path)?;
        let upgraded = upgrade::upgrade(&mut model.proto)?;
        let replaced = zipmap::replace(&mut model.proto)?;
        let signature = signature(&model.proto)?;
        if upgraded || replaced {
            return self.load_made(&model.proto, signature, model.bytes, model.folder(), options);
        }
        self.load_source(signature, &Source::File(&model.file), model.bytes, options)
    }
}

/// A loaded model.
struct Runnable {
    session: Session,
    inputs: Names,
    outputs: Names,
    signature: Signature,
    api: Arc<Api>,
    watchdog: Arc<Watchdog>,
}

impl Runnable {
    /// Says what is wrong with an input's shape in words of ours; the runtime looks closer.
    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        for (spec, tensor) in self.signature.inputs.iter().zip(inputs) {
            let tensorserve_tensor::DeclaredShape::Dims(declared) = &spec.shape else {
                continue;
            };
            let dims = tensor.shape().dims();
            let mut pairs = declared.iter().zip(dims);
            let fits = pairs.all(|((size, _), got)| *size < 0 || size == got);
            // Old models declare no dimension where they mean any.
            if !declared.is_empty() && (declared.len() != dims.len() || !fits) {
                return Err(Error::invalid(format!(
                    "input {:?} has shape {:?}; the model takes {}",
                    spec.alias,
                    tensor.shape(),
                    spec.shape
                )));
            }
        }
        Ok(())
    }

    fn run_until(&self, due: Option<Instant>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(due) = due else {
            return self.session.run(&self.inputs, inputs, &self.outputs, None);
        };
        let options = Arc::new(FfiOptions::new(&self.api)?);
        let watched = self.watchdog.watch(due, Arc::clone(&options))?;
        let ran = self.session.run(&self.inputs, inputs, &self.outputs, Some(&*options));
        drop(watched);
        ran.map_err(|error| match Instant::now() >= due {
            true => Error::new(Code::DeadlineExceeded, "the model took too long and was stopped")
                .with_source(error),
            false => error,
        })
    }
}

impl Executable for Runnable {
    fn run(&self, _: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        self.check(inputs)?;
        let due = options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.run_until(due, inputs).map_err(in_our_words)
    }
}

/// A run's failure. What an operation can not do with its inputs comes without a kind, and all that
/// is in the graph was checked at the load.
fn in_our_words(error: Error) -> Error {
    if error.code() != Code::Unknown {
        return error;
    }
    let is_memory = ["Failed to allocate", "bad_alloc"].iter().any(|w| error.message().contains(w));
    let code = if is_memory { Code::ResourceExhausted } else { Code::InvalidArgument };
    Error::new(code, error.message().to_owned())
}

#[cfg(test)]
mod tests;
