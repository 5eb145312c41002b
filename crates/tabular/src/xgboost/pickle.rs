//! Models in pickles and in joblib's files: the bytes of the booster in them, in whichever notation
//! its version of the library used. Nothing of a pickle is run.

use super::document::narrow;
use super::model::Model;
use super::{LARGEST_FILE, Rounds, broken, read_bytes, unsupported};
use crate::pickle::{self, Value};
use tensorserve_tensor::error::Result;

/// Reads a pickled `Booster`, or a wrapper for scikit-learn around one.
pub(super) fn read(bytes: Vec<u8>) -> Result<Model> {
    let limit = usize::try_from(LARGEST_FILE).unwrap_or(usize::MAX);
    let pickle = pickle::read(bytes, limit)?;
    let root = pickle.root();
    if root.class_name() == Some("Booster") {
        return booster(root, Rounds::All);
    }
    match root.attribute("_Booster") {
        Some(inner) if inner.class_name() == Some("Booster") => {
            let mut model = booster(inner, Rounds::Best)?;
            let missing = root.attribute("missing").and_then(Value::float).map(narrow);
            model.missing = missing.filter(|missing| !missing.is_nan());
            Ok(model)
        }
        Some(_) => Err(broken("its model is not fitted".to_owned())),
        None => {
            let what = root.class().unwrap_or(root.kind());
            Err(unsupported(format!(
                "its pickle holds {what}; a Booster of XGBoost or one of its models for \
                 scikit-learn is read here"
            )))
        }
    }
}

fn booster(booster: Value, rounds: Rounds) -> Result<Model> {
    let handle = booster.attribute("handle").and_then(Value::bytes);
    let handle = handle.ok_or_else(|| broken("its booster holds no model".to_owned()))?;
    let mut model = read_bytes(handle, rounds)?;
    if model.names.is_empty() {
        // Until 1.3 they were not in the model itself.
        let names = booster.attribute("feature_names").and_then(Value::items).unwrap_or_default();
        let names = names.into_iter().map(|name| name.text().map(str::to_owned));
        model.names = names.collect::<Option<_>>().unwrap_or_default();
    }
    Ok(model)
}
