//! The monitor of one probe: forks the child, follows its progress, ends it at its time limit, and
//! finds out how it ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, pipe};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tensorserve_os::fork::{
    ForkedProcess, fork, limit_private_memory, redirect_standard_streams, signal_name,
};
use tensorserve_os::{lower_priority, set_environment_variable};
use tensorserve_platform::Platforms;

use crate::messages::{ProbeOutcome, ProbeProgress, ProbeRequest};
use crate::trial;
use crate::{ProbeConfig, memory};

/// Time limit for a run on a shape that is not declared; such runs end early or not at all.
const TRIAL_LIMIT: Duration = Duration::from_secs(30);
/// How much of the child's last output an error contains: lines, and characters of a line.
const LAST_LINES: usize = 5;
const LONGEST_LINE: usize = 300;

/// Probes a version. Called in a process that has no other threads.
pub(crate) fn probe(
    request: &ProbeRequest,
    platforms: &Platforms,
    config: &ProbeConfig,
) -> ProbeOutcome {
    let limit = memory::limit_of_version(config);
    let started = pipe().and_then(|progress| Ok((progress, pipe()?)));
    let started = started.and_then(|(progress, output)| {
        let (mut writer, printed) = (progress.1, output.1);
        let process =
            fork(|| run_child(request, platforms, config.gpu, limit, &mut writer, &printed))?;
        // The monitor's copies of the writing ends are dropped here, so that the child's end shows.
        Ok((process, progress.0, output.0))
    });
    match started {
        Ok((process, progress, output)) => {
            Monitor { process, started: Instant::now(), timeout: config.timeout, limit }
                .follow(progress, output)
        }
        Err(error) => {
            ProbeOutcome::Failed(format!("the process of the load probe cannot start: {error}"))
        }
    }
}

/// What the child does. Returns its exit status.
fn run_child(
    request: &ProbeRequest,
    platforms: &Platforms,
    gpu: bool,
    limit: u64,
    progress: &mut PipeWriter,
    output: &PipeWriter,
) -> i32 {
    if redirect_standard_streams(output).is_err() {
        return 1;
    }
    lower_priority();
    if let Err(error) = limit_private_memory(memory::limit_of_process(limit)) {
        log::warn!("the memory of the load probe has no limit: {error}");
    }
    if !gpu {
        set_environment_variable("CUDA_VISIBLE_DEVICES", "");
    }
    let platform = platforms.iter().find(|platform| platform.info.name == request.platform);
    let Some(platform) = platform else {
        return 1;
    };
    trial::load_and_run(platform, request, progress);
    0
}

/// A child that is being watched.
struct Monitor {
    process: ForkedProcess,
    started: Instant,
    timeout: Duration,
    /// The memory limit of the version in bytes.
    limit: u64,
}

impl Monitor {
    fn follow(mut self, progress: PipeReader, output: PipeReader) -> ProbeOutcome {
        let (sender, stages) = channel();
        thread::spawn(move || {
            for line in BufReader::new(progress).lines().map_while(Result::ok) {
                if let Ok(stage) = serde_json::from_str(&line) {
                    let _ = sender.send(stage);
                }
            }
        });
        let printed = thread::spawn(move || last_output(output));
        let (last, exceeded) = self.last_stage(&stages);
        if exceeded.is_some() || last.is_last() {
            // Its runtime's threads may take their time to end.
            self.process.kill();
        }
        let status = self.process.wait();
        let is_killed =
            exceeded.is_none() && status.as_ref().is_ok_and(|status| is_killed(*status));
        let ended = match (exceeded, status) {
            (Some(limit), _) => format!("did not end within {limit:?}"),
            (None, Ok(status)) => describe(status),
            (None, Err(error)) => format!("ended with an unknown status ({error})"),
        };
        match last {
            ProbeProgress::Loading | ProbeProgress::Running(_) if is_killed => {
                let why = "the system ended the process of its load probe (SIGKILL), as it does \
                           when memory is exhausted";
                ProbeOutcome::OutOfMemory(why.to_owned())
            }
            ProbeProgress::Ran | ProbeProgress::Tried => ProbeOutcome::Passed { ended_by: None },
            ProbeProgress::Trying(input) => {
                ProbeOutcome::Passed { ended_by: Some(format!("{input}: the process {ended}")) }
            }
            ProbeProgress::Refused => ProbeOutcome::Refused,
            ProbeProgress::Unset(why) => ProbeOutcome::Unset(why),
            ProbeProgress::OutOfMemory(message) => {
                ProbeOutcome::OutOfMemory(memory::exceeded(self.limit, &message))
            }
            ProbeProgress::Loading => self.failed("loading it", &ended, printed),
            ProbeProgress::Running(signature) => {
                let doing = format!("running its signature {signature:?}");
                self.failed(&doing, &ended, printed)
            }
        }
    }

    /// The last stage that the child reached before it ended, finished or exceeded a time limit, and
    /// the limit that it has exceeded.
    fn last_stage(&self, stages: &Receiver<ProbeProgress>) -> (ProbeProgress, Option<Duration>) {
        let mut last = ProbeProgress::Loading;
        let (mut limit, mut since) = (self.timeout, self.started);
        loop {
            let left = limit.saturating_sub(since.elapsed());
            match stages.recv_timeout(left) {
                Ok(stage) => last = stage,
                Err(RecvTimeoutError::Disconnected) => return (last, None),
                Err(RecvTimeoutError::Timeout) => return (last, Some(limit)),
            }
            if last.is_last() {
                return (last, None);
            }
            if matches!(last, ProbeProgress::Ran | ProbeProgress::Trying(_)) {
                (limit, since) = (TRIAL_LIMIT, Instant::now());
            }
        }
    }

    fn failed(
        &self,
        doing: &str,
        ended: &str,
        printed: thread::JoinHandle<String>,
    ) -> ProbeOutcome {
        let mut text = format!("a child process {ended} while {doing} (load_probe)");
        let printed = printed.join().unwrap_or_default();
        if !printed.is_empty() {
            text.push_str("; it printed: ");
            text.push_str(&printed);
        }
        ProbeOutcome::Failed(text)
    }
}

fn is_killed(status: ExitStatus) -> bool {
    status.signal().and_then(signal_name) == Some("SIGKILL")
}

/// How a process has ended, as a predicate.
pub(crate) fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => match signal_name(signal) {
            Some(name) => format!("was ended by {name}"),
            None => format!("was ended by signal {signal}"),
        },
        None => format!("ended with status {}", status.code().unwrap_or_default()),
    }
}

/// The last lines that the child prints, without stack traces, which would hide them.
fn last_output(output: PipeReader) -> String {
    let mut last = VecDeque::new();
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        if line.is_empty() || line.starts_with("@ ") || line.starts_with("*** Check failure stack")
        {
            continue;
        }
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line.chars().take(LONGEST_LINE).collect::<String>());
    }
    Vec::from(last).join(" | ")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_lines_are_kept_without_stack_traces() {
        let (reader, mut writer) = pipe().expect("a pipe");
        let mut printed: String = (0..9).map(|line| format!("line {line}\n")).collect();
        printed.push_str("F0000 file.cc:1] Check failed: x\n*** Check failure stack trace: ***\n");
        printed.push_str("    @     0x7f523a2f1fae  f()\n\n");
        writer.write_all(printed.as_bytes()).expect("written");
        drop(writer);
        let expected = "line 5 | line 6 | line 7 | line 8 | F0000 file.cc:1] Check failed: x";
        assert_eq!(last_output(reader), expected);
    }
}
