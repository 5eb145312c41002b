//! The input of a model that takes one matrix, `[rows, features]`.

use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// The most feature names that an error message lists.
const MAX_SHOWN_NAMES: usize = 32;

/// The number of rows of the input `name`, `[rows, features]`. `names` are those of the features, or none.
///
/// # Errors
/// If it has another shape, with the names of the features unless there are too many.
pub fn count_rows(name: &str, input: &Tensor, features: usize, names: &[String]) -> Result<usize> {
    match *input.shape().dims() {
        [rows, columns] if usize::try_from(columns) == Ok(features) => {
            usize::try_from(rows).map_err(|_| Error::invalid("a negative number of rows"))
        }
        [_, columns] => {
            let names = match names.len() {
                1..=MAX_SHOWN_NAMES => format!(": {}", names.join(", ")),
                _ => String::new(),
            };
            Err(Error::invalid(format!(
                "input {name:?} has {columns} values in a row, and the model takes {features}{names}"
            )))
        }
        _ => Err(Error::invalid(format!(
            "input {name:?} has the shape {:?}, and the model takes [rows, {features}]",
            input.shape()
        ))),
    }
}
