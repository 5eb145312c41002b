//! PMML files (versions 3 to 4.4), scored by this process itself.
//!
//! A file is compiled when it is loaded: names become places in an array of numbers, trees become
//! arrays ([`tree`]), and so on. Scoring a row fills that array, step by step, and takes no
//! memory. What can not be scored is refused when the file is loaded, by its name and line.
//!
//! * [`xml`] reads the file; [`field`], [`schema`], [`expression`] and [`predicate`] are what all
//!   models are made of;
//! * [`model`] puts a model together, [`tree`], [`regression`], [`general`], [`mining`],
//!   [`scorecard`], [`clustering`] and [`network`] are the kinds of them, and [`output`] names their results;
//! * [`rows`] turns tensors into rows and back; this file ties them together as a [`Platform`].

use std::path::Path;
use std::sync::Arc;

use self::rows::Scorer;
use self::xml::Element;
use tensorserve_platform::{
    Completeness, Executable, InputStyle, Inspection, LoadOptions, Loaded, Place, Platform, files,
};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Code, Error, Result};

mod apply;
mod clustering;
mod expression;
mod field;
mod general;
mod interval;
mod mining;
mod model;
mod network;
mod output;
mod predicate;
mod regression;
mod rows;
mod schema;
mod scorecard;
mod tree;
mod xml;

/// How names of PMML files end.
const ENDINGS: [&str; 1] = [".pmml"];

/// The largest file: a forest of some ten million nodes. Reading takes three times that in memory.
const MAX_BYTES: u64 = 1 << 30;

/// The `pmml` platform.
pub struct Pmml;

impl Platform for Pmml {
    fn name(&self) -> &'static str {
        "pmml"
    }

    fn title(&self) -> &'static str {
        "PMML"
    }

    fn input_style(&self) -> InputStyle {
        InputStyle::Records
    }

    fn describe(&self) -> Result<String> {
        Ok("PMML natively".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&ENDINGS)
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, path: &Path) -> Completeness {
        files::check(path, &ENDINGS)
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        let file = read(path)?;
        let signatures = vec![file.signature];
        Ok(Inspection { signatures, written_by: file.written_by, bytes: file.bytes })
    }

    fn load(&self, path: &Path, _: &LoadOptions) -> Result<Loaded> {
        let file = read(path)?;
        let executable: Arc<dyn Executable> = Arc::new(file.scorer);
        let signatures = vec![file.signature];
        Ok(Loaded { signatures, executable, bytes: file.bytes, marshalled_hooks: false })
    }
}

/// A file, read.
struct Read {
    signature: Signature,
    scorer: Scorer,
    written_by: String,
    bytes: u64,
}

fn read(path: &Path) -> Result<Read> {
    let file = files::find(path, &ENDINGS)?;
    let bytes = files::read(&file, MAX_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let at = error.valid_up_to();
        Error::new(Code::DataLoss, format!("byte {at} is not UTF-8, the encoding that is taken"))
    });
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let (signature, scorer, written_by) =
        text.and_then(compile).map_err(|error| error.context(file.display()))?;
    Ok(Read { signature, scorer, written_by, bytes: size })
}

/// What the text of a file says: its signature, its model, and what wrote it.
fn compile(text: &str) -> Result<(Signature, Scorer, String)> {
    // A mark of the byte order, which some tools put before the text.
    let document = xml::parse(text.trim_start_matches('\u{feff}'))?;
    let root = Element::root(&document);
    if root.name() != "PMML" {
        return Err(root.damaged("is not PMML"));
    }
    check_version(root)?;
    let mut builder = schema::Builder::new(root)?;
    let whole = model::read(&mut builder, root)?;
    let (signature, scorer) = rows::prepare(builder, whole)?;
    Ok((signature, scorer, written_by(root)))
}

fn check_version(root: Element) -> Result<()> {
    let version = root.attribute("version").unwrap_or_default();
    match version.split('.').next() {
        Some("3" | "4") => Ok(()),
        _ => Err(root.unsupported(format!("version {version:?}, which is neither 3 nor 4,"))),
    }
}

fn written_by(root: Element) -> String {
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
mod tests;
