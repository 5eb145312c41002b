//! Connections to the stores, with the credentials that each cloud's own tools would use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider,
};

use crate::config::StoreConfig;
use crate::errors::no_credentials;
use crate::location::{Location, StoreKind};
use crate::profile;
use crate::transport::Transport;
use tensorserve_tensor::error::{Error, Result};

/// Variables that name the S3 server.
const S3_ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// Ways to credentials that a profile can name, and that are not implemented.
const FOREIGN_CREDENTIALS: [&str; 4] =
    ["credential_process", "sso_session", "sso_start_url", "source_profile"];

/// How requests are repeated on errors of the store: briefly, because the caller repeats them too.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(3),
            base: 2.0,
        },
        max_retries: 3,
        retry_timeout: Duration::from_secs(20),
    }
}

fn options() -> ClientOptions {
    // Only an endpoint that the user has set is without TLS.
    ClientOptions::new().with_allow_http(true)
}

/// What every object store can do: also list any prefix, and upload in parts that can be repeated.
pub(crate) trait Backend: ObjectStore + PaginatedListStore + MultipartStore {}

impl<S: ObjectStore + PaginatedListStore + MultipartStore> Backend for S {}

/// An object store, and the region that was set for it.
pub(crate) struct StoreConnection {
    pub(crate) store: Arc<dyn Backend>,
    /// The region of the bucket, if the user has set it.
    pub(crate) region: Option<String>,
    /// Whether any credentials are configured; without them, those of the machine are asked for.
    pub(crate) has_credentials: bool,
}

/// Connects to the object store of a location. `found_region` is the region that the store has named.
///
/// # Errors
/// If a setting is not valid, or names credentials that are not supported.
pub(crate) fn connect(
    location: &Location,
    config: &StoreConfig,
    found_region: Option<&str>,
) -> Result<StoreConnection> {
    match location.kind() {
        StoreKind::S3 => s3(location, config, found_region),
        StoreKind::Gcs => gcs(location, config),
        StoreKind::Azure => azure(location, config),
        StoreKind::Web => {
            Err(Error::internal("a file on a web server has no object store to connect to"))
        }
    }
}

fn failed(location: &Location) -> impl Fn(object_store::Error) -> Error + '_ {
    // The library's text can quote a setting that is a secret.
    move |_| {
        let message = "the settings for this store are not valid; check its environment variables";
        Error::invalid(format!("{location}: {message}"))
    }
}

fn s3(location: &Location, config: &StoreConfig, found: Option<&str>) -> Result<StoreConnection> {
    let profile = profile::read(config);
    let has_keys = config.variable("AWS_ACCESS_KEY_ID").is_some();
    let machine = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    let from_profile = !has_keys && profile.contains_key("aws_access_key_id");
    let from_machine = machine.iter().any(|name| config.variable(name).is_some());
    let is_anonymous =
        config.anonymous || config.variable("AWS_SKIP_SIGNATURE").is_some_and(is_true);
    let has_credentials = has_keys || from_profile || from_machine || is_anonymous;
    if !has_credentials {
        check_profile(location, config, &profile)?;
        if config.variable("AWS_EC2_METADATA_DISABLED").is_some_and(is_true) {
            return Err(no_credentials(location));
        }
    }

    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(location.bucket())
        .with_http_connector(Transport::new()?)
        .with_client_options(options())
        // Objects are deleted one by one, which every server can.
        .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true")
        .with_retry(retries());
    for (name, value) in &config.environment {
        let is_endpoint = S3_ENDPOINTS.contains(&name.as_str());
        if value.is_empty() || (is_endpoint && config.endpoint.is_some()) {
            continue;
        }
        if let (true, Ok(key)) = (name.starts_with("AWS_"), known::<AmazonS3ConfigKey>(name)) {
            builder = builder.with_config(key, value);
        }
    }
    if from_profile {
        let keys = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
        for name in keys {
            if let (Some(value), Ok(key)) = (profile.get(name), name.parse()) {
                builder = builder.with_config(key, value);
            }
        }
    }
    let set_endpoint = config.endpoint.as_ref();
    let has_endpoint = S3_ENDPOINTS.iter().any(|name| config.variable(name).is_some());
    let endpoint = set_endpoint.or_else(|| profile.get("endpoint_url").filter(|_| !has_endpoint));
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
    }
    let of_environment =
        ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().find_map(|name| config.variable(name));
    let region = config.region.as_deref().or(of_environment);
    let region = region.or_else(|| profile.get("region").map(String::as_str));
    builder = builder.with_region(region.or(found).unwrap_or("us-east-1"));
    if config.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let store = builder.build().map_err(failed(location))?;
    let region = region.map(str::to_owned);
    Ok(StoreConnection { store: Arc::new(store), region, has_credentials })
}

/// A profile whose credentials come from a place that is not supported is a mistake.
fn check_profile(
    location: &Location,
    config: &StoreConfig,
    profile: &BTreeMap<String, String>,
) -> Result<()> {
    let name = config.variable("AWS_PROFILE");
    let foreign = FOREIGN_CREDENTIALS.iter().find(|key| profile.contains_key(**key));
    match (name, foreign) {
        (_, Some(foreign)) => Err(Error::invalid(format!(
            "{location}: the AWS profile {} has {foreign}, which is not supported; export its \
             credentials with `aws configure export-credentials --format env`",
            name.unwrap_or("default")
        ))),
        (Some(name), None) if profile.is_empty() => Err(Error::invalid(format!(
            "{location}: there is no AWS profile {name} in ~/.aws/credentials and ~/.aws/config"
        ))),
        _ => Ok(()),
    }
}

fn gcs(location: &Location, config: &StoreConfig) -> Result<StoreConnection> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(location.bucket())
        .with_http_connector(Transport::new()?)
        .with_client_options(options())
        .with_retry(retries());
    for (name, value) in &config.environment {
        if let (true, Ok(key)) = (name.starts_with("GOOGLE_"), known::<GoogleConfigKey>(name)) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(host) = config.variable("STORAGE_EMULATOR_HOST") {
        let url = if host.contains("://") { host.to_owned() } else { format!("http://{host}") };
        builder = builder.with_config(GoogleConfigKey::BaseUrl, url).with_skip_signature(true);
        // The library asks the machine for credentials to write, whatever is set to be skipped.
        let any = GcpCredential { bearer: "emulator".to_owned() };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(any)));
    }
    if config.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let store = builder.build().map_err(failed(location))?;
    Ok(StoreConnection { store: Arc::new(store), region: None, has_credentials: true })
}

fn azure(location: &Location, config: &StoreConfig) -> Result<StoreConnection> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(location.bucket())
        .with_http_connector(Transport::new()?)
        .with_client_options(options())
        .with_retry(retries());
    if let Some(account) = config.variable("AZURE_STORAGE_ACCOUNT") {
        builder = builder.with_account(account);
    }
    if let Some(text) = config.variable("AZURE_STORAGE_CONNECTION_STRING") {
        builder = with_connection_string(builder, text);
    }
    for (name, value) in &config.environment {
        if let (true, Ok(key)) = (name.starts_with("AZURE_"), known::<AzureConfigKey>(name)) {
            builder = builder.with_config(key, value);
        }
    }
    if config.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let is_emulated = config.variable("AZURE_STORAGE_USE_EMULATOR").is_some_and(is_true);
    let named =
        ["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"];
    if !is_emulated && named.iter().all(|name| config.variable(name).is_none()) {
        return Err(Error::invalid(format!(
            "{location}: the storage account is not known; set AZURE_STORAGE_ACCOUNT_NAME or \
             AZURE_STORAGE_CONNECTION_STRING"
        )));
    }
    let store = builder.build().map_err(failed(location))?;
    Ok(StoreConnection { store: Arc::new(store), region: None, has_credentials: true })
}

/// Takes over the parts of a connection string, as Azure's portal shows it.
fn with_connection_string(mut builder: MicrosoftAzureBuilder, text: &str) -> MicrosoftAzureBuilder {
    for part in text.split(';') {
        let Some((key, value)) = part.split_once('=') else {
            continue;
        };
        builder = match key.trim() {
            "AccountName" => builder.with_account(value),
            "AccountKey" => builder.with_access_key(value),
            "BlobEndpoint" => builder.with_endpoint(value.trim_end_matches('/').to_owned()),
            "SharedAccessSignature" => builder.with_config(AzureConfigKey::SasKey, value),
            "UseDevelopmentStorage" => builder.with_use_emulator(is_true(value)),
            _ => builder,
        };
    }
    builder
}

/// The setting of the library that a variable of the environment is.
fn known<K: std::str::FromStr>(name: &str) -> Result<K, K::Err> {
    name.to_ascii_lowercase().parse()
}

fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(url: &str, variables: &[(&str, &str)]) -> Result<StoreConnection> {
        let folder = tempfile::tempdir().expect("a directory");
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let config = crate::testing::config(folder.path(), variables.iter().map(pair).collect());
        connect(&Location::parse(url)?, &config, Some("eu-north-1"))
    }

    #[test]
    fn credentials_are_found_or_named() {
        let key =
            [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "x-1")];
        let found = connected("s3://b/m", &key).expect("connected");
        assert_eq!((found.has_credentials, found.region.as_deref()), (true, Some("x-1")));
        let found = connected("s3://b/m", &[]).expect("connected");
        assert_eq!((found.has_credentials, found.region), (false, None));
        let found = connected("s3://b/m", &[("AWS_SKIP_SIGNATURE", "true")]).expect("connected");
        assert!(found.has_credentials);
        let error = connected("s3://b/m", &[("AWS_PROFILE", "none")]).err().expect("refused");
        assert!(error.message().contains("no AWS profile none"), "{error}");
        let error = connected("az://c/m", &[]).err().expect("refused");
        assert!(error.message().contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
        let text = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=c2VjcmV0;BlobEndpoint=http://127.0.0.1:1/a;";
        connected("az://c/m", &[("AZURE_STORAGE_CONNECTION_STRING", text)]).expect("connected");
        connected("gs://b/m", &[("STORAGE_EMULATOR_HOST", "127.0.0.1:1")]).expect("connected");
    }

    #[test]
    fn an_invalid_setting_is_not_quoted() {
        let wrong =
            [("AZURE_STORAGE_ACCOUNT_NAME", "a"), ("AZURE_STORAGE_ACCOUNT_KEY", "?secret?")];
        let error = connected("az://c/m", &wrong).err().expect("refused");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(std::error::Error::source(&error).is_none());
    }
}
