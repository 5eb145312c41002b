//! A platform without a runtime. Its models are directories with a file `fake.json` that defines
//! their behaviour. Tests of the core then need no libtensorflow, and can provoke faults that are
//! rare in real models: hangs, panics, outputs with too many rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorserve_platform::{
    Completeness, Executable, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath,
    Optimization, OptimizedModel, PartOfProgram, Platform, PlatformInfo, RunOptions,
};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{
    DType, DeclaredShape, ImageEncoding, LARGEST_ORDINARY_FLOAT, RowDependence, RowFinding, Shape,
    Signature, Tensor, TensorSpec, aligned_vec,
};

const MARKER: &str = "fake.json";

/// A directory with a file of this name is as if on a slow file system.
pub const SLOW: &str = "is-on-a-slow-file-system";

/// The behaviour of a model. Its signature maps a float matrix `x` to a float matrix `y`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    pub answer: Answer,
    pub loading: Loading,
    /// The minimum duration of a run, independent of its rows.
    pub run_millis: u64,
    /// The CPU time of a run.
    pub cpu_micros: u64,
    /// Another form of it, which the server finds after the load.
    pub other_form: Option<OtherForm>,
    /// Runs wait at [`Fake::runs_gate`], except warm-up runs.
    pub is_gated: bool,
    /// A run with this value in its input fails.
    pub fails_on: Option<f32>,
    /// A run with this value in its input panics.
    pub panics_on: Option<f32>,
    /// A run with this value in its input waits at [`Fake::runs_gate`], whatever its time limit is. With it, the
    /// model says that runs may never end.
    pub hangs_on: Option<f32>,
    pub read_only: bool,
    pub repeatable: bool,
    /// What it says of its rows.
    pub rows: Rows,
    /// Adds the signatures `classify` and `regress`, which take examples.
    pub takes_examples: bool,
    /// Files that must exist before the model is complete.
    pub files: Vec<String>,
    /// What it says of their size.
    pub bytes: u64,
}

/// How another form of a model differs from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherForm {
    pub answer: Answer,
    pub cpu_micros: u64,
    /// Making it waits at [`Fake::loads_gate`].
    pub is_gated: bool,
    /// A run with this value in its input fails.
    pub fails_on: Option<f32>,
    /// What a second form of the same group takes.
    pub second_cpu_micros: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Rows {
    Proven,
    Mixed,
    NoGraph,
}

impl Rows {
    fn dependence(self) -> RowDependence {
        match self {
            Rows::Proven => RowDependence::Proven,
            Rows::NoGraph => RowDependence::NoGraph,
            Rows::Mixed => RowDependence::Mixed(RowFinding {
                node: "model/mean".to_owned(),
                op: "Mean".to_owned(),
                why: "adds up the rows".to_owned(),
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The input.
    Echo,
    /// This number for each row, which identifies the version that ran.
    Constant(f32),
    /// The values minus the mean of the whole batch, so outputs depend on the other requests.
    Centred,
    /// The input, and NaN everywhere if the batch has a NaN.
    SpreadsNan,
    /// The input, and this number everywhere if the batch has it.
    Spreads(f32),
    /// The input, but what is larger than the first number times the second, as long as it is ordinary.
    ScalesBeyond(f32, f32),
    /// The input, but twice the last row of batches of this many rows or more.
    DoublesLastOf(usize),
    /// The input with its last row repeated.
    OneRowTooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Loading {
    Quick,
    /// Waits at [`Fake::loads_gate`].
    Gated,
    Fails,
    Panics,
    /// Only the first load fails.
    FailsOnce,
    /// The files are not a valid model.
    Broken,
}

impl Default for Model {
    fn default() -> Self {
        Model {
            answer: Answer::Echo,
            loading: Loading::Quick,
            run_millis: 0,
            cpu_micros: 0,
            other_form: None,
            is_gated: false,
            fails_on: None,
            panics_on: None,
            hangs_on: None,
            read_only: true,
            repeatable: true,
            rows: Rows::Proven,
            takes_examples: false,
            files: Vec::new(),
            bytes: 1000,
        }
    }
}

impl Model {
    /// A model that returns `answer` for each row.
    pub fn constant(answer: f32) -> Self {
        Model { answer: Answer::Constant(answer), ..Model::default() }
    }

    /// A model whose runs wait at the gate.
    pub fn gated() -> Self {
        Model { is_gated: true, ..Model::default() }
    }

    /// Publishes the model atomically: writes it under a temporary name, then renames it.
    pub fn write(&self, folder: &Path) {
        let (parent, name) = (folder.parent().expect("parent"), folder.file_name().expect("name"));
        let elsewhere = parent.join(format!(".{}.copy", name.display()));
        self.write_marker(&elsewhere);
        for file in &self.files {
            fs::write(elsewhere.join(file), "x").expect("written");
        }
        fs::rename(&elsewhere, folder).expect("renamed");
    }

    /// Writes only `fake.json`, without the other files.
    pub fn write_marker(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("directory");
        let text = serde_json::to_string(self).expect("JSON");
        fs::write(folder.join(MARKER), text).expect("written");
    }
}

/// The input and the options of one run.
#[derive(Clone, Debug)]
pub struct Run {
    pub shape: Vec<i64>,
    pub values: Vec<f32>,
    pub options: RunOptions,
    /// The name of the thread it ran on.
    pub thread: String,
}

impl Run {
    pub fn rows(&self) -> i64 {
        self.shape.first().copied().unwrap_or(0)
    }

    pub fn is_on_batch_thread(&self) -> bool {
        self.thread.starts_with("batch-")
    }
}

/// Blocks threads until it is opened.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_open: bool,
    waiting: usize,
}

impl Gate {
    pub fn open(&self) {
        lock(&self.state).is_open = true;
        self.changed.notify_all();
    }

    pub fn close(&self) {
        lock(&self.state).is_open = false;
    }

    /// The number of threads that wait at the gate.
    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting
    }

    fn pass(&self) {
        // A time limit, so that a failed test still ends.
        let end = Instant::now() + Duration::from_secs(30);
        let mut state = lock(&self.state);
        state.waiting += 1;
        while !state.is_open && Instant::now() < end {
            let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
    }
}

/// The loader of the platform. Clones share one record.
#[derive(Clone, Default)]
pub struct Fake(Arc<Record>);

#[derive(Default)]
struct Record {
    runs: Mutex<Vec<Run>>,
    loads: Mutex<BTreeMap<PathBuf, usize>>,
    looks: Mutex<BTreeMap<PathBuf, usize>>,
    ignores_threads: bool,
    alive: AtomicUsize,
    runs_gate: Gate,
    loads_gate: Gate,
    looks_gate: Gate,
}

/// Ignores poisoning: the test that panicked with the lock reports its own failure.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// All runs so far in the order of their start, without warm-up runs.
    pub fn runs(&self) -> Vec<Run> {
        let runs = lock(&self.0.runs);
        runs.iter().filter(|run| !run.thread.starts_with("load")).cloned().collect()
    }

    /// The runs of samples that tell whether outputs depend on the other requests in a batch.
    pub fn sample_runs(&self) -> Vec<Run> {
        let runs = lock(&self.0.runs);
        runs.iter().filter(|run| run.thread == "load samples").cloned().collect()
    }

    /// The other warm-up runs.
    pub fn warm_runs(&self) -> Vec<Run> {
        let runs = lock(&self.0.runs);
        runs.iter().filter(|run| run.thread == "load").cloned().collect()
    }

    /// The row count of each run, without warm-up runs.
    pub fn rows(&self) -> Vec<i64> {
        self.runs().iter().map(Run::rows).collect()
    }

    pub fn forget_runs(&self) {
        lock(&self.0.runs).clear();
    }

    /// A platform whose models do not depend on the number of threads.
    pub fn without_threads() -> Self {
        Fake(Arc::new(Record { ignores_threads: true, ..Record::default() }))
    }

    pub fn platform(&self) -> Platform {
        let info = PlatformInfo {
            name: "fake",
            title: "fake",
            input_style: InputStyle::Rows,
            takes_threads: !self.0.ignores_threads,
            must_be_named: false,
            is_isolated: false,
        };
        let runtime = Arc::new(PartOfProgram("fake"));
        Platform { info, loader: Arc::new(self.clone()), runtime }
    }

    /// The number of loads of the model in `folder`.
    pub fn loads(&self, folder: &Path) -> usize {
        lock(&self.0.loads).get(folder).copied().unwrap_or(0)
    }

    /// The number of inspections of `path`. Each poll of a source inspects it once.
    pub fn looks(&self, path: &Path) -> usize {
        lock(&self.0.looks).get(path).copied().unwrap_or(0)
    }

    /// The number of models in memory.
    pub fn alive(&self) -> usize {
        self.0.alive.load(SeqCst)
    }

    pub fn runs_gate(&self) -> &Gate {
        &self.0.runs_gate
    }

    pub fn loads_gate(&self) -> &Gate {
        &self.0.loads_gate
    }

    /// Where inspections of directories wait that have a file [`SLOW`].
    pub fn looks_gate(&self) -> &Gate {
        &self.0.looks_gate
    }
}

fn read(folder: &Path) -> Result<Model> {
    let bytes = fs::read(folder.join(MARKER)).map_err(|_| Error::not_found("no marker"))?;
    serde_json::from_slice(&bytes).map_err(|_| Error::new(Code::DataLoss, "a damaged marker"))
}

fn spec(alias: &str, dtype: DType, rank: usize) -> TensorSpec {
    TensorSpec {
        alias: alias.to_owned(),
        tensor_name: format!("{alias}:0"),
        dtype_number: dtype.number(),
        shape: DeclaredShape::Dims(vec![(-1, String::new()); rank]),
        sparse: None,
        takes_missing: false,
        number_texts: None,
        quantization: None,
        column_names: Vec::new(),
    }
}

fn signature(model: &Model, name: &str, method: &str, specs: [TensorSpec; 2]) -> Signature {
    let [input, output] = specs;
    Signature {
        name: name.to_owned(),
        method_name: format!("tensorflow/serving/{method}"),
        inputs: vec![input],
        outputs: vec![output],
        defaults: Vec::new(),
        images: ImageEncoding::Raw,
        takes_images: false,
        read_only: model.read_only,
        repeatable: model.repeatable,
        exact_shapes: false,
        by_columns: None,
        unused_columns: Vec::new(),
        categories: Vec::new(),
        ignores_unknown: false,
        ran_with: Vec::new(),
        is_bounded: model.hangs_on.is_none(),
        rows: model.rows.dependence(),
    }
}

/// The signatures, sorted by name.
fn signatures(model: &Model) -> Vec<Signature> {
    let mut all = Vec::new();
    if model.takes_examples {
        let examples = || spec("inputs", DType::String, 1);
        let scores = [examples(), spec("scores", DType::Float, 2)];
        all.push(signature(model, "classify", "classify", scores));
        let outputs = [examples(), spec("outputs", DType::Float, 2)];
        all.push(signature(model, "regress", "regress", outputs));
    }
    let matrices = [spec("x", DType::Float, 2), spec("y", DType::Float, 2)];
    all.push(signature(model, "serving_default", "predict", matrices));
    all
}

impl ModelLoader for Fake {
    fn recognises(&self, place: &ModelPath<'_>) -> bool {
        let folder = place.path();
        *lock(&self.0.looks).entry(folder.to_owned()).or_default() += 1;
        if folder.join(SLOW).exists() {
            self.0.looks_gate.pass();
        }
        folder.join(MARKER).is_file()
    }

    /// The same form as within the engine.
    fn in_other_engine(
        &self,
        _folder: &Path,
        _options: &LoadOptions,
        _signatures: &[Signature],
        present: &Arc<dyn Executable>,
    ) -> Result<Optimization> {
        present.optimized(0)
    }

    fn check(&self, folder: &Path) -> Completeness {
        let model = match read(folder) {
            Ok(model) => model,
            Err(error) => return Completeness::Broken(error),
        };
        if model.loading == Loading::Broken {
            return Completeness::Broken(Error::new(Code::DataLoss, "its files are no model"));
        }
        let missing = model.files.into_iter().find(|file| !folder.join(file).exists());
        missing.map_or(Completeness::Complete, Completeness::Missing)
    }

    fn inspect(&self, folder: &Path, _: &LoadOptions) -> Result<Inspection> {
        let model = read(folder)?;
        Ok(Inspection {
            signatures: signatures(&model),
            written_by: String::new(),
            bytes: model.bytes,
            external_ops: Vec::new(),
        })
    }

    fn load(&self, folder: &Path, _: &LoadOptions) -> Result<Loaded> {
        let model = read(folder)?;
        let loads = {
            let mut all = lock(&self.0.loads);
            let loads = all.entry(folder.to_owned()).or_default();
            *loads += 1;
            *loads
        };
        // `check` must prevent loads of incomplete models.
        let is_complete = matches!(self.check(folder), Completeness::Complete);
        assert!(is_complete, "{folder:?} was loaded before it was complete");
        match model.loading {
            Loading::Gated => self.0.loads_gate.pass(),
            Loading::Panics => panic!("this model panics when it is loaded"),
            Loading::Fails => return Err(Error::new(Code::DataLoss, "this model does not load")),
            Loading::FailsOnce if loads == 1 => {
                return Err(Error::unavailable("this model does not load yet"));
            }
            Loading::Quick | Loading::FailsOnce | Loading::Broken => {}
        }
        let signatures = signatures(&model);
        let bytes = model.bytes;
        let executable = Arc::new(FakeExecutable { model, record: Arc::clone(&self.0) });
        self.0.alive.fetch_add(1, SeqCst);
        Ok(Loaded {
            signatures,
            executable,
            bytes,
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

struct FakeExecutable {
    model: Model,
    record: Arc<Record>,
}

impl Drop for FakeExecutable {
    fn drop(&mut self) {
        self.record.alive.fetch_sub(1, SeqCst);
    }
}

impl Executable for FakeExecutable {
    fn run(&self, _: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let [input] = inputs else {
            return Err(Error::invalid("one input is wanted"));
        };
        // Each example becomes a row with one zero.
        let examples = input.strings().map(|all| tensor(&[all.len(), 1], vec![0.0; all.len()]));
        let examples = examples.transpose()?;
        let input = examples.as_ref().unwrap_or(input);
        let values = input.values::<f32>().expect("floats").to_vec();
        let thread = thread::current().name().unwrap_or_default().to_owned();
        let warms_up = thread.starts_with("load");
        let shape = input.shape().dims().to_vec();
        lock(&self.record.runs).push(Run { shape, values: values.clone(), options, thread });
        let hangs = self.model.hangs_on.is_some_and(|marker| values.contains(&marker));
        if hangs || (self.model.is_gated && !warms_up) {
            self.record.runs_gate.pass();
        }
        thread::sleep(Duration::from_millis(self.model.run_millis));
        let used = || tensorserve_os::thread_cpu_time().expect("the CPU time of a thread");
        let (begun, busy) = (used(), Duration::from_micros(self.model.cpu_micros));
        while used() - begun < busy {}
        if self.model.panics_on.is_some_and(|marker| values.contains(&marker)) {
            panic!("this model panics on that value");
        }
        if self.model.fails_on.is_some_and(|marker| values.contains(&marker)) {
            return Err(Error::invalid("this model fails on that value"));
        }
        Ok(vec![self.answer(input, &values)?])
    }

    fn may_have_other_forms(&self) -> bool {
        self.model.other_form.is_some()
    }

    fn optimized(&self, number: usize) -> Result<Optimization> {
        let Some(form) = self.model.other_form else {
            return Ok(Optimization::Unknown);
        };
        let OtherForm { answer, is_gated, fails_on, second_cpu_micros, .. } = form;
        let (what, cpu_micros, is_last) = match (number, second_cpu_micros) {
            (0, second) => ("another form", form.cpu_micros, second.is_none()),
            (1, Some(second)) => ("a second form", second, true),
            _ => return Ok(Optimization::None("there is no such form".to_owned())),
        };
        if is_gated {
            self.record.loads_gate.pass();
        }
        let model = Model { answer, cpu_micros, fails_on, ..self.model.clone() };
        self.record.alive.fetch_add(1, SeqCst);
        let executable = Arc::new(FakeExecutable { model, record: Arc::clone(&self.record) });
        Ok(Optimization::Made(OptimizedModel {
            needs_original: false,
            executable,
            what: what.to_owned(),
            only: None,
            ends_group: is_last,
            is_last,
        }))
    }
}

impl FakeExecutable {
    #[allow(clippy::cast_precision_loss)]
    fn answer(&self, input: &Tensor, values: &[f32]) -> Result<Tensor> {
        match self.model.answer {
            Answer::Echo => Ok(input.clone()),
            Answer::Constant(number) => {
                let rows = input.rows().unwrap_or(1);
                tensor(&[rows], std::iter::repeat_n(number, rows))
            }
            Answer::Centred => {
                let mean = values.iter().sum::<f32>() / values.len() as f32;
                tensor(&dims_of(input), values.iter().map(|value| value - mean))
            }
            Answer::SpreadsNan => Self::spread(input, values, f32::is_nan),
            Answer::Spreads(marker) => Self::spread(input, values, |value| value == marker),
            Answer::ScalesBeyond(least, scale) => {
                let is_scaled = |size| size > least && size <= LARGEST_ORDINARY_FLOAT;
                let factor = |value: f32| if is_scaled(value.abs()) { scale } else { 1.0 };
                tensor(&dims_of(input), values.iter().map(|&value| value * factor(value)))
            }
            Answer::DoublesLastOf(least) => {
                let rows = input.rows().unwrap_or(1);
                let width = values.len() / rows.max(1);
                let factor = |at| if rows >= least && at / width == rows - 1 { 2.0 } else { 1.0 };
                let doubled = values.iter().enumerate().map(|(at, value)| value * factor(at));
                tensor(&dims_of(input), doubled)
            }
            Answer::OneRowTooMany => {
                let rows = input.rows().unwrap_or(1);
                let last = input.slice_rows(rows.saturating_sub(1)..usize::MAX);
                tensorserve_tensor::concat(&[input, &last], 0)
            }
        }
    }
}

impl FakeExecutable {
    /// The values, or one of them everywhere for which `is_marker` holds.
    fn spread(input: &Tensor, values: &[f32], is_marker: impl Fn(f32) -> bool) -> Result<Tensor> {
        let marker = values.iter().copied().find(|value| is_marker(*value));
        tensor(&dims_of(input), values.iter().map(|value| marker.unwrap_or(*value)))
    }
}

/// A tensor of floats.
pub fn tensor(dims: &[usize], values: impl IntoIterator<Item = f32>) -> Result<Tensor> {
    let dims: Vec<i64> = dims.iter().map(|&dim| i64::try_from(dim).expect("in range")).collect();
    let mut elements = aligned_vec(0);
    values.into_iter().for_each(|value| elements.push(value));
    Tensor::from_vec(Shape::new(&dims)?, elements)
}

/// The dimensions of a tensor.
pub fn dims_of(tensor: &Tensor) -> Vec<usize> {
    tensor.shape().dims().iter().map(|&dim| usize::try_from(dim).expect("not negative")).collect()
}
