//! Reads request bodies, within limits of size and time.

use std::io::Read;
use std::pin::pin;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use futures_util::{FutureExt, StreamExt};

use tensorserve_tensor::error::{Code, Error};

/// Why a body was not read, and the status of the response.
#[derive(Debug)]
pub(super) struct BodyError {
    pub(super) status: u16,
    pub(super) error: Error,
}

impl BodyError {
    pub(super) fn new(status: u16, code: Code, message: String) -> Self {
        let error = Error::new(code, message);
        BodyError { status, error }
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!(
            "the request body is larger than {limit} bytes, the limit set by max_body_bytes"
        );
        BodyError::new(413, Code::InvalidArgument, message)
    }

    pub(super) fn unsupported(message: String) -> Self {
        BodyError::new(415, Code::InvalidArgument, message)
    }

    fn bad(message: String) -> Self {
        BodyError::new(400, Code::InvalidArgument, message)
    }
}

/// Limits of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    pub(super) bytes: usize,
    pub(super) time: Duration,
}

/// Compressed bodies above this size are decompressed on another thread.
const INFLATE_IN_PLACE: usize = 64 << 10;

/// Reads a whole body, and decompresses it if necessary.
pub(super) async fn read(
    headers: &HeaderMap,
    payload: &mut Payload,
    limits: BodyLimits,
) -> Result<Bytes, BodyError> {
    check_length(headers, limits.bytes)?;
    let compressed = is_gzip(headers)?;
    let mut reading = pin!(collect(headers, payload, limits.bytes));
    // Most bodies arrive together with their head; only the others need a timer.
    let body = match reading.as_mut().now_or_never() {
        Some(body) => body,
        None => match tokio::time::timeout(limits.time, reading).await {
            Ok(body) => body,
            Err(_) => return Err(too_slow(limits.time)),
        },
    };
    let body = body?;
    if !compressed || body.is_empty() {
        return Ok(body);
    }
    let limit = limits.bytes;
    if body.len() <= INFLATE_IN_PLACE {
        return inflate(&body, limit);
    }
    let inflated = actix_web::rt::task::spawn_blocking(move || inflate(&body, limit)).await;
    inflated.unwrap_or_else(|_| {
        Err(BodyError::bad("the request body could not be decompressed".to_owned()))
    })
}

pub(super) fn too_slow(time: Duration) -> BodyError {
    let message =
        format!("the request body did not arrive within {} s (body_timeout)", time.as_secs_f32());
    BodyError::new(408, Code::DeadlineExceeded, message)
}

/// Checks the declared length, before a byte is read.
pub(super) fn check_length(headers: &HeaderMap, limit: usize) -> Result<(), BodyError> {
    match declared_length(headers) {
        Some(length) if length > limit => Err(BodyError::too_large(limit)),
        _ => Ok(()),
    }
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(super) fn is_gzip(headers: &HeaderMap) -> Result<bool, BodyError> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Ok(false);
    };
    match encoding.to_str().unwrap_or("?").trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(false),
        "gzip" | "x-gzip" => Ok(true),
        other => Err(BodyError::unsupported(format!(
            "content encoding {other:?} is not supported; send gzip or none"
        ))),
    }
}

/// The most memory that is allocated because of a declared length alone.
const TRUSTED_LENGTH: usize = 1 << 20;

async fn collect(
    headers: &HeaderMap,
    payload: &mut Payload,
    limit: usize,
) -> Result<Bytes, BodyError> {
    let broken =
        |error| BodyError::bad(format!("the request body is truncated or malformed: {error}"));
    let Some(first) = payload.next().await else {
        return Ok(Bytes::new());
    };
    let first = first.map_err(broken)?;
    // Most bodies arrive in one chunk, which is then used without a copy.
    let Some(second) = payload.next().await else {
        return if first.len() > limit { Err(BodyError::too_large(limit)) } else { Ok(first) };
    };
    let expected = declared_length(headers).unwrap_or(0).min(TRUSTED_LENGTH);
    let mut body = BytesMut::with_capacity(expected.max(first.len() * 2));
    body.extend_from_slice(&first);
    body.extend_from_slice(&second.map_err(broken)?);
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(broken)?;
        if body.len() + chunk.len() > limit {
            return Err(BodyError::too_large(limit));
        }
        body.extend_from_slice(&chunk);
    }
    if body.len() > limit {
        return Err(BodyError::too_large(limit));
    }
    Ok(body.freeze())
}

fn inflate(body: &[u8], limit: usize) -> Result<Bytes, BodyError> {
    let mut inflated = Vec::with_capacity(body.len().saturating_mul(3).min(limit));
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let read = MultiGzDecoder::new(body).take(most).read_to_end(&mut inflated);
    if let Err(error) = read {
        let message = format!(
            "the request body is not valid gzip, which its Content-Encoding header declares: {error}"
        );
        return Err(BodyError::bad(message));
    }
    if inflated.len() > limit {
        return Err(BodyError::too_large(limit));
    }
    Ok(inflated.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).expect("written");
        encoder.finish().expect("finished")
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = gzip(&vec![0; 10 << 20]);
        assert!(bomb.len() < 20_000);
        let error = inflate(&bomb, 1 << 20).expect_err("too large");
        assert_eq!(error.status, 413);
        let inflated = inflate(&gzip(b"hello"), 5).expect("fits exactly");
        assert_eq!(&inflated[..], b"hello");
    }

    #[test]
    fn damaged_gzip_is_an_error() {
        let mut damaged = gzip(b"hello hello hello");
        damaged.truncate(15);
        assert_eq!(inflate(&damaged, 100).expect_err("cut").status, 400);
        assert_eq!(inflate(b"plain", 100).expect_err("no gzip").status, 400);
    }
}
