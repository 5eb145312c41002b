//! The step `image`: JPEG and PNG files become numbers of one size.
//!
//! Files are hostile: how many pixels one has is read from its head, and nothing is reserved for
//! more than are allowed.

use std::io::Cursor;

use png::{BitDepth, ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::file::Step;
use super::resize::{Resize, resized};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{AlignedVec, Strings};

/// Pixels that one file may have, unless the step says otherwise.
const MAX_PIXELS: usize = 50_000_000;

/// How files become numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Image {
    pub(super) height: usize,
    pub(super) width: usize,
    channels: Channels,
    resize: Resize,
    /// Channels before rows, and not behind columns.
    planar: bool,
    /// One dimension for rows, columns and channels.
    flatten: bool,
    max_pixels: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channels {
    Rgb,
    Bgr,
    Grey,
}

/// A decoded file: rows of pixels of one or three bytes.
pub(super) struct Pixels {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    pub(super) bytes: Vec<u8>,
}

/// Which kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Png,
    Jpeg,
}

impl Image {
    /// Reads the step. Where it does not say a size, the model's shape `wanted` may.
    pub(super) fn read(step: &mut Step, wanted: Option<&[i64]>) -> Result<Self> {
        let (height, width) = (step.count("height")?, step.count("width")?);
        let colours = [
            ("rgb", Channels::Rgb),
            ("bgr", Channels::Bgr),
            ("grey", Channels::Grey),
            ("gray", Channels::Grey),
        ];
        let channels = step.choice("channels", &colours)?.unwrap_or(Channels::Rgb);
        let ways = [
            ("bilinear", Resize::Bilinear),
            ("bilinear_legacy", Resize::BilinearLegacy),
            ("nearest", Resize::Nearest),
        ];
        let resize = step.choice("resize", &ways)?.unwrap_or(Resize::Bilinear);
        let planar = step.choice("layout", &[("nhwc", false), ("nchw", true)])?.unwrap_or(false);
        let flatten = step.flag("flatten")?.unwrap_or(false);
        let max_pixels = step.count("max_pixels")?.unwrap_or(MAX_PIXELS);
        let declared = wanted.filter(|_| !flatten).and_then(|dims| dims.last_chunk::<3>());
        let [rows, columns] = match declared {
            Some(&[_, rows, columns]) if planar => [rows, columns],
            Some(&[rows, columns, _]) => [rows, columns],
            None => [-1, -1],
        };
        let known = |size: i64| usize::try_from(size).ok().filter(|&size| size > 0);
        let (height, width) = (height.or_else(|| known(rows)), width.or_else(|| known(columns)));
        let (Some(height), Some(width)) = (height, width) else {
            return Err(step
                .error("the model does not say how large its images are: give height and width"));
        };
        if height.max(width) > 1 << 15 {
            return Err(
                step.error(format_args!("{height} x {width} is larger than any model takes"))
            );
        }
        Ok(Image { height, width, channels, resize, planar, flatten, max_pixels })
    }

    fn channel_count(&self) -> usize {
        match self.channels {
            Channels::Rgb | Channels::Bgr => 3,
            Channels::Grey => 1,
        }
    }

    /// Numbers that one file becomes.
    pub(super) fn size(&self) -> usize {
        self.height * self.width * self.channel_count()
    }

    /// The dimensions that one file becomes.
    pub(super) fn dims(&self) -> Vec<i64> {
        let [height, width, channels] =
            [self.height, self.width, self.channel_count()].map(|n| i64::try_from(n).unwrap_or(-1));
        match (self.flatten, self.planar) {
            (true, _) => vec![height * width * channels],
            (false, true) => vec![channels, height, width],
            (false, false) => vec![height, width, channels],
        }
    }

    /// What it costs to decode and resize `file`, in numbers that are touched; a guess, which only
    /// decides on which thread it is done.
    pub(super) fn cost(&self, file: &[u8]) -> usize {
        let pixels = head(file).map_or(0, |(_, width, height)| width.saturating_mul(height));
        pixels.saturating_mul(3).saturating_add(self.size())
    }

    /// The file as numbers from 0 to 255, at the end of `out`.
    ///
    /// # Errors
    /// A text that says what is wrong with the file.
    pub(super) fn append(&self, file: &[u8], out: &mut AlignedVec<f32>) -> Result<(), String> {
        let pixels = decode(file, self.channels == Channels::Grey, self.max_pixels)?;
        let mut values = resized(&pixels, self.height, self.width, self.resize);
        if self.channels == Channels::Bgr {
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

/// All files of an input, or the number of the one that is wrong and why.
pub(super) fn all(
    image: &Image,
    files: &Strings,
    out: &mut AlignedVec<f32>,
) -> Result<(), (usize, String)> {
    for (index, file) in files.iter().enumerate() {
        image.append(file, out).map_err(|why| (index, why))?;
    }
    Ok(())
}

/// Kind, width and height of a file that has a head like an image's; nothing is decoded.
fn head(file: &[u8]) -> Option<(Kind, usize, usize)> {
    match kind_of(file).ok()? {
        Kind::Png => {
            let sizes = file.get(16..24)?.as_chunks::<4>().0;
            let [width, height] = sizes else { return None };
            let size = |bytes: &[u8; 4]| usize::try_from(u32::from_be_bytes(*bytes)).ok();
            Some((Kind::Png, size(width)?, size(height)?))
        }
        Kind::Jpeg => {
            let mut decoder = jpeg(file, ColorSpace::RGB);
            decoder.decode_headers().ok()?;
            let info = decoder.info()?;
            Some((Kind::Jpeg, usize::from(info.width), usize::from(info.height)))
        }
    }
}

fn kind_of(file: &[u8]) -> Result<Kind, String> {
    if file.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Kind::Png);
    }
    if file.starts_with(b"\xff\xd8\xff") {
        return Ok(Kind::Jpeg);
    }
    let is = |kind: &str| Err(format!("is a {kind} file; JPEG and PNG can be read"));
    match file {
        [] => Err("is empty; it should be a JPEG or PNG file".to_owned()),
        [b'G', b'I', b'F', b'8', ..] => is("GIF"),
        [b'B', b'M', ..] => is("BMP"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => is("WebP"),
        // The first bytes of a PNG and of a JPEG in base64.
        [b'i', b'V', b'B', b'O', b'R', ..] | [b'/', b'9', b'j', b'/', ..] => {
            Err("is base64 of an image, and not an image; in JSON write {\"b64\": \"…\"} for it"
                .to_owned())
        }
        _ => Err("is no image; it should be a JPEG or PNG file".to_owned()),
    }
}

/// The pixels of a file, of one byte each if `grey`, else of three: red, green, blue.
fn decode(file: &[u8], grey: bool, max_pixels: usize) -> Result<Pixels, String> {
    let pixels = match kind_of(file)? {
        Kind::Png => decode_png(file, max_pixels)?,
        Kind::Jpeg => decode_jpeg(file, grey, max_pixels)?,
    };
    let wanted = if grey { 1 } else { 3 };
    let Pixels { height, width, channels, bytes } = pixels;
    let bytes = match (channels, wanted) {
        (1, 1) | (3, 3) => bytes,
        // Opacity is dropped, as TensorFlow drops it.
        (2, 1) => bytes.as_chunks::<2>().0.iter().map(|[grey, _]| *grey).collect(),
        (2, 3) => bytes.as_chunks::<2>().0.iter().flat_map(|[grey, _]| [*grey; 3]).collect(),
        (4, 3) => bytes.as_chunks::<4>().0.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]).collect(),
        (1, 3) => bytes.iter().flat_map(|grey| [*grey; 3]).collect(),
        (3, 1) => bytes.as_chunks::<3>().0.iter().map(|[r, g, b]| luma(*r, *g, *b)).collect(),
        (4, 1) => bytes.as_chunks::<4>().0.iter().map(|[r, g, b, _]| luma(*r, *g, *b)).collect(),
        (other, _) => return Err(format!("has pixels of {other} channels")),
    };
    if bytes.len() != height.saturating_mul(width).saturating_mul(wanted) {
        return Err("has fewer pixels than its head says".to_owned());
    }
    Ok(Pixels { height, width, channels: wanted, bytes })
}

/// Grey as in Y'CbCr (ITU-R BT.601), which is what a JPEG holds itself.
fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let [red, green, blue] = [red, green, blue].map(u32::from);
    // Parts of 65536, and a half to round with. The sum is below 2^24.
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
            "has {width} x {height} pixels, and at most {max_pixels} are decoded (max_pixels of \
             the step)"
        ));
    }
    Ok(())
}

fn decode_png(file: &[u8], max_pixels: usize) -> Result<Pixels, String> {
    let failed = |e: png::DecodingError| format!("is no good PNG: {e}");
    // For chunks of no interest, and for a row; the pixels go into a buffer of ours.
    let limits = png::Limits { bytes: 64 << 20 };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let head = decoder.read_header_info().map_err(failed)?;
    let (width, height) = (head.width as usize, head.height as usize);
    check_size(width, height, max_pixels)?;
    let mut reader = decoder.read_info().map_err(failed)?;
    let channels = match reader.output_color_type() {
        (ColorType::Grayscale, BitDepth::Eight) => 1,
        (ColorType::GrayscaleAlpha, BitDepth::Eight) => 2,
        (ColorType::Rgb, BitDepth::Eight) => 3,
        (ColorType::Rgba, BitDepth::Eight) => 4,
        (other, depth) => return Err(format!("is a PNG of a kind not known: {other:?} {depth:?}")),
    };
    let size = width * height * channels;
    if reader.output_buffer_size() != Some(size) {
        return Err("is a PNG whose size makes no sense".to_owned());
    }
    let mut bytes = vec![0; size];
    reader.next_frame(&mut bytes).map_err(failed)?;
    Ok(Pixels { height, width, channels, bytes })
}

fn jpeg(file: &[u8], out: ColorSpace) -> JpegDecoder<ZCursor<&[u8]>> {
    let most = usize::from(u16::MAX);
    let options = DecoderOptions::default()
        .set_max_width(most)
        .set_max_height(most)
        .jpeg_set_out_colorspace(out);
    JpegDecoder::new_with_options(ZCursor::new(file), options)
}

fn decode_jpeg(file: &[u8], grey: bool, max_pixels: usize) -> Result<Pixels, String> {
    let failed = |e: &dyn std::fmt::Debug| format!("is no good JPEG: {e:?}");
    let mut decoder = jpeg(file, ColorSpace::RGB);
    decoder.decode_headers().map_err(|e| failed(&e))?;
    let info = decoder.info().ok_or_else(|| "is a JPEG without a head".to_owned())?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_size(width, height, max_pixels)?;
    // Grey is in the file, or is made of its colours.
    let is_luma = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => true,
        Some(ColorSpace::YCbCr) => grey,
        _ => false,
    };
    let (out, channels) = if is_luma { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    let mut decoder = jpeg(file, out);
    let bytes = decoder.decode().map_err(|e| failed(&e))?;
    Ok(Pixels { height, width, channels, bytes })
}
