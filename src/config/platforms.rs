//! The names of platforms.

/// The platforms that are built in, by the names that users write.
pub const PLATFORMS: [&str; 7] =
    ["tensorflow", "onnx", "xgboost", "scikitlearn", "pmml", "spark", "mxnet"];

/// The platform that is called `name`, by its own name or by another that is in use.
///
/// # Errors
/// What to tell a user who names one that is not there.
pub fn platform(name: &str) -> Result<&'static str, String> {
    let own = match name {
        // Simple TensorFlow Serving's name for ONNX files that PyTorch wrote.
        "pytorch_onnx" => "onnx",
        "sklearn" | "scikit-learn" => "scikitlearn",
        other => other,
    };
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
