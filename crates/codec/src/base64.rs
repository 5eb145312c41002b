//! Base64 in the variants that clients send.

use ::base64::Engine;
use ::base64::alphabet;
use ::base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// The alphabets that a decoder accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `+` and `/` only, as in TensorFlow Serving.
    Standard,
    /// Either `+` and `/` or `-` and `_`.
    Any,
}

/// Decodes `text` and appends the bytes to `out`. Padding is optional; ASCII white space is
/// ignored.
///
/// # Errors
/// [`Base64Error`], with `out` unchanged.
pub fn decode(text: &[u8], alphabet: Alphabet, out: &mut Vec<u8>) -> Result<(), Base64Error> {
    let start = out.len();
    let url_safe = alphabet == Alphabet::Any && memchr::memchr2(b'-', b'_', text).is_some();
    let engine = if url_safe { &URL_SAFE } else { &STANDARD };
    if engine.decode_vec(text, out).is_ok() {
        return Ok(());
    }
    out.truncate(start);
    if text.iter().any(u8::is_ascii_whitespace) {
        let dense: Vec<u8> = text.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
        if engine.decode_vec(dense, out).is_ok() {
            return Ok(());
        }
        out.truncate(start);
    }
    Err(Base64Error)
}

/// The text is not valid base64.
#[derive(Debug, PartialEq, Eq)]
pub struct Base64Error;

/// Appends `bytes` as padded standard base64 to `out`.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    append(&STANDARD, bytes, out);
}

/// Appends `bytes` as padded URL-safe base64 to `out`.
pub fn encode_url_safe(bytes: &[u8], out: &mut Vec<u8>) {
    append(&URL_SAFE, bytes, out);
}

/// The length of the padded text of `len` bytes.
#[must_use]
pub fn encoded_len(len: usize) -> usize {
    len.div_ceil(3).saturating_mul(4)
}

fn append(engine: &GeneralPurpose, bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len(bytes.len()), 0);
    let written =
        out.get_mut(start..).map_or(0, |rest| engine.encode_slice(bytes, rest).unwrap_or(0));
    out.truncate(start + written);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str, alphabet: Alphabet) -> Option<Vec<u8>> {
        let mut out = b"kept".to_vec();
        decode(text.as_bytes(), alphabet, &mut out).ok()?;
        Some(out.split_off(4))
    }

    #[test]
    fn padding_is_optional_and_space_is_skipped() {
        for text in ["aGVsbG8=", "aGVsbG8", "aGVs\nbG8="] {
            assert_eq!(decoded(text, Alphabet::Standard).as_deref(), Some(&b"hello"[..]));
        }
    }

    #[test]
    fn the_url_safe_alphabet_is_taken_only_where_allowed() {
        assert_eq!(decoded("_-8=", Alphabet::Any), Some(vec![0xff, 0xef]));
        assert_eq!(decoded("/+8=", Alphabet::Any), Some(vec![0xff, 0xef]));
        assert_eq!(decoded("_-8=", Alphabet::Standard), None);
        assert_eq!(decoded("a*b", Alphabet::Any), None);
    }

    #[test]
    fn encoding_appends() {
        let mut out = b"x".to_vec();
        encode(&[0xff, 0xef], &mut out);
        encode_url_safe(&[0xff, 0xef], &mut out);
        assert_eq!(out, b"x/+8=_-8=");
    }
}
