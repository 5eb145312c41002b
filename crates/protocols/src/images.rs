//! Image files as the input of a signature.

use bytes::Bytes;

use tensorserve_codec::base64;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, ImageEncoding, Shape, Signature, StringsBuilder, Tensor};

/// The images as the one input of the signature: a string tensor of shape `[images]`.
///
/// # Errors
/// If the signature has several inputs, or one that is not strings.
pub(crate) fn tensor(signature: &Signature, images: &[Bytes]) -> Result<Tensor> {
    let [spec] = signature.inputs.as_slice() else {
        let count = signature.inputs.len();
        return Err(not_for_images(signature, &format!("it has {count} inputs, not one")));
    };
    if spec.dtype() != Some(DType::String) {
        let kind = spec.dtype().map_or("another type", DType::name);
        return Err(not_for_images(signature, &format!("its input is {kind}, not string")));
    }
    let bytes: usize = images.iter().map(Bytes::len).sum();
    budget::reserve(bytes.saturating_mul(2))?;
    let mut strings = StringsBuilder::with_capacity(images.len(), bytes);
    for image in images {
        match signature.images {
            ImageEncoding::Raw => strings.push(image),
            ImageEncoding::Base64Url => {
                let encode = |out: &mut Vec<u8>| {
                    base64::encode_url_safe(image, out);
                    Ok::<(), Error>(())
                };
                strings.push_with(encode)?;
            }
        }
    }
    Tensor::from_strings(Shape::vector(images.len()), strings)
}

fn not_for_images(signature: &Signature, why: &str) -> Error {
    Error::invalid(format!(
        "signature {:?} does not accept images: {why}; send JSON",
        signature.name
    ))
}
