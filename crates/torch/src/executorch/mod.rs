//! ExecuTorch: programs (`.pte`), run by libexecutorch in this process.
//!
//! * [`program`] reads a program's methods without the library, by the numbers of [`schema`];
//! * [`shapes`] finds which sizes of its inputs vary;
//! * `ffi` wraps libexecutorch in safe types, through the C++ code that `tensorserve fetch` compiles;
//! * this file finds and loads models ([`ModelLoader`]), and opens the library ([`RuntimeLibrary`]).

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use self::ffi::{ExecuTorchApi, ExecuTorchProgram, LoadedMethod};
use self::program::ProgramMethod;
use crate::TorchConfig;
use crate::inputs::{self, InputPlan};
use crate::outputs::{self, OutputPlan};
use crate::package::InputCheck;
use crate::parts;
use tensorserve_platform::library::{LazyLibrary, Library};
use tensorserve_platform::pool::InstancePool;
use tensorserve_platform::{
    Completeness, Executable, ForeignFormats, InputStyle, Inspection, LoadOptions, Loaded,
    ModelLoader, ModelPath, Platform, PlatformInfo, RunOptions, RuntimeLibrary, files,
};
use tensorserve_preprocessing::{DeclaredSignature, declared_signature, wrong_declaration};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, Signature, Tensor};

mod ffi;
mod program;
mod schema;
mod shapes;

/// Endings of a program's file.
const ENDINGS: [&str; 1] = [".pte"];

/// The largest file in bytes.
const MOST_BYTES: u64 = 64 << 30;

/// The method that is called unless a request names another one.
const FORWARD: &str = "forward";

/// The library's file in Python's wheels.
const LIBRARY: Library = Library {
    name: "libexecutorch",
    files: &["libexecutorch.so"],
    package: "executorch/lib",
    extra: "",
    runtime: "executorch",
};

/// The `executorch` platform.
pub struct ExecuTorch {
    config: TorchConfig,
    /// Opened by the first model that needs it.
    runtime: LazyLibrary<Arc<ExecuTorchApi>>,
}

/// A program in memory, and the calls of its methods, sorted by the names of their signatures.
struct OpenProgram {
    calls: Vec<MethodCall>,
    bytes: u64,
}

/// A signature, and how requests become runs of its method. All lists are in the order of the signature.
struct MethodCall {
    signature: Signature,
    pool: InstancePool<LoadedMethod>,
    /// The aliases of the inputs, what the program requires of them, and their numbers in it.
    names: Vec<String>,
    checks: Vec<InputCheck>,
    places: Vec<usize>,
    /// The outputs, and their numbers in the program.
    outputs: Vec<OutputPlan>,
    returned: Vec<usize>,
    /// The most rows of a run.
    most_rows: Option<usize>,
}

impl ExecuTorch {
    /// The platform with these settings. The library is not opened yet.
    #[must_use]
    pub fn new(config: TorchConfig) -> Self {
        ExecuTorch { config, runtime: LazyLibrary::default() }
    }

    /// The library, which is opened on first use.
    fn runtime(&self) -> Result<Arc<ExecuTorchApi>> {
        let given = self.config.library.as_deref();
        self.runtime.get_or_open(|| LIBRARY.open(given, &self.config.search, ExecuTorchApi::open))
    }

    fn open_program(&self, path: &Path, options: &LoadOptions) -> Result<OpenProgram> {
        let file = files::find(path, &ENDINGS)?;
        let content = read_file(&file)?;
        let shown = |error| at(&file, error);
        let methods = program::read(&content).map_err(shown)?;
        let declared = declared_signature(&file)?.unwrap_or_default();
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let planned = methods.iter().map(|method| method.planned);
        let bytes = planned.fold(size, u64::saturating_add);
        let program = ExecuTorchProgram::open(&self.runtime()?, content).map_err(shown)?;
        let program = Arc::new(program);
        let main = default_method(&methods);
        let mut calls = Vec::new();
        for method in methods {
            let is_main = Some(&method.name) == main.as_ref();
            let declared = if is_main { declared.clone() } else { DeclaredSignature::default() };
            let mut call = MethodCall::new(&program, &method, &declared, options).map_err(shown)?;
            if !is_main {
                call.signature.name = method.name;
            }
            calls.push(call);
        }
        calls.sort_by(|a, b| a.signature.name.cmp(&b.signature.name));
        Ok(OpenProgram { calls, bytes })
    }
}

/// The method that requests call without a name: `forward`, or the only one.
fn default_method(methods: &[ProgramMethod]) -> Option<String> {
    let forward = methods.iter().find(|method| method.name == FORWARD);
    let only = methods.first().filter(|_| methods.len() == 1);
    forward.or(only).map(|method| method.name.clone())
}

/// The content of a file.
fn read_file(file: &Path) -> Result<Vec<u8>> {
    let head =
        files::head(file, 8).map_err(|e| at(file, Error::new(Code::of_io(&e), e.to_string())))?;
    if head.get(4..8) != Some(schema::IDENTIFIER) {
        let why = ForeignFormats::explain(file)
            .unwrap_or_else(|| "it does not begin as one (ET12)".to_owned());
        let text = format!("{} is not a program of ExecuTorch: {why}", file.display());
        return Err(Error::new(Code::DataLoss, text));
    }
    files::read(file, MOST_BYTES)
}

/// The error of the file at `path`.
fn at(path: &Path, error: Error) -> Error {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let what = if error.code() == Code::DataLoss { " is damaged" } else { "" };
    let text = format!("{name}{what}: {}", error.message());
    Error::new(error.code(), text).with_source(error)
}

/// Reads what is known of the file at `path` without libexecutorch, as a load does. For tests of this reader.
///
/// # Errors
/// As a load that libexecutorch does not refuse.
pub fn read(path: &Path) -> Result<()> {
    program::read(&read_file(path)?).map(|_| ())
}

impl ExecuTorch {
    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: "executorch",
            title: "ExecuTorch",
            input_style: InputStyle::Tensors,
            takes_threads: true,
            must_be_named: false,
            is_isolated: false,
        };
        Platform::new(info, self)
    }
}

impl RuntimeLibrary for ExecuTorch {
    fn describe(&self) -> Result<String> {
        self.runtime()?;
        let version = self.library().and_then(|file| LIBRARY.version_of(&file));
        let named = |version| format!("libexecutorch {version}");
        Ok(version.map_or_else(|| "libexecutorch".to_owned(), named))
    }

    fn library(&self) -> Option<PathBuf> {
        self.runtime.file()
    }
}

impl ModelLoader for ExecuTorch {
    fn recognises(&self, place: &ModelPath) -> bool {
        place.has_file(&ENDINGS)
    }

    fn check(&self, path: &Path) -> Completeness {
        let file = files::check(path, &ENDINGS);
        if !matches!(file, Completeness::Complete) {
            return file;
        }
        let checked = files::find(path, &ENDINGS).and_then(|file| {
            let content = read_file(&file)?;
            program::read(&content).map_err(|error| at(&file, error))
        });
        checked.map_or_else(Completeness::Broken, |_| Completeness::Complete)
    }

    fn inspect(&self, path: &Path, options: &LoadOptions) -> Result<Inspection> {
        let program = self.open_program(path, options)?;
        Ok(Inspection {
            written_by: String::new(),
            signatures: program.calls.into_iter().map(|call| call.signature).collect(),
            bytes: program.bytes,
            external_ops: Vec::new(),
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let OpenProgram { calls, bytes } = self.open_program(path, options)?;
        Ok(Loaded {
            signatures: calls.iter().map(|call| call.signature.clone()).collect(),
            executable: Arc::new(ExecuTorchExecutable { calls }),
            bytes,
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

/// Memory for the runs of `method`.
fn pool(
    program: &Arc<ExecuTorchProgram>,
    method: &ProgramMethod,
    threads: usize,
) -> Result<InstancePool<LoadedMethod>> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    // A method has its variables in its memory.
    let most = if method.writes_state { 1 } else { cores };
    let (program, name) = (Arc::clone(program), method.name.clone());
    InstancePool::new(most, move || LoadedMethod::load(&program, &name, threads == 1))
}

/// Runs a method on `inputs`, each with its number in `places`. Returns the outputs with these numbers.
fn run(
    pool: &InstancePool<LoadedMethod>,
    inputs: &[Tensor],
    places: &[usize],
    outputs: impl Iterator<Item = usize>,
    deadline: Option<Instant>,
) -> Result<Vec<Tensor>> {
    pool.with(
        |_| true,
        deadline,
        |method| {
            method.run(inputs, places)?;
            outputs.map(|index| method.output(index)).collect()
        },
    )
}

impl MethodCall {
    /// Prepares the calls of `method`, whose inputs and outputs may be `declared` otherwise.
    fn new(
        program: &Arc<ExecuTorchProgram>,
        method: &ProgramMethod,
        declared: &DeclaredSignature,
        options: &LoadOptions,
    ) -> Result<Self> {
        let mut pool = pool(program, method, options.threads)?;
        let places: Vec<usize> = method.inputs.iter().map(|port| port.place).collect();
        let returned = || method.outputs.iter().map(|port| port.place);
        let works = |inputs: &[Tensor]| run(&pool, inputs, &places, returned(), None).is_ok();
        let dims = shapes::dims(method, works);
        let types = method.inputs.iter().map(|port| Some(port.dtype));
        let checks = types.zip(dims).map(|(dtype, dims)| InputCheck { dtype, dims });
        let checks: Vec<InputCheck> = checks.collect();
        let names: Vec<String> = method.inputs.iter().map(|port| port.name.clone()).collect();
        let mut inputs = inputs::of_package(Some(&names), &checks, &declared.inputs)?;
        check_types(&inputs)?;
        let place =
            |plan: &InputPlan| places.get(plan.route.argument).copied().unwrap_or(usize::MAX);
        let run_named = |tensors: &[Tensor]| {
            let places: Vec<usize> = inputs.iter().map(place).collect();
            let outputs = run(&pool, tensors, &places, returned(), None)?;
            Ok(method.outputs.iter().map(|port| port.name.clone()).zip(outputs).collect())
        };
        let mut learnt = outputs::learn(&run_named, &inputs).map(|learnt| learnt.outputs);
        if let (Ok(specs), true) = (&mut learnt, shapes::takes_one(method)) {
            specs.iter_mut().for_each(shapes::open_rows);
        }
        let why_not = |error: &Error| outputs::declare(&format!("a run on zeros fails ({error})"));
        let mut outputs = outputs::plan(learnt, &declared.outputs, why_not)?;
        if method.writes_state {
            // The runs on zeros have changed it.
            pool = self::pool(program, method, options.threads)?;
        }
        inputs.sort_by(|a, b| a.spec.alias.cmp(&b.spec.alias));
        outputs.sort_by(|a, b| a.spec.alias.cmp(&b.spec.alias));
        let mut signature = Signature::only(
            inputs.iter().map(|plan| plan.spec.clone()).collect(),
            outputs.iter().map(|plan| plan.spec.clone()).collect(),
        );
        signature.read_only = !method.writes_state;
        signature.repeatable = !method.writes_state && !method.is_random;
        signature.exact_shapes = true;
        // Its instructions may jump back.
        signature.is_bounded = false;
        let number = |output: &OutputPlan| method.outputs.get(output.index()).map(|it| it.place);
        Ok(MethodCall {
            most_rows: parts::most_rows(&signature, &inputs),
            places: inputs.iter().map(place).collect(),
            returned: outputs.iter().filter_map(number).collect(),
            checks: inputs.iter().map(|plan| plan.check.clone().unwrap_or_default()).collect(),
            names: inputs.into_iter().map(|plan| plan.spec.alias).collect(),
            signature,
            pool,
            outputs,
        })
    }

    fn run_once(&self, inputs: &[Tensor], deadline: Option<Instant>) -> Result<Vec<Tensor>> {
        for ((check, name), input) in self.checks.iter().zip(&self.names).zip(inputs) {
            check.check(name, input)?;
        }
        let returned = self.returned.iter().copied();
        let tensors = run(&self.pool, inputs, &self.places, returned, deadline)?;
        self.outputs.iter().zip(tensors).map(|(output, tensor)| output.accept(tensor)).collect()
    }
}

/// Refuses declared inputs of other types than the program's.
fn check_types(inputs: &[InputPlan]) -> Result<()> {
    for plan in inputs {
        let takes = plan.check.as_ref().and_then(|check| check.dtype);
        if takes.is_some() && plan.spec.dtype() != takes {
            let (alias, takes) = (&plan.spec.alias, takes.map_or("", DType::python_name));
            return Err(wrong_declaration(format!(
                "the program takes {takes} for input {alias:?}"
            )));
        }
    }
    Ok(())
}

/// A loaded program. Its calls are in the order of the signatures.
struct ExecuTorchExecutable {
    calls: Vec<MethodCall>,
}

impl Executable for ExecuTorchExecutable {
    /// The number of threads is that of the load.
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let missing = || Error::internal("the program has no such signature");
        let call = self.calls.get(signature).ok_or_else(missing)?;
        let deadline = options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        parts::run(inputs, call.most_rows, |inputs| call.run_once(inputs, deadline))
    }
}

#[cfg(test)]
mod tests;
