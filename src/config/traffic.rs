//! Settings of the split between versions, shadow versions and the response cache.

use super::check::Check;
use super::groups::{EachModelSettings, ServerSettings};
use super::settings::ModelSettings;
use super::{RepositoryConfig, TrafficConfig};

/// What all models have in common.
pub(super) fn common_traffic(each: &EachModelSettings) -> TrafficConfig {
    TrafficConfig { response_cache: each.response_cache(), ..TrafficConfig::default() }
}

impl Check {
    /// Adds what one model has for itself.
    pub(super) fn traffic(&mut self, model: &ModelSettings, traffic: &mut TrafficConfig) {
        for (label, &weight) in &model.split {
            if !model.labels.contains_key(label) {
                self.wrong("split", unknown_label(label));
            }
            match u32::try_from(weight) {
                Ok(weight @ 1..) => drop(traffic.split.insert(label.clone(), weight)),
                _ => {
                    let rule = "is not an integer from 1 to 4294967295";
                    self.wrong("split", format!("the weight of {label:?}, {weight}, {rule}"));
                }
            }
        }
        if let Some(label) = model.shadow.as_ref().filter(|it| !model.labels.contains_key(*it)) {
            self.wrong("shadow", unknown_label(label));
        }
        traffic.shadow.clone_from(&model.shadow);
    }

    /// A model whose responses are to be kept needs memory for them.
    pub(super) fn check_cache(&mut self, server: &ServerSettings, repository: &RepositoryConfig) {
        let mut sources = repository.sources.iter().map(|source| &source.model);
        let is_wanted =
            repository.common.traffic.response_cache || sources.any(|it| it.traffic.response_cache);
        if is_wanted && server.response_cache_bytes().0 == 0 {
            let why = "response_cache has no effect without memory for responses: set \
                       response_cache_bytes, such as 64MiB";
            self.clash(&["response_cache", "response_cache_bytes"], why);
        }
    }
}

fn unknown_label(label: &str) -> String {
    format!(
        "{label:?} is not one of the model's labels; add it to labels = {{ {label} = VERSION }}"
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::configured_by_file;

    #[test]
    fn a_model_with_everything() {
        let config = configured_by_file(
            "response_cache_bytes = \"64MiB\"\nmax_shadow_requests = 4\n[[models]]\npath = \"m\"\n\
             labels = { stable = 4, canary = 5 }\nsplit = { stable = 95, canary = 5 }\n\
             shadow = \"canary\"\nresponse_cache = true\n[[models]]\npath = \"n\"\n",
        )
        .expect("valid");
        assert_eq!((config.response_cache_bytes, config.max_shadow_requests), (64 << 20, 4));
        let [m, n] = &config.repository.sources[..] else { panic!("two models") };
        let split = [("canary".to_owned(), 5), ("stable".to_owned(), 95)];
        assert_eq!(m.model.traffic.split, split.into());
        assert_eq!(m.model.traffic.shadow.as_deref(), Some("canary"));
        assert!(m.model.traffic.response_cache);
        assert_eq!(n.model.traffic, Default::default());
        let config = configured_by_file("[[models]]\npath = \"m\"\n").expect("valid");
        assert_eq!((config.response_cache_bytes, config.max_shadow_requests), (0, 16));
    }

    #[test]
    fn every_mistake_names_its_line_and_what_to_do() {
        let error = configured_by_file(
            "response_cache_bytes = \"1KiB\"\nmax_shadow_requests = 0\n[[models]]\npath = \"m\"\n\
             labels = { stable = 4 }\nsplit = { stable = 0, canary = 5, x = \"y\" }\n\
             shadow = \"canary\"\n[[models]]\npath = \"n\"\nsplit = 5\nshadow = [\"a\"]\n",
        )
        .expect_err("wrong");
        for part in [
            "toml:1: response_cache_bytes: must be at least 1MiB, or 0 for no cache",
            "toml:2: max_shadow_requests: must be at least 1",
            "toml:6: split: the weight of \"stable\", 0, is not an integer from 1 to 4294967295",
            "toml:6: split: \"canary\" is not one of the model's labels; add it to labels",
            "toml:6: split: the weight of \"x\" is not an integer",
            "toml:7: shadow: \"canary\" is not one of the model's labels; add it to labels",
            "toml:10: split: write a table, such as { stable = 3 }",
            "toml:11: shadow: a list is not allowed here",
        ] {
            assert!(error.message().contains(part), "{part} is not in {error}");
        }
    }

    #[test]
    fn a_cache_needs_memory() {
        for text in ["response_cache = true\n", "[[models]]\npath = \"m\"\nresponse_cache = true\n"]
        {
            let error = configured_by_file(text).expect_err("wrong");
            let why = "set response_cache_bytes, such as 64MiB";
            assert!(error.message().contains(why), "{error}");
        }
    }
}
