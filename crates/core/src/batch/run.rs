//! Runs a batch and returns the outputs of each of its requests.

use std::time::Instant;

use super::assemble::{assemble, check_rows, split, unsplittable};
use super::task::{BatchTask, expired_in_run};
use super::{BatchOutput, QueueInner, RunSpan};
use crate::comparison::same_outputs;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Result;

type BatchResult = Result<BatchOutput>;

pub(super) const UNSPLITTABLE: &str = "its outputs do not have the batch's 0-th dimension";

impl QueueInner {
    /// Runs `tasks`, which can be joined, as one batch; the results are in their order. An error
    /// caused by one request is never reported to another.
    pub(super) fn run_together(&self, tasks: &[&BatchTask]) -> Vec<BatchResult> {
        let started = Instant::now();
        for task in tasks {
            self.metrics.waited(started.saturating_duration_since(task.queued));
        }
        if let [task] = tasks {
            return vec![self.run_by_itself(task)];
        }
        let equal = are_equal(tasks);
        let batched = match self.run_batch(tasks) {
            Ok((Ok(answers), spent)) if !self.verification.must_test(equal) => {
                let pairs = tasks.iter().zip(answers);
                let ran = pairs.map(|(task, outputs)| {
                    Ok(BatchOutput { outputs, timing: spent.since(task.queued) })
                });
                return ran.collect();
            }
            // As in TensorFlow Serving, where batching is turned on. A second run could change the
            // model's state again.
            Ok((Err(error), _)) if self.verification.is_given() || !self.traits.read_only => {
                return tasks.iter().map(|_| Err(error.duplicate())).collect();
            }
            Ok((answers, _)) => answers,
            // A batch fails as a whole. When each request runs alone, only the faulty one fails.
            Err(error) if !self.traits.read_only => {
                return tasks.iter().map(|_| Err(error.duplicate())).collect();
            }
            Err(_) => return tasks.iter().map(|task| self.run_by_itself(task)).collect(),
        };
        let alone: Vec<BatchResult> = tasks.iter().map(|task| self.run_by_itself(task)).collect();
        let Ok(batched) = batched else {
            self.stop_joining(UNSPLITTABLE);
            return alone;
        };
        let agrees = |(alone, batched): (&BatchResult, &Vec<Tensor>)| {
            let same = |alone: &[Tensor]| same_outputs(alone, batched, self.traits.tolerance());
            alone.as_ref().is_ok_and(|alone| same(&alone.outputs))
        };
        if alone.iter().zip(&batched).all(agrees) {
            self.verification.agreed(equal);
        } else {
            self.stop_joining(
                "its outputs in a batch differ from its outputs for a single request",
            );
        }
        alone
    }

    /// Assembles, runs and splits a batch. The outer error is that of the run, the inner one that of
    /// outputs that cannot be split.
    fn run_batch(&self, tasks: &[&BatchTask]) -> Result<(Result<Vec<Vec<Tensor>>>, RunSpan)> {
        let rows: Vec<usize> = tasks.iter().map(|task| task.rows).collect();
        let size = self.padded_rows(rows.iter().sum());
        self.note_padding(rows.iter().sum(), size);
        let requests: Vec<&[Tensor]> = tasks.iter().map(|t| t.inputs.as_slice()).collect();
        let inputs = assemble(&requests, size)?;
        // The batch may run until the latest deadline of its requests.
        let patient = tasks.iter().all(|task| task.deadline.is_some());
        let deadline = tasks.iter().filter_map(|task| task.deadline).max();
        let (outputs, spent) = self.run_once(tasks, &inputs, size, deadline.filter(|_| patient))?;
        Ok((split(&outputs, &rows, size), spent))
    }

    /// Runs one request of a batch alone, if it is not too late for that.
    fn run_by_itself(&self, task: &BatchTask) -> BatchResult {
        if task.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(expired_in_run());
        }
        self.run_alone(task.with_inputs(task.inputs.clone(), task.rows))
    }

    /// Where batching is turned on, outputs must have the rows of the inputs, also those of a request
    /// that runs alone, as in TensorFlow Serving: what a client gets depends on no other request.
    pub(super) fn check_given(&self, outputs: &[Tensor], rows: usize) -> Result<()> {
        match self.verification.is_given() && rows > 0 {
            true => check_rows(outputs, rows),
            false => Ok(()),
        }
    }

    /// Runs one request alone, on this thread.
    pub(super) fn run_alone(&self, task: BatchTask) -> Result<BatchOutput> {
        let size = self.padded_rows(task.rows);
        if task.rows == 0 || size == task.rows {
            let (outputs, spent) =
                self.run_once(&[&task], &task.inputs, task.rows, task.deadline)?;
            self.check_given(&outputs, task.rows)?;
            return Ok(BatchOutput { outputs, timing: spent.since(task.queued) });
        }
        self.note_padding(task.rows, size);
        let inputs = assemble(&[&task.inputs], size)?;
        let (outputs, spent) = self.run_once(&[&task], &inputs, size, task.deadline)?;
        let mut answers = split(&outputs, &[task.rows], size)?;
        let outputs = answers.pop().ok_or_else(unsplittable)?;
        Ok(BatchOutput { outputs, timing: spent.since(task.queued) })
    }

    pub(super) fn stop_joining(&self, why: &str) {
        if self.verification.refute(why) {
            log::warn!("{}: requests are not batched: {why}", self.metrics.name());
        }
    }
}

/// Whether all requests are equal, so that mixed rows could remain unnoticed.
fn are_equal(tasks: &[&BatchTask]) -> bool {
    let Some((first, rest)) = tasks.split_first() else {
        return true;
    };
    rest.iter().all(|task| {
        let mut pairs = task.inputs.iter().zip(&first.inputs);
        pairs.all(|(a, b)| have_equal_content(a, b))
    })
}

fn have_equal_content(a: &Tensor, b: &Tensor) -> bool {
    match (a.strings(), b.strings()) {
        (Some(a), Some(b)) => a.iter().eq(b.iter()),
        _ => a.bytes() == b.bytes(),
    }
}
