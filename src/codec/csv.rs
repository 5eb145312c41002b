//! Comma-separated values, as SageMaker's containers read them: lines split on line breaks and
//! trimmed, blank ones skipped; a quote anywhere opens or closes a part in which commas are text
//! and two quotes are one. No field goes over a line break, and no line is a header.

/// What a field is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'f> {
    /// A number as JSON writes them, without the white space around it; quoted or not.
    Number(&'f [u8]),
    /// Anything else.
    Text,
}

/// The lines that are not blank, trimmed.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty())
}

/// Puts the first field of `line` into `field`, and returns what is behind its comma; `None` if
/// it was the last.
pub fn field<'l>(line: &'l [u8], field: &mut Vec<u8>) -> Option<&'l [u8]> {
    field.clear();
    let mut rest = line;
    let mut is_quoted = false;
    loop {
        let stop =
            if is_quoted { memchr::memchr(b'"', rest) } else { memchr::memchr2(b'"', b',', rest) };
        let (text, behind) = rest.split_at_checked(stop.unwrap_or(rest.len()))?;
        field.extend_from_slice(text);
        match (behind, is_quoted) {
            ([b',', next @ ..], _) => return Some(next),
            ([b'"', b'"', next @ ..], true) => {
                field.push(b'"');
                rest = next;
            }
            ([_, next @ ..], _) => {
                is_quoted = !is_quoted;
                rest = next;
            }
            ([], _) => return None,
        }
    }
}

/// What `field` is taken for.
#[must_use]
pub fn kind(field: &[u8]) -> Field<'_> {
    let trimmed = field.trim_ascii();
    if is_number(trimmed) { Field::Number(trimmed) } else { Field::Text }
}

/// Whether `text` is `-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?`.
fn is_number(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, mut rest) = digits(text);
    if whole.is_empty() || (whole.len() > 1 && whole.first() == Some(&b'0')) {
        return false;
    }
    if let Some(behind) = rest.strip_prefix(b".") {
        let (fraction, behind) = digits(behind);
        if fraction.is_empty() {
            return false;
        }
        rest = behind;
    }
    if let [b'e' | b'E', behind @ ..] = rest {
        let behind = match behind {
            [b'+' | b'-', behind @ ..] => behind,
            _ => behind,
        };
        let (exponent, behind) = digits(behind);
        return !exponent.is_empty() && behind.is_empty();
    }
    rest.is_empty()
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Vec<String> {
        let mut all = Vec::new();
        let mut rest = Some(line.as_bytes());
        let mut one = Vec::new();
        while let Some(text) = rest {
            rest = field(text, &mut one);
            all.push(String::from_utf8(one.clone()).expect("text"));
        }
        all
    }

    #[test]
    fn quotes_hold_commas_and_quotes() {
        assert_eq!(fields("a,b"), ["a", "b"]);
        assert_eq!(fields("1,,"), ["1", "", ""]);
        assert_eq!(fields(r#""a,b",c"#), ["a,b", "c"]);
        assert_eq!(fields(r#""a""b",c"#), ["a\"b", "c"]);
        assert_eq!(fields(r#"a"b,c"d"#), ["ab,cd"]);
        assert_eq!(fields(r#"",""#), [","]);
        assert_eq!(fields(r#""""",1"#), ["\"", "1"]);
        assert_eq!(fields(r#""",x"#), ["", "x"]);
        assert_eq!(fields(r#""open,1"#), ["open,1"]);
        assert_eq!(fields(""), [""]);
    }

    #[test]
    fn numbers_are_those_of_json() {
        for number in ["0", "-0", "10", "1.5", "-1.0e5", "1E-3", "1e+30", " 7\t"] {
            assert!(matches!(kind(number.as_bytes()), Field::Number(_)), "{number}");
        }
        for text in ["", "-", "+1", ".5", "1.", "007", "1e", "1e+", "nan", "NaN", "1;2", "0x1"] {
            assert_eq!(kind(text.as_bytes()), Field::Text, "{text}");
        }
    }

    #[test]
    fn blank_lines_are_no_rows() {
        let text = b"\xef\xbb\xbf1,2\r\n\r\n  3,4  \n\n";
        assert_eq!(lines(text).collect::<Vec<_>>(), [&b"1,2"[..], b"3,4"]);
    }
}
