//! The fields of requests (RFC 7541).

use tensorserve_http2::hpack::encode_string;

/// A block of a request with these fields, which changes no table, so that it can be sent again and again.
pub(crate) fn block(
    path: &str,
    (scheme, authority): (&str, &str),
    others: &[(&str, &str)],
) -> Vec<u8> {
    // POST over http or https, by their places in the static table; the names of the path and the authority as well.
    let mut block = vec![0x83, if scheme == "https" { 0x87 } else { 0x86 }, 0x04];
    encode_string(&mut block, path.as_bytes());
    block.push(0x01);
    encode_string(&mut block, authority.as_bytes());
    for (name, value) in others {
        block.push(0);
        encode_string(&mut block, name.to_ascii_lowercase().as_bytes());
        encode_string(&mut block, value.as_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_http2::hpack::HpackDecoder;

    #[test]
    fn a_request_is_read_back() {
        let path = format!("/{}", "long".repeat(100));
        let block = block(
            &path,
            ("http", "h:1"),
            &[("Content-Type", "application/grpc"), ("te", "trailers")],
        );
        let mut found = Vec::new();
        let mut decoder = HpackDecoder::default();
        let read = decoder.decode(&block, |field| {
            found.push((
                field.name.as_str().to_owned(),
                field.value.to_str().expect("text").to_owned(),
            ));
        });
        read.expect("a block");
        let want = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path.as_str()),
            (":authority", "h:1"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        assert_eq!(found, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
