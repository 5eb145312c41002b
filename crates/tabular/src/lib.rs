//! Models that are evaluated here, without the library that trained them: XGBoost, LightGBM, CatBoost,
//! scikit-learn, PMML, Spark and H2O. Each is read from its file into plain data, and a run is arithmetic
//! on that.
//!
//! Each platform has a Cargo feature. No code in a model file is executed.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
// Each platform uses a part of what they share.
#![cfg_attr(not(all(feature = "sklearn", feature = "spark", feature = "h2o")), allow(dead_code))]

pub use self::platform::FilePlatform;

#[cfg(feature = "catboost")]
pub mod catboost;
mod compared;
mod evaluated;
#[cfg(feature = "h2o")]
pub mod h2o;
#[cfg(any(feature = "sklearn", feature = "lightgbm", feature = "catboost"))]
mod labels;
#[cfg(feature = "lightgbm")]
pub mod lightgbm;
#[cfg(any(feature = "xgboost", feature = "lightgbm", feature = "catboost"))]
mod matrix;
#[cfg(any(feature = "xgboost", feature = "lightgbm", feature = "catboost"))]
mod model_files;
#[cfg(any(feature = "sklearn", feature = "spark"))]
mod murmur;
mod numeric;
#[cfg(feature = "pickle")]
pub mod pickle;
mod platform;
#[cfg(feature = "pmml")]
pub mod pmml;
mod refusal;
#[cfg(feature = "sklearn")]
pub mod sklearn;
#[cfg(feature = "spark")]
pub mod spark;
#[cfg(all(test, any(feature = "h2o", feature = "pickle", feature = "pmml", feature = "spark")))]
mod testing;
#[cfg(all(
    test,
    feature = "xgboost",
    feature = "lightgbm",
    feature = "catboost",
    feature = "sklearn"
))]
mod tests;
#[cfg(any(
    feature = "xgboost",
    feature = "lightgbm",
    feature = "sklearn",
    feature = "spark",
    feature = "h2o"
))]
mod trees;
#[cfg(feature = "xgboost")]
pub mod xgboost;
