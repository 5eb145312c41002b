//! Words by a regular expression (`token_pattern`), with the meaning that it has in Python.

use regex::{Regex, RegexBuilder};

use super::super::estimator::Estimator;
use super::alphanumeric::{is_space, is_word};
use tensorserve_tensor::error::Result;

/// The largest program that a regular expression may become, in bytes.
const MAX_PROGRAM_BYTES: usize = 1 << 20;

/// Takes the place of a character that is neither a space nor part of a word: a private one, which is
/// neither for the library of regular expressions.
const OTHER: char = '\u{e000}';

/// Takes the place of a character that is part of a word for Python only: a letter.
const LETTER: char = '\u{1c0}';

/// Takes the place of a character that is a space for Python only.
const SPACE: char = '\u{2003}';

/// What is a word.
pub(super) enum TokenPattern {
    /// The longest sequences of at least `least` characters of words.
    Words { least: usize },
    /// What a regular expression matches.
    Expression(PythonRegex),
}

impl TokenPattern {
    /// Reads `token_pattern`.
    pub(super) fn read(estimator: &Estimator) -> Result<Self> {
        let pattern = estimator.text("token_pattern")?;
        if let Some(least) = least_word(pattern) {
            return Ok(TokenPattern::Words { least });
        }
        let regex = PythonRegex::new(pattern).ok_or_else(|| {
            estimator.unsupported(format_args!(
                "the regular expression token_pattern={pattern:?} (with characters other than ASCII, $, \
                 look-around, or syntax that only Python has)"
            ))
        })?;
        Ok(TokenPattern::Expression(regex))
    }

    /// Calls `take` with each word of `text`.
    pub(super) fn find<'t>(&self, text: &'t str, take: impl FnMut(&'t str)) {
        match self {
            TokenPattern::Words { least } => find_words(text, *least, take),
            TokenPattern::Expression(regex) => regex.find(text, take),
        }
    }
}

/// The number of characters of the shortest word, if `pattern` matches all words of a least length: the default
/// `(?u)\b\w\w+\b`, `\w+` and the like.
fn least_word(pattern: &str) -> Option<usize> {
    let rest = pattern.strip_prefix("(?u)").unwrap_or(pattern);
    let rest = rest.strip_prefix(r"\b").unwrap_or(rest);
    let rest = rest.strip_suffix(r"\b").unwrap_or(rest);
    let mut rest = rest.strip_suffix('+')?;
    let mut least = 0;
    while let Some(shorter) = rest.strip_suffix(r"\w") {
        rest = shorter;
        least += 1;
    }
    (rest.is_empty() && least > 0).then_some(least)
}

/// Calls `take` with the longest sequences of at least `least` characters of words.
fn find_words<'t>(text: &'t str, least: usize, mut take: impl FnMut(&'t str)) {
    let (mut start, mut count) = (0, 0);
    let mut end_word = |start: usize, end: usize, count: usize| {
        if count >= least
            && let Some(word) = text.get(start..end)
        {
            take(word);
        }
    };
    for (at, c) in text.char_indices() {
        if is_word(c) {
            if count == 0 {
                start = at;
            }
            count += 1;
        } else if count > 0 {
            end_word(start, at, count);
            count = 0;
        }
    }
    if count > 0 {
        end_word(start, text.len(), count);
    }
}

/// A regular expression of Python's. `\w`, `\s` and `\b` have another meaning for the library, for some
/// characters above ASCII. In the text that is searched, these are replaced by ones about which both
/// agree; the expression has only ASCII, and so cannot tell.
pub(super) struct PythonRegex {
    regex: Regex,
    digit: Regex,
    /// Whether a match is what the only group matches.
    has_group: bool,
}

impl PythonRegex {
    /// `None` for an expression that is not valid, or may have another meaning in Python.
    fn new(pattern: &str) -> Option<Self> {
        if !pattern.is_ascii() || !means_the_same(pattern) {
            return None;
        }
        let build =
            |pattern: &str| RegexBuilder::new(pattern).size_limit(MAX_PROGRAM_BYTES).build().ok();
        let regex = build(pattern)?;
        let groups = regex.captures_len().saturating_sub(1);
        // What an expression that matches nothing finds differs, too.
        if groups > 1 || regex.is_match("") {
            return None;
        }
        Some(PythonRegex { regex, digit: build(r"\A\d\z")?, has_group: groups == 1 })
    }

    fn find<'t>(&self, text: &'t str, mut take: impl FnMut(&'t str)) {
        if text.bytes().all(|byte| byte.is_ascii() && !(0x1c..=0x1f).contains(&byte)) {
            self.find_in(text, |start, end| {
                if let Some(word) = text.get(start..end) {
                    take(word);
                }
            });
            return;
        }
        // Where the character that begins at a byte of `replaced` begins in `text`.
        let (mut replaced, mut places) = (String::with_capacity(text.len()), Vec::new());
        for (at, c) in text.char_indices() {
            replaced.push(self.replacement(c));
            places.resize(replaced.len(), at);
        }
        // A match ends where the next character begins. The places of a character's other bytes are
        // never asked for.
        let place = |at: usize| match at.checked_sub(1) {
            None => Some(0),
            Some(last) => {
                let start = *places.get(last)?;
                let c = text.get(start..)?.chars().next()?;
                Some(start + c.len_utf8())
            }
        };
        self.find_in(&replaced, |start, end| {
            if let (Some(start), Some(end)) = (place(start), place(end))
                && let Some(word) = text.get(start..end)
            {
                take(word);
            }
        });
    }

    /// The character that is searched instead of `c`.
    fn replacement(&self, c: char) -> char {
        if ('\x1c'..='\x1f').contains(&c) {
            return SPACE;
        }
        if c.is_ascii() || is_space(c) {
            return c;
        }
        if !is_word(c) {
            return OTHER;
        }
        let is_word_for_both = c.is_alphabetic() || self.digit.is_match(c.encode_utf8(&mut [0; 4]));
        if is_word_for_both { c } else { LETTER }
    }

    fn find_in(&self, text: &str, mut take: impl FnMut(usize, usize)) {
        if !self.has_group {
            self.regex.find_iter(text).for_each(|found| take(found.start(), found.end()));
            return;
        }
        for found in self.regex.captures_iter(text) {
            // A group that takes no part in a match is empty.
            let (start, end) = found.get(1).map_or((0, 0), |group| (group.start(), group.end()));
            take(start, end);
        }
    }
}

/// Whether an expression has none of the parts that are valid for both, with different meanings.
fn means_the_same(pattern: &str) -> bool {
    let mut in_class = false;
    let mut at_class_start = false;
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        let was_class_start = std::mem::take(&mut at_class_start);
        match c {
            '\\' => {
                let plain = |c: char| "bBdDsSwWnrtfv.*+?()[]{}|^\\-/'\"#&~@%=!:;,<_ ".contains(c);
                if !rest.next().is_some_and(|c| plain(c) && c != '<') {
                    return false;
                }
            }
            '[' if in_class => return false,
            '[' => {
                in_class = true;
                at_class_start = true;
                if rest.next_if_eq(&'^').is_some() {}
            }
            ']' if in_class && !was_class_start => in_class = false,
            '&' | '~' | '-' if in_class && rest.peek() == Some(&c) => return false,
            '$' if !in_class => return false,
            '{' if !in_class && rest.peek() == Some(&',') => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pattern: &str, text: &str) -> Vec<String> {
        let pattern = match least_word(pattern) {
            Some(least) => TokenPattern::Words { least },
            None => TokenPattern::Expression(PythonRegex::new(pattern).expect("supported")),
        };
        let mut words = Vec::new();
        pattern.find(text, |word| words.push(word.to_owned()));
        words
    }

    /// The expected words are those of `re.findall` of Python 3.11.
    #[test]
    fn words_are_those_of_python() {
        let text =
            "a b\u{e9}b\u{e9} \u{bd}x don't e\u{301}t\u{301}e _x 1\u{1f}22 \u{4e2d}\u{6587}!";
        for (pattern, want) in [
            (
                r"(?u)\b\w\w+\b",
                vec!["b\u{e9}b\u{e9}", "\u{bd}x", "don", "_x", "22", "\u{4e2d}\u{6587}"],
            ),
            (
                r"(?u)\b\w{2,}\b",
                vec!["b\u{e9}b\u{e9}", "\u{bd}x", "don", "_x", "22", "\u{4e2d}\u{6587}"],
            ),
            (r"[a-z]+'[a-z]+", vec!["don't"]),
            (r"\b([a-z])\W", vec!["a", "t", "e", "t", "e"]),
            (r"\S\S\S+", vec!["b\u{e9}b\u{e9}", "don't", "e\u{301}t\u{301}e", "\u{4e2d}\u{6587}!"]),
            (r"\d+", vec!["1", "22"]),
        ] {
            assert_eq!(words(pattern, text), want, "{pattern}");
        }
    }

    #[test]
    fn expressions_of_another_meaning_are_refused() {
        for pattern in
            ["\u{e9}+", "a$", "(?=a)a", "[a&&b]", "[[a]", "a{,3}", "a*", "(a)(b)", r"\Aa\Z", "("]
        {
            assert!(PythonRegex::new(pattern).is_none(), "{pattern}");
        }
    }
}
