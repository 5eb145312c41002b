//! Synthetic inputs: what a model is run on before it has requests.

use std::sync::Arc;

use tensorserve_tensor::{
    Buffer, DType, DeclaredShape, ImageEncoding, Shape, Signature, StringsBuilder, Tensor,
    TensorSpec, aligned_vec,
};

/// A black PNG of one pixel.
const PIXEL: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\n\
IDATx\x9cc`\0\0\0\x02\0\x01H\xaf\xa4q\0\0\0\0IEND\xaeB`\x82";

/// [`PIXEL`] as URL-safe base64.
const PIXEL_BASE64: &[u8] =
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK-\
kcQAAAABJRU5ErkJggg==";

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
    let text = if signature.takes_images { image_text(signature.images) } else { &[] };
    let mut strings = StringsBuilder::default();
    (0..count).for_each(|_| strings.push(text));
    Tensor::from_strings(shape, strings).ok()
}

/// A tiny image in this encoding.
pub(super) fn image_text(encoding: ImageEncoding) -> &'static [u8] {
    match encoding {
        ImageEncoding::Raw => PIXEL,
        ImageEncoding::Base64Url => PIXEL_BASE64,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE;

    use super::*;

    #[test]
    fn the_pixel_is_a_png() {
        // Signature, chunk length and type; IEND and its checksum at the end.
        assert!(PIXEL.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"));
        assert!(PIXEL.ends_with(b"IEND\xaeB`\x82"));
        assert_eq!(PIXEL.len(), 67);
        let text = URL_SAFE.encode(PIXEL);
        assert_eq!(text.as_bytes(), PIXEL_BASE64);
    }
}
