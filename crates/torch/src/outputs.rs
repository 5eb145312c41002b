//! The outputs of a signature. PyTorch's files do not declare them: they are learnt from runs on zeros, and a
//! `tensorserve.toml` may name them and give their types and shapes.

use super::ffi::TorchOutputs;
use super::inputs::InputPlan;
use tensorserve_platform::synthetic_input;
use tensorserve_preprocessing::{DeclaredOutput, FILE_NAME, wrong_declaration};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DeclaredShape, Signature, Tensor, TensorSpec};

/// An output of the signature.
#[derive(Clone, Debug)]
pub(crate) struct OutputPlan {
    pub(crate) spec: TensorSpec,
    /// Its name in the module, and its number there, which usually has that name.
    name: String,
    index: usize,
}

impl OutputPlan {
    /// Takes it from the outputs of a run.
    ///
    /// # Errors
    /// [`Code::Internal`] if the run did not return it, or another type than the signature says.
    pub(crate) fn take(&self, outputs: &mut TorchOutputs) -> Result<Tensor> {
        let is_it = |index: &usize| outputs.name(*index) == self.name.as_bytes();
        let found = Some(self.index).filter(is_it).or_else(|| (0..outputs.len()).find(is_it));
        // A module without learnt outputs may have other names than those that are declared.
        let index = found.unwrap_or(self.index);
        let alias = &self.spec.alias;
        if index >= outputs.len() {
            return Err(Error::internal(format!("the module did not return the output {alias:?}")));
        }
        self.accept(outputs.take(index)?)
    }

    /// Its number in the module.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The tensor that a run has returned for it.
    ///
    /// # Errors
    /// [`Code::Internal`] if it has another type than the signature says.
    pub(crate) fn accept(&self, tensor: Tensor) -> Result<Tensor> {
        if Some(tensor.dtype()) != self.spec.dtype() {
            let wanted = self.spec.dtype().map_or("unknown", |dtype| dtype.python_name());
            return Err(Error::internal(format!(
                "the output {:?} is {}, and its signature says {wanted}",
                self.spec.alias,
                tensor.dtype().python_name()
            )));
        }
        Ok(tensor)
    }
}

/// Sizes for dimensions that vary, in the order in which they are tried. Convolutions refuse sizes below their
/// kernel's.
const SIZES: [i64; 9] = [8, 32, 64, 224, 1, 2, 3, 4, 16];

/// Rows of the runs that show which dimensions grow with the rows.
const ROWS: [i64; 2] = [2, 3];

/// The shapes that are tried for an input without a known rank.
const SHAPES: usize = 3;

/// Runs a model on tensors for all inputs. Returns all outputs with their names.
pub(crate) type ModelRun<'a> = dyn Fn(&[Tensor]) -> Result<Vec<(String, Tensor)>> + 'a;

/// What runs on zeros show: the type and shape of every output, and the shapes of the inputs of the first run that
/// has succeeded.
pub(crate) struct Learnt {
    pub(crate) outputs: Vec<TensorSpec>,
    pub(crate) ran_with: Vec<(String, Vec<i64>)>,
}

/// Runs the model on zeros.
///
/// # Errors
/// That of the first run, if all of them fail.
pub(crate) fn learn(run: &ModelRun, inputs: &[InputPlan]) -> Result<Learnt> {
    let is_known = |plan: &InputPlan| matches!(plan.spec.shape, DeclaredShape::Dims(_));
    let is_known = inputs.iter().all(is_known);
    let mut why = None;
    for shape in 0..if is_known { 1 } else { SHAPES } {
        for size in SIZES {
            let trial = ZeroRun { rows: ROWS[0], size, shape };
            let first = match trial.run(run, inputs) {
                Ok(first) => first,
                Err(error) => {
                    why = why.or(Some(error));
                    continue;
                }
            };
            let outputs = match is_known {
                true => compare(run, inputs, trial, first),
                false => first.into_iter().map(of_any_rank).collect(),
            };
            let shape = |plan: &InputPlan| (plan.spec.alias.clone(), trial.dims(plan));
            return Ok(Learnt { outputs, ran_with: inputs.iter().map(shape).collect() });
        }
    }
    Err(why.unwrap_or_else(|| Error::internal("no run was tried")))
}

/// The outputs under these names, if there are as many. Their tensors keep the names of the module.
pub(crate) fn named(mut outputs: Vec<TensorSpec>, names: &[String]) -> Vec<TensorSpec> {
    if names.len() == outputs.len() {
        outputs.iter_mut().zip(names).for_each(|(spec, name)| spec.alias.clone_from(name));
    }
    outputs
}

fn of_any_rank(spec: TensorSpec) -> TensorSpec {
    TensorSpec { shape: DeclaredShape::UnknownRank, ..spec }
}

/// The outputs of the first run, with -1 for what differs in runs with other sizes.
fn compare(
    run: &ModelRun,
    inputs: &[InputPlan],
    trial: ZeroRun,
    first: Vec<TensorSpec>,
) -> Vec<TensorSpec> {
    let mut outputs = first;
    let more_rows = ZeroRun { rows: ROWS[1], ..trial };
    let other_sizes = [trial.size + 1, trial.size * 2].map(|size| ZeroRun { size, ..trial });
    let varies = |sizes: Vec<i64>| sizes.into_iter().skip(1).any(|size| size < 0);
    let has_sizes = inputs.iter().filter_map(|plan| plan.spec.shape.sizes()).any(varies);
    let mut runs = vec![more_rows.run(run, inputs).ok()];
    if has_sizes {
        let mut tried = other_sizes.iter().map(|trial| trial.run(run, inputs));
        runs.push(tried.find_map(Result::ok));
    }
    for other in runs {
        let Some(other) = other.filter(|other| other.len() == outputs.len()) else {
            return outputs.into_iter().map(of_any_rank).collect();
        };
        for (known, other) in outputs.iter_mut().zip(other) {
            known.shape = common(&known.shape, &other.shape);
        }
    }
    outputs
}

fn common(one: &DeclaredShape, other: &DeclaredShape) -> DeclaredShape {
    match (one.sizes(), other.sizes()) {
        (Some(one), Some(other)) if one.len() == other.len() => {
            let sizes = one.iter().zip(&other).map(|(a, b)| if a == b { *a } else { -1 });
            DeclaredShape::Dims(sizes.map(|size| (size, String::new())).collect())
        }
        _ => DeclaredShape::UnknownRank,
    }
}

/// A run on zeros.
#[derive(Clone, Copy)]
struct ZeroRun {
    /// The size of 0-th dimensions that vary.
    rows: i64,
    /// The size of other dimensions that vary.
    size: i64,
    /// Which shape inputs without a known rank have.
    shape: usize,
}

impl ZeroRun {
    fn run(self, run: &ModelRun, inputs: &[InputPlan]) -> Result<Vec<TensorSpec>> {
        let nothing = Signature::only(Vec::new(), Vec::new());
        let large =
            || Error::new(Code::ResourceExhausted, "an input is too large for a run on zeros");
        let mut tensors = Vec::new();
        for plan in inputs {
            let dims = self.dims(plan);
            tensors.push(synthetic_input(&plan.spec, &nothing, &dims).ok_or_else(large)?);
        }
        let spec = |(name, tensor): (String, Tensor)| {
            TensorSpec::new(name, tensor.dtype(), tensor.shape().dims())
        };
        Ok(run(&tensors)?.into_iter().map(spec).collect())
    }

    fn dims(self, plan: &InputPlan) -> Vec<i64> {
        let Some(sizes) = plan.spec.shape.sizes() else {
            return match (self.shape, plan.features) {
                (0, 0..) => vec![self.rows, plan.features],
                (0, _) => vec![self.rows, self.size],
                (1, 0..) => vec![self.rows, self.size, plan.features],
                (1, _) => vec![self.rows],
                _ => vec![self.rows, self.size, self.size],
            };
        };
        let checks = plan.check.as_ref().map(|check| check.dims.as_slice()).unwrap_or_default();
        let chosen = sizes.iter().enumerate().map(|(index, size)| {
            let wanted = match (*size, index) {
                (0.., _) => *size,
                (_, 0) => self.rows,
                _ => self.size,
            };
            checks.get(index).map_or(wanted, |check| check.nearest(wanted))
        });
        chosen.collect()
    }
}

/// The error that the outputs must be declared, with what to write.
pub(crate) fn declare(why: &str) -> Error {
    let table = "[[signature.outputs]]\nname = \"output\"\ndtype = \"float32\"\nshape = [-1, 3]";
    Error::new(
        Code::FailedPrecondition,
        format!("{why}: declare the outputs in {FILE_NAME} beside the file:\n{table}"),
    )
}

/// The outputs of the signature: those that were learnt, with what is declared of them; only the declared ones
/// if they have names of the module.
///
/// # Errors
/// If others are declared, or none were learnt and none declared completely.
pub(crate) fn plan(
    learnt: Result<Vec<TensorSpec>>,
    declared: &[DeclaredOutput],
    why_not: impl FnOnce(&Error) -> Error,
) -> Result<Vec<OutputPlan>> {
    let learnt = match learnt {
        Ok(learnt) => learnt,
        Err(error) => {
            let specs: Option<Vec<TensorSpec>> =
                declared.iter().map(DeclaredOutput::spec).collect();
            let Some(specs) = specs.filter(|specs| !specs.is_empty()) else {
                return Err(why_not(&error));
            };
            let plans = specs.into_iter().enumerate();
            return Ok(plans
                .map(|(index, spec)| OutputPlan { name: spec.tensor_name.clone(), spec, index })
                .collect());
        }
    };
    if declared.is_empty() {
        let plans = learnt.into_iter().enumerate();
        return Ok(plans
            .map(|(index, spec)| OutputPlan { name: spec.tensor_name.clone(), spec, index })
            .collect());
    }
    let of_name =
        |output: &DeclaredOutput| learnt.iter().position(|spec| spec.alias == output.name);
    let places: Option<Vec<usize>> = declared.iter().map(of_name).collect();
    let places = match places {
        Some(places) => places,
        None if declared.len() == learnt.len() => (0..learnt.len()).collect(),
        None => {
            let names: Vec<&str> = learnt.iter().map(|spec| spec.alias.as_str()).collect();
            return Err(wrong_declaration(format!(
                "{} outputs are declared; the module returns {}",
                declared.len(),
                names.join(", ")
            )));
        }
    };
    let plans = declared.iter().zip(places).filter_map(|(output, index)| {
        let known = learnt.get(index)?;
        Some(OutputPlan { spec: output.or_learnt(known), name: known.tensor_name.clone(), index })
    });
    Ok(plans.collect())
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{Argument, of_script};
    use super::*;
    use tensorserve_tensor::DType;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec::new(name, DType::Float, &[-1, 3])
    }

    fn output(name: &str) -> DeclaredOutput {
        DeclaredOutput { name: name.to_owned(), dtype: None, shape: None }
    }

    fn planned(
        learnt: Result<Vec<TensorSpec>>,
        declared: &[DeclaredOutput],
    ) -> Result<Vec<(String, usize)>> {
        let plans = plan(learnt, declared, Error::duplicate)?;
        Ok(plans.into_iter().map(|plan| (plan.spec.alias, plan.index)).collect())
    }

    #[test]
    fn the_shapes_of_the_run_that_succeeds_are_kept() {
        let argument = Argument {
            name: "x".to_owned(),
            annotation: "Tensor".to_owned(),
            features: 4,
            ..Argument::default()
        };
        let inputs = of_script(&[argument], &[]).expect("an input");
        // Rows of steps of 4 numbers.
        let run = |tensors: &[Tensor]| match tensors {
            [x] if matches!(x.shape().dims(), [_, _, 4]) => Ok(vec![("y".to_owned(), x.clone())]),
            _ => Err(Error::invalid("another rank")),
        };
        let learnt = learn(&run, &inputs).expect("outputs");
        assert_eq!(learnt.ran_with, [("x".to_owned(), vec![2, 8, 4])]);
        assert_eq!(learnt.outputs[0].shape, DeclaredShape::UnknownRank);
    }

    #[test]
    fn declared_outputs_select_and_rename() {
        let learnt = || Ok(vec![spec("p"), spec("q")]);
        let pair = |name: &str, index| (name.to_owned(), index);
        assert_eq!(planned(learnt(), &[]).expect("all"), [pair("p", 0), pair("q", 1)]);
        assert_eq!(planned(learnt(), &[output("q")]).expect("one"), [pair("q", 1)]);
        let renamed = planned(learnt(), &[output("x"), output("y")]).expect("renamed");
        assert_eq!(renamed, [pair("x", 0), pair("y", 1)]);
        let error = planned(learnt(), &[output("x")]).expect_err("unknown");
        assert!(error.message().contains("the module returns p, q"), "{error}");
    }

    #[test]
    fn without_a_run_outputs_must_be_declared_completely() {
        let failed = || Err(Error::invalid("no"));
        assert_eq!(planned(failed(), &[output("x")]).expect_err("no type").message(), "no");
        let complete =
            DeclaredOutput { dtype: Some(DType::Half), shape: Some(vec![-1]), ..output("x") };
        assert_eq!(planned(failed(), &[complete]).expect("declared"), [("x".to_owned(), 0)]);
    }

    #[test]
    fn sizes_that_differ_between_runs_vary() {
        let shape = |sizes: &[i64]| TensorSpec::new("x", DType::Float, sizes).shape;
        assert_eq!(common(&shape(&[2, 3]), &shape(&[3, 3])), shape(&[-1, 3]));
        assert_eq!(common(&shape(&[2, 3]), &shape(&[3])), DeclaredShape::UnknownRank);
    }
}
