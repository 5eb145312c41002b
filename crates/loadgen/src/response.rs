//! Responses of HTTP/1.1, as they arrive.

use httparse::{EMPTY_HEADER, Status};

/// The longest head of a response.
const LONGEST_HEAD: usize = 64 << 10;

/// The most headers of a response.
const MOST_HEADERS: usize = 96;

/// The most bytes of a body that are kept.
const KEPT: usize = 2 << 10;

/// Reads one response after the other.
#[derive(Default)]
pub(crate) struct ResponseReader {
    /// The start of a head whose end has not arrived.
    head: Vec<u8>,
    stage: ReadStage,
    status: u16,
    closes: bool,
    /// The value of `Server-Timing`.
    timing: Vec<u8>,
    /// The start of the body, of responses other than 2xx.
    body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReadStage {
    #[default]
    Head,
    /// Bytes that are missing.
    Length(u64),
    Chunk(ChunkPart),
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPart {
    /// The line with its size, read so far.
    Size(u64, SizePart),
    Data(u64),
    /// The line break after its data; bytes that are missing.
    End(u8),
    /// A line after the last chunk; whether it is empty so far.
    Trailer(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizePart {
    Start,
    Digits,
    Extension,
}

/// What has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// The response is not complete.
    Part,
    /// It is complete, with so many of the bytes that were passed.
    Whole(usize),
}

impl ResponseReader {
    /// Forgets what has arrived.
    pub(crate) fn reset(&mut self) {
        self.head.clear();
        self.stage = ReadStage::Head;
        self.status = 0;
        self.closes = false;
        self.timing.clear();
        self.body.clear();
    }

    /// The status of a response whose head has arrived.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Whether the server closes the connection after the response.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// The value of the header `Server-Timing`; empty without one.
    pub(crate) fn timing(&self) -> &[u8] {
        &self.timing
    }

    /// The start of the body of a failed request.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether a part of a response has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.stage != ReadStage::Head || !self.head.is_empty()
    }

    /// The end of the connection. Returns whether it is the end of a response.
    pub(crate) fn ends(&self) -> bool {
        self.stage == ReadStage::UntilClose
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// What is wrong, if it is no response.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<Arrived, &'static str> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            match self.stage {
                ReadStage::Head => match self.read_head(rest)? {
                    None => return Ok(Arrived::Part),
                    Some(used) => at += used,
                },
                ReadStage::Length(left) => {
                    let taken = (rest.len() as u64).min(left);
                    let part = rest.get(..usize::try_from(taken).unwrap_or(0)).unwrap_or_default();
                    self.keep(part);
                    at += part.len();
                    self.stage = ReadStage::Length(left - taken);
                    if left == taken {
                        return Ok(Arrived::Whole(at));
                    }
                    return Ok(Arrived::Part);
                }
                ReadStage::UntilClose => {
                    self.keep(rest);
                    return Ok(Arrived::Part);
                }
                ReadStage::Chunk(ChunkPart::Data(left)) => {
                    let taken = (rest.len() as u64).min(left);
                    let part = rest.get(..usize::try_from(taken).unwrap_or(0)).unwrap_or_default();
                    self.keep(part);
                    at += part.len();
                    let next = if left == taken {
                        ChunkPart::End(2)
                    } else {
                        ChunkPart::Data(left - taken)
                    };
                    self.stage = ReadStage::Chunk(next);
                    if left > taken {
                        return Ok(Arrived::Part);
                    }
                }
                ReadStage::Chunk(chunk) => {
                    let Some(&byte) = rest.first() else { return Ok(Arrived::Part) };
                    at += 1;
                    match frame(chunk, byte)? {
                        Some(next) => self.stage = ReadStage::Chunk(next),
                        None => return Ok(Arrived::Whole(at)),
                    }
                }
            }
        }
    }

    /// Reads the head. Returns how many of the bytes belong to it, if it is complete.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        if self.head.is_empty() {
            let used = self.parse(bytes)?;
            if used.is_none() {
                self.head.extend_from_slice(bytes);
            }
            return Ok(used);
        }
        let before = self.head.len();
        let mut head = std::mem::take(&mut self.head);
        head.extend_from_slice(bytes);
        let used = self.parse(&head)?;
        match used {
            Some(used) => {
                head.clear();
                self.head = head;
                Ok(Some(used.saturating_sub(before)))
            }
            None => {
                self.head = head;
                Ok(None)
            }
        }
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let mut headers = [EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let used = match response.parse(bytes) {
            Ok(Status::Complete(used)) => used,
            Ok(Status::Partial) if bytes.len() > LONGEST_HEAD => return Err("a head above 64 KiB"),
            Ok(Status::Partial) => return Ok(None),
            Err(_) => return Err("a response that is not HTTP/1.1"),
        };
        self.status = response.code.unwrap_or(0);
        self.closes = response.version == Some(0);
        let (mut length, mut is_chunked) = (None, false);
        for header in response.headers.iter() {
            let (name, value) = (header.name, header.value);
            if name.eq_ignore_ascii_case("content-length") {
                let number =
                    std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
                length = Some(number.ok_or("a Content-Length that is no number")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = value.to_ascii_lowercase().ends_with(b"chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                let value = value.to_ascii_lowercase();
                self.closes = (self.closes && value != b"keep-alive") || value == b"close";
            } else if name.eq_ignore_ascii_case("server-timing") {
                self.timing.clear();
                self.timing.extend_from_slice(value);
            }
        }
        // A preliminary response is followed by another one.
        let is_preliminary = (100..200).contains(&self.status);
        self.stage = match length {
            _ if is_preliminary => ReadStage::Head,
            _ if matches!(self.status, 204 | 304) => ReadStage::Length(0),
            _ if is_chunked => ReadStage::Chunk(ChunkPart::Size(0, SizePart::Start)),
            Some(length) => ReadStage::Length(length),
            None => ReadStage::UntilClose,
        };
        self.closes |= self.stage == ReadStage::UntilClose;
        Ok(Some(used))
    }

    fn keep(&mut self, part: &[u8]) {
        if !(200..300).contains(&self.status) {
            let room = KEPT.saturating_sub(self.body.len()).min(part.len());
            self.body.extend_from_slice(part.get(..room).unwrap_or_default());
        }
    }
}

/// The stage after a byte of the frame around chunks; `None` at the end of the response.
fn frame(chunk: ChunkPart, byte: u8) -> Result<Option<ChunkPart>, &'static str> {
    let wrong = "a chunk whose size is no number";
    Ok(Some(match chunk {
        ChunkPart::Size(_, SizePart::Start) if !byte.is_ascii_hexdigit() => return Err(wrong),
        ChunkPart::Size(size, SizePart::Start | SizePart::Digits) if byte.is_ascii_hexdigit() => {
            let digit = char::from(byte).to_digit(16).unwrap_or(0);
            let size = size.checked_mul(16).ok_or(wrong)? + u64::from(digit);
            ChunkPart::Size(size, SizePart::Digits)
        }
        ChunkPart::Size(0, _) if byte == b'\n' => ChunkPart::Trailer(true),
        ChunkPart::Size(size, _) if byte == b'\n' => ChunkPart::Data(size),
        ChunkPart::Size(size, SizePart::Start | SizePart::Digits) => match byte {
            b'\r' | b';' | b' ' | b'\t' => ChunkPart::Size(size, SizePart::Extension),
            _ => return Err(wrong),
        },
        ChunkPart::Size(size, SizePart::Extension) => ChunkPart::Size(size, SizePart::Extension),
        ChunkPart::End(left) => match (left, byte) {
            (2, b'\r') => ChunkPart::End(1),
            (_, b'\n') => ChunkPart::Size(0, SizePart::Start),
            _ => return Err("a chunk that is longer than its size"),
        },
        ChunkPart::Trailer(true) if byte == b'\n' => return Ok(None),
        ChunkPart::Trailer(is_empty) => match byte {
            b'\n' => ChunkPart::Trailer(true),
            b'\r' => ChunkPart::Trailer(is_empty),
            _ => ChunkPart::Trailer(false),
        },
        // Data is taken as a whole.
        ChunkPart::Data(size) => ChunkPart::Data(size),
    }))
}

/// The names and the durations, in nanoseconds, of a `Server-Timing`.
pub(crate) fn durations(value: &[u8]) -> impl Iterator<Item = (&str, u64)> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split(',').filter_map(|metric| {
        let mut parts = metric.split(';').map(str::trim);
        let name = parts.next().filter(|name| !name.is_empty())?;
        let milliseconds: f64 = parts.find_map(|part| part.strip_prefix("dur="))?.parse().ok()?;
        let is_sane = (0.0..1e9).contains(&milliseconds);
        is_sane.then(|| (name, nanoseconds(milliseconds)))
    })
}

// Below 1e15 and not negative.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn nanoseconds(milliseconds: f64) -> u64 {
    (milliseconds * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statuses and bodies of all responses in `text`, which arrives in pieces of `size` bytes.
    fn read(text: &[u8], size: usize) -> Result<Vec<(u16, String)>, &'static str> {
        let (mut reader, mut all) = (ResponseReader::default(), Vec::new());
        for piece in text.chunks(size) {
            let mut piece = piece;
            while !piece.is_empty() {
                match reader.read(piece)? {
                    Arrived::Part => break,
                    Arrived::Whole(used) => {
                        let body = String::from_utf8_lossy(reader.body()).into_owned();
                        all.push((reader.status(), body));
                        reader.reset();
                        piece = &piece[used..];
                    }
                }
            }
        }
        Ok(all)
    }

    #[test]
    fn responses_are_read_in_any_pieces() {
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad\r\nContent-Length: 3\r\n\r\nabc\
            HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n0b\r\nhello world\r\n0\r\nA: b\r\n\r\n\
            HTTP/1.1 204 None\r\n\r\nHTTP/1.1 500 E\r\ncontent-length: 0\r\n\r\n";
        let want = [(400, "abc"), (503, "abchello world"), (204, ""), (500, "")];
        let want: Vec<(u16, String)> =
            want.map(|(status, body)| (status, body.to_owned())).to_vec();
        for size in 1..text.len() {
            assert_eq!(read(text, size).expect("responses"), want, "{size}");
        }
    }

    #[test]
    fn what_is_no_response_is_refused() {
        for text in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
        ] {
            assert!(read(text.as_bytes(), 7).is_err(), "{text}");
        }
        let mut reader = ResponseReader::default();
        let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(70_000));
        assert_eq!(reader.read(endless.as_bytes()), Err("a head above 64 KiB"));
    }

    #[test]
    fn the_end_of_a_connection_ends_a_body_without_a_length() {
        let mut reader = ResponseReader::default();
        let arrived = reader.read(b"HTTP/1.0 404 Not\r\n\r\ngone");
        assert_eq!((arrived, reader.ends(), reader.closes()), (Ok(Arrived::Part), true, true));
        assert_eq!(reader.body(), b"gone");
    }

    #[test]
    fn the_times_of_the_server_are_read() {
        let of = |text: &'static str| durations(text.as_bytes()).collect::<Vec<_>>();
        let all = of("queue;dur=0.012, run;desc=\"x\";dur=0.405, total;dur=1");
        assert_eq!(all, [("queue", 12_000), ("run", 405_000), ("total", 1_000_000)]);
        assert!(of("miss, x;dur=-1, y;dur=abc, ;dur=1").is_empty());
        let mut reader = ResponseReader::default();
        let arrived = reader
            .read(b"HTTP/1.1 200 OK\r\nServer-Timing: run;dur=2\r\nContent-Length: 0\r\n\r\n");
        assert!(matches!(arrived, Ok(Arrived::Whole(_))));
        assert_eq!(reader.timing(), b"run;dur=2");
    }
}
