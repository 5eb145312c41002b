//! From the options to a job.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::arguments::{Arguments, Assemble, Join, Strategy};
use super::inputs::{JobInputs, split_of_type, types_of_names};
use tensorserve_codec::formats::{PayloadFormat, RecordFormat};
use tensorserve_protocol::media_type;
use tensorserve_protocols::sagemaker::payload_format;
use tensorserve_records::compression::Compression;
use tensorserve_records::filter::JsonPath;
use tensorserve_records::job as sagemaker;
use tensorserve_records::join::{Key, Shaping};
use tensorserve_records::split::Split;
use tensorserve_records::write::OutputFormat;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_transform::job::{
    BadRecordLimit, CsvHeader, FrozenJob, InputFormat, Job, OnBadRecord, RecordType, SdkExact,
};
use tensorserve_transform::sweep;

/// MiB of a batch, as SageMaker's default.
const PAYLOAD_MIB: u64 = 6;

/// Objects in a batch where each is a record.
const OBJECTS_PER_BATCH: usize = 32;

/// The largest number of records in a batch.
const MOST_ROWS: usize = 1 << 20;

/// Options that are checked and complete, but for the number of records in a batch.
pub(super) struct JobOptions {
    pub(super) job: Job,
    /// The number of records in a batch is to be found by trying.
    pub(super) is_auto: bool,
    pub(super) content_type: String,
    pub(super) accept: Option<String>,
    pub(super) timeout: Duration,
    /// Where dead letters go.
    pub(super) dead_letters: Option<String>,
    pub(super) range_bytes: Option<u64>,
    /// The size of ranges is to be found by trying.
    pub(super) is_auto_range: bool,
    /// Remarks for the user.
    pub(super) notes: Vec<String>,
}

/// Fills in what a job of SageMaker says and the options do not. Returns remarks, and whether its input
/// is a prefix.
///
/// # Errors
/// If the file cannot be read, or is not a job.
pub(super) fn of_job_file(arguments: &mut Arguments, file: &Path) -> Result<(Vec<String>, bool)> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|e| Error::invalid(format!("{shown}: {e}")))?;
    let job = sagemaker::TransformJob::parse(&text).map_err(|e| e.context(shown.to_string()))?;
    let mut notes: Vec<String> = job
        .ignored
        .iter()
        .map(|name| format!("{shown}: {name} is not known and has no effect"))
        .collect();
    for (given, what) in [
        (job.data_capture_config.is_some(), "DataCaptureConfig"),
        (
            job.transform_resources.as_ref().is_some_and(|r| r.instance_count > Some(1)),
            "InstanceCount",
        ),
    ] {
        if given {
            notes.push(format!("{shown}: {what} has no effect here; see docs/transform.md"));
        }
    }
    fn set<T>(option: &mut Option<T>, value: Option<T>) {
        if option.is_none() {
            *option = value;
        }
    }
    // Variables of the command line follow, and override those of the job.
    let variables = job.environment.unwrap_or_default().into_iter();
    arguments.env = variables.chain(arguments.env.drain(..)).collect();
    let mut is_prefix = false;
    if let Some(input) = job.transform_input {
        let has_input = !arguments.input.is_empty()
            || arguments.manifest.is_some()
            || arguments.files_from.is_some();
        if let Some(source) = input.data_source.and_then(|source| source.s3_data_source)
            && !has_input
        {
            match source.s3_data_type {
                Some(sagemaker::S3DataType::ManifestFile) => arguments.manifest = source.s3_uri,
                _ => {
                    arguments.input.extend(source.s3_uri);
                    is_prefix = true;
                }
            }
        }
        set(&mut arguments.content_type, input.content_type);
        let split = input.split_type.map(|split| {
            match split {
                sagemaker::SplitType::None => "none",
                sagemaker::SplitType::Line => "line",
                sagemaker::SplitType::RecordIo => "recordio",
                sagemaker::SplitType::TfRecord => "tfrecord",
            }
            .to_owned()
        });
        set(&mut arguments.split, split.or(Some("none".to_owned())));
        if input.compression_type == Some(sagemaker::CompressionType::Gzip) {
            arguments.compression = "gzip".to_owned();
        }
    }
    if let Some(output) = job.transform_output {
        set(&mut arguments.output, output.s3_output_path);
        set(&mut arguments.accept, output.accept.filter(|accept| !accept.is_empty()));
        let assemble = output.assemble_with.map(|how| match how {
            sagemaker::AssembleWith::None => Assemble::None,
            sagemaker::AssembleWith::Line => Assemble::Line,
        });
        set(&mut arguments.assemble, assemble);
    }
    if let Some(processing) = job.data_processing {
        set(&mut arguments.input_filter, processing.input_filter.filter(|f| !f.is_empty()));
        set(&mut arguments.output_filter, processing.output_filter.filter(|f| !f.is_empty()));
        if processing.join_source == Some(sagemaker::JoinSource::Input) {
            set(&mut arguments.join, Some(Join::Input));
        }
    }
    if let Some(client) = job.model_client_config {
        set(&mut arguments.timeout, client.invocations_timeout_in_seconds);
        let retries = client.invocations_max_retries.and_then(|n| u32::try_from(n).ok());
        set(&mut arguments.retries, retries);
    }
    set(&mut arguments.max_payload_mb, job.max_payload_in_mb);
    let concurrency = job.max_concurrent_transforms.and_then(|n| usize::try_from(n).ok());
    set(&mut arguments.concurrency, concurrency.filter(|n| *n > 0));
    let strategy = job.batch_strategy.map(|strategy| match strategy {
        sagemaker::BatchStrategy::SingleRecord => Strategy::Single,
        sagemaker::BatchStrategy::MultiRecord => Strategy::Multi,
    });
    set(&mut arguments.strategy, strategy);
    Ok((notes, is_prefix))
}

impl JobOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn new(arguments: &Arguments, inputs: &JobInputs) -> Result<Self> {
        let (content_type, input) = types(arguments, inputs)?;
        let records = match input {
            InputFormat::Parquet => RecordType::JsonLines,
            InputFormat::Npy => RecordType::Npy,
            InputFormat::Split(Split::TfRecord) => RecordType::Examples,
            InputFormat::Split(_) => record_type(&content_type),
        };
        let compression = Compression::parse(&arguments.compression)?;
        let (output, lines) = output_format(arguments)?;
        let (shaping, shaping_text) = shaping(arguments, records, lines)?;
        let (on_bad, dead_letters) = policy(&arguments.on_bad_record)?;
        if on_bad == OnBadRecord::Null {
            output.null_output(lines)?;
        }
        let bad_limit = match &arguments.max_bad_records {
            Some(limit) => BadRecordLimit::parse(limit)?,
            None => BadRecordLimit::Unlimited,
        };
        let payload_mib = arguments.max_payload_mb.unwrap_or(PAYLOAD_MIB);
        let mib =
            |count: u64| usize::try_from(count).unwrap_or(usize::MAX >> 20).saturating_mul(1 << 20);
        let is_documents = input == InputFormat::Split(Split::None);
        let (batch_rows, is_auto) = batch_rows(arguments, is_documents)?;
        let sdk_exact = arguments.sdk_exact.then(|| SdkExact {
            multi_record: arguments.strategy != Some(Strategy::Single),
            assemble_lines: arguments.assemble == Some(Assemble::Line),
            max_payload_mib: payload_mib,
        });
        if sdk_exact.is_some()
            && !matches!(input, InputFormat::Split(Split::None | Split::Line | Split::JsonLines))
        {
            return Err(Error::invalid(
                "--sdk-exact reads whole objects and lines, as the SDK's local mode: --split none or line",
            ));
        }
        let header = header(arguments, records)?;
        let combine_outputs = arguments.combine_outputs;
        let can_combine = is_documents
            && sdk_exact.is_none()
            && (output, lines) == (OutputFormat::Lines, RecordFormat::Json);
        if combine_outputs && !can_combine {
            return Err(Error::invalid(
                "--combine-outputs is for objects that are a record each (--split none), and writes lines of \
                 JSON: it fits neither --sdk-exact nor another --output-format or --accept",
            ));
        }
        let can_range = matches!(input, InputFormat::Split(Split::Line | Split::JsonLines))
            && output == OutputFormat::Lines
            && sdk_exact.is_none();
        let range_bytes = match range_mb(&arguments.range_mb)? {
            Some(mib) => Some(mib.saturating_mul(1 << 20)).filter(|bytes| *bytes > 0),
            None => Some(sweep::RANGE),
        };
        let range_bytes = range_bytes.filter(|_| can_range);
        // With a given number of records in a batch, a plan depends on options alone.
        let is_auto_range = can_range && is_auto && arguments.range_mb == "auto";
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let concurrency = arguments.concurrency.unwrap_or(cores).clamp(1, 1024);
        let accept = arguments.accept.clone();
        let frozen = FrozenJob {
            state_version: FrozenJob::version(),
            model: String::new(),
            signature: arguments.signature.clone().unwrap_or_default(),
            environment: environment_text(&arguments.env),
            input: inputs.named.clone(),
            input_place: inputs.place.display(),
            content_type: content_type.clone(),
            accept: accept.clone().unwrap_or_default(),
            split: input.to_string(),
            compression: arguments.compression.clone(),
            batch_rows,
            max_payload_bytes: if payload_mib == 0 { mib(100) } else { mib(payload_mib) },
            max_record_bytes: mib(arguments.max_record_mb as u64),
            output_format: format!("{} {} {}", output.word(), lines.word(), arguments.npy_type),
            output_suffix: arguments.output_suffix.clone(),
            range_bytes: range_bytes.unwrap_or(0),
            shaping: shaping_text,
            on_bad_record: on_bad.word().to_owned(),
            sdk_exact,
            combine_outputs,
            header: header.to_string(),
        };
        let job = Job {
            frozen,
            input,
            compression,
            records,
            header,
            output,
            lines,
            npy_dtype: npy_type(&arguments.npy_type)?,
            columns: arguments.columns.clone(),
            shaping,
            on_bad,
            bad_limit,
            retries: arguments.retries.unwrap_or(3),
            concurrency,
        };
        Ok(JobOptions {
            job,
            is_auto,
            content_type,
            accept,
            timeout: Duration::from_secs(arguments.timeout.unwrap_or(600).max(1)),
            dead_letters,
            range_bytes,
            is_auto_range,
            notes: Vec::new(),
        })
    }
}

/// Variables in words, without their values, which may be secrets.
fn environment_text(variables: &[(String, String)]) -> String {
    let all: BTreeMap<&str, &str> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    if all.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = all.keys().copied().collect();
    let values: Vec<&str> = all.values().copied().collect();
    let hash = ring::digest::digest(&ring::digest::SHA256, values.join("\0").as_bytes());
    let hash: String = hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{} ({hash})", names.join(" "))
}

/// Whether objects begin with the names of columns, which only those of CSV can.
fn header(arguments: &Arguments, records: RecordType) -> Result<CsvHeader> {
    let header = CsvHeader::parse(&arguments.header)?;
    match header {
        _ if records == RecordType::Csv && !arguments.sdk_exact => Ok(header),
        CsvHeader::Present => Err(Error::invalid(
            "--header present is for records of CSV (--content-type text/csv), and not with --sdk-exact, which \
             takes lines as they are",
        )),
        CsvHeader::Auto | CsvHeader::Absent => Ok(CsvHeader::Absent),
    }
}

/// The error of a media type that nothing takes.
pub(super) fn unknown_type(content_type: &str) -> Error {
    Error::invalid(format!(
        "--content-type {content_type}: use text/csv, application/jsonlines, application/json, application/x-image \
         (or image/png and the like), application/x-npy or application/x-tfrecord; any other type/subtype is for \
         models with an inference.py"
    ))
}

/// The media type of the records, and how objects are divided into them.
fn types(arguments: &Arguments, inputs: &JobInputs) -> Result<(String, InputFormat)> {
    let named = match &arguments.content_type {
        Some(_) => None,
        None => Some(types_of_names(inputs)?),
    };
    let content_type = match (&arguments.content_type, named) {
        (Some(given), _) if !media_type(given).contains('/') => return Err(unknown_type(given)),
        (Some(given), _) => given.clone(),
        (None, named) => named.map_or(String::new(), |(content_type, _)| content_type.to_owned()),
    };
    let split = match (&arguments.split, &arguments.content_type, named) {
        (Some(split), ..) => split.as_str(),
        (None, Some(given), _) => split_of_type(given),
        (None, None, Some((_, split))) => split,
        (None, None, None) => "none",
    };
    Ok((content_type, InputFormat::parse(split)?))
}

/// What records of a media type are.
fn record_type(content_type: &str) -> RecordType {
    let is_lines = media_type(content_type) == "application/x-ndjson";
    let format = is_lines.then_some(PayloadFormat::JsonLines);
    RecordType::of(format.or_else(|| payload_format(content_type)))
}

/// The format of output files, and that of single outputs.
fn output_format(arguments: &Arguments) -> Result<(OutputFormat, RecordFormat)> {
    let accepts_csv =
        arguments.accept.as_deref().is_some_and(|accept| accept.trim().starts_with("text/csv"));
    let lines = if accepts_csv { RecordFormat::Csv } else { RecordFormat::Json };
    Ok(match arguments.output_format.as_deref() {
        None => (OutputFormat::Lines, lines),
        Some("jsonl" | "json") => (OutputFormat::Lines, RecordFormat::Json),
        Some("csv") => (OutputFormat::Lines, RecordFormat::Csv),
        Some("parquet") => (OutputFormat::Parquet, RecordFormat::Json),
        Some("npy") => (OutputFormat::Npy, RecordFormat::Json),
        Some("tfrecord") => (OutputFormat::TfRecord, lines),
        Some(other) => {
            return Err(Error::invalid(format!(
                "--output-format {other}: use jsonl, csv, parquet, npy or tfrecord"
            )));
        }
    })
}

/// Filters and join, and the same in words.
fn shaping(
    arguments: &Arguments,
    records: RecordType,
    lines: RecordFormat,
) -> Result<(Shaping, String)> {
    let path = |text: &Option<String>, option: &str| match text {
        Some(text) => JsonPath::parse(text).map_err(|e| e.context(option)),
        None => Ok(JsonPath::default()),
    };
    let input_filter = path(&arguments.input_filter, "--input-filter")?;
    let output_filter = path(&arguments.output_filter, "--output-filter")?;
    let join = arguments.join == Some(Join::Input);
    let needs_record = join || arguments.key.is_some() || !input_filter.is_identity();
    let record_format = match records {
        RecordType::Csv => Some(RecordFormat::Csv),
        RecordType::JsonLines => Some(RecordFormat::Json),
        RecordType::Image | RecordType::Examples | RecordType::Npy | RecordType::Document => None,
    };
    if needs_record && record_format != Some(lines) {
        let outputs = if lines == RecordFormat::Csv { "CSV" } else { "JSON" };
        return Err(Error::invalid(format!(
            "--input-filter, --join and --key need records and outputs in one format, CSV or JSON; the \
             outputs are {outputs}, and the records are not: use --output-format csv with records of \
             CSV, jsonl with records of JSON"
        )));
    }
    let shaping = Shaping::new(lines, input_filter, join, output_filter)?;
    let shaping = match &arguments.key {
        Some(key) => shaping.with_key(Key::parse(key, lines)?)?,
        None => shaping,
    };
    let text = format!(
        "{:?} {:?} {join} {:?} {:?}",
        arguments.input_filter, arguments.output_filter, arguments.key, arguments.columns
    );
    Ok((shaping, text))
}

fn policy(text: &str) -> Result<(OnBadRecord, Option<String>)> {
    Ok(match text.split_once('=') {
        Some(("dead-letter", place)) if !place.is_empty() => {
            (OnBadRecord::DeadLetter, Some(place.to_owned()))
        }
        None => match text {
            "fail" => (OnBadRecord::Fail, None),
            "null" => (OnBadRecord::Null, None),
            "skip" => (OnBadRecord::Skip, None),
            "dead-letter" => (OnBadRecord::DeadLetter, None),
            _ => return Err(wrong_policy(text)),
        },
        Some(_) => return Err(wrong_policy(text)),
    })
}

fn wrong_policy(text: &str) -> Error {
    Error::invalid(format!(
        "--on-bad-record {text}: use fail, null, skip, dead-letter or dead-letter=LOCATION"
    ))
}

fn batch_rows(arguments: &Arguments, is_documents: bool) -> Result<(usize, bool)> {
    if arguments.strategy == Some(Strategy::Single) && !is_documents {
        return Ok((1, false));
    }
    if arguments.batch_rows == "auto" {
        return Ok((OBJECTS_PER_BATCH, !is_documents));
    }
    let rows = arguments.batch_rows.parse().ok().filter(|rows| (1..=MOST_ROWS).contains(rows));
    let rows = rows.ok_or_else(|| {
        let given = &arguments.batch_rows;
        Error::invalid(format!("--batch-rows {given}: use auto, or a number from 1 to {MOST_ROWS}"))
    })?;
    Ok((rows, false))
}

/// The MiB of a range; `None` for what is found by trying.
fn range_mb(text: &str) -> Result<Option<u64>> {
    if text == "auto" {
        return Ok(None);
    }
    let wrong = |_| {
        Error::invalid(format!(
            "--range-mb {text}: use auto, or a number of MiB; 0 divides nothing"
        ))
    };
    text.parse().map(Some).map_err(wrong)
}

fn npy_type(name: &str) -> Result<DType> {
    let is_offered = |dtype| match dtype {
        DType::Float | DType::Double | DType::Int32 | DType::Int64 => true,
        DType::Half
        | DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128
        | DType::String => false,
    };
    let mut offered = DType::ALL.into_iter().filter(|dtype| is_offered(*dtype));
    let found = offered.find(|dtype| dtype.python_name() == name);
    found.ok_or_else(|| {
        Error::invalid(format!("--npy-type {name}: use float32, float64, int32 or int64"))
    })
}

/// The shard that `--shard` or the variables of a scheduler name.
///
/// # Errors
/// For one that there is not.
pub(super) fn shard(
    given: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<(usize, usize)>> {
    let wrong = |text: &str| {
        Error::invalid(format!("--shard {text}: use I/N, such as 0/4, with I from 0 to N-1"))
    };
    let parse = |text: &str| {
        let (index, count) = text.split_once('/').ok_or_else(|| wrong(text))?;
        let parsed = index.trim().parse::<usize>().ok().zip(count.trim().parse::<usize>().ok());
        parsed.filter(|(index, count)| index < count).ok_or_else(|| wrong(text))
    };
    if let Some(text) = given {
        return parse(text).map(Some);
    }
    let index = ["JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"]
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)));
    let Some((name, index)) = index else {
        return Ok(None);
    };
    let count = ["TENSORSERVE_SHARDS", "SLURM_ARRAY_TASK_COUNT"].into_iter().find_map(&variable);
    let count = count.ok_or_else(|| {
        Error::invalid(format!(
            "{name} is set, but not the number of shards: set TENSORSERVE_SHARDS, or --shard I/N"
        ))
    })?;
    parse(&format!("{index}/{count}")).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_come_from_options_or_schedulers() {
        let none = |_: &str| None;
        assert_eq!(shard(Some("1/4"), none).expect("valid"), Some((1, 4)));
        assert_eq!(shard(None, none).expect("valid"), None);
        for wrong in ["4/4", "x", "1", "-1/2", "0/0"] {
            assert!(shard(Some(wrong), none).is_err(), "{wrong}");
        }
        let kubernetes = |name: &str| match name {
            "JOB_COMPLETION_INDEX" => Some("2".to_owned()),
            "TENSORSERVE_SHARDS" => Some("8".to_owned()),
            _ => None,
        };
        assert_eq!(shard(None, kubernetes).expect("valid"), Some((2, 8)));
        let incomplete = |name: &str| (name == "AWS_BATCH_JOB_ARRAY_INDEX").then(|| "2".to_owned());
        assert!(shard(None, incomplete).is_err());
    }

    #[test]
    fn media_types_have_record_types() {
        assert_eq!(record_type("Text/CSV; charset=utf-8"), RecordType::Csv);
        assert_eq!(record_type("image/jpeg"), RecordType::Image);
        assert_eq!(record_type("application/pdf"), RecordType::Document);
        assert_eq!(record_type("application/x-ndjson"), RecordType::JsonLines);
    }

    #[test]
    fn ranges_have_a_size_or_none() {
        assert_eq!(range_mb("auto").expect("auto"), None);
        assert_eq!(range_mb("0").expect("never"), Some(0));
        assert!(range_mb("x").is_err() && range_mb("-1").is_err());
    }

    #[test]
    fn policies_have_names() {
        assert_eq!(policy("null").expect("valid"), (OnBadRecord::Null, None));
        let (policy_, place) = policy("dead-letter=s3://b/dead").expect("valid");
        assert_eq!((policy_, place.as_deref()), (OnBadRecord::DeadLetter, Some("s3://b/dead")));
        for wrong in ["", "null=1", "dead-letter=", "ignore"] {
            assert!(policy(wrong).is_err(), "{wrong}");
        }
    }
}
