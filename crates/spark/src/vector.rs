//! Vectors and matrices of Spark, in the columns of `VectorUDT` and `MatrixUDT`.

use super::{damaged, index_of};
use serde_json::Value;

use super::parquet::ParquetColumns;
use super::parquet::column::NestedColumn;
use tensorserve_tensor::error::{Code, Error, Result};

/// The most numbers of a sparse vector or matrix once it is dense: 256 MiB of memory.
const MAX_COEFFICIENTS: usize = 1 << 25;

/// The values of the field `type`.
const SPARSE: f64 = 0.0;
const DENSE: f64 = 1.0;

/// Reads the vector in the columns `path.…`.
pub(super) fn read_vector(columns: &ParquetColumns, path: &str) -> Result<Vec<f64>> {
    let values = columns.list(&format!("{path}.values"));
    match columns.number(&format!("{path}.type")) {
        Some(DENSE) => Ok(values.to_vec()),
        Some(SPARSE) => {
            let size = read_size(columns, &format!("{path}.size"))?;
            let mut dense = zeros(size, path)?;
            fill(&mut dense, columns.list(&format!("{path}.indices")), values, path)?;
            Ok(dense)
        }
        _ => Err(damaged(format!("{path} is not a vector"))),
    }
}

/// A matrix, one row after the other.
pub(super) struct DenseMatrix {
    pub(super) values: Vec<f64>,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// The lines in which a matrix is stored: its columns, or its rows if it is transposed.
struct MatrixLines {
    is_by_row: bool,
    count: usize,
    length: usize,
}

impl DenseMatrix {
    /// Reads the matrix in the columns `path.…`.
    pub(super) fn read(columns: &ParquetColumns, path: &str) -> Result<Self> {
        let rows = read_size(columns, &format!("{path}.numRows"))?;
        let width = read_size(columns, &format!("{path}.numCols"))?;
        let total =
            rows.checked_mul(width).ok_or_else(|| damaged(format!("{path} is too large")))?;
        let mut matrix = DenseMatrix { values: zeros(total, path)?, rows, columns: width };
        let is_by_row = columns.number(&format!("{path}.isTransposed")) == Some(1.0);
        let (count, length) = if is_by_row { (rows, width) } else { (width, rows) };
        let lines = MatrixLines { is_by_row, count, length };
        let values = columns.list(&format!("{path}.values"));
        match columns.number(&format!("{path}.type")) {
            Some(DENSE) if values.len() == total => {
                let length = lines.length.max(1);
                for (index, value) in values.iter().enumerate() {
                    matrix.set(&lines, index / length, index % length, *value);
                }
            }
            Some(SPARSE) => matrix.fill_sparse(&lines, columns, path)?,
            _ => return Err(damaged(format!("{path} is not a matrix"))),
        }
        Ok(matrix)
    }

    /// Sets element `position` of line `line`.
    fn set(&mut self, lines: &MatrixLines, line: usize, position: usize, value: f64) {
        let index = match lines.is_by_row {
            true => line * self.columns + position,
            false => position * self.columns + line,
        };
        if let Some(element) = self.values.get_mut(index) {
            *element = value;
        }
    }

    /// Sets the elements of a sparse matrix: `colPtrs` has where the elements of each line start and
    /// end, `rowIndices` their positions in the line.
    fn fill_sparse(
        &mut self,
        lines: &MatrixLines,
        columns: &ParquetColumns,
        path: &str,
    ) -> Result<()> {
        let values = columns.list(&format!("{path}.values"));
        let pointers = columns.list(&format!("{path}.colPtrs"));
        let positions = columns.list(&format!("{path}.rowIndices"));
        if pointers.len() != lines.count + 1 || positions.len() != values.len() {
            return Err(damaged(format!("the parts of {path} differ in length")));
        }
        for (line, ends) in pointers.windows(2).enumerate() {
            let [start, end] = ends else { continue };
            let range = index_of(*start)..index_of(*end);
            let elements = positions.get(range.clone()).zip(values.get(range));
            let (positions, values) = elements.ok_or_else(|| out_of_range(path))?;
            for (position, value) in positions.iter().zip(values) {
                let position = index_of(*position);
                if position >= lines.length {
                    return Err(out_of_range(path));
                }
                self.set(lines, line, position, *value);
            }
        }
        Ok(())
    }
}

fn fill(dense: &mut [f64], indices: &[f64], values: &[f64], path: &str) -> Result<()> {
    if indices.len() != values.len() {
        let (indices, values) = (indices.len(), values.len());
        return Err(damaged(format!("{path} has {values} values for {indices} indices")));
    }
    for (position, value) in indices.iter().zip(values) {
        match dense.get_mut(index_of(*position)) {
            Some(element) => *element = *value,
            None => return Err(out_of_range(path)),
        }
    }
    Ok(())
}

fn out_of_range(path: &str) -> Error {
    damaged(format!("{path} has an index that is out of range"))
}

/// Reads a size.
fn read_size(columns: &ParquetColumns, path: &str) -> Result<usize> {
    let size = columns.number(path).map(index_of).filter(|size| *size <= MAX_COEFFICIENTS);
    size.ok_or_else(|| damaged(format!("{path} is not a valid size")))
}

fn zeros(count: usize, path: &str) -> Result<Vec<f64>> {
    if count > MAX_COEFFICIENTS {
        let message = format!("{path} has {count} numbers, more than {MAX_COEFFICIENTS}");
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(vec![0.0; count])
}

/// A vector as Spark writes it in parameters: dense, or sparse.
pub(super) fn vector_of_json(value: &Value) -> Option<Vec<f64>> {
    let values: Option<Vec<f64>> =
        value.get("values")?.as_array()?.iter().map(Value::as_f64).collect();
    let values = values?;
    if value.get("type")?.as_f64()? == DENSE {
        return Some(values);
    }
    let size = usize::try_from(value.get("size")?.as_u64()?).ok()?;
    let indices: Option<Vec<f64>> =
        value.get("indices")?.as_array()?.iter().map(Value::as_f64).collect();
    let mut dense = zeros(size, "a vector").ok()?;
    fill(&mut dense, &indices?, &values, "a vector").ok()?;
    Some(dense)
}

/// The vectors in the columns `path.…`: one for each row, or each element of the list of the only row.
pub(super) fn read_vectors(columns: &ParquetColumns, path: &str) -> Result<Vec<Vec<f64>>> {
    let column = |name: &str| columns.column(&format!("{path}.{name}"));
    let parts = column("type").zip(column("size")).zip(column("indices")).zip(column("values"));
    let (((kinds, sizes), indices), values) =
        parts.ok_or_else(|| damaged(format!("{path} has no vectors")))?;
    let level = kinds.depth();
    if sizes.depth() != level || indices.depth() != level + 1 || values.depth() != level + 1 {
        return Err(damaged(format!("{path} has no vectors")));
    }
    let mut vectors = Vec::new();
    let mut total = 0usize;
    for (at, kind) in kinds.numbers().iter().enumerate() {
        let part = |column: &'_ NestedColumn| column.range(level, at);
        let own = values.numbers().get(part(values)).unwrap_or_default();
        let vector = match *kind {
            DENSE => own.to_vec(),
            _ => {
                let size = sizes.numbers().get(at).copied().map(index_of);
                let size = size.filter(|size| *size <= MAX_COEFFICIENTS - total);
                let size = size.ok_or_else(|| damaged(format!("{path} has no valid size")))?;
                let mut dense = zeros(size, path)?;
                let positions = indices.numbers().get(part(indices)).unwrap_or_default();
                fill(&mut dense, positions, own, path)?;
                dense
            }
        };
        total = total.saturating_add(vector.len());
        if total > MAX_COEFFICIENTS {
            return Err(damaged(format!("{path} has more than {MAX_COEFFICIENTS} numbers")));
        }
        vectors.push(vector);
    }
    Ok(vectors)
}

/// The dense matrices in the columns `path.…`, one for each element of the list of the only row: of each,
/// its number of rows, and its values, one row after the other.
pub(super) fn read_matrices(
    columns: &ParquetColumns,
    path: &str,
) -> Result<Vec<(usize, Vec<f64>)>> {
    let column = |name: &str| columns.column(&format!("{path}.{name}"));
    let wrong = || damaged(format!("{path} has no dense matrices"));
    let (rows, values) = column("numRows").zip(column("values")).ok_or_else(wrong)?;
    let transposed = columns.list(&format!("{path}.isTransposed"));
    if rows.depth() != 1 || values.depth() != 2 {
        return Err(wrong());
    }
    let mut matrices = Vec::new();
    for (at, rows) in rows.numbers().iter().enumerate() {
        let rows = index_of(*rows);
        let own = values.numbers().get(values.range(1, at)).unwrap_or_default();
        let width = own.len().checked_div(rows).filter(|width| width * rows == own.len());
        let width = width.ok_or_else(wrong)?;
        let is_by_row = transposed.get(at).copied() == Some(1.0);
        let mut matrix = Vec::with_capacity(own.len());
        for row in 0..rows {
            match is_by_row {
                true => matrix.extend(own.iter().skip(row * width).take(width)),
                false => matrix.extend(own.iter().skip(row).step_by(rows)),
            }
        }
        matrices.push((rows, matrix));
    }
    Ok(matrices)
}
