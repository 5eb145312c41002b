//! Text for logs and terminals that holds names and messages from elsewhere: of files, clients, libraries. What
//! would move the cursor, change colours or hide text is written as an escape.

use std::borrow::Cow;

/// `text` with escapes for what is not to be printed. Line breaks and tabs stay.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// A message with escapes as in [`printable`], and its further lines are indented, so that no name in it can look like
/// a line of its own.
pub(super) fn message(text: &str) -> String {
    printable(text).replace('\n', "\n    ")
}

/// `text` with escapes for what is not to be printed, on one line: line breaks and tabs are escaped, too.
pub(super) fn on_one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_escaped(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Control characters, separators of lines, and marks that change the direction of text.
fn is_hidden(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_to_be_printed_is_escaped() {
        assert!(matches!(printable("a é\t\"x\"\n"), Cow::Borrowed("a é\t\"x\"\n")));
        assert_eq!(
            printable("a\r\u{1b}[2J\u{9b}\0\u{7f}\n"),
            "a\\r\\u{1b}[2J\\u{9b}\\u{0}\\u{7f}\n"
        );
        assert_eq!(message("a\nready\r\n"), "a\n    ready\\r\n    ");
        assert_eq!(on_one_line("a\nb\tc"), "a\\nb\\tc");
        assert_eq!(on_one_line("gpj\u{202e}exe\u{2028}"), "gpj\\u{202e}exe\\u{2028}");
    }
}
