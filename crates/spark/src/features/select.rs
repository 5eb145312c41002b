//! The stages that select elements of a vector, and `PCAModel`, which projects it.

use super::super::folder::StageFolder;
use super::super::schema::{Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{
    SparkColumn, SparkTable, SparseVectorRows, VectorRow, VectorRows, Vectors,
};
use super::super::vector::DenseMatrix;
use super::super::{damaged, index_of, unsupported};
use tensorserve_tensor::error::Result;

/// Selects elements in the given order.
struct Selector {
    input: usize,
    output: usize,
    indices: Vec<usize>,
}

/// `ChiSqSelectorModel`, `UnivariateFeatureSelectorModel`, `VarianceThresholdSelectorModel`: elements stay in
/// their order.
pub(in super::super) fn selector(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let data = folder.data()?;
    if !data.has("selectedFeatures") {
        return Err(damaged("it has no selectedFeatures"));
    }
    let mut indices: Vec<usize> =
        data.list("selectedFeatures").iter().map(|index| index_of(*index)).collect();
    indices.sort_unstable();
    select(folder, schema, "featuresCol", indices)
}

/// `VectorSlicer`.
pub(in super::super) fn slicer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    if folder.texts("names")?.is_some_and(|names| !names.is_empty()) {
        return Err(unsupported("a VectorSlicer by names of elements: set its indices"));
    }
    let indices = folder.numbers("indices")?.unwrap_or_default();
    let indices = indices.into_iter().map(index_of).collect();
    select(folder, schema, "inputCol", indices)
}

fn select(
    folder: &StageFolder,
    schema: &mut Schema,
    column: &str,
    indices: Vec<usize>,
) -> Result<Box<dyn PipelineStage>> {
    let input = schema.read(folder.column(column)?, Wanted::Vector(None))?;
    let largest = indices.iter().max().copied().unwrap_or(0);
    let width = schema.size(input);
    if indices.len() > super::super::MAX_WIDTH || largest >= width.unwrap_or(usize::MAX) {
        return Err(damaged("it selects elements that the vector does not have"));
    }
    let output = schema.make_vector(folder.column("outputCol")?, indices.len())?;
    Ok(Box::new(Selector { input, output, indices }))
}

impl PipelineStage for Selector {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.input)?;
        let width = self.indices.len();
        let selected = match &vectors.rows {
            VectorRows::Dense(_) => {
                let mut all = Vec::with_capacity(width * table.rows);
                vectors.for_dense_rows(table.rows, |_, row| {
                    let value = |index: &usize| row.get(*index).copied().unwrap_or(0.0);
                    all.extend(self.indices.iter().map(value));
                    Ok(())
                })?;
                Vectors::dense(width, all)
            }
            VectorRows::Sparse(rows) => {
                let mut selected = SparseVectorRows::default();
                for row in rows.iter() {
                    for (to, from) in (0u32..).zip(&self.indices) {
                        let found = row.binary_search_by_key(from, |(at, _)| *at as usize).ok();
                        if let Some((_, value)) = found.and_then(|found| row.get(found)) {
                            selected.entries.push((to, *value));
                        }
                    }
                    selected.ends.push(selected.entries.len());
                }
                Vectors::sparse(width, selected)
            }
        };
        table.put(self.output, SparkColumn::Vectors(selected));
        Ok(())
    }
}

/// `PCAModel`.
struct PcaModel {
    input: usize,
    output: usize,
    /// The components, one after the other.
    components: Vec<f64>,
    width: usize,
}

pub(in super::super) fn principal_components(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let matrix = DenseMatrix::read(&folder.data()?, "pc")?;
    let (width, count) = (matrix.rows, matrix.columns);
    if width == 0 || count == 0 {
        return Err(damaged("it has no components"));
    }
    let mut components = Vec::with_capacity(matrix.values.len());
    for component in 0..count {
        components.extend(matrix.values.iter().skip(component).step_by(count));
    }
    let input = schema.read(folder.column("inputCol")?, Wanted::Vector(Some(width)))?;
    let output = schema.make_vector(folder.column("outputCol")?, count)?;
    Ok(Box::new(PcaModel { input, output, components, width }))
}

impl PipelineStage for PcaModel {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.input)?;
        let components = || self.components.chunks_exact(self.width);
        let count = components().len();
        let mut all = Vec::with_capacity(count * table.rows);
        for row in 0..table.rows {
            let row: VectorRow<'_> = vectors.row(row);
            all.extend(components().map(|component| row.dot(component)));
        }
        table.put(self.output, SparkColumn::Vectors(Vectors::dense(count, all)));
        Ok(())
    }
}
