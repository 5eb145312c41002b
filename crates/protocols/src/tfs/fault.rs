//! TensorFlow Serving's messages for bodies that it refuses.

use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::read::TensorReadError as Fault;
use tensorserve_codec::json::scan::SyntaxError;
use tensorserve_tensor::TensorSpec;
use tensorserve_tensor::error::{Code, Error};

/// The error for text that is not JSON.
pub(super) fn syntax(error: SyntaxError) -> Error {
    let (text, offset) = (error.kind.text(), error.offset);
    Error::invalid(format!("JSON Parse error: {text} at offset: {offset}"))
}

/// The error for a value of `body` that does not fit the input `spec`.
pub(super) fn value(fault: &Fault, spec: &TensorSpec, body: &[u8]) -> Error {
    let message = match fault {
        Fault::Syntax(error) => return syntax(*error),
        Fault::Refused(refusal) => return refusal.error(),
        Fault::Unsupported { at } => {
            let (value, type_name) = (dump(body, *at), type_name(spec.dtype_number));
            let message = format!("Conversion of JSON Value: {value} to type: {type_name}");
            return Error::new(Code::Unimplemented, message);
        }
        Fault::Type { at } => format!(
            "JSON Value: {} Type: {} is not of expected type: {}",
            dump(body, *at),
            kind_of(body, *at),
            type_name(spec.dtype_number)
        ),
        Fault::NotBase64Object { at } => {
            let value = dump(body, *at);
            format!("JSON Value: {value} not formatted correctly for base64 data")
        }
        Fault::NotBase64 => "Unable to base64 decode".to_owned(),
        Fault::ListTooDeep { level, rank } => {
            format!("Encountered list at unexpected level: {level} expected < {rank}")
        }
        Fault::ValueAtWrongLevel { at, level, rank } => format!(
            "JSON Value: {} found at incorrect level: {} in the JSON DOM. Expected at level: {rank}",
            dump(body, *at),
            level + 1,
        ),
        Fault::ListSize { size, level, expected } => format!(
            "Encountered list at unexpected size: {size} at level: {level} expected size: {expected}"
        ),
        Fault::RowSize { size, expected } => {
            format!("Expecting tensor size: {expected} but got: {size}")
        }
        Fault::RowShape { shape, expected } => {
            format!("Expecting shape {expected:?} but got: {shape:?}")
        }
        Fault::TooManyDimensions => "Lists are nested more than 254 levels deep".to_owned(),
        Fault::TooLarge => {
            format!("The values for input {:?} take too much memory", spec.alias)
        }
    };
    Error::invalid(message)
}

/// RapidJSON's name for the type of the value at byte `at`.
pub(super) fn kind_of(body: &[u8], at: usize) -> &'static str {
    match body.get(at) {
        Some(b'n') => "Null",
        Some(b'f') => "False",
        Some(b't') => "True",
        Some(b'{') => "Object",
        Some(b'[') => "Array",
        Some(b'"') => "String",
        _ => "Number",
    }
}

/// TensorFlow's name of a type, by number, including types that [`tensorserve_tensor`] does not have.
pub(super) fn type_name(number: i32) -> String {
    let other = match number {
        0 => "INVALID",
        11 => "qint8",
        12 => "quint8",
        13 => "qint32",
        15 => "qint16",
        16 => "quint16",
        20 => "resource",
        21 => "variant",
        _ => "",
    };
    if !other.is_empty() {
        return other.to_owned();
    }
    match tensorserve_tensor::DType::from_number(number) {
        Some(dtype) if number > 100 => format!("{dtype}_ref"),
        Some(dtype) => dtype.to_string(),
        None => format!("unknown dtype enum ({number})"),
    }
}
