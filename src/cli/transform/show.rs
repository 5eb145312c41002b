//! Shows how far a job is: a bar, lines, or JSON.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::super::print_note;
use super::arguments::ShowProgress;
use super::print_json;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_transform::progress::{Progress, Snapshot};
use tensorserve_transform::report::{bytes, counted, duration};

/// How often the bar moves and the throughput is kept.
const TICK: Duration = Duration::from_millis(200);

/// How often a line is printed.
const LINE: Duration = Duration::from_secs(10);

/// How often a line of JSON is printed.
const JSON: Duration = Duration::from_secs(5);

/// Shows progress until it is dropped.
pub(super) struct Shown {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Prints a remark on stderr.
pub(super) fn note(text: &str) {
    print_note(text);
}

impl Shown {
    /// Starts to show progress.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(how: ShowProgress, progress: Arc<Progress>) -> Result<Self> {
        let how = match how {
            ShowProgress::Auto if std::io::stderr().is_terminal() => ShowProgress::Bar,
            ShowProgress::Auto => ShowProgress::Lines,
            ShowProgress::Bar | ShowProgress::Lines | ShowProgress::Json | ShowProgress::None => {
                how
            }
        };
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let thread = thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || show(how, &progress, &until))
            .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        Ok(Shown { ended, thread: Some(thread) })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn show(how: ShowProgress, progress: &Progress, ended: &AtomicBool) {
    let bar = (how == ShowProgress::Bar).then(|| new_bar(progress.total_bytes));
    let interval = if how == ShowProgress::Json { JSON } else { LINE };
    let mut printed = Instant::now();
    progress.keep_point();
    while !ended.load(Relaxed) {
        thread::park_timeout(TICK);
        progress.keep_point();
        let now = progress.snapshot();
        if let Some(bar) = &bar {
            bar.set_position(now.bytes);
            bar.set_message(line(&now));
        } else if printed.elapsed() >= interval {
            printed = Instant::now();
            print(how, &now);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    } else if how == ShowProgress::Json {
        print(how, &progress.snapshot());
    }
}

fn print(how: ShowProgress, now: &Snapshot) {
    match how {
        ShowProgress::Json => print_json(now),
        ShowProgress::Lines => note(&line(now)),
        ShowProgress::Auto | ShowProgress::Bar | ShowProgress::None => {}
    }
}

fn new_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

/// A snapshot on one line.
fn line(now: &Snapshot) -> String {
    let mut text = format!(
        "{} of {}, {} of {}, {}, {:.0} records/s",
        now.objects,
        counted(now.total_objects, "object"),
        bytes(now.bytes),
        bytes(now.total_bytes),
        counted(now.records, "record"),
        now.records_per_second
    );
    if let Some(left) = now.seconds_left {
        text.push_str(&format!(", {} left", duration(left)));
    }
    if now.failed_objects > 0 {
        text.push_str(&format!(", {} failed", now.failed_objects));
    }
    if now.bad_records > 0 {
        text.push_str(&format!(", {}", counted(now.bad_records, "bad record")));
    }
    if now.skipped_objects > 0 {
        text.push_str(&format!(", {} skipped", now.skipped_objects));
    }
    text
}
