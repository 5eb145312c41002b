//! Models in pickles and joblib files: the text of the booster in them. The pickle is read as data;
//! nothing in it is executed.

use super::model::LightgbmModel;
use super::text;
use tensorserve_pickle::{self as pickle, PickleValue};
use tensorserve_tabular::labels::ClassLabels;
use tensorserve_tensor::error::{Error, Result};

/// The largest file. Reading takes several times its size in memory.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

/// The names of the text in the state of a booster, the newest first.
const HANDLES: [&str; 2] = ["_handle", "handle"];

/// Reads a pickled `Booster`, or a scikit-learn wrapper around one.
pub(super) fn read(bytes: Vec<u8>) -> Result<LightgbmModel> {
    let limit = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
    read_value(pickle::read(bytes, limit)?.root())
}

/// As [`read`], for a value of a pickle.
pub(super) fn read_value(root: PickleValue) -> Result<LightgbmModel> {
    if root.class_name() == Some("Booster") {
        return read_booster(root);
    }
    match root.attribute("_Booster") {
        Some(inner) if inner.class_name() == Some("Booster") => {
            let mut model = read_booster(inner)?;
            // A classifier with an objective that is a function predicts the sums. Any other predicts the
            // classes, also with an objective that is not one of classes, such as cross_entropy.
            let is_named = root.attribute("_objective").and_then(PickleValue::text).is_some();
            let labels = root.attribute("_classes").filter(|labels| !labels.is_none());
            if let Some(labels) = labels.filter(|_| is_named || model.is_classification()) {
                model.set_labels(ClassLabels::read(labels)?)?;
            }
            Ok(model)
        }
        Some(_) => Err(Error::damaged("the pickled model is not fitted")),
        None => {
            let found = root.description();
            Err(Error::unsupported(format!(
                "the pickle holds {found}; only LightGBM's Booster and its scikit-learn wrappers \
                 are supported"
            )))
        }
    }
}

fn read_booster(booster: PickleValue) -> Result<LightgbmModel> {
    let handle = HANDLES.iter().find_map(|name| booster.attribute(name)?.bytes());
    let handle = handle.ok_or_else(|| Error::damaged("the pickled Booster has no model"))?;
    let mut model = text::read(handle)?;
    // Predictions of Python stop at the best iteration (early stopping); without one it is 0 or -1.
    let best = booster.attribute("best_iteration").and_then(PickleValue::int);
    let best = best.and_then(|best| usize::try_from(best).ok()).filter(|best| *best > 0);
    if let Some(best) = best {
        model.truncate(best);
    }
    Ok(model)
}
