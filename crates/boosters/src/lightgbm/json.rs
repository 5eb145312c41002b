//! Reads what `Booster.dump_model` returns, as JSON: the model, and each tree as nested nodes.

use std::borrow::Cow;

use super::model::{LightgbmModel, ModelHeader};
use super::tree::{LightgbmTree, LinearLeaf, MissingType, SplitCondition, SplitNode};
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tabular::trees::word_and_bit;
use tensorserve_tensor::error::{Error, Result};

/// The most words (of 32 categories) of all category sets: 16 MiB. A set takes as many as its largest
/// category needs, so a small hostile file could allocate much memory.
const MAX_CATEGORY_WORDS: usize = 1 << 22;

/// The version of the format that LightGBM 2.3 to 3.3 write.
const VERSION_OF_3: &str = "v3";

/// The most characters of a value that an error shows.
const MAX_SHOWN: usize = 32;

/// Whether a file with these first bytes is a dumped model: an object whose first member is `"name":
/// "tree"`.
pub(super) fn is_model(start: &[u8]) -> bool {
    let mut cursor = Cursor::new(start);
    let mut first_member = || {
        if cursor.skip_space() != b'{' || !cursor.open_object().ok()? {
            return None;
        }
        let name = cursor.name().ok()?;
        let value = cursor.string().ok()?;
        Some(*name == *b"name" && *value == *b"tree")
    };
    first_member() == Some(true)
}

/// Reads a model.
pub(super) fn read(text: &[u8]) -> Result<LightgbmModel> {
    let mut reader =
        DumpReader { cursor: Cursor::new(text), words: 0, header: ModelHeader::default() };
    let trees = reader.document()?;
    let mut model = LightgbmModel::new(&reader.header)?;
    // The files of 2.3 to 3.3 have the same members, but for the coefficients that 3.3 added.
    let has_linear = trees.iter().any(|tree| !tree.linear.is_empty());
    model.may_lack_coefficients = reader.header.version == VERSION_OF_3 && !has_linear;
    for (number, tree) in trees.iter().enumerate() {
        model.add(tree).map_err(|error| error.context(format!("tree {number}")))?;
    }
    Ok(model)
}

fn syntax_error(error: SyntaxError) -> Error {
    Error::damaged(format!("invalid JSON: {} (at byte {})", error.kind.text(), error.offset))
}

/// Reads a document from its start to its end, without recursion: trees may be deep.
struct DumpReader<'a> {
    cursor: Cursor<'a>,
    /// The words of the category sets of all trees, so far.
    words: usize,
    header: ModelHeader,
}

/// A node of which some members are read.
#[derive(Default)]
struct PartialNode {
    /// Whether it is the right child of its parent.
    is_right: bool,
    feature: Option<usize>,
    threshold: Option<DumpedThreshold>,
    missing: Option<MissingType>,
    default_left: bool,
    left: Option<i64>,
    right: Option<i64>,
    leaf_value: Option<f64>,
    leaf_const: Option<f64>,
    leaf_features: Vec<usize>,
    leaf_coeff: Vec<f64>,
}

/// A threshold, or the range of the words of a category set.
enum DumpedThreshold {
    Number(f64),
    Categories { start: usize, end: usize },
}

impl<'a> DumpReader<'a> {
    /// Reads the whole document; returns its trees.
    fn document(&mut self) -> Result<Vec<LightgbmTree>> {
        self.cursor.open_document().map_err(syntax_error)?;
        let mut trees = Vec::new();
        let mut classes = None;
        let mut outputs = None;
        let mut last_feature: Option<usize> = None;
        let mut more = self.open_object()?;
        while more {
            match &*self.name()? {
                b"version" => self.header.version = self.text()?,
                b"num_class" => classes = Some(self.index("num_class")?),
                b"num_tree_per_iteration" => {
                    outputs = Some(self.index("num_tree_per_iteration")?);
                }
                b"max_feature_idx" => last_feature = Some(self.index("max_feature_idx")?),
                b"objective" => self.header.objective = Some(self.text()?),
                b"average_output" => self.header.averages = self.boolean()?,
                b"feature_names" => self.header.names = self.texts()?,
                b"tree_info" => trees = self.trees()?,
                _ => self.cursor.skip_value().map_err(syntax_error)?,
            }
            more = self.next_member()?;
        }
        let missing = |name: &str| Error::damaged(format!("{name:?} is missing"));
        self.header.outputs = outputs.or(classes).ok_or_else(|| missing("num_class"))?;
        let last_feature = last_feature.ok_or_else(|| missing("max_feature_idx"))?;
        self.header.features = last_feature.saturating_add(1);
        Ok(trees)
    }

    fn trees(&mut self) -> Result<Vec<LightgbmTree>> {
        let mut trees = Vec::new();
        let mut more = self.open_array("tree_info")?;
        while more {
            let tree = self.tree();
            trees.push(tree.map_err(|error| error.context(format!("tree {}", trees.len())))?);
            more = self.cursor.next_element().map_err(syntax_error)?;
        }
        Ok(trees)
    }

    fn tree(&mut self) -> Result<LightgbmTree> {
        let mut tree = None;
        let mut more = self.open_object()?;
        while more {
            match &*self.name()? {
                b"tree_structure" => tree = Some(self.structure()?),
                _ => self.cursor.skip_value().map_err(syntax_error)?,
            }
            more = self.next_member()?;
        }
        tree.ok_or_else(|| Error::damaged("\"tree_structure\" is missing"))
    }

    /// Reads the nodes of a tree. A node comes after its children here, and the root is moved to the
    /// front.
    fn structure(&mut self) -> Result<LightgbmTree> {
        let mut tree = LightgbmTree::default();
        let mut open = vec![PartialNode::default()];
        let mut more = self.open_object()?;
        while let Some(node) = open.last_mut() {
            if more {
                let name = self.name()?;
                if let is_right @ (b"left_child" | b"right_child") = &*name {
                    let is_right = is_right == b"right_child";
                    open.push(PartialNode { is_right, ..PartialNode::default() });
                    more = self.open_object()?;
                    continue;
                }
                self.member(&name, node, &mut tree)?;
                more = self.next_member()?;
                continue;
            }
            let Some(node) = open.pop() else { break };
            let is_right = node.is_right;
            let index = finish(node, &mut tree)?;
            let Some(parent) = open.last_mut() else { break };
            let child = if is_right { &mut parent.right } else { &mut parent.left };
            *child = Some(index);
            more = self.next_member()?;
        }
        move_root_to_front(&mut tree);
        Ok(tree)
    }

    /// Reads a member of `node`, which is not a child.
    fn member(
        &mut self,
        name: &[u8],
        node: &mut PartialNode,
        tree: &mut LightgbmTree,
    ) -> Result<()> {
        match name {
            b"split_feature" => node.feature = Some(self.index("split_feature")?),
            b"threshold" => node.threshold = Some(self.threshold(&mut tree.words)?),
            b"default_left" => node.default_left = self.boolean()?,
            b"missing_type" => node.missing = Some(self.missing_type()?),
            b"leaf_value" => node.leaf_value = Some(self.number("leaf_value")?),
            b"leaf_const" => node.leaf_const = Some(self.number("leaf_const")?),
            b"leaf_features" => {
                node.leaf_features = self.list("leaf_features", DumpReader::index)?;
            }
            b"leaf_coeff" => node.leaf_coeff = self.list("leaf_coeff", DumpReader::number)?,
            b"decision_type" => match &*self.text()? {
                "<=" | "==" => {}
                // Until 2.0.
                "no_greater" | "is" => {}
                other => {
                    return Err(Error::unsupported(format!(
                        "the decision type {other:?} is not supported"
                    )));
                }
            },
            _ => self.cursor.skip_value().map_err(syntax_error)?,
        }
        Ok(())
    }

    /// A number, or categories as text with `||` between them, which are added to `words`.
    fn threshold(&mut self, words: &mut Vec<u32>) -> Result<DumpedThreshold> {
        if self.cursor.peek() != b'"' {
            return self.number("threshold").map(DumpedThreshold::Number);
        }
        let text = self.text()?;
        let start = words.len();
        for part in text.split("||").filter(|part| !part.is_empty()) {
            let category: u32 = part.trim().parse().map_err(|_| {
                let shown: String = part.chars().take(MAX_SHOWN).collect();
                Error::damaged(format!("\"threshold\" has {shown:?}, which is not a category"))
            })?;
            let (word, bit) = word_and_bit(category);
            let needed = start + word + 1;
            if needed > words.len() {
                self.words += needed - words.len();
                if self.words > MAX_CATEGORY_WORDS {
                    return Err(Error::unsupported("the category sets of the model are too large"));
                }
                words.resize(needed, 0);
            }
            if let Some(word) = words.get_mut(start + word) {
                *word |= bit;
            }
        }
        Ok(DumpedThreshold::Categories { start, end: words.len() })
    }

    fn missing_type(&mut self) -> Result<MissingType> {
        match &*self.text()? {
            "None" => Ok(MissingType::None),
            "Zero" => Ok(MissingType::Zero),
            "NaN" => Ok(MissingType::Nan),
            other => Err(Error::damaged(format!("\"missing_type\" is {other:?}"))),
        }
    }

    fn open_object(&mut self) -> Result<bool> {
        if self.cursor.peek() != b'{' {
            return Err(Error::damaged(format!("no object at byte {}", self.cursor.offset())));
        }
        self.cursor.open_object().map_err(syntax_error)
    }

    fn open_array(&mut self, name: &str) -> Result<bool> {
        if self.cursor.peek() != b'[' {
            return Err(Error::damaged(format!("{name:?} is not an array")));
        }
        Ok(self.cursor.open_array())
    }

    fn name(&mut self) -> Result<Cow<'a, [u8]>> {
        self.cursor.name().map_err(syntax_error)
    }

    fn next_member(&mut self) -> Result<bool> {
        self.cursor.next_member().map_err(syntax_error)
    }

    fn text(&mut self) -> Result<String> {
        let text = self.cursor.string().map_err(syntax_error)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn boolean(&mut self) -> Result<bool> {
        let is_true = self.cursor.peek() == b't';
        let word: &[u8] = if is_true { b"true" } else { b"false" };
        self.cursor.literal(word).map_err(syntax_error)?;
        Ok(is_true)
    }

    fn number(&mut self, name: &str) -> Result<f64> {
        let number = self.cursor.number();
        number.map(|number| number.as_f64()).map_err(|error| syntax_error(error).context(name))
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked.
    fn index(&mut self, name: &str) -> Result<usize> {
        let number = self.number(name)?;
        let fits = number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0;
        match fits {
            true => Ok(number as usize),
            false => Err(Error::damaged(format!("{name:?} is {number}, which is not an index"))),
        }
    }

    fn texts(&mut self) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        let mut more = self.open_array("feature_names")?;
        while more {
            texts.push(self.text()?);
            more = self.cursor.next_element().map_err(syntax_error)?;
        }
        Ok(texts)
    }

    fn list<T>(
        &mut self,
        name: &str,
        read: impl Fn(&mut Self, &str) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut list = Vec::new();
        let mut more = self.open_array(name)?;
        while more {
            list.push(read(self, name)?);
            more = self.cursor.next_element().map_err(syntax_error)?;
        }
        Ok(list)
    }
}

/// Adds a node whose members are read to `tree`; returns its index as that of a child.
fn finish(node: PartialNode, tree: &mut LightgbmTree) -> Result<i64> {
    if let Some(value) = node.leaf_value {
        return add_leaf(node, value, tree);
    }
    let missing = |name: &str| Error::damaged(format!("a node has no {name:?}"));
    let condition = match node.threshold.ok_or_else(|| missing("threshold"))? {
        DumpedThreshold::Number(threshold) => SplitCondition::Number {
            threshold,
            missing: node.missing.unwrap_or(MissingType::None),
            default_left: node.default_left,
        },
        DumpedThreshold::Categories { start, end } => SplitCondition::Categories { start, end },
    };
    tree.splits.push(SplitNode {
        feature: node.feature.ok_or_else(|| missing("split_feature"))?,
        condition,
        left: node.left.ok_or_else(|| missing("left_child"))?,
        right: node.right.ok_or_else(|| missing("right_child"))?,
    });
    index_of(tree.splits.len() - 1)
}

fn add_leaf(node: PartialNode, value: f64, tree: &mut LightgbmTree) -> Result<i64> {
    if let Some(constant) = node.leaf_const {
        let (features, coefficients) = (node.leaf_features, node.leaf_coeff);
        if features.len() != coefficients.len() {
            return Err(Error::damaged("\"leaf_features\" and \"leaf_coeff\" differ in length"));
        }
        let terms = features.into_iter().zip(coefficients).collect();
        tree.linear.push(LinearLeaf { constant, terms });
    }
    tree.leaves.push(value);
    if !tree.linear.is_empty() && tree.linear.len() != tree.leaves.len() {
        return Err(Error::damaged("some leaves of a tree have \"leaf_const\", and some do not"));
    }
    index_of(tree.leaves.len() - 1).map(|index| !index)
}

fn index_of(index: usize) -> Result<i64> {
    i64::try_from(index).map_err(|_| Error::damaged("the tree has too many nodes"))
}

/// Exchanges the root, which is the last split, with the first.
fn move_root_to_front(tree: &mut LightgbmTree) {
    let Some(last) = tree.splits.len().checked_sub(1) else { return };
    tree.splits.swap(0, last);
    let last = i64::try_from(last).unwrap_or(i64::MAX);
    for split in &mut tree.splits {
        for child in [&mut split.left, &mut split.right] {
            if *child == 0 {
                *child = last;
            }
        }
    }
}
