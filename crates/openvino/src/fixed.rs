//! Copies of a model for the shapes that its requests have most: prepared for one shape, the library computes quicker than
//! for any.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::executable::{RequestPool, pool};
use super::ffi::{CompiledModel, FixedShape, ModelGraph, OvCore};
use tensorserve_os as os;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::same::{Tolerance, same_outputs};
use tensorserve_tensor::{Shape, Signature, Tensor};

/// Runs after which a shape gets a copy.
const OFTEN: u32 = 20;

/// The most copies, and the bytes that all of them may have, each about twice the weights.
const MOST_COPIES: usize = 8;
const MOST_BYTES: u64 = 512 << 20;

/// The most shapes whose runs are counted.
const MOST_COUNTED: usize = 1024;

/// Where copies are read.
pub(super) struct CopySource {
    pub(super) core: Arc<OvCore>,
    pub(super) folder: PathBuf,
    pub(super) signature: Signature,
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
    states: HashMap<Vec<Shape>, ShapeState>,
    /// Copies that exist or are being made.
    copies: usize,
    /// Those of them that are being made, or have not run yet.
    unfinished: usize,
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
    Untried(Arc<RequestPool>),
    Copied(Arc<RequestPool>),
}

impl FixedCopies {
    pub(super) fn new(source: CopySource) -> Arc<Self> {
        let affordable = MOST_BYTES / source.bytes.saturating_mul(2).max(1);
        let most = usize::try_from(affordable).unwrap_or(MOST_COPIES).clamp(1, MOST_COPIES);
        Arc::new(FixedCopies { source, most, shapes: Mutex::default() })
    }

    /// The copy for a run with these inputs, which is counted.
    pub(super) fn of(self: &Arc<Self>, inputs: &[Tensor]) -> CopyFor {
        let key: Vec<Shape> = inputs.iter().map(|input| input.shape().clone()).collect();
        let mut shapes = self.lock();
        let can_have_more = shapes.copies < self.most;
        match shapes.states.get_mut(&key) {
            Some(ShapeState::Copied(pool)) => return CopyFor::Copied(Arc::clone(pool)),
            Some(ShapeState::Untried(pool)) => return CopyFor::Untried(Arc::clone(pool)),
            Some(ShapeState::Without) => return CopyFor::None,
            Some(ShapeState::Counted(runs)) if *runs < OFTEN || !can_have_more => {
                *runs = runs.saturating_add(1);
                return CopyFor::None;
            }
            Some(state @ ShapeState::Counted(_)) => *state = ShapeState::Without,
            None => {
                if shapes.states.len() >= MOST_COUNTED {
                    shapes.states.retain(|_, state| !matches!(state, ShapeState::Counted(_)));
                }
                shapes.states.insert(key, ShapeState::Counted(1));
                return CopyFor::None;
            }
        }
        shapes.copies += 1;
        shapes.unfinished += 1;
        drop(shapes);
        self.begin(key);
        CopyFor::None
    }

    /// Makes a copy on a thread of its own.
    fn begin(self: &Arc<Self>, key: Vec<Shape>) {
        let copies = Arc::clone(self);
        let spawned = thread::Builder::new().name("shapes".to_owned()).spawn(move || {
            os::lower_priority();
            match copies.make(&key) {
                Ok(pool) => {
                    let untried = ShapeState::Untried(Arc::new(pool));
                    copies.lock().states.insert(key, untried);
                }
                Err(_) => copies.lock().unfinished -= 1,
            }
        });
        // Without a thread, the shape stays without a copy.
        if spawned.is_err() {
            self.lock().unfinished -= 1;
        }
    }

    fn make(&self, shapes: &[Shape]) -> Result<RequestPool> {
        let CopySource { core, folder, signature, threads, .. } = &self.source;
        let named = signature.inputs.iter().zip(shapes);
        let fixed: Vec<FixedShape<'_>> = named
            .map(|(spec, shape)| FixedShape { tensor_name: &spec.tensor_name, shape })
            .collect();
        let graph = ModelGraph::SavedModel(folder);
        let compiled = CompiledModel::new(core, graph, Vec::new(), *threads, &fixed)?;
        pool(signature, compiled)
    }

    /// Keeps the copy for these inputs if its outputs are those of the model for any shape.
    pub(super) fn judge(
        &self,
        inputs: &[Tensor],
        copy: Arc<RequestPool>,
        (any, fixed): (&[Tensor], &Result<Vec<Tensor>>),
    ) {
        let is_same = fixed.as_ref().is_ok_and(|it| same_outputs(any, it, Tolerance::Versions));
        let state = if is_same { ShapeState::Copied(copy) } else { ShapeState::Without };
        let key = inputs.iter().map(|input| input.shape().clone()).collect();
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
