//! The step `tokens`: texts become the numbers of their words in a vocabulary.

use std::collections::HashMap;

use super::file::Step;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{AlignedVec, Strings};

/// How texts become numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tokens {
    /// Words and their numbers.
    vocabulary: HashMap<String, i64>,
    lower_case: bool,
    /// The number of a word that is not in it.
    unknown: i64,
    /// What a text becomes that has words of its own; else it is looked up whole.
    words: Option<Words>,
}

#[derive(Clone, Debug, PartialEq)]
struct Words {
    /// Commas and full stops are words of their own.
    punctuation: bool,
    /// Numbers for each text.
    length: usize,
    /// What is behind the last word.
    padding: i64,
}

impl Tokens {
    /// Reads the step. Where it does not say how many words, the model's shape `wanted` may.
    pub(super) fn read(step: &mut Step, wanted: Option<&[i64]>) -> Result<Self> {
        let lines = step.lines("vocabulary")?;
        let lines = lines.ok_or_else(|| {
            step.error("a step \"tokens\" needs vocabulary, a file with a word a line")
        })?;
        let split = [("whitespace", Some(false)), ("words", Some(true)), ("none", None)];
        let split = step.choice("split", &split)?.unwrap_or(Some(false));
        let lower_case = step.flag("lower_case")?.unwrap_or(true);
        let mut vocabulary = HashMap::with_capacity(lines.len());
        for (number, word) in (0..).zip(lines) {
            if let Some(before) = vocabulary.insert(word.clone(), number) {
                return Err(step.error(format_args!(
                    "vocabulary: {word:?} is in line {} and in line {}",
                    before + 1,
                    number + 1
                )));
            }
        }
        let unknown = match step.text_or_whole("unknown")? {
            None => vocabulary.get("[UNK]").copied().ok_or_else(|| {
                step.error(
                    "give unknown, the number (or the word) for what is not in the vocabulary; it \
                     has no [UNK]",
                )
            })?,
            Some(Ok(number)) => number,
            Some(Err(word)) => vocabulary.get(&word).copied().ok_or_else(|| {
                step.error(format_args!("unknown = {word:?}, which is not in the vocabulary"))
            })?,
        };
        let words = match split {
            None => None,
            Some(punctuation) => {
                let declared = wanted.and_then(|dims| usize::try_from(*dims.last()?).ok());
                let length = step.count("length")?.or(declared.filter(|&length| length > 0));
                let length = length.ok_or_else(|| {
                    step.error("the model does not say how many words it takes: give length")
                })?;
                Some(Words { punctuation, length, padding: step.whole("padding")?.unwrap_or(0) })
            }
        };
        Ok(Tokens { vocabulary, lower_case, unknown, words })
    }

    /// Numbers for each text; `None` if it is looked up whole, and adds no dimension.
    pub(super) fn length(&self) -> Option<usize> {
        self.words.as_ref().map(|words| words.length)
    }

    /// The largest number, and the smallest.
    pub(super) fn range(&self) -> (i64, i64) {
        let last = i64::try_from(self.vocabulary.len()).unwrap_or(i64::MAX) - 1;
        let padding = self.words.as_ref().map_or(0, |words| words.padding);
        (last.max(self.unknown).max(padding), 0.min(self.unknown).min(padding))
    }

    /// Each text's numbers, at the end of `out`.
    pub(super) fn append(&self, texts: &Strings, out: &mut AlignedVec<i64>) {
        for text in texts.iter() {
            let text = String::from_utf8_lossy(text);
            let text = if self.lower_case { text.to_lowercase().into() } else { text };
            let Some(words) = &self.words else {
                out.push(self.number(&text));
                continue;
            };
            let start = out.len();
            let most = start + words.length;
            for part in text.split_whitespace() {
                self.append_part(part, words.punctuation, most, out);
                if out.len() >= most {
                    break;
                }
            }
            out.resize(most, words.padding);
        }
    }

    /// The words of a part without white space.
    fn append_part(
        &self,
        mut part: &str,
        punctuation: bool,
        most: usize,
        out: &mut AlignedVec<i64>,
    ) {
        while punctuation && out.len() < most {
            let Some((at, mark)) = part.char_indices().find(|(_, c)| is_punctuation(*c)) else {
                break;
            };
            let (word, rest) = part.split_at(at);
            let (mark, rest) = rest.split_at(mark.len_utf8());
            if !word.is_empty() {
                out.push(self.number(word));
            }
            if out.len() < most {
                out.push(self.number(mark));
            }
            part = rest;
        }
        if !part.is_empty() && out.len() < most {
            out.push(self.number(part));
        }
    }

    fn number(&self, word: &str) -> i64 {
        self.vocabulary.get(word).copied().unwrap_or(self.unknown)
    }
}

/// As BERT's tokenizer has it for ASCII: what is visible and neither letter nor digit.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{StringsBuilder, aligned_vec};

    fn tokens(words: Option<Words>, lower_case: bool) -> Tokens {
        let all = ["[PAD]", "[UNK]", "the", "cat", ".", "élan", "Cat"];
        let vocabulary = (0..).zip(all).map(|(number, word)| (word.to_owned(), number));
        Tokens { vocabulary: vocabulary.collect(), lower_case, unknown: 1, words }
    }

    fn numbers(tokens: &Tokens, texts: &[&[u8]]) -> Vec<i64> {
        let mut builder = StringsBuilder::default();
        texts.iter().for_each(|text| builder.push(text));
        let mut out = aligned_vec(0);
        tokens.append(&Strings::new(builder), &mut out);
        out.to_vec()
    }

    fn words(punctuation: bool) -> Option<Words> {
        Some(Words { punctuation, length: 4, padding: 0 })
    }

    #[test]
    fn words_are_looked_up_cut_and_filled() {
        let plain = tokens(words(false), true);
        assert_eq!(numbers(&plain, &[b"The  CAT\tsat", b""]), [2, 3, 1, 0, 0, 0, 0, 0]);
        assert_eq!(numbers(&plain, &[b"the cat. the the the the"]), [2, 1, 2, 2]);
        let marks = tokens(words(true), true);
        assert_eq!(numbers(&marks, &[b"the cat."]), [2, 3, 4, 0]);
        assert_eq!(numbers(&marks, &[b"cat..the!cat cat"]), [3, 4, 4, 2]);
        assert_eq!(numbers(&marks, &["\u{c9}LAN\u{a0}Cat".as_bytes()]), [5, 3, 0, 0]);
    }

    #[test]
    fn whole_texts_and_bytes_that_are_no_text() {
        let whole = tokens(None, false);
        assert_eq!(numbers(&whole, &[b"Cat", b"cat", b"the cat", b"\xff\xfe"]), [6, 3, 1, 1]);
        let lower = tokens(words(false), true);
        assert_eq!(numbers(&lower, &[b"the \xff cat"]), [2, 1, 3, 0]);
    }
}
