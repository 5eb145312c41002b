//! What is sent, when, and on how many connections.

use std::net::SocketAddr;
use std::time::Duration;

use tensorserve_tensor::error::{Error, Result};

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Closed loop: each connection sends, waits for the response, and sends again.
    Closed,
    /// Open loop: this many a second, at even distances.
    Fixed(f64),
    /// Open loop: this many a second on average, independent of each other, as those of many clients are.
    Poisson(f64),
}

impl Arrivals {
    /// Requests a second, of an open loop.
    #[must_use]
    pub fn rate(self) -> Option<f64> {
        match self {
            Arrivals::Closed => None,
            Arrivals::Fixed(rate) | Arrivals::Poisson(rate) => Some(rate),
        }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The server.
    pub address: SocketAddr,
    /// The requests, each with its head, as they are sent: one after the other, from the first again after the last.
    pub requests: Vec<Vec<u8>>,
    /// When they are sent.
    pub arrivals: Arrivals,
    /// Connections, and so the most requests that are in flight at a time.
    pub connections: usize,
    /// Threads, at most one for each connection.
    pub threads: usize,
    /// Requests that are due in this time, first of all, are sent and not counted.
    pub warm_up: Duration,
    /// The time that is measured.
    pub duration: Duration,
    /// A request without a complete response after this time, from when it was sent, has failed.
    pub timeout: Duration,
    /// Ends the run before `duration` has passed, once the quantiles are steady.
    pub until_steady: bool,
}

/// The most connections: more than a process may have descriptors for.
const MOST_CONNECTIONS: usize = 100_000;

/// The longest run, whose nanoseconds every counter holds.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// The highest rate: two requests are at least a nanosecond apart.
const HIGHEST_RATE: f64 = 1e9;

impl LoadPlan {
    /// Checks the numbers.
    ///
    /// # Errors
    /// If one of them makes no run.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(what.to_owned()));
        if self.requests.is_empty() {
            return wrong("there is no request to send");
        }
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            return wrong("the number of connections must be from 1 to 100000");
        }
        if self.threads == 0 {
            return wrong("there must be at least one thread");
        }
        if let Some(rate) = self.arrivals.rate()
            && !(rate > 0.0 && rate <= HIGHEST_RATE)
        {
            return wrong("the rate must be above 0 and at most 1e9 requests a second");
        }
        if self.duration.is_zero() || self.duration > LONGEST || self.warm_up > LONGEST {
            return wrong("the duration must be above 0 and at most 7 days");
        }
        if self.timeout.is_zero() || self.timeout > LONGEST {
            return wrong("the timeout must be above 0 and at most 7 days");
        }
        Ok(())
    }

    /// The length of a window, over which counts are kept together: short runs have twenty, too.
    pub(crate) fn window(&self) -> Duration {
        (self.duration / 20).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}
