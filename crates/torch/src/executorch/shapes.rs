//! Which sizes of a method's inputs vary. A program has the largest sizes only, and whether any of them varies:
//! runs on zeros show which ones do.

use std::collections::BTreeSet;

use super::program::{MethodPort, ProgramMethod};
use crate::package::DimCheck;
use tensorserve_platform::synthetic_input;
use tensorserve_tensor::{DeclaredShape, Signature, Tensor, TensorSpec};

/// What each dimension of each input may be. `works` says whether a run on these inputs succeeds.
///
/// Dimensions that vary together have the same largest size: those of rows, and those of all others.
pub(super) fn dims(
    method: &ProgramMethod,
    works: impl Fn(&[Tensor]) -> bool,
) -> Vec<Vec<DimCheck>> {
    let ports = &method.inputs;
    let mut fixed: BTreeSet<(bool, i64)> = BTreeSet::new();
    for group in groups(ports) {
        let (is_rows, most) = group;
        let smaller = if is_rows { 1 } else { most - 1 };
        let sizes = ports.iter().map(|port| {
            let sizes = port.sizes.iter().enumerate();
            sizes.map(|(axis, size)| match port.varies && (axis == 0, *size) == group {
                true => smaller,
                false => *size,
            })
        });
        let sizes: Vec<Vec<i64>> = sizes.map(Iterator::collect).collect();
        // What is too large to be tried is left to the program.
        if zeros(ports, &sizes).is_some_and(|inputs| !works(&inputs)) {
            fixed.insert(group);
        }
    }
    let takes_one = takes_one(method);
    let check = |port: &MethodPort, axis: usize, size: i64| {
        let varies = port.varies && size > 1 && !fixed.contains(&(axis == 0, size));
        match varies || (takes_one && axis == 0) {
            true => DimCheck::up_to(size),
            false => DimCheck::only(size),
        }
    };
    let of_port = |port: &MethodPort| {
        let sizes = port.sizes.iter().enumerate();
        sizes.map(|(axis, size)| check(port, axis, *size)).collect()
    };
    ports.iter().map(of_port).collect()
}

/// The sizes that may vary: whether they are those of rows, and the largest size.
fn groups(ports: &[MethodPort]) -> BTreeSet<(bool, i64)> {
    let varying = ports.iter().filter(|port| port.varies);
    let sizes = varying.flat_map(|port| port.sizes.iter().enumerate());
    sizes.filter(|(_, size)| **size > 1).map(|(axis, size)| (axis == 0, *size)).collect()
}

/// Zeros of these sizes for all inputs; `None` if they would be large.
fn zeros(ports: &[MethodPort], sizes: &[Vec<i64>]) -> Option<Vec<Tensor>> {
    let nothing = Signature::only(Vec::new(), Vec::new());
    let zeros = ports.iter().zip(sizes).map(|(port, sizes)| {
        let spec = TensorSpec::new(port.name.clone(), port.dtype, sizes);
        synthetic_input(&spec, &nothing, sizes)
    });
    zeros.collect()
}

/// Whether a method takes one row at a time, as most programs for phones do: the first size of all inputs and
/// outputs is 1. Requests of more rows are runs of their own.
pub(super) fn takes_one(method: &ProgramMethod) -> bool {
    let mut ports = method.inputs.iter().chain(&method.outputs);
    !method.writes_state && ports.all(|port| port.sizes.first() == Some(&1))
}

/// Lets the rows of an output vary.
pub(super) fn open_rows(spec: &mut TensorSpec) {
    if let DeclaredShape::Dims(dims) = &mut spec.shape
        && let Some((size @ 1, _)) = dims.first_mut()
    {
        *size = -1;
    }
}
