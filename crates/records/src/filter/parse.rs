//! The syntax of paths.

use tensorserve_tensor::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// One member, or one element.
    Name(String),
    Index(i64),
    /// Every element of an array, or every value of an object.
    All,
    Names(Vec<String>),
    Ranges(Vec<Range>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    Index(i64),
    Slice { start: Option<i64>, end: Option<i64> },
}

/// The steps of the path `text`.
pub(super) fn path(text: &str) -> Result<Vec<Step>> {
    Parser { text, at: 0 }.path()
}

struct Parser<'a> {
    text: &'a str,
    /// The byte that is next.
    at: usize,
}

impl Parser<'_> {
    fn path(mut self) -> Result<Vec<Step>> {
        if !self.take('$') {
            return Err(self.error("a path starts with $, which is the record"));
        }
        let mut steps = Vec::new();
        while let Some(next) = self.peek() {
            match next {
                '.' => {
                    self.advance(next);
                    steps.push(self.after_dot()?);
                }
                '[' => steps.push(self.bracket()?),
                _ => return Err(self.error("expected a dot or a bracket")),
            }
        }
        Ok(steps)
    }

    fn after_dot(&mut self) -> Result<Step> {
        match self.peek() {
            Some('[') => self.bracket(),
            Some('*') => {
                self.advance('*');
                Ok(Step::All)
            }
            Some('.') => Err(self.error("recursive descent (..) is not supported")),
            _ => {
                let ends = |c: char| c.is_whitespace() || ".[]*'\",:()?@$".contains(c);
                let rest = self.rest();
                let name = rest.split(ends).next().unwrap_or_default().to_owned();
                if name.is_empty() {
                    return Err(self.error("expected a name, * or a bracket after the dot"));
                }
                self.at += name.len();
                Ok(Step::Name(name))
            }
        }
    }

    fn bracket(&mut self) -> Result<Step> {
        self.advance('[');
        self.skip_space();
        let step = match self.peek() {
            Some('*') => {
                self.advance('*');
                Step::All
            }
            Some('\'' | '"') => self.names()?,
            Some('?' | '(') => return Err(self.error("filters and scripts are not supported")),
            _ => self.ranges()?,
        };
        self.skip_space();
        if !self.take(']') {
            return Err(self.error("expected ]"));
        }
        Ok(step)
    }

    fn names(&mut self) -> Result<Step> {
        let mut names = vec![self.quoted()?];
        while self.comma() {
            let name = self.quoted()?;
            if names.contains(&name) {
                return Err(self.error("the name is there twice"));
            }
            names.push(name);
        }
        if names.len() == 1 { Ok(Step::Name(names.remove(0))) } else { Ok(Step::Names(names)) }
    }

    fn quoted(&mut self) -> Result<String> {
        let Some(quote @ ('\'' | '"')) = self.peek() else {
            return Err(self.error("expected a name in quotes"));
        };
        self.advance(quote);
        let mut name = String::new();
        loop {
            let Some(next) = self.peek() else {
                return Err(self.error("the closing quote is missing"));
            };
            self.advance(next);
            match next {
                _ if next == quote => return Ok(name),
                '\\' => {
                    let Some(escaped @ ('\\' | '\'' | '"')) = self.peek() else {
                        return Err(self.error("only quotes and backslashes can be escaped"));
                    };
                    self.advance(escaped);
                    name.push(escaped);
                }
                _ => name.push(next),
            }
        }
    }

    fn ranges(&mut self) -> Result<Step> {
        let mut ranges = vec![self.range()?];
        while self.comma() {
            ranges.push(self.range()?);
        }
        match ranges[..] {
            [Range::Index(index)] => Ok(Step::Index(index)),
            _ => Ok(Step::Ranges(ranges)),
        }
    }

    fn range(&mut self) -> Result<Range> {
        let start = self.integer()?;
        self.skip_space();
        if !self.take(':') {
            let missing = || self.error("expected an index, a slice, * or a name in quotes");
            return start.map(Range::Index).ok_or_else(missing);
        }
        self.skip_space();
        let end = self.integer()?;
        self.skip_space();
        if self.peek() == Some(':') {
            return Err(self.error("a slice with a step is not supported"));
        }
        Ok(Range::Slice { start, end })
    }

    /// An integer, if one is next.
    fn integer(&mut self) -> Result<Option<i64>> {
        let rest = self.rest();
        let unsigned = rest.strip_prefix('-').unwrap_or(rest);
        let after = unsigned.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = rest.strip_suffix(after).unwrap_or_default();
        if number.is_empty() {
            return Ok(None);
        }
        let parsed = number.parse().map_err(|_| self.error("expected an integer of 64 bits"))?;
        self.at += number.len();
        Ok(Some(parsed))
    }

    fn comma(&mut self) -> bool {
        self.skip_space();
        let found = self.take(',');
        self.skip_space();
        found
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn advance(&mut self, over: char) {
        self.at += over.len_utf8();
    }

    fn take(&mut self, expected: char) -> bool {
        let is_next = self.peek() == Some(expected);
        if is_next {
            self.advance(expected);
        }
        is_next
    }

    fn skip_space(&mut self) {
        while self.take(' ') {}
    }

    fn error(&self, reason: &str) -> Error {
        let before = self.text.get(..self.at).unwrap_or(self.text);
        let character = before.chars().count() + 1;
        let text = self.text;
        Error::invalid(format!(
            "the JSONPath {text:?} is invalid at character {character}: {reason}"
        ))
    }
}
