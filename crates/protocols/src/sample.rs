//! Sample requests with synthetic inputs of the shapes that a signature declares, for `gen_json`,
//! generated clients and the command line.

use tensorserve_codec::json::write;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, JsonKind, Signature, TensorSpec};

/// The most values of a sample.
const MOST_VALUES: usize = 1 << 20;

/// The size of a dimension of unknown size in the samples of Simple TensorFlow Serving: two, to show
/// that a request may hold several rows.
const OPEN: usize = 2;

/// A synthetic input: one value in every position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleInput<'a> {
    /// The input's name.
    pub alias: &'a str,
    /// The sizes of its dimensions; empty for a single value.
    pub dims: Vec<usize>,
    /// The value.
    pub fill: SampleValue,
}

/// A synthetic value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleValue {
    /// The number 1, which is valid for every numeric type.
    One,
    /// The boolean true.
    True,
    /// The empty string.
    Text,
}

impl SampleValue {
    /// As JSON.
    #[must_use]
    pub fn json(self) -> &'static str {
        match self {
            SampleValue::One => "1",
            SampleValue::True => "true",
            SampleValue::Text => "\"\"",
        }
    }
}

impl SampleInput<'_> {
    /// The number of its values, with every dimension of size zero taken as one: the lists around no
    /// values take memory, too.
    #[must_use]
    pub fn count(&self) -> usize {
        self.dims.iter().fold(1, |count: usize, &dim| count.saturating_mul(dim.max(1)))
    }

    /// As JSON, in nested lists.
    #[must_use]
    pub fn json(&self) -> String {
        nested(&self.dims, self.fill.json())
    }
}

/// A value for each input of `signature` that a client can send.
#[must_use]
pub fn inputs(signature: &Signature) -> Vec<SampleInput<'_>> {
    let sendable = signature.inputs.iter().filter(|spec| spec.sparse.is_none());
    sendable.map(made).collect()
}

fn made(spec: &TensorSpec) -> SampleInput<'_> {
    let fill = match spec.dtype().map(DType::json_kind) {
        Some(JsonKind::Bool) => SampleValue::True,
        Some(JsonKind::String) => SampleValue::Text,
        Some(JsonKind::Number) | None => SampleValue::One,
    };
    SampleInput { alias: &spec.alias, dims: dims(spec, OPEN), fill }
}

/// The values of [`inputs`] as a JSON object: the `data` of a request.
///
/// # Errors
/// [`Code::InvalidArgument`] if the inputs of the signature are too large.
pub fn data(signature: &Signature) -> Result<String> {
    let inputs = inputs(signature);
    let count = inputs.iter().fold(0, |count: usize, made| count.saturating_add(made.count()));
    if count > MOST_VALUES {
        let name = &signature.name;
        let message = format!(
            "a sample for signature {name:?} would have {count} values; at most {MOST_VALUES} are allowed"
        );
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let mut text = b"{".to_vec();
    for (index, made) in inputs.iter().enumerate() {
        if index > 0 {
            text.extend_from_slice(b", ");
        }
        write::string(made.alias.as_bytes(), &mut text);
        text.extend_from_slice(b": ");
        text.extend_from_slice(made.json().as_bytes());
    }
    text.push(b'}');
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The dimensions of a synthetic input for `spec`, with `open` for sizes that are unknown. An input of
/// unknown rank gets one dimension.
#[must_use]
pub fn dims(spec: &TensorSpec, open: usize) -> Vec<usize> {
    let sizes = spec.shape.sizes().unwrap_or_else(|| vec![-1]);
    sizes.into_iter().map(|size| usize::try_from(size).unwrap_or(open)).collect()
}

/// The JSON text `value` in nested lists with these dimensions.
#[must_use]
pub fn nested(dims: &[usize], value: &str) -> String {
    dims.iter().rev().fold(value.to_owned(), |inner, &size| {
        let all = vec![inner; size];
        format!("[{}]", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{DeclaredShape, ImageEncoding, RowDependence};

    fn spec(alias: &str, dtype: DType, shape: Option<&[i64]>) -> TensorSpec {
        let dims = |dims: &[i64]| dims.iter().map(|&size| (size, String::new())).collect();
        TensorSpec {
            alias: alias.into(),
            tensor_name: String::new(),
            dtype_number: dtype.number(),
            shape: shape.map_or(DeclaredShape::UnknownRank, |s| DeclaredShape::Dims(dims(s))),
            sparse: None,
            takes_missing: false,
            number_texts: None,
            quantization: None,
            column_names: Vec::new(),
        }
    }

    fn signature(inputs: Vec<TensorSpec>) -> Signature {
        Signature {
            name: "serving_default".into(),
            method_name: String::new(),
            inputs,
            outputs: Vec::new(),
            defaults: Vec::new(),
            images: ImageEncoding::Raw,
            takes_images: false,
            read_only: true,
            repeatable: true,
            exact_shapes: false,
            by_columns: None,
            unused_columns: Vec::new(),
            ignores_unknown: false,
            is_bounded: true,
            rows: RowDependence::NoGraph,
        }
    }

    #[test]
    fn every_type_and_rank_gets_a_value() {
        let signature = signature(vec![
            spec("a", DType::Float, Some(&[-1, 3])),
            spec("b\"", DType::Bool, Some(&[])),
            spec("c", DType::String, Some(&[-1])),
            spec("d", DType::Int64, None),
            spec("e", DType::Float, Some(&[0])),
        ]);
        let text = data(&signature).expect("small");
        let want = "{\"a\": [[1, 1, 1], [1, 1, 1]], \"b\\\"\": true, \"c\": [\"\", \"\"], \
                    \"d\": [1, 1], \"e\": []}";
        assert_eq!(text, want);
    }

    #[test]
    fn a_huge_one_is_refused_before_it_is_made() {
        let most = i64::MAX;
        let signature = signature(vec![spec("x", DType::Float, Some(&[-1, most, most]))]);
        let error = data(&signature).expect_err("too large");
        assert!(error.message().contains("values; at most"), "{error}");
        for dims in [[1 << 40, 0], [0, 1 << 40]] {
            let signature = self::signature(vec![spec("x", DType::Float, Some(&dims))]);
            let error = data(&signature).expect_err("too many lists");
            assert!(error.message().contains("values; at most"), "{error}");
        }
    }
}
