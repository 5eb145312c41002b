//! A Parquet file that the `parquet` crate can read without exhausting the stack or memory.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::file::properties::{ReaderProperties, ReaderPropertiesPtr};
use parquet::file::reader::{ChunkReader, FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedRowGroupReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::{ColumnPath, Type};
use tensorserve_tensor::error::{Code, Error, Result};

use super::{caught, damaged, footer, pages, read_exactly};

const MAGIC: &[u8] = b"PAR1";
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// Size of the footer's length and the magic number at the end of a file.
const TAIL: usize = 8;

/// A file, in memory or on a disk, whose footer and page headers have been checked. What is read of it may panic:
/// call it in [`caught`]. How many values its pages have is not checked.
pub struct CheckedParquet<R: ChunkReader> {
    file: Arc<R>,
    metadata: ParquetMetaData,
    properties: ReaderPropertiesPtr,
}

impl<R: ChunkReader> CheckedParquet<R> {
    /// Checks a file whose footer may have `max_footer` bytes.
    ///
    /// # Errors
    /// [`Error::invalid`] if it is not a Parquet file, or takes far more memory than it has bytes, and
    /// [`Code::DataLoss`] if it is damaged.
    pub fn open(file: R, max_footer: usize) -> Result<Self> {
        check_footer(&file, max_footer)?;
        let metadata = caught(|| {
            let metadata = ParquetMetaDataReader::new().parse_and_finish(&file);
            let metadata = metadata.and_then(without_wrong_offsets).map_err(|error| {
                damaged(&format!("the Parquet file's footer cannot be read: {error}"))
            })?;
            pages::check(&file, &metadata)?;
            Ok(metadata)
        })?;
        let properties = Arc::new(ReaderProperties::builder().build());
        Ok(CheckedParquet { file: Arc::new(file), metadata, properties })
    }

    /// The path of the first column whose compression is not built in, and the name of that.
    pub fn unsupported_compression(&self) -> Option<(&ColumnPath, &'static str)> {
        let groups = self.metadata.row_groups().iter();
        groups.flat_map(RowGroupMetaData::columns).find_map(|column| {
            let name = match column.compression() {
                Compression::UNCOMPRESSED
                | Compression::SNAPPY
                | Compression::GZIP(_)
                | Compression::LZ4
                | Compression::LZ4_RAW
                | Compression::ZSTD(_) => return None,
                Compression::BROTLI(_) => "Brotli",
                Compression::LZO => "LZO",
            };
            Some((column.column_path(), name))
        })
    }
}

/// Checks the footer before the crate reads it.
fn check_footer(file: &impl ChunkReader, max_footer: usize) -> Result<()> {
    let tail_start = file.len().checked_sub(TAIL as u64).ok_or_else(not_parquet)?;
    let tail = read_exactly(file, tail_start, TAIL)?;
    let (length, magic) = tail.split_first_chunk::<4>().ok_or_else(not_parquet)?;
    if magic == ENCRYPTED_MAGIC {
        return Err(Error::invalid("the Parquet file is encrypted, which is not supported"));
    }
    if magic != MAGIC {
        return Err(not_parquet());
    }
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let start = tail_start.checked_sub(length as u64).filter(|_| length <= max_footer);
    let start = start.ok_or_else(|| {
        Error::new(Code::DataLoss, "the Parquet file is truncated, or its footer is damaged")
    })?;
    footer::check(&read_exactly(file, start, length)?)
}

fn not_parquet() -> Error {
    Error::invalid("the object is not a Parquet file, or it is truncated: it does not end in PAR1")
}

/// Removes offsets of dictionaries that columns do not have: some programs have written 0. The crate would start
/// to read there.
fn without_wrong_offsets(metadata: ParquetMetaData) -> Result<ParquetMetaData, ParquetError> {
    let has_wrong_offset = |column: &ColumnChunkMetaData| {
        let offset = column.dictionary_page_offset();
        offset.is_some_and(|offset| offset <= 0 || offset > column.data_page_offset())
    };
    let columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    if !columns.into_iter().any(has_wrong_offset) {
        return Ok(metadata);
    }
    let mut builder = metadata.into_builder();
    let groups = builder.take_row_groups().into_iter().map(|group| {
        let mut group = group.into_builder();
        for column in group.take_columns() {
            let column = match has_wrong_offset(&column) {
                true => column.into_builder().set_dictionary_page_offset(None).build()?,
                false => column,
            };
            group = group.add_column_metadata(column);
        }
        group.build()
    });
    let groups = groups.collect::<Result<_, ParquetError>>()?;
    Ok(builder.set_row_groups(groups).build())
}

impl<R: ChunkReader + 'static> FileReader for CheckedParquet<R> {
    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }

    fn num_row_groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    fn get_row_group(&self, index: usize) -> Result<Box<dyn RowGroupReader + '_>, ParquetError> {
        Ok(Box::new(SerializedRowGroupReader::new(
            Arc::clone(&self.file),
            self.metadata.row_group(index),
            self.metadata.page_index_for_row_group(index),
            Arc::clone(&self.properties),
        )?))
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>, ParquetError> {
        RowIter::from_file(projection, self)
    }
}
