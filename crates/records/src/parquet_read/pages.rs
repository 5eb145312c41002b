//! A check of a Parquet file's page headers before the `parquet` crate reads the pages.
//!
//! The crate allocates what a header declares that its page takes when decompressed, up to 2 GiB. Compressions
//! make 100 MB of 3 KB; a file of a few KB would take gigabytes.

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::ChunkReader;
use tensorserve_tensor::error::{Code, Error, Result};

use super::footer::{Walk, unzigzag};
use super::read_exactly;

/// The most bytes that a page takes, for each of its compressed bytes and besides them. Most writers make pages
/// of 1 MiB.
const MAX_RATIO: u64 = 1024;
const MAX_EXTRA: u64 = 16 << 20;

/// The most bytes of the largest pages of all columns, which are in memory at once: for each byte of the file and
/// besides them.
const MAX_OPEN_RATIO: u64 = 64;
const MAX_OPEN_EXTRA: u64 = 512 << 20;

/// The bytes in which a header is looked for at first, and at most: it may have statistics.
const FIRST_HEADER: u64 = 1 << 10;
const MAX_HEADER: u64 = 16 << 20;

/// The fields of a header.
const UNCOMPRESSED: i64 = 2;
const COMPRESSED: i64 = 3;
const DICTIONARY: i64 = 7;

/// The field of a dictionary's header with the number of its values.
const VALUES: i64 = 1;

/// The types of a 32-bit integer and of a structure.
const I32: u8 = 5;
const STRUCT: u8 = 12;

struct PageSizes {
    header: u64,
    compressed: u64,
    uncompressed: u64,
    /// The number of values of a dictionary.
    dictionary: u64,
}

/// Checks the pages of all columns.
pub(super) fn check(file: &impl ChunkReader, metadata: &ParquetMetaData) -> Result<()> {
    let most = file.len().saturating_mul(MAX_OPEN_RATIO).saturating_add(MAX_OPEN_EXTRA);
    for group in metadata.row_groups() {
        let mut left = most;
        for column in group.columns() {
            let largest = check_column(file, column)
                .map_err(|error| error.context(format!("column {}", column.column_path())))?;
            left = left.checked_sub(largest).ok_or_else(|| {
                Error::invalid(format!(
                    "the pages of the Parquet file's columns take more than {most} bytes together: write the \
                     file with smaller pages"
                ))
            })?;
        }
    }
    Ok(())
}

/// Checks the pages of a column. Returns the size of the largest.
fn check_column(file: &impl ChunkReader, column: &ColumnChunkMetaData) -> Result<u64> {
    let mut largest = 0;
    let (mut at, length) = column.byte_range();
    let end = at.checked_add(length).filter(|end| *end <= file.len()).ok_or_else(damaged)?;
    while at < end {
        // The crate finds the row at which the file is damaged.
        let Some(page) = read_sizes(file, at)? else { return Ok(largest) };
        let most = page.compressed.saturating_mul(MAX_RATIO).saturating_add(MAX_EXTRA);
        if page.uncompressed > most {
            let PageSizes { compressed, uncompressed, .. } = page;
            return Err(Error::invalid(format!(
                "a page of {compressed} bytes takes {uncompressed} bytes when decompressed, which is \
                 more than {MAX_RATIO} times as much and {MAX_EXTRA} bytes: write the file with pages \
                 of 1 MiB"
            )));
        }
        // The crate makes room for as many values as a dictionary declares.
        if page.dictionary > page.uncompressed {
            return Err(damaged());
        }
        largest = largest.max(page.uncompressed);
        at = at.saturating_add(page.header).saturating_add(page.compressed);
    }
    Ok(largest)
}

/// Reads the header at `at`; `None` if it is damaged.
fn read_sizes(file: &impl ChunkReader, at: u64) -> Result<Option<PageSizes>> {
    let mut length = FIRST_HEADER;
    loop {
        let taken = length.min(file.len().saturating_sub(at));
        let count = usize::try_from(taken).map_err(|_| damaged())?;
        match parse(&read_exactly(file, at, count)?) {
            Err(_) if taken == length && length < MAX_HEADER => length *= 16,
            Err(_) if length >= MAX_HEADER => return Err(damaged()),
            sizes => return Ok(sizes.ok()),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<PageSizes> {
    let mut walk = Walk::new(bytes);
    let (mut field, mut compressed, mut uncompressed, mut dictionary) = (0, None, None, 0);
    while let Some(kind) = walk.field(&mut field)? {
        match (field, kind) {
            (UNCOMPRESSED, I32) => uncompressed = u64::try_from(unzigzag(walk.varint()?)).ok(),
            (COMPRESSED, I32) => compressed = u64::try_from(unzigzag(walk.varint()?)).ok(),
            (DICTIONARY, STRUCT) => dictionary = parse_dictionary(&mut walk)?,
            _ => walk.skip(kind, 0)?,
        }
    }
    let header = (bytes.len() - walk.left()) as u64;
    match (compressed, uncompressed) {
        (Some(compressed), Some(uncompressed)) => {
            Ok(PageSizes { header, compressed, uncompressed, dictionary })
        }
        _ => Err(damaged()),
    }
}

/// The number of values in the header of a dictionary.
fn parse_dictionary(walk: &mut Walk) -> Result<u64> {
    let (mut field, mut values) = (0, 0);
    while let Some(kind) = walk.field(&mut field)? {
        match (field, kind) {
            (VALUES, I32) => {
                values = u64::try_from(unzigzag(walk.varint()?)).map_err(|_| damaged())?
            }
            _ => walk.skip(kind, 1)?,
        }
    }
    Ok(values)
}

fn damaged() -> Error {
    Error::new(Code::DataLoss, "the Parquet file is damaged: a page's header is not valid")
}
