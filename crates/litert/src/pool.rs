//! The interpreters of a model: one for each run at a time, made when they are needed.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::ffi::{Interpreter, LiteRtModel};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Result;

/// The interpreters of a model.
pub(super) struct Pool {
    model: Arc<LiteRtModel>,
    /// The number of functions of the model.
    functions: usize,
    /// The number of threads of an operation.
    threads: usize,
    /// The most interpreters: as many runs as there are cores gain from running at the same time.
    most: usize,
    state: Mutex<State>,
    /// An interpreter is idle, or may be made.
    returned: Condvar,
}

struct State {
    idle: Vec<Interpreter>,
    /// How many exist, or are being made.
    count: usize,
}

impl Pool {
    /// A pool with one interpreter, of at most `most`.
    ///
    /// # Errors
    /// If the library cannot run the model.
    pub(super) fn new(
        model: Arc<LiteRtModel>,
        functions: usize,
        threads: usize,
        most: usize,
    ) -> Result<Self> {
        let first = Interpreter::new(&model, functions, threads)?;
        let state = Mutex::new(State { idle: vec![first], count: 1 });
        let most = most.max(1);
        Ok(Pool { model, functions, threads, most, state, returned: Condvar::new() })
    }

    /// Calls `run` with an interpreter, if possible one whose inputs already have the shapes of `tensors`.
    /// Waits while all are in use.
    pub(super) fn with<T>(
        &self,
        function: usize,
        tensors: &[Tensor],
        run: impl FnOnce(&mut Interpreter) -> Result<T>,
    ) -> Result<T> {
        let mut borrowed = Borrowed { pool: self, interpreter: self.take(function, tensors) };
        match &mut borrowed.interpreter {
            Some(interpreter) => run(interpreter),
            place => {
                let made = Interpreter::new(&self.model, self.functions, self.threads)?;
                run(place.insert(made))
            }
        }
    }

    /// An idle interpreter, or `None` for the right to make one.
    fn take(&self, function: usize, tensors: &[Tensor]) -> Option<Interpreter> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let sized = state.idle.iter().rposition(|it| it.is_sized_for(function, tensors));
            if let Some(index) = sized {
                return Some(state.idle.swap_remove(index));
            }
            if let Some(any) = state.idle.pop() {
                return Some(any);
            }
            if state.count < self.most {
                state.count += 1;
                return None;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An interpreter in use, or the right to have one, which is given back on drop.
struct Borrowed<'a> {
    pool: &'a Pool,
    interpreter: Option<Interpreter>,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.interpreter.take() {
            Some(interpreter) => state.idle.push(interpreter),
            None => state.count -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}
