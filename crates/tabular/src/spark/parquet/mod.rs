//! Parquet files, as far as Spark's models need them: one row, whose numbers and lists of numbers are
//! read as one list for each column.
//!
//! This is not the `parquet` crate, which has twenty dependencies and many more features. Supported
//! are data pages of version 1 and 2, plain or with a dictionary, uncompressed or compressed with
//! Snappy, of numbers and booleans.
//!
//! * [`thrift`] reads metadata, whose field ids and enumerations are in [`format`](mod@format);
//! * [`page`] reads the pages of a column, and [`rle`] their levels and indices.

use std::collections::HashMap;

use self::format::{
    codec, column_chunk, column_metadata, file_metadata, repetition_type, row_group, schema_element,
};
use self::page::{LeafColumn, PageKind, ParquetPage, PhysicalType, decode_values};
use self::thrift::ThriftValue;
use tensorserve_tensor::error::{Code, Error, Result};

mod format;
mod page;
mod rle;
mod thrift;

/// The most numbers of a file: a model of 64 million coefficients.
const MAX_NUMBERS: usize = 1 << 26;

/// The largest file metadata, in bytes.
const MAX_METADATA: usize = 16 << 20;

/// How deep groups of columns may be nested.
const MAX_GROUP_DEPTH: usize = 16;

/// With which a file starts and ends.
const MAGIC: &[u8] = b"PAR1";

/// The names between a list and its values, which depend on the program that wrote the file.
const LIST_SUFFIXES: [&str; 4] = [".list.element", ".bag.array", ".array", ".element"];

/// The columns of a file.
#[derive(Debug, Default)]
pub(super) struct ParquetColumns {
    /// The number of rows.
    pub(super) rows: usize,
    /// The values of each column, without nulls, of all rows. The key is its path, such as
    /// `weights.values`, without [`LIST_SUFFIXES`].
    values: HashMap<String, Vec<f64>>,
}

fn damaged(what: &str) -> Error {
    Error::new(Code::DataLoss, format!("the Parquet file is damaged: {what}"))
}

fn unsupported(what: &str) -> Error {
    let message = format!(
        "the Parquet file has {what}, which is not supported: save the model with \
         spark.sql.parquet.compression.codec=snappy and Spark's other defaults"
    );
    Error::new(Code::Unimplemented, message)
}

impl ParquetColumns {
    /// Reads all columns of numbers of a file.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let metadata = split_metadata(bytes).ok_or_else(|| damaged("its footer is missing"))?;
        let (metadata, _) = ThriftValue::read_struct(metadata)
            .ok_or_else(|| damaged("its metadata is not valid"))?;
        let schema = read_schema(&metadata).ok_or_else(|| damaged("its schema is not valid"))?;
        let rows = metadata
            .size(file_metadata::NUM_ROWS)
            .ok_or_else(|| damaged("its number of rows is missing"))?;
        let mut columns = ParquetColumns { rows, values: HashMap::new() };
        let mut budget = MAX_NUMBERS;
        for group in metadata.list(file_metadata::ROW_GROUPS).unwrap_or_default() {
            for chunk in group.list(row_group::COLUMNS).unwrap_or_default() {
                let metadata = chunk
                    .field(column_chunk::META_DATA)
                    .ok_or_else(|| damaged("the metadata of a column is missing"))?;
                let path = read_path(metadata).ok_or_else(|| damaged("a column has no path"))?;
                let leaf =
                    schema.get(&path).ok_or_else(|| damaged("a column is not in the schema"))?;
                let column = columns.values.entry(without_list_suffix(&path)).or_default();
                let before = column.len();
                read_chunk(bytes, metadata, *leaf, column, budget)
                    .map_err(|error| error.context(format!("column {path}")))?;
                budget -= column.len() - before;
            }
        }
        Ok(columns)
    }

    /// The values of a column; none if there is no such column.
    pub(super) fn list(&self, path: &str) -> &[f64] {
        self.values.get(path).map_or(&[], Vec::as_slice)
    }

    /// The only value of a column.
    pub(super) fn number(&self, path: &str) -> Option<f64> {
        match self.list(path) {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// Whether there is such a column, or one within it.
    pub(super) fn has(&self, path: &str) -> bool {
        let mut rests = self.values.keys().filter_map(|name| name.strip_prefix(path));
        rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Adds the rows of another file of the same table.
    pub(super) fn append(&mut self, other: ParquetColumns) {
        self.rows = self.rows.saturating_add(other.rows);
        for (path, values) in other.values {
            self.values.entry(path).or_default().extend(values);
        }
    }
}

/// The bytes of the metadata at the end of a file.
fn split_metadata(bytes: &[u8]) -> Option<&[u8]> {
    let body = bytes.strip_prefix(MAGIC)?.strip_suffix(MAGIC)?;
    let (body, length) = body.split_last_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    if length > MAX_METADATA {
        return None;
    }
    body.get(body.len().checked_sub(length)?..)
}

/// A group of columns, while the schema is read.
struct SchemaGroup {
    /// The number of children that are still to come.
    left: usize,
    path: String,
    max_definition: u32,
    max_repetition: u32,
}

/// The columns of a file by their paths. The schema lists groups and columns depth first.
fn read_schema(metadata: &ThriftValue) -> Option<HashMap<String, LeafColumn>> {
    let mut elements = metadata.list(file_metadata::SCHEMA)?.iter();
    let root = elements.next()?;
    let left = root.size(schema_element::NUM_CHILDREN).unwrap_or(0);
    let mut leaves = HashMap::new();
    let mut open =
        vec![SchemaGroup { left, path: String::new(), max_definition: 0, max_repetition: 0 }];
    for element in elements {
        while open.last().is_some_and(|group| group.left == 0) {
            open.pop();
        }
        let parent = open.last_mut()?;
        parent.left -= 1;
        let name = element.field(schema_element::NAME)?.text()?;
        let path = match parent.path.is_empty() {
            true => name.to_owned(),
            false => format!("{}.{name}", parent.path),
        };
        let (is_optional, is_repeated) = match element.integer(schema_element::REPETITION_TYPE) {
            Some(repetition_type::REQUIRED) => (false, false),
            Some(repetition_type::OPTIONAL) => (true, false),
            Some(repetition_type::REPEATED) => (true, true),
            _ => return None,
        };
        let max_definition = parent.max_definition + u32::from(is_optional);
        let max_repetition = parent.max_repetition + u32::from(is_repeated);
        match element.size(schema_element::NUM_CHILDREN) {
            Some(left) if left > 0 => {
                if open.len() > MAX_GROUP_DEPTH {
                    return None;
                }
                open.push(SchemaGroup { left, path, max_definition, max_repetition });
            }
            _ => {
                let number = element.integer(schema_element::TYPE);
                let physical_type = number.and_then(PhysicalType::from_number);
                leaves.insert(path, LeafColumn { physical_type, max_definition, max_repetition });
            }
        }
    }
    Some(leaves)
}

/// The path of a column.
fn read_path(metadata: &ThriftValue) -> Option<String> {
    let names = metadata.list(column_metadata::PATH_IN_SCHEMA)?.iter();
    let names: Option<Vec<&str>> = names.map(ThriftValue::text).collect();
    Some(names?.join("."))
}

fn without_list_suffix(path: &str) -> String {
    let found = LIST_SUFFIXES.iter().find_map(|suffix| path.strip_suffix(suffix));
    found.unwrap_or(path).to_owned()
}

/// Reads the values of a column in a row group, at most `budget`, to the end of `column`.
fn read_chunk(
    file: &[u8],
    metadata: &ThriftValue,
    leaf: LeafColumn,
    column: &mut Vec<f64>,
    budget: usize,
) -> Result<()> {
    // Models have no parameters of other types.
    let Some(physical_type) = leaf.physical_type else { return Ok(()) };
    let is_compressed = match metadata.integer(column_metadata::CODEC) {
        Some(codec::UNCOMPRESSED) => false,
        Some(codec::SNAPPY) => true,
        _ => return Err(unsupported("a compression other than Snappy")),
    };
    let total = metadata
        .size(column_metadata::NUM_VALUES)
        .ok_or_else(|| damaged("its number of values is missing"))?;
    let data = metadata
        .size(column_metadata::DATA_PAGE_OFFSET)
        .ok_or_else(|| damaged("the offset of its pages is missing"))?;
    let dictionary = metadata.size(column_metadata::DICTIONARY_PAGE_OFFSET);
    let start = dictionary.filter(|offset| *offset > 0).map_or(data, |offset| data.min(offset));
    let mut rest =
        file.get(start..).ok_or_else(|| damaged("the offset of its pages is out of range"))?;
    let mut dictionary = None;
    let mut seen = 0usize;
    while seen < total {
        let (page, behind) = ParquetPage::read(rest, is_compressed)?;
        rest = behind;
        match page.kind {
            PageKind::Dictionary => {
                let values = physical_type.decode_plain(&page.bytes, page.values);
                dictionary = Some(values.ok_or_else(|| damaged("its dictionary is not valid"))?);
            }
            PageKind::Data { encoding, levels } => {
                seen = seen.saturating_add(page.values);
                let (present, values) = levels
                    .split(leaf, page.values, &page.bytes)
                    .ok_or_else(|| damaged("its levels are not valid"))?;
                if present > budget.saturating_sub(column.len()) {
                    return Err(damaged("it has more values than a model may have"));
                }
                let dictionary = dictionary.as_deref();
                column.extend(decode_values(physical_type, encoding, present, values, dictionary)?);
            }
            PageKind::Other => {}
        }
    }
    Ok(())
}
