//! Whether the requests of a signature may be joined, and what tests that.
//!
//! A model can mix the rows of a batch (for example by normalizing over it); then the outputs of a
//! request would depend on the other requests. With `mode = "on"` the operator has decided to
//! batch. In `auto` mode requests are joined where the graph proves that rows are independent, or
//! where the operator says so. Tests are a second net: [`samples`](super::samples) before a version
//! is ready; where only the operator's word stands, the first batches, of which each request is also
//! run alone; and in any case one batch in [`AUDIT_EVERY`]. One difference ends batching for the
//! signature; the wrong outputs are not returned.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::SignatureTraits;
use crate::config::{BatchConfig, BatchMode};
use tensorserve_tensor::RowDependence;

/// How many batches with equal outputs count as proof.
const PROOF: u32 = 3;

/// The most requests in a batch while batching is being verified.
const TRIAL_REQUESTS: usize = 4;

/// One batch in this many is tested again.
const AUDIT_EVERY: u32 = 4096;

/// Whether the requests of a signature are joined, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joining {
    /// Whether they are.
    pub joins: bool,
    /// The reason.
    pub why: String,
}

impl Joining {
    /// What these parameters mean for a signature that has not been run.
    #[must_use]
    pub fn of(config: &BatchConfig, traits: &SignatureTraits) -> Self {
        BatchVerification::new(config, traits).joining(traits)
    }
}

/// What joining rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// The mode is `off`.
    Off,
    /// The mode is `on`.
    Given,
    /// The mode is `on`, but an output may have no dimensions, and joined with others have one: a
    /// request gets the same outcome always only if it runs alone.
    Alone,
    /// The rows are known to be independent.
    Proven,
    /// The operator says that rows are independent.
    Claimed,
    /// Nothing: requests are not joined.
    None,
}

impl Ground {
    fn of(config: &BatchConfig, traits: &SignatureTraits) -> Self {
        match config.mode {
            BatchMode::Off => Ground::Off,
            BatchMode::On if traits.rows.is_independent() || !traits.may_be_scalar => Ground::Given,
            BatchMode::On => Ground::Alone,
            BatchMode::Auto if !traits.batchable || !traits.read_only => Ground::None,
            BatchMode::Auto if traits.rows.is_independent() => Ground::Proven,
            BatchMode::Auto if config.independent_rows => Ground::Claimed,
            BatchMode::Auto => Ground::None,
        }
    }

    /// Whether requests are put into batches, be it alone.
    fn batches(self) -> bool {
        !matches!(self, Ground::Off | Ground::None)
    }

    /// The reason, for people.
    fn why(self, traits: &SignatureTraits) -> String {
        let rows = &traits.rows;
        match self {
            Ground::Off => "batching is off".to_owned(),
            Ground::Given => "batching is on".to_owned(),
            Ground::Alone => "an output does not declare that it has dimensions".to_owned(),
            Ground::Claimed => {
                format!(
                    "rows = \"independent\" is set; the analysis of the model says that rows are {rows}"
                )
            }
            Ground::None if !traits.batchable => {
                "not every input and output declares an open 0-th dimension".to_owned()
            }
            Ground::None if rows.is_independent() => "it changes the state of the model".to_owned(),
            Ground::Proven | Ground::None => format!("rows are {rows}"),
        }
    }
}

/// The state of the verification for one signature.
pub(super) struct BatchVerification {
    ground: Ground,
    joins: AtomicBool,
    /// What ended batching.
    refuted: OnceLock<String>,
    /// Verified batches of equal requests, and of requests that differ.
    equal: AtomicU32,
    different: AtomicU32,
    since_audit: AtomicU32,
}

impl BatchVerification {
    pub(super) fn new(config: &BatchConfig, traits: &SignatureTraits) -> Self {
        let ground = Ground::of(config, traits);
        BatchVerification {
            ground,
            joins: AtomicBool::new(ground.batches()),
            refuted: OnceLock::new(),
            equal: AtomicU32::new(0),
            different: AtomicU32::new(0),
            since_audit: AtomicU32::new(0),
        }
    }

    /// The verification for the same signature with other parameters. As long as the mode is `auto`,
    /// the results so far are kept.
    pub(super) fn under(&self, config: &BatchConfig, traits: &SignatureTraits) -> Self {
        let next = BatchVerification::new(config, traits);
        if next.may_be_refuted() && self.may_be_refuted() {
            for (next, found) in [(&next.equal, &self.equal), (&next.different, &self.different)] {
                next.store(found.load(Relaxed), Relaxed);
            }
            if let Some(why) = self.refuted.get() {
                next.refute(why);
            }
        }
        next
    }

    /// Whether the operator has turned batching on.
    pub(super) fn is_given(&self) -> bool {
        matches!(self.ground, Ground::Given | Ground::Alone)
    }

    /// Whether joining rests on what is known of the rows.
    pub(super) fn is_proven(&self) -> bool {
        self.ground == Ground::Proven
    }

    /// Whether a difference of outputs ends joining.
    pub(super) fn may_be_refuted(&self) -> bool {
        matches!(self.ground, Ground::Proven | Ground::Claimed)
    }

    /// Whether requests may be batched at all, be it alone.
    pub(super) fn may_join(&self) -> bool {
        self.joins.load(Relaxed)
    }

    /// Whether requests are batched, and why.
    pub(super) fn joining(&self, traits: &SignatureTraits) -> Joining {
        let why = self.refuted.get().cloned().unwrap_or_else(|| self.ground.why(traits));
        Joining { joins: self.may_join() && self.ground != Ground::Alone, why }
    }

    /// Whether the operator joins requests of a signature whose graph mixes rows.
    pub(super) fn contradicts(&self, traits: &SignatureTraits) -> bool {
        self.ground == Ground::Claimed && matches!(traits.rows, RowDependence::Mixed(_))
    }

    /// The most requests in a batch.
    pub(super) fn most_requests(&self) -> usize {
        if self.ground == Ground::Alone {
            return 1;
        }
        let proven = self.ground != Ground::Claimed || self.different.load(Relaxed) >= PROOF;
        let half_proven = self.equal.load(Relaxed) >= PROOF;
        if proven || half_proven { usize::MAX } else { TRIAL_REQUESTS }
    }

    /// Whether a batch must be tested; `equal` if all its requests are equal.
    pub(super) fn must_test(&self, equal: bool) -> bool {
        if self.is_given() {
            return false;
        }
        let different = self.different.load(Relaxed);
        let seen = different >= PROOF || (equal && self.equal.load(Relaxed) >= PROOF);
        if !seen && self.ground == Ground::Claimed {
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
    pub(super) fn refute(&self, why: &str) -> bool {
        self.joins.store(false, Relaxed);
        self.refuted.set(why.to_owned()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::RowFinding;

    fn proven() -> SignatureTraits {
        let rows = RowDependence::Proven;
        let (batchable, read_only, may_be_scalar, unbounded) = (true, true, false, false);
        let (inputs, on_gpu) = ([None].into(), false);
        SignatureTraits { batchable, read_only, rows, inputs, may_be_scalar, unbounded, on_gpu }
    }

    fn opaque() -> SignatureTraits {
        SignatureTraits { rows: RowDependence::NoGraph, ..proven() }
    }

    fn mixed() -> SignatureTraits {
        let text = str::to_owned;
        let (node, op, why) = (text("model/mean"), text("Mean"), text("adds up the rows"));
        SignatureTraits { rows: RowDependence::Mixed(RowFinding { node, op, why }), ..proven() }
    }

    fn mode(mode: BatchMode) -> BatchConfig {
        BatchConfig { mode, ..BatchConfig::default() }
    }

    fn auto() -> BatchConfig {
        mode(BatchMode::Auto)
    }

    fn claimed() -> BatchConfig {
        BatchConfig { independent_rows: true, ..auto() }
    }

    fn new(config: &BatchConfig, traits: &SignatureTraits) -> BatchVerification {
        BatchVerification::new(config, traits)
    }

    #[test]
    fn unasked_only_independent_rows_of_what_does_not_write_are_joined() {
        let state = SignatureTraits { read_only: false, ..proven() };
        let fixed = SignatureTraits { batchable: false, ..proven() };
        assert!(new(&auto(), &proven()).may_join());
        for traits in [&state, &fixed, &opaque(), &mixed()] {
            assert!(!new(&auto(), traits).may_join(), "{traits:?}");
            assert!(new(&mode(BatchMode::On), traits).may_join());
        }
        assert!(!new(&mode(BatchMode::Off), &proven()).may_join());
        for traits in [&state, &fixed] {
            assert!(!new(&claimed(), traits).may_join(), "{traits:?}");
        }
    }

    #[test]
    fn a_request_whose_outputs_may_be_scalars_is_alone_in_its_batch() {
        let unclear = SignatureTraits { may_be_scalar: true, ..opaque() };
        let verification = new(&mode(BatchMode::On), &unclear);
        assert!(verification.is_given() && verification.may_join());
        assert_eq!(verification.most_requests(), 1);
        assert!(!verification.joining(&unclear).joins);
        let clear = SignatureTraits { may_be_scalar: true, ..proven() };
        assert_eq!(new(&mode(BatchMode::On), &clear).most_requests(), usize::MAX);
    }

    #[test]
    fn the_operators_word_counts_and_is_tested() {
        for traits in [&opaque(), &mixed()] {
            let verification = new(&claimed(), traits);
            assert!(verification.may_join());
            assert!(verification.must_test(false));
            assert_eq!(verification.most_requests(), TRIAL_REQUESTS);
        }
        assert!(new(&claimed(), &mixed()).contradicts(&mixed()));
        assert!(!new(&claimed(), &opaque()).contradicts(&opaque()));
        assert!(!new(&claimed(), &proven()).contradicts(&proven()));
    }

    #[test]
    fn the_reason_is_told() {
        let why = |config: &BatchConfig, traits: &SignatureTraits| {
            let joining = new(config, traits).joining(traits);
            (joining.joins, joining.why)
        };
        let text = str::to_owned;
        let graph = "rows are independent, proven from the graph";
        assert_eq!(why(&auto(), &proven()), (true, text(graph)));
        let mean = "rows are mixed: node \"model/mean\" (Mean) adds up the rows";
        assert_eq!(why(&auto(), &mixed()), (false, text(mean)));
        let said =
            format!("rows = \"independent\" is set; the analysis of the model says that {mean}");
        assert_eq!(why(&claimed(), &mixed()), (true, said));
        assert_eq!(why(&mode(BatchMode::Off), &proven()), (false, text("batching is off")));
        assert_eq!(why(&mode(BatchMode::On), &mixed()), (true, text("batching is on")));
        let state = SignatureTraits { read_only: false, ..proven() };
        assert_eq!(why(&auto(), &state), (false, text("it changes the state of the model")));
    }

    #[test]
    fn equal_requests_prove_nothing_about_different_ones() {
        let verification = new(&claimed(), &opaque());
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
    fn what_is_proven_is_audited() {
        let verification = new(&auto(), &proven());
        assert_eq!(verification.most_requests(), usize::MAX);
        let tested = (0..AUDIT_EVERY * 2).filter(|_| verification.must_test(false)).count();
        assert_eq!(tested, 2);
    }

    #[test]
    fn one_wrong_answer_ends_it_under_other_parameters_too() {
        let verification = new(&auto(), &proven());
        assert!(verification.refute("it differs"));
        assert!(!verification.refute("it differs again"));
        let larger = BatchConfig { max_batch_size: 128, ..auto() };
        for verification in [&verification, &verification.under(&larger, &proven())] {
            let want = Joining { joins: false, why: "it differs".to_owned() };
            assert_eq!(verification.joining(&proven()), want);
        }
        assert!(verification.under(&mode(BatchMode::On), &proven()).may_join());
    }
}
