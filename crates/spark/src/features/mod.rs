//! The stages that make features: indices of texts, vectors, scaled vectors, words.

pub(super) mod assemble;
pub(super) mod discretize;
pub(super) mod encode;
pub(super) mod expand;
pub(super) mod index;
mod java_regex;
mod murmur;
pub(super) mod scale;
pub(super) mod select;
pub(super) mod tokens;
pub(super) mod vector_index;
pub(super) mod words;
