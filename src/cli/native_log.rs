//! Lines that libraries in C and C++ write to stderr by themselves, as events of the log.

use std::fs::File;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use log::Level;

use tensorserve_os::{self as os, RedirectedStderr, UnloggedStderr};
use tensorserve_tensor::error::{Error, Result};

/// The target of these events in the log.
const NATIVE: &str = "native";

/// A longer line becomes several, in bytes.
const LONGEST_LINE: usize = os::LONGEST_KEPT;

/// How long the end of the program waits for the last lines.
const PATIENCE: Duration = Duration::from_secs(1);

/// The redirected stderr of this process.
static REDIRECTED: OnceLock<NativeLog> = OnceLock::new();

struct NativeLog {
    redirected: RedirectedStderr,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

/// Redirects stderr from now on. Returns what it was before, for the log; `None` if it is redirected
/// already, or cannot be.
pub(super) fn redirect() -> Option<File> {
    if REDIRECTED.get().is_some() {
        return None;
    }
    let redirected = os::redirect_stderr().ok()?;
    let original = redirected.original.try_clone().ok()?;
    let native = NativeLog { redirected, thread: Mutex::new(None) };
    REDIRECTED.set(native).ok()?;
    Some(original)
}

/// Starts to log what is written to stderr, if it is redirected. Lines wait for it in a pipe: the
/// processes that the program forks at its start must not have threads.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn start() -> Result<()> {
    let Some(native) = REDIRECTED.get() else {
        return Ok(());
    };
    os::copy_on_abort(&native.redirected);
    let failed = |e| Error::internal("the log of libraries cannot be read").with_source(e);
    let unlogged = UnloggedStderr::new(&native.redirected).map_err(failed)?;
    let started =
        thread::Builder::new().name("native-log".to_owned()).spawn(|| log_lines(unlogged));
    *native.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(started.map_err(failed)?);
    Ok(())
}

/// Makes stderr what it was, and logs the last lines.
pub(super) fn finish() {
    let Some(native) = REDIRECTED.get() else {
        return;
    };
    os::restore_stderr(&native.redirected.original);
    let thread = native.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
    let thread = thread.or_else(|| {
        let unlogged = UnloggedStderr::new(&native.redirected).ok()?;
        thread::Builder::new().spawn(|| log_lines(unlogged)).ok()
    });
    // Child processes may have the pipe still open, so its end may not come.
    let end = Instant::now() + PATIENCE;
    while thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < end {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Logs the lines until the end of the pipe.
///
/// # Errors
/// Those of the operating system.
fn log_lines(mut unlogged: UnloggedStderr) -> io::Result<()> {
    let mut seen = Vec::new();
    let mut line = Vec::new();
    loop {
        unlogged.see(&mut seen)?;
        if seen.is_empty() {
            log_line(&line);
            return Ok(());
        }
        for part in seen.split_inclusive(|byte| *byte == b'\n') {
            line.extend(part);
            if part.ends_with(b"\n") || line.len() >= LONGEST_LINE {
                log_line(&line);
                line.clear();
                unlogged.take_logged(part)?;
            } else {
                unlogged.take_kept(part)?;
            }
        }
    }
}

fn log_line(line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    if !text.is_empty() {
        let (level, text) = parsed(text);
        log::log!(target: NATIVE, level, "{text}");
    }
}

/// The level and the message of a line in one of the known formats; other lines as they are.
fn parsed(line: &str) -> (Level, &str) {
    of_tensorflow(line).or_else(|| of_abseil(line)).or_else(|| of_onnx(line)).unwrap_or_else(|| {
        let is_panic = line.starts_with("thread '") && line.contains("panicked at");
        (if is_panic { Level::Error } else { Level::Info }, line)
    })
}

fn level(letter: u8) -> Option<Level> {
    match letter {
        b'I' => Some(Level::Info),
        b'W' => Some(Level::Warn),
        b'E' | b'F' => Some(Level::Error),
        b'V' => Some(Level::Debug),
        _ => None,
    }
}

/// libtensorflow: `2026-11-23 20:00:00.123456: I tensorflow/core/x.cc:210] text`.
fn of_tensorflow(line: &str) -> Option<(Level, &str)> {
    let (time, rest) = line.split_once(": ")?;
    let is_time = time.len() == 26 && time.starts_with(|first: char| first.is_ascii_digit());
    let (letter, rest) = rest.split_at_checked(1)?;
    let level = level(*letter.as_bytes().first()?).filter(|_| is_time)?;
    Some((level, rest.strip_prefix(' ')?))
}

/// Abseil and glog: `W0000 00:00:1732394000.123456   12345 x.cc:123] text`.
fn of_abseil(line: &str) -> Option<(Level, &str)> {
    let (head, rest) = line.split_once(' ')?;
    let (letter, digits) = head.split_at_checked(1)?;
    let is_head = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let level = level(*letter.as_bytes().first()?).filter(|_| is_head)?;
    // Time and thread.
    let (_, rest) = rest.trim_start().split_once(' ')?;
    let (thread, text) = rest.trim_start().split_once(' ')?;
    thread.bytes().all(|digit| digit.is_ascii_digit()).then_some((level, text))
}

/// ONNX Runtime, perhaps in colour: `2026-11-23 20:00:00.123456 [W:onnxruntime:Default, x.cc:1 F] text`.
fn of_onnx(line: &str) -> Option<(Level, &str)> {
    let at = line.find(":onnxruntime:")?;
    let before = line.get(..at)?;
    let letter = before.as_bytes().last()?;
    before.strip_suffix(char::from(*letter))?.strip_suffix('[')?;
    let text = line.get(at + 1..)?.trim_end_matches("\u{1b}[m");
    Some((level(*letter)?, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_libraries_have_levels() {
        for (line, expected, text) in [
            (
                "2026-11-23 20:00:00.123456: W tensorflow/core/x.cc:210] slow",
                Level::Warn,
                "tensorflow/core/x.cc:210] slow",
            ),
            (
                "E0000 00:00:1732394000.123456   12345 cuda_dnn.cc:123] twice",
                Level::Error,
                "cuda_dnn.cc:123] twice",
            ),
            ("I1123 20:00:00.123456 1234 x.cc:12] glog", Level::Info, "x.cc:12] glog"),
            (
                "\u{1b}[0;93m2026-11-23 20:00:00.1 [W:onnxruntime:Default, x.cc:1 F] hm\u{1b}[m",
                Level::Warn,
                "onnxruntime:Default, x.cc:1 F] hm",
            ),
            ("thread 'a' panicked at x.rs:1", Level::Error, "thread 'a' panicked at x.rs:1"),
            ("anything", Level::Info, "anything"),
            ("I am: what I am", Level::Info, "I am: what I am"),
            ("\u{e9}:onnxruntime:", Level::Info, "\u{e9}:onnxruntime:"),
        ] {
            assert_eq!(parsed(line), (expected, text));
        }
    }
}
