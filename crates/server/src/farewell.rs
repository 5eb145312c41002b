//! The end of connections whose clients keep making calls that they may not make.
//!
//! A call that a client may not make is refused, which costs the server more than the client. After many of them on a
//! connection its client gets a GOAWAY frame: the calls that it has are answered, and it makes no more there. A client
//! that goes on is cut off. The HTTP/2 library cannot do that for one connection, so the frame is put between two of
//! its own.
//!
//! Source: RFC 9113, sections 6.8 and 7.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The refused calls of a connection after which its client gets a GOAWAY frame; and after twice as many it is
/// cut off.
const MOST_REFUSED: usize = 1024;

/// A GOAWAY frame: 8 bytes for the connection; all calls so far may be answered; `ENHANCE_YOUR_CALM`.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11];

/// The calls of a connection that were refused because its client has too many. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct RefusedCalls(Arc<AtomicUsize>);

impl RefusedCalls {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Says farewell to the client of a connection.
#[derive(Default)]
pub(super) struct Farewell {
    refused: RefusedCalls,
    has_begun: bool,
    /// How many bytes of the frame are written.
    written: usize,
}

impl Farewell {
    pub(super) fn refused(&self) -> RefusedCalls {
        self.refused.clone()
    }

    /// The bytes to write next, before others.
    pub(super) fn bytes(&mut self, is_between_frames: bool) -> &[u8] {
        if !self.has_begun && (!is_between_frames || self.refused.0.load(Relaxed) < MOST_REFUSED) {
            return &[];
        }
        self.has_begun = true;
        GOAWAY.get(self.written..).unwrap_or_default()
    }

    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count;
    }

    /// Whether the client has been told.
    pub(super) fn is_said(&self) -> bool {
        self.written >= GOAWAY.len()
    }

    /// # Errors
    /// If the client has been told, and goes on.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_said() && self.refused.0.load(Relaxed) >= 2 * MOST_REFUSED {
            let why = "the client makes calls after a GOAWAY";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_between_two_frames_and_then_cut_off() {
        let mut farewell = Farewell::default();
        let refused = farewell.refused();
        (1..MOST_REFUSED).for_each(|_| refused.add());
        assert!(farewell.bytes(true).is_empty());
        refused.add();
        assert!(farewell.bytes(false).is_empty());
        assert_eq!(farewell.bytes(true), GOAWAY);
        farewell.wrote(5);
        assert_eq!(farewell.bytes(false), &GOAWAY[5..], "the rest comes before all else");
        (0..MOST_REFUSED).for_each(|_| refused.add());
        assert!(!farewell.is_said() && farewell.check().is_ok());
        farewell.wrote(12);
        assert!(farewell.is_said() && farewell.bytes(true).is_empty());
        assert!(farewell.check().is_err());
    }
}
