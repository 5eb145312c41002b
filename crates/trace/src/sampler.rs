//! Which requests are recorded.

use crate::context::{TraceContext, TraceId, random};

/// The share of something, of 2^63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// All of it.
    pub const ALL: Rate = Rate(1 << 63);
    /// Nothing of it.
    pub const NONE: Rate = Rate(0);

    /// A share from 0 to 1; `None` for any other number.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub fn new(share: f64) -> Option<Self> {
        // 2^63 itself for 1. The product is not negative.
        (0.0..=1.0).contains(&share).then_some(Rate((share * (1_u64 << 63) as f64) as u64))
    }

    /// Whether a random choice is within the share.
    #[must_use]
    pub fn hits(self) -> bool {
        self == Rate::ALL || (self.0 > 0 && random() >> 1 < self.0)
    }

    /// Whether a trace is within the share: equal for all its spans, in every process that uses the
    /// same share.
    fn includes(self, trace: TraceId) -> bool {
        trace.sampled_bits() < self.0
    }
}

/// Which requests become part of a trace. Source: the samplers of OpenTelemetry's SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSampler {
    /// The share of traces that begin here, and of all others unless the parent decides.
    pub rate: Rate,
    /// Do as the caller does, if it sends a `traceparent`.
    pub parent_based: bool,
}

impl TraceSampler {
    /// Whether a request of the trace `trace` is recorded.
    #[must_use]
    pub fn samples(&self, trace: TraceId, parent: Option<&TraceContext>) -> bool {
        match parent {
            Some(parent) if self.parent_based => parent.sampled,
            _ => self.rate.includes(trace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_from_0_to_1() {
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Rate::new(wrong), None, "{wrong}");
        }
        assert_eq!(Rate::new(1.0), Some(Rate::ALL));
        assert!((0..1000).all(|_| Rate::ALL.hits()));
        assert!(!(0..1000).any(|_| Rate::new(0.0).unwrap().hits()));
    }

    #[test]
    fn a_share_of_traces_is_sampled() {
        let sampler = TraceSampler { rate: Rate::new(0.25).unwrap(), parent_based: true };
        let sampled = (0..40_000).filter(|_| sampler.samples(TraceId::random(), None)).count();
        // 10,000; the bounds are more than 11 standard deviations away.
        assert!((9_000..11_000).contains(&sampled), "{sampled}");
        let hits = (0..40_000).filter(|_| sampler.rate.hits()).count();
        assert!((9_000..11_000).contains(&hits), "{hits}");
        // As other SDKs decide for this identifier: its lower half is above a quarter.
        let high = TraceId([0xff; 16]);
        assert!(!sampler.samples(high, None));
        assert!(TraceSampler { rate: Rate::ALL, ..sampler }.samples(high, None));
    }

    #[test]
    fn the_parent_decides_if_it_may() {
        let of = |sampled| TraceContext {
            trace: TraceId::random(),
            span: crate::SpanId::random(),
            sampled,
            random: false,
        };
        let (never, always) = (Rate::new(0.0).unwrap(), Rate::ALL);
        for sampled in [false, true] {
            let parent = of(sampled);
            for rate in [never, always] {
                let sampler = TraceSampler { rate, parent_based: true };
                assert_eq!(sampler.samples(parent.trace, Some(&parent)), sampled);
                let sampler = TraceSampler { rate, parent_based: false };
                assert_eq!(sampler.samples(parent.trace, Some(&parent)), rate == always);
            }
        }
    }
}
