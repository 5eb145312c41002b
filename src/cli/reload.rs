//! SIGHUP: reads the settings again while the server runs.
//!
//! Settings come from the same sources as at the start. A mistake in them changes nothing. Otherwise models, their
//! settings, certificates, users and keys are brought up to date, and the settings that need a restart are named. A
//! thread of its own does this, so that neither signals nor requests wait for a slow disk.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::config::{
    Config, GrpcConfig, HttpConfig, ObservationConfig, RepositoryConfig, ShutdownConfig,
    SourceConfig, TlsConfig,
};
use tensorserve_core::engine::Engine;
use tensorserve_server::FileChecks;
use tensorserve_tensor::error::{Error, Result};

/// Reads all settings again, as at the start.
pub(super) type ReadAgain = Box<dyn Fn() -> Result<Config> + Send>;

/// What SIGHUP works on.
pub(super) struct Reloader {
    pub(super) engine: Engine,
    /// The files of certificates, users and keys.
    pub(super) files: FileChecks,
    /// The settings that the server runs with.
    pub(super) current: Config,
    /// `None` for commands whose settings are only in their flags, or in files that they watch themselves.
    pub(super) read: Option<ReadAgain>,
}

impl Reloader {
    /// Starts the thread. Each message has the settings read once more; those that arrive during a reload count as
    /// one.
    pub(super) fn start(self) -> Result<SyncSender<()>> {
        let (sender, hangups) = sync_channel(1);
        let thread = thread::Builder::new().name("settings".to_owned());
        thread
            .spawn(move || self.run(&hangups))
            .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        Ok(sender)
    }

    fn run(mut self, hangups: &Receiver<()>) {
        while hangups.recv().is_ok() {
            let Some(read) = &self.read else {
                self.files.check_now();
                log::info!("SIGHUP: the files of certificates, users and keys are read again");
                continue;
            };
            match read() {
                Ok(new) => self.apply(&new),
                Err(error) => log::error!("SIGHUP: {error}\nThe settings stay as they were"),
            }
        }
    }

    fn apply(&mut self, new: &Config) {
        self.files.check_now();
        let mut changed = Vec::new();
        let sources = &new.repository.sources;
        if let Some(models) = changed_models(&self.current.repository.sources, sources) {
            changed.push(models);
            self.current.repository.sources.clone_from(sources);
            apply_models(&self.engine, sources.clone());
        }
        let ports = [
            (&mut self.current.http.tls, &new.http.tls),
            (&mut self.current.grpc.tls, &new.grpc.tls),
        ];
        let renewed = ports.into_iter().filter(|(old, new)| old != new && is_same_files(old, new));
        let renewed = renewed.map(|(old, new)| old.clone_from(new)).count();
        if renewed > 0 {
            changed.push("certificates".to_owned());
        }
        let later = needs_restart(&self.current, new);
        if !later.is_empty() {
            let later = later.join(", ");
            log::warn!("SIGHUP: these settings changed and take effect at the next start: {later}");
        }
        if changed.is_empty() {
            changed.push("no change of models and certificates".to_owned());
        }
        log::info!("SIGHUP: the settings were read again: {}", changed.join(", "));
    }
}

/// Replaces the models. The next list need not wait for those of this one.
pub(super) fn apply_models(engine: &Engine, sources: Vec<SourceConfig>) {
    let engine = engine.clone();
    let spawned = thread::Builder::new()
        .name("model reload".to_owned())
        .spawn(move || replace_models(&engine, sources));
    if let Err(error) = spawned {
        log::error!("the new list of models is not applied: no thread can be started: {error}");
    }
}

fn replace_models(engine: &Engine, sources: Vec<SourceConfig>) {
    let count = sources.len();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(engine.reload(sources)),
        Err(error) => {
            Err(Error::internal("the list of models could not be applied").with_source(error))
        }
    };
    match outcome {
        Ok(()) => log::info!("the new list of {count} models is applied"),
        Err(error) => log::error!("the new list of {count} models could not be applied: {error}"),
    }
}

/// How the models differ, for the log; `None` if they do not.
fn changed_models(old: &[SourceConfig], new: &[SourceConfig]) -> Option<String> {
    if old == new {
        return None;
    }
    let key = |source: &SourceConfig| {
        source.name.clone().unwrap_or_else(|| source.path.display().to_string())
    };
    let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (old.iter().map(|s| (key(s), s)).collect(), new.iter().map(|s| (key(s), s)).collect());
    let added = new.keys().filter(|name| !old.contains_key(*name)).count();
    let removed = old.keys().filter(|name| !new.contains_key(*name)).count();
    let changed = new.iter().filter(|(name, s)| old.get(*name).is_some_and(|old| old != *s));
    let counts = [(added, "added"), (removed, "removed"), (changed.count(), "changed")];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    match counts.is_empty() {
        true => Some("models in another order".to_owned()),
        false => Some(format!("models {}", counts.join(", "))),
    }
}

/// Whether two ports take their certificates from the same files, with the same rules: then their content is read
/// again while the server runs.
fn is_same_files(old: &Option<TlsConfig>, new: &Option<TlsConfig>) -> bool {
    match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            old.files() == new.files() && old.verify_clients == new.verify_clients
        }
        _ => false,
    }
}

/// The settings that differ and take effect at the next start. Every field is named here, so that a new one is decided
/// about.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let Config {
        http,
        grpc,
        protocols,
        repository,
        batching,
        auth,
        #[cfg(feature = "tensorflow")]
        tensorflow,
        #[cfg(feature = "onnx")]
        onnx,
        #[cfg(feature = "tflite")]
        litert,
        #[cfg(feature = "openvino")]
        openvino,
        #[cfg(feature = "pytorch")]
        torch,
        #[cfg(feature = "executorch")]
        executorch,
        probe,
        #[cfg(feature = "stores")]
        stores,
        workers,
        require_gpu,
        max_request_memory,
        observation,
        response_cache_bytes,
        max_shadow_requests,
        shutdown,
        stop_with_stdin,
    } = old;
    let checks = [
        ("the protocols (console, sagemaker_…, metrics_aliases)", *protocols != new.protocols),
        ("num_batch_threads or inline_budget_micros", *batching != new.batching),
        ("auth_file (its path)", *auth != new.auth),
        #[cfg(feature = "tensorflow")]
        ("the settings of TensorFlow", *tensorflow != new.tensorflow),
        #[cfg(feature = "onnx")]
        ("the settings of ONNX Runtime", *onnx != new.onnx),
        #[cfg(feature = "tflite")]
        ("the settings of LiteRT", *litert != new.litert),
        #[cfg(feature = "openvino")]
        ("the settings of OpenVINO", *openvino != new.openvino),
        #[cfg(feature = "pytorch")]
        ("the settings of PyTorch", *torch != new.torch),
        #[cfg(feature = "executorch")]
        ("the settings of ExecuTorch", *executorch != new.executorch),
        ("the settings of load probes and isolated models", *probe != new.probe),
        #[cfg(feature = "stores")]
        ("the settings of stores", *stores != new.stores),
        ("the settings of Python processes", *workers != new.workers),
        ("require_gpu", *require_gpu != new.require_gpu),
        ("max_request_memory", *max_request_memory != new.max_request_memory),
        ("response_cache_bytes", *response_cache_bytes != new.response_cache_bytes),
        ("max_shadow_requests", *max_shadow_requests != new.max_shadow_requests),
        ("stop_with_stdin", *stop_with_stdin != new.stop_with_stdin),
    ];
    let mut names = of_http(http, &new.http);
    names.extend(of_grpc(grpc, &new.grpc));
    names.extend(of_repository(repository, &new.repository));
    names.extend(of_shutdown(shutdown, &new.shutdown));
    names.extend(of_observation(observation, &new.observation));
    names.extend(differing(&checks));
    names
}

/// The names of what differs.
fn differing(checks: &[(&'static str, bool)]) -> Vec<&'static str> {
    checks.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect()
}

fn of_http(old: &HttpConfig, new: &HttpConfig) -> Vec<&'static str> {
    let HttpConfig {
        host,
        port,
        port_setting: _, // Only for the error at the start.
        more_ports,
        threads,
        max_body_bytes,
        request_timeout,
        body_timeout,
        write_timeout,
        header_timeout,
        keep_alive,
        max_connections,
        cors,
        request_ids,
        server_timing,
        tls,
        admin,
    } = old;
    differing(&[
        ("host", *host != new.host),
        ("http_port", (port, more_ports) != (&new.port, &new.more_ports)),
        ("http_threads", *threads != new.threads),
        ("max_body_bytes", *max_body_bytes != new.max_body_bytes),
        ("request_timeout", *request_timeout != new.request_timeout),
        ("body_timeout", *body_timeout != new.body_timeout),
        ("write_timeout", *write_timeout != new.write_timeout),
        ("header_timeout", *header_timeout != new.header_timeout),
        ("keep_alive", *keep_alive != new.keep_alive),
        ("max_connections", *max_connections != new.max_connections),
        ("server_timing", *server_timing != new.server_timing),
        ("cors", (cors, request_ids) != (&new.cors, &new.request_ids)),
        ("the paths of HTTP's certificates", !is_same_files(tls, &new.tls)),
        ("console_admin or console_hosts", *admin != new.admin),
    ])
}

fn of_grpc(old: &GrpcConfig, new: &GrpcConfig) -> Vec<&'static str> {
    let GrpcConfig {
        host,
        port,
        port_setting: _,
        socket_path,
        max_message_bytes,
        tls,
        health_service,
    } = old;
    differing(&[
        ("the host of gRPC", *host != new.host),
        ("grpc_port", *port != new.port),
        ("grpc_socket_path", *socket_path != new.socket_path),
        ("grpc_max_message_bytes", *max_message_bytes != new.max_message_bytes),
        ("the paths of gRPC's certificates", !is_same_files(tls, &new.tls)),
        ("the health service of gRPC", *health_service != new.health_service),
    ])
}

fn of_repository(old: &RepositoryConfig, new: &RepositoryConfig) -> Vec<&'static str> {
    let RepositoryConfig {
        sources: _, // Replaced while the server runs.
        common,
        poll_interval,
        load_threads,
        longest_turn,
        second_look: _, // No setting.
        release_state: _,
        memory_limit,
        max_load_retries,
        load_retry_interval,
    } = old;
    let retries = (max_load_retries, load_retry_interval);
    differing(&[
        ("the common settings of models, for those loaded on request", *common != new.common),
        ("poll_interval", *poll_interval != new.poll_interval),
        ("load_threads", (load_threads, longest_turn) != (&new.load_threads, &new.longest_turn)),
        ("the memory limit of models", *memory_limit != new.memory_limit),
        ("load retries", retries != (&new.max_load_retries, &new.load_retry_interval)),
    ])
}

fn of_shutdown(old: &ShutdownConfig, new: &ShutdownConfig) -> Vec<&'static str> {
    let ShutdownConfig { delay, timeout } = old;
    differing(&[
        ("shutdown_delay", *delay != new.delay),
        ("shutdown_timeout", *timeout != new.timeout),
    ])
}

fn of_observation(old: &ObservationConfig, new: &ObservationConfig) -> Vec<&'static str> {
    let ObservationConfig { log_level, log_format, access_log, traces } = old;
    differing(&[
        ("log_level", *log_level != new.log_level),
        ("log_format", *log_format != new.log_format),
        ("access_log or traces", (access_log, traces) != (&new.access_log, &new.traces)),
    ])
}
