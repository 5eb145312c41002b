//! `tensorserve warmup`: makes the file of recorded requests that warms a version up, and checks
//! one, on the version itself.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use prost::Message;

use super::inspect::models_at;
use super::{name_libraries, say};
use crate::config::environment::Environment;
use crate::config::units::{List, Span};
use crate::config::{Config, ModelSettings, Settings};
use crate::{platforms, protocols};
use tensorserve_codec::tfrecord;
use tensorserve_core::engine::{Choice, Engine, Method, ModelHandle, ModelSpec, VersionState};
use tensorserve_proto::serving::PredictionLog;
use tensorserve_protocols::tfs::record;
use tensorserve_protocols::tfs::warm_up::{self, MOST_RECORDS, Records, file_of};
use tensorserve_tensor::error::{Code, Error, Result};

#[derive(Subcommand)]
pub(super) enum Commands {
    /// Make a version's file of recorded requests, from bodies of REST requests or from logs
    #[command(after_help = RECORD_HELP)]
    Record(RecordArgs),
    /// Run a version's recorded requests, and tell which fail; exit code 1 if any does
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
}

const RECORD_HELP: &str = "\
Each request is checked and run on the version before anything is written. Without --output the
file goes to where the version is served from: VERSION/assets.extra/tf_serving_warmup_requests.

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
    /// A model: a folder of versions (the newest counts), or one version
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Tags of the graph to load
    #[arg(long, value_name = "LIST", default_value = "serve")]
    tags: List<String>,
}

#[derive(Args)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Files with the body of a REST request each; - for stdin
    #[arg(value_name = "BODY", required_unless_present = "log")]
    bodies: Vec<PathBuf>,
    /// What the bodies ask for
    #[arg(long, default_value = "predict", conflicts_with = "log")]
    method: MethodArg,
    /// The signature they ask, instead of the one they name
    #[arg(long, value_name = "NAME", conflicts_with = "log")]
    signature: Option<String>,
    /// Take requests from this log of requests; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "bodies")]
    log: Vec<PathBuf>,
    /// Most requests to take, evenly from all over the logs
    #[arg(long, value_name = "N", default_value_t = 100)]
    most: usize,
    /// Write to this file instead
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace a file that is there
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
    /// Another file than the version's own
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) fn run(command: &Commands, environment: &Environment) -> Result<ExitCode> {
    match command {
        Commands::Record(arguments) => make(arguments, environment),
        Commands::Check(arguments) => check(arguments, environment),
    }
}

/// A version that was loaded to try requests on.
struct Version {
    handle: ModelHandle,
    folder: PathBuf,
    max_bytes: usize,
    // Last, as the version needs what it runs on.
    _engine: Engine,
}

impl Version {
    fn load(model: &ModelArgs, environment: &Environment) -> Result<Self> {
        let mut settings = Settings::default();
        name_libraries(&mut settings, environment);
        // It is only loaded; nothing is watched, and no request comes from anywhere else.
        settings.server.poll_interval = Some(Span(Duration::ZERO));
        settings.server.max_load_retries = Some(0);
        settings.each.warm_up = Some(false);
        settings.each.tags = Some(model.tags.clone());
        let platforms = platforms::built_in(&Config::new(settings.clone(), environment)?);
        let [(name, folder)] = &models_at(&model.model, &platforms, None)?[..] else {
            let place = model.model.display();
            return Err(Error::invalid(format!("{place}: there are several models; name one")));
        };
        let (path, named) = (Some(folder.clone()), Some(name.clone()));
        settings.models.push(ModelSettings { name: named, path, ..ModelSettings::default() });
        let config = Config::new(settings, environment)?;
        let engine = protocols::engine(&config, platforms, &protocols::built_in(&config))?;
        engine.wait_until_started(|_| ());
        let handle = engine.repository().resolve(&ModelSpec { name, choice: Choice::Latest });
        let handle = handle.map_err(|_| not_loaded(&engine, name, folder))?;
        let max_bytes = config.max_tensor_bytes();
        Ok(Version { handle, folder: folder.clone(), max_bytes, _engine: engine })
    }

    fn run(&self, record: &PredictionLog) -> Result<()> {
        warm_up::run(&self.handle, record, self.max_bytes)
    }
}

fn not_loaded(engine: &Engine, name: &str, folder: &Path) -> Error {
    let states = engine.repository().status(name).into_iter().map(|status| status.state);
    let failure = states.into_iter().find_map(|state| match state {
        VersionState::Failed(error) => Some(error.duplicate()),
        VersionState::Found(why) => Some(Error::precondition(why)),
        VersionState::Loading
        | VersionState::Warming
        | VersionState::Ready
        | VersionState::Draining
        | VersionState::Unloaded => None,
    });
    let failure = failure.unwrap_or_else(|| Error::not_found("it could not be loaded"));
    failure.context(folder.display())
}

fn check(arguments: &CheckArgs, environment: &Environment) -> Result<ExitCode> {
    let version = Version::load(&arguments.model, environment)?;
    let path = arguments.file.clone().unwrap_or_else(|| file_of(&version.folder));
    let mut records = open(&path)?;
    let (mut count, mut failed, start) = (0, 0, Instant::now());
    loop {
        let record = match records.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) => {
                say(&format!("record {}: {}: {error}", count + 1, error.code().name()));
                failed += 1;
                break;
            }
        };
        count += 1;
        if let Err(error) = version.run(&record) {
            let (kind, code) = (warm_up::kind_of(&record), error.code().name());
            say(&format!("record {count} ({kind}): {code}: {error}"));
            failed += 1;
        }
    }
    let (path, millis) = (path.display(), start.elapsed().as_millis());
    if failed > 0 {
        say(&format!("{path}: {count} records read, {failed} failed: the version would not load"));
        return Ok(ExitCode::FAILURE);
    }
    say(&format!("{path}: {count} records ran in {millis} ms"));
    Ok(ExitCode::SUCCESS)
}

fn open(path: &Path) -> Result<Records> {
    Records::open(path)?
        .ok_or_else(|| Error::not_found(format!("{}: there is no such file", path.display())))
}

fn make(arguments: &RecordArgs, environment: &Environment) -> Result<ExitCode> {
    if !(1..=MOST_RECORDS).contains(&arguments.most) {
        return Err(Error::invalid(format!("--most must be from 1 to {MOST_RECORDS}")));
    }
    let version = Version::load(&arguments.model, environment)?;
    let output = arguments.output.clone().unwrap_or_else(|| file_of(&version.folder));
    if output.exists() && !arguments.force {
        let message = format!("{} is there already; --force replaces it", output.display());
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
            .map_err(|error| error.context(format!("{source}: nothing is written")))?;
        tfrecord::append(&record.encode_to_vec(), &mut file);
    }
    write(&output, &file)?;
    let (count, output) = (records.len(), output.display());
    say(&format!("{output}: {count} records, {} bytes", file.len()));
    Ok(ExitCode::SUCCESS)
}

/// A record for each body, with where it comes from.
fn of_bodies(arguments: &RecordArgs, version: &Version) -> Result<Vec<(String, PredictionLog)>> {
    if arguments.bodies.len() > MOST_RECORDS {
        return Err(Error::invalid(format!("more than {MOST_RECORDS} requests are too many")));
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
            Error::new(Code::of_io(&e), format!("{source} can not be read: {e}")).with_source(e)
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
            record.map_err(|error| error.context(format!("{source}: nothing is written")))?;
        records.push((source, record));
    }
    Ok(records)
}

/// The body with another signature: of two members of the same name the first counts.
fn with_signature(body: &[u8], name: &str) -> Vec<u8> {
    let Some(rest) = body.trim_ascii_start().strip_prefix(b"{") else {
        return body.to_vec();
    };
    let name = serde_json::Value::from(name);
    let mut body = format!("{{\"signature_name\": {name}, ").into_bytes();
    body.extend_from_slice(rest);
    body
}

/// At most so many of the requests in logs, evenly from all over them.
fn of_logs(logs: &[PathBuf], most: usize) -> Result<Vec<(String, PredictionLog)>> {
    // Logs can be larger than memory: they are read once to count, and once to take.
    let mut total = 0usize;
    each_request(logs, |_, _| total += 1)?;
    let mut records = Vec::new();
    let (mut at, mut taken) = (0usize, 0usize);
    each_request(logs, |source, record| {
        // The one where the next of equal steps begins.
        if at.saturating_mul(most) >= taken.saturating_mul(total) && taken < most {
            records.push((source, record));
            taken += 1;
        }
        at += 1;
    })?;
    if records.is_empty() {
        return Err(Error::invalid("there is no request in the logs that could be run"));
    }
    Ok(records)
}

fn each_request(logs: &[PathBuf], mut take: impl FnMut(String, PredictionLog)) -> Result<()> {
    for path in logs {
        let (mut records, mut number) = (open(path)?.without_limit(), 0);
        while let Some(log) = records.next().map_err(|error| error.context(path.display()))? {
            number += 1;
            if let Some(request) = record::request_of(log) {
                take(format!("{} record {number}", path.display()), request);
            }
        }
    }
    Ok(())
}

/// Writes a file beside its place, and moves it there: nobody sees half of it.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = || -> std::io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder)?;
        }
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let mut file = fs::File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    written().map_err(|e| {
        let message = format!("{} can not be written: {e}", path.display());
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
        let root = tempfile::tempdir().expect("temporary folder");
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
        // One that can not be run counts for nothing.
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
