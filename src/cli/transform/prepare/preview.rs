//! What a job would do, without doing it: `--explain`, `--dry-run`, and a job that is done.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::arguments::ShowProgress;
use super::super::inputs::names_type;
use super::super::options::{self, JobOptions};
use super::super::show::note;
use super::super::{print_json, print_line};
use super::{Setting, own_entries};
use tensorserve_tensor::error::Result;
use tensorserve_transform::batch::RecordRunner;
use tensorserve_transform::job::{Job, RecordType};
use tensorserve_transform::model::Model;
use tensorserve_transform::plan::{Entry, Plan, PlannedObject};
use tensorserve_transform::progress::Progress;
use tensorserve_transform::report::{bytes, counted};

impl Setting {
    /// Refuses a media type that only handlers could take, where there are none.
    ///
    /// # Errors
    /// For such a type; if the model cannot be loaded.
    pub(super) fn check_content_type(&mut self) -> Result<()> {
        let job = &self.options.job;
        if job.records != RecordType::Document
            || job.frozen.sdk_exact.is_some()
            || self.arguments.entries_from_stdin
        {
            return Ok(());
        }
        let model = self.model()?;
        let has_handlers = model.has_handlers();
        self.model = Some(model);
        if has_handlers { Ok(()) } else { Err(options::unknown_type(&self.options.content_type)) }
    }

    /// Prints how the job is divided, and why. Nothing is written: a plan that is there stays as it is.
    ///
    /// # Errors
    /// If there is another job in the output, or the inputs have changed.
    pub(super) fn explain_only(&mut self, shard: Option<(usize, usize)>) -> Result<()> {
        let known = match self.arguments.overwrite {
            true => None,
            false => self.state.load()?,
        };
        let is_known = known.is_some();
        let plan = match known {
            Some((frozen, plan)) => {
                self.adopt(&frozen)?;
                self.inputs.check_planned(&plan)?;
                plan
            }
            None => self.new_plan()?,
        };
        let own: BTreeSet<usize> = own_entries(&plan, shard).into_iter().collect();
        let marked = if is_known { self.state.marked()? } else { Vec::new() };
        let done: BTreeSet<usize> =
            marked.into_iter().filter(|entry| own.contains(entry)).collect();
        self.explain(&plan, &done, own.len() - done.len());
        Ok(())
    }

    /// Prints how the job is divided.
    pub(super) fn explain(&self, plan: &Plan, done: &BTreeSet<usize>, pending: usize) {
        let job = &self.options.job;
        let ranges = match plan.ranges() {
            0 => String::new(),
            // Of one object there are at least two.
            ranges => {
                format!(", {ranges} of them ranges of up to {}", bytes(job.frozen.range_bytes))
            }
        };
        note(&format!(
            "{}, {}, in {}{ranges}; {} done, {pending} to do here",
            counted(plan.objects(), "object"),
            bytes(plan.bytes()),
            counted(plan.entries.len(), "entry"),
            done.len(),
        ));
        note(&format!(
            "records: {}, --split {}; {} in a batch; {} at the same time; up to {} of records in memory",
            job.frozen.content_type,
            job.input,
            counted(job.frozen.batch_rows, "record"),
            counted(job.concurrency, "batch"),
            bytes(memory(job)),
        ));
    }

    /// The objects of the plan that are this process's own.
    pub(super) fn own_objects(&self, plan: &Plan, shard: Option<(usize, usize)>) -> usize {
        let entries = own_entries(plan, shard);
        let entries = entries.iter().filter_map(|&number| plan.entries.get(number));
        entries.map(Entry::beginning_objects).sum()
    }

    /// Says that everything is done. The report stays.
    pub(super) fn nothing_to_do(&self, plan: &Plan, shard: Option<(usize, usize)>) {
        super::nothing_to_do(self.own_objects(plan, shard), &self.output);
        if self.arguments.progress == ShowProgress::Json {
            print_json(&Progress::new(0, 0).snapshot());
        }
    }

    /// Shows the first records, and what becomes of them.
    pub(super) fn dry_run(&mut self) -> Result<()> {
        let model = self.model()?;
        // The first one that says by its name that it is what the job takes, if one does.
        let content_type = self.options.content_type.as_str();
        let objects = &self.inputs.objects;
        let named = objects.iter().find(|object| names_type(&object.key, content_type));
        let first = named.or(objects.first());
        let Some(object) = first else {
            return Ok(());
        };
        let object = PlannedObject::of(object);
        self.options.job.frozen.batch_rows = 3;
        let batch = self.options.job.first_batch(&model, &self.inputs.place, &object)?;
        let (count, total) =
            (self.inputs.objects.len(), self.inputs.objects.iter().map(|o| o.size).sum());
        let all = counted(count, "object");
        print_line(&format!("{all}, {}; the first is {}", bytes(total), object.key));
        let Some(batch) = batch else {
            print_line("it has no records");
            return Ok(());
        };
        let model = Arc::new(model);
        let job = std::mem::replace(
            &mut self.options.job,
            JobOptions::new(&self.arguments, &self.inputs)?.job,
        );
        let served: Arc<dyn Model> = Arc::clone(&model) as Arc<dyn Model>;
        let runner = RecordRunner::new(Arc::new(job), served);
        for index in 0..batch.len() {
            print_line(&format!("record {}: {}", index + 1, batch.shown(index)));
            let payload = runner.payload_of(&batch, index)?;
            match model.tensors(payload) {
                Ok(tensors) => tensors.iter().for_each(|line| print_line(&format!("  {line}"))),
                Err(error) => print_line(&format!("  no tensors: {error}")),
            }
        }
        let output = runner.run(&batch)?;
        for (index, line) in output.outputs().enumerate() {
            let text = match line {
                Some(line) => String::from_utf8_lossy(line).chars().take(500).collect::<String>(),
                None => "refused, see the error".to_owned(),
            };
            print_line(&format!("output {}: {text}", index + 1));
        }
        for (index, error) in output.errors() {
            print_line(&format!("error {}: {error}", index + 1));
        }
        Ok(())
    }
}

/// The memory that records take at most: each batch that is under way is there as records, as tensors and
/// as an output.
fn memory(job: &Job) -> u64 {
    let threads = u64::try_from(job.concurrency + 1).unwrap_or(u64::MAX);
    let batch = u64::try_from(job.frozen.max_payload_bytes).unwrap_or(u64::MAX);
    threads.saturating_mul(threads).saturating_mul(batch).saturating_mul(3)
}
