//! `VectorIndexerModel`: the elements that are categories become indices.

use std::collections::HashMap;

use super::super::folder::{Invalid, StageFolder};
use super::super::schema::{Schema, Wanted};
use super::super::stage::{PipelineStage, reject};
use super::super::table::{SparkColumn, SparkTable, VectorRows};
use super::super::{damaged, float, index_of};
use tensorserve_tensor::error::Result;

struct VectorIndexer {
    name: String,
    input: usize,
    output: usize,
    invalid: Invalid,
    /// The indices of the values of each element that is a category, by the bits of these.
    categories: HashMap<usize, HashMap<u64, f64>>,
}

pub(in super::super) fn vector_indexer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    const MAPS: &str = "categoryMaps.key_value";
    let data = folder.data()?;
    let width = data.number("numFeatures").map(index_of);
    let elements = data.list(&format!("{MAPS}.key"));
    let mut categories = HashMap::new();
    if !elements.is_empty() {
        let values = data.column(&format!("{MAPS}.value.key_value.key"));
        let indices = data.list(&format!("{MAPS}.value.key_value.value"));
        let values =
            values.filter(|values| values.depth() == 2 && values.numbers().len() == indices.len());
        let values = values.ok_or_else(|| damaged("its categoryMaps are not valid"))?;
        for (list, element) in values.range(0, 0).zip(elements) {
            let range = values.range(1, list);
            let pairs = values.numbers().get(range.clone()).zip(indices.get(range));
            let (values, indices) =
                pairs.ok_or_else(|| damaged("its categoryMaps are not valid"))?;
            let pairs = values.iter().map(|value| bits(*value)).zip(indices.iter().copied());
            categories.insert(index_of(*element), pairs.collect());
        }
    }
    let name = folder.column("inputCol")?;
    let input = schema.read(name, Wanted::Vector(width))?;
    let output = schema.make_like(folder.column("outputCol")?, input)?;
    let invalid = folder.invalid()?;
    Ok(Box::new(VectorIndexer { name: name.to_owned(), input, output, invalid, categories }))
}

/// The bits of a value; the same for 0 and -0.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

impl PipelineStage for VectorIndexer {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.input)?;
        let indexed = vectors.mapped(|at, value| match self.categories.get(&at) {
            None => value,
            Some(indices) => indices.get(&bits(value)).copied().unwrap_or(float(indices.len())),
        });
        if self.invalid != Invalid::Keep {
            let mut rejected = Vec::new();
            for (at, indices) in &self.categories {
                for row in 0..table.rows {
                    let value = element(&vectors.rows, vectors.width, row, *at);
                    if !indices.contains_key(&bits(value)) {
                        rejected
                            .push((row, format!("has the unseen value {value} in element {at}")));
                    }
                }
            }
            rejected.sort_unstable();
            reject(table, self.invalid, &self.name, rejected)?;
        }
        table.put(self.output, SparkColumn::Vectors(indexed));
        Ok(())
    }
}

/// Element `at` of row `row`. The zeros of sparse rows are categories of their own, whose index is 0.
fn element(rows: &VectorRows<'_>, width: usize, row: usize, at: usize) -> f64 {
    match rows {
        VectorRows::Dense(values) => values.get(row * width + at).copied().unwrap_or(0.0),
        VectorRows::Sparse(rows) => {
            let row = rows.row(row);
            let found = row.binary_search_by_key(&at, |(position, _)| *position as usize);
            found.ok().and_then(|found| row.get(found)).map_or(0.0, |(_, value)| *value)
        }
    }
}
