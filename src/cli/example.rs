//! A request that works, made up from what a signature declares.

use tensorserve_protocols::sample::nested;
use tensorserve_tensor::{DType, ImageEncoding, Signature, TensorSpec};

/// More values than anyone wants to see in a terminal.
const MOST_VALUES: usize = 64;

/// How to call a signature.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Example {
    /// A command line for a shell.
    pub(super) command: String,
    /// About how long a body it sends: short ones make the better first example.
    pub(super) length: usize,
}

/// A `curl` for `signature` of `model` on the server at `url`; `None` if it can not be called
/// over HTTP.
pub(super) fn of(url: &str, model: &str, signature: &Signature) -> Option<Example> {
    if signature.inputs.is_empty() {
        return None;
    }
    if signature.takes_images {
        return Some(image(url, model, signature));
    }
    if let Some(verb) = example_verb(signature) {
        return Some(on_examples(url, model, verb, signature));
    }
    let large = signature.inputs.iter().any(|spec| values_in(spec) > MOST_VALUES);
    let target = format!("{url}/v1/models/{model}:predict");
    if large {
        let body = python_body(signature)?;
        let command = format!("python3 -c '{body}' | curl -d @- {target}");
        let length = usize::MAX;
        return Some(Example { command, length });
    }
    let body = json_body(signature)?;
    // Numbers show better than a made-up text what a model does.
    let texts = signature.inputs.iter().filter(|spec| spec.dtype() == Some(DType::String));
    Some(Example {
        length: body.len() + 100 * texts.count(),
        command: format!("curl -d '{body}' {target}"),
    })
}

/// What a signature is called with that takes `tensorflow.Example`s.
fn example_verb(signature: &Signature) -> Option<&'static str> {
    match signature.method_name.as_str() {
        "tensorflow/serving/classify" => Some("classify"),
        "tensorflow/serving/regress" => Some("regress"),
        _ => None,
    }
}

/// Which features an example has only the graph knows, so that one is left to be filled in.
fn on_examples(url: &str, model: &str, verb: &str, signature: &Signature) -> Example {
    let body = format!("{{{}\"examples\": [{{\"FEATURE\": 1.0}}]}}", name_member(signature));
    let command = format!("curl -d '{body}' {url}/v1/models/{model}:{verb}");
    let length = 1000;
    Example { command, length }
}

fn image(url: &str, model: &str, signature: &Signature) -> Example {
    let mut command = format!("curl -F image=@FILE -F model_name={model}");
    if signature.name != "serving_default" {
        command.push_str(&format!(" -F signature_name={}", signature.name));
    }
    command.push_str(&format!(" {url}/"));
    let length = 1000;
    Example { command, length }
}

/// How an image gets to the signature, in a few words.
pub(super) fn image_words(signature: &Signature) -> &'static str {
    match signature.images {
        ImageEncoding::Raw => "the file's bytes",
        ImageEncoding::Base64Url => "URL-safe base64 of the file (the graph decodes it)",
    }
}

/// Dimensions of one made-up value: 1 for whatever is left open.
fn dims(spec: &TensorSpec) -> Vec<usize> {
    let mut dims = tensorserve_protocols::sample::dims(spec, 1);
    dims.iter_mut().for_each(|size| *size = (*size).max(1));
    dims
}

fn values_in(spec: &TensorSpec) -> usize {
    dims(spec).iter().fold(1, |product: usize, &dim| product.saturating_mul(dim))
}

fn value(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Float | DType::Double => Some("1.0"),
        DType::Bool => Some("true"),
        DType::String => Some("\"text\""),
        DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt32
        | DType::UInt64 => Some("1"),
        // Not in TensorFlow Serving's JSON.
        DType::UInt16 | DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => {
            None
        }
    }
}

/// Python that makes the same list.
fn python_nested(dims: &[usize], value: &str) -> String {
    dims.iter().rev().fold(value.to_owned(), |inner, size| format!("[{inner}] * {size}"))
}

fn name_member(signature: &Signature) -> String {
    match signature.name.as_str() {
        "serving_default" => String::new(),
        name => format!("\"signature_name\": {}, ", quoted(name)),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn json_body(signature: &Signature) -> Option<String> {
    let start = name_member(signature);
    if let [spec] = signature.inputs.as_slice() {
        // A few different numbers say more than one.
        if dims(spec) == [1] && spec.dtype() == Some(DType::Float) && spec.shape.is_batched() {
            return Some(format!("{{{start}\"instances\": [1.0, 2.0, 5.0]}}"));
        }
        let value = nested(&dims(spec), value(spec.dtype()?)?);
        return Some(format!("{{{start}\"inputs\": {value}}}"));
    }
    let mut members = Vec::new();
    for spec in &signature.inputs {
        let value = nested(&dims(spec), value(spec.dtype()?)?);
        members.push(format!("{}: {value}", quoted(&spec.alias)));
    }
    Some(format!("{{{start}\"inputs\": {{{}}}}}", members.join(", ")))
}

fn python_body(signature: &Signature) -> Option<String> {
    let mut members = Vec::new();
    for spec in &signature.inputs {
        let value = value(spec.dtype()?)?.replace("true", "True");
        let value = python_nested(&dims(spec), &value);
        members.push(format!("{}: {value}", quoted(&spec.alias)));
    }
    let start = name_member(signature);
    let inputs = members.join(", ");
    Some(format!("import json; print(json.dumps({{{start}\"inputs\": {{{inputs}}}}}))"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::DeclaredShape;

    fn spec(alias: &str, dtype: DType, dims: &[i64]) -> TensorSpec {
        let dims = dims.iter().map(|&size| (size, String::new()));
        TensorSpec {
            alias: alias.into(),
            tensor_name: String::new(),
            dtype_number: dtype.number(),
            shape: DeclaredShape::Dims(dims.collect()),
            sparse: None,
        }
    }

    fn command(name: &str, inputs: Vec<TensorSpec>) -> String {
        command_for("tensorflow/serving/predict", name, inputs)
    }

    fn command_for(method: &str, name: &str, inputs: Vec<TensorSpec>) -> String {
        let signature = Signature {
            name: name.into(),
            method_name: method.into(),
            inputs,
            outputs: Vec::new(),
            defaults: Vec::new(),
            images: ImageEncoding::Raw,
            takes_images: false,
            read_only: true,
        };
        of("http://h", "m", &signature).expect("callable").command
    }

    #[test]
    fn small_inputs_are_spelt_out() {
        let one = command("serving_default", vec![spec("x", DType::Float, &[-1])]);
        assert_eq!(one, "curl -d '{\"instances\": [1.0, 2.0, 5.0]}' http://h/v1/models/m:predict");
        let two = vec![spec("a", DType::Int64, &[-1]), spec("b", DType::Float, &[-1, 2])];
        let two = command("other", two);
        let body = "{\"signature_name\": \"other\", \"inputs\": {\"a\": [1], \"b\": [[1.0, 1.0]]}}";
        assert!(two.contains(body), "{two}");
    }

    #[test]
    fn signatures_for_examples_get_some() {
        let inputs = || vec![spec("inputs", DType::String, &[-1])];
        let regress = command_for("tensorflow/serving/regress", "serving_default", inputs());
        let body = "{\"examples\": [{\"FEATURE\": 1.0}]}";
        assert_eq!(regress, format!("curl -d '{body}' http://h/v1/models/m:regress"));
        let classify = command_for("tensorflow/serving/classify", "c", inputs());
        let start = "curl -d '{\"signature_name\": \"c\", \"examples\": [";
        assert!(classify.starts_with(start) && classify.ends_with(":classify"), "{classify}");
    }

    #[test]
    fn large_inputs_are_made_by_a_program() {
        let large = command("serving_default", vec![spec("x", DType::Float, &[-1, 784])]);
        assert!(large.contains("\"x\": [[1.0] * 784] * 1"), "{large}");
    }
}
