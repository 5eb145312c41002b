//! PyTorch: TorchScript modules and packages of AOTInductor, run by libtorch in this process.
//!
//! * `ffi` wraps libtorch in safe types, through the C++ code that [`connection`] compiles;
//! * [`kind`] tells what a file is, [`archive`] reads its directory, [`ops`] the operations that a module
//!   names, and [`package`] what a package says about its inputs, all without libtorch;
//! * [`inputs`] and [`outputs`] make the signature;
//! * this file finds and loads models ([`ModelLoader`]), and opens the library ([`RuntimeLibrary`]).
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use self::archive::Archive;
use self::ffi::{InputRoute, TorchApi, TorchModel};
use self::inputs::{Declaration, InputPlan};
use self::kind::{ENDINGS, TorchFile};
use self::ops::SourceNames;
use self::outputs::{Learnt, OutputPlan};
use self::package::{InputCheck, Wrapper};
use tensorserve_platform::library::{LazyLibrary, Library};
use tensorserve_platform::{
    Completeness, Executable, ExternalOp, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader,
    ModelPath, OpPolicy, Platform, PlatformInfo, RunOptions, RuntimeLibrary, files,
};
use tensorserve_preprocessing::{DeclaredSignature, declared_signature};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, Tensor};

pub use self::config::TorchConfig;

mod archive;
mod config;
pub mod connection;
pub mod executorch;
mod ffi;
mod inputs;
mod kind;
mod ops;
mod outputs;
mod package;
mod parts;
mod types;

/// The library's file in Python's wheels.
const LIBRARY: Library = Library {
    name: "libtorch",
    files: &["libtorch_cpu.so"],
    package: "torch/lib",
    extra: "",
    runtime: "torch",
};

/// How long loops may take when the outputs of a model are learnt from zeros.
const ON_ZEROS: Duration = Duration::from_secs(60);

/// The driver of NVIDIA, without which CUDA is not started.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// The `pytorch` platform.
pub struct Torch {
    config: TorchConfig,
    runtime: LazyLibrary<OpenLibtorch>,
    /// The files that the log says to be programs: a file may be loaded several times.
    announced: Mutex<BTreeSet<PathBuf>>,
}

/// The open library.
#[derive(Clone)]
struct OpenLibtorch {
    api: Arc<TorchApi>,
    /// The process that has opened it. Load probes are forked from it, without GPUs.
    process: u32,
}

impl OpenLibtorch {
    /// The GPU that models are loaded onto, if there is one.
    fn gpu(&self) -> Option<i32> {
        let may_have = self.api.has_cuda() && Path::new(DRIVER).exists();
        (may_have && self.api.gpus() > 0).then_some(0)
    }
}

/// A module in memory, and its signature.
struct OpenModel {
    model: TorchModel,
    signature: Signature,
    inputs: Vec<InputPlan>,
    outputs: Vec<OutputPlan>,
    external_ops: Vec<ExternalOp>,
    bytes: u64,
}

/// What is known of a module before its outputs.
struct PreparedModule {
    model: TorchModel,
    inputs: Vec<InputPlan>,
    /// The names of the outputs, where the module itself does not have them.
    output_names: Vec<String>,
    writes_state: bool,
    is_random: bool,
}

impl PreparedModule {
    /// Runs it on tensors for all inputs. Returns the outputs with their names.
    fn run(&self, inputs: &[Tensor], threads: usize) -> Result<Vec<(String, Tensor)>> {
        let options = RunOptions { threads, timeout: Some(ON_ZEROS) };
        let routes: Vec<InputRoute> = self.inputs.iter().map(|plan| plan.route.clone()).collect();
        let mut outputs = self.model.run(&routes, inputs, options)?;
        let named = (0..outputs.len()).map(|index| {
            let name = String::from_utf8_lossy(outputs.name(index)).into_owned();
            Ok((name, outputs.take(index)?))
        });
        named.collect()
    }
}

impl Torch {
    /// The platform with these settings. The library is not opened yet.
    #[must_use]
    pub fn new(config: TorchConfig) -> Self {
        Torch { config, runtime: LazyLibrary::default(), announced: Mutex::default() }
    }

    /// Says in the log, once for each file, that it runs.
    fn announce(&self, file: &Path, what: &str) {
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if announced.insert(file.to_owned()) {
            let file = file.display();
            log::info!("{file}: {what}: it runs in the server's process, with its rights");
        }
    }

    /// The library, which is opened on first use.
    fn runtime(&self) -> Result<OpenLibtorch> {
        self.runtime.get_or_open(|| {
            let given = self.config.library.as_deref();
            let (api, file) = LIBRARY.open(given, &self.config.search, TorchApi::open)?;
            Ok((OpenLibtorch { api, process: process::id() }, file))
        })
    }

    fn open_model(&self, path: &Path, options: &LoadOptions) -> Result<OpenModel> {
        let file = files::find(path, &ENDINGS)?;
        let shown = |error| kind::at(&file, error);
        let declared = declared_signature(&file)?.unwrap_or_default();
        // What a file is, and whether it is allowed, is known without the library.
        let opened = TorchFile::open(&file)?;
        let bytes = fs::metadata(&file).map_or(0, |found| found.len());
        let (prepared, external_ops, is_bounded) = match &opened {
            TorchFile::Script(archive) => {
                let sources = SourceNames::read(archive).map_err(shown)?;
                let external_ops = sources.check(&options.ops).map_err(shown)?;
                let is_bounded = !sources.has_loops();
                (self.script(&file, &declared).map_err(shown)?, external_ops, is_bounded)
            }
            TorchFile::Package { archive, name } => {
                let external_ops = ops::check_package(name, &options.ops).map_err(shown)?;
                let prepared = self.package(&file, archive, name, &declared).map_err(shown)?;
                // Machine code may do anything.
                (prepared, external_ops, false)
            }
        };
        let run = |inputs: &[Tensor]| prepared.run(inputs, options.threads);
        let learnt = outputs::learn(&run, &prepared.inputs);
        let (learnt, ran_with) = match learnt {
            Ok(Learnt { outputs, ran_with }) => {
                (Ok(outputs::named(outputs, &prepared.output_names)), ran_with)
            }
            Err(error) => (Err(error), Vec::new()),
        };
        let names: Vec<&str> =
            prepared.inputs.iter().map(|plan| plan.spec.alias.as_str()).collect();
        let why_not = |error: &Error| {
            let why = format!(
                "the file does not declare its outputs, and a run on zeros to find them out fails ({error})"
            );
            match declared.inputs.is_empty() {
                true => inputs::declare(&why, &names),
                false => outputs::declare(&why),
            }
        };
        let outputs = outputs::plan(learnt, &declared.outputs, why_not).map_err(shown)?;
        let mut model = OpenModel::new(prepared, outputs, external_ops, bytes);
        model.signature.exact_shapes = matches!(opened, TorchFile::Package { .. });
        model.signature.is_bounded = is_bounded;
        model.signature.ran_with = ran_with;
        if !model.signature.read_only {
            // The runs on zeros have changed it.
            model.model = self.script(&file, &declared).map_err(shown)?.model;
        }
        Ok(model)
    }

    /// Loads a TorchScript module.
    fn script(&self, file: &Path, declared: &DeclaredSignature) -> Result<PreparedModule> {
        let runtime = self.runtime()?;
        self.announce(file, "a TorchScript module is a program");
        let gpu = runtime.gpu().filter(|_| runtime.process == process::id());
        let model = TorchModel::script(&runtime.api, file, gpu)?;
        let declaration = declaration(&model)?;
        let inputs = inputs::of_script(&declaration.inputs, &declared.inputs)?;
        let Declaration { writes_state, is_random, .. } = declaration;
        Ok(PreparedModule { model, inputs, output_names: Vec::new(), writes_state, is_random })
    }

    /// Loads the model `name` of a package of AOTInductor.
    fn package(
        &self,
        file: &Path,
        archive: &Archive,
        name: &str,
        declared: &DeclaredSignature,
    ) -> Result<PreparedModule> {
        let wrapper = Wrapper::read(archive, name)?;
        let runtime = self.runtime()?;
        self.announce(file, "a package of AOTInductor is machine code");
        let runners = available_parallelism().map_or(1, NonZero::get);
        let model = TorchModel::package(&runtime.api, file, name, runners, runtime.gpu())?;
        let checks: &[InputCheck] = wrapper.as_ref().map_or(&[], |wrapper| &wrapper.inputs);
        let mut names = wrapper.as_ref().and_then(|wrapper| wrapper.names.clone());
        if names.is_none() {
            let Declaration { call_spec, .. } = declaration(&model)?;
            if let [inputs, outputs] = &call_spec[..] {
                names = package::names_of(inputs, outputs);
            }
        }
        let input_names = names.as_ref().map(|(inputs, _)| inputs.as_slice());
        let inputs = inputs::of_package(input_names, checks, &declared.inputs)?;
        let is_random = wrapper.as_ref().is_none_or(|wrapper| wrapper.is_random);
        let output_names = names.map(|(_, outputs)| outputs).unwrap_or_default();
        Ok(PreparedModule { model, inputs, output_names, writes_state: false, is_random })
    }
}

/// Reads what is known of the file at `path` without libtorch, as a load does: what it is, its operations, and
/// the inputs of a package. For tests of these readers.
///
/// # Errors
/// As a load that libtorch does not refuse.
pub fn read(path: &Path) -> Result<()> {
    let file = files::find(path, &ENDINGS)?;
    match TorchFile::open(&file)? {
        TorchFile::Script(archive) => {
            SourceNames::read(&archive)?.check(&OpPolicy::default())?;
        }
        TorchFile::Package { archive, name } => {
            ops::check_package(&name, &OpPolicy::default())?;
            if let Some(wrapper) = Wrapper::read(&archive, &name)? {
                let names = wrapper.names.as_ref().map(|(inputs, _)| inputs.as_slice());
                inputs::of_package(names, &wrapper.inputs, &[])?;
            }
        }
    }
    Ok(())
}

fn declaration(model: &TorchModel) -> Result<Declaration> {
    serde_json::from_str(&model.describe()?)
        .map_err(|e| Error::internal("the description of the module is not valid").with_source(e))
}

impl OpenModel {
    fn new(
        prepared: PreparedModule,
        mut outputs: Vec<OutputPlan>,
        external_ops: Vec<ExternalOp>,
        bytes: u64,
    ) -> Self {
        let PreparedModule { model, mut inputs, writes_state, is_random, .. } = prepared;
        // In the order of the signature.
        inputs.sort_by(|a, b| a.spec.alias.cmp(&b.spec.alias));
        outputs.sort_by(|a, b| a.spec.alias.cmp(&b.spec.alias));
        let mut signature = Signature::only(
            inputs.iter().map(|plan| plan.spec.clone()).collect(),
            outputs.iter().map(|plan| plan.spec.clone()).collect(),
        );
        signature.read_only = !writes_state;
        signature.repeatable = !is_random;
        OpenModel { model, signature, inputs, outputs, external_ops, bytes }
    }
}

impl Torch {
    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: "pytorch",
            title: "PyTorch",
            input_style: InputStyle::Tensors,
            takes_threads: true,
            must_be_named: false,
            is_isolated: false,
        };
        Platform::new(info, self)
    }
}

impl RuntimeLibrary for Torch {
    fn describe(&self) -> Result<String> {
        Ok(format!("libtorch {}", self.runtime()?.api.version()))
    }

    fn library(&self) -> Option<PathBuf> {
        self.runtime.file()
    }
}

impl ModelLoader for Torch {
    fn recognises(&self, place: &ModelPath) -> bool {
        kind::recognises(place)
    }

    fn check(&self, path: &Path) -> Completeness {
        let file = files::check(path, &ENDINGS);
        if !matches!(file, Completeness::Complete) {
            return file;
        }
        match files::find(path, &ENDINGS).and_then(|file| TorchFile::open(&file)) {
            Ok(_) => Completeness::Complete,
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, options: &LoadOptions) -> Result<Inspection> {
        let model = self.open_model(path, options)?;
        Ok(Inspection {
            written_by: String::new(),
            signatures: vec![model.signature],
            bytes: model.bytes,
            external_ops: model.external_ops,
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let OpenModel { model, signature, inputs, outputs, external_ops, bytes } =
            self.open_model(path, options)?;
        let executable = TorchExecutable {
            routes: inputs.iter().map(|plan| plan.route.clone()).collect(),
            checks: inputs.iter().map(|plan| plan.check.clone()).collect(),
            most_rows: parts::most_rows(&signature, &inputs),
            names: inputs.into_iter().map(|plan| plan.spec.alias).collect(),
            outputs,
            model,
            threads: options.threads,
        };
        Ok(Loaded {
            signatures: vec![signature],
            executable: Arc::new(executable),
            bytes,
            marshalled_hooks: false,
            external_ops,
        })
    }
}

/// A loaded module. Names, routes and checks are those of the signature's inputs, in its order.
struct TorchExecutable {
    model: TorchModel,
    names: Vec<String>,
    routes: Vec<InputRoute>,
    checks: Vec<Option<InputCheck>>,
    outputs: Vec<OutputPlan>,
    /// The most rows of a run, if its package has a bound for them.
    most_rows: Option<usize>,
    /// Threads of an operation, unless a run has its own number.
    threads: usize,
}

impl TorchExecutable {
    fn run_once(&self, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        for ((check, name), input) in self.checks.iter().zip(&self.names).zip(inputs) {
            if let Some(check) = check {
                check.check(name, input)?;
            }
        }
        let threads = if options.threads > 0 { options.threads } else { self.threads };
        let options = RunOptions { threads, ..options };
        let mut outputs = self.model.run(&self.routes, inputs, options)?;
        self.outputs.iter().map(|output| output.take(&mut outputs)).collect()
    }
}

impl Executable for TorchExecutable {
    fn run(&self, _: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        parts::run(inputs, self.most_rows, |inputs| self.run_once(inputs, options))
    }

    fn runs_on_gpu(&self) -> bool {
        self.model.on_gpu
    }
}

#[cfg(test)]
mod tests;
