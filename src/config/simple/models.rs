//! The list of models, from the file of `--model_config_file` or the flags of one model.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::session_of;
use crate::config::units::CommaSeparated;
use crate::config::{self, ModelConfig, Settings, SourceConfig, VersionPolicy};
use tensorserve_core::config::{is_model_name, is_store_url, model_path};
use tensorserve_tensor::error::{Error, Result};

/// The default platform.
const DEFAULT_PLATFORM: &str = "tensorflow";

/// A model of the list.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct ListedModel {
    /// Its name.
    pub name: String,
    /// The directory of its versions.
    pub base_path: String,
    /// Its platform.
    #[serde(default = "platform")]
    pub platform: String,
    #[serde(default)]
    custom_op_paths: String,
    #[serde(default)]
    session_config: Map<String, Value>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

fn platform() -> String {
    DEFAULT_PLATFORM.to_owned()
}

#[derive(Deserialize)]
struct File {
    model_config_list: Vec<ListedModel>,
}

/// The result of reading a list.
#[derive(Debug, Default)]
pub struct ModelList {
    /// The models that can be served, each name once.
    pub models: Vec<ListedModel>,
    /// The settings from their session configs and custom operations, for all models.
    pub settings: Settings,
    /// Warnings for the log.
    pub notes: Vec<String>,
    /// Models that cannot be served, and why.
    pub refused: Vec<String>,
}

impl ListedModel {
    /// The model of a server without a list.
    #[must_use]
    pub fn one(name: &str, base_path: &str, platform: &str) -> Self {
        ListedModel {
            name: name.to_owned(),
            base_path: base_path.to_owned(),
            platform: platform.to_owned(),
            custom_op_paths: String::new(),
            session_config: Map::new(),
            rest: BTreeMap::new(),
        }
    }

    /// Why it cannot be served, if it cannot.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let ListedModel { name, base_path, platform, .. } = self;
        if !is_model_name(name) {
            return Some(format!("model {name:?}: a name must not be empty or contain / or :"));
        }
        if let Err(why) = config::platform(platform) {
            return Some(format!("model {name}: {why}"));
        }
        let local = model_path(base_path.as_str());
        let remote = local.to_str().filter(|_| !is_store_url(&local));
        if let Some((scheme, _)) = remote.and_then(|path| path.split_once("://")) {
            return Some(format!(
                "model {name}: {base_path} is not a directory of this machine; copy or mount it \
                 from {scheme}:// and name the directory"
            ));
        }
        None
    }

    /// Its source.
    #[must_use]
    pub fn source(&self, common: &ModelConfig, policy: VersionPolicy) -> SourceConfig {
        SourceConfig {
            path: model_path(self.base_path.as_str()),
            name: Some(self.name.clone()),
            model: ModelConfig {
                platform: config::platform(&self.platform).ok(),
                policy,
                ..common.clone()
            },
        }
    }
}

/// Reads the file of `--model_config_file`.
///
/// # Errors
/// If the file cannot be read, is not JSON (with line and column), or has no such list.
pub fn read(path: &Path) -> Result<ModelList> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|e| Error::invalid(format!("{shown}: {e}")).with_source(e))?;
    let file: File = serde_json::from_str(&text)
        .map_err(|e| Error::invalid(format!("{shown}: {e}")).with_source(e))?;
    list(file.model_config_list).map_err(|e| e.context(shown))
}

/// Checks a list of models; of two with the same name the last is used.
fn list(models: Vec<ListedModel>) -> Result<ModelList> {
    let mut list = ModelList::default();
    for model in models {
        if let Some(at) = list.models.iter().position(|other| other.name == model.name) {
            let ListedModel { name, base_path, .. } = list.models.remove(at);
            list.notes.push(format!("model {name} is listed twice; {base_path} is ignored"));
        }
        match model.refusal() {
            Some(why) => list.refused.push(why),
            None => list.models.push(model),
        }
    }
    let mut custom_ops: Vec<PathBuf> = Vec::new();
    for model in &list.models {
        let name = &model.name;
        for key in model.rest.keys() {
            list.notes.push(format!("model {name}: {key} has no effect"));
        }
        let paths: CommaSeparated<PathBuf> =
            model.custom_op_paths.parse().map_err(Error::invalid)?;
        custom_ops.extend(paths.0);
        let (session, notes) = session_of(&model.session_config)
            .map_err(|e| e.context(format!("model {name}: session_config")))?;
        list.notes.extend(notes.into_iter().map(|note| format!("model {name}: {note}")));
        // Sessions share the GPUs of the process.
        let (ours, theirs) = (list.settings.server.clone(), &session.server);
        let differs = ours.clone().or(theirs) != theirs.clone().or(&ours);
        if differs {
            let note = "its session_config differs from that of earlier models, which is used";
            list.notes.push(format!("model {name}: {note}"));
        }
        list.settings.server = ours.or(theirs);
    }
    if !custom_ops.is_empty() {
        list.settings.server.custom_op_paths = Some(CommaSeparated(custom_ops));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Result<ModelList> {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("models.json");
        fs::write(&path, text).expect("written");
        read(&path)
    }

    #[test]
    fn a_list_with_everything() {
        let list = listed(
            "{\"model_config_list\": [
               {\"name\": \"a\", \"base_path\": \"./old\"},
               {\"name\": \"b\", \"base_path\": \"/b\", \"platform\": \"tensorflow\",
                \"custom_op_paths\": \"/ops, /more\", \"session_config\": {\"allow_growth\": false}},
               {\"name\": \"a\", \"base_path\": \"./new\", \"colour\": 1},
               {\"name\": \"x\", \"base_path\": \"/x\", \"platform\": \"caffe2\"},
               {\"name\": \"h\", \"base_path\": \"hdfs:///h\"}]}",
        )
        .expect("valid");
        let models: Vec<_> = list.models.iter().map(|m| (&*m.name, &*m.base_path)).collect();
        assert_eq!(models, [("b", "/b"), ("a", "./new")]);
        assert_eq!(list.settings.server.gpu_allow_growth, Some(false));
        let ops = list.settings.server.custom_op_paths.expect("some").0;
        assert_eq!(ops, [Path::new("/ops"), Path::new("/more")]);
        assert_eq!(list.notes.len(), 2, "{:?}", list.notes);
        let [caffe, hdfs] = list.refused.as_slice() else { panic!("{:?}", list.refused) };
        assert!(caffe.contains("platform \"caffe2\" is unknown"), "{caffe}");
        assert!(hdfs.contains("hdfs:///h is not a directory of this machine"), "{hdfs}");
    }

    #[test]
    fn one_session_config_is_used_for_all_models() {
        let model = |name: &str, growth: bool| {
            format!(
                "{{\"name\": \"{name}\", \"base_path\": \"/m\", \
                 \"session_config\": {{\"allow_growth\": {growth}}}}}"
            )
        };
        let file = |a, b| format!("{{\"model_config_list\": [{a}, {b}]}}");
        let list = listed(&file(model("a", true), model("b", false))).expect("valid");
        assert_eq!(list.settings.server.gpu_allow_growth, Some(true));
        assert!(list.notes[0].contains("model b: its session_config"), "{:?}", list.notes);
        let list = listed(&file(model("a", true), model("b", true))).expect("valid");
        assert_eq!(list.notes, Vec::<String>::new());
    }

    #[test]
    fn mistakes_name_the_file_and_the_place() {
        for (text, part) in [
            ("", "models.json: EOF"),
            ("{\"model_config_list\": [{\"name\": \"a\"}]}", "missing field `base_path`"),
            ("{}", "missing field `model_config_list`"),
        ] {
            let error = listed(text).expect_err(text);
            assert!(error.message().contains(part), "{error}");
        }
        assert!(read(Path::new("/no/such.json")).is_err());
    }
}
