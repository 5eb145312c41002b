//! The rows of a response that handlers have written: what of it belongs to which record.

use std::borrow::Cow;
use std::ops::Range;

use tensorserve_codec::json::scan::Cursor;

/// The rows of a response, in the order of the records.
pub(crate) struct Rows<'a> {
    pub(crate) text: Cow<'a, [u8]>,
    /// Where each row is in the text; none has a line break.
    pub(crate) spans: Vec<Range<usize>>,
}

impl<'a> Rows<'a> {
    /// The rows of the response to `count` records: its lines, or, if it is one JSON document, the elements of
    /// the list `predictions` in it. `None` if there are not `count` of them. The response to one record may be
    /// one line of any kind.
    pub(crate) fn of(response: &'a [u8], count: usize) -> Option<Self> {
        let is_one_row = count == 1 && !response.trim_ascii().contains(&b'\n');
        if is_one_row || !is_document(response) {
            let spans = lines(response, count)?;
            return Some(Rows { text: Cow::Borrowed(response), spans });
        }
        // The lines of a document are none of a record.
        let text = match memchr::memchr(b'\n', response) {
            Some(_) => Cow::Owned(one_line(response)),
            None => Cow::Borrowed(response),
        };
        let spans = predictions(&text, count)?;
        Some(Rows { text, spans })
    }
}

/// Whether a response is one JSON object or list, with nothing behind it.
fn is_document(response: &[u8]) -> bool {
    let mut cursor = Cursor::new(response);
    let is_container = matches!(cursor.skip_space(), b'{' | b'[');
    is_container && cursor.skip_value().is_ok() && {
        cursor.skip_space();
        cursor.remaining() == 0
    }
}

fn lines(response: &[u8], count: usize) -> Option<Vec<Range<usize>>> {
    let mut spans = Vec::with_capacity(count);
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', response) {
        spans.push(start..end);
        start = end + 1;
        if spans.len() > count {
            return None;
        }
    }
    if start < response.len() {
        spans.push(start..response.len());
    }
    (spans.len() == count).then_some(spans)
}

/// The elements of the list `predictions` in a JSON object. `None` if it has no such list of `count`
/// elements, or several.
fn predictions(document: &[u8], count: usize) -> Option<Vec<Range<usize>>> {
    let mut cursor = Cursor::new(document);
    cursor.open_document().ok()?;
    if cursor.peek() != b'{' {
        return None;
    }
    let mut found = None;
    let mut is_member = cursor.open_object().ok()?;
    while is_member {
        if *cursor.name().ok()? != *b"predictions" {
            cursor.skip_value().ok()?;
        } else if found.replace(elements(&mut cursor, count)?).is_some() {
            return None;
        }
        is_member = cursor.next_member().ok()?;
    }
    found
}

/// The elements of the list that begins here.
fn elements(cursor: &mut Cursor<'_>, count: usize) -> Option<Vec<Range<usize>>> {
    if cursor.peek() != b'[' {
        return None;
    }
    let mut spans = Vec::with_capacity(count);
    let mut is_element = cursor.open_array();
    while is_element {
        if spans.len() == count {
            return None;
        }
        let start = cursor.offset();
        cursor.skip_value().ok()?;
        spans.push(start..cursor.offset());
        is_element = cursor.next_element().ok()?;
    }
    (spans.len() == count).then_some(spans)
}

/// A document on one line: JSON has no line breaks but between its tokens.
pub(crate) fn one_line(document: &[u8]) -> Vec<u8> {
    let mut line: Vec<u8> =
        document.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    while line.last().is_some_and(u8::is_ascii_whitespace) {
        line.pop();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(response: &str, count: usize) -> Option<Vec<String>> {
        let Rows { text, spans } = Rows::of(response.as_bytes(), count)?;
        let row = |span: Range<usize>| String::from_utf8_lossy(&text[span]).into_owned();
        Some(spans.into_iter().map(row).collect())
    }

    fn assert_rows(response: &str, expected: &[&str]) {
        let expected = expected.iter().map(|row| (*row).to_owned()).collect();
        assert_eq!(texts(response, Vec::len(&expected)), Some(expected), "{response}");
    }

    #[test]
    fn rows_are_lines() {
        assert_rows("[1]\n[2]\n", &["[1]", "[2]"]);
        assert_rows("[1]\n[2]", &["[1]", "[2]"]);
        assert_rows("\n\n", &["", ""]);
        assert_rows("1,2\n3,4\n", &["1,2", "3,4"]);
        assert_rows("{\"predictions\": [1]}", &["{\"predictions\": [1]}"]);
        let objects = ["{\"predictions\": [1]}", "{\"predictions\": [2, 3]}"];
        assert_rows(&objects.join("\n"), &objects);
        assert_eq!(texts("[1]\n[2]\n[3]\n", 2), None);
    }

    #[test]
    fn rows_are_the_predictions_of_a_document() {
        let json = "{\n    \"predictions\": [[1.5, 2], {\"a\": \"]\"}]\n}";
        assert_rows(json, &["[1.5, 2]", "{\"a\": \"]\"}"]);
        assert_rows("{\n\"predictions\": [[1,\n  2],\r\n 3]\n}\n", &["[1,  2]", "3"]);
        assert_rows("{\n\"predictions\": [[1.5]\n]}", &["[1.5]"]);
        // As many lines as records.
        assert_rows("{\n\"predictions\": [1, 2, 3]\n}", &["1", "2", "3"]);
    }

    #[test]
    fn other_predictions_than_those_of_the_document_do_not_count() {
        for before in [
            "\"debug\": {\"predictions\": [0, 0]}",
            "\"debug\": [{\"predictions\": [0, 0]}]",
            "\"text\": \"\\\"predictions\\\": [0, 0]\"",
            "\"predictions\\u0020\": [0, 0]",
            "\"predictions \": [0, 0]",
        ] {
            for key in ["predictions", "pr\\u0065dictions"] {
                assert_rows(&format!("{{{before}, \"{key}\": [10, 20]}}"), &["10", "20"]);
                assert_rows(&format!("{{\"{key}\" : [10, 20], {before}}}"), &["10", "20"]);
            }
            assert_eq!(texts(&format!("{{{before}}}"), 2), None, "{before}");
        }
    }

    #[test]
    fn documents_without_a_row_for_each_record_have_none() {
        for wrong in [
            "{\"predictions\": [1]}",
            "{\"predictions\": 1}",
            "{\"predictions\": [1, 2, 3]}",
            "{\"predictions\": [1, 2], \"predictions\": [3, 4]}",
            "{\"predictions\": {\"a\": [1, 2]}}",
            "[1,\n2]",
            "{}",
            "{\n}",
        ] {
            assert_eq!(texts(wrong, 2), None, "{wrong}");
        }
    }

    #[test]
    fn documents_become_lines() {
        assert_eq!(one_line(b"{\n  \"a\": 1\r\n}\n"), b"{  \"a\": 1}");
    }
}
