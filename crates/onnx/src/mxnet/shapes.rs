//! Converts operations that change shapes. Comments name the differences between MXNet and ONNX.

use super::ops::OpConversion;
use crate::graph::{int, ints, node as onnx_node, string};
use tensorserve_tensor::DType;
use tensorserve_tensor::error::Result;

impl OpConversion<'_, '_, '_> {
    pub(super) fn reshape(&mut self) -> Result<()> {
        let shape = self.node.integers("shape")?;
        if shape.is_empty() || self.node.flag("reverse", false)? {
            return Err(self.unsupported("it has no shape, or reverse = True"));
        }
        // 0 keeps a dimension and -1 infers it, as in ONNX. Smaller codes are MXNet's own.
        if let Some(code) = shape.iter().find(|&&size| size < -1) {
            return Err(self.unsupported(&format!("its shape has the code {code}")));
        }
        let name = self.internal_name("shape");
        self.graph.int64_vector(&name, &shape);
        self.graph.set_rank(self.out, Some(shape.len()));
        let converted = onnx_node("Reshape", &[self.data()?, &name], &[self.out]);
        self.push_node(converted)
    }

    pub(super) fn transpose(&mut self) -> Result<()> {
        let axes = self.node.integers("axes")?;
        let mut converted = onnx_node("Transpose", &[self.data()?], &[self.out]);
        if !axes.is_empty() {
            converted = converted.with(ints("perm", &axes));
        }
        self.push_node(converted)
    }

    pub(super) fn pad(&mut self) -> Result<()> {
        let mode = self.node.text("mode", "");
        if !["constant", "edge", "reflect"].contains(&mode) {
            return Err(self.unsupported(&format!("its mode is {mode:?}")));
        }
        // MXNet lists start and end of each dimension in turn, ONNX all starts before all ends.
        let widths = self.node.integers("pad_width")?;
        let starts = widths.iter().step_by(2);
        let ends = widths.iter().skip(1).step_by(2);
        let pads: Vec<i64> = starts.chain(ends).copied().collect();
        let (pads_name, fill_name) = (self.internal_name("pads"), self.internal_name("fill"));
        self.graph.int64_vector(&pads_name, &pads);
        self.graph.scalar(&fill_name, self.node.float("constant_value", 0.0)?);
        let inputs = [self.data()?, &pads_name, &fill_name];
        let converted = onnx_node("Pad", &inputs, &[self.out]).with(string("mode", mode));
        self.push_node(converted)
    }

    pub(super) fn up_sampling(&mut self) -> Result<()> {
        let sample_type = self.node.text("sample_type", "");
        if sample_type != "nearest" {
            return Err(self.unsupported(&format!("its sample_type is {sample_type:?}")));
        }
        if self.inputs.len() != 1 {
            return Err(self.unsupported(&format!("it has {} inputs", self.inputs.len())));
        }
        let scale = u16::try_from(self.node.integer("scale", 1)?)
            .map_err(|_| self.invalid_op("has a scale out of range"))?;
        let scales = self.internal_name("scales");
        let values = [1.0, 1.0, f32::from(scale), f32::from(scale)];
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.graph.constant(&scales, DType::Float, &[4], bytes.into());
        let converted = onnx_node("Resize", &[self.data()?, "", &scales], &[self.out])
            .with(string("mode", "nearest"))
            .with(string("coordinate_transformation_mode", "asymmetric"))
            .with(string("nearest_mode", "floor"));
        self.push_node(converted)
    }

    pub(super) fn reduce(&mut self, op: &str) -> Result<()> {
        if self.node.flag("exclude", false)? {
            return Err(self.unsupported("it excludes axes"));
        }
        let axes = self.node.integers("axis")?;
        let keeps_dims = self.node.flag("keepdims", false)?;
        let rank = self.graph.rank(self.data()?);
        if !keeps_dims {
            let reduced =
                |rank: usize| if axes.is_empty() { 0 } else { rank.saturating_sub(axes.len()) };
            self.graph.set_rank(self.out, rank.map(reduced));
        }
        let name = self.internal_name("axes");
        let mut inputs = vec![self.data()?];
        // In the operator set of the converted model only ReduceSum takes its axes as an input.
        let has_axes_input = op == "ReduceSum" && !axes.is_empty();
        if has_axes_input {
            inputs.push(&name);
        }
        let keepdims = int("keepdims", keeps_dims.into());
        let mut converted = onnx_node(op, &inputs, &[self.out]).with(keepdims);
        if has_axes_input {
            self.graph.int64_vector(&name, &axes);
        } else if !axes.is_empty() {
            converted = converted.with(ints("axes", &axes));
        }
        self.push_node(converted)
    }

    pub(super) fn slice_axis(&mut self) -> Result<()> {
        let parameters = [
            ("starts", self.node.integer("begin", 0)?),
            ("ends", self.node.integer("end", i64::MAX)?),
            ("axes", self.node.integer("axis", 0)?),
        ];
        let names = parameters.map(|(part, value)| {
            let name = self.internal_name(part);
            self.graph.int64_vector(&name, &[value]);
            name
        });
        let [starts, ends, axes] = &names;
        let converted = onnx_node("Slice", &[self.data()?, starts, ends, axes], &[self.out]);
        self.push_node(converted)
    }

    /// Adds an ONNX operator that takes its axes as an input, and sets the rank of its output.
    fn with_axes(&mut self, op: &str, axes: &[i64], rank: Option<usize>) -> Result<()> {
        self.graph.set_rank(self.out, rank);
        if axes.is_empty() {
            return self.unary(op);
        }
        let name = self.internal_name("axes");
        self.graph.int64_vector(&name, axes);
        let converted = onnx_node(op, &[self.data()?, &name], &[self.out]);
        self.push_node(converted)
    }

    pub(super) fn expand_dims(&mut self) -> Result<()> {
        let axis = self.node.integers("axis")?;
        if axis.len() != 1 {
            return Err(self.invalid_op("must have one axis"));
        }
        let rank = self.graph.rank(self.data()?).map(|rank| rank + 1);
        self.with_axes("Unsqueeze", &axis, rank)
    }

    pub(super) fn squeeze(&mut self) -> Result<()> {
        let axes = self.node.integers("axis")?;
        let rank = self.graph.rank(self.data()?).filter(|_| !axes.is_empty());
        let rank = rank.and_then(|rank| rank.checked_sub(axes.len()));
        self.with_axes("Squeeze", &axes, rank)
    }
}
