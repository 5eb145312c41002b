//! The formats of records and payloads, in the words of no protocol.

use crate::table::Header;

/// The text of a record and of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// One JSON value. JSON lines are such records.
    Json,
    /// One CSV row.
    Csv,
}

impl RecordFormat {
    /// Its word in the state of jobs. It stays: a job continues only under the same word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            RecordFormat::Json => "Json",
            RecordFormat::Csv => "Csv",
        }
    }
}

/// What the body of one request is, which has one record or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadFormat {
    /// A JSON document.
    Json,
    /// JSON values, each on a line.
    JsonLines,
    /// Comma-separated values.
    Csv(CsvForm),
    /// An array as `numpy.save` writes it.
    Npy,
    /// An image file, for the model to decode.
    Image,
    /// Records of `tf.Example`, or one.
    Examples,
}

/// How comma-separated values are to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsvForm {
    /// Whether the first record has the names of columns.
    pub header: Header,
    /// Whether quoted fields may have line breaks for every model. Models of tables take them in any case; for
    /// others, each line is a record, as in SageMaker's container.
    pub is_multiline: bool,
}
