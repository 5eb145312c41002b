//! Settings of the load probe, of isolated models and of models in Python.

use std::thread::available_parallelism;

use tensorserve_core::config::RunnerOptions;
use tensorserve_probe::ProbeConfig;

use super::check::{Check, listed};
use super::environment::Environment;
use super::groups::{EachModelSettings, Isolation, Runner, ServerSettings};
use super::units::ByteSize;

impl Check {
    /// The platform of a model with `runner = "python"`. It is no value of the setting `platform`, because
    /// that is also written where someone else than the operator may write it.
    pub(super) fn runner(&mut self, each: &EachModelSettings) -> Option<&'static str> {
        if each.runner() == Runner::Native {
            return None;
        }
        if each.platform.is_some() {
            let why = "with runner = \"python\" a model has no other platform; remove the platform";
            self.clash(&["platform", "runner"], why);
        }
        if each.isolation() == Isolation::Process {
            let why =
                "with runner = \"python\" a model is in processes of its own; remove the isolation";
            self.clash(&["isolation", "runner"], why);
        }
        let python = super::runner_platform();
        if python.is_none() {
            self.wrong("runner", "this build of tensorserve cannot run models in Python");
        }
        python
    }
}

/// The processes of a model in Python.
pub(super) fn runner_options(each: &EachModelSettings) -> RunnerOptions {
    let cores = available_parallelism().map_or(1, std::num::NonZero::get);
    RunnerOptions {
        python: each.runner_python.clone(),
        workers: each.runner_workers.unwrap_or(cores.clamp(2, 8)),
        timeout: each.runner_timeout().0,
        memory_limit: each.runner_memory_limit.map(|ByteSize(size)| size),
        trusted_types: listed(&each.runner_trusted_types),
    }
}

/// How versions are probed; `isolates` tells whether a model is isolated at the start.
pub(super) fn probe(
    server: &ServerSettings,
    environment: &Environment,
    isolates: bool,
) -> ProbeConfig {
    let memory = server.load_probe_memory.map(|ByteSize(size)| size);
    let cache = || environment.cache_directory().join("probes");
    ProbeConfig {
        probes: server.load_probe(),
        isolates,
        memory_limit: memory.and_then(|size| u64::try_from(size).ok()),
        timeout: server.load_probe_timeout().0,
        cache: server.load_probe_cache.clone().unwrap_or_else(cache),
        gpu: server.load_probe_gpu(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Settings};
    use super::*;

    #[cfg(feature = "python")]
    #[test]
    fn a_model_runs_in_python_only_if_the_operator_says_so() {
        let platform = |change: &dyn Fn(&mut EachModelSettings)| {
            let mut settings = Settings::default();
            settings.paths.push("x".into());
            change(&mut settings.each);
            let config = Config::new(settings, &Environment::default())?;
            Ok::<_, tensorserve_tensor::error::Error>(config.repository.sources[0].model.platform)
        };
        let runner = |text: &str| {
            let text = text.to_owned();
            platform(&move |each| each.runner = Some(text.clone()))
        };
        assert_eq!(platform(&|_| ()).ok(), Some(None));
        assert_eq!(runner("native").ok(), Some(None));
        assert_eq!(runner("python").ok(), Some(Some("python")));
        let error = runner("ruby").expect_err("unknown");
        assert!(error.message().contains("runner: \"ruby\" is neither"), "{error}");
        let error = platform(&|each| each.platform = Some("python".into())).expect_err("unknown");
        assert!(error.message().contains("platform \"python\" is unknown"), "{error}");
        let both = platform(&|each| {
            each.runner = Some("python".into());
            each.platform = Some("onnx".into());
        });
        assert!(both.expect_err("both").message().contains("has no other platform"));
    }

    #[test]
    fn a_model_is_isolated_in_a_process_or_not() {
        let isolation = |text: &str| {
            let mut settings = Settings::default();
            settings.paths.push("x".into());
            settings.server.load_probe = Some(false);
            settings.each.isolation = Some(text.to_owned());
            let config = Config::new(settings, &Environment::default())?;
            Ok::<_, tensorserve_tensor::error::Error>((
                config.repository.sources[0].model.isolated,
                config.probe.isolates,
                config.probe.probes,
            ))
        };
        assert_eq!(isolation("process").ok(), Some((true, true, false)));
        assert_eq!(isolation("none").ok(), Some((false, false, false)));
        let error = isolation("thread").expect_err("wrong");
        assert!(error.message().contains("isolation: \"thread\" is neither"), "{error}");
    }
}
