//! Pixels in another size, number for number as TensorFlow's kernels compute it.

use super::image::Pixels;

/// How numbers between pixels are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resize {
    /// `tf.image.resize`: bilinear, pixels have their value in their middle.
    Bilinear,
    /// `tf.compat.v1.image.resize_bilinear`: bilinear, pixels have it in their corner.
    BilinearLegacy,
    /// `tf.image.resize` with `method="nearest"`.
    Nearest,
}

/// Between which two rows (or columns) one of the result lies.
#[derive(Clone, Copy)]
struct Between {
    lower: usize,
    upper: usize,
    /// How far from the lower one, 0 to 1.
    part: f32,
}

/// The pixels as numbers, in a picture of this size.
pub(super) fn resized(pixels: &Pixels, height: usize, width: usize, how: Resize) -> Vec<f32> {
    if (pixels.height, pixels.width) == (height, width) {
        return pixels.bytes.iter().map(|byte| f32::from(*byte)).collect();
    }
    let rows = places(pixels.height, height, how);
    let columns = places(pixels.width, width, how);
    let channels = pixels.channels;
    let line = pixels.width * channels;
    let row = |at: usize| pixels.bytes.get(at * line..(at + 1) * line).unwrap_or_default();
    let mut values = Vec::with_capacity(height * width * channels);
    for vertical in &rows {
        let (top, bottom) = (row(vertical.lower), row(vertical.upper));
        for horizontal in &columns {
            let (left, right) = (horizontal.lower * channels, horizontal.upper * channels);
            for channel in 0..channels {
                let at = |row: &[u8], column: usize| {
                    row.get(column + channel).copied().map_or(0.0, f32::from)
                };
                let above = mixed(at(top, left), at(top, right), horizontal.part);
                let below = mixed(at(bottom, left), at(bottom, right), horizontal.part);
                values.push(mixed(above, below, vertical.part));
            }
        }
    }
    values
}

fn mixed(from: f32, to: f32, part: f32) -> f32 {
    from + (to - from) * part
}

/// Where each of `to` rows lies among `from` rows. In floats, as TensorFlow has it.
fn places(from: usize, to: usize, how: Resize) -> Vec<Between> {
    let scale = from as f32 / to as f32;
    let last = from.saturating_sub(1);
    let place = |index: usize| {
        let exact = match how {
            Resize::Bilinear => (index as f32 + 0.5) * scale - 0.5,
            Resize::BilinearLegacy => index as f32 * scale,
            Resize::Nearest => {
                // A negative number becomes 0.
                let nearest = (((index as f32 + 0.5) * scale).floor() as usize).min(last);
                return Between { lower: nearest, upper: nearest, part: 0.0 };
            }
        };
        let floor = exact.floor();
        let (lower, upper) = ((floor as usize).min(last), (exact.ceil() as usize).min(last));
        Between { lower, upper, part: exact - floor }
    };
    (0..to).map(place).collect()
}
