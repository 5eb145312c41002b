//! The interface of platforms: the [`ModelLoader`] of a [`Platform`] loads a version directory into an
//! [`Executable`]. Where a model is one file, its "directory" may be that file.
//!
//! A platform uses files and its runtime. It does not depend on HTTP, batching, versions or
//! configuration files; the core uses platforms only through these traits.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::files::ModelPath;
pub use self::foreign::{FOREIGN, ForeignFormats};
pub use self::forms::{LARGEST_KEPT, Optimization, OptimizedModel};
pub use self::ops::{ExternalOp, OpNode, OpPolicy};
pub use self::samples::{
    LARGEST_IRREGULAR, SyntheticSample, irregular_inputs, large_inputs, sized_inputs,
    synthetic_samples,
};
pub use self::synthetic::{synthetic_dims, synthetic_input, synthetic_inputs};
pub use tensorserve_os::files::names_version;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor};

pub mod files;
mod foreign;
mod forms;
pub mod library;
mod ops;
pub mod pool;
mod samples;
pub mod states;
mod synthetic;
mod trust;
pub mod unset;

/// A runtime that can serve models of one kind: what is known of it, what finds and loads its models, and the
/// library that runs them. Layers around the loads of models replace the loader only.
#[derive(Clone)]
pub struct Platform {
    /// What is known of it before it does anything.
    pub info: PlatformInfo,
    /// Finds and loads its models.
    pub loader: Arc<dyn ModelLoader>,
    /// What runs them.
    pub runtime: Arc<dyn RuntimeLibrary>,
}

impl Platform {
    /// A platform whose loader is its runtime, too.
    #[must_use]
    pub fn new<T: ModelLoader + RuntimeLibrary + 'static>(
        info: PlatformInfo,
        both: Arc<T>,
    ) -> Self {
        Platform { info, loader: Arc::clone(&both) as Arc<dyn ModelLoader>, runtime: both }
    }

    /// This platform with another loader.
    #[must_use]
    pub fn with_loader(&self, loader: impl ModelLoader + 'static) -> Self {
        Platform { loader: Arc::new(loader), ..self.clone() }
    }
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

/// What is known of a platform before it does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlatformInfo {
    /// Its name in the configuration and in messages: `tensorflow`, …
    pub name: &'static str,
    /// Its name as its authors write it: `TensorFlow`, …
    pub title: &'static str,
    /// The format of its models' inputs in protocols with several formats.
    pub input_style: InputStyle,
    /// Whether [`LoadOptions::threads`] has an effect on runs. If so, a model may be loaded again
    /// with another number.
    pub takes_threads: bool,
    /// Whether it loads only the models for which the operator has named it, because loading them runs
    /// code that they contain: no file makes it the platform of a model. Its models are in processes of
    /// their own, and are neither probed nor isolated.
    pub must_be_named: bool,
    /// Whether its models are always in processes of their own, as with `isolation = "process"`, because its
    /// runtime is known to end the process on some models or inputs.
    pub is_isolated: bool,
}

/// Finds and loads the models of a platform.
pub trait ModelLoader: Send + Sync {
    /// Whether `place` is or contains a model of this platform (which may be invalid).
    fn recognises(&self, place: &ModelPath) -> bool;

    /// Whether subdirectories of the model's directory `place` are part of the model: they are not
    /// searched for models and versions.
    fn has_folders(&self, _place: &ModelPath) -> bool {
        false
    }

    /// Whether all files of the model exist, without loading it.
    fn check(&self, folder: &Path) -> Completeness;

    /// The model's signatures and origin, without loading it.
    ///
    /// # Errors
    /// [`Code::DataLoss`] for files that are not a model of this platform,
    /// [`Code::NotFound`] for a missing tag.
    fn inspect(&self, folder: &Path, options: &LoadOptions) -> Result<Inspection>;

    /// Loads the model. Blocks for as long as that takes.
    ///
    /// # Errors
    /// As [`ModelLoader::inspect`], and whatever the runtime reports.
    fn load(&self, folder: &Path, options: &LoadOptions) -> Result<Loaded>;

    /// Makes another form of the model in `folder`, which was loaded with these options and is `executable`
    /// ([`Executable::optimized`]). Blocks for as long as that takes.
    ///
    /// # Errors
    /// What the runtime reports.
    fn optimized(
        &self,
        _folder: &Path,
        _options: &LoadOptions,
        executable: &dyn Executable,
        number: usize,
    ) -> Result<Optimization> {
        executable.optimized(number)
    }

    /// Makes a form of the model in `folder` that runs in another engine ([`LoadOptions::as_other_engine`]) where that is
    /// known to compute the same, and else is `present`, whose signatures are these. Blocks for as long as a load.
    ///
    /// # Errors
    /// What the engine reports.
    fn in_other_engine(
        &self,
        _folder: &Path,
        _options: &LoadOptions,
        _signatures: &[Signature],
        _present: &Arc<dyn Executable>,
    ) -> Result<Optimization> {
        Ok(Optimization::Unknown)
    }

    /// What was remembered of the model in `folder`, with these options and this runtime, under `topic`.
    fn recall(&self, _folder: &Path, _options: &LoadOptions, _topic: &str) -> Option<String> {
        None
    }

    /// Remembers a text for later starts of the server, if there is a place for that. A topic has small letters and `-`.
    fn remember(&self, _folder: &Path, _options: &LoadOptions, _topic: &str, _text: &str) {}

    /// What the files around the model declare, for the protocol that knows their format.
    ///
    /// # Errors
    /// If they cannot be read.
    fn packaging(&self, _folder: &Path) -> Result<Option<Packaging>> {
        Ok(None)
    }
}

/// What runs the models of a platform: a library that is opened when it is first needed, or a part of this program.
pub trait RuntimeLibrary: Send + Sync {
    /// The runtime's own version and kind for `--version` and the start-up lines. Starts no thread:
    /// the process that load probes are forked from is started afterwards.
    ///
    /// # Errors
    /// If the runtime is not installed; the message says how to install it.
    fn describe(&self) -> Result<String>;

    /// The file of the runtime's library, once it is opened; `None` for a platform without one.
    fn library(&self) -> Option<PathBuf> {
        None
    }

    /// What the operator should know about the runtime, once it is opened: each a phrase for the log
    /// and `--version`.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// The GPUs of the runtime, as far as is known, once it is opened; `None` for a platform that has
    /// no use for them.
    fn gpus(&self) -> Option<Gpus> {
        None
    }

    /// Opens the runtime and its GPUs. Starts threads: call it after the process that load probes are
    /// forked from is started.
    ///
    /// # Errors
    /// As [`RuntimeLibrary::describe`].
    fn find_gpus(&self) -> Result<Option<Gpus>> {
        Ok(None)
    }

    /// Libraries of operations that the user has added to it, once they are loaded.
    fn custom_ops(&self) -> Vec<CustomOps> {
        Vec::new()
    }

    /// Ends the processes of its models, those that are idle at once and the others within `timeout`. Called
    /// when the server stops. Blocks.
    fn stop(&self, _timeout: Duration) {}
}

/// A runtime that is a part of this program, with its description.
#[derive(Clone, Copy, Debug)]
pub struct PartOfProgram(pub &'static str);

impl RuntimeLibrary for PartOfProgram {
    fn describe(&self) -> Result<String> {
        Ok(self.0.to_owned())
    }
}

/// The declarations around a model, of a type that the reader and the protocol of their format share.
pub type Packaging = Arc<dyn Any + Send + Sync>;

/// The format of a model's inputs in protocols with several formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputStyle {
    /// As tensors: one for each input, under its name, of the declared shape.
    Tensors,
    /// As rows: one input may go without a name, one row without its dimension, and inputs with a
    /// default may be left out.
    Rows,
    /// As records: rows whose columns have names. Results are objects of their own.
    Records,
}

/// The GPUs of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// The library is built for CPUs only.
    NotSupported,
    /// The runtime uses these, by their names.
    Available(Vec<String>),
    /// The runtime is built for GPUs and uses none, for this reason.
    Unavailable(String),
}

/// A library of operations that the user has added to a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomOps {
    /// Its file.
    pub path: PathBuf,
    /// The names of its operations, sorted.
    pub ops: Vec<String>,
}

/// Simple TensorFlow Serving's pre- and post-processing functions, in Python's marshal format.
const MARSHALLED_HOOKS: [&str; 2] = ["preprocess_function.marshal", "postprocess_function.marshal"];

/// Whether there are such files next to the model at `path`, or in its directory.
#[must_use]
pub fn has_marshalled_hooks(path: &Path) -> bool {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    folder.is_some_and(|folder| MARSHALLED_HOOKS.iter().any(|name| folder.join(name).is_file()))
}

/// The result of [`ModelLoader::check`].
#[derive(Debug)]
pub enum Completeness {
    /// All files of the model exist.
    Complete,
    /// A file of it does not exist (yet); the text names it.
    Missing(String),
    /// The files are not a valid model.
    Broken(Error),
}

/// Per-model settings that a platform needs to load it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// The tags that select a graph of a SavedModel.
    pub tags: Vec<String>,
    /// Threads that one operation of the model may use; 0 leaves it to the runtime. A platform with
    /// its own setting for that ignores it.
    pub threads: usize,
    /// The encoding of images in the model's inputs; `None` detects it from the graph.
    pub images: Option<tensorserve_tensor::ImageEncoding>,
    /// The operations that the model may have. TensorFlow's graphs and PyTorch's files are checked.
    pub ops: OpPolicy,
    /// Make this other form of the model, too, and run only that ([`Executable::optimized`]). Platforms ignore it: it is
    /// for the process in which the crate `probe` tries it.
    pub form: Option<usize>,
    /// Load a model of another platform, which runs there, too, and answers what this platform may compute differently.
    /// OpenVINO does this with SavedModels; others ignore it.
    pub as_other_engine: bool,
    /// Run the model in a process of its own, which messages call by this name. Platforms ignore it:
    /// the crate `probe` wraps them.
    pub isolated_as: Option<String>,
    /// The processes of a model that runs in Python.
    pub runner: RunnerOptions,
}

/// The processes of a model that runs in Python.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerOptions {
    /// The Python interpreter; `None` for that of the server.
    pub python: Option<PathBuf>,
    /// The number of processes for each version.
    pub workers: usize,
    /// The longest duration of a run, after which its process is replaced.
    pub timeout: Duration,
    /// The resident memory of a process in bytes above which it is replaced.
    pub memory_limit: Option<usize>,
    /// The types that a `.skops` file may have, besides those that skops trusts.
    pub trusted_types: Vec<String>,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        RunnerOptions {
            python: None,
            workers: 2,
            timeout: Duration::from_secs(60),
            memory_limit: None,
            trusted_types: Vec::new(),
        }
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            tags: vec!["serve".to_owned()],
            threads: 0,
            images: None,
            ops: OpPolicy::default(),
            form: None,
            as_other_engine: false,
            isolated_as: None,
            runner: RunnerOptions::default(),
        }
    }
}

/// A model's declarations.
#[derive(Debug)]
pub struct Inspection {
    /// Signatures, sorted by name.
    pub signatures: Vec<Signature>,
    /// The program that wrote it: the version of TensorFlow or, for other platforms, program and
    /// version; empty if not recorded.
    pub written_by: String,
    /// Size of the model's files in bytes.
    pub bytes: u64,
    /// Its external operations that are reported, each once, sorted by name.
    pub external_ops: Vec<ExternalOp>,
}

/// A model in memory.
pub struct Loaded {
    /// Signatures, sorted by name.
    pub signatures: Vec<Signature>,
    /// Runs them.
    pub executable: Arc<dyn Executable>,
    /// Size of the model's files in bytes, an estimate of its memory.
    pub bytes: u64,
    /// Whether its file contains pre- or post-processing functions in Python's marshal format
    /// (Simple TensorFlow Serving's hooks), which are never run.
    pub marshalled_hooks: bool,
    /// Its external operations that are reported, each once, sorted by name.
    pub external_ops: Vec<ExternalOp>,
}

/// The options of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// The most threads that one operation of the model may use; 0 leaves it to the runtime.
    pub threads: usize,
    /// Cancel the run after this long. The runtime then needs threads of its own, which costs a
    /// few microseconds; `None` runs on the calling thread.
    pub timeout: Option<Duration>,
}

impl RunOptions {
    /// The options for what is left of the time, if the run began at `began` with another attempt.
    #[must_use]
    pub fn left_since(self, began: Instant) -> Self {
        let timeout = self.timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        RunOptions { timeout, ..self }
    }
}

/// The cause of a failed load that would fail again with the same files: trying again is of no use.
#[derive(Debug)]
pub struct EndedProcess;

impl fmt::Display for EndedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the version ends or blocks the process that loads it")
    }
}

impl std::error::Error for EndedProcess {}

/// A loaded model. Running blocks the calling thread; any number may run at once.
pub trait Executable: Send + Sync {
    /// Runs signature number `signature` (its place in [`Loaded::signatures`]) on `inputs`, one
    /// for each of its inputs in order, and returns its outputs in order.
    ///
    /// # Errors
    /// What the runtime reports, and
    /// [`Code::DeadlineExceeded`] after the timeout.
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>>;

    /// Whether a run waits for a program that may take any time, or never end: it gets threads of its own,
    /// and always the time limit of its requests.
    fn waits(&self) -> bool {
        false
    }

    /// Whether runs take place on a GPU, where the operations of several runs take turns.
    fn runs_on_gpu(&self) -> bool {
        false
    }

    /// Why no run is possible now, until something outside of it changes; `None` as a rule.
    fn obstacle(&self) -> Option<Error> {
        None
    }

    /// The CPU time that all runs have taken in other processes; `None` if they take none there.
    fn other_cpu_time(&self) -> Option<Duration> {
        None
    }

    /// Whether it prepares itself, after its latest run, to run quicker.
    fn prepares(&self) -> bool {
        false
    }

    /// Whether there may be other forms of this model.
    fn may_have_other_forms(&self) -> bool {
        false
    }

    /// Makes another form of this model that computes the same with less work, such as one whose variables are
    /// constants. Number 0 promises most. Blocks for about as long as a load; runs may go on meanwhile.
    ///
    /// # Errors
    /// What the runtime reports.
    fn optimized(&self, _number: usize) -> Result<Optimization> {
        Ok(Optimization::Unknown)
    }

    /// Runs, and profiles every operation. That takes many times as long as the run itself.
    ///
    /// # Errors
    /// As [`Executable::run`]; [`Code::Unimplemented`] if the runtime has no profiler.
    fn profile(
        &self,
        _signature: usize,
        _inputs: &[Tensor],
        _options: RunOptions,
    ) -> Result<Profiled> {
        let message = "the runtime of this model does not support profiling";
        Err(Error::new(Code::Unimplemented, message))
    }
}

/// The outputs in order, and the profile of the run.
pub type Profiled = (Vec<Tensor>, Vec<OpRun>);

/// One run of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpRun {
    /// The kind of operation.
    pub op: String,
    /// Its name in the graph.
    pub node: String,
    /// How long it took.
    pub nanos: u64,
    /// The memory that it allocated.
    pub bytes: u64,
    /// Whether it ran on a GPU, and not on the host.
    pub on_accelerator: bool,
}

/// The platforms built into this binary, in the order in which they are tried for a directory. The last one
/// is [`ForeignFormats`], which explains what it does not load.
#[derive(Clone)]
pub struct Platforms {
    all: Vec<Platform>,
    foreign: Platform,
}

impl Platforms {
    /// A table of these platforms.
    #[must_use]
    pub fn new(platforms: Vec<Platform>) -> Self {
        Platforms { all: platforms, foreign: ForeignFormats::platform() }
    }

    /// The platform of the model that `path` is or contains.
    #[must_use]
    pub fn of_folder(&self, path: &Path) -> Option<&Platform> {
        self.recognising(&ModelPath::new(path))
    }

    /// The platform to load the version at `path` with: the one that is `named`, or else the one
    /// that recognises it.
    #[must_use]
    pub fn of_version(&self, path: &Path, named: Option<&str>) -> Option<&Platform> {
        match named {
            Some(name) => self.all.iter().find(|p| p.info.name == name),
            None => self.of_folder(path),
        }
    }

    /// Whether `path` itself is a model, and not a directory of models or versions. With the
    /// platform `named`, any file is a model.
    #[must_use]
    pub fn is_model(&self, path: &Path, named: Option<&str>) -> bool {
        self.is_model_at(&ModelPath::new(path), named)
    }

    /// [`Platforms::is_model`] for `place`.
    #[must_use]
    pub fn is_model_at(&self, place: &ModelPath<'_>, named: Option<&str>) -> bool {
        let platform = match named {
            Some(_) => {
                let platform = self.of_version(place.path(), named);
                platform.filter(|platform| place.is_file() || platform.loader.recognises(place))
            }
            None => self.recognising(place),
        };
        platform.is_some_and(|platform| {
            place.is_file() || platform.loader.has_folders(place) || !self.holds_models(place)
        })
    }

    /// The model files in the directory `path`, next to directories of models, sorted; those of the
    /// platform `named` only, if there is one.
    #[must_use]
    pub fn model_files(&self, path: &Path, named: Option<&str>) -> Vec<PathBuf> {
        self.model_files_at(&ModelPath::new(path), named)
    }

    /// [`Platforms::model_files`] for `place`.
    #[must_use]
    pub fn model_files_at(&self, place: &ModelPath<'_>, named: Option<&str>) -> Vec<PathBuf> {
        let is_model = |file: &&PathBuf| {
            let (is_hidden, file) = (is_hidden(file), ModelPath::new(file));
            let is_known = |p: &&Platform| named.is_none_or(|name| p.info.name == name);
            !is_hidden && self.recognising(&file).filter(is_known).is_some()
        };
        place.files(&[""]).filter(is_model).cloned().collect()
    }

    fn recognising(&self, place: &ModelPath) -> Option<&Platform> {
        let mut all = self.all.iter().chain([&self.foreign]);
        all.find(|platform| !platform.info.must_be_named && platform.loader.recognises(place))
    }

    /// Whether the directory `place` contains models or versions: then a file next to them is not a
    /// model, whatever its name.
    fn holds_models(&self, place: &ModelPath) -> bool {
        let is_version = |folder: &PathBuf| {
            let name = folder.file_name().and_then(|name| name.to_str());
            name.is_some_and(names_version)
        };
        place.folders().any(|folder| {
            let inner = ModelPath::new(folder);
            is_version(folder)
                || self.recognising(&inner).is_some()
                || inner.folders().any(is_version)
        })
    }

    /// Ends the processes of all models ([`RuntimeLibrary::stop`]).
    pub fn stop(&self, timeout: Duration) {
        self.all.iter().for_each(|platform| platform.runtime.stop(timeout));
    }

    /// All that load models.
    pub fn iter(&self) -> impl Iterator<Item = &Platform> {
        self.all.iter()
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}
