//! PMML files (versions 3 to 4.4), evaluated without a library.
//!
//! A file is compiled when it is loaded: names become indices into an array of numbers, trees become
//! arrays, and so on. Scoring a row fills that array step by step, without allocation. What cannot be
//! scored is refused when the file is loaded, by its name and line.
//!
//! * [`tensorserve_codec::xml`] parses the file; [`field`], [`row`], [`strings`] and [`value`] are about values;
//! * [`schema`], [`reader`] and [`predicate`] are common to all models, and [`builder`] is what they share
//!   while a file is read;
//! * [`model`] assembles a model; [`tree`], [`regression`], [`general`], [`mining`], [`scorecard`],
//!   [`clustering`], [`nearest`], [`bayes`], [`vector`], [`ruleset`], [`anomaly`] and [`network`] are its
//!   kinds; [`target`] and [`output`] are what follows it;
//! * [`scorer`] converts between tensors and rows; this file is the [`FilePlatform`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;

use self::builder::PmmlBuilder;
use self::scorer::Scorer;
use tensorserve_codec::xml::{self, XmlElement};
use tensorserve_platform::{InputStyle, files};
use tensorserve_tabular::Evaluated;
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Error, Result};

mod anomaly;
mod bayes;
mod builder;
mod classes;
mod clustering;
mod comparison;
mod context;
mod cox;
mod expression;
mod features;
mod field;
mod function;
mod general;
mod interval;
mod map_values;
mod measure;
mod mining;
mod model;
mod nearest;
mod network;
mod norm_continuous;
mod numeric;
mod output;
mod predicate;
mod prediction;
mod reader;
mod regression;
mod row;
mod ruleset;
mod schema;
mod scorecard;
mod scorer;
mod strings;
mod target;
mod temporal;
mod text_function;
mod tree;
mod value;
mod vector;

/// The endings of model files.
const ENDINGS: [&str; 1] = [".pmml"];

/// The largest file: a forest of about ten million nodes. Reading takes three times its size in
/// memory.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The byte order mark, which some programs put before the text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The `pmml` platform.
pub const PMML: FilePlatform = FilePlatform {
    name: "pmml",
    title: "PMML",
    description: "PMML (built-in evaluator)",
    input_style: InputStyle::Records,
    has_folders: false,
    compared: None,
    recognises: |place| place.has_file(&ENDINGS),
    check: |path| files::check(path, &ENDINGS),
    read: open,
};

/// Reads the model at `path`.
fn open(path: &Path) -> Result<Evaluated> {
    Evaluated::read(&files::find(path, &ENDINGS)?, MAX_FILE_BYTES, |content| {
        let text = std::str::from_utf8(&content).map_err(|error| {
            let at = error.valid_up_to();
            Error::damaged(format!("invalid UTF-8 at byte {at}; save the file as UTF-8"))
        })?;
        let CompiledPmml { signature, scorer, written_by, warnings } = compile(text)?;
        Ok(Evaluated { warnings, ..Evaluated::new(signature, scorer, written_by) })
    })
}

/// The compiled model of a file.
struct CompiledPmml {
    signature: Signature,
    scorer: Scorer,
    /// The program that wrote the file; empty if not recorded.
    written_by: String,
    /// What of the file is not served.
    warnings: Vec<String>,
}

/// Compiles the text of a file.
fn compile(text: &str) -> Result<CompiledPmml> {
    let document = xml::parse(text.trim_start_matches(BYTE_ORDER_MARK))?;
    let root = document.root();
    if root.name() != "PMML" {
        return Err(root.damaged("is not PMML"));
    }
    check_version(root)?;
    let mut builder = PmmlBuilder::new(root)?;
    let model = model::read_root(&mut builder, root)?;
    let warnings = std::mem::take(&mut builder.warnings);
    let (signature, scorer) = Scorer::new(builder, model)?;
    Ok(CompiledPmml { signature, scorer, written_by: written_by(root), warnings })
}

fn check_version(root: XmlElement) -> Result<()> {
    let version = root.attribute("version").unwrap_or_default();
    match version.split('.').next() {
        Some("3" | "4") => Ok(()),
        _ => Err(root.unsupported(format!("version {version:?}, neither 3 nor 4,"))),
    }
}

fn written_by(root: XmlElement) -> String {
    let application = root.child("Header").and_then(|header| header.child("Application"));
    let Some(application) = application else {
        return String::new();
    };
    let name = application.attribute("name").unwrap_or_default();
    match application.attribute("version") {
        Some(version) => format!("{name} {version}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod expression_tests;
#[cfg(test)]
mod tests;
