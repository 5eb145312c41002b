//! The stages that make words of texts: `Tokenizer`, `RegexTokenizer`, `StopWordsRemover`, `NGram`.

use std::collections::HashSet;
use std::rc::Rc;

use super::super::folder::StageFolder;
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, WordLists};
use super::super::{damaged, unsupported};
use super::java_regex::JavaRegex;
use tensorserve_tensor::error::Result;

/// The most words of an n-gram: the grams of a text take so many times its memory.
const MAX_N_GRAM: usize = 100;

/// How a text becomes words.
struct Tokenizer {
    input: usize,
    output: usize,
    lowers: bool,
    pattern: Pattern,
    /// The least number of characters of a word, as Java counts them.
    least: usize,
}

enum Pattern {
    /// What is between single spaces of ASCII: `\s`.
    Space,
    Gaps(JavaRegex),
    Matches(JavaRegex),
}

pub(in super::super) fn tokenizer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    stage(folder, schema, true, Pattern::Space, 0)
}

pub(in super::super) fn regex_tokenizer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let pattern = folder.text("pattern", r"\s+")?;
    let regex = JavaRegex::new(pattern).ok_or_else(|| {
        unsupported(format!(
            "the pattern {pattern:?} of a RegexTokenizer (with look-around, back references, possessive \
             quantifiers, flags, $, \\b, nested classes, or syntax that only Java has)"
        ))
    })?;
    let pattern = match folder.flag("gaps", true)? {
        true => Pattern::Gaps(regex),
        false => Pattern::Matches(regex),
    };
    let least = folder.size("minTokenLength", 1)?;
    stage(folder, schema, folder.flag("toLowercase", true)?, pattern, least)
}

fn stage(
    folder: &StageFolder,
    schema: &mut Schema,
    lowers: bool,
    pattern: Pattern,
    least: usize,
) -> Result<Box<dyn PipelineStage>> {
    let input = schema.read(folder.column("inputCol")?, Wanted::Text)?;
    let output = schema.make(folder.column("outputCol")?, ColumnKind::Words)?;
    Ok(Box::new(Tokenizer { input, output, lowers, pattern, least }))
}

/// Whether Java's `\s` matches a character.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// What is between spaces, as `split("\\s")` of Java returns it: without empty words at the end.
fn split_at_spaces(text: &str) -> impl Iterator<Item = &str> {
    let kept = match text.is_empty() {
        // Where nothing matches, the text is the only part.
        true => Some(text),
        false => Some(text.trim_end_matches(is_space)).filter(|kept| !kept.is_empty()),
    };
    kept.into_iter().flat_map(|kept| kept.split(is_space))
}

impl PipelineStage for Tokenizer {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let texts = table.texts(self.input)?;
        let mut all = String::with_capacity(texts.iter().map(|text| text.len()).sum());
        let mut lists = WordLists::default();
        for text in texts {
            let lowered = self.lowers.then(|| text.to_lowercase());
            let text = lowered.as_deref().unwrap_or(text);
            let mut add = |word: &str| {
                if self.least < 2 && word.len() >= self.least
                    || word.chars().map(char::len_utf16).sum::<usize>() >= self.least
                {
                    let start = all.len();
                    all.push_str(word);
                    lists.words.push(start..all.len());
                }
            };
            match &self.pattern {
                Pattern::Space => split_at_spaces(text).for_each(&mut add),
                Pattern::Gaps(regex) => regex.split(text).into_iter().for_each(&mut add),
                Pattern::Matches(regex) => regex.find(text).for_each(&mut add),
            }
            lists.ends.push(lists.words.len());
        }
        lists.text = Rc::new(all);
        table.put(self.output, SparkColumn::Words(lists));
        Ok(())
    }
}

struct StopWordsRemover {
    columns: Vec<(usize, usize)>,
    words: HashSet<Box<str>>,
    is_case_sensitive: bool,
}

pub(in super::super) fn stop_words_remover(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let words = folder.texts("stopWords")?;
    let words = words.ok_or_else(|| {
        unsupported("a StopWordsRemover with the default list of words, which Spark did not save")
    })?;
    let is_case_sensitive = folder.flag("caseSensitive", false)?;
    let locale = folder.text("locale", "en")?;
    if !is_case_sensitive && ["tr", "az", "lt"].iter().any(|language| locale.starts_with(language))
    {
        return Err(unsupported(format!("a StopWordsRemover with the locale {locale:?}")));
    }
    let lower = |word: &str| if is_case_sensitive { word.to_owned() } else { word.to_lowercase() };
    let words = words.into_iter().map(|word| lower(word).into()).collect();
    let inputs = folder.columns("inputCol", "inputCols")?;
    let outputs = folder.columns("outputCol", "outputCols")?;
    let mut columns = Vec::new();
    for (input, output) in inputs.into_iter().zip(outputs) {
        let input = schema.read(input, Wanted::Words)?;
        columns.push((input, schema.make(output, ColumnKind::Words)?));
    }
    Ok(Box::new(StopWordsRemover { columns, words, is_case_sensitive }))
}

impl StopWordsRemover {
    fn is_stop_word(&self, word: &str) -> bool {
        match self.is_case_sensitive {
            true => self.words.contains(word),
            false => self.words.contains(word.to_lowercase().as_str()),
        }
    }
}

impl PipelineStage for StopWordsRemover {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        for (input, output) in &self.columns {
            let lists = table.words(*input)?;
            let mut kept = WordLists { text: Rc::clone(&lists.text), ..WordLists::default() };
            for row in lists.rows() {
                let words = row.iter().filter(|word| !self.is_stop_word(lists.word(word)));
                kept.words.extend(words.cloned());
                kept.ends.push(kept.words.len());
            }
            table.put(*output, SparkColumn::Words(kept));
        }
        Ok(())
    }
}

struct NGram {
    input: usize,
    output: usize,
    length: usize,
}

pub(in super::super) fn n_gram(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let length = folder.size("n", 2)?;
    if length == 0 || length > MAX_N_GRAM {
        return Err(damaged(format!("its n is {length}")));
    }
    let input = schema.read(folder.column("inputCol")?, Wanted::Words)?;
    let output = schema.make(folder.column("outputCol")?, ColumnKind::Words)?;
    Ok(Box::new(NGram { input, output, length }))
}

impl PipelineStage for NGram {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let lists = table.words(self.input)?;
        let (mut all, mut grams) = (String::new(), WordLists::default());
        for row in lists.rows() {
            for words in row.windows(self.length) {
                let start = all.len();
                for (at, word) in words.iter().enumerate() {
                    if at > 0 {
                        all.push(' ');
                    }
                    all.push_str(lists.word(word));
                }
                grams.words.push(start..all.len());
            }
            grams.ends.push(grams.words.len());
        }
        grams.text = Rc::new(all);
        table.put(self.output, SparkColumn::Words(grams));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_as_in_java() {
        let split = |text| split_at_spaces(text).collect::<Vec<_>>();
        assert_eq!(split(" a  b "), ["", "a", "", "b"]);
        assert_eq!(split(""), [""]);
        assert_eq!(split("  "), [""; 0]);
        assert_eq!(split("a\u{a0}b\tc"), ["a\u{a0}b", "c"]);
    }
}
