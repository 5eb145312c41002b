//! The platforms that are built in. Each is a Cargo feature; their names are in
//! [`crate::config`].

use std::sync::Arc;

use tensorserve_platform::{Platform, Platforms};

use crate::config::Config;

/// The platforms that are built in, in the order in which they are tried on a model. They load
/// their libraries later.
#[must_use]
pub fn built_in(config: &Config) -> Platforms {
    #[cfg_attr(not(feature = "python"), allow(unused_mut))]
    let mut all = of_models(config);
    // Not among those that users can name: the setting `runner` chooses it.
    #[cfg(feature = "python")]
    {
        let workers = tensorserve_workers::Workers::new(config.workers.clone());
        all.push(Arc::new(tensorserve_python::Python::new(workers)).platform());
    }
    tensorserve_mlflow::platforms(all)
}

/// `platforms`, whose SavedModels can run on OpenVINO, too.
#[must_use]
pub fn with_engines(platforms: Platforms) -> Platforms {
    #[cfg(feature = "openvino")]
    return tensorserve_engines::with_engines(platforms);
    #[cfg(not(feature = "openvino"))]
    platforms
}

/// The platforms of models, without what may be around them.
fn of_models(config: &Config) -> Vec<Platform> {
    let mut all: Vec<Platform> = Vec::new();
    #[cfg(feature = "tensorflow")]
    all.push(
        Arc::new(tensorserve_tensorflow::TensorFlow::new(config.tensorflow.clone())).platform(),
    );
    #[cfg(feature = "onnx")]
    let onnx = Arc::new(tensorserve_onnx::Onnx::new(config.onnx.clone()));
    #[cfg(feature = "onnx")]
    all.push(Arc::clone(&onnx).platform());
    #[cfg(feature = "mxnet")]
    all.push(Arc::new(tensorserve_onnx::mxnet::MxNet::new(onnx)).platform());
    #[cfg(feature = "tflite")]
    all.push(Arc::new(tensorserve_litert::LiteRt::new(config.litert.clone())).platform());
    #[cfg(feature = "openvino")]
    all.push(Arc::new(tensorserve_openvino::OpenVino::new(config.openvino.clone())).platform());
    #[cfg(feature = "xgboost")]
    all.push(tensorserve_boosters::xgboost::XGBOOST.platform());
    // Before scikit-learn, which takes any pickle.
    #[cfg(feature = "lightgbm")]
    all.push(tensorserve_boosters::lightgbm::LIGHTGBM.platform());
    #[cfg(feature = "catboost")]
    all.push(tensorserve_boosters::catboost::CATBOOST.platform());
    #[cfg(feature = "sklearn")]
    all.push(tensorserve_sklearn::SCIKIT_LEARN.platform());
    #[cfg(feature = "pmml")]
    all.push(tensorserve_pmml::PMML.platform());
    #[cfg(feature = "spark")]
    all.push(tensorserve_spark::SPARK.platform());
    #[cfg(feature = "h2o")]
    all.push(tensorserve_h2o::H2O.platform());
    #[cfg(feature = "pytorch")]
    all.push(Arc::new(tensorserve_torch::Torch::new(config.torch.clone())).platform());
    #[cfg(feature = "executorch")]
    all.push(
        Arc::new(tensorserve_torch::executorch::ExecuTorch::new(config.executorch.clone()))
            .platform(),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PLATFORMS, Settings, environment::Environment};

    #[test]
    fn the_platforms_that_users_can_name_are_those_that_are_built_in() {
        let config = Config::new(Settings::default(), &Environment::default()).expect("valid");
        let platforms = of_models(&config);
        let names: Vec<&str> = platforms.iter().map(|platform| platform.info.name).collect();
        assert_eq!(names, PLATFORMS);
    }
}
