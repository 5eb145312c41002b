//! Commands in processes of their own: their time, their CPU time, and the memory they had at most.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::case::{Case, Inputs};

/// As many as the bare loop has threads.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[derive(Clone, Copy)]
pub struct Measured {
    pub seconds: f64,
    pub cpu: f64,
    pub peak_mib: f64,
}

impl Measured {
    pub fn median(all: &[Measured]) -> Self {
        let of = |figure: fn(&Measured) -> f64| {
            let mut values: Vec<f64> = all.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Measured { seconds: of(|m| m.seconds), cpu: of(|m| m.cpu), peak_mib: of(|m| m.peak_mib) }
    }
}

/// `tensorserve transform` of all files in `input`. The output is to be kept until everything is
/// measured: ext4 looks at each inode that was freed in the last minutes before it creates a file.
pub fn transform(case: &Case, input: &Path, outputs: &mut Vec<TempDir>) -> Measured {
    let output = tempfile::tempdir_in(input.parent().expect("a parent")).expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorserve"));
    command.arg("transform").arg(&case.model).arg("--input").arg(input);
    command.arg("--output").arg(output.path());
    command.arg("--batch-rows").arg(case.batch_rows.to_string());
    command.args(["--progress", "none"]);
    if let Inputs::Jpeg { .. } = case.inputs {
        command.args(["--content-type", "application/x-image"]);
    }
    if case.combine_outputs {
        command.arg("--combine-outputs");
    }
    let measured = measure(command);
    let marker = output.path().join("_transform/report.html");
    assert!(marker.exists(), "{}: no report", case.name);
    outputs.push(output);
    measured
}

/// This program's bare loop over the same files.
pub fn bare(case: &Case, input: &Path) -> Measured {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--bare", case.name, "--input"]).arg(input);
    // The names of all cases, also of those that need a model.
    command.arg("--resnet").arg(&case.model);
    measure(command)
}

fn measure(mut command: Command) -> Measured {
    let start = Instant::now();
    let mut child = command.stdout(Stdio::null()).spawn().expect("starts");
    let (mut peak_mib, mut cpu) = (0.0, 0.0);
    loop {
        // Its last values before it ends.
        peak_mib = status_mib(child.id(), "VmHWM").unwrap_or(peak_mib);
        cpu = cpu_seconds(child.id()).unwrap_or(cpu);
        if let Some(status) = child.try_wait().expect("waited") {
            let seconds = start.elapsed().as_secs_f64();
            assert!(status.success(), "{command:?}: {status}");
            return Measured { seconds, cpu, peak_mib };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn status_mib(process: u32, name: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Of all its threads, also those that have ended: from `/proc/<id>/stat`, in hundredths.
fn cpu_seconds(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}
