//! The bare loop: threads take the next batch, decode it, run it, and drop the outputs.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};
use tensorserve::config::environment::Environment;
use tensorserve::config::{Config, Settings};
use tensorserve_boosters::xgboost::XGBOOST;
use tensorserve_codec::csv;
use tensorserve_platform::{Executable, LoadOptions, ModelLoader, RunOptions};
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor};
use tensorserve_tensorflow::TensorFlow;

use crate::case::{Case, Inputs};
use crate::process::threads;

/// Read from a file at once.
const BLOCK: usize = 1 << 20;

pub fn run(case: &Case, input: &Path) {
    let (executable, signature) = load(&case.model);
    let mut files: Vec<PathBuf> = std::fs::read_dir(input)
        .expect("inputs")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    let run = |tensor: Tensor| {
        let options = RunOptions { threads: 1, timeout: None };
        black_box(executable.run(signature, &[tensor], options).expect("runs"));
    };
    match case.inputs {
        Inputs::Csv { .. } => {
            let next = AtomicUsize::new(0);
            on_threads(|| {
                while let Some(file) = files.get(next.fetch_add(1, Relaxed)) {
                    let mut lines = Lines::open(file);
                    while let Some(batch) = lines.next(case.batch_rows) {
                        run(csv::numbers(&batch, DType::Float, usize::MAX).expect("numbers"));
                    }
                }
            });
        }
        Inputs::Jpeg { .. } => {
            let batches: Vec<&[PathBuf]> = files.chunks(case.batch_rows).collect();
            let next = AtomicUsize::new(0);
            on_threads(|| {
                while let Some(batch) = batches.get(next.fetch_add(1, Relaxed)) {
                    let mut strings = StringsBuilder::default();
                    for file in *batch {
                        strings.push(&std::fs::read(file).expect("a file"));
                    }
                    run(Tensor::from_strings(Shape::vector(batch.len()), strings).expect("images"));
                }
            });
        }
    }
}

fn on_threads(work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(&work);
        }
    });
}

fn load(model: &Path) -> (Arc<dyn Executable>, usize) {
    let options = LoadOptions { threads: threads(), ..LoadOptions::default() };
    let loaded = if model.is_file() {
        XGBOOST.load(model, &options).expect("loads")
    } else {
        let config = Config::new(Settings::default(), &Environment::of_process()).expect("valid");
        let newest = (1..=9).rev().map(|version| model.join(version.to_string()));
        let folder = newest.into_iter().find(|folder| folder.is_dir()).expect("a version");
        TensorFlow::new(config.tensorflow).load(&folder, &options).expect("loads")
    };
    let default = loaded.signatures.iter().position(|s| s.name == "serving_default");
    (loaded.executable, default.expect("a signature"))
}

/// The lines of a file, some at a time.
struct Lines {
    file: File,
    read: BytesMut,
}

impl Lines {
    fn open(path: &Path) -> Self {
        Lines { file: File::open(path).expect("opens"), read: BytesMut::new() }
    }

    /// The next `count` lines, or those that are left.
    fn next(&mut self, count: usize) -> Option<Bytes> {
        let (mut searched, mut found) = (0, 0);
        loop {
            for place in memchr::memchr_iter(b'\n', &self.read[searched..]) {
                found += 1;
                if found == count {
                    return Some(self.read.split_to(searched + place + 1).freeze());
                }
            }
            searched = self.read.len();
            if self.read_more() == 0 {
                return (!self.read.is_empty()).then(|| self.read.split().freeze());
            }
        }
    }

    fn read_more(&mut self) -> usize {
        let before = self.read.len();
        self.read.resize(before + BLOCK, 0);
        let count = self.file.read(&mut self.read[before..]).expect("reads");
        self.read.truncate(before + count);
        count
    }
}
