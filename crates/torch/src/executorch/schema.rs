//! The numbers of ExecuTorch's schema (`program.fbs`): fields of tables, and members of unions.

/// What follows the first four bytes of a file.
pub(super) const IDENTIFIER: &[u8] = b"ET12";

/// The fields of `Program`.
pub(super) mod program {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const EXECUTION_PLAN: usize = 1;
}

/// The fields of `ExecutionPlan`, which is a method.
pub(super) mod plan {
    pub(crate) const NAME: usize = 0;
    pub(crate) const CONTAINER: usize = 1;
    pub(crate) const VALUES: usize = 2;
    pub(crate) const INPUTS: usize = 3;
    pub(crate) const OUTPUTS: usize = 4;
    pub(crate) const OPERATORS: usize = 6;
    pub(crate) const DELEGATES: usize = 7;
    pub(crate) const BUFFER_SIZES: usize = 8;
}

/// The fields of `ContainerMetadata`.
pub(super) mod container {
    pub(crate) const INPUTS: usize = 0;
    pub(crate) const OUTPUTS: usize = 1;
}

/// The fields of `EValue`, a union, and its member `Tensor`.
pub(super) mod value {
    pub(crate) const KIND: usize = 0;
    pub(crate) const VALUE: usize = 1;
    pub(crate) const TENSOR: u8 = 5;
}

/// The fields of `Tensor`.
pub(super) mod tensor {
    pub(crate) const SCALAR_TYPE: usize = 0;
    pub(crate) const SIZES: usize = 2;
    pub(crate) const DIM_ORDER: usize = 3;
    pub(crate) const DYNAMISM: usize = 8;
    pub(crate) const EXTRA: usize = 9;
}

/// The fields of `ExtraTensorInfo`.
pub(super) mod extra {
    pub(crate) const NAME: usize = 1;
    pub(crate) const LOCATION: usize = 2;
    pub(crate) const EXTERNAL: u8 = 1;
}

/// The fields of `Operator`.
pub(super) mod operator {
    pub(crate) const NAME: usize = 0;
    pub(crate) const OVERLOAD: usize = 1;
}

/// The field of `BackendDelegate`.
pub(super) mod delegate {
    pub(crate) const ID: usize = 0;
}
