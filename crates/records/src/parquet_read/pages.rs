//! A check of a Parquet file's page headers before the `parquet` crate reads the pages.
//!
//! The crate allocates what a header declares that its page takes when decompressed, up to 2 GiB. Compressions
//! make 100 MB of 3 KB; a file of a few KB would take gigabytes.

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use tensorserve_tensor::error::{Code, Error, Result};

use super::file::{ParquetFile, read_error};
use super::footer::{Walk, unzigzag};

/// The most bytes that a page takes, for each of its compressed bytes and besides them. Most writers make pages
/// of 1 MiB.
const MAX_RATIO: u64 = 1024;
const MAX_EXTRA: u64 = 16 << 20;

/// The bytes in which a header is looked for at first, and at most: it may have statistics.
const FIRST_HEADER: u64 = 1 << 10;
const MAX_HEADER: u64 = 16 << 20;

/// The fields of a header.
const UNCOMPRESSED: i64 = 2;
const COMPRESSED: i64 = 3;

/// The type of a 32-bit integer.
const I32: u8 = 5;

struct PageSizes {
    header: u64,
    compressed: u64,
    uncompressed: u64,
}

/// Checks the pages of all columns.
pub(super) fn check(file: &ParquetFile, metadata: &ParquetMetaData) -> Result<()> {
    for column in metadata.row_groups().iter().flat_map(RowGroupMetaData::columns) {
        check_column(file, column)
            .map_err(|error| error.context(format!("column {}", column.column_path())))?;
    }
    Ok(())
}

fn check_column(file: &ParquetFile, column: &ColumnChunkMetaData) -> Result<()> {
    let (mut at, length) = column.byte_range();
    let end = at.checked_add(length).filter(|end| *end <= file.size()).ok_or_else(damaged)?;
    while at < end {
        // The crate finds the row at which the file is damaged.
        let Some(page) = read_sizes(file, at)? else { return Ok(()) };
        let most = page.compressed.saturating_mul(MAX_RATIO).saturating_add(MAX_EXTRA);
        if page.uncompressed > most {
            let PageSizes { compressed, uncompressed, .. } = page;
            return Err(Error::invalid(format!(
                "a page of {compressed} bytes takes {uncompressed} bytes when decompressed, which is \
                 more than {MAX_RATIO} times as much and {MAX_EXTRA} bytes: write the file with pages \
                 of 1 MiB"
            )));
        }
        at = at.saturating_add(page.header).saturating_add(page.compressed);
    }
    Ok(())
}

/// Reads the header at `at`; `None` if it is damaged.
fn read_sizes(file: &ParquetFile, at: u64) -> Result<Option<PageSizes>> {
    let mut length = FIRST_HEADER;
    loop {
        let taken = length.min(file.size().saturating_sub(at));
        let count = usize::try_from(taken).map_err(|_| damaged())?;
        match parse(&file.read_exactly(at, count).map_err(read_error)?) {
            Err(_) if taken == length && length < MAX_HEADER => length *= 16,
            Err(_) if length >= MAX_HEADER => return Err(damaged()),
            sizes => return Ok(sizes.ok()),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<PageSizes> {
    let mut walk = Walk::new(bytes);
    let (mut field, mut compressed, mut uncompressed) = (0, None, None);
    while let Some(kind) = walk.field(&mut field)? {
        match (field, kind) {
            (UNCOMPRESSED, I32) => uncompressed = u64::try_from(unzigzag(walk.varint()?)).ok(),
            (COMPRESSED, I32) => compressed = u64::try_from(unzigzag(walk.varint()?)).ok(),
            _ => walk.skip(kind, 0)?,
        }
    }
    let header = (bytes.len() - walk.left()) as u64;
    match (compressed, uncompressed) {
        (Some(compressed), Some(uncompressed)) => {
            Ok(PageSizes { header, compressed, uncompressed })
        }
        _ => Err(damaged()),
    }
}

fn damaged() -> Error {
    Error::new(Code::DataLoss, "the Parquet file is damaged: a page's header is not valid")
}
