//! The tensors of a call and a reply: dtypes and shapes as JSON, elements as bytes. `python/arrays.py`
//! describes the form, and is the other side.

use bytes::Bytes;
use serde_json::{Value, json};

use super::description::{dtype_named, invalid};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor};

/// The size of where a string ends, in bytes.
const END: usize = 8;

/// The header of a frame with these tensors.
pub(crate) fn header(tensors: &[Tensor]) -> String {
    let described = tensors.iter();
    let described = described.map(|it| json!([it.dtype().python_name(), it.shape().dims()]));
    Value::from(described.collect::<Vec<Value>>()).to_string()
}

/// Strings in the form of a frame, one item for each tensor; empty for tensors of numbers.
pub(crate) fn packed_strings(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    let packed = |tensor: &Tensor| {
        let Some(strings) = tensor.strings() else {
            return Vec::new();
        };
        let mut packed = Vec::with_capacity(strings.len() * END + strings.byte_len());
        let mut end = 0_u64;
        for string in strings.iter() {
            end += string.len() as u64;
            packed.extend_from_slice(&end.to_le_bytes());
        }
        strings.iter().for_each(|string| packed.extend_from_slice(string));
        packed
    };
    tensors.iter().map(packed).collect()
}

/// The body of a frame with these tensors, in parts.
pub(crate) fn parts<'t>(tensors: &'t [Tensor], strings: &'t [Vec<u8>]) -> Vec<&'t [u8]> {
    let part = |(tensor, strings): (&'t Tensor, &'t Vec<u8>)| match tensor.strings() {
        Some(_) => strings.as_slice(),
        None => tensor.bytes(),
    };
    tensors.iter().zip(strings).map(part).collect()
}

/// The tensors of a reply, whose sizes are checked against its body.
///
/// # Errors
/// If the header and the body do not fit together, or memory is short.
pub(crate) fn decode(header: &str, body: &Bytes) -> Result<Vec<Tensor>> {
    let described: Vec<(String, Vec<i64>)> =
        serde_json::from_str(header).map_err(|error| invalid(&error))?;
    let mut rest = body.clone();
    let mut tensors = Vec::with_capacity(described.len());
    for (dtype, dims) in described {
        let dtype = dtype_named(&dtype)?;
        let shape = Shape::new(&dims).map_err(|error| invalid(&error))?;
        let count = shape.elements().map_err(|error| invalid(&error))?;
        let Some(size) = dtype.size() else {
            tensors.push(strings(shape, count, &mut rest)?);
            continue;
        };
        let size = count.checked_mul(size).filter(|size| *size <= rest.len());
        let size = size.ok_or_else(too_short)?;
        tensors.push(Tensor::from_bytes(dtype, shape, rest.split_to(size))?);
    }
    match rest.is_empty() {
        true => Ok(tensors),
        false => Err(invalid("its body is longer than its tensors")),
    }
}

/// Takes a tensor of strings from the start of `rest`.
fn strings(shape: Shape, count: usize, rest: &mut Bytes) -> Result<Tensor> {
    let size = count.checked_mul(END).filter(|size| *size <= rest.len());
    let ends = rest.split_to(size.ok_or_else(too_short)?);
    let mut start = 0;
    let mut builder = StringsBuilder::with_capacity(count, rest.len());
    for end in ends.chunks_exact(END) {
        let end = end.try_into().map_or(u64::MAX, u64::from_le_bytes);
        let end = usize::try_from(end).map_err(|_| too_short())?;
        builder.push(rest.get(start..end).ok_or_else(too_short)?);
        start = end;
    }
    let _ = rest.split_to(start);
    Tensor::from_strings(shape, builder).map_err(|error| invalid(&error))
}

fn too_short() -> tensorserve_tensor::error::Error {
    invalid("its body is shorter than its tensors")
}

/// Whether a tensor has the dtype of an output.
pub(crate) fn has_dtype(tensor: &Tensor, dtype: Option<DType>) -> bool {
    dtype == Some(tensor.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use tensorserve_tensor::aligned_vec;

    fn frame(tensors: &[Tensor]) -> (String, Bytes) {
        let strings = packed_strings(tensors);
        (header(tensors), parts(tensors, &strings).concat().into())
    }

    fn numbers(values: &[f64]) -> Tensor {
        let mut aligned = aligned_vec(values.len());
        aligned.extend_from_slice(values);
        Tensor::from_vec(Shape::vector(values.len()), aligned).expect("a tensor")
    }

    fn texts(values: &[Vec<u8>]) -> Tensor {
        let mut builder = StringsBuilder::default();
        values.iter().for_each(|value| builder.push(value));
        Tensor::from_strings(Shape::vector(values.len()), builder).expect("a tensor")
    }

    proptest! {
        #[test]
        fn tensors_are_read_as_they_were_written(
            values in prop::collection::vec(any::<f64>(), 0..9),
            strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
        ) {
            let tensors = [texts(&strings), numbers(&values), texts(&strings)];
            let (header, body) = frame(&tensors);
            let read = decode(&header, &body).expect("valid");
            prop_assert_eq!(read.len(), 3);
            for (read, tensor) in read.iter().zip(&tensors) {
                prop_assert_eq!(read.shape().dims(), tensor.shape().dims());
                prop_assert_eq!(read.bytes(), tensor.bytes());
                let all = |tensor: &Tensor| {
                    let strings = tensor.strings().into_iter().flat_map(|it| it.iter());
                    strings.map(<[u8]>::to_vec).collect::<Vec<_>>()
                };
                prop_assert_eq!(all(read), all(tensor));
            }
        }

        #[test]
        fn what_does_not_fit_is_refused_within_bounds(
            dims in prop::collection::vec(any::<i64>(), 0..4),
            is_text: bool,
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let dtype = if is_text { "string" } else { "float64" };
            let _ = decode(&json!([[dtype, dims]]).to_string(), &Bytes::from(body));
        }
    }

    /// How `python/arrays.py` has the elements of a type without NumPy.
    enum Form {
        /// As elements of an array of this code.
        Code(&'static str),
        /// Only NumPy has them.
        NumpyOnly,
        /// As texts.
        Texts,
        /// NumPy does not have them, either.
        None,
    }

    fn form(dtype: DType) -> Form {
        match dtype {
            DType::Float => Form::Code("f"),
            DType::Double => Form::Code("d"),
            DType::Int8 => Form::Code("b"),
            DType::Int16 => Form::Code("h"),
            DType::Int32 => Form::Code("i"),
            DType::Int64 => Form::Code("q"),
            DType::UInt8 | DType::Bool => Form::Code("B"),
            DType::UInt16 => Form::Code("H"),
            DType::UInt32 => Form::Code("I"),
            DType::UInt64 => Form::Code("Q"),
            DType::Half | DType::Complex64 | DType::Complex128 => Form::NumpyOnly,
            DType::String => Form::Texts,
            DType::BFloat16 => Form::None,
        }
    }

    #[test]
    fn both_sides_have_the_same_types() {
        const ARRAYS: &str = include_str!("../../../python/arrays.py");
        let between = |start: &str, end: &str| {
            let (_, after) = ARRAYS.split_once(start).expect(start);
            after.split_once(end).expect(end).0
        };
        let (mut codes, mut numpy_only) = (BTreeSet::new(), BTreeSet::new());
        for dtype in DType::ALL {
            let name = dtype.python_name();
            match form(dtype) {
                Form::Code(code) => drop(codes.insert(format!("\"{name}\": \"{code}\""))),
                Form::NumpyOnly => drop(numpy_only.insert(format!("\"{name}\""))),
                Form::Texts => assert!(ARRAYS.contains(&format!("if dtype == \"{name}\":"))),
                Form::None => assert!(!ARRAYS.contains(name), "{name}"),
            }
        }
        let listed = between("\nCODES = {\n", "\n}").lines();
        let listed = listed.map(|line| line.trim().trim_end_matches(',').to_owned());
        assert_eq!(listed.collect::<BTreeSet<_>>(), codes, "CODES");
        let listed = between("\nNUMPY_ONLY = (", ")").split(", ").map(str::to_owned);
        assert_eq!(listed.collect::<BTreeSet<_>>(), numpy_only, "NUMPY_ONLY");
    }

    #[test]
    fn sizes_are_checked() {
        for (header, body, part) in [
            ("[[\"float64\", [2]]]", vec![0; 8], "shorter"),
            ("[[\"float64\", [1]]]", vec![0; 9], "longer"),
            ("[[\"float64\", [4611686018427387904, 4]]]", vec![0; 8], "invalid reply"),
            ("[[\"float64\", [-1]]]", vec![0; 8], "invalid reply"),
            ("[[\"string\", [1]]]", vec![9, 0, 0, 0, 0, 0, 0, 0, 1], "shorter"),
            ("[[\"string\", [2]]]", vec![0; 8], "shorter"),
            ("[[\"float65\", [1]]]", vec![0; 8], "\"float65\" is unknown"),
            ("[", vec![], "invalid reply"),
        ] {
            let error = decode(header, &Bytes::from(body)).expect_err(header);
            assert!(error.message().contains(part), "{header}: {error}");
        }
    }
}
