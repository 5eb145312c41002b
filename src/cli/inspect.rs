//! `tensorserve inspect`: the signatures that a model declares, without loading it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use super::table::columns;
use super::{InspectArgs, example, forms, http_client, print_line, print_text, set_libraries};
use crate::config::{self, Config, Settings, environment::Environment};
use crate::platforms;
use crate::stores;
use tensorserve_core::batch::{Joining, SignatureTraits};
use tensorserve_core::config::{BatchConfig, is_store_url, model_path};
use tensorserve_platform::{
    ForeignFormats, LoadOptions, ModelPath, Platforms, RunnerOptions, names_version,
};
use tensorserve_preprocessing as steps;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{
    CooSparse, DeclaredShape, ImageEncoding, RowDependence, Signature, TensorSpec,
};

const SERVER: &str = "http://127.0.0.1:8500";

pub(super) fn run(arguments: &InspectArgs, environment: &Environment) -> Result<ExitCode> {
    let InspectArgs { target, tags, measure, .. } = arguments;
    if is_server(target) {
        if *measure {
            return Err(Error::invalid("--measure loads models: name a path, not a server"));
        }
        inspect_url(target, environment)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut settings = Settings::default();
    set_libraries(&mut settings, environment);
    let config = Config::new(settings, environment)?;
    let python = arguments.runner_python.clone();
    let options = LoadOptions {
        tags: tags.split(',').map(|tag| tag.trim().to_owned()).collect(),
        runner: RunnerOptions { python, ..RunnerOptions::default() },
        ..LoadOptions::default()
    };
    let platforms = platforms::built_in(&config);
    let named = named_platform(arguments)?;
    let place = model_path(target);
    let folders = match is_store_url(&place) {
        true => models_in_store(&place, environment, &platforms, named)?,
        false => models_at(&place, &platforms, named)?,
    };
    for (index, (name, folder)) in folders.iter().enumerate() {
        if index > 0 {
            print_line("");
        }
        inspect_version(name, folder, &platforms, named, &options)?;
    }
    if !is_store_url(&place) && !platforms.is_model(&place, named) {
        for file in platforms.model_files(&place, named) {
            print_line("");
            print_line(&format!("{}: not served: it lies beside directories", file.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The platform that the arguments name, if they do.
fn named_platform(arguments: &InspectArgs) -> Result<Option<&'static str>> {
    if arguments.runner == "python" {
        let missing =
            || Error::invalid("--runner: this build of tensorserve cannot run models in Python");
        return config::runner_platform().ok_or_else(missing).map(Some);
    }
    arguments.platform.as_deref().map(config::platform).transpose().map_err(Error::invalid)
}

/// Whether `target` is the URL of a model on a server, and not of a model's file.
fn is_server(target: &str) -> bool {
    let rest = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let Some((_, path)) = rest.map(|rest| rest.split_once('/').unwrap_or((rest, ""))) else {
        return false;
    };
    let path = path.split(['?', '#']).next().unwrap_or(path);
    path.contains("v1/models/") || !path.rsplit('/').next().is_some_and(|name| name.contains('.'))
}

/// The models at a location in a store, each with the local path of its newest version.
#[cfg(feature = "stores")]
fn models_in_store(
    location: &Path,
    environment: &Environment,
    platforms: &Platforms,
    named: Option<&str>,
) -> Result<Vec<(String, PathBuf)>> {
    stores::check(location)?;
    let config = Config::new(Settings::of_environment(environment), environment)?;
    stores::download_models(&config, location, |root| models_at(root, platforms, named))
}

#[cfg(not(feature = "stores"))]
fn models_in_store(
    location: &Path,
    _environment: &Environment,
    _platforms: &Platforms,
    _named: Option<&str>,
) -> Result<Vec<(String, PathBuf)>> {
    stores::check(location).map(|()| Vec::new())
}

/// The models at `path`, each with its name: the path itself, its newest version, or the newest
/// version of every model in it; of the platform `named` only, if there is one.
pub(super) fn models_at(
    path: &Path,
    platforms: &Platforms,
    named: Option<&str>,
) -> Result<Vec<(String, PathBuf)>> {
    let real = match path.canonicalize() {
        Ok(real) => real,
        // A model of several files is named by the prefix of their names.
        Err(_) if platforms.is_model(path, named) => path.to_owned(),
        Err(e) => return Err(Error::not_found(format!("{}: {e}", path.display())).with_source(e)),
    };
    let name_of = |path: &Path| {
        path.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned())
    };
    if platforms.is_model(&real, named) {
        if let (true, Some(stem)) = (real.is_file(), real.file_stem()) {
            return Ok(vec![(stem.to_string_lossy().into_owned(), real.clone())]);
        }
        let is_version = names_version(&name_of(&real));
        let named = if is_version { real.parent().unwrap_or(&real) } else { &real };
        return Ok(vec![(name_of(named), real.clone())]);
    }
    if let Some(newest) = newest_version(&real) {
        return Ok(vec![(name_of(&real), newest)]);
    }
    let mut models = Vec::new();
    for folder in ModelPath::new(&real).folders() {
        if platforms.is_model(folder, named) {
            models.push((name_of(folder), folder.clone()));
        } else if let Some(newest) = newest_version(folder) {
            models.push((name_of(folder), newest));
        }
    }
    if models.is_empty() {
        if let Some(why) = ForeignFormats::explain(&real) {
            return Err(Error::new(Code::Unimplemented, why));
        }
        return Err(Error::not_found(format!(
            "{}: no model found; expected a directory with a saved_model.pb, a directory of numbered \
             versions, or a model file of another platform",
            path.display()
        )));
    }
    Ok(models)
}

fn newest_version(path: &Path) -> Option<PathBuf> {
    let place = ModelPath::new(path);
    let numbered = place.folders().filter_map(|folder| {
        let number: i64 = folder.file_name()?.to_str()?.parse().ok()?;
        (number >= 0).then_some((number, folder))
    });
    numbered.max().map(|(_, folder)| folder.clone())
}

fn inspect_version(
    name: &str,
    folder: &Path,
    platforms: &Platforms,
    named: Option<&str>,
    options: &LoadOptions,
) -> Result<()> {
    let Some(platform) = platforms.of_version(folder, named) else {
        let known = platforms.iter().filter(|platform| !platform.info.must_be_named);
        let known: Vec<&str> = known.map(|platform| platform.info.name).collect();
        let message =
            format!("{}: no model of a known platform ({})", folder.display(), known.join(", "));
        return Err(Error::not_found(message));
    };
    let place = folder.display();
    let inspection = platform.loader.inspect(folder, options).map_err(|e| with_path(e, folder))?;
    let kilobytes = inspection.bytes.div_ceil(1000);
    let written_by = match inspection.written_by.as_str() {
        "" => String::new(),
        version if platform.info.name == "tensorflow" => {
            format!(", written by tensorflow {version}")
        }
        program => format!(", written by {program}"),
    };
    print_line(&format!("{name}: {place} ({}, {kilobytes} kB{written_by})", platform.info.name));
    if let tensorserve_platform::Completeness::Missing(what) = platform.loader.check(folder) {
        print_line(&format!("  incomplete: {what} is missing"));
    }
    #[cfg(feature = "openvino")]
    if let Some(engine) =
        tensorserve_engines::other_engine(platform.info.name, folder, &options.tags)
    {
        print_line(&format!("  {engine}"));
    }
    for external in &inspection.external_ops {
        print_line(&format!("  reaches outside the model: {external}"));
    }
    let mut signatures = inspection.signatures;
    let declared = steps::load_steps(folder, &signatures, usize::MAX)?;
    let joined: Vec<String> = signatures.iter().map(joining).collect();
    for (signature, of_signature) in signatures.iter_mut().zip(&declared) {
        if let Some(of_signature) = of_signature {
            print_line(&format!(
                "  {}: with the pre-/post-processing steps of {}",
                signature.name,
                steps::FILE_NAME
            ));
            signature.clone_from(of_signature.client_signature());
        }
    }
    let pairs = signatures.iter().zip(joined);
    for (signature, joined) in pairs.filter(|(signature, _)| is_shown(signature)) {
        show(SERVER, name, signature);
        print_line(&format!("    {joined}"));
    }
    Ok(())
}

/// Whether `batching = "auto"` joins requests of a signature, and why.
fn joining(signature: &Signature) -> String {
    let Joining { joins, why } =
        Joining::of(&BatchConfig::default(), &SignatureTraits::of(signature));
    format!("requests are {}joined: {why}", if joins { "" } else { "not " })
}

/// The error with the path of the model, which some platforms name in it.
fn with_path(error: Error, folder: &Path) -> Error {
    let path = folder.display().to_string();
    if error.message().contains(&path) { error } else { error.context(path) }
}

/// Not an initialisation function of TensorFlow.
fn is_shown(signature: &Signature) -> bool {
    !signature.inputs.is_empty() || !signature.name.starts_with("__")
}

fn show(url: &str, model: &str, signature: &Signature) {
    let method = match signature.method_name.as_str() {
        "" => String::new(),
        method => format!("  [{method}]"),
    };
    print_line("");
    print_line(&format!("  {}{method}", signature.name));
    let row = |kind: &str, spec: &TensorSpec| {
        let dtype = spec.dtype().map_or("(not servable)", |dtype| dtype.name());
        let mut shape = spec.shape.to_string();
        if let Some(quantization) = spec.quantization {
            shape = format!("{shape}  = {quantization}");
        }
        vec![format!("    {kind}"), spec.alias.clone(), dtype.to_owned(), shape]
    };
    let inputs = signature.inputs.iter().map(|spec| row("input", spec));
    let outputs = signature.outputs.iter().map(|spec| row("output", spec));
    print_text(&columns(&inputs.chain(outputs).collect::<Vec<_>>()));
    if signature.takes_images {
        print_line(&format!("    images are passed as {}", example::image_words(signature)));
    }
    match example::of(url, model, signature) {
        Some(example) => print_text(&format!("    {}", example.command)),
        None => print_line(&format!("    ({})", why_no_example(signature))),
    }
}

fn why_no_example(signature: &Signature) -> String {
    if let Some(why) = signature.unsupported() {
        return format!("cannot be called: its {why}");
    }
    match example::is_too_large(signature) {
        true => "no example: the declared inputs are too large".to_owned(),
        false => "cannot be called over HTTP".to_owned(),
    }
}

fn inspect_url(url: &str, environment: &Environment) -> Result<()> {
    let (server, rest) = url.split_once("/v1/models/").ok_or_else(|| {
        Error::invalid(format!("{url}: name a model: http://HOST:PORT/v1/models/NAME"))
    })?;
    let path = rest.split(':').next().unwrap_or(rest).trim_end_matches('/');
    let path = path.strip_suffix("/metadata").unwrap_or(path);
    let served = DescribedModel::of(&format!("{server}/v1/models/{path}"), url, environment)?;
    let (name, version) = (&served.name, &served.version);
    print_line(&format!("{name} version {version} on {server}"));
    for signature in served.signatures.iter().filter(|signature| is_shown(signature)) {
        show(server, name, signature);
    }
    // Other servers do not tell, nor does ours where its console is off.
    let _ = forms::show(server, name, Some(version), environment);
    Ok(())
}

/// A model that a server has described.
pub(super) struct DescribedModel {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) signatures: Vec<Signature>,
}

impl DescribedModel {
    /// The model whose metadata is below `place`; errors name `url`, which the user has written.
    ///
    /// # Errors
    /// If the server does not describe it.
    pub(super) fn of(place: &str, url: &str, environment: &Environment) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("{url}: {why}"));
        let (status, body) = http_client::get(&format!("{place}/metadata"), environment)?;
        let page: Value =
            serde_json::from_str(&body).map_err(|_| wrong("the response is not JSON"))?;
        if status != 200 {
            let message = page.get("error").and_then(Value::as_str).unwrap_or(&body);
            return Err(wrong(message));
        }
        let text =
            |pointer: &str| page.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
        let (name, version) = (text("/model_spec/name"), text("/model_spec/version"));
        let map = page.pointer("/metadata/signature_def/signature_def").and_then(Value::as_object);
        let signatures =
            map.into_iter().flatten().map(|(name, definition)| signature(name, definition));
        Ok(DescribedModel { name, version, signatures: signatures.collect() })
    }
}

/// A signature from a server's metadata response.
fn signature(name: &str, definition: &Value) -> Signature {
    let specs = |member: &str| {
        let all = definition.get(member).and_then(Value::as_object).into_iter().flatten();
        all.map(|(alias, info)| spec(alias, info)).collect()
    };
    let method = definition.get("method_name").and_then(Value::as_str);
    Signature {
        name: name.to_owned(),
        method_name: method.unwrap_or_default().to_owned(),
        inputs: specs("inputs"),
        outputs: specs("outputs"),
        defaults: Vec::new(),
        images: ImageEncoding::Raw,
        takes_images: false,
        read_only: false,
        repeatable: false,
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

fn spec(alias: &str, info: &Value) -> TensorSpec {
    let text = |member: &str| info.get(member).and_then(Value::as_str).unwrap_or_default();
    let dtype = text("dtype").trim_start_matches("DT_").trim_end_matches("_REF");
    let dtype = tensorserve_tensor::DType::ALL
        .into_iter()
        .find(|known| known.name().eq_ignore_ascii_case(dtype));
    let shape = match info.get("tensor_shape") {
        None => DeclaredShape::Missing,
        Some(shape) if shape.get("unknown_rank") == Some(&Value::Bool(true)) => {
            DeclaredShape::UnknownRank
        }
        Some(shape) => {
            let dims = shape.get("dim").and_then(Value::as_array).into_iter().flatten();
            let size = |dim: &Value| dim.get("size")?.as_str()?.parse().ok();
            DeclaredShape::Dims(dims.map(|dim| (size(dim).unwrap_or(-1), String::new())).collect())
        }
    };
    TensorSpec {
        alias: alias.to_owned(),
        tensor_name: text("name").to_owned(),
        dtype_number: dtype.map_or(0, tensorserve_tensor::DType::number),
        shape,
        sparse: info.get("coo_sparse").map(coo_sparse),
        takes_missing: false,
        number_texts: None,
        quantization: None,
        column_names: Vec::new(),
    }
}

fn coo_sparse(names: &Value) -> CooSparse {
    let text =
        |member: &str| names.get(member).and_then(Value::as_str).unwrap_or_default().to_owned();
    CooSparse {
        values: text("values_tensor_name"),
        indices: text("indices_tensor_name"),
        dense_shape: text("dense_shape_tensor_name"),
    }
}
