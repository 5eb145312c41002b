//! Vectors and matrices of Spark, in the columns of `VectorUDT` and `MatrixUDT`.

use super::damaged;
use super::parquet::ParquetColumns;
use tensorserve_tensor::error::{Code, Error, Result};

/// The most coefficients: 512 MiB of memory.
const MAX_COEFFICIENTS: usize = 1 << 26;

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
            let range = index(*start)..index(*end);
            let elements = positions.get(range.clone()).zip(values.get(range));
            let (positions, values) = elements.ok_or_else(|| out_of_range(path))?;
            for (position, value) in positions.iter().zip(values) {
                let position = index(*position);
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
        match dense.get_mut(index(*position)) {
            Some(element) => *element = *value,
            None => return Err(out_of_range(path)),
        }
    }
    Ok(())
}

fn out_of_range(path: &str) -> Error {
    damaged(format!("{path} has an index that is out of range"))
}

/// An index, which was a 32-bit integer; out of every range if it was negative.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn index(number: f64) -> usize {
    if number >= 0.0 { number as usize } else { usize::MAX }
}

/// Reads a size.
fn read_size(columns: &ParquetColumns, path: &str) -> Result<usize> {
    let size = columns.number(path).map(index).filter(|size| *size <= MAX_COEFFICIENTS);
    size.ok_or_else(|| damaged(format!("{path} is not a valid size")))
}

fn zeros(count: usize, path: &str) -> Result<Vec<f64>> {
    if count > MAX_COEFFICIENTS {
        let message = format!("{path} has {count} numbers, more than {MAX_COEFFICIENTS}");
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(vec![0.0; count])
}
