//! Whether the runs of a version leave memory behind.

use tensorserve_os::machine;

/// Parts of the runs, each of which has to show it: requests of clients allocate at the same time, but not always during
/// the runs of one version.
const PARTS: usize = 8;

/// The fewest runs that tell something.
const LEAST_RUNS: usize = 8 * PARTS;

/// Less than this, in bytes, is no reason: allocators keep what they are given back in blocks.
const LEAST_GROWTH: i64 = 16 << 20;

/// How much the resident memory of the process grew during runs of one version, in bytes.
#[derive(Default)]
pub(super) struct RunGrowth(Vec<i64>);

impl RunGrowth {
    /// Runs `work`, and keeps by how much the process grew meanwhile.
    pub(super) fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = machine::resident_memory(None);
        let done = work();
        if let (Some(before), Some(after)) = (before, machine::resident_memory(None)) {
            self.0.push(after.cast_signed().saturating_sub(before.cast_signed()));
        }
        done
    }

    /// The later half of the runs: the first ones allocate what the others use again.
    fn later(&self) -> &[i64] {
        self.0.get(self.0.len() / 2..).unwrap_or_default()
    }

    /// Memory that each run of `new` leaves behind and those of `self` do not, over the later half of the runs, in
    /// bytes; `None` if it does not grow regularly, or too few ran.
    pub(super) fn leak_of(&self, new: &RunGrowth) -> Option<u64> {
        let runs: Vec<i64> =
            new.later().iter().zip(self.later()).map(|(new, old)| new - old).collect();
        if runs.len() < LEAST_RUNS / 2 {
            return None;
        }
        let mut parts: Vec<i64> = runs
            .chunks_exact(runs.len() / PARTS)
            .take(PARTS)
            .map(|part| part.iter().sum())
            .collect();
        parts.sort_unstable();
        // All but one: that one may have met a client's request that gave its memory back.
        let usual = *parts.get(1)?;
        let whole = usual.saturating_mul(PARTS.try_into().ok()?);
        (whole >= LEAST_GROWTH).then_some(whole.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(count: i64, of: impl Fn(i64) -> i64) -> RunGrowth {
        RunGrowth((0..count).map(of).collect())
    }

    #[test]
    fn a_regular_leak_is_found() {
        let steady = grown(200, |_| 0);
        assert_eq!(steady.leak_of(&grown(200, |_| 1 << 20)), Some(96 << 20));
        assert_eq!(steady.leak_of(&grown(200, |_| 0)), None);
        // The allocator takes blocks of 4 MiB from the system.
        let steady = grown(800, |_| 0);
        let in_blocks = grown(800, |run| if run % 16 == 0 { 4 << 20 } else { 0 });
        assert!(steady.leak_of(&in_blocks).is_some());
    }

    #[test]
    fn what_is_no_leak_is_not_taken_for_one() {
        let steady = grown(400, |_| 0);
        let first = grown(400, |run| if run < 150 { 1 << 20 } else { 0 });
        assert_eq!(steady.leak_of(&first), None, "the first runs allocate");
        let once = grown(400, |run| if run == 300 { 1 << 30 } else { 0 });
        assert_eq!(steady.leak_of(&once), None, "a client's request");
        let back_and_forth = grown(400, |run| if run % 2 == 0 { 8 << 20 } else { -(8 << 20) });
        assert_eq!(steady.leak_of(&back_and_forth), None);
        assert_eq!(
            grown(400, |_| 1 << 20).leak_of(&grown(400, |_| 1 << 20)),
            None,
            "as the old one"
        );
        assert_eq!(grown(40, |_| 0).leak_of(&grown(40, |_| 1 << 20)), None, "too few");
    }
}
