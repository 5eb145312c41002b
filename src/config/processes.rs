//! Settings of the load probe and of isolated models.

use tensorserve_probe::ProbeConfig;

use super::check::Check;
use super::environment::Environment;
use super::groups::{EachModelSettings, ServerSettings};
use super::units::Bytes;

impl Check {
    /// Whether a model runs in a process of its own.
    pub(super) fn isolated(&mut self, each: &EachModelSettings) -> bool {
        match each.isolation.as_deref() {
            None | Some("none") => false,
            Some("process") => true,
            Some(other) => {
                self.wrong("isolation", format!("{other:?} is neither none nor process"));
                false
            }
        }
    }

    /// How versions are probed; `isolates` tells whether a model is isolated at the start.
    pub(super) fn probe(
        &mut self,
        server: &ServerSettings,
        environment: &Environment,
        isolates: bool,
    ) -> ProbeConfig {
        let memory = server.load_probe_memory.map(|Bytes(size)| size);
        let memory = memory.map(|size| self.at_least_one("load_probe_memory", Some(size), 1));
        let cache = || environment.cache_directory().join("probes");
        ProbeConfig {
            probes: server.load_probe.unwrap_or(true),
            isolates,
            memory_limit: memory.and_then(|size| u64::try_from(size).ok()),
            timeout: self.some_time("load_probe_timeout", server.load_probe_timeout, 600),
            cache: server.load_probe_cache.clone().unwrap_or_else(cache),
            gpu: server.load_probe_gpu.unwrap_or(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Settings};
    use super::*;

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
