//! What each of MXNet's operations is in ONNX. Long for a reason: it is a table, with what differs
//! between the two beside each entry.
//!
//! Where MXNet's meaning has no counterpart, or depends on what is not known before a run, the
//! operation is refused by name.

use super::convert::Converter;
use super::symbol::{Node, Port};
use crate::error::{Code, Error, Result};
use crate::pb::onnx::NodeProto;
use crate::platform::onnx::graph::{float, int, ints, node as onnx, string};

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
struct Step<'c, 'g, 'n> {
    graph: &'c mut Converter<'g>,
    node: &'n Node,
    inputs: Vec<String>,
    out: &'n str,
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

    fn refused(&self, what: &str) -> Error {
        self.node.refused(what)
    }

    fn broken(&self, what: &str) -> Error {
        let Node { op, name, .. } = self.node;
        Error::new(Code::DataLoss, format!("the symbol is damaged: {op} {name:?} {what}"))
    }

    /// The first input.
    fn data(&self) -> Result<&str> {
        self.input(0)
    }

    fn input(&self, index: usize) -> Result<&str> {
        let name = self.inputs.get(index).map(String::as_str);
        name.ok_or_else(|| self.broken("has too few inputs"))
    }

    fn expect_inputs(&self, counts: std::ops::RangeInclusive<usize>) -> Result<()> {
        match counts.contains(&self.inputs.len()) {
            true => Ok(()),
            false => Err(self.broken(&format!("has {} inputs", self.inputs.len()))),
        }
    }

    /// The name of a value of this operation.
    fn part(&self, what: &str) -> String {
        format!("{}/{what}", self.out)
    }

    fn unary(&mut self, op: &str) -> Result<()> {
        let made = onnx(op, &[self.data()?], &[self.out]);
        self.give(made)
    }

    fn all_inputs(&mut self, op: &str) -> Result<()> {
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        self.graph.simple(op, &inputs, self.out);
        Ok(())
    }

    fn give(&mut self, made: NodeProto) -> Result<()> {
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

    fn fully_connected(&mut self) -> Result<()> {
        self.expect_inputs(2..=3)?;
        let (flat, weight) = (self.part("flat"), self.input(1)?.to_owned());
        let data = self.data()?.to_owned();
        let bias = self.inputs.get(2).cloned();
        if self.node.flag("flatten", true)? {
            self.graph.simple("Flatten", &[&data], &flat);
            let mut inputs = vec![&*flat, &*weight];
            inputs.extend(bias.as_deref());
            self.graph.set_rank(self.out, Some(2));
            let made = onnx("Gemm", &inputs, &[self.out]).with(int("transB", 1));
            return self.give(made);
        }
        // Of the last dimension alone.
        let (turned, product) = (self.part("turned"), self.part("product"));
        self.graph.simple("Transpose", &[&weight], &turned);
        let Some(bias) = bias else {
            self.graph.simple("MatMul", &[&data, &turned], self.out);
            return Ok(());
        };
        self.graph.simple("MatMul", &[&data, &turned], &product);
        self.graph.simple("Add", &[&product, &bias], self.out);
        Ok(())
    }

    /// What convolutions and poolings have in common: `made` with kernel, steps and padding.
    fn windowed(&mut self, mut made: NodeProto) -> Result<NodeProto> {
        let layout = self.node.text("layout", "NCHW");
        if !["NCHW", "NCW", "NCDHW"].contains(&layout) {
            return Err(self.refused(&format!("its layout is {layout}")));
        }
        let kernel = self.node.integers("kernel")?;
        let pad = self.node.integers("pad")?;
        self.graph.set_rank(self.out, Some(kernel.len() + 2));
        let stride = self.node.integers("stride")?;
        let dilate = self.node.integers("dilate")?;
        for (name, values) in [("strides", stride), ("dilations", dilate)] {
            if !values.is_empty() {
                made = made.with(ints(name, &values));
            }
        }
        if !pad.is_empty() {
            made = made.with(ints("pads", &[pad.clone(), pad].concat()));
        }
        Ok(made.with(ints("kernel_shape", &kernel)))
    }

    fn convolution(&mut self) -> Result<()> {
        self.expect_inputs(2..=3)?;
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let made = onnx("Conv", &inputs, &[self.out]);
        let group = int("group", self.node.integer("num_group", 1)?);
        let made = self.windowed(made)?.with(group);
        self.give(made)
    }

    fn deconvolution(&mut self) -> Result<()> {
        self.expect_inputs(2..=3)?;
        if !self.node.integers("target_shape")?.is_empty() {
            return Err(self.refused("it has a target_shape"));
        }
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let made = onnx("ConvTranspose", &inputs, &[self.out]);
        let mut made = self.windowed(made)?.with(int("group", self.node.integer("num_group", 1)?));
        let more = self.node.integers("adj")?;
        if !more.is_empty() {
            made = made.with(ints("output_padding", &more));
        }
        self.give(made)
    }

    fn pooling(&mut self) -> Result<()> {
        let kind = self.node.text("pool_type", "max");
        let (local, global) = match kind {
            "max" => ("MaxPool", "GlobalMaxPool"),
            "avg" => ("AveragePool", "GlobalAveragePool"),
            other => return Err(self.refused(&format!("its pool_type is {other}"))),
        };
        if self.node.flag("global_pool", false)? {
            return self.unary(global);
        }
        let rounds_up = match self.node.text("pooling_convention", "valid") {
            "valid" => false,
            "full" => true,
            other => return Err(self.refused(&format!("its pooling_convention is {other}"))),
        };
        let made = onnx(local, &[self.data()?], &[self.out]);
        let mut made = self.windowed(made)?.with(int("ceil_mode", rounds_up.into()));
        if kind == "avg" {
            let pads = self.node.integers("pad")?.iter().any(|&pad| pad != 0);
            let counts = self.node.flag("count_include_pad", true)?;
            // MXNet counts a window only as far as the padding goes, ONNX all of it.
            if counts && pads && rounds_up {
                return Err(self.refused("it averages a padding that the last window leaves"));
            }
            made = made.with(int("count_include_pad", (counts && pads).into()));
        }
        self.give(made)
    }

    fn batch_norm(&mut self) -> Result<()> {
        let axis = self.node.integer("axis", 1)?;
        if axis != 1 {
            return Err(self.refused(&format!("its axis is {axis}")));
        }
        // Models of before 0.9 do not name what was learnt by counting.
        if self.inputs.len() == 3 {
            for what in ["moving_mean", "moving_var"] {
                let name = format!("{}_{what}", self.node.name);
                self.graph.take_param(&name);
                self.inputs.push(name);
            }
        }
        self.expect_inputs(5..=5)?;
        if self.node.flag("fix_gamma", true)? {
            // What is in the file is not what MXNet computes with.
            let (gamma, beta) = (self.input(1)?.to_owned(), self.input(2)?.to_owned());
            let known = self.graph.dims_of(&gamma).or_else(|| self.graph.dims_of(&beta));
            let Some(&[channels]) = known else {
                return Err(self.broken("has a gamma that is no vector"));
            };
            let ones = self.part("gamma");
            self.graph.ones(&ones, self.graph.dtype, channels);
            if let Some(gamma) = self.inputs.get_mut(1) {
                *gamma = ones;
            }
        }
        let epsilon = float("epsilon", self.small("eps", 1e-3)?);
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let made = onnx("BatchNormalization", &inputs, &[self.out]).with(epsilon);
        self.give(made)
    }

    /// A number as ONNX's attributes have it.
    #[allow(clippy::cast_possible_truncation)] // MXNet keeps these in the same size.
    fn small(&self, name: &str, default: f64) -> Result<f32> {
        Ok(self.node.number(name, default)? as f32)
    }

    fn instance_norm(&mut self) -> Result<()> {
        self.expect_inputs(3..=3)?;
        let epsilon = float("epsilon", self.small("eps", 1e-3)?);
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let made = onnx("InstanceNormalization", &inputs, &[self.out]).with(epsilon);
        self.give(made)
    }

    fn activation(&mut self) -> Result<()> {
        match self.node.text("act_type", "") {
            "relu" => self.unary("Relu"),
            "sigmoid" => self.unary("Sigmoid"),
            "tanh" => self.unary("Tanh"),
            "softrelu" => self.unary("Softplus"),
            "softsign" => self.unary("Softsign"),
            other => Err(self.refused(&format!("its act_type is {other:?}"))),
        }
    }

    fn leaky(&mut self) -> Result<()> {
        let data = self.data()?;
        let sloped = |op: &str, slope| onnx(op, &[data], &[self.out]).with(float("alpha", slope));
        let made = match self.node.text("act_type", "leaky") {
            "leaky" => sloped("LeakyRelu", self.small("slope", 0.25)?),
            "elu" => sloped("Elu", self.small("slope", 0.25)?),
            // Of training's random slopes, the middle.
            "rrelu" => {
                let (low, high) =
                    (self.small("lower_bound", 0.125)?, self.small("upper_bound", 0.334)?);
                sloped("LeakyRelu", low.midpoint(high))
            }
            "selu" => onnx("Selu", &[data], &[self.out]),
            "gelu" => return self.gelu(),
            "prelu" => return self.learnt_slope(),
            other => return Err(self.refused(&format!("its act_type is {other}"))),
        };
        self.give(made)
    }

    /// x/2 · (1 + erf(x/√2)).
    fn gelu(&mut self) -> Result<()> {
        let data = self.data()?.to_owned();
        let parts = ["root", "one", "half", "scaled", "erf", "sum", "product"];
        let [root, one, half, scaled, erf, sum, product] = parts.map(|part| self.part(part));
        self.graph.number(&root, std::f64::consts::SQRT_2);
        self.graph.number(&one, 1.0);
        self.graph.number(&half, 0.5);
        self.graph.simple("Div", &[&data, &root], &scaled);
        self.graph.simple("Erf", &[&scaled], &erf);
        self.graph.simple("Add", &[&erf, &one], &sum);
        self.graph.simple("Mul", &[&data, &sum], &product);
        self.graph.simple("Mul", &[&product, &half], self.out);
        Ok(())
    }

    /// A slope for each channel, which is the second dimension.
    fn learnt_slope(&mut self) -> Result<()> {
        self.expect_inputs(2..=2)?;
        let (data, gamma) = (self.data()?.to_owned(), self.input(1)?.to_owned());
        let Some(rank) = self.graph.rank(&data) else {
            return Err(
                self.refused("the rank of its input is not known; a signature file tells it")
            );
        };
        let mut shape = vec![-1_i64];
        shape.resize(rank.saturating_sub(1).max(1), 1);
        let (slope, name) = (self.part("slope"), self.part("shape"));
        self.graph.integers(&name, &shape);
        self.graph.simple("Reshape", &[&gamma, &name], &slope);
        self.graph.simple("PRelu", &[&data, &slope], self.out);
        Ok(())
    }

    fn softmax(&mut self, op: &str) -> Result<()> {
        if self.inputs.len() > 1 || self.node.flag("use_length", false)? {
            return Err(self.refused("it has lengths"));
        }
        let temperature = self.node.number("temperature", 1.0)?;
        let mut data = self.data()?.to_owned();
        if temperature.to_bits() != 1.0_f64.to_bits() {
            let (number, scaled) = (self.part("temperature"), self.part("scaled"));
            self.graph.number(&number, temperature);
            self.graph.simple("Div", &[&data, &number], &scaled);
            data = scaled;
        }
        let axis = int("axis", self.node.integer("axis", -1)?);
        let made = onnx(op, &[&data], &[self.out]).with(axis);
        self.give(made)
    }

    fn softmax_over(&mut self, axis: i64) -> Result<()> {
        let made = onnx("Softmax", &[self.data()?], &[self.out]).with(int("axis", axis));
        self.give(made)
    }

    /// Over all of a row, where that is not one dimension of it.
    fn softmax_over_rows(&mut self) -> Result<()> {
        match self.graph.rank(self.data()?) {
            Some(2) => self.softmax_over(1),
            Some(_) => Err(self.refused("it goes over several dimensions")),
            None => {
                Err(self.refused("the rank of its input is not known; a signature file tells it"))
            }
        }
    }

    fn softmax_activation(&mut self) -> Result<()> {
        match self.node.text("mode", "instance") {
            "channel" => self.softmax_over(1),
            "instance" => self.softmax_over_rows(),
            other => Err(self.refused(&format!("its mode is {other}"))),
        }
    }

    fn softmax_output(&mut self) -> Result<()> {
        if self.node.flag("multi_output", false)? {
            return self.softmax_over(1);
        }
        match self.node.flag("preserve_shape", false)? {
            true => self.softmax_over(-1),
            false => self.softmax_over_rows(),
        }
    }

    fn reshape(&mut self) -> Result<()> {
        let shape = self.node.integers("shape")?;
        if shape.is_empty() || self.node.flag("reverse", false)? {
            return Err(self.refused("it has no shape, or one from its end"));
        }
        // 0 keeps a dimension and -1 is what is left, as in ONNX.
        if let Some(code) = shape.iter().find(|&&size| size < -1) {
            return Err(self.refused(&format!("its shape has {code}")));
        }
        let name = self.part("shape");
        self.graph.integers(&name, &shape);
        self.graph.set_rank(self.out, Some(shape.len()));
        let made = onnx("Reshape", &[self.data()?, &name], &[self.out]);
        self.give(made)
    }

    fn transpose(&mut self) -> Result<()> {
        let axes = self.node.integers("axes")?;
        let mut made = onnx("Transpose", &[self.data()?], &[self.out]);
        if !axes.is_empty() {
            made = made.with(ints("perm", &axes));
        }
        self.give(made)
    }

    fn dropout(&mut self) -> Result<()> {
        match self.node.text("mode", "training") {
            "training" => self.unary("Identity"),
            other => Err(self.refused(&format!("its mode is {other}"))),
        }
    }

    fn clip(&mut self) -> Result<()> {
        let (low, high) = (self.part("low"), self.part("high"));
        self.graph.number(&low, self.node.number("a_min", f64::NEG_INFINITY)?);
        self.graph.number(&high, self.node.number("a_max", f64::INFINITY)?);
        let made = onnx("Clip", &[self.data()?, &low, &high], &[self.out]);
        self.give(made)
    }

    fn pad(&mut self) -> Result<()> {
        let mode = self.node.text("mode", "");
        if !["constant", "edge", "reflect"].contains(&mode) {
            return Err(self.refused(&format!("its mode is {mode:?}")));
        }
        // MXNet has both ends of a dimension together, ONNX all beginnings first.
        let width = self.node.integers("pad_width")?;
        let begins = width.iter().step_by(2);
        let pads: Vec<i64> = begins.chain(width.iter().skip(1).step_by(2)).copied().collect();
        let (sizes, filler) = (self.part("pads"), self.part("filler"));
        self.graph.integers(&sizes, &pads);
        self.graph.number(&filler, self.node.number("constant_value", 0.0)?);
        let inputs = [self.data()?, &sizes, &filler];
        let made = onnx("Pad", &inputs, &[self.out]).with(string("mode", mode));
        self.give(made)
    }

    fn lrn(&mut self) -> Result<()> {
        let made = onnx("LRN", &[self.data()?], &[self.out])
            .with(float("alpha", self.small("alpha", 1e-4)?))
            .with(float("beta", self.small("beta", 0.75)?))
            .with(float("bias", self.small("knorm", 2.0)?))
            .with(int("size", self.node.integer("nsize", 1)?));
        self.give(made)
    }

    fn up_sampling(&mut self) -> Result<()> {
        let kind = self.node.text("sample_type", "");
        if kind != "nearest" || self.inputs.len() != 1 {
            return Err(self.refused(&format!("its sample_type is {kind:?}, or it has two inputs")));
        }
        let scale = u16::try_from(self.node.integer("scale", 1)?)
            .map_err(|_| self.broken("has a scale out of range"))?;
        let scales = self.part("scales");
        let values = [1.0, 1.0, f32::from(scale), f32::from(scale)];
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.graph.constant(&scales, crate::tensor::DType::Float, &[4], bytes.into());
        let made = onnx("Resize", &[self.data()?, "", &scales], &[self.out])
            .with(string("mode", "nearest"))
            .with(string("coordinate_transformation_mode", "asymmetric"))
            .with(string("nearest_mode", "floor"));
        self.give(made)
    }

    fn reduce(&mut self, op: &str) -> Result<()> {
        if self.node.flag("exclude", false)? {
            return Err(self.refused("it excludes axes"));
        }
        let axes = self.node.integers("axis")?;
        let keeps = self.node.flag("keepdims", false)?;
        let rank = self.graph.rank(self.data()?);
        if !keeps {
            let left =
                |rank: usize| if axes.is_empty() { 0 } else { rank.saturating_sub(axes.len()) };
            self.graph.forget_rank(self.out);
            self.graph.set_rank(self.out, rank.map(left));
        }
        let name = self.part("axes");
        let mut inputs = vec![self.data()?];
        // A sum alone takes its axes as an input.
        let is_sum = op == "ReduceSum" && !axes.is_empty();
        if is_sum {
            inputs.push(&name);
        }
        let mut made = onnx(op, &inputs, &[self.out]).with(int("keepdims", keeps.into()));
        if is_sum {
            self.graph.integers(&name, &axes);
        } else if !axes.is_empty() {
            made = made.with(ints("axes", &axes));
        }
        self.give(made)
    }

    fn slice_axis(&mut self) -> Result<()> {
        let parts = [
            ("starts", self.node.integer("begin", 0)?),
            ("ends", self.node.integer("end", i64::MAX)?),
            ("axes", self.node.integer("axis", 0)?),
        ];
        let names = parts.map(|(what, value)| {
            let name = self.part(what);
            self.graph.integers(&name, &[value]);
            name
        });
        let [starts, ends, axes] = &names;
        let made = onnx("Slice", &[self.data()?, starts, ends, axes], &[self.out]);
        self.give(made)
    }

    /// Gives an operation whose axes are an input, and another number of dimensions.
    fn with_axes(&mut self, op: &str, axes: &[i64], rank: Option<usize>) -> Result<()> {
        self.graph.forget_rank(self.out);
        self.graph.set_rank(self.out, rank);
        if axes.is_empty() {
            return self.unary(op);
        }
        let name = self.part("axes");
        self.graph.integers(&name, axes);
        let made = onnx(op, &[self.data()?, &name], &[self.out]);
        self.give(made)
    }

    fn expand_dims(&mut self) -> Result<()> {
        let axis = self.node.integers("axis")?;
        if axis.len() != 1 {
            return Err(self.broken("has no axis"));
        }
        let rank = self.graph.rank(self.data()?).map(|rank| rank + 1);
        self.with_axes("Unsqueeze", &axis, rank)
    }

    fn squeeze(&mut self) -> Result<()> {
        let axes = self.node.integers("axis")?;
        let rank = self.graph.rank(self.data()?).filter(|_| !axes.is_empty());
        let rank = rank.and_then(|rank| rank.checked_sub(axes.len()));
        self.with_axes("Squeeze", &axes, rank)
    }

    /// MXNet cuts numbers to whole ones, and those out of range to the first and the last row.
    fn embedding(&mut self) -> Result<()> {
        self.expect_inputs(2..=2)?;
        let (data, weight) = (self.data()?.to_owned(), self.input(1)?.to_owned());
        let Some(&[rows, _]) = self.graph.dims_of(&weight) else {
            return Err(self.broken("has a weight that is no matrix of the parameters"));
        };
        let parts = ["whole", "first", "last", "row"];
        let [whole, first, last, row] = parts.map(|part| self.part(part));
        let number = |value: i64| bytes::Bytes::copy_from_slice(&value.to_le_bytes());
        self.graph.constant(&first, crate::tensor::DType::Int64, &[], number(0));
        self.graph.constant(
            &last,
            crate::tensor::DType::Int64,
            &[],
            number(rows.saturating_sub(1)),
        );
        // 7: int64.
        self.graph.push(onnx("Cast", &[&data], &[&whole]).with(int("to", 7)));
        self.graph.simple("Clip", &[&whole, &first, &last], &row);
        let rank = self.graph.rank(&data).map(|rank| rank + 1);
        self.graph.forget_rank(self.out);
        self.graph.set_rank(self.out, rank);
        self.graph.simple("Gather", &[&weight, &row], self.out);
        Ok(())
    }

    fn square(&mut self) -> Result<()> {
        let made = onnx("Mul", &[self.data()?, self.data()?], &[self.out]);
        self.give(made)
    }
}
