//! The protocol's names of element types.

use tensorserve_tensor::DType;

/// The protocol's name of a type. It has none for complex numbers, which get TensorFlow's in capitals.
#[must_use]
pub fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "BOOL",
        DType::UInt8 => "UINT8",
        DType::UInt16 => "UINT16",
        DType::UInt32 => "UINT32",
        DType::UInt64 => "UINT64",
        DType::Int8 => "INT8",
        DType::Int16 => "INT16",
        DType::Int32 => "INT32",
        DType::Int64 => "INT64",
        DType::Half => "FP16",
        DType::Float => "FP32",
        DType::Double => "FP64",
        DType::BFloat16 => "BF16",
        DType::String => "BYTES",
        DType::Complex64 => "COMPLEX64",
        DType::Complex128 => "COMPLEX128",
    }
}

/// The type with this name; `None` for others, and for those that clients cannot send.
pub(super) fn of_name(name: &str) -> Option<DType> {
    let mut all = DType::ALL.into_iter().filter(|dtype| !dtype.is_complex());
    all.find(|dtype| name_of(*dtype) == name)
}

/// Whether values of the type have no form in JSON, nor among the typed contents of gRPC.
pub(super) fn is_raw_only(dtype: DType) -> bool {
    match dtype {
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => true,
        DType::Float
        | DType::Double
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_types() {
        let sent = DType::ALL.into_iter().filter(|dtype| of_name(name_of(*dtype)).is_some());
        assert_eq!(sent.count(), 14);
        assert_eq!(of_name("FP32"), Some(DType::Float));
        for name in ["", "fp32", "FLOAT32", "COMPLEX64", "STRING"] {
            assert_eq!(of_name(name), None, "{name}");
        }
    }
}
