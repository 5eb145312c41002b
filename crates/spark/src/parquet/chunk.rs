//! The values of a column in a row group, page by page.
//!
//! A column reader of the `parquet` crate decodes whole rows, and a row may have millions of values, of which a
//! file has a few bytes. Here it gets a page only when what that takes in memory is within a budget.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::column::{NestedColumn, PageLevels};
use super::leaf::LeafColumn;
use super::{damaged, unsupported};
use parquet::basic::{Encoding, Type as PhysicalType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::RowGroupReader;
use tensorserve_tensor::error::{Error, Result};

/// What a text takes beside its bytes.
const TEXT_OVERHEAD: usize = 2 * size_of::<usize>();

/// Reads the column `index` of a row group to the end of `column`, as long as `budget` allows.
#[allow(clippy::cast_precision_loss)] // Sizes and indices are far below 2^53.
pub(super) fn read_chunk(
    group: &dyn RowGroupReader,
    index: usize,
    leaf: &LeafColumn,
    column: &mut NestedColumn,
    budget: &mut usize,
) -> Result<()> {
    let pages = group.get_column_page_reader(index).map_err(unreadable)?;
    let (sender, receiver) = channel();
    let total = group.metadata().column(index).num_values();
    let mut chunk =
        ColumnChunkReader { pages, sender, leaf, has_dictionary: false, seen: 0, budget };
    let pages = Box::new(AllowedPages(receiver));
    match get_column_reader(Arc::clone(&leaf.descriptor), pages) {
        ColumnReader::BoolColumnReader(reader) => {
            chunk.read_numbers(reader, column, |value| f64::from(*value))
        }
        ColumnReader::Int32ColumnReader(reader) => {
            chunk.read_numbers(reader, column, |value| f64::from(*value))
        }
        ColumnReader::Int64ColumnReader(reader) => {
            chunk.read_numbers(reader, column, |value| *value as f64)
        }
        ColumnReader::FloatColumnReader(reader) => {
            chunk.read_numbers(reader, column, |value| f64::from(*value))
        }
        ColumnReader::DoubleColumnReader(reader) => {
            chunk.read_numbers(reader, column, |value| *value)
        }
        ColumnReader::ByteArrayColumnReader(reader) => chunk.read_texts(reader, column),
        ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => {
            return Ok(());
        }
    }?;
    if i64::try_from(chunk.seen) != Ok(total) {
        return Err(damaged("its pages do not have as many values as it has"));
    }
    Ok(())
}

fn unreadable(error: ParquetError) -> Error {
    damaged(&error.to_string())
}

fn too_large() -> Error {
    damaged("it has more values than a model may have")
}

/// The pages that a column reader may decode: none for now if it has decoded all.
struct AllowedPages(Receiver<Page>);

impl PageReader for AllowedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        Ok(self.0.try_recv().ok())
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        Ok(None)
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.get_next_page().map(drop)
    }
}

impl Iterator for AllowedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// A column in a row group, while it is read.
struct ColumnChunkReader<'r> {
    pages: Box<dyn PageReader>,
    /// Leads to [`AllowedPages`].
    sender: Sender<Page>,
    leaf: &'r LeafColumn,
    has_dictionary: bool,
    /// The number of values so far.
    seen: usize,
    budget: &'r mut usize,
}

impl ColumnChunkReader<'_> {
    fn read_numbers<T: DataType>(
        &mut self,
        reader: ColumnReaderImpl<T>,
        column: &mut NestedColumn,
        number: impl Fn(&T::T) -> f64,
    ) -> Result<()> {
        self.read(reader, |_, levels, values| {
            column.extend_numbers(levels, values.iter().map(&number)).ok_or_else(misfit)
        })
    }

    fn read_texts<T: DataType<T = ByteArray>>(
        &mut self,
        reader: ColumnReaderImpl<T>,
        column: &mut NestedColumn,
    ) -> Result<()> {
        self.read(reader, |chunk, levels, values| {
            // Those of a dictionary are shared in the file, but a model has each where it is used.
            let bytes = values.iter().map(|text| text.len().saturating_add(TEXT_OVERHEAD));
            chunk.spend(bytes.fold(0, usize::saturating_add))?;
            let texts = values.iter().map(|text| String::from_utf8_lossy(text.data()).into());
            column.extend_texts(levels, texts).ok_or_else(misfit)
        })
    }

    /// Calls `add` with the values of each page, without nulls.
    fn read<T: DataType>(
        &mut self,
        mut reader: ColumnReaderImpl<T>,
        mut add: impl FnMut(&mut Self, &PageLevels, &[T::T]) -> Result<()>,
    ) -> Result<()> {
        let (mut definition, mut repetition, mut values) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(page) = self.pages.get_next_page().map_err(unreadable)? {
            self.check(&page)?;
            // The reader has the other end.
            self.sender.send(page).map_err(|_| misfit())?;
            let (_, _, count) = reader
                .read_records(usize::MAX, Some(&mut definition), Some(&mut repetition), &mut values)
                .map_err(unreadable)?;
            // There are none if all are 0.
            definition.resize(count, 0);
            repetition.resize(count, 0);
            let depth = self.leaf.depth();
            let starts = repetition.iter().map(|level| {
                usize::try_from(*level).map_or(0, |level| depth.saturating_sub(level))
            });
            self.spend(starts.sum::<usize>().saturating_mul(size_of::<usize>()))?;
            let levels =
                PageLevels { leaf: self.leaf, repetition: &repetition, definition: &definition };
            add(self, &levels, &values)?;
            definition.clear();
            repetition.clear();
            values.clear();
        }
        Ok(())
    }

    /// Refuses a page that would take too much memory, or that the crate does not expect.
    fn check(&mut self, page: &Page) -> Result<()> {
        let physical_type = self.leaf.descriptor.physical_type();
        let (values, encoding) = match page {
            Page::DictionaryPage { buf, num_values, .. } => {
                let values = usize::try_from(*num_values).unwrap_or(usize::MAX);
                // The crate makes room for as many values as it declares.
                if least_bytes(physical_type, values) > buf.len() {
                    return Err(damaged("its dictionary is not valid"));
                }
                if physical_type == PhysicalType::BYTE_ARRAY {
                    self.spend(values.saturating_mul(TEXT_OVERHEAD).saturating_add(buf.len()))?;
                }
                self.has_dictionary = true;
                return Ok(());
            }
            Page::DataPage { num_values, encoding, .. }
            | Page::DataPageV2 { num_values, encoding, .. } => (*num_values, *encoding),
        };
        #[allow(clippy::wildcard_enum_match_arm)]
        // One of the others is deprecated, and may not be named.
        match encoding {
            Encoding::PLAIN => {}
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY if self.has_dictionary => {}
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                return Err(damaged("it has no dictionary for its values"));
            }
            Encoding::RLE if physical_type == PhysicalType::BOOLEAN => {}
            // For these, the crate makes room for as many values as the page declares.
            _ => return Err(unsupported("an encoding other than Spark's defaults")),
        }
        let values = usize::try_from(values).unwrap_or(usize::MAX);
        self.seen = self.seen.saturating_add(values);
        let size = match physical_type == PhysicalType::BYTE_ARRAY {
            true => size_of::<Option<Arc<str>>>(),
            false => size_of::<f64>(),
        };
        // Before the levels, which may be many in few bytes, take memory.
        self.spend(values.saturating_mul(size))
    }

    fn spend(&mut self, bytes: usize) -> Result<()> {
        *self.budget = self.budget.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }
}

fn misfit() -> Error {
    damaged("its levels do not fit its values")
}

/// The least bytes that so many values of a type take in a page.
fn least_bytes(physical_type: PhysicalType, values: usize) -> usize {
    match physical_type {
        PhysicalType::BOOLEAN => values.div_ceil(8),
        PhysicalType::INT64 | PhysicalType::DOUBLE => values.saturating_mul(8),
        // Of a text, its length.
        PhysicalType::INT32
        | PhysicalType::FLOAT
        | PhysicalType::BYTE_ARRAY
        | PhysicalType::INT96
        | PhysicalType::FIXED_LEN_BYTE_ARRAY => values.saturating_mul(4),
    }
}
