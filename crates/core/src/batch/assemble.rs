//! Assembles requests into a batch, and splits a batch's outputs by request. Pure functions.

use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Tensor, concat, pad};

/// The rows of a request: the 0-th dimension that all its inputs share. `None` for a request
/// that cannot be batched (a scalar input, or 0-th dimensions that differ or are 0).
pub(super) fn rows_of(inputs: &[Tensor]) -> Option<usize> {
    let rows = inputs.first()?.rows()?;
    let same = inputs.iter().all(|input| input.rows() == Some(rows));
    (same && rows > 0).then_some(rows)
}

/// Whether two requests can be in one batch: their inputs have the same dtypes (which were not
/// checked before), and their rows have the same shape, or have it after padding.
pub(super) fn can_join(a: &[Tensor], b: &[Tensor], padding: bool) -> bool {
    let same = |(a, b): (&Tensor, &Tensor)| {
        let same_type = a.dtype() == b.dtype();
        let (a, b) = (a.shape().row_dims(), b.shape().row_dims());
        same_type && (a == b || (padding && a.len() == b.len()))
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// How many times as many bytes an input of a batch may have with padding as without.
const MAX_PADDING: usize = 4;

/// Up to this many bytes an input of a batch may be padded in any case.
const FREE_PADDING: usize = 1 << 20;

/// The inputs of a batch that is padded to the largest size of each dimension. Requests that are long
/// in different dimensions would make it many times larger than all of them together, so such a
/// request does not join.
pub(super) struct PaddedBatch {
    inputs: Vec<PaddedInput>,
}

#[derive(Clone)]
struct PaddedInput {
    /// The largest size of each dimension after the 0-th.
    row_dims: Vec<i64>,
    rows: usize,
    elements: usize,
    bytes: usize,
    /// The size in bytes of the largest value to pad with.
    filler: usize,
}

impl PaddedBatch {
    pub(super) fn of(first: &[Tensor]) -> Self {
        PaddedBatch { inputs: first.iter().map(PaddedInput::of).collect() }
    }

    /// Adds a request, unless the batch would be too large then.
    pub(super) fn try_add(&mut self, request: &[Tensor]) -> bool {
        let pairs = self.inputs.iter().zip(request);
        let joined: Vec<PaddedInput> =
            pairs.map(|(input, tensor)| input.with(&PaddedInput::of(tensor))).collect();
        let fits = joined.iter().all(PaddedInput::is_bounded);
        if fits {
            self.inputs = joined;
        }
        fits
    }
}

impl PaddedInput {
    fn of(tensor: &Tensor) -> Self {
        let strings = tensor.strings();
        let filler = match strings {
            // An empty string takes memory for its place.
            Some(strings) => strings.iter().next().map_or(0, <[u8]>::len).max(size_of::<usize>()),
            None => tensor.dtype().size().unwrap_or(1),
        };
        PaddedInput {
            row_dims: tensor.shape().row_dims().to_vec(),
            rows: tensor.rows().unwrap_or(0),
            elements: tensor.shape().elements().unwrap_or(0),
            bytes: strings.map_or_else(|| tensor.byte_len(), |strings| strings.byte_len()),
            filler,
        }
    }

    fn with(&self, other: &Self) -> Self {
        let dims = self.row_dims.iter().zip(&other.row_dims);
        PaddedInput {
            row_dims: dims.map(|(a, b)| *a.max(b)).collect(),
            rows: self.rows.saturating_add(other.rows),
            elements: self.elements.saturating_add(other.elements),
            bytes: self.bytes.saturating_add(other.bytes),
            filler: self.filler.max(other.filler),
        }
    }

    fn is_bounded(&self) -> bool {
        let sizes = self.row_dims.iter().map(|&size| usize::try_from(size).unwrap_or(0));
        let elements = sizes.fold(self.rows, usize::saturating_mul);
        let padding = elements.saturating_sub(self.elements).saturating_mul(self.filler);
        padding <= FREE_PADDING.max((MAX_PADDING - 1).saturating_mul(self.bytes))
    }
}

/// The batch size for `rows` rows: the next allowed size, or `rows` if there is none.
pub(super) fn allowed_size(rows: usize, allowed: &[usize]) -> usize {
    let next = allowed.iter().copied().find(|&size| size >= rows);
    next.unwrap_or(rows)
}

/// Concatenates the inputs of several requests, each padded to the largest where shapes differ, and
/// adds padding up to `size` rows.
pub(super) fn assemble(requests: &[&[Tensor]], size: usize) -> Result<Vec<Tensor>> {
    let Some(first) = requests.first() else {
        return Err(Error::internal("an empty batch"));
    };
    let mut joined = Vec::with_capacity(first.len());
    for index in 0..first.len() {
        let parts: Vec<&Tensor> = requests.iter().filter_map(|r| r.get(index)).collect();
        joined.push(join(&parts, size)?);
    }
    Ok(joined)
}

/// Concatenates the inputs of several requests.
///
/// # Errors
/// If they cannot be joined.
pub(crate) fn joined(requests: &[&[Tensor]]) -> Result<Vec<Tensor>> {
    assemble(requests, 0)
}

fn join(parts: &[&Tensor], size: usize) -> Result<Tensor> {
    let mut largest = parts.first().map_or(Vec::new(), |p| p.shape().row_dims().to_vec());
    let mut differ = false;
    for part in parts {
        for (most, &dim) in largest.iter_mut().zip(part.shape().row_dims()) {
            differ |= *most != dim;
            *most = dim.max(*most);
        }
    }
    if !differ {
        return concat(parts, size);
    }
    let padded: Vec<Tensor> = parts.iter().map(|p| pad(p, &largest)).collect::<Result<_>>()?;
    concat(&padded.iter().collect::<Vec<_>>(), size)
}

/// Splits a batch's outputs by request; `rows` are the rows of each, `size` those that were run.
///
/// # Errors
/// TensorFlow Serving's, for an output whose 0-th dimension is not `size`.
pub(super) fn split(outputs: &[Tensor], rows: &[usize], size: usize) -> Result<Vec<Vec<Tensor>>> {
    check_rows(outputs, size)?;
    let mut start = 0;
    let mut answers = Vec::with_capacity(rows.len());
    for &rows in rows {
        let range = start..start + rows;
        answers.push(outputs.iter().map(|o| o.slice_rows(range.clone())).collect());
        start += rows;
    }
    Ok(answers)
}

/// Checks that each output has one row for each of the `size` rows that were run.
///
/// # Errors
/// TensorFlow Serving's.
pub(super) fn check_rows(outputs: &[Tensor], size: usize) -> Result<()> {
    for output in outputs {
        match output.rows() {
            Some(rows) if rows == size => {}
            Some(_) => return Err(Error::precondition(UNSPLITTABLE)),
            None => return Err(Error::precondition("Batched output tensor has 0 dimensions")),
        }
    }
    Ok(())
}

const UNSPLITTABLE: &str = "Batched output tensor's 0th dimension does not equal the sum of the 0th \
                            dimension sizes of the input tensors";

/// The error of a request whose outputs cannot be split off, in TensorFlow Serving's words.
pub(super) fn unsplittable() -> Error {
    Error::precondition(UNSPLITTABLE)
}

/// Concatenates the outputs of the pieces of one large request.
pub(super) fn rejoin(pieces: &[Vec<Tensor>]) -> Result<Vec<Tensor>> {
    let outputs = pieces.first().map_or(0, Vec::len);
    let mut joined = Vec::with_capacity(outputs);
    for index in 0..outputs {
        let parts: Vec<&Tensor> = pieces.iter().filter_map(|p| p.get(index)).collect();
        joined.push(concat(&parts, 0)?);
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{Tolerance, same_outputs};
    use proptest::prelude::*;
    use tensorserve_tensor::{Shape, StringsBuilder, aligned_vec};

    fn ints(dims: &[i64], first: i32) -> Tensor {
        let shape = Shape::new(dims).expect("shape");
        let count = i32::try_from(shape.elements().expect("count")).expect("small");
        let mut values = aligned_vec(0);
        (first..first + count).for_each(|v| values.push(v));
        Tensor::from_vec(shape, values).expect("tensor")
    }

    fn strings(values: &[&str]) -> Tensor {
        let mut builder = StringsBuilder::default();
        values.iter().for_each(|v| builder.push(v.as_bytes()));
        Tensor::from_strings(Shape::vector(values.len()), builder).expect("tensor")
    }

    fn values(tensor: &Tensor) -> Vec<i32> {
        tensor.values::<i32>().expect("ints").to_vec()
    }

    #[test]
    fn only_inputs_with_one_common_first_dimension_have_rows() {
        assert_eq!(rows_of(&[ints(&[3, 2], 0), ints(&[3], 0)]), Some(3));
        assert_eq!(rows_of(&[ints(&[3], 0), ints(&[1], 0)]), None);
        assert_eq!(rows_of(&[ints(&[], 0)]), None);
        assert_eq!(rows_of(&[ints(&[0, 2], 0)]), None);
        assert_eq!(rows_of(&[]), None);
    }

    #[test]
    fn inputs_of_different_types_do_not_join() {
        assert!(!can_join(&[ints(&[1], 0)], &[strings(&["a"])], true));
    }

    #[test]
    fn padding_repeats_the_first_element_at_the_end_of_each_dimension() {
        let (a, b) = (ints(&[1, 1, 2], 1), ints(&[1, 2, 3], 10));
        assert!(!can_join(std::slice::from_ref(&a), std::slice::from_ref(&b), false));
        assert!(can_join(std::slice::from_ref(&a), std::slice::from_ref(&b), true));
        let joined = join(&[&a, &b], 0).expect("joins");
        assert_eq!(joined.shape().dims(), [2, 2, 3]);
        assert_eq!(values(&joined), [1, 2, 1, 1, 1, 1, 10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn requests_that_are_long_in_different_dimensions_are_not_padded_to_both() {
        let n = 1 << 10;
        let mut batch = PaddedBatch::of(&[ints(&[1, n, 1], 0)]);
        // Two rows of n * n values would have 8 MiB.
        assert!(!batch.try_add(&[ints(&[1, 1, n], 0)]));
        assert!(batch.try_add(&[ints(&[1, n / 2, 1], 0)]), "the one before was not added");
        let mut small = PaddedBatch::of(&[ints(&[1, 100, 1], 0)]);
        assert!(small.try_add(&[ints(&[1, 1, 100], 0)]), "80 kB are few");
        assert!(!small.try_add(&[ints(&[40, 1, 1], 0)]), "each row would be padded to 100 * 100");
        let long = "x".repeat(1 << 20);
        let mut texts = PaddedBatch::of(&[strings(&["a"])]);
        assert!(texts.try_add(&[strings(&[&long])]), "same shape");
        let wide = Tensor::from_strings(Shape::new(&[1, 9]).expect("shape"), {
            let mut builder = StringsBuilder::default();
            (0..9).for_each(|_| builder.push(b"a"));
            builder
        });
        let narrow = Tensor::from_strings(Shape::new(&[1, 1]).expect("shape"), {
            let mut builder = StringsBuilder::default();
            builder.push(long.as_bytes());
            builder
        });
        let mut texts = PaddedBatch::of(&[narrow.expect("tensor")]);
        assert!(!texts.try_add(&[wide.expect("tensor")]), "the long text would be repeated");
    }

    #[test]
    fn a_batch_is_filled_with_the_first_row_of_the_last_request() {
        let joined = join(&[&ints(&[1, 2], 0), &ints(&[2, 2], 10)], 5).expect("joins");
        assert_eq!(values(&joined), [0, 1, 10, 11, 12, 13, 10, 11, 10, 11]);
        assert_eq!(allowed_size(3, &[2, 4, 8]), 4);
        assert_eq!(allowed_size(9, &[2, 4, 8]), 9);
        assert_eq!(allowed_size(9, &[]), 9);
    }

    #[test]
    fn outputs_of_another_size_do_not_split() {
        let error = split(&[ints(&[3], 0)], &[1, 1], 2).expect_err("a row too many");
        assert_eq!(error.message(), UNSPLITTABLE);
        let error = split(&[ints(&[1], 0), ints(&[], 0)], &[1], 1).expect_err("a scalar");
        assert_eq!(error.message(), "Batched output tensor has 0 dimensions");
    }

    proptest! {
        #[test]
        fn what_is_assembled_splits_into_what_it_was(
            rows in proptest::collection::vec(1usize..5, 1..6),
            row in proptest::collection::vec(0i64..4, 0..3),
            fill in 0usize..4,
        ) {
            let dims = |n: usize| [&[n as i64][..], &row].concat();
            let requests: Vec<Vec<Tensor>> = rows.iter().enumerate().map(|(i, &n)| {
                let text = vec!["x"; n].join("").repeat(i);
                let texts: Vec<&str> = (0..n).map(|k| &text[..k.min(text.len())]).collect();
                vec![ints(&dims(n), i as i32 * 1000), strings(&texts)]
            }).collect();
            let views: Vec<&[Tensor]> = requests.iter().map(Vec::as_slice).collect();
            let size = rows.iter().sum::<usize>() + fill;
            let batch = assemble(&views, size).expect("assembles");
            let answers = split(&batch, &rows, size).expect("splits");
            for (request, answer) in requests.iter().zip(&answers) {
                prop_assert!(same_outputs(request, answer, Tolerance::Batches));
            }
            let (joined, all) = (rejoin(&answers), assemble(&views, 0));
            let (joined, all) = (joined.expect("joins"), all.expect("assembles"));
            prop_assert!(same_outputs(&joined, &all, Tolerance::Batches));
        }
    }
}
