//! Sends responses: in turns, and within the windows that the client grants.

use bytes::Bytes;

use super::{Http2Connection, signed};
use crate::call::CallPart;
use crate::frame::END_STREAM;

/// The most data of a response before others have their turn.
const TURN: usize = 256 << 10;

/// So many bytes may wait to be written.
const WAITING: usize = 512 << 10;

impl Http2Connection {
    /// Takes what a call says.
    pub(crate) fn deliver(&mut self, number: u32, part: CallPart) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        match part {
            CallPart::Read(bytes) => {
                if !stream.is_complete {
                    stream.granted += signed(bytes);
                    self.out.window(number, bytes);
                }
            }
            CallPart::Head(block) => {
                (stream.has_response, stream.moved) = (true, self.tick);
                self.out.block(0, number, &block, self.largest);
            }
            CallPart::LastHead(block) => {
                self.out.block(END_STREAM, number, &block, self.largest);
                self.finish(number);
            }
            CallPart::Reset(reason) => {
                self.out.reset(number, reason);
                if let Some(stream) = self.streams.remove(&number) {
                    stream.finish();
                }
            }
            CallPart::Data(_) | CallPart::Trailers(_) | CallPart::End => {
                stream.queue.push_back(part);
                if stream.begins_to_wait() {
                    self.ready.push_back(number);
                }
            }
        }
    }

    /// Moves what may be sent to what is written.
    pub(crate) fn send_ready(&mut self) {
        while self.out.len() < WAITING
            && let Some(number) = self.ready.pop_front()
        {
            if self.send_turn(number) {
                self.ready.push_back(number);
            } else if let Some(stream) = self.streams.get_mut(&number) {
                stream.is_ready = false;
            }
            if self.window <= 0 && self.ready.iter().all(|number| self.waits_for_window(*number)) {
                return;
            }
        }
    }

    /// Whether the stream has data to send, for which there is no window.
    fn waits_for_window(&self, number: u32) -> bool {
        let stream = self.streams.get(&number);
        stream.is_some_and(
            |s| matches!(s.queue.front(), Some(CallPart::Data(data)) if !data.is_empty()),
        )
    }

    /// Sends parts of a response. Whether it has more to send, as soon as it is its turn again.
    fn send_turn(&mut self, number: u32) -> bool {
        let mut left = TURN;
        loop {
            let Some(stream) = self.streams.get_mut(&number) else { return false };
            match stream.queue.pop_front() {
                None => return false,
                Some(CallPart::Data(data)) if data.is_empty() => {}
                Some(CallPart::Data(mut data)) => {
                    let window = stream.window.min(self.window);
                    let most = usize::try_from(window).unwrap_or(0).min(self.largest).min(left);
                    if most == 0 {
                        let is_blocked = stream.window <= 0;
                        stream.queue.push_front(CallPart::Data(data));
                        return !is_blocked;
                    }
                    let part = data.split_to(most.min(data.len()));
                    if !data.is_empty() {
                        stream.queue.push_front(CallPart::Data(data));
                    }
                    let is_last = stream.queue.len() == 1
                        && matches!(stream.queue.front(), Some(CallPart::End));
                    let length = part.len();
                    left -= length;
                    self.window -= signed(length);
                    stream.window -= signed(length);
                    stream.moved = self.tick;
                    stream.call.written(length);
                    self.send_data(number, part, is_last);
                    if is_last {
                        return false;
                    }
                }
                Some(CallPart::Trailers(block)) => {
                    self.out.block(END_STREAM, number, &block, self.largest);
                    self.finish(number);
                    return false;
                }
                Some(CallPart::End) => {
                    self.send_data(number, Bytes::new(), true);
                    return false;
                }
                // Others do not wait.
                Some(
                    CallPart::Head(_)
                    | CallPart::LastHead(_)
                    | CallPart::Reset(_)
                    | CallPart::Read(_),
                ) => {}
            }
        }
    }

    fn send_data(&mut self, number: u32, data: Bytes, is_last: bool) {
        self.out.data(if is_last { END_STREAM } else { 0 }, number, data);
        if is_last {
            self.finish(number);
        }
    }

    /// Whether a client has taken nothing of a response for `ticks`, because it grants no window.
    pub(crate) fn is_blocked_for(&self, ticks: u32) -> bool {
        let is_old = |moved: u32| self.tick.wrapping_sub(moved) > ticks;
        let mut waiting = self.streams.values().filter(|s| s.has_response && !s.queue.is_empty());
        waiting.any(|stream| is_old(stream.moved) && (self.window <= 0 || stream.window <= 0))
    }
}
