//! The columns of a pipeline by their names: which stage makes them, and which are inputs.
//!
//! A pipeline says nothing about the columns that it takes. Their types follow from the stages that read
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{damaged, unsupported};
use tensorserve_tensor::NumberTexts;
use tensorserve_tensor::error::Result;

/// The most columns of a pipeline.
const MAX_COLUMNS: usize = 1 << 16;

/// What a stage takes from a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    Number,
    Text,
    /// Texts, or numbers, which Spark turns into texts.
    Category,
    /// Numbers, or vectors.
    NumberOrVector,
    Words,
    /// A vector, of this size if that is known.
    Vector(Option<usize>),
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Number,
    /// A number that is an integer in Spark.
    Integer,
    Text,
    /// Texts, unless another stage takes numbers from the column.
    Category,
    Words,
    /// Vectors, whose size has this number.
    Vector(SizeId),
}

/// The number of a size that may be known later: other vectors that are as long have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeId(usize);

/// The columns of a pipeline.
#[derive(Default)]
pub(super) struct Schema {
    columns: Vec<SchemaColumn>,
    numbers: HashMap<String, usize>,
    sizes: Vec<Option<usize>>,
    /// The columns that the stage reads and makes that is being added.
    reads: Vec<usize>,
    makes: Vec<usize>,
    /// The columns that models predict.
    outputs: Vec<usize>,
}

struct SchemaColumn {
    name: String,
    kind: ColumnKind,
    is_input: bool,
    /// The number of categories of a column of indices, where it is known: 2.x's one-hot encoder needs
    /// it.
    categories: Option<usize>,
    /// How numbers are written that Spark has turned into the labels of an index; `None` before the first label,
    /// and `Some(None)` if they are texts.
    number_texts: Option<Option<NumberTexts>>,
    /// The texts of these categories.
    labels: Option<Arc<[Arc<str>]>>,
}

impl Schema {
    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    pub(super) fn name(&self, number: usize) -> &str {
        self.columns.get(number).map_or("", |column| &column.name)
    }

    pub(super) fn kind(&self, number: usize) -> Option<ColumnKind> {
        self.columns.get(number).map(|column| column.kind)
    }

    pub(super) fn is_input(&self, number: usize) -> bool {
        self.columns.get(number).is_some_and(|column| column.is_input)
    }

    /// Says that column `number` is what a model predicts.
    pub(super) fn add_output(&mut self, number: usize) {
        self.outputs.push(number);
    }

    /// The columns that models predict.
    pub(super) fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// The columns that were read and made since the last call.
    pub(super) fn take_uses(&mut self) -> (Vec<usize>, Vec<usize>) {
        (std::mem::take(&mut self.reads), std::mem::take(&mut self.makes))
    }

    /// The number of the column `name`, which a stage reads. A column that no stage has made is an input.
    pub(super) fn read(&mut self, name: &str, wanted: Wanted) -> Result<usize> {
        let kind = match wanted {
            Wanted::Number => ColumnKind::Number,
            Wanted::Text => ColumnKind::Text,
            Wanted::Category => ColumnKind::Category,
            Wanted::NumberOrVector => {
                let known = self.numbers.get(name).and_then(|number| self.kind(*number));
                known
                    .filter(|kind| matches!(kind, ColumnKind::Vector(_)))
                    .unwrap_or(ColumnKind::Number)
            }
            Wanted::Words => {
                if !self.numbers.contains_key(name) {
                    return Err(unsupported(format!(
                        "column {name:?} has lists of words, and no stage makes it: put the \
                         tokenizer into the pipeline"
                    )));
                }
                ColumnKind::Words
            }
            Wanted::Vector(size) => {
                let known = self.numbers.get(name).and_then(|number| self.kind(*number));
                match known {
                    Some(ColumnKind::Vector(id)) => {
                        self.set_size(id, size, name)?;
                        ColumnKind::Vector(id)
                    }
                    _ => ColumnKind::Vector(self.add_size(size)),
                }
            }
        };
        let Some(number) = self.numbers.get(name).copied() else {
            let number = self.add(name, kind, true)?;
            self.reads.push(number);
            return Ok(number);
        };
        self.reads.push(number);
        let Some(column) = self.columns.get_mut(number) else { return Ok(number) };
        use ColumnKind::{Category, Integer, Number, Text, Vector, Words};
        let both = match (column.kind, kind) {
            (one, other) if one == other => Some(one),
            (Integer, Number | Category) => Some(Integer),
            (Number, Category) => Some(Number),
            (Text, Category) => Some(Text),
            (Category, Number) if column.is_input => Some(Number),
            (Category, Text) if column.is_input => Some(Text),
            (Number | Integer | Text | Category | Words | Vector(_), _) => None,
        };
        column.kind = both.ok_or_else(|| {
            damaged(format!(
                "column {name:?} is {} for one stage and {} for another",
                describe(column.kind),
                describe(kind)
            ))
        })?;
        Ok(number)
    }

    /// The number of the column `name`, which a stage makes.
    pub(super) fn make(&mut self, name: &str, kind: ColumnKind) -> Result<usize> {
        if self.numbers.contains_key(name) {
            return Err(damaged(format!(
                "a stage makes the column {name:?}, which is already there"
            )));
        }
        let number = self.add(name, kind, false)?;
        self.makes.push(number);
        Ok(number)
    }

    /// The number of a vector column `name` of this size, which a stage makes.
    pub(super) fn make_vector(&mut self, name: &str, size: usize) -> Result<usize> {
        let id = self.add_size(Some(size));
        self.make(name, ColumnKind::Vector(id))
    }

    /// The number of a vector column `name`, which a stage makes and is as long as the vectors of
    /// `other`.
    pub(super) fn make_like(&mut self, name: &str, other: usize) -> Result<usize> {
        let kind = self.kind(other).unwrap_or(ColumnKind::Number);
        self.make(name, kind)
    }

    fn add(&mut self, name: &str, kind: ColumnKind, is_input: bool) -> Result<usize> {
        let number = self.columns.len();
        if number >= MAX_COLUMNS {
            return Err(unsupported(format!("a pipeline of more than {MAX_COLUMNS} columns")));
        }
        let column = SchemaColumn {
            name: name.to_owned(),
            kind,
            is_input,
            categories: None,
            number_texts: None,
            labels: None,
        };
        self.columns.push(column);
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    fn add_size(&mut self, size: Option<usize>) -> SizeId {
        self.sizes.push(size);
        SizeId(self.sizes.len() - 1)
    }

    fn set_size(&mut self, id: SizeId, size: Option<usize>, name: &str) -> Result<()> {
        let (Some(known), Some(size)) = (self.sizes.get_mut(id.0), size) else { return Ok(()) };
        match *known {
            Some(known) if known != size => Err(damaged(format!(
                "column {name:?} has vectors of {known} elements, and a stage takes {size}; if it \
                 assembles them from a vector column that is not made by the pipeline, put a \
                 VectorSizeHint before it"
            ))),
            _ => {
                *known = Some(size);
                Ok(())
            }
        }
    }

    /// The size of the vectors in column `number`, if it is known.
    pub(super) fn size(&self, number: usize) -> Option<usize> {
        match self.kind(number)? {
            ColumnKind::Vector(id) => self.sizes.get(id.0).copied().flatten(),
            ColumnKind::Number
            | ColumnKind::Integer
            | ColumnKind::Text
            | ColumnKind::Category
            | ColumnKind::Words => None,
        }
    }

    /// The size of the vectors in column `number`, which must be known.
    pub(super) fn known_size(&self, number: usize) -> Result<usize> {
        self.size(number).ok_or_else(|| {
            unsupported(format!(
                "the vectors of column {:?}, whose size is not in the pipeline: put a VectorSizeHint \
                 into the pipeline",
                self.name(number)
            ))
        })
    }

    /// Says how many categories the indices in column `number` have, and which.
    pub(super) fn set_categories(
        &mut self,
        number: usize,
        categories: usize,
        labels: Option<Arc<[Arc<str>]>>,
    ) {
        if let Some(column) = self.columns.get_mut(number) {
            column.categories = Some(categories);
            column.labels = labels;
        }
    }

    /// Says how the labels of column `number` are written, if they are those of numbers.
    pub(super) fn set_number_texts(&mut self, number: usize, texts: Option<NumberTexts>) {
        if let Some(column) = self.columns.get_mut(number) {
            let known = column.number_texts.unwrap_or(texts);
            column.number_texts = Some(known.filter(|known| Some(*known) == texts));
        }
    }

    /// How the numbers are written that column `number` may have in place of texts.
    pub(super) fn number_texts(&self, number: usize) -> Option<NumberTexts> {
        let column = self.columns.get(number)?;
        column.number_texts.flatten().filter(|_| column.kind == ColumnKind::Category)
    }

    pub(super) fn categories(&self, number: usize) -> Option<usize> {
        self.columns.get(number)?.categories
    }

    pub(super) fn labels(&self, number: usize) -> Option<Arc<[Arc<str>]>> {
        self.columns.get(number)?.labels.clone()
    }
}

fn describe(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Number | ColumnKind::Integer => "a number",
        ColumnKind::Text => "a text",
        ColumnKind::Category => "a category",
        ColumnKind::Words => "a list of words",
        ColumnKind::Vector(_) => "a vector",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_an_input_follows_from_the_stages_that_read_it() {
        let mut schema = Schema::default();
        let color = schema.read("color", Wanted::Category).expect("a column");
        assert_eq!(schema.kind(color), Some(ColumnKind::Category));
        let level = schema.read("level", Wanted::Category).expect("a column");
        assert_eq!(schema.read("level", Wanted::NumberOrVector).expect("a column"), level);
        assert_eq!(schema.kind(level), Some(ColumnKind::Number));
        let error = schema.read("level", Wanted::Text).expect_err("a number").to_string();
        assert!(error.contains("\"level\" is a number for one stage and a text"), "{error}");
        let vector = schema.read("v", Wanted::Vector(None)).expect("a column");
        let scaled = schema.make_like("scaled", vector).expect("a column");
        assert_eq!(schema.size(vector), None);
        schema.read("scaled", Wanted::Vector(Some(3))).expect("a column");
        assert_eq!((schema.size(vector), schema.size(scaled)), (Some(3), Some(3)));
        assert!(schema.read("scaled", Wanted::Vector(Some(4))).is_err());
        assert!(schema.make("scaled", ColumnKind::Number).is_err());
        assert!(schema.read("words", Wanted::Words).is_err());
    }
}
