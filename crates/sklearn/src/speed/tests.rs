//! The time of predictions. `tests/data/platforms/time_trees.py` compares it with that of the libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tensorserve_platform::{LoadOptions, ModelLoader, ModelPath, RunOptions};
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::{DType, Shape, Tensor, aligned_vec};

/// Rows of a run, and the number of runs that are timed together.
const RUNS: [(usize, usize); 2] = [(1, 10_000), (1000, 40)];

/// Prints the microseconds of a run, alone and of 1000 rows, for the model of a folder and its `rows.bin`,
/// which has doubles.
#[test]
#[ignore = "a measurement; needs an optimized build"]
#[allow(clippy::print_stdout)]
fn time_of_a_prediction() {
    let folder = std::env::var("TENSORSERVE_SPEED").expect("a folder");
    let folder = Path::new(&folder);
    let rows = fs::read(folder.join("rows.bin")).expect("rows");
    let rows: Vec<f64> =
        rows.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let entries = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let is_model = |path: &PathBuf| path.file_stem().is_some_and(|name| name == "model");
    let model = entries.into_iter().find(is_model).expect("a model");
    let platforms: [&FilePlatform; 4] = [
        &tensorserve_boosters::xgboost::XGBOOST,
        &tensorserve_boosters::lightgbm::LIGHTGBM,
        &tensorserve_boosters::catboost::CATBOOST,
        &crate::SCIKIT_LEARN,
    ];
    let platform = platforms.into_iter().find(|it| it.recognises(&ModelPath::new(&model)));
    let platform = platform.expect("a model of trees");
    let loaded = platform.load(&model, &LoadOptions::default()).expect("a model");
    let input = &loaded.signatures[0].inputs[0];
    let columns = input.shape.sizes().expect("a known shape")[1];
    let columns = usize::try_from(columns).expect("features");
    for (count, runs) in RUNS {
        let inputs = rows.chunks_exact(count * columns);
        let inputs: Vec<Tensor> =
            inputs.map(|rows| tensor(rows, count, columns, input.dtype())).collect();
        let mut times = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            for input in inputs.iter().cycle().take(runs) {
                let inputs = std::slice::from_ref(input);
                loaded.executable.run(0, inputs, RunOptions::default()).expect("runs");
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / runs as f64);
        }
        times.sort_by(f64::total_cmp);
        println!("{count} {}", times[2]);
    }
}

fn tensor(rows: &[f64], count: usize, columns: usize, dtype: Option<DType>) -> Tensor {
    let dims = [count, columns].map(|size| i64::try_from(size).expect("small"));
    let shape = Shape::new(&dims).expect("a shape");
    if dtype == Some(DType::Float) {
        let mut values = aligned_vec(rows.len());
        rows.iter().for_each(|value| values.push(*value as f32));
        return Tensor::from_vec(shape, values).expect("a tensor");
    }
    let mut values = aligned_vec(rows.len());
    values.extend_from_slice(rows);
    Tensor::from_vec(shape, values).expect("a tensor")
}
