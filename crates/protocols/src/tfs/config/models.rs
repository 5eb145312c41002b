//! The list of models: `ModelServerConfig`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::text;
use tensorserve_core::config::{
    LogConfig, ModelConfig, SourceConfig, VersionPolicy, is_model_name, is_store_url, model_path,
};
use tensorserve_proto::serving::file_system_storage_path_source_config::ServableVersionPolicy;
use tensorserve_proto::serving::file_system_storage_path_source_config::servable_version_policy::PolicyChoice;
use tensorserve_proto::serving::model_server_config::Config as Choice;
use tensorserve_proto::serving::{ModelConfig as Listed, ModelServerConfig, ModelType};
use tensorserve_tensor::error::{Error, Result};

/// The only platform of the reference.
pub const PLATFORM: &str = "tensorflow";

/// A checked list of models.
#[derive(Clone, Debug, PartialEq)]
pub struct TfsModelList {
    /// The models.
    pub sources: Vec<SourceConfig>,
    /// Settings in the list that have no effect, for the log.
    pub notes: Vec<String>,
}

/// Reads the file of `--model_config_file`. `None` for a file without a list, which TensorFlow
/// Serving accepts and ignores.
///
/// # Errors
/// Those of [`list`], and if the file cannot be read (with line and column).
pub fn read(path: &Path, common: &ModelConfig) -> Result<Option<TfsModelList>> {
    let config: ModelServerConfig = text::read(path, "tensorflow.serving.ModelServerConfig")?;
    list(&config, common)
}

/// Checks a list of models. `common` has the defaults for settings that a model leaves out.
///
/// # Errors
/// Those of TensorFlow Serving, with its messages: a duplicate name, a relative path, a platform that
/// is missing or unsupported.
pub fn list(config: &ModelServerConfig, common: &ModelConfig) -> Result<Option<TfsModelList>> {
    let models = match &config.config {
        None => return Ok(None),
        Some(Choice::CustomModelConfig(_)) => {
            return Err(Error::invalid(
                "custom_model_config is not supported; name the models in a model_config_list",
            ));
        }
        Some(Choice::ModelConfigList(list)) => &list.config,
    };
    let mut names = BTreeSet::new();
    let mut list = TfsModelList { sources: Vec::new(), notes: Vec::new() };
    for model in models {
        let name = &model.name;
        if !names.insert(name) {
            let message = format!("Illegal to list model {name} multiple times in config list");
            return Err(Error::invalid(message));
        }
        check(model)?;
        let log = log(model, common, &mut list.notes)?;
        if let VersionPolicy::Specific(versions) = policy(model.model_version_policy.as_ref())
            && versions.is_empty()
        {
            list.notes.push(format!("model {name}: its specific policy names no version"));
        }
        list.sources.push(source(model, common, log));
    }
    Ok(Some(list))
}

/// The model that `--model_name` and `--model_base_path` name.
///
/// # Errors
/// If the name or the path is invalid.
pub fn one(name: &str, path: &str, common: &ModelConfig) -> Result<SourceConfig> {
    let model = Listed {
        name: name.to_owned(),
        base_path: path.to_owned(),
        model_platform: PLATFORM.to_owned(),
        ..Listed::default()
    };
    check(&model)?;
    Ok(source(&model, common, common.log.clone()))
}

fn check(model: &Listed) -> Result<()> {
    let (name, path) = (&model.name, &model.base_path);
    if !is_model_name(name) {
        let message = format!("model {name:?}: a name must not be empty or contain / or :");
        return Err(Error::invalid(message));
    }
    let local = model_path(path.as_str());
    if is_store_url(&local) {
        // A store, which is reached when its models are discovered.
    } else if local.to_string_lossy().contains("://") {
        let message = format!(
            "model {name}: {path} is not a directory of this machine; mount it and give its path"
        );
        return Err(Error::invalid(message));
    } else if !local.is_absolute() {
        return Err(Error::invalid(format!(
            "Expected model {name} to have an absolute path or URI; got base_path()={path}"
        )));
    }
    let platform = match (model.model_platform.as_str(), model.model_type()) {
        ("", ModelType::Tensorflow) => PLATFORM,
        ("", ModelType::Unspecified) => {
            return Err(Error::invalid(format!(
                "Illegal setting neither ModelServerConfig::model_type (deprecated) nor \
                 ModelServerConfig::model_platform, model name is {name}"
            )));
        }
        ("", ModelType::Other) => "other",
        (platform, _) => platform,
    };
    if platform != PLATFORM {
        let message = format!("Model {name} requests unsupported platform {platform}");
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// The request log of a model: its own `logging_config`, or the default.
fn log(model: &Listed, common: &ModelConfig, notes: &mut Vec<String>) -> Result<LogConfig> {
    let Some(config) = &model.logging_config else {
        return Ok(common.log.clone());
    };
    let name = &model.name;
    let sampling_rate = config.sampling_config.as_ref().map_or(0.0, |c| c.sampling_rate);
    if !(0.0..=1.0).contains(&sampling_rate) {
        let message = format!("model {name}: sampling_rate must be from 0 to 1: {sampling_rate}");
        return Err(Error::invalid(message));
    }
    let collector = config.log_collector_config.clone().unwrap_or_default();
    let prefix = collector.filename_prefix;
    if sampling_rate > 0.0 && !prefix.starts_with('/') {
        return Err(Error::invalid(format!(
            "model {name}: logging_config needs a log_collector_config with an absolute \
             filename_prefix; got {prefix:?}"
        )));
    }
    if !matches!(collector.r#type.as_str(), "" | "file" | "tfrecord") {
        let kind = collector.r#type;
        notes.push(format!(
            "model {name}: log collector {kind:?} is not supported: TFRecord files are written"
        ));
    }
    if config.custom_logging_config.is_some() {
        notes.push(format!("model {name}: custom_logging_config is ignored"));
    }
    let prefix = Some(PathBuf::from(prefix)).filter(|prefix| !prefix.as_os_str().is_empty());
    Ok(LogConfig { prefix, sampling_rate, ..common.log.clone() })
}

fn source(model: &Listed, common: &ModelConfig, log: LogConfig) -> SourceConfig {
    SourceConfig {
        path: model_path(model.base_path.as_str()),
        name: Some(model.name.clone()),
        model: ModelConfig {
            policy: policy(model.model_version_policy.as_ref()),
            labels: model.version_labels.clone(),
            log,
            ..common.clone()
        },
    }
}

fn policy(policy: Option<&ServableVersionPolicy>) -> VersionPolicy {
    match policy.and_then(|policy| policy.policy_choice.as_ref()) {
        None => VersionPolicy::Latest(1),
        Some(PolicyChoice::Latest(latest)) => {
            VersionPolicy::Latest(usize::try_from(latest.num_versions).unwrap_or(1).max(1))
        }
        Some(PolicyChoice::All(_)) => VersionPolicy::All,
        Some(PolicyChoice::Specific(specific)) => {
            VersionPolicy::Specific(specific.versions.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Result<Option<TfsModelList>> {
        let text = format!("model_config_list {{ {text} }}");
        let parsed = text::parse(&text, "tensorflow.serving.ModelServerConfig")?;
        list(&parsed, &ModelConfig::default())
    }

    fn model(rest: &str) -> String {
        format!("config {{ name: 'm' base_path: '/m' model_platform: 'tensorflow' {rest} }}")
    }

    #[test]
    fn a_list_with_everything() {
        let text = model(
            "model_version_policy { specific { versions: [1, 3] versions: 7 } } \
             version_labels { key: 'stable' value: 3 } version_labels { key: 'new' value: 7 } \
             logging_config { sampling_config { sampling_rate: 0.1 } \
             log_collector_config { type: 'x' filename_prefix: '/logs/m' } }",
        );
        let list = listed(&text).expect("valid").expect("a list");
        let source = &list.sources[0];
        assert_eq!(source.model.policy, VersionPolicy::Specific(vec![1, 3, 7]));
        assert_eq!(source.model.labels["stable"], 3);
        assert_eq!(source.model.log.prefix.as_deref(), Some(Path::new("/logs/m")));
        assert_eq!(source.model.log.sampling_rate, 0.1);
        assert_eq!(
            list.notes,
            ["model m: log collector \"x\" is not supported: TFRecord files are written"]
        );
    }

    #[test]
    fn policies() {
        let policy = |text: &str| {
            let text = model(&format!("model_version_policy {{ {text} }}"));
            listed(&text).expect("valid").expect("a list").sources[0].model.policy.clone()
        };
        assert_eq!(policy(""), VersionPolicy::Latest(1));
        assert_eq!(policy("latest {}"), VersionPolicy::Latest(1));
        assert_eq!(policy("latest { num_versions: 3 }"), VersionPolicy::Latest(3));
        assert_eq!(policy("all: {}"), VersionPolicy::All);
    }

    #[test]
    fn mistakes_have_tensorflow_servings_messages() {
        let refused = |text: &str| listed(text).expect_err("wrong").message().to_owned();
        let twice = format!("{} {}", model(""), model(""));
        assert_eq!(refused(&twice), "Illegal to list model m multiple times in config list");
        assert_eq!(
            refused("config { name: 'm' base_path: 'm' model_platform: 'tensorflow' }"),
            "Expected model m to have an absolute path or URI; got base_path()=m"
        );
        assert_eq!(
            refused("config { name: 'm' base_path: '/m' }"),
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor \
             ModelServerConfig::model_platform, model name is m"
        );
        assert_eq!(
            refused("config { name: 'm' base_path: '/m' model_platform: 'torch' }"),
            "Model m requests unsupported platform torch"
        );
        assert!(listed("config { name: 'm' base_path: '/m' model_type: TENSORFLOW }").is_ok());
        assert!(refused("config { name: 'a/b' base_path: '/m' }").contains("a/b"));
        assert!(
            refused("config { name: 'm' base_path: 'hdfs://b/m' }")
                .contains("not a directory of this machine; mount it")
        );
        let in_a_store = "config { name: 'm' base_path: 'gs://b/m' model_platform: 'tensorflow' }";
        let list = listed(in_a_store).expect("valid").expect("a list");
        assert_eq!(list.sources[0].path, Path::new("gs://b/m"));
        let logging = |text: &str| refused(&model(&format!("logging_config {{ {text} }}")));
        let text = logging("sampling_config { sampling_rate: 1.5 }");
        assert!(text.contains("sampling_rate must be from 0 to 1"), "{text}");
        let text = logging("sampling_config { sampling_rate: 0.5 }");
        assert!(text.contains("absolute filename_prefix"), "{text}");
        assert!(listed(&model("logging_config {}")).is_ok(), "logs nothing, so it is valid");
    }

    #[test]
    fn a_file_without_a_list_is_accepted() {
        let empty = ModelServerConfig::default();
        assert_eq!(list(&empty, &ModelConfig::default()).expect("valid"), None);
    }
}
