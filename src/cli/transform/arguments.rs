//! The options of `tensorserve transform`, as they are written.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options of `transform`.
#[derive(Args, Clone, Debug, Default)]
pub(in crate::cli) struct Arguments {
    /// The model: what `tensorserve serve` serves, or a model.tar.gz of SageMaker with its
    /// inference.py; a local path or the URL of a store
    #[arg(value_name = "MODEL")]
    pub(super) model: PathBuf,
    /// Platform of the model [default: detected from its files]
    #[arg(long, value_name = "NAME")]
    pub(super) platform: Option<String>,
    /// Signature of the model, where a record does not name one [default: serving_default]
    #[arg(long, value_name = "NAME")]
    pub(super) signature: Option<String>,
    /// Set a variable of the environment for the model and its inference.py, as Environment of a job
    /// does; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(super) env: Vec<(String, String)>,

    /// Input: a file, a directory, a pattern in quotes ('in/*.csv'), or every object of a store whose
    /// key begins with the path (s3://bucket/in/); may be repeated
    #[arg(long, value_name = "LOCATION", help_heading = "Input and output")]
    pub(super) input: Vec<String>,
    /// Input: the objects in this file, one on a line; - reads stdin
    #[arg(long, value_name = "FILE", help_heading = "Input and output")]
    pub(super) files_from: Option<String>,
    /// Input: the objects in this ManifestFile of SageMaker
    #[arg(long, value_name = "LOCATION", help_heading = "Input and output")]
    pub(super) manifest: Option<String>,
    /// Output: a directory or a prefix of a store; the state of the job is below _transform/ in it
    #[arg(long, value_name = "LOCATION", help_heading = "Input and output")]
    pub(super) output: Option<String>,
    /// Appended to the key of an object for that of its output
    #[arg(long, value_name = "TEXT", default_value = ".out", help_heading = "Input and output")]
    pub(super) output_suffix: String,
    /// Take these options from the JSON of CreateTransformJob, or of `aws sagemaker
    /// describe-transform-job`; options of the command line override it
    #[arg(long, value_name = "FILE", help_heading = "Input and output")]
    pub(super) job_file: Option<PathBuf>,

    /// Media type of the records: text/csv, application/jsonlines, application/json,
    /// application/x-image, application/x-npy, application/x-tfrecord, or what an inference.py takes
    /// [default: by the names of the objects]
    #[arg(long, value_name = "TYPE", help_heading = "Records")]
    pub(super) content_type: Option<String>,
    /// How an object is divided into records: none (it is one), line, csv (lines; a quoted field may
    /// hold line breaks), jsonl, tfrecord, recordio, parquet or npy (rows) [default: by the type]
    #[arg(long, value_name = "FORMAT", help_heading = "Records")]
    pub(super) split: Option<String>,
    /// Whether objects of CSV begin with the names of their columns: present, absent, or auto (as the model
    /// reads the first line: names that it knows, or text only, for models of tables)
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Records")]
    pub(super) header: String,
    /// Compression of the objects: auto (by .gz and .zst), none, gzip or zstd
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = "Records")]
    pub(super) compression: String,
    /// The columns to read of Parquet files, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Records")]
    pub(super) columns: Option<Vec<String>>,
    /// The part of each record that the model gets: a JSONPath such as `$[1:]` or `$.features`. The
    /// end of a slice is exclusive (RFC 9535)
    #[arg(long, value_name = "PATH", help_heading = "Records")]
    pub(super) input_filter: Option<String>,
    /// Join each output with its record
    #[arg(long, value_enum, value_name = "SOURCE", help_heading = "Records")]
    pub(super) join: Option<Join>,
    /// The part of the output, or of the join, that is written: a JSONPath
    #[arg(long, value_name = "PATH", help_heading = "Records")]
    pub(super) output_filter: Option<String>,
    /// Write this part of the record beside its output: the number of a column of CSV, from 0, or a
    /// member of JSON
    #[arg(long, value_name = "KEY", help_heading = "Records", conflicts_with = "join")]
    pub(super) key: Option<String>,
    /// Format of the outputs: jsonl (a line of JSON for each record), csv, parquet, npy or tfrecord
    /// [default: jsonl, or what --accept names]
    #[arg(long, value_name = "FORMAT", help_heading = "Records")]
    pub(super) output_format: Option<String>,
    /// Where each object is a record, such as an image: write the outputs of a batch together as
    /// part-N.jsonl, lines of JSON with the object and its output. Many times as fast for small objects
    #[arg(long, help_heading = "Records")]
    pub(super) combine_outputs: bool,
    /// Type of the elements of npy outputs: float32, float64, int32 or int64
    #[arg(long, value_name = "TYPE", default_value = "float32", help_heading = "Records")]
    pub(super) npy_type: String,
    /// Media type of the responses, as SageMaker's Accept
    #[arg(long, value_name = "TYPE", help_heading = "Records")]
    pub(super) accept: Option<String>,

    /// What happens to a record that the model refuses: fail (its object fails), null (its output is
    /// null), skip, or dead-letter=LOCATION (it is written there, with object, line, byte and reason;
    /// without a location to _transform/dead/)
    #[arg(long, value_name = "POLICY", default_value = "fail", help_heading = "Failures")]
    pub(super) on_bad_record: String,
    /// The job ends when more records than this are bad: a number, or a part of them such as 2%
    #[arg(long, value_name = "LIMIT", help_heading = "Failures")]
    pub(super) max_bad_records: Option<String>,
    /// How often a failure that may pass is tried again [default: 3]
    #[arg(long, value_name = "N", help_heading = "Failures")]
    pub(super) retries: Option<u32>,
    /// Time limit of a batch in seconds [default: 600]
    #[arg(long, value_name = "SECONDS", help_heading = "Failures")]
    pub(super) timeout: Option<u64>,

    /// Records in a batch: a number, or auto to try which is fastest
    #[arg(long, value_name = "N", default_value = "auto", help_heading = "Speed")]
    pub(super) batch_rows: String,
    /// Batches that run at the same time [default: one for each core]
    #[arg(long, value_name = "N", help_heading = "Speed")]
    pub(super) concurrency: Option<usize>,
    /// Most MiB of records in a batch
    #[arg(long, value_name = "N", help_heading = "Speed")]
    pub(super) max_payload_mb: Option<u64>,
    /// Most MiB of one record
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Speed")]
    pub(super) max_record_mb: usize,
    /// Objects of lines that are larger than this many MiB are divided into ranges of this size; 0 for
    /// never; auto for ranges of about two seconds each, which is what an interruption loses
    #[arg(long, value_name = "N", default_value = "auto", help_heading = "Speed")]
    pub(super) range_mb: String,
    /// As many records in a request as fit (multi) or one (single): what inference.py and --sdk-exact
    /// see
    #[arg(long, value_enum, value_name = "STRATEGY", help_heading = "SageMaker")]
    pub(super) strategy: Option<Strategy>,
    /// A line break after each response (line), with --sdk-exact
    #[arg(long, value_enum, value_name = "HOW", help_heading = "SageMaker")]
    pub(super) assemble: Option<Assemble>,
    /// Write the same bytes as the local mode of SageMaker's SDK, with a response for each request and
    /// errors as outputs
    #[arg(long, help_heading = "SageMaker")]
    pub(super) sdk_exact: bool,

    /// Process only part I of N (from 0). [default: JOB_COMPLETION_INDEX, AWS_BATCH_JOB_ARRAY_INDEX or
    /// SLURM_ARRAY_TASK_ID of TENSORSERVE_SHARDS or SLURM_ARRAY_TASK_COUNT]
    #[arg(long, value_name = "I/N", help_heading = "Many machines")]
    pub(super) shard: Option<String>,
    /// Process the entries of the plan whose numbers arrive on stdin, one on a line, and report each on
    /// stdout as a line of JSON
    #[arg(long, help_heading = "Many machines", conflicts_with = "shard")]
    pub(super) entries_from_stdin: bool,
    /// Write the plan, print its number of entries, objects and bytes as JSON, and end
    #[arg(long, help_heading = "Many machines")]
    pub(super) plan_only: bool,

    /// Forget what an earlier run has done, and start again
    #[arg(long, help_heading = "Run")]
    pub(super) overwrite: bool,
    /// Show the first records, the tensors that they become and their outputs, and end
    #[arg(long, help_heading = "Run")]
    pub(super) dry_run: bool,
    /// Print how the job is divided and why, and end
    #[arg(long, help_heading = "Run")]
    pub(super) explain: bool,
    /// How progress is shown: a bar on a terminal, lines elsewhere (auto), or JSON on stdout every 5
    /// seconds
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "Run")]
    pub(super) progress: ShowProgress,
    /// Serve metrics at /metrics of this address
    #[arg(long, value_name = "HOST:PORT", help_heading = "Run")]
    pub(super) metrics_addr: Option<String>,
}

/// Reads a variable of the environment.
fn variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What outputs are joined with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Join {
    /// Nothing.
    None,
    /// Their records.
    Input,
}

/// How many records a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Strategy {
    /// One.
    Single,
    /// As many as fit.
    Multi,
}

/// What follows each response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Assemble {
    /// Nothing.
    None,
    /// A line break.
    Line,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ShowProgress {
    /// A bar on a terminal, lines elsewhere.
    #[default]
    Auto,
    /// A bar.
    Bar,
    /// Lines of text on stderr.
    Lines,
    /// Lines of JSON on stdout.
    Json,
    /// Not at all.
    None,
}

pub(in crate::cli) const HELP: &str = "\
A job that was interrupted or has failed goes on where it ended when the same command is called \
again. The exit status is 0 if all objects are done, 1 if some have failed, 2 for wrong options, 3 if \
the job could not go on, and 130 after Ctrl-C. docs/transform.md describes everything.

Examples:
  tensorserve transform titanic.pkl --input titanic.csv --output predictions/
  tensorserve transform models/digits --input images/ --output predictions/
  tensorserve transform model.tar.gz --input s3://bucket/in/ --output s3://bucket/out/ --split line
  tensorserve transform model/ --input 'data/*.csv.gz' --output out/ --explain";
