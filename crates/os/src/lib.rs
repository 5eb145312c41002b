//! Direct calls of the operating system: the C library (`ffi`), the arenas of its allocator ([`arenas`]), file reads that let other threads
//! run in between (`reads`), files that others provide ([`files`]), forked processes ([`fork`]), memory
//! sizes ([`machine`]), shared memory ([`shared_memory`]), and redirections of stderr (`stderr`).
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod arenas;
mod cgroup;
mod ffi;
pub mod files;
pub mod fork;
pub mod machine;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod reads;
pub mod shared_memory;
mod stderr;

pub use self::ffi::*;
pub use self::stderr::*;
