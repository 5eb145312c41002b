//! Identifiers of traces and spans, and their W3C headers.
//!
//! Source: W3C Trace Context, level 1 (`traceparent`, `tracestate`); level 2 (the random flag).

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The header with the identifiers of the caller's span.
pub const TRACEPARENT: &str = "traceparent";
/// The header with the tracing systems' own data.
pub const TRACESTATE: &str = "tracestate";

/// A longer `tracestate` is not passed on. Source: Trace Context, 3.3.1.5: at least 512 characters.
const LONGEST_STATE: usize = 512;

/// The flag of a trace that its caller records.
const SAMPLED: u8 = 1;
/// The flag of a trace whose identifier is random.
const RANDOM: u8 = 2;

/// The identifier of a trace; not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

/// The identifier of a span; not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    /// A random identifier.
    #[must_use]
    pub fn random() -> Self {
        let (high, low) = (random(), random().max(1));
        TraceId(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
    }

    /// The part of it that samplers compare: uniformly distributed over 63 bits.
    pub(crate) fn sampled_bits(self) -> u64 {
        let low = u128::from_be_bytes(self.0) & u128::from(u64::MAX);
        u64::try_from(low).unwrap_or(0) >> 1
    }
}

impl SpanId {
    /// A random identifier.
    #[must_use]
    pub fn random() -> Self {
        SpanId(random().max(1).to_be_bytes())
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// A span, as other spans refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace that it belongs to.
    pub trace: TraceId,
    /// Its own identifier.
    pub span: SpanId,
    /// Whether it is recorded.
    pub sampled: bool,
    /// Whether the identifier of the trace is random.
    pub random: bool,
}

impl TraceContext {
    /// Reads a `traceparent` header; `None` if it is malformed, and a new trace is to begin.
    #[must_use]
    pub fn parse(header: &[u8]) -> Option<Self> {
        let (head, rest) = header.split_at_checked(55)?;
        let [v1, v2, b'-', ids @ .., f1, f2] = head else {
            return None;
        };
        let version = hex(&[*v1, *v2])?;
        // Later versions may add fields.
        if version == 0xff || (version == 0 && !rest.is_empty()) {
            return None;
        }
        if rest.first().is_some_and(|byte| *byte != b'-') {
            return None;
        }
        let (trace, after) = ids.split_at_checked(32)?;
        let [b'-', span @ .., b'-'] = after else {
            return None;
        };
        let (trace, span) = (hex(trace)?, hex(span)?);
        let flags = u8::try_from(hex(&[*f1, *f2])?).ok()?;
        if trace == 0 || span == 0 {
            return None;
        }
        let span = u64::try_from(span).ok()?;
        Some(TraceContext {
            trace: TraceId(trace.to_be_bytes()),
            span: SpanId(span.to_be_bytes()),
            sampled: flags & SAMPLED != 0,
            random: flags & RANDOM != 0,
        })
    }

    /// A span of a new trace that is recorded.
    #[must_use]
    pub fn root() -> Self {
        let (trace, span) = (TraceId::random(), SpanId::random());
        TraceContext { trace, span, sampled: true, random: true }
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn child(self) -> Self {
        TraceContext { span: SpanId::random(), ..self }
    }

    /// The flags of its header.
    #[must_use]
    pub fn flags(self) -> u8 {
        (u8::from(self.sampled) * SAMPLED) | (u8::from(self.random) * RANDOM)
    }
}

impl fmt::Display for TraceContext {
    /// The value of a `traceparent` header.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags())
    }
}

/// The caller's span and the data that travels with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceParent<'a> {
    /// The caller's span, if there is a well-formed `traceparent`.
    pub context: Option<TraceContext>,
    /// `tracestate`, if it can be passed on.
    pub state: Option<&'a str>,
}

impl<'a> TraceParent<'a> {
    /// Reads the headers of a request. `tracestate` means nothing without `traceparent`.
    #[must_use]
    pub fn of(parent: Option<&[u8]>, state: Option<&'a [u8]>) -> Self {
        let context = parent.and_then(TraceContext::parse);
        let state = state.filter(|_| context.is_some()).and_then(passable_state);
        TraceParent { context, state }
    }
}

/// A `tracestate` that may become a header again. Its members are opaque and not looked at.
pub(crate) fn passable_state(state: &[u8]) -> Option<&str> {
    let is_passable = (1..=LONGEST_STATE).contains(&state.len())
        && state.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    std::str::from_utf8(state).ok().filter(|_| is_passable)
}

/// The number that these lower-case hexadecimal digits write.
fn hex(digits: &[u8]) -> Option<u128> {
    let mut number = 0;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        number = (number << 4) | u128::from(value);
    }
    Some(number)
}

/// A random number: of good distribution, not for secrets (SplitMix64).
pub fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
    }
    let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parse(text: &str) -> Option<TraceContext> {
        TraceContext::parse(text.as_bytes())
    }

    #[test]
    fn a_header_is_read_and_written() {
        let context = parse(GOOD).unwrap();
        assert_eq!(context.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span.to_string(), "00f067aa0ba902b7");
        assert!(context.sampled && !context.random);
        assert_eq!(context.to_string(), GOOD);
        let child = context.child();
        assert_eq!(child.trace, context.trace);
        assert_ne!(child.span, context.span);
        assert_eq!(parse(&child.to_string()), Some(child));
        for (flags, sampled, random) in
            [("00", false, false), ("03", true, true), ("fe", false, true)]
        {
            let context = parse(&format!("{}{flags}", &GOOD[..53])).unwrap();
            assert_eq!((context.sampled, context.random), (sampled, random), "{flags}");
        }
    }

    #[test]
    fn later_versions_may_have_more_fields() {
        let later = GOOD.replacen("00", "cc", 1);
        assert!(parse(&later).is_some());
        assert!(parse(&format!("{later}-what-the-future-brings")).is_some());
        assert!(parse(&format!("{later}what")).is_none());
    }

    #[test]
    fn malformed_headers_begin_a_new_trace() {
        let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let zero_span = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16));
        let more = format!("{GOOD}-more");
        let forbidden = GOOD.replacen("00", "ff", 1);
        let (upper, minus) = (GOOD.to_uppercase(), GOOD.replace('-', "_"));
        let spaces = format!(" {GOOD}");
        let wrong: [&str; 10] = [
            "",
            "00",
            &GOOD[..54],
            &zero_trace,
            &zero_span,
            &more,
            &forbidden,
            &upper,
            &minus,
            &spaces,
        ];
        for text in wrong {
            assert_eq!(parse(text), None, "{text}");
        }
        for at in 0..GOOD.len() {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[at] = 0xff;
            assert_eq!(TraceContext::parse(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn state_is_passed_on_with_a_parent_only() {
        let of = |parent: &'static str, state: &'static [u8]| {
            TraceParent::of(Some(parent.as_bytes()), Some(state)).state
        };
        assert_eq!(of(GOOD, b"a=1,b=2"), Some("a=1,b=2"));
        assert_eq!(of("00-x", b"a=1"), None);
        assert_eq!(of(GOOD, b"a=\r\nX: y"), None);
        assert_eq!(of(GOOD, &[b'a'; 513]), None);
        assert_eq!(of(GOOD, b"\xc3\xa9=1"), None);
        assert_eq!(of(GOOD, b""), None);
    }

    #[test]
    fn random_identifiers_differ() {
        let ids: std::collections::HashSet<_> =
            (0..10_000).map(|_| TraceId::random().0).chain([[0; 16]]).collect();
        assert_eq!(ids.len(), 10_001);
    }
}
