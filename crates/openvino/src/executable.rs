//! How requests become runs of a compiled model.

use std::sync::Arc;
use std::time::Instant;

use super::ffi::CompiledModel;
use super::fixed::{CopyFor, CopySource, FixedCopies};
use super::requests::{RequestPool, pool};
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor, TensorSpec};

/// A loaded model.
pub(super) struct OpenVinoExecutable {
    inputs: Vec<TensorSpec>,
    /// Whether a deadline cancels a run, which then takes place on a thread of the library.
    is_cancelled: bool,
    pool: RequestPool,
    copies: Option<Arc<FixedCopies>>,
}

impl OpenVinoExecutable {
    /// Runs `compiled`, whose files declare `signature`, within deadlines.
    ///
    /// # Errors
    /// As [`pool`].
    pub(super) fn new(signature: &Signature, compiled: CompiledModel) -> Result<Self> {
        let (inputs, pool) = (signature.inputs.clone(), pool(signature, compiled)?);
        Ok(OpenVinoExecutable { inputs, is_cancelled: true, pool, copies: None })
    }

    /// The same without deadlines, and with copies for single shapes.
    pub(super) fn with_copies(mut self, source: CopySource) -> Self {
        self.is_cancelled = false;
        self.copies = Some(FixedCopies::new(source));
        self
    }

    /// Refuses what OpenVINO does not take, with a message that names the input.
    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        for (spec, tensor) in self.inputs.iter().zip(inputs) {
            let (alias, dims) = (&spec.alias, tensor.shape().dims());
            let declared = spec.shape.sizes().unwrap_or_default();
            let fits = declared.len() == dims.len()
                && declared.iter().zip(dims).all(|(size, dim)| *size < 0 || size == dim);
            if !fits || dims.contains(&0) {
                let (given, takes) = (tensor.shape(), &spec.shape);
                return Err(Error::invalid(format!(
                    "input {alias:?} has shape {given:?}; the model takes {takes}, without empty dimensions"
                )));
            }
            if let Some(value) = beyond_32_bits(tensor) {
                return Err(Error::invalid(format!(
                    "input {alias:?} has the value {value}; OpenVINO computes integers with 32 bits on CPUs, from {} \
                     to {}",
                    i32::MIN,
                    i32::MAX
                )));
            }
        }
        Ok(())
    }
}

/// A value that the CPU plugin would change without a word: it has no integers of 64 bits, nor unsigned ones of 32.
fn beyond_32_bits(tensor: &Tensor) -> Option<String> {
    fn first<T: TryInto<i32> + Copy + ToString>(values: Option<&[T]>) -> Option<String> {
        let beyond = values?.iter().find(|value| TryInto::<i32>::try_into(**value).is_err())?;
        Some(beyond.to_string())
    }
    // Each of these is `None` for a tensor of another type.
    first(tensor.values::<i64>())
        .or_else(|| first(tensor.values::<u64>()))
        .or_else(|| first(tensor.values::<u32>()))
}

impl Executable for OpenVinoExecutable {
    fn prepares(&self) -> bool {
        self.copies.as_ref().is_some_and(|copies| copies.are_made())
    }

    fn run(&self, _: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        self.check(inputs)?;
        let timeout = options.timeout.filter(|_| self.is_cancelled);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let run = |pool: &RequestPool| {
            pool.with(|_| true, deadline, |request| request.run(inputs, deadline))
        };
        let Some(copies) = &self.copies else {
            return run(&self.pool).map_err(with_run_code);
        };
        let began = Instant::now();
        let outputs = match copies.of(inputs, options.threads) {
            CopyFor::Copied(copy) => run(&copy),
            CopyFor::None => run(&self.pool),
            CopyFor::Untried(key, copy) => {
                let any = run(&self.pool)?;
                let fixed = run(&copy);
                copies.judge(key, copy, (&any, &fixed));
                Ok(any)
            }
        };
        copies.took(inputs, began.elapsed());
        outputs.map_err(with_run_code)
    }
}

/// Gives a failed run the code that the library omits: the model could be prepared, so that an operation fails because
/// of its inputs.
fn with_run_code(error: Error) -> Error {
    if error.code() != Code::Unknown {
        return error;
    }
    Error::invalid(error.message().to_owned())
}
