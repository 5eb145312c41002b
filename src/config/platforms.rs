//! The names of platforms, as users write them.

/// Other names of platforms.
const OTHER_NAMES: [(&str, &str); 5] = [
    // Simple TensorFlow Serving's name for ONNX files that PyTorch wrote.
    ("pytorch_onnx", "onnx"),
    ("sklearn", "scikitlearn"),
    ("scikit-learn", "scikitlearn"),
    ("litert", "tflite"),
    ("tensorflow_lite", "tflite"),
];

/// The platforms that are built in.
pub const PLATFORMS: &[&str] = &[
    #[cfg(feature = "tensorflow")]
    "tensorflow",
    #[cfg(feature = "onnx")]
    "onnx",
    #[cfg(feature = "mxnet")]
    "mxnet",
    #[cfg(feature = "tflite")]
    "tflite",
    #[cfg(feature = "xgboost")]
    "xgboost",
    #[cfg(feature = "lightgbm")]
    "lightgbm",
    #[cfg(feature = "catboost")]
    "catboost",
    #[cfg(feature = "sklearn")]
    "scikitlearn",
    #[cfg(feature = "pmml")]
    "pmml",
    #[cfg(feature = "spark")]
    "spark",
    #[cfg(feature = "h2o")]
    "h2o",
    #[cfg(feature = "pytorch")]
    "pytorch",
    #[cfg(feature = "executorch")]
    "executorch",
];

/// What a message about an unknown platform adds in a build without some of them, such as that of
/// `make run`; nothing in a build with all.
#[must_use]
pub fn left_out() -> String {
    let names = [
        #[cfg(not(feature = "tensorflow"))]
        "tensorflow",
        #[cfg(not(feature = "onnx"))]
        "onnx",
        #[cfg(not(feature = "mxnet"))]
        "mxnet",
        #[cfg(not(feature = "tflite"))]
        "tflite",
        #[cfg(not(feature = "xgboost"))]
        "xgboost",
        #[cfg(not(feature = "lightgbm"))]
        "lightgbm",
        #[cfg(not(feature = "catboost"))]
        "catboost",
        #[cfg(not(feature = "sklearn"))]
        "scikitlearn",
        #[cfg(not(feature = "pmml"))]
        "pmml",
        #[cfg(not(feature = "spark"))]
        "spark",
        #[cfg(not(feature = "h2o"))]
        "h2o",
        #[cfg(not(feature = "pytorch"))]
        "pytorch",
        #[cfg(not(feature = "executorch"))]
        "executorch",
    ];
    let names: &[&str] = &names;
    if names.is_empty() {
        return String::new();
    }
    format!("; this build leaves out {}, which `make build` builds in", names.join(", "))
}

/// The platform of models that run in Python, which the setting `runner` names and no other one; `None` if
/// it is not built in.
pub(crate) fn runner_platform() -> Option<&'static str> {
    #[cfg(feature = "python")]
    return Some(tensorserve_python::NAME);
    #[cfg(not(feature = "python"))]
    None
}

/// The platform `name`, by its own or another name.
///
/// # Errors
/// The message for an unknown platform.
pub fn platform(name: &str) -> Result<&'static str, String> {
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name);
    let own = other.map_or(name, |(_, own)| *own);
    if let Some(known) = PLATFORMS.iter().find(|known| **known == own) {
        return Ok(known);
    }
    let (known, left_out) = (PLATFORMS.join(", "), left_out());
    Err(format!("platform {name:?} is unknown; the platforms are: {known}{left_out}"))
}
