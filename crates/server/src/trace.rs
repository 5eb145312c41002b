//! Tracing of single requests: their ids and timings.
//!
//! A client's `X-Request-Id` is used if it is well formed; otherwise one is generated. It is sent
//! back, and logged with errors. `Server-Timing` is sent on request. A server that replaces another
//! one sends neither unless requested.

use std::time::{Duration, Instant};

use actix_web::HttpResponseBuilder;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::config::HttpConfig;
use tensorserve_core::engine::RunTiming;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// The header in which AWS clients expect the id.
const AMZN_REQUEST_ID: &str = "x-amzn-requestid";
/// The header with which a client requests `Server-Timing`.
const WANTS_TIMING: HeaderName = HeaderName::from_static("x-server-timing");

/// A longer id is ignored: it would be repeated in the response and in the log.
const LONGEST_ID: usize = 128;

/// What is sent without a request for it.
#[derive(Clone, Copy)]
pub(super) struct Tracing {
    /// Generate ids for requests without one.
    makes_ids: bool,
    /// Send timings with every response.
    timing: bool,
}

impl Tracing {
    pub(super) fn new(config: &HttpConfig) -> Self {
        Tracing { makes_ids: config.request_ids, timing: config.server_timing }
    }

    /// The trace of a request with these headers.
    pub(super) fn of(self, headers: &HeaderMap) -> Trace {
        let brought = headers.get(REQUEST_ID).filter(|id| is_well_formed(id.as_bytes()));
        let is_brought = brought.is_some();
        let id = brought.cloned().or_else(|| self.makes_ids.then(new_id).flatten());
        let asked = headers.get(WANTS_TIMING).is_some_and(|value| value.as_bytes() == b"1");
        Trace { id, is_brought, timing: self.timing || asked }
    }
}

/// The id of one request, and what its response contains.
pub(super) struct Trace {
    id: Option<HeaderValue>,
    /// The client sent it.
    is_brought: bool,
    timing: bool,
}

impl Trace {
    /// The request's id; empty if it has none.
    pub(super) fn id(&self) -> &str {
        self.id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default()
    }

    /// Makes this id and the one in the protocol's own header, if there is one, the same: the
    /// client's, if it sent one.
    pub(super) fn agree(&mut self, headers: &mut [(&'static str, String)]) {
        let Some((_, other)) = headers.iter_mut().find(|(name, _)| *name == AMZN_REQUEST_ID) else {
            return;
        };
        if self.is_brought {
            self.id().clone_into(other);
        } else if self.id.is_some() {
            self.id = HeaderValue::from_str(other).ok();
        }
    }

    /// Adds the headers to the response to a request that began at `start`; `run` is the timing of
    /// the model's run.
    pub(super) fn report(
        self,
        response: &mut HttpResponseBuilder,
        start: Instant,
        run: Option<RunTiming>,
    ) {
        if self.timing {
            response.insert_header((SERVER_TIMING, server_timing(run, start.elapsed())));
        }
        if let Some(id) = self.id {
            response.insert_header((REQUEST_ID, id));
        }
    }
}

/// The value of `Server-Timing`, in milliseconds.
fn server_timing(run: Option<RunTiming>, total: Duration) -> String {
    let total = millis(total);
    match run {
        None => format!("total;dur={total:.3}"),
        Some(RunTiming { queue_delay, run }) => {
            let (queue, run) = (millis(queue_delay), millis(run));
            format!("queue;dur={queue:.3}, run;dur={run:.3}, total;dur={total:.3}")
        }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Whether an id is valid in a header and in a log line.
fn is_well_formed(id: &[u8]) -> bool {
    (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// 16 random hexadecimal digits.
fn new_id() -> Option<HeaderValue> {
    let random = tensorserve_trace::random();
    let mut digits = [0; 16];
    for (index, digit) in digits.iter_mut().enumerate() {
        let nibble = (random >> (4 * index)) & 15;
        *digit = b"0123456789abcdef".get(nibble as usize).copied().unwrap_or(b'0');
    }
    HeaderValue::from_bytes(&digits).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn made_ids_are_well_formed_and_differ() {
        let ids: HashSet<_> = (0..10_000).filter_map(|_| new_id()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| is_well_formed(id.as_bytes()) && id.len() == 16));
    }

    #[test]
    fn ids_of_clients_must_fit_a_header_and_a_log() {
        assert!(is_well_formed(b"6f1c-8d/2~{}"));
        assert!(is_well_formed(&[b'a'; 128]));
        for wrong in [&b""[..], b"a b", b"a\tb", b"\xc3\xa9", &[b'a'; 129]] {
            assert!(!is_well_formed(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn times_are_in_milliseconds() {
        let (queue_delay, run) = (Duration::from_micros(12), Duration::from_millis(3));
        let run = RunTiming { queue_delay, run };
        let text = server_timing(Some(run), Duration::from_micros(3500));
        assert_eq!(text, "queue;dur=0.012, run;dur=3.000, total;dur=3.500");
        assert_eq!(server_timing(None, Duration::ZERO), "total;dur=0.000");
    }
}
