//! TensorFlow Serving's configuration files without models: monitoring, TLS, sessions,
//! platforms. The others are the protocol's (`tensorserve_protocols::tfs::config`).

pub mod files;
