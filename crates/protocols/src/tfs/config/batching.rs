//! `BatchingParameters`.

use std::path::Path;
use std::time::Duration;

use super::text;
use tensorserve_core::config::{BatchConfig, BatchMode, BatchParameters};
use tensorserve_proto::serving::BatchingParameters;
use tensorserve_tensor::error::{Error, Result};

/// The file with the parameters of one version, in its directory.
const FILE: &str = "batching_params.pbtxt";

/// The message that files of parameters hold.
const MESSAGE: &str = "tensorflow.serving.BatchingParameters";

/// TensorFlow Serving's batching parameters if there is no file.
#[must_use]
pub fn defaults() -> BatchParameters {
    BatchParameters {
        mode: Some(BatchMode::On),
        max_batch_size: Some(1000),
        batch_timeout: Some(Duration::ZERO),
        max_enqueued_batches: Some(10),
        ..BatchParameters::default()
    }
}

/// Reads a file of parameters: those of the batch queues, and the number of threads.
///
/// # Errors
/// If it cannot be read (with line and column), or a number is negative.
pub fn read(path: &Path) -> Result<(BatchParameters, Option<usize>)> {
    let parameters = text::read(path, MESSAGE)?;
    settings(&parameters).map_err(|e| e.context(path.display()))
}

/// The settings in `parameters`.
///
/// # Errors
/// If a number is negative.
pub fn settings(parameters: &BatchingParameters) -> Result<(BatchParameters, Option<usize>)> {
    let sizes = parameters.allowed_batch_sizes.iter();
    let sizes = sizes.map(|&size| not_negative("allowed_batch_sizes", size));
    let sizes: Vec<usize> = sizes.collect::<Result<_>>()?;
    let micros = count("batch_timeout_micros", parameters.batch_timeout_micros)?;
    let micros = micros.map(|micros| u64::try_from(micros).unwrap_or(u64::MAX));
    let settings = BatchParameters {
        mode: Some(BatchMode::On),
        max_batch_size: count("max_batch_size", parameters.max_batch_size)?,
        batch_timeout: micros.map(Duration::from_micros),
        // Zero would refuse every request that has to wait.
        max_enqueued_batches: count("max_enqueued_batches", parameters.max_enqueued_batches)?
            .map(|batches| batches.max(1)),
        allowed_batch_sizes: (!sizes.is_empty()).then_some(sizes),
        pad_variable_length_inputs: Some(parameters.pad_variable_length_inputs),
        enable_large_batch_splitting: parameters.enable_large_batch_splitting,
        max_execution_batch_size: count(
            "max_execution_batch_size",
            parameters.max_execution_batch_size.filter(|&size| size != 0),
        )?,
        independent_rows: None,
    };
    Ok((settings, count("num_batch_threads", parameters.num_batch_threads)?))
}

/// The batching parameters of the model version in `folder`: its own, or automatic batching.
///
/// # Errors
/// Those of [`read`], and parameters that contradict each other.
pub fn of_version(folder: &Path) -> Result<BatchConfig> {
    let path = folder.join(FILE);
    if path.symlink_metadata().is_err() {
        let settings = BatchParameters { mode: None, ..defaults() };
        return BatchConfig::new(&settings);
    }
    let parameters = text::read_within(folder, &path, MESSAGE)?;
    let (own, _) = settings(&parameters).map_err(|e| e.context(path.display()))?;
    BatchConfig::new(&own.or(&defaults())).map_err(|e| e.context(path.display()))
}

fn count(name: &str, value: Option<i64>) -> Result<Option<usize>> {
    value.map(|value| not_negative(name, value)).transpose()
}

fn not_negative(name: &str, value: i64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Error::invalid(format!("{name} must not be negative; was {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<BatchConfig> {
        let folder = tempfile::tempdir().expect("a directory");
        std::fs::write(folder.path().join(FILE), text).expect("written");
        of_version(folder.path())
    }

    #[test]
    fn parameters_override_tensorflow_servings_defaults() {
        let config = read_text(
            "max_batch_size { value: 16 } batch_timeout_micros { value: 2000 }\n\
             allowed_batch_sizes: 4 allowed_batch_sizes: 16 num_batch_threads { value: 2 }\n\
             max_enqueued_batches { value: 0 }",
        )
        .expect("valid");
        assert_eq!(config.mode, BatchMode::On);
        assert_eq!(config.max_batch_size, 16);
        assert_eq!(config.batch_timeout, Duration::from_millis(2));
        assert_eq!(config.allowed_batch_sizes, [4, 16]);
        assert_eq!(config.max_enqueued_batches, 1);
        let config = read_text("").expect("valid");
        assert_eq!((config.max_batch_size, config.max_enqueued_batches), (1000, 10));
    }

    #[test]
    fn without_a_file_batching_is_automatic() {
        let folder = tempfile::tempdir().expect("a directory");
        let config = of_version(folder.path()).expect("valid");
        assert_eq!(config.mode, BatchMode::Auto);
    }

    #[test]
    fn mistakes() {
        let refused = |text: &str| read_text(text).expect_err("wrong").message().to_owned();
        assert!(refused("max_batch_size: 16").contains("1:"));
        assert!(refused("max_batch_size { value: -1 }").contains("must not be negative; was -1"));
        let text = "max_batch_size { value: 8 } allowed_batch_sizes: 4";
        let error = refused(text);
        assert!(error.contains("last entry was 4; expected 8"), "{error}");
    }
}
