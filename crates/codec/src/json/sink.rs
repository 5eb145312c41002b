//! Sinks for the elements of a nested value, one kind for each element type.

use std::sync::Arc;

use half::{bf16, f16};

use super::buffer::NumberBuffer;
use super::java::number_text;
use super::number::Number;
use super::scan::Cursor;
use super::walk::{
    Extents, NestedReader, ReadOptions, ReadResult, Sink, TensorReadError, is_base64_object,
};
use crate::base64::{self, Alphabet};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::Result as EngineResult;
use tensorserve_tensor::{
    Buffer, DType, Element, NumberTexts, STRING_OVERHEAD, Shape, StringsBuilder, Tensor,
    aligned_vec,
};

/// A numeric element type.
pub(crate) trait Scalar: Element {
    /// What stands for a missing value; `None` if nothing does.
    fn missing() -> Option<Self>;

    /// Converts a number by TensorFlow Serving's rules: integers become floats, but floats do not
    /// become integers. `None` if it does not fit.
    fn from_number(number: Number) -> Option<Self>;

    /// Converts a number by NumPy's rules: fractions are truncated. `None` if it does not fit.
    fn coerce(number: Number) -> Option<Self>;

    /// Converts a numeric string by NumPy's rules.
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! float_scalar {
    ($($type:ty: $from:expr;)*) => { $(
        impl Scalar for $type {
            fn missing() -> Option<Self> {
                Some($from(f64::NAN))
            }

            #[inline]
            fn from_number(number: Number) -> Option<Self> {
                Some($from(number.as_f64()))
            }

            fn coerce(number: Number) -> Option<Self> {
                Self::from_number(number)
            }

            fn parse(text: &str) -> Option<Self> {
                text.trim().parse::<f64>().ok().map($from)
            }
        }
    )* };
}

/// Narrows a double as TensorFlow Serving does: `0.1` becomes the float nearest to the double
/// nearest to 0.1, and a number that is too large becomes an infinity.
#[allow(clippy::cast_possible_truncation)]
const fn narrow(x: f64) -> f32 {
    x as f32
}

float_scalar! {
    f64: |x| x;
    f32: narrow;
    Half: |x| Half(f16::from_f64(x));
    Bf16: |x| Bf16(bf16::from_f64(x));
}

/// A half-precision float as a tensor element.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct Half(f16);

/// A bfloat16 float as a tensor element.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct Bf16(bf16);

impl Element for Half {
    const DTYPE: DType = DType::Half;
}

impl Element for Bf16 {
    const DTYPE: DType = DType::BFloat16;
}

/// The value of an integer token.
fn integer(number: Number) -> Option<i128> {
    match number {
        Number::Unsigned(n) => Some(i128::from(n)),
        Number::Negative(n) => Some(i128::from(n)),
        Number::Float(_) => None,
    }
}

/// A number truncated towards zero; `None` for NaN and infinities.
#[allow(clippy::cast_possible_truncation)]
fn truncate(number: Number) -> Option<i128> {
    match number {
        Number::Float(x) if x.is_finite() => Some(x.trunc() as i128),
        Number::Float(_) => None,
        Number::Unsigned(_) | Number::Negative(_) => integer(number),
    }
}

macro_rules! integer_scalar {
    ($($type:ty: $from_number:expr;)*) => { $(
        impl Scalar for $type {
            fn missing() -> Option<Self> {
                None
            }

            #[inline]
            fn from_number(number: Number) -> Option<Self> {
                $from_number(number)
            }

            fn coerce(number: Number) -> Option<Self> {
                <$type>::try_from(truncate(number)?).ok()
            }

            fn parse(text: &str) -> Option<Self> {
                text.trim().parse().ok()
            }
        }
    )* };
}

/// An integer token as an int32. TensorFlow Serving checks this range for narrower types, too, and
/// then wraps the value.
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

/// Numbers.
pub(super) struct NumberSink<T> {
    numbers: NumberBuffer<T>,
    coerce: bool,
    nulls: bool,
    max_bytes: usize,
}

impl<T: Scalar> Sink for NumberSink<T> {
    #[inline]
    fn element(&mut self, cursor: &mut Cursor) -> ReadResult<()> {
        let at = cursor.offset();
        if !self.numbers.make_room(cursor.remaining(), self.max_bytes)? {
            return Err(Box::new(TensorReadError::TooLarge));
        }
        if let Ok(number) = cursor.number()
            && let Some(value) =
                if self.coerce { T::coerce(number) } else { T::from_number(number) }
        {
            self.numbers.values().push(value);
            return Ok(());
        }
        if self.coerce || self.nulls {
            cursor.seek(at);
            return self.unusual_element(cursor);
        }
        Err(Box::new(TensorReadError::Type { at }))
    }

    #[inline]
    fn plain_run(&mut self, cursor: &mut Cursor) -> (usize, bool) {
        if self.coerce {
            return (0, true);
        }
        let room = self.numbers.room();
        let values = self.numbers.values();
        for read in 0..room {
            let at = cursor.offset();
            let element = cursor.short_element();
            let element = element.or_else(|| Some((cursor.number().ok()?, false)));
            let typed = element.and_then(|(number, comma)| Some((T::from_number(number)?, comma)));
            let Some((value, comma)) = typed else {
                cursor.seek(at);
                return (read, true);
            };
            values.push(value);
            if !comma && !cursor.skip_comma() {
                return (read + 1, false);
            }
        }
        (room, true)
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn truncate(&mut self, len: usize) {
        self.numbers.values().truncate(len);
    }

    fn has_missing(&self) -> bool {
        T::missing().is_some()
    }

    fn add_missing(&mut self, count: usize) -> ReadResult<()> {
        let Some(missing) = T::missing() else { return Ok(()) };
        let total = self.len().saturating_add(count);
        if total > self.max_bytes / size_of::<T>().max(1) {
            return Err(Box::new(TensorReadError::TooLarge));
        }
        self.numbers.grow_to(total)?;
        self.numbers.values().resize(total, missing);
        Ok(())
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_vec(shape, self.numbers.finish())
    }
}

impl<T: Scalar> NumberSink<T> {
    /// Reads a missing value, or an element of any JSON type that NumPy converts to a number.
    #[cold]
    fn unusual_element(&mut self, cursor: &mut Cursor) -> ReadResult<()> {
        let error = TensorReadError::Type { at: cursor.offset() };
        let value = match cursor.peek() {
            b'n' if self.nulls => {
                cursor.literal(b"null")?;
                T::missing()
            }
            // Whoever calls this has asked for one or the other.
            b't' => {
                cursor.literal(b"true")?;
                T::coerce(Number::Unsigned(1))
            }
            b'f' => {
                cursor.literal(b"false")?;
                T::coerce(Number::Unsigned(0))
            }
            _ if !self.coerce => None,
            b'"' => {
                let text = cursor.string()?;
                std::str::from_utf8(&text).ok().and_then(T::parse)
            }
            _ => cursor.number().ok().and_then(T::coerce),
        };
        self.numbers.values().push(value.ok_or_else(|| Box::new(error))?);
        Ok(())
    }
}

/// Booleans, one byte each.
pub(super) struct BoolSink {
    values: NumberBuffer<u8>,
    coerce: bool,
    max_bytes: usize,
}

impl Sink for BoolSink {
    fn element(&mut self, cursor: &mut Cursor) -> ReadResult<()> {
        let at = cursor.offset();
        if !self.values.make_room(cursor.remaining(), self.max_bytes)? {
            return Err(Box::new(TensorReadError::TooLarge));
        }
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
            _ => return Err(Box::new(TensorReadError::Type { at })),
        };
        self.values.values().push(u8::from(value));
        Ok(())
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn truncate(&mut self, len: usize) {
        self.values.values().truncate(len);
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_bools(shape, self.values.finish())
    }
}

/// Strings, from JSON strings and from `{"b64": "…"}` objects.
pub(super) struct StringSink {
    values: StringsBuilder,
    alphabet: Alphabet,
    nulls: bool,
    number_texts: Option<NumberTexts>,
    /// The memory of the elements, here and in the runtime.
    bytes: usize,
    max_bytes: usize,
}

impl Sink for StringSink {
    fn element(&mut self, cursor: &mut Cursor) -> ReadResult<()> {
        let at = cursor.offset();
        let alphabet = self.alphabet;
        self.values.reserve(1, 0)?;
        match cursor.peek() {
            b'"' => self.values.push_with(|bytes| cursor.string_into(bytes, make_room))?,
            b'{' => self.values.push_with(|bytes| read_base64(cursor, alphabet, bytes))?,
            b'n' if self.nulls => {
                cursor.literal(b"null")?;
                self.values.reserve_missing(1)?;
                self.values.push_missing();
            }
            b'-' | b'0'..=b'9' => {
                let texts = self.number_texts;
                let number = texts.and_then(|texts| number_text(cursor.number().ok()?, texts));
                let text = number.ok_or_else(|| Box::new(TensorReadError::Type { at }))?;
                self.values.reserve(1, text.len())?;
                self.values.push(text.as_bytes());
            }
            _ => return Err(Box::new(TensorReadError::Type { at })),
        }
        self.count_bytes(STRING_OVERHEAD + cursor.offset() - at)
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
    }

    fn has_missing(&self) -> bool {
        true
    }

    fn add_missing(&mut self, count: usize) -> ReadResult<()> {
        self.count_bytes(count.saturating_mul(STRING_OVERHEAD))?;
        self.values.reserve(count, 0)?;
        self.values.reserve_missing(count)?;
        (0..count).for_each(|_| self.values.push_missing());
        Ok(())
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_strings(shape, self.values)
    }
}

impl StringSink {
    fn count_bytes(&mut self, more: usize) -> ReadResult<()> {
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes > self.max_bytes {
            return Err(Box::new(TensorReadError::TooLarge));
        }
        Ok(())
    }
}

/// Makes room for `more` bytes, after reserving it.
fn make_room(bytes: &mut Vec<u8>, more: usize) -> ReadResult<()> {
    Ok(budget::grow(bytes, more)?)
}

/// Reads an object `{"b64": "…"}` and appends the decoded bytes to `out`.
fn read_base64(cursor: &mut Cursor, alphabet: Alphabet, out: &mut Vec<u8>) -> ReadResult<()> {
    let at = cursor.offset();
    if !is_base64_object(cursor)? {
        return Err(Box::new(TensorReadError::NotBase64Object { at }));
    }
    cursor.open_object()?;
    cursor.name()?;
    let text = cursor.string()?;
    cursor.next_member()?;
    make_room(out, text.len())?;
    base64::decode(&text, alphabet, out).map_err(|_| Box::new(TensorReadError::NotBase64))
}

/// Elements of a type that cannot be read from JSON.
pub(super) struct UnsupportedSink;

impl Sink for UnsupportedSink {
    fn element(&mut self, cursor: &mut Cursor) -> ReadResult<()> {
        let at = cursor.offset();
        Err(Box::new(TensorReadError::Unsupported { at }))
    }

    fn len(&self) -> usize {
        0
    }

    fn truncate(&mut self, _: usize) {}

    fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor> {
        let empty = Buffer::new(Arc::new(aligned_vec::<u8>(0)));
        Tensor::numeric(dtype, shape, empty)
    }
}

macro_rules! element_buffer {
    ($($variant:ident($sink:ty)),* $(,)?) => {
        /// The elements of a tensor that is being read.
        pub(super) enum ElementBuffer { $($variant($sink)),* }

        impl ElementBuffer {
            pub(super) fn read(
                &mut self,
                cursor: &mut Cursor,
                extents: &mut Extents,
            ) -> ReadResult<()> {
                match self {
                    $(ElementBuffer::$variant(sink) => {
                        NestedReader { cursor, extents, sink }.value(0)
                    })*
                }
            }

            pub(super) fn has_missing(&self) -> bool {
                match self {
                    $(ElementBuffer::$variant(sink) => sink.has_missing(),)*
                }
            }

            pub(super) fn add_missing(&mut self, count: usize) -> ReadResult<()> {
                match self {
                    $(ElementBuffer::$variant(sink) => sink.add_missing(count),)*
                }
            }

            pub(super) fn len(&self) -> usize {
                match self {
                    $(ElementBuffer::$variant(sink) => sink.len(),)*
                }
            }

            pub(super) fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor> {
                match self {
                    $(ElementBuffer::$variant(sink) => sink.into_tensor(dtype, shape),)*
                }
            }
        }
    };
}

element_buffer! {
    Float(NumberSink<f32>), Double(NumberSink<f64>),
    Half(NumberSink<Half>), BFloat16(NumberSink<Bf16>),
    Int8(NumberSink<i8>), Int16(NumberSink<i16>), Int32(NumberSink<i32>), Int64(NumberSink<i64>),
    UInt8(NumberSink<u8>), UInt16(NumberSink<u16>),
    UInt32(NumberSink<u32>), UInt64(NumberSink<u64>),
    Bool(BoolSink), String(StringSink), Unsupported(UnsupportedSink),
}

impl ElementBuffer {
    /// An empty buffer for the elements in at most `text` bytes; 0 if that is unknown.
    pub(super) fn new(dtype: DType, options: ReadOptions, text: usize) -> Self {
        fn numbers<T: Scalar>(options: ReadOptions, text: usize) -> NumberSink<T> {
            NumberSink {
                numbers: NumberBuffer::new(text),
                coerce: options.coerce,
                nulls: options.nulls,
                max_bytes: options.max_bytes,
            }
        }
        let max_bytes = options.max_bytes;
        match dtype {
            DType::Float => ElementBuffer::Float(numbers(options, text)),
            DType::Double => ElementBuffer::Double(numbers(options, text)),
            DType::Int8 => ElementBuffer::Int8(numbers(options, text)),
            DType::Int16 => ElementBuffer::Int16(numbers(options, text)),
            DType::Int32 => ElementBuffer::Int32(numbers(options, text)),
            DType::Int64 => ElementBuffer::Int64(numbers(options, text)),
            DType::UInt8 => ElementBuffer::UInt8(numbers(options, text)),
            DType::UInt32 => ElementBuffer::UInt32(numbers(options, text)),
            DType::UInt64 => ElementBuffer::UInt64(numbers(options, text)),
            DType::UInt16 if options.all_types => ElementBuffer::UInt16(numbers(options, text)),
            DType::Half if options.all_types => ElementBuffer::Half(numbers(options, text)),
            DType::BFloat16 if options.all_types => ElementBuffer::BFloat16(numbers(options, text)),
            DType::UInt16
            | DType::Half
            | DType::BFloat16
            | DType::Complex64
            | DType::Complex128 => ElementBuffer::Unsupported(UnsupportedSink),
            DType::Bool => {
                let values = NumberBuffer::new(text);
                ElementBuffer::Bool(BoolSink { values, coerce: options.coerce, max_bytes })
            }
            DType::String => ElementBuffer::String(StringSink {
                values: StringsBuilder::default(),
                alphabet: options.alphabet,
                nulls: options.nulls,
                number_texts: options.number_texts,
                bytes: 0,
                max_bytes,
            }),
        }
    }
}
