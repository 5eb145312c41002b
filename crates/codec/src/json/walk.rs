//! Walks a nested value: its shape is that of the first element at each level, as TensorFlow
//! Serving has it, and whatever deviates is a [`Fault`] that says where.

use smallvec::SmallVec;

use super::scan::{Cursor, SyntaxError};
use crate::base64::Alphabet;
use tensorserve_tensor::error::Result as EngineResult;
use tensorserve_tensor::{DType, MAX_RANK, Shape, Tensor};

/// How values are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Take a value of another JSON type as NumPy would: fractions are cut to integers, numeric
    /// strings and booleans become numbers, half-precision types are rounded to. Without it the
    /// types must match as TensorFlow Serving has it.
    pub coerce: bool,
    /// Take numbers also for the types that TensorFlow Serving has no JSON for: half, bfloat16
    /// and uint16.
    pub all_types: bool,
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

/// Where elements go.
pub(super) trait Sink {
    /// Reads the element at `cursor`.
    fn element(&mut self, cursor: &mut Cursor) -> Read<()>;

    /// Reads elements and the commas between them, from the element at `cursor` on, as far as
    /// they are of the plainest kind. Returns how many, and whether the cursor then is at an
    /// element that was not read (else it is behind one that was). Need not read any.
    fn plain_run(&mut self, _: &mut Cursor) -> (usize, bool) {
        (0, true)
    }

    /// How many were read.
    fn len(&self) -> usize;
    /// Forgets all but the first `len`.
    fn truncate(&mut self, len: usize);
    /// Memory taken so far, in bytes.
    fn bytes(&self) -> usize;
    /// The tensor of all elements.
    fn into_tensor(self, dtype: DType, shape: Shape) -> EngineResult<Tensor>;
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
    pub(super) fn known_shape(&self) -> Option<Shape> {
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
