//! Where the elements of a nested value go: one kind of buffer for each element type.

use std::sync::Arc;

use half::{bf16, f16};

use super::number::Number;
use super::scan::Cursor;
use super::walk::{Extents, Fault, Read, ReadOptions, Sink, Walk, is_base64_object};
use crate::base64::{self, Alphabet};
use tensorserve_tensor::error::Result as EngineResult;
use tensorserve_tensor::{
    AlignedVec, Buffer, DType, Element, Shape, StringsBuilder, Tensor, aligned_vec,
};

/// A number type that JSON numbers become.
pub(crate) trait Scalar: Element {
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
pub(crate) struct Half(f16);

/// bfloat16 as a tensor element.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct Brain(bf16);

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
pub(super) struct Numbers<T> {
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
        Err(Box::new(Fault::Type { at }))
    }

    #[inline]
    fn plain_run(&mut self, cursor: &mut Cursor) -> (usize, bool) {
        let before = self.values.len();
        if self.coerce {
            return (0, true);
        }
        loop {
            let at = cursor.offset();
            let element = cursor.short_element();
            let element = element.or_else(|| Some((cursor.number().ok()?, false)));
            let typed = element.and_then(|(number, comma)| Some((T::exactly(number)?, comma)));
            let Some((value, comma)) = typed else {
                cursor.seek(at);
                return (self.values.len() - before, true);
            };
            self.values.push(value);
            if !comma && !cursor.skip_comma() {
                return (self.values.len() - before, false);
            }
        }
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
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
        self.values.push(value.ok_or_else(|| Box::new(fault))?);
        Ok(())
    }
}

/// Elements that are booleans, a byte each.
pub(super) struct Booleans {
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
            _ => return Err(Box::new(Fault::Type { at })),
        };
        self.values.push(u8::from(value));
        Ok(())
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
    }

    fn bytes(&self) -> usize {
        self.values.len()
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_bools(shape, self.values)
    }
}

/// Elements that are strings.
pub(super) struct Texts {
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
                .push_with(|bytes| cursor.string_into(bytes).map_err(Box::<Fault>::from))?,
            b'{' => self.values.push_with(|bytes| {
                if !is_base64_object(cursor)? {
                    return Err(Box::new(Fault::NotBase64Object { at }));
                }
                cursor.open_object()?;
                cursor.name()?;
                let text = cursor.string()?;
                cursor.next_member()?;
                base64::decode(&text, alphabet, bytes).map_err(|_| Box::new(Fault::NotBase64))
            })?,
            _ => return Err(Box::new(Fault::Type { at })),
        }
        // What one string takes here and, as a 24-byte record, in the runtime.
        self.bytes += 32 + cursor.offset() - at;
        Ok(())
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn into_tensor(self, _: DType, shape: Shape) -> EngineResult<Tensor> {
        Tensor::from_strings(shape, self.values)
    }
}

/// Elements of a type that can not be written in JSON.
pub(super) struct Nothing;

impl Sink for Nothing {
    fn element(&mut self, cursor: &mut Cursor) -> Read<()> {
        let at = cursor.offset();
        Err(Box::new(Fault::Unsupported { at }))
    }

    fn len(&self) -> usize {
        0
    }

    fn truncate(&mut self, _: usize) {}

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
        pub(super) enum Column { $($variant($sink)),* }

        impl Column {
            pub(super) fn read(
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

            pub(super) fn len(&self) -> usize {
                match self {
                    $(Column::$variant(sink) => sink.len(),)*
                }
            }

            pub(super) fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor> {
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
    pub(super) fn new(dtype: DType, options: ReadOptions, guess: usize) -> Self {
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
            DType::UInt16 if options.all_types => Column::UInt16(numbers(coerce, guess)),
            DType::Half if options.all_types => Column::Half(numbers(coerce, guess)),
            DType::BFloat16 if options.all_types => Column::BFloat16(numbers(coerce, guess)),
            DType::UInt16
            | DType::Half
            | DType::BFloat16
            | DType::Complex64
            | DType::Complex128 => Column::Nothing(Nothing),
            DType::Bool => Column::Bool(Booleans { values: aligned_vec(guess), coerce }),
            DType::String => Column::String(Texts {
                values: StringsBuilder::default(),
                alphabet: options.alphabet,
                bytes: 0,
            }),
        }
    }
}
