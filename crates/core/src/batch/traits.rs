//! What a queue knows of its signature.

use std::sync::Arc;

use crate::comparison::Tolerance;
use tensorserve_tensor::{DeclaredShape, RowDependence, Signature, Tensor, TensorSpec};

/// Properties of a queue's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureTraits {
    /// Inputs and outputs declare a variable 0-th dimension.
    pub batchable: bool,
    /// A run changes no state, so that it can be repeated.
    pub read_only: bool,
    /// Whether rows depend on each other.
    pub rows: RowDependence,
    /// The declared sizes of each input, -1 for any; `None` for any rank.
    pub inputs: Arc<[Option<Vec<i64>>]>,
    /// An output does not declare that it has a 0-th dimension.
    pub may_be_scalar: bool,
    /// A run may take any time, however long others took, or never end: it never takes place on the thread
    /// of a connection, and always has the time limit of its requests.
    pub unbounded: bool,
    /// Runs take place on a GPU, where the operations of several runs take turns.
    pub on_gpu: bool,
}

impl SignatureTraits {
    /// The traits of `signature`.
    #[must_use]
    pub fn of(signature: &Signature) -> Self {
        SignatureTraits {
            batchable: signature.is_batchable(),
            read_only: signature.read_only,
            rows: signature.rows.clone(),
            inputs: signature.inputs.iter().map(|spec| spec.shape.sizes()).collect(),
            may_be_scalar: signature.outputs.iter().any(|spec| !has_dimensions(spec)),
            unbounded: !signature.is_bounded,
            on_gpu: false,
        }
    }
}

impl SignatureTraits {
    /// How much an output of a batch may differ from that of a request alone.
    pub(super) fn tolerance(&self) -> Tolerance {
        if self.on_gpu { Tolerance::BatchesOnGpu } else { Tolerance::Batches }
    }

    /// Whether inputs have the declared ranks and sizes, which a proof that rows are independent takes
    /// for granted.
    pub(super) fn are_as_declared(&self, inputs: &[Tensor]) -> bool {
        let fits = |(sizes, input): (&Option<Vec<i64>>, &Tensor)| {
            let dims = input.shape().dims();
            let Some(sizes) = sizes else {
                return true;
            };
            let same = |(size, dim): (&i64, &i64)| *size < 0 || size == dim;
            sizes.len() == dims.len() && sizes.iter().zip(dims).all(same)
        };
        self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(fits)
    }
}

/// Whether a spec declares a 0-th dimension, of any size.
fn has_dimensions(spec: &TensorSpec) -> bool {
    matches!(&spec.shape, DeclaredShape::Dims(dims) if !dims.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{DType, Shape, aligned_vec};

    #[test]
    fn inputs_of_another_shape_than_declared_are_told_apart() {
        let spec = TensorSpec::new("x", DType::Float, &[-1, -1, 4]);
        let traits = SignatureTraits::of(&Signature::only(vec![spec], Vec::new()));
        let fits = |dims: &[i64]| {
            let shape = Shape::new(dims).expect("valid");
            let mut zeros = aligned_vec::<f32>(0);
            (0..shape.elements().expect("small")).for_each(|_| zeros.push(0.0));
            traits.are_as_declared(&[Tensor::from_vec(shape, zeros).expect("tensor")])
        };
        assert!(fits(&[1, 2, 4]) && fits(&[3, 1, 4]));
        assert!(!fits(&[3, 4]) && !fits(&[4]) && !fits(&[1, 2, 3]) && !fits(&[1, 1, 2, 4]));
        assert!(!traits.are_as_declared(&[]));
    }
}
