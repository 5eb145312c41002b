//! libtensorflow in a bare loop, through the bindings that the server uses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorserve::config::environment::Environment;
use tensorserve::config::{Config, Settings};
use tensorserve_platform::{Executable, LoadOptions, ModelLoader, RunOptions};
use tensorserve_tensorflow::TensorFlow;

use crate::process;
use crate::scenario::{Scenario, project};

pub const BATCHES: [usize; 4] = [1, 8, 32, 128];

/// How long each batch size runs per round.
const TIME: Duration = Duration::from_millis(150);

pub struct Raw(Vec<(&'static str, Arc<dyn Executable>, usize)>);

impl Raw {
    pub fn load(scenarios: &[Scenario]) -> Self {
        let environment = Environment::of_process();
        // This variable applies to the server too, which inherits the environment.
        let mut settings = Settings::default();
        let threads = environment.get("TENSORSERVE_INTRA_OP_THREADS");
        settings.server.intra_op_threads = threads.map(|n| n.parse().expect("a number"));
        let config = Config::new(settings, &environment).expect("settings");
        let tensorflow = TensorFlow::new(config.tensorflow);
        let load = |scenario: &Scenario| {
            let folder = project(scenario.folder).join(scenario.name);
            let newest = (1..=9).rev().map(|v| folder.join(v.to_string())).find(|f| f.is_dir());
            let options = LoadOptions { threads: 1, ..LoadOptions::default() };
            let loaded = tensorflow.load(&newest.expect("a version"), &options).expect("loads");
            let index = loaded.signatures.iter().position(|s| s.name == "serving_default");
            (scenario.name, loaded.executable, index.expect("a signature"))
        };
        Raw(scenarios.iter().map(load).collect())
    }

    /// Microseconds of CPU time per call for each batch size.
    pub fn run(&self, scenario: &Scenario) -> Vec<(usize, f64)> {
        let (_, executable, signature) =
            self.0.iter().find(|(name, ..)| *name == scenario.name).expect("loaded");
        let time = |batch: usize| {
            let inputs = (scenario.inputs)(batch);
            let options = RunOptions { threads: 1, timeout: None };
            let run = || executable.run(*signature, &inputs, options).expect("runs");
            (0..3).for_each(|_| drop(run()));
            // Of the whole process: the runtime may use its own threads.
            let id = std::process::id();
            let before = process::cpu_of(id);
            let start = Instant::now();
            let mut calls = 0;
            while start.elapsed() < TIME {
                (0..8).for_each(|_| drop(run()));
                calls += 8;
            }
            (process::cpu_of(id) - before).as_secs_f64() * 1e6 / f64::from(calls)
        };
        BATCHES.map(|batch| (batch, time(batch))).to_vec()
    }
}

/// CPU time of this thread.
pub fn thread_cpu() -> Duration {
    tensorserve_os::thread_cpu_time().expect("the CPU time of a thread")
}
