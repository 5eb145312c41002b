//! libtensorflow's C API, loaded at run time, behind safe types. The only file of this platform
//! with `unsafe` code, and long for that reason: everything that keeps it sound is in one place.
//!
//! The types here uphold these rules:
//! * every pointer from the library is owned by one struct, which frees it on drop and keeps the
//!   [`TensorFlowApi`], and with it the library, alive;
//! * every call that reports a status goes through [`OwnedStatus::check`];
//! * an input tensor shares our memory: the runtime gets a counted reference, which a deallocator
//!   releases when the last user inside the runtime is done with it;
//! * an output tensor is read in place and freed when its last view is dropped.
//!
//! Sources: `tensorflow/c/c_api.h`, `tf_tensor.h`, `tf_tstring.h` of TensorFlow 2.21.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use libloading::Library;
use smallvec::SmallVec;

use tensorserve_os as os;
use tensorserve_platform::RunOptions;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Buffer, DType, Data, Memory, Shape, Strings, StringsBuilder, Tensor};

/// Types that the library exposes only as pointers.
macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] struct $name { _opaque: [u8; 0] })* };
}
opaque!(
    TfStatus,
    TfSessionOptions,
    TfGraph,
    TfSession,
    TfOperation,
    TfTensor,
    TfLibrary,
    TfDeviceList,
    TfImportOptions,
    TfOperationDescription
);

#[repr(C)]
struct TfBuffer {
    data: *const c_void,
    length: usize,
    deallocator: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

/// `TF_Output`: one output of one operation of a loaded graph.
#[repr(C)]
#[derive(Clone, Copy)]
struct TfOutput {
    operation: *mut TfOperation,
    index: c_int,
}

/// Size of a `TF_TString` in bytes.
const TSTRING_SIZE: usize = 24;

/// `TF_TString`: a string as the runtime stores it, read and written only through the library's own
/// functions.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct TString([u8; TSTRING_SIZE]);

type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

macro_rules! api {
    ($($field:ident = $symbol:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The open library, with its functions.
        pub(super) struct TensorFlowApi {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            /// Not part of the C API, and missing from some builds.
            set_max_parallelism: Option<unsafe extern "C" fn(c_int)>,
            /// Not part of the C API, and missing from some builds.
            is_cuda_enabled: Option<unsafe extern "C" fn() -> bool>,
            /// Never closed: the library leaves threads and exit handlers behind, which would
            /// then run in unmapped memory.
            _library: ManuallyDrop<Library>,
        }

        impl TensorFlowApi {
            fn resolve(library: Library) -> Result<Self, libloading::Error> {
                // SAFETY: in the stable C API of TensorFlow 2.x, each symbol has exactly the
                // signature of the table below; the library is never closed, so the pointers
                // stay valid.
                unsafe {
                    Ok(TensorFlowApi {
                        $($field: *library.get($symbol)?,)*
                        set_max_parallelism: library
                            .get(SET_MAX_PARALLELISM)
                            .ok()
                            .map(|symbol| *symbol),
                        is_cuda_enabled: library
                            .get(IS_CUDA_ENABLED)
                            .ok()
                            .map(|symbol| *symbol),
                        _library: ManuallyDrop::new(library),
                    })
                }
            }
        }
    };
}

/// `void tensorflow::SetPerThreadMaxParallelism(int)`: limits the threads of operations that the
/// calling thread runs. It is C++, but with the C calling convention. Without it, every run uses the
/// number of threads of its session.
const SET_MAX_PARALLELISM: &[u8] = b"_ZN10tensorflow26SetPerThreadMaxParallelismEi\0";

/// `bool tensorflow::IsGoogleCudaEnabled()`: whether the library is built with CUDA. C++, as above.
const IS_CUDA_ENABLED: &[u8] = b"_ZN10tensorflow19IsGoogleCudaEnabledEv\0";

api! {
    version = b"TF_Version\0": fn() -> *const c_char;
    all_ops = b"TF_GetAllOpList\0": fn() -> *mut TfBuffer;
    new_buffer = b"TF_NewBuffer\0": fn() -> *mut TfBuffer;
    delete_buffer = b"TF_DeleteBuffer\0": fn(*mut TfBuffer);
    load_library = b"TF_LoadLibrary\0": fn(*const c_char, *mut TfStatus) -> *mut TfLibrary;
    op_list = b"TF_GetOpList\0": fn(*mut TfLibrary) -> TfBuffer;
    delete_library_handle = b"TF_DeleteLibraryHandle\0": fn(*mut TfLibrary);
    new_status = b"TF_NewStatus\0": fn() -> *mut TfStatus;
    delete_status = b"TF_DeleteStatus\0": fn(*mut TfStatus);
    get_code = b"TF_GetCode\0": fn(*const TfStatus) -> c_int;
    message = b"TF_Message\0": fn(*const TfStatus) -> *const c_char;
    new_session_options = b"TF_NewSessionOptions\0": fn() -> *mut TfSessionOptions;
    delete_session_options = b"TF_DeleteSessionOptions\0": fn(*mut TfSessionOptions);
    set_target = b"TF_SetTarget\0": fn(*mut TfSessionOptions, *const c_char);
    set_config = b"TF_SetConfig\0": fn(*mut TfSessionOptions, *const c_void, usize, *mut TfStatus);
    new_graph = b"TF_NewGraph\0": fn() -> *mut TfGraph;
    delete_graph = b"TF_DeleteGraph\0": fn(*mut TfGraph);
    load_session = b"TF_LoadSessionFromSavedModel\0": fn(
        *const TfSessionOptions, *const TfBuffer, *const c_char, *const *const c_char, c_int,
        *mut TfGraph, *mut TfBuffer, *mut TfStatus
    ) -> *mut TfSession;
    new_session = b"TF_NewSession\0":
        fn(*mut TfGraph, *const TfSessionOptions, *mut TfStatus) -> *mut TfSession;
    close_session = b"TF_CloseSession\0": fn(*mut TfSession, *mut TfStatus);
    delete_session = b"TF_DeleteSession\0": fn(*mut TfSession, *mut TfStatus);
    session_run = b"TF_SessionRun\0": fn(
        *mut TfSession, *const TfBuffer,
        *const TfOutput, *const *mut TfTensor, c_int,
        *const TfOutput, *mut *mut TfTensor, c_int,
        *const *const TfOperation, c_int,
        *mut TfBuffer, *mut TfStatus
    );
    session_list_devices = b"TF_SessionListDevices\0":
        fn(*mut TfSession, *mut TfStatus) -> *mut TfDeviceList;
    device_list_count = b"TF_DeviceListCount\0": fn(*const TfDeviceList) -> c_int;
    device_list_type = b"TF_DeviceListType\0":
        fn(*const TfDeviceList, c_int, *mut TfStatus) -> *const c_char;
    delete_device_list = b"TF_DeleteDeviceList\0": fn(*mut TfDeviceList);
    operation_by_name = b"TF_GraphOperationByName\0":
        fn(*mut TfGraph, *const c_char) -> *mut TfOperation;
    operation_outputs = b"TF_OperationNumOutputs\0": fn(*mut TfOperation) -> c_int;
    new_operation = b"TF_NewOperation\0":
        fn(*mut TfGraph, *const c_char, *const c_char) -> *mut TfOperationDescription;
    add_input = b"TF_AddInput\0": fn(*mut TfOperationDescription, TfOutput);
    set_attr_type = b"TF_SetAttrType\0": fn(*mut TfOperationDescription, *const c_char, c_int);
    finish_operation = b"TF_FinishOperation\0":
        fn(*mut TfOperationDescription, *mut TfStatus) -> *mut TfOperation;
    output_type = b"TF_OperationOutputType\0": fn(TfOutput) -> c_int;
    output_rank = b"TF_GraphGetTensorNumDims\0": fn(*mut TfGraph, TfOutput, *mut TfStatus) -> c_int;
    output_shape = b"TF_GraphGetTensorShape\0":
        fn(*mut TfGraph, TfOutput, *mut i64, c_int, *mut TfStatus);
    new_import_options = b"TF_NewImportGraphDefOptions\0": fn() -> *mut TfImportOptions;
    delete_import_options = b"TF_DeleteImportGraphDefOptions\0": fn(*mut TfImportOptions);
    import_graph = b"TF_GraphImportGraphDef\0":
        fn(*mut TfGraph, *const TfBuffer, *const TfImportOptions, *mut TfStatus);
    new_tensor = b"TF_NewTensor\0": fn(
        c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void
    ) -> *mut TfTensor;
    delete_tensor = b"TF_DeleteTensor\0": fn(*mut TfTensor);
    tensor_type = b"TF_TensorType\0": fn(*const TfTensor) -> c_int;
    num_dims = b"TF_NumDims\0": fn(*const TfTensor) -> c_int;
    dim = b"TF_Dim\0": fn(*const TfTensor, c_int) -> i64;
    tensor_data = b"TF_TensorData\0": fn(*const TfTensor) -> *mut c_void;
    tensor_byte_size = b"TF_TensorByteSize\0": fn(*const TfTensor) -> usize;
    string_init = b"TF_StringInit\0": fn(*mut TString);
    string_copy = b"TF_StringCopy\0": fn(*mut TString, *const c_char, usize);
    string_data = b"TF_StringGetDataPointer\0": fn(*const TString) -> *const c_char;
    string_size = b"TF_StringGetSize\0": fn(*const TString) -> usize;
    string_dealloc = b"TF_StringDealloc\0": fn(*mut TString);
}

impl TensorFlowApi {
    /// Opens the library at `path`.
    ///
    /// # Errors
    /// The loader's error, if the file is not libtensorflow or a dependency is missing.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, libloading::Error> {
        // SAFETY: opening runs the library's initializers. The path comes from the operator (flag,
        // environment, our own folders), never from a request, and naming a library there means
        // trusting it with the process.
        let library = unsafe { Library::new(path)? };
        TensorFlowApi::resolve(library).map(Arc::new)
    }

    /// The library's version, for example `2.21.0`.
    pub(super) fn version(&self) -> String {
        // SAFETY: TF_Version returns a NUL-terminated string with static lifetime.
        let text = unsafe { CStr::from_ptr((self.version)()) };
        text.to_string_lossy().into_owned()
    }

    /// The library's registry of operations: a serialized `OpList`.
    pub(super) fn operations(&self) -> Vec<u8> {
        // SAFETY: the library returns a buffer and passes its ownership to us.
        OwnedBuffer { api: self, raw: unsafe { (self.all_ops)() } }.bytes()
    }

    /// Loads the library of custom operations at `path` for the life of the process, and returns its
    /// operations: a serialized `OpList`.
    ///
    /// # Errors
    /// The loader's or the registry's error.
    pub(super) fn load_library(&self, path: &Path) -> Result<Vec<u8>> {
        let path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::invalid("its path contains a NUL character"))?;
        let status = OwnedStatus::new(self);
        // SAFETY: path and status are live for the call. Loading runs the library's initializers:
        // the path comes from the operator (flag, environment, file), never from a request, and
        // naming a library there means trusting it with the process.
        let library = unsafe { (self.load_library)(path.as_ptr(), status.raw) };
        status.check()?;
        // SAFETY: after a success the handle is live. The list belongs to the library, which is
        // never closed, and is copied before the handle, and only that, is freed.
        unsafe {
            let operations = copy_buffer(&(self.op_list)(library));
            (self.delete_library_handle)(library);
            Ok(operations)
        }
    }

    /// Whether the library is built with CUDA.
    pub(super) fn has_cuda(&self) -> bool {
        // SAFETY: the function takes nothing and returns a constant.
        self.is_cuda_enabled.is_some_and(|is_enabled| unsafe { is_enabled() })
    }

    /// Whether [`RunOptions::threads`] has an effect.
    pub(super) fn bounds_threads(&self) -> bool {
        self.set_max_parallelism.is_some()
    }
}

type CudaCall<A> = unsafe extern "C" fn(A) -> c_int;

/// The library of the NVIDIA driver, opened for good: it may start threads.
fn cuda_driver() -> Result<ManuallyDrop<Library>, String> {
    // SAFETY: the loader takes the library from the system's path, as libtensorflow itself does. Its
    // initializers do not initialize CUDA.
    let library = unsafe { Library::new("libcuda.so.1") };
    library.map(ManuallyDrop::new).map_err(|e| e.to_string())
}

/// The newest version of CUDA that the driver supports, such as 12040 for 12.4. Does not initialize
/// CUDA.
///
/// # Errors
/// If the driver's library cannot be opened or used.
pub(super) fn cuda_of_driver() -> Result<i32, String> {
    let library = cuda_driver()?;
    let mut version = 0;
    // SAFETY: `CUresult cuDriverGetVersion(int *)` is in every version of the library, needs no
    // initialization and writes the integer.
    let status = unsafe {
        let call = library.get::<CudaCall<*mut c_int>>(b"cuDriverGetVersion\0");
        call.map_err(|e| e.to_string())?(&raw mut version)
    };
    if status == 0 { Ok(version) } else { Err(format!("cuDriverGetVersion failed ({status})")) }
}

/// What is wrong with CUDA, if it cannot be initialized. Only for a process that never forks again:
/// CUDA does not survive that.
pub(super) fn cuda_error() -> Option<String> {
    let library = cuda_driver().ok()?;
    // SAFETY: `CUresult cuInit(unsigned)` and `CUresult cuGetErrorName(CUresult, const char **)` are in
    // every version of the library. The name is a static string, or stays null.
    unsafe {
        let status = library.get::<CudaCall<u32>>(b"cuInit\0").ok()?(0);
        if status == 0 {
            return None;
        }
        type NameOf = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let mut name = ptr::null();
        let name_of = library.get::<NameOf>(b"cuGetErrorName\0").ok()?;
        name_of(status, &raw mut name);
        if name.is_null() {
            return Some(format!("cuInit failed ({status})"));
        }
        Some(format!("cuInit failed: {} ({status})", CStr::from_ptr(name).to_string_lossy()))
    }
}

/// Whether the system's loader can open the library `name`, which stays open.
pub(super) fn is_installed(name: &str) -> bool {
    keep_open(Path::new(name))
}

/// Opens a library that libtensorflow will open by its name, and keeps it open. Returns whether that
/// succeeded.
pub(super) fn keep_open(library: &Path) -> bool {
    // SAFETY: opening runs the library's initializers. It is a CUDA library, from beside libtensorflow or
    // from the system's path, which libtensorflow itself would open.
    unsafe { Library::new(library) }.map(ManuallyDrop::new).is_ok()
}

/// Sets libtensorflow's own log level on stderr: 0 is everything, 1 omits information, 2 warnings,
/// 3 errors. It only has an effect before the library is opened.
pub(super) fn set_log_level(level: u8) {
    os::set_environment_variable("TF_CPP_MIN_LOG_LEVEL", &level.to_string());
}

/// Gives each session the number of intra-op threads of its own configuration. By default the first
/// session of the process decides for all. It only has an effect before the library is opened.
pub(super) fn use_threads_per_session() {
    os::set_environment_variable("TF_OVERRIDE_GLOBAL_THREADPOOL", "1");
}

/// Copies the content of a buffer.
///
/// # Safety
/// `data` must be null or `length` readable bytes.
unsafe fn copy_buffer(buffer: &TfBuffer) -> Vec<u8> {
    if buffer.data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller guarantees readable bytes, and null is excluded.
    unsafe { std::slice::from_raw_parts(buffer.data.cast(), buffer.length).to_vec() }
}

/// An owned `TF_Buffer`, which may be null.
struct OwnedBuffer<'a> {
    api: &'a TensorFlowApi,
    raw: *mut TfBuffer,
}

impl<'a> OwnedBuffer<'a> {
    fn new(api: &'a TensorFlowApi) -> Self {
        // SAFETY: takes no arguments; the pointer is freed in drop.
        let raw = unsafe { (api.new_buffer)() };
        OwnedBuffer { api, raw }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: `raw` is null or a live buffer, whose `data` is `length` readable bytes.
        unsafe { self.raw.as_ref().map_or(Vec::new(), |buffer| copy_buffer(buffer)) }
    }
}

impl Drop for OwnedBuffer<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: `raw` came from the library, is ours, and is freed once, here.
            unsafe { (self.api.delete_buffer)(self.raw) };
        }
    }
}

/// A `TF_Status` for one call.
struct OwnedStatus<'a> {
    api: &'a TensorFlowApi,
    raw: *mut TfStatus,
}

impl<'a> OwnedStatus<'a> {
    fn new(api: &'a TensorFlowApi) -> Self {
        // SAFETY: takes no arguments; the pointer is freed in drop.
        let raw = unsafe { (api.new_status)() };
        OwnedStatus { api, raw }
    }

    fn check(&self) -> Result<()> {
        // SAFETY: `raw` is the live status that this struct owns; the message is NUL-terminated and
        // valid until the status changes, and is copied at once.
        let (code, message) = unsafe {
            let code = (self.api.get_code)(self.raw);
            if code == 0 {
                return Ok(());
            }
            (code, CStr::from_ptr((self.api.message)(self.raw)))
        };
        let message = message.to_string_lossy().into_owned();
        Err(Error::new(Code::from_grpc(code), message))
    }
}

impl Drop for OwnedStatus<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from TF_NewStatus and is freed once, here.
        unsafe { (self.api.delete_status)(self.raw) };
    }
}

/// An output of an operation in a loaded graph, which can be fed or fetched. Only valid with the
/// [`TensorFlowSession`] that resolved it.
#[derive(Clone, Copy)]
pub(super) struct GraphEndpoint(TfOutput);

// SAFETY: it has a pointer to an operation, which is immutable once its graph is loaded.
unsafe impl Send for GraphEndpoint {}
// SAFETY: as above.
unsafe impl Sync for GraphEndpoint {}

/// The tensors of a run: one input for each feed, and what to fetch. The endpoints must come from the
/// session that runs them.
#[derive(Clone, Copy)]
pub(super) struct RunTensors<'a> {
    pub(super) feeds: &'a [GraphEndpoint],
    pub(super) inputs: &'a [Tensor],
    pub(super) fetches: &'a [GraphEndpoint],
}

/// A loaded SavedModel: its graph and session.
pub(super) struct TensorFlowSession {
    api: Arc<TensorFlowApi>,
    graph: *mut TfGraph,
    session: *mut TfSession,
    /// Whether it has a third inter-op thread pool, for its runs with a timeout.
    has_own_pool: bool,
}

// SAFETY: TF_SessionRun may be called from any number of threads at once, also while operations are
// added to the graph, which locks it; none is changed or removed. Closing needs `&mut self`.
unsafe impl Send for TensorFlowSession {}
// SAFETY: as above.
unsafe impl Sync for TensorFlowSession {}

/// A serialized `RunOptions` that runs the graph on the calling thread:
/// `inter_op_thread_pool: -1` (field 3, varint).
const ON_CALLING_THREAD: [u8; 11] =
    [0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];

/// A serialized `RunOptions` that runs the graph on the session's second inter-op thread pool:
/// `inter_op_thread_pool: 1`.
const ON_SECOND_POOL: [u8; 2] = [0x18, 0x01];

/// A serialized `RunOptions` that runs the graph on the session's third inter-op thread pool, which only it has:
/// `inter_op_thread_pool: 2`.
const ON_OWN_POOL: [u8; 2] = [0x18, 0x02];

/// A serialized `RunOptions` that traces every operation: `trace_level: FULL_TRACE`.
const FULL_TRACE: [u8; 2] = [0x08, 0x03];

/// The key of `timeout_in_ms` (field 2, varint) in a serialized `RunOptions`.
const TIMEOUT_KEY: u8 = 0x10;

/// A serialized `RunOptions` with `timeout_in_ms`. A timeout of 0 would be none, so it becomes 1 ms.
fn with_timeout(timeout: Duration) -> SmallVec<[u8; 16]> {
    let mut bytes = SmallVec::from_slice(&[TIMEOUT_KEY]);
    let mut rest = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX >> 1).max(1);
    while rest >= 0x80 {
        bytes.push(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
        rest >>= 7;
    }
    bytes.push(u8::try_from(rest).unwrap_or(0));
    bytes
}

impl TensorFlowSession {
    /// Creates a session without a graph and closes it, so that the library initializes what it
    /// shares among all sessions with this configuration. Returns the number of its GPUs.
    pub(super) fn initialize(api: &Arc<TensorFlowApi>, config: &[u8]) -> Result<usize> {
        let options = TensorFlowSessionOptions::new(api, config, "")?;
        let status = OwnedStatus::new(api);
        // SAFETY: options and status are live for the call; the graph and the session, which may be
        // null, are freed when `empty` is dropped.
        let (graph, session) = unsafe {
            let graph = (api.new_graph)();
            (graph, (api.new_session)(graph, options.raw, status.raw))
        };
        let empty = TensorFlowSession { api: Arc::clone(api), graph, session, has_own_pool: false };
        status.check()?;
        empty.gpus()
    }

    /// The number of GPUs that the session can use.
    pub(super) fn gpus(&self) -> Result<usize> {
        let api = &*self.api;
        let status = OwnedStatus::new(api);
        let mut count = 0;
        // SAFETY: the session is live, and after a success so is the list, which is freed once. The
        // types of its devices are NUL-terminated strings that belong to it, and null after an error.
        unsafe {
            let list = (api.session_list_devices)(self.session, status.raw);
            status.check()?;
            for index in 0..(api.device_list_count)(list) {
                let kind = (api.device_list_type)(list, index, status.raw);
                if !kind.is_null() && CStr::from_ptr(kind) == c"GPU" {
                    count += 1;
                }
            }
            (api.delete_device_list)(list);
        }
        Ok(count)
    }

    /// Loads the graph with `tags` from the SavedModel in `folder`. The settings have two inter-op thread pools,
    /// of which the second restores variables. Writes the serialized `MetaGraphDef` to `meta`, if there is one.
    pub(super) fn load(
        api: &Arc<TensorFlowApi>,
        folder: &Path,
        tags: &[String],
        settings: &SessionSettings,
        meta: Option<&mut Vec<u8>>,
    ) -> Result<Self> {
        let folder = c_string(&folder.to_string_lossy())?;
        let tags = tags.iter().filter(|tag| !tag.is_empty());
        let tags: Vec<CString> = tags.map(|tag| c_string(tag)).collect::<Result<_>>()?;
        let tags: Vec<*const c_char> = tags.iter().map(|t| t.as_ptr()).collect();
        let count = c_int::try_from(tags.len()).map_err(|_| Error::invalid("too many tags"))?;
        let options = TensorFlowSessionOptions::new(api, &settings.config, &settings.target)?;
        let run_options = TfBuffer {
            data: ON_SECOND_POOL.as_ptr().cast(),
            length: ON_SECOND_POOL.len(),
            deallocator: None,
        };
        let status = OwnedStatus::new(api);
        let meta_buffer = meta.is_some().then(|| OwnedBuffer::new(api));
        // SAFETY: all pointers are live for the call: `options`, `folder`, `tags`, `run_options`, `status`
        // and `meta_buffer` are owned above; the options of the run and the metagraph output may be null. The graph and the session,
        // which may be null, are freed when `loaded` is dropped.
        let (graph, session) = unsafe {
            let graph = (api.new_graph)();
            let session = (api.load_session)(
                options.raw,
                if settings.target.is_empty() { &raw const run_options } else { ptr::null() },
                folder.as_ptr(),
                tags.as_ptr(),
                count,
                graph,
                meta_buffer.as_ref().map_or(ptr::null_mut(), |buffer| buffer.raw),
                status.raw,
            );
            (graph, session)
        };
        let has_own_pool = settings.has_own_pool;
        let loaded = TensorFlowSession { api: Arc::clone(api), graph, session, has_own_pool };
        status.check()?;
        if let (Some(meta), Some(buffer)) = (meta, meta_buffer) {
            *meta = buffer.bytes();
        }
        Ok(loaded)
    }

    /// Loads a graph without variables from a serialized `GraphDef`.
    pub(super) fn of_graph(
        api: &Arc<TensorFlowApi>,
        graph_def: &[u8],
        settings: &SessionSettings,
    ) -> Result<Self> {
        let options = TensorFlowSessionOptions::new(api, &settings.config, &settings.target)?;
        let definition = TfBuffer {
            data: graph_def.as_ptr().cast(),
            length: graph_def.len(),
            deallocator: None,
        };
        let status = OwnedStatus::new(api);
        // SAFETY: all pointers are live for the calls, which copy the definition; the import's options are
        // freed once. The graph and the session, which may be null, are freed when `loaded` is dropped.
        let (graph, session) = unsafe {
            let graph = (api.new_graph)();
            let import = (api.new_import_options)();
            (api.import_graph)(graph, &raw const definition, import, status.raw);
            (api.delete_import_options)(import);
            let session = match status.check().is_ok() {
                true => (api.new_session)(graph, options.raw, status.raw),
                false => ptr::null_mut(),
            };
            (graph, session)
        };
        let has_own_pool = settings.has_own_pool;
        let loaded = TensorFlowSession { api: Arc::clone(api), graph, session, has_own_pool };
        status.check()?;
        Ok(loaded)
    }

    /// The number of the type of a tensor in TensorFlow's `DataType`, and its sizes as far as the graph tells
    /// them, -1 for others; `None` for an unknown rank.
    pub(super) fn declared(&self, endpoint: GraphEndpoint) -> (c_int, Option<Vec<i64>>) {
        let (api, GraphEndpoint(output)) = (&*self.api, endpoint);
        let status = OwnedStatus::new(api);
        // SAFETY: the endpoint is one of this live graph.
        let (dtype, rank) = unsafe {
            let dtype = (api.output_type)(output);
            (dtype, (api.output_rank)(self.graph, output, status.raw))
        };
        let Ok(count) = usize::try_from(rank) else {
            return (dtype, None);
        };
        let mut sizes = vec![-1; count];
        // SAFETY: as above; `sizes` has room for `rank` numbers.
        unsafe {
            (api.output_shape)(self.graph, output, sizes.as_mut_ptr(), rank, status.raw);
        }
        (dtype, status.check().is_ok().then_some(sizes))
    }

    /// The number of outputs of an operation; 0 if there is none of this name.
    pub(super) fn outputs_of(&self, operation: &str) -> usize {
        let Ok(name) = c_string(operation) else {
            return 0;
        };
        // SAFETY: the graph is live and the name NUL-terminated; null is handled before it is used.
        let count = unsafe {
            let operation = (self.api.operation_by_name)(self.graph, name.as_ptr());
            if operation.is_null() { 0 } else { (self.api.operation_outputs)(operation) }
        };
        usize::try_from(count).unwrap_or(0)
    }

    /// Resolves `name`, which is `operation:index` or `operation` (index 0).
    pub(super) fn endpoint(&self, name: &str) -> Result<GraphEndpoint> {
        let missing = || Error::invalid(format!("the graph has no tensor named {name:?}"));
        let (operation, index) = match name.rsplit_once(':') {
            Some((operation, index)) => (operation, index.parse().map_err(|_| missing())?),
            None => (name, 0),
        };
        let operation = c_string(operation)?;
        // SAFETY: the graph is live and the name NUL-terminated; a null result is handled before
        // the pointer is used; operations live as long as their graph.
        let (operation, outputs) = unsafe {
            let operation = (self.api.operation_by_name)(self.graph, operation.as_ptr());
            if operation.is_null() {
                return Err(missing());
            }
            (operation, (self.api.operation_outputs)(operation))
        };
        if !(0..outputs).contains(&index) {
            return Err(missing());
        }
        Ok(GraphEndpoint(TfOutput { operation, index }))
    }

    /// The values of variables, by the names of the operations whose output is their handle; `None` for those
    /// without a value. Adds operations that read them to the graph, and with them to the session.
    pub(super) fn read_variables(&self, handles: &[(&str, DType)]) -> Result<Vec<Option<Tensor>>> {
        let mut all = Vec::with_capacity(handles.len());
        for (name, dtype) in handles {
            all.push((self.endpoint(name)?, *dtype));
        }
        let questions = all.iter().map(|(handle, _)| self.add_reader(*handle, None));
        let questions = questions.collect::<Result<Vec<_>>>()?;
        let has_value: Vec<bool> = self.fetch(&questions)?.iter().map(is_true).collect();
        let set = all.iter().zip(&has_value).filter(|(_, has_value)| **has_value);
        let reads = set.map(|((handle, dtype), _)| self.add_reader(*handle, Some(*dtype)));
        let mut values = self.fetch(&reads.collect::<Result<Vec<_>>>()?)?.into_iter();
        let value = |has_value| if has_value { values.next() } else { None };
        Ok(has_value.into_iter().map(value).collect())
    }

    /// Adds an operation that reads a variable of this type, or one that tells whether it has a value.
    fn add_reader(&self, handle: GraphEndpoint, dtype: Option<DType>) -> Result<GraphEndpoint> {
        static ADDED: AtomicU64 = AtomicU64::new(0);
        let number = ADDED.fetch_add(1, Relaxed);
        let name = c_string(&format!("tensorserve/read_{number}"))?;
        let kind = if dtype.is_some() { c"ReadVariableOp" } else { c"VarIsInitializedOp" };
        let (api, status) = (&*self.api, OwnedStatus::new(&self.api));
        // SAFETY: the graph is live, which the description locks until it is finished, here in any case; the
        // handle is an output of this graph, and the texts are NUL-terminated and live for the calls.
        let operation = unsafe {
            let description = (api.new_operation)(self.graph, kind.as_ptr(), name.as_ptr());
            (api.add_input)(description, handle.0);
            if let Some(dtype) = dtype {
                (api.set_attr_type)(description, c"dtype".as_ptr(), dtype.number());
            }
            (api.finish_operation)(description, status.raw)
        };
        status.check()?;
        Ok(GraphEndpoint(TfOutput { operation, index: 0 }))
    }

    /// Runs what the outputs `fetches` need. None of them needs an input.
    fn fetch(&self, fetches: &[GraphEndpoint]) -> Result<Vec<Tensor>> {
        if fetches.is_empty() {
            return Ok(Vec::new());
        }
        let tensors = RunTensors { feeds: &[], inputs: &[], fetches };
        self.run(tensors, RunOptions::default())
    }

    /// A serialized `RunOptions` with a timeout. Such a run needs threads besides the calling one.
    fn with_timeout(&self, timeout: Duration) -> SmallVec<[u8; 16]> {
        let mut options = with_timeout(timeout);
        if self.has_own_pool {
            options.extend_from_slice(&ON_OWN_POOL);
        }
        options
    }

    /// Runs the graph.
    pub(super) fn run(&self, tensors: RunTensors<'_>, options: RunOptions) -> Result<Vec<Tensor>> {
        let timeout = options.timeout.map(|timeout| self.with_timeout(timeout));
        let serialized: &[u8] = timeout.as_deref().unwrap_or(&ON_CALLING_THREAD);
        self.run_with(tensors, serialized, options.threads, ptr::null_mut())
    }

    /// Runs the graph, and returns the statistics of every operation, too: a serialized
    /// `RunMetadata`.
    pub(super) fn run_traced(
        &self,
        tensors: RunTensors<'_>,
        options: RunOptions,
    ) -> Result<(Vec<Tensor>, Vec<u8>)> {
        let timeout = options.timeout.map(|timeout| self.with_timeout(timeout)).unwrap_or_default();
        let serialized = [&FULL_TRACE, timeout.as_slice()].concat();
        let metadata = OwnedBuffer::new(&self.api);
        let outputs = self.run_with(tensors, &serialized, options.threads, metadata.raw)?;
        Ok((outputs, metadata.bytes()))
    }

    /// Runs the graph with serialized `RunOptions`. `metadata` is null or a live buffer for the
    /// statistics of the run.
    fn run_with(
        &self,
        tensors: RunTensors<'_>,
        serialized: &[u8],
        threads: usize,
        metadata: *mut TfBuffer,
    ) -> Result<Vec<Tensor>> {
        let RunTensors { feeds, inputs, fetches } = tensors;
        let too_many = |_| Error::invalid("too many tensors");
        let feed_count = c_int::try_from(feeds.len()).map_err(too_many)?;
        let fetch_count = c_int::try_from(fetches.len()).map_err(too_many)?;
        if feeds.len() != inputs.len() {
            return Err(Error::internal("the numbers of inputs and feeds differ"));
        }
        let owned: SmallVec<[OwnedTensor; 4]> = inputs
            .iter()
            .map(|tensor| OwnedTensor::from_tensor(&self.api, tensor))
            .collect::<Result<_>>()?;
        let feeds: SmallVec<[TfOutput; 4]> = feeds.iter().map(|endpoint| endpoint.0).collect();
        let fetches: SmallVec<[TfOutput; 4]> = fetches.iter().map(|endpoint| endpoint.0).collect();
        let inputs: SmallVec<[*mut TfTensor; 4]> = owned.iter().map(|t| t.raw.as_ptr()).collect();
        let mut outputs: SmallVec<[*mut TfTensor; 4]> =
            smallvec::smallvec![ptr::null_mut(); fetches.len()];
        let run_options = TfBuffer {
            data: serialized.as_ptr().cast(),
            length: serialized.len(),
            deallocator: None,
        };
        let api = &*self.api;
        let status = OwnedStatus::new(api);
        // SAFETY: session and status are live; the arrays have the stated lengths and outlive
        // the call, as do the tensors in `owned`; endpoints belong to this session's graph;
        // `metadata` is null or a buffer that only this call uses.
        // On success every output pointer is a tensor that we own; on failure all stay null.
        unsafe {
            if let (Some(set), 1..) = (api.set_max_parallelism, threads) {
                set(c_int::try_from(threads).unwrap_or(c_int::MAX));
            }
            (api.session_run)(
                self.session,
                &raw const run_options,
                feeds.as_ptr(),
                inputs.as_ptr(),
                feed_count,
                fetches.as_ptr(),
                outputs.as_mut_ptr(),
                fetch_count,
                ptr::null(),
                0,
                metadata,
                status.raw,
            );
        }
        let outputs: SmallVec<[Option<OwnedTensor>; 4]> = outputs
            .into_iter()
            .map(|raw| NonNull::new(raw).map(|raw| OwnedTensor::new(&self.api, raw)))
            .collect();
        status.check()?;
        outputs
            .into_iter()
            .map(|tensor| {
                tensor
                    .ok_or_else(|| Error::internal("the runtime did not return an output"))?
                    .into_tensor()
            })
            .collect()
    }
}

impl Drop for TensorFlowSession {
    fn drop(&mut self) {
        let status = OwnedStatus::new(&self.api);
        // SAFETY: the session is not shared (`&mut self`), so no run is in progress; each pointer
        // is freed once. A null session (failed load) is skipped.
        unsafe {
            if !self.session.is_null() {
                (self.api.close_session)(self.session, status.raw);
                (self.api.delete_session)(self.session, status.raw);
            }
            (self.api.delete_graph)(self.graph);
        }
    }
}

/// The settings of a session.
#[derive(Clone)]
pub(super) struct SessionSettings {
    /// A serialized `ConfigProto`.
    pub(super) config: Vec<u8>,
    /// The address of the server of TensorFlow that runs the session; empty for this process.
    pub(super) target: String,
    /// Whether it has a third inter-op thread pool, for its runs with a timeout.
    pub(super) has_own_pool: bool,
}

struct TensorFlowSessionOptions<'a> {
    api: &'a TensorFlowApi,
    raw: *mut TfSessionOptions,
}

impl<'a> TensorFlowSessionOptions<'a> {
    /// Options with a serialized `ConfigProto`, for a session at `target`, or in this process if that is empty.
    fn new(api: &'a TensorFlowApi, config: &[u8], target: &str) -> Result<Self> {
        let target = c_string(target)?;
        // SAFETY: takes no arguments; freed in drop.
        let raw = unsafe { (api.new_session_options)() };
        let options = TensorFlowSessionOptions { api, raw };
        let status = OwnedStatus::new(api);
        // SAFETY: `config` is `len` readable bytes; the library parses a copy.
        unsafe { (api.set_config)(raw, config.as_ptr().cast(), config.len(), status.raw) };
        status.check()?;
        if !target.is_empty() {
            // SAFETY: options and text are live for the call, which copies the text.
            unsafe { (api.set_target)(raw, target.as_ptr()) };
        }
        Ok(options)
    }
}

impl Drop for TensorFlowSessionOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from TF_NewSessionOptions and is freed once, here.
        unsafe { (self.api.delete_session_options)(self.raw) };
    }
}

/// An owned `TF_Tensor`.
struct OwnedTensor {
    api: Arc<TensorFlowApi>,
    raw: NonNull<TfTensor>,
}

// SAFETY: a TF_Tensor is reference-counted atomically; we only read through it.
unsafe impl Send for OwnedTensor {}
// SAFETY: as above.
unsafe impl Sync for OwnedTensor {}

impl OwnedTensor {
    fn new(api: &Arc<TensorFlowApi>, raw: NonNull<TfTensor>) -> Self {
        let api = Arc::clone(api);
        OwnedTensor { api, raw }
    }

    /// Passes `tensor` to the runtime: numbers in place, strings converted to the runtime's own.
    fn from_tensor(api: &Arc<TensorFlowApi>, tensor: &Tensor) -> Result<Self> {
        let LentMemory { data, length, release, owner } = match tensor.data() {
            Data::Numeric(buffer) => lend_buffer(buffer),
            Data::Strings(strings) => build_strings(api, strings),
        };
        let dims = tensor.shape().dims();
        let rank = c_int::try_from(dims.len()).unwrap_or(c_int::MAX);
        // SAFETY: `data` is `length` bytes that stay valid until `release(data, length, owner)`
        // runs; the library calls it exactly once, even if it decides to copy. The runtime never
        // writes to a fed tensor whose buffer it does not own alone: feeds are shared buffers, so
        // no kernel reuses them for its output.
        let raw = unsafe {
            (api.new_tensor)(
                tensor.dtype().number(),
                dims.as_ptr(),
                rank,
                data,
                length,
                release,
                owner,
            )
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(OwnedTensor::new(api, raw)),
            None => Err(Error::invalid(format!("the runtime rejected a tensor {tensor:?}"))),
        }
    }

    fn shape(&self) -> Result<Shape> {
        let raw = self.raw.as_ptr();
        // SAFETY: `raw` is live; the indices are below the number of dimensions.
        let dims: SmallVec<[i64; 4]> = unsafe {
            let rank = (self.api.num_dims)(raw);
            (0..rank).map(|i| (self.api.dim)(raw, i)).collect()
        };
        Shape::new(&dims)
    }

    fn dtype(&self) -> Result<DType> {
        // SAFETY: `raw` is live.
        let number = unsafe { (self.api.tensor_type)(self.raw.as_ptr()) };
        DType::from_number(number).ok_or_else(|| {
            let message = format!(
                "the model returned a tensor of type number {number}, which a response cannot hold"
            );
            Error::new(Code::Unimplemented, message)
        })
    }

    /// Converts the runtime's tensor: numbers become a view of it, strings are copied.
    fn into_tensor(self) -> Result<Tensor> {
        let dtype = self.dtype()?;
        let shape = self.shape()?;
        if dtype == DType::String {
            return Tensor::from_strings(shape.clone(), self.copy_strings(shape.elements()?)?);
        }
        Tensor::numeric(dtype, shape, Buffer::new(Arc::new(self)))
    }

    fn copy_strings(&self, count: usize) -> Result<StringsBuilder> {
        let raw = self.raw.as_ptr();
        // SAFETY: `raw` is live.
        let (data, bytes) =
            unsafe { ((self.api.tensor_data)(raw), (self.api.tensor_byte_size)(raw)) };
        if bytes < count.saturating_mul(size_of::<TString>()) {
            return Err(Error::internal("a string tensor is smaller than its shape"));
        }
        let mut strings = StringsBuilder::with_capacity(count, 0);
        for index in 0..count {
            // SAFETY: the tensor has `count` strings (checked above); data pointer and size
            // describe bytes that live as long as the tensor, and are copied at once.
            let value = unsafe {
                let string = data.cast::<TString>().add(index);
                let start = (self.api.string_data)(string).cast::<u8>();
                std::slice::from_raw_parts(start, (self.api.string_size)(string))
            };
            strings.push(value);
        }
        Ok(strings)
    }
}

impl Memory for OwnedTensor {
    fn bytes(&self) -> &[u8] {
        let raw = self.raw.as_ptr();
        // SAFETY: data and size describe the tensor's memory, which lives as long as the tensor
        // and is not written by anyone once a run has returned it. An empty tensor may have a
        // null pointer.
        unsafe {
            let length = (self.api.tensor_byte_size)(raw);
            let data = (self.api.tensor_data)(raw).cast::<u8>();
            if length == 0 || data.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(data, length)
        }
    }
}

impl Drop for OwnedTensor {
    fn drop(&mut self) {
        // SAFETY: `raw` is a tensor that we own and is freed once, here.
        unsafe { (self.api.delete_tensor)(self.raw.as_ptr()) };
    }
}

/// The memory of a fed tensor, and how the runtime releases it.
struct LentMemory {
    data: *mut c_void,
    length: usize,
    release: Deallocator,
    /// The last argument of `release`.
    owner: *mut c_void,
}

/// Lends the memory of a numeric tensor, with a counted reference for the runtime.
fn lend_buffer(buffer: &Buffer) -> LentMemory {
    unsafe extern "C" fn release(_: *mut c_void, _: usize, owner: *mut c_void) {
        // SAFETY: `owner` is the box leaked below, and the library calls this once.
        drop(unsafe { Box::from_raw(owner.cast::<Buffer>()) });
    }
    let owner = Box::new(buffer.clone());
    let bytes = owner.as_slice();
    let (data, length) = (bytes.as_ptr().cast_mut().cast(), bytes.len());
    LentMemory { data, length, release, owner: Box::into_raw(owner).cast() }
}

/// Strings of the runtime, which are freed on drop.
struct BuiltStrings {
    api: Arc<TensorFlowApi>,
    strings: Vec<TString>,
}

impl Drop for BuiltStrings {
    fn drop(&mut self) {
        for string in &mut self.strings {
            // SAFETY: each was initialized in `build_strings` and is freed once.
            unsafe { (self.api.string_dealloc)(string) };
        }
    }
}

/// Copies the strings of a tensor into strings of the runtime. They cannot be views of our memory,
/// because a kernel may keep an element (in a table, a queue, an output) beyond the request.
fn build_strings(api: &Arc<TensorFlowApi>, values: &Strings) -> LentMemory {
    unsafe extern "C" fn release(_: *mut c_void, _: usize, owner: *mut c_void) {
        // SAFETY: `owner` is the box leaked below, and the library calls this once.
        drop(unsafe { Box::from_raw(owner.cast::<BuiltStrings>()) });
    }
    let mut owner = Box::new(BuiltStrings {
        api: Arc::clone(api),
        strings: vec![TString([0; TSTRING_SIZE]); values.len()],
    });
    for (string, value) in owner.strings.iter_mut().zip(values.iter()) {
        // SAFETY: `string` has the size and alignment of a TF_TString; `value` is `len` readable
        // bytes, which the library copies.
        unsafe {
            (api.string_init)(string);
            (api.string_copy)(string, value.as_ptr().cast(), value.len());
        }
    }
    let data = owner.strings.as_mut_ptr().cast();
    let length = owner.strings.len() * size_of::<TString>();
    LentMemory { data, length, release, owner: Box::into_raw(owner).cast() }
}

/// Whether a scalar is true.
fn is_true(tensor: &Tensor) -> bool {
    tensor.bytes().first().is_some_and(|byte| *byte != 0)
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} contains a NUL character")))
}

/// A server of TensorFlow in this process, which runs the sessions of others. It is never stopped: the library
/// cannot.
#[cfg(test)]
pub(super) struct TestServer;

#[cfg(test)]
impl TestServer {
    /// Starts a server that a serialized `ServerDef` describes, with the library in `file`.
    pub(super) fn start(api: &TensorFlowApi, file: &Path, definition: &[u8]) -> Result<Self> {
        type New = unsafe extern "C" fn(*const c_void, usize, *mut TfStatus) -> *mut c_void;
        type Start = unsafe extern "C" fn(*mut c_void, *mut TfStatus);
        let failed = |e: libloading::Error| Error::internal(e.to_string());
        let status = OwnedStatus::new(api);
        // SAFETY: the library is open and stays open; the functions have these signatures in its C API. The
        // definition is live for the call, which copies it, and the server is never freed.
        unsafe {
            let library = ManuallyDrop::new(Library::new(file).map_err(failed)?);
            let new: New = *library.get(b"TF_NewServer\0").map_err(failed)?;
            let start: Start = *library.get(b"TF_ServerStart\0").map_err(failed)?;
            let server = new(definition.as_ptr().cast(), definition.len(), status.raw);
            status.check()?;
            start(server, status.raw);
        }
        status.check()?;
        Ok(TestServer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_is_encoded_as_a_varint_of_field_2() {
        let bytes = |millis| with_timeout(Duration::from_millis(millis));
        assert_eq!(bytes(0).as_slice(), [0x10, 1], "0 would disable the timeout");
        assert_eq!(bytes(300).as_slice(), [0x10, 0xac, 0x02]);
    }
}
