//! How busy something is: how many runs are in progress and how long all runs have taken, in one
//! number, so that both are read together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tensorserve_tensor::sharded::ShardedNumber;

/// The bits for the number of runs in progress. The others are for microseconds: enough for nine
/// years, and then they begin again.
const COUNT_BITS: u32 = 16;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const MICROS: u64 = u64::MAX >> COUNT_BITS;

/// The runs of one signature. A run adds twice to one number, on one thread.
pub(super) struct Activity {
    epoch: Instant,
    /// The number of runs in progress and, above it, the sum of all ends minus the sum of all
    /// beginnings, in microseconds since `epoch`.
    state: ShardedNumber,
}

impl Default for Activity {
    fn default() -> Self {
        Activity { epoch: Instant::now(), state: ShardedNumber::default() }
    }
}

impl Activity {
    fn shifted_micros(&self, at: Instant) -> u64 {
        self.micros(at) << COUNT_BITS
    }

    #[allow(clippy::cast_possible_truncation)] // Half a million years.
    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_micros() as u64
    }

    /// A run began.
    pub(super) fn begin(&self, at: Instant) {
        self.state.add(1_u64.wrapping_sub(self.shifted_micros(at)));
    }

    /// A run ended.
    pub(super) fn end(&self, at: Instant) {
        self.state.add(self.shifted_micros(at).wrapping_sub(1));
    }

    /// The time that runs have taken together, those in progress included.
    pub(super) fn time(&self) -> RunMicros {
        let state = self.state.sum();
        let of_running = (state & COUNT).wrapping_mul(self.micros(Instant::now()));
        RunMicros((state >> COUNT_BITS).wrapping_add(of_running) & MICROS)
    }
}

/// The microseconds of runs, modulo the size of their counter.
#[derive(Clone, Copy, Default)]
pub(super) struct RunMicros(u64);

impl RunMicros {
    /// The time from `before` to this moment.
    fn since(self, before: RunMicros) -> Duration {
        let micros = self.0.wrapping_sub(before.0) & MICROS;
        // A clock that was read a moment early must not look like years.
        Duration::from_micros(if micros > MICROS / 2 { 0 } else { micros })
    }
}

/// The time over which [`RecentActivity`] is measured.
const WINDOW: Duration = Duration::from_secs(15);

/// An [`Activity`] at the beginnings of the last seconds.
pub(super) struct RecentActivity(VecDeque<(Instant, RunMicros)>);

impl Default for RecentActivity {
    fn default() -> Self {
        RecentActivity(VecDeque::from([(Instant::now(), RunMicros::default())]))
    }
}

impl RecentActivity {
    /// Remembers the present state. Called once a second.
    pub(super) fn note(&mut self, now: Instant, time: RunMicros) {
        // The oldest one that stays begins the window.
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back((now, time));
    }

    /// The seconds of runs per second in the last 15 to 16 seconds, or since it exists.
    pub(super) fn per_second(&self, now: Instant, time: RunMicros) -> f64 {
        let Some((start, before)) = self.0.front() else {
            return 0.0;
        };
        let seconds = now.saturating_duration_since(*start).as_secs_f64();
        if seconds > 0.0 { time.since(*before).as_secs_f64() / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 0.001, "{found} is not {wanted}");
    }

    #[test]
    fn runs_count_when_they_have_ended_and_while_they_last() {
        let activity = Activity::default();
        let ago = |seconds| activity.epoch + Duration::from_secs(seconds);
        activity.begin(ago(1));
        activity.begin(ago(2));
        activity.end(ago(5));
        assert_eq!(activity.state.sum() & COUNT, 1);
        activity.end(ago(6));
        let ended = activity.time();
        assert_near(ended.since(RunMicros::default()).as_secs_f64(), 8.0);
        let start = Instant::now();
        activity.begin(start);
        std::thread::sleep(Duration::from_millis(30));
        let running = activity.time().since(ended);
        // The begin of the run is cut to microseconds.
        let longest = start.elapsed() + Duration::from_micros(2);
        assert!(running >= Duration::from_millis(29) && running <= longest, "{running:?}");
    }

    #[test]
    fn the_window_is_fifteen_seconds() {
        let mut recent = RecentActivity::default();
        let start = recent.0[0].0;
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        // Busy for the first ten seconds, then idle.
        let time = |seconds: u64| RunMicros(seconds.min(10) * 1_000_000);
        assert_near(recent.per_second(at(0), time(0)), 0.0);
        for second in 1..=60 {
            recent.note(at(second), time(second));
            let wanted = match second {
                ..=10 => 1.0,
                11..=15 => 10.0 / second as f64,
                16..25 => (25 - second) as f64 / 15.0,
                _ => 0.0,
            };
            assert_near(recent.per_second(at(second), time(second)), wanted);
        }
        assert_eq!(recent.0.len(), 16);
    }

    #[test]
    fn the_counter_may_begin_again() {
        assert_near(RunMicros(5).since(RunMicros(MICROS - 4)).as_secs_f64(), 10e-6);
        assert_near(RunMicros(4).since(RunMicros(5)).as_secs_f64(), 0.0);
    }
}
