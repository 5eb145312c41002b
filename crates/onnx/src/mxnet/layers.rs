//! The layers of neural networks, in ONNX, with what differs between the two beside each.

use super::ops::Step;
use crate::graph::{float, int, ints, node as onnx};
use crate::proto::NodeProto;
use crate::types;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::Result;

impl Step<'_, '_, '_> {
    pub(super) fn fully_connected(&mut self) -> Result<()> {
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

    pub(super) fn convolution(&mut self) -> Result<()> {
        self.expect_inputs(2..=3)?;
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let made = onnx("Conv", &inputs, &[self.out]);
        let group = int("group", self.node.integer("num_group", 1)?);
        let made = self.windowed(made)?.with(group);
        self.give(made)
    }

    pub(super) fn deconvolution(&mut self) -> Result<()> {
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

    pub(super) fn pooling(&mut self) -> Result<()> {
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
        if rounds_up && self.may_begin_in_padding()? {
            return Err(self.refused("its last window may begin in the padding"));
        }
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

    /// Whether a last window could begin behind the data: MXNet counts it, ONNX does not.
    fn may_begin_in_padding(&self) -> Result<bool> {
        let (stride, pad) = (self.node.integers("stride")?, self.node.integers("pad")?);
        let kernel = self.node.integers("kernel")?;
        let mut dimensions = kernel.iter().enumerate();
        Ok(dimensions.any(|(at, &size)| {
            let (step, pad) = (stride.get(at).unwrap_or(&1), pad.get(at).unwrap_or(&0));
            step.saturating_add(*pad) > size
        }))
    }

    pub(super) fn batch_norm(&mut self) -> Result<()> {
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

    pub(super) fn instance_norm(&mut self) -> Result<()> {
        self.expect_inputs(3..=3)?;
        let epsilon = float("epsilon", self.small("eps", 1e-3)?);
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let made = onnx("InstanceNormalization", &inputs, &[self.out]).with(epsilon);
        self.give(made)
    }

    pub(super) fn activation(&mut self) -> Result<()> {
        match self.node.text("act_type", "") {
            "relu" => self.unary("Relu"),
            "sigmoid" => self.unary("Sigmoid"),
            "tanh" => self.unary("Tanh"),
            "softrelu" => self.unary("Softplus"),
            "softsign" => self.unary("Softsign"),
            other => Err(self.refused(&format!("its act_type is {other:?}"))),
        }
    }

    pub(super) fn leaky(&mut self) -> Result<()> {
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

    pub(super) fn softmax(&mut self, op: &str) -> Result<()> {
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

    pub(super) fn softmax_activation(&mut self) -> Result<()> {
        match self.node.text("mode", "instance") {
            "channel" => self.softmax_over(1),
            "instance" => self.softmax_over_rows(),
            other => Err(self.refused(&format!("its mode is {other}"))),
        }
    }

    pub(super) fn softmax_output(&mut self) -> Result<()> {
        if self.node.flag("multi_output", false)? {
            return self.softmax_over(1);
        }
        match self.node.flag("preserve_shape", false)? {
            true => self.softmax_over(-1),
            false => self.softmax_over_rows(),
        }
    }

    pub(super) fn dropout(&mut self) -> Result<()> {
        match self.node.text("mode", "training") {
            "training" => self.unary("Identity"),
            other => Err(self.refused(&format!("its mode is {other}"))),
        }
    }

    pub(super) fn lrn(&mut self) -> Result<()> {
        let made = onnx("LRN", &[self.data()?], &[self.out])
            .with(float("alpha", self.small("alpha", 1e-4)?))
            .with(float("beta", self.small("beta", 0.75)?))
            .with(float("bias", self.small("knorm", 2.0)?))
            .with(int("size", self.node.integer("nsize", 1)?));
        self.give(made)
    }

    /// MXNet cuts numbers to whole ones, and those out of range to the first and the last row.
    pub(super) fn embedding(&mut self) -> Result<()> {
        self.expect_inputs(2..=2)?;
        let (data, weight) = (self.data()?.to_owned(), self.input(1)?.to_owned());
        let Some(&[rows, _]) = self.graph.dims_of(&weight) else {
            return Err(self.broken("has a weight that is no matrix of the parameters"));
        };
        let parts = ["whole", "first", "last", "row"];
        let [whole, first, last, row] = parts.map(|part| self.part(part));
        let number = |value: i64| bytes::Bytes::copy_from_slice(&value.to_le_bytes());
        self.graph.constant(&first, DType::Int64, &[], number(0));
        self.graph.constant(&last, DType::Int64, &[], number(rows.saturating_sub(1)));
        let to = int("to", types::number(DType::Int64).into());
        self.graph.push(onnx("Cast", &[&data], &[&whole]).with(to));
        self.graph.simple("Clip", &[&whole, &first, &last], &row);
        let rank = self.graph.rank(&data).map(|rank| rank + 1);
        self.graph.forget_rank(self.out);
        self.graph.set_rank(self.out, rank);
        self.graph.simple("Gather", &[&weight, &row], self.out);
        Ok(())
    }
}
