//! The formats of records, by name: what a record is where no protocol says so in its own words.

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
