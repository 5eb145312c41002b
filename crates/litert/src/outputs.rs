//! The memory of a function's outputs: how large it must be, and the tensors in it.

use std::sync::Arc;

use super::model::FunctionPort;
use super::rewrite::PARTS;
use super::strings;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{AlignedVec, Buffer, Shape, Tensor, aligned_vec};

/// The size of a dimension in memory.
const WORD: usize = 4;

/// Memory for the shape of an output: what the library does not write stays negative.
const SHAPE_BYTES: usize = 64;
const UNWRITTEN: u8 = 0xff;

/// A dimension of which nothing is known is taken to have this size, a string this many bytes.
const GUESS: usize = 64;

/// The most memory that is made for what a model only declares.
const MOST_GUESSED: usize = 16 << 20;

/// How much larger the memory becomes where it was too small.
const GROWTH: usize = 4;

/// The least memory after it was too small.
const LEAST: usize = 4 << 10;

/// The sizes of the memory for the outputs `ports` of a function with these inputs: exact where the model
/// declares all sizes but that of the batch.
pub(super) fn sizes(ports: &[FunctionPort], inputs: &[Tensor]) -> Vec<usize> {
    let rows = inputs.first().and_then(Tensor::rows).unwrap_or(1);
    let size = |port: &FunctionPort| {
        let sizes =
            port.sizes.iter().enumerate().map(|(axis, size)| match usize::try_from(*size) {
                Ok(size) => size,
                Err(_) if axis == 0 => rows,
                Err(_) => GUESS,
            });
        let count = sizes.fold(1_usize, usize::saturating_mul);
        let width = port.dtype.size().unwrap_or(GUESS);
        count.saturating_mul(width).clamp(SHAPE_BYTES, MOST_GUESSED)
    };
    ports.iter().map(size).collect()
}

/// The sizes to try after `sizes` were too small; `None` if that is hopeless.
pub(super) fn larger(sizes: &[usize]) -> Option<Vec<usize>> {
    let grown = sizes.iter().map(|size| size.saturating_mul(GROWTH).max(LEAST));
    let grown: Vec<usize> = grown.collect();
    let is_possible = grown.iter().all(|size| i32::try_from(*size).is_ok());
    is_possible.then_some(grown)
}

/// Memory for the shape and the content of each output.
pub(super) fn memory(sizes: &[usize]) -> Vec<AlignedVec<u8>> {
    let filled = |size: usize, value: u8| {
        let mut memory = aligned_vec(size);
        memory.resize(size, value);
        memory
    };
    sizes.iter().flat_map(|&size| [filled(SHAPE_BYTES, UNWRITTEN), filled(size, 0)]).collect()
}

/// The tensors in the memory, after a run.
///
/// # Errors
/// If the library has written something else than the model declares.
pub(super) fn tensors(ports: &[FunctionPort], memory: Vec<AlignedVec<u8>>) -> Result<Vec<Tensor>> {
    let mut parts = memory.into_iter();
    let mut tensors = Vec::with_capacity(ports.len());
    for port in ports {
        let (Some(shape), Some(content)) = (parts.next(), parts.next()) else {
            return Err(Error::internal(format!("an output needs {PARTS} parts")));
        };
        tensors.push(tensor(port, &shape, content)?);
    }
    Ok(tensors)
}

fn tensor(port: &FunctionPort, shape: &[u8], mut content: AlignedVec<u8>) -> Result<Tensor> {
    let words = shape.as_chunks::<WORD>().0.iter().map(|word| i64::from(i32::from_le_bytes(*word)));
    let dims: Vec<i64> = words.take_while(|size| *size >= 0).collect();
    let shape = Shape::new(&dims)?;
    let count = shape.elements()?;
    let Some(width) = port.dtype.size() else {
        return Tensor::from_strings(shape, strings::unpack(&content, count)?);
    };
    let length = count.saturating_mul(width);
    if length > content.len() {
        let alias = &port.alias;
        return Err(Error::internal(format!("output {alias:?} of shape {shape:?} is incomplete")));
    }
    content.truncate(length);
    Tensor::numeric(port.dtype, shape, Buffer::new(Arc::new(content)))
}
