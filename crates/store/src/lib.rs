//! Models in object stores and on web servers, mirrored into a bounded folder.
//!
//! A [`StoreMirror`] lists locations, and downloads what is asked for: in parallel, verified, and renamed
//! into place as a whole. It knows files and stores, but neither models nor versions: its user looks
//! for models in a tree of names, and asks for directories of it.
//!
//! [`objects`] reads and writes many objects, in stores and in folders alike.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod cache;
mod client;
mod config;
mod connect;
mod download;
mod errors;
mod listing;
mod location;
mod mirror;
pub mod objects;
mod profile;
mod redirects;
mod source;
#[cfg(test)]
mod testing;
mod transport;
mod watch;

pub use self::cache::CacheLease;
pub use self::config::{StoreConfig, is_variable};
pub use self::location::{Location, StoreKind, is_location};
pub use self::mirror::StoreMirror;
pub use self::source::Tree;
pub use self::watch::{Fetch, Listed, SourceReport};
