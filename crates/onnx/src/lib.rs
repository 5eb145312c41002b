//! ONNX models, run by ONNX Runtime in this process.
//!
//! * `ffi` wraps the library's C API in safe types, [`watchdog`] terminates runs at their deadline;
//! * [`model`] reads a model without the library, [`types`] and [`graph`] read and build its parts;
//! * [`upgrade`] rewrites operators that the library no longer supports, [`interface`] inputs and outputs that
//!   no protocol supports, of which [`zipmap`] are the scores of classifiers;
//! * `rows` finds out whether the rows of a batch depend on each other;
//! * `mxnet` converts MXNet checkpoints into ONNX models;
//! * this file finds and loads models ([`ModelLoader`]), and opens the library ([`RuntimeLibrary`]).
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;

use self::ffi::{ModelSource, OnnxApi, OnnxRunOptions, OnnxSession, TensorNames};
use self::interface::Interface;
use self::model::OnnxModel;
use self::watchdog::Watchdog;
use self::zipmap::ClassNames;
use crate::proto::{FunctionProto, ModelProto};
use tensorserve_platform::library::{LazyLibrary, Library, RuntimeConfig};
use tensorserve_platform::{
    Completeness, Executable, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath,
    Platform, PlatformInfo, RunOptions, RuntimeLibrary, files,
};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DeclaredShape, Signature, Tensor, TensorSpec};

mod ffi;
mod graph;
mod interface;
mod model;
#[cfg(feature = "mxnet")]
pub mod mxnet;
mod proto;
mod rows;
mod types;
mod upgrade;
mod warnings;
mod watchdog;
mod zipmap;

/// The library's files in Python's wheels and in Microsoft's release archive.
const LIBRARY: Library = Library {
    name: "libonnxruntime",
    files: &["libonnxruntime.so.1", "libonnxruntime.so"],
    package: "onnxruntime/capi",
    extra: "onnx",
    runtime: "onnxruntime",
};

/// The `onnx` platform.
pub struct Onnx {
    config: RuntimeConfig,
    runtime: LazyLibrary<Arc<OnnxApi>>,
    watchdog: Arc<Watchdog>,
}

impl Onnx {
    /// The platform with these settings. The library is not opened yet.
    #[must_use]
    pub fn new(config: RuntimeConfig) -> Self {
        Onnx { config, runtime: LazyLibrary::default(), watchdog: Arc::default() }
    }

    /// The library, which is opened on first use.
    fn runtime(&self) -> Result<Arc<OnnxApi>> {
        self.runtime.get_or_open(|| self.config.open(&LIBRARY, OnnxApi::open))
    }

    /// Loads a model that was converted in memory. Its files, in the directory `folder`, have `bytes`
    /// bytes.
    #[cfg(feature = "mxnet")]
    pub(crate) fn load_converted(
        &self,
        proto: &ModelProto,
        signature: Signature,
        bytes: u64,
        folder: &Path,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        let encoded = proto.encode_to_vec();
        let source = ModelSource::Bytes(&encoded, folder);
        self.load_source(signature, Vec::new(), &source, bytes, options)
    }

    /// Loads a model with this signature, whose outputs for `classes` the graph does not have.
    fn load_source(
        &self,
        signature: Signature,
        classes: Vec<ClassNames>,
        source: &ModelSource,
        bytes: u64,
        options: &LoadOptions,
    ) -> Result<Loaded> {
        let api = self.runtime()?;
        let threads = self.config.threads(options);
        let of_graph = |spec: &&TensorSpec| !classes.iter().any(|classes| classes.is(spec));
        let outputs = signature.outputs.iter().filter(of_graph);
        let executable = OnnxExecutable {
            session: OnnxSession::load(&api, source, threads).map_err(with_locale)?,
            inputs: TensorNames::new(signature.inputs.iter().map(|spec| &*spec.tensor_name))?,
            outputs: TensorNames::new(outputs.map(|spec| &*spec.tensor_name))?,
            signature: signature.clone(),
            classes,
            api,
            watchdog: Arc::clone(&self.watchdog),
        };
        Ok(Loaded {
            signatures: vec![signature],
            executable: Arc::new(executable),
            bytes,
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

/// The signature of a model, of which ONNX has one per model.
pub(crate) fn signature(proto: &ModelProto) -> Result<Signature> {
    match &proto.graph {
        Some(graph) => {
            let mut signature = model::signature(graph)?;
            // The functions of a model are not read, and may do whatever operators do.
            signature.repeatable &= proto.functions.is_empty();
            signature.is_bounded &= proto.functions.iter().all(is_bounded_function);
            signature.rows = rows::dependence(proto, &signature);
            Ok(signature)
        }
        None => Err(model::invalid_model("the model has no graph".to_owned())),
    }
}

/// Whether the sizes of the inputs bound the time of a function of the model, as far as it can be read.
fn is_bounded_function(function: &Bytes) -> bool {
    let decoded = FunctionProto::decode(function.clone());
    decoded.is_ok_and(|function| model::are_bounded(&function.node))
}

impl Onnx {
    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: "onnx",
            title: "ONNX",
            input_style: InputStyle::Rows,
            takes_threads: self.takes_threads(),
            must_be_named: false,
            is_isolated: false,
        };
        Platform::new(info, self)
    }

    /// Whether a model's own number of threads has an effect: not with a number for all of them.
    fn takes_threads(&self) -> bool {
        self.config.intra_op_threads == 0
    }
}

impl RuntimeLibrary for Onnx {
    fn describe(&self) -> Result<String> {
        Ok(format!("ONNX Runtime {}", self.runtime()?.version()))
    }

    fn library(&self) -> Option<PathBuf> {
        self.runtime.file()
    }
}

impl ModelLoader for Onnx {
    fn recognises(&self, place: &ModelPath) -> bool {
        place.has_file(&model::EXTENSIONS)
    }

    fn check(&self, path: &Path) -> Completeness {
        let file = files::check(path, &model::EXTENSIONS);
        if !matches!(file, Completeness::Complete) {
            return file;
        }
        match OnnxModel::read(path) {
            Ok(_) => Completeness::Complete,
            Err(error) if error.code() == Code::NotFound => {
                Completeness::Missing(error.message().to_owned())
            }
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        let mut model = OnnxModel::read(path)?;
        let interface = Interface::of_tensors(&mut model.proto)?;
        Ok(Inspection {
            written_by: model.written_by(),
            signatures: vec![interface.signature(&model.proto)?],
            bytes: model.bytes,
            external_ops: Vec::new(),
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let mut model = OnnxModel::read(path)?;
        let is_upgraded = upgrade::upgrade(&mut model.proto)?;
        let interface = Interface::of_tensors(&mut model.proto)?;
        let signature = interface.signature(&model.proto)?;
        let encoded = (is_upgraded || interface.is_changed).then(|| model.proto.encode_to_vec());
        let source = match &encoded {
            Some(encoded) => ModelSource::Bytes(encoded, model.folder()),
            None => ModelSource::File(&model.file),
        };
        self.load_source(signature, interface.classes, &source, model.bytes, options)
    }
}

/// The error of a load, with what to do about a missing locale: ONNX Runtime has no text operations without it.
fn with_locale(error: Error) -> Error {
    if !error.message().contains("Failed to construct locale") {
        return error;
    }
    let message = "the model has operations for text, for which ONNX Runtime needs the locale en_US.UTF-8: \
                   on Debian and Ubuntu `apt-get install locales && localedef -i en_US -f UTF-8 \
                   en_US.UTF-8`, on RHEL and Amazon Linux `dnf install glibc-langpack-en`";
    Error::new(error.code(), message).with_source(error)
}

/// A loaded model. `inputs` and `outputs` are the tensors of the signature's, in its order, without the outputs of
/// `classes`.
struct OnnxExecutable {
    session: OnnxSession,
    inputs: TensorNames,
    outputs: TensorNames,
    signature: Signature,
    classes: Vec<ClassNames>,
    api: Arc<OnnxApi>,
    watchdog: Arc<Watchdog>,
}

impl OnnxExecutable {
    /// Refuses inputs of another shape than declared, with a message that names the input. The
    /// runtime checks everything else.
    fn check_shapes(&self, inputs: &[Tensor]) -> Result<()> {
        for (spec, tensor) in self.signature.inputs.iter().zip(inputs) {
            let DeclaredShape::Dims(declared) = &spec.shape else {
                continue;
            };
            // Old exporters declare zero dimensions for an input of any shape.
            if declared.is_empty() {
                continue;
            }
            let dims = tensor.shape().dims();
            let mut pairs = declared.iter().zip(dims);
            let sizes_match = pairs.all(|((size, _), got)| *size < 0 || size == got);
            if declared.len() != dims.len() || !sizes_match {
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

    /// The outputs of the signature, from those of the graph.
    fn with_classes(&self, outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let classes_of = |spec: &TensorSpec| self.classes.iter().find(|classes| classes.is(spec));
        let specs = || self.signature.outputs.iter();
        let of_graph: Vec<&TensorSpec> =
            specs().filter(|spec| classes_of(spec).is_none()).collect();
        let output = |alias: &str| {
            let index = of_graph.iter().position(|spec| spec.alias == alias)?;
            outputs.get(index).cloned()
        };
        let all = specs().map(|spec| match classes_of(spec) {
            Some(classes) => output(&classes.scores).map(|scores| classes.for_rows_of(&scores)),
            None => output(&spec.alias).map(Ok),
        });
        let missing = || Error::internal("the run returned too few outputs");
        all.map(|output| output.unwrap_or_else(|| Err(missing()))).collect()
    }

    /// Runs the model, and terminates the run at `deadline`.
    fn run_until(&self, deadline: Option<Instant>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(deadline) = deadline else {
            return self.session.run(&self.inputs, inputs, &self.outputs, None);
        };
        let options = Arc::new(OnnxRunOptions::new(&self.api)?);
        let watched = self.watchdog.watch(deadline, Arc::clone(&options))?;
        let result = self.session.run(&self.inputs, inputs, &self.outputs, Some(&*options));
        drop(watched);
        result.map_err(|error| match Instant::now() >= deadline {
            true => Error::new(
                Code::DeadlineExceeded,
                "the run exceeded its deadline and was terminated",
            )
            .with_source(error),
            false => error,
        })
    }
}

impl Executable for OnnxExecutable {
    fn run(&self, _: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        self.check_shapes(inputs)?;
        let deadline = options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let outputs = self.run_until(deadline, inputs).map_err(with_run_code)?;
        if self.classes.is_empty() { Ok(outputs) } else { self.with_classes(outputs) }
    }
}

/// Messages of ONNX Runtime that report a failed allocation.
const ALLOCATION_FAILURES: [&str; 2] = ["Failed to allocate", "bad_alloc"];

/// Gives a failed run the code that the runtime omits. The graph was checked when it was loaded, so
/// an operator that fails does so because of its inputs, or for lack of memory.
fn with_run_code(error: Error) -> Error {
    if error.code() != Code::Unknown {
        return error;
    }
    let message = error.message();
    let is_out_of_memory = ALLOCATION_FAILURES.iter().any(|failure| message.contains(failure));
    let code = if is_out_of_memory { Code::ResourceExhausted } else { Code::InvalidArgument };
    Error::new(code, message.to_owned())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_models;
