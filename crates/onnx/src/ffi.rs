//! ONNX Runtime's C API, loaded at run time, behind safe types. The only file of this platform
//! with `unsafe` code, and long for that reason: what keeps it sound can be read in one place.
//!
//! Rules that the types here keep:
//! * every pointer from the library sits in one struct that frees it on drop, and that struct
//!   holds the [`Api`] (and with it the library) alive;
//! * every call that reports a status goes through [`Api::check`];
//! * numbers are fed in place: the runtime reads our memory during the call only, and an output
//!   that turns out to be an input's memory keeps that input;
//! * an output tensor is read in place and freed when its last view is dropped.
//!
//! Source: `onnxruntime_c_api.h` of ONNX Runtime 1.15 to 1.31. The API is a table of functions
//! that only grows at its end.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libloading::Library;
use smallvec::SmallVec;

use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Buffer, DType, Data, Memory, Shape, Strings, StringsBuilder, Tensor};

use super::types;

/// Types the library only hands out pointers to.
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

/// Null if all went well.
type Status = *mut OrtStatus;

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
struct Base {
    api: unsafe extern "C" fn(u32) -> *const Table,
    version: unsafe extern "C" fn() -> *const c_char,
}

/// The version of the API that we use; a library gives those of all versions before its own.
const API_VERSION: u32 = 15;

/// As many functions of `OrtApi` as we need to reach the last that we call.
type Table = [*const c_void; 253];

macro_rules! functions {
    ($($field:ident = $place:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions that we call, each with its place in `OrtApi`.
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            /// Whether the table has all of them.
            fn are_in(table: &Table) -> bool {
                [$($place),*].iter().all(|place: &usize| {
                    table.get(*place).is_some_and(|function| !function.is_null())
                })
            }

            /// # Safety
            /// The table must be that of the library, and have all of them.
            unsafe fn of(table: &Table) -> Self {
                // SAFETY: from version 15 of the API on, the function at each place has exactly
                // the signature that is written in the table below.
                unsafe {
                    Functions {
                        $($field: mem::transmute::<
                            *const c_void,
                            unsafe extern "C" fn($($arg),*) $(-> $ret)?
                        >(table[$place]),)*
                    }
                }
            }
        }
    };
}

functions! {
    error_code = 1: fn(*const OrtStatus) -> c_int;
    error_message = 2: fn(*const OrtStatus) -> *const c_char;
    create_env = 4: fn(Logger, *mut c_void, c_int, *const c_char, *mut *mut OrtEnv) -> Status;
    create_session = 7:
        fn(*const OrtEnv, *const c_char, *const OrtSessionOptions, *mut *mut OrtSession) -> Status;
    create_session_from_array = 8: fn(
        *const OrtEnv, *const c_void, usize, *const OrtSessionOptions, *mut *mut OrtSession
    ) -> Status;
    run = 9: fn(
        *mut OrtSession, *const OrtRunOptions,
        *const *const c_char, *const *const OrtValue, usize,
        *const *const c_char, usize, *mut *mut OrtValue
    ) -> Status;
    create_session_options = 10: fn(*mut *mut OrtSessionOptions) -> Status;
    disable_memory_pattern = 17: fn(*mut OrtSessionOptions) -> Status;
    disable_arena = 19: fn(*mut OrtSessionOptions) -> Status;
    set_optimization = 23: fn(*mut OrtSessionOptions, c_int) -> Status;
    set_intra_threads = 24: fn(*mut OrtSessionOptions, c_int) -> Status;
    set_inter_threads = 25: fn(*mut OrtSessionOptions, c_int) -> Status;
    create_run_options = 39: fn(*mut *mut OrtRunOptions) -> Status;
    set_run_log_severity = 41: fn(*mut OrtRunOptions, c_int) -> Status;
    set_terminate = 46: fn(*mut OrtRunOptions) -> Status;
    create_tensor = 48:
        fn(*mut OrtAllocator, *const i64, usize, c_int, *mut *mut OrtValue) -> Status;
    create_tensor_over = 49: fn(
        *const OrtMemoryInfo, *mut c_void, usize, *const i64, usize, c_int, *mut *mut OrtValue
    ) -> Status;
    is_tensor = 50: fn(*const OrtValue, *mut c_int) -> Status;
    tensor_data = 51: fn(*mut OrtValue, *mut *mut c_void) -> Status;
    strings_length = 53: fn(*const OrtValue, *mut usize) -> Status;
    strings_content = 54:
        fn(*const OrtValue, *mut c_void, usize, *mut usize, usize) -> Status;
    element_type = 60: fn(*const OrtTypeAndShape, *mut c_int) -> Status;
    dimension_count = 61: fn(*const OrtTypeAndShape, *mut usize) -> Status;
    dimensions = 62: fn(*const OrtTypeAndShape, *mut i64, usize) -> Status;
    type_and_shape = 65: fn(*const OrtValue, *mut *mut OrtTypeAndShape) -> Status;
    create_cpu_memory_info = 69: fn(c_int, c_int, *mut *mut OrtMemoryInfo) -> Status;
    default_allocator = 78: fn(*mut *mut OrtAllocator) -> Status;
    release_status = 93: fn(*mut OrtStatus);
    release_session = 95: fn(*mut OrtSession);
    release_value = 96: fn(*mut OrtValue);
    release_run_options = 97: fn(*mut OrtRunOptions);
    release_type_and_shape = 99: fn(*mut OrtTypeAndShape);
    release_session_options = 100: fn(*mut OrtSessionOptions);
    add_session_entry = 130:
        fn(*mut OrtSessionOptions, *const c_char, *const c_char) -> Status;
    resized_string = 252: fn(*mut OrtValue, usize, usize, *mut *mut c_char) -> Status;
}

/// Levels of its log (`OrtLoggingLevel`).
const WARNING: c_int = 2;
const FATAL: c_int = 4;

/// `ORT_ENABLE_ALL`.
const ALL_OPTIMIZATIONS: c_int = 99;

/// The library, and what of it there is once in a process.
pub(super) struct Api {
    functions: Functions,
    version: String,
    env: *mut OrtEnv,
    /// Says that memory is the machine's own.
    memory: *mut OrtMemoryInfo,
    allocator: *mut OrtAllocator,
    /// Never closed: the library leaves threads and exit handlers behind, which would then run in
    /// unmapped memory. So `env` and `memory` are never freed either.
    _library: ManuallyDrop<Library>,
}

// SAFETY: environment, memory description and default allocator are not changed once made, and
// the library may use them from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// Why the library was not opened.
#[derive(Debug)]
pub(super) enum Unopened {
    /// The loader's own words.
    Loader(libloading::Error),
    /// It is one that we can not use.
    Unfit(String),
}

impl std::fmt::Display for Unopened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unopened::Loader(error) => error.fmt(f),
            Unopened::Unfit(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Unopened {}

impl Api {
    /// Opens the library at `path`.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, Unopened> {
        // SAFETY: loading runs the library's initialisers. The path comes from the operator
        // (flag, environment, our own folders), never from a request, and naming a library
        // there means trusting it with the process.
        let library = unsafe { Library::new(path) }.map_err(Unopened::Loader)?;
        // SAFETY: the symbol has this signature in every version, and returns a pointer to a
        // static table, whose functions may be called with any version. A version that the
        // library does not know gives null.
        let (table, version) = unsafe {
            let base = library.get::<unsafe extern "C" fn() -> *const Base>(b"OrtGetApiBase\0");
            let base = base.map_err(Unopened::Loader)?();
            let Some(base) = base.as_ref() else {
                return Err(Unopened::Unfit("it gives no API".to_owned()));
            };
            let version = CStr::from_ptr((base.version)()).to_string_lossy().into_owned();
            ((base.api)(API_VERSION).as_ref(), version)
        };
        let Some(table) = table.filter(|table| Functions::are_in(table)) else {
            return Err(Unopened::Unfit(format!(
                "it is ONNX Runtime {version}; this needs 1.{API_VERSION} or later"
            )));
        };
        // SAFETY: it is the library's table, and was just seen to have all functions.
        let functions = unsafe { Functions::of(table) };
        let library = ManuallyDrop::new(library);
        let (env, memory, allocator) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut api = Api { functions, version, env, memory, allocator, _library: library };
        api.set_up().map_err(|error| Unopened::Unfit(error.to_string()))?;
        Ok(Arc::new(api))
    }

    fn set_up(&mut self) -> Result<()> {
        let Functions { create_env, create_cpu_memory_info, default_allocator, .. } =
            self.functions;
        let (mut env, mut memory) = (ptr::null_mut(), ptr::null_mut());
        let mut allocator = ptr::null_mut();
        // SAFETY: each call writes one pointer; the name is a constant. `note` has the logger's
        // signature and lives for ever. 0 and 0 are an allocator and a memory of the device.
        unsafe {
            let name = c"tensorserve".as_ptr();
            self.check(create_env(note, ptr::null_mut(), WARNING, name, &raw mut env))?;
            self.check(create_cpu_memory_info(0, 0, &raw mut memory))?;
            self.check(default_allocator(&raw mut allocator))?;
        }
        (self.env, self.memory, self.allocator) = (env, memory, allocator);
        Ok(())
    }

    /// The library's version, for example `1.31.1`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Takes the status that a call gave.
    fn check(&self, status: Status) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: a status that is not null is ours; its message is NUL-terminated, copied at
        // once, and freed with it.
        let (code, message) = unsafe {
            let code = (self.functions.error_code)(status);
            let message = CStr::from_ptr((self.functions.error_message)(status));
            let message = message.to_string_lossy().into_owned();
            (self.functions.release_status)(status);
            (code, message)
        };
        Err(Error::new(code_of(code), message))
    }
}

/// The kind of failure that `OrtErrorCode` tells.
fn code_of(number: c_int) -> Code {
    match number {
        2 => Code::InvalidArgument,
        3 => Code::NotFound,
        7 | 10 => Code::DataLoss,
        9 => Code::Unimplemented,
        _ => Code::Unknown,
    }
}

/// What the library has to say goes to our log. What fails comes back as an error, too.
unsafe extern "C" fn note(
    _: *mut c_void,
    severity: c_int,
    _category: *const c_char,
    _id: *const c_char,
    _place: *const c_char,
    message: *const c_char,
) {
    if message.is_null() {
        return;
    }
    // SAFETY: a message is NUL-terminated and lives for the call.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let level = if severity == WARNING { log::Level::Warn } else { log::Level::Debug };
    log::log!(level, "ONNX Runtime: {message}");
}

/// Where the library finds a model.
pub(super) enum Source<'a> {
    /// In this file.
    File(&'a Path),
    /// In these bytes; files that they name are in this folder.
    Bytes(&'a [u8], &'a Path),
}

/// A loaded model.
pub(super) struct Session {
    api: Arc<Api>,
    raw: NonNull<OrtSession>,
    /// Of runs without a timeout.
    quiet: RunOptions,
}

// SAFETY: a session may be run from any number of threads at once; it keeps no state of a run
// (https://github.com/microsoft/onnxruntime/issues/114, for the CPU, which is all we use).
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

/// Names of inputs or outputs, as the library wants them.
pub(super) struct Names {
    raw: Vec<*const c_char>,
    _owned: Vec<CString>,
}

// SAFETY: the pointers are into `_owned`, which nobody changes.
unsafe impl Send for Names {}
// SAFETY: as above.
unsafe impl Sync for Names {}

impl Names {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self> {
        let owned: Vec<CString> = names.map(c_string).collect::<Result<_>>()?;
        Ok(Names { raw: owned.iter().map(|name| name.as_ptr()).collect(), _owned: owned })
    }
}

impl Session {
    /// Loads a model whose operations use `threads` threads; 0 leaves it to the library.
    pub(super) fn load(api: &Arc<Api>, source: &Source, threads: usize) -> Result<Self> {
        let options = SessionOptions::new(api, threads)?;
        let mut raw = ptr::null_mut();
        let status = match source {
            Source::File(path) => {
                let path = CString::new(path.as_os_str().as_bytes())
                    .map_err(|_| Error::invalid("the model's path contains a NUL character"))?;
                // SAFETY: environment, path and options are live for the call.
                unsafe {
                    (api.functions.create_session)(
                        api.env,
                        path.as_ptr(),
                        options.raw,
                        &raw mut raw,
                    )
                }
            }
            Source::Bytes(bytes, folder) => {
                options.set(c"session.model_external_initializers_file_folder_path", folder)?;
                // SAFETY: environment, bytes and options are live for the call; the library
                // keeps a copy of what it needs.
                unsafe {
                    (api.functions.create_session_from_array)(
                        api.env,
                        bytes.as_ptr().cast(),
                        bytes.len(),
                        options.raw,
                        &raw mut raw,
                    )
                }
            }
        };
        api.check(status)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("no session was made"))?;
        let quiet = RunOptions::new(api);
        let session = |quiet| Session { api: Arc::clone(api), raw, quiet };
        quiet.map(session)
    }

    /// Feeds `tensors` to `inputs`, one each, and fetches `outputs`.
    pub(super) fn run(
        &self,
        inputs: &Names,
        tensors: &[Tensor],
        outputs: &Names,
        options: Option<&RunOptions>,
    ) -> Result<Vec<Tensor>> {
        if inputs.raw.len() != tensors.len() {
            return Err(Error::internal("inputs and names differ in number"));
        }
        let fed: SmallVec<[Value; 4]> =
            tensors.iter().map(|tensor| Value::of(&self.api, tensor)).collect::<Result<_>>()?;
        let raw_fed: SmallVec<[*const OrtValue; 4]> =
            fed.iter().map(|value| value.raw.as_ptr().cast_const()).collect();
        let mut fetched: SmallVec<[*mut OrtValue; 4]> =
            smallvec::smallvec![ptr::null_mut(); outputs.raw.len()];
        // SAFETY: session and options are live; the arrays have the stated lengths and outlive
        // the call, as do the values of `fed` and the memory of `tensors` that they lie over. The
        // library does not write to what is fed: it is never the only holder of it.
        let status = unsafe {
            (self.api.functions.run)(
                self.raw.as_ptr(),
                options.unwrap_or(&self.quiet).raw.as_ptr(),
                inputs.raw.as_ptr(),
                raw_fed.as_ptr(),
                raw_fed.len(),
                outputs.raw.as_ptr(),
                outputs.raw.len(),
                fetched.as_mut_ptr(),
            )
        };
        let fetched: SmallVec<[Option<Value>; 4]> = fetched
            .into_iter()
            .map(|raw| NonNull::new(raw).map(|raw| Value { api: Arc::clone(&self.api), raw }))
            .collect();
        self.api.check(status)?;
        let taken = fetched.into_iter().map(|value| {
            value.ok_or_else(|| Error::internal("the runtime returned no tensor"))?.take(tensors)
        });
        taken.collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: nobody else holds the session, so no run is under way; freed once, here.
        unsafe { (self.api.functions.release_session)(self.raw.as_ptr()) };
    }
}

struct SessionOptions<'a> {
    api: &'a Api,
    raw: *mut OrtSessionOptions,
}

impl<'a> SessionOptions<'a> {
    fn new(api: &'a Api, threads: usize) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is freed in drop.
        api.check(unsafe { (api.functions.create_session_options)(&raw mut raw) })?;
        let options = SessionOptions { api, raw };
        let Functions {
            set_optimization,
            set_intra_threads,
            set_inter_threads,
            disable_memory_pattern,
            disable_arena,
            ..
        } = api.functions;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: the options are live, and not used by anyone else.
        unsafe {
            api.check(set_optimization(raw, ALL_OPTIMIZATIONS))?;
            api.check(set_intra_threads(raw, threads))?;
            api.check(set_inter_threads(raw, 1))?;
            // It remembers a plan for every shape that it has met: memory that clients decide on.
            api.check(disable_memory_pattern(raw))?;
            // It would keep for ever what the largest request took.
            api.check(disable_arena(raw))?;
        }
        // Threads that wait must not take a core from those that work.
        options.set(c"session.intra_op.allow_spinning", Path::new("0"))?;
        options.set(c"session.load_model_format", Path::new("ONNX"))?;
        Ok(options)
    }

    fn set(&self, key: &CStr, value: &Path) -> Result<()> {
        let value = CString::new(value.as_os_str().as_bytes())
            .map_err(|_| Error::invalid("the model's path contains a NUL character"))?;
        let set = self.api.functions.add_session_entry;
        // SAFETY: the options are live, key and value NUL-terminated; the library copies them.
        self.api.check(unsafe { set(self.raw, key.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for SessionOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the library and is freed once, here.
        unsafe { (self.api.functions.release_session_options)(self.raw) };
    }
}

/// How runs go, and the way to end one.
pub(super) struct RunOptions {
    api: Arc<Api>,
    raw: NonNull<OrtRunOptions>,
}

// SAFETY: runs only read it, and `terminate` is made to be called from another thread meanwhile.
unsafe impl Send for RunOptions {}
// SAFETY: as above.
unsafe impl Sync for RunOptions {}

impl RunOptions {
    /// Options of runs that log nothing: what fails comes back as an error.
    pub(super) fn new(api: &Arc<Api>) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is freed in drop.
        api.check(unsafe { (api.functions.create_run_options)(&raw mut raw) })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("no run options were made"))?;
        let options = RunOptions { api: Arc::clone(api), raw };
        let set = api.functions.set_run_log_severity;
        // SAFETY: the options are live, and not used by anyone else yet.
        api.check(unsafe { set(raw.as_ptr(), FATAL) })?;
        Ok(options)
    }

    /// Ends the runs under way with these options, and those to come.
    pub(super) fn terminate(&self) {
        // SAFETY: the options are live.
        let status = unsafe { (self.api.functions.set_terminate)(self.raw.as_ptr()) };
        if let Err(error) = self.api.check(status) {
            log::warn!("a run could not be ended: {error}");
        }
    }
}

impl Drop for RunOptions {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the library and is freed once, here.
        unsafe { (self.api.functions.release_run_options)(self.raw.as_ptr()) };
    }
}

/// An `OrtValue` we own.
struct Value {
    api: Arc<Api>,
    raw: NonNull<OrtValue>,
}

impl Value {
    /// `tensor` as the library wants it: numbers in place, strings copied. Must not be used once
    /// `tensor` is gone.
    fn of(api: &Arc<Api>, tensor: &Tensor) -> Result<Self> {
        let dims = tensor.shape().dims();
        let number = types::number(tensor.dtype());
        let mut raw = ptr::null_mut();
        let status = match tensor.data() {
            Data::Numeric(buffer) => {
                let bytes = buffer.as_slice();
                // SAFETY: shape and data are live; the data is only read, see `Session::run`.
                unsafe {
                    (api.functions.create_tensor_over)(
                        api.memory,
                        bytes.as_ptr().cast_mut().cast(),
                        bytes.len(),
                        dims.as_ptr(),
                        dims.len(),
                        number,
                        &raw mut raw,
                    )
                }
            }
            // SAFETY: the allocator lives for ever, the shape for the call.
            Data::Strings(_) => unsafe {
                (api.functions.create_tensor)(
                    api.allocator,
                    dims.as_ptr(),
                    dims.len(),
                    number,
                    &raw mut raw,
                )
            },
        };
        api.check(status)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("no tensor was made"))?;
        let value = Value { api: Arc::clone(api), raw };
        if let Data::Strings(strings) = tensor.data() {
            value.fill(strings)?;
        }
        Ok(value)
    }

    /// Copies strings into a tensor of as many.
    fn fill(&self, strings: &Strings) -> Result<()> {
        for (index, string) in strings.iter().enumerate() {
            let mut place: *mut c_char = ptr::null_mut();
            let resize = self.api.functions.resized_string;
            // SAFETY: the value is a live tensor of strings, which checks the index; the place
            // that it gives has room for as many bytes as were asked for.
            unsafe {
                let status = resize(self.raw.as_ptr(), index, string.len(), &raw mut place);
                self.api.check(status)?;
                if !place.is_null() {
                    ptr::copy_nonoverlapping(string.as_ptr(), place.cast(), string.len());
                }
            }
        }
        Ok(())
    }

    /// Takes an output as one of our tensors: numbers as a view, strings copied. `inputs` are
    /// those of the run.
    fn take(self, inputs: &[Tensor]) -> Result<Tensor> {
        let functions = &self.api.functions;
        let mut is_tensor = 0;
        // SAFETY: the value is live; writes one number.
        self.api.check(unsafe { (functions.is_tensor)(self.raw.as_ptr(), &raw mut is_tensor) })?;
        if is_tensor == 0 {
            let message = "the model returned something that is no tensor";
            return Err(Error::new(Code::Unimplemented, message));
        }
        let (dtype, shape) = self.dtype_and_shape()?;
        let count = shape.elements()?;
        let Some(size) = dtype.size() else {
            return Tensor::from_strings(shape, self.copy_strings(count)?);
        };
        let mut data = ptr::null_mut();
        // SAFETY: the value is a live tensor of numbers; writes one pointer.
        self.api.check(unsafe { (functions.tensor_data)(self.raw.as_ptr(), &raw mut data) })?;
        let data: *const u8 = data.cast_const().cast();
        // A graph may hand an input on as it is.
        let is_of = |input: &&Tensor| input.bytes().as_ptr_range().contains(&data);
        let input = inputs.iter().find(is_of).cloned();
        let length = count.checked_mul(size);
        let length = length.ok_or_else(|| Error::internal("an output has too many elements"))?;
        let output = Output { _value: self, _input: input, data, length };
        Tensor::numeric(dtype, shape, Buffer::new(Arc::new(output)))
    }

    fn dtype_and_shape(&self) -> Result<(DType, Shape)> {
        let functions = &self.api.functions;
        let mut info = ptr::null_mut();
        let (mut number, mut rank) = (0, 0);
        let mut dims: SmallVec<[i64; 4]> = SmallVec::new();
        // SAFETY: the value is a live tensor. `info` is ours and freed below, whatever happens in
        // between; `dims` has room for as many dimensions as there are said to be.
        let outcome = unsafe {
            let get = functions.type_and_shape;
            self.api.check(get(self.raw.as_ptr(), &raw mut info))?;
            let outcome = self
                .api
                .check((functions.element_type)(info, &raw mut number))
                .and_then(|()| self.api.check((functions.dimension_count)(info, &raw mut rank)))
                .and_then(|()| {
                    dims.resize(rank, 0);
                    self.api.check((functions.dimensions)(info, dims.as_mut_ptr(), rank))
                });
            (functions.release_type_and_shape)(info);
            outcome
        };
        outcome?;
        let dtype = types::dtype(number).ok_or_else(|| {
            let name = types::name(number);
            let message = format!("the model returned a tensor of type {name}");
            Error::new(Code::Unimplemented, message)
        })?;
        Ok((dtype, Shape::new(&dims)?))
    }

    fn copy_strings(&self, count: usize) -> Result<StringsBuilder> {
        let functions = &self.api.functions;
        let mut length = 0;
        // SAFETY: the value is a live tensor of strings; writes one number.
        let status = unsafe { (functions.strings_length)(self.raw.as_ptr(), &raw mut length) };
        self.api.check(status)?;
        let mut bytes = vec![0_u8; length];
        let mut starts = vec![0_usize; count];
        if count > 0 {
            let get = functions.strings_content;
            let (content, offsets) = (bytes.as_mut_ptr().cast(), starts.as_mut_ptr());
            // SAFETY: there is room for `length` bytes and `count` starts, which is said.
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

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: `raw` is a value we own and is freed once, here.
        unsafe { (self.api.functions.release_value)(self.raw.as_ptr()) };
    }
}

/// The numbers of an output.
struct Output {
    data: *const u8,
    length: usize,
    _value: Value,
    /// The input whose memory it is.
    _input: Option<Tensor>,
}

// SAFETY: a value that a run has returned is changed by nobody, and freeing one is safe from any
// thread.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Memory for Output {
    fn bytes(&self) -> &[u8] {
        if self.length == 0 || self.data.is_null() {
            return &[];
        }
        // SAFETY: data and length describe the tensor's memory, which lives as long as the value
        // does or, if it is an input's, as that input.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} contains a NUL character")))
}
