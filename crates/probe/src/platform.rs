//! A loader that probes each version before it loads it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tensorserve_platform::{
    Completeness, EndedProcess, Executable, Inspection, LoadOptions, Loaded, ModelLoader,
    ModelPath, Optimization, Packaging, Platform,
};
use tensorserve_tensor::error::{Code, Error, Result};

use crate::isolated;
use crate::link::HostLink;
use crate::messages::ProbeOutcome;
use crate::verdicts::{Verdict, Verdicts, VersionFingerprint};

pub(crate) struct ProbedLoader {
    inner: Platform,
    /// `None` if there is no probe host.
    link: Option<Arc<HostLink>>,
    /// `None` if versions are loaded without a probe.
    verdicts: Option<Arc<Verdicts>>,
}

impl ProbedLoader {
    pub(crate) fn new(
        inner: Platform,
        link: Option<Arc<HostLink>>,
        verdicts: Option<Arc<Verdicts>>,
    ) -> Self {
        ProbedLoader { inner, link, verdicts }
    }

    /// Where something is remembered of a version, and its files.
    fn remembered(
        &self,
        folder: &Path,
        options: &LoadOptions,
    ) -> Option<(&Verdicts, VersionFingerprint)> {
        let verdicts = self.verdicts.as_deref()?;
        let runtime = self.inner.runtime.describe().ok()?;
        let files = verdicts.fingerprint(&self.inner, &runtime, folder, options).ok()?;
        Some((verdicts, files))
    }

    /// The remembered verdict on a version, or that of a probe.
    fn verdict(&self, folder: &Path, options: &LoadOptions) -> Result<Verdict> {
        let Some((link, verdicts)) = self.link.as_ref().zip(self.verdicts.as_ref()) else {
            return Ok(Verdict::default());
        };
        // Without a runtime or with unreadable files there is nothing to probe: the load reports it.
        let Ok(runtime) = self.inner.runtime.describe() else {
            return Ok(Verdict::default());
        };
        let Ok(files) = verdicts.fingerprint(&self.inner, &runtime, folder, options) else {
            return Ok(Verdict::default());
        };
        if let Some(known) = verdicts.known(&files) {
            return Ok(known);
        }
        let started = Instant::now();
        let outcome = link.probe(self.inner.info.name, folder, options);
        let verdict = judged(outcome, folder, options.form, started)?;
        let after = verdicts.fingerprint(&self.inner, &runtime, folder, options);
        // Others than those that were read before may have been probed.
        if let Some(verdict) = verdict.filter(|_| after.is_ok_and(|after| after == files)) {
            verdicts.remember(&files, verdict);
        }
        Ok(verdict.unwrap_or_default())
    }
}

/// The verdict of a probe; `None` if there is none, and the version is loaded all the same.
fn judged(
    outcome: io::Result<ProbeOutcome>,
    folder: &Path,
    form: Option<usize>,
    started: Instant,
) -> Result<Option<Verdict>> {
    let (folder, time) = (folder.display(), started.elapsed().as_millis());
    match outcome {
        Ok(ProbeOutcome::Passed { ended_by }) if form.is_some() => {
            log::debug!("{folder}: its other form {form:?} passed the load probe in {time} ms");
            Ok(Some(Verdict { exact_shapes: ended_by.is_some() }))
        }
        Ok(ProbeOutcome::Passed { ended_by: None }) => {
            log::info!("{folder}: passed the load probe in {time} ms");
            Ok(Some(Verdict::default()))
        }
        Ok(ProbeOutcome::Passed { ended_by: Some(input) }) => {
            log::info!(
                "{folder}: passed the load probe in {time} ms; requests must have the declared \
                 shapes, because of {input}"
            );
            Ok(Some(Verdict { exact_shapes: true }))
        }
        Ok(ProbeOutcome::Refused) => Ok(None),
        Ok(ProbeOutcome::OutOfMemory(why)) => Err(Error::new(Code::ResourceExhausted, why)),
        Ok(ProbeOutcome::Unset(why)) => Err(Error::new(Code::FailedPrecondition, why)),
        Ok(ProbeOutcome::Failed(why)) => {
            Err(Error::new(Code::FailedPrecondition, why).with_source(EndedProcess))
        }
        // It could end the server.
        Err(error) => Err(Error::unavailable(format!("it cannot be probed now: {error}"))),
    }
}

impl ModelLoader for ProbedLoader {
    fn recognises(&self, place: &ModelPath) -> bool {
        self.inner.loader.recognises(place)
    }

    fn has_folders(&self, place: &ModelPath) -> bool {
        self.inner.loader.has_folders(place)
    }

    fn check(&self, folder: &Path) -> Completeness {
        self.inner.loader.check(folder)
    }

    fn inspect(&self, folder: &Path, options: &LoadOptions) -> Result<Inspection> {
        self.inner.loader.inspect(folder, options)
    }

    fn load(&self, folder: &Path, options: &LoadOptions) -> Result<Loaded> {
        if let Some(model) = &options.isolated_as {
            let Some(link) = &self.link else {
                let why = "isolated models, as those with isolation = \"process\" and all of OpenVINO, need the process of \
                           the load probe, which starts with the server if load_probe is true or a model has \
                           isolation = \"process\"; restart it";
                return Err(Error::precondition(why));
            };
            return isolated::load(link, &self.inner, folder, options, model);
        }
        let verdict = self.verdict(folder, options)?;
        let mut loaded = self.inner.loader.load(folder, options)?;
        if verdict.exact_shapes {
            for signature in &mut loaded.signatures {
                signature.exact_shapes = true;
            }
        }
        Ok(loaded)
    }

    fn optimized(
        &self,
        folder: &Path,
        options: &LoadOptions,
        executable: &dyn Executable,
        number: usize,
    ) -> Result<Optimization> {
        let tried = LoadOptions { form: Some(number), ..options.clone() };
        let verdict = match self.verdict(folder, &tried) {
            Ok(verdict) => verdict,
            Err(error) => {
                let why = format!("its form number {number} was not made here: {error}");
                return Ok(Optimization::None(why));
            }
        };
        // It would end this process for requests that the version as it was loaded answers with errors.
        if verdict.exact_shapes && !self.verdict(folder, options)?.exact_shapes {
            let why = "its other form ends its process for other shapes than the declared ones";
            return Ok(Optimization::None(why.to_owned()));
        }
        self.inner.loader.optimized(folder, options, executable, number)
    }

    fn recall(&self, folder: &Path, options: &LoadOptions, topic: &str) -> Option<String> {
        let (verdicts, files) = self.remembered(folder, options)?;
        verdicts.recall(&files, topic)
    }

    fn remember(&self, folder: &Path, options: &LoadOptions, topic: &str, text: &str) {
        if let Some((verdicts, files)) = self.remembered(folder, options) {
            verdicts.note(&files, topic, text);
        }
    }

    fn packaging(&self, folder: &Path) -> Result<Option<Packaging>> {
        self.inner.loader.packaging(folder)
    }
}
