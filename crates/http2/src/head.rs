//! The heads of requests and of responses (RFC 9113, section 8).

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, TE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};

use crate::hpack::{FieldName, HpackField, encode_field, encode_status};

/// Headers of HTTP/1 that no request of HTTP/2 has.
const OF_CONNECTIONS: [HeaderName; 5] = [
    http::header::CONNECTION,
    http::header::TRANSFER_ENCODING,
    http::header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The fields of a block, as they arrive.
#[derive(Default)]
pub(crate) struct FieldList {
    method: Option<HeaderValue>,
    scheme: Option<HeaderValue>,
    path: Option<HeaderValue>,
    authority: Option<HeaderValue>,
    headers: HeaderMap,
    size: usize,
    is_malformed: bool,
}

/// What a block of fields is.
#[derive(Debug)]
pub(crate) enum ReadHead {
    Request(CallHead),
    /// It has more bytes than allowed.
    TooLarge,
    Malformed,
}

/// The head of a request.
#[derive(Clone, Debug)]
pub(crate) struct CallHead {
    method: Method,
    path: PathAndQuery,
    headers: HeaderMap,
    /// How many bytes its body has, if it says so.
    pub(crate) length: Option<u64>,
}

impl CallHead {
    /// The request with this body. Its URI is the path alone.
    pub(crate) fn request<B>(self, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = Uri::from(self.path);
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        request
    }
}

/// The last head of a connection, whose block says the same as long as the table of its fields does not change: clients
/// repeat their heads.
#[derive(Default)]
pub(crate) struct LastHead {
    block: Vec<u8>,
    changes: u64,
    head: Option<CallHead>,
}

/// A block of more bytes is not kept.
const KEPT: usize = 1024;

impl LastHead {
    /// The head that this block has, if it is the last one.
    pub(crate) fn repeated(&self, block: &[u8], changes: u64) -> Option<CallHead> {
        let head = self.head.as_ref()?;
        (self.changes == changes && self.block == block).then(|| head.clone())
    }

    /// Keeps a head whose block has not changed the table.
    pub(crate) fn keep(&mut self, block: &[u8], changes: u64, head: &CallHead) {
        if block.len() > KEPT {
            return;
        }
        self.block.clear();
        self.block.extend_from_slice(block);
        (self.changes, self.head) = (changes, Some(head.clone()));
    }
}

impl FieldList {
    /// Takes a field. Those of a list with more than `most` bytes are not kept.
    pub(crate) fn take(&mut self, field: HpackField, most: usize) {
        self.size = self.size.saturating_add(field.size);
        if self.size > most {
            return;
        }
        let value = field.value;
        let is_first = match field.name {
            FieldName::Header(name) => {
                let is_wrong =
                    OF_CONNECTIONS.contains(&name) || name == TE && value.as_bytes() != b"trailers";
                self.is_malformed |= is_wrong;
                self.headers.append(name, value);
                return;
            }
            FieldName::Malformed | FieldName::Status => false,
            FieldName::Method => self.method.replace(value).is_none(),
            FieldName::Scheme => self.scheme.replace(value).is_none(),
            FieldName::Path => self.path.replace(value).is_none(),
            FieldName::Authority => self.authority.replace(value).is_none(),
        };
        // They come before the others.
        self.is_malformed |= !is_first || !self.headers.is_empty();
    }

    /// The head of a request. The authority is the header `host`: over a UNIX socket some clients write there what no
    /// authority may be.
    pub(crate) fn into_request(mut self, most: usize) -> ReadHead {
        if self.size > most {
            return ReadHead::TooLarge;
        }
        let (Some(method), Some(_), Some(path)) = (self.method, self.scheme, self.path) else {
            return ReadHead::Malformed;
        };
        let (Ok(method), Some(path)) = (Method::from_bytes(method.as_bytes()), parsed(&path))
        else {
            return ReadHead::Malformed;
        };
        let Ok(length) = content_length(&self.headers) else { return ReadHead::Malformed };
        if self.is_malformed || method == Method::CONNECT {
            return ReadHead::Malformed;
        }
        if let Some(authority) = self.authority {
            self.headers.entry(HOST).or_insert(authority);
        }
        ReadHead::Request(CallHead { method, path, headers: self.headers, length })
    }

    /// Whether these may be the trailers of a request.
    pub(crate) fn are_trailers(&self, most: usize) -> bool {
        let has_pseudo = self.method.is_some()
            || self.scheme.is_some()
            || self.path.is_some()
            || self.authority.is_some();
        self.size <= most && !self.is_malformed && !has_pseudo
    }

    pub(crate) fn into_trailers(self) -> HeaderMap {
        self.headers
    }
}

fn parsed(path: &HeaderValue) -> Option<PathAndQuery> {
    let path = path.as_bytes();
    if !path.starts_with(b"/") && path != b"*" {
        return None;
    }
    PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(path)).ok()
}

/// The length that a head declares.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, ()> {
    let mut all = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = all.next() else { return Ok(None) };
    if all.any(|other| other != first) {
        return Err(());
    }
    let text = first.to_str().map_err(|_| ())?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(());
    }
    text.parse().map(Some).map_err(|_| ())
}

/// The block of the head of a response.
pub(crate) fn response_block(status: http::StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let mut block = Vec::with_capacity(64);
    encode_status(&mut block, status);
    fields(&mut block, headers);
    block
}

/// The block of trailers.
pub(crate) fn trailers_block(trailers: &HeaderMap) -> Vec<u8> {
    let mut block = Vec::with_capacity(64);
    fields(&mut block, trailers);
    block
}

fn fields(block: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        if !OF_CONNECTIONS.contains(name) {
            encode_field(block, name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::HpackDecoder;

    fn read(fields: &[(&str, &str)]) -> ReadHead {
        list(fields).into_request(1000)
    }

    fn list(fields: &[(&str, &str)]) -> FieldList {
        let (mut block, mut list) = (Vec::new(), FieldList::default());
        for (name, value) in fields {
            let length = |text: &str| u8::try_from(text.len()).expect("short");
            block.extend_from_slice(&[0, length(name)]);
            block.extend_from_slice(name.as_bytes());
            block.push(length(value));
            block.extend_from_slice(value.as_bytes());
        }
        let mut decoder = HpackDecoder::default();
        decoder.decode(&block, |field| list.take(field, 1000)).expect("readable");
        list
    }

    const PSEUDO: [(&str, &str); 3] = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b")];

    fn with(more: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let all = PSEUDO.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let leaked =
            more.iter().map(|(name, value)| (&*(*name).to_owned().leak(), (*value).into()));
        all.chain(leaked).collect()
    }

    fn read_with(more: &[(&str, &str)]) -> ReadHead {
        let all = with(more);
        read(&all.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
    }

    #[test]
    fn requests_are_read() {
        let more = [("te", "trailers"), ("content-length", "12"), ("a", "1"), ("a", "2")];
        let ReadHead::Request(head) = read_with(&more) else { panic!("malformed") };
        assert_eq!(head.length, Some(12));
        let request = head.request(());
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/a/b"));
        assert_eq!(request.version(), Version::HTTP_2);
        assert_eq!(request.headers().get_all("a").iter().count(), 2);
    }

    #[test]
    fn the_authority_may_be_anything() {
        let fields = [&PSEUDO[..], &[(":authority", "/tmp/x y.sock")]].concat();
        let ReadHead::Request(head) = read(&fields) else { panic!("malformed") };
        assert_eq!(head.headers["host"], "/tmp/x y.sock");
    }

    #[test]
    fn malformed_requests_are_refused() {
        for left_out in 0..3 {
            let mut fields = PSEUDO.to_vec();
            fields.remove(left_out);
            assert!(matches!(read(&fields), ReadHead::Malformed), "{fields:?}");
        }
        let wrong = [
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip"),
            ("content-length", "-1"),
            ("content-length", ""),
            ("content-length", "99999999999999999999"),
            (":path", "/again"),
            (":status", "200"),
            ("Upper", "case"),
        ];
        for field in wrong {
            assert!(matches!(read_with(&[field]), ReadHead::Malformed), "{field:?}");
        }
        let late = [("a", "1"), (":authority", "x")];
        assert!(matches!(read_with(&late), ReadHead::Malformed));
        let two = [("content-length", "1"), ("content-length", "2")];
        assert!(matches!(read_with(&two), ReadHead::Malformed));
        for path in ["", "no-slash", "http://x/a", "/a b"] {
            let fields = [(":method", "POST"), (":scheme", "http"), (":path", path)];
            assert!(matches!(read(&fields), ReadHead::Malformed), "{path:?}");
        }
        let connect = [(":method", "CONNECT"), (":scheme", "http"), (":path", "/")];
        assert!(matches!(read(&connect), ReadHead::Malformed));
    }

    #[test]
    fn large_heads_are_not_kept() {
        let long = "x".repeat(100);
        let many: Vec<_> = (0..20).map(|_| ("a", long.as_str())).collect();
        assert!(matches!(read_with(&many), ReadHead::TooLarge));
        assert!(list(&many).headers.len() < 10);
        assert!(!list(&many).are_trailers(1000));
    }

    #[test]
    fn trailers_have_no_pseudo_headers() {
        assert!(list(&[("a", "1")]).are_trailers(1000));
        assert!(!list(&[(":path", "/")]).are_trailers(1000));
    }

    #[test]
    fn a_head_is_repeated_while_the_table_is_the_same() {
        let ReadHead::Request(head) = read_with(&[("a", "1")]) else { panic!("malformed") };
        let mut last = LastHead::default();
        assert!(last.repeated(b"block", 0).is_none());
        last.keep(b"block", 3, &head);
        let again = last.repeated(b"block", 3).expect("the same");
        assert_eq!((again.path.as_str(), &again.headers), ("/a/b", &head.headers));
        assert!(last.repeated(b"block", 4).is_none(), "the table has changed");
        assert!(last.repeated(b"other", 3).is_none());
        last.keep(&[0; KEPT + 1], 3, &head);
        assert!(last.repeated(b"block", 3).is_some(), "a large one is not kept");
    }
}
