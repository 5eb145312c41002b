//! A check of a Parquet file's footer before the `parquet` crate reads it.
//!
//! The crate builds the schema recursively, reserves memory for as many children as an element
//! declares, and copies the names of all groups around a column for each column, so a footer of a few
//! megabytes could overflow the stack or exhaust memory, neither of which can be caught. This walks
//! the footer, which is in Thrift's compact protocol, and bounds all of it.

use tensorserve_tensor::error::{Code, Error, Result};

/// How deep columns may be nested.
const MAX_SCHEMA_DEPTH: usize = 64;

/// The most bytes of the paths of all columns, for each byte of the footer and besides them, and what a name in a
/// path takes besides its letters.
const MAX_PATHS_RATIO: u64 = 16;
const MAX_PATHS_EXTRA: u64 = 16 << 20;
const NAME_BYTES: u64 = 48;

/// How deep values in the footer may be nested.
const MAX_VALUE_DEPTH: usize = 32;

/// The field of the footer that is the schema: a list of elements in depth-first order.
const SCHEMA: i64 = 2;

/// The fields of a schema's element that are its name and the number of its children.
const NAME: i64 = 4;
const CHILDREN: i64 = 5;

const BINARY: u8 = 8;
const STRUCT: u8 = 12;

/// Checks the footer's metadata.
pub(super) fn check(metadata: &[u8]) -> Result<()> {
    let mut walk = Walk::new(metadata);
    let mut field = 0;
    while let Some(kind) = walk.field(&mut field)? {
        if field == SCHEMA && kind == 9 {
            walk.schema()?;
        } else {
            walk.skip(kind, 0)?;
        }
    }
    Ok(())
}

/// An element of the schema.
struct SchemaElement {
    /// The bytes of its name.
    name: u64,
    /// The number of its children: none if it is a column.
    children: u64,
}

/// A group around an element.
struct Group {
    /// How many of its children are still to come.
    left: u64,
    /// The bytes of its path.
    path: u64,
}

fn damaged() -> Error {
    Error::new(Code::DataLoss, "the Parquet file's footer is damaged")
}

pub(super) struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Walk { rest }
    }

    /// The number of bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    fn schema(&mut self) -> Result<()> {
        let (kind, count) = self.list()?;
        if kind != STRUCT {
            return Err(damaged());
        }
        let most = (self.rest.len() as u64)
            .saturating_mul(MAX_PATHS_RATIO)
            .saturating_add(MAX_PATHS_EXTRA);
        let mut paths = 0_u64;
        let mut around: Vec<Group> = Vec::new();
        for _ in 0..count {
            let SchemaElement { name, children } = self.element()?;
            if children > count {
                return Err(damaged());
            }
            // The name of the root is in no path.
            let mut path = 0;
            if let Some(group) = around.last_mut() {
                group.left = group.left.saturating_sub(1);
                path = group.path.saturating_add(name).saturating_add(NAME_BYTES);
            }
            if children > 0 {
                around.push(Group { left: children, path });
            } else {
                paths = paths.saturating_add(path);
            }
            if around.len() > MAX_SCHEMA_DEPTH {
                return Err(Error::invalid(format!(
                    "the Parquet file's columns are nested deeper than {MAX_SCHEMA_DEPTH} levels"
                )));
            }
            if paths > most {
                return Err(Error::invalid(format!(
                    "the paths of the Parquet file's columns take more than {most} bytes together: give groups \
                     with many columns shorter names"
                )));
            }
            while around.last().is_some_and(|group| group.left == 0) {
                around.pop();
            }
        }
        Ok(())
    }

    /// Reads an element of the schema.
    fn element(&mut self) -> Result<SchemaElement> {
        let (mut field, mut element) = (0, SchemaElement { name: 0, children: 0 });
        while let Some(kind) = self.field(&mut field)? {
            match (field, kind) {
                (CHILDREN, 4..=6) => {
                    let children = unzigzag(self.varint()?);
                    element.children = u64::try_from(children).map_err(|_| damaged())?;
                }
                (NAME, BINARY) => {
                    element.name = self.varint()?;
                    self.skip_bytes(element.name)?;
                }
                _ => self.skip(kind, 0)?,
            }
        }
        Ok(element)
    }

    fn byte(&mut self) -> Result<u8> {
        let (byte, rest) = self.rest.split_first().ok_or_else(damaged)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn skip_bytes(&mut self, count: u64) -> Result<()> {
        let count = usize::try_from(count).map_err(|_| damaged())?;
        self.rest = self.rest.get(count..).ok_or_else(damaged)?;
        Ok(())
    }

    pub(super) fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged())
    }

    /// The type of a structure's next field, whose number replaces that of the one before; `None` at
    /// the structure's end.
    pub(super) fn field(&mut self, number: &mut i64) -> Result<Option<u8>> {
        let header = self.byte()?;
        if header == 0 {
            return Ok(None);
        }
        *number = match header >> 4 {
            0 => unzigzag(self.varint()?),
            delta => number.saturating_add(i64::from(delta)),
        };
        Ok(Some(header & 0x0f))
    }

    /// The type and the number of a list's elements.
    fn list(&mut self) -> Result<(u8, u64)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        // Every element takes at least a byte.
        if count > self.rest.len() as u64 {
            return Err(damaged());
        }
        Ok((header & 0x0f, count))
    }

    /// Skips a structure's field of this type.
    pub(super) fn skip(&mut self, kind: u8, depth: usize) -> Result<()> {
        // Its type is its value.
        if matches!(kind, 1 | 2) { Ok(()) } else { self.skip_value(kind, depth) }
    }

    /// Skips a value of this type. It calls itself at most [`MAX_VALUE_DEPTH`] times.
    fn skip_value(&mut self, kind: u8, depth: usize) -> Result<()> {
        if depth > MAX_VALUE_DEPTH {
            return Err(damaged());
        }
        match kind {
            1..=3 => self.skip_bytes(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.skip_bytes(8),
            BINARY => {
                let length = self.varint()?;
                self.skip_bytes(length)
            }
            9 | 10 => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_value(kind, depth + 1))
            }
            11 => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                for _ in 0..count {
                    self.skip_value(kinds >> 4, depth + 1)?;
                    self.skip_value(kinds & 0x0f, depth + 1)?;
                }
                Ok(())
            }
            STRUCT => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            13 => self.skip_bytes(16),
            _ => Err(damaged()),
        }
    }
}

/// Undoes the encoding of signed numbers.
pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn push_varint(mut number: usize, out: &mut Vec<u8>) {
        while number >= 0x80 {
            out.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
            number >>= 7;
        }
        out.push(u8::try_from(number).unwrap());
    }

    /// A footer whose schema has elements with names of these lengths and these numbers of children.
    fn footer_of(elements: impl ExactSizeIterator<Item = (usize, usize)>) -> Vec<u8> {
        // Field 1, i32: the version. Field 2: a list of structures.
        let mut out = vec![0x15, 2, 0x19, 0xfc];
        push_varint(elements.len(), &mut out);
        for (name, children) in elements {
            // Field 4: the name. Field 5: the number of children.
            out.push(0x48);
            push_varint(name, &mut out);
            out.resize(out.len() + name, b'x');
            out.push(0x15);
            push_varint(children * 2, &mut out);
            out.push(0);
        }
        out.push(0);
        out
    }

    /// A footer whose schema has elements with these numbers of children.
    fn footer(children: &[u8]) -> Vec<u8> {
        footer_of(children.iter().map(|children| (1, usize::from(*children))))
    }

    #[test]
    fn depth_and_children_are_bounded() {
        assert!(check(&footer(&[2, 1, 0, 0])).is_ok());
        assert!(check(&footer(&[1; 64])).is_ok());
        let error = check(&footer(&[1; 65])).unwrap_err();
        assert!(error.message().contains("nested deeper than 64"), "{error}");
        assert!(check(&footer(&[1; 100_000])).is_err());
        // Many columns side by side are fine.
        let wide: Vec<u8> = std::iter::once(63).chain([1, 0].repeat(63)).collect();
        assert!(check(&footer(&wide)).is_ok());
        // More children than elements.
        assert_eq!(check(&footer(&[5, 0])).unwrap_err().code(), Code::DataLoss);
    }

    #[test]
    fn the_paths_of_columns_are_bounded() {
        // A group with a name of 1 MB and so many columns: the crate would copy the name for each.
        let group_of = |columns: usize| {
            let groups = [(6, 1), (1_000_000, columns)].into_iter();
            footer_of(groups.chain(vec![(1, 0); columns]).collect::<Vec<_>>().into_iter())
        };
        assert!(check(&group_of(20)).is_ok());
        let error = check(&group_of(100_000)).unwrap_err();
        assert!(error.message().contains("the paths of the Parquet file's columns"), "{error}");
    }

    #[test]
    fn nested_values_are_bounded() {
        // Field 9 of structures in structures.
        let deep = [&[0x9c; 100_000][..], &[0; 100_001]].concat();
        assert_eq!(check(&deep).unwrap_err().code(), Code::DataLoss);
        let lists = [&[0x99][..], &[0x19; 100_000]].concat();
        assert_eq!(check(&lists).unwrap_err().code(), Code::DataLoss);
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_or_refused(bytes: Vec<u8>) {
            let _ = check(&bytes);
        }
    }
}
