//! Settings that are tried.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::config::environment::Environment;
use crate::config::variable;

/// Platforms on a runtime that takes a number of threads.
const THREADED: [&str; 6] = ["tensorflow", "onnx", "mxnet", "tflite", "pytorch", "executorch"];

/// What the server says about the model, with its default settings.
#[derive(Clone, Debug)]
pub(super) struct ServedFacts {
    pub(super) cores: usize,
    pub(super) platform: String,
    /// Whether `batching = "auto"` joins requests of the signature, and why.
    pub(super) joins: bool,
    pub(super) why: String,
    /// The batching settings that apply: of the environment, or their defaults.
    pub(super) batching: BTreeMap<String, Value>,
    /// Numbers of threads that the environment sets.
    threads: BTreeMap<&'static str, String>,
}

/// Settings that are as many as there are cores, unless they are set.
const ONE_PER_CORE: [&str; 3] = ["http_threads", "inter_op_threads", "num_batch_threads"];

/// A setting whose default depends on the model.
const INTRA_OP: &str = "intra_op_threads";

impl ServedFacts {
    /// What is in the status of a model, of the version that is served by default.
    pub(super) fn of(
        status: &Value,
        signature: &str,
        cores: usize,
        environment: &Environment,
    ) -> Self {
        let set = ONE_PER_CORE.into_iter().chain([INTRA_OP]).filter_map(|name| {
            let value = environment.get(&variable(name))?;
            Some((name, value.to_owned()))
        });
        let threads = set.collect();
        let versions = status.get("versions").and_then(Value::as_array).into_iter().flatten();
        let number = |version: &&Value| version.get("version").and_then(Value::as_i64);
        let version = versions.max_by_key(number);
        let batching = version.and_then(|version| version.get("batching")?.as_object());
        let signatures = version.and_then(|version| version.get("signatures")?.as_array());
        let mut signatures = signatures.into_iter().flatten();
        let found =
            signatures.find(|one| one.get("name").and_then(Value::as_str) == Some(signature));
        let joining = found.and_then(|found| found.get("joining"));
        let why = joining.and_then(|joining| joining.get("why")?.as_str());
        let platform = status.get("platform").and_then(Value::as_str);
        ServedFacts {
            cores,
            platform: platform.unwrap_or_default().to_owned(),
            joins: joining.and_then(|joining| joining.get("joins")?.as_bool()) == Some(true),
            why: why.unwrap_or("the server does not tell whether rows are independent").to_owned(),
            batching: batching.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
            threads,
        }
    }

    /// How many threads apply by default; `None` if the model decides.
    pub(super) fn default_threads(&self, name: &str) -> Option<String> {
        let by_core = ONE_PER_CORE.contains(&name).then(|| self.cores.to_string());
        self.threads.get(name).cloned().or(by_core)
    }

    /// Whether `intra_op_threads` is for its platform.
    fn takes_threads(&self) -> bool {
        THREADED.contains(&self.platform.as_str())
    }

    fn batch_size(&self) -> u64 {
        self.batching.get("max_batch_size").and_then(Value::as_u64).unwrap_or(64)
    }

    fn mode(&self) -> &str {
        self.batching.get("batching").and_then(Value::as_str).unwrap_or("auto")
    }
}

/// Settings in addition to those of the environment: names, as the configuration file has them, and values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct TrialSettings(pub(super) BTreeMap<&'static str, String>);

impl TrialSettings {
    fn of(pairs: &[(&'static str, String)]) -> Self {
        TrialSettings(pairs.iter().cloned().collect())
    }

    /// As variables of the environment.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        self.0.iter().map(|(name, value)| (variable(name), value.clone())).collect()
    }

    /// As a line for people.
    pub(super) fn words(&self) -> String {
        if self.0.is_empty() {
            return "default settings".to_owned();
        }
        let pairs: Vec<String> =
            self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join(" ")
    }

    /// These settings and others, if no setting is in both.
    pub(super) fn and(&self, other: &TrialSettings) -> Option<Self> {
        let is_apart = !self.0.keys().any(|name| other.0.contains_key(name));
        let both = self.0.iter().chain(&other.0).map(|(name, value)| (*name, value.clone()));
        is_apart.then(|| TrialSettings(both.collect()))
    }
}

/// Settings that are not tried, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LeftOutSettings {
    pub(super) settings: TrialSettings,
    pub(super) why: String,
}

/// The settings to try, those first that change most, and those that may not be tried.
///
/// What could change a response is left out: requests are joined only where the server itself would.
pub(super) fn candidates(facts: &ServedFacts) -> (Vec<TrialSettings>, Vec<LeftOutSettings>) {
    let joined = of_joined(facts);
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    // What is usual matters most where the environment sets something else; elsewhere it applies anyway.
    all.extend(ONE_PER_CORE.map(|name| count(name, facts.cores)));
    if facts.takes_threads() {
        all.push(count(INTRA_OP, 1));
    }
    if facts.joins {
        all.push(one("batching", "off"));
    }
    all.push(count("http_threads", half(facts.cores)));
    if facts.joins {
        all.extend(joined);
    } else {
        left_out.extend(joined.map(|settings| LeftOutSettings {
            settings,
            why: format!("requests are not joined: {}", facts.why),
        }));
    }
    all.extend(last(facts));
    let mut different: Vec<TrialSettings> = Vec::new();
    for settings in all {
        if !is_default(&settings, facts) && !different.contains(&settings) {
            different.push(settings);
        }
    }
    (different, left_out)
}

fn one(name: &'static str, value: &str) -> TrialSettings {
    TrialSettings::of(&[(name, value.to_owned())])
}

fn count(name: &'static str, value: usize) -> TrialSettings {
    one(name, &value.to_string())
}

fn half(cores: usize) -> usize {
    (cores / 2).max(1)
}

/// Settings for requests that are joined.
fn of_joined(facts: &ServedFacts) -> [TrialSettings; 4] {
    let large_batches = TrialSettings::of(&[
        ("batch_timeout_micros", "1000".to_owned()),
        ("inline_budget_micros", "0".to_owned()),
        ("num_batch_threads", half(facts.cores).to_string()),
    ]);
    let size = facts.batch_size();
    [
        large_batches,
        one("batching", "on"),
        one("max_batch_size", &(size * 4).to_string()),
        one("max_batch_size", &(size / 4).max(2).to_string()),
    ]
}

/// Settings that seldom help.
fn last(facts: &ServedFacts) -> Vec<TrialSettings> {
    let mut last = vec![
        count("http_threads", facts.cores * 2),
        count("num_batch_threads", facts.cores * 2),
        one("inline_budget_micros", "0"),
        one("inline_budget_micros", "20000"),
    ];
    if facts.takes_threads() {
        last.insert(0, count(INTRA_OP, facts.cores));
    }
    if facts.platform == "tensorflow" {
        last.push(count("inter_op_threads", 1));
    }
    last
}

/// Whether settings are what applies without them.
fn is_default(settings: &TrialSettings, facts: &ServedFacts) -> bool {
    settings.0.iter().all(|(name, value)| match *name {
        "batching" => value == facts.mode(),
        "max_batch_size" => *value == facts.batch_size().to_string(),
        name => facts.default_threads(name).as_ref() == Some(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::config::environment::Environment;
    use serde_json::json;

    fn facts(joins: bool, platform: &str, cores: usize) -> ServedFacts {
        let status = json!({"platform": platform, "versions": [
            {"version": 1},
            {"version": 2, "batching": {"batching": "auto", "max_batch_size": 64},
             "signatures": [{"name": "s", "joining": {"joins": joins, "why": "because"}}]},
        ]});
        ServedFacts::of(&status, "s", cores, &Environment::default())
    }

    #[test]
    fn every_candidate_is_settings_that_the_server_has() {
        for cores in [1, 2, 8] {
            let (all, left_out) = candidates(&facts(true, "tensorflow", cores));
            assert!(left_out.is_empty() && all.len() >= 8, "{all:?}");
            for settings in &all {
                let variables = settings.variables();
                let pairs: Vec<(&str, &str)> =
                    variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                let read = Settings::default().or_environment(&Environment::of(&pairs));
                assert!(read.reading.mistakes.is_empty(), "{pairs:?}: {:?}", read.reading);
            }
        }
    }

    #[test]
    fn requests_are_not_joined_where_the_server_would_not() {
        let (all, left_out) = candidates(&facts(false, "onnx", 4));
        let names = |settings: &TrialSettings| settings.words();
        assert!(all.iter().map(names).all(|words| !words.contains("batch_size")), "{all:?}");
        assert!(all.iter().map(names).all(|words| !words.contains("batching")), "{all:?}");
        assert!(left_out.iter().any(|one| one.settings.words() == "batching=on"), "{left_out:?}");
        assert!(left_out[0].why.contains("because"), "{left_out:?}");
        // A server that tells nothing.
        let silent = ServedFacts::of(&Value::Null, "s", 4, &Environment::default());
        assert!(!candidates(&silent).1.is_empty());
    }

    #[test]
    fn what_applies_anyway_is_not_tried() {
        let words = |cores| -> Vec<String> {
            candidates(&facts(true, "xgboost", cores)).0.iter().map(TrialSettings::words).collect()
        };
        assert!(!words(1).contains(&"http_threads=1".to_owned()), "{:?}", words(1));
        assert!(words(2).contains(&"http_threads=1".to_owned()), "{:?}", words(2));
        assert!(!words(2).iter().any(|words| words.contains("intra_op")), "{:?}", words(2));
        // Settings of the environment are the default ones here.
        let set = Environment::of(&[("TENSORSERVE_HTTP_THREADS", "1")]);
        let facts = ServedFacts::of(&Value::Null, "s", 2, &set);
        let words: Vec<String> = candidates(&facts).0.iter().map(TrialSettings::words).collect();
        assert!(!words.contains(&"http_threads=1".to_owned()), "{words:?}");
        assert!(words.contains(&"http_threads=2".to_owned()), "{words:?}");
        assert_eq!(facts.default_threads("http_threads").as_deref(), Some("1"));
    }

    #[test]
    fn settings_are_put_together_if_none_is_in_both() {
        let (a, b) =
            (TrialSettings::of(&[("a", "1".into())]), TrialSettings::of(&[("b", "2".into())]));
        assert_eq!(a.and(&b).expect("both").words(), "a=1 b=2");
        assert_eq!(a.and(&a), None);
        assert_eq!(TrialSettings::default().words(), "default settings");
    }
}
