//! Models that are evaluated here, without a runtime of their own: XGBoost, scikit-learn, PMML and
//! Spark. Each is read from its file into plain data, and a run is arithmetic on that.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(any(feature = "sklearn", feature = "xgboost"))]
pub mod pickle;
#[cfg(feature = "pmml")]
pub mod pmml;
#[cfg(feature = "sklearn")]
pub mod sklearn;
#[cfg(feature = "spark")]
pub mod spark;
#[cfg(feature = "xgboost")]
pub mod xgboost;
