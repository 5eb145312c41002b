//! What has been read of an object and not yet been handed out.

use std::io::{self, ErrorKind, Read};

use bytes::{Buf, Bytes, BytesMut};
use tensorserve_tensor::error::{Code, Error, Result};

/// How many bytes are read at once: few enough to stay in a core's cache from being cleared to being
/// read and searched.
const BLOCK: usize = 256 << 10;

/// The smallest allocation.
const MIN_AHEAD: usize = 1 << 20;

/// The largest allocation that a chunk's size alone justifies, before its bytes have been read.
const MAX_AHEAD: usize = 8 << 20;

pub(super) struct Input<R> {
    source: R,
    buffer: BytesMut,
    /// Where the buffer starts in the object.
    offset: u64,
    /// How much of a new allocation to reserve, so that one chunk's bytes need no second one.
    ahead: usize,
    state: InputState,
}

enum InputState {
    Reading,
    /// The source failed; what was read before is in the buffer.
    Failed(Error),
    Ended,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        let state = InputState::Reading;
        Input { source, buffer: BytesMut::new(), offset: 0, ahead: MIN_AHEAD, state }
    }

    pub(super) fn set_offset(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Where the byte `at` of the buffer is in the object.
    pub(super) fn offset_of(&self, at: usize) -> u64 {
        self.offset.saturating_add(at as u64)
    }

    /// Expects chunks of about `bytes`.
    pub(super) fn expect(&mut self, bytes: usize) {
        self.ahead = bytes.clamp(MIN_AHEAD, MAX_AHEAD);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// The buffer's bytes from `start` to before `end`; none if it has not that many.
    pub(super) fn slice(&self, start: usize, end: usize) -> &[u8] {
        self.buffer.get(start..end).unwrap_or_default()
    }

    /// Reads a block more into the buffer; false at the end of the source. The block is full unless
    /// the source ends or fails, however few bytes the source gives at once.
    pub(super) fn more(&mut self) -> Result<bool> {
        match &self.state {
            InputState::Reading => {}
            InputState::Failed(error) => return Err(error.duplicate()),
            InputState::Ended => return Ok(false),
        }
        let before = self.buffer.len();
        if self.buffer.capacity() - before < BLOCK {
            self.buffer.reserve(self.ahead);
        }
        self.buffer.resize(before + BLOCK, 0);
        let mut filled = before;
        while let Some(free) = self.buffer.get_mut(filled..).filter(|free| !free.is_empty()) {
            match self.source.read(free) {
                Ok(0) => {
                    self.state = InputState::Ended;
                    break;
                }
                // No reader may claim more than there was space for.
                Ok(count) => filled = filled.saturating_add(count).min(before + BLOCK),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let at = self.offset_of(filled);
                    self.state = InputState::Failed(read_error(error, at));
                    break;
                }
            }
        }
        self.buffer.truncate(filled);
        match &self.state {
            InputState::Failed(error) if filled == before => Err(error.duplicate()),
            InputState::Reading | InputState::Failed(_) | InputState::Ended => Ok(filled > before),
        }
    }

    /// Reads until the buffer has `count` bytes; false if the source ends before.
    pub(super) fn fill_to(&mut self, count: usize) -> Result<bool> {
        while self.buffer.len() < count {
            if !self.more()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Forgets the first `count` bytes.
    pub(super) fn skip(&mut self, count: usize) {
        let count = count.min(self.buffer.len());
        self.buffer.advance(count);
        self.offset = self.offset.saturating_add(count as u64);
    }

    /// Takes the first `count` bytes out, without a copy.
    pub(super) fn take(&mut self, count: usize) -> Bytes {
        let count = count.min(self.buffer.len());
        self.offset = self.offset.saturating_add(count as u64);
        self.buffer.split_to(count).freeze()
    }
}

/// The error of a source at byte `at` of the object.
pub(crate) fn read_error(error: io::Error, at: u64) -> Error {
    let context = format!("the object cannot be read at byte {at}");
    // A store's own error, which says more than its kind.
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return inner.duplicate().context(context);
    }
    // A decompressing source reports corrupt data with these kinds.
    let is_corrupt = matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof);
    let code = if is_corrupt { Code::DataLoss } else { Code::of_io(&error) };
    Error::new(code, format!("{context}: {error}")).with_source(error)
}
