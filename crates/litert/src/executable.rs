//! The signatures of a model, and how requests become runs of its functions.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::ffi::{Interpreter, RunError};
use super::model::{FunctionPort, ModelFunction, TfliteModel};
use super::{outputs, rows};
use tensorserve_platform::pool::InstancePool;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{RowDependence, Shape, Signature, Tensor, TensorSpec, concat};

/// The signatures of a model, sorted by name.
pub(super) fn signatures(model: &TfliteModel, file: &[u8]) -> Vec<Signature> {
    let mut signatures: Vec<Signature> =
        model.functions.iter().map(|function| signature(model, function, file)).collect();
    signatures.sort_by(|a, b| a.name.cmp(&b.name));
    signatures
}

fn signature(model: &TfliteModel, function: &ModelFunction, file: &[u8]) -> Signature {
    let takes_one = takes_one(model, function);
    let has_batch = function.inputs.iter().all(|port| port.sizes.first() == Some(&-1));
    let spec = |port: &FunctionPort| {
        let mut sizes = port.sizes.clone();
        // Some converters declare the size of an example for outputs.
        if let (Some(size @ 1), true) = (sizes.first_mut(), takes_one || has_batch) {
            *size = -1;
        }
        let mut spec = TensorSpec::new(port.alias.clone(), port.dtype, &sizes);
        spec.tensor_name.clone_from(&port.tensor_name);
        spec.quantization = port.quantization;
        spec
    };
    let inputs: Vec<TensorSpec> = function.inputs.iter().map(spec).collect();
    let outputs: Vec<TensorSpec> = function.outputs.iter().map(spec).collect();
    let rows = match takes_one && !model.is_random {
        true => RowDependence::ByConstruction,
        false => rows::dependence(file, function.subgraph, &inputs, &outputs)
            .unwrap_or(RowDependence::NoGraph),
    };
    let mut signature = Signature { rows, ..Signature::only(inputs, outputs) };
    signature.name.clone_from(&function.name);
    signature.read_only = !model.has_state;
    signature.repeatable = !model.has_state && !model.is_random;
    signature.is_bounded = !model.has_loops;
    // LiteRT has no empty tensors, and its operators trust the declared shapes.
    signature.exact_shapes = function.inputs.iter().all(|port| !port.sizes.is_empty());
    signature
}

/// Whether a function takes one row at a time: the first size of all inputs and outputs is 1.
fn takes_one(model: &TfliteModel, function: &ModelFunction) -> bool {
    let mut ports = function.inputs.iter().chain(&function.outputs);
    !model.has_state && ports.all(|port| port.sizes.first() == Some(&1))
}

/// A loaded model.
pub(super) struct LiteRtExecutable {
    calls: Vec<SignatureCall>,
    pool: InstancePool<Interpreter>,
}

/// How a signature calls its function.
struct SignatureCall {
    /// The function's number.
    function: usize,
    /// For each input of the function, its place in the signature; and for each output of the signature, its
    /// place in the function.
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// The rows of a request are run one after the other.
    by_row: bool,
    /// The names of the signature's inputs, with the declared shapes.
    declared: Vec<TensorSpec>,
    /// The outputs of the function, and the memory that was enough for them and the row count.
    ports: Vec<FunctionPort>,
    enough: Mutex<Option<(Vec<Shape>, Vec<usize>)>>,
}

impl LiteRtExecutable {
    /// The functions of `model`, called by its `signatures`.
    pub(super) fn new(
        model: TfliteModel,
        signatures: &[Signature],
        pool: InstancePool<Interpreter>,
    ) -> Self {
        let place = |specs: &[TensorSpec], alias: &str| {
            specs.iter().position(|spec| spec.alias == alias).unwrap_or(usize::MAX)
        };
        let calls = signatures.iter().filter_map(|signature| {
            let mut functions = model.functions.iter().enumerate();
            let (number, function) = functions.find(|(_, it)| it.name == signature.name)?;
            let inputs = function.inputs.iter().map(|port| place(&signature.inputs, &port.alias));
            let outputs = signature.outputs.iter().map(|spec| {
                let mut ports = function.outputs.iter();
                ports.position(|port| port.alias == spec.alias).unwrap_or(usize::MAX)
            });
            Some(SignatureCall {
                function: number,
                inputs: inputs.collect(),
                outputs: outputs.collect(),
                by_row: takes_one(&model, function),
                declared: signature.inputs.clone(),
                ports: function.outputs.clone(),
                enough: Mutex::new(None),
            })
        });
        LiteRtExecutable { calls: calls.collect(), pool }
    }

    /// Runs a function once, and returns its outputs in the order of the signature.
    fn run_once(
        &self,
        call: &SignatureCall,
        inputs: &[Tensor],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>> {
        let is_sized = |it: &Interpreter| it.is_sized_for(call.function, inputs);
        let run = |interpreter: &mut Interpreter| call.run(interpreter, inputs, deadline);
        let outputs = self.pool.with(is_sized, deadline, run)?;
        call.outputs
            .iter()
            .map(|&place| outputs.get(place).cloned().ok_or_else(misplaced))
            .collect()
    }

    /// Runs a function for each row, with one interpreter.
    fn run_by_row(
        &self,
        call: &SignatureCall,
        inputs: &[Tensor],
        rows: usize,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>> {
        let row = |index| -> Vec<Tensor> {
            inputs.iter().map(|input| input.slice_rows(index..index + 1)).collect()
        };
        let first = row(0);
        let is_sized = |it: &Interpreter| it.is_sized_for(call.function, &first);
        let results = self.pool.with(is_sized, deadline, |interpreter| {
            let run = |index| call.run(interpreter, &row(index), deadline);
            (0..rows).map(run).collect::<Result<Vec<Vec<Tensor>>>>()
        })?;
        let output = |&place: &usize| {
            let parts: Option<Vec<&Tensor>> = results.iter().map(|row| row.get(place)).collect();
            concat(&parts.ok_or_else(misplaced)?, rows)
        };
        call.outputs.iter().map(output).collect()
    }
}

#[cold]
fn misplaced() -> Error {
    Error::internal("the model has returned fewer outputs than it declares")
}

impl SignatureCall {
    /// Runs the function, again with more memory for outputs if there was too little. Returns its outputs in
    /// its own order.
    fn run(
        &self,
        interpreter: &mut Interpreter,
        inputs: &[Tensor],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>> {
        let shapes = || inputs.iter().map(Tensor::shape);
        let mut sizes = outputs::sizes(&self.ports, inputs);
        let enough = self.enough.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, last)) = enough.filter(|(last, _)| shapes().eq(last)) {
            sizes.iter_mut().zip(last).for_each(|(size, last)| *size = last.max(*size));
        }
        loop {
            let mut memory = outputs::memory(&sizes);
            match interpreter.run(self.function, inputs, &mut memory, deadline) {
                Ok(()) => return outputs::tensors(&self.ports, memory),
                Err(RunError::Failed(error)) => return Err(error),
                Err(RunError::TooSmall(error)) => {
                    sizes = outputs::larger(&sizes).ok_or(error)?;
                    let enough = (shapes().cloned().collect(), sizes.clone());
                    *self.enough.lock().unwrap_or_else(PoisonError::into_inner) = Some(enough);
                }
            }
        }
    }

    /// Refuses what LiteRT does not take, with a message that names the input.
    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        for (spec, tensor) in self.declared.iter().zip(inputs) {
            let dims = tensor.shape().dims();
            let declared = spec.shape.sizes().unwrap_or_default();
            // Old converters declare no size for an input of any shape.
            let fits = declared.is_empty()
                || (declared.len() == dims.len()
                    && declared.iter().zip(dims).all(|(size, dim)| *size < 0 || size == dim));
            let is_small = dims.iter().all(|dim| i32::try_from(*dim).is_ok());
            if !fits || dims.contains(&0) || !is_small {
                let (alias, given, takes) = (&spec.alias, tensor.shape(), &spec.shape);
                return Err(Error::invalid(format!(
                    "input {alias:?} has shape {given:?}; the model takes {takes}, without empty dimensions"
                )));
            }
        }
        Ok(())
    }
}

impl Executable for LiteRtExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let call = self.calls.get(signature).ok_or_else(misplaced)?;
        call.check(inputs)?;
        let deadline = options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let ordered: Option<Vec<Tensor>> =
            call.inputs.iter().map(|&place| inputs.get(place).cloned()).collect();
        let ordered = ordered.ok_or_else(|| Error::internal("an input is missing"))?;
        let rows = ordered.first().and_then(Tensor::rows).unwrap_or(1);
        let result = match call.by_row && rows != 1 {
            false => self.run_once(call, &ordered, deadline),
            true if ordered.iter().any(|input| input.rows() != Some(rows)) => {
                return Err(Error::invalid("the inputs have different numbers of rows"));
            }
            true => self.run_by_row(call, &ordered, rows, deadline),
        };
        result.map_err(with_run_code)
    }
}

/// Gives a failed run the code that the library omits: the model could be prepared, so that an operator
/// fails because of its inputs.
fn with_run_code(error: Error) -> Error {
    if error.code() != Code::Unknown {
        return error;
    }
    Error::invalid(error.message().to_owned())
}
