//! `tensorserve warmup`: creates and checks the file of recorded requests that warms up a version,
//! by running the requests on the version.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Subcommand, ValueEnum};
use prost::Message;

use super::print_line;
use super::versions::{OfflineVersion, OfflineVersions};
use crate::config::environment::Environment;
use crate::config::units::CommaSeparated;
use tensorserve_codec::tfrecord;
use tensorserve_core::engine::{Method, ModelHandle};
use tensorserve_proto::serving::PredictionLog;
use tensorserve_protocols::tfs::record;
use tensorserve_protocols::tfs::warm_up::{self, MOST_RECORDS, WarmUpRecords, file_of};
use tensorserve_tensor::error::{Code, Error, Result};

#[derive(Subcommand)]
pub(super) enum Commands {
    /// Create a version's file of recorded requests, from REST request bodies or from request logs
    #[command(after_help = RECORD_HELP)]
    Record(RecordArgs),
    /// Run a version's recorded requests and print those that fail; the exit status is 1 if any does
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
}

const RECORD_HELP: &str = "\
Each request is run on the version before the file is written. Without --output the file is
VERSION/assets.extra/tf_serving_warmup_requests, where servers read it.

Examples:
  echo '{\"instances\": [1.0, 2.0]}' | tensorserve warmup record models/half_plus_two -
  tensorserve warmup record models/ranker --method classify body1.json body2.json
  tensorserve warmup record models/ranker --log logs/ranker-1763733000-0001.tfrecord --most 50";

const CHECK_HELP: &str = "\
Examples:
  tensorserve warmup check models/ranker
  tensorserve warmup check models/ranker/4 --file requests.tfrecord";

#[derive(Args)]
pub(super) struct ModelArgs {
    /// Directory of a version, or of a model's versions (the newest is used)
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Tags of the SavedModel graph to load, separated by commas
    #[arg(long, value_name = "LIST", default_value = "serve")]
    tags: CommaSeparated<String>,
}

#[derive(Args)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Files that each hold the body of one REST request; - reads stdin
    #[arg(value_name = "BODY", required_unless_present = "log")]
    bodies: Vec<PathBuf>,
    /// Method of the requests
    #[arg(long, default_value = "predict", conflicts_with = "log")]
    method: MethodArg,
    /// Signature to run, instead of the one in the request body
    #[arg(long, value_name = "NAME", conflicts_with = "log")]
    signature: Option<String>,
    /// Request log to take requests from; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "bodies")]
    log: Vec<PathBuf>,
    /// Maximum number of requests to take, spread evenly over the logs
    #[arg(long, value_name = "N", default_value_t = 100)]
    most: usize,
    /// Output file [default: the file of the version]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing output file
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum MethodArg {
    Predict,
    Classify,
    Regress,
}

#[derive(Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// File of recorded requests [default: the file of the version]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) fn run(command: &Commands, environment: &Environment) -> Result<ExitCode> {
    match command {
        Commands::Record(arguments) => record_requests(arguments, environment),
        Commands::Check(arguments) => check(arguments, environment),
    }
}

/// The version that is recorded for or checked.
struct WarmUpVersion {
    handle: ModelHandle,
    folder: PathBuf,
    max_bytes: usize,
    // The last field, because it must be dropped after the handle.
    _loaded: OfflineVersions,
}

impl WarmUpVersion {
    fn load(model: &ModelArgs, environment: &Environment) -> Result<Self> {
        let loaded = OfflineVersions::load(&[&model.model], &model.tags, environment)?;
        let only = loaded.versions.first();
        let OfflineVersion { handle, folder } =
            only.ok_or_else(|| Error::internal("no version was loaded"))?;
        let (handle, folder) = (handle.clone(), folder.clone());
        Ok(WarmUpVersion { handle, folder, max_bytes: loaded.max_bytes, _loaded: loaded })
    }

    fn run(&self, record: &PredictionLog) -> Result<()> {
        warm_up::run(&self.handle, record, self.max_bytes)
    }
}

fn check(arguments: &CheckArgs, environment: &Environment) -> Result<ExitCode> {
    let version = WarmUpVersion::load(&arguments.model, environment)?;
    let path = arguments.file.clone().unwrap_or_else(|| file_of(&version.folder));
    let mut records = open(&path)?;
    let (mut count, mut failed, start) = (0, 0, Instant::now());
    loop {
        let record = match records.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) => {
                print_line(&format!("record {}: {}: {error}", count + 1, error.code().name()));
                failed += 1;
                break;
            }
        };
        count += 1;
        if let Err(error) = version.run(&record) {
            let (kind, code) = (warm_up::kind_of(&record), error.code().name());
            print_line(&format!("record {count} ({kind}): {code}: {error}"));
            failed += 1;
        }
    }
    let (path, millis) = (path.display(), start.elapsed().as_millis());
    if failed > 0 {
        print_line(&format!(
            "{path}: {count} records read, {failed} failed: the version would fail to load"
        ));
        return Ok(ExitCode::FAILURE);
    }
    print_line(&format!("{path}: {count} records ran in {millis} ms"));
    Ok(ExitCode::SUCCESS)
}

/// Opens a file of records.
///
/// # Errors
/// If it does not exist, or cannot be read.
pub(super) fn open(path: &Path) -> Result<WarmUpRecords> {
    WarmUpRecords::open(path)?
        .ok_or_else(|| Error::not_found(format!("{}: there is no such file", path.display())))
}

fn record_requests(arguments: &RecordArgs, environment: &Environment) -> Result<ExitCode> {
    if !(1..=MOST_RECORDS).contains(&arguments.most) {
        return Err(Error::invalid(format!("--most must be from 1 to {MOST_RECORDS}")));
    }
    let version = WarmUpVersion::load(&arguments.model, environment)?;
    let output = arguments.output.clone().unwrap_or_else(|| file_of(&version.folder));
    if output.exists() && !arguments.force {
        let message = format!("{} already exists; use --force to replace it", output.display());
        return Err(Error::new(Code::AlreadyExists, message));
    }
    let records = match arguments.log.is_empty() {
        true => of_bodies(arguments, &version)?,
        false => of_logs(&arguments.log, arguments.most)?,
    };
    let mut file = Vec::new();
    for (source, record) in &records {
        version
            .run(record)
            .map_err(|error| error.context(format!("{source}: nothing was written")))?;
        tfrecord::append(&record.encode_to_vec(), &mut file);
    }
    write(&output, &file)?;
    let (count, output) = (records.len(), output.display());
    print_line(&format!("{output}: {count} records, {} bytes", file.len()));
    Ok(ExitCode::SUCCESS)
}

/// A record for each body, with its source.
fn of_bodies(
    arguments: &RecordArgs,
    version: &WarmUpVersion,
) -> Result<Vec<(String, PredictionLog)>> {
    if arguments.bodies.len() > MOST_RECORDS {
        return Err(Error::invalid(format!("at most {MOST_RECORDS} requests can be recorded")));
    }
    let method = match arguments.method {
        MethodArg::Predict => Method::Predict,
        MethodArg::Classify => Method::Classify,
        MethodArg::Regress => Method::Regress,
    };
    let mut records = Vec::with_capacity(arguments.bodies.len());
    for path in &arguments.bodies {
        let source = path.display().to_string();
        let unreadable = |e: std::io::Error| {
            Error::new(Code::of_io(&e), format!("{source} cannot be read: {e}")).with_source(e)
        };
        let mut body = Vec::new();
        if source == "-" {
            std::io::stdin().read_to_end(&mut body).map_err(unreadable)?;
        } else {
            body = fs::read(path).map_err(unreadable)?;
        }
        if let Some(name) = &arguments.signature {
            body = with_signature(&body, name);
        }
        let record = record::of_body(&version.handle, method, &body, version.max_bytes);
        let record =
            record.map_err(|error| error.context(format!("{source}: nothing was written")))?;
        records.push((source, record));
    }
    Ok(records)
}

/// The body with another signature: of two members with the same name, servers use the first.
fn with_signature(body: &[u8], name: &str) -> Vec<u8> {
    let Some(rest) = body.trim_ascii_start().strip_prefix(b"{") else {
        return body.to_vec();
    };
    let name = serde_json::Value::from(name);
    let mut body = format!("{{\"signature_name\": {name}, ").into_bytes();
    body.extend_from_slice(rest);
    body
}

/// At most `most` of the requests in logs, spread evenly over them.
pub(super) fn of_logs(logs: &[PathBuf], most: usize) -> Result<Vec<(String, PredictionLog)>> {
    // Logs can be larger than memory: the first pass counts requests, the second takes them.
    let mut total = 0usize;
    each_request(logs, |_, _| total += 1)?;
    let mut records = Vec::new();
    let (mut at, mut taken) = (0usize, 0usize);
    each_request(logs, |source, record| {
        // The first request at or after the next of `most` equal steps.
        if at.saturating_mul(most) >= taken.saturating_mul(total) && taken < most {
            records.push((source, record));
            taken += 1;
        }
        at += 1;
    })?;
    if records.is_empty() {
        return Err(Error::invalid("the logs contain no request that can be run"));
    }
    Ok(records)
}

fn each_request(logs: &[PathBuf], mut take: impl FnMut(String, PredictionLog)) -> Result<()> {
    for path in logs {
        let mut records = open(path)?.without_limit();
        let mut next = || records.next_request().map_err(|error| error.context(path.display()));
        while let Some((source, request)) = next()? {
            take(source, request);
        }
    }
    Ok(())
}

/// Writes a temporary file and renames it, so that no reader sees a partial file.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = || -> std::io::Result<()> {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        if let Some(directory) = directory {
            fs::create_dir_all(directory)?;
        }
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let mut file = fs::File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    written().map_err(|e| {
        let message = format!("{} cannot be written: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_signature_comes_first() {
        let body = with_signature(b" {\"signature_name\": \"a\", \"inputs\": 1}", "b\"");
        let text = String::from_utf8(body).expect("text");
        assert_eq!(
            text,
            "{\"signature_name\": \"b\\\"\", \"signature_name\": \"a\", \"inputs\": 1}"
        );
        assert_eq!(with_signature(b"[1]", "b"), b"[1]");
    }

    #[test]
    fn requests_are_taken_evenly() {
        let root = tempfile::tempdir().expect("temporary directory");
        let mut file = Vec::new();
        for number in 0..10 {
            let request = tensorserve_proto::serving::PredictRequest {
                output_filter: vec![number.to_string()],
                ..Default::default()
            };
            let log =
                tensorserve_proto::serving::PredictLog { request: Some(request), response: None };
            let log_type = tensorserve_proto::serving::prediction_log::LogType::PredictLog(log);
            let log = PredictionLog { log_metadata: None, log_type: Some(log_type) };
            tfrecord::append(&log.encode_to_vec(), &mut file);
        }
        // A record that cannot be run is not counted.
        tfrecord::append(b"\x2a\x00", &mut file);
        let path = root.path().join("log");
        fs::write(&path, file).expect("written");
        let taken = |most: usize| -> Vec<String> {
            let records = of_logs(std::slice::from_ref(&path), most).expect("readable");
            let number = |source: &str| source.rsplit(' ').next().expect("a number").to_owned();
            records.iter().map(|(source, _)| number(source)).collect()
        };
        assert_eq!(taken(1), ["1"]);
        assert_eq!(taken(3), ["1", "5", "8"]);
        assert_eq!(taken(10).len(), 10);
        assert_eq!(taken(1000).len(), 10);
    }
}
