//! tensorserve: one native binary that serves machine-learning models in its own process.
//!
//! A request moves forward through a few hops, each a value: [`server`] routes it,
//! [`engine`] pins the model version, [`protocol`] decodes it (through [`codec`]) into
//! [`tensor`]s, [`repository`] checks it, [`batch`] runs it with others on a [`platform`]'s
//! executable, and the protocol writes the answer. `docs/architecture.md` is the map;
//! `tests/layering.rs` holds who may import whom.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod batch;
pub mod codec;
pub mod config;
pub mod engine;
pub mod error;
pub mod metrics;
pub mod os;
pub mod pb;
pub mod platform;
pub mod protocol;
pub mod repository;
pub mod tensor;
