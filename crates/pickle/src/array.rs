//! NumPy arrays.

use std::sync::Arc;

use bytes::Bytes;
use half::f16;

use super::{PickleId, PickleNode};
use tensorserve_codec::places::Places;

/// The kinds of a dtype, as NumPy codes them in `dtype.kind`.
pub mod dtype_kind {
    /// `bool`.
    pub const BOOL: char = 'b';
    /// Signed integers.
    pub const INT: char = 'i';
    /// Unsigned integers.
    pub const UINT: char = 'u';
    /// Floating-point numbers.
    pub const FLOAT: char = 'f';
    /// Bytes of a fixed length.
    pub const BYTES: char = 'S';
    /// Unicode text of a fixed length.
    pub const TEXT: char = 'U';
    /// Python objects.
    pub const OBJECT: char = 'O';
    /// Fields, or raw bytes.
    pub const VOID: char = 'V';
}

/// The most dimensions of a NumPy array.
pub(super) const MAX_DIMENSIONS: usize = 64;

/// Bytes of a character of [`dtype_kind::TEXT`]: UTF-32.
const TEXT_UNIT: usize = 4;

/// Bytes of an element whose dtype has no size in its name: `O`, a pointer.
const POINTER_SIZE: usize = 8;

/// The type of the elements of an array.
#[derive(Clone, Debug)]
pub struct NumpyDtype {
    /// One of [`dtype_kind`].
    kind: char,
    /// Bytes of an element.
    size: usize,
    big_endian: bool,
    fields: Vec<DtypeField>,
}

/// A field of a structured dtype.
#[derive(Clone, Debug)]
struct DtypeField {
    name: String,
    offset: usize,
    kind: char,
    size: usize,
    big_endian: bool,
}

impl NumpyDtype {
    /// The dtype that NumPy writes as `name`, such as `f8` or `<U3`.
    pub(super) fn named(name: &str) -> Option<Self> {
        let big_endian = name.starts_with('>');
        let name = name.trim_start_matches(['<', '>', '=', '|']);
        let mut rest = name.chars();
        let kind = rest.next().filter(char::is_ascii_alphabetic)?;
        let count: usize = match rest.as_str() {
            "" => POINTER_SIZE,
            digits => digits.parse().ok()?,
        };
        let size = if kind == dtype_kind::TEXT { count.checked_mul(TEXT_UNIT)? } else { count };
        Some(NumpyDtype { kind, size, big_endian, fields: Vec::new() })
    }

    pub(super) fn set_byte_order(&mut self, big_endian: bool) {
        self.big_endian = big_endian;
    }

    /// Sets the size in bytes, for a dtype that has none in its name. (For others NumPy writes -1.)
    pub(super) fn set_size(&mut self, size: usize) {
        self.size = size;
    }

    /// Adds a field, unless it has fields itself.
    pub(super) fn add_field(&mut self, name: String, dtype: &NumpyDtype, offset: usize) {
        let NumpyDtype { kind, size, big_endian, .. } = *dtype;
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.size);
        if fits && dtype.fields.is_empty() {
            self.fields.push(DtypeField { name, offset, kind, size, big_endian });
        }
    }

    /// Its kind, one of [`dtype_kind`] or another letter of NumPy's.
    #[must_use]
    pub fn kind(&self) -> char {
        self.kind
    }

    /// The names of its fields; none for a plain dtype.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.name.as_str())
    }

    /// The size in bytes of an array of this shape; `None` on overflow, or for elements without a size.
    pub(super) fn byte_len(&self, shape: &[usize]) -> Option<usize> {
        element_count(shape)?.checked_mul(self.size).filter(|_| self.size > 0)
    }
}

fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))
}

/// A NumPy array.
#[derive(Clone, Debug)]
pub struct NumpyArray {
    shape: Vec<usize>,
    count: usize,
    /// Whether the first dimension varies fastest.
    fortran_order: bool,
    /// Kind, size and byte order of the elements; of a field, those of the field.
    kind: char,
    size: usize,
    big_endian: bool,
    dtype: Arc<NumpyDtype>,
    data: ArrayData,
}

#[derive(Clone, Debug)]
enum ArrayData {
    /// The first element is at `offset`, and each of the others `stride` bytes behind the one before.
    Bytes { bytes: Bytes, offset: usize, stride: usize },
    /// The list of the elements: Python objects, values of the pickle.
    Objects(PickleId),
}

impl Default for NumpyArray {
    fn default() -> Self {
        let dtype =
            NumpyDtype { kind: dtype_kind::VOID, size: 1, big_endian: false, fields: Vec::new() };
        let data = ArrayData::Bytes { bytes: Bytes::new(), offset: 0, stride: 1 };
        NumpyArray::new(Arc::new(dtype), vec![0], 0, false, data)
    }
}

impl NumpyArray {
    fn new(
        dtype: Arc<NumpyDtype>,
        shape: Vec<usize>,
        count: usize,
        fortran_order: bool,
        data: ArrayData,
    ) -> Self {
        let NumpyDtype { kind, size, big_endian, .. } = *dtype;
        NumpyArray { shape, count, fortran_order, kind, size, big_endian, dtype, data }
    }

    /// An array of plain elements; `None` if the number of bytes does not match.
    pub(super) fn from_bytes(
        dtype: Arc<NumpyDtype>,
        shape: Vec<usize>,
        fortran_order: bool,
        bytes: Bytes,
    ) -> Option<Self> {
        dtype.byte_len(&shape).filter(|needed| *needed == bytes.len())?;
        let (count, stride) = (element_count(&shape)?, dtype.size);
        let data = ArrayData::Bytes { bytes, offset: 0, stride };
        Some(NumpyArray::new(dtype, shape, count, fortran_order, data))
    }

    /// An array of objects; `None` if their number does not match.
    pub(super) fn from_objects(
        dtype: Arc<NumpyDtype>,
        shape: Vec<usize>,
        fortran_order: bool,
        list: PickleId,
        length: usize,
    ) -> Option<Self> {
        let count = element_count(&shape).filter(|count| *count == length)?;
        Some(NumpyArray::new(dtype, shape, count, fortran_order, ArrayData::Objects(list)))
    }

    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The kind of its elements, one of [`dtype_kind`] or another letter of NumPy's.
    #[must_use]
    pub fn kind(&self) -> char {
        self.kind
    }

    /// The size of an element in bytes.
    #[must_use]
    pub fn element_size(&self) -> usize {
        self.size
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(&self) -> &NumpyDtype {
        &self.dtype
    }

    /// The field `name` of each element, as a view.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<NumpyArray> {
        let field = self.dtype.fields.iter().find(|field| field.name == name)?;
        let ArrayData::Bytes { bytes, offset, stride } = &self.data else { return None };
        let offset = offset + field.offset;
        let data = ArrayData::Bytes { bytes: bytes.clone(), offset, stride: *stride };
        let DtypeField { kind, size, big_endian, .. } = *field;
        Some(NumpyArray { kind, size, big_endian, data, ..self.clone() })
    }

    /// The elements in row-major order as 64-bit floats; `None` if they are not numbers.
    #[must_use]
    pub fn f64s(&self) -> Option<Vec<f64>> {
        match (self.kind, self.size) {
            (dtype_kind::FLOAT, 8) => self.read_elements(f64::from_le_bytes),
            (dtype_kind::FLOAT, 4) => self.read_elements(|bytes| f32::from_le_bytes(bytes).into()),
            (dtype_kind::FLOAT, 2) => self.read_elements(|bytes| f16::from_le_bytes(bytes).into()),
            (dtype_kind::UINT, 8) => self.read_elements(|bytes| u64::from_le_bytes(bytes) as f64),
            _ => Some(self.i64s()?.into_iter().map(|number| number as f64).collect()),
        }
    }

    /// The elements in row-major order as 64-bit integers; `None` if they are not integers, or one
    /// does not fit.
    #[must_use]
    pub fn i64s(&self) -> Option<Vec<i64>> {
        match (self.kind, self.size) {
            (dtype_kind::INT, 8) => self.read_elements(i64::from_le_bytes),
            (dtype_kind::INT, 4) => self.read_elements(|bytes| i32::from_le_bytes(bytes).into()),
            (dtype_kind::INT, 2) => self.read_elements(|bytes| i16::from_le_bytes(bytes).into()),
            (dtype_kind::INT, 1) => self.read_elements(|bytes| i8::from_le_bytes(bytes).into()),
            (dtype_kind::UINT, 8) => {
                let wide: Vec<u64> = self.read_elements(u64::from_le_bytes)?;
                wide.into_iter().map(|number| i64::try_from(number).ok()).collect()
            }
            (dtype_kind::UINT, 4) => self.read_elements(|bytes| u32::from_le_bytes(bytes).into()),
            (dtype_kind::UINT, 2) => self.read_elements(|bytes| u16::from_le_bytes(bytes).into()),
            (dtype_kind::UINT, 1) => self.read_elements(|[byte]| byte.into()),
            (dtype_kind::BOOL, 1) => self.read_elements(|[byte]| i64::from(byte != 0)),
            _ => None,
        }
    }

    /// The elements in row-major order as text; `None` if they are not text.
    #[must_use]
    pub fn strings(&self) -> Option<Vec<String>> {
        match self.kind {
            dtype_kind::BYTES => self.places().map(|place| self.utf8_text(place)).collect(),
            dtype_kind::TEXT => self.places().map(|place| self.utf32_text(place)).collect(),
            _ => None,
        }
    }

    /// The text of the element at `place`: UTF-8, padded with zeros.
    fn utf8_text(&self, place: usize) -> Option<String> {
        let bytes = self.bytes_at(place)?;
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        String::from_utf8(bytes.get(..used)?.to_vec()).ok()
    }

    /// The text of the element at `place`: UTF-32, padded with zeros.
    fn utf32_text(&self, place: usize) -> Option<String> {
        let mut text = String::new();
        for unit in self.bytes_at(place)?.as_chunks::<TEXT_UNIT>().0 {
            let number = match self.big_endian {
                true => u32::from_be_bytes(*unit),
                false => u32::from_le_bytes(*unit),
            };
            text.push(char::from_u32(number)?);
        }
        text.truncate(text.trim_end_matches('\0').len());
        Some(text)
    }

    /// The bytes of the element at `place`, an index in storage order.
    fn bytes_at(&self, place: usize) -> Option<&[u8]> {
        let ArrayData::Bytes { bytes, offset, stride } = &self.data else { return None };
        let start = place.checked_mul(*stride)?.checked_add(*offset)?;
        bytes.get(start..start.checked_add(self.size)?)
    }

    /// The elements in row-major order, each made by `read` of its little-endian bytes.
    fn read_elements<const N: usize, T>(&self, read: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
        self.places().map(|place| self.little_endian_at(place).map(&read)).collect()
    }

    /// The first `N` bytes of the element at `place`, little-endian.
    fn little_endian_at<const N: usize>(&self, place: usize) -> Option<[u8; N]> {
        let mut bytes = *self.bytes_at(place)?.first_chunk::<N>()?;
        if self.big_endian {
            bytes.reverse();
        }
        Some(bytes)
    }

    /// The storage indices of the elements, in row-major order.
    pub(super) fn places(&self) -> Places {
        match self.fortran_order && self.shape.len() > 1 {
            true => Places::by_columns(self.shape.iter().copied(), self.count),
            false => Places::by_rows(self.count),
        }
    }

    /// The list of its elements, if they are objects.
    pub(super) fn objects(&self) -> Option<PickleId> {
        match self.data {
            ArrayData::Objects(list) => Some(list),
            ArrayData::Bytes { .. } => None,
        }
    }

    /// Its only element, as a Python scalar.
    pub(super) fn scalar(&self) -> Option<PickleNode> {
        let number = self.i64s().and_then(|numbers| numbers.first().copied());
        match (self.kind, number) {
            (dtype_kind::BOOL, Some(number)) => Some(PickleNode::Bool(number != 0)),
            (_, Some(number)) => Some(PickleNode::Int(number)),
            (dtype_kind::TEXT | dtype_kind::BYTES, None) => {
                Some(PickleNode::Text(self.strings()?.into_iter().next()?))
            }
            _ => Some(PickleNode::Float(self.f64s()?.first().copied()?)),
        }
    }
}
