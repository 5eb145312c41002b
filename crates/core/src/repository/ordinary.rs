//! A form of a version that runs for ordinary numbers only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::servable::LoadedVersion;
use crate::config::OptimizeMode;
use tensorserve_platform::{
    Executable, LARGEST_KEPT, Optimization, OptimizedModel, Profiled, RunOptions,
};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, LARGEST_ORDINARY_FLOAT, Tensor};

impl LoadedVersion {
    /// Whether a form of it may round otherwise: it must stay loaded beside that, for numbers that rounding makes infinite or NaN.
    pub(super) fn may_round(&self) -> bool {
        self.forms.mode() == OptimizeMode::Fast && self.bytes() <= LARGEST_KEPT
    }

    /// The form, with the version as it was loaded beside it if it needs that, or if it may round otherwise.
    pub(super) fn for_ordinary(&self, found: Optimization) -> Optimization {
        let Optimization::Made(made) = found else {
            return found;
        };
        if !made.needs_original && !self.may_round() {
            return Optimization::Made(made);
        }
        let takes_unknown = !made.needs_original;
        let (form, original) = (made.executable, self.executable.current());
        let largest = LARGEST_ORDINARY_FLOAT;
        let executable = Arc::new(OrdinaryForm { form, original, takes_unknown, largest });
        Optimization::Made(OptimizedModel { executable, ..made })
    }
}

/// A form, beside the version as it was loaded, which runs where their operations may compute something else: a sum in
/// another order is infinite or not near the largest floats, and one operation makes 0 of a NaN that another one keeps.
pub(super) struct OrdinaryForm {
    pub(super) form: Arc<dyn Executable>,
    pub(super) original: Arc<dyn Executable>,
    /// Whether the form runs also for floats of other sizes than 32 bits, and for inputs that have no magnitude, such as strings.
    pub(super) takes_unknown: bool,
    /// The largest magnitude of floats for which the form runs.
    pub(super) largest: f32,
}

impl OrdinaryForm {
    fn are_within(&self, tensors: &[Tensor], largest: f32) -> bool {
        let is_within = |tensor: &Tensor| {
            let dtype = tensor.dtype();
            if dtype == DType::Float || (dtype.is_float() && self.takes_unknown) {
                return tensor.has_floats_within(largest);
            }
            dtype.is_integer_or_bool() || self.takes_unknown
        };
        tensors.iter().all(is_within)
    }
}

impl Executable for OrdinaryForm {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let began = Instant::now();
        if self.are_within(inputs, self.largest)
            && let Ok(outputs) = self.form.run(signature, inputs, options)
            && self.are_within(&outputs, f32::MAX)
        {
            return Ok(outputs);
        }
        self.original.run(signature, inputs, options.left_since(began))
    }

    fn runs_on_gpu(&self) -> bool {
        self.form.runs_on_gpu()
    }

    fn other_cpu_time(&self) -> Option<Duration> {
        self.form.other_cpu_time()
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        self.form.profile(signature, inputs, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::error::Error;
    use tensorserve_tensor::{Element, Shape, StringsBuilder, aligned_vec};

    /// Gives this number, or an error.
    struct Gives(Option<f32>);

    impl Executable for Gives {
        fn run(&self, _: usize, _: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
            let value = self.0.ok_or_else(|| Error::internal("it has failed"))?;
            Ok(vec![of_values::<f32>(&[value])])
        }
    }

    fn of_values<T: Element>(values: &[T]) -> Tensor {
        let shape = Shape::new(&[i64::try_from(values.len()).expect("few")]).expect("a shape");
        let mut buffer = aligned_vec::<T>(values.len());
        values.iter().for_each(|value| buffer.push(*value));
        Tensor::from_vec(shape, buffer).expect("a tensor")
    }

    fn word() -> Tensor {
        let mut words = StringsBuilder::with_capacity(1, 4);
        words.push(b"NaN");
        Tensor::from_strings(Shape::new(&[1]).expect("a shape"), words).expect("a tensor")
    }

    #[test]
    fn other_numbers_are_for_the_version_as_it_was_loaded() {
        const ORIGINAL: f32 = 2.0;
        let answer = |form: Option<f32>, takes_unknown, input: Tensor| {
            let (form, original) = (Arc::new(Gives(form)), Arc::new(Gives(Some(ORIGINAL))));
            let largest = LARGEST_ORDINARY_FLOAT;
            let both = OrdinaryForm { form, original, takes_unknown, largest };
            let outputs = both.run(0, &[input], RunOptions::default()).expect("an answer");
            outputs[0].values::<f32>().expect("floats")[0]
        };
        for takes_unknown in [false, true] {
            assert_eq!(answer(Some(1.0), takes_unknown, of_values::<f32>(&[0.5, -1e12])), 1.0);
            assert_eq!(answer(Some(1.0), takes_unknown, of_values::<f32>(&[])), 1.0);
            for other in [f32::NAN, f32::INFINITY, f32::MIN, 1.1e12] {
                let input = of_values::<f32>(&[0.5, other]);
                assert_eq!(answer(Some(1.0), takes_unknown, input), ORIGINAL, "{other}");
            }
            for output in [Some(f32::NAN), Some(f32::NEG_INFINITY), None] {
                assert_eq!(
                    answer(output, takes_unknown, of_values::<f32>(&[0.5])),
                    ORIGINAL,
                    "{output:?}"
                );
            }
        }
        for (value, expected) in
            [(9e11, 1.0), (f64::NAN, ORIGINAL), (1.1e12, ORIGINAL), (f64::MIN, ORIGINAL)]
        {
            let input = of_values::<f64>(&[0.5, value]);
            assert_eq!(answer(Some(1.0), true, input.clone()), expected, "{value}");
            assert_eq!(answer(Some(1.0), false, input), ORIGINAL, "{value}");
        }
        assert_eq!(answer(Some(1.0), true, word()), 1.0);
        assert_eq!(answer(Some(1.0), false, word()), ORIGINAL);
    }
}
