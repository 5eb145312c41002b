//! The operations of TensorFlow that OpenVINO computes alike, and for what.
//!
//! Floats of 32 bits are computed with other roundings. Integers are computed with 32 bits, so that they may only be sizes
//! and positions, which come from constants and shapes, or the ids of a request, which operations may move and look up.

use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::{NodeDef, TensorShapeProto};
use tensorserve_savedmodel::integers;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Error, Result};

/// What is known of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Floats of 32 bits. The number of rows is that of a table in the model's files.
    Floats { rows: Option<i64> },
    /// Integers or booleans that do not depend on the values of inputs; the value of all of them, if it is known.
    Numbers { only: Option<i64> },
    /// Integers that no operation has computed.
    Ids(IdOrigins),
    /// Integers that are computed from ids, with 32 bits: nothing may depend on them.
    Sums,
    /// Booleans that depend on ids.
    Flags,
    /// A variable of floats with so many rows.
    Variable { rows: Option<i64> },
    /// No tensor.
    Nothing,
}

/// Where integers come from, in any places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdOrigins {
    /// They may be values of the inputs with these numbers.
    inputs: Vec<usize>,
    /// They may be constants from `least` to `most`, and 0.
    least: i64,
    most: i64,
}

impl IdOrigins {
    pub(super) fn input(number: usize) -> Self {
        IdOrigins { inputs: vec![number], least: 0, most: 0 }
    }

    fn constant(value: i64) -> Self {
        IdOrigins { inputs: Vec::new(), least: value.min(0), most: value.max(0) }
    }

    fn or(mut self, other: &Self) -> Self {
        self.inputs.extend(&other.inputs);
        self.inputs.sort_unstable();
        self.inputs.dedup();
        let (least, most) = (self.least.min(other.least), self.most.max(other.most));
        IdOrigins { least, most, ..self }
    }
}

impl Known {
    /// Floats that are computed.
    pub(super) fn floats() -> Self {
        Known::Floats { rows: None }
    }

    fn numbers() -> Self {
        Known::Numbers { only: None }
    }

    /// The same values in other places.
    fn moved(&self) -> Self {
        if self.is_floats() {
            return Known::floats();
        }
        if self.is_numbers() {
            return Known::numbers();
        }
        self.clone()
    }

    pub(super) fn is_floats(&self) -> bool {
        matches!(self, Known::Floats { .. })
    }

    /// Where it comes from, if it is integers that no operation has computed.
    fn origins(&self) -> Option<IdOrigins> {
        if let Known::Numbers { only: Some(value) } = self {
            return Some(IdOrigins::constant(*value));
        }
        let Known::Ids(origins) = self else { return None };
        Some(origins.clone())
    }

    fn is_numbers(&self) -> bool {
        matches!(self, Known::Numbers { .. })
    }
}

/// An operation, with what is known of its inputs.
pub(super) struct OpCall<'g> {
    pub(super) node: &'g NodeDef,
    pub(super) inputs: Vec<Known>,
}

/// What is known after an operation.
pub(super) struct OpOutcome {
    /// One for all outputs, or one for each.
    pub(super) outputs: Vec<Known>,
    /// The inputs that it takes as ids, and the number of rows of the table.
    pub(super) ids: Option<(Vec<usize>, i64)>,
}

impl OpOutcome {
    fn only(known: Known) -> Result<Self> {
        Ok(OpOutcome { outputs: vec![known], ids: None })
    }
}

/// Operations on floats alone. Those whose result jumps where an input varies (rounding, comparisons, the place of the
/// largest) are not among them: other roundings would make it another one. Sorted.
const OF_FLOATS: [&str; 38] = [
    "AddN",
    "AvgPool",
    "AvgPool3D",
    "BatchMatMul",
    "BatchMatMulV2",
    "BiasAdd",
    "Conv2D",
    "Conv3D",
    "DepthwiseConv2dNative",
    "Div",
    "Einsum",
    "Elu",
    "Erf",
    "Erfc",
    "Exp",
    "FusedBatchNorm",
    "FusedBatchNormV2",
    "FusedBatchNormV3",
    "LeakyRelu",
    "LogSoftmax",
    "MatMul",
    "MaxPool",
    "MaxPool3D",
    "Neg",
    "RealDiv",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Rsqrt",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Square",
    "SquaredDifference",
    "Tanh",
];

/// Arithmetic on floats, or on sizes and positions. Sorted.
const ARITHMETIC: [&str; 6] = ["Add", "AddV2", "Maximum", "Minimum", "Mul", "Sub"];

/// Sums and such of floats, or of sizes; the second input says along which axes. Sorted.
const REDUCTIONS: [&str; 5] = ["Max", "Mean", "Min", "Prod", "Sum"];

/// Operations that give the values of their first input at other places, which the other inputs say. Sorted.
const MOVES: [&str; 13] = [
    "BatchToSpaceND",
    "BroadcastTo",
    "ExpandDims",
    "MirrorPad",
    "Pad",
    "Reshape",
    "Slice",
    "SpaceToBatchND",
    "Squeeze",
    "StridedSlice",
    "Tile",
    "Transpose",
    "Unpack",
];

/// Comparisons of ids, sizes and positions. Sorted.
const COMPARISONS: [&str; 6] =
    ["Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"];

/// Operations on booleans. Sorted.
const LOGIC: [&str; 3] = ["LogicalAnd", "LogicalNot", "LogicalOr"];

/// Sizes of any tensor. Sorted.
const SIZES: [&str; 4] = ["Rank", "Shape", "ShapeN", "Size"];

/// What is known of the outputs of an operation.
///
/// # Errors
/// If OpenVINO may compute something else; the message continues "operation X (node)".
pub(super) fn apply(call: &OpCall<'_>) -> Result<OpOutcome> {
    check_types(call.node)?;
    let op = call.node.op.as_str();
    let is_in = |list: &[&str]| list.binary_search(&op).is_ok();
    if is_in(&OF_FLOATS) {
        return call.of_floats();
    }
    if is_in(&ARITHMETIC) {
        return call.arithmetic();
    }
    if is_in(&REDUCTIONS) {
        return call.reduction();
    }
    if is_in(&MOVES) {
        call.numbers_from(1)?;
        return OpOutcome::only(call.input(0)?.moved());
    }
    if is_in(&COMPARISONS) || is_in(&LOGIC) {
        return call.flags();
    }
    if is_in(&SIZES) {
        return OpOutcome::only(Known::numbers());
    }
    match op {
        "NoOp" => OpOutcome::only(Known::Nothing),
        "Identity" | "StopGradient" | "PreventGradient" | "Snapshot" => {
            OpOutcome::only(call.input(0)?.clone())
        }
        "IdentityN" => Ok(OpOutcome { outputs: call.inputs.clone(), ids: None }),
        "Const" => call.constant(),
        "VarHandleOp" => call.variable(),
        "ReadVariableOp" => call.read(),
        "Range" if !call.is_float("Tidx") => {
            call.numbers_from(0)?;
            OpOutcome::only(Known::numbers())
        }
        "Cast" => call.cast(),
        "Conv2DBackpropInput" => call.joined_floats(&[1, 2], &[0]),
        "ConcatV2" => call.joined(0, call.inputs.len().saturating_sub(1)),
        "Pack" => call.joined(0, call.inputs.len()),
        "PadV2" => call.joined_floats(&[0, 2], &[1]),
        "Split" => {
            call.numbers_at([0])?;
            OpOutcome::only(call.input(1)?.moved())
        }
        "SplitV" => {
            call.numbers_from(1)?;
            OpOutcome::only(call.input(0)?.moved())
        }
        "Select" | "SelectV2" => call.select(),
        "Fill" => {
            call.numbers_at([0])?;
            OpOutcome::only(call.input(1)?.moved())
        }
        "ZerosLike" | "OnesLike" if call.input(0)?.is_floats() => OpOutcome::only(Known::floats()),
        "ZerosLike" | "OnesLike" => OpOutcome::only(Known::numbers()),
        "GatherV2" => call.gather(),
        "ResourceGather" => call.gather_from_variable(),
        _ => refuse("is not one that is known to compute the same in OpenVINO"),
    }
}

fn refuse<T>(why: &'static str) -> Result<T> {
    Err(Error::unsupported(why))
}

/// Refuses types that OpenVINO computes with others.
fn check_types(node: &NodeDef) -> Result<()> {
    let plain = [DType::Float, DType::Int32, DType::Int64, DType::Bool].map(DType::number);
    let is_known = |number: i32| plain.contains(&number) || number == RESOURCE;
    for (name, attribute) in &node.attr {
        let types = match &attribute.value {
            Some(Value::Type(number)) => std::slice::from_ref(number),
            Some(Value::List(list)) => list.r#type.as_slice(),
            _ => &[],
        };
        if let Some(number) = types.iter().find(|number| !is_known(**number)) {
            return Err(Error::unsupported(format!(
                "has the type {number} in its attribute {name:?}, and OpenVINO computes floats of 32 bits"
            )));
        }
    }
    Ok(())
}

/// The first integer that is out of range for OpenVINO.
const BEYOND_32_BITS: i64 = 1 << 31;

/// The number of `DT_RESOURCE`.
const RESOURCE: i32 = 20;

impl<'g> OpCall<'g> {
    /// The function that it calls; `None` if it is no call.
    pub(super) fn called(&self) -> Option<Result<&'g str>> {
        if !matches!(self.node.op.as_str(), "PartitionedCall" | "StatefulPartitionedCall") {
            return None;
        }
        Some(match self.attribute("f") {
            Some(Value::Func(function)) => Ok(function.name.as_str()),
            _ => refuse("names no function"),
        })
    }

    fn attribute(&self, name: &str) -> Option<&'g Value> {
        self.node.attr.get(name)?.value.as_ref()
    }

    /// Whether an attribute is one of these types.
    fn is_of(&self, attribute: &str, types: &[DType]) -> bool {
        let Some(Value::Type(given)) = self.attribute(attribute) else { return false };
        types.iter().any(|dtype| dtype.number() == *given)
    }

    fn is_float(&self, attribute: &str) -> bool {
        self.is_of(attribute, &[DType::Float])
    }

    fn input(&self, index: usize) -> Result<&Known> {
        self.inputs.get(index).ok_or_else(|| Error::unsupported("has fewer inputs than it needs"))
    }

    fn numbers_at(&self, places: impl IntoIterator<Item = usize>) -> Result<()> {
        for place in places {
            if !self.input(place)?.is_numbers() {
                return refuse("takes sizes or positions that depend on values of the request");
            }
        }
        Ok(())
    }

    fn numbers_from(&self, first: usize) -> Result<()> {
        self.numbers_at(first..self.inputs.len())
    }

    fn of_floats(&self) -> Result<OpOutcome> {
        if !self.inputs.iter().all(Known::is_floats) {
            return refuse("takes something else than floats");
        }
        // With the statistics of the batch, it is another operation.
        let trains = matches!(self.attribute("is_training"), Some(Value::B(true)));
        if trains
            || self.node.op.starts_with("FusedBatchNorm") && self.attribute("is_training").is_none()
        {
            return refuse("is a batch normalization in training");
        }
        OpOutcome::only(Known::floats())
    }

    fn arithmetic(&self) -> Result<OpOutcome> {
        if self.inputs.iter().all(Known::is_numbers) {
            return OpOutcome::only(Known::numbers());
        }
        if self.inputs.iter().all(|it| it.is_numbers() || matches!(it, Known::Ids(_) | Known::Sums))
        {
            return OpOutcome::only(Known::Sums);
        }
        self.of_floats()
    }

    fn reduction(&self) -> Result<OpOutcome> {
        self.numbers_from(1)?;
        let values = self.input(0)?;
        if values.is_floats() || values.is_numbers() && self.node.op != "Mean" {
            return OpOutcome::only(values.moved());
        }
        refuse("computes with integers of the request, which OpenVINO does with 32 bits")
    }

    fn flags(&self) -> Result<OpOutcome> {
        // Ids are made sure not to be negative, which is how rows are counted from the end.
        if let ("Less", [Known::Ids(ids), Known::Numbers { only: Some(..=0) }]) =
            (self.node.op.as_str(), self.inputs.as_slice())
        {
            let never = Known::Numbers { only: Some(0) };
            return Ok(OpOutcome {
                outputs: vec![never],
                ids: Some((ids.inputs.clone(), BEYOND_32_BITS)),
            });
        }
        let of_request = |it: &Known| matches!(it, Known::Ids(_) | Known::Flags);
        if !self.inputs.iter().all(|it| it.is_numbers() || of_request(it)) {
            // The other roundings of OpenVINO could turn it around.
            return refuse("compares floats");
        }
        let of_request = self.inputs.iter().any(of_request);
        OpOutcome::only(if of_request { Known::Flags } else { Known::numbers() })
    }

    fn constant(&self) -> Result<OpOutcome> {
        let Some(Value::Tensor(tensor)) = self.attribute("value") else {
            return refuse("has no value");
        };
        if self.is_float("dtype") {
            let rows = tensor.tensor_shape.as_ref().and_then(rows);
            return OpOutcome::only(Known::Floats { rows });
        }
        let elements = integers(tensor).unwrap_or_default();
        if !elements.iter().all(|element| i32::try_from(*element).is_ok()) {
            return refuse("is a constant with more than 32 bits");
        }
        // A zero may be left out.
        let is_one =
            tensor.tensor_shape.as_ref().is_none_or(|it| it.dim.iter().all(|dim| dim.size == 1));
        let only = is_one.then(|| elements.first().copied().unwrap_or(0));
        OpOutcome::only(Known::Numbers { only })
    }

    fn variable(&self) -> Result<OpOutcome> {
        match self.attribute("shape") {
            Some(Value::Shape(shape)) if self.is_float("dtype") => {
                OpOutcome::only(Known::Variable { rows: rows(shape) })
            }
            _ => refuse("is a variable of something else than floats"),
        }
    }

    fn read(&self) -> Result<OpOutcome> {
        let Known::Variable { rows } = self.input(0)? else {
            return refuse("reads something else than a variable");
        };
        OpOutcome::only(Known::Floats { rows: *rows })
    }

    fn cast(&self) -> Result<OpOutcome> {
        let values = self.input(0)?;
        let is_tensor = !matches!(values, Known::Variable { .. } | Known::Nothing | Known::Sums);
        if self.is_float("DstT") && is_tensor {
            return OpOutcome::only(Known::floats());
        }
        let is_wide = self.is_of("DstT", &[DType::Int32, DType::Int64]);
        let is_bool = self.is_of("DstT", &[DType::Bool]);
        match values {
            Known::Numbers { only } if is_wide => OpOutcome::only(Known::Numbers { only: *only }),
            Known::Numbers { only } if is_bool => {
                OpOutcome::only(Known::Numbers { only: only.map(|value| i64::from(value != 0)) })
            }
            Known::Numbers { .. } => OpOutcome::only(Known::numbers()),
            // Ids that are looked up or compared fit 32 bits.
            Known::Ids(_) if is_wide => OpOutcome::only(values.clone()),
            // The library takes the least integer of 32 bits for 0.
            Known::Ids(ids) if is_bool && ids.least >= 0 => Ok(OpOutcome {
                outputs: vec![Known::Flags],
                ids: Some((ids.inputs.clone(), BEYOND_32_BITS)),
            }),
            Known::Floats { .. }
            | Known::Ids(_)
            | Known::Sums
            | Known::Flags
            | Known::Variable { .. }
            | Known::Nothing => {
                refuse("converts to integers or booleans what depends on values of the request")
            }
        }
    }

    /// The values of the inputs `first..end`, in one tensor; the other inputs are numbers.
    fn joined(&self, first: usize, end: usize) -> Result<OpOutcome> {
        self.numbers_from(end)?;
        let mut joined = self.input(first)?.moved();
        for index in first + 1..end {
            joined = either(&joined, self.input(index)?)?;
        }
        OpOutcome::only(joined)
    }

    fn joined_floats(&self, floats: &[usize], numbers: &[usize]) -> Result<OpOutcome> {
        self.numbers_at(numbers.iter().copied())?;
        for index in floats {
            if !self.input(*index)?.is_floats() {
                return refuse("takes something else than floats");
            }
        }
        OpOutcome::only(Known::floats())
    }

    fn select(&self) -> Result<OpOutcome> {
        if let Known::Numbers { only: Some(0) } = self.input(0)? {
            return OpOutcome::only(self.input(2)?.moved());
        }
        if !matches!(self.input(0)?, Known::Flags | Known::Numbers { .. }) {
            return refuse("selects by something else than comparisons of ids");
        }
        OpOutcome::only(either(self.input(1)?, self.input(2)?)?)
    }

    fn gather(&self) -> Result<OpOutcome> {
        self.check_batch_dims()?;
        let (table, ids, axis) = (self.input(0)?, self.input(1)?, self.input(2)?);
        if ids.is_numbers() && axis.is_numbers() {
            return OpOutcome::only(table.moved());
        }
        match (table, ids, axis) {
            (
                Known::Floats { rows: Some(rows) },
                Known::Ids(ids),
                Known::Numbers { only: Some(0) },
            ) => looked_up(ids, *rows),
            _ => refuse(
                "looks up rows by something else than ids, or not those of a table of the model",
            ),
        }
    }

    fn gather_from_variable(&self) -> Result<OpOutcome> {
        self.check_batch_dims()?;
        match (self.input(0)?, self.input(1)?) {
            (Known::Variable { rows: Some(rows) }, Known::Ids(ids)) => looked_up(ids, *rows),
            (Known::Variable { .. }, Known::Numbers { .. }) => OpOutcome::only(Known::floats()),
            _ => refuse("looks up rows by something else than ids"),
        }
    }

    fn check_batch_dims(&self) -> Result<()> {
        match self.attribute("batch_dims") {
            None | Some(Value::I(0)) => Ok(()),
            Some(_) => refuse("looks up rows for each row of a batch (batch_dims)"),
        }
    }
}

/// What is known of a tensor whose elements are some of one and some of the other.
fn either(one: &Known, other: &Known) -> Result<Known> {
    if one.is_floats() && other.is_floats() {
        return Ok(Known::floats());
    }
    if one.is_numbers() && other.is_numbers() {
        return Ok(Known::numbers());
    }
    match (one.origins(), other.origins()) {
        (Some(one), Some(other)) => Ok(Known::Ids(one.or(&other))),
        _ => refuse("joins tensors of different kinds"),
    }
}

fn looked_up(ids: &IdOrigins, rows: i64) -> Result<OpOutcome> {
    if ids.least < 0 || ids.most >= rows {
        return refuse("looks up constants that are not in the table");
    }
    Ok(OpOutcome { outputs: vec![Known::floats()], ids: Some((ids.inputs.clone(), rows)) })
}

/// The number of rows of a shape, if it is known.
fn rows(shape: &TensorShapeProto) -> Option<i64> {
    let first = shape.dim.first().filter(|_| !shape.unknown_rank)?;
    (first.size >= 0).then_some(first.size)
}

#[cfg(test)]
pub(super) fn are_sorted() -> bool {
    let lists: [&[&str]; 7] =
        [&OF_FLOATS, &ARITHMETIC, &REDUCTIONS, &MOVES, &COMPARISONS, &LOGIC, &SIZES];
    lists.iter().all(|list| list.is_sorted())
}
