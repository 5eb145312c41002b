//! Convolutions, pooling and changes of size: each image, sound or volume along dimension 0 by itself.

use tensorserve_rows::compute::{self, Window};
use tensorserve_rows::{Flow, Size, Stop, Value, mixed, unknown};

use super::call::{OnnxCall, one};

/// `Conv`: its second input are the kernels.
pub(super) fn convolution(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    convolved(call, 1)
}

/// `QLinearConv`: kernels are its fourth input.
pub(super) fn convolution_scaled(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    convolved(call, 3)
}

fn convolved(call: &OnnxCall, kernels: usize) -> Result<Vec<Value>, Stop> {
    let (value, kernels) = (call.input(0)?, call.input(kernels)?);
    let inner = || -> Option<Vec<Size>> {
        let (channels, rest) = kernels.dims.as_ref()?.split_first()?;
        let mut dims = vec![channels.clone()];
        let kernel: Vec<Option<i64>> = rest.iter().skip(1).map(Size::as_number).collect();
        dims.extend(places(call, value.dims.as_ref()?.get(2..)?, &kernel));
        Some(dims)
    };
    one(compute::examples(value, &call.from(1), inner()))
}

/// The sizes of the result of a window over `sizes`.
fn places(call: &OnnxCall, sizes: &[Size], kernel: &[Option<i64>]) -> Vec<Size> {
    let attribute = |name: &str, index: usize, default: i64| {
        call.ints(name).and_then(|its| its.get(index)).copied().unwrap_or(default)
    };
    let place = |(index, size): (usize, &Size)| {
        let Some(Some(kernel)) = kernel.get(index) else {
            return call.symbols.fresh();
        };
        if call.flag("ceil_mode") {
            return call.symbols.fresh();
        }
        let dilation = attribute("dilations", index, 1);
        let ends = attribute("pads", index, 0).saturating_add(attribute(
            "pads",
            index.saturating_add(sizes.len()),
            0,
        ));
        let window = Window {
            size: kernel.saturating_sub(1).saturating_mul(dilation).saturating_add(1),
            stride: attribute("strides", index, 1),
            padding: match call.text("auto_pad") {
                Some("SAME_UPPER" | "SAME_LOWER") => None,
                Some("VALID") => Some(0),
                _ => Some(ends),
            },
        };
        window.places(size, call.symbols)
    };
    sizes.iter().enumerate().map(place).collect()
}

/// `ConvTranspose`; the size of its images is not followed.
pub(super) fn transposed_convolution(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (value, kernels) = (call.input(0)?, call.input(1)?);
    let inner = || -> Option<Vec<Size>> {
        let channels = kernels.dims.as_ref()?.get(1)?;
        let mut dims = vec![channels.times(&Size::number(call.int("group", 1)))];
        dims.extend(value.dims.as_ref()?.get(2..)?.iter().map(|_| call.symbols.fresh()));
        Some(dims)
    };
    one(compute::examples(value, &call.from(1), inner()))
}

/// `MaxPool` and the like; the places that `MaxPool` gives are those in the whole batch.
pub(super) fn pool(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    if call.outputs > 1 {
        return mixed("returns places within the whole batch");
    }
    let value = call.input(0)?;
    let inner = || -> Option<Vec<Size>> {
        let dims = value.dims.as_ref()?;
        let kernel: Vec<Option<i64>> =
            call.ints("kernel_shape")?.iter().copied().map(Some).collect();
        let mut inner = vec![dims.get(1)?.clone()];
        inner.extend(places(call, dims.get(2..)?, &kernel));
        Some(inner)
    };
    one(compute::examples(value, &call.from(1), inner()))
}

/// `GlobalAveragePool` and the like.
pub(super) fn global_pool(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let inner = || -> Option<Vec<Size>> {
        let dims = value.dims.as_ref()?;
        let mut inner = vec![dims.get(1)?.clone()];
        inner.extend(dims.get(2..)?.iter().map(|_| Size::number(1)));
        Some(inner)
    };
    if call.flag("channels_last") {
        return one(compute::examples(value, &call.from(1), None));
    }
    one(compute::examples(value, &call.from(1), inner()))
}

/// `DepthToSpace` and `SpaceToDepth`: blocks of `blocksize` pixels in each direction.
pub(super) fn blocks(call: &OnnxCall, to_space: bool) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let size = Size::number(call.int("blocksize", 1));
    let area = size.times(&size);
    let inner = |dims: &Vec<Size>| -> Option<Vec<Size>> {
        let [_, channels, height, width] = dims.as_slice() else { return None };
        let scaled = |its: &Size, by: &Size, up: bool| match up {
            true => its.times(by),
            false => its.floor_divided_by(by, call.symbols),
        };
        Some(vec![
            scaled(channels, &area, !to_space),
            scaled(height, &size, to_space),
            scaled(width, &size, to_space),
        ])
    };
    one(compute::examples(value, &[], value.dims.as_ref().and_then(inner)))
}

pub(super) fn depth_to_space(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    blocks(call, true)
}

pub(super) fn space_to_depth(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    blocks(call, false)
}

/// `GridSample`: pixels of each image at the places that it has.
pub(super) fn sample(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (value, grid) = (call.input(0)?, call.input(1)?);
    let is_of_rows = |value: &Value| {
        value.flow == (Flow::Rows { axis: 0 })
            && value.dims.as_ref().and_then(|dims| dims.first()) == Some(&Size::rows())
    };
    if !is_of_rows(value) || !is_of_rows(grid) {
        return unknown("takes images and places that do not have a row for each row of the batch");
    }
    let mut dims = value.known_dims()?.get(..2).unwrap_or_default().to_vec();
    let places = grid.known_dims()?;
    let count = places.len().saturating_sub(1);
    dims.extend(places.get(1..count).unwrap_or_default().iter().cloned());
    one(Ok(Value::rows(0, dims)))
}

/// `Resize` and `Upsample`: images of another size, as many as there are.
pub(super) fn resize(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    if value.is_constant() && call.from(1).iter().all(|input| input.is_constant()) {
        return one(Ok(Value::constant()));
    }
    if value.flow != (Flow::Rows { axis: 0 }) {
        return unknown("changes the size of tensors that are not images");
    }
    let modes = ["coordinate_transformation_mode", "keep_aspect_ratio_policy"];
    let is_usual = |name: &&str| {
        !matches!(call.text(name), Some("tf_crop_and_resize" | "not_larger" | "not_smaller"))
    };
    if !modes.iter().all(is_usual) {
        return unknown("changes the size of images by a part of the batch");
    }
    let dims = value.known_dims()?;
    let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
    let axes = call.ints("axes").map(<[i64]>::to_vec).unwrap_or_else(|| (0..rank).collect());
    let rows = axes.iter().position(|axis| *axis == 0 || axis.saturating_add(rank) == 0);
    if let Some(index) = rows {
        keeps_rows(call, dims.first(), index)?;
    }
    let mut sizes: Vec<Size> = dims.iter().take(2).cloned().collect();
    sizes.extend(dims.iter().skip(2).map(|_| call.symbols.fresh()));
    if let Some(second) = sizes.get_mut(1) {
        *second = call.symbols.fresh();
    }
    one(Ok(Value::rows(0, sizes)))
}

/// Checks that the scale of the rows, or their number, is number `index` of a list that keeps them.
fn keeps_rows(call: &OnnxCall, rows: Option<&Size>, index: usize) -> Result<(), Stop> {
    const DOES: &str = "changes the number of rows";
    if let Some(sizes) = call.optional(3).filter(|_| call.version >= 11) {
        let size = sizes.known_elements("sizes of images")?.get(index);
        return if size == rows { Ok(()) } else { mixed(DOES) };
    }
    let scales = match (call.version, call.attribute("scales")) {
        (_, Some(scales)) => scales.floats.get(index).copied(),
        (11.., None) => scale(call, 2, index),
        (_, None) => scale(call, 1, index),
    };
    match scales {
        Some(1.0) => Ok(()),
        Some(_) => mixed(DOES),
        None => unknown("has scales that are not known before a request"),
    }
}

/// Number `index` of a constant vector of scales.
fn scale(call: &OnnxCall, input: usize, index: usize) -> Option<f32> {
    let tensor = (*call.tensors.get(input)?)?;
    let raw = tensor.raw_data.as_chunks::<4>().0.get(index);
    let packed = raw.map(|bytes| f32::from_le_bytes(*bytes));
    packed.or_else(|| tensor.float_data.get(index).copied())
}
