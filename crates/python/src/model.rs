//! The processes of a model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use super::description::{ModelDescription, invalid};
use super::tensors;
use tensorserve_platform::{Executable, RunOptions, RunnerOptions};
use tensorserve_preprocessing::DeclaredSignature;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor};
use tensorserve_workers::Workers;
use tensorserve_workers::program::{ProgramReply, ProgramSpec, RunningProgram};

/// The number of the function in `python/models.py`.
const PREDICT: u8 = 1;

/// What `describe` in `python/models.py` says of an exception that the values of a request have caused.
const REFUSED: &str = "refused";

/// The last lines of a traceback that an error quotes.
const QUOTED_LINES: usize = 8;

/// The modules of a process, the one that serves the calls first.
const MODULES: [(&str, &str); 3] = [
    ("tensorserve_models", include_str!("../../../python/models.py")),
    ("tensorserve_arrays", include_str!("../../../python/arrays.py")),
    ("tensorserve_columns", include_str!("../../../python/columns.py")),
];

/// A model in its processes. They end when this is dropped.
pub(crate) struct PythonModel {
    program: RunningProgram,
    signatures: Vec<Signature>,
    written_by: String,
}

impl PythonModel {
    /// Starts the processes, each of which loads the model in `file`; `code` are directories of modules.
    /// Blocks until all are ready.
    ///
    /// # Errors
    /// With the last lines of the traceback, if the model cannot be loaded.
    pub(crate) fn start(
        workers: &Workers,
        file: &Path,
        code: &[PathBuf],
        declared: &DeclaredSignature,
        runner: &RunnerOptions,
    ) -> Result<Self> {
        let python = runner.python.clone().unwrap_or_else(|| workers.config().python.clone());
        let path = text(file)?;
        let code: Vec<&str> = code.iter().map(|code| text(code)).collect::<Result<_>>()?;
        let code = json!(code).to_string();
        let declared = declaration(declared).to_string();
        let trusted = json!(runner.trusted_types).to_string();
        let settings = [
            ("file", path),
            ("code", code.as_str()),
            ("declared", declared.as_str()),
            ("trusted", trusted.as_str()),
        ];
        let started = Instant::now();
        let program = workers.run(ProgramSpec {
            subject: "the Python model",
            name: path.to_owned(),
            python: python.clone(),
            modules: &MODULES,
            settings: &settings,
            count: runner.workers,
            timeout: runner.timeout,
            memory_limit: runner.memory_limit,
        });
        let program = program.map_err(|error| quoted(&error, path, &python))?;
        let about = program.about().iter().flatten().next();
        let about = about.ok_or_else(|| invalid("it does not describe the model"))?;
        let description = ModelDescription::read(about)?;
        let signatures = description.signatures()?;
        let (count, time) = (runner.workers, started.elapsed().as_millis());
        log::info!("{path}: {count} processes ready after {time} ms");
        Ok(PythonModel { program, signatures, written_by: description.written_by })
    }

    /// The signatures, sorted by name.
    pub(crate) fn signatures(&self) -> Vec<Signature> {
        self.signatures.clone()
    }

    /// The signatures, and the program that wrote the model.
    pub(crate) fn into_description(self) -> (Vec<Signature>, String) {
        (self.signatures, self.written_by)
    }
}

fn text(path: &Path) -> Result<&str> {
    let message = || Error::precondition(format!("{}: the name is not UTF-8", path.display()));
    path.to_str().ok_or_else(message)
}

/// What the `tensorserve.toml` beside a model declares, for the process.
fn declaration(declared: &DeclaredSignature) -> Value {
    let inputs: Vec<Value> = declared
        .inputs
        .iter()
        .map(|spec| {
            let dtype = spec.dtype().map(|dtype| dtype.python_name());
            json!({"name": spec.alias, "dtype": dtype, "shape": spec.shape.sizes()})
        })
        .collect();
    let outputs: Vec<Value> = declared
        .outputs
        .iter()
        .map(|output| {
            let dtype = output.dtype.map(|dtype| dtype.python_name());
            json!({"name": output.name, "dtype": dtype, "shape": output.shape})
        })
        .collect();
    json!({"inputs": inputs, "outputs": outputs})
}

/// The error of a failed start with the last lines of its traceback. All of it goes to the log.
fn quoted(error: &Error, file: &str, python: &Path) -> Error {
    let mut lines = error.message().lines();
    let summary = lines.next().unwrap_or_default();
    let lines: Vec<&str> = lines.collect();
    if lines.len() > QUOTED_LINES {
        log::error!("{file}: {}", error.message());
    }
    let mut message = summary.to_owned();
    if summary.starts_with("ModuleNotFoundError") {
        let python = python.display();
        message.push_str(&format!(
            "; install it into the environment of {python}, name another interpreter with \
             runner_python, or put a module of your own into the folder code/ beside the model"
        ));
    }
    if summary.contains("UntrustedTypesFoundException") {
        message.push_str(" If you trust them, name them in runner_trusted_types.");
    }
    for line in lines.iter().skip(lines.len().saturating_sub(QUOTED_LINES)) {
        message.push('\n');
        message.push_str(line);
    }
    Error::new(error.code(), message)
}

impl Executable for PythonModel {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let number = signature.to_string();
        let header = tensors::header(inputs);
        let strings = tensors::packed_strings(inputs);
        let parts = tensors::parts(inputs, &strings);
        let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
        let fields = [Some(number.as_str()), Some(header.as_str())];
        let reply = self.program.call(PREDICT, &fields, &parts, deadline)?;
        let outputs = outputs_of(reply)?;
        let signature =
            self.signatures.get(signature).ok_or_else(|| invalid("no such signature"))?;
        let specs = &signature.outputs;
        let fits = outputs.len() == specs.len();
        let mut pairs = specs.iter().zip(&outputs);
        if !fits || !pairs.all(|(spec, output)| tensors::has_dtype(output, spec.dtype())) {
            return Err(invalid("its tensors are not the outputs of the model"));
        }
        check_rows(signature, inputs, &outputs)?;
        Ok(outputs)
    }

    fn waits(&self) -> bool {
        true
    }
}

/// Refuses outputs that do not have a row for each of the inputs, although both are declared with rows: each
/// would belong to another row than the client takes it for.
fn check_rows(signature: &Signature, inputs: &[Tensor], outputs: &[Tensor]) -> Result<()> {
    let Some(rows) = inputs.first().and_then(Tensor::rows) else {
        return Ok(());
    };
    let have_rows = signature.inputs.iter().all(|spec| spec.shape.is_batched())
        && inputs.iter().all(|input| input.rows() == Some(rows));
    if !have_rows {
        return Ok(());
    }
    for (spec, output) in signature.outputs.iter().zip(outputs) {
        if spec.shape.is_batched() && output.rows() != Some(rows) {
            let (name, shape) = (&spec.alias, output.shape());
            return Err(Error::internal(format!(
                "the Python model was called with {rows} rows, and has returned the output {name:?} of the \
                 shape {shape:?}: it must have as many rows"
            )));
        }
    }
    Ok(())
}

/// The tensors of a reply.
fn outputs_of(reply: ProgramReply) -> Result<Vec<Tensor>> {
    let mut fields = reply.fields.into_iter();
    let mut next = || fields.next().flatten().unwrap_or_default();
    if !reply.has_raised {
        return tensors::decode(&next(), &reply.body);
    }
    let (kind, text) = (next(), next());
    match kind == REFUSED {
        true => Err(Error::invalid(text)),
        false => Err(Error::new(Code::Internal, text)),
    }
}
