//! Bodies of responses that hold the memory of their request until they are sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use actix_web::body::{BodySize, MessageBody};
use actix_web::{HttpResponse, HttpResponseBuilder};
use bytes::Bytes;

use tensorserve_tensor::budget::RequestBudget;

/// A small body fits the buffers of its connection, and is written at once.
const SMALL_BODY: usize = 32 << 10;

/// The response with this body, and `parts` behind it. `budget` is held until the body is sent.
pub(super) fn respond(
    response: &mut HttpResponseBuilder,
    body: Bytes,
    parts: Vec<Bytes>,
    budget: Option<RequestBudget>,
) -> HttpResponse {
    if parts.is_empty() && (budget.is_none() || body.len() <= SMALL_BODY) {
        return response.body(body);
    }
    response.body(HeldBody { body, parts: parts.into_iter(), budget })
}

/// The HTTP library copies a body into the buffer of its connection, in pieces of this size between
/// which other connections get their turn. An image of 224 x 224 x 3 floats is one piece: each more costs a
/// buffer and a system call.
const PIECE: usize = 640 << 10;

struct HeldBody {
    body: Bytes,
    /// What follows it.
    parts: vec::IntoIter<Bytes>,
    #[allow(dead_code)] // It is held, and returns the memory when dropped.
    budget: Option<RequestBudget>,
}

impl MessageBody for HeldBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        let parts: usize = self.parts.as_slice().iter().map(Bytes::len).sum();
        BodySize::Sized(u64::try_from(self.body.len() + parts).unwrap_or(u64::MAX))
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        while self.body.is_empty()
            && let Some(next) = self.parts.next()
        {
            self.body = next;
        }
        let piece = self.body.len().min(PIECE);
        let piece = (piece > 0).then(|| Ok(self.body.split_to(piece)));
        Poll::Ready(piece)
    }
}
