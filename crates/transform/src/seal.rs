//! Files of text with a checksum at their end, by which damage is found.

/// What stands between the text and its checksum.
const MARK: &str = "\ncrc32c ";

/// A text with its checksum.
pub(crate) fn sealed(mut text: Vec<u8>) -> Vec<u8> {
    let end = format!("{MARK}{}\n", summary(&text));
    text.extend_from_slice(end.as_bytes());
    text
}

/// The text in a sealed file; `None` if a byte of it has changed, or some are missing.
pub(crate) fn opened(file: &[u8]) -> Option<&[u8]> {
    let mark = memchr::memmem::rfind(file, MARK.as_bytes())?;
    let (text, end) = file.split_at_checked(mark)?;
    let sum = end.strip_prefix(MARK.as_bytes())?.strip_suffix(b"\n")?;
    (sum == summary(text).as_bytes()).then_some(text)
}

/// The CRC-32C and the length of a text.
pub(crate) fn summary(text: &[u8]) -> String {
    format!("{:08x}-{}", crc32c::crc32c(text), text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_or_missing_byte_is_found() {
        let text = br#"{"entry":3,"objects":[{"key":"a"}]}"#;
        let file = sealed(text.to_vec());
        assert_eq!(opened(&file), Some(&text[..]));
        for at in 0..file.len() {
            assert_eq!(opened(&file[..at]), None, "cut at {at}");
            for bit in 0..8 {
                let mut changed = file.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(opened(&changed), None, "bit {bit} of byte {at}");
            }
        }
        assert_eq!(opened(text), None);
        assert_eq!(opened(&[&file[..], b"x"].concat()), None);
        assert_eq!(opened(&sealed(Vec::new())), Some(&b""[..]));
    }
}
