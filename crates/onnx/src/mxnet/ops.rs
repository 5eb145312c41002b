//! Converts MXNet's operations into ONNX operators: elementwise operations here, the layers of
//! networks in [`super::layers`], and operations that change shapes in [`super::shapes`].
//!
//! An operation that has no equivalent in ONNX, or whose equivalent depends on what is unknown
//! before a run, is refused with an error that names it.

use super::converter::Converter;
use super::symbol::{SymbolNode, invalid_symbol};
use crate::graph::{int, node as onnx_node};
use crate::proto::NodeProto;
use tensorserve_tensor::error::{Error, Result};

/// Operations with one input, and their ONNX operators.
const UNARY: &[(&str, &str)] = &[
    ("relu", "Relu"),
    ("sigmoid", "Sigmoid"),
    ("tanh", "Tanh"),
    ("softsign", "Softsign"),
    ("exp", "Exp"),
    ("log", "Log"),
    ("sqrt", "Sqrt"),
    ("abs", "Abs"),
    ("negative", "Neg"),
    ("reciprocal", "Reciprocal"),
    ("floor", "Floor"),
    ("ceil", "Ceil"),
    ("erf", "Erf"),
    ("sin", "Sin"),
    ("cos", "Cos"),
    ("tan", "Tan"),
    ("identity", "Identity"),
    ("_copy", "Identity"),
    ("BlockGrad", "Identity"),
    ("stop_gradient", "Identity"),
    ("MakeLoss", "Identity"),
    ("make_loss", "Identity"),
    ("LinearRegressionOutput", "Identity"),
    ("MAERegressionOutput", "Identity"),
    ("LogisticRegressionOutput", "Sigmoid"),
    ("Flatten", "Flatten"),
    ("flatten", "Flatten"),
];

/// Operations with two inputs, of equal shapes or broadcast as in ONNX, and their ONNX operators.
const BINARY: &[(&str, &str)] = &[
    ("elemwise_add", "Add"),
    ("broadcast_add", "Add"),
    ("broadcast_plus", "Add"),
    ("_Plus", "Add"),
    ("_plus", "Add"),
    ("_add", "Add"),
    ("elemwise_sub", "Sub"),
    ("broadcast_sub", "Sub"),
    ("broadcast_minus", "Sub"),
    ("_Minus", "Sub"),
    ("_minus", "Sub"),
    ("_sub", "Sub"),
    ("elemwise_mul", "Mul"),
    ("broadcast_mul", "Mul"),
    ("_Mul", "Mul"),
    ("_mul", "Mul"),
    ("elemwise_div", "Div"),
    ("broadcast_div", "Div"),
    ("_Div", "Div"),
    ("_div", "Div"),
    ("broadcast_power", "Pow"),
    ("_Power", "Pow"),
    ("_power", "Pow"),
    ("broadcast_maximum", "Max"),
    ("_Maximum", "Max"),
    ("_maximum", "Max"),
    ("broadcast_minimum", "Min"),
    ("_Minimum", "Min"),
    ("_minimum", "Min"),
];

/// Operations with an input and a scalar, their ONNX operators, and whether the scalar is the first
/// operand.
const WITH_SCALAR: &[(&str, &str, bool)] = &[
    ("_plus_scalar", "Add", false),
    ("_PlusScalar", "Add", false),
    ("_minus_scalar", "Sub", false),
    ("_MinusScalar", "Sub", false),
    ("_rminus_scalar", "Sub", true),
    ("_RMinusScalar", "Sub", true),
    ("_mul_scalar", "Mul", false),
    ("_MulScalar", "Mul", false),
    ("_div_scalar", "Div", false),
    ("_DivScalar", "Div", false),
    ("_rdiv_scalar", "Div", true),
    ("_RDivScalar", "Div", true),
    ("_power_scalar", "Pow", false),
    ("_PowerScalar", "Pow", false),
    ("_rpower_scalar", "Pow", true),
    ("_RPowerScalar", "Pow", true),
    ("_maximum_scalar", "Max", false),
    ("_MaximumScalar", "Max", false),
    ("_minimum_scalar", "Min", false),
    ("_MinimumScalar", "Min", false),
];

/// Adds the equivalent of `node` to the graph, with the output `out`.
///
/// # Errors
/// `Code::Unimplemented` if it has no equivalent; `Code::DataLoss` if it is invalid.
pub(super) fn convert(graph: &mut Converter, node: &SymbolNode, out: &str) -> Result<()> {
    let inputs = graph.inputs(node)?;
    let mut conversion = OpConversion { graph, node, inputs, out };
    // The output of most operations has the rank of the first input. The others set it.
    let rank = conversion.data().ok().and_then(|data| conversion.graph.rank(data));
    conversion.graph.set_rank(out, rank);
    conversion.convert()
}

/// The conversion of one operation.
pub(super) struct OpConversion<'c, 'g, 'n> {
    pub(super) graph: &'c mut Converter<'g>,
    /// The operation.
    pub(super) node: &'n SymbolNode,
    /// The names of its inputs in the ONNX graph.
    pub(super) inputs: Vec<String>,
    /// The name of its output in the ONNX graph.
    pub(super) out: &'n str,
}

impl OpConversion<'_, '_, '_> {
    fn convert(&mut self) -> Result<()> {
        let op = &*self.node.op;
        if let Some((_, to)) = UNARY.iter().find(|(from, _)| *from == op) {
            if *to == "Flatten" {
                self.graph.set_rank(self.out, Some(2));
            }
            return self.unary(to);
        }
        if let Some((_, to)) = BINARY.iter().find(|(from, _)| *from == op) {
            self.expect_inputs(2..=2)?;
            return self.all_inputs(to);
        }
        if let Some(&(_, to, is_first)) = WITH_SCALAR.iter().find(|(from, ..)| *from == op) {
            return self.with_scalar(to, is_first);
        }
        match op {
            "FullyConnected" => self.fully_connected(),
            "Convolution" | "Convolution_v1" => self.convolution(),
            "Deconvolution" => self.deconvolution(),
            "Pooling" | "Pooling_v1" => self.pooling(),
            "BatchNorm" | "BatchNorm_v1" => self.batch_norm(),
            "InstanceNorm" => self.instance_norm(),
            "Activation" => self.activation(),
            "LeakyReLU" => self.leaky_relu(),
            "softmax" => self.softmax("Softmax"),
            "log_softmax" => self.softmax("LogSoftmax"),
            "SoftmaxActivation" => self.softmax_activation(),
            "SoftmaxOutput" | "Softmax" => self.softmax_output(),
            "Reshape" | "reshape" => self.reshape(),
            "transpose" => self.transpose(),
            "ElementWiseSum" | "add_n" => self.all_inputs("Sum"),
            "Concat" | "concat" => self.concat(),
            "Dropout" => self.dropout(),
            "clip" => self.clip(),
            "Pad" | "pad" => self.pad(),
            "LRN" => self.lrn(),
            "UpSampling" => self.up_sampling(),
            "mean" => self.reduce("ReduceMean"),
            "sum" | "sum_axis" => self.reduce("ReduceSum"),
            "max" | "max_axis" => self.reduce("ReduceMax"),
            "min" | "min_axis" => self.reduce("ReduceMin"),
            "prod" => self.reduce("ReduceProd"),
            "slice_axis" => self.slice_axis(),
            "expand_dims" => self.expand_dims(),
            "squeeze" => self.squeeze(),
            "Embedding" => self.embedding(),
            "square" => self.square(),
            _ => Err(self.unsupported("it has no conversion to ONNX")),
        }
    }

    /// The error for an operation that cannot be converted.
    pub(super) fn unsupported(&self, reason: &str) -> Error {
        self.node.unsupported(reason)
    }

    /// The error for an operation that contradicts its definition: "`op` `name` `defect`".
    pub(super) fn invalid_op(&self, defect: &str) -> Error {
        let SymbolNode { op, name, .. } = self.node;
        invalid_symbol(&format!("{op} {name:?} {defect}"))
    }

    /// The first input.
    pub(super) fn data(&self) -> Result<&str> {
        self.input(0)
    }

    /// The name of an input.
    pub(super) fn input(&self, index: usize) -> Result<&str> {
        let name = self.inputs.get(index).map(String::as_str);
        name.ok_or_else(|| self.invalid_op("has too few inputs"))
    }

    /// The names of all inputs.
    pub(super) fn input_names(&self) -> Vec<&str> {
        self.inputs.iter().map(String::as_str).collect()
    }

    /// Checks the number of inputs.
    pub(super) fn expect_inputs(&self, counts: std::ops::RangeInclusive<usize>) -> Result<()> {
        match counts.contains(&self.inputs.len()) {
            true => Ok(()),
            false => Err(self.invalid_op(&format!("has {} inputs", self.inputs.len()))),
        }
    }

    /// A name for an intermediate value of this operation.
    pub(super) fn internal_name(&self, part: &str) -> String {
        format!("{}/{part}", self.out)
    }

    /// Adds an ONNX operator on the first input.
    pub(super) fn unary(&mut self, op: &str) -> Result<()> {
        let converted = onnx_node(op, &[self.data()?], &[self.out]);
        self.push_node(converted)
    }

    /// Adds an ONNX operator on all inputs.
    pub(super) fn all_inputs(&mut self, op: &str) -> Result<()> {
        let converted = onnx_node(op, &self.input_names(), &[self.out]);
        self.push_node(converted)
    }

    /// Adds an ONNX node.
    pub(super) fn push_node(&mut self, node: NodeProto) -> Result<()> {
        self.graph.push(node);
        Ok(())
    }

    fn with_scalar(&mut self, op: &str, is_first: bool) -> Result<()> {
        if self.node.attribute("scalar").is_none() {
            return Err(self.invalid_op("has no scalar"));
        }
        let scalar = self.internal_name("scalar");
        self.graph.scalar(&scalar, self.node.float("scalar", 0.0)?);
        let data = self.data()?;
        let inputs = if is_first { [&*scalar, data] } else { [data, &*scalar] };
        let converted = onnx_node(op, &inputs, &[self.out]);
        self.push_node(converted)
    }

    /// A float attribute in the precision of ONNX's attributes.
    #[allow(clippy::cast_possible_truncation)] // MXNet keeps these attributes as f32, too.
    pub(super) fn float_attribute(&self, name: &str, default: f64) -> Result<f32> {
        Ok(self.node.float(name, default)? as f32)
    }

    fn concat(&mut self) -> Result<()> {
        let axis = int("axis", self.node.integer("dim", 1)?);
        let converted = onnx_node("Concat", &self.input_names(), &[self.out]).with(axis);
        self.push_node(converted)
    }

    fn clip(&mut self) -> Result<()> {
        let (low, high) = (self.internal_name("low"), self.internal_name("high"));
        self.graph.scalar(&low, self.node.float("a_min", f64::NEG_INFINITY)?);
        self.graph.scalar(&high, self.node.float("a_max", f64::INFINITY)?);
        let converted = onnx_node("Clip", &[self.data()?, &low, &high], &[self.out]);
        self.push_node(converted)
    }

    fn square(&mut self) -> Result<()> {
        let converted = onnx_node("Mul", &[self.data()?, self.data()?], &[self.out]);
        self.push_node(converted)
    }
}
