//! Element types.

use std::fmt;

/// Declares [`DType`] and, from the same list, [`DType::ALL`]: no variant can be missing there.
macro_rules! dtypes {
    ($($variant:ident),* $(,)?) => {
        /// Element type of a tensor. Numbers and names are those of TensorFlow's `DataType`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum DType {
            $($variant),*
        }

        impl DType {
            /// Every supported type.
            pub const ALL: [DType; [$(DType::$variant),*].len()] = [$(DType::$variant),*];
        }
    };
}

dtypes! {
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

/// What an element of a type is in JSON: complex numbers, which have no form there, count as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum JsonKind {
    Bool,
    String,
    Number,
}

/// What `DataType` adds to a type's number for a reference to it (variables of TensorFlow 1).
const REFERENCE_OFFSET: i32 = 100;

impl DType {
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

    /// What an element is in JSON.
    #[must_use]
    pub fn json_kind(self) -> JsonKind {
        match self {
            DType::Bool => JsonKind::Bool,
            DType::String => JsonKind::String,
            DType::Float
            | DType::Double
            | DType::Half
            | DType::BFloat16
            | DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Complex64
            | DType::Complex128 => JsonKind::Number,
        }
    }

    /// Whether an element is an integer or a boolean: exact, and never NaN.
    #[must_use]
    pub fn is_integer_or_bool(self) -> bool {
        match self {
            DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Bool => true,
            DType::Float
            | DType::Double
            | DType::Half
            | DType::BFloat16
            | DType::Complex64
            | DType::Complex128
            | DType::String => false,
        }
    }

    /// Whether an element is a real floating-point number.
    #[must_use]
    pub fn is_float(self) -> bool {
        match self {
            DType::Float | DType::Double | DType::Half | DType::BFloat16 => true,
            DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Bool
            | DType::Complex64
            | DType::Complex128
            | DType::String => false,
        }
    }

    /// Whether an element is two floats, the real and the imaginary part.
    #[must_use]
    pub fn is_complex(self) -> bool {
        match self {
            DType::Complex64 | DType::Complex128 => true,
            DType::Float
            | DType::Double
            | DType::Half
            | DType::BFloat16
            | DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Bool
            | DType::String => false,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn numbers_and_names_lead_back_to_their_types() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_number(dtype.number()), Some(dtype));
            assert_eq!(DType::from_number(dtype.number() + REFERENCE_OFFSET), Some(dtype));
            for name in [DType::name, DType::python_name] {
                let same = DType::ALL.into_iter().filter(|other| name(*other) == name(dtype));
                assert_eq!(same.count(), 1, "{dtype}");
            }
        }
    }

    /// The Python client's tensors, which have tables of the same types.
    const MESSAGES: &str = include_str!("../../../python/tensorserve/messages.py");

    /// The quantized types by number, which the client reads as plain integers, and the server does not have.
    const QUANTIZED: [(i32, &str, &str); 5] = [
        (11, "DT_QINT8", "int8"),
        (12, "DT_QUINT8", "uint8"),
        (13, "DT_QINT32", "int32"),
        (15, "DT_QINT16", "int16"),
        (16, "DT_QUINT16", "uint16"),
    ];

    /// The entries `key: value` of the dictionary `name` in a Python file, without quotes.
    fn dictionary(name: &str) -> BTreeMap<&'static str, &'static str> {
        let start = format!("\n{name} = {{\n");
        let (_, after) = MESSAGES.split_once(&start).expect("the dictionary");
        let (entries, _) = after.split_once("\n}").expect("its end");
        let entry = |line: &'static str| {
            let (key, value) =
                line.trim().trim_end_matches(',').split_once(": ").expect("an entry");
            (key.trim_matches('"'), value.trim_matches('"'))
        };
        entries.lines().map(entry).collect()
    }

    /// The value of the constant `name` in the Python file.
    fn constant(name: &str) -> Option<&'static str> {
        let (_, value) = MESSAGES.split_once(&format!("\n{name} = "))?;
        value.lines().next()
    }

    #[test]
    fn the_python_client_has_the_same_types() {
        let mut numpy: BTreeMap<String, &str> = BTreeMap::new();
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for dtype in DType::ALL {
            // Arrays of texts are arrays of objects.
            let kind = if dtype == DType::String { "object" } else { dtype.python_name() };
            numpy.insert(dtype.number().to_string(), kind);
            names.insert(format!("DT_{}", dtype.name().to_uppercase()), dtype.number().to_string());
        }
        for (number, name, kind) in QUANTIZED {
            assert_eq!(DType::from_number(number), None, "{name}");
            numpy.insert(number.to_string(), kind);
            names.insert(name.to_owned(), number.to_string());
        }
        let found = dictionary("_DTYPES").into_iter().map(|(key, kind)| (key.to_owned(), kind));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), numpy, "_DTYPES");
        // Some numbers are constants there.
        let number = |value: &'static str| constant(value).unwrap_or(value).to_owned();
        let found = dictionary("_NAMES").into_iter();
        let found = found.map(|(name, value)| (name.to_owned(), number(value)));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), names, "_NAMES");
    }
}
