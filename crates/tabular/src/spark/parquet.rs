//! Parquet, as Spark saves models in it: one row, whose numbers and lists of numbers are read as
//! one list for each column.
//!
//! We read it ourselves: the `parquet` crate brings twenty more, and is made for far more than
//! this. Of the format, read are version 1 and 2 pages, plain or with a dictionary, as they are
//! or packed with Snappy; numbers and truth values.

use std::collections::HashMap;

use super::thrift::{Value, varint};
use tensorserve_tensor::error::{Code, Error, Result};

/// The most numbers of a file: those of a model of 64 million coefficients.
const MAX_NUMBERS: usize = 1 << 26;

/// The most bytes of a description of a file.
const MAX_FOOTER: usize = 16 << 20;

const MAGIC: &[u8] = b"PAR1";

/// The columns of a file.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// How many rows there are.
    pub(super) rows: usize,
    /// The values of each column by its path, such as `weights.values`: those that are there, of
    /// all rows. Names that Parquet puts between a list and its values are left out.
    values: HashMap<String, Vec<f64>>,
}

fn damaged(what: &str) -> Error {
    Error::new(Code::DataLoss, format!("the Parquet file is damaged: {what}"))
}

fn unsupported(what: &str) -> Error {
    let message = format!(
        "the Parquet file has {what}, which is not read: save the model with \
         spark.sql.parquet.compression.codec=snappy and Spark's other defaults"
    );
    Error::new(Code::Unimplemented, message)
}

impl Columns {
    /// The columns of a file with these bytes.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let footer = footer(bytes).ok_or_else(|| damaged("it has no description at its end"))?;
        let (meta, _) = Value::read(footer).ok_or_else(|| damaged("its description"))?;
        let schema = schema(&meta).ok_or_else(|| damaged("its schema"))?;
        let rows = meta.size(3).ok_or_else(|| damaged("it does not say how many rows it has"))?;
        let mut columns = Columns { rows, values: HashMap::new() };
        let mut budget = MAX_NUMBERS;
        for group in meta.list(4).unwrap_or_default() {
            for chunk in group.list(1).unwrap_or_default() {
                let meta = chunk.field(3).ok_or_else(|| damaged("a column has no description"))?;
                let path = path(meta).ok_or_else(|| damaged("a column has no name"))?;
                let leaf = schema.get(&path).ok_or_else(|| damaged("a column has no type"))?;
                let column = columns.values.entry(short(&path)).or_default();
                let before = column.len();
                read_chunk(bytes, meta, *leaf, column, budget)
                    .map_err(|error| error.context(format!("column {path}")))?;
                budget -= column.len() - before;
            }
        }
        Ok(columns)
    }

    /// The values of a column; none if it is not there.
    pub(super) fn list(&self, path: &str) -> &[f64] {
        self.values.get(path).map_or(&[], Vec::as_slice)
    }

    /// The one value of a column.
    pub(super) fn number(&self, path: &str) -> Option<f64> {
        match self.list(path) {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// Whether there is such a column, or one within it.
    pub(super) fn has(&self, path: &str) -> bool {
        let is_it = |name: &String| {
            name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.values.keys().any(is_it)
    }

    /// Adds those of another part of the same table.
    pub(super) fn append(&mut self, other: Columns) {
        self.rows = self.rows.saturating_add(other.rows);
        for (path, values) in other.values {
            self.values.entry(path).or_default().extend(values);
        }
    }
}

/// The description at the end of a file.
fn footer(bytes: &[u8]) -> Option<&[u8]> {
    let body = bytes.strip_prefix(MAGIC)?.strip_suffix(MAGIC)?;
    let (body, length) = body.split_last_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    if length > MAX_FOOTER {
        return None;
    }
    body.get(body.len().checked_sub(length)?..)
}

/// What a column's values are, and how they lie in lists and structs that may not be there.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    kind: Option<Physical>,
    /// The level at which a value is there.
    defined: u32,
    repeated: u32,
}

#[derive(Clone, Copy, Debug)]
enum Physical {
    Boolean,
    Int32,
    Int64,
    Float,
    Double,
}

impl Physical {
    fn numbered(number: i64) -> Option<Self> {
        match number {
            0 => Some(Physical::Boolean),
            1 => Some(Physical::Int32),
            2 => Some(Physical::Int64),
            4 => Some(Physical::Float),
            5 => Some(Physical::Double),
            _ => None,
        }
    }

    /// `count` plain values.
    #[allow(clippy::cast_precision_loss)] // Sizes and indices are far below 2^53.
    fn plain(self, bytes: &[u8], count: usize) -> Option<Vec<f64>> {
        fn each<const N: usize>(
            bytes: &[u8],
            count: usize,
            read: impl Fn([u8; N]) -> f64,
        ) -> Option<Vec<f64>> {
            let bytes = bytes.get(..count.checked_mul(N)?)?;
            Some(bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect())
        }
        match self {
            Physical::Boolean => {
                let bit = |at: usize| Some(f64::from(bytes.get(at / 8)? >> (at % 8) & 1));
                if count.div_ceil(8) > bytes.len() {
                    return None;
                }
                (0..count).map(bit).collect()
            }
            Physical::Int32 => each(bytes, count, |b| f64::from(i32::from_le_bytes(b))),
            Physical::Int64 => each(bytes, count, |b| i64::from_le_bytes(b) as f64),
            Physical::Float => each(bytes, count, |b| f64::from(f32::from_le_bytes(b))),
            Physical::Double => each(bytes, count, f64::from_le_bytes),
        }
    }
}

/// The columns that a file has, by their paths.
fn schema(meta: &Value) -> Option<HashMap<String, Leaf>> {
    let mut elements = meta.list(2)?.iter();
    let root = elements.next()?;
    let mut leaves = HashMap::new();
    // The groups that we are in: how many are still to come in each, and its path and levels.
    let mut open = vec![(root.size(5).unwrap_or(0), String::new(), 0u32, 0u32)];
    for element in elements {
        while open.last().is_some_and(|(left, ..)| *left == 0) {
            open.pop();
        }
        let (left, path, defined, repeated) = open.last_mut()?;
        *left -= 1;
        let name = element.field(4)?.text()?;
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let (defined, repeated) = match element.integer(3) {
            Some(0) => (*defined, *repeated),
            Some(1) => (*defined + 1, *repeated),
            Some(2) => (*defined + 1, *repeated + 1),
            _ => return None,
        };
        match element.size(5) {
            Some(children) if children > 0 => {
                if open.len() > 16 {
                    return None;
                }
                open.push((children, path, defined, repeated));
            }
            _ => {
                let kind = element.integer(1).and_then(Physical::numbered);
                leaves.insert(path, Leaf { kind, defined, repeated });
            }
        }
    }
    Some(leaves)
}

fn path(meta: &Value) -> Option<String> {
    let names: Option<Vec<&str>> = meta.list(3)?.iter().map(Value::text).collect();
    Some(names?.join("."))
}

/// A path without what stands between a list and its values.
fn short(path: &str) -> String {
    let endings = [".list.element", ".bag.array", ".array", ".element"];
    let found = endings.iter().find_map(|ending| path.strip_suffix(ending));
    found.unwrap_or(path).to_owned()
}

fn read_chunk(
    file: &[u8],
    meta: &Value,
    leaf: Leaf,
    column: &mut Vec<f64>,
    budget: usize,
) -> Result<()> {
    // A text, say: nothing that a model is made of here.
    let Some(kind) = leaf.kind else { return Ok(()) };
    let is_packed = match meta.integer(4) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(unsupported("another compression than Snappy")),
    };
    let total = meta.size(5).ok_or_else(|| damaged("it does not say how many values it has"))?;
    let data = meta.size(9).ok_or_else(|| damaged("it does not say where it is"))?;
    let start = meta.size(11).filter(|at| *at > 0).map_or(data, |dictionary| data.min(dictionary));
    let mut rest = file.get(start..).ok_or_else(|| damaged("it is not where it should be"))?;
    let mut dictionary = None;
    let mut seen = 0usize;
    while seen < total {
        let (page, behind) = Page::read(rest, is_packed)?;
        rest = behind;
        match page.kind {
            PageKind::Dictionary => {
                let values = kind.plain(&page.bytes, page.values);
                dictionary = Some(values.ok_or_else(|| damaged("its dictionary"))?);
            }
            PageKind::Data { encoding, levels } => {
                seen = seen.saturating_add(page.values);
                let (there, values) = levels
                    .skip(leaf, page.values, &page.bytes)
                    .ok_or_else(|| damaged("its levels"))?;
                if there > budget.saturating_sub(column.len()) {
                    return Err(damaged("it has more values than any model"));
                }
                let dictionary = dictionary.as_deref();
                column.extend(decode(kind, encoding, there, values, dictionary)?);
            }
            PageKind::Other => {}
        }
    }
    Ok(())
}

struct Page {
    kind: PageKind,
    /// Those that are not there included.
    values: usize,
    /// Unpacked.
    bytes: Vec<u8>,
}

enum PageKind {
    Dictionary,
    Data { encoding: i64, levels: Levels },
    Other,
}

/// Where a page says which values are there.
#[derive(Clone, Copy)]
enum Levels {
    /// Before the values, each kind with its length.
    Inline,
    /// Of these lengths, before the values.
    Apart { repetition: usize, definition: usize },
}

impl Page {
    fn read(bytes: &[u8], is_packed: bool) -> Result<(Self, &[u8])> {
        let header = Value::read(bytes);
        let (header, rest) = header.ok_or_else(|| damaged("the head of a page"))?;
        let sizes = header.size(3).zip(header.size(2));
        let (packed, unpacked) = sizes.ok_or_else(|| damaged("a page has no size"))?;
        let body = rest.split_at_checked(packed);
        let (body, rest) = body.ok_or_else(|| damaged("a page is cut short"))?;
        let missing = || damaged("a page does not say what is in it");
        let page = match header.integer(1) {
            Some(2) => {
                let head = header.field(7).ok_or_else(missing)?;
                let values = head.size(1).ok_or_else(missing)?;
                let bytes = unpack(body, unpacked, is_packed)?;
                Page { kind: PageKind::Dictionary, values, bytes }
            }
            Some(0) => {
                let head = header.field(5).ok_or_else(missing)?;
                let values = head.size(1).ok_or_else(missing)?;
                let encoding = head.integer(2).ok_or_else(missing)?;
                let bytes = unpack(body, unpacked, is_packed)?;
                Page { kind: PageKind::Data { encoding, levels: Levels::Inline }, values, bytes }
            }
            Some(3) => Page::second(&header, body, unpacked, is_packed).ok_or_else(missing)??,
            _ => Page { kind: PageKind::Other, values: 0, bytes: Vec::new() },
        };
        Ok((page, rest))
    }

    /// A page of version 2, whose levels are never packed.
    fn second(
        header: &Value,
        body: &[u8],
        unpacked: usize,
        is_packed: bool,
    ) -> Option<Result<Self>> {
        let head = header.field(8)?;
        let values = head.size(1)?;
        let encoding = head.integer(4)?;
        let (definition, repetition) = (head.size(5)?, head.size(6)?);
        let is_packed = is_packed && head.flag(7).unwrap_or(true);
        let (levels, data) = body.split_at_checked(definition.checked_add(repetition)?)?;
        let unpacked = unpacked.checked_sub(levels.len())?;
        let mut bytes = levels.to_vec();
        match unpack(data, unpacked, is_packed) {
            Ok(data) => bytes.extend(data),
            Err(error) => return Some(Err(error)),
        }
        let levels = Levels::Apart { repetition, definition };
        Some(Ok(Page { kind: PageKind::Data { encoding, levels }, values, bytes }))
    }
}

fn unpack(bytes: &[u8], unpacked: usize, is_packed: bool) -> Result<Vec<u8>> {
    if !is_packed {
        return Ok(bytes.to_vec());
    }
    // Snappy makes 64 bytes of 2 at most.
    let size = snap::raw::decompress_len(bytes).ok().filter(|size| *size == unpacked);
    let size = size.filter(|size| *size <= bytes.len().saturating_mul(32).saturating_add(64));
    size.and_then(|_| snap::raw::Decoder::new().decompress_vec(bytes).ok())
        .ok_or_else(|| damaged("a page can not be unpacked"))
}

impl Levels {
    /// How many of a page's values are there, and their bytes.
    fn skip(self, leaf: Leaf, values: usize, bytes: &[u8]) -> Option<(usize, &[u8])> {
        let (repetition, definition, rest) = match self {
            Levels::Inline => {
                let (repetition, rest) = with_length(bytes, leaf.repeated > 0)?;
                let (definition, rest) = with_length(rest, leaf.defined > 0)?;
                (repetition, definition, rest)
            }
            Levels::Apart { repetition, definition } => {
                let (repetition, rest) = bytes.split_at_checked(repetition)?;
                let (definition, rest) = rest.split_at_checked(definition)?;
                (repetition, definition, rest)
            }
        };
        let _ = repetition; // One row: all values are in its list.
        if leaf.defined == 0 {
            return Some((values, rest));
        }
        let width = u32::BITS - leaf.defined.leading_zeros();
        let mut there = 0;
        Hybrid { bytes: definition, width }.runs(values, |level, count| {
            if level == leaf.defined {
                there += count;
            }
            Some(())
        })?;
        Some((there, rest))
    }
}

/// Bytes behind their length, if they are there at all.
fn with_length(bytes: &[u8], is_there: bool) -> Option<(&[u8], &[u8])> {
    if !is_there {
        return Some((&[], bytes));
    }
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

fn decode(
    kind: Physical,
    encoding: i64,
    count: usize,
    bytes: &[u8],
    dictionary: Option<&[f64]>,
) -> Result<Vec<f64>> {
    let values = match (encoding, kind) {
        (0, _) => kind.plain(bytes, count),
        (2 | 8, _) => dictionary.and_then(|dictionary| by_number(bytes, count, dictionary)),
        (3, Physical::Boolean) => with_length(bytes, true).and_then(|(runs, _)| {
            let mut values = Vec::new();
            Hybrid { bytes: runs, width: 1 }.runs(count, |bit, times| {
                values.extend(std::iter::repeat_n(f64::from(bit), times));
                Some(())
            })?;
            Some(values)
        }),
        _ => return Err(unsupported("an encoding that Spark does not use by default")),
    };
    values.ok_or_else(|| damaged("its values"))
}

/// Values that are given as numbers of those in a dictionary.
fn by_number(bytes: &[u8], count: usize, dictionary: &[f64]) -> Option<Vec<f64>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let (width, runs) = bytes.split_first()?;
    let width = u32::from(*width);
    if width > 32 {
        return None;
    }
    let mut values = Vec::new();
    Hybrid { bytes: runs, width }.runs(count, |number, times| {
        let value = dictionary.get(usize::try_from(number).ok()?)?;
        values.extend(std::iter::repeat_n(*value, times));
        Some(())
    })?;
    Some(values)
}

/// Small numbers of `width` bits: runs of one of them, and packs of eight times some.
struct Hybrid<'b> {
    bytes: &'b [u8],
    width: u32,
}

impl Hybrid<'_> {
    /// Gives each of `count` numbers to `each`, those of a run together.
    fn runs(mut self, count: usize, mut each: impl FnMut(u32, usize) -> Option<()>) -> Option<()> {
        let mut left = count;
        while left > 0 {
            let head = varint(&mut self.bytes)?;
            let length = usize::try_from(head >> 1).ok()?;
            if head & 1 == 0 {
                let (value, rest) = self.bytes.split_at_checked(self.width.div_ceil(8) as usize)?;
                self.bytes = rest;
                let value = value.iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
                let taken = length.min(left);
                // A run of none would let a file keep us busy.
                if taken == 0 {
                    return None;
                }
                each(value, taken)?;
                left -= taken;
            } else {
                let size = length.checked_mul(self.width as usize)?;
                // The last pack may be cut where the values end.
                let (pack, rest) = self.bytes.split_at(size.min(self.bytes.len()));
                self.bytes = rest;
                let taken = length.checked_mul(8)?.min(left);
                if taken == 0 {
                    return None;
                }
                for index in 0..taken {
                    each(bits(pack, index, self.width)?, 1)?;
                }
                left -= taken;
            }
        }
        Some(())
    }
}

/// Number `index` of those of `width` bits in `pack`.
fn bits(pack: &[u8], index: usize, width: u32) -> Option<u32> {
    let mut number = 0u32;
    for bit in 0..width {
        let at = index.checked_mul(width as usize)?.checked_add(bit as usize)?;
        let one = pack.get(at / 8)? >> (at % 8) & 1;
        number |= u32::from(one) << bit;
    }
    Some(number)
}
