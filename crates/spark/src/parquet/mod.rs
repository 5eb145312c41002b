//! Parquet files, as far as Spark's models need them: columns of numbers and texts, in structs, lists
//! and maps.
//!
//! The `parquet` crate decodes the files, after the checks of [`CheckedParquet`] and as far as a budget of memory
//! allows:
//!
//! * [`leaf`] finds the columns in the schema;
//! * [`chunk`] reads the values of one in a row group, and [`mod@column`] assembles rows and lists from them.

use std::collections::HashMap;

use self::chunk::read_chunk;
use self::column::NestedColumn;
use self::leaf::LeafColumn;
use bytes::Bytes;
use parquet::file::reader::FileReader;
use tensorserve_records::parquet_read::{self, CheckedParquet, caught};
use tensorserve_tensor::error::{Error, Result};

mod chunk;
pub(super) mod column;
mod leaf;

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
    parquet_read::damaged(&format!("the Parquet file is damaged: {what}"))
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
    pub(super) fn read(file: Vec<u8>) -> Result<Self> {
        if !file.starts_with(MAGIC) || !file.ends_with(MAGIC) {
            return Err(damaged("its footer is missing"));
        }
        let budget = file.len().saturating_mul(MAX_VALUE_RATIO).saturating_add(MIN_VALUE_BYTES);
        let mut budget = budget.min(MAX_VALUE_BYTES);
        let file = CheckedParquet::open(Bytes::from(file), MAX_METADATA)?;
        if let Some((column, name)) = file.unsupported_compression() {
            return Err(unsupported(&format!("column {column} compressed with {name}")));
        }
        let metadata = file.metadata().file_metadata();
        let rows = usize::try_from(metadata.num_rows())
            .map_err(|_| damaged("its number of rows is not valid"))?;
        let leaves = LeafColumn::all(metadata.schema_descr());
        if leaves.iter().any(|leaf| leaf.path().len() > MAX_GROUP_DEPTH + 1) {
            return Err(damaged("its groups of columns are nested too deep"));
        }
        let mut columns = HashMap::new();
        for group in 0..file.num_row_groups() {
            let group = caught(|| file.get_row_group(group).map_err(|e| damaged(&e.to_string())))?;
            for (index, leaf) in leaves.iter().enumerate() {
                // Models have no parameters of other types.
                let Some(is_text) = leaf.is_text() else { continue };
                let column = columns
                    .entry(without_list_groups(leaf.path()))
                    .or_insert_with(|| NestedColumn::new(leaf.depth(), is_text));
                caught(|| read_chunk(&*group, index, leaf, column, &mut budget))
                    .map_err(|error| error.context(format!("column {}", leaf.path().join("."))))?;
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

/// A path without [`LIST_GROUPS`]; the entries of maps are in [`MAP_GROUP`].
fn without_list_groups(path: &[String]) -> String {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let (mut kept, mut rest) = (Vec::new(), path.as_slice());
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
