//! Bodies of responses that hold the memory of their request until they are sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::vec;

use actix_web::body::{BodySize, MessageBody};
use actix_web::{HttpResponse, HttpResponseBuilder};
use bytes::Bytes;

use super::direct::{ConnectionWriter, PIECE};
use tensorserve_tensor::budget::RequestBudget;

/// A small body fits the buffers of its connection, and is written at once.
const SMALL_BODY: usize = 32 << 10;

/// Smaller parts are copied into the buffer of the connection: that costs less than another turn.
const WORTH_WRITING_DIRECTLY: usize = 128 << 10;

/// The response with this body, and `parts` behind it. `budget` is held until the body is sent. Large
/// parts go to the connection through `writer`, which responses to `HEAD` do not have.
pub(super) fn respond(
    response: &mut HttpResponseBuilder,
    body: Bytes,
    parts: Vec<Bytes>,
    budget: Option<RequestBudget>,
    writer: Option<&ConnectionWriter>,
) -> HttpResponse {
    let is_large = |part: &Bytes| part.len() >= WORTH_WRITING_DIRECTLY;
    let writer = writer.filter(|_| is_large(&body) || parts.iter().any(is_large)).cloned();
    let is_small = body.len() <= SMALL_BODY || budget.is_none();
    if parts.is_empty() && is_small && writer.is_none() {
        return response.body(body);
    }
    let length = body.len() + parts.iter().map(Bytes::len).sum::<usize>();
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    let mut size = BodySize::Sized(length);
    if writer.is_some() {
        // The library does not see all of the body.
        response.no_chunking(length);
        size = BodySize::Stream;
    }
    let parts = parts.into_iter();
    response.body(HeldBody { size, part: body, parts, writer, is_writing: false, budget })
}

struct HeldBody {
    size: BodySize,
    /// What is left of a part that the library copies.
    part: Bytes,
    /// What follows it.
    parts: vec::IntoIter<Bytes>,
    writer: Option<ConnectionWriter>,
    /// A part is being written.
    is_writing: bool,
    #[allow(dead_code)] // It is held, and returns the memory when dropped.
    budget: Option<RequestBudget>,
}

impl MessageBody for HeldBody {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        let this = &mut *self;
        if let Some(writer) = this.writer.as_ref().filter(|_| this.is_writing) {
            ready!(writer.poll_written(context))?;
            this.is_writing = false;
        }
        while this.part.is_empty() {
            let Some(part) = this.parts.next() else {
                return Poll::Ready(None);
            };
            this.part = part;
        }
        let is_large = this.part.len() >= WORTH_WRITING_DIRECTLY;
        if let Some(writer) = this.writer.as_ref().filter(|_| is_large) {
            writer.start(std::mem::take(&mut this.part));
            this.is_writing = true;
            // The library now writes what it holds, and the part behind it.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = this.part.len().min(PIECE);
        Poll::Ready(Some(Ok(this.part.split_to(piece))))
    }
}
