//! What each of MXNet's operations is in ONNX: here what is simple, in [`super::layers`] the layers
//! of networks, in [`super::shapes`] what changes shapes.
//!
//! Where MXNet's meaning has no counterpart, or depends on what is not known before a run, the
//! operation is refused by name.

use super::convert::Converter;
use super::symbol::{Node, Port};
use crate::graph::{int, node as onnx};
use crate::proto::NodeProto;
use tensorserve_tensor::error::{Code, Error, Result};

/// Operations of one input that ONNX has under another name.
const RENAMED: &[(&str, &str)] = &[
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

/// Operations of two inputs, of equal shapes or spread as ONNX does.
const PAIRS: &[(&str, &str)] = &[
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

/// Operations of an input and a number, and whether the number comes first.
const WITH_NUMBER: &[(&str, &str, bool)] = &[
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

/// Operations that also take what only training needs: labels.
const WITH_LABELS: &[&str] = &[
    "SoftmaxOutput",
    "Softmax",
    "LinearRegressionOutput",
    "MAERegressionOutput",
    "LogisticRegressionOutput",
];

/// The inputs of an operation that what it gives depends on.
pub(super) fn live_inputs(node: &Node) -> &[Port] {
    let labelled = WITH_LABELS.contains(&&*node.op);
    let end = if labelled { node.inputs.len().min(1) } else { node.inputs.len() };
    node.inputs.get(..end).unwrap_or_default()
}

/// Whether a variable is called as MXNet calls parameters, and not as people call inputs.
pub(super) fn is_called_like_a_parameter(name: &str) -> bool {
    const ENDS: [&str; 7] =
        ["_weight", "_bias", "_gamma", "_beta", "_moving_mean", "_moving_var", "_running_mean"];
    ENDS.iter().any(|end| name.ends_with(end))
}

/// Adds to the graph what gives `out` as `node` would.
///
/// # Errors
/// [`Code::Unimplemented`] if it has no counterpart.
pub(super) fn convert(graph: &mut Converter, node: &Node, out: &str) -> Result<()> {
    let inputs = graph.inputs(node)?;
    let mut step = Step { graph, node, inputs, out };
    let rank = step.data().ok().and_then(|data| step.graph.rank(data));
    // Most operations give as many dimensions as their first input has.
    step.graph.set_rank(out, rank);
    step.convert()
}

/// The conversion of one operation.
pub(super) struct Step<'c, 'g, 'n> {
    pub(super) graph: &'c mut Converter<'g>,
    pub(super) node: &'n Node,
    /// Names of what it takes.
    pub(super) inputs: Vec<String>,
    /// The name of what it gives.
    pub(super) out: &'n str,
}

impl Step<'_, '_, '_> {
    fn convert(&mut self) -> Result<()> {
        let op = &*self.node.op;
        if let Some((_, to)) = RENAMED.iter().find(|(from, _)| *from == op) {
            if *to == "Flatten" {
                self.graph.set_rank(self.out, Some(2));
            }
            return self.unary(to);
        }
        if let Some((_, to)) = PAIRS.iter().find(|(from, _)| *from == op) {
            self.expect_inputs(2..=2)?;
            return self.all_inputs(to);
        }
        if let Some(&(_, to, first)) = WITH_NUMBER.iter().find(|(from, ..)| *from == op) {
            return self.with_number(to, first);
        }
        match op {
            "FullyConnected" => self.fully_connected(),
            "Convolution" | "Convolution_v1" => self.convolution(),
            "Deconvolution" => self.deconvolution(),
            "Pooling" | "Pooling_v1" => self.pooling(),
            "BatchNorm" | "BatchNorm_v1" => self.batch_norm(),
            "InstanceNorm" => self.instance_norm(),
            "Activation" => self.activation(),
            "LeakyReLU" => self.leaky(),
            "softmax" => self.softmax("Softmax"),
            "log_softmax" => self.softmax("LogSoftmax"),
            "SoftmaxActivation" => self.softmax_activation(),
            "SoftmaxOutput" | "Softmax" => self.softmax_output(),
            "Reshape" | "reshape" => self.reshape(),
            "transpose" => self.transpose(),
            "ElementWiseSum" | "add_n" => self.all_inputs("Sum"),
            "Concat" | "concat" => {
                let axis = int("axis", self.node.integer("dim", 1)?);
                let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
                self.graph.push(onnx("Concat", &inputs, &[self.out]).with(axis));
                Ok(())
            }
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
            _ => Err(self.refused("it is not known")),
        }
    }

    pub(super) fn refused(&self, what: &str) -> Error {
        self.node.refused(what)
    }

    pub(super) fn broken(&self, what: &str) -> Error {
        let Node { op, name, .. } = self.node;
        Error::new(Code::DataLoss, format!("the symbol is damaged: {op} {name:?} {what}"))
    }

    /// The first input.
    pub(super) fn data(&self) -> Result<&str> {
        self.input(0)
    }

    pub(super) fn input(&self, index: usize) -> Result<&str> {
        let name = self.inputs.get(index).map(String::as_str);
        name.ok_or_else(|| self.broken("has too few inputs"))
    }

    pub(super) fn expect_inputs(&self, counts: std::ops::RangeInclusive<usize>) -> Result<()> {
        match counts.contains(&self.inputs.len()) {
            true => Ok(()),
            false => Err(self.broken(&format!("has {} inputs", self.inputs.len()))),
        }
    }

    /// The name of a value of this operation.
    pub(super) fn part(&self, what: &str) -> String {
        format!("{}/{what}", self.out)
    }

    pub(super) fn unary(&mut self, op: &str) -> Result<()> {
        let made = onnx(op, &[self.data()?], &[self.out]);
        self.give(made)
    }

    pub(super) fn all_inputs(&mut self, op: &str) -> Result<()> {
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        self.graph.simple(op, &inputs, self.out);
        Ok(())
    }

    pub(super) fn give(&mut self, made: NodeProto) -> Result<()> {
        self.graph.push(made);
        Ok(())
    }

    fn with_number(&mut self, op: &str, first: bool) -> Result<()> {
        if self.node.get("scalar").is_none() {
            return Err(self.broken("has no scalar"));
        }
        let number = self.part("scalar");
        self.graph.number(&number, self.node.number("scalar", 0.0)?);
        let data = self.data()?;
        let inputs = if first { [&*number, data] } else { [data, &*number] };
        let made = onnx(op, &inputs, &[self.out]);
        self.give(made)
    }

    /// A number as ONNX's attributes have it.
    #[allow(clippy::cast_possible_truncation)] // MXNet keeps these in the same size.
    pub(super) fn small(&self, name: &str, default: f64) -> Result<f32> {
        Ok(self.node.number(name, default)? as f32)
    }

    fn clip(&mut self) -> Result<()> {
        let (low, high) = (self.part("low"), self.part("high"));
        self.graph.number(&low, self.node.number("a_min", f64::NEG_INFINITY)?);
        self.graph.number(&high, self.node.number("a_max", f64::INFINITY)?);
        let made = onnx("Clip", &[self.data()?, &low, &high], &[self.out]);
        self.give(made)
    }

    fn square(&mut self) -> Result<()> {
        let made = onnx("Mul", &[self.data()?, self.data()?], &[self.out]);
        self.give(made)
    }
}
