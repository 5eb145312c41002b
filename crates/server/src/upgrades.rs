//! Offers of clients to change the protocol of a connection, which the server ignores.
//!
//! A server that ignores `Upgrade: h2c` goes on in HTTP/1.1 (RFC 9110, 7.8). The HTTP library closes the
//! connection after the response instead, and the next request of the client, which may be under way, is
//! lost; whatever follows the head of a request with `Upgrade: websocket` is its payload. So the option
//! `upgrade` of the field `Connection` and the protocol `websocket` are replaced by spaces before the library
//! parses them. Requests are followed as far as to tell their heads from their payloads, which are never
//! changed. What the library refuses may be followed wrongly: it closes the connection.

/// The longest name of a field that matters.
const LONGEST_NAME: usize = b"transfer-encoding".len();

/// Follows the requests of a connection.
#[derive(Default)]
pub(super) struct UpgradeFilter {
    at: HeadPosition,
    /// The name of the current field, as far as it is read.
    name: [u8; LONGEST_NAME],
    /// What the head has said about its payload.
    payload: Framing,
}

/// The place of the next byte.
#[derive(Clone, Copy)]
enum HeadPosition {
    /// The request line; empty lines before it are skipped.
    RequestLine { is_empty: bool },
    /// The name of a field, of which this many bytes are read, or the empty line behind the last one.
    Name(usize),
    /// The value of a field. Another protocol is to be overwritten in it.
    Offer(Offer),
    /// The value of `Content-Length`.
    Length,
    /// The rest of a line that does not matter.
    Line,
    /// The payload, of which this many bytes are left.
    Payload(u64),
    /// The line with the size of a chunk, as far as it is read.
    ChunkSize { size: u64, is_over: bool },
    /// A chunk and the end of its line, of which this many bytes are left.
    Chunk(u64),
    /// Lines behind the last chunk; the last one is empty.
    Trailer { is_empty: bool, ends: bool },
    /// Nothing is known any more, and nothing changed.
    Lost,
}

/// A word that is looked for in a list with commas.
#[derive(Clone, Copy)]
struct Offer {
    word: &'static [u8],
    /// The bytes of the word that the current item begins with; `None` if it is another one.
    matched: Option<usize>,
}

/// What a head says about its payload.
#[derive(Clone, Copy, Default)]
enum Framing {
    #[default]
    None,
    Length(u64),
    Chunked,
}

impl Default for HeadPosition {
    fn default() -> Self {
        HeadPosition::RequestLine { is_empty: true }
    }
}

impl UpgradeFilter {
    /// Overwrites the offers in the next bytes of the connection.
    pub(super) fn overwrite(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if let HeadPosition::Payload(left) | HeadPosition::Chunk(left) = &mut self.at {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                *left -= length as u64;
                at += length;
                self.end_payload();
                continue;
            }
            if matches!(self.at, HeadPosition::Lost) {
                return;
            }
            if matches!(self.at, HeadPosition::Line | HeadPosition::RequestLine { is_empty: false })
            {
                at += memchr::memchr(b'\n', rest).unwrap_or(rest.len() - 1);
            }
            if matches!(self.at, HeadPosition::Name(0))
                && let Some((after, length)) = self.whole_name(rest)
            {
                self.at = after;
                at += length;
                continue;
            }
            if let Some(word) = self.step(bytes.get(at).copied().unwrap_or_default()) {
                let first = (at + 1).saturating_sub(word);
                bytes.get_mut(first..=at).unwrap_or_default().fill(b' ');
            }
            at += 1;
        }
    }

    /// Moves behind a payload, or a chunk of it, of which nothing is left.
    fn end_payload(&mut self) {
        if matches!(self.at, HeadPosition::Payload(0)) {
            self.at = HeadPosition::default();
        } else if matches!(self.at, HeadPosition::Chunk(0)) {
            self.at = HeadPosition::ChunkSize { size: 0, is_over: false };
        }
    }

    /// Takes a byte. Returns the length of the word that it completes and that is to be overwritten.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut found = None;
        self.at = match self.at {
            HeadPosition::RequestLine { is_empty: true } if matches!(byte, b'\r' | b'\n') => {
                return None;
            }
            HeadPosition::RequestLine { .. } if byte == b'\n' => {
                self.payload = Framing::None;
                HeadPosition::Name(0)
            }
            HeadPosition::RequestLine { .. } => HeadPosition::RequestLine { is_empty: false },
            HeadPosition::Name(0) if byte == b'\r' => return None,
            HeadPosition::Name(0) if byte == b'\n' => self.payload.first(),
            HeadPosition::Name(length) => self.name(length, byte),
            HeadPosition::Line | HeadPosition::Offer(_) | HeadPosition::Length if byte == b'\n' => {
                HeadPosition::Name(0)
            }
            HeadPosition::Offer(mut offer) => {
                found = offer.step(byte);
                HeadPosition::Offer(offer)
            }
            HeadPosition::Length => {
                if let (Framing::Length(length), b'0'..=b'9') = (self.payload, byte) {
                    let digit = u64::from(byte - b'0');
                    self.payload = Framing::Length(length.saturating_mul(10).saturating_add(digit));
                }
                HeadPosition::Length
            }
            HeadPosition::ChunkSize { size, is_over } => chunk_size(size, is_over, byte),
            HeadPosition::Trailer { is_empty, ends } => trailer(is_empty, ends, byte),
            at @ (HeadPosition::Line
            | HeadPosition::Payload(_)
            | HeadPosition::Chunk(_)
            | HeadPosition::Lost) => at,
        };
        found
    }

    /// The place behind a name that `bytes` begin with, and the length of what leads there; `None` if the name may go on
    /// behind them. [`UpgradeFilter::name`] takes those in parts, byte by byte.
    fn whole_name(&mut self, bytes: &[u8]) -> Option<(HeadPosition, usize)> {
        let first = *bytes.first()?;
        if !matters(first) {
            return (!matches!(first, b'\r' | b'\n')).then_some((HeadPosition::Line, 1));
        }
        let longest = bytes.get(..=LONGEST_NAME)?;
        match memchr::memchr2(b':', b'\n', longest) {
            Some(end) if longest.get(end) == Some(&b':') => {
                Some((self.value_of(bytes.get(..end)?), end + 1))
            }
            Some(end) => Some((HeadPosition::Lost, end + 1)),
            None => Some((HeadPosition::Line, longest.len())),
        }
    }

    /// The place behind a byte of a field's name.
    fn name(&mut self, length: usize, byte: u8) -> HeadPosition {
        if byte == b'\n' {
            return HeadPosition::Lost;
        }
        if byte != b':' {
            return match self.name.get_mut(length) {
                Some(slot) if length > 0 || matters(byte) => {
                    *slot = byte;
                    HeadPosition::Name(length + 1)
                }
                _ => HeadPosition::Line,
            };
        }
        let name = self.name;
        self.value_of(name.get(..length).unwrap_or_default())
    }

    /// The place behind the colon of the field `name`.
    fn value_of(&mut self, name: &[u8]) -> HeadPosition {
        if name.eq_ignore_ascii_case(b"connection") {
            return HeadPosition::Offer(Offer { word: b"upgrade", matched: Some(0) });
        }
        if name.eq_ignore_ascii_case(b"upgrade") {
            return HeadPosition::Offer(Offer { word: b"websocket", matched: Some(0) });
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            self.payload = Framing::Length(0);
            return HeadPosition::Length;
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            // The library accepts `chunked` only.
            self.payload = Framing::Chunked;
        }
        HeadPosition::Line
    }
}

/// Whether a field that matters begins with this byte.
fn matters(first: u8) -> bool {
    matches!(first.to_ascii_lowercase(), b'c' | b't' | b'u')
}

impl Framing {
    /// The place behind the head.
    fn first(self) -> HeadPosition {
        match self {
            Framing::None | Framing::Length(0) => HeadPosition::default(),
            Framing::Length(length) => HeadPosition::Payload(length),
            Framing::Chunked => HeadPosition::ChunkSize { size: 0, is_over: false },
        }
    }
}

impl Offer {
    /// Takes a byte of the list. Returns the length of the word if it completes it.
    fn step(&mut self, byte: u8) -> Option<usize> {
        self.matched = match (byte, self.matched) {
            (b',', _) | (b' ' | b'\t', Some(0)) => Some(0),
            (byte, Some(count)) => {
                let is_next = |next: &u8| next.eq_ignore_ascii_case(&byte);
                self.word.get(count).filter(|next| is_next(next)).map(|_| count + 1)
            }
            (_, None) => None,
        };
        // At its last byte: the one behind it may arrive later, when this one has been passed on.
        let is_whole = self.matched == Some(self.word.len());
        is_whole.then(|| {
            self.matched = None;
            self.word.len()
        })
    }
}

/// The place behind a byte of the line with a chunk's size.
fn chunk_size(size: u64, is_over: bool, byte: u8) -> HeadPosition {
    const LINE_END: u64 = 2;
    match (byte, char::from(byte).to_digit(16)) {
        (b'\n', _) if size == 0 => HeadPosition::Trailer { is_empty: true, ends: false },
        (b'\n', _) => size.checked_add(LINE_END).map_or(HeadPosition::Lost, HeadPosition::Chunk),
        (_, Some(digit)) if !is_over => {
            let size = size.checked_mul(16).and_then(|size| size.checked_add(digit.into()));
            size.map_or(HeadPosition::Lost, |size| HeadPosition::ChunkSize { size, is_over })
        }
        _ => HeadPosition::ChunkSize { size, is_over: true },
    }
}

/// The place behind a byte of the lines that follow the last chunk.
fn trailer(is_empty: bool, ends: bool, byte: u8) -> HeadPosition {
    match (ends, byte) {
        (true, b'\n') if is_empty => HeadPosition::default(),
        (true, b'\n') => HeadPosition::Trailer { is_empty: true, ends: false },
        (true, _) => HeadPosition::Lost,
        (false, b'\r') => HeadPosition::Trailer { is_empty, ends: true },
        (false, _) => HeadPosition::Trailer { is_empty: false, ends: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests, and what is left of their offers.
    const REQUESTS: [(&str, &str); 7] = [
        (
            "POST / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
             Content-Length: 21\r\n\r\nConnection: Upgrade\r\n",
            "POST / HTTP/1.1\r\nConnection:        , HTTP2-Settings\r\nUpgrade: h2c\r\n\
             Content-Length: 21\r\n\r\nConnection: Upgrade\r\n",
        ),
        (
            "\r\nGET / HTTP/1.1\r\nconnection:upgrade\r\nUPGRADE: WebSocket\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nconnection:       \r\nUPGRADE:          \r\n\r\n",
        ),
        (
            "GET / HTTP/1.1\r\nConnection: not-upgrade, keep-alive ,\tUPGRADE\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: not-upgrade, keep-alive ,\t       \r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: Upgrade\r\n\r\n\
             16;x=upgrade\r\n\nConnection: Upgrade\r\n\r\n0\r\nConnection: Upgrade\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection:        \r\n\r\n\
             16;x=upgrade\r\n\nConnection: Upgrade\r\n\r\n0\r\nConnection: Upgrade\r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: 0\r\nX-Connection: upgrade\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\nX-Connection: upgrade\r\n\r\n",
        ),
        (
            "GET / HTTP/1.1\r\nUpgrade-Insecure-Requests: websocket\r\n\r\n",
            "GET / HTTP/1.1\r\nUpgrade-Insecure-Requests: websocket\r\n\r\n",
        ),
        (
            "GET / HTTP/1.1\nConnection: Upgrade\nUpgrade: websocket\n\n",
            "GET / HTTP/1.1\nConnection:        \nUpgrade:          \n\n",
        ),
    ];

    #[test]
    fn offers_are_overwritten_and_nothing_else() {
        let sent: String = REQUESTS.iter().map(|(sent, _)| *sent).collect();
        let expected: String = REQUESTS.iter().map(|(_, expected)| *expected).collect();
        let mut bytes = sent.clone().into_bytes();
        UpgradeFilter::default().overwrite(&mut bytes);
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    /// A word that arrives in two parts has another meaning when its second part is overwritten.
    #[test]
    fn no_cut_of_the_bytes_hides_an_offer_or_changes_a_payload() {
        let sent: String = REQUESTS.iter().map(|(sent, _)| *sent).collect();
        let expected: String = REQUESTS.iter().map(|(_, expected)| *expected).collect();
        for cut in 0..sent.len() {
            let mut bytes = sent.clone().into_bytes();
            let mut filter = UpgradeFilter::default();
            let (first, second) = bytes.split_at_mut(cut);
            filter.overwrite(first);
            filter.overwrite(second);
            let is_right = |(at, (&byte, wanted)): (usize, (&u8, u8))| {
                byte == wanted || (wanted == b' ' && at < cut && cut - at < b"websocket".len())
            };
            assert!(bytes.iter().zip(expected.bytes()).enumerate().all(is_right), "cut at {cut}");
            let changed = |at: usize| expected.as_bytes()[at] != sent.as_bytes()[at];
            let cut_word = cut > 0 && changed(cut - 1) && changed(cut);
            assert!(cut_word || bytes == expected.as_bytes(), "cut at {cut}");
        }
    }
}
