//! Load for a server, and what it shows.
//!
//! [`plan`] says what is sent, when and on how many connections; [`run`](mod@run) does it on threads of its own and
//! returns [`results`]. Requests are bytes that the caller has made: nothing here knows what they mean, nor which
//! server answers them.
//!
//! A thread has one epoll instance, its share of the connections, and a timer ([`poller`]) that is exact to
//! microseconds: the wait of epoll itself counts milliseconds, and a request that is sent late would have a latency of
//! the client's making. In an open loop, latency counts from the moment at which a request was due, whether or not a
//! connection was free then: a server that stalls delays the requests behind the stall, and their wait is part of
//! what its clients see.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod compare;
mod connection;
mod cost;
mod grpc;
mod hpack;
mod load_thread;
mod pace;
pub mod plan;
mod poller;
pub mod ramp;
mod recorder;
pub mod report;
mod response;
pub mod results;
pub mod run;
mod socket;
mod spread;
pub mod summary;
