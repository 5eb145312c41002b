//! Writes an npy array row by row. The number of rows is known at the end, so the header is written
//! again then; it reserves space for the digits.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};

use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::json::read::{ReadOptions, TensorReadError, TensorReader};
use tensorserve_codec::json::scan::Cursor;
use tensorserve_codec::npy;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape};

use super::{RecordWriter, write_error};
use crate::text;

/// The most memory of one row, in bytes.
const MAX_ROW: usize = 1 << 30;

/// Writes rows of one shape.
pub(super) struct NpyWriter {
    file: BufWriter<File>,
    dtype: DType,
    /// The shape of every row, once one is known.
    row: Option<Shape>,
    rows: i64,
}

impl NpyWriter {
    pub(super) fn new(file: BufWriter<File>, dtype: DType) -> Result<Self> {
        match dtype {
            DType::String | DType::Complex64 | DType::Complex128 | DType::BFloat16 => {
                Err(Error::invalid(format!(
                    "an npy array of outputs cannot have elements of type {}: choose float, double \
                     or an integer type",
                    dtype.name()
                )))
            }
            DType::Float
            | DType::Double
            | DType::Half
            | DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Bool => Ok(NpyWriter { file, dtype, row: None, rows: 0 }),
        }
    }

    fn write_row(&mut self, output: &[u8]) -> Result<()> {
        let value = text::document(output)?;
        let options = ReadOptions {
            coerce: false,
            all_types: true,
            nulls: false,
            number_texts: None,
            alphabet: Alphabet::Standard,
            max_bytes: MAX_ROW,
        };
        let mut reader = TensorReader::new(self.dtype, options, value.len());
        let read = reader.read(&mut Cursor::new(value));
        read.map_err(|error| self.refused(*error, value))?;
        let row = reader.finish()?;
        match &self.row {
            None => {
                let header = npy::header(self.dtype, &self.shape(row.shape())?);
                self.file.write_all(&header).map_err(write_error)?;
                self.row = Some(row.shape().clone());
            }
            Some(expected) if expected != row.shape() => {
                return Err(Error::invalid(format!(
                    "the output has the shape {:?}, and earlier ones have {:?}; all rows of an npy \
                     array have one shape",
                    row.shape(),
                    expected
                )));
            }
            Some(_) => {}
        }
        self.file.write_all(row.bytes()).map_err(write_error)
    }

    /// The shape of the array with the rows so far.
    fn shape(&self, row: &Shape) -> Result<Shape> {
        let mut dims = vec![self.rows];
        dims.extend_from_slice(row.dims());
        Shape::new(&dims)
    }

    fn refused(&self, error: TensorReadError, value: &[u8]) -> Error {
        let at = |at: usize| text::excerpt(value.get(at..).unwrap_or_default());
        let name = self.dtype.name();
        Error::invalid(match error {
            TensorReadError::Syntax(error) => return text::syntax(error),
            TensorReadError::Refused(refusal) => return refusal.error(),
            TensorReadError::Type { at: start }
            | TensorReadError::Unsupported { at: start }
            | TensorReadError::NotBase64Object { at: start } => {
                format!("the output has an element that is not of type {name}: {}", at(start))
            }
            TensorReadError::NotBase64 => {
                format!("the output has an element that is not of type {name}")
            }
            TensorReadError::ListTooDeep { .. }
            | TensorReadError::ValueAtWrongLevel { .. }
            | TensorReadError::ListSize { .. }
            | TensorReadError::RowSize { .. }
            | TensorReadError::RowShape { .. } => {
                format!("the lists of the output have different lengths or depths: {}", at(0))
            }
            TensorReadError::TooManyDimensions => "the output has too many nested lists".to_owned(),
            TensorReadError::TooLarge => format!("the output has more than {MAX_ROW} bytes"),
        })
    }
}

impl RecordWriter for NpyWriter {
    fn write(&mut self, outputs: &[&[u8]]) -> Result<()> {
        for output in outputs {
            let record = self.rows.saturating_add(1);
            self.write_row(output).map_err(|error| error.context(format!("record {record}")))?;
            self.rows = record;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let row = self.row.clone().unwrap_or_else(Shape::scalar);
        let header = npy::header(self.dtype, &self.shape(&row)?);
        // This flushes what is buffered.
        self.file.seek(SeekFrom::Start(0)).map_err(write_error)?;
        self.file.write_all(&header).map_err(write_error)?;
        self.file.flush().map_err(write_error)
    }
}
