//! Writes a table of JSON values as a Parquet file, one row group after the other.
//!
//! The column writers of the crate `parquet` get the values directly. Its Arrow interface would
//! build the same buffers once more, and is several crates larger.

use std::collections::HashMap;
use std::fs::File;

use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use tensorserve_tensor::error::{Code, Error, Result};

use super::RecordWriter;
use super::columns::{Column, Kind};
use crate::text;

/// The most rows of a row group, and the memory of its values, in bytes, from which on it ends.
const GROUP_ROWS: usize = 100_000;
const GROUP_BYTES: usize = 64 << 20;

/// The most columns of a file. Each takes space in the metadata of every row group.
const MAX_COLUMNS: usize = 4096;

/// The column of outputs that are no objects.
const ONLY_COLUMN: &str = "output";

fn failed(error: ParquetError) -> Error {
    Error::new(Code::Unavailable, format!("the Parquet file cannot be written: {error}"))
        .with_source(error)
}

/// A Parquet file whose columns are those of the outputs of the first write.
pub(super) struct ParquetWriter {
    /// Until the columns are known.
    file: Option<File>,
    /// From then on.
    table: Option<ParquetTable>,
    /// Records that were null before the columns were known.
    leading_nulls: usize,
    records: usize,
}

impl ParquetWriter {
    pub(super) fn new(file: File) -> Self {
        ParquetWriter { file: Some(file), table: None, leading_nulls: 0, records: 0 }
    }

    /// Starts the file with these columns.
    fn open(&mut self, layout: Layout) -> Result<&mut ParquetTable> {
        let Some(file) = self.file.take() else {
            return Err(Error::internal("the Parquet file was not started"));
        };
        let mut table = ParquetTable::new(file, layout)?;
        for _ in 0..std::mem::take(&mut self.leading_nulls) {
            table.push_nulls()?;
        }
        Ok(self.table.insert(table))
    }
}

impl RecordWriter for ParquetWriter {
    fn write(&mut self, outputs: &[&[u8]]) -> Result<()> {
        let first = self.records + 1;
        self.records += outputs.len();
        let table = match &mut self.table {
            Some(table) => table,
            None => match infer(outputs, first)? {
                Some(layout) => self.open(layout)?,
                None => {
                    self.leading_nulls += outputs.len();
                    return Ok(());
                }
            },
        };
        for (index, output) in outputs.iter().enumerate() {
            let in_record = |error: Error| error.context(format!("record {}", first + index));
            table.push(output).map_err(in_record)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        if self.table.is_none() {
            let columns = vec![Column::new(ONLY_COLUMN.to_owned(), Kind::Json)];
            self.open(Layout { columns, places: None })?;
        }
        self.table.take().map_or(Ok(()), ParquetTable::finish)
    }
}

/// The columns of a table, and how values get into them.
struct Layout {
    columns: Vec<Column>,
    /// The column of each member; `None` if the outputs are no objects.
    places: Option<HashMap<Vec<u8>, usize>>,
}

/// The columns for `outputs`, whose first is the output of record `first`; `None` if all are null.
fn infer(outputs: &[&[u8]], first: usize) -> Result<Option<Layout>> {
    let mut inference = Inference::default();
    for (index, output) in outputs.iter().enumerate() {
        let in_record = |error: Error| error.context(format!("record {}", first + index));
        inference.add(output).map_err(in_record)?;
    }
    let Some(has_members) = inference.has_members else {
        return Ok(None);
    };
    if inference.columns.is_empty() {
        return Err(Error::invalid(format!(
            "the outputs from record {first} on are objects without members, so the Parquet file \
             would have no columns"
        )));
    }
    let column =
        |(name, kind): (String, Option<Kind>)| Column::new(name, kind.unwrap_or(Kind::Json));
    let columns = inference.columns.into_iter().map(column).collect();
    Ok(Some(Layout { columns, places: has_members.then_some(inference.places) }))
}

#[derive(Default)]
struct Inference {
    /// Whether the outputs are objects, once one is not null.
    has_members: Option<bool>,
    /// Their names, and their types once a value is not null.
    columns: Vec<(String, Option<Kind>)>,
    places: HashMap<Vec<u8>, usize>,
}

impl Inference {
    fn add(&mut self, output: &[u8]) -> Result<()> {
        let value = text::document(output)?;
        let is_object = value.first() == Some(&b'{');
        if Kind::of(value).is_none() {
            return Ok(());
        }
        if *self.has_members.get_or_insert(is_object) != is_object {
            return Err(mixed(is_object, value));
        }
        if !is_object {
            return self.add_value(ONLY_COLUMN.as_bytes(), value);
        }
        text::members(value, |member| self.add_value(&member.name, member.value))
    }

    fn add_value(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None => {
                if self.columns.len() == MAX_COLUMNS {
                    return Err(Error::invalid(format!(
                        "the outputs have more than {MAX_COLUMNS} members, which are the columns of \
                         the Parquet file: choose another output format"
                    )));
                }
                let text = String::from_utf8(name.to_vec());
                let text = text.map_err(|_| Error::invalid("the name of a member is not UTF-8"))?;
                self.columns.push((text, None));
                self.places.insert(name.to_vec(), self.columns.len() - 1);
                self.columns.len() - 1
            }
        };
        let (Some((name, kind)), Some(found)) = (self.columns.get_mut(place), Kind::of(value))
        else {
            return Ok(());
        };
        *kind = Some(match *kind {
            None => found,
            Some(before) => before.with(found).ok_or_else(|| {
                Error::invalid(format!(
                    "the column {name:?} holds {} in earlier records, and the value is {}: {}",
                    before.name(),
                    text::kind(value),
                    text::excerpt(value)
                ))
            })?,
        });
        Ok(())
    }
}

/// The error of an output that is an object where others are not, or the reverse.
fn mixed(is_object: bool, value: &[u8]) -> Error {
    let earlier = if is_object { "not objects" } else { "objects, whose members are the columns" };
    Error::invalid(format!(
        "the output is {}, and earlier ones are {earlier}: {}",
        text::kind(value),
        text::excerpt(value)
    ))
}

/// A file with its columns.
struct ParquetTable {
    file: SerializedFileWriter<File>,
    layout: Layout,
    /// Rows that are not written yet, and the memory of their values in bytes.
    rows: usize,
    bytes: usize,
}

impl ParquetTable {
    fn new(file: File, layout: Layout) -> Result<Self> {
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut fields = Vec::with_capacity(layout.columns.len());
        for column in &layout.columns {
            fields.push(column.schema().map_err(failed)?.into());
        }
        let schema = Type::group_type_builder("schema").with_fields(fields).build();
        let schema = schema.map_err(failed)?.into();
        let file = SerializedFileWriter::new(file, schema, properties.into()).map_err(failed)?;
        Ok(ParquetTable { file, layout, rows: 0, bytes: 0 })
    }

    fn push(&mut self, output: &[u8]) -> Result<()> {
        let value = text::document(output)?;
        if Kind::of(value).is_none() {
            return self.push_nulls();
        }
        let is_object = value.first() == Some(&b'{');
        let Layout { columns, places } = &mut self.layout;
        match places {
            None => {
                // A column of JSON text holds objects, too.
                if let Some(column) = columns.first_mut() {
                    self.bytes += column.push(value)?;
                }
            }
            Some(_) if !is_object => return Err(mixed(is_object, value)),
            Some(places) => {
                let rows = self.rows;
                self.bytes += push_members(value, rows, columns, places)?;
            }
        }
        self.end_row()
    }

    fn push_nulls(&mut self) -> Result<()> {
        for column in &mut self.layout.columns {
            self.bytes += column.push_null();
        }
        self.end_row()
    }

    fn end_row(&mut self) -> Result<()> {
        self.rows += 1;
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            return self.write_group().map_err(failed);
        }
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for column in &mut self.layout.columns {
            if let Some(mut writer) = group.next_column()? {
                column.write(&mut writer)?;
                writer.close()?;
            }
        }
        group.close()?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if self.rows > 0 {
            self.write_group().map_err(failed)?;
        }
        self.file.close().map(drop).map_err(failed)
    }
}

/// Adds the members of `object` as row `row`. Returns the memory that they take, in bytes.
fn push_members(
    object: &[u8],
    row: usize,
    columns: &mut [Column],
    places: &HashMap<Vec<u8>, usize>,
) -> Result<usize> {
    let mut bytes = 0;
    text::members(object, |member| {
        let place = places.get(&*member.name).copied();
        let Some(column) = place.and_then(|place| columns.get_mut(place)) else {
            return Err(Error::invalid(format!(
                "the output has the member {:?}, which the first records do not have, so the \
                 Parquet file has no column for it",
                text::excerpt(&member.name)
            )));
        };
        if column.rows > row {
            let name = &column.name;
            return Err(Error::invalid(format!("the output has the member {name:?} twice")));
        }
        bytes += column.push(member.value)?;
        Ok(())
    })?;
    for column in columns {
        if column.rows == row {
            bytes += column.push_null();
        }
    }
    Ok(bytes)
}
