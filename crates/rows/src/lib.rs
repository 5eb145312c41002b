//! An analysis of graphs: which values depend on which rows of a batch.
//!
//! Requests may be joined in a batch only if each row of the outputs comes from the same row of the inputs.
//! A graph is run here on [`Value`]s instead of tensors: what is known of a tensor for every batch. An
//! operation is a function from values to a value, or to a [`Stop`] where rows meet. The platforms have
//! a table of their operations that names these functions; an operation that is not in it is unknown.
//!
//! What the analysis relies on: requests that are joined have the same sizes in all dimensions but the
//! first; a run fails if shapes do not fit (then each request runs alone); and an operation in a
//! table computes the same for the same inputs, up to rounding.
//!
//! This crate knows no platform, and reads no files.
#![forbid(unsafe_code)]
// Functions name the values that they can follow, and refuse all others.
#![allow(clippy::wildcard_enum_match_arm)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod compute;
pub mod integers;
pub mod lists;
pub mod loops;
pub mod plain;
pub mod ragged;
pub mod shapes;
mod size;
pub mod slices;
pub mod strided;
mod value;
pub mod verdict;

pub use self::size::{Size, Symbols, product};
pub use self::value::{
    Flow, MAX_ELEMENTS, OperationResults, Outcome, Stop, TensorList, Value, mixed, unknown,
};
