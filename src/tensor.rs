//! Tensors: element types, shapes, shared aligned memory, and the signatures that name them.
//!
//! A [`Tensor`] is a cheap-to-clone view of shared memory: a batch's output is split among its
//! requests, and a request's input reaches the runtime, without a copy. Numeric data sits in one
//! buffer aligned to 64 bytes (what libtensorflow needs to use it in place); strings, which may
//! hold any bytes, sit end to end in one buffer with their end offsets.
//!
//! This module knows nothing of wire formats, models or runtimes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aligned_vec::{AVec, ConstAlign};
use smallvec::SmallVec;

use crate::error::{Error, Result};

/// Alignment of numeric tensor data in bytes (Eigen's largest, so the runtime never copies).
pub const ALIGNMENT: usize = 64;

/// A growable vector whose data is aligned to [`ALIGNMENT`].
pub type AlignedVec<T> = AVec<T, ConstAlign<ALIGNMENT>>;

/// An empty [`AlignedVec`] with room for `capacity` elements.
#[must_use]
pub fn aligned_vec<T>(capacity: usize) -> AlignedVec<T> {
    AVec::with_capacity(0, capacity)
}

/// Element type of a tensor; numbers and names are TensorFlow's `DataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    Float,
    Double,
    Int32,
    UInt8,
    Int16,
    Int8,
    String,
    Complex64,
    Int64,
    Bool,
    BFloat16,
    UInt16,
    Complex128,
    Half,
    UInt32,
    UInt64,
}

impl DType {
    /// Every supported type.
    pub const ALL: [DType; 16] = [
        DType::Float,
        DType::Double,
        DType::Int32,
        DType::UInt8,
        DType::Int16,
        DType::Int8,
        DType::String,
        DType::Complex64,
        DType::Int64,
        DType::Bool,
        DType::BFloat16,
        DType::UInt16,
        DType::Complex128,
        DType::Half,
        DType::UInt32,
        DType::UInt64,
    ];

    /// Bytes per element; `None` for strings.
    #[must_use]
    pub fn size(self) -> Option<usize> {
        match self {
            DType::String => None,
            DType::Bool | DType::UInt8 | DType::Int8 => Some(1),
            DType::Int16 | DType::UInt16 | DType::Half | DType::BFloat16 => Some(2),
            DType::Float | DType::Int32 | DType::UInt32 => Some(4),
            DType::Double | DType::Int64 | DType::UInt64 | DType::Complex64 => Some(8),
            DType::Complex128 => Some(16),
        }
    }

    /// TensorFlow's number of the type.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            DType::Float => 1,
            DType::Double => 2,
            DType::Int32 => 3,
            DType::UInt8 => 4,
            DType::Int16 => 5,
            DType::Int8 => 6,
            DType::String => 7,
            DType::Complex64 => 8,
            DType::Int64 => 9,
            DType::Bool => 10,
            DType::BFloat16 => 14,
            DType::UInt16 => 17,
            DType::Complex128 => 18,
            DType::Half => 19,
            DType::UInt32 => 22,
            DType::UInt64 => 23,
        }
    }

    /// The type with TensorFlow's number; a reference type (number + 100, from TensorFlow 1
    /// variables) is its value type. `None` for types no tensor can travel as (resource,
    /// variant, quantised, invalid).
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        let value = if number > 100 { number - 100 } else { number };
        DType::ALL.into_iter().find(|d| d.number() == value)
    }

    /// TensorFlow's short name: `float`, `int32`, `half`, …
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DType::Float => "float",
            DType::Double => "double",
            DType::Int32 => "int32",
            DType::UInt8 => "uint8",
            DType::Int16 => "int16",
            DType::Int8 => "int8",
            DType::String => "string",
            DType::Complex64 => "complex64",
            DType::Int64 => "int64",
            DType::Bool => "bool",
            DType::BFloat16 => "bfloat16",
            DType::UInt16 => "uint16",
            DType::Complex128 => "complex128",
            DType::Half => "half",
            DType::UInt32 => "uint32",
            DType::UInt64 => "uint64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The size of each dimension of a tensor; empty for a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[i64; 4]>);

impl Shape {
    /// A shape with these dimensions, none negative.
    ///
    /// # Errors
    /// [`Error::invalid`] for a negative dimension or a product that does not fit an `i64`.
    pub fn new(dims: &[i64]) -> Result<Self> {
        let shape = Shape(SmallVec::from_slice(dims));
        shape.elements()?;
        Ok(shape)
    }

    /// The shape of a vector of `n` elements.
    #[must_use]
    pub fn vector(n: usize) -> Self {
        Shape(SmallVec::from_slice(&[
            i64::try_from(n).unwrap_or(i64::MAX)
        ]))
    }

    /// The shape of a scalar.
    #[must_use]
    pub fn scalar() -> Self {
        Shape::default()
    }

    /// The dimensions.
    #[must_use]
    pub fn dims(&self) -> &[i64] {
        &self.0
    }

    /// The number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements: the product of the dimensions.
    ///
    /// # Errors
    /// [`Error::invalid`] for a negative dimension or an overflow.
    pub fn elements(&self) -> Result<usize> {
        let mut product: i64 = 1;
        for &dim in &self.0 {
            if dim < 0 {
                return Err(Error::invalid(format!("shape {self:?} has a negative dimension")));
            }
            product = product
                .checked_mul(dim)
                .ok_or_else(|| Error::invalid(format!("shape {self:?} has too many elements")))?;
        }
        usize::try_from(product)
            .map_err(|_| Error::invalid(format!("shape {self:?} has too many elements")))
    }

    /// The dimensions after the 0-th; empty for a scalar.
    #[must_use]
    pub fn row_dims(&self) -> &[i64] {
        self.0.get(1..).unwrap_or_default()
    }

    /// The same shape with `rows` as its 0-th dimension; a scalar stays a scalar.
    #[must_use]
    pub fn with_rows(&self, rows: usize) -> Self {
        let mut shape = self.clone();
        if let Some(first) = shape.0.first_mut() {
            *first = i64::try_from(rows).unwrap_or(i64::MAX);
        }
        shape
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

/// Memory that tensors share: an aligned vector of ours, or a tensor the runtime owns.
pub trait Memory: Send + Sync {
    /// All of it.
    fn bytes(&self) -> &[u8];
}

impl<T: bytemuck::Pod + Send + Sync> Memory for AlignedVec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// A view of a part of some shared [`Memory`].
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
    range: Range<usize>,
}

impl Buffer {
    /// A view of all of `memory`.
    #[must_use]
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        let range = 0..memory.bytes().len();
        Buffer { memory, range }
    }

    /// The bytes in view.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.memory
            .bytes()
            .get(self.range.clone())
            .unwrap_or_default()
    }

    /// A narrower view; `range` counts from the start of this one and is cut at its end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = self.range.start.saturating_add(range.end).min(self.range.end);
        let start = self.range.start.saturating_add(range.start).min(end);
        Buffer {
            memory: Arc::clone(&self.memory),
            range: start..end,
        }
    }
}

/// Byte strings, end to end.
#[derive(Clone, Debug, Default)]
pub struct StringsBuilder {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringsBuilder {
    /// Room for `count` strings of `bytes` bytes in all.
    #[must_use]
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        StringsBuilder {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(count),
        }
    }

    /// Appends one string.
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    /// Appends one string that `write` adds to the end of the buffer.
    ///
    /// # Errors
    /// What `write` returns; the string is then not counted.
    pub fn push_with<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        write(&mut self.bytes)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// How many strings there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// A view of a run of strings of a shared [`StringsBuilder`].
#[derive(Clone)]
pub struct Strings {
    store: Arc<StringsBuilder>,
    range: Range<usize>,
}

impl Strings {
    /// The strings in view, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.range.clone().map(|i| self.at(i))
    }

    fn at(&self, index: usize) -> &[u8] {
        let ends = &self.store.ends;
        let start = match index.checked_sub(1) {
            Some(previous) => ends.get(previous).copied().unwrap_or(0),
            None => 0,
        };
        let end = ends.get(index).copied().unwrap_or(start);
        self.store.bytes.get(start..end).unwrap_or_default()
    }

    /// How many strings are in view.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether none is in view.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes of all strings in view together.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.iter().map(<[u8]>::len).sum()
    }
}

/// What a tensor holds.
#[derive(Clone)]
pub enum Data {
    /// Elements of a fixed size, native byte order, row-major.
    Numeric(Buffer),
    /// Byte strings, row-major.
    Strings(Strings),
}

/// A Rust type that is the element of a tensor.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// Its tensor type.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })*
    };
}

element! {
    f32 => Float, f64 => Double, i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => UInt8, u16 => UInt16, u32 => UInt32, u64 => UInt64,
}

/// An n-dimensional array: element type, shape and a view of shared memory.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Data,
}

impl Tensor {
    /// A tensor of fixed-size elements over `buffer`.
    ///
    /// # Errors
    /// [`Error::invalid`] if the buffer's size is not what dtype and shape need, or the dtype is
    /// string.
    pub fn numeric(dtype: DType, shape: Shape, buffer: Buffer) -> Result<Self> {
        let size = dtype
            .size()
            .ok_or_else(|| Error::invalid("a string tensor has no fixed-size data"))?;
        let want = shape.elements()?.checked_mul(size);
        let got = buffer.as_slice().len();
        if want != Some(got) {
            return Err(Error::invalid(format!(
                "{got} bytes do not make a {dtype} tensor of shape {shape:?}"
            )));
        }
        Ok(Tensor {
            dtype,
            shape,
            data: Data::Numeric(buffer),
        })
    }

    /// A tensor of the elements of `values`.
    ///
    /// # Errors
    /// [`Error::invalid`] if their number is not what the shape needs.
    pub fn from_vec<T: Element>(shape: Shape, values: AlignedVec<T>) -> Result<Self> {
        Tensor::numeric(T::DTYPE, shape, Buffer::new(Arc::new(values)))
    }

    /// A bool tensor; each value is 0 or 1.
    ///
    /// # Errors
    /// [`Error::invalid`] if the number of values is not what the shape needs.
    pub fn from_bools(shape: Shape, values: AlignedVec<u8>) -> Result<Self> {
        Tensor::numeric(DType::Bool, shape, Buffer::new(Arc::new(values)))
    }

    /// A tensor of byte strings.
    ///
    /// # Errors
    /// [`Error::invalid`] if their number is not what the shape needs.
    pub fn from_strings(shape: Shape, values: StringsBuilder) -> Result<Self> {
        let range = 0..values.len();
        if shape.elements()? != range.end {
            return Err(Error::invalid(format!(
                "{} strings do not make a tensor of shape {shape:?}",
                range.end
            )));
        }
        Ok(Tensor {
            dtype: DType::String,
            shape,
            data: Data::Strings(Strings {
                store: Arc::new(values),
                range,
            }),
        })
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements as values of `T`; `None` if this is not their type.
    #[must_use]
    pub fn values<T: Element>(&self) -> Option<&[T]> {
        match &self.data {
            Data::Numeric(buffer) if self.dtype == T::DTYPE => {
                bytemuck::try_cast_slice(buffer.as_slice()).ok()
            }
            Data::Numeric(_) | Data::Strings(_) => None,
        }
    }

    /// The strings; `None` if this is a tensor of another type.
    #[must_use]
    pub fn strings(&self) -> Option<&Strings> {
        match &self.data {
            Data::Strings(strings) => Some(strings),
            Data::Numeric(_) => None,
        }
    }

    /// The bytes of fixed-size elements; empty for strings.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Numeric(buffer) => buffer.as_slice(),
            Data::Strings(_) => &[],
        }
    }

    /// The 0-th dimension; `None` for a scalar.
    #[must_use]
    pub fn rows(&self) -> Option<usize> {
        usize::try_from(*self.shape.dims().first()?).ok()
    }

    /// Memory the elements take, in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        match &self.data {
            Data::Numeric(buffer) => buffer.as_slice().len(),
            Data::Strings(strings) => strings.byte_len(),
        }
    }

    /// The rows `range` of the 0-th dimension, as a view. A scalar is returned whole; a range
    /// past the end is cut.
    #[must_use]
    pub fn slice_rows(&self, range: Range<usize>) -> Self {
        let Some(rows) = self.rows() else {
            return self.clone();
        };
        let end = range.end.min(rows);
        let start = range.start.min(end);
        let data = match &self.data {
            Data::Numeric(buffer) => {
                let row = buffer.as_slice().len().checked_div(rows).unwrap_or(0);
                Data::Numeric(buffer.slice(start * row..end * row))
            }
            Data::Strings(strings) => {
                let row = strings.len().checked_div(rows).unwrap_or(0);
                let first = strings.range.start;
                Data::Strings(Strings {
                    store: Arc::clone(&strings.store),
                    range: first + start * row..first + end * row,
                })
            }
        };
        Tensor {
            dtype: self.dtype,
            shape: self.shape.with_rows(end - start),
            data,
        }
    }
}

impl Tensor {
    /// Row number `index` of the 0-th dimension, without that dimension, as a view.
    #[must_use]
    pub fn row(&self, index: usize) -> Self {
        let mut row = self.slice_rows(index..index.saturating_add(1));
        if !row.shape.0.is_empty() {
            row.shape.0.remove(0);
        }
        row
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// Joins tensors along the 0-th dimension. With `fill_to` above the sum of their rows, the rest
/// is filled by repeating the first row of the last tensor (TensorFlow Serving's padding to an
/// allowed batch size).
///
/// # Errors
/// [`Error::precondition`] if dtypes or row shapes differ or one is a scalar.
pub fn concat(parts: &[&Tensor], fill_to: usize) -> Result<Tensor> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Err(Error::internal("nothing to join"));
    };
    let mut rows = 0usize;
    for part in parts {
        let same = part.dtype == first.dtype && part.shape.row_dims() == first.shape.row_dims();
        match part.rows() {
            Some(n) if same => rows += n,
            _ => {
                return Err(Error::precondition(format!(
                    "tensors {part:?} and {first:?} can not be joined"
                )));
            }
        }
    }
    let fill = if last.rows() == Some(0) {
        0
    } else {
        fill_to.saturating_sub(rows)
    };
    let shape = first.shape.with_rows(rows + fill);
    let filler = last.slice_rows(0..1);
    let pieces = || {
        let body = parts.iter().copied();
        body.chain(std::iter::repeat_n(&filler, fill))
    };
    if first.dtype == DType::String {
        let strings = || pieces().filter_map(Tensor::strings);
        let count = strings().map(Strings::len).sum();
        let bytes = strings().map(Strings::byte_len).sum();
        let mut builder = StringsBuilder::with_capacity(count, bytes);
        for run in strings() {
            run.iter().for_each(|s| builder.push(s));
        }
        return Tensor::from_strings(shape, builder);
    }
    let mut joined = aligned_vec::<u8>(pieces().map(Tensor::byte_len).sum());
    for piece in pieces() {
        joined.extend_from_slice(piece.bytes());
    }
    Tensor::numeric(first.dtype, shape, Buffer::new(Arc::new(joined)))
}

/// Grows each dimension but the 0-th to `row_dims` by padding at its end with the tensor's own
/// first element (TensorFlow Serving's `pad_variable_length_inputs`).
///
/// # Errors
/// [`Error::precondition`] if the rank differs, a dimension would shrink, or there is no first
/// element to pad with.
pub fn pad(tensor: &Tensor, row_dims: &[i64]) -> Result<Tensor> {
    let from = tensor.shape.row_dims();
    let shrinks = from.len() != row_dims.len() || from.iter().zip(row_dims).any(|(a, b)| a > b);
    if shrinks || tensor.rows().is_none() {
        return Err(Error::precondition(format!(
            "{tensor:?} can not be padded to rows of {row_dims:?}"
        )));
    }
    let mut dims = tensor.shape.dims().to_vec();
    dims.truncate(1);
    dims.extend_from_slice(row_dims);
    let shape = Shape::new(&dims)?;
    let total = shape.elements()?;
    let source = PadIndex::new(tensor.shape.dims(), shape.dims());
    let empty = || Error::precondition("Got empty tensor in batch of non-empty tensors.");
    if total > 0 && tensor.shape.elements()? == 0 {
        return Err(empty());
    }
    if let Data::Strings(strings) = &tensor.data {
        let values: Vec<&[u8]> = strings.iter().collect();
        let mut builder = StringsBuilder::with_capacity(total, strings.byte_len());
        for index in 0..total {
            builder.push(values.get(source.of(index)).ok_or_else(empty)?);
        }
        return Tensor::from_strings(shape, builder);
    }
    let size = tensor.dtype.size().unwrap_or(1);
    let bytes = tensor.bytes();
    let mut padded = aligned_vec::<u8>(total * size);
    for index in 0..total {
        let at = source.of(index) * size;
        padded.extend_from_slice(bytes.get(at..at + size).ok_or_else(empty)?);
    }
    Tensor::numeric(tensor.dtype, shape, Buffer::new(Arc::new(padded)))
}

/// Where each element of a padded tensor comes from: its own place, or element 0 for padding.
struct PadIndex {
    /// (size in the source, size in the result) of each dimension, last first.
    dims: Vec<(usize, usize)>,
}

impl PadIndex {
    fn new(from: &[i64], to: &[i64]) -> Self {
        let size = |d: &i64| usize::try_from(*d).unwrap_or(0);
        let pairs = from.iter().map(size).zip(to.iter().map(size));
        PadIndex {
            dims: pairs.rev().collect(),
        }
    }

    fn of(&self, index: usize) -> usize {
        let mut rest = index;
        let mut stride = 1;
        let mut at = 0;
        for &(from, to) in &self.dims {
            let coordinate = rest.checked_rem(to).unwrap_or(0);
            rest = rest.checked_div(to).unwrap_or(0);
            if coordinate >= from {
                return 0;
            }
            at += coordinate * stride;
            stride *= from;
        }
        at
    }
}

/// The declared shape of a signature's tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredShape {
    /// The model says nothing (a `TensorInfo` without `tensor_shape`).
    Missing,
    /// Declared to be of any rank.
    UnknownRank,
    /// Each dimension with its name (mostly empty); -1 is unknown.
    Dims(Vec<(i64, String)>),
}

impl DeclaredShape {
    /// The dimension sizes, -1 where unknown; `None` if the rank is unknown.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<i64>> {
        match self {
            DeclaredShape::Dims(dims) => Some(dims.iter().map(|(size, _)| *size).collect()),
            DeclaredShape::Missing | DeclaredShape::UnknownRank => None,
        }
    }

    /// Whether the 0-th dimension is declared to be of any size: the sign of a batch dimension.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        matches!(self, DeclaredShape::Dims(dims) if dims.first().is_some_and(|(size, _)| *size == -1))
    }
}

impl fmt::Display for DeclaredShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sizes() {
            None => f.write_str("any rank"),
            Some(sizes) => {
                let sizes: Vec<String> = sizes
                    .iter()
                    .map(|&s| if s < 0 { "?".into() } else { s.to_string() })
                    .collect();
                write!(f, "[{}]", sizes.join(", "))
            }
        }
    }
}

/// Names of the three tensors that make up a sparse one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CooSparse {
    /// Tensor of the values.
    pub values: String,
    /// Tensor of their positions.
    pub indices: String,
    /// Tensor of the dense shape.
    pub dense_shape: String,
}

/// One input or output of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// The name clients use.
    pub alias: String,
    /// The tensor of the graph, for example `serving_default_x:0`.
    pub tensor_name: String,
    /// TensorFlow's type number as the model declares it, reference types and all.
    pub dtype_number: i32,
    /// Declared shape. Models in the wild declare wrong ones: a hint, not a check.
    pub shape: DeclaredShape,
    /// Set if the model declares a sparse tensor, which clients can not send as one.
    pub sparse: Option<CooSparse>,
}

impl TensorSpec {
    /// Element type; `None` if it is one that no client can send.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        DType::from_number(self.dtype_number)
    }
}

/// How images reach a model whose one input is a string tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageEncoding {
    /// The file's bytes as they are.
    Raw,
    /// URL-safe base64 text of the bytes, which the graph decodes itself.
    Base64Url,
}

/// A function of a model: named inputs to named outputs.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The name clients use, for example `serving_default`.
    pub name: String,
    /// `tensorflow/serving/predict`, `…/classify`, `…/regress` or whatever the model says.
    pub method_name: String,
    /// Inputs, sorted by alias.
    pub inputs: Vec<TensorSpec>,
    /// Outputs, sorted by alias.
    pub outputs: Vec<TensorSpec>,
    /// Values of inputs that a caller may leave out, by alias.
    pub defaults: Vec<(String, Tensor)>,
    /// How image uploads are fed to it.
    pub images: ImageEncoding,
    /// Whether it is seen to decode images.
    pub takes_images: bool,
    /// Whether running it changes no state of the model, as far as its operations tell (no
    /// variable is assigned, no table or queue written). Only such a signature is warmed with made-up data, batched
    /// without being asked to, or run twice.
    pub read_only: bool,
}

impl Signature {
    /// The position of the input `alias`.
    #[must_use]
    pub fn input(&self, alias: &str) -> Option<usize> {
        self.inputs.iter().position(|spec| spec.alias == alias)
    }

    /// Whether every input and output declares an open 0-th dimension, so that requests can be
    /// expected to join along it.
    #[must_use]
    pub fn is_batchable(&self) -> bool {
        let mut all = self.inputs.iter().chain(&self.outputs);
        !self.inputs.is_empty()
            && !self.outputs.is_empty()
            && all.all(|spec| spec.shape.is_batched() && spec.dtype().is_some())
    }
}
