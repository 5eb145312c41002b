//! Runs each fuzz target on its corpus, `fuzz/corpus/TARGET`, without libFuzzer: what fuzzing has found
//! stays found. See "Fuzzing" in CONTRIBUTING.md.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use self::fuzz::{MemoryUse, TARGETS, Target};

/// About how many variants of its corpus a target runs on.
const VARIANTS: usize = 600;

/// The most time for one input, in a build without optimization.
const MAX_TIME: Duration = Duration::from_secs(60);

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// The names of the entries of a folder, without their endings.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let stem = |path: PathBuf| path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    entries.map(|entry| stem(entry.expect("an entry").path()).expect("a name")).collect()
}

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: Cell<String> = const { Cell::new(String::new()) };
}

/// Notes panics, also those that the server catches.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICKED.set(true);
            LAST_PANIC.set(info.to_string());
            previous(info);
        }));
    });
}

#[allow(clippy::print_stdout)] // The memory of each target, with --nocapture.
fn replay(target: &Target) {
    note_panics();
    let corpus = folder("corpus").join(target.name);
    let mut inputs: Vec<PathBuf> = fs::read_dir(&corpus)
        .expect("a corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", corpus.display());
    let mut worst = MemoryUse::default();
    let mut failures = Vec::new();
    let mut check = |what: &str, input: &[u8]| match run(target, input) {
        Ok(memory) if memory.share() > worst.share() => worst = memory,
        Ok(_) => {}
        Err(failure) => {
            let start = String::from_utf8_lossy(input.get(..160).unwrap_or(input)).into_owned();
            failures.push(format!("{what} {start:?}: {failure}"));
        }
    };
    let variants = VARIANTS.div_ceil(inputs.len());
    for path in inputs {
        let input = fs::read(&path).expect("readable");
        let name = path.display().to_string();
        check(&name, &input);
        fuzz::variants::of(&input, variants)
            .for_each(|input| check(&format!("{name}, variant"), &input));
    }
    fuzz::hostile::inputs(target.name).iter().for_each(|input| check("hostile input", input));
    let MemoryUse { taken, allowed } = worst;
    println!("{}: {:.2}, {taken} bytes of {allowed}", target.name, worst.share());
    assert!(failures.is_empty(), "{}: {} failures, {failures:#?}", target.name, failures.len());
}

/// The memory that the target takes for `input`, or why it does not stand it.
fn run(target: &Target, input: &[u8]) -> Result<MemoryUse, String> {
    let started = Instant::now();
    PANICKED.set(false);
    let measured = panic::catch_unwind(|| target.measure(input));
    let took = started.elapsed();
    let memory = match measured {
        Ok(memory) if !PANICKED.get() => memory,
        _ => return Err(LAST_PANIC.take()),
    };
    let MemoryUse { taken, allowed } = memory;
    if memory.share() > 1.0 {
        return Err(format!("it took {taken} bytes when it was allowed {allowed}"));
    }
    if took > MAX_TIME { Err(format!("it took {took:?}")) } else { Ok(memory) }
}

macro_rules! replay {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(&fuzz::$target);
        })*

        #[test]
        fn every_target_is_replayed() {
            let replayed: BTreeSet<String> = [$(stringify!($target).to_owned()),*].into();
            let all: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
            assert_eq!(replayed, all);
            assert_eq!(names(&folder("corpus")), all, "fuzz/corpus");
            assert_eq!(names(&folder("fuzz_targets")), all, "fuzz/fuzz_targets");
        }
    };
}

replay! {
    json json_tensor npy csv base64 tfrecord event_stream records parquet
    predict open_inference classify invocations scoring simple routes multipart gzip
    http2 request_messages infer_messages tensor_proto text_proto warm_up
    pickle sklearn xgboost lightgbm catboost pmml spark h2o tflite openvino torch executorch foreign onnx mxnet saved_model
    archive images steps step_file mlmodel settings model_list users
}
