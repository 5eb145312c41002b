//! Bodies of gRPC responses that hold the memory of their request until they are sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::vec;

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use tensorserve_protocol::grpc::{FollowingFields, MESSAGE_HEAD};
use tensorserve_tensor::budget::RequestBudget;

/// The body of a response.
pub(super) struct HeldBody {
    body: Body,
    /// The fields that follow the message.
    following: vec::IntoIter<Bytes>,
    has_message: bool,
    #[allow(dead_code)] // It is held, and returns the memory when dropped.
    budget: RequestBudget,
}

impl HeldBody {
    /// The body of a response, whose only message is not compressed if there are `following` fields.
    pub(super) fn new(
        body: Body,
        following: Option<FollowingFields>,
        budget: RequestBudget,
    ) -> Self {
        let FollowingFields(following) = following.unwrap_or(FollowingFields(Vec::new()));
        HeldBody { body, following: following.into_iter(), has_message: false, budget }
    }

    /// The message, whose head says that the fields belong to it.
    fn lengthened(&self, message: Bytes) -> Option<Bytes> {
        let more: usize = self.following.as_slice().iter().map(Bytes::len).sum();
        let mut message = BytesMut::from(message);
        let length = message.len().checked_sub(MESSAGE_HEAD)?.checked_add(more)?;
        let length = u32::try_from(length).ok()?;
        message.get_mut(1..MESSAGE_HEAD)?.copy_from_slice(&length.to_be_bytes());
        Some(message.freeze())
    }
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.has_message
            && let Some(field) = this.following.next()
        {
            return Poll::Ready(Some(Ok(Frame::data(field))));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if this.has_message || this.following.as_slice().is_empty() {
            return Poll::Ready(frame);
        }
        let message = match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(message))) => message,
            // An error in place of a message.
            Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(None),
        };
        this.has_message = true;
        let lengthened = this.lengthened(message).map(Frame::data);
        let too_large = || Status::internal("the response is longer than 4 GiB");
        Poll::Ready(Some(lengthened.ok_or_else(too_large)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.following.as_slice().is_empty() {
            true => self.body.size_hint(),
            false => SizeHint::default(),
        }
    }
}
