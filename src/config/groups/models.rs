//! The settings that models have in common, and that each can have for itself.

use std::path::PathBuf;
use std::time::Duration;

use clap::Arg;

use super::rules::{above_zero, at_least_one, is_neither, is_not, operations, share, some_time};
use super::{AsWritten, option, shown};
use crate::config::units::{ByteSize, CommaSeparated, HumanDuration};
use crate::config::value::SettingValue;
use crate::config::written::WrittenValue;
use crate::config::{
    BatchConfig, BatchMode, BatchParameters, EngineChoice, Images, OptimizeMode, PLATFORMS,
    VersionTransition,
};
use tensorserve_core::comparison::MAX_SLOWDOWN;
use tensorserve_core::config::ReleaseConfig;

/// Where a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// In the server's own process.
    None,
    /// In a process of its own.
    Process,
}

/// How a new version comes to take traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseKind {
    /// When it is ready.
    Open,
    /// When it has passed a trial.
    Gated,
}

/// What runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// This program.
    Native,
    /// Processes of the user's Python.
    Python,
}

/// Whether a row of a batch gets the results that it gets alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowIndependence {
    /// As the graph of the model shows.
    Auto,
    /// Yes: the operator says so.
    Independent,
}

settings! {
    /// Settings that every model can have for itself.
    #[help_heading("Models (in the file, also for each model)")]
    pub struct EachModelSettings {
        /// Platform of the models
        #[arg(value_name = "NAME", value_parser = AsWritten(PLATFORMS))]
        #[unset("detected from their files")]
        platform: String,
        /// Versions to serve: latest, latest:N, all or specific:1,2
        #[arg(value_name = "POLICY")]
        #[default("latest".to_owned())]
        version_policy: String,
        /// How one version replaces another: availability_preserving loads the new version first,
        /// resource_preserving unloads the old version first
        #[arg(value_name = "KIND")]
        #[one_of(
            is_not, VersionTransition:
            "availability_preserving" => VersionTransition::AvailabilityPreserving,
            "resource_preserving" => VersionTransition::ResourcePreserving
        )]
        version_transition: String,
        /// How a new version takes traffic while another one serves: open at once, gated once it has answered recorded
        /// requests as the other one does
        #[arg(value_name = "KIND", help_heading = "Releases")]
        #[one_of(is_neither, ReleaseKind: "open" => ReleaseKind::Open, "gated" => ReleaseKind::Gated)]
        release: String,
        /// How much values may differ, as a fraction of the largest finite magnitude in their output: for all outputs, or
        /// for one after its name (scores=0.01), separated by commas
        #[arg(value_name = "LIST", help_heading = "Releases")]
        #[unset("1e-3, and 2e-2 for floats of 2 bytes")]
        release_tolerance: CommaSeparated<String>,
        /// In which share of all rows the K largest values must be at the same places, as K:SHARE
        #[arg(value_name = "LIST", help_heading = "Releases")]
        #[unset("none")]
        release_top: CommaSeparated<String>,
        /// Largest population stability index of the values of all requests
        #[arg(value_name = "LIST", help_heading = "Releases")]
        #[unset("none")]
        release_max_psi: CommaSeparated<String>,
        /// Largest Kolmogorov-Smirnov statistic of the values of all requests
        #[arg(value_name = "LIST", help_heading = "Releases")]
        #[unset("none")]
        release_max_ks: CommaSeparated<String>,
        /// How many times as long as those of the old version the runs of a new one may take, by their medians
        #[arg(value_name = "FACTOR", help_heading = "Releases")]
        #[default(MAX_SLOWDOWN)]
        #[check(above_zero)]
        release_max_slowdown: f64,
        /// Accept signatures, inputs and outputs that are missing or have another type or shape
        #[arg(value_name = "BOOL", help_heading = "Releases")]
        #[default(false)]
        release_allow_changes: bool,
        /// Maximum number of recorded requests to run on both versions
        #[arg(value_name = "N", help_heading = "Releases")]
        #[default(ReleaseConfig::default().most_requests)]
        #[check(at_least_one)]
        release_requests: usize,
        /// Time after the switch in which errors or slow answers bring the old version back; 0 for none
        #[arg(value_name = "DURATION", help_heading = "Releases")]
        #[default(HumanDuration(ReleaseConfig::default().watch))]
        release_watch: HumanDuration,
        /// Tags of the SavedModel graph to load, separated by commas
        #[arg(value_name = "LIST")]
        #[default(CommaSeparated(vec!["serve".to_owned()]))]
        tags: CommaSeparated<String>,
        /// Operations for which a TensorFlow or PyTorch model is refused: names, or external for
        /// all that access files, the network or Python
        #[arg(value_name = "LIST")]
        #[unset("none; external ones are reported")]
        #[check(operations)]
        deny_ops: CommaSeparated<String>,
        /// Operations that deny_ops does not refuse and that are not reported: names, or external
        #[arg(value_name = "LIST")]
        #[unset("none")]
        #[check(operations)]
        allow_ops: CommaSeparated<String>,
        /// Where the models run: none for the server's own process, process for a child process per
        /// version, which is started again if it crashes
        #[arg(value_name = "KIND")]
        #[one_of(is_neither, Isolation: "none" => Isolation::None, "process" => Isolation::Process)]
        isolation: String,
        /// What runs the models: native for this program, python for processes of your Python,
        /// where loading a model runs code that its file contains
        #[arg(value_name = "KIND", help_heading = "Models in Python")]
        #[one_of(is_neither, Runner: "native" => Runner::Native, "python" => Runner::Python)]
        runner: String,
        /// Python interpreter of models with runner = "python"
        #[arg(value_name = "PATH", help_heading = "Models in Python")]
        #[unset("that of the setting python")]
        runner_python: PathBuf,
        /// Number of worker processes for each version of such a model
        #[arg(value_name = "N", help_heading = "Models in Python")]
        #[unset("one per core, 2 to 8")]
        #[check(at_least_one)]
        runner_workers: usize,
        /// Time limit of a run, after which its worker process is replaced
        #[arg(value_name = "DURATION", help_heading = "Models in Python")]
        #[default(HumanDuration::seconds(60))]
        #[check(some_time)]
        runner_timeout: HumanDuration,
        /// Memory of a worker process above which it is replaced
        #[arg(value_name = "SIZE", help_heading = "Models in Python")]
        #[unset("no limit")]
        runner_memory_limit: ByteSize,
        /// Types that .skops files may have, besides those that skops trusts, separated by commas
        #[arg(value_name = "LIST", help_heading = "Models in Python")]
        #[unset("none")]
        runner_trusted_types: CommaSeparated<String>,
        /// How uploaded images are passed to the model: raw bytes, URL-safe base64, or auto to
        /// choose by the graph
        #[arg(value_name = "KIND")]
        #[one_of(
            is_not, Images:
            "auto" => Images::Auto,
            "raw" => Images::Raw,
            "base64" => Images::Base64
        )]
        images: String,
        /// Keep responses within response_cache_bytes, to answer equal requests with them, where
        /// equal requests always get equal responses
        #[arg(value_name = "BOOL", help_heading = "Traffic")]
        #[default(false)]
        response_cache: bool,
        /// Maximum number of requests of a model that wait for a batch or run; further ones are
        /// refused
        #[arg(value_name = "N")]
        #[unset("no limit")]
        #[check(at_least_one)]
        max_concurrent_requests: usize,
        /// Run synthetic inputs and recorded requests before a version is ready
        #[arg(value_name = "BOOL")]
        #[default(true)]
        warm_up: bool,
        /// Directory with an inference.py for SageMaker requests
        #[arg(value_name = "PATH")]
        #[unset("none")]
        code: PathBuf,
        /// Number of times to run each recorded request during the warm-up
        #[arg(value_name = "N")]
        #[default(1)]
        #[check(at_least_one)]
        warm_up_iterations: usize,
        /// Write sampled requests to files in this directory, or to files with this path as prefix
        #[arg(value_name = "PATH")]
        #[unset("no request log")]
        request_log: PathBuf,
        /// Fraction of the requests to log, 0 to 1
        #[arg(value_name = "FRACTION")]
        #[default(1.0)]
        #[check(share)]
        request_log_sampling_rate: f64,
        /// Size at which the request log continues in a new file
        #[arg(value_name = "SIZE")]
        #[default(ByteSize(64 << 20))]
        request_log_file_bytes: ByteSize,
        /// Say with each answer, in the header x-tensorserve-receipt, which version made it: the
        /// digest of its files, and the hashes of inputs and outputs
        #[arg(value_name = "BOOL")]
        #[default(false)]
        receipts: bool,
        /// Let a version run with less CPU time, with the variables of a SavedModel as constants: exact
        /// where outputs are found to be equal to the bit, fast where they are within 1e-3, or off
        #[arg(value_name = "MODE")]
        #[one_of(
            is_not, OptimizeMode:
            "off" => OptimizeMode::Off,
            "exact" => OptimizeMode::Exact,
            "fast" => OptimizeMode::Fast
        )]
        optimize: String,
        /// What runs the models of TensorFlow: tensorflow; openvino, in a process of its own, for what it is known
        /// to compute alike and within 1e-3; or auto, which takes OpenVINO where it needs at most 0.85 of the CPU time
        #[arg(value_name = "ENGINE")]
        #[one_of(
            is_not, EngineChoice:
            "tensorflow" => EngineChoice::TensorFlow,
            "openvino" => EngineChoice::OpenVino,
            "auto" => EngineChoice::Auto
        )]
        engine: String,
    }
}

settings! {
    /// Batching, with TensorFlow Serving's names and meanings.
    #[help_heading("Batching (in the file, also for each model)")]
    pub struct BatchSettings {
        /// Batch concurrent requests: on, off, or auto, which batches where results stay the same
        /// and throughput improves
        #[arg(value_name = "MODE")]
        #[one_of(
            is_not, BatchMode:
            "auto" => BatchMode::Auto,
            "on" => BatchMode::On,
            "off" => BatchMode::Off;
            "true" => BatchMode::On,
            "false" => BatchMode::Off
        )]
        batching: String,
        /// Whether a row of a batch gets the results that it gets alone: auto, as the model's graph
        /// shows, or independent, for models without a readable graph
        #[arg(value_name = "ROWS")]
        #[one_of(is_not, RowIndependence: "auto" => RowIndependence::Auto, "independent" => RowIndependence::Independent)]
        rows: String,
        /// Maximum number of rows in a batch
        #[arg(value_name = "ROWS")]
        #[default(BatchConfig::default().max_batch_size)]
        max_batch_size: usize,
        /// Maximum time in microseconds that a batch waits for more rows while another batch runs
        #[arg(value_name = "MICROS")]
        #[default(micros(BatchConfig::default().batch_timeout))]
        batch_timeout_micros: u64,
        /// Maximum number of full batches in a queue; further requests are refused
        #[arg(value_name = "N")]
        #[default(BatchConfig::default().max_enqueued_batches)]
        max_enqueued_batches: usize,
        /// Batch sizes to pad to, ascending, separated by commas
        #[arg(value_name = "LIST")]
        #[unset("any")]
        allowed_batch_sizes: CommaSeparated<usize>,
        /// Pad inputs of different shapes so that they can be batched
        #[arg(value_name = "BOOL")]
        #[default(BatchConfig::default().pad_variable_length_inputs)]
        pad_variable_length_inputs: bool,
        /// Split requests with more rows than a batch instead of refusing them
        #[arg(value_name = "BOOL")]
        #[default(BatchConfig::default().enable_large_batch_splitting)]
        enable_large_batch_splitting: bool,
        /// Maximum number of rows in a batch when requests are split
        #[arg(value_name = "ROWS")]
        #[unset("max_batch_size")]
        max_execution_batch_size: usize,
    }
}

impl BatchSettings {
    /// The parameters that are set.
    pub(crate) fn parameters(&self) -> BatchParameters {
        BatchParameters {
            mode: self.batching.is_some().then(|| self.batching()),
            independent_rows: self
                .rows
                .is_some()
                .then(|| self.rows() == RowIndependence::Independent),
            max_batch_size: self.max_batch_size,
            batch_timeout: self.batch_timeout_micros.map(Duration::from_micros),
            max_enqueued_batches: self.max_enqueued_batches,
            allowed_batch_sizes: self
                .allowed_batch_sizes
                .clone()
                .map(|CommaSeparated(sizes)| sizes),
            pad_variable_length_inputs: self.pad_variable_length_inputs,
            enable_large_batch_splitting: self.enable_large_batch_splitting,
            max_execution_batch_size: self.max_execution_batch_size,
        }
    }
}

/// The microseconds of `time`.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl From<BatchParameters> for BatchSettings {
    fn from(parameters: BatchParameters) -> Self {
        let mode = parameters.mode.map(|mode| match mode {
            BatchMode::Off => "off",
            BatchMode::Auto => "auto",
            BatchMode::On => "on",
        });
        let rows = |independent| if independent { "independent" } else { "auto" };
        BatchSettings {
            batching: mode.map(str::to_owned),
            rows: parameters.independent_rows.map(|independent| rows(independent).to_owned()),
            max_batch_size: parameters.max_batch_size,
            batch_timeout_micros: parameters.batch_timeout.map(micros),
            max_enqueued_batches: parameters.max_enqueued_batches,
            allowed_batch_sizes: parameters.allowed_batch_sizes.map(CommaSeparated),
            pad_variable_length_inputs: parameters.pad_variable_length_inputs,
            enable_large_batch_splitting: parameters.enable_large_batch_splitting,
            max_execution_batch_size: parameters.max_execution_batch_size,
        }
    }
}
