//! Element types.

use std::fmt;

/// Element type of a tensor. Numbers and names are those of TensorFlow's `DataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    Float,
    Double,
    Int32,
    UInt8,
    Int16,
    Int8,
    String,
    Complex64,
    Int64,
    Bool,
    BFloat16,
    UInt16,
    Complex128,
    Half,
    UInt32,
    UInt64,
}

/// What `DataType` adds to a type's number for a reference to it (variables of TensorFlow 1).
const REFERENCE_OFFSET: i32 = 100;

impl DType {
    /// Every supported type.
    pub const ALL: [DType; 16] = [
        DType::Float,
        DType::Double,
        DType::Int32,
        DType::UInt8,
        DType::Int16,
        DType::Int8,
        DType::String,
        DType::Complex64,
        DType::Int64,
        DType::Bool,
        DType::BFloat16,
        DType::UInt16,
        DType::Complex128,
        DType::Half,
        DType::UInt32,
        DType::UInt64,
    ];

    /// Bytes per element; `None` for strings.
    #[must_use]
    pub fn size(self) -> Option<usize> {
        match self {
            DType::String => None,
            DType::Bool | DType::UInt8 | DType::Int8 => Some(1),
            DType::Int16 | DType::UInt16 | DType::Half | DType::BFloat16 => Some(2),
            DType::Float | DType::Int32 | DType::UInt32 => Some(4),
            DType::Double | DType::Int64 | DType::UInt64 | DType::Complex64 => Some(8),
            DType::Complex128 => Some(16),
        }
    }

    /// The type's number in TensorFlow's `DataType`.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            DType::Float => 1,
            DType::Double => 2,
            DType::Int32 => 3,
            DType::UInt8 => 4,
            DType::Int16 => 5,
            DType::Int8 => 6,
            DType::String => 7,
            DType::Complex64 => 8,
            DType::Int64 => 9,
            DType::Bool => 10,
            DType::BFloat16 => 14,
            DType::UInt16 => 17,
            DType::Complex128 => 18,
            DType::Half => 19,
            DType::UInt32 => 22,
            DType::UInt64 => 23,
        }
    }

    /// The type with this number in TensorFlow's `DataType`; a reference type maps to its value
    /// type. `None` for types that a request or a response cannot hold (resource, variant,
    /// quantized, invalid).
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        let value = if number > REFERENCE_OFFSET { number - REFERENCE_OFFSET } else { number };
        DType::ALL.into_iter().find(|dtype| dtype.number() == value)
    }

    /// TensorFlow's short name: `float`, `int32`, `half`, …
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DType::Float => "float",
            DType::Double => "double",
            DType::Int32 => "int32",
            DType::UInt8 => "uint8",
            DType::Int16 => "int16",
            DType::Int8 => "int8",
            DType::String => "string",
            DType::Complex64 => "complex64",
            DType::Int64 => "int64",
            DType::Bool => "bool",
            DType::BFloat16 => "bfloat16",
            DType::UInt16 => "uint16",
            DType::Complex128 => "complex128",
            DType::Half => "half",
            DType::UInt32 => "uint32",
            DType::UInt64 => "uint64",
        }
    }

    /// The type's name in NumPy and in TensorFlow's Python API, such as `float32`.
    #[must_use]
    pub fn python_name(self) -> &'static str {
        match self {
            DType::Float => "float32",
            DType::Double => "float64",
            DType::Half => "float16",
            DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::BFloat16
            | DType::Bool
            | DType::String
            | DType::Complex64
            | DType::Complex128 => self.name(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
