//! libexecutorch through the shim `libtensorserve_executorch.so`, loaded at run time, behind safe types. The
//! other side of the interface is `shim.cpp` beside this file.
//!
//! Invariants of the types here:
//! * one struct owns each pointer from the shim and frees it on drop; that struct holds what the pointer refers
//!   to: a method its program, a program its file's bytes and the [`ExecuTorchApi`], which keeps the libraries
//!   loaded;
//! * every call that returns an error goes through [`ExecuTorchApi::check`];
//! * a method is used by one thread at a time: its functions take `&mut self`;
//! * inputs are read during a run only; outputs are copied by the shim before the next run.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libloading::Library;
use smallvec::SmallVec;

use crate::connection::{self, TorchOpenError, reason};
use crate::ffi::{ShimError, ShimStatus, functions, opaque, taken};
use crate::types;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{AlignedVec, Buffer, Shape, Tensor, aligned_vec};

/// The revision of the interface, as in `shim.cpp`.
const INTERFACE: u32 = 1;

opaque!(TeProgram, TeMethod);

/// `te_view`.
#[repr(C)]
struct TeView {
    data: *const c_void,
    dims: *const i32,
    rank: usize,
    bytes: usize,
    dtype: i32,
}

functions! {
    prefix = "te_";
    start: fn();
    free_error: fn(*mut ShimError);
    open: fn(*const c_void, usize, *mut *mut TeProgram) -> ShimStatus;
    close: fn(*mut TeProgram);
    load: fn(*const TeProgram, *const c_char, i32, *mut *mut TeMethod) -> ShimStatus;
    unload: fn(*mut TeMethod);
    run: fn(*mut TeMethod, *const TeView, *const usize, usize) -> ShimStatus;
    output: fn(*mut TeMethod, usize, *mut TeView) -> ShimStatus;
    copy: fn(*mut TeMethod, usize, *mut c_void) -> ShimStatus;
}

/// The open libraries.
pub(crate) struct ExecuTorchApi {
    functions: ShimFunctions,
    /// Never closed: libexecutorch's threads may outlive the last program.
    _libraries: ManuallyDrop<[Library; 2]>,
}

impl ExecuTorchApi {
    /// Opens `libexecutorch.so` at `path`, and the shim beside it, which is linked with the libraries of the
    /// kernels.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>, TorchOpenError> {
        let connection = &connection::EXECUTORCH;
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
        // SAFETY: the symbols have these types in every revision of the shim.
        let (interface, built_for) = unsafe {
            let interface = shim.get::<unsafe extern "C" fn() -> u32>(b"te_interface\0");
            let size = shim.get::<unsafe extern "C" fn() -> u64>(b"te_library_size\0");
            (interface.map_or(0, |it| it()), size.map_or(0, |it| it()))
        };
        if interface != INTERFACE {
            return Err(wrong(connection.of_another_tensorserve()));
        }
        if std::fs::metadata(path).is_ok_and(|found| found.len() != built_for) {
            return Err(wrong(format!(
                "{} was compiled for another version of it",
                connection.file
            )));
        }
        // SAFETY: the shim is of this interface.
        let functions = unsafe { ShimFunctions::of(&shim) }.map_err(TorchOpenError::Loader)?;
        // SAFETY: this is the first call, once for each time that the library is opened.
        unsafe { (functions.start)() };
        let _libraries = ManuallyDrop::new([library, shim]);
        Ok(Arc::new(ExecuTorchApi { functions, _libraries }))
    }

    /// Turns the error of a call into a result, and frees it.
    fn check(&self, status: ShimStatus) -> Result<()> {
        // SAFETY: the error is that of a call of this shim, and ours.
        let Some((code, text)) = (unsafe { taken(status, self.functions.free_error) }) else {
            return Ok(());
        };
        let text = text.lines().next().unwrap_or("libexecutorch gave no reason").trim().to_owned();
        Err(Error::new(code, text))
    }
}

/// A program, which the library has verified.
pub(crate) struct ExecuTorchProgram {
    program: NonNull<TeProgram>,
    /// Read by the program.
    _bytes: AlignedVec<u8>,
    api: Arc<ExecuTorchApi>,
}

// SAFETY: a program is not changed once it is open.
unsafe impl Send for ExecuTorchProgram {}
// SAFETY: as above.
unsafe impl Sync for ExecuTorchProgram {}

impl ExecuTorchProgram {
    /// Opens the program with this content.
    pub(crate) fn open(api: &Arc<ExecuTorchApi>, content: Vec<u8>) -> Result<Self> {
        let mut bytes: AlignedVec<u8> = aligned_vec(content.len());
        bytes.extend_from_slice(&content);
        drop(content);
        let mut program = ptr::null_mut();
        // SAFETY: the bytes are aligned, and live as long as the program, which owns them; they do not move
        // with the vector. The program is written on success.
        unsafe {
            let open = api.functions.open;
            api.check(open(bytes.as_ptr().cast(), bytes.len(), &raw mut program))?;
        }
        let missing = || Error::internal("libexecutorch returned no program");
        let program = NonNull::new(program).ok_or_else(missing)?;
        Ok(ExecuTorchProgram { program, _bytes: bytes, api: Arc::clone(api) })
    }
}

impl Drop for ExecuTorchProgram {
    fn drop(&mut self) {
        // SAFETY: the program is ours, and its methods hold it: none is left.
        unsafe { (self.api.functions.close)(self.program.as_ptr()) }
    }
}

/// A method, with memory for one run at a time.
pub(crate) struct LoadedMethod {
    method: NonNull<TeMethod>,
    program: Arc<ExecuTorchProgram>,
}

// SAFETY: a method is not bound to a thread, and has functions for `&mut self` only.
unsafe impl Send for LoadedMethod {}

impl LoadedMethod {
    /// Loads the method `name`. `is_single` keeps its operations on the thread of the run.
    pub(crate) fn load(
        program: &Arc<ExecuTorchProgram>,
        name: &str,
        is_single: bool,
    ) -> Result<Self> {
        let name = CString::new(name)
            .map_err(|_| Error::invalid(format!("{name:?} contains a NUL character")))?;
        let mut method = ptr::null_mut();
        // SAFETY: the program is alive, the name is NUL-terminated; the method is written on success.
        unsafe {
            let (load, raw) = (program.api.functions.load, program.program.as_ptr());
            let status = load(raw, name.as_ptr(), i32::from(is_single), &raw mut method);
            program.api.check(status)?;
        }
        let missing = || Error::internal("libexecutorch returned no method");
        let method = NonNull::new(method).ok_or_else(missing)?;
        Ok(LoadedMethod { method, program: Arc::clone(program) })
    }

    /// Runs the method on `inputs`, of which each has its number in `places`.
    ///
    /// # Errors
    /// What libexecutorch logs.
    pub(crate) fn run(&mut self, inputs: &[Tensor], places: &[usize]) -> Result<()> {
        let mut shapes: SmallVec<[SmallVec<[i32; 6]>; 4]> = SmallVec::new();
        for tensor in inputs {
            let dims = tensor.shape().dims().iter().map(|size| i32::try_from(*size));
            let dims: Result<_, _> = dims.collect();
            shapes.push(dims.map_err(|_| Error::invalid("an input is too large"))?);
        }
        let mut views: SmallVec<[TeView; 4]> = SmallVec::new();
        for (tensor, dims) in inputs.iter().zip(&shapes) {
            let Some(dtype) = types::number(tensor.dtype()) else {
                let name = tensor.dtype().python_name();
                return Err(Error::invalid(format!("ExecuTorch has no tensors of {name}")));
            };
            let bytes = tensor.bytes();
            views.push(TeView {
                data: bytes.as_ptr().cast(),
                dims: dims.as_ptr(),
                rank: dims.len(),
                bytes: bytes.len(),
                dtype,
            });
        }
        let count = views.len().min(places.len());
        let api = &self.program.api;
        // SAFETY: the method is ours and in no other run. Data and dimensions live for the call, there are
        // `count` of both, and a tensor has as many bytes as its type and shape say.
        let status = unsafe {
            (api.functions.run)(self.method.as_ptr(), views.as_ptr(), places.as_ptr(), count)
        };
        api.check(status)
    }

    /// Copies the output number `index` of the last run.
    pub(crate) fn output(&mut self, index: usize) -> Result<Tensor> {
        let mut view =
            TeView { data: ptr::null(), dims: ptr::null(), rank: 0, bytes: 0, dtype: -1 };
        let api = &self.program.api;
        // SAFETY: the method is ours and in no run; the view is written on success.
        unsafe {
            api.check((api.functions.output)(self.method.as_ptr(), index, &raw mut view))?;
        }
        let dims: Vec<i64> = match view.rank {
            0 => Vec::new(),
            // SAFETY: the view has as many dimensions as its rank says, until the next run.
            rank => unsafe { std::slice::from_raw_parts(view.dims, rank) }
                .iter()
                .map(|size| i64::from(*size))
                .collect(),
        };
        let dtype = types::of_number(view.dtype).ok_or_else(|| {
            Error::new(Code::Unimplemented, "an output has a type that is not supported")
        })?;
        let mut bytes: AlignedVec<u8> = aligned_vec(view.bytes);
        bytes.resize(view.bytes, 0);
        // SAFETY: as above; the memory has as many bytes as the output.
        unsafe {
            let target = bytes.as_mut_ptr().cast();
            api.check((api.functions.copy)(self.method.as_ptr(), index, target))?;
        }
        Tensor::numeric(dtype, Shape::new(&dims)?, Buffer::new(Arc::new(bytes)))
    }
}

impl Drop for LoadedMethod {
    fn drop(&mut self) {
        // SAFETY: the method is ours, and in no run, which would borrow it.
        unsafe { (self.program.api.functions.unload)(self.method.as_ptr()) }
    }
}
