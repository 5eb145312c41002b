//! Conversion of the values of a request to the types of a signature, by the rules of NumPy and pandas.

use std::borrow::Cow;
use std::fmt;

use super::node::Node;
use tensorserve_codec::base64::{self, Alphabet};
use tensorserve_codec::json::float;
use tensorserve_mlflow::schema::ColumnType;

/// A type that a signature declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    Bool,
    /// Integers of `bits` bits.
    Integer {
        bits: u32,
        is_signed: bool,
    },
    Float32,
    Float64,
    Text,
    Binary,
    /// Lists of a type.
    List(Box<ValueType>),
    /// Any value, unchanged.
    Any,
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueType::Bool => f.write_str("bool"),
            ValueType::Integer { bits, is_signed: true } => write!(f, "int{bits}"),
            ValueType::Integer { bits, is_signed: false } => write!(f, "uint{bits}"),
            ValueType::Float32 => f.write_str("float32"),
            ValueType::Float64 => f.write_str("float64"),
            ValueType::Text | ValueType::Binary | ValueType::Any => f.write_str("object"),
            ValueType::List(inner) => write!(f, "Array({inner})"),
        }
    }
}

const INT32: ValueType = ValueType::Integer { bits: 32, is_signed: true };
const INT64: ValueType = ValueType::Integer { bits: 64, is_signed: true };

impl ValueType {
    /// The type of a column.
    pub(super) fn of_column(column: &ColumnType) -> Self {
        match column {
            ColumnType::Boolean => ValueType::Bool,
            ColumnType::Integer => INT32,
            ColumnType::Long => INT64,
            ColumnType::Float => ValueType::Float32,
            ColumnType::Double => ValueType::Float64,
            ColumnType::String => ValueType::Text,
            ColumnType::Binary => ValueType::Binary,
            ColumnType::Array(inner) => ValueType::List(Box::new(ValueType::of_column(inner))),
            ColumnType::SparkVector => ValueType::List(Box::new(ValueType::Float64)),
            ColumnType::Datetime | ColumnType::Other(_) => ValueType::Any,
        }
    }

    /// The type that NumPy calls `name`.
    pub(super) fn of_numpy(name: &str) -> Self {
        match name {
            "bool" => return ValueType::Bool,
            "float64" => return ValueType::Float64,
            "float32" => return ValueType::Float32,
            _ => {}
        }
        if name.starts_with("str") || name.starts_with("<U") {
            return ValueType::Text;
        }
        let unsigned = name.strip_prefix("uint");
        let bits = unsigned.or_else(|| name.strip_prefix("int")).and_then(|bits| bits.parse().ok());
        match bits {
            Some(bits @ (8 | 16 | 32 | 64)) => {
                ValueType::Integer { bits, is_signed: unsigned.is_none() }
            }
            _ => ValueType::Any,
        }
    }

    /// Converts `value`.
    ///
    /// # Errors
    /// Why it cannot be converted, in Python's words.
    pub(super) fn convert(&self, value: &mut Node<'_>) -> Result<(), String> {
        match (self, &mut *value) {
            (ValueType::List(inner), Node::List(list)) => {
                return list.iter_mut().try_for_each(|value| inner.convert(value));
            }
            (ValueType::List(_), other) => {
                let kind = other.type_name();
                return Err(format!("Expected data to be list or numpy array, got {kind}"));
            }
            (ValueType::Any, _) => return Ok(()),
            (_, Node::List(_)) => {
                return Err("setting an array element with a sequence.".to_owned());
            }
            _ => {}
        }
        *value = match self {
            ValueType::Float64 => Node::Float(float(value)?),
            #[allow(clippy::cast_possible_truncation)] // What the type means.
            ValueType::Float32 => Node::Float(f64::from(float(value)? as f32)),
            ValueType::Integer { bits, is_signed } => {
                let number = integer(value)?;
                let fits = match is_signed {
                    true => number >> (bits - 1) == 0 || number >> (bits - 1) == -1,
                    false => number >= 0 && (*bits == 64 || number >> bits == 0),
                };
                if !fits {
                    return Err(format!("Python integer {number} out of bounds for {self}"));
                }
                Node::Int(number)
            }
            ValueType::Bool => Node::Bool(truth(value)),
            ValueType::Binary => Node::Text(Cow::Owned(bytes(value)?)),
            ValueType::Text if matches!(value, Node::Text(_)) => return Ok(()),
            ValueType::Text => Node::Text(Cow::Owned(text(value)?)),
            ValueType::List(_) | ValueType::Any => return Ok(()),
        };
        Ok(())
    }
}

/// As a double; a missing value is NaN.
pub(super) fn float(value: &Node<'_>) -> Result<f64, String> {
    match value {
        Node::Null => Ok(f64::NAN),
        Node::Bool(bool) => Ok(f64::from(u8::from(*bool))),
        #[allow(clippy::cast_precision_loss)] // As NumPy converts.
        Node::Int(number) => Ok(*number as f64),
        Node::Float(number) => Ok(*number),
        Node::Text(text) => {
            let shown = String::from_utf8_lossy(text);
            let parsed = shown.trim().parse::<f64>();
            parsed.map_err(|_| format!("could not convert string to float: '{shown}'"))
        }
        Node::List(_) => Err("setting an array element with a sequence.".to_owned()),
        Node::Object(_) => {
            Err("float() argument must be a string or a real number, not 'dict'".to_owned())
        }
    }
}

/// As an integer; a fraction is truncated.
fn integer(value: &Node<'_>) -> Result<i64, String> {
    match value {
        Node::Bool(bool) => Ok(i64::from(*bool)),
        Node::Int(number) => Ok(*number),
        #[allow(clippy::cast_possible_truncation)] // Checked.
        Node::Float(number) if number.abs() < 9.3e18 => Ok(*number as i64),
        Node::Float(_) => Err("Cannot convert non-finite values (NA or inf) to integer".to_owned()),
        Node::Text(text) => {
            let shown = String::from_utf8_lossy(text);
            let parsed = shown.trim().parse::<i64>();
            parsed.map_err(|_| format!("invalid literal for int() with base 10: '{shown}'"))
        }
        Node::Null | Node::List(_) | Node::Object(_) => Err(format!(
            "int() argument must be a string, a bytes-like object or a real number, not '{}'",
            value.type_name()
        )),
    }
}

fn truth(value: &Node<'_>) -> bool {
    match value {
        Node::Null => false,
        Node::Bool(bool) => *bool,
        Node::Int(number) => *number != 0,
        Node::Float(number) => *number != 0.0,
        Node::Text(text) => !text.is_empty(),
        Node::List(list) => !list.is_empty(),
        Node::Object(members) => !members.is_empty(),
    }
}

/// The text that NumPy makes of a value, as Python's `str`.
fn text(value: &Node<'_>) -> Result<Vec<u8>, String> {
    Ok(match value {
        Node::Null => b"None".to_vec(),
        Node::Bool(bool) => if *bool { "True" } else { "False" }.into(),
        Node::Int(number) => number.to_string().into_bytes(),
        Node::Float(number) if number.is_finite() => {
            let mut text = Vec::new();
            float::python(*number, &mut text);
            text
        }
        // `nan`, `inf`, `-inf`.
        Node::Float(number) => number.to_string().to_lowercase().into_bytes(),
        Node::Text(text) => text.to_vec(),
        Node::List(_) | Node::Object(_) => {
            return Err(format!("a value of type {} is not text", value.type_name()));
        }
    })
}

/// The bytes of base64.
fn bytes(value: &Node<'_>) -> Result<Vec<u8>, String> {
    let Node::Text(text) = value else {
        return Err("encoding without a string argument".to_owned());
    };
    let mut decoded = Vec::new();
    let outcome = base64::decode(text, Alphabet::Standard, &mut decoded);
    outcome.map_err(|_| "Incorrect padding".to_owned()).map(|()| decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::DType;

    #[test]
    fn numpy_names_of_all_types_are_known() {
        let integer = |bits, is_signed| ValueType::Integer { bits, is_signed };
        for dtype in DType::ALL {
            let expected = match dtype {
                DType::Bool => ValueType::Bool,
                DType::Float => ValueType::Float32,
                DType::Double => ValueType::Float64,
                DType::Int8 => integer(8, true),
                DType::Int16 => integer(16, true),
                DType::Int32 => integer(32, true),
                DType::Int64 => integer(64, true),
                DType::UInt8 => integer(8, false),
                DType::UInt16 => integer(16, false),
                DType::UInt32 => integer(32, false),
                DType::UInt64 => integer(64, false),
                DType::String => ValueType::Text,
                DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => {
                    ValueType::Any
                }
            };
            assert_eq!(ValueType::of_numpy(dtype.python_name()), expected, "{dtype}");
        }
    }
}
