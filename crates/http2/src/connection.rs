//! The state of a connection (RFC 9113): what the frames of the client do, without any input or output. Those of calls
//! are in [`requests`], and responses in [`sending`].

mod requests;
mod sending;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use http::Request;
use tokio::task::AbortHandle;

use crate::Http2Options;
use crate::call::{CallState, Mailbox, RequestBody};
use crate::frame::{
    ACK, CONTINUATION, DATA, DEFAULT_FRAME, DEFAULT_WINDOW, ENABLE_PUSH, EndReason, FrameHead,
    GO_AWAY, HEAD, HEADERS, INITIAL_WINDOW_SIZE, LARGEST_FRAME, LARGEST_WINDOW,
    MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, PING, PREFACE, PRIORITY,
    PUSH_PROMISE, RESET, SETTINGS, WINDOW_UPDATE, number, write_setting,
};
use crate::head::LastHead;
use crate::hpack::HpackDecoder;
use crate::out::WriteQueue;
use crate::stream::OpenStream;

/// Calls that a client may begin and take back before they are answered: among the frames that arrive together, and
/// one after another without any that is answered.
const TAKEN_BACK_AT_ONCE: usize = 20;
const TAKEN_BACK: usize = 1024;

/// Calls that a client may make though it may not: they are malformed, or too many.
const FAULTS: usize = 1024;

/// The most frames of a block of fields. Empty ones cost work, too.
const BLOCK_FRAMES: usize = 32;

/// A part of a request of up to this size is copied, so that the buffer it came in can be used again, and many of them
/// take no more memory than they have bytes.
const SMALL: usize = 2 << 10;

/// What the PING has whose response shows that the client knows of the end.
const LAST_PING: [u8; 8] = *b"farewell";

/// A call that has arrived.
pub(crate) struct ArrivedCall {
    pub(crate) stream: u32,
    pub(crate) call: Arc<CallState>,
    pub(crate) request: Request<RequestBody>,
}

/// A block of fields that is not complete.
struct OpenBlock {
    stream: u32,
    is_last: bool,
    bytes: Vec<u8>,
    frames: usize,
}

/// How far the end of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    None,
    /// The client is asked to make no more calls. Those that it makes until it knows are answered.
    Asked,
    /// It knows; later calls are ignored.
    Last,
}

/// The state of a connection.
pub(crate) struct Http2Connection {
    pub(crate) options: Http2Options,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) out: WriteQueue,
    decoder: HpackDecoder,
    last_head: LastHead,
    has_preface: bool,
    has_settings: bool,
    pub(crate) streams: HashMap<u32, OpenStream>,
    /// The highest stream so far.
    last: u32,
    block: Option<OpenBlock>,
    arrived: VecDeque<ArrivedCall>,
    /// How many bytes the client may still send.
    granted: i64,
    /// How many bytes the client still takes, and of a new stream; and the largest frame that it takes.
    pub(crate) window: i64,
    initial: i64,
    pub(crate) largest: usize,
    /// Streams that may send something.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) tick: u32,
    taken_back: usize,
    taken_back_at_once: usize,
    faults: usize,
    farewell: Farewell,
    is_sent_away: bool,
}

impl Http2Connection {
    /// A new connection, which has its settings to send.
    pub(crate) fn new(options: Http2Options) -> Self {
        let mut connection = Http2Connection {
            options,
            mailbox: Arc::new(Mailbox::new(options.connection_window)),
            out: WriteQueue::default(),
            decoder: HpackDecoder::default(),
            last_head: LastHead::default(),
            has_preface: false,
            has_settings: false,
            streams: HashMap::new(),
            last: 0,
            block: None,
            arrived: VecDeque::new(),
            granted: i64::from(DEFAULT_WINDOW),
            window: i64::from(DEFAULT_WINDOW),
            initial: i64::from(DEFAULT_WINDOW),
            largest: to_usize(DEFAULT_FRAME),
            ready: VecDeque::new(),
            tick: 0,
            taken_back: 0,
            taken_back_at_once: 0,
            faults: 0,
            farewell: Farewell::None,
            is_sent_away: false,
        };
        connection.begin();
        connection
    }

    fn begin(&mut self) {
        let mut settings = Vec::new();
        let options = &self.options;
        write_setting(&mut settings, MAX_CONCURRENT_STREAMS, options.streams);
        write_setting(&mut settings, INITIAL_WINDOW_SIZE, options.stream_window);
        write_setting(&mut settings, MAX_FRAME_SIZE, options.frame);
        write_setting(&mut settings, MAX_HEADER_LIST_SIZE, options.head);
        self.out.frame(SETTINGS, 0, 0, &settings);
        let more = options.connection_window.saturating_sub(DEFAULT_WINDOW);
        self.grant(to_usize(more));
    }

    /// The client may send so many bytes more.
    fn grant(&mut self, bytes: usize) {
        if bytes > 0 {
            self.granted += signed(bytes);
            self.out.window(0, bytes);
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_preface
    }

    /// Updates the window of the connection if handlers have read enough.
    pub(crate) fn release(&mut self) {
        if let Some(bytes) = self.mailbox.take_released() {
            self.grant(bytes);
        }
    }

    /// Reads the frames that are complete, and leaves the rest of `input`. Returns how many bytes the next frame
    /// still needs.
    ///
    /// # Errors
    /// If the connection has to end.
    pub(crate) fn receive(&mut self, input: &mut BytesMut) -> Result<usize, EndReason> {
        self.taken_back_at_once = 0;
        if !self.has_preface {
            let known = input.len().min(PREFACE.len());
            if input.get(..known) != PREFACE.get(..known) {
                return Err(EndReason::Protocol);
            }
            if known < PREFACE.len() {
                return Ok(PREFACE.len() - known);
            }
            input.advance(known);
            self.has_preface = true;
        }
        while let Some(head) = FrameHead::read(input) {
            if head.length > to_usize(self.options.frame) {
                return Err(EndReason::FrameSize);
            }
            if let Some(missing) = (HEAD + head.length).checked_sub(input.len())
                && missing > 0
            {
                return Ok(missing);
            }
            self.frame(head, input)?;
        }
        Ok(HEAD.saturating_sub(input.len()))
    }

    /// Reads a frame, which is at the start of `input`, and removes it.
    fn frame(&mut self, head: FrameHead, input: &mut BytesMut) -> Result<(), EndReason> {
        let is_expected = match &self.block {
            Some(block) => head.kind == CONTINUATION && head.stream == block.stream,
            None => self.has_settings || head.kind == SETTINGS && !head.has(ACK),
        };
        if !is_expected {
            return Err(EndReason::Protocol);
        }
        if head.kind == DATA {
            return self.data_frame(head, input);
        }
        let payload = input.get(HEAD..HEAD + head.length).unwrap_or_default();
        match head.kind {
            HEADERS => self.headers_frame(head, payload)?,
            CONTINUATION => self.continuation_frame(head, payload)?,
            RESET => self.reset_frame(head)?,
            SETTINGS => self.settings_frame(head, payload)?,
            PING => self.ping_frame(head, payload)?,
            WINDOW_UPDATE => self.window_frame(head, payload)?,
            PRIORITY if head.stream == 0 => return Err(EndReason::Protocol),
            PRIORITY if head.length != 5 => return Err(EndReason::FrameSize),
            PUSH_PROMISE => return Err(EndReason::Protocol),
            GO_AWAY if head.stream != 0 => return Err(EndReason::Protocol),
            // The client goes; its calls are answered. Others are not known, and are to be ignored.
            _ => {}
        }
        input.advance(HEAD + head.length);
        Ok(())
    }

    /// A stream that the client may name in a frame: `None` if it has ended.
    fn known(&mut self, stream: u32) -> Result<Option<&mut OpenStream>, EndReason> {
        if stream == 0 || stream > self.last || stream.is_multiple_of(2) {
            return Err(EndReason::Protocol);
        }
        Ok(self.streams.get_mut(&stream))
    }

    fn settings_frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), EndReason> {
        if head.stream != 0 {
            return Err(EndReason::Protocol);
        }
        if head.has(ACK) {
            return if payload.is_empty() { Ok(()) } else { Err(EndReason::FrameSize) };
        }
        if !payload.len().is_multiple_of(6) {
            return Err(EndReason::FrameSize);
        }
        self.has_settings = true;
        for setting in payload.chunks_exact(6) {
            let name = setting.first_chunk().map_or(0, |name| u16::from_be_bytes(*name));
            let value = setting.get(2..).and_then(number).unwrap_or(0);
            match name {
                ENABLE_PUSH if value > 1 => return Err(EndReason::Protocol),
                INITIAL_WINDOW_SIZE => self.set_initial_window(value)?,
                MAX_FRAME_SIZE if (DEFAULT_FRAME..=LARGEST_FRAME).contains(&value) => {
                    self.largest = to_usize(value);
                }
                MAX_FRAME_SIZE => return Err(EndReason::Protocol),
                _ => {}
            }
        }
        self.out.frame(SETTINGS, ACK, 0, &[]);
        Ok(())
    }

    fn set_initial_window(&mut self, value: u32) -> Result<(), EndReason> {
        if value > LARGEST_WINDOW {
            return Err(EndReason::FlowControl);
        }
        let change = i64::from(value) - self.initial;
        self.initial = i64::from(value);
        for (number, stream) in &mut self.streams {
            if !stream.widen(change) {
                return Err(EndReason::FlowControl);
            }
            if stream.begins_to_wait() {
                self.ready.push_back(*number);
            }
        }
        Ok(())
    }

    fn ping_frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), EndReason> {
        if head.stream != 0 {
            return Err(EndReason::Protocol);
        }
        if payload.len() != 8 {
            return Err(EndReason::FrameSize);
        }
        if !head.has(ACK) {
            self.out.frame(PING, ACK, 0, payload);
        } else if payload == LAST_PING && self.farewell == Farewell::Asked {
            self.farewell = Farewell::Last;
            self.go_away(self.last, EndReason::NoError);
        }
        Ok(())
    }

    fn window_frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), EndReason> {
        if payload.len() != 4 {
            return Err(EndReason::FrameSize);
        }
        let more = number(payload).unwrap_or(0) & LARGEST_WINDOW;
        if head.stream == 0 {
            if more == 0 {
                return Err(EndReason::Protocol);
            }
            self.window += i64::from(more);
            let is_right = self.window <= i64::from(LARGEST_WINDOW);
            return if is_right { Ok(()) } else { Err(EndReason::FlowControl) };
        }
        let Some(stream) = self.known(head.stream)? else { return Ok(()) };
        if more == 0 || !stream.widen(i64::from(more)) {
            let reason = if more == 0 { EndReason::Protocol } else { EndReason::FlowControl };
            self.end_with_error(head.stream, reason);
            return self.fault();
        }
        if stream.begins_to_wait() {
            self.ready.push_back(head.stream);
        }
        Ok(())
    }

    /// Counts a call that the client may not make.
    fn fault(&mut self) -> Result<(), EndReason> {
        self.faults += 1;
        if self.faults > FAULTS { Err(EndReason::EnhanceYourCalm) } else { Ok(()) }
    }

    /// Ends a call because of what its client sends.
    fn end_with_error(&mut self, stream: u32, reason: EndReason) {
        if self.streams.remove(&stream).is_some() {
            self.out.reset(stream, reason);
        }
    }

    /// The calls that have arrived and are not taken back.
    pub(crate) fn take_arrived(&mut self) -> Option<ArrivedCall> {
        while let Some(arrived) = self.arrived.pop_front() {
            if self.streams.contains_key(&arrived.stream) {
                return Some(arrived);
            }
        }
        None
    }

    /// The call is being answered, by this task or by the connection itself.
    pub(crate) fn answers(&mut self, stream: u32, task: Option<AbortHandle>) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.answered_by(task);
        }
    }

    /// Whether the connection may answer a call itself: no other one is open, and all of its request is here.
    pub(crate) fn is_alone(&self, stream: u32) -> bool {
        self.streams.len() == 1
            && self.streams.get(&stream).is_some_and(|open| open.is_complete && open.is_small())
    }

    /// A response is complete.
    pub(crate) fn finish(&mut self, stream: u32) {
        let Some(open) = self.streams.remove(&stream) else { return };
        if !open.is_complete {
            // The rest of the request is not needed.
            self.out.reset(stream, EndReason::NoError);
        }
        open.finish();
        self.taken_back = 0;
    }

    /// Tells the client why the connection ends.
    fn go_away(&mut self, last: u32, reason: EndReason) {
        let mut payload = last.to_be_bytes().to_vec();
        payload.extend_from_slice(&(reason as u32).to_be_bytes());
        self.out.frame(GO_AWAY, 0, 0, &payload);
    }

    /// Ends all calls, and tells the client why.
    pub(crate) fn fail(&mut self, reason: EndReason) {
        self.go_away(self.last, reason);
        self.streams.clear();
    }

    /// Asks the client to make no more calls.
    pub(crate) fn say_farewell(&mut self) {
        if self.farewell == Farewell::None {
            self.farewell = Farewell::Asked;
            self.go_away(LARGEST_WINDOW, EndReason::NoError);
            self.out.frame(PING, 0, 0, &LAST_PING);
        }
    }

    /// Asks a client to leave that makes calls which are refused; its calls are answered.
    pub(crate) fn send_away(&mut self) {
        if !std::mem::replace(&mut self.is_sent_away, true) {
            self.go_away(LARGEST_WINDOW, EndReason::EnhanceYourCalm);
        }
    }

    /// Whether the client was asked to leave.
    pub(crate) fn is_leaving(&self) -> bool {
        self.farewell != Farewell::None || self.is_sent_away
    }

    /// Whether nothing more can happen.
    pub(crate) fn is_over(&self) -> bool {
        self.farewell == Farewell::Last && self.streams.is_empty()
    }

    pub(crate) fn ping(&mut self) {
        self.out.frame(PING, 0, 0, &[0; 8]);
    }
}

pub(crate) fn to_usize(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub(crate) fn signed(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
