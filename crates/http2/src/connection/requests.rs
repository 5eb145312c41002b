//! The frames of calls: their heads, bodies and trailers, and their end.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use http::StatusCode;

use super::{
    ArrivedCall, BLOCK_FRAMES, Farewell, Http2Connection, OpenBlock, SMALL, TAKEN_BACK,
    TAKEN_BACK_AT_ONCE, signed, to_usize,
};
use crate::call::{CallState, RequestBody};
use crate::frame::{END_HEADERS, END_STREAM, EndReason, FrameHead, HEAD, PADDED, WITH_PRIORITY};
use crate::head::{CallHead, FieldList, ReadHead, response_block};
use crate::stream::OpenStream;

impl Http2Connection {
    pub(super) fn data_frame(
        &mut self,
        head: FrameHead,
        input: &mut BytesMut,
    ) -> Result<(), EndReason> {
        self.granted -= signed(head.length);
        if self.granted < 0 {
            return Err(EndReason::FlowControl);
        }
        let payload = input.get(HEAD..HEAD + head.length).unwrap_or_default();
        let (from, to) = without_padding(head, payload)?;
        let (length, is_last) = (to - from, head.has(END_STREAM));
        let unread = if length <= SMALL {
            let data = payload.get(from..to).unwrap_or_default();
            let unread = self.take_data(head, length, |call| call.small_data(data, is_last))?;
            input.advance(HEAD + head.length);
            unread
        } else {
            let data = input.split_to(HEAD + head.length).freeze().slice(HEAD + from..HEAD + to);
            self.take_data(head, length, |call| call.data(data, is_last))?
        };
        if unread > 0 {
            self.mailbox.release(unread);
        }
        Ok(())
    }

    /// Hands data of this length over to its call, which says whether it reads it. Returns how many bytes of the frame
    /// nobody will read.
    fn take_data(
        &mut self,
        head: FrameHead,
        length: usize,
        hand_over: impl FnOnce(&CallState) -> bool,
    ) -> Result<usize, EndReason> {
        let is_last = head.has(END_STREAM);
        let Some(stream) = self.known(head.stream)? else { return Ok(head.length) };
        stream.granted -= signed(head.length);
        let wrong = if stream.is_complete {
            Some(EndReason::StreamClosed)
        } else if stream.granted < 0 {
            Some(EndReason::FlowControl)
        } else if !stream.counts(length, is_last) {
            Some(EndReason::Protocol)
        } else {
            None
        };
        if let Some(reason) = wrong {
            self.end_with_error(head.stream, reason);
            return Ok(head.length);
        }
        let padding = head.length - length;
        stream.is_complete = is_last;
        stream.granted += signed(padding);
        // A part without data is no reason to wake anybody.
        let is_read = length == 0 && !is_last || hand_over(&stream.call);
        if padding > 0 && !is_last {
            self.out.window(head.stream, padding);
        }
        Ok(if is_read { padding } else { head.length })
    }

    pub(super) fn headers_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), EndReason> {
        if head.stream.is_multiple_of(2) {
            return Err(EndReason::Protocol);
        }
        let (mut from, to) = without_padding(head, payload)?;
        if head.has(WITH_PRIORITY) {
            from += 5;
        }
        let bytes = payload.get(from..to).ok_or(EndReason::FrameSize)?;
        let is_last = head.has(END_STREAM);
        if head.has(END_HEADERS) {
            return self.block(head.stream, is_last, bytes);
        }
        let bytes = bytes.to_vec();
        self.block = Some(OpenBlock { stream: head.stream, is_last, bytes, frames: 1 });
        Ok(())
    }

    pub(super) fn continuation_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), EndReason> {
        let Some(block) = &mut self.block else { return Err(EndReason::Protocol) };
        block.frames += 1;
        let most = 2 * to_usize(self.options.head);
        if block.frames > BLOCK_FRAMES || block.bytes.len() + payload.len() > most {
            return Err(EndReason::EnhanceYourCalm);
        }
        block.bytes.extend_from_slice(payload);
        if head.has(END_HEADERS)
            && let Some(block) = self.block.take()
        {
            return self.block(block.stream, block.is_last, &block.bytes);
        }
        Ok(())
    }

    /// A block of fields is complete: the head of a request, or trailers.
    fn block(&mut self, stream: u32, is_last: bool, bytes: &[u8]) -> Result<(), EndReason> {
        let before = self.decoder.changes();
        if stream > self.last
            && let Some(head) = self.last_head.repeated(bytes, before)
        {
            return self.request(stream, is_last, ReadHead::Request(head));
        }
        let (mut list, most) = (FieldList::default(), to_usize(self.options.head));
        if bytes.len() > 2 * most {
            return Err(EndReason::EnhanceYourCalm);
        }
        let decoded = self.decoder.decode(bytes, |field| list.take(field, most));
        decoded.map_err(|_| EndReason::Compression)?;
        if stream <= self.last {
            return self.trailers(stream, is_last, list);
        }
        let head = list.into_request(most);
        if let ReadHead::Request(head) = &head
            && self.decoder.changes() == before
        {
            self.last_head.keep(bytes, before, head);
        }
        self.request(stream, is_last, head)
    }

    /// A request begins.
    fn request(&mut self, stream: u32, is_last: bool, head: ReadHead) -> Result<(), EndReason> {
        self.last = stream;
        if self.farewell == Farewell::Last {
            return Ok(());
        }
        if self.streams.len() >= to_usize(self.options.streams) {
            self.out.reset(stream, EndReason::RefusedStream);
            return self.fault();
        }
        match head {
            ReadHead::Request(head) => self.open(stream, is_last, head),
            ReadHead::TooLarge => {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                let block = response_block(status, &http::HeaderMap::new());
                self.out.block(END_STREAM, stream, &block, self.largest);
                if !is_last {
                    self.out.reset(stream, EndReason::NoError);
                }
                self.fault()
            }
            ReadHead::Malformed => {
                self.out.reset(stream, EndReason::Protocol);
                self.fault()
            }
        }
    }

    fn open(&mut self, stream: u32, is_last: bool, head: CallHead) -> Result<(), EndReason> {
        let (call, mailbox) = (Arc::new(CallState::default()), Arc::clone(&self.mailbox));
        let window = self.options.stream_window;
        let body = RequestBody::new(Arc::clone(&call), mailbox, stream, window);
        let mut open =
            OpenStream::new(Arc::clone(&call), window, head.length, self.initial, self.tick);
        if is_last {
            if !open.counts(0, true) {
                self.out.reset(stream, EndReason::Protocol);
                return self.fault();
            }
            open.is_complete = true;
            call.complete(None);
        }
        self.streams.insert(stream, open);
        self.arrived.push_back(ArrivedCall { stream, call, request: head.request(body) });
        Ok(())
    }

    fn trailers(&mut self, stream: u32, is_last: bool, list: FieldList) -> Result<(), EndReason> {
        let most = to_usize(self.options.head);
        // Those of a call that has ended may have been on their way.
        let Some(open) = self.known(stream)? else { return self.fault() };
        if open.is_complete {
            self.end_with_error(stream, EndReason::StreamClosed);
            return self.fault();
        }
        if !is_last || !open.counts(0, true) || !list.are_trailers(most) {
            self.end_with_error(stream, EndReason::Protocol);
            return self.fault();
        }
        open.is_complete = true;
        open.call.complete(Some(list.into_trailers()));
        Ok(())
    }

    pub(super) fn reset_frame(&mut self, head: FrameHead) -> Result<(), EndReason> {
        if head.length != 4 {
            return Err(EndReason::FrameSize);
        }
        self.known(head.stream)?;
        let Some(open) = self.streams.remove(&head.stream) else { return Ok(()) };
        if !open.has_begun() {
            self.taken_back_at_once += 1;
        }
        if !open.has_response {
            self.taken_back += 1;
        }
        match self.taken_back > TAKEN_BACK || self.taken_back_at_once > TAKEN_BACK_AT_ONCE {
            true => Err(EndReason::EnhanceYourCalm),
            false => Ok(()),
        }
    }
}

/// Where the payload is without its padding.
fn without_padding(head: FrameHead, payload: &[u8]) -> Result<(usize, usize), EndReason> {
    if head.stream == 0 {
        return Err(EndReason::Protocol);
    }
    if !head.has(PADDED) {
        return Ok((0, payload.len()));
    }
    let padding = payload.first().ok_or(EndReason::FrameSize)?;
    let to = payload.len().checked_sub(usize::from(*padding)).filter(|to| *to > 0);
    Ok((1, to.ok_or(EndReason::Protocol)?))
}
