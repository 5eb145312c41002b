//! Converts the layers of neural networks. Comments name the differences between MXNet and ONNX.

use super::ops::OpConversion;
use crate::graph::{float, int, ints, node as onnx_node};
use crate::proto::NodeProto;
use crate::types;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::Result;

/// Why an operation that depends on the rank of its input cannot be converted.
const UNKNOWN_RANK: &str = "the rank of its input is unknown; declare it in a signature file";

impl OpConversion<'_, '_, '_> {
    pub(super) fn fully_connected(&mut self) -> Result<()> {
        self.expect_inputs(2..=3)?;
        let (flat, weight) = (self.internal_name("flat"), self.input(1)?.to_owned());
        let data = self.data()?.to_owned();
        let bias = self.inputs.get(2).cloned();
        if self.node.flag("flatten", true)? {
            self.graph.push_op("Flatten", &[&data], &flat);
            let mut inputs = vec![&*flat, &*weight];
            inputs.extend(bias.as_deref());
            self.graph.set_rank(self.out, Some(2));
            let converted = onnx_node("Gemm", &inputs, &[self.out]).with(int("transB", 1));
            return self.push_node(converted);
        }
        // Without `flatten` the layer applies to the last dimension only.
        let transposed = self.internal_name("transposed");
        let product = self.internal_name("product");
        self.graph.push_op("Transpose", &[&weight], &transposed);
        let Some(bias) = bias else {
            self.graph.push_op("MatMul", &[&data, &transposed], self.out);
            return Ok(());
        };
        self.graph.push_op("MatMul", &[&data, &transposed], &product);
        self.graph.push_op("Add", &[&product, &bias], self.out);
        Ok(())
    }

    /// Adds the attributes that convolutions and poolings share: kernel, strides, dilations and
    /// padding.
    fn with_window(&mut self, mut converted: NodeProto) -> Result<NodeProto> {
        let layout = self.node.text("layout", "NCHW");
        if !["NCHW", "NCW", "NCDHW"].contains(&layout) {
            return Err(self.unsupported(&format!("its layout is {layout}")));
        }
        let kernel = self.node.integers("kernel")?;
        let pad = self.node.integers("pad")?;
        self.graph.set_rank(self.out, Some(kernel.len() + 2));
        let stride = self.node.integers("stride")?;
        let dilate = self.node.integers("dilate")?;
        for (name, values) in [("strides", stride), ("dilations", dilate)] {
            if !values.is_empty() {
                converted = converted.with(ints(name, &values));
            }
        }
        if !pad.is_empty() {
            converted = converted.with(ints("pads", &[pad.clone(), pad].concat()));
        }
        Ok(converted.with(ints("kernel_shape", &kernel)))
    }

    pub(super) fn convolution(&mut self) -> Result<()> {
        self.expect_inputs(2..=3)?;
        let inputs = self.input_names();
        let converted = onnx_node("Conv", &inputs, &[self.out]);
        let group = int("group", self.node.integer("num_group", 1)?);
        let converted = self.with_window(converted)?.with(group);
        self.push_node(converted)
    }

    pub(super) fn deconvolution(&mut self) -> Result<()> {
        self.expect_inputs(2..=3)?;
        if !self.node.integers("target_shape")?.is_empty() {
            return Err(self.unsupported("it has a target_shape"));
        }
        let inputs = self.input_names();
        let converted = onnx_node("ConvTranspose", &inputs, &[self.out]);
        let mut converted =
            self.with_window(converted)?.with(int("group", self.node.integer("num_group", 1)?));
        let output_padding = self.node.integers("adj")?;
        if !output_padding.is_empty() {
            converted = converted.with(ints("output_padding", &output_padding));
        }
        self.push_node(converted)
    }

    pub(super) fn pooling(&mut self) -> Result<()> {
        let pool_type = self.node.text("pool_type", "max");
        let (local, global) = match pool_type {
            "max" => ("MaxPool", "GlobalMaxPool"),
            "avg" => ("AveragePool", "GlobalAveragePool"),
            other => return Err(self.unsupported(&format!("its pool_type is {other}"))),
        };
        if self.node.flag("global_pool", false)? {
            return self.unary(global);
        }
        let rounds_up = match self.node.text("pooling_convention", "valid") {
            "valid" => false,
            "full" => true,
            other => return Err(self.unsupported(&format!("its pooling_convention is {other}"))),
        };
        if rounds_up && self.may_start_after_data()? {
            return Err(self.unsupported("its last window may start in the padding"));
        }
        let converted = onnx_node(local, &[self.data()?], &[self.out]);
        let mut converted = self.with_window(converted)?.with(int("ceil_mode", rounds_up.into()));
        if pool_type == "avg" {
            let has_padding = self.node.integers("pad")?.iter().any(|&pad| pad != 0);
            let includes_padding = self.node.flag("count_include_pad", true)? && has_padding;
            // A window that reaches beyond the padding is divided by its size within the padding in
            // MXNet, and by its full size in ONNX.
            if includes_padding && rounds_up {
                return Err(self.unsupported("its last window may reach beyond the padding"));
            }
            converted = converted.with(int("count_include_pad", includes_padding.into()));
        }
        self.push_node(converted)
    }

    /// Whether a last window may start after the data: MXNet includes such a window, ONNX does not.
    fn may_start_after_data(&self) -> Result<bool> {
        let (strides, pads) = (self.node.integers("stride")?, self.node.integers("pad")?);
        let kernel = self.node.integers("kernel")?;
        let mut dimensions = kernel.iter().enumerate();
        Ok(dimensions.any(|(dimension, &size)| {
            let stride = strides.get(dimension).unwrap_or(&1);
            let pad = pads.get(dimension).unwrap_or(&0);
            stride.saturating_add(*pad) > size
        }))
    }

    pub(super) fn batch_norm(&mut self) -> Result<()> {
        let axis = self.node.integer("axis", 1)?;
        if axis != 1 {
            return Err(self.unsupported(&format!("its axis is {axis}")));
        }
        // Symbols written by versions before 0.9 do not list the running statistics as inputs.
        if self.inputs.len() == 3 {
            for statistic in ["moving_mean", "moving_var"] {
                let name = format!("{}_{statistic}", self.node.name);
                self.graph.add_param(&name);
                self.inputs.push(name);
            }
        }
        self.expect_inputs(5..=5)?;
        if self.node.flag("fix_gamma", true)? {
            // MXNet computes with ones, whatever gamma the parameters have.
            let (gamma, beta) = (self.input(1)?.to_owned(), self.input(2)?.to_owned());
            let known = self.graph.param_dims(&gamma).or_else(|| self.graph.param_dims(&beta));
            let Some(&[channels]) = known else {
                return Err(self.invalid_op("has a gamma that is not a vector"));
            };
            let ones = self.internal_name("gamma");
            self.graph.ones(&ones, self.graph.dtype, channels);
            if let Some(gamma) = self.inputs.get_mut(1) {
                *gamma = ones;
            }
        }
        let epsilon = float("epsilon", self.float_attribute("eps", 1e-3)?);
        let inputs = self.input_names();
        let converted = onnx_node("BatchNormalization", &inputs, &[self.out]).with(epsilon);
        self.push_node(converted)
    }

    pub(super) fn instance_norm(&mut self) -> Result<()> {
        self.expect_inputs(3..=3)?;
        let epsilon = float("epsilon", self.float_attribute("eps", 1e-3)?);
        let inputs = self.input_names();
        let converted = onnx_node("InstanceNormalization", &inputs, &[self.out]).with(epsilon);
        self.push_node(converted)
    }

    pub(super) fn activation(&mut self) -> Result<()> {
        match self.node.text("act_type", "") {
            "relu" => self.unary("Relu"),
            "sigmoid" => self.unary("Sigmoid"),
            "tanh" => self.unary("Tanh"),
            "softrelu" => self.unary("Softplus"),
            "softsign" => self.unary("Softsign"),
            other => Err(self.unsupported(&format!("its act_type is {other:?}"))),
        }
    }

    pub(super) fn leaky_relu(&mut self) -> Result<()> {
        let data = self.data()?;
        let with_slope =
            |op: &str, slope| onnx_node(op, &[data], &[self.out]).with(float("alpha", slope));
        let converted = match self.node.text("act_type", "leaky") {
            "leaky" => with_slope("LeakyRelu", self.float_attribute("slope", 0.25)?),
            "elu" => with_slope("Elu", self.float_attribute("slope", 0.25)?),
            // Training draws slopes from a range; inference uses its middle.
            "rrelu" => {
                let low = self.float_attribute("lower_bound", 0.125)?;
                let high = self.float_attribute("upper_bound", 0.334)?;
                with_slope("LeakyRelu", low.midpoint(high))
            }
            "selu" => onnx_node("Selu", &[data], &[self.out]),
            "gelu" => return self.gelu(),
            "prelu" => return self.prelu(),
            other => return Err(self.unsupported(&format!("its act_type is {other}"))),
        };
        self.push_node(converted)
    }

    /// x/2 · (1 + erf(x/√2)).
    fn gelu(&mut self) -> Result<()> {
        let data = self.data()?.to_owned();
        let parts = ["root", "one", "half", "scaled", "erf", "sum", "product"];
        let [root, one, half, scaled, erf, sum, product] =
            parts.map(|part| self.internal_name(part));
        self.graph.scalar(&root, std::f64::consts::SQRT_2);
        self.graph.scalar(&one, 1.0);
        self.graph.scalar(&half, 0.5);
        self.graph.push_op("Div", &[&data, &root], &scaled);
        self.graph.push_op("Erf", &[&scaled], &erf);
        self.graph.push_op("Add", &[&erf, &one], &sum);
        self.graph.push_op("Mul", &[&data, &sum], &product);
        self.graph.push_op("Mul", &[&product, &half], self.out);
        Ok(())
    }

    /// A learned slope for each channel, which is the second dimension.
    fn prelu(&mut self) -> Result<()> {
        self.expect_inputs(2..=2)?;
        let (data, gamma) = (self.data()?.to_owned(), self.input(1)?.to_owned());
        let Some(rank) = self.graph.rank(&data) else {
            return Err(self.unsupported(UNKNOWN_RANK));
        };
        let mut shape = vec![-1_i64];
        shape.resize(rank.saturating_sub(1).max(1), 1);
        let (slope, name) = (self.internal_name("slope"), self.internal_name("shape"));
        self.graph.int64_vector(&name, &shape);
        self.graph.push_op("Reshape", &[&gamma, &name], &slope);
        self.graph.push_op("PRelu", &[&data, &slope], self.out);
        Ok(())
    }

    pub(super) fn softmax(&mut self, op: &str) -> Result<()> {
        if self.inputs.len() > 1 || self.node.flag("use_length", false)? {
            return Err(self.unsupported("it has sequence lengths"));
        }
        let temperature = self.node.float("temperature", 1.0)?;
        let mut data = self.data()?.to_owned();
        if temperature.to_bits() != 1.0_f64.to_bits() {
            let (number, scaled) =
                (self.internal_name("temperature"), self.internal_name("scaled"));
            self.graph.scalar(&number, temperature);
            self.graph.push_op("Div", &[&data, &number], &scaled);
            data = scaled;
        }
        let axis = int("axis", self.node.integer("axis", -1)?);
        let converted = onnx_node(op, &[&data], &[self.out]).with(axis);
        self.push_node(converted)
    }

    fn softmax_over(&mut self, axis: i64) -> Result<()> {
        let converted = onnx_node("Softmax", &[self.data()?], &[self.out]).with(int("axis", axis));
        self.push_node(converted)
    }

    /// A softmax over all values of a row, which ONNX has only for rows of one dimension.
    fn softmax_over_rows(&mut self) -> Result<()> {
        match self.graph.rank(self.data()?) {
            Some(2) => self.softmax_over(1),
            Some(_) => Err(self.unsupported("it applies to several dimensions at once")),
            None => Err(self.unsupported(UNKNOWN_RANK)),
        }
    }

    pub(super) fn softmax_activation(&mut self) -> Result<()> {
        match self.node.text("mode", "instance") {
            "channel" => self.softmax_over(1),
            "instance" => self.softmax_over_rows(),
            other => Err(self.unsupported(&format!("its mode is {other}"))),
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
            other => Err(self.unsupported(&format!("its mode is {other}"))),
        }
    }

    pub(super) fn lrn(&mut self) -> Result<()> {
        let converted = onnx_node("LRN", &[self.data()?], &[self.out])
            .with(float("alpha", self.float_attribute("alpha", 1e-4)?))
            .with(float("beta", self.float_attribute("beta", 0.75)?))
            .with(float("bias", self.float_attribute("knorm", 2.0)?))
            .with(int("size", self.node.integer("nsize", 1)?));
        self.push_node(converted)
    }

    /// MXNet truncates an index to an integer, and clips it to the rows of the weight.
    pub(super) fn embedding(&mut self) -> Result<()> {
        self.expect_inputs(2..=2)?;
        let (data, weight) = (self.data()?.to_owned(), self.input(1)?.to_owned());
        let Some(&[rows, _]) = self.graph.param_dims(&weight) else {
            return Err(self.invalid_op("has a weight that is not a matrix of the parameters"));
        };
        let parts = ["whole", "first", "last", "row"];
        let [whole, first, last, row] = parts.map(|part| self.internal_name(part));
        let last_row = rows.saturating_sub(1);
        self.graph.constant(&first, DType::Int64, &[], 0_i64.to_le_bytes().to_vec().into());
        self.graph.constant(&last, DType::Int64, &[], last_row.to_le_bytes().to_vec().into());
        let to = int("to", types::element_type(DType::Int64).into());
        self.graph.push(onnx_node("Cast", &[&data], &[&whole]).with(to));
        self.graph.push_op("Clip", &[&whole, &first, &last], &row);
        let rank = self.graph.rank(&data).map(|rank| rank + 1);
        self.graph.set_rank(self.out, rank);
        self.graph.push_op("Gather", &[&weight, &row], self.out);
        Ok(())
    }
}
