//! What a connection writes.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::frame::{self, EndReason};

/// Data of up to this size is copied next to the frames around it, so that they are one piece.
const SMALL: usize = 2 << 10;

/// A buffer of this size is not kept.
const LARGE: usize = 64 << 10;

/// The bytes that wait to be written: pieces of data, and what comes before and behind them.
#[derive(Default)]
pub(crate) struct WriteQueue {
    pieces: VecDeque<Bytes>,
    /// Behind the pieces.
    tail: Vec<u8>,
    /// How much of the tail is written, while there are no pieces.
    written: usize,
    waiting: usize,
}

impl WriteQueue {
    /// The bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        frame::write(&mut self.tail, kind, flags, stream, payload);
        self.waiting += frame::HEAD + payload.len();
    }

    pub(crate) fn reset(&mut self, stream: u32, reason: EndReason) {
        self.frame(frame::RESET, 0, stream, &(reason as u32).to_be_bytes());
    }

    pub(crate) fn window(&mut self, stream: u32, bytes: usize) {
        if let Ok(bytes) = u32::try_from(bytes) {
            self.frame(frame::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
        }
    }

    /// A block of fields, in as many frames as it needs.
    pub(crate) fn block(&mut self, flags: u8, stream: u32, block: &[u8], most: usize) {
        let mut parts = block.chunks(most.max(1)).peekable();
        let (mut kind, mut flags) = (frame::HEADERS, flags);
        loop {
            let part = parts.next().unwrap_or_default();
            if parts.peek().is_none() {
                return self.frame(kind, flags | frame::END_HEADERS, stream, part);
            }
            self.frame(kind, flags, stream, part);
            (kind, flags) = (frame::CONTINUATION, 0);
        }
    }

    /// A part of a response.
    pub(crate) fn data(&mut self, flags: u8, stream: u32, data: Bytes) {
        frame::write_head(&mut self.tail, data.len(), frame::DATA, flags, stream);
        self.waiting += frame::HEAD + data.len();
        if data.len() <= SMALL {
            self.tail.extend_from_slice(&data);
            return;
        }
        let mut tail = Bytes::from(std::mem::take(&mut self.tail));
        tail.advance(std::mem::take(&mut self.written));
        self.pieces.extend([tail, data]);
    }

    /// Fills `slices` with what comes next, and returns how many of them.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = self.tail.get(self.written..).unwrap_or_default();
        let all = self.pieces.iter().map(|piece| &piece[..]).chain([tail]);
        let all = all.filter(|piece| !piece.is_empty());
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(all) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// The first `count` bytes are written.
    pub(crate) fn advance(&mut self, mut count: usize) {
        self.waiting = self.waiting.saturating_sub(count);
        while let Some(piece) = self.pieces.front_mut() {
            let of_piece = count.min(piece.len());
            piece.advance(of_piece);
            count -= of_piece;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.written += count;
        if self.written >= self.tail.len() {
            self.written = 0;
            self.tail.clear();
            if self.tail.capacity() > LARGE {
                self.tail = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &WriteQueue) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 8];
        let count = queue.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn bytes_come_in_their_order_however_they_are_written() {
        for step in [1, 2, 7, 100, 3000, 100_000] {
            let mut queue = WriteQueue::default();
            queue.frame(frame::PING, 0, 0, &[7; 8]);
            queue.data(0, 1, Bytes::from(vec![1; SMALL]));
            queue.data(0, 3, Bytes::from(vec![2; SMALL + 1]));
            let mut written = Vec::new();
            let first = next(&queue);
            let count = step.min(first.len());
            written.extend_from_slice(&first[..count]);
            queue.advance(count);
            queue.data(0, 5, Bytes::from(vec![3; 10 * SMALL]));
            queue.block(frame::END_STREAM, 5, &[9; 20], 10);
            while queue.len() > 0 {
                let bytes = next(&queue);
                let count = step.min(bytes.len());
                written.extend_from_slice(&bytes[..count]);
                queue.advance(count);
            }
            let mut expected = Vec::new();
            frame::write(&mut expected, frame::PING, 0, 0, &[7; 8]);
            frame::write(&mut expected, frame::DATA, 0, 1, &[1; SMALL]);
            frame::write(&mut expected, frame::DATA, 0, 3, &[2; SMALL + 1]);
            frame::write(&mut expected, frame::DATA, 0, 5, &[3; 10 * SMALL]);
            frame::write(&mut expected, frame::HEADERS, frame::END_STREAM, 5, &[9; 10]);
            frame::write(&mut expected, frame::CONTINUATION, frame::END_HEADERS, 5, &[9; 10]);
            assert_eq!(written, expected, "{step}");
            assert!(next(&queue).is_empty());
        }
    }
}
