//! What a job does: its options, checked.

use std::fmt;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use tensorserve_codec::formats::{PayloadFormat, RecordFormat};
use tensorserve_records::compression::Compression;
use tensorserve_records::join::Shaping;
use tensorserve_records::split::Split;
use tensorserve_records::write::OutputFormat;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

/// The format of the file that a version of this program writes its jobs in.
const STATE_VERSION: u32 = 2;

/// The parts of a job that decide over its outputs. They are written down with its plan: a resumed job
/// must not differ in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenJob {
    /// The format of the state.
    pub state_version: u32,
    /// A hash of the model's files.
    pub model: String,
    /// The signature of records that name none; empty for the usual one.
    pub signature: String,
    /// The names of the variables of the model's environment, and a checksum of their values.
    pub environment: String,
    /// Where the inputs are, as it was written.
    pub input: String,
    /// The place that their keys are in.
    pub input_place: String,
    /// The media type of the records.
    pub content_type: String,
    /// The media type of the responses; empty for the default.
    pub accept: String,
    /// How objects are split into records.
    pub split: String,
    /// How objects are compressed.
    pub compression: String,
    /// Records in a batch.
    pub batch_rows: usize,
    /// Bytes of a batch.
    pub max_payload_bytes: usize,
    /// Bytes of a record.
    pub max_record_bytes: usize,
    /// The format of the outputs.
    pub output_format: String,
    /// What is appended to the key of an object for that of its output.
    pub output_suffix: String,
    /// The object is split at this many bytes into ranges that are processed by themselves.
    pub range_bytes: u64,
    /// What is applied to records and outputs, in words.
    pub shaping: String,
    /// What happens to bad records.
    pub on_bad_record: String,
    /// The outputs are those of SageMaker's SDK to the byte, with this strategy and assembly.
    pub sdk_exact: Option<SdkExact>,
    /// The outputs of objects that are records are written together, as lines of JSON.
    pub combine_outputs: bool,
    /// Whether objects of CSV begin with the names of their columns.
    pub header: String,
}

/// How SageMaker's SDK forms payloads and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SdkExact {
    /// As many records in a payload as fit.
    pub multi_record: bool,
    /// A line break after each response.
    pub assemble_lines: bool,
    /// The most MiB in a payload; 0 for any.
    pub max_payload_mib: u64,
}

/// A job.
pub struct Job {
    /// What decides over its outputs.
    pub frozen: FrozenJob,
    /// How objects are divided into records.
    pub input: InputFormat,
    /// How they are compressed.
    pub compression: Compression,
    /// The type of the records.
    pub records: RecordType,
    /// Whether objects of CSV begin with the names of their columns.
    pub header: CsvHeader,
    /// The format of the outputs.
    pub output: OutputFormat,
    /// The format of single outputs: the model is asked for it.
    pub lines: RecordFormat,
    /// The type of the elements of npy outputs.
    pub npy_dtype: DType,
    /// The columns that are read of Parquet files; `None` for all.
    pub columns: Option<Vec<String>>,
    /// What is applied to records and outputs.
    pub shaping: Shaping,
    /// What happens to bad records.
    pub on_bad: OnBadRecord,
    /// The limit of bad records.
    pub bad_limit: BadRecordLimit,
    /// How often a failure that may pass is tried again.
    pub retries: u32,
    /// Batches that run at the same time.
    pub concurrency: usize,
}

impl Job {
    /// Whether each object is one record.
    #[must_use]
    pub fn is_documents(&self) -> bool {
        self.input == InputFormat::Split(Split::None)
    }

    /// Whether each object is one record, and records of several objects share a batch.
    #[must_use]
    pub fn batches_objects(&self) -> bool {
        self.is_documents() && self.frozen.sdk_exact.is_none()
    }

    /// The output of a bad record that becomes null.
    ///
    /// # Errors
    /// If the format has none.
    pub fn null_output(&self) -> Result<&'static [u8]> {
        self.output.null_output(self.lines)
    }
}

/// How objects are divided into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFormat {
    /// At places in their bytes.
    Split(Split),
    /// Rows of a Parquet file.
    Parquet,
    /// Rows of a NumPy array.
    Npy,
}

impl InputFormat {
    /// The format with this name.
    ///
    /// # Errors
    /// For a name that there is not.
    pub fn parse(name: &str) -> Result<Self> {
        match name.to_ascii_lowercase().as_str() {
            "parquet" => Ok(InputFormat::Parquet),
            "npy" => Ok(InputFormat::Npy),
            other => Split::parse(other).map(InputFormat::Split).map_err(|_| {
                Error::invalid(format!(
                    "--split {name}: use none, line, csv, jsonl, tfrecord, recordio, parquet or npy"
                ))
            }),
        }
    }
}

impl fmt::Display for InputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputFormat::Split(split) => split.fmt(f),
            InputFormat::Parquet => f.write_str("parquet"),
            InputFormat::Npy => f.write_str("npy"),
        }
    }
}

/// Whether objects of CSV begin with the names of their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvHeader {
    /// As the model reads the first record of each object.
    Auto,
    /// All do.
    Present,
    /// None does.
    Absent,
}

impl CsvHeader {
    /// The header with this name.
    ///
    /// # Errors
    /// For a name that there is not.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(CsvHeader::Auto),
            "present" => Ok(CsvHeader::Present),
            "absent" => Ok(CsvHeader::Absent),
            _ => Err(Error::invalid(format!("--header {name}: use auto, present or absent"))),
        }
    }
}

impl fmt::Display for CsvHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CsvHeader::Auto => "auto",
            CsvHeader::Present => "present",
            CsvHeader::Absent => "absent",
        })
    }
}

/// What records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// Lines of comma-separated values.
    Csv,
    /// Lines of JSON.
    JsonLines,
    /// Image files.
    Image,
    /// Records of `tf.Example` in TFRecord files.
    Examples,
    /// Rows of NumPy arrays.
    Npy,
    /// Anything else: each record is a request of its own.
    Document,
}

/// What happens to a record that the model refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBadRecord {
    /// Its object fails.
    Fail,
    /// Its output is `null`, or an empty line of CSV.
    Null,
    /// The record has no output.
    Skip,
    /// The record has no output, and is written to a file of bad records.
    DeadLetter,
}

impl OnBadRecord {
    /// Its word in the state of jobs. It stays: a job continues only under the same word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            OnBadRecord::Fail => "Fail",
            OnBadRecord::Null => "Null",
            OnBadRecord::Skip => "Skip",
            OnBadRecord::DeadLetter => "DeadLetter",
        }
    }
}

/// The limit of bad records, at which a job fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BadRecordLimit {
    /// None.
    Unlimited,
    /// This many.
    Count(u64),
    /// This fraction of the records, once there are a thousand.
    Fraction(f64),
}

impl BadRecordLimit {
    /// Reads `100` or `2%`.
    ///
    /// # Errors
    /// For any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is neither a number of records, such as 100, nor a part of them, such as 2%"
            ))
        };
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| wrong())?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(wrong());
            }
            return Ok(BadRecordLimit::Fraction(percent / 100.0));
        }
        text.trim().parse().map(BadRecordLimit::Count).map_err(|_| wrong())
    }

    /// Whether `bad` of `all` records are too many.
    #[must_use]
    pub fn is_exceeded(self, bad: u64, all: u64) -> bool {
        // Precise up to 2^53 records.
        #[allow(clippy::cast_precision_loss)]
        match self {
            BadRecordLimit::Unlimited => false,
            BadRecordLimit::Count(most) => bad > most,
            BadRecordLimit::Fraction(most) => all >= 1000 && bad as f64 > most * all as f64,
        }
    }
}

impl RecordType {
    /// The type of the records of payloads in this format, or in another one.
    #[must_use]
    pub fn of(format: Option<PayloadFormat>) -> Self {
        match format {
            Some(PayloadFormat::Csv(_)) => RecordType::Csv,
            Some(PayloadFormat::Json | PayloadFormat::JsonLines) => RecordType::JsonLines,
            Some(PayloadFormat::Image) => RecordType::Image,
            Some(PayloadFormat::Npy) => RecordType::Npy,
            Some(PayloadFormat::Examples) => RecordType::Examples,
            None => RecordType::Document,
        }
    }
}

impl FrozenJob {
    /// The current format of the state.
    #[must_use]
    pub fn version() -> u32 {
        STATE_VERSION
    }

    /// What differs between the job in the state and this one, a line each.
    #[must_use]
    pub fn changes(&self, now: &FrozenJob) -> Vec<String> {
        let (before, now) = (serde_json::to_value(self), serde_json::to_value(now));
        let (Ok(serde_json::Value::Object(before)), Ok(serde_json::Value::Object(now))) =
            (before, now)
        else {
            return Vec::new();
        };
        let changed = before.iter().filter(|(name, value)| now.get(*name) != Some(*value));
        let line = |(name, value): (&String, &serde_json::Value)| {
            let other = now.get(name).cloned().unwrap_or_default();
            format!("{}: was {value}, is {other}", name.replace('_', " "))
        };
        changed.map(line).collect()
    }
}

/// Tries again what fails and may pass, up to `retries` times. `again` is called before each pause.
///
/// # Errors
/// That of the last try.
pub(crate) fn retried<T>(
    retries: u32,
    mut attempt: impl FnMut() -> Result<T>,
    again: impl Fn(&Error),
) -> Result<T> {
    let mut tries = 0;
    loop {
        match attempt() {
            Err(error) if is_passing(error.code()) && tries < retries => {
                again(&error);
                thread::sleep(pause(tries));
                tries += 1;
            }
            done => return done,
        }
    }
}

/// Whether a failure may pass by itself.
pub(crate) fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Aborted
    )
}

/// The pauses between tries: 0.1 s, doubled with each, at most 10 s.
fn pause(attempt: u32) -> Duration {
    Duration::from_millis(100).saturating_mul(1 << attempt.min(7)).min(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_counts_or_percentages() {
        assert_eq!(BadRecordLimit::parse("3").expect("a count"), BadRecordLimit::Count(3));
        let half = BadRecordLimit::parse("50%").expect("a fraction");
        assert!(!half.is_exceeded(999, 999) && half.is_exceeded(501, 1000));
        assert!(!half.is_exceeded(500, 1000));
        for wrong in ["", "-1", "x%", "101%", "NaN%", "1e3"] {
            assert!(BadRecordLimit::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Jobs of earlier versions continue under these words.
    #[test]
    fn the_words_in_the_state_stay() {
        let formats =
            [OutputFormat::Lines, OutputFormat::Parquet, OutputFormat::Npy, OutputFormat::TfRecord];
        assert_eq!(formats.map(OutputFormat::word), ["Lines", "Parquet", "Npy", "TfRecord"]);
        let lines = [RecordFormat::Json, RecordFormat::Csv];
        assert_eq!(lines.map(RecordFormat::word), ["Json", "Csv"]);
        let policies =
            [OnBadRecord::Fail, OnBadRecord::Null, OnBadRecord::Skip, OnBadRecord::DeadLetter];
        assert_eq!(policies.map(OnBadRecord::word), ["Fail", "Null", "Skip", "DeadLetter"]);
    }
}
