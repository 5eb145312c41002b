//! What a thread costs.

use std::time::Duration;

use tensorserve_os as os;

/// Nanoseconds of this thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadCost {
    /// When this was read.
    pub(crate) at: u64,
    /// On a CPU.
    pub(crate) cpu: u64,
    /// Ready to run, without a CPU.
    pub(crate) waited: u64,
}

impl ThreadCost {
    /// What this thread has cost so far.
    pub(crate) fn read(now: u64) -> Self {
        let nanos = |time: Option<Duration>| {
            u64::try_from(time.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
        };
        let (cpu, waited) = (nanos(os::thread_cpu_time()), nanos(os::machine::thread_cpu_wait()));
        ThreadCost { at: now, cpu, waited }
    }

    /// The difference to an earlier reading.
    pub(crate) fn since(self, before: ThreadCost) -> Self {
        ThreadCost {
            at: self.at.saturating_sub(before.at),
            cpu: self.cpu.saturating_sub(before.cpu),
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_time_on_a_cpu() {
        let before = ThreadCost::read(0);
        let start = std::time::Instant::now();
        let mut sum = 0u64;
        while ThreadCost::read(0).since(before).cpu < 5_000_000 {
            (0..10_000u64).for_each(|n| sum = sum.wrapping_mul(31).wrapping_add(n));
            assert!(start.elapsed().as_secs() < 60, "{sum}");
        }
    }
}
