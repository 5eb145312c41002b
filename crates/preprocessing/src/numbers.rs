//! The step `scale`, and conversion of numeric tensors to floats and back.

use std::sync::Arc;

use half::{bf16, f16};

use super::file::{FileLine, StepTable};
use super::specs::check_real;
use tensorserve_codec::cast::cast;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, Buffer, DType, Element, Shape, Tensor, TensorSpec, aligned_vec,
};

/// A tensor's numbers as float32, on which steps operate.
pub(super) struct FloatValues {
    pub(super) shape: Shape,
    pub(super) values: AlignedVec<f32>,
}

impl FloatValues {
    /// The numbers of `tensor`; `None` if it is not numeric.
    pub(super) fn of(tensor: &Tensor) -> Option<Self> {
        let shape = tensor.shape().clone();
        if let Some(values) = tensor.values::<f32>() {
            return Some(FloatValues { shape, values: AlignedVec::from_slice(0, values) });
        }
        let floats = cast(tensor, DType::Float)?;
        Some(FloatValues { shape, values: AlignedVec::from_slice(0, floats.values::<f32>()?) })
    }

    /// A tensor of `dtype`. For integer types, values are rounded to nearest, ties to even, and
    /// saturate at the limits of the type.
    pub(super) fn into_tensor(self, dtype: DType) -> Result<Tensor> {
        let FloatValues { shape, values } = self;
        match dtype {
            DType::Float => Tensor::from_vec(shape, values),
            DType::Double => convert(shape, &values, f64::from),
            DType::Half => {
                convert_bits(dtype, shape, &values, |value| f16::from_f32(value).to_bits())
            }
            DType::BFloat16 => {
                convert_bits(dtype, shape, &values, |value| bf16::from_f32(value).to_bits())
            }
            // Casts with `as` saturate.
            DType::Int8 => convert(shape, &values, |value| value.round_ties_even() as i8),
            DType::Int16 => convert(shape, &values, |value| value.round_ties_even() as i16),
            DType::Int32 => convert(shape, &values, |value| value.round_ties_even() as i32),
            DType::Int64 => convert(shape, &values, |value| value.round_ties_even() as i64),
            DType::UInt8 => convert(shape, &values, |value| value.round_ties_even() as u8),
            DType::UInt16 => convert(shape, &values, |value| value.round_ties_even() as u16),
            DType::UInt32 => convert(shape, &values, |value| value.round_ties_even() as u32),
            DType::UInt64 => convert(shape, &values, |value| value.round_ties_even() as u64),
            DType::String | DType::Bool | DType::Complex64 | DType::Complex128 => {
                Err(Error::internal(format!("{dtype} is not a type of real numbers")))
            }
        }
    }
}

fn convert<T: Element>(shape: Shape, values: &[f32], convert: impl Fn(f32) -> T) -> Result<Tensor> {
    let mut converted = aligned_vec::<T>(values.len());
    values.iter().for_each(|value| converted.push(convert(*value)));
    Tensor::from_vec(shape, converted)
}

/// As [`convert`], for the bits of 16-bit floats.
fn convert_bits(
    dtype: DType,
    shape: Shape,
    values: &[f32],
    convert: impl Fn(f32) -> u16,
) -> Result<Tensor> {
    let mut converted = aligned_vec::<u16>(values.len());
    values.iter().for_each(|value| converted.push(convert(*value)));
    Tensor::numeric(dtype, shape, Buffer::new(Arc::new(converted)))
}

/// The step `scale`: a linear function of each number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScaleStep {
    formula: ScaleFormula,
    /// The two parameters of the formula: one pair, or one for each index along `axis`.
    parameters: Vec<(f32, f32)>,
    /// Counted from the last dimension if negative.
    axis: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ScaleFormula {
    /// `x * scale + offset`
    ScaleOffset,
    /// `(x - mean) / std`
    MeanStd,
}

impl ScaleFormula {
    #[inline]
    fn apply(self, value: &mut f32, (first, second): (f32, f32)) {
        match self {
            ScaleFormula::ScaleOffset => *value = *value * first + second,
            ScaleFormula::MeanStd => *value = (*value - first) / second,
        }
    }
}

impl ScaleStep {
    /// Reads a step for the tensor that the model declares as `spec`.
    pub(super) fn read_for(table: &mut StepTable, spec: &TensorSpec) -> Result<Self> {
        let step = ScaleStep::read(table)?;
        step.check(spec, table.location())?;
        Ok(step)
    }

    fn read(table: &mut StepTable) -> Result<Self> {
        let (scale, offset) = (table.numbers("scale")?, table.numbers("offset")?);
        let (mean, std) = (table.numbers("mean")?, table.numbers("std")?);
        let axis = table.integer("axis")?.unwrap_or(-1);
        let has_scale_offset = !scale.is_empty() || !offset.is_empty();
        let has_mean_std = !mean.is_empty() || !std.is_empty();
        if has_scale_offset == has_mean_std {
            return Err(table.error(
                "a step \"scale\" needs either scale and offset (x * scale + offset), or mean and \
                 std ((x - mean) / std)",
            ));
        }
        if std.contains(&0.0) {
            return Err(table.error("std must not be 0: it is a divisor"));
        }
        let (formula, parameters) = match has_scale_offset {
            true => (ScaleFormula::ScaleOffset, pairs(&scale, 1.0, &offset, 0.0)),
            false => (ScaleFormula::MeanStd, pairs(&mean, 0.0, &std, 1.0)),
        };
        let parameters = parameters.map_err(|(first, second)| {
            table.error(format_args!(
                "there are {first} values of one kind and {second} of the other: give the same \
                 number of each, or a single value"
            ))
        })?;
        Ok(ScaleStep { formula, parameters, axis })
    }

    /// Refuses a tensor that cannot be scaled.
    fn check(&self, spec: &TensorSpec, location: &FileLine) -> Result<()> {
        check_real(spec, location, "only real numbers can be scaled")?;
        let Some(dims) = spec.shape.sizes().filter(|_| self.is_per_channel()) else {
            return Ok(());
        };
        let (axis, count) = (self.axis, self.parameters.len());
        match dimension(axis, dims.len()).and_then(|index| dims.get(index).copied()) {
            Some(-1) => Ok(()),
            Some(size) if usize::try_from(size) == Ok(count) => Ok(()),
            _ => Err(location.error(format_args!(
                "there are {count} values along axis {axis}, but {:?} has the shape {}",
                spec.alias, spec.shape
            ))),
        }
    }

    /// Whether each index along the axis has parameters of its own.
    fn is_per_channel(&self) -> bool {
        self.parameters.len() > 1
    }

    /// Scales `floats` in place.
    ///
    /// # Errors
    /// If the size of the axis differs from the number of parameters.
    pub(super) fn apply(&self, floats: &mut FloatValues) -> Result<()> {
        let (formula, axis, channels) = (self.formula, self.axis, self.parameters.len());
        if !self.is_per_channel() {
            if let Some(&pair) = self.parameters.first() {
                floats.values.iter_mut().for_each(|value| formula.apply(value, pair));
            }
            return Ok(());
        }
        let dims = floats.shape.dims();
        let index = dimension(axis, dims.len());
        let size = index.and_then(|index| dims.get(index)).and_then(|&n| usize::try_from(n).ok());
        if size != Some(channels) {
            return Err(Error::invalid(format!(
                "its shape is {:?}, but there are values for {channels} indices along axis {axis}",
                floats.shape
            )));
        }
        let inner = dims.get(index.unwrap_or_default() + 1..).unwrap_or_default();
        let inner: i64 = inner.iter().product();
        let inner = usize::try_from(inner).unwrap_or(0).max(1);
        if inner == 1 {
            for values in floats.values.chunks_exact_mut(channels) {
                for (value, &pair) in values.iter_mut().zip(&self.parameters) {
                    formula.apply(value, pair);
                }
            }
            return Ok(());
        }
        for values in floats.values.chunks_exact_mut(channels * inner) {
            for (plane, &pair) in values.chunks_exact_mut(inner).zip(&self.parameters) {
                plane.iter_mut().for_each(|value| formula.apply(value, pair));
            }
        }
        Ok(())
    }
}

/// Pairs two lists of parameters. An empty list stands for its default, and a single value is
/// repeated. Fails with both lengths if they differ otherwise.
fn pairs(
    first: &[f32],
    first_default: f32,
    second: &[f32],
    second_default: f32,
) -> Result<Vec<(f32, f32)>, (usize, usize)> {
    let first = if first.is_empty() { &[first_default] } else { first };
    let second = if second.is_empty() { &[second_default] } else { second };
    match (first, second) {
        ([first], second) => Ok(second.iter().map(|second| (*first, *second)).collect()),
        (first, [second]) => Ok(first.iter().map(|first| (*first, *second)).collect()),
        _ if first.len() == second.len() => {
            Ok(first.iter().copied().zip(second.iter().copied()).collect())
        }
        _ => Err((first.len(), second.len())),
    }
}

/// The index of the dimension that `axis` selects in a tensor of this rank.
fn dimension(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let index = if axis < 0 { rank + axis } else { axis };
    usize::try_from(index).ok().filter(|_| index < rank)
}
