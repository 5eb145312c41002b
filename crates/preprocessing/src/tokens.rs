//! The step `tokens`: texts become the indices of their words in a vocabulary.

use std::collections::HashMap;

use super::file::StepTable;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{AlignedVec, Strings};

/// The vocabulary's word for unknown words, if the step does not name another.
const UNKNOWN_WORD: &str = "[UNK]";

/// The step `tokens`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenStep {
    /// Words and their indices.
    vocabulary: HashMap<String, i64>,
    lower_case: bool,
    /// The index for a word that is not in the vocabulary.
    unknown: i64,
    /// How texts are split into words; `None` if each is looked up as a whole.
    split: Option<WordSplit>,
}

#[derive(Clone, Debug, PartialEq)]
struct WordSplit {
    /// Whether punctuation marks are words of their own.
    punctuation: bool,
    /// The number of indices of each text.
    length: usize,
    /// The value after the last word.
    padding: i64,
}

impl TokenStep {
    /// Reads the step. The length defaults to that of the model's shape `model_dims`.
    pub(super) fn read(table: &mut StepTable, model_dims: Option<&[i64]>) -> Result<Self> {
        let lines = table.lines("vocabulary")?;
        let lines = lines.ok_or_else(|| {
            table.error("a step \"tokens\" needs vocabulary, a file with one word per line")
        })?;
        let punctuation = [("whitespace", Some(false)), ("words", Some(true)), ("none", None)];
        let punctuation = table.choice("split", &punctuation)?.unwrap_or(Some(false));
        let lower_case = table.flag("lower_case")?.unwrap_or(true);
        let mut vocabulary = HashMap::with_capacity(lines.len());
        for (index, word) in (0..).zip(lines) {
            if let Some(previous) = vocabulary.insert(word.clone(), index) {
                return Err(table.error(format_args!(
                    "vocabulary: {word:?} is in line {} and in line {}",
                    previous + 1,
                    index + 1
                )));
            }
        }
        let unknown = read_unknown(table, &vocabulary)?;
        let split = match punctuation {
            Some(punctuation) => Some(WordSplit::read(table, punctuation, model_dims)?),
            None => None,
        };
        Ok(TokenStep { vocabulary, lower_case, unknown, split })
    }

    /// The dimensions that a text becomes: none if it is looked up as a whole.
    pub(super) fn dims(&self) -> Vec<i64> {
        let length = self.split.as_ref().and_then(|split| i64::try_from(split.length).ok());
        length.into_iter().collect()
    }

    /// The smallest and the largest value.
    pub(super) fn range(&self) -> (i64, i64) {
        let last = i64::try_from(self.vocabulary.len()).unwrap_or(i64::MAX) - 1;
        let padding = self.split.as_ref().map_or(0, |split| split.padding);
        (0.min(self.unknown).min(padding), last.max(self.unknown).max(padding))
    }

    /// Appends the indices of each text to `out`.
    pub(super) fn append(&self, texts: &Strings, out: &mut AlignedVec<i64>) {
        for text in texts.iter() {
            let text = String::from_utf8_lossy(text);
            let text = if self.lower_case { text.to_lowercase().into() } else { text };
            let Some(split) = &self.split else {
                out.push(self.index(&text));
                continue;
            };
            let end = out.len() + split.length;
            for part in text.split_whitespace() {
                self.append_part(part, split.punctuation, end, out);
                if out.len() >= end {
                    break;
                }
            }
            out.resize(end, split.padding);
        }
    }

    /// Appends the indices of the words of a text without white space, up to the length `end`.
    fn append_part(
        &self,
        mut part: &str,
        punctuation: bool,
        end: usize,
        out: &mut AlignedVec<i64>,
    ) {
        while punctuation && out.len() < end {
            let Some((at, mark)) = part.char_indices().find(|(_, c)| is_punctuation(*c)) else {
                break;
            };
            let (word, rest) = part.split_at(at);
            let (mark, rest) = rest.split_at(mark.len_utf8());
            if !word.is_empty() {
                out.push(self.index(word));
            }
            if out.len() < end {
                out.push(self.index(mark));
            }
            part = rest;
        }
        if !part.is_empty() && out.len() < end {
            out.push(self.index(part));
        }
    }

    fn index(&self, word: &str) -> i64 {
        self.vocabulary.get(word).copied().unwrap_or(self.unknown)
    }
}

impl WordSplit {
    fn read(table: &mut StepTable, punctuation: bool, model_dims: Option<&[i64]>) -> Result<Self> {
        let declared = model_dims.and_then(|dims| usize::try_from(*dims.last()?).ok());
        let length = table.count("length")?.or(declared.filter(|&length| length > 0));
        let length = length.ok_or_else(|| {
            table.error("the model does not declare the number of words: give length")
        })?;
        let padding = table.integer("padding")?.unwrap_or(0);
        Ok(WordSplit { punctuation, length, padding })
    }
}

/// The index of unknown words: a number, or the index of a word of the vocabulary.
fn read_unknown(table: &mut StepTable, vocabulary: &HashMap<String, i64>) -> Result<i64> {
    match table.integer_or_text("unknown")? {
        Some(Ok(index)) => Ok(index),
        Some(Err(word)) => vocabulary.get(&word).copied().ok_or_else(|| {
            table.error(format_args!("unknown = {word:?} is not in the vocabulary"))
        }),
        None => vocabulary.get(UNKNOWN_WORD).copied().ok_or_else(|| {
            table.error(format_args!(
                "the vocabulary has no {UNKNOWN_WORD}: give unknown, the number or the word for \
                 words that are not in it"
            ))
        }),
    }
}

/// ASCII punctuation as in BERT's tokenizer: visible characters except letters and digits.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{StringsBuilder, aligned_vec};

    fn tokens(split: Option<WordSplit>, lower_case: bool) -> TokenStep {
        let all = ["[PAD]", "[UNK]", "the", "cat", ".", "élan", "Cat"];
        let vocabulary = (0..).zip(all).map(|(index, word)| (word.to_owned(), index));
        TokenStep { vocabulary: vocabulary.collect(), lower_case, unknown: 1, split }
    }

    fn indices(tokens: &TokenStep, texts: &[&[u8]]) -> Vec<i64> {
        let mut builder = StringsBuilder::default();
        texts.iter().for_each(|text| builder.push(text));
        let mut out = aligned_vec(0);
        tokens.append(&Strings::new(builder), &mut out);
        out.to_vec()
    }

    fn words(punctuation: bool) -> Option<WordSplit> {
        Some(WordSplit { punctuation, length: 4, padding: 0 })
    }

    #[test]
    fn words_are_looked_up_cut_and_filled() {
        let plain = tokens(words(false), true);
        assert_eq!(indices(&plain, &[b"The  CAT\tsat", b""]), [2, 3, 1, 0, 0, 0, 0, 0]);
        assert_eq!(indices(&plain, &[b"the cat. the the the the"]), [2, 1, 2, 2]);
        let marks = tokens(words(true), true);
        assert_eq!(indices(&marks, &[b"the cat."]), [2, 3, 4, 0]);
        assert_eq!(indices(&marks, &[b"cat..the!cat cat"]), [3, 4, 4, 2]);
        assert_eq!(indices(&marks, &["\u{c9}LAN\u{a0}Cat".as_bytes()]), [5, 3, 0, 0]);
    }

    #[test]
    fn whole_texts_and_bytes_that_are_no_text() {
        let whole = tokens(None, false);
        assert_eq!(indices(&whole, &[b"Cat", b"cat", b"the cat", b"\xff\xfe"]), [6, 3, 1, 1]);
        let lower = tokens(words(false), true);
        assert_eq!(indices(&lower, &[b"the \xff cat"]), [2, 1, 3, 0]);
    }
}
