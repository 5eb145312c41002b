//! A measurement. The tests with libtorch are in `tests/clients/pytorch`, which installs it.

use std::time::{Duration, Instant};

use super::*;
use tensorserve_platform::library::SearchFolder;
use tensorserve_platform::synthetic_inputs;

/// Prints the time of a run through the platform beside that of the same run of the shim alone, in turns:
///
/// ```sh
/// TORCH_MODEL=resnet18.pt2 TENSORSERVE_LIB_DIR=$PWD/lib \
///     cargo test --release -p tensorserve-torch -- --ignored --nocapture measure
/// ```
#[test]
#[ignore = "a measurement, which needs libtorch"]
#[allow(clippy::print_stdout)]
fn measure_what_the_platform_adds_to_a_run() {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let model = variable("TORCH_MODEL").expect("TORCH_MODEL names a file");
    let search = variable("TENSORSERVE_LIB_DIR").into_iter().map(SearchFolder::from).collect();
    let torch = Torch::new(TorchConfig { library: variable("TENSORSERVE_LIBTORCH"), search });
    let options = LoadOptions { threads: 2, ..LoadOptions::default() };
    let open = torch.open_model(&model, &options).expect("a model");
    let loaded = torch.load(&model, &options).expect("a model");
    let routes: Vec<InputRoute> = open.inputs.iter().map(|plan| plan.route.clone()).collect();
    let inputs = synthetic_inputs(&open.signature, 1).expect("inputs");
    let alone = || {
        let options = RunOptions { threads: 2, ..RunOptions::default() };
        let mut outputs = open.model.run(&routes, &inputs, options).expect("outputs");
        (0..outputs.len()).map(|index| outputs.take(index).expect("a tensor").byte_len()).sum()
    };
    let through = || {
        let outputs = loaded.executable.run(0, &inputs, RunOptions::default()).expect("outputs");
        outputs.iter().map(Tensor::byte_len).sum()
    };
    let time = |run: &dyn Fn() -> usize| {
        let start = Instant::now();
        std::hint::black_box(run());
        start.elapsed()
    };
    let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..400 {
        times[0].push(time(&alone));
        times[1].push(time(&through));
    }
    times.iter_mut().for_each(|times| times.sort());
    let [alone, through] = times.map(|times| times[times.len() / 2].as_secs_f64() * 1e6);
    println!("alone {alone:.1} µs, through the platform {through:.1} µs: {:.4}", through / alone);
    assert!(through < alone * 1.5, "the platform takes half as long as the run");
}
