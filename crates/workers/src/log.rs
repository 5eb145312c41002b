//! Forwards the output of worker processes to the server's log, line by line and within bounds. The
//! pipe is always emptied, so no process ever blocks on its output.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use log::Level;
use tokio::net::unix::pipe::Receiver;

/// The token bucket of the log: lines at once, and lines per second. Further lines are only counted.
const BURST_LINES: u32 = 500;
const LINES_PER_SECOND: u32 = 100;

/// The shortest time between two refills of the bucket.
const REFILL_INTERVAL: Duration = Duration::from_millis(100);

/// During a flood the clock is read once per this many lines.
const LINES_PER_CLOCK_READ: u64 = 64;

/// The length at which lines are truncated, in bytes.
const MAX_LINE_BYTES: usize = 4096;

/// The number of lines that are kept to describe the end of a process.
const KEPT_LINES: usize = 40;

/// The most bytes of one read.
const CHUNK: usize = 64 << 10;

/// The most bytes that are read from a process that has ended: its children may still hold the pipe.
const MAX_FINAL_BYTES: usize = 1 << 20;

/// The first byte of a line that is one event, an exception, and what stands for its line breaks, as in
/// `python/worker.py`.
const EVENT: u8 = 0x1e;
const LINE_BREAK: u8 = 0x1f;

/// The output of one process.
pub(super) struct ProcessLog {
    name: Arc<str>,
    /// `None` once all writers have closed it.
    pipe: Option<Receiver>,
    chunk: Vec<u8>,
    line: Vec<u8>,
    /// The number of lines so far.
    count: Arc<AtomicU64>,
    /// The last lines, with their numbers.
    kept: VecDeque<(u64, String)>,
    /// The lines that the token bucket still allows.
    allowed: u32,
    refilled_at: Instant,
    /// The lines that were only counted since the last one that was logged.
    omitted: u64,
}

impl ProcessLog {
    pub(super) fn new(name: Arc<str>, pipe: OwnedFd) -> io::Result<Self> {
        Ok(ProcessLog {
            name,
            pipe: Some(Receiver::from_owned_fd(pipe)?),
            chunk: vec![0; CHUNK],
            line: Vec::new(),
            count: Arc::default(),
            kept: VecDeque::new(),
            allowed: BURST_LINES,
            refilled_at: Instant::now(),
            omitted: 0,
        })
    }

    /// The counter of lines.
    pub(super) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }

    /// Waits for output and reads it. Cancel-safe.
    pub(super) async fn read(&mut self) {
        let Some(pipe) = &self.pipe else {
            return std::future::pending().await;
        };
        if pipe.readable().await.is_ok() {
            self.take();
        }
    }

    /// Reads available output once, and returns its size in bytes.
    fn take(&mut self) -> usize {
        let Some(pipe) = &self.pipe else {
            return 0;
        };
        let mut chunk = std::mem::take(&mut self.chunk);
        let count = match pipe.try_read(&mut chunk) {
            Ok(0) => {
                self.pipe = None;
                0
            }
            Ok(count) => count,
            Err(_) => 0,
        };
        self.split(chunk.get(..count).unwrap_or_default());
        self.chunk = chunk;
        count
    }

    /// Reads the remaining output of a process that has ended.
    pub(super) fn finish(&mut self) {
        let mut read = 0;
        while read < MAX_FINAL_BYTES {
            match self.take() {
                0 => break,
                count => read += count,
            }
        }
        self.pipe = None;
        if !self.line.is_empty() {
            self.end_line();
        }
        self.report_omitted();
    }

    /// The last lines after line number `since`, of at most `max_bytes` in total.
    pub(super) fn last_lines(&self, since: u64, max_bytes: usize) -> String {
        let mut room = max_bytes;
        let mut lines: Vec<&str> = Vec::new();
        for (_, line) in self.kept.iter().rev().take_while(|(number, _)| *number > since) {
            let Some(left) = room.checked_sub(line.len() + 1) else {
                break;
            };
            room = left;
            lines.push(line);
        }
        lines.reverse();
        lines.join("\n")
    }

    fn split(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            self.extend_line(line);
            self.end_line();
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.extend_line(bytes);
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
        self.line.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    fn end_line(&mut self) {
        // What the script printed before it may have no line break.
        if let Some(at) = memchr::memchr(EVENT, &self.line).filter(|at| *at > 0) {
            let event = self.line.split_off(at);
            self.end_line();
            self.line = event;
        }
        self.refill();
        let number = self.count.fetch_add(1, Relaxed) + 1;
        if self.allowed == 0 {
            self.omitted += 1;
            self.line.clear();
            return;
        }
        self.allowed -= 1;
        let (level, text) = logged(&self.line);
        self.line.clear();
        log::log!(level, "{}: {text}", self.name);
        if self.kept.len() == KEPT_LINES {
            self.kept.pop_front();
        }
        self.kept.push_back((number, text));
    }

    /// Refills the token bucket.
    fn refill(&mut self) {
        if self.allowed == 0 && !self.omitted.is_multiple_of(LINES_PER_CLOCK_READ) {
            return;
        }
        let elapsed = self.refilled_at.elapsed();
        if elapsed < REFILL_INTERVAL {
            return;
        }
        self.refilled_at = Instant::now();
        let new = elapsed.as_secs_f64() * f64::from(LINES_PER_SECOND);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Positive; saturates.
        let new = new as u32;
        self.allowed = self.allowed.saturating_add(new).min(BURST_LINES);
        self.report_omitted();
    }

    fn report_omitted(&mut self) {
        let omitted = std::mem::take(&mut self.omitted);
        if omitted > 0 {
            log::warn!("{}: too much output: {omitted} lines omitted", self.name);
        }
    }
}

/// The level and the text of a line in the log.
fn logged(line: &[u8]) -> (Level, String) {
    let Some(event) = line.strip_prefix(&[EVENT]) else {
        return (Level::Info, printable(line));
    };
    let lines: Vec<String> = event.split(|byte| *byte == LINE_BREAK).map(printable).collect();
    (Level::Error, lines.join("\n"))
}

/// The text of a line, without control characters, which could forge lines or change a terminal.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line.trim_ascii_end());
    if !text.chars().any(|c| c.is_control() && c != '\t') {
        return text.into_owned();
    }
    text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn log() -> (ProcessLog, io::PipeWriter) {
        let (reader, writer) = io::pipe().expect("a pipe");
        (ProcessLog::new("test".into(), reader.into()).expect("a log"), writer)
    }

    #[tokio::test]
    async fn the_last_lines_are_kept() {
        let (mut log, mut writer) = log();
        (0..20).for_each(|i| writeln!(writer, "line {i}").expect("written"));
        write!(writer, "the\x1b[31m end").expect("written");
        log.read().await;
        assert_eq!(log.counter().load(Relaxed), 20);
        drop(writer);
        log.finish();
        assert_eq!(log.last_lines(17, 1000), "line 17\nline 18\nline 19\nthe [31m end");
        assert_eq!(log.last_lines(0, 20), "the [31m end");
        assert_eq!(log.last_lines(21, 1000), "");
    }

    #[tokio::test]
    async fn an_exception_is_one_event() {
        let text = "\x1eTraceback:\x1f  File \x1b[2Jx\x1fValueError: no";
        let shown = "Traceback:\n  File  [2Jx\nValueError: no";
        assert_eq!(logged(text.as_bytes()), (Level::Error, shown.to_owned()));
        assert_eq!(logged(b"a\x1fb"), (Level::Info, "a b".to_owned()));
        let (mut log, mut writer) = log();
        writeln!(writer, "no end{text}").expect("written");
        log.read().await;
        drop(writer);
        log.finish();
        assert_eq!(log.counter().load(Relaxed), 2);
        assert_eq!(log.last_lines(0, 1000), format!("no end\n{shown}"));
    }

    #[tokio::test]
    async fn a_flood_is_counted_and_not_kept() {
        let (mut log, mut writer) = log();
        let flood = std::thread::spawn(move || {
            let lines = b"spam and eggs\n".repeat(10_000);
            (0..20).for_each(|_| writer.write_all(&lines).expect("written"));
            writer.write_all(&[b'x'; 1 << 20]).expect("written");
        });
        while log.pipe.is_some() {
            log.read().await;
        }
        flood.join().expect("written");
        assert!(log.line.len() <= MAX_LINE_BYTES, "{}", log.line.len());
        log.finish();
        assert_eq!(log.counter().load(Relaxed), 200_001);
        assert_eq!(log.kept.len(), KEPT_LINES);
    }
}
