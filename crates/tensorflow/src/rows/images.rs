//! Images, matrices and sounds.

use tensorserve_rows::compute::{self, Window};
use tensorserve_rows::plain::{axis_of, deterministic};
use tensorserve_rows::{OperationResults, Outcome, Size, Value, mixed, unknown};

use super::call::TensorFlowCall;

pub(super) fn batch_norm(call: &TensorFlowCall) -> OperationResults {
    let value = call.input(0)?;
    let others: Vec<&Value> = call.inputs.iter().skip(1).collect();
    // An absent attribute has its default, true.
    let trains = call.attribute("is_training").is_none() || call.flag("is_training");
    if trains && axis_of(value).is_some() {
        return mixed("normalizes by the mean and the variance of the batch");
    }
    let inner = value.dims.as_ref().and_then(|dims| dims.get(1..)).map(<[Size]>::to_vec);
    let result = compute::examples(value, &others, inner)?;
    let mut outputs = vec![result];
    outputs.extend((0..5).map(|_| Value::constant()));
    Ok(outputs)
}

/// The sizes of images in a result of `channels` channels.
fn image_dims(
    call: &TensorFlowCall,
    windows: &[Window],
    channels: Option<Size>,
) -> Option<Vec<Size>> {
    let dims = call.inputs.first()?.dims.as_ref()?;
    if dims.len() != windows.len() + 2 {
        return None;
    }
    let first_place = if call.channels_first() { 2 } else { 1 };
    let places = windows.iter().enumerate().map(|(index, window)| {
        dims.get(first_place + index).map(|size| window.places(size, call.symbols()))
    });
    let places: Vec<Size> = places.collect::<Option<_>>()?;
    let own = dims.get(if call.channels_first() { 1 } else { dims.len() - 1 })?.clone();
    let channels = channels.unwrap_or(own);
    Some(match call.channels_first() {
        true => [vec![channels], places].concat(),
        false => [places, vec![channels]].concat(),
    })
}

/// Windows of these sizes, moved and padded as the attributes say.
fn windows(call: &TensorFlowCall, sizes: &[i64]) -> Option<Vec<Window>> {
    let at = |list: &[i64], index: usize, default: i64| {
        let skipped = if call.channels_first() { 2 } else { 1 };
        if list.is_empty() { Some(default) } else { list.get(skipped + index).copied() }
    };
    let (strides, dilations) = (call.ints("strides"), call.ints("dilations"));
    let explicit = call.ints("explicit_paddings");
    let window = |(index, &size): (usize, &i64)| {
        let padding = match call.text("padding")? {
            "SAME" => None,
            "VALID" => Some(0),
            _ => {
                let first = 2 * (if call.channels_first() { 2 } else { 1 } + index);
                Some(explicit.get(first)?.saturating_add(*explicit.get(first + 1)?))
            }
        };
        let dilation = at(dilations, index, 1)?;
        let size = size.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        Some(Window { size, stride: at(strides, index, 1)?, padding })
    };
    sizes.iter().enumerate().map(window).collect()
}

/// A convolution of two or three dimensions.
pub(super) fn convolution(call: &TensorFlowCall) -> Outcome {
    let filter = call.input(1)?;
    let kernel = filter.dims.as_ref().map_or(Vec::new(), Clone::clone);
    let numbers: Option<Vec<i64>> = kernel.iter().map(Size::as_number).collect();
    let inner = numbers.and_then(|kernel| {
        let (places, channels) = kernel.split_at_checked(kernel.len().checked_sub(2)?)?;
        let channels = match (call.node.op.as_str(), channels) {
            ("DepthwiseConv2dNative", [own, times]) => own.checked_mul(*times)?,
            (_, [_, own]) => *own,
            _ => return None,
        };
        image_dims(call, &windows(call, places)?, Some(Size::number(channels)))
    });
    compute::examples(call.input(0)?, &[filter], inner)
}

/// A pooling over windows.
pub(super) fn pool(call: &TensorFlowCall) -> Outcome {
    let ksize = call.ints("ksize");
    if ksize.first().is_some_and(|size| *size != 1) {
        return mixed("pools over the rows of the batch");
    }
    let places = match call.channels_first() {
        true => ksize.get(2..),
        false => ksize.len().checked_sub(1).and_then(|end| ksize.get(1..end)),
    };
    let inner = places.and_then(|places| image_dims(call, &windows(call, places)?, None));
    compute::examples(call.input(0)?, &[], inner)
}

pub(super) fn pool_with_places(call: &TensorFlowCall) -> OperationResults {
    let result = pool(call)?;
    let places = match call.flag("include_batch_in_index") && axis_of(&result).is_some() {
        true => return mixed("counts places over the whole batch"),
        false => result.clone(),
    };
    Ok(vec![result, places])
}

/// A transposed convolution: sizes, filter, value.
pub(super) fn transposed_convolution(call: &TensorFlowCall) -> Outcome {
    let [sizes, filter, value] = call.inputs.as_slice() else {
        return unknown("has another number of inputs than expected");
    };
    let Some(elements) = &sizes.elements else {
        return compute::examples(value, &[filter, sizes], None);
    };
    let result = compute::examples(value, &[filter], elements.get(1..).map(<[Size]>::to_vec))?;
    match (axis_of(&result), elements.first()) {
        (Some(_), Some(first))
            if Some(first) != result.dims.as_ref().and_then(|dims| dims.first()) =>
        {
            mixed("has a fixed size in the place of the rows")
        }
        _ if elements.iter().skip(1).any(|size| !size.is_fixed()) => {
            mixed("has a size that depends on the number of rows")
        }
        _ => Ok(result),
    }
}

/// Images in another size.
pub(super) fn resize(call: &TensorFlowCall) -> Outcome {
    let (value, size) = (call.input(0)?, call.input(1)?);
    let others: Vec<&Value> = call.inputs.iter().skip(1).collect();
    let inner = match (value.dims.as_deref(), &size.elements) {
        (Some([_, _, _, channels]), Some(sizes)) => {
            Some([sizes.as_slice(), std::slice::from_ref(channels)].concat())
        }
        _ => None,
    };
    compute::examples(value, &others, inner)
}

/// An operation on images that keeps their shape.
pub(super) fn images(call: &TensorFlowCall) -> Outcome {
    let value = call.input(0)?;
    let others: Vec<&Value> = call.inputs.iter().skip(1).collect();
    let inner = value.dims.as_ref().and_then(|dims| dims.get(1..)).map(<[Size]>::to_vec);
    compute::examples(value, &others, inner)
}

/// The contrast of each image, which the last three dimensions are.
pub(super) fn contrast(call: &TensorFlowCall) -> Outcome {
    if !call.input(1)?.is_constant() {
        return compute::whole(&call.all(), "takes parameters that depend on the batch");
    }
    let value = call.input(0)?;
    let dims = value.known_dims()?;
    let image = dims.len().checked_sub(3).and_then(|first| dims.get(first..)).unwrap_or_default();
    compute::inner(value, 3, image.to_vec(), "takes the rows as one image")
}

/// An operation on images whose result has another, fixed shape.
pub(super) fn images_of_other_shape(call: &TensorFlowCall) -> Outcome {
    let value = call.input(0)?;
    let others: Vec<&Value> = call.inputs.iter().skip(1).collect();
    let inner = value.dims.as_ref().and_then(|dims| dims.get(1..));
    let inner = inner.map(|dims| dims.iter().map(|_| call.symbols().fresh()).collect());
    compute::examples(value, &others, inner)
}

pub(super) fn combined_suppression(call: &TensorFlowCall) -> OperationResults {
    let [boxes, scores, others @ ..] = call.inputs.as_slice() else {
        return unknown("has fewer inputs than expected");
    };
    let mut all = vec![boxes, scores];
    all.extend(others);
    let fresh = || call.symbols().fresh();
    let result = |inner: Vec<Size>| {
        deterministic(&all, || {
            let along_first = |value: &Value| axis_of(value) == Some(0);
            match along_first(boxes) && along_first(scores) && others.iter().all(Value::is_constant)
            {
                true => {
                    let rows = boxes.known_dims()?.first().cloned();
                    Ok(Value::rows(0, rows.into_iter().chain(inner).collect()))
                }
                false => mixed("compares boxes of different rows"),
            }
        })
    };
    let count = fresh();
    Ok(vec![
        result(vec![count.clone(), Size::number(4)])?,
        result(vec![count.clone()])?,
        result(vec![count])?,
        result(vec![])?,
    ])
}

pub(super) fn to_batches(call: &TensorFlowCall) -> Outcome {
    let others: Vec<&Value> = call.inputs.iter().skip(2).collect();
    compute::to_batches(call.input(0)?, call.input(1)?, &others, call.symbols())
}

pub(super) fn from_batches(call: &TensorFlowCall) -> Outcome {
    let others: Vec<&Value> = call.inputs.iter().skip(2).collect();
    compute::from_batches(call.input(0)?, call.input(1)?, &others, call.symbols())
}

/// An operation on the last two dimensions of each tensor that keeps the shape.
pub(super) fn matrices(call: &TensorFlowCall) -> Outcome {
    let value = call.input(0)?;
    let dims = value.dims.as_deref().unwrap_or_default();
    let last = dims.len().checked_sub(2).and_then(|first| dims.get(first..));
    let last = last.unwrap_or_default().to_vec();
    if call.inputs.iter().skip(1).any(|other| !other.is_constant()) {
        return compute::whole(&call.all(), "takes parameters that depend on the batch");
    }
    compute::inner(value, 2, last, "computes with a matrix of rows")
}

/// The diagonals of matrices, or matrices of diagonals.
pub(super) fn diagonals(call: &TensorFlowCall) -> Outcome {
    let value = call.input(0)?;
    if call.inputs.iter().skip(1).any(|other| !other.is_constant()) {
        return compute::whole(&call.all(), "takes parameters that depend on the batch");
    }
    let fresh = || call.symbols().fresh();
    let single = call.inputs.get(1).and_then(|k| k.elements.as_ref()).is_none_or(|k| k.len() == 1);
    match call.node.op.starts_with("MatrixDiagPart") {
        true if single => compute::inner(value, 2, vec![fresh()], "computes with a matrix of rows"),
        false if single => {
            compute::inner(value, 1, vec![fresh(), fresh()], "makes a matrix of rows")
        }
        _ => compute::whole(&call.all(), "takes several diagonals"),
    }
}

/// A Fourier transform along the last dimension.
pub(super) fn transform(call: &TensorFlowCall) -> Outcome {
    let value = call.input(0)?;
    let last = value.dims.as_ref().and_then(|dims| dims.last()).cloned();
    let size = match (call.inputs.get(1), last) {
        (None, Some(last)) => last,
        (Some(length), _) if !length.is_constant() => {
            return compute::whole(&call.all(), "has a length that depends on the batch");
        }
        _ => call.symbols().fresh(),
    };
    compute::inner(value, 1, vec![size], "transforms along the rows of the batch")
}
