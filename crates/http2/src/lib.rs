//! HTTP/2 connections of a server (RFC 9113): [`serve()`] reads requests from a stream of bytes and writes
//! their responses, within limits for everything that a client may do.
//!
//! This is for gRPC: there is neither push nor priority, and header compression (RFC 7541) is read, and
//! written without a table. A connection is one task, which owns all of its state; each call is another
//! one. Frames are read and written without a copy of large data, and all that is ready is written at
//! once.
//!
//! Limits: calls, their heads, and the bytes that they have sent and nobody has read; calls that are
//! taken back; calls that may not be made; clients that send nothing, do not read, or grant no window.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod call;
mod connection;
pub mod frame;
mod head;
pub mod hpack;
mod out;
mod serve;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

pub use call::{CallReset, RequestBody};
pub use serve::serve;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Http2Options {
    /// The most open calls.
    pub streams: u32,
    /// The most bytes of a head, counted as in RFC 9113, 6.5.2.
    pub head: u32,
    /// The most bytes that a client may send ahead of the handler of a call.
    pub stream_window: u32,
    /// And of all calls.
    pub connection_window: u32,
    /// The largest frame that a client may send: 16 KiB to 16 MiB.
    pub frame: u32,
    /// How long a client may take for its first bytes.
    pub preface_timeout: Duration,
    /// A client that sends nothing for so long is sent a ping,
    pub ping_after: Duration,
    /// and the connection ends if nothing arrives for so long then.
    pub ping_timeout: Duration,
    /// How long a client may take nothing of a response that waits for its windows.
    pub write_timeout: Duration,
    /// How long a client may pause once the listener ends.
    pub drain_pause: Duration,
}

/// The calls of a connection that were refused because its client has too many. After 1024 of them the client is
/// asked to leave, and after twice as many the connection ends. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct RefusedCalls(Arc<AtomicUsize>);

/// After so many refused calls a client is asked to leave.
const MOST_REFUSED: usize = 1024;

impl RefusedCalls {
    /// Counts a refused call.
    pub fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn are_many(&self) -> bool {
        self.0.load(Relaxed) >= MOST_REFUSED
    }

    fn are_too_many(&self) -> bool {
        self.0.load(Relaxed) >= 2 * MOST_REFUSED
    }
}
