//! Models in pickles and joblib files: the bytes of the booster in them, in whichever format its
//! version of the library used. The pickle is read as data; nothing in it is executed.

use super::RoundSelection;
use super::document::narrow;
use super::encoding::{MAX_FILE_BYTES, read_bytes};
use super::model::XgboostModel;
use tensorserve_pickle::{self as pickle, PickleValue};
use tensorserve_tensor::error::{Error, Result};

/// Reads a pickled `Booster`, or a scikit-learn wrapper around one.
pub(super) fn read(bytes: Vec<u8>) -> Result<XgboostModel> {
    let limit = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
    read_value(pickle::read(bytes, limit)?.root())
}

/// As [`read`], for a value of a pickle.
pub(super) fn read_value(root: PickleValue) -> Result<XgboostModel> {
    if root.class_name() == Some("Booster") {
        return read_booster(root, RoundSelection::All);
    }
    match root.attribute("_Booster") {
        Some(inner) if inner.class_name() == Some("Booster") => {
            let mut model = read_booster(inner, RoundSelection::UpToBest)?;
            let missing = root.attribute("missing").and_then(PickleValue::float).map(narrow);
            model.missing = missing.filter(|missing| !missing.is_nan());
            Ok(model)
        }
        Some(_) => Err(Error::damaged("the pickled model is not fitted")),
        None => {
            let found = root.description();
            Err(Error::unsupported(format!(
                "the pickle holds {found}; only XGBoost's Booster and its scikit-learn wrappers \
                 are supported"
            )))
        }
    }
}

fn read_booster(booster: PickleValue, rounds: RoundSelection) -> Result<XgboostModel> {
    let handle = booster.attribute("handle").and_then(PickleValue::bytes);
    let handle = handle.ok_or_else(|| Error::damaged("the pickled Booster has no model"))?;
    let mut model = read_bytes(handle, rounds)?;
    if model.names.is_empty() {
        // Until 1.3 the names are attributes of the Python object.
        let names = booster.attribute("feature_names").and_then(PickleValue::items);
        let names = names.unwrap_or_default().into_iter();
        let names = names.map(|name| name.text().map(str::to_owned));
        model.names = names.collect::<Option<_>>().unwrap_or_default();
    }
    Ok(model)
}
