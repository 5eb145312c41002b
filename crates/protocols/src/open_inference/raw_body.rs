//! A body over REST that has no JSON: the raw bytes of the one input of a model.

use bytes::Bytes;

use super::datatype;
use super::raw;
use super::request::{GivenRequest, Parameters};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Shape, Signature, StringsBuilder, Tensor};

/// The body that is one input alone: its raw bytes, or one string.
///
/// # Errors
/// If the model has several inputs, or its shape does not follow from the size.
pub(super) fn read(body: Bytes, signature: &Signature) -> Result<GivenRequest> {
    let [spec] = signature.inputs.as_slice() else {
        return Err(Error::invalid(format!(
            "a body without JSON is the one input of a model, but this one has {}",
            signature.inputs.len()
        )));
    };
    let name = &spec.alias;
    let dtype = spec.dtype().filter(|dtype| datatype::of_name(datatype::name_of(*dtype)).is_some());
    let dtype = dtype.ok_or_else(|| {
        Error::invalid(format!("input {name:?} has a type that clients cannot send"))
    })?;
    let Some(mut dims) = spec.shape.sizes() else {
        let message = format!("input {name:?} declares no shape; send JSON with its shape");
        return Err(Error::invalid(message));
    };
    let tensor = match dtype.size() {
        None => {
            if dims.iter().filter(|dim| **dim < 0).count() > 1 {
                return Err(several_unknown(name));
            }
            // As many dimensions as declared, of one element.
            dims.iter_mut().for_each(|dim| *dim = 1);
            let mut strings = StringsBuilder::with_capacity(1, body.len());
            budget::reserve(body.len())?;
            strings.push(&body);
            Tensor::from_strings(Shape::new(&dims)?, strings)?
        }
        Some(size) => {
            fill_in(name, &mut dims, body.len() / size.max(1))?;
            raw::read(name, dtype, Shape::new(&dims)?, body)?
        }
    };
    let parameters = Parameters { binary_data_output: true, ..Parameters::default() };
    let inputs = vec![(name.clone(), tensor)];
    Ok(GivenRequest { parameters, inputs, ..GivenRequest::default() })
}

fn several_unknown(name: &str) -> Error {
    Error::invalid(format!(
        "input {name:?} has several dimensions of unknown size; send JSON with its shape"
    ))
}

/// Gives the one dimension of unknown size the one that `elements` elements need. If the first is one of
/// two, it is 1: a batch of one.
fn fill_in(name: &str, dims: &mut [i64], elements: usize) -> Result<()> {
    let unknown = |dims: &[i64]| dims.iter().filter(|dim| **dim < 0).count();
    if unknown(dims) > 1
        && let Some(first) = dims.first_mut().filter(|first| **first < 0)
    {
        *first = 1;
    }
    if unknown(dims) > 1 {
        return Err(several_unknown(name));
    }
    let mut known = dims.iter().filter(|dim| **dim >= 0);
    let known = known.try_fold(1_i64, |product, dim| product.checked_mul(*dim)).unwrap_or(0);
    let elements = i64::try_from(elements).unwrap_or(i64::MAX);
    if let Some(dim) = dims.iter_mut().find(|dim| **dim < 0) {
        *dim = elements.checked_div(known).unwrap_or(0);
    }
    Ok(())
}
