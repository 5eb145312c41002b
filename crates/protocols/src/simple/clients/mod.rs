//! Generated clients: the source code of a program that calls one signature of a model of this server,
//! in one of several languages.
//!
//! A client is a template ([`languages`]) that is filled with the address of the server ([`location`])
//! and sample data ([`notation`]). It contains no secrets: it reads credentials from environment
//! variables. The names of models, signatures and inputs are escaped, so that they cannot inject code,
//! and the source code is ASCII.

use serde_json::{Map, Value, json};

use self::languages::{BodyForm, ClientApi, ClientLanguage, ClientVariant, LANGUAGES};
use self::location::{ClientCredentials, ServerLocation};
use self::notation::{Notation, label};
use self::template::TemplateValues;
use super::SimpleApi;
use crate::sample;
use tensorserve_core::engine::{Engine, ModelHandle, ModelSpec, VersionSelector};
use tensorserve_protocol::url::percent_encoded;
use tensorserve_protocol::{Answer, JSON, Reply, RequestHead, RoutedRequest};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, ImageEncoding, Signature};

mod languages;
mod location;
mod notation;
mod template;

/// The IDs and the display names of the languages.
pub(super) fn all_languages() -> impl Iterator<Item = (&'static str, &'static str)> {
    LANGUAGES.iter().map(|language| (language.id, language.name))
}

/// Handles `GET /api/v1/clients`: the languages and their variants.
#[must_use]
pub fn list() -> Reply {
    let languages: Vec<Value> = LANGUAGES.iter().map(language_json).collect();
    Reply::ok(JSON, json!({ "languages": languages }).to_string())
}

fn language_json(language: &ClientLanguage) -> Value {
    let variants: Vec<Value> = language.variants.iter().map(variant_json).collect();
    json!({"id": language.id, "name": language.name, "variants": variants})
}

fn variant_json(variant: &ClientVariant) -> Value {
    let ClientVariant { id, name, file, install, run, .. } = variant;
    json!({"id": id, "name": name, "file": file, "install": install, "run": run})
}

/// The JSON Schema of the response of [`list`].
pub(super) fn list_schema() -> Value {
    let text = json!({ "type": "string" });
    let variant = json!({
        "type": "object",
        "properties": { "id": text, "name": text, "file": text, "install": text, "run": text },
        "required": ["id", "name", "file", "install", "run"],
    });
    let language = json!({
        "type": "object",
        "properties": {
            "id": text,
            "name": text,
            "variants": { "type": "array", "items": variant },
        },
        "required": ["id", "name", "variants"],
    });
    json!({
        "type": "object",
        "properties": { "languages": { "type": "array", "items": language } },
        "required": ["languages"],
    })
}

/// Handles `GET /v1/models/MODEL/gen_client?language=…&variant=…&signature=…&version=…`.
pub(super) fn route(api: &SimpleApi, request: RoutedRequest<'_>) -> Answer {
    let model = request.params.decoded("model");
    source(api, &request.head, &model, request.head.query())
}

/// The source code of the client for `model` that `query` selects; `head` determines the address of the
/// server.
pub(super) fn source(
    api: &SimpleApi,
    head: &RequestHead<'_>,
    model: &str,
    query: impl Iterator<Item = (String, String)>,
) -> Answer {
    let (variant, source) = generate(api, head, model, query)?;
    // Never HTML: a browser must show a client for browsers and not run it.
    let kind = if variant.api == ClientApi::Data { JSON } else { "text/plain; charset=utf-8" };
    Ok(Reply::ok(kind, source).with_header("x-content-type-options", "nosniff"))
}

fn generate(
    api: &SimpleApi,
    head: &RequestHead<'_>,
    model: &str,
    query: impl Iterator<Item = (String, String)>,
) -> Result<(&'static ClientVariant, String)> {
    let engine = &api.engine;
    let query = ClientQuery::of(query)?;
    let variant = query.variant()?;
    let choice = query.version.map_or(VersionSelector::Latest, VersionSelector::Version);
    let handle = engine.repository().resolve(&ModelSpec { name: model, choice });
    let handle = handle.map_err(|_| no_model(engine, model, query.version))?;
    let signature = find_signature(&handle, query.signature.as_deref())?;
    let location = ServerLocation::of(head, api.listeners, engine.addresses());
    let data = serde_json::from_str(&sample::data(signature)?)
        .map_err(|e| Error::internal("a sample is not JSON").with_source(e))?;
    let call = SampleCall { model, version: query.version, signature, data };
    Ok((variant, call.source(variant, &location)?))
}

/// The client that a request selects.
#[derive(Debug, Default)]
struct ClientQuery {
    language: Option<String>,
    variant: Option<String>,
    signature: Option<String>,
    version: Option<i64>,
}

impl ClientQuery {
    fn of(query: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let mut wanted = ClientQuery::default();
        for (name, value) in query.filter(|(_, value)| !value.is_empty()) {
            match &*name {
                "language" => wanted.language = Some(value.to_ascii_lowercase()),
                "variant" => wanted.variant = Some(value.to_ascii_lowercase()),
                "signature" | "signature_name" => wanted.signature = Some(value),
                "version" | "model_version" => {
                    let version = value.parse();
                    wanted.version = Some(version.map_err(|_| {
                        Error::invalid(format!("version must be a whole number, not {value:?}"))
                    })?);
                }
                _ => {}
            }
        }
        Ok(wanted)
    }

    fn variant(&self) -> Result<&'static ClientVariant> {
        let id = self.language.as_deref().unwrap_or("bash");
        let found = LANGUAGES.iter().find(|l| l.id == id || l.aliases.contains(&id));
        let language = found.ok_or_else(|| {
            let all: Vec<&str> = LANGUAGES.iter().map(|language| language.id).collect();
            Error::invalid(format!(
                "there is no client for the language {id:?}; available: {}",
                all.join(", ")
            ))
        })?;
        let mut variants = language.variants.iter();
        let found = match self.variant.as_deref() {
            None => variants.next(),
            Some(id) => variants.find(|variant| variant.id == id),
        };
        found.ok_or_else(|| {
            let all: Vec<&str> = language.variants.iter().map(|variant| variant.id).collect();
            let (id, name) = (self.variant.as_deref().unwrap_or_default(), language.name);
            Error::invalid(format!(
                "{name} has no client variant {id:?}; available: {}",
                all.join(", ")
            ))
        })
    }
}

fn no_model(engine: &Engine, model: &str, version: Option<i64>) -> Error {
    match version {
        Some(version)
            if engine
                .repository()
                .resolve(&ModelSpec { name: model, choice: VersionSelector::Latest })
                .is_ok() =>
        {
            Error::not_found(format!("Version {version} of model {model:?} is not ready"))
        }
        _ => Error::not_found(format!("Model not found: {model}")),
    }
}

/// The signature `name`; without a name, the default signature or else the first.
fn find_signature<'h>(handle: &'h ModelHandle, name: Option<&str>) -> Result<&'h Signature> {
    let found = handle.signature(name.unwrap_or(DEFAULT)).map(|(_, signature)| signature);
    let found = found.or_else(|| handle.signatures().first().filter(|_| name.is_none()));
    found.ok_or_else(|| {
        let all: Vec<&str> = handle.signatures().iter().map(|s| s.name.as_str()).collect();
        let name = name.unwrap_or(DEFAULT);
        Error::not_found(format!("signature {name:?} not found; available: {all:?}"))
    })
}

/// The signature of requests that do not name one.
const DEFAULT: &str = "serving_default";

/// The call that a client makes.
struct SampleCall<'c> {
    model: &'c str,
    version: Option<i64>,
    signature: &'c Signature,
    /// A value for each input.
    data: Map<String, Value>,
}

/// The largest integer up to which JavaScript's numbers are exact.
const LARGEST_NUMBER: u64 = 1 << 53;

impl SampleCall<'_> {
    /// The source code of a client.
    fn source(&self, variant: &ClientVariant, location: &ServerLocation) -> Result<String> {
        let grpc = match (&location.grpc, variant.api) {
            (None, ClientApi::Grpc) => {
                return Err(Error::invalid("this server has no gRPC port"));
            }
            (grpc, _) => grpc.clone().unwrap_or_default(),
        };
        let auth = location.credentials != ClientCredentials::None;
        let blanks = TemplateValues::default()
            .value("header", self.header(variant, location))
            .value("url", &location.url)
            .value("grpc", grpc)
            .value("label", label(self.model))
            .value("body", embed(variant.form, &self.body(variant.api)))
            .value("rest_path", self.rest_path())
            .value("model", Notation::Python.string(self.model))
            .value("signature", Notation::Python.string(&self.signature.name))
            .value("types", self.types())
            .value("version", self.version.unwrap_or_default().to_string())
            .condition("versioned", self.version.is_some())
            .condition("tls", location.https)
            .condition("address", location.is_address())
            .condition("grpc_tls", location.grpc_tls)
            .condition("images", self.sends_bytes())
            .condition(
                "base64",
                self.sends_bytes() || location.credentials == ClientCredentials::Basic,
            )
            .condition("basic", location.credentials == ClientCredentials::Basic)
            .condition("bearer", location.credentials == ClientCredentials::Bearer)
            .condition("auth", auth)
            .condition("open", !auth)
            .condition("settings", auth || location.https)
            .condition("grpc_settings", auth || location.grpc_tls);
        let filled = blanks.fill(variant.template);
        filled
            .map_err(|e| Error::internal(format!("the template of {} is invalid: {e}", variant.id)))
    }

    /// The comment at the top of the source code.
    fn header(&self, variant: &ClientVariant, location: &ServerLocation) -> String {
        let ClientVariant { install, run, comment, api, .. } = variant;
        let mut lines =
            vec![format!("Client of the model {}, generated by tensorserve.", label(self.model))];
        if !install.is_empty() {
            lines.push(format!("Needs: {install}"));
        }
        if !run.is_empty() {
            lines.push(format!("Run: {run}"));
        }
        match location.credentials {
            ClientCredentials::None => {}
            ClientCredentials::Basic => lines.push(
                "User and password come from TENSORSERVE_USER and TENSORSERVE_PASSWORD.".to_owned(),
            ),
            ClientCredentials::Bearer => {
                lines.push("The key comes from TENSORSERVE_KEY.".to_owned())
            }
        }
        if if *api == ClientApi::Grpc { location.grpc_tls } else { location.https } {
            lines.extend(variant.trust.iter().map(|line| (*line).to_owned()));
        }
        let lines: Vec<String> = lines.iter().map(|line| format!("{comment} {line}")).collect();
        lines.join("\n")
    }

    /// The members of the request body; for gRPC, the inputs.
    fn body(&self, api: ClientApi) -> Vec<(&str, Value)> {
        let data = || Value::Object(self.data.clone());
        let name = Some(self.signature.name.as_str()).filter(|name| *name != DEFAULT);
        let signature = name.map(|name| ("signature_name", Value::from(name)));
        let version = self.version.map(|version| match version.unsigned_abs() {
            ..=LARGEST_NUMBER => ("model_version", Value::from(version)),
            _ => ("model_version", Value::from(version.to_string())),
        });
        let model = ("model_name", Value::from(self.model));
        let members = match api {
            ClientApi::Simple => vec![Some(model), version, signature, Some(("data", data()))],
            ClientApi::Data => vec![version, signature, Some(("data", data()))],
            // Their versions are in the path or in a header.
            ClientApi::Rest | ClientApi::Sagemaker => vec![signature, Some(("inputs", data()))],
            ClientApi::Grpc => {
                return self
                    .data
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.clone()))
                    .collect();
            }
        };
        members.into_iter().flatten().collect()
    }

    /// The path in TensorFlow Serving's REST API.
    fn rest_path(&self) -> String {
        let version = self.version.map_or(String::new(), |version| format!("/versions/{version}"));
        format!("/v1/models/{}{version}:predict", percent_encoded(self.model))
    }

    /// Whether its values are bytes, which JSON has as base64.
    fn sends_bytes(&self) -> bool {
        self.signature.takes_images && self.signature.images == ImageEncoding::Raw
    }

    /// The type of each input, as a Python literal.
    fn types(&self) -> String {
        let mut lines = vec!["{".to_owned()];
        for spec in &self.signature.inputs {
            let name = Notation::Python.string(&spec.alias);
            let dtype = spec.dtype().map_or("float32", DType::python_name);
            lines.push(format!("    {name}: tf.{dtype},"));
        }
        lines.push("}".to_owned());
        lines.join("\n")
    }
}

/// The most bytes of a Java string constant, with a margin.
const LARGEST_BLOCK: usize = 60_000;

/// The body of a request for the source code. Of the characters that are special in a language, its
/// text has only quotes and backslashes (see [`notation`]).
fn embed(form: BodyForm, members: &[(&str, Value)]) -> String {
    match form {
        BodyForm::Literal(notation) => notation.body(members),
        BodyForm::Escaped => {
            Notation::Json.body(members).replace('\\', "\\\\").replace('"', "\\\"")
        }
        BodyForm::DoubledQuotes => Notation::Json.body(members).replace('"', "\"\""),
        BodyForm::TextBlocks => text_blocks(&Notation::Json.body(members)),
    }
}

/// `text` as a Java text block, or as several that are joined.
fn text_blocks(text: &str) -> String {
    let mut blocks = vec![String::new()];
    for line in text.lines() {
        let is_full = blocks.last().is_some_and(|block| block.len() + line.len() > LARGEST_BLOCK);
        if is_full {
            blocks.push(String::new());
        }
        if let Some(block) = blocks.last_mut() {
            block.push_str(&line.replace('\\', "\\\\"));
            block.push('\n');
        }
    }
    let blocks: Vec<String> = blocks.iter().map(|b| format!("\"\"\"\n{b}\"\"\"")).collect();
    match blocks.as_slice() {
        [only] => only.clone(),
        _ => format!("String.join(\"\", {})", blocks.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use tensorserve_protocol::NoHeaders;
    use tensorserve_tensor::{DeclaredShape, RowDependence, TensorSpec};

    fn variants() -> impl Iterator<Item = (&'static ClientLanguage, &'static ClientVariant)> {
        LANGUAGES.iter().flat_map(|language| language.variants.iter().map(move |v| (language, v)))
    }

    fn signature(name: &str, inputs: &[&str]) -> Signature {
        let spec = |alias: &&str| TensorSpec {
            alias: (*alias).to_owned(),
            tensor_name: String::new(),
            dtype_number: DType::Float.number(),
            shape: DeclaredShape::Dims(vec![(-1, String::new())]),
            sparse: None,
            takes_missing: false,
            number_texts: None,
            quantization: None,
            column_names: Vec::new(),
        };
        Signature {
            name: name.to_owned(),
            method_name: String::new(),
            inputs: inputs.iter().map(spec).collect(),
            outputs: Vec::new(),
            defaults: Vec::new(),
            images: ImageEncoding::Raw,
            takes_images: false,
            read_only: true,
            repeatable: true,
            exact_shapes: false,
            by_columns: None,
            unused_columns: Vec::new(),
            categories: Vec::new(),
            ignores_unknown: false,
            ran_with: Vec::new(),
            is_bounded: true,
            rows: RowDependence::NoGraph,
        }
    }

    fn location(credentials: ClientCredentials, https: bool) -> ServerLocation {
        let (scheme, grpc) = (if https { "https" } else { "http" }, "127.0.0.1:8501".to_owned());
        let url = format!("{scheme}://127.0.0.1:8500");
        ServerLocation { url, https, grpc: Some(grpc), grpc_tls: https, credentials }
    }

    fn source(
        variant: &ClientVariant,
        model: &str,
        signature: &Signature,
        location: &ServerLocation,
    ) -> String {
        let version = (location.credentials == ClientCredentials::Basic).then_some(3);
        let data = sample::data(signature).expect("a sample");
        let data = serde_json::from_str(&data).expect("JSON");
        SampleCall { model, version, signature, data }.source(variant, location).expect(variant.id)
    }

    /// `tests/golden/clients` has every client without TLS, with user and password (for version 3
    /// and another signature), and with a key.
    #[test]
    fn sources_are_those_of_the_golden_files() {
        let (plain, own) = (signature("serving_default", &["x"]), signature("other", &["a", "b"]));
        let situations = [
            ("clear", &plain, location(ClientCredentials::None, false)),
            ("user", &own, location(ClientCredentials::Basic, true)),
            ("key", &plain, location(ClientCredentials::Bearer, true)),
        ];
        let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut wrong = Vec::new();
        let mut known = BTreeMap::new();
        for (folder, signature, location) in &situations {
            for (language, variant) in variants() {
                let name = format!("{}-{}.txt", language.id, variant.id.replace('/', "-"));
                let path = Path::new("tests/golden/clients").join(folder).join(name);
                let got = source(variant, "half_plus_two", signature, location);
                if fs::read_to_string(root.join(&path)).ok().as_deref() != Some(got.as_str()) {
                    let new = root.join("target").join(&path);
                    fs::create_dir_all(new.parent().expect("a directory")).expect("a directory");
                    fs::write(&new, got).expect("written");
                    wrong.push(format!("{} is not {}", path.display(), new.display()));
                }
                known.insert(path, ());
            }
            for file in fs::read_dir(root.join("tests/golden/clients").join(folder)).expect("files")
            {
                let path = Path::new("tests/golden/clients")
                    .join(folder)
                    .join(file.expect("a file").file_name());
                assert!(known.contains_key(&path), "{} belongs to no client", path.display());
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_blank_of_every_template_is_filled() {
        let signature = signature("other", &["x"]);
        for (language, variant) in variants() {
            for credentials in
                [ClientCredentials::None, ClientCredentials::Basic, ClientCredentials::Bearer]
            {
                for https in [false, true] {
                    let source = source(variant, "m", &signature, &location(credentials, https));
                    assert!(source.is_ascii(), "{}: {source}", language.id);
                    // A client that authenticates names the source of its credentials.
                    let asks = ["TENSORSERVE_USER", "TENSORSERVE_KEY", "id=\"user\"", "id=\"key\""];
                    let shows = asks.iter().any(|name| source.contains(name));
                    let should =
                        credentials != ClientCredentials::None && variant.api != ClientApi::Data;
                    assert_eq!(shows, should, "{}: {source}", language.id);
                }
            }
        }
    }

    /// The number of each character in a source that is special in some language.
    fn meanings(source: &str) -> BTreeMap<char, usize> {
        let mut counts = BTreeMap::new();
        // A label replaces characters by `?`, a path by `%27`; wrapping adds line breaks, and
        // escaping adds backslashes.
        for character in source.chars().filter(|c| !c.is_ascii_alphanumeric()) {
            if !" _-.,:;/+=?%\\\n".contains(character) {
                *counts.entry(character).or_default() += 1;
            }
        }
        counts
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn names_cannot_inject_code(
            model in any::<String>(), name in any::<String>(), input in any::<String>(),
        ) {
            prop_assume!(name != DEFAULT && input != "__proto__");
            for (language, variant) in variants() {
                for credentials in [ClientCredentials::None, ClientCredentials::Basic] {
                    let location = location(credentials, true);
                    let plain = source(variant, "m", &signature("s", &["x"]), &location);
                    let got = source(variant, &model, &signature(&name, &[&input]), &location);
                    prop_assert_eq!(meanings(&got), meanings(&plain), "{}: {}", language.id, got);
                }
            }
        }
    }

    #[test]
    fn large_requests_fit_javas_constants() {
        let mut signature = signature("serving_default", &["x"]);
        let dims = [-1, 300, 300].map(|size| (size, String::new()));
        signature.inputs[0].shape = DeclaredShape::Dims(dims.into());
        let java = LANGUAGES.iter().find(|language| language.id == "java").expect("Java");
        let source =
            source(&java.variants[0], "m", &signature, &location(ClientCredentials::None, false));
        let blocks: Vec<&str> = source.split("\"\"\"").skip(1).step_by(2).collect();
        assert!(blocks.len() > 5 && blocks.iter().all(|block| block.len() < 65_535));
        let body: Value = serde_json::from_str(&blocks.concat()).expect("JSON");
        assert_eq!(body["data"]["x"][1][299].as_array().map(Vec::len), Some(300));
    }

    fn wanted(query: &str) -> Result<(ClientQuery, &'static ClientVariant)> {
        let target = format!("/v1/models/m/gen_client{query}");
        let head = RequestHead { method: "GET", target: &target, headers: &NoHeaders };
        let wanted = ClientQuery::of(head.query())?;
        let variant = wanted.variant()?;
        Ok((wanted, variant))
    }

    #[test]
    fn queries_are_read_leniently() {
        let file = |query| wanted(query).map(|(_, variant)| variant.file).expect(query);
        assert_eq!(file(""), "client.sh");
        assert_eq!(file("?language="), "client.sh");
        assert_eq!(file("?language=Python"), "client.py");
        assert_eq!(file("?language=C%23"), "Client.cs");
        assert_eq!(file("?language=JavaScript&variant=browser"), "client.html");
        let (wanted, _) = wanted("?version=7&signature=a+b%26%C3%A9&x=1").expect("a valid query");
        assert_eq!((wanted.version, wanted.signature.as_deref()), (Some(7), Some("a b&é")));
    }

    #[test]
    fn errors_list_the_available_choices() {
        let message = |query| wanted(query).expect_err(query).message().to_owned();
        let unknown = message("?language=cobol%22");
        assert!(
            unknown.starts_with(
                "there is no client for the language \"cobol\\\"\"; available: json, bash, "
            ),
            "{unknown}"
        );
        assert_eq!(
            message("?language=python&variant=soap"),
            "Python has no client variant \"soap\"; available: requests, rest, grpc, boto3"
        );
        assert_eq!(message("?version=1.5"), "version must be a whole number, not \"1.5\"");
    }
}
