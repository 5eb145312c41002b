//! Reads tables of a [FlatBuffers](https://flatbuffers.dev) file whose schema is known. Nothing is copied or followed
//! before it is used, and each offset is checked, so that memory and time are in proportion to what is read.

#![allow(clippy::missing_errors_doc)]

use std::cell::Cell;

use tensorserve_tensor::error::{Code, Error, Result};

/// A file, or a part of one that is a FlatBuffers file of its own.
pub struct FlatFile<'a> {
    bytes: &'a [u8],
    /// How many bytes may still be read. Tables and vectors may be shared, so a small file could expand
    /// to gigabytes.
    left: Cell<usize>,
}

/// How often the bytes of a file may be read.
const READS_PER_BYTE: usize = 4;

impl<'a> FlatFile<'a> {
    /// A file of these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        FlatFile { bytes, left: Cell::new(bytes.len().saturating_mul(READS_PER_BYTE)) }
    }

    fn charge(&self, bytes: usize) -> Result<()> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or_else(|| {
            Error::new(Code::DataLoss, "the file expands to far more than its size")
        })?);
        Ok(())
    }
}

/// A table: fields with numbers, each of which may be absent.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    file: &'a FlatFile<'a>,
    at: usize,
    /// The offsets of the fields from `at`, two bytes each.
    offsets: &'a [u8],
}

/// A vector: `len` elements from `at` on.
#[derive(Clone, Copy)]
pub struct Vector<'a> {
    file: &'a FlatFile<'a>,
    at: usize,
    len: usize,
}

/// The size of the length of a vector, of an offset, and of a vtable's two sizes.
const WORD: usize = 4;

#[cold]
fn out_of_range() -> Error {
    Error::new(Code::DataLoss, "an offset points outside of the file")
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or_else(out_of_range)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<usize> {
    Ok(u32::from_le_bytes(array(bytes, at)?) as usize)
}

/// Where the offset at `at` points.
fn target(bytes: &[u8], at: usize) -> Result<usize> {
    at.checked_add(u32_at(bytes, at)?).ok_or_else(out_of_range)
}

impl<'a> Table<'a> {
    /// The root of a file.
    ///
    /// # Errors
    /// As all functions here, [`Code::DataLoss`] for an offset outside of the file, and for tables that
    /// together have far more bytes than the file.
    pub fn root(file: &'a FlatFile<'a>) -> Result<Self> {
        Table::at(file, u32_at(file.bytes, 0)?)
    }

    fn at(file: &'a FlatFile<'a>, at: usize) -> Result<Self> {
        let bytes = file.bytes;
        file.charge(WORD)?;
        let distance = i32::from_le_bytes(array(bytes, at)?);
        let vtable = i64::try_from(at).ok().and_then(|at| at.checked_sub(distance.into()));
        let vtable = vtable.and_then(|at| usize::try_from(at).ok()).ok_or_else(out_of_range)?;
        let size = usize::from(u16::from_le_bytes(array(bytes, vtable)?));
        let end = vtable.checked_add(size).ok_or_else(out_of_range)?;
        let offsets = bytes.get(vtable..end).and_then(|vtable| vtable.get(WORD..));
        Ok(Table { file, at, offsets: offsets.ok_or_else(out_of_range)? })
    }

    /// Where field number `field` is; `None` if it is absent.
    fn field(&self, field: usize) -> Option<usize> {
        let offset = self.offsets.get(field * 2..).and_then(|rest| rest.first_chunk())?;
        let offset = usize::from(u16::from_le_bytes(*offset));
        (offset != 0).then_some(self.at.saturating_add(offset))
    }

    fn scalar<const N: usize>(&self, field: usize) -> Result<Option<[u8; N]>> {
        self.field(field).map(|at| array(self.file.bytes, at)).transpose()
    }

    /// An `int`; `default` if it is absent.
    pub fn int(&self, field: usize, default: i32) -> Result<i32> {
        Ok(self.scalar(field)?.map_or(default, i32::from_le_bytes))
    }

    /// A `byte` or a `bool`; `default` if it is absent.
    pub fn byte(&self, field: usize, default: u8) -> Result<u8> {
        Ok(self.scalar(field)?.map_or(default, u8::from_le_bytes))
    }

    /// A `float`; `default` if it is absent.
    pub fn float(&self, field: usize, default: f32) -> Result<f32> {
        Ok(self.scalar(field)?.map_or(default, f32::from_le_bytes))
    }

    /// A `double`; `default` if it is absent.
    pub fn double(&self, field: usize, default: f64) -> Result<f64> {
        Ok(self.scalar(field)?.map_or(default, f64::from_le_bytes))
    }

    /// Where the table begins in the file.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// An unsigned `int`; 0 if it is absent.
    pub fn uint(&self, field: usize) -> Result<u32> {
        Ok(self.scalar(field)?.map_or(0, u32::from_le_bytes))
    }

    /// An unsigned `long`; 0 if it is absent.
    pub fn ulong(&self, field: usize) -> Result<u64> {
        Ok(self.scalar(field)?.map_or(0, u64::from_le_bytes))
    }

    /// A table.
    pub fn table(&self, field: usize) -> Result<Option<Table<'a>>> {
        let Some(at) = self.field(field) else { return Ok(None) };
        Table::at(self.file, target(self.file.bytes, at)?).map(Some)
    }

    /// Whether the field is there.
    #[must_use]
    pub fn has(&self, field: usize) -> bool {
        self.field(field).is_some()
    }

    /// A vector; an empty one if it is absent.
    pub fn vector(&self, field: usize) -> Result<Vector<'a>> {
        let Some(at) = self.field(field) else {
            return Ok(Vector { file: self.file, at: 0, len: 0 });
        };
        Vector::at(self.file, target(self.file.bytes, at)?)
    }

    /// A text; an empty one if it is absent.
    pub fn text(&self, field: usize) -> Result<String> {
        Ok(String::from_utf8_lossy(self.vector(field)?.raw(1)?).into_owned())
    }

    /// The values of a vector of `int`.
    pub fn ints(&self, field: usize) -> Result<Vec<i32>> {
        self.vector(field)?.numbers(i32::from_le_bytes)
    }

    /// The values of a vector of `long`.
    pub fn longs(&self, field: usize) -> Result<Vec<i64>> {
        self.vector(field)?.numbers(i64::from_le_bytes)
    }

    /// The values of a vector of `float`.
    pub fn floats(&self, field: usize) -> Result<Vec<f32>> {
        self.vector(field)?.numbers(f32::from_le_bytes)
    }

    /// The values of a vector of `double`.
    pub fn doubles(&self, field: usize) -> Result<Vec<f64>> {
        self.vector(field)?.numbers(f64::from_le_bytes)
    }

    /// The structures of `N` bytes that a vector of bytes holds.
    pub fn packed<T, const N: usize>(
        &self,
        field: usize,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let bytes = self.vector(field)?.raw(1)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect())
    }
}

impl<'a> Vector<'a> {
    fn at(file: &'a FlatFile<'a>, at: usize) -> Result<Self> {
        Ok(Vector { file, at: at + WORD, len: u32_at(file.bytes, at)? })
    }

    /// Where the vector begins in the file, with its length; of no use for an absent one.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at.saturating_sub(WORD)
    }

    /// The bytes of all elements, of `size` bytes each.
    fn raw(&self, size: usize) -> Result<&'a [u8]> {
        let range = self.range(size)?;
        self.file.charge(range.len())?;
        Ok(range)
    }

    fn range(&self, size: usize) -> Result<&'a [u8]> {
        let end = self.len.checked_mul(size).and_then(|length| self.at.checked_add(length));
        let range = end.and_then(|end| self.file.bytes.get(self.at..end));
        range.ok_or_else(out_of_range)
    }

    /// Numbers, or structures of `N` bytes.
    pub fn numbers<T, const N: usize>(&self, read: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        Ok(self.raw(N)?.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect())
    }

    /// The tables of a vector of tables.
    pub fn tables(self) -> Result<Vec<Table<'a>>> {
        self.raw(WORD)?;
        let places = (0..self.len).map(|index| self.at + index * WORD);
        places.map(|at| Table::at(self.file, target(self.file.bytes, at)?)).collect()
    }

    /// The texts of a vector of texts.
    pub fn texts(self) -> Result<Vec<String>> {
        self.raw(WORD)?;
        let places = (0..self.len).map(|index| self.at + index * WORD);
        places
            .map(|at| {
                let text = Vector::at(self.file, target(self.file.bytes, at)?)?.raw(1)?;
                Ok(String::from_utf8_lossy(text).into_owned())
            })
            .collect()
    }

    /// Checks that all elements, of `size` bytes each, are in the file.
    pub fn check(&self, size: usize) -> Result<()> {
        self.range(size).map(|_| ())
    }

    /// The number of elements that it claims to have.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
