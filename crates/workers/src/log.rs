//! What worker processes print: goes to our log line by line, within bounds. The pipe is always
//! emptied, so that no process waits for the log, whatever it prints.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::net::unix::pipe::Receiver;

/// Lines that may come at once, and lines that may come each second. What is more is counted.
const BURST: u32 = 500;
const PER_SECOND: u32 = 100;

/// The rest of a longer line is left out.
const LONGEST_LINE: usize = 4096;

/// Lines that are kept, to be told when the process dies.
const KEPT: usize = 12;

/// Read at once.
const CHUNK: usize = 64 << 10;

/// The most that is read from a process that has ended. Others may still hold its pipe.
const LAST_WORDS: usize = 1 << 20;

/// The log of one process.
pub(super) struct Log {
    name: Arc<str>,
    /// `None` when nobody can write to it any more.
    pipe: Option<Receiver>,
    chunk: Vec<u8>,
    line: Vec<u8>,
    /// Lines so far.
    count: Arc<AtomicU64>,
    /// The last lines, each with its number.
    kept: VecDeque<(u64, String)>,
    allowed: u32,
    filled_at: Instant,
    left_out: u64,
}

impl Log {
    pub(super) fn new(name: Arc<str>, pipe: OwnedFd) -> io::Result<Self> {
        Ok(Log {
            name,
            pipe: Some(Receiver::from_owned_fd(pipe)?),
            chunk: vec![0; CHUNK],
            line: Vec::new(),
            count: Arc::default(),
            kept: VecDeque::new(),
            allowed: BURST,
            filled_at: Instant::now(),
            left_out: 0,
        })
    }

    /// The number of lines so far.
    pub(super) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }

    /// Waits until there is something, and takes it. Can be dropped while it waits.
    pub(super) async fn read(&mut self) {
        let Some(pipe) = &self.pipe else {
            return std::future::pending().await;
        };
        if pipe.readable().await.is_ok() {
            self.take();
        }
    }

    /// Takes what is there, once; says how much.
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

    /// Takes all that is left of a process that has ended.
    pub(super) fn finish(&mut self) {
        let mut read = 0;
        while read < LAST_WORDS {
            match self.take() {
                0 => break,
                count => read += count,
            }
        }
        self.pipe = None;
        if !self.line.is_empty() {
            self.end_line();
        }
        self.tell_left_out();
    }

    /// The last lines after number `since`, at most `bytes` of them.
    pub(super) fn last_lines(&self, since: u64, bytes: usize) -> String {
        let mut room = bytes;
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
        let room = LONGEST_LINE.saturating_sub(self.line.len());
        self.line.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    fn end_line(&mut self) {
        self.refill();
        let number = self.count.fetch_add(1, Relaxed) + 1;
        if self.allowed == 0 {
            self.left_out += 1;
            self.line.clear();
            return;
        }
        self.allowed -= 1;
        let text = printable(&self.line);
        self.line.clear();
        log::info!("{}: {text}", self.name);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((number, text));
    }

    fn refill(&mut self) {
        // The clock is not asked for every line of a flood.
        if self.allowed == 0 && !self.left_out.is_multiple_of(64) {
            return;
        }
        let passed = self.filled_at.elapsed();
        if passed < Duration::from_millis(100) {
            return;
        }
        self.filled_at = Instant::now();
        let new = passed.as_secs_f64() * f64::from(PER_SECOND);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Positive; saturates.
        let new = new as u32;
        self.allowed = self.allowed.saturating_add(new).min(BURST);
        self.tell_left_out();
    }

    fn tell_left_out(&mut self) {
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            log::warn!("{}: it prints too much: {left_out} lines left out", self.name);
        }
    }
}

/// The text of a line, without what could pass for another line or change a terminal.
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

    fn log() -> (Log, io::PipeWriter) {
        let (reader, writer) = io::pipe().expect("a pipe");
        (Log::new("test".into(), reader.into()).expect("a log"), writer)
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
        assert!(log.line.len() <= LONGEST_LINE, "{}", log.line.len());
        log.finish();
        assert_eq!(log.counter().load(Relaxed), 200_001);
        assert_eq!(log.kept.len(), KEPT);
    }
}
