//! Copies of a model for the shapes that its requests have most: prepared for one shape, the library computes quicker than
//! for any.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::ffi::{CompiledModel, FixedShape, ModelGraph, OvCore};
use super::requests::{RequestPool, pool};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::same::{Tolerance, same_outputs};
use tensorserve_tensor::{Shape, Signature, Tensor};

/// Runs after which a shape gets a copy; a long run counts as one more for each of these times.
const OFTEN: u32 = 20;
const AS_ANOTHER: Duration = Duration::from_millis(50);

/// The most copies, and the bytes that all of them may have, each about twice the weights.
const MOST_COPIES: usize = 8;
const MOST_BYTES: u64 = 512 << 20;

/// The most shapes whose runs are counted.
const MOST_COUNTED: usize = 1024;

/// A run of this length is worth several threads if no others wait: in shorter ones they cost more than they save.
const LONG: Duration = Duration::from_millis(2);

/// Where copies are read.
pub(super) struct CopySource {
    pub(super) core: Arc<OvCore>,
    pub(super) folder: PathBuf,
    pub(super) signature: Signature,
    /// The most threads of a run.
    pub(super) threads: usize,
    /// The size of the model's files.
    pub(super) bytes: u64,
}

/// The copies of a model.
pub(super) struct FixedCopies {
    source: CopySource,
    most: usize,
    shapes: Mutex<CountedShapes>,
}

#[derive(Default)]
struct CountedShapes {
    states: HashMap<CopyKey, ShapeState>,
    /// Those whose runs are [`LONG`] with one thread.
    long: HashSet<Vec<Shape>>,
    /// Copies that exist or are being made.
    copies: usize,
    /// Those of them that are being made, or have not run yet.
    unfinished: usize,
}

/// What a copy is for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct CopyKey {
    shapes: Vec<Shape>,
    /// Whether a run uses all threads, and there is one at a time.
    is_parallel: bool,
}

enum ShapeState {
    /// So many runs had it.
    Counted(u32),
    /// Its copy is being made, or cannot be.
    Without,
    /// Its copy has not run yet.
    Untried(Arc<RequestPool>),
    Copied(Arc<RequestPool>),
}

/// What a run with certain shapes may use.
pub(super) enum CopyFor {
    None,
    /// Compare it with the model for any shape first, and tell ([`FixedCopies::judge`]).
    Untried(CopyKey, Arc<RequestPool>),
    Copied(Arc<RequestPool>),
}

impl FixedCopies {
    pub(super) fn new(source: CopySource) -> Arc<Self> {
        let affordable = MOST_BYTES / source.bytes.saturating_mul(2).max(1);
        let most = usize::try_from(affordable).unwrap_or(MOST_COPIES).clamp(1, MOST_COPIES);
        Arc::new(FixedCopies { source, most, shapes: Mutex::default() })
    }

    /// The copy for a run with these inputs and so many threads (0: as many as there are), which is counted.
    pub(super) fn of(self: &Arc<Self>, inputs: &[Tensor], threads: usize) -> CopyFor {
        let shapes = shapes_of(inputs);
        let mut counted = self.lock();
        let is_parallel = threads != 1 && self.source.threads > 1 && counted.long.contains(&shapes);
        let single = CopyKey { shapes, is_parallel: false };
        if !is_parallel {
            return self.count(&mut counted, single);
        }
        let parallel = CopyKey { is_parallel, ..single.clone() };
        match (self.count(&mut counted, parallel), counted.states.get(&single)) {
            (CopyFor::None, Some(ShapeState::Copied(pool))) => CopyFor::Copied(Arc::clone(pool)),
            (found, _) => found,
        }
    }

    /// The copy for `key`, or one run more without.
    fn count(self: &Arc<Self>, counted: &mut CountedShapes, key: CopyKey) -> CopyFor {
        let can_have_more = counted.copies < self.most;
        match counted.states.get_mut(&key) {
            Some(ShapeState::Copied(pool)) => return CopyFor::Copied(Arc::clone(pool)),
            Some(ShapeState::Untried(pool)) => return CopyFor::Untried(key, Arc::clone(pool)),
            Some(ShapeState::Without) => return CopyFor::None,
            Some(ShapeState::Counted(runs)) if *runs < OFTEN || !can_have_more => {
                *runs = runs.saturating_add(1);
                return CopyFor::None;
            }
            Some(state @ ShapeState::Counted(_)) => *state = ShapeState::Without,
            None => {
                if counted.states.len() >= MOST_COUNTED {
                    counted.states.retain(|_, state| !matches!(state, ShapeState::Counted(_)));
                }
                counted.states.insert(key, ShapeState::Counted(1));
                return CopyFor::None;
            }
        }
        counted.copies += 1;
        // Its thread ends this count, for which it needs the lock.
        counted.unfinished += usize::from(self.begin(key));
        CopyFor::None
    }

    /// Remembers that a run was long.
    pub(super) fn took(&self, inputs: &[Tensor], took: Duration) {
        if took < LONG {
            return;
        }
        let (mut counted, shapes) = (self.lock(), shapes_of(inputs));
        let more = u32::try_from(took.as_millis() / AS_ANOTHER.as_millis()).unwrap_or(OFTEN);
        for is_parallel in [false, true] {
            let key = CopyKey { shapes: shapes.clone(), is_parallel };
            if let Some(ShapeState::Counted(runs)) = counted.states.get_mut(&key) {
                *runs = runs.saturating_add(more);
            }
        }
        if counted.long.len() >= MOST_COUNTED {
            counted.long.clear();
        }
        counted.long.insert(shapes);
    }

    /// Makes a copy on a thread of its own. Without a thread, there is none.
    fn begin(self: &Arc<Self>, key: CopyKey) -> bool {
        let copies = Arc::clone(self);
        // Not at low priority, which the library's threads that run the copy would have, too.
        let spawned = thread::Builder::new().name("shapes".to_owned()).spawn(move || match copies
            .make(&key)
        {
            Ok(pool) => {
                let untried = ShapeState::Untried(Arc::new(pool));
                copies.lock().states.insert(key, untried);
            }
            Err(_) => copies.lock().unfinished -= 1,
        });
        spawned.is_ok()
    }

    fn make(&self, key: &CopyKey) -> Result<RequestPool> {
        let CopySource { core, folder, signature, threads, .. } = &self.source;
        let named = signature.inputs.iter().zip(&key.shapes);
        let fixed: Vec<FixedShape<'_>> = named
            .map(|(spec, shape)| FixedShape { tensor_name: &spec.tensor_name, shape })
            .collect();
        let graph = ModelGraph::SavedModel(folder);
        let threads = if key.is_parallel { *threads } else { 1 };
        let compiled = CompiledModel::new(core, graph, Vec::new(), threads, &fixed)?;
        pool(signature, compiled)
    }

    /// Keeps the copy if its outputs are those of the model for any shape.
    pub(super) fn judge(
        &self,
        key: CopyKey,
        copy: Arc<RequestPool>,
        (any, fixed): (&[Tensor], &Result<Vec<Tensor>>),
    ) {
        let is_same = fixed.as_ref().is_ok_and(|it| same_outputs(any, it, Tolerance::Versions));
        let state = if is_same { ShapeState::Copied(copy) } else { ShapeState::Without };
        let mut shapes = self.lock();
        // Several runs may have tried it.
        if matches!(shapes.states.insert(key, state), Some(ShapeState::Untried(_))) {
            shapes.unfinished -= 1;
        }
    }

    /// Whether copies are being made, or have not run yet.
    pub(super) fn are_made(&self) -> bool {
        self.lock().unfinished > 0
    }

    fn lock(&self) -> MutexGuard<'_, CountedShapes> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shapes_of(inputs: &[Tensor]) -> Vec<Shape> {
    inputs.iter().map(|input| input.shape().clone()).collect()
}
