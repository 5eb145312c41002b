//! The stages that count words: `CountVectorizerModel` and `HashingTF`.

use std::collections::HashMap;

use super::super::folder::StageFolder;
use super::super::schema::{Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, SparseVectorRows, Vectors};
use super::super::{MAX_WIDTH, damaged, float};
use super::murmur;
use tensorserve_tensor::error::Result;

/// Counts words.
struct WordCounter {
    input: usize,
    output: usize,
    width: usize,
    positions: Positions,
    /// The least count, or the least share of the words of the row if it is below 1.
    least: f64,
    /// Whether counts become 1.
    is_binary: bool,
}

/// Where a word is counted.
enum Positions {
    Vocabulary(HashMap<Box<str>, u32>),
    Hash { is_spark_2: bool },
}

pub(in super::super) fn count_vectorizer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let data = folder.data()?;
    let words = data.column("vocabulary").map(|column| column.texts());
    let words = words.ok_or_else(|| damaged("it has no vocabulary"))?;
    let pairs = (0..).zip(words).filter_map(|(at, word)| Some((word.as_deref()?.into(), at)));
    let positions = Positions::Vocabulary(pairs.collect());
    let least = folder.number("minTF", 1.0)?;
    counter(folder, schema, words.len(), positions, least)
}

pub(in super::super) fn hashing(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let width = folder.size("numFeatures", 1 << 18)?;
    let positions = Positions::Hash { is_spark_2: folder.major_version() < 3 };
    counter(folder, schema, width, positions, 0.0)
}

fn counter(
    folder: &StageFolder,
    schema: &mut Schema,
    width: usize,
    positions: Positions,
    least: f64,
) -> Result<Box<dyn PipelineStage>> {
    if width == 0 || width > MAX_WIDTH {
        return Err(damaged(format!("its vectors have {width} elements")));
    }
    let is_binary = folder.flag("binary", false)?;
    let input = schema.read(folder.column("inputCol")?, Wanted::Words)?;
    let output = schema.make_vector(folder.column("outputCol")?, width)?;
    Ok(Box::new(WordCounter { input, output, width, positions, least, is_binary }))
}

impl WordCounter {
    fn position(&self, word: &str) -> Option<u32> {
        match &self.positions {
            Positions::Vocabulary(positions) => positions.get(word).copied(),
            Positions::Hash { is_spark_2 } => {
                let hash = i64::from(murmur::hash(word.as_bytes(), *is_spark_2));
                u32::try_from(hash.rem_euclid(i64::try_from(self.width).ok()?)).ok()
            }
        }
    }
}

impl PipelineStage for WordCounter {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let lists = table.words(self.input)?;
        let mut rows = SparseVectorRows::default();
        for row in lists.rows() {
            let positions = row.iter().filter_map(|word| self.position(lists.word(word)));
            rows.entries.extend(positions.map(|position| (position, 1.0)));
            rows.end_unordered_row();
            let least = if self.least >= 1.0 { self.least } else { float(row.len()) * self.least };
            rows.filter_last_row(|count| count >= least);
        }
        if self.is_binary {
            rows.entries.iter_mut().for_each(|(_, count)| *count = 1.0);
        }
        table.put(self.output, SparkColumn::Vectors(Vectors::sparse(self.width, rows)));
        Ok(())
    }
}
