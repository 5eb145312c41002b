//! Makes terms of documents.

use std::collections::HashSet;

use super::super::estimator::Estimator;
use super::accents::Accents;
use super::alphanumeric::is_space;
use super::pattern::TokenPattern;
use super::stop_words::ENGLISH;
use tensorserve_tensor::error::Result;

/// The longest sequence of words or characters that is a term. The number of terms of a document is the
/// product of this and its length.
const MAX_SEQUENCE: usize = 64;

/// What a term is.
enum TermKind {
    /// Words, without those that are to be left out.
    Words { pattern: TokenPattern, stop_words: HashSet<Box<str>> },
    /// Characters.
    Characters,
    /// Characters within words.
    CharactersOfWords,
}

/// Makes terms of documents.
pub(super) struct Analyzer {
    unit: TermKind,
    is_lowercase: bool,
    accents: Accents,
    /// The fewest and the most units of a term.
    sequence: (usize, usize),
}

/// Memory that is used for one document after the other.
#[derive(Default)]
pub(super) struct AnalyzerScratch {
    text: String,
    joined: String,
    places: Vec<usize>,
}

impl Analyzer {
    /// Reads the settings of a vectorizer.
    pub(super) fn read(estimator: &Estimator) -> Result<Self> {
        for setting in ["preprocessor", "tokenizer"] {
            if estimator.find(&[setting]).is_some() {
                return Err(estimator.unsupported(format_args!("{setting}, which is a function,")));
            }
        }
        if !matches!(estimator.text("input")?, "content" | "") {
            return Err(estimator.unsupported("input of files"));
        }
        let wrong = || estimator.unsupported("an analyzer that is a function");
        let unit = match estimator.attribute(&["analyzer"])?.text().ok_or_else(wrong)? {
            "word" => TermKind::Words {
                pattern: TokenPattern::read(estimator)?,
                stop_words: read_stop_words(estimator)?,
            },
            "char" => TermKind::Characters,
            "char_wb" => TermKind::CharactersOfWords,
            other => return Err(estimator.damaged(format_args!("analyzer={other:?} is not valid"))),
        };
        let accents = match estimator.find(&["strip_accents"]).map(|value| value.text()) {
            None => Accents::Keep,
            Some(Some("ascii")) => Accents::Ascii,
            Some(Some("unicode")) => Accents::Unicode,
            Some(_) => return Err(estimator.unsupported("strip_accents as a function")),
        };
        let is_lowercase = estimator.flag("lowercase", true)?;
        Ok(Analyzer { unit, is_lowercase, accents, sequence: read_sequence(estimator)? })
    }

    /// Calls `take` with each term of `document`.
    pub(super) fn analyze(
        &self,
        document: &str,
        scratch: &mut AnalyzerScratch,
        mut take: impl FnMut(&str),
    ) {
        let AnalyzerScratch { text, joined, places } = scratch;
        text.clear();
        match (self.is_lowercase, document.is_ascii()) {
            (true, false) => text.push_str(&document.to_lowercase()),
            (is_lowercase, _) => {
                text.push_str(document);
                if is_lowercase {
                    text.make_ascii_lowercase();
                }
            }
        }
        self.accents.strip(text);
        match &self.unit {
            TermKind::Words { pattern, stop_words } => {
                let mut words = Vec::new();
                pattern.find(text, |word| {
                    if stop_words.is_empty() || !stop_words.contains(word) {
                        words.push(word);
                    }
                });
                self.word_sequences(&words, joined, take);
            }
            TermKind::Characters => {
                collapse_spaces(text, joined);
                place_characters(joined, places);
                let (fewest, most) = self.sequence;
                for count in fewest..=most {
                    windows(joined, places, count, &mut take);
                }
            }
            TermKind::CharactersOfWords => {
                for word in text.split(is_space).filter(|word| !word.is_empty()) {
                    joined.clear();
                    joined.push(' ');
                    joined.push_str(word);
                    joined.push(' ');
                    place_characters(joined, places);
                    self.parts_of_word(joined, places, &mut take);
                }
            }
        }
    }

    /// Calls `take` with sequences of words, which have a space between them.
    fn word_sequences(&self, words: &[&str], joined: &mut String, mut take: impl FnMut(&str)) {
        let (fewest, most) = self.sequence;
        for count in fewest..=most.min(words.len().max(1)) {
            if count == 1 {
                words.iter().for_each(|word| take(word));
                continue;
            }
            for sequence in words.windows(count) {
                joined.clear();
                for (index, word) in sequence.iter().enumerate() {
                    if index > 0 {
                        joined.push(' ');
                    }
                    joined.push_str(word);
                }
                take(joined);
            }
        }
    }

    /// Calls `take` with the parts of a word between two spaces. A short word is a part itself, once.
    fn parts_of_word(&self, word: &str, places: &[usize], take: &mut impl FnMut(&str)) {
        let length = places.len().saturating_sub(1);
        let (fewest, most) = self.sequence;
        for count in fewest..=most {
            if count >= length {
                take(word);
                return;
            }
            windows(word, places, count, take);
        }
    }
}

/// Calls `take` with all sequences of `count` characters of `text`, whose characters begin at `places`.
fn windows(text: &str, places: &[usize], count: usize, take: &mut impl FnMut(&str)) {
    for (start, end) in places.iter().zip(places.iter().skip(count)) {
        if let Some(part) = text.get(*start..*end) {
            take(part);
        }
    }
}

/// Where each character of `text` begins, and where the last ends.
fn place_characters(text: &str, places: &mut Vec<usize>) {
    places.clear();
    places.extend(text.char_indices().map(|(at, _)| at));
    places.push(text.len());
}

/// Writes `text` to `to`, with a space for each two or more spaces.
fn collapse_spaces(text: &str, to: &mut String) {
    to.clear();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let mut count = 0;
        while is_space(c) && rest.next_if(|next| is_space(*next)).is_some() {
            count += 1;
        }
        to.push(if count > 0 { ' ' } else { c });
    }
}

/// The fewest and the most units of a term.
fn read_sequence(estimator: &Estimator) -> Result<(usize, usize)> {
    let wrong = || estimator.damaged("ngram_range is not a pair of counts");
    let range = estimator.vector(&["ngram_range"])?;
    let [fewest, most] = *range else { return Err(wrong()) };
    if !(fewest >= 1.0 && fewest <= most) {
        return Err(wrong());
    }
    if most > MAX_SEQUENCE as f64 {
        let most = format_args!("ngram_range with more than {MAX_SEQUENCE} words or characters");
        return Err(estimator.unsupported(most));
    }
    Ok((fewest as usize, most as usize))
}

/// The words that are left out.
fn read_stop_words(estimator: &Estimator) -> Result<HashSet<Box<str>>> {
    let Some(value) = estimator.find(&["stop_words"]) else { return Ok(HashSet::new()) };
    if value.text() == Some("english") {
        return Ok(ENGLISH.into_iter().map(Box::from).collect());
    }
    let wrong = || estimator.damaged("stop_words is neither \"english\" nor a list of words");
    let mut words = HashSet::new();
    // The argument of a set that is an object.
    let list = match value.arguments().first() {
        Some(argument) => argument.items(),
        None => value.items(),
    };
    for word in list.ok_or_else(wrong)? {
        let word = word.text().ok_or_else(wrong)?;
        estimator.charge(1 + word.len() / size_of::<f64>())?;
        words.insert(Box::from(word));
    }
    Ok(words)
}
