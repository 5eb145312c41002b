//! TensorFlow SavedModels, run by libtensorflow in this process.
//!
//! * `ffi` is the library's C API behind safe types, [`custom_ops`] adds to it;
//! * [`saved_model`], [`graph`] and [`bundle`] read a model's files without it;
//! * this file ties them together as a [`Platform`].
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

use prost::Message;

use self::ffi::{Api, Endpoint, Session};
use self::graph::StateChanging;
use tensorserve_os as os;
use tensorserve_platform::library::Library;
use tensorserve_platform::{
    Completeness, CustomOps, Executable, InputStyle, Inspection, LoadOptions, Loaded, Place,
    Platform, Profiled, RunOptions,
};
use tensorserve_proto::tensorflow::{ConfigProto, GpuOptions, OpList, ThreadPoolOptionProto};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor, TensorSpec};

pub use self::config::{GpuConfig, TensorFlowConfig};

mod bundle;
mod config;
mod custom_ops;
mod ffi;
mod graph;
mod saved_model;
mod trace;

/// In Python's wheels, and in the C API's own archive.
const LIBRARY: Library = Library {
    name: "libtensorflow",
    files: &["libtensorflow_cc.so.2", "libtensorflow.so.2"],
    package: "tensorflow",
    remedy: "pip install tensorflow-cpu",
};

/// The `tensorflow` platform.
pub struct TensorFlow {
    config: TensorFlowConfig,
    /// Opened by the first call that needs it, so that commands that do not stay quick.
    runtime: Mutex<Option<Arc<Runtime>>>,
}

/// The library, opened, and what we asked it once.
struct Runtime {
    api: Arc<Api>,
    state: StateChanging,
    custom_ops: Vec<CustomOps>,
    pools: Once,
}

/// The threads between operations that all sessions share, in the order sessions list them.
const POOLS: [&str; 2] = ["runs", "loads"];

impl TensorFlow {
    /// The platform with these settings. Opens nothing yet.
    #[must_use]
    pub fn new(config: TensorFlowConfig) -> Self {
        let runtime = Mutex::new(None);
        TensorFlow { config, runtime }
    }

    fn runtime(&self) -> Result<Arc<Runtime>> {
        let mut slot = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*slot {
            return Ok(Arc::clone(runtime));
        }
        let api = self.open()?;
        if !api.bounds_threads() {
            log::warn!(
                "this libtensorflow can not bound threads per run; every run uses all of them"
            );
        }
        if !os::splits_file_reads() {
            log::debug!("variables are read in one call each, which requests may wait for");
        }
        let custom_ops = custom_ops::load(&api, &self.config.custom_ops)?;
        // Custom operations are in it, too.
        let registry = OpList::decode(api.operations().as_slice()).map_err(|e| {
            Error::internal("libtensorflow's list of operations is damaged").with_source(e)
        })?;
        let state = StateChanging::new(&registry);
        let runtime = Arc::new(Runtime { api, state, custom_ops, pools: Once::new() });
        *slot = Some(Arc::clone(&runtime));
        Ok(runtime)
    }

    fn open(&self) -> Result<Arc<Api>> {
        ffi::use_threads_per_session();
        let Some(level) = self.config.log_level else {
            return self.find_and_open();
        };
        ffi::set_log_level(level);
        if level == 0 {
            return self.find_and_open();
        }
        let (opened, notes) = os::capture_stderr(|| self.find_and_open());
        for note in notes.lines() {
            log::debug!("libtensorflow: {note}");
        }
        opened
    }

    fn find_and_open(&self) -> Result<Arc<Api>> {
        LIBRARY.open(self.config.library.as_deref(), &self.config.search, Api::open)
    }

    /// Starts the threads between operations: for runs, and for what loads do, which all others go
    /// before. A thread's priority is that of the one that starts it, and the library starts
    /// these for the first session that lists them.
    fn start_pools(&self, api: &Arc<Api>) {
        let config = |count| {
            ConfigProto {
                device_count: [("GPU".to_owned(), 0)].into(),
                intra_op_parallelism_threads: 1,
                inter_op_parallelism_threads: self.config.inter_op_threads,
                session_inter_op_thread_pool: self.pools(count),
                ..ConfigProto::default()
            }
            .encode_to_vec()
        };
        let (runs, all) = (config(1), config(POOLS.len()));
        let outcome = Session::set_up(api, &runs).and_then(|()| {
            let api = Arc::clone(api);
            let starter = thread::Builder::new().name("pools".to_owned()).spawn(move || {
                os::lower_priority();
                Session::set_up(&api, &all)
            });
            let ended = starter.map(thread::JoinHandle::join);
            ended.ok().and_then(Result::ok).unwrap_or(Ok(()))
        });
        if let Err(error) = outcome {
            log::debug!("loads have no threads of low priority: {error}");
        }
    }

    /// The first `count` of the [`POOLS`].
    fn pools(&self, count: usize) -> Vec<ThreadPoolOptionProto> {
        let num_threads = self.config.inter_op_threads;
        let pool = |name: &&str| {
            let global_name = format!("tensorserve {name}");
            ThreadPoolOptionProto { num_threads, global_name }
        };
        POOLS.iter().take(count).map(pool).collect()
    }

    /// Settings of a session whose operations use `threads` threads, unless the user has set a
    /// number.
    fn session_config(&self, threads: usize) -> Vec<u8> {
        let gpu = &self.config.gpu;
        let threads = match self.config.intra_op_threads {
            0 => i32::try_from(threads).unwrap_or(0),
            set => set,
        };
        ConfigProto {
            intra_op_parallelism_threads: threads,
            inter_op_parallelism_threads: self.config.inter_op_threads,
            session_inter_op_thread_pool: self.pools(POOLS.len()),
            gpu_options: Some(GpuOptions {
                per_process_gpu_memory_fraction: gpu.memory_fraction,
                allow_growth: gpu.allow_growth,
                visible_device_list: gpu.visible_devices.clone(),
                ..GpuOptions::default()
            }),
            // A graph exported on a GPU host must load on one without.
            allow_soft_placement: true,
            log_device_placement: false,
            ..ConfigProto::default()
        }
        .encode_to_vec()
    }
}

impl Platform for TensorFlow {
    fn name(&self) -> &'static str {
        "tensorflow"
    }

    fn title(&self) -> &'static str {
        "TensorFlow"
    }

    fn input_style(&self) -> InputStyle {
        InputStyle::Tensors
    }

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

    fn custom_ops(&self) -> Vec<CustomOps> {
        let slot = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().map_or(Vec::new(), |runtime| runtime.custom_ops.clone())
    }

    fn has_folders(&self) -> bool {
        true
    }

    fn recognises(&self, place: &Place) -> bool {
        saved_model::is_one(place.path())
    }

    fn takes_threads(&self) -> bool {
        self.config.intra_op_threads == 0
    }

    fn check(&self, folder: &Path) -> Completeness {
        saved_model::check(folder)
    }

    fn inspect(&self, folder: &Path, options: &LoadOptions) -> Result<Inspection> {
        let meta = saved_model::read(folder, &options.tags)?;
        let info = meta.meta_info_def.as_ref();
        Ok(Inspection {
            written_by: info.map_or(String::new(), |info| info.tensorflow_version.clone()),
            signatures: saved_model::signatures(&meta, options, None),
            bytes: saved_model::size_of_files(folder),
        })
    }

    fn load(&self, folder: &Path, options: &LoadOptions) -> Result<Loaded> {
        let meta = saved_model::read(folder, &options.tags)?;
        let runtime = self.runtime()?;
        let signatures = saved_model::signatures(&meta, options, Some(&runtime.state));
        let marshalled_hooks = saved_model::has_marshalled_hooks(&meta);
        drop(meta); // It may hold a large graph; the runtime makes its own.
        let config = self.session_config(options.threads);
        runtime.pools.call_once(|| self.start_pools(&runtime.api));
        let session = Session::load(&runtime.api, folder, &options.tags, &config);
        let session = session.map_err(with_hint)?;
        let calls = signatures.iter().map(|s| Call::resolve(&session, s)).collect();
        Ok(Loaded {
            executable: Arc::new(Model { session, calls }),
            signatures,
            bytes: saved_model::size_of_files(folder),
            marshalled_hooks,
        })
    }
}

/// A failed load, with what to do about an operation that is not there.
fn with_hint(error: Error) -> Error {
    if !error.message().contains("Op type not registered") {
        return error;
    }
    let hint = "if it is a custom op, name its library with custom_op_paths";
    Error::new(error.code(), format!("{} ({hint})", error.message()))
}

/// A loaded SavedModel.
struct Model {
    /// Feeds and fetches of each signature; an error for one that can not be called.
    calls: Vec<Result<Call>>,
    session: Session,
}

struct Call {
    feeds: Vec<Endpoint>,
    fetches: Vec<Endpoint>,
}

impl Call {
    fn resolve(session: &Session, signature: &Signature) -> Result<Self> {
        let find = |spec: &TensorSpec| {
            if spec.sparse.is_some() {
                let message =
                    format!("{:?} is a sparse tensor, which can not be served", spec.alias);
                return Err(Error::new(Code::Unimplemented, message));
            }
            session.endpoint(&spec.tensor_name)
        };
        Ok(Call {
            feeds: signature.inputs.iter().map(find).collect::<Result<_>>()?,
            fetches: signature.outputs.iter().map(find).collect::<Result<_>>()?,
        })
    }
}

impl Model {
    fn call(&self, signature: usize) -> Result<&Call> {
        match self.calls.get(signature) {
            Some(Ok(call)) => Ok(call),
            Some(Err(error)) => Err(error.duplicate()),
            None => Err(Error::internal("no such signature number")),
        }
    }
}

impl Executable for Model {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let call = self.call(signature)?;
        self.session.run(&call.feeds, inputs, &call.fetches, options)
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        let call = self.call(signature)?;
        let (outputs, metadata) =
            self.session.run_traced(&call.feeds, inputs, &call.fetches, options)?;
        Ok((outputs, trace::read(&metadata)?))
    }
}
