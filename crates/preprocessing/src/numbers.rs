//! Numbers of any type as floats and back, and the step `scale`.

use half::{bf16, f16};

use super::file::Step;
use tensorserve_codec::cast::cast;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{AlignedVec, DType, Shape, Tensor, aligned_vec};

/// What steps work on: numbers that have not become a tensor yet.
pub(super) struct Floats {
    pub(super) shape: Shape,
    pub(super) values: AlignedVec<f32>,
}

/// Whether numbers of this type can be converted.
pub(super) fn is_real(dtype: DType) -> bool {
    match dtype {
        DType::Float | DType::Double | DType::Half | DType::BFloat16 => true,
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => true,
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => true,
        DType::String | DType::Bool | DType::Complex64 | DType::Complex128 => false,
    }
}

impl Floats {
    /// The numbers of `tensor`; `None` if it has none.
    pub(super) fn of(tensor: &Tensor) -> Option<Self> {
        let shape = tensor.shape().clone();
        if let Some(values) = tensor.values::<f32>() {
            return Some(Floats { shape, values: AlignedVec::from_slice(0, values) });
        }
        let floats = cast(tensor, DType::Float)?;
        Some(Floats { shape, values: AlignedVec::from_slice(0, floats.values::<f32>()?) })
    }

    /// A tensor of `dtype`: whole numbers are rounded to the nearest (of two, to the even one) and
    /// kept within what the type holds.
    pub(super) fn into_tensor(self, dtype: DType) -> Result<Tensor> {
        let Floats { shape, values } = self;
        match dtype {
            DType::Float => Tensor::from_vec(shape, values),
            DType::Double => each(shape, &values, f64::from),
            DType::Half => bits(dtype, shape, &values, |value| f16::from_f32(value).to_bits()),
            DType::BFloat16 => bits(dtype, shape, &values, |value| bf16::from_f32(value).to_bits()),
            // `as` keeps within the type.
            DType::Int8 => each(shape, &values, |value| value.round_ties_even() as i8),
            DType::Int16 => each(shape, &values, |value| value.round_ties_even() as i16),
            DType::Int32 => each(shape, &values, |value| value.round_ties_even() as i32),
            DType::Int64 => each(shape, &values, |value| value.round_ties_even() as i64),
            DType::UInt8 => each(shape, &values, |value| value.round_ties_even() as u8),
            DType::UInt16 => each(shape, &values, |value| value.round_ties_even() as u16),
            DType::UInt32 => each(shape, &values, |value| value.round_ties_even() as u32),
            DType::UInt64 => each(shape, &values, |value| value.round_ties_even() as u64),
            DType::String | DType::Bool | DType::Complex64 | DType::Complex128 => {
                Err(Error::internal(format!("no number becomes {dtype}")))
            }
        }
    }
}

fn each<T: tensorserve_tensor::Element>(
    shape: Shape,
    values: &[f32],
    convert: impl Fn(f32) -> T,
) -> Result<Tensor> {
    let mut converted = aligned_vec::<T>(values.len());
    values.iter().for_each(|value| converted.push(convert(*value)));
    Tensor::from_vec(shape, converted)
}

fn bits(
    dtype: DType,
    shape: Shape,
    values: &[f32],
    convert: impl Fn(f32) -> u16,
) -> Result<Tensor> {
    let mut converted = aligned_vec::<u16>(values.len());
    values.iter().for_each(|value| converted.push(convert(*value)));
    let buffer = tensorserve_tensor::Buffer::new(std::sync::Arc::new(converted));
    Tensor::numeric(dtype, shape, buffer)
}

/// `scale`: each number with a factor and an offset, or less a mean and by a standard deviation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    kind: Kind,
    /// One, or one for each place along `axis`.
    first: Vec<f32>,
    second: Vec<f32>,
    /// Counted from the end if negative.
    axis: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// `x * first + second`
    Factor,
    /// `(x - first) / second`
    Mean,
}

impl Scale {
    pub(super) fn read(step: &mut Step) -> Result<Self> {
        let (scale, offset) = (step.numbers("scale")?, step.numbers("offset")?);
        let (mean, std) = (step.numbers("mean")?, step.numbers("std")?);
        let axis = step.whole("axis")?.unwrap_or(-1);
        let by_factor = !scale.is_empty() || !offset.is_empty();
        let by_mean = !mean.is_empty() || !std.is_empty();
        if by_factor == by_mean {
            return Err(step.error(
                "a step \"scale\" has scale and offset (x * scale + offset), or else mean and std \
                 ((x - mean) / std)",
            ));
        }
        if std.contains(&0.0) {
            return Err(step.error("std is 0, and nothing can be divided by that"));
        }
        let or = |list: Vec<f32>, default: f32| if list.is_empty() { vec![default] } else { list };
        let (kind, mut first, mut second) = match by_factor {
            true => (Kind::Factor, or(scale, 1.0), or(offset, 0.0)),
            false => (Kind::Mean, or(mean, 0.0), or(std, 1.0)),
        };
        let most = first.len().max(second.len());
        for list in [&mut first, &mut second] {
            if list.len() == 1 {
                *list = vec![list.first().copied().unwrap_or_default(); most];
            }
        }
        if first.len() != second.len() {
            let (a, b) = (first.len(), second.len());
            return Err(step.error(format_args!(
                "there are {a} values of one kind and {b} of the other: give as many of each, or one"
            )));
        }
        Ok(Scale { kind, first, second, axis })
    }

    /// How many places there must be along which axis, if it matters.
    pub(super) fn channels(&self) -> Option<(usize, i64)> {
        (self.first.len() > 1).then_some((self.first.len(), self.axis))
    }

    /// Scales `floats` in place.
    ///
    /// # Errors
    /// If there are not as many places along the axis as values.
    pub(super) fn apply(&self, floats: &mut Floats) -> Result<()> {
        let kind = self.kind;
        let one = |value: &mut f32, (first, second): (&f32, &f32)| match kind {
            Kind::Factor => *value = *value * first + second,
            Kind::Mean => *value = (*value - first) / second,
        };
        let Some((channels, axis)) = self.channels() else {
            let (Some(first), Some(second)) = (self.first.first(), self.second.first()) else {
                return Ok(());
            };
            floats.values.iter_mut().for_each(|value| one(value, (first, second)));
            return Ok(());
        };
        let dims = floats.shape.dims();
        let at = place(axis, dims.len());
        let found = at.and_then(|at| dims.get(at)).and_then(|&dim| usize::try_from(dim).ok());
        if found != Some(channels) {
            return Err(Error::invalid(format!(
                "its shape is {:?}, and there are values for {channels} places along axis {axis}",
                floats.shape
            )));
        }
        let inner = dims.get(at.unwrap_or_default() + 1..).unwrap_or_default();
        let inner: i64 = inner.iter().product();
        let inner = usize::try_from(inner).unwrap_or(0).max(1);
        let parameters = || self.first.iter().zip(&self.second);
        if inner == 1 {
            for values in floats.values.chunks_exact_mut(channels) {
                values.iter_mut().zip(parameters()).for_each(|(value, pair)| one(value, pair));
            }
            return Ok(());
        }
        for values in floats.values.chunks_exact_mut(channels * inner) {
            for (plane, pair) in values.chunks_exact_mut(inner).zip(parameters()) {
                plane.iter_mut().for_each(|value| one(value, pair));
            }
        }
        Ok(())
    }
}

/// The dimension that an axis means, of so many.
pub(super) fn place(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let at = if axis < 0 { rank + axis } else { axis };
    usize::try_from(at).ok().filter(|_| at < rank)
}
