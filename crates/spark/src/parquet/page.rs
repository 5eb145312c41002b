//! The pages of a column, and the values in them.

use std::io::Read;
use std::sync::Arc;

use super::format::{
    codec, data_page_header, data_page_header_v2, dictionary_page_header, encoding, page_header,
    page_type, physical_type,
};
use super::rle::{RleDecoder, bit_at};
use super::thrift::ThriftValue;
use super::{damaged, unsupported};
use tensorserve_tensor::error::{Error, Result};

/// The most bytes that Snappy makes of one, and in addition to that: it makes at most 64 of 2.
const MAX_SNAPPY_RATIO: usize = 32;
const MAX_SNAPPY_EXTRA: usize = 64;

/// The same for gzip and zstd. Spark's pages have about 1 MiB.
const MAX_RATIO: usize = 1024;
const MAX_EXTRA: usize = 4 << 20;

/// The most bits of a dictionary index.
const MAX_INDEX_BITS: u32 = 32;

/// A column of values, as the schema declares it.
#[derive(Clone, Debug)]
pub(super) struct LeafColumn {
    /// `None` for a type that is not read.
    pub(super) physical_type: Option<PhysicalType>,
    /// The definition level of a value that is not null.
    pub(super) max_definition: u32,
    /// The definition level from which on there is an element, for each group around the column that is
    /// repeated, from the outermost on.
    pub(super) repeated: Vec<u32>,
}

/// The types that are read: numbers, booleans and texts.
#[derive(Clone, Copy, Debug)]
pub(super) enum PhysicalType {
    Boolean,
    Int32,
    Int64,
    Float,
    Double,
    Text,
}

/// Values without nulls: numbers, or texts.
#[derive(Clone, Debug)]
pub(super) enum PageValues {
    Numbers(Vec<f64>),
    Texts(Vec<Arc<str>>),
}

impl PageValues {
    /// The bytes of all texts, and of what each is in.
    pub(super) fn text_bytes(&self) -> usize {
        const OVERHEAD: usize = 2 * size_of::<usize>();
        match self {
            PageValues::Numbers(_) => 0,
            PageValues::Texts(texts) => texts.iter().map(|text| text.len() + OVERHEAD).sum(),
        }
    }
}

impl PhysicalType {
    /// The type with this number in the format.
    pub(super) fn from_number(number: i64) -> Option<Self> {
        match number {
            physical_type::BOOLEAN => Some(PhysicalType::Boolean),
            physical_type::INT32 => Some(PhysicalType::Int32),
            physical_type::INT64 => Some(PhysicalType::Int64),
            physical_type::FLOAT => Some(PhysicalType::Float),
            physical_type::DOUBLE => Some(PhysicalType::Double),
            physical_type::BYTE_ARRAY => Some(PhysicalType::Text),
            _ => None,
        }
    }

    /// The bytes of memory that a value takes.
    pub(super) fn size(self) -> usize {
        match self {
            PhysicalType::Text => size_of::<Option<Arc<str>>>(),
            PhysicalType::Boolean
            | PhysicalType::Int32
            | PhysicalType::Int64
            | PhysicalType::Float
            | PhysicalType::Double => size_of::<f64>(),
        }
    }

    /// Decodes `count` values in the plain encoding.
    #[allow(clippy::cast_precision_loss)] // Sizes and indices are far below 2^53.
    pub(super) fn decode_plain(self, bytes: &[u8], count: usize) -> Option<PageValues> {
        let numbers = match self {
            PhysicalType::Text => return decode_texts(bytes, count).map(PageValues::Texts),
            PhysicalType::Boolean => decode_booleans(bytes, count),
            PhysicalType::Int32 => decode_each(bytes, count, |b| f64::from(i32::from_le_bytes(b))),
            PhysicalType::Int64 => decode_each(bytes, count, |b| i64::from_le_bytes(b) as f64),
            PhysicalType::Float => decode_each(bytes, count, |b| f64::from(f32::from_le_bytes(b))),
            PhysicalType::Double => decode_each(bytes, count, f64::from_le_bytes),
        };
        numbers.map(PageValues::Numbers)
    }
}

/// Decodes `count` values of `N` bytes.
fn decode_each<const N: usize>(
    bytes: &[u8],
    count: usize,
    decode: impl Fn([u8; N]) -> f64,
) -> Option<Vec<f64>> {
    let bytes = bytes.get(..count.checked_mul(N)?)?;
    Some(bytes.as_chunks::<N>().0.iter().map(|chunk| decode(*chunk)).collect())
}

/// Decodes `count` values of a bit.
fn decode_booleans(bytes: &[u8], count: usize) -> Option<Vec<f64>> {
    if count.div_ceil(8) > bytes.len() {
        return None;
    }
    (0..count).map(|position| Some(f64::from(bit_at(bytes, position)?))).collect()
}

/// Decodes `count` texts, each behind its length.
fn decode_texts(bytes: &[u8], count: usize) -> Option<Vec<Arc<str>>> {
    let (mut rest, mut texts) = (bytes, Vec::new());
    for _ in 0..count {
        let (text, behind) = split_prefixed(rest, true)?;
        texts.push(String::from_utf8_lossy(text).into());
        rest = behind;
    }
    Some(texts)
}

/// A page, decompressed.
pub(super) struct ParquetPage {
    pub(super) kind: PageKind,
    /// The number of values, nulls included.
    pub(super) values: usize,
    pub(super) bytes: Vec<u8>,
}

pub(super) enum PageKind {
    Dictionary,
    Data {
        encoding: i64,
        levels: PageLevels,
    },
    /// An index, which is not needed.
    Other,
}

/// Where a data page has its repetition and definition levels.
#[derive(Clone, Copy)]
pub(super) enum PageLevels {
    /// Before the values, each with its length.
    Prefixed,
    /// Before the values, of these lengths in bytes.
    Sized { repetition: usize, definition: usize },
}

impl ParquetPage {
    /// Reads the page at the start of `bytes`; also returns the bytes behind it.
    pub(super) fn read(bytes: &[u8], codec: i64) -> Result<(Self, &[u8])> {
        let header = ThriftValue::read_struct(bytes);
        let (header, rest) = header.ok_or_else(|| damaged("a page header is not valid"))?;
        let sizes = header
            .size(page_header::COMPRESSED_PAGE_SIZE)
            .zip(header.size(page_header::UNCOMPRESSED_PAGE_SIZE));
        let (size, uncompressed) = sizes.ok_or_else(|| damaged("a page has no size"))?;
        let body = rest.split_at_checked(size);
        let (body, rest) = body.ok_or_else(|| damaged("a page is cut short"))?;
        let page = match header.integer(page_header::TYPE) {
            Some(page_type::DICTIONARY_PAGE) => {
                let values = dictionary_values(&header).ok_or_else(missing_fields)?;
                let bytes = decompress(body, uncompressed, codec)?;
                ParquetPage { kind: PageKind::Dictionary, values, bytes }
            }
            Some(page_type::DATA_PAGE) => {
                let (values, encoding) = data_fields(&header).ok_or_else(missing_fields)?;
                let bytes = decompress(body, uncompressed, codec)?;
                let kind = PageKind::Data { encoding, levels: PageLevels::Prefixed };
                ParquetPage { kind, values, bytes }
            }
            Some(page_type::DATA_PAGE_V2) => {
                ParquetPage::read_v2(&header, body, uncompressed, codec)?
            }
            _ => ParquetPage { kind: PageKind::Other, values: 0, bytes: Vec::new() },
        };
        Ok((page, rest))
    }

    /// Reads a data page of version 2, whose levels are never compressed.
    fn read_v2(header: &ThriftValue, body: &[u8], uncompressed: usize, codec: i64) -> Result<Self> {
        let fields = DataPageV2::read(header).ok_or_else(missing_fields)?;
        let DataPageV2 { values, encoding, repetition, definition, .. } = fields;
        let levels = definition.checked_add(repetition);
        let split = levels.and_then(|levels| body.split_at_checked(levels));
        let (levels, data) = split.ok_or_else(missing_fields)?;
        let uncompressed = uncompressed.checked_sub(levels.len()).ok_or_else(missing_fields)?;
        let mut bytes = levels.to_vec();
        let codec = if fields.is_compressed { codec } else { codec::UNCOMPRESSED };
        bytes.extend(decompress(data, uncompressed, codec)?);
        let levels = PageLevels::Sized { repetition, definition };
        Ok(ParquetPage { kind: PageKind::Data { encoding, levels }, values, bytes })
    }
}

fn missing_fields() -> Error {
    damaged("a page header lacks fields")
}

/// The number of values of a dictionary page.
fn dictionary_values(header: &ThriftValue) -> Option<usize> {
    header.field(page_header::DICTIONARY_PAGE_HEADER)?.size(dictionary_page_header::NUM_VALUES)
}

/// The number of values and the encoding of a data page of version 1.
fn data_fields(header: &ThriftValue) -> Option<(usize, i64)> {
    let fields = header.field(page_header::DATA_PAGE_HEADER)?;
    let values = fields.size(data_page_header::NUM_VALUES)?;
    Some((values, fields.integer(data_page_header::ENCODING)?))
}

/// The header of a data page of version 2.
struct DataPageV2 {
    values: usize,
    encoding: i64,
    /// Bytes of the levels.
    repetition: usize,
    definition: usize,
    is_compressed: bool,
}

impl DataPageV2 {
    fn read(header: &ThriftValue) -> Option<Self> {
        let fields = header.field(page_header::DATA_PAGE_HEADER_V2)?;
        Some(DataPageV2 {
            values: fields.size(data_page_header_v2::NUM_VALUES)?,
            encoding: fields.integer(data_page_header_v2::ENCODING)?,
            definition: fields.size(data_page_header_v2::DEFINITION_LEVELS_BYTE_LENGTH)?,
            repetition: fields.size(data_page_header_v2::REPETITION_LEVELS_BYTE_LENGTH)?,
            is_compressed: fields.boolean(data_page_header_v2::IS_COMPRESSED).unwrap_or(true),
        })
    }
}

/// Decompresses `bytes`, which are `uncompressed` bytes then.
fn decompress(bytes: &[u8], uncompressed: usize, codec: i64) -> Result<Vec<u8>> {
    let (ratio, extra) = match codec {
        codec::SNAPPY => (MAX_SNAPPY_RATIO, MAX_SNAPPY_EXTRA),
        _ => (MAX_RATIO, MAX_EXTRA),
    };
    let failed = || damaged("a page cannot be decompressed");
    if uncompressed > bytes.len().saturating_mul(ratio).saturating_add(extra) {
        return Err(failed());
    }
    let decompressed = match codec {
        codec::UNCOMPRESSED => return Ok(bytes.to_vec()),
        codec::SNAPPY => snap::raw::decompress_len(bytes)
            .ok()
            .filter(|size| *size == uncompressed)
            .and_then(|_| snap::raw::Decoder::new().decompress_vec(bytes).ok()),
        codec::GZIP => read_all(flate2::read::MultiGzDecoder::new(bytes), uncompressed),
        codec::ZSTD => {
            zstd::Decoder::new(bytes).ok().and_then(|decoder| read_all(decoder, uncompressed))
        }
        _ => return Err(unsupported("a compression other than Snappy, gzip and zstd")),
    };
    decompressed.ok_or_else(failed)
}

/// Reads `size` bytes, which must be all.
fn read_all(from: impl Read, size: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(size).ok()?.checked_add(1)?;
    from.take(limit).read_to_end(&mut bytes).ok()?;
    (bytes.len() == size).then_some(bytes)
}

impl PageLevels {
    /// The repetition and definition levels of the `values` values of a page, and the bytes of those that
    /// are not null.
    pub(super) fn split<'b>(
        self,
        leaf: &LeafColumn,
        values: usize,
        bytes: &'b [u8],
    ) -> Option<(Vec<u8>, Vec<u8>, &'b [u8])> {
        let max_repetition = u32::try_from(leaf.repeated.len()).ok()?;
        let (repetition, definition, rest) = match self {
            PageLevels::Prefixed => {
                let (repetition, rest) = split_prefixed(bytes, max_repetition > 0)?;
                let (definition, rest) = split_prefixed(rest, leaf.max_definition > 0)?;
                (repetition, definition, rest)
            }
            PageLevels::Sized { repetition, definition } => {
                let (repetition, rest) = bytes.split_at_checked(repetition)?;
                let (definition, rest) = rest.split_at_checked(definition)?;
                (repetition, definition, rest)
            }
        };
        let repetition = decode_levels(repetition, values, max_repetition)?;
        let definition = decode_levels(definition, values, leaf.max_definition)?;
        Some((repetition, definition, rest))
    }
}

/// Decodes `count` levels, of which the highest is `most`.
fn decode_levels(bytes: &[u8], count: usize, most: u32) -> Option<Vec<u8>> {
    if most == 0 {
        return Some(vec![0; count]);
    }
    let width = u32::BITS - most.leading_zeros();
    let mut levels = Vec::new();
    RleDecoder { bytes, width }.decode(count, |level, times| {
        let level = u8::try_from(level).ok().filter(|_| level <= most)?;
        levels.extend(std::iter::repeat_n(level, times));
        Some(())
    })?;
    Some(levels)
}

/// Splits off bytes that follow their length, if `is_present`; else none.
fn split_prefixed(bytes: &[u8], is_present: bool) -> Option<(&[u8], &[u8])> {
    if !is_present {
        return Some((&[], bytes));
    }
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// Decodes `count` values.
pub(super) fn decode_values(
    kind: PhysicalType,
    encoding: i64,
    count: usize,
    bytes: &[u8],
    dictionary: Option<&PageValues>,
) -> Result<PageValues> {
    let values = match (encoding, kind) {
        (encoding::PLAIN, _) => kind.decode_plain(bytes, count),
        (encoding::PLAIN_DICTIONARY | encoding::RLE_DICTIONARY, _) => match dictionary {
            Some(PageValues::Numbers(all)) => {
                decode_indices(bytes, count, all).map(PageValues::Numbers)
            }
            Some(PageValues::Texts(all)) => {
                decode_indices(bytes, count, all).map(PageValues::Texts)
            }
            None => None,
        },
        (encoding::RLE, PhysicalType::Boolean) => {
            decode_rle_booleans(bytes, count).map(PageValues::Numbers)
        }
        _ => return Err(unsupported("an encoding other than Spark's defaults")),
    };
    values.ok_or_else(|| damaged("its values are not valid"))
}

fn decode_rle_booleans(bytes: &[u8], count: usize) -> Option<Vec<f64>> {
    let (runs, _) = split_prefixed(bytes, true)?;
    let mut values = Vec::new();
    RleDecoder { bytes: runs, width: 1 }.decode(count, |bit, times| {
        values.extend(std::iter::repeat_n(f64::from(bit), times));
        Some(())
    })?;
    Some(values)
}

/// Decodes values that are indices into a dictionary.
fn decode_indices<T: Clone>(bytes: &[u8], count: usize, dictionary: &[T]) -> Option<Vec<T>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let (width, runs) = bytes.split_first()?;
    let width = u32::from(*width);
    if width > MAX_INDEX_BITS {
        return None;
    }
    let mut values = Vec::new();
    RleDecoder { bytes: runs, width }.decode(count, |index, times| {
        let value = dictionary.get(usize::try_from(index).ok()?)?;
        values.extend(std::iter::repeat_n(value.clone(), times));
        Some(())
    })?;
    Some(values)
}
