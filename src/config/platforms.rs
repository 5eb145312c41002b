//! The names of platforms, as users write them.

/// Names by which users call a platform, besides its own.
const OTHER_NAMES: [(&str, &str); 3] = [
    // Simple TensorFlow Serving's name for ONNX files that PyTorch wrote.
    ("pytorch_onnx", "onnx"),
    ("sklearn", "scikitlearn"),
    ("scikit-learn", "scikitlearn"),
];

/// The names of those that are built in, as users write them.
pub const PLATFORMS: &[&str] = &[
    #[cfg(feature = "tensorflow")]
    "tensorflow",
    #[cfg(feature = "onnx")]
    "onnx",
    #[cfg(feature = "mxnet")]
    "mxnet",
    #[cfg(feature = "xgboost")]
    "xgboost",
    #[cfg(feature = "sklearn")]
    "scikitlearn",
    #[cfg(feature = "pmml")]
    "pmml",
    #[cfg(feature = "spark")]
    "spark",
];

/// The platform that is called `name`, by its own name or by another that is in use.
///
/// # Errors
/// What to tell a user who names one that is not there.
pub fn platform(name: &str) -> Result<&'static str, String> {
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name);
    let own = other.map_or(name, |(_, own)| *own);
    if let Some(known) = PLATFORMS.iter().find(|known| **known == own) {
        return Ok(known);
    }
    let known = PLATFORMS.join(", ");
    match name {
        "h2o" => Err(format!(
            "platform h2o is not built in: its models run in H2O's own server only; convert the \
             model to ONNX and name the platform onnx (built in: {known})"
        )),
        _ => Err(format!("platform {name:?} is not known; these are: {known}")),
    }
}
