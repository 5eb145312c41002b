//! Parquet files, as far as Spark's models need them: columns of numbers and texts, in structs, lists
//! and maps.
//!
//! This is not the `parquet` crate, which has twenty dependencies and many more features. Supported
//! are data pages of version 1 and 2, plain or with a dictionary, uncompressed or compressed with
//! Snappy, gzip or zstd.
//!
//! * [`thrift`] reads metadata, whose field ids and enumerations are in [`format`](mod@format);
//! * [`page`] reads the pages of a column, [`rle`] their levels and indices, and [`mod@column`] assembles rows
//!   and lists from them.

use std::collections::HashMap;

use self::column::NestedColumn;
use self::format::{
    column_chunk, column_metadata, file_metadata, repetition_type, row_group, schema_element,
};
use self::page::{LeafColumn, PageKind, ParquetPage, PhysicalType, decode_values};
use self::thrift::ThriftValue;
use tensorserve_tensor::error::{Error, Result};

pub(super) mod column;
mod format;
mod page;
mod rle;
mod thrift;

/// The most bytes of the values of a file: those of a model of 64 million coefficients, but not far more
/// than the file has.
const MAX_VALUE_BYTES: usize = 1 << 29;
const MIN_VALUE_BYTES: usize = 1 << 26;
const MAX_VALUE_RATIO: usize = 1 << 12;

/// The largest file metadata, in bytes.
const MAX_METADATA: usize = 16 << 20;

/// How deep groups of columns may be nested.
const MAX_GROUP_DEPTH: usize = 16;

/// With which a file starts and ends.
const MAGIC: &[u8] = b"PAR1";

/// The names of the groups between a list and its elements, which depend on the program that wrote the
/// file.
const LIST_GROUPS: [&[&str]; 5] =
    [&["list", "element"], &["bag", "array_element"], &["bag", "array"], &["array"], &["element"]];

/// The names of the group of a map's entries.
const MAP_GROUP: &str = "key_value";
const OLD_MAP_GROUP: &str = "map";

/// The columns of a file.
#[derive(Debug, Default)]
pub(super) struct ParquetColumns {
    /// The number of rows.
    pub(super) rows: usize,
    /// The columns by their paths, such as `weights.values`, without [`LIST_GROUPS`].
    columns: HashMap<String, NestedColumn>,
}

fn damaged(what: &str) -> Error {
    Error::damaged(format!("the Parquet file is damaged: {what}"))
}

fn unsupported(what: &str) -> Error {
    let message = format!(
        "the Parquet file has {what}, which is not supported: save the model with \
         spark.sql.parquet.compression.codec=snappy and Spark's other defaults"
    );
    Error::unsupported(message)
}

impl ParquetColumns {
    /// Reads all columns of numbers and texts of a file.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let metadata = split_metadata(bytes).ok_or_else(|| damaged("its footer is missing"))?;
        let (metadata, _) = ThriftValue::read_struct(metadata)
            .ok_or_else(|| damaged("its metadata is not valid"))?;
        let schema = read_schema(&metadata).ok_or_else(|| damaged("its schema is not valid"))?;
        let rows = metadata
            .size(file_metadata::NUM_ROWS)
            .ok_or_else(|| damaged("its number of rows is missing"))?;
        let mut columns = HashMap::new();
        let budget = bytes.len().saturating_mul(MAX_VALUE_RATIO).saturating_add(MIN_VALUE_BYTES);
        let mut budget = budget.min(MAX_VALUE_BYTES);
        for group in metadata.list(file_metadata::ROW_GROUPS).unwrap_or_default() {
            for chunk in group.list(row_group::COLUMNS).unwrap_or_default() {
                let metadata = chunk
                    .field(column_chunk::META_DATA)
                    .ok_or_else(|| damaged("the metadata of a column is missing"))?;
                let path = read_path(metadata).ok_or_else(|| damaged("a column has no path"))?;
                let joined = path.join(".");
                let leaf =
                    schema.get(&joined).ok_or_else(|| damaged("a column is not in the schema"))?;
                // Models have no parameters of other types.
                let Some(kind) = leaf.physical_type else { continue };
                let column = columns.entry(without_list_groups(&path)).or_insert_with(|| {
                    let is_text = matches!(kind, PhysicalType::Text);
                    NestedColumn::new(leaf.repeated.len(), is_text)
                });
                read_chunk(bytes, metadata, leaf, kind, column, &mut budget)
                    .map_err(|error| error.context(format!("column {joined}")))?;
            }
        }
        // A column that is missing in a row would be taken for that of another row.
        if columns.values().any(|column| column.rows() != rows) {
            return Err(damaged("a column does not have a value for each row"));
        }
        Ok(ParquetColumns { rows, columns })
    }

    /// A column.
    pub(super) fn column(&self, path: &str) -> Option<&NestedColumn> {
        self.columns.get(path)
    }

    /// The numbers of a column, one after the other; none if there is no such column.
    pub(super) fn list(&self, path: &str) -> &[f64] {
        self.column(path).map_or(&[], NestedColumn::numbers)
    }

    /// The only number of a column, unless it is null.
    pub(super) fn number(&self, path: &str) -> Option<f64> {
        match self.list(path) {
            [value] if !value.is_nan() => Some(*value),
            _ => None,
        }
    }

    /// Whether there is such a column, or one within it.
    pub(super) fn has(&self, path: &str) -> bool {
        let mut rests = self.columns.keys().filter_map(|name| name.strip_prefix(path));
        rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Adds the rows of another file of the same table.
    pub(super) fn append(&mut self, other: ParquetColumns) -> Result<()> {
        let is_first = self.columns.is_empty();
        self.rows = self.rows.saturating_add(other.rows);
        for (path, column) in other.columns {
            match self.columns.get_mut(&path) {
                Some(own) => own.append(column),
                None if is_first => self.columns.insert(path, column).map_or(Some(()), |_| None),
                None => None,
            }
            .ok_or_else(|| damaged("its columns are not those of the other files"))?;
        }
        match self.columns.values().all(|column| column.rows() == self.rows) {
            true => Ok(()),
            false => Err(damaged("it lacks columns that the other files have")),
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
    /// [`LeafColumn::repeated`].
    repeated: Vec<u32>,
}

/// The columns of a file by their paths. The schema lists groups and columns depth first.
fn read_schema(metadata: &ThriftValue) -> Option<HashMap<String, LeafColumn>> {
    let mut elements = metadata.list(file_metadata::SCHEMA)?.iter();
    let root = elements.next()?;
    let left = root.size(schema_element::NUM_CHILDREN).unwrap_or(0);
    let mut leaves = HashMap::new();
    let mut open =
        vec![SchemaGroup { left, path: String::new(), max_definition: 0, repeated: Vec::new() }];
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
        let mut repeated = parent.repeated.clone();
        if is_repeated {
            repeated.push(max_definition);
        }
        match element.size(schema_element::NUM_CHILDREN) {
            Some(left) if left > 0 => {
                if open.len() > MAX_GROUP_DEPTH {
                    return None;
                }
                open.push(SchemaGroup { left, path, max_definition, repeated });
            }
            _ => {
                let number = element.integer(schema_element::TYPE);
                let physical_type = number.and_then(PhysicalType::from_number);
                leaves.insert(path, LeafColumn { physical_type, max_definition, repeated });
            }
        }
    }
    Some(leaves)
}

/// The path of a column.
fn read_path<'m>(metadata: &'m ThriftValue) -> Option<Vec<&'m str>> {
    let names = metadata.list(column_metadata::PATH_IN_SCHEMA)?.iter();
    names.map(ThriftValue::text).collect()
}

/// A path without [`LIST_GROUPS`]; the entries of maps are in [`MAP_GROUP`].
fn without_list_groups(path: &[&str]) -> String {
    let (mut kept, mut rest) = (Vec::new(), path);
    while let Some((name, behind)) = rest.split_first() {
        let group = LIST_GROUPS.iter().find_map(|group| rest.strip_prefix(*group));
        match group {
            // The first name is that of the column.
            Some(behind) if !kept.is_empty() => rest = behind,
            _ => {
                let is_map = *name == OLD_MAP_GROUP && !kept.is_empty();
                kept.push(if is_map { MAP_GROUP } else { *name });
                rest = behind;
            }
        }
    }
    kept.join(".")
}

/// Reads the values of a column in a row group to the end of `column`, as long as `budget` allows.
fn read_chunk(
    file: &[u8],
    metadata: &ThriftValue,
    leaf: &LeafColumn,
    kind: PhysicalType,
    column: &mut NestedColumn,
    budget: &mut usize,
) -> Result<()> {
    let codec = metadata
        .integer(column_metadata::CODEC)
        .ok_or_else(|| damaged("its compression is missing"))?;
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
    let too_large = || damaged("it has more values than a model may have");
    let mut dictionary = None;
    let mut seen = 0usize;
    while seen < total {
        let (page, behind) = ParquetPage::read(rest, codec)?;
        rest = behind;
        match page.kind {
            PageKind::Dictionary => {
                let values = kind.decode_plain(&page.bytes, page.values);
                let values = values.ok_or_else(|| damaged("its dictionary is not valid"))?;
                *budget = budget.checked_sub(values.text_bytes()).ok_or_else(too_large)?;
                dictionary = Some(values);
            }
            PageKind::Data { encoding, levels } => {
                seen = seen.saturating_add(page.values);
                // Before the levels, which may be many in few bytes, take memory.
                *budget = page
                    .values
                    .checked_mul(kind.size())
                    .and_then(|size| budget.checked_sub(size))
                    .ok_or_else(too_large)?;
                let (repetition, definition, values) = levels
                    .split(leaf, page.values, &page.bytes)
                    .ok_or_else(|| damaged("its levels are not valid"))?;
                let depth = leaf.repeated.len();
                let starts = repetition.iter().map(|level| depth.saturating_sub((*level).into()));
                *budget = budget
                    .checked_sub(starts.sum::<usize>().saturating_mul(size_of::<usize>()))
                    .ok_or_else(too_large)?;
                let is_present = |level: &&u8| u32::from(**level) >= leaf.max_definition;
                let present = definition.iter().filter(is_present).count();
                let values = decode_values(kind, encoding, present, values, dictionary.as_ref())?;
                // Those of a dictionary are shared here, but a model has each where it is used.
                *budget = budget.checked_sub(values.text_bytes()).ok_or_else(too_large)?;
                column
                    .extend(leaf, &repetition, &definition, values)
                    .ok_or_else(|| damaged("its levels do not fit its values"))?;
            }
            PageKind::Other => {}
        }
    }
    Ok(())
}
