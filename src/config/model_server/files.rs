//! TensorFlow Serving's other configuration files: monitoring, TLS, sessions, platforms.

use std::path::Path;

use prost::Message;

use crate::config::units::CommaSeparated;
use crate::config::{Pem, Settings, TlsConfig};
use tensorserve_proto::serving::{
    MonitoringConfig, PlatformConfigMap, SavedModelBundleSourceAdapterConfig, SessionBundleConfig,
    SslConfig,
};
use tensorserve_proto::tensorflow::{ConfigProto, GpuOptions};
use tensorserve_protocols::tfs::config::METRICS_PATH;
use tensorserve_protocols::tfs::config::models::PLATFORM;
use tensorserve_protocols::tfs::config::{batching, text};
use tensorserve_tensor::error::{Error, Result};

/// The path of the metrics in the file of `--monitoring_config_file`.
///
/// # Errors
/// If the file cannot be read (with line and column), or the path is not one.
pub fn monitoring(path: &Path) -> Result<Option<String>> {
    let config: MonitoringConfig = text::read(path, "tensorflow.serving.MonitoringConfig")?;
    let Some(prometheus) = config.prometheus_config.filter(|prometheus| prometheus.enable) else {
        return Ok(None);
    };
    match prometheus.path.as_str() {
        "" => Ok(Some(METRICS_PATH.to_owned())),
        metrics if metrics.starts_with('/') => Ok(Some(metrics.to_owned())),
        metrics => {
            let message = format!("{}: path {metrics:?} must begin with /", path.display());
            Err(Error::invalid(message))
        }
    }
}

/// Key and certificates of the file of `--ssl_config_file`.
///
/// # Errors
/// If the file cannot be read (with line and column), or the key or the certificate is missing.
pub fn tls(path: &Path) -> Result<TlsConfig> {
    let config: SslConfig = text::read(path, text::SECRET)?;
    for (name, pem) in [("server_key", &config.server_key), ("server_cert", &config.server_cert)] {
        if !pem.contains("-----BEGIN ") {
            let message =
                format!("{}: {name} must be the text of a PEM file, not its name", path.display());
            return Err(Error::invalid(message));
        }
    }
    let pem = |name: &str, text| {
        let origin = format!("{}: {name}", path.display());
        Pem { text, origin, path: None }
    };
    let roots = Some(config.custom_ca).filter(|roots| !roots.is_empty());
    Ok(TlsConfig {
        key: pem("server_key", config.server_key),
        certificate: pem("server_cert", config.server_cert),
        client_roots: roots.map(|roots| pem("custom_ca", roots)),
        verify_clients: config.client_verify,
    })
}

/// The settings of the file of `--tensorflow_session_config_file`, and a line for each part of it
/// that has no effect here.
///
/// # Errors
/// If the file cannot be read (with line and column).
pub fn session(path: &Path) -> Result<(Settings, Vec<String>)> {
    let config: ConfigProto = text::read(path, "tensorflow.ConfigProto")?;
    let (mut settings, mut notes) = (Settings::default(), Vec::new());
    take_session(&config, &mut settings, &mut notes);
    Ok((settings, notes))
}

/// The settings of the file of `--platform_config_file`, and a line for each part of it that has
/// no effect here.
///
/// # Errors
/// If the file cannot be read (with line and column).
pub fn platforms(path: &Path) -> Result<(Settings, Vec<String>)> {
    let shown = path.display();
    let map: PlatformConfigMap = text::read(path, "tensorflow.serving.PlatformConfigMap")?;
    let (mut settings, mut notes) = (Settings::default(), Vec::new());
    for (name, platform) in &map.platform_configs {
        if name != PLATFORM {
            notes.push(format!("platform {name} is ignored: it is not built in"));
            continue;
        }
        let Some(adapter) = &platform.source_adapter_config else {
            continue;
        };
        let message = adapter.type_url.rsplit('/').next().unwrap_or_default();
        if message != "tensorflow.serving.SavedModelBundleSourceAdapterConfig" {
            return Err(Error::invalid(format!("{shown}: {message} is not a known adapter")));
        }
        let adapter = SavedModelBundleSourceAdapterConfig::decode(&*adapter.value)
            .map_err(|e| Error::invalid(format!("{shown}: {e}")))?;
        if let Some(bundle) = adapter.legacy_config {
            take_bundle(bundle, &mut settings, &mut notes)
                .map_err(|e| e.context(path.display()))?;
        }
    }
    Ok((settings, notes))
}

fn take_bundle(
    bundle: SessionBundleConfig,
    settings: &mut Settings,
    notes: &mut Vec<String>,
) -> Result<()> {
    if let Some(session) = &bundle.session_config {
        take_session(session, settings, notes);
    }
    if let Some(parameters) = &bundle.batching_parameters {
        let (batching, threads) = batching::settings(parameters)?;
        settings.batching = batching.or(&batching::defaults()).into();
        settings.server.num_batch_threads = threads;
    }
    settings.each.warm_up = Some(bundle.enable_model_warmup);
    let warm_up = bundle.model_warmup_options.clone().unwrap_or_default();
    let iterations = warm_up.num_request_iterations.and_then(|times| usize::try_from(times).ok());
    settings.each.warm_up_iterations = iterations.filter(|&times| times > 0);
    if !bundle.saved_model_tags.is_empty() {
        settings.each.tags = Some(CommaSeparated(bundle.saved_model_tags.clone()));
    }
    let target = Some(bundle.session_target.clone()).filter(|target| !target.is_empty());
    settings.server.session_target = target;
    let rest = SessionBundleConfig {
        session_target: String::new(),
        session_config: None,
        batching_parameters: None,
        enable_model_warmup: false,
        model_warmup_options: None,
        saved_model_tags: Vec::new(),
        ..bundle
    };
    if rest != SessionBundleConfig::default() {
        notes.push(
            "thread pools, RAM estimates and TFLite of the platform config have no effect here"
                .to_owned(),
        );
    }
    Ok(())
}

fn take_session(config: &ConfigProto, settings: &mut Settings, notes: &mut Vec<String>) {
    let server = &mut settings.server;
    let some = |threads: i32| (threads != 0).then_some(threads);
    server.intra_op_threads = some(config.intra_op_parallelism_threads);
    server.inter_op_threads = some(config.inter_op_parallelism_threads);
    let mut rest = ConfigProto {
        intra_op_parallelism_threads: 0,
        inter_op_parallelism_threads: 0,
        gpu_options: None,
        // Soft placement is always on.
        allow_soft_placement: false,
        ..config.clone()
    };
    if let Some(gpu) = &config.gpu_options {
        server.gpu_memory_fraction = Some(gpu.per_process_gpu_memory_fraction);
        server.gpu_allow_growth = Some(gpu.allow_growth);
        server.gpu_visible_devices =
            Some(gpu.visible_device_list.clone()).filter(|list| !list.is_empty());
        let others = GpuOptions {
            per_process_gpu_memory_fraction: 0.0,
            allow_growth: false,
            visible_device_list: String::new(),
            ..gpu.clone()
        };
        rest.gpu_options = Some(others).filter(|others| *others != GpuOptions::default());
    }
    if rest != ConfigProto::default() {
        notes.push(
            "of the session config only threads, GPU memory, allow_growth and \
             visible_device_list have an effect here"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), text).expect("written");
        file
    }

    #[test]
    fn metrics_are_where_the_file_says() {
        let path = |text: &str| monitoring(file(text).path());
        let none = "prometheus_config { enable: false path: '/x' }";
        assert_eq!(path(none).ok(), Some(None));
        assert_eq!(path("").ok(), Some(None));
        let default = path("prometheus_config { enable: true }").ok().flatten();
        assert_eq!(default.as_deref(), Some("/monitoring/prometheus/metrics"));
        let own = path("prometheus_config { enable: true path: '/m' }").ok().flatten();
        assert_eq!(own.as_deref(), Some("/m"));
        assert!(path("prometheus_config { enable: true path: 'm' }").is_err());
    }

    #[test]
    fn keys_are_text_and_do_not_get_into_logs() {
        let pem = "-----BEGIN X-----\\nsecret\\n-----END X-----\\n";
        let text = format!("server_key: \"{pem}\" server_cert: \"{pem}\" client_verify: true");
        let read = tls(file(&text).path()).expect("valid");
        assert!(read.verify_clients && read.client_roots.is_none());
        assert!(read.key.text.contains("\nsecret\n"));
        assert!(!format!("{read:?}").contains("secret"));
        let error = tls(file("server_key: '/etc/key.pem'").path()).expect_err("a name");
        assert!(error.message().contains("server_key must be the text"), "{error}");
        for broken in [format!("server_key \"{pem}\""), "server_key: secret".to_owned()] {
            let error = tls(file(&broken).path()).expect_err("broken");
            assert!(error.message().contains(": 1:12: ") || error.message().contains(": 1:13: "));
            assert!(!error.message().contains("secret"), "{error}");
        }
    }

    #[test]
    fn sessions_set_threads_and_gpus() {
        let text = "intra_op_parallelism_threads: 3 gpu_options { allow_growth: true \
                    per_process_gpu_memory_fraction: 0.25 }";
        let (settings, notes) = session(file(text).path()).expect("valid");
        assert_eq!(settings.server.intra_op_threads, Some(3));
        assert_eq!(settings.server.gpu_memory_fraction, Some(0.25));
        assert_eq!(notes, Vec::<String>::new());
        let text = "graph_options { optimizer_options { opt_level: L0 } }";
        let (_, notes) = session(file(text).path()).expect("valid");
        assert_eq!(notes.len(), 1);
        assert!(session(file("intra_threads: 1").path()).is_err());
    }

    #[test]
    fn platforms_bring_batching_tags_and_sessions() {
        let text = "platform_configs { key: 'tensorflow' value { source_adapter_config {
            [type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig] {
                legacy_config {
                    session_config { inter_op_parallelism_threads: 2 }
                    batching_parameters { max_batch_size { value: 8 } num_batch_threads { value: 1 } }
                    saved_model_tags: 'gpu' enable_model_warmup: true session_target: 'grpc://a:1'
                    prefer_tflite_model: true
                }
            }
        } } } platform_configs { key: 'torch' value {} }";
        let (settings, notes) = platforms(file(text).path()).expect("valid");
        assert_eq!(settings.server.inter_op_threads, Some(2));
        assert_eq!(settings.server.session_target.as_deref(), Some("grpc://a:1"));
        assert_eq!(settings.server.num_batch_threads, Some(1));
        assert_eq!(settings.batching.max_batch_size, Some(8));
        assert_eq!(settings.batching.max_enqueued_batches, Some(10));
        assert_eq!(settings.each.tags, Some(CommaSeparated(vec!["gpu".to_owned()])));
        assert_eq!(notes.len(), 2, "{notes:?}");
    }
}
