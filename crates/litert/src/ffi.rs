//! LiteRT's C API, loaded at run time, behind safe types. This is the only file of the crate with `unsafe`
//! code. It is long for that reason: all that its soundness depends on is in one place.
//!
//! Invariants of the types here:
//! * one struct owns each pointer from the library and frees it on drop; that struct holds the
//!   [`LiteRtApi`], which keeps the library loaded;
//! * every call that returns a status goes through [`LiteRtApi::check`];
//! * an interpreter is used by one thread at a time: its functions take `&mut self`;
//! * inputs are copied into memory of the interpreter that is aligned, and longer than the tensor, as
//!   XNNPACK reads it; outputs are copied by the library.
//!
//! Source: the headers in `litert/c` of LiteRT 2.2, and the library of 2.3.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use libloading::Library;
use smallvec::SmallVec;

use super::{schema, strings};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{AlignedVec, DType, Data, Shape, Tensor, aligned_vec};

/// Opaque types of the library, used behind pointers only.
macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] struct $name { _opaque: [u8; 0] })* };
}
opaque!(RawEnvironment, RawModel, RawOptions, RawOpaqueOptions, RawCompiledModel, RawTensorBuffer);

/// `LiteRtStatus`.
type LiteRtStatus = c_int;
const OK: LiteRtStatus = 0;
const INVALID_ARGUMENT: LiteRtStatus = 1;
const OUT_OF_MEMORY: LiteRtStatus = 2;
const RUNTIME_FAILURE: LiteRtStatus = 3;
const UNSUPPORTED: LiteRtStatus = 5;
const INVALID_FLATBUFFER: LiteRtStatus = 501;

/// `LiteRtAny` with an integer.
#[repr(C)]
struct AnyInt {
    kind: c_int,
    value: i64,
}

/// `LiteRtEnvOption`.
#[repr(C)]
struct EnvironmentOption {
    tag: c_int,
    value: AnyInt,
}

/// `kLiteRtAnyTypeInt`.
const ANY_INT: c_int = 2;
/// `kLiteRtEnvOptionTagAutoRegisterAccelerators`.
const ACCELERATORS: c_int = 24;
/// `kLiteRtEnvOptionTagMinLoggerSeverity`.
const LOG_SEVERITY: c_int = 25;
/// `kLiteRtLogSeverityError`.
const LOG_ERRORS: i64 = 3;
/// `kLiteRtHwAcceleratorCpu`.
const CPU: c_int = 1;

/// `LITERT_TENSOR_MAX_RANK`.
const MAX_RANK: usize = super::model::MAX_RANK;

/// `LiteRtLayout`: the rank is in the lowest 7 bits of the first word.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawLayout {
    rank: u32,
    dims: [i32; MAX_RANK],
    strides: [u32; MAX_RANK],
}

/// `LiteRtRankedTensorType`.
#[repr(C)]
struct TensorType {
    element: c_int,
    layout: RawLayout,
}

unsafe extern "C" {
    /// The allocator of the C library, which messages come from.
    fn free(memory: *mut c_void);
}

macro_rules! functions {
    ($($field:ident = $symbol:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions that are called here.
        struct LiteRtFunctions {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl LiteRtFunctions {
            /// Looks the functions up.
            ///
            /// # Safety
            /// The library must be LiteRT 2.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the symbols have these signatures in the headers of the library.
                unsafe {
                    Ok(LiteRtFunctions {
                        $($field: *library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(
                            concat!($symbol, "\0").as_bytes()
                        )?,)*
                    })
                }
            }
        }
    };
}

functions! {
    create_environment = "LiteRtCreateEnvironment":
        fn(c_int, *const EnvironmentOption, *mut *mut RawEnvironment) -> LiteRtStatus;
    create_model = "LiteRtCreateModelFromBuffer":
        fn(*mut RawEnvironment, *const c_void, usize, *mut *mut RawModel) -> LiteRtStatus;
    destroy_model = "LiteRtDestroyModel": fn(*mut RawModel);
    create_options = "LiteRtCreateOptions": fn(*mut *mut RawOptions) -> LiteRtStatus;
    destroy_options = "LiteRtDestroyOptions": fn(*mut RawOptions);
    set_accelerators = "LiteRtSetOptionsHardwareAccelerators": fn(*mut RawOptions, c_int) -> LiteRtStatus;
    create_opaque = "LiteRtCreateOpaqueOptions": fn(
        *const c_char, *mut c_void, unsafe extern "C" fn(*mut c_void), *mut *mut RawOpaqueOptions
    ) -> LiteRtStatus;
    add_opaque = "LiteRtAddOpaqueOptions": fn(*mut RawOptions, *mut RawOpaqueOptions) -> LiteRtStatus;
    create_compiled = "LiteRtCreateCompiledModel": fn(
        *mut RawEnvironment, *mut RawModel, *mut RawOptions, *mut *mut RawCompiledModel
    ) -> LiteRtStatus;
    destroy_compiled = "LiteRtDestroyCompiledModel": fn(*mut RawCompiledModel);
    resize_input = "LiteRtCompiledModelResizeInputTensorNonStrict":
        fn(*mut RawCompiledModel, usize, usize, *const c_int, usize) -> LiteRtStatus;
    output_layouts = "LiteRtGetCompiledModelOutputTensorLayouts":
        fn(*mut RawCompiledModel, usize, usize, *mut RawLayout, bool) -> LiteRtStatus;
    set_cancellation = "LiteRtSetCompiledModelCancellationFunction":
        fn(*mut RawCompiledModel, *mut c_void, unsafe extern "C" fn(*mut c_void) -> bool) -> LiteRtStatus;
    messages = "LiteRtCompiledModelGetErrorMessages":
        fn(*mut RawCompiledModel, *mut *mut c_char) -> LiteRtStatus;
    clear_messages = "LiteRtCompiledModelClearErrors": fn(*mut RawCompiledModel) -> LiteRtStatus;
    run = "LiteRtRunCompiledModel": fn(
        *mut RawCompiledModel, usize,
        usize, *mut *mut RawTensorBuffer, usize, *mut *mut RawTensorBuffer
    ) -> LiteRtStatus;
    create_buffer = "LiteRtCreateTensorBufferFromHostMemory": fn(
        *const TensorType, *mut c_void, usize, *const c_void, *mut *mut RawTensorBuffer
    ) -> LiteRtStatus;
    destroy_buffer = "LiteRtDestroyTensorBuffer": fn(*mut RawTensorBuffer);
}

/// What XNNPACK may read behind a tensor, in bytes, and more.
const READ_BEHIND: usize = 256;

/// Inputs of a run that are kept on the stack; more go to the heap.
const INLINE_VALUES: usize = 4;

/// The library, and its environment.
pub(super) struct LiteRtApi {
    functions: LiteRtFunctions,
    /// Created for the first model.
    environment: OnceLock<LiteRtEnvironment>,
    /// Never closed: threads of XNNPACK may outlive the last model.
    _library: ManuallyDrop<Library>,
}

/// The environment, of which one exists in a process. It is never freed, as the library.
struct LiteRtEnvironment(*mut RawEnvironment);

// SAFETY: the environment is not changed once it exists; models refer to it for its accelerators only.
unsafe impl Send for LiteRtEnvironment {}
// SAFETY: as above.
unsafe impl Sync for LiteRtEnvironment {}

impl LiteRtApi {
    /// Opens the library at `path`.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, libloading::Error> {
        // SAFETY: loading runs the library's initializers. The path comes from the operator (flag,
        // environment, default directories), never from a request, and an operator who names a library
        // there trusts it with the process.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: a library with all of these symbols is LiteRT 2.
        let functions = unsafe { LiteRtFunctions::of(&library) }?;
        let library = ManuallyDrop::new(library);
        Ok(Arc::new(LiteRtApi { functions, environment: OnceLock::new(), _library: library }))
    }

    /// The environment, which is created on first use.
    fn environment(&self) -> Result<*mut RawEnvironment> {
        if let Some(environment) = self.environment.get() {
            return Ok(environment.0);
        }
        // Without these, the library looks for libraries of GPUs, and writes what it does to stderr.
        let options = [(ACCELERATORS, i64::from(CPU)), (LOG_SEVERITY, LOG_ERRORS)]
            .map(|(tag, value)| EnvironmentOption { tag, value: AnyInt { kind: ANY_INT, value } });
        let mut raw = ptr::null_mut();
        let create = self.functions.create_environment;
        let count = c_int::try_from(options.len()).unwrap_or(0);
        // SAFETY: the options are live during the call, which copies them; writes one pointer.
        let status = unsafe { create(count, options.as_ptr(), &raw mut raw) };
        self.check("create its environment", status)?;
        // Where two threads create one, one of them is unused.
        Ok(self.environment.get_or_init(|| LiteRtEnvironment(raw)).0)
    }

    /// Turns the status of a call, which was to do `what`, into a result.
    fn check(&self, what: &str, status: LiteRtStatus) -> Result<()> {
        let code = match status {
            OK => return Ok(()),
            INVALID_ARGUMENT => Code::InvalidArgument,
            OUT_OF_MEMORY => Code::ResourceExhausted,
            UNSUPPORTED => Code::Unimplemented,
            INVALID_FLATBUFFER => Code::DataLoss,
            _ => Code::Unknown,
        };
        Err(Error::new(code, format!("LiteRT cannot {what} (status {status})")))
    }
}

/// A model that the library has read.
pub(super) struct LiteRtModel {
    api: Arc<LiteRtApi>,
    raw: NonNull<RawModel>,
    /// Held while an interpreter is made.
    making: Mutex<()>,
    /// The file, which the library refers to.
    _bytes: AlignedVec<u8>,
}

// SAFETY: interpreters are made of a model on one thread at a time, and share nothing that changes.
unsafe impl Send for LiteRtModel {}
// SAFETY: as above.
unsafe impl Sync for LiteRtModel {}

impl LiteRtModel {
    /// Reads a model.
    pub(super) fn new(api: &Arc<LiteRtApi>, bytes: AlignedVec<u8>) -> Result<Self> {
        let environment = api.environment()?;
        let mut raw = ptr::null_mut();
        let (address, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the bytes live as long as the model, which owns them, and are never changed; writes
        // one pointer.
        let status =
            unsafe { (api.functions.create_model)(environment, address, length, &raw mut raw) };
        api.check("read the model", status)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("LiteRT returned no model"))?;
        Ok(LiteRtModel { api: Arc::clone(api), raw, making: Mutex::new(()), _bytes: bytes })
    }
}

impl Drop for LiteRtModel {
    fn drop(&mut self) {
        // SAFETY: interpreters hold the model, so that none is left; it is freed once, here.
        unsafe { (self.api.functions.destroy_model)(self.raw.as_ptr()) };
    }
}

/// What the library's callbacks use during a run of an interpreter.
struct RunState {
    /// When to cancel the run.
    deadline: Cell<Option<Instant>>,
}

/// Why a run failed.
#[derive(Debug)]
pub(super) enum RunError {
    /// With an error of the model or of the library.
    Failed(Error),
    /// Perhaps because an output is larger than its memory: the library does not tell.
    TooSmall(Error),
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        RunError::Failed(error)
    }
}

/// Runs a model: one thread at a time.
pub(super) struct Interpreter {
    model: Arc<LiteRtModel>,
    raw: NonNull<RawCompiledModel>,
    /// Lives as long as `raw`, whose callbacks get it.
    state: NonNull<RunState>,
    /// The memory of inputs, kept from run to run.
    memory: Vec<AlignedVec<u8>>,
    /// For each function the shapes that its inputs have, once it has run.
    shapes: Vec<Vec<Shape>>,
}

// SAFETY: the library lets any thread use an interpreter, if only one does at a time, which `&mut self`
// ensures. `state` is used by that thread only.
unsafe impl Send for Interpreter {}

impl Interpreter {
    /// An interpreter whose operations use `threads` threads.
    pub(super) fn new(model: &Arc<LiteRtModel>, functions: usize, threads: usize) -> Result<Self> {
        let state = Box::new(RunState { deadline: Cell::new(None) });
        let state = NonNull::from(Box::leak(state));
        match compile(model, state, threads) {
            Ok(raw) => Ok(Interpreter {
                model: Arc::clone(model),
                raw,
                state,
                memory: Vec::new(),
                shapes: vec![Vec::new(); functions],
            }),
            Err(error) => {
                // SAFETY: there is no interpreter that refers to it.
                drop(unsafe { Box::from_raw(state.as_ptr()) });
                Err(error)
            }
        }
    }

    /// Whether the inputs of `function` have had the shapes of `tensors` in its last run.
    pub(super) fn is_sized_for(&self, function: usize, tensors: &[Tensor]) -> bool {
        let last = self.shapes.get(function).map_or(&[][..], Vec::as_slice);
        last.iter().eq(tensors.iter().map(Tensor::shape))
    }

    /// Runs function number `function` on `tensors`, one for each input in the order of the subgraph. The
    /// library copies the outputs, which are strings for it, to the beginning of `outputs`. Cancels the run
    /// at `deadline`, between two operations.
    ///
    /// # Errors
    /// [`RunError::TooSmall`] if an output is larger than its memory.
    pub(super) fn run(
        &mut self,
        function: usize,
        tensors: &[Tensor],
        outputs: &mut [AlignedVec<u8>],
        deadline: Option<Instant>,
    ) -> Result<(), RunError> {
        if !self.is_sized_for(function, tensors) {
            self.resize(function, tensors, outputs.len())?;
        }
        let api = Arc::clone(&self.model.api);
        let mut buffers: SmallVec<[TensorBuffer; INLINE_VALUES]> = SmallVec::new();
        self.memory.resize_with(tensors.len(), || aligned_vec(0));
        for (tensor, memory) in tensors.iter().zip(&mut self.memory) {
            let length = copy_in(tensor, memory)?;
            buffers.push(TensorBuffer::new(&api, tensor.dtype(), tensor.shape(), memory, length)?);
        }
        let one = Shape::vector(1);
        for memory in outputs.iter_mut() {
            let length = memory.len();
            buffers.push(TensorBuffer::new(&api, DType::String, &one, memory, length)?);
        }
        let mut raw: SmallVec<[*mut RawTensorBuffer; INLINE_VALUES]> =
            buffers.iter().map(|buffer| buffer.raw.as_ptr()).collect();
        let (fed, fetched) = raw.split_at_mut(tensors.len());
        // SAFETY: `state` is live, and no callback runs now.
        unsafe { self.state.as_ref() }.deadline.set(deadline);
        // SAFETY: the interpreter is live and used by this thread only. The arrays have the stated
        // lengths; the buffers and their memory outlive the call.
        let status = unsafe {
            (api.functions.run)(
                self.raw.as_ptr(),
                function,
                fed.len(),
                fed.as_mut_ptr(),
                fetched.len(),
                fetched.as_mut_ptr(),
            )
        };
        if status == OK {
            return Ok(());
        }
        let failure = self.failure("run the model", status);
        // The library reports a cancelled run like a failed one.
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let message = "the run exceeded its deadline and was cancelled";
            return Err(RunError::Failed(Error::new(Code::DeadlineExceeded, message)));
        }
        Err(failure)
    }

    /// Gives the inputs of a function, which has `outputs` outputs, the shapes of `tensors`.
    fn resize(
        &mut self,
        function: usize,
        tensors: &[Tensor],
        outputs: usize,
    ) -> Result<(), RunError> {
        if let Some(shapes) = self.shapes.get_mut(function) {
            shapes.clear();
        }
        for (index, tensor) in tensors.iter().enumerate() {
            let dims: SmallVec<[c_int; MAX_RANK]> = tensor
                .shape()
                .dims()
                .iter()
                .map(|dim| c_int::try_from(*dim).unwrap_or(-1))
                .collect();
            // A scalar stays one.
            if dims.is_empty() {
                continue;
            }
            let resize = self.model.api.functions.resize_input;
            // SAFETY: the interpreter is live; the dimensions are live during the call.
            let status =
                unsafe { resize(self.raw.as_ptr(), function, index, dims.as_ptr(), dims.len()) };
            if status != OK {
                return Err(self.failure(&format!("take input {index} of shape {dims:?}"), status));
            }
        }
        // Before the run, during which the library holds pointers to tensors: their array may move now.
        let layout = RawLayout { rank: 0, dims: [0; MAX_RANK], strides: [0; MAX_RANK] };
        let mut layouts = vec![layout; outputs];
        let prepare = self.model.api.functions.output_layouts;
        let (count, layouts) = (layouts.len(), layouts.as_mut_ptr());
        // SAFETY: the interpreter is live; `layouts` has room for `count` of them.
        let status = unsafe { prepare(self.raw.as_ptr(), function, count, layouts, true) };
        if status != OK {
            return Err(self.failure("prepare the model for these inputs", status));
        }
        if let Some(shapes) = self.shapes.get_mut(function) {
            shapes.extend(tensors.iter().map(|tensor| tensor.shape().clone()));
        }
        Ok(())
    }

    /// The error of a run that failed, with the library's messages. The next run begins anew.
    fn failure(&mut self, what: &str, status: LiteRtStatus) -> RunError {
        let api = &self.model.api;
        let mut text: *mut c_char = ptr::null_mut();
        // SAFETY: the interpreter is live; writes a pointer to a NUL-terminated string of the caller, or
        // none.
        let messages = unsafe {
            let status = (api.functions.messages)(self.raw.as_ptr(), &raw mut text);
            let messages = match text.as_ref() {
                Some(text) if status == OK => CStr::from_ptr(text).to_string_lossy().into_owned(),
                _ => String::new(),
            };
            free(text.cast());
            (api.functions.clear_messages)(self.raw.as_ptr());
            messages
        };
        let error = match api.check(what, status) {
            Err(error) => error,
            Ok(()) => Error::internal("LiteRT failed without a status"),
        };
        match messages.trim() {
            // What fails in an operator has a message.
            "" if status == RUNTIME_FAILURE => RunError::TooSmall(error),
            "" => RunError::Failed(error),
            text => {
                self.shapes.iter_mut().for_each(Vec::clear);
                let message = format!("{}: {text}", error.message());
                RunError::Failed(Error::new(error.code(), message))
            }
        }
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        // SAFETY: this is the only reference to the interpreter, which is freed once, here. Its
        // callbacks, which use `state`, end with it.
        unsafe {
            (self.model.api.functions.destroy_compiled)(self.raw.as_ptr());
            drop(Box::from_raw(self.state.as_ptr()));
        }
    }
}

/// Prepares a model to run, with the callbacks of `state`.
fn compile(
    model: &LiteRtModel,
    state: NonNull<RunState>,
    threads: usize,
) -> Result<NonNull<RawCompiledModel>> {
    let api = &model.api;
    let _making = model.making.lock().unwrap_or_else(PoisonError::into_inner);
    let options = CompilationOptions::new(api)?;
    options.add(c"xnnpack", &format!("num_threads = {threads}\n"))?;
    // Messages go into the error of the run (kLiteRtErrorReporterModeBuffer).
    options.add(c"runtime_options_string", "error_reporter_mode = 2\n")?;
    let state = state.as_ptr().cast();
    let mut raw = ptr::null_mut();
    let (environment, create) = (api.environment()?, api.functions.create_compiled);
    // SAFETY: environment, model and options are live; writes one pointer.
    let status = unsafe { create(environment, model.raw.as_ptr(), options.raw, &raw mut raw) };
    api.check("prepare the model; its messages are in the log", status)?;
    let raw = NonNull::new(raw).ok_or_else(|| Error::internal("LiteRT returned no interpreter"))?;
    // SAFETY: the interpreter is live; `state` outlives it.
    let status = unsafe { (api.functions.set_cancellation)(raw.as_ptr(), state, is_cancelled) };
    if let Err(error) = api.check("cancel runs", status) {
        // SAFETY: nothing else refers to the interpreter.
        unsafe { (api.functions.destroy_compiled)(raw.as_ptr()) };
        return Err(error);
    }
    Ok(raw)
}

/// The options of an interpreter, of which the library copies what it needs.
struct CompilationOptions<'a> {
    api: &'a LiteRtApi,
    raw: *mut RawOptions,
}

impl<'a> CompilationOptions<'a> {
    /// Options to run on the CPU.
    fn new(api: &'a LiteRtApi) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is freed in drop.
        api.check("create options", unsafe { (api.functions.create_options)(&raw mut raw) })?;
        let options = CompilationOptions { api, raw };
        // SAFETY: the options are live.
        let status = unsafe { (api.functions.set_accelerators)(raw, CPU) };
        api.check("run on the CPU", status)?;
        Ok(options)
    }

    /// Adds the settings `toml` of a part of the library.
    fn add(&self, part: &CStr, toml: &str) -> Result<()> {
        let toml = CString::new(toml).map_err(|_| Error::internal("a setting with NUL"))?;
        let mut raw = ptr::null_mut();
        let content = toml.into_raw();
        // SAFETY: the library copies the name, and owns the content from now on, which it frees with
        // `free_text`.
        unsafe {
            let create = self.api.functions.create_opaque;
            let status = create(part.as_ptr(), content.cast(), free_text, &raw mut raw);
            if status != OK {
                free_text(content.cast());
            }
            self.api.check("create options", status)?;
            self.api.check("add options", (self.api.functions.add_opaque)(self.raw, raw))
        }
    }
}

impl Drop for CompilationOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` comes from the library and is freed once, here.
        unsafe { (self.api.functions.destroy_options)(self.raw) };
    }
}

unsafe extern "C" fn free_text(text: *mut c_void) {
    // SAFETY: it was made by `CString::into_raw`, and is freed once.
    drop(unsafe { CString::from_raw(text.cast()) });
}

/// A view of the memory of a tensor, for the library.
struct TensorBuffer {
    api: Arc<LiteRtApi>,
    raw: NonNull<RawTensorBuffer>,
}

impl TensorBuffer {
    /// A view of the first `length` bytes of `memory`. Must not outlive it.
    fn new(
        api: &Arc<LiteRtApi>,
        dtype: DType,
        shape: &Shape,
        memory: &mut AlignedVec<u8>,
        length: usize,
    ) -> Result<Self> {
        let dims = shape.dims();
        let rank = u32::try_from(dims.len()).unwrap_or(u32::MAX);
        let mut layout = RawLayout { rank, dims: [0; MAX_RANK], strides: [0; MAX_RANK] };
        if dims.len() > MAX_RANK {
            return Err(Error::invalid(format!("LiteRT takes {MAX_RANK} dimensions, not {rank}")));
        }
        for (place, dim) in layout.dims.iter_mut().zip(dims) {
            *place = i32::try_from(*dim).unwrap_or(i32::MAX);
        }
        let kind = TensorType { element: schema::number_in_api(dtype), layout };
        let mut raw = ptr::null_mut();
        let create = api.functions.create_buffer;
        let address = memory.as_mut_ptr().cast();
        // SAFETY: the memory has `length` bytes, those of inputs `READ_BEHIND` more, and is not freed by the
        // library (no deallocator); writes one pointer.
        let status = unsafe { create(&raw const kind, address, length, ptr::null(), &raw mut raw) };
        api.check("take a tensor", status)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("LiteRT returned no buffer"))?;
        Ok(TensorBuffer { api: Arc::clone(api), raw })
    }
}

impl Drop for TensorBuffer {
    fn drop(&mut self) {
        // SAFETY: this struct owns `raw`, which is freed once, here.
        unsafe { (self.api.functions.destroy_buffer)(self.raw.as_ptr()) };
    }
}

/// Copies a tensor as the library takes it; returns the number of bytes, behind which there are more.
fn copy_in(tensor: &Tensor, memory: &mut AlignedVec<u8>) -> Result<usize> {
    memory.clear();
    match tensor.data() {
        Data::Numeric(buffer) => memory.extend_from_slice(buffer.as_slice()),
        Data::Strings(values) => strings::pack(values, memory)?,
    }
    let length = memory.len();
    memory.resize(length.saturating_add(READ_BEHIND), 0);
    Ok(length)
}

/// Whether the deadline of the run is over.
unsafe extern "C" fn is_cancelled(state: *mut c_void) -> bool {
    // SAFETY: the interpreter passes the state that it was created with, which outlives it.
    let state = unsafe { &*state.cast::<RunState>() };
    state.deadline.get().is_some_and(|deadline| Instant::now() >= deadline)
}
