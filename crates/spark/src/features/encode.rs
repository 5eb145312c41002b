//! `OneHotEncoderModel`, and the `OneHotEncoder` of Spark 2.

use super::super::folder::{Invalid, StageFolder};
use super::super::schema::{Schema, Wanted};
use super::super::stage::{PipelineStage, reject};
use super::super::table::{SparkColumn, SparkTable, SparseVectorRows, Vectors};
use super::super::{damaged, float, index_of, unsupported};
use super::unequal;
use tensorserve_tensor::error::Result;

/// Vectors up to this size are dense: it is quicker to assemble them.
const MAX_DENSE: usize = 64;

/// Encodes one or several columns.
struct SparkOneHotEncoder {
    columns: Vec<EncodedColumn>,
}

struct EncodedColumn {
    name: String,
    input: usize,
    output: usize,
    /// The number of categories; larger indices are not valid.
    categories: usize,
    /// The size of the vectors.
    size: usize,
    keeps_invalid: bool,
}

pub(in super::super) fn one_hot_encoder(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let inputs = folder.columns("inputCol", "inputCols")?;
    let outputs = folder.columns("outputCol", "outputCols")?;
    let data = folder.data()?;
    let sizes = data.list("categorySizes");
    if inputs.len() != outputs.len() || inputs.len() != sizes.len() {
        return Err(unequal(inputs.len(), outputs.len(), sizes.len(), "numbers of categories"));
    }
    let keeps_invalid = folder.invalid()? == Invalid::Keep;
    let drops_last = folder.flag("dropLast", true)?;
    let mut columns = Vec::new();
    for ((name, output), categories) in inputs.into_iter().zip(outputs).zip(sizes) {
        let categories = index_of(*categories);
        // With both, the last one is that of invalid values.
        let size = match (keeps_invalid, drops_last) {
            (true, false) => categories.checked_add(1),
            (false, true) => categories.checked_sub(1),
            _ => Some(categories),
        };
        let size = size.filter(|size| *size <= super::super::MAX_WIDTH);
        let size = size.ok_or_else(|| damaged("its numbers of categories are not valid"))?;
        let input = schema.read(name, Wanted::Number)?;
        let output = schema.make_vector(output, size)?;
        let name = name.to_owned();
        columns.push(EncodedColumn { name, input, output, categories, size, keeps_invalid });
    }
    Ok(Box::new(SparkOneHotEncoder { columns }))
}

/// The encoder of Spark 2, which knows the number of categories from the column.
pub(in super::super) fn old_one_hot_encoder(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let name = folder.column("inputCol")?;
    let input = schema.read(name, Wanted::Number)?;
    let categories = schema.categories(input).ok_or_else(|| {
        unsupported(format!(
            "Spark 2's OneHotEncoder of column {name:?}, which no StringIndexer of the pipeline makes: \
             Spark itself counts the categories in the rows that it encodes"
        ))
    })?;
    let size = categories.saturating_sub(usize::from(folder.flag("dropLast", true)?));
    let output = schema.make_vector(folder.column("outputCol")?, size)?;
    let name = name.to_owned();
    let column = EncodedColumn { name, input, output, categories, size, keeps_invalid: false };
    Ok(Box::new(SparkOneHotEncoder { columns: vec![column] }))
}

impl EncodedColumn {
    /// Where the 1 of the category with this index is; out of range for a vector of zeros. `None` for an
    /// index that is not valid.
    fn position(&self, index: f64) -> Option<usize> {
        match index >= 0.0 && index < float(self.categories) {
            true => Some(index_of(index)),
            false => self.keeps_invalid.then_some(self.categories),
        }
    }
}

impl PipelineStage for SparkOneHotEncoder {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        for column in &self.columns {
            let mut rejected = Vec::new();
            let mut positions = Vec::with_capacity(table.rows);
            for (row, index) in table.numbers(column.input)?.iter().enumerate() {
                let position = column.position(*index);
                if position.is_none() {
                    rejected.push((row, format!("has the unseen category {index}")));
                }
                positions.push(position.unwrap_or(usize::MAX));
            }
            reject(table, Invalid::Error, &column.name, rejected)?;
            table.put(column.output, SparkColumn::Vectors(vectors(column.size, &positions)));
        }
        Ok(())
    }
}

/// Vectors of this size, each with a 1 at its position, if that is within.
fn vectors(size: usize, positions: &[usize]) -> Vectors<'static> {
    if size <= MAX_DENSE {
        let mut values = vec![0.0; size * positions.len()];
        for (row, position) in values.chunks_exact_mut(size.max(1)).zip(positions) {
            if let Some(element) = row.get_mut(*position) {
                *element = 1.0;
            }
        }
        return Vectors::dense(size, values);
    }
    let mut rows = SparseVectorRows::default();
    for position in positions {
        if *position < size {
            rows.entries.push((u32::try_from(*position).unwrap_or(u32::MAX), 1.0));
        }
        rows.ends.push(rows.entries.len());
    }
    Vectors::sparse(size, rows)
}
