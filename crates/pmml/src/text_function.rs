//! The built-in functions of strings, and those that format numbers and dates.

use regex::{Regex, RegexBuilder};

use super::field::{MISSING, PmmlType, ValueKind, indicator};
use super::strings::{MAX_MADE_BYTES, RowStrings};
use super::temporal;
use super::value::text_of;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// The most bytes of a pattern, and of its compiled form.
const MAX_PATTERN: usize = 2048;
const MAX_COMPILED: usize = 1 << 17;

/// The most groups in a replacement, each of which may be as long as the text.
const MAX_REFERENCES: usize = 16;

/// The largest width of a formatted number.
const MAX_WIDTH: usize = 256;

#[derive(Debug)]
pub(super) enum TextFunction {
    Uppercase,
    Lowercase,
    Length,
    Trim,
    Substring,
    /// Of arguments of these types.
    Concat(Box<[PmmlType]>),
    Matches(Regex),
    /// With a replacement in the syntax of `regex`.
    Replace(Regex, Box<str>),
    FormatNumber(NumberFormat),
    FormatDatetime(ValueKind, Box<str>),
}

impl TextFunction {
    /// The function `name` of arguments of these types, and the type of its result, if it is one
    /// without a pattern and takes these.
    pub(super) fn named(name: &str, types: &[PmmlType]) -> Option<(TextFunction, PmmlType)> {
        let kinds: Vec<ValueKind> = types.iter().map(|one| one.kind).collect();
        let text = PmmlType::TEXT;
        Some(match (name, &*kinds) {
            ("uppercase", [ValueKind::Text]) => (TextFunction::Uppercase, text),
            ("lowercase", [ValueKind::Text]) => (TextFunction::Lowercase, text),
            ("stringLength", [ValueKind::Text]) => (TextFunction::Length, PmmlType::INTEGER),
            ("trimBlanks", [ValueKind::Text]) => (TextFunction::Trim, text),
            ("substring", [ValueKind::Text, ValueKind::Number, ValueKind::Number]) => {
                (TextFunction::Substring, text)
            }
            ("concat", [_, ..]) => (TextFunction::Concat(types.into()), text),
            _ => return None,
        })
    }

    /// The function `name`, whose last arguments, `patterns`, are constants.
    pub(super) fn with_patterns(
        element: XmlElement,
        name: &str,
        types: &[PmmlType],
        patterns: &[&str],
    ) -> Result<(TextFunction, PmmlType)> {
        let kinds: Vec<ValueKind> = types.iter().map(|one| one.kind).collect();
        match (name, &*kinds, patterns) {
            ("matches", [ValueKind::Text, ..], [pattern]) => {
                Ok((TextFunction::Matches(compile(element, pattern)?), PmmlType::BOOLEAN))
            }
            ("replace", [ValueKind::Text, ..], [pattern, replacement]) => {
                let regex = compile(element, pattern)?;
                let replacement = replacement_of(replacement, regex.captures_len());
                if replacement.matches("${").count() > MAX_REFERENCES {
                    let message = format!("more than {MAX_REFERENCES} groups in a replacement");
                    return Err(element.unsupported(message));
                }
                Ok((TextFunction::Replace(regex, replacement.into()), PmmlType::TEXT))
            }
            ("formatNumber", [ValueKind::Number, ..], [pattern]) => {
                let format = NumberFormat::read(element, pattern)?;
                Ok((TextFunction::FormatNumber(format), PmmlType::TEXT))
            }
            ("formatDatetime", [kind, ..], [pattern]) if kind.is_temporal() => {
                Ok((TextFunction::FormatDatetime(*kind, (*pattern).into()), PmmlType::TEXT))
            }
            _ => {
                Err(element
                    .damaged(format!("function={name:?} needs {}", Self::arguments_of(name))))
            }
        }
    }

    /// The number of last arguments of the function `name` that are patterns.
    pub(super) fn pattern_count(name: &str) -> usize {
        match name {
            "replace" => 2,
            "matches" | "formatNumber" | "formatDatetime" => 1,
            _ => 0,
        }
    }

    pub(super) fn is_known(name: &str) -> bool {
        matches!(
            name,
            "uppercase" | "lowercase" | "stringLength" | "trimBlanks" | "substring" | "concat"
        )
    }

    /// What the function `name` takes, for errors.
    pub(super) fn arguments_of(name: &str) -> &'static str {
        match name {
            "substring" => "a string and 2 numbers",
            "concat" => "one or more values",
            "replace" => "a string, a pattern and a replacement",
            "matches" => "a string and a pattern",
            "formatNumber" => "a number and a pattern",
            "formatDatetime" => "a date or time and a pattern",
            _ => "1 string",
        }
    }

    pub(super) fn evaluate(&self, values: &[f64], strings: &RowStrings) -> f64 {
        let first = values.first().copied().unwrap_or(MISSING);
        if let TextFunction::Concat(types) = self {
            return concat(values, types, strings);
        }
        if values.iter().any(|value| value.is_nan()) {
            return MISSING;
        }
        match self {
            TextFunction::Uppercase => strings.make(&strings.text(first).to_uppercase()),
            TextFunction::Lowercase => strings.make(&strings.text(first).to_lowercase()),
            #[allow(clippy::cast_precision_loss)]
            TextFunction::Length => strings.text(first).encode_utf16().count() as f64,
            TextFunction::Trim => strings.make(strings.text(first).trim()),
            TextFunction::Substring => substring(values, strings),
            TextFunction::Concat(_) => MISSING,
            TextFunction::Matches(regex) => indicator(regex.is_match(&strings.text(first))),
            TextFunction::Replace(regex, replacement) => {
                let text = strings.text(first);
                replaced(regex, &text, replacement).map_or(MISSING, |text| strings.make(&text))
            }
            TextFunction::FormatNumber(format) => strings.make(&format.apply(first)),
            TextFunction::FormatDatetime(kind, pattern) => {
                strings.make(&format_datetime(first, *kind, pattern))
            }
        }
    }
}

/// The texts of the values one after another, without missing ones; missing if all are.
fn concat(values: &[f64], types: &[PmmlType], strings: &RowStrings) -> f64 {
    if values.iter().all(|value| value.is_nan()) {
        return MISSING;
    }
    let mut all = String::new();
    for (value, data_type) in values.iter().zip(types) {
        if !value.is_nan() {
            all.push_str(&text_of(*value, *data_type, strings));
        }
        if all.len() > MAX_MADE_BYTES {
            return MISSING;
        }
    }
    strings.make(&all)
}

/// `text` with all matches replaced; `None` if it, or the result, is too long.
fn replaced(regex: &Regex, text: &str, replacement: &str) -> Option<String> {
    if text.len() > MAX_MADE_BYTES {
        return None;
    }
    let (mut out, mut end) = (String::new(), 0);
    for captures in regex.captures_iter(text) {
        let found = captures.get(0)?;
        out.push_str(text.get(end..found.start())?);
        captures.expand(replacement, &mut out);
        end = found.end();
        if out.len() > MAX_MADE_BYTES {
            return None;
        }
    }
    out.push_str(text.get(end..)?);
    Some(out)
}

/// `length` characters from character number `start` on, which counts from 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked.
fn substring(values: &[f64], strings: &RowStrings) -> f64 {
    let [code, start, length] = values else {
        return MISSING;
    };
    if *start < 1.0 || *length < 0.0 {
        return MISSING;
    }
    let text = strings.text(*code);
    let part: String = text.chars().skip(*start as usize - 1).take(*length as usize).collect();
    strings.make(&part)
}

fn compile(element: XmlElement, pattern: &str) -> Result<Regex> {
    if pattern.len() > MAX_PATTERN {
        return Err(element.unsupported(format!("a pattern of more than {MAX_PATTERN} bytes")));
    }
    let compiled = RegexBuilder::new(&with_ascii_classes(pattern))
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
        .nest_limit(32)
        .build();
    compiled.map_err(|error| {
        let error = error.to_string();
        let why = error.lines().last().unwrap_or_default().trim().to_owned();
        element.unsupported(format!("the pattern {pattern:?} ({why})"))
    })
}

/// A pattern in which `\w`, `\d` and `\s` mean ASCII characters, as in Java.
fn with_ascii_classes(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        if next != '\\' {
            out.push(next);
            continue;
        }
        match rest.next() {
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('s') => out.push_str(r"[\t\n\x0B\f\r ]"),
            Some('S') => out.push_str(r"[^\t\n\x0B\f\r ]"),
            Some(other) => {
                out.push('\\');
                out.push(other);
            }
            None => out.push('\\'),
        }
    }
    out
}

/// A replacement of Java, with `$1` for a group and `\$` for a dollar sign, in the syntax of `regex`.
fn replacement_of(text: &str, groups: usize) -> String {
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '\\' => match rest.next() {
                Some('$') => out.push_str("$$"),
                Some(literal) => out.push(literal),
                None => {}
            },
            '$' => {
                let mut number: Option<usize> = None;
                while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                    let longer = number.unwrap_or(0) * 10 + digit as usize;
                    if number.is_some() && longer >= groups {
                        break;
                    }
                    number = Some(longer);
                    rest.next();
                }
                match number {
                    Some(number) => out.push_str(&format!("${{{number}}}")),
                    None => out.push_str("$$"),
                }
            }
            literal => out.push(literal),
        }
    }
    out
}

/// A format of C for one number, such as `%5.2f`, with text around it.
#[derive(Debug)]
pub(super) struct NumberFormat {
    before: Box<str>,
    after: Box<str>,
    is_left: bool,
    has_zeros: bool,
    has_plus: bool,
    width: usize,
    precision: Option<usize>,
    conversion: NumberConversion,
}

#[derive(Clone, Copy, Debug)]
enum NumberConversion {
    Integer,
    Fixed,
    Exponent { is_upper: bool },
}

impl NumberFormat {
    fn read(element: XmlElement, pattern: &str) -> Result<Self> {
        NumberFormat::parse(pattern)
            .ok_or_else(|| element.unsupported(format!("the number format {pattern:?}")))
    }

    fn parse(pattern: &str) -> Option<Self> {
        let start = pattern.find('%')?;
        let (before, rest) = pattern.split_at(start);
        let rest = rest.strip_prefix('%')?;
        let flags = rest.find(|c| !matches!(c, '-' | '0' | '+'))?;
        let (flags, rest) = rest.split_at(flags);
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (width, rest) = rest.split_at(end);
        let width = if width.is_empty() { 0 } else { width.parse().ok()? };
        let (precision, rest) = match rest.strip_prefix('.') {
            None => (None, rest),
            Some(rest) => {
                let end = rest.find(|c: char| !c.is_ascii_digit())?;
                let (digits, rest) = rest.split_at(end);
                (Some(digits.parse().ok()?), rest)
            }
        };
        let conversion = match rest.chars().next()? {
            'd' | 'i' => NumberConversion::Integer,
            'f' => NumberConversion::Fixed,
            'e' => NumberConversion::Exponent { is_upper: false },
            'E' => NumberConversion::Exponent { is_upper: true },
            _ => return None,
        };
        let after = rest.get(1..)?;
        let is_valid = !after.contains('%')
            && width <= MAX_WIDTH
            && precision.is_none_or(|precision: usize| precision <= MAX_WIDTH);
        is_valid.then(|| NumberFormat {
            before: before.into(),
            after: after.into(),
            is_left: flags.contains('-'),
            has_zeros: flags.contains('0'),
            has_plus: flags.contains('+'),
            width,
            precision,
            conversion,
        })
    }

    fn apply(&self, value: f64) -> String {
        let size = value.abs();
        let precision = self.precision.unwrap_or(6);
        let digits = match self.conversion {
            NumberConversion::Integer => format!("{:.0}", size.round_ties_even()),
            NumberConversion::Fixed => format!("{size:.precision$}"),
            NumberConversion::Exponent { is_upper } => {
                let text = format!("{size:.precision$e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                let (sign, exponent) =
                    if exponent < 0 { ('-', -exponent) } else { ('+', exponent) };
                let letter = if is_upper { 'E' } else { 'e' };
                format!("{mantissa}{letter}{sign}{exponent:02}")
            }
        };
        let sign = match value.is_sign_negative() && value != 0.0 {
            true => "-",
            false if self.has_plus => "+",
            false => "",
        };
        let padding = self.width.saturating_sub(digits.len() + sign.len());
        let number = if self.is_left {
            format!("{sign}{digits}{}", " ".repeat(padding))
        } else if self.has_zeros {
            format!("{sign}{}{digits}", "0".repeat(padding))
        } else {
            format!("{}{sign}{digits}", " ".repeat(padding))
        };
        format!("{}{number}{}", self.before, self.after)
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The name number `index`, and its first three letters.
fn name_of(names: &'static [&'static str], index: i64) -> (&'static str, &'static str) {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let name = names.get(index).copied().unwrap_or_default();
    (name, name.get(..3).unwrap_or_default())
}

/// A date or time in a pattern of `strftime`, in English.
fn format_datetime(value: f64, kind: ValueKind, pattern: &str) -> String {
    let time = temporal::civil(value);
    let mut out = String::new();
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        if next != '%' {
            out.push(next);
            continue;
        }
        let hour12 = (time.hour + 11) % 12 + 1;
        let half = if time.hour < 12 { "AM" } else { "PM" };
        let part = match rest.next() {
            Some('Y') => format!("{:04}", time.year),
            Some('y') => format!("{:02}", time.year.rem_euclid(100)),
            Some('C') => format!("{:02}", time.year / 100),
            Some('m') => format!("{:02}", time.month),
            Some('d') => format!("{:02}", time.day),
            Some('e') => format!("{:2}", time.day),
            Some('j') => format!("{:03}", time.year_day),
            Some('H') => format!("{:02}", time.hour),
            Some('I') => format!("{hour12:02}"),
            Some('M') => format!("{:02}", time.minute),
            Some('S') => format!("{:02}", time.second),
            Some('p') => half.to_owned(),
            Some('B') => name_of(&MONTHS, time.month - 1).0.to_owned(),
            Some('b' | 'h') => name_of(&MONTHS, time.month - 1).1.to_owned(),
            Some('A') => name_of(&DAYS, time.weekday).0.to_owned(),
            Some('a') => name_of(&DAYS, time.weekday).1.to_owned(),
            Some('u') => format!("{}", (time.weekday + 6) % 7 + 1),
            Some('w') => format!("{}", time.weekday),
            Some('D') => format!("{:02}/{:02}/{:02}", time.month, time.day, time.year % 100),
            Some('F') => temporal::format(value, ValueKind::Date),
            Some('T') => temporal::format(value, ValueKind::Time),
            Some('R') => format!("{:02}:{:02}", time.hour, time.minute),
            Some('r') => format!("{hour12:02}:{:02}:{:02} {half}", time.minute, time.second),
            Some('s') if kind != ValueKind::Time => format!("{:.0}", value.floor()),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        out.push_str(&part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_in_c() {
        // From printf.
        for (pattern, value, text) in [
            ("%3d", 2.0, "  2"),
            ("%-4d|", -7.0, "-7  |"),
            ("%05d", -42.0, "-0042"),
            ("%+.2f EUR", 1.005, "+1.00 EUR"),
            ("a %8.3f b", -2.91859, "a   -2.919 b"),
            ("%.2e", 12345.678, "1.23e+04"),
            ("%E", 0.0, "0.000000E+00"),
        ] {
            let format = NumberFormat::parse(pattern).expect(pattern);
            assert_eq!(format.apply(value), text, "{pattern}");
        }
        for bad in ["", "d", "%", "%q", "%d %d", "%9999999d", "%.f"] {
            assert!(NumberFormat::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn dates_are_formatted_as_in_c() {
        // From date -d "2004-08-20 15:02:01" (LC_ALL=C).
        let value = temporal::parse("2004-08-20T15:02:01", ValueKind::DateTime).expect("a time");
        let text = format_datetime(value, ValueKind::DateTime, "%m/%d/%y %a %B %I:%M:%S %p %j %%");
        assert_eq!(text, "08/20/04 Fri August 03:02:01 PM 233 %");
    }

    #[test]
    fn classes_of_patterns_are_those_of_java() {
        let regex = Regex::new(&with_ascii_classes(r"^[\w.]+\s\D\\w$")).expect("a pattern");
        assert!(regex.is_match(r"a.b x\w"));
        assert!(!regex.is_match(r"ä.b x\w"));
    }

    #[test]
    fn replacements_of_java_are_understood() {
        let regex = Regex::new("(a)(b)").expect("a pattern");
        let replacement = replacement_of(r"<$2x$1>\$1$", regex.captures_len());
        assert_eq!(regex.replace_all("cab", replacement.as_str()), "c<bxa>$1$");
    }
}
