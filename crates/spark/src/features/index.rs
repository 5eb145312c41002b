//! `StringIndexerModel` and `IndexToString`: texts become indices, and indices texts.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::super::folder::{Invalid, StageFolder};
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::{PipelineStage, Rejected, reject};
use super::super::table::{SparkColumn, SparkTable};
use super::super::{damaged, float};
use super::unequal;
use tensorserve_codec::json::java::double_text;
use tensorserve_tensor::NumberTexts;
use tensorserve_tensor::error::Result;

/// How many characters of a text an error shows.
const SHOWN: usize = 40;

/// Indexes the texts of one column.
struct StringIndexer {
    name: String,
    input: usize,
    output: usize,
    invalid: Invalid,
    indices: HashMap<Box<str>, f64>,
    /// The indices of labels that are numbers, by the bits of these: Spark turns the numbers of a column
    /// into texts.
    numbers: HashMap<u64, f64>,
    /// The index of texts that are no label.
    unknown: f64,
}

/// Several stages in one.
struct Stages(Vec<Box<dyn PipelineStage>>);

impl PipelineStage for Stages {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        self.0.iter().try_for_each(|stage| stage.run(table))
    }
}

/// The labels of each column.
fn read_labels(folder: &StageFolder) -> Result<Vec<Arc<[Arc<str>]>>> {
    let data = folder.data()?;
    let text = |text: &Option<Arc<str>>| text.clone().unwrap_or_default();
    if let Some(labels) = data.column("labels").filter(|labels| labels.depth() == 1) {
        return Ok(vec![labels.texts().iter().map(text).collect()]);
    }
    let labels = data.column("labelsArray").filter(|labels| labels.depth() == 2);
    let labels = labels.ok_or_else(|| damaged("it has no labels"))?;
    let lists = labels.range(0, 0).map(|list| {
        let range = labels.range(1, list);
        labels.texts().get(range).unwrap_or_default().iter().map(text).collect()
    });
    Ok(lists.collect())
}

/// `StringIndexerModel`, of one or several columns.
pub(in super::super) fn string_indexer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let inputs = folder.columns("inputCol", "inputCols")?;
    let outputs = folder.columns("outputCol", "outputCols")?;
    let labels = read_labels(folder)?;
    if inputs.len() != outputs.len() || inputs.len() != labels.len() {
        return Err(unequal(inputs.len(), outputs.len(), labels.len(), "lists of labels"));
    }
    let invalid = folder.invalid()?;
    let mut stages: Vec<Box<dyn PipelineStage>> = Vec::new();
    for ((name, output), labels) in inputs.into_iter().zip(outputs).zip(labels) {
        let input = schema.read(name, Wanted::Category)?;
        schema.set_number_texts(input, number_texts(&labels));
        let output = schema.make(output, ColumnKind::Number)?;
        let count = labels.len() + usize::from(invalid == Invalid::Keep);
        let pairs = || labels.iter().enumerate().map(|(index, label)| (label, float(index)));
        let numbers = pairs().filter_map(|(label, index)| Some((number_of(label)?, index)));
        let stage = StringIndexer {
            name: name.to_owned(),
            input,
            output,
            invalid,
            indices: pairs().map(|(label, index)| ((&**label).into(), index)).collect(),
            numbers: numbers.collect(),
            unknown: float(labels.len()),
        };
        schema.set_categories(output, count, Some(labels));
        stages.push(Box::new(stage));
    }
    Ok(Box::new(Stages(stages)))
}

/// How the numbers are written that Spark has turned into these labels; `None` if one is no number's.
fn number_texts(labels: &[Arc<str>]) -> Option<NumberTexts> {
    let is_integer =
        |label: &Arc<str>| label.parse::<i64>().is_ok_and(|number| number.to_string() == **label);
    let is_double =
        |label: &Arc<str>| label.parse::<f64>().is_ok_and(|number| double_text(number) == **label);
    match labels {
        [] => None,
        _ if labels.iter().all(is_integer) => Some(NumberTexts::Integers),
        _ if labels.iter().all(is_double) => Some(NumberTexts::Doubles),
        _ => None,
    }
}

/// The bits of the number that a label is the text of.
fn number_of(label: &str) -> Option<u64> {
    let number: f64 = label.parse().ok()?;
    Some(bits(number))
}

/// The bits of a number; the same for all that are not a number.
fn bits(number: f64) -> u64 {
    if number.is_nan() { f64::NAN.to_bits() } else { number.to_bits() }
}

impl StringIndexer {
    /// The indices of all rows, and the rows whose text is no label.
    fn indices(&self, table: &SparkTable<'_>) -> Result<(Vec<f64>, Rejected)> {
        let mut rejected = Vec::new();
        let mut index_of = |row: usize, found: Option<f64>, show: &dyn Fn() -> String| {
            if found.is_none() && self.invalid != Invalid::Keep {
                rejected.push((row, show()));
            }
            found.unwrap_or(self.unknown)
        };
        let indices = match table.column(self.input)? {
            SparkColumn::Numbers(numbers) => {
                let rows = numbers.iter().enumerate();
                rows.map(|(row, number)| {
                    let found = self.numbers.get(&bits(*number)).copied();
                    index_of(row, found, &|| format!("has the unseen value {number}"))
                })
                .collect()
            }
            SparkColumn::Texts(_) | SparkColumn::Words(_) | SparkColumn::Vectors(_) => {
                let rows = table.texts(self.input)?.iter().enumerate();
                rows.map(|(row, text)| {
                    let found = self.indices.get(&**text).copied();
                    index_of(row, found, &|| match text.is_empty() {
                        true => "is missing".to_owned(),
                        false => {
                            let shown: String = text.chars().take(SHOWN).collect();
                            format!("has the unseen label {shown:?}")
                        }
                    })
                })
                .collect()
            }
        };
        Ok((indices, rejected))
    }
}

impl PipelineStage for StringIndexer {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let (indices, rejected) = self.indices(table)?;
        reject(table, self.invalid, &self.name, rejected)?;
        table.put(self.output, SparkColumn::Numbers(Cow::Owned(indices)));
        Ok(())
    }
}

/// `IndexToString`.
struct IndexToString {
    name: String,
    input: usize,
    output: usize,
    labels: Arc<[Arc<str>]>,
}

pub(in super::super) fn index_to_string(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let name = folder.column("inputCol")?;
    let input = schema.read(name, Wanted::Number)?;
    let labels = match folder.texts("labels")?.filter(|labels| !labels.is_empty()) {
        Some(labels) => labels.into_iter().map(Arc::from).collect(),
        None => schema.labels(input).ok_or_else(|| {
            super::super::unsupported(format!(
                "an IndexToString without labels, whose column {name:?} is not that of a \
                 StringIndexer: set its labels"
            ))
        })?,
    };
    let output = schema.make(folder.column("outputCol")?, ColumnKind::Text)?;
    Ok(Box::new(IndexToString { name: name.to_owned(), input, output, labels }))
}

impl IndexToString {
    /// The label of an index, which Spark cuts off to an integer.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn label(&self, index: f64) -> Option<&Arc<str>> {
        // Between -1 and 0 it is cut off to 0, and so is NaN.
        if index <= -1.0 {
            return None;
        }
        self.labels.get(index as usize)
    }
}

impl PipelineStage for IndexToString {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let mut texts = Vec::with_capacity(table.rows);
        for (row, index) in table.numbers(self.input)?.iter().enumerate() {
            let label = self.label(*index);
            if label.is_none() && !table.is_skipped(row) {
                let reason = format!("has the index {index}, for which there is no label");
                return Err(table.refusal(row, &self.name, &reason));
            }
            texts.push(Cow::Owned(label.map_or_else(String::new, |label| (**label).to_owned())));
        }
        table.put(self.output, SparkColumn::Texts(texts));
        Ok(())
    }
}
