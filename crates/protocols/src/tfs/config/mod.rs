//! TensorFlow Serving's configuration files: protobuf in its text format.
//!
//! [`text`] reads any of them; [`models`] turns the list of models into sources, [`batching`] the
//! parameters of batching into ours. Which file is named by which flag is the command line's
//! business, as are the files that say nothing of models.

pub mod batching;
pub mod models;
pub mod text;
