//! Python's pickles (protocols 0 to 5, Python 2's too) and joblib's files, read as data.
//!
//! A pickle is a program: it names functions for its reader to import and call. Nothing is
//! imported or called here. What a call would have made is kept as an [`Object`] that says which
//! class, with which arguments and state; only what is known to be plain data is understood: NumPy's
//! arrays, dtypes and scalars, bytes, sets and dictionaries.
//!
//! * this file opens a file and holds what was read, an arena of [`Node`]s;
//! * `value` looks into it, `array` is NumPy's array;
//! * `machine` runs the opcodes, `input` reads their operands, `known` understands calls.
//!
//! A pickle may share values and may contain itself. So nodes are addressed by number and never
//! copied: reading takes memory in proportion to the file, dropping does not recurse, and no loop
//! leaks. Whoever walks the values bounds the depth.
#![allow(clippy::wildcard_enum_match_arm)] // A value is of the kind that is asked for, or is not.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;

use tensorserve_tensor::error::{Code, Error, Result};

pub use self::array::{Array, ElementType};
pub use self::value::Value as PickleValue;
pub use self::value::Value;

mod array;
mod input;
mod known;
mod machine;
mod value;

/// The number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// What a pickle holds.
#[derive(Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: Id,
    bytes: usize,
}

impl Pickle {
    /// The value that was pickled.
    #[must_use]
    pub fn root(&self) -> Value<'_> {
        Value::new(self, self.root)
    }

    /// Bytes of the pickle, uncompressed.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes
    }
}

/// One value of a pickle.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number that does not fit 64 bits.
    Huge,
    Float(f64),
    /// Bytes; also Python 2's `str`, which may be text.
    Bytes(Bytes),
    Text(String),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Set(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function by its name, `module.name`.
    Global(Arc<str>),
    Object(Box<Object>),
    Array(Box<Array>),
    ElementType(Arc<ElementType>),
}

/// What a class or function would have made, if it had been called.
#[derive(Debug)]
pub struct Object {
    /// `module.name`; empty for what was made by something that has no name.
    pub class: Arc<str>,
    /// The tuple of arguments.
    pub arguments: Option<Id>,
    /// What `__setstate__` would have been given: mostly the dictionary of attributes.
    pub state: Option<Id>,
    /// What would have been appended to it.
    pub items: Vec<Id>,
    /// What would have been set in it.
    pub entries: Vec<(Id, Id)>,
}

/// Reads a pickle, or a file of joblib's, of at most `max_bytes` when uncompressed.
///
/// # Errors
/// [`Code::DataLoss`] for what is not one, with the byte and the opcode;
/// [`Code::Unimplemented`] for a kind of compression, or a part of a pickle, that is not read;
/// [`Code::ResourceExhausted`] for too much.
pub fn read(bytes: Vec<u8>, max_bytes: usize) -> Result<Pickle> {
    let bytes = uncompressed(bytes, max_bytes)?;
    if bytes.len() > max_bytes {
        return Err(too_large(max_bytes));
    }
    let length = bytes.len();
    let (nodes, root) = machine::run(Bytes::from(bytes))?;
    Ok(Pickle { nodes, root, bytes: length })
}

fn too_large(max_bytes: usize) -> Error {
    let message = format!("the pickle has more than {max_bytes} bytes");
    Error::new(Code::ResourceExhausted, message)
}

/// How files begin that are read by unpacking them elsewhere first.
const REFUSED: [(&[u8], &str); 8] = [
    (b"BZh", "compressed with bz2"),
    (b"\xfd7zXZ\0", "compressed with xz"),
    (b"\x5d\0\0", "compressed with lzma"),
    (b"\x04\x22\x4d\x18", "compressed with lz4"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"ZF0x", "compressed by a joblib older than 0.10"),
    (b"PK\x03\x04", "a zip file, and no pickle"),
    (b"\x89HDF", "an HDF5 file, and no pickle"),
];

/// The pickle in `bytes`, which joblib may have compressed.
fn uncompressed(bytes: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>> {
    if let Some((_, what)) = REFUSED.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        let message = format!(
            "the file is {what}; save the model again with pickle.dump, or with joblib.dump \
             without compression or with zlib or gzip"
        );
        return Err(Error::new(Code::Unimplemented, message));
    }
    match *bytes {
        [0x1f, 0x8b, ..] => inflate(flate2::bufread::MultiGzDecoder::new(&*bytes), max_bytes),
        // No pickle begins with 0x78, which is no opcode.
        [0x78, ..] => inflate(flate2::bufread::ZlibDecoder::new(&*bytes), max_bytes),
        _ => Ok(bytes),
    }
}

fn inflate(packed: impl Read, max_bytes: usize) -> Result<Vec<u8>> {
    let most = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    packed.take(most).read_to_end(&mut bytes).map_err(|e| {
        Error::new(Code::DataLoss, format!("the compressed pickle is damaged: {e}")).with_source(e)
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
