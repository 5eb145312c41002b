//! The requests as they are sent: with bodies that are given, made from the signature, or taken from a log.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::{http_client, inspect::DescribedModel};
use super::PayloadArguments;
use super::payload::{DEFAULT_SIGNATURE, PayloadBody, made};
use super::replay::{LoggedRequest, Replay};
use super::target::ModelTarget;
use crate::config::environment::Environment;
use tensorserve_loadgen::plan::{WireKind, WireRequest};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Code, Error, Result};

/// Where requests come from.
pub(in crate::cli) struct LoadSource<'s> {
    pub(in crate::cli) payload: &'s PayloadArguments,
    /// Logs whose requests are sent in place of others, if there are any, and how many times as fast.
    pub(in crate::cli) logs: &'s [PathBuf],
    pub(in crate::cli) speed: f64,
    /// The server is asked for its times.
    pub(in crate::cli) is_timed: bool,
    /// The model, as the user has written it.
    pub(in crate::cli) place: &'s str,
}

/// Requests as they are sent.
pub(in crate::cli) struct WrittenLoad {
    pub(in crate::cli) requests: Arc<Vec<WireRequest>>,
    /// When they are due, in nanoseconds, if they are those of a log.
    pub(super) times: Option<Vec<u64>>,
    /// What they are.
    pub(in crate::cli) words: String,
}

impl WrittenLoad {
    /// What the arguments ask for.
    ///
    /// # Errors
    /// If a file cannot be read, or no body can be made.
    pub(in crate::cli) fn of(
        source: &LoadSource<'_>,
        target: &ModelTarget,
        environment: &Environment,
    ) -> Result<Self> {
        let arguments = source.payload;
        let protocol = arguments.protocol;
        let headers = headers(source, target, environment)?;
        let mut times = None;
        let (requests, what) = if !source.logs.is_empty() {
            let replay = Replay::read(source.logs, protocol, target, source.speed)?;
            times = Some(replay.times);
            let count = replay.requests.len();
            (
                replay.requests,
                format!("{count} requests of a log at {} times their speed", source.speed),
            )
        } else if arguments.data.is_empty() {
            let rows = arguments.rows;
            if rows.is_some_and(|rows| !(1..=1 << 20).contains(&rows)) {
                return Err(Error::invalid("--rows must be from 1 to 1048576"));
            }
            let signature = signature(source, target, environment)?;
            let body = made(protocol, target, &signature, rows)?;
            let what = format!("a body of {} bytes for {}", body.bytes.len(), signature.name);
            (vec![LoggedRequest { path: None, body }], what)
        } else {
            let bodies =
                arguments.data.iter().map(|data| given(data)).collect::<Result<Vec<_>>>()?;
            let what = match bodies.as_slice() {
                [one] => format!("a given body of {} bytes", one.bytes.len()),
                several => format!("{} given bodies", several.len()),
            };
            (bodies.into_iter().map(|body| LoggedRequest { path: None, body }).collect(), what)
        };
        let requests = requests.iter().map(|one| request(arguments, target, &headers, one));
        let requests = requests.collect::<Result<Vec<WireRequest>>>()?;
        Ok(WrittenLoad {
            requests: Arc::new(requests),
            times,
            words: format!("{}, {what}", protocol.words()),
        })
    }
}

/// A body that is written, or in a file.
fn given(data: &str) -> Result<PayloadBody> {
    let Some(path) = data.strip_prefix('@') else {
        return Ok(PayloadBody::text(data));
    };
    let unreadable = |e: std::io::Error| {
        Error::new(Code::of_io(&e), format!("--data: {path}: {e}")).with_source(e)
    };
    fs::read(path).map(PayloadBody::text).map_err(unreadable)
}

/// The headers of all requests, besides those that their wire needs.
fn headers(
    source: &LoadSource<'_>,
    target: &ModelTarget,
    environment: &Environment,
) -> Result<Vec<(String, String)>> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in source.payload.protocol.headers(target)? {
        headers.push((name.to_owned(), value));
    }
    if source.is_timed {
        headers.push(("X-Server-Timing".to_owned(), "1".to_owned()));
    }
    if let Some(authorization) = http_client::authorization(environment) {
        headers.push(("Authorization".to_owned(), authorization));
    }
    for header in &source.payload.header {
        let wrong = || Error::invalid(format!("--header: {header:?} is not NAME: VALUE"));
        let (name, value) = header.split_once(':').ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong());
        }
        headers.push((name.to_owned(), value.to_owned()));
    }
    let is_bad = |byte: u8| byte < b' ' || byte == 0x7f;
    match headers.iter().find(|(_, value)| value.bytes().any(is_bad)) {
        Some((name, _)) => {
            Err(Error::invalid(format!("the header {name} contains a control character")))
        }
        None => Ok(headers),
    }
}

/// A request as it is sent.
fn request(
    arguments: &PayloadArguments,
    target: &ModelTarget,
    headers: &[(String, String)],
    request: &LoggedRequest,
) -> Result<WireRequest> {
    let LoggedRequest { path, body } = request;
    let protocol = arguments.protocol;
    let path = path.map_or_else(|| protocol.path(target), str::to_owned);
    if protocol.wire() == WireKind::Grpc {
        let fields: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let place = (target.scheme, target.authority.as_str());
        return WireRequest::grpc(&path, place, &fields, &body.bytes);
    }
    let media_type = arguments.content_type.as_deref().unwrap_or(protocol.media_type());
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {media_type}\r\n",
        target.authority
    );
    let own = body.headers.iter().map(|(name, value)| (*name, value.as_str()));
    let common = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in common.chain(own) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.bytes.len()));
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&body.bytes);
    Ok(WireRequest::http(bytes))
}

/// The signature that the arguments name, or the one that servers choose without a name.
fn signature(
    source: &LoadSource<'_>,
    target: &ModelTarget,
    environment: &Environment,
) -> Result<Signature> {
    let place = format!("{}://{}{}", target.scheme, target.authority, target.v1_path());
    let served = DescribedModel::of(&place, source.place, environment)?;
    let wanted = source.payload.signature.as_deref().unwrap_or(DEFAULT_SIGNATURE);
    let names: Vec<String> =
        served.signatures.iter().map(|signature| signature.name.clone()).collect();
    let mut all = served.signatures.into_iter();
    if let Some(found) = all.by_ref().find(|signature| signature.name == wanted) {
        return Ok(found);
    }
    let (model, version, names) = (served.name, served.version, names.join(", "));
    let message = format!(
        "{model} version {version} has no signature {wanted:?}; it has {names}: choose with --signature"
    );
    Err(Error::not_found(message))
}
