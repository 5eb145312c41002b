//! Reads request bodies, within limits of size, memory and time.

use std::future::{Future, poll_fn};
use std::io::{self, Read};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use bytes::buf::Reader;
use bytes::{Buf, Bytes, BytesMut};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use futures_util::{FutureExt, StreamExt};

use super::connection::RequestProgress;
use super::drain::{DrainPause, ListenerActivity};
use tensorserve_core::engine::large;
use tensorserve_tensor::ALIGNMENT;
use tensorserve_tensor::budget::{self, RequestBudget};
use tensorserve_tensor::error::{Code, Error};
use tokio::time::{Instant, sleep};

#[cfg(test)]
mod tests;

/// A head of up to this size is read in the memory that every request holds.
const SMALL_HEAD: usize = 4 << 10;

/// The memory that handlers may take for parts of a head of `bytes`: they copy names and types, into messages, too.
#[must_use]
pub fn head_memory(bytes: usize) -> usize {
    if bytes <= SMALL_HEAD { 0 } else { bytes.saturating_mul(4) }
}

/// Why a body was not read, and the status of the response.
#[derive(Debug)]
pub struct BodyError {
    /// The HTTP status.
    pub status: u16,
    /// The reason, for the client.
    pub error: Error,
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

impl From<Error> for BodyError {
    fn from(error: Error) -> Self {
        BodyError { status: error.http_status(), error }
    }
}

/// Limits of a body.
#[derive(Clone, Copy)]
pub struct BodyLimits<'a> {
    /// The most bytes, as received and as decompressed.
    bytes: usize,
    /// The time in which all of it must arrive.
    time: Duration,
    /// Its listener, and what arrives over its connection: while the listener ends, the client must not pause.
    arrival: Option<(&'a ListenerActivity, &'a RequestProgress)>,
}

impl<'a> BodyLimits<'a> {
    /// At most `bytes` bytes, as received and as decompressed, which all arrive within `time`.
    #[must_use]
    pub const fn new(bytes: usize, time: Duration) -> Self {
        BodyLimits { bytes, time, arrival: None }
    }

    /// These limits for a body that this listener receives over a connection with this progress.
    pub(super) fn over(
        self,
        activity: &'a ListenerActivity,
        progress: Option<&'a Rc<RequestProgress>>,
    ) -> Self {
        BodyLimits { arrival: progress.map(|progress| (activity, &**progress)), ..self }
    }

    pub(super) fn with_bytes(self, bytes: usize) -> Self {
        BodyLimits { bytes, ..self }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What `receiving` gives, if the client sends it in time.
    pub(super) async fn in_time<T>(
        &self,
        receiving: impl Future<Output = T>,
    ) -> Result<T, BodyError> {
        let began = Instant::now();
        let (mut receiving, mut alarm) = (pin!(receiving), pin!(sleep(self.time.min(SOON))));
        let (mut is_late, mut seen, mut drain) = (false, 0, None);
        poll_fn(|context| {
            if let Poll::Ready(received) = receiving.as_mut().poll(context) {
                return Poll::Ready(Ok(received));
            }
            if !is_late {
                ready!(alarm.as_mut().poll(context));
                is_late = true;
                alarm.as_mut().reset(began + self.time);
                drain = self.arrival.map(|(activity, progress)| {
                    seen = progress.reads();
                    (DrainPause::new(activity.clone()), progress)
                });
            }
            if alarm.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(too_slow(self.time)));
            }
            let Some((drain, progress)) = &mut drain else {
                return Poll::Pending;
            };
            if std::mem::replace(&mut seen, progress.reads()) != progress.reads() {
                drain.moved();
            }
            let stopped = |()| Err(BodyError::new(503, Code::Unavailable, NO_MORE.to_owned()));
            drain.poll_over(context).map(stopped)
        })
        .await
    }
}

/// Most bodies arrive within this time. Only others ask their listener to tell when it ends: all threads share that.
const SOON: Duration = Duration::from_millis(20);

/// The error of a body whose client pauses while its listener ends.
const NO_MORE: &str = "the server is shutting down, and the request body does not arrive";

/// The rest of a body that becomes larger than this is decompressed on a thread for large requests.
const INFLATE_IN_PLACE: usize = 256 << 10;

/// The memory that a request will probably need besides its body, in bytes per byte of it: its
/// tensors, and its response.
const EXPECTED_GROWTH: usize = 2;

/// How long a request waits for memory that other requests use, and how often it looks.
const MEMORY_PATIENCE: Duration = Duration::from_millis(250);
const MEMORY_POLL: Duration = Duration::from_millis(10);

/// Makes `attempt`, and repeats it for a while if the server has no memory for the request now.
async fn with_patience(attempt: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
    match attempt() {
        // Boxed: it would make the future of every request larger.
        Err(error) if error.is_overload() => Box::pin(repeated(attempt)).await,
        outcome => outcome,
    }
}

async fn repeated(attempt: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
    let end = Instant::now() + MEMORY_PATIENCE;
    loop {
        sleep(MEMORY_POLL).await;
        let outcome = attempt();
        if !outcome.as_ref().is_err_and(Error::is_overload) || Instant::now() >= end {
            return outcome;
        }
    }
}

/// Reads a whole body, and decompresses it if necessary. What it takes is reserved in `budget`. If it
/// arrives in pieces, its byte number `tensors_at()` is aligned for the runtimes.
///
/// # Errors
/// If it exceeds `limits`, is truncated, is not what its headers declare, or has an encoding that is not
/// supported; if there is no memory for it.
pub async fn read(
    headers: &HeaderMap,
    payload: &mut Payload,
    limits: BodyLimits<'_>,
    budget: &RequestBudget,
    tensors_at: impl Fn() -> usize,
) -> Result<Bytes, BodyError> {
    check_length(headers, limits.bytes)?;
    let compression = compression_of(headers)?;
    let declared = declared_length(headers).unwrap_or(0);
    if declared > TRUSTED_LENGTH {
        // Refused now, it costs nothing: not the time to receive it, and not memory that others need.
        let expected = declared.saturating_mul(1 + EXPECTED_GROWTH);
        Box::pin(with_patience(|| budget.would_fit(expected))).await?;
    }
    let mut reading = pin!(collect(headers, payload, limits.bytes, budget, tensors_at));
    // Most bodies arrive together with their head; only the others need a timer.
    let body = match reading.as_mut().now_or_never() {
        Some(body) => body,
        None => limits.in_time(reading).await?,
    };
    let body = body?;
    let body = match compression {
        Some(compression) if !body.is_empty() => {
            inflated(body, compression, limits.bytes, budget).await?
        }
        _ => body,
    };
    let expected = body.len().saturating_mul(EXPECTED_GROWTH);
    with_patience(|| budget.expect(expected)).await?;
    Ok(body)
}

async fn inflated(
    body: Bytes,
    compression: BodyCompression,
    limit: usize,
    budget: &RequestBudget,
) -> Result<Bytes, BodyError> {
    let mut inflation = Inflation::new(body, compression, limit);
    if budget.enter(|| inflation.run(INFLATE_IN_PLACE))? {
        return Ok(inflation.inflated.into());
    }
    let budget = budget.clone();
    let rest = move || {
        budget.enter(|| inflation.run(usize::MAX))?;
        Ok(inflation.inflated.into())
    };
    large::run(rest).await?
}

/// The largest body that is received although its route ignores it: the connection then stays
/// usable.
const SMALL: usize = 4 << 10;

/// Skips a body that its route ignores: receives a small one, and leaves any other to the HTTP
/// library, which discards it or closes the connection after the response.
pub(super) async fn skip(
    headers: &HeaderMap,
    mut payload: Payload,
    limits: BodyLimits<'_>,
) -> Result<(), BodyError> {
    match declared_length(headers) {
        Some(1..=SMALL) => {}
        _ => return Ok(()),
    }
    let skipping = async { while let Some(Ok(_)) = payload.next().await {} };
    limits.in_time(skipping).await
}

fn too_slow(time: Duration) -> BodyError {
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

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyCompression {
    Gzip,
    /// In zlib's format, as RFC 9110 has it.
    Deflate,
}

pub(super) fn compression_of(headers: &HeaderMap) -> Result<Option<BodyCompression>, BodyError> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Ok(None);
    };
    match encoding.to_str().unwrap_or("?").trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(BodyCompression::Gzip)),
        "deflate" => Ok(Some(BodyCompression::Deflate)),
        other => Err(BodyError::unsupported(format!(
            "content encoding {other:?} is not supported; send gzip, deflate or none"
        ))),
    }
}

/// The most memory that is allocated because of a declared length alone.
const TRUSTED_LENGTH: usize = 1 << 20;

async fn collect(
    headers: &HeaderMap,
    payload: &mut Payload,
    limit: usize,
    budget: &RequestBudget,
    tensors_at: impl Fn() -> usize,
) -> Result<Bytes, BodyError> {
    let broken =
        |error| BodyError::bad(format!("the request body is truncated or malformed: {error}"));
    let Some(first) = payload.next().await else {
        return Ok(Bytes::new());
    };
    let first = first.map_err(broken)?;
    with_patience(|| budget.reserve(first.len())).await?;
    // Most bodies arrive in one chunk, which is then used without a copy.
    let Some(second) = payload.next().await else {
        return if first.len() > limit { Err(BodyError::too_large(limit)) } else { Ok(first) };
    };
    let declared = declared_length(headers).unwrap_or(0);
    let expected = declared.min(TRUSTED_LENGTH);
    let second = second.map_err(broken)?;
    let capacity = expected.max(first.len() * 2 + second.len());
    with_patience(|| budget.reserve(capacity)).await?;
    let tensors_at = tensors_at();
    let mut body = buffer(capacity, tensors_at)?;
    body.extend_from_slice(&first);
    body.extend_from_slice(&second);
    // The HTTP library receives more in their memory.
    drop((first, second));
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(broken)?;
        if body.len() + chunk.len() > limit {
            return Err(BodyError::too_large(limit));
        }
        if body.capacity() - body.len() < chunk.len() {
            let more = growth(&body, chunk.len(), declared);
            with_patience(|| budget.reserve(more)).await?;
            grow(&mut body, more, tensors_at).await?;
        }
        append(&mut body, chunk).await;
    }
    if body.len() > limit {
        return Err(BodyError::too_large(limit));
    }
    Ok(body.freeze())
}

/// An empty buffer for `capacity` bytes, in which the byte at `tensors_at` is aligned for the runtimes.
///
/// # Errors
/// If the process has no memory left.
fn buffer(capacity: usize, tensors_at: usize) -> Result<BytesMut, Error> {
    if capacity < WORTH_ALIGNING {
        return Ok(BytesMut::with_capacity(capacity));
    }
    let mut memory = Vec::new();
    memory.try_reserve_exact(capacity + ALIGNMENT).map_err(|_| budget::exhausted())?;
    // Takes the memory over, also what is not used yet.
    let mut body = BytesMut::from(Bytes::from(memory));
    if tensors_at > 0 {
        let start = body.as_ptr().addr().wrapping_add(tensors_at) % ALIGNMENT;
        body.resize((ALIGNMENT - start) % ALIGNMENT, 0);
    }
    Ok(body.split_off(body.len()))
}

/// The smallest body whose tensors are aligned: those of a smaller one are copied in less time.
const WORTH_ALIGNING: usize = 4 << 10;

/// The bytes of a body after which other connections get their turn, which costs a fraction of a millisecond: a client
/// on a fast network sends as fast as its body is read.
const TURN: usize = 256 << 10;

/// By how much the buffer of a body grows to take `chunk` bytes: it doubles, but not beyond the length that the
/// head declares.
fn growth(body: &BytesMut, chunk: usize, declared: usize) -> usize {
    let doubled = body.capacity().max(chunk);
    let left = declared.saturating_sub(body.len());
    if left >= chunk { doubled.min(left) } else { doubled }
}

/// Appends `chunk`, for which there is room.
async fn append(body: &mut BytesMut, chunk: Bytes) {
    let turns = body.len() / TURN;
    body.extend_from_slice(&chunk);
    // The HTTP library receives more in its memory, and in larger pieces.
    drop(chunk);
    if body.len() / TURN > turns {
        tokio::task::yield_now().await;
    }
}

/// Makes room for `more` bytes, in a buffer as [`buffer`] makes it. An allocator that moves 32 MiB at once holds up
/// the other connections for 20 ms.
///
/// # Errors
/// If the process has no memory left.
async fn grow(body: &mut BytesMut, more: usize, tensors_at: usize) -> Result<(), Error> {
    let mut larger = buffer(body.len() + more, tensors_at)?;
    for part in body.chunks(TURN) {
        larger.extend_from_slice(part);
        if part.len() == TURN {
            tokio::task::yield_now().await;
        }
    }
    *body = larger;
    Ok(())
}

/// The most bytes that are decompressed between two looks at the budget.
const INFLATE_STEP: usize = 256 << 10;

enum BodyDecoder {
    Gzip(MultiGzDecoder<Reader<Bytes>>),
    Deflate(ZlibDecoder<Reader<Bytes>>),
}

impl Read for BodyDecoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            BodyDecoder::Gzip(decoder) => decoder.read(buffer),
            BodyDecoder::Deflate(decoder) => decoder.read(buffer),
        }
    }
}

/// A body that is being decompressed.
struct Inflation {
    decoder: BodyDecoder,
    /// The most bytes in one step, and at first: about what most bodies become.
    first_step: usize,
    inflated: Vec<u8>,
    limit: usize,
}

impl Inflation {
    fn new(body: Bytes, compression: BodyCompression, limit: usize) -> Self {
        let first_step = body.len().clamp(1, INFLATE_STEP);
        let decoder = match compression {
            BodyCompression::Gzip => BodyDecoder::Gzip(MultiGzDecoder::new(body.reader())),
            BodyCompression::Deflate => BodyDecoder::Deflate(ZlibDecoder::new(body.reader())),
        };
        Inflation { decoder, first_step, inflated: Vec::new(), limit }
    }

    /// Goes on to the end, or until there are at least `bytes`. Returns whether it is at the end.
    fn run(&mut self, bytes: usize) -> Result<bool, BodyError> {
        while self.inflated.len() < bytes {
            let step = self.inflated.len().clamp(self.first_step, INFLATE_STEP);
            budget::grow(&mut self.inflated, step)?;
            let most = u64::try_from(step).unwrap_or(u64::MAX);
            let read = self.decoder.by_ref().take(most).read_to_end(&mut self.inflated);
            if read.map_err(|error| self.damaged(error))? == 0 {
                return Ok(true);
            }
            if self.inflated.len() > self.limit {
                return Err(BodyError::too_large(self.limit));
            }
        }
        Ok(false)
    }

    fn damaged(&self, error: io::Error) -> BodyError {
        let name = match self.decoder {
            BodyDecoder::Gzip(_) => "gzip",
            BodyDecoder::Deflate(_) => "deflate",
        };
        BodyError::bad(format!(
            "the request body is not valid {name}, which its Content-Encoding header declares: {error}"
        ))
    }
}
