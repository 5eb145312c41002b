//! Calls of gRPC over HTTP/2 (RFC 9113), one at a time on a connection.

use crate::plan::WireRequest;
use crate::results::FailureKind;
use tensorserve_http2::frame::{
    ACK, CONTINUATION, DATA, DEFAULT_WINDOW, ENABLE_PUSH, END_HEADERS, END_STREAM, GO_AWAY,
    HEADERS, INITIAL_WINDOW_SIZE, LARGEST_WINDOW, MAX_FRAME_SIZE, PADDED, PING, PREFACE, RESET,
    SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, number, write_head, write_setting,
};
use tensorserve_http2::hpack::HpackDecoder;

/// So many bytes are received before the server may send as many again.
const ACKNOWLEDGED: u32 = 1 << 28;

/// The largest frame other than of data that is read.
const LARGEST_FRAME: usize = 1 << 20;

/// The last number of a stream, after which a connection is opened again.
const LAST_STREAM: u32 = 0x7fff_fff0;

/// The most bytes of a message that are kept.
const KEPT: usize = 2 << 10;

/// The state of a connection.
pub(crate) struct GrpcWire {
    /// Bytes to be sent, and how many of them are.
    out: Vec<u8>,
    written: usize,
    next_stream: u32,
    /// The stream of the call; 0 without one.
    stream: u32,
    /// How much of the call's message is in `out` or sent.
    queued: usize,
    /// How much may be sent: on the connection, on the stream, and on a new one; and in one frame.
    window: i64,
    stream_window: i64,
    first_window: i64,
    most: usize,
    /// The head of the frame that is read, as far as it is, and the bytes of its payload that are missing.
    head: Vec<u8>,
    left: usize,
    payload: Vec<u8>,
    /// The header block that is read, and whether it ends the stream.
    block: Vec<u8>,
    ends: bool,
    decoder: HpackDecoder,
    unacknowledged: u32,
    is_answered: bool,
    closes: bool,
    has_begun: bool,
    http_status: u16,
    grpc_status: Option<u16>,
    message: Vec<u8>,
    timing: Vec<u8>,
}

/// What is wrong with a response.
pub(crate) type WireFailure = (FailureKind, String);

impl GrpcWire {
    /// Of a new connection.
    pub(crate) fn new() -> Self {
        let mut out = PREFACE.to_vec();
        write_head(&mut out, 12, SETTINGS, 0, 0);
        write_setting(&mut out, ENABLE_PUSH, 0);
        write_setting(&mut out, INITIAL_WINDOW_SIZE, LARGEST_WINDOW);
        write_head(&mut out, 4, WINDOW_UPDATE, 0, 0);
        out.extend_from_slice(&(LARGEST_WINDOW - DEFAULT_WINDOW).to_be_bytes());
        GrpcWire {
            out,
            written: 0,
            next_stream: 1,
            stream: 0,
            queued: 0,
            window: i64::from(DEFAULT_WINDOW),
            stream_window: 0,
            first_window: i64::from(DEFAULT_WINDOW),
            most: 16_384,
            head: Vec::with_capacity(9),
            left: 0,
            payload: Vec::new(),
            block: Vec::new(),
            ends: false,
            decoder: HpackDecoder::default(),
            unacknowledged: 0,
            is_answered: false,
            closes: false,
            has_begun: false,
            http_status: 0,
            grpc_status: None,
            message: Vec::new(),
            timing: Vec::new(),
        }
    }

    /// Begins a call.
    pub(crate) fn begin(&mut self, request: &WireRequest) {
        self.stream = self.next_stream;
        self.next_stream += 2;
        self.closes |= self.next_stream > LAST_STREAM;
        (self.is_answered, self.has_begun) = (false, false);
        (self.http_status, self.grpc_status) = (0, None);
        self.message.clear();
        self.timing.clear();
        self.stream_window = self.first_window;
        write_head(&mut self.out, request.head.len(), HEADERS, END_HEADERS, self.stream);
        self.out.extend_from_slice(&request.head);
        self.queued = 0;
        self.fill(request);
    }

    /// Queues as much of the message as the server takes now.
    pub(crate) fn fill(&mut self, request: &WireRequest) {
        while let Some(rest) = request.body.get(self.queued..).filter(|rest| !rest.is_empty()) {
            let room = usize::try_from(self.window.min(self.stream_window)).unwrap_or(0);
            let part = rest.get(..room.min(self.most).min(rest.len())).unwrap_or_default();
            if part.is_empty() || self.is_answered {
                return;
            }
            let flags = if part.len() == rest.len() { END_STREAM } else { 0 };
            write_head(&mut self.out, part.len(), DATA, flags, self.stream);
            self.out.extend_from_slice(part);
            self.queued += part.len();
            let sent = i64::try_from(part.len()).unwrap_or(i64::MAX);
            self.window -= sent;
            self.stream_window -= sent;
        }
    }

    /// What is to be sent now.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.out.get(self.written..).unwrap_or_default()
    }

    /// So many bytes of it are sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.written += count;
        if self.written >= self.out.len() {
            self.out.clear();
            self.written = 0;
        }
    }

    /// Whether the whole message of the call is sent.
    pub(crate) fn is_sent(&self, request: &WireRequest) -> bool {
        self.queued >= request.body.len() && self.out.is_empty()
    }

    /// Whether the response is complete.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Whether no further call can be made.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// Whether a part of the response has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The code of the call: 0 for success.
    pub(crate) fn status(&self) -> u16 {
        self.grpc_status.unwrap_or(u16::MAX)
    }

    /// The message of a failed call.
    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    /// The value of the field `server-timing`.
    pub(crate) fn timing(&self) -> &[u8] {
        &self.timing
    }

    /// Reads frames.
    ///
    /// # Errors
    /// If the call has failed, or the server does not speak HTTP/2.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<(), WireFailure> {
        while !bytes.is_empty() {
            if self.head.len() < 9 {
                let (part, rest) = bytes.split_at(bytes.len().min(9 - self.head.len()));
                self.head.extend_from_slice(part);
                bytes = rest;
                if self.head.len() < 9 {
                    return Ok(());
                }
                self.left = self.length();
                if self.kind() != DATA && self.left > LARGEST_FRAME {
                    return Err(malformed("a frame that is too large, or not HTTP/2"));
                }
                self.payload.clear();
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.left));
            self.left -= part.len();
            bytes = rest;
            if self.kind() != DATA {
                self.payload.extend_from_slice(part);
            }
            if self.left == 0 {
                self.take_frame()?;
                self.head.clear();
            }
        }
        Ok(())
    }

    fn length(&self) -> usize {
        self.head.iter().take(3).fold(0, |length, byte| length << 8 | usize::from(*byte))
    }

    fn kind(&self) -> u8 {
        self.head.get(3).copied().unwrap_or(0)
    }

    fn flags(&self) -> u8 {
        self.head.get(4).copied().unwrap_or(0)
    }

    fn is_of_call(&self) -> bool {
        let number = self.head.get(5..9).and_then(number).unwrap_or(0) & LARGEST_WINDOW;
        self.stream != 0 && number == self.stream && !self.is_answered
    }

    /// Handles a frame that is complete.
    fn take_frame(&mut self) -> Result<(), WireFailure> {
        let (flags, payload) = (self.flags(), std::mem::take(&mut self.payload));
        match self.kind() {
            DATA => {
                self.received(self.length());
                if self.is_of_call() && flags & END_STREAM != 0 {
                    return Err(malformed("a call that ends without a status"));
                }
            }
            HEADERS => {
                let block = unpadded(&payload, flags)
                    .ok_or_else(|| malformed("a frame with too much padding"))?;
                self.block.clear();
                self.block.extend_from_slice(block);
                self.ends = flags & END_STREAM != 0;
                if flags & END_HEADERS != 0 {
                    self.take_block()?;
                }
            }
            CONTINUATION => {
                if self.block.len() + payload.len() > LARGEST_FRAME {
                    return Err(malformed("header fields above 1 MiB"));
                }
                self.block.extend_from_slice(&payload);
                if flags & END_HEADERS != 0 {
                    self.take_block()?;
                }
            }
            RESET if self.is_of_call() => {
                let code = number(&payload).unwrap_or(0);
                return Err((
                    FailureKind::Closed,
                    format!("the server has reset the stream with code {code}"),
                ));
            }
            SETTINGS if flags & ACK == 0 => self.take_settings(&payload)?,
            PING if flags & ACK == 0 => {
                write_head(&mut self.out, payload.len(), PING, ACK, 0);
                self.out.extend_from_slice(&payload);
            }
            GO_AWAY => {
                self.closes = true;
                let last = number(&payload).unwrap_or(0) & LARGEST_WINDOW;
                if self.stream > last && !self.is_answered && self.stream != 0 {
                    let code = payload.get(4..8).and_then(number).unwrap_or(0);
                    let words = format!("the server refuses further calls with code {code}");
                    return Err((FailureKind::Closed, words));
                }
            }
            WINDOW_UPDATE => {
                let more = i64::from(number(&payload).unwrap_or(0) & LARGEST_WINDOW);
                if self.is_of_call() {
                    self.stream_window += more;
                } else if self.head.get(5..9) == Some(&[0; 4]) {
                    self.window += more;
                }
            }
            _ => {}
        }
        self.payload = payload;
        Ok(())
    }

    /// Bytes of data have arrived: the server may send as many again.
    fn received(&mut self, count: usize) {
        self.has_begun |= self.is_of_call();
        self.unacknowledged =
            self.unacknowledged.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        if self.unacknowledged >= ACKNOWLEDGED {
            write_head(&mut self.out, 4, WINDOW_UPDATE, 0, 0);
            self.out.extend_from_slice(&self.unacknowledged.min(LARGEST_WINDOW).to_be_bytes());
            self.unacknowledged = 0;
        }
    }

    fn take_settings(&mut self, payload: &[u8]) -> Result<(), WireFailure> {
        for pair in payload.chunks_exact(6) {
            let (Some(name), Some(value)) =
                (pair.first_chunk::<2>(), pair.get(2..).and_then(number))
            else {
                continue;
            };
            match u16::from_be_bytes(*name) {
                INITIAL_WINDOW_SIZE => {
                    // It changes the windows of open streams, too.
                    self.stream_window += i64::from(value) - self.first_window;
                    self.first_window = i64::from(value);
                }
                MAX_FRAME_SIZE if value < 16_384 => {
                    return Err(malformed("a frame size below 16384"));
                }
                MAX_FRAME_SIZE => self.most = usize::try_from(value).unwrap_or(16_384),
                _ => {}
            }
        }
        write_head(&mut self.out, 0, SETTINGS, ACK, 0);
        Ok(())
    }

    /// Handles a header block that is complete.
    fn take_block(&mut self) -> Result<(), WireFailure> {
        let is_of_call = self.is_of_call();
        let block = std::mem::take(&mut self.block);
        let (mut http_status, mut grpc_status) = (self.http_status, self.grpc_status);
        let (message, timing) = (&mut self.message, &mut self.timing);
        let read = self.decoder.decode(&block, |field| {
            let value = field.value.as_bytes();
            match field.name.as_str() {
                ":status" => http_status = decimal(value).unwrap_or(0),
                "grpc-status" => grpc_status = decimal(value),
                "grpc-message" => {
                    message.clear();
                    let kept = value.get(..value.len().min(KEPT));
                    message.extend_from_slice(kept.unwrap_or_default());
                }
                "server-timing" => {
                    timing.clear();
                    timing.extend_from_slice(value);
                }
                _ => {}
            }
        });
        self.block = block;
        read.map_err(|_| malformed("a block of fields that is damaged"))?;
        if !is_of_call {
            return Ok(());
        }
        (self.http_status, self.grpc_status, self.has_begun) = (http_status, grpc_status, true);
        if !self.ends {
            return Ok(());
        }
        if self.grpc_status.is_none() {
            return Err(malformed(&format!("HTTP status {http_status} without a status of gRPC")));
        }
        self.is_answered = true;
        Ok(())
    }
}

fn malformed(what: &str) -> WireFailure {
    (FailureKind::Malformed, what.to_owned())
}

fn decimal(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The header block of a HEADERS frame, between what its flags announce.
fn unpadded(payload: &[u8], flags: u8) -> Option<&[u8]> {
    let mut block = payload;
    let mut padding = 0;
    if flags & PADDED != 0 {
        let (first, rest) = block.split_first()?;
        (padding, block) = (usize::from(*first), rest);
    }
    if flags & WITH_PRIORITY != 0 {
        block = block.get(5..)?;
    }
    block.get(..block.len().checked_sub(padding)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(length: usize) -> WireRequest {
        WireRequest::grpc("/a.B/C", ("http", "h:1"), &[("x", "y")], &vec![7; length])
            .expect("a request")
    }

    /// A frame with these fields: indexed ones as they are, others as literals.
    fn fields(stream: u32, flags: u8, indexed: &[u8], others: &[(&str, &str)]) -> Vec<u8> {
        let mut block = indexed.to_vec();
        for (name, value) in others {
            for text in [
                &b"\0"[..],
                &[name.len() as u8],
                name.as_bytes(),
                &[value.len() as u8],
                value.as_bytes(),
            ] {
                block.extend_from_slice(text);
            }
        }
        let mut bytes = Vec::new();
        write_head(&mut bytes, block.len(), HEADERS, flags, stream);
        bytes.extend_from_slice(&block);
        bytes
    }

    fn data(stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_head(&mut bytes, payload.len(), DATA, 0, stream);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn update(stream: u32, more: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_head(&mut bytes, 4, WINDOW_UPDATE, 0, stream);
        bytes.extend_from_slice(&more.to_be_bytes());
        bytes
    }

    /// All that is to be sent, and sent with this.
    fn sent(wire: &mut GrpcWire) -> Vec<u8> {
        let bytes = wire.unsent().to_vec();
        wire.sent(bytes.len());
        bytes
    }

    /// The response of a call: 0x88 is `:status: 200`.
    fn response(stream: u32, code: &str) -> Vec<u8> {
        let mut bytes =
            fields(stream, END_HEADERS, &[0x88], &[("content-type", "application/grpc")]);
        bytes.extend(data(stream, b"\0\0\0\0\x01x"));
        let trailers = [("grpc-status", code), ("grpc-message", "why")];
        bytes.extend(fields(stream, END_HEADERS | END_STREAM, &[], &trailers));
        bytes
    }

    #[test]
    fn calls_follow_each_other_on_a_connection() {
        let (mut wire, request) = (GrpcWire::new(), request(3));
        wire.begin(&request);
        let first = sent(&mut wire);
        assert!(
            first.starts_with(PREFACE) && first.ends_with(b"\0\0\0\0\x03\x07\x07\x07"),
            "{first:?}"
        );
        assert!(wire.is_sent(&request) && !wire.is_answered());
        let mut bytes = Vec::new();
        write_head(&mut bytes, 6, SETTINGS, 0, 0);
        write_setting(&mut bytes, MAX_FRAME_SIZE, 1 << 20);
        bytes.extend(response(1, "0"));
        // In any pieces.
        for piece in bytes.chunks(5) {
            assert!(!wire.is_answered());
            wire.read(piece).expect("a response");
        }
        assert!(wire.is_answered() && !wire.closes());
        assert_eq!((wire.status(), wire.most), (0, 1 << 20));
        // The settings are acknowledged with the next call.
        wire.begin(&request);
        assert!(sent(&mut wire).starts_with(&[0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0]));
        assert!(!wire.is_answered());
        wire.read(&response(3, "14")).expect("a response");
        assert_eq!((wire.is_answered(), wire.status(), wire.message()), (true, 14, &b"why"[..]));
        // A failure without a message is one frame.
        wire.begin(&request);
        let only = fields(5, END_HEADERS | END_STREAM, &[0x88], &[("grpc-status", "5")]);
        wire.read(&only).expect("a response");
        assert_eq!((wire.is_answered(), wire.status(), wire.message()), (true, 5, &b""[..]));
    }

    #[test]
    fn no_more_is_sent_than_the_server_takes() {
        let (mut wire, request) = (GrpcWire::new(), request(100_000));
        wire.begin(&request);
        let body = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == 7).count();
        assert!(body(&sent(&mut wire)) <= 65_535 && !wire.is_sent(&request));
        wire.read(&update(1, 100_000)).expect("an update");
        wire.fill(&request);
        // The connection has no room yet.
        assert!(wire.unsent().is_empty());
        wire.read(&update(0, 20_000)).expect("an update");
        wire.fill(&request);
        let second = sent(&mut wire);
        assert_eq!(second.len(), 20_000 + 2 * 9, "in two frames");
        wire.read(&update(0, 1 << 20)).expect("an update");
        wire.fill(&request);
        let _ = sent(&mut wire);
        assert!(wire.is_sent(&request));
        // A larger first window holds for the next call.
        let mut bytes = Vec::new();
        write_head(&mut bytes, 6, SETTINGS, 0, 0);
        write_setting(&mut bytes, INITIAL_WINDOW_SIZE, 1 << 20);
        bytes.extend(response(1, "0"));
        wire.read(&bytes).expect("a response");
        wire.begin(&request);
        let _ = sent(&mut wire);
        assert!(wire.is_sent(&request));
    }

    #[test]
    fn pings_are_answered_and_farewells_heeded() {
        let (mut wire, request) = (GrpcWire::new(), request(1));
        wire.begin(&request);
        let _ = sent(&mut wire);
        let mut bytes = Vec::new();
        write_head(&mut bytes, 8, PING, 0, 0);
        bytes.extend_from_slice(b"12345678");
        wire.read(&bytes).expect("a ping");
        let answer = sent(&mut wire);
        assert!(answer.starts_with(&[0, 0, 8, PING, ACK]) && answer.ends_with(b"12345678"));
        let farewell = |last: u32| {
            let mut bytes = Vec::new();
            write_head(&mut bytes, 8, GO_AWAY, 0, 0);
            bytes.extend_from_slice(&last.to_be_bytes());
            bytes.extend_from_slice(&11u32.to_be_bytes());
            bytes
        };
        wire.read(&farewell(1)).expect("the call is answered yet");
        wire.read(&response(1, "0")).expect("a response");
        assert!(wire.closes() && wire.is_answered());
        let mut wire = GrpcWire::new();
        wire.begin(&request);
        let (kind, words) = wire.read(&farewell(0)).expect_err("refused");
        assert!(kind == FailureKind::Closed && words.contains("code 11"), "{words}");
    }

    #[test]
    fn what_is_no_response_is_refused() {
        let mut reset = Vec::new();
        write_head(&mut reset, 4, RESET, 0, 1);
        reset.extend_from_slice(&8u32.to_be_bytes());
        let mut ended = Vec::new();
        write_head(&mut ended, 0, DATA, END_STREAM, 1);
        for (bytes, want) in [
            (reset, "code 8"),
            (ended, "without a status"),
            (fields(1, END_HEADERS | END_STREAM, &[0x8d], &[]), "HTTP status 404"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "not HTTP/2"),
            (fields(1, END_HEADERS, &[0xff], &[]), "damaged"),
        ] {
            let mut wire = GrpcWire::new();
            wire.begin(&request(1));
            let (_, words) = wire.read(&bytes).expect_err(want);
            assert!(words.contains(want), "{words}");
        }
    }
}
