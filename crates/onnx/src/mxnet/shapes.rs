//! Operations that change shapes, in ONNX.

use super::ops::Step;
use crate::graph::{int, ints, node as onnx, string};
use tensorserve_tensor::DType;
use tensorserve_tensor::error::Result;

impl Step<'_, '_, '_> {
    pub(super) fn reshape(&mut self) -> Result<()> {
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

    pub(super) fn transpose(&mut self) -> Result<()> {
        let axes = self.node.integers("axes")?;
        let mut made = onnx("Transpose", &[self.data()?], &[self.out]);
        if !axes.is_empty() {
            made = made.with(ints("perm", &axes));
        }
        self.give(made)
    }

    pub(super) fn pad(&mut self) -> Result<()> {
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

    pub(super) fn up_sampling(&mut self) -> Result<()> {
        let kind = self.node.text("sample_type", "");
        if kind != "nearest" || self.inputs.len() != 1 {
            return Err(self.refused(&format!("its sample_type is {kind:?}, or it has two inputs")));
        }
        let scale = u16::try_from(self.node.integer("scale", 1)?)
            .map_err(|_| self.broken("has a scale out of range"))?;
        let scales = self.part("scales");
        let values = [1.0, 1.0, f32::from(scale), f32::from(scale)];
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.graph.constant(&scales, DType::Float, &[4], bytes.into());
        let made = onnx("Resize", &[self.data()?, "", &scales], &[self.out])
            .with(string("mode", "nearest"))
            .with(string("coordinate_transformation_mode", "asymmetric"))
            .with(string("nearest_mode", "floor"));
        self.give(made)
    }

    pub(super) fn reduce(&mut self, op: &str) -> Result<()> {
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

    pub(super) fn slice_axis(&mut self) -> Result<()> {
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

    pub(super) fn expand_dims(&mut self) -> Result<()> {
        let axis = self.node.integers("axis")?;
        if axis.len() != 1 {
            return Err(self.broken("has no axis"));
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
