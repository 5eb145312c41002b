//! A check of how much the rows of a Parquet file take, before the `parquet` crate assembles them.
//!
//! The crate keeps a whole row in memory, and copies a text of a dictionary wherever the row has it; the levels that
//! say how many values a row has are compressed. So a file of a few hundred bytes can have a row of gigabytes.
//! This decodes those levels, and looks for the largest text of each dictionary.

use bytes::Bytes;
use parquet::basic::{Encoding, Type as PhysicalType};
use parquet::column::page::{Page, PageReader};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::record::Field;
use tensorserve_tensor::error::{Error, Result};

use super::damaged;

/// The most memory of a row: for each byte of a record, which a row becomes, and besides them. Values that are
/// not in a list take more than their text, and texts of a dictionary count as its largest.
const MAX_RATIO: usize = 16;
const MAX_EXTRA: usize = 64 << 20;

/// How many rows' values the crate decodes at once by default.
const DEFAULT_BATCH: usize = 1024;

/// The memory for the values that are decoded at once, of each column, and what one value takes with its levels.
const BATCH_BYTES: usize = 16 << 20;
const VALUE_BYTES: usize = 48;

/// Checks the rows of all columns, if a record may have `max_record_bytes`. Returns how many rows may be decoded
/// at once.
pub(super) fn check(reader: &impl FileReader, max_record_bytes: usize) -> Result<usize> {
    let most = max_record_bytes.saturating_mul(MAX_RATIO).saturating_add(MAX_EXTRA);
    let mut batch = DEFAULT_BATCH;
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index).map_err(unreadable)?;
        let longest = check_group(&*group, most)?;
        batch = batch.min(BATCH_BYTES / VALUE_BYTES / longest.max(1));
    }
    Ok(batch.max(1))
}

/// Checks the rows of a row group. Returns the most values that a column has in a row.
fn check_group(group: &dyn RowGroupReader, most: usize) -> Result<usize> {
    let (mut longest, mut left) = (1, most);
    for (index, column) in group.metadata().columns().iter().enumerate() {
        let is_text = column.column_type() == PhysicalType::BYTE_ARRAY;
        let max_level = column.column_descr().max_rep_level();
        if !is_text && max_level == 0 {
            continue;
        }
        // The crate finds the row at which a page is damaged.
        let Ok(mut pages) = group.get_column_page_reader(index) else { continue };
        let ColumnSize { values, text } = size_of_rows(&mut *pages, is_text, max_level);
        longest = longest.max(values);
        let bytes = text.saturating_add(size_of::<Field>()).saturating_mul(values);
        left = left.checked_sub(bytes).ok_or_else(|| {
            let path = column.column_path();
            Error::invalid(format!(
                "a row of the Parquet file may take {most} bytes or more: column {path} has {values} values in one, \
                 and texts of {text} bytes in its dictionary: raise --max-record-mb, or write shorter lists and \
                 texts"
            ))
        })?;
    }
    Ok(longest)
}

/// What a column has in a row group.
struct ColumnSize {
    /// The most values in a row.
    values: usize,
    /// The length of the longest text of a dictionary.
    text: usize,
}

/// Reads the pages of a column that has `max_level` lists around its values.
fn size_of_rows(pages: &mut dyn PageReader, is_text: bool, max_level: i16) -> ColumnSize {
    let mut size = ColumnSize { values: 1, text: 0 };
    let mut lengths = RowLengths { width: bits_of(max_level), current: 0, longest: 0 };
    while let Ok(Some(page)) = pages.get_next_page() {
        match &page {
            Page::DictionaryPage { buf, .. } if is_text => {
                size.text = size.text.max(longest_text(buf));
            }
            Page::DictionaryPage { .. } => {}
            // Each row has one value, of which a page has the text.
            Page::DataPage { .. } | Page::DataPageV2 { .. } if max_level == 0 => return size,
            Page::DataPage { buf, num_values, rep_level_encoding, .. } => {
                let levels = levels_of(buf, *rep_level_encoding);
                lengths.add(levels, *num_values as usize);
            }
            Page::DataPageV2 { buf, num_values, rep_levels_byte_len, .. } => {
                let levels = buf.get(..*rep_levels_byte_len as usize);
                lengths.add(levels, *num_values as usize);
            }
        }
    }
    size.values = size.values.max(lengths.longest).max(lengths.current);
    size
}

/// The length of the longest text of a dictionary.
fn longest_text(dictionary: &Bytes) -> usize {
    let (mut rest, mut longest) = (&**dictionary, 0);
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some(behind) = behind.get(length..) else { break };
        longest = longest.max(length);
        rest = behind;
    }
    longest
}

/// The repetition levels at the start of a page of version 1; `None` if they are in a form that is not read here.
fn levels_of(page: &[u8], encoding: Encoding) -> Option<&[u8]> {
    let (length, rest) = page.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    (encoding == Encoding::RLE).then(|| rest.get(..length))?
}

/// The bits of a level.
fn bits_of(max_level: i16) -> u32 {
    u16::BITS - max_level.unsigned_abs().leading_zeros()
}

/// Counts the values of rows. A row begins at the repetition level 0.
struct RowLengths {
    /// The bits of a level.
    width: u32,
    /// The values of the last row so far.
    current: usize,
    longest: usize,
}

impl RowLengths {
    /// Adds `count` values with their levels: runs of one level, or groups of eight. Values without levels count
    /// as those of one row.
    fn add(&mut self, levels: Option<&[u8]>, count: usize) {
        let (mut rest, mut left) = (levels.unwrap_or_default(), count);
        while left > 0 {
            let Some((header, behind)) = varint(rest) else { break };
            let (times, bytes) = match header & 1 {
                0 => (header >> 1, self.width.div_ceil(8) as usize),
                _ => (
                    (header >> 1).saturating_mul(8),
                    (header >> 1).saturating_mul(self.width as usize),
                ),
            };
            let Some((run, behind)) = behind.split_at_checked(bytes) else { break };
            let times = times.min(left);
            if header & 1 == 0 {
                self.add_run(run.iter().any(|byte| *byte != 0), times);
            } else {
                (0..times).for_each(|index| self.add_run(self.has_level(run, index), 1));
            }
            left -= times;
            rest = behind;
        }
        self.current = self.current.saturating_add(left);
    }

    /// Whether the level `index` in the packed `bits` is not 0.
    fn has_level(&self, bits: &[u8], index: usize) -> bool {
        let start = index * self.width as usize;
        let mut bits = (start..start + self.width as usize)
            .map(|bit| bits.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1));
        bits.any(|bit| bit)
    }

    fn add_run(&mut self, is_within_row: bool, times: usize) {
        if is_within_row {
            self.current = self.current.saturating_add(times);
        } else if times > 0 {
            self.longest = self.longest.max(self.current);
            self.current = 1;
        }
    }
}

/// A number of seven bits a byte, and what follows it.
fn varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_usize;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(index + 1..)?));
        }
    }
    None
}

fn unreadable(error: ParquetError) -> Error {
    damaged(&format!("a row group of the Parquet file cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(width: u32, pages: &[(&[u8], usize)]) -> usize {
        let mut lengths = RowLengths { width, current: 0, longest: 0 };
        pages.iter().for_each(|(levels, count)| lengths.add(Some(levels), *count));
        lengths.longest.max(lengths.current)
    }

    #[test]
    fn rows_are_counted_in_runs_and_groups() {
        // A row of one value, then a run of 100 that belong to it; the same over two pages.
        assert_eq!(longest(1, &[(&[2, 0, 200, 1, 1], 101)]), 101);
        assert_eq!(longest(1, &[(&[2, 0, 200, 1, 1], 101), (&[200, 1, 1], 100)]), 201);
        // Groups of eight: levels 0 1 1 0 0 1 1 1 of one bit, and 0 2 1 0 0 1 1 2 of two.
        assert_eq!(longest(1, &[(&[3, 0b1110_0110], 8)]), 4);
        assert_eq!(longest(2, &[(&[3, 0b0001_1000, 0b1001_0100], 8)]), 4);
        // A run of rows, and one that is longer than the page has values.
        assert_eq!(longest(1, &[(&[200, 1, 0], 100)]), 1);
        assert_eq!(longest(1, &[(&[2, 0, 0xfe, 0xff, 0xff, 0xff, 0x0f, 1], 50)]), 50);
        // Without levels.
        assert_eq!(longest(1, &[(&[], 7)]), 7);
    }
}
