//! Resizes images, bit for bit as TensorFlow's kernels do.

use tensorserve_tensor::budget;
use tensorserve_tensor::error::Result;

/// Rows of an image between two looks at the request's deadline.
pub(super) const ROWS_PER_CHECK: usize = 16;

/// A decoded image: rows of pixels, of one byte per channel.
pub(super) struct Pixels {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    pub(super) bytes: Vec<u8>,
}

/// How values between pixels are interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interpolation {
    /// `tf.image.resize`: bilinear with half-pixel centers.
    Bilinear,
    /// `tf.compat.v1.image.resize_bilinear`: bilinear without half-pixel centers.
    BilinearLegacy,
    /// `tf.image.resize` with `method="nearest"`.
    Nearest,
}

/// The two source rows (or columns) of a row (or column) of the result.
#[derive(Clone, Copy)]
struct ResizeSample {
    lower: usize,
    upper: usize,
    /// The weight of the upper one, from 0 to 1.
    weight: f32,
}

/// The values of the image, resized to `height` and `width`.
///
/// # Errors
/// If the request's deadline passes meanwhile.
pub(super) fn resize(
    pixels: &Pixels,
    height: usize,
    width: usize,
    interpolation: Interpolation,
) -> Result<Vec<f32>> {
    if (pixels.height, pixels.width) == (height, width) {
        return Ok(pixels.bytes.iter().map(|byte| f32::from(*byte)).collect());
    }
    let rows = samples(pixels.height, height, interpolation);
    let columns = samples(pixels.width, width, interpolation);
    let channels = pixels.channels;
    let line = pixels.width * channels;
    let source_row = |at: usize| pixels.bytes.get(at * line..(at + 1) * line).unwrap_or_default();
    let mut values = Vec::with_capacity(height * width * channels);
    for (index, row) in rows.iter().enumerate() {
        if index % ROWS_PER_CHECK == 0 {
            budget::check()?;
        }
        let (top, bottom) = (source_row(row.lower), source_row(row.upper));
        for column in &columns {
            let (left, right) = (column.lower * channels, column.upper * channels);
            for channel in 0..channels {
                let at = |row: &[u8], column: usize| {
                    row.get(column + channel).copied().map_or(0.0, f32::from)
                };
                let above = lerp(at(top, left), at(top, right), column.weight);
                let below = lerp(at(bottom, left), at(bottom, right), column.weight);
                values.push(lerp(above, below, row.weight));
            }
        }
    }
    Ok(values)
}

/// Linear interpolation.
fn lerp(from: f32, to: f32, weight: f32) -> f32 {
    from + (to - from) * weight
}

/// The samples of `to` rows from `from` rows, computed in float32 as in TensorFlow.
fn samples(from: usize, to: usize, interpolation: Interpolation) -> Vec<ResizeSample> {
    let scale = from as f32 / to as f32;
    let last = from.saturating_sub(1);
    let sample = |index: usize| {
        // Casting a negative float to usize gives 0.
        let exact = match interpolation {
            Interpolation::Bilinear => (index as f32 + 0.5) * scale - 0.5,
            Interpolation::BilinearLegacy => index as f32 * scale,
            Interpolation::Nearest => {
                let nearest = (((index as f32 + 0.5) * scale).floor() as usize).min(last);
                return ResizeSample { lower: nearest, upper: nearest, weight: 0.0 };
            }
        };
        let floor = exact.floor();
        let (lower, upper) = ((floor as usize).min(last), (exact.ceil() as usize).min(last));
        ResizeSample { lower, upper, weight: exact - floor }
    };
    (0..to).map(sample).collect()
}
