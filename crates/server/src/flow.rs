//! Finds gRPC clients that do not let the server send its responses.
//!
//! HTTP/2 has its own flow control: a client grants the server a window of bytes, per stream and for
//! the connection. A client that reads everything from its socket, responds to PINGs, and never
//! grants more could hold its responses for ever; the HTTP/2 library waits without limit. So the
//! frames of both directions are counted here. They also tell whether a connection has calls: while the
//! listener ends, one without them and whose client sends nothing is not waited for.
//!
//! Source: RFC 9113, sections 5.2, 6.5.2 and 6.9.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::drain::{DRAIN_PAUSE, ListenerActivity};
use super::farewell::{Farewell, RefusedCalls};
use super::frames::{
    DATA, END_STREAM, FrameHead, FrameSplitter, HEADERS, RESET, SETTINGS, WINDOW_UPDATE,
};

/// The window of the connection, and of a stream unless the client sets another.
const DEFAULT_WINDOW: i64 = 65_535;

/// The setting with the window of new streams.
const INITIAL_WINDOW_SIZE: u16 = 4;

/// The windows that a client grants.
pub(super) struct FlowWindows {
    limit: Duration,
    activity: ListenerActivity,
    /// The listener ends: the limit is that for pauses.
    is_ending: bool,
    /// Whether the client has sent anything since the last check.
    heard: bool,
    alarm: Pin<Box<Sleep>>,
    from_client: FrameSplitter,
    from_server: FrameSplitter,
    /// The last bytes of a payload that is read: a window, or a setting with its number.
    entry: [u8; 6],
    filled: usize,
    streams: HashMap<u32, StreamWindow>,
    /// The highest stream so far.
    last: u32,
    initial: i64,
    connection: i64,
    /// When the server last sent data.
    moved: Instant,
    farewell: Farewell,
}

/// The window of a stream that the server has not ended.
struct StreamWindow {
    window: i64,
    has_response: bool,
    /// When the server last sent a part of the response.
    moved: Instant,
}

impl FlowWindows {
    /// The windows of a new connection, whose client may block a response for `limit`, and for less while
    /// the listener ends.
    pub(super) fn new(limit: Duration, activity: ListenerActivity) -> Self {
        FlowWindows {
            limit,
            activity,
            is_ending: false,
            heard: false,
            alarm: Box::pin(sleep(limit / 2)),
            from_client: FrameSplitter::of_client(),
            from_server: FrameSplitter::of_server(),
            entry: [0; 6],
            filled: 0,
            streams: HashMap::new(),
            last: 0,
            initial: DEFAULT_WINDOW,
            connection: DEFAULT_WINDOW,
            moved: Instant::now(),
            farewell: Farewell::default(),
        }
    }

    /// The calls of the connection that are refused: after many of them its client is to leave.
    pub(super) fn refused_calls(&self) -> RefusedCalls {
        self.farewell.refused()
    }

    /// The part of a frame of its own that is to be written now.
    pub(super) fn own_bytes(&mut self) -> &[u8] {
        self.farewell.bytes(self.from_server.is_between_frames())
    }

    pub(super) fn wrote_own(&mut self, count: usize) {
        self.farewell.wrote(count);
    }

    /// # Errors
    /// If the client was asked to leave, and makes more calls.
    pub(super) fn check(&self) -> io::Result<()> {
        self.farewell.check()
    }

    /// Counts bytes of the client.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.heard |= !bytes.is_empty();
        let mut at = 0;
        while let Some(part) = self.from_client.next(bytes, &mut at) {
            let frame = part.frame;
            if part.is_first {
                self.filled = 0;
                self.begin(frame);
                continue;
            }
            let size = match frame.kind {
                SETTINGS => 6,
                WINDOW_UPDATE => 4,
                _ => continue,
            };
            for byte in bytes.get(part.payload).unwrap_or_default() {
                if let Some(place) = self.entry.get_mut(self.filled) {
                    *place = *byte;
                }
                self.filled += 1;
                if self.filled == size {
                    self.filled = 0;
                    self.grant(frame);
                }
            }
        }
    }

    /// A frame of the client begins.
    fn begin(&mut self, frame: FrameHead) {
        match frame.kind {
            HEADERS if frame.stream > self.last => {
                self.last = frame.stream;
                let (window, moved) = (self.initial, Instant::now());
                let stream = StreamWindow { window, has_response: false, moved };
                self.streams.insert(frame.stream, stream);
            }
            RESET => drop(self.streams.remove(&frame.stream)),
            _ => {}
        }
    }

    /// A setting or a window is complete.
    fn grant(&mut self, frame: FrameHead) {
        let [a, b, c, d, e, f] = self.entry;
        if frame.kind == SETTINGS {
            if u16::from_be_bytes([a, b]) == INITIAL_WINDOW_SIZE {
                let initial = i64::from(u32::from_be_bytes([c, d, e, f]));
                let change = initial - self.initial;
                self.initial = initial;
                self.streams.values_mut().for_each(|stream| stream.window += change);
            }
            return;
        }
        let more = i64::from(u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff);
        if frame.stream == 0 {
            self.connection += more;
        } else if let Some(stream) = self.streams.get_mut(&frame.stream) {
            stream.window += more;
        }
    }

    /// Counts the first `count` bytes of `slices`, which the server has sent.
    pub(super) fn sent(&mut self, slices: &[IoSlice<'_>], mut count: usize) {
        for slice in slices {
            let length = count.min(slice.len());
            count -= length;
            let (bytes, mut at) = (slice.get(..length).unwrap_or_default(), 0);
            while let Some(part) = self.from_server.next(bytes, &mut at) {
                if part.is_first {
                    self.send(part.frame);
                }
            }
        }
    }

    /// A frame of the server begins.
    fn send(&mut self, frame: FrameHead) {
        if !matches!(frame.kind, DATA | HEADERS | RESET) {
            return;
        }
        let ends = frame.kind == RESET || frame.flags & END_STREAM != 0;
        let length = i64::try_from(frame.length).unwrap_or(i64::MAX);
        let now = Instant::now();
        if frame.kind == DATA {
            self.connection -= length;
            self.moved = now;
        }
        if ends {
            self.streams.remove(&frame.stream);
        } else if let Some(stream) = self.streams.get_mut(&frame.stream) {
            stream.has_response = true;
            stream.moved = now;
            if frame.kind == DATA {
                stream.window -= length;
            }
        }
    }

    /// Whether the client has blocked a response for the whole limit, or holds a connection without calls
    /// while the listener ends. Registers the next check.
    pub(super) fn are_blocked(&mut self, context: &mut Context<'_>) -> bool {
        self.hurry();
        while self.alarm.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let may_end = self.is_ending || self.farewell.is_said();
            let is_left = may_end && !self.heard && self.streams.is_empty();
            if is_left || self.blocked_at(now) {
                return true;
            }
            self.heard = false;
            self.alarm.as_mut().reset(now + self.limit / 2);
        }
        false
    }

    /// Shortens the limit once the listener ends. It then wakes every connection, to say so to its client.
    fn hurry(&mut self) {
        if !self.is_ending && self.activity.is_ending() {
            (self.is_ending, self.heard) = (true, false);
            self.limit = self.limit.min(DRAIN_PAUSE);
            self.alarm.as_mut().reset(Instant::now() + self.limit / 2);
        }
    }

    fn blocked_at(&self, now: Instant) -> bool {
        let is_old = |moved: Instant| now.saturating_duration_since(moved) > self.limit;
        let is_connection_blocked = self.connection <= 0 && is_old(self.moved);
        let mut responses = self.streams.values().filter(|stream| stream.has_response);
        responses
            .any(|stream| is_old(stream.moved) && (is_connection_blocked || stream.window <= 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags];
        [&head[..], &stream.to_be_bytes(), payload].concat()
    }

    fn windows(settings: &[u8]) -> FlowWindows {
        let mut windows = FlowWindows::new(LIMIT, ListenerActivity::default());
        windows.received(&[&[b'P'; 24][..], &frame(SETTINGS, 0, 0, settings)].concat());
        windows
    }

    fn send(windows: &mut FlowWindows, bytes: &[u8]) {
        // In two writes, of which the first is not taken whole.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        windows.sent(&[IoSlice::new(first), IoSlice::new(b"not taken")], first.len());
        windows.sent(&[IoSlice::new(second)], second.len());
    }

    /// Whether the client is blocking a response after this time.
    fn blocks_after(windows: &FlowWindows, time: Duration) -> bool {
        windows.blocked_at(Instant::now() + time)
    }

    fn blocks(windows: &FlowWindows) -> bool {
        assert!(!blocks_after(windows, LIMIT / 2));
        blocks_after(windows, LIMIT * 2)
    }

    #[tokio::test]
    async fn a_response_waits_for_the_window_of_its_stream() {
        let mut windows = windows(&[0, 4, 0, 0, 0, 3]);
        windows.received(&frame(HEADERS, 5, 1, b"head"));
        assert!(!blocks(&windows), "the server has not responded");
        send(&mut windows, &frame(HEADERS, 4, 1, b"head"));
        assert!(!blocks(&windows), "the server may send 3 bytes");
        send(&mut windows, &frame(DATA, 0, 1, b"abc"));
        assert!(blocks(&windows));
        windows.received(&frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]));
        assert!(blocks(&windows), "another stream");
        let update = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
        windows.received(&update[..11]);
        assert!(blocks(&windows), "half an update");
        windows.received(&update[11..]);
        assert!(!blocks(&windows));
        send(&mut windows, &frame(DATA, 0, 1, b"d"));
        assert!(blocks(&windows));
        send(&mut windows, &frame(HEADERS, 5, 1, b"trailers"));
        assert!(!blocks(&windows), "complete");
        assert!(windows.streams.is_empty());
    }

    #[tokio::test]
    async fn settings_change_the_windows_of_open_streams() {
        let mut windows = windows(&[0, 3, 0, 0, 0, 9]);
        windows.received(&frame(HEADERS, 5, 1, b"head"));
        send(&mut windows, &frame(HEADERS, 4, 1, b"head"));
        send(&mut windows, &frame(DATA, 0, 1, &[0; 10]));
        assert!(!blocks(&windows));
        windows.received(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9, 0, 4, 0, 0, 0, 10]));
        assert!(blocks(&windows));
        windows.received(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 11]));
        assert!(!blocks(&windows));
    }

    #[tokio::test]
    async fn responses_wait_for_the_window_of_the_connection() {
        let mut windows = windows(&[0, 4, 0x7f, 0xff, 0xff, 0xff]);
        windows.received(&frame(HEADERS, 5, 1, b"head"));
        send(&mut windows, &frame(HEADERS, 4, 1, b"head"));
        for _ in 0..5 {
            send(&mut windows, &frame(DATA, 0, 1, &[0; 13_107]));
        }
        assert!(blocks(&windows));
        windows.received(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]));
        assert!(!blocks(&windows));
    }

    #[tokio::test]
    async fn streams_that_are_reset_are_forgotten() {
        let mut windows = windows(&[0, 4, 0, 0, 0, 0]);
        for stream in [1, 3] {
            windows.received(&frame(HEADERS, 5, stream, b"head"));
            send(&mut windows, &frame(HEADERS, 4, stream, b"head"));
        }
        assert!(blocks(&windows));
        windows.received(&frame(RESET, 0, 1, &[0; 4]));
        send(&mut windows, &frame(RESET, 0, 3, &[0; 4]));
        assert!(!blocks(&windows));
        assert!(windows.streams.is_empty());
    }
}
