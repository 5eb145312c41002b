//! What the evaluators of models of tables share. XGBoost, LightGBM, CatBoost, scikit-learn, PMML, Spark and H2O each
//! read a model from its files into plain data, and a run is arithmetic on that: no library of theirs is needed, and no
//! code in a model file is executed.
//!
//! * [`FilePlatform`] is the platform of such a library, [`Evaluated`] a model that was read, [`ModelFiles`] finds its
//!   file, and [`ComparedVersions`] knows with which versions its answers were compared;
//! * [`trees`] is the forest that the trees of all libraries become; [`labels`], [`matrix`], [`numeric`] and [`murmur`]
//!   are parts of several evaluators;
//! * `spread` runs the rows of a large batch on several threads.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub use self::compared::{ComparedVersions, version_numbers};
pub use self::evaluated::{Evaluated, wrong_input_count};
pub use self::model_files::ModelFiles;
pub use self::platform::FilePlatform;

mod compared;
mod evaluated;
pub mod labels;
pub mod matrix;
mod model_files;
pub mod murmur;
pub mod numeric;
mod platform;
mod spread;
pub mod trees;
