//! Tensors of every dtype, in every style.

use std::sync::Arc;

use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tensorserve_codec::json::write::{Floats, JsonLayout, Style, Texts};
use tensorserve_tensor::{AlignedVec, Buffer, DType, Shape, StringsBuilder, Tensor};

use crate::{read_tensor, write_tensor};

pub(crate) const LAYOUTS: [JsonLayout; 3] =
    [JsonLayout::Compact, JsonLayout::Line, JsonLayout::Pretty];

pub(crate) fn style() -> impl Strategy<Value = Style> {
    let floats = select(vec![Floats::TensorFlowServing, Floats::Python]);
    let texts = select(vec![Texts::Raw, Texts::Base64]);
    (select(LAYOUTS.to_vec()), floats, texts).prop_map(|(layout, floats, texts)| Style {
        layout,
        floats,
        texts,
    })
}

/// A small tensor of any dtype that has a JSON form, with any elements.
pub(crate) fn tensor() -> impl Strategy<Value = Tensor> {
    let mut dtypes = DType::ALL.to_vec();
    dtypes.retain(|dtype| !matches!(dtype, DType::Complex64 | DType::Complex128));
    (select(dtypes), vec(0..4_i64, 0..4)).prop_flat_map(|(dtype, dims)| {
        let shape = Shape::new(&dims).unwrap();
        let count = shape.elements().unwrap();
        match dtype.size() {
            Some(size) => {
                let bytes = vec(any::<u8>(), count * size);
                bytes.prop_map(move |bytes| numeric_tensor(dtype, &shape, bytes)).boxed()
            }
            None => {
                let strings = vec(vec(any::<u8>(), 0..6), count);
                strings.prop_map(move |strings| string_tensor(&shape, &strings)).boxed()
            }
        }
    })
}

fn numeric_tensor(dtype: DType, shape: &Shape, mut bytes: Vec<u8>) -> Tensor {
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
    let bytes = Arc::new(AlignedVec::from_slice(0, &bytes));
    Tensor::numeric(dtype, shape.clone(), Buffer::new(bytes)).unwrap()
}

fn string_tensor(shape: &Shape, strings: &[Vec<u8>]) -> Tensor {
    let mut builder = StringsBuilder::default();
    strings.iter().for_each(|string| builder.push(string));
    Tensor::from_strings(shape.clone(), builder).unwrap()
}

pub(crate) fn tensor_round_trips((tensor, style): (Tensor, Style)) -> TestCaseResult {
    let bytes = write_tensor(&tensor, style);
    let read = read_tensor(tensor.dtype(), &bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    // Dimensions below an empty one cannot be written.
    let mut dims = tensor.shape().dims().to_vec();
    if let Some(empty) = dims.iter().position(|dim| *dim == 0) {
        dims.truncate(empty + 1);
    }
    prop_assert_eq!(read.shape().dims(), dims, "{}", text);
    prop_assert_eq!(elements(&read), elements(&tensor), "{}", text);
    Ok(())
}

/// The bytes of each element; those of one NaN for all, since JSON does not write its payload.
fn elements(tensor: &Tensor) -> Vec<Vec<u8>> {
    if let Some(strings) = tensor.strings() {
        return strings.iter().map(<[u8]>::to_vec).collect();
    }
    let bytes = tensor.bytes().chunks(tensor.dtype().size().unwrap());
    let element = |bytes: &[u8]| {
        let is_nan = match tensor.dtype() {
            DType::Float => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            DType::Double => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            DType::Half => f16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            DType::BFloat16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            _ => false,
        };
        if is_nan { b"NaN".to_vec() } else { bytes.to_vec() }
    };
    bytes.map(element).collect()
}
