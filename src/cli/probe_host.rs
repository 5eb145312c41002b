//! `tensorserve probe-host`: the process of load probes, when the server starts it again. The server passes it a socket
//! and the settings of the platforms; nobody else calls it.

use serde::{Deserialize, Serialize};

use super::logging;
use crate::config::environment::Environment;
use crate::config::{self, Config, Settings};
use crate::platforms;
use tensorserve_os as os;
use tensorserve_probe::run_host;
use tensorserve_tensor::error::Error;

/// The settings of the platforms that have a library, and the level of the log.
#[derive(Serialize, Deserialize)]
struct HostSettings {
    log_level: String,
    #[cfg(feature = "tensorflow")]
    tensorflow: config::TensorFlowConfig,
    #[cfg(feature = "onnx")]
    onnx: config::RuntimeConfig,
    #[cfg(feature = "tflite")]
    litert: config::RuntimeConfig,
    #[cfg(feature = "openvino")]
    openvino: config::RuntimeConfig,
    #[cfg(feature = "pytorch")]
    torch: config::TorchConfig,
    #[cfg(feature = "executorch")]
    executorch: config::TorchConfig,
}

/// The settings for a process of load probes that is started again, as [`run`] reads them. A path that is not UTF-8
/// cannot be passed on: then the text says so, and such a process refuses it.
pub(super) fn settings(config: &Config) -> String {
    let settings = HostSettings {
        log_level: log::max_level().as_str().to_lowercase(),
        #[cfg(feature = "tensorflow")]
        tensorflow: config.tensorflow.clone(),
        #[cfg(feature = "onnx")]
        onnx: config.onnx.clone(),
        #[cfg(feature = "tflite")]
        litert: config.litert.clone(),
        #[cfg(feature = "openvino")]
        openvino: config.openvino.clone(),
        #[cfg(feature = "pytorch")]
        torch: config.torch.clone(),
        #[cfg(feature = "executorch")]
        executorch: config.executorch.clone(),
    };
    serde_json::to_string(&settings).unwrap_or_else(|error| error.to_string())
}

/// Is the process of load probes until the server ends.
pub(super) fn run(environment: &Environment) -> ! {
    os::limit_malloc_arenas(os::server_arenas());
    os::keep_freed_memory(os::KEPT_BY_SERVER);
    os::exit_now(run_host(|settings| {
        let settings: HostSettings = serde_json::from_str(settings).map_err(|e| {
            Error::internal(format!("its settings cannot be passed on: {settings}")).with_source(e)
        })?;
        let mut of_log = Settings::default();
        of_log.server.log_level = Some(settings.log_level);
        logging::start(&of_log, environment, logging::LibraryLines::InLog);
        let config = Config::with_mistakes(Settings::default(), environment).0;
        let config = Config {
            #[cfg(feature = "tensorflow")]
            tensorflow: settings.tensorflow,
            #[cfg(feature = "onnx")]
            onnx: settings.onnx,
            #[cfg(feature = "tflite")]
            litert: settings.litert,
            #[cfg(feature = "openvino")]
            openvino: settings.openvino,
            #[cfg(feature = "pytorch")]
            torch: settings.torch,
            #[cfg(feature = "executorch")]
            executorch: settings.executorch,
            ..config
        };
        Ok(platforms::built_in(&config))
    }))
}
