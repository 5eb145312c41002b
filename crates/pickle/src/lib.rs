//! Pickles (protocols 0 to 5, also of Python 2), joblib files and files of skops, read as data.
//!
//! A pickle is a program: it names functions for its reader to import and call. Nothing is imported
//! or called here. The result of a call is kept as a [`PickleObject`], which records the class, the
//! arguments and the state; only calls that make plain data are understood: NumPy arrays, dtypes and
//! scalars, bytes, sets and dictionaries.
//!
//! * this file decompresses a file, and defines the result: an arena of [`PickleNode`]s;
//! * `value` gives access to it, `array` is NumPy's array;
//! * `unpickler` executes the opcodes of `opcode`, `reader` reads their operands; `reduce`
//!   understands calls, and `joblib` reads the arrays that joblib puts behind their description;
//! * `skops` reads the archives of `zip` that have the values in JSON.
//!
//! A pickle may share values, and may contain itself. So nodes are addressed by index and never
//! copied: memory is proportional to the file, dropping does not recurse, and cycles do not leak.
//! Code that walks the values must bound the depth.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![allow(clippy::wildcard_enum_match_arm)] // Accessors take one variant, and ignore all others.

use std::io::{ErrorKind, Read};
use std::sync::Arc;

use bytes::Bytes;
use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use lz4_flex::frame::FrameDecoder;
use lzma_rust2::{LzmaReader, XzReader};
use zstd::stream::read::Decoder as ZstdDecoder;

use tensorserve_tensor::error::{Code, Error, Result};

pub use self::array::{NumpyArray, NumpyDtype, dtype_kind};
pub use self::value::PickleValue;

mod array;
mod joblib;
mod opcode;
mod reader;
mod reduce;
mod skops;
mod unpickler;
mod value;

/// The index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PickleId(u32);

/// The content of a pickle.
#[derive(Debug)]
pub struct Pickle {
    nodes: Vec<PickleNode>,
    root: PickleId,
    bytes: usize,
}

impl Pickle {
    /// The value that was pickled.
    #[must_use]
    pub fn root(&self) -> PickleValue<'_> {
        PickleValue::new(self, self.root)
    }

    /// The size of the uncompressed pickle in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes
    }
}

/// One value of a pickle.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum PickleNode {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that does not fit 64 bits.
    BigInt,
    Float(f64),
    /// Bytes, or a `str` of Python 2, which may be text.
    Bytes(Bytes),
    Text(String),
    List(Vec<PickleId>),
    Tuple(Vec<PickleId>),
    Set(Vec<PickleId>),
    Dict(Vec<(PickleId, PickleId)>),
    /// The name of a class or a function, `module.name`.
    Global(Arc<str>),
    Object(Box<PickleObject>),
    Array(Box<NumpyArray>),
    Dtype(Arc<NumpyDtype>),
}

/// The result of a call of a class or a function, which is recorded and not executed.
#[derive(Debug)]
pub struct PickleObject {
    /// The name of the class or function, `module.name`; empty if it has none.
    pub class: Arc<str>,
    /// The arguments, a tuple.
    pub arguments: Option<PickleId>,
    /// The argument of `__setstate__`: usually the dictionary of attributes.
    pub state: Option<PickleId>,
    /// Values that are appended to the result.
    pub items: Vec<PickleId>,
    /// Entries that are set in the result.
    pub entries: Vec<(PickleId, PickleId)>,
}

/// Reads a pickle, a joblib file or a file of skops, of at most `max_bytes` uncompressed.
///
/// # Errors
/// [`Code::DataLoss`] for a file that is not a valid pickle, with the byte and the opcode;
/// [`Code::Unimplemented`] for a kind of compression or a part of a pickle that is not supported;
/// [`Code::ResourceExhausted`] for a pickle of more than `max_bytes`, or with too many values.
pub fn read(bytes: Vec<u8>, max_bytes: usize) -> Result<Pickle> {
    if bytes.starts_with(tensorserve_codec::zip::MAGIC) {
        return skops::read(bytes, max_bytes);
    }
    let bytes = uncompressed(bytes, max_bytes)?;
    let length = bytes.len();
    let (nodes, root) = unpickler::run(Bytes::from(bytes))?;
    Ok(Pickle { nodes, root, bytes: length })
}

fn exhausted(message: String) -> Error {
    Error::new(Code::ResourceExhausted, message)
}

/// Magic numbers of formats that are not supported, and what they are.
const UNSUPPORTED_FORMATS: [(&[u8], &str); 2] = [
    (b"ZF0x", "compressed by a joblib older than 0.10"),
    (b"\x89HDF", "an HDF5 file, not a pickle"),
];

/// The magic numbers of lz4 and zstd.
const LZ4_MAGIC: &[u8] = b"\x04\x22\x4d\x18";
const ZSTD_MAGIC: &[u8] = b"\x28\xb5\x2f\xfd";

/// The largest window of a zstd stream, as a power of 2: the decoder keeps so many bytes.
const ZSTD_WINDOW_LOG: u32 = 27;

/// The magic numbers of bzip2, xz and lzma, as Python writes the last.
const BZIP2_MAGIC: &[u8] = b"BZh";
const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";
const LZMA_MAGIC: &[u8] = b"\x5d\0\0";

/// The most memory of a decoder of xz or lzma in KiB: their highest level takes a window of 64 MiB.
const LZMA_MEMORY_KIB: u32 = 66 << 10;

/// The magic number of gzip.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The first byte of zlib streams with a window of 32 KiB; it is not an opcode.
const ZLIB_START: u8 = 0x78;

/// The pickle in `bytes`, which joblib may have compressed.
fn uncompressed(bytes: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>> {
    if let Some((_, what)) = UNSUPPORTED_FORMATS.iter().find(|(magic, _)| bytes.starts_with(magic))
    {
        let message =
            format!("the file is {what}; save the model again with pickle.dump or joblib.dump");
        return Err(Error::unsupported(message));
    }
    if let Some(packed) = decoder(&bytes)? {
        return unpack(&bytes, packed, max_bytes);
    }
    match bytes.len() > max_bytes {
        true => Err(exhausted(format!("the pickle has more than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}

/// What `packed` uncompresses of `bytes`, once it is known to be no more than `max_bytes`.
fn unpack(bytes: &[u8], mut packed: Box<dyn Read + '_>, max_bytes: usize) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    read_within(&mut packed, UNCOUNTED.min(max_bytes), |piece| start.extend_from_slice(piece))?;
    if start.len() < UNCOUNTED.min(max_bytes) {
        return Ok(start);
    }
    // A few KB can become gigabytes: they are counted before they are kept.
    let mut length = start.len();
    let most = max_bytes.saturating_sub(length).saturating_add(1);
    read_within(&mut packed, most, |piece| length = length.saturating_add(piece.len()))?;
    if length > max_bytes {
        let compressed = bytes.len();
        return Err(exhausted(format!(
            "the pickle, which is compressed to {compressed} bytes, has more than {max_bytes} bytes when it is \
             uncompressed: that is the limit"
        )));
    }
    let mut whole = Vec::new();
    whole.try_reserve_exact(length).map_err(|e| {
        let message =
            format!("there is no memory for the {length} bytes of the uncompressed pickle");
        exhausted(message).with_source(e)
    })?;
    drop(start);
    if let Some(mut packed) = decoder(bytes)? {
        read_within(&mut packed, length, |piece| whole.extend_from_slice(piece))?;
    }
    Ok(whole)
}

/// What is uncompressed without being counted first, in bytes.
const UNCOUNTED: usize = 16 << 20;

/// Reads `bytes` uncompressed; `None` if they are not compressed.
fn decoder(bytes: &[u8]) -> Result<Option<Box<dyn Read + '_>>> {
    let decoder: Box<dyn Read + '_> = match () {
        () if bytes.starts_with(&GZIP_MAGIC) => Box::new(MultiGzDecoder::new(bytes)),
        () if bytes.starts_with(LZ4_MAGIC) => Box::new(FrameDecoder::new(bytes)),
        () if bytes.starts_with(ZSTD_MAGIC) => {
            let mut decoder = ZstdDecoder::with_buffer(bytes).map_err(damaged)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(damaged)?;
            Box::new(decoder)
        }
        () if bytes.starts_with(BZIP2_MAGIC) => Box::new(MultiBzDecoder::new(bytes)),
        () if bytes.starts_with(XZ_MAGIC) => {
            Box::new(XzReader::new_mem_limit(bytes, true, LZMA_MEMORY_KIB))
        }
        () if bytes.starts_with(LZMA_MAGIC) => {
            let reader = LzmaReader::new_mem_limit(bytes, LZMA_MEMORY_KIB, None);
            Box::new(reader.map_err(damaged)?)
        }
        () if bytes.starts_with(&[ZLIB_START]) => Box::new(ZlibDecoder::new(bytes)),
        () => return Ok(None),
    };
    Ok(Some(decoder))
}

fn damaged(error: std::io::Error) -> Error {
    Error::damaged(format!("the compressed pickle is damaged: {error}")).with_source(error)
}

/// Passes the next bytes of a stream on in pieces, `most` at most.
fn read_within(packed: &mut dyn Read, most: usize, mut take: impl FnMut(&[u8])) -> Result<()> {
    let mut piece = vec![0; 64 << 10];
    let mut left = most;
    while left > 0 {
        let wanted = piece.len().min(left);
        let read = match packed.read(piece.get_mut(..wanted).unwrap_or_default()) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(damaged(error)),
        };
        take(piece.get(..read).unwrap_or_default());
        left = left.saturating_sub(read);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
