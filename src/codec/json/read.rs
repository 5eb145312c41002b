//! Nested arrays to tensors: numbers go from text straight into the typed buffer that the
//! runtime will read.
//!
//! The shape is that of the first element at each level, as TensorFlow Serving has it; whatever
//! deviates is a [`Fault`] that says where. Protocols put faults into words.

use std::ops::Range;

use smallvec::SmallVec;

use super::scan::{Cursor, SyntaxError};
use super::sink::{Column, Sink};
use crate::codec::base64::Alphabet;
use crate::error::Result as EngineResult;
use crate::tensor::{DType, Shape, Tensor};

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

impl From<SyntaxError> for Box<Fault> {
    fn from(error: SyntaxError) -> Self {
        Box::new(Fault::Syntax(error))
    }
}

/// Faults are rare and large; boxed, a good result is one register.
pub(super) type Read<T> = Result<T, Box<Fault>>;

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
    pub fn read(&mut self, cursor: &mut Cursor) -> Result<(), Box<Fault>> {
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
    fn row_fault(&self, cursor: &mut Cursor, start: usize, fault: Box<Fault>) -> Box<Fault> {
        let Some(expected) = self.extents.known_shape() else {
            return fault;
        };
        let mut alone = TensorReader::new(self.dtype, self.options, 0);
        cursor.seek(start);
        let read = alone.column.read(cursor, &mut alone.extents, alone.options);
        if let Err(own) = read {
            return own;
        }
        let size = alone.column.len();
        let want = expected.elements().unwrap_or(0);
        if size != want {
            let expected = want;
            return Box::new(Fault::RowSize { size, expected });
        }
        match alone.extents.known_shape() {
            Some(shape) if shape != expected => Box::new(Fault::RowShape { shape, expected }),
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
pub(super) struct Extents {
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

/// One pass over a nested value.
pub(super) struct Walk<'c, 't, 's, S> {
    pub(super) cursor: &'c mut Cursor<'t>,
    pub(super) extents: &'c mut Extents,
    pub(super) sink: &'s mut S,
    pub(super) max_bytes: usize,
}

impl<S: Sink> Walk<'_, '_, '_, S> {
    pub(super) fn value(&mut self, level: usize) -> Read<()> {
        if self.cursor.peek() == b'[' {
            return self.list(level);
        }
        match self.extents.rank {
            None => self.extents.rank = Some(level),
            Some(rank) if rank != level => {
                let at = self.cursor.offset();
                self.cursor.skip_value()?;
                return Err(Box::new(Fault::ValueAtWrongLevel { at, level, rank }));
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
    fn element_fault(&mut self, start: usize, level: usize, fault: Box<Fault>) -> Box<Fault> {
        self.cursor.seek(start);
        let is_list = self.cursor.peek() == b'[';
        if let Err(error) = self.cursor.skip_value() {
            return error.into();
        }
        match self.extents.rank {
            Some(rank) if is_list => Box::new(Fault::ListTooDeep { level, rank }),
            _ => fault,
        }
    }

    fn list(&mut self, level: usize) -> Read<()> {
        if let Some(rank) = self.extents.rank
            && level >= rank
        {
            self.cursor.skip_value()?;
            return Err(Box::new(Fault::ListTooDeep { level, rank }));
        }
        if level >= MAX_RANK {
            self.cursor.skip_value()?;
            return Err(Box::new(Fault::TooManyDimensions));
        }
        let mut size = 0;
        let mut fault = None;
        let mut more = self.cursor.open_array();
        if !more && self.extents.rank.is_none() {
            self.extents.rank = Some(level + 1);
        }
        while more {
            if fault.is_none() {
                let (count, at_element) = self.plain_run(level + 1);
                size += count;
                if !at_element {
                    more = self.cursor.next_element()?;
                    continue;
                }
            }
            let read = if fault.is_some() {
                // Only the size still matters: a list of the wrong size is reported before what
                // is wrong inside it.
                self.cursor.skip_value().map_err(Box::from)
            } else if self.extents.rank == Some(level + 1) {
                self.element(level + 1)
            } else {
                self.value(level + 1)
            };
            if let Err(found) = read {
                if matches!(*found, Fault::Syntax(_)) {
                    return Err(found);
                }
                fault = Some(found);
            }
            size += 1;
            more = self.cursor.next_element()?;
        }
        self.end_list(level, size, fault)
    }

    /// Reads elements of `level`, from the one at the cursor on, as far as they are plain values
    /// or lists of plain values of the known size. Returns as [`Sink::plain_run`] does.
    #[inline]
    fn plain_run(&mut self, level: usize) -> (usize, bool) {
        match self.extents.rank {
            Some(rank) if rank == level => self.sink.plain_run(self.cursor),
            Some(rank) if rank == level + 1 => match self.extents.size(level) {
                Some(size) if size > 0 => self.plain_lists(size),
                _ => (0, true),
            },
            _ => (0, true),
        }
    }

    fn plain_lists(&mut self, size: usize) -> (usize, bool) {
        let mut lists = 0;
        loop {
            let (start, before) = (self.cursor.offset(), self.sink.len());
            let plain = self.cursor.take(b'[') && {
                self.cursor.skip_space();
                let (count, at_element) = self.sink.plain_run(self.cursor);
                !at_element && count == size && self.cursor.skip_space() == b']'
            };
            if !plain {
                // Something else: to be read again from its start.
                self.cursor.seek(start);
                self.sink.truncate(before);
                return (lists, true);
            }
            self.cursor.advance();
            lists += 1;
            if !self.cursor.skip_comma() {
                return (lists, false);
            }
        }
    }

    #[inline]
    fn end_list(&mut self, level: usize, size: usize, fault: Option<Box<Fault>>) -> Read<()> {
        match self.extents.size(level) {
            Some(expected) if expected != size => {
                return Err(Box::new(Fault::ListSize { size, level, expected }));
            }
            Some(_) => {}
            None if fault.is_none() => self.extents.set_size(level, size),
            None => {}
        }
        if self.sink.bytes() > self.max_bytes {
            return Err(Box::new(Fault::TooLarge));
        }
        fault.map_or(Ok(()), Err)
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

    const STRICT: ReadOptions =
        ReadOptions { coerce: false, alphabet: Alphabet::Standard, max_bytes: 1 << 20 };
    const NUMPY: ReadOptions = ReadOptions { coerce: true, ..STRICT };

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
        let fault = |text| *read(DType::Int32, text).expect_err(text);
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
        assert_eq!(*read(DType::Half, "[1]").expect_err("half"), Fault::Unsupported { at: 1 });
        assert_eq!(*read(DType::Bool, "[1]").expect_err("bool"), Fault::Type { at: 1 });
    }

    #[test]
    fn rows_must_look_like_the_first() {
        let tensor = rows(DType::Int32, &["[1,2]", "[3,4]"]).expect("valid");
        assert_eq!(dims(&tensor), [2, 2]);
        let fault = *rows(DType::Int32, &["[1,2]", "[3]"]).expect_err("short");
        assert_eq!(fault, Fault::RowSize { size: 1, expected: 2 });
        let fault = *rows(DType::Int32, &["[1,2]", "[[3,4]]"]).expect_err("deep");
        let (shape, expected) = (Shape::new(&[1, 2]).unwrap(), Shape::vector(2));
        assert_eq!(fault, Fault::RowShape { shape, expected });
        let fault = *rows(DType::Int32, &["1", "[1]"]).expect_err("list");
        let (shape, expected) = (Shape::vector(1), Shape::scalar());
        assert_eq!(fault, Fault::RowShape { shape, expected });
        let fault = *rows(DType::Int32, &["[1]", "[\"x\"]"]).expect_err("type");
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
        assert!(matches!(*read(DType::Float, text).expect_err("syntax"), Fault::Syntax(_)));
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
        let fault = |text| *read(DType::String, text).expect_err(text);
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
        assert_eq!(*read(DType::Int32, r#"["a"]"#).expect_err("text"), Fault::Type { at: 1 });
        assert_eq!(*read(DType::Int32, "[NaN]").expect_err("NaN"), Fault::Type { at: 1 });
        assert_eq!(*read(DType::UInt8, "[256]").expect_err("range"), Fault::Type { at: 1 });
    }

    #[test]
    fn depth_and_memory_are_bounded() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        assert_eq!(*read(DType::Float, &deep).expect_err("deep"), Fault::TooManyDimensions);
        let many = format!("[{}1]", "1,".repeat(1 << 18));
        assert_eq!(*read(DType::Float, &many).expect_err("large"), Fault::TooLarge);
        let many = format!("[{}\"\"]", "\"\",".repeat(1 << 15));
        assert_eq!(*read(DType::String, &many).expect_err("large"), Fault::TooLarge);
    }
}
