//! The step `image`: JPEG and PNG files become pixels of one size.
//!
//! Files are untrusted: the number of pixels is read from the header first, and no memory is
//! allocated for more than are allowed.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use png::{BitDepth, ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::file::StepTable;
use super::resize::{Interpolation, Pixels, ROWS_PER_CHECK, resize};
use tensorserve_tensor::AlignedVec;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};

/// The most pixels of one file by default.
const MAX_PIXELS: usize = 50_000_000;

/// The most pixels of all files of a request, as a multiple of the most of one file.
const REQUEST_PIXELS: usize = 16;

/// Why an image is not decoded.
#[derive(Debug)]
pub(super) enum ImageError {
    /// A predicate about the file, such as `is empty`.
    Invalid(String),
    /// The request exceeds its memory or its deadline.
    Refused(Error),
}

impl From<String> for ImageError {
    fn from(predicate: String) -> Self {
        ImageError::Invalid(predicate)
    }
}

impl From<Error> for ImageError {
    fn from(error: Error) -> Self {
        ImageError::Refused(error)
    }
}

/// The largest height and width that a step may resize to.
const MAX_SIDE: usize = 1 << 15;

/// The memory of the PNG decoder for a row and for other chunks, in bytes. The pixels are decoded
/// into a buffer of their own.
const PNG_DECODER_BYTES: usize = 64 << 20;

/// The first bytes of a PNG and of a JPEG file.
const PNG_MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG_MAGIC: &[u8] = b"\xff\xd8\xff";

/// Where a PNG file has its width and height, as big-endian u32.
const PNG_SIZES: std::ops::Range<usize> = 16..24;

/// The step `image`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ImageStep {
    height: usize,
    width: usize,
    channels: ColorChannels,
    interpolation: Interpolation,
    /// Channels come before rows (`nchw`).
    planar: bool,
    /// Rows, columns and channels become one dimension.
    flatten: bool,
    max_pixels: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColorChannels {
    Rgb,
    Bgr,
    Grey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageFormat {
    Png,
    Jpeg,
}

impl ImageStep {
    /// Reads the step. Height and width default to those of the model's shape `model_dims`.
    pub(super) fn read(table: &mut StepTable, model_dims: Option<&[i64]>) -> Result<Self> {
        let (height, width) = (table.count("height")?, table.count("width")?);
        let channels = [
            ("rgb", ColorChannels::Rgb),
            ("bgr", ColorChannels::Bgr),
            ("grey", ColorChannels::Grey),
            ("gray", ColorChannels::Grey),
        ];
        let channels = table.choice("channels", &channels)?.unwrap_or(ColorChannels::Rgb);
        let interpolations = [
            ("bilinear", Interpolation::Bilinear),
            ("bilinear_legacy", Interpolation::BilinearLegacy),
            ("nearest", Interpolation::Nearest),
        ];
        let interpolation = table.choice("resize", &interpolations)?;
        let interpolation = interpolation.unwrap_or(Interpolation::Bilinear);
        let planar = table.choice("layout", &[("nhwc", false), ("nchw", true)])?.unwrap_or(false);
        let flatten = table.flag("flatten")?.unwrap_or(false);
        let max_pixels = table.count("max_pixels")?.unwrap_or(MAX_PIXELS);
        let declared = model_dims.filter(|_| !flatten).and_then(|dims| dims.last_chunk::<3>());
        let (model_height, model_width) = match declared {
            Some(&[_, height, width]) if planar => (known_size(height), known_size(width)),
            Some(&[height, width, _]) => (known_size(height), known_size(width)),
            None => (None, None),
        };
        let (Some(height), Some(width)) = (height.or(model_height), width.or(model_width)) else {
            return Err(table.error("the model does not declare the size: give height and width"));
        };
        if height.max(width) > MAX_SIDE {
            return Err(table.error(format_args!(
                "height and width are {height} and {width}; at most {MAX_SIDE} are allowed"
            )));
        }
        Ok(ImageStep { height, width, channels, interpolation, planar, flatten, max_pixels })
    }

    fn channel_count(&self) -> usize {
        match self.channels {
            ColorChannels::Rgb | ColorChannels::Bgr => 3,
            ColorChannels::Grey => 1,
        }
    }

    /// The number of values of one image.
    pub(super) fn size(&self) -> usize {
        self.height * self.width * self.channel_count()
    }

    /// The dimensions of one image.
    pub(super) fn dims(&self) -> Vec<i64> {
        let [height, width, channels] =
            [self.height, self.width, self.channel_count()].map(|n| i64::try_from(n).unwrap_or(-1));
        match (self.flatten, self.planar) {
            (true, _) => vec![height * width * channels],
            (false, true) => vec![channels, height, width],
            (false, false) => vec![height, width, channels],
        }
    }

    /// The estimated cost of decoding and resizing `file`, in processed numbers.
    pub(super) fn cost(&self, file: &[u8]) -> usize {
        let pixels = size_of_image(file).map_or(0, |(width, height)| width.saturating_mul(height));
        pixels.saturating_mul(3).saturating_add(self.size())
    }

    /// The memory for decoding `file` besides its values, in bytes: its pixels, of at most four
    /// channels and once more while they are converted, and the values before they are arranged.
    pub(super) fn scratch_bytes(&self, file: &[u8]) -> usize {
        let values = self.size().saturating_mul(size_of::<f32>());
        self.pixels_to_decode(file).saturating_mul(7).saturating_add(values)
    }

    /// The pixels that decoding `file` produces; none for one that is refused by its header.
    pub(super) fn pixels_to_decode(&self, file: &[u8]) -> usize {
        let pixels = size_of_image(file).map_or(0, |(width, height)| width.saturating_mul(height));
        if pixels > self.max_pixels { 0 } else { pixels }
    }

    /// The most pixels of all files of a request together.
    pub(super) fn max_request_pixels(&self) -> usize {
        self.max_pixels.saturating_mul(REQUEST_PIXELS)
    }

    /// Appends the values of an image file, from 0 to 255, to `out`.
    ///
    /// # Errors
    /// [`ImageError`].
    pub(super) fn append(&self, file: &[u8], out: &mut AlignedVec<f32>) -> Result<(), ImageError> {
        let pixels = decode(file, self.channels == ColorChannels::Grey, self.max_pixels)?;
        let mut values = resize(&pixels, self.height, self.width, self.interpolation)?;
        if self.channels == ColorChannels::Bgr {
            values.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| pixel.swap(0, 2));
        }
        let channels = self.channel_count();
        if self.planar && channels > 1 {
            for channel in 0..channels {
                values.iter().skip(channel).step_by(channels).for_each(|value| out.push(*value));
            }
        } else {
            out.extend_from_slice(&values);
        }
        Ok(())
    }
}

/// A size that the model declares; `None` for an unknown one.
fn known_size(size: i64) -> Option<usize> {
    usize::try_from(size).ok().filter(|&size| size > 0)
}

/// Width and height by the header of a file, of which nothing else is decoded.
fn size_of_image(file: &[u8]) -> Option<(usize, usize)> {
    match format_of(file).ok()? {
        ImageFormat::Png => {
            let [width, height] = file.get(PNG_SIZES)?.as_chunks::<4>().0 else { return None };
            let width = usize::try_from(u32::from_be_bytes(*width)).ok()?;
            Some((width, usize::try_from(u32::from_be_bytes(*height)).ok()?))
        }
        ImageFormat::Jpeg => {
            let (width, height, _) = jpeg_header(file).ok()?;
            Some((width, height))
        }
    }
}

fn format_of(file: &[u8]) -> Result<ImageFormat, String> {
    if file.starts_with(PNG_MAGIC) {
        return Ok(ImageFormat::Png);
    }
    if file.starts_with(JPEG_MAGIC) {
        return Ok(ImageFormat::Jpeg);
    }
    let unsupported = match file {
        [] => return Err("is empty; expected a JPEG or PNG file".to_owned()),
        [b'G', b'I', b'F', b'8', ..] => "GIF",
        [b'B', b'M', ..] => "BMP",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "WebP",
        // The first bytes of a PNG and of a JPEG in base64.
        [b'i', b'V', b'B', b'O', b'R', ..] | [b'/', b'9', b'j', b'/', ..] => {
            return Err("is the base64 text of an image, not its bytes; in JSON, write \
                        {\"b64\": \"…\"}"
                .to_owned());
        }
        _ => return Err("is not an image; expected a JPEG or PNG file".to_owned()),
    };
    Err(format!("is a {unsupported} file; JPEG and PNG are supported"))
}

/// Decodes a file into pixels of one channel if `grey`, otherwise of three: red, green, blue.
fn decode(file: &[u8], grey: bool, max_pixels: usize) -> Result<Pixels, ImageError> {
    let pixels = match format_of(file)? {
        ImageFormat::Png => decode_png(file, max_pixels)?,
        ImageFormat::Jpeg => decode_jpeg(file, grey, max_pixels)?,
    };
    let channels = if grey { 1 } else { 3 };
    let Pixels { height, width, channels: decoded, bytes } = pixels;
    let bytes = match (decoded, channels) {
        (1, 1) | (3, 3) => bytes,
        // The alpha channel is dropped, as in TensorFlow.
        (2, 1) => bytes.as_chunks::<2>().0.iter().map(|[grey, _]| *grey).collect(),
        (2, 3) => bytes.as_chunks::<2>().0.iter().flat_map(|[grey, _]| [*grey; 3]).collect(),
        (4, 3) => bytes.as_chunks::<4>().0.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]).collect(),
        (1, 3) => bytes.iter().flat_map(|grey| [*grey; 3]).collect(),
        (3, 1) => bytes.as_chunks::<3>().0.iter().map(|[r, g, b]| luma(*r, *g, *b)).collect(),
        (4, 1) => bytes.as_chunks::<4>().0.iter().map(|[r, g, b, _]| luma(*r, *g, *b)).collect(),
        (other, _) => return Err(format!("has pixels of {other} channels").into()),
    };
    if bytes.len() != height.saturating_mul(width).saturating_mul(channels) {
        return Err("has fewer pixels than its header declares".to_owned().into());
    }
    Ok(Pixels { height, width, channels, bytes })
}

/// The luma of Y'CbCr (ITU-R BT.601), which JPEG files store.
fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let [red, green, blue] = [red, green, blue].map(u32::from);
    // The weights in parts of 65536, and a half for rounding. The sum is below 2^24.
    ((19_595 * red + 38_470 * green + 7_471 * blue + 32_768) >> 16) as u8
}

/// Refuses a file of too many pixels, or of none.
fn check_size(width: usize, height: usize, max_pixels: usize) -> Result<(), String> {
    let pixels = width.saturating_mul(height);
    if pixels == 0 {
        return Err("has no pixels".to_owned());
    }
    if pixels > max_pixels {
        return Err(format!(
            "has {width} x {height} pixels; at most {max_pixels} are allowed (max_pixels of the \
             step)"
        ));
    }
    Ok(())
}

fn invalid_png(error: png::DecodingError) -> String {
    format!("is not a valid PNG: {error}")
}

fn decode_png(file: &[u8], max_pixels: usize) -> Result<Pixels, ImageError> {
    let limits = png::Limits { bytes: PNG_DECODER_BYTES };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(invalid_png)?;
    let (width, height) = (header.width as usize, header.height as usize);
    check_size(width, height, max_pixels)?;
    let mut reader = decoder.read_info().map_err(invalid_png)?;
    let channels = match reader.output_color_type() {
        (ColorType::Grayscale, BitDepth::Eight) => 1,
        (ColorType::GrayscaleAlpha, BitDepth::Eight) => 2,
        (ColorType::Rgb, BitDepth::Eight) => 3,
        (ColorType::Rgba, BitDepth::Eight) => 4,
        (other, depth) => {
            return Err(format!("is a PNG of an unsupported type: {other:?} {depth:?}").into());
        }
    };
    let size = width * height * channels;
    if reader.output_buffer_size() != Some(size) {
        return Err("is a PNG of inconsistent size".to_owned().into());
    }
    let mut bytes = vec![0; size];
    if reader.info().interlaced {
        reader.next_frame(&mut bytes).map_err(invalid_png)?;
        return Ok(Pixels { height, width, channels, bytes });
    }
    for (index, row) in bytes.chunks_exact_mut(width * channels).enumerate() {
        if index % ROWS_PER_CHECK == 0 {
            budget::check()?;
        }
        reader.read_row(row).map_err(invalid_png)?;
    }
    Ok(Pixels { height, width, channels, bytes })
}

fn jpeg_decoder(file: &[u8], out: ColorSpace) -> JpegDecoder<ZCursor<&[u8]>> {
    // The format allows no more; `check_size` is the limit.
    let max_side = usize::from(u16::MAX);
    let options = DecoderOptions::default()
        .set_max_width(max_side)
        .set_max_height(max_side)
        .jpeg_set_out_colorspace(out);
    JpegDecoder::new_with_options(ZCursor::new(file), options)
}

fn invalid_jpeg(error: impl std::fmt::Debug) -> String {
    format!("is not a valid JPEG: {error:?}")
}

/// Calls the decoder, which panics on some damaged files: see
/// <https://github.com/etemesi254/zune-image/issues/361>. It has no state that others use.
fn guarded<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let damaged = |_| Err("is not a valid JPEG: its parts do not fit together".to_owned());
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(damaged)
}

/// The width, the height and the colors of a file.
fn jpeg_header(file: &[u8]) -> Result<(usize, usize, Option<ColorSpace>), String> {
    guarded(|| {
        let mut decoder = jpeg_decoder(file, ColorSpace::RGB);
        decoder.decode_headers().map_err(invalid_jpeg)?;
        let info = decoder.info().ok_or_else(|| "is a JPEG without a header".to_owned())?;
        Ok((usize::from(info.width), usize::from(info.height), decoder.input_colorspace()))
    })
}

fn decode_jpeg(file: &[u8], grey: bool, max_pixels: usize) -> Result<Pixels, ImageError> {
    let (width, height, colors) = jpeg_header(file)?;
    check_size(width, height, max_pixels)?;
    // Grey is the luma channel of the file, unless it stores other colors.
    let is_luma = match colors {
        Some(ColorSpace::Luma) => true,
        Some(ColorSpace::YCbCr) => grey,
        _ => false,
    };
    let (out, channels) = if is_luma { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    let bytes = guarded(|| jpeg_decoder(file, out).decode().map_err(invalid_jpeg))?;
    Ok(Pixels { height, width, channels, bytes })
}
