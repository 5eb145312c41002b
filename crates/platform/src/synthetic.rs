//! Synthetic inputs: what a model is run on before it has requests.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use tensorserve_tensor::{
    Buffer, DType, DeclaredShape, ImageEncoding, Shape, Signature, StringsBuilder, Tensor,
    TensorSpec, aligned_vec,
};

/// A black PNG of one pixel.
const PIXEL: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\n\
IDATx\x9cc`\0\0\0\x02\0\x01H\xaf\xa4q\0\0\0\0IEND\xaeB`\x82";

/// The largest synthetic input in bytes.
const LARGEST: usize = 64 << 20;

/// A synthetic input for each input of `signature`: `rows` rows of zeros (of strings: a tiny image if
/// the signature takes images, else empty strings) of the declared shape, with 1 for other variable
/// dimensions. `None` if one would be large.
#[must_use]
pub fn synthetic_inputs(signature: &Signature, rows: usize) -> Option<Vec<Tensor>> {
    let input = |spec| synthetic_input(spec, signature, &synthetic_dims(spec, rows, 1)?);
    signature.inputs.iter().map(input).collect()
}

/// The shape of `rows` rows of an input: as declared, with `open` for other variable dimensions.
#[must_use]
pub fn synthetic_dims(spec: &TensorSpec, rows: usize, open: usize) -> Option<Vec<i64>> {
    let open = i64::try_from(open).ok()?;
    let size = |(size, _): &(i64, String)| if *size < 0 { open } else { (*size).max(1) };
    let mut dims: Vec<i64> = match &spec.shape {
        DeclaredShape::Dims(dims) => dims.iter().map(size).collect(),
        DeclaredShape::UnknownRank | DeclaredShape::Missing => vec![1],
    };
    if spec.shape.is_batched() {
        *dims.first_mut()? = i64::try_from(rows).ok()?;
    }
    Some(dims)
}

/// A synthetic input of the shape `dims`. `None` if it would be large.
#[must_use]
pub fn synthetic_input(spec: &TensorSpec, signature: &Signature, dims: &[i64]) -> Option<Tensor> {
    let shape = Shape::new(dims).ok()?;
    let dtype = spec.dtype()?;
    let count = shape.elements().ok()?;
    let bytes = count.checked_mul(dtype.size().unwrap_or(PIXEL.len()))?;
    if bytes > LARGEST {
        return None;
    }
    if dtype != DType::String {
        let mut zeros = aligned_vec::<u8>(0);
        zeros.resize(bytes, 0);
        return Tensor::numeric(dtype, shape, Buffer::new(Arc::new(zeros))).ok();
    }
    let text = black_image(signature).unwrap_or_default();
    let mut strings = StringsBuilder::default();
    (0..count).for_each(|_| strings.push(&text));
    Tensor::from_strings(shape, strings).ok()
}

/// A tiny black image, as the signature takes images; `None` if it takes none.
pub(super) fn black_image(signature: &Signature) -> Option<Vec<u8>> {
    signature.takes_images.then(|| encoded(PIXEL.to_vec(), signature.images))
}

/// An image of this width and height whose pixels have the colours `colour`, by their place: red, green, blue, and so
/// on. As the signature takes images; `None` if it takes none.
pub(super) fn image_of(
    signature: &Signature,
    (width, height): (u16, u16),
    colour: &dyn Fn(usize) -> u8,
) -> Option<Vec<u8>> {
    if !signature.takes_images {
        return None;
    }
    let colours: Vec<u8> = (0..usize::from(width) * usize::from(height) * 3).map(colour).collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, u32::from(width), u32::from(height));
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().and_then(|mut writer| writer.write_image_data(&colours)).ok()?;
    Some(encoded(file, signature.images))
}

fn encoded(file: Vec<u8>, encoding: ImageEncoding) -> Vec<u8> {
    match encoding {
        ImageEncoding::Raw => file,
        ImageEncoding::Base64Url => URL_SAFE.encode(file).into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pixel_is_a_png() {
        // Signature, chunk length and type; IEND and its checksum at the end.
        assert!(PIXEL.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"));
        assert!(PIXEL.ends_with(b"IEND\xaeB`\x82"));
        assert_eq!(PIXEL.len(), 67);
    }

    #[test]
    fn images_have_the_colours_that_they_are_made_of() {
        let mut signature = Signature::only(Vec::new(), Vec::new());
        let colour = |at: usize| (at * 31 % 256) as u8;
        assert_eq!(image_of(&signature, (5, 3), &colour), None);
        signature.takes_images = true;
        let raw = image_of(&signature, (5, 3), &colour).expect("an image");
        let mut reader = png::Decoder::new(std::io::Cursor::new(&raw)).read_info().expect("a PNG");
        let mut pixels = vec![0; 45];
        let frame = reader.next_frame(&mut pixels).expect("pixels");
        assert_eq!((frame.width, frame.height), (5, 3));
        assert!(pixels.iter().enumerate().all(|(at, got)| *got == colour(at)));
        signature.images = ImageEncoding::Base64Url;
        let text = image_of(&signature, (5, 3), &colour).expect("an image");
        assert_eq!(URL_SAFE.decode(text).expect("base64"), raw);
    }
}
