//! Models of gradient boosting libraries, evaluated without the library that trained them: XGBoost, LightGBM and
//! CatBoost. Each has a Cargo feature.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(feature = "catboost")]
pub mod catboost;
#[cfg(feature = "lightgbm")]
pub mod lightgbm;
#[cfg(feature = "xgboost")]
pub mod xgboost;
