//! What was found of a version on this machine, remembered over restarts of the server beside the results of load probes:
//! the same files, program, runtime and processor give the same.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use super::form::OptimizedForm;
use tensorserve_platform::{LoadOptions, ModelLoader};

/// What is remembered: the number of threads within an operation that suits the version.
const THREADS: &str = "threads";

/// In place of the largest magnitude of floats for which a form runs, if it runs for all.
const ALL: &str = "all";

/// A version as it is loaded.
#[derive(Clone, Copy)]
pub(super) struct RememberedVersion<'v> {
    pub(super) loader: &'v dyn ModelLoader,
    pub(super) folder: &'v Path,
    pub(super) options: &'v LoadOptions,
}

/// A form that took over, and its number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RememberedForm {
    pub(super) number: usize,
    pub(super) form: OptimizedForm,
}

impl RememberedVersion<'_> {
    pub(super) fn threads(&self) -> Option<usize> {
        self.recall(THREADS)?.parse().ok().filter(|&threads| threads > 0)
    }

    pub(super) fn remember_threads(&self, threads: usize) {
        self.remember(THREADS, &threads.to_string());
    }

    /// The form that took over with `settings`: letters and `-`.
    pub(super) fn form(&self, settings: &str) -> Option<RememberedForm> {
        RememberedForm::parse(&self.recall(&format!("form-{settings}"))?)
    }

    pub(super) fn remember_form(&self, settings: &str, form: &RememberedForm) {
        self.remember(&format!("form-{settings}"), &form.text());
    }

    fn recall(&self, topic: &str) -> Option<String> {
        let text = self.loader.recall(self.folder, self.options, topic)?;
        text.strip_prefix(processor())?.strip_prefix('\n').map(str::to_owned)
    }

    fn remember(&self, topic: &str, what: &str) {
        let text = format!("{}\n{what}", processor());
        self.loader.remember(self.folder, self.options, topic, &text);
    }
}

impl RememberedForm {
    fn text(&self) -> String {
        let OptimizedForm { what, compared, cpu, largest } = &self.form;
        let largest = largest.map_or(ALL.to_owned(), |largest| largest.to_string());
        format!("{} {compared} {cpu} {largest}\n{what}", self.number)
    }

    fn parse(text: &str) -> Option<Self> {
        let (numbers, what) = text.split_once('\n')?;
        let mut numbers = numbers.split(' ');
        let (number, compared) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let cpu = numbers.next()?.parse().ok().filter(|cpu: &f64| cpu.is_finite())?;
        let largest = match numbers.next()? {
            ALL => None,
            text => Some(text.parse().ok().filter(|largest: &f32| largest.is_finite())?),
        };
        let form = OptimizedForm { what: what.to_owned(), compared, cpu, largest };
        numbers.next().is_none().then_some(RememberedForm { number, form })
    }
}

/// The processor, and how many of its cores this process may use: another one takes other times.
fn processor() -> &'static str {
    static PROCESSOR: OnceLock<String> = OnceLock::new();
    PROCESSOR.get_or_init(|| {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        let named = lines.find(|(key, _)| matches!(key.trim(), "model name" | "CPU part"));
        let name = named.map_or("unknown", |(_, name)| name.trim());
        let cores = available_parallelism().map_or(1, NonZero::get);
        format!("{name}, {cores} cores")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_as_it_was_written_and_nothing_else() {
        let what = "8 reads of variables are constants;\noperations are not fused".to_owned();
        for largest in [None, Some(256.0), Some(1e12)] {
            let form = OptimizedForm { what: what.clone(), compared: 48, cpu: 0.57, largest };
            let form = RememberedForm { number: 1, form };
            assert_eq!(RememberedForm::parse(&form.text()), Some(form));
        }
        let others = ["1 48 NaN all\nx", "1 48 0.5\nx", "1 48 0.5 inf\nx", "1 48 0.5 all 6\nx"];
        for text in others.into_iter().chain(["", "1 48 0.5 all", "1 48\nx", "-1 48 0.5 all\nx"]) {
            assert_eq!(RememberedForm::parse(text), None, "{text:?}");
        }
    }
}
