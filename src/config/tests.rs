//! Every declared setting has an effect: as an option, as a variable and as a key of the file it changes the
//! [`Config`], and in each of these ways to the same. A new setting is among them by its declaration; only one that
//! needs an unusual value, or another setting, is named here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::Command;

use super::environment::Environment;
use super::written::{Mistakes, variable};
use super::{
    BatchSettings, Config, EachModelSettings, EngineConfig, ModelConfig, ModelSettings,
    ServerSettings, Settings,
};
use tensorserve_tensor::error::Result;

/// Settings of SageMaker's multi-model endpoints, which only its container has; it tests them itself.
const ONLY_OF_A_CONTAINER: &str = "multi_model_";

/// The configuration of a file with this text.
pub(super) fn configured_by_file(text: &str) -> Result<Config> {
    let folder = tempfile::tempdir().expect("temporary directory");
    let path = folder.path().join("tensorserve.toml");
    fs::write(&path, text).expect("written");
    let settings = Settings { config: Some(path), ..Settings::default() };
    Config::new(settings, &Environment::default())
}

/// Where settings are given.
#[derive(Clone, Copy, Debug)]
enum Place {
    Option,
    Variable,
    Key,
    /// In the table of a model, as a key.
    Model,
}

/// The settings that give one setting its effect, with `file` as a file that exists.
fn companions<'f>(name: &str, file: &'f str) -> Vec<(&'static str, &'f str)> {
    let tls = [("tls_certificate", file), ("tls_key", file), ("tls_client_ca", file)];
    let http_tls =
        [("http_tls_certificate", file), ("http_tls_key", file), ("http_tls_client_ca", file)];
    let others_of = |all: [(&'static str, &'f str); 3]| {
        let is_other = |(other, _): &(&'static str, &'f str)| *other != name;
        let without_roots = !name.ends_with("_verify_clients");
        let is_needed = |(other, _): &(&'static str, &'f str)| {
            !(without_roots && other.ends_with("_client_ca"))
        };
        all.into_iter().filter(is_other).filter(is_needed).collect()
    };
    match name {
        name if name.starts_with("tls_") => others_of(tls),
        name if name.starts_with("http_tls_") => others_of(http_tls),
        "allow_unauthenticated_admin" => vec![("host", "0.0.0.0")],
        "otlp_protocol" | "trace_sampling" => vec![("otlp_endpoint", "http://127.0.0.1:4318")],
        "response_cache" => vec![("response_cache_bytes", "64MiB")],
        _ => Vec::new(),
    }
}

/// Values to try, of which one is valid and not the default.
fn values(name: &str, file: &str) -> Vec<String> {
    let unusual = match name {
        "host" => "0.0.0.0",
        "log_level" => "debug",
        "metrics_aliases" => "triton",
        "session_target" => "grpc://127.0.0.1:9",
        "store_endpoint" | "otlp_endpoint" => "http://127.0.0.1:9",
        "version_policy" => "all",
        "deny_ops" | "allow_ops" => "external",
        "allowed_batch_sizes" => "8,64",
        "release_top" => "1:0.5",
        name if name.starts_with("tls_") || name.starts_with("http_tls_") => file,
        _ => "",
    };
    let arguments = Settings::arguments();
    let argument = arguments.iter().find(|argument| argument.get_id() == name).expect(name);
    let possible = argument.get_possible_values();
    let possible = possible.iter().map(|value| value.get_name().to_owned());
    let usual = ["/other", "7MiB", "7", "6", "0.5"].map(str::to_owned);
    let unusual = Some(unusual.to_owned()).filter(|value| !value.is_empty());
    unusual.into_iter().chain(possible).chain(usual).collect()
}

/// The configuration of a server with one model and these settings, and the mistakes in them.
fn configured(place: Place, settings: &[(&str, &str)], folder: &Path) -> (Config, Mistakes) {
    let mut words = vec!["serve".to_owned()];
    let mut environment = Environment::default();
    let mut file = String::new();
    if matches!(place, Place::Model) {
        file.push_str("[[models]]\npath = '/model'\n");
    } else {
        words.push("/model".to_owned());
    }
    for (name, value) in settings {
        // A setting of the server is above the tables of models.
        let is_of_model = ModelSettings::names().contains(name);
        match place {
            Place::Option => words.push(format!("--{}={value}", name.replace('_', "-"))),
            Place::Variable => environment = environment.with(&variable(name), value),
            Place::Model if is_of_model => file.push_str(&format!("{name} = '{value}'\n")),
            Place::Key | Place::Model => file.insert_str(0, &format!("{name} = '{value}'\n")),
        }
    }
    let path = folder.join("tensorserve.toml");
    fs::write(&path, file).expect("written");
    words.push(format!("--config={}", path.display()));
    let command = Command::new("serve").args(Settings::arguments());
    let matches = command.try_get_matches_from(words).expect("valid options");
    let settings = Settings::of_options(&matches).or_environment(&environment);
    Config::with_mistakes(settings, &environment)
}

/// The configuration that `name` changes, and its value for that.
fn changed(name: &str, file: &str, folder: &Path) -> (Config, String) {
    let companions = companions(name, file);
    let (without, _) = configured(Place::Key, &companions, folder);
    for value in values(name, file) {
        let settings = [companions.as_slice(), &[(name, value.as_str())]].concat();
        let (config, mistakes) = configured(Place::Key, &settings, folder);
        if mistakes.is_empty() && config != without {
            return (config, value);
        }
    }
    panic!("{name} is declared, and no value of it changes the configuration");
}

#[test]
fn every_setting_changes_the_configuration_from_each_place() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("certificate.pem");
    fs::write(&file, "PEM").expect("written");
    let file = file.to_str().expect("text");
    let names = Settings::option_names();
    let names = names.iter().filter(|name| !name.starts_with(ONLY_OF_A_CONTAINER));
    for name in names {
        let (config, value) = changed(name, file, folder.path());
        let mut settings = companions(name, file);
        settings.push((name, &value));
        for place in [Place::Option, Place::Variable] {
            let (same, mistakes) = configured(place, &settings, folder.path());
            assert!(mistakes.is_empty(), "{name} = {value}: {place:?}: {mistakes:?}");
            assert!(same == config, "{name} = {value}: {place:?} differs from the key of the file");
        }
        if ModelSettings::names().contains(name) {
            let (one, mistakes) = configured(Place::Model, &settings, folder.path());
            assert!(mistakes.is_empty(), "{name} = {value}: {mistakes:?}");
            let (common, own) = (&config.repository.sources, &one.repository.sources);
            assert!(own[0].model == common[0].model, "{name} = {value}: of one model");
        }
    }
}

#[test]
fn every_setting_that_only_one_model_has_changes_it() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let path = folder.path().join("tensorserve.toml");
    let sources = |table: &str| {
        fs::write(&path, format!("[[models]]\n{table}\n")).expect("written");
        let settings = Settings { config: Some(path.clone()), ..Settings::default() };
        let (config, mistakes) = Config::with_mistakes(settings, &Environment::default());
        (config.repository.sources, mistakes)
    };
    for name in ModelSettings::OWN {
        let (beside, value) = match *name {
            "path" => ("", "'/other'"),
            "labels" => ("path = '/model'", "{ stable = 2 }"),
            "split" => ("path = '/model'\nlabels = { stable = 2 }", "{ stable = 1 }"),
            "shadow" => ("path = '/model'\nlabels = { stable = 2 }", "'stable'"),
            _ => ("path = '/model'", "'other'"),
        };
        let (without, _) = sources(beside);
        let (with, mistakes) = sources(&format!("{beside}\n{name} = {value}"));
        assert!(mistakes.is_empty(), "{name}: {mistakes:?}");
        assert!(with != without, "{name} is declared, and does not change the model");
    }
}

/// The keys in the tables of `docs/configuration.md`, with the text in the column of defaults.
fn documented() -> Vec<(String, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let docs = fs::read_to_string(docs).expect("docs");
    let mut keys = Vec::new();
    let mut is_of_keys = false;
    for line in docs.lines() {
        let Some(row) = line.strip_prefix("| ") else {
            is_of_keys = false;
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").collect();
        if cells[0] == "key" {
            is_of_keys = true;
        }
        let names =
            cells[0].split(", ").filter_map(|name| name.strip_prefix('`')?.strip_suffix('`'));
        let names = names.filter(|_| is_of_keys);
        keys.extend(names.map(|name| (name.to_owned(), cells[1].to_owned())));
    }
    keys
}

#[test]
fn the_documentation_has_every_setting_once_and_no_other() {
    let mut documented: Vec<String> = documented().into_iter().map(|(key, _)| key).collect();
    for name in [ModelSettings::OWN, Settings::option_names().as_slice()].concat() {
        let place = documented.iter().position(|key| key == name);
        let place = place.unwrap_or_else(|| panic!("docs/configuration.md has no row for {name}"));
        documented.swap_remove(place);
    }
    assert!(documented.is_empty(), "{documented:?} are no settings, or documented twice");
}

/// The keys of the configuration file that the schema of the Helm chart accepts at `place`, and which of them may
/// be lists.
fn of_chart(place: &str) -> BTreeMap<String, bool> {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm/tensorserve/values.schema.json");
    let schema = fs::read_to_string(file).expect("the schema");
    let schema: serde_json::Value = serde_json::from_str(&schema).expect("JSON");
    let place = schema.pointer(place).expect(place);
    assert_eq!(place["additionalProperties"], false);
    let keys = place["properties"].as_object().expect("keys");
    keys.iter().map(|(name, kind)| (name.clone(), kind["$ref"] == "#/$defs/list")).collect()
}

#[test]
fn the_chart_accepts_every_setting_and_no_other() {
    let arguments = Settings::arguments();
    let is_list = |name: &str| {
        let argument = arguments.iter().find(|argument| argument.get_id() == name);
        let value = argument.and_then(|argument| argument.get_value_names()?.first());
        // The list of GPUs is a text of libtensorflow's.
        value.is_some_and(|value| value == "LIST") && name != "gpu_visible_devices"
    };
    let keys = |names: Vec<&'static str>| -> BTreeMap<String, bool> {
        names.into_iter().map(|name| (name.to_owned(), is_list(name))).collect()
    };
    // `models` there has an error of its own.
    let names = Settings::names();
    assert_eq!(of_chart("/properties/config"), keys(names));
    assert_eq!(of_chart("/properties/models/items"), keys(ModelSettings::names()));
}

#[test]
fn the_documentation_has_the_declared_defaults() {
    let documented: BTreeMap<String, String> = documented().into_iter().collect();
    let declared =
        [ServerSettings::defaults(), EachModelSettings::defaults(), BatchSettings::defaults()];
    for (name, default) in declared.concat() {
        let cell = documented.get(name).expect(name);
        assert!(cell.starts_with(&format!("`{default}`")), "{name} is {default}, not {cell}");
    }
}

#[test]
fn the_core_has_the_declared_defaults() {
    let settings = Settings::default();
    let config = Config::new(settings, &Environment::default()).expect("valid").engine();
    let core = EngineConfig::default();
    let of_core =
        ModelConfig { runner: config.repository.common.runner.clone(), ..ModelConfig::default() };
    assert_eq!(config.repository.common, of_core);
    let loading = |it: &EngineConfig| {
        let it = &it.repository;
        (it.load_threads, it.max_load_retries, it.load_retry_interval, it.memory_limit)
    };
    assert_eq!(loading(&config), loading(&core));
    let requests = |it: &EngineConfig| {
        (it.request_timeout, it.response_cache_bytes, it.max_shadow_requests, it.max_tensor_bytes)
    };
    assert_eq!(requests(&config), requests(&core));
    assert_eq!(config.batching.inline_budget, core.batching.inline_budget);
}
