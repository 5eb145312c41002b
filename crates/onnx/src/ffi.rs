//! ONNX Runtime's C API, loaded at run time, behind safe types. This is the only file of the crate
//! with `unsafe` code. It is long for that reason: all that its soundness depends on is in one
//! place.
//!
//! Invariants of the types here:
//! * one struct owns each pointer from the library and frees it on drop; that struct holds the
//!   [`OnnxApi`], which keeps the library loaded;
//! * every call that returns a status goes through [`OnnxApi::check`];
//! * numeric inputs are passed without a copy: the runtime reads the tensor's memory during the
//!   call only, and an output that shares an input's memory holds a reference to that input;
//! * an output tensor is read in place and freed when its last view is dropped.
//!
//! Source: `onnxruntime_c_api.h` of ONNX Runtime 1.15 to 1.31. The API is a table of functions
//! to which each version only appends.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use libloading::Library;
use smallvec::SmallVec;

use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Buffer, DType, Data, Memory, Shape, Strings, StringsBuilder, Tensor};

use super::{types, warnings};

/// Opaque types of the library, used behind pointers only.
macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] struct $name { _opaque: [u8; 0] })* };
}
opaque!(
    OrtStatus,
    OrtEnv,
    OrtSession,
    OrtSessionOptions,
    OrtRunOptions,
    OrtValue,
    OrtTypeAndShape,
    OrtMemoryInfo,
    OrtAllocator
);

/// Null on success.
type OrtStatusPtr = *mut OrtStatus;

/// `OrtLoggingFunction`: user parameter, severity, category, log id, code location, message.
type Logger = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
);

/// `OrtApiBase`.
#[repr(C)]
struct OrtApiBase {
    api: unsafe extern "C" fn(u32) -> *const ApiTable,
    version: unsafe extern "C" fn() -> *const c_char,
}

/// The version of the API that this file uses. A library also offers every earlier version.
const API_VERSION: u32 = 15;

/// The number of functions of `OrtApi` up to and including the last that is called here.
const API_TABLE_LENGTH: usize = 253;

/// The start of `OrtApi`.
type ApiTable = [*const c_void; API_TABLE_LENGTH];

macro_rules! functions {
    ($($field:ident = $index:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions that are called here, each with its index in `OrtApi`.
        struct OnnxFunctions {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl OnnxFunctions {
            /// Whether the table contains all of the functions.
            fn are_in(table: &ApiTable) -> bool {
                [$($index),*].iter().all(|index: &usize| {
                    table.get(*index).is_some_and(|function| !function.is_null())
                })
            }

            /// Casts the entries of the table to their signatures.
            ///
            /// # Safety
            /// The table must come from the library and contain all of the functions.
            unsafe fn from_table(table: &ApiTable) -> Self {
                // SAFETY: from version 15 of the API on, the function at each index has exactly
                // the signature in the list below.
                unsafe {
                    OnnxFunctions {
                        $($field: mem::transmute::<
                            *const c_void,
                            unsafe extern "C" fn($($arg),*) $(-> $ret)?
                        >(table[$index]),)*
                    }
                }
            }
        }
    };
}

functions! {
    error_code = 1: fn(*const OrtStatus) -> c_int;
    error_message = 2: fn(*const OrtStatus) -> *const c_char;
    create_env = 4: fn(Logger, *mut c_void, c_int, *const c_char, *mut *mut OrtEnv) -> OrtStatusPtr;
    disable_telemetry = 6: fn(*const OrtEnv) -> OrtStatusPtr;
    create_session = 7:
        fn(*const OrtEnv, *const c_char, *const OrtSessionOptions, *mut *mut OrtSession) -> OrtStatusPtr;
    create_session_from_array = 8: fn(
        *const OrtEnv, *const c_void, usize, *const OrtSessionOptions, *mut *mut OrtSession
    ) -> OrtStatusPtr;
    run = 9: fn(
        *mut OrtSession, *const OrtRunOptions,
        *const *const c_char, *const *const OrtValue, usize,
        *const *const c_char, usize, *mut *mut OrtValue
    ) -> OrtStatusPtr;
    create_session_options = 10: fn(*mut *mut OrtSessionOptions) -> OrtStatusPtr;
    disable_memory_pattern = 17: fn(*mut OrtSessionOptions) -> OrtStatusPtr;
    disable_arena = 19: fn(*mut OrtSessionOptions) -> OrtStatusPtr;
    set_session_log_id = 20: fn(*mut OrtSessionOptions, *const c_char) -> OrtStatusPtr;
    set_optimization = 23: fn(*mut OrtSessionOptions, c_int) -> OrtStatusPtr;
    set_intra_threads = 24: fn(*mut OrtSessionOptions, c_int) -> OrtStatusPtr;
    set_inter_threads = 25: fn(*mut OrtSessionOptions, c_int) -> OrtStatusPtr;
    create_run_options = 39: fn(*mut *mut OrtRunOptions) -> OrtStatusPtr;
    set_run_log_severity = 41: fn(*mut OrtRunOptions, c_int) -> OrtStatusPtr;
    set_terminate = 46: fn(*mut OrtRunOptions) -> OrtStatusPtr;
    create_tensor = 48:
        fn(*mut OrtAllocator, *const i64, usize, c_int, *mut *mut OrtValue) -> OrtStatusPtr;
    create_tensor_over = 49: fn(
        *const OrtMemoryInfo, *mut c_void, usize, *const i64, usize, c_int, *mut *mut OrtValue
    ) -> OrtStatusPtr;
    is_tensor = 50: fn(*const OrtValue, *mut c_int) -> OrtStatusPtr;
    tensor_data = 51: fn(*mut OrtValue, *mut *mut c_void) -> OrtStatusPtr;
    strings_length = 53: fn(*const OrtValue, *mut usize) -> OrtStatusPtr;
    strings_content = 54:
        fn(*const OrtValue, *mut c_void, usize, *mut usize, usize) -> OrtStatusPtr;
    element_type = 60: fn(*const OrtTypeAndShape, *mut c_int) -> OrtStatusPtr;
    dimension_count = 61: fn(*const OrtTypeAndShape, *mut usize) -> OrtStatusPtr;
    dimensions = 62: fn(*const OrtTypeAndShape, *mut i64, usize) -> OrtStatusPtr;
    type_and_shape = 65: fn(*const OrtValue, *mut *mut OrtTypeAndShape) -> OrtStatusPtr;
    create_cpu_memory_info = 69: fn(c_int, c_int, *mut *mut OrtMemoryInfo) -> OrtStatusPtr;
    default_allocator = 78: fn(*mut *mut OrtAllocator) -> OrtStatusPtr;
    release_status = 93: fn(*mut OrtStatus);
    release_session = 95: fn(*mut OrtSession);
    release_value = 96: fn(*mut OrtValue);
    release_run_options = 97: fn(*mut OrtRunOptions);
    release_type_and_shape = 99: fn(*mut OrtTypeAndShape);
    release_session_options = 100: fn(*mut OrtSessionOptions);
    add_session_entry = 130:
        fn(*mut OrtSessionOptions, *const c_char, *const c_char) -> OrtStatusPtr;
    resized_string = 252: fn(*mut OrtValue, usize, usize, *mut *mut c_char) -> OrtStatusPtr;
}

/// `OrtLoggingLevel`.
const WARNING: c_int = 2;
const FATAL: c_int = 4;

/// `GraphOptimizationLevel`.
const ORT_ENABLE_ALL: c_int = 99;

/// `OrtAllocatorType` and `OrtMemType` of ordinary CPU memory.
const ORT_DEVICE_ALLOCATOR: c_int = 0;
const ORT_MEM_TYPE_DEFAULT: c_int = 0;

/// `OrtErrorCode`.
const ORT_INVALID_ARGUMENT: c_int = 2;
const ORT_NO_SUCHFILE: c_int = 3;
const ORT_INVALID_PROTOBUF: c_int = 7;
const ORT_NOT_IMPLEMENTED: c_int = 9;
const ORT_INVALID_GRAPH: c_int = 10;

/// Inputs or outputs of a run that are kept on the stack; more go to the heap.
const INLINE_VALUES: usize = 4;

/// Dimensions of a shape that are kept on the stack; more go to the heap.
const INLINE_DIMS: usize = 4;

/// The library, and its objects that exist once in a process.
pub(super) struct OnnxApi {
    functions: OnnxFunctions,
    version: String,
    /// Created for the first model: an environment has a thread, and processes for load probes are
    /// forked from one without threads.
    objects: OnceLock<OnnxObjects>,
    /// Never closed: the library leaves threads and exit handlers behind, which would then run in
    /// unmapped memory. Its objects are therefore never freed either.
    _library: ManuallyDrop<Library>,
}

/// The library's objects that exist once in a process.
struct OnnxObjects {
    env: *mut OrtEnv,
    /// Describes CPU memory.
    memory: *mut OrtMemoryInfo,
    allocator: *mut OrtAllocator,
}

// SAFETY: environment, memory description and default allocator are not changed once they exist, and
// the library may use them from any thread.
unsafe impl Send for OnnxObjects {}
// SAFETY: as above.
unsafe impl Sync for OnnxObjects {}

/// Why the library was not opened.
#[derive(Debug)]
pub(super) enum OnnxOpenError {
    /// The dynamic loader failed.
    Loader(libloading::Error),
    /// The library cannot be used, with the reason.
    Unsupported(String),
}

impl std::fmt::Display for OnnxOpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OnnxOpenError::Loader(error) => error.fmt(f),
            OnnxOpenError::Unsupported(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for OnnxOpenError {}

impl OnnxApi {
    /// Opens the library at `path`.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, OnnxOpenError> {
        // SAFETY: loading runs the library's initializers. The path comes from the operator
        // (flag, environment, default directories), never from a request, and an operator who
        // names a library there trusts it with the process.
        let library = unsafe { Library::new(path) }.map_err(OnnxOpenError::Loader)?;
        // SAFETY: the symbol has this signature in every version, and returns a pointer to a
        // static table, whose functions accept any version. For a version that the library does
        // not support they return null.
        let (table, version) = unsafe {
            let base =
                library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase\0");
            let base = base.map_err(OnnxOpenError::Loader)?();
            let Some(base) = base.as_ref() else {
                return Err(OnnxOpenError::Unsupported("OrtGetApiBase returned no API".to_owned()));
            };
            let version = CStr::from_ptr((base.version)()).to_string_lossy().into_owned();
            ((base.api)(API_VERSION).as_ref(), version)
        };
        let Some(table) = table.filter(|table| OnnxFunctions::are_in(table)) else {
            return Err(OnnxOpenError::Unsupported(format!(
                "it is ONNX Runtime {version}; version 1.{API_VERSION} or later is required"
            )));
        };
        // SAFETY: the table comes from the library, and `are_in` has found all functions in it.
        let functions = unsafe { OnnxFunctions::from_table(table) };
        let library = ManuallyDrop::new(library);
        Ok(Arc::new(OnnxApi { functions, version, objects: OnceLock::new(), _library: library }))
    }

    /// The objects that exist once in a process; they are created on first use.
    fn objects(&self) -> Result<&OnnxObjects> {
        if let Some(objects) = self.objects.get() {
            return Ok(objects);
        }
        // Where two threads create them, the library counts the references, and one set is unused.
        let created = self.create_objects()?;
        Ok(self.objects.get_or_init(|| created))
    }

    fn create_objects(&self) -> Result<OnnxObjects> {
        let OnnxFunctions {
            create_env,
            disable_telemetry,
            create_cpu_memory_info,
            default_allocator,
            ..
        } = self.functions;
        let (mut env, mut memory) = (ptr::null_mut(), ptr::null_mut());
        let mut allocator = ptr::null_mut();
        // SAFETY: each call writes one pointer; the name is a constant. `log_message` has the
        // logger's signature and, as a function, is valid for the life of the process.
        unsafe {
            let name = c"tensorserve".as_ptr();
            self.check(create_env(log_message, ptr::null_mut(), WARNING, name, &raw mut env))?;
            // The library would report its use to its maker.
            self.check(disable_telemetry(env))?;
            self.check(create_cpu_memory_info(
                ORT_DEVICE_ALLOCATOR,
                ORT_MEM_TYPE_DEFAULT,
                &raw mut memory,
            ))?;
            self.check(default_allocator(&raw mut allocator))?;
        }
        Ok(OnnxObjects { env, memory, allocator })
    }

    /// The library's version, for example `1.31.1`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Turns the status of a call into a result, and frees it.
    fn check(&self, status: OrtStatusPtr) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: the caller owns a non-null status. Its message is NUL-terminated, and is copied
        // before it is freed together with the status.
        let (code, message) = unsafe {
            let code = (self.functions.error_code)(status);
            let message = CStr::from_ptr((self.functions.error_message)(status));
            let message = message.to_string_lossy().into_owned();
            (self.functions.release_status)(status);
            (code, message)
        };
        Err(Error::new(code_from_ort(code), message))
    }
}

/// The error code for an `OrtErrorCode`.
fn code_from_ort(code: c_int) -> Code {
    match code {
        ORT_INVALID_ARGUMENT => Code::InvalidArgument,
        ORT_NO_SUCHFILE => Code::NotFound,
        ORT_INVALID_PROTOBUF | ORT_INVALID_GRAPH => Code::DataLoss,
        ORT_NOT_IMPLEMENTED => Code::Unimplemented,
        _ => Code::Unknown,
    }
}

/// Writes a message of the library to the server's log: new warnings as such, the rest as debug
/// messages, because a failure is also returned as an error.
unsafe extern "C" fn log_message(
    _: *mut c_void,
    severity: c_int,
    _category: *const c_char,
    id: *const c_char,
    _location: *const c_char,
    message: *const c_char,
) {
    if message.is_null() {
        return;
    }
    // SAFETY: a message is NUL-terminated and valid during the call.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // SAFETY: null, or NUL-terminated and valid during the call.
    let id = unsafe { id.as_ref().map_or(c"", |id| CStr::from_ptr(id)) }.to_string_lossy();
    let is_warning = severity == WARNING && warnings::is_new(&id, &message);
    let level = if is_warning { log::Level::Warn } else { log::Level::Debug };
    log::log!(level, "ONNX Runtime: {id}: {message}");
}

/// Where the library reads a model from.
pub(super) enum ModelSource<'a> {
    /// A file.
    File(&'a Path),
    /// A serialized model, and the directory of the files that it refers to.
    Bytes(&'a [u8], &'a Path),
}

impl ModelSource<'_> {
    /// The file, or the directory.
    fn path(&self) -> &Path {
        match self {
            ModelSource::File(path) | ModelSource::Bytes(_, path) => path,
        }
    }
}

/// A loaded model.
pub(super) struct OnnxSession {
    api: Arc<OnnxApi>,
    raw: NonNull<OrtSession>,
    /// The options of runs without a timeout.
    default_run_options: OnnxRunOptions,
    /// What the library's messages about this session begin with.
    log_id: String,
}

// SAFETY: any number of threads may run a session at the same time; it keeps no state of a run
// (https://github.com/microsoft/onnxruntime/issues/114, for the CPU, the only device used here).
unsafe impl Send for OnnxSession {}
// SAFETY: as above.
unsafe impl Sync for OnnxSession {}

/// Names of inputs or outputs, as an array of C strings.
pub(super) struct TensorNames {
    raw: Vec<*const c_char>,
    _owned: Vec<CString>,
}

// SAFETY: the pointers point into `_owned`, which is never changed.
unsafe impl Send for TensorNames {}
// SAFETY: as above.
unsafe impl Sync for TensorNames {}

impl TensorNames {
    /// Copies the names.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if a name contains a NUL character.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self> {
        let owned: Vec<CString> = names.map(c_string).collect::<Result<_>>()?;
        Ok(TensorNames { raw: owned.iter().map(|name| name.as_ptr()).collect(), _owned: owned })
    }
}

impl OnnxSession {
    /// Loads a model, which runs each operation on `threads` threads; with 0 the library chooses
    /// the number.
    pub(super) fn load(api: &Arc<OnnxApi>, source: &ModelSource, threads: usize) -> Result<Self> {
        let options = OnnxSessionOptions::new(api, threads)?;
        let env = api.objects()?.env;
        let log_id = source.path().display().to_string();
        options.set_log_id(source.path())?;
        let mut raw = ptr::null_mut();
        let status = match source {
            ModelSource::File(path) => {
                let path = path_c_string(path)?;
                // SAFETY: environment, path and options are live during the call.
                unsafe {
                    (api.functions.create_session)(env, path.as_ptr(), options.raw, &raw mut raw)
                }
            }
            ModelSource::Bytes(bytes, folder) => {
                options.set(c"session.model_external_initializers_file_folder_path", folder)?;
                // SAFETY: environment, bytes and options are live during the call; the library
                // copies the bytes that it needs afterwards.
                unsafe {
                    (api.functions.create_session_from_array)(
                        env,
                        bytes.as_ptr().cast(),
                        bytes.len(),
                        options.raw,
                        &raw mut raw,
                    )
                }
            }
        };
        api.check(status)?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::internal("ONNX Runtime returned a null session"))?;
        let default_run_options = OnnxRunOptions::new(api)?;
        Ok(OnnxSession { api: Arc::clone(api), raw, default_run_options, log_id })
    }

    /// Runs the model: feeds `tensors` to `inputs`, one each, and fetches `outputs`.
    pub(super) fn run(
        &self,
        inputs: &TensorNames,
        tensors: &[Tensor],
        outputs: &TensorNames,
        options: Option<&OnnxRunOptions>,
    ) -> Result<Vec<Tensor>> {
        if inputs.raw.len() != tensors.len() {
            return Err(Error::internal(format!(
                "a run has {} input tensors for {} input names",
                tensors.len(),
                inputs.raw.len()
            )));
        }
        let mut fed: SmallVec<[OwnedValue; INLINE_VALUES]> = SmallVec::new();
        for tensor in tensors {
            fed.push(OwnedValue::from_tensor(&self.api, tensor)?);
        }
        let raw_fed: SmallVec<[*const OrtValue; INLINE_VALUES]> =
            fed.iter().map(|value| value.raw.as_ptr().cast_const()).collect();
        let mut fetched: SmallVec<[*mut OrtValue; INLINE_VALUES]> =
            smallvec::smallvec![ptr::null_mut(); outputs.raw.len()];
        // SAFETY: session and options are live. The arrays have the stated lengths and outlive
        // the call, as do the values of `fed` and the memory of `tensors` that they refer to. The
        // library does not write to an input, because it never holds the only reference to it.
        let status = unsafe {
            (self.api.functions.run)(
                self.raw.as_ptr(),
                options.unwrap_or(&self.default_run_options).raw.as_ptr(),
                inputs.raw.as_ptr(),
                raw_fed.as_ptr(),
                raw_fed.len(),
                outputs.raw.as_ptr(),
                outputs.raw.len(),
                fetched.as_mut_ptr(),
            )
        };
        // Taken before the status is checked, so that each value is freed if the run failed.
        let fetched: SmallVec<[Option<OwnedValue>; INLINE_VALUES]> = fetched
            .into_iter()
            .map(|raw| NonNull::new(raw).map(|raw| OwnedValue { api: Arc::clone(&self.api), raw }))
            .collect();
        self.api.check(status)?;
        let results = fetched.into_iter().map(|value| {
            let value = value.ok_or_else(|| Error::internal("ONNX Runtime returned no output"))?;
            value.into_tensor(tensors)
        });
        results.collect()
    }
}

impl Drop for OnnxSession {
    fn drop(&mut self) {
        // SAFETY: this is the only reference to the session, so no run is in progress. It is freed
        // once, here.
        unsafe { (self.api.functions.release_session)(self.raw.as_ptr()) };
        warnings::forget(&self.log_id);
    }
}

/// The settings with which a session is created.
struct OnnxSessionOptions<'a> {
    api: &'a OnnxApi,
    raw: *mut OrtSessionOptions,
}

impl<'a> OnnxSessionOptions<'a> {
    fn new(api: &'a OnnxApi, threads: usize) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is freed in drop.
        api.check(unsafe { (api.functions.create_session_options)(&raw mut raw) })?;
        let options = OnnxSessionOptions { api, raw };
        let OnnxFunctions {
            set_optimization,
            set_intra_threads,
            set_inter_threads,
            disable_memory_pattern,
            disable_arena,
            ..
        } = api.functions;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: the options are live, and nothing else uses them.
        unsafe {
            api.check(set_optimization(raw, ORT_ENABLE_ALL))?;
            api.check(set_intra_threads(raw, threads))?;
            api.check(set_inter_threads(raw, 1))?;
            // A memory pattern is cached for every input shape: memory that clients control.
            api.check(disable_memory_pattern(raw))?;
            // An arena never returns the memory that the largest request needed.
            api.check(disable_arena(raw))?;
        }
        // Idle threads that spin would take cores from busy ones.
        options.set(c"session.intra_op.allow_spinning", Path::new("0"))?;
        options.set(c"session.load_model_format", Path::new("ONNX"))?;
        Ok(options)
    }

    /// Sets what the library's messages about the session begin with.
    fn set_log_id(&self, id: &Path) -> Result<()> {
        let id = path_c_string(id)?;
        // SAFETY: the options are live; the ID is NUL-terminated, and the library copies it.
        self.api.check(unsafe { (self.api.functions.set_session_log_id)(self.raw, id.as_ptr()) })
    }

    /// Sets a configuration entry, whose value may be a path.
    fn set(&self, key: &CStr, value: &Path) -> Result<()> {
        let value = path_c_string(value)?;
        let set = self.api.functions.add_session_entry;
        // SAFETY: the options are live; key and value are NUL-terminated, and the library copies
        // them.
        self.api.check(unsafe { set(self.raw, key.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for OnnxSessionOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` comes from the library and is freed once, here.
        unsafe { (self.api.functions.release_session_options)(self.raw) };
    }
}

/// The settings of runs, through which runs in progress can be terminated.
pub(super) struct OnnxRunOptions {
    api: Arc<OnnxApi>,
    raw: NonNull<OrtRunOptions>,
}

// SAFETY: runs only read the options, and the library allows `terminate` on another thread during
// a run.
unsafe impl Send for OnnxRunOptions {}
// SAFETY: as above.
unsafe impl Sync for OnnxRunOptions {}

impl OnnxRunOptions {
    /// Options of runs that log nothing, because a failure is returned as an error.
    pub(super) fn new(api: &Arc<OnnxApi>) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is freed in drop.
        api.check(unsafe { (api.functions.create_run_options)(&raw mut raw) })?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::internal("ONNX Runtime returned null run options"))?;
        let options = OnnxRunOptions { api: Arc::clone(api), raw };
        let set = api.functions.set_run_log_severity;
        // SAFETY: the options are live, and nothing else uses them yet.
        api.check(unsafe { set(raw.as_ptr(), FATAL) })?;
        Ok(options)
    }

    /// Terminates all present and later runs with these options.
    pub(super) fn terminate(&self) {
        // SAFETY: the options are live.
        let status = unsafe { (self.api.functions.set_terminate)(self.raw.as_ptr()) };
        if let Err(error) = self.api.check(status) {
            log::warn!("a run that exceeds its deadline cannot be terminated: {error}");
        }
    }
}

impl Drop for OnnxRunOptions {
    fn drop(&mut self) {
        // SAFETY: `raw` comes from the library and is freed once, here.
        unsafe { (self.api.functions.release_run_options)(self.raw.as_ptr()) };
    }
}

/// An `OrtValue` that is freed on drop.
struct OwnedValue {
    api: Arc<OnnxApi>,
    raw: NonNull<OrtValue>,
}

impl OwnedValue {
    /// A value for `tensor`: refers to the memory of numbers, copies strings. Must not outlive
    /// `tensor`.
    fn from_tensor(api: &Arc<OnnxApi>, tensor: &Tensor) -> Result<Self> {
        let dims = tensor.shape().dims();
        let element_type = types::element_type(tensor.dtype());
        let objects = api.objects()?;
        let mut raw = ptr::null_mut();
        let status = match tensor.data() {
            Data::Numeric(buffer) => {
                let bytes = buffer.as_slice();
                // SAFETY: shape and data are live; the data is only read (see `OnnxSession::run`).
                unsafe {
                    (api.functions.create_tensor_over)(
                        objects.memory,
                        bytes.as_ptr().cast_mut().cast(),
                        bytes.len(),
                        dims.as_ptr(),
                        dims.len(),
                        element_type,
                        &raw mut raw,
                    )
                }
            }
            // SAFETY: the allocator is never freed, and the shape is live during the call.
            Data::Strings(_) => unsafe {
                (api.functions.create_tensor)(
                    objects.allocator,
                    dims.as_ptr(),
                    dims.len(),
                    element_type,
                    &raw mut raw,
                )
            },
        };
        api.check(status)?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::internal("ONNX Runtime returned a null tensor"))?;
        let value = OwnedValue { api: Arc::clone(api), raw };
        if let Data::Strings(strings) = tensor.data() {
            value.copy_strings_in(strings)?;
        }
        Ok(value)
    }

    /// Copies `strings` into a string tensor of the same number of elements.
    fn copy_strings_in(&self, strings: &Strings) -> Result<()> {
        for (index, string) in strings.iter().enumerate() {
            let mut target: *mut c_char = ptr::null_mut();
            let resize = self.api.functions.resized_string;
            // SAFETY: the value is a live string tensor, and the library checks the index. The
            // returned buffer has room for the requested number of bytes.
            unsafe {
                let status = resize(self.raw.as_ptr(), index, string.len(), &raw mut target);
                self.api.check(status)?;
                if !target.is_null() {
                    ptr::copy_nonoverlapping(string.as_ptr(), target.cast(), string.len());
                }
            }
        }
        Ok(())
    }

    /// Turns an output into a [`Tensor`]: a view of its numbers, or a copy of its strings.
    /// `inputs` are the inputs of the run.
    fn into_tensor(self, inputs: &[Tensor]) -> Result<Tensor> {
        let functions = &self.api.functions;
        let mut is_tensor = 0;
        // SAFETY: the value is live; writes one number.
        self.api.check(unsafe { (functions.is_tensor)(self.raw.as_ptr(), &raw mut is_tensor) })?;
        if is_tensor == 0 {
            let message =
                "the model returned an output that is not a tensor, which is not supported";
            return Err(Error::new(Code::Unimplemented, message));
        }
        let (dtype, shape) = self.dtype_and_shape()?;
        let count = shape.elements()?;
        let Some(size) = dtype.size() else {
            return Tensor::from_strings(shape, self.copy_strings_out(count)?);
        };
        let mut data = ptr::null_mut();
        // SAFETY: the value is a live numeric tensor; writes one pointer.
        self.api.check(unsafe { (functions.tensor_data)(self.raw.as_ptr(), &raw mut data) })?;
        let data: *const u8 = data.cast_const().cast();
        // A graph may return an input as an output.
        let shares_memory = |input: &&Tensor| input.bytes().as_ptr_range().contains(&data);
        let input = inputs.iter().find(shares_memory).cloned();
        let length = count.checked_mul(size);
        let length = length.ok_or_else(|| Error::internal("an output has too many elements"))?;
        let output = OnnxOutputMemory { _value: self, _input: input, data, length };
        Tensor::numeric(dtype, shape, Buffer::new(Arc::new(output)))
    }

    fn dtype_and_shape(&self) -> Result<(DType, Shape)> {
        let functions = &self.api.functions;
        let mut info = ptr::null_mut();
        let (mut element_type, mut rank) = (0, 0);
        let mut dims: SmallVec<[i64; INLINE_DIMS]> = SmallVec::new();
        // SAFETY: the value is a live tensor. `info` is freed below on success and on failure;
        // `dims` has room for `rank` dimensions.
        let outcome = unsafe {
            let get = functions.type_and_shape;
            self.api.check(get(self.raw.as_ptr(), &raw mut info))?;
            let outcome = self
                .api
                .check((functions.element_type)(info, &raw mut element_type))
                .and_then(|()| self.api.check((functions.dimension_count)(info, &raw mut rank)))
                .and_then(|()| {
                    dims.resize(rank, 0);
                    self.api.check((functions.dimensions)(info, dims.as_mut_ptr(), rank))
                });
            (functions.release_type_and_shape)(info);
            outcome
        };
        outcome?;
        let dtype = types::dtype(element_type).ok_or_else(|| {
            let name = types::name(element_type);
            let message =
                format!("the model returned a tensor of type {name}, which is not supported");
            Error::new(Code::Unimplemented, message)
        })?;
        Ok((dtype, Shape::new(&dims)?))
    }

    /// Copies the `count` strings of a string tensor.
    fn copy_strings_out(&self, count: usize) -> Result<StringsBuilder> {
        let functions = &self.api.functions;
        let mut length = 0;
        // SAFETY: the value is a live string tensor; writes one number.
        let status = unsafe { (functions.strings_length)(self.raw.as_ptr(), &raw mut length) };
        self.api.check(status)?;
        let mut bytes = vec![0_u8; length];
        let mut starts = vec![0_usize; count];
        if count > 0 {
            let get = functions.strings_content;
            let (content, offsets) = (bytes.as_mut_ptr().cast(), starts.as_mut_ptr());
            // SAFETY: the buffers have room for `length` bytes and `count` offsets, which are the
            // sizes passed.
            let status = unsafe { get(self.raw.as_ptr(), content, length, offsets, count) };
            self.api.check(status)?;
        }
        let mut strings = StringsBuilder::with_capacity(count, length);
        let ends = starts.iter().skip(1).copied().chain([length]);
        for (&start, end) in starts.iter().zip(ends) {
            strings.push(bytes.get(start..end).unwrap_or_default());
        }
        Ok(strings)
    }
}

impl Drop for OwnedValue {
    fn drop(&mut self) {
        // SAFETY: this struct owns `raw`, which is freed once, here.
        unsafe { (self.api.functions.release_value)(self.raw.as_ptr()) };
    }
}

/// The memory of a numeric output.
struct OnnxOutputMemory {
    data: *const u8,
    /// In bytes.
    length: usize,
    _value: OwnedValue,
    /// The input that the memory belongs to, if the model returned an input.
    _input: Option<Tensor>,
}

// SAFETY: a value that a run has returned is never changed, and may be freed on any thread.
unsafe impl Send for OnnxOutputMemory {}
// SAFETY: as above.
unsafe impl Sync for OnnxOutputMemory {}

impl Memory for OnnxOutputMemory {
    fn bytes(&self) -> &[u8] {
        if self.length == 0 || self.data.is_null() {
            return &[];
        }
        // SAFETY: data and length describe the tensor's memory, which lives as long as the value
        // or, if it belongs to an input, as long as that input.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} contains a NUL character")))
}

fn path_c_string(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid("the model's path contains a NUL character"))
}
