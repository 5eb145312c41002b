//! Regular expressions of Java, for the library of regular expressions here.
//!
//! Both mean the same by most of the syntax. Where Java means something else, the expression is
//! rewritten; what cannot be rewritten is refused: look-around, back references, possessive quantifiers,
//! flags, `$`, `\b`, and what only Java has.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// The largest program that a regular expression may become, in bytes.
const MAX_PROGRAM_BYTES: usize = 1 << 20;

/// The longest expression.
const MAX_PATTERN: usize = 1 << 12;

/// What Java's `\s` matches, in a class.
const SPACES: &str = r"\t\n\x0b\x0c\r\x20";

/// A regular expression of Java.
pub(super) struct JavaRegex(Regex);

impl JavaRegex {
    /// `None` for an expression that is not valid, or has another meaning here.
    pub(super) fn new(pattern: &str) -> Option<Self> {
        if pattern.len() > MAX_PATTERN {
            return None;
        }
        let pattern = translate(pattern)?;
        let regex = RegexBuilder::new(&pattern).size_limit(MAX_PROGRAM_BYTES).build().ok()?;
        Some(JavaRegex(regex))
    }

    /// All matches.
    pub(super) fn find<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        self.0.find_iter(text).map(|found| found.as_str())
    }

    /// What is between matches, as `String.split` of Java returns it: without an empty start before a match
    /// of nothing, and without empty texts at the end.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let (mut parts, mut start) = (Vec::new(), 0);
        for found in self.0.find_iter(text) {
            // A match of nothing at the start or at the end splits off nothing.
            if found.is_empty() && (found.start() == 0 || found.start() == text.len()) {
                continue;
            }
            parts.extend(text.get(start..found.start()));
            start = found.end();
        }
        if start == 0 && parts.is_empty() {
            return vec![text];
        }
        parts.extend(text.get(start..));
        while parts.last().is_some_and(|part| part.is_empty()) {
            parts.pop();
        }
        parts
    }
}

/// The expression with the same meaning here.
fn translate(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars().peekable();
    let mut is_quantified = false;
    while let Some(c) = rest.next() {
        let was_quantified = std::mem::take(&mut is_quantified);
        match c {
            '\\' => escape(&mut rest, &mut out, false)?,
            '[' => class(&mut rest, &mut out)?,
            '.' => out.push_str(r"[^\n\r\x{85}\x{2028}\x{2029}]"),
            // At the end Java also matches before a last line break.
            '$' => return None,
            '(' => {
                out.push('(');
                if rest.next_if_eq(&'?').is_some() {
                    // Groups without a number; flags, look-around and names are left out.
                    rest.next_if_eq(&':')?;
                    out.push_str("?:");
                }
            }
            '*' | '+' | '?' | '}' => {
                // Possessive quantifiers.
                if was_quantified && c == '+' {
                    return None;
                }
                is_quantified = !was_quantified;
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    Some(out)
}

/// Translates what follows a backslash.
fn escape(rest: &mut Peekable<Chars<'_>>, out: &mut String, in_class: bool) -> Option<()> {
    let c = rest.next()?;
    let (open, close) = if in_class { ("", "") } else { ("[", "]") };
    match c {
        's' => out.push_str(&format!("{open}{SPACES}{close}")),
        'S' => out.push_str(&format!("[^{SPACES}]")),
        'd' => out.push_str(&format!("{open}0-9{close}")),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str(&format!("{open}a-zA-Z0-9_{close}")),
        'W' => out.push_str("[^a-zA-Z0-9_]"),
        'h' => out.push_str(&format!(
            "{open}\\x20\\t\\x{{a0}}\\x{{1680}}\\x{{180e}}\\x{{2000}}-\\x{{200a}}\\x{{202f}}\\x{{205f}}\\x{{3000}}{close}"
        )),
        't' | 'n' | 'r' | 'f' | 'a' => {
            out.push('\\');
            out.push(c);
        }
        'e' => out.push_str(r"\x1b"),
        'x' => code_point(rest, out, 2)?,
        'u' => code_point(rest, out, 4)?,
        'p' | 'P' => property(rest, out, c == 'P')?,
        'A' if !in_class => out.push_str(r"\A"),
        'z' if !in_class => out.push_str(r"\z"),
        _ if c.is_ascii_alphanumeric() => return None,
        // The library refuses to escape characters that have no meaning.
        _ => out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
    }
    Some(())
}

/// Translates a character by its number.
fn code_point(rest: &mut Peekable<Chars<'_>>, out: &mut String, digits: usize) -> Option<()> {
    let mut number = 0;
    for _ in 0..digits {
        number = number * 16 + rest.next()?.to_digit(16)?;
    }
    char::from_u32(number)?;
    out.push_str(&format!("\\x{{{number:x}}}"));
    Some(())
}

/// Translates a class of characters by its name.
fn property(rest: &mut Peekable<Chars<'_>>, out: &mut String, is_negated: bool) -> Option<()> {
    let mut name = String::new();
    match rest.next()? {
        '{' => loop {
            match rest.next()? {
                '}' => break,
                c => name.push(c),
            }
        },
        c => name.push(c),
    }
    // The classes of POSIX have ASCII only.
    let posix = match name.as_str() {
        "Lower" => Some("a-z"),
        "Upper" => Some("A-Z"),
        "ASCII" => Some(r"\x00-\x7f"),
        "Alpha" => Some("a-zA-Z"),
        "Digit" => Some("0-9"),
        "Alnum" => Some("a-zA-Z0-9"),
        "Punct" => Some(r"!-/:-@\[-`\{-\x7e"),
        "Space" => Some(SPACES),
        "Blank" => Some(r"\x20\t"),
        "XDigit" => Some("0-9a-fA-F"),
        _ => None,
    };
    if let Some(posix) = posix {
        let negation = if is_negated { "^" } else { "" };
        out.push_str(&format!("[{negation}{posix}]"));
        return Some(());
    }
    let general = match name.strip_prefix("Is").unwrap_or(&name) {
        "Alphabetic" if name.starts_with("Is") => "Alphabetic",
        "L" | "M" | "N" | "P" | "S" | "Z" | "C" | "Lu" | "Ll" | "Lt" | "Lm" | "Lo" | "Mn"
        | "Mc" | "Me" | "Nd" | "Nl" | "No" | "Pc" | "Pd" | "Ps" | "Pe" | "Pi" | "Pf" | "Po"
        | "Sm" | "Sc" | "Sk" | "So" | "Zs" | "Zl" | "Zp" | "Cc" | "Cf" => {
            name.strip_prefix("Is").unwrap_or(&name)
        }
        _ => return None,
    };
    out.push_str(&format!("\\{}{{{general}}}", if is_negated { 'P' } else { 'p' }));
    Some(())
}

/// Translates a class, behind its bracket.
fn class(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Option<()> {
    out.push('[');
    if rest.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut is_first = true;
    loop {
        let c = rest.next()?;
        match c {
            ']' if !is_first => break,
            // Classes in classes, and what the library takes for an operator.
            ']' | '[' => return None,
            '&' if rest.peek() == Some(&'&') => return None,
            '\\' => escape(rest, out, true)?,
            '-' => match rest.peek() {
                // At an end it stands for itself.
                Some(']') => out.push_str(r"\-"),
                Some('[' | '\\') | None => return None,
                Some(_) if is_first => out.push_str(r"\-"),
                Some('-') => return None,
                Some(_) => out.push('-'),
            },
            '&' | '~' | '^' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
        is_first = false;
    }
    out.push(']');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_split_and_find_as_in_java() {
        let split = |pattern: &str, text: &str| -> Vec<String> {
            let regex = JavaRegex::new(pattern).expect(pattern);
            regex.split(text).into_iter().map(str::to_owned).collect()
        };
        // As `"…".split("…")` of Java 17.
        assert_eq!(split(r"\s", " a  b "), ["", "a", "", "b"]);
        assert_eq!(split(r"\s+", ""), [""]);
        assert_eq!(split(r"\s+", "  "), [""; 0]);
        assert_eq!(split("", "abc"), ["a", "b", "c"]);
        assert_eq!(split(r"\W+", "é,b"), ["", "b"]);
        assert_eq!(split(r"\s", "a\u{a0}b"), ["a\u{a0}b"]);
        assert_eq!(split(r"[,;\s]+", "a, b;c"), ["a", "b", "c"]);
        assert_eq!(split(r"\p{Punct}", "a.b«c"), ["a", "b«c"]);
        assert_eq!(split(r"[^a-z\d-]", "a-1 b_"), ["a-1", "b"]);
        let words: Vec<String> = JavaRegex::new(r"[\p{L}'-]+")
            .expect("valid")
            .find("don't x-ray 東京!")
            .map(str::to_owned)
            .collect();
        assert_eq!(words, ["don't", "x-ray", "東京"]);
    }

    #[test]
    fn expressions_with_another_meaning_are_refused() {
        for pattern in [
            "a$",
            r"\bword",
            "a++",
            "a*+",
            "(?i)a",
            "(?=a)",
            r"(a)\1",
            "[a-z&&[b]]",
            "[a[b]]",
            r"\R",
            "[a--b]",
            "a{2}+",
            r"\p{IsLatin}",
            r"\Qa\E",
            "(",
            "[a",
        ] {
            assert!(JavaRegex::new(pattern).is_none(), "{pattern}");
        }
    }
}
