//! Runs of samples of requests before a version is ready, alone and together, to find out whether
//! outputs depend on the other requests of a batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use crate::batch::BatchQueue;
use tensorserve_os as os;
use tensorserve_platform::synthetic_samples;
use tensorserve_tensor::Signature;

/// The most time for the samples of one signature whose rows only the operator calls independent.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// How many times as long the samples of all signatures of a version may take.
const SIGNATURES: u32 = 4;

/// Runs samples of all signatures whose requests are joined, on a thread of low priority: requests to
/// other versions come first. Those of rows that are known to be independent take `second_look` at most. Blocks until
/// they have run.
pub(super) fn run(
    queues: &[(&Signature, &BatchQueue)],
    second_look: Duration,
    model: &str,
    version: i64,
) {
    let started = Instant::now();
    let work = || {
        os::lower_priority();
        for (signature, queue) in queues {
            if queue.takes_samples() {
                let limit = match signature.rows.is_independent() {
                    true => second_look,
                    false => FIRST_LOOK,
                };
                let end = (started + limit * SIGNATURES).min(Instant::now() + limit);
                queue.run_samples(synthetic_samples(signature), end);
            }
        }
    };
    if !queues.iter().any(|(_, queue)| queue.takes_samples()) {
        return;
    }
    thread::scope(|scope| {
        let work = || catch_unwind(AssertUnwindSafe(work));
        let named = thread::Builder::new().name("load samples".to_owned());
        let outcome = named.spawn_scoped(scope, work).map(thread::ScopedJoinHandle::join);
        if !matches!(outcome, Ok(Ok(Ok(())))) {
            log::warn!("{model} version {version}: samples of requests could not be run");
        }
    });
}
