//! TensorFlow Serving's configuration files: protobuf in its text format.
//!
//! [`text`] reads any of them; [`models`] turns the list of models into sources, [`batching`] and
//! [`files`] the others into settings. Which file is named by which flag is the command line's
//! business.

pub mod batching;
pub mod files;
pub mod models;
mod text;
