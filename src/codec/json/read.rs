//! Nested arrays to tensors: numbers go from text straight into the typed buffer that the
//! runtime will read.
//!
//! The shape is that of the first element at each level, as TensorFlow Serving has it; whatever
//! deviates is a [`Fault`] that says where. Protocols put faults into words.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use smallvec::SmallVec;

use super::scan::{Cursor, Number, SyntaxError};
use crate::codec::base64::{self, Alphabet};
use crate::error::Result as EngineResult;
use crate::tensor::{
    AlignedVec, Buffer, DType, Element, Shape, StringsBuilder, Tensor, aligned_vec,
};

/// The most dimensions a tensor can have (TensorFlow's own limit).
pub const MAX_RANK: usize = 254;

/// How values are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Take a value of another JSON type as NumPy would: fractions are cut to integers, numeric
    /// strings and booleans become numbers, half-precision types are rounded to. Without it the
    /// types must match as TensorFlow Serving has it.
    pub coerce: bool,
    /// The alphabets of `{"b64": "…"}` objects.
    pub alphabet: Alphabet,
    /// The most memory one tensor may take, in bytes.
    pub max_bytes: usize,
}

/// Why a value does not make a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It is no JSON.
    Syntax(SyntaxError),
    /// The element at `at` is not of the tensor's type.
    Type {
        /// Where the element starts.
        at: usize,
    },
    /// An object where a string should be, and it is not `{"b64": "…"}`.
    NotBase64Object {
        /// Where the object starts.
        at: usize,
    },
    /// The text of a `b64` object is not base64.
    NotBase64,
    /// The element's type can not be written in JSON.
    Unsupported {
        /// Where the element starts.
        at: usize,
    },
    /// A list where the first elements had values.
    ListTooDeep {
        /// How many lists it is in.
        level: usize,
        /// How many the first value is in.
        rank: usize,
    },
    /// A value where the first elements had a list.
    ValueAtWrongLevel {
        /// Where the value starts.
        at: usize,
        /// How many lists it is in.
        level: usize,
        /// How many the first value is in.
        rank: usize,
    },
    /// A list longer or shorter than the first one at its level.
    ListSize {
        /// Its elements.
        size: usize,
        /// How many lists it is in.
        level: usize,
        /// The elements of the first one.
        expected: usize,
    },
    /// A row with another number of elements than row 0.
    RowSize {
        /// Its elements.
        size: usize,
        /// Those of row 0.
        expected: usize,
    },
    /// A row of the size but not the shape of row 0.
    RowShape {
        /// Its shape.
        shape: Shape,
        /// That of row 0.
        expected: Shape,
    },
    /// More than [`MAX_RANK`] nested lists.
    TooManyDimensions,
    /// More than [`ReadOptions::max_bytes`].
    TooLarge,
}

impl From<SyntaxError> for Fault {
    fn from(error: SyntaxError) -> Self {
        Fault::Syntax(error)
    }
}

type Read<T> = Result<T, Fault>;

/// Builds one tensor from one nested value, or from one per row.
pub struct TensorReader {
    options: ReadOptions,
    dtype: DType,
    extents: Extents,
    column: Column,
}

impl TensorReader {
    /// A reader of elements of type `dtype`; `text_bytes` is how much text is about to be read
    /// at most, to guess the number of elements.
    #[must_use]
    pub fn new(dtype: DType, options: ReadOptions, text_bytes: usize) -> Self {
        // Numbers with their separators are mostly eight bytes or longer.
        let guess = (text_bytes / 8 + 1).min(1 << 20);
        TensorReader {
            options,
            dtype,
            extents: Extents::default(),
            column: Column::new(dtype, options, guess),
        }
    }

    /// Reads the value at `cursor` and appends it. The second and later values must have the
    /// shape of the first.
    ///
    /// # Errors
    /// [`Fault`]. The cursor is then behind the value unless the text itself is broken.
    #[inline]
    pub fn read(&mut self, cursor: &mut Cursor) -> Read<()> {
        let start = cursor.offset();
        let first = self.column.len() == 0;
        match self.column.read(cursor, &mut self.extents, self.options) {
            Ok(()) => Ok(()),
            Err(fault) if first => Err(fault),
            Err(fault) => Err(self.row_fault(cursor, start, fault)),
        }
    }

    /// A value that did not fit the first one's shape: says whether it is wrong in itself or has
    /// another shape.
    #[cold]
    fn row_fault(&self, cursor: &mut Cursor, start: usize, fault: Fault) -> Fault {
        let Some(expected) = self.extents.known_shape() else {
            return fault;
        };
        let mut alone = TensorReader::new(self.dtype, self.options, 0);
        cursor.seek(start);
        let read = alone
            .column
            .read(cursor, &mut alone.extents, alone.options);
        if let Err(own) = read {
            return own;
        }
        let size = alone.column.len();
        let want = expected.elements().unwrap_or(0);
        if size != want {
            let expected = want;
            return Fault::RowSize { size, expected };
        }
        match alone.extents.known_shape() {
            Some(shape) if shape != expected => Fault::RowShape { shape, expected },
            _ => fault,
        }
    }

    /// The tensor of the one value that was read.
    ///
    /// # Errors
    /// If none was.
    pub fn finish(self) -> EngineResult<Tensor> {
        let shape = self.extents.known_shape().unwrap_or_else(|| Shape::vector(0));
        self.column.into_tensor(self.dtype, shape)
    }

    /// The tensor whose rows are the `rows` values that were read.
    ///
    /// # Errors
    /// If there were not that many.
    pub fn finish_rows(self, rows: usize) -> EngineResult<Tensor> {
        let row = self.extents.known_shape().unwrap_or_default();
        let mut dims = vec![i64::try_from(rows).unwrap_or(i64::MAX)];
        dims.extend_from_slice(row.dims());
        self.column.into_tensor(self.dtype, Shape::new(&dims)?)
    }
}

/// Whether the value at `cursor` is an object whose one member is a string named `b64`.
///
/// # Errors
/// If it is no JSON.
pub fn is_base64_object(cursor: &Cursor) -> Result<bool, SyntaxError> {
    let mut cursor = cursor.clone();
    if cursor.peek() != b'{' || !cursor.open_object()? {
        return Ok(false);
    }
    if &*cursor.name()? != b"b64" || cursor.peek() != b'"' {
        return Ok(false);
    }
    cursor.skip_value()?;
    Ok(!cursor.next_member()?)
}

/// The size of each level of nesting, as far as it is known.
#[derive(Default)]
struct Extents {
    /// How many lists a value is in.
    rank: Option<usize>,
    /// Size of the first list at each level, set when that list ends.
    sizes: SmallVec<[Option<usize>; 6]>,
}

impl Extents {
    /// The shape of the first value, once it is read.
    fn known_shape(&self) -> Option<Shape> {
        let sizes = self.sizes.get(..self.rank?)?.iter();
        let dims: Option<Vec<i64>> = sizes.map(|size| i64::try_from((*size)?).ok()).collect();
        Shape::new(&dims?).ok()
    }

    fn size(&self, level: usize) -> Option<usize> {
        self.sizes.get(level).copied().flatten()
    }

    fn set_size(&mut self, level: usize, size: usize) {
        if self.sizes.len() <= level {
            self.sizes.resize(level + 1, None);
        }
        if let Some(slot) = self.sizes.get_mut(level) {
            *slot = Some(size);
        }
    }
}

/// Where elements go.
trait Sink {
    /// Reads the element at `cursor`.
    fn element(&mut self, cursor: &mut Cursor) -> Read<()>;
    /// How many were read.
    fn len(&self) -> usize;
    /// Memory taken so far, in bytes.
    fn bytes(&self) -> usize;
    /// The tensor of all elements.
    fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor>;
}

/// One pass over a nested value.
struct Walk<'c, 't, 's, S> {
    cursor: &'c mut Cursor<'t>,
    extents: &'c mut Extents,
    sink: &'s mut S,
    max_bytes: usize,
}

impl<S: Sink> Walk<'_, '_, '_, S> {
    fn value(&mut self, level: usize) -> Read<()> {
        if self.cursor.peek() == b'[' {
            return self.list(level);
        }
        match self.extents.rank {
            None => self.extents.rank = Some(level),
            Some(rank) if rank != level => {
                let at = self.cursor.offset();
                self.cursor.skip_value()?;
                return Err(Fault::ValueAtWrongLevel { at, level, rank });
            }
            Some(_) => {}
        }
        self.element(level)
    }

    /// Reads a value of the right level. On a fault the cursor is put behind it.
    #[inline]
    fn element(&mut self, level: usize) -> Read<()> {
        let start = self.cursor.offset();
        match self.sink.element(self.cursor) {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.element_fault(start, level, fault)),
        }
    }

    #[cold]
    fn element_fault(&mut self, start: usize, level: usize, fault: Fault) -> Fault {
        self.cursor.seek(start);
        let is_list = self.cursor.peek() == b'[';
        if let Err(error) = self.cursor.skip_value() {
            return Fault::Syntax(error);
        }
        match self.extents.rank {
            Some(rank) if is_list => Fault::ListTooDeep { level, rank },
            _ => fault,
        }
    }

    fn list(&mut self, level: usize) -> Read<()> {
        if let Some(rank) = self.extents.rank
            && level >= rank
        {
            self.cursor.skip_value()?;
            return Err(Fault::ListTooDeep { level, rank });
        }
        if level >= MAX_RANK {
            self.cursor.skip_value()?;
            return Err(Fault::TooManyDimensions);
        }
        let mut size = 0;
        let mut fault = None;
        let mut more = self.cursor.open_array();
        if !more && self.extents.rank.is_none() {
            self.extents.rank = Some(level + 1);
        }
        while more {
            let read = if fault.is_some() {
                // Only the size still matters: a list of the wrong size is reported before what
                // is wrong inside it.
                self.cursor.skip_value().map_err(Fault::from)
            } else if self.extents.rank == Some(level + 1) {
                self.element(level + 1)
            } else {
                self.value(level + 1)
            };
            match read {
                Ok(()) => {}
                Err(syntax @ Fault::Syntax(_)) => return Err(syntax),
                Err(other) => fault = Some(other),
            }
            size += 1;
            more = self.cursor.next_element()?;
        }
        self.end_list(level, size, fault)
    }

    #[inline]
    fn end_list(&mut self, level: usize, size: usize, fault: Option<Fault>) -> Read<()> {
        match self.extents.size(level) {
            Some(expected) if expected != size => {
                return Err(Fault::ListSize { size, level, expected });
            }
            Some(_) => {}
            None if fault.is_none() => self.extents.set_size(level, size),
            None => {}
        }
        if self.sink.bytes() > self.max_bytes {
            return Err(Fault::TooLarge);
        }
        fault.map_or(Ok(()), Err)
    }
}

/// A number type that JSON numbers become.
trait Scalar: Element {
    /// The number as this type, if the types match.
    fn exactly(number: Number) -> Option<Self>;

    /// The number as this type, as NumPy would take it.
    fn coerced(number: Number) -> Option<Self>;

    /// A numeric string as this type, as NumPy would take it.
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! float_scalar {
    ($($type:ty: $from:expr;)*) => { $(
        impl Scalar for $type {
            #[inline]
            fn exactly(number: Number) -> Option<Self> {
                Some($from(number.as_f64()))
            }

            fn coerced(number: Number) -> Option<Self> {
                Self::exactly(number)
            }

            fn parse(text: &str) -> Option<Self> {
                text.trim().parse::<f64>().ok().map($from)
            }
        }
    )* };
}

// TensorFlow Serving reads a double and narrows it, so `0.1` becomes the float nearest to the
// double nearest to 0.1; too large a number becomes an infinity.
#[allow(clippy::cast_possible_truncation)]
const fn narrow(x: f64) -> f32 {
    x as f32
}

float_scalar! {
    f64: |x| x;
    f32: narrow;
    Half: |x| Half(f16::from_f64(x));
    Brain: |x| Brain(bf16::from_f64(x));
}

/// Half-precision as a tensor element.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct Half(f16);

/// bfloat16 as a tensor element.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct Brain(bf16);

impl Element for Half {
    const DTYPE: DType = DType::Half;
}

impl Element for Brain {
    const DTYPE: DType = DType::BFloat16;
}

fn integer(number: Number) -> Option<i128> {
    match number {
        Number::Unsigned(n) => Some(i128::from(n)),
        Number::Negative(n) => Some(i128::from(n)),
        Number::Float(_) => None,
    }
}

/// An integer that any number is cut to, towards zero; `None` for NaN and infinities.
#[allow(clippy::cast_possible_truncation)]
fn cut(number: Number) -> Option<i128> {
    match number {
        Number::Float(x) if x.is_finite() => Some(x.trunc() as i128),
        Number::Float(_) => None,
        Number::Unsigned(_) | Number::Negative(_) => integer(number),
    }
}

macro_rules! integer_scalar {
    ($($type:ty: $exactly:expr;)*) => { $(
        impl Scalar for $type {
            #[inline]
            fn exactly(number: Number) -> Option<Self> {
                $exactly(number)
            }

            fn coerced(number: Number) -> Option<Self> {
                <$type>::try_from(cut(number)?).ok()
            }

            fn parse(text: &str) -> Option<Self> {
                text.trim().parse().ok()
            }
        }
    )* };
}

/// The number as an int32: the only range TensorFlow Serving checks for the types narrower than
/// that, which then wrap.
#[inline]
fn int32(number: Number) -> Option<i32> {
    match number {
        Number::Unsigned(n) => i32::try_from(n).ok(),
        Number::Negative(n) => i32::try_from(n).ok(),
        Number::Float(_) => None,
    }
}

integer_scalar! {
    i8: |n| int32(n).map(|n| n.to_le_bytes()[0].cast_signed());
    u8: |n| int32(n).map(|n| n.to_le_bytes()[0]);
    i16: |n| int32(n).map(wrap_i16);
    i32: int32;
    i64: |n| integer(n).and_then(|n| n.try_into().ok());
    u16: |n| integer(n).and_then(|n| n.try_into().ok());
    u32: |n| integer(n).and_then(|n| n.try_into().ok());
    u64: |n| integer(n).and_then(|n| n.try_into().ok());
}

#[allow(clippy::cast_possible_truncation)]
const fn wrap_i16(n: i32) -> i16 {
    n as i16
}

/// Elements that are numbers.
struct Numbers<T> {
    values: AlignedVec<T>,
    coerce: bool,
}

impl<T: Scalar> Sink for Numbers<T> {
    #[inline]
    fn element(&mut self, cursor: &mut Cursor) -> Read<()> {
        let at = cursor.offset();
        if let Ok(number) = cursor.number()
            && let Some(value) = if self.coerce { T::coerced(number) } else { T::exactly(number) }
        {
            self.values.push(value);
            return Ok(());
        }
        if self.coerce {
            cursor.seek(at);
            return self.coerced(cursor);
        }
        Err(Fault::Type { at })
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn bytes(&self) -> usize {
        self.values.len() * size_of::<T>()
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_vec(shape, self.values)
    }
}

impl<T: Scalar> Numbers<T> {
    /// Reads the element at `cursor` as NumPy would.
    #[cold]
    fn coerced(&mut self, cursor: &mut Cursor) -> Read<()> {
        let fault = Fault::Type { at: cursor.offset() };
        let value = match cursor.peek() {
            b'"' => {
                let text = cursor.string()?;
                std::str::from_utf8(&text).ok().and_then(T::parse)
            }
            b't' => {
                cursor.literal(b"true")?;
                T::coerced(Number::Unsigned(1))
            }
            b'f' => {
                cursor.literal(b"false")?;
                T::coerced(Number::Unsigned(0))
            }
            _ => cursor.number().ok().and_then(T::coerced),
        };
        self.values.push(value.ok_or(fault)?);
        Ok(())
    }
}

/// Elements that are booleans, a byte each.
struct Booleans {
    values: AlignedVec<u8>,
    coerce: bool,
}

impl Sink for Booleans {
    fn element(&mut self, cursor: &mut Cursor) -> Read<()> {
        let at = cursor.offset();
        let value = match cursor.peek() {
            b't' => {
                cursor.literal(b"true")?;
                true
            }
            b'f' => {
                cursor.literal(b"false")?;
                false
            }
            b'-' | b'0'..=b'9' if self.coerce => cursor.number()?.as_f64() != 0.0,
            _ => return Err(Fault::Type { at }),
        };
        self.values.push(u8::from(value));
        Ok(())
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn bytes(&self) -> usize {
        self.values.len()
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_bools(shape, self.values)
    }
}

/// Elements that are strings.
struct Texts {
    values: StringsBuilder,
    alphabet: Alphabet,
    bytes: usize,
}

impl Sink for Texts {
    fn element(&mut self, cursor: &mut Cursor) -> Read<()> {
        let at = cursor.offset();
        let alphabet = self.alphabet;
        match cursor.peek() {
            b'"' => self
                .values
                .push_with(|bytes| cursor.string_into(bytes).map_err(Fault::from))?,
            b'{' => self.values.push_with(|bytes| {
                if !is_base64_object(cursor)? {
                    return Err(Fault::NotBase64Object { at });
                }
                cursor.open_object()?;
                cursor.name()?;
                let text = cursor.string()?;
                cursor.next_member()?;
                base64::decode(&text, alphabet, bytes).map_err(|_| Fault::NotBase64)
            })?,
            _ => return Err(Fault::Type { at }),
        }
        // What one string takes here and, as a 24-byte record, in the runtime.
        self.bytes += 32 + cursor.offset() - at;
        Ok(())
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_strings(shape, self.values)
    }
}

/// Elements of a type that can not be written in JSON.
struct Nothing;

impl Sink for Nothing {
    fn element(&mut self, cursor: &mut Cursor) -> Read<()> {
        let at = cursor.offset();
        Err(Fault::Unsupported { at })
    }

    fn len(&self) -> usize {
        0
    }

    fn bytes(&self) -> usize {
        0
    }

    fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor> {
        let empty = Buffer::new(Arc::new(aligned_vec::<u8>(0)));
        Tensor::numeric(dtype, shape, empty)
    }
}

macro_rules! column {
    ($($variant:ident($sink:ty)),* $(,)?) => {
        /// The elements read so far.
        enum Column { $($variant($sink)),* }

        impl Column {
            fn read(
                &mut self,
                cursor: &mut Cursor,
                extents: &mut Extents,
                options: ReadOptions,
            ) -> Read<()> {
                let max_bytes = options.max_bytes;
                match self {
                    $(Column::$variant(sink) => {
                        Walk { cursor, extents, sink, max_bytes }.value(0)
                    })*
                }
            }

            fn len(&self) -> usize {
                match self {
                    $(Column::$variant(sink) => sink.len(),)*
                }
            }

            fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor> {
                match self {
                    $(Column::$variant(sink) => sink.into_tensor(dtype, shape),)*
                }
            }
        }
    };
}

column! {
    Float(Numbers<f32>), Double(Numbers<f64>), Half(Numbers<Half>), BFloat16(Numbers<Brain>),
    Int8(Numbers<i8>), Int16(Numbers<i16>), Int32(Numbers<i32>), Int64(Numbers<i64>),
    UInt8(Numbers<u8>), UInt16(Numbers<u16>), UInt32(Numbers<u32>), UInt64(Numbers<u64>),
    Bool(Booleans), String(Texts), Nothing(Nothing),
}

impl Column {
    fn new(dtype: DType, options: ReadOptions, guess: usize) -> Self {
        fn numbers<T>(coerce: bool, guess: usize) -> Numbers<T> {
            let values = aligned_vec(guess);
            Numbers { values, coerce }
        }
        let coerce = options.coerce;
        match dtype {
            DType::Float => Column::Float(numbers(coerce, guess)),
            DType::Double => Column::Double(numbers(coerce, guess)),
            DType::Int8 => Column::Int8(numbers(coerce, guess)),
            DType::Int16 => Column::Int16(numbers(coerce, guess)),
            DType::Int32 => Column::Int32(numbers(coerce, guess)),
            DType::Int64 => Column::Int64(numbers(coerce, guess)),
            DType::UInt8 => Column::UInt8(numbers(coerce, guess)),
            DType::UInt32 => Column::UInt32(numbers(coerce, guess)),
            DType::UInt64 => Column::UInt64(numbers(coerce, guess)),
            DType::UInt16 if coerce => Column::UInt16(numbers(coerce, guess)),
            DType::Half if coerce => Column::Half(numbers(coerce, guess)),
            DType::BFloat16 if coerce => Column::BFloat16(numbers(coerce, guess)),
            DType::UInt16
            | DType::Half
            | DType::BFloat16
            | DType::Complex64
            | DType::Complex128 => Column::Nothing(Nothing),
            DType::Bool => Column::Bool(Booleans {
                values: aligned_vec(guess),
                coerce,
            }),
            DType::String => Column::String(Texts {
                values: StringsBuilder::default(),
                alphabet: options.alphabet,
                bytes: 0,
            }),
        }
    }
}

/// The byte range of the value at `cursor`, which is put behind it.
///
/// # Errors
/// If it is no JSON.
pub fn span(cursor: &mut Cursor) -> Result<Range<usize>, SyntaxError> {
    let start = cursor.offset();
    cursor.skip_value()?;
    Ok(start..cursor.offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: ReadOptions = ReadOptions {
        coerce: false,
        alphabet: Alphabet::Standard,
        max_bytes: 1 << 20,
    };
    const NUMPY: ReadOptions = ReadOptions {
        coerce: true,
        ..STRICT
    };

    fn read_with(dtype: DType, options: ReadOptions, text: &str) -> Read<Tensor> {
        let mut reader = TensorReader::new(dtype, options, text.len());
        let mut cursor = Cursor::new(text.as_bytes());
        reader.read(&mut cursor)?;
        assert_eq!(cursor.remaining(), 0, "{text}");
        Ok(reader.finish().expect("sizes agree"))
    }

    fn read(dtype: DType, text: &str) -> Read<Tensor> {
        read_with(dtype, STRICT, text)
    }

    fn rows(dtype: DType, texts: &[&str]) -> Read<Tensor> {
        let mut reader = TensorReader::new(dtype, STRICT, 0);
        for text in texts {
            reader.read(&mut Cursor::new(text.as_bytes()))?;
        }
        Ok(reader.finish_rows(texts.len()).expect("sizes agree"))
    }

    fn dims(tensor: &Tensor) -> &[i64] {
        tensor.shape().dims()
    }

    #[test]
    fn shapes_come_from_the_first_elements() {
        let tensor = read(DType::Float, "[[1, 2.5],[3,4] , [5,6]]").expect("valid");
        assert_eq!(dims(&tensor), [3, 2]);
        assert_eq!(tensor.values::<f32>(), Some(&[1.0, 2.5, 3.0, 4.0, 5.0, 6.0][..]));
        assert_eq!(dims(&read(DType::Int32, "5").expect("scalar")), [0i64; 0]);
        assert_eq!(dims(&read(DType::Int32, "[]").expect("empty")), [0]);
        assert_eq!(dims(&read(DType::Int32, "[[],[]]").expect("empty")), [2, 0]);
        assert_eq!(dims(&read(DType::Int32, "[[[1],[2]]]").expect("cube")), [1, 2, 1]);
    }

    #[test]
    fn faults_are_those_tensorflow_serving_finds_first() {
        let fault = |text| read(DType::Int32, text).expect_err(text);
        assert_eq!(fault("[1,[2]]"), Fault::ListTooDeep { level: 1, rank: 1 });
        assert_eq!(fault("[[1],2]"), Fault::ValueAtWrongLevel { at: 5, level: 1, rank: 2 });
        let size = |size, level, expected| Fault::ListSize { size, level, expected };
        assert_eq!(fault("[[1,2],[3]]"), size(1, 1, 2));
        // The size of a list comes before what is wrong inside it.
        assert_eq!(fault("[[1,2],[3,\"x\",4]]"), size(3, 1, 2));
        assert_eq!(fault("[[],[1]]"), size(1, 1, 0));
        assert_eq!(fault("[1,\"x\"]"), Fault::Type { at: 3 });
        assert_eq!(fault("[1.0]"), Fault::Type { at: 1 });
        assert_eq!(fault("[null]"), Fault::Type { at: 1 });
        assert_eq!(fault("[2147483648]"), Fault::Type { at: 1 });
        assert!(matches!(fault("[1,"), Fault::Syntax(_)));
        assert!(matches!(fault("[1,nul]"), Fault::Syntax(_)));
        assert_eq!(read(DType::Half, "[1]").expect_err("half"), Fault::Unsupported { at: 1 });
        assert_eq!(read(DType::Bool, "[1]").expect_err("bool"), Fault::Type { at: 1 });
    }

    #[test]
    fn rows_must_look_like_the_first() {
        let tensor = rows(DType::Int32, &["[1,2]", "[3,4]"]).expect("valid");
        assert_eq!(dims(&tensor), [2, 2]);
        let fault = rows(DType::Int32, &["[1,2]", "[3]"]).expect_err("short");
        assert_eq!(fault, Fault::RowSize { size: 1, expected: 2 });
        let fault = rows(DType::Int32, &["[1,2]", "[[3,4]]"]).expect_err("deep");
        let (shape, expected) = (Shape::new(&[1, 2]).unwrap(), Shape::vector(2));
        assert_eq!(fault, Fault::RowShape { shape, expected });
        let fault = rows(DType::Int32, &["1", "[1]"]).expect_err("list");
        let (shape, expected) = (Shape::vector(1), Shape::scalar());
        assert_eq!(fault, Fault::RowShape { shape, expected });
        let fault = rows(DType::Int32, &["[1]", "[\"x\"]"]).expect_err("type");
        assert_eq!(fault, Fault::Type { at: 1 });
    }

    #[test]
    fn narrow_integers_wrap() {
        let tensor = read(DType::UInt8, "[256,-1,300]").expect("valid");
        assert_eq!(tensor.values::<u8>(), Some(&[0, 255, 44][..]));
        let tensor = read(DType::Int16, "[70000]").expect("valid");
        assert_eq!(tensor.values::<i16>(), Some(&[4464][..]));
    }

    #[test]
    fn floats_take_everything_numeric() {
        let text = "[1,-0,-0.0,1e400000000,NaN,-Infinity]";
        assert!(matches!(read(DType::Float, text), Err(Fault::Syntax(_))));
        let text = "[1e300,-0,-0.0,NaN,-Infinity,1e-300]";
        let tensor = read(DType::Float, text).expect("valid");
        let values = tensor.values::<f32>().expect("floats");
        assert_eq!(values[0], f32::INFINITY);
        assert!(values[1].is_sign_positive() && values[2].is_sign_negative());
        assert!(values[3].is_nan());
        assert_eq!(values[4], f32::NEG_INFINITY);
        assert_eq!(values[5], 0.0);
    }

    #[test]
    fn strings_and_base64_objects_mix() {
        let tensor = read(DType::String, r#"["a\u00e9", {"b64":"aGVsbG8="}]"#).expect("valid");
        let strings: Vec<&[u8]> = tensor.strings().expect("strings").iter().collect();
        assert_eq!(strings, ["a\u{e9}".as_bytes(), b"hello"]);
        let fault = |text| read(DType::String, text).expect_err(text);
        assert_eq!(fault(r#"[{"b64":"*"}]"#), Fault::NotBase64);
        assert_eq!(fault(r#"[{"b64":"","x":1}]"#), Fault::NotBase64Object { at: 1 });
        assert_eq!(fault("[1]"), Fault::Type { at: 1 });
    }

    #[test]
    fn numpy_coercion() {
        let read = |dtype, text| read_with(dtype, NUMPY, text);
        let tensor = read(DType::Int32, r#"[1.7,-1.7,"12",true]"#).expect("valid");
        assert_eq!(tensor.values::<i32>(), Some(&[1, -1, 12, 1][..]));
        let tensor = read(DType::Float, r#"["1.5",true,false]"#).expect("valid");
        assert_eq!(tensor.values::<f32>(), Some(&[1.5, 1.0, 0.0][..]));
        let tensor = read(DType::Half, "[1.5,-2]").expect("valid");
        assert_eq!(tensor.bytes(), [0x00, 0x3e, 0x00, 0xc0]);
        assert_eq!(read(DType::Int32, r#"["a"]"#).expect_err("text"), Fault::Type { at: 1 });
        assert_eq!(read(DType::Int32, "[NaN]").expect_err("NaN"), Fault::Type { at: 1 });
        assert_eq!(read(DType::UInt8, "[256]").expect_err("range"), Fault::Type { at: 1 });
    }

    #[test]
    fn depth_and_memory_are_bounded() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        assert_eq!(read(DType::Float, &deep).expect_err("deep"), Fault::TooManyDimensions);
        let many = format!("[{}1]", "1,".repeat(1 << 18));
        assert_eq!(read(DType::Float, &many).expect_err("large"), Fault::TooLarge);
        let many = format!("[{}\"\"]", "\"\",".repeat(1 << 15));
        assert_eq!(read(DType::String, &many).expect_err("large"), Fault::TooLarge);
    }
}
