//! Reads the text format: lines `name=value`, first those of the model, then those of each tree after
//! its line `Tree=N`, then what predictions do not need.

use std::str::FromStr;

use super::model::{LightgbmModel, ModelHeader};
use super::tree::{LightgbmTree, LinearLeaf, MissingType, SplitCondition, SplitNode};
use tensorserve_tensor::error::{Error, Result};

/// The first line of a model.
const FIRST_LINE: &[u8] = b"tree";

/// The start of the second.
const VERSION: &[u8] = b"version=";

/// The start of the line before a tree.
const TREE: &[u8] = b"Tree=";

/// The line after the last tree, since format v3.
const END_OF_TREES: &[u8] = b"end of trees";

/// The last format without [`END_OF_TREES`].
const LAST_WITHOUT_END: &str = "v2";

/// The most lines of a tree: the library writes up to 22.
const MAX_TREE_LINES: usize = 64;

/// The most lines before the trees.
const MAX_HEADER_LINES: usize = 256;

/// The most characters of a value that an error shows.
const MAX_SHOWN: usize = 32;

// The bits of `decision_type`.
const CATEGORICAL: u8 = 1;
const DEFAULT_LEFT: u8 = 2;
const MISSING_SHIFT: u32 = 2;
const MISSING_BITS: u8 = 3;
const MISSING_IS_ZERO: u8 = 1;
const MISSING_IS_NAN: u8 = 2;

/// Whether a file with these first bytes is a text model.
pub(super) fn is_model(start: &[u8]) -> bool {
    let mut lines = Lines { rest: start };
    lines.next() == Some(FIRST_LINE) && lines.rest.starts_with(VERSION)
}

/// Reads a model.
pub(super) fn read(text: &[u8]) -> Result<LightgbmModel> {
    let mut lines = Lines { rest: text };
    if lines.next() != Some(FIRST_LINE) {
        return Err(Error::damaged("not a LightGBM model: the first line is not \"tree\""));
    }
    let (fields, mut is_tree) = read_header(&mut lines)?;
    let header = model_header(&fields)?;
    let mut model = LightgbmModel::new(&header)?;
    let mut ends = false;
    while is_tree {
        let number = model.trees();
        let tree = read_tree(&mut lines).and_then(|tree| model.add(&tree));
        tree.map_err(|error| error.context(format!("tree {number}")))?;
        is_tree = false;
        for line in lines.by_ref() {
            is_tree = line.starts_with(TREE);
            ends = line == END_OF_TREES;
            if is_tree || ends || !line.is_empty() {
                break;
            }
        }
    }
    check_end(&fields, &header, model.trees(), ends)?;
    Ok(model)
}

/// Refuses a file that was cut short.
fn check_end(fields: &KeyValueLines, header: &ModelHeader, trees: usize, ends: bool) -> Result<()> {
    let promised = fields.find("tree_sizes").map(|sizes| words(sizes).count());
    if let Some(promised) = promised.filter(|promised| *promised != trees) {
        return Err(Error::damaged(format!(
            "the file has {trees} trees, and \"tree_sizes\" {promised}: it was cut short or changed"
        )));
    }
    if trees > 0 && !ends && header.version != LAST_WITHOUT_END && !header.version.is_empty() {
        return Err(Error::damaged(
            "the file has no line \"end of trees\": it was cut short or changed",
        ));
    }
    Ok(())
}

/// The lines of a text, without their ends.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let length = memchr::memchr(b'\n', self.rest).unwrap_or(self.rest.len());
        let line = self.rest.get(..length).unwrap_or_default();
        self.rest = self.rest.get(length + 1..).unwrap_or_default();
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// Lines `name=value`; of equal names, the last counts. A line without `=` is a name.
#[derive(Default)]
struct KeyValueLines<'a>(Vec<(&'a [u8], &'a [u8])>);

impl<'a> KeyValueLines<'a> {
    fn push(&mut self, line: &'a [u8]) {
        let length = memchr::memchr(b'=', line).unwrap_or(line.len());
        let (name, value) = line.split_at(length);
        self.0.push((name, value.strip_prefix(b"=").unwrap_or(value)));
    }

    fn find(&self, name: &str) -> Option<&'a [u8]> {
        self.0.iter().rev().find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| *value)
    }

    fn required(&self, name: &str) -> Result<&'a [u8]> {
        self.find(name).ok_or_else(|| Error::damaged(format!("{name:?} is missing")))
    }

    /// The value as text.
    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(self.find(name).unwrap_or_default()).trim().to_owned()
    }

    /// One number.
    fn number<T: FromStr>(&self, name: &str) -> Result<T> {
        parse(name, self.required(name)?.trim_ascii())
    }

    /// One number; `default` if there is no such line.
    fn number_or<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        self.find(name).map_or(Ok(default), |value| parse(name, value.trim_ascii()))
    }

    /// Numbers, with white space between them.
    fn numbers<T: FromStr>(&self, name: &str) -> Result<Vec<T>> {
        words(self.required(name)?).map(|word| parse(name, word)).collect()
    }

    /// `count` numbers.
    fn numbers_of_len<T: FromStr>(&self, name: &str, count: usize) -> Result<Vec<T>> {
        let numbers = self.numbers(name)?;
        if numbers.len() != count {
            let has = numbers.len();
            return Err(Error::damaged(format!("{name:?} has {has} values and needs {count}")));
        }
        Ok(numbers)
    }
}

fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn parse<T: FromStr>(name: &str, word: &[u8]) -> Result<T> {
    let text = std::str::from_utf8(word).unwrap_or_default();
    text.parse().map_err(|_| wrong_number(name, word))
}

#[cold]
fn wrong_number(name: &str, word: &[u8]) -> Error {
    let shown: String = String::from_utf8_lossy(word).chars().take(MAX_SHOWN).collect();
    Error::damaged(format!("{name:?} has {shown:?}, which is not a valid number"))
}

/// The lines before the trees, and whether a tree follows.
fn read_header<'a>(lines: &mut Lines<'a>) -> Result<(KeyValueLines<'a>, bool)> {
    let mut fields = KeyValueLines::default();
    for line in lines.by_ref() {
        if line.starts_with(TREE) {
            return Ok((fields, true));
        }
        if line == END_OF_TREES {
            break;
        }
        if !line.is_empty() {
            fields.push(line);
        }
        if fields.0.len() > MAX_HEADER_LINES {
            return Err(Error::damaged("no tree follows the first lines"));
        }
    }
    Ok((fields, false))
}

fn model_header(fields: &KeyValueLines) -> Result<ModelHeader> {
    let classes = fields.number("num_class")?;
    let last_feature: usize = fields.number("max_feature_idx")?;
    let names = words(fields.find("feature_names").unwrap_or_default());
    Ok(ModelHeader {
        version: fields.text("version"),
        outputs: fields.number_or("num_tree_per_iteration", classes)?,
        features: last_feature.saturating_add(1),
        names: names.map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
        objective: fields.find("objective").map(|_| fields.text("objective")),
        averages: fields.find("average_output").is_some(),
    })
}

fn read_tree(lines: &mut Lines) -> Result<LightgbmTree> {
    let mut fields = KeyValueLines::default();
    for line in lines.by_ref() {
        if line.is_empty() {
            break;
        }
        fields.push(line);
        if fields.0.len() > MAX_TREE_LINES {
            return Err(Error::damaged(format!("the tree has more than {MAX_TREE_LINES} lines")));
        }
    }
    let count: usize = fields.number("num_leaves")?;
    let leaves = fields.numbers_of_len("leaf_value", count)?;
    let linear = match fields.number_or("is_linear", 0_u8)? {
        0 => Vec::new(),
        _ => read_linear(&fields, count)?,
    };
    if count <= 1 {
        return Ok(LightgbmTree { leaves, linear, ..LightgbmTree::default() });
    }
    let (splits, words) = read_splits(&fields, count - 1)?;
    Ok(LightgbmTree { splits, leaves, linear, words })
}

/// The nodes that split, and the words of their category sets.
fn read_splits(fields: &KeyValueLines, count: usize) -> Result<(Vec<SplitNode>, Vec<u32>)> {
    let left: Vec<i64> = fields.numbers_of_len("left_child", count)?;
    let right: Vec<i64> = fields.numbers_of_len("right_child", count)?;
    let feature: Vec<usize> = fields.numbers_of_len("split_feature", count)?;
    let threshold: Vec<f64> = fields.numbers_of_len("threshold", count)?;
    let kind: Vec<u8> = match fields.find("decision_type") {
        None => vec![0; count],
        Some(_) => fields.numbers_of_len("decision_type", count)?,
    };
    let (boundaries, words) = match fields.number_or("num_cat", 0_usize)? {
        0 => (Vec::new(), Vec::new()),
        sets => {
            let boundaries: Vec<usize> =
                fields.numbers_of_len("cat_boundaries", sets.saturating_add(1))?;
            (boundaries, fields.numbers("cat_threshold")?)
        }
    };
    let children = left.into_iter().zip(right);
    let rules = threshold.into_iter().zip(kind);
    let mut splits = Vec::with_capacity(count);
    for (((left, right), feature), (threshold, kind)) in children.zip(feature).zip(rules) {
        let condition = condition(threshold, kind, &boundaries)?;
        splits.push(SplitNode { feature, condition, left, right });
    }
    Ok((splits, words))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The index of a set.
fn condition(threshold: f64, kind: u8, boundaries: &[usize]) -> Result<SplitCondition> {
    if kind & CATEGORICAL == 0 {
        let missing = match (kind >> MISSING_SHIFT) & MISSING_BITS {
            MISSING_IS_ZERO => MissingType::Zero,
            MISSING_IS_NAN => MissingType::Nan,
            _ => MissingType::None,
        };
        let default_left = kind & DEFAULT_LEFT != 0;
        return Ok(SplitCondition::Number { threshold, missing, default_left });
    }
    let set = if threshold >= 0.0 { threshold as usize } else { usize::MAX };
    match (boundaries.get(set), boundaries.get(set.saturating_add(1))) {
        (Some(&start), Some(&end)) => Ok(SplitCondition::Categories { start, end }),
        _ => Err(Error::damaged(format!("the set of categories {threshold} does not exist"))),
    }
}

/// The linear models of the leaves.
fn read_linear(fields: &KeyValueLines, count: usize) -> Result<Vec<LinearLeaf>> {
    let constants: Vec<f64> = fields.numbers_of_len("leaf_const", count)?;
    let lengths: Vec<usize> = fields.numbers_of_len("num_features", count)?;
    let total = lengths.iter().fold(0_usize, |sum, length| sum.saturating_add(*length));
    if total == 0 {
        let plain = |constant| LinearLeaf { constant, terms: Vec::new() };
        return Ok(constants.into_iter().map(plain).collect());
    }
    let features: Vec<usize> = fields.numbers_of_len("leaf_features", total)?;
    let coefficients: Vec<f64> = fields.numbers_of_len("leaf_coeff", total)?;
    let mut terms = features.into_iter().zip(coefficients);
    let leaves = constants.into_iter().zip(lengths);
    Ok(leaves
        .map(|(constant, length)| LinearLeaf {
            constant,
            terms: terms.by_ref().take(length).collect(),
        })
        .collect())
}
