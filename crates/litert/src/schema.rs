//! The numbers of TensorFlow Lite's schema (`schema.fbs`, version 3): fields of tables, types of elements,
//! operators.

use tensorserve_tensor::DType;

/// What follows the first four bytes of a file.
pub(super) const IDENTIFIER: &[u8] = b"TFL3";

/// The fields of `Model`.
pub(super) mod model {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const OPERATOR_CODES: usize = 1;
    pub(crate) const SUBGRAPHS: usize = 2;
    pub(crate) const DESCRIPTION: usize = 3;
    pub(crate) const BUFFERS: usize = 4;
    pub(crate) const METADATA: usize = 6;
    pub(crate) const SIGNATURES: usize = 7;
}

/// The fields of `OperatorCode`.
pub(super) mod operator_code {
    pub(crate) const OLD_BUILTIN: usize = 0;
    pub(crate) const CUSTOM: usize = 1;
    pub(crate) const VERSION: usize = 2;
    pub(crate) const BUILTIN: usize = 3;
}

/// The fields of `SubGraph`.
pub(super) mod subgraph {
    pub(crate) const TENSORS: usize = 0;
    pub(crate) const INPUTS: usize = 1;
    pub(crate) const OUTPUTS: usize = 2;
    pub(crate) const OPERATORS: usize = 3;
    pub(crate) const NAME: usize = 4;
}

/// The fields of `Tensor`.
pub(super) mod tensor {
    pub(crate) const SHAPE: usize = 0;
    pub(crate) const TYPE: usize = 1;
    pub(crate) const BUFFER: usize = 2;
    pub(crate) const NAME: usize = 3;
    pub(crate) const QUANTIZATION: usize = 4;
    pub(crate) const IS_VARIABLE: usize = 5;
    pub(crate) const SHAPE_SIGNATURE: usize = 7;
    pub(crate) const EXTERNAL_BUFFER: usize = 10;
}

/// The fields of `QuantizationParameters`.
pub(super) mod quantization {
    pub(crate) const SCALE: usize = 2;
    pub(crate) const ZERO_POINT: usize = 3;
}

/// The fields of `Operator`.
pub(super) mod operator {
    pub(crate) const CODE: usize = 0;
    pub(crate) const INPUTS: usize = 1;
    pub(crate) const OUTPUTS: usize = 2;
    pub(crate) const OPTIONS_TYPE: usize = 3;
    pub(crate) const OPTIONS: usize = 4;
    pub(crate) const INTERMEDIATES: usize = 7;
    pub(crate) const LARGE_OPTIONS: usize = 9;
}

/// The fields of `Buffer`.
pub(super) mod buffer {
    pub(crate) const DATA: usize = 0;
    pub(crate) const OFFSET: usize = 1;
    pub(crate) const SIZE: usize = 2;
}

/// The fields of `Metadata`.
pub(super) mod metadata {
    pub(crate) const NAME: usize = 0;
    pub(crate) const BUFFER: usize = 1;
}

/// The fields of `SignatureDef`.
pub(super) mod signature {
    pub(crate) const INPUTS: usize = 0;
    pub(crate) const OUTPUTS: usize = 1;
    pub(crate) const KEY: usize = 2;
    pub(crate) const SUBGRAPH: usize = 4;
}

/// The fields of `TensorMap`.
pub(super) mod tensor_map {
    pub(crate) const NAME: usize = 0;
    pub(crate) const TENSOR: usize = 1;
}

/// Numbers of `BuiltinOperator`.
pub(super) const RESHAPE: i32 = 22;
pub(super) const CALL: i32 = 31;
pub(super) const CUSTOM: i32 = 32;
pub(super) const SHAPE: i32 = 77;
pub(super) const IF: i32 = 118;
pub(super) const WHILE: i32 = 119;
pub(super) const ASSIGN_VARIABLE: i32 = 144;
pub(super) const RANDOM_STANDARD_NORMAL: i32 = 146;
pub(super) const RANDOM_UNIFORM: i32 = 148;
pub(super) const MULTINOMIAL: i32 = 149;
pub(super) const STABLEHLO_CUSTOM_CALL: i32 = 173;
/// From this number on, operators are those of StableHLO, some of which run other subgraphs.
pub(super) const FIRST_STABLEHLO: i32 = 162;

/// The number of a type in the file (`TensorType`) and in LiteRT's C API (`LiteRtElementType`); `None` for
/// one that is not supported.
fn numbers(dtype: DType) -> Option<(u8, i32)> {
    match dtype {
        DType::Float => Some((0, 1)),
        DType::Half => Some((1, 10)),
        DType::Int32 => Some((INT32, 2)),
        DType::UInt8 => Some((3, 3)),
        DType::Int64 => Some((INT64, 4)),
        DType::String => Some((STRING, 5)),
        DType::Bool => Some((BOOL, 6)),
        DType::Int16 => Some((7, 7)),
        DType::Int8 => Some((9, 9)),
        DType::Double => Some((10, 11)),
        DType::UInt64 => Some((12, 13)),
        DType::UInt32 => Some((15, 16)),
        DType::UInt16 => Some((16, 17)),
        DType::BFloat16 => Some((18, 19)),
        DType::Complex64 | DType::Complex128 => None,
    }
}

/// `TensorType` of elements that are not supported, for messages.
const UNSUPPORTED: [(u8, &str); 9] = [
    (8, "complex64"),
    (11, "complex128"),
    (13, "resource"),
    (14, "variant"),
    (17, "int4"),
    (19, "int2"),
    (20, "uint4"),
    (21, "float8_e4m3fn"),
    (22, "float8_e5m2"),
];

/// Numbers of `TensorType`.
pub(super) const INT32: u8 = 2;
pub(super) const INT64: u8 = 4;
pub(super) const BOOL: u8 = 6;
pub(super) const STRING: u8 = 5;

/// `ReshapeOptions` in `BuiltinOptions`, and its field.
pub(super) const RESHAPE_OPTIONS: u8 = 17;
pub(super) const NEW_SHAPE: usize = 0;

/// `ShapeOptions` in `BuiltinOptions`, and its field.
pub(super) const SHAPE_OPTIONS: u8 = 55;
pub(super) const OUT_TYPE: usize = 0;

/// The type of a tensor's elements in the file.
pub(super) fn dtype(number: u8) -> Option<DType> {
    let is_stored = |dtype: &DType| numbers(*dtype).is_some_and(|(stored, _)| stored == number);
    DType::ALL.into_iter().find(is_stored)
}

/// The number of a type in the C API; 0 for one that it lacks.
pub(super) fn number_in_api(dtype: DType) -> i32 {
    numbers(dtype).map_or(0, |(_, api)| api)
}

/// The name of a type in the file that is not supported.
pub(super) fn name(number: u8) -> String {
    let found = UNSUPPORTED.iter().find(|(its, _)| *its == number);
    found.map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned())
}
