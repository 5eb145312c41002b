//! What the program asks of the operating system directly: the C library (`ffi`), reads of files
//! that let others go first (`reads`), and how much memory there is ([`machine`]).
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod ffi;
pub mod machine;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod reads;

pub use self::ffi::*;
