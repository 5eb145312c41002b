//! The values of constants in a graph.

use tensorserve_proto::tensorflow::ConstantProto;

/// The integers or booleans of a constant that its file has: missing ones repeat the last, or are 0. `None` for other types.
#[must_use]
pub fn integers(tensor: &ConstantProto) -> Option<Vec<i64>> {
    let content = &tensor.tensor_content;
    Some(match tensor.dtype {
        3 if content.is_empty() => tensor.int_val.iter().map(|&value| i64::from(value)).collect(),
        3 => content.as_chunks::<4>().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))).collect(),
        9 if content.is_empty() => tensor.int64_val.clone(),
        9 => content.as_chunks::<8>().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        10 if content.is_empty() => tensor.bool_val.iter().map(|&value| i64::from(value)).collect(),
        10 => content.iter().map(|&value| i64::from(value)).collect(),
        _ => return None,
    })
}
