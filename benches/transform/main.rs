//! `make bench-transform`: `tensorserve transform` against a bare loop over the same inputs, and
//! against the server over HTTP.
//!
//! The bare loop ([`bare`]) reads, decodes and runs the same batches through the same bindings on as
//! many threads, and drops the outputs: it has no plan, no order, no results and no state. Both are
//! processes of their own, which load the model; the ratio is that of their whole times. Rounds
//! alternate, so that a disturbance of the machine meets both; medians are printed.
//!
//! Options: names of cases; `--rounds N`; `--csv-mb N` and `--images N`, the size of the inputs;
//! `--resnet DIRECTORY`, the model that `make_resnet50.py` writes; `--no-http`.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss
)]

mod bare;
mod case;
mod data;
mod http;
mod process;

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use case::Case;
use process::Measured;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1).cloned()
    };
    let number = |name: &str, default: usize| {
        text(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let sizes = data::Sizes { csv_mb: number("--csv-mb", 200), images: number("--images", 4000) };
    let resnet = text("--resnet").map(PathBuf::from);
    let cases = case::all(resnet.as_deref());
    if let Some(name) = text("--bare") {
        let case = cases.iter().find(|case| case.name == name).expect("a case");
        return bare::run(case, &PathBuf::from(text("--input").expect("--input")));
    }
    let named: Vec<&Case> =
        cases.iter().filter(|case| arguments.iter().any(|a| a == case.name)).collect();
    let chosen = if named.is_empty() { cases.iter().collect() } else { named };
    let with_http = !arguments.iter().any(|a| a == "--no-http");
    let mut outputs = Vec::new();
    for case in chosen {
        measure(case, &sizes, number("--rounds", 3), with_http, &mut outputs);
    }
}

fn measure(
    case: &Case,
    sizes: &data::Sizes,
    rounds: usize,
    with_http: bool,
    outputs: &mut Vec<TempDir>,
) {
    let inputs = data::make(case, sizes);
    let mut run = |input: &Path| process::transform(case, input, outputs);
    let (mut bare, mut transform) = (Vec::new(), Vec::new());
    // Both find the files in the page cache.
    run(&inputs.all);
    let start: Vec<Measured> = (0..rounds).map(|_| run(&inputs.one)).collect();
    for round in 0..rounds {
        eprintln!("{}: round {} of {rounds}", case.name, round + 1);
        if round % 2 == 0 {
            bare.push(process::bare(case, &inputs.all));
        }
        transform.push(run(&inputs.all));
        if round % 2 == 1 {
            bare.push(process::bare(case, &inputs.all));
        }
    }
    let tenfold = run(&inputs.tenfold);
    let (bare, transform) = (Measured::median(&bare), Measured::median(&transform));
    let start = Measured::median(&start);
    println!("\n{}: {} ({} records)", case.name, inputs.described, inputs.records);
    let line = |what: &str, measured: &Measured| {
        println!(
            "  {what:<28}{:>9.2} s{:>9.2} s of CPU{:>7.0} MiB at most",
            measured.seconds, measured.cpu, measured.peak_mib
        );
    };
    line("bare loop", &bare);
    line("transform", &transform);
    line("transform of tenfold inputs", &tenfold);
    line("transform of one record", &start);
    // The time that depends on the inputs.
    let (busy, busy_tenfold) = (transform.seconds - start.seconds, tenfold.seconds - start.seconds);
    println!("  transform/bare, speed       {:>9.3}", bare.seconds / transform.seconds);
    println!(
        "  time of tenfold inputs      {:>9.2}  (without that of one record)",
        busy_tenfold / busy
    );
    println!("  memory of tenfold inputs    {:>9.2}", tenfold.peak_mib / transform.peak_mib);
    if with_http {
        let best = http::best(case, &inputs);
        let rate = inputs.records as f64 / busy;
        println!(
            "  transform/HTTP, speed       {:>9.2}  ({rate:.0}/s and {:.0}/s, with {} connections, the best of {:?})",
            rate / best.records_per_second,
            best.records_per_second,
            best.connections,
            http::CONNECTIONS
        );
    }
}
