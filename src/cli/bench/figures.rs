//! What the server says about itself, and what its process uses.

use std::fs;

use super::super::http_client;
use super::target::ModelTarget;
use crate::config::environment::Environment;

/// A server under load.
pub(in crate::cli) struct WatchedServer<'s> {
    pub(in crate::cli) target: &'s ModelTarget,
    /// Its process, if bench has started it.
    pub(in crate::cli) process: Option<u32>,
    pub(in crate::cli) environment: &'s Environment,
}

/// Rows and batches that a model has run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BatchSums {
    rows: f64,
    batches: f64,
}

/// Histograms of the server, by which it is scaled, too.
pub(in crate::cli) const REQUEST_SECONDS: &str = "tensorserve_request_duration_seconds";
pub(in crate::cli) const QUEUE_SECONDS: &str = "tensorserve_queue_duration_seconds";

/// Requests that a server has answered, and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::cli) struct RequestSums {
    seconds: f64,
    count: f64,
    queue_seconds: f64,
}

impl RequestSums {
    /// The mean time of a request, and that in a queue, in seconds, since an earlier reading.
    pub(in crate::cli) fn means_since(self, before: RequestSums) -> Option<(f64, f64)> {
        let count = self.count - before.count;
        let mean = |now: f64, then: f64| (now - then) / count;
        (count > 0.0).then(|| {
            (mean(self.seconds, before.seconds), mean(self.queue_seconds, before.queue_seconds))
        })
    }
}

impl WatchedServer<'_> {
    /// The batches of the model so far; `None` if the server does not tell.
    pub(super) fn batches(&self) -> Option<BatchSums> {
        let text = self.metrics()?;
        Some(BatchSums {
            rows: sum(&text, "tensorserve_batch_rows_sum", &self.target.model)?,
            batches: sum(&text, "tensorserve_batch_rows_count", &self.target.model)?,
        })
    }

    /// All requests so far, as autoscalers count them; `None` if the server does not tell.
    pub(in crate::cli) fn requests(&self) -> Option<RequestSums> {
        let text = self.metrics()?;
        let of = |metric: &str| sum_of_all(&text, metric);
        Some(RequestSums {
            seconds: of(&format!("{REQUEST_SECONDS}_sum"))?,
            count: of(&format!("{REQUEST_SECONDS}_count"))?,
            // Requests that run at once are in no queue.
            queue_seconds: of(&format!("{QUEUE_SECONDS}_sum")).unwrap_or(0.0),
        })
    }

    fn metrics(&self) -> Option<String> {
        let url = format!("{}/metrics", self.target.server);
        let (status, text) = http_client::get(&url, self.environment).ok()?;
        (status == 200).then_some(text)
    }
}

/// The sum of a metric over the versions and signatures of a model; `None` without any.
fn sum(text: &str, metric: &str, model: &str) -> Option<f64> {
    let label = format!("model=\"{model}\"");
    sum_where(text, metric, |line| line.contains(&label))
}

/// The sum of a metric over all its series; `None` without any.
fn sum_of_all(text: &str, metric: &str) -> Option<f64> {
    sum_where(text, metric, |_| true)
}

fn sum_where(text: &str, metric: &str, is_meant: impl Fn(&str) -> bool) -> Option<f64> {
    let start = format!("{metric}{{");
    let lines = text.lines().filter(|line| line.starts_with(&start) && is_meant(line));
    let values: Vec<f64> = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// The rows of a batch between two readings. A model that has run nothing before has no series yet.
pub(super) fn rows_per_batch(before: Option<BatchSums>, after: Option<BatchSums>) -> Option<f64> {
    let (before, after) = (before.unwrap_or_default(), after?);
    let batches = after.batches - before.batches;
    (batches > 0.0).then(|| (after.rows - before.rows) / batches)
}

/// CPU time of the server's process, and the responses in it.
#[derive(Default)]
pub(super) struct CpuUse {
    /// The time at the end of the first window, from which on it counts.
    first: Option<f64>,
    last: f64,
    responses: u64,
}

impl CpuUse {
    /// At the end of a window with so many responses.
    pub(super) fn add(&mut self, process: Option<u32>, responses: u64) {
        let Some(seconds) = process.and_then(cpu_seconds) else { return };
        self.last = seconds;
        match self.first {
            None => self.first = Some(seconds),
            Some(_) => self.responses += responses,
        }
    }

    /// Microseconds for each response.
    // Counts of one run are exact.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn per_request(&self) -> Option<f64> {
        let used = self.last - self.first?;
        (self.responses > 0).then(|| used * 1e6 / self.responses as f64)
    }
}

/// The CPU time of all threads of a process so far, in seconds.
pub(in crate::cli) fn cpu_seconds(process: u32) -> Option<f64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let of = |path: std::path::PathBuf| -> Option<f64> {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    Some(tasks.flatten().filter_map(|task| of(task.path())).sum::<f64>() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_those_of_the_model() {
        let text = "# TYPE tensorserve_batch_rows histogram\n\
            tensorserve_batch_rows_sum{model=\"m\",version=\"1\",signature=\"a\"} 30.0\n\
            tensorserve_batch_rows_sum{model=\"m\",version=\"1\",signature=\"b\"} 10.0\n\
            tensorserve_batch_rows_sum{model=\"mm\",version=\"1\",signature=\"a\"} 7.0\n\
            tensorserve_batch_rows_count{model=\"m\",version=\"1\",signature=\"a\"} 10\n";
        assert_eq!(sum(text, "tensorserve_batch_rows_sum", "m"), Some(40.0));
        assert_eq!(sum(text, "tensorserve_batch_rows_count", "m"), Some(10.0));
        assert_eq!(sum(text, "tensorserve_batch_rows_count", "x"), None);
        let at = |rows, batches| Some(BatchSums { rows, batches });
        assert_eq!(rows_per_batch(at(10.0, 10.0), at(90.0, 20.0)), Some(8.0));
        assert_eq!(rows_per_batch(None, at(9.0, 3.0)), Some(3.0));
        assert_eq!(rows_per_batch(at(9.0, 3.0), at(9.0, 3.0)), None);
        assert_eq!(rows_per_batch(at(9.0, 3.0), None), None);
    }

    #[test]
    fn requests_of_all_models_are_counted() {
        let text = "tensorserve_request_duration_seconds_sum{model=\"\",code=\"OK\"} 3.0\n\
            tensorserve_request_duration_seconds_sum{model=\"m\",code=\"OK\"} 2.0\n";
        assert_eq!(sum_of_all(text, "tensorserve_request_duration_seconds_sum"), Some(5.0));
        assert_eq!(sum_of_all(text, "tensorserve_queue_duration_seconds_sum"), None);
        let before = RequestSums { seconds: 1.0, count: 10.0, queue_seconds: 0.0 };
        let after = RequestSums { seconds: 2.0, count: 30.0, queue_seconds: 0.5 };
        assert_eq!(after.means_since(before), Some((0.05, 0.025)));
        assert_eq!(after.means_since(after), None);
    }

    #[test]
    fn the_first_window_only_starts_the_count() {
        let mut cpu = CpuUse::default();
        cpu.add(None, 5);
        assert_eq!(cpu.per_request(), None);
        let this = Some(std::process::id());
        cpu.add(this, 1_000_000);
        assert_eq!(cpu.per_request(), None);
        cpu.add(this, 2);
        assert!(cpu.per_request().expect("a figure") >= 0.0);
    }
}
