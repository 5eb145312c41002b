//! TensorFlow SavedModels, run by libtensorflow in this process.
//!
//! * `ffi` wraps the library's C API in safe types, and [`custom_ops`] extends the library;
//! * [`signatures`], [`registry`], [`frozen`] and [`external_ops`] say what a model's files declare, of which the crate
//!   `savedmodel` reads those of SavedModels; [`model_files`] finds them;
//! * [`freezing`] makes copies of models whose variables are constants;
//! * [`trace`] reads profiles, [`unset`] errors;
//! * `executable` runs them;
//! * this file finds and loads models ([`ModelLoader`]), and opens the library ([`RuntimeLibrary`]).
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Once, OnceLock};
use std::thread;

use prost::Message;

use self::executable::SavedModelExecutable;
use self::ffi::{SessionSettings, TensorFlowApi, TensorFlowSession};
use self::freezing::SavedModelOrigin;
use self::gpu::GpuSearch;
use self::model_files::{GraphFiles, ModelParts};
use self::registry::OpRegistry;
use tensorserve_os as os;
use tensorserve_platform::library::{LazyLibrary, Library};
use tensorserve_platform::{
    Completeness, CustomOps, Gpus, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader,
    ModelPath, Platform, PlatformInfo, RuntimeLibrary,
};
use tensorserve_proto::tensorflow::{
    ConfigProto, GpuOptions, MetaGraphDef, OpList, ThreadPoolOptionProto,
};
use tensorserve_savedmodel as saved_model;
use tensorserve_tensor::error::{Error, Result};

pub use self::config::{GpuConfig, TensorFlowConfig};

mod config;
mod copy_threads;
mod custom_ops;
mod executable;
mod external_ops;
mod ffi;
mod freezing;
mod frozen;
mod gpu;
mod loaded_graph;
mod model_files;
mod one_thread;
mod registry;
mod remote;
mod rows;
mod scope;
mod signatures;
mod trace;
mod unset;

/// The library's files in Python's wheels and in the archive of the C API.
const LIBRARY: Library = Library {
    name: "libtensorflow",
    files: &["libtensorflow_cc.so.2", "libtensorflow.so.2"],
    package: "tensorflow",
    extra: "tensorflow",
    runtime: "tensorflow",
};

/// The minor versions of TensorFlow 2 that the tests have run with.
const TESTED: RangeInclusive<u32> = 16..=21;

/// The `tensorflow` platform.
pub struct TensorFlow {
    config: TensorFlowConfig,
    /// Opened on first use, so that commands that do not need it stay fast.
    runtime: LazyLibrary<Arc<TensorFlowRuntime>>,
}

/// The open library, and what is read from it once.
struct TensorFlowRuntime {
    api: Arc<TensorFlowApi>,
    registry: OpRegistry,
    custom_ops: Vec<CustomOps>,
    pools_started: Once,
    /// What to expect of this machine.
    expected_gpus: Gpus,
    /// What the first session has.
    gpus_in_use: OnceLock<Gpus>,
    /// The process that has opened the library. Load probes are forked from it, without GPUs.
    process: u32,
}

impl TensorFlowRuntime {
    fn gpus(&self) -> &Gpus {
        self.gpus_in_use.get().unwrap_or(&self.expected_gpus)
    }

    /// Records that a session has `count` GPUs.
    fn found_gpus(&self, count: usize) {
        let found = match (&self.expected_gpus, count) {
            (Gpus::Available(_), 0) => {
                let why = ffi::cuda_error().unwrap_or_else(|| {
                    "TF_CPP_MIN_LOG_LEVEL=0 makes it say why in the log".to_owned()
                });
                Gpus::Unavailable(format!("libtensorflow finds no GPU that it can use: {why}"))
            }
            (Gpus::Unavailable(_), 1..) => {
                Gpus::Available((0..count).map(|number| format!("GPU {number}")).collect())
            }
            (expected, _) => expected.clone(),
        };
        if self.gpus_in_use.set(found).is_ok() && *self.gpus() != self.expected_gpus {
            self.report_gpus();
        }
    }

    fn report_gpus(&self) {
        match self.gpus() {
            Gpus::NotSupported => {}
            Gpus::Available(names) => log::info!("GPUs: {}", names.join(", ")),
            Gpus::Unavailable(why) => log::warn!("{}", without_gpu(why)),
        }
    }
}

/// The remark that a runtime for GPUs has none.
fn without_gpu(why: &str) -> String {
    format!("no GPU, models run on the CPU: {why}")
}

/// The inter-op thread pools that all sessions share, in the order in which sessions list them.
const INTER_OP_POOLS: [&str; 2] = ["runs", "loads"];

impl TensorFlow {
    /// The platform with these settings. The library is not opened yet, but the environment variables
    /// are set that it will read: create the platform before other libraries start threads.
    #[must_use]
    pub fn new(config: TensorFlowConfig) -> Self {
        static ENVIRONMENT: Once = Once::new();
        ENVIRONMENT.call_once(|| {
            ffi::use_threads_per_session();
            if let Some(level) = config.log_level {
                ffi::set_log_level(level);
            }
        });
        TensorFlow { config, runtime: LazyLibrary::default() }
    }

    /// The library, which is opened on first use.
    fn runtime(&self) -> Result<Arc<TensorFlowRuntime>> {
        self.runtime.get_or_open(|| self.open_runtime())
    }

    fn open_runtime(&self) -> Result<(Arc<TensorFlowRuntime>, PathBuf)> {
        let (api, file) = self.open()?;
        if let Some(remark) = untested(&api.version()) {
            log::warn!("{}: {remark}", file.display());
        }
        if !api.bounds_threads() {
            log::warn!(
                "this libtensorflow cannot limit the threads of a run; every run uses all of them"
            );
        }
        if !os::splits_file_reads() {
            log::debug!("each variable is read in one system call, which may delay requests");
        }
        let custom_ops = custom_ops::load(&api, &self.config.custom_ops)?;
        // The registry includes the custom operations.
        let registry = OpList::decode(api.operations().as_slice()).map_err(|e| {
            Error::internal("libtensorflow's list of operations is invalid").with_source(e)
        })?;
        let registry = OpRegistry::new(&registry);
        let runtime = TensorFlowRuntime {
            expected_gpus: self.expected_gpus(&api, &file),
            gpus_in_use: OnceLock::new(),
            api,
            registry,
            custom_ops,
            pools_started: Once::new(),
            process: process::id(),
        };
        runtime.report_gpus();
        Ok((Arc::new(runtime), file))
    }

    /// Opens the library. What it writes to stderr meanwhile goes to the log, unless its log level is
    /// 0 or left to the environment, or others may be writing to stderr.
    fn open(&self) -> Result<(Arc<TensorFlowApi>, PathBuf)> {
        if matches!(self.config.log_level, None | Some(0)) {
            return self.find_and_open();
        }
        let is_alone = self.config.is_alone_on_stderr;
        let (opened, output) = os::capture_stderr(is_alone, || self.find_and_open());
        for line in output.lines() {
            log::debug!("libtensorflow: {line}");
        }
        opened
    }

    fn find_and_open(&self) -> Result<(Arc<TensorFlowApi>, PathBuf)> {
        LIBRARY.open(self.config.library.as_deref(), &self.config.search, TensorFlowApi::open)
    }

    /// The GPUs of this machine for the library `api` in `file`.
    fn expected_gpus(&self, api: &TensorFlowApi, file: &Path) -> Gpus {
        let visible = self.config.gpu.cuda_visible_devices.as_deref();
        let gpus = GpuSearch::new(api.has_cuda(), visible, file).run();
        if matches!(gpus, Gpus::Available(_)) {
            // The search path of libtensorflow lacks the directory of this library.
            let folders = gpu::cuda_folders(file).into_iter();
            let mut solvers = folders.map(|folder| folder.join("libcusolver.so.11"));
            if let Some(solver) = solvers.find(|solver| solver.is_file()) {
                ffi::keep_open(&solver);
            }
        }
        gpus
    }

    /// Starts the inter-op thread pools: one for runs, and one of low priority for loads. A thread
    /// inherits the priority of the thread that starts it, and the library starts a pool for the
    /// first session that lists it.
    fn start_pools(&self, api: &Arc<TensorFlowApi>) {
        let (runs, all) = (self.pool_config(1), self.pool_config(INTER_OP_POOLS.len()));
        let outcome = TensorFlowSession::initialize(api, &runs).and_then(|_| {
            let api = Arc::clone(api);
            let starter = thread::Builder::new().name("pools".to_owned()).spawn(move || {
                os::lower_priority();
                TensorFlowSession::initialize(&api, &all)
            });
            let joined = starter.map(thread::JoinHandle::join);
            joined.ok().and_then(Result::ok).unwrap_or(Ok(0))
        });
        if let Err(error) = outcome {
            log::debug!("the low-priority threads for loads could not be started: {error}");
        }
    }

    /// The settings of a session that starts the first `count` pools.
    fn pool_config(&self, count: usize) -> Vec<u8> {
        ConfigProto {
            device_count: [("GPU".to_owned(), 0)].into(),
            intra_op_parallelism_threads: 1,
            inter_op_parallelism_threads: self.config.inter_op_threads,
            session_inter_op_thread_pool: self.inter_op_pools(count),
            ..ConfigProto::default()
        }
        .encode_to_vec()
    }

    /// The first `count` of the [`INTER_OP_POOLS`].
    fn inter_op_pools(&self, count: usize) -> Vec<ThreadPoolOptionProto> {
        let num_threads = self.config.inter_op_threads;
        let pool = |name: &&str| {
            let global_name = format!("tensorserve {name}");
            ThreadPoolOptionProto { num_threads, global_name }
        };
        INTER_OP_POOLS.iter().take(count).map(pool).collect()
    }

    /// The pools of a session: the shared ones, and one of its own if its runs are unbounded, which would
    /// otherwise take the threads of other models.
    fn session_pools(&self, is_bounded: bool) -> Vec<ThreadPoolOptionProto> {
        // Sessions of a server have none.
        if !self.config.session_target.is_empty() {
            return Vec::new();
        }
        let mut pools = self.inter_op_pools(INTER_OP_POOLS.len());
        if !is_bounded {
            let num_threads = self.config.inter_op_threads;
            pools.push(ThreadPoolOptionProto { num_threads, global_name: String::new() });
        }
        pools
    }

    /// The settings of a session whose operations use `threads` threads, unless the user has set a
    /// number.
    fn session_config(&self, threads: usize, is_bounded: bool) -> Vec<u8> {
        let gpu = &self.config.gpu;
        let threads = match self.config.intra_op_threads {
            0 => i32::try_from(threads).unwrap_or(0),
            configured => configured,
        };
        ConfigProto {
            intra_op_parallelism_threads: threads,
            inter_op_parallelism_threads: self.config.inter_op_threads,
            session_inter_op_thread_pool: self.session_pools(is_bounded),
            gpu_options: Some(GpuOptions {
                per_process_gpu_memory_fraction: gpu.memory_fraction,
                allow_growth: gpu.allow_growth,
                visible_device_list: gpu.visible_devices.clone(),
                ..GpuOptions::default()
            }),
            // A graph that was exported on a machine with a GPU must load on one without.
            allow_soft_placement: true,
            // On a server of TensorFlow, sessions share the variables of the same name otherwise.
            isolate_session_state: !self.config.session_target.is_empty(),
            log_device_placement: false,
            ..ConfigProto::default()
        }
        .encode_to_vec()
    }
}

impl TensorFlow {
    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: "tensorflow",
            title: "TensorFlow",
            input_style: InputStyle::Tensors,
            takes_threads: self.config.intra_op_threads == 0,
            must_be_named: false,
            is_isolated: false,
        };
        Platform::new(info, self)
    }
}

impl RuntimeLibrary for TensorFlow {
    fn describe(&self) -> Result<String> {
        let runtime = self.runtime()?;
        let version = runtime.api.version();
        let count: usize = runtime.custom_ops.iter().map(|library| library.ops.len()).sum();
        match count {
            0 => Ok(format!("libtensorflow {version}")),
            1 => Ok(format!("libtensorflow {version} with 1 custom op")),
            _ => Ok(format!("libtensorflow {version} with {count} custom ops")),
        }
    }

    fn library(&self) -> Option<PathBuf> {
        self.runtime.file()
    }

    fn remarks(&self) -> Vec<String> {
        let Some(runtime) = self.runtime.get() else {
            return Vec::new();
        };
        let gpu = match runtime.gpus() {
            Gpus::Unavailable(why) => Some(without_gpu(why)),
            Gpus::NotSupported | Gpus::Available(_) => None,
        };
        untested(&runtime.api.version()).into_iter().chain(gpu).collect()
    }

    fn gpus(&self) -> Option<Gpus> {
        self.runtime.get().map(|runtime| runtime.gpus().clone())
    }

    fn find_gpus(&self) -> Result<Option<Gpus>> {
        let runtime = self.runtime()?;
        if matches!(runtime.gpus(), Gpus::Available(_)) {
            runtime.pools_started.call_once(|| self.start_pools(&runtime.api));
            let config = self.session_config(1, true);
            runtime.found_gpus(TensorFlowSession::initialize(&runtime.api, &config)?);
        }
        Ok(Some(runtime.gpus().clone()))
    }

    fn custom_ops(&self) -> Vec<CustomOps> {
        self.runtime.get().map_or(Vec::new(), |runtime| runtime.custom_ops.clone())
    }
}

impl ModelLoader for TensorFlow {
    fn has_folders(&self, place: &ModelPath) -> bool {
        saved_model::find(place.path()).is_some()
    }

    fn recognises(&self, place: &ModelPath) -> bool {
        saved_model::find(place.path()).is_some() || frozen::exists(place)
    }

    fn check(&self, folder: &Path) -> Completeness {
        match saved_model::find(folder) {
            Some(folder) => saved_model::check(&folder),
            None => frozen::check(folder),
        }
    }

    fn inspect(&self, folder: &Path, options: &LoadOptions) -> Result<Inspection> {
        let files = GraphFiles::find(folder)?;
        let parts = match &files {
            GraphFiles::SavedModel(folder) => {
                // Without the library less is known.
                let runtime = self.runtime().ok();
                let registry = runtime.as_ref().map(|runtime| &runtime.registry);
                ModelParts::of(&saved_model::read(folder, &options.tags)?, options, registry)?
            }
            // Only the runtime reads the one, and knows the outputs of the other.
            GraphFiles::Text(_) | GraphFiles::Frozen(_) => {
                self.open_model(&*self.runtime()?, &files, options)?.0
            }
        };
        Ok(Inspection {
            written_by: parts.written_by,
            signatures: parts.signatures,
            bytes: files.bytes(),
            external_ops: parts.external_ops,
        })
    }

    fn load(&self, folder: &Path, options: &LoadOptions) -> Result<Loaded> {
        let files = GraphFiles::find(folder)?;
        let runtime = self.runtime()?;
        let (mut parts, session) = self.open_model(&runtime, &files, options)?;
        if !self.config.session_target.is_empty() {
            // Another machine may never answer.
            parts.signatures.iter_mut().for_each(|signature| signature.is_bounded = false);
        }
        let ModelParts { signatures, alike, marshalled_hooks, external_ops, has_variables, .. } =
            parts;
        let is_known = runtime.gpus_in_use.get().is_some() || runtime.process != process::id();
        if !is_known && let Ok(count) = session.gpus() {
            runtime.found_gpus(count);
        }
        let is_local = self.config.session_target.is_empty();
        // On another machine, nothing is known of the devices.
        let on_gpu = is_local && matches!(runtime.gpus(), Gpus::Available(_));
        let executable = SavedModelExecutable::new((session, alike.clone()), &signatures, on_gpu);
        let executable = match &files {
            GraphFiles::SavedModel(folder) if is_local => {
                let is_bounded = signatures.iter().all(|it| it.is_bounded);
                let may_split = self.config.intra_op_threads == 0 && options.threads > 1 && !on_gpu;
                let single = LoadOptions { threads: 1, ..options.clone() };
                let origin = SavedModelOrigin {
                    api: Arc::clone(&runtime.api),
                    folder: folder.to_path_buf(),
                    tags: options.tags.clone(),
                    settings: self.settings(options, is_bounded),
                    one_thread: may_split.then(|| self.settings(&single, is_bounded)),
                    signatures: signatures.clone(),
                    alike,
                    has_variables,
                    bytes: files.bytes(),
                };
                executable.with_copies(origin)
            }
            // Those that only the runtime reads, frozen graphs, and those on another machine.
            GraphFiles::SavedModel(_) | GraphFiles::Text(_) | GraphFiles::Frozen(_) => executable,
        };
        Ok(Loaded {
            executable: Arc::new(executable),
            signatures,
            bytes: files.bytes(),
            marshalled_hooks,
            external_ops,
        })
    }
}

impl TensorFlow {
    /// The settings of the session of a model.
    fn settings(&self, options: &LoadOptions, is_bounded: bool) -> SessionSettings {
        SessionSettings {
            config: self.session_config(options.threads, is_bounded),
            target: self.config.session_target.clone(),
            has_own_pool: !is_bounded && self.config.session_target.is_empty(),
        }
    }

    /// Loads a model. What it declares is read, and checked, before anything of it is run.
    fn open_model(
        &self,
        runtime: &TensorFlowRuntime,
        files: &GraphFiles<'_>,
        options: &LoadOptions,
    ) -> Result<(ModelParts, TensorFlowSession)> {
        let api = &runtime.api;
        runtime.pools_started.call_once(|| self.start_pools(api));
        let registry = Some(&runtime.registry);
        remote::check(&self.config.session_target)?;
        let settings = |is_bounded| self.settings(options, is_bounded);
        match files {
            GraphFiles::SavedModel(folder) => {
                let meta = saved_model::read(folder, &options.tags)?;
                let parts = ModelParts::of(&meta, options, registry)?;
                drop(meta); // It may have a large graph, and the runtime reads its own.
                let settings = settings(parts.signatures.iter().all(|it| it.is_bounded));
                let session = TensorFlowSession::load(api, folder, &options.tags, &settings, None);
                Ok((parts, session.map_err(with_hint)?))
            }
            GraphFiles::Text(folder) => {
                if options.ops.refuses_any() {
                    return Err(external_ops::unchecked(folder));
                }
                let (mut meta, settings) = (Vec::new(), settings(false));
                let session =
                    TensorFlowSession::load(api, folder, &options.tags, &settings, Some(&mut meta));
                let session = session.map_err(with_hint)?;
                let meta = MetaGraphDef::decode(meta.as_slice()).map_err(|e| {
                    Error::internal("libtensorflow's copy of the graph is invalid").with_source(e)
                })?;
                Ok((ModelParts::of(&meta, options, registry)?, session))
            }
            GraphFiles::Frozen(file) => {
                let (mut meta, bytes) = frozen::read(file)?;
                external_ops::check(&meta, &options.ops)?;
                let session = TensorFlowSession::of_graph(api, &bytes, &settings(false));
                let session = session.map_err(with_hint)?;
                frozen::declare(&mut meta, &session, file)?;
                Ok((ModelParts::of(&meta, options, registry)?, session))
            }
        }
    }
}

/// What to know about libtensorflow `version`, if it is not one of the [`TESTED`] versions.
fn untested(version: &str) -> Option<String> {
    let mut numbers = version.split('.').map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Some(format!("libtensorflow has the unknown version {version:?}"));
    };
    let (first, last) = (TESTED.start(), TESTED.end());
    let tested = format!("the tested versions, 2.{first} to 2.{last}");
    if (major, minor) < (2, *first) {
        let remedy = "models may fail to load or respond differently; install a later one";
        return Some(format!("libtensorflow {version} is older than {tested}: {remedy}"));
    }
    if (major, minor) > (2, *last) {
        return Some(format!("libtensorflow {version} is newer than {tested}"));
    }
    None
}

/// The error of a load, with what to do about a missing operation.
fn with_hint(error: Error) -> Error {
    if !error.message().contains("Op type not registered") {
        return error;
    }
    let hint = custom_ops::hint_for(error.message());
    Error::new(error.code(), format!("{} ({hint})", error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_were_not_tested_are_told() {
        for tested in ["2.16.0", "2.16.2", "2.19.1-rc0", "2.21.0"] {
            assert_eq!(untested(tested), None);
        }
        for (version, comparison) in
            [("2.15.1", "older than"), ("1.15.0", "older than"), ("2.22.0-dev", "newer than")]
        {
            let remark = untested(version).expect(version);
            let expected = format!("libtensorflow {version} is {comparison} the tested versions");
            assert!(remark.starts_with(&expected), "{remark}");
        }
        assert!(untested("nightly").is_some_and(|remark| remark.contains("\"nightly\"")));
    }
}
