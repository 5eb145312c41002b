//! Reads a nested value with one shape. As in TensorFlow Serving, the first element at each level
//! determines the shape, and a later one that differs is an error.

use std::sync::Arc;

use smallvec::SmallVec;

use super::scan::{Cursor, SyntaxError};
use crate::base64::Alphabet;
use tensorserve_tensor::error::{Error, Result as EngineResult};
use tensorserve_tensor::{DType, MAX_RANK, NumberTexts, Shape, Tensor};

/// How JSON values become elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Convert values of other JSON types as NumPy does: fractions are truncated to integers,
    /// numeric strings and booleans become numbers. Without it the types must match as in
    /// TensorFlow Serving.
    pub coerce: bool,
    /// Accept numbers for the dtypes that TensorFlow Serving cannot read from JSON, too: half,
    /// bfloat16 and uint16.
    pub all_types: bool,
    /// Read values as tables have them, which pandas writes: `null` is a missing value, NaN or a missing string
    /// (integers and booleans have none), and `true` and `false` are the numbers 1 and 0.
    pub nulls: bool,
    /// Read numbers as these texts where the tensor is of strings.
    pub number_texts: Option<NumberTexts>,
    /// The alphabets of `{"b64": "…"}` objects.
    pub alphabet: Alphabet,
    /// The most memory of one tensor, in bytes.
    pub max_bytes: usize,
}

/// Why a value cannot be read as a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorReadError {
    /// The text is malformed.
    Syntax(SyntaxError),
    /// The element at `at` does not have the tensor's type.
    Type {
        /// The byte at which the element starts.
        at: usize,
    },
    /// An object other than `{"b64": "…"}` in place of a string.
    NotBase64Object {
        /// The byte at which the object starts.
        at: usize,
    },
    /// The text of a `b64` object is not valid base64.
    NotBase64,
    /// The tensor's type cannot be read from JSON.
    Unsupported {
        /// The byte at which the element starts.
        at: usize,
    },
    /// A list at the level of the first value.
    ListTooDeep {
        /// The number of lists around it.
        level: usize,
        /// The number of lists around the first value.
        rank: usize,
    },
    /// A value at the level of a list.
    ValueAtWrongLevel {
        /// The byte at which the value starts.
        at: usize,
        /// The number of lists around it.
        level: usize,
        /// The number of lists around the first value.
        rank: usize,
    },
    /// A list whose size differs from that of the first list at its level.
    ListSize {
        /// Its number of elements.
        size: usize,
        /// The number of lists around it.
        level: usize,
        /// The number of elements of the first list at its level.
        expected: usize,
    },
    /// A row whose number of elements differs from that of row 0.
    RowSize {
        /// Its number of elements.
        size: usize,
        /// The number of elements of row 0.
        expected: usize,
    },
    /// A row whose shape, but not its number of elements, differs from that of row 0.
    RowShape {
        /// Its shape.
        shape: Shape,
        /// The shape of row 0.
        expected: Shape,
    },
    /// More than [`MAX_RANK`] nested lists.
    TooManyDimensions,
    /// The tensor needs more than [`ReadOptions::max_bytes`].
    TooLarge,
    /// The request may not use so much memory, or its deadline has passed.
    Refused(Refusal),
}

/// The error of a request that exceeds its budget.
#[derive(Clone, Debug)]
pub struct Refusal(Arc<Error>);

impl Refusal {
    /// The error, for the response.
    #[must_use]
    pub fn error(&self) -> Error {
        self.0.duplicate()
    }
}

impl PartialEq for Refusal {
    fn eq(&self, other: &Self) -> bool {
        self.0.message() == other.0.message()
    }
}

impl From<Error> for Box<TensorReadError> {
    fn from(error: Error) -> Self {
        Box::new(TensorReadError::Refused(Refusal(Arc::new(error))))
    }
}

impl From<SyntaxError> for Box<TensorReadError> {
    fn from(error: SyntaxError) -> Self {
        Box::new(TensorReadError::Syntax(error))
    }
}

/// The error is rare and large. Boxed, a result without a value fits a register.
impl TensorReadError {
    /// Whether reading ends with it. After any other error the sizes of lists still matter.
    fn is_final(&self) -> bool {
        matches!(
            self,
            TensorReadError::Syntax(_) | TensorReadError::TooLarge | TensorReadError::Refused(_)
        )
    }
}

pub(super) type ReadResult<T> = Result<T, Box<TensorReadError>>;

/// Whether the value at `cursor` is an object whose only member is a string named `b64`.
///
/// # Errors
/// If the object is malformed.
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

/// Reads and stores the elements of one type.
pub(super) trait Sink {
    /// Reads the element at `cursor`, after the memory for it is reserved.
    fn element(&mut self, cursor: &mut Cursor) -> ReadResult<()>;

    /// A fast path: reads elements and the commas between them from the element at `cursor` on, as
    /// long as they have the simplest form and there is room for them; possibly none. Returns their number,
    /// and whether the cursor is at an element that was not read (otherwise it is after one that was).
    fn plain_run(&mut self, _: &mut Cursor) -> (usize, bool) {
        (0, true)
    }

    /// The number of elements.
    fn len(&self) -> usize;
    /// Removes all but the first `len` elements.
    fn truncate(&mut self, len: usize);
    /// Whether the type has missing values.
    fn has_missing(&self) -> bool {
        false
    }

    /// Adds `count` missing values, if the type has any.
    fn add_missing(&mut self, _: usize) -> ReadResult<()> {
        Ok(())
    }

    /// The tensor of all elements.
    fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor>;
}

/// The rank and the sizes of a nested value, as far as they are known.
#[derive(Default)]
pub(super) struct Extents {
    /// The number of lists around the first value.
    rank: Option<usize>,
    /// The size of the first list at each level, set when that list ends.
    sizes: SmallVec<[Option<usize>; 6]>,
}

impl Extents {
    /// The shape of the first value, once it has been read.
    pub(super) fn known_shape(&self) -> Option<Shape> {
        let sizes = self.sizes.get(..self.rank?)?.iter();
        let dims: Option<Vec<i64>> = sizes.map(|size| i64::try_from((*size)?).ok()).collect();
        Shape::new(&dims?).ok()
    }

    /// Whether the next value may be a single element.
    pub(super) fn may_be_element(&self) -> bool {
        matches!(self.rank, None | Some(0))
    }

    /// The values are single elements.
    pub(super) fn set_element(&mut self) {
        self.rank = Some(0);
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

/// Reads one nested value into a sink.
pub(super) struct NestedReader<'c, 't, 's, S> {
    pub(super) cursor: &'c mut Cursor<'t>,
    pub(super) extents: &'c mut Extents,
    pub(super) sink: &'s mut S,
}

impl<S: Sink> NestedReader<'_, '_, '_, S> {
    /// Reads the list or element at the cursor; `level` is the number of lists around it. The
    /// recursion is as deep as [`MAX_RANK`] at most.
    pub(super) fn value(&mut self, level: usize) -> ReadResult<()> {
        if self.cursor.peek() == b'[' {
            return self.list(level);
        }
        match self.extents.rank {
            None => self.extents.rank = Some(level),
            Some(rank) if rank != level => {
                let at = self.cursor.offset();
                self.cursor.skip_value()?;
                return Err(Box::new(TensorReadError::ValueAtWrongLevel { at, level, rank }));
            }
            Some(_) => {}
        }
        self.element(level)
    }

    /// Reads the element at the cursor, whose level is that of the first one. After an error the
    /// cursor is after the element.
    #[inline]
    fn element(&mut self, level: usize) -> ReadResult<()> {
        let start = self.cursor.offset();
        match self.sink.element(self.cursor) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.element_error(start, level, error)),
        }
    }

    #[cold]
    fn element_error(
        &mut self,
        start: usize,
        level: usize,
        error: Box<TensorReadError>,
    ) -> Box<TensorReadError> {
        self.cursor.seek(start);
        let is_list = self.cursor.peek() == b'[';
        if let Err(error) = self.cursor.skip_value() {
            return error.into();
        }
        match self.extents.rank {
            Some(rank) if is_list => Box::new(TensorReadError::ListTooDeep { level, rank }),
            _ => error,
        }
    }

    fn list(&mut self, level: usize) -> ReadResult<()> {
        if let Some(rank) = self.extents.rank
            && level >= rank
        {
            self.cursor.skip_value()?;
            return Err(Box::new(TensorReadError::ListTooDeep { level, rank }));
        }
        if level >= MAX_RANK {
            self.cursor.skip_value()?;
            return Err(Box::new(TensorReadError::TooManyDimensions));
        }
        let mut size = 0;
        let mut error = None;
        let mut more = self.cursor.open_array();
        if !more && self.extents.rank.is_none() {
            self.extents.rank = Some(level + 1);
        }
        while more {
            if error.is_none() {
                let (count, at_element) = self.plain_run(level + 1);
                size += count;
                if !at_element {
                    more = self.cursor.next_element()?;
                    continue;
                }
            }
            let outcome = if error.is_some() {
                // Only the size still matters: a wrong size is reported in preference to an error
                // inside the list.
                self.cursor.skip_value().map_err(Box::from)
            } else if self.extents.rank == Some(level + 1) {
                self.element(level + 1)
            } else {
                self.value(level + 1)
            };
            if let Err(found) = outcome {
                if found.is_final() {
                    return Err(found);
                }
                error = Some(found);
            }
            size += 1;
            more = self.cursor.next_element()?;
        }
        self.end_list(level, size, error)
    }

    /// Reads elements of `level` from the one at the cursor on, as long as they are plain values, or
    /// lists of plain values of the known size. Returns what [`Sink::plain_run`] returns.
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

    /// Reads lists of `size` plain values each.
    fn plain_lists(&mut self, size: usize) -> (usize, bool) {
        let mut lists = 0;
        loop {
            let (start, before) = (self.cursor.offset(), self.sink.len());
            let is_plain = self.cursor.take(b'[') && {
                self.cursor.skip_space();
                let (count, at_element) = self.sink.plain_run(self.cursor);
                !at_element && count == size && self.cursor.skip_space() == b']'
            };
            if !is_plain {
                // The caller reads the list again from its start.
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

    /// Checks the size of a list that has ended; `error` is the first error inside it.
    #[inline]
    fn end_list(
        &mut self,
        level: usize,
        size: usize,
        error: Option<Box<TensorReadError>>,
    ) -> ReadResult<()> {
        match self.extents.size(level) {
            Some(expected) if expected != size => {
                return Err(Box::new(TensorReadError::ListSize { size, level, expected }));
            }
            Some(_) => {}
            None if error.is_none() => self.extents.set_size(level, size),
            None => {}
        }
        error.map_or(Ok(()), Err)
    }
}
