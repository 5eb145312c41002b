//! Sample requests with synthetic inputs of the shapes that a signature declares, for `gen_json`,
//! generated clients and the command line.

use tensorserve_codec::json::write;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, ImageEncoding, JsonKind, Signature, TensorSpec};

/// The most values of a sample.
const MOST_VALUES: usize = 1 << 20;

/// The size of a dimension of unknown size in the samples of Simple TensorFlow Serving: two, to show
/// that a request may hold several rows.
const OPEN: usize = 2;

/// A PNG image of one pixel, as the JSON of its bytes.
pub const PIXEL: &str = "{\"b64\": \"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJ\
RU5ErkJggg==\"}";

/// The same image as the text in URL-safe base64 that some graphs decode.
pub const PIXEL_TEXT: &str = "\"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK-kcQAAAABJRU5ErkJg\
gg==\"";

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
    /// A small image, in the encoding in which the model takes images.
    Image(ImageEncoding),
}

impl SampleValue {
    /// As JSON.
    #[must_use]
    pub fn json(self) -> &'static str {
        match self {
            SampleValue::One => "1",
            SampleValue::True => "true",
            SampleValue::Text => "\"\"",
            SampleValue::Image(ImageEncoding::Raw) => PIXEL,
            SampleValue::Image(ImageEncoding::Base64Url) => PIXEL_TEXT,
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
    sendable.map(|spec| made(signature, spec)).collect()
}

fn made<'s>(signature: &Signature, spec: &'s TensorSpec) -> SampleInput<'s> {
    let fill = match spec.dtype().map(DType::json_kind) {
        Some(JsonKind::Bool) => SampleValue::True,
        Some(JsonKind::String) if signature.takes_images => SampleValue::Image(signature.images),
        Some(JsonKind::String) => SampleValue::Text,
        Some(JsonKind::Number) | None => SampleValue::One,
    };
    SampleInput { alias: &spec.alias, dims: dims(signature, spec, OPEN), fill }
}

/// The values of [`inputs`] as a JSON object: the `data` of a request.
///
/// # Errors
/// [`Code::InvalidArgument`] if the inputs of the signature are too large.
pub fn data(signature: &Signature) -> Result<String> {
    data_of(signature, inputs(signature))
}

/// The same as the original writes it: the text of an image is empty.
///
/// # Errors
/// As [`data`].
pub fn data_as_original(signature: &Signature) -> Result<String> {
    let mut inputs = inputs(signature);
    let images = inputs.iter_mut().filter(|made| matches!(made.fill, SampleValue::Image(_)));
    images.for_each(|made| made.fill = SampleValue::Text);
    data_of(signature, inputs)
}

fn data_of(signature: &Signature, inputs: Vec<SampleInput<'_>>) -> Result<String> {
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

/// The dimensions of a synthetic input for `spec`: those with which the model has run, or those that it declares,
/// with `open` for sizes that are unknown. An input of unknown rank gets one dimension.
#[must_use]
pub fn dims(signature: &Signature, spec: &TensorSpec, open: usize) -> Vec<usize> {
    if let Some(ran) = signature.shape_that_ran(&spec.alias) {
        return ran.iter().map(|&size| usize::try_from(size).unwrap_or(open)).collect();
    }
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
    use tensorserve_codec::base64::{self, Alphabet};
    use tensorserve_tensor::{DeclaredShape, RowDependence};

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
            categories: Vec::new(),
            ignores_unknown: false,
            ran_with: Vec::new(),
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
    fn an_image_model_gets_an_image() {
        let mut signature = signature(vec![spec("photo", DType::String, Some(&[-1]))]);
        signature.takes_images = true;
        let text = |signature: &Signature, member: &str| {
            let data = data(signature).expect("small");
            let data: serde_json::Value = serde_json::from_str(&data).expect("JSON");
            let both = data["photo"].as_array().expect("a list").clone();
            assert!(both.len() == 2 && both[0] == both[1], "{data}");
            let text = if member.is_empty() { &both[0] } else { &both[0][member] };
            text.as_str().expect("text").to_owned()
        };
        let raw = text(&signature, "b64");
        signature.images = ImageEncoding::Base64Url;
        let encoded = text(&signature, "");
        assert_eq!(raw.replace('+', "-").replace('/', "_"), encoded);
        let mut png = Vec::new();
        base64::decode(raw.as_bytes(), Alphabet::Standard, &mut png).expect("base64");
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.ends_with(b"IEND\xaeB`\x82"));
        let original = data_as_original(&signature).expect("small");
        assert_eq!(original, r#"{"photo": ["", ""]}"#);
    }

    #[test]
    fn a_sample_has_the_shape_with_which_the_model_has_run() {
        let mut signature = signature(vec![spec("x", DType::Float, None)]);
        signature.ran_with.push(("x".to_owned(), vec![2, 3]));
        assert_eq!(data(&signature).expect("small"), r#"{"x": [[1, 1, 1], [1, 1, 1]]}"#);
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
