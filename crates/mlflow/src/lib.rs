//! MLflow's model folders: a file `MLmodel` describes a model and its signature, and lies beside the
//! model's data.
//!
//! * [`model_file`](self) reads `MLmodel` ([`MlflowModel`]), with its [`schema`] of inputs and its
//!   [`flavor`], which determines the platform and the path of the data;
//! * [`platforms`] makes platforms load such folders.
//!
//! Source: `mlflow/models/model.py` and the `save_model` of each flavor.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod flavor;
mod model_file;
mod platform;
pub mod schema;
mod yaml;

pub use self::flavor::Flavor;
pub use self::model_file::{MlflowModel, is_served};
pub use self::platform::platforms;
