//! The stages that predict.

pub(super) mod bayes;
pub(super) mod clusters;
pub(super) mod factors;
pub(super) mod general;
pub(super) mod isotonic;
pub(super) mod linear;
pub(super) mod mixture;
pub(super) mod network;
pub(super) mod one_vs_rest;
pub(super) mod predict;
pub(super) mod trees;
