//! Percent-encoding of URLs, and forms of text fields (`application/x-www-form-urlencoded`).

/// The names and values of the fields, decoded, in their order; invalid UTF-8 is replaced.
pub fn fields(form: &str) -> impl Iterator<Item = (String, String)> {
    let fields = form.split('&').map(|field| field.split_once('=').unwrap_or((field, "")));
    fields.map(|(name, value)| (form_decoded(name), form_decoded(value)))
}

/// The text of a form field: percent-encoded, with `+` for spaces.
fn form_decoded(text: &str) -> String {
    percent_decoded(&text.replace('+', " "))
}

/// The first value of field `name`.
pub fn field(form: &[u8], name: &str) -> Option<String> {
    let form = String::from_utf8_lossy(form);
    fields(&form).find(|(key, _)| key == name).map(|(_, value)| value)
}

/// The text with `%41` as `A`. Malformed escapes stay as they are; invalid UTF-8 is replaced.
pub fn percent_decoded(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if let (b'%', [high, low, after @ ..]) = (byte, tail)
            && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
        {
            bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
            rest = after;
            continue;
        }
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex_digit(byte: u8) -> Option<u32> {
    char::from(byte).to_digit(16)
}

/// The text for a path or a query: `%41` for every byte except letters, digits, `-`, `.` and `_`.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn encoded_text_is_valid_in_a_path_and_decodes_to_the_same_text(text in any::<String>()) {
            let encoded = percent_encoded(&text);
            prop_assert!(encoded.bytes().all(|b| b.is_ascii_graphic() && b != b'/'));
            prop_assert_eq!(percent_decoded(&encoded), text);
        }
    }

    #[test]
    fn fields_are_decoded() {
        let form = b"a=1+2%2B3&b%5B%5D=%C3%A9&a=later&c&d=%FF&e=%4";
        let read = |name| field(form, name);
        assert_eq!(read("a").as_deref(), Some("1 2+3"));
        assert_eq!(read("b[]").as_deref(), Some("é"));
        assert_eq!(read("c").as_deref(), Some(""));
        assert_eq!(read("d").as_deref(), Some("\u{fffd}"));
        assert_eq!(read("e").as_deref(), Some("%4"));
        assert_eq!(read("f"), None);
    }
}
