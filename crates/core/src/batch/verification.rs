//! Verifies that batching does not change a signature's outputs.
//!
//! A model can mix the rows of a batch (for example by normalizing over it); then the outputs of a
//! request would depend on the other requests. With `mode = "on"` the operator has decided to
//! batch. In `auto` mode this is tested: the requests of the first batches are also run one by one,
//! and the outputs are compared; the same is done for the first batches of unequal requests, and
//! for one batch in [`AUDIT_EVERY`] later. One difference ends batching for the signature; the
//! wrong outputs are not returned.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::SignatureTraits;
use crate::config::BatchMode;

/// How many batches with equal outputs count as proof.
const PROOF: u32 = 3;

/// The most requests in a batch while batching is being verified.
const TRIAL_REQUESTS: usize = 4;

/// One batch in this many is tested again.
const AUDIT_EVERY: u32 = 4096;

/// The state of the verification for one signature.
pub(super) struct BatchVerification {
    mode: BatchMode,
    joins: AtomicBool,
    /// Verified batches of equal requests, and of requests that differ.
    equal: AtomicU32,
    different: AtomicU32,
    since_audit: AtomicU32,
}

impl BatchVerification {
    pub(super) fn new(mode: BatchMode, traits: SignatureTraits) -> Self {
        let joins = match mode {
            BatchMode::Off => false,
            BatchMode::On => true,
            BatchMode::Auto => traits.batchable && traits.read_only,
        };
        BatchVerification {
            mode,
            joins: AtomicBool::new(joins),
            equal: AtomicU32::new(0),
            different: AtomicU32::new(0),
            since_audit: AtomicU32::new(0),
        }
    }

    /// The verification for the same signature in another mode. Between `auto` and `auto` the
    /// results so far are kept.
    pub(super) fn under(&self, mode: BatchMode, traits: SignatureTraits) -> Self {
        let next = BatchVerification::new(mode, traits);
        if mode == BatchMode::Auto && self.mode == BatchMode::Auto {
            for (next, found) in [(&next.equal, &self.equal), (&next.different, &self.different)] {
                next.store(found.load(Relaxed), Relaxed);
            }
            next.joins.store(self.may_join(), Relaxed);
        }
        next
    }

    /// Whether the operator has turned batching on.
    fn is_given(&self) -> bool {
        self.mode == BatchMode::On
    }

    /// Whether requests may be batched at all.
    pub(super) fn may_join(&self) -> bool {
        self.joins.load(Relaxed)
    }

    /// The most requests in a batch.
    pub(super) fn most_requests(&self) -> usize {
        let proven = self.is_given() || self.different.load(Relaxed) >= PROOF;
        let half_proven = self.equal.load(Relaxed) >= PROOF;
        if proven || half_proven { usize::MAX } else { TRIAL_REQUESTS }
    }

    /// Whether a batch must be tested; `equal` if all its requests are equal.
    pub(super) fn must_test(&self, equal: bool) -> bool {
        if self.is_given() {
            return false;
        }
        let different = self.different.load(Relaxed);
        let proven = different >= PROOF || (equal && self.equal.load(Relaxed) >= PROOF);
        if !proven {
            return true;
        }
        let count = self.since_audit.fetch_add(1, Relaxed);
        count % AUDIT_EVERY == AUDIT_EVERY - 1
    }

    /// Records that a tested batch had the right outputs.
    pub(super) fn agreed(&self, equal: bool) {
        let count = if equal { &self.equal } else { &self.different };
        count.fetch_add(1, Relaxed);
    }

    /// Ends batching. True for the first caller, which writes it to the log.
    pub(super) fn refute(&self) -> bool {
        self.joins.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: SignatureTraits =
        SignatureTraits { batchable: true, read_only: true, waits: false };

    #[test]
    fn what_may_write_or_declares_no_batch_is_not_joined_unasked() {
        let state = SignatureTraits { read_only: false, ..GOOD };
        let fixed = SignatureTraits { batchable: false, ..GOOD };
        assert!(BatchVerification::new(BatchMode::Auto, GOOD).may_join());
        assert!(!BatchVerification::new(BatchMode::Auto, state).may_join());
        assert!(!BatchVerification::new(BatchMode::Auto, fixed).may_join());
        assert!(BatchVerification::new(BatchMode::On, fixed).may_join());
        assert!(!BatchVerification::new(BatchMode::Off, GOOD).may_join());
    }

    #[test]
    fn equal_requests_prove_nothing_about_different_ones() {
        let verification = BatchVerification::new(BatchMode::Auto, GOOD);
        assert_eq!(verification.most_requests(), TRIAL_REQUESTS);
        for _ in 0..PROOF {
            assert!(verification.must_test(true));
            verification.agreed(true);
        }
        assert!(!verification.must_test(true));
        assert!(verification.must_test(false));
        assert_eq!(verification.most_requests(), usize::MAX);
        (0..PROOF).for_each(|_| verification.agreed(false));
        assert!(!verification.must_test(false));
    }

    #[test]
    fn proof_is_audited() {
        let verification = BatchVerification::new(BatchMode::Auto, GOOD);
        (0..PROOF).for_each(|_| verification.agreed(false));
        let tested = (0..AUDIT_EVERY * 2).filter(|_| verification.must_test(false)).count();
        assert_eq!(tested, 2);
    }

    #[test]
    fn one_wrong_answer_ends_it() {
        let verification = BatchVerification::new(BatchMode::Auto, GOOD);
        assert!(verification.refute());
        assert!(!verification.refute());
        assert!(!verification.may_join());
    }
}
