//! The requests of a compiled model, of which each has the memory for one run at a time.

use std::sync::Arc;

use super::ffi::{CompiledModel, OvPort, OvRequest, PortPlace};
use tensorserve_platform::pool::InstancePool;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{Signature, TensorSpec};

/// The requests of a compiled model, for one run each.
pub(super) type RequestPool = InstancePool<OvRequest>;

/// The requests of `compiled`, whose files declare `signature`.
///
/// # Errors
/// If the library does not find the inputs and outputs of the signature by their tensors' names, or has others.
pub(super) fn pool(signature: &Signature, compiled: CompiledModel) -> Result<RequestPool> {
    let ports = |place: PortPlace, declared: &[TensorSpec]| -> Result<Arc<[OvPort]>> {
        compiled.check_count(place, declared.len())?;
        declared.iter().map(|spec| compiled.port(place, spec)).collect()
    };
    let inputs = ports(PortPlace::Input, &signature.inputs)?;
    let outputs = ports(PortPlace::Output, &signature.outputs)?;
    let (most, compiled) = (compiled.streams(), Arc::new(compiled));
    InstancePool::new(most, move || compiled.request(&inputs, &outputs))
}
