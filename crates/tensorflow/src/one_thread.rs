//! A copy of a loaded SavedModel in which an operation runs on one thread, for runs beside others.
//!
//! The number of threads of an operation is one of a session: oneDNN does not heed the limit of a run. With several, one request
//! alone is quickest. But once as many run as there are cores, each operation hands parts to threads that are busy with
//! another run, and waits for them. The copy costs the memory of the model once more, so it is made when a model has such runs.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::copy_threads::CopyThreads;
use super::ffi::TensorFlowSession;
use super::freezing::SavedModelOrigin;
use super::loaded_graph::LoadedGraph;
use tensorserve_platform::{RunOptions, irregular_inputs};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::same::{Tolerance, same_outputs};

/// The most bytes of a model's files.
const LARGEST: u64 = 256 << 20;

/// The number of runs beside others that show that there is load, and how long each is at least.
const OFTEN: usize = 50;
const LONG: Duration = Duration::from_millis(2);

/// Numbers of rows on which both are compared, besides the inputs of a request.
const COMPARED_ROWS: [usize; 2] = [1, 3];

/// The copy of a model, which is made if it has enough runs beside others.
pub(super) struct OneThreadCopy {
    /// What it is made of, with the settings of its session.
    origin: SavedModelOrigin,
    /// The number of the form of the model that it is a copy of; `None` for the model as it is.
    form: Option<usize>,
    threads: OnceLock<CopyThreads>,
    /// Held while it is made.
    making: Mutex<()>,
    /// By the number of the signature.
    uses: Vec<SignatureUse>,
    /// The runs of the model that are in progress.
    active: AtomicUsize,
    /// How long a run is at least, to be counted.
    long: Duration,
}

/// The runs of a signature.
#[derive(Default)]
struct SignatureUse {
    /// Long runs beside others.
    beside: AtomicUsize,
    /// Whether the copy computes the same.
    is_used: AtomicBool,
}

/// A run in progress.
struct ActiveRun<'c>(&'c AtomicUsize);

impl<'c> ActiveRun<'c> {
    /// Also returns how many there are now.
    fn begin(active: &'c AtomicUsize) -> (Self, usize) {
        let before = active.fetch_add(1, Relaxed);
        (ActiveRun(active), before + 1)
    }
}

impl Drop for ActiveRun<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl OneThreadCopy {
    /// Of the model as it is, or of its form with this number. `None` if it can have no copy, or needs none: it is large, requests
    /// change it, equal ones have different results, they may never end, or it runs on one thread.
    pub(super) fn of(origin: &SavedModelOrigin, form: Option<usize>) -> Option<Self> {
        let settings = origin.one_thread.clone()?;
        let may_run_in_both =
            origin.called().all(|it| it.read_only && it.repeatable && it.is_bounded);
        (may_run_in_both && origin.bytes <= LARGEST).then(|| OneThreadCopy {
            origin: SavedModelOrigin { settings, one_thread: None, ..origin.clone() },
            form,
            threads: OnceLock::new(),
            making: Mutex::new(()),
            uses: origin.signatures.iter().map(|_| SignatureUse::default()).collect(),
            active: AtomicUsize::new(0),
            long: LONG,
        })
    }

    /// Runs the signature in the copy, if one thread is enough and the copy is there, and else in `several`.
    pub(super) fn run(
        self: &Arc<Self>,
        several: &Arc<LoadedGraph>,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Vec<Tensor>> {
        let (_run, active) = ActiveRun::begin(&self.active);
        let number = several.runs_as(signature);
        let Some(found) = self.uses.get(number).filter(|_| options.threads == 1) else {
            return several.run(signature, inputs, options);
        };
        let began = Instant::now();
        if found.is_used.load(Relaxed)
            && let Some(copy) = self.threads.get()
        {
            return copy.run(signature, inputs, options).unwrap_or_else(|| {
                found.is_used.store(false, Relaxed);
                let place = self.origin.folder.display();
                log::error!("{place}: a thread of the copy for runs beside others has ended: it is not used any more");
                several.run(signature, inputs, options.left_since(began))
            });
        }
        let outputs = several.run(signature, inputs, options)?;
        if active > 1
            && began.elapsed() >= self.long
            && found.beside.fetch_add(1, Relaxed) + 1 == OFTEN
        {
            self.make(several, number, inputs, &outputs);
        }
        Ok(outputs)
    }

    /// Makes the copy for this signature, on a thread of its own.
    fn make(
        self: &Arc<Self>,
        several: &Arc<LoadedGraph>,
        number: usize,
        inputs: &[Tensor],
        outputs: &[Tensor],
    ) {
        let (copy, several) = (Arc::downgrade(self), Arc::downgrade(several));
        let run = (inputs.to_vec(), outputs.to_vec());
        let thread = thread::Builder::new().name("one-thread".to_owned());
        let spawned = thread.spawn(move || Self::prepare(&copy, &several, number, &run));
        if let Err(error) = spawned {
            log::warn!("no copy for runs beside others: its thread cannot start: {error}");
        }
    }

    fn prepare(
        copy: &Weak<Self>,
        several: &Weak<LoadedGraph>,
        number: usize,
        run: &(Vec<Tensor>, Vec<Tensor>),
    ) {
        let (Some(copy), Some(several)) = (copy.upgrade(), several.upgrade()) else {
            return;
        };
        let place = copy.origin.folder.display();
        match copy.try_signature(&several, number, run) {
            Ok(Some(name)) => log::info!(
                "{place}: under load, signature {name:?} runs with one thread for each request, in a copy of the model"
            ),
            Ok(None) => log::debug!("{place}: a copy with one thread computes something else"),
            Err(error) => {
                log::warn!("{place}: no copy for runs beside others can be made: {error}");
            }
        }
    }

    /// Lets the copy run a signature, if its results differ by no more than those of a batch do. Returns its name then.
    fn try_signature(
        &self,
        several: &LoadedGraph,
        number: usize,
        (inputs, outputs): &(Vec<Tensor>, Vec<Tensor>),
    ) -> Result<Option<&str>> {
        let copy = self.threads()?;
        let (Some(signature), Some(found)) =
            (self.origin.signatures.get(number), self.uses.get(number))
        else {
            return Ok(None);
        };
        let options = RunOptions { threads: 1, timeout: None };
        let is_same = |outputs: &[Tensor], inputs: &[Tensor]| {
            let ended = || Err(Error::internal("a thread that ran it has ended"));
            let of_copy = copy.run(number, inputs, options).unwrap_or_else(ended)?;
            Ok::<_, Error>(same_outputs(outputs, &of_copy, Tolerance::Batches))
        };
        if !is_same(outputs, inputs)? {
            return Ok(None);
        }
        let rows = if signature.is_batchable() { &COMPARED_ROWS[..] } else { &[] };
        for (seed, &rows) in rows.iter().enumerate() {
            let made = irregular_inputs(signature, rows, seed);
            // The model may refuse them.
            if let Some(made) = made
                && let Ok(outputs) = several.run(number, &made, options)
                && !is_same(&outputs, &made)?
            {
                return Ok(None);
            }
        }
        found.is_used.store(true, Relaxed);
        Ok(Some(&signature.name))
    }

    /// The threads of the copy, which is made if it is not there yet.
    fn threads(&self) -> Result<&CopyThreads> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = self.threads.get() {
            return Ok(threads);
        }
        let SavedModelOrigin { api, folder, tags, settings, signatures, alike, .. } = &self.origin;
        let session = TensorFlowSession::load(api, folder, tags, settings, None)?;
        let (session, assets) = match self.form {
            None => (session, None),
            Some(number) => {
                let frozen = self.origin.freeze(&session, number)?.map_err(Error::internal)?;
                (frozen.session, frozen.assets)
            }
        };
        let graph = LoadedGraph::new((session, alike.clone()), signatures, assets);
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let made = CopyThreads::start(graph, cores)?;
        Ok(self.threads.get_or_init(|| made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadOptions;
    use crate::model_files::GraphFiles;
    use crate::remote::tests::tensorflow_with;
    use std::path::PathBuf;

    const DEADLINE: Duration = Duration::from_secs(120);
    const BESIDE: RunOptions = RunOptions { threads: 1, timeout: None };

    /// A model with two threads within an operation, what its copy is made of, and the number of a signature.
    fn model() -> (Arc<LoadedGraph>, SavedModelOrigin, usize) {
        let tensorflow = tensorflow_with(String::new(), 0);
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/wide_mlp/1");
        let files = GraphFiles::find(&folder).expect("a model");
        let [options, single] =
            [2, 1].map(|threads| LoadOptions { threads, ..LoadOptions::default() });
        let runtime = tensorflow.runtime().expect("the library");
        let (parts, session) = tensorflow.open_model(&runtime, &files, &options).expect("loads");
        let origin = SavedModelOrigin {
            api: Arc::clone(&runtime.api),
            folder: folder.clone(),
            tags: options.tags.clone(),
            settings: tensorflow.settings(&options, true),
            one_thread: Some(tensorflow.settings(&single, true)),
            signatures: parts.signatures,
            alike: parts.alike,
            has_variables: true,
            bytes: files.bytes(),
        };
        let graph = LoadedGraph::new((session, origin.alike.clone()), &origin.signatures, None);
        let of_name = |it: &tensorserve_tensor::Signature| it.name == "serving_default";
        let number = origin.signatures.iter().position(of_name).expect("a signature");
        (Arc::new(graph), origin, number)
    }

    fn copy_of(origin: &SavedModelOrigin, form: Option<usize>) -> OneThreadCopy {
        let copy = OneThreadCopy::of(origin, form).expect("a copy");
        OneThreadCopy { long: Duration::ZERO, ..copy }
    }

    #[test]
    fn under_load_the_copy_runs_and_computes_the_same() {
        let (several, origin, number) = model();
        let inputs = irregular_inputs(&origin.signatures[number], 5, 0).expect("inputs");
        let copy = Arc::new(copy_of(&origin, None));
        let run = |options| copy.run(&several, number, &inputs, options).expect("runs");
        let alone = run(BESIDE);
        (0..=2 * OFTEN).for_each(|_| drop(run(BESIDE)));
        assert!(copy.threads.get().is_none(), "runs one after the other need no copy");
        let (_other, _) = ActiveRun::begin(&copy.active);
        let several_threads = RunOptions { threads: 2, timeout: None };
        (0..=2 * OFTEN).for_each(|_| drop(run(several_threads)));
        assert!(copy.threads.get().is_none(), "nor do those that may use all cores");
        (0..OFTEN).for_each(|_| drop(run(BESIDE)));
        let found = &copy.uses[several.runs_as(number)];
        let began = Instant::now();
        while !found.is_used.load(Relaxed) {
            assert!(began.elapsed() < DEADLINE, "the copy is not made");
            thread::sleep(Duration::from_millis(5));
        }
        for options in [BESIDE, several_threads] {
            assert!(same_outputs(&run(options), &alone, Tolerance::Batches), "{options:?}");
        }
    }

    #[test]
    fn a_copy_that_computes_something_else_is_not_used() {
        let (several, origin, number) = model();
        let inputs = irregular_inputs(&origin.signatures[number], 2, 0).expect("inputs");
        let others = irregular_inputs(&origin.signatures[number], 2, 1).expect("inputs");
        let copy = copy_of(&origin, None);
        let outputs = several.run(number, &others, BESIDE).expect("runs");
        let found = copy.try_signature(&several, number, &(inputs, outputs)).expect("compared");
        assert_eq!(found, None);
        assert!(!copy.uses[number].is_used.load(Relaxed));
    }

    #[test]
    fn the_model_runs_where_a_thread_of_the_copy_has_ended() {
        let (several, origin, number) = model();
        let inputs = irregular_inputs(&origin.signatures[number], 2, 0).expect("inputs");
        let copy = Arc::new(copy_of(&origin, None));
        let outputs = several.run(number, &inputs, BESIDE).expect("runs");
        assert!(copy.threads.set(CopyThreads::ended()).is_ok());
        copy.uses.iter().for_each(|it| it.is_used.store(true, Relaxed));
        let found = copy.run(&several, number, &inputs, BESIDE).expect("the model runs");
        assert!(same_outputs(&found, &outputs, Tolerance::Batches));
        assert!(!copy.uses[several.runs_as(number)].is_used.load(Relaxed));
    }

    #[test]
    fn a_form_has_a_copy_too() {
        let (several, origin, number) = model();
        let frozen = origin.freeze(&several.session, 0).expect("frozen").expect("a form");
        let session = (frozen.session, origin.alike.clone());
        let form = LoadedGraph::new(session, &origin.signatures, frozen.assets);
        let inputs = irregular_inputs(&origin.signatures[number], 2, 0).expect("inputs");
        let outputs = form.run(number, &inputs, BESIDE).expect("runs");
        let copy = copy_of(&origin, Some(0));
        let found = copy.try_signature(&form, number, &(inputs, outputs)).expect("compared");
        assert_eq!(found, Some("serving_default"));
    }

    #[test]
    fn what_is_large_changes_or_draws_has_no_copy() {
        let spoil: [fn(&mut SavedModelOrigin); 4] = [
            |origin| origin.one_thread = None,
            |origin| origin.bytes = LARGEST + 1,
            |origin| origin.signatures[0].read_only = false,
            |origin| origin.signatures[0].repeatable = false,
        ];
        for (case, spoil) in spoil.into_iter().enumerate() {
            let (_, mut origin, number) = model();
            origin.signatures.swap(0, number);
            spoil(&mut origin);
            assert!(OneThreadCopy::of(&origin, None).is_none(), "{case}");
        }
    }
}
