//! Settings of models in object stores and on web servers.

use tensorserve_store::{StoreConfig, is_variable};

use super::environment::Environment;
use super::groups::ServerSettings;

/// How models in stores are reached and cached.
pub(super) fn stores(server: &ServerSettings, environment: &Environment) -> StoreConfig {
    let cache = || environment.cache_directory().join("models");
    StoreConfig {
        cache: server.model_cache_dir.clone().unwrap_or_else(cache),
        cache_bytes: u64::try_from(server.model_cache_bytes().0).unwrap_or(u64::MAX),
        endpoint: server.store_endpoint.clone(),
        region: server.store_region.clone(),
        anonymous: server.store_anonymous(),
        allow_http: server.store_allow_http(),
        environment: environment.text_of(is_variable),
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::ByteSize;
    use super::super::{Config, Settings};
    use super::*;

    #[test]
    fn settings_and_the_clouds_own_variables_reach_the_stores() {
        let variables = [
            ("XDG_CACHE_HOME", "/cache"),
            ("AWS_REGION", "eu-west-1"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("OTHER", "x"),
        ];
        let mut settings = Settings::default();
        settings.server.store_anonymous = Some(true);
        let config = Config::new(settings, &Environment::of(&variables)).expect("valid").stores;
        assert_eq!(config.cache, std::path::Path::new("/cache/tensorserve/models"));
        assert!(config.anonymous && !config.allow_http && config.cache_bytes == 64 << 30);
        let names: Vec<&str> = config.environment.keys().map(String::as_str).collect();
        assert_eq!(names, ["AWS_REGION", "AWS_SECRET_ACCESS_KEY"]);
        assert!(!format!("{config:?}").contains("secret"));

        let mut settings = Settings::default();
        settings.server.store_endpoint = Some("minio:9000".to_owned());
        settings.server.model_cache_bytes = Some(ByteSize(0));
        let error = Config::new(settings, &Environment::default()).expect_err("wrong");
        assert!(error.message().contains("store_endpoint: \"minio:9000\" is not a URL"), "{error}");
        assert!(error.message().contains("model_cache_bytes"), "{error}");
    }
}
