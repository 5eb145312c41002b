//! OpenVINO's C API, loaded at run time, behind safe types. This is the only file of the crate with `unsafe`
//! code. It is long for that reason: all that its soundness depends on is in one place.
//!
//! Invariants of the types here:
//! * one struct owns each pointer from the library and frees it on drop; that struct holds the [`OpenVinoApi`], which
//!   keeps the library loaded;
//! * every call that returns a status goes through [`OpenVinoApi::check`];
//! * a request is used by one thread at a time: its functions take `&mut self`;
//! * inputs are copied into memory of the library, and outputs out of it, after their types and sizes were checked.
//!
//! Source: the headers in `openvino/c` of OpenVINO 2026.4.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use libloading::Library;
use smallvec::SmallVec;

use super::types;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Buffer, DType, Data, Shape, Tensor, TensorSpec, aligned_vec};

/// Opaque types of the library, used behind pointers only.
macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] struct $name { _opaque: [u8; 0] })* };
}
opaque!(RawCore, RawModel, RawCompiled, RawRequest, RawPort, RawTensor);

/// `ov_status_e`.
type OvStatus = c_int;
const OK: OvStatus = 0;
const NOT_IMPLEMENTED: OvStatus = -2;
const RESULT_NOT_READY: OvStatus = -9;

/// `ov_version_t`.
#[repr(C)]
struct RawVersion {
    build: *const c_char,
    description: *const c_char,
}

/// `ov_shape_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawShape {
    rank: i64,
    dims: *mut i64,
}

/// `ov_dimension_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawDimension {
    min: i64,
    max: i64,
}

impl RawDimension {
    fn of(size: i64) -> Self {
        RawDimension { min: size, max: size }
    }
}

/// `ov_partial_shape_t`.
#[repr(C)]
struct RawPartialShape {
    rank: RawDimension,
    dims: *mut RawDimension,
}

macro_rules! functions {
    ($($field:ident = $symbol:literal : fn($($arg:ty),* $(; $variadic:tt)?) $(-> $ret:ty)?;)*) => {
        /// The functions that are called here.
        struct OpenVinoFunctions {
            $($field: unsafe extern "C" fn($($arg),* $(, $variadic)?) $(-> $ret)?,)*
        }

        impl OpenVinoFunctions {
            /// Looks the functions up.
            ///
            /// # Safety
            /// The library must be OpenVINO's C library.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the symbols have these signatures in the headers of the library.
                unsafe {
                    Ok(OpenVinoFunctions {
                        $($field: *library
                            .get::<unsafe extern "C" fn($($arg),* $(, $variadic)?) $(-> $ret)?>(
                                concat!($symbol, "\0").as_bytes()
                            )?,)*
                    })
                }
            }
        }
    };
}

functions! {
    version = "ov_get_openvino_version": fn(*mut RawVersion) -> OvStatus;
    free_version = "ov_version_free": fn(*mut RawVersion);
    last_error = "ov_get_last_err_msg": fn() -> *const c_char;
    free_text = "ov_free": fn(*const c_char);
    create_core = "ov_core_create": fn(*mut *mut RawCore) -> OvStatus;
    free_core = "ov_core_free": fn(*mut RawCore);
    read_model = "ov_core_read_model_from_memory_buffer": fn(
        *const RawCore, *const c_char, usize, *const RawTensor, *mut *mut RawModel
    ) -> OvStatus;
    read_file = "ov_core_read_model": fn(
        *const RawCore, *const c_char, *const c_char, *mut *mut RawModel
    ) -> OvStatus;
    reshape = "ov_model_reshape": fn(
        *const RawModel, *const *const c_char, *const RawPartialShape, usize
    ) -> OvStatus;
    free_model = "ov_model_free": fn(*mut RawModel);
    compile = "ov_core_compile_model": fn(
        *const RawCore, *const RawModel, *const c_char, usize, *mut *mut RawCompiled; ...
    ) -> OvStatus;
    free_compiled = "ov_compiled_model_free": fn(*mut RawCompiled);
    count_inputs = "ov_compiled_model_inputs_size": fn(*const RawCompiled, *mut usize) -> OvStatus;
    count_outputs = "ov_compiled_model_outputs_size": fn(*const RawCompiled, *mut usize) -> OvStatus;
    input = "ov_compiled_model_input_by_name":
        fn(*const RawCompiled, *const c_char, *mut *mut RawPort) -> OvStatus;
    output = "ov_compiled_model_output_by_name":
        fn(*const RawCompiled, *const c_char, *mut *mut RawPort) -> OvStatus;
    port_type = "ov_port_get_element_type": fn(*const RawPort, *mut u32) -> OvStatus;
    free_port = "ov_output_const_port_free": fn(*mut RawPort);
    create_request = "ov_compiled_model_create_infer_request":
        fn(*const RawCompiled, *mut *mut RawRequest) -> OvStatus;
    free_request = "ov_infer_request_free": fn(*mut RawRequest);
    tensor_of = "ov_infer_request_get_tensor_by_const_port":
        fn(*const RawRequest, *const RawPort, *mut *mut RawTensor) -> OvStatus;
    infer = "ov_infer_request_infer": fn(*mut RawRequest) -> OvStatus;
    start = "ov_infer_request_start_async": fn(*mut RawRequest) -> OvStatus;
    wait_for = "ov_infer_request_wait_for": fn(*mut RawRequest, i64) -> OvStatus;
    wait = "ov_infer_request_wait": fn(*mut RawRequest) -> OvStatus;
    cancel = "ov_infer_request_cancel": fn(*mut RawRequest) -> OvStatus;
    create_tensor = "ov_tensor_create": fn(u32, RawShape, *mut *mut RawTensor) -> OvStatus;
    view_tensor = "ov_tensor_create_from_host_ptr":
        fn(u32, RawShape, *mut c_void, *mut *mut RawTensor) -> OvStatus;
    set_shape = "ov_tensor_set_shape": fn(*mut RawTensor, RawShape) -> OvStatus;
    shape = "ov_tensor_get_shape": fn(*const RawTensor, *mut RawShape) -> OvStatus;
    free_shape = "ov_shape_free": fn(*mut RawShape) -> OvStatus;
    tensor_type = "ov_tensor_get_element_type": fn(*const RawTensor, *mut u32) -> OvStatus;
    byte_size = "ov_tensor_get_byte_size": fn(*const RawTensor, *mut usize) -> OvStatus;
    data = "ov_tensor_data": fn(*const RawTensor, *mut *mut c_void) -> OvStatus;
    free_tensor = "ov_tensor_free": fn(*mut RawTensor);
}

/// The library.
pub(super) struct OpenVinoApi {
    functions: OpenVinoFunctions,
    version: String,
    /// Never closed: its threads may outlive the last model.
    _library: ManuallyDrop<Library>,
}

impl OpenVinoApi {
    /// Opens the library at `path`.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, libloading::Error> {
        // SAFETY: loading runs the library's initializers. The path comes from the operator (flag, environment,
        // default directories), never from a request, and an operator who names a library there trusts it with the
        // process.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: a library with all of these symbols is OpenVINO's C library.
        let functions = unsafe { OpenVinoFunctions::of(&library) }?;
        let version = version(&functions);
        Ok(Arc::new(OpenVinoApi { functions, version, _library: ManuallyDrop::new(library) }))
    }

    /// Its version, `2026.4.1`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Whether the library gives the numbers of types the meaning that they have here: another one would read and
    /// write beyond tensors.
    pub(super) fn check_types(self: &Arc<Self>) -> Result<()> {
        const ELEMENTS: i64 = 8;
        let mut dims = [ELEMENTS];
        for (dtype, number) in types::numbers() {
            let shape = RawShape { rank: 1, dims: dims.as_mut_ptr() };
            let mut raw = ptr::null_mut();
            // SAFETY: the shape is live during the call, which copies it; writes one pointer.
            let status = unsafe { (self.functions.create_tensor)(number, shape, &raw mut raw) };
            self.check("create a tensor", status)?;
            let tensor = OvTensor::of(self, raw)?;
            if Some(tensor.byte_size()?) != dtype.size().map(|size| size * 8) {
                return Err(Error::unavailable(format!(
                    "OpenVINO {} has other numbers of types than this server knows (that of {dtype:?})",
                    self.version
                )));
            }
        }
        Ok(())
    }

    /// Turns the status of a call, which was to do `what`, into a result.
    fn check(&self, what: &str, status: OvStatus) -> Result<()> {
        let code = match status {
            OK => return Ok(()),
            NOT_IMPLEMENTED => Code::Unimplemented,
            _ => Code::Unknown,
        };
        // SAFETY: takes nothing; returns a string of the caller that ends with NUL, or none.
        let text = unsafe {
            let raw = (self.functions.last_error)();
            let text = raw.as_ref().map(|text| CStr::from_ptr(text).to_string_lossy().into_owned());
            if !raw.is_null() {
                (self.functions.free_text)(raw);
            }
            text.unwrap_or_default()
        };
        let text = match told(&text) {
            text if text.is_empty() => format!("status {status}"),
            text => text,
        };
        Err(Error::new(code, format!("OpenVINO cannot {what}: {text}")))
    }
}

/// The version of the library, without what follows the number.
fn version(functions: &OpenVinoFunctions) -> String {
    let mut raw = RawVersion { build: ptr::null(), description: ptr::null() };
    // SAFETY: writes two pointers to strings, which are freed after they were copied.
    let build = unsafe {
        if (functions.version)(&raw mut raw) != OK {
            return String::new();
        }
        let build =
            raw.build.as_ref().map(|build| CStr::from_ptr(build).to_string_lossy().into_owned());
        (functions.free_version)(&raw mut raw);
        build.unwrap_or_default()
    };
    build.split('-').next().unwrap_or_default().to_owned()
}

/// A message without the places in the library's source, which say nothing to its users.
fn told(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let is_place = |line: &str| line.starts_with("Exception from ") || line.is_empty();
    let lines =
        lines.filter(|line| !is_place(line)).map(|line| match line.split_once("' failed at ") {
            Some((checked, _)) => format!("{checked}' failed"),
            None => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("; ")
}

/// A tensor of the library.
struct OvTensor {
    api: Arc<OpenVinoApi>,
    raw: NonNull<RawTensor>,
}

impl OvTensor {
    fn of(api: &Arc<OpenVinoApi>, raw: *mut RawTensor) -> Result<Self> {
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO returned no tensor"))?;
        Ok(OvTensor { api: Arc::clone(api), raw })
    }

    fn byte_size(&self) -> Result<usize> {
        let mut size = 0;
        // SAFETY: the tensor is live; writes one number.
        let status = unsafe { (self.api.functions.byte_size)(self.raw.as_ptr(), &raw mut size) };
        self.api.check("tell the size of a tensor", status)?;
        Ok(size)
    }

    fn check_type(&self, dtype: DType) -> Result<()> {
        let mut number = 0;
        // SAFETY: the tensor is live; writes one number.
        let status =
            unsafe { (self.api.functions.tensor_type)(self.raw.as_ptr(), &raw mut number) };
        self.api.check("tell the type of a tensor", status)?;
        match types::number(dtype) == Some(number) {
            true => Ok(()),
            false => Err(Error::internal(format!(
                "OpenVINO has a tensor of type {number} where the model declares {dtype:?}"
            ))),
        }
    }

    fn shape(&self) -> Result<Shape> {
        let mut raw = RawShape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the tensor is live; writes a shape, whose dimensions are freed after they were copied.
        unsafe {
            let status = (self.api.functions.shape)(self.raw.as_ptr(), &raw mut raw);
            self.api.check("tell the shape of a tensor", status)?;
            let rank = usize::try_from(raw.rank).unwrap_or(0);
            let dims = match raw.dims.is_null() {
                true => &[],
                false => slice::from_raw_parts(raw.dims, rank),
            };
            let shape = Shape::new(dims);
            (self.api.functions.free_shape)(&raw mut raw);
            shape
        }
    }

    /// Its memory, of so many bytes.
    fn address(&self) -> Result<*mut u8> {
        let mut address = ptr::null_mut();
        // SAFETY: the tensor is live; writes one pointer.
        let status = unsafe { (self.api.functions.data)(self.raw.as_ptr(), &raw mut address) };
        self.api.check("give the memory of a tensor", status)?;
        Ok(address.cast())
    }

    /// Gives it the shape and the content of `tensor`.
    fn fill(&mut self, tensor: &Tensor) -> Result<()> {
        let Data::Numeric(buffer) = tensor.data() else {
            return Err(Error::internal("OpenVINO takes no texts"));
        };
        self.check_type(tensor.dtype())?;
        let mut dims: SmallVec<[i64; 8]> = SmallVec::from_slice(tensor.shape().dims());
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let shape = RawShape { rank, dims: dims.as_mut_ptr() };
        // SAFETY: the tensor is live; the shape is live during the call, which copies it.
        let status = unsafe { (self.api.functions.set_shape)(self.raw.as_ptr(), shape) };
        self.api.check("take the shape of an input", status)?;
        let (bytes, length) = (buffer.as_slice(), self.byte_size()?);
        if bytes.len() != length {
            let given = bytes.len();
            let why = format!("OpenVINO has room for {length} bytes of an input that has {given}");
            return Err(Error::internal(why));
        }
        // SAFETY: the memory has `length` bytes, as many as `bytes`; it is the library's and does not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.address()?, length) };
        Ok(())
    }

    /// A copy.
    fn tensor(&self, dtype: DType) -> Result<Tensor> {
        self.check_type(dtype)?;
        let (shape, length) = (self.shape()?, self.byte_size()?);
        let mut content = aligned_vec(length);
        if length > 0 {
            // SAFETY: the memory has `length` bytes, which are not changed meanwhile: the request is not running.
            content.extend_from_slice(unsafe { slice::from_raw_parts(self.address()?, length) });
        }
        Tensor::numeric(dtype, shape, Buffer::new(Arc::new(content)))
    }
}

impl Drop for OvTensor {
    fn drop(&mut self) {
        // SAFETY: this struct owns `raw`, which is freed once, here.
        unsafe { (self.api.functions.free_tensor)(self.raw.as_ptr()) };
    }
}

/// Where a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortPlace {
    Input,
    Output,
}

/// An input or output of a compiled model.
pub(super) struct OvPort {
    api: Arc<OpenVinoApi>,
    raw: NonNull<RawPort>,
    dtype: DType,
}

// SAFETY: a port is never changed; the library only reads it.
unsafe impl Send for OvPort {}
// SAFETY: as above.
unsafe impl Sync for OvPort {}

impl Drop for OvPort {
    fn drop(&mut self) {
        // SAFETY: this struct owns `raw`, which is freed once, here.
        unsafe { (self.api.functions.free_port)(self.raw.as_ptr()) };
    }
}

/// Where the library reads a model.
#[derive(Clone, Copy)]
pub(super) enum ModelGraph<'m> {
    /// A graph of its own format.
    Text(&'m str),
    /// The directory of a SavedModel, which has its weights.
    SavedModel(&'m Path),
}

/// What prepares models.
pub(super) struct OvCore {
    api: Arc<OpenVinoApi>,
    raw: NonNull<RawCore>,
}

// SAFETY: the library lets any thread use a core, also at the same time.
unsafe impl Send for OvCore {}
// SAFETY: as above.
unsafe impl Sync for OvCore {}

impl OvCore {
    pub(super) fn new(api: &Arc<OpenVinoApi>) -> Result<Arc<Self>> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        api.check("start", unsafe { (api.functions.create_core)(&raw mut raw) })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO returned no core"))?;
        Ok(Arc::new(OvCore { api: Arc::clone(api), raw }))
    }
}

impl Drop for OvCore {
    fn drop(&mut self) {
        // SAFETY: models hold the core, so that none is left. It is freed once, here.
        unsafe { (self.api.functions.free_core)(self.raw.as_ptr()) };
    }
}

/// The only shape of an input, which the library finds by this name.
pub(super) struct FixedShape<'m> {
    pub(super) tensor_name: &'m str,
    pub(super) shape: &'m Shape,
}

/// A model that is ready to run.
pub(super) struct CompiledModel {
    api: Arc<OpenVinoApi>,
    raw: NonNull<RawCompiled>,
    _core: Arc<OvCore>,
    streams: usize,
    /// Constants are not copied where they need no other form. The view of the library goes first.
    view: Option<OvTensor>,
    _weights: Vec<u8>,
}

// SAFETY: the library lets any thread create requests of a compiled model, also at the same time.
unsafe impl Send for CompiledModel {}
// SAFETY: as above.
unsafe impl Sync for CompiledModel {}

impl CompiledModel {
    /// Prepares a model, with `threads` threads for a run, and as many runs at a time as use all cores; for inputs of
    /// these shapes only, if there are any.
    pub(super) fn new(
        core: &Arc<OvCore>,
        graph: ModelGraph<'_>,
        mut weights: Vec<u8>,
        threads: usize,
        shapes: &[FixedShape<'_>],
    ) -> Result<Self> {
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let streams = (cores / threads.max(1)).max(1);
        let view = weights_view(&core.api, &mut weights)?;
        let model = OvModel::read(core, graph, view.as_ref())?;
        if !shapes.is_empty() {
            model.reshape(shapes)?;
        }
        let raw = model.compile(threads, streams)?;
        let (api, _core) = (Arc::clone(&core.api), Arc::clone(core));
        Ok(CompiledModel { api, raw, _core, streams, view, _weights: weights })
    }

    /// The most runs at a time.
    pub(super) fn streams(&self) -> usize {
        self.streams
    }

    /// Whether it has so many inputs or outputs.
    pub(super) fn check_count(&self, place: PortPlace, count: usize) -> Result<()> {
        let of = match place {
            PortPlace::Input => self.api.functions.count_inputs,
            PortPlace::Output => self.api.functions.count_outputs,
        };
        let mut found = 0;
        // SAFETY: the model is live; writes one number.
        let status = unsafe { of(self.raw.as_ptr(), &raw mut found) };
        self.api.check("count the ports of the model", status)?;
        match found == count {
            true => Ok(()),
            false => Err(Error::damaged(format!(
                "OpenVINO finds {found} ports of kind {place:?} in the model, whose file declares {count}"
            ))),
        }
    }

    /// The input or output that the files declare as `declared`.
    pub(super) fn port(&self, place: PortPlace, declared: &TensorSpec) -> Result<OvPort> {
        let find = match place {
            PortPlace::Input => self.api.functions.input,
            PortPlace::Output => self.api.functions.output,
        };
        let alias = &declared.alias;
        let name = CString::new(declared.tensor_name.as_str())
            .map_err(|_| Error::damaged(format!("the name {alias:?} has a NUL")))?;
        let mut raw = ptr::null_mut();
        // SAFETY: the model and the name are live; writes one pointer.
        let status = unsafe { find(self.raw.as_ptr(), name.as_ptr(), &raw mut raw) };
        self.api.check(&format!("find {alias:?}"), status)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO returned no port"))?;
        let dtype =
            declared.dtype().ok_or_else(|| Error::damaged(format!("{alias:?} has no type")))?;
        let port = OvPort { api: Arc::clone(&self.api), raw, dtype };
        let mut number = 0;
        // SAFETY: the port is live; writes one number.
        let status = unsafe { (self.api.functions.port_type)(raw.as_ptr(), &raw mut number) };
        self.api.check(&format!("tell the type of {alias:?}"), status)?;
        match types::number(dtype) == Some(number) {
            true => Ok(port),
            false => Err(Error::damaged(format!(
                "{alias:?} is declared as {dtype:?}, and is of type {number} for OpenVINO"
            ))),
        }
    }

    /// A request, which runs the model.
    pub(super) fn request(
        self: &Arc<Self>,
        inputs: &Arc<[OvPort]>,
        outputs: &Arc<[OvPort]>,
    ) -> Result<OvRequest> {
        let mut raw = ptr::null_mut();
        let create = self.api.functions.create_request;
        // SAFETY: the model is live; writes one pointer.
        self.api.check("make a request", unsafe { create(self.raw.as_ptr(), &raw mut raw) })?;
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO returned no request"))?;
        Ok(OvRequest {
            raw,
            inputs: Arc::clone(inputs),
            outputs: Arc::clone(outputs),
            model: Arc::clone(self),
        })
    }
}

impl Drop for CompiledModel {
    fn drop(&mut self) {
        // SAFETY: requests hold the model, so that none is left. It is freed once, here, and the constants after it.
        unsafe { (self.api.functions.free_compiled)(self.raw.as_ptr()) };
        self.view = None;
    }
}

/// A tensor of the library over `weights`; none for none.
fn weights_view(api: &Arc<OpenVinoApi>, weights: &mut [u8]) -> Result<Option<OvTensor>> {
    if weights.is_empty() {
        return Ok(None);
    }
    let mut dims = [i64::try_from(weights.len()).unwrap_or(i64::MAX)];
    let shape = RawShape { rank: 1, dims: dims.as_mut_ptr() };
    let bytes = types::number(DType::UInt8).unwrap_or_default();
    let (create, address) = (api.functions.view_tensor, weights.as_mut_ptr().cast());
    let mut raw = ptr::null_mut();
    // SAFETY: the shape is live during the call, which copies it. The memory has as many bytes, and whoever has the
    // view keeps it; writes one pointer.
    api.check("take the weights", unsafe { create(bytes, shape, address, &raw mut raw) })?;
    OvTensor::of(api, raw).map(Some)
}

/// A model that is not prepared yet.
struct OvModel<'c> {
    core: &'c OvCore,
    raw: *mut RawModel,
}

impl<'c> OvModel<'c> {
    fn read(core: &'c OvCore, graph: ModelGraph<'_>, weights: Option<&OvTensor>) -> Result<Self> {
        let (functions, from) = (&core.api.functions, core.raw.as_ptr());
        let weights = weights.map_or(ptr::null(), |tensor| tensor.raw.as_ptr().cast_const());
        let mut raw = ptr::null_mut();
        let status = match graph {
            ModelGraph::Text(text) => {
                let (start, length) = (text.as_ptr().cast(), text.len());
                // SAFETY: the core, the text and the weights are live; the weights outlive the model; writes one pointer.
                unsafe { (functions.read_model)(from, start, length, weights, &raw mut raw) }
            }
            ModelGraph::SavedModel(folder) => {
                let folder = CString::new(folder.as_os_str().as_encoded_bytes())
                    .map_err(|_| Error::invalid("the path of the model has a NUL"))?;
                // SAFETY: the core and the path are live; no second path is given; writes one pointer.
                unsafe { (functions.read_file)(from, folder.as_ptr(), ptr::null(), &raw mut raw) }
            }
        };
        core.api.check("read the model", status)?;
        Ok(OvModel { core, raw })
    }

    /// Lets it take inputs of these shapes only.
    fn reshape(&self, shapes: &[FixedShape<'_>]) -> Result<()> {
        let texts: Vec<CString> = shapes
            .iter()
            .map(|fixed| CString::new(fixed.tensor_name))
            .collect::<Result<_, _>>()
            .map_err(|_| Error::damaged("the name of an input has a NUL"))?;
        let names: Vec<*const c_char> = texts.iter().map(|name| name.as_ptr()).collect();
        let sizes = shapes.iter().map(|fixed| fixed.shape.dims());
        let mut dims: Vec<Vec<RawDimension>> =
            sizes.map(|sizes| sizes.iter().map(|size| RawDimension::of(*size)).collect()).collect();
        let shapes: Vec<RawPartialShape> = dims
            .iter_mut()
            .map(|dims| RawPartialShape {
                rank: RawDimension::of(i64::try_from(dims.len()).unwrap_or(i64::MAX)),
                dims: dims.as_mut_ptr(),
            })
            .collect();
        let (names, given) = (names.as_ptr(), shapes.as_ptr());
        // SAFETY: the model, the names and the shapes, with their sizes, are live during the call, which copies them; there
        // are as many of each as it is told.
        let status =
            unsafe { (self.core.api.functions.reshape)(self.raw, names, given, shapes.len()) };
        self.core.api.check("fix the shapes of the model", status)
    }

    /// Prepares it to run.
    fn compile(&self, threads: usize, streams: usize) -> Result<NonNull<RawCompiled>> {
        let number = |number: usize| CString::new(number.to_string()).unwrap_or_default();
        let (all, streams) = (number(threads.saturating_mul(streams)), number(streams));
        let mut raw = ptr::null_mut();
        // SAFETY: the core and the model are live. Ten strings that end with NUL follow, as the number says: keys, each with
        // its value. Writes one pointer.
        let status = unsafe {
            (self.core.api.functions.compile)(
                self.core.raw.as_ptr(),
                self.raw,
                c"CPU".as_ptr(),
                10,
                &raw mut raw,
                // Else processors with bfloat16 compute with that.
                c"INFERENCE_PRECISION_HINT".as_ptr(),
                c"f32".as_ptr(),
                c"EXECUTION_MODE_HINT".as_ptr(),
                c"ACCURACY".as_ptr(),
                // Else two processes would use the same cores.
                c"ENABLE_CPU_PINNING".as_ptr(),
                c"NO".as_ptr(),
                c"INFERENCE_NUM_THREADS".as_ptr(),
                all.as_ptr(),
                c"NUM_STREAMS".as_ptr(),
                streams.as_ptr(),
            )
        };
        self.core.api.check("prepare the model", status)?;
        NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO returned no compiled model"))
    }
}

impl Drop for OvModel<'_> {
    fn drop(&mut self) {
        // SAFETY: compiled models do not refer to it. It is freed once, here.
        unsafe { (self.core.api.functions.free_model)(self.raw) };
    }
}

/// Runs a model: one thread at a time.
pub(super) struct OvRequest {
    raw: NonNull<RawRequest>,
    inputs: Arc<[OvPort]>,
    outputs: Arc<[OvPort]>,
    model: Arc<CompiledModel>,
}

// SAFETY: the library lets any thread use a request, if only one does at a time, which `&mut self` ensures.
unsafe impl Send for OvRequest {}

impl OvRequest {
    /// Runs the model on `inputs`, in the order of its ports, until `deadline` at most.
    ///
    /// # Errors
    /// [`Code::DeadlineExceeded`]; [`Code::Unknown`] for all that the library reports.
    pub(super) fn run(
        &mut self,
        inputs: &[Tensor],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs.len() {
            return Err(Error::internal("an input is missing"));
        }
        for (port, tensor) in self.inputs.iter().zip(inputs) {
            self.tensor(port)?.fill(tensor)?;
        }
        match deadline {
            None => {
                // SAFETY: the request is live, and used by this thread only.
                let status = unsafe { (self.model.api.functions.infer)(self.raw.as_ptr()) };
                self.model.api.check("run the model", status)?;
            }
            Some(deadline) => self.run_until(deadline)?,
        }
        self.outputs.iter().map(|port| self.tensor(port)?.tensor(port.dtype)).collect()
    }

    fn run_until(&mut self, deadline: Instant) -> Result<()> {
        let (api, raw) = (&self.model.api, self.raw.as_ptr());
        // SAFETY: the request is live, and used by this thread only.
        api.check("run the model", unsafe { (api.functions.start)(raw) })?;
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        // SAFETY: as above.
        let status = unsafe { (api.functions.wait_for)(raw, left) };
        if status != RESULT_NOT_READY {
            return api.check("run the model", status);
        }
        // SAFETY: as above. The run has ended when the second call returns.
        unsafe {
            (api.functions.cancel)(raw);
            (api.functions.wait)(raw);
        }
        let message = "the run exceeded its deadline and was cancelled";
        Err(Error::new(Code::DeadlineExceeded, message))
    }

    /// The tensor at a port.
    fn tensor(&self, port: &OvPort) -> Result<OvTensor> {
        let (api, mut raw) = (&self.model.api, ptr::null_mut());
        let of = api.functions.tensor_of;
        // SAFETY: the request and the port are live; writes one pointer.
        let status = unsafe { of(self.raw.as_ptr(), port.raw.as_ptr(), &raw mut raw) };
        api.check("give a tensor", status)?;
        OvTensor::of(api, raw)
    }
}

impl Drop for OvRequest {
    fn drop(&mut self) {
        // SAFETY: no run is in progress; the request is freed once, here, before its model.
        unsafe { (self.model.api.functions.free_request)(self.raw.as_ptr()) };
    }
}
