//! libtorch through the shim `libtensorserve_torch.so`, loaded at run time, behind safe types. This is the only
//! file of the crate with `unsafe` code; the other side of the interface is `shim.cpp`.
//!
//! Invariants of the types here:
//! * one struct owns each pointer from the shim and frees it on drop; that struct holds the [`TorchApi`],
//!   which keeps the libraries loaded;
//! * every call that returns an error goes through [`TorchApi::check`];
//! * inputs are passed without a copy: libtorch reads the tensor's memory during the call only. The shim
//!   copies inputs that the module may write to, and outputs that share memory with an input;
//! * an output tensor is read in place and freed when its last view is dropped.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Once};
use std::time::Duration;

use libloading::Library;
use smallvec::SmallVec;

use super::connection::{self, TorchOpenError, code_of, reason};
use super::types;
use tensorserve_platform::RunOptions;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Buffer, Memory, Shape, Tensor};

/// The revision of the interface, as in `shim.cpp`.
const INTERFACE: u32 = 2;

/// The longest time limit of a run: that of a clock does not end.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Opaque types of the shim, used behind pointers only.
macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] struct $name { _opaque: [u8; 0] })* };
}
pub(crate) use opaque;
opaque!(TsModel, TsOutputs, TsTensor);

/// The error of a shim: `ts_error` and `te_error`.
#[repr(C)]
pub(crate) struct ShimError {
    code: i32,
    text: *mut c_char,
}

/// `ts_view`.
#[repr(C)]
struct TsView {
    data: *const c_void,
    dims: *const i64,
    rank: usize,
    bytes: usize,
    dtype: i32,
}

/// `ts_input`.
#[repr(C)]
struct TsInput {
    tensor: TsView,
    argument: usize,
    key: *const c_char,
}

/// Null on success.
pub(crate) type ShimStatus = *mut ShimError;

macro_rules! functions {
    (prefix = $prefix:literal; $($field:ident : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of the shim.
        struct ShimFunctions {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl ShimFunctions {
            /// Looks the functions up.
            ///
            /// # Safety
            /// The library must be a shim of this [`INTERFACE`].
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the caller promises that the symbols have the types of `shim.cpp`.
                unsafe {
                    Ok(ShimFunctions {
                        $($field: *library.get(concat!($prefix, stringify!($field)).as_bytes())?,)*
                    })
                }
            }
        }
    };
}

pub(crate) use functions;

functions! {
    prefix = "ts_";
    gpus: fn() -> i32;
    free_error: fn(*mut ShimError);
    free_text: fn(*mut c_char);
    load_script: fn(*const c_char, i32, *mut *mut TsModel) -> ShimStatus;
    load_package: fn(*const c_char, *const c_char, usize, i32, *mut *mut TsModel) -> ShimStatus;
    free_model: fn(*mut TsModel);
    describe: fn(*mut TsModel, *mut *mut c_char) -> ShimStatus;
    run: fn(*mut TsModel, *const TsInput, usize, i32, i64, *mut *mut TsOutputs) -> ShimStatus;
    output_count: fn(*const TsOutputs) -> usize;
    output_name: fn(*const TsOutputs, usize) -> *const c_char;
    take_output: fn(*mut TsOutputs, usize, *mut TsView) -> *mut TsTensor;
    free_outputs: fn(*mut TsOutputs);
    free_tensor: fn(*mut TsTensor);
}

/// The open libraries.
pub(crate) struct TorchApi {
    functions: ShimFunctions,
    version: String,
    /// The directory of the libraries.
    folder: PathBuf,
    /// Opens `libtorch.so`, once.
    whole: Once,
    /// Never closed: libtorch leaves threads and exit handlers behind, which would then run in unmapped
    /// memory.
    _libraries: ManuallyDrop<[Library; 2]>,
}

impl TorchApi {
    /// Opens `libtorch_cpu.so` at `path`, and the shim beside it.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>, TorchOpenError> {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let connection = &connection::TORCH;
        let shim_path = connection.shim_of(path)?;
        // SAFETY: loading runs the libraries' initializers. The path comes from the operator (flag,
        // environment, default directories), never from a request, and an operator who names a library
        // there trusts it with the process.
        let library = unsafe { Library::new(path) }.map_err(TorchOpenError::Loader)?;
        let wrong = |why: String| connection.unsupported(&why, path);
        // SAFETY: as above.
        let shim = unsafe { Library::new(&shim_path) }.map_err(|e| {
            wrong(format!("{} does not fit to it ({})", connection.file, reason(&e)))
        })?;
        // SAFETY: the symbols have these types in every revision of the shim, and in every version of
        // libtorch that has them. The text is a constant of the library.
        let (interface, version, built_for, library_is) = unsafe {
            let number =
                |name: &[u8]| shim.get::<unsafe extern "C" fn() -> u32>(name).map(|it| it());
            let text = shim.get::<unsafe extern "C" fn() -> *const c_char>(b"ts_version\0");
            let text = text.map(|it| CStr::from_ptr(it()).to_string_lossy().into_owned());
            let abi = |library: &Library, name: &[u8]| {
                library.get::<unsafe extern "C" fn() -> u64>(name).map(|it| it()).ok()
            };
            (
                number(b"ts_interface\0").unwrap_or(0),
                text.unwrap_or_default(),
                abi(&shim, b"ts_abi\0"),
                abi(&library, b"aoti_torch_abi_version\0"),
            )
        };
        if interface != INTERFACE {
            return Err(wrong(connection.of_another_tensorserve()));
        }
        if built_for.is_none() || library_is.is_some_and(|found| Some(found) != built_for) {
            return Err(wrong(format!(
                "{} was compiled for PyTorch {version}, and this is {}",
                connection.file,
                library_is.map_or("another version".to_owned(), version_of)
            )));
        }
        // SAFETY: the shim is of this interface.
        let functions = unsafe { ShimFunctions::of(&shim) }.map_err(TorchOpenError::Loader)?;
        let _libraries = ManuallyDrop::new([library, shim]);
        Ok(Arc::new(TorchApi { functions, version, folder, whole: Once::new(), _libraries }))
    }

    /// The version of PyTorch, for example `2.13.0`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Whether the library is built for GPUs of NVIDIA.
    pub(crate) fn has_cuda(&self) -> bool {
        self.folder.join("libtorch_cuda.so").is_file()
    }

    /// The number of GPUs that libtorch can use. Starts threads.
    pub(crate) fn gpus(&self) -> i32 {
        self.open_whole();
        // SAFETY: the function takes nothing, and throws nothing.
        unsafe { (self.functions.gpus)() }
    }

    /// Opens `libtorch.so`, which brings the kernels for GPUs, and which the machine code of packages is
    /// linked with. Without it those packages fail to load, with the loader's message.
    fn open_whole(&self) {
        self.whole.call_once(|| {
            // SAFETY: as in `open`.
            match unsafe { Library::new(self.folder.join("libtorch.so")) } {
                Ok(library) => std::mem::forget(library),
                Err(e) => log::warn!("libtorch.so cannot be loaded: {}", reason(&e)),
            }
        });
    }

    /// Turns the error of a call into a result, and frees it.
    fn check(&self, status: ShimStatus) -> Result<()> {
        // SAFETY: the error is that of a call of this shim, and ours.
        match unsafe { taken(status, self.functions.free_error) } {
            Some((code, text)) => Err(Error::new(code, first_line(&text))),
            None => Ok(()),
        }
    }
}

/// The code and the text of the error of a call, which is freed; `None` on success.
///
/// # Safety
/// `status` must be what a shim returned, and belong to the caller, and `free` that shim's function for it.
pub(crate) unsafe fn taken(
    status: ShimStatus,
    free: unsafe extern "C" fn(*mut ShimError),
) -> Option<(Code, String)> {
    let error = NonNull::new(status)?;
    // SAFETY: the caller owns the error. Its text is NUL-terminated or null, and copied before it is freed.
    unsafe {
        let ShimError { code, text } = error.as_ref();
        let copy = match text.is_null() {
            true => String::new(),
            false => CStr::from_ptr(*text).to_string_lossy().into_owned(),
        };
        let code = code_of(*code);
        free(error.as_ptr());
        Some((code, copy))
    }
}

/// The version in the number that libtorch has for it (`TORCH_ABI_VERSION`).
fn version_of(abi: u64) -> String {
    let [major, minor, patch, ..] = abi.to_be_bytes();
    format!("{major}.{minor}.{patch}")
}

/// What libtorch's message says. That of an interpreter begins with the place in the program, and ends with
/// the exception: `RuntimeError: …`.
fn first_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("libtorch gave no reason");
    if !first.starts_with("The following operation failed in the TorchScript interpreter") {
        return first.to_owned();
    }
    let exception = lines.rfind(|line| {
        let name = line.split(':').next().unwrap_or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
        (name.ends_with("Error") || name.ends_with("Exception")) && name.chars().all(is_name)
    });
    exception.unwrap_or(first).to_owned()
}

/// A module in memory. Any number of runs may take place at once.
pub(crate) struct TorchModel {
    model: NonNull<TsModel>,
    api: Arc<TorchApi>,
    /// It was loaded onto a GPU.
    pub(crate) on_gpu: bool,
}

// SAFETY: runs do not change the module, or do what the module's program says, for which libtorch locks;
// the shim's state is written by the load only.
unsafe impl Send for TorchModel {}
// SAFETY: as above.
unsafe impl Sync for TorchModel {}

/// Where an input goes: the number of an argument, and the key in it if that is a dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputRoute {
    pub(crate) argument: usize,
    pub(crate) key: Option<CString>,
}

impl TorchModel {
    /// Loads the TorchScript module at `path`, onto a GPU if one is given.
    pub(crate) fn script(api: &Arc<TorchApi>, path: &Path, gpu: Option<i32>) -> Result<Self> {
        let (path, mut model) = (c_path(path)?, ptr::null_mut());
        // SAFETY: the path is NUL-terminated; the model is written on success.
        let status = unsafe {
            (api.functions.load_script)(path.as_ptr(), gpu.unwrap_or(-1), &raw mut model)
        };
        Self::of(api, status, model, gpu.is_some())
    }

    /// Loads the model `name` of the package at `path`, of which `runners` runs can take place at a time.
    pub(crate) fn package(
        api: &Arc<TorchApi>,
        path: &Path,
        name: &str,
        runners: usize,
        gpu: Option<i32>,
    ) -> Result<Self> {
        api.open_whole();
        let (path, name, mut model) = (c_path(path)?, c_text(name)?, ptr::null_mut());
        // SAFETY: path and name are NUL-terminated; the model is written on success.
        let status = unsafe {
            let gpu = gpu.unwrap_or(-1);
            (api.functions.load_package)(path.as_ptr(), name.as_ptr(), runners, gpu, &raw mut model)
        };
        Self::of(api, status, model, gpu.is_some())
    }

    fn of(
        api: &Arc<TorchApi>,
        status: ShimStatus,
        model: *mut TsModel,
        on_gpu: bool,
    ) -> Result<Self> {
        api.check(status)?;
        let missing = || Error::internal("libtorch returned no module");
        let model = NonNull::new(model).ok_or_else(missing)?;
        Ok(TorchModel { model, api: Arc::clone(api), on_gpu })
    }

    /// What the module declares, as JSON.
    pub(crate) fn describe(&self) -> Result<String> {
        let mut text = ptr::null_mut();
        // SAFETY: the model is alive; the text is written on success, NUL-terminated, and ours to free.
        unsafe {
            self.api.check((self.api.functions.describe)(self.model.as_ptr(), &raw mut text))?;
            if text.is_null() {
                return Err(Error::new(Code::ResourceExhausted, "there is not enough memory"));
            }
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.api.functions.free_text)(text);
            Ok(copy)
        }
    }

    /// Runs the module on `inputs`, of which each goes where its route says. An operation has at most the threads of
    /// `options`; 0 leaves their number to libtorch. Loops of TorchScript end at the timeout.
    ///
    /// # Errors
    /// The first line of libtorch's message.
    pub(crate) fn run(
        &self,
        routes: &[InputRoute],
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<TorchOutputs> {
        let mut arguments: SmallVec<[TsInput; 4]> = SmallVec::new();
        for (route, tensor) in routes.iter().zip(inputs) {
            let Some(dtype) = types::number(tensor.dtype()) else {
                let name = tensor.dtype().python_name();
                return Err(Error::invalid(format!("PyTorch has no tensors of {name}")));
            };
            let (bytes, dims) = (tensor.bytes(), tensor.shape().dims());
            arguments.push(TsInput {
                tensor: TsView {
                    data: bytes.as_ptr().cast(),
                    dims: dims.as_ptr(),
                    rank: dims.len(),
                    bytes: bytes.len(),
                    dtype,
                },
                argument: route.argument,
                key: route.key.as_ref().map_or(ptr::null(), |key| key.as_ptr()),
            });
        }
        let mut outputs = ptr::null_mut();
        let threads = i32::try_from(options.threads).unwrap_or(0);
        let limit = options.timeout.map(|timeout| timeout.min(LONGEST).as_micros());
        let limit = limit.and_then(|micros| i64::try_from(micros).ok()).unwrap_or(-1);
        // SAFETY: the model is alive. Data, dimensions and keys live for the call, and a tensor has as
        // many bytes as its type and shape say. The outputs are written on success.
        let status = unsafe {
            let (first, count) = (arguments.as_ptr(), arguments.len());
            let model = self.model.as_ptr();
            (self.api.functions.run)(model, first, count, threads, limit, &raw mut outputs)
        };
        self.api.check(status)?;
        let missing = || Error::internal("libtorch returned no outputs");
        let outputs = NonNull::new(outputs).ok_or_else(missing)?;
        Ok(TorchOutputs { outputs, api: Arc::clone(&self.api) })
    }
}

impl Drop for TorchModel {
    fn drop(&mut self) {
        // SAFETY: the model is ours, and no run is in progress, because runs borrow it.
        unsafe { (self.api.functions.free_model)(self.model.as_ptr()) }
    }
}

/// The outputs of a run.
pub(crate) struct TorchOutputs {
    outputs: NonNull<TsOutputs>,
    api: Arc<TorchApi>,
}

impl TorchOutputs {
    /// Their number.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the outputs are alive.
        unsafe { (self.api.functions.output_count)(self.outputs.as_ptr()) }
    }

    /// The name of the output number `index`; empty if there is none.
    pub(crate) fn name(&self, index: usize) -> &[u8] {
        // SAFETY: the outputs are alive, and their names live and stay as they are as long. The shim
        // returns a NUL-terminated text for every index.
        unsafe { CStr::from_ptr((self.api.functions.output_name)(self.outputs.as_ptr(), index)) }
            .to_bytes()
    }

    /// Takes the output number `index`, which each call may name once.
    pub(crate) fn take(&mut self, index: usize) -> Result<Tensor> {
        let mut view =
            TsView { data: ptr::null(), dims: ptr::null(), rank: 0, bytes: 0, dtype: -1 };
        // SAFETY: the outputs are alive and borrowed by this call only; the view is written on success.
        let taken = unsafe {
            (self.api.functions.take_output)(self.outputs.as_ptr(), index, &raw mut view)
        };
        let missing = || Error::internal("an output of libtorch is missing");
        let tensor = NonNull::new(taken).ok_or_else(missing)?;
        let memory = TorchOutputMemory {
            tensor,
            data: view.data.cast(),
            length: view.bytes,
            api: Arc::clone(&self.api),
        };
        let dims: &[i64] = match view.rank {
            0 => &[],
            // SAFETY: a tensor has as many dimensions as its rank says; `memory` keeps it alive.
            rank => unsafe { std::slice::from_raw_parts(view.dims, rank) },
        };
        let shape = Shape::new(dims)?;
        let dtype = types::of_number(view.dtype).ok_or_else(|| {
            let text = "an output has a type that is not supported; convert it in the module, for \
                        example with .float()";
            Error::new(Code::Unimplemented, text)
        })?;
        Tensor::numeric(dtype, shape, Buffer::new(Arc::new(memory)))
    }
}

impl Drop for TorchOutputs {
    fn drop(&mut self) {
        // SAFETY: the outputs are ours.
        unsafe { (self.api.functions.free_outputs)(self.outputs.as_ptr()) }
    }
}

/// The memory of an output, which libtorch owns.
struct TorchOutputMemory {
    tensor: NonNull<TsTensor>,
    data: *const u8,
    length: usize,
    api: Arc<TorchApi>,
}

// SAFETY: nothing writes to the memory of an output, and it may be freed on any thread.
unsafe impl Send for TorchOutputMemory {}
// SAFETY: as above.
unsafe impl Sync for TorchOutputMemory {}

impl Memory for TorchOutputMemory {
    fn bytes(&self) -> &[u8] {
        if self.length == 0 || self.data.is_null() {
            return &[];
        }
        // SAFETY: the tensor is contiguous, in the memory of the host, and has `length` bytes; it lives as long as this
        // does.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

impl Drop for TorchOutputMemory {
    fn drop(&mut self) {
        // SAFETY: the tensor is ours.
        unsafe { (self.api.functions.free_tensor)(self.tensor.as_ptr()) }
    }
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} contains a NUL character")))
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid("the model's path contains a NUL character"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_interpreter_is_its_exception() {
        let text = "The following operation failed in the TorchScript interpreter.\nTraceback of \
                    TorchScript, serialized code (most recent call last):\n  File \"m.py\", line 3\n\
                    RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x5 and 4x3)\n\n";
        let expected = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x5 and 4x3)";
        assert_eq!(first_line(text), expected);
        assert_eq!(
            first_line("forward() is missing value\nDeclaration"),
            "forward() is missing value"
        );
        assert_eq!(first_line(""), "libtorch gave no reason");
    }

    #[test]
    fn versions_are_in_the_number_of_the_interface() {
        assert_eq!(version_of(0x020d_0000_0000_0000), "2.13.0");
    }
}
