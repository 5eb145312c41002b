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

/// Declares the platforms, each with its feature.
macro_rules! platforms {
    ($($feature:literal: $name:literal,)*) => {
        /// The platforms that are built in.
        pub const PLATFORMS: &[&str] = &[$(#[cfg(feature = $feature)] $name,)*];

        /// The platforms that are not.
        const LEFT_OUT: &[&str] = &[$(#[cfg(not(feature = $feature))] $name,)*];
    };
}

platforms! {
    "tensorflow": "tensorflow",
    "onnx": "onnx",
    "mxnet": "mxnet",
    "tflite": "tflite",
    "openvino": "openvino",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "catboost": "catboost",
    "sklearn": "scikitlearn",
    "pmml": "pmml",
    "spark": "spark",
    "h2o": "h2o",
    "pytorch": "pytorch",
    "executorch": "executorch",
}

/// What a message about an unknown platform adds in a build without some of them, such as that of
/// `make run`; nothing in a build with all.
#[must_use]
pub fn left_out() -> String {
    match LEFT_OUT {
        [] => String::new(),
        names => {
            format!("; this build leaves out {}, which `make build` builds in", names.join(", "))
        }
    }
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
