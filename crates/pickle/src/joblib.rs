//! Arrays in joblib files: a pickled `NumpyArrayWrapper` describes the array whose data follows it in
//! the file (`joblib/numpy_pickle.py`).

use std::sync::Arc;

use super::array::{NumpyArray, NumpyDtype, dtype_kind};
use super::reader::{OpcodeError, OpcodeResult, damaged, unsupported};
use super::unpickler::Unpickler;
use super::{PickleId, PickleNode};

/// The value of `order` for arrays in Fortran order: the first dimension varies fastest.
const FORTRAN_ORDER: &str = "F";

/// What a `NumpyArrayWrapper` records.
struct ArrayWrapper {
    dtype: Arc<NumpyDtype>,
    shape: Vec<usize>,
    fortran_order: bool,
    /// Whether a byte with the length of the padding, and that padding, precede the data.
    is_padded: bool,
}

impl Unpickler {
    /// Reads the array behind `wrapper`, and puts it in the place of the wrapper, if `wrapper` is one.
    pub(super) fn read_joblib_array(&mut self, wrapper: PickleId) -> OpcodeResult<()> {
        let PickleNode::Object(object) = self.node(wrapper)? else { return Ok(()) };
        let Some((module, class)) = object.class.rsplit_once('.') else { return Ok(()) };
        if !module.ends_with("numpy_pickle") && !module.ends_with("numpy_pickle_compat") {
            return Ok(());
        }
        match class {
            "NumpyArrayWrapper" if !self.is_nested => {}
            "NDArrayWrapper" | "ZNDArrayWrapper" => {
                return unsupported(
                    "arrays in files of their own, of joblib before 0.10, are not supported: load and \
                     save the model again with a later joblib",
                );
            }
            _ => return Ok(()),
        }
        let Some(state) = object.state else { return Ok(()) };
        let description = self.read_array_wrapper(state)?;
        if description.dtype.kind() == dtype_kind::OBJECT {
            let array = self.run_nested()?;
            self.pop()?;
            self.stack.push(array);
            return Ok(());
        }
        if description.is_padded {
            let padding = self.reader.byte()?;
            self.reader.take(padding.into())?;
        }
        let Some(length) = description.dtype.byte_len(&description.shape) else {
            return damaged("the size of an array is out of range");
        };
        let data = self.reader.take(length)?;
        let ArrayWrapper { dtype, shape, fortran_order, .. } = description;
        let Some(array) = NumpyArray::from_bytes(dtype, shape, fortran_order, data) else {
            return damaged("the data of an array does not match its shape");
        };
        *self.node_mut(wrapper)? = PickleNode::Array(Box::new(array));
        Ok(())
    }

    fn read_array_wrapper(&self, state: PickleId) -> OpcodeResult<ArrayWrapper> {
        let (mut element, mut shape) = (None, None);
        let (mut fortran_order, mut is_padded) = (false, false);
        let PickleNode::Dict(entries) = self.node(state)? else {
            return damaged("a NumpyArrayWrapper has no attributes");
        };
        for (key, value) in entries {
            let key = match self.node(*key)? {
                PickleNode::Text(text) => text.as_bytes(),
                PickleNode::Bytes(bytes) => bytes,
                _ => continue,
            };
            match (key, self.node(*value)?) {
                (b"dtype", PickleNode::Dtype(dtype)) => element = Some(Arc::clone(dtype)),
                (b"shape", PickleNode::Tuple(dims)) => shape = Some(self.shape(dims)?),
                (b"order", PickleNode::Text(order)) => fortran_order = order == FORTRAN_ORDER,
                (b"order", PickleNode::Bytes(order)) => fortran_order = order == FORTRAN_ORDER,
                (b"numpy_array_alignment_bytes", PickleNode::Int(_)) => is_padded = true,
                _ => {}
            }
        }
        match (element, shape) {
            (Some(dtype), Some(shape)) => {
                Ok(ArrayWrapper { dtype, shape, fortran_order, is_padded })
            }
            _ => damaged("a NumpyArrayWrapper has no dtype or no shape"),
        }
    }

    /// Executes the plain pickle of an array of objects, which a joblib file embeds.
    fn run_nested(&mut self) -> OpcodeResult<PickleId> {
        let stack = std::mem::take(&mut self.stack);
        let marks = std::mem::take(&mut self.marks);
        let memo = std::mem::take(&mut self.memo);
        self.is_nested = true;
        let outcome = self.run();
        self.is_nested = false;
        (self.stack, self.marks, self.memo) = (stack, marks, memo);
        outcome.map_err(|error| OpcodeError {
            code: error.code(),
            reason: format!("in the array of objects: {}", error.message()).into(),
        })
    }
}
