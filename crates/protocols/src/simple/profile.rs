//! The text of `__PROFILE__`: the time and memory of each operation in a run, in the format of the
//! operation view of TensorFlow's profiler.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use tensorserve_core::engine::OpRun;

/// All runs of one kind of operation.
#[derive(Default)]
struct ProfileRow<'a> {
    nodes: HashSet<&'a str>,
    runs: usize,
    bytes: u64,
    cpu: u64,
    accelerator: u64,
}

impl ProfileRow<'_> {
    fn total(&self) -> u64 {
        self.cpu.saturating_add(self.accelerator)
    }
}

const HEAD: &str = "\
==================Model Analysis Report======================

Doc:
op: The nodes are operation kernel type, such as MatMul, Conv2D. Graph nodes belonging to the same \
type are aggregated together.
requested bytes: The memory requested by the operation, accumulatively.
total execution time: Sum of accelerator execution time and cpu execution time.
cpu execution time: The time from the start to the end of the operation.
accelerator execution time: Time spent executing on the accelerator.
occurrence: How often it ran, and how many nodes of the graph did.

Profile:
node name | requested bytes | total execution time | accelerator execution time | cpu execution \
time | op occurrence (run|defined)
";

const FOOT: &str = "\n======================End of Report==========================\n";

/// Formats the profile, the longest total time first. The percentages are the share of this line and all
/// that follow, and that of this line.
pub(super) fn text(runs: &[OpRun]) -> String {
    let mut rows: BTreeMap<&str, ProfileRow> = BTreeMap::new();
    for run in runs {
        let row = rows.entry(&run.op).or_default();
        row.runs += 1;
        row.nodes.insert(&run.node);
        row.bytes = row.bytes.saturating_add(run.bytes);
        let time = if run.on_accelerator { &mut row.accelerator } else { &mut row.cpu };
        *time = time.saturating_add(run.nanos);
    }
    let mut rows: Vec<(&str, ProfileRow)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.total()));
    let mut bytes = ColumnShares::new(rows.iter().map(|(_, row)| row.bytes));
    let mut total = ColumnShares::new(rows.iter().map(|(_, row)| row.total()));
    let mut accelerator = ColumnShares::new(rows.iter().map(|(_, row)| row.accelerator));
    let mut cpu = ColumnShares::new(rows.iter().map(|(_, row)| row.cpu));
    let width = rows.iter().map(|(op, _)| op.len()).max().unwrap_or(0);
    let mut text = HEAD.to_owned();
    for (op, row) in &rows {
        let columns = [
            bytes.cell(row.bytes, size),
            total.cell(row.total(), time),
            accelerator.cell(row.accelerator, time),
            cpu.cell(row.cpu, time),
        ];
        let [a, b, c, d] = columns;
        let (runs, nodes) = (row.runs, row.nodes.len());
        let _ = writeln!(text, "{op:width$} {a:>28}, {b:>28}, {c:>28}, {d:>28}, {runs:>6}|{nodes}");
    }
    text.push_str(FOOT);
    text
}

/// The shares of a column's values in its sum.
struct ColumnShares {
    sum: u64,
    left: u64,
}

impl ColumnShares {
    fn new(values: impl Iterator<Item = u64>) -> Self {
        let sum = values.fold(0, u64::saturating_add);
        ColumnShares { sum, left: sum }
    }

    fn cell(&mut self, value: u64, shown: fn(u64) -> String) -> String {
        // The result is only displayed, so rounding is harmless.
        #[allow(clippy::cast_precision_loss)]
        let percent = |part: u64| match self.sum {
            0 => 0.0,
            sum => part as f64 * 100.0 / sum as f64,
        };
        let cell = format!("{} ({:.2}%, {:.2}%)", shown(value), percent(self.left), percent(value));
        self.left = self.left.saturating_sub(value);
        cell
    }
}

/// Nanoseconds in the profiler's units.
fn time(nanos: u64) -> String {
    let micros = nanos / 1000;
    match micros {
        0..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{}.{:02}ms", micros / 1000, micros % 1000 / 10),
        _ => format!("{}.{:02}sec", micros / 1_000_000, micros % 1_000_000 / 10_000),
    }
}

/// Bytes in the profiler's units.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes}B"),
        1_000..1_000_000 => format!("{}.{:02}KB", bytes / 1000, bytes % 1000 / 10),
        _ => format!("{}.{:02}MB", bytes / 1_000_000, bytes % 1_000_000 / 10_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: &str, node: &str, nanos: u64, bytes: u64) -> OpRun {
        let (op, node) = (op.to_owned(), node.to_owned());
        OpRun { op, node, nanos, bytes, on_accelerator: false }
    }

    #[test]
    fn operations_are_summed_and_the_longest_is_first() {
        let text = text(&[
            run("Add", "a", 250_000, 0),
            run("MatMul", "b", 500_000, 4_000),
            run("MatMul", "c", 250_000, 500),
            run("MatMul", "c", 0, 0),
        ]);
        let lines: Vec<&str> = text.lines().skip_while(|l| !l.starts_with("node name")).collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let matmul = "MatMul 4.50KB (100.00%, 100.00%), 750us (100.00%, 75.00%), 0us (0.00%, \
                      0.00%), 750us (100.00%, 75.00%), 3|2";
        assert_eq!(words(lines[1]), matmul);
        let add = "Add 0B (0.00%, 0.00%), 250us (25.00%, 25.00%), 0us (0.00%, 0.00%), 250us \
                   (25.00%, 25.00%), 1|1";
        assert_eq!(words(lines[2]), add);
    }

    #[test]
    fn units() {
        let shown = [999, 12_345_000, 7_650_000_000].map(time);
        assert_eq!(shown, ["0us", "12.34ms", "7.65sec"]);
        assert_eq!([999, 1_234, 80_130_000].map(size), ["999B", "1.23KB", "80.13MB"]);
    }
}
